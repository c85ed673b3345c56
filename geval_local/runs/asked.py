"""What a run asks of every row: metrics, or questions about one evidence; what shares text is planned together.

To the store and the executor both are metrics: a form with the labels of a scale. A question is one such form for each
order of its outcomes; its answer is put together from their outcomes.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from geval_local.errors import OutputError
from geval_local.io.columns import SCORES, Layout, decision_layout
from geval_local.io.input_checks import evidence_of
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.prompt import sharing
from geval_local.questions.answer import Answer, answer_of
from geval_local.questions.form import QuestionForm, forms_hash, question_forms
from geval_local.questions.question import Question, parse_questions
from geval_local.runs.executor import Preparer
from geval_local.runs.manifest import definition
from geval_local.runs.settings import Settings
from geval_local.score import Outcome, Score
from geval_local.signature import Signature, signature_parts

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge
    from geval_local.tokens.requests import Prepared

#: Counts of a run that do not add up over the forms of a question.
_OF_ROWS = ("rows", "unscored")


class Asked(ABC):
    """What a run asks of every row."""

    #: Whose outcomes are stored, in the order of the store.
    metrics: list[Metric]
    #: Numbers of the metrics whose prompts are planned together.
    groups: Sequence[Sequence[int]]
    #: Names of the results, without a judge.
    names: list[str]

    @abstractmethod
    def layout(self, keys: Sequence[str]) -> Layout:
        """Say where results stand in a row, given their names, judge after judge."""

    @abstractmethod
    def preparers(self, judge: Judge, metrics: Sequence[Metric]) -> list[Preparer]:
        """Give what turns samples into prompts, per group; `metrics` have their final evaluation steps."""

    @abstractmethod
    def results(self, outcomes: Sequence[Outcome]) -> Sequence[Score | Answer]:
        """Derive a row's results from the outcomes of all metrics, by one judge."""

    @abstractmethod
    def signature(self, place: int, signatures: Mapping[str, str]) -> str | None:
        """Name all that a result depends on, given the signatures of the metrics; None if they are not known."""

    @abstractmethod
    def record(
        self, place: int, counts: Sequence[dict[str, int]], definitions: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Describe a result for the run's manifest, given the counts of every metric, and their definitions."""


class AskedMetrics(Asked):
    """Scores on metrics."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = [Metric.model_validate(one) for one in settings.metrics]
        self.groups = sharing(self.metrics)
        self.names = [metric.name for metric in self.metrics]
        thresholds = [metric.threshold if settings.threshold is None else settings.threshold for metric in self.metrics]
        self._derive = [
            partial(Outcome.score, metric=metric, estimator=settings.estimator, threshold=threshold)
            for metric, threshold in zip(self.metrics, thresholds, strict=True)
        ]

    def layout(self, keys: Sequence[str]) -> Layout:
        """See `Asked.layout`."""
        return SCORES

    def preparers(self, judge: Judge, metrics: Sequence[Metric]) -> list[Preparer]:
        """See `Asked.preparers`."""

        def prepare(group: Sequence[int], samples: Sequence[Sample]) -> list[list[Prepared]]:
            return [judge.prepare(metrics[place], samples) for place in group]

        return [partial(prepare, group) for group in self.groups]

    def results(self, outcomes: Sequence[Outcome]) -> list[Score]:
        """See `Asked.results`."""
        return [derive(outcome) for derive, outcome in zip(self._derive, outcomes, strict=True)]

    def signature(self, place: int, signatures: Mapping[str, str]) -> str | None:
        """See `Asked.signature`."""
        return signatures.get(self.names[place])

    def record(
        self, place: int, counts: Sequence[dict[str, int]], definitions: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """See `Asked.record`."""
        forms = self.metrics[place].forms
        # Where a row fills several forms, the counts are of forms.
        return {
            "definition": definitions.get(self.names[place]),
            **counts[place],
            **({"forms": forms} if forms > 1 else {}),
        }


class AskedQuestions(Asked):
    """Answers to questions about the evidence of a row."""

    questions: tuple[Question, ...]

    def __init__(self, settings: Settings) -> None:
        assert settings.questions is not None
        self._settings = settings.questions
        self.questions = parse_questions(self._settings.asked)
        self.names = [str(question.name) for question in self.questions]
        self._forms = _forms(self.questions, self._settings.rotations)
        self.metrics = question_metrics(self.questions, self._settings.rotations)
        if [definition(metric) for metric in self.metrics] != settings.metrics:
            raise OutputError(
                "this run puts its questions in another form than this version of geval-local does",
                hint="Use the version that began it, or ask into another directory.",
            )
        self.groups = [range(len(self.metrics))]
        ends = [0, *itertools.accumulate(map(len, self._forms))]
        self._places = list(itertools.starmap(range, itertools.pairwise(ends)))

    def layout(self, keys: Sequence[str]) -> Layout:
        """See `Asked.layout`."""
        types = [question.type for question in self.questions]
        return decision_layout({key: types[place % len(types)] for place, key in enumerate(keys)})

    def preparers(self, judge: Judge, metrics: Sequence[Metric]) -> list[Preparer]:
        """See `Asked.preparers`."""
        return [partial(self._prepare, judge)]

    def _prepare(self, judge: Judge, samples: Sequence[Sample]) -> list[list[Prepared]]:
        from geval_local.tokens.requests import Prepared

        evidence = [evidence_of(sample, self._settings.state) for sample in samples]
        forms = [form for forms in self._forms for form in forms]
        asked = [(text, form) for form in forms for text, error in evidence if error is None]
        found = iter(judge.prepare_forms(asked))
        return [[next(found) if error is None else Prepared(None, error=error) for _, error in evidence] for _ in forms]

    def results(self, outcomes: Sequence[Outcome]) -> list[Answer]:
        """See `Asked.results`."""
        return [
            answer_of(question, forms, [outcomes[place] for place in places])
            for question, forms, places in zip(self.questions, self._forms, self._places, strict=True)
        ]

    def signature(self, place: int, signatures: Mapping[str, str]) -> str | None:
        """See `Asked.signature`."""
        found = signatures.get(self.metrics[self._places[place][0]].name)
        if found is None:
            return None
        metric = f"{self.names[place]}@{forms_hash(self._forms[place])}"
        return str(replace(Signature(**signature_parts(found)), metric=metric))

    def record(
        self, place: int, counts: Sequence[dict[str, int]], definitions: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """See `Asked.record`."""
        own = [counts[number] for number in self._places[place]]
        return {
            "definition": self._settings.asked[place],
            **{name: (max if name in _OF_ROWS else sum)(one[name] for one in own) for name in own[0]},
        }


def asked_of(settings: Settings) -> Asked:
    """Say what a run asks, given its settings; errors as by `AskedQuestions`."""
    return AskedMetrics(settings) if settings.questions is None else AskedQuestions(settings)


def question_metrics(questions: Sequence[Question], rotations: int) -> list[Metric]:
    """Give the forms of questions the names that they have in a run: one metric per question and order."""
    return [
        form.metric.model_copy(update={"name": f"question/{number}/{order}"})
        for number, forms in enumerate(_forms(questions, rotations), start=1)
        for order, form in enumerate(forms, start=1)
    ]


def _forms(questions: Sequence[Question], rotations: int) -> list[tuple[QuestionForm, ...]]:
    return [question_forms(question, rotations=rotations) for question in questions]
