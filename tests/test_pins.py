"""pyproject.toml, constraints.txt, environment.yml, Makefile and CITATION.cff tell the same story."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import tutorial_lib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
ASKED = [Requirement(text) for part in (PROJECT["dependencies"], *EXTRAS.values()) for text in part]
DIRECT = {canonicalize_name(requirement.name) for requirement in ASKED}
LINUX_ONLY = {canonicalize_name(Requirement(text).name) for text in EXTRAS["triton"]}
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
CONDA_PIP = CONDA[-1]["pip"]


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def version(pin: Requirement) -> str:
    return re.fullmatch(r"==([\w.]+)", str(pin.specifier)).group(1)


def test_every_constraint_is_one_exact_version_without_a_local_part():
    assert [str(pin) for pin in pins().values() if not re.fullmatch(r"==[\w.]+", str(pin.specifier))] == []


@pytest.mark.parametrize("requirement", ASKED, ids=str)
def test_what_pyproject_asks_for_is_pinned_to_a_version_it_accepts(requirement):
    pin = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version(pin))


def test_gpu_packages_are_asked_for_and_pinned_only_on_linux_with_x86_64():
    mac = {"sys_platform": "darwin", "platform_machine": "arm64"}
    linux = {"sys_platform": "linux", "platform_machine": "x86_64"}
    markers = [Requirement(text).marker for text in EXTRAS["triton"]]
    markers += [pins()[name].marker for name in LINUX_ONLY]
    assert {(marker.evaluate(linux), marker.evaluate(mac)) for marker in markers} == {(True, False)}


def test_conda_names_the_direct_dependencies_with_the_versions_of_the_constraints():
    named = [Requirement(text) for text in CONDA_PIP if text[0] != "-"]
    named = {canonicalize_name(requirement.name): version(requirement) for requirement in named}
    assert named == {name: version(pins()[name]) for name in DIRECT - LINUX_ONLY}


def test_conda_and_make_install_the_same_thing_under_the_same_constraints():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    made = re.search(r"pip install --quiet (-c \S+) (-e) '(\S+)'", makefile)
    assert [text for text in CONDA_PIP if text[0] == "-"] == [made[1], f"{made[2]} {made[3]}"]
    assert set(re.search(r"\[(.*)\]", made[3])[1].split(",")) == set(EXTRAS)


def test_every_pinned_package_takes_the_oldest_python_that_the_project_promises():
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    asked = {name: _asked_python(name) for name in pins()}
    assert {name: text for name, text in asked.items() if not SpecifierSet(text).contains(oldest)} == {}


def _asked_python(name: str) -> str:
    try:
        return importlib.metadata.metadata(name)["Requires-Python"] or ""
    except importlib.metadata.PackageNotFoundError:  # a pin for another platform
        return ""


def test_conda_brings_a_python_that_the_package_supports():
    python = next(text for text in CONDA if str(text).startswith("python=")).removeprefix("python=")
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)


def test_the_citation_names_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == tutorial_lib.__version__
