"""What layers cost: argument positions against torch's schemas, FLOPs against its counter, bytes by hand."""

import itertools
import math

import pytest

from tutorial_lib import cost, cost_layers

BF16, FLOAT, LONG, BOOL = "c10::BFloat16", "float", "long int", "bool"
SCALAR, LIST = "Scalar", "ScalarList"


def work_of(name, *arguments):
    """The work of a call: each argument is (shape, dtype), None for none given, or the text of a value."""
    tensors = [a if isinstance(a, tuple) else ((), "" if a is None else SCALAR) for a in arguments]
    values = [a if isinstance(a, str) else "" for a in arguments]
    shapes, dtypes = zip(*tensors, strict=True)
    return cost.operator(f"aten::{name}", shapes, dtypes, concrete=values)


def f(*shape):
    return shape, FLOAT


def moved(name, *arguments):
    return work_of(name, *arguments).bytes_moved


# ----------------------------------------------------------------------------------------------- convolutions


@pytest.mark.parametrize("name", cost_layers._CONVOLUTIONS)
def test_a_convolutions_arguments_stand_where_torch_has_them(name):
    torch = pytest.importorskip("torch")
    operator = getattr(torch.ops.aten, name)
    named = [a.name for a in getattr(operator, operator.overloads()[0])._schema.arguments]
    places = cost_layers._CONVOLUTIONS[name]
    for what in ("stride", "padding", "dilation", "groups", "bias", "output_padding"):
        place = getattr(places, what)
        assert place is None or named[place] == what
        assert (place is None) == (what not in named) or what == "output_padding"
    assert places.addend is None or named[places.addend] == "z"
    assert (places.transposed is None) == ("transposed" in named)
    assert places.transposed is not None or named[cost_layers._FLAG] == "transposed"


def test_a_convolution_contracts_the_channels_of_its_group_and_the_kernel():
    # (9 + 2·1 - 2·(3 - 1) - 1) // 2 + 1 = 4 each way; 2·8·4·4 = 256 outputs of 2·(2·3·3) FLOPs: groups of 2
    work = work_of(
        "convolution",
        f(2, 4, 9, 9),
        f(8, 2, 3, 3),
        f(8),
        "[2, 2]",
        "[1, 1]",
        "[2, 2]",
        "False",
        "[0, 0]",
        "2",
    )
    assert (work.kind, work.flops, work.vector_flops) == ("gemm", 256 * 36, 256)
    assert work.bytes_moved == 4 * (2 * 4 * 81 + 8 * 2 * 9 + 8 + 256)


def test_a_depthwise_convolution_has_one_channel_in_a_group():
    # (8 - 3) // 1 + 1 = 6 each way, 2·4·36 = 288 outputs of 2·9 FLOPs
    work = work_of(
        "_conv_depthwise2d", f(2, 4, 8, 8), f(4, 1, 3, 3), "[3, 3]", None, "[1, 1]", "[0, 0]", "[1, 1]"
    )
    assert (work.flops, work.bytes_moved) == (288 * 18, 4 * (512 + 36 + 288))


def test_a_transposed_convolution_spreads_each_input_over_a_kernel():
    # (3 - 1)·2 - 2·1 + (3 - 1) + 1 + 1 = 6 each way, 3·2 = 6 channels; 2·4·9 inputs, spread over 3·9 each
    arguments = f(2, 4, 3, 3), f(4, 3, 3, 3), "[1, 1]", "[1, 1]", "[2, 2]", "[1, 1]", "2"
    work = work_of("cudnn_convolution_transpose", *arguments)
    assert (work.flops, work.bytes_moved) == (2 * 72 * 27, 4 * (72 + 108 + 2 * 6 * 36))
    same = work_of("convolution", f(2, 4, 3, 3), f(4, 3, 3, 3), None, "[2]", "[1]", "[1]", "True", "[1]", "2")
    assert same.cost == work.cost


