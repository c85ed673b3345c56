"""Closing figures: the interval against theory and by seed, unscored rows counted and never averaged in."""

from __future__ import annotations

import math

import numpy as np
import pytest

from geval_local.score import Score
from geval_local.summary import ROWS_NAMED, Tally, bootstrap_interval


def scored(value: float, mass: float = 1.0, **rest: object) -> Score:
    return Score("m", value=value, label_mass=mass, probabilities={"1": 1.0}, **rest)


def test_the_interval_has_the_width_that_theory_gives():
    values = np.random.default_rng(3).normal(2.0, 0.5, size=4000)
    low, high = bootstrap_interval(values, seed=1, resamples=4000)
    standard_error = values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * standard_error, abs=0.15 * standard_error)
    assert high == pytest.approx(values.mean() + 1.96 * standard_error, abs=0.15 * standard_error)


def test_seeds_decide_the_interval():
    values = [1.0, 2.0, 5.0, 3.0, 3.5]
    assert bootstrap_interval(values, seed=4) == bootstrap_interval(values, seed=4)
    assert bootstrap_interval(values, seed=4) != bootstrap_interval(values, seed=5)


def test_an_interval_needs_two_values_and_finite_ones():
    assert all(math.isnan(end) for end in bootstrap_interval([3.0]))
    assert bootstrap_interval([3.0, 3.0]) == (3.0, 3.0)
    with pytest.raises(ValueError, match="finite"):
        bootstrap_interval([1.0, math.nan])
    with pytest.raises(ValueError, match="resamples"):
        bootstrap_interval([1.0, 2.0], resamples=0)


def test_unscored_rows_are_counted_and_enter_no_mean():
    tally = Tally("m")
    for row, value in enumerate([1.0, 3.0, 5.0], start=1):
        tally.add(f"f, row {row}", row, scored(value, mass=[1.0, 0.5, 0.9][row - 1]))
    tally.add("f, row 4", 4, Score.unscored("m", "f, row 4: the field 'output' is empty\nFill it in."))
    summary = tally.summary()
    assert (summary.rows, summary.scored, summary.unscored) == (4, 3, 1)
    assert summary.mean == 3.0
    assert summary.std == 2.0
    assert summary.label_mass == pytest.approx(0.8)
    assert summary.label_mass_min == 0.5
    assert summary.low_mass_share == pytest.approx(1 / 3)
    assert summary.passed_share is None
    assert summary.reasons[0].text == "the field 'output' is empty"
    assert summary.reasons[0].rows == (4,)


def test_reasons_that_differ_in_numbers_only_are_one_and_name_the_first_rows():
    tally = Tally("m")
    for row in range(1, 10):
        tally.add(f"f, row {row}", row, Score.unscored("m", f"the prompt has {5000 + row} tokens"))
    tally.add("f, row 10", 10, Score.unscored("m", "f, row 10: the field 'source' is null"))
    summary = tally.summary()
    assert [(reason.count, reason.text) for reason in summary.reasons] == [
        (9, "the prompt has 5001 tokens"),
        (1, "the field 'source' is null"),
    ]
    assert summary.reasons[0].rows == tuple(range(1, ROWS_NAMED + 1))


def test_passed_share_counts_scored_rows_only():
    tally = Tally("m")
    tally.add("row 1", 1, scored(4.0, threshold=3.0, passed=True))
    tally.add("row 2", 2, scored(2.0, threshold=3.0, passed=False))
    tally.add("row 3", 3, Score.unscored("m", "empty"))
    summary = tally.summary()
    assert summary.threshold == 3.0
    assert summary.passed_share == 0.5


def test_nothing_scored_is_null_and_never_zero():
    tally = Tally("m")
    tally.add("row 1", 1, Score.unscored("m", "empty"))
    record = tally.summary().to_dict()
    assert record["mean"] is None
    assert record["interval"] is None
    assert record["label_mass"]["mean"] is None
    assert record["passed_share"] is None
