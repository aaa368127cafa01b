"""Reading a trace: layouts of five years, damage that is mended and noted, damage that is an error."""

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import replace

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


def test_limits_of_a_multiprocessor_are_read_under_both_vendors_names():
    nvidia = {"warpSize": 32, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536}
    trace = from_events([MM], deviceProperties=[{**nvidia, "sharedMemPerMultiprocessor": 167936}])
    assert trace.devices[0] == Device(None, None, None, None, None, 32, 2048, 65536, 167936)
    trace = from_events([MM], deviceProperties=[{"warpSize": 64, "maxSharedMemoryPerMultiProcessor": 65536}])
    assert trace.devices[0].warp_size == 64 and trace.devices[0].shared_memory_per_sm_bytes == 65536


def test_rank_and_world_size_are_those_of_the_file():
    trace = from_events([MM], distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8})
    assert (trace.rank, trace.world_size) == (3, 8)
    assert from_events([MM]).rank is None and from_events([MM], distributedInfo=[]).world_size is None


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


@pytest.mark.parametrize("odd", [b"\xff", b"\\ud800", b"\x01", b"C:\\Users"])
def test_texts_in_lists_are_mended_too(tmp_path, odd):  # found by benchmarks/fuzz_reader.py
    text = (
        text_of({**MM, "args": {"Input Dims": [[2]], "Input type": ["flo@at"]}}).encode().replace(b"@", odd)
    )
    trace = read(tmp_path, text)
    shown = odd.decode() if odd[:1] == b"C" else "\ufffd"
    assert trace.events["dtypes"][0] == (f"flo{shown}at",) and len(trace.notes) == 1
    assert trace.events["shapes"][0] == ((2,),)


def test_a_size_of_5000_digits_is_no_size(tmp_path):
    text = text_of({**MM, "args": {"Input Dims": [["@"]]}}).replace('"@"', "9" * 5000)
    assert read(tmp_path, text).events["shapes"][0] is None


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


# ------------------------------------------------------------------------------------- cut off


def test_of_json_that_is_cut_off_the_whole_events_are_read_and_the_rest_is_said_to_be_lost(tmp_path):
    one = len(json.dumps(MM))
    text = text_of(*[MM] * 50, schemaVersion=1)
    begin = text.index('{"ph"')
    for end, whole in (
        (begin + one, 1),
        (begin + one + 30, 1),
        (begin + 3 * (one + 2), 3),
        (len(text) - 4, 49),
    ):
        trace = read(tmp_path, text[:end])
        assert len(trace.events) == whole and trace.metadata == {"schemaVersion": 1}
        said = "entry" if whole == 1 else "entries"
        assert trace.notes == (
            f"{tmp_path / 'trace.json'}: the JSON is cut off at byte {end:,}; what is whole was read "
            f"({whole} {said} of traceEvents), the rest is lost; copy the whole file, or record again",
        )


def test_json_cut_off_at_any_byte_is_read_or_is_one_line(tmp_path):
    text = text_of(
        {**MM, "name": 'a "quoted\\" \n {[} name', "args": {"Input Dims": [[2], [{"a": [1]}]]}}, MM
    )
    text = '{"head": [1, {"a": 2}], ' + text[1:-1] + ', "tail": {"x": [1, 2]}, "end": 1}'
    counts = []
    for end in range(1, len(text)):
        try:
            counts.append(len(read(tmp_path, text[:end]).events))
        except TraceError as error:
            counts.append(0)
            assert "before its first event ends" in str(error) and "\n" not in str(error)
    assert counts == sorted(counts) and set(counts) == {0, 1, 2}


def test_of_a_file_cut_off_behind_its_events_whole_entries_are_kept(tmp_path):
    text = (
        text_of(MM)[:-1]
        + ', "traceName": "a", "deviceProperties": [{"id": 0, "name": "GPU"}], "other": [1, 2'
    )
    trace = read(tmp_path, text)
    assert trace.metadata == {"traceName": "a", "deviceProperties": [{"id": 0, "name": "GPU"}]}
    assert trace.device == "GPU" and "cut off" in trace.notes[0]


