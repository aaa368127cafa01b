import dataclasses
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tutorial_lib import accuracy, kernel_time_gemm, op_times
from tutorial_lib.hardware import find
from tutorial_lib.op_times import OpTime, cost

ROWS, _ = op_times.read()
TERMS = [term for term in kernel_time_gemm.MEANING if term in kernel_time_gemm.TERMS]


@pytest.fixture(scope="module")
def judged():
    return accuracy.judge(ROWS)


def row(rows: int, time_us: float, card: str = "A100", source: str = "made up") -> OpTime:
    """A product [rows, 64] @ [64, 64]."""
    return OpTime(card, find(card), cost.matmul(rows, 64, 64, "float16"), (), (), 3, time_us, source)


def table(**columns) -> pd.DataFrame:
    """Two groups of calls that all took 100 µs."""
    made = {"measured_us": 100.0, "limit_us": 50.0, "low_us": 90.0, "high_us": 180.0, "error": 1.0}
    return pd.DataFrame({"class": list("aaab")} | {name: [value] * 4 for name, value in made.items()} | columns)


def test_an_error_is_a_factor_whichever_way_it_goes():
    found = accuracy.errors(pd.Series([200.0, 50.0, 100.0]), pd.Series([100.0, 100.0, 100.0]))
    assert found.tolist() == pytest.approx([2.0, 2.0, 1.0])


def test_a_summary_counts_each_group():
    made = table(error=[1.1, 1.3, 1.2, 5.0], measured_us=[100.0, 40.0, 100.0, 100.0])
    # of class a: errors 1.1 and 1.2 are within 1.25, 1.3 is not; 40 µs lies outside 90 … 180 and below 50; the
    # limit is off by 2, 1.25 and 2
    found = accuracy.summary(made, "class").loc["a"]
    assert found.to_dict() == {
        "n": 3, "roofline": 2.0, "median": 1.2, "within 1.25": 67, "in band": 67, "width": 2.0, "below limit": 33.3,
    }  # fmt: skip
    assert list(accuracy.summary(made, "class", least=2).index) == ["a"]


def test_the_limit_is_what_is_left_without_terms_and_all_terms_are_the_model():
    some = [r for r in ROWS if r.work.kind == "gemm"][:40]
    limit, whole = accuracy.judge(some, terms=()), accuracy.judge(some)
    assert np.allclose(limit["typical_us"], whole["limit_us"])
    steps = accuracy.added(some, TERMS)
    assert steps["median"].iloc[[0, -1]].tolist() == [
        round(limit["error"].median(), 2), round(whole["error"].median(), 2)
    ]  # fmt: skip
    assert list(accuracy.without(some, TERMS)["model"])[0] == "the whole model"
    assert accuracy.without(some, TERMS)["median"].iloc[0] == steps["median"].iloc[-1]


def test_a_copy_to_the_device_is_known_by_its_kernel_only():
    bus = next(r for r in ROWS if r.ran[0].name.startswith("Memcpy HtoD"))
    assert accuracy.class_of(bus) == "bus copy"
    assert accuracy.class_of(dataclasses.replace(bus, ran=())) == "pointwise, copy"


def test_a_call_is_outdone_by_more_work_in_less_time_on_its_own_card():
    slow, fast = row(64, 30.0), row(128, 20.0)
    less, elsewhere = row(32, 1.0), row(256, 1.0, card="H100")
    rows = [slow, fast, less, elsewhere]
    assert accuracy.outdone(rows, slow) is fast
    assert accuracy.outdone(rows, fast) is fast


def test_calls_that_repeat_are_compared_with_themselves():
    found = accuracy.repeats([row(64, 10.0), row(64, 12.0, source="another"), row(32, 1.0)])
    assert found[["times", "ratio", "sources"]].values.tolist() == [[2, pytest.approx(1.2), 2]]


def test_what_was_predicted_out_of_fold_belongs_to_the_model_of_today(judged):
    found = accuracy.out_of_fold(ROWS)
    # four digits are stored; a difference means: run benchmarks/cross_validate.py again
    assert np.allclose(found["in_sample_us"], judged["typical_us"], rtol=2e-3)
    every = found[["shape_us", "shape_no_name_us", "card_us"]]
    assert (every > 0).all(axis=None)
    products = judged["class"] == "gemm"
    refit = found[[f"refit {term}" for term in TERMS]]
    assert (refit[products] > 0).all(axis=None) and refit[~products].isna().all(axis=None)
    # a fit without a row is no better for it than one with it
    for column in ("shape_us", "card_us"):
        unseen = accuracy.errors(found[column], judged["measured_us"]).median()
        assert unseen >= judged["error"].median()


def test_other_rows_than_those_predicted_out_of_fold_are_refused():
    with pytest.raises(ValueError, match="cross_validate"):
        accuracy.out_of_fold(ROWS[1:])


def test_each_card_has_its_panel_and_each_of_its_times_a_mark(judged):
    cards = judged["card"].value_counts()
    figure = accuracy.by_card(judged, least=300)
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert list(panels) == [f"{card}, {n}" for card, n in cards[cards >= 300].items()]
    for axes in figure.axes:
        marks = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
        assert sum(len(line.get_xdata()) for line in marks) == int(axes.get_title().split(", ")[1])


def test_a_figure_of_nothing_is_refused(judged):
    with pytest.raises(ValueError, match="least"):
        accuracy.by_card(judged, least=10_000)
    with pytest.raises(ValueError, match="limit_us"):
        accuracy.by_card(judged, "high_us")


def test_the_staircase_shows_the_medians_it_was_given():
    steps = pd.DataFrame({"model": ["the limit alone", "+ tiles"], "median": [3.0, 1.2]})
    (axes,) = accuracy.staircase({"one": steps}).axes
    assert list(axes.lines[0].get_xdata()) == [3.0, 1.2]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["the limit alone", "+ tiles"]


def test_each_part_of_the_model_of_products_is_fitted_and_the_whole_one_put_back(monkeypatch):
    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("cross_validate", folder / "cross_validate.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    whole = kernel_time_gemm.time_us
    data = module.products.usable([r for r in ROWS if r.on.name == "V100 32GB SXM"])
    found = dict(module.refitted(data))
    assert list(found) == TERMS and kernel_time_gemm.time_us is whole
    assert all(np.all(times > 0) for times in found.values())
