"""Distributed runs without a cluster: what the driver and a worker do, with the workers in this process."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from cli_run import run as run_command
from run_kit import METRICS, execute, read, wanted, write_input

from geval_local import __version__
from geval_local.engine.interface import Readout
from geval_local.errors import ConfigurationError, Interrupted, JudgeError, OutputError
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.runs.directory import open_run
from geval_local.runs.export import Exporter, deliver
from geval_local.runs.manifest import JudgeRecord, read_manifest
from geval_local.runs.own_files import hold
from geval_local.runs.ray import driver as distributed
from geval_local.runs.ray.attempts import MOST_ATTEMPTS, attempt
from geval_local.runs.ray.cluster import WorkerShare, share_out
from geval_local.runs.ray.shards import Shard
from geval_local.runs.ray.worker import ShardScorer, ShardTask, open_result, pack
from geval_local.testing import MockEngine, MockJudge

pytest.importorskip("pyarrow", reason="parts are Parquet files")

ROWS = 60


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return write_input(tmp_path / "in.jsonl", ROWS)


class Workers:
    """Replacement for the cluster: one worker after the other in this process, results in the wrong order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scored: list[Shard] = []
        self.connections = 0
        monkeypatch.setattr(distributed, "connected", self._connected)
        monkeypatch.setattr(distributed, "score_shards", self._score)
        monkeypatch.setattr(distributed, "steps_by_worker", lambda load, record, metrics, workers, on_steps: metrics)

    def _connected(self, address, workers):
        self.connections += 1
        return nullcontext()

    def _score(self, tasks, load, record, metrics, estimator, workers):
        given = [ShardScorer(load, record, metrics, estimator, "test") for _ in range(workers or 1)]
        for number, task in enumerate(reversed(list(tasks))):
            (row,) = given[number % len(given)](pack(task)).to_pylist()
            self.scored.append(task.shard)
            yield open_result(row)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    return Workers(monkeypatch)


def asked(file: Path, **settings):
    return wanted(file, **({"distributed": "ray", "workers": 2, "window": 12} | settings))


def mock(record: JudgeRecord) -> MockJudge:
    return MockJudge(MockEngine(batch_tokens=6000), name=record.name)


def carry_out(directory: Path, manifest, load: Callable = mock, *, stop_after: int | None = None, retry_errors=False):
    asked_times = 0

    def should_stop() -> bool:
        nonlocal asked_times
        asked_times += 1
        return stop_after is not None and asked_times >= stop_after

    with open_run(directory, manifest, retry_errors=retry_errors) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(load, should_stop=should_stop):
                exporter.write(sample, scores)
        return deliver(run, exporter.files)


def test_rows_come_out_as_from_one_process(file, tmp_path, workers):
    formats = ["jsonl", "csv", "parquet"]
    found = carry_out(tmp_path / "spread", asked(file, formats=formats))
    expected = execute(tmp_path / "whole", wanted(file, formats=formats), lambda: MockEngine(batch_tokens=6000))
    assert [path.name for path in found] == [path.name for path in expected]
    assert [path.read_bytes() for path in found[:2]] == [path.read_bytes() for path in expected[:2]]
    assert [row["id"] for row in read(found[0])] == list(range(ROWS))
    assert sum("error" in row["geval"][METRICS[0].name] for row in read(found[0])) == 4
    manifests = [read_manifest(tmp_path / name) for name in ("spread", "whole")]
    spread, whole = ({key: dict(values) for key, values in one.results.items()} for one in manifests)
    tokens = [{values.pop("planned_tokens") for values in one.values()} for one in (spread, whole)]
    assert spread == whole
    assert all(count > 0 for count in tokens[0])
    assert manifests[0].judges == [manifests[1].judges[0]]
    assert (manifests[0].input.rows, manifests[0].ended is not None) == (ROWS, True)


def test_a_run_goes_on_from_the_parts_that_are_there(file, tmp_path, workers):
    whole = carry_out(tmp_path / "whole", asked(file))[0].read_bytes()
    everything = list(workers.scored)
    workers.scored.clear()
    directory = tmp_path / "pieces"
    with pytest.raises(Interrupted):
        carry_out(directory, asked(file), stop_after=2)
    there = {path: path.stat().st_mtime_ns for path in (directory / "parts").glob("*.parquet")}
    assert len(there) == 2
    before = list(workers.scored)
    half = f".0-0000009-0000.parquet.{read_manifest(directory).run}.tmp"
    (directory / "parts" / half).write_bytes(b"half")
    (path,) = carry_out(directory, None)
    assert path.read_bytes() == whole
    assert {path: path.stat().st_mtime_ns for path in there} == there
    assert sorted(before + workers.scored[2:], key=str) == sorted(everything, key=str)
    assert len(everything) == len(set(everything)) >= 5
    assert not list((directory / "parts").glob(".*.tmp"))


