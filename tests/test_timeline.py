"""Questions to small traces written by hand, whose answers can be added up in the head."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from tutorial_lib import timeline
from tutorial_lib.trace import by_hand, from_events


def operator(name, ts, dur, tid=1, **args):
    return {"cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def annotation(name, ts, dur):
    return {"cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


def call(ts, correlation, name="cudaLaunchKernel", cat="cuda_runtime", tid=1, dur=2):
    args = {"correlation": correlation}
    return {"cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name, ts, dur, correlation=None, stream=7, cat="kernel", **args):
    args = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return {"cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def tree(*events):
    """Each operator's name with the name of its parent, in time order."""
    rows = timeline.operators(from_events(events))
    parents = [rows["name"].get(row) for row in rows["parent"].fillna(-1)]
    return list(zip(rows["name"], parents, strict=True))


# ------------------------------------------------------------------------------------------------ steps


def test_steps_are_the_annotations_that_are_numbered():
    trace = from_events(
        [annotation("ProfilerStep#2", 0, 10), annotation("ProfilerStep#3", 10, 30), annotation("x", 0, 9)]
    )
    steps = timeline.steps(trace)
    assert steps["step"].tolist() == [2, 3]
    assert steps["end_us"].tolist() == [10.0, 40.0] and steps["duration_us"].tolist() == [10.0, 30.0]


def test_what_starts_outside_of_all_steps_has_no_step():
    between = [operator("aten::a", 5, 1), operator("aten::b", 12, 1), operator("aten::c", 25, 1)]
    trace = from_events([annotation("ProfilerStep#0", 0, 10), annotation("ProfilerStep#1", 20, 10), *between])
    assert timeline.operators(trace)["step"].astype(object).where(lambda s: s.notna(), None).tolist() == [
        0,
        None,
        1,
    ]
    assert timeline.operators(trace, 1)["name"].tolist() == ["aten::c"]


def test_without_steps_there_is_an_empty_table_and_every_operator_is_kept():
    trace = from_events([operator("aten::a", 0, 1)])
    assert list(timeline.steps(trace).columns) == ["step", "start_us", "end_us", "duration_us"]
    assert timeline.steps(trace).empty and timeline.operators(trace)["step"].isna().all()


def test_a_step_that_is_not_there_is_an_error_that_names_those_that_are():
    trace = from_events([annotation("ProfilerStep#2", 0, 10), operator("aten::a", 0, 1)])
    for question in (timeline.operators, timeline.work_items, timeline.kernels, timeline.busy, timeline.gaps):
        with pytest.raises(ValueError, match="has no step 3; its steps: 2"):
            question(trace, 3)


# ------------------------------------------------------------------------------------------------ nesting


def test_self_time_is_what_operators_and_calls_inside_leave_over():
    trace = from_events([operator("aten::a", 0, 20), operator("aten::b", 2, 6), call(10, 1, dur=4)])
    # 20 - 6 - 4 = 10
    assert timeline.operators(trace)["self_us"].tolist() == [10.0, 6.0]
    assert timeline.operators(trace)["depth"].tolist() == [0, 1]


def test_of_operators_that_start_together_the_longer_one_is_outside():
    assert tree(operator("inner", 0, 5), operator("outer", 0, 8)) == [("outer", None), ("inner", "outer")]


def test_operators_that_end_together_are_nested():
    events = operator("outer", 0, 10), operator("middle", 4, 6), operator("inner", 7, 3)
    assert tree(*events) == [("outer", None), ("middle", "outer"), ("inner", "middle")]


def test_an_operator_that_starts_when_another_ends_is_beside_it():
    assert tree(operator("a", 0, 5), operator("b", 5, 5)) == [("a", None), ("b", None)]


def test_operators_of_no_length_are_inside_what_goes_on_and_beside_each_other():
    events = operator("outer", 0, 5), operator("start", 0, 0), operator("x", 3, 0), operator("y", 3, 0)
    assert tree(*events) == [("outer", None), ("start", "outer"), ("x", "outer"), ("y", "outer")]


