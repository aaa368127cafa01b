"""What the layers of networks cost: convolutions, norms, pooling, resizing, losses, cells, optimizers.

One rule for each operator that launches their kernels, forward and backward, under every name that PyTorch
has for it (its own kernels, cuDNN's, MIOpen's, oneDNN's). The conventions are those of `cost`, which looks
the rules up; argument positions are those of torch's schemas. An operator that has its result zeroed first
calls aten::zero_ for that, and only what it does itself is counted here.

A rule says None where the answer hangs on what was not recorded: the stride of a convolution, the flag that
tells training from inference, the mask of the gradients that are wanted. Recurrent layers on a GPU
(`_cudnn_rnn`, `miopen_rnn`) have no rule: their FLOPs would follow, but each step waits for the one before,
and no time follows from a sum. Fractional pooling and anti-aliased resizing have none, for how much their
windows overlap hangs on more than shapes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tutorial_lib.cost_call import (
    Call,
    Cost,
    Shape,
    Tensor,
    Work,
    bytes_of,
    row_step,
    shapes_of,
    statistic_size,
)
from tutorial_lib.units import itemsize


def _given(call: Call, *positions: int | None) -> list[Tensor]:
    """The tensors that were given at these positions."""
    return [t for p in positions if p is not None and (t := call.tensor(p)) is not None]


def _mask(call: Call, position: int, entries: int) -> list[bool] | None:
    """Which gradients are wanted, None when that was not recorded."""
    mask = call.value(position)
    if not isinstance(mask, (list, tuple)) or len(mask) != entries:
        return None
    return list(mask) if all(isinstance(wanted, bool) for wanted in mask) else None


def _per_dimension(value: object, space: int) -> tuple[int, ...] | None:
    """One whole number for each dimension of space, from one for all of them or a list."""
    values = [value] * space if isinstance(value, int) else value
    if not isinstance(values, (list, tuple)) or not all(isinstance(v, int) for v in values):
        return None
    return tuple(values) * space if len(values) == 1 else tuple(values) if len(values) == space else None


def _sizes(value: object, dimensions: int) -> tuple[int, ...] | None:
    """A list of so many sizes that a tensor can have."""
    sizes = _per_dimension(value, dimensions)
    return sizes if sizes and all(0 <= size < 2**63 for size in sizes) else None


# ----------------------------------------------------------------------------------------------- convolutions


@dataclass(frozen=True)
class _Places:
    """Where a convolution's arguments stand, None for one that it does not have.

    `transposed` is None where a flag says it, at `_FLAG`; `addend` is added to the result as a bias is.
    """

    stride: int
    padding: int
    dilation: int | None = None
    groups: int | None = None
    bias: int | None = None
    addend: int | None = None
    output_padding: int | None = None
    transposed: bool | None = False


_FLAG = 6
_LIBRARY = _Places(bias=2, padding=3, stride=4, dilation=5, groups=6)
_CONVOLUTIONS = {
    **dict.fromkeys(
        ("convolution", "_convolution", "convolution_overrideable"),
        _Places(bias=2, stride=3, padding=4, dilation=5, output_padding=7, groups=8, transposed=None),
    ),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "cudnn_convolution_relu", "miopen_convolution_relu"),
        _Places(bias=2, stride=3, padding=4, dilation=5, groups=6),
    ),
    **dict.fromkeys(
        ("cudnn_convolution_add_relu", "miopen_convolution_add_relu"),
        _Places(addend=2, bias=4, stride=5, padding=6, dilation=7, groups=8),
    ),
    **dict.fromkeys(("mkldnn_convolution", "miopen_convolution", "miopen_depthwise_convolution"), _LIBRARY),
    "cudnn_convolution": _Places(padding=2, stride=3, dilation=4, groups=5),
    **dict.fromkeys(
        ("_slow_conv2d_forward", "thnn_conv2d", "slow_conv3d_forward", "slow_conv3d"),
        _Places(bias=3, stride=4, padding=5),
    ),
    **dict.fromkeys(
        ("slow_conv_dilated2d", "slow_conv_dilated3d", "_conv_depthwise2d", "conv_depthwise3d"),
        _Places(bias=3, stride=4, padding=5, dilation=6),
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        _Places(bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, transposed=True),
    ),
    "cudnn_convolution_transpose": _Places(
        padding=2, output_padding=3, stride=4, dilation=5, groups=6, transposed=True
    ),
    "miopen_convolution_transpose": _Places(
        bias=2, padding=3, output_padding=4, stride=5, dilation=6, groups=7, transposed=True
    ),
    **dict.fromkeys(
        ("slow_conv_transpose2d", "slow_conv_transpose3d"),
        _Places(bias=3, stride=4, padding=5, output_padding=6, dilation=7, transposed=True),
    ),
}


def _convolution(call: Call) -> Work | None:
    """Direct convolution of x [batch, in, *space] with a weight [out, in / groups, *kernel].

    2·(in / groups)·kernel FLOPs an output; the transposed one, whose weight is [in, out / groups, *kernel],
    spreads each input over (out / groups)·kernel outputs. Winograd's and FFT kernels multiply less.
    """
    places, both = _CONVOLUTIONS[call.name], call.tensors(0, 1)
    transposed = call.value(_FLAG) if places.transposed is None else places.transposed
    if both is None or not isinstance(transposed, bool):
        return None
    written = _written(call, places, *shapes_of(both), transposed)
    if written is None:
        return None
    (x, weight), added = both, _given(call, places.bias, places.addend)
    outputs = math.prod(written)
    flops = 2 * (x.elements if transposed else outputs) * math.prod(weight.shape[1:])
    cost = Cost(flops, bytes_of([*both, *added]) + outputs * itemsize(x.dtype), len(added) * outputs)
    in_order = [t for t in call.arguments if any(t is r for r in (*both, *added))]
    return Work(f"aten::{call.name}", "gemm", x.dtype, cost, shapes_of(in_order))


def _written(call: Call, places: _Places, x: Shape, weight: Shape, transposed: bool) -> Shape | None:
    """The shape of the result, None where the arguments do not fit each other."""
    space, groups = len(weight) - 2, 1 if places.groups is None else call.value(places.groups)
    if space < 1 or len(x) != len(weight) or not isinstance(groups, int) or groups < 1:
        return None
    if x[1] != (weight[0] if transposed else weight[1] * groups) and places.groups is not None:
        return None
    settings = [
        (default,) * space if place is None else _per_dimension(call.value(place), space)
        for place, default in (
            (places.stride, 1),
            (places.padding, 0),
            (places.dilation, 1),
            (places.output_padding if transposed else None, 0),
        )
    ]
    if None in settings or min(settings[0]) < 1:
        return None
    length = _stretched if transposed else _window_count
    sizes = [length(*each) for each in zip(x[2:], weight[2:], *settings, strict=True)]
    channels = weight[1] * groups if transposed else weight[0]
    return (x[0], channels, *sizes) if all(0 <= n < 2**63 for n in (channels, *sizes)) else None


def _window_count(n: int, kernel: int, stride: int, padding: int, dilation: int, extra: int = 0) -> int:
    return (n + 2 * padding - dilation * (kernel - 1) - 1 + extra) // stride + 1


def _stretched(n: int, kernel: int, stride: int, padding: int, dilation: int, extra: int) -> int:
    return (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1


# operator: positions of the transposed flag (None: it has none) and of the mask
_CONVOLUTIONS_BACKWARD = {
    "convolution_backward": (7, 10),
    "convolution_backward_overrideable": (6, 9),
    "_slow_conv2d_backward": (None, 6),
}


def _convolution_backward(call: Call) -> Work | None:
    """Gradients of input, weight and bias, those that the mask wants; the first two cost a forward pass each.

    With groups that is what is multiplied: torch's counter takes a weight's gradient for one without groups
    and counts `groups` times as much.
    """
    flag_at, mask_at = _CONVOLUTIONS_BACKWARD[call.name]
    read, mask = call.tensors(0, 1, 2), _mask(call, mask_at, 3)
    transposed = False if flag_at is None else call.value(flag_at)
    if read is None or mask is None or not isinstance(transposed, bool):
        return None
    grad, x, weight = read
    if len(weight.shape) < 3 or not len(grad.shape) == len(x.shape) == len(weight.shape):
        return None
    one = 2 * (x if transposed else grad).elements * math.prod(weight.shape[1:])
    size = itemsize(x.dtype)
    moved = grad.bytes_read + mask[0] * (weight.bytes_read + x.elements * size)
    moved += mask[1] * (x.bytes_read + weight.elements * size) + mask[2] * grad.shape[1] * size
    cost = Cost((mask[0] + mask[1]) * one, moved, mask[2] * grad.elements)
    return Work(f"aten::{call.name}", "gemm", x.dtype, cost, shapes_of([x, weight, grad]))


# ------------------------------------------------------------------------------------------------------ norms


def _norm(call: Call, *, operations: int, statistics: int) -> Work | None:
    """Layer or RMS norm: input, then normalized_shape, weight and (layer norm) bias where they are given."""
    x, parameters = call.tensor(0), [t for p in (2, 3) if (t := call.tensor(p)) is not None and t.shape]
    row = _row_length(call, x, parameters)
    if x is None or row is None:
        return None
    moved = x.bytes_read + x.elements * itemsize(x.dtype) + bytes_of(parameters)
    rows = x.elements // row if row else 0
    moved += statistics * rows * statistic_size(x.dtype)
    cost = Cost(0, moved, operations * x.elements)
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, shapes_of([x, *parameters]), rows=rows)


def _row_length(call: Call, x: Tensor | None, parameters: Sequence[Tensor]) -> int | None:
    shape = call.value(1)
    if isinstance(shape, (list, tuple)):
        return math.prod(shape) if all(isinstance(size, int) and size >= 0 for size in shape) else None
    return parameters[0].elements if x is not None and parameters else None


def _layer_norm_backward(call: Call) -> Work | None:
    """Reads gradient, input, statistics and weight; writes gradients of input, weight and bias."""
    read = call.tensors(0, 1, 3, 4)
    if read is None:
        return None
    parameters = [t for p in (5, 6) if (t := call.tensor(p)) is not None]
    x = read[1]
    moved = bytes_of(read) + bytes_of(parameters[:1]) + x.elements * itemsize(x.dtype) + bytes_of(parameters)
    cost = Cost(0, moved, 12 * x.elements)
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, shapes_of([*read, *parameters]))


def _rms_norm_backward(call: Call) -> Work | None:
    """Reads gradient, input, 1/rms and weight; writes the gradients that the mask wants.

    9 operations an element: x·1/rms; g·w and its dot product with that; three more for dx, two for dw.
    """
    read, mask = call.tensors(0, 1, 3), _mask(call, 5, 2)
    if read is None or mask is None:
        return None
    _, x, statistics = read
    weight = _given(call, 4)
    moved = bytes_of([*read, *weight]) + mask[0] * x.elements * itemsize(x.dtype) + mask[1] * bytes_of(weight)
    shapes = shapes_of([*read, *weight])
    cost = Cost(0, moved, 9 * x.elements)
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, shapes, rows=statistics.elements)


# Batch norms that always learn from the batch, and those that never do; the others have a flag for it.
_TRAINING = {
    "_batch_norm_with_update": True,
    "_batch_norm_with_update_functional": True,
    "_native_batch_norm_legit_no_training": False,
    "_batch_norm_no_update": False,
}
_BATCH_NORMS = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    *_TRAINING,
)


def _batch_norm(call: Call) -> Work | None:
    """x [batch, channels, *space], then weight, bias, running mean and variance where they are given.

    In training the running statistics are written as well, and the batch's own, mean and 1/σ, are kept: 8
    operations an element as in a layer norm. In inference the 4 that use the statistics remain, and nothing
    is reduced.
    """
    x, training = call.tensor(0), _TRAINING.get(call.name, call.value(3 if len(call.arguments) == 6 else 5))
    if x is None or len(x.shape) < 2 or not isinstance(training, bool):
        return None
    running = _given(call, 3, 4)
    moved = x.bytes_read + x.elements * itemsize(x.dtype) + bytes_of([*_given(call, 1, 2), *running])
    if not training:
        return _mapped(call, [x], Cost(0, moved, 4 * x.elements))
    moved += bytes_of(running) + 2 * x.shape[1] * statistic_size(x.dtype)
    return _by_channel(call, [x], Cost(0, moved, 8 * x.elements))


def _by_channel(call: Call, read: Sequence[Tensor], cost: Cost) -> Work:
    """A reduction over everything but the channels, dimension 1."""
    shape = read[0].shape
    step = row_step(shape, [d for d in range(len(shape)) if d != 1])
    name, dtype = f"aten::{call.name}", read[0].dtype
    return Work(name, "reduction", dtype, cost, shapes_of(read), rows=shape[1], row_step=step)


def _mapped(call: Call, read: Sequence[Tensor], cost: Cost) -> Work:
    """Element by element over `read`; what there is one of for each channel is not among its shapes."""
    return Work(f"aten::{call.name}", "pointwise", read[0].dtype, cost, shapes_of(read))


# operator: positions of gradient and input; the flag for training and the mask are at 7 and 9, or it has none
_BATCH_NORMS_BACKWARD = {
    "native_batch_norm_backward": (0, 1, True),
    "batch_norm_backward": (0, 1, True),
    "cudnn_batch_norm_backward": (1, 0, False),
    "miopen_batch_norm_backward": (1, 0, False),
}


def _batch_norm_backward(call: Call) -> Work | None:
    """Reads gradient, input, weight and the batch's mean and 1/σ (in inference the running ones); writes the
    gradients that the mask wants.

    9 operations an element in training: x̂ takes two, the sums of g and g·x̂ three, dx four. Without the two
    means that dx loses in training they are 6.
    """
    *both_at, flagged = _BATCH_NORMS_BACKWARD[call.name]
    both = call.tensors(*both_at)
    training, mask = (call.value(7), _mask(call, 9, 3)) if flagged else (True, [True] * 3)
    if both is None or mask is None or not isinstance(training, bool) or len(both[1].shape) < 2:
        return None
    x, weight = both[1], _given(call, 2)
    statistics = _given(call, *((5, 6) if training else (3, 4)))
    moved = bytes_of([*both, *weight, *statistics]) + mask[0] * x.elements * itemsize(x.dtype)
    moved += (mask[1] + mask[2]) * bytes_of(weight)
    return _by_channel(call, [x, both[0]], Cost(0, moved, (9 if training else 6) * x.elements))


def _batch_norm_part(call: Call) -> Work | None:
    """What synchronised batch norm is made of: statistics, normalising, and both of them backward."""
    gradient = "backward" in call.name
    read = call.tensors(0, 1) if gradient else call.tensors(0)
    if read is None or len(read[0].shape) < 2:
        return None
    x, channels = read[-1], read[0].shape[1]
    own = 2 * channels * statistic_size(x.dtype)
    if call.name == "batch_norm_stats":
        return _by_channel(call, read, Cost(0, x.bytes_read + own, 4 * x.elements))
    if call.name == "batch_norm_backward_reduce":
        wanted = [call.value(p) for p in (5, 6, 7)]
        if not all(isinstance(flag, bool) for flag in wanted):
            return None
        moved = bytes_of([*read, *_given(call, 2, 3)]) + wanted[0] * own
        moved += (wanted[1] + wanted[2]) * bytes_of(_given(call, 4))
        return _by_channel(call, read, Cost(0, moved, 4 * x.elements))
    others = (2, 3, 4, 5, 6, 7) if gradient else (1, 2, 3, 4)
    moved = bytes_of([*read, *_given(call, *others)]) + x.elements * itemsize(x.dtype)
    return _mapped(call, read, Cost(0, moved, (6 if gradient else 4) * x.elements))


_PARTS = ("batch_norm_stats", "batch_norm_elemt", "batch_norm_backward_reduce", "batch_norm_backward_elemt")


def _group_norm(call: Call) -> Work | None:
    """x [batch, channels, *space], weight and bias where given; keeps mean and 1/σ of each group."""
    x, parameters, groups = call.tensor(0), _given(call, 1, 2), call.value(6)
    if x is None or len(x.shape) < 2 or not isinstance(groups, int) or not 1 <= groups <= x.shape[1]:
        return None
    rows = x.shape[0] * groups
    kept = parameters[0].dtype if parameters else x.dtype  # float32 beside parameters in float32
    moved = x.bytes_read + x.elements * itemsize(x.dtype) + bytes_of(parameters) + 2 * rows * itemsize(kept)
    cost = Cost(0, moved, 8 * x.elements)
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, shapes_of([x, *parameters]), rows=rows)


def _group_norm_backward(call: Call) -> Work | None:
    """Reads gradient, input, mean, 1/σ and weight; writes the gradients that the mask wants."""
    read, mask = call.tensors(0, 1, 2, 3), _mask(call, 9, 3)
    if read is None or mask is None:
        return None
    (_, x, mean, _), weight = read, _given(call, 4)
    moved = bytes_of([*read, *weight]) + mask[0] * x.elements * itemsize(x.dtype)
    moved += (mask[1] + mask[2]) * bytes_of(weight)
    cost = Cost(0, moved, 12 * x.elements)
    shapes = shapes_of([*read, *weight])
    return Work(f"aten::{call.name}", "reduction", x.dtype, cost, shapes, rows=mean.elements)


# --------------------------------------------------------------------------------- pooling, resizing, padding


def _other(call: Call, read: Sequence[Tensor], cost: Cost) -> Work:
    return Work(f"aten::{call.name}", "other", read[0].dtype, cost, shapes_of(read))


# operator: dimensions of space, positions of dilation (None: it has none) and ceil_mode, bytes of an index
_POOLS = {
    "max_pool1d": (1, 4, 5, 0),
    "max_pool2d_with_indices": (2, 4, 5, 8),
    "max_pool3d_with_indices": (3, 4, 5, 8),
    "mkldnn_max_pool2d": (2, 4, 5, 0),
    "avg_pool2d": (2, None, 4, 0),
    "avg_pool3d": (3, None, 4, 0),
}


def _pool(call: Call) -> Work | None:
    """Windows over x [.., *space]: an operation for each of their elements, an int64 index for a maximum.

    An element that no window needs, as a stride above the kernel leaves some, is not read.
    """
    dimensions, dilation_at, ceil_at, index_bytes = _POOLS[call.name]
    x, windows = call.tensor(0), _windows(call, dimensions, dilation_at, ceil_at)
    if x is None or windows is None:
        return None
    count, kernel = windows
    outputs = math.prod(x.shape[:-dimensions]) * math.prod(count)
    read = min(x.distinct, outputs * math.prod(kernel)) * itemsize(x.dtype)
    moved = read + outputs * (itemsize(x.dtype) + index_bytes)
    return _other(call, [x], Cost(0, moved, outputs * math.prod(kernel)))


def _windows(
    call: Call, dimensions: int, dilation_at: int | None, ceil_at: int
) -> tuple[Shape, Shape] | None:
    """How many windows there are along each dimension, and the kernel; `pooling_output_shape` of Pool.h."""
    x, kernel = call.tensor(0), _sizes(call.value(1), dimensions)
    stride = _sizes(call.value(2) or call.value(1), dimensions)  # an empty list is the kernel's
    padding = _sizes(call.value(3), dimensions)
    dilation = (1,) * dimensions if dilation_at is None else _sizes(call.value(dilation_at), dimensions)
    up = call.value(ceil_at)
    if x is None or len(x.shape) <= dimensions or None in (kernel, stride, padding, dilation):
        return None
    if not isinstance(up, bool) or min(*kernel, *stride, 1) < 1:
        return None
    space = zip(x.shape[-dimensions:], kernel, stride, padding, dilation, strict=True)
    count = tuple(_pooled(*each, up) for each in space)
    return (count, kernel) if min(count) >= 0 else None


def _pooled(n: int, kernel: int, stride: int, padding: int, dilation: int, up: bool) -> int:
    """Windows that fit; rounded up, one more if it begins inside of the input or of its left padding."""
    count = _window_count(n, kernel, stride, padding, dilation, extra=stride - 1 if up else 0)
    return count - 1 if up and (count - 1) * stride >= n + padding else count


_ADAPTIVE_POOLS = {
    "_adaptive_avg_pool2d": (2, 0),
    "_adaptive_avg_pool3d": (3, 0),
    "adaptive_max_pool2d": (2, 8),
    "adaptive_max_pool3d": (3, 8),
}


def _adaptive_pool(call: Call) -> Work | None:
    """So many windows as the output has elements; together they need every element of the input."""
    dimensions, index_bytes = _ADAPTIVE_POOLS[call.name]
    x, size = call.tensor(0), _sizes(call.value(1), dimensions)
    if x is None or size is None or len(x.shape) <= dimensions:
        return None
    outputs = math.prod(x.shape[:-dimensions]) * math.prod(size)
    moved = x.bytes_read + outputs * (itemsize(x.dtype) + index_bytes)
    return _other(call, [x], Cost(0, moved, max(x.elements, outputs)))


# operator: position of the indices, None where it has none
_UNPOOLED: dict[str, int | None] = {
    **dict.fromkeys(("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"), 7),
    **dict.fromkeys(("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"), 2),
    **dict.fromkeys(("avg_pool2d_backward", "avg_pool3d_backward"), None),
    **dict.fromkeys(("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"), None),
    **{f"{how}_pad{d}d_backward": None for how in ("reflection", "replication") for d in (1, 2, 3)},
}


def _unpooled(call: Call) -> Work | None:
    """Reads the gradient, and the indices of maxima, and writes a gradient of the input's size.

    The input itself (argument 1) is asked for its shape only. One operation for each element of the larger of
    the two gradients.
    """
    both, indices = call.tensors(0, 1), _given(call, _UNPOOLED[call.name])
    if both is None or (_UNPOOLED[call.name] is not None and not indices):
        return None
    grad, x = both
    moved = bytes_of([grad, *indices]) + x.elements * itemsize(grad.dtype)
    return _other(call, [grad, *indices], Cost(0, moved, max(grad.elements, x.elements)))


# operator: dimensions of space, and inputs that make an output
_RESIZED = {
    **{f"upsample_nearest{d}d": (d, 1) for d in (1, 2, 3)},
    **{f"_upsample_nearest_exact{d}d": (d, 1) for d in (1, 2, 3)},
    "upsample_linear1d": (1, 2),
    "upsample_bilinear2d": (2, 4),
    "upsample_trilinear3d": (3, 8),
    "upsample_bicubic2d": (2, 16),
}


def _resized(call: Call) -> Work | None:
    """x [batch, channels, *space] to the recorded size; a weighted sum of its inputs is an output.

    Where it shrinks, what no output needs is not read.
    """
    dimensions, taps = _RESIZED[call.name]
    x, size = call.tensor(0), _sizes(call.value(1), dimensions)
    if x is None or size is None or len(x.shape) != dimensions + 2:
        return None
    outputs = math.prod(x.shape[:2]) * math.prod(size)
    moved = (min(x.distinct, taps * outputs) + outputs) * itemsize(x.dtype)
    return _other(call, [x], Cost(0, moved, (2 * taps - 1) * outputs if taps > 1 else 0))


def _resized_backward(call: Call) -> Work | None:
    """Reads the gradient and writes one of the recorded input size, adding up what comes together."""
    dimensions, taps = _RESIZED[call.name.removesuffix("_backward")]
    grad, size = call.tensor(0), _sizes(call.value(2), dimensions + 2)
    if grad is None or size is None or len(size) != len(grad.shape):
        return None
    moved = grad.bytes_read + math.prod(size) * itemsize(grad.dtype)
    return _other(call, [grad], Cost(0, moved, (2 * taps if taps > 1 else 1) * grad.elements))


_PADDED = tuple(f"{how}_pad{d}d" for how in ("reflection", "replication") for d in (1, 2, 3))


def _padded(call: Call) -> Work | None:
    """The input with a border of its own values; two numbers a dimension, the last dimension's first."""
    dimensions = int(call.name[-2])
    x, border = call.tensor(0), _per_dimension(call.value(1), 2 * dimensions)
    if x is None or border is None or len(x.shape) <= dimensions:
        return None
    around = [sum(border[2 * d : 2 * d + 2]) for d in reversed(range(dimensions))]
    space = [n + more for n, more in zip(x.shape[-dimensions:], around, strict=True)]
    if not all(0 <= n < 2**63 for n in space):
        return None
    outputs = math.prod(x.shape[:-dimensions]) * math.prod(space)
    return _other(call, [x], Cost(0, (min(x.distinct, outputs) + outputs) * itemsize(x.dtype)))


