"""A prediction against a trace: what agrees, what differs, and where in the trace to look.

Graded is every quantity that was predicted. Counts agree only when equal, in every step. Operators agree when
the predicted ones ran in that order and all work happened in them or below them. FLOPs and bytes are counted
from the shapes in the trace (`cost.operator`), exactly for the model and to 1 % for a reader. A time agrees
inside the band, and each side of the band has a meaning. Not covered: memory in use, and steps that make the
predicted call more than once.
"""

import html
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import pandas as pd

from . import cost, kernel_names, timeline, units
from . import hardware as machines
from .cost import Work
from .predict import Prediction
from .trace import Trace

QUANTITIES = ("operators", "work items", "launches", "FLOPs", "bytes", "time")
AGREES, DIFFERS, NOT_MEASURED = "agrees", "differs", "not measured"


@dataclass(frozen=True)
class Finding:
    """One quantity: `predicted` and `measured` are names, a count, FLOPs, bytes, or µs (a predicted time is a
    band).

    `measured` is None when the trace cannot tell, and (least, most) when the steps differ. `result` is
    "agrees", "differs" or "not measured"; `where_to_look` says why, and for what differs where in the trace.
    """

    quantity: str
    predicted: object
    measured: object
    result: str
    where_to_look: str = ""


@dataclass(frozen=True, repr=False)
class Verdict:
    """The findings on one prediction, in the order of `QUANTITIES`, and how they were measured."""

    findings: tuple[Finding, ...]
    author: str
    hardware: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether something was measured and nothing differs."""
        results = {finding.result for finding in self.findings}
        return AGREES in results and DIFFERS not in results

    @property
    def differences(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.result == DIFFERS]

    def table(self) -> pd.DataFrame:
        """One row a quantity, values as they are: [quantity, predicted, measured, result, where_to_look]."""
        columns = ["quantity", "predicted", "measured", "result", "where_to_look"]
        rows = [[getattr(finding, column) for column in columns] for finding in self.findings]
        return pd.DataFrame(rows, columns=columns, dtype=object)

    def __repr__(self) -> str:
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)


def verdict(
    prediction: Prediction,
    trace: Trace,
    *,
    step: int | None = None,
    timing: object = None,
    only: Iterable[str] = QUANTITIES,
) -> Verdict:
    """Grade a prediction of one call against the steps of a trace, or against one `step` of it.

    The time is that of `timing` (a `measure.Timing`, taken with the profiler off) where given, else the
    median over the steps of the sum of their work items. `only` names the quantities to grade; without "time"
    no clock reading is shown anywhere, so that the same program gives the same text again. A trace without
    steps counts as one step. ValueError for a step that the trace does not have or a quantity that is none of
    `QUANTITIES`.
    """
    only = (only,) if isinstance(only, str) else tuple(only)
    if unknown := [quantity for quantity in only if quantity not in QUANTITIES]:
        raise ValueError(f"only names {unknown[0]!r}; a verdict has: {', '.join(QUANTITIES)}")
    case = _Case(prediction, trace, _steps(trace, step), timing, clock="time" in only)
    graded = [_GRADES[quantity](case) for quantity in QUANTITIES if quantity in only]
    findings = tuple(finding for finding in graded if finding is not None)
    named = prediction.hardware if case.clock else None  # counts are graded the same whatever its rates
    return Verdict(findings, prediction.author, named, tuple(_notes(case, findings)))


# --------------------------------------------------------------------------------------- the steps of a trace


@dataclass(frozen=True, eq=False)
class _Step:
    """What one step of a trace shows; `number` is None where the trace has no steps.

    `items` are its work items as `_items` describes them.
    """

    number: int | None
    operators: pd.DataFrame
    items: pd.DataFrame
    launches: pd.DataFrame

    @property
    def device_us(self) -> float:
        return float(self.items["duration_us"].sum())

    @cached_property
    def works(self) -> list[tuple[str, Work | None]]:
        """Name and cost of each operator that works; kernels that one operator launched are one entry."""
        found: list[tuple[str, Work | None]] = []
        for row, items in self.items.groupby("operator_row", sort=False, dropna=False):
            if pd.isna(row) or row not in self.operators.index:
                found += [(name, None) for name in items["name"]]
            else:
                called = self.operators.loc[row]
                found += [(called["name"], work) for work in _costs(called, items, self.operators)]
        return found


@dataclass(frozen=True, eq=False)
class _Case:
    prediction: Prediction
    trace: Trace
    steps: tuple[_Step, ...]
    timing: object
    clock: bool

    @property
    def by_model(self) -> bool:
        return self.prediction.author == "model"

    @property
    def recorded(self) -> bool:
        """Whether there is anything in the trace to grade by."""
        return any(len(step.operators) or len(step.items) for step in self.steps)


def _steps(trace: Trace, step: int | None) -> tuple[_Step, ...]:
    found = list(dict.fromkeys(map(int, timeline.steps(trace)["step"])))  # merged traces have some twice
    if step is not None and step not in found:
        raise ValueError(f"{trace.path}: has no step {step}; its steps: {timeline.listed(found)}")
    numbers = [step] if step is not None else found or [None]
    frames = timeline.operators(trace), _items(trace), timeline.launches(trace)
    return tuple(_Step(number, *(_within(frame, number) for frame in frames)) for number in numbers)


def _within(frame: pd.DataFrame, number: int | None) -> pd.DataFrame:
    return frame if number is None else frame[(frame["step"] == number).fillna(False).astype(bool)]


def _items(trace: Trace) -> pd.DataFrame:
    """Work items with `inside`, the operator around them, and on a GPU `work`: gemm, copy, … by name."""
    items = timeline.work_items(trace)
    if trace.has_gpu_events:
        return items.assign(
            inside=items["operator"],
            work=[_work(*item) for item in zip(items["name"], items["kind"], strict=True)],
        )
    return items.assign(inside=_around(items.index, timeline.operators(trace)), work=None)


def _work(name: str, kind: str) -> str:
    return {"memcpy": "copy", "memset": "memset"}.get(kind) or kernel_names.decode(name).kind


def _around(rows: Iterable[int], operators: pd.DataFrame) -> list[str | None]:
    """Names of the operators that enclose these rows."""
    parents, names = operators["parent"].to_dict(), operators["name"].to_dict()
    return [names.get(parents[row]) for row in rows]


# ----------------------------------------------------------------------------------------------- one quantity


def _not_measured(quantity: str, predicted: object, why: str) -> Finding:
    return Finding(quantity, predicted, None, NOT_MEASURED, why)


_NOTHING = "the trace has no operators and no GPU work: record it with measure.record"


def _counted(
    case: _Case, quantity: str, predicted: int, values: Sequence[int], where: Callable[[_Step], str]
) -> Finding:
    """Grade one value a step; `where` tells what to look at in a step that differs."""
    measured = values[0] if len(set(values)) == 1 else (min(values), max(values))
    slack = 0.01 if quantity in ("FLOPs", "bytes") and not case.by_model else 0.0
    odd = [i for i, value in enumerate(values) if abs(value - predicted) > slack * predicted]
    if not odd:
        return Finding(
            quantity, predicted, measured, AGREES, "" if measured == predicted else "to within 1 %"
        )
    varied = "" if len(set(values)) == 1 else "the steps differ; "
    return Finding(quantity, predicted, measured, DIFFERS, varied + where(case.steps[odd[0]]))


def _work_items(case: _Case) -> Finding | None:
    predicted = case.prediction.work_items
    if predicted is None:
        return None
    if not case.recorded:
        return _not_measured("work items", predicted, _NOTHING)
    counts = [len(step.items) for step in case.steps]
    return _counted(case, "work items", predicted, counts, lambda step: _unexpected(case, step, step.items))


def _launches(case: _Case) -> Finding | None:
    predicted = case.prediction.launches
    if predicted is None:
        return None
    if not case.trace.has_gpu_events:
        return _not_measured("launches", predicted, "no launches on a CPU" if case.recorded else _NOTHING)
    counts = [len(step.launches) for step in case.steps]
    if not any(counts):
        return _not_measured(
            "launches", predicted, "the trace has GPU work but no runtime calls: record the CPU as well"
        )
    return _counted(
        case, "launches", predicted, counts, lambda step: _unexpected(case, step, _named_launches(step))
    )


def _named_launches(step: _Step) -> pd.DataFrame:
    return step.launches.assign(inside=step.launches["operator"])


def _unexpected(case: _Case, step: _Step, rows: pd.DataFrame) -> str:
    """The rows that no predicted work item accounts for, and the predicted ones that are not there."""
    items = case.prediction.items
    if not items:
        named = case.prediction.operators or ()
        others = rows[~rows["operator"].isin(named)]
        if others.empty or not named:
            return f"in the trace: {_places(step, rows, case.clock) or 'none'}"
        return "of operators not predicted: " + _places(step, others, case.clock)
    extra, missing = _left_over(rows, [(item.work.operator, item.work.kind) for item in items])
    texts = ["unexpected: " + _places(step, extra, case.clock)] if len(extra) else []
    return "; ".join(texts + ([f"missing: {', '.join(map(units.plain, missing))}"] if missing else []))


def _left_over(rows: pd.DataFrame, wanted: Sequence[tuple[str, str]]) -> tuple[pd.DataFrame, list[str]]:
    """Rows that no wanted (operator, kind) accounts for, and the operators wanted that no row accounts for.

    A row of the same kind goes before others of its operator; CUDA's addmm copies without an aten::copy_.
    """
    kinds = rows["work"] if "work" in rows else [None] * len(rows)
    traced, wanted = list(zip(rows["operator"], kinds, strict=True)), list(wanted)
    extra = list(range(len(traced)))
    for fits in (lambda a, b: a == b, lambda a, b: a[0] == b[0], lambda a, b: a[1] == b[1] == "copy"):
        for position in extra.copy():
            partner = next((w for w in wanted if fits(traced[position], w)), None)
            if partner is not None:
                wanted.remove(partner)
                extra.remove(position)
    return rows.iloc[extra], [operator for operator, _ in wanted]


# -------------------------------------------------------------------------------------------------- operators


def _operators(case: _Case) -> Finding | None:
    predicted = case.prediction.operators
    if predicted is None:
        return None
    if not any(len(step.operators) for step in case.steps):
        why = "the trace has GPU work but no operators: record the CPU as well" if case.recorded else _NOTHING
        return _not_measured("operators", predicted, why)
    found = [(step, *_compared(predicted, step, case.clock)) for step in case.steps]
    step, measured, problems = next((entry for entry in found if entry[2]), found[0])
    result = DIFFERS if problems else AGREES
    return Finding("operators", predicted, measured, result, "; ".join(problems))


def _compared(predicted: Sequence[str], step: _Step, clock: bool) -> tuple[tuple[str, ...], list[str]]:
    """The operators that bear on the prediction, in the order that fits it best, and what is wrong with them.

    They are the predicted ones and those that work. A predicted operator stands for all that runs inside it.
    """
    working = step.operators.index.isin(step.items["operator_row"].dropna())
    started = step.operators[working | step.operators["name"].isin(predicted)]
    # Neither an operator nor one inside it comes before the other: the outer starts first and ends last.
    ends_us = started["start_us"] + started["duration_us"]
    orders = (started, started.loc[ends_us.sort_values(kind="stable").index])
    order, pairs = max(
        ((o, _alignment(predicted, list(o["name"]))) for o in orders), key=lambda found: len(found[1])
    )
    matched = {order.index[there] for _, there in pairs}
    inside = _inside(matched, step.operators["parent"])
    extra = order[~order.index.isin(matched | inside)]
    absent = Counter(name for i, name in enumerate(predicted) if i not in {here for here, _ in pairs})
    shown = order[order.index.isin(matched) | order.index.isin(extra.index)]
    return tuple(shown["name"]), _problems(absent, extra, step, clock)


def _inside(rows: set[int], parents: pd.Series) -> set[int]:
    """The rows below these; `parents` has a parent before its children."""
    found: set[int] = set()
    for row, parent in parents.dropna().items():
        if parent in rows or parent in found:
            found.add(row)
    return found


def _problems(absent: Counter[str], extra: pd.DataFrame, step: _Step, clock: bool) -> list[str]:
    moved = absent & Counter(extra["name"])
    missing = list((absent - moved).elements())
    extra = extra[~extra["name"].isin(moved)]
    extra = extra.assign(inside=_around(extra.index, step.operators))
    texts = {
        "missing": ", ".join(map(units.plain, missing)),
        "in another order": ", ".join(map(units.plain, moved.elements())),
        "not predicted": _places(step, extra, clock) if len(extra) else "",
    }
    return [f"{problem}: {text}" for problem, text in texts.items() if text]


def _alignment(predicted: Sequence[str], traced: Sequence[str]) -> list[tuple[int, int]]:
    """The longest common subsequence, as pairs of positions in the two."""
    candidates = [(j, name) for j, name in enumerate(traced) if name in set(predicted)]
    best = [[0] * (len(candidates) + 1) for _ in range(len(predicted) + 1)]
    for i in reversed(range(len(predicted))):
        for j in reversed(range(len(candidates))):
            same = predicted[i] == candidates[j][1]
            best[i][j] = best[i + 1][j + 1] + 1 if same else max(best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < len(predicted) and j < len(candidates):
        if predicted[i] == candidates[j][1]:
            pairs.append((i, candidates[j][0]))
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


# -------------------------------------------------------------------------------------------- FLOPs and bytes


def _flops(case: _Case) -> Finding | None:
    return _costed(case, "FLOPs", case.prediction.flops, lambda work: work.flops)


def _bytes(case: _Case) -> Finding | None:
    return _costed(case, "bytes", case.prediction.bytes_moved, lambda work: work.bytes_moved)


def _costed(case: _Case, quantity: str, predicted: int | None, of: Callable[[Work], int]) -> Finding | None:
    if predicted is None:
        return None
    if not case.recorded:
        return _not_measured(quantity, predicted, _NOTHING)
    if all(shapes is None for step in case.steps for shapes in step.operators["shapes"]):
        return _not_measured(
            quantity, predicted, "record with shapes=True: the trace holds no shapes to count from"
        )
    counted = [step.works for step in case.steps]
    needed = cost.multiplies if quantity == "FLOPs" else lambda name: True
    if unknown := [name for works in counted for name, work in works if work is None and needed(name)]:
        names = _some([_short(name) for name in dict.fromkeys(unknown)])
        many = f"{len(unknown)} of {sum(map(len, counted))} operators that work have no known cost: {names}"
        return _not_measured(quantity, predicted, many)
    totals = [sum(of(work) for _, work in works if work is not None) for works in counted]
    return _counted(case, quantity, predicted, totals, lambda step: _by_operator(case, step, quantity, of))


def _costs(called: pd.Series, items: pd.DataFrame, operators: pd.DataFrame) -> list[Work | None]:
    """What an operator costs by its recorded shapes, with the copy of an addend where one was made."""
    copies = operators[operators["name"] == "aten::copy_"]
    inside = len(items) > 1 and (items["work"] == "copy").any()  # CUDA starts a memcpy or a kernel for it
    addend = "copied" if inside else "read"
    if (copies["parent"] == called.name).any():
        addend = "dispatched"
    described = {column: called[column] for column in ("shapes", "dtypes", "strides", "concrete")}
    if described["dtypes"] and "TensorList" in described["dtypes"]:  # the kernels' names may say of what dtype
        described["dtypes"] = kernel_names.list_dtypes(called["dtypes"], called["shapes"], items["name"])
    return cost.items_of(called["name"], **described, addend=addend) or [None]


def _by_operator(case: _Case, step: _Step, quantity: str, of: Callable[[Work], int]) -> str:
    """Where the sum comes from, operator by operator; against the model's items only where the two differ."""
    traced, predicted, write = Counter(), Counter(), _WRITE[quantity]
    for _, work in step.works:
        if work is not None:
            traced[work.operator] += of(work)
    for item in case.prediction.items:
        predicted[item.work.operator] += of(item.work)
    if not case.prediction.items:
        return "counted: " + _some(
            [f"{units.plain(name)} {write(value)}" for name, value in traced.most_common() if value]
        )
    names = [name for name in dict.fromkeys([*predicted, *traced]) if predicted[name] != traced[name]]
    return _some(
        [
            f"{units.plain(name)} {' against '.join(_distinct(write, traced[name], predicted[name]))}"
            for name in names
        ]
    )


