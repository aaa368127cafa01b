"""Which operators a call will run, and which of them are work, found on the meta device without running it.

A meta tensor has a shape, a dtype and strides but no memory. `operators` runs a call on meta tensors under a
TorchDispatchMode and writes down every operator that reaches the dispatcher; `work` gives each a cost, after
applying what the named device does inside an operator (an addend that is copied first, an operand that is
rearranged first).

`scaled_dot_product_attention` has another kernel on another device; `work` takes the one that `sdpa` finds.
`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` have a fast path for inference, one operator each;
where they take it, what torch's C++ code calls in it is found.

Not covered: what one library call splits into (split-K, a reduction in two kernels), compiled functions, and
sparse, nested and quantised tensors. Operators that need values (`nonzero`, `item`) raise `NeedsValues`.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from types import BuiltinFunctionType, FunctionType, SimpleNamespace

import pandas as pd
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from tutorial_lib import cost, hardware, predict, sdpa, timeline, units
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware
from tutorial_lib.predict import Prediction

Shape = tuple[int, ...]


class NeedsValues(ValueError):
    """The call asks for the values of a tensor, and a meta tensor has none."""


@dataclass(frozen=True)
class Epilogue:
    """Whether a matrix product adds its bias itself, as the last thing its kernel does, and why (not)."""

    kept: bool
    reason: str

    def __str__(self) -> str:
        return f"{'kept' if self.kept else 'lost'}: {self.reason}"


@dataclass(frozen=True)
class Layout:
    """What a meta tensor knows of itself."""

    shape: Shape
    dtype: str
    strides: Shape


@dataclass(frozen=True)
class Call:
    """One operator that reached the dispatcher, described as a trace describes it: one entry per argument.

    `output` is its first result, None when it returns no tensor. `view`: it returns its input's memory under
    another shape. `works`: it computes or moves data. `known`: the work it was found to do on the device.
    """

    operator: str
    shapes: tuple
    dtypes: tuple
    strides: tuple
    concrete: tuple[str, ...]
    output: Layout | None
    view: bool = False
    works: bool = True
    known: tuple[Work, ...] | None = None


def operators(fn: Callable, /, *inputs: object, **named: object) -> pd.DataFrame:
    """Every operator that the call `fn(*inputs, **named)` sends to the dispatcher, in order, one row each.

    The caller's modules and tensors are not touched. Whether they require gradients is kept, because it
    decides: nn.Linear on a 3-D input that is not contiguous runs clone and mm, but one bmm when its weight is
    frozen. scaled_dot_product_attention shows as the operators of its math backend, the fast path of layers
    for transformers as those of a CPU. Raises NeedsValues, or ValueError for a compiled function.
    """
    calls = _watch(fn, inputs, named).calls
    names = ["operator", "shapes", "dtypes", "strides", "concrete", "view", "works"]
    rows = [[getattr(call, name) for name in names] for call in calls]
    return pd.DataFrame(rows, columns=names).astype({"view": bool, "works": bool})


def work(fn: Callable, /, *inputs: object, on: Hardware, **named: object) -> tuple[Work, ...]:
    """The work items of one call `fn(*inputs, **named)` on this device, in order.

    Raises ValueError naming the operator when its cost is not known: state that part with `cost`.
    """
    return _work(_watch(fn, inputs, named, on), on)


def _work(watch: _Watch, on: Hardware) -> tuple[Work, ...]:
    if any(call.operator == "aten::_safe_softmax" for call in watch.calls):
        raise ValueError(
            "scaled_dot_product_attention was called where it is not seen, and picks its kernel by device; "
            "call it as torch.nn.functional has it, or state its work with cost.attention(...)"
        )
    return tuple(item for call in watch.calls if call.works for item in _items(call, on.kind))


def predict_call(fn: Callable, /, *inputs: object, on: Hardware | str, **named: object) -> Prediction:
    """What one call should show on this device: operators that work, counts, FLOPs, bytes and a band.

    The call is `fn(*inputs, **named)`, so a model that takes keywords is predicted with them, as in
    `predict_call(model, input_ids=ids, on=card)`. Views are left out: which of them run depends on whether
    somebody watches (a reshape is a view under a dispatch mode and a _reshape_alias without). On a GPU each
    work item is taken to be one launch; a CPU has none. `on` may be a card's name. What is uncertain is among
    the prediction's `notes`. Raises what `work` raises, and UnknownHardware.
    """
    on = hardware.find(on) if isinstance(on, str) else on
    watch = _watch(fn, inputs, named, on)
    items = _work(watch, on)
    names = tuple(name for call in watch.calls if call.works for name in _names(call, on.kind))
    launches = len(items) if on.kind == "cuda" else None
    return predict.predict(items, on, operators=names, launches=launches, notes=watch.notes)


def epilogue(fn: Callable, /, *inputs: object, kind: str = "cuda", **named: object) -> Epilogue:
    """Whether the biased matrix product in this call keeps its bias in the epilogue of its GEMM.

    `kind` is the device's, "cuda" or "cpu". Raises ValueError when the call does not have one such product.
    """
    if kind not in ("cuda", "cpu"):
        raise ValueError(f'kind is "cuda" or "cpu", got {kind!r}')
    calls = [c for c in _watch(fn, inputs, named).calls if c.works]
    products = [i for i, c in enumerate(calls) if c.operator in _PRODUCTS]
    if len(products) != 1:
        raise ValueError(
            f"expected one matrix product in the call, found {len(products)}: pass the layer alone"
        )
    product = calls[products[0]]
    if product.operator == "aten::addmm":
        lost = _why_lost(product, kind)
        return Epilogue(lost is None, lost or _KEPT)
    if product.operator in ("aten::mm", "aten::bmm") and any(
        c.operator in ("aten::add", "aten::add_") for c in calls[products[0] + 1 :]
    ):
        return Epilogue(False, _SEPARATE.format(product=product.operator))
    raise ValueError(
        f"{product.operator} adds no bias, so there is no epilogue to keep: pass a layer with a bias"
    )


_KEPT = "a contiguous 1-D bias of length N with beta = 1 goes to cublasLt, whose kernel adds it as it writes"
_SEPARATE = (
    "there is no addmm here, {product} and the addition are two operators "
    "(nn.Linear does this on a 3-D input that is not contiguous)"
)
_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
_LT_DTYPES = ("float64", "float32", "float16", "bfloat16")


def _why_lost(addmm: Call, kind: str) -> str | None:
    """Why addmm(bias, a [M, K], b [K, N]) cannot keep its bias in the epilogue; None when it can.

    The GPU rule is `isInputCompliesAddmmCudaLt` in PyTorch's aten/src/ATen/native/cuda/Blas.cpp, as read in its
    sources and in the machine code of the releases 2.11 to 2.13. Version 2.10 asked for M > 1 as well, and from
    2.14 on a full [M, N] addend of 16 bits is no longer copied. Where the versions differ the trace has the last
    word.
    """
    if _beta(addmm) == 0:
        return "beta is 0, so no bias is added at all"
    if kind == "cpu":
        return "a CPU's addmm copies the bias into its output first, and the GEMM adds to what is there"
    bias, (k, n) = addmm.shapes[0], addmm.shapes[2]
    if os.environ.get("DISABLE_ADDMM_CUDA_LT") == "1":
        return "DISABLE_ADDMM_CUDA_LT=1 is set, which closes the way to cublasLt"
    if _beta(addmm) != 1:
        return f"beta is {_beta(addmm):g}; the epilogue adds the bias as it is, so only beta = 1 qualifies"
    if len(bias) != 1 or bias[0] != n:
        return f"the addend is {list(bias)}; only a 1-D bias of length N = {n} qualifies"
    if n > 1 and addmm.strides[0] != (1,):
        return f"the bias has stride {addmm.strides[0][0]}; only a contiguous one qualifies"
    if addmm.dtypes[1] not in _LT_DTYPES:
        return f"the dtype is {addmm.dtypes[1]}; only {', '.join(_LT_DTYPES)} qualify"
    if min(k, n) == 1:
        return f"K, N = {k}, {n}; cublasLt is used only when both are above 1"
    return None


def _beta(call: Call) -> float:
    return float(call.concrete[3])


# ---------------------------------------------------------------------- what a device does inside an operator


def _names(call: Call, kind: str) -> list[str]:
    """What a trace shows of it on this device: batch norm is cuDNN's, MIOpen's or PyTorch's own on a GPU."""
    if call.known is not None:
        return [item.operator for item in call.known]
    own = call.operator == "aten::native_batch_norm" and kind == "cuda"
    return ["aten::_batch_norm_impl_index" if own else call.operator]


