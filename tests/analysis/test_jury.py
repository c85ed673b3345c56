import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr, wasserstein_distance

from geval_local.analysis.juries import against_judges, convene, disagreement_table, distances
from geval_local.errors import ConfigurationError
from geval_local.scale import Scale
from geval_local.statistics.records import ScoredItem

SCALE = Scale.parse("1-3")


def judge(seed, skill, n=60):
    """A judge whose distributions lean towards the truth by `skill` (negative: away from it)."""
    truth = np.random.default_rng(0).uniform(1, 3, n)
    rng = np.random.default_rng(seed)
    items = []
    for index, rating in enumerate(truth):
        logits = skill * (rating - 2) * np.array([-1, 0, 1]) + rng.normal(0, 0.5, 3)
        p = np.exp(logits) / np.exp(logits).sum()
        items.append(
            ScoredItem(
                f"d{index // 5}",
                "",
                float(rating),
                float(p @ [1, 2, 3]),
                dict(zip("123", p.tolist(), strict=True)),
                key=str(index),
            )
        )
    return items


def test_disagreement_is_the_distance_along_the_scale():
    rng = np.random.default_rng(1)
    p = rng.dirichlet([1, 1, 1], size=(3, 10))
    values = [1, 2, 3]
    pairs = ((0, 1), (0, 2), (1, 2))
    expected = [np.mean([wasserstein_distance(values, values, p[a, i], p[b, i]) for a, b in pairs]) for i in range(10)]
    np.testing.assert_allclose(distances(p, SCALE), expected, atol=1e-12)


def test_judges_at_the_ends_disagree_more_than_neighbours():
    scale = Scale.parse("1-5")
    one, two, five = np.eye(5)[[0, 1, 4]]
    assert distances(np.stack([one, two])[:, None], scale)[0] == pytest.approx(1)
    assert distances(np.stack([one, five])[:, None], scale)[0] == pytest.approx(4)
    # The values count, and not the order of the labels.
    words = Scale.parse({"good": 10, "poor": 0, "fair": 4})
    good, poor, fair = np.eye(3)
    assert distances(np.stack([poor, good])[:, None], words)[0] == pytest.approx(10)
    assert distances(np.stack([poor, fair])[:, None], words)[0] == pytest.approx(4)


def test_the_verdict_is_the_mean_distribution():
    a, b = judge(1, 2.0), judge(2, 1.0)
    jury = convene({"a": a, "b": b}, SCALE)
    assert jury.items[3].probabilities["2"] == pytest.approx((a[3].probabilities["2"] + b[3].probabilities["2"]) / 2)
    assert jury.items[3].predicted == pytest.approx((a[3].predicted + b[3].predicted) / 2)
    assert len(jury.disagreement) == 60


def test_items_that_a_judge_left_unscored_are_left_out_by_key():
    a, b = judge(1, 2.0), judge(2, 1.0)
    b[4] = replace(b[4], predicted=math.nan, probabilities=None, error="too long")
    jury = convene({"a": a, "b": list(reversed(b))}, SCALE)
    assert (len(jury.items), jury.left_out) == (59, 1)
    assert [item.key for item in jury.items] == [item.key for item in a if item.key != "4"]
    assert jury.items[0].predicted == pytest.approx((a[0].predicted + b[0].predicted) / 2)


def test_a_jury_of_equals_beats_its_members():
    members = {str(seed): judge(seed, 0.8) for seed in range(5)}
    jury = convene(members, SCALE)

    def rho(items):
        return spearmanr([i.human for i in items], [i.predicted for i in items])[0]

    assert rho(jury.items) > max(rho(items) for items in members.values())


def test_the_jury_is_tested_against_each_judge_and_the_best_is_named():
    members = {"good": judge(1, 1.5), "fair": judge(2, 0.7), "poor": judge(3, 0.2)}
    jury = convene(members, SCALE)
    best, tests = against_judges(jury, members, "pooled")
    assert best == "good"
    assert set(tests) == set(members)
    assert tests["poor"].difference.low > 0
    assert all(test.p_adjusted >= test.p for test in tests.values())
    assert tests["good"].first == tests["poor"].first


@pytest.mark.parametrize("count", [2, 5, 6, 9])
def test_scores_of_many_judges_fit_into_eight_columns(count):
    members = {f"j{seed}": judge(seed, 1.0) for seed in range(count)}
    scores = {name: {item.key: item.predicted for item in items} for name, items in members.items()}
    table = disagreement_table(convene(members, SCALE), scores, 3)
    assert len(table.headers) == len(table.rows[0]) == (3 + count if count < 6 else 5)
    lowest = min(scores, key=lambda name: scores[name][table.rows[0][0]])
    assert count < 6 or table.rows[0][3].endswith(f"({lowest})")


def test_what_cannot_be_a_jury_is_refused():
    a = judge(1, 2.0)
    with pytest.raises(ConfigurationError, match="at least two judges"):
        convene({"a": a}, SCALE)
