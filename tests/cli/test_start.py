"""Starting up: light imports, help of every verb, versions, usage errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import forked
import pytest
from cli_run import METRIC, good_rows, judge_directory, run, write_rows

from geval_local import __version__

HEAVY = ("torch", "transformers", "tokenizers", "huggingface_hub", "pyarrow", "scipy")


def test_help_imports_nothing_heavy():
    code = (
        "import sys, json\n"
        "from geval_local.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit as done:\n    assert not done.code\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "score" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_the_entry_point_itself_is_light():
    code = f"import sys, geval_local.cli; print([m for m in {(*HEAVY, 'typer', 'rich')!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_python_m_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "geval_local", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"geval-local {__version__}\n"
    wrong = subprocess.run([sys.executable, "-m", "geval_local", "scoer"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "scoer" in wrong.stderr


@pytest.mark.sweep
@pytest.mark.parametrize(
    "verb",
    [
        ["score"],
        ["steps"],
        ["meta-eval"],
        ["compare"],
        ["bias"],
        ["calibrate"],
        ["jury"],
        ["metrics", "list"],
        ["metrics", "show"],
        ["metrics", "validate"],
        ["metrics", "new"],
        ["judges", "list"],
        ["judges", "check"],
        ["judges", "fetch"],
    ],
)
def test_every_verb_explains_itself(verb, tmp_path):
    result = run(*verb, "--help", home=tmp_path)
    assert result.exit_code == 0
    assert " ".join(verb) in result.stdout


@pytest.mark.parametrize("arguments", [["score"], ["score", "f.jsonl", "--limt", "3"], ["judges", "fetch"]])
def test_usage_errors_exit_with_2_and_leave_stdout_alone(arguments, tmp_path):
    result = run(*arguments, home=tmp_path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_exits_with_3_and_leaves_nothing_behind(stop, tmp_path):
    write_rows(tmp_path / "data.jsonl", good_rows(20_000))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    before = {path.name for path in tmp_path.iterdir()}
    command = ["score", "data.jsonl", "-m", "clarity.yaml", "--judge", str(judge_directory()), "-o", "out.jsonl"]
    process = forked.start(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "loading the judge ...\n"
    assert len(list(tmp_path.iterdir())) > len(before)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 3
    assert f"run it again with:\n  geval-local {' '.join(command)}\n" in errors
    assert "Traceback" not in errors
    assert {path.name for path in tmp_path.iterdir()} == before
