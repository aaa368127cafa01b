"""A GPU kernel's name, read aloud: its library, GPU, types, tile, layout and operators.

`decode` reads what the name spells and nothing else. It knows the names PyTorch users meet: cuBLAS (nvjet,
xmma, ampere_…, gemv, split-K), CUTLASS, cuDNN, Triton and C++ code made by Inductor, ATen, the fused
attentions, the libraries that serve language models, NCCL, CUB, copies, and AMD's Tensile, Composable Kernel
and MIOpen. Not covered, because no name says it: the problem's shape, the grid, beta, and what an epilogue
really did. So two runs of one name need not be the same work. What a name leaves out is None.

A new kind of name is one row in `_FAMILIES`: a pattern that recognises it and a small function that reads it.
A library whose kernels are plain C++ templates is one row in `_LIBRARIES`. Names made of words, as GEMMs'
are, are read in `kernel_words`, C++ in `cpp_names`; each names its sources. Those of this module: PyTorch's
CUDA sources and its attention kernel generator, Inductor's get_fused_kernel_name, the templates of
FlashAttention, FlashInfer, DeepGEMM and Composable Kernel, NCCL's generator.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from . import kernel_words, units
from .cpp_names import LIMIT, TORCH, argument_types, float_types, plain, template_arguments, torch_types
from .kernel_words import ARCH, BY, BY_BY, FLIGHT, TYPE, Row, count, integers, product, spell, word


@dataclass(frozen=True)
class KernelName:
    """What a kernel's name says; None, or an empty tuple, where it says nothing.

    `family` is "cutlass", "cublas", "nvjet", "triton", "aten", …, or "unknown". `kind` is gemm, pointwise,
    reduction, softmax, attention, copy, memset, communication, other or unknown; `variant` is the kernel in
    words. `dtype` is the type of the operands by its name in torch, of A's where there are two; "tfloat32"
    where float32 operands are rounded to TF32 for the tensor cores; the accumulator's stands apart.
    `layout` has BLAS' letter for operand A, then B: n as it lies, t transposed, both of column-major matrices
    (for a convolution it is the order of its tensors, "nhwc", where the name has it). `tile` is one thread
    block's (m, n) or (m, n, k), in a BLAS GEMM m being the columns of PyTorch's row-major output; for
    attention it is (queries, keys).
    `epilogue` is what the kernel can apply to its result, joined by "+" in the order bias, activation, aux,
    bias gradient ("bias+gelu+aux"): one built with relu serves plain matmuls too.
    `parts` spells the name in its order: (token, meaning).
    """

    name: str
    family: str = "unknown"
    kind: str = "unknown"
    variant: str | None = None
    arch: str | None = None
    dtype: str | None = None
    accumulate_dtype: str | None = None
    layout: str | None = None
    tile: tuple[int, ...] | None = None
    stages: int | None = None
    instruction: tuple[int, ...] | None = None
    alignment: int | None = None
    split_k: bool | None = None
    epilogue: str | None = None
    operators: tuple[str, ...] = ()
    parts: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ", ".join([_title(self), *_details(self)])


def decode(name: str) -> KernelName:
    """What the kernel name `name` says; any string has an answer, one not recognised the family "unknown".

    TypeError for anything but a string.
    """
    if not isinstance(name, str):
        hint = ": use its .decode(errors='replace')" if isinstance(name, bytes) else ""
        raise TypeError(f"a kernel's name is a str, not {type(name).__name__}{hint}")
    decoded = _decode(name[:LIMIT])
    return decoded if len(name) <= LIMIT else replace(decoded, name=name)


@lru_cache(maxsize=4096)
def _decode(name: str) -> KernelName:
    text = plain(_bare(units.plain(name)))
    for family, needle, opening, read in _FAMILIES:
        if needle in text and (found := opening.search(text)) and (said := read(found)):
            return KernelName(name, family, **said)
    function = _PLACED.match(text)
    types = argument_types(text, function.end())[:1] if function else []
    parts = [(_short(text), "not a kind of name that is known here")] if text else []
    parts += [(t, "the first type in its template") for t in types]
    return KernelName(name, dtype=TORCH[types[0]] if types else None, parts=tuple(parts))


# What tools put around a name: a return type before it; behind it AMD's .kd, what a compiler cloned, a cut
_BEFORE = re.compile(r"(?:__global__ |static |void |std::enable_if<.{0,300}?, ?void>::type )*", re.ASCII)
_BEHIND = re.compile(
    r"(?:\(?\.kd\)?|\[clone [^\]]{0,80}\]|\.(?:isra|constprop|part|cold)[.\d]{0,20}|\.{3}|…)$", re.ASCII)
_QUOTES = " \"'`"


def _bare(text: str) -> str:
    """The name alone: "void f<int>(int) [clone .kd]" is f<int>(int)."""
    text = text.strip(_QUOTES)
    text = text[_BEFORE.match(text).end() :]
    for _ in range(4):  # more than two ends at once no tool writes
        if not (end := _BEHIND.search(text, max(len(text) - 100, 0))):
            break
        text = text[: end.start()].rstrip(_QUOTES)
    return text


def list_dtypes(dtypes: Sequence, shapes: Sequence, names: Iterable[str]) -> tuple:
    """An operator's recorded dtypes, with "TensorList" replaced where a kernel names the dtype in its lists.

    `shapes` are the recorded ones, one entry an argument as in `dtypes`; `names` are the operator's kernels.
    torch.cat and the operators on lists (foreach, fused optimizers) have such kernels. A copy knows no more
    than the size of an element: the dtype named then is one of that size.
    """
    found = next((dtype for name in names if (dtype := _list_dtype(name))), None)
    lists = (bool(shape) and isinstance(shape[0], (list, tuple)) for shape in shapes)
    return tuple(
        found if listed and found and dtype == "TensorList" else dtype
        for dtype, listed in zip(dtypes, lists, strict=True)
    )


_LIST = re.compile(
    r"(?:CatArrayBatchedCopy\w*|multi_tensor_apply_kernel<.{0,200}?\b(?!Copy)\w+Functor)"
    r"<(?:at::native::\(anonymous namespace\)::OpaqueType<(\d+)u?>|([\w:]+))[,>]"
)
_OF_SIZE = {"1": "uint8", "2": "float16", "4": "float32", "8": "int64", "16": "complex128"}


def _list_dtype(name: str) -> str | None:
    said = _LIST.search(name[:LIMIT])
    try:
        return said and (_OF_SIZE.get(said[1]) if said[1] else units.dtype_name(said[2]))
    except ValueError:
        return None


# One line of prose

_TITLES = {
    "cutlass": "CUTLASS", "cublas": "cuBLAS", "xmma": "XMMA", "nvjet": "nvjet (cuBLAS)", "cudnn": "cuDNN",
    "triton": "Triton", "inductor-cpp": "Inductor C++", "aten": "ATen", "flash": "FlashAttention",
    "efficient": "memory-efficient", "trtllm": "TensorRT-LLM", "nccl": "NCCL", "cub": "CUB",
    "tensile": "Tensile", "miopen": "MIOpen", "ck": "Composable Kernel", "flashinfer": "FlashInfer",
    "vllm": "vLLM", "sglang": "SGLang", "aiter": "AITER", "deepgemm": "DeepGEMM", "deepep": "DeepEP",
    "fbgemm": "FBGEMM", "torchvision": "torchvision", "apex": "apex", "magma": "MAGMA",
    "transformer-engine": "Transformer Engine", "rocprim": "rocPRIM", "rocblas": "rocBLAS", "mslk": "MSLK",
    "marlin": "Marlin", "torchao": "torchao", "bitsandbytes": "bitsandbytes", "mamba": "Mamba",
    "c10d": "PyTorch",
    "torchscript": "TorchScript", "nvfuser": "nvFuser", "cusparse": "cuSPARSE", "cusolver": "cuSOLVER",
    "cufft": "cuFFT",
}
_KINDS = {"gemm": "GEMM", "pointwise": "pointwise kernel", "unknown": "kernel", "other": "kernel"}


def _title(kernel: KernelName) -> str:
    if kernel.family == "unknown":
        return f"unknown kernel {_short(units.plain(kernel.name[:LIMIT]), 60)}".rstrip()
    noun, *rest = (kernel.variant or _KINDS.get(kernel.kind, kernel.kind)).split(", ")
    title = " ".join(filter(None, (_TITLES.get(kernel.family), noun)))
    return ", ".join([title + (f" for {kernel.arch}" if kernel.arch else ""), *rest])


def _details(kernel: KernelName) -> Iterator[str]:
    gemm = kernel.kind == "gemm"
    if kernel.operators and kernel.operators != (kernel.kind,):
        yield _short(" + ".join(kernel.operators), 300)
    if kernel.dtype:
        spelled = "float32 rounded to TF32" if kernel.dtype == "tfloat32" else kernel.dtype
        yield spelled + (" in" if gemm else "")
    if kernel.accumulate_dtype:
        yield f"{kernel.accumulate_dtype} accumulate"
    if kernel.tile:
        yield "tile " + product(kernel.tile)
    if kernel.stages:
        yield count(kernel.stages, "stage")
    if kernel.layout:
        yield ("operands " if gemm else "layout ") + kernel.layout.upper()
    if kernel.alignment:
        yield f"aligned to {count(kernel.alignment, 'element')}"
    if kernel.split_k:
        yield "split-K"
    if kernel.epilogue:
        yield f"epilogue can apply {kernel.epilogue}"


def _short(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


# GEMMs that are templates: CUTLASS, cuBLAS


def _cute(found: re.Match) -> dict:
    """kernel_cutlass_…: written in CuTe DSL (Python); function's and class' names stand before _object_at."""
    function = found[0].split("_object_at")[0].removeprefix("kernel_cutlass_").removeprefix("kernel_")
    parts = [("kernel_cutlass", "written in CUTLASS' Python, the CuTe DSL"),
             (function, "module, function, class")]
    way = re.search("(?i)(fwd|forward)|bwd|backward", function)
    said = {"kind": _kind_of(function), "variant": (way and ("forward" if way[1] else "backward"))}
    if arch := re.search(r"(?i)sm_?(\d{2,3})", function):
        said["arch"] = f"sm_{arch[1]}"
        parts.append((arch[0], f"code for sm_{arch[1]}"))
    return {**said, "parts": tuple(parts)}


_MAINLOOP = re.compile(
    r"Mainloop\w{1,80}<(\d{1,2}), (?:\d{1,2}, ){0,2}cute::tuple<[\w:<>, ]{1,120}?>(?:, [\w:]{1,120})? ?>, "
    r"cute::tuple<cute::C<(\d{1,4})>, cute::C<(\d{1,4})>, cute::C<(\d{1,4})>", re.ASCII)


def _cutlass_template(found: re.Match) -> dict:
    """A kernel named by its C++ templates: architecture, tile, stages, epilogue, where they stand clear."""
    text = found.string
    said = {"kind": "gemm" if re.search("gemm", text, re.IGNORECASE) else "unknown"}
    parts = [(found[0], "CUTLASS, NVIDIA's open-source GEMM templates")]
    if arch := re.search(r"[Ss]m(\d{2,3})", text):
        said["arch"] = f"sm_{arch[1]}"
        parts.append((arch[0], f"code for sm_{arch[1]}"))
    if shape := re.search(r"GemmShape<(\d{1,4}), ?(\d{1,4}), ?(\d{1,4})>", text):
        said["tile"] = integers(*shape.groups())
        parts.append((shape[0], "tile of one thread block (m, n, k)"))
    elif loop := _MAINLOOP.search(text):
        stages, *tile = integers(*loop.groups())
        said |= {"stages": stages, "tile": tuple(tile)}
        parts += [(loop[1], f"stages ({FLIGHT})"), (product(tile), "tile of one thread block (m×n×k)")]
    if epilogue := re.search(r"LinearCombination(BiasRelu|BiasElementwise|Relu|Gelu|GELU|Bias)", text):
        said["epilogue"] = epilogue[1].lower().removesuffix("elementwise").replace("biasrelu", "bias+relu")
        parts.append((epilogue[0], f"its epilogue can apply {said['epilogue']}"))
    if types := float_types(text):
        said["dtype"] = TORCH[types[0]]
        parts.append((types[0], "type of the operands, the first in the name"))
    return {**said, "parts": tuple(parts)}


def _blas_types(found: re.Match) -> list[tuple[str, str]]:
    """The plain types in the template that follows: as spelled, and in torch; float2 is a complex number."""
    short = [a for a in template_arguments(found.string, found.end()) if len(a) < 40]
    return [(t, TORCH[t]) for a in short for t in (float_types(_BLAS_COMPLEX.get(a, a)))]


_BLAS_COMPLEX = {"float2": "c10::complex<float>", "double2": "c10::complex<double>"}
_BLAS_OPERAND = re.compile(r"cublasGemvTensor\w{0,40}<([\w:]{1,40}) const", re.ASCII)
# What a kernel of cuBLAS' does is a routine of BLAS' or LAPACK's in its name: (words, kind, variant)
_BLAS_ROUTINES = tuple((re.compile(words), kind, variant) for words, kind, variant in (
    ("gemmk1", "gemm", "GEMM (column times row, k = 1)"),
    ("gemmSN", "gemm", "GEMM (matrix times a few columns)"),
    ("gemv", "gemm", "GEMM (matrix times vector)"), ("(?i)gemm", "gemm", None),
    ("dot_kernel|reduce_1Block|nrm2|asum|i?am(?:ax|in)", "reduction", "reduction of a vector"),
    ("globalKernelBgrad", "reduction", "sum of a bias gradient"),
    ("epilogue::impl::globalKernel", "pointwise", "epilogue in a pass of its own"),
    ("geam|scal_|axpy|dgmm|rot", "pointwise", None), ("transpose|copy|swap|region_transform", "copy", "copy"),
    ("tr[sm][mv]|t[bp][sm]v", "other", "product or solution with a triangular matrix"),
    ("sy|he", "other", "product with a symmetric or Hermitian matrix"),
    ("getr|geqr|matinv|laswp", "other", "factorisation of small matrices"),
))


def _blas(found: re.Match) -> dict:
    """gemv2T_kernel<…>, gemmSN_TN_kernel<…>, dot_kernel<…>: the C++ kernels of cuBLAS and rocBLAS."""
    name = _PLACED.match(found.string) or found
    function, types = name[1] if name.re is _PLACED else name[0], _blas_types(name)
    kind, variant = next(((k, v) for words, k, v in _BLAS_ROUTINES if words.search(name[0])), ("other", None))
    operand = _BLAS_OPERAND.search(found.string)
    operands = [TORCH[t] for t in float_types(_BLAS_COMPLEX.get(operand[1], operand[1]))] if operand else []
    if letter := re.match("(?:fermiPlus)?([sdcz])gemm", function, re.IGNORECASE):
        operands = [kernel_words.ACCUMULATORS[letter[1].lower()]]
    letters = re.search("gemv2([NT])|gemmSN_([NT]{2})", function)
    # cuBLAS' gemv: types of A, x, y, then the one computed in; elsewhere that comes first
    accumulator = [] if "rocblas" in function else types[3:4] if "gemv" in name[0] else types[:1]
    parts = [(function, variant or "a routine of BLAS or LAPACK"),
             *((t, "a type it works with") for t in dict(types))]
    return {"kind": kind, "variant": variant, "dtype": next(iter([*operands, *(t for _, t in types)]), None),
            "layout": (letters[1] or letters[2]).lower() if letters else None,
            "accumulate_dtype": accumulator[0][1] if accumulator and kind == "gemm" else None,
            "parts": tuple(parts)}


def _split_k_sum(found: re.Match) -> dict:
    """The second half of a split-K GEMM. Which of its template's types is which is not documented."""
    types = dict(_blas_types(found))
    parts = [(found[0], "adds up the partial sums"), *((t, "a type it works with") for t in types)]
    return {"kind": "reduction", "variant": "sum of a split-K GEMM's parts",
            "dtype": next(iter(types.values())) if len(types) == 1 else None, "parts": tuple(parts)}