def test_an_addend_beside_the_bias_is_read_as_well():
    # 2·4·2·2 = 32 outputs; z has as many, the bias 4
    arguments = f(2, 3, 2, 2), f(4, 3, 1, 1), f(2, 4, 2, 2), "1", f(4), "[1]", "[0]", "[1]", "1"
    work = work_of("cudnn_convolution_add_relu", *arguments)
    assert (work.bytes_moved, work.vector_flops) == (4 * (24 + 12 + 32 + 4 + 32), 2 * 32)


@pytest.mark.parametrize(
    ("mask", "products", "elements"),
    [
        # gradient 2·6·36 = 432, input 2·4·64 = 512, weight 6·4·9 = 216, bias 6
        ("[True, True, True]", 2, 432 + (216 + 512) + (512 + 216) + 6),
        ("[False, True, False]", 1, 432 + 512 + 216),
        ("[True, False, False]", 1, 432 + 216 + 512),
        ("[False, False, True]", 0, 432 + 6),
    ],
)
def test_a_gradient_of_input_or_weight_costs_what_the_forward_pass_did(mask, products, elements):
    settings = "[6]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"
    work = work_of("convolution_backward", f(2, 6, 6, 6), f(2, 4, 8, 8), f(6, 4, 3, 3), *settings, mask)
    assert (work.flops, work.bytes_moved) == (products * 432 * 2 * 36, 4 * elements)


@pytest.mark.parametrize(
    "arguments",
    [
        (f(2, 3, 8, 8), f(6, 3, 3, 3), None, "", "[1]", "[1]", "False", "[0]", "1"),  # which stride?
        (f(2, 3, 8, 8), f(6, 3, 3, 3), None, "[1]", "[1]", "[1]", "", "[0]", "1"),  # transposed?
        (f(2, 3, 8, 8), f(6, 3, 3, 3), None, "[1]", "[1]", "[1]", "False", "[0]", "2"),  # 3 is not 2·3
        (
            f(2, 3, 8, 8),
            f(6, 3, 3, 3),
            None,
            "[1]",
            "[1]",
            "[1]",
            "True",
            "[0]",
            "1",
        ),  # 6 channels in, x has 3
        (f(3, 8, 8), f(6, 3, 3, 3), None, "[1]", "[1]", "[1]", "False", "[0]", "1"),  # no batch
    ],
)
def test_a_convolution_that_was_not_recorded_whole_or_does_not_fit_has_no_cost(arguments):
    assert work_of("convolution", *arguments) is None


def test_a_convolution_that_stands_still_or_finds_no_room_has_no_cost():
    shapes, dtypes = [[1, 2, 4, 4], [3, 2, 3, 3], [], [], [], [], []], [FLOAT, FLOAT, *[SCALAR] * 5]
    for stride, padding in (("[0, 0]", "[0, 0]"), ("[1, 1]", "[-9, -9]")):
        values = ["", "", "", stride, padding, "[1, 1]", "1"]
        assert cost.operator("aten::conv2d", shapes, dtypes, concrete=values) is None


def test_gradients_have_no_cost_where_it_was_not_recorded_which_are_wanted():
    three = f(2, 6, 6, 6), f(2, 4, 8, 8), f(6, 4, 3, 3)
    settings = "[6]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"
    assert work_of("convolution_backward", *three, *settings, "") is None
    assert work_of("native_batch_norm_backward", *[f(2, 4)] * 2, *[f(4)] * 5, "True", "1e-5", "") is None
    # torch had these before it recorded values: the size of the gradient they write is one of them
    assert work_of("cudnn_convolution_backward_input", "[2, 4, 8, 8]", f(2, 6, 6, 6), f(6, 4, 3, 3)) is None


def _found(function, *inputs):
    """FLOPs of what a call dispatches by its rules, and by torch's counter."""
    dispatch = pytest.importorskip("tutorial_lib.dispatch")
    from torch.utils.flop_counter import FlopCounterMode

    rows = dispatch.operators(function, *inputs)
    rules = [
        cost.operator(r.operator, r.shapes, r.dtypes, strides=r.strides, concrete=r.concrete)
        for r in rows.itertuples()
    ]
    with FlopCounterMode(display=False) as counter:
        function(*inputs)
    return sum(work.flops for work in rules if work), counter.get_total_flops()


