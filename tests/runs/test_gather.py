"""Rows of one document brought into one block before they are scored, with the workers in this process."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
from parts_kit import Workers, carry_out, rows_of
from run_kit import METRICS, read, write_input

from geval_local.errors import ConfigurationError, DataError, JudgeError, OutputError
from geval_local.io.parts import PART_KEY
from geval_local.judge.judge import Judge
from geval_local.runs.run_file import score_file

pa = pytest.importorskip("pyarrow", reason="parts are Parquet files")
pq = pytest.importorskip("pyarrow.parquet", reason="parts are Parquet files")

ROWS = 60
DOCUMENTS = 7


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    return Workers(monkeypatch)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Candidates of one document lie as far apart as they can; one line is broken."""
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    rows = read(write_input(tmp_path / "in.jsonl", ROWS))
    for row in rows:
        number = row["id"] % DOCUMENTS
        row |= {"doc_id": f"d{number}", "source": f"Tale {number} of a town by the river. " * 9}
    lines = [json.dumps(row) for row in rows]
    lines[20] = "{broken"
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "in.jsonl"


def documents_by_part(directory: Path) -> list[set[str]]:
    parts = (pq.read_table(part).to_pylist() for part in directory.glob("part-*.parquet"))
    return [{row["doc_id"] for row in rows if row.get("doc_id")} for rows in parts]


def test_rows_of_a_document_meet_in_one_block(file, tmp_path, workers):
    gathered = carry_out(tmp_path / "gathered", [file], gather_by="doc_id")
    apart = carry_out(tmp_path / "apart", [file], group_by="doc_id")
    found, expected = (
        {row.get("id"): {name: value for name, value in row.items() if value is not None} for row in rows_of(place)}
        for place in (tmp_path / "gathered", tmp_path / "apart")
    )
    assert len(found) == ROWS
    assert gathered.totals.rows == apart.totals.rows == ROWS
    assert found == expected  # figures, columns and errors, the broken row's with its own number
    assert found[None]["geval"][METRICS[0].name]["error"].startswith("in.jsonl, row 21: not valid JSON")
    parts = documents_by_part(tmp_path / "gathered")
    assert sum(map(len, parts)) == DOCUMENTS
    assert sum(map(len, documents_by_part(tmp_path / "apart"))) > DOCUMENTS
    assert not (tmp_path / "gathered" / "_gathered").exists()


@pytest.mark.slow
def test_a_source_is_computed_once_instead_of_once_per_block(file, tmp_path, workers):
    judge = Judge.load("nano")
    gathered, apart = (
        carry_out(tmp_path / name, [file], lambda record: judge, judge="nano", metrics=METRICS[:1], gather_by=field)
        for name, field in (("gathered", "doc_id"), ("apart", None))
    )
    (prompt, planned), (same_prompt, planned_apart) = gathered.totals.tokens[0], apart.totals.tokens[0]
    assert prompt == same_prompt
    assert planned < 0.7 * planned_apart


def test_the_closing_line_says_what_gathering_would_save(file, tmp_path, workers):
    apart, gathered = (
        carry_out(tmp_path / name, [file], group_by="doc_id", gather_by=field).summaries[0].grouping
        for name, field in (("apart", None), ("gathered", "doc_id"))
    )
    pieces = sum(map(len, documents_by_part(tmp_path / "apart")))
    assert f"about {DOCUMENTS} documents are in {pieces} pieces" in apart
    assert f"`gather_by=doc_id` would bring {pieces - DOCUMENTS} of them together" in apart
    assert "pieces" not in gathered


def test_documents_keep_the_order_of_the_input_within_a_block(file, tmp_path, workers):
    carry_out(tmp_path / "run", [file], gather_by="doc_id", rows=ROWS)
    ids = [row["id"] for row in rows_of(tmp_path / "run") if row.get("id") is not None]
    documents = [number % DOCUMENTS for number in ids]
    assert list(dict.fromkeys(documents)) == list(range(DOCUMENTS))
    assert documents == sorted(documents)
    assert all(one < other for one, other in itertools.pairwise(ids) if one % DOCUMENTS == other % DOCUMENTS)


