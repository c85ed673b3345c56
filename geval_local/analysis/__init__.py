"""Analyses of whether scores can be trusted. They read records, never models.

- `results`: results, however they are given, as scored items
- `example_draw`: rated rows drawn as examples of a metric; `example_rows`: those rows left out of analyses
- `ratings`: human ratings, published benchmark files, other people's outputs
- `tables`: results as headers and rows of text
- `contenders`: scored runs, others' outputs, ROUGE, BLEU, chrF and length; `meta_evaluation`: all of them against
  people, against each other, and against the human ceiling
- `differences`: sides and systems, on the documents that they share; `comparison`: systems or runs beside each other;
  `worse`: whether a run is worse than its baseline
- `estimates`: what people would say of all rows, from scores of all and ratings of a few; `rating_plans`: the draw of
  those that they rate
- `biases`: whom a judge favours, and what length does; `preferences`: which of two outputs is better, and
  `pair_study`: what comparisons say; `pairs`: systems ranked by them
- `calibration`: scores brought to the ratings' scale, judged on held-out documents; `juries`: several judges as one
"""
