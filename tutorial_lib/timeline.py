"""Questions to a trace, each a function from a Trace to a DataFrame; the same for CPU and GPU traces.

`steps`, `operators`, `launches`, `kernels`, `work_items` and `copies` have one row per event and keep the row
numbers of `trace.events` as their index; `busy` and `gaps` look at lanes (a GPU, a stream, a CPU thread);
`summary` adds up by name and `chain` shows one operator as a tree. Wherever `step` is asked for, it is the N
of ProfilerStep#N, None means the whole trace, and a step that the trace does not have is a ValueError.
Annotations are windows, never work.

Not covered: which backward operator belongs to which forward one, dependencies between streams, and whether a
CPU operator's time went to one core or to several.
"""

import math
import re
from collections.abc import Callable, Iterable
from functools import wraps
from operator import index
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from tutorial_lib import units
from tutorial_lib.trace import GPU_WORK, Trace

_STEP = re.compile(r"ProfilerStep#([0-9]{1,18})")  # what an int64 holds
_CALLS = ("runtime", "driver")
_LAUNCH = re.compile(r"(cuda|cu|hip)((Ext)?(Module)?Launch(?!Host)|GraphLaunch|Memcpy|Memset)")
_WAIT = re.compile(r"(cuda|cu|hip)\w*Synchronize")
_ARGUMENTS = ["shapes", "dtypes", "strides", "concrete"]
_Answer = TypeVar("_Answer")


def _kept(question: Callable[[Trace], _Answer]) -> Callable[[Trace], _Answer]:
    """The question, whose answer is kept for as long as the trace: its events never change."""
    answers: WeakKeyDictionary[Trace, _Answer] = WeakKeyDictionary()

    @wraps(question)
    def ask(trace: Trace) -> _Answer:
        if trace not in answers:
            answers[trace] = question(trace)
        return answers[trace]

    return ask


def named(trace: Trace, rows: pd.Index, test: Callable[[str], object]) -> np.ndarray:
    """Which of these rows of the trace have a name that passes the test; each distinct name is asked once."""
    numbers, names = numbers_of(trace, "name", rows), trace.numbered("name")[1]
    passes = np.zeros(len(names), dtype=bool)
    used = np.flatnonzero(np.bincount(numbers, minlength=len(names)))
    passes[used] = [bool(test(names[number])) for number in used.tolist()]
    return passes[numbers]


def numbers_of(trace: Trace, column: str, rows: pd.Index | pd.Series) -> np.ndarray:
    """`Trace.numbered` at these rows of the trace, -1 for a row that is missing."""
    place = _places(trace.events.index, rows)
    return np.where(place < 0, -1, trace.numbered(column)[0][place])


def _places(index: pd.Index, rows: pd.Index | pd.Series) -> np.ndarray:
    """Where these rows are in the index, -1 for one that is missing; in a trace that was read it is their number."""
    numbers = rows.to_numpy(dtype=np.int64, na_value=-1)
    counts = isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1
    return numbers if counts else index.get_indexer(numbers)


def found(trace: Trace, test: Callable[[str], object], *kinds: str) -> pd.Index:
    """The rows of events of these kinds whose name passes the test; each distinct name is asked once."""
    rows = trace.events.index[trace.of_kind(*kinds)]
    return rows[named(trace, rows, test)]


# -------------------------------------------------------------------------------------------- steps


def steps(trace: Trace) -> pd.DataFrame:
    """The profiled steps in order: step (N of ProfilerStep#N), start_us, end_us, duration_us."""
    return _steps(trace).copy()


@_kept
def _steps(trace: Trace) -> pd.DataFrame:
    events = trace.events.loc[trace.of_kind("annotation"), ["name", "start_us", "duration_us"]]
    numbers = events["name"].str.extract(f"^{_STEP.pattern}$", expand=False)
    found = events[numbers.notna()]
    return pd.DataFrame(
        {
            "step": numbers.dropna().astype("int64"),
            "start_us": found["start_us"],
            "end_us": found["start_us"] + found["duration_us"],
            "duration_us": found["duration_us"],
        }
    )


def _step_at(trace: Trace, start_us: pd.Series) -> pd.arrays.IntegerArray:
    """The step in whose window each time lies, missing outside of all steps and for a missing time.

    Of several, as when the traces of two processes were merged, it is the one that began last.
    """
    times = start_us.to_numpy(dtype=float, na_value=np.nan)
    order, known = np.argsort(times), _steps(trace)
    first = np.searchsorted(times, known["start_us"], "left", order)
    last = np.searchsorted(times, known["end_us"], "right", order)
    numbers, outside = np.zeros(len(times), dtype=np.int64), np.ones(len(times), dtype=bool)
    for number, begin, end in zip(known["step"], first, last, strict=True):
        numbers[order[begin:end]], outside[order[begin:end]] = number, False
    return pd.arrays.IntegerArray(numbers, outside)


