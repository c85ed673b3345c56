import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.correlation import correlate, level_statistic
from geval_local.analysis.statistics.levels import PooledStatistic, coefficients
from geval_local.analysis.statistics.resampling import group_draws, interval_of, two_sided_p
from geval_local.errors import DataError


def make(groups, per_group, seed=0, noise=1.0, levels=5):
    rng = np.random.default_rng(seed)
    items = []
    for group in range(groups):
        for system in range(per_group):
            human = float(rng.integers(1, levels + 1))
            predicted = float(np.round(human + noise * rng.normal(), 1))
            items.append(ScoredItem(f"d{group}", f"s{system}", human, predicted, key=f"{group}/{system}"))
    return items


def columns(items):
    return [item.human for item in items], [item.predicted for item in items]


def scipy_three(human, predicted):
    return [test(human, predicted)[0] for test in (stats.pearsonr, stats.spearmanr, stats.kendalltau)]


def three(result):
    return [result.pearson.value, result.spearman.value, result.kendall.value]


def test_pooled_summary_and_system_are_what_scipy_gives():
    items = make(8, 6)
    assert three(correlate(items, "pooled", resamples=0)) == pytest.approx(scipy_three(*columns(items)))
    groups = [[item for item in items if item.group == f"d{g}"] for g in range(8)]
    means = np.mean([scipy_three(*columns(group)) for group in groups], axis=0)
    assert three(correlate(items, "summary", resamples=0)) == pytest.approx(means)
    systems = [np.mean(columns([i for i in items if i.system == f"s{s}"]), axis=1) for s in range(6)]
    assert three(correlate(items, "system", resamples=0)) == pytest.approx(scipy_three(*zip(*systems, strict=True)))


def test_groups_are_skipped_by_reason_and_do_not_count_as_zero():
    items = [
        *[ScoredItem("good", "", h, p) for h, p in ((1, 1.0), (2, 2.0), (3, 3.0))],
        *[ScoredItem("flat people", "", 2, p) for p in (1.0, 2.0)],
        *[ScoredItem("flat scores", "", h, 3.0) for h in (1, 2)],
        *[ScoredItem("flat both", "", 1, 1.0) for _ in range(2)],
        ScoredItem("alone", "", 1, 1.0),
    ]
    result = correlate(items, "summary")
    assert three(result) == pytest.approx([1.0, 1.0, 1.0])
    assert (result.points, result.groups, result.n) == (1, 5, 10)
    assert result.skipped == {
        "constant human ratings": 1,
        "constant predictions": 1,
        "constant human ratings and predictions": 1,
        "a single item": 1,
    }


def test_unscored_and_unrated_items_are_counted_by_reason():
    items = [
        *make(2, 3),
        ScoredItem("d0", "s9", 3.0, float("nan"), error="prompt too long"),
        ScoredItem("d0", "s8", float("nan"), 3.0),
    ]
    result = correlate(items, "pooled", resamples=0)
    assert result.left_out == {"prompt too long": 1, "no human rating": 1}
    assert result.n == 6
    assert three(result) == three(correlate(make(2, 3), "pooled", resamples=0))


def test_ties_are_counted_within_what_is_compared():
    items = [
        ScoredItem(g, s, h, p)
        for g, s, h, p in (("a", "x", 1, 1), ("a", "y", 1, 2), ("b", "x", 1, 2), ("b", "y", 2, 2))
    ]
    pooled = correlate(items, "pooled", resamples=0).ties
    assert (pooled.pairs, pooled.human, pooled.predicted) == (6, 3, 3)
    summary = correlate(items, "summary", resamples=0).ties
    assert (summary.pairs, summary.human, summary.predicted) == (2, 1, 1)


@pytest.mark.parametrize("level", ["summary", "pooled", "system"])
def test_resampling_equals_correlating_the_repeated_items(level):
    items = make(7, 5, seed=3)
    draws = group_draws(7, 30, seed=1)
    fast = level_statistic(items, level).resample(draws)
    for row, expected in zip(draws, fast, strict=True):
        repeated = [
            ScoredItem(f"{item.group}#{copy}", item.system, item.human, item.predicted)
            for item in items
            for copy in range(row[int(item.group[1:])])
        ]
        assert level_statistic(repeated, level).point == pytest.approx(expected, abs=1e-12)


def test_many_groups_take_the_sorting_path_to_the_same_numbers(monkeypatch):
    items = make(40, 1, seed=5, levels=3)
    human, predicted = map(np.array, columns(items))
    draws = group_draws(40, 25, seed=2)
    by_matrix = PooledStatistic(human, predicted, np.arange(40)).resample(draws)
    monkeypatch.setattr("geval_local.analysis.statistics.levels._MAX_PAIR_GROUPS", 1)
    assert PooledStatistic(human, predicted, np.arange(40)).resample(draws) == pytest.approx(by_matrix)


