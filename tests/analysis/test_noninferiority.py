"""Not worse than a baseline: against draws, binomials and stakes, and on data of known truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from geval_local.errors import ConfigurationError
from geval_local.statistics.noninferiority import not_worse, not_worse_so_far


def test_the_more_documents_fall_the_surer_the_gate():
    for documents in (5, 10, 12, 20, 40):
        p = []
        for fallen in range(1, documents + 1):
            found = not_worse([-1.0] * fallen + [0.0] * (documents - fallen), span=4.0)
            p.append(found.p)
            assert found.passed is (fallen < 5 or found.p > 0.05), (documents, fallen)
        assert p == sorted(p, reverse=True)
        assert all(own <= 0.05 for own in p[5:])
    # All of few fall by the same: the sign test.
    assert not_worse([-1.0] * 10).p == pytest.approx(2.0**-10)
    assert not_worse([-1.0] * 11 + [-0.9]).p < 2.0**-11
    assert not_worse([1.0] * 12).p > 0.99
    assert not_worse([0.0] * 12).passed


def test_so_few_documents_cannot_decide():
    for differences in ([-3.0], [-3.0, -3.0], [0.0], [0.0, 0.0]):
        found = not_worse(differences, span=4.0)
        assert found.passed is None
        assert math.isnan(found.p)
    assert not_worse([-1.0, -1.1, -1.05]).passed is False


def test_flips_decide_for_few_documents_and_student_for_symmetric_ones_of_many():
    rng = np.random.default_rng(1)
    few = rng.normal(-0.3, 0.5, 9)
    signs = np.array(list(itertools.product((-1, 1), repeat=9)))
    assert not_worse(few).p >= np.mean(signs @ np.abs(few) <= few.sum() + 1e-12)
    many = rng.normal(-0.01, 1, 3000)
    many = np.concatenate([many, -0.02 - many])  # no skewness
    assert not_worse(many).p == pytest.approx(stats.ttest_1samp(many, 0, alternative="less").pvalue, rel=0.1)


@pytest.mark.parametrize("documents", [6, 8, 12, 20])
def test_few_that_gain_much_and_many_that_lose_little_are_no_drop(documents):
    rng = np.random.default_rng(documents)
    failed = [not_worse(rng.exponential(size=documents) - 1).passed is False for _ in range(600)]
    assert np.mean(failed) <= 0.09  # .065 and two and a half standard errors


def test_the_bound_with_a_margin_is_that_of_random_weights():
    rng = np.random.default_rng(1)
    for values in (rng.normal(0.02, 0.3, 25), rng.exponential(size=8) - 1, np.repeat([0.0, -1.0], [25, 2])):
        found = not_worse(values, 0.5, span=4.0)
        weights = rng.exponential(size=(200_000, values.size + 1))
        means = weights @ np.append(values, -4.0) / weights.sum(axis=1)
        assert found.low == pytest.approx(np.quantile(means, 0.05), abs=0.03)
        assert found.p == pytest.approx(np.mean(means <= -0.5), rel=0.06, abs=5e-4)
        assert not_worse(values, -found.low + 1e-3, span=4.0).passed
        assert not not_worse(values, -found.low - 1e-3, span=4.0).passed
        assert not not_worse(values, 0.5).passed  # the scale is not known


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_equal_documents_are_bounded_by_their_number_whatever_the_rounding(noise):
    rng = np.random.default_rng(2)
    for documents in (20, 30):
        values = noise * rng.normal(size=documents)
        # Clopper and Pearson: none of 30 leaves a share of up to 1 - .05 ** (1 / 30).
        bound = 4.0 * (1 - 0.05 ** (1 / documents))
        found = not_worse(values, 0.2, span=4.0)
        assert found.low == pytest.approx(-bound, rel=0.02)
        assert not found.passed
        assert not_worse(values, 1.03 * bound, span=4.0).passed


@pytest.mark.parametrize("noise", [0.0, 1e-6, 0.1], ids=["equal", "rounded", "noisy"])
@pytest.mark.parametrize("documents", [12, 40, 100])
def test_a_sample_that_missed_the_failures_does_not_pass_too_often(documents, noise):
    """A twentieth of the documents falls by the whole scale, which is the margin."""
    rng = np.random.default_rng(documents)
    drawn = np.where(rng.random((250, documents)) < 0.05, -4.0, noise * rng.normal(size=(250, documents)))
    assert np.mean([not_worse(own, 0.2, span=4.0).passed for own in drawn]) <= 0.08
    assert np.mean([not_worse_so_far(own, 0.2, span=4.0).verdict == "passed" for own in drawn]) <= 0.08


def test_the_evidence_is_the_mean_capital_of_bets_on_the_scale():
    differences = np.array([0.1, -0.3, 0.0, 1.0])
    for sign, name in ((1, "p_passed"), (-1, "p_failed")):
        stakes, reached = [0.5**k for k in range(8)], []
        for upto in range(1, 5):
            gains = sign * (differences[:upto] + 0.2)
            reached.append(
                sum(s * math.prod(1 + s * g / (4 - sign * 0.2) for g in gains) for s in stakes) / sum(stakes)
            )
        found = getattr(not_worse_so_far(differences, 0.2, span=4.0), name)
        assert found == pytest.approx(min(1.0, 1 / max(reached)))


def test_looking_at_every_document_keeps_the_error():
    rng = np.random.default_rng(4)
    found = [not_worse_so_far(rng.normal(-0.2, 0.4, 150), 0.2, span=4.0) for _ in range(300)]
    assert sum(one.verdict == "passed" for one in found) <= 24  # .05 of 300, and two standard errors
    # Looking at every document with Student's t would not.
    naive = 0
    for _ in range(300):
        values = rng.normal(0, 0.4, 150)
        n = np.arange(1, 151)
        mean = np.cumsum(values) / n
        spread = np.sqrt(np.maximum(np.cumsum(values**2) / n - mean**2, 1e-12) * n / np.maximum(n - 1, 1))
        naive += bool((mean / spread * np.sqrt(n) > stats.t.ppf(0.95, np.maximum(n - 1, 1)))[49:].any())
    assert naive > 40


def test_a_clear_case_is_decided_early_and_stays_decided():
    rng = np.random.default_rng(5)
    good = not_worse_so_far(rng.normal(0.0, 0.3, 200), 0.3, span=4.0)
    assert (good.verdict, good.decided < 80) == ("passed", True)
    bad = not_worse_so_far(rng.normal(-0.9, 0.3, 200), 0.3, span=4.0)
    assert (bad.verdict, bad.decided < 80) == ("failed", True)
    turned = not_worse_so_far([*rng.normal(0.0, 0.3, 100), *rng.normal(-3, 0.3, 100)], 0.3, span=4.0)
    assert (turned.verdict, turned.documents) == ("passed", 200)
    # Documents that are all equal show that failures are rare, from enough of them on; without the scale nothing does.
    assert not_worse_so_far(np.zeros(60), 0.1, span=4.0).verdict == "open"
    assert not_worse_so_far(np.zeros(500), 0.1, span=4.0).verdict == "passed"
    assert not_worse_so_far(np.zeros(500), 0.1).verdict == "open"


def test_what_cannot_be_tested_is_refused():
    with pytest.raises(ConfigurationError, match="a margin is 0 or more, not -1"):
        not_worse([0.1, 0.2], -1.0)
    with pytest.raises(ValueError, match="finite numbers"):
        not_worse([0.1, math.nan], 0.1)
