"""Which backend `scaled_dot_product_attention` takes for one call, and why each of the others does not run.

PyTorch walks a list of backends in a fixed order and takes the first that is allowed and can run the call; no
times are compared. For the machine at hand torch itself is asked. For a named GPU `RULES` apply, those in
PyTorch's aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and ../sdp_utils_cpp.h, in their order, retold
with the function that each comes from. They were read in the sources; which release has which was read in the
CUDA libraries of torch 2.11.0 to 2.14.0 on PyPI, in their warnings and their instances of templates.

Not covered: nested tensors, AMD and Intel GPUs, FlashAttention 3 and 4 that a user activates, and what a
backend's library refuses only when it runs, but for masks.
"""

from __future__ import annotations

import contextlib
import html
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pandas as pd
import torch
from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel

from tutorial_lib import attention, units
from tutorial_lib.attention import BACKENDS
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware

_ORDER = ("flash", "efficient", "math", "cudnn")
_CUDNN_FIRST = ("cudnn", "flash", "efficient", "math")
_CPU_ORDER = ("flash", "math")


@dataclass(frozen=True)
class Candidate:
    """One backend of the list: `outcome` is taken, outranked, refused or not allowed, `reason` says why.

    `could_run`: it is eligible for this call, allowed or not. `source`: the function of PyTorch that decides.
    """

    backend: str
    outcome: str
    reason: str
    source: str
    could_run: bool


@dataclass(frozen=True)
class Choice:
    """What scaled_dot_product_attention does with one call on one device.

    `taken` is flash, efficient, cudnn or math; None when nothing that is allowed can run, and `error` is then
    what torch raises. `order` is the list it walks. `asked`: the answer is torch's own on this machine, and
    not that of the rules. `notes`: what was assumed, and what runs beside the kernel.
    """

    taken: str | None
    order: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    call: str
    device: str
    asked: bool
    error: str | None = None
    notes: tuple[str, ...] = ()

    def why_not(self, backend: str) -> str | None:
        """Why this backend is not the one taken; None for the one that is. ValueError for an unknown name."""
        for candidate in self.candidates:
            if candidate.backend == backend:
                return None if candidate.outcome == "taken" else candidate.reason
        raise ValueError(f"{backend!r} is no backend of {self.device}; its list is {', '.join(self.order)}")

    def table(self) -> pd.DataFrame:
        """One row a backend in the order torch tries them: backend, outcome, reason, could_run, source."""
        columns = ["backend", "outcome", "reason", "could_run", "source"]
        rows = [[getattr(c, name) for name in columns] for c in self.candidates]
        return pd.DataFrame(rows, columns=columns)

    def _title(self) -> str:
        what = f"takes {self.taken}" if self.taken else "cannot run"
        return f"SDPA {what} on {units.plain(self.device)}: {units.plain(self.call)}"

    def _remarks(self) -> tuple[str, ...]:
        raised = (f"torch raises: {units.plain(self.error)}",) if self.error else ()
        return (*raised, *self.notes)

    def __str__(self) -> str:
        wide = [max(len(getattr(c, name)) for c in self.candidates) for name in ("backend", "outcome")]
        rows = [
            f"  {rank}. {c.backend:<{wide[0]}}  {c.outcome:<{wide[1]}}  {units.plain(c.reason)}"
            for rank, c in enumerate(self.candidates, 1)
        ]
        return "\n".join([self._title(), *rows, *(f"  {remark}" for remark in self._remarks())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        headings = ("backend", "outcome", "reason", "where torch decides")
        head = "".join(f'<th scope="col">{name}</th>' for name in headings)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(units.plain(text))}</td>" for text in row) + "</tr>"
            for row in ((c.backend, c.outcome, c.reason, c.source) for c in self.candidates)
        )
        remarks = "".join(f"<p>{html.escape(remark)}</p>" for remark in self._remarks())
        caption = f"<caption>{html.escape(self._title())}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{remarks}"


def sdpa_choice(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    on: Hardware | None = None,
) -> Choice:
    """The backend that SDPA of q [.., H, L, D], k [.., H, S, D] and v [.., H, S, Dv] takes, and why.

    Without `on`, torch is asked about the device that the tensors are on. With a card, its rules are applied
    to shapes, strides, dtypes and requires_grad alone, so that meta tensors will do. `sdpa_kernel` and the
    switches of torch.backends.cuda count as they stand. ValueError when no backend at all takes such a call.
    """
    call = SimpleNamespace(
        q=q, k=k, v=v, mask=attn_mask, dropout=dropout_p, causal=is_causal, scale=scale, gqa=enable_gqa
    )
    _refuse_other_inputs(call, on)
    if on is not None and on.kind == "cuda":
        if on.compute_capability is None:
            raise ValueError(f"{on.name} has no compute capability, which the rules ask for: name it")
        return _by_rules(call, on)
    device = "cpu" if on is not None else call.q.device.type
    return _on_this_cpu(call) if device == "cpu" else _on_this_gpu(call)


