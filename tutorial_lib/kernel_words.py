"""Kernel names that are words joined by "_": GEMMs and convolutions of NVIDIA's and AMD's libraries.

A vocabulary is a tuple of rows, each of them a pattern, what it means in words and the fields that it fills;
`spell` reads a name with it. A new word is one row. Sources: CUTLASS' name generator
(python/cutlass_library), Tensile's and hipBLASLt's ProblemType, MIOpen's solvers, cuBLASLt's epilogues.
NVIDIA documents the names of cuBLAS, cuDNN, XMMA and nvjet nowhere: what is said of those was read off runs
whose types, strides and grids are known, and off the names that the libraries hold, and no more.
"""

import re
from collections.abc import Callable, Iterable

from .cpp_names import TORCH

Said = tuple[list[tuple[str, str]], dict]  # what a token says: (token, meaning) pairs, the fields it fills
Row = tuple[re.Pattern, frozenset[str], Callable[[re.Match], Said]]


def row(pattern: str, fields: str, read: Callable[[re.Match], Said]) -> Row:
    """A token `read` makes sense of; it fills `fields` (their names, in one string)."""
    return re.compile(rf"(?:{pattern})(?=_|$)", re.ASCII), frozenset(fields.split()), read


def word(pattern: str, meaning: str, **fields) -> Row:
    """A token of one meaning, in which {0}, {1} are the token's groups and {dtype} and so on the fields.

    A field's value is taken as it stands, or made from the groups where it is a function.
    """

    def read(found: re.Match) -> Said:
        groups = found.groups()
        said = {field: value(*groups) if callable(value) else value for field, value in fields.items()}
        return [(found[0], meaning.format(*groups, **said))], said

    return row(pattern, " ".join(fields), read)


_ANY = re.compile(r"[^_]+")


def spell(text: str, rows: tuple[Row, ...], *, rest: str | None = "not documented", **known) -> dict:
    """Read `text` from left to right, each token by the first row that fits and fills a field still empty.

    So 128x64_64x3_1x2 can be three rows: the tile, then the stages, then what fills nothing.
    """
    said, parts, at = {}, [], 0
    while at < len(text):
        for pattern, fields, read in rows:
            if (found := pattern.match(text, at)) and not (fields and fields <= said.keys()):
                tokens, new = read(found)
                new = new if found.end() < len(text) else _uncut(new)
                parts, said, at = parts + tokens, {**new, **said}, found.end()
                break
        else:
            if found := _ANY.match(text, at):
                parts += [(found[0], rest)] if rest else []
                at = found.end()
        at += text.startswith("_", at)
    return {**known, **_settle(said), "parts": tuple(parts)}


def _uncut(said: dict) -> dict:
    """What the last token says without a number that may have been cut: 64x1 of 64x16, 128x25 of 128x256.

    No library ends a name in its stages, and tiles are multiples of 8.
    """
    cut = {"stages", "k"} | ({"tile"} if said.get("tile", (0,))[-1] % 8 else set())
    return {field: value for field, value in said.items() if field not in cut}


_EPILOGUE = ("bias", "activation", "aux", "bias_gradient")


def _settle(said: dict) -> dict:
    """Fields that tokens fill together: k completes the tile; a type spelled out wins over a letter's; the
    epilogue's steps join in the order in which they happen."""
    said = {field: value for field, value in said.items() if value is not None}
    if steps := [said.pop(step) for step in _EPILOGUE if step in said]:
        said["epilogue"] = "+".join(steps)
    implied, k, tile = said.pop("implied_dtype", None), said.pop("k", None), said.get("tile")
    said = {"dtype": implied, **said} if implied else said
    return {**said, "tile": (*tile, k)} if k and tile and len(tile) == 2 else said


def integers(*groups: str) -> tuple[int, ...]:
    return tuple(map(int, groups))


def product(numbers: Iterable[int]) -> str:
    return "×".join(map(str, numbers))


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# What the libraries' names have in common

TYPE = "bf16|fp16|f16|tf32|fp32|f32|fp64|f64|e4m3|e5m2|int32|int8|s8|i8|u8|s32|i32|cf32|cf64"
BY = r"(\d{1,4})x(\d{1,4})"
BY_BY = r"(\d{1,4})x(\d{1,4})x(\d{1,4})"
FLIGHT = "pieces of k in flight in shared memory"

# cuBLAS counts columns first, so a row-major matrix reads as its transpose. A row-major y [M, N] = a [M, K] ·
# b [K, N] is asked for as yᵀ = bᵀ · aᵀ: BLAS' A is PyTorch's second matrix. A contiguous b reads as bᵀ, as
# wanted: N. b = W.t() of a contiguous W [N, K] reads as b, the transpose of that: T. So too a, second letter.
_LAYOUTS = {
    "nn": "A and B are read as they lie (n), as column-major matrices: PyTorch's x @ w with both row-major, "
          "w being BLAS' A",
    "tn": "A is read transposed (t), B as it lies (n), as column-major matrices: PyTorch's x @ W.t() with "
          "nn.Linear's weight [out, in], which is BLAS' A; neither is copied",
    "nt": "A is read as it lies (n), B transposed (t), as column-major matrices: PyTorch's g.t() @ x, as in "
          "the gradient of nn.Linear's weight",
    "tt": "A and B are read transposed (t), as column-major matrices: PyTorch's a.t() @ b.t() with a and b "
          "row-major",
}
_LETTERS = {"n": "as it lies", "t": "transposed", "c": "conjugated and, in cuBLAS' names, transposed",
            "h": "conjugated and transposed"}


