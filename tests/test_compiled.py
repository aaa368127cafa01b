"""Compilers' output read: a program, a listing and Triton's code, all written by hand."""

import pytest

from tutorial_lib import compiled
from tutorial_lib.compiled import Access, accesses, read_listing, read_source

KERNEL = """
import triton
import triton.language as tl

@triton_heuristics.pointwise(size_hints={'x': 2048}, filename=__file__)
@triton.jit
def triton_poi_fused_gelu_mul_0(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 2048
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (x0), None).to(tl.float32)
    tmp2 = tl.full([1], 0.5, tl.float32)
    tmp3 = tmp0 * tmp2
    tmp4 = libdevice.tanh(tmp3)
    tmp5 = tmp4 * tmp1
    tl.store(in_out_ptr0 + (x0), tmp5, None)
"""

# x [32, 16] times weights [64, 16] twice, gelu(first) · second in one kernel, a biased product, running maxima
PROGRAM = f"""
triton_poi_fused_gelu_mul_0 = async_compile.triton('triton_poi_fused_gelu_mul_0', '''{KERNEL}''')

class Runner:
    def call(self, args):
        x, w, v, b = args
        assert_size_stride(x, (32, 16), (16, 1), 'input')
        with torch.cuda._DeviceGuard(0):
            x = copy_if_misaligned(x)
            buf0 = empty_strided_cuda((32, 64), (64, 1), torch.bfloat16)
            # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.mm]
            extern_kernels.mm(x, reinterpret_tensor(w, (16, 64), (1, 16), 0), out=buf0)
            buf1 = empty_strided_cuda((32, 64), (64, 1), torch.bfloat16)
            extern_kernels.mm(x, reinterpret_tensor(w, (16, 64), (1, 16), 0), out=buf1)
            buf2 = buf0; del buf0  # reuse
            # Topologically Sorted Source Nodes: [gelu, mul], Original ATen: [aten.gelu, aten.mul]
            triton_poi_fused_gelu_mul_0.run(buf2, buf1, 2048, stream=raw_stream0)
            del buf1
            buf3 = empty_strided_cuda((32, 16), (16, 1), torch.bfloat16)
            # Source Nodes: [out], Original ATen: [aten.gelu, aten.mul, aten.t, aten.addmm]
            extern_kernels.addmm(b, buf2, reinterpret_tensor(v, (64, 16), (1, 64), 0), beta=1, out=buf3)
            buf4 = torch.ops.aten.cummax.default(buf3, 1)
            buf5 = buf4[0]
            assert_size_stride(buf5, (32, 16), (16, 1), 'torch.ops.aten.cummax.default')
        return (buf5, )

def get_args():
    x = rand_strided((32, 16), (16, 1), device='cuda:0', dtype=torch.bfloat16)
    w = rand_strided((64, 16), (16, 1), device='cuda:0', dtype=torch.bfloat16)
    v = rand_strided((16, 64), (64, 1), device='cuda:0', dtype=torch.bfloat16)
    b = rand_strided((16, ), (1, ), device='cuda:0', dtype=torch.bfloat16)
    return [x, w, v, b]
"""


@pytest.fixture(scope="module")
def program():
    return read_source(PROGRAM, on="A100 80GB SXM")


def test_launches_come_in_order_with_their_kind(program):
    assert [(i.kind, i.name) for i in program.items] == [
        ("extern", "aten::mm"),
        ("extern", "aten::mm"),
        ("triton", "triton_poi_fused_gelu_mul_0"),
        ("extern", "aten::addmm"),
        ("extern", "aten::cummax"),
    ]
    assert (program.launches, len(program.kernels), len(program.externs)) == (5, 1, 4)


def test_a_kernel_names_what_it_reads_writes_and_overwrites(program):
    (kernel,) = program.kernels
    assert (kernel.loads, kernel.stores, kernel.reductions) == (2, 1, 0)
    assert [b.name for b in kernel.inputs] == ["buf0", "buf1"]
    assert [b.name for b in kernel.outputs] == ["buf2"]
    assert kernel.in_place == ("buf0",)
    assert kernel.operators == ("aten::gelu", "aten::mul")
    assert (kernel.dtype, kernel.numel) == ("bfloat16", 2048)


def test_a_kernels_source_starts_at_its_decorator(program):
    source = program.kernels[0].source
    assert source.startswith("@triton.jit\ndef triton_poi_fused_gelu_mul_0(")
    assert source.endswith("tl.store(in_out_ptr0 + (x0), tmp5, None)")


def test_bytes_of_a_fused_kernel_are_two_reads_and_a_write(program):
    # 3 · 32·64 elements of 2 bytes; tanh and two products are three operations an element
    work = program.kernels[0].work
    assert work.bytes_moved == 3 * 32 * 64 * 2
    assert (work.kind, work.vector_flops) == ("pointwise", 3 * 32 * 64)


def test_a_library_call_has_the_cost_of_its_operator(program):
    # x 32·16, weight 16·64, product 32·64 elements of 2 bytes; 2·32·16·64 FLOPs
    product = program.externs[0]
    assert product.work.flops == 2 * 32 * 16 * 64
    assert product.bytes_moved == (32 * 16 + 16 * 64 + 32 * 64) * 2


