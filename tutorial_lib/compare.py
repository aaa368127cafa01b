"""The same job before and after a change: what its steps did in each, matched and subtracted.

Rows are matched by operator and shapes where both traces recorded shapes, else by operator and what the
kernel's name says; work that belongs to no operator (a graph launch) always by the latter. Everything is per
step, so traces with other numbers of steps compare. What else differs (card, versions, dtype of the products)
is said first, since it may explain all. Rows that are the same are in the table and not shown. Not covered:
noise, so trust no small change of a single run.
"""

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tutorial_lib import diagnose, units
from tutorial_lib.kernel_names import decode
from tutorial_lib.trace import Trace

SAME = 0.05  # times of one call that are closer than this are called the same


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Two traces, per step: `before_us` and `after_us` are how long a step took.

    `differs` are sentences on what else is not the same. `parts` divides the difference exactly: part,
    before_us, after_us, difference_us. `table` has a row for each operator and its shapes: operator, shapes,
    kernel_before, kernel_after, dtype_before, dtype_after, count_before, count_after, before_us, after_us,
    difference_us, by_count_us (what of it the number of calls makes), change. `by` says how rows were matched.
    `steps` is the step of each that it is about, None for all. Shown are the first `top` rows that changed.
    """

    before: str
    after: str
    before_us: float
    after_us: float
    differs: tuple[str, ...]
    parts: pd.DataFrame
    table: pd.DataFrame
    by: str
    on_gpu: bool = True
    top: int = 8
    steps: tuple[int, int] | None = None

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _html(self)

    def to_json(self) -> str:
        """All of it as JSON; what is missing is null."""
        names = ("before", "after", "before_us", "after_us", "differs", "by", "steps")
        plain = {name: getattr(self, name) for name in names}
        tables = {"parts": diagnose.records(self.parts), "table": diagnose.records(self.table)}
        return json.dumps(diagnose.finite(plain | tables), indent=1, allow_nan=False)


def compare(
    before: Trace, after: Trace, top: int = 8, step: int | tuple[int, int] | None = None
) -> Comparison:
    """What changed from one trace to another of the same job; `top` is how many rows are shown.

    With `step` only that step of each is compared: one number for both, or (of before, of after). ValueError
    for a step that a trace does not have.
    """
    steps = tuple(step) if isinstance(step, (tuple, list)) else (step, step)
    if len(steps) != 2:
        raise ValueError(f"step is a number for both traces, or one for each, got {step!r}")
    a, b = (diagnose.case(trace, number) for trace, number in zip((before, after), steps, strict=True))
    by_shape = _has_shapes(a) and _has_shapes(b)
    return Comparison(
        before=before.path,
        after=after.path,
        before_us=_step_us(a),
        after_us=_step_us(b),
        differs=tuple(_differs(a, b)),
        parts=_parts(a, b),
        table=_table(_rows(a, by_shape), _rows(b, by_shape)),
        by="operator and shapes" if by_shape else "operator and kernel",
        on_gpu=a.on_gpu or b.on_gpu,
        top=top,
        steps=None if step is None else steps,
    )


def _step_us(found: diagnose.Case) -> float:
    return (found.window_us[1] - found.window_us[0]) / found.repeats


def _has_shapes(found: diagnose.Case) -> bool:
    return bool(found.operators["shapes"].notna().any())


def _parts(a: diagnose.Case, b: diagnose.Case) -> pd.DataFrame:
    """Where a step's time went in both; the differences add up to that of the steps."""
    before, after = (diagnose.time_parts(c).set_index("part")["time_us"] for c in (a, b))
    names = list(dict.fromkeys([*before.index, *after.index]))
    frame = pd.DataFrame({"before_us": before.reindex(names), "after_us": after.reindex(names)}).fillna(0.0)
    frame = frame.assign(difference_us=frame["after_us"] - frame["before_us"])
    return frame.rename_axis("part").reset_index()


# ------------------------------------------------------------------------------------------ rows, matched

_KEY = ["operator", "shapes"]


def _rows(found: diagnose.Case, by_shape: bool) -> pd.DataFrame:
    """By operator and shapes (or what the kernel's name says): kernel, dtype, count and time per step."""
    items = found.items
    words = {name: _words(name) if found.on_gpu else "" for name in items["name"].unique()}
    owner = items["owner"].fillna(-1).to_numpy(dtype=np.int64)
    rows = pd.unique(owner[owner >= 0])
    shapes = {
        row: diagnose.shapes_text(s)
        for row, s in zip(rows, found.operators["shapes"].reindex(rows), strict=True)
    }
    names = dict(zip(rows, found.operators["name"].reindex(rows), strict=True))
    dtypes = dict(zip(rows, map(diagnose.dtype_of, found.operators["dtypes"].reindex(rows)), strict=True))
    frame = pd.DataFrame(
        {
            "operator": [names.get(row, "") for row in owner],
            "shapes": [shapes[row] if by_shape and row >= 0 else words[name]
                       for row, name in zip(owner, items["name"], strict=True)],
            "kernel": items["name"].map(words).to_numpy(),
            "dtype": [dtypes.get(row) or "" for row in owner],
            "call": np.where(owner >= 0, owner, -1 - np.arange(len(owner))),
            "us": items["duration_us"].to_numpy(),
        }
    )  # fmt: skip
    groups = frame.groupby(_KEY, sort=False)
    found_rows = groups.agg(count=("call", "nunique"), us=("us", "sum"))
    longest = frame.sort_values("us", ascending=False, kind="stable").drop_duplicates(_KEY).set_index(_KEY)
    return (found_rows / found.repeats).join(longest[["kernel", "dtype"]])


