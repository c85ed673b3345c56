"""The journey of a gate: its commands run as its page prints them, and show the lines that the page shows."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from cli_run import run
from markdown_text import blocks, commands

import geval_local
from geval_local.yaml_text import load_yaml

JOURNEY = Path(geval_local.__file__).parents[1] / "examples" / "journeys" / "gate"


@pytest.mark.slow
def test_a_slice_that_dropped_fails_as_the_page_shows(tmp_path, monkeypatch):
    here = shutil.copytree(JOURNEY, tmp_path / "gate")
    monkeypatch.chdir(here)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    shown = ""
    for block in blocks(here / "README.md"):
        if block.language == "bash":
            shown = ""
            for line in commands(block):
                command, _, code = line.partition(" || test $? -eq ")
                words = shlex.split(command)
                if words[0] == "cp":
                    shutil.copy(words[1], words[2])
                    continue
                assert words[0] == "geval-local", line
                done = run(*words[1:], home=tmp_path / "home")
                assert done.exit_code == int(code or 0), f"{line}\n{done.stderr}"
                shown += done.stdout + done.stderr
        elif block.language == "text":
            for line in block.text.splitlines():
                assert line in shown, f"{line}\n---\n{shown}"
    assert "summarization/coherence, product = app" in shown


def test_both_releases_answer_the_same_texts():
    one, two = ((JOURNEY / f"release-{n}.csv").read_text(encoding="utf-8").splitlines() for n in (1, 2))
    assert len(one) == len(two) == 25
    assert [line[:60] for line in one] == [line[:60] for line in two]
    document = load_yaml((JOURNEY / "evaluation.yaml").read_text(encoding="utf-8"))[0]
    assert document["judges"] == ["nano"]
