"""Predicts every time of the shipped table by constants fitted without it, for the book's page on accuracy.

    python benchmarks/cross_validate.py    writes tutorial_lib/data/out_of_fold.csv.gz (minutes, numpy only)

Both models are fitted anew by their own scripts (fit_kernel_time.py, fit_kernel_time_memory.py): five times
without a fifth of the shapes, and once without each card, which then gets what a card nobody measured gets.
For products there are also fits of the model with its terms added one by one, so that no term is judged by
constants made for another model. Run it again whenever constants or the table change; tests/test_accuracy.py
notices when it was not.
"""

import csv
import gzip
import io
from functools import partial
from pathlib import Path

import fit_kernel_time as products
import fit_kernel_time_memory as others
import numpy as np

from tutorial_lib import accuracy, op_times
from tutorial_lib import kernel_time_gemm as gemm


def of_products(rows):
    """{column: µs of each row} for products."""
    data = products.usable(rows)
    if len(data) != len(rows):
        raise SystemExit(f"{len(rows) - len(data)} products: their kernels say no tile, leave them out first")
    named, unnamed = products.cross_validate(data)
    found = {"shape_us": named, "shape_no_name_us": unnamed, "card_us": products.without_a_card(data)}
    return found | {f"refit {term}": times for term, times in refitted(data)}


def refitted(data):
    """(term, times) of the model with the terms up to this one, its constants fitted to that model."""
    whole, joined = gemm.time_us, frozenset()
    try:
        for term in [name for name in gemm.MEANING if name in gemm.TERMS]:
            joined |= {term}
            gemm.time_us = partial(whole, terms=joined)
            fit = products.Fit(data)
            yield term, products.predicted(data, *fit.constants(fit.run()))
    finally:
        gemm.time_us = whole


def of_others(rows):
    keys = sorted({(r.work.operator, r.work.shapes) for r in rows}, key=str)
    fold = dict(zip(keys, np.random.default_rng(0).permutation(len(keys)) % 5, strict=True))
    of = np.array([fold[r.work.operator, r.work.shapes] for r in rows])
    named, unnamed = np.zeros((2, len(rows)))
    for part in range(5):
        constants = others.fit([r for r, p in zip(rows, of, strict=True) if p != part], steps=7)
        test = [r for r, p in zip(rows, of, strict=True) if p == part]
        named[of == part] = others.predicted(test, constants)
        unnamed[of == part] = others.predicted(test, constants, named=False)
    return {"shape_us": named, "shape_no_name_us": unnamed, "card_us": others.by_card(rows)}


def main():
    rows, _ = op_times.read()
    columns: dict[str, list] = {}
    for find, wanted in ((of_products, True), (of_others, False)):
        at = [i for i, row in enumerate(rows) if (row.work.kind == "gemm") == wanted]
        for name, times in find([rows[i] for i in at]).items():
            column = columns.setdefault(name, [""] * len(rows))
            for i, us in zip(at, times, strict=True):
                column[i] = f"{us:.4g}"
    in_sample = [f"{us:.4g}" for us in accuracy.judge(rows)["typical_us"]]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["card", "operator", "median_us", "in_sample_us", *columns])
    for i, row in enumerate(rows):
        values = [column[i] for column in columns.values()]
        table.writerow([row.card, row.work.operator, row.median_us, in_sample[i], *values])
    path = Path(__file__).resolve().parent.parent / "tutorial_lib" / "data" / "out_of_fold.csv.gz"
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    print(path.name, len(rows), "rows")


if __name__ == "__main__":
    main()
