"""Made-up traces of any structure, and files of any bytes: what holds for all of them."""

import gzip
import json
import random
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutorial_lib import timeline
from tutorial_lib.trace import GPU_WORK, TraceError, from_events, read_trace

FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))

ticks = st.integers(0, 4_000).map(lambda number: number / 8)  # µs; eighths add up without rounding
ids = st.one_of(st.integers(0, 6), st.sampled_from(["3", None]))


def event(cat, name, args=st.just({}), pid=st.just(1), tid=st.integers(1, 2)):
    return st.fixed_dictionaries(
        {
            "ph": st.just("X"), "cat": st.sampled_from(cat), "name": st.sampled_from(name),
            "ts": ticks, "dur": ticks, "pid": pid, "tid": tid, "args": args,
        }
    )  # fmt: skip


calls = event(["cuda_runtime", "cuda_driver", "Runtime"], ["cudaLaunchKernel", "cudaGraphLaunch", "INVALID"],
              st.fixed_dictionaries({"correlation": ids}))  # fmt: skip
items = event(
    ["kernel", "Kernel", "gpu_memcpy", "gpu_memset"], ["gemm", "Memcpy HtoD (Pinned -> Device)"],
    st.fixed_dictionaries({"correlation": ids, "device": st.integers(0, 1), "stream": st.integers(7, 8)}),
    st.integers(0, 1), st.integers(7, 8),
)  # fmt: skip
operators = event(["cpu_op", "Operator"], ["aten::mm", "aten::copy_", "aten::add", "aten::t"])
others = event(["user_annotation", "python_function", "gpu_user_annotation", None],
               ["ProfilerStep#1", "ProfilerStep#2", "nn.Module: Linear_0", "f.py(1): f"])  # fmt: skip
traces = st.lists(st.one_of(calls, items, operators, others), min_size=1, max_size=30)


def union_us(rows):
    """How long at least one of these ran, piece by piece: time cut at every start and end."""
    edges = sorted({edge for row in rows for edge in (row["ts"], row["ts"] + row["dur"])})
    pairs = zip(edges, edges[1:], strict=False)
    return sum(b - a for a, b in pairs if any(r["ts"] <= a and b <= r["ts"] + r["dur"] for r in rows))


def is_work(row):
    return row["cat"] in ("kernel", "Kernel", "gpu_memcpy", "gpu_memset")


def is_call(row):
    return row["cat"] in ("cuda_runtime", "cuda_driver", "Runtime")


@FEW
@given(traces)
def test_each_item_is_counted_once_and_linked_by_its_correlation_alone(rows):
    trace = from_events(rows)
    found = timeline.kernels(trace)
    work = [row for row in rows if is_work(row)]
    assert Counter(found["name"]) == Counter(row["name"] for row in work)
    assert found["duration_us"].sum() == sum(row["dur"] for row in work)
    known = {str(row["args"]["correlation"]) for row in rows if is_call(row)} - {"None"}
    linked = sum(str(row["args"]["correlation"]) in known for row in work)
    assert found["launch_recorded"].sum() == linked == timeline.launches(trace)["work_items"].sum()


@FEW
@given(traces)
def test_busy_is_the_union_of_what_ran_and_idle_is_the_rest(rows):
    trace = from_events(rows)
    lanes = timeline.busy(trace).set_index("lane")
    for device in (0, 1):
        own = [row for row in rows if is_work(row) and row["args"]["device"] == device]
        if own:
            lane = lanes.loc[f"GPU {device}"]
            assert abs(lane["busy_us"] - union_us(own)) < 1e-6
            assert lane["busy_us"] <= min(lane["sum_us"], lane["window_us"]) + 1e-6
            assert abs(lane["busy_us"] + lane["idle_us"] - lane["window_us"]) < 1e-6
    assert abs(timeline.gaps(trace)["duration_us"].sum() - lanes["idle_us"].sum()) < 1e-6


