"""``--by`` on the command line: figures, limits and warnings of slices, in a table, as JSON and on the page."""

from __future__ import annotations

import json
import re

import pytest
from cli_run import METRIC, good_rows, read_rows, run, write_rows

from geval_local import score_file
from geval_local.errors import ConfigurationError, Interrupted
from geval_local.judge.judge import Judge
from geval_local.runs.events import RunEvents
from geval_local.runs.run_file import resume
from geval_local.testing import MockJudge


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Judge, "load", lambda options, **_: MockJudge(name="mock"))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    rows = [row | {"source": f"Tale {n}.", "language": "de" if n % 3 else None} for n, row in enumerate(good_rows(30))]
    write_rows(tmp_path / "rows.jsonl", rows)
    return tmp_path


def score(here, *arguments):
    return run("score", "rows.jsonl", "-m", "clarity.yaml", "-j", "nano", *arguments, home=here / "home")


def test_slices_have_the_means_of_their_rows_and_a_limit_names_the_one_that_fails(here):
    done = score(here, "--by", "language", "--by", "length", "-o", "out.jsonl", "--fail-slice-under", "1", "--json")
    assert done.exit_code == 0, done.stderr
    figures = json.loads(done.stdout)["metrics"]["clarity"]["by"]
    assert list(figures) == ["language", "length"]
    scores = {"de": [], "(none)": []}
    for row in read_rows(here / "out.jsonl"):
        scores[row["language"] or "(none)"].append(row["geval"]["clarity"]["score"])
    for name, own in scores.items():
        assert figures["language"][name]["mean"] == pytest.approx(sum(own) / len(own))
        assert figures["language"][name]["rows"] == figures["language"][name]["documents"] == len(own)
    least = min(scores, key=lambda name: sum(scores[name]) / len(scores[name]))
    limit = sum(sum(own) / len(own) for own in scores.values()) / 2
    failed = score(here, "--by", "language", "-o", "out.jsonl", "--fail-slice-under", limit)
    assert failed.exit_code == 1
    assert f"gate failed: clarity, language = {least}: the mean" in failed.stderr
    assert "gates: 1 of 2 hold" in failed.stderr
    table = failed.stdout.split("language ")[1]
    assert re.search(r"^de +20/20 +20 ", table, re.MULTILINE)
    assert re.search(r"^\(none\) +10/10 +10 ", table, re.MULTILINE)


def test_small_slices_are_warned_of(here):
    write_rows(here / "rows.jsonl", read_rows(here / "rows.jsonl")[:12])
    done = score(here, "--by", "language")
    assert "slices of language with few documents say little: de (8 documents), (none) (4 documents)" in done.stderr


def test_a_limit_of_slices_needs_a_column(here):
    done = score(here, "--fail-slice-under", "3")
    assert done.exit_code == 2
    assert "--by COLUMN" in done.stderr
    done = score(here, "--by", "language", "--fail-slice-under", "9")
    assert "9 is outside the scale 1-5" in done.stderr
    with pytest.raises(ConfigurationError, match="`by` does not go with"):
        score_file("rows.jsonl", "clarity.yaml", "nano", "parts/", workers="ray", by=["language"])


def test_a_resumed_run_keeps_its_slices(here):
    class Once(RunEvents):
        def should_stop(self) -> bool:
            return True

    with pytest.raises(Interrupted):
        score_file("rows.jsonl", "clarity.yaml", "nano", "run/", by="language", window=8, events=Once())
    (summary,) = resume("run/").summaries
    whole = score_file("rows.jsonl", "clarity.yaml", MockJudge(name="mock"), "whole/", by=["language"], window=8)
    assert summary.slices == whole.summaries[0].slices
    assert [one.summary.rows for one in summary.slices] == [20, 10]


def test_a_report_shows_slices_of_results_that_were_scored_without(here):
    assert score(here, "-o", "out.jsonl").exit_code == 0
    done = run("report", "out.jsonl", "-o", "page.html", "--by", "language", home=here / "home")
    assert done.exit_code == 0, done.stderr
    page = (here / "page.html").read_text(encoding="utf-8")
    assert "by language" in page
    assert "20 of 20" in page
    wrong = run("report", "out.jsonl", "-o", "page.html", "--by", "langage", home=here / "home")
    assert wrong.exit_code == 2
    assert "did you mean 'language'" in wrong.stderr


def test_a_gate_compares_two_runs_and_options_that_moved_name_it(here):
    assert score(here, "-o", "new.jsonl").exit_code == 0
    assert score(here, "-o", "old.jsonl").exit_code == 0
    held = run("gate", "new.jsonl", "old.jsonl", "--by", "language", "--junit", "j.xml", home=here / "home")
    assert held.exit_code == 0, held.stderr
    assert "gates: 3 of 3 hold" in held.stderr
    assert (here / "j.xml").read_text(encoding="utf-8").count("<testcase") == 3
    strict = run("gate", "new.jsonl", "old.jsonl", "--not-worse", "0.01", "--json", home=here / "home")
    assert strict.exit_code == 1
    (found,) = json.loads(strict.stdout)["changes"]
    assert found["passed"] is False
    assert found["documents"] == 30
    for option in ("--fail-if-worse", "--margin=1", "--sequential", "--by=language", "--junit=x", "--summary=x"):
        done = run("compare", "new.jsonl", "old.jsonl", option, home=here / "home")
        assert done.exit_code == 2
        assert "geval-local gate NEW OLD" in done.stderr


def test_a_score_that_ends_early_leaves_no_green_file(here):
    given = ("--fail-under", "1", "--label-mass", "0", "--junit", "j.xml", "--summary", "job.md")
    assert score(here, "-o", "out.jsonl", *given).exit_code == 0
    assert 'failures="0"' in (here / "j.xml").read_text(encoding="utf-8")
    assert score(here, "-o", "out.jsonl", "--threshold", "9", *given).exit_code == 2
    assert 'failures="1"' in (here / "j.xml").read_text(encoding="utf-8")
    told = (here / "job.md").read_text(encoding="utf-8")
    assert told.count("###") == 1
    assert "no verdict" in told
