"""Pages and pictures that a script writes are what it writes today."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

import geval_local

DOCS = Path(geval_local.__file__).parents[1] / "docs"


def loaded(name: str) -> ModuleType:
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE, PICTURES = loaded("generate"), loaded("pictures")


@pytest.mark.parametrize("name", GENERATE.PAGES)
def test_a_reference_page_is_what_the_package_declares(name):
    written = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert written == GENERATE.PAGES[name](), "run: python docs/generate.py"


@pytest.mark.parametrize("name", GENERATE.TABLES)
def test_a_table_between_marks_is_what_the_package_declares(name):
    assert (DOCS / name).read_text(encoding="utf-8") == GENERATE.with_table(name), "run: python docs/generate.py"


@pytest.mark.parametrize("name", PICTURES.DRAWN)
def test_a_picture_shows_its_records(name):
    assert (DOCS / "pictures" / name).read_text(encoding="utf-8") == PICTURES.DRAWN[name](), (
        "run: python docs/pictures.py"
    )


def test_every_public_name_has_a_sentence_and_every_verb_a_page():
    names = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert {name for name in GENERATE.public_names() if f"| `{name}` |" not in names} == set()
    assert {page.name for page in (DOCS / "reference" / "commands").iterdir()} == {
        f"{name.replace(' ', '-')}.md" for name in GENERATE.VERBS
    }, "a verb that is gone keeps no page"
    # An empty cell would be an option that nobody explains.
    assert [name for name in GENERATE.VERBS if "` |  |" in GENERATE.verb_page(name)] == []


def test_every_option_of_a_verb_is_on_a_page_that_it_links_to():
    several = GENERATE.PAGES["command-line.md"]()
    for name in GENERATE.VERBS:
        page = GENERATE.verb_page(name)
        found = page + (several if "../command-line.md#" in page else "")
        for parameter in GENERATE.command_of(name).params:
            if parameter.opts[0].startswith("-") and not getattr(parameter, "hidden", False):
                assert parameter.opts[0] in found, (name, parameter.opts)


def test_the_pictures_of_pages_are_no_older_than_the_pages():
    taken = json.loads((DOCS / "pictures" / "screenshots.json").read_text(encoding="utf-8"))
    assert taken == {"sources": loaded("screenshots").digest()}, (
        "look at the pages, and run: python docs/screenshots.py"
    )
