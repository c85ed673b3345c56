"""``calibrate``, ``score --calibration`` and ``bias``: fitted on scores of one signature, rejected for others."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cli_run import judge_directory, read_rows, run, write_rows
from rated_runs import other_judge, prepare, rated_rows, score

from geval_local.analysis.calibration import load_calibration

#: Every test scores, calibrates and scores again.
pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    score(tmp_path, "a.jsonl")
    return tmp_path


def calibrate(here, *arguments: object, human: str = "rating.clarity"):
    return run(
        *("calibrate", "a.jsonl", "--human", human, "--group-by", "doc", "-o", "cal.json", *arguments), home=here
    )


@pytest.fixture
def helpful(here):
    """A calibration of ratings that follow the scores on another scale, on documents enough for that to be seen."""
    write_rows(here / "data.jsonl", rated_rows(20))
    score(here, "a.jsonl")
    rated = read_rows(here / "a.jsonl")
    for row in rated:
        row["stars"] = 10 * row["geval"]["clarity"]["score"]
    write_rows(here / "a.jsonl", rated)
    done = calibrate(here, "--method", "isotonic", "--human-scale", "0-100", "--json", human="stars")
    assert done.exit_code == 0, done.stderr
    assert "next: geval-local score" in done.stderr
    return json.loads(done.stdout)


def bias(here, *arguments: object):
    named = () if "--group-by" in arguments else ("--group-by", "doc")
    return run("bias", "a.jsonl", "--side", "side", *named, *arguments, home=here / "home")


def test_a_calibration_is_applied_to_what_it_was_fitted_on(here, helpful):
    held = helpful["held_out"]
    assert (held["n"], held["groups"], held["folds"]) == (40, 20, 5)
    errors = [row["geval"]["clarity"]["score"] - row["stars"] for row in read_rows(here / "a.jsonl")]
    assert held["before"]["error"] == pytest.approx((sum(error**2 for error in errors) / 40) ** 0.5)
    score(here, "b.jsonl", "--calibration", "cal.json")
    fitted = load_calibration("cal.json")
    for row, raw in zip(read_rows(here / "b.jsonl"), read_rows(here / "a.jsonl"), strict=True):
        figures = row["geval"]["clarity"]
        assert figures.pop("calibrated") == fitted.apply(figures["score"], figures["probabilities"])
        assert figures == raw["geval"]["clarity"]
    manifest = json.loads((here / "b.jsonl.meta.json").read_text())
    assert manifest["metrics"]["clarity"]["calibration"]["human"] == "stars"


def test_a_calibration_that_does_not_help_is_not_applied(here):
    done = calibrate(here)
    assert done.exit_code == 0, done.stderr
    held = load_calibration("cal.json").held_out
    assert not held.helps
    assert "`score --calibration` refuses it" in done.stderr
    assert "next: geval-local score" not in done.stderr
    before = {path.name for path in here.iterdir()}
    refused = run(
        *("score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge_directory(), "--calibration", "cal.json"),
        *("-o", "out.jsonl"),
        home=here / "home",
    )
    assert refused.exit_code == 2
    assert held.verdict in " ".join(refused.stderr.split())
    assert "6 documents" in refused.stderr
    assert {path.name for path in here.iterdir()} == before


def test_no_in_sample_figure_is_shown(here):
    done = calibrate(here)
    shown = done.stdout
    assert "the calibration " in done.stderr
    assert "verdict: " in shown
    assert "rescaled only" in shown
    assert "held out: 5 folds over 6 groups" in shown
    assert "constant" in shown
    record = json.loads(calibrate(here, "--json").stdout)
    assert set(record) == {"metric", "human", "method", "grouping", "temperature", "knots", "held_out"}
    refused = run(
        *("calibrate", "a.jsonl", "--human", "rating.clarity", "--group-by", "source", "--folds", 1, "-o", "x.json"),
        home=here,
    )
    assert refused.exit_code == 2
    assert not (here / "x.json").exists()


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("arguments", "judge", "told"),
    [
        (["--estimator", "mode"], None, "estimator: exact there, mode here"),
        (["--no-steps"], None, "steps:"),
        ([], other_judge, "judge:"),
    ],
)
@pytest.mark.usefixtures("helpful")
def test_scores_of_another_kind_are_refused(here, arguments, judge, told):
    before = {path.name for path in here.iterdir()}
    done = run(
        *("score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge() if judge else judge_directory(), *arguments),
        *("--calibration", "cal.json", "-o", "out.jsonl"),
        home=here / "home",
    )
    assert done.exit_code == 2
    assert told in done.stderr
    assert {path.name for path in here.iterdir()} == before


@pytest.mark.usefixtures("helpful")
def test_a_calibration_without_an_origin_or_for_another_metric_is_refused(here):
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


def test_sides_are_compared_within_documents_and_by_preference(here, answering):
    record = json.loads(bias(here, "--human", "rating.clarity", "--json").stdout)
    rows = read_rows(here / "a.jsonl")
    by_side = {
        side: [row["geval"]["clarity"]["score"] for row in rows if row["side"] == side] for side in ("human", "machine")
    }
    assert [side["mean"]["value"] for side in record["sides"]] == pytest.approx([sum(v) / 6 for v in by_side.values()])
    everything = record["gaps"]["all documents"]
    assert everything["test"] == "t"  # flips of six documents cannot reject beside the table's other tests
    assert everything["difference"]["value"] == pytest.approx(
        sum(a - b for a, b in zip(by_side["human"], by_side["machine"], strict=True)) / 6
    )
    split = {name: gap["documents"] for name, gap in record["gaps"].items() if name.startswith("people")}
    assert split == {"people prefer human": 5, "people prefer machine": 1}
    less = record["gaps"]["judge less people"]
    ratings = {side: [row["rating"]["clarity"] for row in rows if row["side"] == side] for side in by_side}
    # The judge is brought to people's scale by the slope within the sides, which noise puts between these two.
    within = [
        np.concatenate([np.subtract(values[side], np.mean(values[side])) for side in values])
        for values in (by_side, ratings)
    ]
    cross, gap = np.dot(*within), sum(a - b for a, b in zip(ratings["human"], ratings["machine"], strict=True)) / 6
    slopes = cross / np.dot(within[1], within[1]), np.dot(within[0], within[0]) / cross
    both = [everything["difference"]["value"] - slope * gap for slope in slopes]
    expected = 0 if both[0] * both[1] < 0 else min(both, key=abs)
    assert less["difference"]["value"] == pytest.approx(expected)
    assert all(gap["p_adjusted"] is None or gap["p_adjusted"] >= gap["p"] for gap in record["gaps"].values())
    assert record["length"]["human"]["n"] == 12
    pooled = json.loads(bias(here, "--human", "rating.clarity", "--group-by", "row", "--json").stdout)
    # One rating a row: its noise is unknown, so there is a figure and no interval.
    assert pooled["length"]["partial"]["value"] is not None
    assert pooled["length"]["partial"]["low"] is pooled["length"]["partial"]["high"] is None
    assert "`group_by=row` says" in pooled["grouping"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--between", "human"], "between two sides, not 1"),
        (["--between", "human", "--between", "robot"], "'robot'"),
        (["-m", "tone"], "no scores of 'tone'"),
        (["--group-by", "page"], "'page'"),
    ],
)
def test_what_cannot_be_compared_is_refused(here, arguments, message):
    done = bias(here, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_more_than_two_sides_are_each_compared_with_the_others(here, answering):
    done = run("bias", "a.jsonl", "--side", "doc", home=here)
    assert done.exit_code == 0, done.stderr
    assert "not yet a bias" in done.stderr
    assert "p (adjusted)" in done.stdout
    assert "d3 - the others" in done.stdout
