"""Scales, distributions, estimators and scores, against independent arithmetic."""

from __future__ import annotations

import json
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from geval_local.errors import Cause, ConfigurationError, ErrorCode, ScaleError
from geval_local.scale import Scale
from geval_local.score import LEAST_LABEL_MASS, Distribution, Estimator, Score, estimate

ONE_TO_FIVE = Scale.parse("1-5")


# --- reading scales ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "labels", "values"),
    [
        ("1-5", ("1", "2", "3", "4", "5"), (1, 2, 3, 4, 5)),
        ("1-3", ("1", "2", "3"), (1, 2, 3)),
        ("0-1", ("0", "1"), (0, 1)),
        ("0-100", tuple(map(str, range(101))), tuple(range(101))),
        ("0-1000", tuple(map(str, range(1001))), tuple(range(1001))),
        (" 1 – 5 ", ("1", "2", "3", "4", "5"), (1, 2, 3, 4, 5)),
        ("1..3", ("1", "2", "3"), (1, 2, 3)),
        ("1 to 3", ("1", "2", "3"), (1, 2, 3)),
        ("-2-2", ("-2", "-1", "0", "1", "2"), (-2, -1, 0, 1, 2)),
        ("-3--1", ("-3", "-2", "-1"), (-3, -2, -1)),
        ("0-1 step 0.25", ("0", "0.25", "0.5", "0.75", "1"), (0, 0.25, 0.5, 0.75, 1)),
        ("0-10, step 5", ("0", "5", "10"), (0, 5, 10)),
        ("1.5-2.5 step 0.5", ("1.5", "2", "2.5"), (1.5, 2, 2.5)),
        ("0-1 step 0.1", tuple(f"{n / 10:g}" for n in range(11)), tuple(n / 10 for n in range(11))),
        ("Yes/No", ("Yes", "No"), (1, 0)),
        (" good / bad ", ("good", "bad"), (1, 0)),
        ({"Yes": 1, "No": 0}, ("Yes", "No"), (1, 0)),
        ({"poor": 1, "fair": 2.5, "good": "3"}, ("poor", "fair", "good"), (1, 2.5, 3)),
        ({1: 10, 2: 20}, ("1", "2"), (10, 20)),
        ([1, 2, 4, 8], ("1", "2", "4", "8"), (1, 2, 4, 8)),
        ([0.5, 1.0, "2"], ("0.5", "1", "2"), (0.5, 1, 2)),
        ([1e-05, 1], ("0.00001", "1"), (1e-05, 1)),
        ([-1, 0, 1], ("-1", "0", "1"), (-1, 0, 1)),
    ],
)
def test_parse_reads_every_written_form(spec, labels, values):
    scale = Scale.parse(spec)
    assert scale.labels == labels
    assert scale.values == values


def test_parse_passes_a_scale_through():
    assert Scale.parse(ONE_TO_FIVE) is ONE_TO_FIVE


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("five", "cannot read the scale 'five'"),
        ("", "cannot read the scale ''"),
        ("Yes/", "cannot read the scale 'Yes/'"),
        ("good/fair/poor", "cannot read the scale 'good/fair/poor'"),
        ("5-1", "is empty: it needs low < high"),
        ("3-3", "is empty: it needs low < high"),
        ("1-5 step 0", "a step above 0"),
        ("1-5 step -1", "a step above 0"),
        ("0-1 step 0.3", "does not reach 1 in steps of 0.3"),
        ("0-1001", "has 1002 labels; at most 1001"),
        (5, "cannot be read from int"),
        (True, "cannot be read from bool"),
        (None, "cannot be read from NoneType"),
        ({True: 1, False: 0}, "the label True was read as a boolean"),
        ({None: 1, "some": 0}, "a label of the scale is empty or null"),
        ({"a": True, "b": 0}, "the value of label 'a' is not a number: True"),
        ({"a": "high", "b": 0}, "the value of label 'a' is not a number: 'high'"),
        ({"a": None, "b": 0}, "the value of label 'a' is not a number: None"),
        (["low", "high"], "a label of a list scale is not a number: 'low'"),
        ({"a": math.nan, "b": 0}, "the value of label 'a' is not finite: nan"),
        ({"a": "inf", "b": 0}, "the value of label 'a' is not finite: inf"),
        ({"a": 1, " a ": 0}, "more than once: a"),
        ("Yes/Yes", "more than once: Yes"),
        ([1, 1.0], "more than once: 1"),
        ({"a": 1, "  ": 0}, "a label of the scale is empty"),
        ({"a": 1}, "at least two labels"),
        ({}, "at least two labels"),
        ([], "at least two labels"),
        ({"a": 2, "b": 2}, "all labels of the scale have the same value 2"),
        (list(range(1002)), "at most 1001 labels, this one has 1002"),
    ],
)
def test_parse_refuses_with_a_reason(spec, message):
    with pytest.raises(ScaleError) as caught:
        Scale.parse(spec)
    assert message in str(caught.value)


