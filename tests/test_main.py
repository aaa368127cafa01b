"""The command line: what it prints, and that bad input is one line and exit code 1, wrong usage 2."""

import gzip
import io
import json
import os
import subprocess
import sys

import pytest

from tutorial_lib import __main__ as command_line
from tutorial_lib import measure, models

GEMM = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn"


def event(cat, name, ts, dur, **args):
    gpu = cat in ("kernel", "gpu_memcpy")
    place = {"pid": 0, "tid": args["stream"]} if gpu else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, **place}


def kernel(name, ts, dur, correlation, cat="kernel", stream=7):
    return event(cat, name, ts, dur, device=0, stream=stream, correlation=correlation)


# Two steps of 100 µs; in step 1 a copy and a GEMM that overlap by 5 µs on two streams, in step 2 the GEMM
# alone.
EVENTS = [
    event("user_annotation", "ProfilerStep#1", 0, 100),
    event("cpu_op", "aten::addmm", 5, 30, **{"External id": 1}),
    event("cuda_runtime", "cudaMemcpyAsync", 10, 5, correlation=1, **{"External id": 1}),
    event("cuda_runtime", "cudaLaunchKernel", 20, 5, correlation=2, **{"External id": 1}),
    kernel("Memcpy DtoD (Device -> Device)", 30, 15, 1, cat="gpu_memcpy", stream=8),
    kernel(GEMM, 40, 30, 2),
    event("user_annotation", "ProfilerStep#2", 100, 100),
    event("cpu_op", "aten::mm", 105, 20, **{"External id": 2}),
    event("cuda_runtime", "cudaLaunchKernel", 110, 5, correlation=3, **{"External id": 2}),
    kernel(GEMM, 130, 40, 3),
]


@pytest.fixture
def gpu_trace(tmp_path):
    stamp = {
        "recorded": "2026-01-02T03:04:05+00:00",
        "device": {"name": "a GPU"},
        "versions": {"torch": "2.13.0"},
    }
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"traceEvents": EVENTS, "tutorial_lib": stamp}))
    return path


def run(capsys, *arguments):
    code = command_line.main([str(a) for a in arguments])
    return code, *capsys.readouterr()


def read_json(capsys, *arguments):
    code, out, err = run(capsys, "read", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


# ------------------------------------------------------------------------------------------------------- read


def test_read_gives_the_counts_of_a_gpu_trace(capsys, gpu_trace):
    found = read_json(capsys, gpu_trace)
    assert (found["device"], found["versions"], found["recorded"][:10]) == (
        "a GPU",
        {"torch": "2.13.0"},
        "2026-01-02",
    )
    assert [s["step"] for s in found["steps"]] == [1, 2]
    assert found["events"] == {"runtime": 3, "annotation": 2, "kernel": 2, "operator": 2, "memcpy": 1}
    assert (found["operators"], found["launches"]) == (2, 3)
    # 15 + 30 + 40 µs of work; 30..70 and 130..170 are 80 µs in which something ran
    assert found["kernels"] == {"count": 3, "total_us": 85.0, "busy_us": 80.0}


def test_read_lists_the_longest_work_with_its_name_decoded(capsys, gpu_trace):
    longest, copied = read_json(capsys, gpu_trace)["top"]
    assert (longest["name"], longest["count"], longest["total_us"], longest["median_us"]) == (
        GEMM,
        2,
        70.0,
        35.0,
    )
    assert "tile 128×256" in longest["decoded"] and longest["operator"] == "aten::addmm"
    assert copied["name"].startswith("Memcpy") and "device to device" in copied["decoded"]
    assert len(read_json(capsys, gpu_trace, "--top", 1)["top"]) == 1


def test_read_can_look_at_one_step(capsys, gpu_trace):
    found = read_json(capsys, gpu_trace, "--step", 2)
    assert found["kernels"] == {"count": 1, "total_us": 40.0, "busy_us": 40.0}
    assert (found["step"], found["launches"], found["operators"], found["work_items"]["count"]) == (
        2,
        1,
        1,
        1,
    )


def test_read_as_text_says_the_same(capsys, gpu_trace):
    code, out, err = run(capsys, "read", gpu_trace)
    assert (code, err) == (0, "")
    for part in (
        "a GPU",
        "torch 2.13.0",
        "2, #1 to #2: median 100 µs",
        "the GPU was busy for 40.0 %",  # 30..70 and 130..170 of 200
        "idle: launch-bound",
        "128×256",
    ):
        assert part in out


def test_read_of_a_cpu_trace_lists_operators(capsys, tmp_path):
    config = models.MatmulAdd(64)
    call, inputs = config.build(), config.inputs()
    measure.record(lambda: call(*inputs), tmp_path / "cpu.json.gz", steps=2, device="cpu")
    found = read_json(capsys, tmp_path / "cpu.json.gz")
    assert found["kernels"] == {"count": 0, "total_us": 0.0, "busy_us": 0.0} and found["launches"] == 0
    assert {(t["name"], t["count"]) for t in found["top"]} == {("aten::mm", 2), ("aten::add", 2)}
    assert found["device"] and len(found["steps"]) == 2


def test_a_name_cannot_write_to_the_terminal(capsys, tmp_path):
    name = "\x1b[31mred\x1b[0m \x07\u202eleft\nline"
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [kernel(name, 0, 10, 1)]}))
    _, out, _ = run(capsys, "read", path)
    assert "red left" in out and not set("\x1b\x07\u202e") & set(out)


