"""Runs over the processes of one machine: equal to a run of one process, whoever dies, and whatever stops them."""

from __future__ import annotations

import os
from functools import partial

import pytest
import ways_kit
import worker_kit
from run_kit import METRICS, killed_when, read, write_input
from waiting import until

from geval_local.errors import ConfigurationError, Interrupted, JudgeError
from geval_local.options import JudgeOptions, RunOptions
from geval_local.runs import run_file, spread
from geval_local.runs.events import RunEvents
from geval_local.runs.run_file import resume, score_file
from geval_local.runs.spread import Spread
from geval_local.runs.workers import LocalWorkers, environments
from geval_local.testing import MockEngine, MockJudge

ROWS = 200


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(spread, "LEAST_BYTES", 1000)
    return write_input(tmp_path / "in.jsonl", ROWS)


@pytest.fixture
def expected(file, tmp_path):
    judge = MockJudge(MockEngine(batch_tokens=1500), name="nano")
    score_file(file, METRICS, judge, tmp_path / "once.jsonl", use_cache=False)
    return (tmp_path / "once.jsonl").read_bytes()


def score(file, output, workers=2, events=None, **options):
    options = {"use_cache": False, "workers": workers} | options
    return score_file(file, METRICS, "nano", output, events=events, **options)


class Progress(RunEvents):
    """Keeps what a run tells; stops it when so many outcomes are finished."""

    def __init__(self, stop: int = 10**9) -> None:
        self.stop, self.done, self.resumed, self.total = stop, [0], 0, None

    def on_score(self, judge, total, there, done):
        self.total = total

    def on_resume(self, there, total):
        self.resumed = there

    def on_progress(self, done):
        self.done.append(done)

    def should_stop(self):
        return self.done[-1] >= self.stop


@pytest.mark.slow
def test_processes_score_what_one_does_although_one_is_killed(file, tmp_path, monkeypatch, expected, caplog):
    monkeypatch.setattr(run_file, "Spread", worker_kit.spread(tmp_path / "log", deadly="90"))
    told = Progress()
    result = score(file, tmp_path / "out.jsonl", events=told)
    assert (tmp_path / "out.jsonl").read_bytes() == expected
    pids = worker_kit.workers_of(tmp_path / "log")
    assert len(pids) == 3, "one was killed, and another started"
    assert (told.done[-1], told.total) == (2 * ROWS, 2 * ROWS)
    assert "a worker was ended by SIGKILL; its share of the rows, number " in caplog.text
    assert result.manifest.settings.workers == "2"
    assert not (tmp_path / ".out.jsonl.run").exists(), "nothing is left"
    assert worker_kit.gone(list(pids))


@pytest.mark.slow
def test_a_row_that_kills_every_process_is_an_error_and_what_is_finished_is_kept(file, tmp_path, monkeypatch, expected):
    monkeypatch.setattr(run_file, "Spread", worker_kit.spread(tmp_path / "log", deadly="90", once=False))
    with pytest.raises(JudgeError, match=r"3 workers died over the same share of the rows, number \d") as caught:
        score(file, tmp_path / "out.jsonl")
    assert f"geval-local resume {tmp_path}/.out.jsonl.run" in caught.value.hint
    scored = worker_kit.workers_of(tmp_path / "log")
    assert worker_kit.gone(list(scored))
    monkeypatch.setattr(run_file, "Spread", worker_kit.spread(tmp_path / "more"))
    told = Progress()
    resume(tmp_path / ".out.jsonl.run", events=told)
    assert told.resumed > 0
    assert (tmp_path / "out.jsonl").read_bytes() == expected
    assert len([one for ids in worker_kit.workers_of(tmp_path / "more").values() for one in ids]) < 2 * ROWS


