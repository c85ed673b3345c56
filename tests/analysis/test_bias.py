import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from geval_local.analysis.biases import against_people, gaps_by_preference, length_bias, preferences
from geval_local.analysis.differences import gap, side_means
from geval_local.errors import DataError
from geval_local.scale import Scale
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.resampling import sign_flip


def duel(documents=40, shift=0.0, seed=0, difficulty=2.0):
    """Two sides per document; documents differ far more than sides do."""
    rng = np.random.default_rng(seed)
    items, sides = [], []
    for document in range(documents):
        base = difficulty * rng.normal()
        for side in ("llm", "human"):
            score = base + (shift if side == "llm" else 0.0) + 0.3 * rng.normal()
            items.append(
                ScoredItem(f"d{document}", side, float(rng.integers(1, 6)), score, length=int(rng.integers(5, 60)))
            )
            sides.append(side)
    return items, sides


def test_means_per_side_leave_unscored_items_out():
    items, sides = duel()
    items[0] = replace(items[0], predicted=math.nan, error="x")
    llm, human = side_means(items, sides)
    scores = [item.predicted for item in items if item.system == "llm"][1:]
    assert (llm.side, llm.n, llm.unscored, human.unscored) == ("llm", 39, 1, 0)
    assert llm.mean.value == pytest.approx(np.mean(scores))
    assert llm.mean.low < llm.mean.value < llm.mean.high
    # The interval of a mean over 39 documents is about 4 standard errors wide.
    assert llm.mean.high - llm.mean.low == pytest.approx(2 * 1.96 * np.std(scores) / math.sqrt(39), rel=0.15)


def test_pairing_by_document_finds_a_gap_that_difficulty_hides():
    items, sides = duel(shift=0.3)
    paired = gap(items, sides, "llm", "human")
    assert (paired.test, paired.documents, paired.left_out) == ("sign-flip", 40, 0)
    assert paired.p < 0.01
    assert paired.difference.low > 0
    differences = [a.predicted - b.predicted for a, b in zip(items[::2], items[1::2], strict=True)]
    assert paired.difference.value == pytest.approx(np.mean(differences))
    textbook = stats.ttest_1samp(differences, 0)
    assert paired.p == pytest.approx(textbook.pvalue, abs=0.01)
    interval = textbook.confidence_interval(0.95)
    assert (paired.difference.low, paired.difference.high) == pytest.approx((interval.low, interval.high))
    apart = [replace(item, group=f"{item.group}/{side}") for item, side in zip(items, sides, strict=True)]
    unpaired = gap(apart, sides, "llm", "human")
    assert (unpaired.test, unpaired.documents) == ("Welch t", 80)
    assert unpaired.difference.value == pytest.approx(paired.difference.value)
    assert unpaired.p > 0.05


@pytest.mark.slow
def test_the_tests_reject_as_often_as_they_say():
    paired, unpaired = 0, 0
    for seed in range(60):
        items, sides = duel(20, seed=seed)
        paired += gap(items, sides, "llm", "human").p < 0.05
        # One side of each document only, in turn: nothing is left to pair.
        single = [
            (item, side)
            for item, side in zip(items, sides, strict=True)
            if (side == "llm") == (int(item.group[1:]) % 2 == 0)
        ]
        unpaired += gap([i for i, _ in single], [s for _, s in single], "llm", "human").p < 0.05
    assert paired <= 8
    assert unpaired <= 8


def test_a_real_difference_between_unpaired_sides_is_found():
    items, sides = duel(30, shift=2.0, difficulty=0.5)
    apart = [replace(item, group=f"{item.group}/{side}") for item, side in zip(items, sides, strict=True)]
    found = gap(apart, sides, "llm", "human")
    a, b = ([i.predicted for i, own in zip(apart, sides, strict=True) if own == side] for side in ("llm", "human"))
    assert found.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=0.1)
    assert found.test == "Welch t"
    assert found.difference.low > 1


def test_documents_of_one_side_are_counted_and_equal_sides_do_not_differ():
    items, sides = duel(10)
    found = gap(items[1:], sides[1:], "llm", "human")
    assert (found.documents, found.left_out) == (9, 1)
    same = [replace(item, predicted=1.0) for item in items]
    assert gap(same, sides, "llm", "human").p == 1.0
    with pytest.raises(DataError, match="no scored item belongs to 'robot'"):
        gap(items, sides, "robot", "human")


def test_preferences_come_from_ratings_and_split_the_gap():
    items, sides = duel(60, shift=0.5)
    preferred = preferences(items, sides, "llm", "human")
    assert set(preferred.values()) == {"llm", "human", "equal"}
    for llm, human in zip(items[::2], items[1::2], strict=True):
        expected = "llm" if llm.human > human.human else "human" if llm.human < human.human else "equal"
        assert preferred[llm.group] == expected
    gaps = gaps_by_preference(items, sides, "llm", "human", preferred)
    # The judge favours the model's texts even where people prefer the human ones: the finding of the paper's Figure 2.
    assert gaps["human"].difference.low > 0
    assert sum(found.documents for found in gaps.values()) == 60
    unrated = [replace(item, human=math.nan) for item in items]
    assert preferences(unrated, sides, "llm", "human") == {}