def layout(found: re.Match) -> Said:
    """Two letters for A and B in BLAS' sense; what follows them is the output's and is not read further."""
    letters, output = found[1].lower(), found[0][2:].strip("_")
    meaning = _LAYOUTS.get(letters) or "of column-major matrices A is read {}, B {}".format(
        *(_LETTERS[letter] for letter in letters))
    return [(found[0], meaning + (f"; then {output} for the output" if output else ""))], {"layout": letters}


def _stages(found: re.Match) -> Said:
    """64x3: how far a tile advances along k, and how many such pieces are in flight."""
    k, stages = integers(*found.groups())
    meaning = f"takes {k} along k at a time, in {count(stages, 'stage')} ({FLIGHT})"
    return [(found[0], meaning)], {"k": k, "stages": stages}


def _output_type(found: re.Match) -> Said:
    return [(found[0], f"the output is {TORCH[found[0]]}")], {}


_SM = r"(1\d\d|[2-9]\d)"
ARCH = word(rf"sm{_SM}", "code for {arch}", arch="sm_{}".format)
_TILE_MEANING = "each thread block computes a tile of {0} × {1} outputs (m × n)"
_DEEP_MEANING = _TILE_MEANING + ", {2} along k at a time"
_TILE = word(BY, _TILE_MEANING, tile=integers)
_DEEP_TILE = word(BY_BY, _DEEP_MEANING, tile=integers)
_STAGES = row(rf"(?:stages_)?{BY}", "stages", _stages)
_SPLIT_K = word("splitK", "thread blocks share out k, and their partial sums are added up", split_k=True)
_NHWC = word("(nd?hwc)(?:_nd?hwc){0,2}", "tensors lie batch, (depth,) height, width, channel", layout=str)
_GROUPS = word(r"g(\d{1,4})", "groups of the convolution's channels: {0}")
_FILTER = word(r"t(\d{1,2})x?r(\d{1,2})x?s(\d{1,2})", "filter of {0} × {1} × {2} (depth, height, width)")
# Named as in cuBLASLt's CUBLASLT_EPILOGUE_…: GELU_AUX keeps gelu's input, RELU_AUX where it was above 0.
_EPILOGUES: tuple[Row, ...] = (
    word(rf"v?bias(?:_(?:{TYPE}))?", "its epilogue can add a bias", bias="bias"),
    word("relu", "its epilogue can apply relu; such kernels serve plain matmuls too", activation="relu"),
    word("(gelu)_erf", "its epilogue can apply {0}, by the error function", activation=str),
    word("(leaky_relu|gelu|silu|swish|sigmoid|tanh)", "its epilogue can apply {0}", activation=str),
    word("(drelu|dgelu)", "its epilogue can multiply by the activation's derivative", activation=str),
    word(rf"aux(?:_(?:bool|{TYPE}))?",
         "and can keep what the activation received for backward, or read it there", aux="aux"),
    word("(?:bgrad|dbias)[ab]?", "its epilogue can sum up a bias gradient", bias_gradient="bias gradient"),
    word("scalemax", "and can scale the output and find its largest absolute value, for FP8"),
    word("valpha|vbeta", "one factor for every channel rather than one for all"),
    word(r"epiVs(\d{1,3})n", "{0} elements of the output share a scale"),
)

ACCUMULATORS = {"s": "float32", "h": "float16", "d": "float64", "i": "int32", "c": "complex64",
                "z": "complex128", "gc": "complex64", "gz": "complex128"}
_INSTRUCTIONS = {
    "884": (8, 8, 4), "1688": (16, 8, 8), "16816": (16, 8, 16), "16832": (16, 8, 32), "16864": (16, 8, 64),
    "168128": (16, 8, 128), "168256": (16, 8, 256), "8816": (8, 8, 16), "8832": (8, 8, 32),
    "161616": (16, 16, 16), "32816": (32, 8, 16), "83216": (8, 32, 16),
}
_OPERATIONS = {
    "gemm": "matrix multiplication", "spgemm": "matrix multiplication with a 2:4 sparse A",
    "cudnn": "convolution, by cuDNN", "fprop": "convolution, forward", "deconv": "convolution, transposed",
    "dgrad": "convolution, gradient of the input", "wgrad": "convolution, gradient of the weight",
}
# BLAS' products of symmetric, Hermitian and triangular matrices; mm is a product, rk(x) and r2k updates
_STRUCTURED = "symm|hemm|trmm(?:_out_place)?|syrkx?|syr2k|herkx?|her2k"
_STRUCTURES = {"sy": "symmetric", "he": "Hermitian", "tr": "triangular"}


