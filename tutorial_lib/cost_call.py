"""One recorded call of an operator, and what a rule of its cost is written with.

`Cost` and `Work` are the nouns of `cost`; a `Call` is what a trace records of an operator's arguments. The
rules themselves are in `cost` (products, attention, pointwise operators, reductions, copies, lookups) and in
`cost_layers` (what the layers of networks and their optimizers add).
"""

import ast
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import index

from tutorial_lib.units import dtype_name, itemsize

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Cost:
    """FLOPs of contractions, bytes moved, and the arithmetic that is no contraction; costs add and scale."""

    flops: int
    bytes_moved: int
    vector_flops: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(
            self.flops + other.flops,
            self.bytes_moved + other.bytes_moved,
            self.vector_flops + other.vector_flops,
        )

    def __radd__(self, other: object) -> "Cost":
        return self if other == 0 else NotImplemented  # sum() starts from 0

    def __mul__(self, times: int) -> "Cost":
        if not isinstance(times, int):
            return NotImplemented
        return Cost(self.flops * times, self.bytes_moved * times, self.vector_flops * times)

    __rmul__ = __mul__

    @property
    def intensity(self) -> float:
        """Arithmetic per byte of traffic, in FLOP/byte; ValueError when nothing is moved."""
        if self.bytes_moved == 0:
            raise ValueError("no bytes are moved, so there is no intensity: check the shapes")
        return (self.flops + self.vector_flops) / self.bytes_moved


@dataclass(frozen=True)
class Work:
    """One operation with its cost: `kind` is gemm, pointwise, reduction, copy, attention or other.

    `dtype` is the one computed in. `skippable_flops` are FLOPs inside `cost.flops` that a kernel may leave
    out: the masked half of causal attention, which the counter counts and good kernels skip. Of a reduction,
    `rows` are reduced independently of each other, None where that is not known, and neighbours in a row lie
    `row_step` elements of the input apart: 1 along the last dimension, more along another.
    """

    operator: str
    kind: str
    dtype: str
    cost: Cost
    shapes: tuple[Shape, ...] = ()
    skippable_flops: int = 0
    rows: int | None = None
    row_step: int = 1

    @property
    def flops(self) -> int:
        return self.cost.flops

    @property
    def bytes_moved(self) -> int:
        return self.cost.bytes_moved

    @property
    def vector_flops(self) -> int:
        return self.cost.vector_flops


# ----------------------------------------------------------------------------------------------------- a call


@dataclass(frozen=True)
class Tensor:
    """A tensor among the arguments; `strides` in elements, None where they were not recorded."""

    shape: Shape
    dtype: str
    strides: tuple[int, ...] | None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def distinct(self) -> int:
        """Elements in memory: a dimension of stride 0 is one element seen many times."""
        if self.strides is None or len(self.strides) != len(self.shape) or self.elements == 0:
            return self.elements
        return math.prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride != 0)

    @property
    def bytes_read(self) -> int:
        return self.distinct * itemsize(self.dtype)


Argument = Tensor | tuple[Tensor, ...] | None


@dataclass(frozen=True)
class Call:
    """A recorded call: a tensor, a list of them or None at each position, and the values recorded there."""

    name: str
    arguments: tuple[Argument, ...]
    concrete: tuple[object, ...] = ()

    def tensor(self, position: int) -> Tensor | None:
        argument = self.arguments[position] if position < len(self.arguments) else None
        return argument if isinstance(argument, Tensor) else None

    def tensors(self, *positions: int) -> tuple[Tensor, ...] | None:
        """The tensors at these positions, or None when one is missing."""
        found = tuple(self.tensor(p) for p in positions)
        return None if None in found else found

    def value(self, position: int) -> object:
        """The recorded value of a scalar, list or flag; None when it was None or was not recorded."""
        return _literal(self.concrete[position]) if position < len(self.concrete) else None

    def says(self, position: int) -> bool:
        return self.value(position) is not None


def recorded(name: str, shapes, dtypes, strides, concrete) -> Call | None:
    """The call behind a trace's entries, one per argument; None for what no call of an operator records."""
    if len(dtypes) != len(shapes):
        return None
    strides = strides if strides is not None and len(strides) == len(shapes) else [None] * len(shapes)
    try:
        arguments = tuple(map(_argument, shapes, dtypes, strides))
    except (TypeError, ValueError):  # a shape or dtype that no tensor has
        return None
    # A list of another length does not line up with the arguments, so it says nothing about them.
    values = tuple(concrete) if concrete is not None and len(concrete) == len(shapes) else ()
    return Call(name, arguments, values)


# A list of tensors without shapes is empty, or from a torch that recorded none of lists.
_NO_TENSOR = {"", "none", "scalar", "scalarlist", "genericlist", "tensorlist"}