@pytest.mark.parametrize("spec", ["five", "5-1", 5, {"a": None, "b": 1}])
def test_a_scale_that_cannot_be_read_names_the_forms_that_can(spec):
    with pytest.raises(ScaleError) as caught:
        Scale.parse(spec)
    assert '"1-5"' in caught.value.hint
    assert '"Yes/No"' in caught.value.hint


def test_labels_and_values_must_pair_up():
    with pytest.raises(ScaleError, match="2 labels, 3 values"):
        Scale(("a", "b"), (1, 2, 3))


@pytest.mark.parametrize(
    ("spec", "text", "is_numeric"),
    [
        ("1-5", "1-5", True),
        ("0-100", "0-100", True),
        ([3, 2, 1], "1-3", True),
        ("-2-2", "-2 to 2", True),
        ("0-1 step 0.25", "0-1 in steps of 0.25", True),
        ([1, 2, 4, 8], "1/2/4/8", True),
        ("Yes/No", "Yes/No", False),
        ({"poor": 1, "fair": 2, "good": 3}, "poor/fair/good", False),
        ({"1": 10, "2": 20}, "1/2", False),
    ],
)
def test_text_names_every_label_that_the_judge_may_write(spec, text, is_numeric):
    scale = Scale.parse(spec)
    assert scale.text == text
    assert scale.is_numeric is is_numeric


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("-2-2", "-2 to 2"),
        ([1, 2, 4, 8], "1 / 2 / 4 / 8"),  # a label after a space has the tokens of an answer
        ("Yes/No", "Yes / No"),
        ({"poor": 1, "fair": 2, "good": 3}, "labels: poor / fair / good"),  # and a parenthesis has none after it
        ({"好": 3, "中": 2, "差": 1}, "labels: 好 / 中 / 差"),
    ],
)
def test_form_shows_labels_in_the_tokens_of_an_answer(spec, shown):
    assert Scale.parse(spec).shown == shown


@pytest.mark.parametrize(
    ("spec", "written"),
    [
        ("1-5", "1-5"),
        ("1 to 5", "1-5"),
        ("0-1 step 0.25", "0-1 step 0.25"),
        ("-2-2", "-2-2"),
        ("Yes/No", "Yes/No"),
        ({"Yes": 0, "No": 1}, {"Yes": 0.0, "No": 1.0}),
        ([1, 2, 4, 8], {"1": 1.0, "2": 2.0, "4": 4.0, "8": 8.0}),
        ([3, 2, 1], {"3": 3.0, "2": 2.0, "1": 1.0}),
        ({"01": 1, "02": 2}, {"01": 1.0, "02": 2.0}),
        ({"a/b": 1, "c": 0}, {"a/b": 1.0, "c": 0.0}),
    ],
)
def test_spec_is_the_short_form(spec, written):
    assert Scale.parse(spec).spec == written


def test_normalize_maps_ends_and_middle_and_keeps_nan():
    scale = Scale.parse("-2-2")
    assert [scale.normalize(value) for value in (-2, 0, 1, 2)] == [0, 0.5, 0.75, 1]
    assert math.isnan(scale.normalize(math.nan))


def test_the_value_array_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        ONE_TO_FIVE.array[0] = 9


_numbers = st.integers(-1000, 1000).map(lambda n: n / 8)
_labels = st.text(min_size=1, max_size=6).filter(str.strip)


