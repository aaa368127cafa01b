"""The report on a trace, as text, HTML, JSON and CSV: true, complete and inert."""

import csv
import json
import re

import pytest

from tutorial_lib import report
from tutorial_lib.trace import by_hand, from_events

NASTY = "\x1b[31m<img src=x onerror=alert(1)>\u202e\x07"
GEMM = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn"
TOP = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}]}


def event(cat, name, ts, dur, tid=1, **args):
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def ran(name, ts, dur, number, kernel=GEMM, shapes=((4096, 4096), (4096, 4096)), dtype="c10::BFloat16"):
    args = {} if shapes is None else {"Input Dims": shapes, "Input type": [dtype] * len(shapes)}
    return [event("cpu_op", name, ts, 8, **args), event("cuda_runtime", "cudaLaunchKernel", ts + 1, 2, correlation=number),
            event("kernel", kernel, ts + 10, dur, tid=7, device=0, stream=7, correlation=number)]  # fmt: skip


def steps(*times):
    return [
        event("user_annotation", f"ProfilerStep#{i}", start, length)
        for i, (start, length) in enumerate(times)
    ]


@pytest.fixture
def slow():
    """A product of 1000 µs in a step of 1500, on an H100 that needs 139 µs for it."""
    return from_events([*steps((0, 1500)), *ran("aten::mm", 0, 1000, 1)], **TOP)


def missing(trace):
    return " ".join(report.look(trace).missing)


def test_the_text_says_where_the_time_went_and_what_to_do(slow):
    text = str(report.look(slow))
    assert "NVIDIA H100 80GB HBM3" in text and "#0, 1.50 ms on the CPU" in text
    assert "1 kernel; 1.50 ms in all" in text  # until the step ends, which is after the last event begins
    assert re.search(r"compute +1\.00 ms +66\.7 %", text)
    assert re.search(r"✗ 14 % of FLOP/s +aten::mm \[4096, 4096\] \[4096, 4096\] bfloat16", text)
    assert "GEMM at 14 % of peak, aten::mm" in text and "→ Make M, N and K" in text
    assert max(map(len, text.splitlines())) <= 118 and text.count("\n") < 60


def test_what_was_not_recorded_is_said_with_how_to_record_it():
    assert "record_shapes=True" in missing(
        from_events([*steps((0, 100)), *ran("aten::mm", 0, 10, 1, shapes=None)])
    )
    assert "with_stack=True" in missing(from_events([*steps((0, 100)), *ran("aten::mm", 0, 10, 1)]))
    assert "prof.step()" in missing(from_events(ran("aten::mm", 0, 10, 1)))
    assert "activities=[CPU, CUDA]" in missing(from_events([ran("aten::mm", 0, 10, 1)[2]]))
    assert "CUPTI" in missing(from_events([event("cpu_op", "aten::mm", 0, 10)], **TOP))
    assert "this is a trace of CPU work" in missing(from_events([event("cpu_op", "aten::mm", 0, 10)]))


def test_a_card_that_is_not_known_is_told_apart_from_shapes_that_are_missing(slow):
    events = [*steps((0, 1500)), *ran("aten::mm", 0, 1000, 1)]
    assert "the card's rates are not known: --on CARD" in str(report.look(from_events(events)))
    assert "137.4 GFLOP at 137 TFLOP/s" in str(report.look(from_events(events)))  # 137.4e9 / 1000e-6
    assert "against the prediction for A100 80GB SXM" in str(report.look(slow, on="A100"))
    bare = from_events([*steps((0, 1500)), *ran("aten::mm", 0, 1000, 1, shapes=None)], **TOP)
    assert "no verdicts, since no shapes were recorded" in str(report.look(bare))


def test_notes_tell_of_odd_steps_graphs_and_work_from_outside():
    def notes(events):
        return " ".join(report.look(from_events(events)).notes)

    odd = [
        *steps((0, 900), (900, 100), (1000, 100)),
        *ran("aten::mm", 0, 10, 1),
        *ran("aten::mm", 900, 10, 2),
    ]
    assert "step #0 took 9.00× the median" in notes(odd)
    graph = [
        event("cuda_runtime", "cudaGraphLaunch", 0, 5, correlation=1),
        *(ran("x", 10 + i, 1, 1)[2] for i in range(3)),
    ]
    assert "3 of 3 came from graph launches" in notes(graph)
    assert "1 kernel or copy was launched outside" in notes(
        [*ran("aten::mm", 0, 5, 1), *steps((50, 50)), *ran("aten::mm", 60, 5, 2)]
    )


def test_another_card_and_other_gpus_are_told_of(slow):
    assert "bands are for A100 80GB SXM, as was asked for; times are of NVIDIA H100" in str(report.look(slow, on="A100"))
    two = [*steps((0, 100)), *ran("aten::mm", 0, 60, 1), *ran("aten::mm", 20, 30, 2)]
    two[-1]["args"]["device"] = 1
    # GPU 0 ran in 10-70, GPU 1 in 30-60 of 0-100
    assert "divided for GPU 0; GPU 1 was busy for 30.0 % of it" in str(report.look(from_events(two)))


