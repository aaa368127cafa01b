"""How far predicted GPU times are from times that others measured: tables of it, and their figures.

An error is a factor, 2.0 for twice as long and for half as long. `judge` predicts every row of a table of
operator times (`op_times`), `summary` condenses that by class, by card or by both, `added` and `without` tell
what each term of a model buys, `repeats` how far a call is from itself, `outdone` whether a larger call was
faster, and `out_of_fold` what constants predict that never saw a row.
"""

import csv
import gzip
import io
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from tutorial_lib import figures, kernel_time_memory, predict
from tutorial_lib.op_times import OpTime

WITHIN = 1.25  # the factor that counts as close


# ------------------------------------------------------------------------------------------------------ tables


def judge(rows: Sequence[OpTime], *, named: bool = True, terms: Collection[str] | None = None) -> pd.DataFrame:
    """One line a row, in order: what was measured and what is predicted, in µs; `factor` = typical / measured.

    `named` uses the names of the kernels that ran, as when a trace is read; without it shapes, strides and
    dtypes are all there is. `terms` restricts the models to these terms, () is the limit alone.
    """
    lines = []
    for row in rows:
        ran = row.ran if named else ()
        found = predict.work_time(row.work, row.on, inputs=row.inputs, ran=ran, terms=terms)
        time = (row.median_us, found.limit_us, found.low_us, found.typical_us, found.high_us)
        what = (row.on.name, class_of(row), _operator(row), shapes(row), row.work.dtype)
        lines.append((*what, *time, row.n, row.source))
    table = pd.DataFrame(lines, columns=_COLUMNS)
    return table.assign(factor=table["typical_us"] / table["measured_us"], error=_error(table, "typical_us"))


_COLUMNS = ("card", "class", "operator", "shapes", "dtype", "measured_us", "limit_us", "low_us", "typical_us",
            "high_us", "n", "source")  # fmt: skip


def _operator(row: OpTime) -> str:
    return row.work.operator.removeprefix("aten::")


def shapes(row: OpTime) -> str:
    """The shapes of a call as text: [1024, 32] [32, 64]."""
    return " ".join("[" + ", ".join(map(str, shape)) + "]" for shape in row.work.shapes)


def class_of(row: OpTime) -> str:
    """The kind of work, copies beside pointwise operators, and copies over the bus by themselves."""
    if kernel_time_memory.crosses_bus(row.ran):
        return "bus copy"
    return _CLASSES.get(row.work.kind, row.work.kind)


_CLASSES = {"pointwise": "pointwise, copy", "copy": "pointwise, copy", "other": "lookup"}


def _error(table: pd.DataFrame, column: str) -> pd.Series:
    """How many times too long or too short the predictions of a column are."""
    return errors(table[column].clip(lower=1e-3), table["measured_us"])


def errors(predicted: pd.Series, measured: pd.Series) -> pd.Series:
    """Error factors, 1 and more: twice as long and half as long are both 2."""
    return np.exp(np.log(predicted / measured).abs())


def summary(table: pd.DataFrame, by: str | Sequence[str], *, least: int = 1) -> pd.DataFrame:
    """Of each group: n, median errors of limit and model, shares within 1.25, in the band, below the limit.

    `width` is the band's upper edge over its lower one. Groups with fewer than `least` rows are left out.
    Shares are percentages; figures are rounded, so that they can be compared between machines.
    """
    groups = {key: some for key, some in table.groupby(by, sort=False) if len(some) >= least}
    return pd.DataFrame({key: _figures(some) for key, some in groups.items()}).T.astype({"n": int})


def _figures(some: pd.DataFrame) -> dict[str, float]:
    time = some["measured_us"]
    return {
        "n": len(some),
        "roofline": round(_error(some, "limit_us").median(), 2),
        "median": round(some["error"].median(), 2),
        "within 1.25": round(100 * (some["error"] <= WITHIN).mean()),
        "in band": round(100 * time.between(some["low_us"], some["high_us"]).mean()),
        "width": round((some["high_us"] / some["low_us"]).median(), 2),
        "below limit": round(100 * (time < some["limit_us"]).mean(), 1),
    }


