"""Where a run lies: outputs that are no file, inputs that moved, directories that go, and other versions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from run_kit import engine, write_input

from geval_local import RunEvents, resume, score_file
from geval_local.errors import DataError, Interrupted, JudgeError, OutputError
from geval_local.judge.judge import Judge
from geval_local.signature import Signature, signature_parts
from geval_local.testing import MockJudge

METRIC = "summarization/fluency"


@pytest.fixture
def file(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return write_input(tmp_path / "in.jsonl", 120)


class StopAfter(RunEvents):
    """Stops a run once so many outcomes are finished, and does something then."""

    def __init__(self, count: int, do=lambda: None, stop: bool = True) -> None:
        self.count, self.do, self.stop, self.reached = count, do, stop, False

    def on_progress(self, done):
        if done >= self.count and not self.reached:
            self.reached = True
            self.do()

    def should_stop(self):
        return self.stop and self.reached


def score(file: Path, place: Path, judge=None, **options):
    judge = judge or MockJudge(engine())
    return score_file(file, METRIC, judge, place, fields=None, use_cache=False, window=20, **options)


@pytest.mark.parametrize("place", ["-"])
def test_standard_output_is_no_place_for_a_run(file, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="not written to standard output") as caught:
        score(file, place)
    assert "./-" in caught.value.hint
    assert not Path("-").exists()
    assert score(file, "./-/").files[0].exists()


def test_a_moved_project_says_which_command_goes_on(file, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new place"
    old.mkdir()
    file.rename(old / "in.jsonl")
    expected = score(old / "in.jsonl", tmp_path / "whole").files[0].read_bytes()
    with pytest.raises(Interrupted):
        score(old / "in.jsonl", old / "run", events=StopAfter(30))
    shutil.move(old, new)
    with pytest.raises(DataError, match="there is no file") as caught:
        resume(new / "run", load_calibration=None)
    assert f"-o '{new}/run/'" in caught.value.hint
    assert "the new path of the input" in caught.value.hint
    assert score(new / "in.jsonl", new / "run").files[0].read_bytes() == expected


@pytest.mark.parametrize("output", ["run", "out.jsonl"])
def test_a_run_directory_that_is_deleted_is_not_called_a_full_disk(file, tmp_path, output):
    directory = tmp_path / (output if output == "run" else ".out.jsonl.run")
    with pytest.raises(OutputError, match="was deleted or moved while its run was going on") as caught:
        score(file, tmp_path / output, events=StopAfter(30, lambda: shutil.rmtree(directory), stop=False))
    assert "What is finished is kept" not in caught.value.hint


def test_a_judge_that_does_not_load_is_not_called_a_deleted_run(file, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise JudgeError("a chat style needs a chat template")

    monkeypatch.setattr(Judge, "load", refuse)
    with pytest.raises(JudgeError, match="a chat style needs a chat template") as caught:
        score_file(file, METRIC, "nano", tmp_path / "out.jsonl", fields=None, use_cache=False)
    assert "deleted" not in str(caught.value)
    assert not list(tmp_path.glob(".out*"))


# --- other versions ---------------------------------------------------------------------------------------------------

VERSIONS = {"torch": "2.12.0+cpu", "transformers": "5.20.1", "version": "0.0.9"}


class OldJudge(MockJudge):
    """A judge that ran with other versions."""

    versions: ClassVar = VERSIONS

    def signature(self, metric, estimator=None):
        return Signature(**(signature_parts(str(super().signature(metric, estimator))) | self.versions))


class NewJudge(OldJudge):
    """The judge as it is with the versions that are installed now."""

    versions: ClassVar = {"torch": "2.12.1+cpu", "transformers": "5.20.2", "version": "0.1.0"}


def test_a_run_is_not_continued_with_other_versions(file, tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        score(file, tmp_path / "run", OldJudge(engine()), events=StopAfter(30))
    with pytest.raises(OutputError, match=r"torch was 2\.12\.0\+cpu, is 2\.12\.1"):
        score(file, tmp_path / "run", NewJudge(engine()))
    assert score(file, tmp_path / "run", OldJudge(engine())).there >= 30
