"""Hooks of the site: it takes in pages outside docs/, files that pages link to, and a page for every public name.

The pages are written for a reader of the repository. README.md becomes the site's first page.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: File of the repository -> page of the site.
TAKEN_IN = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "ROADMAP.md": "ROADMAP.md",
    "examples/README.md": "examples/README.md",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_ELSEWHERE = re.compile(r"https://unpkg\.com/[^\"'`]*")
_FENCE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
#: Where the pages of public names are, and those of verbs.
NAMES, VERBS = "reference/names", "reference/commands"


def source_of(page: str) -> str:
    """Give the file of the repository that a page of the site is written in."""
    return next((path for path, target in TAKEN_IN.items() if target == page), f"docs/{page}")


def place_of(source: str, link: str) -> str:
    """Give the path in the repository that a link leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link.partition("#")[0]))


def target_of(place: str) -> str:
    """Give the site's path of a file of the repository; a directory has a page that lists it."""
    if place in TAKEN_IN:
        return TAKEN_IN[place]
    if (ROOT / place).is_dir():
        return f"{place}/index.md"
    return place.removeprefix("docs/")


def links_of(text: str) -> list[str]:
    """Give the links to files in a page's text."""
    parts = _FENCE.split(text)
    found = [match[3] for part in parts[::2] for match in _LINK.finditer(part)]
    return [link for link in found if not re.match(r"[a-z]+:|#", link)]


def files_in(folder: Path) -> list[Path]:
    """Give the files of a directory, in order."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def listing(folder: Path) -> str:
    """Write the page of a directory."""
    names = [path.name for path in files_in(folder)]
    return f"# {folder.relative_to(ROOT)}\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of verbs and of public names into the navigation."""
    import geval_local

    names = [name for name in geval_local.__all__ if not name.startswith("_")]
    added = {
        "Python": [{name: f"{NAMES}/{name}.md"} for name in names],
        "Command line": [f"{VERBS}/{page.name}" for page in files_in(ROOT / "docs" / VERBS)],
    }
    for section in config.nav or []:
        for entry in section.get("Reference", []) if isinstance(section, dict) else []:
            for name in added.keys() & entry if isinstance(entry, dict) else ():
                entry[name] += added[name]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in the pages outside docs/, the pages of public names, and what any page links to."""
    import geval_local

    def add(target: str, content: str | bytes) -> None:
        if files.get_file_from_path(target) is None:
            files.append(File.generated(config, target, content=content))

    for name in geval_local.__all__:
        if not name.startswith("_"):
            add(f"{NAMES}/{name}.md", f"# {name}\n\n::: geval_local.{name}\n")
    waiting = [*TAKEN_IN, *(f"docs/{file.src_uri}" for file in files if file.is_documentation_page())]
    for source in waiting:  # grows by the pages that are linked to
        page = ROOT / source
        if not page.is_file():
            continue
        text = page.read_text(encoding="utf-8")
        if not source.startswith("docs/"):
            add(target_of(source), text)
        for link in links_of(text):
            place = place_of(source, link)
            if place.startswith(("docs/", "..")) or place in waiting or not (ROOT / place).exists():
                continue
            if (ROOT / place).is_dir():
                add(target_of(place), listing(ROOT / place))
                for path in files_in(ROOT / place):
                    add(f"{place}/{path.name}", path.read_bytes())
            elif place.endswith(".md"):
                waiting.append(place)
            else:
                add(place, (ROOT / place).read_bytes())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's pages and files."""
    own = page.file.src_uri
    source = own if (ROOT / own).is_file() and own not in TAKEN_IN.values() else source_of(own)
    if own.endswith("/index.md") or own.startswith(NAMES):
        return markdown

    def relinked(match: re.Match[str]) -> str:
        mark, text, link = match[1], match[2], match[3]
        if re.match(r"[a-z]+:|#", link):
            return match[0]
        _, hash_, anchor = link.partition("#")
        there = target_of(place_of(source, link))
        return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(own) or '.')}{hash_}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if place % 2 else _LINK.sub(relinked, part) for place, part in enumerate(parts))


def on_post_build(config: MkDocsConfig) -> None:
    """Take the addresses out of the theme's script that it would load help from in old browsers and for diagrams."""
    for script in Path(config.site_dir).glob("assets/javascripts/*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(_ELSEWHERE.sub("data:,", text), encoding="utf-8")
