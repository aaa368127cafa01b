"""Operators found without running: against the real device, torch's counter, and the copies a trace shows."""

import re
import threading
from collections import Counter
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import dispatch, hardware, measure, models, sdpa, timeline
from tutorial_lib.cost import total
from tutorial_lib.hardware import Hardware, find

A100 = find("A100")
CPU = Hardware(
    "a CPU", "cpu", {"float32": 1e11, "bfloat16": 1e11}, 3e10, 1.0, None, None, None, "a test", measured=True
)


def linear(**options):
    return torch.nn.Linear(32, 64, **options)


def not_contiguous():
    return torch.randn(4, 8, 32).transpose(0, 1)


CALLS = {
    "linear": (linear(), torch.randn(16, 32)),
    "linear, bfloat16": (linear(dtype=torch.bfloat16), torch.randn(16, 32, dtype=torch.bfloat16)),
    "linear, batch 1": (linear(), torch.randn(1, 32)),
    "linear, 3-D": (linear(), torch.randn(4, 8, 32)),
    "linear, 3-D not contiguous": (linear(), not_contiguous()),
    "linear, 3-D not contiguous, frozen": (linear().requires_grad_(False), not_contiguous()),
    "linear, columns apart": (linear(), torch.randn(16, 64)[:, ::2]),
    "linear without bias": (linear(bias=False), torch.randn(16, 32)),
    "matmul and add": (models.matmul_add, *models.MatmulAdd(16).inputs()),
    "batched matmul": (torch.matmul, torch.randn(4, 8, 16), torch.randn(4, 16, 8)),
    "mlp": (torch.nn.Sequential(linear(), torch.nn.GELU(), torch.nn.Linear(64, 32)), torch.randn(16, 32)),
    "softmax": (lambda x: x.softmax(-1), torch.randn(16, 32)),
    "layer norm": (torch.nn.LayerNorm(32), torch.randn(16, 32)),
    "masked fill": (
        lambda x, m: x.masked_fill(m, 0.0),
        torch.randn(16, 32),
        torch.ones(16, 32, dtype=torch.bool),
    ),
    "rearranged": (lambda x: x.t().contiguous(), torch.randn(16, 32)),
    "cast": (lambda x: x.to(torch.float64), torch.randn(16, 32)),
    "stacked": (lambda x: torch.stack([x, x]), torch.randn(16, 32)),
    "mean": (lambda x: x.mean(-1), torch.randn(16, 32)),
    "whole mean": (torch.mean, torch.randn(16, 32)),
    "sum": (torch.sum, torch.randn(16, 32)),
    "embedding": (torch.nn.Embedding(16, 32), torch.tensor([1, 2, 3])),
    "relu": (torch.relu, torch.randn(16, 32)),
    "addend of a batched product": (
        torch.baddbmm,
        torch.randn(4, 8, 8),
        torch.randn(4, 8, 16),
        torch.randn(4, 16, 8),
    ),
    "batch norm": (torch.nn.BatchNorm2d(4, track_running_stats=False), torch.randn(2, 4, 8, 8)),
    "batch norm in inference": (torch.nn.BatchNorm2d(4).eval(), torch.randn(2, 4, 8, 8)),
    "group norm": (torch.nn.GroupNorm(2, 4), torch.randn(2, 4, 8, 8)),
    "largest of windows": (torch.nn.MaxPool2d(3, 2, 1), torch.randn(2, 4, 8, 8)),
    "mean of windows": (torch.nn.AvgPool2d(2), torch.randn(2, 4, 8, 8)),
    "windows that fit": (torch.nn.AdaptiveAvgPool2d(3), torch.randn(2, 4, 8, 8)),
    "relu in place": (torch.nn.ReLU(inplace=True), torch.randn(16, 32)),
    "cross entropy": (F.cross_entropy, torch.randn(16, 32), torch.arange(16)),
    "chosen rows": (lambda x, i: x[i], torch.randn(16, 32), torch.tensor([1, 2, 3])),
    "largest": (lambda x: x.topk(3), torch.randn(16, 32)),
    "scattered": (
        lambda x, i: x.scatter_add(1, i, x),
        torch.randn(16, 32),
        torch.zeros(16, 32, dtype=torch.int64),
    ),
    "new memory": (
        lambda x: torch.zeros(16, 32) + torch.ones_like(x) + torch.rand(16, 32),
        torch.randn(16, 32),
    ),
}


def seen_on_the_cpu(fn, *inputs):
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    names = []
    with Seen():
        fn(*inputs)
    return names


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_meta_tensors_show_the_operators_that_cpu_tensors_show(call):
    found = dispatch.operators(*call)["operator"].tolist()
    # under a dispatch mode, which this test needs too, nn.Linear writes add for the add_ of an unwatched run
    assert [name.replace("add_", "add") for name in found] == seen_on_the_cpu(*call)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("on", [A100, CPU], ids=["cuda", "cpu"])
def test_flops_equal_torchs_counter(call, on):
    with FlopCounterMode(display=False) as counter:
        call[0](*call[1:])
    assert total(dispatch.work(*call, on=on)).flops == counter.get_total_flops()


