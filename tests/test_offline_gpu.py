"""Programs and machine code for GPUs that are not here: expectations, the cache, what must stay untouched."""

import inspect
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tutorial_lib import cost, doctor, hardware, measure, offline_gpu, predict, timeline
from tutorial_lib.compiled import read_source
from tutorial_lib.trace import read_trace

able = pytest.mark.skipif(offline_gpu.problem() is not None, reason=str(offline_gpu.problem()))
CARDS = {"T4": torch.float16, "A100": torch.bfloat16, "H100": torch.bfloat16}  # sm_75, sm_80, sm_90
ROWS, FEATURES, HIDDEN = 8192, 768, 3072
INTERMEDIATE = ROWS * HIDDEN * 2  # 50,331,648 bytes


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of this module's own, so that nothing is taken from an earlier run."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUTORIAL_LIB_CACHE", str(folder))
        yield folder / "offline_gpu"


class GeGLU(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        options = {"bias": False, "dtype": dtype, "device": "meta"}
        self.gate = torch.nn.Linear(FEATURES, HIDDEN, **options)
        self.up = torch.nn.Linear(FEATURES, HIDDEN, **options)
        self.down = torch.nn.Linear(HIDDEN, FEATURES, **options)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x), approximate="tanh") * self.up(x))


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) * 0.125
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


def geglu_program(on):
    return offline_gpu.program(GeGLU(CARDS[on]), meta(ROWS, FEATURES, dtype=CARDS[on]), on=on)


def query_key_value(dtype):
    return tuple(meta(8, 16, 1024, 64, dtype=dtype) for _ in range(3))


def layer_norm_program(on, columns=FEATURES):
    layer = torch.nn.LayerNorm(columns, dtype=CARDS[on], device="meta")
    return offline_gpu.program(layer, meta(ROWS, columns, dtype=CARDS[on]), on=on)


# ---------------------------------------------------------------------------------------------- expectations


@able
@pytest.mark.parametrize("on", CARDS)
def test_a_geglu_is_three_products_and_one_fused_kernel_written_over_its_input(on):
    found = geglu_program(on)
    assert [i.name for i in found.items] == ["aten::mm"] * 2 + ["triton_poi_fused_gelu_mul_0", "aten::mm"]
    (kernel,) = found.kernels
    assert kernel.operators == ("aten::gelu", "aten::mul")
    assert (kernel.loads, kernel.stores, kernel.reductions) == (2, 1, 0)
    assert kernel.in_place == (found.items[0].outputs[0].name,)
    assert kernel.dtype == str(CARDS[on]).removeprefix("torch.")
    # two reads and a write of the intermediate
    assert kernel.bytes_moved == 3 * INTERMEDIATE
    assert found.gpu == hardware.find(on).name
    assert tempfile.gettempdir() not in found.source


@able
@pytest.mark.parametrize("on", CARDS)
def test_naive_attention_is_two_products_and_one_kernel_between_them(on):
    found = offline_gpu.program(attention, *query_key_value(CARDS[on]), on=on)
    assert [i.kind for i in found.items] == ["extern", "triton", "extern"]
    assert [i.name for i in found.externs] == ["aten::bmm"] * 2
    (kernel,) = found.kernels
    assert {"aten::masked_fill", "aten::_softmax"} <= set(kernel.operators)
    # one load and one store of the scores, the maximum and the sum of a row; the mask is computed, not loaded
    assert (kernel.loads, kernel.stores, kernel.reductions) == (1, 1, 2)
    assert kernel.bytes_moved == 2 * (8 * 16 * 1024 * 1024 * 2)
    assert len(kernel.in_place) == 1


@able
@pytest.mark.parametrize("on", CARDS)
def test_a_layer_norm_is_one_kernel(on):
    (kernel,) = layer_norm_program(on).items
    assert kernel.operators == ("aten::native_layer_norm",)
    # x, weight and bias; mean and variance
    assert (kernel.loads, kernel.stores, kernel.reductions) == (3, 1, 2)
    assert (kernel.in_place, kernel.numel) == ((), ROWS * FEATURES)
    assert kernel.bytes_moved == (2 * ROWS * FEATURES + 2 * FEATURES) * 2


@able
def test_products_have_the_costs_that_the_book_counts_by_hand():
    products = [i.work for i in geglu_program("H100").externs]
    up = cost.matmul(ROWS, FEATURES, HIDDEN, "bfloat16")
    assert [w.flops for w in products] == [up.flops] * 3
    assert [w.bytes_moved for w in products] == [up.bytes_moved] * 3


