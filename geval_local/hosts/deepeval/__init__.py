"""DeepEval on local judges: a metric with exact scores, and a System One model for its own metrics.

- `metric`: `GEvalLocal`
- `terms`: DeepEval's criteria, evaluation steps, parameters and rubric become a `Metric`
- `system_one`: `LocalSystemOne`
"""

from __future__ import annotations

from geval_local.hosts.deepeval.metric import GEvalLocal
from geval_local.hosts.deepeval.system_one import LocalSystemOne

__all__ = ["GEvalLocal", "LocalSystemOne"]
