"""The package's imports run downward only, and torch and matplotlib stay where the book says they are."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "tutorial_lib"
LAYERS = ("units", "cost_call", "cost_layers", "cost", "hardware", "cpp_names", "kernel_words", "kernel_names",
          "kernel_time", "kernel_time_gemm", "kernel_time_memory", "predict", "op_times", "cited", "claims", "trace",
          "timeline", "compiled", "models", "attention", "sdpa", "dispatch", "offline_gpu", "offline_gpu_child",
          "measure", "liger", "recordings", "verdict", "figures", "accuracy", "diagnose", "compare", "report",
          "doctor", "__main__")
MAY_IMPORT = {
    "torch": {"models", "attention", "sdpa", "dispatch", "offline_gpu", "offline_gpu_child", "measure", "liger",
              "recordings", "doctor"},
    "triton": {"offline_gpu_child", "measure", "liger"},
    "liger_kernel": {"liger"},
    "matplotlib": {"figures", "accuracy"},
}
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def imported(module: str) -> Iterator[str]:
    """Dotted names that `module` imports anywhere, relative ones written in full."""
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(filter(None, ("tutorial_lib" if node.level else "", node.module)))
            yield from (f"{start}.{alias.name}" for alias in node.names)


def layers_below(module: str) -> set[str]:
    return {name.split(".")[1] for name in imported(module) if name.startswith("tutorial_lib.")} & set(LAYERS)


def test_every_module_has_a_layer():
    assert set(MODULES) <= set(LAYERS)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_lies_below_it(module):
    assert layers_below(module) <= set(LAYERS[:LAYERS.index(module)])


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_only_where_they_are_used(module):
    heavy = {name.split(".")[0] for name in imported(module)} & set(MAY_IMPORT)
    assert {name for name in heavy if module not in MAY_IMPORT[name]} == set()


def test_the_package_itself_imports_nothing():
    assert list(imported("__init__")) == []


def test_reading_and_judging_a_trace_does_not_load_torch():
    light = [module for module in MODULES if module not in MAY_IMPORT["torch"] | {"__main__"}]
    code = f"import sys\nfrom tutorial_lib import {', '.join(light)}\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert (done.stdout, done.stderr) == ("False\n", "")