def _words(name: str) -> str:
    return diagnose.said(name) or units.plain(name)


def _table(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    both = before.reset_index().merge(
        after.reset_index(), on=_KEY, how="outer", suffixes=("_before", "_after"), sort=False
    )
    both = both.rename(columns={"us_before": "before_us", "us_after": "after_us"})
    numbers = ["count_before", "count_after", "before_us", "after_us"]
    both[numbers] = both[numbers].fillna(0.0)
    both["difference_us"] = both["after_us"] - both["before_us"]
    each = (both["before_us"] / both["count_before"]).where(both["count_before"] > 0)
    each = each.fillna(both["after_us"] / both["count_after"])
    both["by_count_us"] = (both["count_after"] - both["count_before"]) * each
    both["change"] = [_change(row) for row in both.itertuples()]
    order = both["difference_us"].abs().sort_values(ascending=False, kind="stable").index
    columns = ["operator", "shapes", "kernel_before", "kernel_after", "dtype_before", "dtype_after", *numbers,
               "difference_us", "by_count_us", "change"]  # fmt: skip
    return diagnose.with_none(both.loc[order, columns].reset_index(drop=True))


def _change(row) -> str:
    if not row.count_before or not row.count_after:
        return "appeared" if row.count_after else "vanished"
    said = []
    if row.count_after != row.count_before:
        said.append("more calls" if row.count_after > row.count_before else "fewer calls")
    before, after = row.before_us / row.count_before, row.after_us / row.count_after
    if abs(after - before) > SAME * max(before, after):
        said.append("slower" if after > before else "faster")
    return ", ".join(said) or "same"


# -------------------------------------------------------------------------------------- what else differs


def _differs(a: diagnose.Case, b: diagnose.Case) -> Iterator[str]:
    """Sentences on card, versions, dtype of the products, and on what one of the traces lacks."""
    if a.trace.device != b.trace.device:
        before, after = (c.trace.device or "not in the file" for c in (a, b))
        yield f"the device: {before} before, {after} after"
    if a.on_gpu != b.on_gpu:
        yield "one has GPU work and the other has not: kernels are compared with operators"
    versions, others = a.trace.versions, b.trace.versions
    for name in sorted(versions.keys() & others.keys()):
        if versions[name] != others[name]:
            yield f"{name}: {versions[name]} before, {others[name]} after"
    before, after = _dtypes(a), _dtypes(b)
    if before and after and before != after:
        yield f"the products run in {before} before, in {after} after"
    if _has_shapes(a) != _has_shapes(b):
        only = "before" if _has_shapes(a) else "after"
        yield f"shapes were recorded only {only}, so rows are matched by kernel"
    if bool(len(a.steps)) != bool(len(b.steps)):
        yield "only one of the traces has steps; all of the other counts as one"


def _dtypes(found: diagnose.Case) -> str | None:
    """The dtype that most of the time of products was spent in."""
    items = found.items[found.items["part"] == "compute"]
    said = {name: decode(name).dtype for name in items["name"].unique()} if found.on_gpu else {}
    works = [found.works.get(row) for row in items["owner"].to_numpy(dtype=object, na_value=None)]
    names = [
        said.get(name) or (work.dtype if work else None)
        for name, work in zip(items["name"], works, strict=True)
    ]
    sums = items["duration_us"].groupby(pd.Series(names, items.index, dtype=object)).sum()
    return None if sums.empty else str(sums.idxmax())


# ------------------------------------------------------------------------------------------ text and HTML


def _headline(c: Comparison) -> str:
    change = c.after_us - c.before_us
    ratio = f", {units.ratio(c.after_us / c.before_us)} the time" if c.before_us else ""
    if not change:
        return f"a step takes {units.duration(c.before_us)} in both"
    more = f"{units.duration(abs(change))} {'more' if change > 0 else 'less'}"
    return (
        f"a step takes {units.duration(c.after_us)} instead of {units.duration(c.before_us)}: {more}{ratio}"
    )


def _names(c: Comparison) -> tuple[str, str]:
    """Both files, each with its step where only one is compared."""
    steps = [""] * 2 if c.steps is None else [f", step #{number}" for number in c.steps]
    return units.plain(c.before) + steps[0], units.plain(c.after) + steps[1]


def _lines(c: Comparison) -> Iterator[str]:
    before, after = _names(c)
    yield f"before  {before}"
    yield f"after   {after}"
    yield from (f"differs {diagnose.cut(units.plain(said), 6 * diagnose.WIDTH)}" for said in c.differs)
    yield ""
    yield _headline(c)
    yield from diagnose.columns(_PARTS_HEAD, _parts_cells(c), left=[0])
    yield ""
    rows = _changed(c)
    if rows.empty:
        yield _nothing(c)
        return
    yield f"What explains it, by {c.by} ({_whose(c)} time)"
    yield from diagnose.columns(_TABLE_HEAD, _table_cells(c), left=[4, 5])
    for said, rest in (("", rows.iloc[c.top :]), (f" {_ALIKE}", c.table.drop(rows.index))):
        if len(rest):
            together = diagnose.signed(rest["difference_us"].sum())
            yield f"  and {len(rest)} more rows{said}, {together} together"
    elsewhere_us = c.after_us - c.before_us - c.table["difference_us"].sum()
    if abs(elsewhere_us) > SAME * max(c.before_us, c.after_us):
        said = "of the parts above (waiting, overhead, what ran at the same time)"
        yield f"  in no row: {diagnose.signed(elsewhere_us)} {said}"


_ALIKE = f"that are the same to within {100 * SAME:g} % a call"


def _whose(c: Comparison) -> str:
    return "device" if c.on_gpu else "operator"


def _changed(c: Comparison) -> pd.DataFrame:
    return c.table[c.table["change"] != "same"]


def _nothing(c: Comparison) -> str:
    """The line that stands for a table without rows."""
    if c.table.empty:
        return "Nothing to compare: neither trace has device work"
    if not c.table["difference_us"].any():
        return f"Nothing differs, by {c.by} ({_whose(c)} time)"
    together = diagnose.signed(c.table["difference_us"].sum())
    return f"Nothing differs, by {c.by} ({_whose(c)} time): {len(c.table)} rows {_ALIKE}, {together} together"


_PARTS_HEAD = ("part", "before", "after", "difference")
_TABLE_HEAD = ("difference", "before", "after", "calls", "change", "operator")


def _parts_cells(c: Comparison) -> list[tuple[str, ...]]:
    rows = [row for row in c.parts.itertuples() if row.before_us or row.after_us]
    cells = [(diagnose.title(r.part, gpu=c.on_gpu), diagnose.time(r.before_us), diagnose.time(r.after_us),
              diagnose.signed(r.difference_us)) for r in rows]  # fmt: skip
    whole = (
        "a step",
        diagnose.time(c.before_us),
        diagnose.time(c.after_us),
        diagnose.signed(c.after_us - c.before_us),
    )
    return [*cells, whole]


def _table_cells(c: Comparison) -> list[tuple[str, ...]]:
    return [
        (
            diagnose.signed(row.difference_us),
            diagnose.time(row.before_us) if row.count_before else "–",
            diagnose.time(row.after_us) if row.count_after else "–",
            _counts(row.count_before, row.count_after),
            row.change,
            units.plain(_what(row)),
        )
        for row in _changed(c).head(c.top).itertuples()
    ]


def _counts(before: float, after: float) -> str:
    both = [diagnose.number(before), diagnose.number(after)]
    return both[0] if both[0] == both[1] else " → ".join(both)


def _what(row) -> str:
    """The operator with its shapes, and both kernels or dtypes where they are not the same."""
    said = " ".join(filter(None, (row.operator, row.shapes)))
    dtypes = " → ".join(dict.fromkeys(d for d in (row.dtype_before, row.dtype_after) if d))
    said += f" {dtypes}" if dtypes and dtypes not in said else ""
    kernels = [k for k in (row.kernel_before, row.kernel_after) if k]
    if len(kernels) == 2 and kernels[0] != kernels[1]:
        said += f": {kernels[0]} → {kernels[1]}"
    return said


def _html(c: Comparison) -> str:
    parts = [f"<p>{' → '.join(map(html.escape, _names(c)))}</p>"]
    if c.differs:
        parts.append(
            "<ul>" + "".join(f"<li>{html.escape(units.plain(said))}</li>" for said in c.differs) + "</ul>"
        )
    parts.append(diagnose.html_table(_headline(c), _PARTS_HEAD, _parts_cells(c)))
    if _changed(c).empty:
        parts.append(f"<p>{html.escape(_nothing(c))}</p>")
    else:
        parts.append(diagnose.html_table(f"What explains it, by {c.by}", _TABLE_HEAD, _table_cells(c)))
    return "".join(parts)