def test_a_finished_run_is_exported_again_without_workers(file, tmp_path, workers):
    (path,) = carry_out(tmp_path / "run", asked(file))
    content, connections = path.read_bytes(), workers.connections
    path.unlink()
    carry_out(tmp_path / "run", None)
    assert (path.read_bytes(), workers.connections) == (content, connections)
    changed = asked(file, estimator={"kind": "mode", "n": 20, "seed": 0}, workers=1)
    carry_out(tmp_path / "run", changed)  # its signature has to be told anew, though nothing is scored
    assert "estimator:mode" in read_manifest(tmp_path / "run").judges[0].signatures[METRICS[0].name]
    assert [shard.rows for shard in workers.scored[5:]] == [()]


def test_what_changed_is_refused(file, tmp_path, workers):
    directory = tmp_path / "run"
    with pytest.raises(Interrupted):
        carry_out(directory, asked(file), stop_after=1)
    for changed, message in (
        (wanted(file, window=12), "--distributed was ray, is None"),
        (asked(file, window=13), "--window was 12, is 13"),
        (asked(file, metrics=[{"name": "one", "criteria": "x", "scale": "1-5"}]), "metrics were"),
        (wanted(file, judges=("other",), distributed="ray", window=12), "judges were mock, are other"),
    ):
        with pytest.raises(OutputError, match=message):
            carry_out(directory, changed)
    with pytest.raises(OutputError, match="the judge mock is not as it was when this run began: judge was"):
        carry_out(directory, None, lambda record: MockJudge(name="another"))
    with hold(directory), pytest.raises(OutputError, match="in use"):
        carry_out(directory, None)
    write_input(file, ROWS + 1)
    with pytest.raises(OutputError, match="has another content"):
        carry_out(directory, None)
    with pytest.raises(ConfigurationError, match="needs a directory"), open_run(None, asked(file)):
        pass


def test_two_workers_with_different_judges_are_found_out(file, tmp_path, workers):
    made = iter("ab")

    class Odd(MockEngine):
        def __init__(self) -> None:
            super().__init__()
            self.name = next(made)

    with pytest.raises(OutputError, match="engine was a, is b"):
        carry_out(tmp_path / "run", asked(file), lambda record: MockJudge(Odd()))


class Moody(MockEngine):
    """Cannot read out every third prompt or so while `bad`."""

    bad = True

    def read(self, requests):
        return [
            Readout(None, error="out of memory") if self.bad and int(request.ids.sum()) % 3 == 0 else Readout(-label)
            for request in requests
            for label in (abs(self.label_logprobs(request)),)
        ]


def test_retry_errors_scores_only_those_again(file, tmp_path, workers, monkeypatch):
    def load(record: JudgeRecord) -> MockJudge:
        return MockJudge(Moody())

    (path,) = carry_out(tmp_path / "run", asked(file), load)
    failed = {row["id"]: set() for row in read(path)}
    for row in read(path):
        failed[row["id"]] = {key for key, figures in row["geval"].items() if "memory" in figures.get("error", "")}
    assert 0 < sum(map(len, failed.values())) < 2 * ROWS
    seen: list[tuple[int, str]] = []
    prepare = MockJudge.prepare

    def watched(self, metric, samples):
        seen.extend((sample.fields["id"], metric.name) for sample in samples)
        return prepare(self, metric, samples)

    monkeypatch.setattr(MockJudge, "prepare", watched)
    monkeypatch.setattr(Moody, "bad", False)
    (path,) = carry_out(tmp_path / "run", None, load, retry_errors=True)
    empty = {(row["id"], metric.name) for row in read(path) if row["output"] == "" for metric in METRICS}
    assert set(seen) - empty == {(row, key) for row, keys in failed.items() for key in keys}
    assert len(seen) == len(set(seen))
    assert not any("memory" in figures.get("error", "") for row in read(path) for figures in row["geval"].values())
    (fresh,) = carry_out(tmp_path / "fresh", asked(file), load)
    assert path.read_bytes() == fresh.read_bytes()


def test_several_judges_take_turns(file, tmp_path, workers):
    manifest = wanted(file, judges=("one", "two"), distributed="ray", window=12)
    (path,) = carry_out(tmp_path / "run", manifest)
    names = [f"{metric.name}@{judge}" for judge in ("one", "two") for metric in METRICS]
    assert [list(row["geval"]) for row in read(path)] == [names] * ROWS
    assert len(list((tmp_path / "run" / "parts").glob("1-*.parquet"))) == 5


def test_what_a_worker_raises_reaches_the_user_and_leaves_no_run(file, tmp_path, workers):
    def load(record: JudgeRecord) -> MockJudge:
        raise JudgeError("no such judge here", hint="Fetch it.")

    with pytest.raises(JudgeError, match="no such judge here") as caught:
        carry_out(tmp_path / "run", asked(file), load)
    assert caught.value.hint == "Fetch it."
    assert not (tmp_path / "run").exists()


