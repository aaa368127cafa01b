"""The only module that runs anything: record a trace, time a call, add up its memory, measure this machine.

`record` gives counts and order, `bench` gives time (the profiler is off), `measured_memory` bytes without a
clock, `draw` energy and clocks where the machine tells them, `calibrate` the machine's rates. All run on the
GPU where one works and on the CPU otherwise, with torch 2.11 to 2.15. Several GPUs and other accelerators are
not covered.

Kineto, the library under torch.profiler, writes start and stop lines to the process's stderr. `record` holds
those lines back; `KINETO_LOG_LEVEL=99` in the environment does the same for any other profile, if it is set
before torch is imported.
"""

from __future__ import annotations

import gc
import gzip
import importlib.metadata
import json
import logging
import os
import platform
import statistics
import subprocess
import tempfile
import time
import timeit
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from tutorial_lib import __version__, timeline, units
from tutorial_lib.attention import Memory
from tutorial_lib.hardware import Hardware
from tutorial_lib.trace import Trace, TraceError, read_trace

Step = Callable[[], object]


# ----------------------------------------------------------------------------------------------- this machine


def device() -> str:
    """ "cuda" when a GPU is there and runs a kernel of this torch, "cpu" otherwise."""
    return "cuda" if cuda_problem() is None else "cpu"


