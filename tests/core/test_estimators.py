"""Estimates from a label distribution, against numpy, brute force and decimals."""

from __future__ import annotations

import numpy as np
import pytest

from geval_local.analysis.results import estimated_items
from geval_local.errors import ConfigurationError, DataError
from geval_local.metric import Metric
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Outcome
from geval_local.statistics.records import ScoredItem

SCALES = ("1-5", "0-10", "0-1 step 0.25", "-2 to 2")


def made(p, scale="1-5") -> Distribution:
    with np.errstate(divide="ignore"):
        return Distribution(Scale.parse(scale), np.log(np.asarray(p, dtype=float)))


def random_distributions(count=60):
    rng = np.random.default_rng(3)
    for index in range(count):
        scale = Scale.parse(SCALES[index % len(SCALES)])
        yield scale, rng.dirichlet(np.full(len(scale.labels), 0.4))


def test_a_half_on_either_side_has_its_median_between_them():
    # Binary fractions of these sum to .5 and a rest: .1 + .2 + .2 is .5 in decimals.
    assert made([0.1, 0.2, 0.2, 0.3, 0.2]).median == 3.5
    assert made([0.5, 0, 0, 0, 0.5]).median == 3
    assert made([0, 0, 1, 0, 0]).median == 3
    assert made([0.4, 0.3, 0.1, 0.1, 0.1]).median == 2


def test_values_that_do_not_rise_with_the_labels():
    words = Scale.parse({"good": 3, "poor": 1, "fair": 2})
    distribution = Distribution(words, np.log([0.2, 0.5, 0.3]))
    assert distribution.median == 1.5


@pytest.mark.parametrize("text", ["exact", "mode", "median"])
def test_the_written_form_reads_back(text):
    assert Estimator.parse(text).text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("average", "unknown estimator 'average'"),
        ("median:2", "unknown estimator 'median:2'"),
        ("quantile:0.25", "unknown estimator 'quantile:0.25'"),
        ("sample:20", "unknown estimator 'sample:20'"),
    ],
)
def test_what_is_no_estimator_is_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        Estimator.parse(text)


def items(count=12):
    rng = np.random.default_rng(5)
    found = []
    for index in range(count):
        p = rng.dirichlet(np.full(5, 0.7))
        found.append(
            ScoredItem(
                f"d{index // 3}",
                f"s{index % 3}",
                3.0,
                float(p @ np.arange(1, 6)),
                dict(zip("12345", p, strict=True)),
                key=str(index),
            )
        )
    return found


@pytest.mark.parametrize("text", ["exact", "mode", "median"])
def test_stored_distributions_give_what_scoring_gives(text):
    scale, estimator = Scale.parse("1-5"), Estimator.parse(text)
    found = estimated_items(items(), scale, estimator)
    for item, own in zip(found, items(), strict=True):
        logs = np.log(list(own.probabilities.values()))
        metric = Metric(name="clarity", criteria="How clear it is.", scale=scale)
        scored = Outcome(logs).score(metric, estimator=estimator)
        assert item.predicted == pytest.approx(scored.value, abs=1e-12)


def test_draws_belong_to_the_item_and_not_to_its_place():
    scale, estimator = Scale.parse("1-5"), Estimator("sample", n=5)
    forward = estimated_items(items(), scale, estimator)
    backward = estimated_items(items()[::-1], scale, estimator)
    assert [item.predicted for item in forward] == [item.predicted for item in backward[::-1]]
    assert len({item.predicted for item in forward}) > 3


def test_scores_without_distributions_cannot_be_estimated_anew():
    with pytest.raises(DataError, match="no label probabilities"):
        estimated_items([ScoredItem("d", "s", 3.0, 2.0, key="7")], Scale.parse("1-5"), Estimator("median"))
