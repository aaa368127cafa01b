"""What an operation must do: FLOPs, bytes and vector arithmetic, from its shapes alone.

Covers matrix products, attention, pointwise operators, reductions, normalisations, copies and lookups,
forward and where PyTorch has one operator for it backward. `operator` reads a row of a trace; the other
functions take sizes. Time is not known here (see `predict`), nor which kernel runs, nor what a cache holds.
Three conventions hold everywhere:

- `flops` counts contractions only, 2·m·n·k each, as `torch.utils.flop_counter` does; they can run on tensor
  cores.
- `vector_flops` counts the arithmetic of everything else: the operations of the textbook formula, an exp,
  tanh, root or division as one. They run on CUDA cores or a CPU's vector units, at another rate, so the two
  are never added up.
- `bytes_moved` is compulsory traffic: each distinct input element read once, each output element written
  once. A broadcast or expanded input counts the elements it really holds.
"""

import ast
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING

from tutorial_lib import units
from tutorial_lib.units import dtype_name, itemsize

if TYPE_CHECKING:
    import pandas as pd

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


def total(work: Iterable[Work]) -> Cost:
    """The sum of the costs; no work costs nothing."""
    return sum((w.cost for w in work), Cost(0, 0))


def table(work: Iterable[Work]) -> "pd.DataFrame":
    """One row a work item, in words: operator, shapes, dtype, FLOPs, bytes, and the arithmetic for each byte.

    The last column counts products and other arithmetic alike; it is None where nothing is moved.
    """
    import pandas as pd  # the rest of this module needs none

    rows = [
        (
            w.operator,
            " ".join(str(list(shape)) for shape in w.shapes),
            w.dtype,
            units.work(w.flops),
            units.data(w.bytes_moved),
            round(w.cost.intensity, 2) if w.bytes_moved else None,
        )
        for w in work
    ]
    return pd.DataFrame(rows, columns=["operator", "shapes", "dtype", "FLOPs", "bytes", "FLOP/byte"])


