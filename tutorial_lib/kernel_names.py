"""A GPU kernel's name, read aloud: its library, GPU, types, tile, layout and operators.

`decode` reads what the name spells and nothing else. It knows the names PyTorch users meet: cuBLAS (nvjet,
xmma, ampere_…, gemv, split-K), CUTLASS, cuDNN, Triton and C++ code made by Inductor, ATen, the fused
attentions, the libraries that serve language models, NCCL, CUB, copies, and AMD's Tensile, Composable Kernel
and MIOpen. Not covered, because no name says it: the problem's shape, the grid, beta, and what an epilogue
really did. So two runs of one name need not be the same work. What a name leaves out is None.

A new kind of name is one row in `_FAMILIES`: a pattern that recognises it and a small function that reads it.
A library whose kernels are plain C++ templates is one row in `_LIBRARIES`.
Sources: CUTLASS' name generator (python/cutlass_library), PyTorch's CUDA sources and its attention kernel
generator, Inductor's get_fused_kernel_name, the templates of FlashAttention 3, FlashInfer and Composable
Kernel, Tensile's naming, the Itanium C++ ABI. NVIDIA documents neither nvjet's nor cuBLAS' older names: what
is said of those was read off runs whose types, strides and grids are known, and no more.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from . import units

_HEAD = 4096  # characters that are read: a name says what it says early, and this bounds the time it takes


@dataclass(frozen=True)
class KernelName:
    """What a kernel's name says; None, or an empty tuple, where it says nothing.

    `family` is "cutlass", "cublas", "nvjet", "triton", "aten", …, or "unknown". `kind` is gemm, pointwise,
    reduction, softmax, attention, copy, memset, communication, other or unknown; `variant` is the kernel in
    words. `dtype` is one type by its name in torch, the one operands are multiplied in: "tfloat32" for a
    float32 GEMM on TF32 tensor cores; with operands of two types it is A's; the accumulator's stands apart.
    `layout` has BLAS' letter for operand A, then B (for a convolution the order of its tensors, "nhwc", where
    the name has it). `tile` is one thread block's (m, n) or (m, n, k), in a BLAS GEMM m being the columns of
    PyTorch's row-major output; for attention it is (queries, keys).
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
    """What the kernel name `name` says; any string has an answer, one not recognised the family "unknown"."""
    decoded = _decode(name[:_HEAD])
    return decoded if len(name) <= _HEAD else replace(decoded, name=name)


@lru_cache(maxsize=4096)
def _decode(name: str) -> KernelName:
    text = _plain(units.plain(name).strip())
    for family, opening, read in _FAMILIES:
        if (found := opening.search(text)) and (said := read(found)):
            return KernelName(name, family, **said)
    return KernelName(name, parts=((_short(text), "not a kind of name that is known here"),) if text else ())


# One line of prose

_TITLES = {
    "cutlass": "CUTLASS", "cublas": "cuBLAS", "xmma": "XMMA", "nvjet": "nvjet (cuBLAS)", "cudnn": "cuDNN",
    "triton": "Triton", "inductor-cpp": "Inductor C++", "aten": "ATen", "flash": "FlashAttention",
    "efficient": "memory-efficient", "trtllm": "TensorRT-LLM", "nccl": "NCCL", "cub": "CUB",
    "tensile": "Tensile", "miopen": "MIOpen", "ck": "Composable Kernel", "flashinfer": "FlashInfer",
    "vllm": "vLLM", "sglang": "SGLang", "aiter": "AITER", "deepgemm": "DeepGEMM", "deepep": "DeepEP",
    "fbgemm": "FBGEMM", "torchvision": "torchvision", "apex": "apex", "magma": "MAGMA",
    "transformer-engine": "Transformer Engine", "rocprim": "rocPRIM",
}
_KINDS = {"gemm": "GEMM", "pointwise": "pointwise kernel", "unknown": "kernel", "other": "kernel"}


def _title(kernel: KernelName) -> str:
    if kernel.family == "unknown":
        return f"unknown kernel {_short(units.plain(kernel.name[:_HEAD]), 60)}".rstrip()
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
        yield "tile " + _product(kernel.tile)
    if kernel.stages:
        yield _count(kernel.stages, "stage")
    if kernel.layout:
        yield ("operands " if gemm else "layout ") + kernel.layout.upper()
    if kernel.alignment:
        yield f"aligned to {_count(kernel.alignment, 'element')}"
    if kernel.split_k:
        yield "split-K"
    if kernel.epilogue:
        yield f"epilogue can apply {kernel.epilogue}"


def _product(numbers: Iterable[int]) -> str:
    return "×".join(map(str, numbers))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# Characters and types


def _short(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


_CAST = re.compile(r"\((?:int|unsigned int|long)\)(?=-?\d)|\(bool\)([01])")  # Nsight: f<(int)4, (bool)1>
_MANGLED = re.compile(r"L[a-z]n?\d{1,20}E|S[0-9A-Z]{0,3}_|T\d{0,3}_|(DF16b)|(\d{1,4})", re.ASCII)


def _plain(text: str) -> str:
    """The C++ name that mangled `text` stands for, as far as it goes; any other text without its casts."""
    if not text.startswith("_Z"):
        return _CAST.sub(lambda cast: {"0": "false", "1": "true"}.get(cast[1], ""), text)
    try:
        return _mangled_name(_Mangled(text, 2)) or text
    except (ValueError, RecursionError):  # no C++ name, or one nested beyond reason
        return _identifiers(text) or text


def _identifiers(text: str) -> str:
    """The identifiers of a mangled name joined by "::", for names that `_mangled_name` cannot follow.

    Mangling writes an identifier as its length and its letters: 7Kernel2. Literals and back-references are
    stepped over. The nesting is lost, which leaves enough to know the family.
    """
    found, at = [], 0
    while token := _MANGLED.search(text, at):
        at = token.end()
        word = "bfloat16_t" if token[1] else text[at : at + int(token[2] or 0)]
        if word.isascii() and word.isidentifier():
            found.append(word)
            at += len(word) if token[2] else 0
    return "::".join(found)


@dataclass
class _Mangled:
    """A mangled name, the place it has been read to, and what back-references (S_, S0_, …) can mean."""

    text: str
    at: int
    seen: list[str] = field(default_factory=list)

    def take(self, pattern: re.Pattern) -> re.Match | None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    def remember(self, spelled: str) -> str:
        self.seen.append(spelled[:_HEAD])  # a name that doubles itself again and again stays this short
        return self.seen[-1]


def _token(pattern: str) -> re.Pattern:
    return re.compile(pattern, re.ASCII)


_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char",
    "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long",
    "x": "long long", "y": "unsigned long long", "f": "float", "d": "double", "e": "long double",
    "z": "...", "DF16b": "__bf16", "DF16_": "_Float16", "Dn": "nullptr_t", "Da": "auto",
}
_STANDARD = {"Sa": "std::allocator", "Ss": "std::string", "Sb": "std::basic_string"}
_QUALIFIED = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile", "Dp": ""}
_BUILTIN_CODE = _token("DF16b|DF16_|Dn|Da|[abcdefhijlmstvwxyz]")
_QUALIFIER, _REFERENCE = _token("Dp|[PROKV]"), _token("S([0-9A-Z]{0,3})_|(S[asb])")
_PARAMETER, _ARRAY, _END = _token(r"T\d{0,3}_"), _token(r"A\d{0,19}_"), _token("E")
_SOURCE, _UNNAMED = _token(r"L?([1-9]\d{0,3})"), _token(r"Ut\d{0,3}_|[CD]\d|cl|nw|dl")
_LITERAL, _LAMBDA = _token(r"L([a-z])(n?)(\d{1,20})E"), _token("Ul")
_OPEN, _PACK, _NESTED, _LOCAL = _token("I"), _token("J"), _token("N[rVKRO]{0,3}"), _token("Z")
_STD, _VALUE, _ADDRESS = _token("St"), _token(r"L(?!_Z)"), _token("XadL_Z|L_Z")
_DIGITS, _FUNCTION, _CONSTRAINT = _token(r"n?\d{0,20}"), _token("F"), _token("Tn")


def _mangled_name(m: _Mangled) -> str:
    """<name>: nested (N…E), local to a function (Z…E), in std, a back-reference, or one identifier."""
    if m.take(_NESTED):
        return _mangled_nested(m)
    if m.take(_LOCAL):
        outer = _mangled_name(m)
        _mangled_list(m)
        return f"{outer}::{_mangled_name(m)}" if m.at < len(m.text) else outer
    known = m.take(_REFERENCE)
    name = _mangled_reference(m, known) if known else ("std::" if m.take(_STD) else "") + _mangled_word(m)
    if m.take(_OPEN):
        name = (name if known else m.remember(name)) + f"<{', '.join(_mangled_list(m))}>"
    return name[:_HEAD]


