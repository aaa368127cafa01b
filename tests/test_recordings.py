"""Recordings: made on this CPU and on a GPU that is made up, gone on with, refused, found and judged."""

import gzip
import hashlib
import json
import math
import re
import shutil
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tutorial_lib import __main__ as command_line
from tutorial_lib import cost, hardware, measure, recordings, timeline
from tutorial_lib.measure import Draw, Timing
from tutorial_lib.models import Linear, MatmulAdd
from tutorial_lib.predict import predict
from tutorial_lib.recordings import RecordingError, Seconds, Workload
from tutorial_lib.trace import from_events, read_trace

needs_no_gpu = pytest.mark.skipif(measure.device() == "cuda", reason="is about a machine without a GPU")

QUICK = Seconds(bench=0.005, draw=0.01, calibrate=0.01)
CEILINGS = hardware.Hardware("by hand", "cpu", {"float32": 1e9}, 1e9, 1.0, None, None, None, "by hand", True)


@dataclass(frozen=True)
class Broken:
    """A workload whose inputs cannot be made."""

    dtype: str = "float32"

    def inputs(self, device):
        raise torch.OutOfMemoryError(f"CUDA out of memory in {Path.home()}/models\nand more lines")


def eager(name, config):
    return Workload(name, "by_hand", "eager", config)


