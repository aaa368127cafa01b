"""How the book writes a number: times, bytes, FLOPs, rates and dtype names.

Text in, text out: decimal prefixes (1 kB = 1000 B), three significant digits (four for FLOPs), never
scientific notation. Only sizes and names live here; how fast a dtype runs on a card is in `hardware`.
"""

import math
import re

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SECONDS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns"))


def duration(us: float) -> str:
    """A time in µs as text in ns, µs, ms or s: 89.4 -> "89.4 µs"; ValueError when negative or not finite."""
    return _scaled(_checked(us, "duration"), _SECONDS, digits=3, zero="0 µs")


def band(low_us: float, high_us: float) -> str:
    """A range of times in µs as text, in one unit where both fit: "70 – 150 µs"; ValueError if low > high."""
    low, high = _checked(low_us, "lower edge"), _checked(high_us, "upper edge")
    if low > high:
        raise ValueError(f"a band runs from low to high, got {low_us} and {high_us}: swap them")
    scale, unit = _scale(high, _SECONDS, 3) if high else (1.0, "µs")
    if 0 < low / scale < 0.1:
        return f"{duration(low)} – {duration(high)}"
    return f"{_short(low / scale)} – {_short(high / scale)} {unit}"


def data(nbytes: float) -> str:
    """A number of bytes as text: 50331648 -> "50.3 MB"; ValueError when negative or not finite."""
    return _prefixed(_checked(nbytes, "number of bytes"), "B", digits=3)


def work(flops: float) -> str:
    """A count of floating-point operations as text: 38654705664 -> "38.65 GFLOP"."""
    return _prefixed(_checked(flops, "number of FLOPs"), "FLOP", digits=4)


def compute_rate(flops_per_s: float) -> str:
    """A rate of floating-point operations as text: 312e12 -> "312 TFLOP/s"."""
    return _prefixed(_checked(flops_per_s, "compute rate"), "FLOP/s", digits=3)


def bandwidth(bytes_per_s: float) -> str:
    """A rate of bytes as text: 2.039e12 -> "2.04 TB/s"."""
    return _prefixed(_checked(bytes_per_s, "bandwidth"), "B/s", digits=3)


def ratio(x: float) -> str:
    """How many times as much: 1.6667 -> "1.67×"."""
    return f"{_significant(_checked(x, 'ratio'), 3)}×"


_ITEMSIZE = {
    "float64": 8, "float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "bool": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
}  # fmt: skip

# What C++ calls them in a trace ("Input type"), and what people call them.
_ALIASES = {
    "double": "float64", "fp64": "float64", "f64": "float64",
    "float": "float32", "fp32": "float32", "f32": "float32",
    "tf32": "tfloat32",
    "half": "float16", "fp16": "float16", "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn", "float8": "float8_e4m3fn", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    "long int": "int64", "long": "int64", "long long": "int64", "long long int": "int64", "__int64": "int64",
    "int": "int32", "short int": "int16", "short": "int16", "signed char": "int8",
    "unsigned char": "uint8", "unsigned short": "uint16", "unsigned short int": "uint16",
    "unsigned int": "uint32", "unsigned long": "uint64", "unsigned long int": "uint64",
    "complex<double>": "complex128", "complex<float>": "complex64", "complex<half>": "complex32",
    "complex<c10::half>": "complex32",
}  # fmt: skip


def dtype_name(dtype: object) -> str:
    """Torch's name without prefix for any spelling ("c10::Half", "long int", "bf16"); else ValueError."""
    name = str(dtype).strip().lower().removeprefix("torch.").removeprefix("c10::")
    name = _ALIASES.get(name, name)
    if name not in _ITEMSIZE:
        raise ValueError(f"unknown dtype {dtype!r}; use one of: {', '.join(_ITEMSIZE)}")
    return name


def itemsize(dtype: object) -> int:
    """Bytes of one element of this dtype, which may be spelled as in `dtype_name`."""
    return _ITEMSIZE[dtype_name(dtype)]


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def plain(text: str) -> str:
    """The text without terminal sequences and other characters that print nothing: names come from others' files."""
    text = _ANSI.sub("", text)
    return text if text.isprintable() else "".join(filter(str.isprintable, text))


def finite(value: float) -> bool:
    """Whether a number is finite and can still be scaled and rounded: a double, but not 1e308."""
    try:
        return math.isfinite(float(value) * 1e8)
    except OverflowError:  # a whole number of more than 308 digits
        return False


def _checked(value: float, what: str) -> float:
    if not (finite(value) and value >= 0):
        raise ValueError(f"a {what} is finite and not negative, got {value!r}")
    return float(value)


def _significant(value: float, digits: int) -> str:
    """Fixed-point text with this many significant digits; whole digits left of the point are all kept."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    return f"{rounded:.{max(0, digits - 1 - math.floor(math.log10(rounded)))}f}"


def _short(value: float) -> str:
    text = _significant(value, 3)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scale(value: float, scales: tuple[tuple[float, str], ...], digits: int) -> tuple[float, str]:
    rounded = float(f"{value:.{digits - 1}e}")  # 999.96 µs is written 1.00 ms
    return next(((scale, unit) for scale, unit in scales if rounded >= scale), scales[-1])


def _scaled(value: float, scales: tuple[tuple[float, str], ...], *, digits: int, zero: str) -> str:
    if value == 0:
        return zero
    scale, unit = _scale(value, scales, digits)
    return f"{_significant(value / scale, digits)} {unit}"


def _prefixed(value: float, unit: str, *, digits: int) -> str:
    if value < 1000 and value == int(value):  # a count below the first prefix is exact
        return f"{int(value)} {unit}"
    scales = tuple((scale, prefix + unit) for scale, prefix in _PREFIXES) + ((1.0, unit),)
    return _scaled(value, scales, digits=digits, zero=f"0 {unit}")
