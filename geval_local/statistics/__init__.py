"""Coefficients, intervals and tests; pure.

- `records`: ScoredItem, the record type of all analyses; `interval`: intervals of means, by document
- `coefficients`: Pearson, Spearman, Kendall, pairwise accuracy with calibrated ties, AUC
- `levels`: coefficients within documents, pooled, and over systems, with each document or system left out
- `jackknife`: intervals and tests from leave-one-out replicates; their target population
- `correlation`: scores against human ratings, in one result
- `significance`: two judges on common documents; Williams' test; Holm's correction
- `resampling`: sign-flip and permutation tests, folds of documents
- `agreement`: judges with each other, without people
- `bradley_terry`: strengths of systems from comparisons
- `distributions`: recorded label probabilities as arrays
"""