def _argument(shape, dtype, strides) -> Argument:
    if shape is not None and not isinstance(shape, (list, tuple)):
        raise TypeError(f"a shape is a list of sizes, got {shape!r}")
    if shape and isinstance(shape[0], (list, tuple)):
        if isinstance(dtype, str) and dtype.strip().lower() == "tensorlist":
            raise ValueError("the dtypes in a list of tensors were not recorded")
        each = [dtype] * len(shape) if isinstance(dtype, str) or not isinstance(dtype, Sequence) else dtype
        inner = strides if strides is not None and len(strides) == len(shape) else [None] * len(shape)
        return tuple(_argument(s, d, st) for s, d, st in zip(shape, each, inner, strict=True))
    if not dtype or str(dtype).strip().lower() in _NO_TENSOR or shape is None:
        return None
    sizes = tuple(map(index, shape))
    if min(sizes, default=0) < 0 or math.prod(sizes) >= 2**63:
        raise ValueError(f"no tensor has the shape {sizes}")
    return Tensor(sizes, dtype_name(dtype), tuple(strides) if strides is not None else None)


def _literal(value: object) -> object:
    """A concrete input is written as text: "[0]", "True", "1e-05", "" for none."""
    if not isinstance(value, str):
        return value
    if value.strip() in ("", "None"):
        return None
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # all that literal_eval raises
        return value.strip()


# ------------------------------------------------------------------------------------------ dtypes and shapes


def statistic_size(dtype: str) -> int:
    """Bytes of a mean, a variance or a log-sum: they are kept in at least float32."""
    return max(4, itemsize(dtype))


def category(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floating point, 3 for complex numbers."""
    return 3 if dtype.startswith("complex") else 2 if "float" in dtype else 0 if dtype == "bool" else 1


def _wider(a: str, b: str) -> str:
    if a == b:
        return a
    if category(a) != category(b):
        return max(a, b, key=category)
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    return max(a, b, key=itemsize)


def promoted(tensors: Iterable[Tensor]) -> str:
    """The dtype PyTorch computes in: a 0-dim tensor or number only counts when it is of a higher category."""
    sized = [t.dtype for t in tensors if t.shape]
    numbers = [t.dtype for t in tensors if not t.shape]
    if not sized:
        return widest(numbers)
    dtype = widest(sized)
    stronger = [n for n in numbers if category(n) > category(dtype)]
    if not stronger:
        return dtype
    # A floating-point number beside integers brings the default dtype, not the double it is stored as.
    return "float32" if category(widest(stronger)) == 2 else widest(stronger)


def widest(dtypes: Sequence[str]) -> str:
    """The dtype that operands of these dtypes are promoted to."""
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _wider(result, dtype)
    return result


def broadcast(shapes: Iterable[Shape]) -> Shape | None:
    """The common shape, or None when the shapes do not fit each other."""
    result: list[int] = []
    for shape in shapes:
        result = [1] * (len(shape) - len(result)) + result
        for i in range(1, len(shape) + 1):
            if result[-i] != shape[-i] and 1 not in (result[-i], shape[-i]):
                return None
            result[-i] = shape[-i] if result[-i] == 1 else result[-i]
    return tuple(result)


def shapes_of(tensors: Iterable[Tensor]) -> tuple[Shape, ...]:
    return tuple(t.shape for t in tensors)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the inputs; a 0-dim one is a number beside them and not counted."""
    return sum(t.bytes_read for t in tensors if t.shape)


# Numbers of c10::ScalarType, as a trace writes a dtype argument.
_SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
    23: "float8_e5m2", 24: "float8_e4m3fn",
}  # fmt: skip


def named_dtype(value: object) -> str | None:
    """The dtype that an argument names, by c10's number or in words; None where it names none."""
    if isinstance(value, int):
        return _SCALAR_TYPES.get(value)
    try:
        return dtype_name(value)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------- what rules share


def elementwise(
    call: Call, read: Sequence[Tensor], per_element: int, dtype: str, *, kind: str = "pointwise"
) -> Work | None:
    """Reads these, broadcast to each other, and writes a result of `dtype`; None where they do not fit."""
    shape = broadcast(shapes_of(read))
    if shape is None:
        return None
    elements = math.prod(shape)
    cost = Cost(0, bytes_of(read) + elements * itemsize(dtype), elements * per_element)
    return Work(f"aten::{call.name}", kind, _compute_dtype(read, dtype), cost, shapes_of(read))


def _compute_dtype(read: Sequence[Tensor], result: str) -> str:
    return promoted(read) if result == "bool" else result


def along(dim: object, work: Work | None) -> Work | None:
    """The work with its rows, where the dimension that they run along was recorded."""
    shape = work.shapes[0] if work else ()
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape) or 0 in shape:
        return work
    dim %= len(shape)
    return replace(work, rows=math.prod(shape) // shape[dim], row_step=row_step(shape, [dim]))


def row_step(shape: Shape, reduced: Iterable[int]) -> int:
    """How many elements apart neighbours along the last of the reduced dimensions lie, in a dense tensor."""
    return math.prod(shape[max(reduced, default=len(shape)) + 1 :])


def contraction(
    call: Call, factors: Sequence[Tensor], k: int, outputs: int, added: Tensor | None = None, to: str = ""
) -> Work:
    """`outputs` dot products of length k from two factors, plus what is added, written in `to`."""
    read = [*factors, added] if added else [*factors]
    dtype = factors[0].dtype
    cost = Cost(2 * outputs * k, bytes_of(read) + outputs * itemsize(to or dtype), outputs if added else 0)
    in_order = [t for t in call.arguments if any(t is r for r in read)]
    return Work(f"aten::{call.name}", "gemm", dtype, cost, shapes_of(in_order))
