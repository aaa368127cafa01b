"""Names as profilers print them; what each must say is written beside it."""

from dataclasses import replace

import pytest

from tutorial_lib.kernel_names import decode, list_dtypes

LINEAR = "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align8"
GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl("
    "at::TensorIteratorBase&, at::native::GeluType)::{lambda()#1}::operator()() const::{lambda()#4}::"
    "operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, X)"
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 64, 4, false, "
    "false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 64, 4, cutlass::bfloat16_t> >, "
    "false, {causal}, false, false, false, true, false, false>(pytorch_flash::Flash_fwd_params)"
)
CUDNN = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_6_128x64x64_4x1x1_cga1x1x1_kernel0_0"

# name -> family, arch, dtype, accumulate_dtype, layout, tile, stages
GEMMS = {
    LINEAR: ("cutlass", "sm_80", "bfloat16", "float32", "tn", (32, 32, 32), 1),
    "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x256_32x3_nn_align8>(cutlass_80":
        ("cutlass", "sm_80", "float16", "float32", "nn", (128, 256, 32), 3),
    "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16":
        ("cutlass", "sm_80", "int8", "int32", "tn", (256, 128, 64), 3),
    "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1":
        ("cutlass", "sm_75", "bfloat16", "float32", "nn", (128, 128), None),
    "cutlass_80_simt_sgemm_128x32_8x5_nt_align1":
        ("cutlass", "sm_80", "float32", "float32", "nt", (128, 32, 8), 5),
    "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1":
        ("cutlass", "sm_80", "float64", "float64", "nn", (64, 64, 16), 4),
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_tnn_align8_pingpong":
        ("cutlass", "sm_90", "bfloat16", "float32", "tn", (128, 128, 64), None),
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn":
        ("cublas", "sm_8x", "bfloat16", "float32", "nn", (128, 256, 64), 3),
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn":
        ("cublas", "sm_8x", "bfloat16", "float32", "tn", (128, 128, 32), 5),
    "turing_fp16_s1688gemm_fp16_128x256_ldg8_f2f_stages_32x1_nt":
        ("cublas", "sm_75", "float16", "float32", "nt", (128, 256, 32), 1),
    "volta_sgemm_128x64_nn": ("cublas", "sm_70", "float32", "float32", "nn", (128, 64), None),
    "ampere_h1688gemm_128x128_ldg8_stages_32x1_tn":
        ("cublas", "sm_8x", "float16", "float16", "tn", (128, 128, 32), 1),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1_execute_kernel__5x_cublas":
        ("xmma", "sm_90", "bfloat16", "float32", "tn", (128, 64, 64), None),
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT":
        ("nvjet", None, "bfloat16", "float32", "nt", (128, 256, 64), 4),
    "nvjet_sm120_tst_mma_64x32x64_8_16x32x64_tmaAB_alignCD4_bz_TNNN":
        ("nvjet", "sm_120", "bfloat16", "float32", "tn", (64, 32, 64), 8),
    "Cijk_Ailk_Bljk_BBS_BH_MT128x64x32_MI32x32x8x1_SN_1LDSB0_ISA90a_K1":
        ("tensile", "gfx90a", "bfloat16", "float32", "nn", (128, 64, 32), None),
}


@pytest.mark.parametrize("name", GEMMS)
def test_a_gemm_name_gives_its_fields(name):
    k = decode(name)
    assert k.kind == "gemm"
    assert (k.family, k.arch, k.dtype, k.accumulate_dtype, k.layout, k.tile, k.stages) == GEMMS[name]


def test_the_kernel_of_a_linear_layer_reads_as_one_line():
    assert str(decode(LINEAR)) == (
        "CUTLASS GEMM for sm_80, bfloat16 in, float32 accumulate, tile 32×32×32, 1 stage, operands TN, "
        "aligned to 8 elements"
    )


@pytest.mark.parametrize("name", [n for n, said in GEMMS.items() if "::" not in n and said[0] != "tensile"])
def test_the_parts_of_a_gemm_name_spell_all_of_it_in_order(name):
    spelled = "".join(token for token, _ in decode(name).parts)
    assert spelled.replace("_", "") == name.replace("_", "")


def test_the_letters_of_a_linear_layers_kernel_are_explained_one_by_one():
    meanings = dict(decode(LINEAR).parts)
    assert meanings["161616"] == "tensor-core instruction 16×16×16 (m×n×k)"
    assert meanings["s"] == "accumulates in float32"
    # 32x1: the tile advances 32 along k at a time, one piece in flight
    assert meanings["32x1"].startswith("takes 32 along k at a time, in 1 stage ")
    assert "A is read transposed" in meanings["tn"] and "nn.Linear" in meanings["tn"]
    assert decode(LINEAR).instruction == (16, 16, 16)


