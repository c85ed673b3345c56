"""``judges check --speed``: what a judge takes on this machine, by dtype and engine; and the line of a long run."""

from __future__ import annotations

import json
import math

import pytest
from cli_run import METRIC, judge_directory, run

from geval_local import Judge, Metric
from geval_local.cli.progress import Progress
from geval_local.cli.scoring import Stopper, shown_run
from geval_local.errors import JudgeError
from geval_local.judge import speed
from geval_local.judge.speed import Arm, ArmSpeed, measure, recommended, speed_samples
from geval_local.options import JudgeOptions

#: dtype -> rows a minute.
DTYPES = {"float32": 10.0, "bfloat16": 40.0}


@pytest.fixture
def clarity(tmp_path) -> Metric:
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    return Metric.load(tmp_path / "clarity.yaml")


@pytest.mark.slow
def test_each_setting_is_timed_by_itself_and_compared_with_the_first(clarity):
    options = JudgeOptions(name=judge_directory())
    arms = [Arm("auto", "float32"), Arm("padded", "bfloat16"), Arm("vllm", "float32")]
    told: list[tuple[int, int]] = []
    first, half, absent = measure(options, clarity, arms, on_arm=lambda *count: told.append(count))
    assert told == [(number, 3) for number in range(4)]
    for one in (first, half):
        assert one.error is None
        assert one.rows_per_minute > 0
        assert one.minutes_per_thousand == pytest.approx(1000 / one.rows_per_minute)
        assert one.memory_bytes > 50e6
    judge = Judge.load(options, dtype="float64")
    expected = [score.value for score in judge.score_many(clarity, speed_samples(clarity)[: len(first.scores)])]
    assert first.scores == pytest.approx(expected, abs=1e-4)
    assert first.moved == first.largest == 0
    assert 1e-4 < half.largest < 0.5
    assert half.moved <= half.largest
    assert "vllm" in str(absent.error).lower()
    assert math.isnan(absent.rows_per_minute)


def test_the_command_prints_a_line_for_each_setting_and_recommends_one(tmp_path, monkeypatch):
    found = [ArmSpeed(Arm("auto", kind), 1.0, rate, moved=0.0, largest=0.0) for kind, rate in DTYPES.items()]
    monkeypatch.setattr(speed, "measure", lambda options, metric, **_: found)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    given = ("judges", "check", judge_directory(), "--speed", "-m", tmp_path / "clarity.yaml")
    done = run(*given, "--json", home=tmp_path)
    assert done.exit_code == 0, done.stderr
    arms = json.loads(done.stdout)["arms"]
    assert [(one["engine"], one["dtype"], one["moved"]) for one in arms] == [("auto", kind, 0.0) for kind in DTYPES]
    done = run(*given, home=tmp_path)
    assert done.exit_code == 0, done.stderr
    *_, last = [line for line in done.stdout.splitlines() if line.strip()]
    assert last.startswith("recommended:")
    assert "bfloat16" in last


def test_a_faster_setting_is_recommended_only_if_it_hardly_moves_scores():
    slow = ArmSpeed(Arm("auto", "float32"), 1.0, 10.0, moved=0.0, largest=0.0)
    rough = ArmSpeed(Arm("auto", "bfloat16"), 1.0, 40.0, moved=0.05, largest=0.2)
    fine = ArmSpeed(Arm("vllm", "float32"), 1.0, 20.0, moved=0.001, largest=0.002)
    broken = ArmSpeed(Arm("vllm", "bfloat16"), error="no")
    assert recommended([slow, rough, broken], 4.0) is slow
    assert recommended([slow, rough, fine, broken], 4.0) is fine
    assert recommended([slow, rough, fine], 10.0) is rough
    hardly = ArmSpeed(Arm("auto", "bfloat16"), 1.0, 11.0, moved=0.001, largest=0.002)
    assert recommended([slow, hardly], 4.0) is slow


def test_a_served_judge_is_refused(clarity):
    with pytest.raises(JudgeError, match="speed of a served judge"):
        measure(JudgeOptions(name="http://127.0.0.1:9/v1"), clarity)


@pytest.mark.slow
def test_a_setting_without_scores_ends_the_comparison(clarity, tmp_path):
    with pytest.raises(JudgeError, match=r"could not be timed in float32: .*nowhere"):
        measure(JudgeOptions(name=str(tmp_path / "nowhere")), clarity, [Arm("auto", "float32")])


def test_a_long_run_says_once_how_long_it_takes(capsys):
    judge = Judge.load(judge_directory())
    progress = Progress()
    shown = shown_run(Stopper(), progress, "rows.jsonl", 1, 1)
    shown.on_loaded(judge)
    shown.on_score("tiny", 10**12, 0, 0)
    shown.on_progress(1)
    shown.on_progress(2)
    told = [line for line in capsys.readouterr().err.splitlines() if "at this rate" in line]
    assert len(told) == 1
    assert "`geval-local judges check JUDGE --speed` times other settings" in " ".join(told)
