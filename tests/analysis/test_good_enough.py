"""A judge in the place of a person, its yes and no, its distribution; and how many documents a difference needs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from geval_local.analysis.comparison import plan_for
from geval_local.analysis.differences import rank_systems, ranking_table
from geval_local.analysis.good_enough import (
    GoodEnough,
    alternative_annotators,
    judge_kappas,
    judge_probabilities,
    judge_verdicts,
)
from geval_local.statistics.interval import Interval, mean_interval
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import compare

NAN = math.nan


def test_yes_and_no_are_counted_by_the_textbook():
    rng = np.random.default_rng(0)
    yes = rng.random(300) < 0.4
    score = np.clip(0.5 + 0.25 * (yes * 2 - 1) + 0.3 * rng.normal(size=300), 0, 1)
    found = judge_verdicts(
        [ScoredItem(str(i), "", float(y), float(s)) for i, (y, s) in enumerate(zip(yes, score, strict=True))]
    )
    said = score > 0.5
    hit = (said & yes).sum()
    agree, chance = (said == yes).mean(), said.mean() * yes.mean() + (1 - said.mean()) * (1 - yes.mean())
    expected = {
        "sensitivity": hit / yes.sum(),
        "specificity": (~said & ~yes).sum() / (~yes).sum(),
        "kappa": (agree - chance) / (1 - chance),
        "f1": 2 * hit / (said.sum() + yes.sum()),
    }
    for name, value in expected.items():
        one = getattr(found, name)
        assert one.value == pytest.approx(value)
        assert one.low < value < one.high
    assert found.sensitivity.error == pytest.approx(math.sqrt(value * (1 - value) / yes.sum()), rel=0.5)
    assert judge_verdicts([ScoredItem(str(i), "", float(i % 3), 0.5) for i in range(9)]) is None


def verdicts(hits, misses, alarms, noes, group=str):
    """Judge rows by their counts; `group` names the document of a row's number."""
    rows = [(1.0, 1.0)] * hits + [(1.0, 0.0)] * misses + [(0.0, 1.0)] * alarms + [(0.0, 0.0)] * noes
    return judge_verdicts([ScoredItem(group(place), "", human, said) for place, (human, said) in enumerate(rows)])


def test_intervals_of_few_rows_are_those_of_jeffreys():
    for hits, misses, noes, alarms in ((4, 1, 5, 0), (9, 3, 20, 8), (2, 0, 1, 1)):
        found = verdicts(hits, misses, alarms, noes)
        for right, wrong, one in ((hits, misses, found.sensitivity), (noes, alarms, found.specificity)):
            low, high = stats.beta(right + 0.5, wrong + 0.5).ppf([0.025, 0.975])
            assert one.low == pytest.approx(low, abs=0.02)
            assert one.high == pytest.approx(high if wrong else 1.0, abs=0.02)
    perfect = verdicts(5, 0, 0, 5)
    for one in (perfect.kappa, perfect.f1):
        assert (one.value, one.high) == (1.0, 1.0)
        assert 0.3 < one.low < 0.8
    never = verdicts(0, 5, 0, 5)
    assert (never.f1.low, never.sensitivity.low) == (0.0, 0.0)