def test_a_float32_gemm_on_tensor_cores_multiplies_tf32():
    # no type is spelled, so operands are float32 like the accumulator; the 16×8×8 instruction takes TF32
    on_tensor_cores = decode("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4")
    on_cuda_cores = decode("ampere_sgemm_128x64_tn")
    assert (on_tensor_cores.dtype, on_cuda_cores.dtype) == ("tfloat32", "float32")
    assert decode("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32_cublas").dtype == "tfloat32"
    # the same instruction with a spelled type is not TF32
    assert decode("turing_fp16_s1688gemm_fp16_128x128_ldg8_relu_f2f_tn").dtype == "float16"


def test_relu_in_a_name_is_what_the_epilogue_can_do():
    kernel = decode("ampere_bf16_s16816gemm_bf16_128x128_ldg8_relu_f2f_stages_32x5_tn")
    assert kernel.epilogue == "relu"
    assert "plain matmuls" in dict(kernel.parts)["relu"]
    assert decode("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_bias_TNN").epilogue == "bias"
    both = "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_64x64x16_1x1x1_3_tnn_align1_bias_f32_relu"
    assert decode(both).epilogue == "bias+relu"
    assert decode("volta_sgemm_128x64_nn").epilogue is None


def test_nvjet_types_are_operands_accumulator_output_and_fp8_stays_unnamed():
    kernel = decode("nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT")
    assert (kernel.dtype, kernel.accumulate_dtype, kernel.split_k) == ("float16", "float32", True)
    assert ("s", "output: float32") in kernel.parts
    assert decode("nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_TNT").dtype is None  # e4m3 or e5m2?
    assert decode("nvjet_sss_tf32_128x256_64x4_1x2_h_bz_TNT").dtype == "tfloat32"


def test_matrix_times_vector_gives_its_letter_and_types():
    gemv = decode("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 2, 4, false>(X)")
    assert (gemv.kind, gemv.layout, gemv.dtype, gemv.accumulate_dtype) == ("gemm", "t", "float16", "float32")
    assert decode("void gemmSN_TN_kernel_64addr<float, 128, 16, 2, 4, 8, 9, false>(X)").layout == "tn"


def test_the_sum_after_a_split_k_gemm_is_a_reduction():
    total = decode("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true>(X)")
    assert (total.family, total.kind, total.dtype) == ("cublas", "reduction", "float32")
    mixed = decode("void splitKreduce_kernel<32, 16, int, __nv_bfloat16, __nv_bfloat16, float>(X)")
    assert mixed.dtype is None  # which of the two types is the operands' is not documented


def test_an_inductor_kernel_lists_the_operators_it_fuses():
    kernel = decode("triton_poi_fused__unsafe_view_gelu_mul_0")
    assert (kernel.family, kernel.kind) == ("triton", "pointwise")
    assert kernel.operators == ("_unsafe_view", "gelu", "mul")
    assert str(kernel) == "Triton pointwise kernel, _unsafe_view + gelu + mul"


@pytest.mark.parametrize("name, kind, operators", [
    ("triton_per_fused_add_native_layer_norm_17", "reduction", ("add", "native_layer_norm")),
    ("triton_red_fused_native_layer_norm_native_layer_norm_backward_2", "reduction",
     ("native_layer_norm", "native_layer_norm_backward")),
    ("triton_poi_fused__to_copy_clamp_div_5_0d1d2d3de", "pointwise", ("_to_copy", "clamp", "div")),
    ("triton_poi_fused_constant_pad_nd_moe_forward_0", "pointwise", ("constant_pad_nd", "moe_forward")),
    ("triton_tem_fused_addmm_3", "gemm", ("addmm",)),
    ("triton__0d1d2d3d4d5de", "unknown", ()),
    ("graph_0_cpp_fused__softmax_masked_fill_mul_0", "unknown", ("_softmax", "masked_fill", "mul")),
])
def test_fused_names_split_into_known_operators(name, kind, operators):
    assert (decode(name).kind, decode(name).operators) == (kind, operators)


def test_a_stretch_that_is_no_known_operator_stays_whole():
    kernel = decode("triton_poi_fused_add_aiter_sage_attn_cat_14")
    assert kernel.operators == ("add", "aiter_sage_attn", "cat")
    assert ("aiter_sage_attn", "not an operator known here, left whole") in kernel.parts


def test_hand_written_triton_is_named_only_when_certain():
    liger = decode("_geglu_tanh_forward_kernel")
    assert (liger.family, liger.kind, liger.operators) == ("triton", "pointwise", ("gelu", "mul"))
    assert decode("_fwd_kernel_0d1d2d3d45d6de7de8c9de").family == "triton"  # Triton 2's suffix
    norm = decode("_layer_norm_forward_kernel")
    assert (norm.family, norm.kind, norm.operators) == ("triton", "reduction", ("layer_norm",))
    assert "others have copied it" in norm.parts[0][1]
    assert decode("_layer_norm_kernel").family == "unknown"


LAMBDAS = "(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#7}::operator()() const::"


