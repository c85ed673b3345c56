"""The first contact with a card, on a CPU: whole and small, with a planted step that dies as of a driver's fault."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

ROOT = Path(__file__).resolve().parents[2]
# Loaded by its path: benchmarks/ on sys.path would put its modules before the packages of the same name.
spec = importlib.util.spec_from_file_location("first_contact", ROOT / "benchmarks" / "first_contact.py")
first_contact = importlib.util.module_from_spec(spec)
spec.loader.exec_module(first_contact)


def test_after_the_deadline_nothing_begins_and_every_step_has_its_line(tmp_path):
    options = first_contact.arguments(["--out", str(tmp_path), "--device", "cpu", "--tiny", "--deadline", "0"])
    records = list(first_contact.run(options))
    assert [record["step"] for record in records] == list(first_contact.STEPS)
    assert {record["outcome"] for record in records} == {"not begun: the deadline was reached"}


#: How a step may die after its first finding, and what is said of it.
DEATHS = {
    "os.kill(os.getpid(), signal.SIGKILL)": "ended with code -9",
    "os.abort()": "ended with code -6",
    "os._exit(3)": "ended with code 3",
    "sys.exit()": "ended with code 0 before its end",
    "raise RuntimeError('CUDA error: an illegal memory access')": "ended with code 1",
    "time.sleep(600)": "ended after its 3 s",
    "subprocess.run(['sleep', '600'])": "ended after its 3 s",
    "print('PART {cut'); print('PART ' + '[' * 100_000); sys.exit(1)": "ended with code 1",
    "os.write(1, bytes(range(256)) * 9 + b'PART 5'); print(); print('PART {}x}'); end()": "done",
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_step_that_dies_costs_only_itself(tmp_path, monkeypatch, death):
    script = tmp_path / "dying.py"
    script.write_text(
        "import os, signal, subprocess, sys, time\n"
        "def end(): print('END', flush=True)\n"
        "os.write(1, b'half a lin')\n"
        "print('PART {\"found\": NaN}', flush=True)\n"
        f"if 'load' in sys.argv:\n    {death}\nelse:\n    end()\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(first_contact, "__file__", str(script))
    # Slow to start is not slow to end.
    monkeypatch.setitem(first_contact.STEPS, "load", (3, None))
    options = first_contact.arguments(["--out", str(tmp_path), "--device", "cpu", "--steps", "nano", "load", "gguf"])
    records = list(first_contact.run(options))
    assert [record["outcome"] for record in records] == ["done", DEATHS[death], "done"]
    assert [record["found"] for record in records] == [[{"found": "NaN"}]] * 3
    assert ("last_lines" in records[1]) == (DEATHS[death] != "done")
    json.dumps(records, allow_nan=False)
    assert {file.name for file in tmp_path.iterdir()} == {script.name, first_contact.OUTPUT}


def test_a_process_that_a_step_started_ends_with_it(tmp_path, monkeypatch):
    script = tmp_path / "leaving.py"
    script.write_text(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(f'PART {{\"child\": {child.pid}}}\\nEND', flush=True)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(first_contact, "__file__", str(script))
    options = first_contact.arguments(["--out", str(tmp_path), "--device", "cpu", "--steps", "load"])
    (record,) = first_contact.run(options)
    state = Path(f"/proc/{record['found'][0]['child']}/stat")
    until(lambda: not state.exists() or ") Z " in state.read_text())
    assert not state.exists() or ") Z " in state.read_text()


def test_a_step_that_cannot_begin_costs_only_itself(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(first_contact.subprocess, "Popen", refuse)
    options = first_contact.arguments(["--out", str(tmp_path), "--steps", "nano", "load"])
    assert {one["outcome"] for one in first_contact.run(options)} == {"not begun: Cannot allocate memory"}


ALL = list(first_contact.STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [pytest.param(["versions", "load"], id="some"), pytest.param(ALL, id="all", marks=pytest.mark.nightly)],
)
def test_it_runs_whole_on_a_cpu_and_a_planted_death_costs_only_itself(tmp_path, steps):
    command = [sys.executable, str(ROOT / "benchmarks" / "first_contact.py"), "--out", str(tmp_path), "--tiny"]
    command += ["--device", "cpu", "--deadline", "3600", "--patience", "20", "--plant", "load", "--steps", *steps]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (tmp_path / first_contact.RESULTS).read_text(encoding="utf-8").splitlines()
    records = {record["step"]: record for record in map(json.loads, lines)}
    assert list(records) == steps
    outcomes = {name: record["outcome"] for name, record in records.items()}
    assert outcomes.pop("load").startswith("ended with code -")
    assert records["load"]["found"] == [{"planted": True}]
    assert set(outcomes.values()) == {"done"}, [records[name] for name in outcomes if outcomes[name] != "done"]
    assert json.loads(done.stdout.splitlines()[-1])["versions"] == "done"
    if steps != ALL:
        return
    assert next(part for part in records["gemma4"]["found"] if "engine" in part)["engine"] == "trie"
    kernel = records["kernel"]["found"]
    assert {(part["size"], part["mask"]) for part in kernel} == {
        (size, mask) for size in first_contact.HEADS[:2] for mask in first_contact.MASKS
    }
    assert all(part["error"] < 1e-5 and part["refused"] == {} for part in kernel)
    assert records["self-check"]["found"][-1]["failed"] == []
    whole = next(part for part in records["whole"]["found"] if "prompts_per_second" in part)
    assert whole["trie_tokens"] < whole["prompt_tokens"]
    assert next(part for part in records["qwen3.5"]["found"] if "engine" in part)["engine"] == "cache"
    assert next(part for part in records["mixture"]["found"] if "engine" in part)["engine"] == "trie"
    assert records["out-of-memory"]["found"][-1]["scored"] == records["out-of-memory"]["found"][-1]["prompts"]
