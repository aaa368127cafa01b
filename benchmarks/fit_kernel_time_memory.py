"""Fits the constants of tutorial_lib/kernel_time_memory.py to a table of operator times, and judges the fit.

    python benchmarks/fit_kernel_time_memory.py op_times.csv            # print the constants
    python benchmarks/fit_kernel_time_memory.py op_times.csv --judge    # and errors on what was left out

Every constant is fitted as its logarithm by damped least squares on the logarithm of the time, with a loss
that grows linearly for outliers and a prior that keeps a constant near a round figure where data say little.
Three rules keep the data honest: a trace that keeps whole µs is right within half of one, so errors inside
that do not count; an operator that repeats over many like shapes counts less each; copies over the bus are a
form of their own. Nothing is chosen by the repository that a row comes from.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace

import numpy as np

from tutorial_lib import kernel_time_memory as memory
from tutorial_lib import op_times
from tutorial_lib.kernel_time_memory import Card, Constants, Form, Tiles
from tutorial_lib.op_times import OpTime

Path = tuple[str, ...]

# Where the fit starts, and what a constant stays near where the data say little about it.
_CARD = Card(2.0, 0.88, 1.0)
_FORMS = {  # vectorized starts at once: `launch_us` is its whole beginning
    "vectorized": Form(0, 0.2),
    "unaligned": Form(300, 0.3),
    "memcpy": Form(500, 0.05),
    "cast": Form(2500, 0.6, 0.15),
    "indexed": Form(2000, 0.5, 0.1),
    "indexed cast": Form(3500, 0.7, 0.15),
    "cat": Form(1500, 0.6),
    "gather": Form(2500, 2.3),
    "softmax": Form(3000, 0.6, 0, 2),
    "softmax by block": Form(3000, 0.6, 0, 300),
    "norm": Form(4000, 0.3, 0, 330),
    "norm by element": Form(4000, 0.3, 0, 1600),
    "rows": Form(4000, 0.25, 0, 4),
    "rows by element": Form(4000, 0.9, 0, 3),
    "columns": Form(5000, 0.25, 0, 1),
    "columns by element": Form(5000, 0.8, 0, 1.5),
}
_TILES = {
    "flash": Tiles(3000, 0.08, 1500, 0.85),
    "efficient": Tiles(3000, 0.5, 1000, 0.7),
    "efficient float32": Tiles(3000, 1.0, 1000, 0.7),
    "flash on AMD": Tiles(3000, 0.3, 1500, 0.6),
}
_REST = {"operation": 0.05, "cache_share": 0.4, "cache_edge": 2.0, "sector_bytes": 16.0, "overlap": 4.0}
_REST |= {"alone": 2.0, "bias": 0.5, "bus_us": 1.5, "bus_bytes_per_s": 12e9}
# How far, as a standard deviation of the logarithm, a constant may go without being told to by many rows.
_PRIOR = {"launch_us": 1.5, "memory_share": 0.05, "pace": 0.25, "start": 1.0, "element": 0.7, "operand": 0.6}
_PRIOR |= {"row": 0.8, "cache_share": 0.4, "cache_edge": 0.4, "overlap": 0.3, "alone": 0.2, "share": 0.3}
_ENOUGH = 5  # rows that a card needs for constants of its own


def start(rows: Sequence[OpTime]) -> Constants:
    counts = Counter(r.on.name for r in rows)
    cards = {name: replace(_CARD, rows=n) for name, n in sorted(counts.items()) if n >= _ENOUGH}
    return Constants(cards, _FORMS, _TILES, **_REST)


def flat(constants: object, at: Path = ()) -> dict[Path, float]:
    """Each constant by its path; those that are 0 are not part of their form, and `rows` is a count."""
    if isinstance(constants, (int, float)):
        return {at: float(constants)} if constants and at[-1] != "rows" else {}
    parts = constants
    if is_dataclass(constants):
        parts = {f.name: getattr(constants, f.name) for f in fields(constants)}
    return {path: value for name, part in parts.items() for path, value in flat(part, (*at, name)).items()}


def filled(constants: object, values: dict[Path, float], at: Path = ()) -> object:
    """`constants` with the values at their paths."""
    if isinstance(constants, (int, float)):
        return values.get(at, constants)
    if is_dataclass(constants):
        return replace(constants, **{f.name: filled(getattr(constants, f.name), values, (*at, f.name))
                                     for f in fields(constants)})  # fmt: skip
    return {name: filled(part, values, (*at, name)) for name, part in constants.items()}


# ----------------------------------------------------------------------------------------------- the fit


def predicted(rows: Iterable[OpTime], constants: Constants, *, named: bool = True) -> np.ndarray:
    """Typical times in µs; `named` False predicts before the trace, without the kernels' names."""
    times = []
    for r in rows:
        ran = r.ran if named else ()
        found = memory.estimate(r.work, r.on, inputs=r.inputs, ran=ran, constants=constants)
        times.append(found.typical_us)
    return np.array(times)