def cuda_problem() -> str | None:
    """Why no CUDA kernel can run here, in one line; None when one just did."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch was built without CUDA"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns, once a process, of what the error below says each time
        found = torch.cuda.is_available()
    try:
        torch.ones(1, device="cuda").add(1).item()
    except _NO_CUDA as error:
        said = (str(error).splitlines() or [type(error).__name__])[0].partition(". Please")[0]
        lacks = "a first kernel failed" if found else "torch finds no GPU that it can use"
        return f"{lacks}: {said}"
    return None


# No driver or one that is too old, a card that is busy or that this build has no kernels for, a broken build.
_NO_CUDA = (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError)


def best_dtype(device: str) -> str:
    """The dtype to use there: bfloat16 on a GPU that really has it, else float16; float32 on a CPU.

    `is_bf16_supported()` says True on a T4 because it counts emulation, so that is left out.
    """
    if torch.device(device).type != "cuda":
        return "float32"
    return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"


def environment() -> dict[str, object]:
    """Versions, processors, threads and math libraries of this machine, and the date; no host name."""
    return {
        "date": _now().date().isoformat(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "gpu": _gpu() if device() == "cuda" else None,
        "versions": _versions(),
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available(),
    }


def _now() -> datetime:
    return datetime.now(UTC)


def _versions() -> dict[str, str | None]:
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": _cudnn(),
        "driver": _driver(),
        "python": platform.python_version(),
        "triton": _installed("triton"),
        "liger_kernel": _installed("liger-kernel"),
        "tutorial_lib": __version__,
    }


def _cudnn() -> str | None:
    try:
        version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    except RuntimeError:  # another cuDNN is first in LD_LIBRARY_PATH
        return None
    return None if version is None else str(version)


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """The version of NVIDIA's kernel driver; torch itself knows only the CUDA version that it supports."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
        return next((word for word in first.split() if word[0].isdigit() and "." in word), None)
    except (OSError, IndexError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an older distribution of this name says that it is deprecated
            import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else version
    except Exception:  # not installed, no driver, or a driver that speaks another version
        return None


def _cpu() -> dict[str, object]:
    return {
        "name": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def _gpu() -> dict[str, object]:
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": found.name,
        "compute_capability": [found.major, found.minor] if torch.version.hip is None else None,
        "sm": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "l2_bytes": getattr(found, "L2_cache_size", None),
    }


def _kind(asked: str | torch.device | None) -> str:
    """The kind of device asked for, or the one there is; ValueError when it cannot be used."""
    if asked is None:
        return device()
    kind, index = torch.device(asked).type, torch.device(asked).index
    if kind not in ("cuda", "cpu"):
        raise ValueError(f'device is "cuda" or "cpu", got {asked!r}')
    if kind == "cuda" and (problem := cuda_problem()):
        raise ValueError(f'device "cuda" cannot be used: {problem}; pass device="cpu"')
    if kind == "cuda" and index is not None and index != torch.cuda.current_device():
        raise ValueError(f"{asked} is not the current GPU: call torch.cuda.set_device({index}) before")
    return kind


def _synchronize(kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


# ----------------------------------------------------------------------------------------------------- record


def record(
    step: Step,
    path: str | os.PathLike[str],
    *,
    steps: int = 3,
    warmup: int = 3,
    label: str | None = None,
    shapes: bool = True,
    stacks: bool = False,
    memory: bool = False,
    device: str | None = None,
) -> Trace:
    """Profile `steps` calls of `step()` into one trace at `path` (.json or .json.gz), and read it back.

    Before them come `warmup` calls without the profiler, then one that it waits through and one that warms it
    up. On a GPU each step ends with a synchronize of all streams, so that its kernels lie inside it, and a
    trace that lacks kernels is recorded once more. `label` names a range around each call. Under
    "tutorial_lib" the file says where and with what it was recorded; the host's name is taken out, but
    `stacks` puts source paths in. A failure leaves what was at `path` as it was.

    `step` must not open a profiler of its own: inside torch that ends the process. Raises ValueError for bad
    arguments, RuntimeError when another profiler is active, OSError when the folder
    is missing, TraceError when the trace lacks steps or, also the second time, kernels. What `step()` raises
    comes through.
    """
    target, kind = _target(path), _kind(device)
    if not isinstance(steps, int) or not isinstance(warmup, int):
        raise ValueError(f"steps and warmup are whole numbers, got {steps!r} and {warmup!r}")
    if target.is_dir():
        raise ValueError(f"{target}: is a folder; name the file to write")
    if steps < 1 or warmup < 0:
        raise ValueError(f"steps must be at least 1 and warmup at least 0, got {steps} and {warmup}")
    _demand_no_profiler()
    for _ in range(warmup):
        step()
    _synchronize(kind)
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=target.parent) as folder:
        raw, finished = Path(folder, "raw.json"), Path(folder, target.name)
        options = {"record_shapes": shapes, "with_stack": stacks, "profile_memory": memory}
        # CUPTI loses kernels while it still shuts an earlier profile down, and after the GPU was idle.
        for _ in range(2 if kind == "cuda" else 1):
            said = _profile(step, raw, steps=steps, label=label, kind=kind, options=options)
            _finish(raw, finished, _stamp(kind, steps, label))
            trace = _read_back(finished, target)
            if trace.has_gpu_events and not _lost(trace)[0]:
                break
        trace = checked(trace, kind, steps, said)
        os.replace(finished, target)
    return trace


def _demand_no_profiler() -> None:
    if torch.autograd._profiler_enabled():
        raise RuntimeError("another profiler is active, and Kineto serves one at a time: leave that first")


def _target(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if not target.name.endswith((".json", ".json.gz")):
        raise ValueError(f"{target}: a trace is written as .json or .json.gz")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: the folder {target.parent} does not exist; make it first")
    return target


def _profile(step: Step, raw: Path, *, steps: int, label: str | None, kind: str, options: dict) -> str:
    """Run the schedule, export once, and return what Kineto had to say."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if kind == "cuda" else [])
    # CUPTI shuts an earlier profile down in the first CUDA call after it: that is to be in the waited step.
    plan = schedule(wait=1, warmup=1, active=steps, repeat=1)
    profiler = profile(activities=activities, schedule=plan, **options)
    said: list[str] = []
    with _without_chatter(said) as quiet:
        with quiet:
            profiler.start()
        try:
            for _ in range(steps + 2):
                with record_function(label) if label else nullcontext():
                    step()
                _synchronize(kind)
                with quiet:
                    profiler.step()
        finally:
            with quiet:
                profiler.stop()
    profiler.export_chrome_trace(str(raw))
    return " ".join(said)


@contextmanager
def _without_chatter(said: list[str]) -> Iterator[AbstractContextManager]:
    """A context that holds stderr back; at the end it is passed on, and added to `said`, without Kineto's
    start and stop lines."""
    try:
        stderr = os.dup(2)
    except OSError:  # closed
        yield nullcontext()
        return
    with tempfile.TemporaryFile() as held:
        try:
            yield _Diverted(stderr, held.fileno())
        finally:
            os.close(stderr)
            held.seek(0)
            lines = [line for line in held if not line.startswith((b"USDT:", b"STAGE:"))]
            said.extend(line.decode(errors="replace").strip() for line in lines)
            with suppress(OSError), open(2, "wb", closefd=False) as stderr_again:
                stderr_again.write(b"".join(lines))


@dataclass(frozen=True)
class _Diverted(AbstractContextManager):
    """File descriptor 2 leads to `held`; made quick, since it is entered and left inside the steps."""

    stderr: int
    held: int

    def __enter__(self) -> None:
        os.dup2(self.held, 2)

    def __exit__(self, *raised: object) -> None:
        os.dup2(self.stderr, 2)


def _stamp(kind: str, steps: int, label: str | None) -> dict[str, object]:
    cpu = _cpu()
    return {
        "schema": 1,
        "recorded": _now().isoformat(timespec="seconds"),
        "device": {"kind": kind, **(_gpu() if kind == "cuda" else cpu)},
        "cpu": cpu,
        "versions": _versions(),
        "steps": steps,
        "label": label,
    }


def _finish(raw: Path, finished: Path, stamp: dict[str, object]) -> None:
    """Take the host's name and the temporary path out, put the stamp in, compress if the name says so."""
    text = raw.read_bytes()
    try:
        content = msgspec.json.decode(text, type=dict[str, msgspec.Raw])  # events stay as they were written
    except msgspec.DecodeError:  # control characters in a name, an unquoted NaN
        content = json.loads(text.decode(errors="replace"), strict=False)
    for key in ("host_name", "traceName"):
        content.pop(key, None)
    encoded = msgspec.json.encode({**content, "tutorial_lib": stamp})
    finished.write_bytes(gzip.compress(encoded, mtime=0) if finished.suffix == ".gz" else encoded)


def _read_back(finished: Path, target: Path) -> Trace:
    try:
        return replace(read_trace(finished), path=str(target))
    except TraceError as error:  # name the file the caller knows
        raise TraceError(str(error).replace(str(finished), str(target))) from None


def checked(trace: Trace, kind: str, steps: int, said: str = "") -> Trace:
    """The trace, if it holds what was profiled; TraceError if something is missing."""
    found = len(timeline.steps(trace))
    if found != steps:
        raise TraceError(f"{trace.path}: of {steps} profiled steps it has {found}; record it again")
    if kind == "cuda" and not trace.has_gpu_events:
        also = f" Kineto said: {said[:300]}" if said else ""
        raise TraceError(
            f"{trace.path}: no GPU event was recorded. If the step runs nothing on the GPU, pass"
            ' device="cpu". Else CUPTI failed: another tool holds it (nsys, ncu, DCGM: stop it), this user'
            " may not profile (container, or driver setting NVreg_RestrictProfilingToAdminUsers=1), or"
            f" another CUDA's libcupti is first in LD_LIBRARY_PATH.{also}"
        )
    if kind == "cuda" and (lost := _lost(trace))[0]:
        raise TraceError(
            f"{trace.path}: {lost[0]} of the {lost[1]} kernels that its steps launched were not recorded;"
            " CUPTI of CUDA 12.6 to 13.0 loses the first ones when the GPU was idle (pytorch issue 192021)."
            " Record again, in a new process if that does not help."
        )
    if (trace.events["kind"] == "operator").sum() == 0:
        raise TraceError(f"{trace.path}: no operator was recorded; does the step call torch at all?")
    return trace


def _lost(trace: Trace) -> tuple[int, int]:
    """Of the kernels that the steps launched the number that is missing, and how many there are."""
    calls = timeline.launches(trace)
    calls = calls[calls["step"].notna() & calls["name"].str.match(r"(cuda|cu)Launch(?!Host)")]
    capturing = trace.events["name"].str.contains("StreamBeginCapture").any()  # into a graph; nothing runs
    return 0 if capturing else int((calls["work_items"] == 0).sum()), len(calls)


# ------------------------------------------------------------------------------------------------------ bench


@dataclass(frozen=True)
class Timing:
    """How long one call takes, in µs: quartiles of `n` samples, each the mean of `calls` calls in a row.

    `warm`: caches held what the call before left there; otherwise the GPU's L2 was flushed before each call.
    """

    median_us: float
    q1_us: float
    q3_us: float
    n: int
    warm: bool
    device: str
    kind: str
    threads: int
    calls: int
    method: str
    samples_us: tuple[float, ...] = ()

    def __str__(self) -> str:
        caches = "warm caches" if self.warm else "L2 flushed"
        threads = f", {self.threads} thread{'s' * (self.threads != 1)}" if self.kind == "cpu" else ""
        calls = "one call" if self.calls == 1 else f"the mean of {self.calls} calls"
        return (
            f"{units.duration(self.median_us)} (half of {self.n} samples within"
            f" {units.band(self.q1_us, self.q3_us)}, each {calls}; {caches}; {self.device}{threads})"
        )


def bench(step: Step, *, device: str | None = None, seconds: float = 0.5, flush_l2: bool = False) -> Timing:
    """Time `step()` with the profiler off, for about `seconds`.

    As it is, calls follow each other with one synchronize at the end of a block: warm caches, and on a GPU
    launches that overlap, so that a step whose kernels are shorter than their launches is timed at the rate
    at which the CPU launches. With `flush_l2`, a GPU only, the L2 is overwritten before each call and the
    call alone is timed by the GPU (triton's do_bench). Raises ValueError when that is not to be had.
    """
    if not 0 < seconds < 3600:
        raise ValueError(f"seconds must be more than 0 and less than an hour, got {seconds}")
    kind = _kind(device)
    if flush_l2:
        samples_us = _flushed(step, kind, seconds)
        return _timing(samples_us, kind, warm=False, calls=1, method="triton.testing.do_bench")
    samples_s, calls, method = (_on_gpu if kind == "cuda" else _on_cpu)(step, seconds)
    return _timing([1e6 * s for s in samples_s], kind, warm=True, calls=calls, method=method)


def _timer(**options: object):
    """A torch.utils.benchmark.Timer. Importing it looks for a CUDA toolkit, and logs one that no GPU goes with."""
    log = logging.getLogger("torch.utils.cpp_extension")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        from torch.utils.benchmark import Timer
    finally:
        log.setLevel(level)
    return Timer(**options)


def _on_cpu(step: Step, seconds: float) -> tuple[list[float], int, str]:
    timer = _timer(
        stmt="step()", timer=timeit.default_timer, globals={"step": step}, num_threads=torch.get_num_threads()
    )
    measured = timer.blocked_autorange(min_run_time=seconds)
    samples_s, calls = list(measured.raw_times), measured.number_per_run
    while len(samples_s) < 5:  # one sample has no spread
        samples_s.append(timer.timeit(calls).raw_times[0])
    return [s / calls for s in samples_s], calls, "torch.utils.benchmark"


def _on_gpu(step: Step, seconds: float) -> tuple[list[float], int, str]:
    """Blocks of a fiftieth of the time: next to one, a synchronize of some 10 µs is small.

    Timer would make them 10 000 times as long as its synchronize: a few samples in seconds. The first ones
    are left out, since an idle GPU takes a while to raise its clock.
    """
    samples_s, calls = _blocks(step, "cuda", seconds, block_s=seconds / 50, least=6)
    return samples_s[max(1, len(samples_s) // 5) :], calls, "blocks of calls"


def _flushed(step: Step, kind: str, seconds: float) -> list[float]:
    if kind != "cuda":
        raise ValueError("flush_l2 is for a GPU; on a CPU make the data larger than its caches instead")
    try:
        from triton.runtime import driver
        from triton.testing import do_bench

        driver.active.get_device_interface()  # triton up to 3.6 compiles a helper in C here
    except ImportError:
        raise ValueError("flush_l2 needs triton, which is not installed; leave flush_l2 out") from None
    except Exception as error:  # no compiler or no headers: triton has no error of its own for that
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"flush_l2 needs triton, which fails: {reason}; leave flush_l2 out") from error
    return [1e3 * ms for ms in do_bench(step, rep=1e3 * seconds, return_mode="all")]


def _timing(samples_us: list[float], kind: str, **facts) -> Timing:
    spread = samples_us if len(samples_us) > 1 else samples_us * 2
    q1, median, q3 = statistics.quantiles(spread, n=4, method="inclusive")
    return Timing(
        median,
        q1,
        q3,
        n=len(samples_us),
        device=_gpu()["name"] if kind == "cuda" else _cpu_name(),
        kind=kind,
        threads=torch.get_num_threads(),
        samples_us=tuple(samples_us),
        **facts,
    )


# ----------------------------------------------------------------------------------------------------- memory


def peak_bytes(call: Callable[[], object], device: str = "cpu") -> int:
    """The most that one call holds at a time beyond what was there before it, its result included."""
    return measured_memory(call, device).peak_bytes


def measured_memory(call: Callable[[], object], device: str = "cpu") -> Memory:
    """What one call allocates on this device, from torch's own allocator: exact, and no clock is read.

    On a CPU the profiler's memory records are added up, on a GPU the allocator's counters of requested bytes
    are read, which it does not round up. There the call runs once before: libraries keep a workspace from
    their first call. Raises RuntimeError when a profiler is active.
    """
    gc.collect()
    if _kind(device) == "cuda":
        return _memory_on_gpu(call)
    _demand_no_profiler()
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _without_chatter([]) as quiet:
        with quiet:
            profiler.start()
        try:
            kept = call()  # held until the records end
        finally:
            with quiet:
                profiler.stop()
        del kept
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "memory.json")
        profiler.export_chrome_trace(str(file))
        events = msgspec.json.decode(file.read_bytes())["traceEvents"]
    # A free is negative. One of memory that was there before the records began is not among them.
    records = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    sizes = [e["args"]["Bytes"] for e in records]
    return Memory(max(accumulate(sizes), default=0), sum(size for size in sizes if size > 0))


def _memory_on_gpu(call: Callable[[], object]) -> Memory:
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    kept = call()
    after = torch.cuda.memory_stats()
    del kept
    name = "requested_bytes.all"
    return Memory(
        after[f"{name}.peak"] - before[f"{name}.current"],
        after[f"{name}.allocated"] - before[f"{name}.allocated"],
    )


# ------------------------------------------------------------------------------------------------------- draw


@dataclass(frozen=True)
class Draw:
    """What the processor drew and how it clocked while one call was repeated; None is what it does not say.

    `energy_j` is for one call, idle power and, on a CPU, everybody else's work included; `power_w` is the
    mean. Clocks and temperature are medians of readings taken while work was queued. `missing` says why
    something is None.
    """

    energy_j: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    calls: int = 0
    source: str | None = None
    missing: str | None = None


def draw(step: Step, *, device: str | None = None, seconds: float = 1.0) -> Draw:
    """Repeat `step()` for about `seconds` and read energy, power and clocks: NVML or nvidia-smi, or RAPL.

    NVML's counter of energy moves every 20 to 100 ms, so less than a second is coarse. A machine that can be
    asked nothing runs nothing.
    """
    if not 0 < seconds < 3600:
        raise ValueError(f"seconds must be more than 0 and less than an hour, got {seconds}")
    kind = _kind(device)
    meter, missing = _meter(kind)
    if meter is None:
        return Draw(missing=missing)
    readings, calls, before_j, start = [], 0, meter.energy_j(), time.perf_counter()
    block_s, block = seconds / 10, 1
    while (passed_s := time.perf_counter() - start) < seconds:
        for _ in range(block):
            step()
        readings.append(meter.reading())  # the calls above are still in the GPU's queue
        _synchronize(kind)
        calls += block
        block = max(1, int(block_s * calls / (time.perf_counter() - start)))
    after_j, passed_s = meter.energy_j(), time.perf_counter() - start
    joules = None if before_j is None or after_j is None else meter.spent_j(before_j, after_j)
    found = {name: _median_of(readings, name) for name in _READINGS}
    if joules is not None:
        found["power_w"] = joules / passed_s
    energy_j = None if joules is None else joules / calls
    return Draw(energy_j, calls=calls, source=meter.source, missing=missing, **found)


_READINGS = ("power_w", "sm_clock_mhz", "memory_clock_mhz", "temperature_c")


def _median_of(readings: Sequence[dict[str, float]], name: str) -> float | None:
    values = [reading[name] for reading in readings if reading.get(name) is not None]
    return statistics.median(values) if values else None


def _meter(kind: str) -> tuple[object | None, str | None]:
    """What can be asked here, and what is missing."""
    if kind == "cpu":
        found = _Rapl.find()
        return found, "RAPL tells no clock" if found else "no RAPL counter that this user may read"
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is None:
        return None, "torch does not tell the card's UUID, so that another card might be read"
    name = f"GPU-{uuid}"
    try:
        return _Nvml.find(name), None
    except Exception as error:  # not installed, no driver, a driver of another version, a slice of a card
        no_nvml = f"NVML: {(str(error).splitlines() or [type(error).__name__])[0]}; pip install nvidia-ml-py"
    try:
        meter = _Smi(name)
        meter.reading()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return None, f"{no_nvml}; nvidia-smi: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return meter, f"energy: {no_nvml}"


@dataclass(frozen=True)
class _Nvml:
    """NVIDIA's management library through pynvml; what a card does not support is left out."""

    nvml: object
    handle: object
    source: str = "NVML"

    @classmethod
    def find(cls, uuid: str) -> _Nvml:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an older distribution of this name says that it is deprecated
            import pynvml
        pynvml.nvmlInit()
        return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))

    def energy_j(self) -> float | None:
        counted = self._asked("nvmlDeviceGetTotalEnergyConsumption")  # mJ since the driver was loaded
        return None if counted is None else counted / 1e3

    def spent_j(self, before_j: float, after_j: float) -> float:
        return after_j - before_j

    def reading(self) -> dict[str, float | None]:
        milliwatts = self._asked("nvmlDeviceGetPowerUsage")
        return {
            "power_w": None if milliwatts is None else milliwatts / 1e3,
            "sm_clock_mhz": self._asked("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._asked("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_MEM),
            "temperature_c": self._asked("nvmlDeviceGetTemperature", self.nvml.NVML_TEMPERATURE_GPU),
        }

    def _asked(self, function: str, *arguments: object) -> float | None:
        try:
            return getattr(self.nvml, function)(self.handle, *arguments)
        except self.nvml.NVMLError:
            return None