def _items(call: Call, kind: str) -> list[Work]:
    if call.known is not None:
        return list(call.known)
    known = (*_PRODUCTS, "aten::_addmm_activation")
    parts = _product(call, kind) if call.operator in known else _beneath(call, kind)
    return [_costed(part) for part in parts]


def _costed(call: Call) -> Work:
    found = cost.operator(
        call.operator, call.shapes, call.dtypes, strides=call.strides, concrete=call.concrete
    )
    if found is None:
        shapes = ", ".join(str(list(s)) for s in call.shapes if s)
        raise ValueError(
            f"no cost is known for {call.operator} on {shapes}; state its work with cost and predict"
        )
    return found


def _product(call: Call, kind: str) -> list[Call]:
    """A product, the copies before it (of the addend, of operands BLAS cannot read) and its activation."""
    before, fused = [], call.operator == "aten::_addmm_activation"
    first = 1 if fused or call.operator in ("aten::addmm", "aten::baddbmm") else 0
    a, b = call.dtypes[first : first + 2]
    if a != b:  # the meta device multiplies them, no other does
        raise ValueError(f"{call.operator} of {a} and {b}: torch multiplies no two dtypes, cast one of them")
    if first and _beta(call) != 0 and (call.operator == "aten::baddbmm" or _why_lost(call, kind)):
        before.append(_plain("aten::copy_", call.output, _layout_of(call, 0)))
        shapes, strides = (call.output.shape, *call.shapes[1:]), (call.output.strides, *call.strides[1:])
        call = replace(call, shapes=shapes, strides=strides)  # the GEMM reads M·N elements of addend
    for operand in (_layout_of(call, first), _layout_of(call, first + 1)):
        if len(operand.shape) == 2 and not _blas_reads(operand):
            before.append(_plain("aten::copy_", operand, operand))
    if not fused or not _why_lost(call, kind):
        return [*before, call]
    # Without an epilogue: addmm_out_cuda_impl in Blas.cpp, addmm_activation_out_cpu in LinearAlgebra.cpp.
    act = _plain("aten::gelu_", call.output) if call.concrete[5] == "True" else _clamped(call.output, "_")
    return [*before, act, call] if kind == "cpu" else [*before, call, act]  # on a CPU by their ends


