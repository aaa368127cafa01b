"""How long one kernel should take: the nouns that the models of GEMMs and of the memory-bound kinds share.

A model of kernel time is a sum of named terms in µs, each with a meaning, and a band around it: what the
spread of good kernels around such a sum was in public traces. `kernel_time_gemm` has the terms of matrix
products, `kernel_time_memory` those of pointwise operators, copies, reductions and attention. Where a trace
has been read, the kernel's name (`Ran`) replaces what the model would have to choose: the tile, whether k is
split, the dtype that really ran. Nothing here needs torch or a GPU.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from types import MappingProxyType

from tutorial_lib.hardware import Hardware
from tutorial_lib.units import dtype_name


@dataclass(frozen=True)
class Tensor:
    """An input as a trace records it; `strides` in elements, None where they were not recorded."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


_NO_TENSORS = ("", "Scalar", "ScalarList", "GenericList", "TensorList")


def tensors(shapes: Sequence, dtypes: Sequence, strides: Sequence | None = None) -> Iterator[Tensor]:
    """The tensors among an operator's recorded arguments, those of a list one by one.

    What is no tensor is left out. ValueError or TypeError for what no profiler writes.
    """
    for shape, dtype, stride in zip(shapes, dtypes, strides or [None] * len(shapes), strict=True):
        if shape and isinstance(shape[0], (list, tuple)):
            each = dtype if isinstance(dtype, (list, tuple)) else [dtype] * len(shape)
            yield from tensors(shape, each, stride)
        elif dtype and dtype not in _NO_TENSORS:
            yield Tensor(tuple(map(index, shape)), dtype_name(dtype), tuple(stride) if stride else None)


@dataclass(frozen=True)
class Ran:
    """A kernel that ran, by its name, and its grid of thread blocks where that is known.

    What is no grid that a launch takes (a trace may hold anything) counts as not known.
    """

    name: str
    grid: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        sizes = self.grid if isinstance(self.grid, tuple) and 0 < len(self.grid) <= 3 else (0,)
        if not all(type(size) is int and 0 < size < 2**31 for size in sizes):
            object.__setattr__(self, "grid", None)


@dataclass(frozen=True)
class Estimate:
    """The time of one work item: limit ≤ low ≤ typical ≤ high, and `terms`, which add up to `typical_us`.

    `limit_us` is physics, the work over the datasheet's rates. `source` says what the constants come from.
    """

    limit_us: float
    low_us: float
    typical_us: float
    high_us: float
    terms: Mapping[str, float] = field(hash=False)
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", MappingProxyType(dict(self.terms)))


def estimate(limit_us: float, terms: Mapping[str, float], spread: float, source: str) -> Estimate:
    """An Estimate around the sum of the terms; the band is a factor of `spread` to either side.

    Nothing predicted lies below the limit: a sum under it (or its band) is lifted to it.
    """
    whole = math.fsum(terms.values())
    typical = max(whole, limit_us)
    if typical > whole:
        terms = {**terms, "limit": typical - whole}
    low, high = max(typical / spread, limit_us), typical * spread
    return Estimate(limit_us, low, typical, high, terms, source)


def family(on: Hardware) -> str:
    """The cards whose constants stand in for a card nobody measured: those of its generation."""
    return _FAMILIES.get((on.compute_capability or (0, 0))[:2], "unknown")


_FAMILIES = {
    (7, 0): "volta", (7, 5): "turing", (8, 0): "ampere", (8, 6): "ampere consumer", (8, 9): "ada",
    (9, 0): "hopper", (10, 0): "blackwell", (10, 3): "blackwell", (12, 0): "blackwell consumer", (9, 4): "cdna3",
}  # fmt: skip
