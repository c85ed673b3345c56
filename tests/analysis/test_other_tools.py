"""Other people's code agrees, on random data: nlpstats by the authors of PERM-SYSTEMS, ppi-python by those of PPI++."""

from __future__ import annotations

import numpy as np
import pytest

from geval_local.statistics.coefficients import ALL_COEFFICIENTS
from geval_local.statistics.levels import draws_for, level_figures
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import compare

LEVELS = {"summary": "input", "pooled": "global", "system": "system"}


def table(seed, documents=9, systems=6, missing=0.1):
    """Two judges and people, shape (systems, documents), as nlpstats has it; ordinal ratings with ties and gaps."""
    rng = np.random.default_rng(seed)
    quality = rng.normal(size=(systems, 1)) + rng.normal(size=(systems, documents))
    human = np.clip(np.round(3 + quality + 0.4 * rng.normal(size=quality.shape)), 1, 5)
    first, second = (np.round(quality + spread * rng.normal(size=quality.shape), 1) for spread in (0.5, 1.4))
    gaps = rng.random(quality.shape) < missing
    for values in (human, first, second):
        values[gaps] = np.nan
    return first, second, human


def items(scores, human):
    return [
        ScoredItem(f"d{d}", f"s{s}", human[s, d], scores[s, d], key=f"{s}/{d}")
        for s, d in zip(*np.nonzero(np.isfinite(human)), strict=True)
    ]


@pytest.mark.parametrize("target", ["documents", "systems", "both"])
@pytest.mark.parametrize("level", ["summary", "pooled", "system"])
def test_every_draw_is_what_nlpstats_computes_of_the_drawn_matrix(level, target):
    correlations = pytest.importorskip("nlpstats.correlations.correlations", reason="nlpstats is not installed")
    first, _, human = table(1)
    own = items(first, human)
    draws = draws_for([own], level, target)
    if draws is None:  # a mean over documents has Student's interval
        return
    drawn = level_figures(own, level, target, draws=draws).figures.draws
    documents, systems = (f"d{d}" for d in range(9)), (f"s{s}" for s in range(6))
    times = draws.documents(tuple(documents)).astype(int), draws.systems(tuple(systems)).astype(int)
    compared = 0
    for draw in range(25):
        rows, columns = (np.repeat(np.arange(len(own[draw])), own[draw]) for own in reversed(times))
        x, z = first[np.ix_(rows, columns)], human[np.ix_(rows, columns)]
        if (np.isfinite(x).sum(axis=0) < 2).any() or np.isnan(x).all(axis=1).any():  # nlpstats takes neither
            continue
        for index, name in enumerate(ALL_COEFFICIENTS[:3]):
            theirs = correlations.correlate(x, z, LEVELS[level], name)
            assert drawn[draw, index] == pytest.approx(theirs, abs=1e-9, nan_ok=True)
            compared += 1
    assert compared > 20


@pytest.mark.parametrize("coefficient", ["spearman", "kendall"])
def test_permutation_tests_have_the_p_of_nlpstats(coefficient):
    permutation = pytest.importorskip("nlpstats.correlations.permutation", reason="nlpstats is not installed")
    first, second, human = table(3, documents=12, systems=7, missing=0.0)
    found = compare(items(first, human), items(second, human), "system", coefficient)
    assert "PERM-SYSTEMS" in found.why
    np.random.seed(0)  # nlpstats draws from the global generator
    theirs = permutation.permutation_test(first, second, human, "system", coefficient, "systems", n_resamples=400)
    assert found.p == pytest.approx(theirs.pvalue, abs=0.08)
    assert 0.0 < found.p < 0.9
