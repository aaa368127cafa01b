"""Attention by hand and fused: its work items, its memory, its values and gradients against float64."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import attention, cost, dispatch, hardware, measure, timeline
from tutorial_lib.attention import Attention, Decode
from tutorial_lib.cost import total

A100 = hardware.find("A100")
CPU = replace(A100, kind="cpu")
BY_HAND = ("naive", "in_place", "scaled_query", "additive")
SMALL = {"batch": 2, "heads": 4, "seq": 16, "head_dim": 8}


pytestmark = pytest.mark.usefixtures("one_thread")


def traced(step, tmp_path):
    trace = measure.record(step, tmp_path / "trace.json", steps=1, warmup=1, device="cpu")
    return timeline.work_items(trace, int(timeline.steps(trace)["step"].iloc[-1]))


def call_of(config):
    fn, inputs = config.build(), config.inputs()
    return lambda: fn(*inputs)


# ------------------------------------------------------------------------------------------------ work items


def test_the_ladder_goes_from_six_items_to_one_at_the_cited_shape():
    counts = [len(Attention(variant=v).costs()) for v in (*BY_HAND, "sdpa")]
    assert counts == [6, 5, 5, 4, 1]


@pytest.mark.parametrize(
    "sizes", [{}, {"kv_heads": 4}, {"batch": 1, "heads": 1, "seq": 3}, {"heads": 6, "kv_heads": 1, "seq": 1}]
)
@pytest.mark.parametrize("variant", BY_HAND)
def test_costs_by_hand_are_what_dispatch_finds(variant, sizes):
    config = Attention(variant=variant, **sizes)
    for device in (A100, CPU):
        found = dispatch.work(config.build("meta"), *config.inputs("meta"), on=device)
        alone = sizes == {} and device is A100  # elsewhere heads of one are squeezed, and copies are views
        said = [(w.operator, w.cost, w.shapes if alone else ()) for w in config.costs(device.kind)]
        assert said == [(w.operator, w.cost, w.shapes if alone else ()) for w in found]


@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn", "math"])
def test_costs_of_sdpa_are_what_dispatch_finds(backend):
    shared = {} if backend == "efficient" else {"kv_heads": 4}  # which takes as many heads of k as of q
    for config in (
        Attention(variant="sdpa", backend=backend, **shared),
        Decode(variant="sdpa", backend=backend, **shared),
    ):
        for device in (A100, CPU) if backend in ("flash", "math") else (A100,):
            found = dispatch.work(config.build("meta"), *config.inputs("meta"), on=device)
            assert [(w.operator, w.cost) for w in found] == [
                (w.operator, w.cost) for w in config.costs(device.kind)
            ]


@pytest.mark.parametrize(
    "config",
    [
        *(Attention(**SMALL, variant=v, dtype="float32") for v in BY_HAND),
        *(Attention(**SMALL, kv_heads=2, variant=v, dtype="float32") for v in BY_HAND),
        Attention(**SMALL, dtype="float32", causal=False),
        Attention(**SMALL, variant="in_place"),
        Attention(**SMALL, kv_heads=2, variant="sdpa"),
        Attention(**SMALL, variant="sdpa", backend="flash", dtype="float16", causal=False),
        Attention(**SMALL, variant="sdpa", backend="math"),
        Attention(**SMALL, variant="sdpa", backend="math", causal=False, kv_heads=2),
        Decode(2, 4, 16, 8, dtype="float32"),
        Decode(2, 4, 16, 8, kv_heads=1),
        Decode(2, 4, 16, 8, kv_heads=2, variant="sdpa"),
        Decode(2, 4, 16, 8, variant="sdpa", backend="math"),
    ],
    ids=str,
)
def test_costs_are_what_a_cpu_trace_shows(config, tmp_path):
    found = traced(call_of(config), tmp_path)
    want = config.costs("cpu")
    assert found["name"].tolist() == [w.operator for w in want]
    columns = ["name", "shapes", "dtypes", "strides", "concrete"]
    for (name, shapes, dtypes, strides, values), by_hand in zip(
        found[columns].itertuples(index=False), want, strict=True
    ):
        work = cost.operator(name, shapes, dtypes, strides=strides, concrete=values)
        # The trace shows baddbmm's addend before it is spread and copied, [seq, seq] instead of all scores.
        if name != "aten::baddbmm":
            assert (name, work.cost) == (name, by_hand.cost)


def test_a_product_made_of_products_is_not_counted_twice(tmp_path):
    config = Attention(1, 3, 16, 8, variant="additive")
    names = traced(call_of(config), tmp_path)["name"].tolist()
    # Where a CPU has no batched bf16 product with an addend, there is an addmm_ for each of the 3 heads.
    assert names[:1] == ["aten::copy_"] and names[-2:] == ["aten::_softmax", "aten::bmm"]
    assert names[1:-2] in (["aten::baddbmm"], ["aten::addmm_"] * 3)


@pytest.mark.parametrize("variant", [*BY_HAND, "sdpa"])
def test_flops_equal_torchs_counter(variant):
    config = Attention(**SMALL, variant=variant, backend="math" if variant == "sdpa" else None)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        config.build("meta")(*config.inputs("meta"))
    assert total(config.costs()).flops == counter.get_total_flops()


def test_causal_attention_is_counted_full_and_only_a_fused_kernel_can_skip_the_masked_half():
    naive, fused = Attention().costs(), Attention(variant="sdpa", backend="flash").costs()
    # 4·1024²·64 FLOPs a head, 128 heads
    assert total(naive).flops == total(fused).flops == 128 * 4 * 1024**2 * 64
    assert sum(w.skippable_flops for w in naive) == 0
    # 1024·1023/2 scores above the diagonal of 1024²
    assert fused[0].skippable_flops / fused[0].flops == 1023 / 2048


def test_the_written_out_variants_move_the_scores_ten_eight_six_and_six_times():
    # GEMM out 1, mul 2, copy 2, fill 2, softmax 2, GEMM in 1 = 10; in place without the copy 8, with q scaled
    # without mul 6; additive: spread 1, GEMM in and out 2, softmax 2, GEMM in 1 = 6
    config = Attention()
    assert config.score_bytes == 8 * 16 * 1024**2 * 2 == 268_435_456
    for variant, passes in zip(BY_HAND, (10, 8, 6, 6), strict=True):
        moved = total(Attention(variant=variant).costs()).bytes_moved
        assert moved // config.score_bytes == passes
    # q, k, v and the output, 16.8 MB each, and nothing of the scores
    assert total(Attention(variant="sdpa").costs()).bytes_moved == 4 * 8 * 16 * 1024 * 64 * 2


def test_one_decode_step_is_two_writes_and_reads_each_key_once_unless_heads_share():
    config = Decode(1, 4, 100, 8, dtype="float32")
    assert [w.operator for w in config.costs()] == [
        "aten::copy_", "aten::copy_", "aten::bmm", "aten::mul", "aten::_softmax", "aten::bmm"
    ]  # fmt: skip
    # a cache of one head is 100·8·4 bytes, and the fused kernel reads two; q and the output are 4·8·4 bytes
    fused = Decode(1, 4, 100, 8, kv_heads=1, dtype="float32", variant="sdpa").costs()[-1]
    assert fused.bytes_moved == 2 * 3200 + 2 * 128
    # by hand the cache is read once and written for all 4 heads, for k and for v
    repeated = Decode(1, 4, 100, 8, kv_heads=1, dtype="float32").costs()[2:4]
    assert [w.bytes_moved for w in repeated] == [5 * 3200] * 2


# ------------------------------------------------------------------------------------------ the math backend


@pytest.fixture
def half_precision_sums():
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    yield torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


def test_the_math_backend_is_twenty_items_and_fifteen_without_the_casts(half_precision_sums):
    half_precision_sums(False)
    cast = attention.math_items(Attention())
    half_precision_sums(True)
    kept = attention.math_items(Attention())
    assert (len(cast), len(kept)) == (20, 15)
    # q, k and v up, weights and output back
    assert cast["operator"].tolist().count("aten::copy_") == 5
    assert kept["operator"].tolist() == [name for name in cast["operator"] if name != "aten::copy_"]
    assert set(cast["dtype"]) == {"float32", "bfloat16", "bool"} and set(kept["dtype"]) == {
        "bfloat16",
        "bool",
    }


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [16, 4])
def test_every_item_of_the_math_backend_has_its_reason(causal, kv_heads):
    for config in (Attention(causal=causal, kv_heads=kv_heads), Decode(kv_heads=kv_heads)):
        reasons = attention.math_items(config)["why"]
        assert all(reasons)
        assert reasons[reasons.str.contains("shares")].size == (0 if kv_heads == 16 else 2)


def test_a_cpu_makes_the_three_numbers_without_an_operator():
    gpu, cpu = (attention.math_items(Attention(), kind) for kind in ("cuda", "cpu"))
    assert (len(gpu), len(cpu)) == (20, 17)
    one_number = (gpu["operator"] == "aten::fill_") & (gpu["shapes"] == "[]")
    assert gpu[~one_number]["operator"].tolist() == cpu["operator"].tolist()


def test_the_math_backend_makes_an_addend_of_a_bool_mask():
    q = torch.empty(2, 4, 16, 8, device="meta")
    mask = torch.empty(16, 16, dtype=torch.bool, device="meta")
    names = [w.operator for w in attention.math_work(q, q, q, mask, kind="cpu")]
    assert names[:3] == ["aten::where", "aten::mul", "aten::mul"]


@pytest.mark.parametrize("overload", [True, False])
def test_the_math_operator_by_its_own_name_adds_its_mask_in_place_too(overload):
    q = torch.empty(2, 4, 16, 8, device="meta")
    found = torch.ops.aten._scaled_dot_product_attention_math
    call = found.default if overload else found
    work = attention.work_beneath(lambda: call(q, q, q, None, 0.0, True), kind="cpu")
    assert work == attention.math_work(q, q, q, causal=True, kind="cpu")


def test_an_addition_elsewhere_stays_out_of_place():
    x = torch.empty(4, 4, device="meta")
    assert [w.operator for w in attention.work_beneath(torch.add, x, x)] == ["aten::add"]
    assert attention.planned_memory(torch.add, x, x) == attention.Memory(64, 64)


def test_an_operator_of_unknown_cost_is_named():
    with pytest.raises(ValueError, match=r"no cost is known for aten::kthvalue on"):
        attention.work_beneath(torch.kthvalue, torch.zeros(4, 4), 2)


# ---------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("variant", BY_HAND)
def test_the_plan_of_a_written_out_variant_is_what_it_allocates(variant):
    config = Attention(**SMALL, variant=variant, dtype="float32")
    with torch.no_grad():
        found = measure.measured_memory(call_of(config))
    planned = config.memory()
    assert found.peak_bytes == planned.peak_bytes
    # mul by a Python number makes two tensors of it, a double and a float32
    numbers = 0 if variant == "additive" else 8 + 4
    assert found.allocated_bytes == planned.allocated_bytes + numbers


def test_in_place_allocates_one_score_matrix_less_and_peaks_as_high():
    naive, in_place = (Attention(variant=v) for v in ("naive", "in_place"))
    saved = naive.memory().allocated_bytes - in_place.memory().allocated_bytes
    assert saved == naive.score_bytes == 268_435_456
    # scores and weights, or scores before and after an operator: two matrices either way, and the output
    output = 8 * 16 * 1024 * 64 * 2
    assert naive.memory().peak_bytes == in_place.memory().peak_bytes == 2 * naive.score_bytes + output


def test_in_place_saves_at_the_peak_when_every_step_keeps_its_name():
    def named(q, k, v, mask, fill):
        scores = torch.matmul(q, k.transpose(-2, -1))
        scaled = scores * q.shape[-1] ** -0.5
        masked = fill(scaled, mask, float("-inf"))
        weights = torch.softmax(masked, dim=-1)
        return torch.matmul(weights, v)

    config = Attention(**SMALL, dtype="float32")
    inputs = config.inputs()
    copied, written = (
        measure.peak_bytes(lambda fill=fill: named(*inputs, fill))
        for fill in (torch.Tensor.masked_fill, torch.Tensor.masked_fill_)
    )
    assert copied - written == config.score_bytes


def test_the_peak_grows_fourfold_by_hand_and_twofold_fused_when_the_sequence_doubles():
    def peak(seq, variant):
        with torch.no_grad():
            return measure.peak_bytes(call_of(Attention(1, 2, seq, 8, variant=variant, dtype="float32")))

    # by hand 2 score matrices of 2·seq²·4 bytes and the output of 2·seq·8·4
    assert [peak(s, "naive") for s in (256, 512)] == [16 * s * s + 64 * s for s in (256, 512)]
    # fused: output and log-sum-exp double, the tiles of one thread stay as they are
    small, large, larger = (peak(s, "sdpa") for s in (1024, 2048, 4096))
    assert larger - large == 2 * (large - small) == 2048 * (2 * 8 * 4 + 2 * 4)


def test_a_fused_kernel_is_to_allocate_its_output_and_flash_a_log_sum_exp_too():
    # [2, 4, 16, 8] in bf16 is 2048 bytes; 2·4·16 queries with 4 bytes each are 512
    plans = {b: Attention(**SMALL, variant="sdpa", backend=b).memory() for b in (None, *attention.BACKENDS)}
    assert plans["flash"] == plans[None] == attention.Memory(2048 + 512, 2048 + 512)
    assert plans["efficient"] == plans["cudnn"] == attention.Memory(2048, 2048)


def test_the_plan_of_the_math_backend_is_what_it_allocates():
    config = Attention(**SMALL, variant="sdpa", backend="math")
    found, planned = measure.measured_memory(call_of(config)), config.memory()
    assert found.peak_bytes == planned.peak_bytes
    assert found.allocated_bytes == planned.allocated_bytes + 2 * (8 + 4)  # two products with a number


def test_a_training_run_keeps_more_than_an_inference_run():
    config = Attention(**SMALL, dtype="float32")
    inputs = config.inputs()
    for tensor in inputs[:3]:
        tensor.requires_grad_()

    def step():
        return torch.autograd.grad(config.build()(*inputs).sum(), inputs[:3])

    with torch.no_grad():
        inference = measure.peak_bytes(call_of(config))
    assert measure.peak_bytes(step) > inference


# ---------------------------------------------------------------------------------- values and gradients
#
# What rounding may do, to first order. u is half the distance from 1 to the next number of the dtype, w the
# same of float32 (or u, if smaller), in which n products are summed up with an error of n·w.
#   score   rounded when it leaves the GEMM and when it (or q) is scaled: (2u + D·w)·A, A = scale·|q||k|ᵀ
#   weight  exp(s - max) / sum has the errors of two scores, and is rounded: r = 2·(2u + D·w)·A + u + 2S·w
#   output  the sum of weights · v, rounded: (r + u + S·w) · p|v|
# Backward, G = |dO||v|ᵀ is above every entry of dp, and H = G + rowsum(p·G) above dp - rowsum(p·dp). Rounded
# are dp, ds, the scaled ds, the result and its sum over heads that share; p counts twice, and so
# κ = 2r + 6u + 2(S + D)·w.
#   dv  κ · pᵀ|dO|    dq  κ · scale·(p·H)|k|    dk  κ · scale·(p·H)ᵀ|q|


def reference(q, k, v, hidden, gradient):
    """Output, gradients of q, k and v, and the bound of each error for unit roundoff u, all in float64."""
    u, w = torch.finfo(q.dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    w = min(u, w)
    groups, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    q, k, v, gradient = (t.detach().double() for t in (q, k, v, gradient))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    wide_k, wide_v = (t.repeat_interleave(groups, 1) for t in leaves[1:])
    scores = leaves[0] @ wide_k.mT * scale
    p = torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -math.inf), -1)
    out = p @ wide_v
    values = [out.detach(), *torch.autograd.grad(out, leaves, gradient)]

    length, width = k.shape[-2], q.shape[-1]
    p, (k, v) = p.detach(), (t.repeat_interleave(groups, 1) for t in (k, v))
    shown = (q.abs() @ k.abs().mT * scale).amax(-1, keepdim=True)
    r = 2 * (2 * u + width * w) * shown + u + 2 * length * w
    kappa = 2 * r + 6 * u + 2 * (length + width) * w
    g = gradient.abs() @ v.abs().mT
    h = kappa * p * (g + (p * g).sum(-1, keepdim=True)) * scale
    shared = [(kappa * p).mT @ gradient.abs(), h.mT @ q.abs()]
    d_v, d_k = (t.unflatten(1, (-1, groups)).sum(2) for t in shared)
    return values, [(r + u + length * w) * (p @ v.abs()), h @ k.abs(), d_k, d_v]


def outputs(config, inputs, gradient):
    leaves = [t.requires_grad_() for t in inputs[:3]]
    out = config.build()(*inputs)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


EVERY = [(v, None) for v in BY_HAND] + [("sdpa", None), ("sdpa", "flash"), ("sdpa", "math")]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("variant", "backend"), EVERY)
def test_values_and_gradients_are_within_rounding_of_float64(variant, backend, dtype, kv_heads):
    torch.manual_seed(0)
    config = Attention(2, 4, 24, 8, kv_heads, dtype=dtype, variant=variant, backend=backend)
    inputs = config.inputs()
    gradient = torch.randn(2, 4, 24, 8).to(inputs[0].dtype)
    want, bounds = reference(*inputs[:3], attention.causal_mask(24), gradient)
    for name, found, value, bound in zip(
        ("output", "dq", "dk", "dv"), outputs(config, inputs, gradient), want, bounds, strict=True
    ):
        assert found.dtype == inputs[0].dtype
        assert ((found.double() - value).abs() <= bound).all(), name


def test_the_bounds_are_narrow_enough_to_notice_a_lost_mask_or_scale():
    torch.manual_seed(0)
    config = Attention(2, 4, 24, 8, dtype="bfloat16")
    q, k, v, mask = config.inputs()
    want, bounds = reference(q, k, v, mask, torch.randn(2, 4, 24, 8).bfloat16())
    for wrong in (attention.naive(q, k, v), attention.naive(q * 8**0.5, k, v, mask)):
        assert ((wrong.double() - want[0]).abs() > bounds[0]).any()


@pytest.mark.parametrize("variant", ["naive", "sdpa"])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_a_decode_step_is_the_last_row_of_causal_attention(variant, kv_heads):
    torch.manual_seed(0)
    q, k, v = Attention(2, 4, 12, 8, kv_heads, dtype="float64", variant="sdpa").inputs()
    whole = attention.sdpa(q, k, v, causal=True)
    step = Decode(2, 4, 12, 8, kv_heads, dtype="float64", variant=variant).build()
    caches = k.clone(), v.clone()
    for cache in caches:
        cache[:, :, -1] = math.nan  # what the step is to write
    found = step(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], *caches)
    torch.testing.assert_close(found, whole[:, :, -1:])
    assert torch.equal(caches[0], k) and torch.equal(caches[1], v)


def test_is_causal_with_one_query_sees_key_zero_alone():
    torch.manual_seed(0)
    q, _, _, k, v = Decode(2, 4, 12, 8, dtype="float64").inputs()
    for backend in ("flash", "math"):
        found = attention.sdpa(q, k, v, causal=True, backend=backend)
        torch.testing.assert_close(found, v[:, :, :1])
    right = causal_lower_right(1, 12)
    torch.testing.assert_close(
        F.scaled_dot_product_attention(q, k, v, attn_mask=right), attention.naive(q, k, v)
    )


def test_a_row_that_sees_nothing_is_nan_by_hand_and_zero_in_sdpa():
    torch.manual_seed(0)
    q, k, v, hidden = Attention(1, 2, 6, 8, dtype="float32").inputs()
    hidden[2] = True
    leaves = [t.requires_grad_() for t in (q, v)]
    for variant in (attention.naive, attention.in_place, attention.scaled_query):
        out = variant(q, k, v, hidden)
        assert out[:, :, 2].isnan().all() and not out[:, :, [0, 1, 3, 4, 5]].isnan().any()
        # A loss on another row: the way back through masked_fill puts 0 on the scores, but weights · dO is
        # NaN · 0 for every key.
        d_q, d_v = torch.autograd.grad(out[:, :, 3].sum(), leaves)
        assert d_q.isfinite().all() and d_v.isnan().all()
    bias = torch.zeros(6, 6).masked_fill(hidden, -math.inf)
    assert attention.additive(q, k, v, bias)[:, :, 2].isnan().all()
    for backend in ("flash", "math"):
        out = attention.sdpa(q, k, v, ~hidden, backend=backend)
        assert (out[:, :, 2] == 0).all()
        d_q, d_v = torch.autograd.grad(out.sum(), leaves)
        assert d_q.isfinite().all() and d_v.isfinite().all() and (d_q[:, :, 2] == 0).all()


def test_is_causal_hides_no_row_whole_even_with_more_queries_than_keys():
    q, kv = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 4, 8)
    assert (attention.sdpa(q, kv, kv, causal=True, backend="math") != 0).all()


def test_masked_fill_in_place_gives_the_same_gradients_and_a_harmful_one_raises():
    torch.manual_seed(0)
    inputs = Attention(**SMALL, dtype="float32").inputs()
    leaves = [t.requires_grad_() for t in inputs[:3]]
    copied, written = (
        torch.autograd.grad(variant(*inputs).sum(), leaves)
        for variant in (attention.naive, attention.in_place)
    )
    assert all(torch.equal(a, b) for a, b in zip(copied, written, strict=True))
    weights = torch.softmax(leaves[0] @ leaves[1].mT, -1)
    out = weights.masked_fill_(inputs[3], 0.0) @ leaves[2]  # softmax needs its result for the way back
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"heads": 0}, r"Attention\.heads must be a positive integer, got 0"),
        ({"kv_heads": 5}, r"Attention\.kv_heads must divide heads = 16, got 5"),
        ({"kv_heads": 2.0}, r"Attention\.kv_heads must be a positive integer"),
        ({"dtype": "int8"}, r"Attention\.dtype must be a floating-point dtype"),
        ({"variant": "flash"}, r"Attention\.variant must be one of naive, in_place, .* got 'flash'"),
        ({"backend": "flash"}, r'Attention\.backend .* with variant "sdpa"; got \'flash\''),
        ({"backend": "best", "variant": "sdpa"}, r"Attention\.backend is one of math, flash"),
        ({"causal": False, "variant": "additive"}, r'"additive" needs causal=True'),
    ],
)
def test_a_config_names_what_is_wrong_with_it(bad, said):
    with pytest.raises(ValueError, match=said):
        Attention(**bad)


def test_a_config_with_other_heads_shares_no_more_than_it_said():
    assert replace(Attention(heads=4), heads=8).costs() == Attention(heads=8).costs()
    with pytest.raises(ValueError, match="kv_heads must divide heads = 9"):
        replace(Attention(heads=8, kv_heads=2), heads=9)


def test_decode_has_two_variants_and_a_cpu_two_backends():
    with pytest.raises(ValueError, match=r'Decode\.variant must be "naive" or "sdpa", got \'in_place\''):
        Decode(variant="in_place")
    with pytest.raises(ValueError, match='"efficient" has no CPU kernel'):
        Attention(variant="sdpa", backend="efficient").costs("cpu")
    with pytest.raises(ValueError, match='kind is "cuda" or "cpu"'):
        Attention().costs("tpu")


def test_a_pinned_backend_is_the_only_one_allowed_and_no_longer_than_the_call():
    before = torch.backends.cuda.flash_sdp_enabled()
    q, k, v = Attention(**SMALL, dtype="float32", variant="sdpa").inputs()
    with pytest.raises(RuntimeError, match="No available kernel|No viable backend"):
        attention.sdpa(q, k, v, backend="efficient")  # a CPU has none
    assert torch.backends.cuda.flash_sdp_enabled() is before is True
    with sdpa_kernel(SDPBackend.MATH):  # pinned around it, and not inside
        torch.testing.assert_close(attention.sdpa(q, k, v), attention.sdpa(q, k, v, backend="math"))
