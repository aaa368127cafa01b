"""A trace is a table: any Chrome trace that torch.profiler wrote since 2021, read into one DataFrame.

Covers .json and .json.gz, every layout of categories, ids and times in those years, and the damage that real
files have (unquoted NaN, control characters, broken UTF-8, missing durations, a file that was cut off), which
is mended and written down in `Trace.notes`. Not covered: instant events, counters and flow arrows (a kernel
finds its launch by `correlation`), Perfetto's binary traces and traces of other tools. What the events mean
is asked in `timeline`.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import attrgetter
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, Union

import msgspec
from isal import isal_zlib  # zlib's interface, in half its time

from tutorial_lib import units

# numpy and pandas take five times as long to import as all else here, so the functions that need them import
# them.
if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_Decoded = TypeVar("_Decoded")
_Numbered = tuple["np.ndarray", list[Any]]

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
    warp_size: int | None = None
    threads_per_sm: int | None = None
    registers_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """Events of one trace file and what the file says about the machine.

    `events`: one row per event in time order: name, kind (one of `KINDS`), start_us (the first event is at 0)
    and duration_us, pid and thread (text), device, stream, correlation, external_id, shapes, dtypes, strides,
    concrete (one entry per argument, else None), bytes, grid, block, registers, shared_memory (bytes),
    occupancy_percent (the profiler's own estimate), python_id, python_parent_id, module_hierarchy (text that
    TorchScript models leave, else None). `metadata`: the file's other top-level entries. `notes`: what was
    odd in the file, mended or lost, one line each.
    """

    events: pd.DataFrame
    path: str
    devices: tuple[Device, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _numbered: dict[str, _Numbered] = field(default_factory=dict, init=False, repr=False)

    def numbered(self, column: str) -> _Numbered:
        """For each event the number of what it has in this column (-1 for None), and the distinct values.

        Questions are faster asked once of each distinct value. For "shapes" and the like, values of two
        numbers may be equal.
        """
        if column not in self._numbered:
            import numpy as np
            import pandas as pd

            values = self.events[column]
            try:
                numbers, distinct = pd.factorize(values)
            except TypeError:  # a value that cannot be hashed: no two are taken for equal
                numbers, distinct = np.where(values.isna(), _NONE, np.arange(len(values))), values
            self._numbered[column] = numbers, distinct.tolist()
        return self._numbered[column]

    @property
    def device(self) -> str | None:
        """The name of the device that `record` wrote, else of the first GPU, else None."""
        recorded = _mapping(_recorded(self.metadata).get("device")).get("name")
        return str(recorded) if recorded else next((d.name for d in self.devices if d.name), None)

    @property
    def rank(self) -> int | None:
        """The rank of the process that recorded the trace, None when the file does not say."""
        return _integer(_mapping(self.metadata.get("distributedInfo")).get("rank"))

    @property
    def world_size(self) -> int | None:
        """How many processes ran together, None when the file does not say."""
        return _integer(_mapping(self.metadata.get("distributedInfo")).get("world_size"))

    @cached_property
    def has_gpu_events(self) -> bool:
        """Whether any kernel, memcpy or memset was recorded."""
        return bool(self.of_kind(*GPU_WORK).any())

    @cached_property
    def has_shapes(self) -> bool:
        """Whether the shapes of any operator's arguments were recorded."""
        return bool((self.numbered("shapes")[0] != _NONE).any())

    def of_kind(self, *kinds: str) -> np.ndarray:
        """For each event whether it is of one of these `KINDS`."""
        import numpy as np

        numbers, names = self.numbered("kind")
        return np.array([name in kinds for name in names], dtype=bool)[numbers]

    def __repr__(self) -> str:
        device = _short(units.plain(self.device or "not recorded"))
        return f"Trace({self.path!r}: {len(self.events):,} events, device {device})"


def read_trace(
    path: str | PathLike[str], *, max_bytes: int = 8_000_000_000, progress: bool | None = None
) -> Trace:
    """The trace in this .json or .json.gz file; TraceError with the place and the remedy if there is none.

    `max_bytes` limits the JSON, unpacked. `progress` shows a bar on stderr (None: for long files, at a
    terminal). A file that was cut off gives its whole events, and a note on what was lost.
    """
    path = fspath(path)
    try:
        text, notes = _text(path, max_bytes)
        with _bar(len(text), progress) as tell:
            return _trace(text, path, tell, notes)
    except RecursionError:
        raise TraceError(
            f"{path}: is JSON but no trace, it is nested too deeply; give a profiler's trace"
        ) from None
    except MemoryError:
        raise TraceError(f"{path}: does not fit into this machine's memory; record fewer steps") from None


def from_events(events: Iterable[dict[str, Any]], **top_level: Any) -> Trace:
    """A trace from events written by hand in the profiler's layout (`ph` may be left out)."""
    rows = [{"ph": "X", **event} for event in events]
    return _trace(msgspec.json.encode({**top_level, "traceEvents": rows}), "events written by hand")


