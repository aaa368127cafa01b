"""Where the time of a trace goes, and what would win some of it back: numbers, a reason and a remedy.

`case` cuts a trace to one step or to all of its steps and links kernels to operators, once; the questions are
asked to it: `time_parts` divides the window (every µs is counted once), `by_kernel` and `by_operator` add up,
and `findings` says what to do first. All times are means per step, so that they add up to one. An operator
has a band where its shapes were recorded, `cost` has a rule for it and the card is known. Not covered:
memory in use, dependencies between streams, and which tensor a kernel read (a trace has no addresses).
"""

import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from tutorial_lib import cost, predict, timeline, units
from tutorial_lib import hardware as machines
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware
from tutorial_lib.kernel_names import decode, list_dtypes
from tutorial_lib.kernel_time import Ran, Tensor, tensors
from tutorial_lib.predict import WorkTime
from tutorial_lib.trace import GPU_WORK, Trace


# ------------------------------------------------------------------------------------- one cut of a trace


@dataclass(frozen=True, eq=False)
class Case:
    """A trace cut to what is looked at, `window_us` = (start, end); times are per step, of `repeats` steps.

    `items` are the work items that the steps launched (without steps all) with `part` (of `PARTS`), `owner`
    (row of the operator whose cost they are) and `works` by that row; `ran` is all that ran on the GPU in
    the window, whoever launched it.
    """

    trace: Trace
    step: int | None
    steps: pd.DataFrame
    repeats: int
    window_us: tuple[float, float]
    card: Hardware | None
    operators: pd.DataFrame
    items: pd.DataFrame
    ran: pd.DataFrame
    works: dict[int, Work | None]
    every: pd.DataFrame  # the work items of the whole trace

    @property
    def on_cpu_us(self) -> tuple[float, float]:
        """When the steps ran on the CPU, (start, end), while `window_us` is about the GPU."""
        if self.steps.empty:
            return self.window_us
        return float(self.steps["start_us"].min()), float(self.steps["end_us"].max())

    @property
    def per(self) -> str:
        """What times are per, for a sentence: nothing where the trace has no steps."""
        return " a step" if len(self.steps) else ""

    def events(self, pattern: str, *kinds: str) -> pd.DataFrame:
        """Name, start_us and duration_us of the events of these kinds whose name has the pattern in it."""
        rows = timeline.found(self.trace, re.compile(pattern).search, *kinds)
        return self.trace.events[["name", "start_us", "duration_us"]].loc[rows]

    def named(self, rows: pd.DataFrame, pattern: str) -> np.ndarray:
        """Which of these rows of the trace have the pattern in their name."""
        return timeline.named(self.trace, rows.index, re.compile(pattern).search)

    @cached_property
    def on_gpu(self) -> bool:
        return self.trace.has_gpu_events

    @cached_property
    def calls(self) -> pd.DataFrame:
        """Runtime and driver calls that began in the steps: name, start_us, duration_us."""
        events, (start_us, end_us) = self.trace.events, self.on_cpu_us
        own = self.trace.of_kind("runtime", "driver") & events["start_us"].between(start_us, end_us)
        return events.loc[own, ["name", "start_us", "duration_us"]]

    @cached_property
    def idle(self) -> pd.DataFrame:
        """Idle stretches of the busiest GPU: start_us, end_us, time_us, why, row (of the item after it)."""
        return _idle(self)

    @cached_property
    def time_parts(self) -> pd.DataFrame:
        """`time_parts` of this case, made once."""
        return time_parts(self)

    @cached_property
    def by_operator(self) -> pd.DataFrame:
        """`by_operator` of this case, made once."""
        return by_operator(self)

    @cached_property
    def owners(self) -> np.ndarray:
        """`owner` of each item, -1 for none."""
        return self.items["owner"].to_numpy(dtype=np.int64, na_value=-1)

    @cached_property
    def work(self) -> pd.Series:
        """By item the work of its owner, None where that is not known."""
        works = list(map(self.works.get, self.owners.tolist()))
        return pd.Series([*works, None], dtype=object).iloc[:-1].set_axis(self.items.index)

    @cached_property
    def late_us(self) -> pd.Series:
        """By item, how long the GPU was idle before it because its launch came late."""
        late = self.idle[self.idle["why"] == "launch"] if self.on_gpu else None
        times = {} if late is None else late.groupby("row")["time_us"].sum()
        return pd.Series(times, dtype=float).reindex(self.items.index, fill_value=0.0)

    @cached_property
    def call_us(self) -> pd.Series:
        """When each item was launched, missing where the trace has no launch."""
        return (self.items["start_us"] - self.items["delay_us"]).astype("Float64").astype(float)

    @cached_property
    def in_optimizer(self) -> pd.Series:
        """By item, whether it was launched inside of an Optimizer.step."""
        steps = self.events(r"^Optimizer\.step#", "annotation")
        start, end = merged(*clipped(steps, (-np.inf, np.inf)))
        called = self.call_us.to_numpy()
        at = np.searchsorted(start, called, "right") - 1
        inside = (at >= 0) & (called < np.append(end, np.nan)[at])
        return pd.Series(inside, index=self.items.index)

    @cached_property
    def loading(self) -> tuple[np.ndarray, np.ndarray]:
        """When the CPU was in the DataLoader: disjoint stretches of the window."""
        return merged(*clipped(self.events(_LOADER, "annotation"), self.window_us))

    @cached_property
    def waits(self) -> pd.DataFrame:
        """Calls in which the CPU waited for the GPU: name, start_us, end_us, operator; in time order."""
        return _waits(self)


def case(trace: Trace, step: int | None = None, on: Hardware | str | None = None) -> Case:
    """The trace cut to one step, or to all of its steps; `on` is a card to predict for instead of its own.

    ValueError for a step that the trace does not have, UnknownHardware for a card that is not known.
    """
    steps = _steps(trace, step)
    operators = timeline.operators(trace)
    items = timeline.kernels(trace) if trace.has_gpu_events else timeline.work_items(trace)
    chosen = items["step"].isin(steps["step"]).fillna(False).to_numpy(dtype=bool)
    own = items[chosen] if chosen.any() or step is not None else items
    window = _window(trace, steps, own, items)
    owner, works = _costed(trace, own, operators, climb=trace.has_gpu_events)
    own = own.assign(owner=owner, part=_part(trace, own, owner, works))
    ran = own if own is items else _in_window(items, window)
    if ran is not own:
        part = own["part"].reindex(ran.index)
        others = ~ran.index.isin(own.index)
        part[others] = _part(trace, ran[others], None, {})
        ran = ran.assign(part=part)
    return Case(
        trace, step, steps, max(1, len(steps)), window, card_of(trace, on), operators, own, ran, works, items
    )


def card_of(trace: Trace, on: Hardware | str | None = None) -> Hardware | None:
    """The card to predict for: `on`, else the trace's own; None for one that is not known."""
    if on is not None:
        return on if isinstance(on, Hardware) else machines.find(on)
    try:
        return machines.find(trace.device or "") if trace.has_gpu_events else None
    except machines.UnknownHardware:
        return None


def _steps(trace: Trace, step: int | None) -> pd.DataFrame:
    known = timeline.steps(trace)
    if step is None:
        return known
    if step not in set(known["step"]):
        listed = timeline.listed(known["step"])
        raise ValueError(f"{trace.path}: has no ProfilerStep#{step}; its steps: {listed}")
    return known[known["step"] == step].head(1)


def _window(trace: Trace, steps: pd.DataFrame, own: pd.DataFrame, items: pd.DataFrame) -> tuple[float, float]:
    """From the steps' start until their end and that of their GPU work; without steps all but waiting.

    Where the GPU still had earlier work to do when they began, the window begins when it was done with that.
    """
    if not len(steps):
        working = trace.of_kind("operator", "runtime", "driver", *GPU_WORK)
        rows = trace.events.index[working] if working.any() else trace.events.index
        busy = rows[~timeline.named(trace, rows, re.compile(_WAIT).search)]
        events = trace.events[["start_us", "duration_us"]].loc[busy if len(busy) else rows]
        return float(events["start_us"].min()), float((events["start_us"] + events["duration_us"]).max())
    start_us, end_us = float(steps["start_us"].min()), float(steps["end_us"].max())
    if not trace.has_gpu_events or own.empty:
        return start_us, end_us
    first_us = own["start_us"].min()
    earlier = items[(items["start_us"] < first_us) & ~items.index.isin(own.index)]
    until_us = (earlier["start_us"] + earlier["duration_us"]).max() if len(earlier) else start_us
    return float(max(start_us, min(first_us, until_us))), max(
        end_us, float((own["start_us"] + own["duration_us"]).max())
    )