def test_an_inner_operator_may_seem_to_end_late_by_what_rounding_took():
    # whole µs: each event was cut on its own, so up to 1 µs is let in, and no self time is negative
    trace = from_events([operator("outer", 0, 5), operator("inner", 3, 3)])
    assert timeline.operators(trace)["depth"].tolist() == [0, 1]
    assert timeline.operators(trace)["self_us"].tolist() == [3.0, 3.0]  # 5 - (5 - 3)


def test_an_operator_that_sticks_out_by_more_is_beside():
    assert tree(operator("a", 0, 5.5), operator("b", 3, 4)) == [("a", None), ("b", None)]


def test_threads_nest_each_for_itself():
    events = operator("a", 0, 10, tid=1), operator("b", 2, 3, tid=2)
    assert tree(*events) == [("a", None), ("b", None)]


# ---------------------------------------------------------------------------------- launches and kernels


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("cudaLaunchKernel", "cuda_runtime"), ("cudaLaunchKernelExC", "cuda_runtime"),
        ("cuLaunchKernel", "cuda_driver"), ("cuLaunchKernelEx", "cuda_driver"), ("cudaMemsetAsync", "Runtime"),
        ("hipLaunchKernel", "cuda_runtime"), ("hipExtModuleLaunchKernel", "cuda_runtime"),
        ("INVALID", "cuda_runtime"),
    ],
)  # fmt: skip
def test_a_kernel_comes_from_the_innermost_operator_around_its_launch(name, category):
    outer, inner = operator("aten::linear", 0, 20), operator("aten::addmm", 2, 10, **{"Input Dims": [[4, 4]]})
    trace = from_events([outer, inner, call(5, 9, name, category), kernel("gemm", 30, 4, 9)])
    row = timeline.kernels(trace).iloc[0]
    assert (row["launch"], row["operator"], row["shapes"]) == (name, "aten::addmm", ((4, 4),))
    assert row["delay_us"] == 25.0  # 30 - 5


def test_one_launch_may_start_many_kernels_as_a_graph_does():
    events = [call(1, 5, "cudaGraphLaunch"), kernel("a", 4, 1, 5), kernel("b", 5, 1, 5), kernel("c", 6, 1, 5)]
    trace = from_events(events)
    assert timeline.launches(trace)["work_items"].tolist() == [3]
    assert timeline.kernels(trace)["launch"].tolist() == ["cudaGraphLaunch"] * 3


def test_a_kernel_whose_launch_is_outside_of_the_window_has_no_operator_and_no_step():
    # it runs in the middle of an operator and a step that have nothing to do with it
    events = [annotation("ProfilerStep#1", 0, 50), operator("aten::mm", 0, 50), kernel("before", 10, 5, 3)]
    row = timeline.kernels(from_events(events)).iloc[0]
    assert row["launch"] is None and row["operator"] is None
    assert row[["launch_row", "operator_row", "step", "delay_us"]].isna().all()
    assert timeline.work_items(from_events(events), 1).empty


def test_a_kernel_belongs_to_the_step_of_its_launch_though_it_runs_in_the_next():
    steps = [annotation("ProfilerStep#0", 0, 10), annotation("ProfilerStep#1", 10, 10)]
    trace = from_events([*steps, call(8, 1), kernel("late", 12, 3, 1)])
    assert timeline.kernels(trace)["step"].tolist() == [0]


def test_of_calls_with_one_correlation_the_last_before_the_kernel_counts():
    events = [
        operator("aten::a", 0, 5),
        call(1, 4),
        operator("aten::b", 20, 5),
        call(21, 4),
        kernel("k", 25, 1, 4),
    ]
    assert timeline.kernels(from_events(events))["operator"].tolist() == ["aten::b"]