LAYERS = {
    "1-D": lambda nn: (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 10)),
    "strided": lambda nn: (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 9)),
    "dilated": lambda nn: (nn.Conv2d(4, 6, 3, dilation=2), (2, 4, 9, 9)),
    "3-D": lambda nn: (nn.Conv3d(2, 3, 2, bias=False), (2, 2, 5, 5, 5)),
    "transposed": lambda nn: (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5, 5)),
    "transposed in 1-D": lambda nn: (nn.ConvTranspose1d(4, 6, 3), (2, 4, 5)),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_flops_of_convolutions_equal_the_counter(layer, backward):
    torch = pytest.importorskip("torch")
    module, shape = layer(torch.nn)
    x = torch.randn(shape, requires_grad=True)
    ours, torchs = _found(
        (lambda m, x: m(x).sum().backward()) if backward else (lambda m, x: m(x)), module, x
    )
    assert ours == torchs > 0


@pytest.mark.parametrize(("groups", "channels"), [(2, 4), (4, 1)])
def test_of_groups_the_counter_counts_the_weights_gradient_too_often(groups, channels):
    torch = pytest.importorskip("torch")
    module = torch.nn.Conv2d(4, 4, 3, groups=groups, bias=False)
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    # 2·4·6·6 = 288 outputs of 2·(4 / groups)·9 FLOPs: forward, for dx, for dw, which it counts ungrouped
    once = 288 * 18 * 4 // groups
    assert _found(lambda m, x: m(x), module, x) == (once, once)
    ours, torchs = _found(lambda m, x: m(x).sum().backward(), module, x)
    assert (ours, torchs) == (3 * once, (2 + groups) * once)


# ------------------------------------------------------------ what goes in and comes out of torch's operators


