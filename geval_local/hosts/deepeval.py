"""DeepEval on local judges: metrics with exact scores for test cases and conversations, and `LocalSystemOne`."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypedDict

from deepeval.errors import DeepEvalError, MissingTestCaseParamsError
from deepeval.metrics import BaseConversationalMetric, BaseMetric
from deepeval.metrics.g_eval.utils import (
    CONVERSATIONAL_G_EVAL_PARAMS,
    G_EVAL_PARAMS,
    Rubric,
    get_score_range,
    validate_and_sort_rubrics,
    validate_criteria_and_evaluation_steps,
)
from deepeval.metrics.utils import (
    check_conversational_test_case_params,
    check_llm_test_case_params,
    construct_verbose_logs,
)
from deepeval.models import DeepEvalBaseSystemOneModel
from deepeval.models.system_one.limits import SystemOneContextLimitError
from deepeval.models.system_one.schema import (
    ChoiceAnswer,
    ChoiceQuestion,
    NoulAnswer,
    NoulQuestion,
    ScoreAnswer,
    SystemOneAnswers,
    SystemOneQuestion,
)
from deepeval.models.utils import EvaluationCost
from deepeval.test_case import ConversationalTestCase, LLMTestCase, MultiTurnParams, SingleTurnParams, Turn
from typing_extensions import Unpack

from geval_local.direction import Direction
from geval_local.errors import FieldError, GevalError, MetricError, UnscorableError
from geval_local.fields import nearest
from geval_local.hosts.bound import BoundMetric, JudgeLike, MetricLike, shared_batcher, shared_judge
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.questions.answer import Decision
from geval_local.scale import Scale
from geval_local.score import Estimator, Score
from geval_local.serve.bodies import Refused, read_model
from geval_local.serve.dialects import SystemOneRequest, write_system_one
from geval_local.wording import say_once

#: Criteria if only steps are given.
BY_STEPS = "How well the text fares by the evaluation steps below."


Param: TypeAlias = SingleTurnParams | MultiTurnParams


class Terms(TypedDict, total=False):
    """Arguments of DeepEval's `GEval` and `ConversationalGEval` that define a metric, without its name."""

    criteria: str | None
    evaluation_steps: Sequence[str] | None
    evaluation_params: Sequence[Param] | None
    rubric: Sequence[Rubric] | None


def metric_from_terms(name: str, **terms: Unpack[Terms]) -> Metric:
    """Make a metric from the arguments of DeepEval's `GEval` or `ConversationalGEval`."""
    _refuse_unknown(terms)
    criteria, evaluation_params, rubric = terms.get("criteria"), terms.get("evaluation_params"), terms.get("rubric")
    if not evaluation_params:
        raise MetricError(
            f"{name}: evaluation_params are missing",
            hint="Name the fields of the test case that are rated, such as [SingleTurnParams.ACTUAL_OUTPUT].",
        )
    given = terms.get("evaluation_steps")
    steps = None if given is None else tuple(given)
    try:
        validate_criteria_and_evaluation_steps(criteria, None if steps is None else list(steps))
        bands = validate_and_sort_rubrics(None if rubric is None else list(rubric))
        low, high = get_score_range(bands)
        return Metric(
            name=re.sub(r"[^\w.-]+", "_", name.strip()) or "metric",
            title=name,
            criteria=criteria or BY_STEPS,
            steps=steps,
            fields=dict(_fields(evaluation_params)),
            scale=Scale.parse(f"{low}-{high}"),
            rubric=None if bands is None else {_band(*band.score_range): band.expected_outcome for band in bands},
        )
    except ValueError as error:  # pydantic's errors are ValueErrors too
        raise MetricError(f"{name}: {error}") from error


def _refuse_unknown(terms: Terms) -> None:
    """Refuse unknown names, as Python does for a function with named parameters."""
    if unknown := sorted(terms.keys() - Terms.__annotations__.keys()):
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}{nearest(unknown[0], Terms.__annotations__)}")