def _blas_reads(matrix: Layout) -> bool:
    """Whether rows or columns are contiguous, at any distance from each other; all else is copied first.

    `prepare_matrix_for_cublas` in Blas.cpp for a GPU, `addmm_impl_cpu_` in LinearAlgebra.cpp for a CPU.
    """
    (rows, columns), (down, across) = matrix.shape, matrix.strides
    return (down == 1 and across >= max(1, rows)) or (across == 1 and down >= max(1, columns))


_FILLS = {
    "aten::zeros": "aten::zero_", "aten::zeros_like": "aten::zero_", "aten::new_zeros": "aten::zero_",
    "aten::ones": "aten::fill_", "aten::ones_like": "aten::fill_", "aten::new_ones": "aten::fill_",
    "aten::arange": "aten::fill_", "aten::scalar_tensor": "aten::fill_",
    "aten::full": "aten::fill_", "aten::full_like": "aten::fill_", "aten::new_full": "aten::fill_",
    "aten::rand": "aten::uniform_", "aten::rand_like": "aten::uniform_",
    "aten::randn": "aten::normal_", "aten::randn_like": "aten::normal_",
}  # fmt: skip


def _beneath(call: Call, kind: str) -> list[Call]:
    """The operators that do the work of one that only calls others, as a trace shows them below it."""
    if call.operator in ("aten::clone", "aten::_to_copy"):
        return [_plain("aten::copy_", call.output, _layout_of(call, 0))]
    if call.operator == "aten::masked_fill":
        mask, value = _layout_of(call, 1), call.concrete[2]
        filled = _plain("aten::masked_fill_", call.output, mask, concrete=("", "", value))
        return [_plain("aten::copy_", call.output, _layout_of(call, 0)), filled]
    if call.operator in _FILLS:
        return [_plain(_FILLS[call.operator], call.output)]
    if call.operator == "aten::stack":
        return [replace(call, operator="aten::cat")]
    if call.operator == "aten::embedding":
        weight, indices = _layout_of(call, 0), _layout_of(call, 1)
        return [replace(_plain("aten::index_select", weight, _NUMBER, indices), concrete=("", "0", ""))]
    if call.operator == "aten::mean" and kind == "cpu":
        divided = _plain("aten::div_", call.output, concrete=("", "1"))
        return [replace(call, operator="aten::sum"), divided]
    if call.operator in ("aten::relu", "aten::relu_"):
        return [_clamped(_layout_of(call, 0), "_" if call.operator.endswith("_") else "")]
    if call.operator in _ZEROED or (kind == "cpu" and call.operator in _ZEROED_ON_A_CPU):
        return [_plain("aten::zero_", call.output), call]
    if call.operator in ("aten::index_put", "aten::index_put_"):
        put = replace(call, operator="aten::_index_put_impl_")
        return [*_copied(call), put] if call.operator == "aten::index_put" else [put]
    if call.operator in _COPIED:
        return [*_copied(call), call]
    if call.operator in _LOSSES:
        return [call, *_reduced(call, kind)]
    if call.operator in _FILLED:
        return [_plain(_FILLED[call.operator], call.output), *_written_into(call.output, _layout_of(call, 0))]
    return [call]


