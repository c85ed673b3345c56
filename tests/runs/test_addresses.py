"""Runs on one machine whose rows and results are at addresses: in a store in memory, and on an S3 server."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
from pathlib import Path

import forked
import pytest
from cli_run import judge_directory, run
from object_store import CREDENTIALS, ask, store_in_memory, store_on_s3
from run_kit import METRICS

from geval_local.errors import ConfigurationError, DataError, Interrupted, OutputError
from geval_local.io.input_files import read_samples
from geval_local.io.places import Place
from geval_local.io.result_manifest import read_manifest as read_results_manifest
from geval_local.runs import addresses
from geval_local.runs.addresses import local_output, local_results
from geval_local.runs.events import RunEvents
from geval_local.runs.merging import merge_shares
from geval_local.runs.run_file import decide_file, resume, score_file
from geval_local.testing import MockEngine, MockJudge

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(params=["memory", "s3"])
def store(request, monkeypatch):
    with store_in_memory() if request.param == "memory" else store_on_s3(monkeypatch) as found:
        yield found


@pytest.fixture
def s3(monkeypatch):
    with store_on_s3(monkeypatch) as found:
        yield found


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def rows(count: int, *, first: int = 0) -> list[dict]:
    """Rows of which four share a source, and some cannot be scored."""
    return [
        {
            "id": f"r{row}",
            "source": f"Größe {row // 4}. " * (3 + row % 4),
            "output": "" if row % 17 == 5 else f"It ends at {row}.",
        }
        for row in range(first, first + count)
    ]


def jsonl(records: list[dict]) -> bytes:
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records).encode()


def csv(records: list[dict]) -> bytes:
    return "".join(",".join(map(str, one)) + "\n" for one in [list(records[0]), *map(dict.values, records)]).encode()


def parquet(records: list[dict]) -> bytes:
    table = pa.Table.from_pylist([{**one, "rating": place % 5} for place, one in enumerate(records)])
    table = table.set_column(3, "rating", table["rating"].cast(pa.int8()))
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=7)
    return file.getvalue()


def judge(make=MockEngine) -> MockJudge:
    return MockJudge(make(batch_tokens=2000, sensitive=True))


def score(given, output, **options):
    return score_file(given, METRICS, judge(), output, **({"use_cache": False} | options))


# --- input ------------------------------------------------------------------------------------------------------------

INPUTS = {
    "plain.jsonl": jsonl,
    "with space.jsonl": jsonl,
    "50%20.jsonl": jsonl,
    "a#b.csv": csv,
    "what?.jsonl": jsonl,
    "größe-数据.parquet": parquet,
    "packed.jsonl.gz": lambda records: gzip.compress(jsonl(records)),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_results_equal_those_of_the_same_file_on_a_disk(store, tmp_path, name, ending):
    content = INPUTS[name](rows(40))
    (tmp_path / name).write_bytes(content)
    once = score(tmp_path / name, tmp_path / f"once.{ending}")
    found = score(store.put(f"in/{name}", content), store.at(f"out #/scores.{ending}"))
    assert found.files == [Place(store.at(f"out #/scores.{ending}"))]
    assert [one.to_dict() for one in found.summaries] == [one.to_dict() for one in once.summaries]
    assert store.get(f"out #/scores.{ending}") == (tmp_path / f"once.{ending}").read_bytes()
    assert store.get(f"out #/scores.{ending}.meta.json") == (tmp_path / f"once.{ending}.meta.json").read_bytes()
    rest = [f"scores.{ending}", f"scores.{ending}.meta.json", *([f"scores.{ending}.rows.jsonl"] * (ending == "csv"))]
    assert store.names("out #") == sorted(rest)
    assert not list((tmp_path / "home" / "runs").iterdir()), "no store is left of a run that is complete"


def test_several_files_patterns_and_directories(store, tmp_path):
    for place in ("a", "b"):
        content = jsonl(rows(12, first=0 if place == "a" else 12))
        store.put(f"in/{place}/x.jsonl", content)
        (tmp_path / "in" / place).mkdir(parents=True)
        (tmp_path / "in" / place / "x.jsonl").write_bytes(content)
    store.put("in/_hidden/x.jsonl", b"{}")
    once = score(tmp_path / "in", tmp_path / "once.jsonl")
    for given in ("in", "in/", "in/*/x.jsonl", "in/**/[ax].jsonl"):
        assert score(store.at(given), tmp_path / "again.jsonl", overwrite=True).rows == once.rows == 24
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "once.jsonl").read_bytes()
    assert '"file":"b/x.jsonl"' in (tmp_path / "again.jsonl").read_text()


def test_a_file_on_a_disk_and_one_at_an_address_are_one_run(store, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows(4)))
    address = store.put("in/b.jsonl", jsonl(rows(4)))
    result = score([tmp_path / "a.jsonl", address], tmp_path / "out/")
    assert result.rows == 8
    assert [file.path for file in result.manifest.input.files] == [str(tmp_path / "a.jsonl"), address]
    assert result.manifest.input.path == str(tmp_path)
    again = score([f"file://{tmp_path}/a.jsonl", address], tmp_path / "out/")
    assert again.there == 16, "a file:// address is the path"


def test_decisions_and_samples_are_read_from_addresses(store, tmp_path):
    address = store.put("in/x.jsonl", jsonl(rows(3)))
    assert [one.where for one in read_samples(address)] == ["x.jsonl, row 1", "x.jsonl, row 2", "x.jsonl, row 3"]
    asked = [{"name": "ends", "type": "predicate", "instructions": "Does it end?"}]
    found = decide_file(address, asked, judge(), store.at("out/decisions/"), state="source", use_cache=False)
    assert found.answers[0].rows == 3
    assert "decisions.jsonl" in store.names("out/decisions")


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet", "in.jsonl.gz"])
def test_shares_from_an_address_merged_are_the_single_run(store, tmp_path, name):
    records = rows(60)
    make = {"jsonl": jsonl, "csv": csv, "parquet": parquet, "gz": INPUTS["packed.jsonl.gz"]}
    address = store.put(f"in/{name}", make[name.rpartition(".")[2]](records))
    score(address, tmp_path / "once.jsonl", window=20)
    for number in (1, 2):
        score(address, tmp_path / "shares", shard=f"{number}/2", window=20)
    merged = merge_shares([tmp_path / "shares"], store.at("out/all.jsonl"))
    assert merged.rows == 60
    assert store.get("out/all.jsonl") == (tmp_path / "once.jsonl").read_bytes()


def test_a_share_is_not_kept_at_an_address(store, tmp_path):
    address = store.put("in/x.jsonl", jsonl(rows(4)))
    with pytest.raises(OutputError, match="needs the stores of all shares") as caught:
        score(address, store.at("runs/"), shard="1/2")
    assert "merge DIR -o ADDRESS" in caught.value.hint


# --- a run that is stopped --------------------------------------------------------------------------------------------

DEADLY = """\
import os, signal, sys
from geval_local.testing import MockEngine, MockJudge
from geval_local.runs.run_file import score_file
sys.path.insert(0, sys.argv[3])
from run_kit import METRICS
class Deadly(MockEngine):
    def read(self, requests):
        if self.executed_packs == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(requests)
