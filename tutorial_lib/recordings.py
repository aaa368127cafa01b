"""Recordings: what the chapters' workloads did on one machine, made, checked, found again and judged.

`record` runs every workload of `plan` in every variant that the machine can run, and keeps a folder: one slim
trace each, times with the profiler off, energy and clocks where the machine tells them, the program Inductor
made of a compiled one, and `manifest.json` with the machine, its measured ceilings and all checksums. Each
workload is written when it is done, so a run that was interrupted goes on where it stopped. `validate`
refuses a folder whose parts disagree, `load` and `available` find what is shipped or in a folder, and
`accuracy` lays the prediction of each operator beside its recorded time. Forward passes without gradients
only.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import math
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import pandas as pd
import torch

from tutorial_lib import cost, hardware, liger, measure, sdpa, timeline, units
from tutorial_lib.attention import BACKENDS, Attention, Decode
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware
from tutorial_lib.kernel_names import decode
from tutorial_lib.measure import Draw, Timing
from tutorial_lib.models import GeGLUMLP, Linear, MatmulAdd, _normal
from tutorial_lib.predict import predict
from tutorial_lib.trace import Trace, TraceError, read_trace

SHIPPED = Path(__file__).resolve().parent / "data" / "recordings"
MANIFEST = "manifest.json"
MOST_BYTES = 40_000  # of one compressed trace
MOST_BYTES_TOGETHER = 1_000_000  # of one machine: the package carries a few
SCHEMA = 1


class RecordingError(ValueError):
    """A recording that is not there or whose parts disagree; the message names the file and the remedy."""


# ---------------------------------------------------------------------------------------------- the workloads


@dataclass(frozen=True)
class LostEpilogue:
    """Chapter 2: [batch, in] @ [in, out] plus an addend that finds no place in the GEMM's epilogue.

    `how` is "full addend" (an addend of the output's size), "beta" (half of the bias) or "transposed" (an
    nn.Linear on a 3-D input that is not contiguous).
    """

    how: str
    batch: int
    in_features: int
    out_features: int
    dtype: str = "float32"

    def build(self, device: str | torch.device = "cpu") -> Callable[..., torch.Tensor]:
        """The function or module to run."""
        if self.how == "transposed":
            return Linear(self.batch, self.in_features, self.out_features, dtype=self.dtype).build(device)
        beta = 0.5 if self.how == "beta" else 1.0
        return lambda x, weight, addend: torch.addmm(addend, x, weight.t(), beta=beta)

    def inputs(self, device: str | torch.device = "cpu") -> tuple[torch.Tensor, ...]:
        """x, then, for all but "transposed", weight and addend."""
        options = {"dtype": self.dtype, "device": device}
        if self.how == "transposed":
            return (_normal(self.batch // 8, 8, self.in_features, **options).transpose(0, 1),)
        addend = (self.out_features,) if self.how == "beta" else (self.batch, self.out_features)
        weight = _normal(self.out_features, self.in_features, **options)
        return _normal(self.batch, self.in_features, **options), weight, _normal(*addend, **options)


@dataclass(frozen=True)
class Workload:
    """One thing to record: `name` is its own, `workload` that of the group which --only takes together.

    `variant` is "eager", "compiled" (torch.compile) or "liger". `config` builds the call and its inputs;
    `tf32` lets its float32 products run on tensor cores.
    """

    name: str
    workload: str
    variant: str
    config: Any
    tf32: bool = False


def workloads() -> dict[str, Workload]:
    """Every workload for this machine, by name; a CPU gets smaller ones."""
    kind = measure.device()
    return {w.name: w for w in plan(kind, measure.best_dtype(kind), measure._own_dtypes(kind))}


def plan(kind: str, dtype: str, dtypes: Iterable[str]) -> tuple[Workload, ...]:
    """Every workload for a device of this kind: the chapters' in `dtype`, then other dtypes, then sweeps.

    `dtypes` are those that the device multiplies, "tfloat32" among them. What takes a GPU a moment would take
    a CPU seconds, so there it is smaller.
    """
    large = kind == "cuda"
    made = [
        *_chapter_2(dtype, large),
        *_variants("geglu_mlp", GeGLUMLP(batch=64 if large else 4, dtype=dtype), "compiled", "liger"),
        *_chapter_4(dtype, large),
        *_other_dtypes(dtype, [d for d in dtypes if d != dtype], large),
        *_sweeps(dtype, large),
    ]
    return tuple(made)


def _variants(name: str, config: object, *others: str, workload: str | None = None) -> Iterator[Workload]:
    yield Workload(name, workload or name, "eager", config)
    for variant in others:
        yield Workload(f"{name}_{variant}", workload or name, variant, config)


def _chapter_2(dtype: str, large: bool) -> Iterator[Workload]:
    """Chapters 1 and 2: what is small is bound by launches."""
    yield from _variants("matmul_add_small", MatmulAdd(64, dtype), "compiled")
    yield from _variants("matmul_add_large", MatmulAdd(4096 if large else 1024, dtype), "compiled")
    yield from _variants("linear_small", Linear(1024, 32, 64, dtype=dtype), "compiled")
    yield from _variants("linear_large", Linear(8192 if large else 512, 768, 3072, dtype=dtype))
    lost = {
        "full_addend": LostEpilogue("full addend", 1024, 32, 64, dtype),
        "beta": LostEpilogue("beta", 1024, 32, 64, dtype),
        "transposed": LostEpilogue("transposed", 1024, 32, 64, dtype),
        "one_feature": Linear(1024, 32, 1, dtype=dtype),
        "one_row": Linear(1, 32, 64, dtype=dtype),
    }
    for how, config in lost.items():
        yield from _variants(f"linear_{how}", config, workload="linear_lost_epilogue")


def _chapter_4(dtype: str, large: bool) -> Iterator[Workload]:
    shape = {"batch": 8, "heads": 16, "seq": 1024} if large else {"batch": 1, "heads": 16, "seq": 512}
    for variant in ("naive", "in_place", "scaled_query", "additive"):
        config = Attention(**shape, dtype=dtype, variant=variant)
        yield from _variants(f"attention_{variant}", config, *(["compiled"] if variant == "naive" else []))
    for backend in (*BACKENDS, None):
        config = Attention(**shape, dtype=dtype, variant="sdpa", backend=backend)
        yield from _variants(f"attention_{backend or 'auto'}", config)
    step = {"batch": 8 if large else 1, "heads": 16, "kv_len": 8192 if large else 1024, "dtype": dtype}
    yield from _variants("decode_naive", Decode(**step), workload="decode")
    for backend in (*BACKENDS, None):
        config = Decode(**step, variant="sdpa", backend=backend)
        yield from _variants(f"decode_{backend or 'auto'}", config, workload="decode")
    shared = Decode(**step, kv_heads=2, variant="sdpa")
    yield from _variants("decode_shared_heads", shared, workload="decode")


def _other_dtypes(dtype: str, others: Sequence[str], large: bool) -> Iterator[Workload]:
    for other in others:
        own, tf32 = ("float32", True) if other == "tfloat32" else (other, False)
        configs = {"matmul_add_large": MatmulAdd(4096 if large else 512, own)}
        if other != "float64":
            configs["geglu_mlp"] = GeGLUMLP(batch=64 if large else 1, dtype=own)
            configs["attention_auto"] = Attention(
                *((8, 16, 1024) if large else (1, 4, 512)), dtype=own, variant="sdpa"
            )
        for name, config in configs.items():
            yield Workload(f"{name}_{other}", "dtypes", "eager", config, tf32)


def _sweeps(dtype: str, large: bool) -> Iterator[Workload]:
    sizes = (256, 512, 1024, 2048, 3000, 4095, 8192, 16384) if large else (32, 64, 128, 256, 500, 511, 768)
    for n in sizes:
        yield Workload(f"gemm_{n}", "gemm_sweep", "eager", Linear(n, n, n, bias=False, dtype=dtype))
    width, rows = (4096, (1, 8, 64, 512)) if large else (1024, (1, 4, 16, 64))
    for m in rows:
        config = Linear(m, width, width, bias=False, dtype=dtype)
        yield Workload(f"gemm_rows_{m}", "gemm_sweep", "eager", config)
    shapes = [(b, 128) for b in (1, 4, 16, 256)] + [(8, s) for s in (32, 512, 2048)]
    for batch, sequence in shapes if large else [(1, 32), (1, 64), (1, 128), (2, 64), (2, 128)]:
        config = GeGLUMLP(batch, sequence, dtype=dtype)
        yield Workload(f"geglu_mlp_{batch}x{sequence}", "geglu_sweep", "eager", config)
    batch, heads = (2, 16) if large else (1, 4)
    for variant, longest in (("naive", 4096 if large else 512), ("sdpa", 16384 if large else 1024)):
        for seq in (2**i for i in range(7 if large else 6, int(math.log2(longest)) + 1)):
            config = Attention(batch, heads, seq, dtype=dtype, variant=variant)
            name = f"attention_{'auto' if variant == 'sdpa' else variant}_{seq}"
            yield Workload(name, "attention_sweep", "eager", config)


def machine_name() -> str:
    """A name for a folder, made of that of the GPU, or of the CPU where there is none: "nvidia-h200"."""
    found = measure.environment()
    return re.sub(r"[^a-z0-9]+", "-", (found["gpu"] or found["cpu"])["name"].lower()).strip("-")


def chosen(known: Iterable[Workload], only: str | None) -> tuple[Workload, ...]:
    """Those that `only` names, by their own name or by their group's, several set apart by commas."""
    known = tuple(known)
    if only is None:
        return known
    wanted = [name.strip() for name in only.split(",")]
    names = dict.fromkeys(name for w in known for name in (w.workload, w.name))
    if unknown := [name for name in wanted if name not in names]:
        raise ValueError(f"--only {unknown[0]}: no such workload; known: {', '.join(names)}")
    return tuple(w for w in known if w.name in wanted or w.workload in wanted)


