"""Export: the rows of a run as files, whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from geval_local.errors import OutputError
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.runs.run import Run
from geval_local.score import Score

__all__ = ["EXPORT_FORMATS", "Exporter", "clear_away", "deliver"]

#: Formats of exported files, by their extension.
EXPORT_FORMATS = ("jsonl", "csv", "parquet")


class Exporter:
    """Write rows in every format of a run; use it as a context manager.

    Parameters
    ----------
    run : Run
        The run; one without a directory writes nothing.

    Raises
    ------
    OutputError
        If a file cannot be written. Nothing half-written stays behind.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stack = ExitStack()
        self._writers: list[ResultWriter] = []

    @property
    def files(self) -> list[Path]:
        """Where the rows go."""
        directory = self._run.directory
        return [] if directory is None else [directory / f"scores.{one}" for one in self._run.manifest.settings.formats]

    def __enter__(self) -> Exporter:
        with self._stack as stack:
            self._writers = [stack.enter_context(ResultWriter.open(file, self._run.keys)) for file in self.files]
            self._stack = stack.pop_all()
        return self

    def write(self, sample: Sample, scores: Mapping[str, Score]) -> None:
        """Append one row."""
        for writer in self._writers:
            writer.write(sample, scores)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)


def deliver(run: Run, files: Sequence[Path]) -> list[Path]:
    """Bring the results of a finished run to where they were asked for.

    In the simple form the file takes the place of the output in one step.

    Returns
    -------
    list of Path
        Where the results are.
    """
    output = run.manifest.settings.output
    run.finish([file.name for file in files] if output is None else [output])
    if output is None or run.directory is None:
        return list(files)
    try:
        os.replace(files[0], output)
    except OSError as error:
        raise OutputError(
            f"cannot write {output}: {error.strerror}", hint=f"The results are in {files[0]}; resume to try again."
        ) from error
    return [Path(output)]


def clear_away(run: Run) -> None:
    """Remove the directory of a run in the simple form, whose output is whole."""
    if run.manifest.settings.output is not None and run.directory is not None:
        run.store.close()
        shutil.rmtree(run.directory, ignore_errors=True)
