"""Rows in, results out.

- ``rows``: the rows of a file, as columns; ``samples``: rows to be scored, and the texts of their fields
- ``pairs``: rows combined into pairs, or rows that contain a pair in a published format
- ``input_checks``: arguments, columns and evidence, before anything expensive
- ``columns``: the columns of figures, and values as texts; ``writer``: results to a file, JSONL and CSV, and
  ``parquet``
- ``text_files``: encodings, bounds of lines, and what is compressed; ``places``: files by path or address
- ``ownership``: whether this tool wrote a file and nobody changed it, for every verb that replaces or removes files
- ``results``: result files read back; ``result_manifest``: the manifest of a result file
"""
