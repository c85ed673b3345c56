"""Durable runs: a directory in which every finished unit is committed, so that an interrupted run can be resumed.

- `score_file`, `decide_file`: the public face; `asked`: what a run asks of every row; `completion`: its way to the end
- `events`: what a run tells its caller; `target`, `judge_choice`: what it is asked for
- `manifest`, `settings`: what the run is
- `directory`, `own_files`: its directory and results, and the files that it may replace or remove
- `run`: its judges and rows; `executor`: windows of rows, read ahead and executed unit by unit
- `store`, `database`: finished rows, in SQLite; `cache`: outcomes across runs
- `export`, `files`: result files, and the input's identity
- `reasons`: reasons of a finished run's rows, in a file of their own
- `ray`: over a cluster, into a directory of parts
"""