@dataclass(frozen=True)
class _Smi:
    """The nvidia-smi command, which comes with the driver; it tells no energy."""

    uuid: str
    source: str = "nvidia-smi"

    def energy_j(self) -> None:
        return None

    def reading(self) -> dict[str, float | None]:
        asked = "power.draw,clocks.sm,clocks.mem,temperature.gpu"
        command = ["nvidia-smi", "-i", self.uuid, f"--query-gpu={asked}", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        values = done.stdout.strip().split(",")
        if len(values) != len(_READINGS):
            raise ValueError(f"said {done.stdout[:80]!r}")
        return {name: _number(value) for name, value in zip(_READINGS, values, strict=True)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None


@dataclass(frozen=True)
class _Rapl:
    """The energy counters of a CPU's packages, in Linux' powercap; most systems let only root read them."""

    counters: tuple[tuple[Path, int], ...]  # in µJ, and the value after which each begins again at 0
    source: str = "RAPL, all packages"

    @classmethod
    def find(cls, folder: Path = Path("/sys/class/powercap")) -> _Rapl | None:
        found = []
        for zone in sorted(folder.glob("intel-rapl:*")):
            if zone.name.count(":") == 1:  # a package; intel-rapl:0:1 is a part of one
                with suppress(OSError, ValueError):
                    int((zone / "energy_uj").read_text())
                    found.append((zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())))
        return cls(tuple(found)) if found else None

    def energy_j(self) -> tuple[float, ...]:
        return tuple(int(counter.read_text()) / 1e6 for counter, _ in self.counters)

    def spent_j(self, before_j: Sequence[float], after_j: Sequence[float]) -> float:
        pairs = zip(before_j, after_j, self.counters, strict=True)
        return sum(b - a if b >= a else b - a + most / 1e6 for a, b, (_, most) in pairs)

    def reading(self) -> dict[str, float | None]:
        return {}


# -------------------------------------------------------------------------------------------------- calibrate


def calibrate(
    device: str | None = None, dtypes: Iterable[str] | None = None, *, seconds: float = 3.0
) -> Hardware:
    """Measure this machine: GEMM rate of each dtype, memory bandwidth and the cost of the smallest operator.

    Rates are the fastest runs seen, since they stand for what no run should beat; a card that its power or
    heat slows down later is slower than that. `source` says how far the rounds lie apart, and a UserWarning
    says so when they, or the share of the time that this thread had a processor, show that the machine was
    busy. Square GEMMs of random numbers (zeros take less power, and run faster) grow until one takes too long
    for its share of `seconds`, or the memory is full. The bandwidth is that of the fastest of three streams
    far larger than the last cache: a copy, a product in place, a sum. Which one wins differs, since some
    processors read a line before they overwrite it, and that is not counted. A CPU is asked for float32, bfloat16 and float64, a GPU for what its tensor
    cores and CUDA cores take, float32 without TF32. Raises ValueError for a dtype that this machine cannot
    multiply.
    """
    if not 0 < seconds < 3600:
        raise ValueError(f"seconds must be more than 0 and less than an hour, got {seconds}")
    kind = _kind(device)
    dtypes = (dtypes,) if isinstance(dtypes, str) else dtypes
    names = [units.dtype_name(d) for d in (dtypes or _own_dtypes(kind))]
    if "tfloat32" in names and (kind == "cpu" or not _has_tf32()):  # torch would take float32, and say nothing
        raise ValueError("this machine cannot multiply tfloat32 matrices: NVIDIA GPUs since the A100 do")
    # Rounds, so that one disturbance does not fall on all measurements of one rate.
    share = seconds / _ROUNDS / (len(names) + 2)
    streams = _streams(kind)  # made once: the first write to fresh memory is slow
    rounds = [_round(names, streams, kind, share) for _ in range(_ROUNDS)]
    rates = {name: max(r.gemms[name] for r in rounds) for name in names}
    stream_per_s, stream = max(r.memory for r in rounds)
    launch_us = min(r.launch_us for r in rounds)
    if said := _busy(rounds):
        warnings.warn(f"{_BUSY}: {said}", stacklevel=2)
    versions, found = _versions(), _gpu() if kind == "cuda" else _cpu()
    largest = ", ".join(f"{name} n = {n}" for name, (_, n) in rates.items())
    source = (
        f"measured by calibrate() on {_now().date().isoformat()}: fastest square GEMM ({largest}), {stream}, smallest"
        f" operator; {_ROUNDS} rounds differed by up to {_spread(rounds):.0%}; torch {versions['torch']}, "
        + (_platform() if kind == "cuda" else f"{torch.get_num_threads()} threads")
    )
    capability = found.get("compute_capability")
    return Hardware(
        name=found["name"],
        kind=kind,
        flops_per_s={name: rate for name, (rate, _) in rates.items()},
        bytes_per_s=stream_per_s,
        launch_us=launch_us,
        l2_bytes=found.get("l2_bytes") if kind == "cuda" else _last_cache_bytes(),
        sm=found.get("sm"),
        compute_capability=tuple(capability) if capability else None,
        source=source,
        measured=True,
        memory_bytes=found.get("memory_bytes"),
    )


_ROUNDS = 3


@dataclass(frozen=True)
class _Round:
    """One measurement of everything: by dtype (FLOP/s, n), then (bytes/s, of what stream), then µs.

    `cpu_share`: of its time, the share in which this thread ran; None on a GPU, which the thread waits for.
    """

    gemms: dict[str, tuple[float, int]]
    memory: tuple[float, str]
    launch_us: float
    cpu_share: float | None = None


@dataclass(frozen=True)
class _Stream:
    """A way to move data that is far larger than the last cache, and the bytes that it moves."""

    name: str
    bytes_moved: int
    step: Step


def _round(names: Sequence[str], streams: Sequence[_Stream], kind: str, seconds: float) -> _Round:
    start_s, ran_s = time.perf_counter(), time.thread_time()
    gemms = {name: _gemm_rate(name, kind, seconds) for name in names}
    rates = [(s.bytes_moved / _fastest_s(s.step, kind, seconds / len(streams)), s.name) for s in streams]
    smallest_us = _smallest_us(kind, seconds)
    share = (time.thread_time() - ran_s) / (time.perf_counter() - start_s)
    return _Round(gemms, max(rates), smallest_us, share if kind == "cpu" else None)


def _spread(rounds: Sequence[_Round]) -> float:
    """How much faster the fastest round was than the slowest, for the rate that varied most: 0.1 is 10 %."""
    rates = [[r.memory[0] for r in rounds], *([r.gemms[name][0] for r in rounds] for name in rounds[0].gemms)]
    return max(max(rate) / min(rate) for rate in rates) - 1


_BUSY = "this machine was busy while it was calibrated"
# Tried on a quiet machine: rounds lie within 15 % of each other, and a thread that computes, or waits for its
# helpers, runs for over 98 % of the time. What a hypervisor takes away shows only in the rounds.
_FAR_APART, _MOSTLY = 0.3, 0.9


def _busy(rounds: Sequence[_Round]) -> str | None:
    """What in these rounds shows that the machine did something else, with the remedy; None if nothing."""
    signs = []
    if (spread := _spread(rounds)) > _FAR_APART:
        ratio = units.ratio(1 + spread)
        signs.append(f"the fastest of its {len(rounds)} rounds ran {ratio} as fast as the slowest")
    if (share := min((r.cpu_share for r in rounds if r.cpu_share is not None), default=1.0)) < _MOSTLY:
        signs.append(f"this thread had a processor for only {100 * share:.0f} % of one round")
    remedy = "its rates may be too low: stop what else runs and calibrate again, or for longer (seconds=)"
    return f"{' and '.join(signs)}; {remedy}" if signs else None


def _platform() -> str:
    return f"CUDA {torch.version.cuda}" if torch.version.hip is None else f"HIP {torch.version.hip}"


def _own_dtypes(kind: str) -> tuple[str, ...]:
    if kind == "cpu":
        return ("float32", "bfloat16", "float64")
    real_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return (
        "float32",
        "float16",
        *(["bfloat16"] if real_bf16 else []),
        *(["tfloat32"] if _has_tf32() else []),
        "float64",
    )


def _has_tf32() -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


def _gemm_rate(name: str, kind: str, seconds: float) -> tuple[float, int]:
    """The best FLOP/s of [n, n] @ [n, n] and its n, the second factor as it is and transposed.

    A library may have a good kernel for one layout only: on CPUs without matrix units, for 16-bit types, the other is
    ten times as slow.
    """
    sizes = (256, 512, 1024, 2048) if kind == "cpu" else (1024, 2048, 4096, 8192, 16384)
    dtype = torch.float32 if name == "tfloat32" else getattr(torch, name)
    best = (0.0, 0)
    with _float32_products("tf32" if name == "tfloat32" else "ieee"):
        for n in sizes:
            try:
                a, b = (torch.randn(n, n, device=kind).to(dtype) for _ in range(2))
                ways = (lambda a=a, b=b: torch.mm(a, b), lambda a=a, b=b: torch.mm(a, b.t()))
                fastest_s = min(_fastest_s(way, kind, seconds / len(sizes) / 2) for way in ways)
            except torch.OutOfMemoryError:  # a small card, or a busy one
                if not best[1]:
                    raise
                break
            except (RuntimeError, NotImplementedError) as error:
                reason = str(error).splitlines()[0]
                raise ValueError(f"this machine cannot multiply {name} matrices: {reason}") from error
            best = max(best, (2 * n**3 / fastest_s, n))
            if 8 * fastest_s > seconds / len(sizes):  # the next size takes 8 times as long
                break
    return best


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    """Let a GPU's float32 products run on tensor cores ("tf32") or not ("ieee"), then put it back.

    Inside, torch's older name for this setting (allow_tf32) may raise, since torch tells the two ways to set
    it apart; mm asks for the newer one alone.
    """
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def _streams(kind: str) -> tuple[_Stream, ...]:
    cache = (_gpu()["l2_bytes"] if kind == "cuda" else _last_cache_bytes()) or 0
    least = 2**26 if kind == "cpu" else 2**28  # what a launch costs is small next to 268 MB of traffic
    nbytes = min(max(4 * cache, least), 2**29)  # up to 537 MB, and two of that size
    source = torch.ones(nbytes // 4, device=kind, dtype=torch.float32)
    target = torch.empty_like(source)
    size = units.data(nbytes)
    return (
        _Stream(f"copy of {size}", 2 * nbytes, lambda: target.copy_(source)),
        _Stream(f"product in place of {size}", 2 * nbytes, lambda: source.mul_(1.0)),
        _Stream(f"sum of {size}", nbytes, lambda: source.sum()),
    )


def _smallest_us(kind: str, seconds: float) -> float:
    """What an operator with nothing to do costs: its dispatch on a CPU, its kernel's stay on a GPU.

    On a GPU many such kernels are captured in one CUDA graph, or the CPU's launches would be what is timed.
    """
    x = torch.ones(1, device=kind)
    y = torch.empty_like(x)
    if kind == "cpu":
        return 1e6 * _fastest_s(lambda: torch.add(x, x, out=y), kind, seconds)
    torch.add(x, x, out=y)
    torch.cuda.synchronize()
    graph, kernels = torch.cuda.CUDAGraph(), 256
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            torch.add(x, x, out=y)
    return 1e6 * _fastest_s(graph.replay, kind, seconds) / kernels


def _fastest_s(step: Step, kind: str, seconds: float) -> float:
    """Seconds that one call takes in the fastest of many blocks: of a GPU longer ones, it starts late."""
    return min(_blocks(step, kind, seconds, block_s=1e-3 if kind == "cpu" else 1e-2, least=1)[0])


def _blocks(step: Step, kind: str, seconds: float, *, block_s: float, least: int) -> tuple[list[float], int]:
    """Seconds a call in blocks of at least `block_s`: as many as fit, or `least`; and the calls in one."""
    step()
    calls = 1
    while (took_s := _block_s(step, kind, calls)) < block_s:
        calls *= 2
    samples_s, end = [took_s / calls], time.perf_counter() + seconds
    while len(samples_s) < least or time.perf_counter() < end:
        samples_s.append(_block_s(step, kind, calls) / calls)
    return samples_s, calls


def _block_s(step: Step, kind: str, calls: int) -> float:
    _synchronize(kind)
    start = time.perf_counter()
    for _ in range(calls):
        step()
    _synchronize(kind)
    return time.perf_counter() - start


def _last_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Size of the CPU's last level cache, None where the system does not say (it does on Linux)."""
    levels = {}
    for index in folder.glob("index*"):
        try:
            size = (index / "size").read_text().strip()  # "266240K"
            unit = 2**20 if size.endswith("M") else 2**10
            levels[int((index / "level").read_text())] = int(size.rstrip("KM")) * unit
        except (OSError, ValueError):
            continue
    return levels[max(levels)] if levels else None
