"""What compilers make for a GPU, read as text: Inductor's program, Triton's code, the machine code's listing.

`read_source` finds the launches in a program that Inductor generated: library calls and Triton kernels in
order, with what they read, write and overwrite. `read_listing` finds registers, spills, loads, stores and
special-function instructions in what NVIDIA's disassembler prints, and which lanes Triton's masks let
through.

All of it is text in, nouns out: nothing is executed or compiled here, and neither torch nor triton is needed.
`offline_gpu` makes such text for a named GPU; a GPU's own run writes it too (`TORCH_LOGS=output_code`). Not
covered: dynamic shapes, C++ kernels for the CPU, and AMD's instructions.
"""

from __future__ import annotations

import ast
import html
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from tutorial_lib import cost, units
from tutorial_lib.cost import Cost, Work
from tutorial_lib.timeline import VIEWS

# ------------------------------------------------------------------------------------------------ the program


@dataclass(frozen=True)
class Buffer:
    """A tensor as the program sees it; a dtype is None where the source does not say."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str | None

    @property
    def elements(self) -> int:
        """Elements in memory: a dimension of stride 0 is one element seen many times."""
        return math.prod(n for n, stride in zip(self.shape, self.strides, strict=True) if stride != 0)

    def __str__(self) -> str:
        return f"{self.name} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Config:
    """One way in which Inductor may launch a Triton kernel; on the card it times them all and keeps one."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    grid: tuple[int, int, int]

    def __str__(self) -> str:
        blocks = ", ".join(f"{name} {size}" for name, size in self.blocks)
        return f"{blocks}, {self.num_warps} warps, grid {' × '.join(map(str, self.grid))}"


