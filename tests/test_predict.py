import dataclasses
import math

import pytest

from tutorial_lib import cost
from tutorial_lib.cited import cited
from tutorial_lib.hardware import CARDS, Hardware, find
from tutorial_lib.kernel_time import Ran
from tutorial_lib.predict import Prediction, Terms, guess, predict, work_time

A100 = find("A100")
SLOW = Hardware(
    "slow", "cuda", {"float32": 1e9, "float16": 2e9}, 1e9, 5.0, None, None, None, "made up for the arithmetic"
)
CPU = Hardware("laptop", "cpu", {"float32": 1e11}, 1e10, 1.0, None, None, None, "made up", measured=True)


def test_the_limit_is_the_slowest_resource_and_no_fixed_cost():
    # [10, 10] @ [10, 10]: 2000 FLOPs at 1 GFLOP/s = 2 µs; 300 elements · 4 B at 1 GB/s = 1.2 µs
    item = predict(cost.matmul(10, 10, 10, "float32"), SLOW).items[0]
    assert item.limit_us == pytest.approx(2.0)
    # in float16 it is 1 µs of arithmetic against 0.6 µs of traffic
    assert predict(cost.matmul(10, 10, 10, "float16"), SLOW).limit_us == pytest.approx(1.0)


def test_on_a_cpu_the_band_goes_from_all_at_once_to_one_after_the_other(monkeypatch):
    terms = Terms(fixed_us=(3, 7), compute_share=(0.5, 0.8), memory_share=(0.25, 1.0), source="a test")
    monkeypatch.setattr("tutorial_lib.predict.terms_for", lambda work, on: terms)
    item = predict(cost.matmul(10, 10, 10, "float32"), dataclasses.replace(SLOW, kind="cpu")).items[0]
    # low 3 + max(2 / 0.8, 1.2 / 1.0), high 7 + 2 / 0.5 + 1.2 / 0.25
    assert (item.low_us, item.high_us) == (pytest.approx(5.5), pytest.approx(15.8))
    assert item.typical_us is None and item.explained_by is None


def test_the_terms_of_a_gpu_add_up_to_the_middle_of_the_band():
    item = work_time(cost.matmul(512, 512, 512, "bf16"), A100)
    assert math.fsum(item.terms.values()) == pytest.approx(item.typical_us)
    assert item.limit_us <= item.low_us <= item.typical_us <= item.high_us
    # 2·512³ FLOPs at 312 TFLOP/s are 0.86 µs: what a kernel takes with nothing to do is most of its time
    assert item.bound_by == "fixed cost" and item.explained_by == "fixed cost"
    alone = work_time(item.work, A100, terms=())
    assert alone.typical_us == pytest.approx(item.limit_us) == pytest.approx(item.terms["roofline"])


def test_the_names_of_the_kernels_that_ran_replace_what_would_be_chosen():
    work = cost.matmul(4096, 4096, 4096, "bf16")
    chosen = work_time(work, A100)
    small = work_time(work, A100, ran=(Ran("ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn"),))
    assert small.typical_us > 1.2 * chosen.typical_us
    assert "would choose" in chosen.source and "would choose" not in small.source


def test_a_prediction_has_the_sum_of_typical_times_where_each_item_has_one():
    work = (cost.matmul(512, 512, 512, "float32"), cost.copy(10**6, "float32"))
    both = predict(work, A100)
    assert both.typical_us == pytest.approx(sum(item.typical_us for item in both.items))
    assert both.low_us < both.typical_us < both.high_us and predict(work, CPU).typical_us is None


def test_a_matmul_is_compute_bound_past_the_ridge():
    # 4096³ has 2·4096³ / (3·4096²·2 B) = 1365 FLOP/byte, the A100's ridge is 153
    assert predict(cost.matmul(4096, 4096, 4096, "bf16"), A100).items[0].bound_by == "compute"
    assert predict(cost.matmul(1, 8192, 8192, "bf16"), A100).items[0].bound_by == "memory"
    assert predict(cost.matmul(1024, 32, 64, "bf16"), A100).items[0].bound_by == "fixed cost"
    arithmetic = cost.pointwise("f", elements=10**8, dtype="float32", reads=1, flops_per_element=1000)
    assert predict(arithmetic, A100).items[0].bound_by == "vector"


