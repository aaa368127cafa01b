"""How long kernels take that mostly move memory: pointwise operators, copies, reductions, lookups, attention.

The time is a sum of named terms. Every kernel pays `launch`, what the card needs for the smallest kernel, and
`start`, the clocks that this form of kernel needs until it is busy. Then three resources work side by side:
`memory`, the traffic over the bandwidth that good kernels reach, less what L2 still holds (`cache`);
`sectors`, the 32-byte pieces that warps really ask for, over the rate of L2; and `issue`, the instructions of
each element and row over what the SMs issue. The slowest sets the pace, and near a tie they get in each
other's way: `sectors` and `issue` are what they add to `memory`. Attention pays for whole tiles of queries
and keys (`compute`), some of which its last wave leaves idle (`waves`). Copies to and from the host run on
the `bus` and are known by their kernel's name only.

Which form of kernel PyTorch picks follows from strides and dtypes (aten/src/ATen/native/cuda/CUDALoops.cuh
and Reduce.cuh); where a trace has been read, the name says it. The constants were fitted to public traces by
`benchmarks/fit_kernel_time_memory.py`; nothing here was measured by this library. Few of those have batch
norm, pooling, resizing, sorting, losses and additions that may meet: their constants were set by hand.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from types import MappingProxyType

from tutorial_lib import hardware, kernel_time
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware
from tutorial_lib.kernel_time import Estimate, Ran, Tensor
from tutorial_lib.units import itemsize

TERMS = frozenset({"launch", "start", "memory", "cache", "sectors", "issue", "compute", "waves", "bus"})


# ------------------------------------------------------------------------------------ how memory is reached


@dataclass(frozen=True)
class Access:
    """How a kernel goes through its data: its form, and what an SM has to do for it.

    `operands` are the tensors whose address is computed for each element, the result included; `touched`
    bytes are those of the 32-byte sectors behind its warps' requests; `distinct` bytes are in memory once
    (an operator in place reads and writes the same), and `again` are those that it goes over once more.
    `step` as `Work.row_step`.
    """

    form: str
    elements: int
    operands: int
    touched: int
    distinct: int
    rows: int = 0
    step: int = 1
    kernels: int = 1
    again: int = 0


@lru_cache(maxsize=4096)  # a model's layers repeat
def access(work: Work, inputs: tuple[Tensor, ...] = (), ran: tuple[Ran, ...] = ()) -> Access:
    """The access that shapes, strides and dtypes imply; a kernel's name goes before what they suggest."""
    tensors = _read(work, inputs)
    if work.kind == "reduction":
        found = _reduction(work, tensors)
    elif _LOOKUPS.match(work.operator):
        moved, form = work.bytes_moved, "added" if _ADDS.search(work.operator) else "gather"
        found = Access(form, _results(work, tensors), 3, moved, moved)
    elif work.kind == "other":
        found = _windows(work)
    elif work.operator == "aten::cat":
        found = Access("cat", sum(t.elements for t in tensors), 2, work.bytes_moved, work.bytes_moved)
    else:
        found = _elementwise(work, tensors)
    return _as_it_ran(found, ran)


_LOOKUPS = re.compile(
    "aten::(embedding|embedding_dense_backward|gather|(_unsafe_)?index|_?(unsafe_)?index_put(_impl)?_?"
    "|index_select|index_(add|copy|fill)_?|scatter(_add|_reduce)?_?)$"
)
_ADDS = re.compile("add|reduce|dense_backward")  # where several may meet