@pytest.mark.parametrize(
    "config", [models.MatmulAdd(64), models.Linear(16, 32, 64), models.Linear(1, 32, 64)]
)
@pytest.mark.parametrize("on", [A100, CPU], ids=["cuda", "cpu"])
def test_what_is_found_equals_what_a_workload_counts_by_hand(config, on):
    found = dispatch.work(config.build(), *config.inputs("meta"), on=on)
    assert [(w.operator, w.cost) for w in found] == [(w.operator, w.cost) for w in config.costs(on.kind)]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_work_items_found_are_those_of_a_cpu_trace(call, tmp_path):
    trace = measure.record(lambda: call[0](*call[1:]), tmp_path / "a.json", steps=1, device="cpu")
    found = [w.operator for w in dispatch.work(*call, on=CPU)]
    assert found == timeline.work_items(trace)["operator"].tolist()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_operators_predicted_come_in_this_order_in_a_cpu_trace(call, tmp_path):
    trace = measure.record(lambda: call[0](*call[1:]), tmp_path / "a.json", steps=1, device="cpu")
    recorded = iter(timeline.operators(trace)["name"])
    assert all(name in recorded for name in dispatch.predict_call(*call, on=CPU).operators)


def test_the_transpose_of_a_linear_is_a_view_and_no_work():
    found = dispatch.operators(*CALLS["linear"])
    assert found["operator"].tolist() == ["aten::t", "aten::addmm"]
    assert found["view"].tolist() == [True, False] and found["works"].tolist() == [False, True]
    # weight [64, 32] seen as [32, 64]: the strides of the second factor say so
    assert found["strides"][1][2] == (1, 32)


def test_an_allocation_is_neither_a_view_nor_work():
    found = dispatch.operators(torch.empty_like, torch.randn(4))
    assert not found["view"].item() and not found["works"].item()


def test_an_operator_on_no_elements_is_no_work():
    assert not dispatch.operators(torch.neg, torch.randn(0, 4))["works"].item()


def test_a_frozen_weight_turns_the_copy_of_a_linear_into_a_batched_product():
    names = [w.operator for w in dispatch.work(*CALLS["linear, 3-D not contiguous"], on=A100)]
    frozen = [w.operator for w in dispatch.work(*CALLS["linear, 3-D not contiguous, frozen"], on=A100)]
    assert names == ["aten::copy_", "aten::mm", "aten::add_"] and frozen == ["aten::bmm", "aten::add_"]


def test_a_matrix_that_blas_cannot_read_is_copied_first():
    copied, product = dispatch.work(*CALLS["linear, columns apart"], on=A100)
    # [16, 32] float32 read and written: 2·16·32·4 = 4096 bytes
    assert (copied.kind, copied.bytes_moved, product.operator) == ("copy", 4096, "aten::addmm")


def test_rows_apart_are_read_in_place():
    x = torch.randn(16, 64)[:, :32]  # strides (64, 1)
    assert len(dispatch.work(linear(), x, on=A100)) == 1


def test_a_backward_pass_is_watched_too():
    layer = linear()
    names = dispatch.operators(lambda m, x: m(x).sum().backward(), layer, torch.randn(16, 32))[
        "operator"
    ].tolist()
    assert names.count("aten::mm") == 1 and layer.weight.grad is None


def test_the_callers_module_is_left_as_it_was():
    layer = torch.nn.BatchNorm1d(4)
    names = dispatch.operators(layer, torch.randn(8, 4))["operator"].tolist()
    assert "aten::native_batch_norm" in names
    assert layer.num_batches_tracked == 0 and layer.running_mean.device.type == "cpu"


@pytest.mark.parametrize(
    ("loss", "zeroed"),
    [
        (lambda x: F.cross_entropy(x, torch.arange(4)), ["aten::zero_", "aten::nll_loss_backward"]),
        (
            lambda x: F.max_pool2d(x[None, None], 2).exp().sum(),
            ["aten::zero_", "aten::max_pool2d_with_indices_backward"],
        ),
    ],
)
def test_a_gradient_that_is_added_to_is_zeroed_first(loss, zeroed, tmp_path):
    def step(x):
        x.grad = None
        loss(x).backward()

    x = torch.randn(4, 8, requires_grad=True)
    trace = measure.record(lambda: step(x), tmp_path / "a.json", steps=1, device="cpu")
    recorded = timeline.work_items(trace)["operator"].tolist()
    for found in ([w.operator for w in dispatch.work(step, x, on=CPU)], recorded):
        at = found.index(zeroed[1])
        assert found[at - 1 : at + 1] == zeroed


def test_a_loss_of_each_element_is_followed_by_its_mean():
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    names = [w.operator for w in dispatch.work(F.mse_loss, x, y, on=A100)]
    assert names == ["aten::mse_loss", "aten::mean"]
    # 32 losses are written by the one and read by the other, which writes one number
    assert dispatch.work(F.mse_loss, x, y, on=A100)[1].bytes_moved == (32 + 1) * 4
    assert [w.operator for w in dispatch.work(partial(F.mse_loss, reduction="sum"), x, y, on=CPU)] == [
        "aten::mse_loss",
        "aten::sum",
    ]
    assert len(dispatch.work(partial(F.mse_loss, reduction="none"), x, y, on=A100)) == 1


