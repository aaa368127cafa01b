"""Recording, timing and calibrating on this CPU, and on a GPU that is made up where there is none."""

import gzip
import json
import os
import sys
import time
import types

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tutorial_lib import measure, timeline
from tutorial_lib.trace import TraceError, from_events, read_trace

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")


@pytest.fixture(scope="module")
def layer():
    module, x = torch.nn.Linear(32, 64), torch.randn(16, 32)
    return lambda: module(x)


# ----------------------------------------------------------------------------------------------------- record


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_what_is_recorded_is_read_back(layer, tmp_path, name):
    trace = measure.record(layer, tmp_path / name, steps=2, device="cpu")
    again = read_trace(tmp_path / name)
    assert again.events.equals(trace.events) and trace.path == str(tmp_path / name)
    assert len(timeline.steps(again)) == 2
    linear = timeline.operators(again).query("name == 'aten::linear'")
    # x [16, 32], weight [64, 32], bias [64]; one call a step
    assert linear["shapes"].tolist() == [((16, 32), (64, 32), (64,))] * 2
    assert again.device == measure.environment()["cpu"]["name"]
    assert again.versions["torch"] == torch.__version__ and again.versions["tutorial_lib"]


def test_the_file_says_where_it_is_from_and_not_on_which_host(layer, tmp_path):
    measure.record(layer, tmp_path / "a.json", label="linear", device="cpu")
    text = (tmp_path / "a.json").read_text()
    assert "host_name" not in text and "traceName" not in text and str(tmp_path) not in text
    stamp = json.loads(text)["tutorial_lib"]
    assert (stamp["schema"], stamp["steps"], stamp["label"], stamp["device"]["kind"]) == (
        1,
        3,
        "linear",
        "cpu",
    )
    assert stamp["recorded"].endswith("+00:00")


def test_a_gz_name_gives_a_gzip_file_and_nothing_else_is_left_behind(layer, tmp_path):
    measure.record(layer, tmp_path / "a.json.gz", device="cpu")
    assert json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes()))["traceEvents"]
    assert os.listdir(tmp_path) == ["a.json.gz"]


def test_the_step_runs_before_the_profiler_does(tmp_path):
    calls = []
    measure.record(lambda: calls.append(torch.ones(1)), tmp_path / "a.json", steps=2, warmup=4, device="cpu")
    # 4 without the profiler, 1 it waits through, 1 it warms up, 2 recorded
    assert len(calls) == 8


def test_a_label_is_a_range_around_each_step(layer, tmp_path):
    events = measure.record(layer, tmp_path / "a.json", steps=2, label="forward", device="cpu").events
    assert events.query("name == 'forward'")["kind"].tolist() == ["annotation"] * 2


def test_shapes_stacks_and_memory_are_recorded_when_asked_for(layer, tmp_path):
    plain = measure.record(layer, tmp_path / "a.json", shapes=False, device="cpu").events
    full = measure.record(layer, tmp_path / "b.json", stacks=True, memory=True, device="cpu").events
    assert plain["shapes"].dropna().map(len).sum() == 0 and not (plain["kind"] == "python").any()
    assert (full["kind"] == "python").any() and full["shapes"].notna().any()


def test_what_a_step_raises_comes_through_and_nothing_is_lost(layer, tmp_path):
    path = tmp_path / "a.json"
    before = measure.record(layer, path, device="cpu")
    calls = iter(range(100))

    def step():
        if next(calls) == 4:  # inside the profiler
            raise KeyError("the step's own")

    with pytest.raises(KeyError, match="the step's own"):
        measure.record(step, path, steps=2, warmup=2, device="cpu")
    assert read_trace(path).events.equals(before.events) and os.listdir(tmp_path) == ["a.json"]
    assert not torch.autograd._profiler_enabled()


