"""Rows in, results out.

- ``rows``: the rows of a file, as columns; ``samples``: rows to be scored, and the texts of their fields
- ``pairs``: rows put together to pairs, or that hold one in a published format
- ``input_checks``: arguments, columns and evidence, before anything expensive
- ``columns``: where figures stand, and values as texts; ``writer``: results to a file, JSONL and CSV, and ``parquet``
- ``places``: files by path or address; ``parts``: results in many files
- ``ownership``: whether a file is this tool's and unchanged, for every verb that replaces or removes one
- ``results``: result files read back; ``result_manifest``: the manifest beside a result file
"""
