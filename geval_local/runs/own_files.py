"""The files that a run made in its directory: recorded before they are made; only these may be replaced or removed.

All other files in the directory are the user's. Nothing is written through a link, and no link is removed.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from geval_local.errors import OutputError
from geval_local.files import file_system
from geval_local.io.ownership import check_own, check_place, is_lone_file, owned
from geval_local.runs.manifest import MANIFEST_NAME, STEPS_NAME, JudgeRecord, RunManifest, write_manifest, write_private

LOCK_NAME = ".geval-local.lock"
_LOCK_BYTES = 20
#: How a disk says that it has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def hold(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Lock a directory for this process, after so many seconds at most; the lock goes whenever the process dies."""
    path = directory / LOCK_NAME
    lock = FileLock(path, timeout=patience, mode=0o600, fallback_to_soft=False)
    try:
        if os.path.lexists(path) and not _is_lock(path):
            raise OutputError(f"{path} is a link, or no lock, and no run makes that", hint="Remove it.")
        lock.acquire()
    except Timeout:
        raise _busy(directory, path) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, NotImplementedError) or error.errno in _NO_LOCKS:
            kind = file_system(directory)
            raise OutputError(
                f"the disk of {directory} keeps no locks" + (f" ({kind})" if kind else ""),
                hint="A run locks its directory, so that no two processes write into it. Put the run on a local disk "
                "and copy the results; or have the disk mounted with locks (Lustre: the option flock; NFS: version 4, "
                "or lockd).",
            ) from error
        raise OutputError(
            f"cannot write {path}: {error.strerror}", hint="Choose a directory that you may write to."
        ) from error
    try:
        with suppress(OSError):  # it only informs other processes
            path.write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        lock.release()


def is_held(directory: Path) -> bool:
    """Whether another process works in a directory."""
    try:
        with hold(directory):
            return False
    except OutputError:
        return True


def _busy(directory: Path, path: Path) -> OutputError:
    owner = ""
    with suppress(OSError, ValueError):  # the holder has not said yet which process it is
        owner = path.read_bytes()[:_LOCK_BYTES].decode("ascii")
    return OutputError(
        f"{directory} is in use by another process" + (f", number {owner}" if owner.isdigit() else ""),
        hint="Wait for it, or give this run its own directory.",
    )


def _is_lock(path: Path) -> bool:
    """Whether a file is a lock, which holds nothing but the number of a process."""
    try:
        if not is_lone_file(path) or path.stat().st_size > _LOCK_BYTES:
            return False
        content = path.read_bytes()
    except OSError:
        return False
    return not content or content.isdigit()


def leftovers(directory: Path) -> list[Path]:
    """List leftovers of a process that died before its run had a manifest: the lock and a partial manifest."""
    found = []
    for path in directory.iterdir():
        is_partial = path.name.startswith(f".{MANIFEST_NAME}.") and path.name.endswith(".tmp") and is_lone_file(path)
        if (path.name == LOCK_NAME and _is_lock(path)) or (
            is_partial and b'{\n "checksum": "'.startswith(path.read_bytes()[:15])
        ):
            found.append(path)
    return found


@dataclass
class OwnFiles:
    """The files that a run may replace and remove in its directory."""

    _directory: Path
    _manifest: RunManifest

    def check(self, names: Iterable[str]) -> None:
        """Check that files may be written: they do not exist, or are as this run made them."""
        for name in names:
            path = self._directory / name
            if path.parent != self._directory and path.parent.is_symlink():
                check_place(path.parent)
            if not self._is_own(name):
                check_own(path, ())

    def claim(self, name: str, *digests: str) -> None:
        """Record a file before the run makes it."""
        self.check([name])
        known = self._manifest.made.get(name, [])
        made = list(dict.fromkeys([*known, *digests]))  # the existing content, and the new one
        if known != made or name not in self._manifest.made:
            self._manifest.made = {**self._manifest.made, name: made}
            write_manifest(self._directory, self._manifest)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run."""
        path = self._directory / name
        self.claim(name, hashlib.sha256(text.encode()).hexdigest())
        with suppress(OSError):  # writing the file fails then, and says so
            path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(path, text, self._manifest.run)

    def sweep(self) -> None:
        """Remove partial files of a dead process; their names contain the run's identifier."""
        for directory in (self._directory, self._directory / STEPS_NAME):
            found = [] if directory.is_symlink() else list(directory.glob(f".*.{self._manifest.run}.tmp"))
            for path in filter(is_lone_file, found):
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Record that the run has not begun, so that the next process can continue an interrupted removal."""
        judges = [JudgeRecord(name=judge.name, choice=judge.choice) for judge in self._manifest.judges]
        with suppress(OutputError):  # on a full disk; the removal makes room
            write_manifest(self._directory, self._manifest.model_copy(update={"judges": judges}))

    def remove(self) -> None:
        """Remove the unmodified files of the run, except the manifest."""
        self.sweep()
        for name in self._manifest.made:
            if self._is_own(name):
                with suppress(OSError):
                    (self._directory / name).unlink()
        if not (self._directory / STEPS_NAME).is_symlink():
            with suppress(OSError):
                (self._directory / STEPS_NAME).rmdir()  # stays if it contains anything else

    def remove_manifest(self) -> None:
        """Remove the manifest, unless there are other files: without it the directory would be rejected."""
        with suppress(OSError):
            others = {path.name for path in self._directory.iterdir()} - {MANIFEST_NAME}
            if not others - {path.name for path in leftovers(self._directory)}:
                (self._directory / MANIFEST_NAME).unlink()

    def _is_own(self, name: str) -> bool:
        """Whether a file exists as the run made it."""
        path = self._directory / name
        if name not in self._manifest.made or (path.parent != self._directory and path.parent.is_symlink()):
            return False
        digests = self._manifest.made[name]
        return owned(path, digests=digests) if digests else is_lone_file(path)
