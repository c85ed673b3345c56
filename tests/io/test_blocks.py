"""Files by path or address, cut into blocks: every row once, in order, wherever the cuts are."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from parts_kit import Workers, carry_out, rows_of

from geval_local.errors import ConfigurationError, DataError, JudgeError, OutputError
from geval_local.io.places import Place
from geval_local.io.rows import read_rows
from geval_local.ray import driver
from geval_local.ray.block_list import from_lines, to_lines
from geval_local.ray.blocks import block_rows, find_files
from geval_local.ray.survey import MANY_FILES, MOST_PIECES, Cut
from geval_local.ray.survey import survey as survey_bundle

pa = pytest.importorskip("pyarrow", reason="places are those of pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = [{"id": number, "text": f"row {number} \u00e9 " * (number % 5)} for number in range(50)]


def survey(file, cut: Cut) -> list:
    return sorted(survey_bundle([file], cut), key=lambda block: block.part)


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
    assert from_lines(to_lines(blocks)) == blocks


def test_ids_that_are_there_twice_are_told_by_block(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": number % 6}) + "\n" for number in range(8)))
    (file,) = find_files([str(path)])
    blocks = survey(file, Cut(3, 1 << 60))
    assert [block.repeated for block in blocks] == [[], [], [(7, 1), (8, 2)]]
    ids = [*[0] * 10_010, *range(1, 5_001)]
    path.write_text("".join(json.dumps({"id": one}) + "\n" for one in ids))
    (file,) = find_files([str(path)])
    block = next(block for block in survey(file, Cut(3, 1 << 60)) if block.error)
    assert "10009 rows repeat the id of an earlier row, the first of them row 2" in block.error


def test_ids_that_name_documents_are_no_ids_of_rows_in_blocks(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": number % 6}) + "\n" for number in range(18)))
    (file,) = find_files([str(path)])
    assert [list(block.repeated) for block in survey(file, Cut(9, 1 << 60))] == [[], []]


def fifty_files(directory: Path) -> list[Path]:
    """Files of two rows, of which one has no footer, and one has damaged data pages."""
    directory.mkdir()
    paths = [directory / f"{number:02}.parquet" for number in range(50)]
    for number, path in enumerate(paths):
        texts = {"source": ["A tale."] * 2, "output": [f"It ends at {number}.{row} " * 40 for row in range(2)]}
        pq.write_table(pa.table({"id": [2 * number, 2 * number + 1], **texts}), path, compression="gzip")
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    column = pq.read_metadata(paths[17]).row_group(0).column(2)
    start = column.dictionary_page_offset or column.data_page_offset
    damaged = bytearray(paths[17].read_bytes())
    damaged[start + 30 : start + column.total_compressed_size] = bytes(column.total_compressed_size - 30)
    paths[17].write_bytes(damaged)
    return paths


def test_a_file_that_cannot_be_read_is_a_block_with_the_reason(tmp_path):
    paths = fifty_files(tmp_path / "in")
    found = [survey(file, Cut(100, 1 << 60)) for file in find_files([str(tmp_path / "in")])]
    failed = [block for blocks in found for block in blocks if block.error]
    assert [block.address for block in failed] == [str(paths[0])]
    assert failed[0].error.startswith(f"cannot read {paths[0]}: ")
    assert (failed[0].rows, failed[0].schema) == (0, "")
    together = [block for blocks in found for block in blocks]
    assert from_lines(to_lines(together)) == together
    assert sum(block.rows for blocks in found for block in blocks) == 98
    # The survey reads no data pages but those of ids: who scores the block finds the damage.
    unreadable = []
    for (block,) in found:
        try:
            rows = list(block_rows(block)) if not block.error else []
            assert len(rows) == block.rows
        except DataError as error:
            unreadable.append((block.address, str(error)))
    ((address, reason),) = unreadable
    assert address == str(paths[17])
    assert f"cannot read {paths[17]}" in reason


def test_other_files_are_scored_and_those_that_cannot_be_read_named_together(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    workers = Workers(monkeypatch)
    paths, run = fifty_files(tmp_path / "in"), tmp_path / "run"
    (tmp_path / "in" / "50.jsonl").write_text("")
    with pytest.raises(JudgeError, match="3 of 51 blocks could not be scored; the others are done") as caught:
        carry_out(run, [tmp_path / "in"])
    for path in (paths[0], paths[17], tmp_path / "in" / "50.jsonl"):
        assert str(path) in caught.value.message
    parts = {path.name: path.stat().st_mtime_ns for path in run.glob("part-*.parquet")}
    assert len(parts) == 48
    # One is put right, one removed, and one stays as it is.
    pq.write_table(pq.read_table(paths[1]), paths[0])
    paths[17].unlink()
    workers.surveyed.clear()
    workers.scored.clear()
    with pytest.raises(OutputError, match=r"the input has another content: .*17\.parquet \(missing\)"):
        carry_out(run, [tmp_path / "in"])


def test_a_run_goes_on_when_its_files_are_put_right_or_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    workers = Workers(monkeypatch)
    (tmp_path / "in").mkdir()
    good = {"source": ["A tale."] * 2, "output": ["It ends."] * 2}
    for name in "abcde":
        pq.write_table(pa.table(good), tmp_path / "in" / f"{name}.parquet")
    for name in "bd":
        (tmp_path / "in" / f"{name}.parquet").write_bytes(b"PAR1")
    with pytest.raises(JudgeError, match="2 of 5 blocks could not be scored"):
        carry_out(tmp_path / "run", [tmp_path / "in"])
    pq.write_table(pa.table(good), tmp_path / "in" / "d.parquet")
    (tmp_path / "in" / "b.parquet").unlink()
    workers.scored.clear()
    assert carry_out(tmp_path / "run", [tmp_path / "in"]).totals.rows == 8
    assert workers.scored == ["part-000003-000000.parquet"], "other parts keep their names, and are not scored again"
    workers.scored.clear()
    assert carry_out(tmp_path / "run", [tmp_path / "in"]).totals.rows == 8
    assert workers.scored == []


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_many_small_files_are_joined_and_one_that_fails_fails_alone(tmp_path, monkeypatch, suffix):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    workers = Workers(monkeypatch)
    (tmp_path / "in").mkdir()
    rows = [{"id": row, "source": "A tale.", "output": f"It ends at {row}."} for row in range(2 * MANY_FILES + 20)]

    def put(number: int, records: list[dict]) -> Path:
        path = tmp_path / "in" / f"{number:04}.{suffix}"
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(records), path)
        else:
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    paths = [put(number, rows[2 * number : 2 * number + 2]) for number in range(MANY_FILES + 10)]
    carry_out(tmp_path / "run", [tmp_path / "in"], rows=None)
    parts = sorted(path.name for path in (tmp_path / "run").glob("part-*"))
    assert len(parts) < 8
    assert [(row["id"], row["output"]) for row in rows_of(tmp_path / "run")] == [
        (row["id"], row["output"]) for row in rows
    ]
    workers.scored.clear()
    assert carry_out(tmp_path / "run", [tmp_path / "in"], rows=None).totals.rows == len(rows)
    assert workers.scored == []

    survey_files = driver.survey_files

    def damaging(files, cut):
        blocks = list(survey_files(files, cut))
        state = paths[7].stat()
        paths[7].write_bytes(b"x" * state.st_size)  # as a disk does it
        os.utime(paths[7], ns=(state.st_atime_ns, state.st_mtime_ns))
        yield from blocks

    with monkeypatch.context() as patch:
        patch.setattr(driver, "survey_files", damaging)
        if suffix == "parquet":
            with pytest.raises(JudgeError, match=r"could not be scored.*\n.*0007\.parquet"):
                carry_out(tmp_path / "second", [tmp_path / "in"], rows=None)
            assert len(rows_of(tmp_path / "second")) == len(rows) - 2
            workers.scored.clear()
            with pytest.raises(JudgeError, match=r"1 of \d+ blocks could not be scored"):
                carry_out(tmp_path / "second", [tmp_path / "in"], rows=None)
            assert workers.scored == ["part-000007-000000.parquet"], "nothing else is tried again"
    put(7, rows[14:16])
    put(MANY_FILES + 10, [{"id": -1, "source": "A tale.", "output": "It begins."}])
    workers.scored.clear()
    again = carry_out(tmp_path / "run", [tmp_path / "in"], rows=None, overwrite=True)
    assert again.totals.rows == len(rows) + 1
    assert len(workers.scored) <= 2, "what is known and did not change stays"


def test_an_input_without_a_readable_file_begins_no_run(tmp_path, monkeypatch):
    Workers(monkeypatch)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"cannot read .*a\.parquet"):
        carry_out(tmp_path / "run", [tmp_path / "a.parquet"])
    assert not (tmp_path / "run").exists()


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
