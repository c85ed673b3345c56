"""Scorer: samples through an engine, window by window, into scores. The model itself belongs to `Judge`.

A sample enters at `Scorer.iter_scores`, becomes a filled form, tokens and a label trie (`tokens.requests`), passes
through the model in packs (`engine.interface`), and comes out as a `Score`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from typing_extensions import TypedDict, Unpack

from geval_local.engine.interface import Engine, Readout
from geval_local.engine.window import THOUGHTS_AT_ONCE, WINDOW, make_outcome, read_window, regrow, window_sizes
from geval_local.errors import Cause, ErrorCode, UnscorableError
from geval_local.io.input_checks import check_columns, check_metrics, iter_samples
from geval_local.io.samples import Sample
from geval_local.judge.decisions import Asked, DecisionWork
from geval_local.metric import Metric
from geval_local.prompt import sharing
from geval_local.questions.answer import Decision
from geval_local.questions.form import Marks
from geval_local.questions.pair import scores_of
from geval_local.questions.question import Question, parse_questions
from geval_local.score import Estimator, Outcome, Score, mean_over_thoughts
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.requests import Prepared, RequestMaker

if TYPE_CHECKING:
    from geval_local.judge.thoughts import Thinker

_T = TypeVar("_T")

#: Whether to show a bar on stderr; or what is called with the number of scores that are finished, and of all.
OnProgress: TypeAlias = bool | Callable[[int, int], object]


class _Cancelled(Exception):
    """Nobody waits for the work any more."""


@contextmanager
def progress_of(progress: OnProgress, label: str, total: int) -> Iterator[Callable[[int], object]]:
    """Give what is to be called with the number of scores that were finished since the last call."""
    if progress is False:
        yield lambda count: None
        return
    if callable(progress):
        done, tell = 0, progress

        def count_up(count: int) -> None:
            nonlocal done
            done += count
            tell(done, total)

        yield count_up
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


async def in_thread(work: Callable[[OnProgress], _T], progress: OnProgress) -> _T:
    """Run work in a thread while the event loop continues."""
    loop, cancelled = asyncio.get_running_loop(), threading.Event()

    def tell(done: int, total: int) -> None:
        if cancelled.is_set():
            raise _Cancelled
        if callable(progress):
            loop.call_soon_threadsafe(progress, done, total)

    def run() -> _T:
        # A bar is drawn by the work itself, which then hears of a cancellation at its end only.
        return work(progress if progress is True else tell)

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        cancelled.set()
        raise


#: What is scored: from `read_samples`, or plain dictionaries of texts.
Row: TypeAlias = "Sample | Mapping[str, Any]"
Rows: TypeAlias = "Iterable[Row]"


class _Options(TypedDict, total=False):
    estimator: Estimator | None
    threshold: float | None
    fields: Mapping[str, str] | None


class _Many(_Options, total=False):
    progress: OnProgress


class _Stream(_Options, total=False):
    advance: Callable[[int], object]


#: Most characters per token assumed for a text that may still fit.
CHARACTERS_PER_TOKEN = 8
#: Most metrics whose forms are cached: a server receives ever new ones.
MOST_MAKERS = 512


class Scorer(ABC):
    """Base class of judges: scores samples.

    All methods may be called from any thread, and from a callback of a call: a unit of prompts is computed in one turn
    of the engine's, see `geval_local.engine.interface.Engine`.
    """

    def __init__(self, encoder: PromptEncoder, engine: Engine) -> None:
        self.encoder = encoder
        self.engine: Engine = engine
        #: What draws thoughts before the labels are read; None for a judge that does not think.
        self.thinker: Thinker | None = None
        self.makers: dict[tuple[str, str], RequestMaker] = {}
        self._makers_turn = threading.Lock()

    @property
    @abstractmethod
    def context(self) -> int:
        """Longest prompt in tokens, including the label's tokens."""

    @abstractmethod
    def with_steps(self, metric: Metric) -> Metric:
        """Return a metric with its evaluation steps."""

    def check_files(self) -> None:  # noqa: B027 - a scorer need not come from files
        """Tell if what it was loaded from has changed; called before figures are given out or kept."""

    @overload
    def score(
        self,
        metric: Metric,
        sample: Row | None = ...,
        /,
        *,
        estimator: Estimator | None = ...,
        threshold: float | None = ...,
        **fields: Any,
    ) -> Score: ...

    @overload
    def score(
        self,
        metric: Sequence[Metric],
        sample: Row | None = ...,
        /,
        *,
        estimator: Estimator | None = ...,
        threshold: float | None = ...,
        **fields: Any,
    ) -> dict[str, Score]: ...

    def score(
        self,
        metric: Metric | Sequence[Metric],
        sample: Row | None = None,
        /,
        *,
        estimator: Estimator | None = None,
        threshold: float | None = None,
        **fields: Any,
    ) -> Score | dict[str, Score]:
        """Score one sample, given as a mapping or by its fields.

        Parameters
        ----------
        metric : Metric or sequence of Metric
            What to rate. Steps are written and pinned first if it has none.
        sample : mapping or Sample, optional
            The sample as `score_many` takes it: columns to texts. ``fields={"output": "answer"}`` maps its columns.
        estimator : Estimator, optional
            Exact expectation when absent.
        threshold : float, optional
            Overrides the metric's own.
        **fields : str
            Without `sample`, its texts, such as ``source=..., output=...``; aliases as in data files.

        Returns
        -------
        Score, or dict of str to Score
            Unscored, with the reason in ``error``, if the fields do not fit the metric. By name for several metrics.

        Raises
        ------
        TypeError
            If `metric` is not a `Metric`, or a sample and fields are given.
        """
        mapping = None
        if sample is not None:
            mapping = fields.pop("fields", None)
            if fields:
                raise TypeError(f"Judge.score() takes a sample or its fields, not both: {', '.join(fields)}")
        row = fields if sample is None else sample
        metrics = check_metrics(metric)
        found = next(self.iter_scores(metrics, [row], estimator=estimator, threshold=threshold, fields=mapping))
        return found[metric.name] if isinstance(metric, Metric) else found

    @overload
    def score_many(self, metric: Metric, samples: Rows, **options: Unpack[_Many]) -> list[Score]: ...

    @overload
    def score_many(
        self, metric: Sequence[Metric], samples: Rows, **options: Unpack[_Many]
    ) -> dict[str, list[Score]]: ...

    def score_many(
        self,
        metric: Metric | Sequence[Metric],
        samples: Rows,
        *,
        estimator: Estimator | None = None,
        threshold: float | None = None,
        fields: Mapping[str, str] | None = None,
        progress: OnProgress = False,
    ) -> list[Score] | dict[str, list[Score]]:
        """Score samples; the result has one score per sample, in the order given.

        Parameters
        ----------
        metric : Metric or sequence of Metric
            What to rate. Metrics whose forms begin with the same field, such as published prompts that open with the
            source, share its computation.
        samples : iterable of Sample or mapping
            From `read_samples`, or plain dictionaries of texts.
        estimator : Estimator, optional
            Exact expectation when absent.
        threshold : float, optional
            Overrides the metric's own.
        fields : mapping of str to str, optional
            Field of the metric -> the column, or the dotted path into one, that it is read from, such as
            ``{"output": "answer"}``. Fields that are not in it are found by their names.
        progress : bool or callable
            Whether to show a progress bar on stderr; or what is called with the number of scores that are finished and
            the number of all, batch by batch.

        Returns
        -------
        list of Score, or dict of str to list of Score
            By name for several metrics, in their order.

        Raises
        ------
        TypeError
            If `metric` is not a `Metric`, or `samples` are not rows of columns.
        ConfigurationError
            If `fields` names a field that no metric has, or two metrics have the same name.
        DataError
            If `fields` names a column that no sample has.
        """
        metrics = check_metrics(metric)
        listed = list(iter_samples(samples, metrics, fields))
        check_columns(listed, fields or {})
        total = len(listed) * len(metrics)
        with progress_of(progress, ", ".join(one.name for one in metrics), total) as advance:
            rows = list(self._iter_rows(metrics, iter(listed), estimator, threshold, advance))
        columns = {one.name: [row[place] for row in rows] for place, one in enumerate(metrics)}
        return columns[metric.name] if isinstance(metric, Metric) else columns

    @overload
    async def ascore_many(self, metric: Metric, samples: Rows, **options: Unpack[_Many]) -> list[Score]: ...

    @overload
    async def ascore_many(
        self, metric: Sequence[Metric], samples: Rows, **options: Unpack[_Many]
    ) -> dict[str, list[Score]]: ...

    async def ascore_many(
        self, metric: Metric | Sequence[Metric], samples: Rows, **options: Unpack[_Many]
    ) -> list[Score] | dict[str, list[Score]]:
        """Score samples for an event loop; parameters, result and errors as in `score_many`.

        The work runs in a thread, and calls of one judge take turns, batch by batch. The loop calls `progress`. After a
        cancellation the work ends with the current batch.
        """
        progress = options.pop("progress", False)
        work: Any = partial(self.score_many, metric, samples, **options)
        return await in_thread(lambda told: work(progress=told), progress)

    @overload
    def iter_scores(self, metric: Metric, samples: Rows, **options: Unpack[_Stream]) -> Iterator[Score]: ...

    @overload
    def iter_scores(
        self, metric: Sequence[Metric], samples: Rows, **options: Unpack[_Stream]
    ) -> Iterator[dict[str, Score]]: ...

    def iter_scores(
        self,
        metric: Metric | Sequence[Metric],
        samples: Rows,
        *,
        estimator: Estimator | None = None,
        threshold: float | None = None,
        fields: Mapping[str, str] | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> Iterator[Any]:
        """Score a stream of samples, in order, at most `WINDOW` samples at a time."""
        metrics = check_metrics(metric)
        rows = self._iter_rows(metrics, iter_samples(samples, metrics, fields), estimator, threshold, advance)
        if isinstance(metric, Metric):
            return (row[0] for row in rows)
        names = [one.name for one in metrics]
        return (dict(zip(names, row, strict=True)) for row in rows)

    def _iter_rows(
        self,
        metrics: Sequence[Metric],
        stream: Iterator[Sample],
        estimator: Estimator | None,
        threshold: float | None,
        advance: Callable[[int], object],
    ) -> Iterator[list[Score]]:
        """Give out every sample's scores, one per metric."""
        complete = [self.with_steps(metric) for metric in metrics]
        regrow(self.engine)
        for size in window_sizes(WINDOW):
            window = list(itertools.islice(stream, size))
            if not window:
                return
            columns: list[list[Score]] = [[]] * len(metrics)
            for group in sharing(complete):
                prepared = [self.prepare(complete[place], window) for place in group]
                outcomes = self._outcomes(prepared, advance)
                for place, entries in zip(group, prepared, strict=True):
                    own = list(itertools.islice(outcomes, len(entries)))
                    columns[place] = scores_of(complete[place], own, estimator, threshold)
            yield from map(list, zip(*columns, strict=True))

    def decide(
        self,
        state: Any,
        questions: Mapping[str, Any] | Sequence[Question | Mapping[str, Any]],
        *,
        rotations: int = 1,
    ) -> Decision:
        """Answer questions about one piece of evidence.

        Parameters
        ----------
        state : str, mapping or sequence
            The evidence; see `geval_local.questions.form.state_text`.
        questions : mapping of str, or sequence
            See `geval_local.questions.question.parse_questions`.
        rotations : int
            Number of orders in which outcomes are shown; an answer is the mean over them. A question's own
            `rotations` take precedence.

        Returns
        -------
        Decision
            One answer per question, in order; one that cannot be answered has the reason in ``error``.

        Raises
        ------
        QuestionError
            If the questions are inconsistent, or the evidence cannot be written as text.
        """
        return next(self.iter_decisions([state], questions, rotations=rotations))

    def decide_many(
        self,
        states: Iterable[Any],
        questions: Mapping[str, Any] | Sequence[Question | Mapping[str, Any]],
        *,
        rotations: int = 1,
    ) -> list[Decision]:
        """Answer the same questions about every piece of evidence; parameters and errors as in `decide`."""
        return list(self.iter_decisions(states, questions, rotations=rotations))

    def iter_decisions(
        self,
        states: Iterable[Any],
        questions: Mapping[str, Any] | Sequence[Question | Mapping[str, Any]],
        *,
        rotations: int = 1,
        marks: Marks | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> Iterator[Decision]:
        """Answer the same questions about a stream of evidence, in order, about `WINDOW` prompts at a time."""
        asked = parse_questions(questions)
        stream = (self.decision_work(state, asked, rotations=rotations, marks=marks) for state in states)
        waiting: list[DecisionWork] = []
        size = 0
        for work in stream:
            waiting.append(work)
            size += len(work)
            if size >= WINDOW:
                yield from self._decisions(waiting, advance)
                waiting, size = [], 0
        yield from self._decisions(waiting, advance)

    def decision_work(
        self, state: Any, questions: Sequence[Question], *, rotations: int = 1, marks: Marks | None = None
    ) -> DecisionWork:
        """Get ready to answer questions about one evidence, for whoever runs the engine; parameters as `decide`."""
        return DecisionWork(state, questions, self.prepare_forms, rotations, marks)

    def _decisions(self, works: Sequence[DecisionWork], advance: Callable[[int], object]) -> Iterator[Decision]:
        outcomes = self._outcomes([work.prepare(0, len(work)) for work in works], advance)
        for work in works:
            yield work.finish(list(itertools.islice(outcomes, len(work))))

    def _outcomes(self, prepared: Iterable[Sequence[Prepared]], advance: Callable[[int], object]) -> Iterator[Outcome]:
        """Read prompts that are planned together, and give their outcomes one after the other."""
        forms = list(itertools.chain.from_iterable(prepared))
        if self.thinker is None:
            readouts = read_window(self.engine, forms, advance)
            self.check_files()
            return map(self.outcome, forms, readouts)
        return iter(self._thought_outcomes(self.thinker, forms, advance))

    def _thought_outcomes(
        self, thinker: Thinker, forms: Sequence[Prepared], advance: Callable[[int], object]
    ) -> Iterator[Outcome]:
        """Think about forms and read them, some rows at a time, so that what waits for its labels is little."""
        count = thinker.settings.count
        size = max(1, THOUGHTS_AT_ONCE // count)
        for start in range(0, len(forms), size):
            entries = thinker.after_thoughts(forms[start : start + size])
            readouts = read_window(self.engine, entries, lambda done: None)
            self.check_files()
            yield from self.mean_outcomes(entries, readouts)
            advance(len(entries) // count)

    def mean_outcomes(self, entries: Sequence[Prepared], readouts: Sequence[Readout | None]) -> list[Outcome]:
        """Combine entries and read-outs into outcomes; those after the thoughts about one form into one."""
        found = list(map(self.outcome, entries, readouts))
        if self.thinker is None:
            return found
        thoughts = [entry.thought for entry in entries]
        return mean_over_thoughts(found, thoughts, self.thinker.settings.count)

    def prepare_forms(self, asked: Sequence[Asked]) -> list[Prepared]:
        """Turn forms of questions about evidences, in pairs, into what the engine takes, or into reasons why not."""
        prepared: list[Prepared | None] = [None] * len(asked)
        refused: dict[str, Prepared | None] = {}
        groups: dict[int, tuple[Metric, list[int]]] = {}
        for place, (text, form) in enumerate(asked):
            for one in (text, form.text):
                if one not in refused:
                    refused[one] = self._refusal(one)
            prepared[place] = refused[text] or refused[form.text]
            if prepared[place] is None:
                groups.setdefault(id(form.metric), (form.metric, []))[1].append(place)
        for metric, places in groups.values():
            samples = [Sample({"state": asked[place][0], "question": asked[place][1].text}) for place in places]
            for place, entry in zip(places, self.prepare(metric, samples), strict=True):
                prepared[place] = entry
        return [entry for entry in prepared if entry is not None]

    def _refusal(self, text: str) -> Prepared | None:
        """Say why a text is too long for a judge, as soon as its beginning shows it; None if it may not be.

        Otherwise a text of megabytes would be tokenized once for every question, to be refused.
        """
        context = self.context
        size = CHARACTERS_PER_TOKEN * context
        while len(text) > 2 * context:
            try:
                tokens = len(self.encoder.encode_texts([text[:size]])[0])
            except UnscorableError as error:
                return Prepared(None, error=error.cause)
            if tokens > context:
                reason = (
                    f"the prompt has more than {tokens} tokens, the judge reads {context} with the label; "
                    "shorten the evidence or the question, or take a judge that reads more"
                )
                return Prepared(None, error=Cause(reason, ErrorCode.TOO_LONG))
            if size >= len(text):
                break
            size *= 2
        return None

    def prepare(self, metric: Metric, samples: Sequence[Sample]) -> list[Prepared]:
        """Turn samples into requests for the engine, or errors with reasons, in order."""
        return self._maker(metric).prepare(samples)

    def outcome(self, entry: Prepared, readout: Readout | None) -> Outcome:
        """Combine a prepared sample and its read-out into its outcome."""
        return make_outcome(entry, readout, self.encoder)

    def _maker(self, metric: Metric) -> RequestMaker:
        key = (metric.hash, metric.steps_hash)
        with self._makers_turn:
            if key not in self.makers:
                while len(self.makers) >= MOST_MAKERS:
                    del self.makers[next(iter(self.makers))]
                if self.thinker is None:
                    self.makers[key] = RequestMaker(self.encoder, metric, self.context)
                else:
                    self.makers[key] = self.thinker.maker(metric, self.context)
            return self.makers[key]


# Python names a method in its own messages by where it is defined; users know the judge's.
for _method in (
    *(Scorer.score, Scorer.score_many, Scorer.ascore_many, Scorer.iter_scores),
    *(Scorer.decide, Scorer.decide_many, Scorer.iter_decisions),
):
    _method.__qualname__ = f"Judge.{_method.__name__}"