def test_length_bias_is_the_correlation_with_length():
    items, _ = duel(50)
    biased = [replace(item, predicted=float(item.length) ** 2) for item in items]
    found = length_bias(biased)
    assert found.score.spearman.value == pytest.approx(1.0)
    assert found.human is not None
    expected = stats.spearmanr([i.length for i in items], [i.human for i in items])[0]
    assert found.human.spearman.value == pytest.approx(expected)
    assert length_bias([replace(item, human=math.nan) for item in items]).human is None
    with pytest.raises(DataError):
        length_bias([replace(item, length=None) for item in items])


def test_pairing_is_kept_where_a_part_of_the_documents_is_shared():
    items, sides = duel(60, shift=0.3)
    # 28 documents have both sides, 16 have the one and 16 the other.
    chosen = [
        (item, side)
        for item, side in zip(items, sides, strict=True)
        if int(item.group[1:]) < 28 or (int(item.group[1:]) < 44) == (side == "llm")
    ]
    found = gap([item for item, _ in chosen], [side for _, side in chosen], "llm", "human")
    assert (found.test, found.documents, found.left_out) == ("sign-flip", 28, 32)
    assert found.p < 0.01


def test_every_document_weighs_the_same_in_means_and_gap():
    items, sides = [], []
    for document in range(12):
        copies = 9 if document == 0 else 1
        for side in ("llm", "human"):
            for _ in range(copies if side == "llm" else 1):
                items.append(ScoredItem(f"d{document}", "", math.nan, 5.0 if document == 0 else 3.0))
                sides.append(side)
    llm, human = side_means(items, sides)
    found = gap(items, sides, "llm", "human")
    assert llm.mean.value == human.mean.value == found.means[0] == found.means[1]
    assert (found.difference.value, found.p) == (0.0, 1.0)


def test_a_better_side_is_no_bias_of_a_judge_who_agrees_with_people():
    rng = np.random.default_rng(3)
    told = {"gap": 0, "judge less people": 0}
    for _ in range(40):
        items, sides = [], []
        for document in range(30):
            for side in ("llm", "human"):
                quality = rng.normal() + (0.8 if side == "llm" else 0.0)
                rated, judged = quality + 0.4 * rng.normal(size=2)
                items.append(ScoredItem(f"d{document}", "", rated, judged))
                sides.append(side)
        told["gap"] += gap(items, sides, "llm", "human").p < 0.05
        told["judge less people"] += gap(against_people(items), sides, "llm", "human").p < 0.05
    assert told["gap"] > 20
    assert told["judge less people"] <= 6


def test_ratings_on_another_scale_are_brought_to_standard_deviations():
    items, sides = duel(30)
    items = [replace(item, human=10 * item.predicted + 40) for item in items]
    excess = against_people(items, standardise=True)
    assert max(abs(item.predicted) for item in excess) < 1e-9
    assert gap(excess, sides, "llm", "human").p == 1.0
    with pytest.raises(DataError, match="all equal"):
        against_people([replace(item, human=3.0) for item in items], standardise=True)
    with pytest.raises(DataError, match="no item has both"):
        against_people([replace(item, human=math.nan) for item in items])


def test_many_documents_are_tested_by_the_limit_of_the_permutation():
    rng = np.random.default_rng(6)
    differences = rng.normal(0.05, 1, size=2001)
    assert sign_flip(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    assert sign_flip(differences[:2000]) == pytest.approx(stats.ttest_1samp(differences[:2000], 0).pvalue, abs=0.01)


def test_length_beyond_its_worth_to_people_shows_in_the_partial_correlation():
    rng = np.random.default_rng(5)
    fair, leaning = [], []
    for index in range(300):
        quality = rng.normal()
        length = int(50 + 15 * quality + 10 * rng.normal())
        item = ScoredItem(f"d{index // 5}", "", quality, quality + 0.5 * rng.normal(), length=length)
        fair.append(item)
        leaning.append(replace(item, predicted=item.predicted + 0.03 * length))
    for level in ("pooled", "summary"):
        one, other = length_bias(fair, level), length_bias(leaning, level)
        assert one.score.pearson.value > 0.5
        assert one.partial["pearson"].low < 0 < one.partial["pearson"].high
        assert other.partial["pearson"].low > 0.1
    columns = np.array([[i.predicted, i.length, i.human] for i in leaning]).T
    inverse = np.linalg.inv(np.corrcoef(columns))
    expected = -inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1])
    assert length_bias(leaning, "pooled").partial["pearson"].value == pytest.approx(expected)
    some = [replace(item, human=math.nan) if index % 2 else item for index, item in enumerate(leaning)]
    assert length_bias(some, "pooled").n == length_bias(some, "pooled").score.n == 150


SCALE = Scale.parse("1-3")
