"""Where the time of a trace goes, and what would win some of it back, on traces drawn by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tutorial_lib import cost, diagnose, hardware, predict, timeline
from tutorial_lib.cost import attention
from tutorial_lib.kernel_time import Ran, Tensor
from tutorial_lib.trace import by_hand, from_events

SGEMM, TGEMM = "volta_sgemm_128x64_nn", "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn"
ADD = ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
       "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)")  # fmt: skip
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
H100 = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}]
}


def event(cat, name, ts, dur, tid=1, **args):
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def step(number, ts, dur):
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def operator(name, ts, dur, shapes=None, dtypes=None, concrete=None):
    said = {"Input Dims": shapes, "Input type": dtypes, "Concrete Inputs": concrete}
    return event("cpu_op", name, ts, dur, **{k: v for k, v in said.items() if v is not None})


def launch(ts, number, dur=2, name="cudaLaunchKernel"):
    return event("cuda_runtime", name, ts, dur, correlation=number)


def kernel(name, ts, dur, number, stream=7, cat="kernel", **args):
    return event(cat, name, ts, dur, tid=stream, device=0, stream=stream, correlation=number, **args)


def ran(name, ts, dur, number, kernel_name, shapes=None, dtypes=None, late=10, **more):
    """An operator of 8 µs that launches one kernel, which starts `late` µs after the operator."""
    return [operator(name, ts, 8, shapes, dtypes, **more), launch(ts + 1, number),
            kernel(kernel_name, ts + late, dur, number)]  # fmt: skip


def parts(trace, **how):
    frame = diagnose.time_parts(diagnose.case(trace, **how))
    return {row.part: row.time_us for row in frame.itertuples() if abs(row.time_us) > 1e-9}


def found(trace, reason, **how):
    frame = diagnose.findings(trace, **how)
    return frame[frame["reason"] == reason]


# ------------------------------------------------------------------------------------ where the time goes


def test_a_step_is_divided_into_parts_that_add_up_to_it():
    # GPU: 10-30 product, 25-45 all-reduce (20 µs beside nothing: 15), 45-50 copy, 60-70 pointwise; step 0-100
    trace = from_events([
        step(1, 0, 100), *ran("aten::mm", 0, 20, 1, TGEMM), launch(12, 2), kernel(NCCL, 25, 20, 2, stream=9),
        launch(15, 3, name="cudaMemcpyAsync"), kernel("Memcpy DtoD (Device -> Device)", 45, 5, 3, cat="gpu_memcpy"),
        *ran("aten::add", 52, 10, 4, ADD, late=8),
    ])  # fmt: skip
    divided = parts(trace)
    assert (divided["compute"], divided["communication"], divided["copies"], divided["memory"]) == (
        20,
        15,
        5,
        10,
    )
    # before the product: launched at 1, in no operator never: 10; before the add: 50-60 less 50-52 in no operator
    assert (divided["launch"], divided["elsewhere"], divided["end"]) == (10 + 8, 2, 30)
    assert sum(divided.values()) == pytest.approx(100)
    overlap = diagnose.time_parts(diagnose.case(trace)).set_index("part")["overlapped_us"]
    assert overlap["communication"] == 5  # 25-30 ran under the product


def test_work_that_was_launched_already_leaves_queued_gaps_and_not_launch_bound_ones():
    trace = from_events(
        [step(1, 0, 60), *ran("aten::mm", 0, 20, 1, TGEMM), *ran("aten::mm", 10, 20, 2, TGEMM, late=23)]
    )
    # the second was launched at 11, while the first ran until 30; it began at 33
    assert parts(trace)["queued"] == 3


def test_idle_time_after_a_wait_is_told_from_idle_time_for_launches():
    # the CPU waits in 15-35, the GPU is done at 30 and idle until 50
    trace = from_events([
        step(1, 0, 60), *ran("aten::mm", 0, 20, 1, TGEMM), operator("aten::item", 14, 22),
        event("cuda_runtime", "cudaStreamSynchronize", 15, 20), *ran("aten::mm", 40, 10, 2, TGEMM),
    ])  # fmt: skip
    divided = parts(trace)
    assert (divided["wait"], divided["launch"]) == (20, 10)
    (row,) = found(trace, "synchronisation").itertuples()
    assert row.won_us == 20 and "cudaStreamSynchronize in aten::item (1)" in row.evidence


def test_a_wait_that_began_when_the_gpu_was_idle_already_is_not_to_blame():
    trace = from_events([
        step(1, 0, 60), *ran("aten::mm", 0, 5, 1, TGEMM), event("cuda_runtime", "cudaStreamSynchronize", 20, 2),
        *ran("aten::mm", 40, 10, 2, TGEMM),
    ])  # fmt: skip
    assert "wait" not in parts(trace) and found(trace, "synchronisation")["won_us"].item() == 0


def test_the_window_begins_when_the_gpu_is_done_with_earlier_work():
    # the step begins at 100, but a kernel launched before it runs until 150; its own runs 150-180
    trace = from_events([
        launch(0, 1), kernel(TGEMM, 50, 100, 1), step(1, 100, 40), *ran("aten::mm", 110, 30, 2, TGEMM, late=40),
    ])  # fmt: skip
    case = diagnose.case(trace)
    assert case.window_us == (150, 180) and (len(case.items), len(case.every)) == (1, 2)
    assert parts(trace) == {"compute": 30}


def test_times_are_per_step_and_one_step_can_be_chosen():
    trace = by_hand()
    numbers = list(timeline.steps(trace)["step"])
    whole, case = parts(trace), diagnose.case(trace)
    start, end = case.window_us
    assert sum(whole.values()) == pytest.approx((end - start) / len(numbers))
    one = diagnose.case(trace, step=numbers[0])
    assert one.repeats == 1 and set(one.items["step"]) == {numbers[0]}
    with pytest.raises(ValueError, match=r"has no ProfilerStep#999; its steps: \d"):
        diagnose.case(trace, step=999)


def test_the_time_of_a_cpu_trace_adds_up_with_a_copy_inside_of_its_product():
    # addmm 10-40 with a copy 12-16 inside, in linear 8-42, in a step 0-50
    trace = from_events([
        step(1, 0, 50), operator("aten::linear", 8, 34), operator("aten::addmm", 10, 30), operator("aten::copy_", 12, 4),
    ])  # fmt: skip
    assert parts(trace) == {"compute": 26, "copies": 4, "operators": 4, "elsewhere": 16}


def test_unions_and_coverage_count_every_moment_once():
    blocks = diagnose.merged(np.array([0.0, 5, 20]), np.array([10.0, 7, 30]))
    assert [list(edge) for edge in blocks] == [[0, 20], [10, 30]]
    assert list(diagnose.covered(blocks, np.array([5.0, 12]), np.array([25.0, 18]))) == [10, 0]
    assert list(
        diagnose.covered(diagnose.merged(np.empty(0), np.empty(0)), np.array([1.0]), np.array([2.0]))
    ) == [0]


# -------------------------------------------------------------------------------------------- by operator

MM = dict(shapes=[[4096, 4096], [4096, 4096]], dtypes=["c10::BFloat16", "c10::BFloat16"])


def test_an_operator_is_judged_by_its_band_on_the_cards_own_rates():
    h100 = hardware.find("H100")
    inputs = (Tensor((4096, 4096), "bfloat16"),) * 2
    time = predict.work_time(cost.matmul(4096, 4096, 4096, "bfloat16"), h100, inputs=inputs, ran=[Ran(TGEMM)])
    limit, high, slow = time.limit_us, time.high_us, 2 * time.high_us
    trace = from_events([step(1, 0, 5000), *ran("aten::mm", 0, slow, 1, TGEMM, **MM),
                         *ran("aten::mm", 2000, slow, 2, TGEMM, **MM)], **H100)  # fmt: skip
    (row,) = diagnose.by_operator(diagnose.case(trace)).itertuples()
    assert (row.count, row.position, row.shapes, row.dtype) == (
        2,
        "above the band",
        "[4096, 4096] [4096, 4096]",
        "bfloat16",
    )
    assert row.won_us == pytest.approx(2 * (slow - high), abs=0.01)
    # 2·4096³ FLOPs
    assert row.flops == 2 * 4096**3 and f"{100 * limit / slow:.0f} % of peak" in row.reason
    assert found(trace, row.reason)["won_us"].item() == row.won_us


def test_nothing_is_predicted_without_shapes_a_rule_or_the_cards_rates():
    events = [step(1, 0, 500), *ran("aten::mm", 0, 20, 1, TGEMM), *ran("my::op", 100, 20, 2, TGEMM, [[8]], ["float"]),
              *ran("aten::mm", 200, 90, 3, TGEMM, **MM)]  # fmt: skip
    rows = diagnose.by_operator(diagnose.case(from_events(events, **H100))).set_index("evidence")
    assert {"its shapes were not recorded", "there is no rule for its cost"} < set(rows.index)
    unknown = diagnose.by_operator(diagnose.case(from_events(events)))
    assert unknown["high_us"].isna().all() and unknown["won_us"].isna().all()
    assert "137.4 GFLOP at 1.53 PFLOP/s" in unknown["evidence"].str.cat()
    chosen = diagnose.case(from_events(events), on="A100")
    assert chosen.card.name == "A100 80GB SXM" and diagnose.by_operator(chosen)["high_us"].notna().sum() == 1
    with pytest.raises(hardware.UnknownHardware):
        diagnose.case(from_events(events), on="a toaster")


def test_a_cost_known_for_the_caller_only_takes_all_that_it_launched():
    # the flash backward has its rule one level above the operator that launches
    qkv = [[2, 4, 128, 64]] * 4
    args = dict(shapes=[*qkv, [2, 4, 128, 64], [2, 4, 128], [], [], [], [], [], []],
                dtypes=["c10::Half"] * 5 + ["float"] + [""] * 6)  # fmt: skip
    trace = from_events([
        step(1, 0, 100), operator("aten::_scaled_dot_product_flash_attention_backward", 0, 30, **args),
        *ran("aten::_flash_attention_backward", 2, 10, 1, "flash_bwd_kernel", [[1]], ["float"]),
        *ran("aten::add", 14, 5, 2, ADD, [[64], [64]], ["float", "float"]),
    ])  # fmt: skip
    (row,) = diagnose.by_operator(diagnose.case(trace)).itertuples()
    assert (row.operator, row.total_us) == ("aten::_scaled_dot_product_flash_attention_backward", 15)


def test_a_float32_product_that_ran_in_tf32_is_predicted_as_that():
    tf32 = "cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4"
    args = dict(shapes=[[4096, 4096], [4096, 4096]], dtypes=["float", "float"])
    trace = from_events([step(1, 0, 5000), *ran("aten::mm", 0, 900, 1, tf32, **args)], **H100)
    (row,) = diagnose.by_operator(diagnose.case(trace)).itertuples()
    # 2·4096³ / 494.7e12 FLOP/s = 277.8 µs; in float32 on CUDA cores it would be 2054 µs, more than was measured
    assert row.dtype == "tfloat32" and row.limit_us == pytest.approx(277.8, abs=0.1)
    assert found(trace, "float32 without tensor cores").empty


# ----------------------------------------------------------------------------------------------- findings


def test_float32_products_on_cuda_cores_are_found_where_the_card_has_tensor_cores():
    args = dict(shapes=[[4096, 4096], [4096, 4096]], dtypes=["float", "float"])
    events = [step(1, 0, 9000), *ran("aten::mm", 0, 3000, 1, SGEMM, **args)]
    (row,) = found(from_events(events, **H100), "float32 without tensor cores").itertuples()
    assert 0 < row.won_us < 3000 and "bfloat16" in row.evidence and "TF32" in row.remedy
    volta = {"deviceProperties": [{"id": 0, "name": "Tesla V100", "computeMajor": 7, "computeMinor": 0}]}
    (row,) = found(from_events(events, **volta), "float32 without tensor cores").itertuples()
    assert 0 < row.won_us < 3000 and row.time_us == 3000 and "float16" in row.remedy
    pascal = {"deviceProperties": [{"id": 0, "name": "Tesla P100", "computeMajor": 6, "computeMinor": 0}]}
    assert found(from_events(events, **pascal), "float32 without tensor cores").empty


def test_a_copy_is_hidden_when_the_program_did_not_ask_for_it():
    copy = dict(shapes=[[64, 64], [64, 64], []], dtypes=["float", "float", ""])
    hidden = [
        operator("aten::reshape", 0, 30),
        operator("aten::clone", 1, 28),
        *ran("aten::copy_", 2, 7, 1, ADD, **copy),
    ]
    asked = [
        operator("aten::contiguous", 50, 30),
        operator("aten::clone", 51, 28),
        *ran("aten::copy_", 52, 7, 2, ADD, **copy),
    ]
    cast = dict(shapes=copy["shapes"], dtypes=["c10::Half", "float", ""])
    casts = [
        operator("aten::to", 100, 30),
        operator("aten::_to_copy", 101, 28),
        *ran("aten::copy_", 102, 7, 3, ADD, **cast),
    ]
    trace = from_events([step(1, 0, 200), *hidden, *asked, *casts])
    (row,) = found(trace, "hidden copy").itertuples()
    assert row.where == "aten::copy_ inside aten::reshape [64, 64]" and row.won_us == 7
    (row,) = found(trace, "cast").itertuples()
    assert "float32 to float16" in row.evidence and row.won_us == 7


def test_on_a_cpu_a_copy_is_hidden_too_and_the_bias_of_a_product_is_none():
    copy = dict(shapes=[[64, 64], [64, 64], []], dtypes=["float", "float", ""])
    events = [
        operator("aten::masked_fill", 0, 30), operator("aten::copy_", 2, 7, **copy),
        operator("aten::addmm", 50, 30, [[64], [64, 64], [64, 64]], ["float"] * 3),
        operator("aten::copy_", 51, 5, **copy),
    ]  # fmt: skip
    (row,) = found(from_events([step(1, 0, 200), *events]), "hidden copy").itertuples()
    assert row.where == "aten::copy_ inside aten::masked_fill [64, 64]" and row.won_us == 7
    assert "underscore" in row.remedy


def test_a_chain_of_pointwise_kernels_wins_what_fusion_would_not_move():
    one = dict(shapes=[[1024, 1024], [1024, 1024]], dtypes=["float", "float"])
    trace = from_events([
        step(1, 0, 200), *ran("aten::mul", 0, 12, 1, ADD, **one), *ran("aten::add", 20, 12, 2, ADD, **one),
        *ran("aten::mul", 40, 12, 3, ADD, [[32, 32], [32, 32]], ["float", "float"]),
    ])  # fmt: skip
    (row,) = found(trace, "unfused pointwise chain").itertuples()
    # each moves 3·4 MiB; fused, the intermediate is neither written nor read: 2·4 MiB of 24 less, a third of 24 µs
    assert row.where == "mul → add over [1024, 1024] float32" and row.won_us == pytest.approx(8)
    assert "moves 25.2 MB, fused 16.8 MB" in row.evidence


def test_attention_by_the_math_backend_is_laid_beside_one_fused_kernel():
    qkv, dtypes = [[8, 16, 1024, 64]] * 3, ["c10::BFloat16"] * 3 + [""] * 3
    math = operator("aten::_scaled_dot_product_attention_math", 0, 60, qkv + [[], [], []], dtypes,
                    ["", "", "", "", "0.", "False"])  # fmt: skip
    inner = [
        entry for i in range(3) for entry in ran("aten::mul", 2 + 15 * i, 500, i + 1, ADD, late=10 + 600 * i)
    ]
    trace = from_events([step(1, 0, 3000), math, *inner], **H100)
    (row,) = found(trace, "math attention").itertuples()
    high = predict.work_time(attention(8, 16, 1024, 1024, 64, "bfloat16"), hardware.find("H100")).high_us
    assert (
        row.time_us == 1500
        and row.won_us == pytest.approx(1500 - high, rel=0.01)
        and "of 3 kernels" in row.evidence
    )


def test_attention_by_hand_is_recognised_by_its_scores():
    half = "c10::Half"
    events = [
        step(1, 0, 3000),
        *ran("aten::bmm", 0, 100, 1, TGEMM, [[128, 1024, 64], [128, 64, 1024]], [half, half]),
        *ran("aten::_softmax", 150, 300, 2, ADD, [[8, 16, 1024, 1024], [], []], [half, "", ""], late=10),
        *ran("aten::bmm", 500, 100, 3, TGEMM, [[128, 1024, 1024], [128, 1024, 64]], [half, half]),
    ]
    (row,) = found(from_events(events, **H100), "attention by hand").itertuples()
    assert row.where == "128 heads of [1024, 64] against 1024 keys, float16" and row.time_us == 500
    assert "1 a step of 3 kernels" in row.evidence and 0 < row.won_us < 500


def test_compilations_in_a_step_are_told_from_recompilations():
    compiled = [event("cpu_op", "_compile.compile_inner (dynamo_timed)", 10, 40),
                event("cpu_op", "Torch-Compiled Region: 0/1", 60, 5), event("cpu_op", "Torch-Compiled Region: 1/0", 70, 5),
                event("cpu_op", "TorchDynamo Cache Lookup", 58, 2), *ran("aten::mm", 80, 5, 1, TGEMM)]  # fmt: skip
    again = event("user_annotation", "dynamo_data: compile_id=0/1", 10, 40)
    (row,) = found(from_events([step(1, 0, 100), *compiled, again]), "recompile").itertuples()
    assert row.won_us == 40 and "compiled 1× in 1 step, frames compiled before (0/1)" in row.evidence
    first = from_events([step(1, 0, 100), *compiled])
    assert len(found(first, "compilation in a step")) == 1 and found(first, "recompile").empty
    assert "of 2 frames" in found(first, "graph breaks")["evidence"].item()
    outside = from_events([step(1, 200, 100), *compiled, *ran("aten::mm", 210, 5, 2, TGEMM)])
    assert found(outside, "compilation in a step").empty


def test_the_input_pipeline_is_named_where_the_gpu_waits_for_it():
    load = event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 60)
    work = [load, operator("aten::div", 30, 40)]  # an operator, but on the CPU and for the loader
    trace = from_events(
        [step(1, 0, 120), *ran("aten::mm", 0, 5, 1, TGEMM), *work, *ran("aten::mm", 85, 10, 2, TGEMM)]
    )
    (row,) = found(trace, "input pipeline").itertuples()
    # idle 15-95; launched at 86: the loader's 20-80 in it
    assert row.won_us == 60 and "60.0 µs a step" in row.evidence


def test_findings_come_with_the_most_time_to_win_first():
    frame = diagnose.findings(by_hand())
    keys = frame["won_us"].fillna(frame["time_us"])
    assert list(keys) == sorted(keys, reverse=True) and frame["remedy"].str.len().min() > 20
    assert frame["evidence"].str.contains(r"\d").all()  # each has a number


def test_a_trace_with_next_to_nothing_has_tables_without_rows():
    for events in ([event("user_annotation", "x", 0, 1)], [step(1, 0, 10)], [kernel(ADD, 0, 0, 1)]):
        case = diagnose.case(from_events(events))
        assert diagnose.time_parts(case)["time_us"].sum() == pytest.approx(
            (case.window_us[1] - case.window_us[0])
        )
        assert len(diagnose.by_kernel(case)) <= 1 and diagnose.by_operator(case).empty


def test_no_more_can_be_won_than_the_step_takes():
    # three streams, three products of 900 µs at the same time, in a step of 1000: each could win over 700
    items = [row for i in range(3) for row in (launch(2 + i, i), kernel(TGEMM, 20, 900, i, stream=i))]
    shapes = [[4096, 4096], [4096, 4096]]
    trace = from_events([step(1, 0, 1000), operator("aten::mm", 0, 9, shapes, ["c10::BFloat16"] * 2), *items], **H100)
    won_us = diagnose.findings(trace)["won_us"]
    assert won_us.max() == 1000 and diagnose.by_operator(diagnose.case(trace))["won_us"].max() > 1000


def test_time_in_compiled_regions_of_a_cpu_is_not_called_dispatch():
    # a region of 80 µs around a product of 30: 50 are wrappers and kernels without events; 5 of the rest dispatch
    region = [operator("Torch-Compiled Region: 0/0", 10, 80), operator("aten::mm", 20, 30), operator("aten::t", 95, 5)]
    trace = from_events([step(1, 0, 100), *region])
    (row,) = found(trace, "kernels without events").itertuples()
    assert (row.time_us, np.isnan(row.won_us)) == (50, True) and "enable_kernel_profile" in row.remedy
    assert found(trace, "dispatch").empty


CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<{}, unsigned int, 1, 64, 64>(X)"


@pytest.mark.parametrize("element, dtype", [("float", "float32"), ("at::native::(anonymous namespace)::OpaqueType<4u>", None)])
def test_lists_of_tensors_have_a_band_by_the_kernels_element_and_no_dtype_that_it_does_not_say(element, dtype):
    # 2 tensors of 1000 × 1000 elements of 4 bytes, read once and written once: 16 MB
    lists = {"shapes": [[[1000, 1000]] * 2, []], "dtypes": ["TensorList", "Scalar"], "concrete": ["", "0"]}
    trace = from_events([step(1, 0, 100), *ran("aten::cat", 5, 9, 1, CAT.format(element), **lists)], **H100)
    (row,) = diagnose.by_operator(diagnose.case(trace)).itertuples()
    assert (row.bytes_moved, row.dtype, row.shapes) == (16e6, dtype, "2 tensors")


def test_one_waiting_call_is_one_call():
    trace = from_events([step(1, 0, 100), *ran("aten::mm", 5, 9, 1, "k"), launch(40, 2, 9, "cudaDeviceSynchronize")])
    assert "1 waiting call a step" in found(trace, "synchronisation")["evidence"].iloc[0]


def test_a_copy_that_no_operator_calls_is_the_programs_own():
    trace = from_events([operator("aten::copy_", 0, 5, [[4], [4]], ["float", "float"])])
    assert len(diagnose.findings(trace, None)) == 0  # asked for, so no hidden copy


def test_a_step_that_launched_nothing_while_the_gpu_ran_has_no_launch_bound_finding():
    events = [step(1, 0, 100), *ran("aten::mm", 5, 200, 1, "k"), step(2, 100, 50), launch(220, 2), kernel("k", 240, 5, 2)]
    assert found(from_events(events), "launch-bound", step=2).empty
    assert parts(from_events(events), step=2)  # and what ran is divided all the same


PUT = {"shapes": [[8192, 7168], [], [8192, 7168], [], []], "concrete": ["", "", "", "False", "False"],
       "dtypes": ["c10::BFloat16", "", "c10::BFloat16", "Scalar", "Scalar"]}  # fmt: skip


@pytest.mark.parametrize("step_us, said", [(1000, True), (12_000, False)])
def test_far_from_the_cards_rates_is_a_kernel_inside_its_band_that_takes_a_large_part_of_the_step(step_us, said):
    # 58.7 million bfloat16 written into as many: 235 MB, at 3.35 TB/s 70.1 µs. Such a kernel takes 500:
    # 430 µs more than the rates need, 43 % of a step of 1000 µs and 3.6 % of one of 12,000
    trace = from_events([step(1, 0, step_us), *ran("aten::_index_put_impl_", 5, 500, 1, "k", **PUT)], **H100)
    (row,) = diagnose.by_operator(diagnose.case(trace)).itertuples()
    assert row.position == "inside the band" and row.peak_share == pytest.approx(70.1 / 500, rel=1e-3)
    assert found(trace, "far from the card's rates")["time_us"].tolist() == [pytest.approx(429.9, abs=0.1)] * said


def test_a_trace_whose_events_stand_in_another_order_says_the_same():
    trace = from_events([step(1, 0, 100), *ran("aten::mm", 5, 9, 1, "k", [[64, 64]] * 2, ["float"] * 2),
                         *ran("aten::foo", 30, 9, 2, "k")], **H100)  # fmt: skip
    mixed = replace(trace, events=trace.events.iloc[::-1])
    one, two = (diagnose.by_operator(diagnose.case(t)).sort_values("operator") for t in (trace, mixed))
    assert one["operator"].tolist() == two["operator"].tolist() == ["aten::foo", "aten::mm"]
    assert one["bytes_moved"].tolist()[1] == two["bytes_moved"].tolist()[1] == 3 * 64 * 64 * 4