# ------------------------------------------------------------------------------------------------------- time


def _time(case: _Case) -> Finding | None:
    prediction = case.prediction
    if prediction.low_us is None or prediction.high_us is None:
        return None
    band = (prediction.low_us, prediction.high_us)
    if case.timing is None and not any(len(step.items) for step in case.steps):
        return _not_measured("time", band, "the trace has no work items; pass timing=measure.bench(...)")
    if case.timing is not None:
        measured = float(case.timing.median_us)
    else:
        measured = statistics.median(step.device_us for step in case.steps)
    position = prediction.position(measured)
    result = AGREES if position == "inside the band" else DIFFERS
    return Finding("time", band, measured, result, _meaning(case, position, measured))


_WIDE = 1.3  # upper over lower quartile; on a quiet machine it is below 1.1

_SIDES = {
    "below the limit": "the prediction or the measurement is wrong: the machine was busier when it was calibrated, data"
    " lay in a cache, a faster dtype ran (TF32 for float32), the clock was not synchronised, or a kernel was missed",
    "below the band": "faster than good kernels are expected to be: data lay in a cache, or the band is off",
    "inside the band": "nothing large is missing",
    "above the band": "something is left out: a hidden copy, launch overhead, or a poor kernel",
}


def _meaning(case: _Case, position: str, measured_us: float) -> str:
    """What it says that the time lies there; of a reader's guess only where it lies."""
    limit = case.prediction.limit_us
    above = f", {units.ratio(measured_us / limit)} the limit of {units.duration(limit)}" if limit else ""
    why = f": {_SIDES[position]}" if case.by_model else ""
    return f"{position}{above}{why}" + (_longest(case, measured_us) if position == "above the band" else "")