def work(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    on: Hardware,
) -> tuple[Work, ...]:
    """The work items of one SDPA call on this device, after `sdpa_choice`, which takes the same arguments.

    A fused kernel is one item, behind what its mask or an odd head dim needs first; math is what it calls.
    Raises ValueError when the call cannot run there, or an item's cost is not known.
    """
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    backend = _runnable(q, k, v, attn_mask=attn_mask, **options, on=on)
    if backend == "math":
        if dropout_p:
            raise ValueError("dropout in the math backend is not covered: predict without, or record a trace")
        return attention.math_work(q, k, v, attn_mask, causal=is_causal, scale=scale, kind=on.kind)
    steps = partial(_steps, **options, backend=backend, kind=on.kind)
    given = (q, k, v, attn_mask)
    return attention.work_beneath(lambda *t: steps(*t[:3], attn_mask=t[3]), *given, kind=on.kind)


def result(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, on: Hardware, **options) -> torch.Tensor:
    """A meta tensor laid out as what SDPA returns on this device; meta tensors in, and `work`'s arguments."""
    return _steps(q, k, v, **options, backend=_runnable(q, k, v, **options, on=on), kind=on.kind)


def _runnable(q, k, v, *, on: Hardware, **options) -> str:
    choice = sdpa_choice(q, k, v, **options, on=on)
    if choice.taken is None:
        raise ValueError(f"{choice.call} cannot run on {choice.device}; torch raises: {choice.error}")
    return choice.taken


def _steps(
    q, k, v, *, backend, kind, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """What scaled_dot_product_attention of attention.cpp calls once the backend is known."""
    if backend != "math" and q.dim() == 3:  # from 2.14 on fused kernels run without a batch, too
        mask = attn_mask
        while mask is not None and mask.dim() < 4:
            mask = mask[None]
        given = {"attn_mask": mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        return _steps(q[None], k[None], v[None], backend=backend, kind=kind, **given)[0]
    aten, mask, causal = torch.ops.aten, attn_mask, is_causal
    if mask is not None and mask.dtype is torch.bool:
        zero, hidden = (torch.scalar_tensor(x, dtype=q.dtype, device=mask.device) for x in (0, -math.inf))
        mask = torch.where(mask, zero, hidden)
    if backend == "math":
        rest = {"scale": scale, "enable_gqa": enable_gqa}
        return aten._scaled_dot_product_attention_math(q, k, v, mask, dropout_p, causal, None, **rest)[0]
    if kind == "cpu":
        found = aten._scaled_dot_product_flash_attention_for_cpu
        return found(q, k, v, dropout_p, causal, attn_mask=mask, scale=scale)[0]
    if backend == "cudnn":
        found = aten._scaled_dot_product_cudnn_attention
        return found(q, k, v, mask, False, dropout_p, causal, False, scale=scale)[0]
    if backend == "efficient":
        mask = None if mask is None else _padded_rows(mask).expand(*q.shape[:-1], k.shape[-2])
        found = aten._scaled_dot_product_efficient_attention
        return found(q, k, v, mask, False, dropout_p, causal, scale=scale)[0]
    width, rest = q.shape[-1], -q.shape[-1] % 8
    if rest:
        scale = width**-0.5 if scale is None else scale
        q, k, v = (torch.nn.functional.pad(t, (0, rest)) for t in (q, k, v))
    out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, causal, False, scale=scale)[0]
    return out[..., :width] if rest else out


def _padded_rows(mask: torch.Tensor) -> torch.Tensor:
    """preprocess_mask of attention.cpp: rows start at multiples of 8 elements, if need be by a copy."""
    if mask.stride(-1) == 1 and all(stride % 8 == 0 for stride in mask.stride()[:-1]):
        return mask
    width = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, 8 - width % 8))[..., :width]


