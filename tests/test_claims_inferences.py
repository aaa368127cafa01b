"""What the series concludes about attention (E11, E14, E16, E19, E25), apart from the models of attention.

E15 and E17 are with the claims they belong to, in test_claims_attention.py; E12 and E13 need a GPU.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tutorial_lib import cost, dispatch, hardware, kernel_names, measure, predict, timeline
from tutorial_lib.attention import Attention
from tutorial_lib.cited import cited

A100 = hardware.find("A100")
HEADS, SEQ, WIDTH = 8 * 16, 1024, 64  # of the published run, batch and heads as one number


@pytest.mark.claims("E11", "C71")
def test_triton_launches_through_the_driver_and_the_fused_kernels_of_part_2_are_tritons():
    triton = pytest.importorskip("triton")
    launcher = Path(triton.__file__).parent / "backends" / "nvidia" / "driver.c"
    source = launcher.read_text(encoding="utf-8")
    assert "cuLaunchKernelExHandle(&config, function, params, 0)" in source
    assert "cudaLaunch" not in source
    families = [kernel_names.decode(cited(key).value).family for key in ("C39.name", "C42.name")]
    assert families == ["triton", "triton"]


@pytest.mark.claims("E14")
@pytest.mark.parametrize(("total", "one", "steps"), [("C49", "C48", 3.68), ("C52.total", "C52", 3.77)])
def test_the_published_totals_of_three_steps_hold_more_than_three(total, one, steps):
    found = cited(total).time_us / cited(one).time_us
    assert found == pytest.approx(steps, abs=0.005)  # 7.194 / 1.955 and 27.279 / 7.239
    assert "3 active steps" in cited(total).quantity and found > 3.5


@pytest.mark.claims("E16")
def test_the_traffic_of_the_math_backend_takes_longer_than_its_products_without_tensor_cores():
    """Counted are the passes over its float32 scores alone."""
    scores = HEADS * SEQ * SEQ * 4  # 537 MB
    # in quarters of the scores, since a bool is one byte: the first product writes 4, add_ of the mask 8,
    # softmax 8, isneginf 5, all 1, where 9, the cast to bfloat16 6, and the last product reads 4
    moved = sum((4, 8, 8, 5, 1, 9, 6, 4)) / 4 * scores
    assert moved / 1e9 == pytest.approx(6.0, abs=0.05)
    traffic_us = moved / A100.bytes_per_s * 1e6
    products = [cost.matmul(SEQ, k, n, "float32", batch=HEADS) for k, n in ((WIDTH, SEQ), (SEQ, WIDTH))]
    arithmetic_us = sum(work.flops for work in products) / A100.rate("float32") * 1e6
    assert (traffic_us, arithmetic_us) == (pytest.approx(2960, abs=15), pytest.approx(1762, abs=5))
    assert traffic_us > 1.5 * arithmetic_us
    assert traffic_us + arithmetic_us < cited("C52").time_us


@pytest.mark.claims("E16")
def test_with_what_kernels_lose_the_products_and_the_rest_of_the_math_backend_take_about_as_long():
    config = Attention(variant="sdpa", backend="math")
    work = dispatch.work(config.build(), *config.inputs("meta"), on=A100)
    products = [w for w in work if w.kind == "gemm"]
    rest = [w for w in work if w.kind != "gemm"]
    assert {w.dtype for w in products} == {"float32"}
    parts = [predict.predict(part, A100).typical_us for part in (products, rest)]
    assert 0.7 < parts[0] / parts[1] < 1.4
    found = predict.predict(work, A100)
    assert found.low_us < cited("C52").time_us < found.high_us


@pytest.mark.claims("E16")
@pytest.mark.parametrize(("allowed", "dtype"), [(False, "float"), (True, "c10::BFloat16")])
def test_float32_products_in_the_math_backend_are_a_default_that_a_switch_changes(allowed, dtype, tmp_path):
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    assert before is False  # the default
    q, k, v = torch.randn(3, 1, 2, 16, 8).bfloat16()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            trace = measure.record(
                lambda: F.scaled_dot_product_attention(q, k, v), tmp_path / "math.json", steps=1, device="cpu"
            )
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
    found = timeline.work_items(trace)
    products = found[found["operator"] == "aten::bmm"]
    assert [dtypes[0] for dtypes in products["dtypes"]] == [dtype] * 2


@pytest.mark.claims("E19")
def test_the_scores_are_explained_at_a_length_of_which_no_run_is_published():
    explained, run = cited("C65").shape, {cited(key).shape for key in ("C48", "C52", "C60", "C61", "C62")}
    assert "4096" in explained
    assert all("1024" in shape and "4096" not in shape for shape in run)
    assert 4096**2 / SEQ**2 == 16  # 16.8 against 1.05 million a head
    assert cited("C65").value * 1e6 == pytest.approx(4096**2, rel=0.05)
    found = predict.predict(Attention().costs(), A100)
    assert found.bytes_moved / A100.bytes_per_s > 10 * found.flops / A100.rate("bfloat16")  # at 1024


@pytest.mark.claims("E25")
def test_a_name_that_says_f16_belongs_to_a_run_in_bfloat16_and_the_products_names_say_bf16():
    for key in ("C17", "C28", "C60.name"):
        assert (kernel_names.decode(cited(key).value).dtype, cited(key).dtype) == ("bfloat16", "bfloat16")
    name = cited("C62.name")
    assert ("wmma_f16" in name.value, name.dtype) == (True, "bfloat16")
    assert kernel_names.decode(name.value).dtype is None  # which is why the library reads no dtype from it
