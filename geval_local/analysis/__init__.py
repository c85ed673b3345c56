"""Analyses of whether scores can be trusted. They read records, never models.

- `records`: ScoredItem, the record type of all analyses; `results`: results, however they are given, as scored items
- `ratings`: human ratings, published benchmark files, other people's outputs; `overlap`: ROUGE, BLEU, chrF and length
- `statistics`: coefficients, levels, intervals and tests; `tables`: their results as headers and rows of text
- `meta_evaluation`, `contenders`: scores against people, against each other, and against the human ceiling
- `differences`: sides and systems, on the documents that they share; `comparison`: systems or runs beside each other
- `bias`: whom a judge favours, and what length does; `pairs`: systems by comparisons of two outputs
- `calibration`: scores brought to the ratings' scale, judged on held-out documents; `jury`: several judges as one

Importing the package loads nothing; the public functions are loaded on first use.
"""