# ----------------------------------------------------------------------------------------------- the manifest


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file beside the manifest."""

    name: str
    bytes: int
    sha256: str


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What became of one workload: recorded, failed (with the first line of the error) or left out."""

    name: str
    workload: str
    variant: str
    config: dict[str, Any]
    dtype: str
    status: Literal["recorded", "failed", "left out"]
    reason: str | None = None
    date: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    trace: File | None = None
    steps: int | None = None
    notes: tuple[str, ...] = ()
    program: File | None = None
    first_call_s: float | None = None
    second_call_s: float | None = None
    warm: Timing | None = None
    flushed: Timing | None = None
    flushed_missing: str | None = None
    draw: Draw | None = None

    def __str__(self) -> str:
        said = self.reason if self.warm is None else units.duration(self.warm.median_us)
        return f"{self.name}: {self.status}, {said}"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for before anything ran: the workloads' names, and what --only said (None: nothing)."""

    names: tuple[str, ...]
    only: str | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`manifest.json`: the machine (as `measure.environment()` has it), what it can do, and what it did.

    `planned` is what it was to do, None in recordings that were made before this was written down.
    """

    schema: int
    date: str
    kind: Literal["cuda", "cpu"]
    machine: dict[str, Any]
    ceilings: Hardware
    planned: Plan | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """What was planned and has no entry, since the run was interrupted before it came to it."""
        known = {entry.name for entry in self.entries}
        return tuple(name for name in (self.planned.names if self.planned else ()) if name not in known)

    @property
    def card(self) -> str:
        return self.machine["gpu" if self.kind == "cuda" else "cpu"]["name"]

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a recording; RecordingError when it is not there or is not one."""
    path = Path(folder, MANIFEST)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise RecordingError(
            f"{path}: cannot be read ({error.strerror}); name a folder that `record` wrote"
        ) from None
    except msgspec.DecodeError as error:
        raise RecordingError(f"{path}: is no manifest of this library ({error}); record again") from None
    if found.schema != SCHEMA:
        raise RecordingError(f"{path}: has schema {found.schema}, this library reads {SCHEMA}; record again")
    if not (_named(found.machine.get("cpu")) and (found.kind == "cpu" or _named(found.machine.get("gpu")))):
        raise RecordingError(f"{path}: $.machine names no processor; record again")
    if not isinstance(found.machine.get("versions"), dict):
        raise RecordingError(f"{path}: $.machine tells no versions; record again")
    return found


