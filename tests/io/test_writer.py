"""Writing: round trips of the three formats, strictness, and atomic files."""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_local.errors import ConfigurationError, OutputError
from geval_local.figures import FIGURES
from geval_local.io import writer as output_formats
from geval_local.io.columns import check_chosen, renamed_columns
from geval_local.io.input_files import read_samples
from geval_local.io.rows import read_rows
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.options import RunOptions
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, OrderFigures, Score
from geval_local.thinking import ThoughtFigures

GOOD = {"source": "S", "output": "O"}
FORMATS = ["jsonl", "csv", "parquet"]


def score(metric: str = "coherence", **extra: Any) -> Score:
    distribution = Distribution(Scale.parse("1-3"), [math.log(0.1), math.log(0.2), math.log(0.3)])
    return Score.from_distribution(metric, distribution, estimator=Estimator(), prompt_tokens=12, **extra)


FULL = replace(
    score(threshold=2.0, other_tokens=(("\n", 0.25), ("half \ud800", 0.125)), dropped_tokens=3),
    calibrated=2.5,
    orders=(OrderFigures(2.25, 0.5), OrderFigures(2.75, 0.75)),
    thoughts=ThoughtFigures(2, 0.125, 0.25, 1, ("First.", "Then.")),
)


def save(path: Path, samples: Iterable[Sample], scores: Mapping[str, Score] | None = None) -> Path:
    scores = {"coherence": score()} if scores is None else scores
    with ResultWriter.open(path, list(scores), columns=["all"]) as writer:
        for sample in samples:
            writer.write(sample, {} if sample.error else scores)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").splitlines()]


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def table(path: Path) -> list[dict[str, Any]]:
    pytest.importorskip("pyarrow")
    return [dict(sample.fields) for sample in read_samples(path)]


def test_the_columns_hold_every_figure_of_a_score() -> None:
    assert {*FULL.to_dict(), *Score.unscored("coherence", "why").to_dict()} == set(FIGURES)


# --- one format after the other


def test_jsonl_keeps_columns_figures_and_order(tmp_path: Path) -> None:
    samples = [Sample({"n": index, "scores": {"coherence": 4}, **GOOD}) for index in range(5)]
    path = save(tmp_path / "o.jsonl", samples, {"coherence": FULL, "tone": Score.unscored("tone", "too long")})
    rows = lines(path)
    assert [list(row) for row in rows] == [["n", "scores", "source", "output", "geval"]] * 5
    assert [row["n"] for row in rows] == list(range(5))
    figures = rows[0]["geval"]["coherence"]
    assert list(rows[0]["geval"]) == ["coherence", "tone"]
    assert {**figures, "other_tokens": None} == {**FULL.to_dict(), "other_tokens": None}, "floats to the last bit"
    assert figures["other_tokens"] == [["\n", 0.25], ["half \\ud800", 0.125]]
    assert rows[0]["geval"]["tone"] == {"score": None, "error": "too long", "error_code": "unknown", "prompt_tokens": 0}


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    first, second = (save(tmp_path / name, [Sample(GOOD)] * 3).read_bytes() for name in ("a.jsonl", "b.jsonl"))
    assert first == second


def test_jsonl_is_strict(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    fields = {
        "nan": math.nan,
        "deep": [{"inf": math.inf}],
        "half": "\ud800",
        "bytes": "caf\udce9",
        "day": datetime.date(2024, 5, 17),
        "number": np.float64(0.1),
        "count": np.int64(3),
        "vector": np.array([1.5, math.nan]),
    }
    (row,) = lines(save(tmp_path / "o.jsonl", [Sample(fields)]))
    assert (row["nan"], row["deep"]) == (None, [{"inf": None}])
    assert (row["half"], row["bytes"]) == ("\\ud800", "caf\\udce9")
    assert (row["day"], row["number"], row["count"], row["vector"]) == ("2024-05-17", 0.1, 3, [1.5, None])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(st.text().filter(lambda name: name not in ("geval", "id")), JSON_VALUES), min_size=1)


