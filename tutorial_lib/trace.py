"""A trace is a table: any Chrome trace that torch.profiler wrote since 2021, read into one DataFrame.

Covers .json and .json.gz, every layout of categories, ids and times in those years, and the damage that real
files have (unquoted NaN, control characters, broken UTF-8, missing durations), which is mended and written
down in `Trace.notes`. Not covered: instant events, counters and flow arrows (a kernel finds its launch by
`correlation`), Perfetto's binary traces and traces of other tools. What the events mean is asked in
`timeline`.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import msgspec

from tutorial_lib import units

# numpy and pandas take five times as long to import as all else here, so the functions that need them import
# them.
if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

KINDS = (
    "operator", "annotation", "runtime", "driver", "kernel", "memcpy", "memset", "gpu_annotation", "python",
    "overhead", "sync", "other",
)  # fmt: skip
GPU_WORK = ("kernel", "memcpy", "memset")

_KIND_OF_CATEGORY = {
    "cpu_op": "operator", "operator": "operator", "user_annotation": "annotation",
    "cuda_runtime": "runtime", "runtime": "runtime", "hip_runtime": "runtime", "xpu_runtime": "runtime",
    "mtia_runtime": "runtime", "privateuse1_runtime": "runtime",
    "cuda_driver": "driver", "xpu_driver": "driver", "privateuse1_driver": "driver",
    "kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy",
    "gpu_memset": "memset", "memset": "memset",
    "gpu_user_annotation": "gpu_annotation", "python_function": "python", "overhead": "overhead",
    "cuda_sync": "sync", "xpu_sync": "sync",
}  # fmt: skip

# The 2021 layout has no category for annotations; these names are the ones that torch itself gives.
_ANNOTATION = re.compile(r"ProfilerStep#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#")


class TraceError(ValueError):
    """A trace that cannot be read; the message is one line with the file, the place and the remedy."""


@dataclass(frozen=True)
class Device:
    """One GPU as the trace describes it; what the trace does not say is None."""

    index: int | None
    name: str | None
    compute_capability: tuple[int, int] | None = None
    sm: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """Events of one trace file and what the file says about the machine.

    `events`: one row per event in time order: name, kind (one of `KINDS`), start_us (the first event is at 0)
    and duration_us, pid and thread (text), device, stream, correlation, external_id, shapes, dtypes, strides,
    concrete (one entry per argument, else None), bytes, grid, block, registers, shared_memory, python_id,
    python_parent_id. `metadata`: the file's other top-level entries. `notes`: what was odd in the file,
    mended or lost, one line each.
    """

    events: pd.DataFrame
    path: str
    devices: tuple[Device, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def device(self) -> str | None:
        """The name of the device that `record` wrote, else of the first GPU, else None."""
        recorded = _mapping(_recorded(self.metadata).get("device")).get("name")
        return str(recorded) if recorded else next((d.name for d in self.devices if d.name), None)

    @property
    def has_gpu_events(self) -> bool:
        """Whether any kernel, memcpy or memset was recorded."""
        return bool(self.events["kind"].isin(GPU_WORK).any())

    def __repr__(self) -> str:
        device = _short(units.plain(self.device or "not recorded"))
        return f"Trace({self.path!r}: {len(self.events):,} events, device {device})"


def read_trace(path: str | PathLike[str]) -> Trace:
    """The trace in this .json or .json.gz file; TraceError with the place and the remedy if there is none."""
    path = fspath(path)
    try:
        text, notes = _text(path)
        trace = _trace(text, path)
    except RecursionError:
        raise TraceError(f"{path}: is JSON but no trace, it is nested too deeply; give a profiler's trace") from None
    except MemoryError:
        raise TraceError(f"{path}: does not fit into this machine's memory; record fewer steps") from None
    return replace(trace, notes=(*notes, *trace.notes))


def from_events(events: Iterable[dict[str, Any]], **top_level: Any) -> Trace:
    """A trace from events written by hand in the profiler's layout (`ph` may be left out)."""
    rows = [{"ph": "X", **event} for event in events]
    return _trace(msgspec.json.encode({**top_level, "traceEvents": rows}), "events written by hand")


def by_hand() -> Trace:
    """The small GPU trace of chapter 1: drawn by hand with round numbers, not measured on any device."""
    from importlib import resources

    return _trace((resources.files("tutorial_lib") / "data" / "by_hand.json").read_bytes(), "by_hand.json")