# Attention

_CAUSAL = {  # which of the flags after the traits is Is_causal
    "flash_fwd_kernel": 1, "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": 1, "flash_fwd_splitkv_kernel": 0,
    "compute_attn_ws": 0,
}


def _flash(found: re.Match) -> dict:
    """flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, …, type>, dropout, causal, …>.

    compute_attn_ws is FlashAttention 3's first form: its traits go on with the stages.
    """
    text, way, function = found.string, "backward" if found[2] == "bwd" else "forward", found[1] or found[3]
    said = {"kind": "attention", "variant": way}
    said["variant"] += ", combination of splits" if "combine" in function else ""
    parts = [(function, f"{way}; the scores never leave the chip")]
    if sizes := re.search(r"kernel_traits<(\d{1,4}), (\d{1,4}), (\d{1,4}), (\d{1,2})", text):
        said["variant"] += f", head dimension {sizes[1]}"
        said["tile"] = integers(sizes[2], sizes[3])
        roles = ("head dimension", "queries in a block's tile", "keys taken at a time", "warps in a block")
        parts += zip(sizes.groups(), roles, strict=True)
        if not found[2] and (stages := re.compile(r", (\d{1,2})(?=,)").match(text, sizes.end())):
            said["stages"] = int(stages[1])
            parts.append((stages[1], "stages (tiles of keys and values in flight)"))
    if types := float_types(text):
        said["dtype"] = TORCH[types[0]]
        parts.append((types[0], "type of q, k and v"))
    flags, place = template_arguments(text, found.end())[1:], _CAUSAL.get(function, 99)
    if flags[place : place + 1] in (["true"], ["false"]):
        causal = flags[place] == "true"
        said["variant"] += ", causal" if causal else ""
        parts.append((flags[place], "built for a causal mask" if causal else "built without a causal mask"))
    return {**said, "parts": tuple(parts)}


_TUPLE = re.compile(r"cute::tuple<cute::C<(\d{1,4})>, ?cute::C<(\d{1,4})>, ?cute::C<(\d{1,4})> ?>", re.ASCII)