@settings(max_examples=example_count(50))
@given(ROWS)
def test_any_row_survives_jsonl(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    path = save(tmp_path_factory.mktemp("rows") / "o.jsonl", [Sample(row) for row in rows])
    back = [dict(sample.fields) for sample in read_samples(path)]
    assert [row.pop("geval")["coherence"] for row in back] == [score().to_dict()] * len(rows)
    assert back == rows


def test_csv_columns_and_cells(tmp_path: Path) -> None:
    text = 'a "quoted", \r lone return\r\nand a line'
    sample = Sample({"source": text, "n": 3, "x": 0.1, "flag": True, "none": None, "nan": math.nan, "list": ["é", 1]})
    path = save(tmp_path / "o.csv", [sample], {"coherence": FULL, "tone": Score.unscored("tone", "too long")})
    (row,) = cells(path)
    assert list(row) == [
        *("source", "n", "x", "flag", "none", "nan", "list"),
        *(f"coherence.{figure}" for figure in FIGURES),
        *(f"tone.{figure}" for figure in FIGURES),
        "extra",
    ]
    assert [row[name] for name in ("source", "n", "x", "flag", "none", "nan", "list")] == [
        *(text, "3", "0.1", "true", "", "", '["é", 1]'),
    ]
    assert float(row["coherence.score"]) == FULL.value
    assert json.loads(row["coherence.probabilities"]) == FULL.probabilities
    assert (row["tone.score"], row["tone.label_mass"], row["tone.error"]) == ("", "", "too long")


def test_csv_of_bad_rows_only(tmp_path: Path) -> None:
    bad = Sample({"raw": "broken"}, 1, "d.jsonl", "d.jsonl, row 1: not valid JSON")
    (row,) = cells(save(tmp_path / "o.csv", [bad]))
    assert (row["raw"], row["row"], row["coherence.error"], row["extra"]) == ("broken", "1", bad.error, "")


def test_csv_columns_that_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_formats, "HEADER_ROWS", 2)
    fields = [{"a": "1"}, {"b": "2", "a": "3"}, {"c": "4", "extra": 5, "b": "6"}]
    rows = cells(save(tmp_path / "o.csv", [Sample(row) for row in fields]))
    assert list(rows[0])[:3] == ["a", "b", "coherence.score"]
    assert [(row["a"], row["b"], row["extra"]) for row in rows] == [
        ("1", "", ""),
        ("3", "2", ""),
        ("", "6", '{"c": "4", "extra": 5}'),
    ]


