"""Reading: aliases, every class of bad row in its place with its reason, and files that are rejected as a whole."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import sys
import time
from pathlib import Path

import pytest
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_local.errors import ConfigurationError, DataError, ErrorCode, UnscorableError
from geval_local.io.input_files import read_samples
from geval_local.io.samples import Sample

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
FIELDS = ("source", "output")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(path: Path, *rows: object) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def reason(sample: Sample, fields: tuple[str, ...] = FIELDS) -> str:
    with pytest.raises(UnscorableError) as caught:
        sample.texts(fields)
    return str(caught.value)


GOOD = {"source": "S", "output": "O"}


# --- fields and aliases


@pytest.mark.parametrize(
    ("columns", "fields", "expected"),
    [
        ("source output", "source output", "source output"),
        ("document system_output", "source output", "document system_output"),
        ("source system_output context", "source output fact", "source system_output context"),  # Topical-Chat
        ("context response source", "source output", "source response"),  # an exact name beats an earlier alias
        ("source context output", "output context source", "output context source"),
        ("source output", "context output", "source output"),
        ("context input output", "source question output", "context input output"),
        ("input actual_output expected_output", "question output reference", "input actual_output expected_output"),
        ("Context SOURCE Output", "source output", "SOURCE Output"),  # own name in another case beats an alias
        ("Article Response", "source output", "Article Response"),
        ("prediction response output_2", "output", "response"),  # the order of the aliases, not of the columns
        ("tone output", "tone output", "tone output"),
        ("user_query retrieved_chunks answer", "question context output", "user_query retrieved_chunks answer"),
        ("question contexts completion gold", "question context output reference", "question contexts completion gold"),
        ("article summary target", "source output reference", "article summary target"),
        ("source summary hypothesis candidate", "output", "hypothesis"),
        ("instruction generation ground_truth", "question output reference", "instruction generation ground_truth"),
        ("query response expected_response", "question output reference", "query response expected_response"),
    ],
)
def test_aliases(columns: str, fields: str, expected: str) -> None:
    sample = Sample({name: f"text of {name}" for name in columns.split()})
    found = sample.texts(fields.split())
    assert found == dict(zip(fields.split(), (f"text of {name}" for name in expected.split()), strict=True))


def test_one_column_serves_one_field() -> None:
    sample = Sample({"input": "I", "output": "O"}, row=4, origin="d.jsonl")
    message = reason(sample, ("source", "question", "output"))
    assert message.startswith("d.jsonl, row 4: the field 'question' is missing")
    assert "the columns are: input (read as source), output\n" in message
    assert "question or query or input or user_input or user_query" in message


def test_two_columns_that_differ_by_case_only_are_not_guessed() -> None:
    assert "'output' is missing" in reason(Sample({"Output": "a", "OUTPUT": "b"}), ("output",))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "the field 'output' is null"),
        (math.nan, "the field 'output' is NaN"),
        ("", "the field 'output' is empty"),
        (" \n\t", "the field 'output' is only white space"),
        (5, "the field 'output' is a number, not text"),
        (True, "the field 'output' is a boolean, not text"),
        ({"a": "b"}, "the field 'output' is an object, not text"),
        (b"bytes", "the field 'output' is of type bytes, not text"),
        ([], "the field 'output' is an empty list"),
        (["a", None], "the field 'output', item 2 is null"),
        ([" "], "the field 'output' is only white space"),
        (["a", "b"], "the field 'output' is a list of 2 texts, and a judge rates one"),
        ("half \ud83d", "the field 'output' holds text that is not valid Unicode"),
    ],
)
def test_values_that_cannot_be_scored(value: object, expected: str) -> None:
    message = reason(Sample({"source": "S", "output": value}, 7, "rows.jsonl"))
    assert message.startswith(f"rows.jsonl, row 7: {expected}")
    assert "\n" in message, "the remedy is missing"


def test_the_column_is_named_when_it_is_an_alias() -> None:
    assert "sample: the field 'output' (column 'response') is null" in reason(Sample({"response": None}), ("output",))


def test_a_mapping_comes_before_names() -> None:
    row = {
        "output": "wrong",
        "answer": "A",
        "turns": [{"content": "first"}, {"content": "last"}],
        "a.b": "dotted name",
        "a": {"b": "dotted path"},
        "cell": '{"deep": ["x", "y"]}',
    }
    for path, text in {
        "answer": "A",
        "turns.0.content": "first",
        "turns.-1.content": "last",
        "a.b": "dotted name",
        "cell.deep.1": "y",
        "turns": None,
    }.items():
        sample = Sample(row, mapping={"output": path})
        if text is None:
            assert "item 1 is an object without a role and a content" in reason(sample, ("output",))
        else:
            assert sample.texts(("output",)) == {"output": text}
    # A mapped column is not matched again by its name.
    sample = Sample({"output": "O", "context": "C"}, mapping={"fact": "context"})
    assert "'context' is missing" in reason(sample, ("fact", "context", "output"))
    assert "is mapped to 'anser', which is not there" in reason(Sample(row, mapping={"output": "anser"}), ("output",))
    assert "did you mean 'answer'?" in reason(Sample(row, mapping={"output": "anser"}), ("output",))
    for path in ("turns.9.content", "turns.x", "answer.b", "turns.-3", "turns.1.content.0", ".", "turns.²"):
        assert "is not there" in reason(Sample(row, mapping={"output": path}), ("output",))


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        (
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}],
            "User: Hi\n\nAssistant: Hello.",
        ),
        ([{"role": "system", "content": ["a", "b"]}], "System: a\n\nb"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "User: a\nb"),
        (["plain", {"role": "tool", "content": "42", "name": "f"}], "plain\n\nTool: 42"),
    ],
)
def test_a_chat_is_written_with_its_roles(chat: list[object], expected: str) -> None:
    assert Sample({"messages": chat, "output": "O"}).texts(FIELDS) == {"source": expected, "output": "O"}


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ([{"role": "user"}], "item 1 is an object without a role and a content"),
        ([{"role": "user", "content": None}], "item 1: the content is null"),
        ([{"role": "user", "content": "x"}, {"role": "", "content": "x"}], "item 2 is an object without a role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "part 1 of the content is image_url"),
        ([{"role": "user", "content": {"a": 1}}], "item 1: the content is an object, not text"),
        ({"a": "user", "content": "x"}, "is an object, not text"),
    ],
)
def test_a_chat_without_text_is_refused(chat: object, expected: str) -> None:
    assert expected in reason(Sample({"source": chat, "output": "O"}))


def test_a_text_of_fifty_megabytes_is_refused_at_once() -> None:
    start = time.process_time()
    assert "has 50,000,000 characters, more than" in reason(Sample({"source": "x" * 50_000_000, "output": "O"}))
    assert "has 6,000,008 characters, more than" in reason(Sample({"source": ["x" * 3_000_000] * 2, "output": "O"}))
    assert time.process_time() - start < 5


def test_texts_are_passed_on_unchanged_and_lists_numbered() -> None:
    sample = Sample({"context": ["first \n", " second"], "output": "  O \r\n", "references": ["A", "B"], "fact": ["F"]})
    assert sample.texts(("context", "output", "reference", "fact")) == {
        "context": "1. first \n\n\n2.  second",
        "output": "  O \r\n",
        "reference": "Any one of these may serve:\n\n1. A\n\n2. B",
        "fact": "F",  # a list of one stays as it is
    }
    assert Sample({"reference": ["A"]}).texts(("reference",)) == {"reference": "A"}


def test_the_parts_of_a_message_are_no_numbered_items() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = [{"role": "user", "content": parts}, {"role": "assistant", "content": ["c", "d"]}]
    text = Sample({"source": chat}).texts(("source",))["source"]
    assert "1." not in text
    assert text.startswith("User: a")


# --- bad rows keep their place; good rows around them come through


def test_bad_jsonl_rows_in_place(tmp_path: Path) -> None:
    lines = [
        json.dumps(GOOD).encode(),
        b'{"source": "S", "output": ',
        b"",
        b'["not", "an object"]',
        b'{"source": "S", "output": "caf\xe9"}',
        b'{"source": "S", "output": "\\ud800"}',
        b'{"source": "S", "output": "a", "output": "b"}',
        b'{"source": "S", "output": NaN}',
        b"[" * 100_000,
        b'{"source": "S", "output": "last"}',
    ]
    samples = list(read_samples(write(tmp_path / "rows.jsonl", b"\n".join(lines))))
    assert [sample.row for sample in samples] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert samples[0].texts(FIELDS) == GOOD
    assert samples[-1].texts(FIELDS) == {"source": "S", "output": "last"}
    expected = {
        2: "rows.jsonl, row 2: not valid JSON: Expecting value at column ",
        3: "rows.jsonl, row 3: not a JSON object but list",
        4: "rows.jsonl, row 4: the row holds text that is not valid Unicode",
        5: "rows.jsonl, row 5: the row holds text that is not valid Unicode",
        6: "rows.jsonl, row 6: the column 'output' occurs twice",
        8: "rows.jsonl, row 8: not readable as JSON",
    }
    errors = {sample.row: sample.error for sample in samples if sample.error is not None}
    assert errors.keys() == expected.keys()
    for row, text in expected.items():
        assert errors[row].startswith(text)
    assert "convert the file to UTF-8" in errors[4]
    assert samples[1].fields == {"raw": '{"source": "S", "output": '}
    assert reason(samples[1]) == samples[1].error
    assert "is NaN" in reason(samples[6])


def test_a_deeply_nested_row_does_not_end_the_run(tmp_path: Path) -> None:
    deep = '{"source": "S", "output": "O", "deep": ' + "[" * 400 + "]" * 400 + "}"
    samples = list(read_samples(write(tmp_path / "d.jsonl", f"{deep}\n{json.dumps(GOOD)}")))
    assert samples[0].error == "d.jsonl, row 1: a column is nested deeper than 32 levels; flatten it"
    assert samples[0].fields == {"source": "S", "output": "O"}
    assert samples[1].texts(FIELDS) == GOOD


def test_duplicate_ids(tmp_path: Path) -> None:
    ids = ["a", "b", "a", None, None, 1, "1", 1, "a"]
    samples = list(read_samples(jsonl(tmp_path / "d.jsonl", *({"id": key, **GOOD} for key in ids))))
    bad = {sample.row: sample.error for sample in samples if sample.error}
    assert bad.keys() == {3, 8, 9}
    assert bad[3].startswith("d.jsonl, row 3: duplicate id 'a', first seen in row 1")
    assert "first seen in row 6" in bad[8]
    assert "first seen in row 1" in bad[9]
    assert samples[2].fields == {"id": "a", **GOOD}, "the columns of a duplicate are kept"


def test_doc_ids_may_repeat(tmp_path: Path) -> None:
    rows = [{"doc_id": 1, "system_id": 2, **GOOD}] * 2
    assert [sample.error for sample in read_samples(jsonl(tmp_path / "d.jsonl", *rows))] == [None, None]


def test_bad_csv_rows_in_place(tmp_path: Path) -> None:
    text = (
        b"\xef\xbb\xbfsource,output\r\n"
        b'"multi\nline, with ""quotes""",O1\r\n'
        b"too,many,cells\r\n"
        b"\r\n"
        b"one\r\n"
        b"S,caf\xe9\r\n"
        b'"S"x,O\r\n'
        b"S,O2\r\n"
        b'S,"never closed\r\nS,swallowed\r\n'
    )
    samples = list(read_samples(write(tmp_path / "rows.csv", text)))
    assert [sample.row for sample in samples] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert samples[0].texts(FIELDS) == {"source": 'multi\nline, with "quotes"', "output": "O1"}
    assert samples[5].texts(FIELDS) == {"source": "S", "output": "O2"}
    errors = [sample.error or "" for sample in samples]
    assert errors[1].startswith("rows.csv, row 2: 3 cells where the header has 2 columns (line 4)")
    assert samples[1].fields == {"raw": ["too", "many", "cells"]}
    assert errors[2].startswith("rows.csv, row 3: 1 cells where the header has 2 columns (line 6)")
    assert "not valid Unicode" in errors[3]
    assert errors[4].startswith("rows.csv, row 5: not valid CSV in line 8: ")
    assert errors[6].startswith("rows.csv, row 7: not valid CSV in line 10: a quote is opened and not closed")
    assert samples[7].texts(FIELDS) == {"source": "S", "output": "swallowed"}