judge = MockJudge(Deadly(batch_tokens=2000, sensitive=True))
score_file(sys.argv[1], METRICS, judge, sys.argv[2], use_cache=False)
"""


@pytest.mark.sweep
@pytest.mark.parametrize("output", ["out/scores.jsonl", "out/scores.parquet", "runs/first/"])
def test_a_killed_run_continues_to_the_same_objects(s3, tmp_path, home, output):
    address, target = s3.put("in/größe 1.jsonl", jsonl(rows(90))), s3.at(output)
    (tmp_path / "größe 1.jsonl").write_bytes(jsonl(rows(90)))
    ending = output.rpartition(".")[2] if "." in output else "jsonl"
    score(tmp_path / "größe 1.jsonl", tmp_path / f"once.{ending}")
    environment = {**os.environ, **CREDENTIALS, "GEVAL_LOCAL_HOME": str(home)}
    for _ in range(2):
        done = forked.code(DEADLY, address, target, Path(__file__).parents[1] / "support", env=environment)
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert not s3.names("out") + s3.names("runs")
    name = output if "." in output else f"{output}scores.jsonl"
    found = score(address, target)
    assert found.there > 0
    assert s3.get(name) == (tmp_path / f"once.{ending}").read_bytes()
    assert read_results_manifest(Place(s3.at(name))).rows == 90


class Stopped(RunEvents):
    def __init__(self) -> None:
        self.done = 0

    def on_progress(self, done: int) -> None:
        self.done = done

    def should_stop(self) -> bool:
        return self.done > 20


def test_an_object_that_changed_in_between_is_refused(store):
    address, target = store.put("in/x.jsonl", jsonl(rows(60))), store.at("out/scores.jsonl")
    with pytest.raises(Interrupted) as stop:
        score(address, target, events=Stopped())
    assert stop.value.directory == target
    former = store.get("in/x.jsonl")
    store.put("in/x.jsonl", former.replace(b"It ends at 3.", b"It ends at 4."))
    with pytest.raises(OutputError, match="has another content") as caught:
        resume(target)
    assert address in caught.value.message
    store.put("in/x.jsonl", former)
    assert score(address, target).there > 20
    with pytest.raises(OutputError, match="is complete: nothing is left to resume"):
        resume(target)


def test_an_object_that_changes_while_it_is_scored_is_noticed(store):
    address = store.put("in/x.jsonl", jsonl(rows(60)))

    class Writes(RunEvents):
        def on_score(self, *_) -> None:
            store.put("in/x.jsonl", jsonl(rows(70)))

    with pytest.raises(DataError, match=r"x\.jsonl.* was changed while it was scored"):
        score(address, store.at("out/scores.jsonl"), events=Writes())
    assert store.names("out") == []


# --- whose is what is there -------------------------------------------------------------------------------------------


def test_a_file_that_is_no_result_of_ours_is_kept(store):
    address = store.put("in/x.jsonl", jsonl(rows(8)))
    store.put("out/scores.csv", b"mine")
    with pytest.raises(OutputError, match="is not an unchanged result of this tool"):
        score(address, store.at("out/scores.csv"))
    assert store.get("out/scores.csv") == b"mine"
    score(address, store.at("out/scores.csv"), overwrite=True)
    first = store.get("out/scores.csv")
    assert first != b"mine"
    score(address, store.at("out/scores.csv"), limit=4)  # an unchanged result is replaced
    assert len(store.get("out/scores.csv")) < len(first)
    store.put("out/scores.csv", first)
    with pytest.raises(OutputError, match="is not an unchanged result"):
        score(address, store.at("out/scores.csv"))
    store.put("out/rows.csv.rows.jsonl", b"mine")
    store.put("out/meta.csv.meta.json", b"mine")
    for name in ("rows", "meta"):
        with pytest.raises(OutputError, match=r"exists, and is not|not a manifest of this tool"):
            score(address, store.at(f"out/{name}.csv"), overwrite=True)


def test_a_file_that_appears_during_the_run_is_kept(store):
    address, target = store.put("in/x.jsonl", jsonl(rows(8))), store.at("out/scores.jsonl")

    class Writes(RunEvents):
        def on_score(self, *_) -> None:
            store.put("out/scores.jsonl", b"mine")

    with pytest.raises(OutputError, match="is not an unchanged result") as caught:
        score(address, target, events=Writes())
    assert "geval-local resume" in caught.value.hint
    assert target in caught.value.hint
    assert store.get("out/scores.jsonl") == b"mine"
    Place(target).delete()
    assert resume(target).there == 16, "nothing is computed again"
    assert store.get("out/scores.jsonl") != b"mine"


def test_only_a_run_is_continued_and_only_its_own_files_are_replaced(store):
    address, target = store.put("in/x.jsonl", jsonl(rows(8))), store.at("runs/first/")
    store.put("runs/other/notes.txt", b"mine")
    with pytest.raises(OutputError, match=r"is not empty and holds no run; it has notes\.txt"):
        score(address, store.at("runs/other/"), overwrite=True)
    score(address, target, formats=["jsonl", "csv"])
    store.put("runs/first/notes.txt", b"mine")
    again = score(address, target, threshold=3.0)
    assert again.there == 16
    store.put("runs/first/scores.jsonl", b"mine")
    with pytest.raises(OutputError, match="is not as this tool made it"):
        score(address, target)
    Place(store.at("runs/first/scores.jsonl")).delete()
    score(address, target)
    # Without the store the run is another one, which replaces it if the user says so.
    kept = local_output(Place(target))
    kept.rename(kept.with_name("gone"))
    with pytest.raises(OutputError, match="holds another run, whose store is not in"):
        score(address, target)
    with pytest.raises(OutputError, match="whose store is on another machine"):
        resume(target)
    score(address, target, overwrite=True)
    assert store.get("runs/first/notes.txt") == b"mine"
    assert "scores.csv" not in store.names("runs/first"), "it was the former run's"


def spellings(address: str) -> list[str]:
    """Write an address in other ways."""
    plain, mark, options = address.partition("?")
    scheme, _, path = plain.partition("://")
    bucket, _, name = path.partition("/")
    paths = [f"{bucket}/./{name}", f"{bucket}/in/../{name}", f"{bucket}//{name}"]
    other = [f"{scheme}://{one}{mark}{options}" for one in paths]
    if options:
        turned = "&".join(reversed(options.split("&")))
        other += [f"{plain}?{turned}", f"{plain}?{options}&scheme=http"]
    return other


def test_an_address_in_another_spelling_is_the_same_place(store):
    content = jsonl(rows(8))
    address = store.put("in/x.jsonl", content)
    for other in spellings(address):
        assert Place(other).key == Place(address).key, other
        with pytest.raises(OutputError, match=r"it is the input|cannot open|Empty"):
            score(address, other, overwrite=True)
        assert store.get("in/x.jsonl") == content, other
    for other in (store.at("in/y.jsonl"), store.at("x.jsonl"), store.at("in/x.jsonl", "other")):
        assert Place(other).key != Place(address).key
    target = store.at("out/scores.jsonl")
    assert score(address, target).there == 0
    assert {local_output(Place(other)) for other in spellings(target)} == {local_output(Place(target))}


def test_paths_on_this_machine_and_file_addresses_are_one_place(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_bytes(jsonl(rows(2)))
    (tmp_path / "link").symlink_to(tmp_path)
    for other in (f"file://{file}", f"file://{tmp_path}/./in.jsonl", str(tmp_path / "link" / "in.jsonl")):
        assert Place(other).key == Place(str(file)).key
        with pytest.raises(OutputError, match="it is the input"):
            score(file, other, overwrite=True)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ("s3://b/k?region=eu&endpoint_override=HOST:9000&scheme=http", True),
        ("s3://b/k?endpoint_override=http://host:9000/", True),
        ("s3://b/k?endpoint_override=host:9001", False),
        ("s3://b/k?region=eu", False),
        ("gs://b/k?endpoint_override=host:9000", False),
    ],
)
def test_the_server_belongs_to_the_place(other, is_same):
    assert (Place(other).key == Place("s3://b/k?scheme=http&endpoint_override=host:9000&region=eu").key) is is_same


def test_a_store_that_refuses_the_upload_loses_nothing(store, monkeypatch):
    address, target = store.put("in/x.jsonl", jsonl(rows(8))), store.at("out/scores.csv")
    put, calls = addresses.put_file, []

    def fails(file, place, run) -> None:
        calls.append(place)
        if len(calls) == 2:
            raise OSError("SLOW_DOWN")
        put(file, place, run)

    monkeypatch.setattr(addresses, "put_file", fails)
    with pytest.raises(OutputError, match="SLOW_DOWN") as caught:
        score(address, target)
    assert "geval-local resume" in caught.value.hint
    assert resume(target).there == 16
    assert store.names("out") == ["scores.csv", "scores.csv.meta.json", "scores.csv.rows.jsonl"]


# --- results that are read --------------------------------------------------------------------------------------------


def test_results_are_read_from_addresses(store):
    from geval_local.analysis.results import ScoredRun

    address = store.put("in/x.jsonl", jsonl(rows(8)))
    result = score(address, store.at("runs/first/"), formats=["csv", "jsonl"])
    score(address, store.at("out/scores.csv"))
    for given in (store.at("runs/first"), store.at("out/scores.csv"), result):
        scored = ScoredRun.of(given)
        assert len(scored.rows) == 8
        assert set(scored.metrics) == {metric.name for metric in METRICS}
        assert scored.manifest.rows == 8
    assert local_results(store.at("out/scores.csv")).name == "scores.csv"
    score(address, store.at("out/scores.csv"), limit=4)
    assert len(ScoredRun.of(store.at("out/scores.csv")).rows) == 4, "a copy is of what is there now"
    with pytest.raises(DataError, match="there is neither a file nor a run at"):
        ScoredRun.of(store.at("out/missing.jsonl"))


# --- by the command ---------------------------------------------------------------------------------------------------


def test_by_commands(s3, tmp_path, home):
    records = [{**one, "rating": place % 5 + 1} for place, one in enumerate(rows(8))]
    address, target = s3.put("in/a b.jsonl", jsonl(records)), s3.at("runs/first/")
    command = ["-m", "summarization/fluency", "--no-steps", "-j", judge_directory()]
    done = run("score", address, *command, "-o", target, "--json", home=home)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rows"], told["input"], told["output"]) == (8, address, s3.at("runs/first/scores.jsonl"))
    assert str(home) in done.stderr
    again = run("resume", target, home=home)
    assert again.exit_code == 0, again.stderr
    page = run("report", s3.at("runs/first"), "-o", tmp_path / "page.html", home=home)
    assert page.exit_code == 0, page.stderr
    found = run("meta-eval", address, "--results", target, "--human", "rating", "--json", home=home)
    assert found.exit_code == 0, found.stderr
    pairs = run("pairs", address, *command, "-o", s3.at("out/pairs.jsonl"), home=home)
    assert pairs.exit_code in (0, 2), pairs.stderr
    dry = run("score", address, *command, "--dry-run", home=home)
    assert dry.exit_code == 0, dry.stderr


def refused(*arguments, home) -> str:
    done = run(*arguments, home=home)
    assert done.exit_code == 2, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_what_cannot_be_reached_is_one_clear_message(s3, home, tmp_path):
    address = s3.put("in/x.jsonl", jsonl(rows(4)))
    command = ["-m", "summarization/fluency", "--no-steps", "-j", judge_directory()]
    assert "there is no file" in refused("score", s3.at("in/y.jsonl"), *command, home=home)
    assert "there is no file" in refused("score", s3.at("x.jsonl", "nobucket"), *command, home=home)
    told = refused("score", address, *command, "-o", s3.at("x.jsonl", "nobucket"), home=home)
    assert "there is no bucket nobucket" in told
    host = s3.options.partition("http://")[2].partition("&")[0]
    ask(host, "reset-auth", b"0")  # from now on nobody's rights suffice
    try:
        for arguments in (
            ("score", address, *command),
            ("score", tmp_path / "in.jsonl", *command, "-o", s3.at("out/scores.jsonl")),
            ("report", s3.at("out/scores.jsonl"), "-o", tmp_path / "page.html"),
            ("jury", s3.at("out/a.jsonl"), s3.at("out/b.jsonl")),
            ("resume", s3.at("out/scores.jsonl")),
        ):
            (tmp_path / "in.jsonl").write_bytes(jsonl(rows(4)))
            told = refused(*arguments, home=home)
            assert "s3://bucket/" in told
            assert "AWS_ACCESS_KEY_ID" in told
    finally:
        ask(host, "reset-auth", b"inf")


def test_a_damaged_object_names_its_address(store):
    address = store.put("in/x.parquet", b"PAR1 and nothing else")
    with pytest.raises(DataError, match="is not a readable Parquet file") as caught:
        score(address, None)
    assert address in caught.value.message
    broken = store.put("in/x.jsonl.gz", gzip.compress(jsonl(rows(400)))[:-40])
    assert any(broken in reason.text for reason in score(broken, None).summaries[0].reasons)


def test_an_address_needs_pyarrow(monkeypatch):
    import sys

    from geval_local.io.places import opened

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    opened.cache_clear()
    with pytest.raises(ConfigurationError, match="needs pyarrow") as caught:
        score("s3://bucket/x.jsonl", None)
    assert "geval-local[parquet]" in caught.value.hint


def test_an_evaluation_reads_its_data_from_an_address(s3, tmp_path, home):
    address = s3.put("in/a b.jsonl", jsonl(rows(4)))
    (tmp_path / "evaluation.yaml").write_text(
        json.dumps(
            {
                "metrics": [{"name": "summarization/fluency", "steps": False}],
                "judges": [str(judge_directory())],
                "data": {"new": address},
                "outputs": "out",
            }
        )
    )
    done = run("run", tmp_path / "evaluation.yaml", home=home)
    assert done.exit_code == 0, done.stderr
    assert len((tmp_path / "out" / "new" / "scores.jsonl").read_text().splitlines()) == 4


def test_a_second_machine_does_not_replace_a_run(store, tmp_path, monkeypatch):
    address, target = store.put("in/x.jsonl", jsonl(rows(8))), store.at("runs/first/")

    class Other(RunEvents):
        def on_score(self, *_) -> None:
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "elsewhere"))
                score(address, target, limit=4)

    with pytest.raises(OutputError, match="holds another run, whose store is not in"):
        score(address, target, events=Other())
    assert len(store.get("runs/first/scores.jsonl").splitlines()) == 4
