import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parent.parent / "benchmarks" / "prediction_accuracy.py"
HEAD = "card,operator,input_dims,input_types,input_strides,concrete_inputs,kernels,n,median_us,source\n"
ROW = 'A100,aten::mm,"[[4096, 4096], [4096, 4096]]","[""c10::Half"", ""c10::Half""]",,[],{},1,{},made up\n'
NAME = "ampere_fp16_s16816gemm_fp16_128x256_ldg8_f2f_stages_64x3_tn"


@pytest.fixture
def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("prediction_accuracy", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ask_nvidia", lambda rows: {})
    return module


def run(benchmark, monkeypatch, path, *options):
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), str(path), *options])
    return benchmark.main()


def test_errors_are_factors_and_bars_are_judged(benchmark, monkeypatch, tmp_path, capsys):
    known = benchmark.predict.work_time(
        benchmark.op_times.cost.matmul(4096, 4096, 4096, "float16"), benchmark.op_times.find("A100"),
        ran=(benchmark.op_times.Ran(NAME),),
    ).typical_us  # fmt: skip
    path = tmp_path / "times.csv"
    # twice the prediction and half of it are the same error; the row under 441 µs lies below its limit
    for factors, status in (((1.0, 1.1), 0), ((2.0, 0.5), 1)):
        times = [known * factor for factor in factors]
        path.write_text(HEAD + "".join(ROW.format(NAME, t) for t in 10 * times) + "broken,x,,,,,,1,1,s\n")
        assert run(benchmark, monkeypatch, path, "--json") in (0, 1)
        found = json.loads(capsys.readouterr().out)
        (every,) = [g for g in found["groups"] if (g["card"], g["kind"]) == ("all cards", "gemm")]
        judged = {bar["what"]: bar["reached"] for bar in found["bars"]}
        assert (every["n"], sum(found["left_out"].values())) == (20, 1)
        assert every["known_within"] == (1.0 if status == 0 else 0.0)
        assert judged["gemm, median error from 10 µs"] is (status == 0)
        if status:
            assert every["known_median"] == pytest.approx(2.0) and every["below_limit"] == 0.5
            assert found["below_limit"] == {"gemm: compute-bound, so the clock was above the datasheet's": 10}


def test_a_file_that_is_no_table_is_refused_in_one_line(benchmark, monkeypatch, tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a\n1\n")
    assert run(benchmark, monkeypatch, tmp_path / "x.csv") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run(benchmark, monkeypatch, tmp_path / "none.csv") == 2


def test_a_withheld_card_is_put_back(benchmark):
    before = dict(benchmark.kernel_time_gemm.CARDS), benchmark.kernel_time_memory.CONSTANTS
    with benchmark.withheld("H100 SXM"):
        assert "H100 SXM" not in benchmark.kernel_time_gemm.CARDS
        assert "H100 SXM" not in benchmark.kernel_time_memory.CONSTANTS.cards
    assert (dict(benchmark.kernel_time_gemm.CARDS), benchmark.kernel_time_memory.CONSTANTS) == before
