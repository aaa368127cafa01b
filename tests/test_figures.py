import subprocess
import sys
from io import BytesIO
from types import SimpleNamespace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from tutorial_lib import cost, figures, hardware, predict, trace
from tutorial_lib.cited import cited
from tutorial_lib.kernel_names import decode

A100 = hardware.find("A100")
MATMUL = predict.predict([cost.matmul(4096, 4096, 4096, "bfloat16")], A100)


def bar(name, start, length, category="cpu_op", tid=1, **args):
    return {"name": name, "cat": category, "ts": start, "dur": length, "pid": 1, "tid": tid, "args": args}


def cpu_trace():
    """linear holds t and addmm, addmm holds copy_, all inside a step and an annotation of the same thread."""
    return trace.from_events(
        [
            bar("ProfilerStep#4", 0, 100, "user_annotation"),
            bar("forward", 5, 80, "user_annotation"),
            bar("aten::linear", 10, 60),
            bar("aten::t", 12, 4),
            bar("aten::addmm", 20, 40),
            bar("aten::copy_", 22, 10),
        ]
    )


def gpu_trace():
    """mm and, launched before its kernel has ended, add on stream 7; a memcpy on stream 9; a wait."""
    return trace.from_events(
        [
            bar("ProfilerStep#0", 0, 60, "user_annotation"),
            bar("aten::mm", 10, 10),
            bar("cudaLaunchKernel", 14, 4, "cuda_runtime", correlation=1),
            bar("aten::add", 22, 8),
            bar("cudaLaunchKernel", 24, 4, "cuda_runtime", correlation=2),
            bar("cudaMemcpyAsync", 32, 4, "cuda_runtime", correlation=3),
            bar("cudaDeviceSynchronize", 40, 15, "cuda_runtime", correlation=4),
            bar("sgemm", 30, 40, "kernel", tid=7, correlation=1, device=0, stream=7),
            bar("vectorized_add", 70, 10, "kernel", tid=7, correlation=2, device=0, stream=7),
            bar("Memcpy DtoH", 50, 30, "gpu_memcpy", tid=9, correlation=3, device=0, stream=9),
        ]
    )


def drawn(figure):
    """Bars and lines by the name they were drawn under: for bars the (start, end) of each."""
    found = {}
    for artist in figure.axes[0].collections:
        for path in artist.get_paths():
            x = path.vertices[:, 0]
            found.setdefault(artist.get_gid(), []).append((round(x.min(), 3), round(x.max(), 3)))
    return found


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def line(figure, gid):
    return next(line for line in figure.axes[0].lines if line.get_gid() == gid)


# --------------------------------------------------------------------------------------------------- timeline


def test_operators_are_nested_one_level_below_their_caller():
    lane = "CPU thread 1: operators, level"
    bars = drawn(figures.timeline(cpu_trace()))
    assert bars[f"{lane} 0, calls"] == [(10, 70)]  # linear
    assert bars[f"{lane} 1, calls"] == [(12, 16)] and bars[f"{lane} 1, works"] == [(20, 60)]  # t, addmm
    assert bars[f"{lane} 2, works"] == [(22, 32)]  # copy_


def test_annotations_are_brackets_and_not_bars():
    shown = figures.timeline(cpu_trace())
    brackets = [c for c in shown.axes[0].collections if "annotation" in c.get_gid()]
    assert len(brackets) == 2 and all(isinstance(bracket, LineCollection) for bracket in brackets)
    assert drawn(shown)["CPU thread 1: annotations, level 1, annotation"] == [(5, 85)]


def test_a_cpu_trace_has_cpu_lanes_only():
    titles = [text for text in texts(figures.timeline(cpu_trace())) if ": " in text]
    assert titles == ["CPU thread 1: annotations", "CPU thread 1: operators"]


def test_each_stream_has_a_lane_and_copies_look_different():
    bars = drawn(figures.timeline(gpu_trace()))
    assert bars["GPU 0: stream 7, level 0, kernel"] == [(30, 70), (70, 80)]
    assert bars["GPU 0: stream 9, level 0, copy"] == [(50, 80)]


def test_launches_are_told_from_other_calls():
    bars = drawn(figures.timeline(gpu_trace()))
    assert bars["CPU: runtime calls, level 0, launch"] == [(14, 18), (24, 28), (32, 36)]
    assert bars["CPU: runtime calls, level 0, runtime"] == [(40, 55)]


def test_a_line_joins_each_launch_to_its_work():
    # from the start of the call to the start of the work
    assert sorted(drawn(figures.timeline(gpu_trace()))["links"]) == [(14, 30), (24, 70), (32, 50)]


