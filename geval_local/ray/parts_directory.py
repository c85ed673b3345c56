"""The directory of a distributed run: manifest, list of blocks, and parts; on this machine or elsewhere.

As in every run directory, only files named by the manifest and parts of this run may be replaced or removed; every
other file is the user's. File systems without locks (object stores) do not keep a second driver out; both then write
the same parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import orjson

from geval_local.errors import OutputError
from geval_local.io.parts import part_names, remove_parts
from geval_local.io.places import Place
from geval_local.ray.blocks import Survey
from geval_local.runs.directory import clean_directory, look_at, make, remove_run
from geval_local.runs.manifest import MANIFEST_NAME, JudgeRecord, Manifest, manifest_text, parse_manifest
from geval_local.runs.own_files import OwnFiles, changed_since, hold

#: The files and blocks of the input. Readers of data sets skip names with a leading underscore.
BLOCKS_NAME = "_blocks.jsonl"
#: Gathered rows until they are scored, and the list of these files.
BUCKETS_NAME = "_gathered"
_GATHERED_LIST = "_gathered.jsonl"
_ROOM = "Free some space, or choose a place that you may write to; existing parts are kept."


class PartsDirectory:
    """A directory of parts."""

    def __init__(self, address: str) -> None:
        self.place = Place(Place(address).path if Place(address).local is not None else address)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create and lock the directory, where it can be locked; remove it afterwards if it stayed empty."""
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
        """Read the manifest of the run in it; None if a new run may start there."""
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
        """Write the manifest."""
        self._write(MANIFEST_NAME, manifest_text(manifest).encode(), manifest)

    def write(self, name: str, content: bytes, manifest: Manifest) -> None:
        """Write a file of the run, after the manifest names it."""
        place, known = self.place.child(name), manifest.made.get(name, [])
        if self.place.local is not None:
            OwnFiles(self.place.local, manifest).check([name])
        elif place.entry() is not None and _sha256(place.read()) not in known:
            raise changed_since(place)
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
        """Write the list of files and blocks of the input."""
        lines = b"".join(orjson.dumps(survey.to_record()) + b"\n" for survey in surveys)
        self.write(BLOCKS_NAME, lines, manifest)

    def surveys(self, manifest: Manifest) -> list[Survey]:
        """Read the list of files and blocks of the input."""
        place = self.place.child(BLOCKS_NAME)
        content = b"" if place.entry() is None else place.read()
        if _sha256(content) not in manifest.made.get(BLOCKS_NAME, []):
            raise OutputError(
                f"{place} is {'damaged, or was edited' if content else 'missing'}",
                hint="Restore it from a backup, or score into another directory.",
            )
        return [Survey.from_record(orjson.loads(line)) for line in content.splitlines()]

    @property
    def buckets(self) -> Place:
        """Directory of gathered rows."""
        return self.place.child(BUCKETS_NAME)

    def make_buckets(self) -> None:
        """Create the directory of gathered rows, if the file system has directories."""
        local = self.buckets.local
        if local is not None and local.is_symlink():
            raise OutputError(f"{local} is a link, which no run creates", hint="Move it to another place.")
        try:
            if local is not None:
                local.mkdir(mode=0o700, exist_ok=True)
                return
            with suppress(NotImplementedError):  # object stores have no directories
                self.place.system.create_dir(self.buckets.path)
        except OSError as error:
            raise OutputError(f"cannot make {self.buckets}: {error.strerror or error}", hint=_ROOM) from error

    def write_gathered(self, surveys: Sequence[Survey], manifest: Manifest) -> None:
        """Write the list of files of gathered rows, with the hash of their input."""
        lines = [{"input": manifest.input.sha256}, *(survey.to_record() for survey in surveys)]
        self.write(_GATHERED_LIST, b"".join(orjson.dumps(line) + b"\n" for line in lines), manifest)

    def gathered(self, manifest: Manifest) -> list[Survey]:
        """Read the list of files of gathered rows; empty if there is none for this input."""
        place = self.place.child(_GATHERED_LIST)
        content = b"" if place.entry() is None else place.read()
        if _sha256(content) not in manifest.made.get(_GATHERED_LIST, []):
            return []
        head, *lines = map(orjson.loads, content.splitlines())
        return [Survey.from_record(line) for line in lines] if head["input"] == manifest.input.sha256 else []

    def remove_buckets(self, run: str) -> None:
        """Remove the gathered rows of a run."""
        local = self.buckets.local
        if local is not None and local.is_symlink():
            return
        remove_parts(self.buckets, run)
        with suppress(OSError):
            if local is not None:
                local.rmdir()  # fails if it holds files of others
            elif not self.buckets.entries():
                self.place.system.delete_dir(self.buckets.path)

    def is_empty(self) -> bool:
        """Whether there are no parts."""
        return not part_names(self.place)

    def remove(self, manifest: Manifest) -> None:
        """Remove a run: only the files that it wrote."""
        local = self.place.local
        if local is not None:
            self.remove_buckets(manifest.run)
            remove_run(local, manifest)
            return
        judges = [JudgeRecord(name=judge.name, choice=judge.choice) for judge in manifest.judges]
        self.save(
            manifest.model_copy(update={"judges": judges})
        )  # if this process dies now, the run counts as not started
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
