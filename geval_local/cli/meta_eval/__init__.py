"""What ``meta-eval`` lets judges score.

- `metrics`: the metric of each dimension
- `kept_runs`: scores kept under their signature, to avoid scoring twice
"""
