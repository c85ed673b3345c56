"""Result files of runs: every command accepts a run directory in place of its result file."""

from __future__ import annotations

import shlex
from pathlib import Path

from geval_local.errors import DataError
from geval_local.runs.manifest import read_manifest

__all__ = ["result_file"]


def result_file(path: str | Path) -> Path:
    """Return the result file for a path.

    Parameters
    ----------
    path : str or Path
        A result file, or a run directory whose run is finished.

    Returns
    -------
    Path
        The path itself unless it is a directory; then the first exported file that still exists,
        CSV last, because it may lack columns. For a directory of parts, the directory.

    Raises
    ------
    DataError
        If a directory contains no run, or one that is not finished or whose files are missing.
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
    if manifest.settings.distributed is not None:
        return path
    files = sorted((path / name for name in manifest.files or ()), key=lambda file: file.suffix == ".csv")
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise DataError(f"the results of the run in {path} are gone", hint=f"Write them again: {resume}")
    return found