def _structured(operation: str) -> str:
    """symm -> product with a symmetric matrix; herk -> Hermitian rank-k update, A · Aᴴ added to C."""
    kind = _STRUCTURES[operation[:2]]
    return f"product with a {kind} matrix" if "mm" in operation else f"{kind} rank-k update"


def _operation(name: str) -> tuple[str, dict]:
    """What the word means, and the fields that it fills."""
    if re.fullmatch(_STRUCTURED, name):
        return _structured(name), {"kind": "other", "variant": _structured(name)}
    convolution = name.removeprefix("implicit_gemm_").removeprefix("strided_").removeprefix("grouped_")
    meaning = _OPERATIONS[convolution]
    if convolution != name:
        meaning += ", done as a matrix product whose matrix is never formed"
    return meaning, {"kind": "gemm"} if "gemm" in convolution else {"kind": "other", "variant": "convolution"}


def _core(found: re.Match) -> Said:
    """s16816gemm: the accumulator, a tensor-core instruction's m, n, k, at times a type, the operation."""
    letter, shape, math, operation, types = found.groups()
    meaning, said = _operation(operation)
    accumulator, last = ACCUMULATORS[letter], (operation, meaning)
    said["accumulate_dtype"] = accumulator
    if not shape:  # sgemm: one letter says all, and there is no tensor-core instruction
        said["implied_dtype"] = None if letter == "i" else accumulator
        meaning = f"{accumulator} arithmetic on the CUDA cores, without tensor cores"
        meaning += ", a complex product by three real ones" if letter.startswith("g") else ""
        return [(letter, meaning), last], said
    size = integers(*shape.split("x")) if "x" in shape else _INSTRUCTIONS.get(shape)
    meaning = f"tensor-core instruction {product(size)} (m×n×k)" if size else "a tensor-core instruction"
    if letter in ("h", "d", "z", "gz"):
        said["implied_dtype"] = accumulator
    elif letter == "s" and size == (8, 8, 4):
        said["implied_dtype"] = "float16"  # Volta's tensor cores take nothing else
    elif letter in ("s", "c") and size == (16, 8, 8) and not math and not types:
        # no type is spelled: operands are of the accumulator's, and this shape takes TF32
        said["implied_dtype"] = "tfloat32" if letter == "s" else "complex64"
        meaning += "; it rounds its float32 operands to TF32"
    parts = [(letter, f"accumulates in {accumulator}"), (shape, meaning)]
    if math and "x" in math:
        math = math.strip("_")
        parts.append((math, f"float32 products, each put together from {math[0]} of bfloat16 pieces"))
    elif math:
        said["dtype"] = TORCH[math]
        parts.append((math, f"operands are rounded to {TORCH[math]} before they are multiplied"))
    return [*parts, last], said | {"instruction": size}


_CORE = (rf"(gc|gz|[shdicz])((?:\d{{1,3}}x){{2}}\d{{1,3}}|\d{{3,6}})?({TYPE}|_?\dxbf16)?"
         r"((?:implicit_gemm_(?:strided_|grouped_)?)?(?:fprop|dgrad|wgrad|deconv)|(?:sp)?gemm|cudnn"
         rf"|{_STRUCTURED})"
         rf"(?=((?:_relu|_optimized|_analytic)?_(?:{TYPE})(?=_))?)")
_CORE_ROWS: tuple[Row, ...] = (
    row(rf"(?:{TYPE})(?=_(?:gc|gz|[shdicz])[x\d]{{0,14}}(?:{TYPE})?(?:gemm|cudnn))", "", _output_type),
    row(_CORE, "accumulate_dtype", _core),
    word(rf"({TYPE})", "operands A and B are {dtype}", dtype=TORCH.get),
    _TILE, _DEEP_TILE, _STAGES,
    row("([ntch][ntch])[nt]?", "layout", layout),
    word(r"align(\d{1,3})", "alignment of the operands, in elements: {0}", alignment=int),
    *_EPILOGUES,
    word(r"sliced(\d{1,2})x(\d{1,2})", "the warps of a block share out k as well, {0} × {1}"),
    word("(upper|lower)", "of the structured matrix the {0} triangle"),
    word("planar_complex", "real and imaginary parts lie apart"),
    _NHWC, _SPLIT_K,
)


# NVIDIA: CUTLASS, cuBLAS, cuDNN, XMMA, nvjet, TensorRT-LLM

_WORD_TYPE = rf"{TYPE}|cf16|cbf16|f8|f6|f4|void|u?e\dm\dx\w{{2,4}}"
_ROLES = {4: ("A", "B", "the accumulator", "the output D"),
          5: ("A", "B", "the accumulator", "C", "the output D"),
          6: ("A", "B", "the accumulator", "C", "the output D", "the epilogue")}


