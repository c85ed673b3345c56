"""DeepEval on local judges: a metric with exact scores, and a System One model for its own metrics.

- `metric`: `GEvalLocal`, made of DeepEval's criteria, evaluation steps, parameters and rubric
- `system_one`: `LocalSystemOne`
"""

from __future__ import annotations

from geval_local.hosts.deepeval.metric import GEvalLocal
from geval_local.hosts.deepeval.system_one import LocalSystemOne

__all__ = ["GEvalLocal", "LocalSystemOne"]
