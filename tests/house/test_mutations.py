"""The script that breaks lines of the package: what it makes of a line, and that it draws the same ones again."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Loaded by its path: benchmarks/ on sys.path would put its modules before the packages of the same name.
spec = importlib.util.spec_from_file_location("mutations", ROOT / "benchmarks" / "mutations.py")
mutations = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutations)

SOURCE = """\
é = "ü"; limit: int = 3

def f(a, b=(0)):
    if (a
        < b) and not a:
        return max(a, f"{a > 1}")
    return a is not None
"""
EDITS = {
    (1, "limit: int = 4"),
    (1, "limit: int = 2"),
    (3, "b=(1)"),
    (3, "b=((-1))"),
    (5, ">= b) and not a"),
    (5, "< b) or not a"),
    (5, "< b) and a"),
    (6, "return min(a"),
    (6, "return None"),
    (7, "return None"),
    (7, "a is None"),
}


def test_every_mutation_of_a_module_stands_where_it_says():
    source = SOURCE.encode()
    found = [(one.line, one.applied(source).decode()) for one in mutations.mutations_in("io", "f.py", source)]
    assert len(found) == len(EDITS)
    for line, text in EDITS:
        assert [1 for place, whole in found if place == line and text in whole.splitlines()[line - 1]], (line, text)


def test_what_is_drawn_changes_the_package_and_is_drawn_again():
    drawn = mutations.chosen(["io", "statistics"], 6, seed=3)
    assert drawn == mutations.chosen(["io", "statistics"], 6, seed=3)
    assert [one.room for one in drawn] == ["io", "statistics"] * 3
    for one in drawn:
        source = (ROOT / one.path).read_bytes()
        assert ast.dump(ast.parse(one.applied(source))) != ast.dump(ast.parse(source))