def test_rows_are_gathered_by_a_column_that_is_not_kept(file, tmp_path, workers):
    rows = [row | {"other": row["id"] // 4} for row in map(json.loads, file.read_text().splitlines()[:20])]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    carry_out(tmp_path / "run", [tmp_path / "in.parquet"], columns=["id"], group_by="other", gather_by="doc_id")
    documents = [row["id"] % DOCUMENTS for row in rows_of(tmp_path / "run")]
    assert len(list(itertools.groupby(documents))) == DOCUMENTS


def test_a_run_goes_on_with_and_without_its_buckets(file, tmp_path, workers):
    directory = tmp_path / "run"
    whole = carry_out(directory, [file], gather_by="doc_id")
    parts = sorted(directory.glob("part-*.parquet"))
    before = {part.name: part.read_bytes() for part in parts}
    workers.scored.clear()
    workers.gathered = 0
    again = carry_out(directory, [file], gather_by="doc_id")
    assert (workers.scored, workers.gathered) == ([], 0)
    assert [one.mean for one in again.summaries] == pytest.approx([one.mean for one in whole.summaries])
    parts[1].unlink()
    (directory / "mine.txt").write_text("mine")
    again = carry_out(directory, [file], gather_by="doc_id")
    assert (workers.scored, workers.gathered) == ([parts[1].name], 1)
    assert again.totals.rows == ROWS
    assert {part.name: part.read_bytes() for part in parts} == before
    assert (directory / "mine.txt").read_text() == "mine"


def test_another_field_or_input_is_refused(file, tmp_path, workers):
    carry_out(tmp_path / "run", [file], gather_by="doc_id")
    with pytest.raises(OutputError, match="`gather_by` was doc_id, is None"):
        carry_out(tmp_path / "run", [file], group_by="doc_id")
    with file.open("a") as more:
        more.write(json.dumps({"id": 99, "doc_id": "d1", "source": "A tale.", "output": "It ends."}) + "\n")
    with pytest.raises(OutputError, match="the input has another content"):
        carry_out(tmp_path / "run", [file], gather_by="doc_id")
    assert carry_out(tmp_path / "run", [file], gather_by="doc_id", overwrite=True).totals.rows == ROWS + 1
    assert sum(map(len, documents_by_part(tmp_path / "run"))) == DOCUMENTS


def test_a_field_that_no_row_has_is_refused_before_anything_is_loaded(file, tmp_path, workers):
    with pytest.raises(DataError, match="the field 'nothing' to gather by is missing"):
        carry_out(tmp_path / "run", [file], gather_by="nothing")
    assert workers.connections == 0


def test_gathering_is_for_distributed_runs(file):
    with pytest.raises(ConfigurationError, match="`gather_by` is for the workers of Ray"):
        score_file(file, METRICS[0], "nano", gather_by="doc_id")


def test_gathered_rows_wait_for_their_scores(file, tmp_path, workers):
    directory = tmp_path / "run"
    workers.deadly = {"part-000000-000003.parquet"}
    with pytest.raises(JudgeError, match="1 of 4 blocks could not be scored"):
        carry_out(directory, [file], gather_by="doc_id")
    assert len(workers.scored) == 3  # one bucket has no document
    workers.deadly.clear()
    workers.scored.clear()
    assert carry_out(directory, [file], gather_by="doc_id").totals.rows == ROWS
    assert (workers.scored, workers.gathered) == (["part-000000-000003.parquet"], 1)
    whole = carry_out(tmp_path / "whole", [file], gather_by="doc_id")
    assert whole.totals.rows == ROWS
    assert rows_of(directory) == rows_of(tmp_path / "whole")


def test_gathered_rows_without_a_score_do_not_stay(file, tmp_path, workers):
    def load(record):
        assert list((tmp_path / "run").glob("part-*.parquet"))
        raise JudgeError("no such judge here")

    with pytest.raises(JudgeError, match="no such judge here"):
        carry_out(tmp_path / "run", [file], load, gather_by="doc_id")
    assert not (tmp_path / "run").exists()


def test_files_of_the_user_among_gathered_rows_stay(file, tmp_path, workers):
    directory = tmp_path / "run"
    carry_out(directory, [file], gather_by="doc_id")
    (lost, *_) = sorted(directory.glob("part-*.parquet"))
    lost.unlink()
    for content in (b"mine", pq_bytes()):
        lost.write_bytes(content)
        with pytest.raises(OutputError, match=r"is damaged, cut off, or no part|belongs to another run"):
            carry_out(directory, [file], gather_by="doc_id")
        assert lost.read_bytes() == content
    lost.unlink()
    (tmp_path / "elsewhere").mkdir()
    lost.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is damaged, cut off, or no part"):
        carry_out(directory, [file], gather_by="doc_id")
    assert lost.is_symlink()
    lost.unlink()
    (directory / "_gathered").mkdir()
    (directory / "_gathered" / lost.name).write_bytes(b"mine")
    assert carry_out(directory, [file], gather_by="doc_id").totals.rows == ROWS
    assert (directory / "_gathered" / lost.name).read_bytes() == b"mine"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def pq_bytes() -> bytes:
    """Give a Parquet file that says that it belongs to another run."""
    content = io.BytesIO()
    about = {PART_KEY: json.dumps({"run": "another"})}
    pq.write_table(pa.table({"row": ["[]"]}).replace_schema_metadata(about), content)
    return content.getvalue()
