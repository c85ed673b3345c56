"""Ray schedules the shares of a run: on a real cluster of two workers, whoever dies, and whatever stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import ways_kit
import worker_kit
from run_kit import METRICS, read, write_input

from geval_local.errors import JudgeError
from geval_local.ray import scheduler
from geval_local.ray.scheduler import RayWorkers
from geval_local.runs import spread
from geval_local.runs.run_file import resume, score_file
from geval_local.testing import MockEngine, MockJudge

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
#: Ray lets its workers wait for everybody else on the machine, which a test should not.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'geval-local[ray]'")

ROWS = 72


@pytest.fixture(scope="module")
def cluster():
    """Two workers, each with a CPU and what Ray takes for a GPU; the judge finds none and stays on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers import this folder's modules
        ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(spread, "LEAST_BYTES", 500)
    return write_input(tmp_path / "in.jsonl", ROWS)


@pytest.fixture
def expected(file, tmp_path) -> bytes:
    judge = MockJudge(MockEngine(batch_tokens=1500), name="nano")
    score_file(file, METRICS, judge, tmp_path / "once.jsonl", use_cache=False)
    return (tmp_path / "once.jsonl").read_bytes()


@pytest.fixture
def start(cluster, monkeypatch, tmp_path):
    """Make two workers that write down what they do those of a run."""

    def make(log: str = "log", *, deadly: str = "", once: bool = True) -> Path:
        load = partial(worker_kit.load, log=tmp_path / log, seconds=0.0, deadly=deadly, once=once)
        monkeypatch.setattr(
            scheduler, "ray_workers", lambda count, judges, address: RayWorkers(2, judges, cluster, load)
        )
        return tmp_path / log

    return make


def test_two_workers_one_of_them_killed_score_as_one_process_does(file, tmp_path, start, expected):
    log = start(deadly="40")
    score_file(file, METRICS, "nano", tmp_path / "out.jsonl", use_cache=False, workers="ray:2")
    assert (tmp_path / "out.jsonl").read_bytes() == expected
    assert log.with_suffix(".killed").exists()
    assert len(worker_kit.workers_of(log)) in (2, 3)
    assert not (tmp_path / ".out.jsonl.run").exists()


@pytest.mark.nightly
def test_workers_that_do_not_see_the_run_return_what_they_have_stored(file, tmp_path, start, monkeypatch):
    start(deadly="40")
    whole = score_file(file, METRICS, "nano", None, use_cache=False, workers="ray:2")
    once = score_file(file, METRICS, MockJudge(MockEngine(batch_tokens=1500), name="nano"), None, use_cache=False)
    assert [one.to_dict() for one in whole.summaries] == [one.to_dict() for one in once.summaries]
    assert whole.rows == ROWS


@pytest.mark.nightly
def test_a_row_that_kills_its_workers_is_an_error_and_the_rest_is_kept(file, tmp_path, start, expected):
    start(deadly="40", once=False)
    with pytest.raises(JudgeError, match=r"3 workers died over the same share of the rows, number \d") as caught:
        score_file(file, METRICS, "nano", tmp_path / "out.jsonl", use_cache=False, workers="ray:2")
    assert f"geval-local resume {tmp_path}/.out.jsonl.run" in caught.value.hint
    start(log="more")
    resume(tmp_path / ".out.jsonl.run")
    assert (tmp_path / "out.jsonl").read_bytes() == expected


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("feature", ways_kit.FEATURES)
def test_every_feature_has_the_bytes_of_one_process(cluster, tmp_path, monkeypatch, feature):
    asked, file = ways_kit.prepared(feature, tmp_path, monkeypatch)
    ways_kit.undivided(asked, file, tmp_path / "once")

    def start(count, judges, address):
        return RayWorkers(2, judges, cluster, ways_kit.mock_judge)

    monkeypatch.setattr(scheduler, "ray_workers", start)
    asked.run(file, tmp_path / "ray" / "run", workers="ray:2")
    assert ways_kit.written(tmp_path / "ray") == ways_kit.written(tmp_path / "once")


def begin(here: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "GEVAL_LOCAL_HOME": str(here / "home")}
    command = [sys.executable, "-m", "geval_local", *arguments]
    # A session of its own: the signal goes to the driver alone.
    return subprocess.Popen(
        command, cwd=here, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_until(process: subprocess.Popen[str], happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not happens():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("spread_over", ["ray:2", "2"])
def test_a_command_that_is_stopped_and_killed_goes_on(cluster, tmp_path, spread_over, monkeypatch):
    """Ctrl-C, then SIGKILL, each with workers of its own; all rows are there once, in order."""
    rows = 2400
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    write_input(tmp_path / "in.jsonl", rows)
    (tmp_path / "bare.yaml").write_text(METRICS[0].model_copy(update={"steps": ("Read.", "Choose.")}).to_yaml())
    options = ["in.jsonl", "-m", "bare.yaml", "-j", "nano", "-o", "out.jsonl", "--no-cache", "--device", "cpu"]
    shares = tmp_path / ".out.jsonl.run" / "shares"

    def stores() -> int:
        """Bytes that shares have stored."""
        return sum(path.stat().st_size for path in shares.glob("shard-*/scores.sqlite*"))

    process = begin(tmp_path, "score", *options, "--workers", spread_over)
    wait_until(process, lambda: stores() > 100_000)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=300)
    assert process.returncode == 3, words
    assert "geval-local resume .out.jsonl.run" in words
    assert "Traceback" not in words
    there = stores()
    process = begin(tmp_path, "resume", ".out.jsonl.run")
    wait_until(process, lambda: stores() > there + 50_000)
    process.kill()
    process.communicate(timeout=300)
    process = begin(tmp_path, "resume", "out.jsonl")
    _, words = process.communicate(timeout=400)
    assert process.returncode == 0, words
    found = read(tmp_path / "out.jsonl")
    assert [row["id"] for row in found] == list(range(rows))
