"""Tables and nouns in, a matplotlib Figure out: what happened when, what was predicted, what was measured.

Covers the timeline of a trace, the roofline of a card, predicted beside measured, the samples of a timing and
the parts of a kernel's name. Nothing is computed here but the layout: ask `timeline`, `predict` and `measure`
for the numbers. Every figure is an object of its own (no pyplot, no global style), is drawn to be read at 340
px and at 1000 px width, and tells its kinds apart by hatch, shape or line style as well as by colour (Okabe
and Ito's palette).
"""

import re
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import atan2, ceil, cos, degrees, inf, log10, radians, sin
from numbers import Real

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerLine2D
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullFormatter

from . import units
from .hardware import Hardware
from .kernel_names import KernelName
from .predict import WorkTime
from .timeline import kernels, launches, operators, steps, work_items
from .trace import GPU_WORK, Trace

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#666666"

_WIDTH = 5.2  # inches: 9 pt text is then 8 px high on a 340 px screen
_DPI = 192  # 998 px wide
_TEXT, _SMALL = 9.5, 8.5  # points
_EM = 0.6 / 72  # inches a character takes, per point of its size


class Drawing(Figure):
    """A Figure that a notebook shows by itself, whether or not pyplot was ever imported."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue(), {"width": round(self.get_figwidth() * 115)}


# --------------------------------------------------------------------------------------------------- timeline

LANES = ("annotations", "operators", "calls", "gpu")
_EMPTY = "nothing was recorded in this window"


def timeline(
    trace: Trace,
    step: int | None = None,
    window_us: tuple[float, float] | None = None,
    lanes: Iterable[str] | None = None,
) -> Figure:
    """What ran when: each CPU thread's annotations and nested operators, the runtime calls, each GPU stream.

    Shown is one step (and the GPU work it launched), or the times `window_us` = (from, to) as `start_us`
    counts them, or the whole trace. A line joins each launch to its work. `lanes` is a choice of `LANES`.
    ValueError for a step, a window or a lane that there is not.
    """
    wanted = LANES if lanes is None else (lanes,) if isinstance(lanes, str) else tuple(lanes)
    if unknown := [lane for lane in wanted if lane not in LANES]:
        raise ValueError(f"lanes names {unknown[0]!r}; a timeline has: {', '.join(LANES)}")
    window = _window(trace, step, window_us)
    shown = _lanes(trace, window, wanted)
    if sum(lane.levels for lane in shown) > _MOST_ROWS:
        raise ValueError(
            f"{trace.path}: more than {_MOST_ROWS:,} rows for a figure; choose a step, window_us or lanes"
        )
    tops, height = _tops(shown)
    key = [
        (look.sample(), look.meaning)
        for name, look in _LOOKS.items()
        if any(name in set(lane.bars["look"]) for lane in shown)
    ]
    rows = _key_height(ceil(len(key) / 2))
    figure, axes = _drawing(
        height=height + 0.6 + _WHERE + rows, left=0.2, right=0.2, top=0.08, plot=max(height, 0.3)
    )
    axes.set(xlim=window, ylim=(max(height, 0.3), 0), yticks=[])
    for lane, top in zip(shown, tops, strict=True):
        _draw_lane(axes, lane, top)
    _draw_links(axes, trace, shown, tops)
    if not shown:
        _write(axes, 0.5, 0.5, _EMPTY, transform=axes.transAxes, ha="center", size=_TEXT)
    _trace_time(axes, window)
    _where(axes, _recorded_on(trace))
    _key(figure, key, columns=2)
    return figure


@dataclass(frozen=True)
class _Look:
    """How one kind of bar is drawn, and what the key says of it."""

    meaning: str
    fill: str
    edge: str
    text: str = BLACK
    hatch: str | None = None

    def sample(self) -> Artist:
        if self.edge == "none":
            return Line2D([], [], color=GREY, lw=0.9, marker="|", ms=5)
        return Patch(fc=self.fill, ec=self.edge, hatch=self.hatch, lw=0.8)


_LOOKS = {
    "works": _Look("operator that does or launches work", BLUE, "#002B45", text="white"),
    "calls": _Look("operator that only calls others", "white", BLUE),
    "launch": _Look("launch", ORANGE, "#8A5F00"),
    "runtime": _Look("other runtime call", "white", "#8A5F00"),
    "kernel": _Look("kernel", "#7FCDB9", "#00664B"),
    "copy": _Look("memcpy or memset", "#F0D5E3", "#8C4A70", hatch="////"),
    "annotation": _Look("annotation: a name, not work", "none", "none"),
}


@dataclass(frozen=True, eq=False)
class _Lane:
    """Bars of one lane: name, start_us, duration_us, level (0 is on top), look; indexed as `trace.events`."""

    title: str
    bars: pd.DataFrame

    @property
    def levels(self) -> int:
        return int(self.bars["level"].max()) + 1


def _window(trace: Trace, step: int | None, window_us: tuple[float, float] | None) -> tuple[float, float]:
    if window_us is not None:
        start, end = map(float, window_us)
        if not -inf < start < end < inf:
            raise ValueError(f"window_us runs from earlier to later, got {window_us!r}")
        return start, end
    bars = trace.events[trace.events["kind"].isin(_SHOWN)]
    if step is not None:
        launched, every = kernels(trace, step), steps(trace)
        whole = every[every["step"] == step]
        bars = pd.concat([frame[["start_us", "duration_us"]] for frame in (whole, launched)])
    if bars.empty:
        return 0.0, 1.0
    start, end = bars["start_us"].min(), (bars["start_us"] + bars["duration_us"]).max()
    margin = 0.01 * (end - start) or 0.5
    return start - margin, end + margin


_SHOWN = ("annotation", "operator", "runtime", "driver", *GPU_WORK)


def _lanes(trace: Trace, window: tuple[float, float], wanted: Sequence[str]) -> list[_Lane]:
    events = trace.events
    ends = events["start_us"] + events["duration_us"]
    seen = events[(events["start_us"] < window[1]) & (ends > window[0]) & events["kind"].isin(_SHOWN)]
    depths, lanes = operators(trace)["depth"], []
    working = kernels(trace)["operator_row"].dropna() if trace.has_gpu_events else work_items(trace).index
    for (_, thread), bars in seen.groupby(["pid", "thread"], sort=False):
        named, called = bars[bars["kind"] == "annotation"], bars[bars["kind"] == "operator"]
        if "annotations" in wanted and len(named):
            lanes.append(_Lane(f"CPU thread {thread}: annotations", _stacked(named, "annotation")))
        if "operators" in wanted and len(called):
            lanes.append(_Lane(f"CPU thread {thread}: operators", _nested(called, depths, working)))
    calls = seen[seen["kind"].isin(("runtime", "driver"))]
    if "calls" in wanted and len(calls):
        look = np.where(calls.index.isin(launches(trace).index), "launch", "runtime")
        lanes.append(_Lane("CPU: runtime calls", _stacked(calls, look)))
    work = seen[seen["kind"].isin(GPU_WORK)] if "gpu" in wanted else seen.head(0)
    for (device, stream), bars in work.groupby(["device", "stream"], dropna=False):
        look = np.where(bars["kind"] == "kernel", "kernel", "copy")
        lanes.append(_Lane(f"GPU {device}: stream {stream}", _stacked(bars, look)))
    return lanes


def _nested(called: pd.DataFrame, depths: pd.Series, working: Iterable[int]) -> pd.DataFrame:
    depth = depths.reindex(called.index)
    look = np.where(called.index.isin(working), "works", "calls")
    return called.assign(level=depth - depth.min(), look=look)


def _stacked(bars: pd.DataFrame, look: object) -> pd.DataFrame:
    """Each bar on the highest level that is free when it starts."""
    levels, free = [], []
    for start, length in zip(bars["start_us"], bars["duration_us"], strict=True):
        level = next((i for i, end in enumerate(free) if end <= start), len(free))
        if level <= _MOST_ROWS:  # else the figure is refused
            free[level : level + 1] = [start + length]
        levels.append(level)
    return bars.assign(level=levels, look=look)


_TITLE_ROW, _BAR_ROW, _LANE_GAP = 0.17, 0.19, 0.1  # inches
_MOST_ROWS = 1000  # 190 inches or 36,000 pixels: nobody scrolls through more, and a PNG soon ends


def _tops(lanes: Sequence[_Lane]) -> tuple[list[float], float]:
    """Where the bars of each lane begin, in inches from the top, and the height of all."""
    tops, y = [], 0.0
    for lane in lanes:
        tops.append(y + _TITLE_ROW)
        y += _TITLE_ROW + lane.levels * _BAR_ROW + _LANE_GAP
    return tops, y


def _draw_lane(axes: Axes, lane: _Lane, top: float) -> None:
    across = axes.get_yaxis_transform()
    title = _elided(lane.title, _room(_WIDTH - 0.5, _SMALL))
    _write(axes, 0, top - 0.02, title, va="bottom", color=GREY, transform=across, backed=True)
    for (level, name), bars in lane.bars.groupby(["level", "look"]):
        y, spans = top + level * _BAR_ROW, list(zip(bars["start_us"], bars["duration_us"], strict=True))
        gid = f"{lane.title}, level {level}, {name}"
        if name == "annotation":
            _draw_brackets(axes, spans, y, gid)
        else:
            look = _LOOKS[name]
            axes.broken_barh(
                spans,
                (y + 0.01, _BAR_ROW - 0.03),
                fc=look.fill,
                ec=look.edge,
                hatch=look.hatch,
                lw=_line(len(spans)),
                gid=gid,
                zorder=3,
            )
    for level, bars in lane.bars.groupby("level"):
        middle = 0.5 - 0.15 * (bars["look"].iloc[0] == "annotation")  # a name stands on its bracket
        _name_bars(
            axes, bars.sort_values("start_us", kind="stable"), top + (level + middle) * _BAR_ROW - 0.005
        )


def _draw_brackets(axes: Axes, spans: Sequence[tuple[float, float]], y: float, gid: str) -> None:
    low, high = y + _BAR_ROW - 0.01, y + _BAR_ROW - 0.06
    lines = [[(s, low), (s, high), (s + length, high), (s + length, low)] for s, length in spans]
    axes.add_collection(LineCollection(lines, colors=GREY, lw=0.9, gid=gid, zorder=3), autolim=False)


def _name_bars(axes: Axes, bars: pd.DataFrame, y: float) -> None:
    """Names inside the bars, or to the right of a bar too short for one where nothing follows soon."""
    (left, right), width = axes.get_xlim(), _inches(axes)[0]
    starts, ends = bars["start_us"].clip(left), (bars["start_us"] + bars["duration_us"]).clip(upper=right)
    columns = (bars["name"], bars["look"], starts, ends, [*starts.iloc[1:], right])
    for name, look, start, end, following in zip(*columns, strict=True):
        inside, beside = (
            (length / (right - left)) * width - 0.06 for length in (end - start, following - end)
        )
        if text := _fitting(name, inside):
            hatched = _LOOKS[look].hatch is not None
            _write(axes, start, y, text, offset=(2, 0), color=_LOOKS[look].text, size=_NAME, backed=hatched)
        elif text := _fitting(name, beside):
            _write(axes, end, y, text, offset=(2, 0), size=_NAME)


_NAME = 8  # points


def _fitting(name: str, inches: float) -> str:
    """The name, its short form, or the beginning of that; nothing where not even three letters fit."""
    name = _plain(name[:300])  # which no figure is wide enough for
    short = _short(name)
    beginnings = (f"{short[:letters]}…" for letters in range(min(len(short) - 1, ceil(inches * 30)), 2, -1))
    return next((text for text in (name, short, *beginnings) if _text_inches(text) <= inches), "")


@lru_cache(maxsize=8192)
def _text_inches(text: str) -> float:
    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(family="DejaVu Sans", size=_NAME), False
    )
    return width / 72


def _short(name: str) -> str:
    """A C++ function without return type, namespaces, arguments; an operator without its namespace."""
    found = re.match(r"(?:void )?(?:(?:\w+|\(anonymous namespace\))::)*(\w+)", name)
    return found.group(1) if found else name


def _draw_links(axes: Axes, trace: Trace, lanes: Sequence[_Lane], tops: Sequence[float]) -> None:
    placed = [
        lane.bars.assign(y=top + lane.bars["level"] * _BAR_ROW) for lane, top in zip(lanes, tops, strict=True)
    ]
    if not placed:
        return
    bars, pairs = pd.concat(placed), kernels(trace)["launch_row"].dropna()
    shown = pairs[pairs.index.isin(bars.index) & pairs.isin(bars.index)]
    calls, work = bars.loc[shown], bars.loc[shown.index]
    lines = [
        [(start, call_y + _BAR_ROW - 0.02), (work_start, work_y + 0.01)]
        for start, call_y, work_start, work_y in zip(
            calls["start_us"], calls["y"], work["start_us"], work["y"], strict=True
        )
    ]
    links = LineCollection(lines, colors=GREY, lw=_line(len(lines)), alpha=0.8, gid="links", zorder=2)
    axes.add_collection(links, autolim=False)


def _line(count: int) -> float:
    """Width of the lines of so many things, in points: a thousand outlines would hide what they surround."""
    return 0.7 if count < 100 else 0.2


def _trace_time(axes: Axes, window: tuple[float, float]) -> None:
    """The time axis, in µs as in the tables, in ms where more than 20 ms are shown."""
    scale, unit = (1e3, "ms") if window[1] - window[0] > 2e4 else (1.0, "µs")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us / scale:,.10g}"))
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color="#E4E4E4", lw=0.6)
    axes.set_axisbelow(True)
    _label(axes, f"time in the trace ({unit})")


# ---------------------------------------------------------------------------------------- samples of a timing


def distribution(samples_us: Sequence[float], *, what: str = "time of one call") -> Figure:
    """Every sample in µs, in the order taken, with the median and the mean; ValueError when there is none."""
    samples = [_us(us, "samples_us") for us in samples_us]
    if not samples:
        raise ValueError("samples_us is empty: pass at least one time in µs")
    scale, unit = _time_unit(max(samples))
    figure, axes = _drawing(height=2.9, left=0.55, right=0.85, bottom=0.5, top=0.32)
    count, heading = len(samples), f"{_elided(what, _room(_WIDTH - 1.2, _TEXT))} ({unit})"
    axes.plot(range(1, count + 1), [us / scale for us in samples], "o", color=BLUE, ms=4.5, alpha=0.75)
    axes.set_xlim(0.5 - 0.02 * count, count + 0.5 + 0.02 * count)
    axes.set_ylim(0, 1.1 * max(samples) / scale or 1)
    median, mean = statistics.median(samples), statistics.fmean(samples)
    _level(axes, "median", median / scale, units.duration(median), "-", BLACK, above=median > mean)
    _level(axes, "mean", mean / scale, units.duration(mean), "--", VERMILLION, above=median <= mean)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    _label(axes, "call, in the order they ran")
    _write(axes, 0, 1, heading, size=_TEXT, offset=(-30, 6), va="bottom", transform=axes.transAxes)
    return figure


def _level(axes: Axes, name: str, y: float, value: str, style: str, colour: str, *, above: bool) -> None:
    axes.axhline(y, ls=style, lw=1.4, color=colour, label=name, zorder=1)
    edge = "bottom" if above else "top"
    _write(axes, 1.02, y, f"{name}\n{value}", color=colour, va=edge, transform=axes.get_yaxis_transform())


# ------------------------------------------------------------------------------------- predicted and measured


def predicted_and_measured(rows: Iterable[tuple[str, object, object]]) -> Figure:
    """One row for each (label, prediction, measured): its band, its limit as a tick, the measured time as a
    point.

    A prediction is a `Prediction` or `WorkTime` with a time; measured is a `Timing` (drawn with its
    quartiles), a number of µs, a `Cited` figure (an open point, named so in the key), or None. The axis is logarithmic where the times span more than a factor of
    30. ValueError without rows, or naming the row whose prediction has no time.
    """
    rows = list(rows)
    who = ["cited" if hasattr(measured, "time_us") else "measured" for _, _, measured in rows]
    rows = [(label, prediction, _timed(measured)) for label, prediction, measured in rows]
    if not rows:
        raise ValueError("rows is empty: pass at least one (label, prediction, measured)")
    for label, prediction, _ in rows:
        if prediction.low_us is None or prediction.high_us is None:
            raise ValueError(
                f"the prediction of {label!r} has no time: leave the row out, or predict time_us"
            )
    times = [us for _, p, m in rows for us in (p.limit_us, p.low_us, p.high_us, *(m or ())) if us] or [1.0]
    logarithmic = max(times) > 30 * min(times)
    scale, unit = _time_unit(max(times)) if not logarithmic else (1.0, "µs")
    figure, axes = _drawing(
        height=0.46 * len(rows) + 0.88 + _WHERE, left=0.15, right=0.25, bottom=0.78 + _WHERE, top=0.1
    )
    for row, (label, prediction, measured) in enumerate(rows):
        point = [us / scale for us in measured] if measured else None
        _band_row(axes, row, label, prediction, scale, point, who[row], first=who.index(who[row]) == row)
    _time_axis(axes, [us / scale for us in times], logarithmic)
    axes.set_ylim(len(rows) - 0.3, -0.62)
    axes.set_yticks([])
    _label(axes, f"time ({unit}{', logarithmic' if logarithmic else ''})")
    machines = dict.fromkeys(getattr(prediction, "hardware", None) for _, prediction, _ in rows)
    _where(axes, "predicted for " + ", ".join(filter(None, machines)) if any(machines) else "")
    axes.grid(axis="x", color="#DDDDDD", lw=0.6)
    _key(figure, _labelled(axes), columns=3)
    return figure


def _labelled(axes: Axes) -> list[tuple[Artist, str]]:
    return list(zip(*axes.get_legend_handles_labels(), strict=True))


def _timed(measured: object) -> tuple[float, float, float] | None:
    """Median and quartiles in µs of a Timing; a plain number is all three."""
    if measured is None:
        return None
    if hasattr(measured, "time_us"):
        return (measured.time_us,) * 3
    if hasattr(measured, "median_us"):
        return measured.median_us, measured.q1_us, measured.q3_us
    return (_us(measured, "measured"),) * 3


def _us(value: object, argument: str) -> float:
    if not isinstance(value, Real) or not units.finite(value) or value < 0:
        raise ValueError(f"{argument} has {value!r}, which is no time in µs")
    return float(value)


def _band_row(
    axes: Axes, row: int, label: str, prediction, scale: float, point, who: str, *, first: bool
) -> None:
    low, high = prediction.low_us / scale, prediction.high_us / scale
    axes.barh(
        row,
        high - low,
        left=low,
        height=0.34,
        color="#CFE8F7",
        edgecolor=BLUE,
        hatch="////",
        lw=1,
        label="predicted band" if row == 0 else None,
        gid=f"band {row}",
    )
    if prediction.limit_us:
        axes.plot(
            [prediction.limit_us / scale] * 2,
            [row - 0.27, row + 0.27],
            color=BLACK,
            lw=2.4,
            solid_capstyle="butt",
            label="limit" if row == 0 else None,
            gid=f"limit {row}",
        )
    if point:
        median, q1, q3 = point
        axes.plot([q1, q3], [row, row], color=VERMILLION, lw=2, gid=f"quartiles {row}")
        axes.plot(
            [median],
            [row],
            "o",
            color="white" if who == "cited" else VERMILLION,
            mec=VERMILLION if who == "cited" else "white",
            mew=1.6 if who == "cited" else 0.8,
            ms=7.5,
            ls="none",
            label=(f"{who}, with quartiles" if q1 < q3 else who) if first else None,
            gid=f"measured {row}",
        )
    text = _elided(label, _room(_WIDTH - 0.5, _TEXT))
    _write(
        axes,
        0.005,
        row - 0.27,
        text,
        size=_TEXT,
        va="bottom",
        transform=axes.get_yaxis_transform(),
        backed=True,
    )


def _time_axis(axes: Axes, times: Sequence[float], logarithmic: bool) -> None:
    if not logarithmic:
        axes.set_xlim(0, 1.06 * max(times))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        return
    axes.set_xscale("log")
    axes.set_xlim(min(times) / 1.5, max(times) * 1.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


# --------------------------------------------------------------------------------------------------- roofline


def roofline(
    hardware: Hardware | Iterable[Hardware],
    items: Iterable[WorkTime] = (),
    measured: Sequence[float | None] | None = None,
) -> Figure:
    """FLOP/byte against FLOP/s: the roofs of one card or several, and each item at its predicted band.

    One flat roof per rate in use (all of the card's when there are no items), its ridge marked with the
    value. `measured` has a time in µs for each item, or None, and puts a filled marker there. An item without
    arithmetic, a copy, has no place here and is named below the plot. ValueError when `measured` has another
    length than `items`.
    """
    cards, items = (hardware,) if isinstance(hardware, Hardware) else tuple(hardware), tuple(items)
    if not cards:
        raise ValueError("hardware is empty: pass at least one card")
    times = (None,) * len(items) if measured is None else tuple(measured)
    if len(times) != len(items):
        raise ValueError(
            f"measured has {len(times)} times for {len(items)} items: pass one, or None, for each"
        )
    if any(us is not None and _us(us, "measured") == 0 for us in times):
        raise ValueError("measured has 0, at which there is no rate: pass None for what was not measured")
    points = _points(items, times)
    roofs = [_Roof(card, *roof) for card in cards for roof in _rates(card, items)]
    key = [*_cards_key(cards), *_points_key(points), *_notes_key(items, points)]
    figure, axes = _drawing(height=3.7 + _key_height(len(key)), left=0.74, right=0.28, top=0.15, plot=3.1)
    _roofline_axes(axes, roofs, points)
    for roof in roofs:
        _draw_roof(axes, roof, *_card_style(cards, roof.card))
    _write_roofs(axes, roofs, cards)
    for number, point in enumerate(points):
        beside = sum(0.97 < other.intensity / point.intensity < 1.03 for other in points[:number])
        x = point.intensity * 1.15**beside  # two at one place would hide each other
        _draw_point(axes, number, point, x, below=number % 2 == 1)
    _key(figure, key)
    return figure


@dataclass(frozen=True)
class _Roof:
    card: Hardware
    name: str
    flops_per_s: float

    @property
    def ridge(self) -> float:
        return self.flops_per_s / self.card.bytes_per_s


@dataclass(frozen=True)
class _Point:
    """Equal items as one: their intensity in FLOP/byte, their band and their measured rates in FLOP/s."""

    label: str
    intensity: float
    low: float
    high: float
    measured: tuple[float, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        return (self.low, self.high, *self.measured)


def _arithmetic(item: WorkTime) -> int:
    """FLOPs for the roof that the item stands under: what its products need, or else its vector arithmetic.

    The masked half that a kernel may skip is left out, as it is in the limit.
    """
    return item.work.flops - item.work.skippable_flops or item.work.vector_flops


def _points(items: Sequence[WorkTime], times: Sequence[float | None]) -> list[_Point]:
    groups: dict[WorkTime, list[float]] = {}
    for item, us in zip(items, times, strict=True):
        if _arithmetic(item) and item.work.bytes_moved:
            groups.setdefault(item, []).extend([] if us is None else [us])
    return [
        _Point(
            _item_label(item, items.count(item)),
            _arithmetic(item) / item.work.bytes_moved,
            low=_arithmetic(item) / item.high_us * 1e6,
            high=_arithmetic(item) / item.low_us * 1e6,
            measured=tuple(_arithmetic(item) / us * 1e6 for us in measured),
        )
        for item, measured in groups.items()
    ]


def _item_label(item: WorkTime, count: int) -> str:
    shapes = " ".join("×".join(map(str, shape)) or "scalar" for shape in item.work.shapes)
    return f"{item.work.operator} {shapes} {item.work.dtype}" + (f", {count} times" if count > 1 else "")


def _rates(card: Hardware, items: Sequence[WorkTime]) -> list[tuple[str, float]]:
    """Name and FLOP/s of each roof in use; equal rates are one roof."""
    rates = {i.work.dtype: card.rate(i.work.dtype) for i in items if i.work.flops}
    if any(i.work.vector_flops and not i.work.flops for i in items):
        rates["vector"] = card.vector_rate
    if not rates:
        rates = {dtype: rate for dtype, rate in card.flops_per_s.items() if not dtype.startswith("int")}
    names: dict[float, list[str]] = {}
    for name, rate in rates.items():
        names.setdefault(rate, []).append(name)
    return [(", ".join(same), rate) for rate, same in names.items()]


def _cards_key(cards: Sequence[Hardware]) -> list[tuple[Artist, str]]:
    if len(cards) == 1:
        return [(Line2D([], [], color=BLACK, lw=1.8), f"{cards[0].name}, {_source_kind(cards[0])}")]
    styles = [_card_style(cards, card) for card in cards]
    lines = [Line2D([], [], color=colour, ls=style, lw=1.8) for colour, style in styles]
    return [
        (line, f"{c.name}, {units.bandwidth(c.bytes_per_s)}") for line, c in zip(lines, cards, strict=True)
    ]


def _points_key(points: Sequence[_Point]) -> list[tuple[Artist, str]]:
    looks = [_point_style(number) for number in range(len(points))]
    marks = [Line2D([], [], color=colour, marker=marker, ls="none", ms=6) for colour, marker in looks]
    return [
        (mark, f"{n} {point.label}")
        for n, (mark, point) in enumerate(zip(marks, points, strict=True), start=1)
    ]


def _notes_key(items: Sequence[WorkTime], points: Sequence[_Point]) -> list[tuple[Artist, str]]:
    absent = dict.fromkeys(i.work.operator for i in items if not (_arithmetic(i) and i.work.bytes_moved))
    measured = "; marker: measured" if any(p.measured for p in points) else ""
    notes = [f"bar: predicted band{measured}"] if points else []
    notes += [f"no arithmetic, so not shown: {', '.join(absent)}"] if absent else []
    return [(Line2D([], [], ls="none"), note) for note in notes]


def _roofline_axes(axes: Axes, roofs: Sequence[_Roof], points: Sequence[_Point]) -> None:
    intensities, ridges = [p.intensity for p in points], [r.ridge for r in roofs]
    right = max(intensities + ridges) * 8
    room = (right / min(ridges)) ** 0.6  # three eighths of the axis, for the label of the lowest ridge
    left = min([i / 8 for i in intensities] + [min(ridges) / room])
    rates = [r.flops_per_s for r in roofs] + [rate for p in points for rate in p.rates]
    foot = [r.card.bytes_per_s * left * 1.5 for r in roofs]
    low = min([rate / 3 for rate in rates] + [rate / 1.5 for rate in foot])  # room for a number below its item
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, max(rates) * 3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.yaxis.set_major_formatter(EngFormatter(places=0, sep=" "))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="#E4E4E4", lw=0.6)
    _label(axes, "intensity (FLOP/byte)", "rate (FLOP/s)")


_CARD_STYLES = ((BLACK, "-"), (BLUE, "--"), (PURPLE, "-."), (GREY, ":"))


def _card_style(cards: Sequence[Hardware], card: Hardware) -> tuple[str, str]:
    return _CARD_STYLES[cards.index(card) % len(_CARD_STYLES)]


def _draw_roof(axes: Axes, roof: _Roof, colour: str, style: str) -> None:
    left, right = axes.get_xlim()
    axes.plot(
        [left, roof.ridge, right],
        [left * roof.card.bytes_per_s, roof.flops_per_s, roof.flops_per_s],
        color=colour,
        ls=style,
        lw=1.8,
        zorder=2,
        gid=f"roof {roof.card.name} {roof.name}",
    )
    axes.plot([roof.ridge], [roof.flops_per_s], "o", color=colour, ms=4.5, zorder=3)


def _write_roofs(axes: Axes, roofs: Sequence[_Roof], cards: Sequence[Hardware]) -> None:
    """Rate and ridge at the upper left of each ridge, where no item can be; close labels are pushed up."""
    decade = 72 * _inches(axes)[1] / log10(axes.get_ylim()[1] / axes.get_ylim()[0])  # points on the page
    lowest = 0.0
    for roof in sorted(roofs, key=lambda roof: roof.flops_per_s):
        height = log10(roof.flops_per_s / axes.get_ylim()[0]) * decade
        lowest, push = max(height, lowest) + 2.7 * _SMALL, max(0.0, lowest - height)
        text = f"{roof.name}: {units.compute_rate(roof.flops_per_s)}\nridge {roof.ridge:,.3g} FLOP/byte"
        _write(
            axes,
            roof.ridge,
            roof.flops_per_s,
            text,
            offset=(-5, 1 + push),
            ha="right",
            va="bottom",
            backed=True,
            color=_card_style(cards, roof.card)[0],
        )
    if len(cards) == 1:
        angle, left, rate = _slope(axes), axes.get_xlim()[0], cards[0].bytes_per_s
        along, up = (cos(radians(angle)), sin(radians(angle)))
        aside = (16 * along - 5 * up, 16 * up + 5 * along)  # clear of the axis, and above the line
        _write(axes, left, left * rate, units.bandwidth(rate), offset=aside, rotation=angle, va="bottom")


def _slope(axes: Axes) -> float:
    """The angle, in degrees on the page, of a line that grows by one decade a decade."""
    (left, right), (low, high), (width, height) = axes.get_xlim(), axes.get_ylim(), _inches(axes)
    return degrees(atan2(height / log10(high / low), width / log10(right / left)))


def _inches(axes: Axes) -> tuple[float, float]:
    box, figure = axes.get_position(), axes.figure
    return box.width * figure.get_figwidth(), box.height * figure.get_figheight()


_POINT_COLOURS = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY, BLACK)
_POINT_MARKERS = "osD^vP"  # 7 colours by 6 shapes: 42 points before a pair comes again


def _point_style(number: int) -> tuple[str, str]:
    return _POINT_COLOURS[number % 7], _POINT_MARKERS[number % 6]


def _draw_point(axes: Axes, number: int, point: _Point, x: float, *, below: bool) -> None:
    colour, marker = _point_style(number)
    axes.plot(
        [x] * 2,
        [point.low, point.high],
        color=colour,
        lw=3,
        alpha=0.55,
        marker="_",
        ms=9,
        mew=2,
        zorder=4,
        gid=f"band {number + 1}",
    )
    axes.plot(
        [x] * len(point.measured),
        point.measured,
        marker,
        color=colour,
        mec="white",
        mew=0.7,
        ms=7,
        zorder=5,
        gid=f"measured {number + 1}",
    )
    y, offset, edge = (min(point.rates), -4, "top") if below else (max(point.rates), 4, "bottom")
    _write(axes, x, y, str(number + 1), offset=(0, offset), ha="center", va=edge, color=colour, bold=True)


# -------------------------------------------------------------------------------------------- a kernel's name


def kernel_name(decoded: KernelName) -> Figure:
    """The parts of a kernel's name in their order, one row each: the letters, and what they mean."""
    rows = [(_plain(token) or " ", _plain(meaning)) for token, meaning in decoded.parts] or [
        ("(no name)", "")
    ]
    column = min(26, max(3, *(len(token) for token, _ in rows)))  # characters of the left column
    wide = 0.25 + column * _TEXT * _EM * 1.02
    lines = [
        (_wrapped_name(token, column), _wrapped(meaning, _room(_WIDTH - wide - 0.3, _TEXT)))
        for token, meaning in rows
    ]
    heights = [0.17 * max(len(token), len(meaning)) + 0.12 for token, meaning in lines]
    figure, axes = _drawing(height=sum(heights) + 0.2, left=0.1, right=0.1, bottom=0.1, top=0.1)
    axes.set(xlim=(-0.02, _WIDTH - 0.2), ylim=(sum(heights), 0))
    axes.axis("off")
    top = 0.0
    for row, ((token, meaning), height) in enumerate(zip(lines, heights, strict=True)):
        box = Rectangle((0, top + 0.02), wide, height - 0.04, fc="#E8F3FA", ec=BLUE, lw=1, gid=f"token {row}")
        axes.add_patch(box)
        middle = top + height / 2
        _write(axes, wide / 2, middle, "\n".join(token), ha="center", size=_TEXT, mono=True)
        _write(axes, wide + 0.12, middle, "\n".join(meaning), size=_TEXT)
        top += height
    return figure


def _wrapped_name(name: str, width: int) -> list[str]:
    """A name in lines of at most `width`, broken after an underscore or colon where there is one."""
    lines = [""]
    for piece in re.findall(rf"[^_:]{{1,{width - 2}}}[_:]{{0,2}}|[_:]{{1,{width}}}", name):
        if len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


# ----------------------------------------------------------------------------------------------------- layout


def _drawing(
    *,
    left: float,
    right: float,
    top: float,
    bottom: float = 0.0,
    height: float = 0.0,
    plot: float | None = None,
) -> tuple[Figure, Axes]:
    """A figure of this height with axes inside these margins, or axes of the height `plot`; in inches."""
    figure = Drawing(figsize=(_WIDTH, height), dpi=_DPI, facecolor="white")
    plot = height - top - bottom if plot is None else plot
    box = (left / _WIDTH, 1 - (top + plot) / height, 1 - (left + right) / _WIDTH, plot / height)
    axes = figure.add_axes(box, facecolor="white")
    axes.tick_params(labelsize=_SMALL)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size: float = _SMALL,
    offset: tuple[float, float] = (0, 0),
    color: str = BLACK,
    ha: str = "left",
    va: str = "center",
    transform=None,
    rotation: float = 0,
    bold: bool = False,
    mono: bool = False,
    backed: bool = False,
) -> None:
    """Text as it is: a dollar starts no formula. `offset` is in points, `backed` hides what is behind."""
    axes.annotate(
        text,
        (x, y),
        xytext=offset,
        xycoords=transform or "data",
        textcoords="offset points",
        color=color,
        ha=ha,
        va=va,
        size=size,
        rotation=rotation,
        rotation_mode="anchor",
        weight="bold" if bold else "normal",
        parse_math=False,
        family="DejaVu Sans Mono" if mono else "DejaVu Sans",
        annotation_clip=False,
        bbox={"fc": "white", "ec": "none", "pad": 0.6, "alpha": 0.85} if backed else None,
    )


