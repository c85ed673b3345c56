"""What ``meta-eval`` puts side by side.

- `participants`: judges, kept scores, other people's outputs, reference metrics
- `metrics`: which metric rates which dimension
- `kept_runs`, `kept_columns`: scores kept under their signature, so that nothing is scored twice
- `model_baselines`: GPTScore, BERTScore, BARTScore and UniEval as rows beside a judge
"""