# ------------------------------------------------------------------------------------ bytes to text


def _text(path: str) -> tuple[bytes, list[str]]:
    """The file's text, and notes on what was left out of it."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):  # /dev/zero never ends
                raise OSError("a device, not a file")
            data = file.read()
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file; check the path, or record a trace") from None
    except IsADirectoryError:
        raise TraceError(f"{path}: is a directory; name one .json or .json.gz file in it") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be opened ({error}); check its name and permissions") from None
    data, rest = _gunzip(data, path) if data[:2] == b"\x1f\x8b" else (data, b"")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise TraceError(f"{path}: the file is empty; the export did not finish, so record again")
    after = _count(len(rest), "byte", "bytes") + " after the gzip data; left out"
    return data, [after] if rest.strip(b"\0") else []  # zeros only pad a block


def _without_waiting(path: str, flags: int) -> int:
    """Opens a named pipe that nobody writes to as an empty file; other pipes are waited for as usual."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def _gunzip(data: bytes, path: str) -> tuple[bytes, bytes]:
    """The text of all members, and what follows them."""
    parts, rest = [], data
    while rest[:2] == b"\x1f\x8b":
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(rest))
        except zlib.error:
            at = len(data) - len(rest)
            raise TraceError(
                f"{path}: the gzip data is damaged after byte {at:,}; copy the file again, or record again"
            ) from None
        if not member.eof:
            got = sum(map(len, parts))
            raise TraceError(
                f"{path}: the gzip data is cut off after {len(data):,} bytes ({got:,} of text); "
                "copy the whole file, or record again"
            )
        rest = member.unused_data
    return b"".join(parts), rest


# ----------------------------------------------------------------------------------- text to events


_MISSING = -(2**63)  # stands for "not in the file" until the columns are made
_Number = int | float | str | None


def _named(name: str, default: Any = _MISSING) -> Any:
    return msgspec.field(default=default, name=name)


class _Args(msgspec.Struct, gc=False):
    external_id: _Number = _named("External id")
    external_id_2021: _Number = _named("external id")
    correlation: _Number = _MISSING
    device: _Number = _MISSING
    stream: _Number = _MISSING
    bytes: _Number = _MISSING
    registers: _Number = _named("registers per thread")
    shared_memory: _Number = _named("shared memory")
    python_id: _Number = _named("Python id")
    python_parent_id: _Number = _named("Python parent id")
    grid: msgspec.Raw = None
    block: msgspec.Raw = None
    shapes: msgspec.Raw = _named("Input Dims", None)
    dtypes: msgspec.Raw = _named("Input type", None)
    strides: msgspec.Raw = _named("Input Strides", None)
    concrete: msgspec.Raw = _named("Concrete Inputs", None)


