"""Distributed runs on a real Ray cluster of two workers with the embedded judge."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from ray_kit import LoggedLoad
from run_kit import METRICS, read, write_input

from geval_local.judge import Judge
from geval_local.runs.directory import open_run
from geval_local.runs.export import Exporter, deliver
from geval_local.runs.files import fingerprint_input
from geval_local.runs.manifest import JudgeRecord, Manifest, Settings, definition, read_manifest

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


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    write_input(folder / "in.jsonl", ROWS)
    return folder


def asked(here: Path, **settings) -> Manifest:
    base = {
        "window": 12,
        "metrics": [definition(metric) for metric in METRICS],
        "use_cache": False,
        "formats": ["jsonl", "csv", "parquet"],
    }
    file = fingerprint_input(here / "in.jsonl")
    return Manifest.new(file, Settings(**(base | settings)), [JudgeRecord(name="nano", choice={})])


def carry_out(directory: Path, manifest: Manifest | None, load) -> list[Path]:
    with open_run(directory, manifest) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(load):
                exporter.write(sample, scores)
        return deliver(run, exporter.files)


@pytest.fixture(scope="module")
def undisturbed(cluster, here) -> tuple[list[Path], LoggedLoad]:
    load = LoggedLoad(here / "undisturbed.log", together=2)
    return carry_out(here / "undisturbed", asked(here, distributed="ray", workers=2), load), load


def test_two_workers_score_as_one_process_does(undisturbed, here):
    spread, load = undisturbed
    whole = carry_out(here / "whole", asked(here), lambda record: Judge.load("nano"))
    found, expected = read(spread[0]), read(whole[0])
    assert [row["id"] for row in found] == [row["id"] for row in expected] == list(range(ROWS))
    scored = 0
    for one, other in zip(found, expected, strict=True):
        assert list(one["geval"]) == list(other["geval"]) == KEYS
        for key in KEYS:
            assert one["geval"][key].get("error") == other["geval"][key].get("error")
            if "error" not in one["geval"][key]:
                scored += 1
                # Other shards are other batch shapes; float32 on a CPU.
                assert one["geval"][key]["score"] == pytest.approx(other["geval"][key]["score"], abs=1e-5)
                assert one["geval"][key]["probabilities"] == pytest.approx(
                    other["geval"][key]["probabilities"], abs=1e-5
                )
    assert scored == len(KEYS) * (ROWS - 4)
    assert len({line[0] for line in load.lines("scores")}) == 2
    loaded = load.lines("loaded")
    assert len(loaded) == 2  # once per worker, not once per shard
    assert {gpu for _, gpu in loaded} == {"0", "1"}  # where there are GPUs every worker has one of its own
    manifests = [read_manifest(here / name) for name in ("undisturbed", "whole")]
    assert manifests[0].judges[0].signatures == manifests[1].judges[0].signatures
    assert manifests[0].files == manifests[1].files == ["scores.jsonl", "scores.csv", "scores.parquet"]


def test_no_document_is_computed_twice(undisturbed):
    _, load = undisturbed
    for key in KEYS:
        shards = [set(map(int, ids)) for _, name, *ids in load.lines("scores") if name == key]
        assert sorted(row for shard in shards for row in shard) == list(range(ROWS))
        documents = Counter(document for shard in shards for document in {row // 4 for row in shard})
        assert set(documents.values()) == {1}


def test_a_worker_that_is_killed_loses_and_doubles_nothing(undisturbed, here):
    load = LoggedLoad(here / "killed.log", here / "killed", together=2)
    found = carry_out(here / "killed-run", asked(here, distributed="ray", workers=2), load)
    assert load.killed is not None
    assert load.killed.exists()
    assert len(load.lines("loaded")) == 3  # two workers, and the one that was started in place of one of them
    assert [path.read_bytes() for path in found[:2]] == [path.read_bytes() for path in undisturbed[0][:2]]
    times = Counter(ids for _, name, *words in load.lines("scores") if name == KEYS[0] for ids in (tuple(words),))
    assert sorted(times.values())[-2:] in ([1, 2], [2, 2])  # what was in the dead worker's hands was given out again
    assert read_manifest(here / "killed-run").results[KEYS[0]]["rows"] == ROWS


def begin(here: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GEVAL_LOCAL_HOME": str(here / "home")}
    command = [sys.executable, "-m", "geval_local", *arguments]
    # A session of its own: the signal goes to the driver alone.
    return subprocess.Popen(
        command, cwd=here, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_parts(process: subprocess.Popen[str], directory: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(list((directory / "parts").glob("*.parquet"))) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no part was written"
        time.sleep(0.02)


def test_a_driver_that_is_stopped_or_killed_goes_on_from_its_parts(cluster, tmp_path):
    """Ctrl-C, then SIGKILL, each with a cluster of its own; what is left is scored on the one at hand."""
    rows = 480
    write_input(tmp_path / "in.jsonl", rows)
    directory = tmp_path / "runs" / "long"
    (tmp_path / "bare.yaml").write_text(METRICS[0].model_copy(update={"steps": ("Read.", "Choose.")}).to_yaml())
    spread = ["--distributed", "ray", "--workers", "2", "--device", "cpu"]
    options = ["in.jsonl", "-m", "bare.yaml", "-o", "runs/long/", "--window", "8", *spread]
    process = begin(tmp_path, "score", *options)
    wait_for_parts(process, directory, 1)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 3, words
    assert "geval-local resume runs/long" in words
    assert "Traceback" not in words

    there = len(list((directory / "parts").glob("*.parquet")))
    process = begin(tmp_path, "resume", "runs/long")
    wait_for_parts(process, directory, there + 1)
    process.kill()
    process.communicate(timeout=60)

    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in directory.glob("parts/*.parquet")}
    assert there < len(before) < rows // 8
    finished = {row for path in before for row in rows_of(path)}
    load = LoggedLoad(tmp_path / "resumed.log")
    (path,) = carry_out(directory, None, load)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in before} == before
    scored = [int(word) for _, _, *words in load.lines("scores") for word in words]
    assert len(scored) == len(set(scored))
    assert set(scored) == set(range(rows)) - finished
    found = read(path)
    assert [row["id"] for row in found] == list(range(rows))
    assert all(
        "error" in figures or math.isfinite(figures["score"]) for row in found for figures in row["geval"].values()
    )
    assert json.loads((directory / "manifest.json").read_text())["results"][KEYS[0]]["rows"] == rows


def rows_of(path: Path) -> list[int]:
    import pyarrow.parquet as pq

    found: list[int] = pq.ParquetFile(path).read().column("row").to_pylist()
    return found