def by_hand() -> Trace:
    """The small GPU trace of chapter 1: drawn by hand with round numbers, not measured on any device."""
    from importlib import resources

    return _trace((resources.files("tutorial_lib") / "data" / "by_hand.json").read_bytes(), "by_hand.json")


# ------------------------------------------------------------------------------------ bytes to text


_PIECE = 2**24  # bytes read or unpacked at a time


def _text(path: str, max_bytes: int) -> tuple[bytes | bytearray, list[str]]:
    """The file's text, and notes on what was left out of it."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):  # /dev/zero never ends
                raise OSError("a device, not a file")
            data = _all_of(file, path, max_bytes)
    except TraceError:
        raise
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file; check the path, or record a trace") from None
    except IsADirectoryError:
        raise TraceError(f"{path}: is a directory; name one .json or .json.gz file in it") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be opened ({error}); check its name and permissions") from None
    text, notes = _gunzip(data, path, max_bytes) if data[:2] == b"\x1f\x8b" else (data, [])
    if text[:3] == b"\xef\xbb\xbf":
        text = text[3:]
    if text[-1:] == b"\0":  # what a file system leaves of a file that was not written to its end
        size, text = len(text), text.rstrip(b"\0")
        notes.append(
            f"{_count(size - len(text), 'zero byte', 'zero bytes')} at the end of the text; left out"
        )
    if not _NOT_SPACE.search(text):
        raise TraceError(f"{path}: the file is empty; the export did not finish, so record again")
    return text, notes


_NOT_SPACE = re.compile(rb"\S")


def _all_of(file: BinaryIO, path: str, max_bytes: int) -> bytes | bytearray:
    size = os.fstat(file.fileno()).st_size
    if size > max_bytes:
        raise _too_large(path, max_bytes)
    if size:
        return file.read()
    data = bytearray()  # a pipe has the size 0
    while piece := file.read(_PIECE):
        data += piece
        if len(data) > max_bytes:
            raise _too_large(path, max_bytes)
    return data


def _too_large(path: str, max_bytes: int) -> TraceError:
    return TraceError(
        f"{path}: holds more than {max_bytes:,} bytes of JSON, the limit; record fewer steps, "
        "or raise max_bytes"
    )


def _without_waiting(path: str, flags: int) -> int:
    """Opens a named pipe that nobody writes to as an empty file; other pipes are waited for as usual."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


_SLICE = 2**16  # bytes of gzip data looked at in one go: of zeros they hold 67 MB
_JSON_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")


def _gunzip(data: bytes | bytearray, path: str, max_bytes: int) -> tuple[bytearray, list[str]]:
    """The text of all members, and notes on a cut or on what follows them."""
    text, at, begins, member = bytearray(), 0, None, isal_zlib.decompressobj(wbits=31)
    while data[at : at + 2] == b"\x1f\x8b":
        member = isal_zlib.decompressobj(wbits=31)
        while not member.eof and at < len(data):
            piece = data[at : at + _SLICE]
            try:
                text += member.decompress(piece, _PIECE)
            except isal_zlib.error:
                raise TraceError(
                    f"{path}: the gzip data is damaged after byte {at:,}; "
                    "copy the file again, or record again"
                ) from None
            at += len(piece) - len(member.unconsumed_tail) - len(member.unused_data)
            if len(text) > max_bytes:
                raise _too_large(path, max_bytes)
            if len(text) > _PIECE and not (begins := begins or _JSON_BEGINS.match(text)):
                raise _no_json(path)
        text += member.flush()
    if not member.eof:
        cut = f"the gzip data is cut off after {len(data):,} bytes"
        if not text.strip():
            raise TraceError(f"{path}: {cut}, before its text begins; copy the whole file, or record again")
        return text, [
            f"{path}: {cut} ({len(text):,} of text, all read); copy the whole file, or record again"
        ]
    after = data[at:]
    left_out = _count(len(after), "byte", "bytes") + " after the gzip data; left out"
    return text, [left_out] if after.strip(b"\0") else []  # zeros only pad a block


# --------------------------------------------------------------------------------- progress


_LONG = 50_000_000  # bytes of text from which on reading takes seconds


@contextmanager
def _bar(total: int, progress: bool | None) -> Iterator[Callable[[int], object]]:
    """Yields a function to call with the number of bytes done since the last call."""
    if progress or (progress is None and total > _LONG and sys.stderr is not None and sys.stderr.isatty()):
        from tqdm import tqdm

        with tqdm(
            total=total, desc="reading", unit="B", unit_scale=True, leave=False, file=sys.stderr
        ) as bar:
            yield bar.update
    else:
        yield lambda done: None


# ----------------------------------------------------------------------------------- text to events


_MISSING = -(2**63)  # stands for "not in the file" until the columns are made
_Number = int | float | str | None


