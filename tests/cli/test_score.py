"""``score`` end to end on a tiny judge: the figures of the Python API, files, gates, steps, interruption."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cli_run import METRIC, STEPLESS, STEPS, good_rows, judge_directory, read_rows, run, write_rows

import geval_local.judge.scorer
from geval_local import Estimator, Judge, Metric, read_samples
from geval_local.score import LEAST_LABEL_MASS

FORMS = ["summarization/coherence", "summarization/fluency"]


@pytest.fixture
def answering(monkeypatch):
    """Take the tiny judge, whose weights are random, for one that answers: else it has no mean."""
    monkeypatch.setattr("geval_local.summary.silence", lambda mass: "")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data.jsonl", good_rows(10))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    return tmp_path


def score(here: Path, *arguments: object, file: str = "data.jsonl", metric: str | None = "clarity.yaml"):
    named = [] if metric is None else ["--metric", metric]
    return run("score", file, *named, "--judge", judge_directory(), *arguments, home=here / "home")


@pytest.mark.usefixtures("answering")
def test_figures_are_those_of_the_python_api_to_the_last_bit(here, monkeypatch):
    monkeypatch.setattr(geval_local.judge.scorer, "WINDOW", 4)
    done = run(
        *("score", "data.jsonl", "-m", FORMS[0], "-m", FORMS[1], "--judge", judge_directory(), "--no-steps"),
        *("-o", "out.jsonl", "--json", "--batch-tokens", 3000, "--window", 4),
        home=here / "home",
    )
    assert done.exit_code == 0, done.stderr
    rows = read_rows(here / "out.jsonl")
    judge = Judge.load(judge_directory(), batch_tokens=3000)
    for name in FORMS:
        expected = judge.score_many(Metric.load(name).with_steps(()), read_samples("data.jsonl"))
        assert [row["geval"][name] for row in rows] == [one.to_dict() for one in expected]
        reported = json.loads(done.stdout)["metrics"][name]
        assert reported["mean"] == pytest.approx(sum(one.value for one in expected) / 10, rel=1e-15)
        assert reported["signature"] == str(judge.signature(Metric.load(name).with_steps(())))
    assert [row["id"] for row in rows] == [f"r{number}" for number in range(10)]
    assert rows[0]["source"] == good_rows(1)[0]["source"]


def test_table_without_output_leaves_no_file_and_says_what_is_next(here):
    before = set(here.iterdir())
    done = score(here)
    assert done.exit_code == 0, done.stderr
    assert "10/10" in done.stdout
    assert "clarity" in done.stdout
    assert re.search(r"signature: clarity [0-9a-f]{8} \(whole: --json\)", done.stdout)
    assert "-o scores.jsonl" in done.stderr
    assert f"judges check {judge_directory()} --metric clarity.yaml" in done.stderr
    assert set(here.iterdir()) - before <= {here / "home"}


@pytest.mark.usefixtures("answering")
def test_the_lowest_rows_show_their_number_label_probabilities_question_and_answer(here):
    shown = score(here, "--lowest", 4, "-o", "out.jsonl").stdout.splitlines()
    rows = read_rows(here / "out.jsonl")
    figures = [row["geval"]["clarity"] for row in rows]
    lowest = sorted(range(len(rows)), key=lambda place: figures[place]["score"])[:4]
    start = shown.index("lowest in clarity:") + 1
    for number, place in enumerate(lowest):
        line, source, output = shown[start + 3 * number : start + 3 * number + 3]
        found = re.match(r"  +row (\d+)  ([\d.]+)  (.*)  (\S+)$", line)
        assert (int(found[1]), found[2], found[4]) == (place + 1, f"{figures[place]['score']:.3f}", rows[place]["id"])
        shares = dict(re.findall(r"p\((\w+)\) ([\d.]+)", found[3]))
        assert shares == {label: f"{p:.2f}" for label, p in figures[place]["probabilities"].items()}
        assert source.startswith(f"      source: {rows[place]['source'][:20].strip()}")
        assert output.startswith(f"      output: {rows[place]['output'][:20].strip()}")
    assert max(map(len, (line for line in score(here).stdout.splitlines()))) <= 80


@pytest.mark.usefixtures("answering")
def test_json_is_the_only_thing_on_stdout(here):
    done = score(here, "--json", "--limit", 3, "--estimator", "exact")
    record = json.loads(done.stdout)
    assert record["rows"] == 3
    low, high = record["metrics"]["clarity"]["interval"]
    assert low <= record["metrics"]["clarity"]["mean"] <= high
    assert record["failed_gates"] == []


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_other_formats_by_extension(here, name):
    done = score(here, "-o", name)
    assert done.exit_code == 0, done.stderr
    if name.endswith("csv"):
        assert (here / name).read_text(encoding="utf-8").count("\n") >= 11
    else:
        assert pq.read_table(here / name).num_rows == 10


def test_estimators_reach_the_scores(here):
    judge, metric = Judge.load(judge_directory()), Metric.load("clarity.yaml")
    for arguments, estimator in (
        (["--estimator", "mode"], Estimator("mode")),
        (["--estimator", "median"], Estimator("median")),
    ):
        done = score(here, *arguments, "--json", "-o", "out.jsonl")
        expected = [one.value for one in judge.score_many(metric, read_samples("data.jsonl"), estimator=estimator)]
        assert [row["geval"]["clarity"]["score"] for row in read_rows(here / "out.jsonl")] == expected
        assert json.loads(done.stdout)["estimator"] == estimator.text


def test_thresholds_and_gates_decide_the_exit_code(here):
    done = score(here, "--json", "--threshold", 3, "-o", "out.jsonl")
    figures = [row["geval"]["clarity"] for row in read_rows(here / "out.jsonl")]
    share = json.loads(done.stdout)["metrics"]["clarity"]["passed_share"]
    assert any(one["score"] >= 3 for one in figures)
    assert max(one["label_mass"] for one in figures) < LEAST_LABEL_MASS  # the tiny judge does not answer
    assert share == 0
    assert done.exit_code == 1
    assert json.loads(done.stdout)["metrics"]["clarity"]["mean"] is None
    mean = sum(one["score"] for one in figures) / len(figures)
    assert score(here, "--fail-under", mean - 0.01).exit_code == 1
    assert score(here, "--fail-under", mean - 0.01, "--label-mass", 0).exit_code == 0
    failed = score(here, "--fail-under", mean + 0.01, "--label-mass", 0, "--json")
    assert failed.exit_code == 1
    assert "is under" in failed.stderr
    assert len(json.loads(failed.stdout)["failed_gates"]) == 1


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("limit", "code"), [("0", 1), ("1", 1), ("2", 0), ("16%", 1), ("17%", 0), ("0%", 1), ("100%", 0)]
)
def test_max_unscored_counts_rows_or_their_share(here, limit, code):
    write_rows(here / "holes.jsonl", [*good_rows(10), {"source": "x", "output": ""}, {"source": "x"}])
    done = score(here, "--max-unscored", limit, file="holes.jsonl")
    assert done.exit_code == code, done.stderr
    assert ("gate failed" in done.stderr) == bool(code)


def test_no_scored_row_at_all_fails_with_and_without_a_gate(here):
    write_rows(here / "holes.jsonl", [{"source": "x", "output": ""}])
    assert score(here, file="holes.jsonl").exit_code == 1
    done = score(here, "--fail-under", 1, "--json", file="holes.jsonl")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["metrics"]["clarity"]["mean"] is None


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threshold", "7"], "outside the scale 1-5"),
        (["--fail-under", "0.5"], "outside the scale 1-5"),
        (["--max-unscored", "many"], "not a limit"),
        (["--max-unscored", "-1"], "not a limit"),
        (["--max-unscored", "101%"], "not a limit"),
        (["--metric", "clarity.yaml"], "same name"),
        (["--scale", "1-5"], "--prompt-file"),
        (["--prompt-file", "p.txt", "--scale", "1-5"], "metric by itself"),
        (["--estimator", "sample:5"], "the ablations of meta-eval"),
        (["--limit", "0"], "at least 1"),
        (["--metric", "summarization/coherense"], "did you mean summarization/coherence"),
        (["--dtype", "int8"], "int8"),
    ],
)
def test_wrong_settings_are_named_without_a_traceback(here, arguments, message):
    done = score(here, *arguments, "--json")
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_metric_must_be_named(here):
    done = score(here, metric=None)
    assert done.exit_code == 2
    assert "metrics list" in done.stderr


def test_output_and_input_are_checked_before_the_judge(here, monkeypatch):
    monkeypatch.setattr(Judge, "load", lambda *_, **__: pytest.fail("the judge was loaded"))
    (here / "empty.jsonl").write_text("", encoding="utf-8")
    for arguments, file, message in (
        (["-o", "nowhere/out.jsonl"], "data.jsonl", "no directory"),
        (["-o", "out.txt"], "data.jsonl", "unknown format"),
        (["-o", "data.jsonl"], "data.jsonl", "it is the input"),
        ([], "missing.jsonl", "no file"),
        ([], "empty.jsonl", "no rows"),
    ):
        done = score(here, *arguments, file=file)
        assert done.exit_code == 2
        assert message in done.stderr
    assert len(read_rows(here / "data.jsonl")) == 10


def test_a_prompt_file_is_a_metric(here):
    (here / "fluency.txt").write_text("Rate it.\n\n{{Summary}}\n\n- Fluency (1-3): \n", encoding="utf-8")
    done = score(here, "--prompt-file", "fluency.txt", "--scale", "1-3", "--json", "-o", "out.jsonl", metric=None)
    assert done.exit_code == 0, done.stderr
    assert list(json.loads(done.stdout)["metrics"]) == ["fluency"]
    assert list(read_rows(here / "out.jsonl")[0]["geval"]["fluency"]["probabilities"]) == ["1", "2", "3"]


def test_missing_steps_are_written_once_announced_and_pinned(here, monkeypatch):
    written = []
    monkeypatch.setattr(Judge, "continue_text", lambda *_, **__: written.append(1) or STEPS)
    (here / "plain.yaml").write_text(STEPLESS, encoding="utf-8")
    first = score(here, "--limit", 2, "--json", metric="plain.yaml")
    second = score(here, "--limit", 2, "--json", metric="plain.yaml")
    assert first.exit_code == second.exit_code == 0
    assert len(written) == 1
    pinned = next((here / "home" / "steps").iterdir())
    assert f"pinned in {pinned}" in first.stderr
    assert "pinned" not in second.stderr
    signatures = [json.loads(done.stdout)["metrics"]["plain"]["signature"] for done in (first, second)]
    assert signatures[0] == signatures[1]
    assert "steps:none" not in signatures[0]


@pytest.mark.slow
def test_a_judge_that_writes_no_steps_scores_without_and_says_so(here):
    (here / "bare.yaml").write_text(METRIC.partition("steps:")[0], encoding="utf-8")
    done = score(here, "-o", "out.jsonl", metric="bare.yaml")
    assert done.exit_code == 0, done.stderr
    assert "scored without evaluation steps" in done.stderr
    assert "wrote no two different evaluation steps" in done.stderr
    again = score(here, "-o", "again.jsonl", metric="bare.yaml")
    assert "writing the evaluation steps" not in again.stderr
    assert read_rows(here / "again.jsonl")[0]["geval"] == read_rows(here / "out.jsonl")[0]["geval"]


@pytest.mark.slow
def test_an_interruption_exits_with_3_and_prints_the_command(here, monkeypatch):
    def interrupt(*_: object, **__: object):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "load", interrupt)
        early = score(here, "-o", "my out.jsonl")
    assert early.exit_code == 3
    assert "--metric clarity.yaml" in early.stderr
    assert [path.name for path in here.iterdir() if "out" in path.name] == []
    outcome, calls = Judge.outcome, []

    def interrupt_the_tenth(*arguments):
        calls.append(1)
        return interrupt() if len(calls) == 10 else outcome(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "outcome", interrupt_the_tenth)
        late = score(here, "-o", "my out.jsonl", "--batch-tokens", 400)
    assert late.exit_code == 3
    assert "geval-local resume '.my out.jsonl.run'" in late.stderr
    assert [path.name for path in here.iterdir() if "out" in path.name] == [".my out.jsonl.run"]
    done = run("resume", ".my out.jsonl.run", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert {path.name for path in here.iterdir() if "out" in path.name} == {"my out.jsonl", "my out.jsonl.meta.json"}
    assert score(here, "-o", "whole.jsonl", "--no-cache", "--batch-tokens", 400).exit_code == 0
    assert (here / "my out.jsonl").read_bytes() == (here / "whole.jsonl").read_bytes()


def test_low_label_mass_is_told(here):
    record = json.loads(score(here, "--json").stdout)["metrics"]["clarity"]["label_mass"]
    assert 0 <= record["min"] <= record["mean"] <= 1
    assert not math.isnan(record["share_below_low"])
    assert record["share_below_low"] > 0  # a random model does not know the form
    assert "below 0.9 in" in score(here).stderr
