"""Distributed runs without a cluster: what the driver and a worker do, with the workers in this process."""

from __future__ import annotations

import csv
import gzip
import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from cli_run import run as run_command
from filelock import FileLock
from parts_kit import Workers, carry_out, directory_of, mock, rows_of
from run_kit import METRICS, execute, read, wanted, write_input

from geval_local import __version__
from geval_local.analysis.results import ScoredRun, read_results
from geval_local.engine.interface import Readout
from geval_local.errors import ConfigurationError, DataError, Interrupted, JudgeError, OutputError
from geval_local.io.parts import part_names
from geval_local.io.places import Place
from geval_local.metric import Metric
from geval_local.options import JudgeOptions
from geval_local.ray import connection, driver
from geval_local.ray.block_list import longest_first
from geval_local.ray.blocks import Block, widened
from geval_local.ray.cluster import WorkerShare, check_gpus, pool_of, share_out, survey_tasks
from geval_local.ray.connection import PRIVATE_NAMES, own_settings, remove_abandoned, watched_head
from geval_local.ray.job import Job, PartReport
from geval_local.ray.merge import merge_parts
from geval_local.ray.survey import choose_cut
from geval_local.ray.worker import BlockScorer
from geval_local.runs.manifest import JudgeRecord, definition, read_manifest
from geval_local.runs.own_files import hold
from geval_local.runs.settings import Settings
from geval_local.testing import MockEngine, MockJudge

pq = pytest.importorskip("pyarrow.parquet", reason="parts are Parquet files")

ROWS = 60


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return write_input(tmp_path / "in.jsonl", ROWS)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    return Workers(monkeypatch)


def whole(file: Path, directory: Path, **settings) -> Path:
    return execute(directory, wanted(file, **({"window": 12} | settings)), lambda: MockEngine(batch_tokens=6000))[0]


# --- out: parts, their order, one file of them ------------------------------------------------------------------------