def _named(name: str, default: Any = _MISSING) -> Any:
    return msgspec.field(default=default, name=name)


_NULL = msgspec.Raw(b"null")


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
    grid: msgspec.Raw = _NULL
    block: msgspec.Raw = _NULL
    shapes: msgspec.Raw = _named("Input Dims", _NULL)
    dtypes: msgspec.Raw = _named("Input type", _NULL)
    strides: msgspec.Raw = _named("Input Strides", _NULL)
    concrete: msgspec.Raw = _named("Concrete Inputs", _NULL)
    occupancy_percent: _Number = _named("est. achieved occupancy %")
    module_hierarchy: str | None = _named("Module Hierarchy", None)


class _Event(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    cat: str | None = None
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Args | None = None


class _Bare(_Event, tag="X", gc=False):
    args: msgspec.Raw = None


# Nothing is read of events without a duration: arrows ("s", "f"), counters, instants, names of threads.
_OTHERS = tuple(
    msgspec.defstruct(f"_Other{number}", [], tag_field="ph", tag=phase, gc=False)
    for number, phase in enumerate("sftiIMCbneBEPNODRcvV")
)
_OTHER = _OTHERS[0]()
_Entries = list[Union[(_Event, *_OTHERS)]]


class _ExactTime(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw()


class _Phase(msgspec.Struct):
    ph: msgspec.Raw = msgspec.Raw()


_NO_ARGS = _Args()
_LEFT_OUT = (_MISSING, _NULL, None)  # what stands for an argument that the file does not have
_TEXTS = ("module_hierarchy",)
_OF_CALL = ("shapes", "dtypes", "strides", "concrete")
_LISTS = (*_OF_CALL, "grid", "block")
_OF_DEVICE = (
    "external_id_2021", "device", "stream", "bytes", "grid", "block", "registers", "shared_memory",
    "occupancy_percent",
)  # fmt: skip
_ARGUMENTS = {  # which kinds of event can have them: only those are asked, which halves the time
    tuple(kind for kind in KINDS if kind != "python"): ("external_id", "correlation"),
    ("operator",): ("call", "module_hierarchy"),
    ("python",): ("python_id", "python_parent_id"),
    ("runtime", "driver"): _OF_DEVICE,
    ("kernel", "memcpy", "memset", "gpu_annotation", "overhead", "sync", "other"): _OF_DEVICE,
}  # fmt: skip
_COLUMNS = (
    "name", "kind", "start_us", "duration_us", "pid", "thread", "device", "stream", "correlation",
    "external_id", "shapes", "dtypes", "strides", "concrete", "bytes", "grid", "block", "registers",
    "shared_memory", "occupancy_percent", "python_id", "python_parent_id", "module_hierarchy",
)  # fmt: skip

# Bytes decoded at a time: what they hold stays in the processor's cache, and peak memory low. A piece should
# end between two events, known by the key that they begin with. Whether it does shows when it is decoded: a
# cut inside of an event or a text leaves something open. Then a longer piece is tried, at last all the rest.
_SIZES = (2**19, 2**20, 2**22, 2**24)
_BETWEEN = re.compile(rb'\}\s*+,(?=\s*+\{\s*+"(?:ph|name|args|cat)")')
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
_Top = dict[str, msgspec.Raw]
_Tell = Callable[[int], object]


@dataclass
class _Lost:
    """Numbers of the entries that are no events, and of events of which something makes no sense."""

    entries: list[int] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)

    def add(self, other: _Lost) -> None:
        self.entries += other.entries
        self.arguments += other.arguments
        self.names += other.names

    def notes(self) -> Iterator[str]:
        for numbers, one, many, then in (
            (self.entries, "entry is no event", "entries are no event", "left out"),
            (self.arguments, "event has arguments of a wrong type", "events have arguments of a wrong type",
             "read without"),
            (self.names, "event has a name or id of a wrong type", "events have names or ids of a wrong type",
             "read as text"),
        ):  # fmt: skip
            if numbers:
                said = _count(len(numbers), one, many)
                yield f"{said} (the first has index {numbers[0]:,}); {then}"


@dataclass
class _Source:
    """A text, how far it has been read, and what was odd in it so far."""

    text: bytes | bytearray
    path: str
    tell: _Tell
    at: int = 0
    entries: int = 0  # of "traceEvents", read so far
    ended: bool = False  # the list of events
    tail: bytes = b""  # what follows the list
    bare: bool = False  # nothing but a list of events
    second_list: bool = False
    cut: bool = False
    lost: _Lost = field(default_factory=_Lost)
    repairs: _Repairs = field(default_factory=lambda: _Repairs())

    def notes(self) -> list[str]:
        cut = (
            f"{self.path}: the JSON is cut off at byte {len(self.text):,}; what is whole was read "
            f"({_count(self.entries, 'entry', 'entries')} of traceEvents), the rest is lost; "
            "copy the whole file, or record again"
        )
        second = ['a second "traceEvents" list; left out'] * self.second_list
        return [*[cut] * self.cut, *second, *self.repairs.notes(), *self.lost.notes()]


def _trace(
    text: bytes | bytearray, path: str, tell: _Tell = lambda done: None, notes: Iterable[str] = ()
) -> Trace:
    source, of_events = _Source(text, path, tell), []
    metadata = _head(source)
    events, numbered = _events(source, of_events)
    metadata |= _tail(source)
    notes = (*notes, *source.notes(), *of_events)
    trace = Trace(events, path, _devices(metadata), _versions(metadata), metadata, notes)
    trace._numbered.update(numbered)
    return trace


def _head(source: _Source) -> dict[str, Any]:
    """What stands before the list of events; the source is then at the first of them."""
    text = source.text
    if begin := re.match(rb"\s*\[", text):  # a bare list of events is a trace too
        source.at, source.bare = begin.end(), True
        return {}
    for found in islice(re.finditer(rb'"traceEvents"\s*:\s*\[', text), 10):
        try:  # inside of a text, or deeper in the file, it leaves something open
            top = _mended(source, text[: found.end()] + b"]}", _decoded_top)
        except _NOT_JSON:
            continue
        source.at = found.end()
        return _values(top)
    try:
        _mended(source, text, _decoded_top)
    except msgspec.ValidationError:
        pass
    except _NOT_JSON as error:
        raise _not_json(source, error) from None
    raise TraceError(
        f'{source.path}: is JSON but no trace, it has no "traceEvents" list; '
        "give the file that export_chrome_trace wrote"
    )


def _tail(source: _Source) -> dict[str, Any]:
    """What stands after the list of events."""
    at = len(source.text) - len(source.tail)
    if source.bare and source.tail.strip():
        raise _broken(source, at)
    if source.bare or source.cut:
        return {}
    text = b"{" + source.tail.lstrip().removeprefix(b",")
    try:
        top = _mended(source, text, _decoded_top, at - 1)
    except _NOT_JSON as error:
        source.cut, broken = True, _broken(source, at + _place(error))
        top = _salvaged(text, b"}", broken, lambda whole: _mended(source, whole, _decoded_top, at - 1))
    source.second_list = "traceEvents" in top
    return _values(top)


def _decoded_top(text: bytes | bytearray) -> _Top:
    return msgspec.json.decode(text, type=_Top)


def _values(top: _Top) -> dict[str, Any]:
    return {key: _value(raw) for key, raw in top.items() if key != "traceEvents"}


def _value(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except _NOT_JSON:  # a number of 5,000 digits
        return bytes(raw).decode(errors="replace")


# ------------------------------------------------------------------------------- pieces of the list


def _batches(source: _Source) -> Iterator[tuple[list[Any], bytes]]:
    """The entries of "traceEvents" piece by piece, each piece with its text, which is a JSON list."""
    while not source.ended:
        begin = source.at
        entries, text = _piece(source)
        yield entries, text
        source.entries += len(entries)
        source.tell(source.at - begin)


def _piece(source: _Source) -> tuple[list[Any], bytes]:
    for size in _SIZES:
        if not (between := _BETWEEN.search(source.text, source.at + size)):
            break
        try:
            return _read(source, source.text[source.at : between.end() - 1], b"]", between.end())
        except _NOT_JSON:
            continue
    return _rest(source)


def _rest(source: _Source) -> tuple[list[Any], bytes]:
    """All that is left of the list, or what is whole of it in a file that was cut off."""
    text, end = source.text[source.at :], len(source.text)
    try:
        read = _read(source, text, b"", end)
    except _NOT_JSON as error:
        source.cut, broken = True, _broken(source, source.at - 1 + _place(error))
        read = _salvaged(b"[" + text, b"]", broken, lambda whole: _read(source, whole[1:-1], b"]", end))
    source.ended = True
    return read


def _read(source: _Source, text: bytes, close: bytes, end: int) -> tuple[list[Any], bytes]:
    """The entries in this text, after which the source goes on at `end`, and the JSON list that they are."""
    read = _mended(source, b"[" + text + close, lambda text: _entries(text, source.entries), source.at - 1)
    entries, whole, tail, lost = read
    if tail or not close:
        after = source.text[end - 1 :] if close else b""  # the comma that the piece ended before
        source.ended, source.tail = True, bytes(tail.removesuffix(close) + after)
    source.lost.add(lost)
    source.at = end
    return entries, whole


def _entries(text: bytes, first: int) -> tuple[list[Any], bytes, bytes, _Lost]:
    """Entries of the list that this text begins with, its text, what follows, and what no torch wrote."""
    lost = _Lost()
    try:
        entries, end = _decoded(text, _Entries)
    except msgspec.ValidationError:  # some value has a type that no torch wrote
        raw, end = _decoded(text, list[msgspec.Raw])
        entries = [_lenient(bytes(entry), first + row, lost) for row, entry in enumerate(raw)]
    return entries, text[:end], text[end:], lost


def _decoded(text: bytes, kind: Any) -> tuple[list[Any], int]:
    """The list that this text begins with, and where it ends."""
    try:
        return msgspec.json.decode(text, type=kind), len(text)
    except msgspec.DecodeError as error:
        if "trailing characters" not in str(error):
            raise
        near = _place(error)
    for before in (near - 1, near, near + 1):  # versions of msgspec count differently
        end = text.rfind(b"]", 0, before) + 1
        try:
            return msgspec.json.decode(text[:end], type=kind), end
        except msgspec.DecodeError as error:
            last = error
    raise last


def _lenient(entry: bytes, number: int, lost: _Lost) -> Any:
    """One event, numbers written as text included, without arguments when they are the trouble."""
    try:
        if bytes(msgspec.json.decode(entry, type=_Phase).ph) != b'"X"':
            return _OTHER
    except msgspec.ValidationError:
        lost.entries.append(number)
        return _OTHER
    for text in (entry, _with_texts(entry)):
        for kind in (_Event, _Bare):
            try:
                event = msgspec.json.decode(text, type=kind, strict=False)
            except msgspec.ValidationError:
                continue
            if kind is _Bare:
                lost.arguments.append(number)
                return _Event(event.cat, event.name, event.ts, event.dur, event.pid, event.tid)
            if text is not entry:
                lost.names.append(number)
            return event
    lost.entries.append(number)
    return _OTHER


def _with_texts(entry: bytes) -> bytes:
    """The event with its name, category and ids as texts, whatever they are."""
    values = _decoded_top(entry)
    for key in values.keys() & {"name", "cat", "pid", "tid"}:
        text = bytes(values[key])
        if not text.startswith(b'"') and text != b"null":
            values[key] = msgspec.Raw(msgspec.json.encode(text.decode(errors="replace")))
    return msgspec.json.encode(values)


_OPENS_OR_CLOSES = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)


def _whole(text: bytes) -> int | None:
    """How many bytes of a list or object that is cut off hold whole entries; None if it is not cut off."""
    depth, end = 0, 1
    for token in _OPENS_OR_CLOSES.finditer(text):
        match token.group():
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}":
                depth -= 1
                end = token.end() if depth == 1 else end
                if depth == 0:
                    return None
            case b"," if depth == 1:
                end = token.start()
    return end


