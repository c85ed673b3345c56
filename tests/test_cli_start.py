"""Starting up: light imports, help of every verb, versions, usage errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli_run import run

from geval_local import __version__

HEAVY = ("torch", "transformers", "numpy", "pydantic", "tokenizers", "huggingface_hub", "pyarrow", "scipy")


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


@pytest.mark.parametrize(
    "verb",
    [
        ["score"],
        ["steps"],
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