@pytest.mark.parametrize("functor, kind, operator, dtype", [
    ("CUDAFunctor_add<c10::BFloat16>", "pointwise", "add", "bfloat16"),
    ("BinaryFunctor<c10::Half, c10::Half, c10::Half, MulFunctor<float> >", "pointwise", "mul", "float16"),
    ("FillFunctor<long>", "pointwise", "fill", "int64"),
    ("where_kernel_impl" + LAMBDAS + "{lambda(bool, double, double)#1}", "pointwise", "where", "float64"),
    ("launch_clamp_scalar" + LAMBDAS + "{lambda(float)#1}", "pointwise", "clamp", "float32"),
    ("direct_copy_kernel_cuda" + LAMBDAS + "{lambda(short)#1}", "copy", "copy", "int16"),
])
def test_an_elementwise_kernel_names_its_functor_and_type(functor, kind, operator, dtype):
    kernel = decode(f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, 3ul>(int, X)")
    assert (kernel.family, kernel.kind, kernel.operators, kernel.dtype) == ("aten", kind, (operator,), dtype)


def test_gelu_is_read_through_its_nested_lambdas():
    kernel = decode(GELU)
    assert (kernel.operators, kernel.dtype) == (("gelu",), "bfloat16")
    assert ("4", "4 elements to a load or store") in kernel.parts


def test_a_copy_that_converts_says_what_it_can_of_both_types():
    copy = "void at::native::unrolled_elementwise_kernel<at::native::{}, 4, X::LoadWithCast<1> >(int)"
    cast = decode(copy.format("bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"))
    assert (cast.kind, cast.dtype) == ("copy", "bfloat16")
    assert str(cast) == "ATen copy with conversion from float32, bfloat16"
    other = decode(copy.format("direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"))
    assert str(other) == "ATen copy with conversion, float32"


@pytest.mark.parametrize("name, kind, operator, dtype, accumulate", [
    ("reduce_kernel<512, 1, ReduceOp<c10::Half, MeanOps<c10::Half, float, float, c10::Half>, unsigned int> >",
     "reduction", "mean", "float16", "float32"),
    ("softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>",
     "softmax", "softmax", "bfloat16", "float32"),
    ("cunn_SoftMaxBackwardSmem<4, float, float, float, at::native::LogSoftMaxBackwardEpilogue>",
     "softmax", "log_softmax", "float32", "float32"),
    ("CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>", "copy", "cat", "float32", None),
    ("index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_kernel_impl<"
     "at::native::OpaqueType<4> >(X)::{lambda(char*, char const*, long)#1}>", "copy", "index", None, None),
    ("triu_tril_kernel<bool, int, false, 8, false>", "pointwise", "tril", "bool", None),
])
def test_other_aten_kernels(name, kind, operator, dtype, accumulate):
    kernel = decode(f"void at::native::(anonymous namespace)::{name}(X)")
    assert (kernel.family, kernel.kind, kernel.operators) == ("aten", kind, (operator,))
    assert (kernel.dtype, kernel.accumulate_dtype) == (dtype, accumulate)


def test_flash_attention_gives_its_head_dimension_tile_and_mask():
    kernel = decode(FLASH.format(causal="true"))
    assert (kernel.family, kernel.kind, kernel.tile) == ("flash", "attention", (128, 64))
    assert str(kernel) == "FlashAttention forward, head dimension 64, causal, bfloat16, tile 128×64"
    assert "causal" not in str(decode(FLASH.format(causal="false")))


def test_memory_efficient_attention_gives_direction_type_and_tile():
    kernel = decode("fmha_cutlassF_bf16_aligned_64x64_rf_sm80")
    assert (kernel.family, kernel.kind, kernel.variant) == ("efficient", "attention", "attention, forward")
    assert (kernel.arch, kernel.dtype, kernel.tile) == ("sm_80", "bfloat16", (64, 64))
    assert decode("fmha_cutlassB_f16_aligned_64x64_k32_seqaligned_sm70").variant == "attention, backward"


def test_f16_in_a_cudnn_attention_name_does_not_make_it_float16():
    kernel = decode(CUDNN)
    assert (kernel.family, kernel.kind, kernel.tile) == ("cudnn", "attention", (128, 64, 64))
    assert (kernel.arch, kernel.dtype) == ("sm_80", None)
    assert "bfloat16 runs say f16 too" in dict(kernel.parts)["f16"]


def test_copies_sets_and_collectives_are_no_arithmetic():
    copy = decode("Memcpy HtoD (Pageable -> Device)")
    assert (copy.family, copy.kind, str(copy)) == ("memcpy", "copy", "memory copy, host to device")
    assert decode("Memset (Device)").kind == "memset"
    nccl = decode("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    assert (nccl.kind, nccl.operators, nccl.dtype) == ("communication", ("AllReduce",), "bfloat16")
    # a gather moves bytes: its one kernel says int8 for every type
    assert decode("ncclKernel_AllGather_RING_LL_Sum_int8_t").dtype is None


def test_a_convolution_is_not_called_a_gemm():
    kernel = decode("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_"
                    "tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn_infer")
    assert (kernel.kind, kernel.variant, kernel.layout) == ("other", "convolution", "nhwc")
    assert (kernel.dtype, kernel.stages, kernel.instruction) == ("tfloat32", 4, (16, 8, 8))
    assert decode("volta_scudnn_128x64_relu_small_nn_v1").family == "cudnn"


def test_a_mangled_name_says_what_its_demangled_form_says():
    # literals (Li4E), built-in types (f) and the template they stand in are read; the name is cut short
    add = decode("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPc")
    assert (add.family, add.operators, add.dtype) == ("aten", ("add",), "float32")
    assert ("4", "4 elements to a load or store") in add.parts
    # 66 letters follow: cutlass_80 … align8
    gemm = decode("_ZN7cutlass7Kernel2I66cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_tn_align8E")
    assert (gemm.family, gemm.tile) == ("cutlass", (256, 128, 32))
    # a lambda in a function in a function, and S3_, which is the fifth thing the name has mentioned
    copy = decode("_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct"
                  "_copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE5_clEvEUlfE_EEvS4_RKT_E")
    assert (copy.kind, copy.dtype, ("128", "threads in a block") in copy.parts) == ("copy", "float32", True)


CUTLASS_3 = (
    "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective13"
    "CollectiveMmaINS1_35MainloopSm100TmaUmmaWarpSpecializedILi13ELi2ELi4ENS5_IJNS4_1CILi1EEENSA_ILi4EEESB_"
    "EEEEENS5_IJNSA_ILi64EEESF_NSA_ILi128EEEEEENS_12float_e4m3_tENS5_IJlSB_lEEESI_SJ_NS4_8TiledMMA"
)
FLASH_3 = (
    "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_25CollectiveMainloop"
    "FwdSm90ILi2EN4cute5tupleIJNS5_1CILi2EEENS7_ILi1EEES9_EEENS6_IJNS7_ILi128EEENS7_ILi176EEESB_EEELi128ENS_"
    "10bfloat16_tEfNS_4arch4Sm90ELb1ELb0ELb0ELb0ELb0ELb0ELb0ELb1ELb1ELb0ELb0ELb0EEENS1_21CollectiveEpilogue"
)


def test_templates_of_cutlass_3_give_tile_stages_and_type_through_their_back_references():
    gemm = decode(CUTLASS_3)  # SF_ is C<64>: 64 × 64, 128 along k
    assert (gemm.family, gemm.kind, gemm.arch, gemm.tile, gemm.stages) == (
        "cutlass", "gemm", "sm_100", (64, 64, 128), 13)
    assert gemm.dtype == "float8_e4m3fn"


def test_flash_attention_3_gives_tile_stages_mask_and_both_types():
    flash = decode(FLASH_3)  # SB_ is C<128>: 128 queries × 176 keys, head dimension 128
    assert (flash.family, flash.kind, flash.arch, flash.tile, flash.stages) == (
        "flash", "attention", "sm_90", (128, 176), 2)
    assert str(flash).startswith("FlashAttention forward for sm_90, head dimension 128, causal, bfloat16, ")
    nsight = ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Collective"
              "MainloopFwdSm90<(int)2, cute::tuple<cute::C<(int)1>, cute::C<(int)1>, cute::C<(int)1>>, cute::"
              "tuple<cute::C<(int)128>, cute::C<(int)128>, cute::C<(int)64>>, (int)64, cutlass::half_t, "
              "float, cutlass::arch::Sm90, (bool)1, (bool)0>")
    assert (decode(nsight).tile, decode(nsight).dtype) == ((128, 128), "float16")
    assert decode(nsight).variant == "forward, head dimension 64, causal"


def test_flashinfers_sizes_are_in_units_of_a_tensor_core_instruction():
    kernel = decode("void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<("
                    "MaskMode)1, 16u, 1u, 4u, 8u, 8u, 1u, 4u, (flashinfer::PosEncodingMode)0, nv_bfloat16, ")
    # 4 instructions of 16 keys in each of 4 warps: 256 keys; 8 · 16 = 128 wide heads
    assert (kernel.family, kernel.kind, kernel.tile, kernel.dtype) == (
        "flashinfer", "attention", (16, 256), "bfloat16")
    assert "head dimension 128, causal" in str(kernel)


BEYOND_GEMM = {  # name -> family, kind, arch, dtype, layout, tile, stages, epilogue
    "bmm_Bfloat16_E4m3E4m3_Fp32_t128x64x128_s8_et128x64_m256x64x32_c2x1x1_rM_TN_swiGlu_sm100f":
        ("trtllm", "gemm", "sm_100", "float8_e4m3fn", "tn", (128, 64, 128), 8, "swiglu"),
    "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64MultiCtasKvCgaVarSeqQ8Kv128StaticSwapsAbForGen":
        ("trtllm", "attention", "sm_100", "bfloat16", None, (8, 128), None, None),
    "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemmMultiD_ABScale_xdl_cshuffle_v3<ck::tensor_layout::"
    "gemm::RowMajor, ck::tensor_layout::gemm::ColumnMajor, ck::Tuple<>, ck::f8_fnuz_t, ck::f8_fnuz_t, float, "
    "(ck::tensor_operation::device::GemmSpecialization)2, 256, 1, 128, 128, 16, 128, 256, 16, 16, 16, 16, 1":
        ("ck", "gemm", None, "float8_e4m3fnuz", "tn", (16, 128, 256), None, None),
    "_ZN7ck_tile6kentryILi2ENS_13FmhaFwdKernelINS_1PIDF16bfNS_13TileFmhaShapeINS_8sequenceIJLi128ELi64ELi32E":
        ("ck", "attention", None, "bfloat16", None, (128, 64), None, None),
    "MIOpenBatchNormFwdTrainSpatialNorm": ("miopen", "reduction", None, None, None, None, None, None),
    "miopenSp3AsmConvFury_v2_4_1_gfx11_fp16_f2x3_stride1":
        ("miopen", "other", "gfx11", "float16", None, None, None, None),
    "batched_transpose_64x16_pack_4x1_ediv_2x1_half":
        ("miopen", "copy", None, "float16", None, (64, 16), None, None),
    "Cijk_Ailk_Bjlk_HHS_BH_Bias_Aux_HA_S_SAV_UserArgs_MT64x32x64_ISA942":
        ("tensile", "gemm", "gfx942", "float16", "nt", (64, 32, 64), None, "bias+activation+aux"),
    "Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT208x256x32":
        ("tensile", "gemm", None, "float32", "tn", (208, 256, 32), None, "bias+activation"),
    "_gemm_a8w8_blockscale_kernel_GROUP_K_128_BLOCK_SIZE_M_128_BLOCK_SIZE_N_64_BLOCK_SIZE_K_256_NUM_KSPLIT_1":
        ("triton", "gemm", None, None, None, (128, 64, 256), None, None),
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8":
        ("cutlass", "other", None, "bfloat16", "nhwc", (256, 64, 32), 4, None),
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x64x128x1":
        ("triton", "gemm", None, "bfloat16", None, (128, 64, 128), None, None),
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor0000o1":
        ("flash", "attention", "sm_100", None, None, None, None, None),
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, X)":
        ("vllm", "pointwise", None, "bfloat16", None, None, None, None),
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(X)":
        ("nccl", "communication", None, "float32", None, None, None, None),
}


