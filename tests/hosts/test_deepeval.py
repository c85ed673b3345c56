"""The metric and the System One model inside DeepEval itself: `evaluate`, `assert_test`, `deepeval test run`."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import logging
import pickle
import textwrap

import forked
import pytest
from cli_run import judge_directory
from offline import environment

pytest.importorskip("deepeval", reason="deepeval is not installed: pip install 'geval-local[deepeval]'")

from deepeval import assert_test, evaluate
from deepeval.errors import DeepEvalError, MissingTestCaseParamsError
from deepeval.evaluate import AsyncConfig, CacheConfig, DisplayConfig, ErrorConfig
from deepeval.metrics import AnswerRelevancyMetric, ConversationalGEval, GEval, JevEval, ToxicityMetric
from deepeval.metrics.g_eval import Rubric
from deepeval.metrics.jev_eval import Choice, Noul
from deepeval.metrics.jev_eval import Score as JevScore
from deepeval.metrics.utils import copy_metrics
from deepeval.models.system_one.limits import SystemOneContextLimitError
from deepeval.models.system_one.schema import ChoiceQuestion, NoulQuestion, ScoreQuestion
from deepeval.test_case import (
    ConversationalTestCase,
    LLMTestCase,
    MultiTurnParams,
    SingleTurnParams,
    ToolCall,
    Turn,
)

from geval_local import Metric
from geval_local.errors import MetricError
from geval_local.hosts.deepeval import ConversationalGEvalLocal, GEvalLocal, LocalSystemOne, metric_from_terms
from geval_local.options import JudgeOptions
from geval_local.testing import MockEngine, MockJudge

CLARITY = Metric(
    name="clarity",
    criteria="How clear the text is.",
    scale="1-5",
    steps=("Read it.",),
    fields={"source": "Source", "output": "Text"},
    threshold=2.0,
)
QUIETLY = DisplayConfig(show_indicator=False, print_results=False, inspect_after_run=False)
NO_CACHE = CacheConfig(write_cache=False)


class Counting(MockEngine):
    """An engine that notes how many prompts it is given at a time."""

    def __init__(self):
        # A model takes its time, and meanwhile others come.
        super().__init__(batch_tokens=1 << 20, seconds=0.05)
        self.windows = []

    def execute(self, requests, packs):
        self.windows.append(len(requests))
        return super().execute(requests, packs)


def cases(count):
    return [LLMTestCase(input=f"A ferry, number {number}.", actual_output=f"Boat {number}.") for number in range(count)]


def expected(count, metric=CLARITY):
    rows = [{"source": f"A ferry, number {number}.", "output": f"Boat {number}."} for number in range(count)]
    return MockJudge().score_many(metric, rows)


def test_evaluate_gives_the_scores_of_score_many_and_gathers_its_tasks():
    engine = Counting()
    metric = GEvalLocal(CLARITY, MockJudge(engine))
    result = evaluate(
        cases(60), [metric], display_config=QUIETLY, cache_config=NO_CACHE, async_config=AsyncConfig(max_concurrent=20)
    )
    wanted = {f"Boat {number}.": score for number, score in enumerate(expected(60))}
    for one in result.test_results:
        (data,), score = one.metrics_data, wanted[one.actual_output]
        assert data.score == score.normalized
        assert data.success is bool(score.value >= 2.0)
        assert data.threshold == 0.25
        assert data.reason.startswith(f"{score.value:.3g} on 1-5: {score.mode} (")
        assert (data.name, data.evaluation_model, data.evaluation_cost) == ("clarity", "mock", 0.0)
    assert len(result.test_results) == sum(engine.windows) == 60
    assert len(engine.windows) <= 20


@pytest.mark.parametrize("threshold", [1.0, 4.9])
def test_a_metric_whose_low_scores_are_good_is_turned_round(threshold):
    """DeepEval passes at a threshold or above."""
    metric = GEvalLocal(CLARITY.model_copy(update={"better": "low", "threshold": threshold}), MockJudge())
    score = expected(1)[0]
    assert metric.measure(cases(1)[0]) == 1 - score.normalized
    assert metric.success is metric.geval.passed is bool(score.value <= threshold)


def test_a_judge_that_thinks_scores_test_cases():
    judge = MockJudge(options=JudgeOptions(think=3, think_tokens=40))
    metric = GEvalLocal(CLARITY, judge)
    (case,) = cases(1)
    score = judge.score(CLARITY, source=case.input, output=case.actual_output)
    assert metric.measure(case) == score.normalized
    assert metric.geval.thoughts == score.thoughts


def test_a_measure_fills_in_what_deepeval_reports():
    judge = MockJudge()
    metric = GEvalLocal(CLARITY, judge, threshold=0.5)
    score = expected(1)[0]
    assert metric.measure(cases(1)[0]) == metric.score == score.normalized
    assert metric.score_breakdown == score.probabilities
    assert metric.success is metric.is_successful() is bool(score.normalized >= 0.5)
    assert metric.geval.to_dict() == expected(1)[0].to_dict() | {
        name: value for name, value in metric.geval.to_dict().items() if name.startswith(("threshold", "passed"))
    }
    assert metric.error is None
    again = GEvalLocal(CLARITY, judge, include_reason=False)
    assert asyncio.run(again.a_measure(cases(1)[0], _show_indicator=False, _in_component=False)) == score.normalized
    assert again.reason is None
    (copy,) = copy_metrics([metric])
    assert copy is not metric
    assert copy.judge is judge
    assert (copy.threshold, copy.name, copy.metric) == (0.5, "clarity", CLARITY)


def test_a_metric_is_copied_and_pickled_without_its_judge():
    metric = GEvalLocal(CLARITY, judge_directory(), threshold=0.3, strict_mode=False)
    (case,) = cases(1)
    wanted = metric.measure(case, _show_indicator=False)
    copies = [copy.deepcopy(metric), copy.copy(metric), pickle.loads(pickle.dumps(metric))]
    for one in copies:
        assert (one.judge, one.threshold, one.score) == (metric.judge, 0.3, wanted)
        assert one.measure(case, _show_indicator=False) == pytest.approx(wanted, abs=1e-6)
    assert len(pickle.dumps(metric)) < 20_000
    assert copy.deepcopy(GEvalLocal(CLARITY, MockJudge())).measure(case) == expected(1)[0].normalized


def test_strict_mode_asks_for_the_best_label():
    strict = [GEvalLocal(CLARITY, MockJudge(), strict_mode=True) for _ in range(20)]
    found = [metric.measure(case) for metric, case in zip(strict, cases(20), strict=True)]
    assert found == [float(score.mode == "5") for score in expected(20)]
    assert {0.0, 1.0} == set(found)
    assert [metric.success for metric in strict] == [score == 1.0 for score in found]


def test_missing_fields_are_deepevals_error_and_may_be_skipped():
    metric = GEvalLocal(CLARITY, MockJudge())
    with pytest.raises(MissingTestCaseParamsError, match=r"clarity: the field 'output' is missing.*actual_output"):
        metric.measure(LLMTestCase(input="A ferry."))
    empty = LLMTestCase(input="A ferry.", actual_output="")
    with pytest.raises(
        MissingTestCaseParamsError, match=r"clarity: the field 'output' \(column 'actual_output'\) is empty\."
    ):
        metric.measure(empty)
    assert "empty" in metric.error
    result = evaluate(
        [LLMTestCase(input="A ferry."), empty, *cases(1)],
        [metric],
        display_config=QUIETLY,
        cache_config=NO_CACHE,
        error_config=ErrorConfig(skip_on_missing_params=True),
    )
    assert sorted(len(one.metrics_data or []) for one in result.test_results) == [0, 0, 1]


def test_an_unscored_row_is_recorded_as_an_error_without_a_score():
    metric = GEvalLocal(CLARITY, MockJudge(context=400))
    long = LLMTestCase(input="A ferry. " * 100, actual_output="A boat.")
    result = evaluate(
        [long, *cases(1)],
        [metric],
        display_config=QUIETLY,
        cache_config=NO_CACHE,
        error_config=ErrorConfig(ignore_errors=True),
    )
    by_input = {one.input: one.metrics_data[0] for one in result.test_results}
    assert by_input[long.input].score is None
    assert by_input[long.input].success is False
    assert "the judge reads 400 with the label" in by_input[long.input].error
    assert by_input[cases(1)[0].input].score == expected(1)[0].normalized
    with pytest.raises(DeepEvalError, match=r"clarity has no score \(too_long\): the prompt has"):
        metric.measure(long)


def test_assert_test_passes_and_fails_with_the_distribution():
    assert_test(cases(1)[0], [GEvalLocal(CLARITY, MockJudge(), threshold=0.0)])
    with pytest.raises(AssertionError, match=r"clarity \(score: .*threshold: 1\.0.*on 1-5: "):
        assert_test(cases(1)[0], [GEvalLocal(CLARITY, MockJudge(), threshold=1.0)])
    assert_test(cases(1)[0], [GEvalLocal(CLARITY, MockJudge(), threshold=0.0)], run_async=False)


def test_fields_of_a_test_case_are_found_by_name_alias_and_mapping():
    metric = Metric(
        name="grounded",
        criteria="Is it grounded?",
        scale="1-5",
        steps=(),
        fields={"context": "Passages", "persona": "Reader", "tools_called": "Tools", "output": "Answer"},
    )
    case = LLMTestCase(
        input="When?",
        actual_output="At six.",
        retrieval_context=["It sails at six.", "It is white."],
        metadata={"persona": "a sailor"},
        tools_called=[ToolCall(name="timetable")],
    )
    measured = GEvalLocal(metric, MockJudge(), fields={"persona": "metadata.persona"})
    measured.measure(case)
    texts = {
        "context": "1. It sails at six.\n\n2. It is white.",
        "persona": "a sailor",
        "tools_called": repr(case.tools_called[0]),
        "output": "At six.",
    }
    assert measured.geval.value == MockJudge().score(metric, **texts).value
    with pytest.raises(MissingTestCaseParamsError, match="the field 'persona' is missing"):
        GEvalLocal(metric, MockJudge()).measure(case)


def test_deepevals_own_terms_make_a_metric():
    rubric = [
        Rubric(score_range=(7, 10), expected_outcome="Right."),
        Rubric(score_range=(0, 2), expected_outcome="Wrong."),
        Rubric(score_range=(3, 6), expected_outcome="Half right."),
    ]
    params = [SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT, SingleTurnParams.EXPECTED_OUTPUT]
    measured = GEvalLocal(
        name="Answer Correctness",
        criteria="Is the actual output right?",
        evaluation_steps=["Compare.", "Rate."],
        evaluation_params=params,
        rubric=rubric,
        judge=MockJudge(),
        threshold=0.1,
    )
    metric = measured.metric
    assert (metric.name, metric.title, metric.scale.text) == ("Answer_Correctness", "Answer Correctness", "0-10")
    assert metric.rubric == {"0-2": "Wrong.", "3-6": "Half right.", "7-10": "Right."}
    assert list(metric.fields.items()) == [
        ("input", "Input"),
        ("actual_output", "Actual Output"),
        ("expected_output", "Expected Output"),
    ]
    case = LLMTestCase(input="2 + 2?", actual_output="4", expected_output="4")
    (copy,) = copy_metrics([measured])
    assert (
        copy.measure(case)
        == MockJudge().score(metric, input="2 + 2?", actual_output="4", expected_output="4").normalized
    )
    assert (copy.__name__, copy.criteria, copy.evaluation_steps) == (
        "Answer Correctness",
        "Is the actual output right?",
        ["Compare.", "Rate."],
    )
    assert_test(case, [measured])
    narrow = metric_from_terms(
        "n", criteria="c", evaluation_params=params, rubric=[Rubric(score_range=(1, 3), expected_outcome="x")]
    )
    assert narrow.scale.text == "1-3"
    assert narrow.needs_steps
    by_steps = GEvalLocal(
        name="s", evaluation_steps=["Count the words."], evaluation_params=params[1:2], judge=MockJudge()
    )
    assert by_steps.metric.steps == ("Count the words.",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "neither a metric nor DeepEval's terms"),
        ({"name": "n", "criteria": "c"}, "n: evaluation_params are missing"),
        ({"metric": CLARITY, "criteria": "c"}, "a metric is given, and criteria beside it"),
        ({"metric": CLARITY, "threshold": 3}, "threshold 3 is not on DeepEval's scale"),
        (
            {"name": "n", "criteria": " ", "evaluation_params": [SingleTurnParams.INPUT]},
            "n: Criteria provided cannot be an empty string",
        ),
        (
            {"name": "n", "criteria": "c", "evaluation_params": [SingleTurnParams.MCP_SERVERS]},
            "is no text of a test case",
        ),
    ],
)
def test_terms_that_make_no_metric_are_refused(arguments, message):
    with pytest.raises(MetricError, match=message):
        GEvalLocal(judge=MockJudge(), **arguments)


def test_a_misspelt_argument_is_told():
    with pytest.raises(TypeError, match="unexpected keyword argument 'criterias'; did you mean 'criteria'"):
        GEvalLocal(CLARITY, MockJudge(), criterias="c")


GEVAL_SCRIPT = """
correctness = GEval(
    "Correctness",
    criteria="Is the actual output right?",
    evaluation_steps=["Compare them."],
    evaluation_params=[SingleTurnParams.ACTUAL_OUTPUT, SingleTurnParams.EXPECTED_OUTPUT],
    model=MODEL,
    top_logprobs=20,
    threshold=0.3,
    strict_mode=False,
    async_mode=True,
    verbose_mode=False,
)
short = GEval("Short", [SingleTurnParams.ACTUAL_OUTPUT], evaluation_steps=["Count."], model=MODEL, top_logprobs=5)
case = LLMTestCase(input="2 + 2?", actual_output="4", expected_output="four", metadata={"by": "me"})
scores = [correctness.measure(case), short.measure(case)]
"""


def test_a_geval_script_runs_once_the_class_is_replaced(caplog):
    names = {"MODEL": str(judge_directory()), "LLMTestCase": LLMTestCase, "SingleTurnParams": SingleTurnParams}
    caplog.set_level(logging.INFO, logger="geval_local")
    exec(GEVAL_SCRIPT, names | {"GEval": GEvalLocal}, found := {})
    by_hand = metric_from_terms(
        "Correctness",
        criteria="Is the actual output right?",
        evaluation_steps=["Compare them."],
        evaluation_params=[SingleTurnParams.ACTUAL_OUTPUT, SingleTurnParams.EXPECTED_OUTPUT],
    )
    correctness = found["correctness"]
    assert (correctness.metric, correctness.name, correctness.threshold) == (by_hand, "Correctness", 0.3)
    judge = correctness.judge
    assert judge is found["short"].judge
    assert correctness.evaluation_model == judge.name
    assert found["scores"][0] == pytest.approx(
        judge.score(by_hand, actual_output="4", expected_output="four").normalized, abs=1e-5
    )
    assert list(found["short"].metric.fields) == ["actual_output"]
    needless = [record for record in caplog.records if "top_logprobs is not needed" in record.message]
    assert len(needless) == 1, "said once in a process"
    (again,) = copy_metrics([correctness])
    assert (again.metric, again.judge, again.name) == (by_hand, judge, "Correctness")


def test_every_argument_of_deepevals_metrics_is_known_here():
    for theirs, ours in ((GEval, GEvalLocal), (ConversationalGEval, ConversationalGEvalLocal)):
        known = {*inspect.signature(ours.__init__).parameters, "criteria", "evaluation_steps", "rubric"}
        known |= {"evaluation_params"}
        asked = {name for name in inspect.signature(theirs.__init__).parameters if not name.startswith("_")}
        assert asked <= known, asked - known


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evaluation_template": object}, "evaluation_template asks for an answer in words"),
        ({"model": MockJudge()}, "a judge is given, and model beside it"),
    ],
)
def test_arguments_of_deepevals_that_have_no_place_here_are_refused_with_the_reason(arguments, message):
    with pytest.raises(MetricError, match=message):
        GEvalLocal(CLARITY, MockJudge(), **arguments)


def test_a_model_of_deepevals_is_no_judge():
    class Model:
        def generate(self, prompt):
            return prompt

        def get_model_name(self):
            return "gpt"

    with pytest.raises(MetricError, match="model is a Model, which writes text"):
        GEvalLocal(CLARITY, model=Model())


# --- conversations ----------------------------------------------------------------------------------------------------


CHAT = ConversationalTestCase(
    scenario="A traveller asks.",
    expected_outcome="The traveller knows the hour.",
    chatbot_role="A clerk at the harbour.",
    metadata={"port": "Oslo"},
    turns=[
        Turn(role="user", content="When does it sail?"),
        Turn(role="assistant", content="To which island?"),
        Turn(role="user", content="Hvaler."),
        Turn(
            role="assistant",
            content="At six.",
            retrieval_context=["Boats to Hvaler: 6 and 9."],
            tools_called=[ToolCall(name="clock", input_parameters={"zone": "CET"}, output="05:30")],
        ),
    ],
)


def test_a_conversation_becomes_the_fields_of_a_metric():
    fields = ("scenario", "system_prompt", "reference", "port", "history", "context", "question", "output")
    metric = Metric(name="chat", criteria="c", scale="1-5", steps=(), fields=dict.fromkeys(fields, "Heading"))
    measured = ConversationalGEvalLocal(metric, MockJudge(), fields={"port": "metadata.port"})
    history = [
        "User: When does it sail?",
        "Assistant: To which island?",
        "User: Hvaler.",
        "Tool: Boats to Hvaler: 6 and 9.",
        'Assistant: [calls clock({"zone": "CET"})]',
        "Tool: 05:30",
    ]
    texts = {
        "scenario": "A traveller asks.",
        "system_prompt": "A clerk at the harbour.",
        "reference": "The traveller knows the hour.",
        "port": "Oslo",
        "history": "\n\n".join(history),
        "context": "1. Boats to Hvaler: 6 and 9.\n\n2. 05:30",
        "question": "Hvaler.",
        "output": "At six.",
    }
    wanted = MockJudge().score(metric, **texts)
    assert measured.measure(CHAT) == wanted.normalized
    assert measured.score_breakdown == wanted.probabilities
    whole = ConversationalGEvalLocal("conversation/role_adherence", MockJudge())
    conversation = "\n\n".join([*history, "Assistant: At six."])
    wanted = MockJudge().score(whole.metric, system_prompt="A clerk at the harbour.", conversation=conversation)
    assert asyncio.run(whole.a_measure(CHAT)) == wanted.normalized


def test_conversational_terms_make_a_metric_and_evaluate_runs_it():
    measured = ConversationalGEvalLocal(
        "Goal reached",
        evaluation_params=[MultiTurnParams.CONTENT, MultiTurnParams.EXPECTED_OUTCOME, MultiTurnParams.METADATA],
        evaluation_steps=["Compare the end with the expected outcome."],
        judge=MockJudge(),
        threshold=0.0,
    )
    assert measured.metric.fields == {
        "expected_outcome": "Expected Outcome",
        "metadata": "Metadata",
        "conversation": "Conversation",
    }
    bare = ConversationalTestCase(turns=CHAT.turns[:1])
    result = evaluate(
        [CHAT, bare],
        [measured],
        display_config=QUIETLY,
        cache_config=NO_CACHE,
        error_config=ErrorConfig(skip_on_missing_params=True),
    )
    found = [one.metrics_data for one in result.test_results if one.metrics_data]
    wanted = MockJudge().score(
        measured.metric,
        expected_outcome=CHAT.expected_outcome,
        metadata='{"port": "Oslo"}',
        conversation=_written(CHAT),
    )
    assert [data.score for (data,) in found] == [wanted.normalized]
    with pytest.raises(MissingTestCaseParamsError, match="the field 'expected_outcome' is missing"):
        measured.measure(bare)
    with pytest.raises(ValueError, match="not of type 'ConversationalTestCase'"):
        measured.measure(cases(1)[0])
    with pytest.raises(MetricError, match="is no text of a test case"):
        ConversationalGEvalLocal("n", criteria="c", evaluation_params=[MultiTurnParams.AUDIO], judge=MockJudge())


def _written(case):
    """The turns of `CHAT` as a form shows them, written by hand."""
    lines = [f"{turn.role.capitalize()}: {turn.content}" for turn in case.turns]
    lines[-1:-1] = ["Tool: Boats to Hvaler: 6 and 9.", 'Assistant: [calls clock({"zone": "CET"})]', "Tool: 05:30"]
    return "\n\n".join(lines)


TEST_FILE = """
import pytest
from deepeval import assert_test
from deepeval.test_case import LLMTestCase
from geval_local import Metric
from geval_local.hosts.deepeval import GEvalLocal
from geval_local.testing import MockJudge

