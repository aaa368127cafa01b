"""The repository's address, from one line of pyproject.toml to the site's buttons and the library cell."""

import importlib.util

import address
import chapters
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

URL = "https://github.com/someone/a-book"
PYPROJECT = '[project]\nname = "x"\n\n[project.urls]\n\n[tool.other]\n'


@pytest.fixture
def book(tmp_path):
    """A book of one chapter without an address, as `make outputs` would have stored it."""
    (tmp_path / "book").mkdir()
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/one\n")
    cells = [new_markdown_cell("# One?", id="a"), new_code_cell("1 + 1", id="b", execution_count=2)]
    chapters.write(tmp_path / "book/one.ipynb", chapters.normal(new_notebook(cells=cells)))
    address.write(tmp_path, None)
    return tmp_path


def theme_options(url):
    path = chapters.ROOT / "book/_ext/repository_address.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.theme_options(url)


def test_unsetting_the_address_returns_every_file_to_the_same_bytes(book):
    files = [book / "pyproject.toml", book / "book/one.ipynb"]
    before = [path.read_bytes() for path in files]
    address.write(book, URL)
    between = [path.read_bytes() for path in files]
    address.write(book, None)
    assert [path.read_bytes() for path in files] == before
    assert all(URL.encode() in text for text in between)


def test_setting_another_address_replaces_the_first(book):
    address.write(book, URL)
    address.write(book, URL + "-2")
    assert address.address(book) == URL + "-2"
    assert (book / "pyproject.toml").read_text().count("Repository") == 1


def test_the_library_cell_comes_below_the_title_and_is_there_once(book):
    address.write(book, URL)
    ids = [cell.id for cell in chapters.read(book / "book/one.ipynb").cells]
    assert ids == ["a", address.CELL_ID, "b"]


@pytest.mark.parametrize("url", [None, URL])
def test_the_library_cell_is_short_and_does_nothing_where_the_library_is(url, capsys):
    source = address.library_cell(url).source
    # Only a notebook knows %pip; the branch it stands in must not be taken here anyway.
    exec(source.replace("%pip", "raise AssertionError  #"))
    assert len(source.splitlines()) <= 8
    assert capsys.readouterr().out == ""


def test_the_library_cell_never_names_torch_to_pip():
    install = next(line for line in address.library_cell(URL).source.splitlines() if "%pip" in line)
    assert install.split() == ["%pip", "install", "--quiet", f'"git+{URL}"']


def test_without_an_address_the_library_cell_says_what_to_do():
    with pytest.raises(ModuleNotFoundError, match=r"clone .* `pip install -e \.` .* restart"):
        exec(address.library_cell(None).source.replace('"tutorial_lib"', '"no_such_package"'))


def test_an_address_may_be_typed_as_git_or_a_browser_gives_it():
    assert {address.parse(URL), address.parse(URL + "/"), address.parse(URL + ".git")} == {URL}
    assert address.parse("") is None


@pytest.mark.parametrize("wrong", ["github.com/a/b", "https://github.com/a", "https://example.org/a/b",
                                   'https://github.com/a/b"\nx', "https://github.com/a/b/tree/main"])
def test_an_address_that_colab_could_not_open_is_refused(wrong):
    with pytest.raises(ValueError, match="OWNER/NAME"):
        address.parse(wrong)


def test_the_site_has_buttons_only_where_there_is_an_address():
    assert theme_options(None) == {"repository_url": "", "launch_buttons": {}}
    assert theme_options(URL)["repository_url"] == URL
    assert "colab_url" in theme_options(URL)["launch_buttons"]