@contextlib.contextmanager
def pinned(backend: str) -> Iterator[None]:
    """Allow SDPA this backend alone, by its name here; a call it cannot run raises torch's RuntimeError."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is one of {', '.join(BACKENDS)}, got {backend!r}")
    with sdpa_kernel(BACKENDS[backend]):
        yield


def _refuse_other_inputs(call: SimpleNamespace, on: Hardware | None) -> None:
    tensors = {"q": call.q, "k": call.k, "v": call.v, "attn_mask": call.mask}
    for name, tensor in tensors.items():
        if tensor is None and name == "attn_mask":
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} is a tensor, got {type(tensor).__name__}")
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise ValueError(f"{name} is nested or sparse, which is not covered: pass dense tensors")
        if tensor.device != call.q.device:
            raise ValueError(f"{name} is on {tensor.device} and q on {call.q.device}: move them together")
    if not 0 <= call.dropout <= 1:
        raise ValueError(f"dropout_p is between 0 and 1, got {call.dropout!r}")
    if on is None and call.q.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f'tensors on "{call.q.device.type}" belong to no device that is known here: name one,'
            ' on=hardware.find("A100")'
        )
    _refuse_what_torch_refuses(call)


def _refuse_what_torch_refuses(call: SimpleNamespace) -> None:
    """Shapes and dtypes that fit no backend: math is run on meta tensors, and torch's own words are kept."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        q, k, v = (t.to("meta") for t in (call.q, call.k, call.v))
        mask = None if call.mask is None else call.mask.to("meta")
        causal = call.causal and mask is None  # both together are a matter of the backend
        try:
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, mask, call.dropout, causal, scale=call.scale, enable_gqa=call.gqa
            )
        except (RuntimeError, IndexError) as error:
            said = str(error).splitlines()[0]
            raise ValueError(f"no SDPA backend takes this call; torch says: {said}") from error


def _described(call: SimpleNamespace) -> str:
    """`q [8, 16, 1024, 64], k and v alike, bfloat16, causal` and what else was asked for."""
    shapes = [list(t.shape) for t in (call.q, call.k, call.v)]
    same = f"q, k, v {shapes[0]}"
    parts = [same if shapes[0] == shapes[1] == shapes[2] else "q {}, k {}, v {}".format(*shapes)]
    parts.append(units.dtype_name(call.q.dtype))
    parts += ["causal"] if call.causal else []
    if call.mask is not None:
        parts.append(f"{units.dtype_name(call.mask.dtype)} mask {list(call.mask.shape)}")
    parts += [f"dropout {call.dropout:g}"] if call.dropout else []
    parts += ["enable_gqa"] if call.gqa else []
    parts += ["training"] if _trains(call) else []
    return ", ".join(parts)


def _trains(call: SimpleNamespace) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in (call.q, call.k, call.v))


def _allowed() -> dict[str, bool]:
    return {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }


# ---------------------------------------------------------------------------------- from reasons to a choice


_NONE_ALLOWED = (
    "No viable backend for scaled_dot_product_attention was found. This is likely due to turning off both the"
    " math kernel and the fused kernels."
)
_NONE_CAN = "No available kernel. Aborting execution."
_MASK_AND_CAUSAL = "_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
_MASK_DTYPE = "invalid dtype for bias - should match query's dtype"


def _choose(
    order: tuple[str, ...],
    refused: dict[str, tuple[str, str]],
    allowed: dict[str, bool],
    call: SimpleNamespace,
) -> tuple[str | None, tuple[Candidate, ...], str | None]:
    """The first backend that is allowed and not refused, all candidates, and the error if there is none.

    `refused` has a reason and its source. What torch does not look at before it selects a backend that cannot
    do it is an error when that runs, and no other is tried.
    """
    first = _selected(order, refused, allowed)
    late = {b: found for b in order if b not in refused and (found := _when_it_runs(b, call))}
    taken = None if first in late else first
    error = None if taken else _NONE_CAN if any(allowed.get(b) for b in order) else _NONE_ALLOWED
    error = late[first][0] if first in late else error
    refused = refused | late
    return taken, tuple(_candidate(b, first, refused.get(b), allowed[b]) for b in order), error


def _selected(order: tuple[str, ...], refused: dict, allowed: dict[str, bool]) -> str | None:
    return next((b for b in order if allowed[b] and b not in refused), None)


def _when_it_runs(backend: str, call: SimpleNamespace) -> tuple[str, str] | None:
    """What this backend raises once it was selected, in torch's words, and where; None when it runs."""
    if backend == "math" and call.causal and call.mask is not None:
        return _MASK_AND_CAUSAL, "attention.cpp: _scaled_dot_product_attention_math"
    if backend == "efficient" and _mask_of_another_dtype(call):
        return _MASK_DTYPE, "cuda/attention.cu: _efficient_attention_forward"
    return None


