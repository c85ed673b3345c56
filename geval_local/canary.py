"""Canary: figures of a fixed text by which the weights behind an address are known again. Pure.

Nobody can hash the weights of another program. Log-probabilities of a few tokens tell two models apart, and differ by
the program's own rounding only while the weights stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Mean difference (nats) that is always allowed: rounding of a program in another batch, or on another card.
LEAST_TOLERANCE = 0.01
#: Allowed difference, in units of what the same weights differed by when they were asked in two ways.
_TIMES = 4.0
#: Figures are written with this step, in nats, and up to this one.
_STEP = 0.001
_MOST = 65.535


@dataclass(frozen=True)
class Canary:
    """Log-probabilities of fixed tokens after fixed prompts."""

    #: Nats, at most 0; no fewer than two.
    figures: tuple[float, ...]
    #: Mean difference (nats) up to which the same weights may differ.
    tolerance: float

    @classmethod
    def measured(cls, first: tuple[float, ...], second: tuple[float, ...]) -> Canary:
        """Make one of figures that the same program gave when it was asked in two ways."""
        return cls(first, max(LEAST_TOLERANCE, _TIMES * _mean_difference(first, second)))

    @classmethod
    def parse(cls, text: str) -> Canary:
        """Read a canary as `text` writes it; ValueError if it is none."""
        values = np.frombuffer(bytes.fromhex(text), ">u2") * _STEP
        return cls(tuple(-values[1:]), float(values[0]))

    @property
    def text(self) -> str:
        """The canary as digits, for signatures: tolerance and figures in thousandths of a nat."""
        values = np.clip([self.tolerance, *(-one for one in self.figures)], 0, _MOST)
        return np.rint(values / _STEP).astype(">u2").tobytes().hex()

    def difference(self, other: Canary) -> float:
        """Return the mean difference in nats; infinite where they are of other prompts."""
        return _mean_difference(self.figures, other.figures)

    def agrees(self, other: Canary) -> bool:
        """Whether both may be of the same weights."""
        return self.difference(other) <= max(self.tolerance, other.tolerance)


def _mean_difference(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    if len(first) != len(second):
        return np.inf
    both = np.maximum([first, second], -_MOST)
    return float(np.abs(both[0] - both[1]).mean())