def test_columns_without_name_and_content_at_the_end_of_a_table_are_left_out(tmp_path: Path) -> None:
    text = "source;output;;\nS;O;;\nS;O2; ;\nS;O3;;what is this\nS;O4\n"
    samples = list(read_samples(write(tmp_path / "export.csv", text)))
    assert [sample.fields for sample in samples[:2]] == [GOOD, GOOD | {"output": "O2"}]
    assert samples[2].error.startswith("export.csv, row 3: 4 cells where the header has 2 columns")
    assert samples[3].fields == {"source": "S", "output": "O4"}
    # Cells behind those that have a name, as spreadsheets leave them where something was deleted.
    behind = list(read_samples(write(tmp_path / "behind.csv", "source,output\nS,O,,\n")))
    assert [sample.fields for sample in behind] == [{"source": "S", "output": "O"}]
    # The index that data frames write stands in front, and is kept.
    index = list(read_samples(write(tmp_path / "index.csv", ",source,output\n0,S,O\n")))
    assert [sample.fields for sample in index] == [{"": "0", "source": "S", "output": "O"}]


def test_a_long_csv_cell(tmp_path: Path) -> None:
    document = "word " * 100_000
    (sample,) = read_samples(write(tmp_path / "long.csv", f"source,output\n{document},O\n"))
    assert sample.texts(FIELDS)["source"] == document


