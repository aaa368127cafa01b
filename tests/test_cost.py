import pytest

from tutorial_lib import cost
from tutorial_lib.cost import Cost

BF16, HALF, FLOAT, LONG, BOOL = "c10::BFloat16", "c10::Half", "float", "long int", "bool"
SCALAR = "Scalar"
NUMBERS = (SCALAR,) * 3


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


def test_a_lookup_reads_no_row_twice():
    # 6 indices into 4 rows of 10: at most the 4 rows are read, 6 are written
    assert cost.operator("aten::embedding", [[4, 10], [6]], [FLOAT, LONG]).bytes_moved == 48 + 4 * 10 * (
        4 + 6
    )
    args = ("aten::index_select", [[4, 10], [], [2]], [FLOAT, SCALAR, LONG])
    assert cost.operator(*args, concrete=["", "1", ""]).bytes_moved == 16 + 4 * 4 * (2 + 2)


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "concrete", "moved"),
    [
        # 6 indices into 4 rows of 10: at most the 4 rows are added to
        ("embedding_dense_backward", [[6, 10], [6], [], [], []], [FLOAT, LONG, *NUMBERS],
         ["", "", "4", "-1", "False"], 48 + 60 * 4 + 40 * 4),
        # an element for each of 15 indices; adding reads what is there, too; source has more than it takes
        ("scatter_", [[4, 10], [], [3, 5], [3, 5]], [FLOAT, SCALAR, LONG, FLOAT], None, 120 + 15 * 4 * 2),
        ("scatter_", [[4, 10], [], [3, 5], []], [FLOAT, SCALAR, LONG, SCALAR], None, 120 + 15 * 4),
        ("scatter_add_", [[4, 10], [], [3, 5], [4, 5]], [FLOAT, SCALAR, LONG, FLOAT], None, 120 + 15 * 4 * 3),
        # 50 indices of 4 places: no more than 4 are touched
        ("scatter_add_", [[4], [], [50], [50]], [FLOAT, SCALAR, LONG, FLOAT], None, 400 + 200 + 2 * 16),
        # 3 slices of 10
        ("index_add_", [[4, 10], [], [3], [3, 10], []], [FLOAT, SCALAR, LONG, FLOAT, SCALAR],
         ["", "0", "", "", "1"], 24 + 120 * 3),
        ("index_copy_", [[4, 10], [], [3], [3, 10]], [FLOAT, SCALAR, LONG, FLOAT], ["", "0", "", ""],
         24 + 120 * 2),
        ("index_fill_", [[4, 10], [], [3], []], [FLOAT, SCALAR, LONG, SCALAR], ["", "-1", "", "0"], 24 + 48),
        # 2·3 places of x[indices], each a row of 10; there are only 4 to read
        ("index", [[4, 10], [[2, 3]]], [FLOAT, [LONG]], ["", ""], 48 + (40 + 60) * 4),
        # x[:, i, j]: one element of each of 4 rows for each of 5 pairs
        ("index", [[4, 10, 10], [[], [5], [5]]], [FLOAT, ["", LONG, LONG]], ["", ""], 80 + 2 * 20 * 4),
        ("index_put_", [[4, 10], [[3]], [3, 10], []], [FLOAT, [LONG], FLOAT, SCALAR],
         ["", "", "", "False"], 24 + 120 * 2),
        ("index_put_", [[4, 10], [[3]], [10], []], [FLOAT, [LONG], FLOAT, SCALAR],
         ["", "", "", "True"], 24 + 40 + 120 * 2),
        # a trace has no indices: rows of values are taken for one to a place, of which there are 4
        ("_index_put_impl_", [[4, 10], [], [6, 10], [], []], [FLOAT, "", FLOAT, SCALAR, SCALAR],
         ["", "", "", "False", "False"], 60 * 4 + 40 * 4),
    ],
)  # fmt: skip
def test_lookups_touch_each_place_that_they_can_name_once(name, shapes, dtypes, concrete, moved):
    work = cost.operator(f"aten::{name}", shapes, dtypes, concrete=concrete)
    assert (work.kind, work.bytes_moved, work.flops) == ("other", moved, 0)


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "concrete"),
    [
        ("index", [[4, 10], []], [FLOAT, ""], ["", ""]),  # by which indices?
        ("index", [[4, 10], [[4, 10]]], [FLOAT, [BOOL]], ["", ""]),  # how many are True?
        ("index", [[4], [[2], [2]]], [FLOAT, [LONG, LONG]], ["", ""]),  # more indices than dimensions
        # is one row written to many places?
        ("_index_put_impl_", [[4, 10], [], [10], [], []], [FLOAT, "", FLOAT, SCALAR, SCALAR],
         ["", "", "", "False", "False"]),
        ("_index_put_impl_", [[4, 10], [], [1, 10], [], []], [FLOAT, "", FLOAT, SCALAR, SCALAR],
         ["", "", "", "False", "False"]),
        ("index_put_", [[4, 10], [[3]], [3, 10], []], [FLOAT, [LONG], FLOAT, SCALAR], ["", "", "", ""]),
        ("index_add_", [[4, 10], [], [3], [3, 10]], [FLOAT, SCALAR, LONG, FLOAT], None),  # which dimension?
        ("topk", [[4, 10], [], []], [FLOAT, SCALAR, SCALAR], None),  # how many?
        ("histc", [[4, 10], []], [FLOAT, SCALAR], None),
        ("arange", [[], [], [], [0]], [SCALAR, SCALAR, SCALAR, LONG], None),
        ("arange", [[], [], [], [0]], [SCALAR, SCALAR, SCALAR, LONG], ["0", "9", "0", ""]),
        ("kthvalue", [[4, 10], [], [], []], [FLOAT, *[SCALAR] * 3], ["", "3", "-1", "False"]),
        ("nonzero", [[4, 10]], [FLOAT], [""]),
        ("_local_scalar_dense", [[2]], [FLOAT], [""]),
    ],
)  # fmt: skip
def test_what_hangs_on_values_that_were_not_recorded_has_no_cost(name, shapes, dtypes, concrete):
    assert cost.operator(f"aten::{name}", shapes, dtypes, concrete=concrete) is None


