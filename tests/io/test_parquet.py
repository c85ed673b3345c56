"""Parquet in, Parquet out: columns that pass through keep their types and values, and wide tables are read fast."""

from __future__ import annotations

import datetime
import subprocess
import sys
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from run_kit import execute, wanted

from geval_local import Metric, score_file
from geval_local.io import rows as rows_module
from geval_local.io.input_files import read_samples
from geval_local.io.rows import read_rows
from geval_local.io.writer import ResultWriter
from geval_local.runs.input_file import fingerprint_inputs
from geval_local.score import Score
from geval_local.testing import MockJudge

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ds = pytest.importorskip("pyarrow.dataset")

from geval_local.io.parquet import SourceColumns  # noqa: E402 - it needs pyarrow

DAY, MOMENT = datetime.date(2026, 11, 28), datetime.datetime(2026, 11, 28, 10, 0, 0, 123456)
#: Column type -> two values; a null stands between them.
COLUMNS = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-(2**15), 1]),
    "int32": (pa.int32(), [2**31 - 1, 1]),
    "int64": (pa.int64(), [2**63 - 1, -1]),
    "uint8": (pa.uint8(), [255, 0]),
    "uint16": (pa.uint16(), [65535, 0]),
    "uint32": (pa.uint32(), [2**32 - 1, 0]),
    "uint64": (pa.uint64(), [2**64 - 1, 0]),
    "half": (pa.float16(), [np.float16(1.5), np.float16(-2.0)]),
    "float": (pa.float32(), [0.1, float("inf")]),
    "double": (pa.float64(), [0.1, 1e300]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("-3.00")]),
    "decimal256": (pa.decimal256(60, 5), [Decimal("1.10000"), Decimal("9" * 50)]),
    "string": (pa.string(), ["a", ""]),
    "large_string": (pa.large_string(), ["a", "b"]),
    "dictionary": (pa.dictionary(pa.int16(), pa.string()), ["a", "b"]),
    "binary": (pa.binary(), [b"\xff\x00", b""]),
    "fixed_binary": (pa.binary(3), [b"\xff\x00a", b"abc"]),
    "date": (pa.date32(), [DAY, DAY]),
    "time_ns": (pa.time64("ns"), [1_234_567, 1]),
    "timestamp_ms": (pa.timestamp("ms", "UTC"), [1_764_324_000_123, 0]),
    "timestamp_ns": (pa.timestamp("ns"), [1_764_324_000_123_456_789, 1]),
    "duration_ns": (pa.duration("ns"), [1_234_567_891, 1]),
    "null": (pa.null(), [None, None]),
    "list": (pa.list_(pa.int8()), [[1, None], []]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("a", 2)], []]),
    "nested": (
        pa.struct([("at", pa.timestamp("ns")), ("of", pa.list_(pa.map_(pa.string(), pa.float32())))]),
        [{"at": 1, "of": [[("x", 0.5)]]}, {"at": None, "of": []}],
    ),
}


def all_columns() -> pa.Table:
    """One row per value, and one of nulls, with metadata of the table and of a column."""
    arrays = [pa.array([first, None, second], kind) for kind, (first, second) in COLUMNS.values()]
    fields = [pa.field(name, array.type, metadata={b"unit": b"1"}) for name, array in zip(COLUMNS, arrays, strict=True)]
    texts = pa.array(["a text"] * 3)
    schema = pa.schema([*fields, pa.field("output", texts.type, nullable=False)], metadata={b"owner": b"us"})
    return pa.table([*arrays, texts], schema=schema)


def through(source: Path, target: Path, **reading) -> pa.Table:
    """Write what is read, with a score."""
    with ResultWriter.open(target, ["m"], source=partial(SourceColumns.of_files, [source])) as writer:
        for sample in read_samples(source, **reading):
            writer.write(sample, {} if sample.error else {"m": Score.unscored("m", "not asked")})
    return pq.read_table(target)


@pytest.fixture(scope="module")
def passed(tmp_path_factory) -> tuple[pa.Table, pa.Table]:
    """The table of all columns, before and after."""
    directory = tmp_path_factory.mktemp("types")
    pq.write_table(all_columns(), directory / "in.parquet", row_group_size=2)
    return pq.read_table(directory / "in.parquet"), through(directory / "in.parquet", directory / "out.parquet")


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_keeps_type_and_values(passed, name):
    before, after = passed
    assert after.schema.field(name).equals(before.schema.field(name), check_metadata=True)
    assert after.column(name).combine_chunks().equals(before.column(name).combine_chunks())


def test_order_and_metadata_stay(passed):
    before, after = passed
    assert after.schema.names == [*before.schema.names, "geval"]
    assert after.schema.metadata == before.schema.metadata
    assert not after.schema.field("output").nullable
    assert [row["m"]["error"] for row in after.column("geval").to_pylist()] == ["not asked"] * 3


