"""Which system is better: against scipy, against cliques by brute force, and on data whose answer is known."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from geval_local.analysis.comparison import compare
from geval_local.analysis.differences import (
    adjusted_means,
    letter_groups,
    pair_table,
    rank_systems,
    ranking_table,
    telling_pairs,
)
from geval_local.analysis.tables import as_record
from geval_local.errors import ConfigurationError, DataError
from geval_local.statistics.records import ScoredItem
from tests.support.skewed import interval_of, p_of


def made(means, documents=40, noise=0.3, seed=0):
    """Systems of known means on shared documents, whose difficulty varies far more than the systems do."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(0, 1.0, documents)
    return [
        ScoredItem(
            f"d{document}",
            name,
            math.nan,
            float(mean + difficulty[document] + rng.normal(0, noise)),
            key=f"{name}{document}",
        )
        for name, mean in means.items()
        for document in range(documents)
    ]


def column(items, name):
    return np.array([item.predicted for item in items if item.system == name])


def test_two_systems_are_compared_by_document():
    items = made({"a": 3.0, "b": 3.4}, documents=60)
    ranking = rank_systems(items)
    (pair,) = ranking.pairs
    assert (pair.first, pair.second) == ("b", "a")
    differences = column(items, "b") - column(items, "a")
    assert (pair.difference.value, pair.difference.low, pair.difference.high) == pytest.approx(
        (differences.mean(), *interval_of(differences))
    )
    assert (pair.wins, pair.ties, pair.losses) == ((differences > 0).sum(), 0, (differences < 0).sum())
    # Unpaired the documents' difficulty would hide it.
    assert pair.p < 0.001 < stats.ttest_ind(column(items, "b"), column(items, "a")).pvalue
    assert ranking.told.startswith("By this judge b is better than a, by 0.")
    assert f"b wins {pair.wins}, ties 0 and loses {pair.losses}" in ranking.told


def test_few_documents_are_tested_with_their_skewness():
    items = made({"a": 3.0, "b": 3.5}, documents=8)
    (pair,) = rank_systems(items).pairs
    differences = column(items, "b") - column(items, "a")
    assert pair.p == pytest.approx(p_of(differences))


def test_equal_systems_are_not_told_apart():
    ranking = rank_systems(made({"a": 3.0, "b": 3.0}))
    assert "cannot be told apart" in ranking.told
    assert ranking.groups == (tuple(side.side for side in ranking.systems),)


def test_several_systems_are_ranked_with_groups_and_corrected():
    ranking = rank_systems(made({"low": 2.0, "mid": 3.0, "mid2": 3.02, "top": 4.0}))
    assert [side.side for side in ranking.systems][::3] == ["top", "low"]
    assert [ranking.letters(name) for name in ("top", "mid", "mid2", "low")] == ["a", "b", "b", "c"]
    assert all(pair.p_adjusted >= pair.p for pair in ranking.pairs)
    assert "top has the highest mean of 4 systems" in ranking.told
    assert "it is better than mid, mid2, low" in ranking.told
    assert "5 of 6 pairs" in ranking.told


def test_a_baseline_asks_fewer_questions():
    items = made({"base": 3.0, "same": 3.0, "worse": 2.0, "better": 4.0})
    ranking = rank_systems(items, baseline="base")
    assert len(ranking.pairs) == 3
    assert ranking.groups == ()
    assert ranking.told == (
        "By this judge, better is better than base; worse is worse than base; same is not told apart from base "
        "(Holm, p < 0.05)."
    )
    with pytest.raises(ConfigurationError, match="there is no system 'bass'"):
        rank_systems(items, baseline="bass")


def test_many_systems_can_still_be_told_apart_after_correction():
    names = {f"s{index:02d}": 2.0 + index / 2 for index in range(16)}
    ranking = rank_systems(made(names, documents=20, noise=0.05))
    assert len(ranking.pairs) == 120
    assert all(pair.is_told_apart for pair in ranking.pairs)
    assert len(ranking.groups) == 16
    shown = telling_pairs(ranking)
    assert len(shown) == 15 + 14
    assert "29 of 120 pairs" in pair_table(ranking, shown).notes[0]


def test_ties_are_counted_as_asked():
    items = [
        ScoredItem(f"d{index}", name, math.nan, 3.0 + (0.1 * index if name == "b" else 0.0), key=f"{name}{index}")
        for name in "ab"
        for index in range(10)
    ]
    (pair,) = rank_systems(items).pairs
    assert (pair.wins, pair.ties, pair.losses) == (9, 1, 0)
    (pair,) = rank_systems(items, tie=0.2).pairs
    assert (pair.wins, pair.ties, pair.losses) == (7, 3, 0)


