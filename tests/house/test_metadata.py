"""What ``pyproject.toml`` says: Python's versions, and bounds where private parts of a package are imported."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from geval_local.metric_file import preset_names

tomllib = pytest.importorskip("tomllib", reason="from Python 3.11 on")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LISTED = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
#: Modules without an underscore that are no public interface either: package -> their beginning.
UNSTABLE = {
    "transformers": ("transformers.integrations.gguf", "transformers.core_model_loading", "transformers.modeling_gguf"),
    "uvicorn": ("uvicorn.protocols",),
}
#: The newest release of a package for the oldest Python, where its later ones ask for more: nothing may ask for those.
NEWEST_FOR_3_10 = {"filelock": "4.1.0", "numpy": "2.2.6", "scipy": "1.15.3", "transformers": "5.20.2"}


def requirements(name: str) -> list[Requirement]:
    return [found for found in map(Requirement, LISTED) if found.name.lower() == name]


def imported() -> set[str]:
    found = set()
    for path in (ROOT / "geval_local").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {node.module} | {f"{node.module}.{one.name}" for one in node.names}
    return found


def test_packages_whose_private_parts_are_imported_have_an_upper_bound():
    private = {
        name.partition(".")[0]
        for name in imported()
        if not name.startswith(("geval_local", "__future__", "_pytest"))
        and (re.search(r"\._[a-z]", name) or name.startswith(UNSTABLE.get(name.partition(".")[0], ("-",))))
    }
    assert private >= {"transformers", "uvicorn"}
    for name in private:
        for one in requirements(name):
            assert any(bound.operator in ("<", "~=", "==") for bound in one.specifier), one


def test_inspect_finds_every_preset_by_its_name():
    """A log names a scorer after its metric, and Inspect loads the entry point that is called as the name begins."""
    groups = {name.partition("/")[0] for name in preset_names()}
    there = PROJECT["entry-points"]["inspect_ai"]
    assert there == dict.fromkeys(["geval_local", *groups], "geval_local.hosts.inspect")


def test_every_version_of_python_that_is_tried_is_named():
    assert PROJECT["requires-python"] == ">=3.10"
    named = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert named == ["3.10", "3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("name", NEWEST_FOR_3_10)
def test_the_oldest_python_has_a_release_of_every_dependency(name):
    assert requirements(name)
    for one in requirements(name):
        assert one.specifier.contains(NEWEST_FOR_3_10[name]), one
