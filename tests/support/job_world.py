"""A repository with an evaluation, whose jobs change answers, runs and configuration; a judge that reads its score."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_run import METRIC, judge_directory, run, write_rows

import geval_local.models.load
from geval_local.judge.judge import Judge
from geval_local.models.registry import label_of
from geval_local.testing import LABEL_MASS, MockEngine, MockJudge, byte_tokenizer

EVALUATION = """\
data:
  answers: {file: answers.jsonl}
metrics:
  - clarity.yaml
judges:
  - tiny
gates:
  all:
    unscored: "<= 5%"
    not_worse: true
    by: {language: {not_worse: true}}
baseline: last
outputs: runs/{date}-{commit}
report: false
"""
LANGUAGES = ("de", "tr", "ar")
EACH = 20


class Reader(MockEngine):
    """Gives the score that an answer names: "level 3.42"."""

    def label_logprobs(self, request: Any) -> Any:
        level = float(re.findall(r"level (\d\.\d+)", BYTES.decode(request.ids))[-1])
        weights = np.full(5, 1e-9)
        below = min(int(level), 4)
        weights[below - 1], weights[below] = below + 1 - level, level - below
        weights = np.maximum(weights, 1e-9)
        return np.log(weights * (LABEL_MASS / weights.sum()))


BYTES = byte_tokenizer()


class World:
    """A repository with an evaluation, and what its jobs do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.more: list[str] = []

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, cwd=self.path,
                       capture_output=True)  # fmt: skip

    def commit(self) -> None:
        self.git("commit", "-q", "--allow-empty", "-m", "x")

    def answers(self, fall: float = 0.0, of: Callable[[dict[str, Any]], bool] = lambda row: True, **named: Any) -> None:
        """Write 20 answers in three languages; those `of` which it is true are lower by about `fall`."""
        draw = np.random.default_rng(7)
        rows = []
        for n in range(3 * EACH):
            row = {"id": f"q{n}", "source": f"Question {n}?", "language": LANGUAGES[n % 3]}
            level, wobble = 3.4 + draw.normal(0, 0.2), draw.normal(0, 0.05)
            if of(row) and fall:
                level -= fall + wobble
            rows.append(row | {"output": f"level {level:.4f}"})
        change = named.get("change", lambda rows: rows)
        write_rows(self.path / "answers.jsonl", change(rows))

    def edit(self, before: str, after: str, file: str = "evaluation.yaml") -> None:
        text = (self.path / file).read_text(encoding="utf-8")
        assert before in text
        (self.path / file).write_text(text.replace(before, after), encoding="utf-8")

    def run(self, *arguments: object, code: int | None = None, file: str = "evaluation.yaml") -> Any:
        done = run("run", file, "--summary", "job.md", "--junit", "gates.xml", *arguments, home=self.path / "home")
        assert code is None or done.exit_code == code, done.stderr
        return done

    def good(self) -> None:
        """What the main branch has: good answers, scored."""
        self.answers()
        self.run(code=0)
        self.commit()

    def runs(self) -> list[Path]:
        return sorted((self.path / "runs").iterdir(), key=lambda one: one.stat().st_mtime_ns)


def in_language(language: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["language"] == language


def make_world(path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Make the repository, and let every judge read its scores from the answers."""
    monkeypatch.chdir(path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(path / "home"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(path.parent))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (path / "tiny").symlink_to(judge_directory())
    (path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    (path / "evaluation.yaml").write_text(EVALUATION, encoding="utf-8")
    monkeypatch.setattr(Judge, "load", lambda options: MockJudge(Reader(), name=label_of(options)))
    monkeypatch.setattr(geval_local.models.load, "check_judge", lambda entry, options: None)
    made = World(path)
    made.git("init", "-q")
    made.commit()
    return made