def _cutlass_types(found: re.Match) -> Said:
    """bf16_bf16_f32_bf16_bf16: of operands A and B, accumulator, C, D. ue4m3xf4: 4 bits, 8-bit scales.

    f8 alone is either 8-bit float, chosen at the launch.
    """
    spelled = found[0].split("_")
    tokens = [(t, f"type of {role}") for t, role in zip(spelled, _ROLES[len(spelled)], strict=True)]
    operand = spelled[0].split("x")[-1]
    operand = {"f4": "e2m1"}.get(operand, operand)
    return tokens, {"dtype": TORCH.get(operand), "accumulate_dtype": TORCH.get(spelled[2])}


_CUTLASS_WORDS: tuple[Row, ...] = (
    word("cutlass(?:3x)?", "CUTLASS, NVIDIA's open-source GEMM templates"),
    word(rf"(?:sm)?{_SM}(?=_(?:wmma|\w{{0,2}}tensorop|simt))", "code for {arch}", arch="sm_{}".format),
    word("wmma", "through the warp-wide wmma instructions"),
    word("tensorop", "on the tensor cores"),
    word("bstensorop", "on the tensor cores, operands in blocks that share a scale"),
    word("sptensorop", "on the tensor cores, A is 2:4 sparse"),
    word("simt", "on the CUDA cores"),
    row(rf"(?:{_WORD_TYPE})(?:_(?:{_WORD_TYPE})){{3,5}}", "", _cutlass_types),
    word(r"([shdi])((?:\d{1,3}x){2}\d{1,3})(?=_conv[23]d)",
         "accumulates in {accumulate_dtype}, tensor-core instruction {1} (m×n×k)",
         accumulate_dtype=lambda letter, _: ACCUMULATORS[letter],
         instruction=lambda _, size: integers(*size.split("x"))),
    word("conv[23]d|first_layer", "convolution", kind="other", variant="convolution"),
    word("fprop|dgrad|wgrad", "forward (fprop), gradient of the input (dgrad) or of the weight (wgrad)"),
    word("bn_apply|(?:dual_)?bn_stat", "batch norm of the input, or the sums that one of the output needs"),
    word("block_scaled", "a block of operands shares a scale"),
    word(r"vs(\d{1,3})", "{0} elements share a scale"),
    word(r"[12]sm", "thread blocks that share a tensor-core instruction"),
    word("dyn_cga", "size of a cluster of thread blocks: chosen at the launch"),
    word("ptr_array|grouped", "many products in one launch, each with its own operands"),
    word("stream_k", "thread blocks share out tiles and k evenly", split_k=True),
    word("warpspecialized", "some warps only load, the others only multiply"),
    word("cooperative|pingpong", "how the multiplying warp groups share out the tiles"),
    word("left|right", "the side on which the structured matrix stands"),
    word("unit|nonunit", "whether its diagonal is taken as ones"),
    *_CORE_ROWS,
    word(r"epi_(\w{2,6})", "how the epilogue stores its results"),
    word(rf"epilogue_(?:{TYPE})", "the type that the epilogue works in"),
    word(BY_BY, "thread blocks in a cluster"),
    word("(0)", "as many stages as fit"),
    word(r"(\d{1,2})", f"stages ({FLIGHT})", stages=int),
    _GROUPS, _FILTER,
)


def cutlass(found: re.Match) -> dict:
    return spell(found[0], _CUTLASS_WORDS, kind="gemm")


GENERATIONS = {"kepler": "sm_3x", "maxwell": "sm_5x", "pascal": "sm_6x", "volta": "sm_70", "turing": "sm_75",
               "ampere": "sm_8x", "ada": "sm_89", "hopper": "sm_90"}
_CUBLAS_WORDS: tuple[Row, ...] = (
    word(f"({'|'.join(GENERATIONS)})", "written for this generation ({arch}); newer GPUs run it too",
         arch=GENERATIONS.get),
    word(r"ldg(\d{1,2})", "loads {0} elements at a time from global memory"),
    *_CORE_ROWS,
)
_OLD_CUBLAS_WORDS: tuple[Row, ...] = (
    word("openai", "given by OpenAI"),
    row("([NT]{2})", "layout", layout),
    ARCH,
    *_CORE_ROWS,
    word("vec", "loads several elements at a time"),
)
_CUDNN_WORDS: tuple[Row, ...] = (
    word(rf"(?:u?int8x\d{{1,2}}|{TYPE})(?=_\w?i\d{{0,5}}cudnn)", "type of the output"),
    word(r"(u?int8x\d{1,2})", "operands are {dtype}, channels interleaved", dtype=TORCH.get),
    *(word("(nn|nt|tn|tt)", "BLAS' letters for the matrix product inside the convolution", **fields)
      for fields in ({"layout": str}, {})),
    word("[23]dconv", "convolution over that many dimensions"),
    word("fprop|dgrad|wgrad", "forward (fprop), gradient of the input (dgrad) or of the weight (wgrad)"),
    word("winograd", "by Winograd's algorithm"),
    word("first_layer", "for an image's few channels"),
    word(r"filter(\d)x(\d)", "for filters of {0} × {1}"),
    *_CUBLAS_WORDS,
)


