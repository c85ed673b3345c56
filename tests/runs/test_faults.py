"""Failures during a run: the error is clear, nothing is lost, and the run can be resumed."""

from __future__ import annotations

import errno
import json
import os
import random
import sqlite3
from pathlib import Path

import pytest
import torch
from run_kit import METRICS, engine, execute, killed_after, read, wanted, write_input
from tiny import byte_tokenizer, tiny_model

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.errors import DataError, Interrupted, OutputError
from geval_local.models.head import Head
from geval_local.runs import store
from geval_local.runs.directory import open_run
from geval_local.runs.exporter import Exporter, deliver
from geval_local.testing import MockEngine, MockJudge
from geval_local.tokens.encoder import PromptEncoder

#: Disks, memory and stores that fail, one run after the other.
pytestmark = pytest.mark.slow

ROWS = 120


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in.jsonl", ROWS)


@pytest.fixture
def expected(file: Path) -> bytes:
    return execute(file.parent / "whole", wanted(file))[0].read_bytes()


@pytest.fixture
def started(file: Path) -> Path:
    """A run that was stopped in its middle."""
    with pytest.raises(Interrupted):
        execute(file.parent / "run", wanted(file), stop_after=9)
    return file.parent / "run"


def rows_in(directory: Path) -> int:
    """Count what a run has committed; nothing where it was killed before the table was made."""
    with sqlite3.connect(directory / "scores.sqlite") as connection:
        (there,) = connection.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'outcomes'").fetchone()
        return int(connection.execute("SELECT COUNT(*) FROM outcomes").fetchone()[0]) if there else 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments_nothing_is_lost(file, expected, tmp_path):
    random_moments = random.Random(4)
    for trial in range(4):
        directory = tmp_path / f"killed{trial}"
        kills = 0
        kept = 0
        while kills < 6 and killed_after(
            random_moments.uniform(0.05, 0.5),
            lambda: execute(directory, wanted(file), lambda: engine(seconds=0.01)),  # noqa: B023 - called at once
        ):
            kills += 1
            if (directory / "manifest.json").is_file():
                before, kept = kept, rows_in(directory)
                assert kept >= before, "committed rows were lost"
        (path,) = execute(directory, wanted(file))
        assert path.read_bytes() == expected
        assert not list(directory.glob(".*.tmp"))


def test_an_exception_in_the_middle_of_a_pack_keeps_the_packs_before(file, expected, tmp_path):
    class Breaking(MockEngine):
        def read(self, requests):
            if self.executed_packs == 12:
                raise ValueError("a defect")
            return super().read(requests)

    with pytest.raises(ValueError, match="a defect"):
        execute(tmp_path / "run", wanted(file), lambda: Breaking(batch_tokens=6000, sensitive=True))
    assert rows_in(tmp_path / "run") > 30
    assert execute(tmp_path / "run", wanted(file))[0].read_bytes() == expected


def test_a_failure_before_anything_is_done_leaves_nothing(file, tmp_path):
    def broken() -> MockEngine:
        raise ValueError("no such judge")

    with pytest.raises(ValueError, match="no such judge"):
        execute(tmp_path / "run", wanted(file), broken)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_under_the_store(file, expected, started, monkeypatch):
    """SQLite's own way of running out of room: the file may not grow any further."""
    connections = []
    connect = store.connect
    monkeypatch.setattr(store, "connect", lambda path: connections.append(connect(path)) or connections[-1])
    with open_run(started, None) as run:
        (connection,) = connections
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OutputError, match=r"the disk accepts no more data.*full") as caught:
            list(run.rows(lambda record: MockJudge(engine(batch_tokens=20_000))))
        assert "Make room" in caught.value.hint
    assert rows_in(started) > 0
    assert execute(started, None)[0].read_bytes() == expected


def test_a_full_disk_under_the_exported_file(file, expected, started, monkeypatch):
    def full(self, row):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("geval_local.io.writer.JsonlSink.write", full)
        with pytest.raises(OutputError, match="No space left on device"):
            execute(started, None)
    assert sorted(path.name for path in started.iterdir() if "jsonl" in path.name) == []
    assert execute(started, None)[0].read_bytes() == expected


