"""Reading a trace: layouts of five years, damage that is mended and noted, damage that is an error."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from tutorial_lib.trace import Device, TraceError, by_hand, from_events, read_trace

MM = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 1,
    "tid": 1,
    "ts": 100.5,
    "dur": 2.25,
    "args": {},
}


def text_of(*events, **top_level):
    return json.dumps({**top_level, "traceEvents": list(events)})


def read(folder, text, name="trace.json"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


def complaint(folder, text):
    with pytest.raises(TraceError) as caught:
        read(folder, text)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'trace.json'}: ") and "\n" not in message
    return message.removeprefix(f"{folder / 'trace.json'}: ")


# --------------------------------------------------------------------------------- what a file says


def test_events_come_in_time_order_from_the_first_one():
    trace = from_events(
        [{**MM, "name": "later", "ts": 1005.125, "dur": 1}, {**MM, "name": "first", "ts": 1000}]
    )
    assert list(trace.events["name"]) == ["first", "later"]
    assert list(trace.events["start_us"]) == [0.0, 5.125]  # 1005.125 - 1000
    assert list(trace.events["duration_us"]) == [2.25, 1.0]


def test_of_two_events_that_start_together_the_longer_one_is_first():
    trace = from_events([{**MM, "name": "inner", "dur": 3}, {**MM, "name": "outer", "dur": 4}])
    assert list(trace.events["name"]) == ["outer", "inner"]


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("cpu_op", "operator"), ("Operator", "operator"), ("user_annotation", "annotation"),
        ("Runtime", "runtime"), ("cuda_runtime", "runtime"), ("cuda_driver", "driver"),
        ("kernel", "kernel"), ("Kernel", "kernel"),
        ("gpu_memcpy", "memcpy"), ("Memcpy", "memcpy"), ("gpu_memset", "memset"), ("Memset", "memset"),
        ("gpu_user_annotation", "gpu_annotation"), ("python_function", "python"), ("overhead", "overhead"),
        ("cuda_sync", "sync"), ("collective_comm", "other"), (None, "other"),
    ],
)  # fmt: skip
def test_every_category_since_2021_has_a_kind(category, kind):
    assert list(from_events([{**MM, "cat": category}]).events["kind"]) == [kind]


def test_steps_and_optimizers_of_2021_are_annotations():
    names = ["ProfilerStep#5", "Optimizer.step#SGD.step", "aten::add"]
    trace = from_events([{**MM, "cat": "Operator", "name": name} for name in names])
    assert list(trace.events["kind"]) == ["annotation", "annotation", "operator"]


def test_only_events_with_a_duration_are_rows():
    rows = [
        MM,
        {**MM, "ph": "i"},
        {"ph": "s", "id": 1, "ts": 3, "cat": "ac2g"},
        {"ph": "M", "name": "process_name"},
    ]
    assert len(from_events(rows).events) == 1


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    assert len(read(tmp_path, json.dumps([MM, MM])).events) == 2


def test_gzip_is_known_by_its_first_bytes_and_not_by_its_name(tmp_path):
    assert len(read(tmp_path, gzip.compress(text_of(MM).encode()), "trace.json").events) == 1
    assert len(read(tmp_path, text_of(MM), "trace.json.gz").events) == 1


def test_ids_may_be_numbers_text_null_or_missing():
    ids = [{"correlation": 7}, {"correlation": "8"}, {"correlation": None}, {}, {"correlation": "none"}]
    trace = from_events([{**MM, "args": args} for args in ids])
    assert trace.events["correlation"].tolist()[:2] == [7, 8]
    assert list(trace.events["correlation"].isna()) == [False, False, True, True, True]


def test_the_external_id_is_read_in_both_spellings():
    kernel = {**MM, "cat": "kernel"}
    trace = from_events([{**kernel, "args": {"External id": 3}}, {**kernel, "args": {"external id": 4}}])
    assert trace.events["external_id"].tolist() == [3, 4]


def test_a_gpu_event_without_device_or_stream_takes_them_from_its_pid_and_tid():
    trace = from_events([{**MM, "cat": "Kernel", "pid": 1, "tid": "stream 7"}])
    assert trace.events[["device", "stream"]].iloc[0].tolist() == [1, 7]


def test_inputs_and_launch_sizes_are_tuples_and_none_where_not_recorded():
    args = {"Input Dims": [[8, 4], [[2], [3]], []], "Input type": ["float", "TensorList", "Scalar"]}
    trace = from_events([{**MM, "args": args}, {**MM, "cat": "kernel", "args": {"grid": [4, 1, 1]}}])
    operator, kernel = trace.events.iloc[0], trace.events.iloc[1]
    assert operator["shapes"] == ((8, 4), ((2,), (3,)), ()) and operator["dtypes"][1] == "TensorList"
    assert operator["strides"] is None and kernel["shapes"] is None and kernel["grid"] == (4, 1, 1)


def test_times_since_1970_with_decimals_keep_their_nanoseconds(tmp_path):
    # torch 2.3 wrote such times; as doubles they would be 1/4 µs apart
    text = text_of({**MM, "ts": "A"}, {**MM, "ts": "B"}).replace('"A"', "1711000000000000.123")
    trace = read(tmp_path, text.replace('"B"', "1711000000000001.456"))
    assert list(trace.events["start_us"]) == [0.0, 1.333]  # 1.456 - 0.123


def test_whole_microseconds_since_1970_are_exact():
    trace = from_events([{**MM, "ts": 1623142623460111}, {**MM, "ts": 1623142623460112}])
    assert list(trace.events["start_us"]) == [0.0, 1.0]


def test_a_device_is_what_the_file_tells_of_it():
    gpu = {
        "id": 0,
        "name": "NVIDIA A100",
        "computeMajor": 8,
        "computeMinor": 0,
        "numSms": 108,
        "totalGlobalMem": 42,
    }
    trace = from_events([MM], deviceProperties=[gpu])
    assert trace.devices == (Device(0, "NVIDIA A100", (8, 0), 108, 42),) and trace.device == "NVIDIA A100"
    assert from_events([MM], computeProperties=[gpu]).devices == trace.devices
    assert from_events([MM], deviceProperties=[]).devices == () and from_events([MM]).device is None


def test_the_recorded_device_and_versions_win_over_the_profilers_own():
    recorded = {"device": {"name": "a CPU"}, "versions": {"torch": "2.13.0", "cuda": None}}
    trace = from_events(
        [MM], tutorial_lib=recorded, deviceProperties=[{"name": "a GPU"}], cuda_driver_version=12090
    )
    assert trace.device == "a CPU"
    assert trace.versions == {"torch": "2.13.0", "cuda_driver": "12.9"}


@pytest.mark.parametrize(
    ("key", "number", "name", "version"),
    [
        ("cuda_driver_version", 13000, "cuda_driver", "13.0"),
        ("cuda_runtime_version", 12040, "cuda_runtime", "12.4"),
        ("cupti_version", 22, "cupti", "22"),
        ("cupti_version", 130001, "cupti", "13.0.1"),
        ("hip_runtime_version", 60443483, "hip_runtime", "6.4.43483"),
    ],
)
def test_version_numbers_are_written_with_dots(key, number, name, version):
    assert from_events([MM], **{key: number}).versions == {name: version}


def test_other_top_level_entries_are_metadata_wherever_they_stand(tmp_path):
    text = '{"a": {"traceEvents": 1}, "traceEvents": [' + json.dumps(MM) + ', {}], "b": {}, "c": [1]}'
    assert read(tmp_path, text).metadata == {"a": {"traceEvents": 1}, "b": {}, "c": [1]}


# --------------------------------------------------------------------------------- mended and noted


@pytest.mark.parametrize("word", ["NaN", "inf", "-inf", "Infinity", "-Infinity", "nan"])
def test_numbers_that_are_not_finite_are_read_as_missing_and_noted(tmp_path, word):
    text = text_of({**MM, "name": "f<inf, NaN>", "args": {"memory bandwidth (GB/s)": "?", "correlation": 5}})
    trace = read(tmp_path, text.replace('"?"', word))
    assert trace.events["name"][0] == "f<inf, NaN>" and trace.events["correlation"][0] == 5
    assert trace.notes == ("1 value is NaN or infinite; read as missing",)


@pytest.mark.parametrize("duration", ["-1", "null", "NaN"])
def test_an_event_that_did_not_end_lasts_0_us_and_is_noted(tmp_path, duration):
    trace = read(tmp_path, text_of(MM, {**MM, "dur": "?"}).replace('"?"', duration))
    assert trace.events["duration_us"].sum() == 2.25  # 2.25 + 0
    assert "1 event has no valid duration" in trace.notes[-1]


def test_an_event_without_a_time_is_left_out_and_noted():
    trace = from_events([MM, {**MM, "ts": None}, {**MM, "ts": "?"}])
    assert len(trace.events) == 1
    assert [note.split(";")[0] for note in trace.notes] == [
        "1 entry is no event (the first has index 2)", "1 event has no start time",
    ]  # fmt: skip


def test_a_time_of_zero_among_times_of_weeks_is_no_time():
    weeks = 2 * 7 * 24 * 3600 * 1e6
    trace = from_events([{**MM, "ts": 0, "dur": 0}, {**MM, "ts": weeks}, {**MM, "ts": weeks + 8}])
    assert list(trace.events["start_us"]) == [0.0, 8.0] and trace.notes == (
        "1 event has no start time; left out",
    )


def test_control_characters_and_single_backslashes_in_names_are_mended(tmp_path):
    text = text_of({**MM, "name": "one"}, {**MM, "name": "two"})
    trace = read(tmp_path, text.replace('"one"', '"a\x01b"').replace('"two"', '"C:\\Users\\x"'))
    assert sorted(trace.events["name"]) == ["C:\\Users\\x", "a\ufffdb"]
    assert trace.notes[0].startswith("2 texts have characters that JSON forbids")


def test_bytes_that_are_not_utf8_are_replaced_and_their_place_is_told(tmp_path):
    text = text_of({**MM, "name": "?"}).encode()
    trace = read(tmp_path, text.replace(b'"?"', b'"kernel\xff"'))
    assert trace.events["name"][0] == "kernel\ufffd"
    assert f"the first at byte {text.index(b'?') + 6}" in trace.notes[0]


def test_half_of_a_surrogate_pair_is_replaced_and_a_whole_one_is_kept(tmp_path):
    trace = read(tmp_path, text_of({**MM, "name": "?"}).replace("?", "\\ud800 \\ud83d\\ude00"))
    assert trace.events["name"][0] == "\ufffd \U0001f600"


def test_numbers_written_as_text_are_numbers():
    assert from_events([{**MM, "ts": "3.5", "dur": "1.5"}]).events["duration_us"][0] == 1.5


def test_an_event_with_senseless_arguments_is_read_without_them():
    trace = from_events([MM, {**MM, "args": {"stream": [1, 2]}}, {**MM, "args": "x"}])
    assert len(trace.events) == 3 and trace.events["stream"].isna().all()
    assert trace.notes[0].startswith("2 events have arguments of a wrong type (the first has index 1)")


def test_a_trace_without_gpu_events_says_so():
    assert not from_events([MM]).has_gpu_events
    assert from_events([{**MM, "cat": "gpu_memcpy"}]).has_gpu_events


# ------------------------------------------------------------------------------- errors of one line


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere\.json: no such file; check the path"):
        read_trace(tmp_path / "nowhere.json")
    with pytest.raises(TraceError, match=f"{tmp_path}: is a directory"):
        read_trace(tmp_path)


@pytest.mark.parametrize("data", [b"", b" \n", gzip.compress(b"")])
def test_an_empty_file_is_called_empty(tmp_path, data):
    assert complaint(tmp_path, data) == "the file is empty; the export did not finish, so record again"


def test_cut_gzip_data_is_an_error_that_counts_what_there_is(tmp_path):
    data = gzip.compress(text_of(*[MM] * 50).encode())
    assert complaint(tmp_path, data[:-9]).startswith(f"the gzip data is cut off after {len(data) - 9} bytes")


def test_damaged_gzip_data_is_an_error(tmp_path):
    data = bytearray(gzip.compress(text_of(*[MM] * 50).encode()))
    data[20:40] = bytes(20)
    assert "the gzip data is" in complaint(tmp_path, bytes(data))


@pytest.mark.parametrize("end", [300, 5_000, 5_200])
def test_json_that_is_cut_short_is_an_error_with_its_place(tmp_path, end):
    text = text_of(*[MM] * 50)
    assert (
        complaint(tmp_path, text[:end])
        == f"the JSON is cut off at byte {end:,}; copy the whole file, or record again"
    )


def test_broken_json_is_an_error_with_byte_and_line(tmp_path):
    text = text_of(MM, MM).replace("}, {", "}\n {")
    at = text.index("\n {") + 2  # the second event begins where a comma should be
    assert complaint(tmp_path, text).startswith(f"the JSON is broken at byte {at}, line 2")


@pytest.mark.parametrize("text", ["hello", "\x7fELF...", "<html>"])
def test_what_is_not_json_is_called_so(tmp_path, text):
    assert complaint(tmp_path, text).startswith("is not JSON")


@pytest.mark.parametrize("text", ["{}", "12", '"text"', '{"traceEvents": {}}', "[1, 2, 3]", "[" * 50_000])
def test_json_that_is_no_trace_is_called_so(tmp_path, text):
    assert complaint(tmp_path, text).startswith("is JSON but no trace")


@pytest.mark.parametrize("events", [[], [{"ph": "M", "name": "process_name"}], [{**MM, "cat": "Trace"}]])
def test_a_trace_that_recorded_nothing_is_an_error_that_names_the_schedule(tmp_path, events):
    assert "holds no events" in complaint(tmp_path, text_of(*events)) and "prof.step()" in complaint(
        tmp_path, text_of()
    )


def test_a_trace_in_which_no_event_has_a_time_is_an_error(tmp_path):
    assert complaint(tmp_path, text_of({**MM, "ts": None})).startswith("none of its events has a start time")


# -------------------------------------------------------------------------------------- the package


def test_the_trace_drawn_by_hand_says_that_no_device_ran_it():
    trace = by_hand()
    assert trace.metadata["tutorial_lib"]["drawn_by_hand"] is True and trace.device is None
    assert trace.notes == () and trace.has_gpu_events


def test_reading_traces_imports_neither_torch_nor_pandas_at_first():
    code = (
        "import sys, tutorial_lib.trace; print([m for m in ('torch', 'pandas', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------- odd on purpose


@pytest.mark.parametrize("time", ["1e308", "-1e19", "9.3e15", '"inf"', '"nan"'])
@pytest.mark.filterwarnings("error")  # numpy warns of a cast that wraps around
def test_a_time_that_no_clock_shows_is_missing_and_said_to_be(tmp_path, time):
    odd = json.dumps({**MM, "ts": "@"}).replace('"@"', time)
    trace = read(tmp_path, f'{{"traceEvents": [{json.dumps(MM)}, {odd}]}}')
    assert trace.events["start_us"].tolist() == [0.0] and "1 event has no start time" in trace.notes[0]
    odd = json.dumps({**MM, "dur": "@"}).replace('"@"', time)
    trace = read(tmp_path, f'{{"traceEvents": [{odd}]}}')
    assert trace.events["duration_us"].tolist() == [0.0] and "1 event has no valid duration" in trace.notes[0]


def test_digits_of_a_time_that_no_clock_shows_are_not_read(tmp_path):
    # beside a time since 1970 with a fraction, which makes the reader look at digits
    text = text_of({**MM, "ts": 1717171717171717.25}, {**MM, "ts": "@"}).replace('"@"', "9" * 30 + ".5")
    assert len(read(tmp_path, text).events) == 1


def test_shapes_nested_without_end_are_one_line(tmp_path):
    nested = "[" * 700 + "]" * 700
    text = text_of({**MM, "args": {"Input Dims": "@"}}).replace('"@"', nested)
    assert "nested too deeply" in complaint(tmp_path, text)


def test_what_follows_the_gzip_data_is_noted_unless_it_pads(tmp_path):
    whole = gzip.compress(text_of(MM).encode())
    assert read(tmp_path, whole + b"\0" * 512).notes == ()
    assert read(tmp_path, whole + b"garbage").notes == ("7 bytes after the gzip data; left out",)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device here")
def test_a_device_that_never_ends_is_no_file():
    with pytest.raises(TraceError, match="/dev/zero: cannot be opened .a device, not a file"):
        read_trace("/dev/zero")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_read_to_its_end_and_one_without_a_writer_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="is empty"):
        read_trace(tmp_path / "pipe")
    out, into = os.pipe()
    os.write(into, text_of(MM).encode())
    os.close(into)
    assert len(read_trace(f"/dev/fd/{out}").events) == 1
    os.close(out)


def test_neither_a_device_nor_a_name_floods_or_steers_a_terminal(tmp_path):
    stamp = {"device": {"name": "\x1b[31mred" + "x" * 10_000}}
    trace = read(tmp_path, text_of({**MM, "name": "n" * 10_000, "dur": -1}, tutorial_lib=stamp))
    assert "\x1b" not in repr(trace) and len(repr(trace)) < 400 and len(trace.notes[0]) < 400
