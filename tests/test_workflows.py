"""The GitHub workflows are valid, and run the commands that the README gives."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def lint(schema: str, path: Path) -> subprocess.CompletedProcess:
    """check-jsonschema with the copy of `schema` that it ships: no network is asked."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(path)]
    return subprocess.run(command, capture_output=True, text=True)


def steps(path: Path) -> list[dict]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_follows_the_schema(path):
    done = lint("github-workflows", path)
    assert done.returncode == 0, done.stdout


def test_the_citation_file_follows_the_schema():
    done = lint("citation-file-format", ROOT / "CITATION.cff")
    assert done.returncode == 0, done.stdout


def test_the_linter_refuses_a_workflow_without_a_machine_to_run_on(tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text("on: push\njobs:\n  test:\n    steps:\n      - run: make test\n")
    assert lint("github-workflows", broken).returncode == 1


def test_workflows_and_ci_run_targets_that_the_makefile_has():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    run = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    run.append((ROOT / ".ci/run").read_text(encoding="utf-8"))
    called = set(re.findall(r"^make ([a-z]+)", "\n".join(run), re.MULTILINE))
    assert {"test", "book"} <= called <= targets


def test_only_the_job_that_publishes_may_write():
    publish = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8"))
    assert publish["permissions"] == {"contents": "read"}
    assert publish["jobs"]["deploy"]["permissions"] == {"pages": "write", "id-token": "write"}
