import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from geval_local.analysis.biases import gaps_by_preference, judge_less_people, length_bias, length_table
from geval_local.analysis.differences import gap, side_means
from geval_local.errors import DataError
from geval_local.scale import Scale
from geval_local.statistics.raters import fit_raters
from geval_local.statistics.records import ScoredItem
from tests.support.skewed import interval_of


def duel(documents=40, shift=0.0, seed=0, difficulty=2.0):
    """Two sides per document; documents differ far more than sides do."""
    rng = np.random.default_rng(seed)
    items = []
    for document in range(documents):
        base = difficulty * rng.normal()
        for side in ("llm", "human"):
            score = base + (shift if side == "llm" else 0.0) + 0.3 * rng.normal()
            items.append(
                ScoredItem(f"d{document}", side, float(rng.integers(1, 6)), score, length=int(rng.integers(5, 60)))
            )
    return items


def test_means_per_side_leave_unscored_items_out():
    items = duel()
    items[0] = replace(items[0], predicted=math.nan, error="x")
    llm, human = side_means(items)
    scores = [item.predicted for item in items if item.system == "llm"][1:]
    assert (llm.side, llm.n, llm.unscored, human.unscored) == ("llm", 39, 1, 0)
    assert llm.mean.value == pytest.approx(np.mean(scores))
    assert llm.mean.low < llm.mean.value < llm.mean.high
    # The interval of a mean over 39 documents is about 4 standard errors wide.
    assert llm.mean.high - llm.mean.low == pytest.approx(2 * 1.96 * np.std(scores) / math.sqrt(39), rel=0.15)


def test_pairing_by_document_finds_a_gap_that_difficulty_hides():
    items = duel(shift=0.3)
    paired = gap(items, "llm", "human")
    assert (paired.test, paired.documents, paired.left_out) == ("t", 40, 0)
    assert paired.p < 0.01
    assert paired.difference.low > 0
    differences = [a.predicted - b.predicted for a, b in zip(items[::2], items[1::2], strict=True)]
    assert paired.difference.value == pytest.approx(np.mean(differences))
    assert paired.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.01)
    assert (paired.difference.low, paired.difference.high) == pytest.approx(interval_of(differences))
    apart = [replace(item, group=f"{item.group}/{item.system}") for item in items]
    unpaired = gap(apart, "llm", "human")
    assert (unpaired.test, unpaired.documents) == ("Welch t", 80)
    assert unpaired.difference.value == pytest.approx(paired.difference.value)
    assert unpaired.p > 0.05


@pytest.mark.slow
def test_the_tests_reject_as_often_as_they_say():
    paired, unpaired = 0, 0
    for seed in range(60):
        items = duel(20, seed=seed)
        paired += gap(items, "llm", "human").p < 0.05
        # One side of each document only, in turn: nothing is left to pair.
        single = [item for item in items if (item.system == "llm") == (int(item.group[1:]) % 2 == 0)]
        unpaired += gap(single, "llm", "human").p < 0.05
    assert paired <= 8
    assert unpaired <= 8


def test_a_real_difference_between_unpaired_sides_is_found():
    items = duel(30, shift=2.0, difficulty=0.5)
    apart = [replace(item, group=f"{item.group}/{item.system}") for item in items]
    found = gap(apart, "llm", "human")
    a, b = ([item.predicted for item in apart if item.system == side] for side in ("llm", "human"))
    assert found.p == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue, rel=0.1)
    assert found.test == "Welch t"
    assert found.difference.low > 1


def test_documents_of_one_side_are_counted_and_equal_sides_do_not_differ():
    items = duel(10)
    found = gap(items[1:], "llm", "human")
    assert (found.documents, found.left_out) == (9, 1)
    same = [replace(item, predicted=1.0) for item in items]
    assert gap(same, "llm", "human").p == 1.0
    with pytest.raises(DataError, match="no scored item belongs to 'robot'"):
        gap(items, "robot", "human")