def test_kernels_at_the_same_time_do_not_cover_each_other():
    both = [bar(name, start, 10, "kernel", tid=7, device=0, stream=7) for name, start in (("a", 0), ("b", 5))]
    bars = drawn(figures.timeline(trace.from_events([*both, bar("aten::mm", 0, 20)])))
    assert bars["GPU 0: stream 7, level 0, kernel"] == [(0, 10)] and bars[
        "GPU 0: stream 7, level 1, kernel"
    ] == [(5, 15)]


def test_a_step_is_shown_with_the_gpu_work_it_launched():
    left, right = figures.timeline(gpu_trace(), step=0).axes[0].get_xlim()
    assert left < 0 and 80 < right < 82  # the step ends at 60, its last kernel at 80


def test_a_window_shows_what_reaches_into_it():
    shown = figures.timeline(cpu_trace(), window_us=(50, 65))
    assert shown.axes[0].get_xlim() == (50, 65)
    assert not any("level 2" in gid for gid in drawn(shown))  # copy_ ended at 32


def test_lanes_can_be_chosen():
    assert set(drawn(figures.timeline(gpu_trace(), lanes=("gpu",)))) == {
        "GPU 0: stream 7, level 0, kernel",
        "GPU 0: stream 9, level 0, copy",
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step": 9}, "no step 9"),
        ({"window_us": (5, 5)}, "earlier to later"),
        ({"lanes": ["cpu"]}, "lanes names 'cpu'"),
    ],
)
def test_a_timeline_of_what_is_not_there_is_an_error(wrong, message):
    with pytest.raises(ValueError, match=message):
        figures.timeline(cpu_trace(), **wrong)


def test_an_empty_window_says_so():
    assert "nothing was recorded in this window" in texts(figures.timeline(cpu_trace(), window_us=(500, 600)))


def test_a_dollar_in_a_name_is_a_dollar():
    shown = figures.timeline(trace.from_events([bar("my $x^2$ operator\x1b", 0, 1000)]))
    name = next(text for text in shown.axes[0].texts if "$" in text.get_text())
    assert name.get_text() == "my $x^2$ operator?" and not name.get_parse_math()


def test_long_names_are_cut_to_the_room_there_is():
    shown = figures.timeline(trace.from_events([bar("aten::" + "x" * 500, 0, 10), bar("aten::y", 20, 10)]))
    assert any(text.endswith("…") and len(text) < 60 for text in texts(shown))


# --------------------------------------------------------------------------------------------------- roofline


def test_a_roof_bends_at_the_ridge():
    # 312 TFLOP/s over 2039 GB/s: 153 FLOP/byte
    roof = line(figures.roofline(A100, MATMUL.items), "roof A100 80GB SXM bfloat16")
    assert roof.get_xdata()[1] == pytest.approx(153.0, rel=1e-3) and roof.get_ydata()[1] == 312e12
    assert "bfloat16: 312 TFLOP/s\nridge 153 FLOP/byte" in texts(figures.roofline(A100, MATMUL.items))


def test_an_item_stands_at_its_intensity_between_its_rates():
    # 2·4096³ FLOP over three matrices of 2·4096² bytes: 4096 / 3 FLOP/byte
    item = MATMUL.items[0]
    band = line(figures.roofline(A100, [item]), "band 1")
    assert list(band.get_xdata()) == pytest.approx([4096 / 3] * 2)
    assert list(band.get_ydata()) == pytest.approx(
        [2 * 4096**3 / us * 1e6 for us in (item.high_us, item.low_us)]
    )


def test_a_measured_time_is_a_point():
    # 2·4096³ FLOP in 580 µs: 237 TFLOP/s
    point = line(figures.roofline(A100, MATMUL.items, [580.0]), "measured 1")
    assert list(point.get_ydata()) == pytest.approx([236.96e12], rel=1e-4)


def test_there_is_a_roof_for_each_rate_in_use_and_each_card():
    items = predict.predict(
        [
            cost.matmul(64, 64, 64, "bfloat16"),
            cost.pointwise("aten::gelu", elements=64, dtype="bfloat16", reads=1),
        ],
        A100,
    ).items
    shown = figures.roofline([A100, hardware.find("H100")], items)
    roofs = [drawn.get_gid() for drawn in shown.axes[0].lines if str(drawn.get_gid()).startswith("roof")]
    assert roofs == [
        f"roof {card} {rate}" for card in ("A100 80GB SXM", "H100 SXM") for rate in ("bfloat16", "vector")
    ]


def test_a_copy_has_no_place_and_is_named():
    items = predict.predict([cost.matmul(64, 64, 64, "bfloat16"), cost.copy(64, "bfloat16")], A100).items
    key = [text.get_text() for text in figures.roofline(A100, items).legends[0].get_texts()]
    assert (
        key[1].startswith("1 aten::mm 64×64 64×64") and key[-1] == "no arithmetic, so not shown: aten::copy_"
    )


