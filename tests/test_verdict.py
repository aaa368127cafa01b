from types import SimpleNamespace

import pandas as pd
import pytest

from tutorial_lib import cost, hardware, predict, trace
from tutorial_lib.predict import guess
from tutorial_lib.verdict import AGREES, DIFFERS, NOT_MEASURED, QUANTITIES, verdict

A100 = hardware.find("A100")
LAPTOP = hardware.Hardware(
    "a laptop", "cpu", {"float32": 1e11}, 3e10, 2.0, None, None, None, "made up", measured=True
)


def bar(name, start, length, category="cpu_op", tid=1, **args):
    return {"name": name, "cat": category, "ts": start, "dur": length, "pid": 1, "tid": tid, "args": args}


def shaped(name, start, length, dims, strides=None, concrete=None):
    """An operator with float32 inputs of these shapes; () is a scalar."""
    types = ["float" if dim else "Scalar" for dim in dims]
    recorded = {
        "Input Dims": dims,
        "Input type": types,
        "Input Strides": strides,
        "Concrete Inputs": concrete,
    }
    return bar(name, start, length, **{key: value for key, value in recorded.items() if value})


def linear_on_cpu(start, *, bias=True):
    """x [8, 4] @ w.T [4, 2] + b [2] on a CPU: the bias is copied into the output, then the GEMM adds."""
    addmm = [
        shaped("aten::addmm", start + 10, 30, [[2], [8, 4], [4, 2], [], []], [[1], [4, 1], [1, 4], [], []]),
        shaped("aten::copy_", start + 15, 5, [[8, 2], [8, 2], []], [[2, 1], [0, 1], []]),
    ]
    mm = [shaped("aten::mm", start + 10, 30, [[8, 4], [4, 2]])]
    return [bar("aten::linear", start, 50), bar("aten::t", start + 2, 5), *(addmm if bias else mm)]


def on_cpu(*steps, start=100.0, **top):
    """A trace with one ProfilerStep (100 µs, numbered from 2) around what each function of a start time
    makes.
    """
    events = []
    for number, make in enumerate(steps, start=2):
        events += [bar(f"ProfilerStep#{number}", start, 100, "user_annotation"), *make(start + 10)]
        start += 200
    return trace.from_events(events, **top)


def gpu_item(name, start, length, correlation, category="kernel"):
    return bar(name, start, length, category, tid=7, correlation=correlation, device=0, stream=7)


def on_gpu(*, copied):
    """mm with a GEMM kernel of 40 µs; with `copied`, a memcpy of 10 µs from the same operator before it."""
    events = [bar("ProfilerStep#0", 0, 100, "user_annotation"), shaped("aten::mm", 10, 30, [[8, 4], [4, 2]])]
    events += [
        bar("cudaLaunchKernel", 25, 5, "cuda_runtime", correlation=2),
        gpu_item("ampere_sgemm_32x32_sliced1x4_nn", 50, 40, 2),
    ]
    if copied:
        events += [bar("cudaMemcpyAsync", 15, 5, "cuda_runtime", correlation=1)]
        events += [gpu_item("Memcpy DtoD (Device -> Device)", 30, 10, 1, "gpu_memcpy")]
    return trace.from_events(events)


def finding(graded, quantity):
    return next(found for found in graded.findings if found.quantity == quantity)


# -------------------------------------------------------------------------------------------------- operators


def test_operators_that_ran_in_that_order_agree():
    found = finding(
        verdict(guess(operators=["aten::linear", "aten::t", "aten::addmm"]), on_cpu(linear_on_cpu)),
        "operators",
    )
    assert (found.result, found.measured) == (AGREES, ("aten::linear", "aten::t", "aten::addmm"))


def test_a_predicted_operator_stands_for_all_that_runs_inside_it():
    assert verdict(guess(operators=["aten::addmm"]), on_cpu(linear_on_cpu)).agrees
    assert verdict(guess(operators=["aten::linear"]), on_cpu(linear_on_cpu)).agrees


