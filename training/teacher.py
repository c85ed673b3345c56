"""The teacher: what the rules measure and what the trunk tells, put together into one value for every dimension.

No weight is fitted to a rating. Every part is brought to mean 0 and deviation 1 over the shelf, the weighted sum goes
through the normal distribution's curve, and so the values fill the scale evenly: labels that crowd at one value would
teach no order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from training import likelihood
from training.candidates import Candidate
from training.shelf import Material

#: Of each dimension: the weight of the rules and of the likelihoods (LOG.md tells what was tried).
WEIGHTS = {
    "coherence": {"rules": 1.0, "worst_gain": 0.7, "worst_given": 0.4},
    "consistency": {"rules": 1.0, "worst_gain": 1.0},
    "fluency": {"rules": 1.0, "worst_given": 0.4},  # its form shows no source: the gain cannot be seen
    "relevance": {"rules": 1.0, "worst_gain": 1.0},
}


def parts(candidate: Candidate, read: likelihood.Likelihood, dimension: str) -> dict[str, float]:
    """Give everything that a weight may name."""
    return {"rules": candidate.quality[dimension], **likelihood.features(read)}


@dataclass
class Teacher:
    """Knows mean and deviation of every part and of the weighted sums."""

    spread: dict[str, dict[str, tuple[float, float]]]

    @classmethod
    def of(cls, materials: Sequence[Material]) -> Teacher:
        """Measure the shelf."""
        spread = {}
        for dimension, weights in WEIGHTS.items():
            rows = [parts(c, r, dimension) for m in materials for c, r in zip(m.candidates, m.read, strict=True)]
            own = {
                name: (float(np.mean(v)), float(np.std(v)) + 1e-6)
                for name in weights
                for v in [[row[name] for row in rows]]
            }
            sums = [sum(w * (row[n] - own[n][0]) / own[n][1] for n, w in weights.items()) for row in rows]
            own["sum"] = (float(np.mean(sums)), float(np.std(sums)) + 1e-6)
            spread[dimension] = own
        return cls(spread)

    def quality(self, candidate: Candidate, read: likelihood.Likelihood) -> dict[str, float]:
        """Grade one candidate in every dimension, from 0 to 1."""
        found = {}
        for dimension, weights in WEIGHTS.items():
            own, given = self.spread[dimension], parts(candidate, read, dimension)
            total = sum(w * (given[n] - own[n][0]) / own[n][1] for n, w in weights.items())
            found[dimension] = 0.5 + 0.5 * math.erf((total - own["sum"][0]) / own["sum"][1] / math.sqrt(2))
        return found

    def graded(self, material: Material) -> Material:
        """Give the candidates their values."""
        both = zip(material.candidates, material.read, strict=True)
        return replace(
            material, candidates=[Candidate(c.sentences, {**c.quality, **self.quality(c, read)}) for c, read in both]
        )