def _flash_3(found: re.Match) -> dict:
    """FlashAttnFwdSm90<…Mainloop…<stages, cluster, tile, width of V, type, accumulator, arch, causal, …>.

    Sm80's begins with the warps in a block and says after the stages whether q stays in registers.
    """
    way, text = {"Fwd": "forward", "Bwd": "backward"}[found[1]], found.string
    helper = {"Combine": ", combination of splits", "Preprocess": ", preparation",
              "PostprocessConvertdQ": ", conversion of dq"}.get(found[2], "")
    said = {"kind": "attention", "variant": way + helper}
    parts = [(found[0].rsplit("::")[-1], f"FlashAttention 3, {way}{helper}")]
    if arch := re.compile(r"Sm(\d{2,3})").search(text):
        said["arch"] = f"sm_{arch[1]}"
        parts.append((arch[0], f"code for sm_{arch[1]}"))
    if loop := re.compile(r"CollectiveMainloop(?=Fwd|Bwd)\w{1,20}").search(text):
        given = template_arguments(text, loop.end())
        tile = next((t for a in given if (t := _TUPLE.match(a)) and int(t[1]) > 16), None)
        types = [t for a in given if len(a) < 40 for t in float_types(a)]
        stages = given[loop[0].endswith("FwdSm80") : 2]
        arch_at = next((i for i, a in enumerate(given) if a.startswith("cutlass::arch::")), len(given))
        if tile:
            said |= {"tile": integers(tile[1], tile[2]), "variant": f"{way}, head dimension {tile[3]}"}
            parts.append((tile[0], "queries and keys in a block's tile, head dimension"))
        if stages and stages[0].isdigit() and way == "forward":
            said["stages"] = int(stages[0])
            parts.append((stages[0], "stages (tiles of keys and values in flight)"))
        if types:
            said |= {"dtype": TORCH[types[0]], "accumulate_dtype": TORCH[types[1]] if types[1:] else None}
            parts += zip(types, ("type of q, k and v", "type it accumulates in"), strict=False)
        if given[arch_at + 1 : arch_at + 2] == ["true"]:
            said["variant"] += ", causal"
            parts.append(("true", "built for a causal mask"))
    elif types := float_types(text):
        said["dtype"] = TORCH[types[0]]
        parts.append((types[0], "type of the elements"))
    return {**said, "parts": tuple(parts)}


_FLASHINFER = re.compile(
    r"KernelTraits<\(?[\w:]{1,40}\)?(\d), (\d{1,4})u?, \d{1,2}u?, (\d{1,2})u?, (\d{1,2})u?, \d{1,2}u?, "
    r"\d{1,2}u?, (\d{1,2})u?,", re.ASCII)


_FLASHINFER_DECODE = re.compile(r"DecodeWith\w{1,40}<\(?[\w:]{1,40}\)?\d, (\d)u?,", re.ASCII)


def _flashinfer(found: re.Match) -> dict:
    """BatchPrefillWithPagedKVCacheKernel<KernelTraits<(MaskMode)1, queries, …>>: sizes in units of 16.

    BatchDecodeWithPagedKVCacheKernel<(PosEncodingMode)0, stages, …>.
    """
    said = _library(found, "FlashInfer")
    if traits := _FLASHINFER.search(found.string):
        mask, queries, keys_mma, depth_mma, keys_warps = map(int, traits.groups())
        causal = ", causal" if mask == 1 else ""
        said |= {"kind": "attention", "tile": (queries, 16 * keys_mma * keys_warps),
                 "variant": f"{said['variant']}, head dimension {16 * depth_mma}{causal}"}
        said["parts"] += ((traits[0], "mask (0 none, 1 causal, 2 custom), queries in a tile; in units of 16 "
                           "queries and keys of a warp, head dimensions of k and v; warps along both"),)
    elif decode_stages := _FLASHINFER_DECODE.search(found.string):
        said["stages"] = int(decode_stages[1])
        said["parts"] += ((decode_stages[1], "stages (tiles of keys and values in flight)"),)
    return said


_EFFICIENT_WORDS: tuple[Row, ...] = (
    word("fmha", "fused multi-head attention"),
    word("cutlassF", "built on CUTLASS, forward", variant="attention, forward"),
    word("cutlassB", "built on CUTLASS, backward", variant="attention, backward"),
    word(rf"({TYPE})", "type of q, k and v", dtype=TORCH.get),
    word("aligned", "head dimension and strides fit whole vector loads"),
    word("notaligned", "for any head dimension and strides"),
    word(BY, "a block takes {0} queries × {1} keys at a time", tile=integers),
    word("rf", "the output accumulates in registers (register file)"),
    word("gmem", "the output accumulates in global memory"),
    word(r"k(\d{1,5})", "head dimension up to {0}"),
    word("dropout", "with dropout"),
    word("seqaligned", "sequence lengths are multiples of the tile"),
    ARCH,
)


def _efficient(found: re.Match) -> dict:
    return spell(found[0], _EFFICIENT_WORDS, kind="attention")


_CUDNN_GENERATED_WORDS: tuple[Row, ...] = (
    word("cudnn_generated(?:_fort_native)?", "generated by cuDNN at run time"),
    word("sdpa", "scaled dot-product attention", kind="attention"),
    ARCH,
    word("flash", "FlashAttention's algorithm"),
    word("fprop", "forward", variant="attention, forward"),
    word("bprop", "backward", variant="attention, backward"),
    word("wmma", "through a warp's tensor-core instructions"),
    word("wgmma", "through a warp group's (4 warps') tensor-core instructions"),
    word("f16", "a 16-bit type: kernels of bfloat16 runs say f16 too, so float16 does not follow"),
    word(r"knob_(\d{1,4})", "variant {0}"),
    word(BY_BY, "tile of one thread block; which number is which is not documented", tile=integers),
    word(BY_BY, "arrangement of warps"),
    word(rf"cga{BY_BY}", "thread blocks in a cluster"),
    word(r"kernel\d{0,2}(?:_\d)?", "the entry point"),
)


def _cudnn_generated(found: re.Match) -> dict:
    return spell(found[0], _CUDNN_GENERATED_WORDS, kind="other")


def _trtllm(found: re.Match) -> dict:
    """fmhaSm100fKernel_QkvBfloat16OBfloat16H128…CausalP64…Q8Kv128…: attention for Blackwell."""
    text, (arch, types, operand, output) = found.string, found.groups()
    said = {"kind": "attention", "variant": "attention", "arch": f"sm_{arch}",
            "dtype": kernel_words.trtllm_type(operand)}
    parts = [("fmha", "fused multi-head attention"), (f"Sm{arch}", f"code for sm_{arch}"),
             (types, "types of q, k and v"), (f"O{output}", "type of the output")]
    if head := re.compile(r"H(?:Qk)?(\d{1,4})").search(text, found.end()):
        said["variant"] += f", head dimension {head[1]}"
        parts.append((head[0], f"head dimension {head[1]}"))
    if "Causal" in text:
        said["variant"] += ", causal"
        parts.append(("Causal", "built for a causal mask"))
    if tile := re.compile(r"Q(\d{1,4})Kv(\d{1,4})").search(text, found.end()):
        said["tile"] = integers(*tile.groups())
        parts.append((tile[0], "queries and keys in a tile"))
    return {**said, "parts": tuple(parts)}


# What Inductor makes

# Operators that can stand in a fused kernel's name, which joins them by "_" as their own names do; of each
# "…_backward" as well. An unknown stretch is left whole: nobody can say where it splits.
_OPERATORS = frozenset("""
_adaptive_avg_pool2d _assert_async _assert_scalar _efficient_attention_forward _embedding_bag
_flash_attention_forward _fused_rms_norm _grouped_mm _int_mm _log_softmax _log_softmax_backward_data
_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
_reshape_alias _safe_softmax _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu _scaled_grouped_mm _scaled_mm
_softmax _softmax_backward_data _to_copy _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_view
_upsample_bilinear2d_aa _weight_int8pack_mm _weight_norm_interface
abs acos acosh adaptive_avg_pool2d adaptive_max_pool2d add addbmm addcdiv addcmul addmm addmv alias all amax
amin aminmax any arange argmax argmin argsort as_strided as_strided_scatter asin asinh atan atan2 atanh
avg_pool1d avg_pool2d avg_pool3d baddbmm bernoulli binary_cross_entropy binary_cross_entropy_with_logits
bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm bucketize cat ceil
celu clamp clamp_max clamp_min clone col2im constant_pad_nd conv1d conv2d conv3d convert_element_type
convolution copy cos cosh cross_entropy_loss cumprod cumsum detach diag diag_embed diagonal diagonal_copy
diagonal_scatter div dot elu embedding embedding_dense_backward empty empty_like empty_permuted empty_strided
eq erf erfc erfinv exp exp2 expand expand_as expm1 exponential eye fill flex_attention flip floor
floor_divide fmax fmin fmod full full_like gather ge gelu glu grid_sampler_2d group_norm gt hardsigmoid
hardswish hardtanh huber_loss hypot im2col index index_add index_copy index_fill index_put index_select
inductor_random inductor_seeds isinf isnan kl_div layer_norm le leaky_relu lerp lift lift_fresh
lift_fresh_copy linalg_vector_norm linear linspace log log10 log1p log2 log_sigmoid log_sigmoid_forward
log_softmax logaddexp logical_and logical_not logical_or logical_xor logit logsumexp lt masked_fill
masked_scatter masked_select matmul max max_pool2d_with_indices max_pool3d_with_indices maximum mean median
min minimum mish mm mse_loss mul multinomial mv nan_to_num native_batch_norm native_dropout native_group_norm
native_layer_norm ne neg new_empty new_empty_strided new_full new_ones new_zeros nll_loss nll_loss2d_forward
nll_loss_forward nonzero norm normal one_hot ones ones_like outer permute pixel_shuffle pixel_unshuffle pow
prelu prod rand rand_like randint randn randn_like randperm reciprocal reflection_pad1d reflection_pad2d relu
remainder repeat repeat_interleave replication_pad2d reshape resize rms_norm roll round rsqrt rsub
scalar_tensor scaled_dot_product_attention scatter scatter_add scatter_reduce searchsorted select
select_scatter selu sgn sigmoid sign silu sin sinh slice slice_scatter smooth_l1_loss softmax softplus sort
split split_with_sizes sqrt square squeeze stack std std_mean sub sum t tan tanh tensordot threshold tile
topk transpose tril triu trunc unbind unfold unsafe_split unsqueeze upsample_bicubic2d upsample_bilinear2d
upsample_nearest1d upsample_nearest2d upsample_nearest3d var var_mean view view_as_complex view_as_real where
xlogy zero zeros zeros_like
""".split())
_LONGEST = max(name.count("_") for name in _OPERATORS) + 2  # words in a name that ends in _backward


