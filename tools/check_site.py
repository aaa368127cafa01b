"""Read the built site as a browser without a network would, and report what a reader would miss.

    python tools/check_site.py _build/html

Covered: internal links, anchors and images that lead nowhere; images in a chapter without alt text; scripts,
styles, fonts and images that another host would have to deliver; paths and names of the building machine.
Not covered: whether an external link still answers (that needs a network) and how a page looks.
"""

import getpass
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a page cannot be shown without, by tag: the attribute that says where it comes from.
RESOURCES = {"script": "src", "img": "src", "source": "src", "iframe": "src", "video": "src", "audio": "src",
             "embed": "src", "object": "data"}
RESOURCE_LINKS = {"stylesheet", "preload", "modulepreload", "prefetch", "icon", "shortcut", "manifest"}
OTHER_HOST = re.compile(r"(?:https?:)?//", re.IGNORECASE)

# Code in a page that fetches code or fonts: a quoted address ending so, or a host that serves nothing else.
FETCHES = re.compile(r"""["'`(](?:https?:)?//[^\s"'`)]+\.(?:m?js|css|wasm|woff2?|ttf|json)\b"""
                     r"|//(?:unpkg\.com|cdn\.|cdnjs\.|fonts\.)", re.IGNORECASE)
CSS_ADDRESS = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""", re.IGNORECASE)

MACHINE_PATH = re.compile(r"(?<![\w.:/~<-])/(?:(?:root|home|work|tmp|Users|build|opt)/[\w.-]+|(?:root|tmp)\b)"
                          r"|[\w./\\-]*/site-packages/[\w./-]+")
# Accounts whose names are ordinary words: they say nothing about a person, and a page may well use the word.
ORDINARY_NAMES = {"root", "user", "runner", "admin", "test", "build", "builder", "docker", "ubuntu", "debian",
                  "student", "teacher", "guest", "jovyan", "nobody", "python", "jupyter", "book", "vscode"}


@dataclass(frozen=True)
class Finding:
    """One thing to mend; `file` is relative to the site and `line` counts from 1."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass
class Page(HTMLParser):
    """What one HTML file refers to and says, each with its line."""

    markup: str
    ids: set[str] = field(default_factory=set)
    links: list[tuple[int, str]] = field(default_factory=list)
    resources: list[tuple[int, str]] = field(default_factory=list)
    images: list[tuple[int, str, str | None]] = field(default_factory=list)
    code: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._inside: list[str] = []
        self.feed(self.markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        line, at = self.getpos()[0], dict(attrs)
        self.ids.update(value for key in ("id", "name") if (value := at.get(key)))
        if tag == "link":
            wanted = RESOURCE_LINKS & set((at.get("rel") or "").lower().split())
            (self.resources if wanted else self.links).append((line, at.get("href") or ""))
        elif tag == "a" and at.get("href") is not None:
            self.links.append((line, at["href"]))
        elif tag == "meta" and (at.get("http-equiv") or "").lower() == "refresh":
            self.links.append((line, (at.get("content") or "").partition("url=")[2]))
        elif at.get(RESOURCES.get(tag, "")):
            self.resources.append((line, at[RESOURCES[tag]]))
        if tag == "img" and "article" in self._inside:
            self.images.append((line, at.get("src") or "", at.get("alt")))
        if tag in ("article", "script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            self._inside.remove(tag)

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self._inside):
            self.code.append((self.getpos()[0], data))


def check(site: Path, user: str | None = None, folders: tuple[str, ...] = ()) -> list[Finding]:
    """All that is wrong in the built `site`; `user` and `folders` are the builder's and belong on no page."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in _pages(site)}
    if not pages:
        raise FileNotFoundError(f"{site} holds no page: build the book first (make book)")
    findings = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found = [*_dead_links(path, page, pages), *_other_hosts(page), *_without_alt(page),
                 *_machine(page.markup, user, folders)]
        findings += [Finding(name, line, message) for line, message in found]
    for path in sorted(site.rglob("*.css")):
        name = path.relative_to(site).as_posix()
        findings += [Finding(name, line, message) for line, message in _style(path)]
    for path in sorted(site.joinpath("_sources").rglob("*")):
        if path.is_file():
            found = _machine(path.read_text(encoding="utf-8"), user, folders)
            findings += [Finding(path.relative_to(site).as_posix(), line, message) for line, message in found]
    return findings


def _pages(site: Path) -> list[Path]:
    # _static holds the theme's templates beside its scripts; nobody reads those.
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts]


def _dead_links(path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[tuple[int, str]]:
    for line, address in page.links + page.resources:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield line, f"{address!r} leads to no file of the site"
        elif parts.fragment and target.suffix == ".html" and not _has(pages, target, unquote(parts.fragment)):
            yield line, f"{address!r}: that page has nothing with the id {parts.fragment!r}"


def _has(pages: dict[Path, Page], target: Path, fragment: str) -> bool:
    return any(fragment in page.ids for path, page in pages.items() if path.resolve() == target)


def _other_hosts(page: Page) -> Iterator[tuple[int, str]]:
    for line, address in page.resources:
        if OTHER_HOST.match(address):
            yield line, f"{address} comes from another host; the site has to work without a network"
    for line, code in page.code:
        for match in FETCHES.finditer(code):
            yield line + code.count("\n", 0, match.start()), f"a script or style fetches {match.group()!r}"


def _without_alt(page: Page) -> Iterator[tuple[int, str]]:
    for line, source, alt in page.images:
        # Sphinx writes the file name where nobody wrote a description.
        if not (alt or "").strip() or alt == source or alt.endswith(source.rpartition("/")[2]):
            yield line, f"the image {source} has no alt text (cell metadata: mystnb.image.alt)"


def _machine(text: str, user: str | None, folders: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    patterns = [MACHINE_PATH, *(re.compile(re.escape(folder) + r"\b") for folder in folders if folder != "/")]
    if user and user.lower() not in ORDINARY_NAMES:
        patterns.append(re.compile(rf"(?<!\w){re.escape(user)}(?!\w)"))
    for number, line in enumerate(text.splitlines(), start=1):
        for found in sorted({match.group() for pattern in patterns for match in pattern.finditer(line)}):
            yield number, f"{found!r} belongs to the machine that built the page"


def _style(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for address in CSS_ADDRESS.findall(line):
            file = re.split("[?#]", address)[0]
            if OTHER_HOST.match(address):
                yield number, f"the style fetches {address}"
            elif file and not file.startswith("data:") and not (path.parent / file).is_file():
                yield number, f"{address!r} leads to no file of the site"


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def main(arguments: list[str]) -> int:
    site = Path(arguments[0] if arguments else "_build/html")
    findings = check(site, user=_user(), folders=(str(Path.home()), str(Path.cwd()), tempfile.gettempdir()))
    for finding in findings:
        print(f"{site.name}/{finding}", file=sys.stderr)
    pages = len(_pages(site))
    print(f"{pages} pages checked:", f"{len(findings)} to mend" if findings else "all is well")
    return 1 if findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FileNotFoundError as error:
        sys.exit(f"check_site: {error}")