def test_an_operator_inside_another_may_be_named_before_or_after_it():
    assert verdict(guess(operators=["copy_", "addmm"]), on_cpu(linear_on_cpu)).agrees
    assert verdict(guess(operators=["addmm", "copy_"]), on_cpu(linear_on_cpu)).agrees


def test_missing_and_unpredicted_operators_are_named_with_their_place():
    # The step is the first event, so it starts at 0; linear at 10, addmm 10 and copy_ 15 µs after it.
    found = finding(verdict(guess(operators=["mm", "add"]), on_cpu(linear_on_cpu)), "operators")
    assert found.result == DIFFERS and found.measured == ("aten::addmm", "aten::copy_")
    assert "missing: aten::mm, aten::add" in found.where_to_look
    assert "aten::copy_ inside aten::addmm, step 2, at 25.0 µs" in found.where_to_look


def test_operators_in_another_order_are_told_apart_from_missing_ones():
    two = on_cpu(lambda start: [bar("aten::relu", start, 5), bar("aten::mm", start + 10, 5)])
    found = finding(verdict(guess(operators=["mm", "relu"]), two), "operators")
    assert found.where_to_look in ("in another order: aten::mm", "in another order: aten::relu")


def test_an_operator_that_ran_more_often_than_predicted_differs():
    twice = on_cpu(lambda start: [bar("aten::mm", start, 5), bar("aten::mm", start + 10, 5)])
    found = finding(verdict(guess(operators=["mm"]), twice), "operators")
    assert found.where_to_look == "not predicted: aten::mm, step 2, at 20.0 µs"


# ------------------------------------------------------------------------------------------- counts and costs


def test_a_copy_that_was_not_predicted_is_pointed_at():
    product = predict.predict([cost.addmm(8, 4, 2, "float32", bias_elements=2)], LAPTOP)
    found = finding(verdict(product, on_cpu(linear_on_cpu)), "work items")
    assert (found.predicted, found.measured, found.result) == (1, 2, DIFFERS)
    assert found.where_to_look == "unexpected: aten::copy_ inside aten::addmm, step 2, at 25.0 µs"


def test_a_predicted_item_that_did_not_run_is_named():
    both = [
        cost.matmul(8, 4, 2, "float32"),
        cost.pointwise("aten::add", elements=16, dtype="float32", reads=2),
    ]
    found = finding(
        verdict(predict.predict(both, LAPTOP), on_cpu(lambda t: linear_on_cpu(t, bias=False))), "work items"
    )
    assert (found.measured, found.where_to_look) == (1, "missing: aten::add")


def test_of_two_items_in_one_operator_the_odd_kind_is_the_unexpected_one():
    found = finding(
        verdict(predict.predict([cost.matmul(8, 4, 2, "float32")], A100), on_gpu(copied=True)), "work items"
    )
    assert (
        found.where_to_look
        == "unexpected: Memcpy DtoD (Device -> Device) inside aten::mm, step 0, at 30.0 µs"
    )


def test_launches_are_counted_on_a_gpu():
    assert finding(verdict(guess(launches=1), on_gpu(copied=False)), "launches").result == AGREES
    found = finding(verdict(guess(launches=1), on_gpu(copied=True)), "launches")
    assert (
        found.measured == 2 and "cudaMemcpyAsync inside aten::mm, step 0, at 15.0 µs" in found.where_to_look
    )


def test_a_cpu_has_no_launches():
    found = finding(verdict(guess(launches=1), on_cpu(linear_on_cpu)), "launches")
    assert (found.result, found.where_to_look) == (NOT_MEASURED, "no launches on a CPU")


def test_flops_and_bytes_are_counted_from_recorded_shapes():
    # GEMM: 2·8·4·2 = 128 FLOP. It reads 32 + 8 + 16, writes 16; the copy reads 2, writes 16: 360 B.
    table = verdict(guess(flops=128, bytes_moved=360), on_cpu(linear_on_cpu)).table().set_index("quantity")
    assert table["measured"].to_dict() == {"FLOPs": 128, "bytes": 360}


