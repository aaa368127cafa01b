"""What this machine is, and which parts of the book run on it.

Each thing that a chapter could use is looked at where it would be used: SDPA backends by asking torch for a
tiny call, the profiler by recording one. What is missing is stated as a fact, with the way to get it and with
what the chapter shows in its place. Nothing is installed or changed.
"""

from __future__ import annotations

import html
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tutorial_lib import hardware, liger, measure, offline_gpu, units


@dataclass(frozen=True)
class Fact:
    """One thing about the machine; `remedy` is how to get what is missing, None when nothing is."""

    name: str
    value: str
    remedy: str | None = None


@dataclass(frozen=True)
class Chapter:
    """What of a chapter runs on this machine, and what it shows in place of the rest."""

    chapter: str
    runs_here: str
    instead: str


@dataclass(frozen=True, repr=False)
class Report:
    """Facts about the machine, and one row a chapter."""

    facts: tuple[Fact, ...]
    chapters: tuple[Chapter, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain lists and texts, ready for JSON."""
        return {"facts": [asdict(f) for f in self.facts], "chapters": [asdict(c) for c in self.chapters]}

    def __str__(self) -> str:
        width = max(len(f.name) for f in self.facts)
        lines = [f"{f.name:<{width}}  {f.value}" for f in self.facts]
        missing = [f"  {f.name}: {f.remedy}" for f in self.facts if f.remedy]
        lines += ["", *(["To get what is missing", *missing] if missing else ["Nothing is missing."])]
        for c in self.chapters:
            lines += ["", f"Chapter {c.chapter}", f"  runs here  {c.runs_here}", f"  instead    {c.instead}"]
        return "\n".join(units.plain(line) for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        facts = _html_table("This machine", ("what", "here", "how to get it"), self.facts)
        return facts + _html_table("The chapters", ("chapter", "runs here", "shown instead"), self.chapters)


def _html_table(caption: str, head: tuple[str, ...], rows: tuple) -> str:
    cells = [[units.plain(str(value or "")) for value in asdict(row).values()] for row in rows]
    body = "".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(c)}</td>" for c in rest)
        + "</tr>"
        for first, *rest in cells
    )
    titles = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in head)
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    )


def report() -> Report:
    """Look at this machine; takes a few seconds, most of them torch's own."""
    problem = measure.cuda_problem()
    environment = measure.environment()
    facts = (
        *_software(environment),
        *_processors(environment, problem),
        *_attention(problem),
        _profiler(problem),
        _compiler(),
    )
    return Report(facts, _chapters(facts, environment, problem))


def _software(environment: dict) -> list[Fact]:
    versions = environment["versions"]
    platforms = [
        f"{name} {versions[key]}" for name, key in (("CUDA", "cuda"), ("HIP", "hip")) if versions[key]
    ]
    build = ", ".join(platforms) or "the CPU alone"
    libraries = [name for name, key in (("oneMKL", "mkl"), ("oneDNN", "onednn")) if environment[key]]
    return [
        Fact("torch", f"{versions['torch']}, built for {build}, on Python {versions['python']}"),
        Fact("math libraries", ", ".join(libraries) or "neither oneMKL nor oneDNN"),
        _package("triton", versions["triton"], "pip install -c constraints.txt triton (on Linux)"),
        _package("liger-kernel", versions["liger_kernel"], "pip install -c constraints.txt liger-kernel"),
    ]


def _package(name: str, version: str | None, remedy: str) -> Fact:
    return Fact(name, version) if version else Fact(name, "not installed", remedy)


def _processors(environment: dict, problem: str | None) -> list[Fact]:
    cpu, gpu = environment["cpu"], environment["gpu"]
    facts = [Fact("CPU", f"{cpu['name']}, {cpu['threads']} threads, {cpu['capability']}")]
    if gpu is None:
        return [*facts, Fact("GPU", f"none to use: {problem}", _gpu_remedy(problem))]
    memory, driver = units.data(gpu["memory_bytes"]), environment["versions"]["driver"] or "unknown"
    described = f"{gpu['name']}{_capability(gpu)}, {gpu['sm']} SMs, {memory}, driver {driver}"
    return [*facts, Fact("GPU", described), _bfloat16(), _datasheet(gpu["name"])]


def _capability(gpu: dict) -> str:
    found = gpu["compute_capability"]  # NVIDIA's alone
    return f", compute capability {'.'.join(map(str, found))}" if found else ""


def _gpu_remedy(problem: str) -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return "with a GPU, install torch's CUDA build; without one, Colab's free T4 runs every GPU part"
    if "no kernel image" in problem:
        built_for = ", ".join(torch.cuda.get_arch_list()) or "other cards"
        return f"this torch is built for {built_for}: install a build for the card, pytorch.org lists them"
    return (
        "check that nvidia-smi lists the GPU, that its driver is as new as this torch needs, and that"
        " CUDA_VISIBLE_DEVICES does not hide it"
    )


def _bfloat16() -> Fact:
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Fact("bfloat16 on the GPU", "real")
    return Fact(
        "bfloat16 on the GPU",
        "emulated only; the chapters use float16 here",
        "a GPU of compute capability 8.0 or above",
    )


def _datasheet(name: str) -> Fact:
    try:
        return Fact("datasheet", hardware.find(name).name)
    except hardware.UnknownHardware:
        return Fact("datasheet", f"none for {name}", "measure.calibrate() measures the rates of this card")


# --------------------------------------------------------------------------------- what torch says when asked

_BACKENDS = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.CUDNN_ATTENTION: "cuDNN",
    SDPBackend.MATH: "math",
}


