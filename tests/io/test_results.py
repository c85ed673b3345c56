"""Results read back: one rule for figures in CSV columns, one for row numbers, one for mapped columns."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cli_run import run

from geval_local.analysis.results import ScoredRun, read_results
from geval_local.errors import DataError
from geval_local.io.input_files import read_samples
from geval_local.io.result_manifest import ResultManifest, ScoredMetric, write_manifest
from geval_local.io.results import read_result_rows, with_figures
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.metric import Metric
from geval_local.score import Score

GOOD = {"output": "text", "geval": {"m": {"score": 2.0, "error": None}}}


def test_rows_after_a_blank_line_have_one_number_the_place_among_the_results(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    bad = {**GOOD, "rating": "high"}
    path.write_text("\n" + json.dumps(GOOD) + "\n\n\n" + json.dumps(bad) + "\n", encoding="utf-8")
    assert [sample.row for sample in read_samples(path)] == [1, 2]
    assert read_results(path).rows.numbers == [1, 2]
    assert [row.number for row in read_result_rows(path)] == [1, 2]
    with pytest.raises(DataError, match=r"rows\.jsonl, row 2: rating is not a number"):
        ScoredRun.of(path).items("m", human="rating")


def scored(value: float) -> Score:
    return Score.unscored("m", "too long") if value != value else read_results([GOOD]).score("m", 0)


@pytest.mark.parametrize("columns", [None, ["id", "score"], ["all"]])
def test_csv_results_are_recognised_alike_by_report_and_analysis(tmp_path: Path, columns: list[str] | None):
    path = tmp_path / "o.csv"
    with ResultWriter.open(path, ["m"], columns=columns) as writer:
        writer.write(Sample({"id": "a", "human.score": "3"}, 1), {"m": scored(2.0)})
    metric = Metric(name="m", criteria="c", scale="1-3")
    write_manifest(path, ResultManifest("j", "in.csv", "0", 1, {"m": ScoredMetric("judge:j", metric, 0)}))
    (row,) = read_result_rows(path)
    assert row["geval"]["m"]["score"] == 2.0
    assert list(row["geval"]) == ["m"]
    results = read_results(path)
    assert results.metrics == ["m"]
    assert results.score("m", 0).value == 2.0
    assert [item.predicted for item in ScoredRun.of(path).items("m")] == [2.0]


def test_a_column_that_only_looks_like_a_score_stays_a_column():
    row = {"human.score": "3", "output": "x"}
    assert with_figures(row) == row
    assert with_figures({**row, "m.score": "", "m.error": "too long"})["geval"] == {
        "m": {"score": None, "error": "too long"}
    }
    assert with_figures({"a.score": "1"}, ["a"])["geval"] == {"a": {"score": "1"}}


def test_the_mapping_of_a_run_is_in_its_manifest(tmp_path: Path):
    path = tmp_path / "o.jsonl"
    path.write_text(json.dumps({"a": {"b": "one two"}, "geval": GOOD["geval"]}) + "\n", encoding="utf-8")
    write_manifest(path, ResultManifest("j", "in.jsonl", "0", 1, fields={"output": "a.b"}))
    assert read_results(path).mapping == {"output": "a.b"}
    assert read_results(path, fields={"output": "a.c"}).mapping == {"output": "a.c"}


def test_the_header_of_a_csv_file_is_that_of_the_writer(tmp_path: Path):
    path = tmp_path / "o.csv"
    with ResultWriter.open(path, ["m"]) as writer:
        writer.write(Sample({"id": "a"}, 1), {"m": Score.unscored("m", "too long")})
    with path.open(newline="", encoding="utf-8") as file:
        assert next(csv.reader(file)) == ["id", "m.score", "m.label_mass", "m.error", "m.error_code"]
    assert read_results(path).score("m", 0).error == "too long"


@pytest.mark.parametrize("value", ["1e308", "-1e200", "1e999"])
@pytest.mark.parametrize("figure", ["score", "calibrated", "std"])
def test_a_number_beyond_all_scales_is_an_error_of_its_row(tmp_path: Path, value: str, figure: str):
    path = tmp_path / "scores.jsonl"
    huge = json.dumps({"output": "text", "geval": {"m": {"score": 2.0, figure: "HERE"}}}).replace('"HERE"', value)
    path.write_text("\n".join([json.dumps(GOOD), huge, json.dumps(GOOD)]) + "\n", encoding="utf-8")
    done = run("report", path, "-o", tmp_path / "page.html", home=tmp_path / "home")
    assert done.exit_code == 2, done.stderr
    assert f"scores.jsonl, row 2: m: {figure}" in " ".join(done.stderr.split())
    if figure == "score":
        with pytest.raises(DataError, match=r"scores\.jsonl, row 2: (m: )?score"):
            ScoredRun.of(path).items("m")