def test_an_addend_that_cuda_copies_itself_is_counted_too():
    # The GEMM reads 32 + 8 and the 16 copied, writes 16; the memcpy reads 16, writes 16: 104 floats, 416 B.
    addmm = shaped("aten::addmm", 10, 30, [[8, 2], [8, 4], [4, 2], [], []])
    calls = [
        bar(call, 15 + 5 * i, 4, "cuda_runtime", correlation=i)
        for i, call in ((1, "cudaMemcpyAsync"), (2, "cudaLaunchKernel"))
    ]
    work = [
        gpu_item("Memcpy DtoD (Device -> Device)", 30, 10, 1, "gpu_memcpy"),
        gpu_item("ampere_sgemm_32x32_sliced1x4_nn", 50, 40, 2),
    ]
    assert verdict(guess(bytes_moved=416), trace.from_events([addmm, *calls, *work])).agrees


def test_kernels_of_one_operator_are_counted_once():
    # Two kernels of one mm [8, 4] @ [4, 2]: 128 FLOP, not 256.
    split = [
        gpu_item("ampere_sgemm_32x32_sliced1x4_nn", 50, 40, 2),
        gpu_item("splitKreduce_kernel", 90, 5, 1),
    ]
    calls = [bar("cudaLaunchKernel", 15 + i, 1, "cuda_runtime", correlation=i) for i in (1, 2)]
    events = [shaped("aten::mm", 10, 30, [[8, 4], [4, 2]]), *calls, *split]
    assert finding(verdict(guess(flops=128), trace.from_events(events)), "FLOPs").measured == 128


def test_a_reader_is_graded_to_one_percent_and_the_model_exactly():
    near = finding(verdict(guess(flops=129), on_cpu(linear_on_cpu)), "FLOPs")
    assert (near.result, near.where_to_look) == (AGREES, "to within 1 %")
    exact = predict.Prediction(flops=129)
    assert finding(verdict(exact, on_cpu(linear_on_cpu)), "FLOPs").result == DIFFERS
    assert finding(verdict(guess(flops=131), on_cpu(linear_on_cpu)), "FLOPs").result == DIFFERS


def test_a_difference_in_bytes_is_traced_to_its_operator():
    # Predicted with an epilogue: 32 + 8 + 2 + 16 floats. Traced: a GEMM with 72 floats and a copy with 18.
    product = predict.predict([cost.addmm(8, 4, 2, "float32", bias_elements=2)], LAPTOP)
    found = finding(verdict(product, on_cpu(linear_on_cpu)), "bytes")
    assert found.where_to_look == "aten::addmm 288 B against 232 B; aten::copy_ 72 B against 0 B"


def test_without_shapes_costs_are_not_measured_and_the_remedy_is_named():
    bare = on_cpu(lambda start: [bar("aten::mm", start, 5)])
    found = finding(verdict(guess(flops=1), bare), "FLOPs")
    assert (found.result, found.measured) == (NOT_MEASURED, None) and "shapes=True" in found.where_to_look


def test_operators_of_unknown_cost_are_named_and_nothing_is_graded():
    odd = on_cpu(
        lambda start: [
            shaped("mylib::solve", start, 5, [[3]]),
            shaped("aten::mm", start + 9, 5, [[8, 4], [4, 2]]),
        ]
    )
    found = finding(verdict(guess(bytes_moved=1), odd), "bytes")
    assert (found.result, found.where_to_look) == (
        NOT_MEASURED,
        "1 of 2 operators that work have no known cost: mylib::solve",
    )


# ------------------------------------------------------------------------------------------------------- time


def test_the_time_is_the_median_over_steps_of_the_work_items():
    # Self times of a step: addmm 30 - 5 = 25, copy_ 5; linear and t only call others.
    assert finding(verdict(guess(time_us=30), on_cpu(linear_on_cpu, linear_on_cpu)), "time").measured == 30.0


