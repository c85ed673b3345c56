"""Worse than before? Rows are paired by what they share, and tested by document."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from scipy import stats

from geval_local.analysis.results import ScoredRun
from geval_local.analysis.worse import is_worse
from geval_local.direction import Direction
from geval_local.errors import ConfigurationError, DataError
from geval_local.scale import Scale
from geval_local.signature import rounding_of


def given(rows):
    """Rows as results in memory, whose signature is not known."""
    return [
        {key: value for key, value in row.items() if key not in ("score", "mass")}
        | {"geval": {"m": {"score": row["score"], "label_mass": row.get("mass", 0.95)}}}
        for row in rows
    ]


def scored(count, shift=0.0, seed=0, **columns):
    noise, base = np.random.default_rng(seed), np.random.default_rng(99)
    means = base.uniform(2, 4, count)
    return [
        {"id": f"r{n}", "output": f"answer {n} {shift}", "score": float(means[n] + shift + noise.normal(0, 0.2))}
        | {name: of(n) for name, of in columns.items()}
        for n in range(count)
    ]


def worse(new, old, **options):
    return is_worse(given(new), given(old), across=["any"], **options)


def test_a_drop_is_found_and_a_change_by_chance_is_not():
    old = scored(40)
    dropped, alike = worse(scored(40, -0.4, 1), old), worse(scored(40, 0.0, 1), old)
    assert not dropped.passed
    assert alike.passed
    (told,) = dropped.failures
    assert told.startswith("m: the mean fell by 0.387")
    assert "on 40 shared documents, more than chance explains, p < .0001" in told
    (change,) = alike.changes.values()
    assert "no drop is shown" in change.told
    differences = np.array([a["score"] - b["score"] for a, b in zip(scored(40, 0.0, 1), old, strict=True)])
    assert change.found == pytest.approx(differences.mean())
    # The test reckons with skewness, so its p lies above that of the plain one.
    p = stats.ttest_1samp([a["score"] - b["score"] for a, b in zip(scored(40, -0.4, 1), old, strict=True)], 0,
                          alternative="less").pvalue  # fmt: skip
    (change,) = dropped.changes.values()
    assert p < change.test.p < 1e-6


@pytest.mark.parametrize("options", [{}, {"not_worse": 0.3}, {"sequential": True}], ids=str)
@pytest.mark.parametrize("shift", [-0.4, 0.0, 0.4])
def test_where_low_is_good_a_rise_is_worse(shift, options, monkeypatch):
    """A mirrored scale whose low end is good gives the same verdict and p."""
    new, old = scored(40, shift, 1), scored(40)
    plain = worse(new, old, **options)
    monkeypatch.setattr(ScoredRun, "direction", lambda self, metric: Direction.LOW)
    mirrored = [[row | {"score": 6 - row["score"]} for row in rows] for rows in (new, old)]
    turned = worse(*mirrored, **options)
    (one,), (other,) = plain.changes.values(), turned.changes.values()
    assert turned.passed == plain.passed
    assert other.found == pytest.approx(-one.found)
    assert other.test.p == pytest.approx(one.test.p, nan_ok=True)
    swapped = {"fell": "rose", "drop": "rise", "lower": "higher"}
    expected = re.sub("|".join(swapped), lambda word: swapped[word[0]], re.sub(r"[+-]?\d+\.\d+", "#", one.told))
    assert re.sub(r"[+-]?\d+\.\d+", "#", other.told) == expected
    (table,) = turned.tables()
    assert f"{other.found:.3f}"[:5] in str(table.rows)


def test_a_margin_has_to_be_shown():
    old = scored(40)
    same = scored(40, 0.0, 1)
    shown, small = worse(same, old, not_worse=0.3), worse(same, old, not_worse=0.01)
    assert shown.passed
    assert not small.passed
    (change,) = shown.changes.values()
    assert change.told.startswith("not lower by 0.3 or more: the mean changed by")
    (told,) = small.failures
    assert "not shown to be less than 0.01 lower" in told
    assert worse(scored(40, -0.4, 1), old, not_worse=0.3).passed is False


def test_few_documents_are_told_in_a_sentence():
    old = scored(5)
    found = worse(scored(5, -0.2, 1), old)
    (change,) = found.changes.values()
    assert "one document in twenty is missed with probability 0.77" in change.told


def test_rows_are_paired_by_id_and_not_by_place():
    old = scored(30)
    new = [*scored(30, 0.0, 1)[5:][::-1], {"id": "new", "output": "x", "score": 1.0}]
    (change,) = worse(new, old, max_unpaired="5").changes.values()
    assert change.scored == change.documents == 25
    by_id = {row["id"]: row["score"] for row in old}
    assert change.found == pytest.approx(np.mean([row["score"] - by_id[row["id"]] for row in new[:-1]]))


def test_rows_of_one_document_count_once():
    document = {"doc_id": lambda n: f"d{n // 8}"}
    (change,) = worse(scored(40, -0.1, 1, **document), scored(40, **document)).changes.values()
    assert (change.scored, change.documents) == (40, 5)
    assert change.test.documents == 5


def test_the_level_is_shared_by_all_tests():
    """A drop with a p of some .02 counts where it is asked about alone, and not among ten slices."""

    def fallen(rows):
        return [row | {"score": row["score"] - 0.15 - 0.2 * (-1) ** n} if n < 12 else row for n, row in enumerate(rows)]

    language = {"language": lambda n: "a" if n < 12 else f"l{n % 10}"}
    old = scored(100, **language)
    alone = worse(fallen(old[:12]), old[:12])
    (change,) = alone.changes.values()
    assert 0.05 / 12 < change.test.p < 0.05
    assert not alone.passed
    found = worse(fallen(old), old, by=["language"])
    assert len(found.changes) == 12
    (slice_,) = [one for asked, one in found.changes.items() if asked.value == "a"]
    assert slice_.test.p == pytest.approx(change.test.p)
    assert found.passed


def test_a_slice_that_dropped_is_named():
    language = {"language": lambda n: "de" if n % 4 == 0 else "en"}
    new = scored(80, 0.0, 1, **language)
    for row in new:
        row["score"] -= 0.5 * (row["language"] == "de")
    found = worse(new, scored(80, **language), by=["language"])
    assert "m, language = de: the mean fell by 0.5" in "\n".join(found.failures)
    assert not any("language = en" in told for told in found.failures)
    record = json.loads(json.dumps(found.to_dict()))
    assert record["passed"] is False
    assert [one["slice"] and one["slice"]["value"] for one in record["changes"]] == [None, "de", "en"]
    assert found.tables()[0].rows[1][-1] == "worse"


def test_a_judge_that_does_not_answer_passes_nothing():
    old = scored(20)
    found = worse([row | {"mass": 0.01} for row in scored(20)], old)
    assert not found.passed
    assert "nothing can be concluded of the new run" in found.failures[0]


def test_nothing_in_common_is_an_error_with_the_way_out():
    other = [row | {"id": f"x{n}"} for n, row in enumerate(scored(5))]
    with pytest.raises(DataError, match="nothing pairs the rows"):
        worse(other, scored(5))
    with pytest.raises(ConfigurationError, match="a margin is 0 or more"):
        worse(scored(5), scored(5), not_worse=-1)
    with pytest.raises(ConfigurationError, match="nothing says under which signature"):
        is_worse(given(scored(5)), given(scored(5)))


def test_unscored_rows_are_left_out_of_the_pairs():
    new = scored(20, 0.0, 1)
    new[3]["score"] = None
    (change,) = worse(new, scored(20)).changes.values()
    assert change.scored == 19
    empty = [row | {"score": None} for row in new]
    (change,) = worse(empty, scored(20)).changes.values()
    assert not change.passed
    assert math.isnan(change.found)


def test_rows_that_grow_may_be_looked_at_again_and_again():
    old = scored(200)
    early = worse(scored(12, -0.5, 1), old[:12], sequential=True)
    assert early.passed
    (change,) = early.changes.values()
    assert "not decided yet" in change.told
    assert not worse(scored(30, 0.0, 1), old[:30], not_worse=0.1, sequential=True).passed
    dropped = worse(scored(200, -0.5, 1), old, sequential=True)
    assert not dropped.passed
    assert re.search(r"^m: lower, decided after \d+ documents: .* level .05 over all looks$", dropped.failures[0])
    shown = worse(scored(200, 0.0, 1), old, not_worse=0.2, sequential=True)
    assert shown.passed
    # By chance a drop is shown in one of twenty sequences at most, at whatever look.
    chance = np.random.default_rng(5)
    wrong = 0
    for _ in range(100):
        rows = [{"id": f"r{n}", "score": float(3 + chance.normal(0, 0.5))} for n in range(120)]
        (change,) = worse(rows, [row | {"score": 3.0} for row in rows], sequential=True).changes.values()
        wrong += not change.passed
    assert wrong <= 5


def test_a_new_slice_has_nothing_to_be_worse_than():
    old = scored(20, language=lambda n: "de")
    added = [{"id": f"x{n}", "output": "x", "language": "fr", "score": 1.0} for n in range(10)]
    for margin in (None, 1.0):
        found = worse(
            [*scored(20, 0.0, 1, language=lambda n: "de"), *added],
            old,
            by=["language"],
            not_worse=margin,
            max_unpaired="10",
        )
        (new,) = [one for asked, one in found.changes.items() if asked.value == "fr"]
        assert new.verdict == "skipped"
        assert new.told == "this slice is new: the comparison begins with the next run"
        assert found.tables()[0].rows[-1][-1] == "new"
    silent = [row | {"score": None} for row in scored(20, 0.0, 1, language=lambda n: "de")]
    found = worse([*silent, *[row | {"language": "fr"} for row in added]], old, by=["language"])
    (known,) = [one for asked, one in found.changes.items() if asked.value == "de"]
    assert not known.passed


@pytest.mark.parametrize("low", [False, True], ids=["high", "low"])
def test_a_drop_that_nearly_all_share_fails_and_no_smaller_one_is_surer(low, monkeypatch):
    """Scale 1-5, 12 documents, all 4 before: the more of them fall by one point, the surer the gate."""
    if low:
        monkeypatch.setattr(ScoredRun, "direction", lambda self, metric: Direction.LOW)
    old = [{"id": f"r{n}", "output": "x", "score": 4.0} for n in range(12)]
    p = []
    for fallen in range(13):
        new = [row | {"score": 4.0 + (1 if low else -1) * (n < fallen)} for n, row in enumerate(old)]
        found = worse(new, old)
        (change,) = found.changes.values()
        assert found.passed is (fallen < 5), change.told
        p.append(change.test.p)
    assert p == sorted(p, reverse=True)


def test_one_or_two_documents_cannot_decide_and_that_fails():
    for count in (1, 2):
        for shift in (-2.0, 0.0):
            found = worse(scored(count, shift), scored(count))
            (change,) = found.changes.values()
            assert not found.passed
            assert change.told.startswith("cannot decide: the mean changed by")
            assert "at least 3 are needed" in change.told
            assert found.tables()[0].rows[0][-1] == "cannot decide"


@pytest.mark.parametrize("margin", [None, 0.1])
def test_rounding_is_no_difference(margin):
    """Scores that differ by 1e-6 in every row, all in one direction, are told as equal ones are."""
    old = scored(40)
    moved = [row | {"score": row["score"] - 1e-6} for row in old]
    (same,), (rounded,) = (worse(rows, old, not_worse=margin).changes.values() for rows in (old, moved))
    assert rounded.told == same.told
    assert rounded.test.difference == same.test.difference
    assert same.passed is (margin is None)
    assert same.found == 0.0
    (change,) = worse([row | {"score": row["score"] - 1e-4} for row in old], old).changes.values()
    assert not change.passed  # a difference above rounding counts, however small


def test_a_failure_that_so_few_documents_may_miss_is_told():
    (few,) = worse(scored(12), scored(12)).changes.values()
    assert few.told.endswith("what happens on one document in twenty is missed with probability 0.54")
    (many,) = worse(scored(60), scored(60)).changes.values()
    assert "one document in twenty" not in many.told


@pytest.mark.parametrize(
    ("dtype", "share"), [("float32", 1e-5), ("float16", 5e-4), ("bfloat16 (8-bit)", 0.016), ("float64", 1e-5)]
)
def test_the_rounding_of_a_signature_is_that_of_its_dtype(dtype, share):
    signature = f"judge:x|dtype:{dtype}|estimator:exact"
    assert rounding_of(signature, Scale.parse("0-100")) == pytest.approx(100 * share)
    assert rounding_of(signature) == share