def _mangled_nested(m: _Mangled) -> str:
    """a::b<…>::c; each beginning of it can be referred to later, the whole is remembered by who asked."""
    name, own = "", False
    while m.at < len(m.text) and not m.take(_END):
        if m.take(_OPEN):
            name, own = m.remember(f"{name}<{', '.join(_mangled_list(m))}>"), True
        elif known := m.take(_REFERENCE):
            name, own = _mangled_reference(m, known), False
        elif m.take(_STD):
            name, own = "std", False
        elif found := m.take(_PARAMETER):
            name, own = m.remember(found[0]), True
        else:
            name, own = m.remember("::".join(filter(None, (name, _mangled_word(m))))), True
    if own:
        m.seen.pop()
    return name


def _mangled_word(m: _Mangled) -> str:
    if found := m.take(_SOURCE):
        start, m.at = m.at, m.at + int(found[1])
        word = m.text[start : m.at]
        return "(anonymous namespace)" if word.startswith("_GLOBAL__N") else word
    if m.take(_LAMBDA):
        types = _mangled_list(m)
        m.take(_token(r"\d{0,3}_"))
        return f"{{lambda({', '.join(t for t in types if t != 'void')})#1}}"
    if found := m.take(_UNNAMED):
        return "operator()" if found[0] == "cl" else "unnamed"
    raise ValueError


def _mangled_reference(m: _Mangled, found: re.Match) -> str:
    """S_ is the first thing remembered, S0_ the second, in base 36."""
    if found[2]:
        return _STANDARD[found[2]]
    place = int(found[1], 36) + 1 if found[1] else 0
    return m.seen[place] if place < len(m.seen) else found[0]


def _mangled_list(m: _Mangled) -> list[str]:
    """Types and values up to the E that ends them, or the end of a name cut short."""
    found = []
    while m.at < len(m.text) and not m.take(_END):
        found.append(_mangled_argument(m))
    return found


def _mangled_argument(m: _Mangled) -> str:
    if found := m.take(_LITERAL):
        number = f"{'-' * len(found[2])}{found[3]}"
        return {"0": "false", "1": "true"}.get(number, number) if found[1] == "b" else number
    if m.take(_PACK):
        return ", ".join(_mangled_list(m))
    if found := m.take(_ADDRESS):  # the address of a function: its name, then its types
        name = _mangled_name(m)
        _mangled_list(m)
        if found[0].startswith("X"):
            m.take(_END)
        return f"&{name}"
    if m.take(_VALUE):
        spelled, number = _mangled_type(m), m.take(_DIGITS)[0]
        m.take(_END)
        return f"({spelled}){number}"
    if m.take(_CONSTRAINT):  # what the parameter must be, before the argument itself
        _mangled_type(m)
        return _mangled_argument(m)
    return _mangled_type(m)


def _mangled_type(m: _Mangled) -> str:
    """<type>; everything but the built-in ones and plain back-references can be referred to later."""
    if m.at >= len(m.text):
        return ""
    if found := m.take(_QUALIFIER):
        return m.remember(_mangled_type(m) + _QUALIFIED[found[0]])
    if found := m.take(_BUILTIN_CODE):
        return _BUILTIN[found[0]]
    if found := m.take(_ARRAY):
        return m.remember(f"{_mangled_type(m)} [{found[0][1:-1]}]")
    if m.take(_FUNCTION):
        result, *arguments = _mangled_list(m) or [""]
        return m.remember(f"{result} ({', '.join(arguments)})")
    if found := m.take(_PARAMETER):
        return m.remember(found[0])
    alone = _REFERENCE.match(m.text, m.at)
    name = _mangled_name(m)
    return name if alone and m.at == alone.end() else m.remember(name)


_TYPES = {
    "bf16": "bfloat16", "f16": "float16", "fp16": "float16", "half": "float16", "f32": "float32",
    "fp32": "float32", "tf32": "tfloat32", "f64": "float64", "fp64": "float64", "cf32": "complex64",
    "cf64": "complex128", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "float4_e2m1fn",
    "s8": "int8", "i8": "int8",
    "int8": "int8", "int8_t": "int8", "u8": "uint8", "uint8_t": "uint8", "s32": "int32", "i32": "int32",
    "int32_t": "int32", "i64": "int64", "int64_t": "int64", "c10::BFloat16": "bfloat16",
    "BFloat16": "bfloat16", "__nv_bfloat16": "bfloat16", "__hip_bfloat16": "bfloat16",
    "bfloat16_t": "bfloat16", "__bf16": "bfloat16", "nv_bfloat16": "bfloat16", "hip_bfloat16": "bfloat16",
    "c10::Half": "float16", "Half": "float16", "__half": "float16", "half_t": "float16",
    "_Float16": "float16",
    "float_e4m3_t": "float8_e4m3fn", "float_e5m2_t": "float8_e5m2",
    "__nv_fp8_e4m3": "float8_e4m3fn", "__nv_fp8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2", "float": "float32",
    "double": "float64", "tfloat32_t": "tfloat32",
    "signed char": "int8", "unsigned char": "uint8", "short": "int16", "int": "int32", "long": "int64",
    "bool": "bool", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}
_CPP_TYPE = re.compile(  # long spellings before short ones, so that "unsigned int" is not read as "int"
    r"(?<!\w)(c10::complex<(?:float|double)>|signed char|unsigned (?:int|char|short|long(?: long)?)|long long"
    r"|c10::\w{1,20}|(?:__)?(?:nv|hip)_bfloat16|__bf16|__half|_Float16|bfloat16_t|tfloat32_t|half_t"
    r"|BFloat16|Half|float_e[45]m[32]_t|__nv_fp8_e[45]m[32]|half|float|double|short|int|long|bool)(?!\w)",
    re.ASCII,
)


def _types(text: str) -> list[str]:
    """The C++ types in `text` that have a name in torch, as they are spelled."""
    return [spelled for spelled in _CPP_TYPE.findall(text) if spelled in _TYPES]


def _floats(text: str) -> list[str]:
    return [spelled for spelled in _types(text) if "float" in _TYPES[spelled] or "complex" in _TYPES[spelled]]


def _arguments(text: str, at: int) -> list[str]:
    """The comma-separated arguments of the template that opens at `at`; none if none opens there."""
    if text[at : at + 1] != "<":
        return []
    found, depth, start = [], 0, at + 1
    for i in range(at, len(text)):
        depth += (text[i] in "<({") - (text[i] in ">)}")
        if depth == 0 or (depth == 1 and text[i] == ","):
            found.append(text[start:i].strip())
            start = i + 1
        if depth == 0:
            return found
    return [*found, text[start:].strip()]


# Names made of words joined by "_"

Said = tuple[list[tuple[str, str]], dict]  # what a token says: (token, meaning) pairs, the fields it fills
Row = tuple[re.Pattern, frozenset[str], Callable[[re.Match], Said]]


def _row(pattern: str, fields: str, read: Callable[[re.Match], Said]) -> Row:
    """A token `read` makes sense of; it fills `fields` (their names, in one string)."""
    return re.compile(rf"(?:{pattern})(?=_|$)", re.ASCII), frozenset(fields.split()), read


def _word(pattern: str, meaning: str, **fields) -> Row:
    """A token of one meaning, in which {0}, {1} are the token's groups and {dtype} and so on the fields.

    A field's value is taken as it stands, or made from the groups where it is a function.
    """

    def read(found: re.Match) -> Said:
        groups = found.groups()
        said = {field: value(*groups) if callable(value) else value for field, value in fields.items()}
        return [(found[0], meaning.format(*groups, **said))], said

    return _row(pattern, " ".join(fields), read)


_ANY = re.compile(r"[^_]+")


def _spell(text: str, rows: tuple[Row, ...], *, rest: str | None = "not documented", **known) -> dict:
    """Read `text` from left to right, each token by the first row that fits and fills a field still empty.

    So 128x64_64x3_1x2 can be three rows: the tile, then the stages, then what fills nothing.
    """
    said, parts, at = {}, [], 0
    while at < len(text):
        for pattern, fields, read in rows:
            if (found := pattern.match(text, at)) and not (fields and fields <= said.keys()):
                tokens, new = read(found)
                parts, said, at = parts + tokens, {**new, **said}, found.end()
                break
        else:
            if found := _ANY.match(text, at):
                parts += [(found[0], rest)] if rest else []
                at = found.end()
        at += text.startswith("_", at)
    return {**known, **_settle(said), "parts": tuple(parts)}


def _settle(said: dict) -> dict:
    """Fields that tokens fill together: k completes the tile; a type spelled out wins over a letter's; the
    epilogue's steps join in the order in which they happen."""
    said = {field: value for field, value in said.items() if value is not None}
    if steps := [said.pop(step) for step in _EPILOGUE if step in said]:
        said["epilogue"] = "+".join(steps)
    implied, k, tile = said.pop("implied_dtype", None), said.pop("k", None), said.get("tile")
    said = {"dtype": implied, **said} if implied else said
    return {**said, "tile": (*tile, k)} if k and tile and len(tile) == 2 else said