def _salvaged(text: bytes, close: bytes, broken: TraceError, read: Callable[[bytes], _Decoded]) -> _Decoded:
    """What is whole of a list or object that is cut off; the error `broken` if it is no such thing."""
    end = _whole(text)
    if end is None:
        raise broken from None
    try:
        return read(text[:end] + close)
    except _NOT_JSON:
        raise broken from None


def _place(error: ValueError) -> int:
    found = re.search(r"byte (\d+)", str(error))
    return int(found[1]) if found else 0


def _broken(source: _Source, at: int) -> TraceError:
    line = source.text.count(b"\n", 0, at) + 1
    return TraceError(
        f"{source.path}: the JSON is broken at byte {at:,}, line {line:,}; "
        "copy the file again, or record again"
    )


def _not_json(source: _Source, error: ValueError) -> TraceError:
    if not _JSON_BEGINS.match(source.text):
        return _no_json(source.path)
    if _whole(source.text) is not None:
        return _nothing_whole(source)
    return _broken(source, _place(error))


def _no_json(path: str) -> TraceError:
    return TraceError(f"{path}: is not JSON; give a trace that export_chrome_trace wrote (.json or .json.gz)")


def _nothing_whole(source: _Source) -> TraceError:
    return TraceError(
        f"{source.path}: the JSON is cut off at byte {len(source.text):,}, before its first event ends; "
        "copy the whole file, or record again"
    )