def _named(processor: object) -> bool:
    return isinstance(processor, dict) and isinstance(processor.get("name"), str)


def _plain_data(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} is not written to a manifest")


def _write(path: Path, content: bytes) -> None:
    """All of the file or nothing, whatever stops this process."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    text = msgspec.json.encode(manifest, enc_hook=_plain_data)
    _write(folder / MANIFEST, msgspec.json.format(text, indent=1) + b"\n")


def _file(path: Path) -> File:
    content = path.read_bytes()
    return File(path.name, len(content), hashlib.sha256(content).hexdigest())


# -------------------------------------------------------------------------------------------------- recording


@dataclass(frozen=True)
class Seconds:
    """How long each part of a workload is measured."""

    bench: float
    draw: float
    calibrate: float


_SECONDS = {"cuda": Seconds(0.25, 1.0, 6.0), "cpu": Seconds(0.15, 1.0, 3.0)}


def record(
    folder: str | os.PathLike[str],
    wanted: Sequence[Workload],
    *,
    device: str | None = None,
    minutes: float | None = None,
    seconds: Seconds | None = None,
    only: str | None = None,
) -> Iterator[Entry]:
    """Record these workloads into a folder, and give the entry of each when it has been written.

    What the folder has recorded already is given as it is; what failed or was left out is tried again. After
    `minutes` nothing new is begun, and the rest is listed as left out. A workload that raises is an entry
    with the reason. What is planned is written down first, with the `only` by which it was `chosen`: so
    `problems` knows what an interrupted run did not come to. RecordingError when the folder holds a recording
    of another machine or other versions.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"--minutes is a positive number, got {minutes}")
    start = time.perf_counter()
    kind = device or measure.device()
    folder, seconds = Path(folder), seconds or _SECONDS[kind]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder}: no folder can be there ({error.strerror})") from None
    manifest = _planned(_begun(folder, kind, seconds), wanted, only)
    _write_manifest(folder, manifest)
    _tidy(folder, wanted, manifest)
    for workload in wanted:
        entry = manifest.entry(workload.name)
        if not _is_done(folder, workload, entry):
            if minutes is not None and time.perf_counter() - start > 60 * minutes:
                entry = _left_out(workload, f"the {minutes:g} {_LATE}")
            else:
                entry = _whole(folder, manifest, _entry(folder, workload, kind, seconds))
            manifest = _with(manifest, entry)
            _write_manifest(folder, manifest)
        yield entry


def _whole(folder: Path, manifest: Manifest, entry: Entry) -> Entry:
    """The entry, or one that failed if `validate` would refuse it, as on a machine that is too busy."""
    wrong = next(_wrong_entry(folder, manifest, entry), None)
    if wrong is None:
        return entry
    for file in _files(entry):
        (folder / file.name).unlink(missing_ok=True)
    asked = ("name", "workload", "variant", "config", "dtype", "date")
    reason = wrong.replace(f"{folder}{os.sep}", "")
    return Entry(**{name: getattr(entry, name) for name in asked}, status="failed", reason=reason)


def _begun(folder: Path, kind: str, seconds: Seconds) -> Manifest:
    """The manifest that is there, if it is of this machine, or a new one with the ceilings measured now."""
    found = measure.environment()
    date, machine = found.pop("date"), _as_read(found)
    if not (folder / MANIFEST).exists():
        ceilings = measure.calibrate(kind, seconds=seconds.calibrate)
        return Manifest(schema=SCHEMA, date=date, kind=kind, machine=machine, ceilings=ceilings)
    manifest = read_manifest(folder)
    if differing := _differing({"kind": manifest.kind, **manifest.machine}, {"kind": kind, **machine}):
        raise RecordingError(
            f"{folder}: holds a recording of another machine or versions ({differing}); name another --out"
        )
    return manifest


def _planned(manifest: Manifest, wanted: Iterable[Workload], only: str | None) -> Manifest:
    """The manifest with these workloads planned beside what was planned before."""
    names, before = tuple(w.name for w in wanted), manifest.planned
    if before is not None:
        names = tuple(dict.fromkeys((*before.names, *names)))
        asked = (before.only, only)
        only = None if None in asked else ",".join(dict.fromkeys(",".join(asked).split(",")))
    return msgspec.structs.replace(manifest, planned=Plan(names, only))


def resume(folder: str | os.PathLike[str], manifest: Manifest) -> str:
    """The command that goes on with a recording, on the machine that began it."""
    only = manifest.planned.only if manifest.planned else None
    words = ["--out", os.fspath(folder), *(["--only", only] if only else [])]
    return f"python -m tutorial_lib record {shlex.join(words)}"