@able
def test_inputs_are_named_as_in_the_call():
    found = geglu_program("A100")
    assert set(found.names.values()) == {"gate.weight", "up.weight", "down.weight", "x"}
    assert "is gate.weight" in str(found)


BACKENDS = {"T4": "efficient", "A100": "flash", "H100": "cudnn"}


@able
@pytest.mark.parametrize("on", BACKENDS)
def test_each_generation_takes_another_attention_kernel(on):
    def call(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    found = offline_gpu.program(call, *query_key_value(CARDS[on]), on=on)
    assert [i.name for i in found.items] == [f"aten::_scaled_dot_product_{BACKENDS[on]}_attention"]
    assert BACKENDS[on] in " ".join(found.notes)
    # 2 · 1024 · 1024 · 64 for the scores and as many for the output, in each of 8·16 heads
    assert found.items[0].work.flops == 8 * 16 * 4 * 1024 * 1024 * 64


@able
def test_a_pinned_attention_backend_is_kept():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(q, k, v):
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v)

    found = offline_gpu.program(call, *query_key_value(torch.bfloat16), on="H100")
    assert [i.name for i in found.items] == ["aten::_scaled_dot_product_efficient_attention"]


@able
def test_bfloat16_on_a_t4_is_left_to_eager():
    with pytest.raises(offline_gpu.NotCompiled, match="T4.*bfloat16.*eagerly.*pass float16"):
        offline_gpu.program(torch.relu, meta(64, 64), on="T4")


@able
def test_a_product_with_odd_sizes_says_what_only_the_card_decides():
    found = offline_gpu.program(torch.mm, meta(1001, 77), meta(77, 33), on="A100")
    assert "padded" in " ".join(found.notes)


@able
def test_closures_and_numbers_travel_with_the_call():
    weight = torch.randn(64, 64)
    found = offline_gpu.program(lambda x: (x @ weight) * torch.tensor(0.5), torch.randn(32, 64), on="A100")
    assert [i.name.partition("_fused")[0] for i in found.items] == ["aten::mm", "triton_poi"]
    assert "0.5" in found.kernels[0].source
    assert list(found.names.values()) == ["a captured tensor", "x"]


@able
def test_a_call_without_work_launches_nothing():
    found = offline_gpu.program(lambda x: x, torch.ones(4), on="A100")
    assert (found.launches, found.items) == (0, ())


@able
def test_a_call_that_looks_at_values_is_not_one_program():
    with pytest.raises(offline_gpu.NotCompiled, match="asks for the values"):
        offline_gpu.program(lambda x: x * x.sum().item(), torch.ones(4), on="A100")


@able
def test_an_unknown_card_is_named_before_anything_runs():
    with pytest.raises(hardware.UnknownHardware, match="T9"):
        offline_gpu.program(torch.relu, torch.ones(4), on="T9")


# ---------------------------------------------------------------------------------------------- machine code

needs_liger = pytest.mark.skipif(find_spec("liger_kernel") is None, reason="liger-kernel is not installed")


def liger(on, dtype):
    from liger_kernel.ops.geglu import _geglu_tanh_forward_kernel

    return offline_gpu.machine_code(
        _geglu_tanh_forward_kernel,
        on=on,
        signature={"a": f"*{dtype}", "b": f"*{dtype}", "c": f"*{dtype}", "stride": HIDDEN},
        constants={"n_cols": HIDDEN, "BLOCK_SIZE": 4096},
        num_warps=8,
        grid=ROWS,
    )


@able
@needs_liger
@pytest.mark.parametrize(
    ("on", "dtype", "target"),
    [
        ("T4", "fp16", "sm_75"),
        ("A100", "bf16", "sm_80"),
        ("H100", "bf16", "sm_90"),
        ("B200", "bf16", "sm_100"),
    ],
)
def test_ligers_geglu_moves_96_bytes_a_thread_and_keeps_the_intermediate_in_registers(on, dtype, target):
    code = liger(on, dtype)
    # 4096 lanes on 256 threads are 16 elements each: two loads of 16 bytes from either input, two stores
    assert (code.target, code.elements_per_thread) == (target, 16)
    assert (code.loads, code.stores, code.bytes_per_thread) == ({16: 4}, {16: 2}, 96)
    assert (code.local_bytes, code.spills, code.shared_bytes) == (0, 0, 0)
    assert code.special == {"MUFU.EX2": 16, "MUFU.RCP": 16}


