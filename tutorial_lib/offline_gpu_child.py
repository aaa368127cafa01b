"""The process in which `offline_gpu` has things compiled: it makes torch and triton believe in a GPU.

    python -m tutorial_lib.offline_gpu_child

It reads names of folders from its standard input, answers the question in each (`job.json`, `graph.pt2`)
with an `answer.json` beside it, and then writes a line. Each question is answered in a fork, so that no
card leaves a trace in the answer for the next.

Functions of torch and triton are replaced here for good and their private names are used: this is what
`offline_gpu.TRIED` is about, and why nobody imports this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import math
import os
import re
import select
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

from tutorial_lib import hardware
from tutorial_lib.compiled import read_source
from tutorial_lib.offline_gpu import (
    device_properties,
    first_line,
    is_number,
    nvidia_tools,
    unwrapped,
)

_IDLE_S = 120  # without a question for so long it leaves


def _serve() -> None:
    """Read the name of a folder, answer its question in a fork, say so; leave at the end or when idle."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    _preload()
    while select.select([sys.stdin], [], [], _IDLE_S)[0]:
        folder = sys.stdin.buffer.raw.read(65536).decode().strip()
        if not folder:
            return
        child = os.fork()
        if child == 0:
            _work(Path(folder))
        os.waitpid(child, 0)
        answers.write(b"done\n")


def _preload() -> None:
    """What every question needs and no card changes, made once before the forks."""
    import torch
    import torch._inductor.compile_fx
    import torch.export
    import triton.compiler  # noqa: F401
    from torch._inductor.codegen.common import init_backend_registration
    from torch._inductor.fx_passes import joint_graph
    from triton.runtime.cache import triton_key

    _pretend(SimpleNamespace(**device_properties(hardware.find("A100"))))
    init_backend_registration()
    joint_graph.lazy_init(torch.device("cuda:0"))  # the patterns that Inductor looks for
    triton_key()  # a hash of triton's files


