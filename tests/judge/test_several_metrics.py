"""Several metrics in one call, progress, event loops, and figures that fit a line."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from geval_local import Interrupted, Metric, RunEvents, Scale, score_file
from geval_local.engine.window import WINDOW
from geval_local.errors import ConfigurationError
from geval_local.options import JudgeOptions
from geval_local.prompt import sharing
from geval_local.score import Score
from geval_local.testing import MockEngine, MockJudge

METRICS = [Metric.load(f"rag/{name}").with_steps(()) for name in ("faithfulness", "answer_relevance")]
ROWS = [
    {"question": "When?", "context": f"On day {number}.", "output": "On Monday." if number % 3 else ""}
    for number in range(12)
]


def published(name: str, opening: str = "") -> Metric:
    return Metric(
        name=name,
        criteria="As written.",
        scale="1-5",
        fields={"source": "Source", "output": "Output"},
        template=f"{opening}Read this:\n\n{{{{source}}}}\n\nSummary: {{{{output}}}}\n\nHow {name}?\n- {name}:",
    )


def engine() -> MockEngine:
    return MockEngine(batch_tokens=3000, sensitive=True)


def test_several_metrics_have_the_figures_of_one():
    judge = MockJudge(engine())
    together = judge.score_many(METRICS, ROWS)
    assert list(together) == ["rag/faithfulness", "rag/answer_relevance"]
    for metric in METRICS:
        alone = MockJudge(engine()).score_many(metric, ROWS)
        assert [repr(one.to_dict()) for one in together[metric.name]] == [repr(one.to_dict()) for one in alone]
    rows = list(judge.iter_scores(METRICS, ROWS))
    assert rows[4]["rag/faithfulness"].value == together["rag/faithfulness"][4].value
    one = judge.score(METRICS, **ROWS[1])
    assert set(one) == set(together)
    assert judge.score_many(METRICS, []) == {metric.name: [] for metric in METRICS}


def test_names_must_differ_and_some_metric_must_have_a_mapped_field():
    judge = MockJudge()
    with pytest.raises(ConfigurationError, match="two metrics have the same name: rag/faithfulness"):
        judge.score_many([METRICS[0], METRICS[0]], ROWS)
    with pytest.raises(ConfigurationError, match="no metric is named"):
        judge.score_many([], ROWS)
    assert judge.score_many(METRICS, ROWS[1:2], fields={"context": "context"})["rag/answer_relevance"][0].is_scored
    with pytest.raises(ConfigurationError, match="no metric here has a field 'contxt'"):
        judge.score_many(METRICS, ROWS, fields={"contxt": "context"})


def test_forms_that_open_with_the_source_are_read_together():
    clear, short, other = published("clear"), published("short"), published("other", "Please. ")
    assert sharing([clear, METRICS[0], short, other, METRICS[1]]) == [[0, 2], [1], [3], [4]]
    rows = [{"source": f"Tale {number}. " * 4, "output": "It ends."} for number in range(6)]
    seen: list[int] = []

    class Watched(MockEngine):
        def plan(self, requests):
            seen.append(len(requests))
            return super().plan(requests)

    judge = MockJudge(Watched())
    found = judge.score_many([clear, METRICS[0], short], rows)
    assert [count for count in seen if count] == [12]  # rows without a question are no prompts of METRICS[0]
    assert [score.value for score in found["clear"]] == [score.value for score in judge.score_many(clear, rows)]


def test_progress_is_told_and_ends_with_all():
    told: list[tuple[int, int]] = []
    MockJudge(engine()).score_many(METRICS, ROWS, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (24, 24)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_calls_of_one_judge_wait_for_each_other_beside_an_event_loop():
    active, most = 0, 0

    class Slow(MockEngine):
        def read(self, requests):
            nonlocal active, most
            active += 1
            most = max(most, active)
            try:
                return super().read(requests)
            finally:
                active -= 1

    judge = MockJudge(Slow(batch_tokens=3000, seconds=0.002))

    async def calls():
        return await asyncio.gather(*(judge.ascore_many(METRICS[0], ROWS) for _ in range(3)))

    first, *others = asyncio.run(calls())
    assert all([repr(a) for a in first] == [repr(b) for b in other] for other in others)
    assert most == 1


def test_a_cancelled_call_stops_after_the_batch_at_hand():
    mock = MockEngine(batch_tokens=1500, seconds=0.02)
    judge = MockJudge(mock)

    async def cancelled() -> None:
        call = asyncio.create_task(judge.ascore_many(METRICS[0], [row for row in ROWS if row["output"]] * 20))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancelled())
    assert mock.executed_packs < 60
    assert judge.score(METRICS[0], **ROWS[1]).is_scored


def test_reprs_fit_a_line_and_a_score_is_a_number():
    judge = MockJudge()
    score = judge.score(METRICS[0], threshold=1, **ROWS[1])
    assert float(score) == score.value
    assert repr(score) == f"Score(rag/faithfulness: {score.value:.4g}, label mass 0.970, passed)"
    unscored = Score.unscored("m", "no text\nat all " * 20)
    assert math.isnan(float(unscored))
    wide = Scale(tuple(f"label {number}" for number in range(900)), tuple(range(900)))
    for value in (judge, score, unscored, wide, Scale.parse("1-5"), Scale.parse({"poor": 1, "good": 2})):
        assert len(repr(value)) < 120
        assert "\n" not in repr(value)
    assert repr(Scale.parse("1-5")) == "Scale('1-5')"
    assert "mock" in repr(judge)


def test_a_run_has_the_figures_of_one_call_also_where_forms_share_the_source(tmp_path):
    rows = tmp_path / "data.jsonl"
    texts = [
        {"source": f"Tale {number // 3}. " * 9, "output": f"End {number}." * (number % 5 > 0)} for number in range(30)
    ]
    rows.write_text("".join(json.dumps(row) + "\n" for row in texts), encoding="utf-8")
    metrics = [published("clear"), METRICS[0], published("short")]
    expected = MockJudge(engine()).score_many(metrics, texts)

    class Once(RunEvents):
        done = 0

        def on_progress(self, done: int) -> None:
            self.done = done

        def should_stop(self) -> bool:
            return self.done > 20

    def make(choice):
        return MockJudge(engine(), name="mock")

    choice = JudgeOptions(name="nano")
    settings = {"use_cache": False, "load": make, "window": WINDOW}
    metrics[1] = published("third", "Please. ")
    expected["third"] = MockJudge(engine()).score_many(metrics[1], texts)
    with pytest.raises(Interrupted):
        score_file(rows, metrics, choice, f"{tmp_path}/run/", events=Once(), **settings)
    result = score_file(rows, metrics, choice, f"{tmp_path}/run/", **settings)
    lines = [json.loads(line)["geval"] for line in result.files[0].read_text(encoding="utf-8").splitlines()]
    for name in ("clear", "third", "short"):
        found = [line[name]["score"] for line in lines]
        assert found == [score.value if score.is_scored else None for score in expected[name]]
    prompts, planned = result.totals["prompt_tokens"], result.totals["planned_tokens"]
    assert prompts == planned  # the mock shares nothing
