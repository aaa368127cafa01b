import pytest

from tutorial_lib import units


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (89.4, "89.4 µs"),
        (1955, "1.96 ms"),  # 1.955 to three digits
        (999.96, "1.00 ms"),  # rounding carries into the next unit
        (0.101, "101 ns"),
        (0.00001, "0.0100 ns"),  # below the smallest unit, still no exponent
        (12_345_678, "12.3 s"),
        (4e12, "4000000 s"),
        (0, "0 µs"),
    ],
)
def test_a_duration_carries_its_unit_and_three_digits(us, text):
    assert units.duration(us) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (70, 150, "70 – 150 µs"),
        (264.2, 1610, "0.264 – 1.61 ms"),
        (2, 1500, "2.00 µs – 1.50 ms"),  # one unit would write 0.002
        (0, 0.4, "0 – 400 ns"),
        (0, 0, "0 – 0 µs"),
    ],
)
def test_a_band_is_written_in_one_unit_where_both_edges_fit(low, high, text):
    assert units.band(low, high) == text


def test_prefixes_are_decimal():
    assert units.data(50_331_648) == "50.3 MB"  # 48 MiB
    assert units.data(512) == "512 B"
    assert units.data(0) == "0 B"
    assert units.work(2 * 8192 * 768 * 3072) == "38.65 GFLOP"
    assert units.compute_rate(312e12) == "312 TFLOP/s"
    assert units.bandwidth(2.039e12) == "2.04 TB/s"


def test_a_ratio_is_written_as_times():
    assert units.ratio(252 / 151) == "1.67×"
    assert units.ratio(0) == "0×"


@pytest.mark.parametrize("write", [units.duration, units.data, units.work, units.bandwidth, units.ratio])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_what_is_no_quantity_is_an_error(write, value):
    with pytest.raises(ValueError, match="finite and not negative"):
        write(value)


def test_a_band_does_not_run_backwards():
    with pytest.raises(ValueError, match="swap them"):
        units.band(2, 1)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("c10::BFloat16", "bfloat16"),
        ("c10::Half", "float16"),
        ("c10::Float8_e4m3fn", "float8_e4m3fn"),
        ("c10::complex<float>", "complex64"),
        ("float", "float32"),
        ("double", "float64"),
        ("long int", "int64"),
        ("unsigned char", "uint8"),
        ("bf16", "bfloat16"),
        ("TF32", "tfloat32"),
        ("torch.int8", "int8"),
    ],
)
def test_every_spelling_of_a_dtype_has_torchs_name(spelling, name):
    assert units.dtype_name(spelling) == name


def test_torch_dtypes_have_their_own_name_and_size():
    torch = pytest.importorskip("torch")
    for name in ("bfloat16", "float16", "float64", "int8", "bool", "complex64", "float8_e5m2"):
        dtype = getattr(torch, name)
        assert units.dtype_name(dtype) == name
        assert units.itemsize(dtype) == dtype.itemsize


def test_an_unknown_dtype_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown dtype 'quint3'.*bfloat16"):
        units.dtype_name("quint3")


@pytest.mark.parametrize(
    "text, plain",
    [("aten::mm", "aten::mm"), ("\x1b[31mred\x1b[0m", "red"), ("a\x00\u202eb\ud800", "ab"), ("Größe µs", "Größe µs")],
)
def test_plain_text_has_nothing_that_a_terminal_would_obey(text, plain):
    assert units.plain(text) == plain


@pytest.mark.parametrize("number", [10**400, 1.79e308, float("nan"), float("inf"), -1])
def test_a_number_that_cannot_be_scaled_is_a_plain_error(number):
    with pytest.raises(ValueError, match="finite and not negative"):
        units.duration(number)
