"""Reasons: which rows of a result file are explained, and what writes why, batch by batch, into the store of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.direction import Direction
from geval_local.errors import ConfigurationError
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import is_own_result, read_manifest
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.runs.executor import Window, Worker
from geval_local.runs.settings import ReasonSettings, Settings
from geval_local.scale import number_in
from geval_local.score import Outcome

if TYPE_CHECKING:
    from geval_local.judge.reason_writer import Reason

#: Rows that are handed to the judge together; it batches them by length.
ROWS_IN_HAND = 32


def chosen_places(
    figures: Sequence[Mapping[str, Any]],
    *,
    lowest: int | None = None,
    entropy: float | None = None,
    everything: bool = False,
    direction: Direction = Direction.HIGH,
) -> list[int]:
    """Choose the scored rows that get a reason, by their figures; give their places, in order.

    `lowest` counts the worst ones, which are the highest where low scores are good.
    """
    if (lowest is not None) + (entropy is not None) + everything != 1:
        raise ConfigurationError(
            "choose the rows that get a reason", hint="Add one of `lowest=N`, `entropy=NATS` and `everything=True`."
        )
    scores = {place: _figure(one, "score") for place, one in enumerate(figures)}
    has_scores = any(score is not None for score in scores.values())
    scored = [place for place, score in scores.items() if score is not None and figures[place].get("mode") is not None]
    if lowest is not None:
        chosen = sorted(sorted(scored, key=lambda place: (direction.sign * (scores[place] or 0), place))[:lowest])
    elif entropy is not None:
        chosen = [place for place in scored if (_figure(figures[place], "entropy") or 0.0) >= entropy]
    else:
        chosen = scored
    if not chosen:
        which = f"none of {len(scored)} scored rows has an entropy that high" if scored else "no row has a score"
        if has_scores and not scored:
            which = "no row holds the label that it got; of a table, the file .rows.jsonl beside it does"
        raise ConfigurationError(
            f"there is no row to give a reason for: {which}", hint="Choose others, or `everything=True`."
        )
    return chosen


def reason_record(settings: Settings, judge: Mapping[str, Any]) -> dict[str, Any]:
    """Say what is asked of a judge, given its options: what reasons depend on besides the input and its columns."""
    assert settings.reasons is not None
    (metric,) = settings.metrics
    return {**settings.reasons.model_dump(), "metric": metric, "rows": settings.chosen, "judge": dict(judge)}


def holds_reasons(file: Path, results: Path, settings: Settings, judge: Mapping[str, Any]) -> bool:
    """Whether a file is, unchanged, what a run of these settings would write."""
    if not is_own_result(file) or (found := read_manifest(file)) is None:
        return False
    asked = (file_sha256(results), settings.fields, reason_record(settings, judge))
    return (found.input_sha256, found.fields, found.reasons) == asked


def _figure(figures: Mapping[str, Any], name: str) -> float | None:
    number = number_in(figures.get(name))
    return number if number is not None and math.isfinite(number) else None


@dataclass
class ReasonWorker(Worker):
    """Executor of one judge's windows that lets it write.

    A batch is committed as a whole. So a run that is resumed hands the rows that are left to the judge in the batches
    of an uninterrupted one, unless memory ran out.
    """

    metric: Metric
    settings: ReasonSettings

    def execute(self, window: Window, metrics: Sequence[int], prepared: object) -> None:
        """Let the judge write the reasons of a window that are missing."""
        from geval_local.judge.reason_writer import reason_batches

        there = self.store.origins(self.number, 0, window.first, window.stop)
        self.advance(len(there))
        waiting = [row for row in range(window.first, window.stop) if row not in there]
        samples = [window.samples[row - window.first] for row in waiting]
        labels = [str(self._figures(sample)["mode"]) for sample in samples]
        signature = str(self.judge.signature(self.metric))
        asked = self.settings
        for batch in reason_batches(
            self.judge, self.metric, samples, labels, max_new_tokens=asked.tokens, request=asked.request
        ):
            rows = []
            for place, reason in batch:
                record = self._record(samples[place], reason, signature)
                rows.append((0, waiting[place], Outcome(error=reason.error, written=record)))
            self.store.add(self.number, rows)
            self.advance(len(batch))
            self._stop_if_asked()

    def _figures(self, sample: Sample) -> Mapping[str, Any]:
        figures: Mapping[str, Any] = sample.fields["geval"][self.settings.result]
        return figures

    def _record(self, sample: Sample, reason: Reason, signature: str) -> dict[str, Any]:
        identity = sample.fields.get("id")
        return {
            "row": sample.row,
            **({} if identity is None else {"id": identity}),
            "metric": self.metric.name,
            "score": _figure(self._figures(sample), "score"),
            "label": reason.label,
            "reason": reason.text or None,
            "is_complete": reason.is_complete,
            "cites_text": reason.cites,
            "error": None if reason.error is None else str(reason.error),
            "error_code": None if reason.error is None else reason.error.code.value,
            "prompt_sha256": reason.prompt_sha256 or None,
            "signature": signature,
        }