@able
@needs_liger
def test_ligers_masked_lanes_are_not_counted():
    # 3072 of 4096 lanes in each of 8192 programs, three times, 2 bytes each: 151 MB, and 201 MB unmasked
    code = liger("H100", "bf16")
    assert {(a.lanes, a.active) for a in code.accesses} == {(4096, ROWS * HIDDEN)}
    assert code.bytes_moved == 3 * INTERMEDIATE == 150_994_944
    assert code.bytes_per_thread * code.threads * ROWS == 201_326_592


@able
@pytest.mark.parametrize(("config", "width", "elements"), [(0, 16, 8), (1, 4, 2)])
def test_inductors_candidates_differ_in_width_and_not_in_bytes(config, width, elements):
    kernel = geglu_program("H100").kernels[0]
    code = offline_gpu.machine_code(kernel, config=config)
    assert (code.loads, code.stores, code.elements_per_thread) == ({width: 2}, {width: 1}, elements)
    assert code.grid == kernel.configs[config].grid
    assert code.bytes_moved == kernel.bytes_moved == 3 * INTERMEDIATE


@able
def test_a_row_of_weights_counts_in_every_program():
    # x, weight, bias and output: four times 768 elements in each program, though 1024 lanes stand there
    code = offline_gpu.machine_code(layer_norm_program("A100").kernels[0])
    assert {access.lanes for access in code.accesses} == {1024}
    assert code.bytes_moved == 4 * ROWS * FEATURES * 2


@able
def test_a_long_row_is_read_twice_in_a_loop():
    # 8192 columns do not fit: x once for the statistics and once for the result, weight, bias, output
    kernel = layer_norm_program("A100", 8192).kernels[0]
    looping = next(i for i, c in enumerate(kernel.configs) if dict(c.blocks)["R0_BLOCK"] == 2048)
    code = offline_gpu.machine_code(kernel, config=looping)
    assert code.bytes_moved == 5 * ROWS * 8192 * 2
    assert code.shared_bytes > 0


KERNEL = """
import triton
import triton.language as tl
from triton.language.extra import libdevice

SCALE = tl.constexpr(0.5)


@triton.jit
def half(x):
    return x * SCALE


@triton.jit
def scaled(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, half(libdevice.tanh(tl.load(x + i, i < n))), i < n)
"""


def kernels_of(text, path):
    path.write_text(text)
    spec = spec_from_file_location("not_to_be_imported", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@able
def test_a_kernel_that_nobody_can_import_travels_with_all_it_names(tmp_path):
    kernel = kernels_of(KERNEL, tmp_path / "cell.py").scaled
    signature = {"x": "*fp32", "out": "*fp32", "n": 98432}
    code = offline_gpu.machine_code(kernel, on="L4", signature=signature, constants={"BLOCK": 1024}, grid=97)
    # 97 programs of 1024 lanes, 98,432 of them inside
    assert (code.name, code.target, code.bytes_moved) == ("scaled", "sm_89", 2 * 98432 * 4)


@able
def test_a_kernel_that_does_not_compile_says_why(tmp_path):
    kernel = kernels_of(KERNEL, tmp_path / "cell.py").scaled
    with pytest.raises(ValueError, match="power of 2"):
        offline_gpu.machine_code(
            kernel, signature={"x": "*fp32", "out": "*fp32", "n": 5}, constants={"BLOCK": 100}
        )


def stub(*names):
    kernel = type("JITFunction", (), {"arg_names": list(names), "__name__": "stub"})()
    kernel.fn = stub
    return kernel


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        (print, {}, "is no Triton kernel"),
        (stub("x", "n"), {"signature": {"x": "*fp32"}}, "type or number of 'n'"),
        (stub("x"), {"signature": {"x": "*fp32", "y": 3}}, "no argument 'y'"),
        (stub("x"), {"signature": {"x": 1.5}}, "a type such as"),
        (stub("x"), {"signature": {"x": "*fp32"}, "grid": 0}, "grid is one to three"),
    ],
)
def test_a_wrong_argument_is_named(kernel, options, message):
    with pytest.raises(ValueError, match=message):
        offline_gpu.machine_code(kernel, **options)


@able
def test_a_programs_kernel_brings_its_own_card_and_grid():
    found = geglu_program("H100")
    with pytest.raises(ValueError, match="written for H100 SXM"):
        offline_gpu.machine_code(found.kernels[0], on="A100")
    with pytest.raises(ValueError, match="leave them out"):
        offline_gpu.machine_code(found.kernels[0], grid=4)
    with pytest.raises(ValueError, match="config is 0 to 1"):
        offline_gpu.machine_code(found.kernels[0], config=2)
    with pytest.raises(ValueError, match="take one of program.kernels"):
        offline_gpu.machine_code(found.externs[0])


