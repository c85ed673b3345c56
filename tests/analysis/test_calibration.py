import json
import math
from dataclasses import replace

import numpy as np
import pytest

from geval_local.analysis.calibration import (
    calibration_table,
    fit_calibration,
    fit_isotonic,
    fit_temperature,
    follow,
    heat,
    load_calibration,
    save_calibration,
)
from geval_local.errors import ConfigurationError, DataError, OutputError
from geval_local.scale import Scale
from geval_local.statistics.records import ScoredItem

SCALE = Scale.parse("1-5")


def judged(documents=40, per_document=5, sharpness=4.0, seed=0, informative=True):
    """A judge that is right but too sure of itself: its distributions are the true ones to a power."""
    rng = np.random.default_rng(seed)
    items = []
    for document in range(documents):
        for place in range(per_document):
            true = rng.dirichlet(np.full(5, 1.5))
            human = float(true @ SCALE.array) if informative else float(rng.uniform(1, 5))
            p = heat(true[None], 1 / sharpness)[0]
            probabilities = dict(zip(SCALE.labels, p.tolist(), strict=True))
            items.append(
                ScoredItem(f"d{document}", "", human, float(p @ SCALE.array), probabilities, key=f"{document}/{place}")
            )
    return items


def test_the_temperature_that_was_put_in_is_found():
    result = fit_calibration(judged(sharpness=4.0), SCALE, "temperature")
    assert result.temperature == pytest.approx(4.0, rel=1e-3)
    assert result.held_out.after.error < 1e-3
    assert result.held_out.before.error > 0.3
    assert result.held_out.gain.low > 0


def test_no_temperature_is_worse_than_none():
    rng = np.random.default_rng(3)
    for _ in range(20):
        p, human = rng.dirichlet(np.full(5, 0.3), size=30), rng.uniform(1, 5, 30)
        error = [
            float(((heat(p, t) @ SCALE.array - human) ** 2).mean()) for t in (fit_temperature(p, SCALE, human), 1.0)
        ]
        assert error[0] <= error[1]


def test_isotonic_map_pools_violators_and_averages_ties():
    knots = fit_isotonic(np.array([1.0, 2.0, 3.0, 4.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0, 6.0]))
    assert knots == ((1.0, 1.0), (2.0, 2.5), (3.0, 2.5), (4.0, 5.0))
    np.testing.assert_allclose(follow(knots, np.array([0.0, 1.5, 2.5, 3.5, 9.0])), [1.0, 1.75, 2.5, 3.75, 5.0])


def test_isotonic_knots_stand_for_all_fitted_points():
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    y = x + rng.normal(size=300)
    knots = fit_isotonic(x, y)
    assert len(knots) < 150
    assert [k[1] for k in knots] == sorted(k[1] for k in knots)
    # Least squares: the residuals of the map sum to zero.
    assert float((y - follow(knots, x)).sum()) == pytest.approx(0.0, abs=1e-8)


def test_isotonic_needs_no_distribution_and_reaches_other_units():
    items = [replace(item, probabilities=None, human=10 * item.human) for item in judged()]
    result = fit_calibration(items, SCALE, "isotonic")
    assert result.temperature == 1.0
    assert result.held_out.after.error < result.held_out.constant_error < result.held_out.before.error
    assert result.apply(3.0) == pytest.approx(30, abs=2)


def test_noise_gains_nothing_over_the_constant_and_that_is_reported():
    # In-sample, an isotonic map always beats the constant answer. Held out it cannot.
    items = judged(30, 4, informative=False)
    result = fit_calibration(items, SCALE, "isotonic", level="pooled")
    x, y = (np.array([getattr(item, side) for item in items]) for side in ("predicted", "human"))
    in_sample = float(np.abs(follow(result.knots, x) - y).mean())
    assert in_sample < float(np.abs(y - y.mean()).mean())
    assert result.held_out.after.error > result.held_out.constant_error * 0.99
    assert abs(result.held_out.after.spearman) < 0.35


def test_no_item_is_scored_by_a_map_that_saw_its_document(monkeypatch):
    # Every document has its own rating and its own score: a map that saw the document would know the rating.
    rng = np.random.default_rng(2)
    items = [
        ScoredItem(f"d{d}", "", rating, float(score), key=f"{d}/{i}")
        for d, (rating, score) in enumerate(zip(rng.permutation(30).astype(float), rng.uniform(size=30), strict=True))
        for i in range(8)
    ]
    held_out = fit_calibration(items, SCALE, "isotonic", level="pooled", folds=10).held_out
    assert held_out.after.error > 6.5
    assert held_out.folds == 10


def test_baselines_go_by_the_squared_loss():
    rng = np.random.default_rng(1)
    ratings = np.where(rng.random(200) < 0.8, 5.0, 1.0)
    items = [ScoredItem(f"d{i // 4}", "", r, float(rng.uniform(1, 5)), key=str(i)) for i, r in enumerate(ratings)]
    held = fit_calibration(items, SCALE, "isotonic", level="pooled").held_out
    assert held.constant_error == pytest.approx(ratings.std(), rel=0.02)
    assert not held.helps
    assert "help" in held.verdict


def test_a_gain_that_is_mere_rescaling_is_called_that():
    rng = np.random.default_rng(2)
    items = []
    for index in range(300):
        score = float(rng.uniform(1, 5))
        items.append(ScoredItem(f"d{index // 5}", "", 20 * score + 10 * rng.normal(), score, key=str(index)))
    held = fit_calibration(items, SCALE, "isotonic", level="pooled").held_out
    assert held.gain.low > 0
    assert held.over_constant.low > 0
    assert held.helps
    assert not held.beats_rescaling
    assert "rescaling" in held.verdict
    assert held.rescaled.error == pytest.approx(10, rel=0.1)


