"""One module per verb, or per group of verbs; each checks its options and calls the module that does the work.

- `score`, `serve`: scores and decisions
- `pairs`: comparisons of two outputs, and systems ranked by them
- `evaluations`: one file for an evaluation
- `runs`: resume and merge runs; why rows got their scores; pages
- `metrics`, `judges`: list, write and check them
- `analyses`: whether the scores are right
"""
