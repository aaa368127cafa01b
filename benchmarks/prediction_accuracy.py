"""How far predicted GPU times are from times others measured, by card and kind of work, and whether that is enough.

    python benchmarks/prediction_accuracy.py [CSV]     the table shipped with the book unless CSV is given
    ... --json                                         the same as JSON
    ... --cards-left-out                               fit anew without each card and predict it (minutes, numpy only)

CSV has the columns of tutorial_lib/data/op_times.csv.gz. An error is a factor: 1.25 is a quarter too long or as
much too short. "kernel known" uses the names of the kernels that ran, as when a trace is read; "shapes only" knows shapes,
strides and which arithmetic was allowed (TF32 or not). Beside them stand the roofline and, where the package is
installed, NVIDIA's nvMatmulHeuristics (pip install nvidia-matmul-heuristics) for the two-dimensional 16-bit products
it answers. Exit status 1 where a bar is missed.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tutorial_lib import kernel_time_gemm, kernel_time_memory, op_times, predict
from tutorial_lib.op_times import OpTime
from tutorial_lib.predict import WorkTime

KINDS = ("gemm", "pointwise", "copy", "reduction", "attention", "other")
MEDIAN_BARS = {"gemm": 1.12, "pointwise": 1.25, "copy": 1.25, "reduction": 1.20, "attention": 1.20}
WITHIN_BAR, SHORT_BAR, INSIDE_BAR, WIDTH_BAR, UNSEEN_BAR = 0.70, 1.20, 0.80, 1.5, 1.30
ROWS_TO_JUDGE, SHORT_US = 20, 10.0


@dataclass(frozen=True)
class Scored:
    """One row with its predictions; `heuristic_us` is nvMatmulHeuristics' answer, None where it has none."""

    row: OpTime
    known: WorkTime
    shapes: WorkTime
    unseen: WorkTime
    heuristic_us: float | None


def score(rows: Sequence[OpTime]) -> list[Scored]:
    unseen, theirs = {}, ask_nvidia(rows)
    for name in dict.fromkeys(row.on.name for row in rows):
        with withheld(name):
            unseen.update((id(row), _time(row, row.ran)) for row in rows if row.on.name == name)
    return [
        Scored(row, _time(row, row.ran), _time(row, ()), unseen[id(row)], theirs.get(id(row))) for row in rows
    ]


def _time(row: OpTime, ran: tuple) -> WorkTime:
    return predict.work_time(row.work, row.on, inputs=row.inputs, ran=ran)


@contextmanager
def withheld(name: str) -> Iterator[None]:
    """Both models without what they know of one card: it gets what a card nobody measured would get."""
    gemm, memory = kernel_time_gemm.CARDS, kernel_time_memory.CONSTANTS
    own = gemm.pop(name, None)
    kernel_time_memory.CONSTANTS = replace(memory, cards={c: v for c, v in memory.cards.items() if c != name})
    try:
        yield
    finally:
        kernel_time_memory.CONSTANTS = memory
        if own:
            gemm[name] = own


# ------------------------------------------------------------------------------------------------- the figures


def figures(rows: Sequence[Scored]) -> dict[str, float | int]:
    """n, and of each predictor the median error and the share within 1.25; of the band, how many it holds."""
    time = np.array([s.row.median_us for s in rows])
    found: dict[str, float | int] = {"n": len(rows)}
    for label, typical in (
        ("known", [s.known.typical_us for s in rows]),
        ("shapes", [s.shapes.typical_us for s in rows]),
        ("unseen", [s.unseen.typical_us for s in rows]),
        ("roofline", [max(s.known.limit_us, 1e-3) for s in rows]),
    ):
        error = np.exp(np.abs(np.log(np.array(typical) / time)))
        found |= {f"{label}_median": float(np.median(error)), f"{label}_within": float(np.mean(error <= 1.25))}
    for label in ("known", "shapes"):
        band = np.array([(getattr(s, label).low_us, getattr(s, label).high_us) for s in rows])
        found[f"{label}_inside"] = float(np.mean((band[:, 0] <= time) & (time <= band[:, 1])))
        found[f"{label}_width"] = float(np.median(band[:, 1] / band[:, 0]))
    found["below_limit"] = float(np.mean([s.row.median_us < s.known.limit_us for s in rows]))
    if answered := [s for s in rows if s.heuristic_us]:
        error = [np.exp(abs(np.log(s.heuristic_us / s.row.median_us))) for s in answered]
        found |= {"heuristics_n": len(answered), "heuristics_median": float(np.median(error))}
        ours = [np.exp(abs(np.log(s.shapes.typical_us / s.row.median_us))) for s in answered]
        found["shapes_median_there"] = float(np.median(ours))
    return found


