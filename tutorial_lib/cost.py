"""What an operation must do: FLOPs, bytes and vector arithmetic, from its shapes alone.

Covers matrix products, attention, pointwise operators, reductions, copies, lookups and sorting, and with
`cost_layers` what networks are built of and trained with, forward and where PyTorch has one operator for
it backward. `operator` reads a row of a trace; the other functions take sizes. Time is not known here (see
`predict`), nor which kernel runs, nor what a cache holds. Not covered are operators whose work hangs on
values (nonzero, masked_select, unique), and selections other than topk (median, kthvalue).
Three conventions hold everywhere:

- `flops` counts contractions only, 2·m·n·k each, as `torch.utils.flop_counter` does; they can run on tensor
  cores.
- `vector_flops` counts the arithmetic of everything else: the operations of the textbook formula, an exp,
  tanh, root or division as one. They run on CUDA cores or a CPU's vector units, at another rate, so the two
  are never added up.
- `bytes_moved` is compulsory traffic: each distinct input element read once, each output element written
  once. A broadcast or expanded input counts the elements it really holds.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING

from tutorial_lib import cost_layers, units
from tutorial_lib.cost_call import (
    Call,
    Cost,
    Shape,
    Tensor,
    Work,
    along,
    broadcast,
    bytes_of,
    category,
    contraction,
    elementwise,
    named_dtype,
    promoted,
    recorded,
    row_step,
    shapes_of,
    statistic_size,
    widest,
)
from tutorial_lib.units import dtype_name, itemsize

if TYPE_CHECKING:
    import pandas as pd


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
    moved = (2 * rows * columns + 2 * columns) * itemsize(dtype) + 2 * rows * statistic_size(dtype)
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
    whole; the ones it calls have theirs, so add up either the callers or the called. One that works and calls
    others besides (mse_loss its mean, nll_loss_backward the zeroing of its result) has the cost of its own
    part.
    """
    short = name.removeprefix("aten::").split(".")[0]  # add.Tensor is an overload of add
    rule = _rule(short)
    call = rule and recorded(short, shapes, dtypes, strides, concrete)
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
    return rule is None or rule in (*_PRODUCTS, *cost_layers.PRODUCTS, _attention_call, _attention_backward)


def _rule(name: str) -> "_Rule | None":
    if name.startswith("_foreach_"):
        inner = _rule(name.removeprefix("_foreach_"))
        return _foreach if name == "_foreach_norm" or inner not in (None, *_PRODUCTS) else None
    if name in _RULES or name in _POINTWISE:
        return _RULES.get(name, _pointwise_call)
    return _pointwise_in_place if name.endswith("_") and name[:-1] in _POINTWISE else None


_Rule = Callable[[Call], Work | None]
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
    (1, 3, "float", "softplus log_sigmoid log_sigmoid_forward elu selu celu hardsigmoid logit"),
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
    (2, 2, "first", "leaky_relu_backward native_dropout_backward _masked_scale"),
    (2, 3, "same", "tanh_backward sigmoid_backward"),  # g·(1 - y²), g·(1 - y)·y
    (2, 4, "same", "elu_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward"),
    (3, 4, "same", "log_sigmoid_backward"),
    (2, 9, "same", "silu_backward"),
    (2, 10, "same", "gelu_backward"),
    # the loss of each element; the mean or sum over them is an operator of its own
    (2, 2, "same", "mse_loss"),
    (2, 4, "same", "smooth_l1_loss huber_loss"),
    (3, 6, "same", "binary_cross_entropy"),
    (3, 3, "same", "mse_loss_backward"),
    (3, 4, "same", "smooth_l1_loss_backward huber_loss_backward"),
    (4, 7, "same", "binary_cross_entropy_backward"),
)
_POINTWISE = {
    name: (arity, operations, result)
    for arity, operations, result, names in _POINTWISE_ROWS
    for name in names.split()
}


