"""Fit the constants of tutorial_lib/kernel_time_gemm.py to a table of operator times, and cross-validate them.

    python benchmarks/fit_kernel_time.py [CSV]          print FORM, CARDS and SPREAD as they stand in the module
    python benchmarks/fit_kernel_time.py [CSV] --cv     errors on shapes left out (5 folds) and on cards left out

The loss is robust in log time (rows that disagree with all others, from
neighbours on the card or a low clock, do not pull it), every constant is held near a prior, and a card's four stay
near those all cards share: a card with few rows gets nearly those.
"""

import argparse
import math

import numpy as np

from tutorial_lib import hardware, op_times
from tutorial_lib import kernel_time_gemm as gemm
from tutorial_lib.kernel_time_gemm import Card

# Where the fit starts, and what a constant stays near where the data say little about it. Not FORM, which was fitted.
PRIOR = {
    "tensor.small": 30, "tensor.ends": 50,
    "warp.rate": 0.5, "warp.small": 10, "warp.ends": 20,
    "cores.small": 10, "cores.ends": 10, "cores.latency_us": 0.01,
    "vector.rate": 0.05, "vector.rows_rate": 0.1,
    "helper": 0.8,
    "tfloat32": 1.0, "old_generation": 0.6, "unaligned": 1.5, "launches": 2.0,
}  # fmt: skip
NOISE = 0.15  # in log time: what rows of one kind scatter by; the loss turns from square to linear there
WIDTH = {"helper": 0.5, "tfloat32": 0.3, "old_generation": 0.4}  # of a prior in log; else 0.9
ALL_CARDS = ((0.6, 0.5), (0.8, 0.5), (0.8, 0.3))  # tensor, cores, memory: prior of what cards reach, and its width
PER_CARD = (0.25, 0.25, 0.25, 0.35)  # how far (in log) a card's constants may stand from those of all cards


def rows_of(path):
    """(row, problem, kernel that ran) of a table's products; those whose kernels' names say no tile are left out."""
    rows, left_out = op_times.read(path)
    return usable(rows), left_out


def usable(rows):
    found = []
    for row in rows:
        if row.work.kind == "gemm" and row.work.flops:
            what = gemm.problem(row.work, row.inputs)
            if kernel := gemm.ran_kernel(row.ran, what, row.on):
                found.append((row, what, kernel))
    return found


class Fit:
    """The free constants as one vector: logs of FORM, then of each card's four relative to those of all cards."""

    def __init__(self, data, cards=None):
        self.data = data
        self.names = list(gemm.FORM)
        self.cards = cards or sorted({row.on.name for row, *_ in data})
        self.launch = {card.name: card.launch_us for card in hardware.CARDS}
        shared = [PRIOR[name] for name in self.names] + [mean for mean, _ in ALL_CARDS]
        self.start = np.array([math.log(value) for value in shared] + [0.0] * 4 * len(self.cards))
        width = [WIDTH.get(name, 0.9) for name in self.names] + [width for _, width in ALL_CARDS]
        width += list(PER_CARD) * len(self.cards)
        self.shared = len(shared)
        self.width = np.array(width)
        self.log_time = np.log([row.median_us for row, *_ in data])
        self.place = np.array([self.cards.index(row.on.name) for row, *_ in data])

    def constants(self, x):
        form = dict(zip(self.names, np.exp(x[: len(self.names)])))
        mean = np.array([*np.exp(x[self.shared - 3 : self.shared]), form["launches"]])
        own = np.exp(x[self.shared :]).reshape(-1, 4) * mean
        rows = np.bincount(self.place, minlength=len(self.cards))
        cards = {c: Card(*own[i][:3], own[i][3] * self.launch[c], int(rows[i])) for i, c in enumerate(self.cards)}
        return form, cards

    def logs(self, x):
        form, cards = self.constants(x)
        times = [gemm.time_us(w, k, cards[row.on.name], row.on, form=form) for row, w, k in self.data]
        return (np.log(times) - self.log_time) / NOISE

    def jacobian(self, x, step=1e-3):
        base, columns = self.logs(x), np.zeros((len(self.data), len(x)))
        shared = self.shared
        for i in range(shared):
            columns[:, i] = (self.logs(x + step * (np.arange(len(x)) == i)) - base) / step
        for j in range(4):  # a row depends on its own card only: all cards are moved at once
            moved = x.copy()
            moved[shared + j :: 4] += step
            slope = (self.logs(moved) - base) / step
            columns[np.arange(len(base)), shared + 4 * self.place + j] = slope
        return base, columns

    def run(self, rounds=14):
        """Iteratively reweighted Gauss-Newton with the priors as further rows (a pseudo-Huber loss)."""
        x = self.start.copy()
        damping, cost = 1e-2, self.cost(x)
        for _ in range(rounds):
            base, slope = self.jacobian(x)
            weight = (1 + base**2) ** -0.5
            for _ in range(6):
                a = slope.T @ (weight[:, None] * slope) + np.diag(1 / self.width**2 + damping)
                b = -slope.T @ (weight * base) - (x - self.start) / self.width**2
                step = np.clip(np.linalg.solve(a, b), -0.7, 0.7)
                if (new := self.cost(x + step)) < cost:
                    gain, x, cost, damping = cost - new, x + step, new, damping / 4
                    break
                damping = max(damping, 1e-2) * 8
            else:
                break
            if gain < 0.02:
                break
        return x

    def cost(self, x):
        return np.sum(np.sqrt(1 + self.logs(x) ** 2) - 1) + 0.5 * np.sum(((x - self.start) / self.width) ** 2)


