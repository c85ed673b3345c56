"""The files that a run made in its directory: written down before they are made, and all that it may replace or remove.

Whatever else is in the directory is the user's. Nothing is written through a link, and no link is removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from geval_local.errors import OutputError
from geval_local.files import write_atomically
from geval_local.io.result_manifest import file_sha256
from geval_local.runs.files import is_plain_file, sweep
from geval_local.runs.manifest import MANIFEST_NAME, STEPS_NAME, JudgeRecord, Manifest, write_manifest
from geval_local.runs.ray.parts import PARTS_NAME

__all__ = ["LOCK_NAME", "OwnFiles", "hold", "leftovers"]

LOCK_NAME = ".geval-local.lock"


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Hold a directory for this process; the operating system lets go of it when the process dies, however it dies.

    Raises
    ------
    OutputError
        If another process holds it, or it cannot be written.
    """
    path = directory / LOCK_NAME
    lock = FileLock(path, timeout=0, mode=0o600)
    try:
        if path.is_symlink():
            raise OutputError(f"{path} is a link, and no run makes links", hint="Remove it.")
        lock.acquire()
    except Timeout:
        owner = _owner(path)
        raise OutputError(
            f"{directory} is in use by another process" + (f", number {owner}" if owner else ""),
            hint="Wait for it, or give this run a directory of its own.",
        ) from None
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}", hint="Choose a directory that you may write to."
        ) from error
    try:
        with suppress(OSError):  # it is only told to others
            path.write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        lock.release()


def _owner(path: Path) -> str:
    """Read which process holds a directory; empty if that is not known."""
    with suppress(OSError, ValueError):
        text = path.read_bytes()[:20].decode("ascii").strip()
        return text if text.isdigit() else ""
    return ""


def leftovers(directory: Path) -> list[Path]:
    """List what a process leaves that died before its run had a manifest: the lock, and half a manifest."""
    found = []
    for path in directory.iterdir():
        is_lock = path.name == LOCK_NAME and is_plain_file(path) and path.stat().st_size <= 20
        is_partial = path.name.startswith(f".{MANIFEST_NAME}.") and path.name.endswith(".tmp") and is_plain_file(path)
        if is_lock or (is_partial and b'{\n "checksum": "'.startswith(path.read_bytes()[:15])):
            found.append(path)
    return found


class OwnFiles:
    """What a run may replace and remove in its directory.

    Parameters
    ----------
    directory : Path
        The run directory.
    manifest : Manifest
        Names what the run made; takes what is made from now on.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest

    def check(self, names: Iterable[str]) -> None:
        """Make sure that files may be written: they are not there, or as this run made them.

        Raises
        ------
        OutputError
            If there is a file of that name that this run did not make.
        """
        for name in names:
            path = self._directory / name
            if (path.parent != self._directory and path.parent.is_symlink()) or path.is_symlink():
                raise OutputError(f"{path} is a link, and no run makes links", hint="Move it to another place.")
            if path.exists() and not self._is_own(name):
                raise OutputError(
                    f"{path} is there, and is not as this run made it",
                    hint="Move it to another place, then try again; nothing was changed.",
                )

    def claim(self, name: str, *digests: str) -> None:
        """Write down that the run makes a file, before it does.

        Parameters
        ----------
        name : str
            Relative to the directory.
        *digests : str
            SHA-256 of what is to be in it; none for a file that changes all the time.
        """
        self.check([name])
        known = self._manifest.made.get(name, [])
        made = list(dict.fromkeys([*known, *digests]))  # the one there, and the one to come
        if known != made or name not in self._manifest.made:
            self._manifest.made = {**self._manifest.made, name: made}
            write_manifest(self._directory, self._manifest)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run's.

        Raises
        ------
        OutputError
            If it cannot be written, or there is another file of that name.
        """
        path = self._directory / name
        self.claim(name, hashlib.sha256(text.encode()).hexdigest())
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, text, private=True, mark=self._manifest.run)
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror or error}",
                hint="Is the disk full? Make room and resume; what was committed is kept.",
            ) from error

    def sweep(self) -> None:
        """Remove half-written files of a process that died."""
        sweep(self._directory, self._manifest.run)
        for folder in (STEPS_NAME, PARTS_NAME):
            sweep(self._directory / folder, self._manifest.run)

    def forget(self) -> None:
        """Write down that the run has not begun: should this process die while it removes it, the next one goes on."""
        judges = [JudgeRecord(name=judge.name, choice=judge.choice) for judge in self._manifest.judges]
        with suppress(OutputError):  # on a full disk; removing makes room
            write_manifest(self._directory, self._manifest.model_copy(update={"judges": judges}))

    def remove(self) -> None:
        """Remove what the run made, as far as nobody changed it, but for the manifest."""
        self.sweep()
        for name in self._manifest.made:
            if self._is_own(name):
                with suppress(OSError):
                    (self._directory / name).unlink()
        if not (self._directory / STEPS_NAME).is_symlink():
            with suppress(OSError):
                (self._directory / STEPS_NAME).rmdir()  # stays while there is anything else in it

    def remove_manifest(self) -> None:
        """Remove the manifest, unless there are other files: without it the directory would be refused for them."""
        with suppress(OSError):
            others = {path.name for path in self._directory.iterdir()} - {MANIFEST_NAME}
            if not others - {path.name for path in leftovers(self._directory)}:
                (self._directory / MANIFEST_NAME).unlink()

    def _is_own(self, name: str) -> bool:
        """Whether a file is there as the run made it."""
        path = self._directory / name
        if not is_plain_file(path) or name not in self._manifest.made:
            return False
        if path.parent != self._directory and path.parent.is_symlink():
            return False
        digests = self._manifest.made[name]
        try:
            return not digests or file_sha256(path) in digests
        except OSError:
            return False
