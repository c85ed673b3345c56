"""The table of backends holds all that others ask about a backend before it is open."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import geval_local
from geval_local.backends import BACKENDS, PROMISES, backend_of, promises_table
from geval_local.errors import ConfigurationError
from geval_local.options import SERVED, VLLM, JudgeOptions
from geval_local.signature import KEYS

PACKAGE = Path(geval_local.__file__).parent


@pytest.mark.parametrize(
    ("name", "engine", "expected"),
    [
        (None, "auto", "transformers"),
        ("nano", "trie", "transformers"),
        ("http", "auto", "transformers"),
        ("nano", "vllm", "vllm"),
        ("http://127.0.0.1:8000/v1", "auto", "served"),
        ("https://judge.local", "auto", "served"),
    ],
)
def test_a_judge_has_one_backend(name, engine, expected):
    assert backend_of(name, engine) is BACKENDS[expected]
    assert JudgeOptions(name=name, engine=engine).backend is BACKENDS[expected]


@pytest.mark.parametrize("name", BACKENDS)
def test_its_module_checks_and_reads(name):
    module = importlib.import_module(f"geval_local.engine.{BACKENDS[name].module}")
    assert callable(module.check)
    assert callable(module.read)


def test_options_under_the_heading_of_a_backend_are_its_own():
    panels = {"vllm": VLLM, "served": SERVED}
    for name, kind in BACKENDS.items():
        headed = {
            one
            for one, field in JudgeOptions.model_fields.items()
            if any(getattr(part, "panel", None) == panels.get(name, "") for part in field.metadata)
        }
        assert headed == set(kind.own)


@pytest.mark.parametrize(
    "option", ["tensor_parallel", "gpu_memory_share", "served_model", "tokenizer", "requests_at_once", "allow_remote"]
)
def test_an_option_of_another_backend_is_refused_with_the_way_to_its_own(option):
    (kind,) = [one for one in BACKENDS.values() if option in one.own]
    with pytest.raises(ConfigurationError, match=kind.own_for) as refused:
        JudgeOptions(name="nano", **{option: 1 if option not in ("served_model", "tokenizer") else "x"})
    assert refused.value.hint == kind.chosen_by


def test_signatures_know_the_keys_of_all_backends():
    assert {key for kind in BACKENDS.values() for key in kind.keys} <= set(KEYS)
    assert len(KEYS) == len(set(KEYS))


def test_the_table_has_a_row_for_every_promise():
    assert all(one.keys() == PROMISES.keys() for kind in BACKENDS.values() for one in kind.promises.values())
    head, *rows = promises_table()
    assert head[:2] == ["", "default"]
    assert {len(row) for row in rows} == {len(head)}
    assert all(cell for row in rows for cell in row)


def _compared_with(tree, wanted):
    """Lines on which something is compared with a text that names a backend, or begins as an address does."""
    for node in ast.walk(tree):
        texts = []
        if isinstance(node, ast.Compare):
            texts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            texts = [part for one in node.args for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
        if any(isinstance(one, ast.Constant) and one.value in wanted for one in texts):
            yield node.lineno


def test_no_module_outside_of_the_engine_asks_which_backend_it_has():
    wanted = {*BACKENDS, "served:", "http://", "https://"}
    found = {
        f"{file.relative_to(PACKAGE)}:{line}"
        for file in PACKAGE.rglob("*.py")
        if "engine" not in file.relative_to(PACKAGE).parts and file.name != "backends.py"
        for line in _compared_with(ast.parse(file.read_text(encoding="utf-8")), wanted)
    }
    assert found == set()
