"""Chapter 4's models: attention written out rung by rung, fused attention, and one step of decoding.

The functions take q [batch, heads, q_len, head_dim] and k, v [batch, kv_heads, kv_len, head_dim]; with fewer
kv_heads than heads, each head of k and v serves heads / kv_heads neighbouring heads of q. `Attention` and
`Decode` are configs as in `models`, `math_items` opens the math backend, `planned_memory`
says what a call will allocate.

Two conventions meet here and are opposite: in `mask` of the written-out functions True hides a score, as
`masked_fill` has it; in `attn_mask` of `scaled_dot_product_attention` True keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F
from torch._C import DispatchKey
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tutorial_lib import cost, timeline, units
from tutorial_lib.cost import Cost, Work
from tutorial_lib.models import _normal, _validated, _validated_kind

Tensor = torch.Tensor

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


# ------------------------------------------------------------------------------------------ attention by hand


def naive(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ · scale) v as it is written; a bool mask is True where a score is hidden."""
    k, v = shared(k, q), shared(v, q)
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores = scores * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """`naive` with `masked_fill_`, which writes into the scores instead of into a copy of them."""
    k, v = shared(k, q), shared(v, q)
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores = scores * q.shape[-1] ** -0.5
    if mask is not None:
        scores.masked_fill_(mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def scaled_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """`in_place` with q scaled instead of the scores, which have kv_len / head_dim times as many elements."""
    k, v = shared(k, q), shared(v, q)
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-2, -1))
    if mask is not None:
        scores.masked_fill_(mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def additive(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Mask and scale in the GEMM: bias + scale · q kᵀ; bias [q_len, kv_len] is 0 or -inf, in q's dtype."""
    k, v = shared(k, q), shared(v, q)
    flat_q, flat_k = q.flatten(0, 1), k.flatten(0, 1)
    scores = torch.baddbmm(bias, flat_q, flat_k.transpose(-2, -1), alpha=q.shape[-1] ** -0.5)
    return torch.matmul(torch.softmax(scores, dim=-1).view(*q.shape[:-1], -1), v)


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *, causal: bool = False, backend=None
) -> Tensor:
    """torch's own attention; `backend` pins one of BACKENDS, else torch takes the first that can run."""
    with sdpa_kernel(BACKENDS[backend]) if backend else nullcontext():
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )


