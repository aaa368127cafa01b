"""What a page's markup leaves to be desired for readers, screen readers and search engines, mended as it is written.

The page is described by its first paragraph; what unfolds is called by the words on it. In pandas' tables a column
of numbers is aligned at the right, one of sentences wraps and shows code as code; the empty corner is no heading.
"""

import html
import re
import textwrap

from docutils import nodes
from sphinx.application import Sphinx

_TABLE = re.compile(r'<table border="1" class="dataframe">.*?</table>', re.DOTALL)
_ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<(t[hd])>(.*?)</t[hd]>", re.DOTALL)
_NUMBER = re.compile(r"[+-]?[\d.,]+(?:e[+-]?\d+)?(?:%| [^\W\d]\w*(?:/\w+)?)?")  # 7, 0.50, 65%, 12.6 MB
_SENTENCE = re.compile(r".{40,}[^.][.?!]", re.DOTALL)  # not what pandas cut off with "..."
_CODE = re.compile(r"`([^`]+)`")
_NOTHING = {"", "None", "NaN", "NaT", "&lt;NA&gt;"}


def aligned(table: str) -> str:
    """A DataFrame's HTML with a class on columns of numbers and of sentences, headings included."""
    rows = [[text for _, text in _CELL.findall(row)] for row in _ROW.findall(table)]
    if len({len(row) for row in rows}) != 1:  # headings on several levels stay as they are
        return table
    kinds = [_kind(column) for _, *column in zip(*rows)]
    kinds[0] = None  # the index only names the rows

    def row(match: re.Match) -> str:
        of_column = iter(kinds)
        return _CELL.sub(lambda cell: _marked(*cell.groups(), next(of_column)), match[0])

    return _ROW.sub(row, table).replace("<th></th>", "<td></td>", 1)


def _kind(column: list[str]) -> str | None:
    there = [text for text in column if text not in _NOTHING]
    if there and all(map(_NUMBER.fullmatch, there)):
        return "number"
    return "sentence" if any(map(_SENTENCE.fullmatch, there)) else None


def _marked(tag: str, text: str, kind: str | None) -> str:
    if kind == "sentence":
        text = _CODE.sub(r'<code class="literal">\1</code>', text)
    return f'<{tag} class="{kind}">{text}</{tag}>' if kind else f"<{tag}>{text}</{tag}>"


def _mend(app: Sphinx, page: str, template: str, context: dict, document: nodes.document | None) -> None:
    if document is None:
        return
    body = context["body"].replace('<summary aria-label="Toggle hidden content">', "<summary>")
    context["body"] = _TABLE.sub(lambda table: aligned(table[0]), body)
    if first := next(document.findall(nodes.paragraph), None):
        text = html.escape(textwrap.shorten(first.astext(), 200, placeholder="…"))
        context["metatags"] += f'<meta name="description" content="{text}" />\n'


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", _mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