def groups(scored: Sequence[Scored]) -> Iterator[tuple[str, str, str, list[Scored]]]:
    """(card, kind, size, rows): every card and kind, then all cards together."""
    for card in ("all cards", *sorted({s.row.on.name for s in scored})):
        for kind in (*KINDS, "all"):
            for size in ("10 µs and more", "under 10 µs"):
                some = [
                    s
                    for s in scored
                    if card in ("all cards", s.row.on.name)
                    and kind in ("all", s.row.work.kind)
                    and (s.row.median_us >= SHORT_US) == (size == "10 µs and more")
                ]
                if some:
                    yield card, kind, size, some


def under_the_limit(scored: Sequence[Scored]) -> dict[str, int]:
    """Why rows lie below their limit, counted by kind."""
    below = [s for s in scored if s.row.median_us < s.known.limit_us]
    return dict(Counter(f"{s.row.work.kind}: {_why_below(s)}" for s in below))


def _why_below(s: Scored) -> str:
    row = s.row
    if s.known.bound_by == "compute":
        return "compute-bound, so the clock was above the datasheet's"
    if row.on.l2_bytes and row.work.bytes_moved <= row.on.l2_bytes:
        return "its data fit in L2"
    if row.on.l2_bytes and row.work.bytes_moved <= 4 * row.on.l2_bytes:
        return "part of its data fits in L2"
    return "not explained"


def bars(scored: Sequence[Scored]) -> list[tuple[str, float, float, bool]]:
    """(what, found, bar, reached), over cards with 20 rows or more; band and withheld cards from 10 µs on."""
    count = Counter(s.row.on.name for s in scored)
    judged = [s for s in scored if count[s.row.on.name] >= ROWS_TO_JUDGE]
    long = [s for s in judged if s.row.median_us >= SHORT_US]
    found = []
    for kind, bar in MEDIAN_BARS.items():
        if some := [s for s in long if s.row.work.kind == kind]:
            value = figures(some)["known_median"]
            found.append((f"{kind}, median error from 10 µs", value, bar, value <= bar))
    if products := [s for s in long if s.row.work.kind == "gemm"]:
        value = figures(products)["known_within"]
        found.append(("gemm, share within 1.25 from 10 µs", value, WITHIN_BAR, value >= WITHIN_BAR))
    if short := [s for s in judged if s.row.median_us < SHORT_US]:
        value = figures(short)["known_median"]
        found.append(("all kinds, median error under 10 µs", value, SHORT_BAR, value <= SHORT_BAR))
    if long:
        every = figures(long)
        inside, width, unseen = every["known_inside"], every["known_width"], every["unseen_median"]
        found.append(("all kinds, share inside the band from 10 µs", inside, INSIDE_BAR, inside >= INSIDE_BAR))
        found.append(("all kinds, median width of the band from 10 µs", width, WIDTH_BAR, width <= WIDTH_BAR))
        what = "all kinds, median error from 10 µs, a card's own constants withheld"
        found.append((what, unseen, UNSEEN_BAR, unseen <= UNSEEN_BAR))
    return found


# --------------------------------------------------------------------------------------------- for comparison

_THEIR_NAMES = {
    "A100 80GB SXM": "A100_SXM_80GB", "A100 80GB PCIe": "A100_PCIE_80GB", "H100 SXM": "H100_SXM", "L4": "L4",
    "H100 PCIe": "H100_PCIE", "H200": "H200_SXM", "B200": "B200", "RTX 4090": "RTX_4090",
    "A100 40GB SXM": "A100_SXM_80GB", "A100 40GB PCIe": "A100_PCIE_80GB",
}  # fmt: skip


def ask_nvidia(rows: Sequence[OpTime]) -> dict[int, float]:
    """By row (its id), the µs of nvMatmulHeuristics' first choice; without the package, or an answer, none.

    It has no A100 of 40 GB: the one of 80 GB stands in. Asked for 16-bit products only, with no batch, in a process
    of its own: some questions end it (0.1.0.27), and the next one starts after those.
    """
    if importlib.util.find_spec("nvMatmulHeuristics") is None:
        return {}
    asked = []
    for row in rows:
        if row.work.kind == "gemm" and row.work.dtype in ("float16", "bfloat16") and row.on.name in _THEIR_NAMES:
            what = kernel_time_gemm.problem(row.work, row.inputs)
            if what.batch == 1:
                asked.append((id(row), _THEIR_NAMES[row.on.name], what.m, what.n, what.k))
    found, at = {}, 0
    while at < len(asked):
        code = [sys.executable, "-c", _ASK, json.dumps(asked[at:])]
        lines = subprocess.run(code, capture_output=True, text=True).stdout.split()
        found |= {question[0]: float(us) for question, us in zip(asked[at:], lines, strict=False) if float(us) > 0}
        at += len(lines) + 1
    return found


