import dataclasses

import pytest

from tutorial_lib.hardware import CARDS, find
from tutorial_lib.kernel_time import Ran, Tensor, estimate, family


def test_an_estimate_is_the_sum_of_its_terms_with_a_band_around_it():
    found = estimate(4.0, {"memory": 8.0, "launch": 2.0}, 1.25, "a test")
    # 8 + 2, a factor of 1.25 to either side
    assert (found.low_us, found.typical_us, found.high_us) == (8.0, 10.0, 12.5)
    assert found.terms["launch"] == 2.0 and found.source == "a test"


def test_nothing_is_estimated_to_be_under_its_limit():
    found = estimate(12.0, {"memory": 8.0, "launch": 2.0}, 1.25, "a test")
    assert (found.low_us, found.typical_us, found.high_us) == (12.0, 12.0, 15.0)
    assert found.terms["limit"] == 2.0  # 12 - 8 - 2: the terms still add up


def test_terms_cannot_be_changed_afterwards():
    with pytest.raises(TypeError):
        estimate(1.0, {"memory": 2.0}, 1.1, "a test").terms["memory"] = 3.0


def test_cards_of_a_generation_are_a_family():
    assert {family(card) for card in CARDS if "A100" in card.name} == {"ampere"}
    assert family(find("GH200")) == family(find("H100")) == "hopper"
    assert family(find("MI300X")) == "cdna3"
    assert family(dataclasses.replace(find("T4"), compute_capability=(3, 5))) == "unknown"


def test_a_tensor_counts_its_elements_and_a_kernel_may_have_no_grid():
    assert Tensor((4, 8), "float32", (8, 1)).elements == 32 and Tensor((), "int64").elements == 1
    assert Ran("gemm").grid is None and Ran("gemm", (16, 8, 1)).grid == (16, 8, 1)


@pytest.mark.parametrize("grid", [(), (0, 1, 1), (-1,), (1.5,), (True,), ("8",), (None,), ((1, 2), (3, 4)), (1,) * 4,
                                  (10**40, 1, 1), [1], 8])  # fmt: skip
def test_what_is_no_grid_is_not_known(grid):
    assert Ran("gemm", grid).grid is None and hash(Ran("gemm", grid))