def _as_read(value: object) -> Any:
    """The same as it comes out of a JSON file."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _differing(then: Mapping, now: Mapping, path: str = "") -> str:
    """The first three places at which two nested mappings differ: "versions.torch 2.12.0, now 2.13.0"."""
    places = []
    for key in dict.fromkeys([*then, *now]):
        a, b = then.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            places += [inner] if (inner := _differing(a, b, f"{path}{key}.")) else []
        elif a != b:
            places.append(f"{path}{key} {a}, now {b}")
    return ", ".join(places[:3])


def _with(manifest: Manifest, entry: Entry) -> Manifest:
    kept = [e for e in manifest.entries if e.name != entry.name]
    return msgspec.structs.replace(manifest, entries=(*kept, entry))


def _tidy(folder: Path, wanted: Iterable[Workload], manifest: Manifest) -> None:
    """Take away what an interrupted run left: unfinished files, and files of workloads that no entry has."""
    known = {file.name for entry in manifest.entries for file in _files(entry)}
    for name in (w.name for w in wanted):
        for file in (_trace_name(name), _program_name(name)):
            for path in (folder / f".{file}.part", *([] if file in known else [folder / file])):
                path.unlink(missing_ok=True)
    (folder / f".{MANIFEST}.part").unlink(missing_ok=True)
    for left in folder.glob(".recording-*"):
        shutil.rmtree(left)


def _files(entry: Entry) -> tuple[File, ...]:
    return tuple(file for file in (entry.trace, entry.program) if file is not None)


def _trace_name(name: str) -> str:
    return f"{name}.json.gz"


def _program_name(name: str) -> str:
    return f"{name}.inductor.txt"


def _is_done(folder: Path, workload: Workload, entry: Entry | None) -> bool:
    if entry is None or entry.status != "recorded" or entry.config != _config(workload):
        return False
    return all((folder / f.name).is_file() and _file(folder / f.name) == f for f in _files(entry))


def _config(workload: Workload) -> dict[str, Any]:
    return _as_read({"type": type(workload.config).__name__, **asdict(workload.config)})


def _described(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "workload": workload.workload,
        "variant": workload.variant,
        "config": _config(workload),
        "dtype": "tfloat32" if workload.tf32 else workload.config.dtype,
        "date": measure._now().date().isoformat(),
    }


def _left_out(workload: Workload, reason: str) -> Entry:
    return Entry(**_described(workload), status="left out", reason=reason)


_LATE = "minutes were over"


def out_of_time(entry: Entry) -> bool:
    """Whether a workload was left out because the minutes were over, so that it can be gone on with."""
    return entry.status == "left out" and (entry.reason or "").endswith(_LATE)


class _NotHere(Exception):
    """This machine has no way to run a workload."""


def _entry(folder: Path, workload: Workload, kind: str, seconds: Seconds) -> Entry:
    """Record one workload; what it raises is written down, so that the others are recorded all the same."""
    try:
        with _settings(workload), tempfile.TemporaryDirectory(prefix=".recording-", dir=folder) as parts:
            found = _measured(Path(parts), workload, kind, seconds)
            for part in Path(parts).iterdir():
                os.replace(part, folder / part.name)
            return Entry(**_described(workload), status="recorded", **found)
    except _NotHere as error:
        return _left_out(workload, str(error))
    except Exception as error:
        return Entry(**_described(workload), status="failed", reason=_reason(error))
    finally:
        if workload.variant == "compiled":
            torch.compiler.reset()
        if kind == "cuda":  # what is large comes last, and finds the memory that the others had
            gc.collect()
            torch.cuda.empty_cache()


@contextmanager
def _settings(workload: Workload) -> Iterator[None]:
    products = measure._float32_products("tf32") if workload.tf32 else nullcontext()
    with ExitStack() as stack:
        for setting in (torch.no_grad(), torch.random.fork_rng(devices=[]), products):
            stack.enter_context(setting)
        torch.manual_seed(0)
        yield


def _reason(error: BaseException) -> str:
    """The first line of an error, without the folders of whoever records."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return _impersonal(units.plain(text))[:300]


def _impersonal(text: str) -> str:
    for place, stands_for in ((tempfile.gettempdir(), "(tmp)"), (str(Path.home()), "~")):
        text = text.replace(place, stands_for) if len(place) > 1 else text
    return text


def _measured(parts: Path, workload: Workload, kind: str, seconds: Seconds) -> dict[str, Any]:
    inputs = workload.config.inputs(kind)
    if why_not := _unavailable(workload, inputs, kind):
        raise _NotHere(why_not)
    call = _call(workload, kind)
    program, calls_s = _first_calls(call, inputs, kind, compiled=workload.variant == "compiled")

    def step() -> object:
        return call(*inputs)

    raw, trace = parts / "raw.json.gz", parts / _trace_name(workload.name)
    measure.record(step, raw, label=workload.name, device=kind)
    steps, notes = slim(raw, trace)
    raw.unlink()
    if program is not None:
        (parts / _program_name(workload.name)).write_text(program, encoding="utf-8")
    warm = measure.bench(step, device=kind, seconds=seconds.bench)
    flushed, flushed_missing = _flushed(step, kind, seconds.bench)
    return {
        "shapes": tuple(tuple(x.shape) for x in inputs),
        "trace": _file(trace),
        "steps": steps,
        "notes": notes,
        "program": None if program is None else _file(parts / _program_name(workload.name)),
        "first_call_s": calls_s[0],
        "second_call_s": calls_s[1],
        "warm": replace(warm, samples_us=()),
        "flushed": flushed,
        "flushed_missing": flushed_missing,
        "draw": measure.draw(step, device=kind, seconds=seconds.draw),
    }


def _unavailable(workload: Workload, inputs: Sequence[torch.Tensor], kind: str) -> str | None:
    """Why this machine cannot run a workload at all; None when it may try."""
    if workload.variant == "liger":
        return liger.problem() or ("Liger's kernels are compiled for a GPU" if kind == "cpu" else None)
    backend = getattr(workload.config, "backend", None)
    if backend is None:
        return None
    if kind == "cpu" and backend not in ("flash", "math"):
        return f"a CPU has no {backend} backend"
    decodes = isinstance(workload.config, Decode)
    q, k, v = (inputs[0], *inputs[3:5]) if decodes else inputs[:3]
    choice = sdpa.sdpa_choice(q, k, v, is_causal=not decodes and workload.config.causal)
    found = next((c for c in choice.candidates if c.backend == backend), None)
    return None if found is None or found.could_run else f"{backend} cannot run it: {found.reason}"


