from dataclasses import replace

import numpy as np
import pytest
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from geval_local.errors import Cause, DataError, ErrorCode
from geval_local.statistics.coefficients import coefficients, tie_threshold, weighted
from geval_local.statistics.correlation import average_interval, correlate
from geval_local.statistics.levels import BLOCKS
from geval_local.statistics.records import ScoredItem
from tests.support.skewed import interval_of


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
    assert three(correlate(items, "pooled")) == pytest.approx(scipy_three(*columns(items)))
    groups = [[item for item in items if item.group == f"d{g}"] for g in range(8)]
    means = np.mean([scipy_three(*columns(group)) for group in groups], axis=0)
    assert three(correlate(items, "summary")) == pytest.approx(means)
    systems = [np.mean(columns([i for i in items if i.system == f"s{s}"]), axis=1) for s in range(6)]
    assert three(correlate(items, "system")) == pytest.approx(scipy_three(*zip(*systems, strict=True)))


def test_given_the_system_the_coefficient_is_the_partial_correlation():
    """The residuals of least squares on one indicator per system; means of systems alone say nothing then."""
    items = [replace(item, human=item.human + 2 * int(item.system[1:])) for item in make(30, 6)]
    systems = np.array([int(item.system[1:]) for item in items])
    indicators = (systems[:, None] == np.arange(6)).astype(float)
    human, scores = (np.array(own) for own in columns(items))
    fitted = (indicators @ np.linalg.lstsq(indicators, own, rcond=None)[0] for own in (human, scores))
    residuals = [np.round(own - fit, 9) for own, fit in zip((human, scores), fitted, strict=True)]
    assert three(correlate(items, "partial")) == pytest.approx(scipy_three(*residuals), abs=1e-6)
    rng = np.random.default_rng(1)
    knows_systems = [replace(item, predicted=int(item.system[1:]) + rng.normal()) for item in items]
    assert correlate(knows_systems, "pooled").pearson.value > 0.6
    found = correlate(knows_systems, "partial").pearson
    assert found.low < 0 < found.high
    with pytest.raises(DataError, match="given the system needs to know who wrote each output"):
        correlate([replace(item, system="") for item in items], "partial")


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
    result = correlate(items, "pooled")
    assert result.left_out == {"prompt too long": 1, "no human rating": 1}
    assert result.n == 6
    assert three(result) == three(correlate(make(2, 3), "pooled"))


def test_items_left_out_for_one_reason_are_one_count_with_an_example():
    lost = [Cause(f"f, row {row}: duplicate id 7\nGive ids.", ErrorCode.DUPLICATE_ID) for row in range(2, 47)]
    lost += [f"the prompt has {row} tokens" for row in range(3)]  # as it was written before codes
    items = [*make(2, 3), *(ScoredItem("d0", "s9", 3.0, float("nan"), error=error) for error in lost)]
    assert correlate(items, "pooled").left_out == {
        "duplicate_id, for example duplicate id 7": 45,
        "the prompt has 0 tokens": 3,
    }


def test_ties_are_counted_within_what_is_compared():
    items = [
        ScoredItem(g, s, h, p)
        for g, s, h, p in (("a", "x", 1, 1), ("a", "y", 1, 2), ("b", "x", 1, 2), ("b", "y", 2, 2))
    ]
    pooled = correlate(items, "pooled").ties
    assert (pooled.pairs, pooled.human, pooled.predicted) == (6, 3, 3)
    summary = correlate(items, "summary").ties
    assert (summary.pairs, summary.human, summary.predicted) == (2, 1, 1)


@settings(max_examples=example_count(60))
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 3)), min_size=6, max_size=20))
def test_weights_are_how_often_an_item_is_there_whatever_the_ties(rows):
    human, predicted, times = np.array(rows, dtype=float).T
    found = weighted(human[None], predicted[None], times[None, None])[0, 0]
    repeated = [np.repeat(values, times.astype(int)) for values in (human, predicted)]
    if np.unique(repeated[0]).size > 1 and np.unique(repeated[1]).size > 1:
        # tau-b, AUC and the rest do not count an item with its copies.
        np.testing.assert_allclose(found[:3], coefficients(*repeated)[:3], atol=1e-12)
    else:
        assert np.isnan(found).all()


def test_short_rows_are_compared_as_scipy_does():
    rng = np.random.default_rng(5)
    human, predicted = rng.integers(1, 5, (40, 9)).astype(float), rng.integers(1, 7, (40, 9)).astype(float)
    predicted[3] = 2.0
    fast = weighted(human, predicted, np.ones((1, 1, 9)))[:, 0]
    for h, p, row in zip(human, predicted, fast, strict=True):
        np.testing.assert_allclose(row, coefficients(h, p), atol=1e-12, equal_nan=True)


