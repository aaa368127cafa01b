"""What a processor can do at best: arithmetic rates by dtype, memory bandwidth, and who says so.

The cards are datasheet values, dense (a figure "with sparsity" halved), so a limit computed from them is a
floor no run gets under unless its data sat in a cache or the clock ran above the one the datasheet assumes. A
machine that is not here is an error and never a guess: `measure.calibrate()` measures one. How much of these
rates real kernels reach is the matter of `predict`.

The rates were compared with public tables and with PyTorch's own (torch/_inductor/analysis/device_info.py); where a
number is not on the datasheet that a card names, its source says so.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pandas as pd

from tutorial_lib.units import dtype_name


class UnknownHardware(ValueError):
    """No rates are known for a device of this name."""


@dataclass(frozen=True)
class Hardware:
    """Rates and sizes of one device; `flops_per_s` is dense, by dtype, "tfloat32" float32 on tensor cores.

    `launch_us` is the time a kernel occupies the device when it has next to nothing to do (on a CPU: what
    dispatching one operator costs). `measured` says that the rates come from `calibrate()` on one machine and
    not from a datasheet.
    """

    name: str
    kind: str
    flops_per_s: Mapping[str, float] = field(hash=False)
    bytes_per_s: float
    launch_us: float
    l2_bytes: int | None
    sm: int | None
    compute_capability: tuple[int, int] | None
    source: str
    measured: bool = False
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("cuda", "cpu"):
            raise ValueError(f"kind is 'cuda' or 'cpu', got {self.kind!r}")
        rates = {dtype_name(dtype): float(rate) for dtype, rate in self.flops_per_s.items()}
        for what, rate in {**rates, "bytes_per_s": self.bytes_per_s}.items():
            if not 0 < rate < float("inf"):
                raise ValueError(f"the rate {what} of {self.name} is positive and finite, got {rate!r}")
        if not 0 <= self.launch_us < float("inf"):
            raise ValueError(f"launch_us of {self.name} is finite and not negative, got {self.launch_us!r}")
        object.__setattr__(self, "flops_per_s", MappingProxyType(rates))  # frozen all the way down

    def rate(self, dtype: object) -> float:
        """Dense FLOP/s of matrix products in this dtype; ValueError where there is no such rate."""
        name = dtype_name(dtype)
        name = "float8_e4m3fn" if name.startswith("float8") else name  # all 8-bit floats run at one rate
        if name not in self.flops_per_s:
            raise ValueError(
                f"{self.name} has no rate for {name}{_why(self, name)}; known: {', '.join(self.flops_per_s)}"
            )
        return self.flops_per_s[name]

    @property
    def vector_rate(self) -> float:
        """FLOP/s of float32 arithmetic outside matrix units: CUDA cores, or a CPU's vector units."""
        return self.rate("float32")

    def ridge(self, dtype: object) -> float:
        """FLOP/byte at which arithmetic in this dtype and memory traffic take equally long."""
        return self.rate(dtype) / self.bytes_per_s


_NEEDS = {"bfloat16": (8, 0), "tfloat32": (8, 0), "float8_e4m3fn": (8, 9)}


def _why(hardware: Hardware, dtype: str) -> str:
    if hardware.measured:
        return ", which was not calibrated: pass it to calibrate(dtypes=...)"
    needs, has = _NEEDS.get(dtype), hardware.compute_capability
    if needs and has and has < needs:
        return f": it needs compute capability {needs[0]}.{needs[1]} and this card has {has[0]}.{has[1]}"
    return ", which its matrix units do not compute in"


# ------------------------------------------------------------------------------------------- the cards

MB, GB, TERA = 2**20, 10**9, 10**12  # caches are counted in binary megabytes, memory and rates in decimal

_PUBLIC = "launch_us: the smallest kernel medians in public torch.profiler traces are"
_LAUNCH = {
    "A100": f" {_PUBLIC} 1 to 3 µs, in traces that keep whole µs (pytorch-labs/segment-anything-fast,"
    " facebookresearch/HolisticTraceAnalysis, astra-sim/astra-sim), and 4.9 µs in one set of a PCIe card"
    " (harryjmoss/particle_transformer).",
    "H100": f" {_PUBLIC} 1.3 to 1.5 µs on an H100 80GB HBM3 (AMD-AGI/TraceLens)",
    "B200": f" {_PUBLIC} 1.1 µs (pytorch/ao).",
    "Ada": f" {_PUBLIC} 1.15 µs on an RTX 4090 (tugot17/tokenomics-from-first-principles)",
    "V100": f" {_PUBLIC} 1 to 3 µs, in traces that keep whole µs (facebookresearch/HolisticTraceAnalysis and param).",
    "RTX 3060": f" {_PUBLIC} 1.0 µs (luatil/torch-profile).",
    "MI300X": f" {_PUBLIC} 1.5 to 2.1 µs (AMD-AGI/TraceLens).",
    "T4": f" {_PUBLIC} 2.5 µs (incredere/gpu-profiling-pytorch-lab).",
}