def _pointwise_call(call: Call) -> Work | None:
    arity, per_element, result = _POINTWISE[call.name]
    read = [t for p in range(arity) if (t := call.tensor(p)) is not None]
    return elementwise(call, read, per_element, _result_dtype(read, result)) if read else None


def _pointwise_in_place(call: Call) -> Work | None:
    """`add_` and its kin read self and the rest and write self, whose dtype and shape stay."""
    arity, per_element, _ = _POINTWISE[call.name[:-1]]
    read = [t for p in range(arity) if (t := call.tensor(p)) is not None]
    if call.tensor(0) is None or broadcast(shapes_of(read)) != read[0].shape:
        return None
    return elementwise(call, read, per_element, read[0].dtype)


def _result_dtype(read: Sequence[Tensor], result: str) -> str:
    if result in ("first", "bool"):
        return read[0].dtype if result == "first" else "bool"
    dtype = promoted(read)
    return "float32" if result == "float" and category(dtype) < 2 else dtype


def _rescaled(call: Call) -> Work | None:
    """q, k and v [.., 3·D] with a bias added, and q multiplied by a number: 4 operations for 3 elements."""
    read = call.tensors(0, 1)
    work = None if read is None else elementwise(call, read, 0, read[0].dtype)
    return work and replace(work, cost=replace(work.cost, vector_flops=4 * read[0].elements // 3))


def _where(call: Call) -> Work | None:
    condition, branches = call.tensor(0), [t for p in (1, 2) if (t := call.tensor(p)) is not None]
    if condition is None or not branches:
        return None
    return elementwise(call, [condition, *branches], 0, promoted(branches))


def _masked_fill(call: Call) -> Work | None:
    """Reads self and mask; out of place PyTorch copies first and then fills, which moves more than this."""
    read = call.tensors(0, 1)
    return None if read is None else elementwise(call, read, 0, read[0].dtype)


def _dropout(call: Call) -> Work | None:
    """In training: reads the input, writes the output and a mask of one byte an element; else no work."""
    x = call.tensor(0)
    if x is None or not (call.value(2) is True or call.name == "_fused_dropout"):
        return None
    cost = Cost(0, x.bytes_read + x.elements * (itemsize(x.dtype) + 1), 2 * x.elements)
    return Work(f"aten::{call.name}", "pointwise", x.dtype, cost, (x.shape,))


def _glu(call: Call) -> Work | None:
    """Half of the input times the sigmoid of the other half."""
    x = call.tensor(0)
    if x is None or not x.shape:
        return None
    outputs = x.elements // 2
    cost = Cost(0, x.bytes_read + outputs * itemsize(x.dtype), 5 * outputs)
    return Work("aten::glu", "pointwise", x.dtype, cost, (x.shape,))


def _two_gradients(call: Call) -> Work | None:
    """Of prelu, in one kernel: of the input, and of the weight before it is added up, both of full size."""
    read = call.tensors(0, 1, 2)
    work = None if read is None else elementwise(call, read, 3, read[0].dtype)
    return work and replace(work, cost=work.cost + Cost(0, read[0].elements * itemsize(read[0].dtype)))


# ------------------------------------------------------------------------------------------- lists of tensors


def _foreach(call: Call) -> Work | None:
    """One operator for each tensor of its lists, in a few kernels: the sum of their costs.

    The lists count as one long tensor each. A norm is one number for each tensor.
    """
    inner = call.name.removeprefix("_foreach_")
    lists = [each for each in call.arguments if isinstance(each, tuple)]
    if not lists or len({len(each) for each in lists}) != 1 or None in lists[0]:
        return None
    each = [_of_list(call, inner, place) for place in range(len(lists[0]))]
    if None in each or any(work.kind not in ("pointwise", "copy", "reduction") for work in each):
        return None
    elements = sum(t.elements for t in lists[0])
    shapes, name = ((elements,),) * len(lists), f"aten::{call.name}"
    return Work(name, each[0].kind, each[0].dtype, total(each), shapes, rows=len(each))


def _of_list(call: Call, inner: str, place: int) -> Work | None:
    arguments = tuple(each[place] if isinstance(each, tuple) else each for each in call.arguments)
    if inner == "norm":
        x = arguments[0]
        cost = Cost(0, x.bytes_read + itemsize(x.dtype), 2 * x.elements)
        return Work("aten::norm", "reduction", x.dtype, cost, (x.shape,))
    rule = _rule(inner)
    return rule(Call(inner, arguments, call.concrete)) if rule else None


def _unscale(call: Call) -> Work | None:
    """A GradScaler's list of gradients, multiplied in place by one number and looked through for inf, nan."""
    parts = call.arguments[0] if call.arguments else None
    if not isinstance(parts, tuple) or not parts or None in parts:
        return None
    elements = sum(t.elements for t in parts)
    moved = bytes_of(parts) + sum(t.elements * itemsize(t.dtype) for t in parts)
    cost = Cost(0, moved, 2 * elements)
    return Work(f"aten::{call.name}", "pointwise", parts[0].dtype, cost, ((elements,),))


# ----------------------------------------------------------------------------------------------------- copies


def _fill(call: Call) -> Work | None:
    x = call.tensor(0)
    if x is None:
        return None
    return Work(f"aten::{call.name}", "copy", x.dtype, Cost(0, x.elements * itemsize(x.dtype)), (x.shape,))


def _arange(call: Call) -> Work | None:
    """Start, end and step, or the end alone, and then what they are written to, which may still be empty."""
    place = next((p for p, argument in enumerate(call.arguments) if isinstance(argument, Tensor)), 0)
    numbers = [call.value(p) for p in range(place)]
    if place not in (1, 3) or not all(type(n) in (int, float) and abs(n) < 2**63 for n in numbers):
        return None
    start, end, step = numbers if place == 3 else (0, numbers[0], 1)
    if step == 0 or (end - start) / step < 0:
        return None
    out = call.tensor(place)
    elements = math.ceil((end - start) / step)
    return Work("aten::arange", "copy", out.dtype, Cost(0, elements * itemsize(out.dtype)), ((elements,),))


def _to_host(call: Call) -> Work | None:
    """One element that goes to the CPU, as in item()."""
    x = call.tensor(0)
    if x is None or x.elements != 1:
        return None
    return Work(f"aten::{call.name}", "copy", x.dtype, Cost(0, 2 * itemsize(x.dtype)), (x.shape,))


def _copy_into(call: Call) -> Work | None:
    both = call.tensors(0, 1)
    if both is None or broadcast(shapes_of(both)) != both[0].shape:
        return None
    target, source = both
    moved = source.bytes_read + target.elements * itemsize(target.dtype)
    return Work("aten::copy_", "copy", target.dtype, Cost(0, moved), shapes_of(both))


def _copy_of(call: Call, dtype: str | None = None) -> Work | None:
    x = call.tensor(0)
    if x is None:
        return None
    target = dtype or x.dtype
    moved = x.bytes_read + x.elements * itemsize(target)
    return Work(f"aten::{call.name}", "copy", target, Cost(0, moved), (x.shape,))


def _contiguous(call: Call) -> Work | None:
    """A copy only when the strides show that there is something to rearrange."""
    x = call.tensor(0)
    if x is None or x.strides is None or len(x.strides) != len(x.shape):
        return None
    expected, dense = 1, True
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        dense &= size == 1 or stride == expected
        expected *= size
    return None if dense else _copy_of(call)


def _to_copy(call: Call) -> Work | None:
    if not call.concrete:
        return None
    dtype = named_dtype(call.value(1)) if call.says(1) else None
    return None if call.says(1) and dtype is None else _copy_of(call, dtype)


def _cat(call: Call) -> Work | None:
    parts = call.arguments[0] if call.arguments else None
    if not isinstance(parts, tuple) or not parts or not all(isinstance(t, Tensor) for t in parts):
        return None
    dtype = widest([t.dtype for t in parts])
    moved = bytes_of(parts) + sum(t.elements for t in parts) * itemsize(dtype)
    return Work(f"aten::{call.name}", "copy", dtype, Cost(0, moved), shapes_of(parts))


# ------------------------------------------------------------------------------------------------- reductions

# operator: (position of dim, of dtype, of `out`)
_REDUCTIONS: dict[str, tuple[int, int | None, int | None]] = {
    **dict.fromkeys(("sum", "nansum", "mean", "prod"), (1, 3, 4)),
    **dict.fromkeys(("amax", "amin", "argmax", "argmin", "any", "all", "logsumexp"), (1, None, 3)),
    **dict.fromkeys(("max", "min", "var", "std", "var_mean", "std_mean", "aminmax"), (1, None, None)),
    "linalg_vector_norm": (2, 4, 5),
}
# The overload that reduces everything has this many arguments at most; in that of sum, mean, prod the second
# is dtype.
_WHOLE = {"sum": 2, "nansum": 2, "mean": 2, "prod": 2, "any": 1, "all": 1, "max": 1, "min": 1}


def _reduction(call: Call) -> Work | None:
    x = call.tensor(0)
    if x is None:
        return None
    if call.name in ("max", "min") and call.tensor(1) is not None:  # max(self, other)
        return elementwise(call, [x, call.tensor(1)], 1, promoted([x, call.tensor(1)]))
    outputs = _outputs(call, x)
    if outputs is None:
        return None
    operations = {"linalg_vector_norm": 2, "logsumexp": 2, "aminmax": 2}.get(call.name, 1)
    operations = 4 if call.name in ("var", "std", "var_mean", "std_mean") else operations
    cost = Cost(0, x.bytes_read + outputs * _result_bytes(call, x), operations * x.elements)
    step = row_step(x.shape, _reduced(call, x) or ())
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, (x.shape,), rows=outputs, row_step=step)


def _outputs(call: Call, x: Tensor) -> int | None:
    """How many results: from a recorded `out`, or from the dimensions reduced."""
    out_at = _REDUCTIONS[call.name][2]
    if out_at is not None and (out := call.tensor(out_at)) is not None:
        return out.elements
    reduced = _reduced(call, x)
    return None if reduced is None else math.prod(n for i, n in enumerate(x.shape) if i not in reduced)


def _reduced(call: Call, x: Tensor) -> set[int] | None:
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


def _reduces_all(call: Call) -> bool:
    dims = call.value(_REDUCTIONS[call.name][0])
    return len(call.arguments) <= _WHOLE.get(call.name, 0) and not isinstance(dims, (list, tuple))


def _result_bytes(call: Call, x: Tensor) -> int:
    """Bytes of one result: an index is int64, a flag one byte, max over a dimension a value and an index."""
    if call.name in ("argmax", "argmin", "any", "all"):
        return 8 if call.name.startswith("arg") else 1
    if call.name in ("max", "min"):
        return itemsize(x.dtype) + (0 if _reduces_all(call) else 8)
    if call.name in ("var_mean", "std_mean", "aminmax"):
        return 2 * itemsize(x.dtype)
    dtype_at = 1 if _reduces_all(call) else _REDUCTIONS[call.name][1]
    if dtype_at is not None and call.says(dtype_at) and (named := named_dtype(call.value(dtype_at))):
        return itemsize(named)
    if call.name in ("sum", "nansum", "prod") and category(x.dtype) < 2:
        return 8  # integers are summed in int64
    return itemsize(x.dtype)


def _softmax(call: Call) -> Work | None:
    """Softmax and log-softmax; with half_to_float (argument 2 of the inner ones) the result is float32."""
    x = call.tensor(0)
    if x is None:
        return None
    widened = call.name in ("_softmax", "_log_softmax") and call.value(2) is True
    work = elementwise(call, [x], 5, "float32" if widened else x.dtype, kind="reduction")
    return along(call.value(1), work)


def _masked_softmax(call: Call) -> Work | None:
    """Softmax of scores, of which a mask (one byte each, in memory as it is) hides some."""
    both = call.tensors(0, 1)
    work = None if both is None else elementwise(call, both[:1], 5, both[0].dtype, kind="reduction")
    if work is None:
        return None
    work = replace(work, cost=work.cost + Cost(0, both[1].bytes_read), shapes=shapes_of(both))
    return along(call.value(2), work)


def _cumulative(call: Call) -> Work | None:
    x = call.tensor(0)
    if x is None:
        return None
    operations = 4 if call.name == "_logcumsumexp" else 1
    return along(call.value(1), elementwise(call, [x], operations, x.dtype, kind="reduction"))


def _topk(call: Call) -> Work | None:
    """Reads all and writes the k largest of each row, with their int64 indices."""
    x, k, dim = call.tensor(0), call.value(1), call.value(2)
    if x is None or type(k) is not int or type(dim) is not int or not -len(x.shape) <= dim < len(x.shape):
        return None
    if not 0 <= k <= x.shape[dim]:
        return None
    outputs = k * math.prod(n for d, n in enumerate(x.shape) if d != dim % len(x.shape))
    cost = Cost(0, x.bytes_read + outputs * (itemsize(x.dtype) + 8), x.elements)
    return along(dim, Work("aten::topk", "reduction", x.dtype, cost, (x.shape,)))


def _sort(call: Call) -> Work | None:
    """Reads all and writes it in order, with int64 indices: the least there is, for sorting takes passes."""
    x = call.tensor(0)
    if x is None:
        return None
    cost = Cost(0, x.bytes_read + x.elements * (itemsize(x.dtype) + 8), x.elements)
    given = (call.value(1), call.value(2))  # a flag, stable, may stand before the dimension
    dim = next((value for value in given if type(value) is int), None)
    return along(dim, Work("aten::sort", "reduction", x.dtype, cost, (x.shape,)))


def _histogram(call: Call) -> Work | None:
    """Reads all and writes a number for each of so many bins."""
    x, bins = call.tensor(0), call.value(1)
    if x is None or type(bins) is not int or not 1 <= bins < 2**63:
        return None
    cost = Cost(0, x.bytes_read + bins * itemsize(x.dtype), 2 * x.elements)
    return Work("aten::histc", "reduction", x.dtype, cost, (x.shape,), rows=1)


def _softmax_backward(call: Call) -> Work | None:
    """Reads the gradient and the forward result, writes a gradient of dtype `input_dtype`."""
    read = call.tensors(0, 1)
    if read is None:
        return None
    named = named_dtype(call.value(3)) if call.says(3) else None
    return along(call.value(2), elementwise(call, read, 4, named or read[1].dtype, kind="reduction"))


# ---------------------------------------------------------------------------------------------------- lookups


def _embedding(call: Call) -> Work | None:
    """Reads the indices and each row they can name once, writes one row per index."""
    both = call.tensors(0, 1)
    if both is None or len(both[0].shape) != 2:
        return None
    (rows, width), indices, size = both[0].shape, both[1], itemsize(both[0].dtype)
    moved = indices.bytes_read + (min(rows, indices.elements) + indices.elements) * width * size
    return Work("aten::embedding", "other", both[0].dtype, Cost(0, moved), shapes_of(both))


def _index_select(call: Call) -> Work | None:
    both, dim = call.tensors(0, 2), call.value(1)
    if both is None or not isinstance(dim, int) or not -len(both[0].shape) <= dim < len(both[0].shape):
        return None
    x, indices = both
    if x.elements == 0:
        return None
    slice_bytes = x.elements // x.shape[dim] * itemsize(x.dtype)
    moved = indices.bytes_read + (min(x.shape[dim], indices.elements) + indices.elements) * slice_bytes
    return Work("aten::index_select", "other", x.dtype, Cost(0, moved), shapes_of(both))


def _gather(call: Call) -> Work | None:
    both = call.tensors(0, 2)
    if both is None:
        return None
    x, indices = both
    moved = indices.bytes_read + (min(x.elements, indices.elements) + indices.elements) * itemsize(x.dtype)
    return Work("aten::gather", "other", x.dtype, Cost(0, moved), shapes_of(both))


def _embedding_backward(call: Call) -> Work | None:
    """Reads gradient [.., width] and indices; adds, in a zeroed gradient, to each row that they can name."""
    both, rows = call.tensors(0, 1), call.value(2)
    if both is None or not both[0].shape or type(rows) is not int or rows < 0:
        return None
    grad, indices = both
    touched = min(rows, indices.elements) * grad.shape[-1]
    cost = Cost(0, bytes_of([grad, indices]) + touched * itemsize(grad.dtype), grad.elements)
    return Work("aten::embedding_dense_backward", "other", grad.dtype, cost, shapes_of(both))


# operator: position of what is written (None: a number), and whether it is added to what is there
_SCATTERS = {
    **dict.fromkeys(("scatter", "scatter_"), (3, False)),
    **dict.fromkeys(("scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"), (3, True)),
}


def _scatter(call: Call) -> Work | None:
    """Writes, or adds, an element for each index; out of place another operator copies self first."""
    source_at, adds = _SCATTERS[call.name]
    both, source = call.tensors(0, 2), call.tensor(source_at)
    if both is None:
        return None
    x, indices = both
    read = 0
    if source is not None and source.shape:  # of a larger one only what has an index
        read = min(source.distinct, indices.elements) * itemsize(source.dtype)
    touched = min(x.elements, indices.elements) * itemsize(x.dtype)
    cost = Cost(0, indices.bytes_read + read + (1 + adds) * touched, adds * indices.elements)
    return Work(f"aten::{call.name}", "other", x.dtype, cost, shapes_of(both))


_BY_SLICE = {
    **dict.fromkeys(("index_add", "index_add_"), True),
    **dict.fromkeys(("index_copy", "index_copy_", "index_fill", "index_fill_"), False),
}


def _slices(call: Call) -> Work | None:
    """Writes, or adds, a slice along a dimension for each index; each that can be named is touched once."""
    adds, both, source, dim = _BY_SLICE[call.name], call.tensors(0, 2), call.tensor(3), call.value(1)
    if both is None or type(dim) is not int or not -len(both[0].shape) <= dim < len(both[0].shape):
        return None
    x, indices = both
    if x.elements == 0:
        return None
    touched = min(x.shape[dim], indices.elements) * (x.elements // x.shape[dim]) * itemsize(x.dtype)
    moved = indices.bytes_read + bytes_of([source] if source else []) + (1 + adds) * touched
    cost = Cost(0, moved, source.elements if adds and source else 0)
    return Work(f"aten::{call.name}", "other", x.dtype, cost, shapes_of(both))


def _index(call: Call) -> Work | None:
    """x[indices], by lists of whole numbers; each element that they can name is read once.

    A trace records nothing of them, for some may be missing in the list, and then nothing follows.
    """
    x, found = call.tensor(0), _named(call)
    if x is None or found is None:
        return None
    results, indices = found
    moved = bytes_of(indices) + (min(x.distinct, results) + results) * itemsize(x.dtype)
    return Work(f"aten::{call.name}", "other", x.dtype, Cost(0, moved), shapes_of([x, *indices]))


def _named(call: Call) -> tuple[int, list[Tensor]] | None:
    """How many elements the indices name, and they; None for masks, which name as many as they hold."""
    x, entries = call.tensor(0), call.arguments[1] if len(call.arguments) > 1 else None
    if x is None or not isinstance(entries, tuple) or len(entries) > len(x.shape):
        return None
    indices = [t for t in entries if t is not None]
    common = broadcast(shapes_of(indices))
    if not indices or common is None or any(t.dtype in ("bool", "uint8") for t in indices):
        return None
    whole = [n for d, n in enumerate(x.shape) if d >= len(entries) or entries[d] is None]
    return math.prod(common) * math.prod(whole), indices


def _index_put(call: Call) -> Work | None:
    """Writes the values, or adds them, to the places that the indices name.

    Where a trace has nothing of the indices, values of as many dimensions as self, and none of them 1, are
    taken for one to a place: what is broadcast has fewer. Out of place another operator copies self first.
    """
    both, adds, found = call.tensors(0, 2), call.value(3), _named(call)
    if both is None or not isinstance(adds, bool):
        return None
    x, values = both
    if found is None:
        if len(call.arguments) < 2 or call.arguments[1] is not None:
            return None
        if len(values.shape) < len(x.shape) or 1 in values.shape:
            return None
    places, indices = found or (values.elements, [])
    touched = min(x.elements, places) * itemsize(x.dtype)
    cost = Cost(0, bytes_of([*indices, values]) + (1 + adds) * touched, adds * places)
    return Work(f"aten::{call.name}", "other", x.dtype, cost, shapes_of([x, *indices]))


# -------------------------------------------------------------------------------------------- matrix products


def _mm(call: Call, *, first: int = 0) -> Work | None:
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
    return contraction(call, both, a.shape[-1], outputs, added)


def _added_mm(call: Call) -> Work | None:
    return _mm(call, first=1)


def _narrow_mm(call: Call) -> Work | None:
    """_int_mm, which writes int32, and _scaled_mm, whose output dtype is argument 6; 8-bit factors."""
    both = call.tensors(0, 1)
    to = "int32" if call.name == "_int_mm" else named_dtype(call.value(6))
    if both is None or to is None or any(len(t.shape) != 2 for t in both):
        return None
    (m, k), (rows, n) = shapes_of(both)
    return contraction(call, both, k, m * n, to=to) if k == rows else None


def _grouped_mm(call: Call) -> Work | None:
    """Groups of rows, each with a matrix of its own: [m, k] @ [groups, k, n], and the end of each group.

    Also groups of columns, [groups, m, k] @ [k, n], of the contraction, [m, k] @ [k, n] with a result for
    each, and batches. The groups are taken to cover all of what they divide: no trace records their ends.
    """
    both, offsets = call.tensors(0, 1), call.tensor(2)
    if both is None or any(len(t.shape) not in (2, 3) for t in both):
        return None
    a, b = shapes_of(both)
    batched = len(a) == len(b) == 3
    if a[-1] != b[-2] or (batched and a[0] != b[0]) or (offsets is None) != batched:
        return None
    outputs, to = a[-2] * b[-1] * (a[0] if batched else 1), call.value(4)
    dtype = named_dtype(to) if to is not None else both[0].dtype
    if dtype is None:
        return None
    work = contraction(call, both, a[-1], outputs, to=dtype)
    more = offsets.elements - 1 if len(a) == len(b) == 2 else 0
    return replace(work, cost=work.cost + Cost(0, max(0, more) * outputs * itemsize(dtype)))


def _mv(call: Call, *, first: int = 0) -> Work | None:
    both = call.tensors(first, first + 1)
    if both is None or len(both[0].shape) != 2 or both[1].shape != both[0].shape[1:]:
        return None
    m, k = both[0].shape
    added = call.tensor(0) if first and call.value(3) != 0 else None  # beta = 0: nothing is added
    return contraction(call, both, k, m, added)


def _addmv(call: Call) -> Work | None:
    return _mv(call, first=1)


def _dot(call: Call) -> Work | None:
    both = call.tensors(0, 1)
    if both is None or len(both[0].shape) != 1 or both[0].shape != both[1].shape:
        return None
    return contraction(call, both, both[0].elements, 1)


def _matmul(call: Call) -> Work | None:
    """torch.matmul: a 1-D factor is a row or a column, leading dimensions broadcast."""
    both = call.tensors(0, 1)
    if both is None or not both[0].shape or not both[1].shape:
        return None
    a, b = shapes_of(both)
    rows = (1, *a) if len(a) == 1 else a
    columns = (*b, 1) if len(b) == 1 else b
    batch = broadcast([rows[:-2], columns[:-2]])
    if batch is None or rows[-1] != columns[-2]:
        return None
    return contraction(call, both, rows[-1], math.prod(batch) * rows[-2] * columns[-1])


def _linear(call: Call) -> Work | None:
    """linear(x [.., in], weight [out, in], bias [out]?) as one product; a trace also has its mm or addmm."""
    both = call.tensors(0, 1)
    if both is None or len(both[1].shape) != 2:
        return None
    x, (columns, k) = shapes_of(both)
    return contraction(call, both, k, math.prod(x[:-1]) * columns, call.tensor(2)) if x[-1:] == (k,) else None


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


def _attention_call(call: Call) -> Work | None:
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


def _fits(qkv: Sequence[Tensor], heads_first: bool) -> bool:
    """Same rank, batch and widths; packed sequences (3-D, lengths kept elsewhere) are not covered."""
    q, k, v = shapes_of(qkv)
    if not len(q) == len(k) == len(v) == 4:
        return heads_first and len(q) == len(k) == len(v) == 3 and q[0] == k[0] == v[0] and q[2] == k[2]
    return q[0] == k[0] == v[0] and q[3] == k[3] and k[1:3] == v[1:3]


def _swapped(shape: Shape) -> Shape:
    return (shape[0], shape[2], shape[1], shape[3])  # [B, L, H, D] -> [B, H, L, D]


def _attention_backward(call: Call) -> Work | None:
    mask_at, causal_at, heads_first = _ATTENTION_BACKWARD[call.name]
    grad, qkv = call.tensor(0), call.tensors(1, 2, 3)
    if grad is None or qkv is None or not _fits(qkv, heads_first):
        return None
    shapes = [t.shape if heads_first else _swapped(t.shape) for t in qkv]
    mask = call.tensor(mask_at) if mask_at is not None else None
    read = grad.bytes_read + bytes_of(qkv) + (mask.bytes_read if mask else 0)
    causal = call.value(causal_at) in (True, 1, 2)  # as above
    return _attention_gradients(f"aten::{call.name}", qkv[0].dtype, shapes, causal=causal, read_bytes=read)


_PRODUCTS = (_mm, _added_mm, _matmul, _linear, _dot, _mv, _addmv, _narrow_mm, _grouped_mm)
_RULES = {
    **cost_layers.RULES,
    **dict.fromkeys(("mm", "bmm"), _mm),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "_addmm_activation"), _added_mm),
    "matmul": _matmul, "linear": _linear, "dot": _dot, "vdot": _dot,
    "mv": _mv, "addmv": _addmv, "addmv_": _addmv,
    "_int_mm": _narrow_mm, "_scaled_mm": _narrow_mm, "_grouped_mm": _grouped_mm,
    **dict.fromkeys(_ATTENTION, _attention_call),
    **dict.fromkeys(_ATTENTION_BACKWARD, _attention_backward),
    "where": _where, "masked_fill": _masked_fill, "masked_fill_": _masked_fill,
    **dict.fromkeys(("dropout", "native_dropout", "_fused_dropout"), _dropout),
    "glu": _glu, "_prelu_kernel_backward": _two_gradients,
    **dict.fromkeys(("fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_"), _fill),
    "exponential_": _fill,
    "arange": _arange, "_local_scalar_dense": _to_host,
    "copy_": _copy_into, "_to_copy": _to_copy, "contiguous": _contiguous,
    **dict.fromkeys(("clone", "flip", "roll", "pixel_shuffle", "pixel_unshuffle"), _copy_of),
    "cat": _cat,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax"), _softmax),
    "_masked_softmax": _masked_softmax, "_transform_bias_rescale_qkv": _rescaled,
    "cumsum": _cumulative, "cumprod": _cumulative, "_logcumsumexp": _cumulative,
    "topk": _topk, "sort": _sort, "histc": _histogram,
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    "embedding": _embedding, "embedding_dense_backward": _embedding_backward,
    "index_select": _index_select, "gather": _gather, "index": _index, "_unsafe_index": _index,
    **dict.fromkeys(_SCATTERS, _scatter), **dict.fromkeys(_BY_SLICE, _slices),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"), _index_put),
    "_amp_foreach_non_finite_check_and_unscale_": _unscale,
}  # fmt: skip