# ----------------------------------------------------------------------------------------------------- losses


def _nll_loss(call: Call) -> Work | None:
    """Looks up each target's log-probability and class weight; writes the loss and the sum of weights."""
    both, reduction = call.tensors(0, 1), call.value(3)
    if both is None or not isinstance(reduction, int):
        return None
    x, target = both
    losses = target.elements if reduction == 0 else 1
    found = target.elements + sum(min(w.elements, target.elements) for w in _given(call, 2))
    moved = target.bytes_read + (found + losses + 1) * itemsize(x.dtype)
    return _other(call, both, Cost(0, moved, target.elements))


def _nll_loss_backward(call: Call) -> Work | None:
    """Reads gradient and targets, and writes one element for each target into a gradient that was zeroed."""
    read = call.tensors(0, 1, 2)
    if read is None:
        return None
    grad, x, target = read
    found = sum(min(w.elements, target.elements) for w in _given(call, 3))
    moved = bytes_of([grad]) + target.bytes_read + (target.elements + found) * itemsize(x.dtype)
    return _other(call, (x, target), Cost(0, moved, target.elements))


# -------------------------------------------------------------------------------------------- recurrent cells

# operator: gates, operations for each hidden unit, values that it keeps of one for the backward pass, and
# states that it writes. The additions of the two products and their biases come on top. LSTM: three sigmoids
# of 4 and a tanh, c = f·c + i·g, h = o·tanh(c); it keeps the gates. GRU: two sigmoids, n = tanh(· + r·h),
# h = n + z·(h - n); it keeps the gates, h and the hidden part of n. A backward pass takes a derivative (2 or
# 3) and the chain of each.
_CELLS = {"_thnn_fused_lstm_cell": (4, 18, 4, 2), "_thnn_fused_gru_cell": (3, 14, 5, 1)}