def _mask_of_another_dtype(call: SimpleNamespace) -> bool:
    """A float32 mask beside 16-bit q, k and v, which scaled_dot_product_attention lets pass, as booleans."""
    return call.mask is not None and call.mask.dtype not in (torch.bool, call.q.dtype)


def _misread(call: SimpleNamespace, taken: str | None, release: tuple[int, int]) -> tuple[str, ...]:
    """A note on a mask that cuDNN takes for one of q's dtype: MHA.cpp names no dtype of it before 2.14."""
    if taken != "cudnn" or release >= (2, 14) or not _mask_of_another_dtype(call):
        return ()
    mask, own = (units.dtype_name(t.dtype) for t in (call.mask, call.q))
    return (
        f"uncertain: torch before 2.14 lets cuDNN read the {mask} mask as {own}, and the result is wrong:"
        " pass attn_mask.to(q.dtype)",
    )


def _candidate(backend: str, first: str | None, refusal: tuple[str, str] | None, allowed: bool) -> Candidate:
    reason, source = refusal or ("", _PRIORITY)
    if not allowed:
        rest = f"; it would be refused as well: {reason}" if refusal else "; it could run"
        return Candidate(backend, "not allowed", f"switched off{rest}", source, refusal is None)
    if refusal:
        return Candidate(backend, "refused", reason, source, False)
    if backend == first:
        return Candidate(backend, "taken", "the first in the list that is allowed and can run", source, True)
    return Candidate(backend, "outranked", f"could run, but {first} comes before it", source, True)


_SHARED = (
    "check_tensor_shapes",
    "check_for_attn_mask",
    "check_attn_mask_shape",
    "check_batch_size_and_num_heads_dense",
    "check_nonzero_sequence_lengths_dense",
    "check_last_dim_stride_equals_1_dense",
)
_PRIORITY = "the order alone"


# ---------------------------------------------------------------------------------------------- a named GPU


@dataclass(frozen=True)
class Rule:
    """One condition of a backend: `check` returns the reason for a refusal, or None.

    `function`: the one of PyTorch that it retells; `since`, `until`: the first torch release with it and the
    first without, where they are not all that were read (2.11 to 2.14).
    """

    backend: str
    check: Callable[[SimpleNamespace], str | None]
    function: str
    since: tuple[int, int] = (2, 11)
    until: tuple[int, int] | None = None

    @property
    def source(self) -> str:
        return f"{'sdp_utils_cpp.h' if self.function in _SHARED else 'cuda/sdp_utils.cpp'}: {self.function}"

    def holds_in(self, release: tuple[int, int]) -> bool:
        return self.since <= release and (self.until is None or release < self.until)


def _release() -> tuple[int, int]:
    """The torch release whose rules apply: the installed one, and the nearest read where it is another."""
    major, minor = re.match(r"(\d+)\.(\d+)", torch.__version__).groups()
    return min(max((int(major), int(minor)), min(CUDNN_OF_RELEASE)), max(CUDNN_OF_RELEASE))


# torch's CUDA 13 wheels on PyPI: the cuDNN each asks for in its metadata (9.20.0 is 92000).
CUDNN_OF_RELEASE = {(2, 11): 91900, (2, 12): 92000, (2, 13): 92000, (2, 14): 92400}


def _by_rules(call: SimpleNamespace, on: Hardware) -> Choice:
    release = _release()
    told, call = _described(call), _with_batch(call, release)
    call.sm, call.half = on.compute_capability, call.q.dtype in (torch.float16, torch.bfloat16)
    call.cudnn, call.release = CUDNN_OF_RELEASE[release], release
    refused: dict[str, tuple[str, str]] = {}
    for rule in RULES:
        if rule.backend not in refused and rule.holds_in(release) and (reason := rule.check(call)):
            refused[rule.backend] = (reason, rule.source)
    order = _order(call)
    taken, candidates, error = _choose(order, refused, _allowed(), call)
    notes = _notes(call, taken, release)
    return Choice(taken, order, candidates, told, on.name, False, error, notes)


def _with_batch(call: SimpleNamespace, release: tuple[int, int]) -> SimpleNamespace:
    """From 2.14 on q, k and v without a batch dimension get one before anything is chosen."""
    if release < (2, 14) or [t.dim() for t in (call.q, call.k, call.v)] != [3, 3, 3]:
        return SimpleNamespace(**vars(call))
    q, k, v = (t.unsqueeze(0) for t in (call.q, call.k, call.v))
    mask = call.mask
    while mask is not None and mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return SimpleNamespace(**{**vars(call), "q": q, "k": k, "v": v, "mask": mask})


