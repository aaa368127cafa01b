"""Coverage-guided fuzzing of the reader: any bytes give a table that adds up, or one line that says why not.

    python benchmarks/fuzz_reader.py [--seconds 300] [--found FOLDER] [FILE ...]

Needs atheris (Linux, `pip install atheris`), best in an environment of its own with msgspec, isal, pandas and tqdm.
It starts from the small files in `benchmarks/corpus`; what it adds goes to the folder `--found`, as do inputs
that break a rule (`crash-…`, `timeout-…`). With FILEs it only checks these, which takes no atheris.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORDS = (
    "traceEvents", "ph", "X", "cat", "name", "ts", "dur", "pid", "tid", "args", "correlation", "External id",
    "external id", "Input Dims", "Input type", "grid", "block", "stream", "device", "kernel", "cpu_op",
    "cuda_runtime", "gpu_memcpy", "user_annotation", "python_function", "ProfilerStep#1",
    "nn.Module: Linear_0", "Module Hierarchy", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "Kernel", "Operator", "Runtime",
)  # fmt: skip
TOKENS = (
    "NaN",
    "-inf",
    "null",
    "true",
    "1e308",
    "9223372036854775808",
    "[[",
    "}, {",
    "]}",
    "\\\\ud800",
    "\\x00",
    "\\x1f\\x8b",
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=int, default=300)
    arguments.add_argument("--found", type=Path, default=Path(tempfile.gettempdir()) / "fuzz_reader")
    arguments.add_argument("files", nargs="*", type=Path)
    chosen = arguments.parse_args()
    sys.path.insert(0, str(HERE.parent))
    if chosen.files:
        check = checker()
        for path in chosen.files:
            check(path.read_bytes())
            print(f"{path}: keeps all rules")
        return
    try:
        import atheris
    except ImportError:
        raise SystemExit(
            "fuzz_reader needs atheris: pip install atheris (Linux, an environment of its own)"
        ) from None
    import msgspec, numpy, pandas  # noqa: E401, F401  not instrumented: only our own code guides the search

    with atheris.instrument_imports(include=["tutorial_lib"]):
        check = checker(every=10)  # questions take far longer than reading
    chosen.found.mkdir(parents=True, exist_ok=True)
    words = chosen.found / "words.dict"
    words.write_text(
        "".join(f'"\\"{word}\\""\n' for word in WORDS) + "".join(f'"{token}"\n' for token in TOKENS)
    )
    limits = [f"-max_total_time={chosen.seconds}", "-timeout=20", "-max_len=20000", f"-dict={words}"]
    found = [f"-artifact_prefix={chosen.found}/", str(chosen.found), str(HERE / "corpus")]
    atheris.Setup([sys.argv[0], *limits, *found], check)
    atheris.Fuzz()


def checker(every: int = 1):
    """A function that reads bytes as a file and raises when a rule is broken; asks `timeline` about some."""
    from tutorial_lib import timeline
    from tutorial_lib.trace import GPU_WORK, TraceError, read_trace

    warnings.simplefilter("error")
    path = os.path.join(tempfile.mkdtemp(), "trace.json")

    def check(data: bytes) -> None:
        Path(path).write_bytes(data)
        try:
            trace = read_trace(path, max_bytes=10_000_000)
        except TraceError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error), (
                "no line with the file's name"
            )
            return
        assert trace.events["start_us"].is_monotonic_increasing and (trace.events["duration_us"] >= 0).all()
        repr(trace)
        if zlib.crc32(data) % every:
            return
        with contextlib.suppress(ValueError):
            timeline.chain(trace, "aten::linear")
        items = timeline.kernels(trace)
        assert len(items) == trace.events["kind"].isin(GPU_WORK).sum(), "a kernel is lost or counted twice"
        launched = timeline.launches(trace)["work_items"].sum()
        assert launched == items["launch_recorded"].sum(), "kernels and launches do not agree"
        for by in ("device", "stream"):
            lanes = timeline.busy(trace, by=by)
            near = 1e-6 * (1 + lanes["window_us"])
            assert (lanes["busy_us"] <= lanes["window_us"] + near).all(), "busier than the window is long"
            assert (lanes["busy_us"] <= lanes["sum_us"] + near).all(), "busier than all items together"
            assert (lanes["busy_us"] >= -near).all() and (lanes["idle_us"] >= -near).all()
        own = timeline.operators(trace)
        assert (own["self_us"] <= own["duration_us"] + 1e-3).all(), "more time in itself than in all"
        timeline.gaps(trace)
        timeline.copies(trace)
        timeline.work_items(trace)

    return check


if __name__ == "__main__":
    main()
