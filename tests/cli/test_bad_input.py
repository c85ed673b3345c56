"""Bad input, kind by kind: the message, the other rows' scores, the exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_run import METRIC, good_rows, judge_directory, read_rows, run

from geval_local.io.rows import FORMATS, RawRow

GOOD = [json.dumps(row).encode() for row in good_rows(3)]
CLEAN_FIGURES: dict[str, object] = {}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    return tmp_path


def score(here: Path, file: str, *arguments: object):
    return run(
        *("score", file, "-m", "clarity.yaml", "--judge", judge_directory(), "-o", "out.jsonl", *arguments),
        home=here / "home",
    )


def clean_figures(here: Path) -> list[object]:
    if not CLEAN_FIGURES:
        (here / "clean.jsonl").write_bytes(b"\n".join(GOOD))
        assert score(here, "clean.jsonl", "--batch-tokens", 1).exit_code == 0
        CLEAN_FIGURES.update({row["id"]: row["geval"]["clarity"] for row in read_rows(here / "out.jsonl")})
    return list(CLEAN_FIGURES.values())


@pytest.mark.sweep("missing-field")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "x", "source": "a", "output": ', "row 2: not valid JSON"),
        (b"[1, 2]", "row 2: not a JSON object"),
        (b'{"id": "x", "source": "a"}', "row 2: the field 'output' is missing; the columns are: id, source"),
        (b'{"id": "x", "source": "a", "output": ""}', "row 2: the field 'output' is empty"),
        (b'{"id": "x", "source": "a", "output": " \\n "}', "row 2: the field 'output' is only white space"),
        (b'{"id": "x", "source": "a", "output": null}', "row 2: the field 'output' is null"),
        (b'{"id": "x", "source": "a", "output": NaN}', "row 2: the field 'output' is NaN"),
        (b'{"id": "x", "source": "a", "output": 7}', "row 2: the field 'output' is a number, not text"),
        (b'{"id": "x", "source": "a", "output": {"t": "a"}}', "row 2: the field 'output' is an object, not text"),
        (b'{"id": "r0", "source": "a", "output": "b"}', "row 2: duplicate id 'r0', first seen in row 1"),
        (b'{"id": "x", "source": "a", "output": "caf\xe9"}', "not valid Unicode"),
        (b'{"id": "x", "source": "%s", "output": "b"}' % (b"long " * 1000), "the judge reads 4096 with the label"),
    ],
    ids=[
        "malformed",
        "no-object",
        "missing-field",
        "empty",
        "white-space",
        "null",
        "nan",
        "number",
        "object",
        "duplicate-id",
        "not-utf8",
        "too-long",
    ],
)
def test_a_bad_row_keeps_its_place_and_the_others_their_scores(here, line, message):
    expected = clean_figures(here)
    (here / "data.jsonl").write_bytes(b"\n".join([GOOD[0], line, *GOOD[1:]]))
    done = score(here, "data.jsonl", "--batch-tokens", 1)
    assert done.exit_code == 0, done.stderr
    rows = read_rows(here / "out.jsonl")
    figures = [row["geval"]["clarity"] for row in rows]
    assert message in figures[1]["error"]
    assert figures[1]["score"] is None
    assert [figures[0], *figures[2:]] == expected
    assert "3/4" in done.stdout
    assert "row 2" in done.stdout
    assert message.removeprefix("row 2: ").split(";")[0] in done.stdout
    assert score(here, "data.jsonl", "--max-unscored", 0).exit_code == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "holds no rows"),
        ("empty.json", b"[]", "holds no rows"),
        ("empty.csv", b"source,output\n", "holds no rows"),
        ("broken.json", b'[{"source": "a"', "not valid JSON"),
        ("object.json", b'{"source": "a"}', "not a list of objects"),
        ("columns.jsonl", b'{"source": "a", "outputs": "b c"}', "--field output=outputs"),
        ("book.csv", b"PK\x03\x04" + b"\0" * 90, "an Excel workbook"),
        ("notes.txt", b"text", "cannot tell the format"),
        ("broken.parquet", b"PAR1", "not a readable Parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(here, name, content, message):
    (here / name).write_bytes(content)
    done = score(here, name)
    assert done.exit_code == 2
    assert message in done.stderr
    assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "out.jsonl").exists()


def test_csv_rows_with_too_many_cells_keep_their_place(here):
    (here / "data.csv").write_text('source,output\na,b\na,b,c\n"d, e",f\n', encoding="utf-8")
    done = score(here, "data.csv")
    assert done.exit_code == 0, done.stderr
    errors = [row["geval"]["clarity"].get("error") for row in read_rows(here / "out.jsonl")]
    assert errors[0] is errors[2] is None
    assert "3 cells where the header has 2" in errors[1]


def test_a_missing_input_file(here):
    done = score(here, "missing.jsonl")
    assert done.exit_code == 2
    assert "there is no file missing.jsonl" in done.stderr


@pytest.mark.parametrize("target", ["nowhere/out.jsonl", "out.xlsx", "folder.jsonl"])
def test_an_unwritable_output(here, target):
    (here / "folder.jsonl").mkdir()
    (here / "data.jsonl").write_bytes(b"\n".join(GOOD))
    done = run("score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge_directory(), "-o", target, home=here)
    assert done.exit_code == 2
    assert f"cannot write {target}" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_directory_that_may_not_be_written(here):
    (here / "locked").mkdir(mode=0o500)
    (here / "data.jsonl").write_bytes(b"\n".join(GOOD))
    done = run(
        "score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge_directory(), "-o", "locked/o.csv", home=here
    )
    assert done.exit_code == 2
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize(
    ("verb", "keys"),
    [
        ("metrics validate", 51_000),
        ("metrics validate", 5_000),
        ("run", 5_000),
        ("decide", 5_000),
        ("judges list", 5_000),
    ],
)
def test_a_file_of_very_many_keys_is_refused_in_few_words(here, verb, keys):
    lines = "".join(f"key{number}: v\n" for number in range(keys))
    (here / "many.yaml").write_text(lines if verb != "judges list" else f"judges: {{a: {{}}}}\n{lines}")
    (here / "data.jsonl").write_bytes(GOOD[0])
    first = {"decide": ["data.jsonl", "-q"], "judges list": ["--models"]}.get(verb, [])
    done = run(*verb.split(), *first, "many.yaml", home=here / "home")
    assert done.exit_code == 2, done.output
    assert "many.yaml" in done.stderr
    if keys > 10_000:
        assert "more than 100,000 values" in done.stderr
    assert len(done.stderr.splitlines()) < 100


@pytest.mark.parametrize("key", ["~", "null", "!!binary aGk="])
def test_a_question_without_a_name_is_refused_with_its_line(here, key):
    (here / "data.jsonl").write_bytes(GOOD[0])
    (here / "q.yaml").write_text(f"{key}: {{type: predicate, instructions: x}}\n")
    done = run("decide", "data.jsonl", "-q", "q.yaml", home=here / "home")
    assert done.exit_code == 2, done.output
    assert "q.yaml, line 1: question" in done.stderr


@pytest.mark.parametrize("verb", [["score"], ["pairs"]])
def test_a_loop_of_links_is_no_defect(here, verb):
    (here / "one.jsonl").symlink_to("two.jsonl")
    (here / "two.jsonl").symlink_to("one.jsonl")
    done = run(*verb, "one.jsonl", "-m", "summarization/coherence", "-o", "out.jsonl", home=here / "home")
    assert done.exit_code == 2, done.output
    assert "one.jsonl" in done.stderr


def test_a_time_zone_that_nobody_knows_is_no_defect(here):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    when = pa.array([0], pa.timestamp("us", tz="Nope/Zone"))
    pq.write_table(pa.table({"source": ["a"], "output": ["b"], "when": when}), here / "z.parquet")
    done = run("score", "z.parquet", "-m", "summarization/coherence", home=here / "home")
    assert done.exit_code == 2, done.output
    assert "z.parquet" in done.stderr


def test_a_zone_that_pytz_does_not_know_is_no_defect(here, monkeypatch):
    def reader(path, encoding):
        yield RawRow(1, {"source": "a", "output": "b"})
        raise type("UnknownTimeZoneError", (KeyError,), {})("Nope/Zone")  # as pytz, which pandas may have brought

    monkeypatch.setitem(FORMATS, ".parquet", reader)
    (here / "z.parquet").write_bytes(b"PAR1")
    done = run("score", "z.parquet", "-m", "summarization/coherence", home=here / "home")
    assert done.exit_code == 0, done.output
    assert "z.parquet beyond row 1: UnknownTimeZoneError: 'Nope/Zone'; mend the file" in done.stderr
    assert "convert the column to UTC" in done.stderr


def test_a_reason_that_not_all_rows_of_a_code_give_names_its_row(here):
    rows = [{"source": "s", "output": one} for one in ("x", "", None, 5, 6)]
    (here / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = score(here, "in.jsonl")
    assert done.exit_code == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "2 x empty_field: the field 'output' is empty (rows 2, 3; this is of row 2)" in told
    assert "2 x not_text: the field 'output' is a number, not text (rows 4, 5)" in told
