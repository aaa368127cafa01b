"""The training job of the chapter about your own model: as it was found, and mended. Records a trace of each.

    python tools/record_job.py      # writes job_as_found.json.gz and job_mended.json.gz, in tutorial_lib/data

A small language model, one block, trained on random tokens, on the CPU with one thread. Six habits of real
jobs are planted in it, and `Mended` is without them: weights cast to float32 in every call, activations kept
as [batch, features, tokens], attention and GELU by hand, an `.item()` for every parameter, and a compiled
loss that meets a new length. Both compute the same loss (tests/test_record_job.py). Each is recorded several
times and the recording with the quickest regular steps is kept, so that little of it belongs to other
programs; run it on a quiet machine. What no reader of the chapter uses is left out: the files ship with the
package.
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tutorial_lib import measure, timeline  # noqa: E402
from tutorial_lib.trace import Trace, read_trace  # noqa: E402

DATA = ROOT / "tutorial_lib" / "data"
BATCH, FEATURES, HEADS, TOKENS, VOCABULARY = 4, 128, 4, 128, 512
LENGTHS = (TOKENS, TOKENS, 96)  # of the recorded steps; the last one is shorter
ROUNDS = 30


class AsFound(nn.Module):
    """One block of a language model with the habits; x is [batch, features, tokens] between its parts."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, FEATURES, dtype=dtype)
        self.qkv = nn.Linear(FEATURES, 3 * FEATURES, bias=False, dtype=dtype)
        self.out = nn.Linear(FEATURES, FEATURES, bias=False, dtype=dtype)
        self.up = nn.Linear(FEATURES, 4 * FEATURES, bias=False, dtype=dtype)
        self.down = nn.Linear(4 * FEATURES, FEATURES, bias=False, dtype=dtype)
        self.head = nn.Linear(FEATURES, VOCABULARY, bias=False, dtype=dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, tokens, vocabulary] of token numbers [batch, tokens]."""
        x = self.embedded(tokens)
        x = x + self.linear(self.out, self.attention(self.linear(self.qkv, x)))
        x = x + self.linear(self.down, self.activation(self.linear(self.up, x)))
        return self.logits(x)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embed(tokens).float().transpose(1, 2)

    def linear(self, layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        rows = x.transpose(1, 2)  # not contiguous: nn.functional.linear copies it
        return nn.functional.linear(rows, layer.weight.float()).transpose(1, 2)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, features, tokens] -> [batch, heads, tokens, features of a head]"""
        return x.unflatten(1, (HEADS, -1)).transpose(2, 3)

    def attention(self, qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.heads(part) for part in qkv.chunk(3, dim=1))
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return (weights @ v).transpose(2, 3).flatten(1, 2)

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.head, x).transpose(1, 2)


class Mended(AsFound):
    """The same block without the habits: [batch, tokens, features] throughout, float32, fused operators."""

    def __init__(self) -> None:
        super().__init__(torch.float32)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embed(tokens)

    def linear(self, layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    def attention(self, qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=2))
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return gelu(x, approximate="tanh")

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def clipped_one_by_one(model: nn.Module) -> None:
    """Clip the gradients' norm at 1, with a number of Python for every parameter."""
    norm = sum(p.grad.float().norm().item() ** 2 for p in model.parameters()) ** 0.5
    for p in model.parameters():
        p.grad.mul_(min(1.0, 1.0 / norm))


def clipped_at_once(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


class Job:
    """Training steps; each call is one, with the next of the lengths."""

    def __init__(self, mended: bool) -> None:
        torch.manual_seed(0)
        torch.compiler.reset()
        self.model = Mended() if mended else AsFound()
        self.clip = clipped_at_once if mended else clipped_one_by_one
        # backend="eager" needs no C++ compiler: what is recorded of a recompilation is Dynamo's part.
        self.loss = loss if mended else torch.compile(loss, backend="eager")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, foreach=mended)
        self.tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1))
        self.calls = 0

    def step(self, length: int = TOKENS) -> None:
        tokens, targets = self.tokens[:, :length], self.tokens[:, 1 : length + 1]
        self.loss(self.model(tokens), targets).backward()
        self.clip(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def __call__(self) -> None:
        """The step that `measure.record` makes: the warm-up and then the recorded lengths."""
        recorded = self.calls - (WARMUP + 2)
        self.step(LENGTHS[recorded] if recorded >= 0 else TOKENS)
        self.calls += 1


WARMUP = 3


def record(mended: bool, path: Path) -> Trace:
    """One recording of a fresh job."""
    job = Job(mended)
    label = "job, mended" if mended else "job, as found"
    return measure.record(job, path, steps=len(LENGTHS), warmup=WARMUP, label=label, device="cpu")


def regular_us(trace: Trace) -> float:
    """How long the recorded steps of full length took together."""
    return float(timeline.steps(trace)["duration_us"].to_numpy()[[n == TOKENS for n in LENGTHS]].sum())


_LEFT_OUT = {"Record function id", "Ev Idx", "Fwd thread id", "Sequence number", "External id"}
_OF_VIEWS = {"Concrete Inputs", "Input Strides"}  # of what neither computes nor moves data


def shrunk(path: Path, target: Path, rates: dict[str, object]) -> None:
    """Writes the trace at `path` to `target`: whole µs, the machine's rates, and not what nobody reads."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    events = [e for e in data["traceEvents"] if e.get("cat") != "fwdbwd"]
    start_us = min(e["ts"] for e in events if e.get("ph") == "X")
    for event in events:
        idle = event["name"] in timeline.VIEWS | timeline.ALLOCATIONS
        left_out = _LEFT_OUT | (_OF_VIEWS if idle else set())
        event["args"] = {k: v for k, v in event.get("args", {}).items() if k not in left_out}
        if event.get("ph") == "X":  # both ends rounded, so that what lay inside of something still does
            start, end = (round(event["ts"] + d - start_us) for d in (0, event["dur"]))
            event["ts"], event["dur"] = start, end - start
        elif "ts" in event:
            event["ts"] = max(0, round(event["ts"] - start_us))
    text = json.dumps(data | {"traceEvents": events, "measured_rates": rates}, separators=(",", ":"))
    with open(target, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(text.encode())


def main() -> None:
    torch.set_num_threads(1)
    on = measure.calibrate("cpu", dtypes=["float32"])
    rates = {"flops_per_s": dict(on.flops_per_s), "bytes_per_s": on.bytes_per_s, "launch_us": on.launch_us}
    for mended, name in ((False, "job_as_found.json.gz"), (True, "job_mended.json.gz")):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, f"{i}.json.gz") for i in range(ROUNDS)]
            quickest = min(paths, key=lambda path: regular_us(record(mended, path)))
            shrunk(quickest, DATA / name, rates)
        trace = read_trace(DATA / name)
        took, size = regular_us(trace) / 1000, (DATA / name).stat().st_size / 1000
        print(f"{name}: {len(trace.events):,} events, {size:.0f} kB, regular steps {took:.1f} ms together")


if __name__ == "__main__":
    main()