def cublas(found: re.Match) -> dict | None:
    said = spell(found[0], _CUBLAS_WORDS)
    return said if "accumulate_dtype" in said else None


def old_cublas(found: re.Match) -> dict:
    return spell(found[0], _OLD_CUBLAS_WORDS, kind="gemm")


def cudnn_convolution(found: re.Match) -> dict:
    return spell(found[0], _CUDNN_WORDS, kind="other", variant="convolution")


def _xmma_types(found: re.Match) -> Said:
    """bf16f32_bf16f32_f32: types of operands and output, of factors and accumulator, of the epilogue.

    Operands of two types are both spelled: e4m3e5m2bf16_e4m3e5m2f32_f32. cf32 is complex.
    """
    a, b, output, factor, _, accumulator, epilogue = found.groups()
    operands = " and ".join(filter(None, (a, b)))
    tokens = [(f"{a}{b or ''}{output}", f"operands are {operands}, the output is {output}"),
              (found[0].split("_")[1], f"multiplies {factor or operands}, accumulates in {accumulator}"),
              (epilogue, f"the epilogue works in {epilogue}")]
    dtype = "tfloat32" if factor == "tf32" and a in ("f32", "tf32") else TORCH.get(a)
    return tokens, {"dtype": dtype, "accumulate_dtype": TORCH.get(accumulator)}


_XMMA_TYPE = f"(c?(?:{TYPE}))"
_XMMA_WORDS: tuple[Row, ...] = (
    ARCH,
    word("xmma", "NVIDIA's kernel generator behind cuBLAS and cuDNN"),
    word("sparse(?:_conv)?", "A is 2:4 sparse"),
    word("gemm", "matrix multiplication", kind="gemm"),
    word("(?:depthwise_convolution_)?(?:fprop|dgrad|wgrad|deconv)(?:_tiling)?",
         "forward (fprop), gradient of the input (dgrad) or of the weight (wgrad)", kind="other",
         variant="convolution"),
    word("(?:indexed_)?implicit_gemm(?:_indexed)?", "done as a matrix product whose matrix is never formed"),
    word(f"({_STRUCTURED})(?:_gaussian)?(?:_[lu])?(?:_[lr])?(?:_[un])?",
         "{variant}; letters for its triangle (l, u), side (l, r) and diagonal (unit or not)",
         kind="other", variant=_structured),
    word("gaussian", "a complex product by three real ones"),
    row("_".join((_XMMA_TYPE + _XMMA_TYPE + "?" + _XMMA_TYPE, f"(?:{_XMMA_TYPE}{_XMMA_TYPE}?)?{_XMMA_TYPE}",
                  _XMMA_TYPE)), "", _xmma_types),
    row("([ntc][ntc])(?:_[nt])?", "layout", layout),
    word(r"(n(?:d?hwc|cd?hw))(?:k|_vect)\w{1,30}?_n(?:d?hwc|cd?hw)(?:_vect_c_\d{1,2})?",
         "order of the input's dimensions (n batch, d depth, h height, w width, c channel), of the filter's, "
         "then of the output's", layout=str),
    word(rf"tilesize{BY_BY}", _DEEP_MEANING, tile=integers),
    word(r"stage(\d{1,2})", f"stages ({FLIGHT})", stages=int),
    word(rf"warpsize{BY_BY}", "how the warps of a block share the tile"),
    word(rf"warpgroupsize{BY_BY}", "how the warp groups (4 warps each) of a block share the tile"),
    word(rf"cgasize{BY_BY}", "thread blocks in a cluster"),
    word(rf"(?:sp)?tensor{BY_BY}", "tensor-core instruction {0}×{1}×{2} (m×n×k)", instruction=integers),
    word("ffma", "on the CUDA cores (fused multiply-add)"),
    word(r"align([ac])(\d{1,2})", "alignment of the operands (a) or the output (c), in elements: {1}"),
    *_EPILOGUES,
    word("planar_complex", "real and imaginary parts lie apart"),
    word("execute_split_k_kernel", "k is shared out over thread blocks", split_k=True),
    word(r"(?:execute_)?(?:segment_k_(?:on|off)_)?kernel", "the entry point"),
    word(r"(?:5x_)?(cublas|cudnn)\w{0,20}", "shipped in {0}"),
    _GROUPS, _FILTER,
)


def xmma(found: re.Match) -> dict:
    return spell(found[0], _XMMA_WORDS)


_NVJET_TYPES = {"t": "bfloat16", "h": "float16", "s": "float32", "d": "float64", "q": "an 8-bit float",
                "o": "a 4-bit float", "b": "int8", "i": "int32"}
_NVJET_OPERANDS = {"t": "bfloat16", "h": "float16", "d": "float64", "b": "int8",
                   "o": "float4_e2m1fn"}  # s can be float32 or TF32, q either of the 8-bit floats


