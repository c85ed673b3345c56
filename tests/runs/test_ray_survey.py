"""Scoring begins while files are still surveyed, and the parts are those of a survey that came first."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest
from parts_kit import Workers, carry_out, directory_of, rows_of
from run_kit import METRICS, kills_itself, read, write_input

from geval_local.errors import Interrupted, JudgeError, OutputError
from geval_local.io.places import Place
from geval_local.ray import driver
from geval_local.ray.blocks import block_rows, find_files
from geval_local.ray.merge import merge_parts
from geval_local.ray.parts_directory import write_survey
from geval_local.ray.survey import Cut, survey
from geval_local.ray.worker import BlockScorer
from geval_local.runs.manifest import read_manifest

pa = pytest.importorskip("pyarrow", reason="parts are Parquet files")
pq = pytest.importorskip("pyarrow.parquet")

FILES = 40


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workers:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return Workers(monkeypatch)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """Forty files of three rows."""
    rows = read(write_input(tmp_path / "whole.jsonl", 3 * FILES))
    put(tmp_path / "in", [rows[first : first + 3] for first in range(0, len(rows), 3)])
    return tmp_path / "in"


def put(directory: Path, files: list[list[dict]]) -> None:
    directory.mkdir()
    for number, rows in enumerate(files):
        (directory / f"{number:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def tables(directory: Path) -> list:
    """All parts as tables, without what their footers say of the run."""
    return [pq.read_table(path).replace_schema_metadata() for path in sorted(directory.glob("part-*"))]


def during(monkeypatch: pytest.MonkeyPatch, look) -> None:
    """Call `look` with each surveyed block before it reaches a worker."""
    survey_files = driver.survey_files

    def watched(files, cut):
        for block in survey_files(files, cut):
            look(block)
            yield block

    monkeypatch.setattr(driver, "survey_files", watched)


def test_the_first_part_is_there_before_the_last_file_is_surveyed(given, tmp_path, workers, monkeypatch):
    parts_at: dict[int, int] = {}
    during(monkeypatch, lambda block: parts_at.update({len(workers.surveyed): directory_of(tmp_path / "run")}))
    run = carry_out(tmp_path / "run", [given])
    assert parts_at[1] == 0
    assert parts_at[2] == 1
    assert parts_at[FILES] == FILES - 1
    assert run.totals.rows == 3 * FILES
    merge_parts(tmp_path / "run", tmp_path / "merged.jsonl")
    assert [row["id"] for row in read(tmp_path / "merged.jsonl")] == list(range(3 * FILES))


def test_the_blocks_of_one_large_file_are_ready_before_its_end(tmp_path):
    for name in ("a.jsonl", "a.parquet"):
        rows = [{"key": number, "text": f"row {number}"} for number in range(1000)]
        if name.endswith("parquet"):
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / name, row_group_size=50)
        else:
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (file,) = find_files([str(tmp_path / name)])
        blocks = survey([file], Cut(10, 1 << 60))
        first = next(blocks)
        assert (first.first, first.rows, first.sha256) == (0, 10, "")
        with (tmp_path / name).open("r+b") as content:  # what comes later does not matter to it
            content.seek(file.bytes // 2)
            content.write(b"x" * 40)
        os.utime(tmp_path / name, ns=(file.changed, file.changed))
        (other,) = find_files([str(tmp_path / name)])
        assert next(survey([other], Cut(10, 1 << 60))).identity == first.identity
        assert [row.fields["key"] for row in block_rows(first)] == list(range(10))


def test_blocks_with_a_repeated_id_wait_for_the_end_of_their_file(tmp_path):
    """Whether ids that occur again name rows or documents depends on all of them."""
    ids = [*range(30), 3, *range(31, 60)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": one}) + "\n" for one in ids))
    (file,) = find_files([str(path)])
    blocks = list(survey([file], Cut(10, 1 << 60)))
    assert [block.first for block in blocks] == [0, 10, 20, 40, 30, 50]
    assert {block.part: list(block.repeated) for block in blocks if block.repeated} == {
        "part-000000-000003.parquet": [(31, 4)]
    }
    before = {block.first: block.identity for block in blocks}
    path.write_text("".join(json.dumps({"id": one % 30}) + "\n" for one in ids))  # now they name documents
    (file,) = find_files([str(path)])
    after = list(survey([file], Cut(10, 1 << 60)))
    assert [list(block.repeated) for block in after] == [[]] * 6
    assert {block.first for block in after if block.identity == before[block.first]} == {0, 10, 20}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("at", [2, 17, FILES - 1])
def test_a_driver_that_is_killed_during_the_survey_goes_on(given, tmp_path, workers, monkeypatch, at):
    carry_out(tmp_path / "whole", [given])

    def killed() -> None:
        with monkeypatch.context() as patch:
            during(patch, lambda block: os.kill(os.getpid(), signal.SIGKILL) if directory_of(run) == at else None)
            carry_out(run, [given])

    run = tmp_path / "run"
    assert kills_itself(killed)
    before = {path.name: path.stat().st_mtime_ns for path in run.glob("part-*")}
    assert len(before) == at
    carry_out(run, [given])
    assert before.items() <= {path.name: path.stat().st_mtime_ns for path in run.glob("part-*")}.items()
    assert [one.equals(other) for one, other in zip(tables(run), tables(tmp_path / "whole"), strict=True)] == [
        True
    ] * FILES
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("run", "whole")]
    assert manifests[0]["input"] == manifests[1]["input"]
    assert manifests[0]["columns"] == manifests[1]["columns"]


def test_files_that_an_interrupted_survey_did_not_reach_may_change(given, tmp_path, workers):
    with pytest.raises(Interrupted):
        carry_out(tmp_path / "run", [given], stop_after=5)
    (given / "00.jsonl").write_text((given / "00.jsonl").read_text() + '{"id": 999, "source": "S.", "output": "O."}\n')
    assert carry_out(tmp_path / "run", [given]).totals.rows == 3 * FILES + 1
    (given / "39.jsonl").write_text((given / "39.jsonl").read_text() + '{"id": 998, "source": "S.", "output": "O."}\n')
    with pytest.raises(OutputError, match=r"the input has another content: .*39\.jsonl"):
        carry_out(tmp_path / "run", [given])


def test_files_that_cannot_be_read_are_named_after_the_others_are_scored(given, tmp_path, workers, monkeypatch):
    monkeypatch.setattr("geval_local.files.MOST_IN_A_LINE", 2000)
    (given / "03.jsonl").write_text("")
    (given / "20.jsonl").write_text("x" * 5_000)
    with pytest.raises(JudgeError, match=rf"2 of {FILES} blocks could not be scored") as caught:
        carry_out(tmp_path / "run", [given])
    assert f"{given / '03.jsonl'} holds no rows" in caught.value.message
    assert f"{given / '20.jsonl'}, line 1 is longer than" in caught.value.message
    assert directory_of(tmp_path / "run") == FILES - 2
    for number in (3, 20):
        (given / f"{number:02}.jsonl").write_text('{"id": -1, "source": "A tale.", "output": "It ends."}\n')
    workers.scored.clear()
    assert carry_out(tmp_path / "run", [given]).totals.rows == 3 * (FILES - 2) + 2
    assert workers.scored == ["part-000020-000000.parquet", "part-000003-000000.parquet"]


def test_parts_of_a_file_whose_end_cannot_be_read_do_not_stay(tmp_path, workers, monkeypatch):
    monkeypatch.setattr("geval_local.files.MOST_IN_A_LINE", 2000)
    rows = [json.dumps(row) + "\n" for row in read(write_input(tmp_path / "rows.jsonl", 1010))]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(rows) + "x" * 5_000)
    with pytest.raises(JudgeError, match=r"1 of 1 blocks could not be scored"):
        carry_out(tmp_path / "run", [file], rows=100)
    assert directory_of(tmp_path / "run") == 0
    file.write_text("".join(rows))
    assert carry_out(tmp_path / "run", [file], rows=100).totals.rows == 1010


def test_a_long_survey_is_not_repeated_when_a_run_goes_on(tmp_path, workers):
    file = write_input(tmp_path / "in.jsonl", 60)
    with pytest.raises(Interrupted):
        carry_out(tmp_path / "run", [file], stop_after=2)
    manifest, place = read_manifest(tmp_path / "run"), Place(str(tmp_path / "run"))
    write_survey(place, list(survey(find_files([str(file)]), Cut(12, 1 << 60))), manifest)
    assert len(list((tmp_path / "run").glob("_part-000000.survey.*"))) == 1
    workers.surveyed.clear()
    workers.scored.clear()
    assert carry_out(tmp_path / "run", [file]).totals.rows == 60
    assert (workers.surveyed, len(workers.scored)) == ([], 3)
    assert not list((tmp_path / "run").glob("_part*"))


VALUES = [
    lambda rng: rng.randint(0, 9),
    lambda rng: rng.random(),
    lambda rng: None,
    lambda rng: 2**53 + rng.randint(1, 9),
    lambda rng: f"text {rng.randint(0, 9)}",
    lambda rng: rng.random() < 0.5,
    lambda rng: {"a": rng.randint(0, 9)},
    lambda rng: {"b": [rng.random()]},
    lambda rng: [rng.randint(0, 9)],
    lambda rng: [],
]


def random_files(rng: random.Random) -> list[list[dict]]:
    """Files whose columns, their order and their types differ between files, and now and then within one."""
    kinds = {name: rng.choice(VALUES) for name in "pqrs"}
    files = []
    for number in range(6):
        names = rng.sample("pqrs", rng.randint(1, 4))
        if rng.random() < 0.4:
            kinds[rng.choice("pqrs")] = rng.choice(VALUES)
        files.append([])
        for row in range(rng.randint(1, 20)):
            own = {name: kinds[name](rng) if rng.random() < 0.9 else rng.choice(VALUES)(rng) for name in names}
            files[-1].append({"id": 100 * number + row, "source": "A tale.", "output": f"It ends at {row}."} | own)
    return files


@pytest.mark.parametrize("seed", range(12))
def test_parts_have_the_types_of_a_survey_that_came_first(tmp_path, workers, seed):
    files = random_files(random.Random(seed))
    put(tmp_path / "in", files)
    with (tmp_path / "in" / "03.jsonl").open("a") as file:
        file.write('{broken\n{"id": 300, "source": "A tale.", "output": "An id that is there."}\n')
    found = carry_out(tmp_path / "found", [tmp_path / "in"], metrics=METRICS[:1], rows=4)
    expected = carry_out(tmp_path / "expected", [tmp_path / "in"], metrics=METRICS[:1], rows=4, limit=10_000)
    pairs = list(zip(tables(tmp_path / "found"), tables(tmp_path / "expected"), strict=True))
    for one, other in pairs:
        assert one.schema.equals(other.schema, check_metadata=True)
        assert one.equals(other)
    names = set.intersection(*({*table.column_names} for table, _ in pairs))  # that of a broken row has two more
    assert (
        len({str(table.select([name for name in table.column_names if name in names]).schema) for table, _ in pairs})
        == 1
    )
    assert found.manifest.columns == expected.manifest.columns
    assert found.manifest.input.sha256 == expected.manifest.input.sha256
    workers.scored.clear()
    assert carry_out(tmp_path / "found", [tmp_path / "in"], metrics=METRICS[:1], rows=4).totals.rows == sum(
        map(len, files), 2
    )
    assert workers.scored == []


def test_parquet_files_whose_types_differ_give_parts_of_one_schema(tmp_path, workers):
    (tmp_path / "in").mkdir()
    texts = {"source": ["A tale."] * 3, "output": ["It ends."] * 3}
    kinds = [pa.int32(), pa.float64(), pa.int8(), pa.int64()]
    for number, kind in enumerate(kinds):
        table = pa.table({"id": pa.array(range(3), kind), **texts}).replace_schema_metadata({"pandas": str(number)})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
    carry_out(tmp_path / "found", [tmp_path / "in"], rows=2)
    carry_out(tmp_path / "expected", [tmp_path / "in"], rows=2, limit=10_000)
    for one, other in zip(*(sorted((tmp_path / name).glob("part-*")) for name in ("found", "expected")), strict=True):
        schemas = [pq.read_schema(path) for path in (one, other)]
        assert schemas[0].equals(schemas[1])
        assert schemas[0].field("id").type == pa.float64()
        assert [schema.metadata[b"pandas"] for schema in schemas] == [b"0", b"0"]
        assert pq.read_table(one).equals(pq.read_table(other))
    assert rows_of(tmp_path / "found") == rows_of(tmp_path / "expected")


def test_parquet_files_of_one_type_give_parts_that_are_written_once(tmp_path, workers, monkeypatch):
    """Their types are not widened, and a description that each file has of its own rows does not matter."""
    (tmp_path / "in").mkdir()
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("source", "output")])
    for number in range(4):
        for name, metadata in (("same", {"a": "b"}), ("pandas", {"rows": str(number)})):
            (tmp_path / name).mkdir(exist_ok=True)
            table = pa.table([["A tale."] * 3, ["It ends."] * 3], schema=schema.with_metadata(metadata))
            pq.write_table(table, tmp_path / name / f"{number}.parquet")
    monkeypatch.setattr(BlockScorer, "_written_again", None)
    for name, is_nullable in (("same", False), ("pandas", True)):
        carry_out(tmp_path / f"{name}-run", [tmp_path / name], rows=2)
        carry_out(tmp_path / f"{name}-expected", [tmp_path / name], rows=2, limit=1000)
        found, expected = (
            [pq.read_schema(path) for path in sorted((tmp_path / f"{name}-{kind}").glob("part-*"))]
            for kind in ("run", "expected")
        )
        for one, other in zip(found, expected, strict=True):
            assert one.equals(other)
            assert one.field("source").nullable == is_nullable


def test_parts_are_written_again_only_if_their_types_are_not_those_of_the_whole_input(tmp_path, workers, monkeypatch):
    rows = read(write_input(tmp_path / "rows.jsonl", 40))
    whole, half = [row | {"rating": row["id"]} for row in rows[:20]], [row | {"rating": 1.5} for row in rows[20:]]
    put(tmp_path / "alike", [whole[:10], whole[10:]])
    put(tmp_path / "unlike", [whole[:10], half, whole[10:]])
    again = []
    write_again = BlockScorer._written_again

    def noted(self, block, *given):
        again.append(block.part)
        return write_again(self, block, *given)

    monkeypatch.setattr(BlockScorer, "_written_again", noted)
    carry_out(tmp_path / "run", [tmp_path / "alike"], rows=5, threshold=2.0)
    assert again == []
    carry_out(tmp_path / "other", [tmp_path / "unlike"], rows=5, threshold=2.0)
    assert sorted(again) == ["part-000002-000000.parquet", "part-000002-000001.parquet"], "scored before the others"
    carry_out(tmp_path / "expected", [tmp_path / "unlike"], rows=5, threshold=2.0, limit=1000)
    assert tables(tmp_path / "other") == tables(tmp_path / "expected")
