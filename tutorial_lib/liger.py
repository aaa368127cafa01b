"""Liger-Kernel's GeGLU beside ours, with the same weights: on a GPU as it is, on a CPU interpreted.

`build` is the module to trace and time, on a GPU. `check` asks whether it is right, on any machine: without a
GPU, Triton's interpreter runs the same kernel sources, one program after the other in NumPy. That takes a
second or two for a few hundred rows and says nothing about time. It happens in a child process, because
Triton chooses between compiler and interpreter when it is imported.

`machine_code` and `compile_seconds` ask what its forward kernel is on a GPU by name, which need not be there.
Liger-Kernel's other kernels are not covered. It needs triton and liger-kernel, tried with 3.7 and 0.8.5;
`problem` says what is missing.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch

from tutorial_lib import hardware, measure, offline_gpu, units
from tutorial_lib.models import GeGLUMLP

_NAMES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}  # ours: theirs


@dataclass(frozen=True)
class Check:
    """Liger's GeGLU against eager PyTorch, with one input, one set of weights and one gradient.

    The errors are the largest difference from eager in float64, over the largest magnitude there, of the
    output and of the gradients of x and of the weights; `eager_errors` are those of eager in the config's
    dtype, a yardstick. `kept_bytes` is what each keeps from forward to backward besides x and the weights.
    `overwritten` are the intermediates that hold other values after the backward pass, `overwritten_bytes`
    their size: memory that the gradients did not need. `second_error` is the error of x's gradient when the
    backward pass is run once more (`retain_graph=True`).
    """

    config: GeGLUMLP
    ran: str
    errors: dict[str, float]
    eager_errors: dict[str, float]
    kept_bytes: int
    eager_kept_bytes: int
    overwritten: tuple[str, ...]
    overwritten_bytes: int
    second_error: float

    def table(self) -> pd.DataFrame:
        """One row for the output and each gradient: [quantity, liger, eager], errors against float64."""
        rows = [(name, error, self.eager_errors[name]) for name, error in self.errors.items()]
        return pd.DataFrame(rows, columns=["quantity", "liger", "eager"])

    def __str__(self) -> str:
        worst, yardstick = max(self.errors.values()), max(self.eager_errors.values())
        overwritten = f"the backward pass overwrote {' and '.join(self.overwritten) or 'nothing'}"
        return (
            f"Liger's GeGLU, {self.ran}, {self.config.dtype}: largest error {worst:.7f}, eager's"
            f" {yardstick:.7f}; {overwritten} ({units.data(self.overwritten_bytes)}); kept for it"
            f" {units.data(self.kept_bytes)}, eager {units.data(self.eager_kept_bytes)}"
        )


def problem() -> str | None:
    """What is missing to use Liger's kernels at all, in one line with the remedy; None when nothing is."""
    missing = [name for name, module in _PACKAGES.items() if find_spec(module) is None]
    if not missing:
        return None
    remedy = f"pip install -c constraints.txt {' '.join(missing)} (on Linux)"
    return f"{' and '.join(missing)} not installed: {remedy}"


_PACKAGES = {"triton": "triton", "liger-kernel": "liger_kernel"}


def build(config: GeGLUMLP, device: str | torch.device = "cuda", *, like: torch.nn.Module | None = None):
    """Liger's `LigerGEGLUMLP` of this config on a GPU, with the weights of `like`, a GeGLU, copied into it.

    Raises ValueError when a package is missing, when the device is not a GPU that can be used, or when `like`
    has other sizes.
    """
    if missing := problem():
        raise ValueError(missing)
    if torch.device(device).type != "cuda":
        raise ValueError("Liger's kernels are compiled for a GPU; on a CPU, check(config) interprets them")
    if unusable := measure.cuda_problem():
        raise ValueError(f"no GPU to use: {unusable}; check(config) interprets the kernels on a CPU")
    return _module(config, device, like)


