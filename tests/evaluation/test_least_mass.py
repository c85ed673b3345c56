"""A judge that does not answer passes nothing: no threshold, and no gate of a mean, unless that was allowed."""

from __future__ import annotations

import math

import pytest

from geval_local.analysis.gates import Gate, outcomes, parse_limit
from geval_local.score import Distribution, Estimator, Score
from geval_local.summary import Tally, mass_remark


def summary(mass, *, threshold=None, rows=4):
    tally = Tally("m")
    for number in range(rows):
        passed = None if threshold is None else mass >= 0.1
        tally.add(f"row {number}", number, _score(number, mass, threshold, passed))
    return tally.summary()


def _score(number, mass, threshold, passed):
    """Make scores that differ: a mean of equal ones has no interval."""
    return Score("m", value=3.0 + number % 2 / 10, label_mass=mass, threshold=threshold, passed=passed)


def gate(figure, text, metric="all"):
    return Gate(figure, parse_limit(figure, text), metric)


def failures(gates, summaries):
    return [one.told for one in outcomes(gates, summaries) if not one.passed]


@pytest.mark.parametrize(("mass", "passed"), [(0.099, False), (0.101, True), (1.0, True)])
def test_a_row_passes_only_if_the_judge_answers(mass, passed):
    from geval_local.scale import Scale

    scale = Scale.parse("1-5")
    found = Distribution(scale, [math.log(mass / 5)] * 5)
    score = Score.from_distribution("m", found, estimator=Estimator(), threshold=2.0)
    assert score.value == pytest.approx(3.0)
    assert score.passed is passed


@pytest.mark.parametrize("gates", [[gate("mean", ">= 1")], [gate("mean_low", ">= 1")]])
def test_a_mean_over_noise_fails(gates):
    (told,) = failures(gates, [summary(0.05)])
    assert "label mass 0.05 is under 0.1" in told
    assert not failures(gates, [summary(0.5)])


def test_a_threshold_over_noise_fails_and_nothing_else_does():
    assert failures([], [summary(0.003, threshold=2.0)])
    assert not failures([], [summary(0.003)])
    assert not failures([gate("unscored", "<= 0")], [summary(0.003)])


def test_a_gate_of_the_mass_goes_before():
    given = [gate("mean", ">= 1"), gate("label_mass", ">= 0")]
    assert not failures(given, [summary(0.003, threshold=2.0)])
    assert len(failures([gate("mean", ">= 1"), gate("label_mass", ">= 0.5")], [summary(0.3)])) == 1


def test_a_gate_applies_to_each_result_that_it_concerns():
    one = summary(0.9)
    gates = [gate("mean", ">= 1"), gate("mean", ">= 1", "other")]
    assert [found.gate.metric for found in outcomes(gates, [one], ["m"])] == ["m"]
    assert [found.gate.metric for found in outcomes(gates[:1], [one, one])] == ["m", "m"]


def test_what_is_not_known_is_not_low():
    told = summary(math.nan)
    assert math.isnan(told.label_mass)
    assert math.isnan(told.low_mass_share)
    assert not failures([gate("mean", ">= 1")], [told])


def test_the_warning_says_how_low_it_is():
    assert "does not answer" in mass_remark(summary(0.05))
    assert "it is low" in mass_remark(summary(0.5))
    tally = Tally("m")
    for number in range(1000):
        tally.add("", number + 1, Score("m", value=1.0, label_mass=0.4 if number < 8 else 0.99))
    assert mass_remark(tally.summary()).startswith("label mass below 0.9 in 0.8% of the scored rows, but not on av")


def partly(scored, rows, mass=0.9):
    tally = Tally("m")
    for number in range(rows):
        error = None if number < scored else "no text"
        value, found = (3.0 + number % 2 / 10, mass) if error is None else (math.nan, math.nan)
        tally.add(f"row {number}", number, Score("m", value=value, label_mass=found, error=error, threshold=2.0))
    return tally.summary()


@pytest.mark.parametrize(("figure", "text"), [("mean", ">= 1"), ("mean_low", ">= 1"), ("label_mass", ">= 0.1")])
def test_a_gate_of_a_mean_needs_nine_rows_of_ten(figure, text):
    (told, *_) = failures([gate(figure, text)], [partly(3, 48)])
    assert "3 of 48 rows have a score, fewer than the 90%" in told
    assert "`max_unscored=N`" in told
    assert "the key unscored" in told
    assert failures([gate(figure, text)], [partly(89, 100)])
    assert not failures([gate(figure, text)], [partly(90, 100)])


@pytest.mark.parametrize("text", ["<= 45", "<= 95%"])
def test_a_gate_of_the_unscored_rows_decides_instead(text):
    given = [gate("mean", ">= 1"), gate("unscored", text)]
    assert not failures(given, [partly(3, 48)])
    (told,) = failures(given, [partly(2, 48)] if "45" in text else [partly(1, 48)])
    assert "rows are unscored" in told


def test_no_gate_of_a_figure_needs_no_rows():
    assert not failures([], [partly(3, 48)])
    assert not failures([gate("label_mass", ">= 0")], [partly(3, 48)])
    assert not failures([gate("mean", ">= 1", "other")], [partly(3, 48)])


def test_a_mean_without_an_interval_fails_the_gate_of_its_lower_end_and_says_why():
    tally = Tally("m")
    for number in range(20):
        tally.add(f"row {number}", number, Score("m", value=3.0, label_mass=0.9))
    found = tally.summary()
    assert math.isnan(found.low)
    (told,) = failures([gate("mean_low", ">= 1")], [found])
    assert told == f"the lower end of the mean's interval is missing: {found.interval.warning}"
    assert found.interval.warning
    assert not failures([gate("mean", ">= 1")], [found])
