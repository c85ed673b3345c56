import math

import numpy as np
import pytest

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.studies.sampling import sampling_cost
from geval_local.errors import DataError
from geval_local.scale import Scale
from geval_local.score import Distribution

SCALE = Scale.parse("1-5")


def items(n=60, seed=0, rated=True):
    rng = np.random.default_rng(seed)
    found = []
    for index in range(n):
        distribution = Distribution(SCALE, rng.normal(0, 1.5, 5))
        human = distribution.score + rng.normal(0, 0.3) if rated else math.nan
        found.append(
            ScoredItem(str(index // 6), "", human, distribution.score, distribution.probabilities, key=str(index))
        )
    return found


def test_the_error_of_a_coin_is_known():
    # One draw of {0, 1} with p: the mean absolute error is 2 p (1 - p).
    scale = Scale.parse("0-1")
    p = np.linspace(0.05, 0.95, 40)
    coins = [ScoredItem(str(i), "", math.nan, x, {"0": 1 - x, "1": x}, key=str(i)) for i, x in enumerate(p)]
    exact, single = sampling_cost(coins, scale, sizes=[1], seeds=range(200))
    assert single.error.mean == pytest.approx(float((2 * p * (1 - p)).mean()), abs=0.01)
    assert exact.error.mean == 0.0
    assert exact.n is None
    assert single.pearson is None


def test_more_draws_cost_less_and_the_exact_row_is_the_limit():
    costs = sampling_cost(items(), SCALE, "pooled", sizes=[1, 5, 20, 100, 100_000])
    errors = [cost.error.mean for cost in costs[1:]]
    assert errors == sorted(errors, reverse=True)
    # Standard error falls with the square root of n.
    assert errors[0] / errors[3] == pytest.approx(10, rel=0.25)
    exact, last = costs[0], costs[-1]
    assert exact.spearman is not None
    assert last.spearman is not None
    assert last.spearman.mean == pytest.approx(exact.spearman.mean, abs=0.01)
    assert costs[1].spearman is not None
    assert costs[1].spearman.mean < exact.spearman.mean
    assert costs[1].spearman.sd > last.spearman.sd


def test_draws_follow_the_same_law_as_the_sampling_estimator():
    one = items(1, seed=4, rated=False)[0]
    distribution = Distribution(SCALE, np.log(list(one.probabilities.values())))
    estimator = [abs(distribution.sample_mean(5, seed=s) - distribution.score) for s in range(4000)]
    cost = sampling_cost([one], SCALE, sizes=[5], seeds=range(4000))[1]
    assert cost.error.mean == pytest.approx(np.mean(estimator), rel=0.06)
    assert cost.error.sd == pytest.approx(np.std(estimator), rel=0.06)


def test_equal_seeds_give_equal_tables():
    assert sampling_cost(items(), SCALE, seeds=[3, 4]) == sampling_cost(items(), SCALE, seeds=[3, 4])
    assert sampling_cost(items(), SCALE, seeds=[3, 4]) != sampling_cost(items(), SCALE, seeds=[5, 6])


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        (None, "no label probabilities"),
        ({"1": 1.0}, "not for 1-5"),
        ({"1": 0.5, "2": 0.4, "3": 0.0, "4": 0.0, "5": 0.0}, "sum to 0.9"),
        ({"1": 1.5, "2": -0.5, "3": 0.0, "4": 0.0, "5": 0.0}, "label probabilities"),
        ({"1": math.nan, "2": 0.5, "3": 0.5, "4": 0.0, "5": 0.0}, "label probabilities"),
    ],
)
def test_what_is_not_a_distribution_is_refused(probabilities, message):
    with pytest.raises(DataError, match=message):
        sampling_cost([ScoredItem("a", "", 1.0, 1.0, probabilities, key="x")], SCALE)


def test_unscored_items_are_left_out():
    lost = ScoredItem("0", "", 3.0, math.nan, key="lost", error="too long")
    assert sampling_cost([*items(), lost], SCALE) == sampling_cost(items(), SCALE)