_WHERE = 0.17  # inches: the line below a time axis that says which machine it is about


def _where(axes: Axes, text: str) -> None:
    """Small and grey, below the label of the x axis."""
    _write(
        axes, 0.5, 0, _elided(text, _room(_WIDTH - 0.4, _SMALL)), offset=(0, -37), transform=axes.transAxes,
        ha="center", color=GREY,
    )  # fmt: skip


def _recorded_on(trace: Trace) -> str:
    recorded = trace.metadata.get("tutorial_lib")
    if isinstance(recorded, dict) and recorded.get("drawn_by_hand"):
        return "drawn by hand, not measured"
    version = trace.versions.get("torch")
    return ", ".join(filter(None, (trace.device, f"torch {version}" if version else None)))


def _source_kind(card: Hardware) -> str:
    return "calibrated" if card.measured else "datasheet rates"


def _label(axes: Axes, x: str, y: str = "") -> None:
    axes.set_xlabel(x, size=_TEXT, labelpad=2)
    axes.set_ylabel(y, size=_TEXT, labelpad=2)


_KEY_ROW = 0.175  # inches


def _key_height(rows: int) -> float:
    return _KEY_ROW * rows + (0.05 if rows else 0)


def _key(figure: Figure, entries: Iterable[tuple[Artist, str]], *, columns: int = 1) -> None:
    """Marks and their meaning along the lower edge of the figure."""
    entries = list(entries)
    if not entries:
        return
    room = _room(_WIDTH - 0.5, _SMALL)
    brackets = [mark for mark, _ in entries if isinstance(mark, Line2D) and mark.get_marker() == "|"]
    legend = figure.legend(
        [mark for mark, _ in entries],
        [_elided(text, room) for _, text in entries],
        loc="lower left",
        ncols=columns,
        fontsize=_SMALL,
        frameon=False,
        borderpad=0.2,
        borderaxespad=0.2,
        labelspacing=0.35,
        handlelength=1.6,
        handletextpad=0.5,
        columnspacing=1.0,
        handler_map={mark: HandlerLine2D(numpoints=2) for mark in brackets},
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _time_unit(longest_us: float) -> tuple[float, str]:
    """The unit of a time axis, and how many µs it has."""
    return (1e6, "s") if longest_us >= 1e7 else (1e3, "ms") if longest_us >= 1e4 else (1.0, "µs")


def _room(inches: float, size: float) -> int:
    """Characters of this size in points that fit this width."""
    return max(0, int(inches / (size * _EM)))


def _elided(text: str, width: int) -> str:
    """At most `width` characters, the middle left out: both ends of a kernel's name tell something."""
    text = _plain(text)
    if len(text) <= width:
        return text
    end = (width - 1) // 3
    return text[: width - 1 - end] + "…" + text[len(text) - end :] if width > 1 else text[:width]


def _plain(text: str) -> str:
    """Without control characters, which have no glyph: names come from files that others wrote."""
    return "".join(c if c.isprintable() else "?" for c in text)