# ------------------------------------------------------------------------------------------- predicted traces


@able
@pytest.mark.parametrize("name", ["predicted.json", "predicted.json.gz"])
def test_a_predicted_trace_reads_like_a_measured_one(tmp_path, name):
    trace = offline_gpu.predicted_trace(geglu_program("H100"), path=tmp_path / name)
    items = timeline.work_items(trace, step=0)
    assert list(items["operator"]) == ["aten::mm"] * 2 + ["triton_poi_fused_gelu_mul_0", "aten::mm"]
    assert list(timeline.launches(trace)["work_items"]) == [1, 1, 1, 1]
    assert items["shapes"].iloc[0] == ((ROWS, FEATURES), (FEATURES, HIDDEN))
    assert trace.notes == ()


@able
def test_a_predicted_kernel_lasts_as_long_as_the_model_calls_typical(tmp_path):
    found = geglu_program("H100")
    trace = offline_gpu.predicted_trace(found, path=tmp_path / "t.json")
    times = predict.predict([i.work for i in found.items], hardware.find("H100")).items
    expected = [t.typical_us for t in times]
    assert list(timeline.work_items(trace)["duration_us"]) == pytest.approx(expected, abs=0.001)
    # the three products and the fused kernel follow one another: no two overlap, none waits
    assert timeline.busy(trace).query("device == 0")["busy_us"].item() == pytest.approx(
        sum(expected), abs=0.01
    )


@able
def test_a_predicted_trace_says_in_every_place_that_it_is_predicted(tmp_path):
    offline_gpu.predicted_trace(geglu_program("H100"), path=tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text())
    assert content["tutorial_lib"]["predicted"] is True
    assert content["tutorial_lib"]["recorded"] is None
    bars = [e for e in content["traceEvents"] if e["ph"] == "X"]
    assert all(e["args"]["predicted"] for e in bars)
    lanes = [
        e["args"]["name"] for e in content["traceEvents"] if e["name"] in ("process_name", "thread_name")
    ]
    assert all("predicted" in lane for lane in lanes)
    assert "predicted" in read_trace(tmp_path / "t.json").device


@able
def test_low_and_high_have_lanes_of_their_own_that_count_as_no_work(tmp_path):
    trace = offline_gpu.predicted_trace(geglu_program("H100"), path=tmp_path / "t.json")
    bands = trace.events[trace.events["kind"] == "other"]
    low, high = (frame["duration_us"].sum() for _, frame in bands.groupby("thread"))
    assert low < timeline.work_items(trace)["duration_us"].sum() < high


