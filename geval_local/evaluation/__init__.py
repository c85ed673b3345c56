"""One file for a whole evaluation: data, metrics, judges, gates, outputs and report.

- `model`: the contents of such a file, and its JSON schema
- `document`: reads a file with its overrides, and reports every problem with its line
- `history`: directories named by date, time and commit; finds the last good run and the next directory
- `gate_reports`: gates as Markdown and as JUnit XML, for pipelines
- `execution`: does the file's runs, one after the other, each durable
- `kept_scores`: stores judges' scores of rated rows for a meta-evaluation, each file a run, to avoid scoring twice
- `start`: guesses a first file from a data file
"""
