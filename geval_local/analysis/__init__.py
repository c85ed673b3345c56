"""Analyses of whether scores can be trusted. They read records, never models.

- `records`: ScoredItem, the record type of all analyses
- `reading`: result files as items
- `ratings`: human ratings, published benchmark files, other people's outputs
- `statistics`: coefficients, levels, intervals and tests
- `studies`: meta-evaluation, comparison, bias, calibration, jury, the human ceiling
- `preferences`: comparisons of two outputs, judged or made from scores
- `tables`, `system_tables`, `pair_tables`, `text_table`: results as headers and rows of text

Names are imported from these modules; importing the package itself loads nothing.
"""