def _nvjet_types(found: re.Match) -> Said:
    """tst, hss, qqtst: types of the operands, of the accumulator (last but one), of the output (last)."""
    roles = ["operand A", "operand B", "C"] if len(found[0]) == 5 else ["operands"]
    roles += ["accumulator", "output"]
    tokens = [(letter, f"{role}: {_NVJET_TYPES.get(letter, 'not known here')}")
              for letter, role in zip(found[0], roles, strict=True)]
    accumulator = _NVJET_TYPES[found[0][-2]] if found[0][-2] in "shdi" else None
    return tokens, {"dtype": _NVJET_OPERANDS.get(found[0][0]), "accumulate_dtype": accumulator}


_NVJET_WORDS: tuple[Row, ...] = (
    word("nvjet", "cuBLAS' GEMMs for Hopper and newer; NVIDIA does not document these names"),
    ARCH,
    word("mma", "through the warp's mma instructions"),
    word("tf32", "operands are rounded to TF32 before they are multiplied", implied_dtype="tfloat32"),
    row("[a-z]{3}|[a-z]{5}", "accumulate_dtype", _nvjet_types),
    _TILE, _STAGES, _DEEP_TILE,
    word(BY_BY, "tile of one warp"),
    word(BY, "thread blocks in a cluster"),
    word(r"(\d{1,2})", f"stages ({FLIGHT})", stages=int),
    word("2cta", "two thread blocks work on one tensor-core instruction"),
    word("(A|B)vec(\\d{1,3})(U?E\\dM\\d)", "{1} elements of {0} along k share a scale of type {2}"),
    word("badd", "seen where C is added (beta is not 0)"),
    *_EPILOGUES,
    _SPLIT_K,
    row("([NT]{2})[NT]{1,2}", "layout", layout),
)


def nvjet(found: re.Match) -> dict:
    return spell(found[0], _NVJET_WORDS, kind="gemm")


_TRTLLM_TYPES = {"bfloat16": "bfloat16", "fp16": "float16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
                 "e2m1": "float4_e2m1fn", "fp32": "float32", "int8": "int8"}


def trtllm_type(spelled: str) -> str | None:
    """Bfloat16, E4m3, MxE2m1 (a block of it shares a scale)."""
    return _TRTLLM_TYPES.get(spelled.lower().removeprefix("mx"))


TRTLLM_TYPE = "(?:Mx)?(?:Bfloat16|Fp16|Fp32|E4m3|E5m2|E2m1|Int[48])"
_TRTLLM_WORDS: tuple[Row, ...] = (
    word("[Bb]mm|[Gg]emm", "matrix multiplication, by TensorRT-LLM's generator"),
    word(rf"({TRTLLM_TYPE})({TRTLLM_TYPE})?(?=_Fp(?:32|16)_)", "operands A and B",
         dtype=lambda a, b: trtllm_type(a)),
    word("(Fp32|Fp16)(?=_[a-z])", "accumulates in {accumulate_dtype}", accumulate_dtype=trtllm_type),
    word(TRTLLM_TYPE, "type of the output"),
    word(rf"t{BY_BY}(?:u\d)?", "tile of one thread block, m × n × k: {0} × {1} × {2}", tile=integers),
    word(r"s(\d{1,2})", f"stages ({FLIGHT})", stages=int),
    word(rf"m{BY_BY}", "tensor-core instruction {0}×{1}×{2} (m×n×k)", instruction=integers),
    word(rf"c(?:ga)?{BY_BY}", "thread blocks in a cluster"),
    word(rf"et{BY}", "tile that the epilogue stores at a time"),
    row("([NT]{2})", "layout", layout),
    word("transOut", "the product is computed transposed"),
    word("bias[MN]", "its epilogue can add a bias", bias="bias"),
    word("(swiGlu|geGlu|relu2)", "applies {0} to its result", activation=str.lower),
    word(rf"sm{_SM}[af]?", "code for {arch}", arch="sm_{}".format),
)
_FMHA_WORDS: tuple[Row, ...] = (
    word("fmha_v2", "fused multi-head attention, by TensorRT-LLM"),
    word("flash_attention", "FlashAttention's algorithm"),
    word(rf"({TYPE})(?:_(?:{TYPE}|output))*", "type of q, k and v", dtype=TORCH.get),
    word(r"(\d{2,3})_(\d{2,3})(?=_S)", "queries × keys in a tile", tile=integers),
    word(r"S_(?:qkv|q_kv|q_paged_kv|q_k_v)_(\d{2,3})", "any sequence length, head dimension {0}",
         variant="attention, head dimension {}".format),
    word("causal", "built for a causal mask"),
    ARCH,
)


def trtllm_gemm(found: re.Match) -> dict:
    return spell(found[0], _TRTLLM_WORDS, kind="gemm")


def trtllm_fmha(found: re.Match) -> dict:
    return {"variant": "attention", **spell(found[0], _FMHA_WORDS, kind="attention")}


# AMD: Tensile (rocBLAS, hipBLASLt), MIOpen, AITER