METRIC = Metric(name="clarity", criteria="How clear?", scale="1-5", steps=())
JUDGE = MockJudge()

@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_clarity(threshold):
    assert_test(LLMTestCase(input="Say it.", actual_output="Said."), [GEvalLocal(METRIC, JUDGE, threshold=threshold)])
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_deepeval_test_run(tmp_path):
    (tmp_path / "test_clarity.py").write_text(textwrap.dedent(TEST_FILE), encoding="utf-8")
    line = "deepeval test run test_clarity.py --color no"
    done = forked.script(line, cwd=tmp_path, env=environment(tmp_path, COLUMNS="200"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "".join(done.stdout.split()).startswith(".F")
    assert "threshold: 1.0" in done.stdout
    assert " on 1-5: " in done.stdout


# --- System One -------------------------------------------------------------------------------------------------------


def test_jev_eval_runs_on_a_local_judge():
    questions = [
        Noul("The output answers the input."),
        JevScore("How clear is it?", levels=["unclear", "clear", "very clear"]),
        Choice("Which language?", options={"English": 1.0, "Swahili": 0.0, "none": None}),
    ]
    metric = JevEval(
        name="answers",
        evaluation_params=[SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT],
        questions=questions,
        system_one_model=LocalSystemOne(MockJudge()),
        threshold=0.0,
    )
    result = evaluate(cases(5), [metric], display_config=QUIETLY, cache_config=NO_CACHE)
    for one in result.test_results:
        state = {"test_case": {"input": one.input, "actual_output": one.actual_output}}
        noul, level, language = MockJudge().decide(
            state,
            [
                {"type": "predicate", "instructions": questions[0].statement},
                {"type": "score", "instructions": questions[1].question, "levels": questions[1].levels},
                {"type": "choice", "instructions": questions[2].question, "options": list(questions[2].options)},
            ],
        )
        english, swahili, none = language.p
        values = [noul.probability, level.score / 2] + ([english / (english + swahili)] if none < 0.5 else [])
        assert one.metrics_data[0].score == pytest.approx(sum(values) / len(values), abs=1e-12)
        assert one.metrics_data[0].evaluation_model == "mock"


@pytest.mark.parametrize("kind", [AnswerRelevancyMetric, ToxicityMetric])
def test_deepevals_own_metrics_run_without_another_model(kind):
    metric = kind(eval_mode="system_one", system_one_model=LocalSystemOne(MockJudge(), rotations=2))
    score = metric.measure(cases(1)[0], _show_indicator=False)
    assert 0 < score < 1
    assert metric.evaluation_model == "mock"
    assert "Decided by mock" in metric.reason
    assert score == asyncio.run(metric.a_measure(cases(1)[0], _show_indicator=False))


def test_answers_are_those_of_the_server_and_errors_are_deepevals():
    model = LocalSystemOne(MockJudge())
    questions = {
        "refund": NoulQuestion(instructions="A refund is asked for.", true="money back"),
        "topic": ChoiceQuestion(instructions="What about?", options={"billing": "money", "other": None}),
        "anger": ScoreQuestion(instructions="How angry?", levels=["calm", "cross"]),
    }
    answers, cost = model.decide({"text": "I was charged twice."}, questions)
    decision = MockJudge().decide(
        {"text": "I was charged twice."},
        {
            "refund": {"type": "predicate", "instructions": "A refund is asked for.", "if_true": "money back"},
            "topic": {"type": "choice", "instructions": "What about?", "options": {"billing": "money", "other": None}},
            "anger": {"type": "score", "instructions": "How angry?", "levels": ["calm", "cross"]},
        },
    )
    assert answers.nouls["refund"].probability == decision["refund"].probability
    assert answers.choices["topic"].probabilities == dict(decision["topic"].probabilities)
    assert answers.choices["topic"].confidence == decision["topic"].confidence
    assert answers.scores["anger"].probabilities == dict(enumerate(decision["anger"].p))
    assert (float(cost), cost.input_tokens, cost.output_tokens) == (0.0, decision.tokens, 3)
    json.loads(answers.model_dump_json())
    eleven = {"anger": ScoreQuestion(instructions="How angry?", levels=[str(number) for number in range(11)])}
    with pytest.raises(DeepEvalError, match=r"^questions\.anger\.criteria: the number of items is at most 10, not 11$"):
        model.decide("x", eleven)
    with pytest.raises(DeepEvalError, match=r"^questions: the number of items is at least 1, not 0$"):
        asyncio.run(model.a_decide("x", {}))
    with pytest.raises(SystemOneContextLimitError, match="the judge reads 300"):
        LocalSystemOne(MockJudge(context=300)).decide("x " * 400, {"refund": questions["refund"]})
