"""The workloads the book profiles: a frozen config that builds them and counts their work by hand.

Every config answers the same three questions, and the rest of the library asks nothing else: `build(device)`
is the function or nn.Module to run, `inputs(device)` are its arguments, and `costs(kind)` are the work items
of one forward call, written out on paper (`dispatch` finds the same items by looking, and the tests compare).
Chapter 1 is `MatmulAdd`, chapter 2 is `Linear`, chapter 3 is `GeGLUMLP`. A later chapter adds its nn.Module,
where torch has none, and below it one frozen config. Costs are of the forward pass only.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tutorial_lib import cost, units
from tutorial_lib.cost import Work


def matmul_add(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """x @ w + b for [n, n] matrices: b is a full matrix here, not a row that is broadcast."""
    return torch.add(torch.matmul(x, w), b)


@dataclass(frozen=True)
class MatmulAdd:
    """Chapter 1: `torch.add(torch.matmul(x, w), b)`, where x, w and b are all [n, n]."""

    n: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _validated(self, "n")

    def build(self, device: str | torch.device = "cpu"):
        """The function to run; it holds no parameters, so the device does not matter."""
        return matmul_add

    def inputs(self, device: str | torch.device = "cpu") -> tuple[torch.Tensor, ...]:
        """x, w, b, each [n, n], drawn from a normal distribution."""
        return tuple(_normal(self.n, self.n, dtype=self.dtype, device=device) for _ in range(3))

    def costs(self, kind: str = "cuda") -> tuple[Work, ...]:
        """One GEMM and one addition, on a GPU and on a CPU alike."""
        _validated_kind(kind)
        n = self.n
        return (
            cost.matmul(n, n, n, self.dtype),
            cost.pointwise("aten::add", elements=n * n, dtype=self.dtype, reads=2),
        )


@dataclass(frozen=True)
class Linear:
    """Chapter 2: `nn.Linear(in_features, out_features)` on x [batch, in_features], bias or not."""

    batch: int
    in_features: int
    out_features: int
    bias: bool = True
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _validated(self, "batch", "in_features", "out_features")

    def build(self, device: str | torch.device = "cpu") -> torch.nn.Linear:
        """The module: weight [out_features, in_features], bias [out_features]."""
        dtype = getattr(torch, self.dtype)
        return torch.nn.Linear(
            self.in_features, self.out_features, bias=self.bias, device=device, dtype=dtype
        )

    def inputs(self, device: str | torch.device = "cpu") -> tuple[torch.Tensor, ...]:
        """x [batch, in_features], drawn from a normal distribution."""
        return (_normal(self.batch, self.in_features, dtype=self.dtype, device=device),)

    def costs(self, kind: str = "cuda") -> tuple[Work, ...]:
        """One GEMM; where the bias finds no place in its epilogue, the bias is copied into the output first.

        A GPU keeps the bias in the epilogue when K and N are above 1; a CPU never does (`dispatch.epilogue`).
        """
        _validated_kind(kind)
        m, k, n = self.batch, self.in_features, self.out_features
        if not self.bias:
            return (cost.matmul(m, k, n, self.dtype),)
        if kind == "cuda" and min(k, n) > 1:
            return (cost.addmm(m, k, n, self.dtype, bias_elements=n),)
        # [out_features] spread over [batch, out_features], then a GEMM that reads that as its addend
        copied = cost.copy(m * n, self.dtype, read_elements=n)
        return (copied, cost.addmm(m, k, n, self.dtype, bias_elements=m * n))


class GeGLU(torch.nn.Module):
    """down(gelu(gate(x)) · up(x)) for x [..., features] with `hidden` columns between; GELU's tanh form."""

    def __init__(self, features: int, hidden: int, device=None, dtype=None) -> None:
        super().__init__()
        options = {"bias": False, "device": device, "dtype": dtype}
        self.gate = torch.nn.Linear(features, hidden, **options)
        self.up = torch.nn.Linear(features, hidden, **options)
        self.down = torch.nn.Linear(hidden, features, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x)
        up = self.up(x)
        activated = F.gelu(gate, approximate="tanh")
        hidden = activated * up
        return self.down(hidden)


@dataclass(frozen=True)
class GeGLUMLP:
    """Chapter 3: `GeGLU` on x [batch, sequence, features]; the defaults are those of the cited trace."""

    batch: int = 64
    sequence: int = 128
    features: int = 768
    hidden: int = 3072
    dtype: str = "float32"

    def __post_init__(self) -> None:
        _validated(self, "batch", "sequence", "features", "hidden")

    def build(self, device: str | torch.device = "cpu") -> GeGLU:
        """The module: gate and up [hidden, features], down [features, hidden], without biases."""
        return GeGLU(self.features, self.hidden, device, getattr(torch, self.dtype))

    def inputs(self, device: str | torch.device = "cpu") -> tuple[torch.Tensor, ...]:
        """x [batch, sequence, features], drawn from a normal distribution."""
        return (_normal(self.batch, self.sequence, self.features, dtype=self.dtype, device=device),)

    def costs(self, kind: str = "cuda") -> tuple[Work, ...]:
        """Three GEMMs and two operations on the intermediate, on a GPU and on a CPU alike."""
        _validated_kind(kind)
        rows, k, n = self.batch * self.sequence, self.features, self.hidden
        widen, narrow = cost.matmul(rows, k, n, self.dtype), cost.matmul(rows, n, k, self.dtype)
        return (widen, widen, *self.pointwise_costs(), narrow)

    def pointwise_costs(self, *, fused: bool = False) -> tuple[Work, ...]:
        """gelu and mul between the GEMMs: one after the other, or as one kernel that keeps gelu to itself."""
        columns = {"elements": self.batch * self.sequence * self.hidden, "dtype": self.dtype}
        if fused:
            return (cost.pointwise("gelu · mul", reads=2, flops_per_element=6, **columns),)
        return (
            cost.pointwise("aten::gelu", reads=1, flops_per_element=5, **columns),
            cost.pointwise("aten::mul", reads=2, **columns),
        )


def show_source(obj: object):
    """The Python source of a class, function, module or instance: highlighted in a notebook, else text.

    Raises ValueError when the object has no Python source.
    """
    has_source = inspect.isclass(obj) or inspect.isroutine(obj) or inspect.ismodule(obj)
    target = obj if has_source else type(obj)
    try:
        text = inspect.getsource(target)
    except (OSError, TypeError):
        raise ValueError(
            f"{target!r} has no Python source; pass a class or function written in Python"
        ) from None
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        return _Text(text)
    return ipython.display.Code(data=text, language="python")


class _Text(str):
    """Source that a plain interpreter shows as lines, not as one quoted string."""

    def __repr__(self) -> str:
        return str(self)


def _validated(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{type(config).__name__}.{name} must be a positive integer, got {value!r}")
    object.__setattr__(config, "dtype", units.dtype_name(config.dtype))
    if not getattr(torch, config.dtype, torch.bool).is_floating_point:
        raise ValueError(
            f"{type(config).__name__}.dtype must be a floating-point dtype of torch, got {config.dtype}"
        )


def _validated_kind(kind: str) -> None:
    if kind not in ("cuda", "cpu"):
        raise ValueError(f'kind is "cuda" or "cpu", got {kind!r}')


def _normal(*shape: int, dtype: str, device: str | torch.device) -> torch.Tensor:
    return torch.randn(*shape, device=device, dtype=getattr(torch, dtype))