@st.composite
def scales(draw, max_labels=9):
    labels = draw(st.lists(_labels, min_size=2, max_size=max_labels, unique_by=str.strip))
    values = draw(st.lists(_numbers, min_size=len(labels), max_size=len(labels)))
    assume(len(set(values)) > 1)
    return Scale(tuple(labels), tuple(values))


@given(scales())
def test_spec_reads_back(scale):
    assert Scale.parse(scale.spec) == scale


@given(st.integers(-50, 50), st.integers(1, 40), st.sampled_from(["1", "2", "0.5", "0.25", "0.1", "0.01"]))
def test_ranges_hold_exactly_their_points(low, steps, step):
    high = Decimal(low) + steps * Decimal(step)
    scale = Scale.parse(f"{low}-{high} step {step}")
    assert scale.values == tuple(float(low + index * Fraction(step)) for index in range(steps + 1))
    assert [Fraction(label) for label in scale.labels] == [low + index * Fraction(step) for index in range(steps + 1)]
    assert Scale.parse(scale.spec) == scale


# --- distributions ----------------------------------------------------------------------------------------------------

_logprob = st.floats(-60, 0) | st.floats(-1e5, 0) | st.just(-math.inf)


@st.composite
def distributions(draw):
    scale = draw(scales())
    logprobs = draw(st.lists(_logprob, min_size=len(scale.labels), max_size=len(scale.labels)))
    assume(any(math.isfinite(value) for value in logprobs))
    return Distribution(scale, logprobs)


def reference_probabilities(logprobs):
    """Normalise in 80-digit decimals, where exp(-1e5) is an ordinary number."""
    with localcontext() as context:
        context.prec = 80
        weights = [Decimal(0) if math.isinf(value) else Decimal(float(value)).exp() for value in logprobs]
        total = sum(weights)
        return [weight / total for weight in weights], total


@given(distributions())
def test_probabilities_score_and_mass_equal_high_precision_arithmetic(distribution):
    expected, total = reference_probabilities(distribution.label_logprobs)
    np.testing.assert_allclose(distribution.p, [float(p) for p in expected], rtol=1e-12, atol=1e-300)
    mean = sum((p * Decimal(v) for p, v in zip(expected, distribution.scale.values, strict=True)), Decimal(0))
    variance = sum(
        (p * (Decimal(v) - mean) ** 2 for p, v in zip(expected, distribution.scale.values, strict=True)), Decimal(0)
    )
    assert distribution.score == pytest.approx(float(mean), abs=1e-10)
    assert distribution.std == pytest.approx(math.sqrt(variance), abs=1e-5)
    assert distribution.label_mass == pytest.approx(float(total), rel=1e-12, abs=1e-300)


@given(distributions())
def test_the_figures_keep_their_bounds(distribution):
    scale, p = distribution.scale, distribution.p
    assert sum(distribution.probabilities.values()) == pytest.approx(1, abs=1e-12)
    assert list(distribution.probabilities) == list(scale.labels)
    assert (p >= 0).all()
    assert scale.low <= distribution.score <= scale.high
    assert 0 <= distribution.std <= (scale.high - scale.low) / 2 + 1e-9
    assert 0 <= distribution.entropy <= math.log(len(p)) + 1e-12
    assert 0 <= distribution.margin <= 1
    assert distribution.probabilities[distribution.mode] == p.max()


@given(distributions(), st.floats(-500, 500))
def test_only_ratios_of_label_probabilities_matter(distribution, shift):
    shifted = Distribution(distribution.scale, distribution.label_logprobs + shift)
    np.testing.assert_allclose(shifted.p, distribution.p, rtol=1e-9, atol=1e-300)
    assert shifted.score == pytest.approx(distribution.score, abs=1e-8)


@given(distributions(), _numbers)
def test_probability_at_least_sums_the_labels_from_there_up(distribution, threshold):
    reaching = [
        p for p, value in zip(distribution.p, distribution.scale.values, strict=True) if Fraction(value) >= threshold
    ]
    assert distribution.probability_at_least(threshold) == pytest.approx(math.fsum(reaching), abs=1e-12)
    assert distribution.probability_at_least(threshold) <= 1
    assert distribution.probability_at_least(distribution.scale.low) == pytest.approx(1, abs=1e-12)
    assert distribution.probability_at_least(distribution.scale.high + 1) == 0