def test_what_a_line_cannot_do_is_called_help():
    rng = np.random.default_rng(3)
    items = []
    for index in range(300):
        score = float(rng.uniform(1, 5))
        rating = (1.0 if score < 3 else 5.0) + 0.2 * rng.normal()
        items.append(ScoredItem(f"d{index // 5}", "", rating, score, key=str(index)))
    held = fit_calibration(items, SCALE, "isotonic", level="pooled").held_out
    assert held.helps
    assert held.beats_rescaling
    assert "beyond" in held.verdict


def test_figures_in_sample_are_refused():
    with pytest.raises(ConfigurationError, match="nothing can be held out with 1 group"):
        fit_calibration(judged(1), SCALE)
    with pytest.raises(ConfigurationError, match="nothing can be held out"):
        fit_calibration(judged(), SCALE, folds=1)
    assert fit_calibration(judged(3), SCALE, folds=5).held_out.folds == 3


def test_ratings_off_the_scale_and_missing_figures_are_refused():
    items = judged()
    with pytest.raises(ConfigurationError, match="outside the scale 1-5"):
        fit_calibration([replace(item, human=item.human * 20) for item in items], SCALE)
    with pytest.raises(DataError, match="no label probabilities"):
        fit_calibration([replace(item, probabilities=None) for item in items], SCALE)
    with pytest.raises(DataError, match="no item has both"):
        fit_calibration([replace(item, human=math.nan) for item in items], SCALE)
    with pytest.raises(ConfigurationError, match="unknown method"):
        fit_calibration(items, SCALE, "magic")


@pytest.mark.parametrize("method", ["temperature", "isotonic", "both"])
def test_a_saved_calibration_scores_as_before(tmp_path, method):
    items = judged(6)
    made = fit_calibration(items, SCALE, method, metric="m", human="rating", signature="sig")
    save_calibration(made, tmp_path / "c.json")
    read = load_calibration(tmp_path / "c.json")
    assert read == made
    for item in items[:5]:
        value = read.apply(item.predicted, item.probabilities)
        assert value == made.apply(item.predicted, item.probabilities)
        if method == "temperature":
            p = heat(np.array([list(item.probabilities.values())]), made.temperature)[0]
            assert value == pytest.approx(float(p @ SCALE.array))
    assert math.isnan(read.apply(math.nan))


def test_undefined_figures_survive_the_file(tmp_path):
    items = [replace(item, human=3.0) for item in judged(4)]
    made = fit_calibration(items, SCALE, "isotonic")
    save_calibration(made, tmp_path / "c.json")
    assert "NaN" not in (tmp_path / "c.json").read_text()
    assert math.isnan(load_calibration(tmp_path / "c.json").held_out.after.spearman)


def test_a_file_that_is_not_a_calibration_is_refused(tmp_path):
    path = tmp_path / "c.json"
    save_calibration(fit_calibration(judged(6), SCALE), path)
    good = json.loads(path.read_text())
    for change, message in (
        ({"format": "x"}, "is not a calibration"),
        ({"version": 1}, "version 1, this package reads version 3"),
        ({"knots": [[1, 2], [2, 1]]}, "does not rise"),
        ({"temperature": 0}, "damaged"),
        ({"scale": [["1"], [1]]}, "damaged"),
        ({"held_out": {}}, "damaged"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(ConfigurationError, match=message):
            load_calibration(path)
    path.write_text("{")
    with pytest.raises(ConfigurationError, match="is not a calibration"):
        load_calibration(path)
    with pytest.raises(ConfigurationError, match=r"cannot read the calibration .*none\.json: No such file"):
        load_calibration(tmp_path / "none.json")
    with pytest.raises(OutputError, match="cannot write"):
        save_calibration(fit_calibration(judged(6), SCALE), tmp_path / "none" / "c.json")


def test_isotonic_pooling_weighs_scores_by_their_items():
    assert fit_isotonic(np.array([1.0, 1.0, 1.0, 2.0]), np.array([3.0, 3.0, 3.0, 1.0])) == ((1.0, 2.5), (2.0, 2.5))


def test_a_map_that_knows_systems_gains_less_on_new_ones(tmp_path):
    """The scores tell systems apart that people rate as they please: the map learns these systems, not the texts."""
    rng = np.random.default_rng(11)
    level, liked = np.linspace(1.5, 4.5, 8), rng.permutation(np.linspace(1.5, 4.5, 8))
    items = [
        ScoredItem(
            f"d{d}", f"s{s}", float(np.clip(liked[s] + rng.normal(0, 0.3), 1, 5)), float(level[s]), key=f"{d}/{s}"
        )
        for d in range(30)
        for s in range(8)
    ]
    held = fit_calibration(items, SCALE, "isotonic").held_out
    assert held.gain.low > 0
    assert held.new_systems_gain.value < 0.7 * held.gain.value
    fitted = fit_calibration(items, SCALE, "isotonic")
    (gain,) = [note for note in calibration_table(fitted).notes if note.startswith("new systems")]
    assert f"{held.new_systems_gain.value:.2f}"[:4] in gain
    save_calibration(fitted, tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json").held_out.new_systems_gain == held.new_systems_gain
    # Systems that answer a document of their own each, or no systems: nothing is said of new ones.
    alone = fit_calibration([replace(item, system="") for item in items], SCALE, "isotonic")
    assert math.isnan(alone.held_out.new_systems_gain.value)
    assert not any("new systems" in note for note in calibration_table(alone).notes)