def test_batch_norm_on_a_gpu_is_predicted_by_the_name_that_every_library_is_called_from():
    layer, x = torch.nn.BatchNorm2d(4), torch.randn(2, 4, 8, 8)
    assert "aten::_batch_norm_impl_index" in dispatch.predict_call(layer, x, on=A100).operators
    assert "aten::native_batch_norm" in dispatch.predict_call(layer, x, on=CPU).operators


def test_values_put_into_a_copy_are_two_items():
    names = [
        w.operator
        for w in dispatch.work(
            lambda x, i: x.index_put((i,), x[0]), torch.randn(4, 8), torch.tensor([1]), on=CPU
        )
    ]
    assert names == ["aten::copy_", "aten::_index_put_impl_"]


def test_what_a_closure_holds_is_watched_without_being_changed():
    x = torch.zeros(4)
    assert dispatch.operators(lambda: x.add_(1))["operator"].tolist() == ["aten::add_"]
    assert x.sum() == 0


def test_nothing_is_allocated_for_a_tensor_that_would_not_fit():
    n = 1 << 20  # [n, n] float32 would take 4.4 TB
    inputs = models.MatmulAdd(n).inputs("meta")
    assert total(dispatch.work(models.matmul_add, *inputs, on=A100)).flops == 2 * n**3


def test_a_factory_inside_the_call_makes_no_memory():
    found = dispatch.operators(lambda x: x + torch.zeros(1 << 40), torch.randn(1))
    assert found["operator"].tolist() == ["aten::zeros", "aten::add"]


# ------------------------------------------------------------------ what timeline knows of operators by heart


def schemas(name):
    """All schemas of an operator, those of TorchScript included; none when torch has no such operator."""
    return torch._C._jit_get_schemas_for_operator(name)


# Share memory although their schema does not say so: composites, and views made invisible to autograd.
SILENT = {
    "aten::_unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, [2, 2]),
    "aten::unsafe_chunk": lambda x: x.unsafe_chunk(2)[0],
    "aten::unsafe_split": lambda x: x.unsafe_split(2)[0],
    "aten::unsafe_split_with_sizes": lambda x: x.unsafe_split_with_sizes([2, 2])[0],
    "aten::T": lambda x: x.view(2, 2).T,
    "aten::atleast_1d": torch.atleast_1d,
    "aten::atleast_2d": torch.atleast_2d,
    "aten::atleast_3d": torch.atleast_3d,
    "aten::broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(2, 1))[0],
    "aten::meshgrid": lambda x: torch.meshgrid(x, x, indexing="ij")[0],
    "aten::data": torch.ops.aten.data,
}


@pytest.mark.parametrize("name", sorted(timeline.VIEWS - set(SILENT)))
def test_timelines_views_return_their_inputs_memory(name):
    assert any(returned.alias_info for schema in schemas(name) for returned in schema.returns)