def _read(work: Work, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors behind `work.shapes`, numbers left out; an `out` among the inputs is not read."""
    left, found = list(inputs), []
    for shape in work.shapes:
        same = next((t for t in left if t.shape == shape), None)
        if same is not None:
            left = left[left.index(same) + 1 :]
        found.append(same or Tensor(shape, work.dtype))
    return [t for t in found if t.shape]


def _results(work: Work, tensors: Sequence[Tensor]) -> int:
    """Elements that a lookup writes: half of what it moves, the indices aside."""
    indices = sum(t.elements * itemsize(t.dtype) for t in tensors[1:])
    return max(work.bytes_moved - indices, 0) // (2 * itemsize(work.dtype))


def _windows(work: Work) -> Access:
    """Pooling, resizing, padding and losses: about half of what they move is read, and half written."""
    moved = work.bytes_moved
    if "nll_loss" in work.operator:
        return Access("one block", work.vector_flops, 2, moved, moved)
    form = "unpooled" if work.operator.endswith("_backward") else "windows"
    return Access(form, moved // (2 * itemsize(work.dtype)), 2, moved, moved)


def _elementwise(work: Work, tensors: Sequence[Tensor]) -> Access:
    """Pointwise operators and copies: vectorized, cast, indexed or both, or one memcpy."""
    if not work.operator.startswith("aten::"):  # one generated kernel: it converts and counts indices cheaply
        elements = max((t.elements for t in tensors), default=0)
        return Access("vectorized", elements, len(tensors) + 1, work.bytes_moved, work.bytes_moved)
    shape, copies = _broadcast(t.shape for t in tensors), work.operator == "aten::copy_"
    overwrites = copies or work.operator in _WRITES_ONLY  # the first tensor is written, not read
    in_place = overwrites or work.operator.endswith("_")
    loops = _loops(shape, tensors, in_place)
    form = _form(work, tensors, loops)
    sizes = [itemsize(t.dtype) for t in tensors]
    result = sizes[0] if in_place and sizes else itemsize(work.dtype)
    reads = list(zip(loops.strides[1:], sizes, strict=True))[1 if overwrites else 0 :]
    touched = sum(_touched(loops.sizes, strides, size) for strides, size in reads)
    touched += _touched(loops.sizes, loops.strides[0], result)
    held = sum(_distinct(t) * size for t, size in zip(tensors, sizes, strict=True))
    held += 0 if in_place else math.prod(shape) * result
    return Access(form, math.prod(shape), len(reads) + 1, touched, held)


def _form(work: Work, tensors: Sequence[Tensor], loops: "_Loops") -> str:
    """One loop with stride 1 is vectorized; operands of several dtypes are converted as they are loaded."""
    mixed = len({t.dtype for t in tensors}) > 1 and not work.operator.startswith(_MIXED)
    cast = mixed or _converts(work, tensors)
    if len(loops.sizes) <= 1 and all(strides[:1] in ((), (1,)) for strides in loops.strides):
        same = "memcpy" if work.operator == "aten::copy_" else "vectorized"
        return "cast" if cast else same
    return "indexed cast" if cast else "indexed"


_WRITES_ONLY = tuple(
    f"aten::{name}_"
    for name in ("fill", "zero", "normal", "uniform", "bernoulli", "random", "exponential", "_foreach_zero")
)
# Their kernels take operands of several dtypes as they are: a condition or mask beside the values.
_MIXED = ("aten::where", "aten::masked_fill", "aten::native_dropout")


def _converts(work: Work, tensors: Sequence[Tensor]) -> bool:
    """Integers that become floating point, as in a division: the kernel converts what it loads."""
    if work.operator in _WRITES_ONLY or work.operator == "aten::copy_" or not tensors:
        return False
    return "float" in work.dtype and all("float" not in t.dtype for t in tensors)


def _broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    result: list[int] = []
    for shape in shapes:
        result = [1] * (len(shape) - len(result)) + result
        for i, size in enumerate(reversed(shape), start=1):
            result[-i] = max(result[-i], size) if size != 0 else 0
    return tuple(result)


@dataclass(frozen=True)
class _Loops:
    """Sizes of the loops that are left, innermost first, and for each operand its strides over them."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def _loops(shape: tuple[int, ...], tensors: Sequence[Tensor], in_place: bool) -> _Loops:
    """The loop nest after TensorIterator: dimensions in memory order, neighbours merged; the result first."""
    views = [_strides(t, shape) for t in tensors]
    full = next((v for v, t in zip(views, tensors, strict=True) if t.elements == math.prod(shape)), None)
    order = [i for i, size in enumerate(shape) if size != 1]
    order.sort(key=lambda i: (full[i] if full else 0, -i))
    result, run = [0] * len(shape), 1
    for i in order:
        result[i], run = run, run * shape[i]
    views = [views[0] if in_place and tensors else result, *views]
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for i in order:
        if sizes and all(s[-1] * sizes[-1] == v[i] for s, v in zip(strides, views, strict=True)):
            sizes[-1] *= shape[i]
            continue
        sizes.append(shape[i])
        for s, v in zip(strides, views, strict=True):
            s.append(v[i])
    return _Loops(tuple(sizes), tuple(map(tuple, strides)))


def _strides(tensor: Tensor, shape: tuple[int, ...]) -> list[int]:
    """Strides of a tensor expanded to `shape`, 0 where it is broadcast; dense where none were recorded."""
    own = list(tensor.strides or ())
    if len(own) != len(tensor.shape):
        own, run = [], 1
        for size in reversed(tensor.shape):
            own, run = [run, *own], run * size
    own = [0 if size == 1 else stride for size, stride in zip(tensor.shape, own, strict=True)]
    return [0] * (len(shape) - len(own)) + own


_SECTOR, _WARP = 32, 32  # bytes, lanes


def _touched(sizes: Sequence[int], strides: Sequence[int], size: int) -> int:
    """Bytes of the sectors that warps ask for, when 32 neighbours of the innermost loops form a warp."""
    if 0 in sizes:  # an empty tensor beside one that is not
        return 0
    lanes = [0]
    for n, stride in zip(sizes, strides, strict=True):
        if len(lanes) >= _WARP:
            break
        lanes = [base + i * stride for i in range(min(n, -(-_WARP // len(lanes)))) for base in lanes]
    sectors = len({lane * size // _SECTOR for lane in lanes[:_WARP]})
    requests = math.prod(sizes) / min(max(len(lanes), 1), _WARP)
    return round(requests * sectors * _SECTOR) if any(strides) or not sizes else 0


def _distinct(tensor: Tensor) -> int:
    if tensor.strides is None or len(tensor.strides) != len(tensor.shape):
        return tensor.elements
    return math.prod(n for n, stride in zip(tensor.shape, tensor.strides, strict=True) if stride != 0)


def _reduction(work: Work, tensors: Sequence[Tensor]) -> Access:
    largest = max(work.shapes, key=math.prod, default=())
    elements, last = math.prod(largest), largest[-1] if largest else 1
    rows = work.rows if work.rows is not None else elements // max(last, 1)
    row = elements // rows if rows else 0
    if "batch_norm" in work.operator:
        return _channels(work, elements, rows, tensors)
    if work.operator == "aten::sort":  # a digit of 8 bits at a time, and each time all of it
        moved, again = work.bytes_moved, (itemsize(work.dtype) - 1) * work.bytes_moved
        return Access("sorted", elements, 2, moved, moved, rows, work.row_step, again=again)
    if work.operator == "aten::topk":
        form = "chosen"
    elif work.operator in _NORMS:
        form = "norm" if row % 4 == 0 else "norm by element"
    elif "softmax" in work.operator:
        form = "softmax" if row <= 1024 and work.row_step == 1 else "softmax by block"
    elif work.row_step > 1:
        form = "columns" if work.row_step % 4 == 0 else "columns by element"
    else:
        form = "rows" if row >= 128 and (row % 4 == 0 or rows == 1) else "rows by element"
    return Access(form, elements, 1, work.bytes_moved, work.bytes_moved, rows, work.row_step)


def _channels(work: Work, elements: int, rows: int, tensors: Sequence[Tensor]) -> Access:
    """Batch norm: a block a channel, unless channels are what lies next to each other.

    Forward the input is read once for its statistics and once more to be normalised, backward input and
    gradient are; `operands` counts the tensors that are gone over.
    """
    partial = work.operator.endswith(("_stats", "_reduce"))
    read = len(work.shapes)
    strides = tensors[0].strides if tensors else None
    side_by_side = work.row_step > 1 or (strides is not None and len(strides) > 1 and strides[1] == 1)
    own = work.dtype == "bfloat16" and "native" in work.operator  # cuDNN takes none in bfloat16
    form = "columns" if side_by_side else "own channels" if own else "channels"
    operands = read if partial else 2 * read + 1
    again = 0 if partial else read * elements * itemsize(work.dtype)
    moved = work.bytes_moved
    return Access(form, elements, operands, moved, moved, rows, work.row_step, again=again)


_NORMS = {"aten::native_layer_norm", "aten::layer_norm", "aten::_fused_rms_norm", "aten::rms_norm",
          "aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward",
          "aten::native_group_norm", "aten::native_group_norm_backward"}  # fmt: skip

_NAMES = (
    (r"vectorized_(?:templated_)?elementwise_kernel", "vectorized"),
    (r"unrolled_elementwise_kernel", "cast"),
    (r"elementwise_kernel(?:_manual_unroll)?<.*gpu_kernel_impl_nocast", "indexed"),
    (r"elementwise_kernel(?:_manual_unroll)?<.*gpu_kernel_impl<", "indexed cast"),
    (r"Memcpy DtoD", "memcpy"),
    (r"Memcpy (?:HtoD|DtoH)", "bus"),
    (r"RowwiseMoments", "norm by element"),
    (r"vectorized_layer_norm", "norm"),
    (r"native::batch_norm_(?:collect|backward)", "own channels"),
    (r"cunn_SoftMax", "softmax by block"),
    (r"softmax_warp", "softmax"),
    (r"reduce_kernel<\d+, [24]", "columns"),  # so many results a thread
)


def _as_it_ran(found: Access, ran: Sequence[Ran]) -> Access:
    """What the names of the kernels say about form and number of launches."""
    name = next((kernel.name for kernel in ran if not kernel.name.startswith("Memset")), "")
    said = next((form for pattern, form in _NAMES if re.search(pattern, name)), found.form)
    return replace(found, form=_agreed(found.form, said, name), kernels=max(len(ran), 1))


def _agreed(implied: str, said: str, name: str) -> str:
    """The form, where the name is one that several forms share."""
    if implied == "cat" and said != "bus":
        return "cat"  # some are made of copies
    if said == "own channels" and implied != "channels":
        return implied
    if implied == "vectorized" and said == "cast":
        return "unaligned"  # nothing to convert: the address does not allow to load several at once
    if implied == "columns" and re.search(r"reduce_kernel<\d+, 1\b", name):
        return "rows by element"  # one result a thread where four would do: what is reduced is contiguous
    return implied if said == "columns" and not implied.startswith("columns") else said


# ------------------------------------------------------------------------------------------------- constants


@dataclass(frozen=True)
class Card:
    """Of one card: its smallest kernel, the share of the bandwidth good kernels reach, and its pace.

    `pace` is what its SMs issue in a µs beside the other cards' SMs at the datasheet's clock: low where a
    card runs below its boost clock or its SMs do less in a clock. Only ratios of paces mean something, as the
    clocks of the forms scale with them. `rows` of the traces were on this card, 0 for a stand-in.
    """

    launch_us: float
    memory_share: float
    pace: float
    rows: int = 0


@dataclass(frozen=True)
class Form:
    """Of one form of kernel: clocks until it is busy; an SM's clocks for an element, an operand, a row."""

    start: float
    element: float
    operand: float = 0.0
    row: float = 0.0


@dataclass(frozen=True)
class Tiles:
    """Of one attention kernel: its start; an SM's clocks for a score, a block; share of the tensor rate."""

    start: float
    score: float
    block: float
    share: float


@dataclass(frozen=True)
class Constants:
    """All constants of the model.

    `operation` are an SM's clocks for one operation of the textbook formula (`Work.vector_flops`);
    `cache_share` of L2 is the working set of which half is still there, `cache_edge` how sharply that ends;
    `sector_bytes` reach an SM from L2 in a clock; `overlap` is the exponent of the norm that joins memory,
    sectors and issue (1: one after the other, ∞: the slowest alone); `alone` is how many rounds an SM needs
    for one block of attention with no other to hide its waiting; `bias` are clocks for a score's bias or
    mask.
    """

    cards: Mapping[str, Card]
    forms: Mapping[str, Form]
    attention: Mapping[str, Tiles]
    operation: float
    cache_share: float
    cache_edge: float
    sector_bytes: float
    overlap: float
    alone: float
    bias: float
    bus_us: float
    bus_bytes_per_s: float


# Fitted by benchmarks/fit_kernel_time_memory.py to half of the operator times in public traces (op_times).
CONSTANTS = Constants(
    cards={
        "A100 40GB PCIe": Card(6.06, 0.869, 0.646, 364),
        "A100 40GB SXM": Card(2.15, 0.928, 1.15, 404),
        "A100 80GB PCIe": Card(1.47, 0.903, 1.05, 58),
        "A100 80GB SXM": Card(2.19, 0.872, 1.21, 306),
        "B200": Card(1.48, 0.904, 1.23, 32),
        "H100 SXM": Card(1.55, 0.904, 1.07, 58),
        "MI300X": Card(3.72, 0.852, 0.713, 189),
        "RTX 3060": Card(1.05, 0.906, 1.06, 16),
        "RTX 4090": Card(1.12, 0.899, 1.07, 10),
        "T4": Card(2.62, 0.917, 0.356, 16),
        "V100 16GB SXM": Card(4.31, 0.838, 1.39, 81),
        "V100 32GB SXM": Card(2.51, 0.878, 1.45, 47),
    },
    forms={
        "vectorized": Form(0, 0.2, 0, 0),
        "unaligned": Form(530, 0.789, 0, 0),
        "memcpy": Form(633, 0.0632, 0, 0),
        "cast": Form(2748, 0.56, 0.145, 0),
        "indexed": Form(1788, 0.593, 0.0382, 0),
        "indexed cast": Form(4486, 0.85, 0.114, 0),
        "cat": Form(566, 0.884, 0, 0),
        "gather": Form(2263, 2.22, 0, 0),
        "softmax": Form(2566, 0.626, 0, 1.52),
        "softmax by block": Form(3001, 0.648, 0, 304),
        "norm": Form(3689, 0.384, 0, 351),
        "norm by element": Form(3761, 0.3, 0, 1579),
        "rows": Form(3967, 0.305, 0, 3.92),
        "rows by element": Form(4406, 0.95, 0, 2.14),
        "columns": Form(5902, 0.219, 0, 0.746),
        "columns by element": Form(4399, 0.267, 0, 0.846),
    },
    attention={
        "flash": Tiles(2055, 0.11, 1534, 0.822),
        "efficient": Tiles(2952, 0.326, 928, 0.718),
        "efficient float32": Tiles(2913, 1.71, 543, 0.777),
        "flash on AMD": Tiles(3594, 0.277, 1683, 1.06),
    },
    operation=0.0474,
    cache_share=0.283,
    cache_edge=1.32,
    sector_bytes=13.3,
    overlap=3.52,
    alone=1.52,
    bias=0.614,
    bus_us=2,
    bus_bytes_per_s=1.19e+10,
)  # fmt: skip


# Forms of which the table of operator times has no calls. Their constants were set by hand to some eighty
# calls in public traces of A100, B200, V100, T4, RTX 3060 and MI300X, each with the factor that holds most.
_BY_HAND: Mapping[str, tuple[Form, float]] = MappingProxyType(
    {
        "channels": (Form(3000, 0, 0.45), 1.8),  # cuDNN's and MIOpen's
        "own channels": (Form(3000, 0, 1.1), 1.8),  # PyTorch's
        "windows": (Form(2000, 1.4), 1.8),
        "unpooled": (Form(2000, 3.5), 1.8),
        "one block": (Form(12000, 1), 2.2),
        "sorted": (Form(25000, 1), 2.5),
        "chosen": (Form(6000, 1, 0, 600), 2.0),
        "added": (Form(2263, 2.22), 2.5),
    }
)


def crosses_bus(ran: Iterable[Ran]) -> bool:
    """Whether what ran was a copy to or from the host: its time is the bus's, not the card's."""
    return any(re.match(r"Memcpy (?:HtoD|DtoH)", kernel.name) for kernel in ran)


# What holds four in five rows over 10 µs of shapes left out, as a factor to either side of the typical time.
_SPREAD = {"pointwise": 1.21, "copy": 1.21, "reduction": 1.18, "attention": 1.22, "other": 1.5}
_RESOLUTION_US = 0.5  # no kernel's time is sharper than this: most traces keep whole µs


def card_for(on: Hardware, constants: Constants | None = None) -> tuple[Card, str, float]:
    """The card's constants, where they come from, and how much wider its band is for want of data.

    A calibrated machine brings its own bandwidth and launch; a card without data gets its family's medians.
    """
    cards = (constants or CONSTANTS).cards
    if on.measured:
        return Card(on.launch_us, 1.0, 1.0), "bandwidth and launch as calibrated, the rest as on A100", 1.15
    if on.name in cards:
        return cards[on.name], f"{cards[on.name].rows} operator times in public traces of this card", 1.0
    same = (c.name for c in hardware.CARDS if kernel_time.family(c) == kernel_time.family(on))
    kin = [cards[name] for name in same if name in cards]
    whose = f"its family, {kernel_time.family(on)}" if kin else "all cards, for none of its family has any"
    source = f"no data for this card: the median of {whose}"
    return _middle(kin or list(cards.values())), source, 1.2 if kin else 1.4


def _middle(cards: Sequence[Card]) -> Card:
    """Each constant's median: one card that runs slow must not speak for the rest."""
    fields = ("launch_us", "memory_share", "pace")
    return Card(*(median(getattr(card, name) for card in cards) for name in fields))


# ----------------------------------------------------------------------------------------------- the time


def estimate(
    work: Work,
    on: Hardware,
    *,
    inputs: tuple[Tensor, ...] = (),
    ran: tuple[Ran, ...] = (),
    terms: frozenset[str] = TERMS,
    constants: "Constants | None" = None,
) -> Estimate:
    """The time of one operator that is no matrix product, on a GPU; `terms` left out cost nothing."""
    c = constants or CONSTANTS
    card, source, wider = card_for(on, c)
    factor = _SPREAD.get(work.kind, _SPREAD["other"])
    if work.kind == "attention":
        parts, wider = _attention(work, on, ran, card, terms, c), wider * _unsure(work, on, ran)
    else:
        found = access(work, inputs, ran)
        parts = _bus(work, terms, c) if found.form == "bus" else _body(found, work, on, card, terms, c)
        wider *= 1.5 if found.form == "bus" else 1.0  # which bus, and how busy it is, no trace says
        if found.form in _BY_HAND:
            source, factor = f"{source}; few calls of this kind", _BY_HAND[found.form][1]
    typical = max(math.fsum(parts.values()), 0.05)
    spread = factor * wider + _RESOLUTION_US / typical
    return kernel_time.estimate(_limit_us(work, on), parts, spread, source)


def _unsure(work: Work, on: Hardware, ran: Sequence[Ran]) -> float:
    """How much wider the band of attention is where the traces have few calls like it."""
    # The last two factors were set after published times of these kernels (cited C60, C62) had been seen.
    unsure = 1.0 if kernel_time.family(on) == "ampere" else 1.3  # six calls on all other cards
    unsure *= 1.3 if attention_kernel(work, on, ran) == "efficient" else 1.0  # two calls, both with a bias
    cudnn = any("cudnn" in name for name in (work.operator, *(kernel.name for kernel in ran)))
    return unsure * (1.3 if cudnn else 1.0)  # none


def _limit_us(work: Work, on: Hardware) -> float:
    """The slowest of tensor cores, vector units and memory, each at the datasheet's rate."""
    needed = work.flops - work.skippable_flops
    compute = needed / on.rate(work.dtype) if needed else 0.0
    return max(compute, work.vector_flops / on.vector_rate, work.bytes_moved / on.bytes_per_s) * 1e6


def _body(
    found: Access, work: Work, on: Hardware, card: Card, terms: frozenset[str], c: Constants
) -> dict[str, float]:
    """The terms in µs of a kernel that is not attention."""
    form, clocks_per_us = c.forms.get(found.form) or _BY_HAND[found.form][0], _clocks_per_us(on, card)
    issued = clocks_per_us * (on.sm or 1)
    clocks = found.elements * (form.element + form.operand * found.operands) + found.rows * form.row
    clocks += c.operation * work.vector_flops if work.kind == "pointwise" else 0.0
    if "channels" in found.form:  # a block waits for what it loads, at any pace, and some SMs have no block
        clocks *= card.pace * max(1.0, (on.sm or 1) / max(found.rows, 1))
    # L2 serves an SM so many bytes a clock, and in all more than memory does.
    l2 = max(issued * c.sector_bytes, 1.5 * on.bytes_per_s / 1e6)
    sectors = max(found.touched, work.bytes_moved) / l2
    parts = {
        "launch": card.launch_us * found.kernels if "launch" in terms else 0.0,
        "start": form.start / clocks_per_us if "start" in terms else 0.0,
    }
    return parts | _joined(
        c.overlap,
        _memory(found, work, on, card, terms, c),
        sectors=sectors if "sectors" in terms else 0.0,
        issue=clocks / issued if "issue" in terms else 0.0,
    )


def _memory(
    found: Access, work: Work, on: Hardware, card: Card, terms: frozenset[str], c: Constants
) -> dict[str, float]:
    """Traffic at the bandwidth reached, and, negative, what of it L2 spares the memory."""
    share = card.memory_share if "memory" in terms else 1.0
    traffic = (work.bytes_moved + found.again) / (on.bytes_per_s * share) * 1e6
    if "cache" not in terms or not on.l2_bytes or not found.distinct:
        return {"memory": traffic}
    kept = 1 / (1 + (found.distinct / (c.cache_share * on.l2_bytes)) ** c.cache_edge)
    return {"memory": traffic, "cache": -kept * traffic}


def _joined(p: float, first: dict[str, float], /, **resources: float) -> dict[str, float]:
    """Resources used side by side: each adds what the norm over it and those before it adds."""
    parts, times = dict(first), [math.fsum(first.values())]
    before = times[0]
    for name, time in resources.items():
        times.append(time)
        top = max(times)
        now = top * math.fsum((t / top) ** p for t in times) ** (1 / p) if top > 0 else 0.0
        parts[name], before = now - before, now
    return parts


def _clocks_per_us(on: Hardware, card: Card) -> float:
    """Clocks in a µs: the datasheet's float32 rate is SMs × lanes × 2 (an FMA) × clock; times the pace."""
    lanes = _LANES.get(on.compute_capability, 128)
    return on.vector_rate / (2 * lanes * (on.sm or 1)) / 1e6 * card.pace


_LANES = {(7, 0): 64, (7, 5): 64, (8, 0): 64}


def _bus(work: Work, terms: frozenset[str], c: Constants) -> dict[str, float]:
    """A copy to or from the host: half of what a copy in device memory moves crosses the bus."""
    return {
        "launch": c.bus_us,
        "bus": work.bytes_moved / 2 / c.bus_bytes_per_s * 1e6 if "bus" in terms else 0.0,
    }


# ------------------------------------------------------------------------------------------------ attention


def _attention(
    work: Work, on: Hardware, ran: Sequence[Ran], card: Card, terms: frozenset[str], c: Constants
) -> dict[str, float]:
    """Blocks of 128 or 64 queries, each going over the keys tile by tile, on all SMs, wave after wave."""
    name = attention_kernel(work, on, ran)
    clocks_per_us, sms = _clocks_per_us(on, card), on.sm or 1
    blocks, clocks = _blocks(work, on, card, name, c)
    needed = (work.flops - work.skippable_flops) / on.rate(work.dtype) * 1e6
    even = clocks / (clocks_per_us * sms) if "compute" in terms else needed
    waves = max(math.ceil(blocks / sms), c.alone) / (blocks / sms) if blocks and "waves" in terms else 1.0
    joined = _joined(c.overlap, {"compute": even * waves}, memory=_traffic(work, on, card, terms))
    return {
        "launch": card.launch_us * max(len(ran), 1) if "launch" in terms else 0.0,
        "start": c.attention[name].start / clocks_per_us if "start" in terms else 0.0,
        "compute": even,
        "waves": even * (waves - 1),
        "memory": joined["memory"],
    }


def _blocks(work: Work, on: Hardware, card: Card, name: str, c: Constants) -> tuple[int, float]:
    """Blocks, and the clocks of one SM for all of them: products and exps of whole tiles, the masked too."""
    tiles, (queries, keys) = c.attention[name], _tile(name, work)
    blocks, steps = _steps(work, queries, keys)
    head = max(work.shapes[0][-1], 1)
    per_score = work.flops / max(_scores(work), 1) * _padded(head, name) / head
    rate = (
        _tensor_rate(work, on) / 1e6 / (_clocks_per_us(on, card) / card.pace * (on.sm or 1))
    )  # FLOP a clock
    added = c.bias if _biased(work) else 0.0
    step = queries * keys * (tiles.score + added + per_score / (rate * tiles.share))
    return blocks, blocks * tiles.block + steps * step


def _traffic(work: Work, on: Hardware, card: Card, terms: frozenset[str]) -> float:
    return work.bytes_moved / (on.bytes_per_s * (card.memory_share if "memory" in terms else 1.0)) * 1e6


def attention_kernel(work: Work, on: Hardware, ran: Sequence[Ran]) -> str:
    """Whose constants: FlashAttention's where dtype and card allow it, else the memory-efficient kernels'.

    cuDNN's kernels are taken for FlashAttention's, for want of data; AMD's are written in Triton.
    """
    names = " ".join([work.operator, *(kernel.name for kernel in ran)])
    if kernel_time.family(on) == "cdna3":
        return "flash on AMD"
    flash = "flash" in names or "cudnn" in names
    old = work.dtype == "float32" or (on.compute_capability or (8, 0)) < (8, 0)
    if "fmha" in names or "efficient" in names or (old and not flash):
        return "efficient float32" if work.dtype == "float32" else "efficient"
    return "flash"


def _tile(name: str, work: Work) -> tuple[int, int]:
    """Queries and keys of a tile: flash 128 × 128, narrower for long heads; efficient 64 × 64 or 64 × 128."""
    head = work.shapes[0][-1]
    if name.startswith("efficient"):
        return 64, 64 if head <= 64 else 128
    return 128, 128 if head <= 64 or name != "flash" else 64


def _padded(head: int, name: str) -> int:
    """The head dimension a kernel computes with: multiples of 32, of 8 in the memory-efficient ones."""
    unit = 32 if name.startswith("flash") else 8
    return -(-head // unit) * unit


def _biased(work: Work) -> bool:
    """Whether more is moved than q, k, v and the result: a bias or a mask, a value for each score."""
    q, k, v = work.shapes[:3]
    elements = sum(map(math.prod, (q, k, v))) + math.prod(q[:-1]) * v[-1]
    backward = "backward" in work.operator
    return not backward and work.bytes_moved > elements * itemsize(work.dtype)


def _scores(work: Work) -> int:
    q, k = work.shapes[:2]
    return math.prod(q[:-1]) * k[-2]


def _steps(work: Work, queries: int, keys: int) -> tuple[int, int]:
    """Blocks, and tiles that all of them visit: under a causal mask only those up to the diagonal."""
    q, k = work.shapes[:2]
    heads, tall, wide = math.prod(q[:-2]), -(-q[-2] // queries), -(-k[-2] // keys)
    if not work.skippable_flops:
        return heads * tall, heads * tall * wide
    reached = (min(wide, -(-min((i + 1) * queries, k[-2]) // keys)) for i in range(tall))
    return heads * tall, heads * sum(reached)


def _tensor_rate(work: Work, on: Hardware) -> float:
    """FLOP/s of the products: float32 ones are made of three in TF32, where a card has it.

    Both kinds of kernels use the instructions of Ampere, which on Hopper reach 63 % of the tensor cores' rate
    (Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture, 2024).
    """
    three = work.dtype == "float32" and "tfloat32" in on.flops_per_s
    rate = on.rate("tfloat32") / 3 if three else on.rate(work.dtype)
    return rate * (0.63 if kernel_time.family(on) == "hopper" else 1.0)
