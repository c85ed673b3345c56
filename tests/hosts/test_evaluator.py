"""One evaluator: columns by name or as one row, figures of `Judge.score`, and the tools that take it as it is."""

from __future__ import annotations

import asyncio
import copy
import pickle
from uuid import uuid4

import pytest
from cli_run import judge_directory

from geval_local import Metric, evaluator
from geval_local.errors import ConfigurationError
from geval_local.hosts.bound import release_judges
from geval_local.options import JudgeOptions
from geval_local.testing import MockJudge

ANSWER = Metric(
    name="rag/answer",
    criteria="Does the answer agree with the reference?",
    scale="1-5",
    steps=("Compare them.",),
    fields={"question": "Question", "reference": "Reference", "output": "Answer"},
    threshold=2.0,
)
TEXTS = {"question": "When does it sail?", "reference": "At six.", "output": "It sails at six."}
SCORE = MockJudge().score(ANSWER, **TEXTS)


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (TEXTS, {}),
        (None, TEXTS),
        (None, {"input": {"question": TEXTS["question"]}, "output": TEXTS["output"], "expected": TEXTS["reference"]}),
        (
            None,
            {
                "inputs": {"question": TEXTS["question"], "answer": "a column of the inputs"},
                "outputs": {"answer": TEXTS["output"]},
                "reference_outputs": {"reference": TEXTS["reference"], "answer": "a column of the reference"},
            },
        ),
        (None, {"inputs": TEXTS["question"], "outputs": TEXTS["output"], "expected_output": TEXTS["reference"]}),
    ],
    ids=["row", "columns", "parts", "objects", "plural"],
)
def test_columns_come_in_all_shapes_and_the_figures_are_those_of_the_judge(row, columns):
    evaluate = evaluator(ANSWER, MockJudge())
    given = [] if row is None else [row]
    found = evaluate(*given, **columns)
    assert found == asyncio.run(evaluate.acall(*given, **columns))
    assert (found["key"], found["score"]) == ("rag/answer", SCORE.value)
    assert found["comment"].startswith(f"{SCORE.value:.3g} on 1-5: {SCORE.mode} (")
    assert found["metadata"]["probabilities"] == SCORE.probabilities
    assert found["metadata"]["passed"] is bool(SCORE.value >= 2.0)
    assert evaluator(ANSWER, MockJudge(), normalized=True)(TEXTS)["score"] == SCORE.normalized


def test_a_judge_that_thinks_names_the_error_of_its_score():
    judge = MockJudge(options=JudgeOptions(think=3, think_tokens=40))
    found = evaluator(ANSWER, judge)(TEXTS)
    score = judge.score(ANSWER, **TEXTS)
    assert found["score"] == score.value
    assert found["metadata"]["thought_error"] == score.thoughts.error
    assert "thinking:reason-first/1,k=3,mean=jackknife" in found["metadata"]["signature"]


def test_what_cannot_be_scored_has_no_score():
    found = evaluator(ANSWER, MockJudge())({**TEXTS, "output": " "})
    assert found["score"] is None
    assert "the field 'output' is only white space" in found["comment"]
    mapped = evaluator(ANSWER, MockJudge(), fields={"output": "trace.0.text"})
    assert mapped(question="When?", reference="Six.", trace=[{"text": "At six."}])["score"] is not None
    with pytest.raises(ConfigurationError, match="threshold 7 is outside the scale"):
        evaluator(ANSWER, MockJudge(), threshold=7)


def test_it_is_copied_and_pickled_without_its_judge():
    evaluate = evaluator(ANSWER, judge_directory(), normalized=True)
    wanted = evaluate(TEXTS)
    assert copy.deepcopy(evaluate).bound.judge is evaluate.bound.judge
    kept = pickle.dumps(evaluate)
    assert len(kept) < 20_000
    release_judges()
    again = pickle.loads(kept)
    assert again.__name__ == "rag/answer"
    assert again(TEXTS)["score"] == pytest.approx(wanted["score"], abs=1e-5)
    with pytest.raises(ConfigurationError, match="rag/answer: its judge was loaded elsewhere"):
        pickle.dumps(evaluator(ANSWER, MockJudge()))


def test_langsmith_takes_it_as_it_is():
    evaluation = pytest.importorskip("langsmith.evaluation.evaluator")
    schemas = pytest.importorskip("langsmith.schemas")
    evaluate = evaluator(ANSWER, MockJudge())
    example = schemas.Example(
        id=uuid4(), inputs={"question": TEXTS["question"]}, outputs={"reference": TEXTS["reference"]}
    )
    run = schemas.Run(
        id=uuid4(),
        trace_id=uuid4(),
        name="x",
        run_type="chain",
        start_time="2026-01-01T00:00:00",
        inputs=example.inputs,
        outputs={"answer": TEXTS["output"]},
    )
    for one in (evaluate, evaluate.acall):
        taken = evaluation.DynamicRunEvaluator(one)
        awaited = one is not evaluate
        found = asyncio.run(taken.aevaluate_run(run, example)) if awaited else taken.evaluate_run(run, example)
        assert (found.key, found.score) == ("rag/answer", SCORE.value)
        assert found.metadata["probabilities"] == SCORE.probabilities


def test_braintrust_takes_it_as_it_is():
    braintrust = pytest.importorskip("braintrust")
    result = braintrust.Eval(
        "ferries",
        data=[{"input": {"question": TEXTS["question"]}, "expected": TEXTS["reference"]}],
        task=lambda input: TEXTS["output"],
        scores=[evaluator(ANSWER, MockJudge(), normalized=True)],
        no_send_logs=True,
    )
    assert [one.scores for one in result.results] == [{"rag/answer": SCORE.normalized}]
