"""Writes down, when asked, which checks of published claims passed, and on what: `--claims-json FILE`.

And a fixture that several files share.
"""

import json
from pathlib import Path

import pytest

RESULTS: dict[str, str] = {}
WORSE = ("passed", "skipped", "failed")  # a claim with several checks is as good as the worst


def pytest_addoption(parser):
    parser.addoption("--claims-json", metavar="FILE", type=Path, help="write the outcome of each claim's checks")


def pytest_runtest_logreport(report):
    for key in dict(report.user_properties).get("claims", ()):
        if report.when == "call" or report.outcome != "passed":
            RESULTS[key] = max(RESULTS.get(key, "passed"), report.outcome, key=WORSE.index)


def pytest_collection_modifyitems(items):
    for item in items:
        keys = tuple(key for mark in item.iter_markers("claims") for key in mark.args)
        if keys:
            item.user_properties.append(("claims", keys))


def pytest_sessionfinish(session):
    path = session.config.getoption("--claims-json", default=None)
    if path is None or session.config.getoption("collectonly"):
        return
    from tutorial_lib import measure

    found = measure.environment()
    ordered = sorted(RESULTS, key=lambda key: (key[0], int(key[1:])))
    stamp = {
        "date": found["date"],
        "machine": _machine(found),
        "versions": {name: version for name, version in found["versions"].items() if version},
        "checks": {key: RESULTS[key] for key in ordered},
    }
    path.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def _machine(found: dict) -> str:
    cpu, gpu = found["cpu"], found["gpu"]
    return f"{cpu['name']}, {cpu['threads']} threads" + (f"; {gpu['name']}" if gpu else "; no GPU")


@pytest.fixture
def one_thread():
    """torch on one thread: which operators run, and what they allocate, may depend on how many there are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