def _integers(*groups: str) -> tuple[int, ...]:
    return tuple(map(int, groups))


def _numbers(text: str) -> tuple[int, ...]:
    return _integers(*text.split("x"))


_EPILOGUE = ("bias", "activation", "aux", "bias_gradient")
_TYPE = "bf16|fp16|f16|tf32|fp32|f32|fp64|f64|e4m3|e5m2|int8|s8|i8|u8|s32|i32|cf32|cf64"
_BY = r"(\d{1,4})x(\d{1,4})"
_BY_BY = r"(\d{1,4})x(\d{1,4})x(\d{1,4})"
_FLIGHT = "pieces of k in flight in shared memory"

# cuBLAS counts columns first, so a row-major matrix reads as its transpose. A row-major y [M, N] = a [M, K] ·
# b [K, N] is asked for as yᵀ = bᵀ · aᵀ: BLAS' A is PyTorch's second matrix. A contiguous b reads as bᵀ, as
# wanted: N. b = W.t() of a contiguous W [N, K] reads as b, the transpose of that: T. So too a, second letter.
_LAYOUTS = {
    "nn": "A as stored, B as stored: in PyTorch x @ w with both row-major",
    "tn": "A is read transposed (row-major for cuBLAS' column-major view), B as stored: in PyTorch "
          "x @ W.t(), so nn.Linear's weight [out, in] and row-major input are used as they lie, with no copy",
    "nt": "A as stored, B read transposed: in PyTorch g.t() @ x, as in the gradient of nn.Linear's weight",
    "tt": "A and B are both read transposed: in PyTorch a.t() @ b.t() with a and b row-major",
}


def _layout(found: re.Match) -> Said:
    """Two letters for A and B in BLAS' sense; what follows them is the output's and is not read further."""
    letters, output = found[1].lower(), found[0][2:].strip("_")
    meaning = _LAYOUTS[letters] + (f"; then {output} for the output" if output else "")
    return [(found[0], meaning)], {"layout": letters}


def _stages(found: re.Match) -> Said:
    """64x3: how far a tile advances along k, and how many such pieces are in flight."""
    k, stages = _integers(*found.groups())
    meaning = f"takes {k} along k at a time, in {_count(stages, 'stage')} ({_FLIGHT})"
    return [(found[0], meaning)], {"k": k, "stages": stages}


def _output_type(found: re.Match) -> Said:
    return [(found[0], f"the output is {_TYPES[found[0]]}")], {}


_ARCH = _word(r"sm(\d{2,3})", "code for {arch}", arch="sm_{}".format)
_TILE_MEANING = "each thread block computes a tile of {0} × {1} outputs (m × n)"
_DEEP_MEANING = _TILE_MEANING + ", {2} along k at a time"
_TILE = _word(_BY, _TILE_MEANING, tile=_integers)
_DEEP_TILE = _word(_BY_BY, _DEEP_MEANING, tile=_integers)
_STAGES = _row(rf"(?:stages_)?{_BY}", "stages", _stages)
_SPLIT_K = _word("splitK", "thread blocks share out k, and their partial sums are added up", split_k=True)
_NHWC = _word("nd?hwc", "tensors lie batch, (depth,) height, width, channel", layout=lambda: "nhwc")
# Named as in cuBLASLt's CUBLASLT_EPILOGUE_…: GELU_AUX keeps gelu's input, RELU_AUX where it was above 0.
_EPILOGUES: tuple[Row, ...] = (
    _word(rf"bias(?:_(?:{_TYPE}))?", "its epilogue can add a bias", bias="bias"),
    _word("relu", "its epilogue can apply relu; such kernels serve plain matmuls too", activation="relu"),
    _word("(gelu|silu|swish|sigmoid|tanh)", "its epilogue can apply {0}", activation=str),
    _word("(drelu|dgelu)", "its epilogue can multiply by the activation's derivative", activation=str),
    _word(rf"aux(?:_(?:{_TYPE}))?", "and can keep what the activation received for backward", aux="aux"),
    _word("(?:bgrad|dbias)[ab]?", "its epilogue can sum up a bias gradient", bias_gradient="bias gradient"),
)

_LETTERS = {"s": "float32", "h": "float16", "d": "float64", "i": "int32", "c": "complex64", "z": "complex128",
            "gc": "complex64"}
_INSTRUCTIONS = {
    "884": (8, 8, 4), "1688": (16, 8, 8), "16816": (16, 8, 16), "16832": (16, 8, 32), "16864": (16, 8, 64),
    "168128": (16, 8, 128), "168256": (16, 8, 256), "8816": (8, 8, 16), "8832": (8, 8, 32),
    "161616": (16, 16, 16), "32816": (32, 8, 16), "83216": (8, 32, 16),
}
_OPERATIONS = {
    "gemm": "matrix multiplication", "cudnn": "convolution, by cuDNN", "fprop": "convolution, forward",
    "dgrad": "convolution, gradient of the input", "wgrad": "convolution, gradient of the weight",
}


def _core(found: re.Match) -> Said:
    """s16816gemm: the accumulator, a tensor-core instruction's m, n, k, at times a type, the operation."""
    letter, shape, math, operation, types = found.groups()
    accumulator, last = _LETTERS[letter], (operation, _OPERATIONS[operation])
    said = {"accumulate_dtype": accumulator, "kind": "gemm" if operation == "gemm" else "other"}
    if operation != "gemm":
        said["variant"] = "convolution"
    if not shape:  # sgemm: one letter says all, and there is no tensor-core instruction
        said["implied_dtype"] = None if letter == "i" else accumulator
        return [(letter, f"{accumulator} arithmetic on the CUDA cores, without tensor cores"), last], said
    size = _numbers(shape) if "x" in shape else _INSTRUCTIONS.get(shape)
    meaning = f"tensor-core instruction {_product(size)} (m×n×k)" if size else "a tensor-core instruction"
    if letter in "hd":
        said["implied_dtype"] = accumulator
    elif letter == "s" and size == (16, 8, 8) and not math and not types:
        said["implied_dtype"] = "tfloat32"  # operands are float32 as the accumulator; this shape takes TF32
        meaning += "; it rounds its float32 operands to TF32"
    parts = [(letter, f"accumulates in {accumulator}"), (shape, meaning)]
    if math:
        said["dtype"] = _TYPES[math]
        parts.append((math, f"operands are rounded to {_TYPES[math]} before they are multiplied"))
    return [*parts, last], said | {"instruction": size}


_CORE = (rf"(gc|[shdicz])((?:\d{{1,3}}x){{2}}\d{{1,3}}|\d{{3,6}})?({_TYPE})?(gemm|cudnn|fprop|dgrad|wgrad)"
         rf"(?=((?:_relu|_optimized)?_(?:{_TYPE})(?=_))?)")
_CORE_ROWS: tuple[Row, ...] = (
    _row(rf"(?:{_TYPE})(?=_(?:gc|[shdicz])[x\d]{{0,14}}(?:{_TYPE})?(?:gemm|cudnn))", "", _output_type),
    _row(_CORE, "accumulate_dtype", _core),
    _word(rf"({_TYPE})", "operands A and B are {dtype}", dtype=_TYPES.get),
    _TILE, _DEEP_TILE, _STAGES,
    _row("([nt][nt])[nt]?", "layout", _layout),
    _word(r"align(\d{1,3})", "alignment of the operands, in elements: {0}", alignment=int),
    *_EPILOGUES,
    _word(r"sliced(\d{1,2})x(\d{1,2})", "the warps of a block share out k as well, {0} × {1}"),
    _NHWC, _SPLIT_K,
)


# GEMMs: CUTLASS, cuBLAS, XMMA, nvjet


def _five_types(found: re.Match) -> Said:
    """bf16_bf16_f32_bf16_bf16: of operands A and B, accumulator, C, D. ue4m3xf4: 4 bits, 8-bit scales."""
    roles = ("operand A", "operand B", "the accumulator", "C", "the output D")
    tokens = [(spelled, f"type of {role}") for spelled, role in zip(found.groups(), roles, strict=True)]
    operand = "e2m1" if found[1].endswith(("f4", "e2m1")) else found[1]
    return tokens, {"dtype": _TYPES.get(operand), "accumulate_dtype": _TYPES.get(found[3])}