def test_parts_are_merged_into_the_bytes_of_one_process(file, tmp_path, workers):
    carry_out(tmp_path / "run", [file])
    assert part_names(Place(str(tmp_path / "run"))) == [f"part-000000-00000{number}.parquet" for number in range(5)]
    expected = whole(file, tmp_path / "whole", formats=["jsonl", "csv", "parquet"])
    for suffix in ("jsonl", "csv", "parquet"):
        assert merge_parts(tmp_path / "run", tmp_path / f"merged.{suffix}") == ROWS
        found = tmp_path / f"merged.{suffix}"
        if suffix == "parquet":
            assert pq.read_table(found).equals(pq.read_table(expected.with_suffix(".parquet")))
        else:
            assert found.read_bytes() == expected.with_suffix(f".{suffix}").read_bytes()
    manifests = [read_manifest(tmp_path / name) for name in ("run", "whole")]
    assert manifests[0].judges == manifests[1].judges
    for key, counts in manifests[1].results.items():
        assert {name: manifests[0].results[key][name] for name in ("rows", "unscored", "prompt_tokens")} == {
            name: counts[name] for name in ("rows", "unscored", "prompt_tokens")
        }
    assert manifests[0].columns == {"id": "int64", "source": "string", "output": "string"}
    (reason,) = manifests[0].results[METRICS[0].name]["reasons"]
    assert (reason["reason"], reason["count"], reason["rows"]) == ("the field 'output' is empty", 4, [6, 23, 40, 57])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_blocks_of_any_file_are_the_windows_of_one_process(file, tmp_path, workers, suffix):
    import pyarrow as pa

    given, rows = tmp_path / f"in.{suffix}", read(file)
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), given, row_group_size=25)
    else:
        with given.open("w", newline="") as target:
            writer = csv.DictWriter(target, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    carry_out(tmp_path / "run", [given])
    assert merge_parts(tmp_path / "run", tmp_path / "merged.jsonl") == ROWS
    assert (tmp_path / "merged.jsonl").read_bytes() == whole(given, tmp_path / "whole").read_bytes()


def test_the_closing_figures_are_those_of_one_process(file, tmp_path, workers):
    from geval_local.runs.run_file import score_file

    rows = [row | {"doc_id": f"d{row['id'] // 4}"} for row in read(file)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spread = carry_out(tmp_path / "run", [file], threshold=3.0).summaries
    alone = score_file(file, METRICS, mock(JudgeRecord(name="mock", choice={})), threshold=3.0, window=12).summaries
    for one, other in zip(spread, alone, strict=True):
        for name in ("rows", "scored", "mean", "low", "high", "std", "label_mass", "label_mass_min", "passed_share"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9), name
        assert one.interval.units == other.interval.units == ROWS // 4
        assert one.reasons == other.reasons


def test_files_of_every_format_keep_order_and_reasons(file, tmp_path, workers):
    rows = read(file)
    inside = tmp_path / "in"
    (inside / "deep").mkdir(parents=True)
    with (inside / "a.csv").open("w", newline="") as target:
        writer = csv.DictWriter(target, ["id", "source", "output"])
        writer.writeheader()
        writer.writerows(rows[:20])
    import pyarrow as pa

    pq.write_table(pa.Table.from_pylist(rows[20:35]), inside / "b.parquet", row_group_size=6)
    with gzip.open(inside / "c.jsonl.gz", "wt") as target:
        target.write("\n".join(map(json.dumps, rows[35:50])))
    text = [json.dumps(row) for row in rows[50:]]
    text[3:3] = ["", "{broken", json.dumps(rows[50])]
    (inside / "deep" / "d.ndjson").write_text("\ufeff" + "\n".join(text), encoding="utf-8")
    (inside / "_ignored.jsonl").write_text("{}")
    (inside / "a.csv.meta.json").write_text("{}")
    run = carry_out(tmp_path / "run", [inside], rows=5)
    found = rows_of(tmp_path / "run")
    assert [str(row["id"]) for row in found] == [*map(str, range(53)), "None", "50", *map(str, range(53, ROWS))]
    errors = {place: row["geval"][METRICS[0].name]["error"] for place, row in enumerate(found)}
    broken = "not valid JSON: Expecting property name enclosed in double quotes at column 2"
    assert errors[53] == f"d.ndjson, row 5: {broken}"
    assert errors[54] == "d.ndjson, row 6: duplicate id 50, first seen in row 1; give every row its own id"
    empty = [place for place, text in errors.items() if text and "is empty" in text]
    assert [found[place]["output"] for place in empty] == [""] * 4
    assert run.totals.rows == ROWS + 2
    reasons = {reason.text: reason.rows for reason in run.summaries[0].reasons}
    assert reasons["the field 'output' is empty"] == ("a.csv:6", "b.parquet:3", "c.jsonl.gz:5", "d.ndjson:10")
    assert json.loads((tmp_path / "run" / "_blocks.jsonl").read_text().splitlines()[1])["bytes"] > 0


def test_columns_that_are_not_asked_for_are_neither_read_nor_kept(tmp_path, workers, file):
    import pyarrow as pa

    rows = [row | {"noise": "x" * 50, "rating": row["id"] % 5} for row in read(file)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    run = carry_out(tmp_path / "run", [tmp_path / "in.parquet"], columns=["rating", "score"])
    assert list(rows_of(tmp_path / "run")[0]) == ["rating", "geval"]
    assert run.manifest.columns == {"rating": "int64"}
    assert run.summaries[0].scored == ROWS - 4


@pytest.mark.slow
def test_report_compare_and_meta_eval_read_a_directory(file, tmp_path, workers):
    rows = [row | {"doc_id": row["id"] // 4, "rating": 1 + row["id"] % 5} for row in read(file)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("a", "b"):
        carry_out(tmp_path / name, [file])
    items = ScoredRun.of(tmp_path / "a").items(METRICS[0].name, human="rating", group_by="doc_id")
    assert len(items) == ROWS
    home, rated = tmp_path / "home", f"{METRICS[0].name}=rating"
    for arguments, expected in (
        (("report", tmp_path / "a", "-o", tmp_path / "a.html", "--rows", 10), ""),
        (("compare", tmp_path / "a", tmp_path / "b", "--human", rated), f"{ROWS} rows, by mock"),
        (("meta-eval", file, "-m", METRICS[0].name, "--human", "rating", "--results", tmp_path / "a"), "spearman"),
        (("merge", tmp_path / "a", "-o", tmp_path / "a.csv"), ""),
    ):
        done = run_command(*arguments, home=home)
        assert done.exit_code == 0, done.stderr
        assert expected in done.stdout
    assert f"Tables are of all {ROWS} items" in (tmp_path / "a.html").read_text(encoding="utf-8")
    records = read_results(tmp_path / "a").records
    assert not isinstance(records, tuple)  # read part by part, whenever they are asked for
    assert [record.columns["id"] for record in records] == [row["id"] for row in rows]
    assert list(records) == list(records)
    with (tmp_path / "a.csv").open(newline="") as merged:
        assert len(list(csv.reader(merged))) == ROWS + 1


# --- resume -----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_the_parts_that_are_there(file, tmp_path, workers):
    carry_out(tmp_path / "undisturbed", [file])
    everything = sorted(workers.scored)
    workers.scored.clear()
    directory = tmp_path / "pieces"
    with pytest.raises(Interrupted):
        carry_out(directory, [file], stop_after=2)
    there = {path: path.stat().st_mtime_ns for path in directory.glob("part-*")}
    assert len(there) == 2
    half = directory / f".part-000000-000000.parquet.1234.{read_manifest(directory).run}.tmp"
    half.write_bytes(b"half")
    surveyed = list(workers.surveyed)
    carry_out(directory, [file])
    assert {path: path.stat().st_mtime_ns for path in there} == there
    assert sorted(workers.scored) == everything
    assert workers.surveyed == [*surveyed, file.name]  # not all blocks of the file had been reported
    assert not half.exists()
    for name in ("undisturbed", "pieces"):
        merge_parts(tmp_path / name, tmp_path / f"{name}.jsonl")
    assert (tmp_path / "pieces.jsonl").read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
    connections = workers.connections
    carry_out(directory, [file])  # finished: nothing is begun for it
    assert (sorted(workers.scored), workers.connections) == (everything, connections)


def test_what_changed_is_refused_for_what_it_concerns(file, tmp_path, workers):
    directory, inside = tmp_path / "run", tmp_path / "in"
    inside.mkdir()
    text = file.read_text().splitlines(keepends=True)
    for number in range(3):
        (inside / f"{number}.jsonl").write_text("".join(text[number * 20 : number * 20 + 20]))
    carry_out(directory, [inside], rows=10)
    for changed, message in (
        ({"rows": 13}, "`window` was 10, is 13"),
        ({"threshold": 2.0}, "`threshold` was None, is 2.0"),
        ({"estimator": {"kind": "mode", "n": 20, "seed": 0}}, "`estimator` was"),
        ({"metrics": METRICS[:1]}, "metrics were"),
        ({"metrics": [METRICS[0].model_copy(update={"threshold": 2.0}), *METRICS[1:]]}, "the metrics' thresholds were"),
        ({"judge": "other"}, "judges were mock, are other"),
        ({"fields": {"output": "output"}}, "`fields` was"),
    ):
        with pytest.raises(OutputError, match=message):
            carry_out(directory, [inside], **({"rows": 10} | changed))
    with hold(directory), pytest.raises(OutputError, match="in use"):
        carry_out(directory, [inside], rows=10)
    before = {path.name: path.stat().st_mtime_ns for path in directory.glob("part-*")}
    (inside / "1.jsonl").touch()
    carry_out(directory, [inside], rows=10)
    assert {path.name: path.stat().st_mtime_ns for path in directory.glob("part-*")} == before
    (inside / "1.jsonl").write_text("".join(text[20:31]))
    with pytest.raises(OutputError, match=r"the input has another content: .*1\.jsonl") as caught:
        carry_out(directory, [inside], rows=10)
    assert "replaces the parts of what has changed" in str(caught.value.hint)
    workers.scored.clear()
    run = carry_out(directory, [inside], rows=10, overwrite=True)
    assert sorted(workers.scored) == ["part-000001-000001.parquet"] or sorted(workers.scored) == [
        "part-000001-000000.parquet",
        "part-000001-000001.parquet",
    ]
    assert run.totals.rows == 51
    assert [row["id"] for row in rows_of(directory)] == [*range(31), *range(40, 60)]
    (inside / "2.jsonl").write_text("".join(text[:5]))
    with pytest.raises(OutputError, match="the judge mock is not as it was when this run began: judge was"):
        carry_out(directory, [inside], lambda record: MockJudge(name="another"), rows=10, overwrite=True)


def test_two_workers_with_different_judges_are_found_out(file, tmp_path, workers):
    made = iter("ab")

    class Odd(MockEngine):
        def __init__(self) -> None:
            super().__init__()
            self.name = next(made)

    with pytest.raises(OutputError, match="engine was"):
        carry_out(tmp_path / "run", [file], lambda record: MockJudge(Odd()))


class Moody(MockEngine):
    """Cannot read out every third prompt or so while `bad`."""

    bad = True

    def read(self, requests):
        return [
            Readout(None, error="out of memory") if self.bad and int(request.ids.sum()) % 97 == 0 else Readout(-label)
            for request in requests
            for label in (abs(self.label_logprobs(request)),)
        ]


def test_retry_errors_scores_blocks_that_failed_again(file, tmp_path, workers, monkeypatch):
    def load(record: JudgeRecord) -> MockJudge:
        return MockJudge(Moody())

    run = carry_out(tmp_path / "run", [file], load, rows=4)
    failed = run.totals.failed
    assert 0 < failed < 10
    workers.scored.clear()
    carry_out(tmp_path / "run", [file], load, rows=4)
    assert workers.scored == []
    monkeypatch.setattr(Moody, "bad", False)
    run = carry_out(tmp_path / "run", [file], load, rows=4, retry_errors=True)
    assert 0 < len(workers.scored) <= failed  # rows that cannot be scored whatever the judge does are no reason
    assert run.totals.failed == 0
    assert run.summaries[0].unscored == 4


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_block_that_kills_its_workers_is_named_and_the_rest_is_done(file, tmp_path, workers):
    workers.deadly = {"part-000000-000002.parquet"}
    with pytest.raises(JudgeError, match="1 of 5 blocks could not be scored") as caught:
        carry_out(tmp_path / "run", [file])
    assert f"{file}, rows 25 to 36: 4 workers were killed while they scored it" in caught.value.message
    assert directory_of(tmp_path / "run") == 4
    with pytest.raises(ConfigurationError, match="is not finished"):
        merge_parts(tmp_path / "run", tmp_path / "merged.jsonl")
    workers.deadly.clear()
    workers.scored.clear()
    assert carry_out(tmp_path / "run", [file]).totals.rows == ROWS
    assert workers.scored == ["part-000000-000002.parquet"]


def test_a_row_that_no_code_foresaw_fails_its_block_alone(file, tmp_path, workers):
    def load(record: JudgeRecord) -> MockJudge:
        judge = mock(record)
        prepare = judge.prepare

        def poisoned(metric: Metric, samples):
            if any(sample.fields["id"] == 30 for sample in samples):
                raise ZeroDivisionError("row 31")
            return prepare(metric, samples)

        judge.prepare = poisoned
        return judge

    with pytest.raises(JudgeError, match="rows 25 to 36: ZeroDivisionError: row 31"):
        carry_out(tmp_path / "run", [file], load)
    assert directory_of(tmp_path / "run") == 4


def test_an_input_that_changes_meanwhile_is_found_by_the_worker(file, tmp_path, workers, monkeypatch):
    survey = driver.survey_files

    def then_changed(files, cut):
        for block in survey(files, cut):
            file.write_text(file.read_text() + "{}\n")
            yield block

    monkeypatch.setattr(driver, "survey_files", then_changed)
    with pytest.raises(JudgeError, match=r"in\.jsonl was changed while it was scored"):
        carry_out(tmp_path / "run", [file])
    assert directory_of(tmp_path / "run") == 0


def test_what_a_worker_raises_reaches_the_user_and_leaves_no_run(file, tmp_path, workers):
    def load(record: JudgeRecord) -> MockJudge:
        raise JudgeError("no such judge here", hint="Fetch it.")

    with pytest.raises(JudgeError, match="no such judge here") as caught:
        carry_out(tmp_path / "run", [file], load)
    assert caught.value.hint == "Fetch it."
    assert not (tmp_path / "run").exists()


def test_files_of_the_user_stay(file, tmp_path, workers):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "part-000000-000000.parquet").write_bytes(b"mine")
    with pytest.raises(OutputError, match="is not empty and holds no run"):
        carry_out(directory, [file])
    (directory / "part-000000-000000.parquet").unlink()
    carry_out(directory, [file])
    (directory / "notes.txt").write_text("mine")
    (directory / "part-000009-000000.parquet").write_bytes(b"mine")
    (directory / "parts.meta.json").write_text("mine")
    with pytest.raises(OutputError, match="is not as this run made it"):
        carry_out(directory, [file])
    (directory / "parts.meta.json").unlink()
    carry_out(directory, [file], rows=20, overwrite=True)
    assert (directory / "notes.txt").read_text() == "mine"
    assert (directory / "part-000009-000000.parquet").read_bytes() == b"mine"
    assert directory_of(directory) == 3 + 1


def test_parts_at_an_address_follow_the_same_rules(file, tmp_path, workers):
    fsspec = pytest.importorskip("fsspec")
    place = Place("memory://runs/far")
    try:
        carry_out(place.address, [file])
        place.child("notes.txt").write(b"mine", mark="test")
        assert merge_parts(place.address, tmp_path / "merged.jsonl") == ROWS
        assert (tmp_path / "merged.jsonl").read_bytes() == whole(file, tmp_path / "whole").read_bytes()
        place.child("parts.meta.json").write(b"mine", mark="test")
        with pytest.raises(OutputError, match="is not as this run made it"):
            carry_out(place.address, [file])
        place.child("parts.meta.json").delete()
        carry_out(place.address, [file], rows=20, overwrite=True)
        assert len(part_names(place)) == 3
        assert place.child("notes.txt").read() == b"mine"
        with pytest.raises(OutputError, match="is not empty and holds no run"):
            carry_out("memory://runs", [file])
    finally:
        fsspec.filesystem("memory").store.clear()


def test_a_damaged_part_is_told(file, tmp_path, workers):
    carry_out(tmp_path / "run", [file])
    part = tmp_path / "run" / "part-000000-000001.parquet"
    part.write_bytes(part.read_bytes()[:-50])
    with pytest.raises(OutputError, match=r"part-000000-000001\.parquet is damaged, cut off, or no part"):
        carry_out(tmp_path / "run", [file])
    part.unlink()
    workers.scored.clear()
    carry_out(tmp_path / "run", [file])
    assert workers.scored == [part.name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"id": 1, "text": "x"}, "its first 2 rows can be scored|its only row cannot be scored"),
        ("", "holds no rows"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_before_anything(tmp_path, workers, content, message):
    (tmp_path / "in").mkdir()
    line = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "in" / "a.jsonl").write_text(f"{line}\n" * 2)
    with pytest.raises(DataError, match=message):
        carry_out(tmp_path / "run", [tmp_path / "in"])
    assert workers.connections == 0
    for given, told in (("none/*.jsonl", "no data file matches"), ("nowhere", "there is no file")):
        with pytest.raises(DataError, match=told):
            carry_out(tmp_path / "run", [tmp_path / given])
    with pytest.raises(DataError, match="is named twice"):
        carry_out(tmp_path / "run", [tmp_path / "in", tmp_path / "in" / "a.jsonl"])


def test_another_version_on_a_worker_is_refused(file):
    job = Job(wanted(file), Place("/none"), version="0.0.1")
    with pytest.raises(ConfigurationError, match=f"a worker runs geval-local {__version__}, the driver 0.0.1"):
        BlockScorer(mock, job)({"item": Block("/none", 0, 0, part="part-000000-000000.parquet")})


def test_what_memory_taught_holds_for_the_next_block(file, tmp_path, workers):
    class Small(MockEngine):
        def read(self, requests):
            seen.append(self.limit)
            self.limit = 77
            return super().read(requests)

    seen: list[int] = []
    carry_out(tmp_path / "run", [file], lambda record: MockJudge(Small()), rows=30, metrics=METRICS[:1], workers=1)
    assert seen[0] == 4096
    assert set(seen[1:]) == {77}


def test_steps_of_the_run_are_used_again(file, tmp_path, workers, monkeypatch):
    bare = Metric(name="bare", criteria="How clear it is.", scale="1-5", fields={"source": "S", "output": "O"})
    asked_for: list[str] = []

    def write(load, record, metrics, workers, on_steps):
        asked_for.append(record.name)
        return [metric.with_steps(("Read.", f"Step {len(asked_for)}.")) for metric in metrics]

    monkeypatch.setattr(driver, "steps_by_worker", write)
    with pytest.raises(Interrupted):
        carry_out(tmp_path / "run", [file], metrics=[bare], stop_after=1)
    carry_out(tmp_path / "run", [file], metrics=[bare])
    assert asked_for == ["mock"]
    assert "Step 1." in (tmp_path / "run" / "steps" / "bare.yaml").read_text()
    assert read_manifest(tmp_path / "run").judges[0].definitions["bare"]["steps"] == ["Read.", "Step 1."]
    assert definition(bare)["name"] == "bare"


def test_the_first_rows_of_several_files(file, tmp_path, workers):
    (tmp_path / "in").mkdir()
    text = file.read_text().splitlines(keepends=True)
    for number in range(3):
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(text[number * 20 : number * 20 + 20]))
    carry_out(tmp_path / "run", [tmp_path / "in"], rows=8, limit=27)
    assert [row["id"] for row in rows_of(tmp_path / "run")] == list(range(27))
    assert workers.surveyed == ["0.jsonl", "1.jsonl"]
    carry_out(tmp_path / "run", [tmp_path / "in"], rows=8, limit=27)
    assert workers.surveyed == ["0.jsonl", "1.jsonl"]


# --- the command line -------------------------------------------------------------------------------------------------


def test_without_ray_the_remedy_is_told(file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    common = ["score", "in.jsonl", "-m", "summarization/coherence", "-j", "nano"]
    done = run_command(*common, "-o", "run/", "--workers", "ray", home=tmp_path / "home")
    assert done.exit_code == 2
    assert "Ray is not installed" in done.stderr
    assert "pip install 'geval-local[ray]'" in done.stderr
    assert not (tmp_path / "run").exists()
    for arguments, message in (
        (["--workers", "ray"], "needs a directory for its parts"),
        (["--workers", "ray", "-o", "out.jsonl"], "geval-local merge runs/NAME -o scores.jsonl"),
        (["--workers", "ray", "-o", "run/", "-j", "nano,dtype=float64"], "has one judge"),
        (["--distributed", "ray", "-o", "run/"], "--distributed is an option no more\nWrite `--workers ray`"),
        (["-o", "run/", "--address", "auto"], "--address is for the workers of Ray"),
    ):
        done = run_command(*common, *arguments, home=tmp_path / "home")
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_the_manifest_keeps_how_a_run_is_spread(file, tmp_path, workers):
    carry_out(tmp_path / "run", [file], address="head:6379")
    settings = read_manifest(tmp_path / "run").settings
    assert (settings.on_ray, settings.ray_workers, settings.address) == (True, 2, "head:6379")
    assert settings.inputs == [str(file)]


# --- shares -----------------------------------------------------------------------------------------------------------


CPU, GPU = {"CPU": 4.0}, {"CPU": 16.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("nodes", "workers", "choice", "share"),
    [
        ([CPU], None, {}, WorkerShare(1, 4, 0)),
        ([CPU], 2, {}, WorkerShare(2, 2, 0)),
        ([CPU], 3, {}, WorkerShare(3, 1, 0)),
        ([CPU, CPU, {}], None, {}, WorkerShare(2, 4, 0)),
        ([CPU, CPU, {"CPU": 2.0}], 4, {}, WorkerShare(4, 2, 0)),
        ([GPU, GPU], None, {}, WorkerShare(8, 1, 1)),
        ([GPU, CPU], 3, {}, WorkerShare(3, 1, 1)),
        ([GPU], 2, {"device": "cpu"}, WorkerShare(2, 8, 0)),
        ([GPU, GPU], None, {"device_map": "auto"}, WorkerShare(2, 1, 4)),
        ([GPU, GPU], 4, {"device_map": "auto"}, WorkerShare(4, 1, 2)),
        ([{"CPU": 1.0, "GPU": 2.0}], None, {}, WorkerShare(2, 0, 1)),
        ([GPU, GPU], None, {"engine": "vllm"}, WorkerShare(8, 1, 1)),
        ([GPU, GPU, CPU], None, {"engine": "vllm", "tensor_parallel": 2}, WorkerShare(4, 1, 2)),
        ([GPU, {"CPU": 4.0, "GPU": 1.0}], None, {"engine": "vllm", "tensor_parallel": 4}, WorkerShare(1, 1, 4)),
        ([CPU], 2, {"engine": "vllm", "tensor_parallel": 8}, WorkerShare(2, 0, 8)),  # an autoscaler is to bring them
        ([GPU, GPU], None, {"name": "http://127.0.0.1:8000/v1"}, WorkerShare(2, 16, 0)),  # its server has the GPUs
    ],
)
def test_a_cluster_is_shared_out(nodes, workers, choice, share):
    assert share_out(nodes, workers, JudgeOptions(**choice)) == share
    assert share.workers * share.cpus <= sum(node.get("CPU", 0) for node in nodes)


def test_a_survey_takes_the_processors_that_workers_leave():
    assert survey_tasks([CPU], busy=0) == 4
    assert survey_tasks([CPU], busy=4) == 1
    assert survey_tasks([CPU, CPU, {}], busy=8) == 2
    assert survey_tasks([GPU, GPU], busy=8) == 24


@pytest.mark.parametrize(
    ("nodes", "workers", "choice", "message"),
    [
        ([CPU], 5, {}, "4 CPUs, not enough for 5 workers"),
        ([GPU], 5, {}, "4 GPUs, not enough for 5 workers"),
        ([GPU], 5, {"device_map": "auto"}, "not enough"),
        ([GPU], 3, {"engine": "vllm", "tensor_parallel": 2}, "4 GPUs, not enough for 3 workers"),
        ([GPU], None, {"engine": "vllm", "tensor_parallel": 8}, "`tensor_parallel=8` asks for GPUs, and no machine"),
        ([], None, {}, "0 CPUs"),
        ([GPU], None, {"device": "cuda:1"}, "names one GPU"),
    ],
)
def test_too_small_a_cluster_is_refused(nodes, workers, choice, message):
    with pytest.raises(ConfigurationError, match=message):
        share_out(nodes, workers, JudgeOptions(**choice))


@pytest.mark.parametrize(
    ("size", "workers", "least", "most"),
    [
        (1 << 30, 2, 100, 300),  # a few minutes of a GPU each
        (1 << 27, 64, 256, 512),  # several for every worker, to the last
        (1 << 20, 64, 1, 8),  # but several packs in each
        (3 << 40, 8, 15_000, 20_000),  # the driver keeps every block in memory
        (3 << 40, 1000, 15_000, 20_000),
    ],
)
def test_blocks_are_neither_too_many_for_the_driver_nor_too_large_for_workers(size, workers, least, most):
    settings = Settings(metrics=[definition(METRICS[0])], window=4096, workers=workers)
    blocks = -(-size // choose_cut(settings, [Block("in", size, 0)], lambda: workers).bytes)
    assert least <= blocks <= most


def test_workers_of_an_own_cluster_are_no_nicer_than_the_command(monkeypatch):
    # Ray's default starves them beside other work: the driver only waits for them.
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    assert own_settings()["RAY_worker_niceness"] == "0"
    monkeypatch.setenv("RAY_worker_niceness", "5")
    assert "RAY_worker_niceness" not in own_settings()


def test_a_head_that_is_gone_is_told_once(caplog):
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with watched_head(address, seconds=0.05):
            time.sleep(0.5)
            assert not caplog.records
            head.close()
            end = time.monotonic() + 10
            while not caplog.records and time.monotonic() < end:
                time.sleep(0.05)
    (record,) = caplog.records
    assert address in record.getMessage()
    assert "repeat the command" in record.getMessage()


def test_a_driver_whose_cluster_has_lost_it_ends_itself(caplog, monkeypatch):
    """It cannot raise an error: it waits in native code for a raylet or a head that hangs."""
    codes: list[int] = []
    monkeypatch.setattr(connection.os, "_exit", codes.append)
    reasons = iter(["", "the Ray cluster has lost this machine"])
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with watched_head(address, seconds=0.02, look=lambda: next(reasons, "")):
            end = time.monotonic() + 10
            while not codes and time.monotonic() < end:
                time.sleep(0.02)
    assert codes == [1]
    assert "has lost this machine; finished blocks are kept: repeat the command" in caplog.text


# --- a cluster that is gone, or never there ---------------------------------------------------------------------------


def command(body: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Start the command line with `body` in place of its verbs."""
    code = (
        "import os, signal, sys, geval_local.cli as cli\n"
        f"def work():\n    {body}\n"
        "cli._run = work\ncli.main()"  # the verbs would import torch
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_command_that_ray_ends_is_an_interrupted_one(tmp_path):
    score = ["score", "in.jsonl", "--workers", "ray", "-o", "runs/a b/"]
    for body in ("os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"):
        done = command(body, *score)
        assert done.returncode == 3, done.stderr
        assert done.stderr.endswith("Continue with:\n  geval-local resume 'runs/a b/'\n")
    for code in (0, 1, 2, 3):  # a gate that failed stays one
        done = command(f"sys.exit({code})", *score)
        assert (done.returncode, done.stderr) == (code, "")
    assert command("os._exit(1)", "score", "in.jsonl").returncode == 1, "other commands are not guarded"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text('{"settings": {"workers": "ray:2"}}')
    done = command("os._exit(1)", "resume", tmp_path / "run")
    assert done.returncode == 3
    assert f"geval-local resume {tmp_path / 'run'}" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_guarded_command_gets_signals_once_and_dies_with_the_one_that_was_started(number):
    code = (
        "import os, signal, sys, time, geval_local.cli as cli\n"
        # A shell starts what runs behind it with this signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def work():\n"
        "    try:\n        print(os.getpid(), flush=True)\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        print('stopped', flush=True)\n        sys.exit(3)\n"
        "cli._run = work\ncli.main()"
    )
    command = [sys.executable, "-c", code, "score", "in.jsonl", "--workers=ray"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline()
        os.killpg(process.pid, number)  # as a terminal does
        assert process.stdout.read() == "stopped\n"
        assert process.wait(timeout=20) == 3
    if sys.platform != "linux":
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline()
        process.kill()
        process.stdout.read()  # ends with the last process that could write
        assert process.wait(timeout=20) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_guarded_command_ends_although_its_driver_takes_no_signal():
    """As a driver that waits for a raylet that hangs: it reads a socket in native code, and Python runs no handler."""
    code = (
        "import signal, time, geval_local.cli as cli\n"
        "from geval_local.cli import guarded\n"
        "guarded._ENDING_SECONDS = 1\n"
        "def work():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
        "cli._run = work\ncli.main()"
    )
    command = [sys.executable, "-c", code, "score", "in.jsonl", "--workers=ray", "-o", "runs/one/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        words = process.communicate(timeout=20)[1]
    assert process.returncode == 3
    assert words.endswith("Continue with:\n  geval-local resume runs/one/\n")


def test_a_busy_machine_is_tried_again_and_the_way_without_ray_is_named(monkeypatch, caplog):
    ray = pytest.importorskip("ray")
    tries: list[object] = []

    def init(**options):
        tries.append(options["address"])
        raise RuntimeError("its raylet died")

    monkeypatch.setattr(ray, "init", init)
    message = "this machine is too busy to start Ray: its raylet died"
    with pytest.raises(ConfigurationError, match=message) as caught, connection.connected(None, 2):
        pass
    assert tries == ["local"] * 3
    assert "`workers=N` starts processes of its own" in caught.value.hint
    assert caplog.text.count("starting again") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_whether_a_raylet_lives_is_seen(tmp_path):
    program = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"]) as process:
        end = time.monotonic() + 60
        while not connection.own_raylets() and time.monotonic() < end:
            time.sleep(0.02)
        assert connection.own_raylets() == 1
        process.kill()
        while connection.own_raylets() and time.monotonic() < end:
            time.sleep(0.02)
        assert connection.own_raylets() == 0


def test_a_cluster_that_never_answers_is_given_up(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"at 10\.0\.0\.1:6379 has not answered for 0\.05 s") as caught:
        connection._check_answers("10.0.0.1:6379", seconds=0.05)
    assert "ray status" in caught.value.hint


def test_directories_of_drivers_that_were_killed_are_removed(tmp_path):
    for name in ("geval-ray-dead", "geval-ray-alive", "geval-ray-older", "other"):
        (tmp_path / name / "r").mkdir(parents=True)
    for name in ("dead", "alive"):
        (tmp_path / f"geval-ray-{name}" / "driver.lock").touch()
    with FileLock(tmp_path / "geval-ray-alive" / "driver.lock"):
        remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["geval-ray-alive", "geval-ray-older", "other"]


def test_a_judge_that_wants_a_gpu_is_not_put_on_a_cpu_in_silence(caplog):
    with pytest.raises(ConfigurationError, match=r"asks for GPUs, and no machine of the cluster has one now"):
        share_out([CPU, CPU], None, JudgeOptions(device="cuda"))
    share = share_out([CPU], 3, JudgeOptions(device="cuda"))  # an autoscaler is to bring them
    assert share == WorkerShare(3, 0, 1)
    check_gpus(share, JudgeOptions(device="cuda"), "auto", 0)
    with pytest.raises(ConfigurationError, match="this machine has none"):
        check_gpus(share, JudgeOptions(device="cuda"), None, 0)
    assert not caplog.records
    check_gpus(WorkerShare(1, 4, 0), JudgeOptions(), "auto", 0)
    assert "the judge computes on CPUs" in caplog.text
    caplog.clear()
    check_gpus(WorkerShare(1, 4, 0), JudgeOptions(device="cpu"), "auto", 0)
    check_gpus(WorkerShare(1, 4, 0), JudgeOptions(), None, 0)
    check_gpus(WorkerShare(1, 4, 0), JudgeOptions(name="http://127.0.0.1:8000/v1"), "auto", 0)
    assert not caplog.records


def test_a_machine_that_is_taken_away_is_no_block_that_kills(file, tmp_path, workers):
    run = carry_out(tmp_path / "run", [file])
    block, *_, last = run.directory.blocks(run.manifest)
    part = tmp_path / "run" / block.part
    content = part.read_bytes()

    def score(*nodes: str) -> PartReport:
        """Score the block once more, after workers on these machines have died over it."""
        part.unlink(missing_ok=True)
        for number, node in enumerate(nodes):
            (tmp_path / "run" / f".{block.part}.try{number}.{run.manifest.run}.tmp").write_text(node)
        job = Job(run.manifest, Place(str(tmp_path / "run")), schema=widened(None, last.schema))
        return BlockScorer(mock, job, lambda: ("here", frozenset({"here", "there"})))({"item": block})["item"]

    assert score("gone", "gone", "lost", "gone").error is None
    assert part.read_bytes() == content
    assert score("here", "gone", "there", "here").error is None
    assert "4 workers were killed" in str(score("here", "there", "here", "here").error)
    assert not list((tmp_path / "run").glob(".part*"))


def test_a_block_of_several_windows_keeps_those_that_are_finished(file, tmp_path, workers):
    """A worker that dies loses one window, not its block; after the part is written nothing is left."""
    prepared: list[str] = []

    def load(record: JudgeRecord, *, dies_at: int = 1 << 30) -> MockJudge:
        judge = MockJudge(MockEngine(batch_tokens=6000, sensitive=True), name=record.name)
        prepare = judge.prepare

        def counted(metric, samples):
            if len(prepared) >= dies_at:
                raise MemoryError
            prepared.append(metric.name)
            return prepare(metric, samples)

        judge.prepare = counted
        return judge

    def kept() -> list[str]:
        return sorted(path.name for path in (tmp_path / "run").glob("_part-*.window"))

    short = write_input(tmp_path / "short.jsonl", 4)  # this one is scored first
    windows = -(-ROWS // 8)
    carry_out(tmp_path / "whole", [file, short], load, rows=None, window=8)
    assert len(prepared) == 2 * (windows + 1)
    assert directory_of(tmp_path / "whole") == 2
    prepared.clear()
    with pytest.raises(JudgeError, match="MemoryError"):
        carry_out(tmp_path / "run", [file, short], lambda record: load(record, dies_at=11), rows=None, window=8)
    assert len(kept()) == 4, "the fifth window had one of two metrics"
    damaged = tmp_path / "run" / kept()[1]
    damaged.write_bytes(damaged.read_bytes().replace(b"\x00\x01", b"\x00\x02"))
    prepared.clear()
    carry_out(tmp_path / "run", [file, short], load, rows=None, window=8)
    assert len(prepared) == 2 * (windows - 3), "four windows were kept, one of which was damaged"
    assert kept() == []
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")


def test_workers_draw_the_thoughts_of_their_blocks(file, tmp_path, workers):
    """Blocks of several windows, each with its thoughts: those that are finished are kept, and figures are the same."""
    from geval_local.runs.run_file import score_file

    thinking = {"think": 3, "think_tokens": 40}
    judge = MockJudge(MockEngine(batch_tokens=6000), options=JudgeOptions(**thinking))
    files = [file, write_input(tmp_path / "short.jsonl", 4)]  # this one is scored first
    expected = score_file(
        files, list(METRICS), judge, tmp_path / "whole.jsonl", window=8, use_cache=False, keep_thoughts=True
    )
    drawn: list[int] = []

    def load(record: JudgeRecord, *, dies_at: int = 1 << 30) -> MockJudge:
        judge = mock(record)
        sample = judge.backend.sample

        def counted(draws, sampling):
            for batch in sample(draws, sampling):
                if len(drawn) >= dies_at:
                    raise MemoryError
                drawn.append(1)
                yield batch

        judge.backend.sample = counted
        return judge

    given = {"rows": None, "window": 8, "keep_thoughts": True, "thinking": thinking}
    with pytest.raises(JudgeError, match="MemoryError"):
        carry_out(tmp_path / "run", files, lambda record: load(record, dies_at=150), **given)
    run = carry_out(tmp_path / "run", files, load, **given)
    merge_parts(tmp_path / "run", tmp_path / "merged.jsonl")

    found, whole_rows = read(tmp_path / "merged.jsonl"), read(tmp_path / "whole.jsonl")
    assert [row["geval"] for row in found] == [row["geval"] for row in whole_rows]
    assert run.summaries[0].to_dict()["thoughts"] == expected.summaries[0].to_dict()["thoughts"]
    assert len(drawn) - 150 <= len(METRICS) * 3 * (ROWS - 16), "two windows were kept"


def test_machines_that_join_a_cluster_later_have_room_in_the_pool():
    """On a real cluster, a machine that joined after the first part scored 36 of 120 windows."""

    def pool(**settings):
        return pool_of(2, 60, Settings(metrics=[definition(METRICS[0])], window=8, **settings))

    assert pool() == pool(workers="ray:2", address="head:6379") == {"size": 2}
    assert pool(address="head:6379") == {"min_size": 2, "max_size": 60}


def test_blocks_of_most_bytes_go_first(file, tmp_path, workers):
    long = tmp_path / "long.jsonl"
    long.write_text(
        "".join(json.dumps({"id": row, "source": "A tale. " * 400, "output": "It ends."}) + "\n" for row in range(24))
    )
    run = carry_out(tmp_path / "run", [file, long])
    blocks = run.directory.blocks(run.manifest)
    ordered = longest_first(blocks)
    assert [block.address for block in ordered[:2]] == [str(long)] * 2
    assert sorted(block.part for block in ordered) == [block.part for block in blocks]


def test_names_inside_of_ray_that_are_replaced_are_there():
    """A release of Ray that renames one is found here by its name; docs of that release tell what takes its place."""
    pytest.importorskip("ray")
    for module, name in PRIVATE_NAMES:
        found = getattr(import_module(module), name, None)
        assert found is not None, f"this Ray has no {module}.{name}"
    node = inspect.getsource(import_module("ray._private.node"))
    assert "services.get_node(" in node, "Ray asks in another way whether its node has begun"
    assert "services.start_api_server(" in node
    data = import_module("ray.data").DataContext
    for name in ("enable_progress_bars", "print_on_execution_start", "raise_original_map_exception"):
        assert name in data.__dataclass_fields__, f"this Ray Data has no {name}"
    assert hasattr(data.get_current().autoscaling_config, "actor_pool_util_upscaling_threshold")
    known = inspect.signature(import_module("ray.data").ActorPoolStrategy.__init__).parameters
    assert {"enable_true_multi_threading", "max_concurrent_calls_per_actor"} <= set(known)