def check(config: GeGLUMLP, seed: int = 0) -> Check:
    """Run Liger's forward and backward pass once beside eager ones, on the GPU if there is one.

    Without one it takes about a millisecond a row, so pass a small config. Raises ValueError when a package
    is missing, or for bfloat16 without a GPU, which the interpreter cannot multiply; RuntimeError with the
    last line of what the child process said when it failed.
    """
    if missing := problem():
        raise ValueError(missing)
    if measure.device() == "cuda":
        return _compared(config, seed, "cuda")
    if config.dtype == "bfloat16":
        raise ValueError(
            "config.dtype: Triton's interpreter cannot multiply bfloat16; pass float16 or float32"
        )
    return _in_a_child(config, seed)


# --------------------------------------------------------------------------------------- the forward kernel

_POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64"}


def machine_code(config: GeGLUMLP, on: str = "H100") -> offline_gpu.MachineCode:
    """Liger's forward kernel as it would run on the card `on`, for all rows of the config; nothing is run.

    Raises ValueError when a package is missing, and what `offline_gpu.machine_code` raises.
    """
    kernel, signature, constants, warps = _launch(config)
    rows = config.batch * config.sequence
    return offline_gpu.machine_code(
        kernel, on=on, signature=signature, constants=constants, num_warps=warps, grid=rows
    )


def compile_seconds(config: GeGLUMLP, on: str = "H100") -> float:
    """Seconds that Triton takes to compile Liger's forward kernel for the card `on`, without its cache.

    Liger waits as long at the first call with this hidden size in a process that has nothing cached; the very
    first compilation of a process takes longer. Raises ValueError when a package is missing.
    """
    kernel, signature, constants, warps = _launch(config)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    major, minor = hardware.find(on).compute_capability
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names} | {"stride": "i32"}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(4 if config.hidden % 16 == 0 else 3)}
    target, options = GPUTarget("cuda", 10 * major + minor, 32), {"num_warps": warps}
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile = True
        start = time.perf_counter()
        triton.compile(ASTSource(kernel, types, constants, aligned), target=target, options=options)
        return time.perf_counter() - start