_CUTLASS_WORDS: tuple[Row, ...] = (
    _word("cutlass(?:3x)?", "CUTLASS, NVIDIA's open-source GEMM templates"),
    _word(r"(?:sm)?(\d{2,3})(?=_(?:wmma|\w{0,2}tensorop|simt))", "code for {arch}", arch="sm_{}".format),
    _word("wmma", "through the warp-wide wmma instructions"),
    _word("tensorop", "on the tensor cores"),
    _word("bstensorop", "on the tensor cores, operands in blocks that share a scale"),
    _word("sptensorop", "on the tensor cores, A is 2:4 sparse"),
    _word("simt", "on the CUDA cores"),
    _row("_".join([rf"({_TYPE}|f8|f6|f4|void|u?e\dm\dx\w{{2,4}})"] * 5), "", _five_types),
    _word(r"(s|h|i|d)?((?:\d{1,3}x){2}\d{1,3})?(?:tf32)?implicit_gemm_(?:fprop|dgrad|wgrad)",
          "convolution, done as a matrix product whose matrix is never formed", kind="other",
          variant="convolution"),
    _word("block_scaled", "a block of operands shares a scale"),
    _word(r"[12]sm", "thread blocks that share a tensor-core instruction"),
    _word("dyn_cga", "size of a cluster of thread blocks: chosen at the launch"),
    _word("ptr_array|grouped", "many products in one launch, each with its own operands"),
    _word("stream_k", "thread blocks share out tiles and k evenly", split_k=True),
    _word("warpspecialized", "some warps only load, the others only multiply"),
    _word("cooperative|pingpong", "how the multiplying warp groups share out the tiles"),
    _word(r"epi_(\w{2,6})", "how the epilogue stores its results"),
    *_CORE_ROWS,
    _word(_BY_BY, "thread blocks in a cluster"),
    _word("(0)", "as many stages as fit"),
    _word(r"(\d{1,2})", f"stages ({_FLIGHT})", stages=int),
)


def _cutlass(found: re.Match) -> dict:
    return _spell(found[0], _CUTLASS_WORDS, kind="gemm")


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
        said["tile"] = _integers(*shape.groups())
        parts.append((shape[0], "tile of one thread block (m, n, k)"))
    elif loop := _MAINLOOP.search(text):
        stages, *tile = _integers(*loop.groups())
        said |= {"stages": stages, "tile": tuple(tile)}
        parts += [(loop[1], f"stages ({_FLIGHT})"), (_product(tile), "tile of one thread block (m×n×k)")]
    if epilogue := re.search(r"LinearCombination(BiasRelu|BiasElementwise|Relu|Gelu|GELU|Bias)", text):
        said["epilogue"] = epilogue[1].lower().removesuffix("elementwise").replace("biasrelu", "bias+relu")
        parts.append((epilogue[0], f"its epilogue can apply {said['epilogue']}"))
    if types := _floats(text):
        said["dtype"] = _TYPES[types[0]]
        parts.append((types[0], "type of the operands, the first in the name"))
    return {**said, "parts": tuple(parts)}


_GENERATIONS = {"maxwell": "sm_5x", "pascal": "sm_6x", "volta": "sm_70", "turing": "sm_75", "ampere": "sm_8x",
                "ada": "sm_89", "hopper": "sm_90"}
_CUBLAS_WORDS: tuple[Row, ...] = (
    _word(f"({'|'.join(_GENERATIONS)})", "written for this generation ({arch}); newer GPUs run it too",
          arch=_GENERATIONS.get),
    _word(r"ldg(\d{1,2})", "loads {0} elements at a time from global memory"),
    *_CORE_ROWS,
)
_CUDNN_WORDS: tuple[Row, ...] = (
    _word("(nn|nt|tn|tt)", "BLAS' letters for the matrix product inside the convolution", layout=str),
    *_CUBLAS_WORDS,
)


def _cublas(found: re.Match) -> dict | None:
    said = _spell(found[0], _CUBLAS_WORDS)
    return said if said.get("kind") == "gemm" else None


def _cudnn_convolution(found: re.Match) -> dict:
    return _spell(found[0], _CUDNN_WORDS, kind="other", variant="convolution")


def _xmma_types(found: re.Match) -> Said:
    """bf16f32_bf16f32_f32: types of operands and output, of factors and accumulator, of the epilogue."""
    operand, output, factor, accumulator, epilogue = found.groups()
    tokens = [(operand + output, f"operands are {_TYPES[operand]}, the output is {_TYPES[output]}"),
              (factor + accumulator, f"multiplies {_TYPES[factor]}, accumulates in {_TYPES[accumulator]}"),
              (epilogue, f"the epilogue works in {_TYPES[epilogue]}")]
    return tokens, {"dtype": _TYPES[factor], "accumulate_dtype": _TYPES[accumulator]}


_XMMA_WORDS: tuple[Row, ...] = (
    _ARCH,
    _word("xmma", "NVIDIA's kernel generator behind cuBLAS and cuDNN"),
    _word("sparse", "A is 2:4 sparse"),
    _word("gemm", "matrix multiplication", kind="gemm"),
    _word("fprop|dgrad|wgrad", "forward (fprop), gradient of the input (dgrad) or of the weight (wgrad)",
          kind="other", variant="convolution"),
    _word("implicit_gemm(?:_indexed)?", "done as a matrix product whose matrix is never formed"),
    _row(rf"({_TYPE})({_TYPE})_({_TYPE})({_TYPE})_({_TYPE})", "dtype accumulate_dtype", _xmma_types),
    _row("([nt][nt])_[nt]", "layout", _layout),
    _word("nhwckrsc_(nhwc|nchw)", "tensors lie batch, height, width, channel; the output {0}", layout="nhwc"),
    _word(rf"tilesize{_BY_BY}", _DEEP_MEANING, tile=_integers),
    _word(r"stage(\d{1,2})", f"stages ({_FLIGHT})", stages=int),
    _word(rf"warpsize{_BY_BY}", "how the warps of a block share the tile"),
    _word(rf"warpgroupsize{_BY_BY}", "how the warp groups (4 warps each) of a block share the tile"),
    _word(rf"(?:sp)?tensor{_BY_BY}", "tensor-core instruction {0}×{1}×{2} (m×n×k)", instruction=_integers),
    _word("ffma", "on the CUDA cores (fused multiply-add)"),
    _word("execute_split_k_kernel", "k is shared out over thread blocks", split_k=True),
    _word(r"(?:execute_)?(?:segment_k_(?:on|off)_)?kernel", "the entry point"),
    _word(r"(?:5x_)?(cublas|cudnn)\w{0,20}", "shipped in {0}"),
)


def _xmma(found: re.Match) -> dict:
    return _spell(found[0], _XMMA_WORDS)


_NVJET_TYPES = {"t": "bfloat16", "h": "float16", "s": "float32", "q": "an 8-bit float", "o": "a 4-bit float"}


def _nvjet_types(found: re.Match) -> Said:
    """tst, hss, qqtst: types of the operands, of the accumulator (last but one), of the output (last)."""
    roles = ["operand A", "operand B", "C"] if len(found[0]) == 5 else ["operands"]
    roles += ["accumulator", "output"]
    tokens = [(letter, f"{role}: {_NVJET_TYPES.get(letter, 'not known here')}")
              for letter, role in zip(found[0], roles, strict=True)]
    dtype = {"t": "bfloat16", "h": "float16", "o": "float4_e2m1fn"}.get(found[0][0])  # s: float32 or TF32
    return tokens, {"dtype": dtype, "accumulate_dtype": {"s": "float32", "h": "float16"}.get(found[0][-2])}


_NVJET_WORDS: tuple[Row, ...] = (
    _word("nvjet", "cuBLAS' GEMMs for Hopper and newer; NVIDIA does not document these names"),
    _ARCH,
    _word("mma", "through the warp's mma instructions"),
    _word("tf32", "operands are rounded to TF32 before they are multiplied", implied_dtype="tfloat32"),
    _row("[a-z]{3}|[a-z]{5}", "accumulate_dtype", _nvjet_types),
    _TILE, _STAGES, _DEEP_TILE,
    _word(_BY_BY, "tile of one warp"),
    _word(_BY, "thread blocks in a cluster"),
    _word(r"(\d{1,2})", f"stages ({_FLIGHT})", stages=int),
    _word("2cta", "two thread blocks work on one tensor-core instruction"),
    _word("(A|B)vec(\\d{1,3})(U?E\\dM\\d)", "{1} elements of {0} along k share a scale of type {2}"),
    _word("badd", "seen where C is added (beta is not 0)"),
    *_EPILOGUES,
    _SPLIT_K,
    _row("([NT]{2})[NT]{1,2}", "layout", _layout),
)


def _nvjet(found: re.Match) -> dict:
    return _spell(found[0], _NVJET_WORDS, kind="gemm")


def _short_floats(found: re.Match) -> list[str]:
    """The plain floating-point arguments of the template that follows, as they are spelled."""
    return [t for a in _arguments(found.string, found.end()) if len(a) < 40 for t in _floats(a)]


def _small_gemm(found: re.Match) -> dict:
    """gemv2T_kernel, gemvNSP_kernel, gemmSN_TN_kernel: cuBLAS' matrix times vector or a few columns."""
    function, types, vector = found[1], _short_floats(found), "gemv" in found[1]
    operand = re.search(r"cublasGemvTensor\w{0,40}<([\w:]{1,40}) const", found.string)
    dtypes = [_TYPES[t] for t in (_floats(operand[1]) if operand else []) + types]
    letters = re.search("gemv2([NT])|gemmSN_([NT]{2})", function)
    accumulator = types[3:4] if vector else types[:1]  # gemv: A, x, y, then the type computed in
    what = "matrix times vector" if vector else "matrix times a few columns"
    parts = [(function, f"{what}, from cuBLAS"), *((t, "a type it works with") for t in dict.fromkeys(types))]
    return {"kind": "gemm", "variant": f"GEMM ({what})", "dtype": dtypes[0] if dtypes else None,
            "layout": (letters[1] or letters[2]).lower() if letters else None,
            "accumulate_dtype": _TYPES[accumulator[0]] if accumulator else None, "parts": tuple(parts)}


