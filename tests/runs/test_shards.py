"""Shares of a run: each scored by itself, killed, resumed, and merged to what one process writes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from cli_run import judge_directory, run
from run_kit import METRICS, kills_itself

from geval_local.engine.interface import Readout
from geval_local.errors import ConfigurationError, DataError, OutputError
from geval_local.io.input_files import read_input
from geval_local.io.pairs import PairPlan
from geval_local.io.shares import EmptyShareError, read_share, share_name, share_of, shares_of
from geval_local.options import RunOptions
from geval_local.runs.manifest import read_manifest
from geval_local.runs.merging import merge_shares
from geval_local.runs.run_file import resume, score_file
from geval_local.testing import MockEngine, MockJudge

FLUENCY = METRICS[1]


def rows(count: int, *, first: int = 0, documents: int = 4) -> list[dict]:
    """Rows of which some share a document, and some cannot be scored."""
    return [
        {
            "id": f"r{row}",
            "doc_id": f"d{row // documents}",
            "system": f"s{row % documents}",
            "source": f"Tale {row // documents}. " * (3 + row % 4),
            "output": "" if row % 17 == 5 else f"It ends at {row}.",
        }
        for row in range(first, first + count)
    ]


def write(path: Path, records: list[dict], *, blank: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        lines = [
            json.dumps(one) + ("\n\n" if blank and place % blank == 0 else "\n") for place, one in enumerate(records)
        ]
        path.write_text("".join(lines))
    elif path.suffix == ".csv":
        cells = [list(records[0]), *(list(one.values()) for one in records)]
        path.write_text("".join(",".join(map(str, one)) + "\n" for one in cells))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=7)
    return path


def judge(name: str = "mock") -> MockJudge:
    return MockJudge(MockEngine(batch_tokens=6000), name=name)


def score_all(file, out: Path, count: int, make=judge, **options) -> None:
    for number in range(1, count + 1):
        score_file(file, METRICS, make(), out, use_cache=False, shard=f"{number}/{count}", **options)


def contents(directory: Path) -> dict[str, bytes]:
    """What a run wrote, apart from its manifest and its store."""
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.name.startswith("scores.") and path.suffix != ".sqlite"
    }


# --- where an input is cut --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_every_row_is_in_one_share_and_no_document_in_two(tmp_path, name):
    draw = random.Random(5)
    records = rows(90, documents=3)
    for record in records:  # lines of very different lengths
        record["source"] *= draw.randint(1, 30)
    files = [write(tmp_path / "a" / name, records[:60], blank=7), write(tmp_path / "b" / name, records[60:])]
    whole = list(read_input(files, RunOptions()))
    assert len(whole) == 90
    for count in (1, 2, 3, 7, 13, 40):
        found, parts = [], []
        for number in range(1, count + 1):
            options = RunOptions(shard=f"{number}/{count}")
            try:
                share = share_of(files, options)
            except EmptyShareError:
                assert number not in shares_of(files, RunOptions(), count)
                continue
            assert shares_of(files, RunOptions(), count)[number] == share, "as when all are cut in one pass"
            parts.append(list(read_share(share, options)))
            found += parts[-1]
        assert found == whole, "the same rows with the same numbers, in the same order"
        documents = [{(row.fields["file"], row.fields["doc_id"]) for row in part} for part in parts]
        # Of 40 shares some are smaller than a document of three rows.
        assert max(Counter(one for part in documents for one in part).values()) == 1 or count == 40
        assert count > 13 or len(parts) == count


def test_shares_are_of_like_size(tmp_path):
    file = write(tmp_path / "in.jsonl", rows(400))
    sizes = [
        len(list(read_share(share_of([file], given), given)))
        for given in (RunOptions(shard=f"{n}/8") for n in range(1, 9))
    ]
    assert sum(sizes) == 400
    assert max(sizes) - min(sizes) <= 12


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_rows_of_one_document_are_shared_out_as_well(tmp_path, name):
    file = write(tmp_path / name, [{"source": "One tale.", "output": f"It ends at {row}."} for row in range(1000)])
    for options in ({}, {"group_by": "source"}):
        given = [RunOptions(shard=f"{number}/8", **options) for number in range(1, 9)]
        parts = [list(read_share(share_of([file], one), one)) for one in given]
        assert [row for part in parts for row in part] == list(read_input([file], RunOptions()))
        assert all(115 <= len(part) <= 135 for part in parts), list(map(len, parts))
    few = write(tmp_path / f"few_{name}", [{"source": "One tale.", "output": f"Ends at {row}."} for row in range(40)])
    plan = PairPlan(group_by="source", system="output")
    ends = [share_of([few], one, pairs=plan).samples for one in given]
    assert {stop - start for start, stop in ends} == {97, 98}


def test_a_document_of_its_own_name_and_rows_that_are_none(tmp_path):
    file = write(
        tmp_path / "in.jsonl", [one | {"topic": "t" if place < 30 else "u"} for place, one in enumerate(rows(40))]
    )
    sizes = []
    for number in (1, 2):
        given = RunOptions(shard=f"{number}/2", group_by="topic")
        sizes.append(len(list(read_share(share_of([file], given), given))))
    assert sizes == [30, 10]
    given = RunOptions(shard="1/2", group_by="row")
    assert len(list(read_share(share_of([file], given), given))) in (20, 21)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "1/4/2", "-1/4", "1/20000"])
def test_a_share_that_is_none_is_refused(text):
    with pytest.raises(ConfigurationError, match=r"is no share: write I/N"):
        RunOptions(shard=text)


def test_what_does_not_go_with_a_share_is_refused(tmp_path):
    file = write(tmp_path / "in.jsonl", rows(8))
    with pytest.raises(ConfigurationError, match="`workers` and `shard` exclude each other"):
        RunOptions(shard="1/2", workers="ray")
    for place in (None, tmp_path / "out.jsonl"):
        with pytest.raises(OutputError, match="a share of a run is kept in a directory"):
            score_file(file, FLUENCY, judge(), place, shard="1/2")
    score_file(file, FLUENCY, judge(), tmp_path / "shares", shard="2/2")
    with pytest.raises(OutputError, match="holds shares of another number, such as shard-0002-of-0002, and 2/3"):
        score_file(file, FLUENCY, judge(), tmp_path / "shares", shard="2/3")
    score_file(file, FLUENCY, judge(), tmp_path / "run/")
    with pytest.raises(OutputError, match="holds a run, and shares have their directories"):
        score_file(file, FLUENCY, judge(), tmp_path / "run/", shard="1/2")


# --- merged, they are one run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "formats"), [("in.jsonl", ["jsonl"]), ("in.csv", ["csv"]), ("in.parquet", ["jsonl", "parquet"])]
)
def test_shares_merged_are_the_single_run(tmp_path, name, formats):
    write(tmp_path / "in" / "b" / name, rows(20, first=30))
    for place in ("a", "c"):
        write(tmp_path / "in" / place / name, rows(30, first=0 if place == "a" else 60), blank=5)
    given = f"{tmp_path}/in/*/{name}"
    once = score_file(given, METRICS, judge(), tmp_path / "once/", formats=formats, use_cache=False, threshold=3.0)
    score_all(given, tmp_path / "shares", 4, formats=formats, threshold=3.0)
    merged = merge_shares([tmp_path / "shares"], tmp_path / "merged/")
    assert contents(tmp_path / "merged") == contents(tmp_path / "once")
    assert [one.to_dict() for one in merged.summaries] == [one.to_dict() for one in once.summaries]
    assert merged.signatures == once.signatures
    assert merged.rows == 80
    # It goes on like any run: another threshold, another format.
    again = score_file(given, METRICS, judge(), tmp_path / "merged/", formats=["jsonl"], use_cache=False, threshold=2.0)
    assert again.there == 160


def test_killed_twice_and_with_windows_every_byte_is_that_of_the_single_run(tmp_path):
    """The judge's last bits tell any other arrangement of its packs."""
    file = write(tmp_path / "in.jsonl", rows(230), blank=9)
    options = {"window": 20, "use_cache": False}
    out = tmp_path / "shares"

    class Deadly(MockEngine):
        def read(self, requests):
            if self.executed_packs == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().read(requests)

    def deadly() -> MockJudge:
        return MockJudge(Deadly(batch_tokens=2000, sensitive=True))

    def careful() -> MockJudge:
        return MockJudge(MockEngine(batch_tokens=2000, sensitive=True))

    score_file(file, METRICS, careful(), tmp_path / "once/", **options)
    for _ in range(2):
        assert kills_itself(lambda: score_file(file, METRICS, deadly(), out, shard="2/4", **options))
    with pytest.raises(ConfigurationError, match="rows are missing: those of the share 1/4"):
        merge_shares([out], tmp_path / "merged/")
    for number in (1, 3, 4):
        score_file(file, METRICS, careful(), out, shard=f"{number}/4", **options)
    unfinished = out / share_name("2/4")
    with pytest.raises(ConfigurationError, match="1 of 4 shares are not finished") as caught:
        merge_shares([out], tmp_path / "merged/")
    assert f"geval-local resume {unfinished}" in caught.value.hint
    assert not (tmp_path / "merged").exists()
    score_file(file, METRICS, careful(), out, shard="2/4", **options)
    merge_shares(sorted(out.iterdir()), tmp_path / "merged/")
    assert contents(tmp_path / "merged") == contents(tmp_path / "once")


