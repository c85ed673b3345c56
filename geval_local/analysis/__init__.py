"""Analyses of whether scores can be trusted. They read records, never models.

- `results`: results, however they are given, as scored items
- `example_draw`: rated rows drawn as examples of a metric; `example_rows`: those rows left out of analyses
- `ratings`: human ratings, published benchmark files, other people's outputs
- `tables`: figures as headers and rows of text
- `contenders`: scored runs, others' outputs, ROUGE, BLEU, chrF and length; `meta_evaluation`: compares all of them with
  people, with each other, and with the human ceiling
- `differences`: sides and systems, on the documents that they share; `comparison`: systems or runs side by side;
  `gates`: limits on a run's figures, and their outcomes; `worse`: whether a run is worse than its baseline
- `estimates`: the mean rating of all rows, from scores of all and ratings of a few; `rating_plans`: draws the rows that
  people rate
- `biases`: whom a judge favours, and the effect of length; `preferences`: which of two outputs is better; `pair_study`:
  figures of a set of comparisons; `pairs`: systems ranked by comparisons
- `calibration`: maps scores to the ratings' scale, measured on held-out documents; `juries`: several judges as one
"""