# ---------------------------------------------------------------------------------- events to columns


def _events(source: _Source, notes: list[str]) -> tuple[pd.DataFrame, dict[str, _Numbered]]:
    """The table of all timed events among the entries of "traceEvents", and its numbered columns."""
    import numpy as np

    path, read, recorded = source.path, _Read(_Lists(source.repairs)), False
    for entries, text in _batches(source):
        events, start_ns = _timed(entries, text)
        recorded = recorded or any(event.cat != "Trace" for event in events)
        read.add(events, start_ns)
    if source.entries and len(source.lost.entries) == source.entries:
        raise TraceError(
            f"{path}: is JSON but no trace, none of its entries is an event; give a profiler's trace"
        )
    if not recorded and source.cut:
        raise _nothing_whole(source)
    if not recorded:
        raise TraceError(
            f"{path}: holds no events, the profiler recorded nothing; call prof.step() once per step until "
            "the schedule's wait + warmup + active steps are over, or profile without a schedule"
        )
    if not len(dated := _dated(np.concatenate(read.columns["start_ns"]), notes)):
        raise TraceError(f"{path}: none of its events has a start time (ts); record again")
    return _table(read, dated, notes)


def _timed(entries: list[Any], text: bytes) -> tuple[list[_Event], np.ndarray]:
    """The events among these entries and their start times in whole ns, `_MISSING` where one has none.

    torch writes µs with three decimals. A double holds them exactly below 2^43 µs (102 days); torch 2.3 alone
    wrote them as time since 1970, for which the digits themselves are read.
    """
    import numpy as np

    events = [entry for entry in entries if type(entry) is _Event]
    ts_us = _times_us([event.ts for event in events])
    known = ts_us[~np.isnan(ts_us)]
    if (known >= 2**43).any() and (known % 1 != 0).any():
        raw = zip(msgspec.json.decode(text, type=list[msgspec.Raw]), entries, strict=True)
        exact = [_digits_ns(digits) for digits, entry in raw if type(entry) is _Event]
        start_ns = np.array(exact, dtype=np.int64)
    else:
        at_us = np.nan_to_num(ts_us)
        whole_us = np.floor(at_us)
        start_ns = whole_us.astype(np.int64) * 1000 + np.rint((at_us - whole_us) * 1000).astype(np.int64)
        start_ns[np.isnan(ts_us)] = _MISSING
    return events, start_ns