def test_an_id_of_another_share_is_found_when_shares_are_merged(tmp_path):
    records = rows(40)
    records[35]["id"] = records[2]["id"]
    file = write(tmp_path / "in.jsonl", records)
    score_file(file, METRICS, judge(), tmp_path / "once/", use_cache=False)
    score_all(file, tmp_path / "shares", 3)
    merged = merge_shares([tmp_path / "shares"], tmp_path / "merged.jsonl")
    assert (tmp_path / "merged.jsonl").read_bytes() == (tmp_path / "once" / "scores.jsonl").read_bytes()
    assert any("duplicate id 'r2', first seen in row 3" in one.text for one in merged.summaries[0].reasons)
    documents = write(tmp_path / "documents.jsonl", [one | {"id": one["doc_id"]} for one in records])
    score_file(documents, METRICS, judge(), tmp_path / "second/", use_cache=False)
    score_all(documents, tmp_path / "parts", 3)
    merge_shares([tmp_path / "parts"], tmp_path / "joined/")
    assert contents(tmp_path / "joined") == contents(tmp_path / "second")


def test_shares_that_changed_are_merged_again(tmp_path):
    class Failing(MockEngine):
        def read(self, requests):
            return [Readout(None, error="out of luck")] * len(requests)

    file, out, merged = write(tmp_path / "in.jsonl", rows(24)), tmp_path / "shares", tmp_path / "merged/"
    for number in (1, 2):
        broken = MockJudge(Failing(batch_tokens=6000))
        score_file(file, METRICS, judge() if number == 1 else broken, out, use_cache=False, shard=f"{number}/2")
    assert merge_shares([out], merged).summaries[0].unscored > 8
    score_file(file, METRICS, judge(), out, use_cache=False, shard="2/2", retry_errors=True)
    assert merge_shares([out], merged).summaries[0].unscored == 2
    score_file(file, METRICS, judge(), tmp_path / "once/", use_cache=False)
    assert contents(tmp_path / "merged") == contents(tmp_path / "once")
    with pytest.raises(OutputError, match="holds a run that is not made of shares"):
        merge_shares([out], tmp_path / "once/")