def _order(call: SimpleNamespace) -> tuple[str, ...]:
    """The order of a user if `sdpa_kernel(..., set_priority=True)` set one, else what torch starts with."""
    current = _current_order()
    here = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] in (9, 10)
    if current != _ORDER and not (here and current == _CUDNN_FIRST):  # a Hopper at hand starts with that one
        return current
    return _CUDNN_FIRST if _prefers_cudnn(call) else _ORDER


def _current_order() -> tuple[str, ...]:
    names = {int(enum): name for name, enum in BACKENDS.items()}
    return tuple(names[i] for i in torch._C._get_sdp_priority_order() if i in names)


def _prefers_cudnn(call: SimpleNamespace) -> bool:
    """check_prefer_cudnn_attention of cuda/sdp_utils.cpp: compute capability 9 and 10, cuDNN after 9.15.0."""
    switched_off = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
    return call.sm[0] in (9, 10) and call.cudnn > 91500 and not switched_off


def _four_dimensions(call) -> str | None:
    dims = [t.dim() for t in (call.q, call.k, call.v)]
    if dims != [4, 4, 4]:
        return "q, k and v must have 4 dimensions, they have {}, {} and {}".format(*dims)
    return None


def _no_mask(call) -> str | None:
    return "it takes no attn_mask; is_causal=True is the one mask it knows" if call.mask is not None else None


def _flash_head_dim(call) -> str | None:
    dims = [t.shape[-1] for t in (call.q, call.k, call.v)]
    if len(set(dims)) > 1:
        return "q, k and v must have one head dim, they have {}, {} and {}".format(*dims)
    return f"the head dim may be 256 at most, it is {dims[0]}" if dims[0] > 256 else None


def _capability(least: tuple[int, int]) -> Callable[[SimpleNamespace], str | None]:
    def check(call) -> str | None:
        if least <= call.sm <= (12, 1):
            return None
        return f"it needs compute capability {_dotted(least)} to 12.1, this card has {_dotted(call.sm)}"

    return check


def _flash_backward(call) -> str | None:
    """Above 192 its backward kernels need more shared memory than the small chips of a generation have."""
    width, small = call.q.shape[-1], (8, 6) <= call.sm <= (8, 9) or (12, 0) <= call.sm <= (12, 1)
    if not (small and _trains(call)) or width <= 192 or (width > 224 and not call.dropout):
        return None
    least = "at most 192, or above 224 without dropout"
    return (
        f"its backward pass on compute capability {_dotted(call.sm)} has head dims {least}, this is {width}"
    )


def _square_if_causal(call) -> str | None:
    q_len, kv_len = call.q.shape[-2], call.k.shape[-2]
    if call.causal and q_len != kv_len:
        return f"is_causal needs as many queries as keys, there are {q_len} and {kv_len}"
    return None


def _dtypes(*names: str, from_sm80: tuple[str, ...] = ()) -> Callable[[SimpleNamespace], str | None]:
    def check(call) -> str | None:
        allowed = (*names, *(from_sm80 if call.sm >= (8, 0) else ()))
        found = [units.dtype_name(t.dtype) for t in (call.q, call.k, call.v)]
        if found[0] in allowed and len(set(found)) == 1:
            return None
        if found[0] in from_sm80 and len(set(found)) == 1:
            return f"{found[0]} needs compute capability 8.0, this card has {_dotted(call.sm)}"
        return f"it takes {', '.join(allowed)}, and this is {', '.join(dict.fromkeys(found))}"

    return check


def _heads(*, grouped: bool, kv_alike: bool = True, single: bool = False) -> Callable:
    """`grouped`: it knows enable_gqa; `kv_alike`: k and v need equally many; `single`: one will do."""

    def check(call) -> str | None:
        (b_q, h_q), (b_k, h_k), (b_v, h_v) = (t.shape[:2] for t in (call.q, call.k, call.v))
        if not b_q == b_k == b_v:
            return f"q, k and v must have one batch size, they have {b_q}, {b_k} and {b_v}: expand them"
        if h_q == h_k == h_v:
            return None
        if call.gqa and grouped:
            fits = h_k and h_v and h_q % h_k == 0 and h_q % h_v == 0 and (h_k == h_v or not kv_alike)
            return None if fits else f"{h_k} and {h_v} heads of k and v do not divide the {h_q} of q"
        if single and h_k == h_v == 1 and h_q and call.release >= (2, 14):
            return None
        told = "it does not know enable_gqa" if call.gqa else "enable_gqa is not set"
        return f"q has {h_q} heads, k and v have {h_k} and {h_v}, and {told}"

    return check


