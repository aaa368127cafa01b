"""The chapters in reading order, and the one form in which a chapter is stored.

Covered: which notebooks _toc.yml names, reading and writing them, the metadata that all of them share.
Not covered: running them (outputs.py) and the first code cell (address.py).
"""

from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent

# `accelerator` and `gpuType` are Colab's: it opens the chapter on its free GPU.
METADATA = {
    "accelerator": "GPU",
    "colab": {"gpuType": "T4", "provenance": []},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "name": "python", "pygments_lexer": "ipython3"},
}

# What a cell may say about itself; the rest (run times, an editor's state) belongs to one machine.
CELL_METADATA = ("mystnb", "tags")


def chapters(root: Path = ROOT) -> list[Path]:
    """Paths of the notebooks that _toc.yml names, in reading order; FileNotFoundError when one is missing."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    paths = [root / f"{name}.ipynb" for name in _files(toc)]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"_toc.yml names {path.relative_to(root)}, which is not there")
    return paths


def _files(entry: dict) -> list[str]:
    here = [entry[key] for key in ("root", "file") if key in entry]
    below = [child for key in ("parts", "chapters", "sections") for child in entry.get(key, [])]
    return here + [name for child in below for name in _files(child)]


def read(path: Path) -> NotebookNode:
    """The notebook at `path`; a ValueError names the file that is not one."""
    try:
        return nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise ValueError(f"{path.name} is not a notebook: {error}") from None


def text(notebook: NotebookNode) -> str:
    """What the file of `notebook` holds: one space of indent, keys sorted, a final newline."""
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n"


def write(path: Path, notebook: NotebookNode) -> None:
    path.write_text(text(notebook), encoding="utf-8", newline="\n")


def normal(notebook: NotebookNode) -> NotebookNode:
    """A copy with the metadata all chapters share and nothing of the machine that ran it; cells keep ids."""
    result = nbformat.from_dict(notebook | {"metadata": METADATA})
    for cell in result.cells:
        kept = {key: value for key, value in cell.metadata.items() if key in CELL_METADATA}
        cell.metadata = NotebookNode(kept)
    return result
