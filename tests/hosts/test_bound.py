"""What all integrations share: a judge loaded once, calls computed together, a distribution in words."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cli_run import judge_directory
from offline import environment, reach

from geval_local import Judge, Metric, Scale
from geval_local.errors import ConfigurationError
from geval_local.hosts.bound import BoundMetric, in_words, release_judges, shared_batcher, shared_judge
from geval_local.options import JudgeOptions
from geval_local.score import Distribution, Estimator, Score
from geval_local.testing import MockEngine, MockJudge

CLARITY = Metric(name="clarity", criteria="How clear the text is.", scale="1-5", steps=())


class Counting(MockEngine):
    """An engine that notes how many prompts it is given at a time."""

    def __init__(self):
        super().__init__(batch_tokens=1 << 20)
        self.windows = []

    def execute(self, requests, packs):
        self.windows.append(len(requests))
        return super().execute(requests, packs)


def test_the_network_is_refused_in_these_tests():
    with pytest.raises(RuntimeError, match=r"a socket to 192\.0\.2\.1 was opened"):
        reach("192.0.2.1")


def test_a_judge_is_loaded_once_for_all_threads(monkeypatch):
    loaded, load = [], Judge.load

    def counted(options):
        loaded.append(options.name)
        return load(options)

    monkeypatch.setattr(Judge, "load", counted)
    directory = judge_directory()
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: shared_judge(directory), range(8)))
    assert len(found) == 1
    assert loaded == [str(directory)]
    assert shared_judge(JudgeOptions(name=str(directory), dtype="float64")) not in found
    judge = found.pop()
    assert shared_judge(judge) is judge
    release_judges()
    assert shared_judge(str(directory)) is not judge


@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_rows_that_come_one_by_one_are_computed_together(how):
    engine = Counting()
    bound = BoundMetric.bind(CLARITY, MockJudge(engine))
    rows = [{"output": f"Text number {number}."} for number in range(60)]
    if how == "threads":
        together = threading.Barrier(20)

        def one(row):
            together.wait(300)
            return bound.score(row)

        with ThreadPoolExecutor(20) as pool:
            found = list(pool.map(one, rows))
    else:

        async def all_of_them():
            return await asyncio.gather(*(asyncio.wrap_future(bound.submit(row)) for row in rows))

        found = [scores[0] for scores in asyncio.run(all_of_them())]
    assert [score.value for score in found] == [score.value for score in MockJudge().score_many(CLARITY, rows)]
    assert sum(engine.windows) == 60
    assert len(engine.windows) <= (12 if how == "threads" else 4)


def test_more_rows_than_a_server_would_queue_are_all_taken():
    bound = BoundMetric.bind(CLARITY, MockJudge())
    futures = [bound.submit({"output": f"Text {number}."}) for number in range(1500)]
    assert all(future.result(60)[0].is_scored for future in futures)


def _in_child(queue):
    queue.put(BoundMetric.bind(CLARITY, JUDGE).score({"output": "A text."}).value)


JUDGE = MockJudge()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_forked_process_has_a_batcher_of_its_own():
    value = BoundMetric.bind(CLARITY, JUDGE).score({"output": "A text."}).value
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    child.join(300)
    assert child.exitcode == 0
    assert queue.get() == value


def test_what_cannot_work_is_refused_before_a_row_is_scored():
    judge = MockJudge()
    with pytest.raises(ConfigurationError, match=r"threshold 7 is outside the scale 1-5 of clarity"):
        BoundMetric.bind(CLARITY, judge, threshold=7)
    with pytest.raises(ConfigurationError, match="no metric here has a field 'summary'"):
        BoundMetric.bind(CLARITY, judge, fields={"summary": "x"})
    with pytest.raises(ConfigurationError, match="there is no preset metric 'clarity'"):
        BoundMetric.bind("clarity", judge)


def test_missing_steps_are_written_once_when_a_metric_is_bound():
    engine = Counting()
    bound = BoundMetric.bind(CLARITY.with_steps(None), MockJudge(engine))
    assert bound.metric.steps == ("Read the texts.", "Compare them.", "Choose a score.")
    assert engine.windows == []
    assert bound.signature == str(MockJudge().signature(bound.metric))
    assert shared_batcher(bound.judge) is shared_batcher(bound.judge)


def test_a_distribution_in_words():
    scale = Scale.parse("1-5")
    distribution = Distribution(scale, [-4.0, -1.5, -0.5, -2.0, -9.0])
    p = distribution.probabilities
    score = Score.from_distribution("clarity", distribution, estimator=Estimator(), threshold=3)
    said = in_words(score, scale)
    assert said.startswith(f"{distribution.score:.3g} on 1-5: 3 ({p['3']:.0%}), 2 ({p['2']:.0%}), 4 ({p['4']:.0%})")
    assert f"label mass {distribution.label_mass:.2f}" in said
    assert f"reaches 3 with probability {distribution.probability_at_least(3):.0%}" in said
    assert in_words(Score.unscored("clarity", "the field 'output' is empty"), scale) == (
        "unscored: the field 'output' is empty"
    )
    ten = Scale.parse("1-10")
    many = Distribution(ten, [-3.0 - 0.01 * place for place in range(10)])
    low = Score.from_distribution("c", many, estimator=Estimator(), other_tokens=((" The", 0.4),))
    said = in_words(low, ten)
    others = sum(sorted(many.p)[:5])
    assert f"5 others ({others:.0%})" in said
    assert "rather have written ' The' (40%)" in said


@pytest.mark.parametrize("module", ["geval_local.hosts", "geval_local.hosts.pytest_plugin"])
def test_importing_loads_no_tool_and_no_model_library(module, tmp_path):
    code = f"import {module}, sys; print(*sorted(name.split('.')[0] for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), check=True
    )
    loaded = set(done.stdout.split())
    assert "geval_local" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "pydantic", "deepeval", "inspect_ai", "mlflow"}