@contextmanager
def _without_widgets() -> Iterator[None]:
    """Liger imports transformers where it is installed, and that a tqdm which asks for notebook widgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress")
        yield


def _launch(config: GeGLUMLP) -> tuple[object, dict, dict, int]:
    """The kernel, its signature, its constants and its warps, as `geglu_forward` in Liger chooses them."""
    if missing := problem():
        raise ValueError(missing)
    with _without_widgets():
        from liger_kernel.ops.geglu import _geglu_tanh_forward_kernel
        from liger_kernel.ops.utils import calculate_settings

    block, warps = calculate_settings(config.hidden)
    signature = dict.fromkeys("abc", _POINTERS[config.dtype]) | {"stride": config.hidden}
    return _geglu_tanh_forward_kernel, signature, {"n_cols": config.hidden, "BLOCK_SIZE": block}, warps


# ---------------------------------------------------------------------------------------- the child process


def _in_a_child(config: GeGLUMLP, seed: int) -> Check:
    paths = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    child = subprocess.run(
        [sys.executable, "-c", "from tutorial_lib import liger; liger._child()"],
        input=json.dumps({"config": asdict(config), "seed": seed}),
        capture_output=True,
        text=True,
        env=environment,
    )
    if child.returncode:
        said = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}, no message"])[-1]
        raise RuntimeError(f"Liger's kernels failed in Triton's interpreter: {said}")
    answer = json.loads(child.stdout.splitlines()[-1])
    return Check(**{**answer, "config": config, "overwritten": tuple(answer["overwritten"])})


def _child() -> None:
    """In the child: read the question from stdin, supply what the interpreter lacks, write the answer."""
    question = json.load(sys.stdin)
    torch.set_num_threads(1)  # the matrices are small, and other processes may share the cores
    _supply_tanh()
    print(json.dumps(asdict(_compared(GeGLUMLP(**question["config"]), question["seed"], "cpu"))))


def _supply_tanh() -> None:
    """Give Liger's kernels a tanh in Triton's own language: that of libdevice is code for a GPU only."""
    import triton.language as tl
    from liger_kernel.ops import geglu

    def tanh(x):  # an interpreted kernel calls it as Python, with tl's functions interpreted as well
        return 1 - 2 / (1 + tl.exp(2 * x))  # (e²ˣ - 1) / (e²ˣ + 1), right for both infinities of e²ˣ too

    geglu.tanh = tanh


# -------------------------------------------------------------------------------------------- the comparison


def _module(config: GeGLUMLP, device: str | torch.device, like: torch.nn.Module | None):
    with _without_widgets():
        from liger_kernel.transformers.geglu import LigerGEGLUMLP

    sizes = SimpleNamespace(hidden_size=config.features, intermediate_size=config.hidden)
    module = LigerGEGLUMLP(sizes).to(device, getattr(torch, config.dtype))
    if like is not None:
        for ours, theirs in _NAMES.items():
            _copy_weight(getattr(like, ours).weight, getattr(module, theirs).weight, f"like.{ours}")
    return module


@torch.no_grad()
def _copy_weight(source: torch.Tensor, target: torch.Tensor, argument: str) -> None:
    if source.shape != target.shape:
        raise ValueError(
            f"{argument} has weights {list(source.shape)}, the config asks for {list(target.shape)}"
        )
    target.copy_(source)


@dataclass(frozen=True)
class _Passes:
    """What came out of a module, bytes kept for its backward pass, intermediates that this changed."""

    results: dict[str, torch.Tensor]
    kept_bytes: int
    changed: dict[str, int]
    second: torch.Tensor


def _compared(config: GeGLUMLP, seed: int, device: str) -> Check:
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        eager = config.build(device)
        (x,) = config.inputs(device)
        gradient = torch.randn_like(x)
    with torch.enable_grad():
        exact = _passes(copy.deepcopy(eager).double(), x.double(), gradient.double())
        rounded = _passes(eager, x, gradient)
        found = _passes(_module(config, device, eager), x, gradient)
    return Check(
        config,
        torch.cuda.get_device_name() if device == "cuda" else "interpreted on the CPU",
        _errors(found, exact),
        _errors(rounded, exact),
        found.kept_bytes,
        rounded.kept_bytes,
        tuple(found.changed),
        sum(found.changed.values()),
        _error(found.second, exact.second),
    )


def _errors(found: _Passes, exact: _Passes) -> dict[str, float]:
    return {name: _error(found.results[name], exact.results[name]) for name in exact.results}


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).abs().max() / exact.abs().max()).item()


def _passes(module: torch.nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> _Passes:
    """One forward pass, a backward pass, and a second backward pass through the same graph."""
    x = x.clone().requires_grad_()
    weights = {f"gradient of {ours}": _layer(module, ours).weight for ours in _NAMES}
    made, kept = {}, {}
    own = {tensor.untyped_storage().data_ptr() for tensor in (x, *weights.values())}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = [_layer(module, name).register_forward_hook(_note(made, name)) for name in ("gate", "up")]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(x)
    for hook in hooks:
        hook.remove()
    before = {name: tensor.detach().clone() for name, tensor in made.items()}
    inputs = {"gradient of x": x, **weights}
    gradients = torch.autograd.grad(output, tuple(inputs.values()), gradient, retain_graph=True)
    changed = {n: t.nbytes for n, t in made.items() if not torch.equal(t.detach(), before[n])}
    (second,) = torch.autograd.grad(output, x, gradient)
    results = {"output": output.detach(), **dict(zip(inputs, gradients, strict=True))}
    return _Passes(results, sum(kept.values()), changed, second)


def _layer(module: torch.nn.Module, ours: str) -> torch.nn.Linear:
    return getattr(module, ours) if hasattr(module, ours) else getattr(module, _NAMES[ours])


def _note(made: dict[str, torch.Tensor], name: str) -> Callable:
    def hook(layer, inputs, output) -> None:
        made[name] = output

    return hook
