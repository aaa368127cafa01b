"""C++ in a kernel's name: what a mangled one stands for, a template's arguments, the types among them.

`plain` undoes mangling as far as a kernel's name needs it: the function with its namespaces and template
arguments; of the function's own parameters only the identifiers. Source: the Itanium C++ ABI, which nvcc and
hipcc follow.
"""

import re
from dataclasses import dataclass, field

LIMIT = 4096  # characters of a name that are read: it says early what it says, and this bounds the time

# Nsight: f<(int)4, (bool)1>; nvprof: f<int=4, bool=1>
_CAST = re.compile(
    r"\((?:int|unsigned int|long|unsigned long)\)(?=-?\d)|\b(?:int|unsigned int|long|unsigned long)=(?=-?\d)"
    r"|(?:\(bool\)|\bbool=)([01])", re.ASCII)
_CASTS = ("(int)", "(bool)", "(long)", "(unsigned", "int=", "bool=", "long=")
_MANGLED = re.compile(r"L[a-z]n?\d{1,20}E|S[0-9A-Z]{0,3}_|T\d{0,3}_|(DF16b)|(\d{1,4})", re.ASCII)


def plain(text: str) -> str:
    """The C++ name that mangled `text` stands for, as far as it goes; any other text without its casts."""
    if not text.startswith("_Z"):
        if not any(cast in text for cast in _CASTS):
            return text
        return _CAST.sub(lambda cast: {"0": "false", "1": "true"}.get(cast[1], ""), text)
    mangled = _Mangled(text, 2)
    try:
        name, parameters = _mangled_name(mangled), _identifiers(text[mangled.at :])
    except (ValueError, RecursionError):  # no C++ name, or one nested beyond reason
        return _identifiers(text) or text
    return (f"{name}({parameters})" if parameters else name) or text


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
        self.seen.append(spelled[:LIMIT])  # a name that doubles itself again and again stays this short
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
    return name[:LIMIT]


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


_SPELLED = {  # torch's name of a type: how libraries spell it, in the words of a name and in C++
    "bfloat16": "bf16, c10::BFloat16, BFloat16, __nv_bfloat16, nv_bfloat16, __hip_bfloat16, hip_bfloat16,"
                " rocblas_bfloat16, bfloat16_t, bhalf_t, __bf16",
    "float16": "f16, fp16, half, c10::Half, Half, __half, half_t, _Float16, rocblas_half",
    "float32": "f32, fp32, float", "tfloat32": "tf32, tfloat32_t", "float64": "f64, fp64, double",
    "complex32": "cf16", "complex64": "cf32, c10::complex<float>", "complex128": "cf64, c10::complex<double>",
    "float8_e4m3fn": "e4m3, f8e4m3, float_e4m3_t, __nv_fp8_e4m3, __hip_fp8_e4m3, c10::Float8_e4m3fn",
    "float8_e5m2": "e5m2, f8e5m2, float_e5m2_t, __nv_fp8_e5m2, __hip_fp8_e5m2, c10::Float8_e5m2",
    "float8_e4m3fnuz": "__hip_fp8_e4m3_fnuz, c10::Float8_e4m3fnuz",
    "float8_e5m2fnuz": "__hip_fp8_e5m2_fnuz, c10::Float8_e5m2fnuz",
    "float4_e2m1fn": "e2m1, float_e2m1_t, __nv_fp4_e2m1",
    "int8": "s8, i8, int8, int8x4, int8x32, int8_t, signed char", "int16": "short",
    "uint8": "u8, uint8, uint8x4, uint8x32, uint8_t, unsigned char", "uint16": "unsigned short",
    "int32": "s32, i32, int32, int32_t, int", "uint32": "u32, uint32_t, unsigned int",
    "int64": "i64, int64_t, long, long long", "uint64": "u64, uint64_t, unsigned long, unsigned long long",
    "bool": "bool",
}
TORCH = {spelling: name for name, spellings in _SPELLED.items() for spelling in spellings.split(", ")}
_CPP_TYPE = re.compile(  # long spellings before short ones, so that "unsigned int" is not read as "int"
    r"(?<!\w)(c10::complex<(?:float|double)>|signed char|unsigned (?:int|char|short|long(?: long)?)|long long"
    r"|c10::\w{1,20}|(?:__)?(?:nv|hip)_bfloat16|rocblas_(?:bfloat16|half)|__bf16|__half|_Float16|bfloat16_t"
    r"|tfloat32_t|b?half_t|BFloat16|Half|float_e\dm\d_t|__(?:nv|hip)_fp[48]_e\dm\d(?:_fnuz)?|half|float"
    r"|double|short|int|long|bool)(?!\w)",
    re.ASCII,
)


def torch_types(text: str) -> list[str]:
    """The C++ types in `text` that have a name in torch, as they are spelled."""
    return [spelled for spelled in _CPP_TYPE.findall(text) if spelled in TORCH]


def float_types(text: str) -> list[str]:
    """Those of them that are floating-point or complex."""
    return [t for t in torch_types(text) if "float" in TORCH[t] or "complex" in TORCH[t]]


def template_arguments(text: str, at: int) -> list[str]:
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


_PARAMETERS = re.compile(r"\((?!anonymous namespace\))[^()]*\)")


def argument_types(text: str, at: int) -> list[str]:
    """The floating-point types in those arguments, without the parameters of functions that they name."""
    return float_types(_PARAMETERS.sub("", ", ".join(template_arguments(text, at))))