def _of_step(trace: Trace, frame: pd.DataFrame, step: int | None) -> pd.DataFrame:
    if step is None:
        return frame
    _window(trace, step)
    return frame[(frame["step"] == step).fillna(False).astype(bool)]


def _window(trace: Trace, step: int) -> tuple[float, float]:
    known = _steps(trace).set_index("step")
    if step not in known.index:
        raise ValueError(f"{trace.path}: has no step {step}; its steps: {listed(known.index)}")
    own = known.loc[[step]]
    return float(own["start_us"].min()), float(own["end_us"].max())


def listed(names: Iterable[object]) -> str:
    """Names for an error message: on one line, and the first dozen of many."""
    shown = [units.plain(str(name)) for name in names]
    cut = [name if len(name) <= 60 else f"{name[:59]}…" for name in shown[:12]]
    return ", ".join(cut + ["…"] * (len(shown) > 12)) or "none"


# ---------------------------------------------------------------------------------------- operators


def operators(trace: Trace, step: int | None = None) -> pd.DataFrame:
    """Operators in time order, each with its place in the call tree of its thread.

    Columns: name, thread, pid, start_us, duration_us, self_us (without the operators and runtime calls inside
    it), depth (0 is outermost), parent (row of the enclosing operator), step (that in which it starts),
    shapes, dtypes, strides, concrete, module (see `modules`).
    """
    own = trace.of_kind("operator")
    events = trace.events[["name", "thread", "pid", "start_us", "duration_us", *_ARGUMENTS]][own]
    among = own[trace.of_kind("operator", *_CALLS)]
    tree, modules = (found[among] for found in (_tree(trace), _modules(trace)))
    of_tree = {name: tree[name] for name in ("self_us", "depth", "parent")}
    columns = {name: events[name] for name in events if name not in _ARGUMENTS} | of_tree
    columns["step"] = pd.Series(_step_at(trace, events["start_us"]), events.index)
    columns |= {name: events[name] for name in _ARGUMENTS} | {"module": modules}
    return _of_step(trace, pd.DataFrame(columns, copy=False), step)


def modules(trace: Trace) -> pd.Series:
    """By row of an operator or call, the innermost nn.Module around it ("Linear_3"), else None.

    with_stack=True records modules as Python calls, on the threads that run Python: not that of a backward
    pass. Where there are none, it is the `Module Hierarchy` that with_modules=True writes for TorchScript.
    """
    return _modules(trace).copy()


@_kept
def _modules(trace: Trace) -> pd.Series:
    events, module = trace.events, trace.of_kind("python")
    inside = trace.of_kind("operator", *_CALLS)
    module[module] = named(trace, events.index[module], _MODULE.match)
    if module.any():
        around = _nesting(trace, inside | module, module)["parent"]
        names = events.loc[module, "name"].str.removeprefix("nn.Module: ")
        return _at(names, around[inside[inside | module]])
    own = events.loc[inside, "module_hierarchy"]
    if own.isna().all():
        return own
    opens = events["module_hierarchy"].notna().to_numpy()
    return own.where(own.notna(), _at(own, _nesting(trace, inside, opens)["parent"]))


_MODULE = re.compile(r"nn\.Module: ")


@_kept
def _tree(trace: Trace) -> pd.DataFrame:
    """By row, for operators and calls: parent (row of the innermost enclosing operator), depth, self_us.

    An event is inside another of its thread when it starts before that one's end and ends no later: the rule
    by which torch builds its own tables. Times are compared in whole ns. torch cut times to µs before 2.3,
    each event on its own, so in such a trace an inner event may seem to end up to 1 µs late, and is let in.
    """
    return _nesting(trace, trace.of_kind("operator", *_CALLS), trace.of_kind("operator"))


