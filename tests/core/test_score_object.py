"""What Python can do with a score, a metric and a judge: order, hash, average, write, show and copy."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest

from geval_local import Metric, Sample, Scale
from geval_local.score import Distribution, Estimator, Score
from geval_local.testing import MockJudge

METRIC = Metric(name="a/tone", criteria="<b>How</b> kind.", scale="1-5", fields={"output": "Text"}, steps=())


def score(*logits: float, **more: float) -> Score:
    p = np.log(np.exp(logits) / np.exp(logits).sum())
    return Score.from_distribution("a/tone", Distribution(Scale.parse("1-3"), p), estimator=Estimator(), **more)


LOW, MIDDLE, HIGH = score(2, 0, 0), score(0, 2, 0), score(0, 0, 2)
NONE = Score.unscored("a/tone", "the output is <empty>")


def test_scores_sort_by_value_and_the_unscored_come_last():
    given = [HIGH, NONE, LOW, replace(NONE), MIDDLE]
    for seed in range(20):
        random.Random(seed).shuffle(given)
        assert sorted(given) == [LOW, MIDDLE, HIGH, NONE, NONE]
    assert max(LOW, HIGH, MIDDLE) is HIGH
    assert replace(LOW, metric="b") >= LOW
    assert LOW >= replace(LOW, metric="b") != LOW


def test_scores_compare_with_numbers():
    assert 1 < LOW < 2 < HIGH <= HIGH.value
    assert HIGH >= 2.0
    assert LOW == LOW.value  # noqa: SIM300
    assert LOW != 2
    assert not NONE >= 0
    assert not NONE < 0
    assert NONE != 0
    with pytest.raises(TypeError, match="not supported"):
        assert LOW < "2"


def test_equal_scores_have_equal_hashes():
    again = score(2, 0, 0)
    assert again == LOW
    assert len({LOW, again, MIDDLE, NONE, replace(NONE)}) == 3
    assert hash(LOW) == hash(LOW.value)
    assert replace(LOW, label_mass=0.5) != LOW


def test_numpy_and_statistics_take_the_value():
    values = [one.value for one in (LOW, MIDDLE, HIGH)]
    assert np.mean([LOW, MIDDLE, HIGH]) == statistics.fmean(values) == statistics.fmean([LOW, MIDDLE, HIGH])
    assert np.asarray([LOW, HIGH]).dtype == np.float64
    assert math.isnan(np.mean([LOW, NONE]))
    assert np.nanmean([LOW, NONE]) == LOW.value


def test_json_has_the_figures_and_null_for_unscored():
    assert json.loads(json.dumps({"all": [LOW, NONE]}, default=Score.to_dict))["all"] == [LOW.to_dict(), NONE.to_dict()]
    assert json.loads(LOW.to_json()) == LOW.to_dict()
    assert json.loads(NONE.to_json())["score"] is None
    assert pickle.loads(pickle.dumps(LOW)) == LOW


def test_views_in_a_notebook_are_escaped():
    shown = HIGH._repr_html_()
    assert f"<td>{HIGH.value:.4g}</td>" in shown
    assert all(f"<th>p({label})</th>" in shown for label in "123")
    assert "the output is &lt;empty&gt;" in NONE._repr_html_()
    judge = MockJudge()
    assert judge.name in judge._repr_html_()
    assert judge.fingerprint in judge._repr_html_()
    judge.close()
    assert "closed" in judge._repr_html_()


def test_a_metric_is_shown_in_one_short_line():
    assert repr(METRIC) == "Metric(a/tone, scale 1-5, fields output)"
    assert len(repr(Metric.load("summarization/coherence"))) < 100


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_judge_is_not_copied_and_says_what_to_do(copied):
    judge = MockJudge()
    for one in (judge, judge.close() or judge):
        with pytest.raises(TypeError, match=r"pickle its name instead, and load it by Judge\.load\(name\)"):
            copied(one)


def test_score_takes_a_mapping_as_score_many_does():
    judge, row = MockJudge(), {"output": "How kind."}
    wanted = judge.score(METRIC, **row)
    assert judge.score(METRIC, row) == judge.score(METRIC, Sample(row)) == wanted
    assert judge.score(METRIC, {"text": "How kind."}, fields={"output": "text"}) == wanted
    assert judge.score([METRIC], row) == {METRIC.name: wanted}
    assert "missing" in (judge.score(METRIC, {"text": "How kind."}).error or "")
    with pytest.raises(TypeError, match=r"Judge\.score\(\) takes a sample or its fields, not both: output"):
        judge.score(METRIC, row, output="x")


def test_messages_name_the_judge():
    with pytest.raises(TypeError, match=r"^Judge\.score\(\) takes"):
        MockJudge().score(METRIC, {}, {})  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"^Judge\.score_many\(\) got an unexpected keyword"):
        MockJudge().score_many(METRIC, [], speed=3)  # type: ignore[call-overload]