def _known(operator: str) -> bool:
    return operator in _OPERATORS or operator.removesuffix("_backward") in _OPERATORS


def _operator_names(joined: str) -> list[str]:
    """_unsafe_view_gelu_mul -> _unsafe_view, gelu, mul; of several readings the longest name comes first."""
    words, found, unknown, at = joined.split("_"), [], [], 0
    while at < len(words):
        ends = range(min(at + _LONGEST, len(words)), at, -1)
        end = next((end for end in ends if _known("_".join(words[at:end]))), None)
        if end is None:
            unknown.append(words[at])
            at += 1
        else:
            found += [*filter(None, ["_".join(unknown)]), "_".join(words[at:end])]
            unknown, at = [], end
    return found + [*filter(None, ["_".join(unknown)])]


def _signature_start(text: str) -> int:
    """Where Triton 2's suffix begins (…_0d1d2de: every argument and how it is specialised), else the end."""
    at = text.rfind("_") + 1
    place, index = at, 0
    while at and text.startswith(str(index), place):
        place += len(str(index))
        while text[place : place + 1] in ("c", "d", "e"):
            place += 1
        index += 1
    return at - 1 if index > 1 and place == len(text) else len(text)


def _fused(joined: str) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """The operators in what follows "fused_" in a name, and the parts that spell it."""
    body, suffix = joined[: (end := _signature_start(joined))], joined[end + 1 :]
    names, number = re.fullmatch(r"(.*?)_?(\d{0,9})", body).groups()
    operators = tuple(_operator_names(names))
    parts = [(o, f"aten::{o}" if _known(o) else "not an operator known here, left whole") for o in operators]
    parts += [(number, "running number in the compiled program")] if number else []
    parts += [(suffix, _SPECIALISED)] if suffix else []
    return operators, parts


_FUSED = "one kernel for the operators that follow"
_SPECIALISED = "what Triton specialised each argument for"
_CATEGORIES = {  # Inductor's three letters -> kind, variant
    "poi": ("pointwise", "pointwise kernel"), "for": ("pointwise", "pointwise kernel over a list of tensors"),
    "red": ("reduction", "reduction"), "per": ("reduction", "persistent reduction"),
    "spl": ("reduction", "scan split over blocks"), "tem": ("other", "kernel from a template"),
}
_MATMULS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "_grouped_mm", "_scaled_grouped_mm"}


def _inductor_triton(found: re.Match) -> dict:
    kind, variant = _CATEGORIES.get(found[1], ("unknown", "kernel"))
    operators, parts = _fused(found[2])
    if found[1] == "tem":
        kind = "gemm" if _MATMULS & {*operators} else "attention" if "flex_attention" in operators else kind
    opening = ("triton", "compiled by Triton"), (found[1], variant), ("fused", _FUSED)
    return {"kind": kind, "variant": variant, "operators": operators, "parts": (*opening, *parts)}


def _torchscript(found: re.Match) -> dict:
    """fused_add_relu_15680171862954066917: TorchScript's compiler writes a hash behind the operators."""
    operators, parts = _fused(found[1])
    return {"kind": "pointwise", "operators": operators,
            "parts": (("fused", _FUSED), *parts, (found[2], "a hash of the graph"))}


def _nvfuser(found: re.Match) -> dict:
    return {"kind": _CATEGORIES.get((found[1] or "")[:3], ("unknown",))[0],
            "parts": ((found[0], "made by nvFuser, TorchScript's and Thunder's compiler"),)}


def _jiterator(found: re.Match) -> dict:
    """gcd_vectorized4_kernel, reduction_prod_kernel: ATen has some operators compiled when they first run."""
    name = found[1] or found[2]
    return {"kind": "pointwise" if found[1] else "reduction", "operators": (name,),
            "parts": ((found[0], f"{name}, compiled by ATen at run time"),)}


def _inductor_cpp(found: re.Match) -> dict:
    operators, parts = _fused(found[1])
    opening = ("cpp", "C++ for the CPU, made by Inductor"), ("fused", _FUSED)
    return {"operators": operators, "parts": (*opening, *parts)}


# Kernels whose Triton function has this name in Liger-Kernel (L), in Triton's own tutorials or AOTriton (T)
_BY_HAND: tuple[tuple[re.Pattern, str, str, tuple[str, ...]], ...] = tuple(
    (re.compile(pattern, re.ASCII), kind, source, tuple(operators.split()))
    for pattern, kind, source, operators in (
        ("_geglu_tanh_forward_kernel", "pointwise", "L", "gelu mul"),
        ("_geglu_tanh_backward_kernel", "pointwise", "L", "gelu_backward mul"),
        (r"_swiglu_(?:forward_kernel|kernel_forward)\w*", "pointwise", "L", "silu mul"),
        (r"_swiglu_(?:backward_kernel|kernel_backward)\w*", "pointwise", "L", "silu_backward mul"),
        (r"_relu_squared_(?:forward|backward)_kernel", "pointwise", "L", "relu square"),
        (r"_(?:triton_rope|triton_qwen2vl_mrope|llama4_rope_kernel)", "pointwise", "L", "rotary_embedding"),
        (r"_(?:block_|modulated_)?rms_norm_forward_kernel", "reduction", "L", "rms_norm"),
        (r"_(?:block_|modulated_)?rms_norm_backward_kernel", "reduction", "L", "rms_norm_backward"),
        ("_fused_add_rms_norm_forward_kernel", "reduction", "L", "add rms_norm"),
        ("_fused_add_rms_norm_backward_kernel", "reduction", "L", "add rms_norm_backward"),
        ("_(layer|group)_norm_forward_kernel", "reduction", "L", "{}_norm"),
        ("_(layer|group)_norm_backward_kernel", "reduction", "L", "{}_norm_backward"),
        (r"_poly_norm_\w+_kernel", "reduction", "L", "poly_norm"),
        (r"_dyt_(?:fwd|bwd)_kernel", "pointwise", "L", "tanh mul add"),
        (r"_softmax_\w+_block_(?:forward|backward)_kernel", "softmax", "L", "softmax"),
        ("_selective_log_softmax_kernel", "softmax", "L", "log_softmax"),
        (r"_(?:kldiv_kernel_\w+|kl_div_kernel|jsd_kernel|tv_distance_kernel)", "reduction", "L", ""),
        (r"_grpo_loss_(?:fwd|bwd)_kernel\w*", "reduction", "L", ""),
        (r"_fused_neighborhood_attention_\w+|_attn_res_(?:fwd|bwd)_kernel", "attention", "L", ""),
        (r"_mhc_\w+_kernel|_moe_(?:router|bwd)_\w+|_mask_(?:fwd|bwd)_kernel", "other", "L", ""),
        ("_neighborhood_mask_kernel|_token_gather_weighted_sum_kernel", "other", "L", ""),
        (r"_?attn_fwd\w*|_?attn_bwd\w*|bwd_kernel_(?:dk_dv|dq|fuse)|bwd_preprocess", "attention", "T", ""),
        (r"_topk_(?:for|back)ward|_(?:combined_)?routing_\w+|_sum_bitmatrix_\w+|_expt_data_\w+", "other",
         "O", ""),
        (r"_finalize_matmul\w*", "reduction", "O", ""),
        (r"kernel_unified_attention_[23]d|_fwd_(?:grouped_)?kernel_stage[12]|merge_attn_states_kernel",
         "attention", "V", ""),
        (r"fused_moe_kernel\w*|_w8a8_\w*block_\w+", "gemm", "V", ""),
        (r"_per_token_group_quant_\w+", "pointwise", "V", ""),
    )
)
_HANDS = {"L": "the name Liger-Kernel gave its Triton kernel; others have copied it",
          "O": "the name in OpenAI's triton_kernels, products of a mixture of experts",
          "V": "the name in vLLM and SGLang",
          "T": "the name in Triton's tutorials and in AOTriton, the attention of PyTorch on AMD"}
