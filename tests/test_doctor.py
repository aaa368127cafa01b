"""What the doctor says of this machine, and of machines made up for the purpose."""

import json

import pytest
import torch

from tutorial_lib import doctor, measure
from tutorial_lib.trace import TraceError

T4 = {
    "name": "Tesla T4",
    "compute_capability": [7, 5],
    "sm": 40,
    "memory_bytes": 16_000_000_000,
    "l2_bytes": 4 << 20,
}


@pytest.fixture(scope="module")
def report():
    return doctor.report()


def fact(report, name):
    return next(f for f in report.facts if f.name == name)


def test_the_report_names_the_software_and_the_processor(report):
    assert torch.__version__ in fact(report, "torch").value
    assert measure.environment()["cpu"]["name"] in fact(report, "CPU").value
    assert "math" in fact(report, "SDPA backends, cpu").value.split(", ")


def test_what_is_missing_comes_with_the_way_to_get_it(report):
    for f in report.facts:
        assert f.remedy or not f.value.startswith(("not installed", "none found", "none to use"))
    assert all(f.remedy in str(report) for f in report.facts if f.remedy)


def test_each_chapter_says_what_runs_and_what_stands_in(report):
    chapters = ["0 intro", "1 reading_a_trace", "2 linear", "3 geglu_mlp", "4 attention", "5 your_model"]
    assert [c.chapter for c in report.chapters] == chapters
    assert all(c.runs_here and c.instead for c in report.chapters)


def test_the_report_is_json_text_and_html(report):
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()
    assert "Chapter 2 linear" in str(report)
    assert report._repr_html_().count("<table>") == 2


def test_names_from_the_machine_are_escaped():
    odd = doctor.Report((doctor.Fact("GPU", "<b>\x1b[31mred</b>", "a & b"),), ())
    assert "<b>" not in odd._repr_html_() and "a &amp; b" in odd._repr_html_()
    assert "\x1b" not in str(odd) and "\x1b" not in odd._repr_html_()


def made_up(monkeypatch, gpu, *, bfloat16, probe):
    environment = measure.environment()
    environment["gpu"] = gpu
    environment["versions"] |= {"cuda": "12.8", "driver": "570.1", "triton": "3.7.1"}
    monkeypatch.setattr(measure, "cuda_problem", lambda: None)
    monkeypatch.setattr(measure, "environment", lambda: environment)
    monkeypatch.setattr(measure, "record", probe)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: bfloat16 or including_emulation
    )
    monkeypatch.setattr(doctor, "_sdpa_backends", lambda kind: ["efficient", "math"])
    monkeypatch.setattr(torch, "ones", lambda *size, **options: torch.zeros(2, 2))
    return doctor.report()


def test_a_t4_is_found_in_the_datasheets_and_has_no_real_bfloat16(monkeypatch):
    report = made_up(monkeypatch, T4, bfloat16=False, probe=lambda *a, **k: None)
    assert fact(report, "GPU").value == "Tesla T4, compute capability 7.5, 40 SMs, 16.0 GB, driver 570.1"
    assert "emulated" in fact(report, "bfloat16 on the GPU").value and fact(report, "datasheet").value == "T4"
    assert fact(report, "SDPA backends, cuda").value == "efficient, math"
    assert (
        report.chapters[1].runs_here == "traces of the GPU and the CPU"
        and report.chapters[1].instead == "nothing"
    )


def test_a_card_without_a_datasheet_is_measured(monkeypatch):
    report = made_up(monkeypatch, {**T4, "name": "A new card"}, bfloat16=True, probe=lambda *a, **k: None)
    assert fact(report, "bfloat16 on the GPU").value == "real"
    assert "calibrate()" in fact(report, "datasheet").remedy


def test_a_gpu_whose_profiler_fails_is_reported_and_not_raised(monkeypatch):
    def fails(step, path, **options):
        raise TraceError(f"{path}: no GPU event was recorded. Else CUPTI failed")

    report = made_up(monkeypatch, T4, bfloat16=False, probe=fails)
    found = fact(report, "GPU events in a trace")
    assert found.value == "none: no GPU event was recorded" and "CUPTI" in found.remedy
    assert report.chapters[2].runs_here.startswith("traces of the CPU")
    assert "cited" in report.chapters[2].instead


def test_a_machine_without_a_compiler_is_told_how_to_get_one(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found = doctor._compiler()
    assert found.value.startswith("none found") and "g++" in found.remedy


def test_a_compiler_without_pythons_headers_is_told_apart(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name)
    monkeypatch.setattr(doctor.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "headers" in doctor._compiler().value and doctor._compiler().remedy


def test_a_machine_without_a_gpu_is_told_why(monkeypatch):
    monkeypatch.setattr(measure, "cuda_problem", lambda: "the driver is too old")
    report = doctor.report()
    assert fact(report, "GPU").value == "none to use: the driver is too old" and fact(report, "GPU").remedy
    assert "cited" in report.chapters[1].instead


def test_a_card_that_this_torch_has_no_kernels_for_needs_another_build(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    remedy = doctor._gpu_remedy("a first kernel failed: CUDA error: no kernel image is available")
    assert "built for sm_75, sm_80" in remedy and "nvidia-smi" not in remedy
    assert "nvidia-smi" in doctor._gpu_remedy("torch finds no GPU that it can use: No CUDA GPUs")


def test_another_makers_card_has_no_compute_capability(monkeypatch):
    amd = {**T4, "name": "AMD Instinct MI300X", "compute_capability": None}
    report = made_up(monkeypatch, amd, bfloat16=True, probe=lambda *a, **k: None)
    assert fact(report, "GPU").value.startswith("AMD Instinct MI300X, 40 SMs")


@pytest.mark.parametrize("fails", [RuntimeError("No available kernel"), torch.AcceleratorError("late", 1)])
def test_a_backend_that_fails_is_no_backend(monkeypatch, fails):
    class Late:
        def sum(self):
            raise fails  # as a kernel does that a GPU cannot finish

    monkeypatch.setattr(doctor, "scaled_dot_product_attention", lambda q, k, v: Late())
    assert doctor._sdpa_backends("cpu") == []


def test_without_a_compiler_one_linear_still_compiles_and_a_fused_loop_does_not(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    report = made_up(monkeypatch, T4, bfloat16=False, probe=lambda *a, **k: None)
    assert report.chapters[2].runs_here == "traces of the GPU and the CPU, torch.compile"
    assert "torch.compile" in report.chapters[3].instead and report.chapters[0].instead == "nothing"
    assert "g++" in doctor.compiler_problem()


def test_the_last_chapter_says_that_transformers_is_missing(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert "transformers says what is missing" in doctor.report().chapters[5].instead


def test_chapter_3_says_what_its_extras_are_when_they_are_missing(monkeypatch):
    monkeypatch.setattr(doctor.offline_gpu, "problem", lambda: "triton is not installed")
    monkeypatch.setattr(doctor.liger, "problem", lambda: "liger-kernel is not installed")
    last = doctor.report().chapters[3]
    assert "program of a GPU" not in last.runs_here and "Liger" not in last.runs_here
    assert "Liger's kernels says what is missing" in last.instead


@pytest.mark.skipif(measure.device() != "cuda", reason="is about a machine with a GPU")
def test_a_real_gpu_is_described_and_its_kernels_are_recorded(report):
    assert fact(report, "GPU").value.startswith(torch.cuda.get_device_name())
    assert fact(report, "GPU events in a trace").value == "recorded"
    assert "math" in fact(report, "SDPA backends, cuda").value.split(", ")