@pytest.mark.parametrize("name", BEYOND_GEMM)
def test_other_libraries_and_amd_give_what_their_names_carry(name):
    k = decode(name)
    assert (k.family, k.kind, k.arch, k.dtype, k.layout, k.tile, k.stages, k.epilogue) == BEYOND_GEMM[name]


@pytest.mark.parametrize("end, epilogue", [
    ("", None), ("_bias_bf16", "bias"), ("_bias_bf16_relu", "bias+relu"), ("_bias_bf16_gelu", "bias+gelu"),
    ("_1sm_bias_f16_relu_aux_scalemax", "bias+relu+aux"), ("_2sm_bias_bf16_gelu_aux_bf16", "bias+gelu+aux"),
    ("_drelu", "drelu"), ("_dgelu_bgrad", "dgelu+bias gradient"), ("_bgradb", "bias gradient"),
])
def test_an_epilogues_steps_are_named_in_the_order_in_which_they_happen(end, epilogue):
    name = "cutlass3x_sm100_tensorop_s256x256x16gemm_bf16_bf16_f32_bf16_bf16_256x256x64_0_tnn_align8"
    assert decode(name + end).epilogue == epilogue


def test_blocks_of_four_bit_operands_are_read_with_their_scales():
    nvjet = decode("nvjet_sm100_oohsh_128x256_256x5_2x2_2cta_h_bz_Avec16UE4M3_Bvec16UE4M3_TNT")
    assert (nvjet.dtype, nvjet.tile, nvjet.stages) == ("float4_e2m1fn", (128, 256, 256), 5)
    assert dict(nvjet.parts)["Avec16UE4M3"] == "16 elements of A along k share a scale of type UE4M3"
    cutlass = decode("cutlass3x_sm100_bstensorop_s256x128x64gemm_block_scaled_ue4m3xf4_ue4m3xf4_f32_f16_f16_"
                     "256x128x256_0_tnn_align32_o_vs16_2sm_bias_f16_relu")
    assert (cutlass.dtype, cutlass.accumulate_dtype, cutlass.epilogue) == (
        "float4_e2m1fn", "float32", "bias+relu")