def test_preferences_come_from_ratings_and_split_the_gap():
    items = duel(60, shift=0.5)
    gaps = gaps_by_preference(items, "llm", "human")
    preferred = [np.sign(llm.human - human.human) for llm, human in zip(items[::2], items[1::2], strict=True)]
    counts = {"llm": preferred.count(1), "equal": preferred.count(0), "human": preferred.count(-1)}
    assert {side: found.documents for side, found in gaps.items()} == counts
    # The judge favours the model's texts even where people prefer the human ones: the finding of the paper's Figure 2.
    assert gaps["human"].difference.low > 0
    assert sum(found.documents for found in gaps.values()) == 60
    unrated = [replace(item, human=math.nan) for item in items]
    assert gaps_by_preference(unrated, "llm", "human") == {}


def test_length_bias_is_the_correlation_with_length():
    items = duel(50)
    biased = [replace(item, predicted=float(item.length) ** 2) for item in items]
    found = length_bias(biased)
    assert found.score.spearman.value == pytest.approx(1.0)
    assert found.human is not None
    expected = stats.spearmanr([i.length for i in items], [i.human for i in items])[0]
    assert found.human.spearman.value == pytest.approx(expected)
    assert length_bias([replace(item, human=math.nan) for item in items]).human is None
    with pytest.raises(DataError):
        length_bias([replace(item, length=None) for item in items])


def test_ratings_at_an_end_of_their_scale_are_named_where_they_are_many():
    items = duel(50)
    values = np.linspace(2, 4, len(items))
    for share, is_told in ((0.0, False), (0.3, True)):
        human = np.where(np.arange(len(items)) % 10 < 10 * share, 5.0, values)
        rated = [replace(item, human=float(own)) for item, own in zip(items, human, strict=True)]
        notes = " ".join(length_table(length_bias(rated)).notes)
        assert ("of the ratings are at an end of their scale" in notes) == is_told


def test_pairing_is_kept_where_a_part_of_the_documents_is_shared():
    items = duel(60, shift=0.3)
    # 28 documents have both sides, 16 have the one and 16 the other.
    places = [int(item.group[1:]) for item in items]
    there = [place < 28 or (place < 44) == (i.system == "llm") for place, i in zip(places, items, strict=True)]
    found = gap([item for item, own in zip(items, there, strict=True) if own], "llm", "human")
    assert (found.test, found.documents, found.left_out) == ("t", 28, 32)
    assert found.p < 0.01


def test_every_document_weighs_the_same_in_means_and_gap():
    items = []
    for document in range(12):
        score = 5.0 if document == 0 else 3.0
        sides = ["llm"] * (9 if document == 0 else 1) + ["human"]
        items += [ScoredItem(f"d{document}", side, math.nan, score) for side in sides]
    llm, human = side_means(items)
    found = gap(items, "llm", "human")
    assert llm.mean.value == human.mean.value == found.means[0] == found.means[1]
    assert (found.difference.value, found.p) == (0.0, 1.0)


def better_side(rng, slope=1.0, noise=0.4, leaning=0.0):
    """30 documents whose first side is better by .8; three raters; a judge that may compress the scale, or lean."""
    quality = np.stack([0.8 + rng.normal(size=30), rng.normal(size=30)], axis=1)
    raters = quality.ravel() + noise * rng.normal(size=(3, 60))
    scores = slope * quality + np.array([leaning, 0.0]) + 0.4 * rng.normal(size=quality.shape)
    sides = ("llm", "human")
    items = [
        ScoredItem(f"d{at // 2}", sides[at % 2], math.nan, float(v), key=str(at)) for at, v in enumerate(scores.ravel())
    ]
    fitted = fit_raters(raters)
    return fitted.rated(items), fitted.error