def test_indices_are_recorded_as_torch_dispatches_them():
    torch, dispatch = pytest.importorskip("torch"), pytest.importorskip("tutorial_lib.dispatch")
    x, i = torch.zeros(4, 10, 10), torch.tensor([0, 1, 2])
    (row,) = dispatch.operators(lambda x, i: x[:, i, i], x, i).query("works").itertuples()
    # reads and writes an element for each of 4 · 3, and 2 · 3 indices
    found = cost.operator(row.operator, row.shapes, row.dtypes, concrete=row.concrete)
    assert found.bytes_moved == 2 * 12 * 4 + 6 * 8


def test_sorting_and_choosing_write_values_and_indices():
    def rows(name, *concrete):
        dtypes = [FLOAT, *[SCALAR] * len(concrete)]
        work = cost.operator(
            f"aten::{name}", [[4, 10], *[[]] * len(concrete)], dtypes, concrete=["", *concrete]
        )
        return work.kind, work.bytes_moved, work.rows

    # all 40 read; a value and an int64 index for each of them, or for 3 of each row
    assert rows("sort", "-1", "False") == ("reduction", 40 * 4 + 40 * 12, 4)
    assert rows("sort", "True", "0", "False") == ("reduction", 40 * 4 + 40 * 12, 10)  # the stable overload
    assert rows("topk", "3", "1", "True", "True") == ("reduction", 40 * 4 + 12 * 12, 4)
    assert rows("topk", "3", "0", "True", "True") == ("reduction", 40 * 4 + 30 * 12, 10)
    assert rows("histc", "7", "0", "1") == ("reduction", 40 * 4 + 7 * 4, 1)
    assert rows("_logcumsumexp", "1") == ("reduction", 2 * 40 * 4, 4)


