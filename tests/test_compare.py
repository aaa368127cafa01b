"""Two traces of the same job, matched and subtracted, on traces drawn by hand."""

import json

import pytest

from tutorial_lib.compare import compare
from tutorial_lib.trace import from_events

GEMM = {
    "bfloat16": "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn",
    "float32": "volta_sgemm_128x64_nn",
}
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, x>(int, float)"


def event(cat, name, ts, dur, tid=1, **args):
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def ran(name, ts, dur, number, kernel, shapes=None, dtype="float"):
    args = {} if shapes is None else {"Input Dims": shapes, "Input type": [dtype] * len(shapes)}
    return [event("cpu_op", name, ts, 8, **args), event("cuda_runtime", "cudaLaunchKernel", ts + 1, 2, correlation=number),
            event("kernel", kernel, ts + 10, dur, tid=7, device=0, stream=7, correlation=number)]  # fmt: skip


def job(mm_us, muls, steps=1, dtype="float32", shapes=True, device="NVIDIA H100 80GB HBM3", **top):
    """Steps of 1000 µs, each with one product and some pointwise kernels of 20 µs."""
    events, number = [], 0
    for step in range(steps):
        start = 1000 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", start, 1000))
        events += ran(
            "aten::mm", start, mm_us, number + 1, GEMM[dtype], [[64, 64], [64, 64]] if shapes else None
        )
        for i in range(muls):
            events += ran(
                "aten::mul", start + 500 + 50 * i, 20, number + 2 + i, MUL, [[64, 64], []] if shapes else None
            )
        number += 1 + muls
    return from_events(events, deviceProperties=[{"id": 0, "name": device}], **top)


def row(found, operator):
    (only,) = found.table[found.table["operator"] == operator].itertuples()
    return only


def test_rows_are_matched_by_operator_and_shapes_and_given_per_step():
    found = compare(job(100, 3), job(60, 1, steps=2))
    assert found.by == "operator and shapes" and (found.before_us, found.after_us) == (1000, 1000)
    mm, mul = row(found, "aten::mm"), row(found, "aten::mul")
    assert (mm.before_us, mm.after_us, mm.difference_us, mm.change) == (100, 60, -40, "faster")
    # two calls fewer of 20 µs: all of the difference is by count
    assert (mul.count_before, mul.count_after, mul.difference_us, mul.by_count_us) == (3, 1, -40, -40)
    assert mul.change == "fewer calls"


def test_the_parts_divide_the_difference_of_the_steps_exactly():
    found = compare(job(100, 3), job(800, 5))
    assert found.parts["difference_us"].sum() == pytest.approx(found.after_us - found.before_us)
    compute = found.parts.set_index("part").loc["compute"]
    assert (compute["before_us"], compute["after_us"], compute["difference_us"]) == (100, 800, 700)


def test_what_appeared_and_what_vanished_is_said():
    found = compare(job(100, 0), job(100, 2))
    assert row(found, "aten::mul").change == "appeared" and row(found, "aten::mm").change == "same"
    assert row(compare(job(100, 2), job(100, 0)), "aten::mul").change == "vanished"


def test_rows_that_are_the_same_are_in_the_table_and_not_shown():
    found = compare(job(100, 2), job(60, 2))
    shown = (str(found), found._repr_html_())
    assert all("aten::mm" in text and "aten::mul" not in text for text in shown)
    assert row(found, "aten::mul").change == "same" and '"aten::mul"' in found.to_json()
    # two calls of 20 µs in both
    assert "and 1 more rows that are the same to within 5 % a call, 0 µs together" in str(found)


def test_a_trace_beside_itself_differs_in_nothing():
    trace = job(100, 2)
    for text in (str(compare(trace, trace)), compare(trace, job(100, 2))._repr_html_()):
        assert "a step takes 1.00 ms in both" in text
        assert "Nothing differs, by operator and shapes (device time)" in text
        assert "What explains it" not in text and "aten::" not in text


def test_small_differences_that_nothing_explains_are_added_up():
    # 103 instead of 100 µs are 3 % more, and less than the 5 % that are called the same
    said = str(compare(job(100, 1), job(103, 1)))
    assert "Nothing differs" in said
    assert "2 rows that are the same to within 5 % a call, +3.00 µs together" in said