def _call(workload: Workload, kind: str) -> Callable[..., object]:
    call = workload.config.build(kind)
    if workload.variant == "liger":
        return liger.build(workload.config, kind, like=call)
    return torch.compile(call) if workload.variant == "compiled" else call


def _first_calls(call, inputs, kind: str, *, compiled: bool) -> tuple[str | None, tuple[float, float]]:
    """Inductor's program of a compiled call, and the seconds that the first and the second call take.

    Inductor tells the profiler about its kernels on a CPU only when asked to.
    """
    if not compiled:
        return None, (_seconds(lambda: call(*inputs), kind), _seconds(lambda: call(*inputs), kind))
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    programs: list[str] = []
    with config.patch({"cpp.enable_kernel_profile": True}):
        first_s = _seconds(lambda: programs.extend(run_and_get_code(call, *inputs)[1]), kind)
    text = "\n".join(dict.fromkeys(programs))
    if not text:
        raise RuntimeError(
            "torch.compile left no program: it fell back to eager, or is disabled (TORCHDYNAMO_DISABLE)"
        )
    return _without_places(text), (first_s, _seconds(lambda: call(*inputs), kind))


_PLACES = re.compile(r"(?m)^[ \t]*#[^\n]*(?:kernel path:|File:? \"?/)[^\n]*\n")


def _without_places(program: str) -> str:
    """The program without the comments that name files of whoever compiled it."""
    return _impersonal(_PLACES.sub("", program))


def _seconds(call: Callable[[], object], kind: str) -> float:
    start = time.perf_counter()
    call()
    measure._synchronize(kind)
    return time.perf_counter() - start


def _flushed(step: Callable[[], object], kind: str, seconds: float) -> tuple[Timing | None, str | None]:
    try:
        return replace(measure.bench(step, device=kind, seconds=seconds, flush_l2=True), samples_us=()), None
    except ValueError as error:  # a CPU, or triton is missing or fails
        return None, _impersonal(str(error))


# ------------------------------------------------------------------------------------------------ slim traces

# What read_trace reads, and what a viewer shows beside a kernel.
_ARGUMENTS = (
    "External id", "external id", "correlation", "device", "stream", "bytes", "grid", "block",
    "registers per thread", "shared memory", "blocks per SM", "warps per SM", "est. achieved occupancy %",
    "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Module Hierarchy",
)  # fmt: skip
_TOP_LEVEL = ("schemaVersion", "deviceProperties", "record_shapes", "displayTimeUnit", "tutorial_lib")


def slim(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, most: int = MOST_BYTES
) -> tuple[int, tuple[str, ...]]:
    """Write a trace of `measure.record` again with what is read of it; its number of steps, and notes.

    Left out are Python frames, flow arrows, the profiler's own events, what names the machine, and arguments
    that nobody reads; times begin at 0. While it has more than `most` bytes the last step goes; ValueError
    when one step is still more.
    """
    content = msgspec.json.decode(gzip.decompress(Path(source).read_bytes()))
    unread = ("Trace", "python_function")
    events = [e for e in content["traceEvents"] if e.get("ph") == "X" and e.get("cat") not in unread]
    start_us = min(e["ts"] for e in events)
    steps = [e for e in events if e["cat"] == "user_annotation" and e["name"].startswith("ProfilerStep#")]
    steps.sort(key=lambda e: e["ts"])
    top = {k: v for k, v in content.items() if k in _TOP_LEVEL or k.endswith("_version")}
    for count in range(len(steps), 0, -1):
        end_us = steps[count - 1]["ts"] + steps[count - 1]["dur"]
        kept = [_slim_event(e, start_us) for e in events if count == len(steps) or e["ts"] <= end_us]
        top["tutorial_lib"] = {**top["tutorial_lib"], "steps": count}
        text = msgspec.json.encode(
            {**top, "traceEvents": [*_lane_names(content["traceEvents"], kept), *kept]}
        )
        packed = gzip.compress(text, 9, mtime=0)
        if len(packed) <= most:
            Path(target).write_bytes(packed)
            cut = f"the first {count} of {len(steps)} steps: all of them have over {most:,} bytes"
            return count, (() if count == len(steps) else (cut,))
    raise ValueError(
        f"the trace of one step has {len(packed):,} bytes, the most is {most:,}: record something smaller"
    )


def _slim_event(event: dict, start_us: float) -> dict:
    slim = {k: event[k] for k in ("ph", "cat", "name", "pid", "tid") if k in event}
    times = {"ts": round(event["ts"] - start_us, 3), "dur": event.get("dur")}
    arguments = {k: v for k, v in (event.get("args") or {}).items() if k in _ARGUMENTS}
    return (
        slim | {k: v for k, v in times.items() if v is not None} | ({"args": arguments} if arguments else {})
    )


def _lane_names(events: Iterable[dict], kept: Iterable[dict]) -> Iterator[dict]:
    """The events by which a viewer names processes and threads, for those that have something to show."""
    processes = {e["pid"] for e in kept}
    for event in events:
        if event.get("ph") == "M" and event.get("pid") in processes:
            yield {k: v for k, v in event.items() if k != "ts"}


# --------------------------------------------------------------------------------------------------- checking