def test_two_results_of_a_reduction_are_both_written():
    args = ("aten::var_mean", [[4, 10], [], [], []], [FLOAT, "ScalarList", SCALAR, SCALAR])
    assert cost.operator(*args, concrete=["", "[1]", "1", "False"]).bytes_moved == 40 * 4 + 2 * 4 * 4
    args = ("aten::aminmax", [[4, 10], [], []], [FLOAT, "", SCALAR])
    assert cost.operator(*args, concrete=["", "", "False"]).bytes_moved == 40 * 4 + 2 * 4


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "concrete", "moved"),
    [
        # ceil((9 - 2) / 3) = 3 numbers of 8 bytes, written into a tensor that is still empty
        ("arange", [[], [], [], [0]], [SCALAR, SCALAR, SCALAR, LONG], ["2", "9", "3", ""], 24),
        ("arange", [[], [0]], [SCALAR, FLOAT], ["4.5", ""], 20),
        ("exponential_", [[8], [], []], [FLOAT, SCALAR, ""], None, 32),
        ("_local_scalar_dense", [[]], [FLOAT], [""], 8),
        ("pixel_shuffle", [[2, 4, 3, 3], []], [FLOAT, SCALAR], ["", "2"], 2 * 72 * 4),
    ],
)
def test_numbers_are_written_and_one_goes_to_the_host(name, shapes, dtypes, concrete, moved):
    work = cost.operator(f"aten::{name}", shapes, dtypes, concrete=concrete)
    assert (work.kind, work.bytes_moved) == ("copy", moved)


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "moved"),
    [
        (
            "mse_loss",
            [[8], [8], []],
            [FLOAT, FLOAT, SCALAR],
            3 * 32,
        ),  # the mean of it is an operator of its own
        ("mse_loss_backward", [[], [8], [8], []], [FLOAT, FLOAT, FLOAT, SCALAR], 3 * 32),
        ("binary_cross_entropy", [[8], [8], [8], []], [FLOAT, FLOAT, FLOAT, SCALAR], 4 * 32),
        ("log_sigmoid_forward", [[8]], [FLOAT], 2 * 32),
        ("glu", [[2, 8], []], [FLOAT, SCALAR], 64 + 32),
        ("_prelu_kernel_backward", [[2, 8], [2, 8], [8]], [FLOAT] * 3, 64 * 2 + 32 + 2 * 64),
        ("_masked_scale", [[8], [8], []], [FLOAT, "unsigned char", SCALAR], 32 + 8 + 32),
        ("_fused_dropout", [[8], [], []], [FLOAT, SCALAR, ""], 32 + 32 + 8),
    ],
)
def test_losses_and_gates_are_pointwise(name, shapes, dtypes, moved):
    work = cost.operator(f"aten::{name}", shapes, dtypes)
    assert (work.kind, work.bytes_moved) == ("pointwise", moved)


@pytest.mark.parametrize(
    ("name", "lists", "rest", "passes"),
    [
        ("_foreach_add_", 2, [SCALAR], 3),
        ("_foreach_mul_", 1, [SCALAR], 2),
        ("_foreach_sqrt", 1, [], 2),
        ("_foreach_addcdiv_", 3, [SCALAR], 4),
        ("_foreach_lerp_", 2, [SCALAR], 3),
        ("_foreach_copy_", 2, [SCALAR], 2),
        ("_foreach_zero_", 1, [], 1),
        ("_amp_foreach_non_finite_check_and_unscale_", 1, [FLOAT, FLOAT], 2),
    ],
)
def test_an_operator_on_lists_costs_what_it_does_on_each_tensor(name, lists, rest, passes):
    # 12 + 5 = 17 elements in each list
    shapes, dtypes = [[[3, 4], [5]]] * lists, [[FLOAT, FLOAT]] * lists
    work = cost.operator(f"aten::{name}", shapes + [[]] * len(rest), dtypes + rest)
    assert (work.bytes_moved, work.flops) == (passes * 17 * 4, 0)
    assert work.shapes == ((17,),) * lists  # as one long tensor each


