"""``geval-local decide`` from end to end, with a tiny judge."""

from __future__ import annotations

import json

import pytest
from cli_run import judge_directory, read_rows
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
    rows = read_rows(place / "out.jsonl")
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
    assert "|metric:rain@" in summary["questions"]["rain"]["signature"]
    names = sorted(path.name for path in place.iterdir())
    assert names == ["home", "out.jsonl", "out.jsonl.meta.json", "q.yaml", "rows.jsonl"]


@pytest.mark.slow
def test_what_the_cache_had_is_counted_in_answers(place):
    assert run("decide", "rows.jsonl", "-q", "q.yaml").exit_code == 0
    again = run("decide", "rows.jsonl", "-q", "q.yaml").stderr
    assert "15 answers by " in again
    assert "; 9 from the cache of earlier runs" in again  # of three rows; `wet` has two forms


def test_what_cannot_be_done_is_told_before_a_judge_is_loaded(place):
    (place / "there.jsonl").write_text("mine")
    for arguments, word in (
        (("-q", "q.yaml", "-o", "there.jsonl"), "not an unchanged result of this tool"),
        (("-q", "q.yaml", "-o", "out.xlsx"), "unknown format"),
        (("-q", "q.yaml", "-o", "no/out.jsonl"), "no directory"),
        (("-q", "q.yaml", "-o", "rows.jsonl"), "is the input"),
        (("-q", "q.yaml", "--state", "text"), "no column 'text'"),
        (("-q", "q.yaml", "--state", "a=id", "--state", "a=state"), "twice"),
        (("-q", "q.yaml", "--columns", "probability"), "CSV"),
        (("-q", "q.yaml", "-o", "o.csv", "--columns", "rain.choice"), "no column 'rain.choice'"),
        (("-q", "q.yaml", "--max-unscored", "x"), "not a limit"),
        (("-q", "none.yaml"), "cannot read"),
        (("-q", "rows.jsonl"), "extension"),
    ):
        result = run("decide", "rows.jsonl", *arguments)
        assert result.exit_code == 2, (arguments, result.stderr)
        assert word in result.stderr
        assert "loading" not in result.stderr
    assert (place / "there.jsonl").read_text() == "mine"


def test_several_columns_make_one_evidence_under_their_headings(place):
    (place / "rows.jsonl").write_text(json.dumps({"a": {"b": ["Rain."]}, "c": "Sun."}) + "\n")
    questions = {"rain": {"type": "predicate", "instructions": "It rains."}}
    (place / "q.json").write_text(json.dumps(questions))
    result = run("decide", "rows.jsonl", "-q", "q.json", "--state", "sky=a.b.0", "--state", "c", "-o", "out.jsonl")
    assert result.exit_code == 0, result.stderr
    assert "mean probability" in result.stdout
    judge = Judge.load(judge_directory())
    found = read_rows(place / "out.jsonl")[0]["decisions"]["rain"]["probability"]
    assert found == pytest.approx(judge.decide({"sky": "Rain.", "c": "Sun."}, questions)[0].probability, abs=1e-6)
    run("decide", "rows.jsonl", "-q", "q.json", "--state", "a.b.0", "-o", "alone.jsonl")
    found = read_rows(place / "alone.jsonl")[0]["decisions"]["rain"]["probability"]
    assert found == pytest.approx(judge.decide("Rain.", questions)[0].probability, abs=1e-6)


def test_a_question_without_any_answer_and_a_gate_exit_with_1(place):
    (place / "rows.jsonl").write_text('{"state": null}\n{"state": ""}\n')
    assert run("decide", "rows.jsonl", "-q", "q.yaml").exit_code == 0
    gated = run("decide", "rows.jsonl", "-q", "q.yaml", "--max-unscored", "0")
    assert gated.exit_code == 1
    assert "1 of 2 rows are unanswered" in gated.stderr
    (place / "rows.jsonl").write_text('{"state": null}\n')
    nothing = run("decide", "rows.jsonl", "-q", "q.yaml")
    assert nothing.exit_code == 1
    assert "the only row has no answer: the column 'state' is missing or null" in nothing.stderr


def test_a_directory_keeps_the_run_and_resume_shows_it_again(place):
    first = run("decide", "rows.jsonl", "-q", "q.yaml", "-o", "runs/a/", "--format", "jsonl", "--format", "csv")
    assert first.exit_code == 0, first.stderr
    kept = (place / "runs" / "a" / "decisions.jsonl").read_bytes()
    again = run_command("resume", "runs/a", "--json", home="home")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["questions"]["rain"]["answered"] == 3
    assert (place / "runs" / "a" / "decisions.jsonl").read_bytes() == kept
    header = (place / "runs" / "a" / "decisions.csv").read_text().splitlines()[0].split(",")
    assert header[:3] == ["id", "state", "decisions_input"]  # every column of the input comes first
    figures = ("probability", "label_mass", "error", "error_code")
    assert header[3:8] == [*(f"rain.{name}" for name in figures), "mood.choice"]
    changed = run("decide", "rows.jsonl", "-q", "q.yaml", "-o", "runs/a/", "--rotations", "2")
    assert changed.exit_code == 2
    assert "--rotations was 1, is 2" in changed.stderr
    (place / "q.yaml").write_text(QUESTIONS.replace("It rains.", "It snows."))
    changed = run("decide", "rows.jsonl", "-q", "q.yaml", "-o", "runs/a/")
    assert "question rain: changed in instructions" in changed.stderr