# matmul_ogs of triton_kernels: three strides' letters and three types, of the output, of x and of w
_OGS_WORDS: tuple[Row, ...] = (
    word("p?_?matmul(?:_ogs)?", "matrix multiplication of a mixture of experts, OpenAI's triton_kernels"),
    word("[NT]{3}", "of output, x and w: N where the fastest index is the inner one (not BLAS' letters)"),
    word(r"(?:[a-z]{1,2}\d{1,2})x([a-z]{1,2}\d{1,2})x(\w{2,6}?)", "types of the output, of x and of w ({1})",
          dtype=TORCH.get),
    word(rf"{BY_BY}x(\d{{1,3}})", "tile m × n × k: {0} × {1} × {2}, then split-K",
          tile=lambda m, n, k, _: integers(m, n, k), split_k=lambda *sizes: sizes[3] != "1"),
    word("o?g?s?|swiglu", "gathers (g) its rows, scatters (s) its result; a fused activation"),
)


_BLOCKS = re.compile(
    r"_BLOCK_SIZE_M_(\d{1,4})_BLOCK_SIZE_N_(\d{1,4})_BLOCK_SIZE_K_(\d{1,4})(?=_|$)", re.ASCII)


def _with_constants(found: re.Match) -> dict:
    """_gemm_…_kernel_BLOCK_SIZE_M_128_…: AITER has Triton write a kernel's constants into its name."""
    text, blocks = found[0], _BLOCKS.search(found[0])
    split = re.search(r"_NUM_KSPLIT_(\d{1,3})(?=_|$)", text)
    return {"kind": "gemm" if "gemm" in text else "unknown", "tile": integers(*blocks.groups()),
            "epilogue": "bias" if "_HAS_BIAS_1" in text else None,
            "split_k": int(split[1]) > 1 if split else None,
            "parts": ((text[: blocks.start()], "the function, and constants of its compilation"),
                      (blocks[0], "tile m × n × k: " + product(blocks.groups())))}


def _matmul_ogs(found: re.Match) -> dict:
    return spell(found[0].strip("_"), _OGS_WORDS, kind="gemm")


def _triton(found: re.Match) -> dict | None:
    """A Triton kernel written by hand, where that is certain: Triton 2's suffix, a known library's name."""
    text, start = found[0], _signature_start(found[0])
    for pattern, kind, source, operators in _BY_HAND:
        if by_hand := pattern.fullmatch(text[:start]):
            named = tuple(o.format(*by_hand.groups()) for o in operators)
            noun = {"pointwise": "pointwise kernel", "other": "kernel"}.get(kind, kind)
            variant = f"{noun} (Liger-Kernel)" if source == "L" else noun
            return {"kind": kind, "variant": variant, "operators": named, "parts": ((text, _HANDS[source]),)}
    if text.startswith("liger_"):
        return {"variant": "kernel (Liger-Kernel)", "parts": ((text, "a kernel of Liger-Kernel's"),)}
    if start == len(text) and not re.search("(?:^|_)triton(?:_|$)", text):
        return None
    parts = (text[:start].strip("_"), "the function"), (text[start + 1 :], _SPECIALISED)
    return {"parts": tuple(part for part in parts if part[0])}


# ATen

_GENERAL = "general"  # the kernel applies a function object, which the name goes on to spell
_ATEN: tuple[tuple[re.Pattern, str, str, str], ...] = tuple(
    (re.compile(pattern, re.ASCII), kind, operator, meaning)
    for pattern, kind, operator, meaning in (
        (r"vectorized_(?:templated_)?elementwise_kernel", "pointwise", _GENERAL, "neighbours share a load"),
        (r"unrolled_elementwise_kernel\w*", "pointwise", _GENERAL, "one by one: unaligned or converting"),
        (r"index_elementwise_kernel", "other", _GENERAL, "through index tensors"),
        (r"_scatter_gather_elementwise_kernel", "other", _GENERAL, "through an index tensor"),
        (r"\w*elementwise_kernel\w*", "pointwise", _GENERAL, "any strides, each place computed"),
        (r"distribution_elementwise\w*", "pointwise", _GENERAL, "fills with random numbers"),
        (r"reduce_kernel", "reduction", _GENERAL, "ATen's general reduction"),
        (r"multi_tensor_apply_kernel", "pointwise", "", "over a list of tensors (foreach, optimizers)"),
        (r"fused_dropout_kernel\w*", "pointwise", "native_dropout", "dropout and its mask"),
        (r"triu_tril_kernel", "pointwise", "", "keeps one triangle"),
        (r"softmax_warp_\w+|cunn_S\w*oft[Mm]ax\w*", "softmax", "softmax", "softmax"),
        (r"CatArrayBatchedCopy\w*", "copy", "cat", "copies several tensors into one"),
        (r"indexSelect\w+", "copy", "index_select", "copies the chosen rows"),
        (r"indexFunc\w+", "other", "index_add", "adds to the chosen rows"),
        (r"gatherTopK|radixFindKthValues", "other", "topk", "finds the largest or smallest"),
        (r"vectorized_gather_kernel", "copy", "", "copies the rows an index tensor names"),
        (r"tensor_kernel_scan\w*", "other", "", "running result along a dimension"),
        (r"(?:radix|bitonic)Sort\w+", "other", "sort", "sorts along a dimension"),
        (r"\w*layer_norm\w*|\w*LayerNorm\w*|GammaBeta\w+|cuCompute\w+", "reduction", "", "layer or RMS norm"),
        (r"\w*batch_norm\w*", "reduction", "", "batch norm"),
        (r"\w*[Gg]roup_?[Nn]orm\w*|RowwiseMoments\w*", "reduction", "", "group norm"),
    )
)
_WORDS = re.compile(r"\w+", re.ASCII)


def _aten_function(text: str) -> tuple[str, int, str, str, str] | None:
    """(function, where it ends, kind, operator, meaning) of the kernel that the name begins with."""
    words = list(_WORDS.finditer(text))
    for name in words:
        for pattern, kind, operator, meaning in _ATEN:
            if pattern.fullmatch(name[0]):
                return name[0], name.end(), kind, operator, meaning
        if text.startswith("<", name.end()):
            break
    return (name[0], name.end(), "other", _named(name[0]), "a kernel of ATen's") if words else None


_AFTER_OPERATOR = re.compile("$|cuda|out|kernel|impl|internal|update|forward")


def _named(function: str) -> str:
    """upsample_bilinear2d_out_frame -> upsample_bilinear2d: the operator that it begins with, if any."""
    words = function.split("_")
    for end in range(min(len(words), _LONGEST), 0, -1):
        ends = words[end - 1] == "backward" or _AFTER_OPERATOR.match("".join(words[end : end + 1]))
        if ends and _known(name := "_".join(words[:end])):
            return name
    return ""


def _aten(found: re.Match) -> dict | None:
    text = found.string
    if not (function := _aten_function(text)):
        return None
    name, end, kind, operator, meaning = function
    arguments = template_arguments(text, end)
    if operator == _GENERAL:
        return _aten_general(text, end, kind, [(name, meaning), *_block_shape(name, arguments)])
    types = argument_types(text, end)
    said = {"kind": kind, "operators": (operator,) if operator else ()}
    said |= {"dtype": TORCH[types[0]]} if types else {}
    if kind == "softmax":
        said |= _aten_softmax(name, arguments)
    if name == "triu_tril_kernel" and arguments[2:3] in (["true"], ["false"]):  # <type, index type, upper, …>
        types = torch_types(arguments[0])
        said |= {"operators": ("triu",) if arguments[2] == "true" else ("tril",)}
        said |= {"dtype": TORCH[types[0]]} if types else {}
    return {**said, "parts": ((name, meaning), *((t, "element type") for t in types[:1]))}


def _block_shape(name: str, arguments: list[str]) -> list[tuple[str, str]]:
    """A kernel's first numbers: vectorized_elementwise_kernel<4, …>, elementwise_kernel<128, 4, …>."""
    numbers = [a for a in arguments[:2] if a.isdigit() and len(a) < 6]
    if name.startswith("vectorized") and numbers:
        return [(numbers[0], f"{count(int(numbers[0]), 'element')} to a load or store")]
    last = "outputs to a thread" if name == "reduce_kernel" else "elements to a thread"
    return list(zip(numbers, ("threads in a block", last), strict=True)) if len(numbers) == 2 else []


_FUNCTOR = re.compile(
    r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+)|launch_(\w+?)(?:_scalar|_kernel)?"
    r"|(?:_cuda_)?(\w+?)(?:_cuda_kernel|_kernel_cuda|_kernel_impl|_internal_kernel|_kernel|CUDAKernelImpl"
    r"|KernelImplInternal|KernelImpl|_functor|Functor|Ops|_cuda_out)", re.ASCII)
_WRAPPERS = {"binary", "aunary", "bunary", "unary_op", "gpu", "gpu_index"}
_RENAMED = {
    "direct_copy": "copy", "bfloat16_copy": "copy", "float16_copy": "copy", "max_nan": "max",
    "min_nan": "min", "arg_max": "argmax", "arg_min": "argmin", "welford": "var", "mse": "mse_loss",
    "and": "all", "or": "any",
    "pow_tensor_scalar": "pow", "pow_tensor_tensor": "pow", "norm_two": "norm",
}
_ALSO = {"add": "add; sub runs it too", "mul": "mul; dividing by a number runs it too"}