@pytest.mark.parametrize(
    ("limit", "low", "high", "words"),
    [
        (
            40,
            45,
            50,
            "below the limit, 0.750× the limit of 40.0 µs: the prediction or the measurement is wrong",
        ),
        (
            10,
            45,
            50,
            "below the band, 3.00× the limit of 10.0 µs: faster than good kernels are expected to be",
        ),
        (10, 20, 50, "inside the band, 3.00× the limit of 10.0 µs: nothing large is missing"),
        (10, 20, 25, "above the band, 3.00× the limit of 10.0 µs: something is left out"),
    ],
)
def test_each_side_of_the_band_has_its_meaning(limit, low, high, words):
    expected = predict.Prediction(limit_us=limit, low_us=low, high_us=high)
    assert finding(verdict(expected, on_cpu(linear_on_cpu)), "time").where_to_look.startswith(words)


def test_above_the_band_the_longest_items_are_listed_with_their_own_bands():
    item = predict.WorkTime(cost.addmm(8, 4, 2, "float32", bias_elements=2), 1.0, 2.0, 3.0, "memory")
    found = finding(
        verdict(predict.Prediction(low_us=2, high_us=3, items=(item,)), on_cpu(linear_on_cpu)), "time"
    )
    first, second = found.where_to_look.split("longest: ")[1].split("; ")
    assert first == "aten::addmm 25.0 µs (predicted 2 – 3 µs) inside aten::linear, step 2, at 20.0 µs"
    assert second == "aten::copy_ 5.00 µs inside aten::addmm, step 2, at 25.0 µs"


def test_a_timing_replaces_the_time_of_the_profiled_run():
    timing = SimpleNamespace(median_us=21.0, q1_us=20.0, q3_us=22.0, n=9)
    graded = verdict(guess(time_us=(20, 25)), on_cpu(linear_on_cpu), timing=timing)
    assert graded.agrees and finding(graded, "time").measured == 21.0
    assert "time with the profiler off: median of 9 samples, half of them within 20 – 22 µs" in graded.notes


def test_samples_that_lie_far_apart_say_that_the_machine_was_busy():
    timing = SimpleNamespace(median_us=21.0, q1_us=15.0, q3_us=22.0, n=9)  # 22 / 15 is 1.47
    graded = verdict(guess(time_us=(20, 25)), on_cpu(linear_on_cpu), timing=timing)
    assert any("the machine was busy" in note for note in graded.notes)


def test_a_prediction_for_another_machine_says_so():
    product = predict.predict([cost.matmul(8, 4, 2, "float32")], A100)
    devices = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    same = verdict(product, on_cpu(linear_on_cpu, deviceProperties=devices))
    other = verdict(product, on_cpu(linear_on_cpu, deviceProperties=[{"id": 0, "name": "Tesla T4"}]))
    warning = "the time was predicted for A100 80GB SXM and traced on Tesla T4"
    assert warning not in same.notes and warning in other.notes


# ------------------------------------------------------------------------------------------------------ steps


def test_every_step_must_agree_and_a_spread_is_shown():
    uneven = on_cpu(linear_on_cpu, lambda start: linear_on_cpu(start, bias=False))
    found = finding(verdict(guess(work_items=2), uneven), "work items")
    assert (found.result, found.measured) == (DIFFERS, (1, 2)) and "the steps differ" in found.where_to_look
    assert "step 3" in found.where_to_look


def test_one_step_can_be_graded_alone():
    uneven = on_cpu(linear_on_cpu, lambda start: linear_on_cpu(start, bias=False))
    assert verdict(guess(work_items=1), uneven, step=3).agrees
    with pytest.raises(ValueError, match="no step 7; its steps: 2, 3"):
        verdict(guess(work_items=1), uneven, step=7)


def test_a_trace_without_steps_counts_as_one():
    graded = verdict(guess(work_items=2), trace.from_events(linear_on_cpu(0)))
    assert graded.agrees and "the trace has no steps: all of it counts as one" in graded.notes


