"""Files by path or address, cut into blocks: every row once, in order, wherever the cuts are."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from geval_local.errors import ConfigurationError, DataError
from geval_local.io.places import Place
from geval_local.io.rows import read_rows
from geval_local.ray.blocks import MOST_PIECES, Cut, block_rows, find_files, from_lines, named, survey, to_lines

pa = pytest.importorskip("pyarrow", reason="places are those of pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = [{"id": number, "text": f"row {number} \u00e9 " * (number % 5)} for number in range(50)]


def write(path: Path) -> Path:
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=7)
    elif path.suffix == ".csv":
        path.write_text("id,text\n" + "".join(f'{row["id"]},"{row["text"]}\nnext"\n' for row in ROWS))
    elif path.name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress("\n\n".join(lines).encode()))
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    else:
        lines[7:7] = ["", "  ", "[broken", '"text"']
        path.write_text("\n".join(lines), encoding="utf-8-sig" if "bom" in path.name else "utf-8")
    return path


@pytest.mark.parametrize(
    "name", ["a.jsonl", "bom.ndjson", "a.jsonl.gz", "a.csv", "a.json", "a.parquet", "pretty.jsonl"]
)
@pytest.mark.parametrize("cut", [Cut(1, 1 << 60), Cut(9, 1 << 60), Cut(1000, 200), Cut(1000, 1 << 60)])
def test_blocks_have_the_rows_of_the_file(tmp_path, name, cut):
    path = write(tmp_path / name)
    if name.startswith("pretty"):
        path.write_text("\n".join(json.dumps(row, indent=1) for row in ROWS))
    (file,) = find_files([str(path)])
    blocks = survey(file, cut)
    expected = list(read_rows(path))
    rows = [row for block in blocks for row in block_rows(block)]
    assert rows == expected
    assert [len(list(block_rows(block))) for block in blocks] == [block.rows for block in blocks]
    assert max(block.rows for block in blocks) <= max(cut.rows, -(-len(expected) // MOST_PIECES))
    assert list(block_rows(replace(file, rows=3))) == expected[:3]
    assert from_lines(to_lines(named([blocks]))) == named([blocks])


def test_ids_that_are_there_twice_are_told_by_block(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": number % 6}) + "\n" for number in range(8)))
    (file,) = find_files([str(path)])
    blocks = survey(file, Cut(3, 1 << 60))
    assert [block.repeated for block in blocks] == [[], [], [(7, 1), (8, 2)]]
    ids = [*[0] * 10_010, *range(1, 5_001)]
    path.write_text("".join(json.dumps({"id": one}) + "\n" for one in ids))
    (file,) = find_files([str(path)])
    with pytest.raises(DataError, match="10009 rows repeat the id of an earlier row, the first of them row 2"):
        survey(file, Cut(3, 1 << 60))


def test_ids_that_name_documents_are_no_ids_of_rows_in_blocks(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": number % 6}) + "\n" for number in range(18)))
    (file,) = find_files([str(path)])
    assert [list(block.repeated) for block in survey(file, Cut(9, 1 << 60))] == [[], []]


def test_files_are_found_by_directory_pattern_and_address(tmp_path):
    for name in ("b/2.jsonl", "b/1.jsonl", "a.csv", "_hidden/x.jsonl", ".x.jsonl", "notes.txt", "a.csv.meta.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    everything = ["a.csv", "b/1.jsonl", "b/2.jsonl"]
    for given in (str(tmp_path), f"file://{tmp_path}"):
        assert [file.address.removeprefix(f"{given}/") for file in find_files([given])] == everything
    for pattern, names in (("*/*.jsonl", everything[1:]), ("**/*.jsonl", everything[1:]), ("b/[1]*", everything[1:2])):
        found = [Path(file.address) for file in find_files([f"{tmp_path}/{pattern}"])]
        assert [path.relative_to(tmp_path).as_posix() for path in found] == names
    with pytest.raises(ConfigurationError, match="cannot open nowhere://x"):
        find_files(["nowhere://x"])


def test_a_file_system_without_rename_or_disk_is_written_and_read():
    fsspec = pytest.importorskip("fsspec")
    place = Place("memory://run/part.parquet")
    try:
        assert place.entry() is None
        assert place.local is None
        place.write(b"one", mark="run")
        assert place.read() == b"one"
        place.write(b"three", mark="run")
        assert place.read(1, 3) == b"hr"
        assert [entry.place.address for entry in Place("memory://run").entries()] == [place.address]
        with place.as_local() as path:
            assert path.read_bytes() == b"three"
        Place("memory://run/in.jsonl").write(b'{"id": 1}\n{"id": 2}\n', mark="run")
        (file,) = find_files(["memory://run/*.jsonl"])
        blocks = survey(file, Cut(1, 1 << 60))
        assert [row.fields["id"] for block in blocks for row in block_rows(block)] == [1, 2]
        place.delete()
        assert place.entry() is None
    finally:
        fsspec.filesystem("memory").store.clear()
