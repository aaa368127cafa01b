"""The words of GEMMs' and convolutions' names, convention by convention; what each must say is beside it."""

import pytest

from tutorial_lib import kernel_words
from tutorial_lib.kernel_names import decode

# CUTLASS 3: accumulator's letter, instruction · types of A, B, accumulator, C, D · tile m × n × k · cluster
# · stages (0: as many as fit) · layouts of A, B, D
CUTLASS_3 = "cutlass3x_sm100_tensorop_{core}gemm_{types}_256x128x64_{cluster}{stages}_{letters}_align8_2sm"


@pytest.mark.parametrize("letter, types, dtype, accumulate", [
    ("s", "bf16_bf16_f32_bf16_bf16", "bfloat16", "float32"),
    ("s", "e4m3_e5m2_f32_f16_e4m3", "float8_e4m3fn", "float32"),  # A's type, B's differs
    ("s", "f8_f8_f32_bf16_bf16", None, "float32"),  # either 8-bit float, chosen at the launch
    ("i", "s8_s8_s32_s8_s8", "int8", "int32"),
    ("s", "ue8m0xe4m3_ue8m0xe4m3_f32_f16_f16", "float8_e4m3fn", "float32"),  # scales of type ue8m0
    ("s", "ue4m3xe2m1_ue4m3xe2m1_f32_void_bf16", "float4_e2m1fn", "float32"),
    ("c", "cf16_cf16_cf32_cf16_cf16", "complex32", "complex64"),
])
def test_cutlass_3_spells_five_types(letter, types, dtype, accumulate):
    core = f"{letter}256x128x16"
    kernel = decode(CUTLASS_3.format(core=core, types=types, cluster="", stages=0, letters="tnn"))
    assert (kernel.dtype, kernel.accumulate_dtype) == (dtype, accumulate)
    assert (kernel.tile, kernel.stages, kernel.layout, kernel.alignment) == ((256, 128, 64), None, "tn", 8)


@pytest.mark.parametrize("cluster, stages", [("", 0), ("2x1x1_", 4)])
def test_a_cluster_is_not_taken_for_a_tile_nor_the_stages_for_anything_else(cluster, stages):
    kernel = decode(CUTLASS_3.format(core="s256x128x16", types="f16_f16_f32_f16_f16", cluster=cluster,
                                     stages=stages, letters="ntn"))
    assert kernel.instruction == (256, 128, 16)
    assert (kernel.tile, kernel.stages, kernel.layout) == ((256, 128, 64), stages or None, "nt")


@pytest.mark.parametrize("name, kind, dtype, tile, layout", [
    # a convolution's types are six (the epilogue's last) or four, its layout is the order of three tensors
    ("cutlass3x_sm100_tensorop_h128x128x16implicit_gemm_deconv_f16_f16_f16_f16_f16_f16_128x128x64_dyn_cga_"
     "ndhwc_ndhwc_ndhwc_align8_1sm_relu", "other", "float16", (128, 128, 64), "ndhwc"),
    ("cutlass3x_sm100_tensorop_s64x64x16implicit_gemm_strided_dgrad_bf16_bf16_f32_bf16_bf16_f32_64x64x64_"
     "ndhwc_ndhwc_ndhwc_align8_1sm", "other", "bfloat16", (64, 64, 64), "ndhwc"),
    ("cutlass3x_sm100_tensorop_s128x128x16_conv2d_bn_apply_fprop_bn_stat_f16_f16_f32_f16_128x128x64_dyn_cga_"
     "ndhwc_ndhwc_ndhwc_relu_det_1sm", "other", "float16", (128, 128, 64), "ndhwc"),
    ("cutlass_tensorop_bf16_s16816wgrad_analytic_bf16_64x64_32x5_nhwc_align8", "other", "bfloat16",
     (64, 64, 32), "nhwc"),
    # nine products of bfloat16 pieces make one of float32
    ("cutlass3x_sm100_tensorop_s64x128x16_9xbf16gemm_f32_f32_f32_f32_f32_64x128x32_0_ttn_align4_1sm", "gemm",
     "float32", (64, 128, 32), "tt"),
    ("cutlass3x_sm120_sptensorop_s16864spgemm_e4m3_e4m3_f32_bf16_bf16_128x64x256_1x1x1_0_tnn_align32", "gemm",
     "float8_e4m3fn", (128, 64, 256), "tn"),
    # BLAS' other products: side, triangle, unit diagonal; h is a conjugated transpose
    ("cutlass_80_tensorop_z884trmm_left_lower_nonunit_128x64_16x3_hn_align1", "other", "complex128",
     (128, 64, 16), "hn"),
    ("cutlass_80_tensorop_d884syrk_upper_128x128_16x3_nt_align1", "other", "float64", (128, 128, 16), "nt"),
    ("cutlass_80_tensorop_c1688gemm_128x64_16x4_nn_align1", "gemm", "complex64", (128, 64, 16), "nn"),
    ("cutlass_80_tensorop_gz884gemm_16x32_16x3_hh_align1", "gemm", "complex128", (16, 32, 16), "hh"),
])
def test_cutlass_operations(name, kind, dtype, tile, layout):
    kernel = decode(name)
    assert (kernel.family, kernel.kind, kernel.dtype, kernel.tile, kernel.layout) == (
        "cutlass", kind, dtype, tile, layout)


