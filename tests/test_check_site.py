"""The checker finds each thing that a reader of the built site would miss, and says where it stands."""

import check_site
import pytest

GOOD = """<html><head><link rel="stylesheet" href="_static/a.css"></head><body>
<a href="#top">up</a><a href="two.html#part">two</a><a href="https://example.org/">elsewhere</a>
<article id="top"><img src="p.png" alt="A line that rises."></article></body></html>"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/a.css").write_text("b { color: red }")
    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "two.html").write_text('<h1 id="part">Two</h1>')
    (tmp_path / "index.html").write_text(GOOD)
    return tmp_path


def findings(site, page: str, **builder) -> list[str]:
    (site / "index.html").write_text(page)
    return [str(finding) for finding in check_site.check(site, **builder)]


def test_a_whole_site_has_no_findings(site):
    assert findings(site, GOOD) == []


@pytest.mark.parametrize("page, message", [
    ('\n<a href="three.html">', "2: 'three.html' leads to no file of the site"),
    ('<a href="two.html#nothing">', "1: 'two.html#nothing': that page has nothing with the id 'nothing'"),
    ('<a href="#nothing">', "1: '#nothing': that page has nothing with the id 'nothing'"),
    ('<img src="lost.png" alt="x">', "1: 'lost.png' leads to no file of the site"),
    ('<meta http-equiv="Refresh" content="0; url=gone.html">', "1: 'gone.html' leads to no file of the site"),
])
def test_a_link_or_image_that_leads_nowhere_is_found_with_its_line(site, page, message):
    assert findings(site, page) == [f"index.html:{message}"]


@pytest.mark.parametrize("image", ['<img src="p.png">', '<img src="p.png" alt=" ">',
                                   '<img src="p.png" alt="p.png">', '<img alt="_images/p.png" src="p.png"/>'])
def test_a_chapter_image_needs_words_and_a_file_name_is_none(site, image):
    assert findings(site, f"<article>\n{image}</article>") == [
        "index.html:2: the image p.png has no alt text (cell metadata: mystnb.image.alt)"]
    assert findings(site, f"<nav>{image}</nav>") == []


@pytest.mark.parametrize("page", [
    '<script src="https://cdn.example.org/x.js"></script>',
    '<link rel="stylesheet" href="//example.org/x.css">',
    '<img src="http://example.org/x.png" alt="x">',
    '<script>const URL = "https://unpkg.com/thebe/lib/index.js"</script>',
    "<script>import('https://example.org/a.mjs')</script>",
    "<style>@font-face { src: url(https://example.org/a.woff2) }</style>",
])
def test_what_another_host_must_deliver_is_found(site, page):
    assert len(findings(site, page)) == 1


def test_a_style_sheet_that_fetches_a_font_or_misses_a_file_is_found(site):
    style = "b { color: red }\n@import 'https://fonts.example.org/f';\nb { src: url(f.ttf) }"
    (site / "_static/a.css").write_text(style)
    assert findings(site, GOOD) == ["_static/a.css:2: the style fetches https://fonts.example.org/f",
                                    "_static/a.css:3: 'f.ttf' leads to no file of the site"]


@pytest.mark.parametrize("text", ["/home/ada/x.py", "in /tmp", "'/root/.cache'", "at /work/x", "(/tmp/t)",
                                  "/srv/book/a", ".venv/lib/python3.11/site-packages/torch/x.py: warning"])
def test_a_path_of_the_building_machine_is_found(site, text):
    assert len(findings(site, f"<p>{text}</p>", folders=("/srv/book", "/"))) == 1


@pytest.mark.parametrize("text", ["https://example.org/home/x", "compute/work", "a/tmp/b", "and/or", "<b/>"])
def test_an_ordinary_slash_is_not_a_path_of_the_machine(site, text):
    assert findings(site, f"<p>{text}</p>") == []


def test_the_builder_is_not_named_unless_the_name_is_an_ordinary_word(site):
    page = "<p>run by lovelace, a runner</p>"
    found = "index.html:1: 'lovelace' belongs to the machine that built the page"
    assert findings(site, page, user="lovelace") == [found]
    assert findings(site, page, user="runner") == []


def test_the_sources_that_readers_download_are_read_too(site):
    (site / "_sources").mkdir()
    (site / "_sources/one.ipynb").write_text('{\n"text": "/tmp/x"}')
    assert [str(finding) for finding in check_site.check(site)] == [
        "_sources/one.ipynb:2: '/tmp/x' belongs to the machine that built the page"]


def test_findings_make_the_command_fail_and_a_missing_site_is_an_error(site, capsys):
    (site / "index.html").write_text('<a href="three.html">')
    assert check_site.main([str(site)]) == 1
    assert "three.html" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="make book"):
        check_site.check(site / "_static")