_TENSILE_TYPES = {"H": "float16", "B": "bfloat16", "S": "float32", "D": "float64", "C": "complex64",
                  "Z": "complex128", "X": "tfloat32", "I8": "int8", "I": "int32", "F8": "float8_e4m3fn",
                  "B8": "float8_e5m2", "F8N": "float8_e4m3fnuz", "B8N": "float8_e5m2fnuz"}
_TENSILE_TYPE = "F8N|B8N|F8|B8|I8|[HBSDCZXI]"


def _tensile_layout(found: re.Match) -> Said:
    """C[i, j] sums A · B over l, fastest index first: A stored [i, l] is BLAS' N, [l, i] T; B [l, j] is N.

    A C behind an operand's indices: it is conjugated.
    """
    letters = "".join("c" if conjugate else "n" if order in ("il", "lj") else "t"
                      for order, conjugate in (found.group(1, 2), found.group(3, 4)))
    meaning = _LAYOUTS.get(letters, "A, then B: as it lies (n), transposed (t), conjugated too (c)")
    return [(found[0], meaning)], {"layout": letters}


def _tensile_types(found: re.Match) -> Said:
    """HHS: operands, output, accumulator. F8B8BS: A and B apart. S_MX: float32 as XF32, AMD's TF32."""
    operands, output, accumulator = found.groups()
    names, xf32 = re.findall(_TENSILE_TYPE, operands), "_MX" in found[0]
    said = {"dtype": "tfloat32" if xf32 else _TENSILE_TYPES[names[0]],
            "accumulate_dtype": _TENSILE_TYPES.get(accumulator)}
    meaning = f"operands {' and '.join(_TENSILE_TYPES[name] for name in names)}"
    if output:
        meaning += f", output {_TENSILE_TYPES[output]}, accumulates in {_TENSILE_TYPES[accumulator]}"
    return [(found[0], meaning + (", rounded to XF32, AMD's TF32" if xf32 else ""))], said


_TENSILE_WORDS: tuple[Row, ...] = (
    word("Cijk?", "matrix multiplication, in a batch"),
    row("A(il|li)k(C?)_B(lj|jl)k(C?)", "layout", _tensile_layout),
    row(rf"((?:{_TENSILE_TYPE}){{1,2}}?)_?({_TENSILE_TYPE})([SDICZX])(?=_[BHIRZ]{{1,4}}(?:_|$))", "dtype",
        _tensile_types),
    row(rf"((?:{_TENSILE_TYPE}){{1,2}}?)()()(?:_MX)?_?[BHIRZc]{{0,5}}(?:_MX)?", "dtype", _tensile_types),
    word(rf"MT{BY_BY}", _DEEP_MEANING.replace("thread block", "workgroup"), tile=integers),
    word(rf"MI{BY_BY}x(\d{{1,2}})", "matrix-core instruction {0}×{1}×{2} (m×n×k), {3} at once",
         instruction=lambda m, n, k, _: integers(m, n, k)),
    word("Bias[HBSD]*", "its epilogue can add a bias", bias="bias"),
    word("Grad[HBSD]?", "its epilogue can sum up a bias gradient", bias_gradient="bias gradient"),
    word("HA_?[HBSD]?|A_?[HBSD]|AH|AS", "its epilogue can apply an activation, chosen at the launch",
         activation="activation"),
    word("Aux[HBSD]?", "and can keep for the backward pass what the activation received", aux="aux"),
    word(r"GSU((?:[2-9]|1\d)\d{0,2})", "workgroups that share out k: {0}", split_k=True),
    word(r"SK([1-9])", "workgroups share out tiles and k evenly (stream-K)", split_k=True),
    word(r"ISA(\d{1,3}\w{1,2})", "code for {arch}", arch="gfx{}".format),
)


def tensile(found: re.Match) -> dict:
    """Cijk_Ailk_Bljk_…; Cijk_B_…_PostGSU4 and Cijk_S are its helpers: sum of a split k, C times beta."""
    text = found[1]
    if not re.match("Cijk?_A", text):
        kind, what = ("reduction", "sum of a split-K GEMM's parts") if "PostGSU" in text else (
            "pointwise", "C times beta, before a GEMM adds to it")
        return {"kind": kind, "variant": what, "parts": ((text, what),)}
    said = spell(text, _TENSILE_WORDS, rest=None, kind="gemm")
    if "float8_e" in said.get("dtype", "") and said.get("arch", "").startswith("gfx94"):
        said["dtype"] = said["dtype"].removesuffix("fn").removesuffix("fnuz") + "fnuz"  # all that CDNA 3 has
    return said


_IGEMM_WORDS: tuple[Row, ...] = (
    word("igemm", "convolution done as a matrix product"),
    word("fwd|bwd|wrw", "forward (fwd), gradient of the input (bwd) or of the weight (wrw)"),
    _NHWC,
    word("nchw", "tensors lie batch, channel, height, width", layout="nchw"),
    word(rf"({TYPE})", "type of the elements", dtype=TORCH.get),
    word(rf"(?:bt)?{BY_BY}", _DEEP_MEANING.replace("thread block", "workgroup"), tile=integers),
    word("gkgs", "workgroups share out k", split_k=True),
)


