"""``calibrate``, ``score --calibration`` and ``bias``: fitted on one kind of scores, refused for every other."""

from __future__ import annotations

import json

import pytest
from cli_run import judge_directory, read_rows, run
from rated_runs import other_judge, prepare, score

from geval_local import Judge, Metric
from geval_local.analysis.studies.calibration import load_calibration
from geval_local.cli.content_free import CONTENT_FREE


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    score(tmp_path, "a.jsonl")
    return tmp_path


def calibrate(here, *arguments: object):
    return run(
        *("calibrate", "a.jsonl", "--human", "rating.clarity", "--group-by", "doc", "-o", "cal.json", *arguments),
        home=here,
    )


def bias(here, *arguments: object):
    named = () if "--document" in arguments else ("--document", "doc")
    return run("bias", "a.jsonl", "--group-by", "side", *named, *arguments, home=here / "home")


def test_a_calibration_is_applied_to_what_it_was_fitted_on(here):
    done = calibrate(here, "--json")
    assert done.exit_code == 0, done.stderr
    held = json.loads(done.stdout)["held_out"]
    assert (held["n"], held["groups"], held["folds"]) == (12, 6, 5)
    errors = [row["geval"]["clarity"]["score"] - row["rating"]["clarity"] for row in read_rows(here / "a.jsonl")]
    assert held["before"]["error"] == pytest.approx((sum(error**2 for error in errors) / 12) ** 0.5)
    absolute = json.loads(calibrate(here, "--json", "--loss", "absolute").stdout)["held_out"]
    assert absolute["before"]["error"] == pytest.approx(sum(map(abs, errors)) / 12)
    score(here, "b.jsonl", "--calibration", "cal.json")
    fitted = load_calibration("cal.json")
    for row, raw in zip(read_rows(here / "b.jsonl"), read_rows(here / "a.jsonl"), strict=True):
        figures = row["geval"]["clarity"]
        assert figures.pop("calibrated") == fitted.apply(figures["score"], figures["probabilities"])[0]
        assert figures == raw["geval"]["clarity"]
    manifest = json.loads((here / "b.jsonl.meta.json").read_text())
    assert manifest["metrics"]["clarity"]["calibration"]["human"] == "rating.clarity"


def test_no_in_sample_figure_is_shown(here):
    done = calibrate(here)
    shown = done.stdout
    assert "the calibration " in done.stderr
    assert "verdict: " in shown
    assert "rescaled only" in shown
    assert "held out: 5 folds over 6 groups" in shown
    assert "constant" in shown
    record = json.loads(calibrate(here, "--json").stdout)
    assert set(record) == {"metric", "human", "method", "grouping", "temperature", "knots", "held_out", "output"}
    refused = run(
        *("calibrate", "a.jsonl", "--human", "rating.clarity", "--group-by", "source", "--folds", 1, "-o", "x.json"),
        home=here,
    )
    assert refused.exit_code == 2
    assert not (here / "x.json").exists()


@pytest.mark.parametrize(
    ("arguments", "judge", "told"),
    [
        (["--estimator", "mode"], None, "estimator: exact there, mode here"),
        (["--no-steps"], None, "steps:"),
        ([], other_judge, "judge:"),
    ],
)
def test_scores_of_another_kind_are_refused(here, arguments, judge, told):
    calibrate(here)
    before = {path.name for path in here.iterdir()}
    done = run(
        *("score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge() if judge else judge_directory(), *arguments),
        *("--calibration", "cal.json", "-o", "out.jsonl"),
        home=here / "home",
    )
    assert done.exit_code == 2
    assert told in done.stderr
    assert {path.name for path in here.iterdir()} == before


def test_a_calibration_without_an_origin_or_for_another_metric_is_refused(here):
    calibrate(here)
    done = run(
        *("score", "data.jsonl", "-m", "summarization/coherence", "--judge", judge_directory()),
        *("--calibration", "cal.json"),
        home=here / "home",
    )
    assert "is a calibration of clarity" in done.stderr
    (here / "a.jsonl.meta.json").unlink()
    refused = calibrate(here)
    assert refused.exit_code == 2
    assert "nothing says under which signature" in refused.stderr


def test_sides_are_compared_within_documents_and_by_preference(here):
    record = json.loads(bias(here, "--human", "rating.clarity", "--json").stdout)
    rows = read_rows(here / "a.jsonl")
    by_side = {
        side: [row["geval"]["clarity"]["score"] for row in rows if row["side"] == side] for side in ("human", "machine")
    }
    assert [side["mean"]["value"] for side in record["sides"]] == pytest.approx([sum(v) / 6 for v in by_side.values()])
    everything = record["gaps"]["all documents"]
    assert everything["test"] == "sign-flip"
    assert everything["difference"]["value"] == pytest.approx(
        sum(a - b for a, b in zip(by_side["human"], by_side["machine"], strict=True)) / 6
    )
    split = {name: gap["documents"] for name, gap in record["gaps"].items() if name.startswith("people")}
    assert split == {"people prefer human": 5, "people prefer machine": 1}
    less = record["gaps"]["judge less people"]
    ratings = {side: [row["rating"]["clarity"] for row in rows if row["side"] == side] for side in by_side}
    people = sum(a - b for a, b in zip(ratings["human"], ratings["machine"], strict=True)) / 6
    assert less["difference"]["value"] == pytest.approx(everything["difference"]["value"] - people)
    assert record["unit_against_people"] == "units of the scale"
    assert all(gap["p_holm"] is None or gap["p_holm"] >= gap["p"] for gap in record["gaps"].values())
    assert record["length"]["human"]["n"] == 12
    pooled = json.loads(bias(here, "--human", "rating.clarity", "--document", "row", "--json").stdout)
    assert set(pooled["length"]["partial"]) == {"pearson", "spearman", "kendall"}
    assert "--group-by row says" in pooled["grouping"]
    assert record["prior"] is None


def test_the_prior_is_the_judges_answer_to_nothing(here):
    done = bias(here, "-j", judge_directory(), "--prior-correction", "--human", "rating.clarity", "--json")
    assert done.exit_code == 0, done.stderr
    prior = json.loads(done.stdout)["prior"]
    judge, metric = Judge.load(judge_directory()), Metric.load("clarity.yaml")
    answers = [judge.score(metric, source=text, output=text).probabilities for text in CONTENT_FREE]
    assert prior["prior"] == pytest.approx({label: sum(p[label] for p in answers) / 3 for label in "12345"}, abs=1e-5)
    assert prior["mean_before"] != prior["mean_after"]
    assert prior["after"]["n"] == 12
    refused = bias(here, "-j", other_judge())
    assert refused.exit_code == 2
    assert "the judge and the form that scored a.jsonl: judge:" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prior-correction"], "needs --judge"),
        (["--side", "human"], "between two sides, not 1"),
        (["--side", "human", "--side", "robot"], "'robot'"),
        (["-m", "tone"], "no scores of 'tone'"),
        (["--document", "page"], "'page'"),
    ],
)
def test_what_cannot_be_compared_is_refused(here, arguments, message):
    done = bias(here, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_more_than_two_sides_are_each_compared_with_the_others(here):
    done = run("bias", "a.jsonl", "--group-by", "doc", home=here)
    assert done.exit_code == 0, done.stderr
    assert "not yet a bias" in done.stderr
    assert "p (Holm)" in done.stdout
    assert "d3 - the others" in done.stdout