def test_json_has_the_facts_and_the_tables_without_nan(slow):
    read = json.loads(report.look(slow).to_json(), parse_constant=pytest.fail)
    assert {"device", "versions", "steps", "events", "launches", "operators", "kernels", "time", "top", "verdicts",
            "findings", "missing", "notes", "work_items"} <= set(read)  # fmt: skip
    assert (
        read["kernels"] == {"count": 1, "total_us": 1000, "busy_us": 1000}
        and read["device"] == "NVIDIA H100 80GB HBM3"
    )
    assert sum(part["time_us"] for part in read["time"]) == pytest.approx(1500)
    assert read["verdicts"][0]["position"] == "above the band" and read["findings"][0]["won_us"] > 0


def test_the_page_needs_nothing_else_and_nothing_in_it_is_live():
    trace = from_events([*steps((0, 100)), *ran(NASTY, 0, 50, 1, NASTY)],
                        deviceProperties=[{"id": 0, "name": NASTY}])  # fmt: skip
    page = report.look(trace).to_html()
    assert "<img" not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
    assert not {"\x1b", "\u202e", "\x07"} & set(page)
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")  # nothing is loaded
    assert 'name="viewport"' in page and "color-scheme:light dark" in page and "<svg" in page
    assert page.count("<table") == page.count("</table>") and page.count("<div") == page.count("</div>")


def test_a_name_cannot_write_to_the_terminal_or_open_a_formula(tmp_path):
    trace = from_events([*steps((0, 100)), *ran("=cmd|' /C calc'!A0", 0, 50, 1, NASTY)], path="x")
    look = report.look(trace)
    assert not {"\x1b", "\u202e", "\x07"} & set(str(look) + repr(look) + look._repr_html_())
    paths = look.to_csv(tmp_path / "new" / "tables")
    assert [path.stem for path in paths] == ["steps", "time", "kernels", "operators", "findings"]
    cells = [cell for path in paths for row in csv.reader(path.open(encoding="utf-8")) for cell in row]
    assert not any(cell.startswith(("=", "+", "@")) for cell in cells) and "'=cmd|' /C calc'!A0" in cells
    assert not {"\x1b", "\u202e"} & set("".join(cells))


def test_tables_that_have_no_place_are_one_line(tmp_path, slow):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: the tables cannot be written there"):
        report.look(slow).to_csv(tmp_path / "file")


def test_a_notebook_shows_the_same_tables(slow):
    shown = report.look(slow)._repr_html_()
    assert "aten::mm [4096, 4096] [4096, 4096] bfloat16" in shown and "<svg" in shown and "<html" not in shown


def test_the_trace_of_chapter_1_and_the_smallest_ones_have_a_report():
    assert "Where a step's time goes" in str(report.look(by_hand()))
    for events in ([event("user_annotation", "x", 0, 1)], [event("cpu_op", "aten::mm", 0, 0)], steps((0, 0))):
        look = report.look(from_events(events))
        assert str(look) and look.to_html() and json.loads(look.to_json())


def test_top_says_how_many_rows_are_shown(slow):
    assert "aten::mm" not in str(report.look(slow, top=0))


def test_titles_are_not_cut():
    titles = [line for line in str(report.look(from_events(ran("aten::mm", 0, 1000, 1)))).splitlines() if "100 %" in line]
    assert any(title.endswith("--on CARD for another's") for title in titles)


def test_a_file_is_looked_at_as_its_trace_and_a_cpu_is_not_judged_as_a_card(tmp_path):
    path = tmp_path / "cpu.json"
    args = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    path.write_text(json.dumps({"traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 8, "pid": 1, "tid": 1, "args": args}
    ]}))  # fmt: skip
    assert report.look(path).path == str(path)
    assert "no verdict" in str(report.look(path, on="H100")) and "no verdict" not in str(report.look(path))


def test_a_step_that_the_gpu_began_late_says_from_when_on_it_is_divided():
    # an earlier kernel runs until 310 µs, the step begins at 100 on the CPU: 210 late, and ends at 400
    busy = [*ran("aten::mm", 0, 300, 1), *steps((100, 300)), *ran("aten::mm", 110, 80, 2)]
    busy[-1]["ts"] = 320
    (note,) = [note for note in report.look(from_events(busy)).notes if "began with this step" in note]
    assert "210 µs after the CPU" in note
    assert not any("began" in note for note in report.look(from_events(busy[3:])).notes)


def test_the_busiest_gpu_may_have_no_number():
    odd = [event("kernel", "k", 0, 50, tid="y"), event("gpu_memset", "Memset", 10, 5, device=0, stream=7),
           event("gpu_memcpy", "Memcpy DtoD", 20, 5, device=1, stream=7)]  # fmt: skip
    odd[0]["pid"] = "x"
    assert "divided for the GPU whose number was not recorded; GPU 0 was busy" in str(report.look(from_events(odd)))