def test_layout_letters_say_how_both_operands_lie():
    assert "nn.Linear's weight [out, in]" in dict(decode(LINEAR).parts)["tn"]
    # C[i, j] sums over l: A stored [i, l], B stored [j, l]; fastest index first, so N and T
    kernel = decode("Cijk_Ailk_Bjlk_BBS_BH_MT64x64x32")
    assert kernel.layout == "nt"
    assert "gradient of nn.Linear's weight" in dict(kernel.parts)["Ailk_Bjlk"]


@pytest.mark.parametrize("name", [
    "", " ", "_", "ampere_", "nvjet_", "_ZN", "_Z9999", "triton_poi_fused_", "\x1b[31m\0", "é🦊", "\ud800",
    "void at::native::", "at::native::f<", "kernel", "rotary_kernel", "gemv2T_kernel", "flash_fwd_kernel<",
])
def test_any_string_has_an_answer(name):
    kernel = decode(name)
    assert kernel.name == name
    assert str(kernel).isprintable()
    assert all(token.isprintable() for token, _ in kernel.parts)


def test_an_unknown_name_stays_unknown():
    kernel = decode("rotary_kernel")
    assert (kernel.family, kernel.kind, kernel.dtype, kernel.operators) == ("unknown", "unknown", None, ())
    assert str(kernel) == "unknown kernel rotary_kernel"
    template = decode("void mine::scale<8, __nv_bfloat16, float>(__nv_bfloat16 const*, double)")
    assert (template.family, template.kind, template.dtype) == ("unknown", "unknown", "bfloat16")