@pytest.mark.parametrize("slope", [1.0, 0.5])
def test_a_judge_that_compresses_the_scale_favours_nobody(slope):
    rng = np.random.default_rng(3)
    told = {"gap": 0, "known": 0, "bounds": 0}
    for _ in range(40):
        items, error = better_side(rng, slope, noise=0.9)
        told["gap"] += gap(items, "llm", "human").p < 0.05
        told["known"] += judge_less_people(items, "llm", "human", error=error).p < 0.05
        told["bounds"] += judge_less_people(items, "llm", "human").p < 0.05
    assert told["gap"] > 20
    assert max(told["known"], told["bounds"]) <= 6


def test_a_judge_that_leans_is_found_out_on_any_scale():
    items, error = better_side(np.random.default_rng(4), slope=0.5, leaning=0.8)
    for known in (error, None):
        found = judge_less_people(items, "llm", "human", error=known)
        assert found.p < 0.01
        assert found.difference.low < 0.8 < found.difference.high
    tenfold = [replace(item, human=10 * item.human + 40) for item in items]
    again = judge_less_people(tenfold, "llm", "human", error=100 * error)
    assert again.difference.value == pytest.approx(
        judge_less_people(items, "llm", "human", error=error).difference.value
    )
    with pytest.raises(DataError, match="no item has both"):
        judge_less_people([replace(item, human=math.nan) for item in items], "llm", "human")


@pytest.mark.parametrize("level", ["pooled", "summary"])
def test_noise_of_ratings_makes_no_bias_for_length(level):
    rng = np.random.default_rng(5)
    quality = rng.normal(size=300)
    length = np.exp(4 + 0.3 * quality + 0.2 * rng.normal(size=300))
    plain = [
        ScoredItem(f"d{at // 5}", "", math.nan, q + 0.5 * rng.normal(), length=int(words), key=str(at))
        for at, (q, words) in enumerate(zip(quality, length, strict=True))
    ]
    fitted = fit_raters(quality + rng.normal(size=(3, 300)))
    items, error = fitted.rated(plain), fitted.error
    fair = length_bias(items, level, error=error)
    assert fair.partial.low < 0 < fair.partial.high
    naive = length_bias(items, level)
    assert naive.partial.value > fair.partial.value + 0.1
    assert math.isnan(naive.partial.low)
    leaning = [replace(item, predicted=item.predicted + 1.5 * math.log(item.length)) for item in items]
    assert length_bias(leaning, level, error=error).partial.low > 0.1
    assert 0.6 < fair.reliability < 0.9


def test_the_partial_correlation_is_the_textbooks():
    items = duel(40)
    columns = np.array([[i.predicted, math.log(i.length), i.human] for i in items]).T
    inverse = np.linalg.inv(np.corrcoef(columns))
    expected = -inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1])
    assert length_bias(items, "pooled").partial.value == pytest.approx(expected)
    some = [replace(item, human=math.nan) if index % 2 else item for index, item in enumerate(items)]
    assert length_bias(some, "pooled").n == length_bias(some, "pooled").score.n == 40


SCALE = Scale.parse("1-3")


def test_one_document_has_no_bias_and_no_word_about_others():
    found = judge_less_people(duel(1), "llm", "human")
    assert math.isnan(found.difference.low)
    assert "alike" not in found.difference.warning


def test_a_fair_judge_is_not_biased_for_length_because_ratings_end():
    """Better outputs are longer, and raters hit the ends of 1-5: numbers of words give a mean of .07, not 0."""
    rng = np.random.default_rng(8)
    found = []
    for _ in range(60):
        quality = rng.normal(size=150)
        length = np.exp(4 + 0.35 * quality + 0.3 * rng.normal(size=150))
        fitted = fit_raters(np.clip(np.round(3.5 + quality + 0.6 * rng.normal(size=(3, 150))), 1, 5))
        score = 3 + 0.7 * quality + 0.4 * rng.normal(size=150)
        items = [
            ScoredItem(f"d{at}", "", float(fitted.means[at]), float(score[at]), length=int(length[at]), key=str(at))
            for at in range(150)
        ]
        found.append(length_bias(items, error=fitted.error).partial)
    assert np.mean([own.value for own in found]) < 0.05
    assert np.mean([own.low > 0 for own in found]) <= 0.13
