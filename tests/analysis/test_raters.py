"""How strict people are: the noise of their mean without it, and what the variance of a rating is made of."""

import numpy as np
import pytest

from geval_local.errors import DataError
from geval_local.statistics.raters import fit_raters, variance_components

NAN = float("nan")


def rated(rng, items=60, shifts=(-0.8, 0.0, 0.8), noise=0.5, missing=0.0):
    quality = rng.normal(size=items)
    ratings = 3 + quality + np.array(shifts)[:, None] + noise * rng.normal(size=(len(shifts), items))
    return np.where(rng.random(ratings.shape) < missing, NAN, ratings), quality


def test_the_fit_is_that_of_the_dummies():
    """Least squares over an indicator of every item and every rater, solved at once."""
    for missing in (0.0, 0.3):
        ratings, _ = rated(np.random.default_rng(1), items=12, missing=missing)
        who, which = np.nonzero(np.isfinite(ratings))
        design = np.concatenate([np.eye(12)[which], np.eye(3)[who]], axis=1)
        values = ratings[who, which]
        solved, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        found = fit_raters(ratings)
        assert found.rest == pytest.approx(((values - design @ solved) ** 2).sum() / (values.size - rank))
        assert found.added == pytest.approx(solved[12:] - solved[12:].mean())
        there = np.isfinite(ratings).any(axis=0)
        assert found.means[there] == pytest.approx((solved[:12] + solved[12:].mean())[there])


def test_strict_raters_are_no_noise():
    """Squares around the items' means alone made the error .30 of a true .083."""
    rng = np.random.default_rng(2)
    found = [fit_raters(rated(rng)[0]) for _ in range(200)]
    assert np.mean([one.error for one in found]) == pytest.approx(0.25 / 3, rel=0.03)
    assert np.mean([one.added for one in found], axis=0) == pytest.approx([-0.8, 0.0, 0.8], abs=0.03)
    assert found[0].own[0][0] < found[0].own[2][0] - 1


def test_who_rated_an_item_does_not_move_its_mean():
    rng = np.random.default_rng(3)
    ratings, quality = rated(rng, items=300, noise=0.2, missing=0.4)
    kept = np.isfinite(ratings).any(axis=0)
    plain, fitted = np.nanmean(ratings[:, kept], axis=0), fit_raters(ratings).means[kept]
    assert np.corrcoef(fitted, quality[kept])[0, 1] > 0.98 > np.corrcoef(plain, quality[kept])[0, 1]
    complete = rated(rng)[0]
    assert fit_raters(complete).means == pytest.approx(complete.mean(axis=0))


def test_a_single_rating_of_each_item_is_not_enough():
    alone = np.full((2, 8), NAN)
    alone[0, :4], alone[1, 4:] = 3.0, 4.0
    with pytest.raises(DataError, match="two people"):
        fit_raters(alone)


def test_the_variance_of_a_rating_is_split_by_what_it_is_due_to():
    rng, found = np.random.default_rng(4), []
    documents, systems = np.repeat(np.arange(30), 4), np.tile(np.arange(4), 30)
    for _ in range(300):
        item = 0.6 * rng.normal(size=30)[documents] + 0.5 * rng.normal(size=4)[systems] + 0.4 * rng.normal(size=120)
        ratings = 3 + item + 0.7 * rng.normal(size=(6, 1)) + 0.5 * rng.normal(size=(6, 120))
        found.append(list(variance_components(fit_raters(ratings), documents.tolist(), systems.tolist()).values()))
    assert np.mean(found, axis=0) == pytest.approx([0.36, 0.25, 0.16, 0.49, 0.25], rel=0.1)
