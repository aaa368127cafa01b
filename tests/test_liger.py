"""Liger's GeGLU beside eager PyTorch: right, through its own kernels, and careless with what it saved."""

import os
import subprocess
import sys

import pytest
import torch

from tutorial_lib import liger, measure, offline_gpu
from tutorial_lib.models import GeGLUMLP

needs_liger = pytest.mark.skipif(liger.problem() is not None, reason="triton or liger-kernel is missing")
needs_a_gpu = pytest.mark.skipif(measure.device() != "cuda", reason="Liger's kernels as they are need a GPU")
without_a_gpu = pytest.mark.skipif(measure.device() == "cuda", reason="a GPU takes the interpreter's place")
SMALL = GeGLUMLP(2, 16, 48, 96)  # 96 columns in a block of 128: some lanes are masked
INTERMEDIATE = 2 * 16 * 96 * 4  # bytes of one [32, 96] in float32


@pytest.fixture(scope="module")
def checked():
    if problem := liger.problem():
        pytest.skip(problem)
    return liger.check(SMALL, seed=1)


def test_the_output_and_all_gradients_are_eagers_up_to_rounding(checked):
    names = ["output", *(f"gradient of {name}" for name in ("x", "gate", "up", "down"))]
    assert list(checked.errors) == list(checked.eager_errors) == names
    # float32 has 24 bits: sums of 96 products are good to some 1e-6 of the largest value
    assert max(checked.errors.values()) < 1e-5 and max(checked.eager_errors.values()) < 1e-5


def test_its_backward_pass_overwrites_both_intermediates_it_saved(checked):
    assert checked.overwritten == ("gate", "up")
    assert checked.overwritten_bytes == 2 * INTERMEDIATE


def test_it_keeps_three_intermediates_for_the_backward_pass_where_eager_keeps_four(checked):
    # gate, up and their product; eager keeps gelu(gate) as well
    assert (checked.kept_bytes, checked.eager_kept_bytes) == (3 * INTERMEDIATE, 4 * INTERMEDIATE)


def test_a_second_backward_pass_is_wrong_and_nobody_says_so(checked):
    assert checked.second_error > 0.1


def test_a_check_says_in_one_line_what_it_found(checked):
    assert "overwrote gate and up (24.6 kB)" in str(checked) and "\n" not in str(checked)
    assert checked.table().columns.tolist() == ["quantity", "liger", "eager"] and len(checked.table()) == 5


@without_a_gpu
def test_the_interpreter_stays_in_its_own_process(checked):
    assert checked.ran == "interpreted on the CPU" and "TRITON_INTERPRET" not in os.environ
    from triton.runtime import JITFunction

    from liger_kernel.ops.geglu import _geglu_tanh_forward_kernel

    assert isinstance(_geglu_tanh_forward_kernel, JITFunction)


@needs_liger
@without_a_gpu
def test_a_failure_in_the_child_process_is_reported_in_one_line():
    # Liger gives a whole row to one program, of at most 65536 columns
    with pytest.raises(RuntimeError, match="interpreter: .*65536") as failure:
        liger.check(GeGLUMLP(1, 1, 1, 65537))
    assert "\n" not in str(failure.value)


@needs_liger
@without_a_gpu
def test_bfloat16_is_refused_without_a_gpu():
    with pytest.raises(ValueError, match="float16 or float32"):
        liger.check(GeGLUMLP(1, 1, 8, 16, dtype="bfloat16"))


@needs_liger
@without_a_gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_module_itself_needs_a_gpu(device):
    with pytest.raises(ValueError, match=r"check\(config\) interprets"):
        liger.build(SMALL, device)


@needs_liger
@pytest.mark.skipif(offline_gpu.problem() is not None, reason=f"{offline_gpu.problem()}")
def test_its_forward_kernel_moves_three_intermediates_and_masks_a_quarter_of_its_lanes():
    config = GeGLUMLP(2, 16, 48, 3072, dtype="bfloat16")
    code = liger.machine_code(config, on="A100")
    # 4 loads and 2 stores of 16 bytes a thread, for 16 of the 4096 lanes that 256 threads share
    assert (code.loads, code.stores, code.threads, code.spills) == ({16: 4}, {16: 2}, 256, 0)
    assert code.bytes_moved == 3 * (32 * 3072 * 2)
    assert [(a.lanes, a.active) for a in code.accesses] == [(4096, 32 * 3072)] * 3


@needs_liger
@pytest.mark.skipif(offline_gpu.problem() is not None, reason=f"{offline_gpu.problem()}")
def test_compiling_its_forward_kernel_takes_time_again_and_again():
    config = GeGLUMLP(2, 16, 48, 3001, dtype="float16")
    first, again = (liger.compile_seconds(config, on="T4") for _ in range(2))
    assert first > 0.01 and again > 0.01  # from the cache it takes about a millisecond


@pytest.mark.parametrize("call", [liger.build, liger.check, liger.machine_code, liger.compile_seconds])
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, call):
    monkeypatch.setattr(liger, "find_spec", lambda module: None if module == "liger_kernel" else module)
    assert liger.problem().startswith("liger-kernel not installed: pip install -c constraints.txt liger")
    with pytest.raises(ValueError, match="pip install"):
        call(SMALL)


def test_importing_it_does_not_load_triton_or_liger():
    code = "import sys; from tutorial_lib import liger; print({'triton', 'liger_kernel'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.getcwd())
    assert done.stdout.strip() == "set()"


@needs_liger
@needs_a_gpu
def test_on_a_gpu_it_has_the_weights_of_ours_and_computes_the_same():
    config = GeGLUMLP(2, 16, 64, 128, dtype=measure.best_dtype("cuda"))
    ours, (x,) = config.build("cuda"), config.inputs("cuda")
    torch.testing.assert_close(liger.build(config, like=ours)(x), ours(x))


@needs_liger
@needs_a_gpu
def test_weights_of_another_size_are_refused():
    with pytest.raises(ValueError, match="like.gate"):
        liger.build(SMALL, like=GeGLUMLP(2, 16, 48, 128).build())
