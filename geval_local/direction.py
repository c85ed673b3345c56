"""Direction: which end of a metric's scale is good, and everything that follows from it. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Literal

#: The written form in a metric.
Better = Literal["high", "low"]


class Direction(str, Enum):
    """Which scores are good; code that ranks, colours or passes scores must use this, not compare scores itself.

    Attributes
    ----------
    HIGH, LOW
        High scores are good, as for most metrics; or low scores are, as for toxicity.
    """

    HIGH = "high"
    LOW = "low"

    def passes(self, value: float, limit: float) -> bool:
        """Whether a score is at the limit or on its good side; False for NaN."""
        return value >= limit if self is Direction.HIGH else value <= limit

    @property
    def sign(self) -> int:
        """1 or -1: a score times this is better if it is larger."""
        return 1 if self is Direction.HIGH else -1

    @property
    def comparison(self) -> str:
        """The comparison of a passing score with its limit: ``>=`` or ``<=``."""
        return ">=" if self is Direction.HIGH else "<="

    @property
    def reach(self) -> str:
        """The verb for scores that pass a limit: they ``reach`` it, or ``stay within`` it."""
        return "reach" if self is Direction.HIGH else "stay within"

    @property
    def best(self) -> str:
        """The word for the best score: ``highest`` or ``lowest``."""
        return "highest" if self is Direction.HIGH else "lowest"

    @property
    def ahead(self) -> str:
        """The word for the better of two scores: ``higher`` or ``lower``."""
        return "higher" if self is Direction.HIGH else "lower"

    @property
    def worst(self) -> str:
        """The word for the worst score: ``lowest`` or ``highest``."""
        return "lowest" if self is Direction.HIGH else "highest"

    @property
    def failing(self) -> str:
        """The side of a limit on which a score fails: ``below`` or ``above``."""
        return "below" if self is Direction.HIGH else "above"

    @property
    def behind(self) -> str:
        """The word for the worse of two scores: ``lower`` or ``higher``."""
        return "lower" if self is Direction.HIGH else "higher"

    @property
    def loss(self) -> str:
        """The noun for a change to the worse: a ``drop`` or a ``rise``."""
        return "drop" if self is Direction.HIGH else "rise"

    @property
    def lost(self) -> str:
        """The verb for a mean that became worse: it ``fell`` or ``rose``."""
        return "fell" if self is Direction.HIGH else "rose"