def test_the_error_of_ranks_of_means_shrinks_with_the_documents():
    rng = np.random.default_rng(3)
    quality, leaning = rng.normal(size=16), 0.5 * rng.normal(size=16)

    def error(documents):
        human = quality + rng.normal(size=(documents, 16))
        scores = quality + leaning + rng.normal(size=(documents, 16))
        items = [
            ScoredItem(f"d{d}", f"s{s}", human[d, s], scores[d, s], key=f"{d}/{s}")
            for d in range(documents)
            for s in range(16)
        ]
        return correlate(items, "system", target="documents").kendall.error

    assert error(200) < 0.6 * error(10)


def test_a_mean_over_documents_has_the_textbook_interval():
    items = make(12, 6, seed=8)
    found = correlate(items, "summary").spearman
    each = [stats.spearmanr(*columns([item for item in items if item.group == f"d{g}"]))[0] for g in range(12)]
    low, high = interval_of(each)
    assert (found.low, found.high) == pytest.approx((low, min(1.0, high)))
    assert found.units == 12


@pytest.mark.slow
def test_intervals_are_the_same_each_time_and_cover_the_truth():
    assert correlate(make(20, 4), "pooled") == correlate(make(20, 4), "pooled")
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(150):
        pairs = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=40)
        items = [ScoredItem(str(i), "", h, p) for i, (h, p) in enumerate(pairs)]
        found = correlate(items, "pooled").pearson
        covered += found.low <= 0.5 <= found.high
    assert 134 <= covered <= 150


def new_systems(rng, documents, systems=16, judges=1):
    """Ratings, and scores of judges who have a leaning of their own for or against each system."""
    quality = 0.55 * rng.normal(size=systems) + 0.84 * rng.normal(size=(documents, systems))
    human = quality + 0.5 * rng.normal(size=quality.shape)
    found = []
    for _ in range(judges):
        scores = 0.7 * quality + 0.39 * rng.normal(size=systems) + 0.6 * rng.normal(size=quality.shape)
        found.append(
            [
                ScoredItem(f"d{d}", f"s{s}", human[d, s], scores[d, s], key=f"{d}/{s}")
                for d in range(documents)
                for s in range(systems)
            ]
        )
    return found


@pytest.mark.nightly
@pytest.mark.slow
def test_new_systems_are_covered_only_where_the_interval_is_about_them():
    rng = np.random.default_rng(2)
    found = [new_systems(rng, 60)[0] for _ in range(80)]
    covered = {}
    for target in ("documents", "both"):
        intervals = [correlate(items, "summary", target=target).pearson for items in found]
        truth = np.mean([one.value for one in intervals])
        covered[target] = np.mean([one.low <= truth <= one.high for one in intervals])
    assert covered["documents"] < 0.7
    assert covered["both"] >= 0.88


def test_what_is_generalised_to_is_said():
    items = make(20, 4)
    told = correlate(items, "summary").holds_for
    assert told == "new documents from the same 4 systems, not for new systems"
    assert "approximately, with only 12 documents" in correlate(make(12, 4), "summary").holds_for
    assert correlate(items, "system").target == "both"
    assert "approximately, with only 4 systems" in correlate(items, "summary", target="both").holds_for
    assert correlate(make(4, 4), "summary").spearman.warning == "only 4 documents"
    nameless = [replace(item, system="") for item in items]
    with pytest.raises(DataError, match="who wrote each output"):
        correlate(nameless, "summary", target="systems")
    with pytest.raises(DataError, match="unknown target"):
        correlate(items, "summary", target="everything")


def test_items_of_one_document_make_wide_intervals():
    # Ten copies of each pair carry no more evidence than one; an interval over items would be three times too narrow.
    rng = np.random.default_rng(1)
    pairs = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=40)
    once = [ScoredItem(str(i), "", h, p) for i, (h, p) in enumerate(pairs)]
    tenfold = [item for item in once for _ in range(10)]
    a, b = (correlate(items, "pooled").spearman for items in (once, tenfold))
    assert (b.low, b.high) == pytest.approx((a.low, a.high), abs=0.05)


def test_many_documents_are_drawn_in_blocks_to_the_same_width():
    rng = np.random.default_rng(6)
    pairs = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=1200)
    found = correlate([ScoredItem(str(i), "", h, p) for i, (h, p) in enumerate(pairs)], "pooled").pearson
    assert found.units <= BLOCKS
    assert found.error == pytest.approx((1 - found.value**2) / np.sqrt(1200), rel=0.2)


