"""SDPA's choice: torch's own answer on this CPU, and the rules for a named GPU, case by case."""

import contextlib
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from tutorial_lib import cost, hardware, offline_gpu, sdpa
from tutorial_lib.sdpa import sdpa_choice

T4, A100, H100, B200, RTX_4090 = map(hardware.find, ("T4", "A100", "H100", "B200", "RTX 4090"))
CARDS = {"T4": T4, "A100": A100, "H100": H100, "B200": B200, "RTX 4090": RTX_4090}


@pytest.fixture(autouse=True)
def torch_2_13(monkeypatch):
    """The rules of one release, whichever is installed."""
    monkeypatch.setattr(sdpa, "_release", lambda: (2, 13))


def meta(*shape, dtype="float16", grad=False):
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta", requires_grad=grad)


def qkv(batch=8, heads=16, seq=1024, head_dim=64, *, kv_heads=None, kv_len=None, dtype="float16", grad=False):
    kv = (batch, kv_heads or heads, kv_len or seq, head_dim)
    return [meta(*shape, dtype=dtype, grad=grad) for shape in ((batch, heads, seq, head_dim), kv, kv)]


def on_cpu(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def dispatched(call) -> list[str]:
    """The operators that reach the dispatcher."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    with Watch():
        call()
    return seen


# ---------------------------------------------------------------------------------- the choice on named cards


@pytest.mark.parametrize(
    ("on", "dtype", "takes"),
    [
        ("T4", "float16", "efficient"),
        ("T4", "bfloat16", "math"),
        ("T4", "float32", "efficient"),
        ("A100", "bfloat16", "flash"),
        ("A100", "float32", "efficient"),
        ("A100", "float64", "math"),
        ("RTX 4090", "bfloat16", "flash"),
        ("H100", "bfloat16", "cudnn"),
        ("H100", "float32", "efficient"),
        ("B200", "bfloat16", "cudnn"),
    ],
)
def test_the_card_and_the_dtype_decide(on, dtype, takes):
    assert sdpa_choice(*qkv(dtype=dtype), is_causal=True, on=CARDS[on]).taken == takes


def test_the_order_is_a_list_and_cudnn_stands_behind_math_on_an_a100():
    assert sdpa_choice(*qkv(), on=A100).order == ("flash", "efficient", "math", "cudnn")
    assert sdpa_choice(*qkv(), on=H100).order == ("cudnn", "flash", "efficient", "math")


def test_a_mask_rules_flash_out():
    choice = sdpa_choice(*qkv(), attn_mask=meta(1024, 1024, dtype="bool"), on=A100)
    assert choice.taken == "efficient"
    assert "takes no attn_mask" in choice.why_not("flash")
    assert any("boolean mask" in note for note in choice.notes)


def test_cudnn_takes_a_mask_but_none_that_wants_gradients():
    assert sdpa_choice(*qkv(), attn_mask=meta(1024, 1024), on=H100).taken == "cudnn"
    choice = sdpa_choice(*qkv(), attn_mask=meta(1024, 1024, grad=True), on=H100)
    assert (choice.taken, "gradient" in choice.why_not("cudnn")) == ("efficient", True)


def test_shared_keys_are_for_flash_and_cudnn_and_for_efficient_only_from_2_14_on(monkeypatch):
    q, k, v = qkv(kv_heads=4)
    assert sdpa_choice(q, k, v, enable_gqa=True, on=A100).taken == "flash"
    assert sdpa_choice(q, k, v, enable_gqa=True, on=H100).taken == "cudnn"
    assert sdpa_choice(q, k, v, enable_gqa=True, on=T4).taken == "math"
    monkeypatch.setattr(sdpa, "_release", lambda: (2, 14))
    assert sdpa_choice(q, k, v, enable_gqa=True, on=T4).taken == "efficient"


def test_one_key_head_without_enable_gqa_falls_to_math_before_2_14(monkeypatch):
    q, k, v = qkv(kv_heads=1)
    choice = sdpa_choice(q, k, v, on=A100)
    assert (choice.taken, choice.why_not("flash")) == (
        "math",
        "q has 16 heads, k and v have 1 and 1, and enable_gqa is not set",
    )
    monkeypatch.setattr(sdpa, "_release", lambda: (2, 14))
    assert sdpa_choice(q, k, v, on=A100).taken == "flash"


def test_causal_attention_to_a_longer_past_leaves_flash():
    choice = sdpa_choice(*qkv(seq=128, kv_len=1024), is_causal=True, on=A100)
    assert (choice.taken, "128 and 1024" in choice.why_not("flash")) == ("efficient", True)


@pytest.mark.parametrize(
    ("head_dim", "on", "takes"),
    [
        (256, "A100", "flash"),  # flash: up to 256
        (264, "A100", "efficient"),
        (20, "A100", "flash"),  # padded to 24
        (260, "A100", "math"),  # over 256, and efficient wants multiples of 8 in 16 bits
        (20, "T4", "math"),
        (136, "H100", "flash"),  # cuDNN 9.20: up to 128
        (100, "H100", "flash"),  # and only multiples of 8
    ],
)
def test_head_dims_have_limits(head_dim, on, takes):
    assert sdpa_choice(*qkv(head_dim=head_dim), on=CARDS[on]).taken == takes


def test_a_padded_head_dim_is_told():
    assert sdpa_choice(*qkv(head_dim=20), on=A100).notes == (
        "q, k and v are first padded from head dim 20 to 24",
    )


def test_a_wide_head_trains_on_an_a100_and_not_with_flash_on_a_4090():
    wide = qkv(head_dim=224, grad=True)
    assert sdpa_choice(*wide, on=A100).taken == "flash"
    assert sdpa_choice(*wide, on=RTX_4090).taken == "efficient"
    with torch.no_grad():
        assert sdpa_choice(*wide, on=RTX_4090).taken == "flash"


def test_float32_needs_multiples_of_4_on_an_a100_and_none_on_a_t4():
    assert sdpa_choice(*qkv(head_dim=18, dtype="float32"), on=A100).taken == "math"
    assert sdpa_choice(*qkv(head_dim=18, dtype="float32"), on=T4).taken == "efficient"


def test_deepseeks_head_dims_are_cudnns_on_a_hopper():
    q, k, v = meta(1, 8, 64, 192), meta(1, 8, 64, 192), meta(1, 8, 64, 128)
    assert sdpa_choice(q, k, v, on=H100).taken == "cudnn"
    assert sdpa_choice(q, k, v, on=A100).taken == "efficient"


def test_head_dim_256_is_cudnns_from_2_14_on(monkeypatch):
    assert sdpa_choice(*qkv(head_dim=256), on=H100).taken == "flash"
    monkeypatch.setattr(sdpa, "_release", lambda: (2, 14))
    assert sdpa_choice(*qkv(head_dim=256), on=H100).taken == "cudnn"
    assert sdpa_choice(*qkv(head_dim=200, grad=True), on=H100).taken == "flash"  # no backward pass at 200


def test_a_single_key_is_not_for_cudnn():
    assert sdpa_choice(*qkv(seq=1), on=H100).taken == "flash"


def test_cudnns_dropout_comes_in_steps_of_a_sixteenth():
    assert sdpa_choice(*qkv(), dropout_p=0.25, on=H100).taken == "cudnn"
    assert sdpa_choice(*qkv(), dropout_p=0.1, on=H100).taken == "flash"


def test_deterministic_algorithms_rule_cudnn_out():
    torch.use_deterministic_algorithms(True)
    try:
        assert sdpa_choice(*qkv(), on=H100).taken == "flash"
    finally:
        torch.use_deterministic_algorithms(False)


def test_strides_decide():
    q, k, v = (t.transpose(-2, -1).contiguous().transpose(-2, -1) for t in qkv())
    choice = sdpa_choice(q, k, v, on=A100)
    assert (choice.taken, "stride 1" in choice.why_not("flash")) == ("math", True)


def test_an_operand_that_starts_at_an_odd_place_is_not_for_efficient():
    def shifted():
        return torch.empty(2 * 4 * 8 * 16 + 1, dtype=torch.float32, device="meta")[1:].view(2, 4, 8, 16)

    choice = sdpa_choice(shifted(), shifted(), shifted(), on=A100)
    assert (choice.taken, "multiples of 16 bytes" in choice.why_not("efficient")) == ("math", True)


def test_without_a_batch_dimension_only_math_is_left_before_2_14(monkeypatch):
    q = meta(16, 1024, 64)
    assert sdpa_choice(q, q, q, on=A100).taken == "math"
    monkeypatch.setattr(sdpa, "_release", lambda: (2, 14))
    assert sdpa_choice(q, q, q, on=A100).taken == "flash"


def test_an_empty_sequence_is_for_math():
    q, k, v = meta(1, 2, 4, 64), meta(1, 2, 0, 64), meta(1, 2, 0, 64)
    assert sdpa_choice(q, k, v, on=A100).taken == "math"


# ------------------------------------------------------------------------ what is allowed, and in which order


def test_a_pinned_backend_is_taken_or_nothing_is():
    with sdpa.pinned("efficient"):
        choice = sdpa_choice(*qkv(), on=A100)
    assert (choice.taken, choice.why_not("flash")) == ("efficient", "switched off; it could run")
    with sdpa.pinned("flash"):
        choice = sdpa_choice(*qkv(), on=T4)
    assert (choice.taken, choice.error) == (None, "No available kernel. Aborting execution.")


def test_an_order_of_ones_own_is_obeyed():
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        choice = sdpa_choice(*qkv(), on=A100)
    assert (choice.taken, choice.order[:2]) == ("cudnn", ("cudnn", "flash"))


def test_the_variable_of_the_environment_puts_cudnn_last_again(monkeypatch):
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert sdpa_choice(*qkv(), on=H100).taken == "flash"


def test_a_mask_and_is_causal_run_on_efficient_and_are_an_error_of_math():
    mask = meta(1024, 1024)
    assert sdpa_choice(*qkv(), attn_mask=mask, is_causal=True, on=A100).taken == "efficient"
    choice = sdpa_choice(*qkv(dtype="bfloat16"), attn_mask=mask.bfloat16(), is_causal=True, on=T4)
    assert (choice.taken, "should not be set" in choice.error) == (None, True)


@pytest.mark.parametrize("on, dtype", [("A100", "bfloat16"), ("T4", "float16"), ("RTX 4090", "float16")])
def test_a_float32_mask_beside_16_bits_is_an_error_of_efficient_that_comes_when_it_runs(on, dtype):
    mask = meta(1024, 1024, dtype="float32")
    choice = sdpa_choice(*qkv(dtype=dtype), attn_mask=mask, on=CARDS[on])
    assert (choice.taken, choice.error) == (None, "invalid dtype for bias - should match query's dtype")
    efficient = choice.candidates[1]
    assert (efficient.outcome, efficient.could_run) == ("refused", False)
    assert efficient.source == "cuda/attention.cu: _efficient_attention_forward"
    with pytest.raises(ValueError, match=f"cannot run on {on}.*; torch raises: invalid dtype for bias"):
        sdpa.work(*qkv(dtype=dtype), attn_mask=mask, on=CARDS[on])
    # q's own dtype, and float32 beside float32, are taken
    for dtypes in ((dtype, dtype), ("float32", "float32")):
        same = {"attn_mask": meta(1024, 1024, dtype=dtypes[1]), "on": CARDS[on]}
        assert sdpa_choice(*qkv(dtype=dtypes[0]), **same).taken == "efficient"


def test_a_float32_mask_beside_16_bits_is_misread_by_cudnn_before_2_14(monkeypatch):
    given = {"attn_mask": meta(1024, 1024, dtype="float32"), "on": H100}
    choice = sdpa_choice(*qkv(), **given)
    assert (choice.taken, choice.candidates[2].could_run) == ("cudnn", False)
    assert "uncertain: torch before 2.14 lets cuDNN read the float32 mask as float16" in choice.notes[-1]
    monkeypatch.setattr(sdpa, "_release", lambda: (2, 14))
    choice = sdpa_choice(*qkv(), **given)
    assert choice.taken == "cudnn" and not any("mask" in note for note in choice.notes)


def test_math_takes_a_float32_mask_beside_16_bits():
    # a T4 has no bfloat16 in its fused kernels
    mask = meta(1024, 1024, dtype="float32")
    assert sdpa_choice(*qkv(dtype="bfloat16"), attn_mask=mask, on=T4).taken == "math"


# --------------------------------------------------------------------------------------------------- this CPU


CPU_CALLS = {
    "plain": ({}, "flash"),
    "causal": ({"is_causal": True}, "flash"),
    "mask": ({"attn_mask": torch.ones(8, 8, dtype=torch.bool)}, "flash"),
    "float32 mask, 16 bits": ({"attn_mask": torch.zeros(8, 8)}, "flash"),
    "dropout": ({"dropout_p": 0.5}, "math"),
}


@pytest.mark.parametrize("name", CPU_CALLS)
def test_a_cpu_runs_the_operator_of_the_backend_that_torch_names(name):
    options, takes = CPU_CALLS[name]
    q = on_cpu(1, 2, 8, 16).to(torch.bfloat16 if "16 bits" in name else torch.float32)
    operator = {"flash": "_scaled_dot_product_flash_attention_for_cpu", "math": "_safe_softmax"}
    choice = sdpa_choice(q, q, q, **options)
    assert (choice.taken, choice.asked, choice.device) == (takes, True, "this CPU")
    seen = dispatched(lambda: F.scaled_dot_product_attention(q, q, q, **options))
    assert {b for b, name in operator.items() if f"aten::{name}" in seen} == {takes}


def test_a_cpu_says_why_flash_is_refused_and_where_that_is_written():
    q, k = on_cpu(1, 2, 8, 16), on_cpu(1, 2, 8, 16).transpose(-2, -1).contiguous().transpose(-2, -1)
    choice = sdpa_choice(q, k, k)
    refused = choice.candidates[0]
    assert (choice.taken, refused.backend, refused.outcome) == ("math", "flash", "refused")
    assert "stride 1" in refused.reason
    assert re.fullmatch(r"sdp_utils_cpp\.h:\d+", refused.source)


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_cpu_has_no_such_kernel_and_torch_raises_what_the_choice_says(backend):
    q = on_cpu(1, 2, 8, 16)
    with sdpa.pinned(backend):
        choice = sdpa_choice(q, q, q)
        with pytest.raises(RuntimeError, match=re.escape(choice.error[:60])):
            F.scaled_dot_product_attention(q, q, q)
    assert choice.taken is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_flash_pinned_where_it_cannot_run_raises():
    q = on_cpu(1, 2, 8, 16)
    with sdpa.pinned("flash"):
        choice = sdpa_choice(q, q, q, dropout_p=0.5)
        with pytest.raises(RuntimeError, match=r"No available kernel\.\s+Aborting execution"):
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert (choice.taken, choice.error) == (None, "No available kernel. Aborting execution.")


def test_asking_leaves_what_is_allowed_as_it_was():
    q = on_cpu(1, 2, 8, 16)
    with sdpa.pinned("math"):
        before = sdpa._allowed()
        sdpa_choice(q, q, q), sdpa_choice(*qkv(), on=H100)
        assert sdpa._allowed() == before


def test_a_calibrated_cpu_answers_for_meta_tensors_as_for_real_ones():
    cpu = hardware.Hardware("mine", "cpu", {"float32": 1e12}, 1e10, 1.0, None, None, None, "test")
    assert sdpa_choice(*qkv(batch=1, seq=64, dtype="float32"), on=cpu).taken == "flash"


# ---------------------------------------------------------------------- the compiled program for a GPU agrees


@pytest.mark.parametrize(
    ("on", "dtype", "options"),
    [
        ("T4", "float16", {"is_causal": True}),
        ("A100", "bfloat16", {"is_causal": True}),
        ("H100", "bfloat16", {"is_causal": True}),
        ("A100", "float32", {}),
    ],
)
def test_the_program_compiled_for_a_card_calls_what_the_choice_names(on, dtype, options):
    """offline_gpu retells the same rules for itself: two readings of one source agree, no GPU has spoken."""
    pytest.importorskip("triton")
    inputs = [torch.empty(8, 16, 1024, 64, dtype=getattr(torch, dtype), device="meta") for _ in range(3)]

    def call(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options)

    program = offline_gpu.program(call, *inputs, on=on)
    choice = sdpa_choice(*inputs, **options, on=CARDS[on])
    assert [i.name for i in program.items] == [f"aten::_scaled_dot_product_{choice.taken}_attention"]


# ------------------------------------------------------------------------------------------ and what it costs


def test_a_fused_backend_is_one_work_item_with_the_cost_of_attention():
    (found,) = sdpa.work(*qkv(), is_causal=True, on=A100)
    assert found.operator == "aten::_scaled_dot_product_flash_attention"
    assert found.cost == cost.attention(8, 16, 1024, 1024, 64, "float16", causal=True).cost


def test_what_a_mask_or_an_odd_head_dim_needs_comes_before_the_kernel():
    masked = sdpa.work(*qkv(), attn_mask=meta(1024, 1024, dtype="bool"), on=A100)
    assert [w.operator for w in masked[:-1]] == ["aten::fill_", "aten::fill_", "aten::where"]
    padded = sdpa.work(*qkv(head_dim=20), on=A100)
    assert [w.operator for w in padded[:-1]] == ["aten::fill_", "aten::copy_"] * 3
    assert padded[-1].shapes[0] == (8, 16, 1024, 24)


def test_math_is_the_twenty_operators_that_it_calls():
    assert len(sdpa.work(*qkv(dtype="bfloat16"), is_causal=True, on=T4)) == 20


def test_the_layout_of_the_result_is_that_of_the_kernel():
    # efficient returns [batch, length, heads, head dim] seen as [batch, heads, length, head dim]
    assert sdpa.result(*qkv(), on=T4).stride() == (16 * 1024 * 64, 64, 16 * 64, 1)
    assert sdpa.result(*qkv(), on=A100).stride() == qkv()[0].stride()


def test_a_call_without_a_batch_is_one_item_from_2_14_on(monkeypatch):
    monkeypatch.setattr(sdpa, "_release", lambda: (2, 14))
    q = meta(16, 128, 64)
    (found,) = sdpa.work(q, q, q, on=A100)
    assert found.cost == cost.attention(1, 16, 128, 128, 64, "float16").cost
    assert sdpa.result(q, q, q, on=A100).shape == q.shape


def test_a_call_that_cannot_run_has_no_work():
    with (
        sdpa.pinned("flash"),
        pytest.raises(ValueError, match="cannot run on T4; torch raises: No available"),
    ):
        sdpa.work(*qkv(), on=T4)


# ----------------------------------------------------------------------------------------- what it looks like


def test_the_table_has_a_row_a_backend_with_its_source():
    table = sdpa_choice(*qkv(), on=T4).table()
    assert table.backend.tolist() == ["flash", "efficient", "math", "cudnn"]
    assert table.outcome.tolist() == ["refused", "taken", "outranked", "refused"]
    assert table.source[0] == "cuda/sdp_utils.cpp: check_flash_attention_hardware_support"


def test_it_reads_as_text_and_as_html():
    choice = sdpa_choice(*qkv(), is_causal=True, on=T4)
    assert str(choice).splitlines()[:2] == [
        "SDPA takes efficient on T4: q, k, v [8, 16, 1024, 64], float16, causal",
        "  1. flash      refused    it needs compute capability 8.0 to 12.1, this card has 7.5",
    ]
    assert "<caption>SDPA takes efficient on T4" in choice._repr_html_()


def test_markup_in_a_cards_name_is_escaped():
    named = hardware.Hardware("<b>x</b>", "cuda", {"float16": 1e12}, 1e10, 1.0, None, 1, (8, 0), "test")
    html = sdpa_choice(*qkv(), on=named)._repr_html_()
    assert "&lt;b&gt;x" in html and "<b>" not in html


# --------------------------------------------------------------------------------------------------- refusals


def test_meta_tensors_need_a_card():
    with pytest.raises(ValueError, match=r'on=hardware.find\("A100"\)'):
        sdpa_choice(*qkv())


def test_shapes_that_no_backend_takes_are_refused_in_torchs_words():
    with pytest.raises(ValueError, match="no SDPA backend takes this call; torch says: "):
        sdpa_choice(*qkv(), attn_mask=meta(3, 1024), on=A100)


def test_a_name_that_is_no_backend_is_refused():
    with (
        pytest.raises(ValueError, match="one of math, flash, efficient, cudnn, got 'fast'"),
        sdpa.pinned("fast"),
    ):
        pass
    with pytest.raises(ValueError, match="'cudnn' is no backend of this CPU; its list is flash, math"):
        sdpa_choice(*[on_cpu(1, 2, 8, 16)] * 3).why_not("cudnn")


def test_on_a_gpu_torchs_warnings_become_the_reasons(monkeypatch):
    """No GPU: torch's functions are stood in for, and what is made of their answers is looked at."""

    def refuses(params, debug):
        warnings.warn(
            "Flash attention was not up to it. (Triggered internally at /w/aten/src/ATen/native/transformers/"
            "cuda/sdp_utils.cpp:7.)",
            stacklevel=1,
        )
        return False

    cuda = "torch.backends.cuda.can_use_{}_attention"
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA T4")
    monkeypatch.setattr("torch.cuda.device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr("torch._fused_sdp_choice", lambda *_, **__: 2)  # efficient
    monkeypatch.setattr(cuda.format("flash"), refuses)
    monkeypatch.setattr(cuda.format("efficient"), lambda params, debug: True)
    monkeypatch.setattr(cuda.format("cudnn"), lambda params, debug: False)
    q = on_cpu(1, 2, 8, 16)
    call = SimpleNamespace(q=q, k=q, v=q, mask=None, dropout=0.0, causal=False, scale=None, gqa=False)
    choice = sdpa._on_this_gpu(call)
    assert (choice.taken, choice.device, choice.asked, choice.notes) == ("efficient", "NVIDIA T4", True, ())
    flash, _, _, cudnn = choice.candidates
    assert (flash.reason, flash.source) == ("Flash attention was not up to it.", "cuda/sdp_utils.cpp:7")
    assert "does not say why" in cudnn.reason


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_on_a_gpu_the_operator_that_runs_is_the_one_that_was_chosen(dtype):
    q = torch.randn(2, 4, 256, 64, device="cuda", dtype=dtype)
    choice = sdpa_choice(q, q, q, is_causal=True)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        F.scaled_dot_product_attention(q, q, q, is_causal=True)
    names = {event.key for event in recorded.key_averages()}
    assert f"aten::_scaled_dot_product_{choice.taken}_attention" in names