def _split_k_sum(found: re.Match) -> dict:
    """The second half of a split-K GEMM. Which of its template's types is which is not documented."""
    types = list(dict.fromkeys(_short_floats(found)))
    parts = [(found[0], "adds up the partial sums"), *((t, "a type it works with") for t in types)]
    return {"kind": "reduction", "variant": "sum of a split-K GEMM's parts",
            "dtype": _TYPES[types[0]] if len(types) == 1 else None, "parts": tuple(parts)}


# Attention

_CAUSAL = {  # which of the flags after the traits is Is_causal
    "flash_fwd_kernel": 1, "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": 1, "flash_fwd_splitkv_kernel": 0,
}


def _flash(found: re.Match) -> dict:
    """flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, …, type>, dropout, causal, …>."""
    text, way = found.string, {"fwd": "forward", "bwd": "backward"}[found[2]]
    said = {"kind": "attention", "variant": way}
    parts = [(found[1], f"{way}; the scores never leave the chip")]
    if sizes := re.search(r"kernel_traits<(\d{1,4}), (\d{1,4}), (\d{1,4}), (\d{1,2})", text):
        said |= {"variant": f"{way}, head dimension {sizes[1]}", "tile": _integers(sizes[2], sizes[3])}
        roles = ("head dimension", "queries in a block's tile", "keys taken at a time", "warps in a block")
        parts += zip(sizes.groups(), roles, strict=True)
    if types := _floats(text):
        said["dtype"] = _TYPES[types[0]]
        parts.append((types[0], "type of q, k and v"))
    flags, place = _arguments(text, found.end())[1:], _CAUSAL.get(found[1], 99)
    if flags[place : place + 1] in (["true"], ["false"]):
        causal = flags[place] == "true"
        said["variant"] += ", causal" if causal else ""
        parts.append((flags[place], "built for a causal mask" if causal else "built without a causal mask"))
    return {**said, "parts": tuple(parts)}


_TUPLE = re.compile(r"cute::tuple<cute::C<(\d{1,4})>, ?cute::C<(\d{1,4})>, ?cute::C<(\d{1,4})> ?>", re.ASCII)


def _flash_3(found: re.Match) -> dict:
    """FlashAttnFwdSm90<…Mainloop…<stages, cluster, tile, width of V, type, accumulator, arch, causal, …>."""
    way, text = {"Fwd": "forward", "Bwd": "backward"}[found[1]], found.string
    said = {"kind": "attention", "variant": way, "arch": f"sm_{found[2]}"}
    parts = [(found[0].rsplit("::")[-1], f"FlashAttention 3, {way}, for sm_{found[2]}")]
    if loop := re.compile(r"CollectiveMainloop(?=Fwd|Bwd)\w{1,20}").search(text):
        arguments = _arguments(text, loop.end())
        tile = next((t for a in arguments if (t := _TUPLE.match(a)) and int(t[1]) > 16), None)
        types = [t for a in arguments if len(a) < 40 for t in _floats(a)]
        flags = [a for a in arguments if a in ("true", "false")]
        if tile:
            said |= {"tile": _integers(tile[1], tile[2]), "variant": f"{way}, head dimension {tile[3]}"}
            parts.append((tile[0], "queries and keys in a block's tile, head dimension"))
        if arguments and arguments[0].isdigit() and way == "forward":
            said["stages"] = int(arguments[0])
            parts.append((arguments[0], "stages (tiles of keys and values in flight)"))
        if types:
            said |= {"dtype": _TYPES[types[0]], "accumulate_dtype": _TYPES[types[1]] if types[1:] else None}
            parts += zip(types, ("type of q, k and v", "type it accumulates in"), strict=False)
        if flags[:1] == ["true"]:
            said["variant"] += ", causal"
            parts.append(("true", "built for a causal mask"))
    return {**said, "parts": tuple(parts)}


_FLASHINFER = re.compile(
    r"KernelTraits<\(?[\w:]{1,40}\)?(\d), (\d{1,4})u?, \d{1,2}u?, (\d{1,2})u?, (\d{1,2})u?, \d{1,2}u?, "
    r"\d{1,2}u?, (\d{1,2})u?,", re.ASCII)


def _flashinfer(found: re.Match) -> dict:
    """BatchPrefillWithPagedKVCacheKernel<KernelTraits<(MaskMode)1, queries, …>>: sizes in units of 16."""
    said = _library(found, "FlashInfer")
    if traits := _FLASHINFER.search(found.string):
        mask, queries, keys_mma, depth_mma, keys_warps = map(int, traits.groups())
        causal = ", causal" if mask == 1 else ""
        said |= {"kind": "attention", "tile": (queries, 16 * keys_mma * keys_warps),
                 "variant": f"{said['variant']}, head dimension {16 * depth_mma}{causal}"}
        said["parts"] += ((traits[0], "mask (0 none, 1 causal, 2 custom), queries in a tile; in units of 16 "
                           "queries and keys of a warp, head dimensions of k and v; warps along both"),)
    return said


_EFFICIENT_WORDS: tuple[Row, ...] = (
    _word("fmha", "fused multi-head attention"),
    _word("cutlassF", "built on CUTLASS, forward", variant="attention, forward"),
    _word("cutlassB", "built on CUTLASS, backward", variant="attention, backward"),
    _word(rf"({_TYPE})", "type of q, k and v", dtype=_TYPES.get),
    _word("aligned", "head dimension and strides fit whole vector loads"),
    _word("notaligned", "for any head dimension and strides"),
    _word(_BY, "a block takes {0} queries × {1} keys at a time", tile=_integers),
    _word("rf", "the output accumulates in registers (register file)"),
    _word("gmem", "the output accumulates in global memory"),
    _word(r"k(\d{1,5})", "head dimension up to {0}"),
    _word("dropout", "with dropout"),
    _word("seqaligned", "sequence lengths are multiples of the tile"),
    _ARCH,
)


def _efficient(found: re.Match) -> dict:
    return _spell(found[0], _EFFICIENT_WORDS, kind="attention")


_CUDNN_ATTENTION_WORDS: tuple[Row, ...] = (
    _word("cudnn_generated_fort_native", "generated by cuDNN at run time"),
    _word("sdpa", "scaled dot-product attention"),
    _ARCH,
    _word("flash", "FlashAttention's algorithm"),
    _word("fprop", "forward", variant="attention, forward"),
    _word("bprop", "backward", variant="attention, backward"),
    _word("wmma", "through a warp's tensor-core instructions"),
    _word("wgmma", "through a warp group's (4 warps') tensor-core instructions"),
    _word("f16", "a 16-bit type: kernels of bfloat16 runs say f16 too, so float16 does not follow"),
    _word(r"knob_(\d{1,4})", "variant {0}"),
    _word(_BY_BY, "tile of one thread block; which number is which is not documented", tile=_integers),
    _word(_BY_BY, "arrangement of warps"),
    _word(rf"cga{_BY_BY}", "thread blocks in a cluster"),
    _word(r"kernel\d{0,2}(?:_\d)?", "the entry point"),
)


def _cudnn_attention(found: re.Match) -> dict:
    return _spell(found[0], _CUDNN_ATTENTION_WORDS, kind="attention")


_TRTLLM_TYPES = {"bfloat16": "bfloat16", "fp16": "float16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
                 "e2m1": "float4_e2m1fn", "fp32": "float32"}


def _trtllm_type(spelled: str) -> str | None:
    """Bfloat16, E4m3, MxE2m1 (a block of it shares a scale)."""
    return _TRTLLM_TYPES.get(spelled.lower().removeprefix("mx"))


def _trtllm(found: re.Match) -> dict:
    """fmhaSm100fKernel_QkvBfloat16OBfloat16H128…CausalP64…Q8Kv128…: attention for Blackwell."""
    text, (arch, operand, output) = found.string, found.groups()
    said = {"kind": "attention", "variant": "attention", "arch": f"sm_{arch}", "dtype": _trtllm_type(operand)}
    parts = [("fmha", "fused multi-head attention"), (f"Sm{arch}", f"code for sm_{arch}"),
             (f"Qkv{operand}", "type of q, k and v"), (f"O{output}", "type of the output")]
    if head := re.compile(r"H(?:Qk)?(\d{1,4})").search(text, found.end()):
        said["variant"] += f", head dimension {head[1]}"
        parts.append((head[0], f"head dimension {head[1]}"))
    if "Causal" in text:
        said["variant"] += ", causal"
        parts.append(("Causal", "built for a causal mask"))
    if tile := re.compile(r"Q(\d{1,4})Kv(\d{1,4})").search(text, found.end()):
        said["tile"] = _integers(*tile.groups())
        parts.append((tile[0], "queries and keys in a tile"))
    return {**said, "parts": tuple(parts)}


