"""Numbers that no computer counts to: refused in words or as good as any large number, never a defect."""

from __future__ import annotations

import pytest
from cli_run import judge_directory, run
from rated_runs import prepare, score

HUGE = 10**23


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    directory = tmp_path_factory.mktemp("numbers")
    prepare(directory)
    score(directory, "a.jsonl")
    return directory


SCORE = ("score", "data.jsonl", "-m", "clarity.yaml", "-j", judge_directory, "--no-cache")
RATED = ("--human", "rating.clarity")
COMMANDS = {
    "score --limit": (*SCORE, "--limit", HUGE),
    "score --limit beyond int64": (*SCORE, "--limit", 2**63),
    "score --batch-tokens": (*SCORE, "--batch-tokens", HUGE),
    "score --window": (*SCORE, "--window", HUGE),
    "score --workers": (*SCORE, "-o", "parts/", "--workers", HUGE),
    "report --rows": ("report", "a.jsonl", "-o", "page.html", "--rows", HUGE),
    "calibrate --folds": ("calibrate", "a.jsonl", *RATED, "-o", "c.json", "--folds", HUGE),
    "calibrate --seed": ("calibrate", "a.jsonl", *RATED, "-o", "c.json", "--seed", HUGE),
    "meta-eval --seed": (
        "meta-eval",
        "data.jsonl",
        "-m",
        "clarity.yaml",
        *RATED,
        "--results",
        "a.jsonl",
        "--seed",
        HUGE,
    ),
    "meta-eval --limit": (
        *("meta-eval", "data.jsonl", "-m", "clarity.yaml", *RATED, "--results", "a.jsonl", "--limit", HUGE),
    ),
    "compare --largest": ("compare", "a.jsonl", "a.jsonl", "--largest", HUGE),
    "compare --seed": ("compare", "a.jsonl", "--system", "side", "--seed", HUGE),
    "bias --seed": ("bias", "a.jsonl", "--side", "side", "--seed", HUGE),
    "reasons --lowest": ("reasons", "a.jsonl", "-o", "r.jsonl", "--lowest", HUGE, "--tokens", 8),
    "reasons --tokens": ("reasons", "a.jsonl", "-o", "r2.jsonl", "--lowest", 1, "--tokens", HUGE),
    "pairs --limit": ("pairs", "data.jsonl", "-j", judge_directory, "--limit", HUGE),
    "pairs --budget": ("pairs", "data.jsonl", "-j", judge_directory, "--budget", HUGE, "--seed", HUGE),
    "serve --port": ("serve", "-j", judge_directory, "--port", HUGE),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_number_is_too_large_for_words(here, tmp_path, monkeypatch, name):
    monkeypatch.chdir(here)
    command = [one() if callable(one) else one for one in COMMANDS[name]]
    done = run(*command, home=tmp_path / "home")
    assert done.exit_code in (0, 2), (done.stderr, done.exception)
    assert "defect" not in done.stderr
    if name.startswith("score --limit"):
        assert done.exit_code == 2
        assert "at most 9223372036854775807" in done.stderr