def _clamped(x: Layout, in_place: str = "") -> Call:
    return _plain(f"aten::clamp_min{in_place}", x, concrete=("", "0"))


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


# Gradients that are zeroed before something is added to them: on all devices, and on a CPU besides.
_ZEROED = _aten(
    "embedding_dense_backward nll_loss_backward nll_loss2d_backward max_pool2d_with_indices_backward "
    "max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
    "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward "
    "upsample_bicubic2d_backward"
)
_ZEROED_ON_A_CPU = _aten(
    "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward"
)
# These write into a copy of their first argument.
_COPIED = _aten("scatter scatter_add")
# These fill a tensor and write their first argument into a part of it.
_FILLED = {"aten::constant_pad_nd": "aten::fill_", "aten::slice_backward": "aten::zero_",
           "aten::select_backward": "aten::zero_"}  # fmt: skip
# Losses of each element, and where their reduction stands: 0 none, 1 mean, 2 sum.
_LOSSES = {
    "aten::mse_loss": 2, "aten::smooth_l1_loss": 2, "aten::huber_loss": 2, "aten::binary_cross_entropy": 3,
}  # fmt: skip


def _copied(call: Call) -> list[Call]:
    return [_plain("aten::copy_", call.output, _layout_of(call, 0))]


def _written_into(whole: Layout, part: Layout) -> list[Call]:
    """The copy of a tensor into as much of a larger one."""
    strides = whole.strides if len(whole.shape) == len(part.shape) else part.strides
    return [_plain("aten::copy_", replace(part, strides=strides), part)]


def _reduced(call: Call, kind: str) -> list[Call]:
    """The mean or the sum over the losses of all elements."""
    reduction = call.concrete[_LOSSES[call.operator]]
    if reduction == "0":
        return []
    losses = max(_layout_of(call, 0), _layout_of(call, 1), key=lambda layout: math.prod(layout.shape))
    whole = _plain("aten::mean" if reduction == "1" else "aten::sum", losses, concrete=("", ""))
    return _beneath(replace(whole, output=call.output), kind)


_NUMBER = Layout((), "Scalar", ())


def _layout_of(call: Call, position: int) -> Layout:
    return Layout(call.shapes[position], call.dtypes[position], call.strides[position])


def _plain(operator: str, *arguments: Layout, concrete: tuple[str, ...] = ()) -> Call:
    concrete = concrete or ("",) * len(arguments)
    scalars = ((),) * (len(concrete) - len(arguments))
    return Call(
        operator,
        shapes=(*(a.shape for a in arguments), *scalars),
        dtypes=(*(a.dtype for a in arguments), *("Scalar" for _ in scalars)),
        strides=(*(a.strides for a in arguments), *scalars),
        concrete=concrete,
        output=arguments[0],
    )


# ------------------------------------------------------------------------------------------ watching one call