_TRTLLM_TYPE = "(?:Mx)?(?:Bfloat16|Fp16|Fp32|E4m3|E5m2|E2m1)"
_TRTLLM_WORDS: tuple[Row, ...] = (
    _word("bmm|gemm", "matrix multiplication, by TensorRT-LLM's generator"),
    _word(rf"({_TRTLLM_TYPE})({_TRTLLM_TYPE})", "operands A and B", dtype=lambda a, b: _trtllm_type(a)),
    _word("(Fp32)(?=_)", "accumulates in {accumulate_dtype}", accumulate_dtype=_trtllm_type),
    _word(_TRTLLM_TYPE, "type of the output"),
    _word(rf"t{_BY_BY}(?:u\d)?", "tile of one thread block, m × n × k: {0} × {1} × {2}", tile=_integers),
    _word(r"s(\d{1,2})", f"stages ({_FLIGHT})", stages=int),
    _word(rf"m{_BY_BY}", "tensor-core instruction {0}×{1}×{2} (m×n×k)", instruction=_integers),
    _word(rf"c{_BY_BY}", "thread blocks in a cluster"),
    _word("(swiGlu|geGlu|relu2)", "applies {0} to its result", activation=str.lower),
    _word(r"sm(\d{2,3})[af]?", "code for {arch}", arch="sm_{}".format),
)
_FMHA_WORDS: tuple[Row, ...] = (
    _word("fmha_v2", "fused multi-head attention, by TensorRT-LLM"),
    _word("flash_attention", "FlashAttention's algorithm"),
    _word(rf"({_TYPE})(?:_(?:{_TYPE}|output))*", "type of q, k and v", dtype=_TYPES.get),
    _word(r"(\d{2,3})_(\d{2,3})(?=_S)", "queries × keys in a tile", tile=_integers),
    _word(r"S_(?:qkv|q_kv|q_paged_kv|q_k_v)_(\d{2,3})", "any sequence length, head dimension {0}",
          variant="attention, head dimension {}".format),
    _word("causal", "built for a causal mask"),
    _ARCH,
)


def _trtllm_gemm(found: re.Match) -> dict:
    return _spell(found[0], _TRTLLM_WORDS, kind="gemm")


def _trtllm_fmha(found: re.Match) -> dict:
    return {"variant": "attention", **_spell(found[0], _FMHA_WORDS, kind="attention")}


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
    return operator.removesuffix("_backward") in _OPERATORS


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
    )
)
_HANDS = {"L": "the name Liger-Kernel gave its Triton kernel; others have copied it",
          "T": "the name in Triton's tutorials and in AOTriton, the attention of PyTorch on AMD"}
# matmul_ogs of triton_kernels: three strides' letters and three types, of the output, of x and of w
_OGS_WORDS: tuple[Row, ...] = (
    _word("p?_?matmul(?:_ogs)?", "matrix multiplication of a mixture of experts, OpenAI's triton_kernels"),
    _word("[NT]{3}", "of output, x and w: N where the fastest index is the inner one (not BLAS' letters)"),
    _word(r"(?:[a-z]{1,2}\d{1,2})x([a-z]{1,2}\d{1,2})x(\w{2,6}?)", "types of the output, of x and of w ({1})",
          dtype=_TYPES.get),
    _word(rf"{_BY_BY}x(\d{{1,3}})", "tile m × n × k: {0} × {1} × {2}, then split-K",
          tile=lambda m, n, k, _: _integers(m, n, k), split_k=lambda *sizes: sizes[3] != "1"),
    _word("o?g?s?|swiglu", "gathers (g) its rows, scatters (s) its result; a fused activation"),
)


_BLOCKS = re.compile(
    r"_BLOCK_SIZE_M_(\d{1,4})_BLOCK_SIZE_N_(\d{1,4})_BLOCK_SIZE_K_(\d{1,4})(?=_|$)", re.ASCII)


def _with_constants(found: re.Match) -> dict:
    """_gemm_…_kernel_BLOCK_SIZE_M_128_…: AITER has Triton write a kernel's constants into its name."""
    text, blocks = found[0], _BLOCKS.search(found[0])
    split = re.search(r"_NUM_KSPLIT_(\d{1,3})(?=_|$)", text)
    return {"kind": "gemm" if "gemm" in text else "unknown", "tile": _integers(*blocks.groups()),
            "epilogue": "bias" if "_HAS_BIAS_1" in text else None,
            "split_k": int(split[1]) > 1 if split else None,
            "parts": ((text[: blocks.start()], "the function, and constants of its compilation"),
                      (blocks[0], "tile m × n × k: " + _product(blocks.groups())))}


def _matmul_ogs(found: re.Match) -> dict:
    return _spell(found[0].strip("_"), _OGS_WORDS, kind="gemm")


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
    if start == len(text) and not re.match("_?triton_", text):
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
    for word in words:
        for pattern, kind, operator, meaning in _ATEN:
            if pattern.fullmatch(word[0]):
                return word[0], word.end(), kind, operator, meaning
        if text.startswith("<", word.end()):
            break
    return (word[0], word.end(), "other", "", "a kernel of ATen's") if words else None


def _aten(found: re.Match) -> dict | None:
    text = found.string
    if not (function := _aten_function(text)):
        return None
    name, end, kind, operator, meaning = function
    arguments = _arguments(text, end)
    if operator == _GENERAL:
        return _aten_general(text, end, kind, [(name, meaning), *_block_shape(name, arguments)])
    types = _floats(", ".join(arguments))
    said = {"kind": kind, "operators": (operator,) if operator else ()}
    said |= {"dtype": _TYPES[types[0]]} if types else {}
    if kind == "softmax":
        said |= _aten_softmax(name, arguments)
    if name == "triu_tril_kernel" and arguments[2:3] in (["true"], ["false"]):  # <type, index type, upper, …>
        types = _types(arguments[0])
        said |= {"operators": ("triu",) if arguments[2] == "true" else ("tril",)}
        said |= {"dtype": _TYPES[types[0]]} if types else {}
    return {**said, "parts": ((name, meaning), *((t, "element type") for t in types[:1]))}


def _block_shape(name: str, arguments: list[str]) -> list[tuple[str, str]]:
    """A kernel's first numbers: vectorized_elementwise_kernel<4, …>, elementwise_kernel<128, 4, …>."""
    numbers = [a for a in arguments[:2] if a.isdigit() and len(a) < 6]
    if name.startswith("vectorized") and numbers:
        return [(numbers[0], f"{_count(int(numbers[0]), 'element')} to a load or store")]
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
    for word in _WORDS.finditer(text, at):
        if "elementwise" not in word[0] and (found := _FUNCTOR.fullmatch(word[0])):
            bare = next(filter(None, found.groups()))
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower().strip("_")
            if name not in _WRAPPERS:
                return word[0], _RENAMED.get(name, name), word.end()
    return None


def _element_type(text: str, start: int, functor_end: int | None) -> str | None:
    """The type a functor is made for: the first in its wrapper, in its template, or of its lambda."""
    wrapper = re.compile(r"(?:[AB]Unary|Binary)Functor(?=<)").search(text, start)
    argued = re.compile(r"lambda\(([^(){}]{1,300})\)").search(text, functor_end or start)
    places = [a for at in (wrapper and wrapper.end(), functor_end) if at for a in _arguments(text, at)]
    types = _types(", ".join(places)) or _types(argued[1] if argued else "")
    return next((t for t in types if t != "bool"), types[0] if types else None)


def _aten_general(text: str, end: int, kind: str, parts: list[tuple[str, str]]) -> dict:
    """A general kernel and the function object it applies: elementwise_kernel<128, 4, …neg_kernel_cuda…>."""
    identifier, operator, at = _functor(text, end) or ("", "", None)
    spelled = _element_type(text, end, at)
    if "OpaqueType" in text or operator == "arange" or parts[0][0].startswith("distribution"):
        spelled = None  # bytes of some size, an index, or what it computes in: not the tensor's type
    said = {"kind": kind, "dtype": _TYPES[spelled] if spelled else None}
    if operator:
        said["operators"] = (operator,)
        parts.append((identifier, _ALSO.get(operator, operator)))
    if operator in ("copy", "index"):
        said["kind"] = "copy"
    if kind == "reduction" and (types := _types(", ".join(_arguments(text, at or 0))))[1:]:
        said["accumulate_dtype"] = _TYPES[types[1]]
    parts += [(spelled, "element type")] if spelled else []
    if operator == "copy" and (fixed := re.match("(bfloat16|float16)_copy", identifier)) and spelled:
        said |= {"dtype": fixed[1], "variant": f"copy with conversion from {_TYPES[spelled]}"}
        parts[-1] = (spelled, f"type it reads; it writes {fixed[1]}")
    elif operator == "copy" and "LoadWithCast" in text:
        said["variant"] = "copy with conversion"
        parts.append(("LoadWithCast", "converts; the type it reads is not in the name"))
    return {**said, "parts": tuple(parts)}


