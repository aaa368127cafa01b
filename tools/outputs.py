"""Run chapters and store what they show: the outputs that Colab and GitHub display and the tests compare.

    python tools/outputs.py                     every chapter of _toc.yml
    python tools/outputs.py book/linear.ipynb   the ones named

A chapter runs in an empty folder, so that no path of this machine gets on a page. It is stored only if every
cell ran.
"""

import sys
import tempfile
import time
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

import chapters

CELL_TIMEOUT_S = 600


def executed(notebook: NotebookNode) -> NotebookNode:
    """A copy of `notebook` with fresh outputs and execution counts; CellExecutionError when a cell fails."""
    result = chapters.normal(notebook)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            result,
            kernel_name="python3",
            timeout=CELL_TIMEOUT_S,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        ).execute()
    return chapters.normal(result)


def main(names: list[str]) -> None:
    paths = [Path(name) for name in names] or chapters.chapters()
    for path in paths:
        start = time.perf_counter()
        print(path.name, end=": ", flush=True)
        chapters.write(path, executed(chapters.read(path)))
        print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (CellExecutionError, OSError, ValueError) as error:
        sys.exit(f"outputs: {error}")
