"""Gates: limits on a run's figures that turn its exit code to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geval_local.errors import ConfigurationError

if TYPE_CHECKING:
    from geval_local.summary import Summary

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

    def failures(self, summaries: Sequence[Summary]) -> list[str]:
        """Say which gates a run has failed, and which metrics have no score at all, gates or not; empty if none."""
        failures = []
        for summary in summaries:
            if summary.rows and not summary.scored:
                failures.append(f"{summary.metric}: {_why(summary)}")
                continue
            if self.fail_under is not None and not summary.mean >= self.fail_under:
                failures.append(f"{summary.metric}: the mean {summary.mean:.4g} is under {self.fail_under:g}")
            if self.max_unscored is not None:
                figure = summary.unscored / max(summary.rows, 1) if self.is_share else summary.unscored
                if figure > self.max_unscored:
                    limit = f"{self.max_unscored:.4g}" if not self.is_share else f"{self.max_unscored:.2%}"
                    failures.append(
                        f"{summary.metric}: {summary.unscored} of {summary.rows} rows are unscored, more than {limit}"
                    )
        return failures


def _why(summary: Summary) -> str:
    rows = "the only row has no score" if summary.rows == 1 else f"none of {summary.rows} rows has a score"
    named = "; ".join(
        reason.text + (f" ({reason.count} rows)" if reason.count > 1 else "")
        for reason in summary.reasons[:REASONS_NAMED]
    )
    return f"{rows}: {named}" if named else rows
