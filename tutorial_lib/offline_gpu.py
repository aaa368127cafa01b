"""The program a named GPU would run, and its machine code, made on a machine without that GPU.

`program` asks torch.compile's Inductor what it would launch there: calls of library kernels and Triton
kernels, in order, with their source. `machine_code` compiles any Triton kernel with NVIDIA's own
assembler, which comes with triton, and reads registers, spills, loads, stores and special-function
instructions from the result. `predicted_trace` gives the launches the durations that `predict` expects,
in the profiler's own file layout.

Nothing is run. Inductor has to be told that the GPU is there, and that cannot be undone cleanly; it
happens in a child process, which imports torch once and answers each question in a copy of itself.
Answers are kept on disk by graph, inputs, card and versions, in a folder that TUTORIAL_LIB_CACHE names.

Not covered: gradients (the program is the one under `torch.no_grad()`), graphs with breaks, dynamic
shapes, code that asks which device its tensors are on, options of torch.compile, which GEMM kernel cuBLAS
picks, and whatever is decided by a benchmark on the card: the launch configuration of a Triton kernel
(the candidates are listed) and padding of products whose sizes are odd (left alone, and noted).
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import hashlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from tutorial_lib import __version__, hardware, predict
from tutorial_lib.compiled import (
    Buffer,
    Config,
    MachineCode,
    Program,
    ProgramItem,
    read_listing,
    read_source,
)
from tutorial_lib.cost import Work
from tutorial_lib.hardware import Hardware
from tutorial_lib.trace import Trace, read_trace

Shape = tuple[int, ...]

# Releases of (torch, triton) whose private parts the child process was tried with: one line a pair.
TRIED = (
    ("2.13", "3.7.1"),
)  # fmt: skip


class Unavailable(RuntimeError):
    """This machine has not got what compiling for a GPU needs; the message says what, and how to get it."""


class NotCompiled(ValueError):
    """torch.compile would not make one program of this call on that card; the message says why."""


def problem() -> str | None:
    """Why nothing can be compiled for a GPU here, in one line with the remedy; None when it can."""
    if sys.platform != "linux":
        return f"triton has no release for {sys.platform}; run this chapter on Linux (Colab will do)"
    found = {name: _version(name) for name in ("torch", "triton")}
    if found["triton"] is None:
        return "triton is not installed; `pip install -c constraints.txt triton` adds it (Linux only)"
    if missing := [tool for tool in _TOOLS if not (nvidia_tools() / tool).is_file()]:
        return f"this triton comes without NVIDIA's {missing[0]}; install the wheel that pip would take"
    if not any(_is_of(found["torch"], torch) and _is_of(found["triton"], triton) for torch, triton in TRIED):
        tried = " or ".join(f"torch {torch} with triton {triton}" for torch, triton in TRIED)
        return (
            f"it opens private parts of torch and triton and was tried with {tried}; "
            f"here are torch {found['torch']} and triton {found['triton']}: install one of the tried pairs"
        )
    return None


def _is_of(version: str | None, release: str) -> bool:
    """Whether 2.13.0+cpu is of 2.13."""
    return f"{version}.".replace("+", ".").startswith(f"{release}.")


_TOOLS = ("ptxas", "nvdisasm", "cuobjdump")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def nvidia_tools() -> Path:
    """The folder with NVIDIA's assembler and disassemblers, inside the triton package."""
    found = importlib.util.find_spec("triton")
    return Path(found.origin if found and found.origin else "triton").parent / "backends" / "nvidia" / "bin"


def _demand() -> None:
    if why := problem():
        raise Unavailable(f"offline_gpu cannot be used: {why}")


