"""One file for a whole evaluation: data, metrics, judges, gates, outputs and report.

- `model`: what such a file holds, and its JSON schema; `gates`: limits on a run's figures
- `document`: a file read with its overrides, every problem with its line
- `execution`: the file's runs, one after the other, each durable
- `kept_scores`: judges' scores of rated rows for a meta-evaluation, each file a run, kept to avoid scoring twice
- `start`: a first file, guessed from a data file
"""
