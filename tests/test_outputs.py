"""Storing a chapter: fresh outputs and counts, the cells' own ids, nothing of the machine."""

import chapters
import outputs
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook


def notebook(source: str):
    metadata = {"tags": ["keep"], "execution": {"iopub.execute_input": "2026-01-01T00:00:00Z"}}
    cell = new_code_cell(source, id="sum", execution_count=7, metadata=metadata)
    return new_notebook(cells=[new_markdown_cell("# One?", id="title"), cell], metadata={"vscode": {"x": 1}})


def test_a_chapter_is_stored_with_fresh_outputs_and_the_ids_it_had():
    title, cell = outputs.executed(notebook("print(1)\nprint(2)\n3")).cells
    assert (title.id, cell.id, cell.execution_count) == ("title", "sum", 1)
    assert [output.get("text") for output in cell.outputs] == ["1\n2\n", None]
    assert cell.metadata == {"tags": ["keep"]}


def test_a_chapter_runs_in_an_empty_folder():
    cell = outputs.executed(notebook("import os\nos.listdir()")).cells[-1]
    assert cell.outputs[0].data["text/plain"] == "[]"


def test_a_failing_cell_is_an_error_and_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "one.ipynb"
    chapters.write(path, notebook("1 / 0"))
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        outputs.main([str(path)])
    assert path.read_bytes() == before


def test_the_metadata_of_a_chapter_is_the_same_on_every_machine():
    assert chapters.normal(notebook("1")).metadata == chapters.METADATA


def test_a_chapter_that_the_contents_name_but_nobody_wrote_is_an_error(tmp_path):
    (tmp_path / "_toc.yml").write_text("root: book/one\nparts:\n  - chapters:\n      - file: book/two\n")
    with pytest.raises(FileNotFoundError, match="book/one.ipynb"):
        chapters.chapters(tmp_path)


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    (tmp_path / "one.ipynb").write_text("# One")
    with pytest.raises(ValueError, match="one.ipynb is not a notebook"):
        chapters.read(tmp_path / "one.ipynb")
