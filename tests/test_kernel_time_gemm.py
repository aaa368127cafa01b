import dataclasses
import math

import pytest

from tutorial_lib import cost
from tutorial_lib import kernel_time_gemm as gemm
from tutorial_lib.hardware import CARDS, Hardware, find
from tutorial_lib.kernel_time import Ran, Tensor
from tutorial_lib.kernel_time_gemm import TERMS, Card, Kernel, Problem, estimate

A100 = find("A100")
# 10 SMs at 1 TFLOP/s and 1 TB/s: an SM does 0.1 MFLOP in a µs, memory moves 1 MB
TEN = Hardware("ten", "cuda", {"float32": 1e12, "float16": 1e12}, 1e12, 1.0, None, 10, None, "made up")
WHOLE = Card(1.0, 1.0, 1.0, 2.0)
PLAIN = {**gemm.FORM, "tensor.small": 0.0, "tensor.ends": 0.0}


def product(m, n, k, batch=1, dtype="float16"):
    return Problem(batch, m, n, k, 2, 0, dtype)  # no bytes: only the arithmetic is looked at


def time_us(what, kernel, terms=frozenset({"tiles and waves"}), form=PLAIN):
    return gemm.time_us(what, kernel, WHOLE, TEN, terms, form)


def test_a_tile_too_many_costs_a_whole_round():
    tile = Kernel("tensor", (100, 100, 10))
    # one block does 2·100·100·50 = 1 MFLOP in 10 µs; 10 blocks fill the 10 SMs once, 11 take two rounds
    assert time_us(product(1000, 100, 50), tile) == pytest.approx(10)
    assert time_us(product(1001, 100, 50), tile) == pytest.approx(20)
    assert time_us(product(100, 100, 50, batch=10), tile) == pytest.approx(10)


def test_outputs_are_rounded_up_to_tiles_and_k_to_its_steps():
    # one row of one tile costs the tile: 10 µs as above; k = 41 takes 5 steps of 10, as 50 does
    assert time_us(product(1, 100, 41), Kernel("tensor", (100, 100, 10))) == pytest.approx(10)


def test_a_blocks_start_and_end_count_as_steps_of_k():
    # 50 steps of k and 25 for its start and end: 10 µs · 75 / 50
    form = {**PLAIN, "tensor.ends": 25.0}
    assert time_us(product(1000, 100, 50), Kernel("tensor", (100, 100, 10)), form=form) == pytest.approx(15)


def test_splitting_k_fills_the_sms_that_one_tile_leaves_idle():
    one = product(100, 100, 1000)
    kernel = Kernel("tensor", (100, 100, 10), splits=(1, 2))
    # one block: 20 MFLOP at 0.1 MFLOP/µs; two share k, and 4 B · 2 · 10⁴ parts are
    # written and read at 2 TB/s: 0.08 µs
    assert time_us(one, kernel) == pytest.approx(200)
    assert time_us(one, kernel, frozenset({"tiles and waves", "split-K"})) == pytest.approx(100.08)


def test_a_product_split_by_its_name_cannot_be_whole():
    kernel = Kernel("tensor", (100, 100, 10), splits=(2,), helpers=1)
    assert time_us(product(100, 100, 10), kernel, frozenset({"tiles and waves", "split-K"})) < math.inf


def test_every_helper_kernel_costs_a_part_of_a_start():
    both = {"fixed cost"}
    alone, helped = (time_us(product(100, 100, 10), Kernel("tensor", (100, 100, 10), helpers=h), both) for h in (0, 2))
    # the card starts a kernel in 2 µs
    assert helped - alone == pytest.approx(2 * gemm.FORM["helper"] * 2.0)


def test_the_slower_of_arithmetic_and_traffic_decides():
    what = dataclasses.replace(product(1000, 1000, 1000), bytes_moved=3 * 10**9)
    # 2 GFLOP at 1 TFLOP/s take 2000 µs, 3 GB at 1 TB/s 3000
    assert time_us(what, Kernel("tensor", (100, 100, 10))) == pytest.approx(3000)


@pytest.mark.parametrize("tile", [(256, 128, 32), (128, 64, 64), (32, 32, 64)])
def test_more_work_is_never_faster_with_the_same_tile(tile):
    card, kernel = gemm.CARDS[A100.name], Kernel("tensor", tile)
    sizes = [64, 65, 128, 300, 1000, 1024, 4096, 5000]
    for grow in ("m", "n", "k", "batch"):
        base = Problem(4, 512, 512, 512, 2, 10**6, "float16")
        found = [gemm.time_us(dataclasses.replace(base, **{grow: s}), kernel, card, A100) for s in sizes]
        assert found == sorted(found), grow