_LONGEST_US = 2.0**51  # 71 years: since 1970 that is 2041, and the sum of two such times in ns is an int64


def _times_us(values: list[float | None]) -> np.ndarray:
    """Times in µs; NaN where there is none or none that a clock could show."""
    import numpy as np

    times_us = np.array(values, dtype=float)
    times_us[~(np.abs(times_us) < _LONGEST_US)] = np.nan
    return times_us


def _digits_ns(entry: msgspec.Raw) -> int:
    found = re.fullmatch(rb'"?(\d+)(?:\.(\d+))?"?', bytes(msgspec.json.decode(entry, type=_ExactTime).ts))
    if not found or int(found[1]) >= _LONGEST_US:
        return _MISSING
    return int(found[1]) * 1000 + int((found[2] or b"")[:3].ljust(3, b"0"))


# -------------------------------------------------------------------------------- events to a table


# The same few texts and lists come thousands of times in a trace: each is made once, and until the table is made
# numbers stand for them. So they do for what comes together: an event's category, name and lane, and an
# operator's arguments.


class _Texts(dict):
    def __init__(self) -> None:
        self.values: list[str] = []
        self.known: dict[str, int] = {}

    def __missing__(self, value: int | str | None) -> int:
        text = "" if value is None else str(value)
        number = self.known.setdefault(text, len(self.values))
        if number == len(self.values):
            self.values.append(text)
        return self.setdefault(value, number)


class _Heads(dict):
    """Category, name, pid and tid; `parts` has the numbers of the last three in `texts`."""

    def __init__(self) -> None:
        self.texts = {name: _Texts() for name in ("name", "pid", "thread")}
        self.kinds = bytearray()  # places in `KINDS`
        self.parts: list[tuple[int, ...]] = []

    def __missing__(self, head: tuple) -> int:
        self.kinds.append(_kind(*head[:3]))
        self.parts.append(tuple(of[value] for of, value in zip(self.texts.values(), head[1:], strict=True)))
        return self.setdefault(head, len(self.parts) - 1)


class _Lists(dict):
    def __init__(self, repairs: _Repairs) -> None:
        self.repairs = repairs
        self.values: list[tuple] = []

    def __missing__(self, text: bytes) -> int:
        try:
            value = msgspec.json.decode(text)
        except _NOT_JSON:  # the first look at a file does not look into texts in lists
            self.repairs.forbidden += 1
            value = _mended_list(text)
        if not isinstance(value, list):
            return self.setdefault(text, _NONE)
        self.values.append(_tuples(value))
        return self.setdefault(text, len(self.values) - 1)


class _Calls(dict):
    """The texts of an operator's lists, joined by zero bytes; `parts` has their numbers."""

    def __init__(self, lists: _Lists) -> None:
        self.lists = lists
        self.parts: list[tuple[int, ...]] = []

    def __missing__(self, texts: bytes) -> int:
        self.parts.append(tuple(self.lists[text] for text in texts.split(_AND)))
        return self.setdefault(texts, len(self.parts) - 1)


_NONE = -1  # the number of what is not there


def _mended_list(text: bytes) -> Any:
    try:
        return msgspec.json.decode(_mend(text)[0])
    except _NOT_JSON:  # a number of 5,000 digits
        return None


def _tuples(value: list[Any]) -> tuple:
    return tuple(_tuples(entry) if isinstance(entry, list) else entry for entry in value)