SMALL, PLAIN = eager("small", MatmulAdd(8)), eager("plain", Linear(4, 8, 16))
ON_THE_CPU = {"device": "cpu", "seconds": QUICK}


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch):
    """Ceilings that are not measured each time; test_measure.py is about how they are."""
    found = replace(CEILINGS, name=measure.environment()["cpu"]["name"])
    monkeypatch.setattr(measure, "calibrate", lambda kind, seconds: replace(found, kind=kind))


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings") / "here"
    found = replace(CEILINGS, name=measure.environment()["cpu"]["name"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "calibrate", lambda kind, seconds: found)
        list(recordings.record(folder, [SMALL, PLAIN], **ON_THE_CPU))
    return folder


@pytest.fixture
def made(made_once, tmp_path):
    return Path(shutil.copytree(made_once, tmp_path / "here"))


def statuses(folder):
    return {entry.name: entry.status for entry in recordings.read_manifest(folder).entries}


def changed(folder, change):
    """The manifest with something else in it."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_trace(folder, change, name="small"):
    """A trace with something else in it, whose checksum in the manifest is right."""
    path = folder / f"{name}.json.gz"
    content = json.loads(gzip.decompress(path.read_bytes()))
    change(content)
    packed = gzip.compress(json.dumps(content).encode())
    path.write_bytes(packed)
    listed = {"name": path.name, "bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    changed(folder, lambda manifest: manifest["entries"][0].update(trace=listed))


# -------------------------------------------------------------------------------------------------- recording


def test_what_was_recorded_is_found_with_its_trace_its_time_and_its_machine(made):
    found = recordings.load("plain", folder=made)
    assert found.shapes == ((4, 8),) and found.config == {
        "type": "Linear", "batch": 4, "in_features": 8, "out_features": 16, "bias": True, "dtype": "float32"
    }  # fmt: skip
    # 3 steps; on a CPU each copies the bias and multiplies
    assert timeline.work_items(found.trace)["operator"].tolist() == ["aten::copy_", "aten::addmm"] * 3
    assert found.warm.n >= 5 and found.warm.warm and found.first_call_s > 0 and found.second_call_s > 0
    card, *rest = (
        measure.environment()["cpu"]["name"],
        "float32",
        "[4, 8]",
        f"torch {torch.__version__}",
        found.date,
    )
    assert found.machine.startswith(card) and all(part in found.machine for part in rest)
    assert found.flushed is None and found.program is None and found.hardware.measured


def test_a_recording_is_whole_small_and_says_nothing_of_its_host(made):
    assert recordings.problems(made) == [] and recordings.validate(made).schema == 1
    assert sorted(path.name for path in made.iterdir()) == ["manifest.json", "plain.json.gz", "small.json.gz"]
    for path in made.glob("*.json.gz"):
        text = gzip.decompress(path.read_bytes()).decode()
        assert path.stat().st_size < 40_000 and "host_name" not in text and str(Path.home()) + "/" not in text


def test_a_compiled_variant_keeps_its_program(tmp_path):
    # a product alone is no kernel of Inductor's own, so that no C++ compiler is needed
    product = Workload("product_compiled", "product", "compiled", Linear(4, 8, 8, bias=False))
    (entry,) = recordings.record(tmp_path / "a", [product], **ON_THE_CPU)
    assert (entry.status, entry.reason) == ("recorded", None) and recordings.problems(tmp_path / "a") == []
    found = recordings.load("product_compiled", folder=tmp_path / "a")
    assert "extern_kernels.mm(" in found.program and "aten::mm" in set(found.trace.events["name"])


def test_a_program_does_not_tell_where_it_was_compiled():
    places = "# kernel path: /tmp/torchinductor_me/c.py\n#   File: /home/me/m.py:3, code: x\n"
    program = f"{places}# Source Nodes: [gelu]\nx = '{Path.home()}/a'\n"
    assert recordings._without_places(program) == "# Source Nodes: [gelu]\nx = '~/a'\n"


def test_a_second_run_keeps_what_is_done_and_does_the_rest(made, monkeypatch):
    before = recordings.read_manifest(made).entry("small")
    (made / "plain.json.gz").write_bytes(b"damaged")
    recorded, record = [], measure.record
    monkeypatch.setattr(measure, "record", lambda *a, **k: recorded.append(k["label"]) or record(*a, **k))
    entries = list(recordings.record(made, [SMALL, PLAIN], **ON_THE_CPU))
    assert recorded == ["plain"] and entries[0] == before and recordings.problems(made) == []


def test_an_interrupted_run_leaves_a_whole_folder_and_is_gone_on_with(tmp_path, monkeypatch):
    calls, bench = iter(range(9)), measure.bench

    def interrupted(*arguments, **options):
        if next(calls) == 2:  # warm and flushed of the first workload come before
            raise KeyboardInterrupt
        return bench(*arguments, **options)

    monkeypatch.setattr(measure, "bench", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(recordings.record(tmp_path, [SMALL, PLAIN], **ON_THE_CPU))
    assert statuses(tmp_path) == {"small": "recorded"}
    assert recordings.problems(tmp_path) == [
        f"{tmp_path}/manifest.json: lacks 1 of 2 planned workloads (plain): the run was interrupted;"
        f" to go on: python -m tutorial_lib record --out {tmp_path}"
    ]
    # what a process leaves that is killed at the worst moments
    (tmp_path / ".recording-x" / ".recording-y").mkdir(parents=True)
    for left in (
        ".recording-x/.recording-y/raw.json",
        ".manifest.json.part",
        "plain.json.gz",
        "plain.inductor.txt",
    ):
        (tmp_path / left).write_text("half")
    assert len(recordings.problems(tmp_path)) == 5
    list(recordings.record(tmp_path, [SMALL, PLAIN], **ON_THE_CPU))
    assert (
        statuses(tmp_path) == {"small": "recorded", "plain": "recorded"}
        and recordings.problems(tmp_path) == []
    )


def test_what_was_planned_is_written_down_before_anything_runs(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(recordings.record(tmp_path / "a b", [SMALL, PLAIN], only="small,plain", **ON_THE_CPU))
    # nothing was recorded, which what is missing says already
    (problem,) = recordings.problems(tmp_path / "a b")
    assert "lacks 2 of 2 planned workloads (small, plain)" in problem
    assert problem.endswith(f"record --out '{tmp_path}/a b' --only small,plain")


def test_what_is_asked_for_later_is_planned_beside_what_was_asked_for_first(made):
    third = eager("third", MatmulAdd(4))
    assert recordings.read_manifest(made).planned == recordings.Plan(("small", "plain"))
    list(recordings.record(made, [PLAIN, third], only="third,plain", **ON_THE_CPU))
    # everything was asked for first, and that goes on without --only
    assert recordings.read_manifest(made).planned == recordings.Plan(("small", "plain", "third"))
    changed(made, lambda manifest: manifest["planned"].update(only="small,plain"))
    list(recordings.record(made, [third], only="third,plain", **ON_THE_CPU))
    assert recordings.read_manifest(made).planned.only == "small,plain,third"
    assert recordings.problems(made) == []


def test_a_recording_from_before_plans_were_written_down_is_whole_as_it_is(made):
    changed(made, lambda manifest: manifest.pop("planned"))
    assert recordings.problems(made) == [] and recordings.read_manifest(made).missing == ()


def test_a_folder_of_other_versions_is_not_gone_on_with(made):
    changed(made, lambda manifest: manifest["machine"]["versions"].update(torch="2.11.0"))
    with pytest.raises(RecordingError, match=r"versions \(versions.torch 2.11.0, now .*name another --out"):
        next(recordings.record(made, [SMALL], **ON_THE_CPU))


def test_what_does_not_fit_into_the_minutes_is_left_out_until_there_are_more(made):
    third = eager("third", MatmulAdd(4))
    list(recordings.record(made, [SMALL, third], minutes=1e-9, **ON_THE_CPU))
    left = recordings.read_manifest(made).entry("third")
    assert (left.status, left.reason) == ("left out", "the 1e-09 minutes were over")
    assert statuses(made)["small"] == "recorded" and recordings.problems(made) == []
    list(recordings.record(made, [third], minutes=5, **ON_THE_CPU))
    assert statuses(made)["third"] == "recorded"


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf])
def test_minutes_that_are_none_are_refused(tmp_path, minutes):
    with pytest.raises(ValueError, match="--minutes is a positive number"):
        next(recordings.record(tmp_path, [SMALL], minutes=minutes, **ON_THE_CPU))


def test_a_workload_that_fails_is_written_down_and_stops_no_other(tmp_path):
    list(recordings.record(tmp_path, [eager("broken", Broken()), SMALL], **ON_THE_CPU))
    failed = recordings.read_manifest(tmp_path).entry("broken")
    assert (failed.status, failed.reason) == ("failed", "OutOfMemoryError: CUDA out of memory in ~/models")
    assert statuses(tmp_path)["small"] == "recorded" and recordings.problems(tmp_path) == []


def test_times_that_cannot_be_right_are_no_recording(tmp_path, monkeypatch):
    def bench(step, *, device, seconds, flush_l2=False):
        if flush_l2:
            raise ValueError("no GPU")
        return Timing(5e7, 5e7, 5e7, 9, True, "here", "cpu", 1, 1, "by hand")

    monkeypatch.setattr(measure, "bench", bench)
    (entry,) = recordings.record(tmp_path, [SMALL], **ON_THE_CPU)
    assert entry.status == "failed" and entry.reason.startswith("small.json.gz: its steps take ")
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@needs_no_gpu
def test_what_a_cpu_has_no_kernel_for_is_left_out_with_the_reason(tmp_path):
    wanted = recordings.chosen(recordings.workloads().values(), "attention_cudnn,geglu_mlp_liger")
    reasons = [e.reason for e in recordings.record(tmp_path, wanted, **ON_THE_CPU)]
    assert "compiled for a GPU" in reasons[0] or "not installed" in reasons[0]
    assert reasons[1] == "a CPU has no cudnn backend"


# ---------------------------------------------------------------------------------------------- the workloads


def test_a_group_a_name_and_several_can_be_chosen():
    known = recordings.plan("cuda", "bfloat16", ("float32", "bfloat16"))
    names = [w.name for w in recordings.chosen(known, "geglu_mlp, attention_flash")]
    assert names == ["geglu_mlp", "geglu_mlp_compiled", "geglu_mlp_liger", "attention_flash"]
    assert recordings.chosen(known, None) == known
    with pytest.raises(ValueError, match="--only what: no such workload; known: matmul_add_small, "):
        recordings.chosen(known, "geglu_mlp,what")


def test_every_workload_has_its_own_name_and_a_card_without_bfloat16_gets_none():
    for plan in (
        recordings.plan("cuda", "float16", ("float32", "float16", "float64")),
        recordings.plan("cuda", "bfloat16", ("float32", "float16", "bfloat16", "tfloat32", "float64")),
        recordings.plan("cpu", "float32", ("float32", "bfloat16", "float64")),
    ):
        assert len({w.name for w in plan}) == len(plan) > 50
    t4, h200, _ = (
        {w.config.dtype for w in recordings.plan("cuda", dtype, others)}
        for dtype, others in (
            ("float16", ("float32", "float16")),
            ("bfloat16", ("bfloat16",)),
            ("float16", ()),
        )
    )
    assert t4 == {"float16", "float32"} and h200 == {"bfloat16"}


def test_an_addend_that_finds_no_epilogue_is_that_of_chapter_2():
    for how, addend in (("full addend", (16, 4)), ("beta", (4,))):
        lost = recordings.LostEpilogue(how, 16, 8, 4)
        x, weight, bias = lost.inputs()
        expected = x @ weight.t() + (0.5 if how == "beta" else 1) * bias
        assert bias.shape == addend and torch.allclose(lost.build()(x, weight, bias), expected, atol=1e-5)
    (x,) = recordings.LostEpilogue("transposed", 16, 8, 4).inputs()
    assert x.shape == (8, 2, 8) and not x.is_contiguous()


# ------------------------------------------------------------------------------------------------ slim traces


def test_a_slim_trace_reads_like_the_whole_one(tmp_path):
    layer, x = torch.nn.Linear(8, 8), torch.ones(4, 8)
    whole = measure.record(lambda: layer(x), tmp_path / "a.json.gz", label="a", stacks=True, device="cpu")
    assert recordings.slim(tmp_path / "a.json.gz", tmp_path / "b.json.gz") == (3, ())
    slim = read_trace(tmp_path / "b.json.gz")
    assert (tmp_path / "b.json.gz").stat().st_size < (tmp_path / "a.json.gz").stat().st_size / 2
    assert set(slim.events["kind"]) == {"operator", "annotation"} and slim.versions == whole.versions
    for question in (timeline.steps, timeline.operators, timeline.work_items):
        a, b = (question(trace).drop(columns="module", errors="ignore") for trace in (whole, slim))
        for columns in (["name"], ["shapes", "strides", "concrete"], ["duration_us"]):
            for column in set(columns) & set(a):
                assert a[column].tolist() == b[column].tolist()


def event(category, name, ts, dur, **args):
    place = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, **place, "args": args}


def gpu_step(number, start_us, kernel_us):
    """A step of 100 µs with one product of [64, 64] matrices in float16 on a GPU."""
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["c10::Half", "c10::Half"]}
    place = {
        "device": 0,
        "stream": 7,
        "correlation": number,
        "est. achieved occupancy %": 0,
        "grid": [1, 1, 1],
    }
    return [
        event("user_annotation", f"ProfilerStep#{number}", start_us, 100),
        event("gpu_user_annotation", f"ProfilerStep#{number}", start_us + 30, 10),
        event("cpu_op", "aten::mm", start_us + 5, 20, **{"External id": number, **shapes, "Ev Idx": 4}),
        event(
            "cuda_runtime",
            "cudaLaunchKernel",
            start_us + 10,
            5,
            correlation=number,
            **{"External id": number},
        ),
        event("kernel", "ampere_gemm", start_us + 30, kernel_us, **place),
    ]


def written(path, events, stamp=None):
    names = {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 5.0, "args": {"name": "python"}}
    others = [names, names | {"pid": 9}, {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1, "name": "ac2g"}]
    content = {
        "traceEvents": [*others, *events],
        "distributedInfo": {"backend": "nccl"},
        "cuda_driver_version": 13000,
    }
    path.write_bytes(gzip.compress(json.dumps({**content, "tutorial_lib": stamp or {"steps": 2}}).encode()))


def test_a_slim_trace_of_a_gpu_keeps_kernels_launches_and_lanes_that_hold_something(tmp_path):
    written(tmp_path / "a.json.gz", [*gpu_step(1, 1000, 30), *gpu_step(2, 1100, 40)])
    recordings.slim(tmp_path / "a.json.gz", tmp_path / "b.json.gz")
    content = json.loads(gzip.decompress((tmp_path / "b.json.gz").read_bytes()))
    assert [(e["pid"], "ts" in e) for e in content["traceEvents"] if e["ph"] == "M"] == [(1, False)]
    assert set(content) == {"traceEvents", "cuda_driver_version", "tutorial_lib"}
    kernels = timeline.kernels(read_trace(tmp_path / "b.json.gz"))
    assert kernels[["start_us", "duration_us", "operator", "step"]].values.tolist() == [
        [30, 30, "aten::mm", 1], [130, 40, "aten::mm", 2]
    ]  # fmt: skip
    assert kernels["shapes"].tolist() == [((64, 64), (64, 64))] * 2 and kernels["grid"].notna().all()


def test_a_trace_that_is_too_large_loses_its_last_steps_and_says_so(tmp_path):
    written(tmp_path / "a.json.gz", [*gpu_step(1, 1000, 30), *gpu_step(2, 1100, 40)])
    whole = recordings.slim(tmp_path / "a.json.gz", tmp_path / "b.json.gz")
    most = (tmp_path / "b.json.gz").stat().st_size - 1
    steps, notes = recordings.slim(tmp_path / "a.json.gz", tmp_path / "b.json.gz", most=most)
    assert whole == (2, ()) and steps == 1 and notes[0].startswith("the first 1 of 2 steps")
    trace = read_trace(tmp_path / "b.json.gz")
    assert len(timeline.kernels(trace)) == 1 and trace.metadata["tutorial_lib"]["steps"] == 1
    with pytest.raises(ValueError, match="the trace of one step has .* bytes, the most is 99"):
        recordings.slim(tmp_path / "a.json.gz", tmp_path / "b.json.gz", most=99)


# --------------------------------------------------------------------------------------------------- checking


def entry_with(**fields):
    return lambda folder: changed(folder, lambda manifest: manifest["entries"][0].update(fields))


def time_with(**fields):
    return lambda folder: changed(folder, lambda manifest: manifest["entries"][0]["warm"].update(fields))


def stamp_with(**fields):
    return lambda folder: change_trace(folder, lambda trace: trace["tutorial_lib"].update(fields))


def machine_with(**fields):
    return lambda folder: changed(folder, lambda manifest: manifest["machine"].update(fields))


REFUSED = {
    r"small.json.gz: is missing; record small again": lambda folder: (folder / "small.json.gz").unlink(),
    r"more.txt: is not in the manifest; delete it": lambda folder: (folder / "more.txt").write_text("x"),
    r"small.json.gz: is not the file that was recorded": lambda folder: (
        folder / "small.json.gz"
    ).write_bytes(b"x"),
    r"manifest.json: cannot be read \(No such file": lambda folder: (folder / "manifest.json").unlink(),
    r"manifest.json: is no manifest .*\$\.entries\[0\]\.warm\.median_us": time_with(median_us="fast"),
    r"manifest.json: is no manifest .*contains unknown field `extra`": entry_with(extra=1),
    r"manifest.json: has schema 2": lambda folder: changed(
        folder, lambda manifest: manifest.update(schema=2)
    ),
    r"machine names no processor": machine_with(cpu=None),
    r"tells no versions": machine_with(versions=None),
    r"its ceilings are of other": lambda f: changed(
        f, lambda manifest: manifest["ceilings"].update(name="other")
    ),
    r"names plain more than once": entry_with(name="plain"),
    r"\.\./x: is no name of a workload": entry_with(name="../x"),
    r"small: its file cannot be called \.\./x": entry_with(trace={"name": "../x", "bytes": 1, "sha256": ""}),
    r"small: is recorded and has no time": entry_with(warm=None),
    r"small: is failed and has files": entry_with(status="failed", reason="x"),
    r"a compiled variant has a program": entry_with(variant="compiled"),
    r"warm time cannot be right: quartiles .* 0.0 µs": time_with(q1_us=0.0, median_us=0.0, q3_us=0.0),
    r"warm time cannot be right": time_with(median_us=1e12),
    r"warm time is one of cuda": time_with(kind="cuda"),
    r"its steps take .* the manifest says 50\.0 s a call": time_with(q1_us=5e7, median_us=5e7, q3_us=5e7),
    r"another label than the manifest says \(label other, there small\)": stamp_with(label="other"),
    r"another versions .*\(versions\.torch 2\.11": stamp_with(versions={"torch": "2.11"}),
    r"another device .*\(device\.name T4": stamp_with(device={"name": "T4"}),
    r"another steps": stamp_with(steps=9),
    r"small.json.gz: names the host": lambda f: change_trace(f, lambda trace: trace.update(host_name="me")),
    r"small.json.gz: is JSON but no trace": lambda f: change_trace(f, lambda trace: trace.pop("traceEvents")),
    r"has GPU events, and the manifest is of kind cpu": lambda f: change_trace(
        f, lambda trace: trace["traceEvents"].append(event("kernel", "k", 1, 1, device=0, stream=7))
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_folder_whose_parts_disagree_is_refused_with_the_file(made, said):
    REFUSED[said](made)
    with pytest.raises(RecordingError, match=said) as refused:
        recordings.validate(made)
    assert "\n" not in str(refused.value) and str(made) in str(refused.value)


def test_a_recording_that_is_refused_is_not_loaded_and_the_others_are(made):
    stamp_with(label="other")(made)
    with pytest.raises(RecordingError, match="small.json.gz: was recorded with another label"):
        recordings.load("small", folder=made)
    assert recordings.load("plain", folder=made).name == "plain"


# ---------------------------------------------------------------------------------------------------- finding


def test_a_gpu_comes_before_a_cpu_and_a_card_can_be_named(made, tmp_path):
    table = recordings.available(tmp_path)
    assert table["name"].tolist() == ["small", "plain"] and table["median_us"].gt(0).all()
    card = measure.environment()["cpu"]["name"]
    assert recordings.load("small", card[:4].lower(), tmp_path).card == card
    with pytest.raises(
        RecordingError,
        match=f"no recording of 'small' of T4 .*are there of: {re.escape(card)}.*record --only small",
    ):
        recordings.load("small", "T4", tmp_path)
    assert [r.name for r in recordings.load_all(tmp_path)] == ["small", "plain"]


def test_a_chapter_without_a_gpu_shows_the_newest_recording_of_one_or_nothing(made, tmp_path, monkeypatch):
    assert recordings.from_a_gpu("small", tmp_path) is None
    on_cpu = recordings.load("small", folder=tmp_path)
    old, new = (replace(on_cpu, kind="cuda", card="T4", date=f"2026-01-0{day}") for day in (1, 2))
    monkeypatch.setattr(recordings, "load_all", lambda folder: (on_cpu, new, old))
    assert recordings.from_a_gpu("small") is new and recordings.from_a_gpu("plain") is None
    assert str(new).startswith("small: ") and "recorded on T4" in str(new) and "2026-01-02" in str(new)


def test_nothing_recorded_is_an_empty_table_and_an_error_that_says_how_to(tmp_path):
    assert recordings.available(tmp_path).empty and recordings.load_all(tmp_path) == ()
    with pytest.raises(RecordingError, match="none at all.*python -m tutorial_lib record --only small"):
        recordings.load("small", folder=tmp_path)


def test_the_shipped_recordings_are_whole_and_small():
    shipped = recordings.folders()
    assert {str(folder): recordings.problems(folder) for folder in shipped} == {str(f): [] for f in shipped}
    assert sum(path.stat().st_size for folder in shipped for path in folder.iterdir()) < 3_000_000


# --------------------------------------------------------------------------------------------------- accuracy


def judged(*durations_us, name="aten::mm", shapes=((64, 64), (64, 64)), **said):
    """A recording on a device of 1 GFLOP/s, 1 GB/s and 1 µs: one operator a step, of these durations."""
    events = []
    for number, duration_us in enumerate(durations_us):
        start_us, arguments = 1e5 * number, {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
        events.append(event("user_annotation", f"ProfilerStep#{number}", start_us, 9e4))
        events.append(event("cpu_op", name, start_us + 1, duration_us, **arguments))
    made = {field: None for field in recordings.Recording.__dataclass_fields__}
    made |= {"name": "a", "kind": "cpu", "card": "by hand", "dtype": "float32", "ceilings": CEILINGS}
    return recordings.Recording(**made | {"trace": from_events(events) if events else None} | said)


BAND = predict(cost.matmul(64, 64, 64, "float32"), CEILINGS)


def test_an_operator_is_judged_by_the_median_of_its_steps():
    times = (BAND.low_us, 2 * BAND.high_us, 3 * BAND.high_us)
    found = recordings.accuracy(judged(*times)).operators.iloc[0]
    assert (found["kind"], found["shapes"], found["bound_by"]) == ("gemm", ((64, 64), (64, 64)), "compute")
    # 2 · 64³ = 524288 FLOPs take 524.288 µs at 1 GFLOP/s
    assert (found["limit_us"], found["low_us"]) == pytest.approx((524.288, BAND.low_us))
    assert found["measured_us"] == pytest.approx(2 * BAND.high_us, abs=0.001)
    assert found["position"] == "above" and found["off"] == pytest.approx(2, rel=1e-5)


def test_shares_are_by_kind_and_the_worst_are_farthest_outside():
    times = ((BAND.low_us + BAND.high_us) / 2, 2 * BAND.high_us, BAND.low_us / 4)
    found = recordings.accuracy([*map(judged, times), judged(9, name="own::x")])
    # of three products one is inside, one above by 2, one below by 4
    assert found.shares().loc["gemm"].tolist() == pytest.approx([3, 1 / 3, 1 / 3, 1 / 3])
    assert found.shares().loc["all", "operators"] == 3 and found.uncosted == 1
    worst = found.worst(1).iloc[0]
    assert (worst["position"], worst["off"]) == ("below", pytest.approx(4, rel=1e-4))
    assert "gemm" in repr(found) and "not costed: 1" in repr(found)


def test_the_kernels_of_one_operator_on_a_gpu_are_one_time_under_the_datasheet_of_the_card():
    second = event("kernel", "splitKreduce", 75, 10, device=0, stream=7, correlation=2)
    launch = event("cuda_runtime", "cudaLaunchKernel", 16, 5, correlation=2, **{"External id": 1})
    recording = judged(trace=from_events([*gpu_step(1, 0, 40), launch, second]), kind="cuda", card="Tesla T4")
    found = recordings.accuracy(recording).operators.iloc[0]
    assert (found["operator"], found["measured_us"], found["dtype"]) == ("aten::mm", 50, "float16")
    # 49152 / 2 bytes at 320 GB/s are 0.0768 µs, more than 524288 FLOPs at 65 TFLOP/s
    assert found["limit_us"] == pytest.approx(0.0768) and recording.hardware.name == "T4"


def test_only_a_copy_beside_a_product_is_taken_for_its_addend():
    names = (
        ("Memcpy DtoD (Device -> Device)", "memcpy"),
        ("splitKreduce_kernel", "kernel"),
        ("ampere_gemm", "kernel"),
    )
    assert [recordings._copies(*name) for name in names] == [True, False, False]


# ---------------------------------------------------------------------------------------------- a made-up GPU

GPU = {
    "name": "Tesla T4",
    "compute_capability": [7, 5],
    "sm": 40,
    "memory_bytes": 16 << 30,
    "l2_bytes": 4 << 20,
}


class OnTheCpu(TorchFunctionMode):
    """What is asked of "cuda" is made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        return function(*args, **kwargs | {"device": "cpu"} if kwargs.get("device") == "cuda" else kwargs)


@pytest.fixture
def made_up_gpu(monkeypatch):
    """A T4 whose steps run on the CPU and whose trace is written by hand."""

    def traced(step, path, *, label, device):
        step()
        stamp = recordings._as_read(measure._stamp("cuda", 2, label))
        written(Path(path), [*gpu_step(1, 0, 40), *gpu_step(2, 100, 40)], stamp)

    def bench(step, *, device, seconds, flush_l2=False):
        return Timing(50.0, 48.0, 55.0, 9, not flush_l2, "Tesla T4", "cuda", 1, 1, "by hand")

    monkeypatch.setattr(measure, "device", lambda: "cuda")
    monkeypatch.setattr(measure, "cuda_problem", lambda: None)
    monkeypatch.setattr(measure, "_gpu", lambda: GPU)
    monkeypatch.setattr(measure, "record", traced)
    monkeypatch.setattr(measure, "bench", bench)
    monkeypatch.setattr(
        measure, "draw", lambda step, device, seconds: Draw(energy_j=0.5, power_w=70.0, calls=3)
    )
    monkeypatch.setattr(
        measure, "calibrate", lambda kind, seconds: replace(CEILINGS, name="Tesla T4", kind=kind)
    )
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)