def _layers(torch):
    """Name, arguments, whether tensors among them are written as well, and positions that are not read."""
    x, gx = torch.randn(2, 6, 8, 8), torch.randn(2, 6, 8, 8)
    c, one = torch.randn(6), [1, 1]
    statistics = [torch.randn(6), torch.rand(6)]
    pooled, indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2])
    cubes, cube_indices = torch.ops.aten.max_pool3d_with_indices(x, [2, 2, 2])
    adaptive, adaptive_indices = torch.ops.aten.adaptive_max_pool2d(x, [3, 3])
    mean, deviation = torch.randn(2, 3), torch.rand(2, 3)
    yield "convolution", (x, torch.randn(4, 3, 3, 3), torch.randn(4), [2, 1], one, one, False, [0, 0], 2), ()
    yield "convolution", (x, torch.randn(6, 2, 3, 3), None, [2, 2], one, one, True, one, 3), ()
    yield "_slow_conv2d_forward", (x, torch.randn(4, 6, 3, 3), [3, 3], c[:4], one, one), ()
    yield "native_batch_norm", (x, c, c, *statistics, True, 0.1, 1e-5), (), (3, 4)
    yield "native_batch_norm", (x, None, None, None, None, True, 0.1, 1e-5), ()
    yield "native_batch_norm", (x, c, c, *statistics, False, 0.1, 1e-5), ()
    yield "_native_batch_norm_legit", (x, c, c, *statistics, True, 0.1, 1e-5), (), (3, 4)
    yield "_native_batch_norm_legit", (x, c, c, True, 0.1, 1e-5), ()
    yield "_native_batch_norm_legit_no_training", (x, c, c, *statistics, 0.1, 1e-5), ()
    backward = (gx, x, c, *statistics, *statistics)
    yield "native_batch_norm_backward", (*backward, True, 1e-5, [True] * 3), (3, 4)
    yield "native_batch_norm_backward", (*backward, False, 1e-5, [True, False, True]), (5, 6)
    yield "native_group_norm", (x, c, c, 2, 6, 64, 3, 1e-5), ()
    yield "native_group_norm_backward", (gx, x, mean, deviation, c, 2, 6, 64, 3, [True] * 3), ()
    yield "max_pool2d_with_indices", (x, [3, 3], [2, 2], one, one, True), ()
    yield "max_pool2d_with_indices", (x[0], [3, 2], [], [1, 0], one, False), ()
    yield "max_pool3d_with_indices", (x, [2, 2, 2]), ()
    yield "avg_pool2d", (x, [3, 3], [3, 3], one, True), ()
    yield "avg_pool3d", (x, [2, 2, 2]), ()
    yield "_adaptive_avg_pool2d", (x, [3, 5]), ()
    yield "_adaptive_avg_pool3d", (x, [2, 3, 5]), ()
    yield "adaptive_max_pool2d", (x, [3, 5]), ()
    yield "adaptive_max_pool3d", (x, [2, 3, 5]), ()
    pools = [2, 2], [2, 2], [0, 0], one, False
    yield "max_pool2d_with_indices_backward", (pooled, x, *pools, indices), (1,)
    cubed = [2] * 3, [2] * 3, [0] * 3, [1] * 3, False
    yield "max_pool3d_with_indices_backward", (cubes, x, *cubed, cube_indices), (1,)
    yield "avg_pool2d_backward", (pooled, x, [2, 2], [2, 2], [0, 0], False, True, None), (1,)
    yield "avg_pool3d_backward", (cubes, x, [2] * 3, [2] * 3, [0] * 3, False, True, None), (1,)
    yield "_adaptive_avg_pool2d_backward", (adaptive, x), (1,)
    yield "adaptive_max_pool2d_backward", (adaptive, x, adaptive_indices), (1,)
    for kind, dimensions in (("nearest", 2), ("bilinear", 2), ("bicubic", 2)):
        corners = () if kind == "nearest" else (False,)
        yield f"upsample_{kind}{dimensions}d", (x, [12, 20], *corners), ()
        yield f"upsample_{kind}{dimensions}d_backward", (gx, [8, 8], [2, 6, 3, 5], *corners), ()
    yield "upsample_linear1d", (x[0], [12], False), ()
    yield "upsample_trilinear3d", (x[None], [8, 12, 9], False), ()
    yield "reflection_pad2d", (x, [1, 2, 3, 4]), ()
    yield "replication_pad1d", (x[0], [1, 2]), ()
    yield "reflection_pad2d_backward", (torch.randn(2, 6, 15, 11), x, [1, 2, 3, 4]), (1,)
    yield "_fused_rms_norm_backward", (gx, x, [8], torch.rand(2, 6, 8, 1), torch.randn(8), [True, True]), ()


def _filled(operator, arguments):
    """With the defaults of what was left out, as a trace has them."""
    named = getattr(operator, operator.overloads()[0])._schema.arguments
    left_out = named[len(arguments) :] if len(named) > len(arguments) else []
    return (*arguments, *(a.default_value for a in left_out if a.has_default_value()))


def _described(torch, value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), str(value.dtype).removeprefix("torch."), tuple(value.stride()), ""
    return (), "" if value is None else SCALAR, (), "" if value is None else str(value)


def test_bytes_are_those_of_the_tensors_that_go_in_and_come_out():
    torch = pytest.importorskip("torch")
    seen = set()
    for name, arguments, unread, *written in _layers(torch):
        operator = getattr(torch.ops.aten, name)
        described = (_described(torch, a) for a in _filled(operator, arguments))
        shapes, dtypes, strides, values = zip(*described, strict=True)
        work = cost.operator(f"aten::{name}", shapes, dtypes, strides=strides, concrete=values)
        read = [a for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and i not in unread]
        changed = [arguments[i] for places in written for i in places]
        if name == "_fused_rms_norm_backward":  # runs on a GPU only; it returns gradients of input and weight
            results = [arguments[1], arguments[4]]
        else:
            results = operator(*arguments)
        results = [r for r in (results if isinstance(results, (list, tuple)) else [results]) if r is not None]
        want = sum(t.numel() * t.element_size() for t in (*read, *changed, *results))
        assert (name, work.bytes_moved) == (name, want)
        seen.add(name)
    assert len(seen) > 30


