"""The only module that runs anything: record a trace, time a call, measure what this machine can do.

`record` gives counts and order, `bench` gives time (the profiler is off), `calibrate` gives the machine's
rates. All three run on the GPU where one works and on the CPU otherwise, with torch 2.11 to 2.15. Several
GPUs, other accelerators and energy are not covered.

Kineto, the library under torch.profiler, writes start and stop lines to the process's stderr. `record` holds
those lines back; `KINETO_LOG_LEVEL=99` in the environment does the same for any other profile, if it is set
before torch is imported.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.benchmark import Timer

from tutorial_lib import __version__, timeline, units
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
    if not torch.cuda.is_available():
        return "torch finds no GPU, or no driver that is new enough for it"
    try:
        torch.ones(1, device="cuda").add(1).item()
    except RuntimeError as error:  # a driver that fails, or a card for which this build has no kernels
        return f"a first kernel failed: {str(error).splitlines()[0]}"
    return None


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
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": None if cudnn is None else str(cudnn),
        "driver": _driver(),
        "python": platform.python_version(),
        "triton": _installed("triton"),
        "liger_kernel": _installed("liger-kernel"),
        "tutorial_lib": __version__,
    }


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
        "compute_capability": [found.major, found.minor],
        "sm": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "l2_bytes": getattr(found, "L2_cache_size", None),
    }


def _kind(asked: str | torch.device | None) -> str:
    """The kind of device asked for, or the one there is; ValueError when it cannot be used."""
    if asked is None:
        return device()
    kind = torch.device(asked).type
    if kind not in ("cuda", "cpu"):
        raise ValueError(f'device is "cuda" or "cpu", got {asked!r}')
    if kind == "cuda" and (problem := cuda_problem()):
        raise ValueError(f'device "cuda" cannot be used: {problem}; pass device="cpu"')
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
    up. On a GPU each step ends with a synchronize, so that its kernels lie inside it. `label` names a range
    around each call. Under "tutorial_lib" the file says where and with what it was recorded; the host's name
    is taken out, but `stacks` puts source paths in. A failure leaves what was at `path` as it was.

    Raises ValueError for bad arguments, RuntimeError when another profiler is active, OSError when the folder
    is missing, TraceError when the trace lacks steps or, on a GPU, GPU events. What `step()` raises comes
    through.
    """
    target, kind = _target(path), _kind(device)
    if steps < 1 or warmup < 0:
        raise ValueError(f"steps must be at least 1 and warmup at least 0, got {steps} and {warmup}")
    if torch.autograd._profiler_enabled():
        raise RuntimeError("another profiler is active, and Kineto serves one at a time: leave that first")
    for _ in range(warmup):
        step()
    _synchronize(kind)
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=target.parent) as folder:
        raw = Path(folder, "raw.json")
        options = {"record_shapes": shapes, "with_stack": stacks, "profile_memory": memory}
        said = _profile(step, raw, steps=steps, label=label, kind=kind, options=options)
        finished = Path(folder, target.name)
        _finish(raw, finished, _stamp(kind, steps, label))
        trace = checked(_read_back(finished, target), kind, steps, said)
        os.replace(finished, target)
    return trace


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
    # The waited step gives an earlier profile time to shut CUPTI down; without it this one may see no kernel.
    plan = schedule(wait=1, warmup=1, active=steps, repeat=1)
    profiler = profile(activities=activities, schedule=plan, **options)
    said: list[str] = []
    with _without_chatter(said):
        profiler.start()
    try:
        for _ in range(steps + 2):
            with record_function(label) if label else nullcontext():
                step()
            _synchronize(kind)
            with _without_chatter(said):
                profiler.step()
    finally:
        with _without_chatter(said):
            profiler.stop()
    profiler.export_chrome_trace(str(raw))
    return " ".join(said)


@contextmanager
def _without_chatter(said: list[str]) -> Iterator[None]:
    """Hold back stderr; afterwards pass on, and add to `said`, all but Kineto's start and stop lines."""
    try:
        stderr = os.dup(2)
    except OSError:  # closed
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            lines = [line for line in held if not line.startswith((b"USDT:", b"STAGE:"))]
            said.extend(line.decode(errors="replace").strip() for line in lines)
            os.write(2, b"".join(lines))


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
    if (trace.events["kind"] == "operator").sum() == 0:
        raise TraceError(f"{trace.path}: no operator was recorded; does the step call torch at all?")
    return trace


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
        threads = f", {self.threads} threads" if self.kind == "cpu" else ""
        return (
            f"{units.duration(self.median_us)} (half of {self.n} samples within"
            f" {units.band(self.q1_us, self.q3_us)}; {caches}; {self.device}{threads})"
        )


def bench(step: Step, *, device: str | None = None, seconds: float = 0.5, flush_l2: bool = False) -> Timing:
    """Time `step()` with the profiler off, for about `seconds`.

    As it is, calls follow each other with one synchronize at the end of a block: warm caches, and on a GPU
    launches that overlap (torch.utils.benchmark). With `flush_l2`, a GPU only, the L2 is overwritten before
    each call and the call alone is timed (triton's do_bench). Raises ValueError when that is not to be had.
    """
    if seconds <= 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    kind = _kind(device)
    if flush_l2:
        samples_us = _flushed(step, kind, seconds)
        return _timing(samples_us, kind, warm=False, calls=1, method="triton.testing.do_bench")
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    measured = timer.blocked_autorange(min_run_time=seconds)
    samples, calls = list(measured.raw_times), measured.number_per_run
    while len(samples) < 5:  # one sample has no spread
        samples.append(timer.timeit(calls).raw_times[0])
    samples_us = [1e6 * total_s / calls for total_s in samples]
    return _timing(samples_us, kind, warm=True, calls=calls, method="torch.utils.benchmark")


