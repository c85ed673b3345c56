"""Rows in, results out.

- ``rows``: the rows of a file, as columns; ``samples``: rows to be scored, and the texts of their fields
- ``pairs``: rows put together to pairs, or that hold one in a published format
- ``input_checks``: arguments, columns and evidence, before anything expensive
- ``writer``: results to a file, through ``text_formats`` (JSONL, CSV, by ``columns``) and ``parquet``
- ``places``: files by path or address; ``parts``: results in many files
- ``ownership``: whether a file is this tool's and unchanged, for every verb that replaces or removes one
- ``results``: result files read back; ``result_manifest``: the manifest beside a result file
"""

from geval_local.io.input_checks import check_input
from geval_local.io.result_manifest import read_manifest
from geval_local.io.results import load_results, read_result_rows
from geval_local.io.rows import read_rows
from geval_local.io.samples import Sample, read_samples
from geval_local.io.writer import ResultWriter

__all__ = [
    "ResultWriter",
    "Sample",
    "check_input",
    "load_results",
    "read_manifest",
    "read_result_rows",
    "read_rows",
    "read_samples",
]