# ------------------------------------------------------------------------------------------------------ norms


def test_normalisations_cost_the_same_by_row_and_by_name():
    shapes, dtypes = [[5, 10, 20], [], [20], [20], []], [BF16, "ScalarList", BF16, BF16, SCALAR]
    work = cost.operator("aten::native_layer_norm", shapes, dtypes)
    assert work.cost == cost.layer_norm(50, 20, "bf16").cost
    # no weight: the row length comes from normalized_shape; one statistic, 1/rms
    args = ("aten::_fused_rms_norm", [[4, 8], [], [], []], [BF16, "ScalarList", "", SCALAR])
    assert cost.operator(*args, concrete=["", "[8]", "", ""]).bytes_moved == 2 * 32 * 2 + 4 * 4
    assert cost.operator(*args) is None


def test_a_norm_over_no_sizes_has_no_cost():
    shapes, dtypes = [[2, 3], [], [3], [3], []], [FLOAT, SCALAR, FLOAT, FLOAT, SCALAR]
    for text in ("[None]", "[[3]]", "[-3]"):
        values = ["", text, "", "", "1e-05"]
        assert cost.operator("aten::native_layer_norm", shapes, dtypes, concrete=values) is None


def test_batch_norm_is_known_under_the_names_of_each_library():
    # x 2·6·4 = 48 elements, weight and bias 6 each; running statistics read and written, the batch's written
    arguments = f(2, 6, 4), *[f(6)] * 4, "True", "0.1", "1e-05"
    for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"):
        work = work_of(name, *arguments)
        assert (work.kind, work.bytes_moved) == ("reduction", 4 * (2 * 48 + 12 + 2 * 12 + 12))
        assert (work.rows, work.row_step, work.vector_flops) == (6, 1, 8 * 48)
    assert moved("_batch_norm_with_update", *arguments[:5], "0.1", "1e-05") == 4 * (2 * 48 + 12 + 24 + 12)
    # rows and columns: the rows of a channel lie 6 apart
    assert work_of("native_batch_norm", f(2, 6), *arguments[1:]).row_step == 6


def test_batch_norm_in_inference_reduces_nothing():
    work = work_of("cudnn_batch_norm", f(2, 6, 4), *[f(6)] * 4, "False", "0.1", "1e-05")
    assert (work.kind, work.bytes_moved, work.vector_flops) == ("pointwise", 4 * (2 * 48 + 24), 4 * 48)


def test_batch_norm_of_an_unknown_mode_has_no_cost():
    assert work_of("cudnn_batch_norm", f(2, 6, 4), *[f(6)] * 4, "", "0.1", "1e-05") is None


def test_half_precision_keeps_its_statistics_in_float32():
    # x in and out 48·2 bytes each, weight and bias 6·4 each in float32; mean and 1/σ of the batch 6·4 each
    arguments = ((2, 6, 4), BF16), f(6), f(6), None, None, "True", "0.1", "1e-05"
    assert moved("native_batch_norm", *arguments) == 2 * 96 + 2 * 24 + 2 * 24
    # a group norm's, of 2·3 groups, are in float32 beside weights in float32, and as x is beside none
    group = "2", "6", "4", "3", "1e-05"
    assert moved("native_group_norm", ((2, 6, 4), BF16), f(6), f(6), *group) == 192 + 48 + 2 * 6 * 4
    assert moved("native_group_norm", ((2, 6, 4), BF16), None, None, *group) == 192 + 2 * 6 * 2


def test_cudnns_backward_takes_the_input_first_and_has_no_mask():
    # reads x and g 48 each, weight, mean, 1/σ 6 each; writes dx 48, dw and db 6 each; 9 operations an element
    arguments = f(2, 6, 4), f(2, 6, 4), *[f(6)] * 5, "1e-05", ((0,), "unsigned char")
    work = work_of("cudnn_batch_norm_backward", *arguments)
    assert (work.bytes_moved, work.vector_flops, work.rows) == (4 * (96 + 18 + 48 + 12), 9 * 48, 6)
    same = work_of("miopen_batch_norm_backward", *arguments[:-1])
    assert same.cost == work.cost