@dataclass(frozen=True)
class ProgramItem:
    """One launch: a library kernel (kind "extern") or a kernel that Inductor wrote (kind "triton").

    `name`: the aten operator that is called, or the Triton kernel's name. `operators`: the source
    operators in it. `inputs` and `outputs`: the buffers it reads and writes; `in_place` names those that
    it writes over. `numels`: the sizes of its iteration space. `loads`, `stores` and `reductions` count
    what stands in the source, None for a library kernel, as is everything after them.
    """

    kind: str
    name: str
    gpu: str | None
    operators: tuple[str, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    text: str = field(repr=False)
    arguments: tuple[Buffer | str, ...] = field(default=(), repr=False)
    loads: int | None = None
    stores: int | None = None
    reductions: int | None = None
    in_place: tuple[str, ...] = ()
    numels: tuple[tuple[str, int], ...] = ()
    configs: tuple[Config, ...] = ()

    @property
    def source(self) -> str:
        """The call of a library kernel, or the Triton kernel from its decorator on."""
        return self.text[max(self.text.find("@triton.jit"), 0) :].strip()

    @property
    def dtype(self) -> str | None:
        """The dtype of the first output."""
        return self.outputs[0].dtype if self.outputs else None

    @property
    def numel(self) -> int | None:
        """Points of the iteration space, reduced dimensions included; None where it is not known."""
        return math.prod(n for _, n in self.numels) if self.numels else None

    @property
    def work(self) -> Work | None:
        """What it costs, as `cost` counts; None when that is not known for this library kernel."""
        return _triton_work(self) if self.kind == "triton" else _extern_work(self)

    @property
    def bytes_moved(self) -> int | None:
        """Compulsory traffic: what it reads once and what it writes once; None where `work` is."""
        return None if self.work is None else self.work.bytes_moved


@dataclass(frozen=True, repr=False)
class Program:
    """What one call launches on the card `gpu`, in order.

    `source` is the text that Inductor generated, `arguments` are the tensors it is given, and `names`
    says what those ("arg0_1") are called in the call, where that is known.
    """

    gpu: str | None
    versions: Mapping[str, str]
    items: tuple[ProgramItem, ...]
    source: str
    arguments: tuple[Buffer, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def kernels(self) -> tuple[ProgramItem, ...]:
        """The kernels that Inductor wrote."""
        return tuple(item for item in self.items if item.kind == "triton")

    @property
    def externs(self) -> tuple[ProgramItem, ...]:
        """The calls of library kernels."""
        return tuple(item for item in self.items if item.kind == "extern")

    @property
    def launches(self) -> int:
        """Launches of one call, a library call taken as one."""
        return len(self.items)

    def table(self) -> pd.DataFrame:
        """One row a launch, with the columns kind, name, operators, inputs, outputs, dtype, loads, stores,
        reductions, in_place, numel and bytes_moved.
        """
        columns = ("kind", "name", "operators", "inputs", "outputs", "dtype")
        columns += ("loads", "stores", "reductions", "in_place", "numel", "bytes_moved")
        rows = [[getattr(item, column) for column in columns] for item in self.items]
        return pd.DataFrame(rows, columns=columns)

    def _title(self) -> str:
        made = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        gpu = f" on {_plain(self.gpu)}" if self.gpu else ""
        return f"{self.launches} launches a call{gpu}" + (f" ({made})" if made else "")

    def __str__(self) -> str:
        rows = [_HEADINGS, *map(_cells, self.items)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self._title(), *(f"  {line}" for line in lines), *self._remarks()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        remarks = "".join(f"<p>{html.escape(remark)}</p>" for remark in self._remarks())
        return _html_table(self._title(), _HEADINGS, map(_cells, self.items)) + remarks

    def _remarks(self) -> list[str]:
        read = {b.name for item in self.items for b in item.inputs}
        named = [f"{arg} is {name}" for arg, name in self.names.items() if arg in read]
        return [_plain(text) for text in ([", ".join(named)] if named else []) + list(self.notes)]


_HEADINGS = ("launch", "from", "reads", "writes", "dtype", "in the source", "bytes")


def _cells(item: ProgramItem) -> tuple[str, ...]:
    counts = ((item.loads, "load"), (item.stores, "store"), (item.reductions, "reduction"))
    said = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts if n]
    moved = item.bytes_moved
    over = f" (over {', '.join(item.in_place)})" if item.in_place else ""
    cells = (
        item.name,
        " ".join(operator.rpartition("::")[2] for operator in item.operators),
        ", ".join(map(str, item.inputs)),
        ", ".join(map(str, item.outputs)) + over,
        item.dtype or "",
        ", ".join(said) or "a library's kernel",
        "not known" if moved is None else units.data(moved),
    )
    return tuple(map(_plain, cells))


def _html_table(caption: str, head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    titles = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{titles}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _plain(text: str) -> str:
    """Without control characters: names come from source that somebody else wrote."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "", text)


# ---------------------------------------------------------------------------- reading what Inductor generated


def read_source(source: str, *, on: str | None = None) -> Program:
    """The launches in a program that Inductor generated, here or on a real GPU (`TORCH_LOGS=output_code`).

    Nothing in it is executed. Raises ValueError when the text is no such program, or its sizes are symbols.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(
            f"not Python source, line {error.lineno}: give the text Inductor generated"
        ) from None
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "call"]
    if not calls:
        raise ValueError('there is no function "call" in this source: give the text Inductor generated')
    arguments = _arguments(tree)
    reader = _Reader(_kernels(tree), {b.name: b for b in arguments}, source.splitlines(), on)
    for statement in _flat(calls[0].body):
        reader.read(statement)
    return Program(on, {}, tuple(reader.items), source, arguments)


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        yield from _flat(getattr(statement, "body", []))


@dataclass(frozen=True)
class _Kernel:
    """A Triton kernel as text, with the names of its run-time arguments."""

    text: str
    arguments: tuple[str, ...]
    loads: Counter
    stores: Counter
    reductions: int
    arithmetic: int


def _kernels(tree: ast.Module) -> dict[str, _Kernel]:
    """Name = async_compile.triton('name', '''source''', ...)."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and _dotted(node.value) == "async_compile.triton":
            text = ast.literal_eval(node.value.args[1])
            found[node.targets[0].id] = _kernel(text, node.targets[0].id)
    return found


def _kernel(text: str, name: str) -> _Kernel:
    definition = next(
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name
    )
    names = tuple(a.arg for a in definition.args.args if "constexpr" not in ast.dump(a))
    calls = [n for n in ast.walk(definition) if isinstance(n, ast.Call)]
    touched = {
        what: Counter(_pointer(n.args[0]) for n in calls if _dotted(n) in whats)
        for what, whats in (("load", {"tl.load"}), ("store", {"tl.store", "tl.atomic_add"}))
    }
    reductions = sum(_dotted(n) in _REDUCES for n in calls)
    return _Kernel(text, names, touched["load"], touched["store"], reductions, _arithmetic(definition))


_REDUCES = {f"tl.{name}" for name in ("sum", "max", "min", "reduce", "argmax", "argmin", "xor_sum")}
_REDUCES |= {f"triton_helpers.{name}" for name in ("max2", "min2", "any", "prod", "welford")}
_REDUCES |= {f"triton_helpers.{name}" for name in ("max_with_index", "min_with_index")}
_REDUCES |= {f"triton_helpers.{name}" for name in ("online_softmax_reduce", "welford_reduce")}


def _pointer(node: ast.expr) -> str:
    """The pointer argument at the bottom of `in_ptr0 + (x0 + 768*x1)`."""
    while isinstance(node, ast.BinOp):
        node = node.left
    return ast.unparse(node)


def _arithmetic(definition: ast.FunctionDef) -> int:
    """Operations an element that the kernel's source does with values; arithmetic of indices is left out."""
    count = 0
    for statement in _flat(definition.body):
        if isinstance(statement, ast.Assign) and _on_values(statement):
            for node in ast.walk(statement.value):
                named = _dotted(node) if isinstance(node, ast.Call) else ""
                count += isinstance(node, (ast.BinOp, ast.Compare)) or named in _REDUCES
                count += (
                    named.startswith(("libdevice.", "tl_math.", "triton_helpers.")) and named not in _REDUCES
                )
    return count


def _on_values(statement: ast.Assign) -> bool:
    """tmp5 = tmp4 * tmp1, and not tmp0 = tl.load(in_ptr0 + (x0 + 768*x1)) nor x0 = xindex % 768."""
    target, *used = (n.id for n in ast.walk(statement) if isinstance(n, ast.Name))
    loads = any(_dotted(n) == "tl.load" for n in ast.walk(statement) if isinstance(n, ast.Call))
    return target.startswith("tmp") and any(name.startswith("tmp") for name in used) and not loads


def _dotted(node: ast.AST) -> str:
    """a.b.c of a call a.b.c(...) or an attribute a.b.c; empty for anything else."""
    node = node.func if isinstance(node, ast.Call) else node
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _arguments(tree: ast.Module) -> tuple[Buffer, ...]:
    """The program's inputs: its source makes random ones as well, `x = rand_strided(shape, strides, ...)`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _dotted(node.value) == "rand_strided":
            name, (shape, strides) = node.targets[0].id, map(_ints, node.value.args[:2])
            dtype = next((k.value for k in node.value.keywords if k.arg == "dtype"), None)
            found[name] = Buffer(name, shape, strides, _dtype(dtype))
    return tuple(found.values())


def _ints(node: ast.expr) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in ast.literal_eval(node))
    except (ValueError, TypeError):
        raise ValueError(
            f"line {node.lineno}: the size {ast.unparse(node)} is a symbol; compile with dynamic=False"
        ) from None


def _dtype(node: ast.expr | None) -> str | None:
    return None if node is None else units.dtype_name(ast.unparse(node))


_PRODUCTS = {"addmm": "aten::addmm", "bias_addmm": "aten::addmm", "baddbmm": "aten::baddbmm"}


@dataclass
class _Reader:
    """Walks over the statements of `call`, knows every buffer by name, and writes down the launches."""

    kernels: dict[str, _Kernel]
    buffers: dict[str, Buffer]
    lines: list[str]
    gpu: str | None
    items: list[ProgramItem] = field(default_factory=list)
    last_line: int = 0
    origins: dict[str, str] = field(default_factory=dict)

    def read(self, statement: ast.stmt) -> None:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and (found := self.buffer(value)):
            self.buffers[target.id] = replace(found, name=target.id)
            if found.name:  # the same memory under a new name, as in `buf2 = buf0; del buf0  # reuse`
                self.origins[target.id] = self.origins.get(found.name, found.name)
        if not isinstance(value, ast.Call):
            return
        called = _dotted(value)
        kernel = called.removesuffix(".run")
        if called == "assert_size_stride" and len(value.args) >= 3:
            self.measure(value)
        elif kernel != called and kernel in self.kernels:
            self.items.append(self.triton(kernel, value))
        elif called.startswith(("extern_kernels.", "torch.ops.", "aten.")):
            self.extern(called, value, target.id if isinstance(target, ast.Name) else None)

    def buffer(self, value: ast.expr | None) -> Buffer | None:
        """The buffer an expression stands for, None when it is none."""
        if isinstance(value, ast.Name):
            return self.buffers.get(value.id)
        if isinstance(value, ast.Subscript):
            return self.buffer(value.value)
        called = _dotted(value) if isinstance(value, ast.Call) else ""
        if called.startswith("empty_strided"):
            return Buffer("", *map(_ints, value.args[:2]), _dtype(value.args[2]))
        if called == "copy_if_misaligned":
            return self.buffer(value.args[0])
        if called == "reinterpret_tensor" and (base := self.buffer(value.args[0])):
            shape, strides = map(_ints, value.args[1:3])
            return Buffer(base.name, shape, strides, base.dtype)
        return None

    def measure(self, call: ast.Call) -> None:
        """assert_size_stride(buf1, shape, strides) says what a library call returned."""
        name = ast.unparse(call.args[0])
        known = self.buffers.get(name)
        shape, strides = map(_ints, call.args[1:3])
        self.buffers[name] = Buffer(name, shape, strides, known.dtype if known else None)
        last = self.items[-1] if self.items else None
        if last and last.kind == "extern" and [b.name for b in last.outputs] == [name]:
            self.items[-1] = replace(last, outputs=(self.buffers[name],))

    def operators(self, line: int) -> tuple[str, ...]:
        """The source operators of a call, from the nearest comment between it and the launch before."""
        above = self.lines[self.last_line : line]
        self.last_line = line
        for text in reversed(above):
            if found := re.search(r"Original ATen: \[(.*?)\]", text):
                names = re.findall(r"(\w+)\.(\w+)", found[1])
                return tuple(f"{space}::{name}" for space, name in names)
        return ()

    def triton(self, name: str, call: ast.Call) -> ProgramItem:
        kernel = self.kernels[name]
        given = dict(zip(kernel.arguments, call.args, strict=False))
        found = {argument: self.buffer(node) for argument, node in given.items()}
        pointers = {argument: b for argument, b in found.items() if b is not None}
        numels = {a: n.value for a, n in given.items() if a.endswith("numel") and isinstance(n, ast.Constant)}
        before = {a: replace(b, name=self.origins.get(b.name, b.name)) for a, b in pointers.items()}
        over = [a for a in pointers if kernel.loads[a] and kernel.stores[a]]
        return ProgramItem(
            "triton",
            name,
            self.gpu,
            operators=self.operators(call.lineno),
            inputs=tuple(before[a] if a in over else b for a, b in pointers.items() if kernel.loads[a]),
            outputs=tuple(b for a, b in pointers.items() if kernel.stores[a]),
            text=kernel.text,
            arguments=tuple(pointers.values()),
            loads=kernel.loads.total(),
            stores=kernel.stores.total(),
            reductions=kernel.reductions,
            in_place=tuple(before[a].name for a in over),
            numels=tuple(numels.items()),
        )

    def extern(self, called: str, call: ast.Call, target: str | None) -> None:
        operator = _operator(called)
        arguments = tuple(self.argument(node) for node in call.args)
        keywords = {k.arg: k.value for k in call.keywords}
        if operator in ("aten::addmm", "aten::baddbmm"):
            arguments += tuple(ast.unparse(keywords[k]) if k in keywords else "1" for k in ("beta", "alpha"))
        inputs = tuple(a for a in arguments if isinstance(a, Buffer))
        out = self.buffer(keywords.get("out"))
        if out is None and target and inputs:  # like its first input, until assert_size_stride says better
            out = self.buffers[target] = replace(inputs[0], name=target)
        if operator in VIEWS:
            return
        self.items.append(
            ProgramItem(
                "extern",
                operator,
                self.gpu,
                operators=tuple(o for o in self.operators(call.lineno) if o == operator or o in VIEWS),
                inputs=inputs,
                outputs=(out,) if out else (),
                text=ast.unparse(call),
                arguments=arguments,
            )
        )

    def argument(self, node: ast.expr) -> Buffer | str:
        return self.buffer(node) or ast.unparse(node)


def _operator(called: str) -> str:
    """extern_kernels.mm and torch.ops.aten.sort.default as a trace has them: aten::mm, aten::sort."""
    parts = called.removeprefix("torch.ops.").removeprefix("extern_kernels.").split(".")
    if len(parts) == 1:
        return _PRODUCTS.get(parts[0], f"aten::{parts[0]}")
    return f"{parts[0]}::{parts[1]}"


def _triton_work(item: ProgramItem) -> Work | None:
    """Buffers read and written once, no more of each than the loads and stores can reach."""
    if any(buffer.dtype is None for buffer in item.arguments):
        return None
    kernel = _kernel(item.text, item.name)
    moved = 0
    for argument, buffer in zip(kernel.arguments, item.arguments, strict=False):
        for times in filter(None, (kernel.loads[argument], kernel.stores[argument])):
            reached = times * item.numel if item.numel else buffer.elements
            moved += min(buffer.elements, reached) * units.itemsize(buffer.dtype)
    points = item.numel or max((b.elements for b in item.outputs), default=0)
    kind = "reduction" if item.reductions else "pointwise"
    shapes = tuple(b.shape for b in item.inputs)
    return Work(item.name, kind, item.dtype, Cost(0, moved, kernel.arithmetic * points), shapes)


def _extern_work(item: ProgramItem) -> Work | None:
    buffers = [a if isinstance(a, Buffer) else None for a in item.arguments]
    if (
        not item.inputs and item.outputs and item.dtype
    ):  # it makes something of nothing: seeds, random numbers
        made = item.outputs[0]
        return Work(
            item.name, "copy", item.dtype, Cost(0, made.elements * units.itemsize(made.dtype)), (made.shape,)
        )
    return cost.operator(
        item.name,
        [b.shape if b else () for b in buffers],
        [b.dtype if b else "Scalar" for b in buffers],
        strides=[b.strides if b else () for b in buffers],
        concrete=[a if isinstance(a, str) else "" for a in item.arguments],
    )


# ----------------------------------------------------------------------------------------------- machine code


@dataclass(frozen=True)
class Access:
    """A load or store of a Triton kernel: `lanes` elements in each program, `active` of them all together.

    `active` counts the lanes that the mask lets through, over all programs of the grid; None when the
    mask hangs on something that is not known before the run.
    """

    kind: str
    argument: str
    dtype: str
    lanes: int
    active: int | None

    @property
    def bytes_moved(self) -> int | None:
        """Bytes asked for by all programs together."""
        return None if self.active is None else self.active * units.itemsize(self.dtype)


@dataclass(frozen=True, repr=False)
class MachineCode:
    """A Triton kernel as the GPU would run it.

    `local_bytes` is thread-local memory, where spilled registers go: 0 says that nothing spilled.
    `instructions` counts each instruction in the listing `sass` (with modifiers, as nvdisasm writes
    them); `loops` says how many of its branches go back, and in a loop an instruction is run more often
    than it stands there. `accesses` are the loads and stores of the Triton code `ttir` before
    instructions were chosen.
    """

    name: str
    gpu: str
    target: str
    registers: int
    local_bytes: int
    shared_bytes: int
    num_warps: int
    grid: tuple[int, int, int] | None
    instructions: Mapping[str, int]
    loops: int
    accesses: tuple[Access, ...]
    versions: Mapping[str, str]
    sass: str = field(repr=False)
    ttir: str = field(repr=False)

    @property
    def threads(self) -> int:
        """Threads of one program."""
        return 32 * self.num_warps

    @property
    def total(self) -> int:
        """Instructions in the listing."""
        return sum(self.instructions.values())

    @property
    def loads(self) -> dict[int, int]:
        """Global loads in the listing: bytes that each brings to a thread, and how many there are."""
        return self._widths("LDG", "LDGSTS")

    @property
    def stores(self) -> dict[int, int]:
        """Global stores in the listing: bytes that each takes from a thread, and how many there are."""
        return self._widths("STG")

    @property
    def special(self) -> dict[str, int]:
        """Instructions for the special function unit (exponential, reciprocal, root, ...)."""
        return {name: n for name, n in self.instructions.items() if name.startswith("MUFU")}

    @property
    def atomics(self) -> int:
        """Atomic operations on global memory in the listing."""
        return sum(
            n
            for name, n in self.instructions.items()
            if name.split(".")[0] in ("ATOM", "ATOMG", "RED", "REDG")
        )

    @property
    def spills(self) -> int:
        """Loads and stores of local memory in the listing."""
        return sum(n for name, n in self.instructions.items() if name.split(".")[0] in ("LDL", "STL"))

    def _widths(self, *families: str) -> dict[int, int]:
        widths: Counter[int] = Counter()
        for name, n in self.instructions.items():
            if name.split(".")[0] in families:
                widths[_width(name)] += n
        return dict(sorted(widths.items()))

    @property
    def bytes_loaded_per_thread(self) -> int:
        """What the loads in the listing bring to one thread that runs each of them once."""
        return sum(width * n for width, n in self.loads.items())

    @property
    def bytes_stored_per_thread(self) -> int:
        """What the stores in the listing take from one thread that runs each of them once."""
        return sum(width * n for width, n in self.stores.items())

    @property
    def bytes_per_thread(self) -> int:
        """Loaded and stored by one thread inside all masks."""
        return self.bytes_loaded_per_thread + self.bytes_stored_per_thread

    @property
    def elements_per_thread(self) -> int:
        """Elements of the widest load or store that fall to one thread."""
        return -(-max((a.lanes for a in self.accesses), default=0) // self.threads)

    @property
    def bytes_moved(self) -> int | None:
        """Bytes that the loads and stores of all programs ask for, masked lanes left out.

        A row of weights that every program reads counts as often, though most of it will come from a cache.
        None without a grid, or when a mask is not known (see `accesses`).
        """
        moved = [access.bytes_moved for access in self.accesses]
        return None if not moved or None in moved else sum(moved)

    @property
    def bytes_per_program(self) -> float | None:
        """`bytes_moved` shared between the programs."""
        return None if self.bytes_moved is None else self.bytes_moved / math.prod(self.grid)

    def table(self) -> pd.DataFrame:
        """One row a load or store of the Triton code: kind, argument, dtype, lanes, active, bytes_moved."""
        columns = ("kind", "argument", "dtype", "lanes", "active", "bytes_moved")
        rows = [[getattr(access, column) for column in columns] for access in self.accesses]
        return pd.DataFrame(rows, columns=columns)

    def instruction_table(self) -> pd.DataFrame:
        """One row an instruction of the listing: instruction, count and what it does, where that is known."""
        rows = [(name, n, _meaning(name)) for name, n in self.instructions.items()]
        return pd.DataFrame(rows, columns=("instruction", "count", "meaning"))

    def _lines(self) -> list[tuple[str, str]]:
        moved = self.bytes_moved
        rows = [
            ("registers", f"{self.registers} a thread"),
            ("local memory", f"{self.local_bytes} B a thread" + ("" if self.local_bytes else ": no spills")),
            ("shared memory", f"{units.data(self.shared_bytes)} a program"),
            ("threads", f"{self.threads} a program"),
            ("global loads", _widths_text(self.loads)),
            ("global stores", _widths_text(self.stores)),
            *([("atomics", f"{self.atomics} a thread")] if self.atomics else []),
            ("special functions", ", ".join(f"{n} {name}" for name, n in self.special.items()) or "none"),
            ("instructions", f"{self.total}" + (f", {self.loops} of them branch back" if self.loops else "")),
            (
                "a thread moves",
                f"{self.bytes_per_thread} B"
                + (" in the listing, part of it in a loop" if self.loops else ""),
            ),
            ("all programs move", "not known: see table()" if moved is None else units.data(moved)),
        ]
        return [(what, value) for what, value in rows if self.grid or what != "all programs move"]

    def _title(self) -> str:
        grid = f", grid {' × '.join(map(str, self.grid))}" if self.grid else ""
        return f"{_plain(self.name)} on {_plain(self.gpu)} ({self.target}{grid})"

    def __str__(self) -> str:
        return "\n".join([self._title(), *(f"  {what:<18} {value}" for what, value in self._lines())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _html_table(self._title(), ("what", "in the machine code"), iter(self._lines()))


def _widths_text(widths: dict[int, int]) -> str:
    return ", ".join(f"{n} of {width} B" for width, n in widths.items()) + (" a thread" if widths else "none")


def _width(instruction: str) -> int:
    """Bytes a load or store moves for each thread: LDG.E.128 16, LDG.E.U16 2, LDG.E 4."""
    for part in instruction.split(".")[1:]:
        if found := re.fullmatch(r"[US]?(8|16|32|64|128|256)", part):
            return int(found[1]) // 8
    return 4


_MEANINGS = {
    "LDG": "load from global memory", "STG": "store to global memory",
    "LDL": "load from local memory (a spill)", "STL": "store to local memory (a spill)",
    "LDS": "load from shared memory", "STS": "store to shared memory",
    "LDGSTS": "copy from global to shared memory", "ATOMG": "atomic in global memory",
    "RED": "atomic in global memory, no result", "BAR": "wait for the other warps",
    "SHFL": "exchange within a warp", "BRA": "branch", "EXIT": "end", "MUFU.EX2": "2 to the power x",
    "MUFU.RCP": "1 / x", "MUFU.RSQ": "1 / √x", "MUFU.LG2": "logarithm to base 2", "MUFU.SQRT": "√x",
    "MUFU.SIN": "sine", "MUFU.COS": "cosine", "MUFU.TANH": "tanh", "FFMA": "a·b + c in float32",
    "FADD": "a + b in float32", "FMUL": "a·b in float32", "HMMA": "product on tensor cores",
    "HGMMA": "product on tensor cores, of a warp group", "IMMA": "integer product on tensor cores",
}  # fmt: skip


def _meaning(instruction: str) -> str:
    family, _, rest = instruction.partition(".")
    meaning = _MEANINGS.get(f"{family}.{rest.split('.')[0]}") or _MEANINGS.get(family, "")
    return f"{meaning}, {_width(instruction)} bytes" if family in ("LDG", "STG", "LDL", "STL") else meaning


def read_listing(
    sass: str,
    usage: str,
    ttir: str,
    *,
    name: str,
    gpu: str,
    num_warps: int,
    shared_bytes: int,
    grid: tuple[int, int, int] | None = None,
    numbers: Mapping[str, int] | None = None,
    versions: Mapping[str, str] | None = None,
) -> MachineCode:
    """A kernel from what nvdisasm (`sass`) and `cuobjdump -res-usage` print of it, and from its Triton code.

    `grid` is the number of programs, `numbers` are values of run-time arguments, which masks may hang on.
    Raises ValueError when the first two are no such text.
    """
    ttir = _without_locations(ttir)
    counts, loops = _instructions(sass)
    used = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    target = re.search(r"EF_CUDA_SM(\d+)|sm_(\d+)", sass)
    if not counts or len(used) < 3 or not target:
        raise ValueError(f"{name}: this is no listing of nvdisasm -c with the usage that cuobjdump prints")
    return MachineCode(
        name=name,
        gpu=gpu,
        target=f"sm_{target[1] or target[2]}",
        registers=used["REG"],
        local_bytes=used["STACK"] + used["LOCAL"],
        shared_bytes=shared_bytes,
        num_warps=num_warps,
        grid=grid,
        instructions=counts,
        loops=loops,
        accesses=accesses(ttir, grid, numbers or {}),
        versions=versions or {},
        sass=sass,
        ttir=ttir,
    )


def _instructions(sass: str) -> tuple[dict[str, int], int]:
    """How often each instruction stands in a listing of nvdisasm, and how many branches go back."""
    counts: Counter[str] = Counter()
    labels: dict[str, int] = {}
    loops = at = 0
    for line in sass.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = at
        if not (
            found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)(.*)", line)
        ):
            continue
        counts[found[2]] += 1
        target = re.search(r"\.L_x_\d+", found[3])
        # The last branch of a listing goes to itself and is padding; a label further down is not known yet.
        loops += bool(found[2].startswith("BRA") and target and labels.get(target[0], at) < at)
        at += 1
    counts.pop("NOP", None)  # padding
    return dict(sorted(counts.items())), loops


# ------------------------------------------------------------------------ loads and stores of the Triton code

_Region = tuple[str, str, str, str] | None  # variable, start, end and step of a loop; None for another region


@dataclass(frozen=True)
class _Touch:
    kind: str
    pointer: str
    mask: str | None
    element: str
    shape: tuple[int, ...]
    regions: tuple[_Region, ...]


class _Unknown(Exception):
    """A value that only the run can tell."""


def accesses(ttir: str, grid: tuple[int, int, int] | None, numbers: Mapping[str, int]) -> tuple[Access, ...]:
    """The loads and stores in Triton's intermediate code, with the lanes that their masks let through.

    The integer arithmetic of each mask is evaluated for every program of the grid and every turn of the loops
    around it; `numbers` are values of run-time arguments. Raises nothing: what is not known is None.
    """
    definitions, touches = _parsed(ttir)
    return tuple(
        Access(
            touch.kind,
            _base(touch.pointer, definitions),
            units.dtype_name(_ELEMENTS.get(touch.element, touch.element)),
            math.prod(touch.shape),
            None if grid is None else _active(touch, definitions, grid, numbers),
        )
        for touch in touches
    )


_ELEMENTS = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2",
}  # fmt: skip
_LOCATION = re.compile(r'[ \t]*loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*")*\))*\)')
_FOR = re.compile(r"scf\.for (%\w+) = (%\w+) to (%\w+) step (%\w+)")
_TOUCH = re.compile(r"tt\.(load|store|atomic_rmw|atomic_cas|descriptor_\w+)\b(.*?)\s*:\s*(.*)$")


def _parsed(ttir: str) -> tuple[dict[str, tuple[str, str]], list[_Touch]]:
    """What each %name is (operation, rest of the line), and loads and stores with the regions around them."""
    definitions: dict[str, tuple[str, str]] = {}
    touches: list[_Touch] = []
    regions: list[_Region | str] = []
    branched = False
    for line in map(str.strip, _without_locations(ttir).splitlines()):
        if line.startswith("}"):
            regions = regions[:-1]
        if found := re.match(r"(%[\w#:]+) = (?:\")?([\w.]+)(?:\")?\s*(.*)", line):
            definitions[found[1]] = (found[2], found[3])
        branched |= line.startswith("cf.")  # an early return: what follows may not be reached
        if touch := _TOUCH.search(line):
            around = tuple(r for r in regions if r != "plain")
            touches.append(_touch(touch, (None,) if branched else around))
        if line.endswith("{") or line.endswith("({"):
            loop = _FOR.search(line)
            regions.append(loop.groups() if loop else "plain" if _is_plain(line) else None)
    return definitions, touches


def _without_locations(ttir: str) -> str:
    """Without the file names and line numbers that Triton notes."""
    return re.sub(r"^#loc.*\n", "", _LOCATION.sub("", ttir), flags=re.M)


def _is_plain(line: str) -> bool:
    return line.startswith(("module", "tt.func"))


def _touch(found: re.Match[str], regions: tuple[_Region, ...]) -> _Touch:
    kind, operands, types = found[1], re.findall(r"%[\w#]+", found[2]), found[3]
    tensor = re.search(r"tensor<((?:\d+x)+)(?:!tt\.ptr<)?(\w+)", types)
    element = tensor[2] if tensor else re.search(r"ptr<(\w+)", types)[1]
    mask_at = {"load": 1, "store": 2, "atomic_rmw": 2}.get(kind, len(operands))
    return _Touch(
        kind.partition("_")[0] if kind.startswith("atomic") else kind.removeprefix("descriptor_"),
        operands[0],
        operands[mask_at] if len(operands) > mask_at else None,
        element,
        tuple(int(n) for n in tensor[1].split("x") if n) if tensor else (),
        (None,) if kind.startswith("descriptor") else regions,  # of a block, whose edges the hardware masks
    )


def _base(pointer: str, definitions: Mapping[str, tuple[str, str]]) -> str:
    """The argument of the kernel that a pointer is reckoned from."""
    while pointer in definitions and (found := re.search(r"%[\w#]+", definitions[pointer][1])):
        pointer = found[0]
    return pointer.lstrip("%")


_CHUNK = 2**21  # lanes evaluated at a time: a few arrays of 16 MB
_MOST = 2**32  # lanes that are worth evaluating


def _active(touch: _Touch, definitions, grid, numbers: Mapping[str, int]) -> int | None:
    """Lanes inside the mask, over all programs and turns; None when that is not known before the run."""
    lanes, programs = math.prod(touch.shape), math.prod(grid)
    if None in touch.regions or lanes * programs > _MOST:
        return None
    total, step = 0, max(1, _CHUNK // lanes)
    known = {f"%{name}": np.int64(value) for name, value in numbers.items()}
    try:
        for first in range(0, programs, step):
            ids = np.arange(first, min(first + step, programs))
            values = _Values(definitions, known, _program_ids(ids, grid))
            counted, same = _counted(touch, values, touch.regions, len(ids))
            if same:  # it is the same in every program
                return counted * programs
            total += counted
    except _Unknown:
        return None
    return total


def _program_ids(ids: np.ndarray, grid: tuple[int, int, int]) -> dict[str, np.ndarray]:
    x, y, _ = grid
    return {"x": ids % x, "y": ids // x % y, "z": ids // (x * y)}


def _counted(touch: _Touch, values: _Values, regions, programs: int) -> tuple[int, bool]:
    """Lanes inside the mask, of one program where all are the same (True), else of all of them (False)."""
    if regions:
        variable, *bounds = regions[0]
        start, end, step = (values.number(bound) for bound in bounds)
        turns = [
            _counted(touch, values.with_(variable, turn), regions[1:], programs)
            for turn in range(start, end, step)
        ]
        same = all(same for _, same in turns)
        return sum(n if same or not one else n * programs for n, one in turns), same
    if touch.mask is None:
        return math.prod(touch.shape), True
    mask = values.of(touch.mask)
    lanes = math.prod(touch.shape)
    each = mask.reshape(len(mask), -1)
    counted = int(np.count_nonzero(each)) * (lanes // each.shape[1])
    return counted, len(mask) == 1


@dataclass
class _Values:
    """The integers of Triton code as arrays [programs or 1, *tensor shape], broadcast where they can be."""

    definitions: Mapping[str, tuple[str, str]]
    known: Mapping[str, np.ndarray]
    program_ids: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}

    def with_(self, name: str, value: int) -> _Values:
        return replace(self, known={**self.known, name: np.int64(value)})

    def number(self, name: str) -> int:
        """One number that is the same in all programs."""
        value = self.of(name)
        if value.size != 1:
            raise _Unknown
        return int(value.reshape(-1)[0])

    def of(self, name: str) -> np.ndarray:
        if name not in self.found:
            self.found[name] = self._evaluated(name)
        return self.found[name]

    def _evaluated(self, name: str) -> np.ndarray:
        if name in self.known:
            return np.asarray(self.known[name]).reshape(1)
        if name not in self.definitions:
            raise _Unknown
        operation, rest = self.definitions[name]
        short = operation.rpartition(".")[2]
        if operation == "arith.constant":
            return _constant(rest)
        if short == "get_program_id":
            return self.program_ids[rest[0]]
        if short == "make_range":
            bounds = dict(re.findall(r"(start|end) = (\d+)", rest))
            return np.arange(int(bounds["start"]), int(bounds["end"])).reshape(1, -1)
        operands = [self.of(operand) for operand in re.findall(r"%[\w#]+", rest.split(" : ")[0])]
        return _applied(short, operands, rest)


def _constant(rest: str) -> np.ndarray:
    """`dense<3072> : tensor<4096xi32>`, `512 : i32` or `true`: one number, with the tensor's dimensions."""
    number = re.match(r"(?:dense<)?(-?\d+|true|false)>?(?: :|$)", rest)
    if not number:
        raise _Unknown
    sizes = re.search(r"tensor<((?:\d+x)+)", rest)
    value = {"true": 1, "false": 0}.get(number[1]) if number[1].isalpha() else int(number[1])
    return np.asarray(value).reshape((1,) * (1 + (sizes[1].count("x") if sizes else 0)))


_BINARY: dict[str, Callable] = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "andi": np.bitwise_and, "ori": np.bitwise_or,
    "xori": np.bitwise_xor, "minsi": np.minimum, "minui": np.minimum, "maxsi": np.maximum,
    "maxui": np.maximum,
    "shli": np.left_shift, "shrsi": np.right_shift, "shrui": np.right_shift,
    "divui": np.floor_divide, "remui": np.remainder, "remsi": np.fmod, "ceildivsi": lambda a, b: -(-a // b),
    "divsi": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)),  # C rounds towards 0
}  # fmt: skip
_COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


def _applied(short: str, operands: list[np.ndarray], rest: str) -> np.ndarray:
    if short in _BINARY and len(operands) == 2:
        return _BINARY[short](*operands)
    if short == "cmpi":
        relation = rest.split(",")[0].split()[0]
        compare = {"eq": np.equal, "ne": np.not_equal}.get(relation) or _COMPARE[relation[1:]]
        return compare(*operands).astype(np.int64)
    if short == "select":
        return np.where(operands[0] != 0, operands[1], operands[2])
    if short in ("extsi", "extui", "trunci", "index_cast", "broadcast"):
        return operands[0]  # a broadcast is left to numpy
    if short == "splat":
        dimensions = re.search(r"-> tensor<((?:\d+x)+)", rest)[1].count("x")
        return operands[0].reshape(-1, *(1,) * dimensions)
    if short == "expand_dims":
        return np.expand_dims(operands[0], 1 + int(re.search(r"axis = (\d+)", rest)[1]))
    raise _Unknown
