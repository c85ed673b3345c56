"""Durable runs: a directory in which every finished unit is committed, so that an interrupted run can be resumed.

- `run_file`: the public face; `forms`: what a run asks of every row; `completion`: its way to the end
- `events`: what a run tells its caller; `target`: where results go
- `manifest`, `settings`: what the run is
- `directory`, `own_files`: its directory and results, and the files that it may replace or remove
- `run`: its judges and rows; `executor`: windows of rows, read ahead and executed unit by unit
- `store`: finished rows, in SQLite; `cache`: outcomes across runs
- `spread`: a run over its shares; `workers`: processes that score them; `merging`: shares that were scored apart
- `exporter`: result files; `input_file`: the identity of the input
- `reasons`: which rows of a result file are explained, and what lets a judge write why
"""
