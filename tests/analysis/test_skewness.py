"""Skewed differences and documents of different size: against the expansion written out, and on data of known truth."""

from __future__ import annotations

import numpy as np
import pytest

from geval_local.analysis.differences import rank_systems
from geval_local.statistics.interval import critical, mean_interval, skewness_of, t_test
from geval_local.statistics.prediction_powered import estimate_mean
from geval_local.statistics.records import ScoredItem
from tests.support.skewed import interval_of, p_of


@pytest.mark.parametrize("documents", [3, 6, 40])
def test_the_expansion_is_that_written_out(documents):
    rng = np.random.default_rng(documents)
    for values in (rng.exponential(size=documents) - 0.2, 0.4 - rng.exponential(size=documents)):
        found = mean_interval(values)
        assert (found.low, found.high) == pytest.approx(interval_of(values))
        for caution in (0.5, 2.0):
            p = t_test(found.value, found.error, documents, skewness_of(values), caution)
            assert p == pytest.approx(p_of(values, caution) if p < 1 else 1.0)
    # An interval ends at 0 where p is .05.
    assert t_test(1.0, 1 / critical(0.025, documents, -0.3), documents, 0.3) == pytest.approx(0.05)


def test_mirrored_differences_have_the_same_p_and_the_mirrored_interval():
    values = np.random.default_rng(1).exponential(size=12) - 0.4
    one, other = mean_interval(values), mean_interval(-values)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    p = [t_test(own.value, own.error, 12, skewness_of(v)) for own, v in ((one, values), (other, -values))]
    assert p[0] == pytest.approx(p[1])


@pytest.mark.parametrize("documents", [8])
def test_no_winner_is_named_of_ten_equal_systems_half_of_them_skewed_the_other_way(documents):
    """With sign flips alone a winner was named in .13 to .16 of such data sets."""
    rng = np.random.default_rng(documents)
    named, sides = 0, np.where(np.arange(10) % 2, 1, -1)
    for _ in range(50):
        scores = 3 + 0.4 * sides * (rng.exponential(size=(documents, 10)) - 1)
        items = [
            ScoredItem(f"d{d}", f"s{s}", float("nan"), float(scores[d, s]), key=f"{d}/{s}")
            for d in range(documents)
            for s in range(10)
        ]
        named += any(pair.better for pair in rank_systems(items).pairs)
    assert named <= 7


def _lead(documents, lead, systems="ab"):
    """Scores of systems on a scale of 1 to 5, on which the first leads all others by the same on every document."""
    items = [
        ScoredItem(f"d{d}", s, float("nan"), 3 + lead * (s == "a"), key=f"{d}/{s}")
        for d in range(documents)
        for s in systems
    ]
    return rank_systems(items, ends=(1.0, 5.0))


@pytest.mark.parametrize("lead", [0.2, 0.5, 1.0])
def test_a_winner_is_named_from_as_many_documents_on_as_would_show_what_could_undo_its_lead(lead):
    """A share `lead / (lead + 2)` of failures by 2 undoes the lead; so many documents lack them with p below .05."""
    enough = next(d for d in range(3, 200) if (2 / (2 + lead)) ** d < 0.05)
    named, doubted = _lead(enough, lead), _lead(enough - 1, lead)
    assert named.pairs[0].better == "a"
    assert named.told.startswith("By this judge a is better than b")
    assert doubted.pairs[0].is_told_apart
    assert doubted.pairs[0].better is None
    assert doubted.told.startswith("By this judge a is ahead of b by")
    assert doubted.told.endswith("no winner is named: so few documents may lack rare scores that would undo the lead.")


def test_the_doubt_stands_in_the_sentence_of_several_systems():
    told = _lead(12, 0.2, "abc").told
    assert "it is ahead of b, c, but no winner is named" in told


def test_a_system_that_fails_on_few_documents_does_not_win_against_its_equal():
    """It fails by 2.3 on 8 % of the documents, and leads by .2 on the others."""
    rng = np.random.default_rng(11)
    for documents in (8, 20, 40):
        named = 0
        for _ in range(100):
            scores = np.where(rng.random(documents) < 0.08, 0.7, 3.2)
            items = [
                ScoredItem(f"d{d}", s, float("nan"), 3.0 if s == "b" else float(scores[d]), key=f"{d}/{s}")
                for d in range(documents)
                for s in "ab"
            ]
            named += rank_systems(items, ends=(0.0, 5.0)).pairs[0].better is not None
        assert named <= 9


def _uneven(rng, documents):
    """Yes/no rows in documents of 1 to 200 rows: most documents are nearly all yes."""
    sizes = np.exp(rng.uniform(0, np.log(200), documents)).astype(int)
    share = rng.beta(3.6, 0.4, documents)
    group = np.repeat(np.arange(documents), sizes)
    return (rng.random(group.size) < share[group]).astype(float), group


@pytest.mark.parametrize("documents", [12, 40])
def test_documents_of_very_different_size_count_as_fewer(documents):
    """As if all documents counted alike, intervals of these means covered .79 and .83."""
    rng = np.random.default_rng(documents)
    hit, warned = [], []
    for _ in range(300):
        values, group = _uneven(rng, documents)
        found = mean_interval(values, group, ends=(0.0, 1.0))
        hit.append(found.low <= 0.9 <= found.high)
        warned.append("documents of different size count like" in found.warning)
    assert np.mean(hit) >= 0.86
    assert np.mean(np.array(hit) | np.array(warned)) >= 0.97


def test_equal_documents_count_as_many_as_they_are():
    rng = np.random.default_rng(5)
    found = mean_interval(rng.uniform(1, 5, 120), np.repeat(np.arange(12), 10), ends=(1.0, 5.0))
    assert (found.units, found.warning) == (12, "")
    single = mean_interval([*rng.uniform(1, 5, 100), 2.0, 3.0], np.repeat([0, 1, 2], [100, 1, 1]), ends=(1.0, 5.0))
    assert (single.low, single.high) == pytest.approx((1.0, 5.0))  # one document says next to nothing
    assert "3 documents" in single.warning


def test_an_estimate_counts_documents_of_different_size_as_fewer():
    rng = np.random.default_rng(6)
    sizes = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 40]

    def items(sizes):
        rows = [(f"d{at}", 3 + at % 2) for at, size in enumerate(sizes) for _ in range(size)]
        noise = rng.normal(0, 0.3, (2, len(rows)))
        return [
            ScoredItem(d, "", float(level + noise[0, n]), float(level + noise[1, n]), key=str(n))
            for n, (d, level) in enumerate(rows)
        ]

    uneven, even = (estimate_mean(items(own)).people for own in (sizes, [4] * 12))
    assert even.units == 12
    assert uneven.units < 3