def test_a_kernel_that_seems_to_start_before_its_launch_is_linked_all_the_same():
    trace = from_events([call(10, 4), kernel("k", 9, 3, 4)])
    assert timeline.kernels(trace)["delay_us"].tolist() == [-1.0]


def test_a_call_is_inside_operators_of_its_own_thread_only():
    trace = from_events([operator("aten::a", 0, 9, tid=1), call(3, 1, tid=2), kernel("k", 5, 1, 1)])
    assert timeline.kernels(trace)["operator"].tolist() == [None]


def test_kernels_with_null_correlations_are_rows_without_links():
    trace = from_events([call(0, None), kernel("a", 1, 1), kernel("b", 2, 1)])
    assert timeline.kernels(trace)["launch_row"].isna().all()


def test_a_launch_whose_kernel_was_not_recorded_has_no_work_items():
    trace = from_events([call(0, 1), call(3, 2, "cudaDeviceSynchronize"), call(6, 3, "cudaEventRecord")])
    assert timeline.launches(trace)[["name", "work_items"]].values.tolist() == [["cudaLaunchKernel", 0]]


def test_kernels_without_a_recorded_launch_are_rows_that_say_so():
    events = [call(1, 5), kernel("inside", 4, 1, 5), kernel("before", 0, 1, 3), kernel("no id", 9, 1)]
    found = timeline.kernels(from_events(events)).set_index("name")["launch_recorded"]
    assert found.to_dict() == {"inside": True, "before": False, "no id": False}


def test_the_external_id_links_nothing():
    # In b200 traces it is a counter of its own, and the kernel's is that of another operator.
    events = [
        operator("aten::a", 0, 5, **{"External id": 7}),
        operator("aten::b", 10, 5, **{"External id": 8}),
    ]
    trace = from_events([*events, call(11, 4), kernel("k", 20, 1, 4, **{"External id": 7})])
    assert timeline.kernels(trace)["operator"].tolist() == ["aten::b"]


def test_each_device_and_stream_is_told_apart_and_kernels_of_one_graph_spread_over_them():
    nodes = [kernel(f"n{n}", 10 + n, 1, 5, stream=7 + n % 2, device=n % 2) for n in range(300)]
    trace = from_events([call(1, 5, "cudaGraphLaunch"), *nodes])
    assert timeline.launches(trace)["work_items"].tolist() == [300]
    assert timeline.busy(trace).query("lane == 'GPU 1'")["items"].tolist() == [150]


def test_on_rocm_a_kernel_takes_from_its_call_what_it_does_not_say_itself():
    beside = call(1, 5, "hipLaunchKernel")
    beside["args"] |= {"kernel": "k", "grid": [9, 1, 1], "block": [64, 1, 1], "shared memory": 512}
    row = timeline.kernels(from_events([beside, kernel("k", 4, 1, 5, grid=[8, 1, 1])])).iloc[0]
    assert (row["grid"], row["block"], row["shared_memory"]) == ((8, 1, 1), (64, 1, 1), 512)


def test_what_a_kernel_says_of_its_launch_is_in_the_table():
    told = {"grid": [4, 2, 1], "block": [128, 1, 1], "registers per thread": 168, "shared memory": 147456}
    row = timeline.kernels(
        from_events([kernel("k", 0, 1, 5, **told, **{"est. achieved occupancy %": 15})])
    ).iloc[0]
    assert (row["grid"], row["block"], row["registers"], row["shared_memory"]) == (
        (4, 2, 1),
        (128, 1, 1),
        168,
        147456,
    )
    assert (row["occupancy_percent"], row["device"], row["stream"]) == (15, 0, 7)


# ------------------------------------------------------------------------------------------------ modules


def module(name, ts, dur, tid=1):
    return {"cat": "python_function", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {}}