def test_traces_without_device_work_have_nothing_to_compare():
    idle = from_events([event("user_annotation", "ProfilerStep#0", 0, 1000)])
    assert "Nothing to compare: neither trace has device work" in str(compare(idle, idle))


def test_one_step_of_each_can_be_compared():
    before, after = job(100, 1, steps=3), job(60, 3, steps=2)
    found = compare(before, after, step=1)
    assert found.steps == (1, 1) and f"{before.path}, step #1" in str(found)
    mm, mul = row(found, "aten::mm"), row(found, "aten::mul")
    assert (mm.before_us, mm.after_us, mul.count_before, mul.count_after) == (100, 60, 1, 3)
    other = compare(before, after, step=(2, 0))
    assert f"{before.path}, step #2 → {after.path}, step #0" in other._repr_html_()
    assert json.loads(other.to_json())["steps"] == [2, 0] and compare(before, after).steps is None
    with pytest.raises(ValueError, match=r"has no ProfilerStep#2; its steps: 0, 1"):
        compare(before, after, step=2)
    with pytest.raises(ValueError, match=r"one for each, got \(1, 2, 3\)"):
        compare(before, after, step=(1, 2, 3))


def test_what_else_differs_comes_first():
    found = compare(
        job(100, 1, cuda_runtime_version=12040),
        job(100, 1, dtype="bfloat16", device="NVIDIA A100-SXM4-80GB", cuda_runtime_version=12090),
    )
    said = "\n".join(found.differs)
    assert "NVIDIA H100 80GB HBM3 before, NVIDIA A100-SXM4-80GB after" in said
    assert (
        "cuda_runtime: 12.4 before, 12.9 after" in said
        and "products run in float32 before, in bfloat16 after" in said
    )
    assert compare(job(100, 1), job(90, 1)).differs == ()
    assert "float32" in str(found) and str(found).index("differs") < str(found).index("a step takes")


def test_without_shapes_rows_are_matched_by_what_the_kernels_name_says():
    found = compare(job(100, 1), job(60, 1, shapes=False))
    assert found.by == "operator and kernel" and "shapes were recorded only before" in found.differs[0]
    mm = row(found, "aten::mm")
    assert mm.difference_us == -40 and "GEMM" in mm.shapes


def test_cpu_traces_are_compared_by_their_operators():
    def cpu(us):
        return from_events(
            [
                event(
                    "cpu_op",
                    "aten::mm",
                    0,
                    us,
                    **{"Input Dims": [[8, 8], [8, 8]], "Input type": ["float"] * 2},
                )
            ]
        )

    assert row(compare(cpu(50), cpu(20)), "aten::mm").difference_us == -30


def test_text_html_and_json_say_the_same_and_names_are_inert():
    nasty = "\x1b[31m<script>alert(1)</script>\u202e"
    a, b = (
        job(100, 2),
        from_events([event("user_annotation", "ProfilerStep#1", 0, 1000), *ran(nasty, 0, 50, 1, nasty)]),
    )
    found = compare(a, b)
    for text in (str(found), found._repr_html_()):
        assert "+50.0 µs" in text and not {"\x1b", "\u202e"} & set(text)
    assert "<script>" not in found._repr_html_() and "&lt;script&gt;" in found._repr_html_()
    read = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert read["table"][0]["difference_us"] == -100 and read["after_us"] == 1000


def test_the_rest_of_a_long_table_is_summed_up():
    text = str(compare(job(100, 0), job(60, 2), top=1))
    # of −40 and +40 µs one row is shown, and the other is the rest
    assert "and 1 more rows" in text


def test_a_device_with_an_endless_name_does_not_flood_the_screen():
    before, after = (from_events([event("cpu_op", "aten::mm", 0, 9)], deviceProperties=[{"id": 0, "name": name * 9999}])
                     for name in "ab")  # fmt: skip
    assert max(map(len, str(compare(before, after)).splitlines())) < 1000


def test_what_no_row_has_is_told_so_that_the_step_adds_up():
    # the product takes 40 µs less, the step stays 1000 long: 40 µs more of it are idle
    assert "in no row: +40.0 µs" not in str(compare(job(100, 0), job(60, 0)))  # 4 % of the step
    assert "in no row: +400 µs of the parts above" in str(compare(job(500, 0), job(100, 0)))