def _aten_softmax(name: str, arguments: list[str]) -> dict:
    """softmax_warp_forward<in, out, accumulator, log2 of a row, is_log, …>, cunn_…<…, in, accumulator, …>."""
    types, warp = [t for a in arguments for t in _floats(a)], name.startswith("softmax_warp")
    log = arguments[4:5] == ["true"] if warp else any("LogSoftMax" in a for a in arguments)
    accumulator = types[2:3] if warp else types[1:2]
    return {"operators": ("log_softmax" if log else "softmax",),
            "accumulate_dtype": _TYPES[accumulator[0]] if accumulator else None,
            "variant": "softmax, backward" if "ackward" in name else None}


# Other libraries, copies, communication


def _cudnn(found: re.Match) -> dict:
    """cuDNN's C++ kernels: convolutions, batch norm, and changes of layout around them."""
    function = re.search(r"(\w{3,80})(?=[<(]|$)", found.string, re.ASCII)
    name, end = (function[1], function.end()) if function else (found[0], found.end())
    kind, variant = ("other", None)
    if re.search("(?i)nchwToNhwc|nhwcToNchw", name):
        kind, variant = "copy", "change of layout"
    elif name.startswith("bn_"):
        kind, variant = "reduction", "batch norm"
    types = _floats(", ".join(_arguments(found.string, end)))[:1]
    return {"kind": kind, "variant": variant, "dtype": _TYPES[types[0]] if types else None,
            "parts": ((name, f"{variant or 'a kernel'}, by cuDNN"), *((t, "element type") for t in types))}


