import pytest

from tutorial_lib import cost
from tutorial_lib.cost import Cost

BF16, HALF, FLOAT, LONG, BOOL = "c10::BFloat16", "c10::Half", "float", "long int", "bool"
SCALAR = "Scalar"


def test_costs_add_and_scale():
    one = Cost(10, 4, vector_flops=2)
    assert one + Cost(1, 1) == Cost(11, 5, 2)
    assert sum([one, one]) == one * 2 == 2 * one == Cost(20, 8, 4)
    assert one.intensity == 3.0  # (10 + 2) / 4


def test_intensity_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no bytes are moved"):
        _ = Cost(0, 0).intensity


def test_a_product_reads_both_factors_and_writes_the_result():
    work = cost.matmul(8192, 768, 3072, "bf16")
    # 2·8192·768·3072 FLOPs; (8192·768 + 768·3072 + 8192·3072) elements of 2 bytes
    assert (work.operator, work.kind, work.dtype) == ("aten::mm", "gemm", "bfloat16")
    assert (work.flops, work.bytes_moved) == (38_654_705_664, 67_633_152)
    assert cost.matmul(8192, 768, 3072, "bf16", batch=4).flops == 4 * work.flops


def test_the_epilogue_reads_the_bias_once():
    plain, biased = cost.matmul(1024, 32, 64, "bf16"), cost.addmm(1024, 32, 64, "bf16", bias_elements=64)
    assert biased.flops == plain.flops == 4_194_304
    assert biased.bytes_moved - plain.bytes_moved == 64 * 2
    assert biased.vector_flops == 1024 * 64  # one addition for each output
    full = cost.addmm(1024, 32, 64, "bf16", bias_elements=1024 * 64)
    assert full.shapes == ((1024, 64), (1024, 32), (32, 64))


def test_a_batched_addend_is_read_whole_unless_broadcast():
    # 3 batches of [4, 8] @ [8, 5] in float32: 3·(32 + 40 + 20) elements, addend 3·20 or 5
    assert cost.baddbmm(4, 8, 5, "float32", batch=3).bytes_moved == 4 * (276 + 60)
    assert cost.baddbmm(4, 8, 5, "float32", batch=3, addend_elements=5).bytes_moved == 4 * (276 + 5)


def test_fusing_two_pointwise_operators_saves_two_of_five_passes():
    n = 8192 * 3072
    gelu = cost.pointwise("aten::gelu", elements=n, dtype="bf16", reads=1)
    mul = cost.pointwise("aten::mul", elements=n, dtype="bf16", reads=2)
    # eager: read, write, read, read, write = 5 passes of 50.3 MB
    assert cost.total([gelu, mul]).bytes_moved == 5 * 50_331_648
    assert cost.pointwise("fused", elements=n, dtype="bf16", reads=2).bytes_moved == 3 * 50_331_648


def test_a_broadcast_copy_reads_only_what_there_is():
    work = cost.copy(1024 * 64, "bf16", read_elements=64)
    assert work.bytes_moved == 2 * (64 + 1024 * 64)
    assert cost.copy(100, "bf16", to="float32").bytes_moved == 100 * (2 + 4)


def test_rows_are_read_and_written_once():
    assert cost.softmax(10, 20, "float32").bytes_moved == 2 * 200 * 4
    # input and output 2·200·2, weight and bias 2·20·2, mean and 1/σ in float32 2·10·4
    assert cost.layer_norm(10, 20, "bf16").bytes_moved == 800 + 80 + 80
    assert cost.reduction("aten::sum", elements=200, outputs=10, dtype="bf16").bytes_moved == 420


def test_causal_attention_counts_the_masked_half_and_says_what_can_be_skipped():
    full, causal = (cost.attention(8, 16, 1024, 1024, 64, "bf16", causal=c) for c in (False, True))
    assert full.flops == causal.flops == 4 * 8 * 16 * 1024 * 1024 * 64
    assert full.bytes_moved == 4 * 8 * 16 * 1024 * 64 * 2  # q, k, v and the output
    # 1024·1023/2 of the 1024² scores of each of 128 heads are above the diagonal, 4·64 FLOPs each
    assert (full.skippable_flops, causal.skippable_flops) == (0, 128 * 523_776 * 256)


