"""Distributed runs on a real Ray cluster of two workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from parts_kit import carry_out, directory_of, rows_of
from ray_kit import LoggedLoad, WaitingSurvey
from run_kit import METRICS, execute, read, wanted, write_input

from geval_local.errors import JudgeError
from geval_local.judge.judge import Judge
from geval_local.ray import cluster as ray_cluster
from geval_local.ray.merge import merge_parts
from geval_local.runs.directory import open_run
from geval_local.runs.exporter import Exporter, deliver
from geval_local.runs.manifest import read_manifest
from geval_local.testing import MockEngine

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
#: Ray lets its workers wait for everybody else on the machine, which a test should not.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'geval-local[ray]'")
pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install 'geval-local[ray]'")

ROWS = 72
KEYS = [metric.name for metric in METRICS]


@pytest.fixture(scope="module")
def cluster():
    """Two workers, each with a CPU and what Ray takes for a GPU; the judge finds none and stays on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers import this folder's `ray_kit`
        ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three files of an input."""
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    (tmp_path / "in").mkdir()
    rows = read(write_input(tmp_path / "whole.jsonl", ROWS))
    for number in range(3):
        lines = (json.dumps(row) + "\n" for row in rows[number * 24 : number * 24 + 24])
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    return sorted((tmp_path / "in").iterdir())


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_that_is_killed_loses_and_doubles_no_byte(cluster, files, tmp_path):
    load = LoggedLoad(tmp_path / "log", killed=tmp_path / "killed", together=2)
    run = carry_out(tmp_path / "run", [tmp_path / "whole.jsonl"], load, rows=6)
    assert load.killed is not None
    assert load.killed.exists()
    loaded = load.lines("loaded")
    assert len(loaded) == 3  # once per worker, and by the one that was started in place of the dead one
    assert {gpu for _, gpu in loaded} == {"0", "1"}  # where there are GPUs every worker has one of its own
    assert run.totals.rows == ROWS
    assert [row["id"] for row in rows_of(tmp_path / "run")] == list(range(ROWS))
    merge_parts(tmp_path / "run", tmp_path / "merged.jsonl")
    whole = execute(
        tmp_path / "whole", wanted(tmp_path / "whole.jsonl", window=6), lambda: MockEngine(batch_tokens=6000)
    )
    assert (tmp_path / "merged.jsonl").read_bytes() == whole[0].read_bytes()


@pytest.mark.nightly
def test_a_block_that_kills_its_workers_is_named_and_the_rest_is_done(cluster, files, tmp_path):
    load = LoggedLoad(tmp_path / "log", deadly="30")
    with pytest.raises(JudgeError, match=r"1 of 12 blocks could not be scored") as caught:
        carry_out(tmp_path / "run", [tmp_path / "in"], load, rows=6)
    assert f"{files[1]}, rows 7 to 12: 4 workers were killed while they scored it" in caught.value.message
    assert directory_of(tmp_path / "run") == 11
    carry_out(tmp_path / "run", [tmp_path / "in"], LoggedLoad(tmp_path / "mended"), rows=6)
    assert [row["id"] for row in rows_of(tmp_path / "run")] == list(range(ROWS))
    assert {word for _, _, *words in load.lines("scores") for word in words} == set(map(str, range(ROWS)))
    mended = LoggedLoad(tmp_path / "mended").lines("scores")
    assert {word for _, _, *words in mended for word in words} == set(map(str, range(30, 36)))


def test_two_workers_one_of_them_killed_score_as_one_process_does(cluster, files, tmp_path):
    load = LoggedLoad(tmp_path / "log", "nano", killed=tmp_path / "killed", together=2)
    run = carry_out(tmp_path / "run", [tmp_path / "in"], load, rows=6)
    assert (tmp_path / "killed").exists()
    loaded = load.lines("loaded")
    assert len(loaded) == 3  # once per worker, and by the one that was started in place of the dead one
    assert {gpu for _, gpu in loaded} == {"0", "1"}  # where there are GPUs every worker has one of its own
    assert run.totals.rows == ROWS
    merge_parts(tmp_path / "run", tmp_path / "merged.jsonl")
    with open_run(tmp_path / "one", wanted(tmp_path / "whole.jsonl")) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(lambda record: Judge.load("nano")):
                exporter.write(sample, scores)
        (path,) = deliver(run, exporter.files)
    found, expected = read(tmp_path / "merged.jsonl"), read(path)
    assert [row["id"] for row in found] == [row["id"] for row in expected] == list(range(ROWS))
    for one, other in zip(found, expected, strict=True):
        for key in KEYS:
            assert "error" in one["geval"][key] or "error" not in other["geval"][key]
            if "error" not in one["geval"][key]:
                # Other blocks are other batch shapes; float32 on a CPU.
                assert one["geval"][key]["score"] == pytest.approx(other["geval"][key]["score"], abs=1e-5)
    signatures = [read_manifest(tmp_path / name).judges[0].signatures for name in ("run", "one")]
    assert signatures[0] == signatures[1]


def test_blocks_are_scored_before_the_last_file_is_surveyed(cluster, files, tmp_path, monkeypatch):
    survey = WaitingSurvey(files[-1].name, tmp_path / "run", tmp_path / "log")
    monkeypatch.setattr(ray_cluster, "_survey", survey)
    run = carry_out(tmp_path / "run", [tmp_path / "in"], rows=6)
    assert int((tmp_path / "log").read_text()) > 0
    assert run.totals.rows == ROWS
    assert [row["id"] for row in rows_of(tmp_path / "run")] == list(range(ROWS))


@pytest.mark.nightly
def test_workers_gather_the_rows_of_a_document(cluster, files, tmp_path):
    for number, file in enumerate(files):
        rows = [row | {"doc_id": f"d{(row['id'] + number) % 5}"} for row in read(file)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = carry_out(tmp_path / "run", [tmp_path / "in"], rows=6, gather_by="doc_id")
    found = rows_of(tmp_path / "run")
    assert sorted(row["id"] for row in found) == list(range(ROWS))
    by_part = [{row["doc_id"] for row in read_part(part)} for part in (tmp_path / "run").glob("part-*.parquet")]
    assert sum(map(len, by_part)) == 5
    assert run.totals.rows == ROWS


def read_part(path: Path) -> list[dict]:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


def begin(here: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GEVAL_LOCAL_HOME": str(here / "home")}
    command = [sys.executable, "-m", "geval_local", *arguments]
    # A session of its own: the signal goes to the driver alone.
    return subprocess.Popen(
        command, cwd=here, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_parts(process: subprocess.Popen[str], directory: Path, count: int) -> None:
    wait_until(process, lambda: directory_of(directory) >= count)


def wait_until(process: subprocess.Popen[str], happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not happens():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_driver_that_is_stopped_or_killed_goes_on_from_its_parts(cluster, tmp_path, is_killed):
    """Ctrl-C, then SIGKILL, each with a cluster of its own; what is left is scored on the one at hand."""
    rows = 480
    write_input(tmp_path / "in.jsonl", rows)
    directory = tmp_path / "runs" / "long"
    (tmp_path / "bare.yaml").write_text(METRICS[0].model_copy(update={"steps": ("Read.", "Choose.")}).to_yaml())
    spread = ["--workers", "ray:2", "--device", "cpu"]
    options = ["in.jsonl", "-m", "bare.yaml", "-j", "nano", "-o", "runs/long/", "--window", "8", *spread]
    process = begin(tmp_path, "score", *options)
    wait_for_parts(process, directory, 2)
    # Until the driver knows the judge by a worker's report, there is nothing to go on from.
    wait_until(process, lambda: read_manifest(directory).has_begun)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 3, words
    assert "geval-local resume runs/long" in words or f"geval-local resume {directory}" in words
    assert "Traceback" not in words

    there = directory_of(directory)
    if is_killed:
        process = begin(tmp_path, "resume", "runs/long")
        wait_for_parts(process, directory, there + 1)
        process.kill()
        process.communicate(timeout=60)

    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in directory.glob("part-*.parquet")}
    assert there + is_killed <= len(before) < rows // 8
    process = begin(tmp_path, "resume", "runs/long")
    _, words = process.communicate(timeout=300)
    assert process.returncode == 0, words
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in before} == before
    assert [row["id"] for row in rows_of(directory)] == list(range(rows))
    assert json.loads((directory / "manifest.json").read_text())["results"]["summarization/coherence"]["rows"] == rows