@pytest.mark.parametrize("opening, more", [
    ("", "a"), ("", "_"), ("_ZN", "9"), ("nvjet_", "12x34_"), ("void f<", "<"), ("at::native::", "lambda(a"),
    ("at::native::", "aFunctorOps "), ("triton_poi_fused_", "log_softmax_"),
    ("cutlass_80_tensorop_", "s1688gemm_"),
])
def test_the_work_on_a_huge_name_is_bounded_by_its_head(opening, more):
    # nothing after the first 4096 characters is read, so what 200 kB say is what their head says
    huge = (opening + more * 200_000)[:200_000]
    kernel, head = decode(huge), decode(huge[:4096])
    assert kernel.name == huge
    assert (kernel.parts, str(kernel)) == (head.parts, str(head))


# What tools put around a name, and names that are cut: the fields are those of the name alone

ADD = "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, 3ul>(int, X)"
AROUND = ["{}.kd", "{} [clone .kd]", "{} (.kd)", "{}.kd [clone .kd]", "void {}", '"{}"', "'void {}'", " {}\n",
          "`{}`"]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", [LINEAR, ADD, "attn_fwd", "triton_per_fused__to_copy_sum_2",
                                  "Cijk_Ailk_Bljk_HHS_BH_MT128x64x32_MI32x32x8x1_SN_K1"])
def test_a_name_in_quotes_or_with_a_suffix_says_the_same(name, around):
    alone, written = decode(name), decode(around.format(name))
    assert alone.family != "unknown"
    assert replace(written, name=name, parts=alone.parts) == alone


def test_a_number_at_the_end_of_a_cut_name_is_not_taken_for_a_tile():
    # 128x25 was 128x256: 25 is no multiple of 8, which tiles are; 64x1 was 64x16: no name ends in its stages
    assert decode("ampere_bf16_s16816gemm_bf16_128x25").tile is None
    cut = decode("nvjet_sm90_hss_64x8_64x1")
    assert (cut.dtype, cut.tile, cut.stages) == ("float16", (64, 8), None)
    assert decode("fmha_cutlassF_bf16_aligned_64x64_rf_sm10").arch is None  # was sm100; there is no sm_10


def test_names_cut_behind_dots_still_give_what_is_left():
    kernel = decode("triton_poi_fused__to_copy_add_cat_mul_neg_st...")
    assert (kernel.kind, kernel.operators[:3]) == ("pointwise", ("_to_copy", "add", "cat"))


@pytest.mark.parametrize("given, message", [
    (None, "a kernel's name is a str, not NoneType"),
    (b"nvjet", "a kernel's name is a str, not bytes: use its .decode(errors='replace')"),
    (1.5, "a kernel's name is a str, not float"),
])
def test_what_is_no_string_is_refused_in_one_line(given, message):
    with pytest.raises(TypeError) as refused:
        decode(given)
    assert str(refused.value) == message


# C++ kernels: the function's own template says it


@pytest.mark.parametrize("name, kind, dtype, accumulate, layout", [
    # gemv: the types of A, x and y, then the one computed in; the letter is BLAS'
    ("gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16>", "gemm", "float16", "float32",
     "t"),
    ("internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, false>", "gemm",
     "bfloat16", "float32", None),
    ("gemv2N_kernel<int, int, float2, float2, float2, float2, 128>", "gemm", "complex64", "complex64", "n"),
    # the type computed in comes first, that of the operands stands in the tensors
    ("gemmk1_kernel<int, float, 256, 5, false, cublasGemvTensorBatched<__half const>>", "gemm", "float16",
     "float32", None),
    ("gemmSN_TN_kernel<float, 128, 16, 2, cublasGemvTensor<double2 const>>", "gemm", "complex128", "float32",
     "tn"),
    ("dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<__nv_bfloat16 const> >>", "reduction",
     "bfloat16", None, None),
    ("cublasLt::epilogue::impl::globalKernel<8, 32, float, float, float, true>", "pointwise", "float32", None,
     None),
    ("sgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 34>", "gemm", "float32", None, None),
    ("trsm_left_kernel<double, 256, 4, false, false>", "other", "float64", None, None),
])
def test_cublas_templates_give_routine_and_types(name, kind, dtype, accumulate, layout):
    kernel = decode(f"void {name}(cublasParams<float>)")
    assert (kernel.family, kernel.kind, kernel.dtype, kernel.accumulate_dtype, kernel.layout) == (
        "cublas", kind, dtype, accumulate, layout)