#: Parameters that a conversation's turns always show, named or not.
_OF_TURNS = {
    MultiTurnParams.ROLE,
    MultiTurnParams.CONTENT,
    MultiTurnParams.TOOLS_CALLED,
    MultiTurnParams.RETRIEVAL_CONTEXT,
}
#: Other parameters of a conversation's test case -> heading.
_OF_CONVERSATIONS = {
    **CONVERSATIONAL_G_EVAL_PARAMS,
    MultiTurnParams.CONTEXT: "Context",
    MultiTurnParams.USER_DESCRIPTION: "User Description",
    MultiTurnParams.CHATBOT_ROLE: "Chatbot Role",
}


def _fields(params: Sequence[Param]) -> Iterator[tuple[str, Any]]:
    """Return the fields of a form and their headings; a conversation comes last, behind fields that rows share."""
    for param in params:
        headings = _OF_CONVERSATIONS if isinstance(param, MultiTurnParams) else G_EVAL_PARAMS
        if param not in headings or param is MultiTurnParams.AUDIO:
            raise ValueError(f"{param} is no text of a test case that GEval reads")
        if param not in _OF_TURNS:
            yield param.value, headings[param]
    if any(isinstance(param, MultiTurnParams) for param in params):
        yield "conversation", "Conversation"


def _band(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


#: DeepEval's default if neither the caller nor the metric has a threshold: `assert_test` needs one.
THRESHOLD = 0.5
#: Columns of a test case.
COLUMNS = [param.value for param in SingleTurnParams]


class _Exact:
    """A metric bound to a judge; it takes the arguments of DeepEval's own metric and those of this package.

    `metric` is a metric or its name. If criteria or steps are given, it is the name of the new metric. `model` is
    another name of `judge`.
    """

    def __init__(
        self,
        metric: MetricLike | None = None,
        judge: JudgeLike | list[Param] | tuple[Param, ...] = None,
        *,
        model: JudgeLike = None,
        threshold: float | None = None,
        strict_mode: bool = False,
        include_reason: bool = True,
        async_mode: bool = True,
        verbose_mode: bool = False,
        flaky: bool = False,
        fields: Mapping[str, str] | None = None,
        estimator: Estimator | None = None,
        name: str | None = None,
        top_logprobs: int | None = None,
        evaluation_template: object = None,
        **terms: Unpack[Terms],
    ) -> None:
        _refuse_unknown(terms)
        if evaluation_template is not None:
            raise MetricError(
                "evaluation_template asks for an answer in words, and here the label is read behind the form",
                hint="Say it in criteria and evaluation_steps, or give a metric with a `template` of its own.",
            )
        if top_logprobs is not None:
            say_once("top_logprobs is not needed: the probabilities of all labels are exact", level=logging.WARNING)
        if isinstance(judge, list | tuple):  # GEval's second parameter
            terms["evaluation_params"], judge = judge, None
        if model is not None and judge is not None:
            raise MetricError("a judge is given, and model beside it", hint="Leave one out.")
        who = _judge_of(model) if judge is None else judge
        given = [term for term, value in terms.items() if value is not None]
        if given and name is None and isinstance(metric, str):  # GEval's first parameter
            metric, name = None, metric
        if metric is None:
            if name is None or not given:
                raise MetricError(
                    "neither a metric nor DeepEval's terms are given",
                    hint="Write GEvalLocal('summarization/coherence'), or name=, criteria= and evaluation_params=.",
                )
            metric = metric_from_terms(name, **terms)
        elif given:
            raise MetricError(
                f"a metric is given, and {given[0]} beside it",
                hint="A metric has all of that in itself; leave one out.",
            )
        bound = BoundMetric.bind(metric, who, fields=fields, estimator=estimator)
        # DeepEval copies a metric for every test case, from the attributes that have the names of parameters. They are
        # loaded and complete, so a copy costs nothing.
        self.metric = bound.metric
        self.judge = bound.judge
        self.fields = bound.fields
        self.estimator = estimator
        self.name = name or bound.metric.name
        self.threshold = _threshold(bound, threshold, strict_mode)
        self.strict_mode = strict_mode
        self.include_reason = include_reason
        self.async_mode = async_mode
        self.verbose_mode = verbose_mode
        self.flaky = flaky
        self.evaluation_model = bound.judge.name
        self.geval: Score | None = None
        self._bound = bound

    @property
    def criteria(self) -> str:
        """The metric's criteria."""
        return self.metric.criteria

    @property
    def evaluation_steps(self) -> list[str]:
        """The metric's evaluation steps."""
        return list(self.metric.steps or ())

    @property
    def __name__(self) -> str:
        return self.name

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "judge": None}  # the bound metric has it, and copies and pickles without weights

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.judge = self._bound.judge


