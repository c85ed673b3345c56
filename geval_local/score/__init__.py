"""From label log-probabilities to a score; pure.

- `scores`: Distribution, the estimators, Score, and the Outcome that runs keep
"""

from geval_local.score.scores import (
    LOW_LABEL_MASS,
    Distribution,
    Estimator,
    LookFigures,
    Outcome,
    Score,
    estimate,
)

__all__ = ["LOW_LABEL_MASS", "Distribution", "Estimator", "LookFigures", "Outcome", "Score", "estimate"]