def _cell(call: Call) -> Work | None:
    """One step: gates [batch, gates·hidden] of input and state, the state [batch, hidden], biases or none.

    Writes the new state (an LSTM's both) and a workspace for the backward pass. The products before it are
    operators of their own.
    """
    gates, operations, kept, states = _CELLS[call.name]
    read, biases = call.tensors(0, 1, 2), _given(call, 3, 4)
    if read is None or any(t.elements != gates * read[2].elements for t in read[:2]):
        return None
    units = read[2].elements
    moved = bytes_of([*read, *biases]) + (states + kept) * units * itemsize(read[0].dtype)
    return _other(call, [*read, *biases], Cost(0, moved, (operations + gates * (1 + len(biases))) * units))


def _lstm_cell_backward(call: Call) -> Work | None:
    """Reads what gradients of h and c there are, both c and the workspace; writes those of gates and c."""
    read, gradients = call.tensors(2, 3, 4), _given(call, 0, 1)
    if read is None or read[2].elements != 4 * read[0].elements:
        return None
    units = read[0].elements
    moved = bytes_of([*gradients, *read]) + 5 * units * itemsize(read[0].dtype)
    return _other(call, [*gradients, *read], Cost(0, moved, 25 * units))


def _lstm_layer(call: Call) -> Work | None:
    """oneDNN's layer on a CPU: x [steps, batch, in], weights [4·hidden, in] and [4·hidden, hidden], states.

    A step multiplies with both weights; biases and the cell as above. Packed sequences are not covered, nor
    is the workspace for the backward pass, whose size is oneDNN's.
    """
    read, biases = call.tensors(0, 1, 2, 5, 6), _given(call, 3, 4)
    if read is None or call.value(8) or len(read[0].shape) != 3 or any(len(w.shape) != 2 for w in read[1:3]):
        return None
    x, for_input, for_state, *states = read
    steps = math.prod(x.shape[:2])
    units = steps * for_state.shape[1]
    flops = 2 * steps * (for_input.elements + for_state.elements)
    written = units + sum(state.elements for state in states)
    arithmetic = units * (_CELLS["_thnn_fused_lstm_cell"][1] + 4 * (1 + len(biases)))
    cost = Cost(flops, bytes_of([*read, *biases]) + written * itemsize(x.dtype), arithmetic)
    return Work(f"aten::{call.name}", "gemm", x.dtype, cost, shapes_of([*read[:3], *biases, *states]))


