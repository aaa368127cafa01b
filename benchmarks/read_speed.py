"""How fast a large trace is read, beside HolisticTraceAnalysis, and what importing the reader costs.

    python benchmarks/read_speed.py [--with PYTHON] [--only ours] [--trace FILE [--repeat N]] [--layers N]

Writes two made-up traces of 150,000+ events to a temporary folder, one of a run in eager mode and one as rich
in flow arrows as real ones are, and reads them in fresh processes, turn by turn: each tells its CPU time (what
else the machine does hardly changes it; both sides run on one core) and by how much its memory grew at the
peak. Both sides read alone, and read and then add up the kernels by name; the last is compared with our
whole report as well. A real trace is mostly shorter: `--repeat` writes it so often, one after the other.
HolisticTraceAnalysis is on PyPI under that name (0.5.0) and as traceinsight (0.6.1), both with pandas<3; it may
live in another environment, whose python `--with` names. Without it only our own numbers are printed.
(TraceLens of AMD-AGI is not on PyPI; `tracelens` is another project.)
"""

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 5
LAYERS = 1_500  # 108 events each
ARROWS = 8  # arrows for each launch in the trace that is rich in them, as with several streams and autograd

OURS = """
from tutorial_lib.trace import read_trace
from tutorial_lib import report, timeline
def read(path):
    return len(read_trace(path).events)
def read_and_add_up(path):
    trace = read_trace(path)
    timeline.summary(trace, by="kernels")
    return len(trace.events)
def whole_report(path):
    trace = read_trace(path)
    str(report.look(trace))
    return len(trace.events)
"""
THEIRS = """
import logging
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.config import logger
from hta.configs.parser_config import ParserConfig
from hta.trace_analysis import TraceAnalysis
logger.setLevel(logging.ERROR)
def read(path):
    return len(parse_trace_dataframe(path, ParserConfig.get_default_cfg())[1])
def read_and_add_up(path):
    analysis = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    return len(analysis.t.get_trace(0))
whole_report = read_and_add_up
"""
CLOCK = """
import json, resource, sys, time
def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before, start = peak_bytes(), time.process_time()
rows = {call}(sys.argv[1])
seconds = time.process_time() - start
print(json.dumps({{"seconds": seconds, "bytes": peak_bytes() - before, "rows": rows}}))
"""
IMPORT = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--with", dest="other", default=sys.executable, help="a python that has HolisticTraceAnalysis"
    )
    arguments.add_argument("--only", choices=["ours"], help="leave the other reader out")
    arguments.add_argument("--trace", help="time this file instead of made-up ones")
    arguments.add_argument("--repeat", type=int, help="that file's events so often, one after the other")
    arguments.add_argument("--layers", type=int, default=LAYERS, help="size of the made-up traces")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--write", nargs=2, metavar=("FILE", "ARROWS"), help="only write a made-up trace")
    chosen = arguments.parse_args()
    if chosen.write:
        print(write_trace(Path(chosen.write[0]), chosen.layers, int(chosen.write[1])))
        return
    other = None if chosen.only else chosen.other
    if chosen.trace and not chosen.repeat:
        compare(Path(chosen.trace).resolve(), other, chosen.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        if chosen.trace:
            path = Path(folder) / "repeated.json.gz"
            count = repeat(Path(chosen.trace), path, chosen.repeat)
            print(f"{chosen.trace}, {chosen.repeat} times: {count:,} events, {path.stat().st_size / 1e6:.1f} MB")
            compare(path, other, chosen.rounds)
            return
        for name, arrows in (("trace.json", 2), ("trace.json.gz", 2), ("arrows.json.gz", ARROWS)):
            path = Path(folder) / name
            # A process of its own writes: what this one holds would count in its children's peak.
            command = [sys.executable, __file__, "--layers", str(chosen.layers), "--write", path, str(arrows)]
            written = subprocess.run(command, capture_output=True, check=True)
            print(f"{name}: {int(written.stdout):,} events, {path.stat().st_size / 1e6:.1f} MB")
            compare(path, other, chosen.rounds)
    ours, torch = import_seconds("tutorial_lib.trace"), import_seconds("torch")
    print(f"import tutorial_lib.trace {ours:.3f} s, import torch {torch:.3f} s: ratio {ours / torch:.3f}")


def compare(path: Path, other: str | None, rounds: int) -> None:
    has_other = other and subprocess.run([other, "-c", "import hta"], capture_output=True).returncode == 0
    readers = {"ours": (sys.executable, OURS)} | ({"theirs": (other, THEIRS)} if has_other else {})
    for call in ("read", "read_and_add_up", "whole_report"):
        runs = {name: [] for name in readers}
        for _ in range(rounds):  # turn by turn, so that a busy moment of the machine hits both
            for name, (python, code) in readers.items():
                runs[name].append(run(python, code + CLOCK.format(call=call), str(path)))
        seconds = {name: statistics.median(r["seconds"] for r in of) for name, of in runs.items()}
        nbytes = {name: statistics.median(r["bytes"] for r in of) for name, of in runs.items()}
        for name, of in runs.items():
            rows = of[0]["rows"]
            print(f"  {call:15} {name:6} {seconds[name]:6.2f} s  {nbytes[name] / 1e6:6.0f} MB  {rows:,} rows")
        if has_other:
            faster, smaller = seconds["theirs"] / seconds["ours"], nbytes["theirs"] / nbytes["ours"]
            print(f"  {faster:.1f} times as fast, in 1/{smaller:.1f} of the memory (median of {rounds})")
    if not has_other:
        print(
            "  no HolisticTraceAnalysis here to compare with: pip install HolisticTraceAnalysis, "
            "or name a python that has it by --with"
        )


def run(python: str, code: str, path: str) -> dict[str, float]:
    here = Path(__file__).resolve().parent.parent
    done = subprocess.run([python, "-c", code, path], capture_output=True, text=True, cwd=here)
    if done.returncode:
        raise SystemExit(f"{python} failed on {path}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def import_seconds(module: str) -> float:
    here = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-c", IMPORT.format(module)]
    times = [
        float(subprocess.run(command, capture_output=True, text=True, cwd=here, check=True).stdout)
        for _ in range(5)
    ]
    return statistics.median(times)


# ----------------------------------------------------------------------------- a real trace, repeated


def repeat(source: Path, path: Path, times: int) -> int:
    """Writes the trace's events so often, each time later and with other ids; returns the number of X events."""
    with gzip.open(source) if source.suffix == ".gz" else open(source, "rb") as file:
        trace = json.load(file)
    events = trace.pop("traceEvents")
    timed = [event for event in events if event.get("ph") == "X"]
    starts = [event["ts"] for event in timed]
    span = max(event["ts"] + (event.get("dur") or 0) for event in timed) - min(starts) + 100
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(json.dumps(trace)[:-1] + ',\n  "traceEvents": [')
        for number in range(times):
            for place, event in enumerate(events):
                file.write(",\n  " * (number + place > 0) + as_profiler(_later(event, number, span)))
        file.write("]}")
    return times * len(timed)


_IDS = 10_000_000  # more than the ids that one trace has


def _later(event: dict, number: int, span: float) -> dict:
    args = dict(event.get("args") or {})
    for key in ("correlation", "External id"):
        if args.get(key) and isinstance(args[key], int):
            args[key] += number * _IDS
    moved = {"ts": round(event["ts"] + number * span, 3)} if isinstance(event.get("ts"), (int, float)) else {}
    if event.get("ph") in ("s", "f"):
        moved["id"] = event.get("id", 0) + number * _IDS
    if step := re.fullmatch(r"ProfilerStep#(\d+)", str(event.get("name"))):
        moved["name"] = f"ProfilerStep#{int(step[1]) + number * 1000}"
    return event | moved | ({"args": args} if "args" in event else {})


# -------------------------------------------------------------------------------- the made-up trace


def write_trace(path: Path, layers: int, arrows: int) -> int:
    """Writes the trace, in the profiler's layout with made-up values; returns the number of its X events."""
    head = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": 0, "name": "made up", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
        ],
        "cuda_driver_version": 13000,
    }
    count = 0
    opened = gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else open(path, "w")
    with opened as file:
        file.write(json.dumps(head)[:-1] + ',\n  "traceEvents": [')
        for layer in range(layers):
            events = layer_events(layer, arrows)
            file.write(",\n  " * (layer > 0) + ",\n  ".join(map(as_profiler, events)))
            count += sum(event["ph"] == "X" for event in events)
        file.write("]}")
    return count


