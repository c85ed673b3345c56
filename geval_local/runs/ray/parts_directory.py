"""The directory of a distributed run: its manifest, the list of its blocks, its parts; on this machine or elsewhere.

The rules are those of every run directory: it holds this run and nothing else of this tool, what the manifest names and
the parts of this run may be replaced and removed, and every other file is the user's. Where a file system has no locks
(object stores), nothing keeps a second driver out; the two then write the same parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import orjson

from geval_local.errors import OutputError
from geval_local.io.blocks import Survey
from geval_local.io.parts import part_names, remove_parts
from geval_local.io.places import Place
from geval_local.runs.directory import clean_directory, look_at, make, remove_run
from geval_local.runs.manifest import MANIFEST_NAME, JudgeRecord, Manifest, manifest_text, parse_manifest
from geval_local.runs.own_files import hold

__all__ = ["BLOCKS_NAME", "BUCKETS_NAME", "PartsDirectory"]

#: The files and blocks of the input. Readers of data sets pass over names that begin so.
BLOCKS_NAME = "_blocks.jsonl"
#: Gathered rows until they are scored, and the list of these files.
BUCKETS_NAME = "_gathered"
_GATHERED_LIST = "_gathered.jsonl"
_ROOM = "Make room there, or choose a place that you may write to; the parts that are there are kept."


class PartsDirectory:
    """A directory of parts.

    Parameters
    ----------
    address : str
        Its path or address.
    """

    def __init__(self, address: str) -> None:
        self.place = Place(Place(address).path if Place(address).local is not None else address)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make sure that it is there, hold it for this process where that can be done, and leave no empty one."""
        local = self.place.local
        with ExitStack() as stack:
            if local is None:
                with suppress(OSError, NotImplementedError):  # object stores have no directories
                    self.place.system.create_dir(self.place.path, recursive=True)
                yield
                return
            self.read()
            made = make(local)
            stack.callback(lambda: None if self._has_run() else clean_directory(local, made))
            stack.enter_context(hold(local))
            yield

    def _has_run(self) -> bool:
        return self.place.child(MANIFEST_NAME).entry() is not None

    def read(self) -> Manifest | None:
        """Read the run that is in it; None if there is room for one.

        Raises
        ------
        OutputError
            If it holds something else, or a manifest that cannot be trusted.
        """
        local = self.place.local
        if local is not None:
            return look_at(local)
        place = self.place.child(MANIFEST_NAME)
        try:
            entries = self.place.entries()
            manifest = None
            if place.entry() is not None:
                manifest = parse_manifest(place.read().decode("utf-8", "replace"), place)
        except OSError as error:
            raise OutputError(f"cannot use {self.place}: {error}", hint=_ROOM) from error
        if manifest is None and entries:
            told = ", ".join(entry.place.name for entry in entries[:4])
            raise OutputError(
                f"{self.place} is not empty and holds no run; it has {told}",
                hint="Name a new directory, an empty one, or one that holds a run. Nothing was changed.",
            )
        return manifest

    def save(self, manifest: Manifest) -> None:
        """Write the manifest.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        self._write(MANIFEST_NAME, manifest_text(manifest).encode(), manifest)

    def write(self, name: str, content: bytes, manifest: Manifest) -> None:
        """Write a file of the run's, which its manifest names before it is there.

        Raises
        ------
        OutputError
            If it cannot be written, or there is a file of that name that this run did not make.
        """
        place, known = self.place.child(name), manifest.made.get(name, [])
        local = place.local
        if local is not None and local.is_symlink():
            raise OutputError(f"{place} is a link, and no run makes links", hint="Move it to another place.")
        if place.entry() is not None and _sha256(place.read()) not in known:
            raise OutputError(
                f"{place} is there, and is not as this run made it",
                hint="Move it to another place, then try again; nothing was changed.",
            )
        made = list(dict.fromkeys([*known, _sha256(content)]))
        manifest.made = {**manifest.made, name: made}
        self.save(manifest)
        self._write(name, content, manifest)

    def _write(self, name: str, content: bytes, manifest: Manifest) -> None:
        place = self.place.child(name)
        try:
            place.write(content, mark=manifest.run)
        except OSError as error:
            raise OutputError(f"cannot write {place}: {error.strerror or error}", hint=_ROOM) from error

    def write_surveys(self, surveys: Sequence[Survey], manifest: Manifest) -> None:
        """Write down the files and blocks of the input."""
        lines = b"".join(orjson.dumps(survey.to_record()) + b"\n" for survey in surveys)
        self.write(BLOCKS_NAME, lines, manifest)

    def surveys(self, manifest: Manifest) -> list[Survey]:
        """Read the files and blocks of the input.

        Raises
        ------
        OutputError
            If the list is gone, or is not as it was written.
        """
        place = self.place.child(BLOCKS_NAME)
        content = b"" if place.entry() is None else place.read()
        if _sha256(content) not in manifest.made.get(BLOCKS_NAME, []):
            raise OutputError(
                f"{place} is {'damaged, or was edited' if content else 'gone'}",
                hint="Restore it from a backup, or score into another directory.",
            )
        return [Survey.from_record(orjson.loads(line)) for line in content.splitlines()]

    @property
    def buckets(self) -> Place:
        """Where gathered rows wait to be scored."""
        return self.place.child(BUCKETS_NAME)

    def make_buckets(self) -> None:
        """Make the directory of gathered rows, where directories exist.

        Raises
        ------
        OutputError
            If it cannot be made.
        """
        local = self.buckets.local
        try:
            if local is not None:
                local.mkdir(mode=0o700, exist_ok=True)
                return
            with suppress(NotImplementedError):  # object stores have no directories
                self.place.system.create_dir(self.buckets.path)
        except OSError as error:
            raise OutputError(f"cannot make {self.buckets}: {error.strerror or error}", hint=_ROOM) from error

    def write_gathered(self, surveys: Sequence[Survey], manifest: Manifest) -> None:
        """Write down the files of gathered rows, and of which input they are."""
        lines = [{"input": manifest.input.sha256}, *(survey.to_record() for survey in surveys)]
        self.write(_GATHERED_LIST, b"".join(orjson.dumps(line) + b"\n" for line in lines), manifest)

    def gathered(self, manifest: Manifest) -> list[Survey]:
        """Read the files of gathered rows; none if those of this input have not been written."""
        place = self.place.child(_GATHERED_LIST)
        content = b"" if place.entry() is None else place.read()
        if _sha256(content) not in manifest.made.get(_GATHERED_LIST, []):
            return []
        head, *lines = map(orjson.loads, content.splitlines())
        return [Survey.from_record(line) for line in lines] if head["input"] == manifest.input.sha256 else []

    def remove_buckets(self, run: str) -> None:
        """Remove the gathered rows of a run."""
        remove_parts(self.buckets, run)
        with suppress(OSError):
            if not self.buckets.entries():
                self.place.system.delete_dir(self.buckets.path)

    def is_empty(self) -> bool:
        """Whether no part is there."""
        return not part_names(self.place)

    def remove(self, manifest: Manifest) -> None:
        """Remove a run: what it made, and nothing else."""
        local = self.place.local
        if local is not None:
            self.remove_buckets(manifest.run)
            remove_run(local, manifest)
            return
        judges = [JudgeRecord(name=judge.name, choice=judge.choice) for judge in manifest.judges]
        self.save(manifest.model_copy(update={"judges": judges}))  # it has not begun, should this process die now
        remove_parts(self.place, manifest.run)
        self.remove_buckets(manifest.run)
        for name, digests in manifest.made.items():
            place = self.place.child(name)
            if place.entry() is not None and _sha256(place.read()) in digests:
                place.delete()
        if [entry.place.name for entry in self.place.entries()] == [MANIFEST_NAME]:
            self.place.child(MANIFEST_NAME).delete()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