def _gru_cell_backward(call: Call) -> Work | None:
    """Reads the gradient of h and the workspace; writes those of both products' gates and of the state."""
    read = call.tensors(0, 1)
    if read is None or read[1].elements != 5 * read[0].elements:
        return None
    units = read[0].elements
    return _other(call, read, Cost(0, bytes_of(read) + 7 * units * itemsize(read[0].dtype), 16 * units))


# ------------------------------------------------------------------------------------------------- optimizers

# operator: positions of lists that are read and written, of lists that are only read, operations an element.
# Adam: m takes 3, v 4, p -= lr·m̂ / (√v̂ + ε) 7, weight decay 2; with amsgrad a maximum more. SGD: decay 2,
# momentum 3, the step 2. Adagrad: the sum of squares 2, the step 5, decay 2.
_OPTIMIZERS = {
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_"), ((0, 2, 3, 4), (1,), 16)),
    "_fused_sgd_": ((0, 2), (1,), 7),
    "_fused_adagrad_": ((0, 2), (1,), 9),
}


def _optimizer(call: Call) -> Work | None:
    """One kernel over lists of tensors: parameters, gradients and what the optimizer keeps, each as long.

    Lists that this optimizer does without are empty. Before the first step of SGD its momentum is not read.
    """
    changed_at, read_at, operations = _OPTIMIZERS[call.name]
    changed = [each for p in changed_at if (each := _list(call, p))]
    read = [each for p in read_at if (each := _list(call, p))]
    if not changed or not read or len({len(each) for each in (*changed, *read)}) != 1:
        return None
    first = call.name == "_fused_sgd_" and call.value(9) is True
    moved = sum(map(bytes_of, (*changed, *changed, *read))) - first * sum(map(bytes_of, changed[1:]))
    elements = sum(t.elements for t in changed[0])
    shapes = ((elements,),) * (len(changed) + len(read))
    cost = Cost(0, moved, (operations + (len(changed) > 3)) * elements)
    return Work(f"aten::{call.name}", "pointwise", changed[0][0].dtype, cost, shapes)