def _watch(
    fn: Callable, inputs: tuple[object, ...], named: dict[str, object], on: Hardware | None = None
) -> _Watch:
    """Run the call on meta tensors and write down what the dispatcher saw, attention as on this device."""
    parts = fn.modules() if isinstance(fn, torch.nn.Module) else (fn,)
    if any(map(_compiled, parts)):
        raise ValueError(
            "a compiled function hides its operators; pass the function as it was before torch.compile"
        )
    watch = _Watch(on)
    # Under inference mode composite operators would reach the watch whole, and not what they are made of.
    grad = torch.is_grad_enabled()
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            call, *arguments = (_on_meta(value, watch) for value in (fn, *inputs))
            keywords = {name: _on_meta(value, watch) for name, value in named.items()}
            with _fast_paths(watch), _no_ignored_autocast(watch), _Api(watch), watch:
                call(*arguments, **keywords)
    except (RuntimeError, TypeError) as error:
        if not any(sign in str(error) for sign in ("meta", "unallocated storage")):
            raise
        said = str(error).splitlines()[0]
        raise NeedsValues(
            f"the call cannot run on meta tensors, which have no values; torch says: {said}"
        ) from error
    return watch


def _compiled(part: object) -> bool:
    """Whether this came from torch.compile, or is a module whose compile() was called."""
    marks = ("_orig_mod", "_torchdynamo_orig_callable", "_compiled_call_impl")
    return any(getattr(part, mark, None) is not None for mark in marks)


def _needs_values(name: str) -> NeedsValues:
    return NeedsValues(
        f"{name} needs the values of a tensor, and the meta device has only shapes; "
        "predict the parts before and after it, or record a trace"
    )


def _on_meta(value: object, watch: _Watch) -> object:
    if isinstance(value, torch.nn.Module):
        return _without_memory(value, watch)
    return tree_map_only(torch.Tensor, watch.meta, value)


def _without_memory(module: torch.nn.Module, watch: _Watch) -> torch.nn.Module:
    """A copy of the module in which every tensor is a meta tensor: no memory copied, no state shared."""
    held = [*module.parameters(), *module.buffers()]
    held += [v for part in module.modules() for v in vars(part).values() if isinstance(v, torch.Tensor)]
    memo = {id(tensor): watch.meta(tensor) for tensor in held}  # deepcopy takes from here what it finds here
    try:
        return copy.deepcopy(module, memo)
    except (TypeError, RuntimeError) as error:  # it holds a lock, a file, a tensor inside a list that needs grad
        said = str(error).splitlines()[0]
        raise ValueError(
            f"{type(module).__name__} cannot be copied ({said}); pass a function that calls it"
        ) from error


class _Api(TorchFunctionMode):
    """Notes which of torch's own functions an operator is called from, where that changes its meaning."""

    def __init__(self, watch: _Watch) -> None:
        self.watch = watch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _multi_head(*args, **kwargs)
        if func is F.scaled_dot_product_attention and self.watch.on is not None:
            return self.watch.attend(*args, **kwargs)
        if self.watch.on is not None:
            _refuse_what_the_meta_device_hides(func, self.watch.on)
            if _ignored_autocast(self.watch.on):
                self.watch.note(_OFF_HERE)
            if func is F.dropout and self.watch.on.kind == "cuda" and _fused_dropout(*args, **kwargs):
                func = _native_dropout
        outer = self.watch.linear
        self.watch.linear = outer or func is F.linear
        try:
            return func(*args, **kwargs)
        finally:
            self.watch.linear = outer


# The same code without its first question, whether a mode wants to take over, to see what it calls.
_multi_head = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


# One kernel on a GPU, and on the meta device the operators that it is made of elsewhere.
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell")


def _refuse_what_the_meta_device_hides(func: Callable, on: Hardware) -> None:
    if isinstance(func, BuiltinFunctionType) and func.__name__ in _RECURRENT:
        raise ValueError(
            f"no cost is known for aten::{func.__name__}, a recurrent layer, which a device runs in kernels "
            "of its own; state its work with cost and predict"
        )
    if torch.is_autocast_enabled(on.kind):
        raise ValueError(_AUTOCAST)


# torch without CUDA switches torch.autocast("cuda") off when it is made, warns once, and runs on without it.
_OFF_HERE = (
    'uncertain: part of the call runs in an autocast that is off here: if it is torch.autocast("cuda"), which'
    " torch switches off where it has no CUDA, its casts are missed; cast model and inputs by hand"
)


