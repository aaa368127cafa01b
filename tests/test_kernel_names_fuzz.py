"""Whatever a trace calls a kernel: an answer, printable, always the same, and in bounded time."""

import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tutorial_lib.kernel_names import _FAMILIES, KernelName, decode

# Pieces of real names, so that random strings get past the patterns that recognise a family
PIECES = [
    "cutlass_80_tensorop_", "cutlass3x_sm100_bstensorop_", "s16816gemm", "_relu_bf16_", "_128x256_",
    "_64x3_", "tn", "_align8", "_bias_f16", "_gelu_aux_bf16", "nvjet_sm90_", "tst_", "_2cta_h_bz_", "TNT",
    "ampere_", "fp16_", "sm90_xmma_gemm_", "bf16bf16_bf16f32_f32_", "triton_poi_fused_",
    "triton_red_fused_", "log_softmax_", "_0d1d2de", "void ", "at::native::",
    "vectorized_elementwise_kernel<4, ", "CUDAFunctor_add<float>", "lambda(", "Functor", "c10::BFloat16",
    "cutlass::device_kernel<", "flash::FlashAttnFwdSm90<", "CollectiveMainloopFwdSm90<",
    "cute::tuple<cute::C<128>, cute::C<64>, cute::C<64>>", "flash_fwd_kernel<",
    "kernel_traits<64, 128, 64, 4, ", "flashinfer::", "KernelTraits<(MaskMode)1, 16u, ",
    "fmhaSm100fKernel_QkvE4m3OBfloat16H128", "bmm_Bfloat16_E4m3", "Cijk_Ailk_Bjlk_", "HHS_BH_Bias_HA_S_",
    "MT64x64x32", "ck::GridwiseGemm<", "MIOpenBatchNorm", "igemm_fwd_", "ncclDevKernel_",
    "AllReduce_Sum_f32_RING_LL", "cub::DeviceReduceKernel<", "Memcpy HtoD (Pageable -> Device)",
    "Memset (Device)", "kernel_cutlass_", "cudnn::", "cublasGemvTensor<__half const>",
    "gemv2T_kernel<", "ue8m0xe4m3_ue8m0xe4m3_f32_f16_f16_", "_aux_bool_drelu", "implicit_gemm_deconv_",
    "F8B8HS_BH_", "_GSU4_SK3", "_ZN5aiter", "aiter::", "fmha_fwd_hd128_bf16_", "deep_gemm::sm90_",
    "bmm_Fp32_E4m3E4m3_Fp32_", " [clone .kd]", ".kd", "std::enable_if<true, void>::type ", "compute_attn_ws<",
    "rocblas_", "nvfuser_", "RNN_persist_bp<", "_matmul_ogs_NNT_", "vllm::", "fbgemm_gpu::", "::", "<", ">",
    ", ", "_",
]
MANGLED = [
    "N", "E", "I", "J", "Z", "S_", "S0_", "S1_", "St", "T_", "P", "R", "K", "F", "A4_", "i", "f", "v", "b",
    "DF16b", "Li4E", "Lb1E", "LN1aE2E", "XadL_Z", "Ul", "UlvE_", "Dp", "Tn", "1a", "4cute", "5tuple", "2ck",
    "9", "99999",
]
# "C" holds controls and surrogates
TEXT = st.text(st.characters(categories=("L", "N", "P", "S", "Z", "C")), max_size=60)
NAMES = st.one_of(
    TEXT,
    st.lists(st.one_of(st.sampled_from(PIECES), TEXT), max_size=12).map("".join),
    st.lists(st.sampled_from(MANGLED), max_size=60).map(lambda pieces: "_Z" + "".join(pieces)),
)
KINDS = {
    "gemm", "pointwise", "reduction", "softmax", "attention", "copy", "memset", "communication", "other",
    "unknown",
}
FAMILIES = {family for family, *_ in _FAMILIES} | {"unknown"}


def is_sound(kernel: KernelName, name: str) -> bool:
    """Every field has the type that its annotation promises, and prose and parts can be printed."""
    sizes = [size for size in (kernel.tile, kernel.instruction) if size is not None]
    words = (
        kernel.arch,
        kernel.dtype,
        kernel.accumulate_dtype,
        kernel.layout,
        kernel.epilogue,
        kernel.variant,
    )
    return (
        kernel.name == name
        and kernel.family in FAMILIES
        and kernel.kind in KINDS
        and all(word is None or (word and word.isprintable()) for word in words)
        and all(2 <= len(size) <= 3 and all(type(n) is int for n in size) for size in sizes)
        and all(number is None or type(number) is int for number in (kernel.stages, kernel.alignment))
        and str(kernel).isprintable()
        and len(str(kernel)) < 2_000
        and all(token.isprintable() and meaning.isprintable() for token, meaning in kernel.parts)
    )


@settings(max_examples=300, deadline=None)
@given(NAMES)
@example("_ZN" + "1aIS_" * 300)  # each S_ doubles what stands before it
@example("_Z" + "PK" * 1000 + "i")
@example("_ZZZZZZ")
def test_any_name_gets_a_sound_answer(name):
    assert is_sound(decode(name), name)


@settings(max_examples=100, deadline=None)
@given(NAMES, st.integers(0, 300))
def test_a_name_cut_short_still_gets_a_sound_answer(name, length):
    assert is_sound(decode(name[:length]), name[:length])


HARD = [
    "a", "_", "9", "<", ">", "1x1_", "12x34_", "::", "void ", "(", "lambda(a", "aFunctor ", "log_softmax_",
    "\x00", "\ud800", "é", "_ZN", "N", "S_", "I", "1aI", "PK", "Z", "J", "1aINS_", "tf32_", "_relu",
    "cute::tuple<", "float, ", "Kernel", "nvjet_", "cutlass_80_tensorop_", "at::native::", "ck::", "cub::",
    "flash::", "Gridwise", "\x1b[", ".kd", "[clone ", "void ", "std::enable_if<", "cudnn", "cublas", "'",
    "rocblas_", "ccl", "F8", "(int)", "=",
]


MODULES = ("kernel_names.py", "kernel_words.py", "cpp_names.py")


def lines_run(name: str) -> int:
    """How many lines of its modules `decode` runs: a measure of time that a busy machine does not change."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.endswith(MODULES) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        decode(name)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("opening", ["", "_Z", "cutlass_80_tensorop_", "at::native::", "triton_poi_fused_"])
def test_a_megabyte_is_read_no_further_than_its_head(opening):
    for more in HARD:
        huge = opening + more * (1_000_000 // len(more))
        kernel, head = decode(huge), decode(huge[:4096])
        assert (kernel.name, kernel.parts, str(kernel)) == (huge, head.parts, str(head))


@pytest.mark.parametrize(
    "opening, more",
    [
        ("_ZN", "1aI"),
        ("_Z", "PK"),
        ("_ZN1aI", "S_"),
        ("nvjet_", "1x1_"),
        ("at::native::f<", "<"),
        ("triton_poi_fused_", "log_softmax_"),
        ("cutlass_80_tensorop_", "s1688gemm_"),
    ],
)
def test_the_work_grows_in_proportion_to_the_name(opening, more):
    # fresh names, as decode remembers: twice the length may take twice the lines, and a little for the start
    short, long = (lines_run((opening + more * 4096)[:length]) for length in (1000, 2000))
    assert long <= 2.2 * short + 200
