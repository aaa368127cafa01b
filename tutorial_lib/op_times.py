"""GPU times of operators in public traces, one row a card, operator and shape: what predictions are judged by.

`data/op_times.csv.gz` holds times others measured: kernels led to their operator by correlation, all kernels
of one operator call summed, the median over its calls. Each row names the repository that has the trace.
Clocks, drivers and neighbours are unknown, so single rows can be off; the sets are what counts. Nothing here
was measured by this library.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from tutorial_lib import cost, kernel_names
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware, UnknownHardware, find
from tutorial_lib.kernel_time import Ran, Tensor, tensors


@dataclass(frozen=True)
class OpTime:
    """One row: the call, its work on a card of known rates, the kernels that ran, and the time they took.

    `work.dtype` is the arithmetic that ran: "tfloat32" where the kernels say that a float32 product used it.
    """

    card: str
    on: Hardware
    work: Work
    inputs: tuple[Tensor, ...]
    ran: tuple[Ran, ...]
    n: int
    median_us: float
    source: str


def read(path: str | Path | None = None) -> tuple[list[OpTime], list[str]]:
    """The rows of a table of operator times (the one shipped here unless given), and why others are left out.

    Columns: card, operator, input_dims, input_types, input_strides, concrete_inputs, kernels (joined by
    " | "), n, median_us, source. ValueError names a file without them.
    """
    rows, left_out = [], []
    for number, line in enumerate(_lines(path), start=2):
        try:
            rows.append(_row(line))
        except (UnknownHardware, ValueError, TypeError, RecursionError) as why:
            left_out.append(f"line {number}: {line['operator']} on {line['card']}: {why}")
    return rows, left_out


_COLUMNS = ("card", "operator", "input_dims", "input_types", "input_strides", "concrete_inputs", "kernels", "n",
            "median_us", "source")  # fmt: skip


def _lines(path: str | Path | None) -> Iterator[dict[str, str]]:
    where = files("tutorial_lib") / "data" / "op_times.csv.gz" if path is None else Path(path)
    data = where.read_bytes()
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as why:
        raise ValueError(f"{where}: is no whole table, as .csv in UTF-8 or .csv.gz ({why}); copy it again") from None
    table = csv.DictReader(io.StringIO(text))
    if missing := [c for c in _COLUMNS if c not in (table.fieldnames or ())]:
        raise ValueError(f"{where}: no column {', '.join(missing)}: a table of operator times has them")
    yield from table


def _row(line: dict[str, str]) -> OpTime:
    if lost := [column for column in _COLUMNS if line[column] is None]:
        raise ValueError(f"the line ends before {lost[0]}")
    on = find(line["card"])
    dims, types, strides, concrete = (json.loads(line[c] or "null") for c in _COLUMNS[2:6])
    ran = tuple(Ran(name) for name in line["kernels"].split(" | "))
    types = _with_list_types(dims, types, ran)
    work = cost.operator(line["operator"], dims, types, strides=strides, concrete=concrete)
    if work is None:
        raise ValueError("its work does not follow from what the trace recorded")
    time = float(line["median_us"])
    if not 0 < time < float("inf"):
        raise ValueError(f"median_us is positive and finite, got {line['median_us']}")
    work = replace(work, dtype=ran_dtype(work, ran))
    if work.flops:
        on.rate(work.dtype)  # a card without one cannot have run it
    inputs = tuple(tensors(dims, types, strides))
    return OpTime(line["card"], on, work, inputs, ran, int(line["n"]), time, line["source"])


def ran_dtype(work: Work, ran: tuple[Ran, ...]) -> str:
    """The arithmetic a product ran in: TF32 where a kernel of a float32 product says so; else its dtype."""
    if work.kind != "gemm" or work.dtype != "float32":
        return work.dtype
    said = {kernel_names.decode(kernel.name).dtype for kernel in ran}
    return "tfloat32" if "tfloat32" in said else "float32"


def _with_list_types(dims: list, types: list, ran: tuple[Ran, ...]) -> list:
    """A list of tensors is recorded as "TensorList": its dtype is taken from the kernel, where that says it."""
    size = next((_CAT.search(kernel.name) for kernel in ran if _CAT.search(kernel.name)), None)
    dtype = _OF_SIZE.get(size[1] or size[2]) if size else None
    return [[dtype] * len(d) if dtype and t == "TensorList" else t for d, t in zip(dims, types, strict=True)]


# cat copies bits: newer kernels know a type's size only, and that is all a byte count needs.
_CAT = re.compile(r"CatArrayBatchedCopy\w*<(?:at::native::\(anonymous namespace\)::OpaqueType<(\d+)u|(\w+),)")
_OF_SIZE = {
    "1": "uint8", "2": "float16", "4": "float32", "8": "int64", "16": "complex128",
    "bool": "bool", "int": "int32", "float": "float32", "long": "int64", "double": "float64",
}  # fmt: skip