def test_what_was_fused_before_is_not_said_of_a_library_call(program):
    assert program.externs[2].operators == ("aten::t", "aten::addmm")


def test_the_bias_of_addmm_counts_once(program):
    # 32·64 + 64·16 + 16 elements read, 32·16 written
    assert program.externs[2].bytes_moved == (32 * 64 + 64 * 16 + 16 + 32 * 16) * 2


def test_a_librarys_unknown_cost_is_none_and_not_zero(program):
    running = program.externs[3]
    assert (running.work, running.bytes_moved) == (None, None)
    assert running.outputs[0].shape == (32, 16)


def test_a_program_knows_its_arguments(program):
    assert [(b.name, b.shape, b.dtype) for b in program.arguments][:2] == [
        ("x", (32, 16), "bfloat16"),
        ("w", (64, 16), "bfloat16"),
    ]


def test_a_program_is_a_table_and_a_text(program):
    table = program.table()
    assert list(table["kind"]) == ["extern", "extern", "triton", "extern", "extern"]
    assert table.loc[2, "bytes_moved"] == 12288
    text = str(program)
    assert text.splitlines()[0] == "5 launches a call on A100 80GB SXM"
    assert "buf2 [32, 64] (over buf0)" in text and "12.3 kB" in text


def test_names_from_a_source_are_escaped_in_html():
    source = PROGRAM.replace("buf2", "buf2").replace("Original ATen: [aten.gelu, aten.mul]\n", "x\n")
    read = read_source(source, on="<script>alert(1)</script>\x1b[31m")
    assert "<script>" not in read._repr_html_()
    assert "&lt;script&gt;" in read._repr_html_()
    assert "\x1b" not in str(read) + read._repr_html_()


def test_text_that_is_no_program_says_what_to_give():
    with pytest.raises(ValueError, match="give the text Inductor generated"):
        read_source("def f(: pass")
    with pytest.raises(ValueError, match='no function "call"'):
        read_source("x = 1")


def test_symbolic_sizes_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="dynamic=False"):
        read_source(PROGRAM.replace("empty_strided_cuda((32, 64)", "empty_strided_cuda((s77, 64)"))


# ------------------------------------------------------------------------------------------------- listings

SASS = """\
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90"
.text.add:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E.128 R16, desc[UR8][R22.64] ;
        /*0020*/              @!P0 LDG.E.EL.U16 R4, desc[UR8][R22.64+0x1000] ;
        /*0030*/                   MUFU.EX2 R3, R3 ;
        /*0040*/                   MUFU.EX2 R4, R4 ;
        /*0050*/               @P1 STL [R1], R4 ;
        /*0060*/                   STG.E desc[UR8][R16.64], R12 ;
        /*0070*/               @P0 BRA `(.L_x_1) ;
        /*0080*/               @P0 BRA `(.L_x_2) ;
.L_x_2:
        /*0090*/                   EXIT ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3) ;
        /*00b0*/                   NOP;
"""
USAGE = "Function add:\n  REG:24 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:560"

# load [1024] under a mask i < n for i = pid·1024 + 0…1023, store of the same
MASKED = """\
module {
  tt.func public @add(%x: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32 loc("n"(#loc))) {
    %c1024 = arith.constant 1024 : i32 loc(#loc1)
    %cst = arith.constant dense<0.0> : tensor<1024xbf16> loc(#loc1)
    %pid = tt.get_program_id x : i32 loc(#loc2)
    %first = arith.muli %pid, %c1024 : i32 loc(#loc3)
    %range = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32> loc(#loc4)
    %firsts = tt.splat %first : i32 -> tensor<1024xi32> loc(#loc5)
    %i = arith.addi %firsts, %range : tensor<1024xi32> loc(#loc5)
    %limits = tt.splat %n : i32 -> tensor<1024xi32> loc(#loc6)
    %mask = arith.cmpi slt, %i, %limits : tensor<1024xi32> loc(#loc6)
    %p = tt.splat %x : !tt.ptr<bf16> -> tensor<1024x!tt.ptr<bf16>> loc(#loc7)
    %at = tt.addptr %p, %i : tensor<1024x!tt.ptr<bf16>>, tensor<1024xi32> loc(#loc7)
    %v = tt.load %at, %mask, %cst : tensor<1024x!tt.ptr<bf16>> loc(#loc8)
    tt.store %at, %v, %mask : tensor<1024x!tt.ptr<bf16>> loc(#loc9)
    tt.return loc(#loc10)
  }
}
"""