@needs_no_gpu
def test_on_a_gpu_times_with_a_flushed_l2_energy_and_power_are_kept(made_up_gpu, tmp_path):
    wanted = [w for w in recordings.workloads().values() if w.name in ("matmul_add_small", "attention_flash")]
    assert {w.config.dtype for w in wanted} == {"float16"}
    said = [(c, False) for c in ("flash", "efficient")]
    choice = types.SimpleNamespace(
        candidates=[types.SimpleNamespace(backend=b, could_run=r, reason="sm75") for b, r in said]
    )
    with OnTheCpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings.sdpa, "sdpa_choice", lambda q, k, v, is_causal: choice)
        recorded, left = recordings.record(tmp_path / "t4", wanted, seconds=QUICK)
    assert recorded.status == "recorded" and not recorded.flushed.warm and recorded.draw.power_w == 70.0
    assert (left.status, left.reason) == ("left out", "flash cannot run it: sm75")
    assert recordings.problems(tmp_path / "t4") == []
    assert recordings.load("matmul_add_small", "t4", tmp_path).hardware == hardware.find("T4")


@needs_no_gpu
def test_a_made_up_gpu_gives_its_name_to_the_folder(made_up_gpu):
    assert recordings.machine_name() == "tesla-t4"


# ------------------------------------------------------------------------------------------------------- draw