def errors(rows: Sequence[OpTime], times: np.ndarray, *, resolution: bool = True) -> np.ndarray:
    """log(predicted / measured), and 0 inside the half µs by which a trace of whole µs may be off."""
    measured = np.array([r.median_us for r in rows])
    off = np.where(resolution & (2 * measured % 1 == 0), 0.5, 0.0)
    low, high = np.log(np.maximum(measured - off, 0.4)), np.log(measured + off)
    log = np.log(times)
    return np.where(log < low, log - low, np.where(log > high, log - high, 0.0))


def weights(rows: Sequence[OpTime]) -> np.ndarray:
    like = [
        (r.on.name, r.work.operator, r.work.shapes[:1] and r.work.shapes[0][1:], r.ran[0].name) for r in rows
    ]
    counts = Counter(like)
    return np.array([counts[key] ** -0.3 for key in like])


def taking_part(path: Path, rows: Sequence[OpTime]) -> list[int]:
    """The rows that a constant can move: those of its card or of its form, else all."""
    if path[0] == "cards":
        return [i for i, r in enumerate(rows) if r.on.name == path[1]]
    if path[0] in ("forms", "attention"):
        return [i for i, r in enumerate(rows) if form(r) == path[1]]
    return list(range(len(rows)))


def form(row: OpTime) -> str:
    if row.work.kind == "attention":
        return memory.attention_kernel(row.work, row.on, row.ran)
    return memory.access(row.work, row.inputs, row.ran).form


def fit(rows: Sequence[OpTime], *, steps: int = 10, sigma: float = 0.08) -> Constants:
    """Levenberg and Marquardt on the logarithms of the constants; `sigma` is what repeated rows differ by."""
    first = start(rows)
    paths = list(flat(first))
    prior = np.log(list(flat(first).values()))
    stiff = np.array([1 / _PRIOR.get(path[-1], 1.0) ** 2 for path in paths])
    weight, moved = weights(rows), [taking_part(path, rows) for path in paths]

    def residuals(x: np.ndarray, some: Sequence[OpTime] = rows) -> np.ndarray:
        times = predicted(some, filled(first, dict(zip(paths, np.exp(x), strict=True))))
        plain = np.log([r.median_us for r in some])
        return (errors(some, times) + 0.1 * (np.log(times) - plain)) / sigma

    def slopes(x: np.ndarray, r: np.ndarray) -> np.ndarray:
        found = np.zeros((len(rows), len(x)))
        for j, at in enumerate(moved):
            stepped = x.copy()
            stepped[j] += 1e-3
            found[at, j] = (residuals(stepped, [rows[i] for i in at]) - r[at]) / 1e-3
        return found

    def loss(x: np.ndarray, r: np.ndarray) -> float:
        return float(weight @ (2 * np.sqrt(1 + r * r) - 2) + stiff @ (x - prior) ** 2)

    x, damping = prior.copy(), 1.0
    r = residuals(x)
    now = loss(x, r)
    for _ in range(steps):
        slope = slopes(x, r)
        robust = weight / np.sqrt(1 + r * r)
        curve = slope.T @ (slope * robust[:, None]) + np.diag(stiff)
        gradient = slope.T @ (robust * r) + stiff * (x - prior)
        for _ in range(6):
            trial = x - np.clip(np.linalg.solve(curve + damping * np.diag(np.diag(curve)), gradient), -1, 1)
            r_trial = residuals(trial)
            if (found := loss(trial, r_trial)) < now:
                break
            damping *= 4
        else:
            break
        gained, x, r, now, damping = now - found, trial, r_trial, found, damping / 3
        if gained < 1e-3 * now:
            break
    return filled(first, dict(zip(paths, np.exp(x), strict=True)))


