"""The rows of an ablation where a judge thinks: without thinking, and with other numbers of thoughts."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

from geval_local.analysis.meta_evaluation import meta_evaluate
from geval_local.analysis.ratings.rated import read_rated
from geval_local.analysis.results import read_results
from geval_local.evaluation.kept_scores import RatedJudges
from geval_local.options import JudgeOptions
from geval_local.report.run_page import RunPage
from geval_local.runs.run_file import score_file
from geval_local.testing import MockJudge

METRIC = "summarization/fluency"


class Silent:
    def advance(self, count):
        """Show nothing."""

    reach = advance

    def show_steps(self, metric, tokens):
        """Show nothing."""


@contextmanager
def progress(*_, **__):
    yield Silent()


@pytest.fixture
def file(tmp_path):
    rows = [{"source": f"Tale {n // 2}.", "output": f"It ends at {n}.", "rating": 1 + n % 5} for n in range(12)]
    path = tmp_path / "rated.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("think", "expected"), [(4, ["no thinking", "thinking, K = 1"]), (None, [])])
def test_ablations_of_a_judge_that_thinks_are_tested_against_it(file, monkeypatch, think, expected):
    rated = read_rated(file, metrics=[METRIC], human=["rating"], steps=False)
    choice = JudgeOptions(name="nano", think=think)
    monkeypatch.setattr("geval_local.models.load.check_judge", lambda *_: None)
    judges = RatedJudges(rated, file, [choice], None, lambda given: MockJudge(options=given), progress)
    study = meta_evaluate(rated, judged=lambda taken: judges.score(taken, ablate=True), baselines=False)

    assert [one.name for one in study.contenders] == ["mock", *(f"mock, {name}" for name in expected)]
    tests = [name for name in study.comparisons if " / mock, " in name]
    assert len(tests) == len(expected)


def test_a_page_shows_kept_thoughts_at_their_row(file, tmp_path):
    judge = MockJudge(options=JudgeOptions(think=2))
    score_file(file, METRIC, judge, tmp_path / "out.jsonl", keep_thoughts=True)
    page = RunPage(tmp_path / "out.jsonl").write(tmp_path / "page.html").read_text()
    texts = read_results(tmp_path / "out.jsonl").score(METRIC, 3).thoughts.texts
    assert f"[3,{json.dumps(list(texts), separators=(',', ':'))}]" in page
    score_file(file, METRIC, MockJudge(), tmp_path / "plain.jsonl")
    assert '"thoughts":' not in RunPage(tmp_path / "plain.jsonl").write(tmp_path / "plain.html").read_text()
