"""Tests use public names: what they set or call by a private one breaks with every change inside of a module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PRIVATE = re.compile(r"_[A-Za-z]\w*")
#: A private name of something, in code that a test writes into a string.
_IN_TEXT = re.compile(r"\b[a-z]\w*\.(_[A-Za-z]\w*)")


def trees(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(set((ROOT / folder).rglob("*.py")) - {Path(__file__)}):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def own_names() -> set[str]:
    """List the private names that the package, its benchmarks and its training define."""
    found: set[str] = set()
    for folder in ("geval_local", "benchmarks", "training"):
        for _, tree in trees(folder):
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found.add(node.name)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.id)
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                    found.add(node.attr)
    return {name for name in found if _PRIVATE.fullmatch(name) and not name.endswith("_")}


def reached_names() -> set[str]:
    """List the private names of the package, but for those that tests/support has for its own use."""
    own = {
        node.name for _, tree in trees("tests/support") for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }
    return own_names() - own


def private_uses(tree: ast.Module, names: set[str]) -> Iterator[tuple[int, str]]:
    """List where a file uses private names of other objects than its own."""
    made = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            used = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("geval_local"):
            used = [one.name for one in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            is_set = ast.unparse(node.func).endswith(("setattr", "getattr", "delattr"))
            used = [one.value for one in node.args if is_set and isinstance(one, ast.Constant)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used = _IN_TEXT.findall(node.value)
        elif isinstance(node, ast.ClassDef) and node.bases:
            used = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
        else:
            continue
        for name in used:
            if name in names and not (name in made and isinstance(node, ast.Attribute)):
                yield node.lineno, name


def test_no_test_uses_a_private_name():
    names = reached_names()
    assert len(names) > 500
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, tree in trees("tests")
        for line, name in private_uses(tree, names)
    ]
    assert not found, "\n".join(found)


def test_a_private_name_is_found_wherever_it_stands():
    text = """
from geval_local.io.rows import _look
import geval_local.files as files
class Own(files.Base):
    def _read(self): return self._kept
files._read()
monkeypatch.setattr(files, "_write", None)
monkeypatch.setattr("geval_local.files._MOST", 1)
start("cli._run = work")
"""
    names = {"_look", "_read", "_write", "_MOST", "_run", "_kept"}
    assert sorted(name for _, name in private_uses(ast.parse(text), names)) == [
        "_MOST",
        "_look",
        "_read",
        "_run",
        "_write",
    ]
