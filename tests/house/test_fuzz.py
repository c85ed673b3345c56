"""Damaged files of every kind, by seed: named errors, no traceback, every intact row in its place, files left alone."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from cli_run import METRIC, judge_directory, run, write_rows
from fuzz import judge_case, metric_case, rows_case

from geval_local.judge.judge import Judge

#: Cases of a run without the slow tests, and of one of all tests; GEVAL_LOCAL_FUZZ=1000 for as many as one likes.
FEW, MANY = 4, int(os.environ.get("GEVAL_LOCAL_FUZZ", "200"))


@pytest.fixture(scope="module")
def judge():
    return Judge.load(judge_directory())


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    return tmp_path


def tree(directory: Path) -> dict[str, str]:
    """Hash every file of a directory, but for what the tool keeps for itself in home."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.relative_to(directory).parts[0] != "home"
    }


def check(done, seed, before, directory, *made):
    """Checks that hold for any files."""
    told = f"seed {seed}: {done.stderr[-2000:]}"
    assert done.exit_code in (0, 1, 2), told
    assert "Traceback" not in done.stderr, told
    assert "error: unexpected" not in done.stderr, told
    if done.exit_code == 2:
        assert done.stderr.strip(), told
    after = tree(directory)
    for name in made:
        after.pop(name, None)
    assert after == before, f"seed {seed}: files of the user's were changed"


def seeds(count):
    return [pytest.param(count, id=f"{count} cases", marks=[pytest.mark.nightly] if count > FEW else [])]


@pytest.mark.parametrize("count", [*seeds(FEW), *seeds(MANY)])
def test_input_files(count, judge, here, monkeypatch):
    monkeypatch.setattr(Judge, "load", lambda options: judge)
    (here / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    for seed in range(count):
        place = here / f"case{seed}"
        place.mkdir()
        path, ids = rows_case(place, seed)
        before = tree(here)
        output = place / "out.jsonl"
        arguments = ("score", path, "-m", "clarity.yaml", "-j", judge_directory(), "-o", output, "--no-cache")
        done = run(*arguments, home=here / "home")
        name = output.relative_to(here)
        check(done, seed, before, here, str(name), f"{name}.meta.json")
        if ids is not None and done.exit_code != 2:
            rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
            assert [str(row.get("id")) for row in rows] == ids, f"seed {seed}"
            assert all("score" in row["geval"]["clarity"] for row in rows), f"seed {seed}"


@pytest.mark.parametrize("count", [*seeds(FEW), *seeds(MANY)])
def test_metric_files(count, judge, here, monkeypatch):
    monkeypatch.setattr(Judge, "load", lambda options: judge)
    write_rows(here / "data.jsonl", [{"source": "A tale.", "output": "It ends."}])
    for seed in range(count):
        path = metric_case(here, seed)
        before = tree(here)
        check(run("metrics", "validate", path, home=here / "home"), seed, before, here)
        arguments = ("score", "data.jsonl", "-m", path, "-j", judge_directory(), "--no-steps", "--no-cache")
        check(run(*arguments, home=here / "home"), seed, before, here)


@pytest.mark.parametrize("count", [*seeds(FEW // 2), *seeds(MANY // 2)])
def test_judge_directories(count, here):
    write_rows(here / "data.jsonl", [{"source": "A tale.", "output": "It ends."}])
    (here / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    for seed in range(count):
        place = here / f"case{seed}"
        place.mkdir()
        path = judge_case(place, seed)
        before = tree(here)
        arguments = ("score", "data.jsonl", "-m", "clarity.yaml", "-j", path, "--no-cache")
        check(run(*arguments, home=here / "home"), seed, before, here)