def test_rows_said_again_in_the_same_document_are_no_news():
    once, again = verdicts(8, 3, 2, 12), verdicts(80, 30, 20, 120, group=lambda row: str(row // 10))
    flawless, repeated = verdicts(6, 0, 0, 6), verdicts(60, 0, 0, 60, group=lambda row: str(row // 10))
    for name in ("sensitivity", "specificity", "kappa", "f1"):
        for one, other in ((once, again), (flawless, repeated)):
            narrow, wide = (getattr(own, name).high - getattr(own, name).low for own in (other, one))
            assert 0.95 * wide < narrow < 1.3 * wide
    alone = verdicts(8, 3, 2, 12, group=lambda row: "one").kappa
    assert (alone.value, math.isnan(alone.low)) == (once.kappa.value, True)


@pytest.mark.parametrize(("documents", "rows"), [(10, 1), (20, 1), (50, 1), (10, 4), (40, 4)])
def test_intervals_of_yes_and_no_cover_the_truth(documents, rows, monkeypatch):
    monkeypatch.setattr("geval_local.analysis.good_enough.POSTERIOR_DRAWS", 1_000)

    # Both are noisy readings of a quality of unit variance, of which documents share a half where they have more rows.
    def read(rng, documents, rows):
        share = 0.5 if rows > 1 else 0.0
        shared, own = rng.normal(size=(3, documents, 1)), rng.normal(size=(3, documents, rows))
        quality, people, judge = math.sqrt(share) * shared + math.sqrt(1 - share) * own
        return (quality + 0.3 * people > 0.3).ravel(), (quality + 0.6 * judge > 0.3).ravel()

    yes, said = read(np.random.default_rng(0), 400_000, 1)
    agree, chance = (said == yes).mean(), said.mean() * yes.mean() + (1 - said.mean()) * (1 - yes.mean())
    truth = {
        "sensitivity": said[yes].mean(),
        "specificity": (~said)[~yes].mean(),
        "kappa": (agree - chance) / (1 - chance),
        "f1": 2 * (said & yes).sum() / (said.sum() + yes.sum()),
    }
    rng, hits = np.random.default_rng(documents + rows), []
    for _ in range(200):
        yes, said = read(rng, documents, rows)
        both = enumerate(zip(yes.tolist(), said.tolist(), strict=True))
        found = judge_verdicts([ScoredItem(str(at // rows), "", float(y), float(s)) for at, (y, s) in both])
        if found is not None:
            hits.append([getattr(found, name).low <= true <= getattr(found, name).high for name, true in truth.items()])
    # .93 to .97 by three standard errors of 200 data sets; intervals from draws of documents covered .6 to .85 here.
    assert (np.mean(hits, axis=0) >= 0.88).all()
    assert (np.mean(hits, axis=0) <= 0.995).all()


def test_distributions_are_held_against_all_raters():
    p = {"1": 0.2, "2": 0.5, "3": 0.3}
    items = [ScoredItem(str(i), "", NAN, 2.1, p, key=str(i)) for i in range(3)]
    ratings = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, NAN]])
    found = judge_probabilities(items, ratings)
    people = np.array([[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1.0]])
    q = np.array(list(p.values()))
    assert found.brier.value == pytest.approx(((q - people) ** 2).sum(axis=1).mean())
    assert found.nll.value == pytest.approx(-(people * np.log(q)).sum(axis=1).mean())
    base = people.mean(axis=0)
    assert found.brier_base == pytest.approx(((base - people) ** 2).sum(axis=1).mean())
    assert judge_probabilities(items, ratings + 0.5) is None


def test_the_alternative_annotator_is_told_from_a_worse_one():
    rng = np.random.default_rng(1)
    quality = rng.normal(size=120)
    raters = np.clip(np.round(3 + quality + 0.5 * rng.normal(size=(3, 120))), 1, 5)

    def judged(noise):
        scores = np.clip(np.round(3 + quality + noise * rng.normal(size=120)), 1, 5)
        items = [ScoredItem(str(i), "", NAN, float(s)) for i, s in enumerate(scores)]
        return alternative_annotators(items, raters)

    good, bad = judged(0.3), judged(3.0)
    assert good.winning_rate[0.2] == 1.0
    assert bad.winning_rate[0.2] == 0.0
    assert good.advantage > 0.7 > bad.advantage
    assert alternative_annotators([ScoredItem("a", "", NAN, 1.0)] * 120, raters[:2]) is None


def one_of_many(seed, items=100, raters=5, noise=1.5, missing=0.0):
    """People who agree as little as single ratings do (an ICC of .3), and a judge that always says the same."""
    rng = np.random.default_rng(seed)
    ratings = np.clip(np.round(3 + rng.normal(size=items) + noise * rng.normal(size=(raters, items))), 1, 5)
    return [ScoredItem(str(i), "", NAN, 3.0) for i in range(items)], np.where(
        rng.random(ratings.shape) < missing, NAN, ratings
    )


def test_a_judge_that_always_says_the_mean_is_named_where_it_passes_too():
    items, ratings = one_of_many(2)
    found = alternative_annotators(items, ratings)
    assert found.winning_rate[0.2] == 1.0  # the published test
    assert found.constant.winning_rate[0.2] == 1.0
    assert found.told(0.2) == "1.00 passes, as does the mean"
    (table,) = GoodEnough(annotators={"clarity: nano": found, "clarity: other": found, "fluency: nano": found}).tables()
    always = "always the mean rating"
    assert [row[0].partition(": ")[2] for row in table.rows] == ["nano", "other", always, "nano", always]
    assert table.rows[2][3] == "1.00 passes"
    rng = np.random.default_rng(3)
    agreed = np.clip(np.round(3 + rng.normal(size=200) + 0.3 * rng.normal(size=(4, 200))), 1, 5)
    good = [ScoredItem(str(i), "", NAN, float(value)) for i, value in enumerate(agreed.mean(axis=0))]
    told = alternative_annotators(good, agreed)
    assert (told.told(0.2), told.constant.passes(0.2)) == ("1.00 passes", False)


def test_missing_ratings_follow_the_rules_of_the_authors():
    """An item counts if one other person rated it; who rated fewer than 30 such items is left out."""
    items, ratings = one_of_many(4, items=120, raters=4)
    ratings[3, 29:] = NAN
    ratings[2, :60] = NAN
    ratings[0, 100:] = NAN
    found = alternative_annotators(items, ratings)
    assert (found.raters, found.n) == (3, 120)
    assert found.advantage == pytest.approx(by_hand(np.array([i.predicted for i in items]), ratings))
    few = alternative_annotators(items[:29], ratings[:, :29])
    assert (few.raters, few.told(0.1)) == (0, "-")


def by_hand(score, ratings):
    """Mean over raters of 30 items of how often the judge is as near to the others by the root of the mean square."""
    means = []
    for who, own in enumerate(ratings):
        wins = []
        for place in range(score.size):
            rest = [r[place] for other, r in enumerate(ratings) if other != who and np.isfinite(r[place])]
            if np.isfinite(own[place]) and rest:
                judge, person = (math.sqrt(np.mean([(v - x) ** 2 for v in rest])) for x in (score[place], own[place]))
                wins.append(judge <= person + 1e-9)
        if len(wins) >= 30:
            means.append(np.mean(wins))
    return np.mean(means)


@pytest.mark.parametrize(("documents", "passes"), [(1, False), (2, False), (15, False), (60, True)])
def test_a_judge_that_equals_every_rater_replaces_none_on_a_few_documents(documents, passes):
    rating = np.arange(60.0) % 5
    items = [ScoredItem(str(i % documents), "", NAN, value) for i, value in enumerate(rating)]
    found = alternative_annotators(items, np.stack([rating] * 3))
    assert (found.winning_rate[0.1] == 1.0) is passes


def test_a_judge_is_held_against_chance():
    rng = np.random.default_rng(3)
    items = [
        ScoredItem(f"d{d}", f"s{s}", float(q), float(0.8 * q + rng.normal()), key=f"{d}/{s}")
        for d in range(40)
        for s, q in enumerate(rng.normal(size=6))
    ]
    found = compare(items, None, "summary", "spearman")
    assert (found.second, found.p < 0.05) == (0.0, True)
    assert compare(items, None, "pooled", "kendall").p < 0.05


def test_the_planned_documents_find_the_difference_as_often_as_planned():
    rng = np.random.default_rng(4)
    plan = plan_for({"a - b": mean_interval(0.5 + rng.normal(size=2000))}, 0.5)
    need = plan.needs["a - b"].documents
    hits = [stats.ttest_1samp(0.5 + rng.normal(size=need[0.8]), 0).pvalue < 0.05 for _ in range(400)]
    assert 0.74 < np.mean(hits) < 0.88
    assert need[0.9] > need[0.8]
    halves = plan_for({name: mean_interval(rng.normal(size=500)) for name in "abc"}, 0.25)
    assert halves.needs["a"].significance == pytest.approx(0.05 / 3)
    both = plan_for({"m": Interval(0.1, 0, 0.2, 0.05, 50)}, 0.25, {"m": Interval(0.1, 0, 0.2, 0.1, 8)})
    needs = list(both.needs.values())
    assert [one.systems for one in needs] == [8, 16, 32]
    assert needs[0].documents[0.8] is None
    assert needs[2].documents[0.8] is not None
    assert len(both.table().headers) <= 8


def test_a_pilot_without_a_spread_plans_nothing():
    for pilot in (mean_interval([0.3]), mean_interval([0.3, 0.3, 0.3])):
        assert plan_for({"a - b": pilot}, 0.5).table().rows[0][-2:] == ("-", "-")
    endless = plan_for({"a - b": mean_interval([100.0, -100.0, 50.0])}, 1e-4).table()
    assert endless.rows[0][-1] == "> 10,000,000"


def uneven(shared, systems=(("good", 0.6), ("poor", 0.0)), documents=20):
    """Systems that share a few documents, beside which the good one answered hard ones and the poor one easy ones."""
    rng = np.random.default_rng(6)
    own = {name: range(shared + at * documents, shared + (at + 1) * documents) for at, (name, _) in enumerate(systems)}
    return [
        ScoredItem(f"d{d}", name, NAN, float((2 if d in own["good"] else 4) + quality + 0.2 * rng.normal()), key=name)
        for name, quality in systems
        for d in (*range(shared), *own[name])
    ]


@pytest.mark.parametrize("shared", [2, 3, 5])
def test_the_few_documents_that_both_answered_say_who_is_better(shared):
    ranking = rank_systems(uneven(shared))
    assert [side.side for side in ranking.systems] == ["good", "poor"]
    assert "poor is better" not in ranking.told
    assert ranking.told.count("good is ahead") + ranking.told.count("good is better than poor") == 1


@pytest.mark.parametrize("shared", [0, 1])
def test_systems_without_common_documents_are_warned_of(shared):
    notes = ranking_table(rank_systems(uneven(shared))).notes
    assert any("no winner is named of systems that share no documents" in note for note in notes)
    assert "is better" not in " ".join(notes)
    assert "scored higher than good, on other documents" in notes[0]


def test_the_system_that_answered_easy_documents_is_not_named_first():
    rng = np.random.default_rng(5)
    items = []
    for document in range(40):
        for system, quality in (("s0", 0.0), ("s1", 0.8), ("s2", 0.9)):
            if system == "s0" and document >= 15:
                continue
            score = (4 if document < 12 else 2) + quality + 0.2 * rng.normal()
            items.append(ScoredItem(f"d{document}", system, NAN, score, key=f"{document}/{system}"))
    ranking = rank_systems(items)
    assert [side.side for side in ranking.systems] == ["s2", "s1", "s0"]
    own = {side.side: side.mean.value for side in ranking.systems}
    assert own["s0"] > own["s2"]  # its own documents were easy
    adjusted = {side.side: side.adjusted.value for side in ranking.systems}
    assert adjusted["s2"] - adjusted["s0"] == pytest.approx(0.9, abs=0.15)
    assert "s0 has the highest mean" not in ranking.told
    table = ranking_table(ranking)
    assert any("different documents" in note for note in table.notes)
    assert len(table.headers) <= 8


def test_weighted_kappas_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(7)
    human = rng.integers(1, 6, 120).astype(float)
    score = np.clip(human + rng.normal(0, 0.8, 120), 1, 5)
    label = {str(value): 0.2 for value in range(1, 6)}
    items = [
        ScoredItem(f"d{at // 4}", "", h, float(p), label, key=str(at))
        for at, (h, p) in enumerate(zip(human, score, strict=True))
    ]
    found = judge_kappas(items)
    for name in ("linear", "quadratic"):
        own, expected = getattr(found, name), metrics.cohen_kappa_score(human, np.round(score), weights=name)
        assert own.value == pytest.approx(expected)
        assert own.low < expected < own.high < 1
        assert own.units == 30
    assert found.n == 120
    # Two values have a kappa of their own; ratings between labels have none.
    assert judge_kappas([replace(item, human=1.5) for item in items]) is None
    assert judge_kappas([replace(item, human=float(item.human > 3), probabilities=None) for item in items]) is None
    mean = [replace(item, predicted=3.0) for item in items]
    assert judge_kappas(mean).quadratic.value == pytest.approx(0.0)
