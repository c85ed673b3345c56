"""Comparisons: what they say of systems, of the judge, and of people, against counting by hand and other maximisers."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from geval_local.analysis.pair_study import agreement, consistency, consistency_table, study_pairs
from geval_local.analysis.pairs import Preferences, Source, rank
from geval_local.analysis.preferences import Preference, outputs_of, preferences_from_scores, with_people
from geval_local.errors import DataError
from geval_local.scale import Scale
from geval_local.statistics.bradley_terry import fit_bradley_terry
from geval_local.statistics.interval import mean_interval, t_interval
from geval_local.statistics.records import ScoredItem
from tests.support.skewed import p_of


def one(document, first, second, value, tie=0.0, **more) -> Preference:
    return Preference(document, first, second, (value - tie / 2, 1 - value - tie / 2, tie), **more)


def drawn(systems=5, documents=12, seed=0):
    """Comparisons of all pairs by strengths that are known, with noise."""
    rng = np.random.default_rng(seed)
    strengths = np.linspace(1, -1, systems)
    return [
        one(
            f"d{document}",
            f"s{a}",
            f"s{b}",
            float(np.clip(1 / (1 + np.exp(strengths[b] - strengths[a])) + rng.normal(0, 0.1), 0.05, 0.95)),
            0.05,
        )
        for document in range(documents)
        for a, b in itertools.combinations(range(systems), 2)
    ]


def maximised(found, systems, weights=()):
    """Strengths by a general optimiser of the likelihood, mean 0; `weights` counts documents more or less than once."""
    weights, place = dict(weights), {system: number for number, system in enumerate(systems)}

    def loss(strengths):
        return sum(
            weights.get(p.document, 1.0)
            * (
                p.value * np.logaddexp(0, strengths[place[p.second]] - strengths[place[p.first]])
                + (1 - p.value) * np.logaddexp(0, strengths[place[p.first]] - strengths[place[p.second]])
            )
            for p in found
        )

    found_at = minimize(loss, np.zeros(len(systems)), tol=1e-12).x
    return found_at - found_at.mean()


def test_strengths_are_those_of_the_maximum_likelihood_and_intervals_weigh_documents():
    found = drawn(systems=4, documents=6)
    study = study_pairs(found)
    assert study.warning == ""
    systems, strengths = study.names, list(map(study.strengths.get, study.names))
    assert systems == ["s0", "s1", "s2", "s3"]
    np.testing.assert_allclose([own.value for own in strengths], maximised(found, systems), atol=1e-5)
    # How far the strengths move as a document counts a little more.
    moved = [
        (maximised(found, systems, {f"d{d}": 1.01}) - maximised(found, systems, {f"d{d}": 0.99})) / 0.02
        for d in range(6)
    ]
    errors = np.sqrt(6 / 5 * (np.array(moved) ** 2).sum(axis=0))
    for own, error in zip(strengths, errors, strict=True):
        expected = t_interval(own.value, float(error), 6)
        assert own.low == pytest.approx(expected.low, abs=1e-3)
        assert own.high == pytest.approx(expected.high, abs=1e-3)
    # A system's preference is over all of its comparisons, from either side.
    mine = [p.value if p.first == "s1" else 1 - p.value for p in found if "s1" in (p.first, p.second)]
    assert study.ranking.systems[1].mean.value == pytest.approx(np.mean(mine))
    assert study.ranking.systems[1].n == 6  # outputs


def test_strengths_without_bound_are_told_and_not_made_up():
    beaten = [one("d", "a", "b", 1.0), one("e", "a", "b", 1.0)]
    study = study_pairs(beaten)
    assert "won, or lost, every comparison" in study.warning
    assert all(math.isnan(own.value) for own in study.strengths.values())
    assert study.names == ["a", "b"]  # by preference then
    apart = [one("d", "a", "b", 0.5), one("d", "c", "d", 0.5)]
    assert "never compared" in study_pairs(apart).warning
    with pytest.raises(DataError, match="between 0 and 1"):
        fit_bradley_terry(2, np.array([0]), np.array([1]), np.array([1.5]), ["d"])


@pytest.mark.parametrize("documents", [30, 60])
def test_strengths_of_one_comparison_a_document_are_covered_as_often_as_is_said(documents):
    """Leaving documents out covered .98 to 1.00, and gave no interval in a third of the small data sets."""
    rng = np.random.default_rng(documents)
    truth, hit = np.array([0.5, 0.0, -0.5]), []
    pairs = np.array(list(itertools.combinations(range(3), 2)))
    for _ in range(200):
        first, second = pairs[rng.integers(0, 3, documents)].T
        won = (rng.random(documents) < 1 / (1 + np.exp(truth[second] - truth[first]))).astype(float)
        found = fit_bradley_terry(3, first, second, won, [f"d{d}" for d in range(documents)]).strengths
        if math.isfinite(found[0].low):
            hit += [own.low <= true <= own.high for own, true in zip(found, truth, strict=True)]
    assert len(hit) > 570
    assert 0.93 <= np.mean(hit) <= 0.98


def test_pairs_of_systems_are_read_from_either_side():
    found = [one("d", "a", "b", 0.8, 0.2), one("e", "b", "a", 0.4), one("f", "a", "b", math.nan, error="no")]
    study = study_pairs(found)
    (pair,) = study.ranking.pairs
    assert (pair.first, pair.second, pair.documents) == ("a", "b", 2)
    assert (study.consistency.n, study.consistency.unscored) == (2, 1)
    assert pair.means == pytest.approx((0.7, 0.3))
    assert pair.difference.value == pytest.approx(0.4)
    assert pair.difference.error == pytest.approx(2 * mean_interval([0.8, 0.6]).error)
    tied = one("e", "b", "a", 0.4, 0.1)
    assert (tied.value_for("b"), tied.value_for("a")) == pytest.approx((0.4, 0.6))


def test_what_thoughts_make_of_the_difference_between_orders_is_told():
    found = [
        one("d", "a", "b", 0.6, orders=(0.9, 0.3), masses=(0.8, 0.6), thought_error=0.1),
        one("e", "a", "b", 0.6, orders=(0.5, 0.7), masses=(0.8, 0.6), thought_error=0.3),
    ]
    own = consistency(found)
    assert own.thought_error == pytest.approx(0.2)
    notes = consistency_table({"judge": own}).notes
    assert any("judge: each order has its own thoughts, which leave a standard error of 0.2" in note for note in notes)
    plain = consistency([replace(pair, thought_error=math.nan) for pair in found])
    assert not any("thoughts" in note for note in consistency_table({"judge": plain}).notes)


def test_order_flips_and_circles_are_counted():
    found = [
        one("d", "a", "b", 0.6, orders=(0.9, 0.3), masses=(0.8, 0.6)),  # flips
        one("d", "b", "c", 0.7, orders=(0.8, 0.6), masses=(0.8, 0.6)),
        one("d", "c", "a", 0.7, orders=(0.7, 0.7), masses=(0.8, 0.6)),  # closes a circle
        one("e", "a", "b", 0.9, orders=(0.9, 0.9), masses=(0.4, 0.2)),
        one("e", "b", "c", 0.9, orders=(0.9, 0.9), masses=(0.4, 0.2)),
        one("e", "a", "c", 0.9, orders=(0.9, 0.9), masses=(0.4, 0.2)),
    ]
    own = consistency(found)
    assert own.position_shift.value == pytest.approx(np.mean([0.3, 0.1, 0, 0, 0, 0]))
    assert own.position_shift.units == 2
    assert own.flip_rate.value == pytest.approx(1 / 6)
    assert own.masses == pytest.approx((0.6, 0.4))
    assert (own.triads, own.cyclic) == (1, 0)  # on average a beats c
    assert consistency([one("d", "a", "b", 0.5), one("d", "b", "c", 0.9), one("d", "c", "a", 0.9)]).cyclic == 0


def test_agreement_with_people_handles_ties():
    found = [
        one("d", "a", "b", 0.9, human=1.0),
        one("d", "a", "c", 0.8, human=0.0),
        one("e", "a", "b", 0.51, human=0.5),
        one("e", "a", "c", 0.3, human=0.0),
        one("f", "a", "b", 0.5, human=1.0),
        one("f", "a", "c", math.nan, human=1.0, error="no"),
        one("g", "a", "c", 0.7),
    ]
    own = agreement(found)
    assert (own.n, own.human_ties, own.left_out) == (5, 1, 2)
    assert own.decided.value == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    assert own.threshold == pytest.approx(0.01)
    # By hand, ties calibrated on the two other documents: within .01 for d (right, wrong) and f (wrong); within 0 for
    # e (wrong, right), since the others know of no tie.
    assert own.with_ties.value == pytest.approx(2 / 5)
    assert own.expected.value == pytest.approx(np.mean([0.9, 0.2, 0, 0.7, 0.5]))
    people = one("d", "a", "b", 0.7, 0.2, human=0.75, people=(1.0, 0.5))
    assert agreement([people]).expected.value == pytest.approx((0.6 + 0.2) / 2)
    with pytest.raises(DataError, match="preference is known of no comparison"):
        agreement([found[-1]])


def item(system, p, human=math.nan, document="d"):
    value = math.nan if p is None else sum(label * share for label, share in enumerate(p, start=1))
    probabilities = None if p is None else {str(label): share for label, share in enumerate(p, start=1)}
    error = "too long" if p is None else None
    return ScoredItem(document, system, human, value, probabilities, key=f"{document}/{system}", error=error)


def test_scores_are_compared_by_their_distributions_without_a_model():
    items = [item("a", [0.2, 0.3, 0.5], 3), item("b", [0.6, 0.1, 0.3], 3), item("c", None, 1)]
    found = preferences_from_scores(items, Scale.parse("1-3"))
    first = found[0]
    expected = [0.0, 0.0, 0.0]
    for (x, px), (y, py) in itertools.product(enumerate([0.2, 0.3, 0.5]), enumerate([0.6, 0.1, 0.3])):
        expected[0 if x > y else 1 if x < y else 2] += px * py
    assert first.p == pytest.approx(tuple(expected))
    assert (first.first, first.second, first.human) == ("a", "b", 0.5)
    assert [own.error for own in found] == [None, "too long", "too long"]
    assert math.isnan(found[1].value)
    assert found[1].human == 1.0
    by_score = preferences_from_scores(items, Scale.parse("1-3"), by_score=True)
    assert by_score[0].p == (1.0, 0.0, 0.0)


def test_outputs_are_scored_by_their_mean_preference():
    found = [one("d", "a", "b", 0.8), one("d", "a", "c", 0.6), one("d", "b", "c", math.nan, error="no")]
    items = {own.system: own for own in outputs_of(found, {("d", "a"): 4.0})}
    assert items["a"].predicted == pytest.approx(0.7)
    assert items["b"].predicted == pytest.approx(0.2)
    assert (items["a"].human, items["a"].group) == (4.0, "d")
    rated = with_people(found, {("d", "a"): 4.0, ("d", "b"): 4.0, ("d", "c"): 5.0})
    assert [own.human for own in rated] == [0.5, 0.0, 0.0]


def test_systems_are_told_apart_by_their_documents():
    rng = np.random.default_rng(3)
    found = [
        one(f"d{document}", first, second, float(np.clip(0.5 + shift + rng.normal(0, 0.05), 0.01, 0.99)))
        for document in range(8)
        for first, second, shift in (("a", "b", 0.02), ("a", "c", 0.3), ("b", "c", 0.28))
    ]
    study = study_pairs(found)
    for pair in study.ranking.pairs:
        own = np.array([p.value - 0.5 for p in found if {p.first, p.second} == {pair.first, pair.second}])
        assert pair.p == pytest.approx(p_of(own))
    p = {(pair.first, pair.second): pair.p_adjusted for pair in study.ranking.pairs}
    assert max(p["a", "c"], p["b", "c"]) < 0.05 < p["a", "b"]
    assert [study.ranking.letters(system) for system in "abc"] == ["a", "a", "b"]
    assert "2 of 3 pairs are told apart (Holm" in study.ranking.told
    # Groups would call systems alike that were never compared.
    assert study_pairs([p for p in found if (p.first, p.second) != ("a", "b")]).ranking.groups == ()
    few = study_pairs([one("d", "a", "b", 0.9)])
    assert math.isnan(few.ranking.pairs[0].p)
    assert "a and b cannot be told apart" in few.ranking.told
    assert study_pairs([one("d", "", "", 0.9)]).ranking.told == ""


def test_without_choix_all_but_the_strengths_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "choix", None)
    study = study_pairs(drawn(systems=3))
    assert "geval-local[pairs]" in study.warning
    assert math.isnan(study.strengths["s0"].value)
    assert study.ranking.systems[0].mean.value > 0.5


def test_several_outputs_of_a_system_for_a_document_count_together():
    found = [
        one("d", "a", "b", 0.9),
        one("d", "b", "a", 0.7),  # another output of a, which loses
        one("d", "b", "c", 0.8),
        one("d", "c", "a", 0.8),
    ]
    own = consistency(found)
    # On average a beats b, by (.9 + .3) / 2; the last comparison alone would make no circle.
    assert (own.triads, own.cyclic) == (1, 1)


def test_a_judge_that_does_not_answer_or_goes_by_the_order_concludes_nothing():
    def both(first, second, mass=1.0):
        # The preference for the first output when it is shown first, and when it is shown second.
        return [
            one(f"d{n}", "a", "b", (first + second) / 2, orders=(first, second), masses=(mass, mass)) for n in range(8)
        ]

    assert "does not answer" in study_pairs(both(0.9, 0.8, mass=0.003)).ranking.told
    biased = study_pairs(both(0.95, 0.05)).ranking.told
    assert "Nothing can be concluded" in biased
    assert "whatever is shown first" in biased
    assert "100%" in biased
    assert "Nothing" not in study_pairs(both(0.9, 0.8)).ranking.told
    # It is said above the tables, once; of given pairs, which name no system, too.
    for silent in (both(0.95, 0.05), [replace(pair, first="", second="") for pair in both(0.95, 0.05)]):
        found = Preferences((Source("run", silent), Source("other", both(0.9, 0.8))), {}, {})
        assert [line.partition(" (")[0] for line in found.lines()] == [
            "run: Nothing can be concluded: this judge goes by the order, and prefers whatever is shown first"
        ]
        assert "Nothing" not in " ".join(note for table in found.tables() for note in table.notes)


def test_results_of_pairs_are_taken_as_rows_too():
    rows = [
        {"document": f"d{d}", "system_a": "a", "system_b": "b"}
        | {"geval": {"p": {"score": 0.7, "probabilities": {"A": 0.6, "B": 0.2, "tie": 0.2}}}}
        for d in range(8)
    ]
    (source,) = rank([rows]).sources
    assert source.study.names == ["a", "b"]
    assert source.study.ranking.systems[0].mean.value == pytest.approx(0.7)


def test_a_system_compared_with_itself_says_nothing_of_pairs():
    found = [*(one(f"d{d}", "a", "b", 0.9) for d in range(8)), *(one(f"d{d}", "a", "a", 0.6) for d in range(8))]
    ranking = study_pairs(found).ranking
    assert [(pair.first, pair.second) for pair in ranking.pairs] == [("a", "b")]
    assert ranking.groups == (("a",), ("b",))
