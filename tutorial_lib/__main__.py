"""`python -m tutorial_lib`: look at this machine, read a trace, compare two, decode kernels' names, record
the book's workloads.

`read`, `compare` and `kernel` do not import torch. Every failure that a user can cause is one line on stderr
and exit code 1, or 2 where the command line itself is wrong.
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
        return 1
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

    read = commands.add_parser("read", help="a first look at a trace that torch.profiler wrote")
    read.add_argument("trace", help="a .json or .json.gz file")
    _shown(read, "rows of each table to show")
    read.add_argument("--step", type=int, metavar="N", help="only what belongs to ProfilerStep#N")
    read.add_argument("--on", type=_card, metavar="CARD", help="predict for this card, not the trace's own")
    read.add_argument("--csv", type=Path, metavar="DIR", help="also write the tables as CSV into this folder")
    read.add_argument("--html", type=Path, metavar="FILE", help="also write the report as one HTML file")
    read.set_defaults(run=_read)

    compare = commands.add_parser("compare", help="the same job before and after: what changed and why")
    compare.add_argument("before", help="a .json or .json.gz file")
    compare.add_argument("after", help="another one")
    _shown(compare, "rows to show")
    compare.add_argument(
        "--step", type=_steps, metavar="N[,M]", help="only ProfilerStep#N of both, or #N and #M"
    )
    compare.set_defaults(run=_compare)

    kernel = commands.add_parser("kernel", help="what GPU kernels' names say")
    kernel.add_argument("name", nargs="+", help="a kernel's name; - reads names from stdin, one a line")
    kernel.add_argument("--json", action="store_true", help="as JSON: an object, for several names a list")
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


def _shown(command: argparse.ArgumentParser, what: str) -> None:
    """What the commands that read traces have in common."""
    command.add_argument("--json", action="store_true", help="the same as JSON")
    command.add_argument("--top", type=_count, default=8, metavar="N", help=f"{what} (default: 8)")
    command.add_argument(
        "--max-bytes", type=_count, metavar="N", help="refuse a trace whose text is longer (default: 8 GB)"
    )


def _card(name: str):
    from tutorial_lib import hardware

    try:
        return hardware.find(name)
    except hardware.UnknownHardware:
        known = ", ".join(card.name for card in hardware.CARDS)
        said = f"no rates are known for {units.plain(name)[:40]!r}; known: {known}"
        raise argparse.ArgumentTypeError(said) from None


def _steps(text: str) -> int | tuple[int, int]:
    if not re.fullmatch("[0-9]{1,18}(,[0-9]{1,18})?", text):
        raise argparse.ArgumentTypeError(f"must be a step's number, or two with a comma, got {text[:20]!r}")
    numbers = tuple(map(int, text.split(",")))
    return numbers if len(numbers) == 2 else numbers[0]


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of 0 or more, got {text[:20]!r}")
    return int(text)


# ------------------------------------------------------------------------------------------------- doctor


def _doctor(chosen: argparse.Namespace) -> Iterator[str]:
    from tutorial_lib import doctor

    report = doctor.report()
    yield _json(report.as_dict()) if chosen.json else str(report)


# --------------------------------------------------------------------------------------------------- read


def _read(chosen: argparse.Namespace) -> Iterator[str]:
    from tutorial_lib import report

    look = report.look(_trace(chosen.trace, chosen.max_bytes), chosen.step, chosen.on, chosen.top)
    if chosen.html is not None:
        if chosen.html.is_file() and chosen.html.samefile(chosen.trace):
            raise ValueError(f"--html {chosen.html}: is the trace itself; name another file to write")
        _write(chosen.html, look.to_html())
    if chosen.csv is not None:
        look.to_csv(chosen.csv)
    yield look.to_json() if chosen.json else str(look)


def _trace(path: str, max_bytes: int | None):
    from tutorial_lib.trace import read_trace

    return read_trace(path, **({} if max_bytes is None else {"max_bytes": max_bytes}))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except IsADirectoryError:
        raise ValueError(f"--html {path}: is a directory; name a file to write") from None
    except OSError as error:
        raise ValueError(f"--html {path}: cannot be written ({error.strerror})") from None


# ------------------------------------------------------------------------------------------------ compare


def _compare(chosen: argparse.Namespace) -> Iterator[str]:
    from tutorial_lib import compare

    before, after = (_trace(path, chosen.max_bytes) for path in (chosen.before, chosen.after))
    found = compare.compare(before, after, chosen.top, chosen.step)
    yield found.to_json() if chosen.json else str(found)


# ------------------------------------------------------------------------------------------------- kernel

_FIELDS = ("family", "arch", "dtype", "layout", "tile", "stages", "epilogue")


def _kernel(chosen: argparse.Namespace) -> Iterator[str]:
    from tutorial_lib.kernel_names import decode

    decoded = [decode(name) for name in _names(chosen.name)]
    if chosen.json:
        said = [dict.fromkeys(_FIELDS) | asdict(kernel) for kernel in decoded]
        yield _json(said[0] if len(said) == 1 else said)
        return
    for kernel in decoded:
        yield units.plain(str(kernel))
        width = max((len(units.plain(token)) for token, _ in kernel.parts), default=0)
        yield from (f"  {units.plain(token):<{width}}  {units.plain(text)}" for token, text in kernel.parts)


def _names(given: Sequence[str]) -> list[str]:
    """The names on the command line; "-" stands for the lines of stdin that are not empty."""
    names: list[str] = []
    for name in given:
        lines = sys.stdin.buffer.read().decode(errors="replace").splitlines() if name == "-" else [name]
        names += [units.plain(line) for line in lines if line.strip() or name != "-"]
    return names


# ------------------------------------------------------------------------------------------------- record


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
    told, made = [], recordings.record(folder, wanted, minutes=chosen.minutes, only=chosen.only)
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
    if late := sum(recordings.out_of_time(entry) for entry in manifest.entries):
        yield f"left out when the minutes were over: {late}; to go on: {recordings.resume(folder, manifest)}"


def workloads() -> dict[str, object]:
    """The workloads of the chapters for this machine, by name."""
    from tutorial_lib import recordings

    return recordings.workloads()


# ------------------------------------------------------------------------------------------------- output

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