def as_profiler(event: dict) -> str:
    """The profiler writes an event's arguments on one line and everything else on lines of its own."""
    return json.dumps(event).replace(', "', ',\n    "', 6).replace('"args": ', '"args":\n      ')


GEMM = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn"
POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)


def layer_events(layer: int, arrows: int) -> list[dict]:
    """One layer: twelve linears, each with its views, a launch, a kernel and arrows (s, f, s, f, …)."""
    events = []
    for number in range(12):
        index = layer * 12 + number
        at = 5_160_458_230_384.62 + index * 100
        shapes = [[4096], [8 * (1 + index % 7), 4096], [4096, 4096]]
        chain = (
            ("aten::linear", 0, 80),
            ("aten::t", 2, 9),
            ("aten::transpose", 3, 6),
            ("aten::as_strided", 5, 1),
        )
        for depth, (name, offset, duration) in enumerate(chain):
            events.append(operator(name, at + offset, duration, index * 5 + depth, shapes))
        events.append(operator("aten::addmm", at + 15, 60, index * 5 + 4, [*shapes, [], []]))
        events.append(python_function("torch/nn/modules/linear.py(125): forward", at - 5, 90, index))
        call = {"External id": index, "cbid": 211, "correlation": index}
        events.append(event("cuda_runtime", "cudaLaunchKernel", at + 40, 8, 1000, 1000, call))
        events.append(kernel(GEMM if number % 2 else POINTWISE, at + 60, 35, index))
        for _ in range(arrows // 2):
            events.append(arrow("s", at + 40, 1000, 1000, index))
            events.append(arrow("f", at + 60, 0, 7, index))
        events.append(
            event("cuda_runtime", "cudaEventQuery", at + 76, 1, 1000, 1000, {"cbid": 136, "correlation": 0})
        )
    return events


def event(category: str, name: str, ts: float, dur: float, pid: int, tid: int, args: dict) -> dict:
    common = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return {**common, "ts": round(ts, 3), "dur": dur + 0.125, "args": args}


def operator(name: str, ts: float, dur: float, index: int, shapes: list) -> dict:
    args = {
        "External id": index,
        "Record function id": 0,
        "Concrete Inputs": ["" if shape else "1" for shape in shapes],
        "Input type": ["c10::BFloat16" if shape else "Scalar" for shape in shapes],
        "Input Strides": [[shape[-1], 1][-len(shape) :] if shape else [] for shape in shapes],
        "Input Dims": shapes,
        "Ev Idx": index,
    }
    return event("cpu_op", name, ts, dur, 1000, 1000, args)


def python_function(name: str, ts: float, dur: float, index: int) -> dict:
    args = {"Python parent id": index - 1 if index else None, "Python id": index, "Ev Idx": index}
    return event("python_function", name, ts, dur, 1000, 1000, args)


def kernel(name: str, ts: float, dur: float, correlation: int) -> dict:
    args = {
        "External id": correlation, "queued": 0, "device": 0, "context": 1, "stream": 7,
        "correlation": correlation, "registers per thread": 168, "shared memory": 147456,
        "blocks per SM": 1.185185, "warps per SM": 9.481481,
        "grid": [8, 16, 1], "block": [256, 1, 1], "est. achieved occupancy %": 15,
    }  # fmt: skip
    return event("kernel", name, ts, dur, 0, 7, args)


def arrow(phase: str, ts: float, pid: int, tid: int, correlation: int) -> dict:
    return {"ph": phase, "id": correlation, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g"}


if __name__ == "__main__":
    main()