def test_json_list_rows(tmp_path: Path) -> None:
    samples = list(read_samples(write(tmp_path / "d.json", json.dumps([GOOD, 3, {"source": "S"}]))))
    assert [sample.row for sample in samples] == [1, 2, 3]
    assert samples[0].texts(FIELDS) == GOOD
    assert samples[1].error == "d.json, row 2: not a JSON object but int"
    assert "the columns are: source\n" in reason(samples[2])


# --- rejected files


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.jsonl", "", "holds no rows"),
        ("blank.jsonl", "\n \n", "holds no rows"),
        ("empty.json", "", "holds no rows"),
        ("empty_list.json", "[]", "holds no rows"),
        ("header.csv", "source,output\n", "holds no rows"),
        ("empty.csv", "", "holds no rows"),
        ("broken.json", '[{"a": 1},\n {"a": }]', r"line 2, column 8: not valid JSON: Expecting value"),
        ("lines.json", '{"a": 1}\n{"a": 2}\n', r"(?s)line 2, column 1: .*Extra data.*name it \.jsonl"),
        ("object.json", '{"a": 1}', r"(?s)holds one dict, not a list of objects.*\[\{\.\.\.\}"),
        ("repeated.csv", "a,b,a\n1,2,3\n", "columns that occur twice: a"),
        ("data.txt", "x", r"(?s)cannot tell the format.*\.jsonl, \.ndjson, \.json, \.csv, \.tsv, \.parquet"),
        ("book.csv", b"PK\x03\x04" + b"\0" * 90, "is a ZIP archive, such as an Excel workbook"),
        ("book.xls", b"\xd0\xcf\x11\xe0" + b"\0" * 90, "(?s)it is an old Excel workbook.*Save it as CSV"),
        ("blanks.csv", "a,,,b\n1,2,3,4\n", "columns without a name"),
        ("rows.jsonl", b"PAR1" + b"\0" * 90, "is a Parquet file, despite its name"),
        ("image.csv", bytes(range(256)) * 4 + b"\0" * 200, "is not text: it contains zero bytes"),
        ("data.parquet.gz", "x", "cannot tell the format"),
        ("text.parquet", "not Parquet at all", "is not a readable Parquet file"),
        ("cut.jsonl.gz", gzip.compress(b'{"a": "b"}\n' * 9, mtime=0)[:-12], "cannot read .* beyond row"),
        ("plain.jsonl.gz", '{"a": "b"}\n', "cannot read .* beyond row 0"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: str | bytes, expected: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=expected) as caught:
        list(read_samples(path))
    assert str(path) in str(caught.value)


