"""The ledger: what the Hugging Face series says that can be checked, and what was found when it was.

One table a claim in data/claims.toml, in this book's words: C1 to C83 are statements, E1 to E25 inferences that
looked weak. Each has a verdict and the witness behind it; the test marked with its key establishes it and fails
when it stops being so. A claim that needs a GPU which nobody has lent yet stays open, with the prediction made
beforehand and the command that would settle it. When the checks last ran, and where, is in
data/claims_checked.json (`make claims`).
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import pandas as pd

from tutorial_lib import cited
from tutorial_lib.cited import Cited

VERDICTS = ("holds", "holds with conditions", "false", "open")
WITNESSES = ("live CPU", "compiled program", "arithmetic", "recording")
_SHAPES = {
    1: "x, w, b [64, 64] and [4096, 4096]",
    2: "x [64, 128, 768], hidden 3072",
    3: "q, k, v [8, 16, 1024, 64], causal",
}


@dataclass(frozen=True)
class Claim:
    """A published statement in our words; `finding` where it was judged, `prediction` and `command` while it is open."""

    key: str
    part: int
    claim: str
    verdict: str
    witness: str | None = None
    finding: str | None = None
    prediction: str | None = None
    command: str | None = None
    shape: str = ""
    dtype: str = "bfloat16"
    card: str = "A100 80GB SXM"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.key}: the verdict is one of {', '.join(VERDICTS)}, got {self.verdict!r}")
        wanted = ("prediction", "command") if self.verdict == "open" else ("witness", "finding")
        given = tuple(name for name in ("witness", "finding", "prediction", "command") if getattr(self, name))
        if sorted(given) != sorted(wanted):
            raise ValueError(f"{self.key}: a claim that is {self.verdict} has {' and '.join(wanted)}, got {given}")
        if self.witness is not None and self.witness not in WITNESSES:
            raise ValueError(f"{self.key}: the witness is one of {', '.join(WITNESSES)}, got {self.witness!r}")

    @property
    def source(self) -> str:
        """Title, date and address of the post that makes the claim."""
        return cited.source(self.part)

    @property
    def figures(self) -> tuple[Cited, ...]:
        """The published figures that belong to it."""
        return tuple(figure for figure in cited.all_figures() if figure.claim.split(".")[0] == self.key)

    def __str__(self) -> str:
        return f"{self.key}: {self.claim} {self.verdict.capitalize()}. {self.finding or self.prediction}"


def claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the file."""
    return tuple(_read().values())


def claim(key: str) -> Claim:
    """The claim of this key, such as "C45" or "E5"; KeyError for another."""
    if key not in _read():
        raise KeyError(f"no claim {key!r}: there are C1 to C83 and E1 to E25")
    return _read()[key]


def checked() -> Mapping[str, object]:
    """When, on what and with which result the checks last ran: `date`, `machine`, `versions`, `checks` by key."""
    return json.loads(_data("claims_checked.json"))


def table(verdict: str | None = None) -> pd.DataFrame:
    """One row a claim, of one verdict or of all: [claim, part, says, verdict, witness, found]."""
    if verdict is not None and verdict not in VERDICTS:
        raise ValueError(f"the verdict is one of {', '.join(VERDICTS)}, got {verdict!r}")
    rows = [
        (c.key, c.part, c.claim, c.verdict, c.witness or "none yet", c.finding or c.prediction)
        for c in claims()
        if verdict in (None, c.verdict)
    ]
    return pd.DataFrame(rows, columns=["claim", "part", "says", "verdict", "witness", "found"])


def counts() -> pd.DataFrame:
    """How many claims of each part have each verdict."""
    every = table()
    counted = pd.crosstab(every["part"], every["verdict"]).reindex(columns=list(VERDICTS), fill_value=0)
    counted.loc["all"] = counted.sum()
    return counted.rename_axis(columns=None)


@cache
def _read() -> dict[str, Claim]:
    entries = tomllib.loads(_data("claims.toml"))
    return {key: _claim(key, entry) for key, entry in entries.items()}


def _claim(key: str, entry: dict) -> Claim:
    return Claim(key=key, **({"shape": _SHAPES[entry["part"]]} | entry))


def _data(name: str) -> str:
    return files("tutorial_lib").joinpath("data", name).read_text(encoding="utf-8")
