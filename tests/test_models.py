"""The workloads: what they build, and their work counted by hand against what torch counts."""

import sys
import types
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import dispatch, hardware, models
from tutorial_lib.cost import Cost, total


def counted_flops(config):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        config.build("meta")(*config.inputs("meta"))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "config",
    [
        models.MatmulAdd(64),
        models.MatmulAdd(4096, "bfloat16"),
        models.Linear(1024, 32, 64),
        models.Linear(8192, 768, 3072, bias=False, dtype="bfloat16"),
        models.Linear(1, 32, 64),
        models.GeGLUMLP(dtype="bfloat16"),
        models.GeGLUMLP(1, 1, 8, 16),
    ],
)
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_flops_equal_torchs_counter(config, kind):
    assert total(config.costs(kind)).flops == counted_flops(config)


def test_matmul_add_is_one_gemm_and_one_addition():
    # GEMM 2·4³ = 128 FLOPs, 3·16 elements of 4 bytes = 192; add reads 2·16 and writes 16 elements = 192 bytes
    gemm, addition = models.MatmulAdd(4).costs()
    assert gemm.cost == Cost(128, 192)
    assert (addition.flops, addition.bytes_moved, addition.vector_flops) == (0, 192, 16)


def test_matmul_add_computes_what_it_says():
    x, w, b = models.MatmulAdd(8, "float64").inputs()
    torch.testing.assert_close(models.MatmulAdd(8).build()(x, w, b), x @ w + b)


def test_a_linear_with_bias_is_one_item_on_a_gpu_and_two_on_a_cpu():
    config = models.Linear(2, 3, 5)
    assert [w.operator for w in config.costs("cuda")] == ["aten::addmm"]
    assert [w.operator for w in config.costs("cpu")] == ["aten::copy_", "aten::addmm"]


def test_the_bias_of_a_linear_is_read_once_in_an_epilogue_and_as_a_full_matrix_without_one():
    # x 2·3 + weight 3·5 + output 2·5 = 31 elements of 4 bytes; the addend is 5 elements in an epilogue, 10
    # without
    config = models.Linear(2, 3, 5)
    assert total(config.costs("cuda")).bytes_moved == (31 + 5) * 4
    # the copy before it reads 5 and writes 10
    assert total(config.costs("cpu")).bytes_moved == (31 + 10 + 5 + 10) * 4


def test_one_feature_loses_the_epilogue_on_a_gpu_and_one_row_does_not():
    assert len(models.Linear(2, 3, 1).costs("cuda")) == len(models.Linear(2, 1, 3).costs("cuda")) == 2
    assert len(models.Linear(1, 3, 5).costs("cuda")) == 1


def test_a_linear_without_bias_is_a_product_alone():
    assert [w.operator for w in models.Linear(2, 3, 5, bias=False).costs("cpu")] == ["aten::mm"]


def test_a_geglu_is_three_products_with_gelu_and_mul_before_the_last():
    config = models.GeGLUMLP(2, 3, 4, 8)
    found = dispatch.operators(config.build(), *config.inputs("meta"))
    working = found.loc[found["works"], "operator"].tolist()
    assert working == ["aten::mm", "aten::mm", "aten::gelu", "aten::mul", "aten::mm"]


@pytest.mark.parametrize("on", ["A100", "T4"])
@pytest.mark.parametrize("shape", [(64, 128, 768, 3072), (1, 1, 8, 16), (3, 1, 1, 1)])
def test_the_costs_of_a_geglu_are_what_dispatch_finds_on_a_gpu_and_on_a_cpu(shape, on):
    config, card = models.GeGLUMLP(*shape, dtype="float16"), hardware.find(on)
    for device in (card, replace(card, kind="cpu")):
        found = dispatch.work(config.build("meta"), *config.inputs("meta"), on=device)
        by_hand = config.costs(device.kind)
        assert [(w.operator, w.cost) for w in found] == [(w.operator, w.cost) for w in by_hand]


def test_the_pointwise_half_of_a_geglu_moves_five_intermediates_and_fused_three():
    # an intermediate is 2·3·8 elements of 4 bytes = 192 bytes; gelu moves 2 of them, mul 3, both at once 3
    config = models.GeGLUMLP(2, 3, 4, 8)
    apart, fused = total(config.pointwise_costs()), total(config.pointwise_costs(fused=True))
    assert (apart.bytes_moved, fused.bytes_moved) == (5 * 192, 3 * 192)
    assert apart.vector_flops == fused.vector_flops


def test_a_geglu_computes_what_it_says():
    config = models.GeGLUMLP(2, 3, 4, 8, dtype="float64")
    mlp, (x,) = config.build(), config.inputs()
    gate, up = x @ mlp.gate.weight.T, x @ mlp.up.weight.T
    # the tanh form: 0.5·a·(1 + tanh(√(2/π)·(a + 0.044715·a³)))
    gelu = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    torch.testing.assert_close(mlp(x), (gelu * up) @ mlp.down.weight.T)


def test_built_modules_and_inputs_fit_each_other():
    config = models.Linear(4, 3, 5, dtype="bfloat16")
    (x,) = config.inputs()
    out = config.build()(x)
    assert out.shape == (4, 5) and out.dtype == x.dtype == torch.bfloat16


def test_a_dtype_may_be_spelled_as_torch_does():
    assert models.Linear(4, 3, 5, dtype=torch.float16) == models.Linear(4, 3, 5, dtype="half")


@pytest.mark.parametrize(
    "bad", [{"n": 0}, {"n": 2.5}, {"n": True}, {"n": 4, "dtype": "int64"}, {"n": 4, "dtype": "tf32"}]
)
def test_a_bad_size_or_dtype_is_named(bad):
    with pytest.raises(ValueError, match=r"MatmulAdd\.(n|dtype)"):
        models.MatmulAdd(**bad)


def test_an_unknown_kind_of_device_is_an_error():
    with pytest.raises(ValueError, match="cuda"):
        models.Linear(2, 3, 5).costs("tpu")


def test_source_is_plain_text_outside_a_notebook(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    shown = models.show_source(models.matmul_add)
    assert "torch.add(torch.matmul(x, w), b)" in shown and repr(shown) == str(shown)


def test_source_is_highlighted_in_a_notebook(monkeypatch):
    code = types.SimpleNamespace(Code=lambda data, language: (language, data))
    ipython = types.SimpleNamespace(get_ipython=lambda: object(), display=code)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    language, data = models.show_source(models.Linear(2, 3, 5))  # an instance shows its class
    assert language == "python" and data.startswith("@dataclass") and "class Linear" in data


def test_what_has_no_python_source_is_an_error():
    with pytest.raises(ValueError, match="no Python source"):
        models.show_source(torch.add)
