"""Workbooks: values as a spreadsheet shows them, rows that say what is wrong with them, sheets by name."""

from __future__ import annotations

import datetime
import json
import zipfile

import pytest
from cli_run import run
from openpyxl import Workbook, load_workbook
from openpyxl.worksheet.formula import ArrayFormula
from run_kit import read

from geval_local.errors import ConfigurationError, DataError
from geval_local.io.input_files import find_files, read_samples


def book(path, *sheets):
    """Write a workbook; a sheet is its name and its rows."""
    written = Workbook()
    written.remove(written.active)
    for name, rows in sheets:
        sheet = written.create_sheet(name)
        for row in rows:
            sheet.append(row)
    written.save(path)
    return path


ROWS = [["frage", "antwort"], ["Wann?", "Um neun."], ["Wo?", "Im Büro\nnebenan."]]


def test_a_row_has_its_cells_and_its_number(tmp_path):
    empty, name = [None, None], "zahlen & mehr"
    rows = [
        empty,
        ["id", "output", name, "when", None],
        ["a", "x", 2.5, datetime.date(2026, 1, 2)],
        empty,
        ["b", None, 3, True, None],
    ]
    first, second = read_samples(book(tmp_path / "in.xlsx", ("leer", []), ("Blatt 1", rows)))
    assert (first.row, first.fields["id"], first.fields[name]) == (1, "a", 2.5)
    assert str(first.fields["when"]).startswith("2026-01-02")
    assert (second.row, second.fields["output"], second.fields[name], second.fields["when"]) == (2, None, 3, True)


def test_a_formula_has_the_value_that_a_spreadsheet_computed_or_its_row_is_unscored(tmp_path):
    path = book(tmp_path / "in.xlsx", ("s", [["output", "sum"], ["=not a formula", 1], ["x", "=1+1"], ["y", None]]))
    opened = load_workbook(path)
    opened["s"]["A2"].data_type = "s"  # a text that begins like a formula
    opened["s"]["B4"] = ArrayFormula("B4", "=A2:A3")
    opened.save(path)
    text, plain, array = read_samples(path)
    assert (text.error, text.fields["output"]) == (None, "=not a formula")
    for one in (plain, array):
        assert "the column 'sum' holds a formula that was never computed; open the workbook and save it" in one.error


def test_an_empty_text_that_a_formula_gave_is_computed(tmp_path):
    """A spreadsheet program writes no value for it, but its type; the other row was never computed."""
    path = book(tmp_path / "in.xlsx", ("s", [["output", "note"], ["x", '=IF(1=2,"a","")'], ["y", "=1+1"]]))
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    parts[sheet] = parts[sheet].replace(b'<c r="B2">', b'<c r="B2" t="str">', 1)
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    empty, unknown = read_samples(path)
    assert (empty.error, empty.fields["note"]) == (None, "")
    assert "never computed" in str(unknown.error)


def test_a_workbook_that_is_open_elsewhere_leaves_no_row_of_its_mark(tmp_path):
    book(tmp_path / "in.xlsx", ("s", ROWS))
    (tmp_path / "~$in.xlsx").write_bytes(b"\x05user" + b" " * 160)
    assert find_files(tmp_path) == [tmp_path / "in.xlsx"]


def test_a_row_that_is_too_long_is_named_and_the_others_are_read(tmp_path):
    path = book(tmp_path / "in.xlsx", ("s", [["output"], ["x"], ["y", None, "z"], ["w"]]))
    assert [None if one.error is None else one.error for one in read_samples(path)] == [
        None,
        "in.xlsx, row 2: 3 cells where the header has 1 columns",
        None,
    ]


def test_a_sheet_is_chosen_by_its_name_where_several_hold_rows(tmp_path):
    path = book(tmp_path / "in.xlsx", ("Im Mai", ROWS), ("Juni", ROWS[:2]), ("Notizen", []))
    with pytest.raises(DataError, match="has rows on several sheets: Im Mai, Juni") as caught:
        list(read_samples(path))
    assert caught.value.hint == "Name one: `rows='Im Mai'`."
    assert len(list(read_samples(path, rows="Im Mai"))) == 2
    with pytest.raises(DataError, match="has no sheet 'Juli' with rows; sheets with rows: Im Mai, Juni"):
        list(read_samples(path, rows="Juli"))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([["a", "b", "a"], [1, 2, 3]], "columns that occur twice: a"),
        ([["a", None, None, "b"], [1, 2, 3, 4]], "columns without a name"),
        ([["a", "b"]], "holds no rows"),
        ([], "holds no rows"),
    ],
)
def test_tables_that_are_refused(tmp_path, rows, expected):
    with pytest.raises(DataError, match=expected):
        list(read_samples(book(tmp_path / "in.xlsx", ("s", rows))))


@pytest.mark.parametrize("cut", [0, 30, 2000, -40])
def test_a_damaged_workbook_is_refused_in_words(tmp_path, cut):
    path = book(tmp_path / "in.xlsx", ("s", ROWS))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="is not a readable Excel workbook"):
        list(read_samples(path))


def test_what_is_for_texts_is_refused(tmp_path):
    path = book(tmp_path / "in.xlsx", ("s", ROWS))
    with pytest.raises(ConfigurationError, match="a file with an encoding of its own"):
        read_samples(path, encoding="cp1252")
    (tmp_path / "in.xlsx.gz").write_bytes(b"x")
    with pytest.raises(DataError, match="cannot tell the format"):
        read_samples(tmp_path / "in.xlsx.gz")


def test_a_workbook_scores_as_the_same_rows_in_jsonl(tmp_path):
    path = book(tmp_path / "in.xlsx", ("Antworten", ROWS))
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps(dict(zip(ROWS[0], row, strict=True))) + "\n" for row in ROWS[1:]), encoding="utf-8"
    )
    fields = ["--field", "question=frage", "--field", "output=antwort", "-m", "assistant/helpfulness"]
    for given in ("in.xlsx", "in.jsonl"):
        done = run("score", tmp_path / given, *fields, "-o", tmp_path / f"{given}.out.jsonl", home=tmp_path / "home")
        assert done.exit_code == 0, done.output
    assert read(tmp_path / "in.xlsx.out.jsonl") == read(tmp_path / "in.jsonl.out.jsonl")
    assert path.exists()


def test_a_workbook_that_expands_without_end_is_refused(tmp_path):
    path = book(tmp_path / "bomb.xlsx", ("Sheet", ROWS))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        packed.writestr("xl/worksheets/sheet2.xml", bytes(1 << 24))
    with pytest.raises(DataError, match=r"bomb.xlsx expands to more than 800 times its size\nLook at it"):
        list(read_samples(path))
