"""The command line with real-world rows: columns mapped, files rejected early, standard input, CSV results."""

from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path

import pytest
from cli_run import METRIC, good_rows, judge_directory, read_rows, run, write_rows
from typer.testing import CliRunner


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    write_rows(tmp_path / "good.jsonl", good_rows(4))
    write_rows(
        tmp_path / "own.jsonl",
        [
            {"id": row["id"], "doc": {"body": row["source"]}, "out": [row["output"]], "human": [2, 4]}
            for row in good_rows(4)
        ],
    )
    return tmp_path


@pytest.fixture
def no_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*given: object, **named: object) -> None:
        raise AssertionError("a judge is loaded")

    monkeypatch.setattr("geval_local.judge.judge.Judge.load", load)


MAPPED = ("--field", "source=doc.body", "--field", "output=out.0")


def score(here: Path, file: str, *arguments: object):
    return run(*("score", file, "-m", "clarity.yaml", "-j", judge_directory(), *arguments), home=here / "home")


def test_fields_are_mapped_and_the_run_knows_it(here: Path) -> None:
    assert score(here, "good.jsonl", "-o", "plain.jsonl").exit_code == 0
    done = score(here, "own.jsonl", *MAPPED, "-o", "run/")
    assert done.exit_code == 0, done.stderr
    figures = [[row["geval"] for row in read_rows(here / name)] for name in ("plain.jsonl", "run/scores.jsonl")]
    assert figures[0] == figures[1]
    assert "doc" in read_rows(here / "run/scores.jsonl")[0]
    again = score(here, "own.jsonl", "--field", "source=doc.body", "--field", "output=doc.body", "-o", "run/")
    assert again.exit_code == 2
    assert "--field was" in again.stderr
    done = run("resume", "run/", home=here / "home")
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the fields 'source' and 'output' are missing"),
        (["--field", "source=doc.bdy", "--field", "output=out.0"], "no row has such a column"),
        (["--field", "sauce=doc", "--field", "output=out"], "no metric here has a field 'sauce'"),
        (["--field", "nothing"], "is not a mapping"),
        ([*MAPPED, "--columns", "idd", "-o", "o.csv"], "there is no column 'idd'; did you mean 'id'?"),
        ([*MAPPED, "--columns", "id", "-o", "o.jsonl"], "are about CSV results"),
        ([*MAPPED, "--csv-style", "safe"], "are about CSV results"),
    ],
)
def test_what_does_not_fit_is_found_before_a_judge(here: Path, no_judge: None, arguments, message) -> None:
    done = score(here, "own.jsonl", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not list(here.glob("o.*"))
    assert not list(here.glob(".*"))


def test_meta_eval_finds_out_before_a_judge(here: Path, no_judge: None) -> None:
    def meta(*arguments: object):
        return run("meta-eval", "own.jsonl", "-m", "clarity.yaml", *arguments, home=here / "home")

    for arguments, message in (
        (("--human", "doc"), "doc is not a number"),
        (("--human", "humen"), "did you mean 'human'?"),
        (("--human", "human"), "can be scored on clarity: the fields 'source' and 'output' are missing"),
        (("--human", "human", "--field", "source=nowhere"), "no row has such a column"),
    ):
        done = meta(*arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr, done.stderr


def test_lists_of_ratings_are_averaged_and_said_so(here: Path) -> None:
    from geval_local.analysis.ratings.values import number_at

    assert number_at({"human": [2, 4, None]}, "human", "row 1") == 3
    assert number_at({"human": "[1, 2]"}, "human", "row 1") == 1.5
    done = run(
        *("meta-eval", "own.jsonl", "-m", "clarity.yaml", "-j", judge_directory(), "--human", "human.1", *MAPPED),
        home=here / "home",
    )
    assert done.exit_code in (0, 2), done.output
    assert "Traceback" not in done.stderr


def test_a_metric_without_any_score_fails_and_says_why(here: Path) -> None:
    write_rows(here / "empty.jsonl", [{"source": "x", "output": ""}] * 3)
    done = score(here, "empty.jsonl", "--max-unscored", "100%")
    assert done.exit_code == 1
    assert "none of 3 rows has a score: the field 'output' is empty (3 rows)" in done.stderr


def test_csv_results_are_for_a_spreadsheet(here: Path) -> None:
    rows = good_rows(2)
    rows[0]["id"] = "=HYPERLINK(1)"
    write_rows(here / "good.jsonl", rows)
    assert (
        score(here, "good.jsonl", "-o", "o.csv", "--csv-style", "safe", "--columns", "id,output,score").exit_code == 0
    )
    with (here / "o.csv").open(newline="") as file:
        header, first, _ = csv.reader(file)
    assert header == ["id", "output", "clarity.score"]
    assert first[0] == "'=HYPERLINK(1)"


def from_standard_input(here: Path, text: str, *arguments: object):
    from geval_local.cli.app import app

    command = ["score", "-", "-m", "clarity.yaml", "-j", judge_directory(), *arguments]
    return CliRunner().invoke(
        app, list(map(str, command)), input=text, env={"GEVAL_LOCAL_HOME": str(here / "home")}, prog_name="geval-local"
    )


def test_rows_from_standard_input(here: Path) -> None:
    text = (here / "good.jsonl").read_text(encoding="utf-8")
    done = from_standard_input(here, text, "-o", "o.jsonl")
    assert done.exit_code == 0, done.output
    assert [row["id"] for row in read_rows(here / "o.jsonl")] == ["r0", "r1", "r2", "r3"]
    assert not list((here / "home" / "stdin").iterdir())
    done = from_standard_input(here, text, "-o", "run/")
    assert done.exit_code == 0, done.output
    (kept,) = (here / "home" / "stdin").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert from_standard_input(here, json.dumps({"a": 1})).exit_code == 2
    assert from_standard_input(here, "").exit_code == 2


@pytest.mark.slow
def test_a_pipe_and_a_text_of_fifty_megabytes_do_not_hang(here: Path) -> None:
    os.mkfifo(here / "pipe.jsonl")
    done = score(here, "pipe.jsonl")
    assert done.exit_code == 2
    assert "is a pipe (FIFO)" in done.stderr
    write_rows(here / "long.jsonl", [*good_rows(1), {"id": "x", "source": "word " * 10_000_000, "output": "O"}])
    start = time.process_time()  # of this process, whatever else the machine does
    done = score(here, "long.jsonl", "-o", "o.csv")
    assert done.exit_code == 0, done.output
    assert "50,000,000 characters" in (here / "o.csv").read_text(encoding="utf-8")
    assert time.process_time() - start < 60