def _in_window(items: pd.DataFrame, window: tuple[float, float]) -> pd.DataFrame:
    ends_us = items["start_us"] + items["duration_us"]
    return items[(items["start_us"] <= window[1]) & (ends_us >= window[0])]


# ---------------------------------------------------------------------------------- work, and whose it is


def _costed(
    trace: Trace, items: pd.DataFrame, operators: pd.DataFrame, *, climb: bool
) -> tuple[pd.Series, dict]:
    """For each item the row of the operator that it is counted under, and the work of those rows.

    That is the innermost operator, unless `cost` has no rule for it but for one of the three around it; then
    everything that this one launched is counted under it.
    """
    rows = items["operator_row"].astype("Int64")
    unique = pd.unique(rows.dropna()).astype(np.int64)
    levels = [unique]
    place_of = operators.index.get_indexer
    parents = np.append(operators["parent"].to_numpy(dtype=np.int64, na_value=-1), -1)
    for _ in range(3 if climb else 0):
        levels.append(parents[place_of(levels[-1])])  # -1 is in no place, -1, and has no parent
    works = _works(trace, np.unique(np.concatenate(levels)) if len(unique) else unique)
    works |= _works_of_lists(trace, items, unique) if climb else {}
    costed = np.array([row for row, work in works.items() if work is not None], dtype=np.int64)
    priced = np.zeros(len(parents), dtype=bool)
    priced[place_of(costed)] = True
    has = [priced[place_of(level)] for level in levels]
    owner, settled = unique.copy(), has[0].copy()
    climbed: set[int] = set()
    for level, known in zip(levels[1:], has[1:], strict=True):
        new = known & ~settled
        owner[new], settled = level[new], settled | new
        climbed |= set(level[new].tolist())
    for level in levels[1:]:
        inside = np.isin(level, list(climbed))
        owner[inside] = level[inside]
    found = pd.Series(owner, index=unique).reindex(rows.dropna().astype(np.int64))
    return pd.Series(found.to_numpy(), index=rows.dropna().index).reindex(items.index).astype("Int64"), works


_CALLED = ("name", "shapes", "dtypes", "strides", "concrete")


def _works(trace: Trace, rows: np.ndarray) -> dict[int, Work | None]:
    """The cost of each of these operators by its recorded shapes, each distinct call looked up once."""
    rows = rows[rows >= 0]
    first, call = distinct(*(timeline.numbers_of(trace, column, pd.Index(rows)) for column in _CALLED))
    called = trace.events.loc[rows[first], list(_CALLED)]
    known: dict[object, Work | None] = {}  # calls of different numbers may be equal
    works = [_known_work(known, one) for one in called.itertuples(index=False, name=None)]
    return dict(zip(rows.tolist(), map(works.__getitem__, call.tolist()), strict=True))


def _works_of_lists(trace: Trace, items: pd.DataFrame, rows: np.ndarray) -> dict[int, Work | None]:
    """The cost of operators on lists of tensors: of these a trace has shapes, and kernels' names the dtype."""
    dtypes = trace.events["dtypes"].loc[rows]
    first, which = distinct(timeline.numbers_of(trace, "dtypes", dtypes.index))
    lists = np.array([isinstance(d, tuple) and "TensorList" in d for d in dtypes.iloc[first]], dtype=bool)
    launched = items[items["operator_row"].isin(rows[lists[which]])].groupby("operator_row", sort=False)
    launched = launched["name"].agg(tuple)
    called = trace.events.loc[launched.index.astype(np.int64), list(_CALLED)]
    known: dict[object, Work | None] = {}
    return {
        row: _known_work(known, (name, shapes, list_dtypes(dtypes, shapes, names), *rest))
        for names, (row, name, shapes, dtypes, *rest) in zip(launched, called.itertuples(name=None), strict=True)
    }


def distinct(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of rows of numbers that are -1 or more: where each distinct one is first, and which of those each is."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for numbers in columns:
        key, _ = pd.factorize(key * (int(numbers.max(initial=-1)) + 2) + numbers)
    first = np.empty(key.max(initial=-1) + 1, dtype=np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]
    return first, key


def _known_work(known: dict[object, Work | None], call: tuple) -> Work | None:
    try:
        if call not in known:
            known[call] = _work(*call)
    except TypeError:  # an argument that is no text, number or tuple
        return None
    return known[call]


def _work(name: str, shapes, dtypes, strides, concrete) -> Work | None:
    if not isinstance(shapes, tuple) or not isinstance(dtypes, tuple) or not name.startswith("aten::"):
        return None
    return cost.operator(name, shapes, dtypes, strides=strides, concrete=concrete)


PARTS = ("compute", "memory", "other", "communication", "copies")
_TALK = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|broadcast_kernel", re.IGNORECASE
)
_LAYOUT = re.compile("nchwToNhwc|nhwcToNchw")
_PRODUCT = re.compile(
    r"gemm|bmm_|matmul|conv(?!ert)|[fw]prop|[dw]grad|winograd|fmha|attention|mha_", re.IGNORECASE
)
_MM = re.compile(r"::_?(?:scaled_|grouped_|int_)?(?:add|b|badd)?b?(?:mm|mv)_?$|::v?dot$|::linear$")
_PART = {
    "gemm": "compute", "attention": "compute", "communication": "communication", "memset": "copies",
    **dict.fromkeys(("pointwise", "reduction", "softmax", "copy"), "memory"),
}  # fmt: skip


def _part(
    trace: Trace, items: pd.DataFrame, owner: pd.Series | None, works: dict[int, Work | None]
) -> np.ndarray:
    """What kind of time each item is, by its kernel's name, else by the operator that it came from."""
    rows = [] if owner is None else owner.to_numpy(dtype=np.int64, na_value=-1).tolist()
    kinds = [work.kind if (work := works.get(row)) else None for row in rows] or [None] * len(items)
    first, which = distinct(
        timeline.numbers_of(trace, "name", items.index),
        timeline.numbers_of(trace, "name", items["operator_row"]),
        pd.factorize(np.array(kinds, dtype=object))[0],
    )
    called = zip(items["name"].iloc[first], items["kind"].iloc[first], items["operator"].iloc[first], strict=True)
    parts = [_part_of(*one, kinds[place]) for one, place in zip(called, first.tolist(), strict=True)]
    return np.array([*parts, None], dtype=object)[which]


def _part_of(name: str, kind: str, operator: str | None, work: str | None) -> str:
    if kind in ("memcpy", "memset"):
        return "copies"
    if kind != "kernel":  # an operator of a CPU trace
        return _cpu_part(name, work)
    said = decode(name)
    if said.kind in _PART:
        return _PART[said.kind]
    if _TALK.search(name):
        return "communication"
    text = f"{said.variant or ''} {name}"
    if re.search(
        r"batch norm|batch_norm|bn_[fb]w|nchwToNhwc|nhwcToNchw|change of layout", text, re.IGNORECASE
    ):
        return "memory"
    if _PRODUCT.search(text) or (said.family in ("cudnn", "unknown") and "convolution" in (operator or "")):
        return "compute"
    if said.family == "unknown" and _MM.search(operator or ""):
        return "compute"
    return _PART.get(work or "", "other") if work != "other" else "memory"


def _cpu_part(name: str, work: str | None) -> str:
    if work == "copy" or name in ("aten::copy_", "aten::fill_", "aten::zero_", "aten::cat"):
        return "copies"
    if work in _PART or work == "other":
        return _PART.get(work, "memory")
    return (
        "compute"
        if _PRODUCT.search(name) or _MM.search(name)
        else "memory"
        if "cpp_fused" in name
        else "other"
    )


# ---------------------------------------------------------------------------------------------- intervals


