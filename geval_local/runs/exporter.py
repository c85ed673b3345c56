"""Export: the rows of a run as files, written atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from geval_local.errors import OutputError, telling
from geval_local.io.ownership import check_own, file_sha256, owned
from geval_local.io.result_manifest import (
    ResultManifest,
    check_manifest,
    manifest_path,
    manifest_text,
    recorded_digests,
    rows_path,
    write_manifest,
)
from geval_local.io.rows import format_of
from geval_local.io.samples import Sample
from geval_local.io.shapes import FORMER_ID
from geval_local.io.writer import ResultWriter, RowFigures
from geval_local.runs.directory import remove_run
from geval_local.runs.run import Run, export_name


class Exporter(ExitStack):
    """Writer of rows in every format of a run; a context manager."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._writers: list[ResultWriter] = []

    @property
    def files(self) -> list[Path]:
        """The files that are written."""
        directory = self._run.directory
        formats = self._run.manifest.settings.formats
        stem = self._run.manifest.settings.stem
        return [] if directory is None else [directory / export_name(one, stem) for one in formats]

    def __enter__(self) -> Exporter:
        with ExitStack() as stack:
            for file in self.files:  # the rows of a CSV file are kept next to it
                files = (file, rows_path(file)) if file.suffix == ".csv" else (file,)
                self._writers += [stack.enter_context(self._open(one)) for one in files]
            self.push(stack.pop_all())
        return self

    def _open(self, file: Path) -> ResultWriter:
        # Files moved from the directory to a path that the user named follow the user's umask.
        settings = self._run.manifest.settings

        def claim(whole: Path) -> None:
            self._run.own_files.claim(file.name, file_sha256(whole))

        return ResultWriter.open(
            file,
            self._run.keys,
            layout=self._run.asked.layout(self._run.keys),
            columns=settings.columns,
            csv_style=settings.csv_style,
            private=settings.output is None,
            mark=self._run.manifest.run,
            before_replacing=claim,
            source=self._source,
        )

    def _source(self) -> AbstractContextManager[Any]:
        from geval_local.io.parquet import SourceColumns

        settings, files = self._run.manifest.settings, self._run.manifest.input.paths
        # A pair, a turn or a system's output is no row of the file.
        is_shaped = settings.pairs or settings.system_columns or settings.turns
        if is_shaped or {format_of(file.name) for file in files} != {".parquet"}:
            return nullcontext()
        share = self._run.manifest.input.share
        start = 0 if share is None else share.stretches[0].start
        return SourceColumns.of_files(files, start, () if settings.id in (None, "id") else ("id", FORMER_ID))

    def write(self, sample: Sample, scores: Mapping[str, RowFigures]) -> None:
        """Append one row."""
        for writer in self._writers:
            writer.write(sample, scores)


def deliver(run: Run, files: Sequence[Path]) -> list[Path]:
    """Deliver the results of a finished run to the requested place.

    For a run with an output file, the result replaces the output atomically.
    """
    name = run.manifest.settings.output
    if name is None or run.directory is None:
        run.finish([file.name for file in files])
        return list(files)
    run.finish([name])
    output = run.directory.parent / name  # always next to the run directory
    if os.path.lexists(output) and not owned(output, digests=run.manifest.digests):
        raise OutputError(
            f"{output} was created or changed during this run",
            hint=f"Move it to another place and resume; the results are in {files[0]}.",
        )
    with telling(OutputError, f"cannot write {output}", f"The results are in {files[0]}; resume to try again."):
        if rows_path(files[0]).exists():  # first: while the former description is there, the former rows are ours
            check_own(rows_path(output), [*run.manifest.digests, *recorded_digests(output)])
            os.replace(rows_path(files[0]), rows_path(output))
        # From here on the results rather have no description than another run's.
        check_manifest(output, overwrite=True)
        manifest_path(output).unlink(missing_ok=True)
        os.replace(files[0], output)
    return [output]


def describe(run: Run, file: Path, description: ResultManifest) -> None:
    """Write the manifest next to a result file."""
    rows = rows_path(file)
    kept = file_sha256(rows) if file.suffix == ".csv" and rows.exists() else None
    description = replace(description, results_sha256=file_sha256(file), rows_sha256=kept)
    if run.manifest.settings.output is not None:
        write_manifest(file, description)
    elif run.directory is not None:
        run.own_files.write_text(manifest_path(file).name, manifest_text(description))


def clear_away(run: Run) -> None:
    """Remove the run directory next to an output file that is complete."""
    if run.manifest.settings.output is not None and run.directory is not None:
        run.store.close()
        remove_run(run.directory, run.manifest)