@settings(max_examples=example_count(50))
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_any_text_survives_csv(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    if sys.version_info < (3, 11) and "\0" in "".join(map("".join, rows)):
        return  # the csv module of older Pythons cannot read the null character back
    samples = [Sample({"source": source, "output": output}) for source, output in rows]
    back = list(read_samples(save(tmp_path_factory.mktemp("rows") / "o.csv", samples)))
    assert [(sample.fields["source"], sample.fields["output"]) for sample in back] == rows


def test_parquet_types(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    moment = datetime.datetime(2024, 5, 17, 12, 30)
    fields = {"n": 1, "x": 0.5, "at": moment, "list": ["a"], "scores": {"coherence": 4.0}, "empty": {}, "none": None}
    path = save(tmp_path / "o.parquet", [Sample(fields)], {"a/b": FULL, "tone": Score.unscored("tone", "too long")})
    schema = pq.read_schema(path)
    assert schema.names == [*fields, "geval"]
    assert schema.field("at").type == pa.timestamp("us")
    figures = schema.field("geval").type.field("a/b").type
    assert [field.name for field in figures] == list(FIGURES)
    assert figures.field("probabilities").type == pa.map_(pa.string(), pa.float64())
    assert figures.equals(schema.field("geval").type.field("tone").type)
    (row,) = table(path)
    assert {**row, "geval": None} == {**fields, "empty": "{}", "geval": None}
    expected = {figure: value for figure, value in FULL.to_dict().items() if figure != "other_tokens"}
    assert {figure: row["geval"]["a/b"][figure] for figure in expected} == expected
    assert row["geval"]["a/b"]["other_tokens"][1] == {"token": "half \\ud800", "probability": 0.125}
    told = {"error": "too long", "error_code": "unknown", "prompt_tokens": 0}
    assert row["geval"]["tone"] == {**dict.fromkeys(FIGURES), **told}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 2.5], [1.0, 2.0, 2.5]),
        ([None, None, "late"], [None, None, "late"]),
        (["text", 5, ["a"]], ["text", "5", '["a"]']),
        ([1, "a", 2.5], ["1", "a", "2.5"]),
        ([2**60 + 1, 1, 0.5], [str(2**60 + 1), "1", "0.5"]),  # not exact as a float
        ([2**70, 1, 1], [str(2**70), "1", "1"]),
        ([True, 1, None], ["true", "1", None]),
        ([{"a": 1}, {"a": 1.5}, {"b": "x"}], [{"a": 1.0, "b": None}, {"a": 1.5, "b": None}, {"a": None, "b": "x"}]),
        ([{"a": 1}, {"a": "x"}, None], ['{"a": 1}', '{"a": "x"}', None]),
        ([["a"], ["half \ud800"], []], [["a"], ["half \\ud800"], []]),
        ([datetime.date(2024, 5, 17), "never", None], ["2024-05-17", "never", None]),
    ],
)
@pytest.mark.parametrize("group_rows", [1, 2, 100])
def test_parquet_columns_whose_values_disagree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int, values: list[Any], expected: list[Any]
) -> None:
    """The outcome may not depend on where row groups happen to end."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("geval_local.io.parquet.GROUP_ROWS", group_rows)
    path = save(tmp_path / "o.parquet", [Sample({"n": index, "v": value}) for index, value in enumerate(values)])
    rows = table(path)
    assert [row["n"] for row in rows] == [0, 1, 2]
    assert [row["v"] for row in rows] == expected
    assert [row["geval"]["coherence"]["score"] for row in rows] == [score().value] * 3


def test_parquet_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    monkeypatch.setattr("geval_local.io.parquet.GROUP_ROWS", 4)
    monkeypatch.setattr("geval_local.io.parquet.GROUP_CHARACTERS", 100)
    samples = [
        Sample({"n": index, "late" if index > 6 else "text": "x" * (99 if index == 8 else 1)}) for index in range(10)
    ]
    path = save(tmp_path / "o.parquet", samples)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [4, 4, 2]
    assert [row["n"] for row in table(path)] == list(range(10))
    assert [row["text"] for row in table(path)] == ["x"] * 7 + [None] * 3


@pytest.mark.slow
@settings(max_examples=example_count(50))
@given(rows=ROWS)
def test_any_row_can_be_written_as_parquet(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    pytest.importorskip("pyarrow")
    path = save(
        tmp_path_factory.mktemp("rows") / "o.parquet", [Sample({"n": i, **row, "m": i}) for i, row in enumerate(rows)]
    )
    assert [row["m"] for row in table(path)] == list(range(len(rows)))


# --- bad rows, earlier results


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_input_row_appears_once(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    good, not_utf8 = b'{"source": "S", "output": "O"}', b'{"source": "caf\xe9", "output": "O"}'
    (tmp_path / "in.jsonl").write_bytes(b"\n".join([b"broken", good, not_utf8, good]))
    path = save(tmp_path / f"o.{suffix}", list(read_samples(tmp_path / "in.jsonl")))
    if suffix == "csv":
        rows = cells(path)
        assert list(rows[0])[:3] == ["source", "output", "coherence.score"], "bad rows do not shape the header"
        assert json.loads(rows[0]["extra"]) == {"raw": "broken", "row": 1}
        errors = [row["coherence.error"] for row in rows]
        found = [row["coherence.score"] for row in rows]
    else:
        rows = lines(path) if suffix == "jsonl" else table(path)
        assert (rows[0]["raw"], rows[0]["row"], rows[2]["row"]) == ("broken", 1, 3)
        errors = [row["geval"]["coherence"].get("error") or "" for row in rows]
        found = [row["geval"]["coherence"]["score"] or "" for row in rows]
    assert [row["source"] if row.get("source") else "" for row in rows] == ["", "S", "caf\\udce9", "S"]
    assert [bool(error) for error in errors] == [True, False, True, False]
    assert [value != "" for value in found] == [False, True, False, True]
    assert errors[0].startswith("in.jsonl, row 1: not valid JSON")
    assert errors[2].startswith("in.jsonl, row 3: the row holds text that is not valid Unicode")


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_deepest_column_that_is_read_can_be_written(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    for opening, closing in (("[", "]"), ('{"a": ', "}")):
        rows = [f'{{"deep": {opening * levels}1{closing * levels}}}' for levels in range(28, 36)]
        (tmp_path / "in.jsonl").write_text("\n".join(rows))
        samples = list(read_samples(tmp_path / "in.jsonl"))
        assert {sample.error is None for sample in samples} == {True, False}
        for sample in samples:
            assert len(list(read_samples(save(tmp_path / f"o.{suffix}", [sample])))) == 1


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("first", FORMATS)
def test_scoring_again_keeps_other_metrics(tmp_path: Path, first: str, suffix: str) -> None:
    if "parquet" in (first, suffix):
        pytest.importorskip("pyarrow")
    old = Score.unscored("tone", "old"), Score.unscored("coherence", "old")
    before = save(tmp_path / f"1.{first}", [Sample(GOOD)], {"tone": old[0], "coherence": old[1]})
    after = save(tmp_path / f"2.{suffix}", list(read_samples(before)), {"coherence": score()})
    (row,) = cells(after) if suffix == "csv" else table(after)
    if first == "csv" or suffix == "csv":  # CSV is flat, and stays flat when read
        assert row["tone.error"] == "old"
    else:
        assert row["geval"]["tone"]["error"] == "old"
    if suffix == "csv":
        assert float(row["coherence.score"]) == score().value
        assert row["coherence.error"] == ""
    else:
        assert row["geval"]["coherence"]["score"] == score().value
        assert row["geval"]["coherence"].get("error") is None
        assert row["geval"]["coherence"]["probabilities"] == score().probabilities


def test_a_column_geval_of_the_users_own_is_kept(tmp_path: Path) -> None:
    (row,) = lines(save(tmp_path / "o.jsonl", [Sample({"geval": "mine", "geval_input": 1})]))
    assert (row["geval_input"], row["geval_input_"]) == (1, "mine")
    assert row["geval"]["coherence"]["score"] == score().value


@pytest.mark.parametrize("suffix", FORMATS)
def test_no_rows_is_a_valid_file(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    path = save(tmp_path / f"o.{suffix}", [])
    if suffix == "parquet":
        import pyarrow.parquet as pq

        assert pq.read_table(path).num_rows == 0
    else:
        assert path.read_text("utf-8").count("\n") == (1 if suffix == "csv" else 0)


def test_a_forgotten_metric_is_a_programming_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ResultWriter.open(tmp_path / "o.jsonl", ["coherence"]) as writer:
        writer.write(Sample(GOOD), {})


# --- all or nothing


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    target = tmp_path / f"o.{suffix}"
    target.write_text("old")

    def interrupted() -> Iterator[Sample]:
        yield from [Sample(GOOD)] * 2000
        assert target.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(target, interrupted())
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("suffix", FORMATS)
def test_success_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    target = tmp_path / f"o.{suffix}"
    target.write_text("old")
    save(target, [Sample(GOOD)])
    assert next(read_samples(target)).texts(GOOD) == GOOD
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_an_input_may_be_its_own_output(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD) + "\n")
    with ResultWriter.open(path, ["coherence"]) as writer:
        for sample in read_samples(path):
            writer.write(sample, {"coherence": score()})
    assert len(lines(path)) == 2


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Let the system reject files longer than `limit` bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("rows", [3, 9000])
def test_a_full_disk(tmp_path: Path, suffix: str, rows: int) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    with full_disk(500), pytest.raises(OutputError, match=r"(?s)cannot write .*Is the disk full"):
        save(tmp_path / f"o.{suffix}", [Sample(GOOD | {"n": index}) for index in range(rows)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("o.txt", r"(?s)unknown format.*\.jsonl, \.csv, \.parquet"),
        ("o", "unknown format"),
        ("missing/o.jsonl", r"(?s)there is no directory .*missing.*mkdir -p"),
        ("file/o.jsonl", "there is no directory"),
        ("folder.jsonl", "it is a directory"),
    ],
)
def test_targets_that_are_refused_at_open(tmp_path: Path, target: str, expected: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(OutputError, match=expected):
        ResultWriter.open(tmp_path / target, ["coherence"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.jsonl"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a directory that not even root may write to")
def test_an_unwritable_directory_is_refused_at_open() -> None:
    with pytest.raises(OutputError, match=r"(?s)cannot write /proc/o\.jsonl: .*directory that you may write to"):
        ResultWriter.open("/proc/o.jsonl", ["coherence"])


def test_a_read_only_file_or_directory_is_refused_at_open(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    path.touch(0o400)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(OutputError, match="read-only"):
        ResultWriter.open(path, ["coherence"])
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        ResultWriter.open(tmp_path / "new.jsonl", ["coherence"])


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "geval_local.io.parquet", raising=False)
    with pytest.raises(OutputError, match=r"geval-local\[parquet\]"):
        ResultWriter.open(tmp_path / "o.parquet", ["coherence"])
    assert list(tmp_path.iterdir()) == []


# --- the columns of a CSV file ----------------------------------------------------------------------------------------


def chosen(path: Path, columns: list[str] | None, *, style: Any = None, rows: Any = None) -> list[list[str]]:
    rows = rows or [{"id": "a", "source": "S", "output": "O"}, {"id": "b", "source": "T", "output": "P", "late": 1}]
    metrics = ["coherence", "tone"]
    with ResultWriter.open(path, metrics, columns=columns, csv_style=style) as writer:
        for number, row in enumerate(rows, start=1):
            writer.write(Sample(row, number + 4), {"coherence": FULL, "tone": Score.unscored("tone", "=too(long)")})
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(("style", "mark"), [("excel", ","), ("excel-semicolons", ";")])
def test_a_table_for_excel_has_a_byte_order_mark_and_is_read_again(tmp_path: Path, style: str, mark: str) -> None:
    path = tmp_path / "o.csv"
    chosen(path, ["id", "output", "score"], style=style, rows=[{"id": "ü", "output": "=1+1; a, b"}])
    assert path.read_bytes().startswith(f"\ufeffid{mark}output{mark}coherence.score".encode())
    (row,) = [row.fields for row in read_rows(path)]
    assert (row["id"], row["output"]) == ("ü", "'=1+1; a, b")


def test_csv_holds_the_input_and_the_scores_unless_more_is_asked_for(tmp_path: Path) -> None:
    header, first, second = chosen(tmp_path / "o.csv", None)
    # calibrated, and those of thoughts, only where there are such figures, as here
    figures = ("score", "calibrated", "label_mass", "thought_error", "thoughts", "error", "error_code")
    scores = [f"{metric}.{figure}" for metric in ("coherence", "tone") for figure in figures]
    assert header == ["id", "source", "output", "late", *scores]
    own = [str(FULL.value), str(FULL.calibrated), str(FULL.label_mass), "0.125", '["First.", "Then."]', "", ""]
    assert first == ["a", "S", "O", "", *own, "", "", "", "", "", "=too(long)", "unknown"]
    with ResultWriter.open(tmp_path / "o.csv", ["coherence"]) as writer:
        writer.write(Sample({"id": "a"}, 1), {"coherence": Score.unscored("coherence", "too long")})
    header = "id,coherence.score,coherence.label_mass,coherence.error,coherence.error_code"
    assert (tmp_path / "o.csv").read_text().splitlines() == [header, "a,,,too long,unknown"]
    assert second[:4] == ["b", "T", "P", "1"]
    (header, first) = chosen(tmp_path / "o.csv", None, rows=[{"source": "S", "row": "own"}])
    assert header[:3] == ["source", "row", "coherence.score"]
    assert first[1] == "own"


def test_an_input_column_called_like_a_result_is_kept_under_another_name(tmp_path: Path) -> None:
    taken = {"tone.score": "mine", "tone.score_input": "too", "tone.label_mass": "7", "output": "P"}
    for columns in (None, ["all"], ["input", "score"]):
        with ResultWriter.open(tmp_path / "o.csv", ["tone"], columns=columns) as writer:
            writer.write(Sample(taken, 1), {"tone": score("tone")})
        (row,) = cells(tmp_path / "o.csv")
        kept = {
            name: row[name] for name in ("tone.score_input_", "tone.score_input", "tone.label_mass_input", "output")
        }
        assert list(kept.values()) == ["mine", "too", "7", "P"]
        assert float(row["tone.score"]) == score("tone").value
    assert renamed_columns(["a.score", "a.mode"], ["a"]) == {"a.score": "a.score_input", "a.mode": "a.mode_input"}
    earlier = ["tone.score", "tone.error", "tone.label_mass"]  # a result of this tool, which the new one replaces
    assert renamed_columns(earlier, ["tone"]) == {}


@pytest.mark.parametrize(
    ("columns", "header"),
    [
        (["output", "mode", "score"], "output coherence.mode coherence.score tone.mode tone.score"),
        (["row", "tone.error", "source"], "row tone.error source"),
        (["input", "score"], "id source output late coherence.score tone.score extra"),
        (["unknown", "score"], "unknown coherence.score tone.score"),
    ],
)
def test_csv_columns_are_chosen(tmp_path: Path, columns: list[str], header: str) -> None:
    assert chosen(tmp_path / "o.csv", columns)[0] == header.split()


def test_all_columns_of_a_csv_file_lose_nothing(tmp_path: Path) -> None:
    header, first, second = chosen(tmp_path / "o.csv", ["all"])
    assert header == [
        "id",
        "source",
        "output",
        "late",
        *(f"{m}.{f}" for m in ("coherence", "tone") for f in FIGURES),
        "extra",
    ]
    assert (second[3], first[-1]) == ("1", "")


def test_scores_of_an_earlier_run_stay_beside_the_new_ones(tmp_path: Path) -> None:
    row = {"id": "a", "fluency.score": "3", "fluency.entropy": "1", "coherence.score": "9"}
    header, first = chosen(tmp_path / "o.csv", None, rows=[row])
    found = dict(zip(header, first, strict=True))
    assert header[:3] == ["id", "fluency.score", "fluency.entropy"]
    assert (found["fluency.score"], found["coherence.score"]) == ("3", str(FULL.value))


def test_formulas_are_neutralised_on_request(tmp_path: Path) -> None:
    cells_ = ["=1+1", "+1", "-2", "@x", "\tx", "\rx", " =x", "\u200b=x", "|cmd", "plain", " plain", "'=x", "5-1"]
    rows = [{"=cmd": cell, "number": -3, "text": "a"} for cell in cells_]
    header, *lines_ = chosen(tmp_path / "o.csv", ["=cmd", "number", "error"], style="safe", rows=rows)
    assert header[0] == "'=cmd"
    assert [line[0] for line in lines_] == [*(f"'{cell}" for cell in cells_[:9]), *cells_[9:]]
    assert {line[1] for line in lines_} == {"-3"}
    assert {line[-1] for line in lines_} == {"'=too(long)"}
    plain = chosen(tmp_path / "o.csv", ["=cmd"], rows=rows)
    assert [line[0] for line in plain] == ["=cmd", *cells_]


def test_columns_that_are_not_there_are_named() -> None:
    samples = [Sample({"id": 1, "source": "S"})]
    check_chosen(["id", "source", "row", "score", "tone.mode", "tone@nano.mode", "all"], samples, ["tone"])
    for name, message in (
        ("sourse", "did you mean 'source'"),
        ("scores", "did you mean 'score'"),
        ("x.mode", "no column"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            check_chosen([name], samples, ["tone"])
    assert RunOptions(columns=["id, score", "error"]).columns == ["id", "score", "error"]
    assert RunOptions().columns is None
    with pytest.raises(ConfigurationError, match="empty name"):
        RunOptions(columns=["id,,score"])