def _longest(case: _Case, measured_us: float) -> str:
    """The longest items of the step nearest to the measured time, each with its band where it has one."""
    step = min(case.steps, key=lambda step: abs(step.device_us - measured_us))
    if step.items.empty:
        return ""
    times, predicted = (
        Counter(step.items["operator"]),
        Counter(i.work.operator for i in case.prediction.items),
    )
    bands = {
        item.work.operator: f" (predicted {units.band(item.low_us, item.high_us)})"
        for item in case.prediction.items
        if times[item.work.operator] == predicted[item.work.operator] == 1
    }
    longest = step.items.sort_values("duration_us", ascending=False, kind="stable")
    said = [units.duration(row.duration_us) + bands.get(row.operator, "") for row in longest.itertuples()]
    return f"; longest: {_places(step, longest.assign(said=said), clock=True)}"


# --------------------------------------------------------------------------------------------- where and what


def _places(step: _Step, rows: pd.DataFrame, clock: bool) -> str:
    """Rows as "aten::copy_ inside aten::addmm, step 4, at 12.3 µs"; the time is `start_us` in the trace."""
    texts = []
    for _, row in rows.head(_SHOWN + 1).iterrows():
        text = " ".join([_short(row["name"]), *([row["said"]] if "said" in row else [])])
        inside = row["inside"] if isinstance(row["inside"], str) and row["inside"] != row["name"] else None
        text += f" inside {_short(inside)}" if inside else ""
        text += f", step {step.number}" if step.number is not None else ""
        texts.append(text + (f", at {row['start_us']:.1f} µs" if clock else ""))
    return _some(texts, of=len(rows))