# XMMA: operands and output _ factors and accumulator _ epilogue; two operands' types where they differ
XMMA = "sm90_xmma_gemm_{types}_{letters}_n_tilesize64x128x64_stage4_warpsize2x2x1_tensor16x8x16{end}"


@pytest.mark.parametrize("types, dtype, accumulate", [
    ("bf16f32_bf16f32_f32", "bfloat16", "float32"),
    ("f32f32_tf32f32_f32", "tfloat32", "float32"),  # float32 operands, multiplied as TF32
    ("f16f16_f32f32_f32", "float16", "float32"),  # float16 operands, multiplied as float32
    ("e4m3e5m2bf16_e4m3e5m2f32_f32", "float8_e4m3fn", "float32"),
    ("cf32cf32_tf32f32_cf32", "complex64", "float32"), ("cf64cf64_f64f64_cf64", "complex128", "float64"),
    ("i8i8_i8i32_f32", "int8", "int32"),
    ("ci8cf32_f32f32_cf32", None, "float32"),  # torch has no such complex numbers
])
def test_xmma_spells_its_types_in_three_groups(types, dtype, accumulate):
    kernel = decode(XMMA.format(types=types, letters="tn", end=""))
    assert (kernel.dtype, kernel.accumulate_dtype) == (dtype, accumulate)
    assert (kernel.tile, kernel.stages, kernel.layout, kernel.arch) == ((64, 128, 64), 4, "tn", "sm_90")


@pytest.mark.parametrize("end, epilogue", [
    ("", None), ("_bias_f16", "bias"), ("_bias_bf16_aux_bf16_gelu", "bias+gelu+aux"),
    ("_aux_f16_dgelu", "dgelu+aux"), ("_aux_bool_drelu", "drelu+aux"), ("_bgrada", "bias gradient"),
    ("_gelu_erf", "gelu"), ("_swish", "swish"),
])
def test_xmma_names_what_its_epilogue_can_do(end, epilogue):
    end += "_execute_segment_k_off_kernel__5x_cublas"
    assert decode(XMMA.format(types="f16f16_f16f32_f32", letters="tn", end=end)).epilogue == epilogue


@pytest.mark.parametrize("tensors, layout", [
    ("nhwckrsc_nchw", "nhwc"), ("nchwkcrs_nchw", "nchw"),
    ("nchw_vect_c_32kcrs_vect_c_32_nchw_vect_c_32", "nchw"),  # 32 channels side by side
])
def test_an_xmma_convolutions_layout_is_its_inputs(tensors, layout):
    kernel = decode(f"sm80_xmma_fprop_implicit_gemm_i8i8_i8i32_f32_{tensors}_tilesize128x64x64_stage3_g1")
    assert (kernel.kind, kernel.variant, kernel.layout) == ("other", "convolution", layout)
    assert (kernel.dtype, kernel.tile) == ("int8", (128, 64, 64))


@pytest.mark.parametrize("name, kind, dtype, tile, layout, epilogue", [
    # generation · type of the output · letter and instruction · type of the operands · tile
    ("ampere_s1688gemm_bf16_128x256_ldg8_stages_32x1_tn", "gemm", "bfloat16", (128, 256, 32), "tn", None),
    # Volta's 8×8×4 instruction takes nothing but float16
    ("volta_s884gemm_128x128_ldg8_relu_f2f_tt", "gemm", "float16", (128, 128), "tt", "relu"),
    ("turing_int32_i8816gemm_int8_256x64_ldg16_stages_64x1_nt", "gemm", "int8", (256, 64, 64), "nt", None),
    ("ampere_gzgemm_32x32_cc", "gemm", "complex128", (32, 32), "cc", None),
    ("maxwell_cgemm_64x32_upper_nc", "gemm", "complex64", (64, 32), "nc", None),
    ("openai_hgemm_32x32x32_TN_vec", "gemm", "float16", (32, 32, 32), "tn", None),
    ("sgemm_128x128x8_NT", "gemm", "float32", (128, 128, 8), "nt", None),
    # which sizes these five are is not known
    ("sgemm_sm35_ldg_nn_64x16x64x16x16", "gemm", "float32", None, "nn", None),
])
def test_older_cublas_names(name, kind, dtype, tile, layout, epilogue):
    kernel = decode(name)
    assert (kernel.family, kernel.kind, kernel.dtype, kernel.tile, kernel.layout, kernel.epilogue) == (
        "cublas", kind, dtype, tile, layout, epilogue)