@given(distributions())
def test_margin_is_the_gap_between_the_two_likeliest(distribution):
    first, second = sorted(distribution.p.tolist(), reverse=True)[:2]
    assert distribution.margin == first - second


def test_a_worked_example():
    """Half of the mass on 4, the rest as written: figures by hand."""
    distribution = Distribution(ONE_TO_FIVE, np.log([0.02, 0.04, 0.16, 0.4, 0.18]))
    assert distribution.label_mass == pytest.approx(0.8)
    assert distribution.probabilities == pytest.approx({"1": 0.025, "2": 0.05, "3": 0.2, "4": 0.5, "5": 0.225})
    assert distribution.score == pytest.approx(3.85)
    assert distribution.std == pytest.approx(math.sqrt(0.8275))
    assert distribution.mode == "4"
    assert distribution.margin == pytest.approx(0.275)
    assert distribution.probability_at_least(4) == pytest.approx(0.725)
    assert distribution.probability_at_least(3.5) == pytest.approx(0.725)


def test_a_uniform_and_a_certain_distribution():
    uniform = Distribution(ONE_TO_FIVE, [-7.0] * 5)
    assert uniform.entropy == pytest.approx(math.log(5))
    assert uniform.score == 3
    assert uniform.std == pytest.approx(math.sqrt(2))
    assert uniform.margin == 0
    assert uniform.mode == "1"
    certain = Distribution(ONE_TO_FIVE, [-math.inf, -math.inf, -math.inf, -0.5, -math.inf])
    assert (certain.score, certain.entropy, certain.std, certain.margin, certain.mode) == (4, 0, 0, 1, "4")
    assert certain.label_mass == pytest.approx(math.exp(-0.5))
    assert certain.probabilities["1"] == 0


def test_a_uniform_scale_of_1001_labels_keeps_its_mass():
    distribution = Distribution(Scale.parse("0-1000"), np.full(1001, -math.log(1001)))
    assert distribution.label_mass == pytest.approx(1, abs=1e-12)
    assert distribution.score == pytest.approx(500, abs=1e-9)
    assert 0 <= distribution.sample_mean(20, seed=0) <= 1000


def test_very_small_probabilities_do_not_vanish():
    near = Distribution(ONE_TO_FIVE, [-1e5, -1e5 - math.log(3), -math.inf, -2e5, -math.inf])
    assert near.p[:2].tolist() == pytest.approx([0.75, 0.25])
    assert near.score == pytest.approx(1.25)
    assert near.label_mass == 0
    assert math.isfinite(near.entropy)


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        ([-1, -1, -1], "expected 5 label log-probabilities"),
        ([[-1] * 5], "expected 5 label log-probabilities"),
        ([-1, -1, -1, -1, math.nan], "NaN or infinite"),
        ([-1, -1, -1, -1, math.inf], "NaN or infinite"),
        ([-math.inf] * 5, "no label of the scale has any probability"),
    ],
)
def test_a_distribution_refuses_what_is_none(logprobs, message):
    with pytest.raises(ValueError, match=message):
        Distribution(ONE_TO_FIVE, logprobs)


# --- estimators -------------------------------------------------------------------------------------------------------

SKEWED = Distribution(ONE_TO_FIVE, np.log([0.1, 0.1, 0.2, 0.35, 0.25]))


def test_sample_mean_is_seeded_and_converges_at_the_known_rate():
    assert SKEWED.sample_mean(20, seed=3) == SKEWED.sample_mean(20, seed=3)
    assert len({SKEWED.sample_mean(20, seed=seed) for seed in range(30)}) > 5
    means = np.array([SKEWED.sample_mean(20, seed=seed) for seed in range(2000)])
    standard_error = SKEWED.std / math.sqrt(20)
    assert means.mean() == pytest.approx(SKEWED.score, abs=4 * standard_error / math.sqrt(2000))
    assert means.std() == pytest.approx(standard_error, rel=0.08)
    assert SKEWED.sample_mean(1_000_000, seed=1) == pytest.approx(SKEWED.score, abs=0.006)


@given(distributions(), st.integers(1, 50), st.integers(0, 2**40))
def test_every_estimate_lies_on_the_scale(distribution, n, seed):
    for estimator in (Estimator(), Estimator("mode"), Estimator("sample", n=n, seed=seed)):
        value = estimate(distribution, estimator, sample_key=seed)
        assert distribution.scale.low <= value <= distribution.scale.high


