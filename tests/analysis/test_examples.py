"""Rows drawn as examples of a metric, and left out, by their content, of all that is held against people."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from cli_run import run, write_rows
from scipy import stats

from geval_local import Metric, calibrate, estimate, meta_evaluate, read_rated
from geval_local.analysis.example_draw import draw_examples, label_of
from geval_local.analysis.rating_plans import plan_ratings
from geval_local.errors import DataError
from geval_local.io.result_manifest import ResultManifest, ScoredMetric, write_manifest

METRIC = """\
# Mine.
name: clarity
criteria: How clear the text is.  # not how short
fields:
  source: Source
  output: Text
scale: 1-5
steps: []
"""


def rated_rows(count: int = 40):
    """Ratings in thirds from 1 to 5; two rows share a source."""
    rng = np.random.default_rng(1)
    return [
        {
            "id": f"r{at}",
            "source": f"Source {at // 2}.",
            "output": f"Text {at}  of\n{count}.",
            "rating": 1 + int(rng.integers(0, 13)) / 3,
            "why": f"reason {at}",
        }
        for at in range(count)
    ]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(METRIC, encoding="utf-8")
    write_rows(tmp_path / "rated.jsonl", rated_rows())
    return tmp_path


# --- the draw ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "rating", "label"),
    [
        ("1-5", 3.67, "4"),
        ("1-5", 3.5, "3"),
        ("1-5", 3.51, "4"),
        ("1-5", "2", "2"),
        ("1-5", -1, None),
        ("1-5", 5.2, None),
        ("1-5", "", None),
        ("1-5", [4, 5, 5], "5"),
        ({"poor": 1, "fair": 2, "good": 4}, "fair", "fair"),
        ({"poor": 1, "fair": 2, "good": 4}, 3.2, "good"),
        ("Yes/No", True, "Yes"),
        ("0-1 step 0.25", 0.6, "0.5"),
    ],
)
def test_a_rating_becomes_the_nearest_label(scale, rating, label):
    scale = Metric(name="a", criteria="c", scale=scale).scale
    assert label_of({"rating": rating}, "rating", scale, "row 1") == label


@pytest.mark.parametrize(("count", "most"), [(1, 1), (2, 1), (3, 1), (5, 1), (7, 2), (10, 2)])
def test_labels_are_spread_over_the_scale(here, count, most):
    metric = Metric.load("mine.yaml")
    drawn = draw_examples("rated.jsonl", metric, "rating", count=count, reason="why").examples
    by_id = {row["id"]: row for row in rated_rows()}
    labels = Counter(one.label for one in drawn)
    assert sum(labels.values()) == count
    assert max(labels.values()) == most
    assert {1: {"3"}, 2: {"1", "5"}, 3: {"1", "3", "5"}}.get(count, set("12345")) == set(labels)
    for one in drawn:
        row = by_id[one.id]
        assert one.texts == {"source": row["source"], "output": row["output"]}
        assert abs(float(one.label) - row["rating"]) == min(abs(value - row["rating"]) for value in range(1, 6))
        assert one.reason == row["why"]
    assert len({one.texts["source"] for one in drawn}) == count, "no two share a source while there are others"
    assert drawn == draw_examples("rated.jsonl", metric, "rating", count=count, reason="why").examples
    assert drawn != draw_examples("rated.jsonl", metric, "rating", count=count, reason="why", seed=9).examples


def test_rows_that_cannot_be_examples_are_counted_and_too_few_are_refused(here):
    rows = rated_rows(4)
    rows += [rows[0] | {"id": "again"}, {"id": "bare", "output": "x", "rating": 3}, rows[1] | {"rating": -1}]
    rows[3].pop("id")
    write_rows(here / "rated.jsonl", rows)
    metric = Metric.load("mine.yaml")
    found = draw_examples("rated.jsonl", metric, "rating", count=4)
    assert (found.candidates, sum(found.left_out.values())) == (4, 3)
    assert "rated.jsonl:4" in [one.id for one in found.examples]
    with pytest.raises(
        DataError, match=r"5 examples cannot be drawn from 4 rated rows; 1 repeat .*'source' is missing"
    ):
        draw_examples("rated.jsonl", metric, "rating", count=5)
    with pytest.raises(DataError, match="no row has a value in 'ratng'; did you mean 'rating'"):
        draw_examples("rated.jsonl", metric, "ratng", count=2)
    with pytest.raises(DataError, match="no row has a value in 'whi'; did you mean 'why'"):
        draw_examples("rated.jsonl", metric, "rating", count=2, reason="whi")


def test_the_verb_writes_into_a_file_of_yours_and_keeps_its_comments(here):
    command = ("metrics", "examples", "mine.yaml", "--from", "rated.jsonl", "--human", "rating")
    done = run(*command, "-n", "4", home=here)
    assert done.exit_code == 0, done.stderr
    text = (here / "mine.yaml").read_text(encoding="utf-8")
    assert text.startswith(METRIC)
    first = Metric.load("mine.yaml").examples
    assert done.stdout.splitlines() == [f"{one.id}: {one.label}" for one in first]
    assert "wrote 4 of 40 rated rows into mine.yaml" in done.stderr
    done = run(*command, home=here)
    assert done.exit_code == 2
    assert "mine.yaml has 4 examples already" in done.stderr
    assert (here / "mine.yaml").read_text(encoding="utf-8") == text
    done = run(*command, "-n", "1", "--force", home=here)
    assert "in place of the 4 that it had" in done.stderr
    assert "a judge tends to repeat" in done.stderr, "there is one label now"
    assert len(Metric.load("mine.yaml").examples) == 1
    assert (here / "mine.yaml").read_text(encoding="utf-8").startswith(METRIC)
    told = run("metrics", "validate", "mine.yaml", home=here)
    assert told.exit_code == 0
    assert "a judge tends to repeat" in told.stderr
    assert "1 example" in told.stdout


def test_a_preset_becomes_a_file_with_a_name_of_its_own(here):
    command = ("metrics", "examples", "summarization/coherence", "--from", "rated.jsonl", "--human", "rating")
    done = run(*command, home=here)
    assert (done.exit_code, "is a preset" in done.stderr) == (2, True)
    assert run(*command, "-o", "coherent.yaml", home=here).exit_code == 0
    preset, made = Metric.load("summarization/coherence"), Metric.load("coherent.yaml")
    assert (made.name, made.title, made.steps, len(made.examples)) == ("coherent", "Coherence", preset.steps, 6)
    assert run(*command, "-o", "coherent.yaml", home=here).exit_code == 2
    assert run(*command, "-o", "other.yaml", "--name", "team/coherence", home=here).exit_code == 0
    assert Metric.load("other.yaml").name == "team/coherence"
    done = run(*command, "-o", "third.yaml", "--name", "two words", home=here)
    assert (done.exit_code, (here / "third.yaml").exists()) == (2, False)


# --- left out ---------------------------------------------------------------------------------------------------------


def scored(here, count: int = 8):
    """Results of a judge that copies the ratings of its examples, and says little of the other rows.

    In the results the examples' rows have other ids and other white space than where they were drawn.
    """
    metric = Metric.load("mine.yaml")
    drawn = draw_examples("rated.jsonl", metric, "rating", count=count).examples
    metric = Metric.from_yaml(metric.model_copy(update={"examples": drawn}).to_yaml())
    (here / "mine.yaml").write_text(metric.to_yaml(), encoding="utf-8")
    known = {one.texts["output"] for one in drawn}
    rng = np.random.default_rng(2)
    rows = []
    for at, row in enumerate(rated_rows()):
        score = row["rating"] if row["output"] in known else 3 + rng.normal() / 3 + (row["rating"] - 3) / 9
        low, p = int(min(max(score, 1), 4.999)), min(max(score, 1), 5) % 1
        p = 1.0 if score >= 5 else p
        figures = {
            "score": low * (1 - p) + (low + 1) * p,
            "probabilities": {str(label): {low: 1 - p, low + 1: p}.get(label, 0.0) for label in range(1, 6)},
            "label_mass": 1.0,
        }
        texts = {"source": f"{row['source']} ", "output": " ".join(row["output"].split())}
        rows.append({**row, **texts, "id": f"other {at}", "doc": f"d{at}", "geval": {"clarity": figures}})
    write_rows(here / "scored.jsonl", rows)
    origin = ScoredMetric("judge:x@1|metric:clarity@2|estimator:exact", metric, 0)
    write_manifest("scored.jsonl", ResultManifest("x", "rated.jsonl", "0" * 64, len(rows), {"clarity": origin}))
    kept = [row for row, given in zip(rows, rated_rows(), strict=True) if given["output"] not in known]
    assert len(kept) == 40 - count
    return rows, kept


def figures(rows):
    return [row["geval"]["clarity"]["score"] for row in rows], [row["rating"] for row in rows]


OWN = {"human": "rating", "group_by": "doc"}


def test_meta_eval_correlates_the_other_rows(here):
    rows, kept = scored(here)
    rated = read_rated("scored.jsonl", metrics=["mine.yaml"], human=["rating"], group_by="row")
    study = meta_evaluate(rated, ["scored.jsonl"], coefficient="spearman", level="pooled")
    found = study.correlations["x"]["clarity"]
    assert found.n == 32
    assert found.spearman.value == pytest.approx(stats.spearmanr(*figures(kept)).statistic)
    assert stats.spearmanr(*figures(rows)).statistic > found.spearman.value + 0.1, "what the judge was told would count"
    assert "clarity: 8 rows are examples in the form, and left out" in study.notes
    length = study.correlations["length"]["clarity"]
    assert length.n == 32, "others are measured on the same rows"
    (here / "bare.yaml").write_text(METRIC, encoding="utf-8")
    bare = read_rated("scored.jsonl", metrics=["bare.yaml"], human=["rating"], group_by="row")
    again = meta_evaluate(bare, ["scored.jsonl"], baselines=False, level="pooled").correlations["x"]["clarity"]
    assert again.n == 32, "the scores' own description names the examples"


def test_calibrate_fits_the_other_rows(here):
    _, kept = scored(here)
    study = calibrate("scored.jsonl", method="isotonic", **OWN)
    held = study.calibration.held_out
    score, rating = map(np.array, figures(kept))
    assert held.n == 32
    assert held.before.error == pytest.approx(float(np.sqrt(((score - rating) ** 2).mean())))
    assert ("clarity: 8 rows are examples in the form, and left out", False) in study.remarks()
    assert study.to_dict()["notes"] == ["clarity: 8 rows are examples in the form, and left out"]


@pytest.mark.parametrize("people", [{"human": "rating"}, {"raters": ("rating", "other")}])
def test_estimate_is_of_the_other_rows(here, people):
    rows, kept = scored(here)
    for at, row in enumerate(rows):
        row["other"] = row["rating"]
        if at % 3 == 0 and row in kept:
            row["rating"] = row["other"] = None
    write_rows(here / "scored.jsonl", rows)
    study = estimate("scored.jsonl", **people, group_by="doc")
    (found,) = study.estimates.values()
    rated = [row["rating"] for row in kept if row["rating"] is not None]
    assert (found.n, found.rated) == (32, len(rated))
    assert found.people.value == pytest.approx(math.fsum(rated) / len(rated))
    assert ("clarity: 8 rows are examples in the form, and left out", False) in study.remarks()
    assert study.to_dict()["left_out"]


def test_no_example_is_drawn_to_be_rated(here):
    rows, kept = scored(here)
    for row in rows:
        row["rating"] = None
    write_rows(here / "scored.jsonl", rows)
    plan = plan_ratings("scored.jsonl", "rating", documents=32, group_by="doc")
    assert sorted(row["output"] for row in plan.sheet) == sorted(row["output"] for row in kept)


def test_rows_without_their_texts_cannot_be_told_and_that_is_said(here, caplog):
    rows, _ = scored(here)
    write_rows(here / "scored.jsonl", [{key: value for key, value in row.items() if key != "source"} for row in rows])
    assert calibrate("scored.jsonl", method="isotonic", **OWN).calibration.held_out.n == 40
    assert "40 rows lack texts of clarity and cannot be compared with its examples" in caplog.text


def test_the_verbs_say_how_many(here):
    scored(here)
    options = ("scored.jsonl", "--human", "rating", "--group-by", "doc")
    told = "clarity: 8 rows are examples in the form, and left out"
    assert told in run("calibrate", *options, "-o", "cal.json", home=here).stderr
    assert told in run("estimate", *options, home=here).stderr
    done = run("meta-eval", *options, "-m", "mine.yaml", "--results", "scored.jsonl", "--json", home=here)
    assert told in json.loads(done.stdout)["notes"]
