"""Where low scores are good, whatever ranks, passes or names rows follows; no other metric's hash changes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from cli_run import METRIC as CLARITY
from cli_run import good_rows, run, write_rows

from geval_local import Judge, Metric, Scale, compare, rank, run_evaluation, score_file
from geval_local.analysis.results import read_results
from geval_local.direction import Direction
from geval_local.errors import MetricError
from geval_local.models.registry import label_of
from geval_local.questions.pair import pair_metric
from geval_local.report.reports import write_report
from geval_local.runs.reasons import chosen_places
from geval_local.score import Distribution, Estimator, Score
from geval_local.testing import MockJudge

HIGH = Metric.from_yaml(CLARITY)
LOW = HIGH.model_copy(update={"name": "toxicity", "better": "low", "threshold": 2.9})


def test_the_hash_changes_only_where_low_is_good():
    # That of the version before metrics had this key.
    assert HIGH.hash == Metric.from_yaml(CLARITY + "better: high\n").hash == "08495238a48b8988"
    assert HIGH.model_copy(update={"better": "low"}).hash != HIGH.hash
    assert "better" not in HIGH.to_yaml()
    assert Metric.from_yaml(LOW.to_yaml()) == LOW
    with pytest.raises(MetricError, match=r"line 10: better: .lower. is none of .high. or .low."):
        Metric.from_yaml(CLARITY + "better: lower\n")


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("threshold", [1, 2, 2.1, 2.5, 3])
def test_a_score_passes_on_its_good_side(direction, threshold):
    p, labels = np.array([0.25, 0.5, 0.25]), np.array([1, 2, 3])
    score = Score.from_distribution(
        "m",
        Distribution(Scale.parse("1-3"), np.log(p)),
        estimator=Estimator(),
        threshold=threshold,
        direction=direction,
    )
    good = labels >= threshold if direction is Direction.HIGH else labels <= threshold
    assert score.threshold_probability == pytest.approx(p[good].sum())
    assert score.passed == (threshold <= 2 if direction is Direction.HIGH else threshold >= 2)
    assert not direction.passes(math.nan, 1)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """One judge's scores of three systems, by two metrics that differ in their direction alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    rows = [
        row | {"id": f"{row['id']}{name}", "doc_id": row["id"], "system": name, "output": f"{name} {row['output']}"}
        for row in good_rows(12)
        for name in ("one", "two", "three")
    ]
    file = write_rows(tmp_path / "data.jsonl", rows)
    twin = LOW.model_copy(update={"better": "high"})
    return {
        one.better: score_file(file, one, MockJudge(), tmp_path / f"{one.better}.jsonl", use_cache=False)
        for one in (LOW, twin)
    }


def test_the_worst_rows_are_the_highest(runs):
    high, low = runs["high"], runs["low"]
    values = sorted(score.value for _, score in high.lowest[0])
    assert [score.value for _, score in high.lowest[0]] == values
    assert [score.value for _, score in low.lowest[0]] == values[::-1]
    found = read_results(low.files[0]).lowest(3)["toxicity"]
    assert [score.value for _, score in found] == values[::-1][:3]
    figures = [{"score": value, "mode": "1"} for value in (2.0, 1.0, 3.0)]
    assert chosen_places(figures, lowest=1) == [1]
    assert chosen_places(figures, lowest=1, direction=Direction.LOW) == [2]
    assert high.summaries[0].mean == low.summaries[0].mean
    assert low.summaries[0].passed_share == sum(value <= 2.9 for value in values) / len(values)


def test_systems_are_ranked_from_the_good_end(runs):
    ranked = {better: compare([result]).systems["toxicity"] for better, result in runs.items()}
    means = {better: [side.shown.value for side in one.systems] for better, one in ranked.items()}
    assert means["high"] == sorted(means["high"], reverse=True)
    assert means["low"] == means["high"][::-1]
    assert "has the lowest mean of 3 systems" in ranked["low"].told
    assert "has the highest mean of 3 systems" in ranked["high"].told
    by_name = {frozenset((pair.first, pair.second)): pair for pair in ranked["high"].pairs}
    for pair in ranked["low"].pairs:
        other = by_name[frozenset((pair.first, pair.second))]
        assert (pair.first, pair.second) == (other.second, other.first)
        assert pair.difference.value == pytest.approx(-other.difference.value)
        # Whom the judge prefers loses to whom it preferred, on the same documents.
        assert (pair.wins, pair.ties, pair.losses) == (other.wins, other.ties, other.losses)
        assert pair.better is None or pair.better != other.better


