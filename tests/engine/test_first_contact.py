"""The first contact with a card, on a CPU: whole and small, with a planted step that dies as of a driver's fault."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_step_that_hangs_is_ended_and_what_it_found_is_kept(tmp_path, monkeypatch):
    script = tmp_path / "hanging.py"
    script.write_text(
        "import time\nprint('PART {\"found\": 1}', flush=True)\nprint('PART {\"cut', flush=True)\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(first_contact, "__file__", str(script))
    options = first_contact.arguments(["--out", str(tmp_path), "--device", "cpu", "--deadline", "5", "--steps", "load"])
    (record,) = first_contact.run(options)
    assert record["outcome"].startswith("ended after its ")
    assert record["found"] == [{"found": 1}]
    assert record["last_lines"][-1] == 'PART {"cut'


ALL = list(first_contact.STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [pytest.param(["versions", "load", "gemma4"], id="some"), pytest.param(ALL, id="all", marks=pytest.mark.nightly)],
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
    assert next(part for part in records["gemma4"]["found"] if "engine" in part)["engine"] == "trie"
    if steps != ALL:
        return
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