def test_documents_of_one_system_alone_are_counted_and_not_compared():
    items = [item for item in made({"a": 3.0, "b": 3.4}) if not (item.system == "a" and item.group in ("d0", "d1"))]
    (pair,) = rank_systems(items).pairs
    assert (pair.documents, pair.left_out) == (38, 2)
    apart = [replace(item, group=f"{item.system}{item.group}") for item in items]
    (pair,) = rank_systems(apart).pairs
    assert pair.test == "Welch t"
    assert pair.wins is None


def test_unscored_rows_are_counted_and_enter_no_mean():
    items = made({"a": 3.0, "b": 3.4})
    items[3] = replace(items[3], predicted=math.nan, error="too long")
    silent = ScoredItem("d0", "c", math.nan, math.nan, key="c0", error="too long")
    ranking = rank_systems([*items, silent])
    by_name = {side.side: side for side in ranking.systems}
    assert (by_name["a"].n, by_name["a"].unscored) == (39, 1)
    assert (ranking.systems[-1].side, ranking.systems[-1].n) == ("c", 0)
    assert len(ranking.pairs) == 1
    assert ranking_table(ranking).rows[-1][2] == "-"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (made({"a": 3.0}), "all rows are of one system, 'a'"),
        (made({"a": 3.0, "": 3.0}), "40 of 80 rows name no system"),
        ([replace(item, system=item.group) for item in made({"a": 3.0})], "each of the 40 systems has one row"),
    ],
)
def test_what_cannot_be_ranked_is_refused(items, message):
    with pytest.raises(DataError, match=message):
        rank_systems(items)


def test_groups_are_the_largest_sets_without_a_difference():
    rng = np.random.default_rng(4)
    for _ in range(60):
        names = [f"s{index}" for index in range(7)]
        apart = [pair for pair in itertools.combinations(names, 2) if rng.random() < rng.random()]
        cliques = [
            set(chosen)
            for size in range(1, 8)
            for chosen in itertools.combinations(names, size)
            if not any(set(pair) <= set(chosen) for pair in apart)
        ]
        largest = {frozenset(own) for own in cliques if not any(own < other for other in cliques)}
        assert {frozenset(own) for own in letter_groups(names, apart)} == largest


@pytest.mark.slow
@pytest.mark.parametrize("documents", [5, 6, 10])
def test_equal_systems_are_rarely_told_apart(documents):
    """The family-wise error of three equal systems stays near .05 (60 data sets: standard error .03)."""
    found = sum(
        any(pair.is_told_apart for pair in rank_systems(made(dict.fromkeys("abc", 3.0), documents, seed=seed)).pairs)
        for seed in range(60)
    )
    assert found <= 9


@pytest.mark.parametrize("documents", [3, 5, 6, 7, 8, 9, 12])
def test_clear_differences_of_eight_systems_are_found_by_however_few_documents(documents):
    names = {f"s{index}": 2.0 + 0.3 * index for index in range(8)}
    ranking = rank_systems(made(names, documents=documents, noise=0.005))
    assert sum(pair.is_told_apart for pair in ranking.pairs) == 28
    assert {pair.test for pair in ranking.pairs} == {"t"}
    assert "28 of 28 pairs are told apart (Holm" in ranking.told


def test_pairs_on_six_documents_of_their_own_are_told_apart():
    items = made({"a": 2.0, "b": 3.0, "c": 4.0}, documents=18, noise=0.02)
    left_out = {"a": range(6), "b": range(6, 12), "c": range(12, 18)}
    ranking = rank_systems([item for item in items if int(item.group[1:]) not in left_out[item.system]])
    assert [pair.documents for pair in ranking.pairs] == [6, 6, 6]
    assert {pair.test for pair in ranking.pairs} == {"t"}
    assert all(pair.is_told_apart for pair in ranking.pairs)


def test_p_does_not_depend_on_the_order_of_the_rows():
    items = made({"a": 3.0, "b": 3.08, "c": 3.1}, documents=30)
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(6):
        ranking = rank_systems([items[place] for place in rng.permutation(len(items))])
        seen.add(tuple((pair.name, pair.p, pair.p_adjusted) for pair in ranking.pairs))
    assert len(seen) == 1


