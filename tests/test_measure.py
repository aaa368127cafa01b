"""Recording, timing and calibrating on this CPU, and on a GPU that is made up where there is none."""

import contextlib
import dataclasses
import gzip
import json
import os
import re
import sys
import time
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

from tutorial_lib import hardware, measure, timeline
from tutorial_lib.attention import Memory
from tutorial_lib.trace import TraceError, from_events, read_trace

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
needs_gpu = pytest.mark.skipif(measure.device() != "cuda", reason="is about a machine with a GPU")


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
    with measure._without_chatter(said) as quiet:
        with quiet:
            os.write(2, b"USDT:2026 profiler_start\nCUPTI is busy\nSTAGE:2026 x\n")
        os.write(2, b"the step's own\n")
        with quiet:
            os.write(2, b"CUPTI is idle\n")
    assert capfd.readouterr().err == "the step's own\nCUPTI is busy\nCUPTI is idle\n"
    assert said == ["CUPTI is busy", "CUPTI is idle"]


def test_a_long_complaint_does_not_fill_a_pipe(capfd):
    said = []
    with measure._without_chatter(said) as quiet, quiet:
        os.write(2, b"x" * 200_000)  # a pipe, as a notebook has for stderr, holds 65,536 bytes
    assert len(capfd.readouterr().err) == len(said[0]) == 200_000


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
    "args": {"device": 0, "stream": 7, "correlation": 5},
}
LAUNCH = {
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "ts": 25,
    "dur": 5,
    "pid": 1,
    "tid": 1,
    "args": {"correlation": 5},
}
LOST = {**LAUNCH, "ts": 31, "args": {"correlation": 6}}  # its kernel is not in the trace
CAPTURE = {**LAUNCH, "name": "cudaStreamBeginCapture", "ts": 5, "args": {"correlation": 4}}


def test_a_gpu_run_without_gpu_events_is_an_error_with_its_causes():
    trace = from_events([STEP, OPERATOR])
    with pytest.raises(TraceError, match=r"no GPU event.*CUPTI.*nsys.*libcupti.*Kineto said: CUPTI_ERROR_15"):
        measure.checked(trace, "cuda", 1, "CUPTI_ERROR_15")
    assert measure.checked(trace, "cpu", 1) is trace


def test_a_gpu_run_with_a_kernel_passes():
    trace = from_events([STEP, OPERATOR, KERNEL])
    assert measure.checked(trace, "cuda", 1) is trace


def test_a_gpu_run_that_lost_a_kernel_is_an_error():
    with pytest.raises(TraceError, match=r"1 of the 2 kernels .* were not recorded.*CUPTI.*Record again"):
        measure.checked(from_events([STEP, OPERATOR, LAUNCH, LOST, KERNEL]), "cuda", 1)
    for whole in ([STEP, OPERATOR, LAUNCH, KERNEL], [STEP, OPERATOR, CAPTURE, LAUNCH, LOST, KERNEL]):
        assert measure._lost(from_events(whole))[0] == 0  # while a graph is captured no kernel runs


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


