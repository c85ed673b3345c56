"""The directory of a distributed run: manifest, list of blocks, and parts; on this machine or elsewhere.

On this machine it is a run directory like any other (`geval_local.runs.directory`). Elsewhere the same rule holds: only
files named by the manifest and parts of this run may be replaced or removed; every other file is the user's. File
systems without locks (object stores) do not keep a second driver out; both then write the same parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from geval_local.errors import ConfigurationError, OutputError
from geval_local.io.ownership import file_sha256
from geval_local.io.parts import PartRows, about_part, part_names, remove_parts
from geval_local.io.places import Place
from geval_local.io.result_manifest import PARTS_MANIFEST, check_results, rows_path, write_manifest
from geval_local.io.result_manifest import parse_manifest as parse_description
from geval_local.io.results import read_score
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.ray.blocks import Block, from_lines
from geval_local.runs.directory import clean_directory, look_at, make, remove_run
from geval_local.runs.exporter import with_rows
from geval_local.runs.manifest import MANIFEST_NAME, JudgeRecord, Manifest, manifest_text, parse_manifest
from geval_local.runs.own_files import OwnFiles, changed_since, hold
from geval_local.runs.run_file import read_run

#: The blocks of the input. Readers of data sets skip names with a leading underscore.
BLOCKS_NAME = "_blocks.jsonl"
_ROOM = "Free some space, or choose a place that you may write to; existing parts are kept."


class PartsDirectory:
    """A directory of parts."""

    def __init__(self, address: str) -> None:
        self.place = Place(Place(address).path if Place(address).local is not None else address)
        self.local = self.place.local

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create and lock the directory, where it can be locked; remove it afterwards if it stayed empty."""
        local = self.local
        with ExitStack() as stack:
            if local is None:
                with suppress(OSError, NotImplementedError):  # object stores have no directories
                    self.place.system.create_dir(self.place.path, recursive=True)
                yield
                return
            look_at(local)
            made = make(local)
            manifest = self.place.child(MANIFEST_NAME)
            stack.callback(lambda: None if manifest.entry() else clean_directory(local, made))
            stack.enter_context(hold(local))
            yield

    def read(self) -> Manifest | None:
        """Read the manifest of the run in it; None if a new run may start there."""
        if self.local is not None:
            return look_at(self.local)
        place = self.place.child(MANIFEST_NAME)
        try:
            entries = self.place.entries()
            text = None if place.entry() is None else place.read().decode("utf-8", "replace")
        except OSError as error:
            raise OutputError(f"cannot use {self.place}: {error}", hint=_ROOM) from error
        manifest = None if text is None else parse_manifest(text, place)
        if manifest is None and entries:
            told = ", ".join(entry.place.name for entry in entries[:4])
            raise OutputError(
                f"{self.place} is not empty and holds no run; it has {told}",
                hint="Name a new directory, an empty one, or one that holds a run. Nothing was changed.",
            )
        return manifest

    def save(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self._write(MANIFEST_NAME, manifest_text(manifest).encode(), manifest)

    def write(self, name: str, content: bytes, manifest: Manifest) -> None:
        """Write a file of the run, after the manifest names it."""
        if self.local is not None:
            OwnFiles(self.local, manifest).check([name])
        elif self.place.child(name).entry() is not None and not self._is_own(name, manifest):
            raise changed_since(self.place.child(name))
        made = list(dict.fromkeys([*manifest.made.get(name, []), _sha256(content)]))
        manifest.made = {**manifest.made, name: made}
        self.save(manifest)
        self._write(name, content, manifest)

    def _write(self, name: str, content: bytes, manifest: Manifest) -> None:
        place = self.place.child(name)
        try:
            place.write(content, mark=manifest.run)
        except OSError as error:
            raise OutputError(f"cannot write {place}: {error.strerror or error}", hint=_ROOM) from error

    def _is_own(self, name: str, manifest: Manifest) -> bool:
        """Whether a file elsewhere is as the run wrote it."""
        place = self.place.child(name)
        return place.entry() is not None and _sha256(place.read()) in manifest.made.get(name, [])

    def blocks(self, manifest: Manifest) -> list[Block]:
        """Read the list of blocks of the input."""
        place = self.place.child(BLOCKS_NAME)
        content = b"" if place.entry() is None else place.read()
        if _sha256(content) not in manifest.made.get(BLOCKS_NAME, []):
            raise OutputError(
                f"{place} is {'damaged, or was edited' if content else 'missing'}",
                hint="Restore it from a backup, or score into another directory.",
            )
        return from_lines(content)

    def gathered(self, manifest: Manifest) -> list[Block]:
        """List the parts of the run's input, scored or not, by their footers."""
        found = []
        for name in part_names(self.place):
            with suppress(OutputError, KeyError):  # what is damaged or the user's is told where it is to be written
                about = about_part(self.place.child(name)) or {}
                if (about["run"], about["input"]) == (manifest.run, manifest.input.sha256):
                    known = {"sha256": about["block"]["file"], "rows": about["block"]["rows"]}
                    found.append(Block(self.place.child(name).address, 0, 0, part=name, **known))
        return found

    def is_empty(self) -> bool:
        """Whether there are no parts but those that gathering left to be scored."""
        return all(map(self._is_unscored, part_names(self.place)))

    def _is_unscored(self, name: str) -> bool:
        with suppress(OutputError):
            return "report" not in (about_part(self.place.child(name)) or {"report": None})
        return False

    def remove(self, manifest: Manifest) -> None:
        """Remove a run: only the files that it wrote."""
        if self.local is not None:
            remove_run(self.local, manifest)
            return
        judges = [JudgeRecord(name=judge.name, choice=judge.choice) for judge in manifest.judges]
        self.save(manifest.model_copy(update={"judges": judges}))  # if it dies now, the run counts as not started
        remove_parts(self.place, manifest.run)
        for name in manifest.made:
            if self._is_own(name, manifest):
                self.place.child(name).delete()
        if [entry.place.name for entry in self.place.entries()] == [MANIFEST_NAME]:
            self.place.child(MANIFEST_NAME).delete()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- the parts as one file --------------------------------------------------------------------------------------------


def merge_parts(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    csv_safe: bool = False,
    overwrite: bool = False,
) -> int:
    """Write the rows of a finished distributed run into one file, with its manifest beside it."""
    address, target = os.fspath(run), Path(output)
    manifest = read_run(address)
    if manifest.settings.distributed is None:
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
    description = parse_description(json.loads(place.read()), place)
    names, count = list(manifest.results), 0
    with ExitStack() as stack:
        writers = [
            stack.enter_context(ResultWriter.open(file, names, columns=columns, csv_safe=csv_safe))
            for file in with_rows([target])
        ]
        for row in PartRows(directory):
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
    rows = rows_path(target)
    kept = file_sha256(rows) if target.suffix.lower() == ".csv" else None
    write_manifest(target, replace(description, results_sha256=file_sha256(target), rows_sha256=kept))
    return count