class _Event(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Args | None = None


class _Bare(_Event, gc=False):
    args: msgspec.Raw = None


class _File(msgspec.Struct):
    entries: list[msgspec.Raw] = msgspec.field(name="traceEvents")


class _ExactTime(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw()


_NO_ARGS = _Args()
_LISTS = ("shapes", "dtypes", "strides", "concrete", "grid", "block")
_ARGUMENTS = {  # which kinds of event can have them: only those are asked, which halves the time
    KINDS: ("external_id", "correlation"),
    ("operator",): ("shapes", "dtypes", "strides", "concrete"),
    ("python",): ("python_id", "python_parent_id"),
    tuple(kind for kind in KINDS if kind not in ("operator", "python", "annotation")): (
        "external_id_2021", "device", "stream", "bytes", "grid", "block", "registers", "shared_memory",
    ),
}  # fmt: skip
_COLUMNS = (
    "name", "kind", "start_us", "duration_us", "pid", "thread", "device", "stream", "correlation",
    "external_id", "shapes", "dtypes", "strides", "concrete", "bytes", "grid", "block", "registers",
    "shared_memory", "python_id", "python_parent_id",
)  # fmt: skip
_BATCH = 2_000  # events decoded at a time: what they hold stays in the processor's cache, and peak memory low


def _trace(text: bytes, path: str) -> Trace:
    try:
        events, metadata, notes = _parse(text, path)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        mended, repairs = _mend(text)
        if mended == text:
            raise _not_json(error, text, path) from None
        try:
            events, metadata, notes = _parse(mended, path)
        except msgspec.DecodeError as again:
            raise _not_json(again, mended, path) from None
        notes = repairs + notes
    return Trace(events, path, _devices(metadata), _versions(metadata), metadata, tuple(notes))


def _parse(text: bytes, path: str) -> tuple[pd.DataFrame, dict[str, Any], list[str]]:
    try:
        if text.lstrip()[:1] == b"[":  # a bare list of events is a trace too
            entries, top = msgspec.json.decode(text, type=list[msgspec.Raw]), {}
        else:
            entries = msgspec.json.decode(text, type=_File).entries
            top = _top(text, entries)
    except msgspec.ValidationError:
        raise TraceError(
            f'{path}: is JSON but no trace, it has no "traceEvents" list; '
            "give the file that export_chrome_trace wrote"
        ) from None
    notes: list[str] = []
    events = _events(entries, path, notes)
    return events, {key: msgspec.json.decode(value) for key, value in top.items()}, notes


def _top(text: bytes, entries: list[msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Top-level entries but for the events, which are cut out first: no need to go through them again."""
    rest = text
    if entries:
        first, last = bytes(entries[0]), bytes(entries[-1])
        rest = text[: text.find(first, text.find(b'"traceEvents"'))] + text[text.rfind(last) + len(last) :]
    try:
        top = msgspec.json.decode(rest, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # cut wrongly: the text of the first or last event stands elsewhere as well
        top = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {key: value for key, value in top.items() if key != "traceEvents"}


def _events(entries: list[msgspec.Raw], path: str, notes: list[str]) -> pd.DataFrame:
    """The table of all timed events among the entries of "traceEvents"."""
    import numpy as np

    columns: dict[str, list[np.ndarray]] = defaultdict(list)
    arguments: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    texts, lists, lost, count, recorded = _Texts(), _Lists(), _Lost(), 0, False
    for first in range(0, len(entries), _BATCH):
        batch, start_ns = _timed(entries[first : first + _BATCH], first, lost)
        recorded = recorded or any(event.cat != "Trace" for event in batch)
        for name, values in _columns(batch, start_ns, texts).items():
            columns[name].append(values)
        for name, rows, values in _arguments(batch, columns["kind"][-1], lists):
            arguments[name].append((rows + count, values))
        count += len(batch)
    if entries and len(lost.entries) == len(entries):
        raise TraceError(
            f"{path}: is JSON but no trace, none of its entries is an event; give a profiler's trace"
        )
    if not recorded:
        raise TraceError(
            f"{path}: holds no events, the profiler recorded nothing; call prof.step() once per step until "
            "the schedule's wait + warmup + active steps are over, or profile without a schedule"
        )
    notes += lost.notes()
    if not len(dated := _dated(np.concatenate(columns["start_ns"]), notes)):
        raise TraceError(f"{path}: none of its events has a start time (ts); record again")
    return _table(columns, arguments, dated, notes)


def _timed(entries: list[msgspec.Raw], first: int, lost: _Lost) -> tuple[list[_Event], np.ndarray]:
    """The events of these entries and their start times in whole ns, `_MISSING` where an event has none.

    torch writes µs with three decimals. A double holds them exactly below 2^43 µs (102 days); torch 2.3 alone
    wrote them as time since 1970, for which the digits themselves are read.
    """
    import numpy as np

    try:
        events = msgspec.json.decode(b"[" + b",".join(entries) + b"]", type=list[_Event])
    except msgspec.ValidationError:  # some value has a type that no torch wrote
        events = [_lenient(entry, first + row, lost) for row, entry in enumerate(entries)]
    ts_us = _times_us([event.ts for event in events if event.ph == "X"])
    known = ts_us[~np.isnan(ts_us)]
    if (known >= 2**43).any() and (known % 1 != 0).any():
        exact = [_digits_ns(entry) for entry, event in zip(entries, events, strict=True) if event.ph == "X"]
        start_ns = np.array(exact, dtype=np.int64)
    else:
        whole_us, part_us = np.divmod(np.nan_to_num(ts_us), 1)
        start_ns = whole_us.astype(np.int64) * 1000 + np.rint(part_us * 1000).astype(np.int64)
        start_ns[np.isnan(ts_us)] = _MISSING
    return [event for event in events if event.ph == "X"], start_ns


_LONGEST_US = 2.0**51  # 71 years: since 1970 that is 2041, and the sum of two such times in ns is an int64


def _times_us(values: list[float | None]) -> np.ndarray:
    """Times in µs; NaN where there is none or none that a clock could show."""
    import numpy as np

    times_us = np.array(values, dtype=float)
    times_us[~(np.abs(times_us) < _LONGEST_US)] = np.nan
    return times_us


@dataclass
class _Lost:
    """Numbers of the entries that are no events, and of events whose arguments make no sense."""

    entries: list[int] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)

    def notes(self) -> list[str]:
        told = []
        if self.entries:
            said = _count(len(self.entries), "entry is", "entries are")
            told.append(f"{said} no event (the first has index {self.entries[0]:,}); left out")
        if self.arguments:
            said = _count(len(self.arguments), "event has", "events have")
            told.append(
                f"{said} arguments of a wrong type (the first has index {self.arguments[0]:,}); read without"
            )
        return told


def _lenient(entry: msgspec.Raw, number: int, lost: _Lost) -> _Event:
    """One event, numbers written as text included, without arguments when they are the trouble."""
    for kind, losing in ((_Event, None), (_Bare, lost.arguments)):
        try:
            event = msgspec.json.decode(entry, type=kind, strict=False)
        except msgspec.ValidationError:
            continue
        if losing is not None:
            losing.append(number)
            event.args = None
        return event
    lost.entries.append(number)
    return _Event()


def _digits_ns(entry: msgspec.Raw) -> int:
    found = re.fullmatch(rb'"?(\d+)(?:\.(\d+))?"?', bytes(msgspec.json.decode(entry, type=_ExactTime).ts))
    if not found or int(found[1]) >= _LONGEST_US:
        return _MISSING
    return int(found[1]) * 1000 + int((found[2] or b"")[:3].ljust(3, b"0"))


# -------------------------------------------------------------------------------- events to a table


# The same few texts and lists come thousands of times in a trace: of those that are equal one object is kept.


class _Texts(dict):
    def __missing__(self, value: int | str | None) -> str:
        return self.setdefault(value, "" if value is None else str(value))


class _Lists(dict):
    def __missing__(self, text: bytes) -> tuple | None:
        return self.setdefault(text, _tuples(msgspec.json.decode(text)))


def _tuples(value: Any) -> Any:
    if not isinstance(value, list):
        return None
    return tuple(_tuples(entry) if isinstance(entry, list) else entry for entry in value)


def _columns(events: list[_Event], start_ns: np.ndarray, texts: _Texts) -> dict[str, np.ndarray]:
    """What every event has."""
    import numpy as np

    return {
        "name": np.array([texts[event.name] for event in events], dtype=object),
        "kind": np.array(_kinds(events), dtype=np.int8),
        "start_ns": start_ns,
        "duration_us": _times_us([event.dur for event in events]),
        "pid": np.array([texts[event.pid] for event in events], dtype=object),
        "thread": np.array([texts[event.tid] for event in events], dtype=object),
    }


def _arguments(
    events: list[_Event], kinds: np.ndarray, lists: _Lists
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """What some events have: name, rows that can have it, and a value for each of those rows."""
    import numpy as np

    args = [event.args or _NO_ARGS for event in events]
    for having, names in _ARGUMENTS.items():
        rows = np.flatnonzero(np.array([kind in having for kind in KINDS])[kinds])
        asked = [args[row] for row in rows.tolist()]
        for name in names:
            values = map(attrgetter(name), asked)
            if name in _LISTS:
                tuples = [None if raw is None else lists[bytes(raw)] for raw in values]
                yield name, rows, np.fromiter(tuples, dtype=object, count=len(rows))
            else:
                yield name, rows, _integers(list(values))


def _kinds(events: list[_Event]) -> list[int]:
    """The place of each event's kind in `KINDS`."""
    kinds = [_PLACE[event.cat] for event in events]
    if _UNCERTAIN in kinds:
        pairs = zip(events, kinds, strict=True)
        kinds = [_place_by_name(event) if kind == _UNCERTAIN else kind for event, kind in pairs]
    return kinds


def _place_by_name(event: _Event) -> int:
    if event.cat is None:  # prof.events().export_chrome_trace writes no categories, but this pid
        return KINDS.index("operator" if event.pid == "CPU functions" else "other")
    return KINDS.index("annotation" if _ANNOTATION.match(event.name or "") else "operator")


class _Places(dict):
    def __missing__(self, category: str) -> int:
        return KINDS.index(_KIND_OF_CATEGORY.get(category.lower(), "other"))


_UNCERTAIN = -1
_PLACE = _Places({category: KINDS.index(kind) for category, kind in _KIND_OF_CATEGORY.items()})
_PLACE |= {"Operator": _UNCERTAIN, None: _UNCERTAIN}


def _integers(values: list[Any]) -> np.ndarray:
    """Whole numbers, `_MISSING` for null and nonsense; numbers written as text count."""
    import numpy as np

    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        numbers = (_integer(value) for value in values)
        return np.array([_MISSING if number is None else number for number in numbers], dtype=np.int64)


def _integer(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else None


def _table(
    columns: dict[str, list[np.ndarray]],
    arguments: dict[str, list[tuple[np.ndarray, np.ndarray]]],
    dated: np.ndarray,
    notes: list[str],
) -> pd.DataFrame:
    """One table in time order; of two events that start together the longer one is first."""
    import numpy as np
    import pandas as pd

    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    unfinished = ~(whole["duration_us"] >= 0)
    whole["duration_us"][unfinished] = 0.0
    _tell_unfinished(whole["name"][dated[unfinished[dated]]], notes)
    order = dated[np.lexsort((-whole["duration_us"][dated], whole["start_ns"][dated]))]
    table: dict[str, Any] = {name: values[order] for name, values in whole.items()}
    table["start_us"] = (table["start_ns"] - table["start_ns"][0]) / 1000
    table["kind"] = pd.Categorical.from_codes(table["kind"], categories=list(KINDS))
    place = np.full(len(whole["name"]), -1)
    place[order] = np.arange(len(order))
    for name in [name for names in _ARGUMENTS.values() for name in names]:
        table[name] = _spread(arguments.pop(name), place, len(order), name)
    table["external_id"] = pd.Series(table["external_id"]).fillna(pd.Series(table["external_id_2021"]))
    return _placed(pd.DataFrame({name: table[name] for name in _COLUMNS}, copy=False))


def _spread(parts: list[tuple[np.ndarray, np.ndarray]], place: np.ndarray, count: int, name: str) -> Any:
    """One column from values for rows of the file, each put in its place in the table (-1: not there)."""
    import numpy as np
    import pandas as pd

    nested = name in _LISTS
    column = np.full(count, None if nested else _MISSING, dtype=object if nested else np.int64)
    for rows, values in parts:
        at = place[rows]
        column[at[at >= 0]] = values[at >= 0]
    return column if nested else pd.arrays.IntegerArray(column, column == _MISSING)


def _dated(start_ns: np.ndarray, notes: list[str]) -> np.ndarray:
    """Rows of events with a time: not those without `ts`, or with 0 where all others are hours later."""
    import numpy as np

    lost = start_ns == _MISSING
    known = start_ns[~lost & (start_ns != 0)]
    if known.size and known.min() > 3_600e9:
        lost |= start_ns == 0
    if lost.any():
        notes.append(f"{_count(int(lost.sum()), 'event has', 'events have')} no start time; left out")
    return np.flatnonzero(~lost)


def _tell_unfinished(names: np.ndarray, notes: list[str]) -> None:
    """Events that still ran when the profiler stopped: torch gives them the duration -1 or none."""
    if len(names):
        said = _count(len(names), "event has", "events have")
        notes.append(
            f"{said} no valid duration (the first is {_short(names[0])!r}), as when the profiler stops before "
            "they end; counted as 0 µs"
        )


def _placed(frame: pd.DataFrame) -> pd.DataFrame:
    """With a device and stream for GPU events that lack them: the pid is the device, the tid the stream."""
    gpu = frame["kind"].isin(GPU_WORK)
    for column, source in (("device", "pid"), ("stream", "thread")):
        lost = gpu & frame[column].isna()
        if lost.any():
            digits = frame.loc[lost, source].str.extract(r"^(?:stream )?(\d+)$", expand=False)
            frame.loc[lost, column] = digits.map(_integer).astype("Int64")
    return frame


# -------------------------------------------------------------------------------------- the machine


def _devices(metadata: dict[str, Any]) -> tuple[Device, ...]:
    listed = metadata.get("deviceProperties") or metadata.get("computeProperties")
    return (
        tuple(_device(entry) for entry in listed if isinstance(entry, dict))
        if isinstance(listed, list)
        else ()
    )


def _device(entry: dict[str, Any]) -> Device:
    major, minor = _integer(entry.get("computeMajor")), _integer(entry.get("computeMinor"))
    name = entry.get("name")
    return Device(
        index=_integer(entry.get("id")),
        name=name if isinstance(name, str) else None,
        compute_capability=None if major is None or minor is None else (major, minor),
        sm=_integer(entry.get("numSms")),
        memory_bytes=_integer(entry.get("totalGlobalMem")),
    )


def _versions(metadata: dict[str, Any]) -> dict[str, str]:
    """Versions by what they are of ("torch", "cuda_driver"): the profiler's own and those of `record`."""
    found = {
        key.removesuffix("_version"): write(metadata[key])
        for key, write in _VERSION_KEYS.items()
        if isinstance(metadata.get(key), int | float)
    }
    recorded = _mapping(_recorded(metadata).get("versions"))
    return found | {str(key): str(value) for key, value in recorded.items() if value is not None}


def _cuda(number: float) -> str:
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"  # 12090 is 12.9


def _cupti(number: float) -> str:
    number = int(number)  # a plain counter until CUDA 12; 130001 is 13.0.1
    return str(number) if number < 10_000 else f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _hip(number: float) -> str:
    number = int(number)  # 60443483 is 6.4.43483
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


_VERSION_KEYS: dict[str, Callable[[float], str]] = {
    "cuda_driver_version": _cuda,
    "cuda_runtime_version": _cuda,
    "cupti_version": _cupti,
    "hip_runtime_version": _hip,
    "hip_driver_version": _hip,
    "roctracer_version": str,
}


def _recorded(metadata: dict[str, Any] | None) -> dict[str, Any]:
    return _mapping((metadata or {}).get("tutorial_lib"))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# ------------------------------------------------------------------------------------- damaged text

_TOKEN = re.compile(
    rb'"(?:[^"\\]|\\.)*"|(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?![\w.])', re.DOTALL | re.IGNORECASE
)
_ODD = re.compile(rb'[\x00-\x1f]|\\(?!["\\/bfnrt])')
_ESCAPE = re.compile(
    rb'\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|[\x00-\x1f]|\\(?:u[0-9a-fA-F]{4})?"
)


def _mend(text: bytes) -> tuple[bytes, list[str]]:
    """The text with the mistakes that torch is known to make mended, and a note for each kind of repair."""
    notes = []
    try:
        text.decode()
    except UnicodeDecodeError as error:
        notes.append(
            f"some text is not UTF-8 (the first at byte {error.start:,}); those bytes were replaced by \ufffd"
        )
        text = text.decode(errors="replace").encode()
    counts = {"number": 0, "string": 0}

    def mend(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if token[:1] != b'"':
            counts["number"] += 1
            return b"null"
        if not _ODD.search(token):
            return token
        fixed = _ESCAPE.sub(_mend_escape, token)
        counts["string"] += fixed != token
        return fixed

    mended = _TOKEN.sub(mend, text)
    if counts["number"]:
        notes.append(f"{_count(counts['number'], 'value is', 'values are')} NaN or infinite; read as missing")
    if counts["string"]:
        notes.append(
            f"{_count(counts['string'], 'text has', 'texts have')} characters that JSON forbids; "
            "replaced by \ufffd, single backslashes doubled"
        )
    return mended, notes


def _mend_escape(match: re.Match[bytes]) -> bytes:
    found = match.group()
    if found == b"\\":
        return b"\\\\"
    lone_surrogate = len(found) == 6 and found[2:3] in b"dD" and found[3:4] in b"89abcdefABCDEF"
    return "\ufffd".encode() if len(found) == 1 or lone_surrogate else found


def _not_json(error: ValueError, text: bytes, path: str) -> TraceError:
    if "truncated" in str(error):
        return TraceError(
            f"{path}: the JSON is cut off at byte {len(text):,}; copy the whole file, or record again"
        )
    if text.lstrip()[:1] not in (b"{", b"["):
        return TraceError(
            f"{path}: is not JSON; give a trace that export_chrome_trace wrote (.json or .json.gz)"
        )
    place = re.search(r"byte (\d+)", str(error))
    at = int(place.group(1)) if place else 0
    line = text.count(b"\n", 0, at) + 1
    return TraceError(
        f"{path}: the JSON is broken at byte {at:,}, line {line:,}; copy the file again, or record again"
    )


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:119]}…"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