def test_preferences_made_of_scores_prefer_the_good_end(runs):
    studies = {better: rank([result]).sources[1].study for better, result in runs.items()}
    values = {
        better: {(one.first, one.second): one.difference.value for one in study.ranking.pairs}
        for better, study in studies.items()
    }
    assert {pair: -value for pair, value in values["low"].items()} == pytest.approx(
        {pair: values["high"].get(pair, -values["high"].get(pair[::-1], math.nan)) for pair in values["low"]}
    )


def test_pages_pass_and_rank_from_the_good_end(runs, tmp_path):
    write_report([runs["low"].files[0]], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"better":"low"' in page
    assert "stay within 2.9" in page
    assert "has the lowest mean of 3 systems" in page


def test_pairs_ask_for_the_better_text_and_take_no_such_metric():
    with pytest.raises(MetricError, match="low scores of toxicity are good"):
        pair_metric(LOW)


def test_the_command_line_follows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Judge, "load", lambda options, **more: MockJudge(name=label_of(options)))
    (tmp_path / "low.yaml").write_text(LOW.to_yaml(), encoding="utf-8")
    write_rows(tmp_path / "data.jsonl", good_rows(6))
    words = ("score", "data.jsonl", "-m", "low.yaml", "-j", "qwen2.5-0.5b", "--no-steps")
    done = run(*words, "-o", "out.jsonl", home=tmp_path)
    assert "(<= 2.9)" in done.stdout
    assert "highest" in done.stdout
    assert "why the highest are high" in done.stderr
    mean = json.loads(run(*words, "--json", home=tmp_path).stdout)["metrics"]["toxicity"]["mean"]
    assert run(*words, "--fail-over", mean - 0.01, home=tmp_path).exit_code == 1
    assert run(*words, "--fail-over", mean + 0.01, home=tmp_path).exit_code == 0
    refused = run(*words, "--fail-under", "3", home=tmp_path)
    assert (refused.exit_code, "Write --fail-over X" in refused.stderr) == (2, True)
    refused = run(*words, "--by", "length", "--fail-slice-under", "3", home=tmp_path)
    assert (refused.exit_code, "--fail-slice-under 3 would fail the good means" in refused.stderr) == (2, True)
    assert run(*words, "-o", "run/", home=tmp_path).exit_code == 0
    for given, told in (
        (("--fail-under", "3"), "would fail the good means of toxicity"),
        (("--fail-over", "9"), "9 is outside"),
    ):
        again = run("resume", "run", *given, home=tmp_path)
        assert (again.exit_code, told in again.stderr) == (2, True)


def test_a_gate_has_the_end_of_the_interval_that_is_bad(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))
    monkeypatch.setattr(Judge, "load", lambda options, **more: MockJudge(name=label_of(options)))
    for name, metric in (("low", LOW), ("high", HIGH)):
        (tmp_path / f"{name}.yaml").write_text(metric.with_steps(()).to_yaml(), encoding="utf-8")
    write_rows(tmp_path / "data.jsonl", good_rows(12))
    assert run("init", "data.jsonl", "-m", "low.yaml", "-o", "e.yaml", home=tmp_path).exit_code == 0
    assert '#   mean: "<= 3"' in (tmp_path / "e.yaml").read_text(encoding="utf-8")
    result = run_evaluation("e.yaml").runs["data"].summaries[0]
    middle = (result.mean + result.high) / 2
    gates = f'{{mean: "<= {middle}", mean_low: "<= {middle}", mean_high: "<= {middle}"}}'

    def told(*values):
        sets = [word for value in values for word in ("--set", value)]
        return run("run", "e.yaml", *sets, *(["--check"] if len(values) > 1 else []), home=tmp_path)

    done = told(f"gates.toxicity={gates}")
    assert done.exit_code == 1
    assert "gates: 3 of 4 hold" in done.stderr
    assert f"the upper end of the mean's interval {result.high:.4g} is over" in done.stderr
    assert "warning" not in done.stderr
    both = told("outputs=o", "metrics=[low.yaml, high.yaml]", "gates.all.mean=>= 3")
    assert both.exit_code == 0
    assert "good means of toxicity fail `mean >= 3`: its low scores are good" in both.stderr
    assert "good means of clarity" not in both.stderr
    high = told("outputs=o", "metrics=[high.yaml]", "gates.all.by.id.mean_low=< 3")
    assert "good means of clarity fail `mean_low < 3`: its high scores are good" in high.stderr
