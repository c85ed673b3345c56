"""Runs of pairs and of several looks: durable as every run, and cheaper than asking each form by itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
from run_kit import engine, read

from geval_local import Judge, Metric, RunEvents, resume, score_file
from geval_local.analysis.preferences import read_preferences
from geval_local.analysis.results import ScoredRun
from geval_local.engine.window import plan_units
from geval_local.errors import DataError, Interrupted, OutputError
from geval_local.io.input_files import read_samples
from geval_local.io.pairs import PairPlan, pair_samples
from geval_local.io.samples import Sample
from geval_local.questions.pair import pair_metric
from geval_local.testing import MockJudge

METRIC = Metric.load("summarization/coherence").with_steps(())
KEY = "summarization/coherence/pairs"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    rows = [
        {
            "doc_id": f"d{document}",
            "system": system,
            "source": f"Tale {document}. " * 20,
            "output": f"It ends at {document}{system}." * (1 + ord(system) % 3),
        }
        for document in range(6)
        for system in "abcd"
    ]
    rows[5]["output"] = ""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "data.jsonl").write_text(text + "{broken\n", encoding="utf-8")
    return tmp_path


class StopAt(RunEvents):
    def __init__(self, forms: int) -> None:
        self.forms, self.done = forms, 0

    def on_progress(self, done: int) -> None:
        self.done = done

    def should_stop(self) -> bool:
        return self.done >= self.forms


def test_pairs_are_judged_in_both_orders_and_bad_rows_keep_their_reasons(here):
    judge = MockJudge()
    result = score_file("data.jsonl", METRIC, judge, "pairs.jsonl", pairs=PairPlan(), use_cache=False)
    rows = read(here / "pairs.jsonl")
    assert len(rows) == result.rows == 6 * 6 + 1
    assert "not valid JSON" in rows[-1]["geval"][KEY]["error"]
    empty = [row for row in rows[:-1] if 6 in (row["row_a"], row["row_b"])]
    assert len(empty) == 3
    assert all("row 6: the field 'output' is empty" in row["geval"][KEY]["error"] for row in empty)
    metric = pair_metric(METRIC)
    samples = list(pair_samples(read_samples("data.jsonl"), PairPlan()))
    expected = judge.score_many(metric, samples)
    for row, score in zip(rows[:-1], expected, strict=False):
        figures = row["geval"][KEY]
        assert figures["score"] == (score.value if score.is_scored else None)
        if score.is_scored:
            p = figures["probabilities"]
            assert figures["score"] == pytest.approx(p["A"] + p["tie"] / 2)
            assert figures["score"] == pytest.approx(np.mean(figures["order_scores"]))
    assert "source" not in rows[0]  # texts stay in the input
    found = read_preferences(ScoredRun.of("pairs.jsonl"), KEY)
    assert [one.value for one in found[:2]] == pytest.approx([row["geval"][KEY]["score"] for row in rows[:2]])
    assert sum(one.error is not None for one in found) == 4


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_last_byte(here):
    plan = PairPlan(budget=30, seed=1)

    def run(place, events=None):
        judge = MockJudge(engine(batch_tokens=8000))
        score_file("data.jsonl", METRIC, judge, place, pairs=plan, window=8, use_cache=False, events=events)

    run("whole/")
    with pytest.raises(Interrupted):
        run("parts/", StopAt(12))
    with pytest.raises(Interrupted):
        run("parts/", StopAt(40))
    run("parts/")
    assert (here / "parts/scores.jsonl").read_bytes() == (here / "whole/scores.jsonl").read_bytes()
    judge = MockJudge(engine(batch_tokens=8000))
    again = PairPlan(budget=31, seed=1)
    with pytest.raises(OutputError, match="`pairs` was"):
        score_file("data.jsonl", METRIC, judge, "parts/", pairs=again, window=8, use_cache=False)


def test_both_orders_are_read_back_from_every_format(here):
    from geval_local.analysis.results import read_results

    for name in ("out.jsonl", "out.csv", "out.parquet"):
        columns = ["all"] if name.endswith("csv") else None
        score_file("data.jsonl", [METRIC], MockJudge(), name, pairs=PairPlan(), columns=columns, use_cache=False)
    first, *others = (
        [score.orders for score in read_results(name).scores(KEY)] for name in ("out.jsonl", "out.csv", "out.parquet")
    )
    assert len(first[0]) == 2
    assert all(other == first for other in others)


def test_both_orders_in_one_pass_cost_less_than_each_order_alone():
    """Tokens are counted by the engine's own plan, so that this holds on every machine."""
    judge = Judge.load("nano")
    rows = [
        Sample(
            {"doc_id": f"d{d}", "system": s, "source": f"Tale {d}. " * 60, "output": f"It ends at {d}{s}. " * 8}, row=1
        )
        for d in range(6)
        for s in "abcd"
    ]

    def requests(metric, samples):
        return [entry.request for entry in judge.prepare(metric, samples)]

    def tokens(chosen):
        return sum(unit.tokens for unit in plan_units(judge.engine, chosen))

    pairs = requests(pair_metric(METRIC), list(pair_samples(rows, PairPlan())))
    alone = tokens(pairs[::2]) + tokens(pairs[1::2])
    assert tokens(pairs) < 0.8 * alone
    assert alone < 0.5 * sum(len(request.ids) for request in pairs)


def test_what_cannot_be_judged_in_pairs_is_told_before_a_judge_is_loaded(here):
    with pytest.raises(DataError, match="no row is of the baseline"):
        score_file("data.jsonl", METRIC, "no such judge", "x.jsonl", pairs=PairPlan(baseline="z"))
    with pytest.raises(DataError, match="'writer' of the system"):
        score_file("data.jsonl", METRIC, "no such judge", "x.jsonl", pairs=PairPlan(system="writer"))
    with pytest.raises(DataError, match="the column 'input' is missing"):
        score_file("data.jsonl", METRIC, "nano", "x.jsonl", pairs=PairPlan(given="llmbar"))


@pytest.mark.slow
def test_an_interrupted_run_of_pairs_is_resumed_by_its_manifest(here):
    from cli_run import judge_directory

    class Stop(StopAt):
        pass

    kept = {"pairs": PairPlan(), "use_cache": False, "window": 6}
    with pytest.raises(Interrupted):
        score_file("data.jsonl", METRIC, str(judge_directory()), "run/", events=Stop(12), **kept)
    result = resume("run/")
    assert result.rows == 37
    score_file("data.jsonl", METRIC, str(judge_directory()), "whole/", **kept)
    assert (here / "run/scores.jsonl").read_bytes() == (here / "whole/scores.jsonl").read_bytes()