class _Read:
    """The events read so far, as columns in pieces: `columns` of all, `arguments` with the rows that have them."""

    def __init__(self, lists: _Lists) -> None:
        self.heads, self.lists, self.calls = _Heads(), lists, _Calls(lists)
        self.columns: dict[str, list[np.ndarray]] = defaultdict(list)
        self.arguments: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
        self.count = 0

    def add(self, events: list[_Event], start_ns: np.ndarray) -> None:
        import numpy as np

        heads = self.heads
        head = np.array([heads[e.cat, e.name, e.pid, e.tid] for e in events], dtype=np.int32)
        self.columns["head"].append(head)
        self.columns["start_ns"].append(start_ns)
        self.columns["duration_us"].append(_times_us([event.dur for event in events]))
        args = [event.args or _NO_ARGS for event in events]
        kinds = np.frombuffer(heads.kinds, dtype=np.int8)[head]
        for having, names in _ARGUMENTS.items():
            rows = np.flatnonzero(np.array([kind in having for kind in KINDS])[kinds])
            asked = [args[row] for row in rows.tolist()]
            for name in names if asked else ():
                if (values := self._values(name, asked)) is not None:
                    self.arguments[name].append((rows + self.count, values))
        self.count += len(events)

    def _values(self, name: str, asked: list[_Args]) -> np.ndarray | None:
        """What each of them has under this name, None if none has anything."""
        import numpy as np

        if name == "call":
            return np.array([self.calls[texts] for texts in _texts_of_calls(asked)], dtype=np.int32)
        values = list(map(attrgetter(name), asked))
        if values[0] in _LEFT_OUT and values.count(values[0]) == len(values):
            return None
        if name in _TEXTS:
            return np.fromiter(values, dtype=object, count=len(values))
        if name in _LISTS:
            return np.array([self.lists[text] for text in _bytes(values)], dtype=np.int32)
        return _integers(values)


# JSON that was decoded, and so its lists too, has neither of these bytes.
_AND, _NEXT = b"\0", b"\1"


def _bytes(values: list[msgspec.Raw]) -> list[bytes]:
    """Each as bytes: joined and split again, in a third of the time that bytes() of each takes."""
    return _NEXT.join(values).split(_NEXT)


def _texts_of_calls(asked: list[_Args]) -> list[bytes]:
    """For each operator the texts of `_OF_CALL`, joined by zero bytes; made as in `_bytes`."""
    parts = [
        part
        for a in asked
        for part in (a.shapes, _AND, a.dtypes, _AND, a.strides, _AND, a.concrete, _NEXT)
    ]
    return b"".join(parts[:-1]).split(_NEXT)


def _kind(category: str | None, name: str | None, pid: int | str | None) -> int:
    """The place of the kind in `KINDS`."""
    if category is None:  # prof.events().export_chrome_trace writes no categories, but this pid
        return KINDS.index("operator" if pid == "CPU functions" else "other")
    if category == "Operator":
        return KINDS.index("annotation" if _ANNOTATION.match(name or "") else "operator")
    return KINDS.index(_KIND_OF_CATEGORY.get(category) or _KIND_OF_CATEGORY.get(category.lower(), "other"))


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
    read: _Read, dated: np.ndarray, notes: list[str]
) -> tuple[pd.DataFrame, dict[str, _Numbered]]:
    """One table in time order; of two events that start together the longer one is first."""
    import numpy as np
    import pandas as pd

    head, start_ns, duration_us = (np.concatenate(read.columns[c]) for c in ("head", "start_ns", "duration_us"))
    unfinished = ~(duration_us >= 0)
    duration_us[unfinished] = 0.0
    texts = {name: of.values for name, of in read.heads.texts.items()}
    of_head = dict(zip(texts, np.array(read.heads.parts, dtype=np.int32).T, strict=True))
    _tell_unfinished([texts["name"][of_head["name"][h]] for h in head[dated[unfinished[dated]]]], notes)
    order = dated[_in_time(start_ns[dated], duration_us[dated])]
    head, start_ns = head[order], start_ns[order]
    table: dict[str, Any] = {"start_us": (start_ns - start_ns[0]) / 1000, "duration_us": duration_us[order]}
    place = np.full(read.count, -1)
    place[order] = np.arange(len(order))
    old = "external_id_2021" in read.arguments
    for name in dict.fromkeys(name for names in _ARGUMENTS.values() for name in names):
        table[name] = _spread(read.arguments.pop(name, []), place, len(order), name)
    if old:
        table["external_id"] = pd.Series(table["external_id"]).fillna(pd.Series(table["external_id_2021"]))
    of_call = np.array([*read.calls.parts, (_NONE,) * len(_OF_CALL)], dtype=np.int32).T
    table |= dict(zip(_OF_CALL, of_call[:, table["call"]], strict=True))
    numbered = {name: (of_head[name][head], of) for name, of in texts.items()}
    numbered |= {name: (table[name], read.lists.values) for name in _LISTS}
    numbered["kind"] = np.frombuffer(bytes(read.heads.kinds), dtype=np.int8)[head], list(KINDS)
    table |= {name: pd.Series(of).array.take(numbers) for name, (numbers, of) in numbered.items() if name in texts}
    table |= {name: _objects(read.lists.values)[table[name]] for name in _LISTS}
    table["kind"] = pd.Categorical.from_codes(*numbered["kind"])
    return _placed(pd.DataFrame({name: table[name] for name in _COLUMNS}, copy=False)), numbered


