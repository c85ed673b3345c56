"""Results to look at: one self-contained HTML page of a run, or of two runs side by side. Reads records, never models.

- `results`: result files of ``geval-local score`` (JSONL, JSON, CSV, Parquet), or their rows, as typed records
- `payload`: the records as the compact columns that the page's script reads
- `people`: scores beside human ratings
- `signatures`: what two runs do not share
- `page`: the skeleton, its script and style, and the policy that keeps sample text inert
- `single`, `comparison`: the two pages

`write_report` and `write_comparison` are imported from `single` and `comparison`; importing the package loads nothing.
"""