def program(fn: Callable, *inputs: object, on: str = "A100") -> Program:
    """The program that torch.compile makes of this call, without gradients, for the card named `on`.

    `fn` is any function of tensors or module, a lambda or one defined in a notebook as well; it is not
    run. Of `inputs` only shapes, dtypes and strides count: CPU, fake and meta tensors all do. Takes
    seconds the first time. Raises Unavailable, hardware.UnknownHardware, NotCompiled when torch.compile
    would leave this call to eager execution there, and ValueError when it cannot be captured as one
    graph.
    """
    card = hardware.find(on)
    _demand()
    call = _captured(fn, inputs)
    job = {"task": "program", "gpu": device_properties(card), "graph": call.text, "settings": call.settings}
    answer = _answer(job, call.file)
    if refused := answer.get("refused"):
        raise NotCompiled(_refusal(refused, card))
    if answer["source"] is None:
        return Program(card.name, _versions(), (), "")
    read = read_source(answer["source"], on=card.name)
    configs = {name: tuple(map(_config, found)) for name, found in answer["configs"].items()}
    items = tuple(replace(item, configs=configs.get(item.name, ())) for item in read.items)
    names = _argument_names(read.arguments, call.inputs)
    return replace(read, items=items, versions=_versions(), names=names, notes=tuple(answer["notes"]))


def _argument_names(made: Sequence[Buffer], inputs: Sequence[tuple[str, Shape]]) -> dict[str, str]:
    """What Inductor's arguments are called in the call; nothing where it made other ones of the inputs."""
    if [b.shape for b in made] != [shape for _, shape in inputs]:
        return {}
    return {buffer.name: name for buffer, (name, _) in zip(made, inputs, strict=True)}


def _refusal(said: str, card: Hardware) -> str:
    if "BF16" in said:
        capability = ".".join(map(str, card.compute_capability))
        return (
            f"on {card.name} torch.compile skips code with bfloat16 inputs or outputs and runs it eagerly"
            f" (compute capability {capability}, bfloat16 needs 8.0): pass float16 tensors"
        )
    return f"torch.compile makes no program of this call on {card.name}: {said}"


def _versions() -> dict[str, str]:
    return {"torch": _version("torch"), "triton": _version("triton")}


def _config(found: dict) -> Config:
    blocks = tuple(sorted(found["blocks"].items()))
    return Config(blocks, found["num_warps"], found["num_stages"], tuple(found["grid"]))


# What torch.cuda.get_device_properties says of cards of this compute capability: threads of a multiprocessor,
# and bytes of shared memory that a block may ask for and that a multiprocessor has (from "Technical
# Specifications per Compute Capability" in the CUDA C++ Programming Guide).
_MULTIPROCESSOR = {
    (7, 5): (1024, 65536, 65536),
    (8, 0): (2048, 166912, 167936),
    (8, 9): (1536, 101376, 102400),
    (9, 0): (2048, 232448, 233472),
    (10, 0): (2048, 232448, 233472),
}


def device_properties(card: Hardware) -> dict[str, object]:
    """The device properties that Inductor asks for."""
    if card.compute_capability not in _MULTIPROCESSOR:
        raise ValueError(f"{card.name} is no NVIDIA GPU that offline_gpu knows: name one of hardware.CARDS")
    threads, block_bytes, sm_bytes = _MULTIPROCESSOR[card.compute_capability]
    return {
        "name": f"NVIDIA {card.name}",
        "major": card.compute_capability[0],
        "minor": card.compute_capability[1],
        "multi_processor_count": card.sm,
        "warp_size": 32,
        "total_memory": card.memory_bytes,
        "L2_cache_size": card.l2_bytes,
        "max_threads_per_block": 1024,
        "max_threads_per_multi_processor": threads,
        "regs_per_multiprocessor": 65536,
        "shared_memory_per_block": 49152,
        "shared_memory_per_block_optin": block_bytes,
        "shared_memory_per_multiprocessor": sm_bytes,
        "gcnArchName": "",
    }


# ------------------------------------------------------------------------ from a call to a graph without data


@dataclass(frozen=True)
class _Call:
    """A call as text that names it and as a file, its inputs by name and shape, and settings that matter."""

    text: str
    file: bytes
    inputs: tuple[tuple[str, Shape], ...]
    settings: dict