def test_the_kernels_name_says_tile_path_and_alignment():
    def named(name):
        return gemm.of_name(name, (9, 0))

    # cuBLAS writes columns of the row-major output first
    assert named("ampere_bf16_s16816gemm_bf16_128x64_ldg8_relu_f2f_stages_64x3_tn").tile == (128, 64, 64)
    assert named("ampere_sgemm_128x64_tn").path == "cores" and named("volta_sgemm_32x32_sliced1x4_nt").path == "cores"
    wmma = "void cutlass::Kernel<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align2>(cutlass_80_wm"
    assert (named(wmma).path, named(wmma).aligned) == ("warp", 2)
    assert named("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublas").vector == "gemmSN_TN"
    assert named("Memset (Device)") is None and named("void splitKreduce_kernel<32, 16, int, float>") is None
    # on a Hopper card a kernel made for Ampere reaches less
    assert named("ampere_bf16_s16816gemm_bf16_128x64_ldg8_relu_f2f_stages_64x3_tn").old_generation
    assert not named("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1").old_generation
    cutlass = (  # which writes generations its own way
        "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective13"
        "CollectiveMmaINS1_35MainloopSm100TmaUmmaWarpSpecializedILi6ELi8ELi2ENS5_IJNS4_1CILi2EEENSA_ILi1EEE"
        "SC_EEEEENS5_IJNSA_ILi256EEESF_NSA_ILi64EEEEEENS_10bfloat16_tE"
    )
    assert named(cutlass).old_generation and not gemm.of_name(cutlass, (10, 0)).old_generation


def test_groups_are_sized_as_one_product():
    # 10 rows [., 4] among three [4, 5], each row with one of them
    work = cost.operator("aten::_grouped_mm", [[10, 4], [3, 4, 5], [3], [], []],
                         ["float16", "float16", "int", "", ""])  # fmt: skip
    what = gemm.problem(work)
    assert (what.batch, what.m, what.n, what.k) == (1, 10, 5, 4) and what.flops == work.flops