class OnTheCpu(TorchFunctionMode):
    """What is asked of "cuda" is made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        return function(*args, **kwargs | {"device": "cpu"} if kwargs.get("device") == "cuda" else kwargs)


class Graph:
    """A CUDA graph with nothing in it."""

    def replay(self):
        torch.ones(100).sum()


@needs_no_gpu
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_failed_cupti_leaves_no_file_and_each_step_was_synchronized(layer, tmp_path, made_up_gpu):
    with pytest.raises(TraceError, match=r"a\.json: no GPU event was recorded"):
        measure.record(layer, tmp_path / "a.json", steps=2)
    assert os.listdir(tmp_path) == []
    assert len(made_up_gpu) == 9  # after the warm-up, and twice in 2 + 2 steps: it is tried once more


@needs_no_gpu
@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize("first", [[STEP, OPERATOR], [STEP, OPERATOR, LAUNCH, LOST, KERNEL]])
def test_a_trace_without_some_kernels_is_recorded_once_more(monkeypatch, tmp_path, made_up_gpu, layer, first):
    read = [from_events(first), from_events([STEP, OPERATOR, LAUNCH, KERNEL])]
    monkeypatch.setattr(measure, "_read_back", lambda finished, target: read.pop(0))
    trace = measure.record(layer, tmp_path / "a.json", steps=1)
    assert trace.has_gpu_events and not read and os.listdir(tmp_path) == ["a.json"]


@needs_no_gpu
def test_a_gpu_is_timed_in_blocks_that_each_end_in_a_synchronize(monkeypatch, made_up_gpu):
    monkeypatch.setattr(measure, "_timer", pytest.fail)
    timing = measure.bench(lambda: time.sleep(0.001), seconds=0.1)
    assert timing.n >= 5 and timing.kind == "cuda" and timing.device == "a GPU" and timing.median_us >= 1000
    # a block is 2 ms or more, so 2 calls of 1 ms; each has a synchronize before it and one at its end
    assert timing.calls <= 2 and len(made_up_gpu) >= 2 * timing.n


@needs_no_gpu
@pytest.mark.parametrize("hip, said", [(None, "CUDA 13.0"), ("7.2", "HIP 7.2")])
def test_a_gpu_is_calibrated_like_a_cpu_but_for_its_launches(monkeypatch, made_up_gpu, hip, said):
    monkeypatch.setattr(torch.version, "cuda", None if hip else "13.0")
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    with OnTheCpu():
        found = measure.calibrate("cuda", ["float32"], seconds=0.01)
    assert (found.kind, found.sm, found.compute_capability, found.l2_bytes) == ("cuda", 108, (8, 0), 40 << 20)
    assert found.flops_per_s["float32"] > 1e7 and found.launch_us > 0 and said in found.source
    assert " of 268 MB" in found.source  # 4 times the L2 of 41.9 MB would be less


@needs_no_gpu
def test_matrices_stop_growing_where_the_memory_is_full(monkeypatch, made_up_gpu):
    def small(a, b):
        if len(a) > 1024:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "mm", small)
    with OnTheCpu():
        assert measure._gemm_rate("float32", "cuda", seconds=0.1)[1] == 1024


@needs_no_gpu
def test_tf32_is_not_claimed_where_torch_would_take_float32(monkeypatch, made_up_gpu):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    for device in ("cpu", "cuda"):
        with pytest.raises(ValueError, match="cannot multiply tfloat32"):
            measure.calibrate(device, ["tf32"])


@needs_no_gpu
def test_a_gpu_that_is_not_the_current_one_is_refused(monkeypatch, made_up_gpu):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(ValueError, match=r"cuda:1 is not the current GPU: call torch.cuda.set_device\(1\)"):
        measure.bench(lambda: None, device="cuda:1")
    assert measure._kind("cuda:0") == measure._kind("cuda") == "cuda"


@needs_no_gpu
def test_do_bench_flushes_the_l2(monkeypatch, made_up_gpu):
    asked = {}

    def do_bench(step, **options):
        asked.update(options)
        return [0.010, 0.012, 0.020]  # ms

    monkeypatch.setitem(sys.modules, "triton.testing", types.SimpleNamespace(do_bench=do_bench))
    monkeypatch.setitem(sys.modules, "triton.runtime", triton_runtime(lambda: torch.cuda))
    timing = measure.bench(lambda: None, seconds=0.2, flush_l2=True)
    assert asked == {"rep": 200.0, "return_mode": "all"}
    assert (timing.median_us, timing.n, timing.warm, timing.device) == (12.0, 3, False, "a GPU")
    assert "L2 flushed" in str(timing)


def triton_runtime(get_device_interface):
    active = types.SimpleNamespace(get_device_interface=get_device_interface)
    return types.SimpleNamespace(driver=types.SimpleNamespace(active=active))


@needs_no_gpu
def test_a_triton_that_cannot_compile_its_helper_is_reported(monkeypatch, made_up_gpu):
    def fails():
        raise RuntimeError("Failed to find C compiler\nmore lines")

    monkeypatch.setitem(sys.modules, "triton.testing", types.SimpleNamespace(do_bench=pytest.fail))
    monkeypatch.setitem(sys.modules, "triton.runtime", triton_runtime(fails))
    with pytest.raises(ValueError, match="triton, which fails: Failed to find C compiler; leave"):
        measure.bench(lambda: None, flush_l2=True)


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
        with pytest.raises(ValueError, match="seconds must be more than 0"):
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


def test_a_rate_is_the_fastest_of_the_rounds_and_the_source_says_how_far_they_lie_apart(monkeypatch):
    # 3 rounds at 100, 125 and 110 FLOP/s: the fastest is 25 % above the slowest
    rounds = iter((measure._Round({"float32": (float(rate), 8)}, (5.0, "sum of 8 B"), 1.0) for rate in (100, 125, 110)))
    monkeypatch.setattr(measure, "_round", lambda *_: next(rounds))
    monkeypatch.setattr(measure, "_streams", lambda kind: ())
    found = measure.calibrate("cpu", ["float32"])
    assert found.flops_per_s["float32"] == 125 and found.bytes_per_s == 5
    assert "3 rounds differed by up to 25%" in found.source and "sum of 8 B" in found.source


class Clock:
    """Clocks that go on by a tick each time they are read, the one of the thread only for its share of it."""

    def __init__(self, share=1.0):
        self.tick_s, self.share, self.now_s = 1e-3, share, 0.0

    def perf_counter(self):
        self.now_s += self.tick_s
        return self.now_s

    def thread_time(self):
        return self.share * self.now_s


def calibrated_by(clock, monkeypatch, ticks_s=(1e-3,) * 3):
    """What a calibration warns of whose rounds take ticks of these lengths."""
    ticks_s, round_of = iter(ticks_s), measure._round

    def timed(*arguments):
        clock.tick_s = next(ticks_s)
        return round_of(*arguments)

    stream = measure._Stream("nothing", 8, lambda: None)
    monkeypatch.setattr(measure, "_streams", lambda kind: (stream,))
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "_round", timed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        measure.calibrate("cpu", ["float32"], seconds=0.03)
    return [str(warning.message) for warning in said]


def test_a_machine_that_does_nothing_else_is_calibrated_without_a_warning(monkeypatch):
    assert calibrated_by(Clock(), monkeypatch) == []


def test_rounds_that_lie_far_apart_are_one_warning_with_its_remedy(monkeypatch):
    # the second round takes twice the time for the same work
    (said,) = calibrated_by(Clock(), monkeypatch, ticks_s=(1e-3, 2e-3, 1e-3))
    assert said.startswith("this machine was busy") and "3 rounds ran 2.00× as fast as the slowest" in said
    assert "calibrate again" in said and "processor" not in said


def test_a_thread_that_was_taken_off_its_processor_is_a_warning(monkeypatch):
    (said,) = calibrated_by(Clock(share=0.5), monkeypatch)
    # half of the time, less the tick that reading the clock takes
    (share,) = re.findall(r"had a processor for only (\d+) % of one round", said)
    assert 45 <= int(share) <= 50 and "rounds" not in said


def test_the_thread_that_waits_for_a_gpu_is_no_sign_of_a_busy_one():
    still = measure._Round({"float32": (100.0, 8)}, (5.0, "sum of 8 B"), 1.0)
    assert measure._busy([still] * 3) is None
    # at 135 and 100 FLOP/s they are 35 % apart, and 30 are allowed
    apart = dataclasses.replace(still, gemms={"float32": (135.0, 8)})
    assert "1.35× as fast as the slowest" in measure._busy([still, apart])


def test_a_busy_machine_changes_no_output_that_is_compared_and_no_page():
    root = Path(__file__).resolve().parent.parent
    for_nbval, for_make = (root / "book" / "conftest.py").read_text(), (root / "Makefile").read_text()
    ignored = re.findall(r'"PYTHONWARNINGS", "ignore:([^"]+)"', for_nbval)
    ignored += re.findall(r"export PYTHONWARNINGS := ignore:(.+)", for_make)
    assert len(ignored) == 2 and all(measure._BUSY.startswith(start) for start in ignored)


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


# --------------------------------------------------------------------------------------- a GPU that is there


@needs_gpu
def test_the_kernels_of_all_streams_end_in_their_step_without_a_warm_up(tmp_path):
    x, side = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()

    def step():
        y = x @ x
        with torch.cuda.stream(side):
            z = x + x
        return y, z

    trace = measure.record(step, tmp_path / "a.json.gz", warmup=0)
    kernels, ends_us = timeline.kernels(trace), timeline.steps(trace).set_index("step")["end_us"]
    assert kernels["stream"].nunique() == 2 and (kernels.groupby("step").size() >= 2).all()
    # The clocks of CPU and GPU may be off by some µs.
    assert (kernels["start_us"] + kernels["duration_us"] < kernels["step"].map(ends_us) + 100).all()


@needs_gpu
def test_traces_stay_whole_after_other_profiles_idle_time_and_a_graph(tmp_path):
    x = torch.randn(64, 64, device="cuda")
    measure.record(lambda: torch.ones(4) + 1, tmp_path / "cpu.json", device="cpu")
    for pause_s in (0, 0, 5):
        time.sleep(pause_s)
        trace = measure.record(lambda: x @ x, tmp_path / "gpu.json")
        found = timeline.kernels(trace).groupby("step").size()
        assert len(found) == 3 and found.nunique() == 1
        measure.calibrate(dtypes=["float32"], seconds=0.2)


@needs_gpu
def test_calibrated_rates_lie_near_the_datasheet():
    found = measure.calibrate()
    assert found.kind == "cuda" and set(found.flops_per_s) == set(measure._own_dtypes("cuda"))
    assert 0.3 < found.launch_us < 20
    try:
        card = hardware.find(found.name)
    except hardware.UnknownHardware:
        return
    assert 0.6 < found.bytes_per_s / card.bytes_per_s < 1.05
    for dtype, rate in found.flops_per_s.items():
        assert 0.4 < rate / card.rate(dtype) < 1.15, dtype


@needs_gpu
def test_calls_are_timed_with_warm_caches_and_with_a_flushed_l2():
    a, b = torch.randn(2, 1 << 20, device="cuda")  # 4 MB each fit into any L2
    warm = measure.bench(lambda: a.copy_(b), seconds=0.2)
    assert warm.n >= 5 and warm.q1_us <= warm.median_us <= warm.q3_us
    pytest.importorskip("triton")
    assert measure.bench(lambda: a.copy_(b), seconds=0.2, flush_l2=True).n >= 5


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
        ("12.8", False, "no GPU that it can use: The NVIDIA driver is too old (found version 9)"),
        ("12.8", True, "a first kernel failed: The NVIDIA driver"),
    ],
)
@needs_no_gpu
def test_why_a_gpu_cannot_be_used_is_told_apart(monkeypatch, cuda, available, said):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)

    def fails(*size, device):
        raise RuntimeError("The NVIDIA driver is too old (found version 9). Please update\nmore lines")

    monkeypatch.setattr(torch, "ones", fails)
    assert said in measure.cuda_problem() and not measure.cuda_problem().endswith("lines")


@needs_no_gpu
@pytest.mark.filterwarnings("error")
def test_a_driver_that_is_too_old_is_said_once_and_not_warned_of(monkeypatch):
    def warns():
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", warns)
    assert measure.cuda_problem().startswith("torch finds no GPU that it can use: ")


def test_a_cudnn_that_does_not_fit_is_left_out(monkeypatch):
    def mismatch():
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", mismatch)
    assert measure.environment()["versions"]["cudnn"] is None


def test_the_last_cache_is_the_one_of_the_highest_level(tmp_path):
    for index, (level, size) in enumerate([(1, "48K"), (1, "32K"), (2, "2M"), (3, "266240K")]):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    assert measure._last_cache_bytes(tmp_path) == 266240 * 1024
    assert measure._last_cache_bytes(tmp_path / "not there") is None


def test_one_dtype_may_be_named_without_a_list():
    assert list(measure.calibrate("cpu", "float32", seconds=0.1).flops_per_s) == ["float32"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_budget_that_would_never_end_is_refused(seconds):
    with pytest.raises(ValueError, match="seconds must be more than 0"):
        measure.bench(lambda: None, device="cpu", seconds=seconds)


def test_a_trace_is_not_written_over_a_folder(layer, tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ValueError, match="is a folder; name the file"):
        measure.record(layer, tmp_path / "a.json", device="cpu")
    with pytest.raises(ValueError, match="whole numbers, got 1.5"):
        measure.record(layer, tmp_path / "b.json", steps=1.5, device="cpu")


# ---------------------------------------------------------------------------------------------------- memory


def test_memory_freed_by_a_call_and_not_made_by_it_does_not_count():
    held = [torch.zeros(1000)]

    def step():
        held.clear()
        return torch.zeros(10)

    assert measure.measured_memory(step) == Memory(40, 40)
    assert measure.measured_memory(lambda: None) == Memory(0, 0)


def test_a_gpu_is_asked_for_the_bytes_requested_above_what_was_there(monkeypatch):
    stats = iter([(1000, 1100, 5000), (1300, 1700, 5900)])

    def memory_stats():
        current, peak, allocated = next(stats)
        name = "requested_bytes.all"
        return {f"{name}.current": current, f"{name}.peak": peak, f"{name}.allocated": allocated}

    calls = []
    monkeypatch.setattr(measure, "_kind", lambda asked: "cuda")
    monkeypatch.setattr(torch.cuda, "memory_stats", memory_stats)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    found = measure.measured_memory(lambda: calls.append("call"), "cuda")
    assert found == Memory(700, 900)
    assert calls == ["call", "synchronize", "reset_peak_memory_stats", "call"]


def test_measuring_memory_is_silent_and_wants_the_profiler_for_itself(capfd):
    measure.peak_bytes(lambda: torch.zeros(4))
    assert capfd.readouterr().err == ""
    with torch.profiler.profile(), pytest.raises(RuntimeError, match="another profiler is active"):
        measure.peak_bytes(lambda: torch.zeros(4))
