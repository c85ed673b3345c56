"""Gates: limits on a run's figures that turn its exit code to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geval_local.errors import ConfigurationError

if TYPE_CHECKING:
    from geval_local.questions.tally import QuestionSummary
    from geval_local.summary import Reason, Summary

__all__ = ["EXIT_GATE", "Gates"]

EXIT_GATE = 1
#: Reasons that are named for a metric without a score.
REASONS_NAMED = 3


@dataclass(frozen=True)
class Gates:
    """What a run must reach; each gate holds for every metric of the run.

    Attributes
    ----------
    fail_under : float or None
        Least mean score, on the metric's own scale. No scored row at all fails it.
    max_unscored : float or None
        Most unscored rows: a count, or a share from 0 to 1 if `is_share`.
    is_share : bool
        How to read `max_unscored`.
    """

    fail_under: float | None = None
    max_unscored: float | None = None
    is_share: bool = False

    @classmethod
    def parse(cls, fail_under: float | None, max_unscored: str | None) -> Gates:
        """Read the options as given: ``--max-unscored 5`` or ``--max-unscored 2%``.

        Raises
        ------
        ConfigurationError
            If the limit is neither a count nor a share.
        """
        if max_unscored is None:
            return cls(fail_under)
        is_share = max_unscored.strip().endswith("%")
        try:
            limit = float(max_unscored.strip().rstrip("%")) / 100 if is_share else int(max_unscored)
        except ValueError:
            limit = -1
        if not 0 <= limit <= (1 if is_share else float("inf")):
            raise ConfigurationError(
                f"--max-unscored {max_unscored!r} is no limit", hint="Give a count such as 5, or a share such as 2%."
            )
        return cls(fail_under, limit, is_share)

    def failures(self, summaries: Sequence[Summary], answers: Sequence[QuestionSummary] = ()) -> list[str]:
        """Say which gates a run has failed, and which metrics or questions have nothing at all; empty if none."""
        failures = []
        for summary in summaries:
            nothing = _nothing(summary.metric, summary.rows, summary.scored, "score", summary.reasons)
            if nothing is None and self.fail_under is not None and not summary.mean >= self.fail_under:
                failures.append(f"{summary.metric}: the mean {summary.mean:.4g} is under {self.fail_under:g}")
            too_many = self._too_many(summary.metric, summary.rows, summary.unscored, "unscored")
            failures += [one for one in (nothing or too_many,) if one is not None]
        for answer in answers:
            nothing = _nothing(answer.name, answer.rows, answer.answered, "answer", answer.reasons)
            too_many = self._too_many(answer.name, answer.rows, answer.rows - answer.answered, "unanswered")
            failures += [one for one in (nothing or too_many,) if one is not None]
        return failures

    def _too_many(self, name: str, rows: int, missing: int, word: str) -> str | None:
        if self.max_unscored is None or (missing / max(rows, 1) if self.is_share else missing) <= self.max_unscored:
            return None
        limit = f"{self.max_unscored:.2%}" if self.is_share else f"{self.max_unscored:.4g}"
        return f"{name}: {missing} of {rows} rows are {word}, more than {limit}"


def _nothing(name: str, rows: int, found: int, what: str, reasons: Sequence[Reason]) -> str | None:
    if found or not rows:
        return None
    told = f"the only row has no {what}" if rows == 1 else f"none of {rows} rows has {_article(what)} {what}"
    named = "; ".join(
        reason.text + (f" ({reason.count} rows)" if reason.count > 1 else "") for reason in reasons[:REASONS_NAMED]
    )
    return f"{name}: {told}: {named}" if named else f"{name}: {told}"


def _article(word: str) -> str:
    return "an" if word.startswith("a") else "a"
