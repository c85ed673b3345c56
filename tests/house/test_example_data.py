"""The data of the documents: its other shapes are what make.py writes, and the ratings are on the scale."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import geval_local

DATA = Path(geval_local.__file__).parents[1] / "examples" / "data"


def test_the_other_shapes_are_those_of_the_source(tmp_path):
    spec = importlib.util.spec_from_file_location("make", DATA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(DATA / "helpdesk.jsonl", tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {name: (DATA / name).read_bytes() for name in made}
    assert {path.name for path in DATA.iterdir() if path.suffix in (".csv", ".jsonl")} == {
        *made,
        "helpdesk.jsonl",
        "chats.jsonl",
    }


def test_sixty_questions_two_systems_and_forty_rated_questions():
    rows = [json.loads(line) for line in (DATA / "helpdesk.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 120
    assert {row["system"] for row in rows} == {"old", "new"}
    rated = [row for row in rows if "anna" in row]
    assert len({row["ticket"] for row in rated}) == 40
    assert {value for row in rated for value in (row["anna"], row["ben"])} <= set(range(1, 6))