def test_a_list_of_norms_is_a_number_for_each_tensor():
    shapes, dtypes = [[[3, 4], [5]], [], []], [[FLOAT, FLOAT], SCALAR, ""]
    work = cost.operator("aten::_foreach_norm", shapes, dtypes)
    assert (work.kind, work.bytes_moved, work.rows) == ("reduction", 17 * 4 + 2 * 4, 2)


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        ([[[3], [4]], [[3]]], [[FLOAT, FLOAT], [FLOAT]]),  # lists of two lengths
        ([[[3], [4]], [[3], [5]]], [[FLOAT, FLOAT], [FLOAT, FLOAT]]),  # 4 and 5 do not fit
        ([[[3], [4]], [[3], [4]]], ["TensorList", "TensorList"]),  # of which dtypes?
        ([[3], [3]], [FLOAT, FLOAT]),  # no lists
    ],
)
def test_lists_that_do_not_fit_have_no_cost(shapes, dtypes):
    assert cost.operator("aten::_foreach_add_", shapes, dtypes) is None


def test_groups_of_a_product_share_its_rows_columns_or_contraction():
    def grouped(a, b, offsets=(3,), to=""):
        dtypes = [BF16, BF16, "int" if offsets else "", "", SCALAR if to else ""]
        work = cost.operator(
            "aten::_grouped_mm", [a, b, offsets, [], []], dtypes, concrete=["", "", "", "", to]
        )
        return work and (work.flops, work.bytes_moved)

    # 10 rows [., 4] among three [4, 5]: 2·10·4·5 FLOPs; 40 + 60 elements read, 50 written
    assert grouped((10, 4), (3, 4, 5)) == (400, 2 * (40 + 60 + 50))
    assert grouped((10, 4), (3, 4, 5), to="6") == (400, 2 * (40 + 60) + 4 * 50)
    # three [10, 4] and 5 columns among them
    assert grouped((3, 10, 4), (4, 5)) == (400, 2 * (120 + 20 + 50))
    # a result [10, 5] for each of three parts of the contraction over 4
    assert grouped((10, 4), (4, 5)) == (400, 2 * (40 + 20 + 3 * 50))
    # a batch of three needs no ends
    assert grouped((3, 10, 4), (3, 4, 5), ()) == (1200, 2 * (120 + 60 + 150))
    assert grouped((10, 4), (3, 6, 5)) is None and grouped((10, 4), (3, 4, 5), ()) is None
    assert cost.multiplies("aten::_grouped_mm") and cost.multiplies("aten::convolution_backward")
    assert not cost.multiplies("aten::native_batch_norm") and not cost.multiplies("aten::_foreach_add_")
    assert cost.multiplies("aten::_foreach_mm")  # it has no rule, and may


def test_dropout_works_only_in_training():
    args = ("aten::native_dropout", [[8], [], []], [FLOAT, SCALAR, SCALAR])
    assert cost.operator(*args, concrete=["", "0.1", "True"]).bytes_moved == 8 * (4 + 4 + 1)
    assert cost.operator(*args, concrete=["", "0.1", "False"]) is None


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


def test_flops_of_attention_backward_equal_the_counter():
    pytest.importorskip("torch")
    from torch.utils.flop_counter import sdpa_backward_flop_count

    q, k = (2, 3, 4, 8), (2, 3, 16, 8)
    name = "aten::_scaled_dot_product_flash_attention_backward"
    work = cost.operator(name, [q, q, k, k], [HALF] * 4)
    assert work.flops == sdpa_backward_flop_count(q, q, k, k)


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


def test_attention_on_expanded_inputs_of_mixed_dtypes_moves_no_less_than_nothing():
    # q in float16 gives the size: 4 heads of v are one in memory; no kernel takes such a call, a trace may name it
    shape, shared = [1, 4, 8, 16], [512, 0, 16, 1]
    found = cost.operator(
        "aten::scaled_dot_product_attention", [shape] * 3, ["c10::Half", "c10::Half", "double"],
        strides=[[512, 128, 16, 1], [512, 128, 16, 1], shared],
    )  # fmt: skip
    # q, k, the output 512 elements each, v 128
    assert found.bytes_moved == (3 * 512 + 128) * 2
