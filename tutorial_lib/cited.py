"""Figures that others published, kept apart from everything measured or predicted here.

They are the numbers of the Hugging Face series "Profiling in PyTorch" (three posts, 2026; NVIDIA
A100-SXM4-80GB), one row each in data/cited.csv under the number of the claim it belongs to. A page that has
no recording of its own shows them, always with card, shape, dtype and source beside the number. Nothing here
was measured by this library.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import pandas as pd

_SOURCES = {
    "1": 'Hugging Face, "Profiling in PyTorch (Part 1): A Beginner\'s Guide to torch.profiler", 29 May 2026,'
    " https://huggingface.co/blog/torch-profiler",
    "2": 'Hugging Face, "Profiling in PyTorch (Part 2): From nn.Linear to a Fused MLP", 11 June 2026,'
    " https://huggingface.co/blog/torch-mlp-fusion",
    "3": 'Hugging Face, "Profiling in PyTorch (Part 3): Attention is all you profile", 10 July 2026,'
    " https://huggingface.co/blog/torch-attention-profile",
}
_TO_US = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True)
class Cited:
    """One published figure: `value` (a number, or a kernel's name) in `unit`, as printed in this part of the series."""

    claim: str
    quantity: str
    value: float | str
    unit: str
    card: str
    dtype: str
    shape: str
    versions: str
    part: str

    @property
    def source(self) -> str:
        """Title, date and address of the post."""
        return source(self.part)

    @property
    def text(self) -> str:
        """The value with its unit, in the digits of the source: "580 µs"."""
        if isinstance(self.value, str):
            return self.value
        space = "" if self.unit == "×" else " "
        return f"{self.value:.10g}{space}{self.unit}"

    @property
    def time_us(self) -> float:
        """A published time in µs; ValueError for a figure that is no time."""
        if isinstance(self.value, str) or self.unit not in _TO_US:
            raise ValueError(f"{self.claim} is no time but {self.text}: use .value")
        return self.value * _TO_US[self.unit]

    def __str__(self) -> str:
        where = f"{self.card}, {self.dtype}, {self.shape}"
        return f'{self.text}, cited: {self.quantity}; {where} (Hugging Face, "Profiling in PyTorch", part {self.part})'


def cited(key: str) -> Cited:
    """The published figure of this claim, such as "C14" or "C14.mean"; KeyError names the known ones."""
    known = _figures()
    if key not in known:
        raise KeyError(f"no cited figure {key!r}; known: {', '.join(known)}")
    return known[key]


def all_figures() -> tuple[Cited, ...]:
    """Every published figure, in the order of the file."""
    return tuple(_figures().values())


def source(part: int | str) -> str:
    """Title, date and address of this part of the series, 1 to 3; KeyError for another."""
    return _SOURCES[str(part)]


def table(*keys: str) -> pd.DataFrame:
    """One row a figure, all without a key: claim, quantity, cited, card, dtype, shape, versions, source."""
    rows = [
        (c.claim, c.quantity, c.text, c.card, c.dtype, c.shape, c.versions, c.source)
        for c in map(cited, keys or _figures())
    ]
    columns = ("claim", "quantity", "cited", "card", "dtype", "shape", "versions", "source")
    return pd.DataFrame(rows, columns=columns)


@cache
def _figures() -> dict[str, Cited]:
    return {figure.claim: figure for figure in _read()}


def _read() -> Iterator[Cited]:
    text = files("tutorial_lib").joinpath("data", "cited.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        value = row["value"] if row["unit"] == "name" else float(row["value"])
        yield Cited(
            row["key"],
            row["quantity"],
            value,
            row["unit"],
            row["card"],
            row["dtype"],
            row["shape"],
            row["versions"],
            row["part"],
        )
