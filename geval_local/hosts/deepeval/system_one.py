"""`LocalSystemOne`: a local judge where DeepEval asks System One.

JevEval asks it, and so does every metric with ``eval_mode="system_one"``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from deepeval.errors import DeepEvalError
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

from geval_local.errors import GevalError
from geval_local.hosts.bound import JudgeLike, shared_batcher, shared_judge
from geval_local.questions.answer import Decision
from geval_local.serve.dialects import SystemOneRequest, write_system_one
from geval_local.serve.requests import Refused, read_model


class LocalSystemOne(DeepEvalBaseSystemOneModel):  # type: ignore[misc]
    """A local judge that answers DeepEval's typed questions with exact probabilities, without HTTP.

    Questions and answers are those of the server's route ``/v1/systemone``, and so are the figures.
    """

    def __init__(self, judge: JudgeLike = None, *, rotations: int = 1) -> None:
        self.judge = shared_judge(judge)
        self.rotations = rotations
        super().__init__(self.judge.name)

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Give the judge, which is loaded already."""
        return self.judge

    def get_model_name(self, *args: Any, **kwargs: Any) -> str:
        """Give the judge's name."""
        return self.judge.name

    def decide(
        self, state: Any, questions: dict[str, SystemOneQuestion]
    ) -> tuple[SystemOneAnswers, EvaluationCost | None]:
        """Answer questions about one state."""
        request = self._request(state, questions)
        return self._answers(request, self._submit(request).result())

    async def a_decide(
        self, state: Any, questions: dict[str, SystemOneQuestion]
    ) -> tuple[SystemOneAnswers, EvaluationCost | None]:
        """Answer questions without holding up the event loop; as `decide`."""
        request = self._request(state, questions)
        return self._answers(request, await asyncio.wrap_future(self._submit(request)))

    def _request(self, state: Any, questions: dict[str, SystemOneQuestion]) -> SystemOneRequest:
        asked = {name: _asked(question) for name, question in questions.items()}
        body = {"model": self.judge.name, "state": state, "questions": asked}
        try:
            return read_model(SystemOneRequest, body, "/v1/systemone")
        except Refused as refused:
            raise DeepEvalError(refused.message) from None

    def _submit(self, request: SystemOneRequest) -> Future[Decision]:
        try:
            state, questions = request.asked()
            return shared_batcher(self.judge).decide(state, questions, rotations=self.rotations)
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
                answers.choices[name] = ChoiceAnswer(
                    choice=answer["choice"], probabilities=answer["probabilities"], confidence=answer["confidence"]
                )
            else:
                by_level = {int(level): p for level, p in answer["probabilities"].items()}
                answers.scores[name] = ScoreAnswer(
                    score=answer["score"], probabilities=by_level, confidence=answer["confidence"]
                )
        usage = written["usage"]
        return answers, EvaluationCost(0.0, usage["input_tokens"], usage["output_tokens"])


def _asked(question: SystemOneQuestion) -> dict[str, Any]:
    """Write a question as the dialect has it: DeepEval's objects name the parts differently."""
    if isinstance(question, NoulQuestion):
        sides = {"true": question.true, "false": question.false}
        described = {side: text for side, text in sides.items() if text is not None}
        return {"type": "noul", "instructions": question.instructions, **({"criteria": described} if described else {})}
    if isinstance(question, ChoiceQuestion):
        return {"type": "choice", "instructions": question.instructions, "criteria": dict(question.options)}
    return {"type": "score", "instructions": question.instructions, "criteria": list(question.levels)}
