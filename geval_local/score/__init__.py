"""From label log-probabilities to a score; pure, in float64, all arithmetic written once.

- `distribution`: the labels' probabilities for one form, and every figure derived from them
- `estimators`: how a distribution becomes one number: expectation, mode, median, quantile, risk, draws
- `scores`: Score, the figures of one sample on one metric, and Outcome, what runs keep of it
"""

from geval_local.score.distribution import Distribution
from geval_local.score.estimators import Estimator, estimate
from geval_local.score.scores import LOW_LABEL_MASS, OrderFigures, Outcome, Score

__all__ = ["LOW_LABEL_MASS", "Distribution", "Estimator", "OrderFigures", "Outcome", "Score", "estimate"]
