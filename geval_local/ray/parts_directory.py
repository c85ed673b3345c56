"""The directory of a distributed run: manifest, list of blocks, and parts; on this machine or elsewhere.

On this machine it is an ordinary run directory (`geval_local.runs.directory`). Elsewhere the same rule holds: replace
and remove only files that the manifest names and parts of this run; every other file belongs to the user. File systems
without locks (object stores) do not keep a second driver out; both drivers then write the same parts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from geval_local.errors import OutputError
from geval_local.io.parts import about_part, file_number, part_names, remove_parts, remove_windows
from geval_local.io.places import Place
from geval_local.ray.block_list import from_lines, to_lines
from geval_local.ray.blocks import Block
from geval_local.runs.directory import clean_directory, look_at, make, remove_run
from geval_local.runs.manifest import MANIFEST_NAME, JudgeRecord, RunManifest, manifest_text, parse_manifest
from geval_local.runs.own_files import OwnFiles, changed_since, hold

#: The blocks of the input. Readers of data sets skip names with a leading underscore.
BLOCKS_NAME = "_blocks.jsonl"
_SURVEY = re.compile(r"_part-\d+\.survey\..*")
_ROOM = "Free some space, or choose a place that every worker may write to; existing parts are kept."


def write_file(place: Place, content: bytes | memoryview, manifest: RunManifest) -> None:
    """Write a file of a run atomically."""
    try:
        place.write(content, mark=manifest.run)
    except OSError as error:
        raise OutputError(f"cannot write {place}: {error.strerror or error}", hint=_ROOM) from error


def write_survey(directory: Place, blocks: Sequence[Block], manifest: RunManifest) -> None:
    """Write the blocks of a file whose survey took long, until the driver has them in its list."""
    name = f"_part-{file_number(blocks[0].part):06d}.survey.{manifest.run}.window"
    with suppress(OutputError):  # then the file is surveyed again after an interruption
        write_file(directory.child(name), to_lines(blocks), manifest)


class PartsDirectory:
    """A directory of parts."""

    def __init__(self, address: str) -> None:
        self.place = Place(Place(address).path if Place(address).local is not None else address)
        self.local = self.place.local

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create the directory and lock it if possible; remove it afterwards if it stayed empty."""
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

    def read(self) -> RunManifest | None:
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

    def save(self, manifest: RunManifest) -> None:
        """Write the manifest."""
        write_file(self.place.child(MANIFEST_NAME), manifest_text(manifest).encode(), manifest)

    def write(self, name: str, content: bytes, manifest: RunManifest) -> None:
        """Write a file of the run, after the manifest names it, unless it has this content."""
        place = self.place.child(name)
        if self.local is not None:
            OwnFiles(self.local, manifest).check([name])
        elif place.entry() is not None and not self._is_own(name, manifest):
            raise changed_since(place)
        if manifest.made.get(name) == [_sha256(content)] and self._is_own(name, manifest):
            return
        made = list(dict.fromkeys([*manifest.made.get(name, []), _sha256(content)]))
        manifest.made = {**manifest.made, name: made}
        self.save(manifest)
        write_file(place, content, manifest)
        manifest.made = {**manifest.made, name: [_sha256(content)]}  # a list that is written often keeps one hash

    def _is_own(self, name: str, manifest: RunManifest) -> bool:
        """Whether a file is unchanged since the run wrote it."""
        place = self.place.child(name)
        return place.entry() is not None and _sha256(place.read()) in manifest.made.get(name, [])

    def blocks(self, manifest: RunManifest) -> list[Block]:
        """Read the list of blocks of the input, and the surveys that ended after it was written."""
        place = self.place.child(BLOCKS_NAME)
        if not self._is_own(BLOCKS_NAME, manifest):
            raise OutputError(
                f"{place} is missing, or was edited", hint="Restore it from a backup, or score into another directory."
            )
        blocks = {block.part: block for block in from_lines(place.read())}
        for entry in self.place.entries():
            if _SURVEY.fullmatch(entry.place.name) and entry.place.name.endswith(f".{manifest.run}.window"):
                blocks |= {block.part: block for block in from_lines(entry.place.read())}
        return list(blocks.values())

    def _footers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Read the records of the parts. Skip files that are damaged or not ours; writing to them reports it."""
        for name in part_names(self.place):
            about = None
            with suppress(OutputError):
                about = about_part(self.place.child(name))
            yield name, about or {}

    def gathered(self, manifest: RunManifest) -> list[Block]:
        """List the parts of the run's input, scored or not."""
        known = {"run": manifest.run, "input": manifest.input.sha256}
        return [
            Block(
                self.place.child(name).address,
                0,
                0,
                digest=about["block"]["file"],
                rows=about["block"]["rows"],
                part=name,
            )
            for name, about in self._footers()
            if known.items() <= about.items()
        ]

    def is_empty(self) -> bool:
        """Whether there are no parts except gathered ones that are still unscored."""
        return all("block" in about and "report" not in about for _, about in self._footers())

    def remove(self, manifest: RunManifest) -> None:
        """Remove a run, and only files that it wrote."""
        remove_windows(self.place, manifest.run)
        if self.local is not None:
            remove_run(self.local, manifest)
            return
        judges = [JudgeRecord(name=judge.name, choice=judge.choice) for judge in manifest.judges]
        self.save(manifest.model_copy(update={"judges": judges}))  # if it dies now, the run counts as unstarted
        remove_parts(self.place, manifest.run)
        for name in manifest.made:
            if self._is_own(name, manifest):
                self.place.child(name).delete()
        if [entry.place.name for entry in self.place.entries()] == [MANIFEST_NAME]:
            self.place.child(MANIFEST_NAME).delete()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
