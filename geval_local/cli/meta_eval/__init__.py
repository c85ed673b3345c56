"""The contenders of ``meta-eval``.

- `participants`: judges, kept scores, other people's outputs, reference metrics
- `metrics`: the metric of each dimension
- `kept_runs`, `kept_columns`: scores kept under their signature, to avoid scoring twice
- `model_baselines`: GPTScore, BERTScore, BARTScore and UniEval as rows beside a judge
"""
