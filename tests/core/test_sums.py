"""Figures that add up over parts: those of the rows together, to the last digits that a float has."""

from __future__ import annotations

import json

import numpy as np
import pytest

from geval_local.grouping import Documents
from geval_local.score import Score
from geval_local.statistics.interval import MeanSums, mean_interval
from geval_local.summary import Sums, Tally


@pytest.mark.parametrize("groups", [1, 7, 40, 400])
def test_the_interval_of_sums_is_that_of_the_values(groups):
    rng = np.random.default_rng(groups)
    values, codes = rng.normal(3, 1, 400) ** 2, rng.integers(groups, size=400)
    expected = mean_interval(values, codes)
    total = MeanSums()
    for part in np.array_split(rng.permutation(groups), 3):  # whole groups
        chosen = np.isin(codes, part)
        if chosen.any():
            total.add(json.loads(json.dumps(MeanSums.of(values[chosen], codes[chosen]).by_size)))
    found = total.interval()
    assert found.units == expected.units
    assert found.warning == expected.warning
    for name in ("value", "low", "high", "error"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9, nan_ok=True)


def test_equal_values_have_no_spread():
    found = MeanSums.of([0.1] * 1000).interval()
    assert found.error == 0
    assert found.warning == "all documents are alike, and allow no interval"


def test_summaries_add_up():
    rng = np.random.default_rng(0)
    whole, parts = Tally("m"), [Tally("m") for _ in range(4)]
    documents, counts = Documents(), [Documents() for _ in range(4)]
    for row in range(200):
        error = f"row {row}: too long, {row} tokens" if row % 31 == 3 else None
        score = Score(
            "m", float("nan") if error else rng.normal(), label_mass=rng.uniform(0.8, 1), threshold=0.5,
            passed=bool(row % 2), other_tokens=(("x", 0.1),), dropped_tokens=row % 5, error=error,
        )  # fmt: skip
        fields = {"doc_id": row // 10}
        part = row // 50
        for tally, groups in ((whole, documents), (parts[part], counts[part])):
            tally.add(f"row {row}", row, score, groups.add(fields))
    expected = whole.summary(documents)
    total, together = Sums("m"), counts[0].counts
    for part, own in zip(reversed(parts), reversed(counts), strict=True):
        total.add(Sums.from_record(json.loads(json.dumps(part.sums(own).to_record()))))
    for more in counts[1:]:
        together = together + more.counts
    assert together == documents.counts
    found = total.summary(together)
    one, other = found.to_dict(), expected.to_dict()
    assert one.keys() == other.keys()
    for name in ("rows", "scored", "grouping", "documents", "threshold", "passed_share", "shortened", "reasons"):
        assert one[name] == other[name]
    for name in ("mean", "interval", "standard_error", "std"):
        assert one[name] == pytest.approx(other[name], rel=1e-9)