def _nesting(trace: Trace, rows: np.ndarray, opens: np.ndarray) -> pd.DataFrame:
    """By row: parent, depth and self_us, where only rows that open can have others inside."""
    events, opens = trace.events, opens[rows]
    start = np.rint(events["start_us"].to_numpy()[rows] * 1000).astype(np.int64)
    length = np.rint(events["duration_us"].to_numpy()[rows] * 1000).astype(np.int64)
    late = 1000 if not (start % 1000).any() and not (length % 1000).any() else 2
    thread = _threads(trace)[rows]
    order = _outer_first(thread, start, length, opens)
    parent, depth, inner = _nested(thread[order], start[order], length[order], opens[order], late)
    labels = events.index.to_numpy()[rows]
    found = np.append(labels[order], -1)[parent]  # no parent: -1
    sorted_columns = found, depth, np.maximum(length[order] - inner, 0) / 1000
    parent, depth, self_us = (np.empty_like(column) for column in sorted_columns)
    for column, values in zip((parent, depth, self_us), sorted_columns, strict=True):
        column[order] = values
    parents = pd.arrays.IntegerArray(parent.astype(np.int64), parent < 0)
    return pd.DataFrame({"depth": depth, "self_us": self_us, "parent": parents}, index=labels)


def _outer_first(thread, start, length, opens) -> np.ndarray:
    """Thread by thread, outer before inner, of equals an operator before its call.

    Of two that start together a trace has the longer one first, so mostly no more than threads are sorted.
    """
    keys = ~opens, -length, start, thread
    order = np.argsort(thread, kind="stable")
    after = np.zeros(max(0, len(order) - 1), dtype=bool)
    for key in keys:  # the last one counts most
        step = np.diff(key[order].astype(np.int64))
        after = (step < 0) | ((step == 0) & after)
    return np.lexsort(keys) if after.any() else order


@_kept
def _threads(trace: Trace) -> np.ndarray:
    """For each event a number of its pid and thread."""
    pid, thread = trace.numbered("pid"), trace.numbered("thread")
    number, _ = pd.factorize(pid[0].astype(np.int64) * len(thread[1]) + thread[0])
    return number.astype(np.int16) if number.max(initial=0) < 2**15 else number  # sorted in a tenth of the time