def _work(place: Path) -> None:
    """Answer one question in this forked process, and end it."""
    code = 1
    try:
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
            os.environ[name] = str(place)
        tempfile.tempdir = str(place)
        job = json.loads((place / "job.json").read_text(encoding="utf-8"))
        try:
            answer = {"program": _make_program, "machine_code": _make_machine_code}[job["task"]](job, place)
        except Exception as error:
            answer = {"failed": first_line(error), "where": traceback.format_exc(limit=-4)}
        (place / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
        code = 0
    finally:
        os._exit(code)


def _pretend(gpu: SimpleNamespace) -> None:
    """Answer every question that torch, Inductor and Triton ask about the device with `gpu`."""
    import torch
    import torch._dynamo.utils
    import torch._inductor.compile_fx as compile_fx
    import torch._inductor.config as config
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime import triton_helpers
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    capability = 10 * gpu.major + gpu.minor
    common = {
        "get_device_properties": gpu, "is_available": True, "current_device": 0, "device_count": 1,
        "synchronize": None, "is_bf16_supported": capability >= 80,
    }  # fmt: skip
    interface = {
        "get_compute_capability": capability, "is_triton_capable": True, "raise_if_triton_unavailable": None,
        "get_raw_stream": 0, "maybe_exchange_device": 0, "exchange_device": 0,
    }  # fmt: skip
    cuda = {
        "get_device_capability": (gpu.major, gpu.minor), "get_device_name": gpu.name, "_exchange_device": 0,
        "_maybe_exchange_device": 0, "is_tf32_supported": capability >= 80, "set_rng_state": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
    }  # fmt: skip
    for name, value in {**common, **interface}.items():
        setattr(CudaInterface, name, staticmethod(_always(value)))
    CudaInterface.Worker.get_device_properties = staticmethod(_always(gpu))
    for name, value in {**common, **cuda}.items():
        setattr(torch.cuda, name, _always(value))
    compile_fx.preserve_rng_state = torch._dynamo.utils.preserve_rng_state = contextlib.nullcontext
    triton_helpers.set_driver_to_gpu = _always(None)
    target = GPUTarget("cuda", capability, 32)
    driver.set_active(
        SimpleNamespace(
            get_current_target=_always(target),
            get_current_device=_always(0),
            get_active_torch_device=_always(torch.device("cuda:0")),
        )
    )
    FakeTensorMode.avoid_device_init = True  # fake CUDA tensors without CUDA, which torch itself provides for
    torch.Tensor.__getitem__ = _getitem
    torch._C._conv_determine_backend_memory_format = _convolution_layout
    config.force_disable_caches, config.compile_threads = True, 1


def _always(value: object) -> Callable:
    return lambda *_, **__: value


def _convolution_layout(image, weight, backend):
    """The layout of what cuDNN's convolutions return: channels last when either operand has it."""
    import torch

    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    if last is None or image.dtype is torch.float64:
        return torch.contiguous_format
    either = any(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (image, weight))
    return last if either else torch.contiguous_format


def _getitem(tensor, index):
    """Indexing through operators: torch's own in C++ wants a CUDA device before it looks at the tensor."""
    import torch

    aten = torch.ops.aten
    index = index if isinstance(index, tuple) else (index,)
    named = sum(1 for i in index if i is not None and i is not Ellipsis)
    dim, tensors = 0, []
    for entry in index:
        if entry is Ellipsis:
            dim += tensor.dim() - dim - named
        elif entry is None:
            tensor, dim = aten.unsqueeze(tensor, dim), dim + 1
        elif isinstance(entry, slice):
            step = 1 if entry.step is None else entry.step
            tensor, dim = aten.slice(tensor, dim, entry.start, entry.stop, step), dim + 1
        elif isinstance(entry, int):
            tensor = aten.select(tensor, dim, entry)
        else:
            tensors += [None] * (dim - len(tensors)) + [torch.as_tensor(entry)]
            dim += 1
        named -= entry is not None and entry is not Ellipsis
    return aten.index(tensor, tensors) if tensors else tensor


class _Generated(Exception):
    """Carries the generated source out of Inductor before it would be loaded."""


def _make_program(job: dict, place: Path) -> dict:
    import torch
    import torch._inductor.compile_fx as compile_fx
    from torch._dynamo.exc import SkipFrame
    from torch._inductor.graph import GraphLowering
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )

    gpu, notes = SimpleNamespace(**job["gpu"]), []
    _pretend(gpu)
    keep = [_stand_ins(gpu, job["settings"]["attention"], notes)]  # a library's kernels go when it goes
    torch.backends.cuda.matmul.fp32_precision = job["settings"]["float32"]
    _leave_unpadded(notes)
    graph, inputs = _on_gpu(torch.export.load(place / "graph.pt2"))
    generate = GraphLowering.codegen

    def codegen(lowering):
        code = generate(lowering)[0]
        raise _Generated(getattr(code, "value", code))

    GraphLowering.codegen = codegen
    try:
        with torch.no_grad():
            compile_fx.compile_fx(graph, inputs)
    except Exception as error:
        chain = list(_causes(error))
        needs_values = (DataDependentOutputException, DynamicOutputShapeException)
        for kind, say in ((SkipFrame, "{}"), (needs_values, _BREAKS)):
            if met := [e for e in chain if isinstance(e, kind)]:
                return {"refused": say.format(str(met[0]).strip().splitlines()[0])}
        if not (found := [e for e in chain if isinstance(e, _Generated)]):
            raise
        source = re.sub(r"# kernel path: .*\n", "", str(found[0]))  # temporary files, gone by then
        return {"source": source, "configs": _configs(source, place), "notes": sorted(set(notes))}
    del keep
    return {"source": None, "configs": {}, "notes": []}  # no operator in it