_SHOWN = 4  # more than that is a list, and lists are what `timeline` is for


def _some(texts: Sequence[str], *, of: int | None = None) -> str:
    count = len(texts) if of is None else of
    return "; ".join(texts[:_SHOWN]) + (f"; and {count - _SHOWN} more" if count > _SHOWN else "")


def _notes(case: _Case, findings: Sequence[Finding]) -> Iterable[str]:
    yield from map(units.plain, case.prediction.notes)
    numbers = [step.number for step in case.steps]
    if numbers == [None]:
        yield "the trace has no steps: all of it counts as one"
    elif len(numbers) == 1:
        yield f"graded on step {numbers[0]}"
    else:
        yield f"graded on {len(numbers)} steps, {numbers[0]} to {numbers[-1]}, each of which must agree"
    outside = len(timeline.work_items(case.trace)) - sum(len(step.items) for step in case.steps)
    if outside and len(numbers) > 1:
        yield f"outside of the steps, and not counted: {outside} work item{'s' if outside > 1 else ''}"
    if not any(finding.quantity == "time" and finding.measured is not None for finding in findings):
        return
    if case.timing is not None:
        timing, spread = case.timing, units.band(case.timing.q1_us, case.timing.q3_us)
        yield f"time with the profiler off: median of {timing.n} samples, half of them within {spread}"
        if timing.q3_us > _WIDE * timing.q1_us:
            yield "the samples lie far apart, so the machine was busy: time it again before you dig"
    else:
        yield "time with the profiler on: the work items of a step added up, median over the steps"
    yield from _other_machine(case)


