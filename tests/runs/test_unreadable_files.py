"""Several files of which some cannot be read, or not to their end: what can be read is scored, the others are named."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from geval_local import Metric, RunEvents, score_file
from geval_local.errors import DataError, ErrorCode, ReadError
from geval_local.io import rows as rows_module
from geval_local.io.shares import EmptyShareError
from geval_local.runs.merging import merge_shares
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
    merged = merge_shares([tmp_path / "shares"], tmp_path / f"merged.{output}")
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


def varied(count: int) -> bytes:
    """Rows that do not shrink to one block."""
    draw = random.Random(1)
    texts = [" ".join(f"{draw.random():.9f}" for _ in range(200)) for _ in range(count)]
    return "".join(json.dumps({"id": n, "output": text}) + "\n" for n, text in enumerate(texts)).encode()


@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize("damage", ["cut", "bytes behind", "zeros"])
def test_a_single_file_keeps_what_can_be_read(tmp_path, damage, shards):
    """As one of a directory does: a last row says why there is no more."""
    packed = gzip.compress(varied(300))
    file = tmp_path / ("in.jsonl" if damage == "zeros" else "in.jsonl.gz")
    content = {
        "cut": packed[: len(packed) * 9 // 10],
        "bytes behind": packed + b"rest",
        "zeros": varied(3) + b"\0" * 900,
    }
    file.write_bytes(content[damage])
    if shards is None:
        found = score(file, METRIC, MockJudge(), tmp_path / "o.jsonl")
    else:
        for number in range(1, shards + 1):
            with suppress(EmptyShareError):
                score(file, METRIC, MockJudge(), tmp_path / "shares/", shard=f"{number}/{shards}")
        found = merge_shares([tmp_path / "shares"], tmp_path / "o.jsonl")
    summary = found.summaries[0]
    assert summary.scored >= {"cut": 200, "bytes behind": 300, "zeros": 3}[damage]
    code = ErrorCode.INVALID_ROW if damage == "zeros" else ErrorCode.UNREADABLE_FILE
    assert {reason.code: reason.count for reason in summary.reasons} == {code: 1}
    assert len(found.unreadable) == (damage != "zeros")


def test_a_single_file_of_which_nothing_can_be_read_is_refused_without_a_way_to_go_on(tmp_path):
    (file,) = write(tmp_path / "in", ".jsonl.gz")[:1]
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot read") as caught:
        score(file, METRIC, MockJudge(), tmp_path / "o.jsonl")
    assert "resume" not in caught.value.hint


def test_the_way_to_go_on_is_told_where_it_can(tmp_path):
    """What was changed may be put back."""
    (file,) = write(tmp_path / "in", ".jsonl.gz")[:1]
    kept = file.read_bytes()

    class Changes(RunEvents):
        def on_progress(self, done):
            as_gzip(file, rows_of(3))

    with pytest.raises(DataError, match="was changed while it was scored") as caught:
        score(file, METRIC, MockJudge(), tmp_path / "run/", events=Changes(), window=5)
    assert "geval-local resume" in caught.value.hint
    assert kept != file.read_bytes()


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