def _whole(**sizes: int) -> list[int]:
    """The sizes as Python's own numbers, which never overflow; ValueError for what no tensor has."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or not 0 <= size < 2**63:
            raise ValueError(f"{name} is a whole number of 0 or more, got {size!r}")
    return [int(size) for size in sizes.values()]


# -------------------------------------------------------------------------------------------- matrix products


def matmul(m: int, k: int, n: int, dtype: str, *, batch: int = 1) -> Work:
    """[m, k] @ [k, n], `batch` times: 2·m·n·k FLOPs each; factors read once, the product written once."""
    m, k, n, batch = _whole(m=m, k=k, n=n, batch=batch)
    dtype, shapes = dtype_name(dtype), ((m, k), (k, n))
    if batch != 1:
        shapes = tuple((batch, *shape) for shape in shapes)
    elements = batch * (m * k + k * n + m * n)
    name = "aten::mm" if batch == 1 else "aten::bmm"
    return Work(name, "gemm", dtype, Cost(2 * batch * m * n * k, elements * itemsize(dtype)), shapes)


def addmm(m: int, k: int, n: int, dtype: str, *, bias_elements: int) -> Work:
    """bias + [m, k] @ [k, n] in one kernel, whose epilogue reads the bias once: n elements, m·n if full."""
    m, k, n, bias_elements = _whole(m=m, k=k, n=n, bias_elements=bias_elements)
    product = matmul(m, k, n, dtype)
    bias = Cost(0, bias_elements * itemsize(dtype), vector_flops=m * n)
    addend = (m, n) if bias_elements == m * n != n else (bias_elements,)
    shapes = (addend, *product.shapes)
    return replace(product, operator="aten::addmm", cost=product.cost + bias, shapes=shapes)


def baddbmm(m: int, k: int, n: int, dtype: str, *, batch: int, addend_elements: int | None = None) -> Work:
    """addend + [m, k] @ [k, n], `batch` times, in one kernel; `addend_elements` are fewer if broadcast."""
    m, k, n, batch = _whole(m=m, k=k, n=n, batch=batch)
    product = matmul(m, k, n, dtype, batch=batch)
    (read,) = (batch * m * n,) if addend_elements is None else _whole(addend_elements=addend_elements)
    addend = Cost(0, read * itemsize(dtype), vector_flops=batch * m * n)
    shapes = ((batch, m, n), (batch, m, k), (batch, k, n))
    return replace(product, operator="aten::baddbmm", cost=product.cost + addend, shapes=shapes)


# ------------------------------------------------------------------------------ pointwise, copies, reductions


def pointwise(
    operator: str, *, elements: int, dtype: str, reads: int, writes: int = 1, flops_per_element: int = 1
) -> Work:
    """An element-by-element operation on `reads` inputs and `writes` outputs of the same size and dtype."""
    elements, reads, writes, flops_per_element = _whole(
        elements=elements, reads=reads, writes=writes, flops_per_element=flops_per_element
    )
    dtype = dtype_name(dtype)
    cost = Cost(0, (reads + writes) * elements * itemsize(dtype), elements * flops_per_element)
    return Work(operator, "pointwise", dtype, cost, ((elements,),) * reads)


def copy(elements: int, dtype: str, *, read_elements: int | None = None, to: str | None = None) -> Work:
    """Write `elements` in dtype `to` or `dtype`, reading `read_elements` of `dtype`: fewer if broadcast."""
    source, target = dtype_name(dtype), dtype_name(to or dtype)
    read = elements if read_elements is None else read_elements
    elements, read = _whole(elements=elements, read_elements=read)
    cost = Cost(0, read * itemsize(source) + elements * itemsize(target))
    return Work("aten::copy_", "copy", target, cost, ((elements,), (read,)))


def softmax(rows: int, columns: int, dtype: str) -> Work:
    """Softmax of each row, read and written once; 5 operations an element: max, -, exp, sum, divide."""
    rows, columns = _whole(rows=rows, columns=columns)
    dtype = dtype_name(dtype)
    cost = Cost(0, 2 * rows * columns * itemsize(dtype), 5 * rows * columns)
    return Work("aten::_softmax", "reduction", dtype, cost, ((rows, columns),), rows=rows)


def layer_norm(rows: int, columns: int, dtype: str) -> Work:
    """Normalise each row, scale by a weight, shift by a bias; each row also writes mean and 1/σ in float32.

    8 operations an element: sum for the mean; -, square, sum for the variance; -, ·1/σ, ·weight, +bias.
    """
    rows, columns = _whole(rows=rows, columns=columns)
    dtype = dtype_name(dtype)
    moved = (2 * rows * columns + 2 * columns) * itemsize(dtype) + 2 * rows * _statistic_size(dtype)
    shapes = ((rows, columns), (columns,), (columns,))
    cost = Cost(0, moved, 8 * rows * columns)
    return Work("aten::native_layer_norm", "reduction", dtype, cost, shapes, rows=rows)


def reduction(operator: str, *, elements: int, outputs: int, dtype: str, to: str | None = None) -> Work:
    """Read `elements`, combine each with one operation, write `outputs` of dtype `to` (or the same)."""
    elements, outputs = _whole(elements=elements, outputs=outputs)
    dtype = dtype_name(dtype)
    cost = Cost(0, elements * itemsize(dtype) + outputs * itemsize(to or dtype), elements)
    return Work(operator, "reduction", dtype, cost, ((elements,),), rows=outputs)


def attention(
    batch: int,
    heads: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    dtype: str,
    *,
    causal: bool = False,
    kv_heads: int | None = None,
    log_sum_exp: bool = False,
) -> Work:
    """Fused softmax(q kᵀ·scale) v: q, k, v read once, the output written once, scores never in memory.

    FLOPs as the counter has them: 2·q·kv·d for the scores and as many for the output, the masked part of a
    causal run included (its size is `skippable_flops`). 5 vector operations a score. The log-sum-exp that a
    backward pass needs, 4 bytes a query row, is counted when `log_sum_exp` says so.
    """
    q, kv = _query_and_key(batch, heads, q_len, kv_len, head_dim, kv_heads)
    name, kept = "aten::scaled_dot_product_attention", 4 * math.prod(q[:-1]) if log_sum_exp else 0
    return _attention(name, dtype_name(dtype), (q, kv, kv), causal=causal, extra_bytes=kept)


def attention_backward(
    batch: int,
    heads: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    dtype: str,
    *,
    causal: bool = False,
    kv_heads: int | None = None,
) -> Work:
    """The gradients of fused attention in one operator: 5 products (forward has 2), 8 operations a score.

    The scores are computed anew, then dv, the gradient of the weights, dq and dk. Reads q, k, v, the output,
    its gradient and the log-sum-exp; writes dq, dk, dv. `skippable_flops` as in `attention`.
    """
    q, kv = _query_and_key(batch, heads, q_len, kv_len, head_dim, kv_heads)
    name, dtype = "aten::scaled_dot_product_attention_backward", dtype_name(dtype)
    gradient = math.prod(q) * itemsize(dtype)
    read = gradient + (math.prod(q) + 2 * math.prod(kv)) * itemsize(dtype)
    return _attention_gradients(name, dtype, (q, kv, kv), causal=causal, read_bytes=read)


def _query_and_key(batch, heads, q_len, kv_len, head_dim, kv_heads) -> tuple[Shape, Shape]:
    batch, heads, q_len, kv_len, head_dim, kv_heads = _whole(
        batch=batch,
        heads=heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        kv_heads=heads if kv_heads is None else kv_heads,
    )
    return (batch, heads, q_len, head_dim), (batch, kv_heads, kv_len, head_dim)


def _attention(name: str, dtype: str, qkv: Sequence[Shape], *, causal: bool, extra_bytes: int = 0) -> Work:
    """Attention from q [.., H, L, D], k [.., Hk, S, D] and v [.., Hk, S, Dv]."""
    q, k, v = qkv
    scores = math.prod(q[:-1]) * k[-2]
    skipped = math.prod(q[:-2]) * _masked(q[-2], k[-2]) if causal else 0
    per_score = 2 * (q[-1] + v[-1])  # a dot product over D makes the score, another spreads it over Dv
    elements = sum(map(math.prod, qkv)) + math.prod(q[:-1]) * v[-1]
    cost = Cost(scores * per_score, elements * itemsize(dtype) + extra_bytes, 5 * (scores - skipped))
    return Work(name, "attention", dtype, cost, tuple(qkv), skippable_flops=skipped * per_score)


def _attention_gradients(
    name: str, dtype: str, qkv: Sequence[Shape], *, causal: bool, read_bytes: int
) -> Work:
    """Reads `read_bytes` of inputs and output gradient, then the output and a log-sum-exp a row."""
    q, k, v = qkv
    scores = math.prod(q[:-1]) * k[-2]
    skipped = math.prod(q[:-2]) * _masked(q[-2], k[-2]) if causal else 0
    per_score = 2 * (3 * q[-1] + 2 * v[-1])  # scores, dq, dk over D; dv and the weights' gradient over Dv
    moved = read_bytes + sum(map(math.prod, qkv)) * itemsize(dtype)
    moved += math.prod(q[:-1]) * (v[-1] * itemsize(dtype) + 4)
    cost = Cost(scores * per_score, moved, 8 * (scores - skipped))
    return Work(name, "attention", dtype, cost, tuple(qkv), skipped * per_score)


def _masked(q_len: int, kv_len: int) -> int:
    """Scores a causal mask hides: row i keeps min(i + 1, kv_len) of its kv_len, aligned top left."""
    part = min(q_len, kv_len)
    kept = part * (part + 1) // 2 + (q_len - part) * kv_len
    return q_len * kv_len - kept


# ----------------------------------------------------------------------- one operator of a trace, by its name


@dataclass(frozen=True)
class _Tensor:
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


_Argument = _Tensor | tuple[_Tensor, ...] | None


@dataclass(frozen=True)
class _Call:
    """A recorded call: a tensor, a list of them or None at each position, and the values recorded there."""

    name: str
    arguments: tuple[_Argument, ...]
    concrete: tuple[object, ...] = ()

    def tensor(self, position: int) -> _Tensor | None:
        argument = self.arguments[position] if position < len(self.arguments) else None
        return argument if isinstance(argument, _Tensor) else None

    def tensors(self, *positions: int) -> tuple[_Tensor, ...] | None:
        """The tensors at these positions, or None when one is missing."""
        found = tuple(self.tensor(p) for p in positions)
        return None if None in found else found

    def value(self, position: int) -> object:
        """The recorded value of a scalar, list or flag; None when it was None or was not recorded."""
        return _literal(self.concrete[position]) if position < len(self.concrete) else None

    def says(self, position: int) -> bool:
        return self.value(position) is not None


def operator(
    name: str,
    shapes: Sequence[object],
    dtypes: Sequence[object],
    *,
    strides: Sequence[object] | None = None,
    concrete: Sequence[object] | None = None,
) -> Work | None:
    """The work of an aten operator from what a trace records of its inputs; None for views and unknown ones.

    `shapes`, `dtypes`, `strides` and `concrete` have one entry per argument, as `Input Dims`, `Input type`,
    `Input Strides` and `Concrete Inputs` in a trace; a list of tensors is a nested entry, in `dtypes` as well
    (a trace writes "TensorList" there, from which no byte count follows). Nothing is guessed: where an answer
    hangs on a value that is not in `concrete` (the dimension of a sum, the dtype of a cast), it is None. An
    operator that only calls others (linear, matmul, clone, masked_fill, softmax, ...) has the cost of the
    whole; the ones it calls have theirs, so add up either the callers or the called.
    """
    short = name.removeprefix("aten::").split(".")[0]  # add.Tensor is an overload of add
    rule = _rule(short)
    call = rule and _call(short, shapes, dtypes, strides, concrete)
    return rule(call) if call else None


def items_of(
    name: str,
    shapes: Sequence[object] | None,
    dtypes: Sequence[object] | None,
    *,
    strides: Sequence[object] | None = None,
    concrete: Sequence[object] | None = None,
    addend: str = "read",
) -> list[Work]:
    """The work items of an operator, described as for `operator`; [] when its cost is not known.

    A product that finds no epilogue for its addend copies it over the whole output first, and the GEMM reads
    the output back. `addend` says whether that happened: "read" (it did not), "copied" (inside the operator,
    as a kernel on a GPU) or "dispatched" (by an operator of its own, which has its own cost, as on a CPU).
    """
    whole = operator(name, shapes, dtypes, strides=strides, concrete=concrete) if shapes and dtypes else None
    if whole is None or addend == "read" or name not in _WITH_ADDEND:
        return [] if whole is None else [whole]
    added, left, right = shapes[:3]
    output = (*left[:-1], right[-1])
    contiguous = tuple(math.prod(output[i + 1 :]) for i in range(len(output)))
    strides = strides and (contiguous, *strides[1:])
    product = operator(name, (output, *shapes[1:]), dtypes, strides=strides, concrete=concrete)
    if product is None or addend == "dispatched":
        return [] if product is None else [product]
    return [copy(math.prod(output), product.dtype, read_elements=math.prod(added)), product]


_WITH_ADDEND = ("aten::addmm", "aten::baddbmm", "aten::_addmm_activation")


def multiplies(name: str) -> bool:
    """Whether an aten operator may have FLOPs; so it may when it is not known here."""
    short = name.removeprefix("aten::").split(".")[0]
    rule = _rule(short)
    return rule is None or rule in (*_PRODUCTS, _attention_call, _attention_backward, _convolution)


def _rule(name: str) -> "_Rule | None":
    if name in _RULES or name in _POINTWISE:
        return _RULES.get(name, _pointwise_call)
    return _pointwise_in_place if name.endswith("_") and name[:-1] in _POINTWISE else None


def _call(name, shapes, dtypes, strides, concrete) -> "_Call | None":
    if len(dtypes) != len(shapes):
        return None
    strides = strides if strides is not None and len(strides) == len(shapes) else [None] * len(shapes)
    try:
        arguments = tuple(map(_argument, shapes, dtypes, strides))
    except (TypeError, ValueError):  # a shape or dtype that no tensor has
        return None
    # A list of another length does not line up with the arguments, so it says nothing about them.
    values = tuple(concrete) if concrete is not None and len(concrete) == len(shapes) else ()
    return _Call(name, arguments, values)


_Rule = Callable[[_Call], Work | None]
_NO_TENSOR = {"", "none", "scalar", "scalarlist", "genericlist"}


def _argument(shape, dtype, strides) -> _Argument:
    if shape is not None and not isinstance(shape, (list, tuple)):
        raise TypeError(f"a shape is a list of sizes, got {shape!r}")
    if shape and isinstance(shape[0], (list, tuple)):
        each = [dtype] * len(shape) if isinstance(dtype, str) or not isinstance(dtype, Sequence) else dtype
        inner = strides if strides is not None and len(strides) == len(shape) else [None] * len(shape)
        return tuple(_argument(s, d, st) for s, d, st in zip(shape, each, inner, strict=True))
    if dtype is None or str(dtype).strip().lower() in _NO_TENSOR or shape is None:
        return None
    sizes = tuple(map(index, shape))
    if min(sizes, default=0) < 0 or math.prod(sizes) >= 2**63:
        raise ValueError(f"no tensor has the shape {sizes}")
    return _Tensor(sizes, dtype_name(dtype), tuple(strides) if strides is not None else None)


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


def _statistic_size(dtype: str) -> int:
    return max(4, itemsize(dtype))  # means, variances and log-sums are kept in at least float32


def _category(dtype: str) -> int:
    return 3 if dtype.startswith("complex") else 2 if "float" in dtype else 0 if dtype == "bool" else 1


def _wider(a: str, b: str) -> str:
    if a == b:
        return a
    if _category(a) != _category(b):
        return max(a, b, key=_category)
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    return max(a, b, key=itemsize)


def _promoted(tensors: Iterable[_Tensor]) -> str:
    """The dtype PyTorch computes in: a 0-dim tensor or number only counts when it is of a higher category."""
    sized = [t.dtype for t in tensors if t.shape]
    numbers = [t.dtype for t in tensors if not t.shape]
    if not sized:
        return _fold(numbers)
    dtype = _fold(sized)
    stronger = [n for n in numbers if _category(n) > _category(dtype)]
    if not stronger:
        return dtype
    # A floating-point number beside integers brings the default dtype, not the double it is stored as.
    return "float32" if _category(_fold(stronger)) == 2 else _fold(stronger)


def _fold(dtypes: Sequence[str]) -> str:
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _wider(result, dtype)
    return result


def _broadcast(shapes: Iterable[Shape]) -> Shape | None:
    """The common shape, or None when the shapes do not fit each other."""
    result: list[int] = []
    for shape in shapes:
        result = [1] * (len(shape) - len(result)) + result
        for i in range(1, len(shape) + 1):
            if result[-i] != shape[-i] and 1 not in (result[-i], shape[-i]):
                return None
            result[-i] = shape[-i] if result[-i] == 1 else result[-i]
    return tuple(result)


def _shapes(tensors: Iterable[_Tensor]) -> tuple[Shape, ...]:
    return tuple(t.shape for t in tensors)


def _read(tensors: Iterable[_Tensor]) -> int:
    """Bytes of the inputs; a 0-dim one is a number beside them and not counted."""
    return sum(t.bytes_read for t in tensors if t.shape)


# -------------------------------------------------------------------------------------------------- pointwise

# How many leading arguments are read, operations an element, dtype of the result, names. The result is of the
# promoted dtype ("same"), of that with integers made float32 ("float"), bool, or of the dtype of argument 0
# ("first"). Backward operators read the gradient and what the forward pass kept.
_POINTWISE_ROWS = (
    (1, 0, "same", "tril triu"),
    (1, 1, "same", "abs neg floor ceil round trunc frac sign sgn relu square bitwise_not"),
    (1, 1, "float", "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan"),
    (1, 1, "float", "sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma"),
    (1, 1, "bool", "logical_not isnan isinf isfinite isneginf isposinf"),
    (1, 2, "same", "hardtanh threshold nan_to_num leaky_relu"),
    (1, 3, "float", "softplus log_sigmoid elu selu celu hardsigmoid logit"),
    (1, 4, "float", "sigmoid silu"),  # 1 / (1 + e^-x): negate, exp, add, divide
    (1, 5, "float", "gelu mish hardswish"),  # x·½·(1 + erf(x/√2)); gelu's tanh form is longer
    (2, 1, "same", "add sub rsub mul maximum minimum fmax fmin clamp_min clamp_max remainder fmod pow"),
    (2, 1, "same", "floor_divide heaviside gcd nextafter bitwise_left_shift bitwise_right_shift"),
    (2, 1, "same", "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__"),
    (2, 1, "float", "div divide true_divide atan2 hypot logaddexp xlogy copysign"),
    (2, 1, "bool", "eq ne lt le gt ge logical_and logical_or logical_xor"),
    (2, 2, "same", "prelu _prelu_kernel"),
    (3, 2, "same", "clamp"),
    (3, 3, "same", "addcmul addcdiv lerp"),
    (2, 1, "same", "threshold_backward hardtanh_backward"),
    (2, 2, "first", "leaky_relu_backward native_dropout_backward"),
    (2, 3, "same", "tanh_backward sigmoid_backward"),  # g·(1 - y²), g·(1 - y)·y
    (2, 4, "same", "elu_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward"),
    (3, 4, "same", "log_sigmoid_backward"),
    (2, 9, "same", "silu_backward"),
    (2, 10, "same", "gelu_backward"),
)
_POINTWISE = {
    name: (arity, operations, result)
    for arity, operations, result, names in _POINTWISE_ROWS
    for name in names.split()
}


def _pointwise_call(call: _Call) -> Work | None:
    arity, per_element, result = _POINTWISE[call.name]
    read = [t for p in range(arity) if (t := call.tensor(p)) is not None]
    return _elementwise(call, read, per_element, _result_dtype(read, result)) if read else None


def _pointwise_in_place(call: _Call) -> Work | None:
    """`add_` and its kin read self and the rest and write self, whose dtype and shape stay."""
    arity, per_element, _ = _POINTWISE[call.name[:-1]]
    read = [t for p in range(arity) if (t := call.tensor(p)) is not None]
    if call.tensor(0) is None or _broadcast(_shapes(read)) != read[0].shape:
        return None
    return _elementwise(call, read, per_element, read[0].dtype)


def _result_dtype(read: Sequence[_Tensor], result: str) -> str:
    if result in ("first", "bool"):
        return read[0].dtype if result == "first" else "bool"
    dtype = _promoted(read)
    return "float32" if result == "float" and _category(dtype) < 2 else dtype


def _elementwise(
    call: _Call, read: Sequence[_Tensor], per_element: int, dtype: str, *, kind: str = "pointwise"
) -> Work | None:
    shape = _broadcast(_shapes(read))
    if shape is None:
        return None
    elements = math.prod(shape)
    cost = Cost(0, _read(read) + elements * itemsize(dtype), elements * per_element)
    return Work(f"aten::{call.name}", kind, _compute_dtype(read, dtype), cost, _shapes(read))


def _compute_dtype(read: Sequence[_Tensor], result: str) -> str:
    return _promoted(read) if result == "bool" else result


def _rescaled(call: _Call) -> Work | None:
    """q, k and v [.., 3·D] with a bias added, and q multiplied by a number: 4 operations for 3 elements."""
    read = call.tensors(0, 1)
    work = None if read is None else _elementwise(call, read, 0, read[0].dtype)
    return work and replace(work, cost=replace(work.cost, vector_flops=4 * read[0].elements // 3))


def _where(call: _Call) -> Work | None:
    condition, branches = call.tensor(0), [t for p in (1, 2) if (t := call.tensor(p)) is not None]
    if condition is None or not branches:
        return None
    return _elementwise(call, [condition, *branches], 0, _promoted(branches))


def _masked_fill(call: _Call) -> Work | None:
    """Reads self and mask; out of place PyTorch copies first and then fills, which moves more than this."""
    read = call.tensors(0, 1)
    return None if read is None else _elementwise(call, read, 0, read[0].dtype)


def _dropout(call: _Call) -> Work | None:
    """In training: reads the input, writes the output and a mask of one byte an element; else no work."""
    x = call.tensor(0)
    if x is None or call.value(2) is not True:
        return None
    cost = Cost(0, x.bytes_read + x.elements * (itemsize(x.dtype) + 1), 2 * x.elements)
    return Work(f"aten::{call.name}", "pointwise", x.dtype, cost, (x.shape,))


# ----------------------------------------------------------------------------------------------------- copies


def _fill(call: _Call) -> Work | None:
    x = call.tensor(0)
    if x is None:
        return None
    return Work(f"aten::{call.name}", "copy", x.dtype, Cost(0, x.elements * itemsize(x.dtype)), (x.shape,))


def _copy_into(call: _Call) -> Work | None:
    both = call.tensors(0, 1)
    if both is None or _broadcast(_shapes(both)) != both[0].shape:
        return None
    target, source = both
    moved = source.bytes_read + target.elements * itemsize(target.dtype)
    return Work("aten::copy_", "copy", target.dtype, Cost(0, moved), _shapes(both))


def _copy_of(call: _Call, dtype: str | None = None) -> Work | None:
    x = call.tensor(0)
    if x is None:
        return None
    target = dtype or x.dtype
    moved = x.bytes_read + x.elements * itemsize(target)
    return Work(f"aten::{call.name}", "copy", target, Cost(0, moved), (x.shape,))


def _contiguous(call: _Call) -> Work | None:
    """A copy only when the strides show that there is something to rearrange."""
    x = call.tensor(0)
    if x is None or x.strides is None or len(x.strides) != len(x.shape):
        return None
    expected, dense = 1, True
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        dense &= size == 1 or stride == expected
        expected *= size
    return None if dense else _copy_of(call)


# Numbers of c10::ScalarType, as a trace writes a dtype argument.
_SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
    23: "float8_e5m2", 24: "float8_e4m3fn",
}  # fmt: skip


def _named_dtype(value: object) -> str | None:
    if isinstance(value, int):
        return _SCALAR_TYPES.get(value)
    try:
        return dtype_name(value)
    except ValueError:
        return None


def _to_copy(call: _Call) -> Work | None:
    if not call.concrete:
        return None
    dtype = _named_dtype(call.value(1)) if call.says(1) else None
    return None if call.says(1) and dtype is None else _copy_of(call, dtype)


def _cat(call: _Call) -> Work | None:
    parts = call.arguments[0] if call.arguments else None
    if not isinstance(parts, tuple) or not parts or not all(isinstance(t, _Tensor) for t in parts):
        return None
    dtype = _fold([t.dtype for t in parts])
    moved = _read(parts) + sum(t.elements for t in parts) * itemsize(dtype)
    return Work(f"aten::{call.name}", "copy", dtype, Cost(0, moved), _shapes(parts))


# ------------------------------------------------------------------------------------------------- reductions

# operator: (position of dim, of dtype, of `out`)
_REDUCTIONS: dict[str, tuple[int, int | None, int | None]] = {
    **dict.fromkeys(("sum", "nansum", "mean", "prod"), (1, 3, 4)),
    **dict.fromkeys(("amax", "amin", "argmax", "argmin", "any", "all", "logsumexp"), (1, None, 3)),
    **dict.fromkeys(("max", "min", "var", "std"), (1, None, None)),
    "linalg_vector_norm": (2, 4, 5),
}
# The overload that reduces everything has this many arguments at most; in that of sum, mean, prod the second
# is dtype.
_WHOLE = {"sum": 2, "nansum": 2, "mean": 2, "prod": 2, "any": 1, "all": 1, "max": 1, "min": 1}


def _reduction(call: _Call) -> Work | None:
    x = call.tensor(0)
    if x is None:
        return None
    if call.name in ("max", "min") and call.tensor(1) is not None:  # max(self, other)
        return _elementwise(call, [x, call.tensor(1)], 1, _promoted([x, call.tensor(1)]))
    outputs = _outputs(call, x)
    if outputs is None:
        return None
    operations = {"linalg_vector_norm": 2, "logsumexp": 2, "var": 4, "std": 4}.get(call.name, 1)
    cost = Cost(0, x.bytes_read + outputs * _result_bytes(call, x), operations * x.elements)
    step = _row_step(x.shape, _reduced(call, x) or ())
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, (x.shape,), rows=outputs, row_step=step)


def _outputs(call: _Call, x: _Tensor) -> int | None:
    """How many results: from a recorded `out`, or from the dimensions reduced."""
    out_at = _REDUCTIONS[call.name][2]
    if out_at is not None and (out := call.tensor(out_at)) is not None:
        return out.elements
    reduced = _reduced(call, x)
    return None if reduced is None else math.prod(n for i, n in enumerate(x.shape) if i not in reduced)


def _reduced(call: _Call, x: _Tensor) -> set[int] | None:
    """The dimensions that are reduced, all of them where none is named; None when it was not recorded."""
    everything = set(range(len(x.shape)))
    if _reduces_all(call):
        return everything
    if not call.concrete:
        return None
    dims = call.value(_REDUCTIONS[call.name][0])
    dims = [dims] if isinstance(dims, int) else dims
    try:
        return {range(len(x.shape))[d] for d in dims} if dims else everything  # None and [] mean all of them
    except (IndexError, TypeError):
        return None


def _row_step(shape: Shape, reduced: Iterable[int]) -> int:
    """How many elements apart neighbours along the last of the reduced dimensions lie, in a dense tensor."""
    return math.prod(shape[max(reduced, default=len(shape)) + 1 :])


def _reduces_all(call: _Call) -> bool:
    dims = call.value(_REDUCTIONS[call.name][0])
    return len(call.arguments) <= _WHOLE.get(call.name, 0) and not isinstance(dims, (list, tuple))


def _result_bytes(call: _Call, x: _Tensor) -> int:
    """Bytes of one result: an index is int64, a flag one byte, max over a dimension a value and an index."""
    if call.name in ("argmax", "argmin", "any", "all"):
        return 8 if call.name.startswith("arg") else 1
    if call.name in ("max", "min"):
        return itemsize(x.dtype) + (0 if _reduces_all(call) else 8)
    dtype_at = 1 if _reduces_all(call) else _REDUCTIONS[call.name][1]
    if dtype_at is not None and call.says(dtype_at) and (named := _named_dtype(call.value(dtype_at))):
        return itemsize(named)
    if call.name in ("sum", "nansum", "prod") and _category(x.dtype) < 2:
        return 8  # integers are summed in int64
    return itemsize(x.dtype)


def _softmax(call: _Call) -> Work | None:
    """Softmax and log-softmax; with half_to_float (argument 2 of the inner ones) the result is float32."""
    x = call.tensor(0)
    if x is None:
        return None
    widened = call.name in ("_softmax", "_log_softmax") and call.value(2) is True
    work = _elementwise(call, [x], 5, "float32" if widened else x.dtype, kind="reduction")
    return _along(call.value(1), work)


def _masked_softmax(call: _Call) -> Work | None:
    """Softmax of scores, of which a mask (one byte each, in memory as it is) hides some."""
    both = call.tensors(0, 1)
    work = None if both is None else _elementwise(call, both[:1], 5, both[0].dtype, kind="reduction")
    if work is None:
        return None
    work = replace(work, cost=work.cost + Cost(0, both[1].bytes_read), shapes=_shapes(both))
    return _along(call.value(2), work)


def _along(dim: object, work: Work | None) -> Work | None:
    """The work with its rows, where the dimension that they run along was recorded."""
    shape = work.shapes[0] if work else ()
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape) or 0 in shape:
        return work
    dim %= len(shape)
    return replace(work, rows=math.prod(shape) // shape[dim], row_step=_row_step(shape, [dim]))


def _cumulative(call: _Call) -> Work | None:
    x = call.tensor(0)
    return None if x is None else _along(call.value(1), _elementwise(call, [x], 1, x.dtype, kind="reduction"))


def _softmax_backward(call: _Call) -> Work | None:
    """Reads the gradient and the forward result, writes a gradient of dtype `input_dtype`."""
    read = call.tensors(0, 1)
    if read is None:
        return None
    named = _named_dtype(call.value(3)) if call.says(3) else None
    return _along(call.value(2), _elementwise(call, read, 4, named or read[1].dtype, kind="reduction"))


def _norm(call: _Call, *, operations: int, statistics: int) -> Work | None:
    """Layer or RMS norm: input, then normalized_shape, weight and (layer norm) bias where they are given."""
    x, parameters = call.tensor(0), [t for p in (2, 3) if (t := call.tensor(p)) is not None and t.shape]
    row = _row_length(call, x, parameters)
    if x is None or row is None:
        return None
    moved = x.bytes_read + x.elements * itemsize(x.dtype) + _read(parameters)
    rows = x.elements // row if row else 0
    moved += statistics * rows * _statistic_size(x.dtype)
    cost = Cost(0, moved, operations * x.elements)
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, _shapes([x, *parameters]), rows=rows)


def _row_length(call: _Call, x: _Tensor | None, parameters: Sequence[_Tensor]) -> int | None:
    shape = call.value(1)
    if isinstance(shape, (list, tuple)):
        return math.prod(shape) if all(isinstance(size, int) and size >= 0 for size in shape) else None
    return parameters[0].elements if x is not None and parameters else None


def _layer_norm_backward(call: _Call) -> Work | None:
    """Reads gradient, input, statistics and weight; writes gradients of input, weight and bias."""
    read = call.tensors(0, 1, 3, 4)
    if read is None:
        return None
    parameters = [t for p in (5, 6) if (t := call.tensor(p)) is not None]
    x = read[1]
    moved = _read(read) + _read(parameters[:1]) + x.elements * itemsize(x.dtype) + _read(parameters)
    cost = Cost(0, moved, 12 * x.elements)
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, _shapes([*read, *parameters]))


# ---------------------------------------------------------------------------------------------------- lookups


def _embedding(call: _Call) -> Work | None:
    """Reads the indices and each row they can name once, writes one row per index."""
    both = call.tensors(0, 1)
    if both is None or len(both[0].shape) != 2:
        return None
    (rows, width), indices, size = both[0].shape, both[1], itemsize(both[0].dtype)
    moved = indices.bytes_read + (min(rows, indices.elements) + indices.elements) * width * size
    return Work("aten::embedding", "other", both[0].dtype, Cost(0, moved), _shapes(both))


def _index_select(call: _Call) -> Work | None:
    both, dim = call.tensors(0, 2), call.value(1)
    if both is None or not isinstance(dim, int) or not -len(both[0].shape) <= dim < len(both[0].shape):
        return None
    x, indices = both
    if x.elements == 0:
        return None
    slice_bytes = x.elements // x.shape[dim] * itemsize(x.dtype)
    moved = indices.bytes_read + (min(x.shape[dim], indices.elements) + indices.elements) * slice_bytes
    return Work("aten::index_select", "other", x.dtype, Cost(0, moved), _shapes(both))


def _gather(call: _Call) -> Work | None:
    both = call.tensors(0, 2)
    if both is None:
        return None
    x, indices = both
    moved = indices.bytes_read + (min(x.elements, indices.elements) + indices.elements) * itemsize(x.dtype)
    return Work("aten::gather", "other", x.dtype, Cost(0, moved), _shapes(both))


# -------------------------------------------------------------------------------------------- matrix products


def _product(
    call: _Call, factors: Sequence[_Tensor], k: int, outputs: int, added: _Tensor | None = None, to: str = ""
) -> Work:
    """`outputs` dot products of length k from two factors, plus what is added, written in `to`."""
    read = [*factors, added] if added else [*factors]
    dtype = factors[0].dtype
    cost = Cost(2 * outputs * k, _read(read) + outputs * itemsize(to or dtype), outputs if added else 0)
    in_order = [t for t in call.arguments if any(t is r for r in read)]
    return Work(f"aten::{call.name}", "gemm", dtype, cost, _shapes(in_order))


def _mm(call: _Call, *, first: int = 0) -> Work | None:
    """mm, bmm and, with an addend before the factors (`first` = 1), addmm and baddbmm."""
    both = call.tensors(first, first + 1)
    if both is None:
        return None
    a, b = both
    if len(a.shape) not in (2, 3) or len(a.shape) != len(b.shape) or a.shape[-1] != b.shape[-2]:
        return None
    if a.shape[:-2] != b.shape[:-2]:
        return None
    outputs = math.prod(a.shape[:-1]) * b.shape[-1]
    added = call.tensor(0) if first else None
    if first and added is None:
        return None
    if first and call.value(3) == 0:  # beta = 0: the addend is not looked at
        added = None
    return _product(call, both, a.shape[-1], outputs, added)


def _added_mm(call: _Call) -> Work | None:
    return _mm(call, first=1)


def _narrow_mm(call: _Call) -> Work | None:
    """_int_mm, which writes int32, and _scaled_mm, whose output dtype is argument 6; 8-bit factors."""
    both = call.tensors(0, 1)
    to = "int32" if call.name == "_int_mm" else _named_dtype(call.value(6))
    if both is None or to is None or any(len(t.shape) != 2 for t in both):
        return None
    (m, k), (rows, n) = _shapes(both)
    return _product(call, both, k, m * n, to=to) if k == rows else None


def _mv(call: _Call, *, first: int = 0) -> Work | None:
    both = call.tensors(first, first + 1)
    if both is None or len(both[0].shape) != 2 or both[1].shape != both[0].shape[1:]:
        return None
    m, k = both[0].shape
    added = call.tensor(0) if first and call.value(3) != 0 else None  # beta = 0: nothing is added
    return _product(call, both, k, m, added)


def _addmv(call: _Call) -> Work | None:
    return _mv(call, first=1)


def _dot(call: _Call) -> Work | None:
    both = call.tensors(0, 1)
    if both is None or len(both[0].shape) != 1 or both[0].shape != both[1].shape:
        return None
    return _product(call, both, both[0].elements, 1)


def _matmul(call: _Call) -> Work | None:
    """torch.matmul: a 1-D factor is a row or a column, leading dimensions broadcast."""
    both = call.tensors(0, 1)
    if both is None or not both[0].shape or not both[1].shape:
        return None
    a, b = _shapes(both)
    rows = (1, *a) if len(a) == 1 else a
    columns = (*b, 1) if len(b) == 1 else b
    batch = _broadcast([rows[:-2], columns[:-2]])
    if batch is None or rows[-1] != columns[-2]:
        return None
    return _product(call, both, rows[-1], math.prod(batch) * rows[-2] * columns[-1])


def _linear(call: _Call) -> Work | None:
    """linear(x [.., in], weight [out, in], bias [out]?) as one product; a trace also has its mm or addmm."""
    both = call.tensors(0, 1)
    if both is None or len(both[1].shape) != 2:
        return None
    x, (columns, k) = _shapes(both)
    return _product(call, both, k, math.prod(x[:-1]) * columns, call.tensor(2)) if x[-1:] == (k,) else None


# operator: positions of bias, stride, padding, dilation, transposed (None: it has no such argument)
_CONVOLUTIONS = {
    **dict.fromkeys(("convolution", "_convolution"), (2, 3, 4, 5, 6)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), (2, 3, 4, 5, None)),
    "cudnn_convolution": (None, 3, 2, 4, None),
    "mkldnn_convolution": (2, 4, 3, 5, None),
}


def _convolution(call: _Call) -> Work | None:
    """Direct convolution, 2·(in channels / groups)·kernel FLOPs an output; not the transposed ones."""
    bias_at, stride_at, padding_at, dilation_at, transposed_at = _CONVOLUTIONS[call.name]
    both = call.tensors(0, 1)
    if both is None or (transposed_at and call.value(transposed_at) is not False):
        return None
    x, weight = _shapes(both)  # [batch, in, *space] and [out, in / groups, *kernel]
    settings = [_per_dimension(call.value(p), len(weight) - 2) for p in (stride_at, padding_at, dilation_at)]
    if len(weight) < 3 or len(x) != len(weight) or None in settings or min(settings[0]) < 1:
        return None
    sizes = zip(x[2:], weight[2:], *settings, strict=True)
    space = [(n + 2 * pad - dil * (kernel - 1) - 1) // step + 1 for n, kernel, step, pad, dil in sizes]
    if not all(0 <= n < 2**63 for n in space):
        return None
    outputs = x[0] * weight[0] * math.prod(space)
    return _product(call, both, math.prod(weight[1:]), outputs, call.tensor(bias_at) if bias_at else None)


def _per_dimension(value: object, space: int) -> tuple[int, ...] | None:
    values = [value] * space if isinstance(value, int) else value
    if not isinstance(values, (list, tuple)) or not all(isinstance(v, int) for v in values):
        return None
    return tuple(values) * space if len(values) == 1 else tuple(values) if len(values) == space else None


# -------------------------------------------------------------------------------------------------- attention

# operator: position of the mask or bias, of is_causal, and whether heads come before the sequence
_ATTENTION = {
    "scaled_dot_product_attention": (3, 5, True),
    "_scaled_dot_product_attention_math": (3, 5, True),
    "_scaled_dot_product_flash_attention": (None, 4, True),
    "_scaled_dot_product_efficient_attention": (3, 6, True),
    "_scaled_dot_product_cudnn_attention": (3, 6, True),
    "_scaled_dot_product_fused_attention_overrideable": (3, 5, True),
    "_scaled_dot_product_flash_attention_for_cpu": (5, 4, True),
    "_flash_attention_forward": (None, 8, False),
    "_efficient_attention_forward": (3, 9, False),
    "_cudnn_attention_forward": (3, 10, True),
}
# the same of the backward operators, which take the gradient first and then q, k and v
_ATTENTION_BACKWARD = {
    "_scaled_dot_product_flash_attention_backward": (None, 11, True),
    "_scaled_dot_product_efficient_attention_backward": (4, 11, True),
    "_scaled_dot_product_cudnn_attention_backward": (8, 14, True),
    "_scaled_dot_product_fused_attention_overrideable_backward": (4, 13, True),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (8, 7, True),
    "_flash_attention_backward": (None, 11, False),
    "_efficient_attention_backward": (4, 14, False),
    "_cudnn_attention_backward": (8, 14, True),
}


def _attention_call(call: _Call) -> Work | None:
    mask_at, causal_at, heads_first = _ATTENTION[call.name]
    qkv = call.tensors(0, 1, 2)
    if qkv is None or not _fits(qkv, heads_first):
        return None
    # A flag, or custom_mask_type: 0 none, 1 causal, 2 causal and aligned bottom right, which skips no more.
    causal = call.value(causal_at) in (True, 1, 2)
    shapes = [t.shape if heads_first else _swapped(t.shape) for t in qkv]
    mask = call.tensor(mask_at) if mask_at is not None else None
    # What expand made of a tensor (keys shared between heads) is in memory once.
    unread = sum(t.elements - t.distinct for t in qkv) * itemsize(qkv[0].dtype)
    extra = (mask.bytes_read if mask else 0) - unread
    return _attention(f"aten::{call.name}", qkv[0].dtype, shapes, causal=causal, extra_bytes=extra)


def _fits(qkv: Sequence[_Tensor], heads_first: bool) -> bool:
    """Same rank, batch and widths; packed sequences (3-D, lengths kept elsewhere) are not covered."""
    q, k, v = _shapes(qkv)
    if not len(q) == len(k) == len(v) == 4:
        return heads_first and len(q) == len(k) == len(v) == 3 and q[0] == k[0] == v[0] and q[2] == k[2]
    return q[0] == k[0] == v[0] and q[3] == k[3] and k[1:3] == v[1:3]


def _swapped(shape: Shape) -> Shape:
    return (shape[0], shape[2], shape[1], shape[3])  # [B, L, H, D] -> [B, H, L, D]


def _attention_backward(call: _Call) -> Work | None:
    mask_at, causal_at, heads_first = _ATTENTION_BACKWARD[call.name]
    grad, qkv = call.tensor(0), call.tensors(1, 2, 3)
    if grad is None or qkv is None or not _fits(qkv, heads_first):
        return None
    shapes = [t.shape if heads_first else _swapped(t.shape) for t in qkv]
    mask = call.tensor(mask_at) if mask_at is not None else None
    read = grad.bytes_read + _read(qkv) + (mask.bytes_read if mask else 0)
    causal = call.value(causal_at) in (True, 1, 2)  # as above
    return _attention_gradients(f"aten::{call.name}", qkv[0].dtype, shapes, causal=causal, read_bytes=read)


_PRODUCTS = (_mm, _added_mm, _matmul, _linear, _dot, _mv, _addmv, _narrow_mm)
_RULES = {
    **dict.fromkeys(("mm", "bmm"), _mm),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "_addmm_activation"), _added_mm),
    "matmul": _matmul, "linear": _linear, "dot": _dot, "vdot": _dot,
    "mv": _mv, "addmv": _addmv, "addmv_": _addmv,
    "_int_mm": _narrow_mm, "_scaled_mm": _narrow_mm,
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_ATTENTION, _attention_call),
    **dict.fromkeys(_ATTENTION_BACKWARD, _attention_backward),
    "where": _where, "masked_fill": _masked_fill, "masked_fill_": _masked_fill,
    "dropout": _dropout, "native_dropout": _dropout,
    **dict.fromkeys(("fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_"), _fill),
    "copy_": _copy_into, "_to_copy": _to_copy, "contiguous": _contiguous,
    **dict.fromkeys(("clone", "flip", "roll"), _copy_of),
    "cat": _cat,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax"), _softmax),
    "_masked_softmax": _masked_softmax, "_transform_bias_rescale_qkv": _rescaled,
    "cumsum": _cumulative, "cumprod": _cumulative,
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    "native_layer_norm": lambda call: _norm(call, operations=8, statistics=2),
    "layer_norm": lambda call: _norm(call, operations=8, statistics=0),
    "_fused_rms_norm": lambda call: _norm(call, operations=4, statistics=1),
    "rms_norm": lambda call: _norm(call, operations=4, statistics=0),
    "native_layer_norm_backward": _layer_norm_backward,
    "embedding": _embedding, "index_select": _index_select, "gather": _gather,
}  # fmt: skip