class GEvalLocal(_Exact, BaseMetric):  # type: ignore[misc]
    """A metric of DeepEval whose score is the exact expectation over a local judge's label probabilities.

    Fields of the metric are found in the test case by their names and aliases (``output`` is ``actual_output``,
    ``source`` and ``question`` are ``input``, ``reference`` is ``expected_output``), or by `fields`. It also takes the
    arguments of DeepEval's `GEval`.
    """

    def measure(self, test_case: LLMTestCase, *args: Any, **kwargs: Any) -> float:
        """Score a test case."""
        return _take(self, self._bound.score(_row(self, test_case)))

    async def a_measure(self, test_case: LLMTestCase, *args: Any, **kwargs: Any) -> float:
        """Score a test case like `measure`, without blocking the event loop."""
        future = self._bound.submit(_row(self, test_case))
        return _take(self, (await asyncio.wrap_future(future))[0])


class ConversationalGEvalLocal(_Exact, BaseConversationalMetric):  # type: ignore[misc]
    """A metric of DeepEval for whole conversations, with exact scores.

    A metric can read the fields that `geval_local.conversation` finds in the turns (``conversation``, ``history``,
    ``question``, ``output``, ``context``), fields of the test case by their names, and ``reference`` and
    ``system_prompt``: the expected outcome and the role of the chatbot. It also takes the arguments of DeepEval's
    `ConversationalGEval`. Turns show the tools that they called and the texts that they retrieved.
    """

    def measure(self, test_case: ConversationalTestCase, *args: Any, **kwargs: Any) -> float:
        """Score a conversation."""
        return _take(self, self._bound.score(_conversation_row(self, test_case)))

    async def a_measure(self, test_case: ConversationalTestCase, *args: Any, **kwargs: Any) -> float:
        """Score a conversation like `measure`, without blocking the event loop."""
        future = self._bound.submit(_conversation_row(self, test_case))
        return _take(self, (await asyncio.wrap_future(future))[0])


# DeepEval wraps every method of a metric for tracing, so helpers are functions.


def _judge_of(model: Any) -> JudgeLike:
    """Read DeepEval's `model` as the name of a judge; refuse DeepEval's own model classes."""
    if hasattr(model, "generate") and hasattr(model, "get_model_name"):
        raise MetricError(
            f"model is a {type(model).__name__}, which writes text; a judge is a local model",
            hint="Name one of `geval-local judges list`, or a directory.",
        )
    judge: JudgeLike = model
    return judge


def _threshold(bound: BoundMetric, given: float | None, strict: bool) -> float:
    if strict:
        return 1.0
    if given is not None:
        if not 0 <= given <= 1:
            raise MetricError(
                f"the threshold {given:g} is not on DeepEval's scale, 0 to 1",
                hint=f"A threshold on {bound.metric.scale.text} belongs to the metric itself.",
            )
        return float(given)
    own = bound.threshold
    if own is None:
        return THRESHOLD
    limit = bound.metric.scale.normalize(own)
    # DeepEval passes scores at or above a threshold, so `_take` reverses a score whose low values are good.
    return limit if bound.metric.direction is Direction.HIGH else 1 - limit


Measured: TypeAlias = GEvalLocal | ConversationalGEvalLocal


