import pytest

from tutorial_lib import cited as module
from tutorial_lib.cited import cited, table


def test_a_published_figure_carries_its_card_shape_and_source():
    figure = cited("C14")
    assert (figure.value, figure.unit, figure.time_us) == (580, "µs", 580)
    assert figure.card == "A100 80GB SXM" and figure.dtype == "bfloat16" and "4096" in figure.shape
    assert "29 May 2026" in figure.source and figure.source.endswith(
        "https://huggingface.co/blog/torch-profiler"
    )


def test_text_says_cited_and_keeps_the_digits_of_the_source():
    assert cited("C52.total").text == "27.279 ms"
    assert cited("C52.ratio").text == "3.7×"
    assert str(cited("C48")).startswith("1.955 ms, cited: naive attention")
    assert str(cited("C48")).endswith('A100 80GB SXM, bfloat16, [8, 16, 1024, 64], causal (not in the post: defaults of its script)'
                                      ' (Hugging Face, "Profiling in PyTorch", part 3)')


def test_times_convert_and_other_figures_do_not():
    assert cited("C3.cpu").time_us == pytest.approx(2314)
    with pytest.raises(ValueError, match="C33 is no time but 5 kernels"):
        _ = cited("C33").time_us


def test_a_kernel_name_is_a_text():
    assert cited("C28").value == "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align8"


def test_an_unknown_claim_names_the_known_ones():
    with pytest.raises(KeyError, match=r"no cited figure 'C1000'; known: C3, .*C73"):
        cited("C1000")


def test_a_table_keeps_the_order_asked_for():
    assert list(table("C42", "C41")["cited"]) == ["92.8 µs", "89.4 µs"]
    assert table()["claim"].is_unique and len(table()) == len(module._figures())


def test_every_row_is_complete_and_every_number_finite():
    for figure in module._figures().values():
        assert all([figure.quantity, figure.unit, figure.card, figure.dtype, figure.shape, figure.versions])
        assert isinstance(figure.value, str) == (figure.unit == "name")
        assert isinstance(figure.value, str) or 0 <= figure.value < 1e9


def test_the_cited_arithmetic_holds():
    # 128 threads · 255 registers; 7.239 / 1.955 = 3.70; 2·8192·768·3072 = 38.65 GFLOP
    assert cited("C68.registers").value == 128 * 255
    assert cited("C52").time_us / cited("C48").time_us == pytest.approx(cited("C52.ratio").value, abs=0.05)
    assert cited("C35").value == pytest.approx(2 * 8192 * 768 * 3072 / 1e9, abs=0.05)