@pytest.mark.parametrize("name, arch, dtype, tile", [
    ("ampere_int32_i8816cudnn_int8_128x128_ldg16_relu_interior_nt_v1", "sm_8x", "int8", (128, 128)),
    ("volta_int8x4_icudnn_int8x4_128x32_relu_medium_c32_nn_v1", "sm_70", "int8", (128, 32)),
    ("ampere_first_layer_filter3x3_imma_fwd", "sm_8x", None, None),
])
def test_cudnns_integer_convolutions(name, arch, dtype, tile):
    kernel = decode(name)
    assert (kernel.family, kernel.variant, kernel.arch, kernel.dtype, kernel.tile) == (
        "cudnn", "convolution", arch, dtype, tile)


@pytest.mark.parametrize("letters, dtype, accumulate", [
    ("tst", "bfloat16", "float32"), ("hhh", "float16", "float16"),
    ("sss", None, "float32"),  # float32 or TF32
    ("qqtst", None, "float32"), ("oohsh", "float4_e2m1fn", "float32"), ("biu", "int8", "int32"),
])
def test_nvjets_letters_are_operands_accumulator_and_output(letters, dtype, accumulate):
    kernel = decode(f"nvjet_sm120_{letters}_mma_64x128x64_8_32x64x64_tmaAB_bz_TNNN")
    # tile · stages · tile of a warp; the first two letters at the end are A's and B's
    assert (kernel.arch, kernel.tile, kernel.stages, kernel.layout) == ("sm_120", (64, 128, 64), 8, "tn")
    assert (kernel.dtype, kernel.accumulate_dtype) == (dtype, accumulate)


@pytest.mark.parametrize("name, dtype, stages, epilogue", [
    # type of the output · of A and B · accumulator
    ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_rM_TN_biasM_sm100f",
     "float4_e2m1fn", 3, "bias"),
    ("Gemm_Fp32_E4m3E4m3_Fp32_t128x16x256_s5_et128x16_m128x16x32_cga1x1x1_TN_transOut_sm100a",
     "float8_e4m3fn", 5, None),
])
def test_trtllms_generated_products(name, dtype, stages, epilogue):
    kernel = decode(name)
    assert (kernel.family, kernel.dtype, kernel.accumulate_dtype) == ("trtllm", dtype, "float32")
    assert (kernel.tile, kernel.stages) == ((128, 16, 256), stages)
    assert (kernel.layout, kernel.epilogue) == ("tn", epilogue)


# Tensile: operands, output, what it accumulates in; behind "_" whether C is added and sums are wider
@pytest.mark.parametrize("types, dtype, accumulate", [
    ("HHS_BH", "float16", "float32"), ("BBS_BH", "bfloat16", "float32"), ("B_BS_BH", "bfloat16", "float32"),
    ("SB", "float32", None), ("S_B", "float32", None), ("DB", "float64", None), ("I8II_BH", "int8", "int32"),
    ("F8B8HS_BH", "float8_e4m3fn", "float32"), ("B8F8S_BH", "float8_e5m2", "float32"),
    ("ZB", "complex128", None),
    ("S_MX_B", "tfloat32", None), ("SB_MX", "tfloat32", None),  # XF32 is AMD's TF32
])
def test_tensiles_type_codes(types, dtype, accumulate):
    kernel = decode(f"Cijk_Alik_Bljk_{types}_Bias_HA_S_SAV_UserArgs_MT64x32x64_MI16x16x1_SN_ISA950_SK0")
    assert (kernel.dtype, kernel.accumulate_dtype) == (dtype, accumulate)
    assert (kernel.layout, kernel.tile, kernel.arch) == ("tn", (64, 32, 64), "gfx950")