_T4 = {"float64": 0.254, "float32": 8.1, "float16": 65, "int8": 130}
_L4 = {"float64": 0.473, "float32": 30.3, "tfloat32": 60.5, "float16": 121, "bfloat16": 121}
_L4 |= {"int8": 242.5, "float8_e4m3fn": 242.5}
_A100 = {"float64": 19.5, "float32": 19.5, "tfloat32": 156, "float16": 312, "bfloat16": 312, "int8": 624}
_H100 = {"float64": 66.9, "float32": 66.9, "tfloat32": 494.7, "float16": 989.4, "bfloat16": 989.4}
_H100 |= {"int8": 1978.9, "float8_e4m3fn": 1978.9}
_H100_PCIE = {"float64": 51.2, "float32": 51.2, "tfloat32": 378, "float16": 756.5, "bfloat16": 756.5}
_H100_PCIE |= {"int8": 1513, "float8_e4m3fn": 1513}
_B200 = {"float64": 37, "float32": 75, "tfloat32": 1125, "float16": 2250, "bfloat16": 2250}
_B200 |= {"int8": 4500, "float8_e4m3fn": 4500}
_V100 = {"float64": 7.8, "float32": 15.7, "float16": 125}
_RTX_3060 = {"float64": 0.199, "float32": 12.7, "tfloat32": 12.7, "float16": 25.5, "bfloat16": 25.5, "int8": 101.9}
_MI300X = {"float64": 163.4, "float32": 163.4, "tfloat32": 653.7, "float16": 1307.4, "bfloat16": 1307.4}
_MI300X |= {"int8": 2614.9, "float8_e4m3fn": 2614.9}
_RTX_4090 = {"float64": 1.29, "float32": 82.6, "tfloat32": 82.6, "float16": 165.2, "bfloat16": 165.2}
_RTX_4090 |= {"int8": 660.6, "float8_e4m3fn": 330.3}