class Nvml:
    """pynvml with a card that draws 200 J between two questions and does not tell its temperature."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVMLError = KeyError

    def __init__(self):
        self.joules = 0

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != "GPU-a1":
            raise KeyError(f"no card {uuid}")
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        self.joules += 200
        return 1000 * self.joules

    def nvmlDeviceGetPowerUsage(self, handle):
        return 300_000

    def nvmlDeviceGetClockInfo(self, handle, which):
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetTemperature(self, handle, which):
        raise KeyError("not supported")


@pytest.fixture
def card(monkeypatch):
    """A CUDA card with a UUID, as far as `draw` asks."""
    monkeypatch.setattr(measure, "_kind", lambda asked: "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = types.SimpleNamespace(uuid="a1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return properties


def test_energy_of_a_call_is_what_the_counter_of_the_card_moved_by(card, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    calls = []
    drawn = measure.draw(lambda: calls.append(1), seconds=0.02)
    assert drawn.calls == len(calls) > 1 and drawn.energy_j == 200 / drawn.calls
    # 200 J in 0.02 s or more are 10 kW at most: the mean over the run, and not the 300 W of the reading
    assert 0 < drawn.power_w <= 200 / 0.02 and drawn.power_w != 300
    assert (drawn.sm_clock_mhz, drawn.memory_clock_mhz, drawn.temperature_c) == (1980, 3201, None)
    assert (drawn.source, drawn.missing) == ("NVML", None)


def test_without_nvml_the_command_is_asked_and_tells_no_energy(card, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    asked = []

    def run(command, **options):
        asked.append(command)
        return types.SimpleNamespace(stdout="71.3, 1590, [N/A], 45\n")

    monkeypatch.setattr(measure.subprocess, "run", run)
    drawn = measure.draw(lambda: None, seconds=0.01)
    assert (drawn.power_w, drawn.sm_clock_mhz, drawn.memory_clock_mhz, drawn.temperature_c) == (
        71.3,
        1590,
        None,
        45,
    )
    assert (
        drawn.energy_j is None
        and "nvidia-ml-py" in drawn.missing
        and asked[0][:3] == ["nvidia-smi", "-i", "GPU-a1"]
    )


def test_a_card_that_cannot_be_asked_runs_nothing_and_says_why(card, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.setattr(
        measure.subprocess, "run", lambda *a, **k: (_ for _ in ()).throw(FileNotFoundError("no nvidia-smi"))
    )
    card.uuid = "another"
    drawn = measure.draw(pytest.fail, seconds=0.01)
    assert (
        drawn.energy_j is None and "no card GPU-another" in drawn.missing and "no nvidia-smi" in drawn.missing
    )
    card.uuid = None
    assert "UUID" in measure.draw(pytest.fail, seconds=0.01).missing


def test_a_cpu_counter_that_began_again_is_read_on(tmp_path):
    for name, energy, most in (
        ("intel-rapl:0", 900_000, 1_000_000),
        ("intel-rapl:1", 0, 5),
        ("intel-rapl:0:0", 7, 9),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(str(energy))
        (tmp_path / name / "max_energy_range_uj").write_text(str(most))
    meter = measure._Rapl.find(tmp_path)
    before = meter.energy_j()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100000")
    # two packages, the part of one left out; from 0.9 J over 1 J to 0.1 J are 0.2 J
    assert len(before) == 2 and meter.spent_j(before, meter.energy_j()) == pytest.approx(0.2)
    assert measure._Rapl.find(tmp_path / "nowhere") is None


# ------------------------------------------------------------------------------------------- the command line


def run(capsys, *arguments):
    code = command_line.main([str(a) for a in arguments])
    return code, *capsys.readouterr()


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(recordings, "_SECONDS", {"cuda": QUICK, "cpu": QUICK})


@needs_no_gpu
def test_record_writes_to_a_folder_named_after_the_machine_and_check_finds_it_whole(
    capsys, tmp_path, monkeypatch, at_once
):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "record", "--only", "linear_one_row,decode_cudnn", "--minutes", 5)
    folder = Path("recordings", recordings.machine_name())
    assert code == 0 and "2/2" in err and "linear_one_row: recorded, " in out
    assert "decode_cudnn: left out, a CPU has no cudnn backend" in out
    assert out.splitlines()[-1] == f"{folder}: 1 recorded, 1 left out"
    code, out, _ = run(capsys, "record", "--check", folder)
    assert code == 0 and out.startswith(f"{folder}: whole; 1 of 2 workloads recorded on ")


def test_check_says_what_the_minutes_left_out_and_how_to_go_on(capsys, made):
    list(recordings.record(made, [SMALL, eager("third", MatmulAdd(4))], minutes=1e-9, **ON_THE_CPU))
    code, out, _ = run(capsys, "record", "--check", made)
    first, second = out.splitlines()
    assert code == 0 and first.startswith(f"{made}: whole; 2 of 3 workloads recorded on ")
    again = f"python -m tutorial_lib record --out {made}"
    assert second == f"left out when the minutes were over: 1; to go on: {again}"


@needs_no_gpu
def test_check_of_an_interrupted_recording_fails_and_says_how_to_go_on(
    capsys, tmp_path, monkeypatch, at_once
):
    entry, calls = recordings._entry, iter(range(9))

    def interrupted(*arguments):
        if next(calls):
            raise KeyboardInterrupt
        return entry(*arguments)

    monkeypatch.setattr(recordings, "_entry", interrupted)
    asked = ("--only", "linear_one_row,gemm_32", "--out", tmp_path)
    assert run(capsys, "record", *asked)[0] == 1
    code, out, err = run(capsys, "record", "--check", tmp_path)
    assert code == 1 and "lacks 1 of 2 planned workloads (gemm_32)" in out and "1 problem" in err
    again = f"python -m tutorial_lib record --out {tmp_path} --only linear_one_row,gemm_32"
    assert out.endswith(f"to go on: {again}\n")
    monkeypatch.setattr(recordings, "_entry", entry)
    assert run(capsys, "record", *asked)[0] == run(capsys, "record", "--check", tmp_path)[0] == 0


def test_check_lists_every_problem_and_fails(capsys, made):
    (made / "small.json.gz").unlink()
    (made / "more").write_text("")
    code, out, err = run(capsys, "record", "--check", made)
    assert code != 0 and len(out.splitlines()) == 2 and err.endswith(f"{made}: 2 problems, as listed\n")


@pytest.mark.parametrize(
    "wrong, said",
    [
        (["--only", "nothing"], "--only nothing: no such workload; known: matmul_add_small"),
        (["--only", "linear_small", "--minutes", "0"], "--minutes is a positive number, got 0"),
        (["--only", "linear_small", "--out", "file"], "--out file: no folder can be there (File exists)"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, tmp_path, monkeypatch, wrong, said):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    code, _, err = run(capsys, "record", *wrong)
    assert code != 0 and said in err and len([line for line in err.splitlines() if said in line]) == 1


def test_an_interruption_says_how_to_go_on(capsys, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(recordings, "record", interrupted)
    code, _, err = run(capsys, "record", "--out", tmp_path)
    assert code != 0 and f"interrupted; the same command goes on from {tmp_path}" in err
