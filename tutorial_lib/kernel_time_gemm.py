"""How long a matrix product should take: the work over the rates, and what tiles, waves and a launch add.

One form for all cards. A kernel cuts the output into tiles, one thread block each; the blocks are dealt out to
the SMs, and the fullest SM decides. So, in µs, with t(x) the time of x at the share of the rate that is reached:

    time    = fixed cost + helper kernels + max(compute, memory)
    compute = blocks on the fullest SM · t(2 · columns · rows · (k + ends) FLOPs)
              + rounds · latency · k
    memory  = t(bytes moved)

That arithmetic and traffic hide each other only in part, and that operands may still be in L2, were tried as terms of
their own and made no prediction of products better, so they are not here.

Without a trace the tile and the split of k are those of a small menu that take the least time, as a library's
heuristic would choose; with the kernel's name (`ran`) they are facts. Four constants are a card's own (`Card`), the
rest (`FORM`) is shared by all cards; both were fitted to times in public traces (benchmarks/fit_kernel_time.py).
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache

from tutorial_lib import hardware, kernel_names
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware
from tutorial_lib.kernel_time import Estimate, Ran, Tensor, family
from tutorial_lib.units import itemsize

# What each term means, in the order in which they are added up; any of them can be left out of an estimate.
MEANING = {
    "roofline": "the work over the datasheet's rates, the slower of arithmetic and memory traffic",
    "reachable rates": "what good kernels reach of those rates on this card, on long work",
    "fixed cost": "what a kernel takes with nothing to do, and the helper kernels beside a product",
    "tiles and waves": "outputs rounded up to tiles and tiles to whole rounds of the SMs, each block's start and end",
    "split-K": "blocks share out k where there are few tiles, and their partial sums are added up",
    "layout": "unaligned operands, tiles of one warp and kernels made for older cards run below the rate",
}
TERMS = frozenset(MEANING) - {"roofline"}


@dataclass(frozen=True)
class Card:
    """A card's constants: shares of datasheet rates on tensor cores, CUDA cores and memory, and a kernel's start.

    A share above 1 is a clock above the datasheet's. `rows` is how many times they were fitted to: where there were
    few, they are close to the mean of all cards.
    """

    tensor: float
    cores: float
    memory: float
    fixed_us: float
    rows: int = 0


@dataclass(frozen=True)
class Problem:
    """`batch` products [m, k] @ [k, n] of `size` bytes an element; `aligned` elements that a load can take."""

    batch: int
    m: int
    n: int
    k: int
    size: int
    bytes_moved: int
    dtype: str
    aligned: int = 8

    @property
    def outputs(self) -> int:
        return self.batch * self.m * self.n

    @property
    def flops(self) -> int:
        return 2 * self.outputs * self.k


@dataclass(frozen=True)
class Kernel:
    """How the product is done: on tensor cores by thread block or by warp, CUDA cores, or as vectors.

    `tile` is (columns, rows, k at a time) of a row-major output; `splits` the shares of k that are possible.
    """

    path: str
    tile: tuple[int, int, int] = (1, 1, 1)
    splits: tuple[int, ...] = (1,)
    aligned: int = 8
    old_generation: bool = False
    vector: str = ""
    helpers: int = 0
    output_passes: int = 0


# ------------------------------------------------------------------------------------------------ the constants

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

# Shared by all cards. Of each path: `rate` beside a tensor tile's; `small`: the tile size (columns · rows / (columns +
# rows)) that reaches half of what a huge tile does; `ends`: a block's start and end, in elements of k. Of the rest:
# `latency_us` for an element of k on CUDA cores, which no instruction hides; `rows_rate`: gemmSN_TN's; `helper`: a
# helper kernel's cost in starts; `tfloat32`, `old_generation`: shares of the rate reached in TF32, and by a kernel made
# for an older card; `unaligned`: how many times slower; `launches`: a product's start in those of the smallest kernel.
FORM: dict[str, float] = {
    "tensor.small": 57.1, "tensor.ends": 176,
    "warp.rate": 0.348, "warp.small": 17.4, "warp.ends": 12.6,
    "cores.small": 5.99, "cores.ends": 12.1, "cores.latency_us": 0.0195,
    "vector.rate": 0.181, "vector.rows_rate": 0.0481,
    "helper": 0.994, "tfloat32": 0.877, "old_generation": 0.464, "unaligned": 2.2, "launches": 2.48,
}  # fmt: skip
CARDS: dict[str, Card] = {
    #                      tensor  cores  memory fixed_us rows
    "A100 40GB PCIe": Card(0.391,  0.487, 0.616, 8.84,    92),
    "A100 40GB SXM":  Card(0.853,  1.06,  0.812, 3.88,    135),
    "A100 80GB PCIe": Card(0.569,  0.979, 0.645, 3.57,    17),
    "A100 80GB SXM":  Card(0.817,  1.01,  0.744, 3.54,    40),
    "B200":           Card(0.531,  0.802, 0.678, 3.47,    2),
    "GH200 96GB":     Card(0.569,  0.882, 0.678, 3.46,    3),
    "H100 SXM":       Card(0.864,  0.842, 0.682, 3.07,    23),
    "MI300X":         Card(0.414,  0.802, 0.515, 5.09,    53),
    "RTX 3060":       Card(0.569,  0.756, 0.678, 2.51,    4),
    "RTX 4090":       Card(0.569,  0.715, 0.685, 2.86,    4),
    "T4":             Card(0.366,  0.471, 0.663, 7.47,    6),
    "V100 16GB SXM":  Card(0.569,  0.937, 0.665, 7.52,    8),
    "V100 32GB SXM":  Card(0.569,  0.974, 0.712, 5.34,    12),
}  # fmt: skip
# What times of shapes (or of whole cards) that were left out of the fit were, in parts of the prediction: 10th and
# 90th percentile.
SPREAD: dict[str, tuple[float, float]] = {
    "tensor": (0.86, 1.25), "warp": (0.86, 1.2), "cores": (0.86, 1.22), "vector": (0.75, 1.26),
    "shapes": (0.86, 1.51), "card": (0.75, 1.9),
}  # fmt: skip


def card_for(on: Hardware, cards: Mapping[str, Card] | None = None) -> tuple[Card, str]:
    """The constants of this card, or of those most like it, and what they come from."""
    cards = CARDS if cards is None else cards
    if on.measured:
        # calibrate() measured what one good kernel reaches: that is the share of the largest tile.
        best = _tile_share(FORM["tensor.small"], 256, 128), _tile_share(FORM["cores.small"], 128, 128)
        fixed_us = FORM["launches"] * on.launch_us
        return Card(1 / best[0], 1 / best[1], 1.0, fixed_us), "rates measured on this machine"
    if on.name in cards:
        return cards[on.name], f"fitted to {cards[on.name].rows} times in public traces of {on.name}"
    alike, what = _alike(on, cards)
    each = zip(*(astuple(card)[:4] for card in alike), strict=True)
    return Card(*(math.exp(math.fsum(map(math.log, values)) / len(values)) for values in each)), what


def _alike(on: Hardware, cards: Mapping[str, Card]) -> tuple[list[Card], str]:
    """Cards of the same chip and board, else of the same chip, else all; PCIe boards have less power than SXM.

    A card with few rows, or that evidently ran at half its clock, says little about others.
    """
    steady = {name: card for name, card in cards.items() if card.rows >= _FEW_ROWS and card.cores >= _STEADY}
    same = [c.name for c in hardware.CARDS if c.name in steady and family(c) == family(on)]
    board = [name for name in same if ("PCIe" in name) == ("PCIe" in on.name)]
    found = board or same or list(steady or cards)
    names = ", ".join(found) if same else "all cards"
    return [cards[name] for name in found], f"no traces of {on.name} were read: the mean of {names}"


_FEW_ROWS, _STEADY = 8, 0.6


# ------------------------------------------------------------------------------------------- what is to be done


def problem(work: Work, inputs: Sequence[Tensor] = ()) -> Problem:
    """The product behind an operator's work; ValueError for work that is none."""
    if work.kind != "gemm" or not work.flops:
        raise ValueError(f"{work.operator} is no matrix product with work to do")
    batch, m, n, k = _sizes(work)
    size = itemsize("float32" if work.dtype == "tfloat32" else work.dtype)
    return Problem(batch, m, n, k, size, work.bytes_moved, work.dtype, _aligned(inputs, (m, n, k), size))