def _ignored_autocast(on: Hardware) -> bool:
    """Whether this is in an autocast for CUDA without effect, for want of CUDA or by somebody's wish."""
    nested = torch.autocast_increment_nesting() > 1
    torch.autocast_decrement_nesting()
    others = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return nested and not others and on.kind == "cuda" and not torch.cuda.is_available()


@contextmanager
def _no_ignored_autocast(watch: _Watch) -> Iterator[None]:
    """Refuse what a GPU would run with casts, and torch without CUDA runs without."""
    if watch.on is None or watch.on.kind != "cuda":
        yield
        return
    if _ignored_autocast(watch.on):
        raise ValueError(_AUTOCAST)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CUDA is not available.*Disabling")
        try:
            yield
        except UserWarning as error:
            if "CUDA is not available" not in str(error):
                raise
            raise ValueError(_AUTOCAST) from error


_AUTOCAST = (
    "autocast does not reach meta tensors, so its casts would be missed: predict outside of it, "
    "with model and inputs cast by hand, or record a trace"
)


def _fused_dropout(input, p=0.5, training=True, inplace=False) -> bool:
    """`is_fused_kernel_acceptable` in Dropout.cpp: a GPU draws, scales and writes the mask in one kernel."""
    return training and not inplace and 0 < p < 1 and input.numel() > 0


def _native_dropout(input, p=0.5, training=True, inplace=False) -> torch.Tensor:
    return torch.native_dropout(input, p, True)[0]


# Besides what its schema says is a view: _unsafe_view, t_, empty and the like.
_NO_WORK = timeline.VIEWS | timeline.ALLOCATIONS


def _refuse_other_layouts(tensor: torch.Tensor) -> None:
    """What has no strides has no counterpart on the meta device; taken as dense, its costs would be wrong."""
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError("a lazy parameter has no shape yet: call the module once before it is predicted")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else tensor.dtype if tensor.is_quantized else tensor.layout
        raise ValueError(f"a {kind} tensor is not covered: predict with dense ones, or record a trace")


