"""Direction: which end of a metric's scale is the good one, and all that follows from it. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Literal

#: As a metric says it.
Better = Literal["high", "low"]


class Direction(str, Enum):
    """Which scores are the good ones; code that ranks, colours or passes scores asks this and compares nothing itself.

    Attributes
    ----------
    HIGH, LOW
        High scores are good, as nearly everywhere; or low ones, as for toxicity.
    """

    HIGH = "high"
    LOW = "low"

    def passes(self, value: float, limit: float) -> bool:
        """Whether a score is at the limit or on its good side; NaN is not."""
        return value >= limit if self is Direction.HIGH else value <= limit

    @property
    def sign(self) -> int:
        """1 or -1: scores times this are the better the larger they are."""
        return 1 if self is Direction.HIGH else -1

    @property
    def comparison(self) -> str:
        """The sign between a score that passes and its limit: ``>=`` or ``<=``."""
        return ">=" if self is Direction.HIGH else "<="

    @property
    def reach(self) -> str:
        """What several scores do that pass a limit: ``reach`` it, or ``stay within`` it."""
        return "reach" if self is Direction.HIGH else "stay within"

    @property
    def best(self) -> str:
        """What a good score is called among others: ``highest`` or ``lowest``."""
        return "highest" if self is Direction.HIGH else "lowest"

    @property
    def ahead(self) -> str:
        """What the better of two scores is: ``higher`` or ``lower``."""
        return "higher" if self is Direction.HIGH else "lower"

    @property
    def worst(self) -> str:
        """What a bad score is called among others."""
        return "lowest" if self is Direction.HIGH else "highest"

    @property
    def failing(self) -> str:
        """On which side of a limit a score fails: ``below`` or ``above``."""
        return "below" if self is Direction.HIGH else "above"

    @property
    def behind(self) -> str:
        """What the worse of two scores is: ``lower`` or ``higher``."""
        return "lower" if self is Direction.HIGH else "higher"

    @property
    def loss(self) -> str:
        """A change to the worse: a ``drop`` or a ``rise``."""
        return "drop" if self is Direction.HIGH else "rise"

    @property
    def lost(self) -> str:
        """What a mean did that became worse: it ``fell`` or ``rose``."""
        return "fell" if self is Direction.HIGH else "rose"
