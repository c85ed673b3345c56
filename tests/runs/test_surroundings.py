"""Locks under names of the user's files, two writers of a run, other umasks, a clock set back, an unwritable home."""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from run_kit import engine, execute, wanted, write_input

from geval_local import RunEvents, score_file
from geval_local.errors import Interrupted, OutputError
from geval_local.files import home_folder
from geval_local.runs import manifest as manifests
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.directory import clean_directory, make
from geval_local.runs.manifest import read_manifest
from geval_local.runs.own_files import LOCK_NAME, hold
from geval_local.score import Outcome
from geval_local.testing import MockJudge


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return write_input(tmp_path / "in.jsonl", 60)


# --- locks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hard link", "link", "pipe", "directory", "text", "long number"])
@pytest.mark.parametrize("content", ["12345", ""])
def test_a_lock_is_not_written_into_a_file_of_the_users(file, tmp_path, kind, content):
    place, kept = tmp_path / "run", tmp_path / "kept"
    place.mkdir()
    kept.write_text(content)
    lock = place / LOCK_NAME
    {
        "hard link": lambda: lock.hardlink_to(kept),
        "link": lambda: lock.symlink_to(kept),
        "pipe": lambda: os.mkfifo(lock),
        "directory": lock.mkdir,
        "text": lambda: lock.write_text("my own notes"),
        "long number": lambda: lock.write_text("7" * 21),
    }[kind]()
    before = lock.lstat()
    with pytest.raises(OutputError, match=LOCK_NAME):
        execute(place, wanted(file))
    with pytest.raises(OutputError, match=LOCK_NAME) as caught, hold(place):
        pass
    assert caught.value.hint
    assert kept.read_text() == content
    after = lock.lstat()
    assert (after.st_ino, after.st_mode, after.st_size, after.st_nlink) == (
        before.st_ino,
        before.st_mode,
        before.st_size,
        before.st_nlink,
    )


def test_a_run_whose_store_has_another_name_is_not_written_into(file, tmp_path):
    """As a copy by hard links has, which the run would change with its own file."""
    with pytest.raises(Interrupted):
        execute(tmp_path / "run", wanted(file), stop_after=2)
    copy = tmp_path / "copy.sqlite"
    copy.hardlink_to(tmp_path / "run" / "scores.sqlite")
    before = copy.read_bytes()
    with pytest.raises(OutputError, match=r"scores\.sqlite: the file has another name as well \(a hard link\)"):
        execute(tmp_path / "run", None)
    assert copy.read_bytes() == before
    copy.unlink()
    execute(tmp_path / "run", None)


def test_a_directory_is_held_once_and_goes_while_it_is_held(tmp_path):
    run = tmp_path / "run"
    assert make(run)
    with hold(run):
        with pytest.raises(OutputError, match="in use by another process"), hold(run):
            pass
        assert [path.name for path in run.iterdir()] == [LOCK_NAME]
        clean_directory(run, made=True)
        assert not run.exists()
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_never_hold_a_directory_together(tmp_path):
    def work() -> None:
        won = 0
        while won < 100:
            try:
                made = make(tmp_path / "run")
                with hold(tmp_path / "run"):
                    os.close(os.open(tmp_path / "holder", os.O_CREAT | os.O_EXCL))
                    os.unlink(tmp_path / "holder")
                    won += 1
                    clean_directory(tmp_path / "run", made or won % 2 == 0)
            except OutputError:
                continue

    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4


# --- another umask, another clock ------------------------------------------------------------------------------------


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}


@pytest.mark.parametrize(("first", "second"), [(0o000, 0o077), (0o077, 0o000), (0o027, 0o007)])
def test_another_umask_changes_neither_bytes_nor_privacy(file, tmp_path, first, second):
    (expected,) = execute(tmp_path / "whole", wanted(file, window=12))
    before = os.umask(first)
    try:
        with pytest.raises(Interrupted):
            execute(tmp_path / "run", wanted(file, window=12), stop_after=2)
        os.umask(second)
        (found,) = execute(tmp_path / "run", None)
        result = score_file(file, "summarization/fluency", MockJudge(engine()), tmp_path / "out.jsonl", fields=None)
    finally:
        os.umask(before)
    assert found.read_bytes() == expected.read_bytes()
    private = modes(tmp_path / "run")
    assert private.pop(".") == 0o700
    assert set(private.values()) == {0o600}
    for path in [*result.files, *(one.with_name(f"{one.name}.meta.json") for one in result.files)]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~second


def test_a_clock_that_is_set_back_changes_nothing(file, tmp_path, monkeypatch):
    (expected,) = execute(tmp_path / "whole", wanted(file, window=12))
    place = tmp_path / "run"
    with pytest.raises(Interrupted):
        execute(place, wanted(file, window=12), stop_after=2)
    started = read_manifest(place).started
    # What was written before seems to come from the future.
    ahead = time.time() + 400 * 86400
    for path in [place, *place.rglob("*")]:
        os.utime(path, (ahead, ahead))
    back = time.time() - 400 * 86400
    monkeypatch.setattr(time, "time", lambda: back)
    monkeypatch.setattr(time, "time_ns", lambda: int(back * 1e9))
    monkeypatch.setattr("geval_local.runs.run.now", lambda: "2001-01-01T00:00:00+00:00")
    monkeypatch.setattr(manifests, "now", lambda: "2001-01-01T00:00:00+00:00")
    (found,) = execute(place, None)
    assert found.read_bytes() == expected.read_bytes()
    record = read_manifest(place)
    assert record.started == started
    assert record.ended == "2001-01-01T00:00:00+00:00"
    assert execute(place, None)[0].read_bytes() == expected.read_bytes()


# --- what a run tells ------------------------------------------------------------------------------------------------


class Totals(RunEvents):
    """Keeps the totals that it is told."""

    def __init__(self) -> None:
        self.told: list[int | None] = []

    def on_score(self, judge, total, there, done):
        self.told.append(total)


@pytest.mark.parametrize(("limit", "expected"), [(7, 7), (60, 60), (1000, 60), (None, 60)])
def test_the_total_is_the_smaller_of_the_rows_and_the_limit(file, limit, expected):
    events = Totals()
    result = score_file(
        file, "summarization/fluency", MockJudge(), limit=limit, events=events, use_cache=False, fields=None
    )
    assert events.told == [expected]
    assert result.rows == expected


def test_an_unwritable_home_is_told_once_by_pins_and_cache(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "file" / "home"))
    caplog.set_level(logging.WARNING, "geval_local")
    assert home_folder("steps") is None
    cache = OutcomeCache()
    outcome = Outcome(label_logprobs=np.log([0.5, 0.5]))
    assert cache.find([b"key"]) == {}
    cache.add({b"key": outcome})
    assert cache.find([b"key"]) == {}
    assert not cache.in_use
    (record,) = caplog.records
    assert "figures not kept" in record.getMessage()
