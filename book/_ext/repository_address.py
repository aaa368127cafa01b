"""The site's repository button and Colab links, from the one place that knows the address: pyproject.toml.

With no `Repository` there the site has neither, so no link is dead.
"""

import tomllib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config


def theme_options(url: str | None) -> dict:
    """Options of sphinx-book-theme for a repository at `url`; document names already begin with `book/`."""
    if url is None:
        return {"repository_url": "", "launch_buttons": {}}
    return {
        "repository_url": url,
        "repository_branch": "main",
        "path_to_docs": "",
        "use_repository_button": True,
        "use_issues_button": True,
        "launch_buttons": {"colab_url": "https://colab.research.google.com"},
    }


def _apply(app: Sphinx, config: Config) -> None:
    project = tomllib.loads((Path(app.srcdir) / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.html_theme_options.update(theme_options(project.get("urls", {}).get("Repository")))


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", _apply)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