def test_shared_keys_and_values_are_read_once():
    # grouped queries: 4 heads of q and output, 1 head of k and v, 10·8 elements each
    assert cost.attention(1, 4, 10, 10, 8, "float16", kv_heads=1).bytes_moved == 2 * 80 * (4 + 4 + 1 + 1)


def test_a_log_sum_exp_is_one_float32_for_each_query():
    plain, kept = (cost.attention(2, 3, 5, 7, 8, "bf16", log_sum_exp=flag) for flag in (False, True))
    assert kept.bytes_moved - plain.bytes_moved == 2 * 3 * 5 * 4


def test_attention_backward_is_five_products_and_eight_tensors():
    # 6 heads, 4·4 scores, 10 of them kept; 5 products of 2·8 FLOPs a score, 8 other operations a kept score
    work = cost.attention_backward(2, 3, 4, 4, 8, "bf16", causal=True)
    assert (work.flops, work.skippable_flops) == (6 * 16 * 80, 6 * 6 * 80)
    assert work.vector_flops == 6 * 10 * 8
    # reads q, k, v, the output and its gradient, writes dq, dk, dv: 8 of 6·4·8 elements; 24 log-sum-exps
    assert work.bytes_moved == 8 * 192 * 2 + 24 * 4


def test_causal_with_one_query_keeps_one_key():
    work = cost.attention(1, 1, 1, 5, 8, "float32", causal=True)  # aligned top left: key 0 only
    assert work.flops - work.skippable_flops == 4 * 8


# ------------------------------------------------------------------------------------- operators by name


def test_a_row_of_a_trace_costs_what_the_shapes_say():
    row = ("aten::addmm", [[64], [1024, 32], [32, 64], [], []], [BF16, BF16, BF16, SCALAR, SCALAR])
    values = ["", "", "", "1", "1"]
    work = cost.operator(*row, strides=[[1], [32, 1], [1, 32], [], []], concrete=values)
    assert work == cost.addmm(1024, 32, 64, "bf16", bias_elements=64)


def test_a_bias_that_was_expanded_is_read_once():
    shapes, dtypes = [[1024, 64], [1024, 32], [32, 64], [], []], [FLOAT] * 3 + [SCALAR] * 2
    expanded = cost.operator("aten::addmm", shapes, dtypes, strides=[[0, 1], [32, 1], [1, 32], [], []])
    dense = cost.operator("aten::addmm", shapes, dtypes)
    assert dense.bytes_moved - expanded.bytes_moved == 4 * (1024 * 64 - 64)


def test_an_addend_without_an_epilogue_is_copied_over_the_output_and_read_back():
    described = {
        "shapes": ((4,), (16, 8), (8, 4)),
        "dtypes": ("float",) * 3,
        "strides": ((1,), (8, 1), (1, 8)),
    }
    for name in ("aten::addmm", "aten::_addmm_activation"):
        kept, dispatched, copied = (
            cost.items_of(name, **described, addend=addend) for addend in ("read", "dispatched", "copied")
        )
        # 16·8 + 8·4 read, 16·4 written, and 4 or 16·4 of the addend read: 228 or 288 elements of 4 bytes
        assert [w.bytes_moved for w in kept + dispatched] == [912, 1152]
        # the copy inside of the operator reads 4 and writes 16·4
        assert [w.bytes_moved for w in copied] == [272, 1152]
    assert cost.items_of("aten::mm", ((2, 3), (3, 4)), ("float",) * 2, addend="copied") == [
        cost.matmul(2, 3, 4, "float32")
    ]
    assert cost.items_of("aten::addmm", None, None) == cost.items_of("aten::what", ((2,),), ("float",)) == []


def test_beta_zero_leaves_the_addend_alone():
    args = ("aten::baddbmm", [[2, 3, 5], [2, 3, 4], [2, 4, 5], [], []], [HALF] * 3 + [SCALAR] * 2)
    read, ignored = (cost.operator(*args, concrete=["", "", "", beta, "1"]) for beta in ("1", "0"))
    assert read.bytes_moved - ignored.bytes_moved == 30 * 2