def test_a_call_is_the_sum_of_its_work_items():
    gemm, add = (
        cost.matmul(64, 64, 64, "bf16"),
        cost.pointwise("aten::add", elements=4096, dtype="bf16", reads=2),
    )
    both, first, second = predict([gemm, add], A100), predict(gemm, A100), predict(add, A100)
    assert (both.work_items, both.flops, both.bytes_moved) == (2, 524_288, gemm.bytes_moved + 3 * 8192)
    for edge in ("limit_us", "low_us", "high_us"):
        assert getattr(both, edge) == pytest.approx(getattr(first, edge) + getattr(second, edge))


def test_no_work_is_predicted_to_take_no_time():
    nothing = predict([], A100)
    assert (nothing.work_items, nothing.limit_us, nothing.high_us) == (0, 0, 0)
    assert nothing.position(0) == "inside the band" and nothing.position(1) == "above the band"


def test_the_masked_half_is_not_part_of_the_limit():
    full, causal = (
        predict(cost.attention(8, 16, 1024, 1024, 64, "bf16", causal=c), A100) for c in (False, True)
    )
    assert causal.flops == full.flops == 34_359_738_368
    # 34.36 GFLOP at 312 TFLOP/s = 110.1 µs; (1024 + 1) / (2·1024) of it is left
    assert full.limit_us == pytest.approx(110.1, abs=0.1)
    assert causal.limit_us == pytest.approx(110.13 * 1025 / 2048, abs=0.1)


def test_edges_are_in_order_for_every_kind_and_card():
    works = [
        cost.matmul(512, 512, 512, "float16"),
        cost.addmm(1024, 32, 64, "float16", bias_elements=64),
        cost.pointwise("aten::mul", elements=10**6, dtype="float16", reads=2),
        cost.copy(10**6, "float16"),
        cost.softmax(1000, 1000, "float16"),
        cost.attention(2, 8, 256, 256, 64, "float16", causal=True),
        cost.operator("aten::embedding", [[1000, 64], [100]], ["c10::Half", "long int"]),
    ]
    for card in CARDS:
        for item in predict(works, card).items:
            assert 0 < item.limit_us <= item.low_us <= item.typical_us < item.high_us
            assert item.source


@pytest.mark.parametrize(
    ("work", "key"),
    [
        (cost.matmul(4096, 4096, 4096, "bf16"), "C14"),
        (cost.matmul(8192, 768, 3072, "bf16"), "C36"),
        (cost.matmul(8192, 3072, 768, "bf16"), "C36.down"),
        (cost.pointwise("fused", elements=8192 * 3072, dtype="bf16", reads=2, flops_per_element=6), "C41"),
        (cost.pointwise("fused", elements=8192 * 3072, dtype="bf16", reads=2, flops_per_element=6), "C42"),
        (cost.attention(8, 16, 1024, 1024, 64, "bf16", causal=True), "C61"),
    ],
)
def test_the_published_a100_times_lie_in_the_band(work, key):
    assert predict(work, A100).position(cited(key).time_us) == "inside the band"


def test_a_time_is_placed_against_limit_and_band():
    prediction = Prediction(limit_us=10, low_us=14, high_us=40)
    assert prediction.position(9.9) == "below the limit"
    assert prediction.position(12) == "below the band"
    assert prediction.position(14) == prediction.position(40) == "inside the band"
    assert prediction.position(41) == "above the band"


def test_data_that_stayed_in_a_cache_is_below_the_limit_of_the_memory():
    # 40 kB at 10 GB/s is 4 µs; a run in 2 µs did not fetch them from that memory
    prediction = predict(cost.copy(5000, "float32"), CPU)
    assert prediction.limit_us == pytest.approx(4.0)
    assert prediction.position(2) == "below the limit"


def test_no_band_starts_under_its_limit():
    work = (
        cost.matmul(512, 512, 512, "float32"),
        cost.copy(10**6, "float32"),
        cost.softmax(1024, 1024, "float32"),
        cost.attention(2, 4, 512, 512, 64, "float32"),
    )
    measured = Hardware("my GPU", "cuda", {"float32": 1e13}, 1e12, 2.0, None, None, None, "made up", measured=True)
    for on in (*CARDS, CPU, measured):
        assert [i.work.operator for i in predict(work, on).items if i.low_us < i.limit_us] == [], on.name