def test_chunks_do_not_change_the_result(monkeypatch):
    items = make(9, 4, seed=6)
    draws = group_draws(9, 50, seed=0)
    whole = {level: level_statistic(items, level).resample(draws) for level in ("pooled", "system")}
    monkeypatch.setattr("geval_local.analysis.statistics.levels._CHUNK", 40)
    for level, expected in whole.items():
        np.testing.assert_allclose(level_statistic(items, level).resample(draws), expected, equal_nan=True)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3)), min_size=2, max_size=14))
def test_the_undrawn_data_is_the_point_whatever_the_ties(rows):
    human, predicted = (np.array([row[i] for row in rows], dtype=float) for i in (0, 1))
    groups = np.unique([row[2] for row in rows], return_inverse=True)[1]
    once = np.ones((1, groups.max() + 1), dtype=np.int64)
    resampled = PooledStatistic(human, predicted, groups).resample(once)[0]
    np.testing.assert_allclose(resampled, coefficients(human, predicted), atol=1e-12, equal_nan=True)


def test_intervals_are_seeded_and_cover_the_truth():
    assert correlate(make(20, 4), "pooled", seed=3) == correlate(make(20, 4), "pooled", seed=3)
    assert correlate(make(20, 4), "pooled", seed=3) != correlate(make(20, 4), "pooled", seed=4)
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(100):
        pairs = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=80)
        items = [ScoredItem(str(i), "", h, p) for i, (h, p) in enumerate(pairs)]
        found = correlate(items, "pooled", resamples=200, seed=trial).pearson
        covered += found.low <= 0.5 <= found.high
    assert 86 <= covered <= 100


def test_items_of_one_document_make_wide_intervals():
    # Ten copies of each pair carry no more evidence than one; an interval over items would be three times too narrow.
    rng = np.random.default_rng(1)
    pairs = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=40)
    once = [ScoredItem(str(i), "", h, p) for i, (h, p) in enumerate(pairs)]
    tenfold = [item for item in once for _ in range(10)]
    a, b = (correlate(items, "pooled").spearman for items in (once, tenfold))
    assert (b.low, b.high) == pytest.approx((a.low, a.high), abs=0.02)


def test_one_group_has_no_interval():
    result = correlate(make(1, 8), "pooled")
    assert np.isfinite(result.pearson.value)
    assert np.isnan([result.pearson.low, result.pearson.high]).all()


def test_nothing_to_correlate_is_an_error_not_a_number():
    with pytest.raises(DataError, match="no item has both"):
        correlate([ScoredItem("a", "", float("nan"), 1.0)])
    with pytest.raises(DataError, match="who wrote each output"):
        correlate([ScoredItem("a", "", 1.0, 1.0), ScoredItem("a", "", 2.0, 1.0)], "system")


def test_a_thousand_resamples_of_1600_items_take_seconds():
    items = make(100, 16)
    start = time.perf_counter()
    for level in ("summary", "pooled", "system"):
        correlate(items, level)
    assert time.perf_counter() - start < 10


def test_p_value_agrees_with_the_interval_and_is_never_zero():
    draws = np.random.default_rng(0).normal(2.0, 1.0, 999)
    assert (two_sided_p(draws) < 0.05) == (interval_of(2.0, draws).low > 0)
    assert two_sided_p(np.full(999, 5.0)) == pytest.approx(2 / 1000)
    assert two_sided_p(draws - 2.0) > 0.5


def test_a_resample_of_equal_values_has_no_coefficient_rather_than_noise():
    # The weighted mean of equal numbers is not always that number: a variance of 1e-31 must not pass for one.
    rng = np.random.default_rng(0)
    human = np.array([55 / 7] * 5 + [1.0, 5.0])
    draws = np.hstack([rng.multinomial(7, np.full(5, 0.2), size=200), np.zeros((200, 2), dtype=np.int64)])
    for a, b in ((human, rng.normal(size=7)), (rng.normal(size=7), human)):
        assert np.isnan(PooledStatistic(a, b, np.arange(7)).resample(draws)).all()


def test_systems_with_equal_means_are_tied_whatever_the_order_of_the_sum():
    values = {"a": (0.1, 0.2, 0.3), "b": (0.3, 0.2, 0.1), "c": (0.5, 0.6, 0.9)}
    items = [
        ScoredItem(f"d{group}", system, 1.0 + "abc".index(system), value)
        for system, row in values.items()
        for group, value in enumerate(row)
    ]
    assert sum(values["a"]) != sum(values["b"])
    assert correlate(items, "system", resamples=0).ties.predicted == 1
