"""Ray without a cluster: how one is divided, and what happens to a run without it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import worker_kit
from cli_run import run as run_command
from run_kit import METRICS, write_input

from geval_local.errors import ConfigurationError, Interrupted
from geval_local.options import JudgeOptions
from geval_local.ray import scheduler
from geval_local.ray.resources import WorkerShare, share_out, warn_of_cpus
from geval_local.ray.scheduler import RayWorkers
from geval_local.runs.run_file import score_file


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return write_input(tmp_path / "in.jsonl", 12)


def test_without_ray_the_remedy_is_told(file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    common = ["score", "in.jsonl", "-m", "summarization/coherence", "-j", "nano"]
    done = run_command(*common, "-o", "run/", "--workers", "ray", home=tmp_path / "home")
    assert done.exit_code == 2
    assert "Ray is not installed" in done.stderr
    assert "pip install 'geval-local[ray]'" in done.stderr
    assert not (tmp_path / "run").exists()
    for arguments, message in (
        (["--workers", "ray", "-o", "run/", "--shard", "1/2"], "--workers and --shard exclude each other"),
        (["--gather-by", "doc_id", "-o", "run/"], "--gather-by is an option no more\nSort the rows by that column"),
        (["--distributed", "ray", "-o", "run/"], "--distributed is an option no more\nWrite --workers ray"),
        (["-o", "run/", "--address", "auto"], "--address is for the workers of Ray"),
    ):
        done = run_command(*common, *arguments, home=tmp_path / "home")
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


# --- how a cluster is divided -----------------------------------------------------------------------------------------


CPU, GPU = {"CPU": 4.0}, {"CPU": 16.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("nodes", "workers", "choice", "share"),
    [
        ([CPU], None, {}, WorkerShare(1, 4, 0)),
        ([CPU], 2, {}, WorkerShare(2, 2, 0)),
        ([CPU], 3, {}, WorkerShare(3, 1, 0)),
        ([CPU, CPU, {}], None, {}, WorkerShare(2, 4, 0)),
        ([CPU, CPU, {"CPU": 2.0}], 4, {}, WorkerShare(4, 2, 0)),
        ([GPU, GPU], None, {}, WorkerShare(8, 1, 1)),
        ([GPU, CPU], 3, {}, WorkerShare(3, 1, 1)),
        ([GPU], 2, {"device": "cpu"}, WorkerShare(2, 8, 0)),
        ([GPU, GPU], None, {"device_map": "auto"}, WorkerShare(2, 1, 4)),
        ([GPU, GPU], 4, {"device_map": "auto"}, WorkerShare(4, 1, 2)),
        ([{"CPU": 1.0, "GPU": 2.0}], None, {}, WorkerShare(2, 0, 1)),
        ([GPU, GPU], None, {"engine": "vllm"}, WorkerShare(8, 1, 1)),
        ([GPU, GPU, CPU], None, {"engine": "vllm", "tensor_parallel": 2}, WorkerShare(4, 1, 2)),
        ([GPU, {"CPU": 4.0, "GPU": 1.0}], None, {"engine": "vllm", "tensor_parallel": 4}, WorkerShare(1, 1, 4)),
        ([CPU], 2, {"engine": "vllm", "tensor_parallel": 8}, WorkerShare(2, 0, 8)),  # an autoscaler is to bring them
        ([GPU, GPU], None, {"name": "http://127.0.0.1:8000/v1"}, WorkerShare(2, 16, 0)),  # its server has the GPUs
    ],
)
def test_a_cluster_is_shared_out(nodes, workers, choice, share):
    assert share_out(nodes, workers, JudgeOptions(**choice)) == share
    assert share.workers * share.cpus <= sum(node.get("CPU", 0) for node in nodes)


@pytest.mark.parametrize(
    ("nodes", "workers", "choice", "message"),
    [
        ([CPU], 5, {}, "4 CPUs, not enough for 5 workers"),
        ([GPU], 5, {}, "4 GPUs, not enough for 5 workers"),
        ([GPU], 5, {"device_map": "auto"}, "not enough"),
        ([GPU], 3, {"engine": "vllm", "tensor_parallel": 2}, "4 GPUs, not enough for 3 workers"),
        ([GPU], None, {"engine": "vllm", "tensor_parallel": 8}, "`tensor_parallel=8` asks for GPUs, and no machine"),
        ([], None, {}, "0 CPUs"),
        ([GPU], None, {"device": "cuda:1"}, "names one GPU"),
    ],
)
def test_too_small_a_cluster_is_refused(nodes, workers, choice, message):
    with pytest.raises(ConfigurationError, match=message):
        share_out(nodes, workers, JudgeOptions(**choice))


def test_a_judge_that_wants_a_gpu_is_not_put_on_a_cpu_in_silence(caplog):
    with pytest.raises(ConfigurationError, match=r"asks for GPUs, and no machine of the cluster has one now"):
        share_out([CPU, CPU], None, JudgeOptions(device="cuda"))
    share = share_out([CPU], 3, JudgeOptions(device="cuda"))  # an autoscaler is to bring them
    assert share == WorkerShare(3, 0, 1)
    warn_of_cpus(share, JudgeOptions(device="cuda"))
    assert not caplog.records
    warn_of_cpus(WorkerShare(1, 4, 0), JudgeOptions())
    assert "the judge computes on CPUs" in caplog.text
    caplog.clear()
    warn_of_cpus(WorkerShare(1, 4, 0), JudgeOptions(device="cpu"))
    warn_of_cpus(WorkerShare(1, 4, 0), JudgeOptions(name="http://127.0.0.1:8000/v1"))
    assert not caplog.records


# --- a cluster that is gone, or never there ---------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch):
    """Put a program in place of the one that talks to Ray."""

    def put(program):
        monkeypatch.setattr(scheduler, "find_spec", lambda name: name)
        monkeypatch.setattr(scheduler, "partial", lambda *given: program)
        monkeypatch.setattr(scheduler, "ENDING_SECONDS", 0.0)

    return put


@pytest.mark.parametrize(
    ("program", "seconds", "told"),
    [
        (worker_kit.dying, 600.0, "is gone (was ended by SIGKILL"),
        (worker_kit.hanging, 0.0, "has not answered for 0 s"),
    ],
)
def test_a_cluster_that_is_gone_or_hangs_interrupts_the_run(
    driver, file, tmp_path, caplog, monkeypatch, program, seconds, told
):
    """What talks to it cannot raise an error: Ray ends it, or it waits in native code."""
    driver(program)
    monkeypatch.setattr(scheduler, "SILENT_SECONDS", seconds)
    with pytest.raises(Interrupted):
        score_file(file, METRICS, "nano", tmp_path / "out" / "run", use_cache=False, workers="ray")
    assert told in caplog.text


def test_a_cluster_that_never_answers_is_given_up(driver, file, tmp_path, monkeypatch):
    driver(worker_kit.mute)
    monkeypatch.setattr(scheduler, "CONNECTING_SECONDS", 0.05)
    with pytest.raises(ConfigurationError, match=r"at 10\.0\.0\.1:6379 has not answered for 0\.05 s") as caught:
        RayWorkers(2, [], "10.0.0.1:6379")
    assert "ray status" in caught.value.hint


@pytest.mark.slow
def test_without_a_cluster_the_way_without_ray_is_named(file, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    if subprocess.run(["pgrep", "-f", "gcs_server"], capture_output=True, check=False).returncode == 0:
        pytest.skip("this machine has a cluster")
    with pytest.raises(ConfigurationError, match="cannot reach a Ray cluster at") as caught:
        score_file(file, METRICS, "nano", tmp_path / "run", workers="ray")
    assert "`workers=N` needs no Ray" in caught.value.hint