def test_an_eight_bit_float_is_of_amds_own_kind_where_the_gpu_has_no_other():
    name = "Cijk_Alik_Bljk_F8BS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x64_MI16x16x1_SN_ISA{}"
    assert decode(name.format(942)).dtype == "float8_e4m3fnuz"
    assert decode(name.format(950)).dtype == "float8_e4m3fn"


@pytest.mark.parametrize("end, instruction, split_k", [
    ("MI32x32x8x1_SN", (32, 32, 8), None),  # m, n, k, blocks at once
    ("MI16x16x1_SN", None, None),  # hipBLASLt leaves k out
    ("MI16x16x1_GSU4_SK0", None, True), ("MI16x16x1_GSU1_SK3", None, True),
    ("MI16x16x1_GSU0_SK0", None, None),
])
def test_tensiles_instruction_and_how_k_is_shared_out(end, instruction, split_k):
    kernel = decode(f"Cijk_Ailk_Bjlk_HHS_BH_MT64x32x64_{end}")
    assert (kernel.instruction, kernel.split_k, kernel.layout) == (instruction, split_k, "nt")


def test_a_conjugated_operand_has_its_own_letter():
    # B stored [j, l] is transposed, and C behind it says conjugated
    assert decode("Cijk_Ailk_BjlkC_CB_MT64x32x16_SN").layout == "nc"


@pytest.mark.parametrize("name, kind, dtype, tile, split_k", [
    ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32_wt32x32x8_ws1x2_wr2x2_ta1x4x1x4_gkgs", "other",
     "bfloat16", (128, 256, 32), True),
    ("igemm_v4r1_dynamic_wrw_128x128x16_8x8_4x4x4x4x4x4_16x1x16x1_16x16", "other", None, (128, 128, 16),
     None),
    ("batched_transpose_32x64_pack_2x4_ediv_1x2_half", "copy", "float16", (32, 64), None),
    ("miopenGcnAsmConv1x1WrW", "other", None, None, None),
    ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "other", "float32", None, None),
])
def test_miopens_names(name, kind, dtype, tile, split_k):
    kernel = decode(name)
    assert (kernel.family, kernel.kind, kernel.dtype, kernel.tile, kernel.split_k) == (
        "miopen", kind, dtype, tile, split_k)


@pytest.mark.parametrize("name, kind, variant, dtype, tile", [
    ("fmha_fwd_hd128_bf16_causal_group", "attention", "attention, head dimension 128, causal", "bfloat16",
     None),
    ("fmha_fwd_hd128_fp8_group", "attention", "attention, head dimension 128", None, None),  # which fp8?
    ("bf16gemm_fp32bf16_tn_96x64_splitk", "gemm", None, "bfloat16", (96, 64)),
    ("f4gemm_bf16_per1x32Fp4_BpreShuffle_96x512", "gemm", None, "float4_e2m1fn", (96, 512)),
    ("fmoe_bf16_pertokenInt8_g1u1_vs_silu_1tg_32x192", "gemm", "GEMMs of a mixture of experts", "int8",
     (32, 192)),
])
def test_aiters_assembly_is_named_in_words(name, kind, variant, dtype, tile):
    kernel = decode(f"_ZN5aiter{len(name)}{name}E.kd")
    assert (kernel.family, kernel.kind, kernel.variant, kernel.dtype, kernel.tile) == (
        "aiter", kind, variant, dtype, tile)


def test_the_four_layouts_are_told_in_words_of_both_worlds():
    # read as column-major, a row-major matrix is its transpose: w fits x @ w as it lies, W fits x @ W.t() not
    products = {"nn": "x @ w", "tn": "x @ W.t()", "nt": "g.t() @ x", "tt": "a.t() @ b.t()"}
    for letters, pytorch in products.items():
        meaning = dict(decode(f"volta_sgemm_128x64_{letters}").parts)[letters]
        assert "column-major" in meaning and f"PyTorch's {pytorch}" in meaning
    assert "conjugated" in dict(decode("ampere_cgemm_32x32_nc").parts)["nc"]


def test_a_row_is_skipped_once_its_fields_are_filled():
    # 32x64 is the tile, 16x3 the k and the stages, 2x1 fills nothing and so is what the last row says
    rows = (kernel_words.word(kernel_words.BY, "tile {0}", tile=kernel_words.integers),
            kernel_words.word(kernel_words.BY, "k {0}", k=lambda k, _: int(k)),
            kernel_words.word(kernel_words.BY, "cluster {0}"))
    said = kernel_words.spell("32x64_16x3_2x1_end", rows)
    assert said["tile"] == (32, 64, 16)
    assert [meaning for _, meaning in said["parts"]] == ["tile 32", "k 16", "cluster 2", "not documented"]
