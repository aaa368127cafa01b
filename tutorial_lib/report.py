"""The first look at a trace: what was recorded, where a step's time goes, what would win some of it back.

`look` asks `diagnose` and keeps the answers as tables and numbers in a `Report`, which prints as text of
about a screen, shows itself in a notebook, and writes JSON, one self-contained HTML file or CSV tables. What
comes from a trace is data: texts lose what prints nothing, HTML is escaped, and nothing is loaded from
anywhere.
"""

import html
import json
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from tutorial_lib import diagnose, timeline, units
from tutorial_lib.hardware import Hardware
from tutorial_lib.trace import Trace, read_trace


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """What `look` found; times in the tables are µs per step, `window_us` is how long one step took.

    `time`, `kernels`, `operators` and `findings` are the tables of `diagnose`, whole; `top` rows are shown.
    `facts` says what was recorded (plain numbers and texts, the keys of the JSON), `missing` what was not and
    how to record it, `notes` what to keep in mind.
    """

    path: str
    device: str | None
    card: Hardware | None
    versions: dict[str, str]
    step: int | None
    steps: pd.DataFrame
    window_us: float
    time: pd.DataFrame
    kernels: pd.DataFrame
    operators: pd.DataFrame
    findings: pd.DataFrame
    facts: dict[str, object]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    top: int = 8

    @property
    def on_gpu(self) -> bool:
        return bool(self.facts["on_gpu"])

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _body(self).replace("h2>", "h3>")  # texts are escaped, so these are tags; h2 is the chapter's

    def to_json(self) -> str:
        """All of it as JSON: the facts, and the tables as lists of rows; what is missing is null."""
        tables = {
            "time": diagnose.records(self.time),
            "kernel_table": diagnose.records(self.kernels),
            "verdicts": diagnose.records(self.operators),
            "findings": diagnose.records(self.findings),
            "missing": list(self.missing),
            "remarks": list(self.notes),
        }
        tables["top"] = self.facts["top"][: self.top]
        return json.dumps(diagnose.finite(self.facts | tables), indent=1, allow_nan=False)

    def to_html(self) -> str:
        """One HTML page that needs nothing else: light and dark, readable on a phone."""
        return _page(self)

    def to_csv(self, folder: str | PathLike[str]) -> list[Path]:
        """Writes steps, time, kernels, operators and findings as CSV tables; returns their paths.

        ValueError when there is no place for the folder.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return [_write_csv(folder / f"{name}.csv", getattr(self, name)) for name in _TABLES]
        except OSError as error:
            raise ValueError(f"{folder}: the tables cannot be written there ({error.strerror})") from None


_TABLES = ("steps", "time", "kernels", "operators", "findings")


def look(
    trace: Trace | str | PathLike[str],
    step: int | None = None,
    on: Hardware | str | None = None,
    top: int = 8,
) -> Report:
    """The first look at a trace or its file, or at one step of it; `on` is a card to predict for instead.

    Raises what `read_trace` raises for a file, ValueError for a step that the trace does not have,
    UnknownHardware for a card that is not known.
    """
    trace = read_trace(trace) if isinstance(trace, (str, PathLike)) else trace
    found = diagnose.case(trace, step, on)
    return Report(
        path=trace.path,
        device=trace.device,
        card=found.card,
        versions=dict(trace.versions),
        step=step,
        steps=found.steps.reset_index(drop=True),
        window_us=(found.window_us[1] - found.window_us[0]) / found.repeats,
        time=found.time_parts,
        kernels=diagnose.by_kernel(found),
        operators=found.by_operator,
        findings=diagnose.found_in(found),
        facts=_facts(found),
        missing=tuple(_missing(found)),
        notes=tuple(_notes(found)),
        top=top,
    )


# -------------------------------------------------------------------------------------- what was recorded


def _facts(found: diagnose.Case) -> dict[str, object]:
    """What the trace holds: plain numbers and texts, times in µs."""
    trace, step = found.trace, found.step
    recorded = _mapping(trace.metadata.get("tutorial_lib"))
    operators = found.operators if step is None else timeline.operators(trace, step)
    items = found.items if step is not None else found.every
    gpu = items if found.on_gpu else items.iloc[:0]
    return {
        "trace": trace.path,
        "device": trace.device,
        "predicted_for": found.card.name if found.card else None,
        "recorded": recorded.get("recorded"),
        "label": recorded.get("label"),
        "versions": dict(trace.versions),
        "rank": _rank(trace),
        "step": step,
        "steps": [
            {"step": int(row.step), "start_us": row.start_us, "duration_us": row.duration_us}
            for row in timeline.steps(trace).itertuples()
        ],
        "window": {"start_us": found.window_us[0], "end_us": found.window_us[1], "steps": found.repeats},
        "events": {
            str(kind): int(count) for kind, count in trace.events["kind"].value_counts().items() if count
        },
        "operators": len(operators),
        "launches": len(timeline.launches(trace, step)),
        "kernels": {
            "count": len(gpu),
            "total_us": float(gpu["duration_us"].sum()),
            "busy_us": _union_us(gpu),
        },
        "on_gpu": found.on_gpu,
        "shapes": trace.has_shapes,
        "span_us": float((trace.events["start_us"] + trace.events["duration_us"]).max()),
        "work_items": _counted(items),
        "top": _longest(trace, items, decoded=found.on_gpu),
        "notes": list(trace.notes),
    }


def _counted(items: pd.DataFrame) -> dict[str, object]:
    return {"count": len(items), "total_us": float(items["duration_us"].sum())}


def _longest(trace: Trace, items: pd.DataFrame, *, decoded: bool) -> list[dict[str, object]]:
    """Work items added up by name over all that was asked for, not per step; the longest first."""
    first, name = diagnose.distinct(timeline.numbers_of(trace, "name", items.index))
    sums = items["duration_us"].groupby(name).agg(["size", "sum", "median"])
    sums["name"], sums["kind"] = (items[column].iloc[first].to_numpy(dtype=object) for column in ("name", "kind"))
    caller = diagnose.first_known(name, timeline.numbers_of(trace, "name", items["operator_row"]))
    sums["operator"] = np.array([*trace.numbered("name")[1], None], dtype=object)[caller]
    return [
        {"name": row.name, "kind": str(row.kind), "operator": row.operator,
         "count": int(row.size), "total_us": float(row.sum), "median_us": float(row.median),
         "decoded": diagnose.said(row.name) if decoded else None}
        for row in sums.sort_values("sum", ascending=False, kind="stable").itertuples(index=False)
    ]  # fmt: skip


def _union_us(rows: pd.DataFrame) -> float:
    """Time in which at least one of the rows was running, on whatever lane."""
    start = rows["start_us"].to_numpy(float)
    starts, ends = diagnose.merged(start, start + rows["duration_us"].to_numpy(float))
    return float((ends - starts).sum())


def _rank(trace: Trace) -> dict[str, object] | None:
    """Rank, world size and backend of a distributed run, None for another."""
    said = _mapping(trace.metadata.get("distributedInfo"))
    found = {key: said.get(key) for key in ("rank", "world_size", "backend")}
    return found if isinstance(found["rank"], int) else None


def _mapping(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def _missing(found: diagnose.Case) -> Iterator[str]:
    """What the trace lacks, and how to have it next time."""
    trace = found.trace
    kinds = set(trace.events["kind"].unique())
    if not found.on_gpu:
        yield ("GPU events: only CPU work was recorded; profile with activities=[CPU, CUDA], and if they stay"
               " away CUPTI is taken by another tool or not permitted") if trace.devices else (
               "a GPU: this is a trace of CPU work")  # fmt: skip
    if "operator" not in kinds:
        yield "operators: profile with activities=[CPU, CUDA] to see who launched what"
    elif not trace.has_shapes:
        yield "shapes: profile with record_shapes=True, without them nothing can be predicted"
    if not len(timeline.steps(trace)):
        yield "steps: profile with a schedule and call prof.step(), so that times are per step"
    if "python" not in kinds and found.on_gpu and "operator" in kinds:
        yield "modules: a short run with_stack=True says which nn.Module called what (it slows the CPU)"


def _notes(found: diagnose.Case) -> Iterator[str]:
    """What to keep in mind when reading the numbers, and what was odd in the file."""
    yield from found.trace.notes
    items, times = found.items, found.steps["duration_us"]
    if found.card is not None and found.card != diagnose.card_of(found.trace):
        yield f"bands are for {found.card.name}, as was asked for; times are of {found.trace.device or 'another device'}"
    yield from _others(found)
    late_us = found.window_us[0] - found.on_cpu_us[0]
    if found.on_gpu and found.repeats == 1 and late_us > 0.1 * (found.window_us[1] - found.window_us[0]):
        yield (f"the GPU began with this step {units.duration(late_us)} after the CPU, when it was done with earlier"
               " work: its time is divided from then on")  # fmt: skip
    if len(times) > 1 and times.max() > 1.5 * times.median() > 0:
        odd = int(found.steps["step"].loc[times.idxmax()])
        yield (f"step #{odd} took {units.ratio(times.max() / times.median())} the median and is in the means:"
               " look at the others with --step")  # fmt: skip
    if found.card is not None and found.card.kind == "cuda" and not found.on_gpu:
        yield f"times are of a CPU, predictions of {found.card.name}: what it would be there, and no verdict"
    if found.on_gpu:
        unlinked = int(items["launch"].isna().sum())
        if unlinked:
            yield f"without a launch in the file: {unlinked:,} of {len(items):,} kernels and copies"
        alone = items.loc[items["operator"].isna(), "launch"]
        graph = int(alone.astype(str).str.contains("GraphLaunch").sum())
        if graph:
            yield f"{graph:,} of {len(items):,} came from graph launches: no operator, no shapes"
        outside = len(found.every) - len(items)
        if outside and found.step is None:
            what = "kernels and copies were" if outside > 1 else "kernel or copy was"
            yield (f"{outside:,} {what} launched outside of the steps: what ran then counts in where the time"
                   " goes, and in nothing else")  # fmt: skip
        if found.trace.of_kind("python").any():
            yield "stacks were recorded, which slows the CPU: without them the GPU waits less for launches"
        yield from _profiler(found)


def _others(found: diagnose.Case) -> Iterator[str]:
    """How busy the GPUs were that the division of the time is not about."""
    if not found.on_gpu or found.ran["device"].nunique() < 2:
        return
    shown = diagnose.on_busiest(found)
    number = shown["device"].astype(object).iloc[0]
    which = "the GPU whose number was not recorded" if pd.isna(number) else f"GPU {number}"
    for device, own in found.ran.groupby("device"):
        if own.index[0] not in shown.index:
            start, end = diagnose.clipped(own, found.window_us)
            starts, ends = diagnose.merged(start, end)
            share = (ends - starts).sum() / max(1e-9, found.window_us[1] - found.window_us[0])
            yield f"the time is divided for {which}; GPU {device} was busy for {100 * share:.1f} % of it"


def _profiler(found: diagnose.Case) -> Iterator[str]:
    """Time in which the profiler held up the CPU while the GPU was idle."""
    own = found.events("^Activity Buffer", "overhead")
    idle = found.idle.drop_duplicates("row")
    start = own["start_us"].to_numpy(float)
    blocks = diagnose.merged(start, start + own["duration_us"].to_numpy(float))
    lost_us = diagnose.covered(blocks, idle["start_us"].to_numpy(), idle["end_us"].to_numpy()).sum()
    if lost_us > 0:
        yield f"{units.duration(lost_us)} of the idle time is the profiler's own (Activity Buffer Request)"


# --------------------------------------------------------------------------------------------------- text


def _lines(report: Report) -> Iterator[str]:
    for name, text in _header(report):
        yield from _wrapped(f"{name:<7}", text)
    yield ""
    yield _time_title(report)
    yield from diagnose.columns(_TIME_HEAD, _time_cells(report), left=[0, 3, 4])[1:]
    for title, head, cells, left in _tables(report):
        yield ""
        yield diagnose.cut(title, diagnose.WIDTH)
        if cells:
            yield from diagnose.columns(head, cells, left)
    yield ""
    yield from _finding_lines(report)


_LONGEST = 700  # characters of one paragraph: a name in a file may have any length


def _wrapped(label: str, text: str) -> list[str]:
    """A paragraph behind its label; a number and its unit stay on one line."""
    first = f"{label}  "
    kept = re.sub(r"(?<=\d) (?=([nµm]?s|%|[kMGTP]?B)\b|%)", "\N{NO-BREAK SPACE}", units.plain(text))
    lines = textwrap.wrap(
        diagnose.cut(kept, _LONGEST), diagnose.WIDTH, initial_indent=first, subsequent_indent=" " * len(first)
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _header(report: Report) -> Iterator[tuple[str, str]]:
    """What was recorded, and what was not: (label, text)."""
    facts = report.facts
    yield "trace", report.path
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    rank = facts["rank"] and f"rank {facts['rank']['rank']} of {facts['rank']['world_size']}"
    said = (report.device or "device not in the file", versions, rank, facts["label"], facts["recorded"])
    yield "device", "; ".join(str(text) for text in said if text)
    yield "steps", _steps_text(report)
    events = ", ".join(f"{count:,} {kind}" for kind, count in facts["events"].items())
    yield "events", f"{events}; {units.duration(facts['span_us'])} in all"
    for missing in report.missing:
        yield "missing", missing
    for note in report.notes:
        yield "note", note


def _steps_text(report: Report) -> str:
    steps = report.steps
    if steps.empty:
        return "none were marked: the whole trace counts as one"
    times, numbers = steps["duration_us"], [int(n) for n in steps["step"]]
    if len(numbers) == 1:
        return f"#{numbers[0]}, {units.duration(times.iloc[0])} on the CPU"
    spread = units.band(times.min(), times.max())
    return (
        f"{len(numbers)}, #{numbers[0]} to #{numbers[-1]}: median {units.duration(times.median())} on the"
        f" CPU, {spread}; times below are means per step"
    )


def _time_title(report: Report) -> str:
    whose = "a step's" if len(report.steps) else "the"
    text = f"Where {whose} time goes: {units.duration(report.window_us)}"
    if not report.on_gpu:
        return text
    idle = report.time["part"].isin(("launch", "wait", "elsewhere", "queued", "end"))
    return f"{text}, of which the GPU was busy for {100 * report.time['share'][~idle].sum():.1f} %"


_TIME_HEAD = ("part", "time", "share", "", "what it is")


def _time_cells(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            diagnose.title(row.part, gpu=report.on_gpu),
            diagnose.time(row.time_us),
            f"{100 * row.share:.1f} %",
            "█" * round(20 * row.share),
            row.meaning + _beside(row.overlapped_us, report.window_us),
        )
        for row in report.time.itertuples()
        if row.time_us > 1e-6 or row.overlapped_us > 1e-6
    ]


def _beside(overlapped_us: float, window_us: float) -> str:
    return f" (+ {units.duration(overlapped_us)} overlapped)" if overlapped_us > 1e-3 * window_us else ""


Table = tuple[str, Sequence[str], list[tuple[str, ...]], Sequence[int]]


def _tables(report: Report) -> Iterator[Table]:
    """Title, head, rows of texts, and which columns are words, of the kernels and of the operators."""
    if len(report.kernels):
        what = "Kernels and copies" if report.on_gpu else "Operators"
        count = len(report.kernels)
        more = f", the first {report.top} of {count:,} names" if count > report.top else ""
        head = _KERNEL_HEAD if report.on_gpu else (*_KERNEL_HEAD[:4], "operator", "")
        yield f"{what}: what took longest{more}", head, _kernel_cells(report), (4, 5)
    if len(report.operators):
        yield _verdict_title(report), *_verdicts(report)


_KERNEL_HEAD = ("time", "share", "count", "median", "mostly from", "kernel")


def _kernel_cells(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            diagnose.time(row.total_us),
            f"{100 * row.share:.1f} %",
            diagnose.number(row.count),
            diagnose.time(row.median_us),
            *_whose(report, row),
        )
        for row in report.kernels.head(report.top).itertuples()
    ]


def _whose(report: Report, row) -> tuple[str, ...]:
    """The operator with its module, cut to leave room for the kernel; on a CPU they are one."""
    operator = units.plain(row.operator or "–").removeprefix("aten::")
    origin = " in ".join(filter(None, (operator, units.plain(row.module or ""))))
    return (diagnose.cut(origin, 38), units.plain(row.decoded or row.name)) if report.on_gpu else (origin, "")


def _verdict_title(report: Report) -> str:
    rows = report.operators
    if rows["bytes_moved"].isna().all():
        why = (
            "no shapes were recorded"
            if not report.facts["shapes"]
            else "none of them has a rule for its cost"
        )
        return f"Operators against a prediction: no verdicts, since {why}"
    whole_us = report.kernels["total_us"].sum()
    share = rows["total_us"][rows["bytes_moved"].notna()].sum() / whole_us if whole_us else 0.0
    if report.card is None:
        whose = "the card's rates are not known: --on CARD for another's" if report.on_gpu else (
            "a CPU's rates are not in the trace")  # fmt: skip
        return f"Operators and what they reached ({100 * share:.0f} % of that time): no band, {whose}"
    return (
        f"Operators against the prediction for {report.card.name} ({100 * share:.0f} % of that time has one):"
        " ✓ inside, ✗ above, < below the band"
    )


_MARK = {"inside the band": "✓", "above the band": "✗", "below the band": "<", "below the limit": "<"}


def _verdicts(report: Report) -> tuple[Sequence[str], list[tuple[str, ...]], Sequence[int]]:
    rows = report.operators[report.operators["bytes_moved"].notna()].head(report.top)
    if report.card is None:
        cells = [(diagnose.time(r.total_us), diagnose.number(r.count), diagnose.time(r.median_us), r.evidence,
                  _operator(r)) for r in rows.itertuples()]  # fmt: skip
        return ("time", "count", "median", "reached", "operator"), cells, (3, 4)
    cells = [
        (
            diagnose.time(r.won_us) if r.won_us > 0 else "–",
            diagnose.time(r.total_us),
            diagnose.number(r.count),
            diagnose.time(r.median_us),
            units.band(r.low_us, r.high_us) if r.position else "–",
            f"{_MARK.get(r.position, '–')} {r.verdict}",
            _operator(r),
        )
        for r in rows.itertuples()
    ]
    return ("to win", "time", "count", "median", "predicted", "verdict", "operator"), cells, (5, 6)


def _operator(row) -> str:
    return units.plain(" ".join(filter(None, (row.operator, row.shapes, row.dtype))))


def _shown(report: Report) -> pd.DataFrame:
    """The findings worth a line: over a thousandth of the step, and half as many as rows of a table."""
    frame = report.findings
    worth = frame["won_us"].fillna(frame["time_us"]) > 1e-3 * report.window_us
    return frame[worth].head(max(1, (report.top + 2) // 2) if report.top else 0)


def _finding_lines(report: Report) -> Iterator[str]:
    shown = _shown(report)
    if shown.empty:
        yield "Nothing over a thousandth of the step stands out."
        return
    rest = len(report.findings) - len(shown)
    yield "What to look at first, by the most time that it could win (they overlap: do not add them up)" + (
        f"; {rest} more with --json" if rest else "")  # fmt: skip
    for row in shown.itertuples():
        yield from _wrapped(f"  {_win(row):>9}", f"{row.reason}, {row.where}: {row.evidence}.")
        yield from _wrapped(" " * 11, f"→ {row.remedy}")


def _win(row) -> str:
    """The time to be won, "≤" the whole where no more is known."""
    return diagnose.time(row.won_us) if not math.isnan(row.won_us) else f"≤ {diagnose.time(row.time_us)}"


# --------------------------------------------------------------------------------------------------- HTML

_COLOURS = {
    "compiling": "#d08c2f",
    "compute": "#3b6fb5", "memory": "#5aa469", "other": "#8c7aa9", "communication": "#d08c2f",
    "copies": "#7a7a7a", "operators": "#c0695e", "launch": "#c94f4f", "wait": "#d9706b", "elsewhere": "#e39a95",
    "queued": "#c9b7a0", "end": "#b9b9b9",
}  # fmt: skip


def _bar(report: Report) -> str:
    """The parts as one bar, drawn; the table below it says the same in words."""
    at, boxes = 0.0, []
    for row in report.time.itertuples():
        width = 1000 * max(0.0, row.share)
        name = html.escape(f"{diagnose.title(row.part, gpu=report.on_gpu)} {100 * row.share:.1f} %")
        boxes.append(f'<rect x="{at:.2f}" y="0" width="{width:.2f}" height="40" fill="{_COLOURS[row.part]}">'
                     f"<title>{name}</title></rect>")  # fmt: skip
        at += width
    return ('<svg viewBox="0 0 1000 40" preserveAspectRatio="none" role="img"'
            f' aria-label="{html.escape(_time_title(report))}" style="width:100%;height:2.5rem;display:block">'
            f'{"".join(boxes)}</svg>')  # fmt: skip


def _body(report: Report) -> str:
    """The report as HTML without a page around it, everything from the trace escaped."""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(units.plain(text))}</td></tr>'
        for name, text in _header(report)
    )
    shown = [
        f"<li><strong>{html.escape(f'{_win(row)}: {units.plain(row.reason)}')}</strong>, "
        f"{html.escape(units.plain(row.where))}: {html.escape(units.plain(row.evidence))}.<br>→ "
        f"{html.escape(units.plain(row.remedy))}</li>"
        for row in _shown(report).itertuples()
    ]
    time = [(f"{_swatch(r.part)}", *cells[:3], cells[4]) for r, cells in _time_rows(report)]
    parts = [
        f"<table><tbody>{rows}</tbody></table>",
        f"<h2>{html.escape(_time_title(report))}</h2>{_bar(report)}",
        _time_table(time),
        "<h2>What to look at first</h2><p>By the most time to win; they overlap, so do not add them up.</p>"
        f"<ol>{''.join(shown)}</ol>" if shown else "",
        *(f"<h2>{html.escape(title)}</h2>" + (diagnose.html_table("", head, cells) if cells else "")
          for title, head, cells, _ in _tables(report)),
    ]  # fmt: skip
    return "".join(parts)


def _time_rows(report: Report) -> list[tuple]:
    rows = [r for r in report.time.itertuples() if r.time_us > 1e-6 or r.overlapped_us > 1e-6]
    return list(zip(rows, _time_cells(report), strict=True))


def _swatch(part: str) -> str:
    return f'<span style="display:inline-block;width:.8em;height:.8em;background:{_COLOURS[part]}"></span>'


def _time_table(rows: list[tuple[str, ...]]) -> str:
    body = "".join(
        f"<tr><td>{swatch}</td>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
        for swatch, *cells in rows
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", "part", "time", "share", "what it is"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:0 auto;padding:1rem;
background:Canvas;color:CanvasText}
h1{font-size:1.3rem;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}
div{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}caption{text-align:left;font-weight:600}
th,td{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;
border-bottom:1px solid color-mix(in srgb,CanvasText 20%,transparent)}
td:not(:last-child),th{white-space:nowrap}td:last-child{overflow-wrap:anywhere;min-width:7rem}
td:nth-child(n+6):last-child{min-width:18rem}
li{margin:.5rem 0;overflow-wrap:anywhere}
@media(max-width:40rem){table{font-size:.8rem}th,td{padding-right:.4rem}h2{font-size:1rem}ol{padding-left:1.2rem}}
"""


def _page(report: Report) -> str:
    body = _body(report).replace("<table>", "<div><table>").replace("</table>", "</table></div>")
    name = html.escape(units.plain(Path(report.path).name))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{name}</title><style>{_STYLE}</style></head><body><h1>{name}</h1>{body}</body></html>\n"
    )


# ------------------------------------------------------------------------------------------- JSON and CSV


def _write_csv(path: Path, frame: pd.DataFrame) -> Path:
    frame.map(_cell).to_csv(path, index=False)
    return path


def _cell(value: object) -> object:
    """A text that a spreadsheet takes for text."""
    if not isinstance(value, str):
        return value
    value = units.plain(value)
    return f"'{value}" if value[:1] in "=+-@" and value else value
