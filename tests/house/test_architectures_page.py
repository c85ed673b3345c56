"""docs/architectures.md is what benchmarks/architectures.py makes of the newest record, in words."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architectures.md"


def test_the_page_is_made_of_the_newest_record(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    # By its file: tests/support has a module of this name.
    spec = importlib.util.spec_from_file_location("benchmarks_architectures", ROOT / "benchmarks" / "architectures.py")
    architectures = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, architectures)
    spec.loader.exec_module(architectures)
    record = sorted((ROOT / "benchmarks" / "results").glob("*-architectures.jsonl"))[-1]
    rows = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert PAGE.read_text(encoding="utf-8") == f"{architectures.PAGE}{architectures.table(rows)}\n"


def test_no_row_shows_what_a_library_raised():
    text = PAGE.read_text(encoding="utf-8")
    assert not re.search(r"\w+Error\b|Traceback|forward\(\)|NoneType|size of tensor", text)
    assert "| mistral4 | Mistral4ForCausalLM | trie |" in text
