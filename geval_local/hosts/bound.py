"""The common part of all tools: one judge per process, one batcher per judge, and a metric bound to both.

Tools call row by row, from threads or from tasks of an event loop. Every call goes through the judge's `Batcher`, which
gathers the calls of a few milliseconds, so that prompts share their introductions and sources as in a file.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from geval_local.direction import Direction
from geval_local.errors import ConfigurationError
from geval_local.fields import check_mapping
from geval_local.io.input_checks import load_metrics
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.options import JudgeOptions
from geval_local.scale import Scale
from geval_local.score import LOW_LABEL_MASS, Estimator, Score

if TYPE_CHECKING:
    from geval_local.judge.batcher import Batcher
    from geval_local.judge.judge import Judge

#: Most labels that a text names; it adds up the probability of the others.
LABELS_NAMED = 5


def in_words(score: Score, scale: Scale) -> str:
    """Describe a score in words: label probabilities and the figures from them."""
    if score.error is not None:
        return f"unscored: {' '.join(score.error.split())}"
    ranked = sorted((score.probabilities or {}).items(), key=lambda pair: -pair[1])
    named = [f"{label} ({p:.0%})" for label, p in ranked[:LABELS_NAMED]]
    if len(ranked) > LABELS_NAMED:
        named.append(f"{len(ranked) - LABELS_NAMED} others ({sum(p for _, p in ranked[LABELS_NAMED:]):.0%})")
    said = [
        f"{score.value:.3g} on {scale.text}: {', '.join(named)}.",
        f"Standard deviation {score.std:.2g}, label mass {score.label_mass:.2f}.",
    ]
    if score.threshold is not None and score.threshold_probability is not None:
        how = "reaches" if score.direction is Direction.HIGH else "is at most"
        said.append(f"The label {how} {score.threshold:g} with probability {score.threshold_probability:.0%}.")
    if score.label_mass < LOW_LABEL_MASS and score.other_tokens:
        others = ", ".join(f"{token!r} ({p:.0%})" for token, p in score.other_tokens[:3])
        said.append(f"The label mass is low: the judge would rather have written {others}.")
    return " ".join(said)


#: A loaded judge, or how to load one: a name, a directory, a hub id; None is the default judge.
JudgeLike: TypeAlias = "Judge | JudgeOptions | str | os.PathLike[str] | None"
#: A metric, the name of a preset, or the path of a metric's YAML file.
MetricLike: TypeAlias = "Metric | str | os.PathLike[str]"

#: How long a call waits for others while the model is idle.
GATHER_SECONDS = 0.01

_lock = threading.RLock()
_judges: dict[JudgeOptions, Judge] = {}
_batchers: dict[Judge, Batcher] = {}


def shared_judge(judge: JudgeLike = None) -> Judge:
    """Return a judge; each judge is loaded once per process, for all callers and threads."""
    from geval_local.judge.judge import Judge
    from geval_local.models.registry import load_registry

    if isinstance(judge, Judge):
        return judge
    choice = (
        judge if isinstance(judge, JudgeOptions) else JudgeOptions(name=None if judge is None else os.fspath(judge))
    )
    with _lock:
        if choice.name is None:
            choice = choice.model_copy(update={"name": load_registry(choice.models_file).default})
        if choice not in _judges:
            _judges[choice] = Judge.load(choice)
        return _judges[choice]


def shared_batcher(judge: Judge) -> Batcher:
    """Return the batcher of a judge. From now on, use the judge only through it."""
    from geval_local.judge.batcher import Batcher

    with _lock:
        if judge not in _batchers:
            # A tool may submit all its rows at once, and the batcher must refuse none. Its workers also do other work
            # between two rows, so their calls are more spread out than those of a server's clients.
            _batchers[judge] = Batcher(judge, queue=sys.maxsize, gather_seconds=GATHER_SECONDS)
        return _batchers[judge]


def release_judges() -> None:
    """Finish calls in progress, stop the batchers, and forget the judges; a later call loads them again."""
    with _lock:
        stopped = list(_batchers.values())
        _batchers.clear()
        _judges.clear()
    for batcher in stopped:
        batcher.close()


def _start_anew_after_fork() -> None:
    """After a fork, forget batchers, whose threads stay in the parent, and replace a lock that one may hold."""
    global _lock
    _lock = threading.RLock()
    for batcher in _batchers.values():
        atexit.unregister(batcher.close)
    _batchers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew_after_fork)


@dataclass(frozen=True)
class BoundMetric:
    """A metric on a judge, to be called row by row from any thread or task."""

    #: With its final evaluation steps.
    metric: Metric
    #: Who scores.
    judge: Judge
    #: Field of the metric -> the column, or the dotted path into one, that it is read from.
    fields: Mapping[str, str] = field(default_factory=dict)
    #: None is the exact expectation.
    estimator: Estimator | None = None
    #: The score that passes, on the metric's scale.
    threshold: float | None = None

    @classmethod
    def bind(
        cls,
        metric: MetricLike,
        judge: JudgeLike = None,
        *,
        fields: Mapping[str, str] | None = None,
        estimator: Estimator | None = None,
        threshold: float | None = None,
    ) -> BoundMetric:
        """Check the arguments, load the judge if needed, and let it write missing evaluation steps."""
        (found,) = load_metrics([metric])
        mapping = dict(fields or {})
        check_mapping(mapping, found.fields)
        limit = found.threshold if threshold is None else threshold
        found.check_on_scale(limit, "the threshold")
        loaded = shared_judge(judge)
        if found.needs_steps:
            # Before the first row: a tool's time limit for a row must not include the writing of steps.
            found = shared_batcher(loaded).call(partial(loaded.with_steps, found)).result()
        return cls(found, loaded, mapping, estimator, limit)

    @property
    def options(self) -> JudgeOptions:
        """How the judge was loaded; None if it was loaded elsewhere."""
        with _lock:
            for options, judge in _judges.items():
                if judge is self.judge:
                    return options
        raise ConfigurationError(
            f"{self.metric.name}: its judge was loaded elsewhere, and no other process could load it",
            hint="Name the judge, or give JudgeOptions, instead of a loaded Judge.",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options that load the judge, never its weights."""
        terms: dict[str, Any] = {"fields": dict(self.fields), "estimator": self.estimator, "threshold": self.threshold}
        return partial(BoundMetric.bind, self.metric, self.options, **terms), ()

    def __deepcopy__(self, memo: object) -> BoundMetric:
        return self  # it is immutable, and all copies use one judge

    @cached_property
    def signature(self) -> str:
        """Everything that a score depends on: compare two scores only if their signatures are equal."""
        return str(self.judge.signature(self.metric, self.estimator))

    def sample(self, row: Mapping[str, Any]) -> Sample:
        """Make a sample of a row by the mapping of fields."""
        return Sample(row, mapping=self.fields)

    def submit(self, row: Mapping[str, Any]) -> Future[list[Score]]:
        """Submit one row, as columns."""
        batcher = shared_batcher(self.judge)
        return batcher.score(self.metric, [self.sample(row)], estimator=self.estimator, threshold=self.threshold)

    def score(self, row: Mapping[str, Any]) -> Score:
        """Score one row, and wait for it."""
        return self.submit(row).result()[0]

    def words(self, score: Score) -> str:
        """Describe a score's distribution in words; see `in_words`."""
        return in_words(score, self.metric.scale)

    def record(self, score: Score) -> dict[str, Any]:
        """Return a score's figures as plain values, with judge and signature."""
        return {**score.to_dict(), "judge": self.judge.name, "signature": self.signature}


def laid_out(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Make columns of the parts of a tool's row; keep the parts too, so that dotted paths can begin with them.

    If several parts have a column of one name, the outputs win, then the inputs.
    """
    given = {name: part for name, part in parts.items() if part is not None}
    row: dict[str, Any] = {}
    for name in sorted(given, key=lambda name: (name.startswith("output"), name.startswith("input"))):
        if isinstance(given[name], Mapping):
            row |= {str(column): value for column, value in given[name].items()}
        elif name in ("inputs", "outputs"):
            row[name[:-1]] = given[name]
    return {**row, **given}
