"""Jobs of a pipeline: every way in which answers, runs and configurations change, with exit code, log and both files.

A judge that reads its score from the answer makes drops exact, so that each job has one right verdict.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from cli_run import METRIC, judge_directory, read_rows, run, write_rows
from job_world import World, in_language, make_world


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    return make_world(tmp_path, monkeypatch)


# --- what a job finds: what happened before, and the job's answers ----------------------------------------------------


def first(world: World) -> None:
    world.answers()


def equal(world: World) -> None:
    world.good()


def bad(world: World) -> None:
    world.good()
    world.answers(0.5)


def better(world: World) -> None:
    world.good()
    world.answers(-0.3)


def bad_in_one_language(world: World) -> None:
    world.good()
    world.answers(0.4, in_language("tr"))


def reordered(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: rows[::-1])


def few_added(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: [*rows, *({**row, "id": f"n{row['id']}"} for row in rows[:3])])


def many_added(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: [*rows, *({**row, "id": f"n{row['id']}"} for row in rows[:30])])


def half_missing(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: rows[:30])


def few_missing(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: rows[:57])


def language_missing(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: [row for row in rows if row["language"] != "ar"])


def language_mostly_missing(world: World) -> None:
    """Six of sixty rows are few, and they are a third of a language."""
    world.good()
    world.answers(
        change=lambda rows: [row for row in rows if not (row["language"] == "ar" and int(row["id"][1:]) < 18)]
    )


def bad_rows_have_new_ids(world: World) -> None:
    world.good()
    world.answers(1.0, change=lambda rows: [rows[0], *({**row, "id": f"n{row['id']}"} for row in rows[1:])])


def language_renamed(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: [row | {"language": row["language"].replace("ar", "arabic"), "id": row["id"].replace("q", "a") if row["language"] == "ar" else row["id"]} for row in rows])  # fmt: skip # noqa: E501


def language_added(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: [*rows, *({**row, "id": f"p{row['id']}", "language": "pl"} for row in rows[:5])])


def baseline_of_two_rows(world: World) -> None:
    world.answers(change=lambda rows: rows[:2])
    world.run("--accept", code=0)
    world.commit()
    world.answers(1.0)


def new_rows_unscored(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: [row | {"output": ""} if n < 58 else row for n, row in enumerate(rows)])


def few_unscored(world: World) -> None:
    world.good()
    world.answers(change=lambda rows: [row | {"output": ""} if n < 2 else row for n, row in enumerate(rows)])


def retried(world: World) -> None:
    """The failed attempt of this commit is no baseline, nor is its retry by other bytes."""
    bad(world)
    world.run(code=1)
    world.answers(0.5, change=lambda rows: rows[::-1])


def retried_after_another_commit(world: World) -> None:
    """A run whose gates failed is no baseline for the next commit."""
    bad(world)
    world.run(code=1)
    world.commit()
    world.answers(0.51)


def retried_the_next_day(world: World) -> None:
    bad(world)
    world.run(code=1)
    for path in world.runs():
        path.rename(path.with_name(f"2020-01-01-{path.name[11:]}"))


def of_one_commit(world: World) -> None:
    """The same commit is never compared with itself, even where its gates held."""
    world.answers()
    world.run(code=0)
    world.answers(0.5)


def limited_before(world: World) -> None:
    world.good()
    world.answers(0.01)
    world.run("--set", "data.answers.limit=2", "--set", "baseline.max_unpaired=100%", code=None)
    world.commit()
    world.answers(0.5)


def limited_in_the_file_before(world: World) -> None:
    """A limit that was in the file for one run makes it no baseline without it."""
    world.good()
    world.edit("file: answers.jsonl", "file: answers.jsonl, limit: 3")
    world.run("--accept", code=0)
    world.commit()
    world.edit(", limit: 3", "")
    world.answers(0.5)


def older_version_before(world: World) -> None:
    """A run of another version, which has no verdict, is not read."""
    world.good()
    old = world.path / "runs" / "2020-01-01-0123456789" / "answers"
    shutil.copytree(world.runs()[0] / "answers", old)
    manifest = old / "manifest.json"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace('"schema_version": 2', '"schema_version": 1'), encoding="utf-8")


def other_file_before(world: World) -> None:
    world.good()
    shutil.copy(world.path / "evaluation.yaml", world.path / "other.yaml")
    world.answers(0.5)
    world.run("--accept", file="other.yaml", code=0)
    world.commit()


def file_without_a_run(world: World) -> None:
    world.answers()
    world.run(code=0)
    world.commit()
    shutil.copy(world.path / "evaluation.yaml", world.path / "other.yaml")
    world.edit("baseline: last", "baseline: {require: true}")


def interrupted_before(world: World) -> None:
    world.good()
    (directory,) = world.runs()
    (directory / "gates.json").unlink()


def required(world: World) -> None:
    world.answers()
    world.edit("baseline: last", "baseline: {require: true}")


def metric_added(world: World) -> None:
    world.good()
    (world.path / "style.yaml").write_text(METRIC.replace("clarity", "style"), encoding="utf-8")
    world.edit("  - clarity.yaml\n", "  - clarity.yaml\n  - style.yaml\n")


def metric_renamed(world: World) -> None:
    world.good()
    world.edit("name: clarity", "name: lucidity", "clarity.yaml")


def metric_changed(world: World) -> None:
    world.good()
    world.edit("How clear", "How very clear", "clarity.yaml")


def metric_changed_and_accepted(world: World) -> None:
    metric_changed(world)
    world.more = ["--accept"]


def metric_accepted_before(world: World) -> None:
    metric_changed(world)
    world.run("--accept", code=0)
    world.commit()
    world.answers(0.5)


def metric_changed_across(world: World) -> None:
    metric_changed(world)
    world.edit("baseline: last", "baseline: {across: [metric]}")


def judge_changed(world: World) -> None:
    world.good()
    (world.path / "other").symlink_to(judge_directory())
    world.edit("- tiny", "- other")


def data_renamed(world: World) -> None:
    world.good()
    world.edit("  answers: {file: answers.jsonl}", "  replies: answers.jsonl")


def data_added(world: World) -> None:
    world.good()
    shutil.copy(world.path / "answers.jsonl", world.path / "more.jsonl")
    world.edit("  answers: {file: answers.jsonl}\n", "  answers: {file: answers.jsonl}\n  more: more.jsonl\n")


def manifest_damaged(world: World) -> None:
    world.good()
    (world.runs()[0] / "answers" / "manifest.json").write_text("{", encoding="utf-8")


def verdict_edited(world: World) -> None:
    bad(world)
    world.run(code=1)
    verdict = world.runs()[-1] / "gates.json"
    verdict.write_text(verdict.read_text(encoding="utf-8").replace('"held": false', '"held": true'), encoding="utf-8")
    world.commit()


def results_edited(world: World) -> None:
    world.good()
    path = world.runs()[0] / "answers" / "scores.jsonl"
    rows = read_rows(path)
    for row in rows:
        row["geval"]["clarity"]["score"] = 1.0
    write_rows(path, rows)
    world.answers(0.5)


def results_gone(world: World) -> None:
    world.good()
    (world.runs()[0] / "answers" / "scores.jsonl").unlink()


def two_documents(world: World) -> None:
    world.answers(change=lambda rows: rows[:2])
    world.run("--accept", code=0)
    world.commit()
    world.answers(0.5, change=lambda rows: rows[:2])


def two_documents_may_pass(world: World) -> None:
    two_documents(world)
    world.edit("baseline: last", "baseline: {undecided: pass}")


def judge_added(world: World) -> None:
    judge_changed(world)
    world.edit("- other", "- tiny\n  - other")
    world.answers(0.5)


def judge_removed(world: World) -> None:
    judge_added(world)
    world.run("--accept", code=0)
    world.commit()
    world.edit("  - other\n", "")


def data_removed(world: World) -> None:
    data_added(world)
    world.run(code=0)
    world.commit()
    world.edit("  more: more.jsonl\n", "")


def unpaired_allowed(world: World) -> None:
    half_missing(world)
    world.edit("baseline: last", "baseline: {max_unpaired: 60%}")


def margin_of_a_point(world: World) -> None:
    world.good()
    world.answers(0.1)
    world.edit("    not_worse: true\n    by: {language: {not_worse: true}}", "    not_worse: 0.5")


def mean_of_a_language_is_low(world: World) -> None:
    world.answers(1.5, in_language("ar"))
    world.edit("by: {language: {not_worse: true}}", "by: {language: {mean: '>= 3'}}")


#: Job -> exit code, failed, skipped and all test cases, and what log and summary say.
JOBS: list[tuple[Callable[[World], None], int, tuple[int, int, int] | None, list[str]]] = [
    (first, 0, (0, 2, 3), ["no earlier run is a baseline (there is none)", "begins with the next run"]),
    (equal, 0, (0, 0, 5), []),
    (bad, 1, (4, 0, 5), ["clarity: the mean fell by 0.49", "language = tr: the mean fell by"]),
    (better, 0, (0, 0, 5), []),
    (bad_in_one_language, 1, (2, 0, 5), ["language = tr: the mean fell by 0.37"]),
    (reordered, 0, (0, 0, 5), []),
    (few_added, 0, (0, 0, 5), []),
    (many_added, 1, (4, 0, 5), ["30 of 90 rows of the new run have no partner with a score, and 10% may"]),
    (half_missing, 1, (4, 0, 5), ["30 of 60 rows of the baseline have no partner with a score"]),
    (few_missing, 0, (0, 0, 5), []),
    (language_missing, 1, (2, 0, 5), ["language = ar: this slice vanished: the baseline has 20 rows of it"]),
    (language_mostly_missing, 1, (1, 0, 5), ["language = ar: 6 of 20 rows of the baseline have no partner"]),
    (bad_rows_have_new_ids, 1, (4, 0, 5), ["59 of 60 rows of the new run and 59 of 60 rows of the baseline"]),
    (language_renamed, 1, (2, 1, 6), ["language = ar: this slice vanished", "language = arabic: this slice is new"]),
    (language_added, 0, (0, 1, 6), ["language = pl: this slice is new: the comparison begins with the next run"]),
    (baseline_of_two_rows, 1, None, ["58 of 60 rows of the new run have no partner"]),
    (
        new_rows_unscored,
        1,
        None,
        ["58 of 60 rows are unscored", "58 of 60 rows of the new run and 58 of 60 rows of the"],
    ),
    (few_unscored, 0, (0, 0, 5), []),
    (retried, 1, (4, 0, 5), ["the mean fell by 0.5"]),
    (retried_after_another_commit, 1, (4, 0, 5), ["the mean fell by 0.5"]),
    (retried_the_next_day, 1, (4, 0, 5), ["the mean fell by 0.5"]),
    (of_one_commit, 0, (0, 2, 3), ["1 is of this commit"]),
    (limited_before, 1, (4, 0, 5), ["the mean fell by 0.5"]),
    (limited_in_the_file_before, 1, (4, 0, 5), ["the mean fell by 0.5"]),
    (older_version_before, 0, (0, 0, 5), []),
    (other_file_before, 1, (4, 0, 5), ["the mean fell by 0.5"]),
    (file_without_a_run, 0, (0, 0, 5), []),
    (interrupted_before, 0, (0, 2, 3), ["did not end, or its gates are not known"]),
    (required, 1, (2, 0, 3), ["the evaluation requires one; the first run needs `accept: true`"]),
    (metric_added, 0, (0, 2, 8), ["style: ", "has no scores of it, only of clarity: the comparison begins with the"]),
    (metric_renamed, 0, (0, 2, 3), ["lucidity: ", "the comparison begins with the next run"]),
    (metric_changed, 1, (1, 0, 2), ["metric clarity: changed in criteria", "`accept: true` below `baseline`"]),
    (metric_changed_and_accepted, 0, (0, 1, 2), ["accepted as the next baseline"]),
    (metric_accepted_before, 1, (4, 0, 5), ["the mean fell by 0.5"]),
    (metric_changed_across, 0, (0, 0, 5), []),
    (judge_changed, 1, (1, 0, 2), ["judge was tiny@", "is other@"]),
    (data_renamed, 2, None, ["has no data 'replies', and this file no data 'answers': was it renamed?"]),
    (data_added, 0, (0, 2, 8), ["more: clarity: the data more are new"]),
    (two_documents, 1, (3, 0, 4), ["no test of so few can show a drop", "(`undecided: pass` lets it pass)"]),
    (two_documents_may_pass, 0, (0, 3, 4), ["no test of so few can show a drop", "it passes: `undecided: pass`"]),
    (judge_added, 1, (2, 0, 4), ["the baseline has clarity and no clarity@tiny", "accept this run as the next"]),
    (judge_removed, 1, (1, 0, 2), ["the baseline has clarity@tiny, clarity@other and no clarity:"]),
    (data_removed, 0, (0, 1, 6), ["more: all: the baseline has these data and this file has not"]),
    (manifest_damaged, 2, None, ["the manifest is damaged, or that of another run"]),
    (verdict_edited, 2, None, ["gates.json is damaged or was edited"]),
    (results_edited, 2, None, ["is not the file that scores.jsonl.meta.json describes: it was changed"]),
    (results_gone, 2, None, ["the results of the run", "are gone"]),
    (unpaired_allowed, 0, (0, 0, 5), []),
    (margin_of_a_point, 0, (0, 0, 2), ["not lower by 0.5 or more"]),
    (mean_of_a_language_is_low, 1, (1, 1, 5), ["language = ar: the mean 1.9"]),
]


@pytest.mark.parametrize("arguments", [["run", "--agianst", "last"], ["run", "--retry-errors=x"], ["gate", "no.jsonl"]])
def test_a_command_that_cannot_be_read_leaves_no_green_file(world, arguments):
    """The file of an earlier run is marked also where the options, or a path, end the command before its body."""
    world.good()
    verb, *more = arguments
    assert 'failures="0"' in (world.path / "gates.xml").read_text(encoding="utf-8")
    reports = ("--junit", "gates.xml", "--summary", "job.md")
    done = run(verb, "evaluation.yaml", *more, *reports, home=world.path / "home")
    assert done.exit_code == 2, done.stderr
    for name in ("gates.xml", "job.md"):
        assert "no verdict" in (world.path / name).read_text(encoding="utf-8")
    if verb == "run":  # of the same evaluation
        world.good()
        assert "no verdict" not in (world.path / "job.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("prepare", "code", "counts", "told"), JOBS, ids=[job[0].__name__ for job in JOBS])
def test_a_job_has_its_verdict_in_log_summary_and_test_cases(world, prepare, code, counts, told):
    prepare(world)
    done = world.run(*world.more)
    log = " ".join(done.stderr.split())
    assert done.exit_code == code, log
    for text in told:
        assert text in log
    cases = list(ElementTree.parse(world.path / "gates.xml").getroot().iter("testcase"))
    found = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "skipped")}
    summary = (world.path / "job.md").read_text(encoding="utf-8").split("<!-- geval-local gates")[-1]
    if code == 2:
        # Nothing of an earlier run stays green.
        assert (found, len(cases)) == ({"failure": 1, "skipped": 0}, 1)
        assert "no verdict" in summary
        return
    if counts is not None:
        assert (found["failure"], found["skipped"], len(cases)) == counts, log
    assert summary.count("### evaluation.yaml") == 1
    assert summary.count("\n| failed |") == found["failure"]
    assert summary.count("\n| skipped |") == found["skipped"]
    assert ("gates failed" in summary) == (code == 1)
    # The record says whether this run may be the next baseline.
    record = json.loads((world.runs()[-1] / "gates.json").read_text(encoding="utf-8"))
    assert record["held"] == (code == 0)