_T4_SOURCE = (
    "NVIDIA T4 Tensor Core GPU datasheet (dense: Turing has no sparsity). Not on it: float64, 1/32 of"
    " float32, and L2 size and SMs, as the driver reports them. No bfloat16, no TF32." + _LAUNCH["T4"]
)
_L4_SOURCE = (
    "NVIDIA L4 Tensor Core GPU datasheet, which prints tensor-core rates with sparsity (242 TFLOP/s for"
    " float16, 485 for FP8): halved here, TF32 half of float16. Not on it: float64 (1/64 of float32), L2 and"
    " SMs, from public specification tables." + _LAUNCH["Ada"] + ", taken over for want of an L4's."
)
_A100_SOURCE = (
    "NVIDIA A100 Tensor Core GPU datasheet, dense figures (float64 on tensor cores, 9.7 TFLOP/s without); L2"
    " and SMs from the NVIDIA A100 Tensor Core GPU Architecture whitepaper." + _LAUNCH["A100"]
)
_HOPPER = (
    " It prints tensor-core rates with sparsity; these are the halves, in the digits of the NVIDIA H100"
    " Tensor Core GPU Architecture whitepaper, which assumes 1.83 GHz (the chip may clock to 1.98, so a short"
    " product can be up to 8 % faster). float64 on tensor cores, 33.5 TFLOP/s without."
)
_H100_SOURCE = "NVIDIA H100 Tensor Core GPU datasheet, SXM column." + _HOPPER + _LAUNCH["H100"] + "."
_H100_PCIE_SOURCE = (
    "NVIDIA H100 Tensor Core GPU datasheet, PCIe column: tensor-core rates are the halves of those with"
    " sparsity, bandwidth as rounded there, float64 on tensor cores (26 TFLOP/s without)."
    + _LAUNCH["H100"] + ", taken over for want of a PCIe card's."
)  # fmt: skip
_H200_SOURCE = (
    "NVIDIA H200 Tensor Core GPU datasheet, SXM column." + _HOPPER + " L2 as torch reports it, not on it."
    + _LAUNCH["H100"] + ", taken over for want of an H200's."
)  # fmt: skip
_B200_SOURCE = (
    "NVIDIA Blackwell datasheet, HGX B200 column: tensor-core rates are the halves of those with sparsity,"
    " 7.7 TB/s and 180 GB a GPU. Earlier material has 8 TB/s and 192 GB; the driver's 7,680 bits at 3,996 MHz"
    " give 7.67 (pytorch/ao pull request 4002, which reports L2 and SMs as well). TF32 is taken as half of"
    " bfloat16. float32 and float64 were checked against cores × clock only (148 · 128 · 2 · 1.98 GHz = 75"
    " TFLOP/s), not against the datasheet itself." + _LAUNCH["B200"]
)
_V100_SOURCE = (
    "NVIDIA V100 Tensor Core GPU datasheet, NVLink (SXM2) column; L2 and SMs from the NVIDIA Tesla V100 GPU"
    " Architecture whitepaper. No bfloat16, no TF32." + _LAUNCH["V100"]
)
_RTX_3060_SOURCE = (
    "NVIDIA GeForce RTX 3060, 12 GB: 3,584 cores in 28 SMs at a boost of 1.777 GHz, 360 GB/s, from NVIDIA's"
    " specification page; tensor-core rates from the ratios that the NVIDIA Ampere GA102 GPU Architecture"
    " whitepaper gives for the generation (float16 with float32 accumulation twice float32, TF32 as much as float32)"
    ", dense. L2 from public specification tables." + _LAUNCH["RTX 3060"]
)
_GH200_SOURCE = (
    "NVIDIA GH200 Grace Hopper Superchip datasheet, the version with 96 GB of HBM3 at 4 TB/s (the driver calls"
    " it 480GB, by the memory of its CPU); the GPU is an H100's, with its rates." + _LAUNCH["H100"] + "."
)
_MI300X_SOURCE = (
    "AMD Instinct MI300X accelerator data sheet, dense, matrix rates; the L2 here is the 256 MB Infinity Cache"
    " (each of the 8 dies has 4 MB of its own before it). A virtual function of it (VF) has the whole card."
    + _LAUNCH["MI300X"]
)
_RTX_4090_SOURCE = (
    "NVIDIA Ada GPU Architecture whitepaper, GeForce RTX 4090, dense. float16 and FP8 accumulate in float32"
    " here, as PyTorch runs them by default; accumulating in float16 the card does twice as much (330.3 and"
    " 660.6 TFLOP/s)."
    " float64 is 1/64 of float32. The rates assume 2.52 GHz, and many cards run above that." + _LAUNCH["Ada"] + "."
)


def _card(name, rates, gb_per_s, launch_us, l2_mb, sm, capability, memory_gb, source) -> Hardware:
    return Hardware(
        name,
        "cuda",
        {dtype: tera * TERA for dtype, tera in rates.items()},
        gb_per_s * GB,
        launch_us,
        l2_mb * MB,
        sm,
        capability,
        source,
        memory_bytes=memory_gb * GB,
    )


CARDS: tuple[Hardware, ...] = (
    #     name              TFLOP/s     GB/s  launch  L2  SM   cc       GB   source
    _card("T4",             _T4,         320, 2.5,    4,  40,  (7, 5),  16,  _T4_SOURCE),
    _card("L4",             _L4,         300, 1.15,   48, 58,  (8, 9),  24,  _L4_SOURCE),
    _card("A100 40GB SXM",  _A100,      1555, 2.0,    40, 108, (8, 0),  40,  _A100_SOURCE),
    _card("A100 80GB SXM",  _A100,      2039, 2.0,    40, 108, (8, 0),  80,  _A100_SOURCE),
    _card("A100 40GB PCIe", _A100,      1555, 2.0,    40, 108, (8, 0),  40,  _A100_SOURCE),
    _card("A100 80GB PCIe", _A100,      1935, 2.0,    40, 108, (8, 0),  80,  _A100_SOURCE),
    _card("H100 SXM",       _H100,      3350, 1.4,    50, 132, (9, 0),  80,  _H100_SOURCE),
    _card("H100 PCIe",      _H100_PCIE, 2000, 1.4,    50, 114, (9, 0),  80,  _H100_PCIE_SOURCE),
    _card("H200",           _H100,      4800, 1.4,    60, 132, (9, 0),  141, _H200_SOURCE),
    _card("B200",           _B200,      7700, 1.1,   126, 148, (10, 0), 180, _B200_SOURCE),
    _card("V100 16GB SXM",  _V100,       900, 2.5,    6,  80,  (7, 0),  16,  _V100_SOURCE),
    _card("V100 32GB SXM",  _V100,       900, 2.5,    6,  80,  (7, 0),  32,  _V100_SOURCE),
    _card("RTX 3060",       _RTX_3060,   360, 1.0,    3,  28,  (8, 6),  12,  _RTX_3060_SOURCE),
    _card("GH200 96GB",     _H100,      4000, 1.4,    50, 132, (9, 0),  96,  _GH200_SOURCE),
    _card("MI300X",         _MI300X,    5300, 2.0,   256, 304, (9, 4),  192, _MI300X_SOURCE),
    _card("RTX 4090",       _RTX_4090,  1008, 1.15,   72, 128, (8, 9),  24,  _RTX_4090_SOURCE),
)  # fmt: skip

