"""The training job whose recordings ship with the book: both forms agree, its files hold what was planted."""

from importlib.resources import files

import pytest
import record_job
import torch

from tutorial_lib import timeline
from tutorial_lib.trace import Trace, read_trace

DATA = files("tutorial_lib") / "data"
NAMES = {False: "job_as_found.json.gz", True: "job_mended.json.gz"}


@pytest.fixture(scope="module")
def recorded() -> dict[bool, Trace]:
    return {mended: read_trace(str(DATA / name)) for mended, name in NAMES.items()}


def counts(trace: Trace, step: int) -> dict[str, int]:
    return timeline.operators(trace, step=step)["name"].str.removeprefix("aten::").value_counts().to_dict()


@pytest.mark.parametrize("length", sorted(set(record_job.LENGTHS)))
def test_the_mended_model_computes_what_the_found_one_does(length):
    torch.manual_seed(0)
    found, mended = record_job.AsFound(), record_job.Mended()
    mended.load_state_dict(found.state_dict())  # bfloat16 weights are exact in float32
    tokens = torch.randint(record_job.VOCABULARY, (2, length + 1))
    losses = [record_job.loss(model(tokens[:, :-1]), tokens[:, 1:]) for model in (found, mended)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-5)
    for loss in losses:
        loss.backward()
    for a, b in zip(found.parameters(), mended.parameters(), strict=True):  # the found job's are rounded
        torch.testing.assert_close(a.grad.float(), b.grad, rtol=2e-2, atol=1e-4)


def test_both_ways_to_clip_leave_the_same_gradients():
    torch.manual_seed(0)
    models = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
    models[1].load_state_dict(models[0].state_dict())
    for model, clip in zip(models, (record_job.clipped_one_by_one, record_job.clipped_at_once), strict=True):
        model(torch.ones(64, 8)).square().sum().backward()
        clip(model)
    total = torch.cat([p.grad.flatten() for p in models[0].parameters()]).norm()
    torch.testing.assert_close(total, torch.tensor(1.0))
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_the_recordings_are_small_have_three_steps_and_the_rates_of_their_machine(recorded):
    for mended, trace in recorded.items():
        assert (DATA / NAMES[mended]).stat().st_size <= 40_000
        assert len(timeline.steps(trace)) == 3
        assert {"flops_per_s", "bytes_per_s", "launch_us"} == set(trace.metadata["measured_rates"])


def test_a_regular_step_of_the_found_job_has_the_habits_and_the_mended_one_has_not(recorded):
    found, mended = (counts(recorded[key], step=3) for key in (False, True))
    # 6 weights are cast forward, and so are their gradients; a number is read for each of the 6
    assert found["_to_copy"] >= 12 and found["item"] == 6
    assert found["masked_fill"] == 2 and found["pow"] == 2  # once forward, once backward
    assert found["clone"] > 3 + 5 and found["tanh"] == 1
    assert [mended.get(name, 0) for name in ("item", "masked_fill", "pow", "tanh")] == [0, 0, 0, 0]
    # clip_grad_norm_ converts one number twice; token numbers are a slice, which is copied where it is read
    assert mended["_to_copy"] == 2 and mended["clone"] == 3
    assert mended["gelu"] == 1 and mended["scaled_dot_product_attention"] == 1
    assert mended["mm"] == found["mm"] == 15  # five products: forward, and two gradients each


def test_only_the_found_job_compiles_again_in_its_odd_step(recorded):
    def compiled(trace: Trace) -> list[int]:
        starts_us = trace.events["start_us"][trace.events["name"].str.contains("compile_inner")]
        rows = timeline.steps(trace).itertuples()
        return [int(row.step) for row in rows if starts_us.between(row.start_us, row.end_us).any()]

    assert (compiled(recorded[False]), compiled(recorded[True])) == ([4], [])