def _functor(text: str, at: int) -> tuple[str, str, int] | None:
    """(identifier, operator, where it ends) of the first function object after `at`: MulFunctor is mul."""
    for identifier in _WORDS.finditer(text, at):
        if "elementwise" not in identifier[0] and (found := _FUNCTOR.fullmatch(identifier[0])):
            bare = next(filter(None, found.groups()))
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower().strip("_")
            if name not in _WRAPPERS:
                return identifier[0], _RENAMED.get(name, name), identifier.end()
    return None


def _element_type(text: str, start: int, functor_end: int | None) -> str | None:
    """The type a functor is made for: the first in its wrapper, in its template, or of its lambda."""
    wrapper = re.compile(r"(?:[AB]Unary|Binary)Functor(?=<)").search(text, start)
    argued = re.compile(r"lambda\d{0,3}'?\(([^(){}]{1,300})\)").search(text, functor_end or start)
    ends = filter(None, (wrapper and wrapper.end(), functor_end))
    places = [argument for at in ends for argument in template_arguments(text, at)]
    types = torch_types(", ".join(places)) or torch_types(argued[1] if argued else "")
    return next((t for t in types if t != "bool"), types[0] if types else None)


def _aten_general(text: str, end: int, kind: str, parts: list[tuple[str, str]]) -> dict:
    """A general kernel and the function object it applies: elementwise_kernel<128, 4, …neg_kernel_cuda…>."""
    identifier, operator, at = _functor(text, end) or ("", "", None)
    spelled = _element_type(text, end, at)
    if "OpaqueType" in text or operator == "arange" or parts[0][0].startswith("distribution"):
        spelled = None  # bytes of some size, an index, or what it computes in: not the tensor's type
    said = {"kind": kind, "dtype": TORCH[spelled] if spelled else None}
    if operator:
        said["operators"] = (operator,)
        parts.append((identifier, _ALSO.get(operator, operator)))
    if operator in ("copy", "index"):
        said["kind"] = "copy"
    if kind == "reduction" and (types := torch_types(", ".join(template_arguments(text, at or 0))))[1:]:
        said["accumulate_dtype"] = TORCH[types[1]]
    parts += [(spelled, "element type")] if spelled else []
    if operator == "copy" and (fixed := re.match("(bfloat16|float16)_copy", identifier)) and spelled:
        said |= {"dtype": fixed[1], "variant": f"copy with conversion from {TORCH[spelled]}"}
        parts[-1] = (spelled, f"type it reads; it writes {fixed[1]}")
    elif operator == "copy" and "LoadWithCast" in text:
        said["variant"] = "copy with conversion"
        parts.append(("LoadWithCast", "converts; the type it reads is not in the name"))
    return {**said, "parts": tuple(parts)}


def _aten_softmax(name: str, arguments: list[str]) -> dict:
    """softmax_warp_forward<in, out, accumulator, log2 of a row, is_log, …>, cunn_…<…, in, accumulator, …>."""
    types, warp = [t for a in arguments for t in float_types(a)], name.startswith("softmax_warp")
    log = arguments[4:5] == ["true"] if warp else any("LogSoftMax" in a for a in arguments)
    accumulator = types[2:3] if warp else types[1:2]
    return {"operators": ("log_softmax" if log else "softmax",),
            "accumulate_dtype": TORCH[accumulator[0]] if accumulator else None,
            "variant": "softmax, backward" if "ackward" in name else None}


# Other libraries, copies, communication


_CUDNN_WHAT = tuple((re.compile(f"(?i){words}"), kind, variant) for words, kind, variant in (
    ("n(?:chw|hwc)to|tensorTransform", "copy", "change of layout"), ("AddPadding|SliceC", "copy", "padding"),
    ("bn_|batchnorm", "reduction", "batch norm"), ("rnn|lstm|gru", "other", "recurrent layer"),
    ("softmax", "softmax", "softmax"), ("pooling", "other", "pooling"), ("reduce", "reduction", "reduction"),
    ("op_(?:generic_)?tensor|scale|activation", "pointwise", "pointwise kernel"),
    ("conv|grad|fprop|winograd|offsets|flip_filter|fft|indices|Kernel$", "other", "convolution")))


def _cudnn(found: re.Match) -> dict:
    """cuDNN's C++ kernels: convolutions, batch norm, recurrent layers, changes of layout around them."""
    function = re.search(r"(\w{3,80})(?=[<(]|$)", found.string, re.ASCII)
    name, end = (function[1], function.end()) if function else (found[0], found.end())
    kind, variant = next((what for words, *what in _CUDNN_WHAT if words.search(name)), ("other", None))
    said = {"kind": kind, "variant": variant}
    if "GemmShape<" in found.string:  # built on CUTLASS
        return {**_cutlass_template(found), **said}
    types = argument_types(found.string, end)[:1]
    parts = (name, f"{variant or 'a kernel'}, by cuDNN"), *((t, "element type") for t in types)
    return {**said, "dtype": TORCH[types[0]] if types else None, "parts": parts}


_FUNCTION_KINDS = tuple((re.compile(f"(?i){words}"), kind) for words, kind in (
    ("attention|attn|fmha|prefill|decodewith|mla", "attention"),
    ("norm|ln_[fb]wd|batched_?reduce", "reduction"),
    ("softmax", "softmax"),
    ("gemm|matmul|bmm|wvSplitK|marlin", "gemm"),
    ("all_?reduce|all_?gather|dispatch|combine|all_?to_?all|cross_device", "communication"),
    ("cache|permute|transpose|gather|copy", "copy"),
    ("act_and_mul|activation|silu|swiglu|gelu|rotary|rope|quant|cast", "pointwise"),
))


def _kind_of(function: str) -> str:
    return next((kind for words, kind in _FUNCTION_KINDS if words.search(function)), "other")


_PLACE = r"(?:\(anonymous namespace\)::|\w{1,60}(?:<[^<>]{0,60}>)?::){0,6}"
_PLACED = re.compile(rf"{_PLACE}(\w{{1,120}})", re.ASCII)


def _spoken(function: str) -> str:
    """BatchPrefillWithPagedKVCacheKernel -> batch prefill with paged kv cache."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+", " ", function, flags=re.ASCII)
    return re.sub(r" (?:kernel|impl)\b.*| +", lambda m: " " if m[0].isspace() else "", words.lower()).strip()


def _library(found: re.Match, title: str) -> dict:
    """A C++ kernel of the library `title`: the function that the name begins with, and its first type."""
    function = _PLACED.match(found.string, found.start("library"))
    name, end = (function[1], function.end()) if function else (found["library"], found.end())
    types = argument_types(found.string, end)[:1]
    parts = ((name, f"a kernel of {title}"), *((t, "the first type in its template") for t in types))
    arch = re.search(r"(?:^|_)sm(\d{2,3})(?=_|$)", name)
    return {"kind": _kind_of(name), "variant": _spoken(name) or name,
            "arch": f"sm_{arch[1]}" if arch else None, "dtype": TORCH[types[0]] if types else None,
            "parts": parts}


def _aiter(found: re.Match) -> dict:
    """AITER: C++ templates, and assembly whose names are words: aiter::fmha_fwd_hd128_bf16_causal."""
    said = _library(found, "AITER, AMD's kernels for inference")
    spelled = {} if "<" in found.string else kernel_words.aiter(said["parts"][0][0])
    if spelled.get("kind") == "gemm":
        said.pop("variant")
    return {**said, **spelled} if spelled.get("kind") else said


def _deepgemm(found: re.Match) -> dict:
    """deep_gemm::sm90_fp8_gemm_1d2d_impl<…, output's type>: operands are named by the function."""
    said = _library(found, "DeepGEMM")
    named = re.search("_?(bf16|tf32)_", said["parts"][0][0])
    return {**said, "dtype": TORCH[named[1]] if named else None, "parts": said["parts"][:1]}


_CK_LAYOUTS = {"RowMajor, ColumnMajor": "tn", "RowMajor, RowMajor": "nn", "ColumnMajor, ColumnMajor": "tt",
               "ColumnMajor, RowMajor": "nt"}  # CK's A is BLAS' B: what cuBLAS calls the same product
_CK_GRID = re.compile(r"Gridwise\w{1,80}<")
_CK_TILE = re.compile(  # threads, of scaled operands the m, n, k that share a scale, tile, loads, instruction
    r"(?<=[ ,])(?:64|128|192|256|512), (\d{1,4}), (\d{1,4}), (\d{1,4}), "
    r"(?:(\d{1,4}), (\d{1,4}), (\d{1,4}), )?\d{1,2}, \d{1,2}, \d{1,2}, \d{1,2}", re.ASCII)
_CK_TYPE = re.compile(
    r"(?<=[<, ])(unsigned short|__bf16|_Float16|float|double|signed char|ck::(?:bf8|f8)_\w{3,4}_t)(?=[,>])")
_CK_TYPES = {"unsigned short": "bfloat16",  # so it keeps one
             "ck::f8_fnuz_t": "float8_e4m3fnuz", "ck::bf8_fnuz_t": "float8_e5m2fnuz",
             "ck::f8_ocp_t": "float8_e4m3fn", "ck::bf8_ocp_t": "float8_e5m2"}
_CK_WHAT = tuple((re.compile(f"(?i){words}"), kind, variant) for words, kind, variant in (
    ("conv", "other", "convolution"), ("fmha|attention", "attention", "attention"),
    ("norm", "reduction", "norm"), ("softmax", "softmax", "softmax"), ("reduce", "reduction", "reduction"),
    ("gemm", "gemm", None), ("elementwise", "pointwise", None)))