def test_synchronised_batch_norm_costs_its_parts():
    x, c = f(2, 6, 4), f(6)
    assert moved("batch_norm_stats", x, "1e-05") == 4 * (48 + 12)
    assert moved("batch_norm_elemt", x, c, c, c, c, "1e-05") == 4 * (48 + 24 + 48)
    # sums of g and g·x̂, and the gradients of weight and bias, for each channel
    flags = "True", "True", "True"
    assert moved("batch_norm_backward_reduce", x, x, c, c, c, *flags) == 4 * (96 + 12 + 12 + 12)
    assert work_of("batch_norm_backward_reduce", x, x, c, c, c, "True", "", "True") is None
    assert moved("batch_norm_backward_elemt", x, x, c, c, c, c, c, ((1,), "int")) == 4 * (96 + 30 + 48) + 4


def test_norms_by_group_and_by_row_say_how_many_rows_there_are():
    assert work_of("native_group_norm", f(2, 6, 4), f(6), f(6), "2", "6", "4", "3", "1e-05").rows == 2 * 3
    backward = f(5, 8), f(5, 8), "[8]", f(5, 1), f(8)
    assert work_of("_fused_rms_norm_backward", *backward, "[True, False]").rows == 5
    # g, x 40 each, 1/rms 5, weight 8, dx 40
    assert moved("_fused_rms_norm_backward", *backward, "[True, False]") == 4 * (80 + 5 + 8 + 40)


# --------------------------------------------------------------------------------- pooling, resizing, padding


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation", "up"),
    [
        (11, 3, 2, 1, 1, False),
        (11, 3, 2, 1, 1, True),
        (5, 2, 3, 1, 1, True),
        (12, 3, 2, 0, 2, True),
        (4, 4, 4, 0, 1, False),
    ],
)
def test_as_many_windows_are_counted_as_torch_has(size, kernel, stride, padding, dilation, up):
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 1, size, size + 1)
    windows = [[kernel] * 2, [stride] * 2, [padding] * 2, [dilation] * 2]
    outputs = torch.ops.aten.max_pool2d_with_indices(x, *windows, up)[0].numel()
    work = work_of("max_pool2d_with_indices", f(*x.shape), *map(str, windows), str(up))
    assert work.vector_flops == outputs * kernel**2  # a comparison for each element of a window


def test_a_pool_reads_no_more_than_its_windows_hold_and_writes_an_index_of_8_bytes():
    # windows of 1 every 2: 2·3·4·4 = 96 of the 384 elements are read
    one = "[1, 1]", "[2, 2]", "[0, 0]", "[1, 1]", "False"
    assert moved("max_pool2d_with_indices", f(2, 3, 8, 8), *one) == 96 * (4 + 4 + 8)
    # without a stride it is the kernel's: 2·3·4·4 outputs of all 384
    two = "[2, 2]", "[]", "[0, 0]", "[1, 1]", "False"
    assert moved("max_pool2d_with_indices", f(2, 3, 8, 8), *two) == 384 * 4 + 96 * 12
    assert work_of("max_pool2d_with_indices", f(2, 3, 8, 8), "[2, 2]", "", "[0]", "[1]", "") is None


def test_resizing_reads_only_what_its_outputs_are_made_of():
    # 16·16 to 4·4: nearest takes one input for each of 2·3·16 outputs, bilinear 4 (of 1536 in all)
    x = f(2, 3, 16, 16)
    assert moved("upsample_nearest2d", x, "[4, 4]", "", "") == 96 * 8
    work = work_of("upsample_bilinear2d", x, "[4, 4]", "False", "", "")
    assert (work.bytes_moved, work.vector_flops) == (4 * (4 * 96 + 96), 96 * 7)  # 4 products, 3 sums
    assert work_of("upsample_nearest2d", x, "", "[2.0, 2.0]") is None  # a scale alone: the caller's argument


