"""Not worse than a baseline: against scipy, against likelihood ratios by quadrature, and on data of known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from geval_local.errors import ConfigurationError
from geval_local.statistics.noninferiority import FIRST_LOOK, not_worse, not_worse_so_far


def test_the_test_and_its_bound_are_students():
    differences = np.random.default_rng(1).normal(0.02, 0.3, 25)
    found = not_worse(differences, 0.1)
    cautious = [*differences, differences.min()]  # one made-up document that falls as far as the worst one did
    textbook = stats.ttest_1samp(cautious, -0.1, alternative="greater")
    assert found.p == pytest.approx(textbook.pvalue)
    assert found.low == pytest.approx(textbook.confidence_interval(0.95).low)
    assert found.is_shown is bool(textbook.pvalue < 0.05)
    assert not_worse(differences, -found.low + 1e-6).is_shown
    assert not not_worse(differences, -found.low - 1e-6).is_shown


def test_equal_candidates_keep_the_detectable_margin_in_four_of_five_cases():
    rng = np.random.default_rng(2)
    said = np.mean([not_worse(rng.normal(0, 0.4, 40), 0.1).detectable for _ in range(50)])
    kept = np.mean([not_worse(rng.normal(0, 0.4, 40), said).is_shown for _ in range(400)])
    assert 0.74 < kept < 0.86


def test_documents_that_hardly_differ_are_bounded_by_their_number():
    same = not_worse(np.zeros(30), 0.1, span=4.0)
    # Clopper and Pearson: none of 30 leaves a share of up to 1 - .05 ** (1 / 30).
    assert same.low == pytest.approx(-4.0 * (1 - 0.05 ** (1 / 30)))
    assert not same.is_shown
    assert not_worse(np.zeros(30), 0.5, span=4.0).is_shown
    assert not not_worse(np.zeros(30), 0.5).is_shown  # the scale is not known
    one_fell = np.zeros(30)
    one_fell[3] = -2.0
    assert not_worse(one_fell, 0.5, span=4.0).low < same.low
    assert not not_worse([0.1, 0.2], 0.3).is_shown


def test_the_evidence_is_the_likelihood_ratio_of_student():
    differences = np.random.default_rng(3).normal(0.1, 1.0, FIRST_LOOK)
    for sign, name in ((1, "p_passed"), (-1, "p_failed")):
        shifted = sign * (differences + 0.2)
        shifted = np.array([*shifted, shifted.min()])
        n = shifted.size
        t = shifted.mean() / shifted.std(ddof=1) * math.sqrt(n)
        density = stats.t.pdf(t, n - 1)
        mixed = integrate.quad(
            lambda d, t=t, n=n: 2 * stats.norm.pdf(d, 0, 0.5) * stats.nct.pdf(t, n - 1, d * math.sqrt(n)), 0, 6
        )[0]
        found = getattr(not_worse_so_far(differences, 0.2), name)
        assert found == pytest.approx(min(1.0, density / mixed), rel=1e-5)


def test_a_sample_that_missed_the_failures_does_not_pass_too_often():
    rng = np.random.default_rng(6)
    # A candidate that is much worse on one document in 18; its mean is lower by the margin.
    drawn = np.where(rng.random((500, 200)) < 1 / 18, -2.0, 0.0) + 0.05 * rng.normal(size=(500, 200))
    passed = np.mean([not_worse(own, 2 / 18, span=4.0).is_shown for own in drawn])
    assert passed <= 0.07
    # By the first look one sample in twenty has no failure at all.
    assert np.mean([not_worse_so_far(own, 2 / 18).verdict == "passed" for own in drawn]) <= 0.15


def test_looking_at_every_document_keeps_the_error():
    rng = np.random.default_rng(4)
    found = [not_worse_so_far(rng.normal(-0.2, 0.4, 150), 0.2) for _ in range(300)]
    assert sum(one.verdict == "passed" for one in found) <= 24  # .05 of 300, and two standard errors
    # Looking at every document with Student's t would not.
    naive = 0
    for _ in range(300):
        values = rng.normal(0, 0.4, 150)
        n = np.arange(1, 151)
        mean = np.cumsum(values) / n
        spread = np.sqrt(np.maximum(np.cumsum(values**2) / n - mean**2, 1e-12) * n / np.maximum(n - 1, 1))
        naive += bool((mean / spread * np.sqrt(n) > stats.t.ppf(0.95, np.maximum(n - 1, 1)))[FIRST_LOOK - 1 :].any())
    assert naive > 40


def test_a_clear_case_is_decided_early_and_stays_decided():
    rng = np.random.default_rng(5)
    good = not_worse_so_far(rng.normal(0.0, 0.3, 200), 0.3)
    assert (good.verdict, good.decided < 80) == ("passed", True)
    bad = not_worse_so_far(rng.normal(-0.6, 0.3, 200), 0.3)
    assert (bad.verdict, bad.decided < 80) == ("failed", True)
    turned = not_worse_so_far([*rng.normal(0.0, 0.3, 100), *rng.normal(-3, 0.3, 100)], 0.3)
    assert (turned.verdict, turned.documents) == ("passed", 200)
    assert not_worse_so_far(rng.normal(0.0, 0.3, FIRST_LOOK - 1), 5.0).verdict == "open"
    assert not_worse_so_far(np.zeros(500), 0.1).verdict == "open"  # nothing differs, so nothing is known of what could


def test_what_cannot_be_tested_is_refused():
    with pytest.raises(ConfigurationError, match="a margin is 0 or more, not -1"):
        not_worse([0.1, 0.2], -1.0)
    with pytest.raises(ValueError, match="finite numbers"):
        not_worse([0.1, math.nan], 0.1)