@pytest.mark.parametrize(
    ("name", "shapes", "flops", "elements"),
    [
        ("aten::mm", [[2, 3], [3, 4]], 48, 6 + 12 + 8),
        ("aten::bmm", [[5, 2, 3], [5, 3, 4]], 240, 5 * 26),
        ("aten::matmul", [[2, 3], [3]], 12, 6 + 3 + 2),
        ("aten::matmul", [[3], [3]], 6, 3 + 3 + 1),
        ("aten::matmul", [[6, 1, 2, 3], [5, 3, 4]], 6 * 5 * 48, 36 + 60 + 240),
        ("aten::linear", [[7, 2, 3], [4, 3], [4]], 14 * 4 * 3 * 2, 42 + 12 + 4 + 56),
        ("aten::mv", [[2, 3], [3]], 12, 11),
        ("aten::addmv", [[2], [2, 3], [3]], 12, 13),
        ("aten::dot", [[3], [3]], 6, 7),
    ],
)
def test_every_product_is_counted_by_its_contraction(name, shapes, flops, elements):
    work = cost.operator(name, shapes, [FLOAT] * len(shapes))
    assert (work.flops, work.bytes_moved, work.kind) == (flops, 4 * elements, "gemm")


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "moved"),
    [
        ("aten::add", [[8, 4], [8, 4], []], [BF16, BF16, SCALAR], 3 * 32 * 2),
        ("aten::mul", [[8, 4], []], [BF16, "double"], 2 * 32 * 2),  # a Python number is no traffic
        ("aten::mul", [[8, 1], [4]], [FLOAT, FLOAT], (8 + 4 + 32) * 4),
        ("aten::add", [[8], [8], []], [BF16, FLOAT, SCALAR], 8 * (2 + 4 + 4)),  # the result is promoted
        ("aten::div", [[8], [8]], [LONG, LONG], 8 * (8 + 8 + 4)),  # integers divide to float32
        ("aten::mul", [[8], []], [LONG, "double"], 8 * (8 + 4)),
        ("aten::eq", [[8], [8]], [FLOAT, FLOAT], 8 * (4 + 4 + 1)),
        ("aten::exp", [[8], [8]], [FLOAT, FLOAT], 2 * 8 * 4),  # the second one is `out`
        ("aten::gelu", [[8], []], [BF16, ""], 2 * 8 * 2),
        ("aten::add_", [[8, 4], [4], []], [FLOAT, FLOAT, SCALAR], (2 * 32 + 4) * 4),
        ("aten::clamp", [[8], [], []], [FLOAT, SCALAR, ""], 2 * 8 * 4),
        ("aten::addcmul", [[8], [8], [8], []], [FLOAT, FLOAT, FLOAT, SCALAR], 4 * 8 * 4),
        ("aten::gelu_backward", [[8], [8], []], [BF16, BF16, ""], 3 * 8 * 2),
        ("aten::silu_backward", [[8], [8]], [BF16, BF16], 3 * 8 * 2),
        ("aten::threshold_backward", [[8], [8], []], [FLOAT, FLOAT, SCALAR], 3 * 8 * 4),
        ("aten::where", [[8, 8], [8, 8], []], [BOOL, BF16, BF16], 64 * (1 + 2 + 2)),
        ("aten::masked_fill_", [[2, 4, 4], [4, 4], []], [BF16, BOOL, SCALAR], 32 * 2 + 16 + 32 * 2),
        ("aten::masked_fill", [[2, 4, 4], [4, 4], []], [BF16, BOOL, SCALAR], 32 * 2 + 16 + 32 * 2),
        ("aten::max", [[8], [8]], [FLOAT, FLOAT], 3 * 8 * 4),
    ],
)
def test_pointwise_operators_read_what_they_are_given_and_write_the_broadcast(name, shapes, dtypes, moved):
    work = cost.operator(name, shapes, dtypes)
    assert (work.kind, work.bytes_moved, work.flops) == ("pointwise", moved, 0)


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "concrete", "moved"),
    [
        ("aten::copy_", [[8], [8], []], [BF16, FLOAT, SCALAR], None, 8 * (4 + 2)),
        ("aten::copy_", [[6, 8], [8], []], [FLOAT, FLOAT, SCALAR], None, (8 + 48) * 4),
        ("aten::_to_copy", [[8]] + [[]] * 6, [BF16, SCALAR] + [""] * 5, ["", "6"] + [""] * 5, 8 * (2 + 4)),
        ("aten::clone", [[8], []], [FLOAT, ""], ["", ""], 64),
        ("aten::fill_", [[8], []], [FLOAT, SCALAR], ["", "0"], 32),
        ("aten::zero_", [[8]], [FLOAT], [""], 32),
        ("aten::cat", [[[2, 3], [4, 3]], []], [[FLOAT, FLOAT], SCALAR], ["", "0"], 2 * 18 * 4),
    ],
)
def test_copies_read_the_source_and_write_the_target(name, shapes, dtypes, concrete, moved):
    work = cost.operator(name, shapes, dtypes, concrete=concrete)
    assert (work.kind, work.bytes_moved) == ("copy", moved)