def _list(call: Call, position: int) -> tuple[Tensor, ...]:
    """The list of tensors at this position; empty where there is none or its dtypes were not recorded."""
    found = call.arguments[position] if position < len(call.arguments) else None
    return found if isinstance(found, tuple) and all(isinstance(t, Tensor) for t in found) else ()


PRODUCTS = (_convolution, _convolution_backward, _lstm_layer)
RULES = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_CONVOLUTIONS_BACKWARD, _convolution_backward),
    "native_layer_norm": lambda call: _norm(call, operations=8, statistics=2),
    "layer_norm": lambda call: _norm(call, operations=8, statistics=0),
    "_fused_rms_norm": lambda call: _norm(call, operations=4, statistics=1),
    "rms_norm": lambda call: _norm(call, operations=4, statistics=0),
    "native_layer_norm_backward": _layer_norm_backward, "_fused_rms_norm_backward": _rms_norm_backward,
    **dict.fromkeys(_BATCH_NORMS, _batch_norm),
    **dict.fromkeys(_BATCH_NORMS_BACKWARD, _batch_norm_backward),
    **dict.fromkeys(_PARTS, _batch_norm_part),
    "native_group_norm": _group_norm, "native_group_norm_backward": _group_norm_backward,
    **dict.fromkeys(_POOLS, _pool), **dict.fromkeys(_ADAPTIVE_POOLS, _adaptive_pool),
    **dict.fromkeys(_UNPOOLED, _unpooled),
    **dict.fromkeys(_RESIZED, _resized), **{f"{name}_backward": _resized_backward for name in _RESIZED},
    **dict.fromkeys(_PADDED, _padded),
    "nll_loss_forward": _nll_loss, "nll_loss2d_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward, "nll_loss2d_backward": _nll_loss_backward,
    **dict.fromkeys(_CELLS, _cell), "mkldnn_rnn_layer": _lstm_layer,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    **dict.fromkeys(_OPTIMIZERS, _optimizer),
}  # fmt: skip
