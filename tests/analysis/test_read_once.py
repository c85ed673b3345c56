"""Every analysis reads its input once, and holds it in little memory."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cli_run import run

import geval_local.io.results
from geval_local import Metric
from geval_local.io.result_manifest import ResultManifest, ScoredMetric, write_manifest
from geval_local.io.results import read_result_rows

FIELDS = {"question": "Question", "output": "Answer"}


def write(path: Path, count: int = 60, seed: int = 0) -> Path:
    rng, ratings = np.random.default_rng(seed), np.random.default_rng(7)
    lines = []
    for place in range(count):
        p = rng.dirichlet(np.ones(3))
        row = {
            "id": f"r{place}",
            "question": f"What is {place // 3}?",
            "output": f"It is {place}, and {place * 37 % 100}.",
            "system": "abc"[place % 3],
            "rating": int(ratings.integers(1, 4)) if place < 45 else None,
            "geval": {
                "m": {
                    "score": float(p @ [1, 2, 3]),
                    "probabilities": dict(zip("123", p.tolist(), strict=True)),
                    "label_mass": 0.95,
                    "mode": "123"[int(p.argmax())],
                }
            },
        }
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    metric = Metric(name="m", criteria="Is it good?", scale="1-3", fields=FIELDS)
    scored = ScoredMetric(f"judge:{path.stem}@0", metric, 0)
    write_manifest(path, ResultManifest("j", "in.jsonl", "0", count, {"m": scored}))
    return path


COMMANDS = {
    "estimate": ["estimate", "one.jsonl", "--human", "rating"],
    "plan": ["estimate", "one.jsonl", "--human", "rating", "--plan", "3"],
    "compare": ["compare", "one.jsonl", "two.jsonl", "--across", "any", "--page", "c.html"],
    "systems": ["compare", "one.jsonl", "--system", "system", "--page", "s.html"],
    "report": ["report", "one.jsonl", "--human", "rating", "--by", "system", "-o", "page.html"],
    "meta-eval": ["meta-eval", "one.jsonl", "--human", "rating", "--no-baselines"],
    "jury": ["jury", "one.jsonl", "two.jsonl", "--human", "rating"],
    "calibrate": ["calibrate", "one.jsonl", "--human", "rating", "-o", "c.json"],
    "bias": ["bias", "one.jsonl", "--side", "system", "--human", "rating"],
    "rank": ["rank", "one.jsonl", "--human", "rating"],
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_an_analysis_reads_its_input_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str):
    write(tmp_path / "one.jsonl")
    write(tmp_path / "two.jsonl", seed=1)
    monkeypatch.chdir(tmp_path)
    seen: Counter[str] = Counter()
    read = geval_local.io.results.read_rows

    def counted(path, *options):
        seen[Path(path).name] += 1
        return read(path, *options)

    monkeypatch.setattr(geval_local.io.results, "read_rows", counted)
    done = run(*COMMANDS[verb], home=tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    assert seen
    assert set(seen.values()) == {1}, seen


def test_rows_take_little_memory(tmp_path: Path):
    peaks = []
    for count in (1000, 4000):
        path = write(tmp_path / f"{count}.jsonl", count)
        tracemalloc.start()
        rows = read_result_rows(path)
        peaks.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(rows) == count
    assert (peaks[1] - peaks[0]) / 3000 < 500  # bytes a row of 260; 1,900 as dictionaries


def test_rows_are_what_the_file_holds(tmp_path: Path):
    lines = [
        {"id": 1, "a": None, "geval": {"m": {"score": 2.0, "probabilities": {"1": 0.5, "2": 0.5}}}},
        {"id": 2, "b": ["x", {"y": 1}], "geval": {"m": {"score": None, "error": "too long"}, "n": {"score": 1}}},
        {"id": 3, "a": True, "geval": {"m": {"score": 1, "probabilities": {"2": 0.25, "1": 0.75}}}},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    rows = read_result_rows(path)
    assert [dict(row) for row in rows] == lines
    assert rows[-1]["geval"]["m"]["probabilities"] == {"1": 0.75, "2": 0.25}
    assert [row["id"] for row in rows[1:]] == [2, 3]
    assert rows.column("a") == [None, None, True]
    with pytest.raises(IndexError):
        rows[3]