def test_contiguous_copies_only_what_is_not():
    row = ("aten::contiguous", [[4, 8], []], [FLOAT, ""])
    assert cost.operator(*row, strides=[[8, 1], []]) is None
    assert cost.operator(*row, strides=[[1, 4], []]).bytes_moved == 2 * 32 * 4
    assert cost.operator(*row) is None  # unknown strides: unknown work


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "concrete", "moved"),
    [
        ("aten::sum", [[10, 6], []], [FLOAT, ""], ["", ""], 61 * 4),
        (
            "aten::sum",
            [[10, 6], [], [], []],
            [FLOAT, "ScalarList", SCALAR, ""],
            ["", "[0]", "True", ""],
            66 * 4,
        ),
        (
            "aten::sum",
            [[10, 6], [], [], []],
            [BF16, "ScalarList", SCALAR, ""],
            ["", "[-1]", "False", "6"],
            160,
        ),
        ("aten::sum", [[10, 6], []], [BOOL, ""], ["", ""], 60 + 8),
        ("aten::mean", [[10, 6], [], [], [], [10]], [FLOAT, "ScalarList", SCALAR, "", FLOAT], None, 70 * 4),
        ("aten::amax", [[10, 6], [], []], [FLOAT, "ScalarList", SCALAR], ["", "[]", "False"], 61 * 4),
        ("aten::max", [[10, 6], [], []], [FLOAT, SCALAR, SCALAR], ["", "1", "False"], 240 + 10 * 12),
        (
            "aten::var",
            [[10, 6], [], [], []],
            [FLOAT, "ScalarList", SCALAR, SCALAR],
            ["", "[1]", "1", "False"],
            280,
        ),
        ("aten::argmax", [[10, 6], [], []], [FLOAT, SCALAR, SCALAR], ["", "0", "False"], 240 + 6 * 8),
        ("aten::_softmax", [[10, 6], [], []], [HALF, SCALAR, SCALAR], ["", "-1", "True"], 60 * (2 + 4)),
        ("aten::softmax", [[10, 6], [], []], [HALF, SCALAR, ""], ["", "-1", ""], 2 * 60 * 2),
        ("aten::_softmax_backward_data", [[6], [6], [], []], [FLOAT, FLOAT, SCALAR, SCALAR], None, 72),
        ("aten::cumsum", [[6], [], []], [FLOAT, SCALAR, ""], None, 48),
    ],
)
def test_reductions_read_all_and_write_what_is_left(name, shapes, dtypes, concrete, moved):
    work = cost.operator(name, shapes, dtypes, concrete=concrete)
    assert (work.kind, work.bytes_moved) == ("reduction", moved)


def test_reductions_say_how_many_rows_they_have_and_how_far_apart_the_neighbours_in_one_lie():
    def rows(name, shape, *concrete):
        dtypes = [FLOAT, *[SCALAR] * len(concrete)]
        work = cost.operator(name, [shape, *[[]] * len(concrete)], dtypes, concrete=["", *concrete])
        return work.rows, work.row_step

    assert rows("aten::sum", [4, 8, 16], "[-1]", "False", "") == (4 * 8, 1)
    assert rows("aten::sum", [4, 8, 16], "[1]", "False", "") == (4 * 16, 16)
    assert rows("aten::sum", [4, 8, 16], "[0]", "False", "") == (8 * 16, 8 * 16)
    assert rows("aten::sum", [4, 8, 16], "[0, 2]", "False", "") == (8, 1)  # the last is among them
    assert rows("aten::mean", [4, 8, 16], "[]", "False", "") == (1, 1)
    assert rows("aten::_softmax", [4, 8, 16], "1", "False") == (4 * 16, 16)
    assert cost.operator("aten::_softmax", [[4, 8], [], []], [FLOAT, SCALAR, SCALAR]).rows is None
    assert (cost.softmax(4, 8, "bf16").rows, cost.layer_norm(4, 8, "bf16").rows) == (4, 4)


