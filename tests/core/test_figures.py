"""The table of figures: a new one is a line of it, and everything that writes, reads or describes figures has it."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
from pathlib import Path

import pytest
from markdown_text import marked_table

from geval_local.analysis.results import read_results
from geval_local.figures import ANSWERS, FIGURES, Figure
from geval_local.io.columns import SCORES
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Score

DOCS = Path(__file__).parents[2] / "docs"
SURPRISE = Figure(
    "surprise",
    "number",
    "how unlikely the likeliest label is",
    "always",
    lambda one: 1 - max(one.probabilities.values()),
)


@pytest.mark.parametrize("name", ["o.jsonl", "o.csv", "o.parquet"])
def test_a_new_figure_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setitem(FIGURES, "surprise", SURPRISE)
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    score = Score.from_distribution(
        "m", Distribution(Scale.parse("1-3"), [math.log(p) for p in (0.125, 0.25, 0.625)]), estimator=Estimator()
    )
    with ResultWriter.open(tmp_path / name, ["m"]) as writer:
        writer.write(Sample({"id": "a"}, 1), {"m": score})
        writer.write(Sample({"id": "b"}, 2), {"m": Score.unscored("m", "too long")})
    if name.endswith("jsonl"):
        assert json.loads((tmp_path / name).read_text().split("\n")[0])["geval"]["m"]["surprise"] == pytest.approx(
            0.375
        )
    if name.endswith("csv"):
        with (tmp_path / name).open(newline="") as file:
            assert float(next(csv.DictReader(file))["m.surprise"]) == pytest.approx(0.375)
    run = read_results(tmp_path / name)
    assert run.rows.figures["m"].number("surprise", 2).tolist() == [
        pytest.approx(0.375),
        pytest.approx(math.nan, nan_ok=True),
    ]
    assert run.rows[0]["geval"]["m"]["surprise"] == pytest.approx(0.375)
    assert "surprise" in SCORES.default


def test_a_new_figure_is_in_the_documents(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    monkeypatch.setitem(FIGURES, "surprise", SURPRISE)
    assert "| `surprise` | how unlikely the likeliest label is |" in generate.with_table("data.md")


def test_the_documents_have_every_figure_and_answers_their_own():
    assert [row[0] for row in marked_table(DOCS / "data.md", "figures")] == [f"`{name}`" for name in FIGURES]
    assert [row[0] for row in marked_table(DOCS / "questions.md", "answers")] == [f"`{name}`" for name in ANSWERS]


def test_a_figure_that_is_not_defined_is_null_and_one_that_a_score_lacks_is_absent():
    unknown = Score("m", 2.0, 0.5, {"1": 0.0, "2": 1.0}).to_dict()
    assert unknown["label_mass"] is None
    assert "calibrated" not in unknown
    assert Score.unscored("m", "too long").to_dict() == {
        "score": None,
        "prompt_tokens": 0,
        "error": "too long",
        "error_code": "unknown",
    }
