"""The recipes in examples/shards: what they start, with stand-ins for the schedulers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from run_kit import write_input
from waiting import until

import geval_local
from geval_local.yaml_text import load_yaml

HERE = Path(geval_local.__file__).parents[1] / "examples" / "shards"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="recipes are scripts of bash")

#: Stands for `geval-local`: it writes down its arguments, and ends with 3 when a signal stops it.
STAND_IN = """#!/usr/bin/env bash
echo "$*" >> "$LOG"
trap 'sleep 0.2; exit 3' TERM
for _ in $(seq "${STEPS:-0}"); do sleep 0.05; done
exit "${CODE:-0}"
"""
REAL = f"""#!/usr/bin/env bash
exec {sys.executable} -m geval_local "$@"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the commands that a recipe calls."""
    (tmp_path / "bin").mkdir()
    command(tmp_path, "geval-local", STAND_IN)
    command(tmp_path, "scontrol", '#!/usr/bin/env bash\necho "$*" >> "$LOG"\n')
    return tmp_path


def command(place: Path, name: str, text: str) -> None:
    (place / "bin" / name).write_text(text)
    (place / "bin" / name).chmod(0o755)


def environment(place: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(place / "bin"), os.environ["PATH"]])
    return os.environ | {"PATH": path, "LOG": str(place / "log"), "GEVAL_LOCAL_HOME": str(place / "home")} | more


def logged(place: Path) -> list[str]:
    return [line.strip() for line in (place / "log").read_text().splitlines()] if (place / "log").exists() else []


def array_task(place: Path, number: int, *given: str, count: int = 4, **more: str) -> subprocess.Popen:
    """Start a job of an array as Slurm does; it is the only one of those that failed, so the array counts one."""
    known = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_JOB_ID": "77"}
    script = ["bash", str(HERE / "slurm.sh"), str(count), *given]
    return subprocess.Popen(script, env=environment(place, **known, **more), stderr=subprocess.PIPE, cwd=place)


def test_a_job_of_a_slurm_array_is_queued_again_after_a_signal(place):
    for number in (signal.SIGUSR1, signal.SIGTERM):
        (place / "log").unlink(missing_ok=True)
        job = array_task(place, 3, "in.jsonl", "m", "j", "out", "--by", "a b", STEPS="400")
        until(lambda: logged(place))
        job.send_signal(number)
        assert job.wait(timeout=300) == 3, job.stderr.read()
        assert logged(place) == ["score in.jsonl -m m -j j --shard 3/4 -o out --by a b", "requeue 77_3"]
    for code in ("0", "2"):  # finished; wrong options, of which no other try makes anything
        (place / "log").unlink()
        job = array_task(place, 3, "in.jsonl", "m", "j", "out", CODE=code)
        assert job.wait(timeout=300) == int(code)
        assert len(logged(place)) == 1


def test_a_pod_of_an_indexed_job_scores_its_share(place):
    content, _ = load_yaml((HERE / "job.yaml").read_text())
    spec = content["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    count = spec["completions"]
    assert (spec["completionMode"], count) == ("Indexed", spec["parallelism"])
    for index in range(count):  # Kubernetes replaces $(NAME) of known names only
        line = [*container["command"], *container["args"]]
        subprocess.run(line, env=environment(place, JOB_COMPLETION_INDEX=str(index)), check=True)
    assert [line.split("--shard ")[1].split()[0] for line in logged(place)] == [
        f"{number}/{count}" for number in range(1, count + 1)
    ]
    rules = spec["podFailurePolicy"]["rules"]
    assert [rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailIndex"] == [[2]]


def test_airflow_tries_a_share_again(place, monkeypatch):
    """Its operators are stand-ins that keep what they are given."""
    made: dict[str, dict] = {}

    class Operator:
        def __init__(self, **given) -> None:
            made[given["task_id"]] = given

        @classmethod
        def partial(cls, **given):
            return types.SimpleNamespace(expand=lambda env: cls(**given, env=env))

        def __rshift__(self, other) -> None:
            made["merge"]["after"] = True

    class Dag:
        def __init__(self, *given, **named) -> None:
            pass

        def __enter__(self):
            return self

        def __exit__(self, *given) -> None:
            pass

    modules = {"airflow.sdk": {"DAG": Dag}, "airflow.providers.standard.operators.bash": {"BashOperator": Operator}}
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile((HERE / "airflow_dag.py").read_text(), "airflow_dag.py", "exec"), {})
    score, merge = made["score"], made["merge"]
    for share in score["env"]:
        for code in ("3", "0"):
            done = subprocess.run(
                ["bash", "-c", score["bash_command"]], env=environment(place, CODE=code, **share), check=False
            )
            assert done.returncode == int(code)
    assert len({line.split("--shard ")[1] for line in logged(place)}) == len(score["env"]) == 8
    assert score["retries"] > 0
    assert merge["after"]
    assert merge["bash_command"].startswith("geval-local merge ")


@pytest.mark.nightly  # the same recipe as above, 33 s of loading judges
@pytest.mark.slow
def test_an_array_of_slurm_with_the_command_itself(place):
    """A job is stopped by Slurm's signal and started again, as by `requeue`; merged, the shares are all rows."""
    command(place, "geval-local", REAL)
    file = write_input(place / "in.jsonl", 64)
    given = [str(file), "summarization/fluency", "nano", str(place / "out")]
    job = array_task(place, 1, *given, count=2)
    until(lambda: (place / "out" / "shard-0001-of-0002" / "scores.sqlite").exists())
    job.send_signal(signal.SIGUSR1)
    code = job.wait(timeout=300)
    assert code in (0, 3, 128 + signal.SIGTERM), job.stderr.read()
    assert logged(place) == (["requeue 77_1"] if code else [])
    for number in (1, 2):
        job = array_task(place, number, *given, count=2)
        assert job.wait(timeout=300) == 0, job.stderr.read()
    merge = ["geval-local", "merge", str(place / "out"), "-o", str(place / "all.jsonl"), "--json"]
    done = subprocess.run(merge, env=environment(place), check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["rows"] == 64