def test_normalisations_cost_the_same_by_row_and_by_name():
    shapes, dtypes = [[5, 10, 20], [], [20], [20], []], [BF16, "ScalarList", BF16, BF16, SCALAR]
    work = cost.operator("aten::native_layer_norm", shapes, dtypes)
    assert work.cost == cost.layer_norm(50, 20, "bf16").cost
    # no weight: the row length comes from normalized_shape; one statistic, 1/rms
    args = ("aten::_fused_rms_norm", [[4, 8], [], [], []], [BF16, "ScalarList", "", SCALAR])
    assert cost.operator(*args, concrete=["", "[8]", "", ""]).bytes_moved == 2 * 32 * 2 + 4 * 4
    assert cost.operator(*args) is None


def test_a_lookup_reads_no_row_twice():
    # 6 indices into 4 rows of 10: at most the 4 rows are read, 6 are written
    assert cost.operator("aten::embedding", [[4, 10], [6]], [FLOAT, LONG]).bytes_moved == 48 + 4 * 10 * (
        4 + 6
    )
    args = ("aten::index_select", [[4, 10], [], [2]], [FLOAT, SCALAR, LONG])
    assert cost.operator(*args, concrete=["", "1", ""]).bytes_moved == 16 + 4 * 4 * (2 + 2)


def test_dropout_works_only_in_training():
    args = ("aten::native_dropout", [[8], [], []], [FLOAT, SCALAR, SCALAR])
    assert cost.operator(*args, concrete=["", "0.1", "True"]).bytes_moved == 8 * (4 + 4 + 1)
    assert cost.operator(*args, concrete=["", "0.1", "False"]) is None


def test_a_convolution_contracts_channels_and_kernel():
    shapes = [[2, 3, 8, 8], [6, 3, 3, 3], [6]] + [[]] * 6
    dtypes = [FLOAT] * 3 + ["ScalarList"] * 3 + [SCALAR, "ScalarList", SCALAR]
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    work = cost.operator("aten::convolution", shapes, dtypes, concrete=values)
    # (8 + 2 - 3) // 2 + 1 = 4 each way: 2·6·4·4 = 192 outputs of 2·27 FLOPs
    assert work.flops == 192 * 54
    assert work.bytes_moved == 4 * (384 + 162 + 6 + 192)
    values[6] = "True"
    assert cost.operator("aten::convolution", shapes, dtypes, concrete=values) is None


def test_attention_by_name_knows_both_layouts():
    heads_first, length_first = [[2, 3, 5, 8]] * 3, [[2, 5, 3, 8]] * 3
    flash = cost.operator(
        "aten::_scaled_dot_product_flash_attention",
        heads_first + [[]] * 4,
        [HALF] * 3 + [SCALAR] * 3 + [""],
        concrete=["", "", "", "0.", "True", "False", ""],
    )
    want = cost.attention(2, 3, 5, 5, 8, "float16", causal=True)
    assert (flash.cost, flash.skippable_flops) == (want.cost, want.skippable_flops)
    inner = cost.operator("aten::_flash_attention_forward", length_first + [[]] * 8, [HALF] * 3 + [""] * 8)
    assert inner.cost == cost.attention(2, 3, 5, 5, 8, "float16").cost