_FUNCTION_KINDS = tuple((re.compile(f"(?i){words}"), kind) for words, kind in (
    ("attention|attn|fmha|prefill|mla", "attention"),
    ("norm|ln_[fb]wd|batched_?reduce", "reduction"),
    ("softmax", "softmax"),
    ("gemm|matmul|bmm|wvSplitK", "gemm"),
    ("all_?reduce|all_?gather|dispatch|combine|all_?to_?all", "communication"),
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
    types = _floats(", ".join(_arguments(found.string, end)))[:1]
    parts = ((name, f"a kernel of {title}"), *((t, "the first type in its template") for t in types))
    return {"kind": _kind_of(name), "variant": _spoken(name) or name,
            "dtype": _TYPES[types[0]] if types else None, "parts": parts}


_CK_LAYOUTS = {"RowMajor, ColumnMajor": "tn", "RowMajor, RowMajor": "nn", "ColumnMajor, ColumnMajor": "tt",
               "ColumnMajor, RowMajor": "nt"}  # A, then B, both row-major as PyTorch sees them
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


def _composable(found: re.Match) -> dict:
    """AMD's Composable Kernel: Gridwise…<layouts, types, …, threads, m, n, k, …> or ck_tile's BlockTile."""
    text = found.string
    kind, variant = next((what for words, *what in _CK_WHAT if words.search(text)), ("other", None))
    said = {"kind": kind, "variant": variant}
    parts = [(found[0].removeprefix("void ").strip(":"), "AMD's Composable Kernel")]
    grid = _CK_GRID.search(text)
    if grid and text[grid.end() :][:1].isdigit():  # an older kernel, whose tile is far behind
        grid = None
    if grid and (tile := _CK_TILE.search(text, grid.end())):
        scaled = tile[4] and "Scale" in grid[0]
        said["tile"] = _integers(*(tile.groups()[3:] if scaled else tile.groups()[:3]))
        parts.append((tile[0], f"threads in a workgroup, {'what shares a scale, ' if scaled else ''}"
                      "its tile (m, n, k), then how it is loaded"))
    if fmha := re.search(r"TileFmhaShape<ck_tile::sequence<(\d{1,4}), (\d{1,4}),", text):
        said["tile"] = _integers(*fmha.groups())
        parts.append((fmha[0], "queries and keys in a tile"))
    letters = re.compile(r"gemm::(\w{1,3}\w+Major), (?:ck::)?tensor_layout::gemm::(\w+Major)").search(text)
    if letters and kind == "gemm":
        said["layout"] = _CK_LAYOUTS.get(f"{letters[1]}, {letters[2]}")
        parts.append((letters[0], "how A and B lie"))
    if operand := _CK_TYPE.search(text, grid.end() if grid else found.end()):
        said["dtype"] = _CK_TYPES.get(operand[0]) or _TYPES.get(operand[0])
        parts.append((operand[0], "type of the operands"))
    return {**said, "parts": tuple(parts)}


def _cub(found: re.Match) -> dict:
    name = re.compile(r"Device(\w{1,60}?)Kernel").search(found.string)
    what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name[1]).lower() if name else "algorithm over the whole device"
    kind = "reduction" if what.startswith("reduce") else "other"
    return {"kind": kind, "variant": what, "parts": ((name[0] if name else found[0], what),)}


_NCCL_MOVES = "AllGather|Broadcast|SendRecv"
_NCCL_WORDS: tuple[Row, ...] = (
    _word("ncclDevKernel|ncclKernel", "NCCL, NVIDIA's library for work across GPUs"),
    _word("ncclSymkDevKernel", "NCCL, through buffers that all GPUs of the job have mapped"),
    _word(rf"({_NCCL_MOVES}|AllReduce|ReduceScatter|Reduce)", "the collective", operators=lambda *name: name),
    _word("[Ss]um|Prod|Max|Min|MinMax|PreMulSum|SumPostDiv", "how values are combined"),
    _word("RING|TREE|COLLNET(?:_DIRECT|_CHAIN)?|NVLS(?:_TREE)?|PAT", "algorithm: the path between GPUs"),
    _word("LL128|LL|SIMPLE", "protocol: LL and LL128 for low latency, SIMPLE for bandwidth"),
    _word(rf"({'|'.join(sorted((t for t in _TYPES if t.isidentifier()), key=len, reverse=True))})",
          "type of the elements", dtype=_TYPES.get),
)


def _nccl(found: re.Match) -> dict:
    said = _spell(found[0], _NCCL_WORDS, kind="communication")
    if re.search(_NCCL_MOVES, found[0]) and said.pop("dtype", None):
        meaning = "bytes: a collective that only moves data has one kernel for every type"
        said["parts"] = tuple((token, meaning if token in _TYPES else m) for token, m in said["parts"])
    return said


_ENDS = {"H": "host", "D": "device", "P": "peer device", "A": "array"}


def _memcpy(found: re.Match) -> dict:
    """Memcpy HtoD (Pageable -> Device): a row the profiler writes, not a kernel."""
    source, target = _ENDS.get(found[1], found[1]), _ENDS.get(found[2], found[2])
    parts = [("Memcpy", "copy"), (f"{found[1]}to{found[2]}", f"from {source} to {target}")]
    if found[3]:
        staged = "; pageable host memory is staged through pinned memory" if "Pageable" in found[3] else ""
        parts.append((found[3], "kinds of memory" + staged))
    return {"kind": "copy", "variant": f"memory copy, {source} to {target}", "parts": tuple(parts)}


def _memset(found: re.Match) -> dict:
    return {"kind": "memset", "variant": "memory set", "parts": ((found[0], "fills memory with one value"),)}


# AMD

_TENSILE_TYPES = {"H": "float16", "B": "bfloat16", "S": "float32", "D": "float64"}
_TENSILE_LAYOUT = {"Ailk": "n", "Alik": "t", "Bljk": "n", "Bjlk": "t"}


def _tensile_layout(found: re.Match) -> Said:
    """C[i, j] sums A · B over l, fastest index first: A stored [i, l] is BLAS' N, [l, i] T; B [l, j] is N."""
    letters = _TENSILE_LAYOUT[found[1]] + _TENSILE_LAYOUT[found[2]]
    return [(found[0], _LAYOUTS[letters])], {"layout": letters}


_TENSILE_WORDS: tuple[Row, ...] = (
    _word("Cijk", "matrix multiplication, in a batch"),
    _row("(A(?:il|li)k)_(B(?:lj|jl)k)", "layout", _tensile_layout),
    _word("([HBSD])([HBSD])([SD])", "operands {dtype}, then the output, accumulates in {accumulate_dtype}",
          dtype=lambda a, c, s: _TENSILE_TYPES[a], accumulate_dtype=lambda a, c, s: _TENSILE_TYPES[s]),
    _word("I8II?", "operands int8, accumulates in int32", dtype="int8", accumulate_dtype="int32"),
    _word("([HBSD])B?(?=_(?:[HBSD]S_|B_|Bias|MT))", "operands {dtype}", dtype=_TENSILE_TYPES.get),
    _word(rf"MT{_BY_BY}", _DEEP_MEANING.replace("thread block", "workgroup"), tile=_integers),
    _word("Bias[HBSD]*", "its epilogue can add a bias", bias="bias"),
    _word("Grad", "its epilogue can sum up a bias gradient", bias_gradient="bias gradient"),
    _word("HA_?[HBSD]?|A_[HBSD]|AH|AS", "its epilogue can apply an activation, chosen at the launch",
          activation="activation"),
    _word("Aux[HBSD]?", "and can keep for the backward pass what the activation received", aux="aux"),
    _word(r"GSU(\d{1,3})", "workgroups that share out k: {0}", split_k=lambda count: int(count) > 1 or None),
    _word(r"ISA(\d{1,3}\w{1,2})", "code for {arch}", arch="gfx{}".format),
)
_IGEMM_WORDS: tuple[Row, ...] = (
    _word("igemm", "convolution done as a matrix product"),
    _word("fwd|bwd|wrw", "forward (fwd), gradient of the input (bwd) or of the weight (wrw)"),
    _NHWC,
    _word(rf"({_TYPE})", "type of the elements", dtype=_TYPES.get),
    _word(rf"bt{_BY_BY}", _DEEP_MEANING.replace("thread block", "workgroup"), tile=_integers),
)


_MIOPEN_WORDS: tuple[Row, ...] = (
    _word(r"miopenSp3AsmConv\w{0,12}?(?=_)", "convolution by Winograd's algorithm, assembly", kind="other",
          variant="convolution"),
    _word("naive_conv", "convolution, the plain loop", kind="other", variant="convolution"),
    _word(r"batched_transpose(?=_)", "change of layout, around a convolution", kind="copy",
          variant="change of layout"),
    _word(r"MIOpenBatchNorm\w{0,60}", "batch norm", kind="reduction", variant="batch norm"),
    _word(r"SubTensorOp\w{0,40}|Op[1-5]dTensor\w{0,40}", "pointwise over a part of a tensor",
          kind="pointwise", variant="pointwise kernel"),
    _word(r"MIOpen\w{0,60}|mlo\w{0,60}|gridwise_\w{0,80}", "a kernel of MIOpen's", kind="other"),
    _word("fwd|bwd|wrw", "forward (fwd), gradient of the input (bwd) or of the weight (wrw)"),
    _word(r"gfx(\d{1,3}\w?)", "code for {arch}", arch="gfx{}".format),
    _word(r"f(\d)x(\d)", "Winograd's tile of outputs and filter"),
    _word("(half|float|bfloat16|double|fp16|fp32|bf16)", "type of the elements",
          dtype=lambda spelled: _TYPES.get(spelled, spelled)),
    _word(_BY, "its tile", tile=_integers),
    _NHWC,
)


def _miopen(found: re.Match) -> dict:
    return {"kind": "other", **_spell(found[0], _MIOPEN_WORDS, rest=None)}


def _tensile(found: re.Match) -> dict:
    return _spell(found[1], _TENSILE_WORDS, rest=None, kind="gemm")


def _igemm(found: re.Match) -> dict:
    return _spell(found[0], _IGEMM_WORDS, rest=None, kind="other", variant="convolution")


# All families, tried in this order

_LIBRARIES = (  # family, where its names begin, what it is called
    ("vllm", r"vllm::|paged_attention_(?=\w)|wvSplitK(?=\w)", "vLLM"),
    ("sglang", r"(?:sgl|sglang|sgl_\w{1,10})::", "SGLang"),
    ("aiter", r"aiter::", "AITER, AMD's kernels for inference"),
    ("trtllm", r"(?:tensorrt_llm|trtllm\w{0,20}|moe::dev)::", "TensorRT-LLM"),
    ("deepgemm", r"deep_gemm::", "DeepGEMM"),
    ("deepep", r"deep_ep::", "DeepEP"),
    ("fbgemm", r"fbgemm_gpu::|split_embedding_(?=\w)", "FBGEMM, embedding tables"),
    ("torchvision", r"vision::ops::", "torchvision"),
    ("apex", r"layer_norm::(?=ln_)|scaled_(?:\w{1,30}_)?masked_softmax_warp_(?=\w)",
     "apex; others have copied it"),
    ("transformer-engine", r"transformer_engine::", "Transformer Engine"),
    ("magma", r"magma_\w{1,40}(?=<)", "MAGMA, inside cuBLAS"),
    ("rocprim", r"rocprim::", "rocPRIM, AMD's CUB"),
)
_GENERATION = rf"(?:(?<=_)|\b)(?:{'|'.join(_GENERATIONS)})_"
_FAMILIES: tuple[tuple[str, re.Pattern, Callable[[re.Match], dict | None]], ...] = tuple(
    (family, re.compile(opening, re.ASCII), read)
    for family, opening, read in (
        ("memcpy", r"^Memcpy ([A-Z])to([A-Z])(?: \(([^()]{1,60})\))?", _memcpy),
        ("memset", r"^Memset\b", _memset),
        ("nccl", r"\bnccl(?:Symk)?(?:Dev)?Kernel_\w+", _nccl),
        ("triton", r"^triton_([a-z]{3})_fused_(\w*)$", _inductor_triton),
        ("inductor-cpp", r"^(?:graph_\d{1,6}_)?cpp_fused_(\w*)$", _inductor_cpp),
        ("nvjet", r"\bnvjet_\w+", _nvjet),
        ("xmma", r"\bsm\d{2,3}_xmma_\w+", _xmma),
        ("cudnn", r"\bcudnn_generated_fort_native_sdpa_\w+", _cudnn_attention),
        ("efficient", r"\bfmha_cutlass[FB]_\w+", _efficient),
        ("trtllm", r"^fmhaSm(\d{2,3})\w?Kernel_Qkv([A-Z][a-z0-9]{2,8})O([A-Z][a-z0-9]{2,8})(?=H)", _trtllm),
        ("trtllm", rf"^(?:bmm|gemm)_{_TRTLLM_TYPE}_{_TRTLLM_TYPE}\w+", _trtllm_gemm),
        ("trtllm", r"^fmha_v2_\w+", _trtllm_fmha),
        ("flash", r"\bflash::(?:\w{1,40}::)?FlashAttn(Fwd|Bwd)Sm(\d{2,3})", _flash_3),
        ("flash", r"^kernel_cutlass_\w*(?i:flash_?att)\w*", _cute),
        ("cutlass", r"^kernel_cutlass_\w+", _cute),
        ("flash", r"\b(flash_(fwd|bwd)_\w+)", _flash),
        ("cutlass", r"\bcutlass(?:3x)?_(?:(?:sm)?\d{2,3}_)?(?:wmma_)?(?:[bs][sp]tensorop|tensorop|simt)_\w+",
         _cutlass),
        ("cudnn", rf"{_GENERATION}(?:[a-z]{{1,2}}\d{{1,2}}_)?[sh]\d{{0,6}}cudnn_\w+", _cudnn_convolution),
        ("cublas", rf"{_GENERATION}\w+", _cublas),
        ("cublas", r"\b(gemv\w{0,30}|gemvx::kernel|gemmSN_\w{0,30})(?=<|::|$)", _small_gemm),
        ("cublas", r"\bsplitKreduce_kernel", _split_k_sum),
        ("cudnn", r"\b(?:cudnn|(?:cask|xmma|cutlass)_\w*cudnn\w*)::|\bnchwToNhwcKernel|\bnhwcToNchwKernel"
                  r"|\b(?:implicit|explicit|precomputed)_convolve_sgemm|\bfft[12]d_[cr]2[cr]_"
                  r"|\bflip_filter(?=<)", _cudnn),
        ("cutlass", r"\bcutlass::(?:device_kernel|Kernel2?)\b", _cutlass_template),
        ("cub", r"^(?:void )?(?:at_cuda_detail::)?(?:cub|thrust)::", _cub),
        ("tensile", r"(?:^|_)(Cijk_\w+)", _tensile),
        ("miopen", r"^igemm_(?:fwd|bwd|wrw)_\w+", _igemm),
        ("miopen", r"^(?:miopen|MIOpen|mlo|naive_conv_|batched_transpose_|SubTensorOp|Op[1-5]dTensor"
                   r"|gridwise_)\w+", _miopen),
        ("ck", r"^(?:void )?ck(?:_tile)?::", _composable),
        ("flashinfer", r"^(?:void )?(?P<library>flashinfer::)", _flashinfer),
        *((family, rf"^(?:void )?(?:\(anonymous namespace\)::)?(?P<library>{opening})",
           partial(_library, title=title)) for family, opening, title in _LIBRARIES),
        ("aten", r"\bat::native::|\bsoftmax_warp_(?:for|back)ward\b|\bmulti_tensor_apply_kernel\b", _aten),
        ("triton", r"^_?p?_?matmul_(?:ogs_)?[NT]{3}_\w+", _matmul_ogs),
        ("triton", rf"^\w+?(?={_BLOCKS.pattern})\w+$", _with_constants),
        ("triton", r"^\w+$", _triton),
    )
)