@pytest.mark.parametrize("name", SILENT)
def test_views_that_the_schema_does_not_declare_share_memory_too(name):
    x = torch.randn(4)
    assert name in timeline.VIEWS and SILENT[name](x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_timeline_knows_the_views_that_a_call_makes(call):
    found = dispatch.operators(*call)
    assert set(found[found["view"]]["operator"]) <= timeline.VIEWS


@pytest.mark.parametrize("name", sorted(timeline.ALLOCATIONS | timeline.WRAPPERS))
def test_timelines_other_names_are_operators_of_torch(name):
    assert schemas(name)


# ----------------------------------------------------------------------------------------------- the epilogue


def test_a_plain_linear_keeps_its_bias_in_the_epilogue_on_a_gpu_and_not_on_a_cpu():
    assert dispatch.epilogue(*CALLS["linear"]).kept
    lost = dispatch.epilogue(*CALLS["linear"], kind="cpu")
    assert not lost.kept and "copies the bias" in str(lost)


@pytest.mark.parametrize(
    "call, reason",
    [
        ((torch.nn.Linear(32, 1), torch.randn(16, 32)), "K, N = 32, 1"),
        (CALLS["linear, 3-D not contiguous"], "no addmm"),
        (CALLS["linear, 3-D not contiguous, frozen"], "aten::bmm and the addition"),
        (CALLS["matmul and add"], "no addmm"),
        ((torch.addmm, torch.randn(16, 64), torch.randn(16, 32), torch.randn(32, 64)), r"\[16, 64\]"),
        ((torch.addmm, torch.randn(1, 64), torch.randn(16, 32), torch.randn(32, 64)), "only a 1-D bias"),
        ((torch.addmm, torch.randn(128)[::2], torch.randn(16, 32), torch.randn(32, 64)), "stride 2"),
        (
            (lambda *a: torch.addmm(*a, beta=2), torch.randn(64), torch.randn(16, 32), torch.randn(32, 64)),
            "beta is 2",
        ),
    ],
)
def test_each_way_to_lose_the_epilogue_costs_a_second_item(call, reason):
    found = dispatch.epilogue(*call)
    assert not found.kept and re.search(reason, found.reason)
    assert len(dispatch.work(*call, on=A100)) > 1


def test_one_row_keeps_its_bias_in_the_epilogue():
    assert dispatch.epilogue(*CALLS["linear, batch 1"]).kept
    assert [item.operator for item in dispatch.work(*CALLS["linear, batch 1"], on=A100)] == ["aten::addmm"]


def test_the_way_to_cublaslt_can_be_closed(monkeypatch):
    monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
    assert "DISABLE_ADDMM_CUDA_LT" in dispatch.epilogue(*CALLS["linear"]).reason
    assert [w.operator for w in dispatch.work(*CALLS["linear"], on=A100)] == ["aten::copy_", "aten::addmm"]


def test_beta_of_zero_adds_and_copies_nothing():
    call = lambda *a: torch.addmm(*a, beta=0)  # noqa: E731
    inputs = (torch.randn(64), torch.randn(16, 32), torch.randn(32, 64))
    assert len(dispatch.work(call, *inputs, on=A100)) == 1
    assert "beta is 0" in dispatch.epilogue(call, *inputs).reason


@pytest.mark.parametrize("call", [CALLS["linear without bias"], CALLS["mlp"], CALLS["softmax"]])
def test_an_epilogue_is_asked_of_one_biased_product(call):
    with pytest.raises(ValueError, match="pass"):
        dispatch.epilogue(*call)


# --------------------------------------------------------------------------------------------- the prediction


def test_a_prediction_has_counts_and_a_band():
    prediction = dispatch.predict_call(*CALLS["linear"], on=A100)
    assert prediction.operators == ("aten::addmm",)
    assert (prediction.work_items, prediction.launches, prediction.flops) == (1, 1, 2 * 16 * 32 * 64)
    assert 0 < prediction.limit_us < prediction.low_us < prediction.high_us


def test_a_cpu_launches_nothing_that_could_be_counted():
    prediction = dispatch.predict_call(*CALLS["linear"], on=CPU)
    assert (prediction.work_items, prediction.launches) == (2, None)


class Named(torch.nn.Module):
    """Called as Hugging Face's models are."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, input_ids=None, attention_mask=None, fn=None):
        return self.layer(input_ids).masked_fill(attention_mask["of"], 0.0)


def test_a_call_with_keywords_is_predicted_as_the_one_without():
    x, mask = torch.randn(16, 32), {"of": torch.ones(16, 64, dtype=torch.bool)}
    model, named = Named(), {"input_ids": x, "attention_mask": mask, "fn": None}
    for on in (A100, CPU):
        assert dispatch.predict_call(model, on=on, **named) == dispatch.predict_call(model, x, mask, on=on)
        assert dispatch.work(model, x, on=on, attention_mask=mask) == dispatch.work(model, x, mask, on=on)
    assert dispatch.operators(model, **named).equals(dispatch.operators(model, x, mask))
    assert dispatch.epilogue(model.layer, input=x).kept
    with pytest.raises(TypeError, match="unexpected keyword argument 'ids'"):
        dispatch.predict_call(model, on=A100, ids=x)


# ------------------------------------------------------------------- the fast path of layers for transformers


def encoder_layer(heads=2, **options):
    return torch.nn.TransformerEncoderLayer(32, heads, 64, **{"batch_first": True} | options).eval()


def attention_of_itself(module, x, **options):
    return module(x, x, x, **options)


BATCH, CAUSAL = torch.randn(2, 8, 32), torch.ones(8, 8, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 8, [False] * 5 + [True] * 3])
MHA = torch.nn.MultiheadAttention(32, 2, batch_first=True).eval()
LAYER, HOOKED = encoder_layer(), encoder_layer()
HOOKED.linear1.register_forward_hook(lambda *_: None)
FAST = {
    "encoder layer": (encoder_layer(), (BATCH,), {}),
    "gelu": (encoder_layer(activation="gelu"), (BATCH,), {}),
    "norm first": (encoder_layer(norm_first=True), (BATCH,), {}),
    "bfloat16": (encoder_layer(dtype=torch.bfloat16), (BATCH.bfloat16(),), {}),
    "not contiguous": (encoder_layer(), (torch.randn(8, 2, 32).transpose(0, 1),), {}),
    "in a function": (lambda x: LAYER(x), (BATCH,), {}),
    "two layers": (torch.nn.TransformerEncoder(encoder_layer(), 2).eval(), (BATCH,), {}),
    "causal": (encoder_layer(), (BATCH,), {"src_mask": CAUSAL}),
    "padded": (encoder_layer(), (BATCH,), {"src_key_padding_mask": PADDED}),
    "causal and padded": (encoder_layer(), (BATCH,), {"src_mask": CAUSAL, "src_key_padding_mask": PADDED}),
    "silu, the attention alone": (encoder_layer(activation=F.silu), (BATCH,), {}),
    "hooked, the attention alone": (HOOKED, (BATCH,), {}),
    "attention": (attention_of_itself, (MHA, BATCH), {}),
    "attention without weights": (attention_of_itself, (MHA, BATCH), {"need_weights": False}),
    "attention, each head's weights": (attention_of_itself, (MHA, BATCH), {"average_attn_weights": False}),
    "attention, padded": (attention_of_itself, (MHA, BATCH), {"key_padding_mask": PADDED}),
}
SLOW = {
    "one head": (encoder_layer(heads=1), (BATCH,), {}),
    "no bias": (encoder_layer(bias=False), (BATCH,), {}),
    "length first": (encoder_layer(batch_first=False), (BATCH,), {}),
    "no batch": (encoder_layer(), (BATCH[0],), {}),
    "training": (encoder_layer(dropout=0.0).train(), (BATCH,), {}),
    "attention with a float mask": (attention_of_itself, (MHA, BATCH), {"attn_mask": torch.zeros(8, 8)}),
}
FUSED = {"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"}


def in_order(some, all_of_them):
    left = iter(all_of_them)
    return all(name in left for name in some)


def predicted_as_traced(fn, inputs, named, path):
    """Whether a CPU took the fast path, after a look at all that was predicted of it."""
    trace = measure.record(lambda: fn(*inputs, **named), path, steps=1, device="cpu")
    found = dispatch.predict_call(fn, *inputs, on=CPU, **named)
    ran, items = timeline.operators(trace)["name"].tolist(), [item.work.operator for item in found.items]
    assert in_order(timeline.work_items(trace)["operator"], items) and in_order(found.operators, ran)
    assert not Counter(items) - Counter(ran)  # and no item that did not run
    return bool(FUSED & set(ran))


@pytest.mark.parametrize("call", FAST.values(), ids=FAST)
def test_the_fast_path_is_predicted_where_a_cpu_takes_it(call, tmp_path):
    with torch.no_grad():
        assert predicted_as_traced(*call, tmp_path / "a.json")


@pytest.mark.parametrize("call", SLOW.values(), ids=SLOW)
def test_the_slow_path_is_predicted_where_a_cpu_takes_that(call, tmp_path):
    with torch.no_grad():
        assert not predicted_as_traced(*call, tmp_path / "a.json")


def test_gradients_and_a_switch_of_torch_decide_about_the_fast_path_too(tmp_path):
    layer = FAST["encoder layer"]
    assert not predicted_as_traced(*layer, tmp_path / "a.json")  # its parameters want gradients
    with torch.inference_mode():
        assert predicted_as_traced(*layer, tmp_path / "b.json")
    assert predicted_as_traced(encoder_layer().requires_grad_(False), (BATCH,), {}, tmp_path / "c.json")
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            assert not predicted_as_traced(*layer, tmp_path / "d.json")
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@torch.no_grad()
def test_the_work_of_the_fast_path_is_that_of_its_products_and_passes():
    found = dispatch.predict_call(encoder_layer(), BATCH, on=CPU)
    # 16 rows: 2·16·32·96 for q, k and v, 2·16·32·32 behind the attention, 2·16·32·64 twice; in the attention
    # 2·8·8·16 twice in each of 4 heads
    assert found.flops == 98_304 + 32_768 + 2 * 65_536 + 2 * 4 * 2_048
    rescaled = next(i.work for i in found.items if i.work.operator == "aten::_transform_bias_rescale_qkv")
    # 16·96 elements and 96 of the bias read, 16·96 written; an addition each, and a product for each of q
    assert (rescaled.bytes_moved, rescaled.vector_flops) == (4 * (2 * 16 * 96 + 96), 4 * 16 * 32)
    padded = dispatch.work(encoder_layer(), BATCH, on=CPU, src_key_padding_mask=PADDED)
    hidden = next(w for w in padded if w.operator == "aten::_masked_softmax")
    # 4·8·8 scores read and written, 2·8 bytes of mask; 5 operations each, in 32 rows
    assert (hidden.bytes_moved, hidden.vector_flops, hidden.rows) == (2 * 4 * 256 + 16, 5 * 256, 32)


@torch.no_grad()
def test_on_a_gpu_the_fast_path_takes_the_cards_attention_and_is_marked_uncertain():
    layer, x = encoder_layer(dtype=torch.bfloat16), BATCH.bfloat16()
    found = dispatch.predict_call(layer, x, on=A100)
    assert found.operators == (
        "aten::addmm", "aten::_scaled_dot_product_flash_attention", "aten::addmm", "aten::add_",
        "aten::native_layer_norm", "aten::_addmm_activation", "aten::addmm", "aten::add_",
        "aten::native_layer_norm",
    )  # fmt: skip
    (note,) = found.notes
    assert note.startswith("uncertain: the fast path") and note in str(found) and note in found._repr_html_()
    on_t4 = [w.operator for w in dispatch.work(layer, x, on=find("T4"))]  # no fused kernel for bfloat16
    assert on_t4[:4] == ["aten::mm", "aten::_transform_bias_rescale_qkv", "aten::bmm", "aten::_softmax"]
    assert dispatch.predict_call(linear(), torch.randn(16, 32), on=A100).notes == ()


@torch.no_grad()
@pytest.mark.parametrize(
    "length, hidden",
    [
        (1024, ["aten::_masked_softmax"]),  # 1024 float32 are 4096 bytes, the most that its kernel takes
        (1025, ["aten::copy_", "aten::masked_fill_", "aten::_softmax"]),
    ],
)
def test_on_a_gpu_a_masked_softmax_is_one_kernel_for_short_rows_alone(length, hidden):
    x, padded = torch.empty(2, length, 32), torch.ones(2, length, dtype=torch.bool)
    names = [w.operator for w in dispatch.work(encoder_layer(), x, on=A100, src_key_padding_mask=padded)]
    first, second = (i for i, name in enumerate(names) if name == "aten::bmm")
    assert names[first + 1 : second] == ["aten::copy_", *hidden]  # the mask is cast to bool before


@torch.no_grad()
def test_an_activation_is_in_the_epilogue_of_its_product_or_an_item_of_its_own(monkeypatch):
    def after_the_norm(on, **options):
        found = dispatch.work(encoder_layer(**options), BATCH, on=on)
        names = [w.operator.removeprefix("aten::") for w in found]
        return names[names.index("native_layer_norm") + 1 : -2]

    assert after_the_norm(A100) == ["_addmm_activation", "addmm"]
    monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
    lost = ["copy_", "_addmm_activation", "gelu_", "copy_", "addmm"]
    assert after_the_norm(A100, activation="gelu") == lost
    # on a CPU the activation ends before the operator that runs it
    assert after_the_norm(CPU) == ["copy_", "clamp_min_", "_addmm_activation", "copy_", "addmm"]


def test_layers_in_other_threads_and_after_a_failure_are_as_they_were():
    layer, own = encoder_layer(), torch.nn.TransformerEncoderLayer.forward
    result = []

    def elsewhere(x):
        with torch.no_grad():
            thread = threading.Thread(target=lambda: result.append(torch.no_grad()(layer)(BATCH)))
            thread.start()
            thread.join()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dispatch.predict_call(elsewhere, BATCH, on=CPU)
    with torch.no_grad():
        assert torch.equal(result[0], layer(BATCH))
    assert torch.nn.TransformerEncoderLayer.forward is own


@torch.no_grad()
def test_a_prediction_inside_of_another_one_is_the_same():
    inner = []
    dispatch.predict_call(lambda x: inner.append(dispatch.predict_call(LAYER, BATCH, on=CPU)), BATCH, on=CPU)
    assert inner == [dispatch.predict_call(LAYER, BATCH, on=CPU)]


@torch.no_grad()
@pytest.mark.parametrize("mask_check", [True, False])
def test_an_encoder_that_packs_a_padded_batch_is_refused_with_the_way_out(mask_check, tmp_path):
    encoder = torch.nn.TransformerEncoder(encoder_layer(), 2, mask_check=mask_check).eval()
    with pytest.raises(dispatch.NeedsValues, match="enable_nested_tensor=False"):
        dispatch.predict_call(encoder, BATCH, on=CPU, src_key_padding_mask=PADDED)
    plain = torch.nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False).eval()
    assert predicted_as_traced(plain, (BATCH,), {"src_key_padding_mask": PADDED}, tmp_path / "a.json")


# ---------------------------------------------------------------------------------------- what cannot be seen


@pytest.mark.parametrize(
    "fn, named",
    [
        (lambda x: x.nonzero(), "aten::nonzero"),
        (lambda x: x[x > 0], "aten::index"),
        (lambda x: x.sum().item(), "aten::_local_scalar_dense"),
        (lambda x: x if x.sum() > 0 else -x, "aten::_local_scalar_dense"),
        (lambda x: torch.unique(x), "aten::_unique2"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.numpy(), "numpy"),
    ],
)
def test_what_needs_values_is_named(fn, named):
    with pytest.raises(dispatch.NeedsValues, match=named):
        dispatch.operators(fn, torch.randn(4, 4))


def test_a_mistake_in_the_call_is_reported_by_torch_itself():
    with pytest.raises(RuntimeError, match="reduction dim"):
        dispatch.operators(linear(), torch.randn(16, 33))


def test_a_compiled_function_is_refused():
    with pytest.raises(ValueError, match=r"before torch\.compile"):
        dispatch.operators(torch.compile(linear()), torch.randn(16, 32))
    with pytest.raises(ValueError, match=r"before torch\.compile"):
        dispatch.operators(torch.compile(torch.neg), torch.randn(16, 32))


def attend(q, **options):
    return F.scaled_dot_product_attention(q, q, q, **options)


def attend_by_math(q, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return attend(q, **options)


QUERY = torch.randn(2, 4, 8, 16)
ATTENTION = {
    "causal": (partial(attend, is_causal=True), QUERY),
    "masked": (partial(attend, attn_mask=torch.ones(8, 8, dtype=torch.bool).tril()), QUERY),
    "float32 mask, bfloat16": (partial(attend, attn_mask=torch.zeros(8, 8)), QUERY.bfloat16()),
    "math, float32 mask, bfloat16": (partial(attend_by_math, attn_mask=torch.zeros(8, 8)), QUERY.bfloat16()),
    "math": (partial(attend_by_math, is_causal=True), QUERY),
    "math, bfloat16": (partial(attend_by_math, is_causal=True), QUERY.bfloat16()),
    "several heads": (
        lambda m, x: m(x, x, x, need_weights=False),
        torch.nn.MultiheadAttention(32, 2, batch_first=True),
        torch.randn(2, 8, 32),
    ),
    "several heads and their weights": (
        lambda m, x: m(x, x, x),
        torch.nn.MultiheadAttention(32, 2, batch_first=True),
        torch.randn(2, 8, 32),
    ),
}


@pytest.mark.parametrize("call", ATTENTION.values(), ids=ATTENTION)
def test_the_work_items_of_attention_are_those_of_a_cpu_trace(call, tmp_path):
    trace = measure.record(lambda: call[0](*call[1:]), tmp_path / "a.json", steps=1, device="cpu")
    found = dispatch.predict_call(*call, on=CPU)
    assert [item.work.operator for item in found.items] == timeline.work_items(trace)["operator"].tolist()
    recorded = iter(timeline.operators(trace)["name"])
    assert all(name in recorded for name in found.operators)


def test_attention_is_one_kernel_on_a_card_that_has_one_and_twenty_on_a_card_that_has_none():
    query = QUERY.bfloat16()
    on_a100 = dispatch.work(attend, query, on=A100)
    assert [w.operator for w in on_a100] == ["aten::_scaled_dot_product_flash_attention"]
    # 2 products, each 2 · 8 · 8 · 16 FLOPs in each of 2 · 4 heads
    assert on_a100[0].flops == 2 * (2 * 8 * 8 * 16) * 8
    assert len(dispatch.work(partial(attend, is_causal=True), query, on=find("T4"))) == 20


def test_attention_that_cannot_run_on_a_card_is_refused_with_what_torch_says():
    def pinned(q):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return attend(q)

    with pytest.raises(ValueError, match=r"cannot run on T4; torch raises: No available kernel"):
        dispatch.work(pinned, QUERY.half(), on=find("T4"))


def test_attention_called_past_torch_nn_functional_is_refused_and_not_taken_for_math():
    with pytest.raises(ValueError, match=r"cost\.attention"):
        dispatch.work(lambda q: torch.ops.aten.scaled_dot_product_attention(q, q, q), QUERY, on=A100)


def test_a_layer_for_transformers_is_predicted_with_the_attention_of_the_card():
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
    names = [w.operator for w in dispatch.work(layer, torch.randn(2, 8, 32), on=A100)]
    assert names.count("aten::_scaled_dot_product_efficient_attention") == 1  # float32


@pytest.mark.parametrize("grad", [True, False])
def test_dropout_is_one_kernel_on_a_gpu_and_three_operators_on_a_cpu(grad):
    x = torch.randn(8, 32, requires_grad=grad)
    dropout = torch.nn.Dropout(0.1)
    assert dispatch.predict_call(dropout, x, on=A100).operators == ("aten::native_dropout",)
    assert dispatch.predict_call(dropout, x, on=CPU).operators == (
        "aten::bernoulli_", "aten::div_", "aten::mul"
    )  # fmt: skip
    assert dispatch.predict_call(dropout.eval(), x, on=A100).operators == ()


@pytest.mark.parametrize("call", [lambda a, b: a @ b, F.linear, torch.nn.Linear(32, 32).half()])
def test_a_product_of_two_dtypes_is_refused_as_torch_refuses_it(call):
    a, b = torch.randn(32, 32), torch.randn(32, 32).half()
    inputs = (a,) if isinstance(call, torch.nn.Module) else (a, b)
    with pytest.raises(ValueError, match="of float32 and float16"):
        dispatch.predict_call(call, *inputs, on=A100)


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN, torch.nn.LSTMCell])
def test_recurrent_layers_are_refused_by_name(layer):
    x = torch.randn(4, 32) if layer is torch.nn.LSTMCell else torch.randn(5, 4, 32)
    with pytest.raises(ValueError, match="recurrent layer"):
        dispatch.predict_call(layer(32, 32), x, on=A100)


def test_autocast_is_refused_since_meta_tensors_are_not_cast():
    def call(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    layer, x = linear(), torch.randn(4, 32)
    with pytest.raises(ValueError, match="autocast"):
        dispatch.predict_call(call, x, on=CPU)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="autocast"):
        dispatch.predict_call(layer, x, on=CPU)


NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="is about a torch that finds no GPU")


@NO_CUDA
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_an_autocast_that_only_a_gpu_would_obey_is_refused_too():
    def call(x):
        with torch.autocast("cuda", torch.bfloat16):
            return layer(x)

    layer, x = linear(), torch.randn(4, 32)
    for on in (A100, CPU):
        with torch.autocast("cuda", torch.bfloat16):
            assert not torch.is_autocast_enabled("cuda")  # torch has switched it off
            if on is CPU:  # where no cast is made anyway
                assert dispatch.predict_call(layer, x, on=on).operators == ("aten::addmm",)
                continue
            with pytest.raises(ValueError, match="autocast .* predict outside of it"):
                dispatch.predict_call(layer, x, on=on)
    with pytest.raises(ValueError, match="autocast .* predict outside of it"):
        dispatch.predict_call(call, x, on=A100)
    assert dispatch.predict_call(call, x, on=CPU).notes == ()


@NO_CUDA
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_an_autocast_that_may_be_off_by_wish_makes_the_prediction_uncertain():
    made_before = torch.autocast("cuda", torch.bfloat16)

    def prepared(x):
        with made_before:
            return layer(x)

    def off(x):
        with torch.autocast("cuda", enabled=False):
            return layer(x)

    layer, x = linear(), torch.randn(4, 32)
    for call in (prepared, off):
        found = dispatch.predict_call(call, x, on=A100)
        assert found.operators == ("aten::addmm",) and "autocast that is off here" in found.notes[0]
    assert dispatch.predict_call(layer, x, on=A100).notes == ()


def test_a_mask_that_cudnn_misreads_makes_the_prediction_uncertain(monkeypatch):
    monkeypatch.setattr(sdpa, "_release", lambda: (2, 13))
    query, mask, h100 = QUERY.bfloat16(), torch.zeros(8, 8), find("H100")
    found = dispatch.predict_call(partial(attend, attn_mask=mask), query, on=h100)
    assert found.operators == ("aten::_scaled_dot_product_cudnn_attention",)
    assert any("cuDNN read the float32 mask as bfloat16" in note for note in found.notes)
    cast = partial(attend, attn_mask=mask.bfloat16())
    assert dispatch.predict_call(cast, query, on=h100).notes == ()
    with pytest.raises(ValueError, match="torch raises: invalid dtype for bias"):
        dispatch.predict_call(partial(attend, attn_mask=mask), query, on=A100)


def test_an_operator_without_a_known_cost_is_named():
    with pytest.raises(ValueError, match=r"aten::linalg_.* on \[4, 4\]"):
        dispatch.work(torch.linalg.inv, torch.randn(4, 4), on=A100)


def test_a_compiled_part_of_a_module_is_refused():
    compiled = linear()
    compiled.compile()
    for module in (torch.nn.Sequential(torch.compile(linear())), compiled):
        with pytest.raises(ValueError, match=r"before torch\.compile"):
            dispatch.operators(module, torch.randn(16, 32))


@pytest.mark.parametrize("form", ["to_sparse", "to_mkldnn", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore")  # torch says that sparse rows are in beta
def test_what_is_not_dense_is_refused(form):
    x = torch.randn(4, 4)
    with pytest.raises(ValueError, match=r"a torch\.\w+ tensor is not covered"):
        dispatch.work(torch.matmul, getattr(x, form)(), x, on=A100)


def test_a_lazy_module_and_one_that_cannot_be_copied_say_what_to_do():
    with pytest.raises(ValueError, match="call the module once"):
        dispatch.operators(torch.nn.LazyLinear(4), torch.randn(2, 3))
    held = linear()
    held.lock = threading.Lock()
    with pytest.raises(ValueError, match="Linear cannot be copied .*; pass a function that calls it"):
        dispatch.operators(held, torch.randn(16, 32))
    assert len(dispatch.operators(lambda x: held(x), torch.randn(16, 32))) == 2  # t, addmm


def test_inference_mode_changes_nothing_about_what_is_found():
    with torch.inference_mode():
        inside = dispatch.operators(*CALLS["linear"])
    with torch.no_grad():
        outside = dispatch.operators(*CALLS["linear"])
    assert inside["operator"].tolist() == outside["operator"].tolist() == ["aten::t", "aten::addmm"]


def test_a_card_may_be_given_by_its_name():
    x = torch.empty(8, 8)
    assert dispatch.predict_call(torch.mm, x, x, on="A100") == dispatch.predict_call(torch.mm, x, x, on=A100)
    with pytest.raises(hardware.UnknownHardware):
        dispatch.predict_call(torch.mm, x, x, on="a toaster")


def _sliced(x):
    (x[:, 1:5] * 2).sum().backward()


def _selected(x):
    (x[1] * 2).sum().backward()


@pytest.mark.parametrize(
    ("fn", "moved"),
    [
        (_sliced, 128 + 2 * 64),  # zeros of [4, 8] float32, then a gradient of [4, 4] read and written
        (_selected, 128 + 2 * 32),  # the same with a gradient of [8]
        (lambda x: torch.nn.functional.pad(x.detach(), (0, 3, 1, 0)), 5 * 11 * 4 + 2 * 128),
    ],
)
def test_what_is_written_into_a_part_of_a_filled_tensor_is_a_fill_and_a_copy(tmp_path, fn, moved):
    x = torch.randn(4, 8, requires_grad=True)
    items = dispatch.predict_call(fn, x, on="H100").items[-2:]
    assert sum(item.work.bytes_moved for item in items) == moved
    trace = measure.record(lambda: fn(torch.randn(4, 8, requires_grad=True)), tmp_path / "a.json", steps=1, device="cpu")
    recorded = [name for name in timeline.work_items(trace)["operator"] if name != "aten::normal_"]
    assert recorded[-2:] == [item.work.operator for item in items]
