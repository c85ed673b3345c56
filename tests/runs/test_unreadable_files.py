"""Several files of which some cannot be read, or not to their end: what can be read is scored, the others are named."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path

import pytest

from geval_local import Metric, score_file
from geval_local.errors import DataError, ErrorCode, ReadError
from geval_local.io import rows as rows_module
from geval_local.runs.shards import merge_shards
from geval_local.testing import MockJudge

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

METRIC = Metric(name="m", criteria="c", fields={"output": "Output"}, scale="1-5", steps=("a",))
FILES, ROWS = 12, 30


def score(*given, **options):
    return score_file(*given, use_cache=False, **options)


def rows_of(number: int) -> list[dict]:
    return [{"id": f"{number}-{row}", "output": f"text {number} {row}" * 40, "n": row} for row in range(ROWS)]


def as_parquet(path: Path, rows: list[dict]) -> None:
    types = pa.schema([("id", pa.string()), ("output", pa.string()), ("n", pa.int8())])
    pq.write_table(pa.Table.from_pylist(rows, types), path, row_group_size=10, compression="none")


def as_gzip(path: Path, rows: list[dict]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def write(directory: Path, suffix: str) -> list[Path]:
    directory.mkdir()
    files = [directory / f"{number:02d}{suffix}" for number in range(FILES)]
    for number, file in enumerate(files):
        (as_parquet if suffix == ".parquet" else as_gzip)(file, rows_of(number))
    return files


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-60])


def damage_inside(file: Path) -> None:
    """The second row group of a Parquet file; whatever is there in others."""
    content = bytearray(file.read_bytes())
    start = content.find(b"text 5 12") if file.suffix == ".parquet" else len(content) // 2
    assert start > 0
    if file.suffix == ".parquet":
        start = pq.read_metadata(file).row_group(1).column(0).data_page_offset
    content[start : start + 40] = b"\xff" * 40
    file.write_bytes(content)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl.gz"])
@pytest.mark.parametrize("output", ["o.parquet", "o.jsonl", "o.csv"])
def test_the_rest_is_scored_and_the_broken_are_named(tmp_path, suffix, output):
    files = write(tmp_path / "in", suffix)
    cut_short(files[0])
    damage_inside(files[5])
    found = score(tmp_path / "in", METRIC, MockJudge(), tmp_path / output)

    assert [told.split(",")[0] for told in found.unreadable] == [files[0].name, files[5].name]
    assert found.summaries[0].scored >= (FILES - 2) * ROWS
    assert {reason.code: reason.count for reason in found.summaries[0].reasons} == {ErrorCode.UNREADABLE_FILE: 2}
    if output != "o.parquet":
        return
    after = pq.read_table(tmp_path / output)
    of_file = after.column("file").to_pylist()
    for number, file in enumerate(files):
        if number not in (0, 5):
            own = [row for row, name in zip(after.to_pylist(), of_file, strict=True) if name == file.name]
            assert [row["id"] for row in own] == [row["id"] for row in rows_of(number)]
            assert [row["n"] for row in own] == list(range(ROWS))
    if suffix == ".parquet":
        assert after.schema.field("n").type == pa.int8()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl.gz"])
@pytest.mark.parametrize(("window", "count"), [(None, 3), (25, 3), (None, FILES)])
@pytest.mark.parametrize("output", ["jsonl", "parquet"])
def test_shares_of_them_are_the_single_run(tmp_path, suffix, window, count, output):
    """Of twelve shares one has nothing but a file that cannot be read."""
    files = write(tmp_path / "in", suffix)
    cut_short(files[0])
    damage_inside(files[5])
    score(tmp_path / "in", METRIC, MockJudge(), tmp_path / f"single.{output}", window=window)
    for number in range(1, count + 1):
        score(tmp_path / "in", METRIC, MockJudge(), tmp_path / "shares/", window=window, shard=f"{number}/{count}")
    merged = merge_shards([tmp_path / "shares"], tmp_path / f"merged.{output}")
    assert len(merged.unreadable) == 2
    assert (tmp_path / f"merged.{output}").read_bytes() == (tmp_path / f"single.{output}").read_bytes()


def test_a_disk_that_fails_ends_the_run(tmp_path, monkeypatch):
    """The next try may read the file: no row without a score stands for it."""
    write(tmp_path / "in", ".jsonl.gz")

    def failing(path, encoding):
        if path.name.startswith("05"):
            raise OSError(errno.EIO, "Input/output error")
        yield from reader(path, encoding)

    reader = rows_module.FORMATS[".jsonl"]
    monkeypatch.setitem(rows_module.FORMATS, ".jsonl", failing)
    with pytest.raises(ReadError, match="Input/output error"):
        score(tmp_path / "in", METRIC, MockJudge(), tmp_path / "o.jsonl")
    monkeypatch.undo()
    assert score(tmp_path / "in", METRIC, MockJudge(), tmp_path / "o.jsonl").summaries[0].scored == FILES * ROWS


def test_a_single_file_that_cannot_be_read_is_refused(tmp_path):
    (file,) = write(tmp_path / "in", ".jsonl.gz")[:1]
    cut_short(file)
    with pytest.raises(DataError, match="cannot read"):
        score(file, METRIC, MockJudge(), tmp_path / "o.jsonl")


def test_files_of_which_none_can_be_read_are_refused(tmp_path):
    for file in write(tmp_path / "in", ".parquet"):
        cut_short(file)
    with pytest.raises(DataError, match="none can be read"):
        score(tmp_path / "in", METRIC, MockJudge(), tmp_path / "o.jsonl")


def test_a_link_that_leads_nowhere_is_not_left_out_in_silence(tmp_path):
    write(tmp_path / "in", ".parquet")
    os.symlink("gone.parquet", tmp_path / "in" / "link.parquet")
    with pytest.raises(DataError, match=r"link\.parquet"):
        score(tmp_path / "in", METRIC, MockJudge(), tmp_path / "o.jsonl")