@FEW
@given(traces)
def test_an_operator_lies_inside_its_parent_and_self_times_add_up_to_no_more_than_the_thread_ran(rows):
    trace = from_events(rows)
    found = timeline.operators(trace)
    ends = found["start_us"] + found["duration_us"]
    for row in found[found["parent"].notna()].index:
        parent = found.at[row, "parent"]
        assert found.at[parent, "thread"] == found.at[row, "thread"]
        assert found.at[parent, "start_us"] <= found.at[row, "start_us"]
        assert ends[row] <= ends[parent] + 1  # whole µs are let in by 1
        assert found.at[row, "depth"] == found.at[parent, "depth"] + 1
    assert (found["self_us"] >= 0).all() and (found["self_us"] <= found["duration_us"] + 1e-3).all()
    by_step = [len(timeline.operators(trace, step)) for step in set(timeline.steps(trace)["step"])]
    assert sum(by_step) + found["step"].isna().sum() == len(found)


@FEW
@given(traces, st.randoms(use_true_random=False))
def test_the_order_of_events_in_the_file_does_not_matter(rows, dice):
    rows = [{**row, "dur": row["dur"] + number / 1024} for number, row in enumerate(rows)]  # no two alike
    mixed = random.Random(dice.random()).sample(rows, len(rows))
    one, two = (
        timeline.busy(from_events(of), by="stream").sort_values("lane", ignore_index=True)
        for of in (rows, mixed)
    )
    assert one.equals(two)


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**25)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
keys = ["ph", "cat", "name", "ts", "dur", "pid", "tid", "args"]


@FEW
@given(operators, st.lists(st.tuples(st.sampled_from(keys), anything), max_size=4), anything)
def test_values_of_any_type_give_a_table_or_one_line(row, odd, entry):
    rows = [{**row, key: value} for key, value in odd] + [entry, row]
    try:
        trace = from_events([e for e in rows if isinstance(e, dict)], extra=entry)
        timeline.work_items(trace), timeline.busy(trace)
    except TraceError as error:
        assert "\n" not in str(error)
    except (ValueError, TypeError) as error:  # what msgspec does not write, the reader need not read
        assert "encode" in str(error) or "integer" in str(error).lower()


@FEW
@given(traces, st.data())
def test_a_file_with_any_bytes_changed_or_lost_is_read_or_is_one_line(tmp_path_factory, rows, data):
    text = bytearray(
        json.dumps({"deviceProperties": [{"id": 0}], "traceEvents": rows, "end": {"a": [1]}}).encode()
    )
    for _ in range(data.draw(st.integers(0, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        text = bytearray(gzip.compress(bytes(text)))
    text = text[: data.draw(st.integers(0, len(text)))]
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_bytes(text)
    try:
        trace = read_trace(path)
    except TraceError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
    else:
        assert len(trace.events) <= len(rows)
        assert len(timeline.kernels(trace)) == trace.events["kind"].isin(GPU_WORK).sum()


def is_operator(row):
    return row["cat"] == "cpu_op"


def parents_by_definition(rows):
    """For each operator and call the name of the innermost operator around it, one event after the other.

    Inside is what starts before the other's end and ends no later, but for what rounding to µs (here in a
    trace of whole µs) or ns took. An operator that begins inside of another and ends after it closes it.
    """
    inside = sorted(rows, key=lambda row: (row["ts"], -row["dur"], not is_operator(row)))
    late_us = 1 if all(row["ts"] % 1 == 0 and row["dur"] % 1 == 0 for row in rows) else 0.002
    found, still_open = {}, {1: [], 2: []}
    for row in inside:
        needs_us = max(row["ts"] + 0.001, row["ts"] + row["dur"] - late_us)
        around = [(end, name) for end, name in still_open[row["tid"]] if end >= needs_us]
        found[row["name"]] = around[-1][1] if around else None
        if is_operator(row):
            still_open[row["tid"]] = [*around, (row["ts"] + row["dur"], row["name"])]
    return found


@settings(FEW, max_examples=100)
@given(st.lists(st.one_of(calls, event(["cpu_op"], ["op"])), min_size=1, max_size=40), st.sampled_from([0, 1, 100]))
def test_the_innermost_operator_around_each_event_is_found_whatever_overlaps(rows, rounds):
    rows = [{**row, "name": f"{row['name']} {number}"} for number, row in enumerate(rows)]
    trace, kept = from_events(rows), timeline._ROUNDS
    timeline._ROUNDS = rounds  # few rounds leave the rest to be asked one by one
    try:
        parents = timeline._tree(trace)["parent"].fillna(-1)
    finally:
        timeline._ROUNDS = kept
    names = trace.events["name"].to_dict() | {-1: None}
    assert {names[row]: names[parent] for row, parent in parents.items()} == parents_by_definition(rows)
