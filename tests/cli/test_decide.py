"""``geval-local decide`` from end to end, with a tiny judge."""

from __future__ import annotations

import json

import pytest
from cli_run import judge_directory
from cli_run import run as run_command

from geval_local import Judge, load_questions

QUESTIONS = """\
rain:
  type: predicate
  instructions: It rains.
mood:
  type: choice
  options: {true: it is good, gloomy: }
wet:
  type: score
  levels: [dry, damp, wet]
  rotations: 2
"""
ROWS = [
    {"id": 1, "state": "Rain fell all day."},
    {"id": 2, "state": {"weather": "sunny", "hours": 9}},
    {"id": 3, "state": None},
    {"id": 4, "state": "", "decisions": "kept"},
]


def run(*arguments):
    return run_command(*arguments, "--judge", judge_directory(), home="home")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.yaml").write_text(QUESTIONS)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "{broken\n")
    return tmp_path


def test_rows_keep_their_places_and_answers_are_the_judges(place):
    result = run("decide", "rows.jsonl", "-q", "q.yaml", "-o", "out.jsonl", "--json")
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]
    assert [row.get("id") for row in rows] == [1, 2, 3, 4, None]
    expected = Judge.load(judge_directory()).decide_many(
        [ROWS[0]["state"], ROWS[1]["state"], ""], load_questions("q.yaml")
    )
    for row, decision in zip((rows[0], rows[1], rows[3]), expected, strict=True):
        found = row["decisions"]
        assert found["rain"]["probability"] == pytest.approx(decision["rain"].probability, abs=1e-5)
        assert found["mood"]["choice"] == decision["mood"].choice
        assert found["wet"]["score"] == pytest.approx(decision["wet"].score, abs=1e-5)
        assert found["wet"]["orders"] == 2
    assert "missing or null" in rows[2]["decisions"]["rain"]["error"]
    assert "not valid JSON" in rows[4]["decisions"]["wet"]["error"]
    assert rows[3]["decisions_input"] == "kept"
    summary = json.loads(result.stdout)
    assert summary["rows"] == 5
    assert summary["questions"]["rain"]["answered"] == 3
    assert sorted(path.name for path in place.iterdir()) == ["home", "out.jsonl", "q.yaml", "rows.jsonl"]


def test_what_cannot_be_done_is_told_before_a_judge_is_loaded(place):
    (place / "there.jsonl").write_text("mine")
    for arguments, word in (
        (("-q", "q.yaml", "-o", "there.jsonl"), "there already"),
        (("-q", "q.yaml", "-o", "out.csv"), ".jsonl"),
        (("-q", "q.yaml", "-o", "no/out.jsonl"), "no directory"),
        (("-q", "q.yaml", "--state", "text"), "no column 'text'"),
        (("-q", "none.yaml"), "cannot read"),
        (("-q", "rows.jsonl"), "extension"),
    ):
        result = run("decide", "rows.jsonl", *arguments)
        assert result.exit_code == 2
        assert word in result.stderr
        assert "loading" not in result.stderr
    assert (place / "there.jsonl").read_text() == "mine"


def test_several_columns_make_one_evidence(place):
    (place / "rows.jsonl").write_text(json.dumps({"a": "Rain.", "b": "Sun."}) + "\n")
    result = run("decide", "rows.jsonl", "-q", "q.yaml", "--state", "a", "--state", "b")
    assert result.exit_code == 0, result.stderr
    assert "mean probability" in result.stdout