def _row(metric: GEvalLocal, test_case: LLMTestCase) -> dict[str, Any]:
    """Return a test case's fields as columns; check that the metric's fields are there."""
    _reset(metric)
    check_llm_test_case_params(test_case, [], None, None, metric, None, False)
    return _checked(metric, test_case, {name: getattr(test_case, name, None) for name in COLUMNS})


def _conversation_row(metric: ConversationalGEvalLocal, test_case: ConversationalTestCase) -> dict[str, Any]:
    """Return a conversation as messages, with the test case's other fields as columns."""
    _reset(metric)
    check_conversational_test_case_params(test_case, [], metric, False, None, False)
    named = {
        param.value: getattr(test_case, param.value, None) for param in _OF_CONVERSATIONS if param not in _OF_TURNS
    }
    own = {"reference": test_case.expected_outcome, "system_prompt": test_case.chatbot_role}
    messages = [message for turn in test_case.turns for message in _messages(turn)]
    return _checked(metric, test_case, {**named, **own, "messages": messages})


def _messages(turn: Turn) -> Iterator[dict[str, Any]]:
    """Write a turn as messages: retrieved texts, tool calls with their results, and its text."""
    for passage in turn.retrieval_context or ():
        yield {"role": "tool", "content": _plain(passage)}
    calls = turn.tools_called or ()
    if calls:
        asked = [{"function": {"name": one.name, "arguments": one.input_parameters or {}}} for one in calls]
        yield {"role": turn.role, "content": "", "tool_calls": asked}
    for one in calls:
        if one.output is not None:
            yield {"role": "tool", "content": one.output if isinstance(one.output, str) else repr(one.output)}
    yield {"role": turn.role, "content": turn.content}


def _reset(metric: Measured) -> None:
    metric.error, metric.score, metric.success, metric.reason, metric.geval = None, None, None, None, None


