from dataclasses import replace

import numpy as np
import pytest

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.agreement import agree, krippendorff_alpha
from geval_local.analysis.statistics.significance import compare, williams
from geval_local.errors import DataError

NAN = float("nan")


def judges(n, seed, r=(0.6, 0.6), between=0.4, per_group=1):
    rng = np.random.default_rng(seed)
    covariance = [[1, r[0], r[1]], [r[0], 1, between], [r[1], between, 1]]
    drawn = rng.multivariate_normal([0, 0, 0], covariance, size=n)
    return tuple(
        [ScoredItem(str(i // per_group), "", row[0], row[side], key=str(i)) for i, row in enumerate(drawn)]
        for side in (1, 2)
    )


def test_williams_gives_steigers_published_example():
    # Steiger (1980), table 1: masculinity and femininity against verbal ability; also the example of R's psych::r.test.
    result = williams(0.5, 0.4, 0.1, 103)
    assert (round(result.t, 2), result.df, round(result.p, 2)) == (0.89, 100, 0.37)
    assert williams(0.4, 0.5, 0.1, 103).t == -result.t


def test_williams_rejects_as_often_as_it_says():
    rejected = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        h, a, b = rng.multivariate_normal([0, 0, 0], [[1, 0.5, 0.5], [0.5, 1, 0.3], [0.5, 0.3, 1]], size=30).T
        r = np.corrcoef([h, a, b])
        rejected += williams(r[0, 1], r[0, 2], r[1, 2], 30).p < 0.05
    assert 30 <= rejected <= 72


def test_williams_refuses_the_impossible():
    with pytest.raises(ValueError, match="at least 4"):
        williams(0.5, 0.4, 0.1, 3)
    with pytest.raises(ValueError, match="no three variables"):
        williams(0.9, -0.9, 0.9, 50)
    assert williams(0.5, 0.5, 1.0, 50).p == 1.0


def test_bootstrap_and_williams_agree_where_both_apply():
    first, second = judges(200, 1, r=(0.7, 0.5))
    result = compare(first, second, "pooled", "pearson", resamples=2000)
    assert result.williams is not None
    assert result.p < 0.01
    assert result.williams.p < 0.01
    assert result.difference.low > 0
    assert result.difference.value == pytest.approx(result.first - result.second)


def test_bootstrap_rejects_as_often_as_it_says():
    rejected = sum(compare(*judges(60, seed), "pooled", "spearman", resamples=200).p < 0.05 for seed in range(120))
    assert 1 <= rejected <= 15


def test_williams_is_not_offered_where_it_would_lie():
    grouped = judges(60, 0, per_group=3)
    assert compare(*grouped, "pooled", "pearson").williams is None
    assert "Williams' test rules out" in compare(*grouped, "pooled", "pearson").why
    assert compare(*judges(60, 0), "pooled", "kendall").williams is None
    assert compare(*judges(60, 0, per_group=6), "summary", "pearson").williams is None


def test_comparison_uses_what_both_scored_and_pairs_by_key():
    first, second = judges(80, 2, per_group=4)
    second[5] = replace(second[5], predicted=NAN, error="too long")
    first[7] = replace(first[7], human=NAN)
    second[7] = replace(second[7], human=NAN)
    result = compare(first, list(reversed(second)), "pooled")
    assert result.n == 78
    assert result == compare(first, second, "pooled")
    with pytest.raises(DataError, match="not the same in both"):
        compare(first, [replace(item, human=item.human + 1) for item in second])


def test_a_judge_does_not_differ_from_itself():
    first, _ = judges(50, 3)
    result = compare(first, first, "pooled", "pearson")
    assert (result.difference.value, result.p) == (0.0, 1.0)
    assert result.williams is not None
    assert result.williams.p == 1.0


def test_agreement_sees_a_shift_that_correlation_does_not():
    first, _ = judges(50, 4)
    milder = [replace(item, predicted=item.predicted + 2) for item in first[:-3]]
    result = agree(first, milder)
    assert result.pearson == pytest.approx(1.0)
    assert result.mean_difference == pytest.approx(-2.0)
    assert result.mean_absolute_difference == pytest.approx(2.0)
    assert result.alpha < 0.5
    assert (result.n, result.only_first, result.only_second) == (47, 3, 0)


def test_alpha_gives_krippendorffs_published_example():
    # Krippendorff (1980), data set C: four observers, twelve units; alpha for interval data is .849.
    ratings = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
    assert krippendorff_alpha(ratings) == pytest.approx(0.849, abs=5e-4)
    assert krippendorff_alpha([[1, 2, 3], [1, 2, 3]]) == 1.0
    assert np.isnan(krippendorff_alpha([[2, 2], [2, 2]]))