def igemm(found: re.Match) -> dict:
    return spell(found[0], _IGEMM_WORDS, rest=None, kind="other", variant="convolution")


_CONVOLUTION = {"kind": "other", "variant": "convolution"}
_MIOPEN_WORDS: tuple[Row, ...] = (
    word(r"miopenSp3AsmConv\w{0,12}?(?=_|$)|miopenGcnAsm\w{0,20}Winograd\w{0,20}|Conv_Winograd",
         "convolution by Winograd's algorithm, assembly", **_CONVOLUTION),
    word(r"(?:miopenGcnAsm|miopen|MIOpen)Con?v\w{0,60}|mlir_gen_igemm_conv2d", "convolution", **_CONVOLUTION),
    word("naive_conv", "convolution, the plain loop", **_CONVOLUTION),
    word(r"Im[23]d2Col\w{0,10}", "lays out the input so that a convolution is a matrix product", kind="copy",
         variant="unfolding of a convolution's input"),
    word(r"Col2Im[23]d\w{0,10}", "adds up what a matrix product gave into a convolution's gradient",
         kind="other", variant="folding of a convolution's gradient"),
    word(r"batched_transpose(?=_)|transpose(?=_)|UniversalTranspose",
         "change of layout, around a convolution", kind="copy", variant="change of layout"),
    word(r"(?:MIOpen|miopenGcnAsm)B(?:atch)?N\w{0,60}", "batch norm", kind="reduction", variant="batch norm"),
    word(r"mloPooling\w{0,40}", "pooling", kind="other", variant="pooling"),
    word(r"SubTensorOp\w{0,40}|Op[1-5]dTensor\w{0,40}|OpTensor\w{0,40}|MIOpen(?:Active|Neuron)\w{0,40}",
         "pointwise over a part of a tensor", kind="pointwise", variant="pointwise kernel"),
    word(r"MIOpen\w{0,60}|mlo\w{0,60}|gridwise_\w{0,80}", "a kernel of MIOpen's", kind="other"),
    word("fwd|bwd|wrw", "forward (fwd), gradient of the input (bwd) or of the weight (wrw)"),
    word(r"gfx(\d{1,3}\w?)", "code for {arch}", arch="gfx{}".format),
    word(r"f(\d)x(\d)", "Winograd's tile of outputs and filter"),
    word("(half|float|bfloat16|double|fp16|fp32|bf16)", "type of the elements",
         dtype=lambda spelled: TORCH.get(spelled, spelled)),
    word(BY, "its tile", tile=integers),
    _NHWC,
    word("nchw", "tensors lie batch, channel, height, width", layout="nchw"),
)


def miopen(found: re.Match) -> dict:
    return {"kind": "other", **spell(found[0], _MIOPEN_WORDS, rest=None)}


_AITER_KINDS = {"fmha": "attention", "mla": "attention", "pa": "attention", "topksoftmax": "other"}
_AITER_TYPE = "bf16|fp16|fp32|i8"
_AITER_WORDS: tuple[Row, ...] = (
    word("(fmha|mla|pa|PA|topksoftmax)", "what it computes", kind=lambda what: _AITER_KINDS[what.lower()]),
    word(r"fmoe(?:_stage\d)?_(?:bf16|fp16)",
         "experts of a mixture, their products and the activation between them", kind="gemm",
         variant="GEMMs of a mixture of experts"),
    word("pertoken(Int8|Fp8|Int4|MXfp4)", "operands are quantised, each token with its scale",
         dtype=lambda spelled: TORCH.get(spelled.lower())),
    word(r"(bf16|fp8|f4|i8|I8)gemm", "matrix product of operands of this type", kind="gemm",
         dtype=lambda t: TORCH.get(t.lower(), "float4_e2m1fn" if t == "f4" else None)),
    word("fwd|bwd", "forward or backward"),
    word(r"hd(\d{2,3})(?:_(\d{2,3}))?", "head dimension {0}", head="{}".format),
    word("causal", "built for a causal mask", causal=True),
    word(rf"({_AITER_TYPE})(?:{_AITER_TYPE}|fp8)?", "type of the elements", dtype=TORCH.get),
    word("(tn|nn|nt|tt)", "layout of the operands", layout=str),
    word(BY, "its tile (m × n)", tile=integers),
    word("(silu|gelu)", "applies {0} between the products", activation=str),
    word("splitk", "workgroups share out k", split_k=True),
    word(r"gfx(\d{1,3}\w?)", "code for {arch}", arch="gfx{}".format),
)


def aiter(function: str) -> dict:
    """fmha_fwd_hd128_bf16_causal, bf16gemm_fp32bf16_tn_96x64_splitk: AITER's kernels written in assembly."""
    said = spell(function, _AITER_WORDS, rest=None)
    head, causal = said.pop("head", None), said.pop("causal", False)
    if said.get("kind") == "attention":
        said["variant"] = "attention" + (f", head dimension {head}" if head else "")
        said["variant"] += ", causal" if causal else ""
    return said
