"""How many documents, and systems, a difference needs to be found, from a pilot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from geval_local.analysis.tables import Table
from geval_local.statistics.interval import Interval

POWERS = (0.8, 0.9)
#: A plan for more documents than this is none.
_MOST = 10_000_000


@dataclass(frozen=True)
class Need:
    """What one comparison needs."""

    #: Spread of the difference from document to document, and how many the pilot has.
    spread: float
    pilot: int
    #: Systems that are planned for; 0 where systems are fixed.
    systems: int
    #: Power -> documents; None where no number of documents suffices for so many systems.
    documents: Mapping[float, int | None]


@dataclass(frozen=True)
class Plan:
    """What every comparison of a pilot needs to find a true difference."""

    difference: float
    #: Level of every single test, so that Holm's correction still rejects.
    significance: float
    needs: Mapping[str, Need]

    def table(self) -> Table:
        """One row per comparison."""
        rows = [
            (name, need.spread, need.pilot, need.systems, *(need.documents[p] or "more systems" for p in POWERS))
            for name, need in self.needs.items()
        ]
        by_system = "systems" if any(need.systems for need in self.needs.values()) else None
        notes = (
            f"documents to find a true difference of {self.difference:g} with that probability, two-sided at "
            f"{self.significance:.4f} (.05, for {round(0.05 / self.significance)} tests); spread: the pilot's, as "
            "uncertain as the pilot is small",
        )
        headers = ("", "spread", "pilot", by_system, *(f"documents ({p:.0%})" for p in POWERS))
        return Table.of(headers, rows, notes).titled("how many documents are needed?")


def plan_documents(differences: Mapping[str, Interval], difference: float) -> Plan:
    """Plan for paired differences on documents."""
    level = 0.05 / max(1, len(differences))
    needs = {name: _need(one, 0.0, 0, difference, level) for name, one in differences.items()}
    return Plan(difference, level, needs)


def plan_both(
    parts: Mapping[str, tuple[Interval, Interval]], difference: float, *, times: Sequence[int] = (1, 2, 4)
) -> Plan:
    """Plan for new documents and new systems, from the intervals for new documents and for new systems alone."""
    level = 0.05 / max(1, len(parts))
    needs = {}
    for name, (documents, systems) in parts.items():
        for count in (factor * systems.units for factor in times):
            rest = systems.error**2 * systems.units / max(1, count)
            needs[f"{name}, {count} systems"] = _need(documents, rest, count, difference, level)
    return Plan(difference, level, needs)


def _need(pilot: Interval, rest: float, systems: int, difference: float, level: float) -> Need:
    """Say what one comparison needs, beside a variance that more documents do not make less."""
    spread = pilot.error * math.sqrt(pilot.units)
    documents = {p: _documents(spread**2, rest, systems or math.inf, difference, level, p) for p in POWERS}
    return Need(spread, pilot.units, systems, documents)


def _documents(
    variance: float, rest: float, systems: float, difference: float, significance: float, power: float
) -> int | None:
    """Find the fewest documents; the test has as many degrees of freedom as the fewer of the two units allow."""
    from scipy.special import stdtrit

    def found(documents: int) -> bool:
        degrees = min(documents, systems) - 1
        quantiles = float(stdtrit(degrees, 1 - significance / 2) + stdtrit(degrees, power))
        return quantiles * math.sqrt(variance / documents + rest) <= difference

    if not math.isfinite(variance) or not math.isfinite(rest) or difference <= 0 or not found(_MOST):
        return None
    low, high = 1, _MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high