def added(rows: Sequence[OpTime], order: Sequence[str], *, named: bool = True) -> pd.DataFrame:
    """What each term buys when it joins those before it: from the limit alone to the whole model."""
    lines = [("the limit alone", *_close(judge(rows, named=named, terms=())))]
    for last in range(1, len(order) + 1):
        lines.append((f"+ {order[last - 1]}", *_close(judge(rows, named=named, terms=order[:last]))))
    return pd.DataFrame(lines, columns=_STEPS)


_STEPS = ("model", "median", "within 1.25", "typical / measured")


def _close(table: pd.DataFrame) -> tuple[float, int, float]:
    error, factor = table["error"], table["factor"]
    return round(error.median(), 2), round(100 * (error <= WITHIN).mean()), round(factor.median(), 2)


def without(rows: Sequence[OpTime], terms: Sequence[str]) -> pd.DataFrame:
    """The whole model, then with one term left out at a time, the constants as they are."""
    lines = [("the whole model", *_close(judge(rows, terms=terms)))]
    for left_out in terms:
        lines.append((f"without {left_out}", *_close(judge(rows, terms=[t for t in terms if t != left_out]))))
    return pd.DataFrame(lines, columns=_STEPS)


def repeats(rows: Sequence[OpTime]) -> pd.DataFrame:
    """Calls that stand in the table more than once: same card, operator, shapes, strides, dtype and kernels.

    `ratio` is the longest over the shortest time; `sources` counts the repositories they come from.
    """
    same: dict[tuple, list[OpTime]] = defaultdict(list)
    for row in rows:
        same[row.on.name, row.work, row.inputs, row.ran].append(row)
    lines = []
    for (card, *_), some in same.items():
        if len(some) > 1:
            times, sources = [row.median_us for row in some], {row.source for row in some}
            what = (card, _operator(some[0]), shapes(some[0]), len(some))
            lines.append((*what, min(times), max(times), max(times) / min(times), len(sources)))
    columns = ("card", "operator", "shapes", "times", "shortest_us", "longest_us", "ratio", "sources")
    return pd.DataFrame(lines, columns=columns)


def outdone(rows: Sequence[OpTime], row: OpTime) -> OpTime:
    """The fastest call of the same card, class and dtype with no fewer FLOPs and bytes, or `row` itself.

    Where it is much faster, the table disagrees with itself: a model by shapes can hardly be right about both.
    """
    needs = _needs(row)
    kin = (row.on.name, row.work.dtype, class_of(row))
    alike = (r for r in rows if (r.on.name, r.work.dtype, class_of(r)) == kin)
    more = (r for r in alike if all(a >= b for a, b in zip(_needs(r), needs, strict=True)))
    return min(more, key=lambda r: r.median_us)


def _needs(row: OpTime) -> tuple[int, int, int]:
    return row.work.flops, row.work.vector_flops, row.work.bytes_moved


def out_of_fold(rows: Sequence[OpTime]) -> pd.DataFrame:
    """Predictions in µs of the shipped rows by constants that never saw them (benchmarks/cross_validate.py).

    `shape_us`: fitted without the row's shapes; `shape_no_name_us`: and predicted without its kernel's name;
    `card_us`: fitted without its card. `refit …`: products, by the terms up to this one, with constants
    fitted to just these. ValueError when `rows` are not those that were predicted.
    """
    data = gzip.decompress((files("tutorial_lib") / "data" / "out_of_fold.csv.gz").read_bytes())
    lines = list(csv.DictReader(io.StringIO(data.decode("utf-8"))))
    stored = [(line["card"], line["operator"], float(line["median_us"])) for line in lines]
    if stored != [(row.card, row.work.operator, row.median_us) for row in rows]:
        raise ValueError("out_of_fold.csv.gz was made for other rows: run benchmarks/cross_validate.py again")
    table = pd.DataFrame(lines).drop(columns=["card", "operator", "median_us"])
    return table.apply(pd.to_numeric)


# --------------------------------------------------------------------------------------------------- figures

_MARKS = {
    "gemm": ("o", figures.BLUE), "pointwise, copy": ("s", figures.ORANGE), "reduction": ("^", figures.GREEN),
    "attention": ("D", figures.VERMILLION), "lookup": ("v", figures.PURPLE), "bus copy": ("x", figures.GREY),
}  # fmt: skip


