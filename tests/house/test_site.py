"""The documentation as a site: built without a network, every link checked, no page asks another host for anything."""

from __future__ import annotations

import logging
import re
import socket
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import geval_local

ROOT = Path(geval_local.__file__).parents[1]

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("material", reason="needs the extra docs")


#: Tags that a browser loads something for by itself, and the attribute that says what.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class Resources(HTMLParser):
    """What a browser loads for a page by itself, and where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in LOADED and given.get(LOADED[tag]) and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(given[LOADED[tag]])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


@pytest.mark.slow
def test_the_site_is_built_without_a_network_and_loads_nothing_from_elsewhere(tmp_path, monkeypatch, caplog):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    def refuse(*_, **__):
        raise RuntimeError("a socket was opened")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)  # raises where a link leads nowhere
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    site = tmp_path / "site"
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= 80  # with one for each public name
    for page in pages:
        seen = Resources()
        seen.feed(page.read_text(encoding="utf-8"))
        assert seen.loaded, page
        for target in seen.loaded:
            assert not re.match(r"(https?:)?//", target), f"{page.relative_to(site)} loads {target}"
            path = (site / target.lstrip("/")) if target.startswith("/") else page.parent / target.partition("?")[0]
            assert path.resolve().is_file(), f"{page.relative_to(site)} loads {target}"
        inner = [link.partition("#")[0] for link in seen.links if not re.match(r"[a-z]+:|#|//", link)]
        missing = [
            link for link in inner if link and page.name != "404.html" and not (page.parent / unquote(link)).exists()
        ]
        assert not missing, f"{page.relative_to(site)} links to {missing}"
    for script in site.rglob("*.js"):
        assert not re.search(r"https?://(unpkg|cdn|fonts)", script.read_text(encoding="utf-8")), script.name
    for style in site.rglob("*.css"):
        outside = re.findall(r"url\(\s*['\"]?((?:https?:)?//[^)]*)", style.read_text(encoding="utf-8"))
        assert not outside, f"{style.name} loads {outside}"


def test_every_page_is_in_the_sites_navigation():
    """Those of verbs are put there by docs/site_hooks.py."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    missing = [page for page in pages if f"- {page}\n" not in text]
    missing = [page for page in missing if not page.startswith("reference/commands/")]
    assert not missing, f"add to nav in mkdocs.yml: {missing}"