def test_a_full_disk_under_the_manifest(file, expected, started, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(path.name for path in started.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("geval_local.files.os.fsync", full)
        with pytest.raises(OutputError, match=r"manifest.json: No space left on device"):
            execute(started, None)
    assert sorted(path.name for path in started.iterdir()) == before
    assert execute(started, None)[0].read_bytes() == expected


def test_a_locked_store(file, expected, started, monkeypatch):
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.05)
    other = sqlite3.connect(started / "scores.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OutputError, match="another program is writing to it"):
        execute(started, None)
    other.execute("ROLLBACK")
    other.close()
    assert execute(started, None)[0].read_bytes() == expected


def test_a_store_of_a_newer_schema(file, expected, started):
    with sqlite3.connect(started / "scores.sqlite") as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(OutputError, match=f"has schema 99, this version of geval-local has {version}"):
        execute(started, None)
    with sqlite3.connect(started / "scores.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    assert execute(started, None)[0].read_bytes() == expected


@pytest.mark.parametrize("keep", [0, 1000, 0.5])
def test_a_truncated_store(started, keep):
    store = started / "scores.sqlite"
    with sqlite3.connect(store) as connection:  # the log folded in, as after a clean end
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(store, int(keep * store.stat().st_size) if keep < 1 else keep)
    with pytest.raises(OutputError, match=r"damaged or cut off|is empty, although its run has begun") as caught:
        execute(started, None)
    assert "backup" in caught.value.hint


def test_a_missing_store_and_a_foreign_one(file, started, tmp_path):
    (started / "scores.sqlite").rename(tmp_path / "kept.sqlite")
    with pytest.raises(OutputError, match="is missing, although its run has begun"):
        execute(started, None)
    execute(tmp_path / "other", wanted(file))
    (tmp_path / "other" / "scores.sqlite").rename(started / "scores.sqlite")
    with pytest.raises(OutputError, match="belongs to another run"):
        execute(started, None)


def test_a_deleted_input(file, expected, started):
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(DataError, match="there is no file"):
        execute(started, None)
    file.write_bytes(content)
    assert execute(started, None)[0].read_bytes() == expected


def test_an_input_that_changes_while_it_is_scored(file, tmp_path):
    def change_it() -> MockEngine:
        file.write_text(file.read_text() + "{}\n")
        return engine()

    with pytest.raises(DataError, match="was changed while it was scored"):
        execute(tmp_path / "run", wanted(file), change_it)


def test_a_damaged_manifest(started):
    (started / "manifest.json").write_text('{"format": "geval-local run"')
    with pytest.raises(OutputError, match=r"manifest.json is damaged or cut off"):
        execute(started, None)


# --- a real model -----------------------------------------------------------------------------------------------------


class TinyJudge(MockJudge):
    """A real engine inside the mock judge; memory runs out above `most` tokens."""

    def __init__(
        self,
        *,
        most: int = 1 << 30,
        nan_at: tuple[int, ...] = (),
        batch_tokens: int = 4000,
        shares: bool = False,
    ):
        tokenizer = byte_tokenizer(chat=False)
        super().__init__(tokenizer=tokenizer, name="tiny")
        self.encoder = PromptEncoder(tokenizer)
        model = tiny_model("llama", len(tokenizer), dtype=torch.float32)
        self.engine = PaddedEngine(model, Head(model), batch_tokens=batch_tokens)
        if shares:
            self.engine = PrefixSharingEngine(model, Head(model), batch_tokens=batch_tokens, padded=self.engine)
        self.passes = 0
        forward = model.model.forward

        def failing(*arguments, **settings):
            self.passes += 1
            if settings["input_ids"].numel() > most:
                raise torch.OutOfMemoryError("simulated")
            found = forward(*arguments, **settings)
            if self.passes in nan_at:
                found[0].fill_(float("nan"))
            return found

        model.model.forward = failing


def score_tiny(directory: Path, file: Path, judge: TinyJudge, stop_after: int | None = None) -> bytes:
    manifest = wanted(file, window=20, limit=40)
    manifest.settings.metrics.pop(0)
    with open_run(directory, manifest) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(
                lambda record: judge, should_stop=lambda: stop_after is not None and judge.passes >= stop_after
            ):
                exporter.write(sample, scores)
        return deliver(run, exporter.files)[0].read_bytes()


def values(lines: bytes) -> list[float]:
    scores = [json.loads(line)["geval"][METRICS[1].name]["score"] for line in lines.decode().splitlines()]
    return [-1.0 if score is None else score for score in scores]


@pytest.mark.sweep
@pytest.mark.parametrize(("shares", "batch_tokens", "most"), [(False, 1500, (1300, 900)), (True, 400, (300, 150))])
def test_memory_that_ran_out_before_or_after_a_stop_costs_rounding_and_no_row(
    file, tmp_path, shares, batch_tokens, most
):
    """Each process finds out by itself how much fits."""
    calm = score_tiny(tmp_path / "calm", file, TinyJudge(shares=shares, batch_tokens=batch_tokens))
    judges = [TinyJudge(most=one, shares=shares, batch_tokens=batch_tokens) for one in most]
    with pytest.raises(Interrupted):
        score_tiny(tmp_path / "pieces", file, judges[0], stop_after=6)
    found = score_tiny(tmp_path / "pieces", file, judges[1])
    assert max(judge.engine.limit for judge in judges) < batch_tokens
    assert values(found) == pytest.approx(values(calm), abs=1e-4)


def test_nan_logits_are_reasons_of_single_rows(file, tmp_path):
    score_tiny(tmp_path / "run", file, TinyJudge(nan_at=(2,)))
    errors = [row["geval"][METRICS[1].name].get("error") for row in read(tmp_path / "run" / "scores.jsonl")]
    broken = [error for error in errors if error is not None and "NaN" in error]
    assert 0 < len(broken) < 38


@pytest.mark.sweep
@pytest.mark.parametrize("batch_tokens", [200, 300])
def test_an_engine_that_shares_prefixes_goes_on_with_the_units_that_are_missing(file, tmp_path, batch_tokens):
    """What they share with the units before is computed again, by itself as the first time."""
    judges = [TinyJudge(shares=True, batch_tokens=batch_tokens) for _ in range(3)]
    expected = score_tiny(tmp_path / "whole", file, judges[0])
    with pytest.raises(Interrupted):
        score_tiny(tmp_path / "pieces", file, judges[1], stop_after=4)
    assert 0 < rows_in(tmp_path / "pieces") < 20, "the stop was not in the middle of the first window"
    assert score_tiny(tmp_path / "pieces", file, judges[2]) == expected
    assert judges[1].passes + judges[2].passes < judges[0].passes + 5
    other = score_tiny(tmp_path / "other", file, TinyJudge(shares=True, batch_tokens=350))
    assert other != expected, "on this machine other packs give the same bits, so nothing was shown"