def _captured(fn: Callable, inputs: Sequence[object]) -> _Call:
    """The graph of a call, without data.

    torch.export traces with fake tensors, so nothing is computed; weights and captured tensors then lose
    their data. Functions travel as graphs, since one from a notebook cannot be imported elsewhere.
    """
    import torch

    fn = getattr(fn, "_orig_mod", getattr(fn, "_torchdynamo_orig_callable", fn))
    module, arguments = _without_meta(fn if isinstance(fn, torch.nn.Module) else _as_module(fn), inputs)
    try:
        with torch.no_grad(), _watched_attention() as settings:
            exported = torch.export.export(module, arguments, strict=False)
    except Exception as error:
        said = first_line(error)
        raise ValueError(
            f"the call cannot be captured as one graph ({said}); where torch.compile breaks a graph it makes"
            " several programs, which is not covered: pass the parts"
        ) from error
    file = io.BytesIO()
    torch.export.save(_hollow(exported), file)
    settings["float32"] = torch.backends.cuda.matmul.fp32_precision
    return _Call(_graph_text(exported), file.getvalue(), _inputs(fn, exported), settings)


def _inputs(fn: Callable, exported) -> tuple[tuple[str, Shape], ...]:
    """The graph's inputs by shape and by name: weights as in the module, arguments as in the function."""
    from torch.export.graph_signature import InputKind

    forward = getattr(fn, "forward", fn)
    try:
        arguments = list(inspect.signature(forward).parameters)
    except (TypeError, ValueError):  # written in C
        arguments = []
    signature, constants = exported.graph_signature, exported.constants
    specs = [spec for spec in signature.input_specs if not is_number(constants.get(spec.target))]
    own = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
    named = dict(zip(own, arguments, strict=False)) if len(own) <= len(arguments) else {}
    named |= {s.arg.name: "a captured tensor" for s in specs if s.kind is InputKind.CONSTANT_TENSOR}
    values = {node.name: node.meta.get("val") for node in exported.graph.find_nodes(op="placeholder")}
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in values.items()}
    return tuple((named.get(s.arg.name) or s.target or s.arg.name, shapes[s.arg.name]) for s in specs)


def is_number(value: object) -> bool:
    """Whether a constant of the graph is one number, which the graph keeps (see `_small_constants`)."""
    return value is not None and getattr(value, "ndim", 1) == 0 and not value.is_meta


def _as_module(fn: Callable):
    import torch

    class Call(torch.nn.Module):
        def forward(self, *arguments):
            return fn(*arguments)

    return Call()


def _without_meta(module, inputs: Sequence[object]):
    """Meta tensors turned into fake CPU tensors, which export takes; the caller's module is left alone."""
    import copy

    import torch
    from torch._subclasses import FakeTensor, FakeTensorMode
    from torch.utils._pytree import tree_leaves, tree_map_only

    tensors = [leaf for leaf in tree_leaves(tuple(inputs)) if isinstance(leaf, torch.Tensor)]
    held = [*module.parameters(), *module.buffers()]
    if not any(t.is_meta for t in (*tensors, *held)):
        return module, tuple(inputs)
    modes = [t.fake_mode for t in tensors if isinstance(t, FakeTensor)] or [FakeTensorMode()]

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor) and not tensor.is_meta:
            return tensor
        device = "cpu" if tensor.is_meta else tensor.device
        with modes[0]:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        return torch.nn.Parameter(made, False) if isinstance(tensor, torch.nn.Parameter) else made

    memo = {id(tensor): fake(tensor) for tensor in held}  # deepcopy takes from here what it finds here
    return copy.deepcopy(module, memo), tree_map_only(torch.Tensor, fake, tuple(inputs))


