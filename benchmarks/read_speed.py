"""How fast a large trace is read, beside HolisticTraceAnalysis' parser, and what importing the reader costs.

    python benchmarks/read_speed.py [--with PYTHON]

Writes a made-up trace of 150,000+ events to a temporary folder and reads it in fresh processes, turn by turn:
each tells its CPU time (what else the machine does hardly changes it; both sides run on one core) and by how
much its memory grew at the peak. HolisticTraceAnalysis is called `traceinsight` on PyPI; it may live in
another environment, whose python `--with` names. Without it only our own numbers are printed.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 5
LAYERS = 1_500  # 108 events each

OURS = """
from tutorial_lib.trace import read_trace
import pandas  # so that both sides have their libraries loaded before the clock starts
def read(path):
    return len(read_trace(path).events)
"""
THEIRS = """
import logging
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.config import logger
from hta.configs.parser_config import ParserConfig
logger.setLevel(logging.ERROR)
def read(path):
    return len(parse_trace_dataframe(path, ParserConfig.get_default_cfg())[1])
"""
CLOCK = """
import json, resource, sys, time
def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before, start = peak_bytes(), time.process_time()
rows = read(sys.argv[1])
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "bytes": peak_bytes() - before, "rows": rows}))
"""
IMPORT = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--with", dest="other", default=sys.executable, help="a python that has traceinsight"
    )
    arguments.add_argument("--write", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.write:
        print(write_trace(Path(chosen.write)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("trace.json", "trace.json.gz"):
            path = Path(folder) / name
            # A process of its own writes: what this one holds would count in its children's peak.
            written = subprocess.run(
                [sys.executable, __file__, "--write", path], capture_output=True, check=True
            )
            print(f"{name}: {int(written.stdout):,} events, {path.stat().st_size / 1e6:.1f} MB")
            compare(path, chosen.other)
    ours, torch = import_seconds("tutorial_lib.trace"), import_seconds("torch")
    print(f"import tutorial_lib.trace {ours:.3f} s, import torch {torch:.3f} s: ratio {ours / torch:.3f}")


def compare(path: Path, other: str) -> None:
    has_other = subprocess.run([other, "-c", "import hta"], capture_output=True).returncode == 0
    readers = {"ours": (sys.executable, OURS)} | ({"theirs": (other, THEIRS)} if has_other else {})
    runs = {name: [] for name in readers}
    for _ in range(ROUNDS):  # turn by turn, so that a busy moment of the machine hits both
        for name, (python, code) in readers.items():
            runs[name].append(run(python, code + CLOCK, str(path)))
    seconds = {name: statistics.median(r["seconds"] for r in of) for name, of in runs.items()}
    nbytes = {name: statistics.median(r["bytes"] for r in of) for name, of in runs.items()}
    for name, of in runs.items():
        print(f"  {name:6} {seconds[name]:6.2f} s  {nbytes[name] / 1e6:6.0f} MB  {of[0]['rows']:,} rows")
    if has_other:
        faster, smaller = seconds["theirs"] / seconds["ours"], nbytes["theirs"] / nbytes["ours"]
        print(f"  {faster:.1f} times as fast, in 1/{smaller:.1f} of the memory (median of {ROUNDS})")
    else:
        print(
            "  no HolisticTraceAnalysis here to compare with: pip install traceinsight, "
            "or name a python that has it by --with"
        )


def run(python: str, code: str, path: str) -> dict[str, float]:
    here = Path(__file__).resolve().parent.parent
    done = subprocess.run([python, "-c", code, path], capture_output=True, text=True, cwd=here, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def import_seconds(module: str) -> float:
    here = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-c", IMPORT.format(module)]
    times = [
        float(subprocess.run(command, capture_output=True, text=True, cwd=here, check=True).stdout)
        for _ in range(5)
    ]
    return statistics.median(times)


# -------------------------------------------------------------------------------- the made-up trace


def write_trace(path: Path) -> int:
    """Writes the trace, in the profiler's layout with made-up values; returns the number of its X events."""
    events: list[dict] = []
    for layer in range(LAYERS):
        events += layer_events(layer)
    head = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": 0, "name": "made up", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
        ],
        "cuda_driver_version": 13000,
    }
    # The profiler writes an event's arguments on one line and everything else on lines of its own.
    lines = ",\n  ".join(
        json.dumps(e).replace(', "', ',\n    "', 6).replace('"args": ', '"args":\n      ') for e in events
    )
    text = json.dumps(head)[:-1] + f',\n  "traceEvents": [\n  {lines}\n  ]}}'
    opened = gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else open(path, "w")
    with opened as file:
        file.write(text)
    return sum(event["ph"] == "X" for event in events)


GEMM = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn"
POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)


def layer_events(layer: int) -> list[dict]:
    """One layer: twelve linears, each with its views, a launch, a kernel and the arrow between them."""
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