def test_a_kernel_comes_from_the_innermost_module_around_its_launch():
    stack = [
        module("nn.Module: Net_0", 0, 100),
        module("net.py(3): forward", 1, 95),
        module("nn.Module: Linear_0", 2, 40),
    ]
    work = [
        operator("aten::mm", 5, 20),
        call(10, 1),
        kernel("in", 50, 5, 1),
        call(60, 2),
        kernel("behind", 70, 5, 2),
    ]
    other = [operator("aten::mm", 5, 20, tid=2), call(10, 3, tid=2), kernel("other thread", 80, 5, 3)]
    trace = from_events([*stack, *work, *other, kernel("no launch", 20, 5, 9)])
    found = timeline.kernels(trace).set_index("name")["module"].to_dict()
    assert found == {"in": "Linear_0", "no launch": None, "behind": "Net_0", "other thread": None}
    assert timeline.operators(trace)["module"].tolist() == ["Linear_0", None]
    assert timeline.work_items(trace)["module"].tolist() == list(timeline.kernels(trace)["module"])


def test_without_python_calls_the_module_hierarchy_of_torchscript_counts():
    where = {"Module Hierarchy": "TOP(Net)::forward.fc(Linear)::forward"}
    trace = from_events(
        [
            operator("aten::linear", 0, 20, **where),
            operator("aten::mm", 2, 15),
            call(5, 1),
            kernel("k", 9, 1, 1),
        ]
    )
    assert timeline.operators(trace)["module"].tolist() == [where["Module Hierarchy"]] * 2
    assert timeline.kernels(trace)["module"].tolist() == [where["Module Hierarchy"]]


def test_without_both_there_is_no_module():
    trace = from_events([operator("aten::mm", 0, 20), call(5, 1), kernel("k", 9, 1, 1)])
    assert (
        timeline.kernels(trace)["module"].tolist() == [None] == timeline.operators(trace)["module"].tolist()
    )
    assert timeline.modules(trace).tolist() == [None, None]  # of the operator and the call


def test_an_answer_that_is_kept_cannot_be_changed_from_outside():
    trace = from_events([module("nn.Module: Net_0", 0, 100), operator("aten::mm", 5, 20)])
    found = timeline.modules(trace)
    found[:] = "changed"
    assert timeline.operators(trace)["module"].tolist() == ["Net_0"]


# ------------------------------------------------------------------------------------------------ work items


def works(*events):
    return timeline.work_items(from_events(events))["name"].tolist()


def test_views_allocations_and_wrappers_are_no_work():
    chain = [operator("aten::linear", 0, 30), operator("aten::t", 1, 5), operator("aten::transpose", 2, 2)]
    assert works(*chain, operator("aten::empty", 8, 1), operator("aten::mm", 10, 15)) == ["aten::mm"]


def test_on_a_cpu_addmm_is_two_items_the_copy_of_its_bias_and_the_product():
    events = [operator("aten::addmm", 0, 50), operator("aten::expand", 2, 3), operator("aten::copy_", 6, 10)]
    items = timeline.work_items(from_events(events))
    assert items["name"].tolist() == ["aten::copy_", "aten::addmm"]
    assert items["duration_us"].tolist() == [10.0, 37.0]  # 50 - 3 - 10


def test_a_parent_whose_children_do_the_work_is_no_item():
    # masked_fill clones its input first
    clone = [
        operator("aten::clone", 1, 10),
        operator("aten::empty_like", 2, 2),
        operator("aten::copy_", 5, 4),
    ]
    events = [operator("aten::masked_fill", 0, 20), *clone, operator("aten::masked_fill_", 12, 6)]
    assert works(*events) == ["aten::copy_", "aten::masked_fill_"]


def test_a_copy_of_one_number_is_no_item_of_the_workload():
    # x * 2.0: the number is turned into the dtype of x
    one = {"Input Dims": [[], [], []]}
    chain = [
        operator("aten::to", 2, 10),
        operator("aten::_to_copy", 3, 8),
        operator("aten::copy_", 5, 2, **one),
    ]
    assert works(operator("aten::mul", 0, 30, **{"Input Dims": [[64, 64], []]}), *chain) == ["aten::mul"]


