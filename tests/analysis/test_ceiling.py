import numpy as np
import pytest
from scipy import stats

from geval_local.analysis.meta_evaluation import human_ceiling
from geval_local.errors import ConfigurationError, DataError
from geval_local.statistics.correlation import krippendorff_alpha
from geval_local.statistics.records import ScoredItem


def rated(documents=40, per_document=6, noise=0.7, judge_noise=1.4, seed=0):
    rng = np.random.default_rng(seed)
    n = documents * per_document
    quality = rng.normal(size=n)
    raters = {name: (quality + noise * rng.normal(size=n)).tolist() for name in ("a", "b", "c")}
    judge = quality + judge_noise * rng.normal(size=n)
    items = [
        ScoredItem(f"d{i // per_document}", f"s{i % per_document}", float("nan"), float(score), key=str(i))
        for i, score in enumerate(judge)
    ]
    return raters, items


def test_leave_one_out_is_each_rater_with_the_mean_of_the_others():
    raters, items = rated()
    found = human_ceiling(raters, {"judge": items}, "pooled", "pearson")
    table = np.array(list(raters.values()))
    people, judge = [], []
    for place in range(3):
        others = np.delete(table, place, axis=0).mean(axis=0)
        people.append(stats.pearsonr(table[place], others)[0])
        judge.append(stats.pearsonr([item.predicted for item in items], others)[0])
    assert found.people.value == pytest.approx(np.mean(people))
    assert found.judges["judge"].agreement.value == pytest.approx(np.mean(judge))
    assert found.alpha == pytest.approx(krippendorff_alpha(table))
    assert found.people.low < found.people.value < found.people.high


@pytest.mark.slow
def test_a_judge_as_noisy_as_a_person_is_not_below_the_ceiling():
    worse = human_ceiling(*(lambda r, i: (r, {"judge": i}))(*rated())).judges["judge"]
    assert worse.difference.high < 0
    assert worse.p < 0.01
    below = 0
    for seed in range(40):
        raters, items = rated(judge_noise=0.7, seed=seed)
        below += human_ceiling(raters, {"judge": items}, "summary").judges["judge"].p < 0.05
    assert below <= 6


def test_missing_ratings_and_unscored_items_are_left_out_of_everything():
    raters, items = rated(10)
    raters["a"][0] = raters["b"][0] = float("nan")
    found = human_ceiling(raters, {"judge": items}, "pooled")
    assert found.n == 59
    with pytest.raises(ConfigurationError, match="at least two raters"):
        human_ceiling({"a": raters["a"]}, {"judge": items})
    with pytest.raises(DataError, match="not of the same items"):
        human_ceiling(raters, {"judge": items[:-1]})
    alone = {
        name: [value if i % 3 == place else float("nan") for i, value in enumerate(own)]
        for place, (name, own) in enumerate(raters.items())
    }
    with pytest.raises(DataError, match="ratings of two people"):
        human_ceiling(alone, {"judge": items})