def _other_machine(case: _Case) -> Iterable[str]:
    predicted, traced = case.prediction.hardware, case.trace.device
    if predicted is None or traced is None or predicted == traced:
        return
    try:
        traced_card = machines.find(traced).name
    except machines.UnknownHardware:
        traced_card = traced
    if traced_card != predicted:
        yield f"the time was predicted for {units.plain(predicted)} and traced on {units.plain(traced)}"


# ---------------------------------------------------------------------------------------------- text and HTML

_MARKS = {AGREES: "✓", DIFFERS: "✗", NOT_MEASURED: "–"}
_WRITE = {"FLOPs": units.work, "bytes": units.data, "time": units.duration}
_WIDTH = 100


def _title(verdict: Verdict) -> str:
    counts = Counter(finding.result for finding in verdict.findings)
    words = {AGREES: ("agrees", "agree"), DIFFERS: ("differs", "differ"), NOT_MEASURED: ("not measured",) * 2}
    summary = ", ".join(
        f"{counts[r]} {one if counts[r] == 1 else many}" for r, (one, many) in words.items() if counts[r]
    )
    whose = "a reader's prediction" if verdict.author == "reader" else "the prediction"
    on = f" for {units.plain(verdict.hardware)}" if verdict.hardware else ""
    return f"Verdict on {whose}{on}: {summary or 'no quantity was predicted'}"