def test_constant_scores_are_left_out():
    flat = [replace(item, predicted=3.0) if item.group == "d0" else item for item in make(8, 5)]
    left_out = correlate(flat, "summary")
    assert (left_out.points, left_out.skipped) == (7, {"constant predictions": 1})


def test_the_threshold_of_ties_is_the_best_one():
    human = np.array([1.0, 1.0, 2.0, 3.0])
    predicted = np.array([0.10, 0.15, 0.50, 0.40])
    epsilon = tie_threshold(human, predicted, np.zeros(4, dtype=np.int64))

    def accuracy(threshold):
        right = 0
        for i in range(4):
            for j in range(i):
                d = predicted[i] - predicted[j]
                right += np.sign(human[i] - human[j]) == (0 if abs(d) <= threshold else np.sign(d))
        return right / 6

    every = [accuracy(threshold) for threshold in np.arange(0, 0.6, 0.005)]
    assert accuracy(epsilon) == max(every) == 5 / 6
    found = weighted(human[None], predicted[None], np.ones((1, 1, 4)), np.array([epsilon]))[0, 0, 3]
    assert found == pytest.approx(5 / 6)


def test_scores_that_know_nothing_are_no_more_accurate_than_chance():
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        items = [replace(item, predicted=rng.normal()) for item in make(12, 8, seed=seed, levels=4)]
        found.append(correlate(items, "summary", accuracy=True))
    # Calibrated on its own data the accuracy would be above.
    assert np.mean([one.accuracy.value - one.chance for one in found]) < 0.0
    assert found[0].chance > 0.3


def test_auc_is_that_of_the_rank_test_and_only_for_two_values():
    rng = np.random.default_rng(3)
    human, predicted = rng.integers(0, 2, 80).astype(float), np.round(rng.normal(size=80), 1)
    predicted += human
    items = [ScoredItem(str(i), "", h, p) for i, (h, p) in enumerate(zip(human, predicted, strict=True))]
    found = correlate(items, "pooled").auc
    u = stats.mannwhitneyu(predicted[human == 1], predicted[human == 0]).statistic
    assert found.value == pytest.approx(u / ((human == 1).sum() * (human == 0).sum()))
    assert found.low < found.value < found.high <= 1
    assert np.isnan(correlate(make(5, 5), "pooled").auc.value)


def test_the_average_counts_documents_once():
    first = make(30, 6, seed=1)
    again = [replace(item) for item in first]
    one, two = average_interval([first], "summary"), average_interval([first, again], "summary")
    # The same dimension twice is no more evidence than once.
    assert (two.value, two.error) == pytest.approx((one.value, one.error))
    other = make(30, 6, seed=2)
    assert average_interval([first, other], "summary").error < one.error


def test_one_group_has_no_interval():
    result = correlate(make(1, 8), "pooled")
    assert np.isfinite(result.pearson.value)
    assert np.isnan([result.pearson.low, result.pearson.high]).all()


def test_nothing_to_correlate_is_an_error_not_a_number():
    with pytest.raises(DataError, match="no item has both"):
        correlate([ScoredItem("a", "", float("nan"), 1.0)])
    with pytest.raises(DataError, match="who wrote each output"):
        correlate([ScoredItem("a", "", 1.0, 1.0), ScoredItem("a", "", 2.0, 1.0)], "system")


def test_systems_with_equal_means_are_tied_whatever_the_order_of_the_sum():
    values = {"a": (0.1, 0.2, 0.3), "b": (0.3, 0.2, 0.1), "c": (0.5, 0.6, 0.9)}
    items = [
        ScoredItem(f"d{group}", system, 1.0 + "abc".index(system), value)
        for system, row in values.items()
        for group, value in enumerate(row)
    ]
    assert sum(values["a"]) != sum(values["b"])
    assert correlate(items, "system").ties.predicted == 1


def test_an_interval_of_ranks_reaches_the_next_step_where_two_systems_are_nearly_alike():
    # People see s0 just above s1, which the judge knows well: half of the samples have them in the other order.
    documents, quality, judged = 100, np.array([0.01, 0.0, 1.0, -1.0]), np.array([0.4, 0.0, 1.0, -1.0])
    hits, right = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        human, score = (own + 0.8 * rng.normal(size=(documents, 4)) for own in (quality, judged))
        items = [
            ScoredItem(f"d{d}", f"s{s}", human[d, s], score[d, s], key=f"{d}/{s}")
            for d in range(documents)
            for s in range(4)
        ]
        found = correlate(items, "system", target="documents").spearman
        right += found.value == 1.0
        hits += found.low <= 1.0 <= found.high or found.value == 1.0
    assert right < 15
    assert hits >= 19