def test_a_copy_of_a_whole_tensor_inside_an_operator_is_an_item():
    many = {"Input Dims": [[64, 64], [64, 64], []]}
    chain = [operator("aten::contiguous", 2, 10), operator("aten::copy_", 5, 2, **many)]
    assert works(operator("aten::_softmax", 0, 30), *chain) == ["aten::copy_", "aten::_softmax"]


def test_an_operator_that_calls_itself_is_one_item():
    assert works(operator("aten::mul", 0, 10), operator("aten::mul", 1, 8)) == ["aten::mul"]


def test_the_fill_of_a_sums_output_is_part_of_the_sum():
    assert works(operator("aten::sum", 0, 10), operator("aten::fill_", 2, 1)) == ["aten::sum"]


def test_an_operator_that_does_nothing_is_no_item():
    names = ["aten::to", "aten::contiguous", "aten::dropout", "aten::result_type", "aten::resolve_conj"]
    assert works(*[operator(name, 10 * number, 5) for number, name in enumerate(names)]) == []


def test_compiled_kernels_work_and_nodes_of_autograd_and_of_the_compiler_do_not():
    names = [
        "graph_0_cpp_fused_gelu_0",
        "AddmmBackward0",
        "TorchDynamo Cache Lookup",
        "CompiledFunction",
        "detach",
    ]
    names += [
        "autograd::engine::evaluate_function: TBackward0",
        "torch::autograd::AccumulateGrad",
        "mylib::op",
    ]
    events = [operator(name, 10 * number, 5) for number, name in enumerate(names)]
    assert works(*events) == ["graph_0_cpp_fused_gelu_0", "mylib::op"]