_CK_EPILOGUE = re.compile(r"element_wise::(Add)?(?:Add)?(Relu|(?:Fast)?Gelu|Silu|Swish)?\b")


def _composable(found: re.Match) -> dict:
    """AMD's Composable Kernel: Gridwise…<layouts, types, …, threads, m, n, k, …> or ck_tile's BlockTile."""
    text = found.string
    kind, variant = next((what for words, *what in _CK_WHAT if words.search(text)), ("other", None))
    said = {"kind": kind, "variant": variant}
    parts = [(found[0].strip(":"), "AMD's Composable Kernel")]
    grid = _CK_GRID.search(text)
    if grid and text[grid.end() :][:1].isdigit():  # an older kernel, whose tile is far behind
        grid = None
    if grid and (tile := _CK_TILE.search(text, grid.end())):
        scaled = tile[4] and "Scale" in grid[0]
        said["tile"] = integers(*(tile.groups()[3:] if scaled else tile.groups()[:3]))
        parts.append((tile[0], f"threads in a workgroup, {'what shares a scale, ' if scaled else ''}"
                      "its tile (m, n, k), then how it is loaded"))
    if fmha := re.search(r"TileFmhaShape<ck_tile::sequence<(\d{1,4}), (\d{1,4}),", text):
        said["tile"] = integers(*fmha.groups())
        parts.append((fmha[0], "queries and keys in a tile"))
    letters = re.compile(r"gemm::(\w{1,3}\w+Major), (?:ck::)?tensor_layout::gemm::(\w+Major)").search(text)
    if letters and kind == "gemm":
        said["layout"] = _CK_LAYOUTS.get(f"{letters[1]}, {letters[2]}")
        parts.append((letters[0], "how A and B lie"))
    if operand := _CK_TYPE.search(text, grid.end() if grid else found.end()):
        said["dtype"] = _CK_TYPES.get(operand[0]) or TORCH.get(operand[0])
        parts.append((operand[0], "type of the operands"))
    for step in _CK_EPILOGUE.finditer(text):
        steps = "bias" if step[1] else "", (step[2] or "").lower().removeprefix("fast")
        if any(steps):
            said["epilogue"] = "+".join(filter(None, steps))
            parts.append((step[0], f"its epilogue applies {said['epilogue']}"))
            break
    return {**said, "parts": tuple(parts)}


def _cub(found: re.Match) -> dict:
    """DeviceRadixSortOnesweepKernel, thrust's …ParallelForAgent: an algorithm over the whole device."""
    name = re.compile(r"\bDevice(\w{1,60}?)Kernel|\b(\w{1,60}?)Agent\b").search(found.string)
    words = (name[1] or name[2]) if name else "algorithm over the whole device"
    what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", words).lower()
    kind = "reduction" if what.startswith("reduce") else "other"
    return {"kind": kind, "variant": what, "parts": ((name[0] if name else found[0], what),)}


_NCCL_MOVES = "AllGatherV?|Broadcast|SendRecv|AllToAll\\w*|Gather|Scatter"
_NCCL_WORDS: tuple[Row, ...] = (
    word("nccl(?:Dev)?Kernel(?:Debug)?", "NCCL, NVIDIA's library for work across GPUs"),
    word("ncclSymk?DevKernel", "NCCL, through buffers that all GPUs of the job have mapped"),
    word("mscclKernel|rcclGenericKernel", "RCCL, AMD's NCCL"),
    word("copy", "only moves data"),
    word(rf"({_NCCL_MOVES}|AllReduce|ReduceScatter|Reduce)", "the collective", operators=lambda *name: name),
    word("[Ss]um|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv", "how values are combined"),
    word("RING|TREE|COLLNET(?:_DIRECT|_CHAIN)?|NVLS(?:_TREE)?|PAT", "algorithm: the path between GPUs"),
    word("LL128|LL|SIMPLE", "protocol: LL and LL128 for low latency, SIMPLE for bandwidth"),
    word(rf"({'|'.join(sorted((t for t in TORCH if t.isidentifier()), key=len, reverse=True))})",
          "type of the elements", dtype=TORCH.get),
)


def _nccl(found: re.Match) -> dict:
    """ncclDevKernel_AllReduce_Sum_bf16_RING_LL; older: ncclAllReduceRingLLKernel_sum_f32."""
    text = _OLD_NCCL.sub(lambda old: "_".join(("ncclKernel", old[1], (old[2] or "").upper(), old[3] or "")),
                         found[0])
    said = spell(text, _NCCL_WORDS, kind="communication")
    if re.search(f"_(?:{_NCCL_MOVES})(?:_|$)", text) and said.pop("dtype", None):
        meaning = "bytes: a collective that only moves data has one kernel for every type"
        said["parts"] = tuple((token, meaning if token in TORCH else m) for token, m in said["parts"])
    return said


_OLD_NCCL = re.compile(
    r"^nccl(AllReduce|ReduceScatter|Reduce|AllGather|Broadcast|SendRecv)"
    r"(Ring|Tree|CollNet)?(LL128|LL)?Kernel", re.ASCII)
_ENDS = {"H": "host", "D": "device", "P": "peer device", "A": "array"}


def _memcpy(found: re.Match) -> dict:
    """Memcpy HtoD (Pageable -> Device): a row the profiler writes, not a kernel."""
    source, target = _ENDS.get(found[1], found[1]), _ENDS.get(found[2], found[2])
    parts = [("Memcpy", "copy"), (f"{found[1]}to{found[2]}", f"from {source} to {target}")]
    if found[3]:
        staged = "; pageable host memory is staged through pinned memory" if "Pageable" in found[3] else ""
        parts.append((found[3], "kinds of memory" + staged))
    return {"kind": "copy", "variant": f"memory copy, {source} to {target}", "parts": tuple(parts)}


def _runtime_copy(found: re.Match) -> dict:
    """[CUDA memcpy HtoD], CopyHostToDevice, __amd_rocclr_copyBuffer: other tools' and AMD's words for it."""
    ends = re.search("(?i)(host|device|[hd])-?to-?(host|device|[hd])", found[0])
    fills = re.search("(?i)memset|fill", found[0])
    what = "memory set" if fills else "memory copy"
    if ends and not fills:
        what += ", {} to {}".format(*(_ENDS[end[0].upper()] for end in ends.groups()))
    return {"kind": "memset" if fills else "copy", "variant": what, "parts": ((found[0], what),)}


def _memset(found: re.Match) -> dict:
    return {"kind": "memset", "variant": "memory set", "parts": ((found[0], "fills memory with one value"),)}


# All families, tried in this order