LOOP = """\
module {
  tt.func public @rows(%x: !tt.ptr<f32>, %out: !tt.ptr<f32>) {
    %c0 = arith.constant 0 : i32
    %c128 = arith.constant 128 : i32
    %c1000 = arith.constant 1000 : i32
    %limit = arith.constant dense<1000> : tensor<1x128xi32>
    %r = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %row = tt.expand_dims %r {axis = 0 : i32} : tensor<128xi32> -> tensor<1x128xi32>
    %sum = scf.for %j = %c0 to %c1000 step %c128 iter_args(%acc = %zero) -> (tensor<1x128xf32>)  : i32 {
      %js = tt.splat %j : i32 -> tensor<1x128xi32>
      %i = arith.addi %js, %row : tensor<1x128xi32>
      %mask = arith.cmpi slt, %i, %limit : tensor<1x128xi32>
      %p = tt.splat %x : !tt.ptr<f32> -> tensor<1x128x!tt.ptr<f32>>
      %v = tt.load %p, %mask, %zero : tensor<1x128x!tt.ptr<f32>>
      scf.yield %v : tensor<1x128xf32>
    }
    tt.store %out, %s : !tt.ptr<f32>
  }
}
"""


def listing(**changes):
    options = {"name": "add", "gpu": "H100 SXM", "num_warps": 4, "shared_bytes": 0, "grid": (97, 1, 1)}
    return read_listing(SASS, USAGE, MASKED, **{**options, "numbers": {"n": 98432}, **changes})


def test_a_listing_counts_instructions_and_their_widths():
    code = listing()
    assert (code.target, code.registers, code.threads) == ("sm_90", 24, 128)
    assert (code.loads, code.stores) == ({2: 1, 16: 1}, {4: 1})
    assert code.special == {"MUFU.EX2": 2}
    # LDC, two LDG, two MUFU, STL, STG, three BRA, EXIT; the NOP behind them is padding
    assert code.total == 11


def test_spills_show_as_local_memory():
    code = listing()
    assert (code.local_bytes, code.spills) == (8, 1)
    assert "8 B a thread" in str(code)


def test_only_a_branch_that_goes_back_is_a_loop():
    assert listing().loops == 1


def test_bytes_of_a_thread_are_widths_times_counts():
    # 16 + 2 loaded, 4 stored
    code = listing()
    assert (code.bytes_loaded_per_thread, code.bytes_stored_per_thread, code.bytes_per_thread) == (18, 4, 22)
    assert code.elements_per_thread == 1024 // 128


def test_lanes_outside_the_mask_move_nothing():
    # 97 programs of 1024 lanes are 99,328; the mask lets 98,432 through, loaded and stored at 2 bytes
    code = listing()
    assert code.accesses == tuple(Access(kind, "x", "bfloat16", 1024, 98432) for kind in ("load", "store"))
    assert code.bytes_moved == 2 * 98432 * 2
    assert code.bytes_per_program == 2 * 98432 * 2 / 97


def test_a_mask_that_hangs_on_an_unknown_number_gives_no_bytes():
    code = listing(numbers={})
    assert [access.active for access in code.accesses] == [None, None]
    assert code.bytes_moved is None
    assert "not known" in str(code)


def test_without_a_grid_there_are_no_bytes_altogether():
    code = listing(grid=None)
    assert (code.bytes_moved, code.bytes_per_program) == (None, None)
    assert "all programs" not in str(code)


def test_a_loop_is_counted_turn_by_turn():
    # 1000 columns in 8 turns of 128: the last has 104 lanes inside; 64 programs; one number stored by each
    load, store = accesses(LOOP, (64, 1, 1), {})
    assert (load.lanes, load.active, load.bytes_moved) == (128, 64 * 1000, 64 * 4000)
    assert (store.argument, store.lanes, store.active) == ("out", 1, 64)


def test_a_loop_of_unknown_length_is_not_guessed():
    load, store = accesses(LOOP.replace("%c1000 = arith.constant 1000 : i32", ""), (64, 1, 1), {})
    assert (load.active, store.active) == (None, 64)


def test_what_stands_behind_an_early_return_is_not_counted():
    early = MASKED.replace("    %p = tt", "    cf.cond_br %some, ^bb1, ^bb2\n  ^bb1:\n    %p = tt")
    assert [access.active for access in accesses(early, (97, 1, 1), {"n": 98432})] == [None, None]


def test_a_two_dimensional_grid_has_two_program_numbers():
    # program (x, y) of 4 × 3; lanes under y·1024 + i < 2048 are those of y = 0 and 1
    code = MASKED.replace("tt.get_program_id x", "tt.get_program_id y").replace("%n", "%c2048")
    code = code.replace("%c1024 =", "%c2048 = arith.constant 2048 : i32\n    %c1024 =")
    assert accesses(code, (4, 3, 1), {})[0].active == 4 * 2 * 1024


def test_a_listing_is_tables_and_html():
    code = listing(name="<b>add</b>")
    assert list(code.table()["bytes_moved"]) == [196864, 196864]
    meanings = code.instruction_table().set_index("instruction")["meaning"]
    assert meanings["LDG.E.128"] == "load from global memory, 16 bytes"
    assert "<b>" not in code._repr_html_() and "&lt;b&gt;" in code._repr_html_()


def test_text_that_is_no_listing_says_so():
    with pytest.raises(ValueError, match="no listing of nvdisasm"):
        read_listing("", USAGE, MASKED, name="add", gpu="H100", num_warps=4, shared_bytes=0)


def test_reading_needs_neither_torch_nor_triton():
    assert not {"torch", "triton"} & set(vars(compiled))
