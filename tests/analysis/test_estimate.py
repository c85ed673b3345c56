"""What people would say of all rows, from scores of all and ratings of a few."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from geval_local import estimate
from geval_local.errors import ConfigurationError, DataError
from geval_local.statistics.prediction_powered import estimate_difference, estimate_mean
from geval_local.statistics.records import ScoredItem
from geval_local.wording import say_once

NAN = math.nan


def drawn(rng, n, total=400, slope=0.8, per_document=1):
    quality = rng.normal(size=total)
    human = 3 + quality + 0.3 * rng.normal(size=total)
    score = 10 + slope * quality + 0.4 * rng.normal(size=total)
    return [
        ScoredItem(f"d{at // per_document}", "", h if at < n else NAN, s, key=str(at))
        for at, (h, s) in enumerate(zip(human.tolist(), score.tolist(), strict=True))
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_estimate_is_that_of_ppi_python(seed):
    theirs = pytest.importorskip("ppi_py", reason="ppi-python is not installed")
    items = drawn(np.random.default_rng(seed), 150, total=900)
    found = estimate_mean(items)
    y, f, rest = (
        np.array(values)
        for values in (
            [i.human for i in items[:150]],
            [i.predicted for i in items[:150]],
            [i.predicted for i in items[150:]],
        )
    )
    point = float(np.squeeze(theirs.ppi_mean_pointestimate(y, f, rest, lam=found.power)))
    assert found.combined.value == pytest.approx(point, abs=1e-12)
    low, high = (float(np.squeeze(end)) for end in theirs.ppi_mean_ci(y, f, rest, alpha=0.05, lam=found.power))
    # Theirs is normal; ours is Student's and pays for the estimate of the power.
    normal = 2 * float(stats.norm.ppf(0.975)) * found.combined.error * math.sqrt(148 / 150)
    assert normal == pytest.approx(high - low, abs=1e-12)
    # Both powers are the covariance with the ratings over the variance of the scores' difference. Ours takes rated and
    # other rows by themselves, as the error does; theirs pools them.
    tuned = float(np.squeeze(theirs.ppi_mean_pointestimate(y, f, rest)))
    power = (tuned - y.mean()) / (rest.mean() - f.mean())
    pooled = np.var(np.concatenate([f, rest]), ddof=1) * (1 + 150 / 750)
    assert 0 < power < 1  # theirs is clipped
    assert found.power * (f.var() + rest.var() * 150 / 750) == pytest.approx(power * pooled, rel=1e-9)


def test_a_difference_is_summed_up_in_the_order_of_the_documents():
    """The order of a set would change its last digits from one run to the next."""
    rng = np.random.default_rng(3)
    one, other = (estimate_mean(drawn(rng, 150)) for _ in range(2))
    apart = [
        one.parts.get(name, 0.0) - other.parts.get(name, 0.0) for name in dict.fromkeys([*one.parts, *other.parts])
    ]
    assert estimate_difference(one, other)[0].error == math.sqrt(sum(value**2 for value in apart))


def test_a_useless_judge_is_left_out_and_a_good_one_is_worth_ratings():
    rng = np.random.default_rng(1)
    useless = [estimate_mean(drawn(rng, 20, slope=0.0)) for _ in range(40)]
    widths = [(one.combined.high - one.combined.low) / (one.people.high - one.people.low) for one in useless]
    assert max(widths) <= 1.05
    good = estimate_mean(drawn(rng, 20))
    assert good.helps
    assert good.worth > 25
    assert good.combined.low < 3 < good.combined.high


@pytest.mark.parametrize("slope", [0.0, 0.8])
def test_ten_documents_of_two_rows_keep_the_coverage_and_the_width(slope):
    rng = np.random.default_rng(10)
    covered, ratios = [], []
    for _ in range(200):
        human = 3 + rng.normal(size=120).repeat(2) + 0.5 * rng.normal(size=240)
        score = slope * human + 0.5 * rng.normal(size=240)
        own = [
            ScoredItem(f"d{at // 2}", "", h if at < 20 else NAN, s, key=str(at))
            for at, (h, s) in enumerate(zip(human.tolist(), score.tolist(), strict=True))
        ]
        found = estimate_mean(own)
        covered.append(found.combined.low < 3 < found.combined.high)
        ratios.append((found.combined.high - found.combined.low) / (found.people.high - found.people.low))
    assert 0.91 < np.mean(covered) < 0.985  # .95 within 2.5 standard errors of 200 data sets
    assert max(ratios) <= 1.05


def test_a_judge_that_cannot_help_weighs_nothing():
    rng = np.random.default_rng(0)
    constant = [replace(item, predicted=3.0) for item in drawn(rng, 30)]
    for items in (drawn(rng, 2), constant, drawn(rng, 400)):
        found = estimate_mean(items)
        assert found.power == 0
        assert found.combined == found.people
    assert found.p_sample == 1, "all rows are rated: they do not differ from others"


def test_documents_count_once():
    rng = np.random.default_rng(2)
    once = drawn(rng, 40)
    tenfold = [ScoredItem(i.group, "", i.human, i.predicted, key=f"{i.key}/{c}") for i in once for c in range(10)]
    one, other = estimate_mean(once), estimate_mean(tenfold)
    assert other.combined.value == pytest.approx(one.combined.value)
    assert other.combined.error == pytest.approx(one.combined.error)


def test_systems_on_the_same_documents_are_paired():
    rng = np.random.default_rng(3)
    first = drawn(rng, 40)
    second = [ScoredItem(i.group, "", i.human + 0.2, i.predicted + 0.2, key=i.key) for i in first]
    difference, p, _ = estimate_difference(estimate_mean(second), estimate_mean(first))
    assert difference.value == pytest.approx(0.2)
    assert difference.error < 1e-9
    assert p < 1e-9


def results(share=False):
    rng = np.random.default_rng(4)
    rows = []
    for document in range(120):
        base = rng.normal()
        for system, better in (("a", 0.0), ("b", 0.9)):
            quality = base + better + 0.5 * rng.normal()
            rating = float(np.clip(np.round(3 + quality), 1, 5))
            row = {"id": f"{document}{system}", "doc": str(document), "system": system}
            rows.append(
                row
                | {"rating": rating if document < 40 else None, "output": "x"}
                | {"geval": {"clarity": {"score": float(np.clip(3 + 0.6 * quality, 1, 5))}}}
            )
    return rows


def test_every_system_gets_its_estimate_and_they_are_compared():
    found = estimate(results(), "rating", group_by="doc")
    assert set(found.estimates) == {"a", "b"}
    (difference, p, p_holm, _) = found.differences["a - b"]
    assert difference.high < 0
    assert p == p_holm < 0.001
    (means, apart) = found.tables()
    assert max(len(means.headers), len(apart.headers)) <= 8
    assert "ratings" in means.rows[0][-1]
    wins = estimate(results(), "rating", group_by="doc", wins=True).estimates["a over b"]
    assert wins.combined.high < 0.5
    share = estimate(results(), "rating", group_by="doc", share=4).estimates["b"]
    assert 0.3 < share.combined.value < 0.8


def test_what_cannot_be_estimated_is_refused():
    rows = results()
    with pytest.raises(ConfigurationError, match="two things"):
        estimate(rows, "rating", group_by="doc", wins=True, share=4)
    few = [row | {"rating": row["rating"] if row["doc"] in "01" else None} for row in rows]
    with pytest.raises(DataError, match="needs three"):
        estimate(few, "rating", group_by="doc")
    with pytest.raises(ConfigurationError, match="no system 'c'"):
        estimate(rows, "rating", group_by="doc", baseline="c")


def test_ratings_of_the_best_alone_are_warned_of():
    rows = results()
    for row in rows:
        row["rating"] = 4.0 + (int(row["doc"]) % 2) if row["geval"]["clarity"]["score"] > 3.8 else None
    told = estimate(rows, "rating", group_by="doc").remarks()
    assert any("random sample" in text for text, warning in told if warning)


def test_ratings_that_all_systems_share_are_of_the_document_if_scores_are_shared_too_and_may_be_chance_in_a_few(caplog):
    rows = results()
    for row in rows:
        row["rating"] = 1.0 + int(row["doc"]) % 3
    few = [row for row in rows if row["doc"] in {one["doc"] for one in rows[:8]}]
    alike = [row | {"geval": {"clarity": {"score": 1.0 + int(row["doc"]) % 4}}} for row in rows]
    wide = [row | {"doc": f"row {row['doc']}"} for row in few]
    for given, is_told in ((few, False), (alike, False), (rows, True)):
        caplog.clear()
        say_once.cache_clear()
        estimate(given, "rating", group_by="doc")
        assert ("if it rates a pair, it is no rating of each output" in caplog.text) == is_told
    with pytest.raises(DataError, match="it rates a pair, not each output"):
        estimate(wide, "rating", group_by="doc")


@pytest.mark.parametrize(("share", "right", "rated"), [(0.3, 0.95, 20), (0.1, 0.97, 50)])
def test_a_judge_that_is_seldom_wrong_leaves_an_interval_that_holds(share, right, rated):
    """Of few ratings it errs on none, and thousands of scores add no error of their own: .5 to .8 were covered."""
    rng, covered, ratios = np.random.default_rng(12), [], []
    for _ in range(60):
        human = rng.random(2000) < share
        said = (human == (rng.random(2000) < right)).astype(float)
        ratings = np.where(np.arange(2000) < rated, human, NAN)
        items = [ScoredItem(f"d{at}", "", h, s) for at, (h, s) in enumerate(zip(ratings, said, strict=True))]
        found = estimate_mean(items, ends=(0.0, 1.0), cut=0.5)
        covered.append(found.combined.low <= share <= found.combined.high)
        assert 0 <= found.combined.low <= found.combined.value <= found.combined.high <= 1
        ratios.append((found.combined.high - found.combined.low) / (found.people.high - found.people.low))
    assert np.mean(covered) > 0.92
    assert max(ratios) <= 1.05


@pytest.mark.parametrize("rated", [3, 4, 6])
def test_no_judge_makes_the_interval_of_three_ratings_wider(rated):
    rng, covered = np.random.default_rng(13), []
    for slope in (0.0, 0.8):
        for _ in range(80):
            found = estimate_mean(drawn(rng, rated, total=100, slope=slope))
            assert found.combined.high - found.combined.low <= 1.05 * (found.people.high - found.people.low)
            covered.append(found.combined.low < 3 < found.combined.high)
    assert np.mean(covered) > 0.91


def test_equal_ratings_allow_no_interval_but_of_a_share():
    rows = results()
    for row in rows:
        row["rating"] = None if row["rating"] is None else 4.0
    found = estimate(rows, "rating", group_by="doc")
    one = found.estimates["a"]
    assert (one.combined.value, math.isnan(one.combined.low), one.helps) == (4.0, True, False)
    assert any("allow no interval" in note for note in found.tables()[0].notes)
    assert found.differences["a - b"][1] == 1
    share = estimate(rows, "rating", group_by="doc", share=4).estimates["a"]
    assert (share.people.value, share.people.high) == (1.0, 1.0)
    assert 0.8 < share.people.low < 0.95  # 40 of 40


def test_no_figure_is_nan_where_the_judge_repeats_the_ratings():
    rows = results()
    for row in rows:
        row["geval"]["clarity"]["score"] = row["rating"] or 3.0
    tables = estimate(rows, "rating", group_by="doc").tables()
    assert not any("nan" in cell or "inf" in cell for table in tables for row in table.rows for cell in row)


def test_rows_without_a_score_are_told():
    rows = results()
    for row in rows[:6]:
        row["geval"]["clarity"] = {"score": None, "error": "too long"}
    told = [text for text, _ in estimate(rows, "rating", group_by="doc").remarks()]
    assert "note: a: 3 rows without a score are left out, with their ratings" in told


def test_wins_stay_between_none_and_all():
    rows = [row | {"rating": row["rating"] if int(row["doc"]) < 4 else None} for row in results()]
    for row in rows:
        if row["rating"] is not None:
            row["rating"] = 5.0 if row["system"] == "b" else 1.0
    wins = estimate(rows, "rating", group_by="doc", wins=True).estimates["a over b"]
    for one in (wins.people, wins.combined, wins.these):
        assert one.low == one.value == 0
        assert 0.3 < one.high < 1  # four of four


@pytest.mark.parametrize("rated", [10, 50])
def test_a_random_sample_is_not_warned_of_where_the_judge_is_at_the_ceiling(rated):
    """The spread of the few rated scores is often 0: .40 and .06 of random samples of 10 and 50 were warned of."""
    rng, told = np.random.default_rng(14), 0
    for _ in range(300):
        score = np.where(rng.random(300) < 0.85, 5.0, 3 + rng.random(300))
        human = np.where(np.arange(300) < rated, rng.normal(size=300), NAN)
        items = [ScoredItem(f"d{at}", "", h, s) for at, (h, s) in enumerate(zip(human, score, strict=True))]
        told += estimate_mean(items).p_sample < 0.01
    assert told <= 10  # 3 expected, a standard deviation of 1.7; the binomial of 10 is coarse
    apart = [replace(item, predicted=item.predicted - 2) if at < rated else item for at, item in enumerate(items)]
    assert estimate_mean(apart).p_sample < 1e-6


@pytest.mark.parametrize(("rated", "total"), [(40, 60), (20, 200)])
def test_an_interval_of_these_rows_covers_their_mean(rated, total):
    rng, covered, ratios = np.random.default_rng(15), [], []
    for _ in range(300):
        items = drawn(rng, total, total=total)
        truth = np.mean([item.human for item in items])
        found = estimate_mean([replace(i, human=NAN) if at >= rated else i for at, i in enumerate(items)])
        covered.append(found.these.low <= truth <= found.these.high)
        ratios.append((found.these.high - found.these.low) / (found.combined.high - found.combined.low))
    assert 0.91 < np.mean(covered) < 0.985
    assert np.mean(ratios) < 1
    half = [replace(item, human=float(at < 5) if at < 10 else NAN, predicted=0.5) for at, item in enumerate(items[:20])]
    sure = estimate_mean(half, ends=(0.0, 1.0), cut=0.5)
    assert 5 / 20 <= sure.these.low < sure.these.high <= 15 / 20  # five yes and five no are known
    assert sure.combined.low < 5 / 20
    everything = estimate_mean(items)
    assert (everything.these.value, math.isnan(everything.these.low)) == (pytest.approx(truth), True)
    assert everything.combined.low < everything.combined.value  # of such documents it is not certain


def test_no_interval_leaves_the_scale_of_the_ratings():
    """A correction by the scores may move the estimate itself over the end."""
    rng, over = np.random.default_rng(17), 0
    for _ in range(60):
        score = np.where(rng.random(200) < 0.8, 5.0, 2.0)
        human = np.clip(score + (rng.random(200) < 0.3) - 0.2, 1, 5)
        human[25:] = NAN
        score[25:] += 0.6
        items = [ScoredItem(str(at), "", h, s) for at, (h, s) in enumerate(zip(human, score, strict=True))]
        free, found = estimate_mean(items), estimate_mean(items, ends=(1.0, 5.0))
        over += free.combined.high > 5
        for one in (found.people, found.combined, found.these):
            assert 1 <= one.low <= one.value <= one.high <= 5
    assert over > 10


def test_three_raters_widen_the_interval_to_other_raters():
    rng, covered, narrow = np.random.default_rng(16), [], []
    for _ in range(150):
        quality = np.clip(rng.normal(size=80), -1.5, 1.5)
        strict = 0.5 * rng.normal(size=4)
        rows = [
            {
                "doc": str(at),
                "geval": {"m": {"score": 3 + 0.6 * quality[at] + 0.3 * rng.normal()}},
                **{f"r{k}": 3 + quality[at] + strict[k] + 0.5 * rng.normal() if at < 40 else None for k in range(4)},
            }
            for at in range(80)
        ]
        found = estimate(rows, raters=["r0", "r1", "r2", "r3"], group_by="doc")
        one = found.estimates["all rows"]
        covered.append(one.other_raters.low <= 3 <= one.other_raters.high)
        narrow.append(one.combined.low <= 3 <= one.combined.high)
    assert np.mean(narrow) < 0.75
    assert np.mean(covered) > 0.9
    assert list(found.components) == ["documents", "systems", "outputs", "raters", "rest"]
    (means,) = [text for text, _ in found.remarks() if "mean rating by rater" in text]
    assert "r3" in means
    assert "for other raters" in found.tables()[0].headers
    assert estimate(rows, raters=["r0", "r1"], group_by="doc").estimates["all rows"].other_raters is None
    with pytest.raises(DataError, match="no row has a human rating in 'r7'"):
        estimate(rows, raters=["r0", "r1", "r7"], group_by="doc")
    with pytest.raises(ConfigurationError, match="Name one"):
        estimate(rows, "r0", raters=["r1", "r2"])
