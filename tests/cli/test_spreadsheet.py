"""A spreadsheet in, a spreadsheet out: everything that a JSONL result can do, a CSV result can."""

from __future__ import annotations

import csv
import json
import re

import pytest
from cli_run import METRIC, judge_directory, run

from geval_local.analysis.results import ScoredRun, read_results
from geval_local.io.result_manifest import rows_path
from geval_local.io.results import read_result_rows

ROWS = 12


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    write_table(tmp_path / "chats.csv", rows_of(ROWS))
    return tmp_path


def rows_of(count):
    return [
        {
            "ticket": f"T-{n}",
            "source": f"Question {n} asks something.",
            "output": f"Answer {n}, in a word.",
            "human": n % 5,
        }
        for n in range(count)
    ]


def write_table(path, rows, *, encoding="utf-8", delimiter=","):
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def read_table(path, **options):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, **options))


def score(here, *arguments, file="chats.csv", output="scored.csv"):
    done = run(
        *("score", file, "-m", "clarity.yaml", "--judge", judge_directory(), "-o", output, *arguments),
        home=here / "home",
    )
    assert done.exit_code == 0, done.stderr
    return done


def test_a_csv_result_has_the_columns_of_its_input_then_score_label_mass_and_error(here):
    score(here)
    rows = read_table(here / "scored.csv")
    figures = [f"clarity.{name}" for name in ("score", "label_mass", "error", "error_code")]
    assert list(rows[0]) == ["ticket", "source", "output", "human", *figures]
    assert [row["ticket"] for row in rows] == [f"T-{n}" for n in range(ROWS)]


@pytest.mark.parametrize("options", [(), ("--columns", "score")], ids=["all columns", "scores only"])
def test_a_csv_result_reads_as_the_jsonl_result_does(here, options):
    score(here, *options)
    score(here, output="scored.jsonl")
    of_csv, of_jsonl = read_results("scored.csv"), read_results("scored.jsonl")
    assert [dict(row) for row in read_result_rows("scored.csv")] == [
        dict(row) for row in read_result_rows("scored.jsonl")
    ]
    assert of_csv.scores("clarity") == of_jsonl.scores("clarity")
    assert of_csv.rows.numbers == of_jsonl.rows.numbers
    assert all(0 < score.label_mass <= 1 for score in of_csv.scores("clarity"))


def test_figures_are_found_after_the_table_was_sorted_and_rated_and_saved_by_a_spreadsheet(here):
    score(here)
    rows = read_table(here / "scored.csv")
    rows.sort(key=lambda row: float(row["clarity.score"]))
    for place, row in enumerate(rows):
        row["rated"] = str(place % 4)
    write_table(here / "scored.csv", rows, delimiter=";")
    score(here, output="scored.jsonl")
    masses = {row["ticket"]: row["geval"]["clarity"]["label_mass"] for row in read_result_rows("scored.jsonl")}
    found = read_result_rows("scored.csv")
    assert [row["ticket"] for row in found] == [row["ticket"] for row in rows]
    assert [row["rated"] for row in found] == [str(place % 4) for place in range(ROWS)]
    assert [row["geval"]["clarity"]["label_mass"] for row in found] == [masses[row["ticket"]] for row in rows]


def test_a_score_that_was_edited_is_the_users(here):
    score(here)
    rows = read_table(here / "scored.csv")
    rows[3]["clarity.score"] = "1.25"
    write_table(here / "scored.csv", rows)
    found = read_results("scored.csv")
    assert found.score("clarity", 3).value == 1.25
    scores = zip(found.rows.numbers, found.scores("clarity"), strict=True)
    assert [number for number, score in scores if score.probabilities is None] == [4]