@pytest.mark.parametrize("name, family, kind", [
    ("void RNN_persist_fp<float, float, float, 256, (cudnnRNNBiasMode_t)2>(X)", "cudnn", "other"),
    ("_Z16nhwcSliceCKernelI6__halfS0_fLb0EL21cudnnKernelDataType_t0EEvN5cudnn15reduced_divisorEiiiPKT_",
     "cudnn", "copy"),
    ("void cudnn::ops::pooling_fw_4d_kernel<float>(X)", "cudnn", "other"),
    ("cudnn_generated_fort_native_matmul_sm90_knob_1", "cudnn", "other"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16>(X)", "c10d", "communication"),
    ("void at::cuda::kernelHistogram1D<float, float, int, 1>(X)", "aten", "other"),
    ("void magma_sgemmEx_kernel<float, float, float, true>(int, cublasLtEpilogue_t)", "magma", "gemm"),
    ("void sgetf2_fused_batched_kernel<8>(X)", "magma", "other"),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__reduce::ReduceAgent<int*>, int>(X)",
     "cub", "reduction"),
    ("void vector_fft<2u, 256u>(X)", "cufft", "other"),
    ("void rocblas_gemvn_kernel<64, 4, long, float const*, float const*, float*>(X)", "rocblas", "gemm"),
    ("void bounds_check_indices_kernel<long, false>(X)", "fbgemm", "other"),
    ("void marlin::Marlin<__half, 256, 1, 8, 8, 4, 4>(X)", "marlin", "gemm"),
    ("void cuApplyLayerNorm<float, float, float>(X)", "apex", "reduction"),
    ("void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<32, 4, float> >(X)", "mamba", "other"),
    ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(X)", "bitsandbytes", "pointwise"),
    ("std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::"
     "fused_add_rms_norm_kernel<c10::BFloat16, 8>(X)", "vllm", "reduction"),
    ("transpose_NCHW2CNHW_V2_2D_WG_off64", "miopen", "copy"),
    ("Im2d2Col_v2", "miopen", "copy"),
    ("kernel_unified_attention_2d", "triton", "attention"),
    ("create_flashinfer_kv_indices_triton", "triton", "unknown"),
    ("nvfuser_pointwise_f0_c1_r0_g0", "nvfuser", "pointwise"),
    ("gcd_kernel_vectorized4_kernel", "aten", "pointwise"),
    ("[CUDA memcpy HtoD]", "memcpy", "copy"), ("__amd_rocclr_fillBufferAligned.kd", "memset", "memset"),
    ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "nccl", "communication"),
    ("Cijk_SB_Bias_HAS_ScaleAlphaVec_PostGSU2_VW4", "tensile", "reduction"),
    ("Cijk_B", "tensile", "pointwise"),
])
def test_a_name_tells_its_library_and_what_it_does(name, family, kind):
    assert (decode(name).family, decode(name).kind) == (family, kind)


def test_the_first_form_of_flash_attention_3_gives_stages_and_mask():
    # traits: head dimension, queries, keys, warps, stages; then Is_causal
    kernel = decode("void flash::compute_attn_ws<Flash_fwd_kernel_traits<192, 128, 80, 12, 2, false, 1, "
                    "cutlass::bfloat16_t, 128>, true, flash::SingleTileScheduler>(X)")
    assert (kernel.family, kernel.tile, kernel.stages, kernel.dtype) == ("flash", (128, 80), 2, "bfloat16")
    assert kernel.variant == "forward, head dimension 192, causal"


def test_flash_attention_3_for_older_gpus_names_its_warps_first():
    # warps, stages, Q_in_regs, tile, width of V, type, accumulator, arch, Is_causal: true is no mask here
    kernel = decode("void cutlass::device_kernel<flash::enable_sm80<flash::FlashAttnFwdSm80<flash::Collective"
                    "MainloopFwdSm80<4, 1, true, cute::tuple<cute::C<128>, cute::C<48>, cute::C<192>>, 192, "
                    "cutlass::half_t, float, cutlass::arch::Sm80, false, false>")
    assert (kernel.arch, kernel.tile, kernel.stages, kernel.dtype) == ("sm_80", (128, 48), 1, "float16")
    assert kernel.variant == "forward, head dimension 192"


def test_flashinfers_decoding_kernel_gives_its_stages():
    kernel = decode("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, "
                    "4u, 8u, 16u, 1u, 8u, flashinfer::Attention<false>, flashinfer::Params<__half> >(X)")
    assert (kernel.kind, kernel.stages, kernel.dtype) == ("attention", 2, "float16")