_BREAKS = "{} asks for the values of a tensor, and there the graph breaks, which is not covered"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those it came from; Inductor wraps what it meets."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _stand_ins(gpu: SimpleNamespace, allowed: Mapping[str, bool], notes: list[str]):
    """Kernels that torch has for a GPU and not here: memory for single numbers, the choice of attention."""
    import torch

    aten, library = torch.ops.aten, torch.library.Library("aten", "IMPL")

    def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return aten.empty.memory_format(size, dtype=dtype, device=torch.device("cpu"))

    def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        return aten.empty_strided.default(size, stride, dtype=dtype, device=torch.device("cpu"))

    def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        asked = SimpleNamespace(
            q=q, k=k, v=v, mask=attn_mask, dropout=dropout_p, causal=is_causal, gqa=enable_gqa
        )
        backend = _attention_backend(gpu, asked, allowed)
        notes.append(
            f"scaled_dot_product_attention takes its {backend} backend here, by torch's order and rules"
        )
        return _attention(backend, asked, scale)

    with contextlib.redirect_stderr(io.StringIO()):
        library.impl("empty.memory_format", empty, "CUDA")
        library.impl("empty_strided", empty_strided, "CUDA")
        library.impl("scaled_dot_product_attention", attention, "CompositeImplicitAutograd")
    return library


def _attention_backend(gpu: SimpleNamespace, asked: SimpleNamespace, allowed: Mapping[str, bool]) -> str:
    """The first allowed and eligible one, by `sdp_utils.cpp` of PyTorch: order and rules, without gradients.

    cuDNN comes first on Hopper and B200, as with the cuDNN that torch's CUDA 13 wheels bring, else last
    but math.
    """
    able = {
        "flash": _flash_can, "efficient": _efficient_can, "cudnn": _cudnn_can, "math": lambda gpu, asked: True
    }  # fmt: skip
    order = ("flash", "efficient", "math", "cudnn")
    if gpu.major in (9, 10):
        order = ("cudnn", "flash", "efficient", "math")
    for backend in order:
        if allowed[backend] and able[backend](gpu, asked):
            return backend
    raise ValueError("no SDPA backend that is allowed can take this call: allow another one in sdpa_kernel")


def _dense_4d(asked: SimpleNamespace) -> bool:
    return (
        asked.q.dim() == asked.k.dim() == asked.v.dim() == 4 and min(asked.q.shape[2], asked.k.shape[2]) > 0
    )


def _heads_fit(asked: SimpleNamespace, *, grouped: bool) -> bool:
    q, k, v = asked.q.shape, asked.k.shape, asked.v.shape
    if q[0] != k[0] or q[0] != v[0]:
        return False
    if grouped and asked.gqa:
        return q[1] % k[1] == 0 and q[1] % v[1] == 0
    return q[1] == k[1] == v[1]


def _rows_contiguous(asked: SimpleNamespace) -> bool:
    return all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (asked.q, asked.k, asked.v))


def _half_dtypes(gpu: SimpleNamespace, asked: SimpleNamespace) -> bool:
    import torch

    allowed = (torch.float16, torch.bfloat16) if gpu.major >= 8 else (torch.float16,)
    return asked.q.dtype == asked.k.dtype == asked.v.dtype and asked.q.dtype in allowed


def _flash_can(gpu: SimpleNamespace, asked: SimpleNamespace) -> bool:
    q, k, v = asked.q.shape, asked.k.shape, asked.v.shape
    square = not asked.causal or q[-2] == k[-2]
    fits = gpu.major >= 8 and asked.mask is None and q[-1] == k[-1] == v[-1] <= 256 and square
    return (
        fits
        and _dense_4d(asked)
        and _half_dtypes(gpu, asked)
        and _heads_fit(asked, grouped=True)
        and _rows_contiguous(asked)
    )