@contextlib.contextmanager
def _watched_attention() -> Iterator[dict]:
    """Notes which SDPA backends are allowed where the call needs one: a graph shows no sdpa_kernel."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.overrides import TorchFunctionMode

    found: list[dict] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is not torch.nn.functional.scaled_dot_product_attention:
                return func(*args, **(kwargs or {}))
            found.append(_allowed_backends())
            with sdpa_kernel(SDPBackend.MATH):  # a backend pinned for a GPU may be none of the CPU's
                return func(*args, **(kwargs or {}))

    settings: dict = {}
    with Watch():
        yield settings
    if any(other != found[0] for other in found):
        raise ValueError("the call pins different SDPA backends in different places; ask for one at a time")
    settings["attention"] = found[0] if found else _allowed_backends()


def _allowed_backends() -> dict[str, bool]:
    from torch.backends import cuda

    return {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }


_NUMBER_ELEMENTS = 8  # constants up to this size keep their values: Inductor writes them into the kernels


def _hollow(exported):
    """The exported program with the shapes of its weights and without their data, nor the example inputs."""
    import torch

    for held in (exported.state_dict, exported.constants):
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and value.numel() > _NUMBER_ELEMENTS:
                empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                parameter = isinstance(value, torch.nn.Parameter)
                held[name] = torch.nn.Parameter(empty, value.requires_grad) if parameter else empty
    exported.example_inputs = None
    return exported


def _graph_text(exported) -> str:
    """All that decides the program, always written alike: nodes, arguments, layouts, small constants."""
    import torch

    lines = []
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            lines += [
                f"{n.op} {n.name} {n.target} {n.args} {n.kwargs} {_layout(n)}" for n in module.graph.nodes
            ]
    for name, value in sorted(exported.constants.items()):
        small = isinstance(value, torch.Tensor) and not value.is_meta
        lines.append(f"{name} {value.tolist() if small else ''}")
    return "\n".join(lines)


def _layout(node) -> str:
    import torch

    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return ""
    return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device.type}"


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


# ----------------------------------------------------------------------------------------------- machine code

Grid = int | Sequence[int]


def machine_code(
    kernel: object,
    *,
    on: str | None = None,
    signature: Mapping[str, str | int] | None = None,
    constants: Mapping[str, object] | None = None,
    num_warps: int = 4,
    num_stages: int = 3,
    grid: Grid | None = None,
    config: int = 0,
) -> MachineCode:
    """The machine code of a Triton kernel, for the card named `on` (an H100 when not said).

    A kernel of a `Program` brings all with it: `config` picks one of its `configs`, and the card is the
    program's. A function under @triton.jit, imported or defined in a notebook, needs `signature`, the
    type of each argument ("*bf16", "i32", "fp32") or the number that will be passed, and the `constants`
    among its arguments; `grid` is the number of programs. Pointers are taken to be aligned to 16 bytes,
    as torch's are. Raises Unavailable, hardware.UnknownHardware and ValueError, the last also when the
    kernel does not compile.
    """
    if isinstance(kernel, ProgramItem):
        if signature or constants or grid:
            raise ValueError("a kernel of a Program knows its signature, constants and grid: leave them out")
        job, card, grid = _item_job(kernel, on, config)
    else:
        card, grid = hardware.find(on or "H100"), None if grid is None else _grid(grid)
        job = _function_job(kernel, signature, constants, num_warps, num_stages)
    _demand()
    answer = _answer({"task": "machine_code", "gpu": device_properties(card), **job}, None)
    if refused := answer.get("refused"):
        raise ValueError(f"{job['name']} does not compile for {card.name}: {refused}")
    return read_listing(**answer, gpu=card.name, grid=grid, numbers=job["numbers"], versions=_versions())


def _grid(grid: Grid) -> tuple[int, int, int]:
    sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ValueError(f"grid is one to three positive numbers of programs, got {grid!r}")
    return (*sizes, 1, 1)[:3]


def _item_job(item: ProgramItem, on: str | None, config: int) -> tuple[dict, Hardware, tuple]:
    if item.kind != "triton":
        raise ValueError(
            f"{item.name} is a library's kernel, and no Triton source: take one of program.kernels"
        )
    if item.gpu is None:
        raise ValueError(f"{item.name} was read without a card: pass on=... to read_source")
    card = hardware.find(item.gpu)
    if on is not None and hardware.find(on) != card:
        raise ValueError(
            f"{item.name} was written for {card.name}: ask program(..., on={on!r}) for its kernel"
        )
    if item.configs and not 0 <= config < len(item.configs):
        raise ValueError(f"config is 0 to {len(item.configs) - 1} for {item.name}, got {config}")
    job = {"text": item.text, "name": item.name, "config": config, "numbers": dict(item.numels)}
    return job, card, item.configs[config].grid if item.configs else None


def _function_job(kernel, signature, constants, num_warps, num_stages) -> dict:
    kernel = unwrapped(kernel)
    name, arguments = getattr(kernel, "__name__", repr(kernel)), getattr(kernel, "arg_names", None)
    if arguments is None:
        raise ValueError(
            f"{name} is no Triton kernel: pass a function under @triton.jit, or a program's kernel"
        )
    signature, constants = dict(signature or {}), dict(constants or {})
    if missing := [a for a in arguments if a not in signature and a not in constants]:
        raise ValueError(f"{name}: give the type or number of {missing[0]!r} in signature=, or in constants=")
    if unknown := [a for a in (*signature, *constants) if a not in arguments]:
        raise ValueError(f"{name} has no argument {unknown[0]!r}; it has: {', '.join(arguments)}")
    numbers = {a: value for a, value in signature.items() if isinstance(value, int)}
    types = {a: _type_of(a, t, constants) for a, t in ((a, signature.get(a)) for a in arguments)}
    return {
        "name": name,
        **_origin(kernel, name),
        "signature": {a: "constexpr" if numbers.get(a) == 1 else t for a, t in types.items()},
        "constants": constants | {a: 1 for a, n in numbers.items() if n == 1},  # triton makes a constant of 1
        "aligned": [i for i, a in enumerate(arguments) if types[a][0] == "*" or numbers.get(a, 1) % 16 == 0],
        "num_warps": num_warps,
        "num_stages": num_stages,
        "numbers": numbers,
    }


def _type_of(argument: str, given: str | int | None, constants: Mapping[str, object]) -> str:
    if argument in constants:
        return "constexpr"
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise ValueError(
            f"the signature of {argument} is a type such as '*bf16' or a whole number: {given!r}"
        )
    if isinstance(given, int):
        return "i32" if -(2**31) <= given < 2**31 else "i64"
    return given


def unwrapped(kernel: object) -> object:
    """The function inside triton.autotune and triton.heuristics."""
    while type(kernel).__name__ in ("Autotuner", "Heuristics"):
        kernel = kernel.fn
    return kernel


def _origin(kernel: object, name: str) -> dict[str, str]:
    """Where the child process finds the function: in a module, or else in source that is sent along."""
    python = getattr(kernel, "fn", kernel)
    module = sys.modules.get(getattr(python, "__module__", ""))
    importable = getattr(module, "__file__", None) and module.__name__ != "__main__"
    if importable and unwrapped(getattr(module, name, None)) is kernel:
        return {
            "module": module.__name__,
            "key": getattr(kernel, "cache_key", "") or getattr(kernel, "src", ""),
        }
    return {"text": _standalone(kernel, name)}


def _standalone(kernel: object, name: str) -> str:
    """A module with this kernel, and the functions, numbers and modules that it names."""
    lines, done = ["import triton", "import triton.language as tl"], set()

    def add(function: object, called: str) -> None:
        done.add(called)
        for other in sorted(_names(function.fn.__code__) & set(function.fn.__globals__)):
            if other not in done:
                define(other, function.fn.__globals__[other])
        lines.append(f"@triton.jit\n{function.src.rstrip()}")
        if called != function.__name__:
            lines.append(f"{called} = {function.__name__}")

    def define(called: str, value: object) -> None:
        home, own = getattr(value, "__module__", None), getattr(value, "__name__", "")
        done.add(called)
        if isinstance(value, ModuleType):
            lines.append(f"import {value.__name__} as {called}")
        elif home and home != "__main__" and getattr(sys.modules.get(home), own, None) is value:
            lines.append(f"from {home} import {own} as {called}")
        elif hasattr(value, "src"):
            add(value, called)
        elif type(value).__name__ == "constexpr":
            lines.append(f"{called} = tl.constexpr({value.value!r})")
        elif isinstance(value, (int, float, str, bool, tuple)) or type(value).__name__ == "dtype":
            lines.append(f"{called} = {value!r}")
        else:
            raise ValueError(f"{name} uses {called}, which cannot be sent along: define it in a module")

    if not hasattr(kernel, "src"):
        raise ValueError(
            f"the source of {name} is not known: define it in a module, without TRITON_INTERPRET"
        )
    add(kernel, name)
    return "\n".join(lines) + "\n"


def _names(code) -> set[str]:
    inner = (constant for constant in code.co_consts if hasattr(constant, "co_names"))
    return set(code.co_names).union(*map(_names, inner))


# ------------------------------------------------------------------------------------------- predicted traces


def predicted_trace(
    what: Program | Callable, *inputs: object, on: str | None = None, path: str | os.PathLike[str]
) -> Trace:
    """A trace of one call that never ran: the launches of its program, with the durations that are predicted.

    `what` is a Program, or a function or module with its inputs and the card `on`. Written to `path`
    (.json or .json.gz) in torch.profiler's layout, so that it opens beside a measured one. Each kernel
    lasts as long as is typical by the model; low, high and limit stand in its arguments, low and high in two lanes of their own. Times of the CPU are not predicted: every call takes the same round
    number. Raises what `program` raises, and ValueError for a launch whose cost is not known.
    """
    made = isinstance(what, Program)
    if made and (what.gpu is None or inputs or (on and hardware.find(on).name != what.gpu)):
        raise ValueError(f"this program is for {what.gpu}: leave out inputs and on=, or pass the function")
    found = what if made else program(what, *inputs, on=on or "A100")
    if not os.fspath(path).endswith((".json", ".json.gz")):
        raise ValueError(f"{path}: a trace is written as .json or .json.gz")
    card = hardware.find(found.gpu)
    times = predict.predict([_known_work(item) for item in found.items], card).items
    content = json.dumps(_chrome_trace(found, card, times), ensure_ascii=False, indent=0).encode()
    Path(path).write_bytes(gzip.compress(content, mtime=0) if os.fspath(path).endswith(".gz") else content)
    return read_trace(path)


def _known_work(item: ProgramItem) -> Work:
    if item.work is None:
        shapes = ", ".join(map(str, item.inputs))
        raise ValueError(f"no cost is known for {item.name} ({shapes}), so its time cannot be predicted")
    return item.work


_CALL_US, _LAUNCH_US = (
    10.0,
    5.0,
)  # round numbers, not a prediction: a call on the CPU and the launch inside it
_CPU, _GPU, _THREAD, _STREAM, _LOW, _HIGH = 1, 0, 1, 7, 8, 9
_PROFILER_DTYPES = {
    "bfloat16": "c10::BFloat16", "float16": "c10::Half", "float32": "float", "float64": "double",
    "int64": "long int", "int32": "int", "bool": "bool", "int8": "signed char", "uint8": "unsigned char",
}  # fmt: skip


def _chrome_trace(found: Program, card: Hardware, times: Sequence[predict.WorkTime]) -> dict:
    events = list(_lane_names(card))
    free_us, edges_us = 0.0, {_LOW: 0.0, _HIGH: 0.0}
    for number, (item, time) in enumerate(zip(found.items, times, strict=True), 1):
        call_us = number * _CALL_US
        typical_us = round(time.typical_us, 3)  # to the ns, or neighbours would overlap
        start_us = max(free_us, call_us + _LAUNCH_US)
        events += _cpu_events(item, number, call_us)
        events += _gpu_events(item, number, time, call_us, start_us, typical_us)
        free_us = start_us + typical_us
        for lane, length_us in ((_LOW, time.low_us), (_HIGH, time.high_us)):
            begins_us = max(edges_us[lane], call_us + _LAUNCH_US)
            events.append(_bar("predicted", item.name, _GPU, lane, begins_us, length_us, _band(time)))
            edges_us[lane] = begins_us + length_us
    events += _step_events(len(found.items), free_us)
    return {
        "schemaVersion": 1,
        "deviceProperties": [_device_properties(card)],
        "displayTimeUnit": "ms",
        "tutorial_lib": _stamp(found, card),
        "traceEvents": events,
    }


def _stamp(found: Program, card: Hardware) -> dict[str, object]:
    return {
        "schema": 1,
        "predicted": True,
        "recorded": None,
        "device": {
            "kind": "cuda",
            "name": f"{card.name} (predicted)",
            "compute_capability": list(card.compute_capability),
        },
        "versions": {**found.versions, "tutorial_lib": __version__},
        "steps": 1,
        "label": "predicted, not measured",
        "notes": "Nothing in this trace was measured. Launches and their order come from the program that "
        "torch.compile generates for this card, durations from its datasheet and the library's bands; each "
        "kernel lasts as long as is typical by that model. CPU times are round numbers.",
    }


def _device_properties(card: Hardware) -> dict[str, object]:
    major, minor = card.compute_capability
    return {
        "id": 0, "name": f"{card.name} (predicted)", "totalGlobalMem": card.memory_bytes,
        "computeMajor": major, "computeMinor": minor, "numSms": card.sm,
    }  # fmt: skip


def _lane_names(card: Hardware) -> Iterator[dict]:
    for pid, name, labels in ((_CPU, "python (predicted)", "CPU"), (_GPU, "python (predicted)", "GPU 0")):
        yield _named("process_name", pid, 0, name=name)
        yield _named("process_labels", pid, 0, labels=f"{labels}, predicted")
    yield _named("thread_name", _CPU, _THREAD, name="CPU calls, times not predicted")
    for lane, which in ((_STREAM, "stream 7, typical time"), (_LOW, "low"), (_HIGH, "high")):
        yield _named("thread_name", _GPU, lane, name=f"{card.name}, predicted: {which}")
        yield _named("thread_sort_index", _GPU, lane, sort_index=lane)


def _named(kind: str, pid: int, tid: int, **arguments: object) -> dict:
    return {"ph": "M", "name": kind, "ts": 0.0, "pid": pid, "tid": tid, "args": arguments}


def _bar(category: str, name: str, pid: int, tid: int, ts: float, dur: float, arguments: dict) -> dict:
    ts, dur = round(ts, 3), round(dur, 3)
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
        "args": arguments,
    }  # fmt: skip


def _cpu_events(item: ProgramItem, number: int, start_us: float) -> Iterator[dict]:
    """The operator and, inside it, the launch, as the profiler writes them."""
    buffers = [a if isinstance(a, Buffer) else None for a in item.arguments]
    arguments = {
        "External id": number,
        "Input Dims": [list(b.shape) if b else [] for b in buffers],
        "Input type": [_PROFILER_DTYPES.get(b.dtype, b.dtype or "") if b else "Scalar" for b in buffers],
        "Input Strides": [list(b.strides) if b else [] for b in buffers],
        "Concrete Inputs": [a if isinstance(a, str) else "" for a in item.arguments],
        "predicted": True,
    }
    yield _bar("cpu_op", item.name, _CPU, _THREAD, start_us, 0.9 * _CALL_US, arguments)
    triton = item.kind == "triton"
    category, call = ("cuda_driver", "cuLaunchKernel") if triton else ("cuda_runtime", "cudaLaunchKernel")
    launch = {"External id": number, "correlation": number, "predicted": True}
    yield _bar(category, call, _CPU, _THREAD, start_us + 1, _LAUNCH_US - 2, launch)
    yield _arrow("s", number, _CPU, _THREAD, start_us + 1)


def _gpu_events(
    item: ProgramItem, number: int, time, call_us: float, start_us: float, us: float
) -> Iterator[dict]:
    name = item.name if item.kind == "triton" else f"{item.name} (predicted, the library picks its kernel)"
    arguments = {"External id": number, "device": 0, "stream": _STREAM, "correlation": number, **_band(time)}
    if item.configs:
        arguments["grid"] = list(item.configs[0].grid)
        arguments["block"] = [32 * item.configs[0].num_warps, 1, 1]
    yield _bar("kernel", name, _GPU, _STREAM, start_us, us, arguments)
    yield _arrow("f", number, _GPU, _STREAM, start_us) | {"bp": "e"}


def _arrow(phase: str, number: int, pid: int, tid: int, ts: float) -> dict:
    return {
        "ph": phase,
        "id": number,
        "pid": pid,
        "tid": tid,
        "ts": round(ts, 3),
        "cat": "ac2g",
        "name": "ac2g",
    }


def _band(time: predict.WorkTime) -> dict[str, object]:
    return {
        "predicted": True, "low_us": round(time.low_us, 3), "high_us": round(time.high_us, 3),
        "limit_us": round(time.limit_us, 3), "bound_by": time.bound_by,
    }  # fmt: skip


def _step_events(calls: int, end_us: float) -> Iterator[dict]:
    wait_us = (calls + 1) * _CALL_US
    end_us = max(end_us, wait_us) + 1
    yield _bar("user_annotation", "ProfilerStep#0", _CPU, _THREAD, 0.0, end_us, {"predicted": True})
    sync = {"correlation": calls + 1, "predicted": True}
    yield _bar("cuda_runtime", "cudaDeviceSynchronize", _CPU, _THREAD, wait_us, end_us - wait_us - 0.5, sync)


# --------------------------------------------------------------------------------------- answers kept on disk


def _answer(job: dict, graph: bytes | None) -> dict:
    """The child process's answer, from the cache when it was asked before."""
    key = hashlib.sha256(json.dumps([job, _versions(), _own_code()], sort_keys=True).encode()).hexdigest()
    kept = _cache() / f"{key}.json.gz"
    with contextlib.suppress(Exception):  # missing, cut off, or written by something else: ask again
        found = json.loads(gzip.decompress(kept.read_bytes()))
        if found["key"] == key:
            return found["answer"]
    answer = _CHILD.ask(job, graph)
    with contextlib.suppress(OSError):  # a full or read-only disk costs the next call its time, no more
        _keep(kept, {"key": key, "answer": answer})
    return answer


