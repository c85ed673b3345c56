"""The contenders of ``meta-eval``.

- `participants`: judges, kept scores, other people's outputs, reference metrics
- `metrics`: the metric of each dimension
- `kept_runs`: scores kept under their signature, to avoid scoring twice
"""
