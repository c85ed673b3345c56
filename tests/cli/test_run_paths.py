"""Run directories where a result file is expected, and paths that are none."""

from __future__ import annotations

import json
import os
import re

import pytest
from cli_run import read_rows, run
from object_store import store_in_memory
from rated_runs import other_judge, prepare, score

from geval_local.analysis.results import ScoredRun
from geval_local.analysis.tables import Table
from geval_local.cli.output.tables import show_table
from geval_local.errors import DataError
from geval_local.runs.directory import result_file
from geval_local.runs.manifest import read_manifest, write_manifest


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    score(tmp_path, "one/", "--format", "csv", "--format", "jsonl")
    return tmp_path


VERBS = {
    "compare": (("compare", "one/", "two"), ("compare", "one/scores.jsonl", "two/scores.jsonl")),
    "jury": (("jury", "one", "two"), ("jury", "one/scores.jsonl", "two/scores.jsonl")),
    "bias": (("bias", "one", "--side", "side"), ("bias", "one/scores.jsonl", "--side", "side")),
    "meta-eval": (
        ("meta-eval", "data.jsonl", "-m", "clarity.yaml", "--human", "rating.clarity", "--results", "one"),
        ("meta-eval", "data.jsonl", "-m", "clarity.yaml", "--human", "rating.clarity", "--results", "one/scores.jsonl"),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("verb", VERBS)
def test_a_run_directory_stands_for_its_results(here, verb):
    score(here, "two/", judge=other_judge())
    own = ("--across", "judge") if verb == "compare" else ()
    given, meant = (run(*arguments, *own, "--json", home=here) for arguments in VERBS[verb])
    assert given.exit_code == 0, given.stderr
    records = [json.loads(re.sub(r'"(a|b|file|path)": "[^"]*"', r'"\1": ""', one.stdout)) for one in (given, meant)]
    assert records[0] == records[1]


def test_report_and_calibrate_take_one_too(here):
    done = run("report", "one", "-o", "page.html", home=here)
    assert done.exit_code == 0, done.stderr
    assert "<title>data.jsonl" in (here / "page.html").read_text(encoding="utf-8")
    done = run("calibrate", "one", "--human", "rating.clarity", "--group-by", "doc", "-o", "map.json", home=here)
    assert done.exit_code == 0, done.stderr
    assert (here / "map.json").exists()


AT_ADDRESSES = {
    "compare": ("compare", "A", "B", "--across", "judge"),
    "jury": ("jury", "A", "B"),
    "bias": ("bias", "A", "--side", "side"),
    "estimate": ("estimate", "A", "--human", "rating.clarity"),
    "calibrate": ("calibrate", "A", "--human", "rating.clarity", "--group-by", "doc", "-o", "map.json"),
    "meta-eval": ("meta-eval", "DATA", "-m", "clarity.yaml", "--human", "rating.clarity", "--results", "A"),
    "rank": ("rank", "A", "--human", "rating.clarity", "--group-by", "doc", "--system", "side"),
}


@pytest.mark.parametrize("verb", AT_ADDRESSES)
def test_every_analysis_reads_addresses(here, verb):
    score(here, "two/", judge=other_judge())
    files = {"A": "one/scores.jsonl", "B": "two/scores.jsonl", "DATA": "data.jsonl"}
    with store_in_memory() as store:
        addresses = {}
        for name, file in files.items():
            addresses[name] = store.put(file, (here / file).read_bytes())
            if name != "DATA":
                store.put(f"{file}.meta.json", (here / f"{file}.meta.json").read_bytes())
        done = []
        for places in (files, addresses):
            (here / "map.json").unlink(missing_ok=True)
            done.append(run(*(places.get(part, part) for part in AT_ADDRESSES[verb]), "--json", home=here))
    assert [one.exit_code for one in done] == [0, 0], done[1].stderr
    records = [re.sub(r'"[^"]*(scores|data)\.jsonl"', '""', one.stdout) for one in done]
    assert json.loads(records[0]) == json.loads(records[1])


@pytest.mark.parametrize(
    "verb",
    [
        ("report", "one"),
        ("jury", "one", "one"),
        ("calibrate", "one", "--human", "rating.clarity"),
        ("meta-eval", "data.jsonl", "-m", "clarity.yaml", "--human", "rating.clarity"),
        ("reasons", "one", "-m", "clarity"),
    ],
)
def test_no_verb_writes_a_file_named_like_standard_output(here, verb):
    done = run(*verb, "-o", "-", home=here)
    assert done.exit_code == 2, done.stdout
    assert "not written to standard output" in done.stderr
    assert not (here / "-").exists()


def test_in_python_too(here):
    assert [item.predicted for item in ScoredRun.of("one").items("clarity")] == [
        item.predicted for item in ScoredRun.of("one/scores.jsonl").items("clarity")
    ]


def test_a_directory_without_results_is_refused_with_the_remedy(here):
    (here / "empty").mkdir()
    with pytest.raises(DataError, match="holds no run"):
        result_file("empty")
    (here / "one" / "scores.csv").unlink()
    assert result_file("one").name == "scores.jsonl"
    (here / "one" / "scores.jsonl").unlink()
    with pytest.raises(DataError, match="are gone") as caught:
        result_file("one")
    assert caught.value.hint == "Write them again: geval-local resume one"
    manifest = read_manifest(here / "one")
    manifest.ended = None
    write_manifest(here / "one", manifest)
    for arguments in (["compare", "one", "one"], ["report", "one", "-o", "page.html"]):
        done = run(*arguments, home=here)
        assert done.exit_code == 2
        assert "the run in one is not finished" in done.stderr
        assert "geval-local resume one" in done.stderr
    (here / "one").rename(here / ".late.jsonl.run")
    done = run("compare", "late.jsonl", "late.jsonl", home=here)
    assert "Finish it: geval-local resume .late.jsonl.run" in done.stderr


@pytest.mark.sweep
@pytest.mark.parametrize("path", ["/", "..", ".", "", "empty", "no/such/run", "x" * 300])
def test_resume_of_what_is_no_run_is_refused_in_words(here, path):
    (here / "empty").mkdir()
    done = run("resume", path, home=here)
    assert done.exit_code == 2, done.stderr
    assert "there is no run in" in done.stderr or "too long" in done.stderr


@pytest.mark.slow
def test_resume_of_the_directory_at_hand_works(here, monkeypatch):
    before = read_rows(here / "one" / "scores.jsonl")
    (here / "one" / "scores.jsonl").unlink()
    monkeypatch.chdir(here / "one")
    for path in (".", "./", os.curdir + "/../one"):
        done = run("resume", path, home=here)
        assert done.exit_code == 0, done.stderr
    assert read_rows(here / "one" / "scores.jsonl") == before


def test_tables_keep_all_their_columns_where_stdout_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    headers = ["metric", *(f"heading {number} of many" for number in range(12)), "test"]
    row = ["clarity", *(f"{number}.123 [0.001, 9.999]" for number in range(12)), "words " * 30 + "end"]
    show_table(Table(headers=headers, rows=[row], notes=(), title="a wide table"))
    lines = capsys.readouterr().out.splitlines()
    assert any(all(header in line for header in headers) for line in lines)
    assert any(all(cell in line for cell in row) for line in lines)
    show_table(Table(headers=("metric", "mean"), rows=[("clarity", "3")], notes=(), title="a narrow one after it"))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120
