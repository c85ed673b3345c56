"""Where the results of a run are: every verb takes a run directory in the place of its result file."""

from __future__ import annotations

import shlex
from pathlib import Path

from geval_local.errors import DataError
from geval_local.runs.manifest import read_manifest

__all__ = ["result_file"]


def result_file(path: str | Path) -> Path:
    """Name the result file that is meant by a path.

    Parameters
    ----------
    path : str or Path
        A result file, or a run directory whose run is finished.

    Returns
    -------
    Path
        The path itself unless it is a directory; then the first file that the run has exported and that is still there,
        CSV last: it need not hold every column.

    Raises
    ------
    DataError
        If a directory holds no run, one that is not finished, or one whose files are gone.
    OutputError
        If its manifest is damaged.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    manifest = read_manifest(path)
    if manifest is None:
        raise DataError(
            f"{path} is a directory that holds no run",
            hint="Name a result file, or the directory that `geval-local score FILE ... -o DIR/` made.",
        )
    resume = f"geval-local resume {shlex.quote(str(path))}"
    if manifest.ended is None:
        raise DataError(f"the run in {path} is not finished", hint=f"Finish it: {resume}")
    files = sorted((path / name for name in manifest.files or ()), key=lambda file: file.suffix == ".csv")
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise DataError(f"the results of the run in {path} are gone", hint=f"Write them again: {resume}")
    return found