def test_a_dense_mask_is_traffic_and_expanded_heads_are_not():
    name = "aten::_scaled_dot_product_efficient_attention"
    shapes, dtypes = [[2, 4, 5, 8]] * 3 + [[5, 5]], [FLOAT] * 4
    dense = [160, 40, 8, 1]
    plain = cost.operator(name, shapes[:3], dtypes[:3])
    assert cost.operator(name, shapes, dtypes).bytes_moved - plain.bytes_moved == 25 * 4
    shared = cost.operator(name, shapes[:3], dtypes[:3], strides=[dense, [40, 0, 8, 1], [40, 0, 8, 1]])
    assert plain.bytes_moved - shared.bytes_moved == 2 * 2 * (4 - 1) * 40 * 4  # 3 of 4 heads, k and v


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes"),
    [
        ("aten::view", [[4, 4], []], [FLOAT, "ScalarList"]),
        ("aten::t", [[4, 4]], [FLOAT]),
        ("aten::empty", [[]], ["ScalarList"]),
        ("mylib::mm", [[2, 3], [3, 4]], [FLOAT, FLOAT]),
        ("aten::mm", [[2, 3], [4, 5]], [FLOAT, FLOAT]),  # does not fit
        ("aten::mm", [[2, 3]], [FLOAT]),
        ("aten::add", [[2, 3], [4, 5]], [FLOAT, FLOAT]),
        ("aten::add", [[2], [2]], ["c10::Unheard", FLOAT]),
        ("aten::add", [[2], [2]], [FLOAT]),
        ("aten::add", [[-2], [2]], [FLOAT, FLOAT]),
        ("aten::add_", [[1], [4]], [FLOAT, FLOAT]),  # in place, self cannot grow
        ("aten::sum", [[2, 3], [], [], []], [FLOAT, "ScalarList", SCALAR, ""]),  # which dimension?
        ("aten::cat", [[[2], [2]], []], ["TensorList", SCALAR]),  # of which dtype?
        ("aten::_to_copy", [[2], []], [FLOAT, SCALAR]),  # to which dtype?
        ("aten::_flash_attention_forward", [[9, 3, 8]] * 3, [HALF] * 3),  # packed sequences
        ("", [], []),
    ],
)
def test_views_and_unknowns_have_no_cost(name, shapes, dtypes):
    assert cost.operator(name, shapes, dtypes) is None


def test_values_that_do_not_line_up_with_the_arguments_are_not_used():
    row = ("aten::sum", [[2, 3], [], [], []], [FLOAT, "ScalarList", SCALAR, ""])
    assert cost.operator(*row, concrete=["[0]", "True"]) is None


def test_overload_names_and_empty_tensors_are_fine():
    assert cost.operator("aten::add.Tensor", [[3], [3]], [FLOAT, FLOAT]).operator == "aten::add"
    assert cost.operator("aten::mm", [[0, 3], [3, 4]], [FLOAT, FLOAT]).cost == Cost(0, 48)


# ------------------------------------------------------------------------------- equal to PyTorch's counter


def _counted(fn, *shapes, dtype="float32"):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    tensors = [torch.empty(s, device="meta", dtype=getattr(torch, dtype)) for s in shapes]
    with FlopCounterMode(display=False) as counter:
        fn(*tensors)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(5, 7), (7, 9)]),
        ("addmm", [(9,), (5, 7), (7, 9)]),
        ("addmm", [(5, 9), (5, 7), (7, 9)]),
        ("bmm", [(3, 5, 7), (3, 7, 9)]),
        ("baddbmm", [(3, 5, 9), (3, 5, 7), (3, 7, 9)]),
        ("matmul", [(2, 3, 5, 7), (2, 3, 7, 9)]),
        ("matmul", [(2, 3, 5, 7), (7, 9)]),
    ],
)
def test_flops_of_products_equal_the_counter(name, shapes):
    torch = pytest.importorskip("torch")
    work = cost.operator(f"aten::{name}", shapes, [FLOAT] * len(shapes))
    assert work.flops == _counted(getattr(torch, name), *shapes)


@pytest.mark.parametrize("shapes", [[(5, 7), (9, 7), (9,)], [(2, 5, 7), (9, 7), (9,)], [(2, 5, 7), (9, 7)]])
def test_flops_of_linear_equal_the_counter(shapes):
    torch = pytest.importorskip("torch")
    work = cost.operator("aten::linear", shapes, [FLOAT] * len(shapes))
    assert work.flops == _counted(torch.nn.functional.linear, *shapes)


