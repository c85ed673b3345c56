"""Closing figures: the interval against theory and by seed, unscored rows counted and never averaged in."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from intervals import hall_interval
from scipy import stats

from geval_local.errors import Cause, ErrorCode
from geval_local.grouping import DocumentRule, Documents
from geval_local.io.samples import Sample
from geval_local.score import Score
from geval_local.statistics.interval import mean_interval
from geval_local.summary import ROWS_NAMED, Tally


def scored(value: float, mass: float = 1.0, **rest: object) -> Score:
    return Score("m", value=value, label_mass=mass, probabilities={"1": 1.0}, **rest)


def take(tally: Tally, sample: Sample, score: Score, place: int = 0) -> None:
    tally.add(sample.where, sample.row, score, place)


def documents(groups: Iterable[int]) -> Documents:
    return Documents.of(DocumentRule(group_by="doc"), ({"doc": group} for group in groups))


def test_the_interval_of_independent_rows_is_students_with_skewness():
    values = np.random.default_rng(3).normal(2.0, 0.5, size=40)
    found = mean_interval(values)
    assert (found.low, found.high) == pytest.approx(hall_interval(values))
    assert found.error == pytest.approx(stats.sem(values))
    assert (found.units, found.warning) == (40, "")


def test_equal_values_have_no_spread():
    found = mean_interval([0.1] * 1000)
    assert found.error == 0
    assert found.warning == "all documents are alike, and allow no interval"


def test_rows_of_one_document_are_no_more_evidence_than_one():
    values = np.random.default_rng(4).normal(size=20)
    tenfold = mean_interval(np.repeat(values, 10), np.repeat(np.arange(20), 10))
    once = mean_interval(values)
    assert (tenfold.low, tenfold.high) == pytest.approx((once.low, once.high))


def test_intervals_cover_as_often_as_they_say_with_ten_documents():
    rng = np.random.default_rng(5)
    covered = {"documents": 0, "rows": 0}
    groups = np.repeat(np.arange(10), 16)
    for _ in range(300):
        values = np.sqrt(0.3) * rng.normal(size=10)[groups] + np.sqrt(0.7) * rng.normal(size=160)
        for name, found in (("documents", mean_interval(values, groups)), ("rows", mean_interval(values))):
            covered[name] += found.low <= 0 <= found.high
    assert 275 <= covered["documents"] <= 296
    assert covered["rows"] < 220


def test_an_interval_needs_two_documents_and_finite_values_and_warns_where_it_is_short():
    assert math.isnan(mean_interval([3.0]).low)
    assert math.isnan(mean_interval([3.0, 4.0], ["a", "a"]).low)
    alike = mean_interval([3.0, 3.0], ends=(1.0, 5.0))
    assert math.isnan(alike.low)
    assert "alike" in alike.warning
    assert mean_interval([1.0, 2.0, 5.0]).warning == "only 3 documents"
    assert "skewed" in mean_interval([1.0] * 29 + [5.0]).warning
    with pytest.raises(ValueError, match="finite"):
        mean_interval([1.0, math.nan])


@pytest.mark.parametrize(("yes", "rows"), [(0, 10), (3, 10), (10, 10), (1, 40)])
def test_values_at_both_ends_have_the_interval_of_jeffreys(yes, rows):
    low, high = stats.beta(yes + 0.5, rows - yes + 0.5).ppf([0.025, 0.975])
    low, high = (0.0 if not yes else low), (1.0 if yes == rows else high)
    for bottom, top in ((0.0, 1.0), (1.0, 5.0)):
        values = [top] * yes + [bottom] * (rows - yes)
        found = mean_interval(values, ends=(bottom, top))
        assert found.value == pytest.approx(np.mean(values))
        assert (found.low, found.high) == pytest.approx((bottom + (top - bottom) * low, bottom + (top - bottom) * high))
        assert found.error > 0
    # Rows that repeat their document say nothing new.
    tenfold = mean_interval([1.0] * 10 * yes + [0.0] * 10 * (rows - yes), np.arange(10 * rows) // 10, ends=(0.0, 1.0))
    width = high - low
    assert 0.95 * width < tenfold.high - tenfold.low < 1.3 * width


@pytest.mark.parametrize(("documents", "rows", "share"), [(5, 1, 0.3), (10, 4, 0.06), (30, 4, 0.06), (30, 1, 0.9)])
def test_intervals_of_two_values_cover_the_truth_where_rows_share_documents(documents, rows, share):
    """Student's covered .83, .54, .84 and .83 here."""
    rng = np.random.default_rng(documents + rows)
    covered = []
    for _ in range(400):
        chance = rng.beta(share * 0.5, (1 - share) * 0.5, size=documents) if rows > 1 else np.full(documents, share)
        values = (rng.random((rows, documents)) < chance).T.ravel().astype(float)
        found = mean_interval(values, np.arange(values.size) // rows, ends=(0.0, 1.0))
        covered.append(found.low <= share <= found.high)
    assert 0.90 < np.mean(covered) <= 0.995


def test_an_interval_stays_on_the_scale_and_is_students_in_its_middle():
    for values in ([5.0] * 9 + [3.0], [1.0, 1.0, 1.5, 4.0], [0.99, 0.999, 0.9999, 0.5]):
        ends = (0.0, 1.0) if max(values) < 1 else (1.0, 5.0)
        free, found = mean_interval(values), mean_interval(values, ends=ends)
        assert free.low < ends[0] or free.high > ends[1]
        assert ends[0] < found.low < found.value < found.high < ends[1]
        assert found.error == free.error
        assert "skewed" not in found.warning
    values = 3 + 0.1 * np.random.default_rng(0).normal(size=50)
    found, expected = mean_interval(values, ends=(1.0, 5.0)), stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_a_summary_takes_the_ends_of_the_scale():
    tally = Tally("m", ends=(0.0, 1.0))
    for row in range(10):
        take(tally, Sample({}, row + 1), scored(1.0), row)
    ten = documents(range(10))
    for summary in (tally.summary(), tally.summary(ten)):
        assert (summary.high, summary.low) == pytest.approx((1.0, stats.beta(10.5, 0.5).ppf(0.025)))


def test_documents_decide_the_interval_of_a_summary():
    tally = Tally("m")
    for row in range(40):
        take(tally, Sample({}, row + 1), scored(float(row // 4)), row)
    grouped, single = tally.summary(documents(row // 4 for row in range(40))), tally.summary()
    assert (grouped.interval.units, single.interval.units) == (10, 40)
    assert grouped.interval.error > 1.8 * single.interval.error
    assert grouped.to_dict()["documents"] == 10
    assert grouped.to_dict()["grouping"] == "rows with the same doc count as one document"


def test_unscored_rows_are_counted_and_enter_no_mean():
    tally = Tally("m")
    for row, value in enumerate([1.0, 3.0, 5.0], start=1):
        take(tally, Sample({}, row, "f"), scored(value, mass=[1.0, 0.5, 0.9][row - 1]))
    take(tally, Sample({}, 4, "f"), Score.unscored("m", "f, row 4: the field 'output' is empty\nFill it in."))
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
        take(tally, Sample({}, row, "f"), Score.unscored("m", f"the prompt has {5000 + row} tokens"))
    take(tally, Sample({}, 10, "f"), Score.unscored("m", "f, row 10: the field 'source' is null"))
    summary = tally.summary()
    assert [(reason.count, reason.text) for reason in summary.reasons] == [
        (9, "the prompt has 5001 tokens"),
        (1, "the field 'source' is null"),
    ]
    assert summary.reasons[0].rows == tuple(range(1, ROWS_NAMED + 1))


def test_rows_of_one_code_are_one_reason_with_the_first_row_as_its_example():
    tally = Tally("m")
    for row, name in enumerate(("source", "output", "source"), start=1):
        take(tally, Sample({}, row), Score.unscored("m", Cause(f"the field {name!r} is empty", ErrorCode.EMPTY_FIELD)))
    take(tally, Sample({}, 4), Score.unscored("m", Cause("the prompt has 9 tokens", ErrorCode.TOO_LONG)))
    told = [(reason.code, reason.count, reason.text, reason.rows) for reason in tally.summary().reasons]
    assert told == [
        ("empty_field", 3, "the field 'source' is empty", (1, 2, 3)),
        ("too_long", 1, "the prompt has 9 tokens", (4,)),
    ]


def test_passed_share_counts_scored_rows_only():
    tally = Tally("m")
    take(tally, Sample({}, 1), scored(4.0, threshold=3.0, passed=True))
    take(tally, Sample({}, 2), scored(2.0, threshold=3.0, passed=False))
    take(tally, Sample({}, 3), Score.unscored("m", "empty"))
    summary = tally.summary()
    assert summary.threshold == 3.0
    assert summary.passed_share == 0.5


def test_nothing_scored_is_null_and_never_zero():
    tally = Tally("m")
    take(tally, Sample({}, 1), Score.unscored("m", "empty"))
    record = tally.summary().to_dict()
    assert record["mean"] is None
    assert record["interval"] is None
    assert record["label_mass"]["mean"] is None
    assert record["passed_share"] is None