def shared(x: Tensor, q: Tensor) -> Tensor:
    """k or v with each head repeated for the heads of q that share it: a copy, or x itself when none do."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def causal_mask(seq: int, device: str | torch.device = "cpu") -> Tensor:
    """[seq, seq], True above the diagonal: query i does not see keys i + 1 and later."""
    return torch.ones(seq, seq, dtype=torch.bool, device=device).triu(1)


def causal_bias(seq: int, dtype: str, device: str | torch.device = "cpu") -> Tensor:
    """`causal_mask` as an addend: -inf where it is True, 0 elsewhere."""
    zeros = torch.zeros(seq, seq, dtype=getattr(torch, dtype), device=device)
    return zeros.masked_fill(causal_mask(seq, device), float("-inf"))


VARIANTS = {
    "naive": naive, "in_place": in_place, "scaled_query": scaled_query, "additive": additive, "sdpa": sdpa
}  # fmt: skip


# ----------------------------------------------------------------------------------------------- the workload


@dataclass(frozen=True)
class Attention:
    """Chapter 4: attention of q [batch, heads, seq, head_dim] to itself; the defaults are the cited shape.

    `variant` names one of VARIANTS, `kv_heads` (all heads, unless given) divides `heads`, and `backend` pins
    one of BACKENDS for the variant "sdpa". Without one torch picks: a fused kernel where one is eligible.
    """

    batch: int = 8
    heads: int = 16
    seq: int = 1024
    head_dim: int = 64
    kv_heads: int | None = None
    causal: bool = True
    dtype: str = "bfloat16"
    variant: str = "naive"
    backend: str | None = None

    def __post_init__(self) -> None:
        _validated_attention(self, "batch", "heads", "seq", "head_dim")
        if self.variant == "additive" and not self.causal:
            raise ValueError('Attention.variant "additive" needs causal=True; use "scaled_query" instead')

    def build(self, device: str | torch.device = "cpu") -> Callable[..., Tensor]:
        """The function to run; it holds no parameters, so the device does not matter."""
        if self.variant == "sdpa":
            return partial(sdpa, causal=self.causal, backend=self.backend)
        return VARIANTS[self.variant]

    def inputs(self, device: str | torch.device = "cpu") -> tuple[Tensor, ...]:
        """q, k, v from a normal distribution, and the mask that the written-out variants take when causal."""
        q, k, v = _qkv(self, self.seq, self.seq, device)
        if self.variant == "additive":
            return q, k, v, causal_bias(self.seq, self.dtype, device)
        if self.variant == "sdpa" or not self.causal:
            return q, k, v
        return q, k, v, causal_mask(self.seq, device)

    def costs(self, kind: str = "cuda") -> tuple[Work, ...]:
        """The work items of one forward call: 6 naive, 5 in place or with q scaled, 4 additive, 1 fused.

        Keys and values shared between heads add two copies, except where the kernel is fused. Not counted:
        the padding that flash adds on a GPU unless head_dim is a multiple of 8. A CPU may lack a batched
        product with an addend in half precision: "additive" then runs one product for each head.
        """
        _validated_kind(kind)
        if self.variant == "sdpa":
            return _sdpa_costs(self, self.seq, self.seq, kind, causal=self.causal)
        return _written_out(self, self.seq, self.seq, masked=self.causal)

    @property
    def score_bytes(self) -> int:
        """Bytes of one matrix of scores [batch, heads, seq, seq] in this dtype."""
        return self.batch * self.heads * self.seq**2 * units.itemsize(self.dtype)

    def memory(self) -> Memory:
        """What one forward call without gradients is to allocate, by a run on the meta device.

        A fused kernel is not run: it allocates its output and, if flash, a float32 log-sum-exp for each
        query. Without a pinned backend flash is assumed. A CPU's scratch space is not counted.
        """
        if self.variant == "sdpa" and self.backend != "math":
            log_sum_exp = 0 if self.backend in ("efficient", "cudnn") else 4
            row = self.head_dim * units.itemsize(self.dtype) + log_sum_exp
            allocated = self.batch * self.heads * self.seq * row
            return Memory(allocated, allocated)
        with torch.no_grad():
            return planned_memory(self.build("meta"), *self.inputs("meta"))


def decode(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, position: int, attend: Callable = naive
) -> Tensor:
    """One new token: its k and v go into the caches at `position`, and its q attends to all up to there.

    No mask: what is in the cache is the past, and one query may see all of it. `is_causal=True` would be
    wrong, since torch aligns it top left: the only row of the mask is row 0, which sees key 0 and no other.
    """
    k_cache[:, :, position : position + 1] = k
    v_cache[:, :, position : position + 1] = v
    return attend(q, k_cache[:, :, : position + 1], v_cache[:, :, : position + 1])


@dataclass(frozen=True)
class Decode:
    """Chapter 4: one step of decoding, q, k and v [batch, .., 1, head_dim], kv_len keys with the new one."""

    batch: int = 8
    heads: int = 16
    kv_len: int = 1024
    head_dim: int = 64
    kv_heads: int | None = None
    dtype: str = "bfloat16"
    variant: str = "naive"
    backend: str | None = None

    def __post_init__(self) -> None:
        _validated_attention(self, "batch", "heads", "kv_len", "head_dim")
        if self.variant not in ("naive", "sdpa"):  # the others differ in their mask, and here is none
            raise ValueError(f'Decode.variant must be "naive" or "sdpa", got {self.variant!r}')

    def build(self, device: str | torch.device = "cpu") -> Callable[..., Tensor]:
        """The function to run: it writes into the caches that it is given, each call at the same place."""
        attend = partial(sdpa, backend=self.backend) if self.variant == "sdpa" else naive
        return partial(decode, position=self.kv_len - 1, attend=attend)

    def inputs(self, device: str | torch.device = "cpu") -> tuple[Tensor, ...]:
        """q, k, v of the new token, then the caches of k and v [batch, kv_heads, kv_len, head_dim]."""
        return (*_qkv(self, 1, 1, device), *_qkv(self, 1, self.kv_len, device)[1:])

    def costs(self, kind: str = "cuda") -> tuple[Work, ...]:
        """Two copies into the caches, then attention from one query.

        A fused kernel may come as two on a GPU: with so few queries flash splits the keys and adds up after.
        """
        _validated_kind(kind)
        written = cost.copy(self.batch * _kv_heads(self) * self.head_dim, self.dtype)
        if self.variant == "sdpa":
            return (written, written, *_sdpa_costs(self, 1, self.kv_len, kind, causal=False))
        return (written, written, *_written_out(self, 1, self.kv_len, masked=False))


def _kv_heads(config) -> int:
    return config.heads if config.kv_heads is None else config.kv_heads


def _qkv(config, q_len: int, kv_len: int, device) -> tuple[Tensor, ...]:
    q, kv = (config.heads, q_len), (_kv_heads(config), kv_len)
    return tuple(
        _normal(config.batch, *size, config.head_dim, dtype=config.dtype, device=device)
        for size in (q, kv, kv)
    )


def _written_out(config, q_len: int, kv_len: int, *, masked: bool) -> tuple[Work, ...]:
    batch, width, dtype = config.batch * config.heads, config.head_dim, config.dtype
    scores = {"elements": batch * q_len * kv_len, "dtype": dtype, "reads": 1}
    flat = config.variant == "additive"  # baddbmm takes batch and heads as one
    shape = (batch, q_len, kv_len) if flat else (config.batch, config.heads, q_len, kv_len)
    weights = replace(cost.softmax(batch * q_len, kv_len, dtype), shapes=(shape,))
    return (
        *_repeated(config, kv_len),
        *_scores(config, q_len, kv_len, scores, shape, masked=masked),
        weights,
        _bmm(batch, q_len, kv_len, width, dtype),
    )


def _scores(
    config, q_len: int, kv_len: int, scores: dict, shape: tuple[int, ...], *, masked: bool
) -> list[Work]:
    """From q and k to scaled scores with what is to be hidden at -inf."""
    batch, width, dtype = config.batch * config.heads, config.head_dim, config.dtype
    if config.variant == "additive":
        # As in Linear on a CPU: the addend is spread over the output, and the GEMM adds to what is there.
        spread = cost.copy(scores["elements"], dtype, read_elements=q_len * kv_len)
        return [replace(spread, shapes=(shape, (q_len, kv_len))), cost.baddbmm(q_len, width, kv_len, dtype, batch=batch)]
    product, scaled = _bmm(batch, q_len, width, kv_len, dtype), cost.pointwise("aten::mul", **scores)
    items = [product, replace(scaled, shapes=(shape,))]
    if config.variant == "scaled_query":
        query = cost.pointwise("aten::mul", **scores | {"elements": batch * q_len * width})
        items = [replace(query, shapes=((*shape[:-1], width),)), product]
    if masked and config.variant == "naive":  # masked_fill copies and then fills the copy
        items.append(replace(cost.copy(scores["elements"], dtype), shapes=(shape, shape)))
    if masked:
        fill = cost.pointwise("aten::masked_fill_", flops_per_element=0, **scores)
        shapes = (shape, (q_len, kv_len))  # the mask has one byte each, for all heads the same
        items.append(replace(fill, cost=fill.cost + Cost(0, q_len * kv_len), shapes=shapes))
    return items


def _repeated(config, kv_len: int) -> tuple[Work, ...]:
    """k and v, written once for each head that uses them: two copies, or nothing when none is shared."""
    if _kv_heads(config) == config.heads:
        return ()
    row = config.batch * kv_len * config.head_dim
    return (cost.copy(row * config.heads, config.dtype, read_elements=row * _kv_heads(config)),) * 2


def _bmm(batch: int, m: int, k: int, n: int, dtype: str) -> Work:
    """A batched product; torch.matmul on 4-D tensors runs bmm for a batch of one as well."""
    shapes = ((batch, m, k), (batch, k, n))
    return replace(cost.matmul(m, k, n, dtype, batch=batch), operator="aten::bmm", shapes=shapes)


def _sdpa_costs(config, q_len: int, kv_len: int, kind: str, *, causal: bool) -> tuple[Work, ...]:
    if config.backend == "math":
        return math_work(*_qkv(config, q_len, kv_len, "meta"), causal=causal, kind=kind)
    name = {"cuda": config.backend, "cpu": "flash"}[kind]
    if kind == "cpu" and config.backend not in (None, "flash"):
        raise ValueError(f'the backend "{config.backend}" has no CPU kernel: pin "flash" or "math", or none')
    work = cost.attention(
        config.batch,
        config.heads,
        q_len,
        kv_len,
        config.head_dim,
        config.dtype,
        causal=causal,
        kv_heads=_kv_heads(config),
    )
    suffix = "_for_cpu" if kind == "cpu" else ""
    return (replace(work, operator=f"aten::_scaled_dot_product_{name}_attention{suffix}") if name else work,)


def _validated_attention(config, *names: str) -> None:
    name = type(config).__name__
    _validated(config, *names)
    if config.kv_heads is not None:  # None stays: dataclasses.replace(config, heads=..) is then still whole
        _validated(config, "kv_heads")
    if config.heads % _kv_heads(config):
        raise ValueError(f"{name}.kv_heads must divide heads = {config.heads}, got {config.kv_heads}")
    if config.variant not in VARIANTS:
        raise ValueError(f"{name}.variant must be one of {', '.join(VARIANTS)}, got {config.variant!r}")
    if config.backend is not None and (config.variant != "sdpa" or config.backend not in BACKENDS):
        raise ValueError(
            f'{name}.backend is one of {", ".join(BACKENDS)}, with variant "sdpa"; got {config.backend!r}'
        )


# ------------------------------------------------------------------------------------------- the math backend


def math_items(config: Attention | Decode, kind: str = "cuda") -> pd.DataFrame:
    """The work items of the math backend for this config, one row each, with the reason why each is there.

    Columns: operator, shapes, dtype, bytes_moved, why. The current setting of
    `torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp` is obeyed: with it nothing is cast up and back.
    """
    q_len, kv_len, causal = (
        (1, config.kv_len, False) if isinstance(config, Decode) else (config.seq, config.seq, config.causal)
    )
    work = math_work(*_qkv(config, q_len, kv_len, "meta"), causal=causal, kind=kind)
    rows = [
        (w.operator, " ".join(str(list(s)) for s in w.shapes), w.dtype, w.bytes_moved, why)
        for w, why in zip(work, _reasons(work), strict=True)
    ]
    return pd.DataFrame(rows, columns=["operator", "shapes", "dtype", "bytes_moved", "why"])


def math_work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    kind: str = "cuda",
) -> tuple[Work, ...]:
    """The work items of the math backend for one call, from tensors of which only the layout counts."""
    options = {"is_causal": causal, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    with sdpa_kernel(SDPBackend.MATH):
        return work_beneath(partial(F.scaled_dot_product_attention, **options), q, k, v, attn_mask, kind=kind)


def work_beneath(fn: Callable, *inputs: object, kind: str = "cuda") -> tuple[Work, ...]:
    """The work items of a call, where torch's own composite code says what its operators are made of.

    It runs on the meta device. A number that is made on a GPU (`scalar_tensor`) is a fill of one element, and
    a kernel; a CPU writes it without an operator. Raises ValueError for an operator whose cost is not known.
    """
    _validated_kind(kind)
    calls = _run_on_meta(fn, inputs).calls
    return tuple(_costed(c) for c in calls if kind == "cuda" or c[:2] != ("aten::fill_", ((), ())))


def _costed(call: tuple) -> Work:
    name, shapes, dtypes, strides, concrete = call
    found = cost.operator(name, shapes, dtypes, strides=strides, concrete=concrete)
    if found is None:
        raise ValueError(f"no cost is known for {name} on {list(shapes)}; state its work with cost")
    return found


def _reasons(work: Sequence[Work]) -> list[str]:
    """Why each item is there, by how many GEMMs came before it and how many of its name since then."""
    reasons, phase, seen = [], "before", Counter()
    for w in work:
        if w.operator == "aten::bmm":
            phase = {"before": "between", "between": "after"}[phase]
        texts = _WHY[phase].get(w.operator, ("",))
        if w.operator == "aten::copy_" and len(w.shapes[0]) == 5:  # [batch, kv_heads, sharing, ..]
            texts = ("k or v written once for each head that shares it",)
        reasons.append(texts[min(seen[phase, w.operator], len(texts) - 1)])
        seen[phase, w.operator] += 1
    return reasons


_WHY = {
    "before": {
        "aten::copy_": tuple(f"{name} cast up, for sums in float32" for name in "qkv"),
        "aten::mul": ("q times the root of the scale", "kᵀ times the root of the scale: both stay small"),
        "aten::fill_": ("the mask is made in each call: all True", "the number -inf", "the number 0"),
        "aten::tril": ("the mask: True on and below the diagonal",),
        "aten::where": ("the mask as an addend: 0 where True, -inf elsewhere",),
    },
    "between": {
        "aten::bmm": ("the scores",),
        "aten::add_": ("the mask, added to every head's scores",),
        "aten::_softmax": ("the weights",),
        "aten::isneginf": ("safe softmax: which scores are hidden",),
        "aten::all": ("safe softmax: in which rows all are",),
        "aten::fill_": ("the number 0 that those rows get instead of NaN",),
        "aten::where": ("safe softmax: put it there",),
        "aten::copy_": ("the weights cast back, a second result that nobody reads",),
    },
    "after": {
        "aten::bmm": ("weights times v",),
        "aten::copy_": ("the output cast back",),
    },
}


class _Below(TorchDispatchMode):
    """Writes down the operators that compute, and what they allocate, beneath those that only call others.

    Where torch has composite code for an operator that `timeline` knows as a caller, that code runs under the
    watch too: `_to_copy` shows its copy_, `ones` its fill_, `_safe_softmax` the five that it is made of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []  # arguments of cost.operator
        self.allocated_bytes = self.peak_bytes = 0
        self.in_sdpa = False
        self._known: dict[int, StorageWeakRef] = {}  # held weakly: who frees what, and when, stays as it is
        self._live: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(torch.Tensor, _without_memory, (args, kwargs or {}))
        if any(a.name == "device" for a in func._schema.arguments):
            kwargs = {**kwargs, "device": torch.device("meta")}  # a factory would make real memory
        key = _composite(func) if func._schema.name in _CALLERS else None
        if key is not None:
            with self:
                return func._op_dk(key, *args, **kwargs)
        if self.in_sdpa and func is torch.ops.aten.add.Tensor:
            func = torch.ops.aten.add_.Tensor  # the mask is added in place, except when somebody watches
        self._meet((args, kwargs), new=False)
        result = func(*args, **kwargs)
        self._meet(result, new=True)
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not view and func._schema.name not in _NO_WORK:
            self.calls.append(_recorded(func, args, kwargs))
        return result

    def _meet(self, values: object, *, new: bool) -> None:
        """Storages not met before are the caller's when they come in, and allocated when they come out."""
        for tensor in tree_leaves(values):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in self._known:
                self._known[storage._cdata] = StorageWeakRef(storage)
                self._live[storage._cdata] = storage.nbytes() if new else 0
                self.allocated_bytes += self._live[storage._cdata]
        self._live = {key: size for key, size in self._live.items() if not self._known[key].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(self._live.values()))