def test_rows_are_matched_by_their_numbers(tmp_path, monkeypatch):
    """Over batches and groups of every size, and where rows are left out."""
    monkeypatch.setattr("geval_local.io.rows.PARQUET_BATCH_ROWS", 3)
    monkeypatch.setattr("geval_local.io.parquet.GROUP_ROWS", 4)
    numbers = pa.array(range(20), pa.uint16())
    pq.write_table(pa.table({"n": numbers, "output": ["x"] * 20}), tmp_path / "in.parquet", row_group_size=7)
    with ResultWriter.open(
        tmp_path / "o.parquet", ["m"], source=partial(SourceColumns.of_files, [tmp_path / "in.parquet"])
    ) as writer:
        for sample in read_samples(tmp_path / "in.parquet"):
            if sample.row % 5:
                writer.write(sample, {"m": Score.unscored("m", "not asked")})
    column = pq.read_table(tmp_path / "o.parquet").column("n")
    assert column.type == pa.uint16()
    assert column.to_pylist() == [number for number in range(20) if (number + 1) % 5]


def test_a_value_that_python_cannot_hold_passes_through_and_its_row_says_why(tmp_path):
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff"]).buffers())
    table = pa.table({"output": broken, "n": pa.array([1, 2], pa.int8())})
    pq.write_table(table, tmp_path / "in.parquet")
    after = through(tmp_path / "in.parquet", tmp_path / "o.parquet")
    assert after.select(["output", "n"]).equals(pq.read_table(tmp_path / "in.parquet"))
    assert "not UTF-8" in after.column("geval").to_pylist()[1]["m"]["error"]
    assert after.column("row").to_pylist() == [None, 2]


def test_a_date_beyond_those_of_python_passes_through(tmp_path):
    far = pa.array([1, 2**62, None], pa.timestamp("us"))
    pq.write_table(pa.table({"output": ["a", "b", "c"], "at": far}), tmp_path / "in.parquet")
    after = through(tmp_path / "in.parquet", tmp_path / "o.parquet")
    assert after.column("at").combine_chunks().equals(far)
    errors = [row["m"]["error"] for row in after.column("geval").to_pylist()]
    assert [error for error in errors if error != "not asked"] == [errors[1]]
    assert "'at' holds a value that cannot be read" in errors[1]


@pytest.mark.parametrize("first", [True, False])
def test_files_may_differ_in_what_may_be_null(tmp_path, first):
    """Files of Spark say "not null" where those of pandas do not; a window may begin in one and end in the other."""
    types = [pa.field("v", pa.int64(), nullable=first), pa.field("v", pa.int64(), not first, metadata={"unit": "s"})]
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for field, file in zip(types, files, strict=True):
        schema = pa.schema([field, ("output", pa.string())])
        values = [1, None if field.nullable else 2]
        pq.write_table(pa.table([pa.array(values, pa.int64()), ["x", "y"]], schema=schema), file)
    with ResultWriter.open(tmp_path / "o.parquet", ["m"], source=partial(SourceColumns.of_files, files)) as writer:
        for file in files:
            for sample in read_samples(file):
                writer.write(sample, {"m": Score.unscored("m", "not asked")})
    after = pq.read_table(tmp_path / "o.parquet")
    assert after.schema.field("v").equals(pa.field("v", pa.int64()))
    assert after.column("v").to_pylist() == ([1, None, 1, 2] if first else [1, 2, 1, None])


def test_with_another_id_the_other_columns_keep_their_types(tmp_path):
    large = pa.array([2**63 + 1, 5], pa.uint64())
    table = pa.table({"id": pa.array([7, 8], pa.int8()), "key": ["a", "b"], "source": ["x"] * 2, "output": ["y"] * 2})
    pq.write_table(table.append_column("n", large), tmp_path / "in.parquet")
    judge, metric = MockJudge(), Metric(name="m", criteria="c", fields={"output": "Output"}, scale="1-5", steps=("a",))
    score_file(tmp_path / "in.parquet", metric, judge, tmp_path / "o.parquet", id="key")
    after = pq.read_table(tmp_path / "o.parquet")
    assert after.column("id").to_pylist() == ["a", "b"]
    assert after.column("original_id").to_pylist() == [7, 8]
    assert after.column("n").combine_chunks().equals(large)


def test_one_bad_value_spoils_no_other_row(tmp_path):
    values = [b"row %d" % number for number in range(2000)]
    values[1500] = b"\xff"
    broken = pa.Array.from_buffers(pa.string(), len(values), pa.array(values).buffers())
    pq.write_table(pa.table({"output": broken, "n": range(len(values))}), tmp_path / "in.parquet")
    found = list(read_rows(tmp_path / "in.parquet"))
    assert [row.number for row in found] == [*range(1, 2001)]
    assert [row.fields["n"] for row in found] == [*range(2000)]
    assert [row.number for row in found if row.error] == [1501]