_LIBRARIES = (  # family, where its names begin, what it is called
    ("vllm", r"vllm::|paged_attention_(?=\w)|wvSplitK(?=\w)", "vLLM"),
    ("sglang", r"(?:sgl|sglang|sgl_\w{1,10})::|(?:store_kvcache|fused_rope_kernel|clamp_position_kernel"
               r"|resolve_future_token_ids_kernel)(?=<)", "SGLang"),
    ("marlin", r"marlin\w{0,20}::", "Marlin, products with quantised weights"),
    ("trtllm", r"(?:tensorrt_llm|trtllm\w{0,20}|moe::dev)::", "TensorRT-LLM"),
    ("deepep", r"(?:deep_ep|dpsk::ep)::", "DeepEP"),
    ("fbgemm", r"fbgemm_gpu::|(?:\w{1,20}_)?(?:split|dense|ssd)_embedding_(?=\w)|bounds_check_indices_(?=\w)"
               r"|(?:de)?linearize_(?:unique_|cache_)?ind(?:ex|ices)_(?=\w)"
               r"|permute_(?:pooled|multi)_embs_(?=\w)"
               r"|permute_[12]D_(?=\w)|recat_copy_async_(?=\w)|l[rfx]u_cache_(?=\w)|lxu_cache_(?=\w)"
               r"|reorder_batched_(?=\w)|keyed_jagged_(?=\w)|_?(?:block_)?bucketize_sparse_(?=\w)",
     "FBGEMM, embedding tables"),
    ("mslk", r"mslk::", "MSLK, Meta's kernels for language models"),
    ("torchao", r"torchao::", "torchao"),
    ("torchvision", r"vision::ops::", "torchvision"),
    ("apex", r"layer_norm::(?=ln_)|scaled_(?:\w{1,30}_)?masked_softmax_warp_(?=\w)"
             r"|cu(?:Apply|Compute)(?=\w{0,40}(?:Norm|Grad))", "apex; others have copied it"),
    ("transformer-engine", r"transformer_engine::", "Transformer Engine"),
    ("bitsandbytes", r"k(?:Quantize|Dequantize|gemm_4bit|Optimizer|Precondition)\w{0,60}(?=<)",
     "bitsandbytes"),
    ("mamba", r"selective_scan_(?=[fb]wd)|causal_conv1d_(?=\w)", "Mamba"),
    ("magma", r"magma\w{0,40}(?=<)|(?:gemm|herk|syrk|tr[sm]m)_template_(?=\w)"
              r"|[sdcz](?:ge(?:tf2|trf|qr|mm)|potf2|potrf|laswp|trsv|trtri|lar|lacpy|laset|scal_)\w{0,60}"
              r"kernel(?=\w{0,20}<)", "MAGMA, inside cuBLAS and PyTorch"),
    ("c10d", r"c10d::|(?:one|two)_shot_all_reduce_(?=\w)|multimem_(?=\w)", "PyTorch's symmetric memory"),
    ("cusparse", r"cusparse\w{0,20}::", "cuSPARSE"),
    ("cusolver", r"cusolver\w{0,20}::|getrf_pivot(?=<)|ipiv_\w{1,30}(?=<)|xxtrf4_\w{1,30}", "cuSOLVER"),
    ("cufft", r"(?:DSE::)?(?:regular|vector|multi_bluestein|composite_\dway)_fft|[dsh]pRadix\w{1,20}::",
     "cuFFT"),
    ("rocprim", r"rocprim::", "rocPRIM, AMD's CUB"),
)
_GENERATION = rf"(?:(?<=_)|\b)(?:{'|'.join(kernel_words.GENERATIONS)})_"
_FLOAT_OR_INT = r"(?:u?[a-z]{1,3}\d{1,2}(?:x\d{1,2})?_)?"
# Family, letters that every such name has (to look for them is quicker than the pattern), pattern, reader
_FAMILIES: tuple[tuple[str, str, re.Pattern, Callable[[re.Match], dict | None]], ...] = tuple(
    (family, needle, re.compile(opening, re.ASCII), read)
    for family, needle, opening, read in (
        ("memcpy", "", r"^Memcpy ([A-Z])to([A-Z])(?: \(([^()]{1,60})\))?", _memcpy),
        ("memcpy", "", r"^\[CUDA memcpy [\w-]{1,20}\]|^Copy(?:Host|Device)To(?:Host|Device)\b|^Memcpy\b"
                       r"|^__amd_rocclr_copyBuffer\w*", _runtime_copy),
        ("memset", "", r"^Memset\b", _memset),
        ("memset", "", r"^\[CUDA memset\]|^__amd_rocclr_fillBuffer\w*|^FillBuffer\b", _runtime_copy),
        ("nccl", "ccl", r"\bnccl(?:Symk?)?(?:Dev)?Kernel(?:Debug)?_\w+|\bnccl\w{4,40}Kernel_\w+"
                        r"|\bmscclKernel_\w+|\brcclGenericKernel", _nccl),
        ("triton", "", r"^triton_([a-z]{3})_fused_(\w*)$", _inductor_triton),
        ("inductor-cpp", "", r"^(?:graph_\d{1,6}_)?cpp_fused_(\w*)$", _inductor_cpp),
        ("torchscript", "fused_", r"^fused_(\w*?)_?(\d{15,20})$", _torchscript),
        ("nvfuser", "", r"^(?:CudaCodeGen::kernel\d|nvfuser_([a-z]{3})?|__tmp_kernel_)\w*", _nvfuser),
        ("aten", "_kernel",
         r"^(\w{1,60}?)(?:_kernel)?_vectorized\d{1,2}_kernel$|^reduction_(\w{1,60}?)_kernel$", _jiterator),
        ("nvjet", "nvjet_", r"\bnvjet_\w+", kernel_words.nvjet),
        ("xmma", "_xmma_", r"\bsm\d{2,3}_xmma_\w+", kernel_words.xmma),
        ("cudnn", "cudnn_generated_", r"\bcudnn_generated_\w+", _cudnn_generated),
        ("efficient", "fmha_cutlass", r"\bfmha_cutlass[FB]_\w+", _efficient),
        ("trtllm", "", r"^fmhaSm(\d{2,3})\w?Kernel_(Q(?:kv)?([A-Z][a-z0-9]{2,8})(?:Kv[A-Z][a-z0-9]{2,8})?)"
                       r"O([A-Z][a-z0-9]{2,8})(?=H)", _trtllm),
        ("trtllm", "", rf"^(?:[Bb]mm|[Gg]emm)_{kernel_words.TRTLLM_TYPE}_{kernel_words.TRTLLM_TYPE}\w+",
         kernel_words.trtllm_gemm),
        ("trtllm", "", r"^fmha_v2_\w+", kernel_words.trtllm_fmha),
        ("flash", "FlashAttn",
         r"\bflash::(?:\w{1,40}::)?FlashAttn(Fwd|Bwd)(Sm\d{2,3}|Combine|Preprocess|Postprocess\w{0,20})",
         _flash_3),
        ("flash", "", r"^kernel_cutlass_\w*(?i:flash_?att)\w*", _cute),
        ("cutlass", "", r"^kernel_cutlass_\w+", _cute),
        ("flash", "flash_", r"\b(flash_(fwd|bwd)_\w+)()", _flash),
        ("flash", "flash::", r"\bflash::()()(compute_attn_ws)\w*", _flash),
        ("cutlass", "cutlass",
         r"\bcutlass(?:3x)?_(?:(?:sm)?\d{2,3}_)?(?:wmma_)?(?:[bs][sp]tensorop|tensorop|simt)_\w+",
         kernel_words.cutlass),
        ("cudnn", "cudnn", rf"{_GENERATION}{_FLOAT_OR_INT}[ship]\d{{0,6}}cudnn_\w+",
         kernel_words.cudnn_convolution),
        ("cudnn", "_first_layer", rf"{_GENERATION}first_layer_\w+", kernel_words.cudnn_convolution),
        ("cublas", "gemm", rf"{_GENERATION}\w+", kernel_words.cublas),
        ("cublas", "gemm", r"^(?:openai_)?[sdczh]gemm_(?:\d{1,3}x\d{1,3}x\d|sm\d)\w*",
         kernel_words.old_cublas),
        ("cublas", "gem", r"\b(?:gemvx::kernel|gemv\w{0,30}|gemmSN_\w{0,30})(?=<|$)", _blas),
        ("cublas", "splitK", r"\bsplitKreduce_kernel", _split_k_sum),
        ("cudnn", "cudnn", r"\b(?:cudnn|(?:cask|xmma|cutlass)_\w*cudnn\w*)::|\bcudnn[A-Z]\w", _cudnn),
        ("cudnn", "", r"^xmma::ext::|^(?:nchw|nhwc|folded)\w{1,40}Kernel\b|^fft[12]d_[cr]2[cr]_"
                      r"|^flip_filter(?=<)|^(?:implicit|explicit|precomputed)_convolve"
                      r"|^(?:convolve|[dw]grad)\w{0,20}_engine"
                      r"|^(?:persist)?RNN_\w|^(?:LSTM|GRU)_\w|^elemWiseRNNcell\b|^ampere_lstm_\w", _cudnn),
        ("cutlass", "cutlass::", r"\bcutlass::(?:device_kernel|Kernel2?)\b", _cutlass_template),
        ("cub", "", r"^(?:at_cuda_detail::)?(?:cub|thrust)::", _cub),
        ("tensile", "Cij", r"(?:^|_)(Cijk?_\w+)", kernel_words.tensile),
        ("miopen", "", r"^igemm_\w+", kernel_words.igemm),
        ("miopen", "", r"^(?:miopen|MIOpen|mlo|naive_conv_|batched_transpose_|SubTensorOp|Op[1-5]dTensor"
                       r"|OpTensor|gridwise_|mlir_gen_igemm|Im[23]d2Col|Col2Im[23]d|Conv_Winograd"
                       r"|UniversalTranspose"
                       r"|transpose_(?:NCHW|CNHW|packed))\w*", kernel_words.miopen),
        ("ck", "", r"^ck(?:_tile)?::", _composable),
        ("rocblas", "", r"^rocblas_\w+", _blas),
        ("flashinfer", "", r"^(?P<library>flashinfer::)", _flashinfer),
        ("aiter", "", r"^(?P<library>aiter::)", _aiter),
        ("deepgemm", "", r"^(?P<library>deep_gemm::)", _deepgemm),
        *((family, "", rf"^(?:\(anonymous namespace\)::)?(?P<library>{opening})",
           partial(_library, title=title)) for family, opening, title in _LIBRARIES),
        ("aten", "at::", r"^at::|\bat::native::", _aten),
        ("aten", "", r"^(?:\(anonymous namespace\)::)?(?:softmax_warp_(?:for|back)ward"
                     r"|multi_tensor_apply_kernel|indexing_backward_kernel\w*|compute_cuda_kernel(?=<))",
         _aten),
        ("cublas", "cublas", r"\bcublas(?:Lt)?(?:[A-Z]\w|::)", _blas),
        ("cublas", "", r"^epilogue::impl::globalKernel|^internal::region_transform|^gemmk1_kernel(?=<)"
                       r"|^(?:reduce_1Block_kernel|[sdcz]gemm(?:1x1|_largek)\w*|(?:batch_)?gemm_kernel\w*"
                       r"|batch_gemm\w+|fermiPlus\w+|(?:batch_)?tr[sm]m\w*kernel\w*|kernel_trsm\w+|trsv_l\w+"
                       r"|syhe[rm]\w+|ge(?:trf|tri|qr)\w*_\w+|geam_kernel)(?=[<(])", _blas),
        ("triton", "", r"^_?p?_?matmul_(?:ogs_)?[NT]{3}_\w+", _matmul_ogs),
        ("triton", "_BLOCK_SIZE_M_", rf"^\w+?(?={_BLOCKS.pattern})\w+$", _with_constants),
        ("triton", "", r"^\w+$", _triton),
    )
)