def _sizes(work: Work) -> tuple[int, int, int, int]:
    """(batch, m, n, k); of other than the plain products, what their FLOPs and their last factor say."""
    name, shapes = work.operator.removeprefix("aten::"), work.shapes
    if name.rstrip("_") in ("mm", "bmm", "addmm", "baddbmm") and len(shapes) >= 2:
        a, b = shapes[-2:]
        return math.prod(a[:-2]), a[-2], b[-1], a[-1]
    if name == "linear" and len(shapes) >= 2:
        return 1, math.prod(shapes[0][:-1]), shapes[1][0], shapes[1][1]
    if "conv" in name and len(shapes) >= 2:  # an implicit product: [batch · space, in · kernel] @ [that, out]
        n, k = shapes[1][0], math.prod(shapes[1][1:])
        return 1, max(1, work.flops // (2 * n * k)), n, k
    plain = ("matmul", "_scaled_mm", "_int_mm", "_grouped_mm")
    if name in plain and min(map(len, shapes[:2]), default=0) >= 2:
        n, k = shapes[1][-1], shapes[1][-2]
        m = shapes[0][-2]
        return max(1, work.flops // (2 * m * n * k)), m, n, k
    k = max(1, shapes[0][-1] if shapes and shapes[0] else 1)  # a vector among the factors
    return 1, max(1, work.flops // (2 * k)), 1, k


def _aligned(inputs: Sequence[Tensor], sizes: tuple[int, int, int], size: int) -> int:
    """Elements that a load of up to 16 bytes can take: what divides the rows of both factors and of the output."""
    factors = [t for t in inputs if len(t.shape) in (2, 3)][-2:]
    leading = [max((s for s in t.strides[-2:] if s > 1), default=8) for t in factors if t.strides]
    lengths = [sizes[1], *leading] if len(leading) == 2 else sizes[1:]
    most = max(1, 16 // size)
    return max(a for a in (1, 2, 4, 8, 16) if a <= most and all(length % a == 0 for length in lengths))


# ----------------------------------------------------------------------------------------------- which kernels

_TENSOR_TILES = ((256, 128, 32), (128, 256, 32), (128, 128, 32), (128, 64, 64), (64, 128, 64), (64, 64, 64))
_WARP_TILES = ((32, 32, 64), (16, 16, 64))
_CORE_TILES = ((128, 128, 8), (128, 64, 8), (64, 128, 8), (128, 32, 8), (32, 128, 8), (64, 64, 8), (32, 32, 8))
_AMD_TILES = ((16, 16, 256), (32, 32, 256), (64, 32, 128), (64, 64, 64), (128, 64, 128), (128, 128, 64))
_AMD_TILES += ((192, 128, 64), (256, 128, 64), (256, 192, 64), (320, 224, 64))
_SMALL = 8  # rows of a batched product that cuBLAS gives to gemmSN, its kernel for a few columns


def candidates(what: Problem, on: Hardware) -> Iterator[Kernel]:
    """The kernels a library could choose from, as far as shapes, dtype and card decide; read off public traces."""
    capability = on.compute_capability or (0, 0)
    if 1 in (what.m, what.n) or (what.batch > 1 and what.m <= _SMALL and capability < (9, 0)):
        yield Kernel("vector", vector="" if what.k <= 16 or what.m == 1 else "gemmSN_TN")
    elif what.dtype in _ON_CORES:
        # In a batch cuBLAS' float32 kernels take 128 × 128 whatever the shapes are.
        yield from (Kernel("cores", tile, SPLITS) for tile in _CORE_TILES[: 1 if what.batch > 1 else None])
    elif capability == (9, 4):
        yield from (Kernel("tensor", tile, SPLITS) for tile in _AMD_TILES)
    else:
        aligned = 8 if what.aligned * what.size >= 16 else min(what.aligned, 2)
        if what.dtype == "tfloat32":
            aligned = 1 if what.aligned < 4 else 8
        yield from (Kernel("tensor", tile, SPLITS, aligned) for tile in _TENSOR_TILES)
        if what.dtype in ("float16", "bfloat16") and aligned > 1:
            yield from (Kernel("warp", tile, SPLITS, aligned) for tile in _WARP_TILES)


_GENERATION = {(9, 0): "sm90|nvjet|sm_90", (10, 0): "sm100|nvjet|sm_100", (12, 0): "sm120|nvjet|sm_120"}


@lru_cache(maxsize=4096)
def of_name(name: str, capability: tuple[int, int]) -> Kernel | None:
    """The kernel a name stands for, None for a helper: a copy, a memset, the sum after a split of k."""
    said = kernel_names.decode(name)
    if re.search(r"\bgemv|gemmSN|gemmk1|\bdot_kernel", name):
        rows = re.search("gemmSN_TN|gemmSN_NN", name)
        return Kernel("vector", vector=rows[0] if rows else "")
    if said.kind != "gemm" or said.tile is None or 0 in said.tile:
        return None
    tile = (*said.tile[:2], said.tile[2] if len(said.tile) > 2 else 32)
    aligned = said.alignment or (int(m[1]) if (m := re.search(r"_align(\d)", name)) else 8)
    generation = _GENERATION.get(capability)
    old = generation is not None and not re.search(generation, name, re.IGNORECASE)  # CUTLASS writes Sm100
    kernel = Kernel("tensor", tile, SPLITS[1:] if said.split_k else (1,), aligned, old)
    if "wmma" in name:
        return replace(kernel, path="warp")
    if re.search(r"(?:^|_)sgemm|simt_|_ffma_", name):
        return replace(kernel, path="cores", tile=(*said.tile[:2], said.tile[2] if len(said.tile) > 2 else 8))
    return kernel


def ran_kernel(ran: Iterable[Ran], what: Problem, on: Hardware) -> Kernel | None:
    """The one kernel that the names of an operator's kernels describe; None where none of them is a product's."""
    ran = tuple(ran)
    read = [of_name(r.name, on.compute_capability or (0, 0)) for r in ran]
    products = [kernel for kernel in read if kernel]
    if not products:
        return None
    helpers = [r.name for r, kernel in zip(ran, read, strict=True) if kernel is None]
    summed = any("splitK" in name for name in helpers)
    shared = any(name.startswith("Memset") for name in helpers) or "Cijk_" in ran[read.index(products[0])].name
    splits = SPLITS[1:] if summed else SPLITS if shared else products[0].splits
    if family(on) != "cdna3":  # AMD's grids count threads
        splits = _split_of(ran[read.index(products[0])], products[0], what) or splits
    passes = sum("elementwise" in name or "epilogue" in name for name in helpers)
    others = len(helpers) + len(products) - 1
    return replace(products[0], splits=splits, helpers=others, output_passes=passes)


def _split_of(ran: Ran, kernel: Kernel, what: Problem) -> tuple[int, ...] | None:
    """How often k was split, from a known grid: blocks for each tile. A grid with fewer blocks than tiles is one of a
    kernel whose blocks take tile after tile, and says nothing."""
    columns, rows, _ = kernel.tile
    tiles = what.batch * -(-what.n // columns) * -(-what.m // rows)
    if ran.grid is None or kernel.path == "vector" or math.prod(ran.grid) < tiles:
        return None
    return (max(1, round(math.prod(ran.grid) / tiles)),)


# ------------------------------------------------------------------------------------------------------ the time


_ON_CORES = ("float32", "float64", "complex64", "complex128")


def _tile_share(small: float, columns: int, rows: int) -> float:
    """How much of a 128 × 128 tile's rate a tile reaches: it loads (columns + rows) for columns · rows outputs."""
    size = columns * rows / (columns + rows)
    return (1 + small / 64) / (1 + small / size)


def _memory_us(bytes_moved: int, card: Card, on: Hardware, terms: frozenset[str]) -> float:
    share = card.memory if "reachable rates" in terms else 1.0
    return bytes_moved / (on.bytes_per_s * share) * 1e6


def _rate(what: Problem, kernel: Kernel, card: Card, on: Hardware, terms, form) -> float:
    """FLOP/µs of the whole card, for a tile of 128 × 128, at what is reached of it."""
    # That a product does not run on the tensor cores its dtype could use is a matter of layout.
    cores = kernel.path in ("cores", "vector") and ("layout" in terms or what.dtype in _ON_CORES)
    rate = on.rate("float32" if cores and what.dtype != "float64" else what.dtype) / 1e6
    if "reachable rates" in terms:
        rate *= card.cores if cores else card.tensor
        rate *= form["tfloat32"] if what.dtype == "tfloat32" and not cores else 1.0
    if "layout" in terms and not cores:
        rate *= form["warp.rate"] if kernel.path == "warp" else 1.0
        rate *= form["old_generation"] if kernel.old_generation else 1.0
        rate /= form["unaligned"] if kernel.aligned == 1 else 1.0
    return rate


def _compute_us(what, kernel, split, card, on, terms, form) -> float:
    rate = _rate(what, kernel, card, on, terms, form)
    if "tiles and waves" not in terms:
        return what.flops / rate
    columns, rows, step = kernel.tile
    path = kernel.path
    sm = on.sm or 100
    k = -(-what.k // split // step) * step if split > 1 else -(-what.k // step) * step
    blocks = what.batch * -(-what.n // columns) * -(-what.m // rows) * split
    fullest = -(-blocks // sm)  # blocks that the fullest SM works through
    busy = fullest * 2 * columns * rows * (k + form[f"{path}.ends"]) * sm
    us = busy / (rate * _tile_share(form[f"{path}.small"], columns, rows))
    if path == "cores":  # no instruction works ahead: a round waits out each step of k
        at_once = min(8, max(1, 32768 // (columns * rows)))  # blocks that an SM's registers hold side by side
        us += -(-fullest // at_once) * form["cores.latency_us"] * k / card.cores
    return us


def _vector_us(what, kernel, card, on, terms, form) -> float:
    """A product with a vector, or with a few columns: no tiles; it streams its matrix."""
    memory = _memory_us(what.bytes_moved, card, on, terms)
    if "tiles and waves" not in terms:
        return max(memory, what.flops / _rate(what, kernel, card, on, terms, form))
    share = form["vector.rows_rate" if kernel.vector == "gemmSN_TN" else "vector.rate"]
    rate = on.rate("float32") / 1e6 * card.cores * share
    return memory + what.flops / rate


def time_us(
    what: Problem, kernel: Kernel, card: Card, on: Hardware, terms=TERMS, form: Mapping[str, float] = FORM
) -> float:
    """The model: µs of this kernel for this problem, at the best of its possible splits of k."""
    fixed = card.fixed_us if "fixed cost" in terms else 0.0
    helper = form["helper"] * fixed
    extra = kernel.helpers * helper
    if kernel.output_passes and "fixed cost" in terms:  # a helper that reads and writes the output once more
        extra += kernel.output_passes * _memory_us(2 * what.outputs * what.size, card, on, terms)
    if kernel.path == "vector":
        return fixed + extra + _vector_us(what, kernel, card, on, terms, form)
    memory, best = _memory_us(what.bytes_moved, card, on, terms), math.inf
    for split in kernel.splits if "split-K" in terms else (1,):
        if split > kernel.splits[0] and -(-what.k // split) < kernel.tile[2]:
            break
        us = max(memory, _compute_us(what, kernel, split, card, on, terms, form))
        if split > 1:  # float32 parts go through L2, at twice the bandwidth of the memory, and are added up
            us += _memory_us(4 * split * what.outputs, card, on, terms)
            us += 0.0 if kernel.helpers else helper
        best = min(best, us)
    return fixed + extra + best


def chosen(what: Problem, card: Card, on: Hardware, terms=TERMS, form: Mapping[str, float] = FORM) -> Kernel:
    """The kernel of the menu that takes the least time: what a library's heuristic aims at."""
    return min(candidates(what, on), key=lambda kernel: time_us(what, kernel, card, on, terms, form))


@lru_cache(maxsize=4096)
def _in_order(what: Problem, kernel: Kernel | None, card: Card, on: Hardware, terms: frozenset[str], limit_us: float):
    """(path, what each term adds when it joins those before it, in µs): the roofline first."""
    kernel = kernel or chosen(what, card, on)
    parts, before, joined = [("roofline", limit_us)], limit_us, frozenset()
    for term in MEANING:
        if term in terms:
            joined |= {term}
            now = time_us(what, kernel, card, on, joined)
            parts.append((term, now - before))
            before = now
    return kernel.path, tuple(parts)


def estimate(
    work: Work,
    on: Hardware,
    *,
    inputs: Sequence[Tensor] = (),
    ran: Sequence[Ran] = (),
    terms: frozenset[str] = TERMS,
) -> Estimate:
    """The time of a matrix product on a GPU; without `ran` the kernel is chosen, `terms` left out cost nothing.

    ValueError when the card has no rate for the dtype, or where the work is no product.
    """
    what, (card, source) = problem(work, inputs), card_for(on)
    limit_us = max(
        what.flops / on.rate(work.dtype) * 1e6,
        work.vector_flops / on.vector_rate * 1e6,
        work.bytes_moved / on.bytes_per_s * 1e6,
    )
    kernel = ran_kernel(ran, what, on)
    path, parts = _in_order(what, kernel, card, on, terms, limit_us)
    known = on.measured or card.rows >= _FEW_ROWS
    below, above = SPREAD[path if kernel and known else "shapes" if known else "card"]
    typical = math.fsum(us for _, us in parts)
    if typical < limit_us:
        parts, typical = (*parts, ("limit", limit_us - typical)), limit_us
    source += "" if kernel else "; tile and split of k as a library would choose them"
    return Estimate(limit_us, max(limit_us, typical * below), typical, typical * above, dict(parts), source)
