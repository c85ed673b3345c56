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
    sign : int
        1 or -1: a score times this is better if it is larger.
    comparison, reach : str
        How a passing score compares with its limit, as a sign and as a verb.
    failing : str
        The side of a limit on which a score fails.
    best, worst, ahead, behind : str
        The words for the best and the worst score, and for the better and the worse of two.
    loss, lost : str
        The noun and the verb for a change to the worse.
    """

    sign: int
    comparison: str
    reach: str
    failing: str
    best: str
    worst: str
    ahead: str
    behind: str
    loss: str
    lost: str

    HIGH = "high", 1, ">=", "reach", "below", "highest", "lowest", "higher", "lower", "drop", "fell"
    LOW = "low", -1, "<=", "stay within", "above", "lowest", "highest", "lower", "higher", "rise", "rose"

    def __new__(cls, value: str, sign: int = 1, *words: str) -> Direction:
        """Make a direction of its written form and its words."""
        made = str.__new__(cls, value)
        made._value_, made.sign = value, sign
        made.comparison, made.reach, made.failing, made.best, made.worst = words[:5]
        made.ahead, made.behind, made.loss, made.lost = words[5:]
        return made

    def passes(self, value: float, limit: float) -> bool:
        """Whether a score is at the limit or on its good side; False for NaN."""
        return value >= limit if self is Direction.HIGH else value <= limit
