"""Merge the parts of a finished distributed run into one file, with its manifest next to it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from geval_local.errors import ConfigurationError, OutputError
from geval_local.io.ownership import file_sha256
from geval_local.io.parts import PartRows
from geval_local.io.places import Place, is_address
from geval_local.io.result_manifest import PARTS_MANIFEST, check_results, parse_manifest, rows_path, write_manifest
from geval_local.io.results import read_score
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.options import CsvStyle
from geval_local.runs.exporter import with_rows
from geval_local.runs.run_file import read_run


def merge_parts(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    csv_style: CsvStyle | None = None,
    overwrite: bool = False,
) -> int:
    """Write the rows of a finished distributed run into one file, with its manifest next to it."""
    if is_address(os.fspath(output)):
        raise ConfigurationError(
            f"cannot write {output}: parts are merged on this machine", hint="Name a file on a disk, and upload it."
        )
    address, target = os.fspath(run), Path(output)
    manifest = read_run(address)
    if not manifest.settings.on_ray:
        raise ConfigurationError(
            f"{address} is no distributed run: it has its results in one file already",
            hint="Other formats: `geval-local score FILE ... --format NAME`.",
        )
    if manifest.ended is None:
        raise ConfigurationError(
            f"the run in {address} is not finished", hint=f"Finish it: geval-local resume {shlex.quote(address)}"
        )
    ResultWriter.check(target)
    check_results(target, overwrite=overwrite)
    directory = Place(address)
    place = directory.child(PARTS_MANIFEST)
    description = parse_manifest(json.loads(place.read()), place)
    names, count, rows = list(manifest.results), 0, PartRows(directory)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                ResultWriter.open(file, names, columns=columns, csv_style=csv_style, source=partial(_source, rows))
            )
            for file in with_rows([target])
        ]
        for row in rows:
            figures = dict(row.get("geval") or {})
            scores = {name: read_score(name, figures.pop(name, None), f"{address}, row {row.number}") for name in names}
            fields = {name: value for name, value in row.items() if name != "geval"}
            earlier = {name: own for name, own in figures.items() if own is not None}
            for writer in writers:
                writer.write(Sample(fields | ({"geval": earlier} if earlier else {}), row.number), scores)
            count += 1
        if count != manifest.input.rows:
            raise OutputError(
                f"the parts in {address} hold {count} rows, and the run had {manifest.input.rows}",
                hint=f"Score what is missing: geval-local resume {shlex.quote(address)}",
            )
    kept = file_sha256(rows_path(target)) if target.suffix.lower() == ".csv" else None
    write_manifest(target, replace(description, results_sha256=file_sha256(target), rows_sha256=kept))
    return count


def _source(rows: PartRows) -> AbstractContextManager[Any]:
    from geval_local.io.parquet import SourceColumns

    return SourceColumns.of_parts(rows)