_ASK = """
import json, sys
import nvMatmulHeuristics as nv
asked, cards = nv.NvMatmulHeuristicsInterface(nv.NvMatmulHeuristicsTarget.GENERIC, "HSH"), {}
for _, card, m, n, k in json.loads(sys.argv[1]):
    if card not in cards:
        cards[card] = asked.createHardwareDescriptor()
        asked.setHardwarePredefinedGpu(cards[card], nv.NvMatmulHeuristicsNvidiaGpu[card])
    found = asked.get_with_mnk(m, n, k, nv.NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR, 1, cards[card])
    print(found[0]["runtime"] * 1e6 if found else 0.0, flush=True)
"""


def cards_left_out(rows: Sequence[OpTime]) -> dict[str, dict[str, float | int]]:
    """Products on each card by constants fitted to the shipped table without that card."""
    sys.path.insert(0, str(Path(__file__).parent))
    import fit_kernel_time as fit

    shipped, _ = fit.rows_of(None)
    found = {}
    for name in sorted({row.on.name for row in rows if row.work.kind == "gemm"}):
        model = fit.Fit([d for d in shipped if d[0].on.name != name])
        form, cards = model.constants(model.run())
        own = fit.usable([row for row in rows if row.on.name == name])
        if own:
            time = np.array([row.median_us for row, *_ in own])
            error = np.exp(np.abs(np.log(fit.predicted(own, form, cards) / time)))
            found[name] = {"n": len(own), "median": float(np.median(error)), "within": float(np.mean(error <= 1.25))}
    return found


# -------------------------------------------------------------------------------------------------------- main

_HEAD = (
    "| card | kind | time | n | kernel known: median | within 1.25 | in band | width | shapes only: median |"
    " within 1.25 | card unseen | roofline | below limit |\n" + "|---" * 13 + "|"
)


def _line(card: str, kind: str, size: str, f: dict) -> str:
    cells = [
        card, kind, size, f["n"], f"{f['known_median']:.2f}×", f"{f['known_within']:.0%}", f"{f['known_inside']:.0%}",
        f"{f['known_width']:.2f}×", f"{f['shapes_median']:.2f}×", f"{f['shapes_within']:.0%}",
        f"{f['unseen_median']:.2f}×", f"{f['roofline_median']:.2f}×", f"{f['below_limit']:.0%}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def _print(result: dict) -> None:
    print(_HEAD)
    for entry in result["groups"]:
        print(_line(entry["card"], entry["kind"], entry["time"], entry))
    asked = next((e for e in result["groups"] if e["kind"] == "gemm" and "heuristics_n" in e), None)
    if asked:
        print(
            f"\nnvMatmulHeuristics on {asked['heuristics_n']} products of {asked['time']}: median"
            f" {asked['heuristics_median']:.2f}×, shapes only on the same {asked['shapes_median_there']:.2f}×"
        )
    print(f"\n{result['rows']} rows judged, {sum(result['left_out'].values())} left out:")
    for why, count in result["left_out"].items():
        print(f"  {count:4}  {why}")
    print("below the limit:")
    for why, count in result["below_limit"].items():
        print(f"  {count:4}  {why}")
    for name, f in result.get("cards_left_out", {}).items():
        print(f"fitted without {name}: n {f['n']}, median {f['median']:.2f}×, within 1.25 {f['within']:.0%}")
    print()
    for bar in result["bars"]:
        print(f"{'reached' if bar['reached'] else 'MISSED '}  {bar['what']}: {bar['found']:.3f} (bar {bar['bar']})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="?")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cards-left-out", action="store_true")
    given = parser.parse_args()
    try:
        rows, left_out = op_times.read(given.csv)
    except (OSError, ValueError) as why:
        print(f"error: {why}", file=sys.stderr)
        return 2
    if not rows:
        print(f"error: {given.csv}: none of its {len(left_out)} rows can be judged", file=sys.stderr)
        return 2
    scored = score(rows)
    result = {
        "rows": len(rows),
        "left_out": dict(Counter(line.split(": ", 2)[2].split(";")[0] for line in left_out)),
        "below_limit": under_the_limit(scored),
        "groups": [{"card": c, "kind": k, "time": t, **figures(some)} for c, k, t, some in groups(scored)],
        "bars": [dict(zip(("what", "found", "bar", "reached"), bar, strict=True)) for bar in bars(scored)],
    }
    if given.cards_left_out:
        result["cards_left_out"] = cards_left_out(rows)
    print(json.dumps(result, indent=1, ensure_ascii=False)) if given.json else _print(result)
    return 0 if all(bar["reached"] for bar in result["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