def test_annotations_are_never_work():
    gpu = {"cat": "gpu_user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 99, "pid": 0, "tid": 7}
    trace = from_events([annotation("ProfilerStep#1", 0, 99), gpu, kernel("k", 5, 10, 1)])
    assert timeline.work_items(trace)["duration_us"].tolist() == [10.0]
    assert timeline.busy(trace).query("device == 0")["busy_us"].tolist() == [10.0]


def test_on_a_gpu_the_items_are_kernels_copies_and_fills():
    events = [kernel("k", 0, 1), kernel("c", 2, 1, cat="gpu_memcpy"), kernel("s", 4, 1, cat="gpu_memset")]
    assert works(operator("aten::mm", 0, 9), *events) == ["k", "c", "s"]


def test_a_trace_without_work_has_an_empty_table_with_the_same_columns():
    cpu, gpu = from_events([annotation("x", 0, 1)]), by_hand()
    assert timeline.work_items(cpu).empty
    assert list(timeline.work_items(cpu).columns) == list(timeline.work_items(gpu).columns)
    assert list(timeline.kernels(cpu).columns) == list(timeline.kernels(gpu).columns)


# ------------------------------------------------------------------------------------------------ lanes


def test_overlapping_kernels_are_busy_once_and_gaps_fill_the_rest():
    trace = from_events([kernel("a", 0, 10), kernel("b", 6, 10, stream=8), kernel("c", 20, 5)])
    lane = timeline.busy(trace).iloc[0]
    # sum 10 + 10 + 5; busy 0-16 and 20-25; idle 16-20
    assert (lane["window_us"], lane["sum_us"], lane["busy_us"], lane["idle_us"]) == (25.0, 25.0, 21.0, 4.0)
    gap = timeline.gaps(trace).iloc[0]
    assert (gap["start_us"], gap["end_us"], gap["after"], gap["before"]) == (16.0, 20.0, "b", "c")


def test_a_short_kernel_inside_a_long_one_opens_no_gap():
    trace = from_events([kernel("long", 0, 20), kernel("short", 5, 2, stream=8), kernel("next", 20, 5)])
    assert timeline.gaps(trace).empty and timeline.busy(trace)["busy_share"].tolist() == [1.0]


def test_each_stream_can_be_a_lane_of_its_own():
    trace = from_events([kernel("a", 0, 10), kernel("b", 6, 10, stream=8)])
    lanes = timeline.busy(trace, by="stream")
    assert lanes["lane"].tolist() == ["GPU 0 stream 7", "GPU 0 stream 8"] and lanes["busy_us"].tolist() == [
        10.0,
        10.0,
    ]


def test_a_thread_is_not_busy_while_it_waits_for_the_gpu():
    events = [operator("aten::a", 0, 10), call(2, 1, dur=3), call(10, 2, "cudaDeviceSynchronize", dur=90)]
    lane = timeline.busy(from_events(events)).iloc[0]
    assert (lane["thread"], lane["window_us"], lane["busy_us"]) == ("1", 100.0, 10.0)


def test_the_window_of_a_step_goes_on_until_its_kernels_are_done():
    step = annotation("ProfilerStep#0", 0, 20)
    trace = from_events([step, operator("aten::a", 1, 5), call(2, 1), kernel("k", 10, 30, 1)])
    assert timeline.busy(trace, 0)["window_us"].tolist() == [40.0, 40.0]  # 10 + 30, past the step's end at 20


def test_what_reaches_into_the_window_from_before_counts_there():
    steps = [annotation("ProfilerStep#0", 0, 20), annotation("ProfilerStep#1", 20, 20)]
    trace = from_events([*steps, call(2, 1), kernel("k", 10, 15, 1), call(22, 2), kernel("j", 30, 5, 2)])
    lane = timeline.busy(trace, 1).query("device == 0").iloc[0]
    assert (lane["busy_us"], lane["idle_us"]) == (10.0, 10.0)  # 20-25 and 30-35 of 20-40


def test_the_gaps_of_a_lane_add_up_to_its_idle_time():
    trace = by_hand()
    for step in (None, 2, 3):
        idle = timeline.gaps(trace, step).groupby("lane")["duration_us"].sum()
        assert idle.to_dict() == timeline.busy(trace, step).set_index("lane")["idle_us"].to_dict()


def test_a_trace_without_lanes_has_empty_tables():
    trace = from_events([annotation("x", 0, 1)])
    assert timeline.busy(trace).empty and timeline.gaps(trace).empty
    assert list(timeline.gaps(trace).columns)[4:] == ["start_us", "end_us", "duration_us", "after", "before"]


# ---------------------------------------------------------------------------------- copies, sums, trees


def test_copies_tell_direction_bytes_and_rate():
    copy = kernel("Memcpy HtoD (Pageable -> Device)", 0, 4, cat="gpu_memcpy", bytes=8000)
    row = timeline.copies(from_events([copy, kernel("k", 9, 1)])).iloc[0]
    assert (row["direction"], row["bytes"], row["bytes_per_s"]) == ("HtoD", 8000, 2e9)  # 8000 B / 4 µs


def test_a_copy_on_a_cpu_takes_its_bytes_from_the_recorded_shape():
    args = {"Input Dims": [[10, 20], [20], []], "Input type": ["c10::BFloat16", "float", "Scalar"]}
    row = timeline.copies(from_events([operator("aten::copy_", 0, 4, **args)])).iloc[0]
    assert row["bytes"] == 400 and row["direction"] is None  # 10 * 20 elements of 2 bytes


def test_a_summary_adds_up_by_name_and_keeps_the_median():
    events = [operator("aten::mm", 20 * number, dur) for number, dur in enumerate((2, 9, 4))]
    row = timeline.summary(from_events(events)).iloc[0]
    assert (row["count"], row["total_us"], row["self_us"]) == (3, 15.0, 15.0)
    assert (row["median_us"], row["min_us"], row["max_us"]) == (4.0, 2.0, 9.0)


def test_in_a_summary_an_operator_inside_one_of_the_same_name_counts_once():
    row = timeline.summary(from_events([operator("aten::mul", 0, 10), operator("aten::mul", 1, 8)])).iloc[0]
    assert (row["count"], row["total_us"], row["self_us"]) == (1, 10.0, 10.0)


def test_a_summary_can_be_of_kernels():
    frame = timeline.summary(by_hand(), 2, by="kernels")
    assert frame["total_us"].tolist() == [40.0, 20.0, 10.0, 10.0]
    with pytest.raises(ValueError, match="by is one of operators"):
        timeline.summary(by_hand(), by="colour")


def test_a_chain_is_a_tree_in_the_order_of_time_without_times():
    views = [operator("aten::t", 1, 5), operator("aten::transpose", 2, 2)]
    trace = from_events(
        [operator("aten::linear", 0, 30), *views, operator("aten::addmm", 10, 15), call(12, 1)]
    )
    assert timeline.chain(trace, "aten::linear").splitlines() == [
        "aten::linear", "├─ aten::t", "│  └─ aten::transpose", "└─ aten::addmm",
    ]  # fmt: skip


def test_a_chain_can_go_on_to_the_gpu_and_show_times():
    assert timeline.chain(by_hand(), "aten::addmm", times=True, launches=True).splitlines() == [
        "aten::addmm  60.0 µs",
        "├─ cudaMemcpyAsync  10.0 µs",
        "│  └─ Memcpy DtoD (Device -> Device)  10.0 µs",
        "└─ cudaLaunchKernel  10.0 µs",
        "   └─ ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn  40.0 µs",
    ]


def test_a_chain_of_an_unknown_operator_is_an_error_that_names_known_ones():
    with pytest.raises(
        ValueError, match=r"has no operator 'aten::mm'; it has aten::add, aten::addmm, triton"
    ):
        timeline.chain(by_hand(), "aten::mm")


def test_a_chain_shows_no_codes_that_a_terminal_obeys():
    assert timeline.chain(from_events([operator("\x1b[2Jx", 0, 1)]), "\x1b[2Jx") == "x"


# ------------------------------------------------------------------------------------------------ drawn by hand


def test_the_trace_drawn_by_hand_adds_up_in_the_head():
    trace = by_hand()
    second, third = (timeline.busy(trace, step).query("device == 0").iloc[0] for step in (2, 3))
    assert (second["sum_us"], second["busy_us"], second["window_us"]) == (
        80.0,
        80.0,
        200.0,
    )  # 10 + 40 + 10 + 20
    assert (third["sum_us"], third["busy_us"], third["window_us"]) == (
        90.0,
        80.0,
        300.0,
    )  # 10 of them overlap
    annotated = trace.events.query("kind == 'gpu_annotation'")["duration_us"].sum()
    assert annotated == 110 + 90 + 20


def test_one_operator_of_the_trace_drawn_by_hand_has_two_items_on_the_gpu():
    items = timeline.kernels(by_hand(), 2)
    assert items[items["operator"] == "aten::addmm"]["kind"].tolist() == ["memcpy", "kernel"]
    assert timeline.kernels(by_hand())["launch_row"].isna().tolist() == [True] + [False] * 8


def test_the_last_wait_of_the_trace_drawn_by_hand_is_longer_than_all_work_of_its_step():
    waits = by_hand().events.query("name == 'cudaDeviceSynchronize'")["duration_us"]
    assert waits.iloc[-1] == 180 > timeline.work_items(by_hand(), 3)["duration_us"].sum()


# --------------------------------------------------------------------------------------------- odd on purpose


def test_a_step_number_that_no_profiler_counts_to_is_a_mere_name():
    names = ["ProfilerStep#99999999999999999999", "ProfilerStep#abc", "ProfilerStep#-1", "ProfilerStep#007"]
    assert timeline.steps(from_events([annotation(n, 0, 5) for n in names]))["step"].tolist() == [7]


def test_of_steps_around_each_other_the_one_that_began_last_has_the_event():
    # Traces of two processes merged: step 2 runs from 10 to 30, inside of step 1 from 0 to 100.
    steps = [annotation("ProfilerStep#1", 0, 100), annotation("ProfilerStep#2", 10, 20)]
    found = timeline.operators(from_events([*steps, *(operator("aten::mm", t, 1) for t in (5, 15, 50, 200))]))
    assert found["step"].fillna(0).tolist() == [1, 2, 1, 0]


def test_an_error_lists_a_dozen_steps_and_no_codes():
    many = from_events([annotation(f"ProfilerStep#{n}", 10 * n, 10) for n in range(500)])
    with pytest.raises(ValueError, match=r"has no step 500; its steps: 0, .*11, …$"):
        timeline.operators(many, 500)
    with pytest.raises(ValueError) as caught:
        timeline.chain(from_events([operator("\x1b[31m\n" + "x" * 1000, 0, 1)]), "aten::mm")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


def test_a_chain_deeper_than_a_tree_can_be_drawn_is_an_error():
    with pytest.raises(ValueError, match="aten::mm is nested too deeply"):
        timeline.chain(from_events([operator("aten::mm", n, 5000 - 2 * n) for n in range(2000)]), "aten::mm")


@pytest.mark.parametrize("shape", [[10**30, 2], [2**40, 2**40], [-1, 2], ["a"], [2.5], [None], 5, None])
def test_a_copy_of_a_shape_that_no_tensor_has_has_no_size(shape):
    args = {"Input Dims": [shape, [3]], "Input type": ["float", "float"]}
    assert timeline.copies(from_events([operator("aten::copy_", 0, 1, **args)]))["bytes"].isna().all()


def test_the_name_of_the_operator_around_an_event_is_none_outside_of_all():
    trace = from_events([operator("aten::mm", 0, 10), call(2, 1), call(20, 2)])
    assert timeline.around(trace, trace.events.index[1:]).tolist() == ["aten::mm", None]


def test_events_are_found_by_a_test_of_their_name_among_the_kinds_asked_for():
    trace = from_events([operator("a wait", 0, 10), call(2, 1, "a wait"), call(20, 2)])
    assert timeline.found(trace, re.compile("wait").search, "runtime").tolist() == [1]


def test_rows_that_are_missing_have_no_number():
    trace = from_events([operator("aten::mm", 0, 10), operator("aten::t", 20, 1)])
    rows = pd.Series([1, pd.NA, 0], dtype="Int64")
    numbers, names = timeline.numbers_of(trace, "name", rows), trace.numbered("name")[1]
    assert [names[number] if number >= 0 else None for number in numbers] == ["aten::t", None, "aten::mm"]


def test_events_of_a_trace_that_are_not_in_the_order_of_time_nest_all_the_same():
    # two that begin and end together, the call first: the operator is around it
    trace = from_events([operator("aten::mm", 0, 10), call(2, 1, dur=3), operator("aten::copy_", 2, 3)])
    mixed = replace(trace, events=trace.events.iloc[::-1])
    assert timeline.launches(mixed)["operator"].tolist() == ["aten::copy_"]
    assert timeline.operators(mixed)["depth"].tolist() == [1, 0]


def test_what_follows_operators_nested_deeper_than_is_asked_in_rounds_is_beside_them():
    # 300 operators one in the other, all over after 2000 µs at the latest: up from the innermost are 300 parents
    deep = [operator(f"in {n}", n, 2000 - 4 * n) for n in range(300)]
    parents = dict(tree(operator("all", -1, 4000), *deep, operator("next", 2500, 9), operator("in next", 2501, 1)))
    assert all(parents[f"in {n}"] == f"in {n - 1}" for n in range(1, 300))
    assert (parents["next"], parents["in next"]) == ("all", "next")