def test_json_has_no_nan(capsys, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [kernel("k", 0, 10, 1)], "other": float("nan")}))
    code, out, _ = run(capsys, "read", path, "--json")
    assert code == 0 and json.loads(out, parse_constant=pytest.fail)["notes"]


@pytest.mark.parametrize(
    "content, said",
    [
        (None, "no such file"),
        (b"", "empty"),
        (b"hello", "not JSON"),
        (b'{"traceEvents": [{"ph": "X"', "cut off"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"a": 1}', "no trace"),
        (gzip.compress(b'{"traceEvents": []}')[:5], "gzip"),
    ],
)
def test_bad_input_is_one_line_with_the_file_and_exit_code_1(capsys, tmp_path, content, said):
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    code, out, err = run(capsys, "read", path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said in err and str(path) in err and "Traceback" not in err


def test_a_step_that_is_not_in_the_trace_is_an_error(capsys, gpu_trace):
    code, _, err = run(capsys, "read", gpu_trace, "--step", 9)
    assert code == 1 and "has no ProfilerStep#9; its steps: 1, 2" in err


@pytest.mark.parametrize(
    "arguments",
    [[], ["read"], ["what"], ["read", "a", "--top", "-1"], ["read", "a", "--on", "toaster"], ["kernel"],
     ["compare", "a"], ["compare", "a", "b", "--step", "x"], ["compare", "a", "b", "--step", "1,2,3"]],
)
def test_wrong_usage_is_exit_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(arguments)
    assert stopped.value.code == 2 and "usage:" in capsys.readouterr().err


def test_read_writes_a_page_and_tables_beside_what_it_prints(capsys, gpu_trace, tmp_path):
    code, out, err = run(capsys, "read", gpu_trace, "--html", tmp_path / "a.html", "--csv", tmp_path / "tables")
    assert (code, err) == (0, "") and "Where a step's time goes" in out
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(os.listdir(tmp_path / "tables")) == [
        "findings.csv", "kernels.csv", "operators.csv", "steps.csv", "time.csv"]  # fmt: skip


def test_read_does_not_write_over_the_trace(capsys, gpu_trace):
    text = gpu_trace.read_bytes()
    code, out, err = run(capsys, "read", gpu_trace, "--html", gpu_trace)
    assert (code, out) == (1, "") and "is the trace itself; name another file" in err and gpu_trace.read_bytes() == text


@pytest.mark.parametrize("option", ["--html", "--csv"])
def test_a_place_that_cannot_be_written_is_one_line_and_nothing_is_lost(capsys, gpu_trace, tmp_path, option):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("mine")
    place = tmp_path / ("folder.html" if option == "--html" else "file")
    code, out, err = run(capsys, "read", gpu_trace, option, place)
    assert (code, out, err.count("\n")) == (1, "", 1) and str(place) in err
    assert (tmp_path / "file").read_text() == "mine"
    code, _, err = run(capsys, "read", gpu_trace, "--html", tmp_path / "no" / "such.html")
    assert code == 1 and err.endswith("No such file or directory)\n")


def test_read_predicts_for_the_card_that_was_asked_for(capsys, gpu_trace):
    assert read_json(capsys, gpu_trace)["predicted_for"] is None
    assert read_json(capsys, gpu_trace, "--on", "a100")["predicted_for"] == "A100 80GB SXM"


def test_read_refuses_a_trace_that_is_longer_than_allowed(capsys, gpu_trace):
    code, out, err = run(capsys, "read", gpu_trace, "--max-bytes", 100)
    assert (code, out, err.count("\n")) == (1, "", 1) and str(gpu_trace) in err


# ---------------------------------------------------------------------------------------------------- compare


def test_compare_says_what_changed(capsys, gpu_trace, tmp_path):
    other = tmp_path / "after.json"
    other.write_text(json.dumps({"traceEvents": [e | {"dur": 10} if e["name"] == GEMM else e for e in EVENTS]}))
    code, out, err = run(capsys, "compare", gpu_trace, other)
    # the GEMM of 30 µs in the one step and 40 in the other takes 10 in both: 25 µs a step less
    assert (code, err) == (0, "") and "aten::mm" in out and "differs" in out
    read = json.loads(run(capsys, "compare", gpu_trace, other, "--json")[1])
    assert sum(row["difference_us"] for row in read["table"]) == -25


def test_compare_with_what_is_not_there_is_one_line(capsys, gpu_trace, tmp_path):
    code, out, err = run(capsys, "compare", gpu_trace, tmp_path / "nothing.json")
    assert (code, out, err.count("\n")) == (1, "", 1) and "nothing.json: no such file" in err


def test_compare_can_look_at_one_step_of_each(capsys, gpu_trace):
    # step 1 has a copy of 15 µs and a GEMM of 30 of one operator, step 2 a GEMM of 40 of another
    code, out, err = run(capsys, "compare", gpu_trace, gpu_trace, "--step", "1,2")
    assert (code, err) == (0, "") and f"{gpu_trace}, step #1" in out and f"{gpu_trace}, step #2" in out
    read = json.loads(run(capsys, "compare", gpu_trace, gpu_trace, "--step", "1,2", "--json")[1])
    assert {(row["operator"], row["before_us"], row["after_us"]) for row in read["table"]} == {
        ("aten::addmm", 15, 0), ("aten::addmm", 30, 0), ("aten::mm", 0, 40)}  # fmt: skip
    assert "Nothing differs" in run(capsys, "compare", gpu_trace, gpu_trace, "--step", "2")[1]


def test_compare_names_the_file_that_lacks_the_step(capsys, gpu_trace, tmp_path):
    other = tmp_path / "after.json"
    other.write_text(json.dumps({"traceEvents": [e for e in EVENTS if e["name"] != "ProfilerStep#2"]}))
    code, out, err = run(capsys, "compare", gpu_trace, other, "--step", 2)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"{other}: has no ProfilerStep#2; its steps: 1" in err


# ----------------------------------------------------------------------------------------------------- kernel


def test_kernel_reads_a_name_aloud_and_spells_it_out(capsys):
    code, out, err = run(capsys, "kernel", GEMM)
    assert (code, err) == (0, "")
    first, *parts = out.splitlines()
    assert "GEMM" in first and "128×256" in first and len(parts) > 5


def test_kernel_as_json_has_every_field(capsys):
    _, out, _ = run(capsys, "kernel", GEMM, "--json")
    decoded = json.loads(out)
    assert (decoded["dtype"], decoded["layout"], decoded["tile"]) == ("bfloat16", "nn", [128, 256, 64])
    assert {"family", "arch", "stages", "epilogue"} <= set(decoded)


def test_an_unknown_kernel_is_an_answer_and_no_failure(capsys):
    code, out, _ = run(capsys, "kernel", "\x1b[1mwho knows")
    assert code == 0 and "unknown" in out and "\x1b" not in out


def test_kernel_takes_several_names_and_those_on_stdin(capsys, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(f"{GEMM}\n\nwho knows \xff\n".encode("latin-1")))
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, _ = run(capsys, "kernel", "volta_sgemm_128x64_nn", "-", "--json")
    assert code == 0 and [k["family"] for k in json.loads(out)] == ["cublas", "cublas", "unknown"]


@pytest.mark.parametrize("name", ["", " ", "\x1b[31m\x00\u202e", "<" * 5000, "_Z" * 3000, "ünïcode 🙂", "-x"])
def test_any_name_has_an_answer(capsys, name):
    code, out, err = run(capsys, "kernel", "--json", "--", name)
    assert (code, err) == (0, "")
    assert {"family", "arch", "dtype", "layout", "tile", "stages", "epilogue"} <= set(json.loads(out))


# ----------------------------------------------------------------------------------------------------- doctor


def test_doctor_prints_a_report_or_json(capsys):
    code, out, _ = run(capsys, "doctor")
    assert code == 0 and "Chapter 2 linear" in out
    code, out, _ = run(capsys, "doctor", "--json")
    assert code == 0 and {"facts", "chapters"} == set(json.loads(out))


# ----------------------------------------------------------------------------------------------- as a process


def test_reading_does_not_import_torch(gpu_trace):
    code = (
        "import sys; from tutorial_lib.__main__ import main;"
        f" trace = {str(gpu_trace)!r};"
        " assert main(['read', trace]) == main(['compare', trace, trace]) == main(['kernel', 'x']) == 0;"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_closed_pipe_is_no_failure(gpu_trace):
    command = [sys.executable, "-m", "tutorial_lib", "read", str(gpu_trace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()
        process.wait()
    assert (process.returncode, error) == (0, b"")


def test_a_terminal_without_unicode_still_gets_an_answer(gpu_trace):
    command = [sys.executable, "-m", "tutorial_lib", "read", str(gpu_trace)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"100 ?s" in done.stdout and done.stderr == b""


def test_a_closed_stdout_is_no_failure(gpu_trace):
    command = [sys.executable, "-c", "import os; os.close(1); import sys; sys.stdout = None;"
               f"from tutorial_lib.__main__ import main; sys.exit(main(['read', {str(gpu_trace)!r}]))"]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("number", ["-1", "abc", "1.5", "9" * 5000])
def test_a_number_that_is_none_is_told_what_is_wanted(capsys, gpu_trace, number):
    with pytest.raises(SystemExit) as ended:
        command_line.main(["read", str(gpu_trace), "--top", number])
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and "--top: must be a whole number of 0 or more" in said and len(said) < 200


def test_what_a_file_says_of_its_device_does_not_flood_the_terminal(capsys, tmp_path):
    stamp = {"device": {"name": "x" * 100_000}}
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"traceEvents": EVENTS, "tutorial_lib": stamp}))
    assert len(run(capsys, "read", path)[1]) < 10_000