def _some_length(call) -> str | None:
    if min(call.q.shape[-2], call.k.shape[-2]) == 0:
        return f"no sequence may be empty, q has {call.q.shape[-2]} rows and k {call.k.shape[-2]}"
    return None


def _rows_contiguous(*, single_column: bool) -> Callable[[SimpleNamespace], str | None]:
    """`single_column`: with a head dim of 1 the stride of q, k and v does not matter."""

    def check(call) -> str | None:
        strides = [t.stride(-1) for t in (call.q, call.k, call.v)]
        if strides != [1, 1, 1] and not (single_column and call.q.shape[-1] == 1):
            return "q, k and v must have stride 1 in the last dimension, they have {}, {}, {}".format(
                *strides
            )
        if call.mask is not None and call.mask.stride(-1) != 1:
            return f"attn_mask must have stride 1 in the last dimension, it has {call.mask.stride(-1)}"
        return None

    return check


def _alignment(call) -> int:
    """Elements in one load of the efficient kernels, by minimum_gemm_alignment: 16 bytes on tensor cores."""
    tensor_cores = call.sm >= (8, 0) or (call.sm >= (7, 0) and call.half)
    return max(4 if call.sm >= (8, 0) else 1, (8 if call.half else 4) if tensor_cores else 1)


def _efficient_head_dim(call) -> str | None:
    d_q, d_k, d_v = (t.shape[-1] for t in (call.q, call.k, call.v))
    if d_q != d_k:
        return f"q and k must have one head dim, they have {d_q} and {d_k}"
    multiple = _alignment(call)
    if min(d_q, d_v) == 0 or d_q % multiple or d_v % multiple:
        return f"head dims must be multiples of {multiple} here, they are {d_q} and {d_v}"
    return None


def _efficient_offset(call) -> str | None:
    if call.sm < (8, 0):
        return None
    nbytes = _alignment(call) * call.q.element_size()
    offsets = [t.storage_offset() * t.element_size() for t in (call.q, call.k, call.v) if t.numel()]
    if any(offset % nbytes for offset in offsets):
        return f"q, k and v must start at multiples of {nbytes} bytes in their storages, not at {offsets}"
    return None


def _cudnn_dropout_version(call) -> str | None:
    if call.dropout and 91100 < call.cudnn < 91400:
        return "cuDNN 9.11 to 9.13 has no dropout that works"
    return None


def _not_deterministic(call) -> str | None:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if torch.are_deterministic_algorithms_enabled() and not warns:
        return "it is not deterministic, and use_deterministic_algorithms(True) is set"
    return None


def _cudnn_mask(call) -> str | None:
    if call.mask is None:
        return None
    if call.mask.requires_grad:
        return "it computes no gradient of attn_mask, which requires one"
    shape, (batch, heads, q_len, _) = tuple(call.mask.shape), call.q.shape
    full = (batch, heads, q_len, call.k.shape[2])
    if len(shape) in (2, 4) and all(
        has in (1, need) for has, need in zip(shape, full[-len(shape) :], strict=True)
    ):
        return None
    return f"attn_mask must be 2-D or 4-D and broadcast to {list(full)}, it is {list(shape)}"


def _cudnn_dropout_steps(call) -> str | None:
    if call.dropout * 16 != int(call.dropout * 16):
        return f"its dropout knows multiples of 1/16 only, dropout_p is {call.dropout:g}"
    return None


def _cudnn_sizes(call) -> str | None:
    batch, heads = call.q.shape[:2]
    if max(batch, heads) > 65535:
        return f"batch and heads may be 65535 at most, they are {batch} and {heads}"
    return None


def _cudnn_head_dim(call) -> str | None:
    d_q, d_v = call.q.shape[-1], call.v.shape[-1]
    big = call.sm == (9, 0) or call.sm[0] == 10
    limit = 128
    if big and call.cudnn > 92200 and call.release >= (2, 14):
        limit = 256
    elif big and call.cudnn >= 91100 and (d_q, d_v) == (192, 128):
        limit = 192
    if max(d_q, d_v) > limit:
        return f"head dims may be {limit} at most here, they are {d_q} and {d_v}"
    return f"head dims must be multiples of 8, they are {d_q} and {d_v}" if d_q % 8 or d_v % 8 else None


def _cudnn_lengths(call) -> str | None:
    if call.k.shape[2] == 1:
        return "it cannot attend to a single key"
    if call.dropout and call.q.shape[2] == 1:
        return "it has no dropout for a single query"
    return None