class _Watch(TorchDispatchMode):
    def __init__(self, on: Hardware | None = None) -> None:
        super().__init__()
        self.on = on
        self.calls: list[Call] = []
        self.notes: list[str] = []
        self.linear = False
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def meta(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same shape, dtype and strides without memory; the same tensor gives the same meta tensor."""
        if id(tensor) not in self._kept:
            _refuse_other_layouts(tensor)
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            if isinstance(tensor, torch.nn.Parameter):
                empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
            self._kept[id(tensor)] = (tensor, empty.requires_grad_(tensor.requires_grad))
        return self._kept[id(tensor)][1]

    def note(self, said: str) -> None:
        if said not in self.notes:
            self.notes.append(said)

    def stand_in(self, name: str, args: tuple, result: torch.Tensor) -> torch.Tensor:
        """Write down an operator that the meta device lacks; `result` is laid out as what it returns."""
        described = zip(*(_described(self.meta(v) if _is_real(v) else v) for v in args), strict=True)
        self.calls.append(Call(name, *map(tuple, described), output=_layout(result)))
        return result

    def attend(self, *args, **kwargs) -> torch.Tensor:
        """scaled_dot_product_attention as this device runs it, written down as one call."""
        with _disable_current_modes():
            args, kwargs = tree_map_only(
                torch.Tensor, lambda t: t if t.is_meta else self.meta(t), (args, kwargs)
            )
            named = _attention_arguments(*args, **kwargs)
            work = sdpa.work(**named, on=self.on)
            result = sdpa.result(**named, on=self.on)
            for note in sdpa.sdpa_choice(**named, on=self.on).notes:
                if note.startswith("uncertain"):
                    self.note(note)
        shapes, dtypes, strides, concrete = zip(*map(_described, named.values()), strict=True)
        name = "aten::scaled_dot_product_attention"
        self.calls.append(Call(name, shapes, dtypes, strides, concrete, _layout(result), known=work))
        return result

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # What a closure or a module's list of tensors holds arrives here as it is.
        args, kwargs = tree_map_only(
            torch.Tensor, lambda t: t if t.is_meta else self.meta(t), (args, kwargs or {})
        )
        name = func._schema.name
        if any(a.name == "device" for a in func._schema.arguments):
            kwargs = {**kwargs, "device": torch.device("meta")}  # a factory would make real memory
        if torch.Tag.data_dependent_output in func.tags:
            raise _needs_values(name)
        try:
            result = func(*args, **kwargs)
        except NotImplementedError as error:
            raise _needs_values(name) from error
        self.calls.append(self._call(func, args, kwargs, result))
        return result

    def _call(self, func, args, kwargs, result) -> Call:
        name = func._schema.name
        # Under any dispatch mode linear adds its bias with add; left alone it is add_, as a trace shows.
        if self.linear and name == "aten::add":
            name = "aten::add_"
        described = [_described(v) for v in _positional(func, args, kwargs)]
        tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        return Call(
            name,
            *(tuple(column) for column in zip(*described, strict=True)) if described else ((), (), (), ()),
            output=_layout(tensors[0]) if tensors else None,
            view=view,
            works=not view and name not in _NO_WORK and any(t.numel() for t in tensors),
        )


def _is_real(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_meta


def _attention_arguments(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **rest) -> dict:
    named = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal}
    return {"q": query, "k": key, "v": value, **named, "scale": None, "enable_gqa": False, **rest}


def _positional(func, args, kwargs) -> list[object]:
    """One value per argument of the schema, defaults filled in, as a trace records them."""
    named = func._schema.arguments
    return [args[i] if i < len(args) else kwargs.get(a.name, a.default_value) for i, a in enumerate(named)]


def _layout(tensor: torch.Tensor) -> Layout:
    return Layout(tuple(tensor.shape), units.dtype_name(tensor.dtype), tuple(tensor.stride()))


def _described(value: object) -> tuple:
    """Shape, dtype, strides and text of one argument; for a list of tensors, lists of the first three."""
    if isinstance(value, torch.Tensor):
        layout = _layout(value)
        return layout.shape, layout.dtype, layout.strides, ""
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        shapes, dtypes, strides, _ = zip(*(_described(v) for v in value), strict=True)
        return shapes, dtypes, strides, ""
    if value is None:
        return (), "", (), ""
    return (), "ScalarList" if isinstance(value, (list, tuple)) else "Scalar", (), str(value)


# -------------------------------------------------- the fast path of torch.nn's layers for transformers

_LAYERS = (torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
_FORWARDS = threading.RLock()


@contextmanager
def _fast_paths(watch: _Watch) -> Iterator[None]:
    """Let these layers decide on meta tensors as they decide on those of a device.

    Their forward knows the conditions (eval mode, nothing that wants gradients, batch_first, an even number
    of heads, ReLU or GELU, no autocast, no hooks, ...). It runs as it is, with a `torch` that turns neither
    meta tensors nor this watch away. Other threads keep the forward that they had.
    """
    thread, seen = threading.get_ident(), _TorchOfLayers(watch)
    with _FORWARDS:
        own = {layer: layer.forward for layer in _LAYERS}
        for layer, forward in own.items():
            layer.forward = _deciding(inspect.unwrap(forward), seen, thread)
        try:
            yield
        finally:
            for layer, forward in own.items():
                layer.forward = forward


def _deciding(forward: FunctionType, seen: _TorchOfLayers, thread: int) -> Callable:
    names = {**forward.__globals__, "torch": seen, "_check_arg_device": lambda tensor: True}
    watched = FunctionType(forward.__code__, names, argdefs=forward.__defaults__)

    @wraps(forward)
    def either(self, *args, **kwargs):
        return (watched if threading.get_ident() == thread else forward)(self, *args, **kwargs)

    return either


class _TorchOfLayers:
    """`torch` as those layers are to see it; the C++ functions of the fast path are told anew below."""

    def __init__(self, watch: _Watch) -> None:
        self.overrides = SimpleNamespace(has_torch_function=lambda tensors: False)
        own = SimpleNamespace(_privateuse1_backend_name="meta")  # this device has a fast path as well
        self.utils = SimpleNamespace(backend_registration=own)
        self._transformer_encoder_layer_fwd = partial(_encoder_layer, watch)
        self._native_multi_head_attention = partial(_self_attention, watch)
        self._nested_tensor_from_mask = self._nested_tensor_from_mask_left_aligned = _refuse_nesting

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def _refuse_nesting(*_, **__) -> None:
    raise NeedsValues(
        "nn.TransformerEncoder packs a padded batch into nested tensors, by the values of its mask: predict"
        " with enable_nested_tensor=False, or record a trace"
    )


def _encoder_layer(
    watch, src, embed_dim, heads, qkv_weight, qkv_bias, out_weight, out_bias, gelu, norm_first, eps,
    weight_1, bias_1, weight_2, bias_2, up_weight, up_bias, down_weight, down_bias, mask=None, mask_type=None,
):  # fmt: skip
    """transformer_encoder_layer_forward of transformers/transformer.cpp; src is [batch, length, width]."""

    def norm(x, weight, bias):
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, weight_1, bias_1) if norm_first else src
    own = (qkv_weight, qkv_bias, out_weight, out_bias, mask, False, True, mask_type)
    x = _self_attention(watch, x, x, x, embed_dim, heads, *own)[0].add_(src)
    x = x if norm_first else norm(x, weight_1, bias_1)
    y = norm(x, weight_2, bias_2) if norm_first else x
    y = torch._addmm_activation(up_bias, y.view(-1, embed_dim), up_weight.t(), use_gelu=gelu)
    y = torch.addmm(down_bias, y, down_weight.t()).view(x.shape).add_(x)
    return y if norm_first else norm(y, weight_2, bias_2)


def _self_attention(
    watch, query, key, value, embed_dim, heads, qkv_weight, qkv_bias, out_weight, out_bias,
    mask=None, need_weights=True, average=True, mask_type=None,
):  # fmt: skip
    """native_multi_head_attention of transformers/attention.cpp, cuda/attention.cu; key, value are query."""
    qkv_weight = qkv_weight.detach()  # below autograd nobody knows any more whether it wants a gradient
    if watch.on is not None and watch.on.kind == "cuda":
        watch.note(_FROM_SOURCES)
        if mask is None and not need_weights and _is_fused(watch, query, heads):
            out = _attended(F.linear(query, qkv_weight, qkv_bias), heads)
            return F.linear(out, out_weight, out_bias), None
    batch, length, width = query.shape
    parts = (batch * heads, length, embed_dim // heads)
    qkv = (query @ qkv_weight.t(), qkv_bias, heads)
    q = watch.stand_in("aten::_transform_bias_rescale_qkv", qkv, query.new_empty(parts, device="meta"))
    scores = torch.bmm(q, q.transpose(1, 2)).view(batch, heads, length, length)
    weights = _hidden(watch, scores, mask, mask_type) if mask is not None else scores.softmax(-1)
    out = torch.bmm(weights.view(parts[0], length, length), q)
    out = out.view(batch, heads, length, -1).permute(0, 2, 1, 3).contiguous().view(-1, width)
    out = F.linear(out, out_weight, out_bias).view(query.shape)
    if need_weights and average:
        weights = weights.sum(1).div_(heads)
    return out, weights if need_weights else None


_FROM_SOURCES = (
    "uncertain: the fast path of torch.nn layers on a GPU is told from the sources of torch and was compared"
    " with traces of CPUs only; torch.backends.mha.set_fastpath_enabled(False) turns it off, here and there"
)


def _is_fused(watch: _Watch, query: torch.Tensor, heads: int) -> bool:
    """cuda/attention.cu asks for a backend before there are q, k and v, with the input in their place."""
    batch, length, width = query.shape
    if width // heads % 8:
        return False
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        meta = query if query.is_meta else watch.meta(query)
        q = meta.view(batch, length, heads, -1).transpose(1, 2)
        return sdpa.sdpa_choice(q, q, q, on=watch.on).taken in ("flash", "efficient", "cudnn")


def _attended(qkv: torch.Tensor, heads: int) -> torch.Tensor:
    batch, length, _ = qkv.shape
    q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in qkv.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, -1)


def _hidden(watch: _Watch, scores, mask, mask_type) -> torch.Tensor:
    """masked_softmax of transformers/attention.cpp, masked_softmax_cuda of cuda/SoftMax.cu for short rows."""
    mask = mask if mask.dtype is torch.bool else mask.to(torch.bool)
    length, on_gpu = scores.shape[-1], watch.on is not None and watch.on.kind == "cuda"
    if on_gpu and (length > 1024 or length * scores.element_size() > 4096 or not mask.is_contiguous()):
        mask = mask[:, None, None].expand(scores.shape) if mask_type == 1 else mask
        return scores.masked_fill(mask, -math.inf).softmax(-1)
    return watch.stand_in("aten::_masked_softmax", (scores, mask, -1, mask_type), torch.empty_like(scores))