# What people and drivers call them, without the words in _VENDOR_WORDS and in any order. Whole words only: an
# RTX A4000, L40S or GH200 shares letters with a card above and is another machine.
_NAMES: dict[str, tuple[str, ...]] = {
    "T4": ("t4", "t4 16gb"),
    "L4": ("l4", "l4 24gb"),
    "A100 40GB SXM": ("a100 40gb", "a100 sxm 40gb", "a100 pg509 200"),
    "A100 80GB SXM": ("a100", "a100 80gb", "a100 sxm", "a100 sxm 80gb", "pg509 210", "a100 pg509 210"),
    "A100 40GB PCIe": ("a100 pcie 40gb",),
    "A100 80GB PCIe": ("a100 pcie", "a100 pcie 80gb"),
    "H100 SXM": ("h100", "h100 80gb", "h100 sxm", "h100 sxm 80gb", "h100 80gb hbm3"),
    "H100 PCIe": ("h100 pcie", "h100 pcie 80gb"),
    "H200": ("h200", "h200 sxm", "h200 141gb", "h200 sxm 141gb"),
    "B200": ("b200", "b200 sxm", "b200 180gb"),
    "V100 16GB SXM": ("v100 sxm2 16gb", "v100 sxm 16gb", "v100 16gb"),
    "V100 32GB SXM": ("v100", "v100 sxm2 32gb", "v100 sxm 32gb", "v100 32gb"),
    "RTX 3060": ("rtx 3060", "3060", "rtx 3060 12gb"),
    "GH200 96GB": ("gh200", "gh200 480gb", "gh200 96gb"),
    "MI300X": ("mi300x", "mi300x vf"),
    "RTX 4090": ("rtx 4090", "4090", "rtx4090", "rtx 4090 24gb"),
}
_VENDOR_WORDS = {"nvidia", "tesla", "geforce", "tensor", "core", "gpu", "amd", "instinct"}
_SPELLINGS = {"sxm4": "sxm", "sxm5": "sxm", "40": "40gb", "80": "80gb"}


def find(name: str) -> Hardware:
    """The card of this name, as people ("A100", "h100 pcie") or drivers write it ("NVIDIA A100-SXM4-80GB").

    A plain "A100" is the 80 GB SXM card, a plain "H100" the SXM one. UnknownHardware for every other machine.
    """
    words = set(re.findall(r"[a-z0-9]+", str(name).lower())) - _VENDOR_WORDS
    words = {_SPELLINGS.get(word, word) for word in words}
    for card in CARDS:
        if any(words == set(alias.split()) for alias in _NAMES[card.name]):
            return card
    known = ", ".join(card.name for card in CARDS)
    raise UnknownHardware(
        f"no rates known for {name!r}; known: {known}. On that machine, measure.calibrate() measures them"
    )


def table() -> pd.DataFrame:
    """One row a card: rates in TFLOP/s (missing where it has no such dtype), GB/s, sizes and source."""
    return pd.DataFrame([_row(card) for card in CARDS])


def _row(card: Hardware) -> dict[str, object]:
    rates = {f"{d}_tflops_per_s": rate / TERA for d, rate in card.flops_per_s.items()}
    order = {f"{d}_tflops_per_s": None for d in CARDS[-1].flops_per_s}  # the last card has every dtype
    return {
        "name": card.name,
        **order,
        **rates,
        "gb_per_s": card.bytes_per_s / GB,
        "ridge_float16": card.ridge("float16"),
        "l2_mb": card.l2_bytes / MB,
        "sm": card.sm,
        "compute_capability": ".".join(map(str, card.compute_capability)),
        "memory_gb": card.memory_bytes / GB,
        "launch_us": card.launch_us,
        "source": card.source,
    }