def _efficient_can(gpu: SimpleNamespace, asked: SimpleNamespace) -> bool:
    import torch

    half = asked.q.dtype in (torch.float16, torch.bfloat16)
    multiple = (8 if half else 4) if gpu.major >= 8 else (8 if half else 1)
    dtypes = (torch.float16, torch.float32) + ((torch.bfloat16,) if gpu.major >= 8 else ())
    d_q, d_k, d_v = (t.shape[-1] for t in (asked.q, asked.k, asked.v))
    return (
        _dense_4d(asked)
        and d_q == d_k
        and d_q % multiple == d_v % multiple == 0
        and asked.q.dtype == asked.k.dtype == asked.v.dtype
        and asked.q.dtype in dtypes
        and _heads_fit(asked, grouped=False)
        and _rows_contiguous(asked)
    )


def _cudnn_can(gpu: SimpleNamespace, asked: SimpleNamespace) -> bool:
    d_q, d_v = asked.q.shape[-1], asked.v.shape[-1]
    fits = gpu.major >= 8 and max(d_q, d_v) <= 128 and d_q % 8 == d_v % 8 == 0
    return (
        fits
        and asked.dropout * 16 % 1 == 0  # it draws in sixteenths
        and (asked.dropout == 0 or asked.q.shape[-2] != 1)
        and _dense_4d(asked)
        and asked.k.shape[-2] != 1
        and _half_dtypes(gpu, asked)
        and _heads_fit(asked, grouped=True)
        and _rows_contiguous(asked)
    )


def _attention(backend: str, asked: SimpleNamespace, scale: float | None):
    """What scaled_dot_product_attention does once the backend is known."""
    import torch

    aten, q, k, v, mask = torch.ops.aten, asked.q, asked.k, asked.v, asked.mask
    if backend == "math":
        found = aten._scaled_dot_product_attention_math
        options = {"scale": scale, "enable_gqa": asked.gqa}
        return found(q, k, v, mask, asked.dropout, asked.causal, None, **options)[0]
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, -math.inf).to(q.dtype)
    if backend == "flash":
        width, rest = q.shape[-1], -q.shape[-1] % 8
        scale = 1 / math.sqrt(width) if scale is None and rest else scale
        q, k, v = (torch.nn.functional.pad(t, (0, rest)) if rest else t for t in (q, k, v))
        found = aten._scaled_dot_product_flash_attention
        result = found(q, k, v, asked.dropout, asked.causal, False, scale=scale)[0]
        return aten.slice(result, -1, 0, width) if rest else result
    if backend == "cudnn":
        found = aten._scaled_dot_product_cudnn_attention
        return found(q, k, v, mask, False, asked.dropout, asked.causal, False, scale=scale)[0]
    found = aten._scaled_dot_product_efficient_attention
    return found(q, k, v, mask, False, asked.dropout, asked.causal, scale=scale)[0]


def _leave_unpadded(notes: list[str]) -> None:
    """Inductor pads products with odd sizes when a run on the card says that it pays; here is no card."""
    import torch._inductor.fx_passes.pad_mm as pad_mm

    def should_pad(match, mat1, mat2, op, input=None):
        m, k, n = mat1.shape[-2], mat1.shape[-1], mat2.shape[-1]
        if pad_mm.is_mm_compute_bound(m, k, n, mat1.dtype):
            notes.append(
                f"[{m}, {k}] @ [{k}, {n}] is left as it is; on the card Inductor times it padded to multiples"
                " of 8 (4 for float32) as well, and pads when that is faster"
            )
        return False

    pad_mm._should_pad = should_pad


