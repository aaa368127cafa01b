"""Write the ledger's page, book/claims.ipynb, from the ledger's data and the tests that are marked with its keys.

    python tools/claims.py      then `make outputs CHAPTER=book/claims.ipynb`

The text before the claims is in tools/claims_page.txt. Each claim gets a heading of its own, so that chapters
can link to it for good: claims.ipynb#c45.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import address
import chapters
from tutorial_lib import claims
from tutorial_lib.claims import Claim

PAGE = chapters.ROOT / "book" / "claims.ipynb"
INTRODUCTION = chapters.ROOT / "tools" / "claims_page.txt"
TESTS = chapters.ROOT / "tests"
PARTS = {1: "A product and a sum", 2: "nn.Linear and the GeGLU MLP", 3: "Attention"}
CODE = re.compile(r"(`[^`]*`)|(?<!\w)([A-Za-z_][\w.]*(?:::\w+|_)(?:[\w.]*\w|(?=\W|$))(?:=\w+)?)")


def checks() -> dict[str, list[str]]:
    """Key to the tests marked with it, as `file::function`."""
    found = defaultdict(list)
    for path in sorted(TESTS.glob("test_claims_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                for key in _keys(node):
                    found[key].append(f"tests/{path.name}::{node.name}")
    return dict(found)


def _keys(function: ast.FunctionDef) -> Iterator[str]:
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.claims":
            yield from (ast.literal_eval(argument) for argument in mark.args)


def page() -> NotebookNode:
    """The notebook without outputs: the introduction, then one cell a claim."""
    tests = checks()
    cells = [*_introduction(INTRODUCTION.read_text(encoding="utf-8"))]
    for part, title in PARTS.items():
        cells.append(new_markdown_cell(f"## Part {part}: {title}", id=f"part-{part}"))
        cells += [_cell(c, tests.get(c.key, [])) for c in claims.claims() if c.part == part and c.key[0] == "C"]
    cells.append(new_markdown_cell("## Inferences that looked weak", id="inferences"))
    cells += [_cell(c, tests.get(c.key, [])) for c in claims.claims() if c.key[0] == "E"]
    return chapters.normal(new_notebook(cells=cells))


def _introduction(text: str) -> Iterator[NotebookNode]:
    """Cells from a text in which a line `%% md NAME` or `%% code NAME [TAG]` starts one."""
    for number, block in enumerate(re.split(r"^%% ", text, flags=re.MULTILINE)[1:]):
        head, _, source = block.partition("\n")
        kind, name, *tags = head.split()
        make = new_markdown_cell if kind == "md" else new_code_cell
        yield make(source.strip("\n"), id=name, metadata={"tags": tags} if tags else {})
        if number == 0:
            yield address.library_cell(address.address(chapters.ROOT))


def _cell(claim: Claim, tests: list[str]) -> NotebookNode:
    figures = "; ".join(f"{figure.quantity}: {_figure(figure)}" for figure in claim.figures)
    published = _code(claim.claim) + (f" *{_code(figures)}.*" if figures else "")
    told = _code(claim.finding) if claim.finding else f"We predict: {_code(claim.prediction)}"
    title, _, url = claim.source.rpartition(", ")
    lines = [
        f"### {claim.key}",
        "",
        f"| published in [part {claim.part}]({url}) | **{claim.verdict}** |",
        "|---|---|",
        f"| {published} | {told} |",
        "",
        f"{claim.card}, {claim.dtype}, {_code(claim.shape)}. {_settled(claim, tests)}",
    ]
    return new_markdown_cell("\n".join(lines), id=claim.key.lower())


def _figure(figure: object) -> str:
    return f"`{figure.text}`" if isinstance(figure.value, str) else figure.text


def _settled(claim: Claim, tests: list[str]) -> str:
    if claim.verdict == "open":
        return f"To settle it on a GPU: `{claim.command}`."
    return f"Witness: {claim.witness}. Checked by {', '.join(f'`{test}`' for test in tests)}."


def _code(text: str) -> str:
    """The text with names of operators and functions marked as code, ready for a cell of a table."""
    return CODE.sub(lambda found: found[1] or f"`{found[2]}`", text).replace("|", "\\|")


def main() -> str:
    chapters.write(PAGE, _with_old_outputs(page()))
    return f"{PAGE.relative_to(chapters.ROOT)}: {len(claims.claims())} claims"


def _with_old_outputs(new: NotebookNode) -> NotebookNode:
    old = {cell.id: cell for cell in chapters.read(PAGE).cells} if PAGE.exists() else {}
    for cell in new.cells:
        before = old.get(cell.id)
        if cell.cell_type == "code" and before is not None and before.source == cell.source:
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return new


if __name__ == "__main__":
    try:
        print(main())
    except ValueError as error:
        sys.exit(f"claims: {error}")
