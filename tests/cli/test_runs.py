"""Runs on the command line: directories, resuming, signals, several judges, the cache."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cli_run import METRIC, good_rows, judge_directory, read_rows, run, write_rows

from geval_local import Judge


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data.jsonl", good_rows(12))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    return tmp_path


def score(here: Path, *arguments: object):
    named = ["--judge", judge_directory()] if "--judge" not in arguments else []
    return run("score", "data.jsonl", "--metric", "clarity.yaml", *named, *arguments, home=here / "home")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def test_a_run_directory_holds_everything(here):
    done = score(here, "-o", "runs/first/", "--format", "jsonl", "--format", "csv", "--format", "parquet")
    assert done.exit_code == 0, done.stderr
    found = names(here / "runs" / "first")
    assert set(found) >= {"manifest.json", "scores.sqlite", "scores.jsonl", "scores.csv", "scores.parquet", "steps"}
    assert pq.read_table("runs/first/scores.parquet").num_rows == 12
    assert "Read the text." in (here / "runs" / "first" / "steps" / "clarity.yaml").read_text()
    plain = score(here, "-o", "plain.jsonl")
    assert plain.exit_code == 0
    assert (here / "plain.jsonl").read_bytes() == (here / "runs" / "first" / "scores.jsonl").read_bytes()
    assert not (here / ".plain.jsonl.run").exists()


def interrupted_by(here: Path, monkeypatch: pytest.MonkeyPatch, number: int, *arguments: object):
    """Score with a signal in the middle of the second pack."""
    outcome, calls = Judge.outcome, []

    def signalling(*given):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        return outcome(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "outcome", signalling)
        return score(here, *arguments, "--batch-tokens", 600), len(calls)


@pytest.mark.sweep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_pack_and_prints_the_command(here, monkeypatch, number):
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    done, calls = interrupted_by(here, monkeypatch, number, "-o", "runs/a b/", "--no-cache")
    assert done.exit_code == 3
    assert 3 <= calls < 12
    assert "geval-local resume 'runs/a b'" in done.stderr
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    resumed = run("resume", "runs/a b", "--json", home=here / "home")
    assert resumed.exit_code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["rows"] == 12
    assert "complete: all 12 rows are there" in run("resume", "runs/a b", home=here / "home").stderr
    assert score(here, "-o", "whole/", "--no-cache", "--batch-tokens", 600).exit_code == 0
    assert (here / "runs/a b/scores.jsonl").read_bytes() == (here / "whole/scores.jsonl").read_bytes()


def test_the_same_command_goes_on_and_another_is_refused(here, monkeypatch):
    interrupted_by(here, monkeypatch, signal.SIGINT, "-o", "out.jsonl")
    refused = score(here, "-o", "out.jsonl", "--batch-tokens", 601)
    assert refused.exit_code == 2
    assert "batch_tokens was 600, is 601" in refused.stderr
    (here / "clarity.yaml").write_text(METRIC.replace("clear the text", "short the text"))
    refused = score(here, "-o", "out.jsonl", "--batch-tokens", 600)
    assert refused.exit_code == 2
    assert "metric clarity: changed in criteria" in refused.stderr
    (here / "clarity.yaml").write_text(METRIC)
    done = score(here, "-o", "out.jsonl", "--batch-tokens", 600)
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(here / "out.jsonl")) == 12


def test_resume_takes_the_output_too_and_says_where_there_is_no_run(here, monkeypatch):
    interrupted_by(here, monkeypatch, signal.SIGINT, "-o", "out.jsonl")
    assert run("resume", "out.jsonl", home=here / "home").exit_code == 0
    done = run("resume", "out.jsonl", home=here / "home")
    assert done.exit_code == 2
    assert "out.jsonl is complete: nothing is left to resume" in done.stderr
    (here / "own.jsonl").write_text('{"output": "x"}\n', encoding="utf-8")
    done = run("resume", "own.jsonl", home=here / "home")
    assert done.exit_code == 2
    assert "there is no run in own.jsonl" in done.stderr


@pytest.mark.slow
def test_several_judges_are_columns_of_their_own(here):
    other = here / "twin"
    shutil.copytree(judge_directory(), other)
    done = score(here, "--judge", judge_directory(), "--judge", "twin", "-o", "out.jsonl", "--no-cache", "--json")
    assert done.exit_code == 0, done.stderr
    figures = read_rows(here / "out.jsonl")[0]["geval"]
    keys = [f"clarity@{judge_directory().name}", "clarity@twin"]
    assert list(figures) == keys
    assert figures[keys[0]] == figures[keys[1]]
    assert list(json.loads(done.stdout)["metrics"]) == keys
    twice = score(here, "--judge", "twin", "--judge", "twin", "-o", "other.jsonl")
    assert twice.exit_code == 2
    assert "named twice" in twice.stderr


@pytest.mark.slow
def test_the_cache_is_told_shown_and_cleared(here):
    assert score(here, "-o", "one.jsonl").exit_code == 0
    again = score(here, "-o", "two.jsonl")
    assert "12 from the cache of earlier runs" in again.stderr
    assert (here / "one.jsonl").read_bytes() == (here / "two.jsonl").read_bytes()
    assert "earlier runs" not in score(here, "-o", "three.jsonl", "--no-cache").stderr
    shown = json.loads(run("cache", "--json", home=here / "home").stdout)
    assert shown["entries"] == 12
    assert run("cache", "--clear", home=here / "home").exit_code == 0
    assert json.loads(run("cache", "--json", home=here / "home").stdout)["entries"] == 0


def test_retry_errors_needs_no_second_run(here):
    write_rows(here / "data.jsonl", [*good_rows(5), {"source": "x", "output": ""}])
    assert score(here, "-o", "run/").exit_code == 0
    done = run("resume", "run", "--retry-errors", "--json", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["clarity"]["unscored"] == 1


def test_wrong_formats_are_named(here):
    for arguments, message in (
        (["-o", "run/", "--format", "xml"], "'xml' is none of 'jsonl', 'csv' or 'parquet'"),
        (["-o", "out.jsonl", "--format", "csv"], "goes with a run directory"),
    ):
        done = score(here, *arguments)
        assert done.exit_code == 2
        assert message in done.stderr