def _cudnn_backward(call) -> str | None:
    d_q, d_v = call.q.shape[-1], call.v.shape[-1]
    big = call.sm == (9, 0) or call.sm[0] == 10
    if not (_trains(call) and big and call.cudnn > 92200):
        return None
    if max(d_q, d_v) <= 128 or (d_q, d_v) in ((192, 128), (256, 256)):
        return None
    return f"no backward pass at head dims {d_q} and {d_v}: at most 128, 192 with 128, or 256"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


_HALF = _dtypes("float16", from_sm80=("bfloat16",))
_MORE = _dtypes("float16", "float32", from_sm80=("bfloat16",))
_SM80 = _capability((8, 0))
_SMALL_CHIPS = "check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120"

# Per backend in torch's order: the reason given is the one that torch itself would stop at.
RULES: tuple[Rule, ...] = (
    Rule("flash", _four_dimensions, "check_tensor_shapes"),
    Rule("flash", _no_mask, "check_for_attn_mask"),
    Rule("flash", _flash_head_dim, "check_head_dim_size_flash"),
    Rule("flash", _SM80, "check_flash_attention_hardware_support"),
    Rule("flash", _flash_backward, _SMALL_CHIPS),
    Rule("flash", _square_if_causal, "check_flash_causal_non_square_seqlens"),
    Rule("flash", _HALF, "check_dtypes_flash_attention"),
    Rule("flash", _heads(grouped=True, single=True), "check_batch_size_and_num_heads_dense"),
    Rule("flash", _some_length, "check_nonzero_sequence_lengths_dense"),
    Rule("flash", _rows_contiguous(single_column=True), "check_last_dim_stride_equals_1_dense"),
    Rule("efficient", _capability((5, 0)), "check_mem_efficient_hardware_support"),
    Rule("efficient", _four_dimensions, "check_tensor_shapes"),
    Rule("efficient", _efficient_head_dim, "check_head_dim_size_mem_efficient"),
    Rule("efficient", _efficient_offset, "check_data_ptr_alignment_mem_efficient", since=(2, 13)),
    Rule("efficient", _some_length, "check_nonzero_sequence_lengths_dense"),
    Rule("efficient", _rows_contiguous(single_column=False), "check_last_dim_stride_equals_1_dense"),
    Rule("efficient", _heads(grouped=False), "check_batch_size_and_num_heads_dense", until=(2, 14)),
    Rule(
        "efficient", _heads(grouped=True, single=True), "check_batch_size_and_num_heads_dense", since=(2, 14)
    ),
    Rule("efficient", _MORE, "can_use_mem_efficient_attention"),
    Rule("cudnn", _cudnn_dropout_version, "can_use_cudnn_attention"),
    Rule("cudnn", _four_dimensions, "check_tensor_shapes"),
    Rule("cudnn", _not_deterministic, "check_cudnn_deterministic"),
    Rule("cudnn", _HALF, "check_dtypes_low_precision"),
    Rule("cudnn", _cudnn_mask, "check_attn_mask_shape"),
    Rule("cudnn", _SM80, "check_cudnn_hardware_support"),
    Rule("cudnn", _cudnn_dropout_steps, "check_cudnn_dropout", since=(2, 12)),
    Rule("cudnn", _some_length, "check_nonzero_sequence_lengths_dense"),
    Rule("cudnn", _rows_contiguous(single_column=True), "check_last_dim_stride_equals_1_dense"),
    Rule("cudnn", _heads(grouped=True, kv_alike=False, single=True), "check_batch_size_and_num_heads_dense"),
    Rule("cudnn", _cudnn_sizes, "check_cudnn_tensor_shapes", since=(2, 13)),
    Rule("cudnn", _cudnn_head_dim, "check_cudnn_tensor_shapes"),
    Rule("cudnn", _cudnn_lengths, "check_cudnn_tensor_shapes"),
    Rule("cudnn", _cudnn_backward, "check_cudnn_d256_bprop_head_dim", since=(2, 14)),
)


