"""Costs add up, and a call is read as a trace records it."""

import pytest

from tutorial_lib import cost_call
from tutorial_lib.cost_call import Cost, Tensor, recorded

FLOAT, LONG, SCALAR = "float", "long int", "Scalar"


def test_costs_add_and_scale():
    one = Cost(10, 4, vector_flops=2)
    assert one + Cost(1, 1) == Cost(11, 5, 2)
    assert sum([one, one]) == one * 2 == 2 * one == Cost(20, 8, 4)
    assert one.intensity == 3.0  # (10 + 2) / 4


def test_intensity_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no bytes are moved"):
        _ = Cost(0, 0).intensity


def test_a_call_has_tensors_lists_and_values_where_its_arguments_stand():
    shapes, dtypes = [[2, 3], [[2], [3]], [], []], [FLOAT, [FLOAT, LONG], SCALAR, ""]
    call = recorded("cat", shapes, dtypes, None, ["", "", "-1", ""])
    assert call.tensor(0) == Tensor((2, 3), "float32", None)
    assert call.arguments[1] == (Tensor((2,), "float32", None), Tensor((3,), "int64", None))
    assert (call.value(2), call.value(3), call.says(2), call.says(3)) == (-1, None, True, False)
    assert call.tensor(1) is call.tensor(2) is call.tensor(9) is None and call.value(9) is None
    assert call.tensors(0, 2) is None


def test_a_list_may_have_gaps_and_may_be_empty():
    call = recorded("index", [[4, 5], [[], [3]], []], [FLOAT, ["", LONG], "TensorList"], None, None)
    assert call.arguments[1:] == ((None, Tensor((3,), "int64", None)), None)


def test_a_list_whose_dtypes_were_not_recorded_makes_the_call_unreadable():
    assert recorded("cat", [[[2], [3]], []], ["TensorList", SCALAR], None, None) is None


def test_strides_of_zero_are_one_element_in_memory():
    # 4 rows of 5 that are one row
    expanded = Tensor((4, 5), "float32", (0, 1))
    assert (expanded.elements, expanded.distinct, expanded.bytes_read) == (20, 5, 20)
    assert cost_call.bytes_of([expanded, Tensor((), "float64", ())]) == 20  # a number beside it is no traffic
