import gzip

import pytest

from tutorial_lib import op_times
from tutorial_lib.kernel_time import Ran

HEAD = "card,operator,input_dims,input_types,input_strides,concrete_inputs,kernels,n,median_us,source\n"
MM = '"[[64, 32], [32, 16]]","[""float"", ""float""]","[[32, 1], [1, 32]]","["""", """"]"'


def table(tmp_path, *lines):
    path = tmp_path / "times.csv"
    path.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_row_becomes_work_on_a_card_with_the_kernels_that_ran(tmp_path):
    line = f"NVIDIA A100-SXM4-40GB,aten::mm,{MM},ampere_sgemm_32x32_tn | Memset (Device),8,12.5,somebody/traces"
    (row,), left_out = op_times.read(table(tmp_path, line))
    assert (row.on.name, row.n, row.median_us, left_out) == ("A100 40GB SXM", 8, 12.5, [])
    assert row.work.flops == 2 * 64 * 32 * 16 and row.work.dtype == "float32"
    assert row.ran == (Ran("ampere_sgemm_32x32_tn"), Ran("Memset (Device)"))
    assert row.inputs[1].shape == (32, 16) and row.inputs[1].strides == (1, 32)


def test_a_float32_product_that_ran_in_tf32_says_so(tmp_path):
    name = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4>(cutlass_80_tensorop_s1688gemm"
    (row,), _ = op_times.read(table(tmp_path, f"A100,aten::mm,{MM},{name},8,12.5,somebody/traces"))
    assert row.work.dtype == "tfloat32" and row.work.bytes_moved == 4 * (64 * 32 + 32 * 16 + 64 * 16)


def test_rows_that_cannot_be_judged_are_said_with_their_line(tmp_path):
    rows, left_out = op_times.read(table(
        tmp_path,
        f"AMD Radeon Graphics,aten::mm,{MM},k,1,3.0,s",
        f"A100,aten::view,{MM},k,1,3.0,s",
        f"A100,aten::mm,{MM},k,1,-3.0,s",
        f"A100,aten::mm,{MM},k,1,3.0,s",
    ))  # fmt: skip
    assert len(rows) == 1 and [line.split(":")[0] for line in left_out] == ["line 2", "line 3", "line 4"]
    assert "no rates known for 'AMD Radeon Graphics'" in left_out[0] and "positive and finite" in left_out[2]


def test_a_table_without_the_columns_is_refused(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="other.csv: no column card, operator"):
        op_times.read(tmp_path / "other.csv")


def test_the_table_that_comes_with_the_book_is_read_nearly_whole():
    rows, left_out = op_times.read()
    assert len(rows) > 1900 and len(left_out) < 100 and all(row.source for row in rows)
    assert {row.work.kind for row in rows} >= {"gemm", "pointwise", "copy", "reduction", "attention"}


def test_a_packed_table_is_read_as_well(tmp_path):
    path = table(tmp_path, f"A100,aten::mm,{MM},k,1,3.0,s")
    packed = tmp_path / "times.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert op_times.read(packed) == op_times.read(path)


def test_a_table_that_is_cut_or_no_text_is_one_line(tmp_path):
    path = tmp_path / "times.csv.gz"
    for data in (gzip.compress(HEAD.encode() * 9)[:40], b"\x1f\x8b\x08junk", b"\x80\xff"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="times.csv.gz: is no whole table") as raised:
            op_times.read(path)
        assert "\n" not in str(raised.value)


def test_lines_that_end_early_nest_deeply_or_claim_the_impossible_are_left_out(tmp_path):
    bf16 = MM.replace("float", "c10::BFloat16")
    rows, left_out = op_times.read(table(
        tmp_path, "A100,aten::mm", f"A100,aten::mm,{'[' * 100_000},x,,,k,1,3.0,s", f"T4,aten::mm,{bf16},k,1,3.0,s",
    ))  # fmt: skip
    assert rows == [] and [line.split(":")[0] for line in left_out] == ["line 2", "line 3", "line 4"]
    assert "ends before input_dims" in left_out[0] and "T4 has no rate for bfloat16" in left_out[2]