def test_what_a_table_without_its_rows_does_not_hold_is_unknown_and_not_zero(here):
    score(here)
    rows_path(here / "scored.csv").unlink()
    done = run("report", "scored.csv", "-o", "page.html", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert rows_path("scored.csv").name in done.stderr
    page = (here / "page.html").read_text(encoding="utf-8")
    start = page.index("<tbody", page.index("lowest mass"))
    cells = [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", page[start:], re.DOTALL)]
    assert cells[:2] == ["clarity", f"{ROWS} of {ROWS}"]
    assert cells[4] != "-"
    assert cells[8] == "-"  # threshold
    done = run("reasons", "scored.csv", "--lowest", 2, "-o", "r.jsonl", home=here / "home")
    assert done.exit_code == 2
    assert "no row holds the label that it got; of a table, the file .rows.jsonl beside it does" in done.stderr
    summary = ScoredRun(here / "scored.csv")
    assert summary.rows[0]["geval"]["clarity"].get("probabilities") is None


def test_the_lowest_rows_and_why(here, monkeypatch):
    # A random judge has little label mass, so that its rows would not be shown.
    monkeypatch.setattr("geval_local.summary.silence", lambda mass: "")
    done = score(here, "--lowest", 3)
    scores = sorted((row["geval"]["clarity"]["score"], row["ticket"]) for row in read_result_rows("scored.csv"))
    for value, ticket in scores[:3]:
        assert f"{value:.3f}" in done.stdout
        assert f"Answer {ticket.removeprefix('T-')}, in a word." in done.stdout
    command = f"reasons scored.csv -m clarity --lowest 3 -o reasons.jsonl -j {judge_directory()}"
    assert f"geval-local {command}" in done.stderr
    told = run(*command.replace("reasons.jsonl", "r.jsonl").split(), "--tokens", 8, home=here / "home")
    assert told.exit_code == 0, told.stderr
    written = [json.loads(line) for line in (here / "r.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(record["score"] for record in written) == [value for value, _ in scores[:3]]


def test_report_shows_the_lowest_rows_too(here, answering):
    score(here)
    done = run("report", "scored.csv", "-o", "page.html", "--lowest", 2, home=here / "home")
    assert done.exit_code == 0, done.stderr
    low = sorted((row["geval"]["clarity"]["score"], row["output"]) for row in read_result_rows("scored.csv"))
    shown = [line.partition("output: ")[2].rstrip(".") for line in done.stdout.splitlines() if "output: " in line]
    assert len(shown) == 2
    assert all(text.startswith(start) for (_, text), start in zip(low, shown, strict=False))
    (command,) = re.findall(r"geval-local (reasons .*)", done.stderr)
    name = judge_directory().name
    assert command == f"reasons scored.csv -m clarity --lowest 2 -o reasons.jsonl -j PATH/TO/{name}"
    command = command.replace(f"PATH/TO/{name}", str(judge_directory()))  # results hold no paths
    done = run(*command.split(), "--tokens", 8, home=here / "home")
    assert done.exit_code == 0, done.stderr
    done = run("report", "scored.csv", "-o", "page.html", "--reasons", "reasons.jsonl", home=here / "home")
    assert (done.exit_code, "geval-local reasons" in done.stderr) == (0, False)


def test_a_file_of_the_users_in_the_place_of_the_rows_is_not_replaced(here):
    rows_path(here / "scored.csv").write_text("mine\n", encoding="utf-8")
    done = run(
        "score", "chats.csv", "-m", "clarity.yaml", "--judge", judge_directory(), "-o", "scored.csv", home=here / "home"
    )
    assert done.exit_code == 2
    assert "scored.csv.rows.jsonl" in done.stderr
    assert rows_path(here / "scored.csv").read_text(encoding="utf-8") == "mine\n"
    score(here, output="other.csv")
    score(here, "--threshold", 2, "--label-mass", 0, output="other.csv")  # its own rows are replaced with it
    assert all(row["geval"]["clarity"]["threshold"] == 2 for row in read_result_rows("other.csv"))


def test_a_run_directory_keeps_the_rows_of_a_table_too(here):
    score(here, "--format", "csv", output="runs/one/")
    assert read_results(here / "runs/one/scores.csv").metrics
    rows = read_result_rows(here / "runs/one/scores.csv")
    assert all(row["geval"]["clarity"]["label_mass"] > 0 for row in rows)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-8-sig", "utf-16"])
def test_no_row_is_lost_for_an_umlaut(here, encoding):
    rows = rows_of(ROWS)
    for n in (3, 7):
        rows[n]["output"] = "Schöne Grüße aus Köln, à bientôt."
    write_table(here / "alt.csv", rows, encoding=encoding)
    done = score(here, file="alt.csv")
    found = read_result_rows("scored.csv")
    assert [row["output"] for row in found] == [row["output"] for row in rows]
    assert all(row["geval"]["clarity"]["score"] for row in found)
    assert ("Windows-1252" in done.stderr) == (encoding in ("cp1252", "latin-1"))
    assert done.stderr.count("Windows-1252") <= 1


@pytest.mark.parametrize("encoding", ["cp1250", "mac-roman", "cp1251"])
def test_an_encoding_that_cannot_be_told_is_said_before_a_judge_is_loaded(here, encoding):
    rows = rows_of(ROWS)
    rows[2]["output"] = {"cp1250": "Gdzie źdźbło?", "mac-roman": "Schöne Grüße", "cp1251": "Всё работает"}[encoding]
    write_table(here / "alt.csv", rows, encoding=encoding)
    done = score(here, file="alt.csv")
    warning, loading = done.stderr.index("warning: alt.csv is not all UTF-8"), done.stderr.index("loading the judge")
    assert warning < loading
    assert "--encoding" in done.stderr[warning:loading]
    assert [row["geval"]["clarity"]["score"] is None for row in read_result_rows("scored.csv")] == [
        place == 2 for place in range(ROWS)
    ]


def test_a_table_of_which_no_row_can_be_read_is_refused_before_a_judge_is_loaded(here):
    text = (here / "chats.csv").read_text(encoding="utf-8")
    (here / "title.csv").write_text(f"Support in May\n\n{text}", encoding="utf-8")
    for command in (("score", "title.csv", "-m", "clarity.yaml"), ("init", "title.csv")):
        done = run(*command, home=here / "home")
        assert done.exit_code == 2
        assert f"title.csv: of its first {ROWS + 1} rows none can be read; row 1: 4 cells where" in done.stderr
        assert "first line" in done.stderr
        assert "loading the judge" not in done.stderr


def test_an_encoding_can_be_named(here):
    rows = rows_of(ROWS)
    rows[2]["output"] = "Спасибо, всё работает."
    write_table(here / "alt.csv", rows, encoding="cp1251")
    done = score(here, "--encoding", "cp1251", file="alt.csv")
    assert read_result_rows("scored.csv")[2]["output"] == rows[2]["output"]
    assert "Windows-1252" not in done.stderr
    wrong = run(
        *("score", "alt.csv", "-m", "clarity.yaml", "--judge", judge_directory(), "--encoding", "cp1253x"),
        home=here / "home",
    )
    assert wrong.exit_code == 2
    assert "cp1253" in wrong.stderr
