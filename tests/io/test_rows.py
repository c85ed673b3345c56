"""Real-world files: encodings, delimiters, JSON over several lines, quotes that never close, pipes."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import time
from pathlib import Path

import pytest
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_local.errors import ConfigurationError, DataError
from geval_local.io.rows import find_delimiter, read_rows

ROWS = [{"id": "1", "source": "Çà et là: naïve", "output": "日本, x"}, {"id": "2", "source": "S; | ,", "output": "O"}]


def fields(path: Path) -> list[dict[str, object]]:
    rows = list(read_rows(path))
    assert [row.error for row in rows] == [None] * len(rows)
    return [row.fields for row in rows]


def csv_text(rows: list[dict[str, str]], delimiter: str = ",") -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def texts() -> dict[str, str]:
    return {
        "rows.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS),
        "rows.json": json.dumps(ROWS, ensure_ascii=False),
        "rows.csv": csv_text(ROWS),
    }


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("packed", [False, True])
def test_encodings(tmp_path: Path, name: str, encoding: str, packed: bool) -> None:
    data = texts()[name].encode(encoding)
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(data) if packed else data)
    assert fields(path) == ROWS


def test_the_mark_of_big_endian_and_gzip_without_its_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(gzip.compress(codecs.BOM_UTF16_BE + csv_text(ROWS).encode("utf-16-be")))
    assert fields(path) == ROWS


def test_a_lone_surrogate_in_utf_16_costs_its_row(tmp_path: Path) -> None:
    from geval_local.io.input_files import read_samples

    path = tmp_path / "rows.jsonl"
    text = '{"output": "\ud800"}\n{"output": "good"}\n'
    path.write_bytes(text.encode("utf-16-le", "surrogatepass"))
    first, second = read_samples(path)
    assert "not valid Unicode" in (first.error or "")
    assert second.texts(("output",)) == {"output": "good"}


def test_utf_16_that_ends_in_the_midst_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"output": "good"}\n'.encode("utf-16-le") + b"x")
    with pytest.raises(DataError, match="Is the file complete"):
        list(read_rows(path))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(csv_text(ROWS, delimiter), encoding="utf-8")
    assert fields(path) == ROWS
    path.write_text(f"sep={delimiter}\n" + csv_text(ROWS, delimiter), encoding="utf-8")
    assert fields(path) == ROWS


def test_tsv(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("output\na, b; c\n", encoding="utf-8")
    assert fields(path) == [{"output": "a, b; c"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("output\na;b;c\n", ","),
        ("a,b\n1;2,3;4\n", ","),
        ("a;b\n1,5;2,5\n", ";"),
        ("a,x;b,y\n1,5;2,5\n3;4\n", ";"),
        ("a,b,c\nbroken\nbroken\n", ","),
        ("a|b\n", "|"),
        ("", ","),
        ('"a;b",c\n1,2\n', ","),
    ],
)
def test_what_separates_cells(text: str, expected: str) -> None:
    assert find_delimiter(text) == expected


WORDS = st.text("ab,;|\t\n\" 'é", max_size=8)


@settings(max_examples=example_count(100))
@given(st.sampled_from(",;\t|"), st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=5))
def test_any_table_comes_back(tmp_path_factory: pytest.TempPathFactory, delimiter: str, rows: list[tuple[str, ...]]):
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    wanted = [dict(zip(("id", "source", "output"), row, strict=True)) for row in rows]
    path.write_text(csv_text(wanted, delimiter), encoding="utf-8", newline="")
    assert fields(path) == wanted


# --- quotes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "good", "bad"),
    [
        (['1,"a,b', "2,d,e", "3,x,y"], ["2", "3"], [1]),
        (['1,"a,b', '2,"d",e', "3,x,y"], ["2", "3"], [1]),
        (['1,"a,b', '2,d,"e, f"', "3,x,y"], ["2", "3"], [1]),
        (["1,a,b", '2,d,"e', "3,x,y"], ["1", "3"], [2]),
        (["1,a,b", "2,d,e", '3,x,"y'], ["1", "2"], [3]),
        (['1,"a,b', '2,"d,e', "3,x,y", '4,"p","q"'], ["3", "4"], [1, 2]),
        (['1,"two', 'lines",b', '2,"d"x,e', "3,x,y"], ["1", "3"], [3]),
        # After an unclosed quote, only lines that are certainly rows are accepted.
        (['1,"a,b', 'and "more", of, it', "3,x,y"], ["3"], [1, 2]),
    ],
)
def test_an_unclosed_quote_costs_its_own_row(tmp_path: Path, lines: list[str], good: list[str], bad: list[int]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["id,source,output", *lines, ""]), encoding="utf-8")
    rows = list(read_rows(path))
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert [row.fields["id"] for row in rows if row.error is None] == good
    errors = [row.error for row in rows if row.error is not None]
    assert len(errors) == len(bad)
    for error, number in zip(errors, bad, strict=True):
        assert f"in line {number + 1}: " in error or f"(line {number + 1})" in error
        assert "quote" in error


def test_a_quote_that_is_open_for_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geval_local.io.rows.QUOTED_CHARACTERS", 1000)
    path = tmp_path / "rows.csv"
    path.write_text('id,output\n1,a\n2,"b\n' + "3,c\n" * 1000, encoding="utf-8")
    with pytest.raises(DataError, match="line 3: a quote is opened that does not close within 1,000 characters"):
        list(read_rows(path))


def test_quotes_without_end_take_no_more_than_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,source,output\n" + '1,"a,b\n' * 50_000, encoding="utf-8")
    start = time.process_time()
    rows = list(read_rows(path))
    assert len(rows) == 50_000
    assert time.process_time() - start < 20


@settings(max_examples=example_count(200))
@given(st.text('a",\n', max_size=60))
def test_no_text_ends_the_reading_or_loses_the_order(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_text("id,output\n" + text, encoding="utf-8", newline="")
    rows = list(read_rows(path))
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))


# --- tables without quoting -------------------------------------------------------------------------------------------


def plain_table(count: int, quotes: dict[int, str], delimiter: str = "\t", *, numbered: bool = True) -> list[list[str]]:
    """Rows of a table that knows no quoting; `quotes` has texts for the third column."""
    rows = [[str(n), f"Source {n} of a town.", quotes.get(n, f"Target {n} of a town."), "Minor"] for n in range(count)]
    return [["seg_id", "source", "target", "severity"][not numbered :], *(row[not numbered :] for row in rows)]


def write_plain(path: Path, rows: list[list[str]], delimiter: str = "\t") -> Path:
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows), encoding="utf-8")
    return path


OPEN_AND_CLOSE = {5: '"Target five of a town.', 8: 'Target eight of a town."'}
SHARED = Path(__file__).resolve().parents[3] / "shared" / "inputs"


@pytest.mark.parametrize(("name", "count"), [("tsv_open_close_quote.tsv", 20), ("csv_open_close_quote.csv", 12)])
def test_the_tables_of_the_field_lose_no_row(name: str, count: int) -> None:
    if not (SHARED / name).is_file():
        pytest.skip(f"needs ../shared/inputs/{name}")
    found = fields(SHARED / name)
    assert [row["seg_id"] for row in found] == [str(number) for number in range(1, count + 1)]
    assert sum('"' in str(row["target"]) for row in found) == 2


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize(
    "quotes",
    [
        OPEN_AND_CLOSE,
        {5: '"Target', 6: 'six"'},
        {5: '"word" and more'},
        {5: '"word" and more', 7: 'a "word" within', 9: '"a whole sentence."', 11: '5" nails'},
        {5: '"never closed'},
        {5: '"Target', 8: 'eight"', 10: '"Ten', 11: 'is open" and closed'},
        {3: '""', 5: '"Target', 8: 'eight"'},
    ],
)
def test_a_table_of_tabs_is_read_as_it_is(tmp_path: Path, quotes: dict[int, str], numbered: bool) -> None:
    rows = plain_table(16, quotes, numbered=numbered)
    found = fields(write_plain(tmp_path / "rows.tsv", rows))
    assert [list(row.values()) for row in found] == rows[1:]
    assert fields(write_plain(tmp_path / "rows.csv", rows)) == found


def test_blank_lines_say_nothing(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "rows.tsv", plain_table(16, OPEN_AND_CLOSE))
    path.write_text(path.read_text(encoding="utf-8").replace("\n2\t", "\n\n2\t"), encoding="utf-8")
    assert len(fields(path)) == 16


@pytest.mark.parametrize("delimiter", [",", ";", "|"])
def test_numbers_show_that_lines_are_rows(tmp_path: Path, delimiter: str) -> None:
    rows = plain_table(12, OPEN_AND_CLOSE)
    found = fields(write_plain(tmp_path / "rows.csv", rows, delimiter))
    assert [list(row.values()) for row in found] == rows[1:]


def test_a_table_of_texts_may_be_both_and_both_ways_are_named(tmp_path: Path) -> None:
    rows = plain_table(16, OPEN_AND_CLOSE, numbered=False)
    path = write_plain(tmp_path / "rows.csv", rows, ",")
    with pytest.raises(DataError, match="opens a quote that a later line closes") as caught:
        list(read_rows(path))
    assert "`quoting=standard`" in caught.value.hint
    assert "`quoting=none`" in caught.value.hint
    assert [list(row.fields.values()) for row in read_rows(path, quoting="none")] == rows[1:]
    (one,) = [row.fields for row in read_rows(path, quoting="standard") if "\n" in str(row.fields["target"])]
    assert str(one["target"]).count("\n") == 3


def test_where_quotes_mean_something_swallowed_rows_are_refused_by_their_lines(tmp_path: Path) -> None:
    rows = plain_table(12, OPEN_AND_CLOSE | {2: '"a text, quoted"'})
    found = list(read_rows(write_plain(tmp_path / "rows.csv", rows, ",")))
    assert len(found) == 12
    assert [row.number - 1 for row in found if row.error is not None] == [5, 8]
    assert "in line 7: a quote is opened and not closed" in str(found[5].error)
    assert "`quoting=none`" in str(found[5].error)


@pytest.mark.parametrize(
    "texts",
    [
        ["Hello\nworld, again"],
        ["Hello,\nworld"],
        ["one, two\nthree"],
        ['A "word",\nand more, of it'],
        ["a\n\nb, c\nd, e"],
        ["x = 1,\ny = 2", "p\nq, r"],
    ],
)
@pytest.mark.parametrize("columns", [("id", "output"), ("source", "output"), ("id", "source", "output")])
def test_texts_over_several_lines_stay_whole(tmp_path: Path, columns: tuple[str, ...], texts: list[str]) -> None:
    values = [*texts, *(f"Plain text {number}." for number in range(14))]
    wanted = [{name: f"{place}" if name == "id" else f"S {place}." for name in columns} for place in range(len(values))]
    for row, text in zip(wanted, values, strict=True):
        row["output"] = text
    path = tmp_path / "rows.csv"
    path.write_text(csv_text(wanted), encoding="utf-8")
    assert fields(path) == wanted


TARGETS = st.text("ab \"'é,", max_size=12).map(lambda text: text.strip() or "x")


@settings(max_examples=example_count(150))
@given(st.lists(st.tuples(TARGETS, TARGETS), min_size=4, max_size=12), st.integers(0, 3))
def test_no_row_of_any_table_of_tabs_is_lost(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]], plain: int
) -> None:
    """Whatever quotes its cells hold, beside three rows without any."""
    rows = [["id", "source", "target"], *([str(n), "a b", "c d"] for n in range(3))]
    rows += [[str(n), *pair] for n, pair in enumerate(texts, start=3)]
    path = write_plain(tmp_path_factory.mktemp("tsv") / "rows.tsv", rows)
    found = list(read_rows(path))
    assert len(found) == len(rows) - 1
    assert [row.error for row in found] == [None] * len(found)
    assert [row.fields["id"] for row in found] == [row[0] for row in rows[1:]]
    with path.open("a", encoding="utf-8") as file:
        file.write("x\n")  # and one that is no row
    assert [row.error is None for row in read_rows(path)] == [True] * len(found) + [False]
    whole = [list(row.fields.values()) for row in read_rows(path, quoting="none")][: len(found)]
    assert whole == rows[1:]


@settings(max_examples=example_count(150))
@given(st.lists(st.text('ab,\n "', max_size=12), min_size=1, max_size=12))
def test_proper_tables_stay_right(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    wanted = [{"name": f"n{place}", "output": text, "rating": str(place % 5)} for place, text in enumerate(texts)]
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_text(csv_text(wanted), encoding="utf-8", newline="")
    assert fields(path) == wanted


def test_quoting_is_for_tables(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"output": "a"}\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="`quoting` is for tables"):
        read_rows(path, quoting="none")


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS, indent=2),
        "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
        "[" + ",\n".join(map(json.dumps, ROWS)) + "]\n",
        "\n".join(json.dumps(row, indent=4) for row in ROWS),
        json.dumps(ROWS[0], indent=1) + json.dumps(ROWS[1], indent=1) + "\n\n",
    ],
    ids=["list", "lines in brackets", "brackets on the lines", "objects", "objects without a break"],
)
def test_json_over_lines_that_is_called_jsonl(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    assert fields(path) == ROWS


def test_a_broken_first_line_is_one_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('[{"a": \n{"a": "b"}\n', encoding="utf-8")
    first, second = read_rows(path)
    assert first.error is not None
    assert (second.number, second.fields, second.error) == (2, {"a": "b"}, None)


def test_a_key_that_is_twice_in_an_inner_object(tmp_path: Path) -> None:
    rows = ['{"a": {"x": 1, "x": 2}}', '{"a": [[{"y": 1, "y": 2}]]}', '{"a": {"x": 1}}']
    for name, text in (("rows.jsonl", "\n".join(rows)), ("rows.json", f"[{','.join(rows)}]")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        errors = [row.error for row in read_rows(tmp_path / name)]
        assert errors == ["the key 'x' occurs twice", "the key 'y' occurs twice", None]


# --- Parquet, pipes ---------------------------------------------------------------------------------------------------


def test_values_that_python_cannot_hold_cost_their_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    output = pa.array(["a", "b", "c"])
    for kind, base, value in (
        (pa.date32(), pa.int32(), 2**31 - 1),
        (pa.timestamp("us"), pa.int64(), -(2**62)),
        (pa.duration("s"), pa.int64(), 2**62),
    ):
        odd = pa.array([1, value, 3], base).cast(kind)
        for column in (odd, pa.StructArray.from_arrays([odd], names=["inner"])):
            pq.write_table(pa.table({"output": output, "when": column}), tmp_path / "rows.parquet")
            rows = list(read_rows(tmp_path / "rows.parquet"))
            assert [row.fields["output"] for row in rows] == ["a", "b", "c"]
            assert [row.error is None for row in rows] == [True, False, True]
            assert "the column 'when' holds a value that cannot be read" in (rows[1].error or "")


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=r"(?s)is a pipe \(FIFO\), not a file.*score -"):
        read_rows(pipe)
    (tmp_path / "null.jsonl").symlink_to("/dev/null")
    with pytest.raises(DataError, match="is a device, not a file"):
        read_rows(tmp_path / "null.jsonl")
