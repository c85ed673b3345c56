"""Hooks of the site: pages that stand outside docs/ are taken in, and links to other files of the repository made text.

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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in the pages outside docs/."""
    for source, target in TAKEN_IN.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's pages; what the site does not have becomes its own name."""
    own = page.file.src_uri
    source = next((path for path, target in TAKEN_IN.items() if target == own), f"docs/{own}")

    def relinked(match: re.Match[str]) -> str:
        mark, text, target = match[1], match[2], match[3]
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return match[0]
        path, hash_, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = TAKEN_IN.get(place) or (place.removeprefix("docs/") if place.startswith("docs/") else None)
        if there is None or files.get_file_from_path(there) is None:
            return f"{text} (`{place}`)" if text != place else f"`{place}`"
        return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(own) or '.')}{hash_}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if place % 2 else _LINK.sub(relinked, part) for place, part in enumerate(parts))


def on_post_build(config: MkDocsConfig) -> None:
    """Take the addresses out of the theme's script that it would load help from in old browsers and for diagrams."""
    for script in Path(config.site_dir).glob("assets/javascripts/*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(_ELSEWHERE.sub("data:,", text), encoding="utf-8")
