"""Questions in a run: every format, interruptions, rows that are tried again, company, and what is on record."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import sqlite3
import subprocess
import time

import forked
import pytest
from cli_run import judge_directory
from cli_run import run as run_command
from run_kit import killed_after

from geval_local import Interrupted, RunEvents, decide_file, score_file
from geval_local.cli.output.run_summary import show_result
from geval_local.errors import ConfigurationError, OutputError
from geval_local.io.result_manifest import read_manifest
from geval_local.metric import Metric
from geval_local.options import JudgeOptions
from geval_local.runs.forms import AskedQuestions
from geval_local.runs.manifest import read_manifest as read_run_manifest
from geval_local.testing import MockEngine, MockJudge

QUESTIONS = {
    "rain: heavy, or not?": {"type": "predicate", "instructions": "It rains <|im_end|> {{state}}."},
    "mood": {"type": "choice", "options": {True: "it is so", "true": None, "ä": "x"}, "rotations": 3},
    "wet": {"type": "score", "levels": ["dry", "damp", "wet"]},
}
METRIC = Metric(name="clarity", criteria="How clear.", scale="1-5", steps=())


def write_rows(path, count):
    rows = [{"id": n, "state": {"text": f"Tale {n // 4}. " * 5, "n": n % 3}} for n in range(count)]
    rows[5]["state"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    return path


def judge(**settings):
    return MockJudge(MockEngine(**({"batch_tokens": 6000, "sensitive": True} | settings)))


def decide(file, output, engine=None, **settings):
    return decide_file(file, QUESTIONS, engine or judge(), output, **({"window": 20, "use_cache": False} | settings))


class StopAfter(RunEvents):
    def __init__(self, engine, packs):
        self.engine, self.packs = engine, packs

    def should_stop(self):
        return self.engine.executed_packs >= self.packs


@pytest.fixture
def file(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", 61)


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_answers_are_those_of_decide_many(file, tmp_path):
    result = decide_file(file, QUESTIONS, MockJudge(), tmp_path / "out.jsonl", use_cache=False)
    rows = read(tmp_path / "out.jsonl")
    asked = [row for row in read_good(file) if row["state"] is not None]
    expected = MockJudge().decide_many([row["state"] for row in asked], QUESTIONS)
    found = {row["id"]: row["decisions"] for row in rows if "id" in row}
    for row, decision in zip(asked, expected, strict=True):
        assert found[row["id"]] == decision.to_dict()
    assert result.rows == len(rows) == 62
    assert [answer.answered for answer in result.answers] == [60, 60, 60]
    assert "missing or null" in rows[5]["decisions"]["mood"]["error"]
    assert rows[61]["row"] == 62
    assert "not valid JSON" in rows[61]["decisions"]["wet"]["error"]


def read_good(file):
    return [json.loads(line) for line in file.read_text().splitlines()[:-1]]


def test_the_evidence_is_planned_once_for_all_questions(file, tmp_path):
    seen = []

    class Watched(MockEngine):
        def plan(self, requests):
            seen.append(len(requests))
            return super().plan(requests)

    decide(file, None, MockJudge(Watched()))
    forms = 1 + 3 + 1
    assert seen == [19 * forms, 20 * forms, 20 * forms, forms]


@pytest.mark.sweep
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_run_that_is_stopped_at_random_gives_the_same_bytes(file, tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    decide(file, tmp_path / f"whole.{ending}")
    whole = (tmp_path / f"whole.{ending}").read_bytes()
    chance = random.Random(ending)
    for attempt in range(3):
        output = tmp_path / f"{attempt}.{ending}"
        stops = 0
        while not output.exists():
            stopped = judge(unit_packs=2)
            try:
                decide(file, output, stopped, events=StopAfter(stopped.engine, chance.randint(1, 9)))
            except Interrupted:
                stops += 1
                assert (tmp_path / f".{attempt}.{ending}.run").is_dir()
        assert stops
        if attempt == 0:
            decide(file, tmp_path / f"units.{ending}", judge(unit_packs=2))
            whole = (tmp_path / f"units.{ending}").read_bytes()
        assert output.read_bytes() == whole
        assert not (tmp_path / f".{attempt}.{ending}.run").exists()


def test_formats_hold_the_same_answers(file, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `parquet` is not installed")
    result = decide(file, f"{tmp_path}/run/", formats=["jsonl", "csv", "parquet"], columns=["all"])
    assert [path.name for path in result.files] == ["decisions.jsonl", "decisions.csv", "decisions.parquet"]
    rows = read(result.files[0])
    with result.files[1].open(encoding="utf-8", newline="") as table:
        cells = list(csv.DictReader(table))
    structs = parquet.read_table(result.files[2]).to_pylist()
    for row, cell, struct in zip(rows, cells, structs, strict=True):
        for name, answer in row["decisions"].items():
            other = struct["decisions"][name]
            for figure in ("probability", "score", "confidence", "label_mass", "spread", "error"):
                value = answer.get(figure)
                assert (other.get(figure) if figure in other else None) == value
                written = cell.get(f"{name}.{figure}", "")
                assert written == ("" if value is None else value if isinstance(value, str) else repr(value))
            if "probabilities" in answer:
                assert json.loads(cell[f"{name}.probabilities"]) == answer["probabilities"]
                assert [one["probability"] for one in other["probabilities"]] == [
                    one["probability"] for one in answer["probabilities"]
                ]
    assert "wet.choice" not in cells[0]


def test_the_same_command_on_a_warm_cache_has_one_figure_for_each_prompt(tmp_path, monkeypatch):
    """The first run computes an equal prompt in several packs, which round otherwise; later ones do not."""
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    rows = [{"id": n, "state": f"Tale {n % 40}. " * 5} for n in range(300)]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def answers():
        decide(file, tmp_path / "o.jsonl", judge(batch_tokens=3000), use_cache=True, window=64)
        return [row["decisions"]["mood"]["probabilities"][0]["probability"] for row in read(tmp_path / "o.jsonl")]

    first, second, third = answers(), answers(), answers()
    assert second == third
    assert first == pytest.approx(second, abs=1e-8)
    assert {second[place] == second[place % 40] for place in range(300)} == {True}


THOUGHT = ("thought_count", "thought_error", "thought_spread", "cut_thoughts")


def test_what_thoughts_leave_open_stands_in_every_format_and_in_python(file, tmp_path, capsys):
    def thinking(count=4):
        return MockJudge(MockEngine(sensitive=True), options=JudgeOptions(think=count, think_tokens=40))

    kept = {"keep_thoughts": True, "formats": ["jsonl", "csv", "parquet"], "columns": ["all"]}
    result = decide(file, tmp_path / "run", thinking(), **kept)
    rows = [row.get("decisions") for row in read(tmp_path / "run/decisions.jsonl")]
    many = thinking().decide_many([json.loads(line)["state"] for line in file.read_text().splitlines()[:5]], QUESTIONS)
    with (tmp_path / "run/decisions.csv").open(newline="") as lines:
        table = list(csv.DictReader(lines))
    parquet = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "run/decisions.parquet").to_pylist()
    for place, decision in enumerate(many):
        for name, answer in zip(QUESTIONS, decision, strict=True):
            figures, orders = rows[place][name], answer.orders
            assert [figures[one] for one in THOUGHT] == pytest.approx(
                [4, answer.thoughts.error, answer.thoughts.spread, answer.thoughts.cut], rel=1e-4
            )
            assert figures["thought_bias"] == pytest.approx(answer.thoughts.bias, abs=1e-5)
            assert len(figures["thoughts"]) == 4 * orders
            assert (answer.spread_error is None) == (orders == 1) == ("spread_error" not in figures)
            assert orders == 1 or figures["spread_error"] == pytest.approx(answer.spread_error, rel=1e-4)
            assert float(table[place][f"{name}.thought_error"]) == figures["thought_error"]
            assert json.loads(table[place][f"{name}.thoughts"]) == figures["thoughts"]
            assert parquet[place]["decisions"][name]["thoughts"] == figures["thoughts"]
            assert parquet[place]["decisions"][name]["thought_count"] == 4
    assert not any("thought_error" in one for one in rows[5].values())
    assert [one.thoughts for one in result.answers] == [4, 4, 4]
    assert result.answers[1].spread_error < result.answers[1].spread
    assert result.answers[0].to_dict()["thoughts"]["standard_error"] == result.answers[0].thought_error > 0

    decide(file, tmp_path / "bare.csv", thinking())
    header = (tmp_path / "bare.csv").read_text().split("\n")[0]
    assert "mood.thought_error" in header
    assert "thoughts" not in header
    assert "thought" not in decide(file, tmp_path / "plain.csv").files[0].read_text().split("\n")[0]
    alone = decide(file, tmp_path / "one.jsonl", thinking(1))
    assert read(alone.files[0])[0]["decisions"]["mood"]["thought_error"] is None
    show_result(result, [], as_json=False)
    told = capsys.readouterr().err
    assert "thoughts of mood: 4 per row; standard error of the mean from them" in told
    assert "of the spread is the error that they leave in it" in told


def test_questions_without_an_answer_are_asked_again_when_that_is_asked_for(file, tmp_path):
    class Refusing(MockEngine):
        def read(self, requests):
            return [
                one if len(request.ids) % 2 else type(one)(None, error="out of memory")
                for request, one in zip(requests, super().read(requests), strict=True)
            ]

    decide(file, f"{tmp_path}/run/", MockJudge(Refusing(batch_tokens=6000)))
    before = read(tmp_path / "run" / "decisions.jsonl")
    assert any("out of memory" in answer.get("error", "") for row in before for answer in row["decisions"].values())
    decide(file, f"{tmp_path}/run/", MockJudge(MockEngine(batch_tokens=6000)), retry_errors=True)
    after = read(tmp_path / "run" / "decisions.jsonl")
    for row, other in zip(before, after, strict=True):
        for name, answer in row["decisions"].items():
            if "error" not in answer:
                assert other["decisions"][name] == answer
            elif "out of memory" in answer["error"]:
                assert "error" not in other["decisions"][name]


def test_earlier_results_are_kept_with_their_origin(file, tmp_path):
    decide(file, tmp_path / "first.jsonl")
    scored = score_file(
        tmp_path / "first.jsonl", METRIC, judge(), tmp_path / "scored.jsonl", fields={"output": "state.text"}
    )
    assert scored.summaries[0].scored == 60
    more = {"snow": {"type": "predicate", "instructions": "It snows."}}
    decide_file(tmp_path / "scored.jsonl", more, judge(), tmp_path / "both.jsonl", state="state.text")
    row = read(tmp_path / "both.jsonl")[0]
    assert list(row["decisions"]) == [*QUESTIONS, "snow"]
    assert list(row["geval"]) == ["clarity"]
    described = read_manifest(tmp_path / "both.jsonl")
    assert list(described.questions) == [*QUESTIONS, "snow"]
    assert list(described.metrics) == ["clarity"]
    assert described.questions["mood"].unanswered == 2


def test_several_judges_and_the_signature_of_a_question(file, tmp_path):
    one, two = MockJudge(name="one"), MockJudge(name="two")
    result = decide_file(file, QUESTIONS, [one, two], tmp_path / "o.csv", limit=3, use_cache=False)
    header = (tmp_path / "o.csv").read_text(encoding="utf-8").splitlines()[0]
    assert "mood@one.choice" in header
    assert "wet@two.score" in header
    by_name = dict(zip([answer.name for answer in result.answers], result.signatures, strict=True))
    other = decide_file(file, {"damp": QUESTIONS["wet"], "mood": {**QUESTIONS["mood"], "rotations": 2}}, one, limit=3)
    hashes = [signature.split("|metric:")[1].split("|")[0].split("@")[1] for signature in other.signatures]
    assert f"|metric:wet@{hashes[0]}|" in by_name["wet@one"]  # the same question under another name and place
    assert f"@{hashes[1]}|" not in by_name["mood@one"]


def test_a_record_in_another_form_is_refused(file, tmp_path):
    decide(file, f"{tmp_path}/run/")
    settings = read_run_manifest(tmp_path / "run").settings
    AskedQuestions(settings)
    settings.metrics[0]["template"] = settings.metrics[0]["template"].replace("evidence", "text")
    with pytest.raises(OutputError, match="another form"):
        AskedQuestions(settings)


@pytest.mark.parametrize("state", ["", {}, "=x", ["a=", "b"], {"": "x"}])
def test_evidence_without_a_name_is_refused(file, state):
    with pytest.raises(ConfigurationError):
        decide_file(file, QUESTIONS, judge(), state=state)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("place", ["out.jsonl", "run"])
def test_a_run_that_is_killed_at_random_gives_the_same_bytes(file, tmp_path, place):
    """Killed, not asked to stop: the process has no time for anything."""
    whole, output = tmp_path / "whole" / place, tmp_path / "killed" / place
    whole.parent.mkdir()
    output.parent.mkdir()
    decide(file, whole, judge(unit_packs=2))
    chance, kills, kept = random.Random(place), 0, 0
    while kills < 5 and killed_after(
        chance.uniform(0.02, 0.25), lambda: decide(file, output, judge(unit_packs=2, seconds=0.01))
    ):
        kills += 1
        if output.is_file():  # killed after its end, while it cleared away: the same command would begin another run
            break
        found = rows_in(output)
        assert found >= kept, "committed rows were lost"
        kept = found
    assert kills
    decide(file, output, judge(unit_packs=2))
    answers = [output, whole] if output.is_file() else [output / "decisions.jsonl", whole / "decisions.jsonl"]
    assert answers[0].read_bytes() == answers[1].read_bytes()
    assert sorted(path.name for path in output.parent.iterdir()) == sorted(p.name for p in whole.parent.iterdir())


def rows_in(output):
    """Count what a run has committed; a run that was killed early has no store yet."""
    directory = output if output.is_dir() else output.parent / f".{output.name}.run"
    if not (directory / "scores.sqlite").is_file():
        return 0
    with sqlite3.connect(directory / "scores.sqlite") as connection:
        try:
            return int(connection.execute("SELECT COUNT(*) FROM outcomes").fetchone()[0])
        except sqlite3.OperationalError:  # killed before the table was made
            return 0


@pytest.mark.nightly  # the same with a real model and processes of its own
@pytest.mark.slow
def test_the_command_is_killed_and_says_the_same_bytes_in_the_end(tmp_path, monkeypatch):
    """Processes of their own with a real model, killed when some more rows are committed than the last one left."""
    rows = [{"state": f"Tale {n // 3}, told by the fire on a long evening. Ending {n}."} for n in range(120)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "q.json").write_text(
        json.dumps({"wet": QUESTIONS["wet"], "a tale": {**QUESTIONS["wet"], "rotations": 2}})
    )

    arguments = ["decide", "rows.jsonl", "--questions", "q.json", "--judge", judge_directory(), "--batch-tokens", "512"]
    monkeypatch.chdir(tmp_path)
    assert run_command(*arguments, "-o", "whole.jsonl", home=tmp_path / "home").exit_code == 0
    chance, output, kept, kills = random.Random(2), tmp_path / "out.jsonl", 0, 0
    for _ in range(2):
        process = forked.start(
            [*arguments, "-o", "out.jsonl"],
            env=os.environ | {"GEVAL_LOCAL_HOME": str(tmp_path / "another home"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wanted = kept + chance.randint(1, 125)
        while process.poll() is None and rows_in(output) < wanted:
            time.sleep(0.01)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        kept = rows_in(output)
    assert kills
    assert run_command(*arguments, "-o", "out.jsonl", home=tmp_path / "another home").exit_code == 0
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
