"""The markup of pandas' tables, as the site shows them."""

import importlib.util

import chapters
import pandas as pd

COLUMNS = {"lane": ["GPU 0", "thread 1"], "items": [4, 7], "FLOPs": ["2.147 GFLOP", "0 FLOP"], "step": [pd.NA, 2]}


def aligned(table):
    path = chapters.ROOT / "book/_ext/readable_pages.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.aligned(table)


def test_columns_of_numbers_are_marked_with_their_headings_and_texts_are_not():
    page = aligned(pd.DataFrame(COLUMNS)._repr_html_())
    for heading in ("items", "FLOPs", "step"):
        assert f'<th class="number">{heading}</th>' in page
    assert "<th>lane</th>" in page and "<td>GPU 0</td>" in page
    assert page.count('class="number"') == 3 * 3


def test_a_column_of_sentences_is_marked_and_one_of_names_or_shapes_is_not():
    told = ["Of all that can run a call, SDPA takes the best.", "No `bmm`."]
    columns = {"key": ["C74.", "E15."], "says": told, "shapes": ["[4, 4] " * 9] * 2}
    page = aligned(pd.DataFrame(columns)._repr_html_())
    assert '<td class="sentence">No <code class="literal">bmm</code>.</td>' in page
    assert '<th class="sentence">says</th>' in page and page.count('class="sentence"') == 3


def test_the_empty_corner_is_no_heading():
    page = aligned(pd.DataFrame(COLUMNS)._repr_html_())
    assert "<th></th>" not in page and "<td></td>" in page


def test_headings_on_several_levels_stay_as_they_are():
    table = pd.DataFrame({("a", "b"): [1], ("a", "c"): [2]})._repr_html_()
    assert aligned(table) == table