def test_a_mean_of_equal_draws_does_not_leave_the_scale():
    """3 * 0.1 / 3 is above 0.1 in float, 6 * 0.1 / 6 below."""
    certain = Distribution(Scale((".1", "0"), (0.1, 0.0)), [0.0, -math.inf])
    means = [certain.sample_mean(n, seed=0) for n in range(1, 50)]
    assert max(means) == 0.1
    assert min(means) == pytest.approx(0.1, rel=1e-14)


def test_estimators_differ_as_they_should():
    assert estimate(SKEWED, Estimator()) == SKEWED.score == pytest.approx(3.55)
    assert estimate(SKEWED, Estimator("mode")) == 4
    drawn = [estimate(SKEWED, Estimator("sample", n=20, seed=1), sample_key=key) for key in (7, 7, 8, 9, 10)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    assert all(value * 20 == pytest.approx(round(value * 20)) for value in drawn)


def test_mode_is_the_value_of_the_label_not_its_place():
    distribution = Distribution(Scale.parse({"poor": 10, "good": 70, "fair": 30}), np.log([0.2, 0.3, 0.5]))
    assert estimate(distribution, Estimator("mode")) == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "middle"}, "unknown estimator 'middle'"),
        ({"kind": "sample", "n": 0}, "at least once, not 0"),
        ({"kind": "sample", "seed": -1}, "a seed is not negative: -1"),
    ],
)
def test_estimator_refuses(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Estimator(**arguments)


def test_zero_draws_are_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        SKEWED.sample_mean(0, seed=0)


def test_estimator_text_for_the_signature():
    texts = [Estimator().text, Estimator("mode").text, Estimator("sample", n=5, seed=2).text]
    assert texts == ["exact", "mode", "sample(n=5,seed=2)"]


# --- scores -----------------------------------------------------------------------------------------------------------


@given(distributions())
def test_a_score_is_strict_json(distribution):
    threshold = distribution.scale.high
    score = Score.from_distribution("m", distribution, estimator=Estimator(), threshold=threshold)
    record = score.to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["score"] == distribution.score
    assert 0 <= record["normalized"] <= 1
    answers = distribution.label_mass >= LEAST_LABEL_MASS
    assert record["passed"] == (distribution.score >= threshold and answers)


def test_a_score_reports_every_figure():
    score = Score.from_distribution(
        "m",
        SKEWED,
        estimator=Estimator("mode"),
        threshold=4,
        other_tokens=((" the", 0.25),),
        prompt_tokens=12,
        dropped_tokens=3,
    )
    assert score.is_scored
    record = json.loads(json.dumps(score.to_dict(), allow_nan=False))
    assert record == {
        "score": 4.0,
        "normalized": 0.75,
        "probabilities": pytest.approx({"1": 0.1, "2": 0.1, "3": 0.2, "4": 0.35, "5": 0.25}),
        "label_mass": pytest.approx(1),
        "std": SKEWED.std,
        "entropy": SKEWED.entropy,
        "mode": "4",
        "margin": pytest.approx(0.1),
        "threshold": 4,
        "threshold_probability": pytest.approx(0.6),
        "passed": True,
        "other_tokens": [[" the", 0.25]],
        "prompt_tokens": 12,
        "dropped_tokens": 3,
    }


def test_without_a_threshold_nothing_passes_or_fails():
    score = Score.from_distribution("m", SKEWED, estimator=Estimator())
    assert score.passed is None
    assert score.threshold_probability is None
    assert "passed" not in score.to_dict()


def test_an_unscored_sample_is_not_zero():
    score = Score.unscored("m", Cause("the field 'output' is empty", ErrorCode.EMPTY_FIELD), prompt_tokens=7)
    assert not score.is_scored
    assert math.isnan(score.value)
    assert math.isnan(score.normalized)
    assert score.passed is None
    assert json.loads(json.dumps(score.to_dict(), allow_nan=False)) == {
        "score": None,
        "error": "the field 'output' is empty",
        "error_code": "empty_field",
        "prompt_tokens": 7,
    }
