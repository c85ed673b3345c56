"""Ratings in a second file by a key, and ratings of which low ones are good: ranks."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from cli_run import run, write_rows
from scipy import stats

from geval_local.analysis.estimates import estimate
from geval_local.analysis.meta_evaluation import meta_evaluate
from geval_local.analysis.pairs import sources_of
from geval_local.analysis.ratings.rated import read_rated
from geval_local.analysis.results import ScoredRun
from geval_local.errors import ConfigurationError, DataError
from geval_local.io.pairs import sides_of
from geval_local.judge.judge import Judge
from geval_local.testing import MockJudge

DRAW = np.random.default_rng(3)
#: Ranks 1 to 4 by two people; the second knows only every other row.
RANKS = DRAW.integers(1, 5, 24).tolist()
METRIC = "{name: clear, criteria: Is it clear?, scale: 1-5, fields: {output: Text}, steps: [Read it.]}"


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """Score 24 rows with a key; return their scores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Judge, "load", lambda options, **_: MockJudge(name="mock"))
    (tmp_path / "clear.yaml").write_text(METRIC, encoding="utf-8")
    rows = [{"id": f"r{place}", "output": f"Text {place}. " * (place % 7 + 1)} for place in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = run("score", "rows.jsonl", "-m", "clear.yaml", "-j", "nano", "-o", "out.jsonl", home=tmp_path)
    assert done.exit_code == 0, done.stderr
    return np.array([item.predicted for item in ScoredRun.of("out.jsonl").items("clear")])


def written(name, rows):
    with open(name, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_ratings_of_a_second_file_join_the_rows_with_their_key(scored, tmp_path):
    written("people.csv", [{"trace": f"r{place}", "stars": RANKS[place]} for place in (*range(5, 24), 3)])
    rated = read_rated("out.jsonl", human="stars", ratings="people.csv", on="id=trace")
    found = meta_evaluate(rated, level="pooled", baselines=False).correlations["nano"]["clear"].spearman
    places = [3, *range(5, 24)]
    expected = stats.spearmanr(scored[places], [RANKS[place] for place in places]).statistic
    assert found.value == pytest.approx(expected)
    asked = ("--human", "stars", "--ratings", tmp_path / "people.csv", "--on", "id=trace")
    told = run("meta-eval", "out.jsonl", *asked, home=tmp_path).stderr
    assert "people.csv rates 20 of 24 rows of out.jsonl by id=trace" in told
    for verb in (["estimate"], ["calibrate", "--method", "isotonic", "-o", "own.json"]):
        done = run(*verb[:1], "out.jsonl", *asked, *verb[1:], home=tmp_path)
        assert done.exit_code == 0, done.stderr


def test_each_rating_of_a_second_file_has_its_rater(scored):
    rows = [{"id": f"r{place}", "who": who, "stars": RANKS[place] % 4 + add} for place in range(24) for who, add in WHO]
    written("people.csv", rows)
    found = estimate("out.jsonl", "stars", ratings="people.csv", on="id", rater_column="who")
    assert found.raters is not None
    first = ScoredRun.of("out.jsonl", ratings="people.csv", on="id", rater_column="who").rows[0]
    assert first["stars"] == {"ann": f"{RANKS[0] % 4 + 1}", "bob": f"{RANKS[0] % 4 + 2}"}


def test_a_rating_that_cannot_be_read_is_named_by_its_own_file_and_row(scored):
    rows = [{"id": f"r{place}", "stars": place % 4 + 1} for place in range(9, -1, -1)]
    for wrong, told in (("many", "row 3: stars is not a number: 'many'"), (77, "outside of the scale.*is in row 3")):
        written("people.csv", [*rows[:2], {**rows[2], "stars": wrong}, *rows[3:]])
        for read in (estimate, lambda *given, **how: read_rated(given[0], human=given[1], **how).items("clear")):
            with pytest.raises(DataError, match=f"people.csv.*{told}"):
                read("out.jsonl", "stars", ratings="people.csv", on="id")


WHO = (("ann", 1), ("bob", 2))
REFUSED = {
    r"people.csv, row 2: the key 'r0' in 'id' is also that of row 1": [("r0", 1), ("r0", 2)],
    r"people.csv, row 1: no key in 'id'": [("", 1)],
    r"people.csv: no row has a key 'id' of a row of out.jsonl": [("x", 1)],
    r"out.jsonl, row 1: output is 'Text 0. ', and 'Other' in people.csv": [("r0", 1, "Other")],
}


@pytest.mark.parametrize("told", REFUSED)
def test_a_key_that_is_doubled_or_of_no_row_is_refused(scored, told):
    written("people.csv", [dict(zip(("id", "stars", "output"), row, strict=False)) for row in REFUSED[told]])
    with pytest.raises(DataError, match=told):
        estimate("out.jsonl", "stars", ratings="people.csv", on="id")
    with pytest.raises(DataError, match=told):
        read_rated("out.jsonl", human="stars", ratings="people.csv", on="id")


def test_a_key_needs_a_file_and_a_file_a_key(scored):
    for half in ({"on": "id"}, {"ratings": "people.csv"}):
        with pytest.raises(ConfigurationError, match="needs both `ratings="):
            estimate("out.jsonl", "stars", **half)


@pytest.mark.usefixtures("scored")
@pytest.mark.parametrize(("scale", "is_shown"), [(None, True), ("1-5", True), ("1-4", False), ("0-5", False)])
def test_labels_are_not_compared_with_ratings_on_another_scale(scale, is_shown):
    written("people.csv", [{"id": f"r{place}", "stars": rank} for place, rank in enumerate(RANKS)])
    rated = read_rated("out.jsonl", human="stars", ratings="people.csv", on="id", human_scale=scale)
    found = meta_evaluate(rated, level="pooled", baselines=False)
    shown = found.good_enough.kappas, found.good_enough.probabilities
    assert [bool(own) for own in shown] == [is_shown, is_shown]
    assert any("another scale" in note for note in found.notes) != is_shown


def test_of_ranks_the_first_is_the_best(scored, tmp_path):
    written("ranks.csv", [{"id": f"r{place}", "rank": rank, "place": rank} for place, rank in enumerate(RANKS)])
    given = {"human": "rank", "ratings": "ranks.csv", "on": "id", "human_scale": "1-4"}
    plain = meta_evaluate(read_rated("out.jsonl", **given), level="pooled", baselines=False)
    ranked = meta_evaluate(read_rated("out.jsonl", **given, human_better="low"), level="pooled", baselines=False)
    expected = stats.spearmanr(scored, RANKS).statistic
    assert plain.correlations["nano"]["clear"].spearman.value == pytest.approx(expected)
    assert ranked.correlations["nano"]["clear"].spearman.value == pytest.approx(-expected)
    items = ScoredRun.of("out.jsonl", ratings="ranks.csv", on="id", human_scale="1-4", human_better="low").items(
        "clear", human="rank"
    )
    assert [item.human for item in items] == [5 - rank for rank in RANKS]
    done = run(
        *("meta-eval", "out.jsonl", "--human", "place", "--ratings", "ranks.csv", "--on", "id"),
        *("--human-scale", "1-4", "--human-better", "low"),
        home=tmp_path,
    )
    assert "the good end of the ratings in 'place' is not that of the scores" in done.stderr


def test_a_metric_of_which_low_scores_are_good_takes_ranks_as_they_are():
    rows = [{"output": "a", "rank": rank, "geval": {"m": {"score": 2.0}}} for rank in (1, 3)]
    high = ScoredRun.of(rows, human_scale="1-3", human_better="low")
    assert [item.human for item in high.items("m", human="rank")] == [3, 1]
    assert [item.human for item in ScoredRun.of(rows, human_better="high").items("m", human="rank")] == [1, 3]
    yes = [{**row, "rank": row["rank"] == 1} for row in rows]
    assert [item.human for item in ScoredRun.of(yes, human_better="low").items("m", human="rank")] == [0, 1]


CELLS = {"1, 2": 1, "2/1": 0, "[1, 1]": 0.5, "1.5 3": 1, "-1, -2": 0}


@pytest.mark.parametrize("cell", [*CELLS, [1, 2], {"new": 1, "old": 2}])
def test_ranks_of_both_sides_in_one_cell_are_a_preference(cell):
    expected = CELLS.get(cell, 1) if isinstance(cell, str) else 1
    row = {"system_a": "new", "system_b": "old", "ranks": cell}
    assert sides_of(row, "ranks", None, "low") == [expected]
    assert sides_of(row, "ranks", None, "high") == [1 - expected]


@pytest.mark.parametrize("cell", ["1-2", "1", "1 2 3", "first", {"new": 1}])
def test_a_cell_without_two_ratings_is_refused(cell):
    with pytest.raises(ValueError, match="not the two ratings of A and B"):
        sides_of({"system_a": "new", "system_b": "old", "ranks": cell}, "ranks", None, "low")


def test_preferences_read_ranks_of_pairs():
    figures = {"m/pairs": {"score": 0.9, "probabilities": {"A": 0.8, "B": 0.1, "tie": 0.1}}}
    rows = [
        {"document": f"d{place}", "system_a": "new", "system_b": "old", "ranks": ranks, "geval": figures}
        for place, ranks in enumerate(["1 2", "2 1", "1 1", ""])
    ]
    (source,) = sources_of([rows], human="ranks", human_better="low")
    assert [one.human for one in source.found[:3]] == [1, 0, 0.5]
    assert np.isnan(source.found[3].human)


def test_preferences_of_several_people_in_a_second_file(tmp_path):
    figures = {"m/pairs": {"score": 0.9, "probabilities": {"A": 0.8, "B": 0.1, "tie": 0.1}}}
    rows = [{"document": f"d{n}", "system_a": "new", "system_b": "old", "geval": figures} for n in range(2)]
    said = {"d0": ("new", "old", "tie"), "d1": ("new", "", "new")}
    given = [{"key": key, "who": f"p{n}", "best": one} for key, people in said.items() for n, one in enumerate(people)]
    (source,) = sources_of(
        [rows],
        human="best",
        ratings=write_rows(tmp_path / "said.jsonl", given),
        on="document=key",
        rater_column="who",
    )
    assert [(one.human, one.people) for one in source.found] == [(0.5, (1, 0, 0.5)), (1, (1, 1))]
