"""`python -m tutorial_lib`: look at this machine, read a trace, decode a kernel's name, record the book's
workloads.

`read` and `kernel` do not import torch. Every failure that a user can cause is one line on stderr and exit
code 2.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tutorial_lib import __version__, units


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show µ shows ?
    try:
        for line in chosen.run(chosen):
            print(line)
        print(end="", flush=True)  # there is no sys.stdout to flush where it was closed
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"tutorial_lib {chosen.command}: {units.plain(' '.join(str(error).splitlines()))}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tutorial_lib", description="Predict, trace and explain PyTorch."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    doctor = commands.add_parser("doctor", help="what this machine is, and which parts of the book run on it")
    doctor.add_argument("--json", action="store_true", help="the same as JSON")
    doctor.set_defaults(run=_doctor)

    read = commands.add_parser("read", help="what is in a trace that torch.profiler wrote")
    read.add_argument("trace", help="a .json or .json.gz file")
    read.add_argument("--json", action="store_true", help="the same as JSON")
    read.add_argument(
        "--top", type=_count, default=10, metavar="N", help="how many work items to list (default: 10)"
    )
    read.add_argument("--step", type=int, metavar="N", help="only what belongs to ProfilerStep#N")
    read.set_defaults(run=_read)

    kernel = commands.add_parser("kernel", help="what a GPU kernel's name says")
    kernel.add_argument("name")
    kernel.add_argument("--json", action="store_true", help="the same as JSON")
    kernel.set_defaults(run=_kernel)

    record = commands.add_parser("record", help="record the workloads of the chapters on this machine")
    record.add_argument("--only", metavar="NAME[,NAME]", help="these workloads alone, or groups of them")
    record.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder to write to (default: recordings/MACHINE)"
    )
    record.add_argument("--minutes", type=float, metavar="M", help="begin no more workloads after M minutes")
    record.add_argument(
        "--check", type=Path, metavar="DIR", help="record nothing; say what is wrong with this recording"
    )
    record.set_defaults(run=_record)
    return parser


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of 0 or more, got {text[:20]!r}")
    return int(text)


# ----------------------------------------------------------------------------------------------------- doctor


def _doctor(chosen: argparse.Namespace) -> Iterator[str]:
    from tutorial_lib import doctor

    report = doctor.report()
    yield _json(report.as_dict()) if chosen.json else str(report)


# ------------------------------------------------------------------------------------------------------- read


def _read(chosen: argparse.Namespace) -> Iterator[str]:
    from tutorial_lib.trace import read_trace

    found = _found(read_trace(chosen.trace), chosen.step, chosen.top)
    if chosen.json:
        yield _json(found)
    else:
        yield from _described(found)


def _found(trace, step: int | None, top: int) -> dict[str, object]:
    """What `read` knows of a trace: plain numbers and texts, times in µs."""
    from tutorial_lib import timeline

    steps = timeline.steps(trace)
    if step is not None and step not in set(steps["step"]):
        raise ValueError(
            f"{trace.path}: has no ProfilerStep#{step}; its steps: {timeline.listed(steps['step'])}"
        )
    kernels, items = timeline.kernels(trace, step), timeline.work_items(trace, step)
    recorded = (trace.metadata or {}).get("tutorial_lib")
    recorded = recorded if isinstance(recorded, dict) else {}
    return {
        "trace": trace.path,
        "device": trace.device,
        "recorded": recorded.get("recorded"),
        "label": recorded.get("label"),
        "versions": dict(trace.versions or {}),
        "step": step,
        "steps": [
            {"step": int(row.step), "start_us": row.start_us, "duration_us": row.duration_us}
            for row in steps.itertuples()
        ],
        "events": {
            str(kind): int(count) for kind, count in trace.events["kind"].value_counts().items() if count
        },
        "operators": len(timeline.operators(trace, step)),
        "launches": len(timeline.launches(trace, step)),
        "kernels": {
            "count": len(kernels),
            "total_us": float(kernels["duration_us"].sum()),
            "busy_us": _union_us(kernels),
        },
        "work_items": {"count": len(items), "total_us": float(items["duration_us"].sum())},
        "top": _top(items, top, decoded=trace.has_gpu_events),
        "notes": list(trace.notes),
    }


def _union_us(rows) -> float:
    """Time in which at least one of the rows was running, on whatever lane."""
    busy_us, end_us = 0.0, -math.inf
    for start_us, duration_us in sorted(zip(rows["start_us"], rows["duration_us"], strict=True)):
        busy_us += max(0.0, start_us + duration_us - max(start_us, end_us))
        end_us = max(end_us, start_us + duration_us)
    return busy_us


def _top(items, top: int, *, decoded: bool) -> list[dict[str, object]]:
    """The work items that took longest, taken together by name; `decoded` when they are GPU kernels."""
    from tutorial_lib.kernel_names import decode

    if items.empty:
        return []
    by_name = items.groupby("name", sort=False)["duration_us"].agg(["size", "sum", "median"])
    longest = by_name.sort_values("sum", ascending=False, kind="stable").head(top)
    kinds = items.drop_duplicates("name").set_index("name")
    return [
        {
            "name": name,
            "kind": str(kinds.at[name, "kind"]),
            "operator": _text(kinds.at[name, "operator"]),
            "count": int(row["size"]),
            "total_us": row["sum"],
            "median_us": row["median"],
            "decoded": str(spelled) if decoded and (spelled := decode(name)).family != "unknown" else None,
        }
        for name, row in longest.iterrows()
    ]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _described(found: dict) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    steps = ", ".join(f"{s['step']}: {units.duration(s['duration_us'])}" for s in found["steps"][:8])
    steps += f", … ({len(found['steps']):,} in all)" if len(found["steps"]) > 8 else ""
    events = ", ".join(f"{count:,} {kind}" for kind, count in found["events"].items())
    kernels, items = found["kernels"], found["work_items"]
    busy = f", {units.duration(kernels['total_us'])} together, GPU busy {units.duration(kernels['busy_us'])}"
    lines = [
        ("trace", found["trace"]),
        ("device", found["device"] or "not in the file"),
        ("recorded", found["recorded"] or "the file does not say"),
        ("versions", versions or "not in the file"),
        ("steps", steps or "none: no schedule was used"),
        ("events", events),
        ("operators", f"{found['operators']:,}"),
        ("launches", f"{found['launches']:,}"),
        ("GPU work", f"{kernels['count']:,} kernels and copies" + (busy if kernels["count"] else "")),
        ("work items", f"{items['count']:,}, {units.duration(items['total_us'])} together"),
    ]
    if found["step"] is not None:
        lines.insert(0, ("only", f"what belongs to step {found['step']}"))
    lines += [("note", note) for note in found["notes"]]
    yield from (_cut(units.plain(f"{name:<10}  {value}"), 1000) for name, value in lines)
    if found["top"]:
        yield ""
        yield f"{'total':>9}  {'count':>6}  {'median':>9}  work item"
    for item in found["top"]:
        total, median = units.duration(item["total_us"]), units.duration(item["median_us"])
        name = _cut(units.plain(item["decoded"] or item["name"]), 120)
        yield f"{total:>9}  {item['count']:>6,}  {median:>9}  {name}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


# ----------------------------------------------------------------------------------------------------- kernel


def _kernel(chosen: argparse.Namespace) -> Iterator[str]:
    from tutorial_lib.kernel_names import decode

    decoded = decode(units.plain(chosen.name))
    if chosen.json:
        yield _json(asdict(decoded))
        return
    yield units.plain(str(decoded))
    width = max((len(units.plain(token)) for token, _ in decoded.parts), default=0)
    yield from (f"  {units.plain(token):<{width}}  {units.plain(meaning)}" for token, meaning in decoded.parts)


# ----------------------------------------------------------------------------------------------------- record


def _record(chosen: argparse.Namespace) -> Iterator[str]:
    from tqdm import tqdm

    from tutorial_lib import measure, recordings

    if chosen.check is not None:
        yield from _checked(chosen.check)
        return
    wanted = recordings.chosen(tuple(workloads().values()), chosen.only)
    folder = chosen.out or Path("recordings", recordings.machine_name())
    if problem := measure.cuda_problem():
        print(f"on the CPU, since {units.plain(problem)}", file=sys.stderr)
    told, made = [], recordings.record(folder, wanted, minutes=chosen.minutes)
    try:
        for entry in tqdm(made, total=len(wanted), file=sys.stderr, unit="workload"):
            told.append(entry.status)
            yield units.plain(str(entry))
    except KeyboardInterrupt:
        raise RuntimeError(f"interrupted; the same command goes on from {folder}") from None
    counts = ", ".join(f"{told.count(status)} {status}" for status in dict.fromkeys(told))
    yield f"{folder}: {counts}"


def _checked(folder: Path) -> Iterator[str]:
    from tutorial_lib import recordings

    found = recordings.problems(folder)
    yield from map(units.plain, found)
    if found:
        raise ValueError(f"{folder}: {len(found)} problem{'s' * (len(found) > 1)}, as listed")
    manifest = recordings.read_manifest(folder)
    done = sum(entry.status == "recorded" for entry in manifest.entries)
    counted = f"{done} of {len(manifest.entries)} workloads recorded"
    yield f"{folder}: whole; {counted} on {units.plain(manifest.card)}"


def workloads() -> dict[str, object]:
    """The workloads of the chapters for this machine, by name."""
    from tutorial_lib import recordings

    return recordings.workloads()


# ----------------------------------------------------------------------------------------------------- output

# Escape sequences, control characters and what turns the direction of text: a name in a file may hold any of
# them.
def _json(value: object) -> str:
    return json.dumps(_finite(value), indent=1, allow_nan=False)


def _finite(value: object) -> object:
    """The same with numbers that JSON has: µs to three decimals, null for what is not finite."""
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    if isinstance(value, float):
        return round(float(value), 3) if math.isfinite(value) else None
    return value


if __name__ == "__main__":
    sys.exit(main())