def test_missing_files_are_refused_before_iterating(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        read_samples(tmp_path / "nowhere.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match="is a directory"):
        read_samples(tmp_path / "folder.jsonl")


def test_a_file_without_permission(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "secret.jsonl", GOOD)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(DataError, match=r"(?s)Permission denied.*permissions"):
        read_samples(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"geval-local\[parquet\]"):
        list(read_samples(write(tmp_path / "d.parquet", "x")))


# --- formats and streaming


def test_limit_counts_bad_rows_and_reads_no_further(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", '{"a": "1"}\nbroken\n{"a": "3"}\n')
    assert [sample.row for sample in read_samples(path, limit=2)] == [1, 2]
    with pytest.raises(ConfigurationError, match="at least 1"):
        read_samples(path, limit=0)


@pytest.mark.slow
def test_jsonl_is_streamed(tmp_path: Path) -> None:
    """The first row is yielded before the (broken) rest of the file is read."""
    whole = gzip.compress(b"".join(b'{"a": "%d"}\n' % index for index in range(200_000)))
    stream = read_samples(write(tmp_path / "d.jsonl.gz", whole[: len(whole) // 2]))
    assert next(stream).fields == {"a": "0"}
    *_, last = stream
    assert last.error is not None
    assert last.error.code is ErrorCode.UNREADABLE_FILE
    assert "mend the file" in last.error


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr("geval_local.io.rows.PARQUET_BATCH_ROWS", 2)
    not_utf8 = pa.array([b"a", b"b", b"caf\xe9", b"d", b"e"]).view(pa.string())
    weights = pa.array([[("x", 1.5)]] * 5, pa.map_(pa.string(), pa.float64()))
    table = pa.table({"source": not_utf8, "output": [["o", "p"], None, ["o"], ["o"], ["o"]], "weights": weights})
    pq.write_table(table, tmp_path / "d.parquet")
    samples = list(read_samples(tmp_path / "d.parquet"))
    assert [sample.row for sample in samples] == [1, 2, 3, 4, 5]
    assert samples[0].fields["output"] == ["o", "p"]
    assert samples[0].fields["weights"] == {"x": 1.5}
    assert "d.parquet, row 2: the field 'output' is null" in reason(samples[1])
    assert (samples[2].error or "").startswith("d.parquet, row 3: the column 'source' holds text that is not UTF-8")
    assert samples[4].texts(FIELDS) == {"source": "e", "output": "o"}


@settings(max_examples=example_count(50))
@given(st.lists(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False) | st.none()), min_size=1))
def test_any_json_row_comes_through(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]) -> None:
    rows = [row | {"id": index} for index, row in enumerate(rows)]
    path = tmp_path_factory.mktemp("rows")
    for name, content in (
        ("d.jsonl", "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)),
        ("d.json", json.dumps(rows)),
    ):
        samples = list(read_samples(write(path / name, content)))
        assert [sample.fields for sample in samples] == rows
        assert not any(sample.error for sample in samples)


@settings(max_examples=example_count(50))
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_any_csv_text_comes_through(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL)
    writer.writerows([("source", "output"), *rows])
    if sys.version_info < (3, 11) and "\0" in buffer.getvalue():
        return  # the csv module of older Pythons refuses the null character
    path = write(tmp_path_factory.mktemp("rows") / "d.csv", buffer.getvalue())
    assert [tuple(sample.fields.values()) for sample in read_samples(path)] == rows


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark files in ../shared/data are not here")
@pytest.mark.parametrize(
    ("name", "rows", "fields", "columns"),
    [
        ("summeval_dev.json", 800, ("source", "output"), ("source", "system_output")),
        ("topical_chat.json", 360, ("source", "output", "fact"), ("source", "system_output", "context")),
        ("qags_xsum.json", 239, ("source", "output"), ("source", "system_output")),
    ],
)
def test_benchmark_files_unmodified(name: str, rows: int, fields: tuple[str, ...], columns: tuple[str, ...]) -> None:
    samples = list(read_samples(SHARED / name))
    assert len(samples) == rows
    for sample in samples:
        assert list(sample.texts(fields).values()) == [sample.fields[column] for column in columns]


def by_document(documents: int, rows: int) -> list[dict[str, str]]:
    return [{"id": f"d{place // rows}", **GOOD, "output": f"O{place}"} for place in range(documents * rows)]


@pytest.mark.parametrize("limit", [None, 4, 1])
@pytest.mark.parametrize("order", [1, 7])
def test_ids_that_name_documents_are_no_names_of_rows(tmp_path: Path, limit: int | None, order: int) -> None:
    rows = by_document(5, 4)
    path = jsonl(tmp_path / "d.jsonl", *(rows[place * order % 20] for place in range(20)), {"id": "alone", **GOOD})
    samples = list(read_samples(path, limit=limit))
    assert [sample.error for sample in samples] == [None] * (limit or 21)
    assert samples[0].fields["id"] == "d0"


@pytest.mark.parametrize("repeats", [1, 3, 8])
def test_some_repeated_ids_stay_errors_of_their_rows(tmp_path: Path, repeats: int) -> None:
    rows = [{"id": place, **GOOD} for place in range(20)]
    samples = list(read_samples(jsonl(tmp_path / "d.jsonl", *rows, *rows[:repeats])))
    assert [sample.row for sample in samples if sample.error] == list(range(21, 21 + repeats))


def test_two_rows_of_one_id_are_a_duplicate(tmp_path: Path) -> None:
    samples = list(read_samples(jsonl(tmp_path / "d.jsonl", *[{"id": "a", **GOOD}] * 2)))
    assert [sample.error is None for sample in samples] == [True, False]