def _notes(call: SimpleNamespace, taken: str | None, release: tuple[int, int]) -> tuple[str, ...]:
    """What was assumed to get here, and what runs beside the kernel that was chosen."""
    notes = []
    if call.sm[0] in (9, 10):
        cudnn = f"{call.cudnn // 10000}.{call.cudnn // 100 % 100}.{call.cudnn % 100}"
        notes.append(
            f"assumes cuDNN {cudnn}, which the CUDA 13 wheel of torch {_dotted(release)} brings; up to 9.15.0"
            " flash comes first here, and cudnn last"
        )
    if not torch.__version__.startswith(_dotted(release) + "."):
        notes.append(
            f"uncertain: these are the rules of torch {_dotted(release)}, and this is {torch.__version__}"
        )
    width = call.q.shape[-1]
    if taken == "flash" and width % 8:
        notes.append(f"q, k and v are first padded from head dim {width} to {width + -width % 8}")
    if taken in ("efficient", "cudnn") and call.mask is not None and call.mask.dtype is torch.bool:
        notes.append("the boolean mask is first turned into one of numbers, 0 and -inf, of q's dtype")
    if taken == "efficient" and call.mask is not None and call.mask.shape[-1] % 8:
        notes.append("a mask whose rows are no multiple of 8 long is first copied to padded rows")
    if taken == "cudnn" and call.mask is not None and call.causal:
        notes.append("uncertain: whether cuDNN takes a mask and is_causal together shows when it runs")
    return (*notes, *_misread(call, taken, release))


# --------------------------------------------------------------------------------------- the machine at hand


def _on_this_cpu(call: SimpleNamespace) -> Choice:
    """What torch answers on a CPU, where flash (a tiled kernel in C++) and math are the whole list."""
    if call.q.device.type != "cpu":
        tensors = {name: _empty_like(getattr(call, name)) for name in ("q", "k", "v", "mask")}
        call = SimpleNamespace(**{**vars(call), **tensors})
    allowed = {name: on for name, on in _allowed().items() if name in _CPU_ORDER}
    refused = {}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        chosen, reasons = _ask(call)
    if chosen is None:
        refused["flash"] = _first(reasons)
    taken, candidates, error = _choose(_CPU_ORDER, refused, allowed, call)
    return Choice(taken, _CPU_ORDER, candidates, _described(call), "this CPU", True, error)


def _empty_like(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A CPU tensor of this layout; its memory is reserved and never touched."""
    if tensor is None:
        return None
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return made.requires_grad_(tensor.requires_grad)


def _on_this_gpu(call: SimpleNamespace) -> Choice:
    """What torch answers on the GPU that holds the tensors, and of each backend on its own."""
    name, allowed = torch.cuda.get_device_name(call.q.device), _allowed()
    told, call = _described(call), _with_batch(call, _release())
    params = cuda.SDPAParams(call.q, call.k, call.v, call.mask, call.dropout, call.causal, call.gqa)
    tests = {
        "flash": cuda.can_use_flash_attention,
        "efficient": cuda.can_use_efficient_attention,
        "cudnn": cuda.can_use_cudnn_attention,
    }
    refused = {}
    with torch.cuda.device(call.q.device):
        chosen, _ = _ask(call)  # sets the order when it is the first call of the process
        order = _current_order()
        with sdpa_kernel(list(BACKENDS.values())):
            for backend, can_use in tests.items():
                with _caught() as said:
                    if not can_use(params, True):
                        refused[backend] = _first([str(w.message) for w in said])
    taken, candidates, error = _choose(order, refused, allowed, call)
    if chosen != _selected(order, refused, allowed):
        notes = (f"uncertain: torch itself says that it takes {chosen}",)
        return Choice(chosen, order, candidates, told, name, True, error, notes)
    return Choice(taken, order, candidates, told, name, True, error, _misread(call, taken, _release()))


def _ask(call: SimpleNamespace) -> tuple[str | None, list[str]]:
    """torch's own choice for these tensors (None: it has none), and the warnings that say why."""
    names = {int(enum): name for name, enum in BACKENDS.items()}
    with _caught() as said:
        try:
            chosen = torch._fused_sdp_choice(
                call.q, call.k, call.v, call.mask, call.dropout, call.causal,
                scale=call.scale, enable_gqa=call.gqa,
            )  # fmt: skip
        except RuntimeError:
            chosen = None
    return names.get(chosen), [str(w.message) for w in said]


@contextlib.contextmanager
def _caught() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said


def _first(said: list[str]) -> tuple[str, str]:
    """The reason in torch's warnings and the place that it names; some reasons come once a process only."""
    triggered = r" \(Triggered internally at (?:\S*/transformers/|\S*/)?(\S+?)\.?\)$"
    for text in said:
        if "not used because" in text:
            continue
        place = re.search(triggered, text)
        return re.sub(triggered, "", text).strip(), place.group(1) if place else "torch's warning"
    return "torch does not say why (some reasons it gives once a process)", "torch's own answer"
