"""Files with one row for each rating: the rows of a text are one document, and merge into one with several raters."""

from __future__ import annotations

import csv
import random

import numpy as np
import pytest
from cli_run import run
from scipy import stats

from geval_local.analysis.calibration import calibrate
from geval_local.analysis.estimates import estimate
from geval_local.analysis.meta_evaluation import meta_evaluate
from geval_local.analysis.ratings.merged import MOST_RATERS, rated_rows
from geval_local.analysis.ratings.rated import read_rated
from geval_local.analysis.results import ScoredRun
from geval_local.errors import DataError
from geval_local.judge.judge import Judge
from geval_local.options import RatingOptions
from geval_local.testing import MockJudge

METRIC = """
name: story
criteria: Rate how well the story holds together.
scale: 1-5
fields: {source: Prompt, output: Story}
steps: [Read it., Rate it.]
"""
MAPPED = ("--field", "source=Prompt", "--field", "output=Story")


def ratings(workers=3, stories=48):
    """Return a row for each of three ratings of each story; the prompt has four stories."""
    draw = random.Random(1)
    rows = []
    for story in range(stories):
        level = draw.choice([1, 2, 3, 4, 5])
        for worker in range(3):
            rating = min(5, max(1, level + draw.choice([-1, 0, 0, 1])))
            who = f"W.{(story * 3 + worker) % workers}"
            text = f"Story {story}. " + "It goes on. " * (level + story % 3)
            rows.append({"Prompt": f"Write {story // 4}.", "Story": text, "Rating": rating, "Worker ID": who})
    return rows


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Judge, "load", lambda options, **_: MockJudge(name="mock"))
    (tmp_path / "story.yaml").write_text(METRIC, encoding="utf-8")
    return tmp_path


def scored(here, **how):
    rows = ratings(**how)
    with (here / "long.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    done = run("score", "long.csv", "-m", "story.yaml", "-j", "nano", *MAPPED, "-o", "out.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    return rows, done


@pytest.mark.parametrize("workers", [3, 3 * MOST_RATERS])
def test_ratings_of_one_text_are_merged_and_correlate_as_their_mean(here, workers):
    rows, done = scored(here, workers=workers)
    assert "interval: for other documents like these 12 (rows with the same Prompt count as one" in done.stderr
    assert "96 rows repeat the texts of others: if several people rated them" in done.stderr
    rated = read_rated("out.jsonl", human="Rating", rater_column="Worker ID")
    assert len(rated.rows) == 48
    study = meta_evaluate(rated, level="pooled", baselines=False)
    scores = [row["geval"]["story"]["score"] for row in ScoredRun.of("out.jsonl").rows][::3]
    means = [np.mean([row["Rating"] for row in rows[place : place + 3]]) for place in range(0, 144, 3)]
    found = study.correlations["nano"]["story"]
    assert found.spearman.value == pytest.approx(stats.spearmanr(scores, means).statistic)
    assert found.n == 48
    assert study.ceiling.raters == 3
    assert study.ceiling.n == 48


def test_folds_and_estimates_count_texts_and_documents(here):
    scored(here)
    merged = {"rater_column": "Worker ID"}
    assert calibrate("out.jsonl", "Rating", **merged).calibration.held_out.groups == 12
    found = estimate("out.jsonl", "Rating", **merged)
    assert found.raters is not None
    # Not merged, the ratings of a text are still in one document.
    assert calibrate("out.jsonl", "Rating").calibration.held_out.groups == 12


def test_what_differs_within_a_text_is_by_rater_and_the_rest_stays():
    rows = [
        {"source": "s", "output": "a", "who": "x.y", "rating": 1, "topic": "t"},
        {"source": "s", "output": "b", "who": "x.y", "rating": 4, "topic": "t"},
        {"source": "s", "output": "a", "who": "z", "rating": 3, "topic": "t"},
        {"source": "s", "output": "a", "who": "z", "rating": 5, "topic": "t"},
    ]
    first, second = rated_rows(rows, RatingOptions(rater_column="who"), ("source", "output"), {}, "rows.csv")
    assert first == {"source": "s", "output": "a", "topic": "t", "rating": {"x_y": 1, "z": 3, "z (3)": 5}}
    assert second["rating"] == {"x_y": 4}
    with pytest.raises(DataError, match=r"rows.csv, row 1: no rater in 'whom'; did you mean 'who'"):
        rated_rows(rows, RatingOptions(rater_column="whom"), ("source", "output"), {}, "rows.csv")