def test_both_gradients_of_a_convolution_are_sized_as_one_product_twice_as_tall():
    # 2·6·6 places of 6 channels, kernels of 4·9 inputs: [72, 36] @ [36, 6], for the input and for the weight
    shapes = [[2, 6, 6, 6], [2, 4, 8, 8], [6, 4, 3, 3], *[[]] * 8]
    values = ["", "", "", "[6]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    dtypes = ["float16"] * 3 + ["Scalar"] * 8
    work = cost.operator("aten::convolution_backward", shapes, dtypes, concrete=values)
    what = gemm.problem(work)
    assert (what.m, what.n, what.k, what.flops) == (2 * 72, 6, 36, work.flops)


def test_the_helpers_around_a_product_say_whether_k_was_split():
    what = gemm.problem(cost.matmul(64, 1024, 256, "float16"))
    gemm_name, sums = "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn", "splitKreduce_kernel<32>"
    split = gemm.ran_kernel([Ran(gemm_name), Ran(sums)], what, A100)
    assert 1 not in split.splits and split.helpers == 1
    assert gemm.ran_kernel([Ran(gemm_name)], what, A100).splits == (1,)
    assert 1 in gemm.ran_kernel([Ran("Memset (Device)"), Ran(gemm_name)], what, A100).splits
    assert gemm.ran_kernel([Ran("some_kernel_of_somebody")], what, A100) is None


def test_a_known_grid_says_how_often_k_was_split():
    what = gemm.problem(cost.matmul(256, 4096, 128, "float16"))
    name = "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn"
    # 128 / 64 · 256 / 64 = 8 tiles: a grid of 2 × 4 × 6 blocks splits k in 6; one of 4 blocks takes tile after tile
    assert gemm.ran_kernel([Ran(name, (2, 4, 6))], what, A100).splits == (6,)
    assert gemm.ran_kernel([Ran(name, (2, 4, 1))], what, A100).splits == (1,)
    assert gemm.ran_kernel([Ran(name, (4, 1, 1))], what, A100).splits == (1,)


def test_a_grid_on_an_amd_card_counts_threads_and_says_nothing_of_splits():
    # 1024 / 256 · 1024 / 256 = 16 tiles: 16 blocks of 256 threads are a grid of 4096 there, and no split in 256
    name = "Cijk_Ailk_Bljk_BBS_BH_MT256x256x32_MI32x32x8x1_SN_1LDSB1_APM1"
    what = gemm.problem(cost.matmul(1024, 512, 1024, "bfloat16"))
    kernel = gemm.ran_kernel([Ran(name, (4096, 1, 1))], what, find("MI300X"))
    assert kernel == gemm.ran_kernel([Ran(name)], what, find("MI300X")) and 256 not in kernel.splits


def test_odd_sizes_cannot_be_loaded_sixteen_bytes_at_a_time():
    def aligned(m, k, n, dtype, *strides):
        shapes = ((m, k), (k, n))
        inputs = [Tensor(shape, dtype, stride) for shape, stride in zip(shapes, strides or (None, None))]
        return gemm.problem(cost.matmul(m, k, n, dtype), inputs).aligned

    assert aligned(7, 64, 128, "float16") == 8 and aligned(8, 17, 128, "float16") == 1
    assert aligned(8, 64, 66, "float16") == 2 and aligned(8, 64, 64, "float32") == 4
    # a weight [n, k] read transposed: both factors have rows of k = 64, the output rows of n = 66
    assert aligned(8, 64, 66, "float16", (64, 1), (1, 64)) == 2
    unaligned, whole = (estimate(cost.matmul(2048, k, 2048, "float16"), A100).typical_us for k in (2047, 2048))
    assert unaligned > 1.5 * whole


def test_sizes_are_read_from_every_operator_that_multiplies():
    linear = cost.operator("aten::linear", [[2, 8, 16], [32, 16], [32]], ["float", "float", "float"])
    conv = cost.operator("aten::conv2d", [[4, 3, 8, 8], [16, 3, 3, 3], [], [], [], [], []],
                         ["float", "float", "", "", "", "", ""],
                         concrete=["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"])  # fmt: skip
    vector = cost.operator("aten::mv", [[64, 32], [32]], ["float", "float"])
    for work, sizes in (
        (cost.matmul(2, 3, 4, "float32", batch=5), (5, 2, 4, 3)),
        (cost.addmm(2, 3, 4, "float32", bias_elements=4), (1, 2, 4, 3)),
        (linear, (1, 16, 32, 16)),
        (conv, (1, 4 * 8 * 8, 16, 27)),
        (vector, (1, 64, 1, 32)),
    ):
        what = gemm.problem(work)
        assert (what.batch, what.m, what.n, what.k) == sizes and what.flops == work.flops
    with pytest.raises(ValueError, match="copy_ is no matrix product"):
        gemm.problem(cost.copy(10, "float32"))


def test_terms_join_one_after_the_other_and_add_up():
    work = cost.addmm(1024, 1024, 1024, "float16", bias_elements=1024)
    whole = estimate(work, A100)
    assert list(whole.terms)[0] == "roofline" and set(whole.terms) == TERMS | {"roofline"}
    assert math.fsum(whole.terms.values()) == pytest.approx(whole.typical_us)
    without = estimate(work, A100, terms=TERMS - {"fixed cost"})
    assert "fixed cost" not in without.terms and without.typical_us < whole.typical_us
    assert estimate(work, A100, terms=frozenset()).typical_us == pytest.approx(whole.limit_us)
    assert set(gemm.MEANING) == set(whole.terms)


def test_edges_are_in_order_on_every_card():
    for card in CARDS:
        for work in (cost.matmul(64, 64, 64, "float32"), cost.matmul(4096, 4096, 4096, "float16"),
                     cost.matmul(1, 4096, 4096, "float16"), cost.matmul(2, 64, 512, "float16", batch=64)):
            found = estimate(work, card)
            assert 0 < found.limit_us <= found.low_us <= found.typical_us < found.high_us, (card.name, work)


def test_a_card_without_data_takes_after_its_like_with_a_wider_band():
    work, h200, other = cost.matmul(4096, 4096, 4096, "float16"), find("H200"), find("L4")
    assert h200.name not in gemm.CARDS and other.name not in gemm.CARDS
    card, source = gemm.card_for(h200)
    assert card.tensor == pytest.approx(gemm.CARDS["H100 SXM"].tensor) and "H100 SXM" in source
    assert "all cards" in gemm.card_for(other)[1]
    known, unknown = (estimate(work, on) for on in (find("H100"), h200))
    assert unknown.high_us / unknown.low_us > known.high_us / known.low_us


def test_measured_rates_are_what_the_largest_tile_reaches():
    mine = dataclasses.replace(A100, measured=True)
    work = cost.matmul(8192, 8192, 8192, "float16")
    # 10⁶ µs · 2·8192³ FLOPs / 312 TFLOP/s = 3524 µs; rounds, starts and ends come on top
    assert 3524 <= estimate(work, mine).typical_us < 1.25 * 3524
    assert "measured on this machine" in estimate(work, mine).source


@pytest.mark.parametrize("tile", ["128x0", "0x128", "0x0"])
def test_a_name_with_an_empty_tile_says_nothing_about_the_tile(tile):
    work = cost.matmul(512, 512, 512, "bfloat16")
    named = estimate(work, A100, ran=[Ran(f"cutlass_80_tensorop_bf16_s16816gemm_bf16_{tile}_32x4_nn_align8", (9, 9, 1))])
    assert named.typical_us == estimate(work, A100).typical_us
