"""How long work should take, a band above a hard limit, and how much of it there is, which needs no clock.

`limit_us` is what the rates of the device allow and no more. The band adds what real kernels lose. On a GPU a
model of the kernel says how much, term by term (`kernel_time_gemm`, `kernel_time_memory`), from shapes alone or
with the names of the kernels that ran (`work_time`); on a CPU the losses are the wide `Terms` of the kind of work.
Time is device busy time of one call, the sum over its work items; waiting for the CPU between them is not
predicted. A reader's own prediction (`guess`) is the same noun.
"""

import html
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

import pandas as pd

from tutorial_lib import kernel_time_gemm, kernel_time_memory, units
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware
from tutorial_lib.kernel_time import Ran, Tensor

Band = tuple[float, float]


@dataclass(frozen=True)
class Terms:
    """What kernels of one kind lose, each as (low, high): a fixed time, and shares of the rates."""

    fixed_us: Band
    compute_share: Band
    memory_share: Band
    source: str


@dataclass(frozen=True)
class WorkTime:
    """The predicted time of one work item; `bound_by` is compute, vector, memory or fixed cost.

    On a GPU `terms` add up to `typical_us`, the middle of the band, each by its name in µs; `source` says what the
    constants behind them come from. On a CPU there is a band only.
    """

    work: Work
    limit_us: float
    low_us: float
    high_us: float
    bound_by: str
    typical_us: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict, hash=False, compare=False)
    source: str = ""

    @property
    def explained_by(self) -> str | None:
        """The term that adds most to what the rates allow; None on a CPU and where nothing adds."""
        adds = {name: us for name, us in self.terms.items() if name not in _WORK_ITSELF and us > 0}
        return max(adds, key=adds.get) if adds else None


_WORK_ITSELF = ("roofline", "memory", "compute", "limit")


def terms_for(work: Work, on: Hardware) -> Terms:
    """The losses to expect of this work on a CPU; what GPU kernels lose is in `kernel_time`."""
    if on.kind != "cpu":
        raise ValueError(f"{on.name} is no CPU: its terms are those of work_time(work, on).terms, in µs")
    return _cpu_terms(work, on)


def _cpu_terms(work: Work, on: Hardware) -> Terms:
    compute = (0.25, 1.0) if work.kind == "gemm" else (0.1, 1.0)
    # The lower share of the bandwidth: the first write to fresh memory goes page by page. Data that stayed in a cache
    # moves several times as fast as calibrate()'s, and then the time lies below the limit: that is a finding.
    source = (
        "tried with torch 2.13 on a 2-core x86 server: products reach 0.25 and more of the calibrated rate,"
        " attention and function values 0.1 and more, and an operator takes 0.5 to 20 µs beside its work"
    )
    return Terms((0.3 * on.launch_us, 10 + 10 * on.launch_us), compute, (0.15, 1.0), source)


def _parts(work: Work, on: Hardware) -> dict[str, float]:
    """Time in µs of each resource at its full rate."""
    needed = work.flops - work.skippable_flops
    return {
        "compute": needed / on.rate(work.dtype) * 1e6 if needed else 0.0,
        "vector": work.vector_flops / on.vector_rate * 1e6 if work.vector_flops else 0.0,
        "memory": work.bytes_moved / on.bytes_per_s * 1e6,
    }


def work_time(
    work: Work,
    on: Hardware,
    *,
    inputs: Sequence[Tensor] = (),
    ran: Sequence[Ran] = (),
    terms: Collection[str] | None = None,
) -> WorkTime:
    """The time of one work item; `inputs` add strides, `ran` the kernels that ran, where a trace was read.

    With `terms` only those of the model's terms are used (`kernel_time_gemm.TERMS`, `kernel_time_memory.TERMS`), so
    that what each of them buys can be seen. ValueError when the device has no rate for the dtype.
    """
    if on.kind == "cpu":
        return _cpu_time(work, on)
    parts = _parts(work, on)
    resource = max(parts, key=parts.get)
    if not any(parts.values()) or (work.kind == "gemm" and not work.flops):  # an empty tensor, or a k of 0
        limit_us, start = parts[resource], on.launch_us
        terms = {"roofline": limit_us, "fixed cost": start}
        high_us, typical_us = limit_us + 4 * start, limit_us + start
        return WorkTime(work, limit_us, limit_us, high_us, "fixed cost", typical_us, terms, on.source)
    model = kernel_time_gemm if work.kind == "gemm" else kernel_time_memory
    used = model.TERMS if terms is None else model.TERMS & frozenset(terms)
    found = model.estimate(work, on, inputs=tuple(inputs), ran=tuple(ran), terms=used)
    fixed_us = sum(found.terms.get(name, 0.0) for name in _FIXED)
    bound_by = "fixed cost" if fixed_us > found.limit_us else resource
    return WorkTime(
        work, found.limit_us, found.low_us, found.high_us, bound_by, found.typical_us, found.terms, found.source
    )