def test_measured_times_must_match_the_items():
    with pytest.raises(ValueError, match="2 times for 1 items"):
        figures.roofline(A100, MATMUL.items, [1.0, 2.0])


# ------------------------------------------------------------------------------------- predicted and measured


def test_band_limit_and_measurement_stand_where_they_belong():
    timing = SimpleNamespace(median_us=580.0, q1_us=570.0, q3_us=600.0)
    shown = figures.predicted_and_measured([("matmul", MATMUL, timing)])
    band = shown.axes[0].patches[0]
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((MATMUL.low_us, MATMUL.high_us))
    assert line(shown, "limit 0").get_xdata()[0] == pytest.approx(MATMUL.limit_us)
    assert list(line(shown, "measured 0").get_xdata()) == [580] and list(
        line(shown, "quartiles 0").get_xdata()
    ) == [570, 600]


def test_the_axis_is_logarithmic_only_where_times_are_far_apart():
    close = figures.predicted_and_measured([("a", predict.guess(time_us=(10, 20)), 100.0)])
    far = figures.predicted_and_measured([("a", predict.guess(time_us=(10, 20)), 400.0)])
    assert [shown.axes[0].get_xscale() for shown in (close, far)] == ["linear", "log"]
    assert "µs" in close.axes[0].get_xlabel() and "logarithmic" in far.axes[0].get_xlabel()


def test_a_cited_time_is_an_open_point_and_named_so():
    told = predict.predict(cost.matmul(8192, 768, 3072, "bfloat16"), A100)
    figure = figures.predicted_and_measured([("mine", told, 190.0), ("theirs", told, cited("C36"))])
    own, theirs = (next(a for a in figure.axes[0].lines if a.get_gid() == f"measured {n}") for n in (0, 1))
    assert list(own.get_xdata()) == list(theirs.get_xdata())  # both 0.19 ms
    assert (own.get_markerfacecolor() == "white", theirs.get_markerfacecolor() == "white") == (False, True)
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"measured", "cited"} <= set(key)


def test_a_kernel_that_may_skip_half_of_its_work_is_not_drawn_above_the_roof():
    work = cost.attention(8, 16, 1024, 1024, 64, "bfloat16", causal=True)
    (point,) = figures._points(predict.predict(work, A100).items, [None])
    # 2 products of 128·1024·1024·64·2 FLOPs, of which 1025/2048 are needed; 4 tensors of 128·1024·64·2 bytes
    assert point.intensity == pytest.approx(2 * 2 * 128 * 1024 * 1024 * 64 * 1025 / 2048 / (4 * 128 * 1024 * 64 * 2))
    assert point.high <= A100.rate("bfloat16")


def test_long_times_are_in_milliseconds():
    shown = figures.predicted_and_measured([("a", predict.guess(time_us=(20_000, 40_000)), None)])
    assert shown.axes[0].get_xlabel() == "time (ms)" and shown.axes[0].patches[0].get_x() == 20


def test_a_row_without_a_predicted_time_is_named():
    with pytest.raises(ValueError, match="the prediction of 'x' has no time"):
        figures.predicted_and_measured([("x", predict.guess(work_items=1), 1.0)])


# ----------------------------------------------------------------------------------------------- distribution


def test_median_and_mean_are_both_marked():
    # 10, 10, 10, 50: median 10, mean 20
    shown = figures.distribution([10, 10, 10, 50])
    assert list(shown.axes[0].lines[0].get_ydata()) == [10, 10, 10, 50]
    assert (
        texts(shown)[:2] == ["median\n10.0 µs", "mean\n20.0 µs"]
        and texts(shown)[2] == "time of one call (µs)"
    )


def test_no_samples_are_an_error():
    with pytest.raises(ValueError, match="samples_us is empty"):
        figures.distribution([])


# ----------------------------------------------------------------------------------------------- kernel names


def test_each_part_of_a_kernel_name_has_a_box_and_a_meaning():
    name = decode("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align8")
    shown = figures.kernel_name(name)
    assert len(shown.axes[0].patches) == len(name.parts)
    assert [" ".join(text.split()) for text in texts(shown)[0::2]] == [token for token, _ in name.parts]
    assert [" ".join(text.split()) for text in texts(shown)[1::2]] == [meaning for _, meaning in name.parts]


def test_a_long_token_is_broken_at_an_underscore():
    shown = figures.kernel_name(
        decode("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>()")
    )
    assert texts(shown)[0] == "vectorized_elementwise_\nkernel"


# ---------------------------------------------------------------------------------------------------- drawing


def test_figures_show_themselves():
    shown = figures.distribution([1.0, 2.0])
    image, size = shown._repr_png_()
    assert isinstance(shown, Figure) and image.startswith(b"\x89PNG") and size == {"width": 598}


def test_figures_load_no_pyplot():
    code = "import sys\nfrom tutorial_lib import figures\nfigures.distribution([1.0])._repr_png_()\n"
    code += "print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