class _Api(TorchFunctionMode):
    """Tells the watch when a call is inside of scaled_dot_product_attention or its math backend."""

    def __init__(self, watch: _Below) -> None:
        self.watch = watch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        before = self.watch.in_sdpa
        self.watch.in_sdpa = before or func in _SDPA
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.watch.in_sdpa = before


_MATH = torch.ops.aten._scaled_dot_product_attention_math
_SDPA = (F.scaled_dot_product_attention, _MATH, _MATH.default)
_CALLERS = timeline.WRAPPERS | {"aten::_safe_softmax"}
_NO_WORK = timeline.VIEWS | timeline.ALLOCATIONS


def _composite(func) -> DispatchKey | None:
    """Where torch has this operator written in terms of others; None when it has a kernel of its own."""
    for key in (DispatchKey.CompositeImplicitAutograd, DispatchKey.CompositeExplicitAutograd):
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
            return key
    return None


def _without_memory(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _recorded(func, args: tuple, kwargs: dict) -> tuple:
    """Name, shapes, dtypes, strides and values of a call, one entry per argument, as a trace has them."""
    named = enumerate(func._schema.arguments)
    values = [args[i] if i < len(args) else kwargs.get(a.name, a.default_value) for i, a in named]
    described = [
        (tuple(v.shape), str(v.dtype), v.stride(), "")
        if isinstance(v, Tensor)
        else ((), "", (), "") if v is None else ((), "Scalar", (), str(v))
        for v in values
    ]  # fmt: skip
    return func._schema.name, *map(tuple, zip(*described, strict=True))


def _run_on_meta(fn: Callable, inputs: tuple) -> _Below:
    watch = _Below()
    on_meta = tree_map_only(torch.Tensor, _without_memory, inputs)
    with _Api(watch), watch:
        fn(*on_meta)
    return watch


# ----------------------------------------------------------------------------------------------------- memory


@dataclass(frozen=True)
class Memory:
    """What a call allocates: the most at one time, its result included, and all of it added up, in bytes."""

    peak_bytes: int
    allocated_bytes: int


def planned_memory(fn: Callable, *inputs: object) -> Memory:
    """What a call is to allocate, found on the meta device without running it.

    Counted are the results of operators, from the moment each is made to the moment nobody holds it. What a
    kernel allocates for itself is not seen; in place of a fused attention kernel the math backend runs.
    """
    watch = _run_on_meta(fn, inputs)
    return Memory(watch.peak_bytes, watch.allocated_bytes)