def test_what_memory_taught_holds_for_the_next_shard():
    class Small(MockEngine):
        def read(self, requests):
            seen.append(self.limit)
            self.limit = 77
            return super().read(requests)

    seen: list[int] = []
    scorer = ShardScorer(lambda record: MockJudge(Small()), JudgeRecord(name="m", choice={}), METRICS[:1], {}, "test")
    for number in range(2):
        sample = Sample({"source": "A tale.", "output": f"It ends at {number}."})
        scorer.score(ShardTask(Shard(0, number, (number,)), [sample], [[0]]))
    assert seen == [4096, 77]


def test_another_version_on_a_worker_is_refused():
    row = {"version": "0.0.1", "content": pickle.dumps(JudgeError("never read"))}
    with pytest.raises(ConfigurationError, match=rf"a worker runs geval-local 0.0.1, the driver {__version__}"):
        open_result(row)


def test_a_shard_that_kills_its_workers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shard = Shard(0, 3, (7, 9))
    begun = [attempt("session", shard) for _ in range(MOST_ATTEMPTS)]
    for one in begun:
        one.__enter__()  # a worker that dies never leaves
    with (
        pytest.raises(JudgeError, match=rf"{MOST_ATTEMPTS} workers were killed .* rows 8 to 10"),
        attempt("session", shard),
    ):
        pytest.fail("was tried again")
    with attempt("another session", shard):
        pass
    with pytest.raises(ValueError, match="defect"), attempt("session", shard):
        raise ValueError("defect")
    assert list(tmp_path.iterdir()) == []


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
    ],
)
def test_a_cluster_is_shared_out(nodes, workers, choice, share):
    assert share_out(nodes, workers, choice) == share
    assert share.workers * share.cpus <= sum(node.get("CPU", 0) for node in nodes)


@pytest.mark.parametrize(
    ("nodes", "workers", "choice", "message"),
    [
        ([CPU], 5, {}, "4 CPUs, not enough for 5 workers"),
        ([GPU], 5, {}, "4 GPUs, not enough for 5 workers"),
        ([GPU], 5, {"device_map": "auto"}, "not enough"),
        ([], None, {}, "0 CPUs"),
        ([GPU], None, {"device": "cuda:1"}, "names one GPU"),
    ],
)
def test_too_small_a_cluster_is_refused(nodes, workers, choice, message):
    with pytest.raises(ConfigurationError, match=message):
        share_out(nodes, workers, choice)


def test_steps_of_the_run_are_used_again(file, tmp_path, workers, monkeypatch):
    bare = Metric(name="bare", criteria="How clear it is.", scale="1-5", fields={"source": "S", "output": "O"})
    asked_for: list[str] = []

    def write(load, record, metrics, workers, on_steps):
        asked_for.append(record.name)
        return [metric.with_steps(("Read.", f"Step {len(asked_for)}.")) for metric in metrics]

    monkeypatch.setattr(distributed, "steps_by_worker", write)
    manifest = asked(file, metrics=[bare.model_dump(mode="json", exclude_defaults=True)])
    with pytest.raises(Interrupted):
        carry_out(tmp_path / "run", manifest, stop_after=1)
    carry_out(tmp_path / "run", None)
    assert asked_for == ["mock"]
    assert "Step 1." in (tmp_path / "run" / "steps" / "bare.yaml").read_text()
    assert read_manifest(tmp_path / "run").judges[0].definitions["bare"]["steps"] == ["Read.", "Step 1."]


def test_without_ray_the_remedy_is_told(file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    common = ["score", "in.jsonl", "-m", "summarization/coherence"]
    done = run_command(*common, "-o", "run/", "--distributed", "ray", home=tmp_path / "home")
    assert done.exit_code == 2
    assert "Ray is not installed" in done.stderr
    assert "pip install 'geval-local[ray]'" in done.stderr
    assert not (tmp_path / "run").exists()
    for arguments, message in (
        (["--distributed", "ray"], "needs a place for its parts"),
        (["-o", "run/", "--workers", "2"], "--workers belongs to --distributed"),
        (["-o", "run/", "--address", "auto"], "--address belongs to --distributed"),
    ):
        done = run_command(*common, *arguments, home=tmp_path / "home")
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_the_manifest_keeps_how_a_run_is_spread(file, tmp_path, workers):
    carry_out(tmp_path / "run", asked(file, address="head:6379"))
    record = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [record["settings"][name] for name in ("distributed", "workers", "address")] == ["ray", 2, "head:6379"]
    settings = read_manifest(tmp_path / "run").settings
    assert (settings.distributed, settings.workers, settings.address) == ("ray", 2, "head:6379")