def _keep(kept: Path, content: dict) -> None:
    """Written beside its place and then moved there, so that nobody reads half a file."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=kept.parent, suffix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(gzip.compress(json.dumps(content).encode(), mtime=0))
        os.replace(name, kept)
    except BaseException:
        os.unlink(name)
        raise


def _cache() -> Path:
    """Where answers are kept: TUTORIAL_LIB_CACHE, or the place the system has for such files."""
    if own := os.environ.get("TUTORIAL_LIB_CACHE"):
        return Path(own) / "offline_gpu"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tutorial_lib" / "offline_gpu"


@lru_cache
def _own_code() -> str:
    """Changes with these modules, so that answers of another version of them are not taken for their own."""
    text = b"".join(
        Path(__file__).with_name(f"{name}.py").read_bytes() for name in ("offline_gpu", _CHILD_MODULE)
    )
    return hashlib.sha256(text).hexdigest()


# ---------------------------------------------------------------------------- the child process, from outside


class _Child:
    """A process that has torch and triton loaded; it starts for the first question and leaves when idle."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.lock = threading.Lock()

    def ask(self, job: dict, graph: bytes | None) -> dict:
        """The answer to one question; RuntimeError with what was said when the child fails."""
        with self.lock, tempfile.TemporaryDirectory(prefix="offline_gpu-") as folder:
            place = Path(folder)
            (place / "job.json").write_text(json.dumps(job), encoding="utf-8")
            if graph is not None:
                (place / "graph.pt2").write_bytes(graph)
            try:
                alive = self._sent(folder)
            except BaseException:  # interrupted: the answer to this question must not reach the next one
                self.stop()
                raise
            if not alive:
                self.stop()
            return _told(place)

    def _sent(self, folder: str) -> bool:
        for _ in range(2):  # the one that was there may just have left
            if self.process is None or self.process.poll() is not None:
                self.process = _started()
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(f"{folder}\n".encode())
                self.process.stdin.flush()
                if self.process.stdout.readline():
                    return True
            self.stop()
        return False

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


_CHILD = _Child()
_CHILD_MODULE = "offline_gpu_child"


def _started() -> subprocess.Popen:
    """The child: the same Python and search path, none of the settings that would change what is compiled."""
    dropped = ("TORCH", "TRITON", "INDUCTOR", "CUDA_VISIBLE", "PYTHONPATH", "MPLBACKEND")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    environment |= {
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        "CUDA_VISIBLE_DEVICES": "",
    }
    atexit.register(_CHILD.stop)
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-m", f"tutorial_lib.{_CHILD_MODULE}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # an interrupt meant for the reader's kernel must not reach it
    )


def _told(place: Path) -> dict:
    """What the child wrote down; RuntimeError when it failed or could not write."""
    try:
        answer = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        log = place / "log"
        said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.is_file() else []
        raise RuntimeError(
            f"the process that compiles for a GPU ended early: {' '.join(said) or 'no word'}"
        ) from None
    if failed := answer.get("failed"):
        raise RuntimeError(f"compiling for the GPU failed: {failed}\n{answer['where']}")
    return answer
