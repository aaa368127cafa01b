import dataclasses

import pytest

from tutorial_lib import hardware
from tutorial_lib.hardware import CARDS, Hardware, UnknownHardware, find


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("A100", "A100 80GB SXM"),
        ("a100-80", "A100 80GB SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM"),
        ("NVIDIA A100-PG509-200", "A100 40GB SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("H100", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA PG509-210", "A100 80GB SXM"),
        ("Tesla V100-SXM2-16GB", "V100 16GB SXM"),
        ("Tesla V100-SXM2-32GB", "V100 32GB SXM"),
        ("NVIDIA GeForce RTX 3060", "RTX 3060"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
    ],
)
def test_a_card_is_found_by_the_names_people_and_drivers_use(spelling, name):
    assert find(spelling).name == name


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA RTX A4000", "NVIDIA L40S", "NVIDIA GB200", "AMD Radeon Graphics", "NVIDIA GeForce RTX 3060 Ti", "NVIDIA H100 NVL",
        "T4G", "A10", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "AMD Instinct MI325X", "NVIDIA GPU", "",
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
    ],
)  # fmt: skip
def test_a_card_with_a_similar_name_is_unknown(name):
    with pytest.raises(UnknownHardware, match="A100 80GB SXM.*calibrate"):
        find(name)


def test_every_card_finds_itself_and_names_its_source():
    for card in CARDS:
        assert find(card.name) is card
        assert ("NVIDIA" in card.source or "AMD" in card.source) and "launch_us" in card.source
        assert card.kind == "cuda" and not card.measured


def test_rates_are_dense():
    # printed: A100 312 | 624*, H100 1,979*, L4 242*, RTX 4090 165.2 | 330.4*; * with sparsity, twice dense
    assert find("A100").rate("bf16") == 312e12
    assert find("H100").rate("bfloat16") == 989.4e12
    assert find("RTX 4090").rate("float16") == 165.2e12
    assert find("L4").rate("float16") == 121e12


def test_each_step_down_in_width_doubles_the_tensor_core_rate():
    for name in ("A100", "H100", "H100 PCIe", "H200", "B200", "L4", "RTX 4090"):
        card = find(name)
        assert card.rate("float16") == pytest.approx(2 * card.rate("tfloat32"), rel=0.01)
        if card.compute_capability >= (8, 9):
            assert card.rate("float8_e5m2") == pytest.approx(2 * card.rate("bfloat16"), rel=0.01)


def test_float32_rates_follow_from_cores_and_clock():
    # FP32 lanes an SM · 2 FLOPs · boost clock (GHz), in TFLOP/s
    for name, lanes, ghz in [
        ("T4", 64, 1.59),
        ("A100", 64, 1.41),
        ("H100", 128, 1.98),
        ("RTX 4090", 128, 2.52),
        ("RTX 3060", 128, 1.777),
        ("V100", 64, 1.53),
        ("MI300X", 128, 2.1),
    ]:
        card = find(name)
        assert card.vector_rate == pytest.approx(card.sm * lanes * 2 * ghz * 1e9, rel=0.01)


def test_the_ridge_is_where_arithmetic_and_traffic_take_equally_long():
    assert find("A100").ridge("bfloat16") == pytest.approx(153.0, abs=0.1)  # 312e12 / 2.039e12
    assert find("A100").ridge("float32") == pytest.approx(9.56, abs=0.01)


def test_a_missing_rate_says_why():
    with pytest.raises(ValueError, match="T4 has no rate for bfloat16: it needs compute capability 8.0.*7.5"):
        find("T4").rate("bf16")
    with pytest.raises(ValueError, match="A100 80GB SXM has no rate for float8_e4m3fn.*8.9"):
        find("A100").rate("float8_e4m3fn")
    with pytest.raises(ValueError, match="no rate for int64.*known: float64"):
        find("A100").rate("int64")


def _cpu(**changes):
    rates = {"kind": "cpu", "flops_per_s": {"float": 1e11}, "bytes_per_s": 1e10, **changes}
    unknown = {"l2_bytes": None, "sm": None, "compute_capability": None}
    return Hardware("this CPU", launch_us=1.0, source="calibrate()", measured=True, **rates, **unknown)


def test_measured_hardware_points_to_its_calibration():
    assert _cpu().rate("float32") == 1e11
    with pytest.raises(ValueError, match=r"calibrate\(dtypes"):
        _cpu().rate("bfloat16")


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "tpu"},
        {"bytes_per_s": 0},
        {"bytes_per_s": float("inf")},
        {"flops_per_s": {"float32": float("nan")}},
        {"flops_per_s": {"float33": 1e12}},
    ],
)
def test_hardware_that_cannot_be_is_an_error(changes):
    with pytest.raises(ValueError):
        _cpu(**changes)


def test_hardware_is_frozen_all_the_way_down():
    card = find("A100")
    with pytest.raises(dataclasses.FrozenInstanceError):
        card.sm = 1
    with pytest.raises(TypeError):
        card.flops_per_s["bfloat16"] = 1.0
    assert hash(card) == hash(find("a100"))


def test_the_table_shows_every_card_once():
    table = hardware.table().set_index("name")
    assert list(table.index) == [card.name for card in CARDS]
    assert table.loc["H200", "gb_per_s"] == 4800
    assert table.loc["T4", ["bfloat16_tflops_per_s", "tfloat32_tflops_per_s"]].isna().all()


@pytest.mark.parametrize("launch_us", [-1.0, float("nan"), float("inf")])
def test_a_launch_takes_a_time(launch_us):
    with pytest.raises(ValueError, match="launch_us"):
        dataclasses.replace(_cpu(), launch_us=launch_us)


@pytest.mark.parametrize("name", [None, "", "nvidia", "\x1b[31m"])
def test_a_name_that_says_nothing_is_an_unknown_machine(name):
    with pytest.raises(UnknownHardware):
        find(name)