def test_a_dtype_without_a_rate_is_an_error_only_where_it_computes():
    with pytest.raises(ValueError, match="T4 has no rate for bfloat16"):
        predict(cost.matmul(8, 8, 8, "bf16"), find("T4"))
    assert predict(cost.copy(8, "bf16"), find("T4")).bytes_moved == 32


def test_operators_and_launches_are_passed_on():
    prediction = predict(cost.copy(8, "bf16"), A100, operators=["aten::copy_"], launches=1)
    assert (prediction.operators, prediction.launches) == (("aten::copy_",), 1)
    assert (prediction.hardware, prediction.author) == ("A100 80GB SXM", "model")


# ------------------------------------------------------------------------------------------ a reader's guess


def test_a_guess_is_the_same_noun():
    mine = guess(operators=["linear", "aten::addmm"], work_items=1, flops=4.2e6, time_us=(5, 10))
    assert isinstance(mine, Prediction) and mine.author == "reader"
    assert mine.operators == ("aten::linear", "aten::addmm")
    assert (mine.flops, mine.launches, mine.limit_us) == (4_200_000, None, None)
    assert mine.position(4) == "below the band" and mine.position(7) == "inside the band"


def test_a_single_time_stands_for_a_factor_of_a_quarter():
    mine = guess(time_us=100)
    assert (mine.low_us, mine.high_us) == (80, 125)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("work_items", -1),
        ("work_items", 1.5),
        ("launches", True),
        ("flops", float("inf")),
        ("bytes_moved", "many"),
        ("time_us", 0),
        ("time_us", float("nan")),
        ("time_us", (1, 2, 3)),
        ("time_us", (2, 1)),
        ("time_us", "fast"),
        ("operators", [1]),
        ("operators", [""]),
    ],
)
def test_a_guess_that_cannot_be_names_its_argument(argument, value):
    with pytest.raises(ValueError, match=argument):
        guess(**{argument: value})


def test_without_a_predicted_time_there_is_no_position():
    with pytest.raises(ValueError, match="no time was predicted"):
        guess(work_items=2).position(3)
    with pytest.raises(ValueError, match="time_us"):
        guess(time_us=2).position(float("nan"))


# ---------------------------------------------------------------------------------------- shown to people


def test_text_shows_quantities_and_work_items():
    text = str(predict(cost.matmul(8192, 768, 3072, "bf16"), A100, operators=["aten::mm"]))
    assert "A100 80GB SXM" in text and "38.65 GFLOP" in text and "67.6 MB" in text
    assert "limit        124 µs" in text and "[8192, 768] [768, 3072]" in text
    assert "nothing" in str(guess()) and "A reader's prediction" in str(guess())


def test_the_table_has_one_row_a_work_item():
    table = predict([cost.matmul(8, 8, 8, "bf16"), cost.copy(64, "bf16")], A100).table()
    assert list(table["operator"]) == ["aten::mm", "aten::copy_"]
    assert list(table["flops"]) == [1024, 0]
    assert guess(work_items=3).table().empty
    assert list(guess(work_items=3).quantities()["predicted"]) == ["3"]


def test_what_is_uncertain_stands_below_the_work_items():
    found = predict([cost.matmul(8, 8, 8, "float32")], A100, notes=["uncertain: <b>\x1b[1mthis"])
    assert str(found).splitlines()[-1] == "  uncertain: <b>this"
    assert found._repr_html_().endswith("<p>uncertain: &lt;b&gt;this</p>")
    assert predict([], A100).notes == ()


def test_html_is_escaped_and_control_characters_are_dropped():
    hostile = cost.pointwise("<script>\x1b[31m", elements=8, dtype="float32", reads=1)
    prediction = predict(hostile, A100, operators=["<b>\x00"])
    page = prediction._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;" in page
    assert page.count("<caption>") == page.count("<table>") == 2
    assert "\x1b" not in page + str(prediction) and "\x00" not in page + str(prediction)


@pytest.mark.parametrize("argument", ["operators", "work_items", "flops", "time_us"])
@pytest.mark.parametrize("value", [10**400, 1.79e308, float("nan"), True, -1])
def test_a_guess_that_nothing_could_equal_is_named(argument, value):
    with pytest.raises(ValueError, match=argument):
        guess(**{argument: value})


@pytest.mark.filterwarnings("error")
def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert guess(flops=numpy.int32(8), time_us=numpy.float32(4)) == guess(flops=8, time_us=4.0)
