"""One file for a whole evaluation: data, metrics, judges, gates, outputs and report.

- `model`: what such a file holds, and its JSON schema; `gates`: limits on a run's figures, and on those of slices
- `document`: a file read with its overrides, every problem with its line
- `history`: directories named by date, time and commit; the last finished run, the next one
- `reports`: gates as Markdown and as JUnit XML, for pipelines
- `execution`: the file's runs, one after the other, each durable
- `kept_scores`: judges' scores of rated rows for a meta-evaluation, each file a run, kept to avoid scoring twice
- `start`: a first file, guessed from a data file
"""