def test_several_judges_pairs_and_systems_side_by_side(tmp_path):
    file = write(tmp_path / "in.jsonl", rows(48))
    judges = [judge("one"), judge("two")]
    score_file(file, METRICS, judges, tmp_path / "once/", use_cache=False)
    for number in (1, 2, 3):
        score_file(file, METRICS, judges, tmp_path / "shares", use_cache=False, shard=f"{number}/3")
    merge_shares([tmp_path / "shares"], tmp_path / "merged/")
    assert contents(tmp_path / "merged") == contents(tmp_path / "once")

    plan = PairPlan(group_by="doc_id", system="system")
    score_file(file, FLUENCY, judge(), tmp_path / "pairs/", use_cache=False, pairs=plan)
    for number in (1, 2, 3):
        score_file(file, FLUENCY, judge(), tmp_path / "some", use_cache=False, pairs=plan, shard=f"{number}/3")
    merge_shares([tmp_path / "some"], tmp_path / "all/")
    assert contents(tmp_path / "all") == contents(tmp_path / "pairs")

    wide = write(tmp_path / "wide.jsonl", [{"id": row, "a": f"One {row}.", "b": f"Two {row}."} for row in range(30)])
    for place, options in enumerate(({}, {"window": 8})):
        options |= {"system_columns": ["a", "b"], "use_cache": False}
        score_file(wide, FLUENCY, judge(), tmp_path / f"wide{place}/", **options)
        for number in (1, 2, 3):
            score_file(wide, FLUENCY, judge(), tmp_path / f"narrow{place}", shard=f"{number}/3", **options)
        merge_shares([tmp_path / f"narrow{place}"], tmp_path / f"both{place}/")
        assert contents(tmp_path / f"both{place}") == contents(tmp_path / f"wide{place}")