# --------------------------------------------------------------------------------------------- judging it


def judged(rows: Sequence[OpTime], times: np.ndarray) -> None:
    """Median and 80th percentile of the error factor by kind and size, raw and within the resolution."""
    raw, fair = (np.exp(np.abs(errors(rows, times, resolution=r))) for r in (False, True))
    groups = [f"{_class(r):16} {'≥ 10 µs' if r.median_us >= 10 else '< 10 µs'}" for r in rows]
    for group in sorted(set(groups)):
        at = [i for i, g in enumerate(groups) if g == group]
        print(f"{group} {len(at):5} rows", end="")
        for name, factor in (("raw", raw[at]), ("within the resolution", fair[at])):
            print(f"   {name}: median {np.median(factor):.3f}×, 80 % {np.quantile(factor, 0.8):.3f}×", end="")
        print()


def _class(row: OpTime) -> str:
    if memory.crosses_bus(row.ran):
        return "bus"
    return "pointwise, copy" if row.work.kind in ("pointwise", "copy") else row.work.kind


def by_shape(rows: Sequence[OpTime], folds: int = 5) -> np.ndarray:
    """Each row predicted by constants that no row of its operator and shapes took part in."""
    keys = sorted({(r.work.operator, r.work.shapes) for r in rows}, key=str)
    fold = {key: i % folds for i, key in enumerate(np.random.default_rng(0).permutation(len(keys)))}
    of = [fold[keys.index((r.work.operator, r.work.shapes))] for r in rows]
    return _held_out(rows, of)


def by_card(rows: Sequence[OpTime]) -> np.ndarray:
    """Each row predicted by constants of the other cards."""
    return _held_out(rows, [r.on.name for r in rows])


def _held_out(rows: Sequence[OpTime], of: Sequence[object]) -> np.ndarray:
    times = np.empty(len(rows))
    for part in sorted(set(of), key=str):
        constants = fit([r for r, p in zip(rows, of, strict=True) if p != part], steps=7)
        at = [i for i, p in enumerate(of) if p == part]
        times[at] = predicted([rows[i] for i in at], constants)
    return times


def shown(constants: Constants) -> str:
    """The constants as Python, three digits each."""

    def text(value: object) -> str:
        if isinstance(value, (int, float)):
            return f"{value:.3g}" if value < 1000 else f"{value:.3g}" if value >= 1e6 else f"{value:.0f}"
        if is_dataclass(value):
            return f"{type(value).__name__}({', '.join(text(getattr(value, f.name)) for f in fields(value))})"
        return "{\n" + "".join(f'        "{k}": {text(v)},\n' for k, v in value.items()) + "    }"

    lines = (f"    {f.name}={text(getattr(constants, f.name))},\n" for f in fields(constants))
    return f"CONSTANTS = Constants(\n{''.join(lines)})  # fmt: skip"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", help="operator times as CSV; by default those of the package")
    parser.add_argument("--judge", action="store_true", help="also judge on shapes and on cards left out")
    given = parser.parse_args()
    rows = [r for r in op_times.read(given.table)[0] if r.work.kind != "gemm"]
    constants = fit(rows)
    print(shown(constants))
    judged(rows, predicted(rows, constants))
    if given.judge:
        for title, times in (("shapes left out", by_shape(rows)), ("cards left out", by_card(rows))):
            print(f"\n{title}")
            judged(rows, times)


if __name__ == "__main__":
    main()