def test_a_second_profiler_is_refused_and_the_first_goes_on(layer, tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as outer:
        with pytest.raises(RuntimeError, match="another profiler is active"):
            measure.record(layer, tmp_path / "a.json", device="cpu")
        layer()
    assert any(event.key == "aten::linear" for event in outer.key_averages())
    assert len(timeline.steps(measure.record(layer, tmp_path / "a.json", device="cpu"))) == 3


def test_a_missing_folder_is_named_before_anything_runs(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        measure.record(pytest.fail, tmp_path / "nowhere" / "a.json", device="cpu")


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.pt.trace"])
def test_a_name_that_is_no_trace_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="json"):
        measure.record(pytest.fail, tmp_path / name, device="cpu")


@pytest.mark.parametrize("bad", [{"steps": 0}, {"warmup": -1}])
def test_a_count_that_records_nothing_is_refused(tmp_path, bad):
    with pytest.raises(ValueError, match="steps must be at least 1"):
        measure.record(pytest.fail, tmp_path / "a.json", device="cpu", **bad)


def test_a_step_that_does_not_use_torch_is_reported(tmp_path):
    with pytest.raises(TraceError, match=r"a\.json"):
        measure.record(lambda: None, tmp_path / "a.json", device="cpu")
    assert os.listdir(tmp_path) == []


def test_only_kinetos_start_and_stop_lines_are_held_back(capfd):
    said = []
    with measure._without_chatter(said):
        os.write(2, b"USDT:2026 profiler_start\nCUPTI is busy\nSTAGE:2026 x\n")
    assert capfd.readouterr().err == "CUPTI is busy\n" and said == ["CUPTI is busy"]


def test_recording_is_quiet(layer, tmp_path, capfd):
    measure.record(layer, tmp_path / "a.json", device="cpu")
    assert capfd.readouterr() == ("", "")


def test_a_raw_trace_with_broken_text_is_still_finished(tmp_path):
    raw, done = tmp_path / "raw.json", tmp_path / "done.json"
    raw.write_text('{"host_name": "h", "traceEvents": [{"name": "a\x01", "x": NaN}], "traceName": "/tmp/x"}')
    measure._finish(raw, done, {"schema": 1})
    assert json.loads(done.read_text()) == {
        "traceEvents": [{"name": "a\x01", "x": None}],
        "tutorial_lib": {"schema": 1},
    }


# -------------------------------------------------------------------------------------- a GPU that is made up


STEP = {"cat": "user_annotation", "name": "ProfilerStep#2", "ts": 0, "dur": 100, "pid": 1, "tid": 1}
OPERATOR = {"cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 20, "pid": 1, "tid": 1}
KERNEL = {
    "cat": "kernel",
    "name": "gemm",
    "ts": 40,
    "dur": 30,
    "pid": 0,
    "tid": 7,
    "args": {"device": 0, "stream": 7},
}


def test_a_gpu_run_without_gpu_events_is_an_error_with_its_causes():
    trace = from_events([STEP, OPERATOR])
    with pytest.raises(TraceError, match=r"no GPU event.*CUPTI.*nsys.*libcupti.*Kineto said: CUPTI_ERROR_15"):
        measure.checked(trace, "cuda", 1, "CUPTI_ERROR_15")
    assert measure.checked(trace, "cpu", 1) is trace


def test_a_gpu_run_with_a_kernel_passes():
    trace = from_events([STEP, OPERATOR, KERNEL])
    assert measure.checked(trace, "cuda", 1) is trace


def test_a_trace_with_too_few_steps_is_an_error():
    with pytest.raises(TraceError, match="of 3 profiled steps it has 1"):
        measure.checked(from_events([STEP, OPERATOR]), "cpu", 3)


@pytest.fixture
def made_up_gpu(monkeypatch):
    """A machine that says it has a GPU, and a torch that cannot see it: what a failed CUPTI looks like."""
    synchronized = []
    gpu = {
        "name": "a GPU",
        "compute_capability": [8, 0],
        "sm": 108,
        "memory_bytes": 8 << 30,
        "l2_bytes": 40 << 20,
    }
    monkeypatch.setattr(measure, "cuda_problem", lambda: None)
    monkeypatch.setattr(measure, "_gpu", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronized.append(1))
    return synchronized


@needs_no_gpu
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_failed_cupti_leaves_no_file_and_each_step_was_synchronized(layer, tmp_path, made_up_gpu):
    with pytest.raises(TraceError, match=r"a\.json: no GPU event was recorded"):
        measure.record(layer, tmp_path / "a.json", steps=2)
    assert os.listdir(tmp_path) == []
    assert len(made_up_gpu) == 5  # after the warm-up, and in 2 + 2 steps


@needs_no_gpu
def test_do_bench_flushes_the_l2(monkeypatch, made_up_gpu):
    asked = {}

    def do_bench(step, **options):
        asked.update(options)
        return [0.010, 0.012, 0.020]  # ms

    monkeypatch.setitem(sys.modules, "triton.testing", types.SimpleNamespace(do_bench=do_bench))
    timing = measure.bench(lambda: None, seconds=0.2, flush_l2=True)
    assert asked == {"rep": 200.0, "return_mode": "all"}
    assert (timing.median_us, timing.n, timing.warm, timing.device) == (12.0, 3, False, "a GPU")
    assert "L2 flushed" in str(timing)


# ------------------------------------------------------------------------------------------------------ bench


def test_a_timing_has_a_median_between_its_quartiles():
    timing = measure.bench(lambda: time.sleep(0.002), device="cpu", seconds=0.05)
    assert 2000 <= timing.q1_us <= timing.median_us <= timing.q3_us
    assert (
        timing.n == len(timing.samples_us) >= 5 and timing.warm and timing.threads == torch.get_num_threads()
    )
    assert "warm caches" in str(timing) and "ms" in str(timing)


def test_a_step_longer_than_the_time_asked_for_still_has_a_spread():
    assert measure.bench(lambda: time.sleep(0.02), device="cpu", seconds=0.001).n >= 5


def test_quartiles_are_those_of_the_samples():
    # of 1, 2, 3, 4, 5 the quartiles are 2 and 4, the median 3
    timing = measure._timing([5.0, 1.0, 4.0, 2.0, 3.0], "cpu", warm=True, calls=1, method="by hand")
    assert (timing.q1_us, timing.median_us, timing.q3_us) == (2, 3, 4)


def test_bad_times_and_a_flush_without_a_gpu_are_refused():
    for refused in (
        lambda: measure.bench(lambda: None, seconds=0),
        lambda: measure.calibrate("cpu", seconds=0),
    ):
        with pytest.raises(ValueError, match="seconds must be positive"):
            refused()
    with pytest.raises(ValueError, match="flush_l2 is for a GPU"):
        measure.bench(lambda: None, device="cpu", flush_l2=True)


# -------------------------------------------------------------------------------------------------- calibrate


def test_calibration_measures_every_rate_and_says_how():
    hardware = measure.calibrate("cpu", seconds=0.3)
    assert set(hardware.flops_per_s) == {"float32", "bfloat16", "float64"} and hardware.measured
    # the slowest CPU that runs torch still does 10 MFLOP/s and 10 MB/s, and dispatches in under a second
    assert min(hardware.flops_per_s.values()) > 1e7 and hardware.bytes_per_s > 1e7
    assert 0 < hardware.launch_us < 1e6
    assert (
        "calibrate()" in hardware.source
        and torch.__version__ in hardware.source
        and "n = " in hardware.source
    )


def test_only_the_dtypes_asked_for_are_calibrated():
    assert list(measure.calibrate("cpu", ["fp32"], seconds=0.1).flops_per_s) == ["float32"]


@pytest.mark.parametrize("dtype, said", [("bool", "cannot multiply bool"), ("floaty", "unknown dtype")])
def test_a_dtype_without_products_is_an_error(dtype, said):
    with pytest.raises(ValueError, match=said):
        measure.calibrate("cpu", [dtype], seconds=0.1)


def test_the_float32_setting_is_put_back_even_after_a_failure():
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    with pytest.raises(KeyError), measure._float32_products("tf32"):
        assert settings.fp32_precision == "tf32"
        raise KeyError
    assert settings.fp32_precision == before


def test_a_gpu_is_asked_for_the_dtypes_it_has(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert measure._own_dtypes("cuda") == ("float32", "float16", "float64")  # a T4
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert measure._own_dtypes("cuda") == ("float32", "float16", "bfloat16", "tfloat32", "float64")


# ----------------------------------------------------------------------------------------------- this machine


def test_the_best_dtype_is_one_the_device_really_has(monkeypatch):
    assert measure.best_dtype("cpu") == "float32"
    # a T4 says yes to bfloat16 because emulation counts
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert measure.best_dtype("cuda") == "float16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert measure.best_dtype("cuda:0") == "bfloat16"


def test_the_environment_can_be_written_as_json_and_does_not_name_the_host():
    environment = measure.environment()
    assert json.loads(json.dumps(environment)) == environment
    assert environment["versions"]["torch"] == torch.__version__ and environment["cpu"]["name"]
    assert (
        environment["versions"]["liger_kernel"] is None
        or environment["versions"]["liger_kernel"][0].isdigit()
    )
    assert "host" not in json.dumps(list(environment))


def test_a_device_that_cannot_be_used_is_an_error_with_the_reason(monkeypatch):
    monkeypatch.setattr(measure, "cuda_problem", lambda: "the driver is too old")
    assert measure.device() == "cpu"
    with pytest.raises(ValueError, match='driver is too old; pass device="cpu"'):
        measure.bench(lambda: None, device="cuda")
    with pytest.raises(ValueError, match="mps"):
        measure.bench(lambda: None, device="mps")


@pytest.mark.parametrize(
    "cuda, available, said",
    [
        (None, False, "built without CUDA"),
        ("12.8", False, "no GPU, or no driver"),
        ("12.8", True, "a first kernel failed"),
    ],
)
@needs_no_gpu
def test_why_a_gpu_cannot_be_used_is_told_apart(monkeypatch, cuda, available, said):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)

    def fails(*size, device):
        raise RuntimeError("CUDA error: no kernel image is available\nmore lines")

    monkeypatch.setattr(torch, "ones", fails)
    assert said in measure.cuda_problem() and "\n" not in measure.cuda_problem()


def test_the_last_cache_is_the_one_of_the_highest_level(tmp_path):
    for index, (level, size) in enumerate([(1, "48K"), (1, "32K"), (2, "2M"), (3, "266240K")]):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    assert measure._last_cache_bytes(tmp_path) == 266240 * 1024
    assert measure._last_cache_bytes(tmp_path / "not there") is None