def _cells(finding: Finding) -> tuple[str, str]:
    """Predicted and measured as text; two that differ never look the same."""
    predicted, measured = finding.predicted, finding.measured
    if finding.quantity == "operators":
        return _sequence(predicted), "–" if measured is None else _sequence(measured)
    if finding.quantity == "time":
        return units.band(*predicted), "–" if measured is None else units.duration(measured)
    write = _WRITE.get(finding.quantity, str)
    if measured is None:
        return write(predicted), "–"
    if isinstance(measured, tuple):
        return write(predicted), " – ".join(_distinct(write, *measured))
    return _distinct(write, predicted, measured)


def _distinct(write: Callable[[int], str], first: int, second: int) -> tuple[str, str]:
    if first != second and write(first) == write(second):
        return f"{first:,}", f"{second:,}"
    return write(first), write(second)


def _sequence(names: Sequence[str]) -> str:
    shown = [_short(name) for name in names[:12]] + ([f"{len(names) - 12} more"] if len(names) > 12 else [])
    return " → ".join(shown) or "none"


def _short(name: str) -> str:
    name = units.plain(name).removeprefix("void ")
    return name if len(name) <= 50 else name[:49] + "…"


def _text(verdict: Verdict) -> str:
    rows = [("", "predicted", "measured", "")]
    rows += [(f.quantity, *_cells(f), f"{_MARKS[f.result]} {f.result}") for f in verdict.findings]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    room = (_WIDTH - 8 - widths[0] - widths[3]) // 2
    widths[1:3] = [min(width, room) for width in widths[1:3]]
    lines = textwrap.wrap(_title(verdict), _WIDTH) + (_row(rows[0], widths) if verdict.findings else [])
    for row, finding in zip(rows[1:], verdict.findings, strict=True):
        lines += _row(row, widths) + _indented(finding.where_to_look, "    ")
    for note in verdict.notes:
        lines += _indented(note, "  ")
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    lines = zip_longest(*wrapped, fillvalue="")
    return [
        "  " + "  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    ]


def _indented(text: str, margin: str) -> list[str]:
    kept = re.sub(
        r"(?<=\d) (?=[nµm]?s\b)", "\N{NO-BREAK SPACE}", text
    )  # a number and its unit stay on one line
    lines = textwrap.wrap(kept, _WIDTH, initial_indent=margin, subsequent_indent=margin)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


_LEFT = "text-align:left;vertical-align:top"


def _html(verdict: Verdict) -> str:
    head = "".join(f'<th scope="col" style="{_LEFT}">{heading}</th>' for heading in _HEADINGS)
    body = "".join(map(_html_rows, verdict.findings))
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in verdict.notes)
    caption = f'<caption style="text-align:left;color:inherit">{html.escape(_title(verdict))}</caption>'
    table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return table + (f"<ul>{notes}</ul>" if notes else "")


_HEADINGS = ("quantity", "predicted", "measured", "result")


def _html_rows(finding: Finding) -> str:
    """One row of values, and where to look in a row of its own below: a phone has no width for both."""
    mark = f'<span aria-hidden="true">{_MARKS[finding.result]}</span> {finding.result}'
    mark = f"<strong>{mark}</strong>" if finding.result == DIFFERS else mark
    cells = "".join(f'<td style="{_LEFT}">{cell}</td>' for cell in (*map(html.escape, _cells(finding)), mark))
    where = html.escape(finding.where_to_look)
    below = f'<tr><td colspan="3" style="{_LEFT};overflow-wrap:anywhere">{where}</td></tr>' if where else ""
    span = ' rowspan="2"' if where else ""
    return f'<tr><th scope="row"{span} style="{_LEFT}">{finding.quantity}</th>{cells}</tr>{below}'


_GRADES = {
    "operators": _operators,
    "work items": _work_items,
    "launches": _launches,
    "FLOPs": _flops,
    "bytes": _bytes,
    "time": _time,
}