def problems(folder: str | os.PathLike[str]) -> list[str]:
    """What is wrong with a recording, one line each with the file and the remedy; [] when it is whole."""
    folder = Path(folder)
    try:
        manifest = read_manifest(folder)
    except RecordingError as error:
        return [str(error)]
    found = [*_wrong_files(folder, manifest), *_wrong_ceilings(folder, manifest)]
    found += _not_begun(folder, manifest)
    names = [entry.name for entry in manifest.entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    found += [
        f"{folder / MANIFEST}: names {units.plain(name)} more than once; record again" for name in twice
    ]
    for entry in manifest.entries:
        found += [
            f"{place}; record {units.plain(entry.name)} again"
            for place in _wrong_entry(folder, manifest, entry)
        ]
    return found


def validate(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a recording that is whole; RecordingError with everything that is not."""
    if found := problems(folder):
        raise RecordingError("; ".join(found))
    return read_manifest(folder)


def _wrong_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    listed = {file.name for entry in manifest.entries for file in _files(entry)} | {MANIFEST}
    for name in sorted(path.name for path in folder.iterdir()):
        if name not in listed:
            yield f"{folder / name}: is not in the manifest; delete it"
    if (size := sum(path.stat().st_size for path in folder.iterdir())) > MOST_BYTES_TOGETHER:
        yield f"{folder}: has {size:,} bytes, the most is {MOST_BYTES_TOGETHER:,}; record less (--only)"


def _wrong_ceilings(folder: Path, manifest: Manifest) -> Iterator[str]:
    if manifest.ceilings.kind != manifest.kind or manifest.ceilings.name != manifest.card:
        others = f"its ceilings are of {manifest.ceilings.name}, not of {manifest.card}"
        yield f"{folder / MANIFEST}: {others}; record again"
    if not manifest.missing and not any(entry.status == "recorded" for entry in manifest.entries):
        yield f"{folder / MANIFEST}: nothing in it was recorded; record again"


def _not_begun(folder: Path, manifest: Manifest) -> Iterator[str]:
    if missing := manifest.missing:
        yield (
            f"{folder / MANIFEST}: lacks {len(missing)} of {len(manifest.planned.names)} planned workloads"
            f" ({timeline.listed(missing)}): the run was interrupted; to go on: {resume(folder, manifest)}"
        )


def _wrong_entry(folder: Path, manifest: Manifest, entry: Entry) -> Iterator[str]:
    here = f"{folder / MANIFEST}: {units.plain(entry.name)}"
    if not re.fullmatch(r"[a-z0-9_]{1,80}", entry.name):
        yield f"{here}: is no name of a workload"
    elif entry.status != "recorded":
        if not entry.reason or _files(entry):
            yield f"{here}: is {entry.status} and has {'files' if entry.reason else 'no reason'}"
    elif entry.trace is None or entry.warm is None or entry.steps is None:
        yield f"{here}: is recorded and has no {'trace' if entry.trace is None else 'time'}"
    else:
        wanted = {"trace": _trace_name(entry.name), "program": _program_name(entry.name)}
        wrong = [f for kind, name in wanted.items() if (f := getattr(entry, kind)) and f.name != name]
        if (entry.program is None) == (entry.variant == "compiled"):
            yield f"{here}: a compiled variant has a program, and no other has"
        for file in _files(entry):
            if file in wrong:
                yield f"{here}: its file cannot be called {units.plain(file.name)}"
            else:
                yield from _wrong_file(folder / file.name, file)
        yield from (f"{here}: {problem}" for problem in _wrong_times(entry, manifest.kind))
        if not wrong and (folder / entry.trace.name).is_file():
            yield from _wrong_trace(folder / entry.trace.name, manifest, entry)


def _wrong_file(path: Path, listed: File) -> Iterator[str]:
    if not path.is_file():
        yield f"{path}: is missing"
    elif _file(path) != listed:
        yield f"{path}: is not the file that was recorded, its size or checksum differs"
    elif listed.bytes > MOST_BYTES:
        yield f"{path}: has {listed.bytes:,} bytes, the most is {MOST_BYTES:,}"


_SENSIBLE_US = (0.05, 60e6)  # from less than any dispatch to a minute


def _wrong_times(entry: Entry, kind: str) -> Iterator[str]:
    for what, timing in (("warm", entry.warm), ("flushed", entry.flushed)):
        if timing is None:
            continue
        ordered = timing.q1_us <= timing.median_us <= timing.q3_us
        if not (
            ordered and _SENSIBLE_US[0] <= timing.q1_us and timing.q3_us <= _SENSIBLE_US[1] and timing.n >= 2
        ):
            quartiles = f"{timing.q1_us}, {timing.median_us}, {timing.q3_us} µs of {timing.n} samples"
            yield f"its {what} time cannot be right: quartiles {quartiles}"
        if timing.kind != kind or timing.warm != (what == "warm"):
            yield f"its {what} time is one of {timing.kind}, {'warm' if timing.warm else 'flushed'}"
    draw = entry.draw or Draw()
    if any(value is not None and not 0 <= value < 1e6 for value in (draw.energy_j, draw.power_w)):
        yield f"its energy or power cannot be right: {draw.energy_j} J, {draw.power_w} W"


def _wrong_trace(path: Path, manifest: Manifest, entry: Entry) -> Iterator[str]:
    try:
        trace = read_trace(path)
    except TraceError as error:
        yield str(error)
        return
    stamp = trace.metadata.get("tutorial_lib")
    stamp = stamp if isinstance(stamp, dict) else {}
    gpu, cpu = manifest.machine["gpu"], manifest.machine["cpu"]
    wanted = {
        "label": entry.name,
        "versions": manifest.machine["versions"],
        "cpu": cpu,
        "device": {"kind": manifest.kind, **(gpu if manifest.kind == "cuda" else cpu)},
        "steps": entry.steps,
    }
    for key, value in wanted.items():
        if stamp.get(key) != value:
            both = {key: stamp.get(key)}, {key: value}
            there = _differing(*both).replace(", now", ", there")
            yield f"{path}: was recorded with another {key} than the manifest says ({there})"
    if "host_name" in trace.metadata:
        yield f"{path}: names the host"
    if trace.has_gpu_events != (manifest.kind == "cuda"):
        has = "GPU events" if trace.has_gpu_events else "no GPU events"
        yield f"{path}: has {has}, and the manifest is of kind {manifest.kind}"
    elif len(timeline.steps(trace)) != entry.steps:
        yield f"{path}: has {len(timeline.steps(trace))} steps, the manifest says {entry.steps}"
    else:
        yield from _absurd(path, trace, entry)


_APART = 30  # the profiler makes a small operator several times as slow; more than this is no profiler


def _absurd(path: Path, trace: Trace, entry: Entry) -> Iterator[str]:
    """Whether time off the profiler and time in the trace can be of one workload."""
    items = timeline.work_items(trace)
    work_us = float(items.groupby("step")["duration_us"].sum().median()) if len(items) else 0.0
    step_us = float(timeline.steps(trace)["duration_us"].median())
    if not work_us / _APART <= entry.warm.median_us <= step_us * _APART:
        yield (
            f"{path}: its steps take {units.duration(step_us)} with {units.duration(work_us)} of work, the"
            f" manifest says {units.duration(entry.warm.median_us)} a call: was the machine busy?"
        )


# ---------------------------------------------------------------------------------------------------- finding


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """One workload as one machine ran it: trace, times with the profiler off, and what they were taken with.

    `warm` and `flushed` are times of one call (None where there was no way to flush); `program` is what
    Inductor made of a compiled variant; `ceilings` are the machine's measured rates; `draw` its energy, power
    and clocks.
    """

    name: str
    workload: str
    variant: str
    config: Mapping[str, Any]
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    trace: Trace
    warm: Timing
    flushed: Timing | None
    first_call_s: float | None
    second_call_s: float | None
    draw: Draw
    program: str | None
    card: str
    kind: str
    versions: Mapping[str, str]
    date: str
    ceilings: Hardware
    notes: tuple[str, ...]

    @property
    def machine(self) -> str:
        """Card, dtype, shapes, versions and date in one line, for captions."""
        shapes = " ".join(str(list(shape)) for shape in self.shapes)
        named = {"torch": "torch", "cuda": "CUDA", "driver": "driver"}
        versions = [
            f"{said} {self.versions[name]}" for name, said in named.items() if self.versions.get(name)
        ]
        threads = (
            [f"{self.warm.threads} thread{'s' * (self.warm.threads != 1)}"] if self.kind == "cpu" else []
        )
        return units.plain(", ".join([self.card, *threads, self.dtype, shapes, *versions, self.date]))

    @property
    def hardware(self) -> Hardware:
        """What to predict with: a card's datasheet where the library has it, else the measured ceilings."""
        if self.kind == "cuda":
            try:
                return hardware.find(self.card)
            except hardware.UnknownHardware:
                pass
        return self.ceilings

    def __str__(self) -> str:
        return f"{self.name}: {self.warm}; recorded on {self.machine}"

    def __repr__(self) -> str:
        return f"Recording({self})"


def folders(folder: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folders with a manifest in this one, itself included; those shipped with the package by default."""
    top = SHIPPED if folder is None else Path(folder)
    return tuple(
        path.parent for path in (top / MANIFEST, *sorted(top.glob(f"*/{MANIFEST}"))) if path.is_file()
    )


def load(name: str, card: str | None = None, folder: str | os.PathLike[str] | None = None) -> Recording:
    """The recording of this workload, of this card (or the part of its name given) if there are several.

    It is looked for among the shipped ones, or in `folder`. Without a card a GPU comes before a CPU, and the
    newest first. RecordingError when there is none, or when its files are not those that were recorded.
    """
    found = [
        (place, manifest, entry)
        for place in folders(folder)
        for manifest in [read_manifest(place)]
        if (entry := manifest.entry(name)) is not None and entry.status == "recorded"
        if card is None or card.lower() in manifest.card.lower()
    ]
    if not found:
        known = available(folder)
        cards = ", ".join(known["card"].unique()) or "none at all"
        of = f" of {card}" if card else ""
        raise RecordingError(
            f"no recording of {name!r}{of} (recordings are there of: {cards}; see recordings.available());"
            f" make one with: python -m tutorial_lib record --only {name}"
            if not Path(name).is_dir()
            else f"{name} is a folder: pass the name of a workload, and folder={name!r}"
        )
    return _recording(*max(found, key=lambda f: (f[1].kind == "cuda", f[2].date or "")))


def from_a_gpu(name: str, folder: str | os.PathLike[str] | None = None) -> Recording | None:
    """The newest recording of this workload on a GPU; None while nobody has contributed one."""
    found = [r for r in load_all(folder) if r.kind == "cuda" and r.name == name]
    return max(found, key=lambda r: r.date, default=None)


def _recording(folder: Path, manifest: Manifest, entry: Entry) -> Recording:
    for problem in _wrong_entry(folder, manifest, entry):
        raise RecordingError(f"{problem}; record {units.plain(entry.name)} again, or copy the folder again")
    program = entry.program and (folder / entry.program.name).read_text(encoding="utf-8")
    said = {
        f: getattr(entry, f) for f in ("name", "workload", "variant", "config", "dtype", "shapes", "warm")
    }
    said |= {f: getattr(entry, f) for f in ("flushed", "first_call_s", "second_call_s", "notes")}
    return Recording(
        **said,
        trace=read_trace(folder / entry.trace.name),
        draw=entry.draw or Draw(),
        program=program,
        card=manifest.card,
        kind=manifest.kind,
        versions={k: v for k, v in manifest.machine["versions"].items() if v is not None},
        date=entry.date or manifest.date,
        ceilings=manifest.ceilings,
    )


def load_all(folder: str | os.PathLike[str] | None = None) -> tuple[Recording, ...]:
    """Every recording that is shipped, or in this folder."""
    return tuple(
        _recording(place, manifest, entry)
        for place in folders(folder)
        for manifest in [read_manifest(place)]
        for entry in manifest.entries
        if entry.status == "recorded"
    )


_AVAILABLE = (
    "name", "workload", "variant", "card", "dtype", "shapes", "median_us", "status", "reason", "date",
    "torch",
)  # fmt: skip


def available(folder: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """One row for each workload of each recording, recorded or not: what it is, where, how long it takes."""
    rows = [
        (e.name, e.workload, e.variant, manifest.card, e.dtype, e.shapes, e.warm and e.warm.median_us)
        + (e.status, e.reason, e.date, manifest.machine["versions"].get("torch"))
        for manifest in map(read_manifest, folders(folder))
        for e in manifest.entries
    ]
    return pd.DataFrame(rows, columns=list(_AVAILABLE)).astype({"median_us": float})


# --------------------------------------------------------------------------------------------------- accuracy


@dataclass(frozen=True, eq=False, repr=False)
class Accuracy:
    """Recorded times of operators beside their predictions.

    `operators`: one row for each operator that works in a step and has recorded shapes: recording, card,
    operator, kind, dtype, shapes, measured_us (median over the steps, under the profiler), limit_us, low_us,
    high_us, bound_by, position ("inside", "above" or "below" the band), off (how many times outside).
    `uncosted`: how many more there are whose cost or rate is not known.
    """

    operators: pd.DataFrame
    uncosted: int

    def shares(self) -> pd.DataFrame:
        """One row a kind of work and one for all: its operators, and their shares inside, above and below."""
        rows = [("all", self.operators), *self.operators.groupby("kind", sort=True)]
        shares = [
            (kind, len(of), *((of["position"] == where).mean() for where in ("inside", "above", "below")))
            for kind, of in rows
            if len(of)
        ]
        columns = ["kind", "operators", "inside", "above", "below"]
        return pd.DataFrame(shares, columns=columns).set_index("kind")

    def worst(self, count: int = 10) -> pd.DataFrame:
        """Those that lie farthest outside of their band, by ratio."""
        outside = self.operators[self.operators["position"] != "inside"]
        return outside.sort_values("off", ascending=False, kind="stable").head(count).reset_index(drop=True)

    def __repr__(self) -> str:
        return f"{self.shares().to_string()}\nnot costed: {self.uncosted}"


def accuracy(recorded: Recording | Iterable[Recording] | str | os.PathLike[str] | None = None) -> Accuracy:
    """How the predictions of single operators hold in these recordings, a folder's, or all that are shipped.

    On a GPU an operator's time is that of its kernels and copies, on a CPU its self time. Predicted is with
    `Recording.hardware`. Kernels that Inductor and Liger made belong to no operator of known cost.
    """
    if recorded is None or isinstance(recorded, (str, os.PathLike)):
        recorded = load_all(recorded)
    recorded = [recorded] if isinstance(recorded, Recording) else list(recorded)
    rows, uncosted = [], 0
    for recording in recorded:
        for row in _judged(recording):
            rows, uncosted = (rows, uncosted + 1) if row is None else ([*rows, row], uncosted)
    return Accuracy(pd.DataFrame(rows, columns=list(_JUDGED)), uncosted)


_JUDGED = (
    "recording", "card", "operator", "kind", "dtype", "shapes", "measured_us", "limit_us", "low_us",
    "high_us", "bound_by", "position", "off",
)  # fmt: skip


def _judged(recording: Recording) -> Iterator[tuple | None]:
    """A row for each operator that works in a step; None where its cost or the rate for it is not known."""
    items, operators = timeline.work_items(recording.trace), timeline.operators(recording.trace)
    items = items[items["step"].notna()]
    orphans = items["operator_row"].isna()
    yield from [None] * (int(orphans.sum()) // max(1, items["step"].nunique()))
    items = items[~orphans]
    items = items.assign(copies=list(map(_copies, items["name"], items["kind"])))
    of = items.groupby("operator_row", sort=False)
    works = of.agg(us=("duration_us", "sum"), step=("step", "first"), copies=("copies", "any"))
    works["place"] = works.groupby("step").cumcount()
    children = operators.loc[operators["name"] == "aten::copy_", "parent"].dropna()
    for _, same in works.groupby("place", sort=True):
        called, measured_us = operators.loc[same.index[0]], float(same["us"].median())
        spread = bool((children == same.index[0]).any() or same["copies"].iloc[0])
        yield _row(recording, called, measured_us, spread)


def _copies(name: str, kind: str) -> bool:
    return kind == "memcpy" or kind == "kernel" and decode(name).kind == "copy"


def _row(recording: Recording, called: pd.Series, measured_us: float, spread: bool) -> tuple | None:
    work = _works(called, recording.kind, spread)
    if recording.dtype == "tfloat32":
        work = [replace(w, dtype="tfloat32") if w.flops and w.dtype == "float32" else w for w in work]
    try:
        predicted = predict(work, recording.hardware) if work else None
    except ValueError:  # no rate for this dtype
        predicted = None
    if predicted is None or not measured_us > 0:
        return None
    position = predicted.position(measured_us).split()[0]
    outside = {
        "inside": 1.0,
        "above": measured_us / predicted.high_us,
        "below": predicted.low_us / measured_us,
    }
    main = max(predicted.items, key=lambda item: item.limit_us)
    return (
        recording.name, recording.card, called["name"], work[-1].kind, work[-1].dtype, called["shapes"],
        measured_us, predicted.limit_us, predicted.low_us, predicted.high_us, main.bound_by, position,
        outside[position],
    )  # fmt: skip


def _works(called: pd.Series, kind: str, spread: bool) -> list[Work]:
    """The work of an operator, [] when it is not known; `spread`: an addend was copied over its output."""
    described = {column: called[column] for column in ("shapes", "dtypes", "strides", "concrete")}
    how = "dispatched" if kind == "cpu" else "copied"
    return cost.items_of(called["name"], **described, addend=how if spread else "read")
