"""What a run asks of every row: metrics, questions, or reasons; what shares text is planned together.

To the store and the executor all are metrics: a form with the labels of a scale. A question is one such form for each
order of its outcomes; its answer is put together from their outcomes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from geval_local.errors import OutputError
from geval_local.io.columns import ALONE, SCORES, ColumnLayout, decision_layout
from geval_local.io.input_checks import evidence_of
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.prompt import sharing
from geval_local.questions.answer import Answer, answers_of
from geval_local.questions.form import QuestionForm, forms_hash, question_forms
from geval_local.questions.pair import scores_of
from geval_local.questions.question import Question, parse_questions
from geval_local.runs.executor import Preparer, Worker
from geval_local.runs.manifest import definition
from geval_local.runs.reasons import ReasonWorker
from geval_local.runs.settings import Settings
from geval_local.score import Outcome, Score
from geval_local.signature import Signature
from geval_local.summary import QuestionTally, Tally

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge
    from geval_local.tokens.requests import Prepared


@dataclass(frozen=True)
class Written:
    """What a judge wrote about a row."""

    #: As it is stored, and as it stands in the result.
    record: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain JSON values."""
        return dict(self.record)


#: What a row gets for one thing that it was asked.
Result: TypeAlias = Score | Answer | Written


class Asked:
    """What a run asks of every row: scores on metrics, unless a subclass says otherwise."""

    #: Makes the executor of one judge.
    worker: Callable[..., Worker] = Worker
    #: The questions, if that is what is asked.
    questions: tuple[Question, ...] = ()

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: Whose outcomes are stored, in the order of the store.
        self.metrics = [Metric.model_validate(one) for one in settings.metrics]
        #: Numbers of the metrics whose prompts are planned together.
        self.groups: Sequence[Sequence[int]] = sharing(self.metrics)
        #: Names of the results, without a judge.
        self.names = [metric.name for metric in self.metrics]

    def layout(self, keys: Sequence[str]) -> ColumnLayout:
        """Say where results stand in a row, given their names, judge after judge."""
        return SCORES

    def preparers(self, judge: Judge, metrics: Sequence[Metric]) -> list[Preparer]:
        """Give what turns samples into prompts, per group; `metrics` have their final evaluation steps."""

        def prepare(group: Sequence[int], samples: Sequence[Sample]) -> list[list[Prepared]]:
            return [judge.prepare(metrics[place], samples) for place in group]

        return [partial(prepare, group) for group in self.groups]

    def results(self, outcomes: Sequence[Sequence[Outcome]]) -> Sequence[Sequence[Result]]:
        """Derive the results of rows by one judge, per name, from the outcomes of all forms, per metric."""
        settings = self._settings
        return [
            scores_of(metric, own, settings.estimator, settings.threshold)
            for metric, own in zip(self.metrics, outcomes, strict=True)
        ]

    def tally(self, key: str, place: int) -> Any:
        """Give what sums up the results of a name; None if there is nothing to sum up."""
        scale = self.metrics[place].scale
        return Tally(key, ends=(scale.low, scale.high))

    def signature(self, place: int, signatures: Mapping[str, str]) -> str | None:
        """Name all that a result depends on, given the signatures of the metrics; None if they are not known."""
        return signatures.get(self.names[place])


class AskedQuestions(Asked):
    """Answers to questions about the evidence of a row."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        assert settings.questions is not None
        self._asked = settings.questions
        self.questions = parse_questions(self._asked.asked)
        self.names = [str(question.name) for question in self.questions]
        self._forms = _forms(self.questions, self._asked.rotations)
        self.metrics = question_metrics(self.questions, self._asked.rotations)
        if [definition(metric) for metric in self.metrics] != settings.metrics:
            raise OutputError(
                "this run puts its questions in another form than this version of geval-local does",
                hint="Use the version that began it, or ask into another directory.",
            )
        self.groups = [range(len(self.metrics))]
        ends = [0, *itertools.accumulate(map(len, self._forms))]
        self._places = list(itertools.starmap(range, itertools.pairwise(ends)))

    def layout(self, keys: Sequence[str]) -> ColumnLayout:
        """See `Asked.layout`."""
        types = [question.type for question in self.questions]
        return decision_layout({key: types[place % len(types)] for place, key in enumerate(keys)})

    def preparers(self, judge: Judge, metrics: Sequence[Metric]) -> list[Preparer]:
        """See `Asked.preparers`."""
        return [partial(self._prepare, judge)]

    def _prepare(self, judge: Judge, samples: Sequence[Sample]) -> list[list[Prepared]]:
        from geval_local.tokens.requests import Prepared

        evidence = [evidence_of(sample, self._asked.state) for sample in samples]
        forms = [form for forms in self._forms for form in forms]
        asked = [(text, form) for form in forms for text, error in evidence if error is None]
        found = iter(judge.prepare_forms(asked))
        return [[next(found) if error is None else Prepared(None, error=error) for _, error in evidence] for _ in forms]

    def results(self, outcomes: Sequence[Sequence[Outcome]]) -> list[list[Answer]]:
        """See `Asked.results`."""
        rows = [answers_of(self.questions, self._forms, row) for row in zip(*outcomes, strict=True)]
        return [[row[place] for row in rows] for place in range(len(self.questions))]

    def tally(self, key: str, place: int) -> QuestionTally:
        """See `Asked.tally`."""
        return QuestionTally(key, self.questions[place])

    def signature(self, place: int, signatures: Mapping[str, str]) -> str | None:
        """See `Asked.signature`."""
        found = signatures.get(self.metrics[self._places[place][0]].name)
        if found is None:
            return None
        metric = f"{self.names[place]}@{forms_hash(self._forms[place])}"
        return str(replace(Signature.parse(found), metric=metric))


class AskedReasons(Asked):
    """Why rows of a result file got their scores on one metric, in the judge's words."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        assert settings.reasons is not None
        self.worker = partial(ReasonWorker, metric=self.metrics[0], settings=settings.reasons)

    def layout(self, keys: Sequence[str]) -> ColumnLayout:
        """See `Asked.layout`."""
        return ALONE

    def preparers(self, judge: Judge, metrics: Sequence[Metric]) -> list[Preparer]:
        """See `Asked.preparers`: prompts are made where they are answered, batch by batch."""
        return [lambda samples: []]

    def results(self, outcomes: Sequence[Sequence[Outcome]]) -> list[list[Written]]:
        """See `Asked.results`."""
        return [[Written(one.written or {}) for one in own] for own in outcomes]

    def tally(self, key: str, place: int) -> None:
        """See `Asked.tally`."""


def asked_of(settings: Settings) -> Asked:
    """Say what a run asks, given its settings; errors as by `AskedQuestions`."""
    if settings.reasons is not None:
        return AskedReasons(settings)
    return Asked(settings) if settings.questions is None else AskedQuestions(settings)


def question_metrics(questions: Sequence[Question], rotations: int) -> list[Metric]:
    """Give the forms of questions the names that they have in a run: one metric per question and order."""
    return [
        form.metric.model_copy(update={"name": f"question/{number}/{order}"})
        for number, forms in enumerate(_forms(questions, rotations), start=1)
        for order, form in enumerate(forms, start=1)
    ]


def _forms(questions: Sequence[Question], rotations: int) -> list[tuple[QuestionForm, ...]]:
    return [question_forms(question, rotations=rotations) for question in questions]