def _nested(thread, start, length, opens, late: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Position of the parent (-1: none), depth, and time in direct children, of events sorted outer first."""
    end = start + length
    parent = _parents(thread, start, end, opens, late)
    inner, inside = np.zeros_like(end), parent >= 0
    outer = parent[inside]
    np.add.at(inner, outer, np.minimum(end[inside], end[outer]) - start[inside])
    return parent, _depths(parent), inner


def _depths(parent: np.ndarray) -> np.ndarray:
    """How many events are around each: with every round it looks twice as far up."""
    above = np.append(parent, -1)
    depth = (above >= 0).astype(np.int64)
    while (above >= 0).any():
        depth += depth[above]
        above = above[above]
    return depth[:-1]


def _parents(thread, start, end, opens, late: int) -> np.ndarray:
    """Each event asks the one that opened before it, then that one's parent and so on: all at the same time.

    That one's parent may not be settled yet. Those passed over are closed for it, and so for all that come
    later; hence nothing is missed, and the steps get longer with each round.
    """
    needs = np.maximum(start + 1, end - late)  # what ends before cannot have this event inside
    until = np.append(end, _NEVER)  # -1, "no parent", never ends
    last = np.maximum.accumulate(np.where(opens, np.arange(len(end)), -1))
    before = np.append(-1, last[:-1])[: len(end)]
    before[thread[before] != thread] = -1
    parent = before.copy()
    asking = np.flatnonzero(until[parent] < needs)
    for _ in range(_ROUNDS):
        parent[asking] = parent[parent[asking]]
        asking = asking[until[parent[asking]] < needs[asking]]
    for event in asking.tolist():  # deeper than programs call: one by one, as those before it are settled
        outer = before[event]
        while until[outer] < needs[event]:
            outer = parent[outer]
        parent[event] = outer
    return parent


_ROUNDS = 100
_NEVER = 2**63 - 1  # the last time that an int64 holds


# ----------------------------------------------------------------------------- launches and kernels


def launches(trace: Trace, step: int | None = None) -> pd.DataFrame:
    """Runtime and driver calls that start GPU work, in time order; a CPU trace has none.

    Columns: name, kind, thread, start_us, duration_us, correlation, operator (name of the innermost one
    around the call) and operator_row, step, work_items (how many recorded kernels, copies and fills it
    started: many for a graph, 0 when they ran outside of the trace).
    """
    items = _launched(trace).value_counts()
    calls = trace.events.index[trace.of_kind(*_CALLS)]
    calls = calls[calls.isin(items.index) | named(trace, calls, _LAUNCH.match)]
    columns = ["name", "kind", "thread", "start_us", "duration_us", "correlation"]
    frame = trace.events.loc[calls, columns]
    frame = frame.assign(
        operator=around(trace, calls),
        operator_row=_tree(trace)["parent"].loc[calls],
        step=_step_at(trace, frame["start_us"]),
        work_items=items.reindex(calls).fillna(0).astype("int64"),
    )
    return _of_step(trace, frame, step)


def around(trace: Trace, rows: pd.Index) -> pd.Series:
    """By row of an operator or call, the name of the innermost operator around it, else None."""
    return _at(trace.events["name"], _tree(trace)["parent"].loc[rows])


def kernels(trace: Trace, step: int | None = None) -> pd.DataFrame:
    """Kernels, copies and fills on the GPU in time order, each with the call and operator it came from.

    Columns: name, kind, device, stream, start_us, duration_us, correlation, launch (name of the call) and
    launch_row, delay_us (from the start of the call to the start of the item), operator (innermost around the
    call) and operator_row, its shapes, dtypes, strides and concrete, step (that in which the call lies),
    thread (of the call), bytes, grid, block, registers, shared_memory, occupancy_percent, module (see
    `modules`), launch_recorded. What came from a call outside of the trace is a row with launch_recorded
    False and without launch, operator, module or step: nothing is guessed from the time.
    """
    own = ["name", "kind", "device", "stream", "start_us", "duration_us", "correlation"]
    recorded = ["bytes", "grid", "block", "registers", "shared_memory", "occupancy_percent"]
    items = trace.events.loc[trace.of_kind(*GPU_WORK), own + recorded]
    call = _launched(trace)
    owner = _at(_tree(trace)["parent"], call)
    call_start_us = _at(trace.events["start_us"], call)
    frame = items[own].assign(
        launch=_at(trace.events["name"], call),
        launch_row=call,
        delay_us=(items["start_us"] - call_start_us).astype("Float64"),
        operator=_at(trace.events["name"], owner),
        operator_row=owner,
        step=_step_at(trace, call_start_us),
        thread=_at(trace.events["thread"], call),
        **{name: _at(trace.events[name], owner) for name in ("shapes", "dtypes", "strides", "concrete")},
    )
    frame = frame.join(items[recorded])
    for name in (
        "grid",
        "block",
        "shared_memory",
    ):  # ROCm writes the last, at times all, beside the call only
        lost = frame[name].isna() & (items["kind"] == "kernel") & call.notna()
        if lost.any():
            frame.loc[lost, name] = _at(trace.events[name], call[lost])
    frame = frame.assign(module=_at(_modules(trace), call), launch_recorded=call.notna())
    return _of_step(trace, frame, step)


@_kept
def _launched(trace: Trace) -> pd.Series:
    """By row of a GPU item, the row of its launch: the last call with its correlation that began before it.

    The clocks of CPU and GPU may be off by some µs, so when none began before it the first one after it is
    taken.
    """
    known = trace.events["correlation"].notna().to_numpy()
    events = trace.events[["start_us", "correlation"]]
    items, calls = (
        events[known & trace.of_kind(*kinds)].astype({"correlation": "int64"}) for kinds in (GPU_WORK, _CALLS)
    )
    calls = calls[np.isin(calls["correlation"], items["correlation"])]
    if calls["correlation"].is_unique:
        place = pd.Index(calls["correlation"]).get_indexer(items["correlation"])
        found = pd.Series(np.append(calls.index, -1)[place], items.index)
    else:
        found = _nearest(items, calls)
    every = trace.events.index[trace.of_kind(*GPU_WORK)]
    found = found.reindex(every, fill_value=-1).to_numpy()
    return pd.Series(pd.arrays.IntegerArray(found, found < 0), every)


def _nearest(items: pd.DataFrame, calls: pd.DataFrame) -> pd.Series:
    """For each item the row of the last call before it, else the first after it, of its correlation; else -1."""
    found = None
    for direction in ("backward", "forward"):
        pairs = pd.merge_asof(
            items.assign(row=items.index),
            calls.assign(call=calls.index),
            on="start_us",
            by="correlation",
            direction=direction,
        ).set_index("row")["call"]
        found = pairs if found is None else found.fillna(pairs)
    return found.fillna(-1).astype("int64")


def _at(values: pd.Series, rows: pd.Series) -> pd.Series:
    """The values at these rows of the trace; for a missing row missing, and None among texts and tuples."""
    place = _places(values.index, rows)
    found = pd.api.extensions.take(values.array, place, allow_fill=True)
    if not pd.api.types.is_numeric_dtype(values.dtype):
        missing, found = pd.isna(found), np.array(found, dtype=object)
        found[missing] = None
    return pd.Series(found, rows.index, dtype=found.dtype)


# --------------------------------------------------------------------------------------- work items


def work_items(trace: Trace, step: int | None = None) -> pd.DataFrame:
    """Units of device work: on a GPU what `kernels` says, on a CPU the operators that do work themselves.

    They are in the order in which they start on a GPU, and in which they end on a CPU, where the copy of a
    bias is made inside the addmm that needs it. Columns: name, operator and operator_row (the operator that
    it came from; on a CPU itself), kind, start_us, duration_us (on a CPU the operator's self time), step,
    device, stream, thread, shapes, dtypes, strides, concrete, bytes, module. A CPU operator does work when it
    computes or moves data itself; views, allocations and operators that only call others do not. A matrix
    product works although the copy of its bias, an item of its own, runs inside it. Left out is a copy of one
    number, as when `x * 2.0` turns 2.0 into the dtype of x: it is no part of the workload. (That takes
    recorded shapes: without them such a copy cannot be told from others and is counted.)
    """
    return (kernels if trace.has_gpu_events else _cpu_items)(trace, step)[_ITEM_COLUMNS]


_ITEM_COLUMNS = [
    "name", "operator", "operator_row", "kind", "start_us", "duration_us", "step", "device", "stream",
    "thread", "shapes", "dtypes", "strides", "concrete", "bytes", "module",
]  # fmt: skip


def _cpu_items(trace: Trace, step: int | None) -> pd.DataFrame:
    frame = operators(trace)
    frame = frame[_working(frame)]
    ends_us = (frame["start_us"] + frame["duration_us"]).round(3)
    frame = frame.iloc[np.lexsort((-frame["depth"], ends_us))]
    own = trace.events.loc[frame.index, ["kind", "device", "stream", "bytes"]]
    frame = frame.assign(
        operator=frame["name"], operator_row=frame.index.astype("Int64"), duration_us=frame["self_us"]
    )
    return _of_step(trace, frame.join(own), step)


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


# The same memory under another shape, or another description of a tensor: torch's schemas return an alias.
VIEWS = _aten(
    "T adjoint alias as_strided as_strided_ atleast_1d atleast_2d atleast_3d broadcast_tensors "
    "broadcast_to chunk conj _conj contiguous data detach detach_ diagonal dsplit expand expand_as "
    "flatten hsplit imag lift lift_fresh linalg_diagonal mH mT matrix_H meshgrid moveaxis movedim narrow "
    "numpy_T permute positive ravel real reshape reshape_as _reshape_alias resolve_conj resolve_neg "
    "_neg_view select slice slice_inverse split split_with_sizes squeeze squeeze_ swapaxes swapaxes_ "
    "swapdims swapdims_ t t_ tensor_split transpose transpose_ unbind unflatten unfold unsafe_chunk "
    "unsafe_split unsafe_split_with_sizes _unsafe_view unsqueeze unsqueeze_ view view_as view_as_complex "
    "view_as_real vsplit values indices _values _indices crow_indices col_indices"
)
# Memory without contents.
ALLOCATIONS = _aten(
    "empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided resize_ "
    "resize_as_ set_ _resize_output_"
)
# Calls others, or does nothing when there is nothing to do (`to` the dtype it has), or reads one number or a
# property.
WRAPPERS = _aten(
    "_to_copy to type_as cpu cuda pin_memory clone chalf lift_fresh_copy zeros zeros_like new_zeros ones "
    "ones_like new_ones full full_like new_full fill scalar_tensor tensor item _local_scalar_dense "
    "is_nonzero result_type can_cast is_same_size dense_dim sparse_dim _nnz _nnpack_available "
    "_fused_sdp_choice linear matmul softmax log_softmax layer_norm batch_norm _batch_norm_impl_index "
    "group_norm instance_norm dropout alpha_dropout feature_dropout feature_alpha_dropout embedding "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution "
    "_convolution_mode scaled_dot_product_attention cross_entropy_loss pad constant_pad_nd _pad_circular "
    "repeat_interleave "
    "block_diag cartesian_prod diag diag_embed diagflat diff repeat rot90 tile as_strided_scatter "
    "diagonal_scatter select_scatter slice_scatter alias_copy as_strided_copy detach_copy diagonal_copy "
    "expand_copy permute_copy select_copy slice_copy split_copy split_with_sizes_copy squeeze_copy t_copy "
    "transpose_copy unbind_copy unfold_copy unsqueeze_copy view_copy "
    "slice_backward select_backward _sparse_coo_tensor_with_dims_and_tensors sparse_coo_tensor _sparse_compressed_tensor_unsafe"
)
# These compute in their own code, whatever other operators prepare for it, except a product that is made of
# products: a CPU without batched ones in half precision runs an addmm_ for each matrix inside its baddbmm.
_PRODUCTS = _aten("mm addmm addmm_ _addmm_activation bmm baddbmm baddbmm_ addmv addmv_")
_ALWAYS_WORK = _PRODUCTS | _aten(
    "var std mse_loss smooth_l1_loss huber_loss mkldnn_rnn_layer mkldnn_rnn_layer_backward"
)
# These write memory without computing. They may prepare the output or the input of an operator that then
# works as well.
_WRITES = _aten("copy_ fill_ zero_ arange")
# A power of 1 or 0 is a copy or a fill and nothing else.
_OR_ELSE = _WRITES | _aten("pow pow_")
# They begin with a fill of their output and, when several threads share the work, a copy of it for each: part
# of them.
_REDUCTIONS = _aten(
    "sum nansum prod all any amax amin aminmax max min argmax argmin cumsum cumprod norm "
    "linalg_vector_norm var std var_mean std_mean dot vdot"
)
_NOTHING, _ONLY_WRITES, _WORK, _PRODUCT = range(4)


def _working(frame: pd.DataFrame) -> np.ndarray:
    """Which of these operators (in the order of `operators`, parents before children) do work themselves."""
    names = frame["name"].tolist()
    place = {row: position for position, row in enumerate(frame.index)}
    parents = [-1 if row is pd.NA else place[row] for row in frame["parent"]]
    shapes = frame["shapes"].tolist()
    works, below, same = [False] * len(names), [_NOTHING] * len(names), [False] * len(names)
    for position in range(len(names) - 1, -1, -1):
        name, parent = names[position], parents[position]
        outer = names[parent] if parent >= 0 else None
        own = not same[position] and _does_work(name, below[position])
        works[position] = own and not _part_of_another(name, outer, shapes[position])
        if parent >= 0:
            level = _level(name) if works[position] else _NOTHING
            below[parent] = max(below[parent], below[position], level)
            same[parent] = same[parent] or name == outer  # sum() calls sum(dim): one overload calls another
    return np.array(works, dtype=bool)


def _level(name: str) -> int:
    return _ONLY_WRITES if name in _WRITES else _PRODUCT if name in _PRODUCTS else _WORK


def _does_work(name: str, below: int) -> bool:
    """Whether an operator works itself, knowing what works inside of it."""
    if (
        "cpp_fused" in name
    ):  # Inductor's kernels; all else without a namespace is a node of autograd or of the compiler
        return True
    if "::" not in name or name.startswith(("autograd::", "torch::", "profiler::")):
        return False
    if name in VIEWS or name in ALLOCATIONS or name in WRAPPERS:
        return False
    if below == _ONLY_WRITES:
        return name.startswith("aten::") and name not in _OR_ELSE
    return below == _NOTHING or (name in _ALWAYS_WORK and below != _PRODUCT)


def _part_of_another(name: str, outer: str | None, shapes: tuple | None) -> bool:
    if name not in _WRITES:
        return False
    one_number = name == "aten::copy_" and shapes is not None and shapes[:2] == ((), ())
    return one_number or outer in _REDUCTIONS


# -------------------------------------------------------------------------------------------- lanes


def busy(trace: Trace, step: int | None = None, *, by: str = "device") -> pd.DataFrame:
    """How much of the window each lane was busy.

    Columns: lane (its name), device, stream, thread, items, window_us, sum_us (durations added up: what
    overlaps or is nested counts again), busy_us (time in which at least one ran), idle_us (the rest of the
    window), busy_share. A lane is a GPU (by="device") or one of its streams (by="stream"), or a CPU thread,
    which is busy in operators and runtime calls but not while it waits in one that ends in Synchronize. The
    window is the step, and on until the GPU has done what the step launched; without a step, all of the
    trace. All that runs in the window counts, whichever step launched it.
    """
    rows, (start_us, end_us) = [], _span(trace, step)
    for lane, events in _lanes(trace, by, start_us, end_us):
        idle_us = sum(end - start for start, end, _, _ in _idle(events, start_us, end_us))
        rows.append(lane | {"items": len(events), "sum_us": events["duration_us"].sum(), "idle_us": idle_us})
    types = _LANE_TYPES | {"items": "int64", "sum_us": float, "idle_us": float}
    frame = pd.DataFrame(rows, columns=list(types), dtype=object).astype(types)
    window_us = end_us - start_us
    frame = frame.assign(window_us=window_us, busy_us=window_us - frame["idle_us"])
    frame = frame.assign(busy_share=frame["busy_us"] / window_us if window_us else 0.0)
    return frame[[*_LANE_TYPES, "items", "window_us", "sum_us", "busy_us", "idle_us", "busy_share"]]


def gaps(trace: Trace, step: int | None = None, *, by: str = "device") -> pd.DataFrame:
    """When nothing ran in a lane: lane, device, stream, thread, start_us, end_us, duration_us, after, before.

    `after` and `before` name what ran last and next, None at the edges of the window. Lanes and window are
    those of `busy`, and the gaps of a lane add up to its idle_us.
    """
    rows, (start_us, end_us) = [], _span(trace, step)
    for lane, events in _lanes(trace, by, start_us, end_us):
        for start, end, after, before in _idle(events, start_us, end_us):
            times = {"start_us": start, "end_us": end, "duration_us": end - start}
            rows.append(lane | times | {"after": after, "before": before})
    times = dict.fromkeys(("start_us", "end_us", "duration_us"), float)
    types = _LANE_TYPES | times | {"after": object, "before": object}
    return pd.DataFrame(rows, columns=list(types), dtype=object).astype(types)


_LANE_TYPES = {"lane": object, "device": "Int64", "stream": "Int64", "thread": object}


def _span(trace: Trace, step: int | None) -> tuple[float, float]:
    """Start and end, in µs, of the window that `busy` describes."""
    if step is not None:
        start_us, end_us = _window(trace, step)
        items = kernels(trace, step)
        return start_us, max([end_us, *(items["start_us"] + items["duration_us"])])
    events = trace.events
    counted = trace.of_kind("operator", *_CALLS, *GPU_WORK) | events.index.isin(steps(trace).index)
    ends_us = (events["start_us"] + events["duration_us"])[counted]
    return (float(events["start_us"][counted].min()), float(ends_us.max())) if counted.any() else (0.0, 0.0)


def _lanes(
    trace: Trace, by: str, start_us: float, end_us: float
) -> list[tuple[dict[str, object], pd.DataFrame]]:
    """Each lane with what ran in it between these times, cut to them."""
    if by not in ("device", "stream"):
        raise ValueError(f'lanes are by "device" or by "stream", got {by!r}')
    events = _cut(trace.events, start_us, end_us)
    gpu = events[events["kind"].isin(GPU_WORK)]
    waits = events["name"].str.match(_WAIT.pattern) & events["kind"].isin(_CALLS)
    cpu = events[events["kind"].isin(("operator", *_CALLS)) & ~waits]
    lanes = []
    for key, of in gpu.groupby(["device", "stream"] if by == "stream" else ["device"], dropna=False):
        device, stream = (*key, pd.NA)[:2]
        name = f"GPU {device}" + (f" stream {stream}" if by == "stream" else "")
        lanes.append(({"lane": name, "device": device, "stream": stream, "thread": None}, of))
    for (_, thread), of in cpu.groupby(["pid", "thread"], sort=False):
        lanes.append(({"lane": f"thread {thread}", "device": pd.NA, "stream": pd.NA, "thread": thread}, of))
    return lanes


def _cut(events: pd.DataFrame, start_us: float, end_us: float) -> pd.DataFrame:
    ends_us = events["start_us"] + events["duration_us"]
    inside = (events["start_us"] < end_us) & (ends_us > start_us)
    inside |= (events["duration_us"] == 0) & events["start_us"].between(start_us, end_us)
    starts_us = events["start_us"][inside].clip(lower=start_us)
    return events[inside].assign(
        start_us=starts_us, duration_us=ends_us[inside].clip(upper=end_us) - starts_us
    )


def _idle(
    events: pd.DataFrame, start_us: float, end_us: float
) -> list[tuple[float, float, str | None, str | None]]:
    """The parts of the window that these events, in time order, leave free, and what ran around each."""
    free, until, last = [], start_us, None
    for start, duration, name in zip(events["start_us"], events["duration_us"], events["name"], strict=True):
        if start > until:
            free.append((until, start, last, name))
        if start + duration >= until:
            until, last = start + duration, name
    return [*free, (until, end_us, last, None)] if end_us > until else free


# ------------------------------------------------------------------------------ copies, sums, trees


def copies(trace: Trace, step: int | None = None) -> pd.DataFrame:
    """Work items that only move data: memcpys, and what `aten::copy_` does.

    Columns: name, direction ("DtoD", "HtoD", … None for a copy by a kernel or on a CPU), operator, bytes
    (written; missing when neither the GPU nor the recorded shapes tell), start_us, duration_us, bytes_per_s,
    step.
    """
    items = work_items(trace, step)
    items = items[(items["kind"] == "memcpy") | (items["operator"] == "aten::copy_")]
    written = pd.Series(
        [_bytes_written(*row) for row in zip(items["shapes"], items["dtypes"], strict=True)],
        items.index,
        dtype="Int64",
    )
    nbytes = items["bytes"].fillna(written)
    duration_us = items["duration_us"].where(items["duration_us"] > 0).astype("Float64")
    direction = items["name"].str.extract(r"\b([HDPA]to[HDPA])\b", expand=False).astype(object)
    direction = direction.where(direction.notna(), None)
    frame = items.assign(direction=direction, bytes=nbytes, bytes_per_s=nbytes * 1e6 / duration_us)
    return frame[["name", "direction", "operator", "bytes", "start_us", "duration_us", "bytes_per_s", "step"]]


def _bytes_written(shapes: tuple | None, dtypes: tuple | None) -> int | None:
    """Size of the first argument, the destination of `aten::copy_`."""
    try:
        sizes, itemsize = list(map(index, shapes[0])), units.itemsize(dtypes[0])
    except (TypeError, IndexError, ValueError):  # not recorded, or what no tensor has
        return None
    nbytes = math.prod(sizes) * itemsize
    return nbytes if min(sizes, default=0) >= 0 and nbytes < 2**63 else None


def summary(trace: Trace, step: int | None = None, *, by: str = "operators") -> pd.DataFrame:
    """Times added up by name, the largest self time first.

    Columns: name, count, total_us, self_us, median_us, min_us, max_us. `by` says what is added up:
    "operators", "launches", "kernels" or "work_items". The total of an operator holds that of the operators
    inside it, so only self times may be added up over names; median, min and max are of single totals. An
    operator that calls itself under the same name (one overload another) counts once, as in torch's own
    table.
    """
    questions = {"operators": operators, "launches": launches, "kernels": kernels, "work_items": work_items}
    if by not in questions:
        raise ValueError(f"by is one of {', '.join(questions)}, got {by!r}")
    rows = questions[by](trace, step)
    if by == "operators":
        self_us = rows.groupby("name", sort=False)["self_us"].sum()
        rows = rows[_at(trace.events["name"], rows["parent"]) != rows["name"]]
    else:
        self_us = rows.groupby("name", sort=False)["duration_us"].sum()
    single = rows.groupby("name", sort=False)["duration_us"]
    frame = single.agg(count="size", total_us="sum", median_us="median", min_us="min", max_us="max")
    frame.insert(2, "self_us", self_us.reindex(frame.index))
    return frame.sort_values("self_us", ascending=False, kind="stable").reset_index()


def chain(
    trace: Trace, name: str, step: int | None = None, *, times: bool = False, launches: bool = False
) -> str:
    """The first operator of this name and all operators inside it as a tree of text, in the order they ran.

    `times` adds each one's duration; `launches` adds the runtime calls and, below each, what it ran on the
    GPU. Raises ValueError when no operator has this name.
    """
    found = operators(trace, step)
    chosen = found.index[found["name"] == name]
    if chosen.empty:
        known = listed(sorted(set(found["name"])))
        raise ValueError(f"{trace.path}: has no operator {name!r}; it has {known}")
    inside = _children(trace, launches)
    lines = [_line(trace, chosen[0], times)]
    try:
        _branches(trace, inside, chosen[0], "", times, lines)
    except RecursionError:
        raise ValueError(
            f"{trace.path}: {listed([name])} is nested too deeply for a tree; ask operators()"
        ) from None
    return "\n".join(lines)


def _children(trace: Trace, launches: bool) -> dict[int, list[int]]:
    """Rows directly inside of each row, in time order."""
    parents = _tree(trace)["parent"].dropna()
    if launches:
        parents = pd.concat([parents, _launched(trace).dropna()])
    else:
        parents = parents[(trace.events["kind"] == "operator").reindex(parents.index)]
    inside: dict[int, list[int]] = {}
    for row, parent in parents.sort_index().items():
        inside.setdefault(int(parent), []).append(row)
    return inside


def _branches(
    trace: Trace, inside: dict[int, list[int]], row: int, indent: str, times: bool, lines: list[str]
) -> None:
    rows = inside.get(row, [])
    for number, child in enumerate(rows):
        last = number == len(rows) - 1
        lines.append(indent + ("└─ " if last else "├─ ") + _line(trace, child, times))
        _branches(trace, inside, child, indent + ("   " if last else "│  "), times, lines)


def _line(trace: Trace, row: int, times: bool) -> str:
    name, duration_us = trace.events.at[row, "name"], trace.events.at[row, "duration_us"]
    text = units.plain(name)
    return f"{text}  {units.duration(duration_us)}" if times else text