def _checked(metric: Measured, test_case: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out absent columns, and check that the metric's fields are there."""
    if test_case.multimodal:
        metric.error = f"{metric.name} reads text only, and the test case holds pictures or sound"
        raise DeepEvalError(metric.error)
    columns = {name: _plain(value) for name, value in values.items() if value not in (None, [], {})}
    for name in metric.metric.fields:
        if name not in metric.fields and isinstance(columns.get(name), dict):  # metadata as a whole
            columns[name] = json.dumps(columns[name], ensure_ascii=False, default=str)
    try:
        Sample(columns, mapping=metric.fields).texts(metric.metric.fields)
    except FieldError as error:
        raise _missing(metric, error) from None
    except UnscorableError as error:
        if not all(columns.values()):  # DeepEval treats an empty actual_output as missing
            raise _missing(metric, error) from None
        # Otherwise the judge gives the reason.
    return columns


def _missing(metric: Measured, error: UnscorableError) -> MissingTestCaseParamsError:
    metric.error = f"{metric.name}: {error.message.removeprefix('the sample: ')}. {error.hint or ''}".strip()
    return MissingTestCaseParamsError(metric.error)


def _plain(value: Any) -> Any:
    """Write DeepEval's objects (tool calls, retrieved contexts) as the texts that its own GEval shows."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str | dict | int | float | bool):
        return value
    dumped = value.model_dump() if hasattr(value, "model_dump") else None
    return dumped if isinstance(dumped, str) else repr(value)


def _take(metric: Measured, score: Score) -> float:
    """Set the attributes that a measurement reports."""
    metric.geval = score
    metric.evaluation_cost, metric.input_tokens, metric.output_tokens = 0.0, score.prompt_tokens, 0
    if not score.is_scored:
        metric.error = f"{metric.name} has no score ({score.error_code}): {score.error}"
        raise DeepEvalError(metric.error)
    scale = metric.metric.scale
    direction = metric.metric.direction
    best = scale.labels[scale.values.index(scale.high if direction is Direction.HIGH else scale.low)]
    normalized = score.normalized if direction is Direction.HIGH else 1 - score.normalized
    metric.score = float(score.mode == best) if metric.strict_mode else normalized
    metric.score_breakdown = dict(score.probabilities or {})
    words = metric._bound.words(score)
    metric.reason = words if metric.include_reason else None
    metric.is_successful()
    metric.verbose_logs = construct_verbose_logs(
        metric, steps=[f"Criteria:\n{metric.criteria}", f"Score: {metric.score}", f"Reason: {words}"]
    )
    return float(metric.score)


# --- System One -------------------------------------------------------------------------------------------------------


class LocalSystemOne(DeepEvalBaseSystemOneModel):  # type: ignore[misc]
    """A local judge that answers DeepEval's typed questions with exact probabilities, without HTTP.

    JevEval and every metric with ``eval_mode="system_one"`` ask it. Questions, answers and figures are those of the
    server's route ``/v1/systemone``.
    """

    def __init__(self, judge: JudgeLike = None, *, rotations: int = 1) -> None:
        self.judge = shared_judge(judge)
        self.rotations = rotations
        super().__init__(self.judge.name)

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Return the judge, which is already loaded."""
        return self.judge

    def get_model_name(self, *args: Any, **kwargs: Any) -> str:
        """Return the judge's name."""
        return self.judge.name

    def decide(
        self, state: Any, questions: dict[str, SystemOneQuestion]
    ) -> tuple[SystemOneAnswers, EvaluationCost | None]:
        """Answer questions about one state."""
        request, asked = self._ask(state, questions)
        return self._answers(request, asked.result())

    async def a_decide(
        self, state: Any, questions: dict[str, SystemOneQuestion]
    ) -> tuple[SystemOneAnswers, EvaluationCost | None]:
        """Answer questions like `decide`, without blocking the event loop."""
        request, asked = self._ask(state, questions)
        return self._answers(request, await asyncio.wrap_future(asked))

    def _ask(self, state: Any, questions: dict[str, SystemOneQuestion]) -> tuple[SystemOneRequest, Future[Decision]]:
        asked = {name: _asked(question) for name, question in questions.items()}
        try:
            body = {"model": self.judge.name, "state": state, "questions": asked}
            request = read_model(SystemOneRequest, body, "/v1/systemone")
            return request, shared_batcher(self.judge).decide(*request.asked(), rotations=self.rotations)
        except Refused as refused:
            raise DeepEvalError(refused.message) from None
        except GevalError as error:
            raise DeepEvalError(str(error)) from error

    def _answers(self, request: SystemOneRequest, decision: Decision) -> tuple[SystemOneAnswers, EvaluationCost | None]:
        try:
            written = write_system_one(decision, self.judge.name, request)
        except Refused as refused:
            if refused.code == "max_tokens_exceeded":
                raise SystemOneContextLimitError(
                    refused.message, estimated_tokens=decision.tokens, limit_tokens=self.judge.context
                ) from None
            raise DeepEvalError(refused.message) from None
        answers = SystemOneAnswers()
        for name, answer in written["answers"].items():
            if answer["type"] == "noul":
                answers.nouls[name] = NoulAnswer(probability=answer["noul"])
            elif answer["type"] == "choice":
                answers.choices[name] = ChoiceAnswer.model_validate(answer)
            else:
                answers.scores[name] = ScoreAnswer.model_validate(answer)
        usage = written["usage"]
        return answers, EvaluationCost(0.0, usage["input_tokens"], usage["output_tokens"])


def _asked(question: SystemOneQuestion) -> dict[str, Any]:
    """Write a question in the dialect: DeepEval's objects have other names for its parts."""
    if isinstance(question, NoulQuestion):
        sides = {"true": question.true, "false": question.false}
        return {"type": "noul", "instructions": question.instructions, "criteria": sides}
    if isinstance(question, ChoiceQuestion):
        return {"type": "choice", "instructions": question.instructions, "criteria": dict(question.options)}
    return {"type": "score", "instructions": question.instructions, "criteria": list(question.levels)}