def test_of_gzip_data_that_is_cut_off_what_can_be_unpacked_is_read(tmp_path):
    names = [f"{number * 7919 % 10007} name {number}" for number in range(3000)]
    data = gzip.compress(text_of(*[{**MM, "name": name} for name in names]).encode())
    trace = read(tmp_path, data[: len(data) // 2], "trace.json.gz")
    assert list(trace.events["name"]) == names[: len(trace.events)] and 1000 < len(trace.events) < 2000
    assert trace.notes[0].startswith(
        f"{tmp_path}/trace.json.gz: the gzip data is cut off after {len(data) // 2:,}"
    )
    assert "the JSON is cut off at byte" in trace.notes[1]
    whole = read(tmp_path, data[:-9])  # all of the text, but not the checksum
    assert len(whole.events) == 3000 and len(whole.notes) == 1


@pytest.mark.parametrize("end", [3, 11])
def test_gzip_data_cut_off_before_its_text_is_an_error(tmp_path, end):
    assert "before its text begins; copy" in complaint(tmp_path, gzip.compress(text_of(MM).encode())[:end])


@pytest.mark.parametrize("end", [1, 20, 60])
def test_nothing_whole_is_an_error(tmp_path, end):
    expected = f"the JSON is cut off at byte {end}, before its first event ends; "
    expected += "copy the whole file, or record again"
    assert complaint(tmp_path, text_of(MM)[:end]) == expected


def test_zeros_that_a_crash_left_at_the_end_are_left_out(tmp_path):
    trace = read(tmp_path, text_of(MM, MM).encode()[:-40] + b"\0" * 4096)
    assert len(trace.events) == 1 and trace.notes[0].startswith(
        "4,096 zero bytes at the end of the text; left out"
    )


def test_a_cut_file_is_mended_as_well(tmp_path):
    text = text_of({**MM, "name": "C:@x", "dur": "?"}, MM).replace('"?"', "NaN").replace("@", "\\")
    trace = read(tmp_path, text[:-20])
    assert list(trace.events["name"]) == ["C:\\x"] and len(trace.notes) == 4  # cut, NaN, text, no duration


# ------------------------------------------------------------------------------- errors of one line


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere\.json: no such file; check the path"):
        read_trace(tmp_path / "nowhere.json")
    with pytest.raises(TraceError, match=f"{tmp_path}: is a directory"):
        read_trace(tmp_path)


@pytest.mark.parametrize("data", [b"", b" \n", gzip.compress(b"")])
def test_an_empty_file_is_called_empty(tmp_path, data):
    assert complaint(tmp_path, data) == "the file is empty; the export did not finish, so record again"


def test_damaged_gzip_data_is_an_error(tmp_path):
    data = bytearray(gzip.compress(text_of(*[MM] * 50).encode()))
    data[20:40] = bytes(20)
    assert "the gzip data is" in complaint(tmp_path, bytes(data))


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


# ------------------------------------------------------------------------- pieces, limits and progress


def many(count, **more):
    return [{**MM, "ts": 10 * number, "name": f"n{number % 7}", **more} for number in range(count)]


@pytest.mark.parametrize("between", [", ", ",\n  ", ",", " ,\n"])
def test_a_long_list_is_read_in_pieces_whatever_stands_between_its_events(tmp_path, between):
    rows = [json.dumps(row) for row in many(12_000, args={"External id": 5, "x": "}, {" * 5})]
    text = '{"traceEvents": [' + between.join(rows) + '], "after": [{"a": 1}, {"b": 2}]}'
    assert len(text) > 3 * 2**19  # several pieces
    trace = read(tmp_path, text)
    assert (
        len(trace.events) == 12_000 and trace.metadata == {"after": [{"a": 1}, {"b": 2}]} and not trace.notes
    )
    assert trace.events["start_us"].tolist() == [10.0 * number for number in range(12_000)]
    assert trace.events["external_id"].eq(5).all()


def test_events_that_hold_lists_of_objects_are_never_torn(tmp_path):
    nested = {"a": [{"b": number} for number in range(50)]}
    trace = read(tmp_path, text_of(*many(1_500, args=nested)))
    assert len(trace.events) == 1_500 and not trace.notes
    one = {"a": [{"b": number} for number in range(60_000)]}
    assert len(read(tmp_path, text_of(*many(2, args=one))).events) == 2


def test_oddities_are_counted_over_all_pieces(tmp_path):
    rows = many(12_000)
    rows[100]["dur"] = rows[11_900]["dur"] = "@"
    rows[11_000]["name"] = 3
    rows[11_950] = 7
    trace = read(tmp_path, text_of(*rows).replace('"@"', "NaN"))
    assert [note.split(";")[0] for note in trace.notes] == [
        "2 values are NaN or infinite",
        "1 entry is no event (the first has index 11,950)",
        "1 event has a name or id of a wrong type (the first has index 11,000)",
        "2 events have no valid duration (the first is 'n2'), as when the profiler stops before they end",
    ]
    assert "3" in set(trace.events["name"])


def test_a_file_above_the_limit_is_refused_and_the_limit_can_be_raised(tmp_path):
    text = text_of(*[MM] * 1000).encode()
    for data in (text, gzip.compress(text)):
        (tmp_path / "t").write_bytes(data)
        with pytest.raises(
            TraceError, match=r"holds more than 10,000 bytes of JSON, the limit; .*raise max_bytes"
        ):
            read_trace(tmp_path / "t", max_bytes=10_000)
        assert len(read_trace(tmp_path / "t", max_bytes=len(text)).events) == 1000


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    bomb = zlib.compressobj(9, wbits=31)
    data = bomb.compress(b"[") + b"".join(bomb.compress(b" " * 2**20) for _ in range(100)) + bomb.flush()
    (tmp_path / "bomb.gz").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(TraceError, match="holds more than 50,000,000 bytes"):
        read_trace(tmp_path / "bomb.gz", max_bytes=50_000_000)
    assert tracemalloc.get_traced_memory()[1] < 200e6
    tracemalloc.stop()


def test_a_bar_is_shown_only_when_asked_for_or_at_a_terminal(tmp_path, capsys):
    (tmp_path / "t.json").write_text(text_of(MM))
    read_trace(tmp_path / "t.json")
    assert capsys.readouterr() == ("", "")
    read_trace(tmp_path / "t.json", progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "reading" in err


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
    nested = "[" * 100_000 + "]" * 100_000  # far over any recursion limit that another package sets
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


def test_a_name_or_id_that_is_no_text_is_read_as_text(tmp_path):
    odd = [
        {**MM, "name": 5},
        {**MM, "name": ["a", {"b": 1}]},
        {**MM, "pid": 1.5},
        {**MM, "tid": True},
        {**MM, "cat": 7},
    ]
    trace = from_events([MM, *odd])
    assert set(trace.events["name"]) == {"aten::mm", "5", '["a",{"b":1}]'}
    assert trace.notes == (
        "5 events have names or ids of a wrong type (the first has index 1); read as text",
    )


@pytest.mark.parametrize("key", ["name", "pid", "tid", "ts", "dur", "cat", "args", "ph"])
@pytest.mark.parametrize(
    "value", ["9" * 5000, "1e999", "-" + "9" * 40, "[" * 60 + "]" * 60, "{}", "true", '"\\ud800"']
)
@pytest.mark.filterwarnings("error")
def test_a_value_that_no_torch_writes_costs_one_event_at_most(tmp_path, key, value):
    text = text_of(MM, {**MM, key: "@"}, MM).replace('"@"', value)
    assert len(read(tmp_path, text).events) in (2, 3)


def test_a_key_that_stands_twice_counts_once(tmp_path):
    event = json.dumps(MM)[:-1] + ', "name": "last", "args": {"correlation": 1, "correlation": 2}}'
    trace = read(tmp_path, f'{{"traceEvents": [{event}], "a": 1, "a": 2}}')
    assert list(trace.events["name"]) == ["last"] and trace.events["correlation"][0] == 2
    assert trace.metadata == {"a": 2}
    twice = read(tmp_path, f'{{"traceEvents": [{event}], "traceEvents": [{event}, {event}]}}')
    assert len(twice.events) == 1 and twice.notes == ('a second "traceEvents" list; left out',)


def test_the_words_of_the_format_may_stand_in_texts(tmp_path):
    odd = {**MM, "name": '"traceEvents": [', "args": {"x": "}, {", "y": ["]", "}"]}}
    text = json.dumps(
        {"about": {"traceEvents": [1]}, "say": '"traceEvents": [', "traceEvents": [odd, MM], "z": "]}"}
    )
    trace = read(tmp_path, text)
    assert (
        len(trace.events) == 2
        and trace.metadata["z"] == "]}"
        and trace.metadata["about"] == {"traceEvents": [1]}
    )


def test_a_number_of_5000_digits_beside_the_events_is_kept_as_text(tmp_path):
    assert read(tmp_path, text_of(MM, big="@").replace('"@"', "9" * 5000)).metadata["big"] == "9" * 5000


def test_a_quote_that_never_closes_takes_no_time_that_grows_with_its_square(tmp_path):
    # 2 million escaped quotes: a search that begins anew at each of them would not end today
    assert "cut off" in complaint(tmp_path, '{"traceEvents": [{"name": "' + '\\"' * 2_000_000)


# -------------------------------------------------------------------------------- numbers for values


def test_events_with_the_same_value_have_the_same_number():
    trace = from_events([MM, {**MM, "name": "aten::t"}, {**MM, "pid": "1"}])
    numbers, names = trace.numbered("name")
    assert [names[number] for number in numbers] == ["aten::mm", "aten::t", "aten::mm"]
    assert len(set(trace.numbered("pid")[0])) == 1  # 1 and "1" are the same text


def test_what_is_not_there_has_the_number_minus_one():
    args = {"Input Dims": [[2, 3]]}
    trace = from_events([MM, {**MM, "ts": 200, "args": args}])
    numbers, values = trace.numbered("shapes")
    assert numbers[0] == -1 and values[numbers[1]] == ((2, 3),)
    assert trace.has_shapes and not from_events([MM]).has_shapes


@pytest.mark.parametrize("odd", [[2, 2], {"a": 1}])
def test_a_trace_with_other_events_numbers_its_own(odd):
    args = {"Input Dims": [[2, 3], odd]}
    trace = from_events([{**MM, "ts": ts, "name": f"op {ts % 2}", "args": args} for ts in range(6)])
    half = replace(trace, events=trace.events.iloc[1::2])
    numbers, names = half.numbered("name")
    assert [names[number] for number in numbers] == ["op 1"] * 3
    numbers, shapes = half.numbered("shapes")
    assert [shapes[number] for number in numbers] == list(half.events["shapes"])


def test_kinds_are_asked_by_name():
    trace = from_events([MM, {**MM, "cat": "kernel", "ts": 200}, {**MM, "cat": "python_function", "ts": 300}])
    assert trace.of_kind("operator", "kernel").tolist() == [True, True, False]


@pytest.mark.parametrize("byte", ["\x00", "\x01", "\x02"])
@pytest.mark.parametrize("key", ["Input type", "Concrete Inputs"])
def test_control_characters_in_an_operators_lists_are_replaced_and_noted(tmp_path, byte, key):
    # zero and one part lists from each other while they are read: of a broken file they must not be left in a text
    names = [{**MM, "args": {"Input Dims": [[2]], key: [text], "Ev Idx": n}} for n, text in enumerate(("a?b", "c"))]
    trace = read(tmp_path, text_of(*names).replace("?", byte))
    column = {"Input type": "dtypes", "Concrete Inputs": "concrete"}[key]
    assert list(trace.events[column]) == [("a\ufffdb",), ("c",)] and list(trace.events["shapes"]) == [((2,),)] * 2
    assert trace.notes == ("1 text has characters that JSON forbids; replaced by \ufffd, single backslashes doubled",)