def _on_gpu(exported):
    """The exported graph with every device made a GPU, and fake GPU tensors for its inputs and weights."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    gpu, graph = torch.device("cuda:0"), exported.graph_module
    _small_constants(exported)
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            _move(module, gpu)
    inputs = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        for node in graph.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=gpu)
            inputs.append(value)
    return graph, inputs


def _small_constants(exported) -> None:
    """Numbers that the call made itself, as torch.tensor(0.5), are part of the graph and stay on the CPU."""
    graph = exported.graph_module
    kept = {spec.arg.name: spec.target for spec in exported.graph_signature.input_specs}
    for node in list(graph.graph.find_nodes(op="placeholder")):
        value = exported.constants.get(kept.get(node.name))
        if not is_number(value):
            continue
        setattr(graph, f"number_{node.name}", value)
        with graph.graph.inserting_after(node):
            constant = graph.graph.get_attr(f"number_{node.name}")
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)
        graph.graph.erase_node(node)
    graph.recompile()


def _move(module, gpu) -> None:
    """Device arguments changed to the GPU; checks that export added and that hold on a CPU only, removed."""
    import torch
    from torch.fx.node import map_aggregate

    def moved(value):
        return gpu if isinstance(value, torch.device) else value

    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
            continue
        node.args, node.kwargs = map_aggregate(node.args, moved), map_aggregate(node.kwargs, moved)
        if node.target is torch.ops.higher_order.wrap_with_autocast:
            node.args = ("cuda", *node.args[1:])
    module.recompile()


def _configs(source: str, place: Path) -> dict[str, list[dict]]:
    """The launch configurations that Inductor would time for each kernel, with the grid that each gives."""
    from torch._inductor.runtime.triton_heuristics import GridExpr, config_to_dict

    found = {}
    for item in read_source(source).kernels:
        tuner = getattr(_loaded(item.text, place), item.name)
        found[item.name] = [
            {
                "blocks": dict(config.kwargs),
                "num_warps": config.num_warps,
                "num_stages": config.num_stages,
                "grid": GridExpr.from_meta(tuner.inductor_meta, config).eval_slow(
                    {**config_to_dict(config), **dict(item.numels)}
                ),
            }
            for config in tuner.configs
        ]
    return found


def _loaded(text: str, place: Path) -> ModuleType:
    """A module made of this source; Triton wants to read it from a file."""
    file = place / f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _make_machine_code(job: dict, place: Path) -> dict:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError

    gpu = SimpleNamespace(**job["gpu"])
    _pretend(gpu)
    source, options = _triton_source(job, place, ASTSource)
    target = GPUTarget("cuda", 10 * gpu.major + gpu.minor, 32)
    try:
        binary = triton.compile(source, target=target, options=options)
    except (CompilationError, RuntimeError, ValueError, TypeError) as error:
        return {"refused": " ".join(str(error).split())[:500]}
    cubin = place / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    return {
        "name": job["name"],
        "num_warps": options["num_warps"],
        "shared_bytes": binary.metadata.shared,
        "usage": _run_tool("cuobjdump", "-res-usage", cubin),
        "sass": _run_tool("nvdisasm", "-c", cubin),
        "ttir": binary.asm["ttir"],
    }


def _triton_source(job: dict, place: Path, ast_source: type) -> tuple[object, dict]:
    """What triton.compile is given: by Inductor for its own kernels, by the caller for others."""
    if "signature" not in job:
        tuner = getattr(_loaded(job["text"], place), job["name"])
        config = tuner.configs[job["config"]]
        meta = tuner._create_compile_meta(config)
        options = tuner._create_compile_options(config, meta)
        return ast_source(tuner.fn, meta["signature"], meta["constants"], meta["configs"][0]), options
    module = importlib.import_module(job["module"]) if "module" in job else _loaded(job["text"], place)
    kernel = unwrapped(getattr(module, job["name"]))
    aligned = {(i,): [["tt.divisibility", 16]] for i in job["aligned"]}
    options = {"num_warps": job["num_warps"], "num_stages": job["num_stages"]}
    return ast_source(kernel, job["signature"], job["constants"], aligned), options


def _run_tool(tool: str, option: str, file: Path) -> str:
    command = [nvidia_tools() / tool, option, file]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    _serve()