def _flushed(step: Step, kind: str, seconds: float) -> list[float]:
    if kind != "cuda":
        raise ValueError("flush_l2 is for a GPU; on a CPU make the data larger than its caches instead")
    try:
        from triton.testing import do_bench
    except ImportError:
        raise ValueError("flush_l2 needs triton, which is not installed; leave flush_l2 out") from None
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


# -------------------------------------------------------------------------------------------------- calibrate


def calibrate(
    device: str | None = None, dtypes: Iterable[str] | None = None, *, seconds: float = 3.0
) -> Hardware:
    """Measure this machine: GEMM rate of each dtype, copy bandwidth and the cost of the smallest operator.

    Rates are the fastest runs seen, since they stand for what no run should beat. Square GEMMs grow until one
    takes too long for its share of `seconds`; the copy is far larger than the last cache. A CPU is asked for
    float32, bfloat16 and float64, a GPU for what its tensor cores and CUDA cores take. Raises ValueError for
    a dtype that this machine cannot multiply.
    """
    if seconds <= 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    kind = _kind(device)
    names = [units.dtype_name(d) for d in (dtypes or _own_dtypes(kind))]
    share = seconds / (len(names) + 2)
    gemms = {name: _gemm_rate(name, kind, share) for name in names}
    bytes_per_s, copied = _copy_rate(kind, share)
    launch_us = _smallest_us(kind, share)
    versions, found = _versions(), _gpu() if kind == "cuda" else _cpu()
    largest = ", ".join(f"{name} n = {n}" for name, (_, n) in gemms.items())
    source = (
        f"measured by calibrate() on {_now().date().isoformat()}: fastest square GEMM ({largest}), copy of"
        f" {units.data(copied)}, smallest operator; torch {versions['torch']}, "
        + (f"CUDA {versions['cuda']}" if kind == "cuda" else f"{torch.get_num_threads()} threads")
    )
    capability = found.get("compute_capability")
    return Hardware(
        name=found["name"],
        kind=kind,
        flops_per_s={name: rate for name, (rate, _) in gemms.items()},
        bytes_per_s=bytes_per_s,
        launch_us=launch_us,
        l2_bytes=found.get("l2_bytes") if kind == "cuda" else _last_cache_bytes(),
        sm=found.get("sm"),
        compute_capability=tuple(capability) if capability else None,
        source=source,
        measured=True,
        memory_bytes=found.get("memory_bytes"),
    )


def _own_dtypes(kind: str) -> tuple[str, ...]:
    if kind == "cpu":
        return ("float32", "bfloat16", "float64")
    real_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    tf32 = torch.cuda.get_device_capability() >= (8, 0) and torch.version.hip is None
    return (
        "float32",
        "float16",
        *(["bfloat16"] if real_bf16 else []),
        *(["tfloat32"] if tf32 else []),
        "float64",
    )


def _gemm_rate(name: str, kind: str, seconds: float) -> tuple[float, int]:
    """The best FLOP/s of [n, n] @ [n, n] and its n."""
    sizes = (256, 512, 1024, 2048) if kind == "cpu" else (1024, 2048, 4096, 8192)
    dtype = torch.float32 if name == "tfloat32" else getattr(torch, name)
    best = (0.0, 0)
    with _float32_products("tf32" if name == "tfloat32" else "ieee"):
        for n in sizes:
            try:
                a, b = (torch.randn(n, n, device=kind).to(dtype) for _ in range(2))
                fastest_s = _fastest_s(lambda a=a, b=b: torch.mm(a, b), kind, seconds / len(sizes))
            except (RuntimeError, NotImplementedError) as error:
                reason = str(error).splitlines()[0]
                raise ValueError(f"this machine cannot multiply {name} matrices: {reason}") from error
            best = max(best, (2 * n**3 / fastest_s, n))
            if 8 * fastest_s > seconds / len(sizes):  # the next size takes 8 times as long
                break
    return best


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    """Let a GPU's float32 products run on tensor cores ("tf32") or not ("ieee"), then put it back."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def _copy_rate(kind: str, seconds: float) -> tuple[float, int]:
    """Bytes per second read and written by a copy, and the size of what is copied."""
    cache = (_gpu()["l2_bytes"] if kind == "cuda" else _last_cache_bytes()) or 0
    nbytes = min(max(4 * cache, 2**26), 2**29)  # 67 to 537 MB; read and written, that is twice as much memory
    source = torch.ones(nbytes // 4, device=kind)
    target = torch.empty_like(source)
    return 2 * nbytes / _fastest_s(lambda: target.copy_(source), kind, seconds), nbytes


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
    """Seconds that one call takes in the fastest of many blocks of at least a millisecond."""
    step()
    calls = 1
    while (fastest_s := _block_s(step, kind, calls)) < 1e-3:
        calls *= 2
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        fastest_s = min(fastest_s, _block_s(step, kind, calls))
    return fastest_s / calls


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