NO_PANDAS = """
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
class NoPandas(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)
sys.meta_path.insert(0, NoPandas())
from geval_local.io.rows import read_rows
print(*read_rows(Path(sys.argv[1])))
"""


def test_nanoseconds_are_read_without_pandas(tmp_path):
    """Python has no type for them, and a column that passes through is no reason to leave a row unscored."""
    columns = {name: pa.array([1_001], COLUMNS[name][0]) for name in ("timestamp_ns", "time_ns", "duration_ns")}
    nested = pa.array([{"at": 1_001, "of": []}], COLUMNS["nested"][0])
    pq.write_table(pa.table({**columns, "nested": nested, "output": ["x"]}), tmp_path / "in.parquet")
    command = [sys.executable, "-c", NO_PANDAS, str(tmp_path / "in.parquet")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.count("00:00:00.000001001") == 3, "one of them in a struct"
    assert "error=None" in printed


def test_a_wide_table_is_converted_by_the_batch(tmp_path, monkeypatch):
    """Conversion per row costs a call per cell: 20 times the time at 5,000 columns."""
    pq.write_table(pa.table({f"c{place}": range(100) for place in range(300)}), tmp_path / "in.parquet")
    batches = []
    converted = rows_module.converted_rows
    monkeypatch.setattr(
        rows_module, "converted_rows", lambda batch, start: batches.append(batch.num_rows) or converted(batch, start)
    )
    assert len(list(read_rows(tmp_path / "in.parquet"))) == 100
    assert batches == [100]
    monkeypatch.setattr(rows_module, "CONVERTED_BYTES", 300 * 8 * 10)
    batches.clear()
    assert len(list(read_rows(tmp_path / "in.parquet"))) == 100
    assert max(batches) <= 10, "and in pieces of bounded size"


# --- whole runs -------------------------------------------------------------------------------------------------------


def scorable(rows: int = 40) -> pa.Table:
    """Rows of all columns, and the texts of a metric."""
    table = all_columns().drop_columns(["output"]).take([number % 3 for number in range(rows)])
    for name, told in (("id", "{}"), ("source", "Tale {}."), ("output", "It ends at {}.")):
        table = table.append_column(name, pa.array([told.format(number) for number in range(rows)]))
    return table


def same(found: pa.Table, given: pa.Table) -> None:
    assert found.schema.names == [*given.schema.names, "geval"]
    assert found.schema.metadata == given.schema.metadata
    for field in given.schema:
        assert found.schema.field(field.name).equals(field, check_metadata=True)
        assert found.column(field.name).combine_chunks().equals(given.column(field.name).combine_chunks()), field.name


def test_a_run_keeps_all_columns(tmp_path):
    pq.write_table(scorable(), tmp_path / "in.parquet", row_group_size=9)
    (file,) = execute(tmp_path / "run", wanted(tmp_path / "in.parquet", formats=["parquet"]))
    same(pq.read_table(file), pq.read_table(tmp_path / "in.parquet"))


def texts(rows: int) -> dict[str, list[str]]:
    return {"source": ["A tale."] * rows, "output": ["It ends."] * rows}


@pytest.mark.parametrize("shape", [{"id": "name"}, {"system_columns": ["one", "two"]}])
def test_rows_that_were_shaped_are_no_rows_of_the_file(tmp_path, shape):
    columns = {"id": [1, 2], "name": ["x", "y"], "one": ["A.", "B."], "two": ["C.", "D."], **texts(2)}
    if "system_columns" in shape:
        del columns["output"]
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    (file,) = execute(tmp_path / "run", wanted(tmp_path / "in.parquet", formats=["parquet"], **shape))
    found = pq.read_table(file).column("id").to_pylist()
    assert found == (["x", "y"] if "id" in shape else ["1/one", "1/two", "2/one", "2/two"])


def test_several_files_keep_the_columns_that_they_share(tmp_path, monkeypatch):
    monkeypatch.setattr("geval_local.io.rows.PARQUET_BATCH_ROWS", 4)
    tables = [scorable(), scorable(1), scorable()[:0], scorable(5).drop_columns(["bool"]), scorable(7)]
    paths = [tmp_path / f"{place}.parquet" for place in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    manifest = wanted(paths[0], formats=["parquet"])
    manifest.input = fingerprint_inputs(paths)
    (file,) = execute(tmp_path / "run", manifest)
    found = pq.read_table(file)
    expected = pa.concat_tables(
        [table.drop_columns(["bool"]) if "bool" in table.schema.names else table for table in tables]
    )
    for field in expected.schema:
        assert found.schema.field(field.name).type == field.type
        assert found.column(field.name).combine_chunks().equals(expected.column(field.name).combine_chunks()), (
            field.name
        )
    assert found.column("file").to_pylist() == [
        path.name for path, table in zip(paths, tables, strict=True) for _ in range(table.num_rows)
    ]
    assert found.column("bool").to_pylist()[40:47] == [True, *[None] * 5, True]