_FIXED = ("fixed cost", "launch", "start")


def _cpu_time(work: Work, on: Hardware) -> WorkTime:
    terms, parts = terms_for(work, on), _parts(work, on)
    limit, resource = max((time, name) for name, time in parts.items())
    low = {name: time / _share(terms, name)[1] for name, time in parts.items()}
    high = {name: time / _share(terms, name)[0] for name, time in parts.items()}
    if work.skippable_flops:  # a kernel that computes the masked half pays for all of it
        high["compute"] = work.flops / on.rate(work.dtype) * 1e6 / terms.compute_share[0]
    # At best the resources are used at the same time, at worst one after the other.
    return WorkTime(
        work,
        limit_us=limit,
        low_us=terms.fixed_us[0] + max(low.values()),
        high_us=terms.fixed_us[1] + sum(high.values()),
        bound_by="fixed cost" if terms.fixed_us[0] > limit else resource,
    )


def _share(terms: Terms, resource: str) -> Band:
    return terms.memory_share if resource == "memory" else terms.compute_share


@dataclass(frozen=True, repr=False)
class Prediction:
    """What one call should show; a quantity that is None was not predicted. `notes` say what is uncertain."""

    operators: tuple[str, ...] | None = None
    work_items: int | None = None
    launches: int | None = None
    flops: int | None = None
    bytes_moved: int | None = None
    limit_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    items: tuple[WorkTime, ...] = ()
    hardware: str | None = None
    author: str = "model"
    typical_us: float | None = None
    notes: tuple[str, ...] = ()

    def position(self, time_us: float) -> str:
        """Where a measured time lies: below the limit, below the band, inside the band or above the band.

        ValueError when no time was predicted.
        """
        if self.low_us is None or self.high_us is None:
            raise ValueError("no time was predicted: pass time_us to guess(), or use predict()")
        if time_us != 0:  # nothing at all takes no time
            _positive("time_us", time_us)
        if self.limit_us is not None and time_us < self.limit_us:
            return "below the limit"
        if time_us < self.low_us:
            return "below the band"
        return "inside the band" if time_us <= self.high_us else "above the band"

    def table(self) -> pd.DataFrame:
        """One row a work item, in order; without rows for a reader's guess."""
        columns = (
            "operator",
            "kind",
            "dtype",
            "shapes",
            "flops",
            "bytes_moved",
            "limit_us",
            "low_us",
            "high_us",
            "bound_by",
            "typical_us",
        )
        rows = [
            (i.work.operator, i.work.kind, i.work.dtype, i.work.shapes, i.work.flops, i.work.bytes_moved)
            + (i.limit_us, i.low_us, i.high_us, i.bound_by, i.typical_us)
            for i in self.items
        ]
        return pd.DataFrame(rows, columns=columns)

    def quantities(self) -> pd.DataFrame:
        """What was predicted, one row each with its value as text: [quantity, predicted]."""
        return pd.DataFrame(self._lines(), columns=("quantity", "predicted"))

    def _lines(self) -> list[tuple[str, str]]:
        lines = [
            (
                "operators",
                None if self.operators is None else " → ".join(map(units.plain, self.operators)) or "none",
            ),
            ("work items", _or_none(str, self.work_items)),
            ("launches", _or_none(str, self.launches)),
            ("FLOPs", _or_none(units.work, self.flops)),
            ("bytes moved", _or_none(units.data, self.bytes_moved)),
            ("limit", _or_none(units.duration, self.limit_us)),
            ("typical", _or_none(units.duration, self.typical_us)),
            ("band", None if self.low_us is None else units.band(self.low_us, self.high_us)),
        ]
        return [(quantity, text) for quantity, text in lines if text is not None]

    def _title(self) -> str:
        who = "A reader's prediction" if self.author == "reader" else "Prediction"
        return f"{who} for one call" + (f" on {units.plain(self.hardware)}" if self.hardware else "")

    def __str__(self) -> str:
        lines = self._lines() or [("nothing", "no quantity was predicted")]
        width = max(len(quantity) for quantity, _ in lines)
        text = [self._title(), *(f"  {quantity:<{width}}  {value}" for quantity, value in lines)]
        text += _columns([_HEADINGS, *map(_cells, self.items)]) if self.items else []
        return "\n".join([*text, *(f"  {units.plain(note)}" for note in self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        quantities = "".join(
            f'<tr><th scope="row">{html.escape(q)}</th><td>{html.escape(v)}</td></tr>'
            for q, v in self._lines()
        )
        parts = [f"<table><caption>{html.escape(self._title())}</caption><tbody>{quantities}</tbody></table>"]
        if self.items:
            head = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in _HEADINGS)
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in _cells(i)) + "</tr>"
                for i in self.items
            )
            caption = "<caption>Its work items, in order</caption>"
            parts.append(f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        return "".join([*parts, *(f"<p>{html.escape(units.plain(note))}</p>" for note in self.notes)])


_HEADINGS = ("operator", "shapes", "dtype", "FLOPs", "bytes", "limit", "band", "bound by")


def _cells(item: WorkTime) -> tuple[str, ...]:
    work = item.work
    shapes = " ".join("[" + ", ".join(map(str, shape)) + "]" for shape in work.shapes)
    return (
        units.plain(work.operator),
        shapes,
        units.plain(work.dtype),
        units.work(work.flops),
        units.data(work.bytes_moved),
        units.duration(item.limit_us),
        units.band(item.low_us, item.high_us),
        item.bound_by,
    )


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _or_none(write, value):
    return None if value is None else write(value)


def predict(
    work: Work | Iterable[Work],
    on: Hardware,
    *,
    operators: Iterable[str] | None = None,
    launches: int | None = None,
    notes: Iterable[str] = (),
) -> Prediction:
    """The prediction for these work items, one after the other, on this device; no work takes no time.

    `operators` (those that work, in order), `launches` and `notes` are passed on when given; they need torch
    to be found (see `dispatch`). ValueError when the device has no rate for a dtype that products are
    computed in.
    """
    items = tuple(work_time(w, on) for w in ([work] if isinstance(work, Work) else work))
    return Prediction(
        operators=None if operators is None else tuple(operators),
        work_items=len(items),
        launches=launches,
        flops=sum(i.work.flops for i in items),
        bytes_moved=sum(i.work.bytes_moved for i in items),
        limit_us=math.fsum(i.limit_us for i in items),
        low_us=math.fsum(i.low_us for i in items),
        high_us=math.fsum(i.high_us for i in items),
        items=items,
        hardware=on.name,
        typical_us=_sum_or_none(i.typical_us for i in items),
        notes=tuple(notes),
    )


def _sum_or_none(values: Iterable[float | None]) -> float | None:
    values = list(values)
    return None if None in values else math.fsum(values)


def guess(
    *,
    operators: Iterable[str] | str | None = None,
    work_items: int | None = None,
    launches: int | None = None,
    flops: float | None = None,
    bytes_moved: float | None = None,
    time_us: float | Band | None = None,
) -> Prediction:
    """A reader's own prediction; leave out what you do not want to commit to.

    Operators may be written without "aten::". A single time stands for the band within a factor of 1.25 of
    it; give (low, high) for a band of your own. ValueError names an argument that no measurement could equal.
    """
    low, high = (None, None) if time_us is None else _band_of(time_us)
    return Prediction(
        operators=None if operators is None else _names(operators),
        work_items=_count("work_items", work_items),
        launches=_count("launches", launches),
        flops=_count("flops", flops),
        bytes_moved=_count("bytes_moved", bytes_moved),
        low_us=low,
        high_us=high,
        author="reader",
    )


def _names(operators: Iterable[str] | str) -> tuple[str, ...]:
    one = isinstance(operators, str) or not isinstance(operators, Iterable)
    names = [operators] if one else list(operators)
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError(f"operators are names such as 'aten::mm', got {names!r}")
    return tuple(name.strip() if "::" in name else f"aten::{name.strip()}" for name in names)


def _count(argument: str, value: float | None) -> int | None:
    if value is None:
        return None
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not (number and units.finite(value) and value >= 0 and value == int(value)):
        raise ValueError(f"{argument} is a whole number of 0 or more, got {value!r}")
    return int(value)


def _positive(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not (units.finite(value) and value > 0):
        raise ValueError(f"{argument} is a positive number of microseconds, got {value!r}")
    return float(value)


def _band_of(time_us: object) -> Band:
    if isinstance(time_us, (tuple, list)):
        if len(time_us) != 2:
            raise ValueError(f"time_us is a number or (low, high), got {time_us!r}")
        low, high = (_positive("time_us", edge) for edge in time_us)
        if low > high:
            raise ValueError(f"time_us runs from low to high, got {time_us!r}: swap them")
        return low, high
    time = _positive("time_us", time_us)
    return time / 1.25, time * 1.25