def predicted(data, form, cards, shapes_only=False):
    found = []
    for row, what, kernel in data:
        card = gemm.card_for(row.on, cards)[0]
        kernel = gemm.chosen(what, card, row.on, form=form) if shapes_only else kernel
        found.append(gemm.time_us(what, kernel, card, row.on, form=form))
    return np.array(found)


def folds(data, count=5, seed=0):
    """Each row's fold: rows of one shape share it, whatever their card, so no shape is in both halves."""
    shapes = [(w.batch, w.m, w.n, w.k) for _, w, _ in data]
    order = np.random.default_rng(seed).permutation(len(set(shapes)))
    place = dict(zip(sorted(set(shapes)), order % count))
    return np.array([place[s] for s in shapes])


def cross_validate(data):
    """(kernel known, shapes only) of every row, by constants fitted without its shape."""
    found, fold = np.zeros((2, len(data))), folds(data)
    for j in range(max(fold) + 1):
        fit = Fit([d for d, f in zip(data, fold) if f != j], sorted({row.on.name for row, *_ in data}))
        form, cards = fit.constants(fit.run())
        test = np.flatnonzero(fold == j)
        for known in (0, 1):
            found[known, test] = predicted([data[i] for i in test], form, cards, shapes_only=bool(known))
    return found


def without_a_card(data):
    found = np.zeros(len(data))
    for name in sorted({row.on.name for row, *_ in data}):
        fit = Fit([d for d in data if d[0].on.name != name])
        form, cards = fit.constants(fit.run())
        test = [i for i, (row, *_) in enumerate(data) if row.on.name == name]
        found[test] = predicted([data[i] for i in test], form, cards)
    return found


def report(label, data, found):
    time = np.array([row.median_us for row, *_ in data])
    error = np.exp(np.abs(np.log(found / time)))
    for which, mask in (("10 µs and more", time >= 10), ("under 10 µs", time < 10)):
        e = error[mask]
        if len(e):
            within = np.mean(e <= 1.25)
            print(f"{label:28} {which:15} n {len(e):4}  median {np.median(e):.3f}  within 1.25: {within:.0%}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("csv", nargs="?")
    parser.add_argument("--cv", action="store_true")
    given = parser.parse_args()
    data, _ = rows_of(given.csv)
    fit = Fit(data)
    x = fit.run()
    form, cards = fit.constants(x)
    print("FORM = {", ", ".join(f'"{k}": {v:.4g}' for k, v in form.items()), "}")
    for name, card in cards.items():
        shares = f"{card.tensor:.3g}, {card.cores:.3g}, {card.memory:.3g}"
        print(f'    "{name}": Card({shares}, {card.fixed_us:.3g}, {card.rows}),')
    report("fitted", data, predicted(data, form, cards))
    if given.cv:
        time = np.array([row.median_us for row, *_ in data])
        paths = np.array([kernel.path for *_, kernel in data])
        known, shapes = cross_validate(data)
        report("shape left out, kernel known", data, known)
        report("shape left out, shapes only", data, shapes)
        for path in (*dict.fromkeys(paths), "all", "shapes"):
            ratio = time / (shapes if path == "shapes" else known)
            mask = (paths == path) | (path in ("all", "shapes"))
            print(path, "time over prediction, 10th and 90th percentile:", quantiles(ratio[mask]))
        alone = without_a_card(data)
        report("card left out", data, alone)
        print("card left out: time over prediction", quantiles(time / alone))
        for name in fit.cards:
            mask = [i for i, (row, *_) in enumerate(data) if row.on.name == name]
            report(f"  shape out, {name}", [data[i] for i in mask], known[mask])
            report(f"  card out,  {name}", [data[i] for i in mask], alone[mask])


def quantiles(ratio):
    return np.quantile(ratio, [0.1, 0.9]).round(2)


if __name__ == "__main__":
    main()
