"""``reasons``: which rows, what is kept, and that nothing of the scores changes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from cli_run import METRIC, good_rows, judge_directory, run, write_rows
from run_kit import kills_itself

import geval_local
from geval_local.engine import transformers_backend
from geval_local.judge import reason_writer as reasons
from geval_local.models.generate import Paragraph
from geval_local.models.registry import writes_reasons
from geval_local.options import JudgeOptions

ROWS = 12


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    rows = [*good_rows(ROWS), {"id": "bad", "source": "s", "output": None}]
    write_rows(tmp_path / "data.jsonl", rows)
    done = run(
        "score", "data.jsonl", "-m", "clarity.yaml", "-j", judge_directory(), "-o", "s.jsonl", home=tmp_path / "home"
    )
    assert done.exit_code == 0, done.stderr
    return tmp_path


@pytest.fixture
def written(monkeypatch):
    """Let the judge write quickly; the batches are counted."""
    batches = []

    def write(model, tokenizer, prompts, **_):
        batches.append(len(prompts))
        return [Paragraph(f'It says "it ends at", batch {len(batches)}.', True) for _ in prompts]

    monkeypatch.setattr(transformers_backend, "generate_paragraphs", write)
    return batches


#: Results hold no paths, so that of the judge is given again.
OWN = ("-j", judge_directory())


def give(here, *arguments):
    judge = () if "-j" in arguments else OWN
    return run("reasons", "s.jsonl", *arguments, *judge, home=here / "home")


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def csv_scores(path):
    with path.open(newline="", encoding="utf-8") as file:
        return [float(row["clarity.score"]) for row in csv.DictReader(file) if row["clarity.score"]]


def scores(here):
    rows = records(here / "s.jsonl")
    return {number: row["geval"]["clarity"] for number, row in enumerate(rows, start=1)}


def test_the_lowest_rows_are_explained_and_no_score_changes(here, written):
    before = (here / "s.jsonl").read_bytes()
    done = give(here, "--lowest", 3, "-o", "r.jsonl")
    assert done.exit_code == 0, done.stderr
    assert (here / "s.jsonl").read_bytes() == before
    known = scores(here)
    lowest = sorted((row for row in known if known[row].get("error") is None), key=lambda row: known[row]["score"])[:3]
    found = records(here / "r.jsonl")
    assert [record["row"] for record in found] == sorted(lowest)
    for record in found:
        figures = known[record["row"]]
        assert record["score"] == figures["score"]
        assert record["label"] == figures["mode"]
        assert record["cites_text"]
        assert len(record["prompt_sha256"]) == 64
    assert not [path.name for path in here.iterdir() if "reasons" in path.name]


def test_of_a_table_too_and_a_judge_that_cannot_write_is_told(here, written):
    done = run("score", "data.jsonl", "-m", "clarity.yaml", "-o", "s.csv", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert "next:" in done.stderr
    assert "geval-local reasons" not in done.stderr  # nano's say nothing, as `judges check` shows
    assert "geval-local reasons" not in run("report", "s.csv", "-o", "s.html", home=here / "home").stderr
    done = run("reasons", "s.csv", "--lowest", 2, "-o", "r.jsonl", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert "warning: nano can score but not write" in done.stderr
    lowest = sorted(csv_scores(here / "s.csv"))[:2]
    assert sorted(record["score"] for record in records(here / "r.jsonl")) == lowest
    assert "not write" not in give(here, "--lowest", 1, "-o", "r2.jsonl").stderr


def test_reasons_are_offered_of_every_judge_but_those_that_cannot_write(here):
    names = ("nano", "smol", "qwen2.5-7b", judge_directory(), "gone")
    offered = [writes_reasons(JudgeOptions(name=str(name)), None) for name in names]
    assert offered == [False, False, True, True, True]


def test_reasons_are_offered_as_a_check_of_this_judge_found(here):
    own, home = here / "own", here / "home"
    shutil.copytree(Path(geval_local.__file__).parent / "judges/nano", own)
    told = {}
    for name in ("before", "after"):
        done = run("score", "data.jsonl", "-m", "clarity.yaml", "-j", own, "-o", f"{name}.jsonl", home=home)
        shown = run("report", f"{name}.jsonl", "-o", f"{name}.html", home=home)
        told[name] = ["geval-local reasons" in one.stderr for one in (done, shown)]
        checked = run("judges", "check", own, "--metric", "clarity.yaml", "--json", home=home)
        assert not json.loads(checked.stdout)["reasons"]["can_write"]
    assert told == {"before": [True, True], "after": [False, False]}


def test_rows_by_entropy_and_all_rows(here, written):
    known = scores(here)
    middle = sorted(figures["entropy"] for figures in known.values() if figures.get("error") is None)[ROWS // 2]
    assert give(here, "--entropy", middle, "-o", "r.jsonl").exit_code == 0
    assert {record["row"] for record in records(here / "r.jsonl")} == {
        row for row, figures in known.items() if figures.get("error") is None and figures["entropy"] >= middle
    }
    assert give(here, "--all", "-o", "all.jsonl").exit_code == 0
    assert len(records(here / "all.jsonl")) == ROWS  # the bad row has no score to explain


@pytest.fixture
def batches(monkeypatch):
    """Small batches, whose texts tell what was written together; in the third one what is called happens."""
    asked, third = [], []

    def write(model, tokenizer, prompts, **_):
        if len(asked) == 2 and third:
            third[0]()
        asked.append([len(prompt) for prompt in prompts])
        return [Paragraph(f'It says "it ends at", {len(prompt)} beside {asked[-1]}.', True) for prompt in prompts]

    def stop_by(what):
        asked.clear()
        third[:] = [] if what is None else [what]
        return asked

    monkeypatch.setattr(reasons, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr("geval_local.runs.run_file.ROWS_IN_HAND", 8)
    monkeypatch.setattr(transformers_backend, "generate_paragraphs", write)
    return stop_by


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("how", ["the same command", "resume", "interrupted"])
def test_a_command_that_ends_in_the_middle_goes_on_and_finds_the_same_file(here, batches, how):
    asked = batches(None)
    assert give(here, "--all", "-o", "whole.jsonl").exit_code == 0
    expected = [*asked]
    assert [len(batch) for batch in expected] == [3, 3, 2, 3, 1]
    files = sorted(path.name for path in here.iterdir())
    batches(interrupt if how == "interrupted" else kill)
    if how == "interrupted":
        done = give(here, "--all", "-o", "r.jsonl")
        assert done.exit_code == 3
        assert "geval-local resume .r.jsonl.run" in done.stderr
    else:
        assert kills_itself(lambda: give(here, "--all", "-o", "r.jsonl"))
    assert not (here / "r.jsonl").exists()
    batches(None)
    assert "another configuration" in give(here, "--lowest", 2, "-o", "r.jsonl").stderr
    again = ("resume", "r.jsonl") if how == "resume" else ("reasons", "s.jsonl", "--all", "-o", "r.jsonl", *OWN)
    done = run(*again, "--json", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert asked == expected[2:], "what was finished was written again, or in other batches"
    assert (here / "r.jsonl").read_bytes() == (here / "whole.jsonl").read_bytes()
    assert json.loads(done.stdout)["reasons"] == records(here / "r.jsonl")
    assert sorted(path.name for path in here.iterdir()) == sorted([*files, "r.jsonl", "r.jsonl.meta.json"])


def test_the_same_command_again_finds_its_file_complete_and_loads_no_judge(here, written, monkeypatch):
    assert give(here, "--lowest", 3, "-o", "r.jsonl").exit_code == 0
    before = (here / "r.jsonl").read_bytes()
    asked = len(written)
    done = give(here, "--lowest", 3, "-o", "r.jsonl", "--json")
    assert done.exit_code == 0, done.stderr
    assert "r.jsonl is complete: 3 reasons; --overwrite writes them again" in done.stderr
    assert "loading the judge" not in done.stderr
    assert json.loads(done.stdout)["reasons"] == records(here / "r.jsonl")
    again = run("resume", "r.jsonl", home=here / "home")
    assert again.exit_code == 2
    assert "r.jsonl is complete" in again.stderr
    assert run("report", "s.jsonl", "--reasons", "r.jsonl", "-o", "p.html", home=here / "home").exit_code == 0
    assert (len(written), (here / "r.jsonl").read_bytes()) == (asked, before)
    done = give(here, "--lowest", 3, "-o", "r.jsonl", "--overwrite")
    assert done.exit_code == 0, done.stderr
    assert len(written) == 2 * asked


@pytest.mark.parametrize("what", ["other rows", "other tokens", "other words", "another judge", "other scores"])
def test_another_command_writes_its_own_reasons_in_the_place_of_an_unchanged_file(here, written, what):
    assert give(here, "--lowest", 3, "-o", "r.jsonl").exit_code == 0
    asked = len(written)
    options = {
        "other rows": ("--lowest", 4),
        "other tokens": ("--lowest", 3, "--tokens", 9),
        "other words": ("--lowest", 3, "--request", "Warum?"),
        "another judge": ("--lowest", 3, "-j", f"{judge_directory()},dtype=float64"),
        "other scores": ("--lowest", 3),
    }[what]
    if what == "other scores":
        write_rows(here / "data.jsonl", good_rows(ROWS + 1))
        arguments = ("data.jsonl", "-m", "clarity.yaml", "-j", judge_directory(), "-o", "s.jsonl")
        assert run("score", *arguments, home=here / "home").exit_code == 0
    done = give(here, *options, "-o", "r.jsonl")
    assert done.exit_code == 0, done.stderr
    assert "wrote" in done.stderr
    assert len(written) > asked


def test_a_file_of_reasons_that_was_edited_is_the_users(here, written):
    assert give(here, "--lowest", 3, "-o", "r.jsonl").exit_code == 0
    edited = (here / "r.jsonl").read_text().replace("batch", "my own word")
    (here / "r.jsonl").write_text(edited)
    for options in (("--lowest", 3), ("--lowest", 2)):
        done = give(here, *options, "-o", "r.jsonl")
        assert done.exit_code == 2
        assert "--overwrite" in done.stderr
    assert (here / "r.jsonl").read_text() == edited
    assert give(here, "--lowest", 3, "-o", "r.jsonl", "--overwrite").exit_code == 0
    assert "my own word" not in (here / "r.jsonl").read_text()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("step", ["describe", "clear_away"])
def test_a_command_that_ends_between_its_file_and_its_end_goes_on(here, written, monkeypatch, step):
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(f"geval_local.runs.completion.{step}", die)
        assert kills_itself(lambda: give(here, "--lowest", 3, "-o", "r.jsonl"))
    assert (here / "r.jsonl").exists()
    done = give(here, "--lowest", 3, "-o", "r.jsonl")
    assert done.exit_code == 0, done.stderr
    assert not (here / ".r.jsonl.run").exists()
    assert "is complete" in give(here, "--lowest", 3, "-o", "r.jsonl").stderr


def interrupt():
    raise KeyboardInterrupt


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-o", "r.jsonl"), "--lowest N"),
        (("--all", "--lowest", 2, "-o", "r.jsonl"), "--lowest N"),
        (("--entropy", 99, "-o", "r.jsonl"), "no row to give a reason for"),
        (("--all", "-o", "s.jsonl"), "it is the run"),
        (("--all", "-o", "r.csv"), ".jsonl"),
        (("--all", "-o", "nowhere/r.jsonl"), "nowhere"),
        (("--all", "-o", "link.jsonl"), "it is a link"),
        (("--all", "-o", "r.jsonl", "--field", "output=nothing"), "nothing"),
        (("--all", "-o", "mine.jsonl"), "--overwrite"),
        (("--all", "-o", "r.jsonl", "-m", "other"), "no scores of 'other'"),
    ],
)
def test_what_cannot_be_done_is_said_before_a_judge_is_loaded(here, written, arguments, told):
    (here / "mine.jsonl").write_text("my own\n")
    (here / "link.jsonl").symlink_to("mine.jsonl")
    done = give(here, *arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "loading the judge" not in done.stderr
    assert (here / "mine.jsonl").read_text() == "my own\n"


def test_a_reason_without_a_citation_is_told(here, monkeypatch):
    monkeypatch.setattr(
        transformers_backend,
        "generate_paragraphs",
        lambda *given, **_: [Paragraph("It is fine.", True)] * len(given[2]),
    )
    done = give(here, "--lowest", 2, "-o", "r.jsonl", "--json")
    assert "2 of 2 reasons cite nothing" not in done.stderr  # the object has it
    assert [record["cites_text"] for record in json.loads(done.stdout)["reasons"]] == [False, False]
    assert "2 of 2 reasons cite nothing" in give(here, "--lowest", 2, "-o", "r2.jsonl").stderr
