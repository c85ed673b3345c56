"""Coefficients, intervals and tests; pure.

- `records`: ScoredItem, the record type of all analyses, and label probabilities as an array; `interval`: intervals of
  means, by document
- `coefficients`: Pearson, Spearman, Kendall, pairwise accuracy with calibrated ties, AUC
- `levels`: coefficients within documents, pooled, and over systems, on draws of documents and systems
- `correlation`: scores against human ratings, in one result; judges with each other, without people
- `significance`: two judges on common documents; the correction of all tests of a table
- `noninferiority`: a candidate that is not worse than its baseline, once or at every look
- `prediction_powered`: means from many scores and few ratings
- `raters`: how strict each person is, the noise of their mean, and what the variance of a rating is made of
- `resampling`: the bootstrap behind intervals, exchanges of judges, folds of documents
- `bradley_terry`: strengths of systems from comparisons
"""
