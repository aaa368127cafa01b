"""What every chapter keeps, so that it reads well on the site, in Colab and on GitHub, and is tested."""

import re
from pathlib import Path

import address
import chapters
import pytest
from check_site import MACHINE_PATH
from nbformat import NotebookNode

PATHS = sorted((chapters.ROOT / "book").glob("*.ipynb"))
NOT_COMPARED = {"nbval-ignore-output", "nbval-skip", "skip-execution"}
LONGEST_CELL = 20


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture
def chapter(path) -> NotebookNode:
    return chapters.read(path)


def code(chapter: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in chapter.cells if cell.cell_type == "code"]


def prose(chapter: NotebookNode) -> list[str]:
    return [cell.source for cell in chapter.cells if cell.cell_type == "markdown"]


def shown(cell: NotebookNode) -> list[str]:
    """The texts among a cell's outputs; pictures are not text."""
    data = [item for output in cell.outputs for item in output.get("data", {}).items()]
    streams = [output.text for output in cell.outputs if output.output_type == "stream"]
    return streams + [str(value) for kind, value in data if not kind.startswith("image/")]


def has_image(cell: NotebookNode) -> bool:
    return any(kind.startswith("image/") for output in cell.outputs for kind in output.get("data", {}))


def test_the_contents_list_exactly_the_chapters_there_are():
    assert sorted(chapters.chapters()) == PATHS


def test_a_chapter_is_stored_in_the_form_that_make_outputs_writes(path, chapter):
    assert path.read_text(encoding="utf-8") == chapters.text(chapters.normal(chapter))


def test_a_chapter_opens_with_its_title_and_then_the_library_cell(chapter):
    title, first = chapter.cells[:2]
    wanted = address.library_cell(address.address(chapters.ROOT))
    assert title.source.startswith("# ")
    assert (first.id, first.source, first.metadata) == (wanted.id, wanted.source, wanted.metadata)


def test_every_code_cell_was_run_in_order_and_none_failed(chapter):
    cells = code(chapter)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [output.evalue for cell in cells for output in cell.outputs if output.output_type == "error"] == []


def test_at_least_half_of_the_code_cells_are_compared_with_their_stored_outputs(chapter):
    tagged = [cell for cell in code(chapter) if not NOT_COMPARED & set(cell.metadata.get("tags", []))]
    compared = [cell for cell in tagged if "NBVAL_" not in cell.source]
    assert 2 * len(compared) >= len(code(chapter))


def test_no_cell_is_longer_than_a_screen(chapter):
    assert [cell.source for cell in code(chapter) if len(cell.source.splitlines()) > LONGEST_CELL] == []


def test_prose_stands_before_every_code_cell_and_after_every_output(chapter):
    kinds = [cell.cell_type for cell in chapter.cells]
    assert [place for place, pair in enumerate(zip(kinds, kinds[1:])) if pair == ("code", "code")] == []
    assert kinds[-1] == "markdown"


def test_every_figure_has_a_description_for_readers_who_do_not_see_it(chapter):
    figures = [cell for cell in code(chapter) if has_image(cell)]
    described = [cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "").strip() for cell in figures]
    assert [cell.source for cell, alt in zip(figures, described) if not alt] == []
    undescribed = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"]+\")")
    assert [text for text in prose(chapter) if undescribed.search(text)] == []


def test_nothing_in_a_chapter_belongs_to_the_machine_that_ran_it(chapter):
    texts = [cell.source for cell in chapter.cells] + [text for cell in code(chapter) for text in shown(cell)]
    assert [match.group() for text in texts for match in MACHINE_PATH.finditer(text)] == []


def test_no_pair_of_dollar_signs_turns_prose_into_a_formula(chapter):
    plain = [re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL) for text in prose(chapter)]
    assert [text for text in plain if text.count("$") > 1] == []