@pytest.mark.parametrize(("q_len", "kv_len"), [(16, 16), (4, 16)])
def test_flops_of_attention_equal_the_counter(q_len, kv_len):
    torch = pytest.importorskip("torch")
    shapes = [(2, 3, q_len, 8), (2, 3, kv_len, 8), (2, 3, kv_len, 8)]
    work = cost.attention(2, 3, q_len, kv_len, 8, "float16", causal=True)
    assert work.flops == cost.operator("aten::scaled_dot_product_attention", shapes, [HALF] * 3).flops

    def flash(q, k, v):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)

    def math(q, k, v):
        return torch.ops.aten._scaled_dot_product_attention_math(q, k, v)

    assert work.flops == _counted(flash, *shapes, dtype="float16") == _counted(math, *shapes)


def test_flops_of_attention_backward_and_convolution_equal_the_counter():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import conv_flop_count, sdpa_backward_flop_count

    q, k = (2, 3, 4, 8), (2, 3, 16, 8)
    name = "aten::_scaled_dot_product_flash_attention_backward"
    work = cost.operator(name, [q, q, k, k], [HALF] * 4)
    assert work.flops == sdpa_backward_flop_count(q, q, k, k)
    x, weight = (2, 4, 9, 9), (6, 2, 3, 3)  # two groups
    values = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "2"]
    shapes, dtypes = [x, weight, []] + [[]] * 4, [FLOAT, FLOAT, ""] + ["ScalarList"] * 3 + [SCALAR]
    work = cost.operator("aten::conv2d", shapes, dtypes, concrete=values)
    assert (
        work.flops
        == conv_flop_count(x, weight, (2, 6, 7, 7))
        == _counted(lambda a, b: torch.nn.functional.conv2d(a, b, groups=2), x, weight)
    )


def test_a_table_writes_each_work_item_in_words():
    # [2, 4] @ [4, 8] in float32: 2·2·4·8 = 128 FLOPs, (8 + 32 + 16)·4 = 224 bytes, 128/224 = 0.57
    table = cost.table([cost.matmul(2, 4, 8, "float32")])
    assert table.iloc[0].tolist() == ["aten::mm", "[2, 4] [4, 8]", "float32", "128 FLOP", "224 B", 0.57]


def test_a_table_of_nothing_is_empty():
    assert cost.table([]).empty


def test_causal_attention_backward_may_skip_the_masked_half():
    # 2 query rows of 2 keys: 1 of 4 scores is masked; five products of 2·8 FLOPs each a score
    q = (1, 1, 2, 8)
    shapes, dtypes = [q] * 5 + [(1, 1, 2)] + [()] * 6, ["float32"] * 6 + ["Scalar"] * 6
    name = "aten::_scaled_dot_product_flash_attention_backward"
    work = cost.operator(name, shapes, dtypes, concrete=[""] * 10 + ["0.0", "True"])
    assert (work.flops, work.skippable_flops) == (4 * 5 * 16, 5 * 16)


@pytest.mark.parametrize(
    ("name", "arguments", "causal_at", "causal", "length_first"),
    [
        ("_scaled_dot_product_flash_attention_backward", 14, 11, "True", False),
        ("_scaled_dot_product_efficient_attention_backward", 12, 11, "True", False),
        ("_scaled_dot_product_cudnn_attention_backward", 15, 14, "True", False),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", 10, 7, "True", False),
        ("_cudnn_attention_backward", 15, 14, "True", False),
        ("_flash_attention_backward", 14, 11, "True", True),
        ("_efficient_attention_backward", 16, 14, "1", True),
    ],
)
def test_every_attention_backward_has_its_flag_where_torch_has_it(
    name, arguments, causal_at, causal, length_first
):
    torch = pytest.importorskip("torch")
    named = getattr(torch.ops.aten, name).default._schema.arguments
    assert named[causal_at].name in ("is_causal", "custom_mask_type")
    q, kv = ((2, 5, 4, 8), (2, 7, 2, 8)) if length_first else ((2, 4, 5, 8), (2, 2, 7, 8))
    shapes = [q, q, kv, kv] + [()] * (arguments - 4)
    values = [""] * arguments
    values[causal_at] = causal
    work = cost.operator(f"aten::{name}", shapes, [HALF] * 4 + [""] * (arguments - 4), concrete=values)
    want = cost.attention_backward(2, 4, 5, 7, 8, "float16", causal=True, kv_heads=2)
    assert (work.cost, work.skippable_flops) == (want.cost, want.skippable_flops)


