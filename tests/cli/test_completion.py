"""What the shell offers after TAB, and that it is offered without loading a model library."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from geval_local.cli.options import complete_judge, complete_metric

SHOW = """\
import sys
sys.argv = ["geval-local"]
import atexit
atexit.register(lambda: print("LOADED", sorted({"torch", "transformers"} & set(sys.modules))))
from geval_local.cli import main
main()
"""


def offered(tmp_path, words: str) -> list[str]:
    environment = os.environ | {
        "_GEVAL_LOCAL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "GEVAL_LOCAL_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SHOW], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    *lines, loaded = done.stdout.splitlines()
    assert loaded == "LOADED []", done.stdout + done.stderr
    return lines


@pytest.mark.slow
def test_verbs_metrics_and_judges_are_offered_without_a_model_library(tmp_path):
    assert offered(tmp_path, "geval-local ru") == ["run"]
    assert offered(tmp_path, "geval-local score x.jsonl -m rag/f") == ["rag/faithfulness"]
    assert "qwen2.5-0.5b" in offered(tmp_path, "geval-local score x.jsonl -j qwen2.5-0")


def test_files_beside_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GEVAL_LOCAL_MODELS", raising=False)
    (tmp_path / "rag-own.yaml").touch()
    (tmp_path / "rag.csv").touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.gguf").touch()
    assert complete_metric("rag")[-1] == "rag-own.yaml"
    assert "rag.csv" not in complete_metric("rag")
    assert complete_judge("na") == ["nano"]
    assert complete_judge("models/") == ["models/m.gguf"]
    assert complete_judge("nowhere/at/all") == []
    assert "models/" in complete_judge("")


@pytest.mark.parametrize("text", ["not: [yaml", "judges: 3"])
def test_a_broken_models_file_breaks_no_completion(tmp_path, monkeypatch, text):
    (tmp_path / "models.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("GEVAL_LOCAL_MODELS", str(tmp_path / "models.yaml"))
    monkeypatch.chdir(tmp_path)
    assert complete_judge("na") == []