@pytest.mark.slow
def test_stopped_killed_and_continued_by_one_process(file, tmp_path, monkeypatch, expected):
    """Its own end, and the death of the command, end all workers; the same command goes on, with any number of them."""
    monkeypatch.setattr(run_file, "Spread", worker_kit.spread(tmp_path / "log", seconds=0.4))
    with pytest.raises(Interrupted) as caught:
        score(file, tmp_path / "out" / "run", events=Progress(stop=10))
    assert caught.value.directory == tmp_path / "out" / "run"
    assert worker_kit.gone(list(worker_kit.workers_of(tmp_path / "log")))

    def until_it_works() -> None:
        until(lambda: len(worker_kit.workers_of(tmp_path / "log")) >= 3)

    assert killed_when(until_it_works, lambda: score(file, tmp_path / "out" / "run", workers=2))
    assert worker_kit.gone(list(worker_kit.workers_of(tmp_path / "log")))
    with pytest.raises(Exception, match="holds a run of another configuration"):
        score_file(file, METRICS[:1], "nano", tmp_path / "out" / "run", workers=2)
    monkeypatch.setattr(run_file, "Spread", worker_kit.spread(tmp_path / "more"))
    score(file, tmp_path / "out" / "run", workers=None)
    assert (tmp_path / "out" / "run" / "scores.jsonl").read_bytes() == expected
    assert len(worker_kit.workers_of(tmp_path / "more")) == 1
    assert sorted(one.name for one in (tmp_path / "out" / "run").iterdir() if not one.name.startswith(".")) == [
        "manifest.json",
        "scores.jsonl",
        "scores.jsonl.meta.json",
        "scores.sqlite",
    ]
    assert read(tmp_path / "out" / "run" / "scores.jsonl")[3]["id"] == 3


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("feature", ["turns with thoughts", "pairs with thoughts", "decide with thoughts"])
def test_processes_write_the_bytes_of_one(tmp_path, monkeypatch, feature):
    asked, file = ways_kit.prepared(feature, tmp_path, monkeypatch)
    ways_kit.undivided(asked, file, tmp_path / "once")

    def start(workers, judges):
        return LocalWorkers([{"PLACE": str(place)} for place in range(int(workers))], ways_kit.mock_judge)

    monkeypatch.setattr(run_file, "Spread", partial(Spread, start=start))
    asked.run(file, tmp_path / "workers" / "run", workers=2)
    assert ways_kit.written(tmp_path / "workers") == ways_kit.written(tmp_path / "once")


# --- how a machine is divided -----------------------------------------------------------------------------------------


def test_workers_get_the_cards_that_the_command_may_use(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-7,6")
    judge = [JudgeOptions(name="nano")]
    cards = [one["CUDA_VISIBLE_DEVICES"] for one in environments("auto", judge)]
    assert cards == ["4", "5", "GPU-7", "6"]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments("3", judge)] == ["4", "5", "GPU-7"]
    wide = [JudgeOptions(name="nano", engine="vllm", tensor_parallel=2)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments("auto", wide)] == ["4,5", "GPU-7,6"]
    split = [JudgeOptions(name="nano", device_map="auto")]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments("2", split)] == ["4,5", "GPU-7,6"]
    with pytest.raises(ConfigurationError, match="there are 4 GPUs, not enough for 3 workers with 2"):
        environments("3", wide)
    with pytest.raises(ConfigurationError, match="names one GPU, and every worker gets one of its own"):
        environments("2", [JudgeOptions(name="nano", device="cuda:1")])


def test_without_cards_workers_divide_the_processors(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(32), raising=False)
    judge = [JudgeOptions(name="nano")]
    assert environments("auto", judge) == [{"OMP_NUM_THREADS": "8"}] * 4
    assert environments("2", judge) == [{"OMP_NUM_THREADS": "16"}] * 2
    assert len(environments("auto", [JudgeOptions(name="http://localhost:1/v1")])) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environments("2", judge) == [{"OMP_NUM_THREADS": "3"}] * 2


@pytest.mark.parametrize("text", ["0", "-1", "many", "ray:", "ray:0", "4:2", "1.5", ""])
def test_what_is_no_number_of_workers_is_refused(text):
    with pytest.raises(ConfigurationError, match="is no number of workers: write 1 to 100,000, auto"):
        RunOptions(workers=text)


def test_what_does_not_go_with_workers_is_refused(file, tmp_path):
    with pytest.raises(ConfigurationError, match="a judge that is loaded here cannot work in other processes"):
        score_file(file, METRICS, MockJudge(), tmp_path / "out.jsonl", workers=2)
    with pytest.raises(ConfigurationError, match="`workers` and `shard` exclude each other"):
        RunOptions(workers=2, shard="1/2")
    with pytest.raises(ConfigurationError, match="`distributed` is an option no more") as caught:
        RunOptions(distributed="ray")
    assert caught.value.hint == "Write `workers=ray`."
