import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from geval_local.analysis.ratings.responses import geval_items, parse_response
from geval_local.errors import DataError
from geval_local.statistics.correlation import agree, correlate, krippendorff_alpha
from geval_local.statistics.levels import level_figures
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.resampling import drawn_by_document
from geval_local.statistics.significance import compare, corrected, holm
from tests.support.skewed import interval_of, p_of

NAN = float("nan")
DATA = Path(__file__).parents[3] / "shared" / "data"


def judges(n, seed, r=(0.6, 0.6), between=0.4, per_group=1):
    rng = np.random.default_rng(seed)
    covariance = [[1, r[0], r[1]], [r[0], 1, between], [r[1], between, 1]]
    drawn = rng.multivariate_normal([0, 0, 0], covariance, size=n)
    return tuple(
        [ScoredItem(str(i // per_group), "", row[0], row[side], key=str(i)) for i, row in enumerate(drawn)]
        for side in (1, 2)
    )


@pytest.mark.slow
@pytest.mark.parametrize("level", ["pooled", "summary"])
def test_equal_judges_are_told_apart_as_seldom_as_it_says(level):
    rejected = sum(compare(*judges(96, seed, per_group=8), level, "spearman").p < 0.05 for seed in range(80))
    assert rejected <= 10


def test_documents_are_flipped_as_scipy_does():
    first, second = judges(60, 4, r=(0.6, 0.3), per_group=5)
    result = compare(first, second, "summary", "pearson")
    each = []
    for group in range(12):
        mine, other = ([item for item in side if item.group == str(group)] for side in (first, second))
        human = [item.human for item in mine]
        each.append(
            stats.pearsonr(human, [i.predicted for i in mine])[0]
            - stats.pearsonr(human, [i.predicted for i in other])[0]
        )
    assert result.p == pytest.approx(p_of(each))
    assert "Student's t" in result.why
    assert (result.difference.low, result.difference.high) == pytest.approx(interval_of(each))


def test_the_error_from_draws_is_the_textbooks_where_there_is_one():
    rng, found = np.random.default_rng(0), []
    for seed in range(20):
        values = rng.normal(size=5)
        drawn = drawn_by_document(list("abcde"), np.stack([values, np.ones(5)]), lambda s: s[:, :1] / s[:, 1:], seed)
        found.append(drawn.interval(0).error / stats.sem(values))
    # The spread of draws alone is short by a tenth with five documents.
    assert np.mean(found) == pytest.approx(1, abs=0.02)


def unlike_judges(seed, documents=20, systems=12):
    """Two judges that agree with people alike, each with an opinion of its own of every new system."""
    rng = np.random.default_rng(seed)
    quality, opinions = rng.normal(size=systems), 0.7 * rng.normal(size=(2, 1, systems))
    human = quality + 0.5 * rng.normal(size=(documents, systems))
    scores = quality + opinions + 0.5 * rng.normal(size=(2, documents, systems))
    return tuple(
        [
            ScoredItem(f"d{d}", f"s{s}", human[d, s], own[d, s], key=f"{d}/{s}")
            for d in range(documents)
            for s in range(systems)
        ]
        for own in scores
    )


def test_judges_of_different_opinions_on_new_systems_are_told_apart_by_chance_only(monkeypatch):
    monkeypatch.setattr("geval_local.statistics.significance.PERMUTATIONS", 199)
    found = [compare(*unlike_judges(seed), "system", "kendall") for seed in range(30)]
    assert all("PERM-SYSTEMS" in one.why for one in found)
    assert sum(one.p < 0.05 for one in found) <= 5


@pytest.mark.parametrize(
    ("coefficient", "target"), [("pearson", "both"), ("kendall", "documents"), ("pearson", "documents")]
)
def test_no_exchange_is_used_where_it_is_not_valid(coefficient, target):
    found = compare(*unlike_judges(0), "system", coefficient, target=target)
    assert "Student's t" in found.why
    assert (found.p < 0.05) == (found.difference.low > 0 or found.difference.high < 0)


@pytest.mark.parametrize(("documents", "few"), [(20, True), (60, False)])
def test_a_test_over_the_same_systems_says_that_few_documents_find_little(documents, few):
    found = compare(*unlike_judges(0, documents=documents), "system", "kendall", target="documents")
    assert ("test is conservative" in found.why) is few


def test_the_difference_of_two_judges_of_few_systems_covers_a_near_tie():
    # The first judge sees s0 and s1 nearly alike; by the truth it is the better of the two by one step, or by none.
    people, hits = np.array([0.5, 0.0, 1.0, -1.0]), 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        human = people + 0.5 * rng.normal(size=(100, 4))
        one, other = (
            [
                ScoredItem(f"d{d}", f"s{s}", human[d, s], own[s] + 0.8 * rng.normal(), key=f"{d}/{s}")
                for d in range(100)
                for s in range(4)
            ]
            for own in (np.array([0.01, 0.0, 1.0, -1.0]), np.array([0.0, 0.5, 1.0, -1.0]))
        )
        found = compare(one, other, "system", "spearman", target="documents").difference
        hits += found.low - 1e-9 <= 0.2 <= found.high + 1e-9
    assert hits >= 18


def test_few_systems_are_tested_by_t():
    found = compare(*unlike_judges(0, systems=5), "system", "kendall")
    assert "Student's t" in found.why


def test_few_documents_are_tested_by_t_and_warned_about():
    result = compare(*judges(20, 4, per_group=5), "summary", "pearson")
    assert "Student's t" in result.why
    assert result.difference.warning == "only 4 documents"
    assert "only 4 documents" in result.holds_for


def test_a_judge_made_constant_on_its_worst_documents_does_not_beat_itself():
    judge, _ = judges(240, 5, r=(0.4, 0.4), per_group=8)
    each = level_figures(judge, "summary").figures.parts
    worst = sorted(each, key=lambda group: each[group][1])[:10]
    silent = [replace(item, predicted=3.0) if item.group in worst else item for item in judge]
    assert correlate(silent).spearman.value > correlate(judge).spearman.value + 0.1
    common = compare(silent, judge)
    assert (common.difference.value, common.p) == (0.0, 1.0)
    assert (common.groups, common.kept) == (20, (20, 30))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the published responses are not at {DATA}")
def test_mean_of_20_against_mode_on_engagingness_is_compared_on_common_documents():
    path = DATA / "geval_results" / "gpt3.5_topical_chat_eng.json"
    mean, _ = geval_items(path, "topical-chat", "engagingness")
    responses = [row["all_responses"] for row in json.loads(path.read_text())]
    modes = []
    for item, row in zip(mean, responses, strict=True):
        numbers = [number for text in row if (number := parse_response(text)) is not None]
        modes.append(replace(item, predicted=Counter(numbers).most_common(1)[0][0]))
    own = [correlate(items).spearman.value for items in (mean, modes)]
    result = compare(mean, modes)
    assert result.kept == (60, result.groups)
    assert result.groups < 45
    # Each on its own documents, the two seem nearly alike; on the same ones they are not.
    assert [round(value, 3) for value in own] == [0.589, 0.544]
    assert (round(result.first, 3), round(result.second, 3)) == (0.670, 0.544)
    assert result.difference.low > 0
    assert result.p < 0.01


def test_no_common_document_is_an_error():
    first, second = judges(40, 6, per_group=4)
    first = [replace(item, predicted=1.0) if int(item.group) < 5 else item for item in first]
    second = [replace(item, predicted=1.0) if int(item.group) >= 5 else item for item in second]
    with pytest.raises(DataError, match="no document is kept by both"):
        compare(first, second)


def test_holm_is_the_step_down_of_the_textbook():
    # Holm (1979): ordered p times the number of tests left, never falling.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    corrected_one, missing = holm([0.02, NAN])
    assert corrected_one == 0.02
    assert np.isnan(missing)


@pytest.mark.parametrize(("documents", "level"), [(4, "summary"), (8, "summary"), (8, "system")])
def test_perfect_agreement_on_a_few_documents_is_not_certain(documents, level):
    judge = [
        ScoredItem(f"d{d}", f"s{s}", float(s), s + 0.1 * d, key=f"{d}/{s}") for d in range(documents) for s in range(8)
    ]
    found = correlate(judge, level)
    assert (found.kendall.value, np.isnan(found.kendall.low)) == (1.0, True)
    assert "no interval" in found.kendall.warning
    test = compare(judge, None, level, "kendall")
    # That of flipping the signs of as many documents, or systems.
    assert test.p == pytest.approx(2.0 ** (1 - documents))
    same = compare(judge, judge, level, "kendall")
    assert (same.difference.value, np.isnan(same.difference.low), same.p) == (0.0, True, 1.0)


def test_a_difference_from_chance_is_at_most_one():
    judge, _ = judges(48, 8, r=(0.95, 0.4), per_group=8)
    assert compare(judge, None, "summary", "pearson").difference.high <= 1


def test_one_document_and_one_system_are_said_in_the_singular():
    one = [ScoredItem("d", "s", float(value), value**2, key=str(value)) for value in range(5)]
    for level in ("summary", "system"):
        told = correlate(one, level).holds_for
        assert not re.search(r"\b1 (systems|documents)", told), told


def test_forty_tests_can_still_reject_after_the_correction():
    better = compare(*judges(400, 7, r=(0.8, 0.2), per_group=8))
    tests = corrected({str(index): better for index in range(40)})
    assert tests["0"].p_adjusted == pytest.approx(40 * tests["0"].p)
    assert tests["0"].p_adjusted < 0.05
    unpaired = replace(better, by_document={})
    tests = corrected({str(index): unpaired for index in range(40)})
    assert tests["0"].p_adjusted == pytest.approx(40 * better.p)


@pytest.mark.slow
def test_average_of_dimensions_is_tested_on_the_same_documents():
    dimensions = [judges(160, seed, r=(0.6, 0.45), per_group=8) for seed in range(4)]
    average = compare([one for one, _ in dimensions], [other for _, other in dimensions])
    single = [compare(one, other) for one, other in dimensions]
    assert average.difference.value == pytest.approx(np.mean([test.difference.value for test in single]))
    assert average.p < min(0.05, max(test.p for test in single))
    rejected = 0
    for seed in range(40):
        equal = [judges(80, 1000 + 4 * seed + place, per_group=8) for place in range(4)]
        rejected += compare([one for one, _ in equal], [other for _, other in equal]).p < 0.05
    assert rejected <= 6


def test_comparison_uses_what_both_scored_and_pairs_by_key():
    first, second = judges(80, 2, per_group=4)
    second[5] = replace(second[5], predicted=NAN, error="too long")
    first[7] = replace(first[7], human=NAN)
    second[7] = replace(second[7], human=NAN)
    result = compare(first, list(reversed(second)), "pooled")
    assert result.n == 78
    assert replace(result, p_adjusted=0.0) == replace(compare(first, second, "pooled"), p_adjusted=0.0)
    with pytest.raises(DataError, match="not the same in both"):
        compare(first, [replace(item, human=item.human + 1) for item in second])


def test_a_judge_does_not_differ_from_itself():
    first, _ = judges(50, 3)
    result = compare(first, first, "pooled", "pearson")
    assert (result.difference.value, result.p) == (0.0, 1.0)


def test_agreement_sees_a_shift_that_correlation_does_not():
    first, _ = judges(50, 4)
    milder = [replace(item, predicted=item.predicted + 2) for item in first[:-3]]
    result = agree(first, milder)
    assert result.pearson == pytest.approx(1.0)
    assert result.mean_difference == pytest.approx(-2.0)
    assert result.mean_absolute_difference == pytest.approx(2.0)
    assert result.alpha < 0.5
    assert (result.n, result.only_first, result.only_second) == (47, 3, 0)


def test_alpha_gives_krippendorffs_published_example():
    # Krippendorff (1980), data set C: four observers, twelve units; alpha for interval data is .849.
    ratings = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
    assert krippendorff_alpha(ratings) == pytest.approx(0.849, abs=5e-4)
    assert krippendorff_alpha(ratings, ordinal=True) == pytest.approx(0.815, abs=5e-4)
    assert krippendorff_alpha(np.exp(ratings), ordinal=True) == pytest.approx(0.815, abs=5e-4)
    assert krippendorff_alpha([[1, 2, 3], [1, 2, 3]]) == 1.0
    assert np.isnan(krippendorff_alpha([[2, 2], [2, 2]]))