@pytest.mark.parametrize("name", ["max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward"])
def test_an_unpooling_without_its_indices_has_no_cost(name):
    assert work_of(name, f(2, 3, 4, 4), f(2, 3, 8, 8)) is None


# ----------------------------------------------------------------------------------------------------- losses


def test_a_loss_reads_one_log_probability_for_each_target():
    # 32 targets of 8 bytes, 32 log-probabilities; the loss and the sum of the weights are a number each
    x, target = f(32, 1000), ((32,), LONG)
    assert moved("nll_loss_forward", x, target, None, "1", "-100") == 256 + 4 * (32 + 2)
    assert moved("nll_loss_forward", x, target, None, "0", "-100") == 256 + 4 * (32 + 32 + 1)
    # 10 classes: no more than 10 weights
    assert moved("nll_loss_forward", f(32, 10), target, f(10), "1", "-100") == 256 + 4 * (32 + 10 + 2)
    assert work_of("nll_loss_forward", x, target, None, "", "-100") is None  # one loss, or 32?


def test_the_gradient_of_a_loss_is_one_element_for_each_target():
    # the other 999 of each row were zeroed by an operator of its own
    x, target = f(32, 1000), ((32,), LONG)
    assert moved("nll_loss_backward", f(), x, target, None, "1", "-100", f()) == 256 + 4 * 32
    assert moved("nll_loss_backward", f(32), x, target, None, "0", "-100", f()) == 256 + 4 * (32 + 32)


# ------------------------------------------------------------------------------------- cells and optimizers


def test_a_cell_reads_its_gates_and_writes_state_and_workspace():
    # batch 2, hidden 3: gates of input and state 24 each, c 6, biases 12 each; h and c 6 each, workspace 24
    gates, state, bias = f(2, 12), f(2, 3), f(12)
    work = work_of("_thnn_fused_lstm_cell", gates, gates, state, bias, bias)
    assert work.bytes_moved == 4 * (48 + 6 + 24 + 12 + 24)
    assert work.vector_flops == 6 * (
        18 + 4 * 3
    )  # the two products and both biases are three additions a gate
    assert work.flops == 0 and work_of("_thnn_fused_lstm_cell", f(2, 9), f(2, 9), state, None, None) is None
    # a GRU has three gates, one state, and keeps five values: 2·3·5
    assert moved("_thnn_fused_gru_cell", f(2, 9), f(2, 9), state, None, None) == 4 * (36 + 6 + 6 + 30)


def test_the_backward_pass_of_a_cell_writes_the_gradients_of_its_gates():
    # reads dh and dc 6 each, both c 6 each, workspace 24; writes 24 of gates and dc 6
    state, workspace = f(2, 3), f(2, 12)
    name = "_thnn_fused_lstm_cell_backward_impl"
    assert moved(name, state, state, state, state, workspace, "True") == 4 * (24 + 24 + 30)
    assert moved(name, state, None, state, state, workspace, "True") == 4 * (18 + 24 + 30)
    # a GRU's reads dh 6 and the workspace 30; writes 18 for each product and dh 6
    assert moved("_thnn_fused_gru_cell_backward", state, f(2, 15), "True") == 4 * (36 + 18 + 18 + 6)


def test_a_layer_of_lstm_cells_multiplies_each_step_with_both_weights():
    # 5 steps of batch 2 from 3 inputs to 4 hidden units: weights [16, 3], [16, 4], biases of 16, states of 8
    bias, state = f(16), f(1, 2, 4)
    given = f(5, 2, 3), f(16, 3), f(16, 4), bias, bias, state, state, "False"
    work = work_of("mkldnn_rnn_layer", *given, "[]", "2", "4")
    assert (work.kind, work.flops) == ("gemm", 2 * 10 * (48 + 64))
    # 40 units in all: 18 operations each, and for each of 4 gates the products and both biases are added
    assert work.vector_flops == 40 * (18 + 4 * 3)
    # x 30, weights 48 + 64, biases 32, states 16; written are 40 outputs and both states
    assert work.bytes_moved == 4 * (30 + 112 + 32 + 16 + 40 + 16)
    assert work_of("mkldnn_rnn_layer", *given, "[2, 2, 2, 2, 2]", "2", "4") is None  # a packed sequence


