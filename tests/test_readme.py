"""The README's example runs as it is printed, and what it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_library_example_runs_and_its_verdict_agrees_on_every_count(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)  # the example writes its trace where it runs
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    said = capsys.readouterr().out
    # 2 · 512 · 256 · 1024 = 268 435 456 FLOPs, once for each prediction and once in the verdict
    assert said.count("268.4 MFLOP") >= 3
    counts = names["verdict"](names["prediction"], names["trace"], only=("operators", "work items", "FLOPs", "bytes"))
    assert counts.agrees, str(counts)


def test_the_example_has_about_ten_lines():
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 12


def test_every_file_and_folder_the_readme_links_to_exists():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_make_target_the_readme_names_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^)make ([a-z]+)\b", README, flags=re.MULTILINE))
    assert {"book", "test"} <= named
    assert [target for target in named if not re.search(rf"^{target}:", makefile, flags=re.MULTILINE)] == []