def _attention(problem: str | None) -> list[Fact]:
    kinds = ["cpu"] if problem else ["cpu", "cuda"]
    return [Fact(f"SDPA backends, {kind}", ", ".join(_sdpa_backends(kind))) for kind in kinds]


def _sdpa_backends(kind: str) -> list[str]:
    """The backends that take a small [1, 2, 64, 64] call in the device's best dtype."""
    dtype = getattr(torch, measure.best_dtype(kind))
    q = torch.ones(1, 2, 64, 64, device=kind, dtype=dtype)
    return [name for backend, name in _BACKENDS.items() if _runs(backend, q)]


def _runs(backend: SDPBackend, q: torch.Tensor) -> bool:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns why a backend does not qualify
        try:
            with sdpa_kernel([backend]):
                scaled_dot_product_attention(q, q, q).sum().item()  # waits for the GPU, which may fail later
        except RuntimeError:
            return False
    return True


def _profiler(problem: str | None) -> Fact:
    if problem:
        return Fact("GPU events in a trace", "not asked: no GPU to use")
    x = torch.ones(64, 64, device="cuda")
    try:
        with tempfile.TemporaryDirectory() as folder:
            measure.record(lambda: x @ x, Path(folder, "probe.json"), steps=1, warmup=1, device="cuda")
    except (ValueError, RuntimeError, OSError) as error:
        first, _, remedy = str(error).partition(". ")
        said = first.rpartition("probe.json: ")[2]
        return Fact("GPU events in a trace", f"none: {said}", remedy or "see the message")
    return Fact("GPU events in a trace", "recorded")


def _compiler() -> Fact:
    """What torch.compile needs to make CPU code: a C++ compiler, and Python's own headers."""
    names = [os.environ.get("CXX"), *(("cl",) if sys.platform == "win32" else ("g++", "clang++", "c++"))]
    found = next((name for name in names if name and shutil.which(name)), None)
    if found is None:
        return Fact("C++ compiler", "none found; torch.compile on a CPU needs one", _COMPILER_REMEDY)
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return Fact(
            "C++ compiler",
            f"{found}, without Python's headers",
            "install Python's headers (Debian: python3-dev)",
        )
    return Fact("C++ compiler", found)


def compiler_problem() -> str | None:
    """Why torch.compile can make no CPU code here, in one line with the remedy; None when it can."""
    fact = _compiler()
    return None if fact.remedy is None else f"{fact.name}: {fact.value}; {fact.remedy}"


_COMPILER_REMEDY = (
    "Debian: apt-get install g++; macOS: xcode-select --install; Windows: Visual Studio's build tools"
)


# ----------------------------------------------------------------------------------------------- the chapters


def _chapters(facts: tuple[Fact, ...], environment: dict, problem: str | None) -> tuple[Chapter, ...]:
    value = {f.name: f for f in facts}
    gpu_traces = problem is None and value["GPU events in a trace"].remedy is None
    here = "traces of the GPU and the CPU" if gpu_traces else "traces of the CPU"
    cited = "nothing" if gpu_traces else "A100 figures that others published, marked as cited"
    by_hand = "nothing" if gpu_traces else f"a small GPU trace drawn by hand, and {cited}"
    parts = {
        "torch.compile": value["C++ compiler"].remedy is None,
        "the program of a GPU that is not here": offline_gpu.problem() is None,
        "Liger's kernels": liger.problem() is None,
    }
    has_transformers = importlib.util.find_spec("transformers") is not None
    return (
        Chapter("0 intro", here, cited),
        Chapter("1 reading_a_trace", here, by_hand),
        # one Linear leaves a compiler nothing to generate, so this needs no C++ compiler
        Chapter("2 linear", f"{here}, torch.compile", cited),
        _with_parts("3 geglu_mlp", here, cited, parts),
        _with_parts("4 attention", here, cited, {name: parts[name] for name in list(parts)[:2]}),
        _with_parts("5 your_model", here, "a GPU trace drawn by hand", {"transformers": has_transformers}),
    )


def _with_parts(chapter: str, here: str, instead: str, parts: dict[str, bool]) -> Chapter:
    runs = [here, *(name for name, can in parts.items() if can)]
    lost = [f"{name} says what is missing" for name, can in parts.items() if not can]
    return Chapter(chapter, ", ".join(runs), "; ".join([instead, *lost]))