def _in_time(start: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """By start, of equals the longer first, then as in the file; few are equal, so only those are sorted twice."""
    import numpy as np

    order = np.argsort(start, kind="stable")
    same = np.diff(start[order]) == 0
    among = np.flatnonzero(np.append(same, False) | np.append(False, same))
    rows = order[among]
    order[among] = rows[np.lexsort((-duration[rows], start[rows]))]
    return order


def _objects(values: list[Any]) -> np.ndarray:
    """These as an array, and None at its end, which the number -1 stands for."""
    import numpy as np

    return np.fromiter([*values, None], dtype=object, count=len(values) + 1)


def _spread(parts: list[tuple[np.ndarray, np.ndarray]], place: np.ndarray, count: int, name: str) -> Any:
    """One column from values for rows of the file, each put in its place in the table (-1: not there)."""
    import numpy as np
    import pandas as pd

    numbers = name in (*_LISTS, "call")
    missing, dtype = (
        (_NONE, np.int32) if numbers else (None, object) if name in _TEXTS else (_MISSING, np.int64)
    )
    column = np.full(count, missing, dtype=dtype)
    if parts:
        rows, values = map(np.concatenate, zip(*parts, strict=True))
        at = place[rows]
        column[at[at >= 0]] = values[at >= 0]
    if name in _TEXTS:
        return pd.Series(column, dtype=object)
    return column if numbers else pd.arrays.IntegerArray(column, column == _MISSING)


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
        warp_size=_integer(entry.get("warpSize")),
        threads_per_sm=_integer(entry.get("maxThreadsPerMultiprocessor")),
        registers_per_sm=_integer(entry.get("regsPerMultiprocessor")),
        shared_memory_per_sm_bytes=_integer(
            entry.get("sharedMemPerMultiprocessor", entry.get("maxSharedMemoryPerMultiProcessor"))
        ),
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
    rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?![\w.])',
    re.DOTALL | re.IGNORECASE,
)
_ODD = re.compile(rb'[\x00-\x1f]|\\(?!["\\/bfnrt])')
_ESCAPE = re.compile(
    rb'\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|[\x00-\x1f]|\\(?:u[0-9a-fA-F]{4})?"
)


@dataclass
class _Repairs:
    not_finite: int = 0
    forbidden: int = 0
    not_utf8: int | None = None  # the first such byte

    def add(self, other: _Repairs, at: int) -> None:
        self.not_finite += other.not_finite
        self.forbidden += other.forbidden
        if self.not_utf8 is None and other.not_utf8 is not None:
            self.not_utf8 = other.not_utf8 + at

    def notes(self) -> Iterator[str]:
        if self.not_utf8 is not None:
            first = f"the first at byte {self.not_utf8:,}"
            yield f"some text is not UTF-8 ({first}); those bytes were replaced by \ufffd"
        if self.not_finite:
            yield f"{_count(self.not_finite, 'value is', 'values are')} NaN or infinite; read as missing"
        if self.forbidden:
            said = _count(self.forbidden, "text has", "texts have")
            yield f"{said} characters that JSON forbids; replaced by \ufffd, single backslashes doubled"


def _mended(source: _Source, text: bytes, decode: Callable[[bytes], _Decoded], at: int = 0) -> _Decoded:
    """What `decode` makes of the text, mended if it must be; it begins at this byte of the source."""
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise
    except _NOT_JSON:
        mended, repairs = _mend(text)
        if mended == text:
            raise
        found = decode(mended)
    source.repairs.add(repairs, at)
    return found


def _mend(text: bytes) -> tuple[bytes, _Repairs]:
    """The text with the mistakes that torch is known to make mended, and how many there were."""
    repairs = _Repairs()
    try:
        text.decode()
    except UnicodeDecodeError as error:
        repairs.not_utf8 = error.start
        text = text.decode(errors="replace").encode()

    def mend(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if token[:1] != b'"':
            repairs.not_finite += 1
            return b"null"
        if not _ODD.search(token):
            return token
        fixed = _ESCAPE.sub(_mend_escape, token)
        repairs.forbidden += fixed != token
        return fixed

    return _TOKEN.sub(mend, text), repairs


def _mend_escape(match: re.Match[bytes]) -> bytes:
    found = match.group()
    if found == b"\\":
        return b"\\\\"
    lone_surrogate = len(found) == 6 and found[2:3] in b"dD" and found[3:4] in b"89abcdefABCDEF"
    return "\ufffd".encode() if len(found) == 1 or lone_surrogate else found


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:119]}…"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
