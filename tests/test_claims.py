"""The ledger: a judged claim has a check, an open one a prediction and a command, and the page says the same."""

import contextlib
import importlib.util
import inspect
import shlex

import chapters
import pytest
import torch

from tutorial_lib import __main__ as cli
from tutorial_lib import cited, claims, measure, recordings
from tutorial_lib.claims import Claim


def _tool():
    """tools/claims.py under a name of its own, since the package has a module of that name."""
    spec = importlib.util.spec_from_file_location("claims_page", chapters.ROOT / "tools" / "claims.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


TOOL = _tool()
CHECKS = TOOL.checks()
OPEN = [claim.key for claim in claims.claims() if claim.verdict == "open"]


def test_the_ledger_has_83_statements_and_25_inferences():
    assert [c.key for c in claims.claims()] == [f"C{n}" for n in range(1, 84)] + [f"E{n}" for n in range(1, 26)]


@pytest.mark.parametrize("claim", claims.claims(), ids=lambda claim: claim.key)
def test_a_claim_has_a_check_exactly_when_it_has_been_judged(claim):
    assert (claim.key in CHECKS) == (claim.verdict != "open")


def test_every_check_belongs_to_a_claim():
    assert [key for key in CHECKS if key not in {claim.key for claim in claims.claims()}] == []


def test_every_published_figure_belongs_to_a_claim():
    known = {claim.key for claim in claims.claims()}
    assert [figure.claim for figure in cited.all_figures() if figure.claim.split(".")[0] not in known] == []


@pytest.mark.parametrize("key", OPEN)
def test_the_command_that_would_settle_an_open_claim_is_one_the_library_has(key):
    words = shlex.split(claims.claim(key).command)
    if words[:3] == ["python", "-m", "tutorial_lib"]:
        chosen = cli._parser().parse_args(words[3:])
        assert recordings.chosen(cli.workloads().values(), chosen.only)
    else:
        assert words[:2] == ["python", "-c"] and len(words) == 3


@pytest.mark.parametrize("key", [key for key in OPEN if " -c " in claims.claim(key).command])
def test_a_program_that_would_settle_a_claim_calls_what_the_library_has_as_it_wants_it(key, monkeypatch):
    """It runs on tensors without data; only the measurement itself, which needs the GPU, is left out."""
    asked = []

    def asking(function):
        def ask(*arguments, **options):
            asked.append(inspect.signature(function).bind(*arguments, **options))
            with contextlib.suppress(RuntimeError):  # a pinned backend that this machine lacks
                arguments[0]()

        return ask

    monkeypatch.setattr(measure, "device", lambda: "meta")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 0))
    for name in ("record", "bench"):
        monkeypatch.setattr(measure, name, asking(getattr(measure, name)))
    exec(shlex.split(claims.claim(key).command)[2], {})
    assert asked


def test_the_stored_results_are_those_of_the_checks_there_are_and_all_passed():
    assert claims.checked()["checks"] == {key: "passed" for key in claims.checked()["checks"]}
    assert set(claims.checked()["checks"]) == set(CHECKS)


def test_the_page_is_made_from_the_ledger_and_the_checks():
    stored, made = chapters.read(TOOL.PAGE), TOOL.page()
    assert [(cell.id, cell.source) for cell in stored.cells] == [(cell.id, cell.source) for cell in made.cells]


def test_a_verdict_without_its_witness_is_refused():
    with pytest.raises(ValueError, match="C1: a claim that is holds has witness and finding"):
        Claim("C1", 1, "says", "holds", finding="found")


def test_an_open_claim_with_a_finding_is_refused():
    with pytest.raises(ValueError, match="C1: a claim that is open has prediction and command"):
        Claim("C1", 1, "says", "open", prediction="p", command="c", finding="f")


def test_a_key_that_is_not_there_is_named():
    with pytest.raises(KeyError, match="no claim 'C84'"):
        claims.claim("C84")


def test_the_counts_of_the_verdicts_add_up_to_the_claims():
    assert claims.counts().loc["all"].sum() == 108