FIGURES = {
    "a CPU timeline": lambda: figures.timeline(cpu_trace()),
    "a GPU timeline": lambda: figures.timeline(gpu_trace()),
    "the timeline of chapter 1": lambda: figures.timeline(trace.by_hand(), step=2),
    "a roofline": lambda: figures.roofline(A100, MATMUL.items, [580.0]),
    "two cards": lambda: figures.roofline([A100, hardware.find("H100")], MATMUL.items),
    "a card alone": lambda: figures.roofline(hardware.find("T4")),
    "bands": lambda: figures.predicted_and_measured([("matmul " * 30, MATMUL, 580.0)]),
    "samples": lambda: figures.distribution([900.0, 580.0, 590.0], what="a long name " * 20),
    "a kernel's name": lambda: figures.kernel_name(decode("ampere_bf16_s16816gemm_bf16_128x256_ldg8_nn")),
}


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_nothing_leaves_the_picture(make):
    shown = make()
    drawn_on = shown.get_tightbbox(FigureCanvasAgg(shown).get_renderer())  # inches
    assert drawn_on.x0 >= 0 and drawn_on.x1 <= shown.get_figwidth()
    assert drawn_on.y0 >= 0 and drawn_on.y1 <= shown.get_figheight()


def test_a_timeline_says_where_it_was_recorded_or_that_it_was_drawn():
    drawn = figures.timeline(trace.by_hand(), step=3)
    assert "drawn by hand, not measured" in [text.get_text() for text in drawn.axes[0].texts]
    events = [{"cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 9}]
    stamp = {"device": {"name": "a CPU"}, "versions": {"torch": "2.13.0"}}
    shown = figures.timeline(trace.from_events(events, tutorial_lib=stamp))
    assert "a CPU, torch 2.13.0" in [text.get_text() for text in shown.axes[0].texts]


# ----------------------------------------------------------------------------------------------- odd on purpose


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -1, "x", 10**400])
def test_what_is_no_time_is_named_and_not_drawn(time):
    for make in (
        lambda: figures.distribution([1.0, time]),
        lambda: figures.predicted_and_measured([("a", MATMUL, time)]),
        lambda: figures.roofline(A100, MATMUL.items, [time]),
    ):
        with pytest.raises(ValueError, match="which is no time in µs"):
            make()


def test_a_rate_at_no_time_is_an_error():
    with pytest.raises(ValueError, match="measured has 0"):
        figures.roofline(A100, MATMUL.items, [0])


def test_a_roofline_of_copies_alone_shows_the_card_and_names_them():
    shown = figures.roofline(A100, predict.predict([cost.copy(64, "float32")], A100).items)
    assert "aten::copy_" in shown.legends[0].get_texts()[-1].get_text()
    with pytest.raises(ValueError, match="hardware is empty"):
        figures.roofline([])


def test_a_prediction_of_nothing_still_has_a_row():
    assert figures.predicted_and_measured([("nothing", predict.predict([], A100), None)]).axes


@pytest.mark.parametrize("name", ["t", "ab", "a_", "__", "$x$"])
def test_a_short_kernel_name_is_not_lost(name):
    shown = figures.kernel_name(decode(name))
    assert name in [text.get_text() for text in shown.axes[0].texts]


@pytest.mark.filterwarnings("error")  # matplotlib warns of a character without a glyph
def test_a_long_name_or_thread_is_cut_and_control_characters_are_not_drawn():
    long = bar("\x1b[31m$" + "x" * 1_000_000, 0, 5, tid="\x1b\n" + "t" * 1_000_000)
    shown = figures.timeline(trace.from_events([long]))
    shown.savefig(BytesIO())
    assert max(len(text.get_text()) for text in shown.axes[0].texts) < 200


def test_a_timeline_that_nobody_could_scroll_is_refused():
    deep = trace.from_events([bar("a::b", n, 9000 - 2 * n) for n in range(1100)])
    with pytest.raises(ValueError, match="more than 1,000 rows"):
        figures.timeline(deep)
    at_once = trace.from_events([bar("name", 0, 10, "user_annotation") for _ in range(5000)])
    with pytest.raises(ValueError, match="more than 1,000 rows"):
        figures.timeline(at_once)


def test_one_lane_may_be_named_without_a_list():
    assert figures.timeline(gpu_trace(), lanes="gpu").axes
    with pytest.raises(ValueError, match="window_us"):
        figures.timeline(gpu_trace(), window_us=(0, float("inf")))


@pytest.mark.parametrize("stamp", ["text", None, 3, []])
def test_a_stamp_that_is_none_says_nothing(stamp):
    assert figures.timeline(trace.from_events([bar("aten::mm", 0, 5)], tutorial_lib=stamp)).axes
