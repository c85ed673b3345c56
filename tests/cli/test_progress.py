"""Progress messages of a run: writing of steps, occasional lines, and stopping."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
from cli_run import METRIC, STEPS, good_rows, judge_directory, run, write_rows

import geval_local.judge.judge
from geval_local import Judge
from geval_local.cli import progress
from geval_local.cli.progress import Progress, show_progress
from geval_local.cli.scoring import Stopper, shown_run

BARE = METRIC.split("steps:")[0]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data.jsonl", good_rows(12))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    (tmp_path / "bare.yaml").write_text(BARE, encoding="utf-8")
    return tmp_path


def score(here: Path, *arguments: object):
    return run("score", "data.jsonl", "-j", judge_directory(), *arguments, home=here / "home")


def written_slowly(self, prompt, *, max_new_tokens, on_token):
    """Write steps slowly enough to print a progress line."""
    for count in (1, 2, 3):
        on_token(count)
        time.sleep(0.2)
    return STEPS


def test_the_writing_of_steps_is_announced_and_its_tokens_are_counted(here, monkeypatch):
    monkeypatch.setattr(Judge, "continue_text", written_slowly)
    monkeypatch.setattr(progress, "HEARTBEAT", 0.1)
    done = score(here, "-m", "bare.yaml", "-o", "out.jsonl")
    assert done.exit_code == 0, done.stderr
    lines = done.stderr.splitlines()
    announced = lines.index("writing the evaluation steps of clarity ...")
    told = [line for line in lines[announced:] if line.startswith("writing the evaluation steps of clarity: ")]
    assert re.search(r": [123] tokens, [\d.]+ tokens/s, 0:0\d so far$", told[-1])
    # Nothing is scored while steps are written.
    assert not any(line.startswith("scoring") for line in lines[: lines.index(told[-1])])


@pytest.mark.parametrize("verb", ["steps", "meta-eval"])
def test_other_verbs_announce_it_too(here, monkeypatch, verb):
    monkeypatch.setattr(Judge, "continue_text", written_slowly)
    monkeypatch.setattr(progress, "HEARTBEAT", 0.1)
    write_rows(here / "data.jsonl", [row | {"rating": 1 + number % 5} for number, row in enumerate(good_rows(12))])
    arguments = ["bare.yaml"] if verb == "steps" else ["data.jsonl", "-m", "bare.yaml", "--human", "rating"]
    done = run(verb, *arguments, "-j", judge_directory(), home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert "writing the evaluation steps of clarity ...\n" in done.stderr
    assert re.search(r"writing the evaluation steps of clarity: \d tokens", done.stderr)


@pytest.mark.slow
def test_a_line_tells_rows_rate_and_time_left_where_stderr_is_no_terminal(here, monkeypatch):
    outcome = Judge.outcome

    def slow(*given):
        time.sleep(0.1)
        return outcome(*given)

    monkeypatch.setattr(Judge, "outcome", slow)
    monkeypatch.setattr(progress, "HEARTBEAT", 0.1)
    done = score(here, "-m", "clarity.yaml", "--batch-tokens", 300, "--no-cache")
    assert done.exit_code == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("scoring data.jsonl: ")]
    assert any(re.fullmatch(r"scoring data.jsonl: \d+ of 12 rows, [\d.]+ rows/s, 0:0\d left", line) for line in lines)
    counts = [int(re.search(r": (\d+) of", line)[1]) for line in lines]
    assert counts == sorted(counts)


def test_a_line_tells_of_loading(here, monkeypatch):
    load = geval_local.judge.judge.Judge.load

    def slow(*given, **named):
        time.sleep(0.5)
        return load(*given, **named)

    monkeypatch.setattr(geval_local.judge.judge.Judge, "load", slow)
    monkeypatch.setattr(progress, "HEARTBEAT", 0.1)
    done = score(here, "-m", "clarity.yaml")
    assert re.search(r"^loading the judge: 0:0\d so far$", done.stderr, re.MULTILINE)


def test_loading_shows_bytes():
    shown, now = Progress(), [0.0]
    shown.bar.get_time = lambda: now[0]
    shown.begin("loading the judge")
    shown.read(4_200_000_000, 16_100_000_000)
    assert shown.line() == "loading the judge: 4.2 of 16.1 GB, 0:00 so far"
    now[0] = 10.0
    shown.read(8_400_000_000, 16_100_000_000)
    assert shown.line() == "loading the judge: 8.4 of 16.1 GB, 0:18 left"
    shown.read(16_100_000_000, 16_100_000_000)
    assert shown.line().startswith("checking what was read, 16.1 GB: ")
    shown.begin("scoring data.jsonl", 8, unit="rows")
    shown.read(1, 2)
    assert "rows" in shown.line()


def test_lines_come_at_least_every_half_minute():
    assert progress.HEARTBEAT <= 30


def test_the_time_left_is_that_of_the_latest_batch_and_only_shrinks_between_two():
    told = Progress()
    now = [0.0]
    told.bar.get_time = lambda: now[0]
    told.begin("scoring x", 400, unit="scores", there=40, done=0)
    now[0] = 10.0
    told.advance(40)
    assert told.line() == "scoring x: 40 of 400 scores, 0:10 so far"  # these were there; they tell no rate
    told.advance(80)
    assert told.line() == "scoring x: 120 of 400 scores, 8 scores/s, 0:35 left"
    now[0] = 30.0
    assert told.line() == "scoring x: 120 of 400 scores, 8 scores/s, 0:15 left"
    now[0] = 7210.0
    assert told.line() == "scoring x: 120 of 400 scores, 8 scores/s, 2:00:10 so far"
    told.reach(200)
    assert told.line() == "scoring x: 200 of 400 scores, 0.0222 scores/s, 2:30:12 left"


def test_several_judges_are_named_and_their_scores_counted():
    told = Progress()
    shown = shown_run(Stopper(), told, "data.jsonl", 4, 2)
    for judge, done in (("nano", 0), ("smol", 20)):
        shown.on_score(judge, 40, 0, done)
        shown.on_progress(done + 10)
        assert told.line().startswith(f"scoring data.jsonl by {judge}: {done + 10} of 40 scores, ")
    one = shown_run(Stopper(), told, "data.jsonl", 1, 1)
    one.on_score("nano", 10, 0, 0)
    assert told.line() == "scoring data.jsonl: 0 of 10 rows, 0:00 so far"


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_and_no_line(monkeypatch, capsys):
    from rich.console import Console

    console = Console(file=sys.stderr, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "message_console", lambda: console)
    monkeypatch.setattr(progress, "HEARTBEAT", 0.01)
    with show_progress("scoring x", 10) as told:
        told.advance(5)
        time.sleep(1)  # a bar is drawn anew ten times a second, its figures twice
        told.begin("writing y", unit="tokens")
    shown = capsys.readouterr().err
    assert "5 of 10 rows" in shown
    assert "writing y" in shown
    assert "scoring x: " not in shown


def test_resuming_says_what_is_there(here, monkeypatch):
    outcome, calls = Judge.outcome, []

    def signalling(*given):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return outcome(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "outcome", signalling)
        stopped = score(here, "-m", "clarity.yaml", "-o", "out.jsonl", "--batch-tokens", 600, "--no-cache")
    assert stopped.exit_code == 3
    assert "resuming" not in stopped.stderr
    done = run("resume", "out.jsonl", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert f"resuming: {len(calls)} of 12 rows are there\n" in done.stderr


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_writing_of_steps(here, number):
    before = {path.name for path in here.iterdir()}
    command = ["score", "data.jsonl", "-m", "bare.yaml", "-j", str(judge_directory()), "-o", "out.jsonl"]
    environment = os.environ | {"GEVAL_LOCAL_HOME": str(here / "home")}
    process = forked.start(command, "endless_steps", cwd=here, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    while not lines or lines[-1] != "writing the evaluation steps of clarity ...\n":
        lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)
    process.send_signal(number)
    _, rest = process.communicate(timeout=300)
    assert process.returncode == 3, rest
    assert "Traceback" not in rest
    assert "interrupted; run it again with:" in rest
    assert {path.name for path in here.iterdir()} - {"home"} == before