def test_more_shares_than_rows(tmp_path):
    file = write(tmp_path / "in.jsonl", rows(4))
    with pytest.raises(EmptyShareError, match="no row is left for the share"):
        score_all(file, tmp_path / "shares", 5)
    for number in range(1, 6):
        try:
            score_file(file, METRICS, judge(), tmp_path / "shares", use_cache=False, shard=f"{number}/5")
        except EmptyShareError:
            assert not (tmp_path / "shares" / share_name(f"{number}/5")).exists()
    assert merge_shares([tmp_path / "shares"], tmp_path / "merged.jsonl").rows == 4


# --- what does not belong together ------------------------------------------------------------------------------------


@pytest.fixture
def shares(tmp_path: Path) -> Path:
    write(tmp_path / "in.jsonl", rows(24))
    score_all(tmp_path / "in.jsonl", tmp_path / "shares", 3)
    return tmp_path / "shares"


def test_shares_of_other_runs_are_refused(tmp_path, shares):
    file, merged = tmp_path / "in.jsonl", tmp_path / "merged/"

    def other(shard: str, *, metrics=METRICS, by: str = "mock", file=file, **options) -> list[Path]:
        """The shares with one of another run in place of theirs."""
        place = tmp_path / "other"
        shutil.rmtree(place, ignore_errors=True)
        score_file(file, metrics, judge(by), place, use_cache=False, shard=shard, **options)
        kept = [one for one in sorted(shares.iterdir()) if not one.name.startswith(share_name(shard)[:10])]
        return [*kept, place / share_name(shard)]

    more = write(tmp_path / "more.jsonl", rows(25))
    for shard, options, why in (
        ("2/3", {"metrics": FLUENCY}, "metrics were summarization/coherence, summarization/fluency, are"),
        ("2/3", {"threshold": 3.0}, "`threshold` was None, is 3.0"),
        ("2/3", {"by": "second"}, "their judges have other names"),
        ("2/4", {}, "one is of 3 shares, the other of 4"),
        ("2/3", {"file": more}, "they are of another input"),
        ("2/3", {"window": 8}, "`window` was 4096, is 8"),
    ):
        given = other(shard, **options)
        with pytest.raises(ConfigurationError, match=rf"are no shares of one run: .*{why}"):
            merge_shares(given, merged)
    with pytest.raises(ConfigurationError, match="are the same share"):
        merge_shares([shares, *other("2/3")[2:]], merged)
    with pytest.raises(ConfigurationError, match="rows are missing: those of the share 3/3"):
        merge_shares(sorted(shares.iterdir())[:2], merged)
    score_file(file, METRICS, judge(), tmp_path / "run/")
    with pytest.raises(ConfigurationError, match="is no share of a run"):
        merge_shares([tmp_path / "run"], merged)
    assert not merged.exists()


