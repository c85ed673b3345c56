"""Human ratings and other people's files.

- `benchmarks`: the published benchmark files, and the figures published on them
- `rated`: rated rows, published or the user's own, with their metrics
- `values`: ratings as numbers, on the scale that people rated on
- `responses`: raw responses in G-Eval's result format, predictions in UniEval's
"""
