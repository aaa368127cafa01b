"""The repository's address: written in pyproject.toml, and from there into each chapter's first code cell.

    python tools/address.py                                   show it
    python tools/address.py https://github.com/OWNER/NAME     set it
    python tools/address.py ''                                unset it

Only GitHub addresses: Colab opens notebooks from nowhere else.
"""

import re
import sys
import tomllib
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

import chapters

TABLE = "[project.urls]\n"
ADDRESS = re.compile(r"https://github\.com/[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+")
CELL_ID = "library"
CELL_METADATA = {
    "mystnb": {"code_prompt_show": "Show the set-up cell", "code_prompt_hide": "Hide the set-up cell"},
    "tags": ["hide-input"],
}

WITH_ADDRESS = """\
# On Colab this installs the book's library and leaves torch alone. Where the library is, it does nothing.
from importlib.util import find_spec

if find_spec("tutorial_lib") is None:
    %pip install --quiet "git+{url}"
"""

WITHOUT_ADDRESS = """\
# This chapter uses the book's library. Where it is installed, this cell does nothing.
from importlib.util import find_spec

if find_spec("tutorial_lib") is None:
    raise ModuleNotFoundError("tutorial_lib is missing: clone the book's repository (on Colab: upload it), "
                              "run `pip install -e .` in its folder, then restart this notebook")
"""


def address(root: Path) -> str | None:
    """The address in pyproject.toml, None when there is none."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository")


def with_address(pyproject: str, url: str | None) -> str:
    """The text of pyproject.toml with `url` in its [project.urls] table, or with none."""
    bare = re.sub(r'^Repository = "[^"]*"\n', "", pyproject, flags=re.MULTILINE)
    if bare.count(TABLE) != 1:
        raise ValueError("pyproject.toml needs exactly one line [project.urls]: the address goes below it")
    line = "" if url is None else f'Repository = "{url}"\n'
    return bare.replace(TABLE, TABLE + line)


def library_cell(url: str | None) -> NotebookNode:
    """The first code cell of every chapter; on the site its source is folded away."""
    source = WITHOUT_ADDRESS if url is None else WITH_ADDRESS.format(url=url)
    return new_code_cell(source.rstrip("\n"), id=CELL_ID, metadata=CELL_METADATA)


def with_library_cell(notebook: NotebookNode, url: str | None) -> NotebookNode:
    """A copy of `notebook` with the library cell for `url`, put below the title if there is none yet."""
    cells = list(notebook.cells)
    cell = library_cell(url)
    there = [place for place, old in enumerate(cells) if old.get("id") == CELL_ID]
    if there:
        cell.execution_count = cells[there[0]].execution_count
        cells[there[0]] = cell
    else:
        cells.insert(1, cell)
    return NotebookNode(notebook | {"cells": cells})


def parse(argument: str) -> str | None:
    """An address as typed, less `.git` or a final slash; None for ''; ValueError when it is not GitHub's."""
    url = argument.strip().removesuffix("/").removesuffix(".git")
    if url == "":
        return None
    if not ADDRESS.fullmatch(url):
        raise ValueError(f"{argument!r} is not an address like https://github.com/OWNER/NAME")
    return url


def write(root: Path, url: str | None) -> None:
    """Write `url` (or none) into pyproject.toml and into every chapter's library cell."""
    pyproject = root / "pyproject.toml"
    text = with_address(pyproject.read_text(encoding="utf-8"), url)
    pyproject.write_text(text, encoding="utf-8", newline="\n")
    for path in chapters.chapters(root):
        chapters.write(path, with_library_cell(chapters.read(path), url))


def main(arguments: list[str]) -> str:
    if arguments:
        write(chapters.ROOT, parse(arguments[0]))
    return address(chapters.ROOT) or "No address is set."


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"address: {error}")