def merged(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The union of intervals as disjoint ones in order; those that touch are one."""
    if not len(start):
        return np.empty(0), np.empty(0)
    order = np.argsort(start, kind="stable")
    start, end = np.asarray(start, float)[order], np.asarray(end, float)[order]
    until = np.maximum.accumulate(end)
    first = np.append(True, start[1:] > until[:-1])
    last = np.append(first[1:], True)
    return start[first], until[last]


def covered(blocks: tuple[np.ndarray, np.ndarray], start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How much of each interval (start, end) lies in these disjoint blocks."""
    if not len(blocks[0]):
        return np.zeros(len(start))
    knots = np.column_stack(blocks).ravel()
    inside = np.column_stack((np.zeros(len(blocks[0])), blocks[1] - blocks[0])).ravel().cumsum()
    return np.interp(end, knots, inside) - np.interp(start, knots, inside)


def matching(names: pd.Series, pattern: str) -> np.ndarray:
    """Which of these names match the pattern somewhere; each distinct name is looked at once."""
    codes, unique = pd.factorize(names)
    found = np.array([bool(re.search(pattern, name)) for name in unique] + [False])
    return found[codes]


def _length(blocks: tuple[np.ndarray, np.ndarray]) -> float:
    return float((blocks[1] - blocks[0]).sum())


def clipped(frame: pd.DataFrame, window: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each row, cut to the window."""
    start = frame["start_us"].to_numpy(float)
    return np.clip(start, *window), np.clip(start + frame["duration_us"].to_numpy(float), *window)


# ------------------------------------------------------------------------------------ where the time goes

MEANING = {
    "compute": "matrix products, convolutions, attention",
    "memory": "pointwise, reductions, norms, copies by kernels",
    "other": "kernels whose name says neither",
    "communication": "between GPUs, nothing computed beside it",
    "copies": "memcpy and memset with nothing beside them",
    "launch": "the GPU had run dry before the CPU launched what came next",
    "wait": "it had run dry since the CPU waited for it (synchronised)",
    "elsewhere": "it had run dry while the CPU was in Python or loading data",
    "queued": "the next kernel was launched already: gaps, other streams",
    "end": "nothing more was launched",
}
_CPU_MEANING = {
    "compiling": "torch.compile made code, the step waited for it",
    "compute": "matrix products, convolutions, attention",
    "memory": "pointwise, reductions, norms, lookups",
    "other": "operators without a rule here",
    "copies": "copies and fills",
    "operators": "operators that call others, views, allocations: dispatch",
    "elsewhere": "in no operator: Python, data, waiting",
}


def time_parts(found: Case) -> pd.DataFrame:
    """The window divided, µs a step: part, time_us, share, overlapped_us (ran beside a part above), meaning.

    A moment counts under the first part that ran, of compute, memory, other, communication, copies; what is
    left is idle. On several GPUs it is the one that was busy longest. The parts add up to the window.
    """
    rows = _gpu_parts(found) if found.on_gpu else _cpu_parts(found)
    meaning = MEANING if found.on_gpu else _CPU_MEANING
    window_us = (found.window_us[1] - found.window_us[0]) / found.repeats
    frame = pd.DataFrame(rows, columns=["part", "time_us", "overlapped_us"])
    frame[["time_us", "overlapped_us"]] /= found.repeats
    frame["share"] = frame["time_us"] / window_us if window_us else 0.0
    return frame.assign(meaning=frame["part"].map(meaning))[
        ["part", "time_us", "share", "overlapped_us", "meaning"]
    ]


def _layers(frame: pd.DataFrame, order: Iterable[str], window: tuple[float, float]):
    """For each part: name, time with no earlier part beside it, its other time; and the union of all."""
    start, end = clipped(frame, window)
    part, rows, before, taken = frame["part"].to_numpy(), [], 0.0, np.zeros(len(frame), dtype=bool)
    for name in order:
        own = part == name
        taken |= own
        union = _length(merged(start[taken], end[taken]))
        rows.append(
            (name, union - before, max(0.0, _length(merged(start[own], end[own])) - (union - before)))
        )
        before = union
    return rows, before


def _gpu_parts(found: Case) -> list[tuple[str, float, float]]:
    ran = on_busiest(found)
    rows, _ = _layers(ran, PARTS, found.window_us)
    idle = found.idle.groupby("why", observed=False)["time_us"].sum()
    return rows + [(why, float(idle[why]), 0.0) for why in _WHY]


def _cpu_parts(found: Case) -> list[tuple[str, float, float]]:
    """Inner work first (a copy runs inside its addmm), so that each moment counts where it was spent.

    But what a compiler runs to try things out is compilation, whatever it is.
    """
    own = found.items
    whole = own.assign(duration_us=found.operators["duration_us"].reindex(own.index))
    every = found.operators.assign(part="operators")
    compiling = found.events(_COMPILED, "operator", "annotation").assign(part="compiling")
    frame = pd.concat([rows[["start_us", "duration_us", "part"]] for rows in (whole, every, compiling)])
    frame = _in_window(frame, found.window_us)
    order = ("compiling", "copies", "memory", "other", "compute", "operators")
    rows, busy = _layers(frame, order, found.window_us)
    rest = found.window_us[1] - found.window_us[0] - busy
    by_name = {name: time for name, time, _ in rows} | {"elsewhere": rest}
    return [(name, by_name[name], 0.0) for name in _CPU_MEANING]


def on_busiest(found: Case) -> pd.DataFrame:
    """What ran in the window on the GPU that was busy longest."""
    if found.ran["device"].nunique(dropna=False) < 2:
        return found.ran
    device, _ = pd.factorize(found.ran["device"], use_na_sentinel=False)
    return found.ran[device == np.bincount(device, found.ran["duration_us"]).argmax()]


_WAIT = r"^(?:cuda|cu|hip)\w*Synchronize"
_LOADER = r"^enumerate\(DataLoader\)#"
_WHY = ("launch", "wait", "elsewhere", "queued", "end")


def _idle(found: Case) -> pd.DataFrame:
    """Why the GPU was idle, by the launch of what ran next; a stretch may be divided between two reasons."""
    ran = on_busiest(found)[["start_us", "duration_us", "delay_us"]].sort_values("start_us", kind="stable")
    start, end = clipped(ran, found.window_us)
    until = np.maximum.accumulate(np.append(found.window_us[0], end))
    free = np.append(start, found.window_us[1]) - until
    at = np.flatnonzero(free > 0)
    a, b = until[at], np.append(start, found.window_us[1])[at]
    call_us = np.append((ran["start_us"] - ran["delay_us"]).to_numpy(float, na_value=np.nan), np.nan)[at]
    rows = np.append(ran.index.to_numpy(), -1)[at]
    last = at == len(ran)
    waited, late = _after_wait(found, a, b), call_us > a
    places = [_WHY.index(why) for why in ("end", "wait", "launch")]
    number = np.select([last, waited, late], places, _WHY.index("queued"))
    why = pd.Categorical.from_codes(number, categories=_WHY)
    frame = pd.DataFrame({"start_us": a, "end_us": b, "time_us": b - a, "why": why, "row": rows})
    return _split(found, frame, np.fmin(call_us, b))


def _split(found: Case, idle: pd.DataFrame, called_us: np.ndarray) -> pd.DataFrame:
    """Takes out of "launch" the time before the call in which the CPU was in no operator and no call.

    What the DataLoader does counts as such, operators or not.
    """
    if not len(found.operators):
        return idle
    rows = timeline.found(found.trace, re.compile(f"^(?!{_WAIT[1:]})").match, "operator", "runtime", "driver")
    working = found.trace.events[["start_us", "duration_us"]].loc[rows]
    launch = (idle["why"] == "launch").to_numpy()
    start = idle["start_us"].to_numpy()
    end = np.where(launch, np.fmax(called_us, start), start)
    both = merged(
        *(
            np.concatenate(pair)
            for pair in zip(clipped(working, found.window_us), found.loading, strict=True)
        )
    )
    # outside of an operator, or inside of the loader: all but working, and of that what is loading
    outside = end - start - covered(both, start, end) + covered(found.loading, start, end)
    outside = np.where(outside > 1e-6, outside, 0.0)
    away = idle.assign(time_us=outside)[outside > 0]
    away["why"] = pd.Categorical(["elsewhere"] * len(away), categories=_WHY)
    return pd.concat([idle.assign(time_us=idle["time_us"] - outside), away], ignore_index=True)


def _after_wait(found: Case, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether the GPU ran dry while the CPU waited for it: a wait around the stretch's start ends in it."""
    waits = found.waits.sort_values("end_us")
    if waits.empty:
        return np.zeros(len(a), dtype=bool)
    ends, starts = waits["end_us"].to_numpy(), waits["start_us"].to_numpy()
    place = np.searchsorted(ends, a)
    inside = np.minimum(place, len(ends) - 1)
    return (place < len(ends)) & (starts[inside] <= a) & (ends[inside] <= b)


def _waits(found: Case) -> pd.DataFrame:
    calls = found.calls
    to_host = found.items[found.named(found.items, "DtoH.*Pageable")]
    blocking = to_host["launch_row"].dropna() if found.on_gpu else []
    rows = calls[found.named(calls, _WAIT) | calls.index.isin(blocking)]
    last_us = (found.operators["start_us"] + found.operators["duration_us"]).max()
    rows = rows[rows["start_us"] < (found.steps["end_us"].max() if len(found.steps) else last_us)]
    return pd.DataFrame(
        {
            "name": rows["name"],
            "start_us": rows["start_us"],
            "end_us": rows["start_us"] + rows["duration_us"],
            "operator": timeline.around(found.trace, rows.index),
        }
    )


# ---------------------------------------------------------------------------------------------- by kernel


def by_kernel(found: Case) -> pd.DataFrame:
    """Work items added up by name, the longest first: name, decoded, part, count, total_us (both per step),
    median_us, share (of all work items), operator, module."""
    items = found.items
    columns = ["name", "decoded", "part", "count", "total_us", "median_us", "share", "operator", "module"]
    if items.empty:
        return pd.DataFrame(columns=columns)
    first, name = distinct(timeline.numbers_of(found.trace, "name", items.index))
    times = items["duration_us"].groupby(name)
    frame = times.agg(count="size", total_us="sum", median_us="median")
    module, modules = pd.factorize(_classes(items))
    operator = timeline.numbers_of(found.trace, "name", items["operator_row"])
    took_us, names = items["duration_us"].to_numpy(), np.array([*found.trace.numbered("name")[1], None], object)
    frame["name"], frame["part"] = (items[column].to_numpy()[first] for column in ("name", "part"))
    frame["operator"] = names[_most_time(name, operator, took_us)]
    frame["module"] = np.append(modules, None)[_most_time(name, module, took_us)]
    frame = frame.sort_values("total_us", ascending=False, kind="stable").reset_index(drop=True)
    frame["share"] = frame["total_us"] / frame["total_us"].sum() if frame["total_us"].sum() else 0.0
    frame["decoded"] = [said(name) if found.on_gpu else None for name in frame["name"]]
    frame[["count", "total_us"]] = frame[["count", "total_us"]] / found.repeats
    return with_none(frame[columns])


def _classes(items: pd.DataFrame) -> pd.Series:
    """The class of the innermost nn.Module around each item ("Linear" of "Linear_3"), None if not known."""
    names = items["module"]
    if not names.notna().any():
        return names
    known = {name: re.sub(r"_\d+$", "", name) for name in names.dropna().unique()}
    return names.map(known).astype(object).where(names.notna(), None)


def said(name: str) -> str | None:
    """The kernel's name in words, None where it says nothing."""
    decoded = decode(name)
    return None if decoded.family == "unknown" else str(decoded)


def first_known(by: np.ndarray, what: np.ndarray) -> np.ndarray:
    """For each number of `by`, 0 to its highest, the first number of `what` with it that is not -1, else -1."""
    known = np.flatnonzero(what >= 0)[::-1]
    first = np.full(by.max(initial=-1) + 1, -1)
    first[by[known]] = what[known]  # of several the last that is written stays
    return first


def _most_time(by: np.ndarray, what: np.ndarray, took_us: np.ndarray) -> np.ndarray:
    """For each number of `by`, 0 to its highest, the number of `what` that took most of its time; -1: none."""
    known = what >= 0
    first, which = distinct(by[known], what[known])
    order = np.argsort(np.bincount(which, took_us[known], len(first)), kind="stable")
    most = np.full(by.max(initial=-1) + 1, -1)
    most[by[known][first][order]] = what[known][first][order]  # of several the last is kept
    return most


# -------------------------------------------------------------------------------------------- by operator

COLUMNS = [
    "operator", "shapes", "dtype", "module", "kernel", "count", "total_us", "median_us", "flops",
    "bytes_moved", "limit_us", "low_us", "high_us", "position", "peak_share", "verdict", "idle_us", "won_us",
    "reason", "evidence", "remedy",
]  # fmt: skip


def by_operator(found: Case) -> pd.DataFrame:
    """Operators by name and shapes, each against its prediction; the most time to be won comes first.

    `count`, `total_us`, `idle_us` (in which the GPU waited for their launches) and `won_us` (time above the
    band) are per step; `median_us`, `limit_us`, `low_us` and `high_us` are of one call. What was not recorded
    or cannot be predicted is missing. `position` is that of `Prediction.position`.
    """
    groups = _groups(_calls(found))
    recorded = ["name", "shapes", "dtypes", "strides"]
    described = found.operators.loc[groups["row"], recorded].itertuples(index=False)
    ran = _kernels_of(found, groups["row"])
    rows = [
        _judged(found, group, operator, ran.get(group.row, ()))
        for group, operator in zip(groups.itertuples(), described, strict=True)
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS, dtype=object).astype(dict.fromkeys(_NUMBERS, float))
    frame = frame.sort_values("total_us", ascending=False, kind="stable")
    order = frame["won_us"].fillna(0.0).sort_values(ascending=False, kind="stable")
    return frame.loc[order.index].reset_index(drop=True)


def with_none(frame: pd.DataFrame) -> pd.DataFrame:
    """The same with None for a text that is missing."""
    texts = [name for name in frame if not re.search(r"_us$|share$|^count|flops$|bytes_moved$", name)]
    found = frame[texts].astype(object)
    return frame.assign(**found.where(found.notna(), None))


_NUMBERS = (
    "count",
    "total_us",
    "median_us",
    "flops",
    "bytes_moved",
    "limit_us",
    "low_us",
    "high_us",
    "peak_share",
    "idle_us",
    "won_us",
)


def _calls(found: Case) -> pd.DataFrame:
    """One row an operator call that launched work: its time, its longest kernel, its row and group."""
    called = found.owners >= 0
    items = found.items.loc[called, ["name", "duration_us"]]
    call, rows = pd.factorize(found.owners[called])
    times = {"total_us": items["duration_us"], "idle_us": found.late_us[called]}
    module, modules = pd.factorize(_classes(found.items)[called])
    longest = np.empty(len(rows), dtype=np.int64)
    order = np.argsort(-items["duration_us"].to_numpy(), kind="stable")[::-1]
    longest[call[order]] = order  # the last one kept is the longest
    frame = {name: np.bincount(call, times, len(rows)) for name, times in times.items()}
    frame["module"] = np.append(modules, None)[first_known(call, module)]
    frame["kernel"] = items["name"].to_numpy()[longest]
    return pd.DataFrame(frame | {"row": rows, "group": _grouped(found, pd.Index(rows))})


def _grouped(found: Case, rows: pd.Index) -> np.ndarray:
    """A number for each operator call: the same for the same work, or where it has none the same shapes."""
    called = ("name", "shapes", "dtypes")
    known: dict[int, int] = {}  # by id: calls with the same arguments share one Work
    works = [found.works.get(row) for row in rows.tolist()]
    work = np.array([-1 if w is None else known.setdefault(id(w), len(known)) for w in works], dtype=np.int64)
    first, which = distinct(work, *(timeline.numbers_of(found.trace, column, rows) for column in called))
    keys: dict[object, int] = {}
    calls = found.operators.loc[rows[first], list(called)].itertuples(index=False, name=None)
    groups = [
        keys.setdefault(_key(works[place], call), len(keys))
        for place, call in zip(first.tolist(), calls, strict=True)
    ]
    return np.array(groups, dtype=np.int64)[which]


def _groups(calls: pd.DataFrame) -> pd.DataFrame:
    """Calls added up by group, in the order of the groups' numbers: that in which each comes first."""
    group, total_us = calls["group"].to_numpy(), calls["total_us"].to_numpy()
    first, _ = distinct(group)
    module, modules = pd.factorize(calls["module"])
    longest = np.empty(len(first), dtype=np.int64)
    order = np.argsort(-total_us, kind="stable")[::-1]
    longest[group[order]] = order  # the last one kept is the longest
    frame = {
        "count": np.bincount(group),
        "row": calls["row"].to_numpy()[first],
        "total_us": np.bincount(group, total_us),
        "median_us": calls["total_us"].groupby(group).median().to_numpy(),
        "idle_us": np.bincount(group, calls["idle_us"]),
        "module": np.append(modules, None)[first_known(group, module)],
        "kernel": calls["kernel"].to_numpy()[longest],
    }
    return pd.DataFrame(frame)


def _kernels_of(found: Case, rows: pd.Series) -> dict[int, list[Ran]]:
    """The kernels of these operator calls."""
    if not found.on_gpu:
        return {}
    items = found.items.loc[np.isin(found.owners, rows), ["owner", "name", "grid"]]
    ran: dict[int, list[Ran]] = {}
    for row, name, grid in zip(items["owner"], items["name"], items["grid"], strict=True):
        ran.setdefault(row, []).append(Ran(name, grid if isinstance(grid, tuple) else None))
    return ran


def _key(work: Work | None, call: Sequence[object]) -> object:
    try:
        hash(key := (call[0], work if work is not None else tuple(call)))
    except TypeError:
        return repr(call)
    return key


def _judged(found: Case, group, operator, ran: Sequence[Ran]) -> dict[str, object]:
    """One row of `by_operator`: from the sums of a group, its first call's operator and kernels."""
    work, times = _as_run(found.works.get(group.row), [kernel.name for kernel in ran]), found.repeats
    row = dict.fromkeys(COLUMNS) | {
        "operator": operator.name, "shapes": shapes_text(operator.shapes), "module": group.module,
        "dtype": _dtype(work, operator.dtypes, group.kernel), "kernel": group.kernel,
        "count": group.count / times, "total_us": group.total_us / times, "median_us": group.median_us,
        "idle_us": group.idle_us / times,
    }  # fmt: skip
    if work is None:
        said = "its shapes were not recorded" if operator.shapes is None else "there is no rule for its cost"
        return row | {"reason": "no prediction", "evidence": said}
    row |= {"flops": work.flops, "bytes_moved": work.bytes_moved}
    if found.card is None:
        return row | {"reason": work.kind, "evidence": _rates(work, group.median_us)}
    try:
        time = predict.work_time(work, found.card, inputs=_inputs(operator), ran=ran)
    except ValueError as error:  # the card has no rate for this dtype
        return row | {"reason": "no prediction", "evidence": str(error)}
    won_us = max(0.0, group.total_us - time.high_us * group.count) / times
    row |= {"limit_us": time.limit_us, "low_us": time.low_us, "high_us": time.high_us, "won_us": won_us,
            "position": _position(group.median_us, time),
            "peak_share": time.limit_us / group.median_us if group.median_us else None}  # fmt: skip
    return row | _reasoned(row, time, found.card)


def _dtype(work: Work | None, dtypes: object, kernel: str) -> str | None:
    """The dtype to show: of lists only what the kernel says, since their work may know no more than its size."""
    if work is None:
        return dtype_of(dtypes)
    return decode(kernel).dtype if isinstance(dtypes, tuple) and "TensorList" in dtypes else work.dtype


def _inputs(operator) -> tuple[Tensor, ...]:
    """The operator's tensors with their strides; none where what was recorded makes no sense."""
    try:
        return tuple(tensors(operator.shapes, operator.dtypes, operator.strides))
    except (ValueError, TypeError):
        return ()


def _as_run(work: Work | None, kernels: Sequence[str]) -> Work | None:
    """A float32 product whose kernel rounds to TF32 is timed as that."""
    product = work is not None and work.kind == "gemm" and work.dtype == "float32"
    if product and any(decode(name).dtype == "tfloat32" for name in kernels):
        return replace(work, dtype="tfloat32")
    return work


def _position(time_us: float, time: WorkTime) -> str:
    if time_us < time.limit_us:
        return "below the limit"
    if time_us < time.low_us:
        return "below the band"
    return "inside the band" if time_us <= time.high_us else "above the band"


def _rates(work: Work, time_us: float) -> str:
    """What a call reached: FLOP/s of a product, bytes/s of all else."""
    if not time_us:
        return "took no time that the clock shows"
    if work.flops:
        return f"{units.work(work.flops)} at {units.compute_rate(work.flops / time_us * 1e6)}"
    return f"{units.data(work.bytes_moved)} at {units.bandwidth(work.bytes_moved / time_us * 1e6)}"


def _reasoned(row: dict, time: WorkTime, card: Hardware) -> dict[str, str]:
    """Reason class, its numbers and a remedy, for one operator with a prediction."""
    work = time.work
    share, slow = f"{100 * (row['peak_share'] or 0):.0f} %", row["won_us"] > 0
    compute = work.flops and work.flops / card.rate(work.dtype) > work.bytes_moved / card.bytes_per_s
    what = {"gemm": "GEMM"}.get(work.kind, work.kind) if compute else "memory-bound"
    reason, verdict = f"{what} at {share} of peak", f"{share} of {'FLOP/s' if compute else 'GB/s'}"
    if row["position"] == "below the limit":
        reason = verdict = "above the peak" if compute else "out of a cache"
    elif row["limit_us"] < card.launch_us:
        reason, verdict = (
            ("small, and slow for that", "small, slow") if slow else ("a fixed cost", "fixed cost")
        )
    remedy = _REMEDY_OF_KIND.get(work.kind, _OTHER)
    band = units.band(row["low_us"], row["high_us"])
    evidence = f"{_us(row['median_us'])} a call, predicted {band}; {_rates(work, row['median_us'])}"
    if time.explained_by and time.terms[time.explained_by] > 0.1 * time.typical_us:
        evidence += f"; predicted beyond the rates: {time.explained_by} {_us(time.terms[time.explained_by])}"
    if row["idle_us"] > row["total_us"] and not slow:
        evidence += f"; the GPU waited {_us(row['idle_us'])} for these launches"
        if row["limit_us"] < card.launch_us:  # of a larger one the wait says nothing
            reason, verdict, remedy = "launch-bound", "launch-bound", REMEDY["launch-bound"]
    return {"reason": reason, "verdict": verdict, "evidence": evidence, "remedy": remedy}


_OTHER = "Look at its kernel: another dtype, layout or library may have a better one."
_REMEDY_OF_KIND = {
    "gemm": "Make M, N and K multiples of 64, keep the operands contiguous, and batch small products.",
    "attention": "Pin the backend (torch.nn.attention.sdpa_kernel) and compare; check mask and dtype.",
    "pointwise": "Make its inputs contiguous, and fuse it with its neighbours (torch.compile).",
    "copy": "Avoid the copy, or make it once, in the layout that its reader wants.",
    "reduction": "Reduce over the last, contiguous dimension; fuse it with what comes before (torch.compile).",
}  # fmt: skip


def shapes_text(shapes: object) -> str:
    """The sizes of the tensors among the arguments, "[64, 32] [32, 8]"; a list of tensors is its number."""
    if not isinstance(shapes, tuple):
        return ""
    texts = []
    for shape in shapes:
        if isinstance(shape, tuple) and shape:
            nested = isinstance(shape[0], tuple)
            texts.append(f"{len(shape)} tensors" if nested else "[" + ", ".join(map(str, shape)) + "]")
    return " ".join(texts[:4]) + (" …" if len(texts) > 4 else "")


def dtype_of(dtypes: object) -> str | None:
    """Torch's name of the first argument's dtype that is known."""
    for dtype in dtypes if isinstance(dtypes, tuple) else ():
        try:
            return units.dtype_name(dtype)
        except ValueError:
            continue
    return None


# ----------------------------------------------------------------------------------------------- findings

REMEDY = {
    "launch-bound": 'Launch less: torch.compile, CUDA graphs (mode="reduce-overhead"), larger batches.',
    "synchronisation": "Keep values on the GPU: no .item(), .cpu(), nonzero(), print or synchronize() in a step.",
    "input pipeline": "Give the DataLoader workers, pinned memory and prefetching.",
    "CPU outside of operators": "Look at the Python between operators: a recording with_stack=True names it.",
    "exposed communication": "Overlap it with work that does not need its result, as a backward pass does in"
    " buckets; look for the slowest rank.",
    "copy from pageable memory": "Pin the host tensor (pin_memory=True) and copy with non_blocking=True.",
    "hidden copy": "Give the operator a tensor in the layout that it wants, so that it does not copy first.",
    "change of layout": "Keep model and input in channels_last (memory_format=torch.channels_last).",
    "cast": "Fuse the cast into its neighbours (torch.compile); cast weights once, not in every step.",
    "float32 without tensor cores": "Run it under torch.autocast, or allow TF32:"
    ' torch.set_float32_matmul_precision("high"), for convolutions torch.backends.cudnn.allow_tf32 = True.',
    "math attention": "Let a fused backend run: is_causal=True, no mask tensor, 16-bit dtypes.",
    "attention by hand": "Call torch.nn.functional.scaled_dot_product_attention: scores stay on the chip.",
    "unfused pointwise chain": "Fuse it (torch.compile, or a kernel of your own) to go through memory once.",
    "unfused optimizer": "Build the optimizer with fused=True, or foreach=True.",
    "recompile": "Find the guard that fails (TORCH_LOGS=recompiles), and mark what varies (mark_dynamic).",
    "compilation in a step": "Warm up with every shape before you record or serve.",
    "graph breaks": "Find them with TORCH_LOGS=graph_breaks, or forbid them: torch.compile(fullgraph=True).",
    "kernels without events": "Compile again with torch._inductor.config.cpp.enable_kernel_profile = True, and"
    " record.",
    "far from the card's rates": "Kernels like this one do no better: look for another operator, or fuse it with"
    " its neighbours.",
    "dispatch": "Do more in one operator: larger batches, torch.compile, fewer small operators.",
}


def findings(trace: Trace, step: int | None = None, on: Hardware | str | None = None) -> pd.DataFrame:
    """What would win time back, the most first: reason, where, time_us, won_us, evidence, remedy.

    `time_us` is what it concerns and `won_us` the most that could be won of it, both per step; several
    findings may concern the same time, so they do not add up. Where `won_us` is missing no number follows
    from the trace, and the order takes `time_us`.
    """
    return found_in(case(trace, step, on))


def found_in(found: Case) -> pd.DataFrame:
    """`findings` of a case that is there already."""
    rows = [row for question in _QUESTIONS for row in question(found)]
    frame = pd.DataFrame(rows, columns=["reason", "where", "time_us", "won_us", "evidence", "remedy"])
    frame = frame.astype({"time_us": float, "won_us": float})
    # kernels beside each other may add up to more than a step takes, but no more than the step can be won
    frame["won_us"] = frame["won_us"].clip(upper=(found.window_us[1] - found.window_us[0]) / found.repeats)
    order = frame["won_us"].fillna(frame["time_us"]).sort_values(ascending=False, kind="stable")
    return frame.loc[order.index].reset_index(drop=True)


def _finding(
    reason: str, where: str, time_us: float, won_us: float | None, evidence: str, remedy: str | None = None
) -> dict[str, object]:
    return {
        "reason": reason, "where": units.plain(where), "time_us": time_us, "won_us": won_us,
        "evidence": units.plain(evidence), "remedy": remedy or REMEDY[reason],
    }  # fmt: skip


_us = units.duration


def _some(texts: Iterable[str], most: int = 3, mark: str = ", ") -> str:
    texts = list(texts)
    return mark.join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _kernels(items: pd.DataFrame) -> str:
    """The kernels that took longest in words, each wording once."""
    longest = items.groupby("name")["duration_us"].sum().sort_values(ascending=False).index
    return _some(dict.fromkeys(cut(said(name) or name, 60) for name in longest), most=2, mark="; ")


def _launch_bound(found: Case) -> Iterator[dict]:
    """Idle time for late launches, and before which operators it was."""
    if not found.on_gpu or found.items.empty or not (found.idle["why"] == "launch").any():
        return
    idle, n = found.idle[found.idle["why"] == "launch"], found.repeats
    operators = found.every["operator"].reindex(idle["row"]).to_numpy()
    longest = idle.groupby(operators)["time_us"].sum().sort_values(ascending=False)
    most = _some(f"{name} {_us(us / n)}" for name, us in longest.items())
    late, idle_us = idle.groupby("row")["time_us"].sum(), idle["time_us"].sum() / n
    items = f"{number(len(late) / n)} of {number(len(found.items) / n)} kernels and copies{found.per}"
    evidence = (
        f"before {items} (median {_us(found.items['duration_us'].median())}) the GPU waited for the launch,"
        f" {_us(late.median())} in the median{f'; most of it before {most}' if most else ''}"
    )
    yield _finding("launch-bound", "the whole step", idle_us, idle_us, evidence)


def _synchronisation(found: Case) -> Iterator[dict]:
    if not found.on_gpu or found.waits.empty:
        return
    waits, n = found.waits, found.repeats
    idle_us = found.idle["time_us"][found.idle["why"] == "wait"].sum() / n
    places = Counter(
        f"{name} in {operator}" if isinstance(operator, str) else name
        for name, operator in zip(waits["name"], waits["operator"], strict=True)
    )
    evidence = (
        f"{number(len(waits) / n)} waiting {'call' if len(waits) == n else 'calls'}{found.per}:"
        f" {_some(f'{place} ({number(count / n)})' for place, count in places.most_common())}; the CPU waited"
        f" {_us((waits['end_us'] - waits['start_us']).sum() / n)}, and the GPU was idle for {_us(idle_us)} after"
        " them"
    )
    yield _finding("synchronisation", "in the step", idle_us, idle_us, evidence)


def _away(found: Case) -> Iterator[dict]:
    """Time in which the GPU was idle and the CPU in no operator: the input pipeline, or other Python."""
    if not found.on_gpu:
        return
    idle, n = found.idle[found.idle["why"] == "elsewhere"], found.repeats
    stretch_us = covered(found.loading, idle["start_us"].to_numpy(), idle["end_us"].to_numpy())
    loading_us = float(np.minimum(stretch_us, idle["time_us"]).sum()) / n
    rest_us = idle["time_us"].sum() / n - loading_us
    if loading_us > 0:
        evidence = f"the CPU was in the DataLoader for {_us(_length(found.loading) / n)}{found.per}"
        evidence += f", and the GPU idle for {_us(loading_us)} of it"
        yield _finding("input pipeline", "DataLoader", loading_us, loading_us, evidence)
    if rest_us > 1e-3:
        evidence = f"the GPU had nothing to do for {_us(rest_us)}{found.per} while the CPU was in no operator"
        yield _finding(
            "CPU outside of operators", "between operators", rest_us, rest_us, f"{evidence} and no call"
        )


def _communication(found: Case) -> Iterator[dict]:
    own = found.items[found.items["part"] == "communication"]
    if own.empty or not found.on_gpu:
        return
    row = found.time_parts.set_index("part").loc["communication"]
    evidence = (
        f"{number(len(own) / found.repeats)} kernels{found.per} ({_kernels(own)}),"
        f" {_us(row['time_us'] + row['overlapped_us'])}, of which {_us(row['time_us'])} had nothing computed beside"
        " it"
    )
    yield _finding("exposed communication", "between GPUs", row["time_us"], row["time_us"], evidence)


def _pageable(found: Case) -> Iterator[dict]:
    items = found.items[found.named(found.items, "^Memcpy .*Pageable")]
    for name, own in items.groupby("name", sort=False):
        total_us, nbytes, n = own["duration_us"].sum(), own["bytes"].fillna(0).sum(), found.repeats
        evidence = f"{number(len(own) / n)} copies{found.per}, {_us(total_us / n)}"
        if nbytes > 0 and total_us > 0:
            evidence += f", {units.data(nbytes / n)} at {units.bandwidth(nbytes / total_us * 1e6)}"
        yield _finding("copy from pageable memory", name, total_us / n, None, evidence)


# What a program calls when it wants a copy.
_ASKED = {
    f"aten::{name}"
    for name in ("copy_", "clone", "contiguous", "to", "_to_copy", "cpu", "cuda", "cat", "stack")
}


def _copies(found: Case) -> Iterator[dict]:
    """Copies that the program did not ask for, casts, and changes of layout for convolutions.

    A CPU's product has no epilogue and copies its bias into the output: that copy no program can avoid.
    """
    items, n = found.items, found.repeats
    moved = items[(items["operator"] == "aten::copy_") | found.named(items, "Memcpy DtoD")]
    moved = moved[moved["operator_row"].notna() & ~found.named(moved, "HtoD|DtoH")]
    if not found.on_gpu:
        callers = timeline.around(found.trace, pd.Index(moved["operator_row"].astype(np.int64)))
        moved = moved[~callers.isin(("aten::addmm", "aten::baddbmm")).to_numpy()]
    first, which = distinct(
        *(timeline.numbers_of(found.trace, name, moved["operator_row"]) for name in ("shapes", "dtypes"))
    )
    one = moved.iloc[first]
    shapes = [shapes_text(s[:1]) if isinstance(s, tuple) else "" for s in one["shapes"]]
    moved = moved.assign(
        outer=_outermost(found.operators, moved["operator_row"].to_numpy(dtype=np.int64)),
        shape=np.array(shapes, dtype=object)[which],
        cast=np.array([_cast(dtypes) for dtypes in one["dtypes"]], dtype=object)[which],
    )
    for (outer, shape, cast), own in moved.groupby(["outer", "shape", "cast"], sort=False):
        if cast or outer not in _ASKED:
            total_us = own["duration_us"].sum() / n
            evidence = f"{number(len(own) / n)}{found.per} of {_us(own['duration_us'].median())}"
            where = f"{own['operator'].iloc[0]} inside {outer} {shape}".strip()
            reason, evidence = ("cast", f"{evidence}, {cast}") if cast else ("hidden copy", evidence)
            yield _finding(reason, where, total_us, total_us, evidence, None if cast else _INSTEAD.get(outer))
    own = items[timeline.named(found.trace, items.index, _is_change_of_layout)]
    if len(own):
        total_us = own["duration_us"].sum() / n
        evidence = (
            f"{number(len(own) / n)} kernels{found.per} only change the layout of tensors, {_us(total_us)}"
        )
        yield _finding("change of layout", "around convolutions", total_us, total_us, evidence)


_IN_PLACE = "It copies all and then writes: its form with a trailing underscore only writes, over the old values."
_WIDER = "Padding copies all: make the tensor as wide as it must be, and write into a part of it."
_INSTEAD = {
    **dict.fromkeys(("aten::masked_fill", "aten::index_fill", "aten::index_put"), _IN_PLACE),
    **dict.fromkeys(("aten::scatter", "aten::scatter_add"), _IN_PLACE),
    **dict.fromkeys(("aten::pad", "aten::constant_pad_nd"), _WIDER),
}


def _outermost(operators: pd.DataFrame, rows: np.ndarray) -> list[str]:
    """For each operator the name of the outermost `aten` one around it, which is what the program called."""
    found = operators["name"].reindex(rows).to_numpy(dtype=object)
    while (rows >= 0).any():
        rows = operators["parent"].reindex(rows).fillna(-1).to_numpy(dtype=np.int64)
        names = operators["name"].reindex(rows).to_numpy(dtype=object)
        outer = np.array([isinstance(name, str) and name.startswith("aten::") for name in names], dtype=bool)
        found[outer] = names[outer]
    return found.tolist()


def _cast(dtypes: object) -> str:
    """ "float32 to bfloat16" for a copy whose source (second argument) has another dtype."""
    both = [dtype_of((dtype,)) for dtype in dtypes[:2]] if isinstance(dtypes, tuple) else []
    return f"{both[1]} to {both[0]}" if len(both) == 2 and None not in both and both[0] != both[1] else ""


@lru_cache(maxsize=4096)
def _is_change_of_layout(name: str) -> bool:
    return "change of layout" in (decode(name).variant or "") or bool(_LAYOUT.search(name))


def _float32(found: Case) -> Iterator[dict]:
    """Products that ran in float32 on CUDA cores although the card has tensor cores."""
    dtype, n = _narrow(found), found.repeats
    if dtype is None:
        return
    items = found.items[((found.items["part"] == "compute") & (found.items["kind"] == "kernel")).to_numpy()]
    slow = items[timeline.named(found.trace, items.index, lambda name: decode(name).dtype == "float32")]
    if slow.empty:
        return
    won_us = _won_by_dtype(found, slow, dtype)
    evidence = (
        f"{number(len(slow) / n)} kernels{found.per} compute in float32 on CUDA cores by their names,"
        f" {_us(slow['duration_us'].sum() / n)} ({_kernels(slow)}); tensor cores do {dtype}"
    )
    if found.card is not None:
        evidence += f" at {units.ratio(found.card.rate(dtype) / found.card.rate('float32'))} the rate"
    # TF32 came with bfloat16, in compute capability 8.0.
    other = f"Run it under torch.autocast(dtype=torch.{dtype}); this card has no TF32."
    total_us, remedy = slow["duration_us"].sum() / n, None if dtype == "bfloat16" else other
    where = "matrix products and convolutions"
    yield _finding("float32 without tensor cores", where, total_us, won_us, evidence, remedy)


def _won_by_dtype(found: Case, slow: pd.DataFrame, dtype: str) -> float | None:
    """Time per step above the band of the same products in this dtype; None where none has a prediction."""
    took_us = slow.groupby("owner")["duration_us"].sum()
    works = {row: work for row in took_us.index if (work := found.works.get(row)) is not None and work.flops}
    if found.card is None or not works:
        return None
    narrow = {work: replace(work, dtype=dtype) for work in set(works.values())}
    high_us = {work: predict.work_time(other, found.card).high_us for work, other in narrow.items()}
    return sum(max(0.0, took_us[row] - high_us[work]) for row, work in works.items()) / found.repeats


def _narrow(found: Case) -> str | None:
    """The dtype to use on this GPU's tensor cores instead of float32; None without them, or not known."""
    if not found.on_gpu:
        return None
    if found.card is not None:
        rates = found.card.flops_per_s
        return next((d for d in ("bfloat16", "float16") if rates.get(d, 0) > rates.get("float32", 0)), None)
    capability = next((d.compute_capability for d in found.trace.devices if d.compute_capability), None)
    if capability is None or "AMD" in (found.trace.device or "").upper():
        return None
    return "bfloat16" if capability >= (8, 0) else "float16" if capability >= (7, 0) else None


def _math_attention(found: Case) -> Iterator[dict]:
    """SDPA calls that took the math backend: all that they ran, against one fused kernel."""
    calls = found.events("^aten::_scaled_dot_product_attention_math$", "operator")
    if calls.empty or not found.on_gpu:
        return
    calls = found.operators.loc[calls.index]
    items, called_us = found.items, found.call_us.to_numpy()
    works, ran = _works(found.trace, calls.index.to_numpy()), {}
    for row, call in zip(calls.index, calls.itertuples(), strict=True):
        own = items[(called_us >= call.start_us) & (called_us < call.start_us + call.duration_us)
                    & (items["thread"] == call.thread).to_numpy(dtype=bool, na_value=False)]  # fmt: skip
        if len(own):
            ran.setdefault((shapes_text(call.shapes), works[row]), []).append(
                (own["duration_us"].sum(), len(own))
            )
    for (shape, work), calls_ran in ran.items():
        yield _attention_finding(found, "math attention", shape, work, calls_ran)


def _attention_finding(
    found: Case, reason: str, where: str, work: Work | None, ran: list[tuple[float, int]]
) -> dict[str, object]:
    """`ran` has the time and the number of kernels of each call."""
    total_us = sum(us for us, _ in ran)
    evidence = f"{number(len(ran) / found.repeats)}{found.per} of {ran[0][1]} kernels"
    evidence += f", {_us(total_us / len(ran))} each"
    won_us = None
    if work is not None and found.card is not None and work.dtype in found.card.flops_per_s:
        time = predict.work_time(work, found.card)
        evidence += f"; one fused kernel is predicted to take {units.band(time.low_us, time.high_us)}"
        won_us = max(0.0, total_us - time.high_us * len(ran)) / found.repeats
    return _finding(reason, where, total_us / found.repeats, won_us, evidence)


_SOFTMAX, _BATCHED = ("aten::_softmax", "aten::_safe_softmax"), ("aten::bmm", "aten::baddbmm")
_NEAR = 8  # kernels between a softmax and its products: scale, mask, cast, dropout


def _attention_by_hand(found: Case) -> Iterator[dict]:
    """A softmax over scores that one batched product made and the next one reads."""
    if not found.on_gpu:
        return
    items = found.items[["start_us", "duration_us"]].sort_values("start_us", kind="stable")
    works, took_us = found.work[items.index].tolist(), items["duration_us"].to_numpy()
    products = np.array([i for i, w in enumerate(works) if w and w.operator in _BATCHED], dtype=np.int64)
    ran: dict[Work, list[tuple[float, int]]] = {}
    for at in [i for i, w in enumerate(works) if w and w.operator in _SOFTMAX and len(w.shapes[0]) >= 3]:
        place = int(np.searchsorted(products, at))
        if not 0 < place < len(products) or products[place] - products[place - 1] > 2 * _NEAR:
            continue
        before, after = products[place - 1], products[place]
        (batch, m, k), (_, _, n) = works[before].shapes[-2:]
        if batch * m * n == math.prod(works[at].shapes[0]) == math.prod(works[after].shapes[-2]):
            fused = cost.attention(1, batch, m, n, k, works[before].dtype)
            ran.setdefault(fused, []).append((took_us[before : after + 1].sum(), int(after + 1 - before)))
    for work, calls in ran.items():
        (_, heads, m, k), (_, _, n, _) = work.shapes[:2]
        where = f"{heads} heads of [{m}, {k}] against {n} keys, {work.dtype}"
        yield _attention_finding(found, "attention by hand", where, work, calls)


def _chains(found: Case) -> Iterator[dict]:
    """Pointwise kernels that ran one after the other over the same shape, results handed over in memory.

    A trace does not say which tensor a kernel read, so the saving is what it would be if each read the result
    of the one before. Optimizer steps are left out: there the neighbours are other parameters.
    """
    if not found.on_gpu or found.items.empty:
        return
    columns = ["device", "stream", "start_us", "duration_us", "owner", "step"]
    items = found.items[columns].sort_values(columns[:3], kind="stable")
    works, took_us = found.work[items.index].tolist(), items["duration_us"].to_numpy()
    chains: dict[tuple, list[tuple[float, list[Work]]]] = {}
    for begin, end in _runs(_chainable(found, items, works)):
        names = tuple(work.operator for work in works[begin:end])
        key = (names, _written(works[begin]), works[begin].dtype)
        chains.setdefault(key, []).append((took_us[begin:end].sum(), works[begin:end]))
    for (names, shape, dtype), ran in chains.items():
        moved = sum(work.bytes_moved for work in ran[0][1])
        saved = sum(2 * math.prod(shape) * units.itemsize(work.dtype) for work in ran[0][1][:-1])
        total_us, share = sum(us for us, _ in ran) / found.repeats, min(1.0, saved / moved) if moved else 0.0
        short = [name.removeprefix("aten::") for name in names]
        where = " → ".join(short[:6] + [f"{len(short) - 6} more"] * (len(short) > 6))
        evidence = (
            f"{number(len(ran) / found.repeats)}{found.per}, {_us(total_us)}; moves {units.data(moved)}, fused"
            f" {units.data(max(0, moved - saved))} if each reads the result of the one before"
        )
        where = f"{where} over [{', '.join(map(str, shape))}] {dtype}"
        yield _finding("unfused pointwise chain", where, total_us, total_us * share, evidence)


def _chainable(found: Case, items: pd.DataFrame, works: list[Work | None]) -> np.ndarray:
    """A number for each item: one for pointwise ones of the same shape, step and stream, -1 for others."""
    known = {id(work): _written(work) for work in {id(work): work for work in works if work}.values()}
    shapes = [known[id(work)] if work else None for work in works]
    alone = (
        ~items["owner"].duplicated(keep=False).to_numpy()
        & ~found.in_optimizer.reindex(items.index).to_numpy()
    )
    lane = items.groupby(["device", "stream", "step"], sort=False, dropna=False).ngroup().tolist()
    numbers: dict[object, int] = {}
    return np.array(
        [
            numbers.setdefault((shape, place), len(numbers)) if shape is not None and one else -1
            for shape, place, one in zip(shapes, lane, alone, strict=True)
        ],
        dtype=np.int64,
    )


def _runs(numbers: np.ndarray) -> list[tuple[int, int]]:
    """(begin, end) of stretches of two and more equal numbers that are not -1."""
    edges = np.flatnonzero(np.diff(numbers)) + 1
    begin, end = np.append(0, edges), np.append(edges, len(numbers))
    kept = (end - begin > 1) & (numbers[begin] >= 0)
    return list(zip(begin[kept].tolist(), end[kept].tolist(), strict=True))


def _written(work: Work) -> tuple[int, ...] | None:
    """The shape that a pointwise operator writes, None for another operator and for a single number."""
    if work.kind != "pointwise":
        return None
    try:
        shape = np.broadcast_shapes(*work.shapes)
    except ValueError:
        return None
    return shape if math.prod(shape) > 1 else None


def _optimizer(found: Case) -> Iterator[dict]:
    if not found.on_gpu:
        return
    own, n = found.items[found.in_optimizer], found.repeats
    if len(own) < 30 * n or matching(own["name"], "multi_tensor_apply|[Ff]used").any():
        return
    total_us, idle_us = own["duration_us"].sum() / n, float(found.late_us[own.index].sum()) / n
    evidence = (
        f"{number(len(own) / n)} kernels{found.per}, median {_us(own['duration_us'].median())}, take"
        f" {_us(total_us)}, and the GPU waited {_us(idle_us)} for their launches"
    )
    yield _finding("unfused optimizer", "Optimizer.step", total_us + idle_us, idle_us, evidence)


_COMPILED = r"^_compile\.compile_inner|^entire_frame_compile$"
_DYNAMO = (
    r"^_compile\.compile_inner|^(entire_frame_compile|dynamo)(_data|$)"
    r"|^Torch-Compiled Region: |^TorchDynamo Cache Lookup$"
)


def _compilation(found: Case) -> Iterator[dict]:
    """Dynamo's own events inside the steps: compilations, and how many compiled regions a step runs."""
    window, n = found.on_cpu_us, found.repeats
    events = found.events(_DYNAMO, "operator", "annotation")
    events = events[events["start_us"].between(*window)]
    compiled = events[matching(events["name"], _COMPILED)]
    if len(compiled):
        ids = events["name"].str.extract(r"_data: .*?compile_id=(\d+/\d+)", expand=False).dropna().unique()
        again = [i for i in ids if not i.endswith("/0")]
        total_us = _length(merged(*clipped(compiled, window))) / n
        count = max(Counter(compiled["name"]).values())
        evidence = f"compiled {count}×" + (f" in {n} step{'s' * (n > 1)}" if found.per else "")
        evidence += f", frames compiled before ({_some(again)}) among them" if again else ""
        evidence += f", {_us(total_us)} of CPU time{found.per}"
        yield _finding(
            "recompile" if again else "compilation in a step", "torch.compile", total_us, total_us, evidence
        )
    frames = events["name"].str.extract(r"^Torch-Compiled Region: (\d+)/\d+", expand=False).dropna()
    if frames.nunique() > 1:
        total_us = events["duration_us"][events["name"] == "TorchDynamo Cache Lookup"].sum() / n
        evidence = (
            f"{number(len(frames) / n)} compiled regions ran{found.per}, of {frames.nunique()} frames: each is a"
            f" graph break or a function compiled on its own; cache lookups took {_us(total_us)}"
        )
        yield _finding("graph breaks", "torch.compile", total_us, total_us, evidence)


def _dispatch(found: Case) -> Iterator[dict]:
    """What a CPU spends in operators that do no work themselves, compilation left out."""
    if found.on_gpu:
        return
    row = found.time_parts.set_index("part").loc["operators"]
    regions = found.events("^Torch-Compiled Region: ", "operator")
    regions = found.operators.loc[regions.index[regions["start_us"].between(*found.on_cpu_us)]]
    hidden_us = regions["self_us"].sum() / found.repeats
    rest_us = row["time_us"] - hidden_us
    tenth_us = 0.1 * (found.window_us[1] - found.window_us[0]) / found.repeats
    if hidden_us > tenth_us:
        evidence = f"{_us(hidden_us)}{found.per} are spent in compiled regions, outside of the operators that"
        evidence += " they call: in wrappers, and in Inductor's C++ kernels, which leave no event"
        yield _finding("kernels without events", "torch.compile", hidden_us, None, evidence)
    if rest_us > tenth_us:
        evidence = f"{_us(rest_us)}{found.per} are spent in operators that call others, views and allocations"
        yield _finding("dispatch", "the whole step", rest_us, rest_us, evidence)


def _slow_operators(found: Case) -> Iterator[dict]:
    """Operators above their band, and those inside of it whose kernels are known to stay far below the rates."""
    step_us = (found.window_us[1] - found.window_us[0]) / found.repeats
    for row in found.by_operator.itertuples():
        where = " ".join(filter(None, (row.operator, row.shapes, row.dtype)))
        over_us = row.total_us - row.limit_us * row.count
        if row.won_us > 0:
            yield _finding(row.reason, where, row.total_us, row.won_us, row.evidence, row.remedy)
        elif over_us > _LARGE * step_us and row.peak_share < _FAR:
            evidence = f"{number(row.count)}{found.per} of {_us(row.median_us)}, what such a kernel takes;"
            evidence += f" at the card's rates the same work takes {_us(row.limit_us)}"
            yield _finding("far from the card's rates", where, over_us, None, evidence)


_LARGE, _FAR = 0.05, 0.25  # shares of a step, and of the rates


_QUESTIONS = (
    _launch_bound, _synchronisation, _away, _communication, _pageable, _copies, _float32, _math_attention,
    _attention_by_hand, _chains, _optimizer, _compilation, _dispatch, _slow_operators,
)  # fmt: skip


# -------------------------------------------------------------------------------- how numbers are written

WIDTH = 118  # of a line of text
TITLE = {
    "compiling": "compiling", "compute": "compute", "memory": "memory-bound", "other": "other kernels",
    "communication": "communication",
    "copies": "copies", "operators": "overhead", "launch": "idle: launch-bound", "wait": "idle: after a wait",
    "elsewhere": "idle: CPU elsewhere", "queued": "idle: queued", "end": "idle: end",
}  # fmt: skip


def title(part: str, *, gpu: bool = True) -> str:
    """The name of a part of the time as it is shown."""
    return "outside" if part == "elsewhere" and not gpu else TITLE[part]


def time(us: float) -> str:
    """A time, of which what is below zero by rounding is none."""
    return units.duration(max(0.0, us))


def signed(us: float) -> str:
    """A difference of times, with its sign."""
    return "0 µs" if abs(us) < 5e-4 else f"{'+' if us > 0 else '−'}{units.duration(abs(us))}"


def number(count: float) -> str:
    """A count per step: whole where it is, else with one decimal."""
    return f"{count:,.0f}" if count >= 100 or count == int(count) else f"{count:,.1f}"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], left: Iterable[int]) -> list[str]:
    """Lines of a table of text; the columns `left` are aligned left, the others, numbers, right."""
    left, table = set(left), [tuple(head), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        cells = [
            f"{c:<{w}}" if i in left else f"{c:>{w}}"
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(cut("  " + "  ".join(cells).rstrip(), WIDTH))
    return lines


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are texts, escaped."""
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead>"
            f"<tbody>{body}</tbody></table>")  # fmt: skip


def records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """The rows of a table, None for what is missing."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def finite(value: object) -> object:
    """The same with numbers that JSON has: to three decimals, null for what is not finite."""
    if isinstance(value, dict):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value