def _lists(*dtypes, shapes=((4, 5), (7,))):
    """As many lists of tensors of these shapes (20 + 7 = 27 elements), one for each dtype."""
    return [list(shapes)] * len(dtypes), [[dtype] * len(shapes) for dtype in dtypes]


def test_a_fused_optimizer_goes_over_its_lists_once():
    shapes, dtypes = _lists(*[FLOAT] * 4)
    steps = [[], []], [FLOAT, FLOAT]
    rest = ["0.001", "0.9", "0.999", "0.01", "1e-08", "False", "False", "", ""]
    shapes, dtypes = [*shapes, [], steps[0]], [*dtypes, "TensorList", steps[1]]
    values = [""] * 6 + rest
    shapes, dtypes = shapes + [[]] * 9, dtypes + [SCALAR] * 7 + ["", ""]
    work = cost.operator("aten::_fused_adamw_", shapes, dtypes, concrete=values)
    # parameters, gradients and both moments are read, all but gradients written: 7 passes over 27 elements
    assert (work.kind, work.bytes_moved, work.vector_flops) == ("pointwise", 7 * 27 * 4, 16 * 27)
    assert work.shapes == ((27,),) * 4
    shapes[4], dtypes[4] = shapes[0], dtypes[0]  # amsgrad keeps the largest second moments as well
    assert cost.operator("aten::_fused_adamw_", shapes, dtypes, concrete=values).bytes_moved == 9 * 27 * 4


@pytest.mark.parametrize(("first", "passes"), [("False", 5), ("True", 4)])
def test_sgd_does_not_read_the_momentum_that_it_makes(first, passes):
    shapes, dtypes = _lists(*[FLOAT] * 3)
    values = ["", "", "", "0.0", "0.9", "0.1", "0.0", "False", "False", first, "", ""]
    shapes, dtypes = shapes + [[]] * 9, dtypes + [SCALAR] * 7 + ["", ""]
    assert cost.operator("aten::_fused_sgd_", shapes, dtypes, concrete=values).bytes_moved == passes * 27 * 4


def test_a_trace_without_the_dtypes_of_lists_leaves_optimizers_without_a_cost():
    shapes, _ = _lists(*[FLOAT] * 3)
    args = [*shapes, *[[]] * 9], ["TensorList"] * 3 + [SCALAR] * 7 + ["", ""]
    assert cost.operator("aten::_fused_sgd_", *args) is None


# ---------------------------------------------------------------------------------- what has no rule, and why


@pytest.mark.parametrize("name", ["_cudnn_rnn", "miopen_rnn", "fractional_max_pool2d"])
def test_layers_whose_time_follows_from_no_sum_have_no_rule(name):
    assert cost.operator(f"aten::{name}", [[5, 2, 3]], [FLOAT]) is None


def test_every_rule_survives_arguments_that_make_no_sense():
    odd = [
        None,
        ((), FLOAT),
        ((0,), FLOAT),
        ((2, 3), FLOAT),
        ((2, 3, 4, 4), LONG),
        "[]",
        "[0, 0]",
        "[-1]",
        "True",
        "9",
    ]
    huge = "9" * 400
    odd += [huge, f"[{huge}, {huge}]", f"[{huge}]", "[2, 2]", "nan", "[True, True, True]"]
    for name in (*cost_layers.RULES, *cost._RULES, *cost._POINTWISE, "_foreach_add_", "_foreach_norm"):
        for argument, first in itertools.product(odd, (((2, 3, 4, 4), FLOAT), None)):
            work = work_of(name, first or argument, *[argument] * 11)
            assert work is None or (
                work.bytes_moved >= 0 and work.flops >= 0 and math.isfinite(work.bytes_moved)
            )