def by_card(table: pd.DataFrame, what: str = "typical_us", *, least: int = 20, columns: int = 3) -> Figure:
    """A panel for each card of `least` rows, on log axes: `what` ("typical_us" or "limit_us") over measured.

    The diagonal is a perfect prediction, the grey strip a factor of 1.25 to either side.
    """
    if what not in ("typical_us", "limit_us"):
        raise ValueError(f"what is 'typical_us' or 'limit_us', got {what!r}")
    cards = [card for card, n in table["card"].value_counts().items() if n >= least]
    if not cards:
        raise ValueError(f"no card has {least} rows: pass a smaller least")
    lines = -(-len(cards) // columns)
    figure = figures.Drawing(figsize=(5.2, 1.62 * lines + 0.95), dpi=192, facecolor="white")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    top = 0.24 / figure.get_figheight()
    figure.subplots_adjust(0.13, 0.85 / figure.get_figheight(), 0.985, 1 - top, wspace=0.08, hspace=0.32)
    limits = _limits(table[table["card"].isin(cards)])
    for axes, card in zip(grid.flat, cards, strict=False):
        _panel(axes, table[table["card"] == card], what, limits)
        axes.set_title(f"{card}, {sum(table['card'] == card)}", fontsize=8, pad=3)
    for axes in grid.flat[len(cards) :]:
        axes.remove()
    for axes in grid.flat[max(0, len(cards) - columns) : len(cards)]:
        axes.tick_params(labelbottom=True)
    figure.supxlabel("measured, µs", fontsize=9, y=0.42 / figure.get_figheight())
    figure.supylabel("limit, µs" if what == "limit_us" else "predicted, µs", fontsize=9, x=0.01)
    shown = [name for name in _MARKS if name in set(table["class"])]
    handles = [_sample(grid[0, 0], name) for name in shown]
    figure.legend(handles, shown, loc="lower center", ncols=3, frameon=False, fontsize=8, handletextpad=0.2)
    return figure


def _limits(table: pd.DataFrame) -> tuple[float, float]:
    return max(0.5, 0.7 * table["measured_us"].min()), 1.5 * table["measured_us"].max()


def _panel(axes: Axes, table: pd.DataFrame, what: str, limits: tuple[float, float]) -> None:
    ends = np.array(limits)
    axes.fill_between(ends, ends / WITHIN, ends * WITHIN, color="#D9D9D9", lw=0, zorder=0)
    axes.plot(ends, ends, color=figures.BLACK, lw=0.7, zorder=1)
    for name, some in table.groupby("class"):
        mark, colour = _MARKS[name]
        shown = some[what].clip(lower=limits[0])  # what is smaller stands on the edge
        axes.plot(some["measured_us"], shown, mark, ms=2.4, color=colour, mew=0.5, alpha=0.7, ls="")
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([1, 10, 100, 1000, 10_000]))
        axis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:g}" if us < 1000 else f"{us / 1000:g}k"))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8, length=2)
    axes.tick_params(which="minor", length=0)


def _sample(axes: Axes, name: str):
    mark, colour = _MARKS[name]
    return axes.plot([], [], mark, ms=4, color=colour, ls="")[0]


def staircase(steps: Mapping[str, pd.DataFrame]) -> Figure:
    """Median errors going down as terms join, a line of steps for each name; tables as `added` returns them."""
    rows = max(len(table) for table in steps.values())
    figure = figures.Drawing(figsize=(5.2, 0.3 * rows + 1.25), dpi=192, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(0.33, 0.8 / figure.get_figheight(), 0.96, 0.97)
    looks = zip((figures.BLUE, figures.VERMILLION, figures.GREEN), ("o-", "s--", "^:"), strict=True)
    for (name, table), (colour, look) in zip(steps.items(), looks, strict=False):
        axes.plot(table["median"], range(len(table)), look, color=colour, ms=4, lw=1.3, label=name)
    longest = max(steps.values(), key=len)
    axes.set_yticks(range(rows), longest["model"], fontsize=9)
    axes.set(ylim=(rows - 0.6, -0.4), xscale="log", xlim=(1, None))
    axes.axvline(WITHIN, color=figures.GREY, lw=0.8, ls=":")
    axes.xaxis.set_major_locator(FixedLocator([1, WITHIN, 1.5, 2, 3, 4, 5, 7, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("median error, as a factor", fontsize=9)
    if len(steps) > 1:
        figure.legend(loc="lower center", ncols=3, frameon=False, fontsize=8)
    return figure