@pytest.mark.parametrize(
    ("name", "mask_at"),
    [
        ("_scaled_dot_product_efficient_attention_backward", 4),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", 8),
    ],
)
def test_a_backward_pass_reads_the_mask_again(name, mask_at):
    shapes, dtypes = [[2, 4, 5, 8]] * 4 + [[]] * 6, [FLOAT] * 4 + [""] * 6
    plain = cost.operator(f"aten::{name}", shapes, dtypes)
    shapes[mask_at], dtypes[mask_at] = [5, 5], FLOAT
    assert cost.operator(f"aten::{name}", shapes, dtypes).bytes_moved - plain.bytes_moved == 25 * 4


@pytest.mark.parametrize("size", [-1, 2.0, True, float("nan"), "3", None, 10**400])
def test_a_size_that_no_tensor_has_is_named(size):
    for make in (
        lambda: cost.matmul(4, size, 4, "float32"),
        lambda: cost.softmax(4, size, "float32"),
        lambda: cost.attention(1, 1, 4, 4, size, "float32"),
    ):
        with pytest.raises(ValueError, match=r"(k|columns|head_dim) is a whole number of 0 or more"):
            make()


def test_sizes_of_numpy_do_not_overflow():
    numpy = pytest.importorskip("numpy")
    n = numpy.int32(65536)
    assert cost.matmul(n, n, n, "float32").flops == 2 * 65536**3 > 2**31


@pytest.mark.parametrize(
    "shape", [{"a": 1}, "12", 12, [2.5, 2], ["2", "2"], [None], [10**400, 2], [2**40, 2**40], [[[2]]]]
)
def test_a_shape_that_no_tensor_has_costs_nothing_known(shape):
    assert cost.operator("aten::relu", [shape], [FLOAT]) is None


@pytest.mark.parametrize("text", ["{[]: 1}", "-" * 9000 + "1", "(" * 300, "\0", "[1", "'a'"])
def test_a_value_that_python_cannot_read_is_a_mere_text(text):
    shapes, dtypes = [[2, 3], [], []], [FLOAT, SCALAR, SCALAR]
    cost.operator("aten::sum", shapes, dtypes, concrete=["", text, text])
    assert cost.operator("aten::_softmax", shapes, dtypes, concrete=["", text, text]).kind == "reduction"


def test_a_convolution_that_stands_still_or_finds_no_room_has_no_cost():
    shapes, dtypes = [[1, 2, 4, 4], [3, 2, 3, 3], [], [], [], [], []], [FLOAT, FLOAT, *[SCALAR] * 5]
    for stride, padding in (("[0, 0]", "[0, 0]"), ("[1, 1]", "[-9, -9]")):
        values = ["", "", "", stride, padding, "[1, 1]", "1"]
        assert cost.operator("aten::conv2d", shapes, dtypes, concrete=values) is None


def test_a_norm_over_no_sizes_has_no_cost():
    shapes, dtypes = [[2, 3], [], [3], [3], []], [FLOAT, SCALAR, FLOAT, FLOAT, SCALAR]
    for text in ("[None]", "[[3]]", "[-3]"):
        values = ["", text, "", "", "1e-05"]
        assert cost.operator("aten::native_layer_norm", shapes, dtypes, concrete=values) is None


def test_attention_on_expanded_inputs_of_mixed_dtypes_moves_no_less_than_nothing():
    # q in float16 gives the size: 4 heads of v are one in memory; no kernel takes such a call, a trace may name it
    shape, shared = [1, 4, 8, 16], [512, 0, 16, 1]
    found = cost.operator(
        "aten::scaled_dot_product_attention", [shape] * 3, ["c10::Half", "c10::Half", "double"],
        strides=[[512, 128, 16, 1], [512, 128, 16, 1], shared],
    )  # fmt: skip
    # q, k, the output 512 elements each, v 128
    assert found.bytes_moved == (3 * 512 + 128) * 2
