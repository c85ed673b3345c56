"""Ray without a cluster: how one is divided, started, watched, and given up."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module

import pytest
from cli_run import run as run_command
from filelock import FileLock
from run_kit import write_input
from waiting import until

from geval_local.errors import ConfigurationError
from geval_local.options import JudgeOptions
from geval_local.ray import connection
from geval_local.ray.connection import PRIVATE_NAMES, own_settings, remove_abandoned, watched_head
from geval_local.ray.resources import WorkerShare, check_gpus, share_out


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
    check_gpus(share, JudgeOptions(device="cuda"), "auto", 0)
    with pytest.raises(ConfigurationError, match="this machine has none"):
        check_gpus(share, JudgeOptions(device="cuda"), None, 0)
    assert not caplog.records
    check_gpus(WorkerShare(1, 4, 0), JudgeOptions(), "auto", 0)
    assert "the judge computes on CPUs" in caplog.text
    caplog.clear()
    check_gpus(WorkerShare(1, 4, 0), JudgeOptions(device="cpu"), "auto", 0)
    check_gpus(WorkerShare(1, 4, 0), JudgeOptions(), None, 0)
    check_gpus(WorkerShare(1, 4, 0), JudgeOptions(name="http://127.0.0.1:8000/v1"), "auto", 0)
    assert not caplog.records


# --- a cluster that is started, watched, gone, or never there ---------------------------------------------------------


def test_workers_of_an_own_cluster_are_no_nicer_than_the_command(monkeypatch):
    # Ray's default starves them beside other work: the driver only waits for them.
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    assert own_settings()["RAY_worker_niceness"] == "0"
    monkeypatch.setenv("RAY_worker_niceness", "5")
    assert "RAY_worker_niceness" not in own_settings()


def test_a_head_that_is_gone_is_told_once(caplog):
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with watched_head(address, seconds=0.05):
            time.sleep(0.5)
            assert not caplog.records
            head.close()
            until(lambda: caplog.records)
    (record,) = caplog.records
    assert address in record.getMessage()
    assert "repeat the command" in record.getMessage()


def test_a_driver_whose_cluster_has_lost_it_ends_itself(caplog, monkeypatch):
    """It cannot raise an error: it waits in native code for a raylet or a head that hangs."""
    codes: list[int] = []
    monkeypatch.setattr(connection.os, "_exit", codes.append)
    reasons = iter(["", "the Ray cluster has lost this machine"])
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with watched_head(address, seconds=0.02, look=lambda: next(reasons, "")):
            until(lambda: codes)
    assert codes == [1]
    assert "has lost this machine; finished shares are kept: repeat the command" in caplog.text


def test_a_busy_machine_is_tried_again_and_the_way_without_ray_is_named(monkeypatch, caplog):
    ray = pytest.importorskip("ray")
    tries: list[object] = []

    def init(**options):
        tries.append(options["address"])
        raise RuntimeError("its raylet died")

    monkeypatch.setattr(ray, "init", init)
    message = "this machine is too busy to start Ray: its raylet died"
    with pytest.raises(ConfigurationError, match=message) as caught, connection.connected(None, 2):
        pass
    assert tries == ["local"] * 3
    assert "`workers=N` starts processes of its own" in caught.value.hint
    assert caplog.text.count("starting again") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_whether_a_raylet_lives_is_seen(tmp_path):
    program = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"]) as process:
        until(lambda: connection.own_raylets() == 1)
        process.kill()
        until(lambda: connection.own_raylets() == 0)


def test_a_cluster_that_never_answers_is_given_up(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"at 10\.0\.0\.1:6379 has not answered for 0\.05 s") as caught:
        connection.check_answers("10.0.0.1:6379", seconds=0.05)
    assert "ray status" in caught.value.hint


def test_directories_of_drivers_that_were_killed_are_removed(tmp_path):
    for name in ("geval-ray-dead", "geval-ray-alive", "geval-ray-older", "other"):
        (tmp_path / name / "r").mkdir(parents=True)
    for name in ("dead", "alive"):
        (tmp_path / f"geval-ray-{name}" / "driver.lock").touch()
    with FileLock(tmp_path / "geval-ray-alive" / "driver.lock"):
        remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["geval-ray-alive", "geval-ray-older", "other"]


def test_names_inside_of_ray_that_are_replaced_are_there():
    """A release of Ray that renames one is found here by its name; docs of that release tell what takes its place."""
    pytest.importorskip("ray")
    for module, name in PRIVATE_NAMES:
        found = getattr(import_module(module), name, None)
        assert found is not None, f"this Ray has no {module}.{name}"
    node = inspect.getsource(import_module("ray._private.node"))
    assert "services.get_node(" in node, "Ray asks in another way whether its node has begun"
    assert "services.start_api_server(" in node


def command(body: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Start the command line with `body` in place of its verbs."""
    code = (
        "import os, signal, sys, geval_local.cli as cli\n"
        f"def work():\n    {body}\n"
        "cli.run_verb = work\ncli.main()"  # the verbs would import torch
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_command_that_ray_ends_is_an_interrupted_one(tmp_path):
    score = ["score", "in.jsonl", "--workers", "ray", "-o", "runs/a b/"]
    for body in ("os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"):
        done = command(body, *score)
        assert done.returncode == 3, done.stderr
        assert done.stderr.endswith("Continue with:\n  geval-local resume 'runs/a b/'\n")
    for code in (0, 1, 2, 3):  # a gate that failed stays one
        done = command(f"sys.exit({code})", *score)
        assert (done.returncode, done.stderr) == (code, "")
    assert command("os._exit(1)", "score", "in.jsonl").returncode == 1, "other commands are not guarded"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text('{"settings": {"workers": "ray:2"}}')
    done = command("os._exit(1)", "resume", tmp_path / "run")
    assert done.returncode == 3
    assert f"geval-local resume {tmp_path / 'run'}" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_guarded_command_gets_signals_once_and_dies_with_the_one_that_was_started(number):
    code = (
        "import os, signal, sys, time, geval_local.cli as cli\n"
        # A shell starts what runs behind it with this signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def work():\n"
        "    try:\n        print(os.getpid(), flush=True)\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        print('stopped', flush=True)\n        sys.exit(3)\n"
        "cli.run_verb = work\ncli.main()"
    )
    command = [sys.executable, "-c", code, "score", "in.jsonl", "--workers=ray"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline()
        os.killpg(process.pid, number)  # as a terminal does
        assert process.stdout.read() == "stopped\n"
        assert process.wait(timeout=300) == 3
    if sys.platform != "linux":
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline()
        process.kill()
        process.stdout.read()  # ends with the last process that could write
        assert process.wait(timeout=300) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_guarded_command_ends_although_its_driver_takes_no_signal():
    """As a driver that waits for a raylet that hangs: it reads a socket in native code, and Python runs no handler."""
    code = (
        "import signal, time, geval_local.cli as cli\n"
        "from geval_local.cli import guarded\n"
        "guarded.ENDING_SECONDS = 1\n"
        "def work():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
        "cli.run_verb = work\ncli.main()"
    )
    command = [sys.executable, "-c", code, "score", "in.jsonl", "--workers=ray", "-o", "runs/one/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        words = process.communicate(timeout=300)[1]
    assert process.returncode == 3
    assert words.endswith("Continue with:\n  geval-local resume runs/one/\n")