def test_nothing_recorded_is_a_clear_answer():
    empty = trace.from_events([bar("ProfilerStep#2", 0, 100, "user_annotation")])
    everything = guess(operators=["mm"], work_items=1, launches=1, flops=1, bytes_moved=1, time_us=1)
    graded = verdict(everything, empty)
    assert {found.result for found in graded.findings} == {NOT_MEASURED} and not graded.agrees
    assert "no operators and no GPU work" in str(graded)


def test_bytes_of_a_list_are_counted_where_its_kernel_names_the_dtype():
    shapes = [[[2, 3], [4, 3]], []]
    cat = bar("aten::cat", 10, 30, **{"Input Dims": shapes, "Input type": ["TensorList", "Scalar"]})
    kernel = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<{}, unsigned int, 2, 128, 1>(X)"
    # 18 elements read and written, 4 bytes each
    work = cost.operator("aten::cat", shapes, [["float", "float"], "Scalar"])
    assert work.bytes_moved == 2 * 18 * 4

    def bytes_found(dtype):
        events = [bar("ProfilerStep#0", 0, 100, "user_annotation"), cat,
                  bar("cudaLaunchKernel", 15, 5, "cuda_runtime", correlation=2),
                  gpu_item(kernel.format(dtype), 60, 40, 2)]  # fmt: skip
        return finding(verdict(predict.predict([work], A100), trace.from_events(events)), "bytes")

    assert (bytes_found("float").measured, bytes_found("float").result) == (144, AGREES)
    assert bytes_found("mystery").result == NOT_MEASURED


def test_gpu_work_without_operators_is_still_counted():
    kernels = [gpu_item("ampere_sgemm_32x32_sliced1x4_nn", start, 5, start) for start in (1, 10)]
    graded = verdict(guess(operators=["mm"], work_items=2), trace.from_events(kernels))
    assert (
        finding(graded, "operators").result == NOT_MEASURED and finding(graded, "work items").result == AGREES
    )


# ---------------------------------------------------------------------------------------------- what is shown


def test_only_what_was_predicted_is_graded_and_only_what_was_asked_for():
    many = guess(operators=["linear"], work_items=2, flops=128, time_us=1)
    assert [f.quantity for f in verdict(many, on_cpu(linear_on_cpu)).findings] == [
        "operators",
        "work items",
        "FLOPs",
        "time",
    ]
    assert [f.quantity for f in verdict(many, on_cpu(linear_on_cpu), only=("FLOPs",)).findings] == ["FLOPs"]
    with pytest.raises(ValueError, match="only names 'speed'"):
        verdict(many, on_cpu(linear_on_cpu), only=("speed",))


def test_without_time_the_text_does_not_depend_on_the_clock():
    wrong = guess(operators=["mm"], work_items=1, flops=1, bytes_moved=1, time_us=1)
    without = [quantity for quantity in QUANTITIES if quantity != "time"]
    early, late = (
        verdict(wrong, on_cpu(lambda t, d=delay: linear_on_cpu(t + d)), only=without) for delay in (0, 3)
    )
    assert str(early) == str(late) and "µs" not in str(early)


def test_text_fits_a_terminal_of_100_columns():
    names = [f"aten::{'long_' * 12}{i}" for i in range(20)]
    text = str(verdict(guess(operators=names, work_items=1, flops=1), on_cpu(linear_on_cpu)))
    assert max(map(len, text.splitlines())) <= 100 and "✗ differs" in text


def test_what_was_uncertain_in_the_prediction_is_said_beside_the_verdict():
    note = "uncertain: <b>\x1b[1mwhat runs"
    found = verdict(predict.predict([], LAPTOP, notes=[note]), on_cpu(linear_on_cpu))
    assert "uncertain: <b>what runs" in str(found) and "uncertain: &lt;b&gt;what runs" in found._repr_html_()
    assert verdict(predict.predict([], LAPTOP), on_cpu(linear_on_cpu)).notes[0] == "graded on step 2"


