"""A score's distribution in words, the same for every tool: what one calls reason, another rationale or explanation."""

from __future__ import annotations

from geval_local.scale import Scale
from geval_local.score import LOW_LABEL_MASS, Score

__all__ = ["in_words"]

#: Labels that are named; what the others have is summed up.
LABELS_NAMED = 5


def in_words(score: Score, scale: Scale) -> str:
    """Say what the judge's label probabilities are, and what follows from them."""
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
        said.append(f"The label reaches {score.threshold:g} with probability {score.threshold_probability:.0%}.")
    if score.label_mass < LOW_LABEL_MASS and score.other_tokens:
        others = ", ".join(f"{token!r} ({p:.0%})" for token, p in score.other_tokens[:3])
        said.append(f"The label mass is low: the judge would rather have written {others}.")
    return " ".join(said)