def test_deepgemm_does_not_take_its_outputs_type_for_the_operands():
    kernel = decode("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, cutlass::bfloat16_t>(X)")
    assert (kernel.family, kernel.kind, kernel.arch, kernel.dtype) == ("deepgemm", "gemm", "sm_90", None)
    assert decode("void deep_gemm::sm100_bf16_gemm_impl<float>(X)").dtype == "bfloat16"


@pytest.mark.parametrize("operation, epilogue", [
    ("PassThrough", None), ("AddFastGelu", "bias+gelu"), ("AddRelu", "bias+relu"), ("Silu", "silu"),
])
def test_composable_kernels_epilogue_is_its_elementwise_operation(operation, epilogue):
    kernel = decode("void ck::kernel_gemm_xdl<ck::GridwiseGemm_xdl<ck::tensor_layout::gemm::RowMajor, "
                    "ck::tensor_layout::gemm::RowMajor, _Float16, "
                    "ck::tensor_operation::element_wise::PassThrough, "
                    f"ck::tensor_operation::element_wise::{operation}, 256>>(X)")
    assert (kernel.dtype, kernel.layout, kernel.epilogue) == ("float16", "nn", epilogue)


@pytest.mark.parametrize("name, collective, dtype", [
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "AllReduce", "float32"),
    ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "Broadcast", None),  # bytes of any type
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(X)", "ReduceScatter", "bfloat16"),
    ("ncclDevKernel_AllReduce_Sum_f8e4m3_RING_LL(X)", "AllReduce", "float8_e4m3fn"),
    ("ncclDevKernel_AllGatherV_RING_SIMPLE(X)", "AllGatherV", None),
])
def test_a_collective_of_any_age_gives_its_name_and_type(name, collective, dtype):
    assert (decode(name).operators, decode(name).dtype) == ((collective,), dtype)


@pytest.mark.parametrize("function, operators", [
    ("upsample_bilinear2d_backward_nhwc_out_frame<float>", ("upsample_bilinear2d_backward",)),
    ("searchsorted_cuda_kernel<float, long>", ("searchsorted",)),
    ("max_pool_backward_nchw<float, float, int>", ()),  # begins with max, which it is not
    ("tril_indices_kernel<long>", ()),
])
def test_atens_own_functions_are_operators_only_where_the_name_ends_there(function, operators):
    kernel = decode(f"void at::native::(anonymous namespace)::{function}(X)")
    assert (kernel.family, kernel.operators) == ("aten", operators)


def test_an_operator_whose_own_name_ends_in_backward_is_not_split():
    assert decode("triton_poi_fused_embedding_dense_backward_sum_3").operators == (
        "embedding_dense_backward", "sum")


def test_torchscripts_fused_kernels_list_their_operators_before_a_hash():
    kernel = decode("fused_add_relu_15680171862954066917")
    assert (kernel.family, kernel.kind, kernel.operators) == ("torchscript", "pointwise", ("add", "relu"))


def test_a_functions_parameters_are_not_its_element_type():
    # the double is a parameter of the function that the lambda stands in; the elements are signed char
    kernel = decode("void at::native::jagged_dense_output_kernel_<1, int, signed char, at::native::to_padded("
                    "at::Tensor const&, double)::{lambda()#1}>(X)")
    assert kernel.dtype is None
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy"
APPLY = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (CAT + "<float, unsigned int, 2, 128, 1>(float*, X)", "float32"),
        (CAT + "_contig<c10::BFloat16, unsigned int, 2, 128, 1>(c10::BFloat16*, X)", "bfloat16"),
        (CAT + "_vectorized<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 1>(char*)", "float16"),
        (APPLY + "TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<"
         "c10::BFloat16, 2, 2, 0>, std::plus<float>, float>(X)", "bfloat16"),
        (APPLY + "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<"
         "float, 4, (at::native::ADAM_MODE)1, false>, float const*>(X)", "float32"),
        # a copy between two dtypes, and kernels that are of no list
        (APPLY + "TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<int, long, 2, 1, 1>>(X)", None),
        ("Memcpy DtoD (Device -> Device)", None),
        (GELU, None),
        (CAT + "<mystery, unsigned int>(X)", None),
    ],
)  # fmt: skip
def test_a_kernel_over_lists_names_the_dtype_that_a_trace_leaves_out(name, dtype):
    dtypes, shapes = ("TensorList", "Scalar"), (((2, 3), (4, 3)), ())
    assert list_dtypes(dtypes, shapes, ["Memset (Device)", name]) == (dtype or "TensorList", "Scalar")


def test_only_lists_whose_shapes_were_recorded_are_named():
    # the third list is empty, or from a torch that recorded none
    dtypes, shapes = ("TensorList", "float", "TensorList"), (((),), (3,), ())
    assert list_dtypes(dtypes, shapes, [CAT + "<float, unsigned int>(X)"]) == ("float32", "float", "TensorList")