@able
def test_arrows_lead_from_launches_to_kernels(tmp_path):
    offline_gpu.predicted_trace(geglu_program("H100"), path=tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    starts, ends = ({e["id"]: e["ts"] for e in events if e["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys() == {1, 2, 3, 4}
    assert all(starts[i] < ends[i] for i in starts)


@able
def test_a_launch_of_unknown_cost_is_not_given_a_time(tmp_path):
    with pytest.raises(ValueError, match="no cost is known for aten::kthvalue"):
        offline_gpu.predicted_trace(
            lambda x: x.kthvalue(9)[0], meta(128, 1000), on="A100", path=tmp_path / "t.json"
        )


@able
def test_a_predicted_trace_is_of_one_card_and_one_kind_of_file(tmp_path):
    found = geglu_program("H100")
    with pytest.raises(ValueError, match="is for H100 SXM"):
        offline_gpu.predicted_trace(found, on="A100", path=tmp_path / "t.json")
    with pytest.raises(ValueError, match=r"as \.json or \.json\.gz"):
        offline_gpu.predicted_trace(found, path=tmp_path / "t.txt")


# -------------------------------------------------------------------------------- cache, child and the caller


def never(*_):
    raise AssertionError("the child process was asked")


@able
def test_an_answer_is_kept_for_a_call_of_the_same_graph(monkeypatch):
    first = offline_gpu.program(lambda x: torch.relu(x) + 1, torch.ones(8, 8), on="A100")
    monkeypatch.setattr(offline_gpu._CHILD, "ask", never)
    again = offline_gpu.program(lambda y: torch.relu(y) + 1, torch.zeros(8, 8), on="A100")
    assert again.source == first.source
    for other in (lambda x: torch.relu(x) + 2, lambda x: torch.relu(x.double()) + 1):
        with pytest.raises(AssertionError, match="was asked"):
            offline_gpu.program(other, torch.ones(8, 8), on="A100")
    with pytest.raises(AssertionError, match="was asked"):
        offline_gpu.program(lambda x: torch.relu(x) + 1, torch.ones(8, 8), on="H100")


@able
@pytest.mark.parametrize("damage", [b"", b"not gzip", None])
def test_a_damaged_answer_is_asked_for_again(cache, damage, monkeypatch):
    def call():
        return offline_gpu.program(torch.sigmoid, torch.ones(8, 8), on="A100")

    good = call()
    for kept in cache.glob("*.json.gz"):
        kept.write_bytes(kept.read_bytes()[:-9] if damage is None else damage)
    assert call() == good
    monkeypatch.setattr(offline_gpu._CHILD, "ask", never)
    assert call() == good


def test_a_folder_that_cannot_be_written_costs_time_and_no_more(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TUTORIAL_LIB_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(offline_gpu._CHILD, "ask", lambda job, graph: {"told": job["task"]})
    assert offline_gpu._answer({"task": "anything"}, None) == {"told": "anything"}


def test_the_cache_lies_where_the_system_has_such_files(monkeypatch, tmp_path):
    monkeypatch.delenv("TUTORIAL_LIB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    for platform, start in (("linux", tmp_path), ("win32", tmp_path), ("darwin", Path.home() / "Library")):
        monkeypatch.setattr(sys, "platform", platform)
        assert offline_gpu._cache().is_relative_to(start)


@able
def test_a_child_that_died_is_replaced():
    offline_gpu.program(torch.tanh, torch.ones(8, 8), on="A100")
    offline_gpu._CHILD.process.kill()
    assert offline_gpu.program(torch.tanh, torch.ones(9, 9), on="A100").launches == 1


@able
def test_an_error_in_the_child_says_what_failed():
    job = {"task": "program", "gpu": {}, "settings": {}}
    with pytest.raises(RuntimeError, match="compiling for the GPU failed: AttributeError"):
        offline_gpu._CHILD.ask(job, b"")


def state():
    """What the child replaces in torch, Inductor and triton, as it is in this process."""
    import torch._inductor.compile_fx as compile_fx
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import config
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime import triton_helpers
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.runtime.driver import driver

    replaced = (torch.cuda, CudaInterface, CudaInterface.Worker, compile_fx, pad_mm, triton_helpers)
    found = [dict(vars(place)) for place in replaced]
    found += [vars(torch.Tensor).get("__getitem__")]
    found += [
        FakeTensorMode.avoid_device_init,
        GraphLowering.codegen,
        driver._active,
        config.get_config_copy(),
    ]
    found += [torch._C._conv_determine_backend_memory_format, os.environ.copy(), torch.is_grad_enabled()]
    return found


@able
def test_nothing_changes_in_the_calling_process():
    before = state()
    geglu = GeGLU(torch.bfloat16)
    weights = [(p.data_ptr(), p.requires_grad) for p in geglu.parameters()]
    found = offline_gpu.program(geglu, meta(128, FEATURES), on="H100")
    offline_gpu.machine_code(found.kernels[0])
    assert state() == before
    assert [(p.data_ptr(), p.requires_grad) for p in geglu.parameters()] == weights
    assert not torch.compiler.is_compiling()


@able
@pytest.mark.skipif(doctor._compiler().remedy is not None, reason="needs a C++ compiler")
def test_torch_compile_still_makes_cpu_code_afterwards():
    offline_gpu.program(lambda x: torch.relu(x) * 2, torch.ones(8, 8), on="A100")
    compiled = torch.compile(lambda x: torch.relu(x) * 3)
    x = torch.randn(8, 8)
    torch.testing.assert_close(compiled(x), torch.relu(x) * 3)


def test_importing_it_loads_neither_torch_nor_triton():
    code = "import sys, tutorial_lib.offline_gpu; print({'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --------------------------------------------------------------------------------------- what a machine lacks


def with_versions(monkeypatch, **versions):
    monkeypatch.setattr(offline_gpu, "_version", versions.get)


def test_without_triton_the_problem_says_how_to_get_it(monkeypatch):
    with_versions(monkeypatch, torch="2.13.0")
    assert "pip install -c constraints.txt triton" in offline_gpu.problem()
    with pytest.raises(offline_gpu.Unavailable, match="triton is not installed"):
        offline_gpu.program(torch.relu, torch.ones(4), on="A100")


def test_on_another_system_the_problem_says_where_it_runs(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in offline_gpu.problem()


@able
@pytest.mark.parametrize(("torch_version", "triton_version"), [("2.12.1", "3.7.1"), ("2.13.0", "3.8.0")])
def test_a_release_it_was_not_tried_with_is_named_beside_those_that_work(
    monkeypatch, torch_version, triton_version
):
    with_versions(monkeypatch, torch=torch_version, triton=triton_version)
    said = offline_gpu.problem()
    assert torch_version in said and triton_version in said
    assert "torch 2.13 with triton 3.7.1" in said


@able
@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.1+cu130"])
def test_a_build_of_a_tried_release_is_as_good_as_another(monkeypatch, version):
    with_versions(monkeypatch, torch=version, triton="3.7.1")
    assert offline_gpu.problem() is None


# -------------------------------------------------------------------------- torch.compile itself, a real GPU

THROUGH_DYNAMO = """
import sys, torch
from types import SimpleNamespace
from torch._subclasses import FakeTensorMode
from tutorial_lib import hardware, offline_gpu, offline_gpu_child as child
from torch._inductor.graph import GraphLowering

def source(fn, shapes, on):
    child._pretend(SimpleNamespace(**offline_gpu.device_properties(hardware.find(on))))
    with FakeTensorMode(), torch.no_grad():
        inputs = [torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]
        try:
            torch.compile(fn)(*inputs)
        except Exception as error:
            return next(str(e) for e in child._causes(error) if isinstance(e, child._Generated))

generate = GraphLowering.codegen
def codegen(lowering):
    code = generate(lowering)[0]
    raise child._Generated(getattr(code, "value", code))
GraphLowering.codegen = codegen
child._preload()
"""


def block(x, gain, bias, weight):
    """A normalisation, a product and a GELU, added to x: what one half of a transformer block does."""
    return x + F.gelu(F.linear(F.layer_norm(x, (FEATURES,), gain, bias), weight))


@able
def test_the_graph_that_travels_gives_the_program_that_torch_compile_makes(tmp_path):
    # A process that believes in a GPU runs torch.compile, with Dynamo in front, which program() goes around.
    shapes = [(8, 256, FEATURES), (FEATURES,), (FEATURES,), (FEATURES, FEATURES)]
    offline = offline_gpu.program(block, *(meta(*shape) for shape in shapes), on="A100")
    script = (
        THROUGH_DYNAMO
        + f"""
import torch.nn.functional as F
FEATURES = {FEATURES}
{inspect.getsource(block)}
open({str(tmp_path / "source.py")!r}, "w").write(source(block, {shapes}, "A100"))
"""
    )
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, tmp_path / "script.py"], check=True, env=environment, capture_output=True)
    real = read_source((tmp_path / "source.py").read_text(), on="A100 80GB SXM")
    assert same_launches(real, offline)


def same_launches(one, other):
    said = ["kind", "name", "operators", "loads", "stores", "reductions", "in_place", "numel", "bytes_moved"]
    sources = ([kernel.source for kernel in found.kernels] for found in (one, other))
    return one.table()[said].equals(other.table()[said]) and len({tuple(source) for source in sources}) == 1


def real_card():
    """The name of this machine's GPU when it is one that the library knows."""
    if measure.device() != "cuda":
        return None
    try:
        return hardware.find(torch.cuda.get_device_name()).name
    except hardware.UnknownHardware:
        return None


@able
@pytest.mark.skipif(real_card() is None, reason="compares with the program of a real GPU of hardware.CARDS")
@pytest.mark.parametrize("workload", ["geglu", "attention", "layer norm"])
def test_the_offline_program_is_the_real_one(workload):
    from torch._inductor.utils import run_and_get_code

    options = {"dtype": getattr(torch, measure.best_dtype("cuda")), "device": "cuda"}
    fn, shapes = {
        "geglu": (GeGLU(options["dtype"]).to_empty(device="cuda"), [(ROWS, FEATURES)]),
        "attention": (attention, [(8, 16, 1024, 64)] * 3),
        "layer norm": (torch.nn.LayerNorm(FEATURES, **options), [(ROWS, FEATURES)]),
    }[workload]
    inputs = [torch.randn(*shape, **options) for shape in shapes]
    with torch.no_grad():
        _, (source,) = run_and_get_code(torch.compile(fn), *inputs)
    offline = offline_gpu.program(fn, *inputs, on=real_card())
    assert same_launches(read_source(source, on=real_card()), offline)
