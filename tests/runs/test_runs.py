"""Runs: what was committed is never lost, and a run in pieces writes the bytes of a run in one."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_run import run
from run_kit import METRICS, engine, execute, read, wanted, write_input

from geval_local.engine.interface import Readout
from geval_local.errors import DataError, Interrupted, OutputError
from geval_local.io.input_files import read_samples
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.directory import look_at, open_run
from geval_local.runs.exporter import Exporter, deliver
from geval_local.runs.manifest import definition
from geval_local.runs.own_files import hold
from geval_local.testing import MockEngine, MockJudge

ROWS = 120


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return write_input(tmp_path / "in.jsonl", ROWS)


def whole(file: Path, **settings) -> bytes:
    (path,) = execute(file.parent / "whole", wanted(file, **settings))
    return path.read_bytes()


def in_pieces(directory: Path, file: Path, make_engine=engine, packs: int = 5, **settings) -> tuple[bytes, int]:
    for piece in range(60):
        try:
            (path,) = execute(directory, wanted(file, **settings), make_engine, stop_after=packs)
            return path.read_bytes(), piece
        except Interrupted:
            continue
    raise AssertionError("the run makes no progress")


@pytest.mark.sweep
@pytest.mark.parametrize("window", [7, 50, 1000])
def test_a_run_in_pieces_writes_the_same_bytes(file, tmp_path, window):
    found, pieces = in_pieces(tmp_path / "pieces", file, window=window)
    assert pieces > 3
    assert found == whole(file, window=window)


def test_the_mock_betrays_other_packs(file, tmp_path):
    """Or else the test above could not fail."""
    one = read(execute(tmp_path / "one", wanted(file))[0])
    other = read(execute(tmp_path / "other", wanted(file), lambda: engine(batch_tokens=3000))[0])
    assert one != other
    scores = [[row["geval"][METRICS[0].name]["score"] or 0 for row in rows] for rows in (one, other)]
    assert scores[0] == pytest.approx(scores[1])


def test_figures_are_those_of_the_judge(file, tmp_path):
    rows = read(execute(tmp_path / "run", wanted(file, window=4096))[0])
    for metric in METRICS:
        scores = MockJudge(engine()).score_many(metric, read_samples(file))
        assert [row["geval"][metric.name] for row in rows] == [score.to_dict() for score in scores]


def test_a_unit_of_several_packs_is_repeated_from_its_beginning(file, tmp_path):
    def dependent() -> MockEngine:
        return engine(unit_packs=3, batch_tokens=1000)

    (path,) = execute(tmp_path / "whole", wanted(file), dependent)
    interruptions = 0
    for packs in (35, 50, 41, 60, 77, 1000):
        try:
            (found,) = execute(tmp_path / "pieces", wanted(file), dependent, stop_after=packs)
        except Interrupted:
            interruptions += 1
            continue
        break
    assert interruptions > 1
    assert found.read_bytes() == path.read_bytes()


def test_a_finished_run_loads_no_judge_and_writes_the_same_again(file, tmp_path):
    first = whole(file)

    def no_engine() -> MockEngine:
        raise AssertionError("the judge was loaded")

    (path,) = execute(file.parent / "whole", wanted(file), no_engine)
    assert path.read_bytes() == first


def test_the_threshold_may_change_afterwards_and_needs_no_judge(file):
    whole(file)
    (path,) = execute(file.parent / "whole", wanted(file, threshold=3.0), lambda: pytest.fail("loaded"))
    figures = [row["geval"][METRICS[0].name] for row in read(path)]
    assert {one["passed"] for one in figures if one["score"]} == {True, False}
    assert all(one["passed"] == (one["score"] >= 3) for one in figures if one["score"])


def test_the_manifest_says_it_all(file, tmp_path):
    execute(tmp_path / "run", wanted(file))
    record = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert record["input"]["rows"] == ROWS
    assert record["judges"][0]["complete"] is True
    assert record["ended"] >= record["started"]
    assert record["judges"][0]["signatures"][METRICS[0].name].startswith("judge:mock@")
    assert record["files"] == ["scores.jsonl"]
    assert set(record["made"]) >= {"scores.sqlite", "scores.jsonl"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 51}, "`window` was 50, is 51"),
        ({"limit": 3}, "`limit` was None, is 3"),
        ({"judges": ("other",)}, "judges were mock, are other"),
        ({"metrics": [definition(METRICS[0])]}, "metrics were"),
    ],
)
def test_another_configuration_is_refused_with_what_changed(file, change, message):
    before = whole(file)
    with pytest.raises(OutputError, match=message):
        execute(file.parent / "whole", wanted(file, **change))
    assert (file.parent / "whole" / "scores.jsonl").read_bytes() == before


def test_a_changed_input_metric_or_judge_is_refused(file):
    whole(file)
    manifest = wanted(file)
    manifest.settings.metrics[0]["criteria"] = "Something else."
    with pytest.raises(OutputError, match="metric summarization/coherence: changed in criteria"):
        execute(file.parent / "whole", manifest)
    file.write_text(file.read_text() + '{"source": "s", "output": "o"}\n')
    for asked in (wanted(file), None):
        with pytest.raises(OutputError, match="has another content"):
            execute(file.parent / "whole", asked)


def test_a_judge_of_another_content_is_refused(file, tmp_path):
    with pytest.raises(Interrupted):
        execute(tmp_path / "run", wanted(file), stop_after=3)
    with open_run(tmp_path / "run", None) as run:
        other = MockJudge(engine(), name="mock")
        other.backend.facts = replace(other.backend.facts, fingerprint="0123456789abcdef")
        with pytest.raises(OutputError, match=r"judge was mock@.*, is mock@0123456789abcdef"):
            next(run.rows(lambda record: other))


def test_several_judges_one_after_the_other(file, tmp_path):
    loaded = []
    manifest = wanted(file, ("a", "b"))
    with open_run(tmp_path / "run", manifest) as run:
        rows = list(run.rows(lambda record: loaded.append(record.name) or MockJudge(engine(), name=record.name)))
    assert loaded == ["a", "b"]
    assert list(rows[0][1]) == [f"{metric.name}@{judge}" for judge in "ab" for metric in METRICS]
    alone = read(execute(tmp_path / "alone", wanted(file, ("b",)))[0])
    assert [scores[f"{METRICS[0].name}@b"].to_dict() for _, scores in rows] == [
        row["geval"][METRICS[0].name] for row in alone
    ]


def test_errors_are_kept_with_their_reason_and_tried_again_on_request(file, tmp_path):
    class Failing(MockEngine):
        def read(self, requests):
            return [
                Readout(None, error="the model's logits are not numbers (NaN) for this prompt")
                if int(request.ids.sum()) % 29 == 0
                else readout
                for request, readout in zip(requests, super().read(requests), strict=True)
            ]

    (path,) = execute(tmp_path / "run", wanted(file), lambda: Failing(batch_tokens=6000))
    failed = [row["geval"][METRICS[0].name].get("error") for row in read(path)]
    assert 0 < sum("NaN" in (error or "") for error in failed) < 12
    healthy = MockEngine(batch_tokens=6000)
    execute(tmp_path / "run", wanted(file), lambda: pytest.fail("loaded although nothing is to be done"))
    execute(tmp_path / "run", wanted(file), lambda: healthy, retry_errors=True)
    assert 0 < healthy.executed_packs < packs_of_a_whole_run(file)
    assert path.read_bytes() == execute(tmp_path / "other", wanted(file), lambda: MockEngine())[0].read_bytes()


def packs_of_a_whole_run(file: Path) -> int:
    counting = MockEngine(batch_tokens=6000)
    execute(file.parent / "counting", wanted(file), lambda: counting)
    return counting.executed_packs


def test_a_grown_file_takes_old_figures_over_as_they_were(file, tmp_path):
    first, second = engine(), engine()
    old = read(execute(tmp_path / "first", wanted(file, use_cache=True), lambda: first)[0])
    rows = file.read_text()
    more = write_input(tmp_path / "more.jsonl", ROWS + 8, holes=False).read_text().splitlines(keepends=True)[ROWS:]
    file.write_text(rows + "".join(more))
    grown = execute(tmp_path / "second", wanted(file, use_cache=True), lambda: second)[0]
    assert [row["geval"] for row in read(grown)[:ROWS]] == [row["geval"] for row in old]
    assert 0 < second.executed_packs < first.executed_packs / 4
    entries, size = OutcomeCache().size()
    assert entries == 2 * (ROWS - 7 + 8)
    assert size > 10_000
    OutcomeCache().clear()
    assert OutcomeCache().size() == (0, 0)


def test_the_cache_knows_judges_apart(file, tmp_path):
    first, second = engine(), engine()
    execute(tmp_path / "first", wanted(file, use_cache=True), lambda: first)
    execute(tmp_path / "second", wanted(file, ("other",), use_cache=True), lambda: second)
    assert second.executed_packs == first.executed_packs


def test_a_run_in_pieces_with_the_cache_writes_the_same_bytes(file, tmp_path):
    """What the run itself put into the cache must not change the packs of the window that it goes on with."""
    expected = whole(file)
    found, pieces = in_pieces(tmp_path / "pieces", file, use_cache=True)
    assert pieces > 3
    assert found == expected


def test_a_broken_cache_is_left_out(file, tmp_path, caplog):
    path = OutcomeCache().path
    path.parent.mkdir(parents=True)
    path.write_text("no database")
    with caplog.at_level(logging.WARNING, "geval_local"):
        (found,) = execute(tmp_path / "run", wanted(file, use_cache=True))
    assert found.read_bytes() == whole(file)
    assert caplog.text.count("is left out of this run") == 1
    assert OutcomeCache().clear() == len("no database")
    assert OutcomeCache().size() == (0, 0)


def test_a_cache_of_another_version_is_left_out_and_can_be_cleared(file, tmp_path, caplog):
    execute(tmp_path / "run", wanted(file, use_cache=True))
    path = OutcomeCache().path
    with sqlite3.connect(path) as cache:
        cache.execute("PRAGMA user_version = 3")
    with caplog.at_level(logging.WARNING, "geval_local"):
        execute(tmp_path / "again", wanted(file, use_cache=True))
    assert f"the cache {path} is left out of this run: it has schema 3" in caplog.text
    assert "; `geval-local cache --clear` starts a new one" in caplog.text
    assert run("cache", "--clear", home=path.parent.parent).exit_code == 0
    execute(tmp_path / "third", wanted(file, use_cache=True))
    assert OutcomeCache().size()[0] > 0


def test_a_second_process_is_refused(file, tmp_path):
    (tmp_path / "run").mkdir()
    with hold(tmp_path / "run"):
        code = "import sys, pathlib; from geval_local.runs.own_files import hold\n"
        code += "with hold(pathlib.Path(sys.argv[1])): pass"
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "run")],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert f"is in use by another process, number {os.getpid()}" in done.stderr
    execute(tmp_path / "run", wanted(file))


def test_a_directory_of_something_else_is_left_alone(file, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(OutputError, match="is not empty and holds no run"):
        execute(tmp_path / "thesis", wanted(file))
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


@pytest.mark.parametrize("kind", ["a file", "a link that leads nowhere"])
def test_what_is_no_directory_holds_no_run(tmp_path, kind):
    place = tmp_path / "run"
    place.write_text("mine") if kind == "a file" else place.symlink_to("nowhere")
    with pytest.raises(OutputError, match="is not a directory"):
        look_at(place)


def test_a_resumed_run_computes_what_is_missing_before_it_writes(tmp_path):
    """The model does not wait for rows that are finished: the first of them is rebuilt after the last is computed."""
    file = write_input(tmp_path / "in.jsonl", 200)
    whole = execute(tmp_path / "whole", wanted(file))[0].read_bytes()
    with pytest.raises(Interrupted):
        execute(tmp_path / "run", wanted(file), stop_after=30)
    made, packs = engine(), []
    with open_run(tmp_path / "run", None) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(lambda record: MockJudge(made)):
                packs.append(made.executed_packs)
                exporter.write(sample, scores)
        (path,) = deliver(run, exporter.files)
    assert len(packs) == 200
    assert len(set(packs)) == 1
    assert packs[0] > 0
    assert path.read_bytes() == whole


def test_a_first_run_writes_while_it_computes(tmp_path):
    file = write_input(tmp_path / "in.jsonl", 200)
    made, packs = engine(), []
    with open_run(tmp_path / "run", wanted(file)) as run:
        for _ in run.rows(lambda record: MockJudge(made)):
            packs.append(made.executed_packs)
    assert len(set(packs)) == 4  # one for each window


def test_an_input_that_changes_after_the_last_row_is_computed_is_told(tmp_path):
    file = write_input(tmp_path / "in.jsonl", 200)
    with pytest.raises(Interrupted):
        execute(tmp_path / "run", wanted(file), stop_after=30)
    with open_run(tmp_path / "run", None) as run:
        rows = run.rows(lambda record: MockJudge(engine()))
        next(rows)
        file.write_text(file.read_text() + "{}\n")
        with pytest.raises(DataError, match="was changed while it was scored"):
            list(rows)