def test_a_system_scored_twice_has_the_same_scores():
    items = made({"a": 3.0}, documents=12)
    twice = [*items, *(replace(item, system="again", key=f"again{item.key}") for item in items)]
    ranking = rank_systems(twice)
    assert ranking.told == "By this judge a and again have the same scores on all 12 documents."
    third = made({"c": 4.5}, documents=12)
    assert "c is better than a" in rank_systems([*twice, *third], baseline="a").told
    assert "again has the same scores as a" in rank_systems([*twice, *third], baseline="a").told


def test_no_winner_is_named_of_other_documents():
    items = made({"a": 3.0, "b": 5.0, "c": 3.0}, documents=20)
    apart = [replace(item, group=f"b{item.group}") if item.system == "b" else item for item in items]
    (pair,) = rank_systems([item for item in apart if item.system != "c"]).pairs
    assert (pair.p < 0.001, pair.is_told_apart, pair.better) == (True, False, None)
    two = rank_systems([item for item in apart if item.system != "c"])
    assert "b scored higher than a, on other documents, by " in two.told
    assert two.groups == (("b", "a"),)
    three = rank_systems(apart)
    assert "it answered other documents than" in three.told
    assert "is better" not in three.told
    notes = " ".join(ranking_table(three).notes)
    assert "documents left out by b 20" in notes
    assert "nothing can be concluded about these" in notes


def test_mean_ratings_have_their_number_and_figures_stop_at_the_second_digit_of_their_error():
    items = [
        replace(item, human=4.0 if index % 3 == 0 else math.nan)
        for index, item in enumerate(made({"a": 3.0, "b": 3.4}, 6))
    ]
    ranking = rank_systems(items)
    table = ranking_table(ranking, "rating")
    row = dict(zip(table.headers, table.rows[0], strict=True))
    assert row["mean rating (n)"] == "4.000 (2)"
    side = ranking.systems[0]
    assert 0.1 < side.mean.error < 1
    assert row["mean score"] == f"{side.mean.value:.2f} [{side.mean.low:.2f}, {side.mean.high:.2f}]"


def test_the_plan_corrects_as_the_test_does():
    items = made({"a": 3.0, "b": 3.1, "c": 3.2}, documents=40)
    rows = [
        {"doc": i.group, "system": i.system, "geval": {m: {"score": i.predicted} for m in ("one", "two")}}
        for i in items
    ]
    found = compare([rows], group_by="doc", system="system", plan=0.2)
    levels = {need.significance for need in found.plan.needs.values()}
    # Of the three pairs of one metric, whatever other metrics there are; pairs that share a system give less away.
    assert len(found.plan.needs) == 6
    assert all(0.05 / 3 <= level < 0.05 / 2 for level in levels)


def test_draws_that_fall_apart_make_no_long_intervals():
    rng = np.random.default_rng(3)
    lengths = []
    for seed in range(15):
        items = made({"a": 3.0, "b": 3.2, "c": 3.4}, documents=10, seed=seed)
        found = adjusted_means([item for item in items if rng.random() < 0.5])
        lengths += [one.high - one.low for one in found.values() if math.isfinite(one.low)]
    assert 0 < max(lengths) < 8


def test_documents_doubled_under_new_ids_count_once_and_are_told():
    rng = np.random.default_rng(0)
    rows = [
        {
            "doc_id": f"d{d}",
            "source": f"Text {d}",
            "system": s,
            "output": f"{s} {d}",
            "geval": {"m": {"score": float(3 + 0.3 * (s == "a") + rng.normal(0, 0.5)), "label_mass": 0.9}},
        }
        for d in range(20)
        for s in "ab"
    ]
    doubled = [*rows, *(row | {"doc_id": f"again {row['doc_id']}"} for row in rows)]
    once, twice = (compare([own], system="system", across=["any"]) for own in (rows, doubled))
    assert twice.systems["m"].pairs[0].documents == 20
    assert twice.systems["m"].pairs[0].p == pytest.approx(once.systems["m"].pairs[0].p)
    assert "doc_id differs in rows with the same source" in twice.together.grouping


def test_the_record_is_plain_json():
    record = json.loads(json.dumps(as_record(rank_systems(made({"a": 3.0, "b": 3.4})))))
    assert record["pairs"][0]["difference"]["low"] < record["pairs"][0]["difference"]["value"]
    assert record["pairs"][0]["wins"] >= 0
