"""Scores derived together are those derived one by one, to the last bit."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geval_local.derive import derive_scores
from geval_local.metric import Metric
from geval_local.outcome import Outcome
from geval_local.score import Estimator

#: Sums of eight and more numbers, and of more than 128, are taken in other orders.
SCALES = ["Yes/No", "1-3", "1-5", "1-7", "1-8", "1-9", "0-10", "1-100", "0-1 step 0.005", "0-1 step 0.001"]


def metric(scale: str, threshold: float | None = None) -> Metric:
    return Metric(name="one", criteria="any", scale=scale, threshold=threshold)


def exactly(scores) -> list[dict]:
    """Every field, floats with all their bits."""
    return [
        {name: value.hex() if isinstance(value, float) else repr(value) for name, value in vars(score).items()}
        for score in scores
    ]


def one_by_one(outcomes, of: Metric, **options):
    return [outcome.score(of, **options) for outcome in outcomes]


def outcomes(scale: str, rows: int, spread: float, seed: int, *, holes: bool) -> list[Outcome]:
    random = np.random.default_rng(seed)
    labels = len(metric(scale).scale.labels)
    made = []
    for number in range(rows):
        if holes and number % 5 == 3:
            made.append(Outcome(error="too long", prompt_tokens=number))
            continue
        logprobs = -abs(random.normal(3, spread, labels))
        if holes and number % 5 == 1:
            logprobs[random.random(labels) < 0.4] = -math.inf
            logprobs[0] = -1.0
        made.append(Outcome(logprobs, (("x", 0.25),) if number % 2 else (), number, number % 3, seed))
    return made


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=25)
@given(
    rows=st.integers(1, 40),
    spread=st.sampled_from([0.0, 0.1, 3.0, 400.0]),
    seed=st.integers(0, 2**32),
    holes=st.booleans(),
    kind=st.sampled_from(["exact", "mode", "sample"]),
    threshold=st.none() | st.floats(0, 1),
)
@example(rows=1, spread=1.0, seed=0, holes=False, kind="exact", threshold=0.5)
def test_scores_are_those_of_one_by_one(scale, rows, spread, seed, holes, kind, threshold):
    of = metric(scale)
    if threshold is not None:
        threshold = of.scale.low + threshold * (of.scale.high - of.scale.low)
    options = {"estimator": Estimator(kind, n=5), "threshold": threshold}
    made = outcomes(scale, rows, spread, seed, holes=holes)
    assert exactly(derive_scores(made, of, **options)) == exactly(one_by_one(made, of, **options))


def test_words_and_values_in_any_order():
    of = Metric(name="one", criteria="any", scale={"good": 3, "poor": -1.5, "fair": 2})
    made = [Outcome(np.log(row)) for row in np.random.default_rng(0).dirichlet(np.ones(3), 50)]
    for kind in ("exact", "mode"):
        options = {"estimator": Estimator(kind), "threshold": 2.0}
        assert exactly(derive_scores(made, of, **options)) == exactly(one_by_one(made, of, **options))


def test_a_test_of_bits_sees_one_bit():
    """A matrix product in place of the scalar products would have been simpler, and other."""
    p = np.random.default_rng(0).dirichlet(np.ones(100), 500)
    values = np.arange(100.0)
    assert [float(row @ values).hex() for row in p] != [value.hex() for value in (p @ values).tolist()]


@pytest.mark.parametrize("bad", [[math.nan, -1.0], [math.inf, -1.0], [-math.inf, -math.inf], [-1.0]])
def test_what_is_no_distribution_is_refused_as_by_the_definition(bad):
    made = [Outcome(np.array([-1.0, -2.0])), Outcome(np.array(bad))]
    with pytest.raises(ValueError, match="label") as alone:
        one_by_one(made, metric("Yes/No"), estimator=Estimator())
    with pytest.raises(ValueError, match=re.escape(str(alone.value))):
        derive_scores(made, metric("Yes/No"), estimator=Estimator())


def test_nothing_scored_is_nothing_derived():
    assert derive_scores([], metric("1-5"), estimator=Estimator()) == []
    (score,) = derive_scores([Outcome(error="empty", prompt_tokens=7)], metric("1-5"), estimator=Estimator())
    assert (score.error, score.prompt_tokens, score.is_scored) == ("empty", 7, False)