def test_an_input_that_changed_is_refused(tmp_path, shares):
    text = (tmp_path / "in.jsonl").read_text()
    (tmp_path / "in.jsonl").write_text(text.replace("ends at 13", "ends at 31"))
    with pytest.raises(DataError, match=r"has another content than when .*shard-0002-of-0003 was scored"):
        merge_shares([shares], tmp_path / "merged/")
    with pytest.raises(OutputError, match=r"the input .* has another content"):
        score_file(tmp_path / "in.jsonl", METRICS, judge(), shares, use_cache=False, shard="2/3")
    (tmp_path / "in.jsonl").write_text(text + "\n")
    with pytest.raises(DataError, match="has another content"):
        merge_shares([shares], tmp_path / "merged/")
    (tmp_path / "in.jsonl").write_text(text)
    assert merge_shares([shares], tmp_path / "merged/").rows == 24


def test_a_damaged_store_is_refused_and_computed_again(tmp_path, shares):
    import sqlite3

    store = shares / share_name("2/3") / "scores.sqlite"
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE outcomes SET prompt_tokens = 7 WHERE metric = 0 AND row = 1")
    connection.close()
    with pytest.raises(OutputError, match="is damaged: row 2") as caught:
        merge_shares([shares], tmp_path / "merged/")
    assert f"geval-local resume {store.parent}" in caught.value.hint
    assert not (tmp_path / "merged").exists()
    score_all(tmp_path / "in.jsonl", shares, 3)
    assert merge_shares([shares], tmp_path / "merged/").rows == 24


# --- by the command ---------------------------------------------------------------------------------------------------


def test_by_commands_with_gates(tmp_path):
    file = write(tmp_path / "in.jsonl", rows(12))
    home, out = tmp_path / "home", tmp_path / "out"
    command = ["score", file, "-m", "summarization/fluency", "--no-steps", "-j", judge_directory(), "-o", out]
    for number in (1, 2):
        done = run(*command, "--shard", f"{number}/2", home=home)
        assert done.exit_code == 0, done.stderr
        assert f"geval-local merge {out} -o FILE" in done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["shard-0001-of-0002", "shard-0002-of-0002"]
    early = run("report", out, "-o", tmp_path / "page.html", home=home)
    assert early.exit_code == 2
    assert f"It holds shares. Join them: geval-local merge {out} -o FILE" in early.stderr
    done = run("merge", out, "-o", tmp_path / "all.jsonl", "--json", home=home)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 12
    gated = run("merge", out, "-o", tmp_path / "gated.csv", "--fail-under", "4.99", "--columns", "id,score", home=home)
    assert gated.exit_code == 1
    assert "gate failed" in gated.stderr
    assert (tmp_path / "gated.csv").read_text().startswith("id,summarization/fluency.score\n")
    off = run("merge", out, "-o", tmp_path / "off.jsonl", "--fail-under", "50", home=home)
    assert off.exit_code == 2
    assert "--fail-under 50" in off.stderr
    assert not (tmp_path / "off.jsonl").exists()
    again = run("resume", out / share_name("1/2"), home=home)
    assert again.exit_code == 0, again.stderr
    assert "complete" in again.stderr
    wrong = run("merge", tmp_path, "-o", tmp_path / "x.jsonl", home=home)
    assert wrong.exit_code == 2


def test_an_empty_share_is_no_failure(tmp_path):
    file = write(tmp_path / "in.jsonl", rows(1))
    command = [
        "score",
        file,
        "-m",
        "summarization/fluency",
        "--no-steps",
        "-j",
        judge_directory(),
        "-o",
        tmp_path / "out",
    ]
    done = run(*command, "--shard", "2/2", home=tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    assert "no row is left for the share 2/2" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_resumed_share_keeps_its_rows(tmp_path):
    file = write(tmp_path / "in.jsonl", rows(24))
    score_all(file, tmp_path / "shares", 3)
    directory = tmp_path / "shares" / share_name("2/3")
    before = contents(directory)
    share = read_manifest(directory).input.share
    (directory / "scores.jsonl").unlink()
    resume(directory)
    assert contents(directory) == before
    assert read_manifest(directory).input.share == share