def test_the_table_has_raw_values_one_row_a_quantity():
    table = verdict(guess(work_items=2, time_us=(20, 40)), on_cpu(linear_on_cpu)).table()
    assert list(table.columns) == ["quantity", "predicted", "measured", "result", "where_to_look"]
    assert table["predicted"].tolist() == [2, (20.0, 40.0)] and table["measured"].tolist() == [2, 30.0]
    assert isinstance(table, pd.DataFrame)


def test_differences_lists_what_differs():
    graded = verdict(guess(work_items=7, flops=128), on_cpu(linear_on_cpu))
    assert [found.quantity for found in graded.differences] == ["work items"] and not graded.agrees


def test_html_says_the_result_in_words_and_is_escaped():
    evil = on_cpu(
        lambda start: [bar("<script>alert(1)</script>\x1b[31m", start, 5), bar("aten::mm", start + 10, 5)]
    )
    shown = verdict(guess(operators=["mm", "<b>"], work_items=1), evil)._repr_html_()
    assert "<script" not in shown and "<b>" not in shown and "\x1b" not in shown
    assert (
        "<caption" in shown
        and '<th scope="col"' in shown
        and '<th scope="row"' in shown
        and "differs" in shown
    )


def test_numbers_that_differ_never_look_the_same():
    # 4.200 MFLOP both, to four digits
    big = on_cpu(lambda start: [shaped("aten::mm", start, 5, [[1000, 700], [700, 3]])])
    text = str(verdict(predict.Prediction(flops=4_200_001), big))
    assert "4,200,001" in text and "4,200,000" in text


def test_a_step_without_any_operator_is_graded_as_such():
    # The second step is empty: all that was predicted is missing from it.
    steps = [bar("ProfilerStep#1", 0, 10, "user_annotation"), bar("ProfilerStep#2", 20, 10, "user_annotation")]
    graded = verdict(guess(operators=["mm"]), trace.from_events([*steps, bar("aten::mm", 1, 5)]))
    assert [(f.result, f.where_to_look) for f in graded.findings] == [(DIFFERS, "missing: aten::mm")]


def test_a_step_that_two_processes_have_is_graded_once():
    steps = [bar("ProfilerStep#1", 0, 10, "user_annotation"), bar("ProfilerStep#1", 20, 10, "user_annotation")]
    graded = verdict(guess(work_items=2), trace.from_events([*steps, *(bar("aten::mm", t, 5) for t in (1, 21))]))
    assert graded.agrees and graded.notes == ("graded on step 1",)


@pytest.mark.parametrize("dims", [[], [[1]], [[3], [], [3]], [[3], [2, 2], [9, 3]], [[10**30], [2, 2], [2, 3]]])
def test_shapes_that_no_product_has_leave_it_uncounted(dims):
    graded = verdict(guess(flops=8), on_cpu(lambda start: [shaped("aten::addmm", start, 5, dims)]))
    assert graded.findings[0].result == NOT_MEASURED


def test_operators_nested_without_end_are_graded_in_time():
    # Had each of the 20,000 looked up its own way to the root, that would be 200 million looks.
    deep = [bar("a::b", n, 80_000 - 2 * n) for n in range(20_000)]
    assert verdict(guess(operators=["c::d"]), trace.from_events(deep)).differences


def test_a_list_whose_dtype_is_not_recorded_hides_bytes_and_no_flops():
    cat = bar("aten::cat", 60, 10, **{"Input Dims": [[[8, 2], [8, 4]], []], "Input type": ["TensorList", "Scalar"]})
    both = on_cpu(lambda start: [shaped("aten::mm", start, 30, [[8, 4], [4, 2]]), cat | {"ts": start + 40}])
    told = predict.predict([cost.matmul(8, 4, 2, "float32"), cost.copy(48, "float32")], LAPTOP)
    # 2 · 8 · 4 · 2 FLOPs; whether the lists are float32 no trace says
    found = verdict(told, both, only=("FLOPs", "bytes")).table().set_index("quantity")
    assert list(found["result"]) == [AGREES, NOT_MEASURED] and "cat" in found.at["bytes", "where_to_look"]
