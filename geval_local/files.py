"""Files: checks that they are regular files, atomic writes, the user's directory for this package, and names."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from geval_local.errors import ConfigurationError, DataError, OutputError, nearest, telling

logger = logging.getLogger("geval_local")

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


WRITE_BYTES = 1 << 20
_SPECIAL = {
    stat.S_ISDIR: "a directory",
    stat.S_ISFIFO: "a pipe (FIFO)",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def kind_of_special(mode: int) -> str | None:
    """Return the kind of a path that is not a regular file: opening a pipe would wait for a writer forever."""
    return next((name for test, name in _SPECIAL.items() if test(mode)), None)


def no_such_file(path: Path, what: str = "file") -> DataError:
    """Return an error that there is no such file, with the nearest name in its directory."""
    names: list[str] = []
    with suppress(OSError):
        # Compares names without extensions, which most tables share.
        beside = {one.stem.casefold(): one.name for one in path.parent.iterdir() if not one.name.startswith(".")}
        names = [beside[stem] for stem in difflib.get_close_matches(path.stem.casefold(), list(beside), n=1)]
    where = "" if path.parent.is_dir() else f": there is no directory {path.parent}"
    return DataError(
        f"there is no {what} {path}{where or nearest(path.name, names)}",
        hint="Check the path, and the directory it starts from.",
    )


def check_is_file(path: Path) -> None:
    """Check that the path is a regular file, without opening it."""
    try:
        special = kind_of_special(path.stat().st_mode)
    except FileNotFoundError:
        raise no_such_file(path, "file" if path.suffix else "file or directory") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path}: {reason}", hint="Check the path and its permissions.") from error
    if special == "a directory":
        raise DataError(
            f"{path} is a directory",
            hint="Give the path of one file in it. `geval-local score` and `pairs` take directories.",
        )
    if special is not None:
        raise DataError(
            f"{path} is {special}, not a file: rows are read more than once",
            hint="Write them to a file first; `geval-local score -` reads JSONL from standard input.",
        )


def temporary_path(path: Path, mark: str | None = None) -> Path:
    """Return the path of the temporary file for `path`, in the same directory."""
    # The mark distinguishes it from the user's files; the name is shortened to leave room for the mark.
    return path.with_name(f".{path.name[:60]}.{mark or secrets.token_hex(8)}.tmp")


@contextmanager
def replacing(
    path: Path,
    *,
    private: bool = False,
    mark: str | None = None,
    before_replacing: Callable[[Path], object] = lambda whole: None,
) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` at the end of the block, or is removed if the block fails.

    At any time the path has either the complete old file or the complete new one. The next write to the same path
    removes the temporary file of a killed process; with a `mark`, the caller has to remove it.
    """
    if mark is None:
        _remove_leftovers(path)
    partial, descriptor, lock = _new_partial(path, private, mark)
    try:
        file = open(descriptor, "wb", buffering=WRITE_BYTES)  # noqa: SIM115 - closed below, whatever happens
        try:
            if not private:
                _keep_mode(path, descriptor)
            yield file
            file.flush()
            os.fsync(file.fileno())
        finally:
            with suppress(OSError):  # a full disk rejects the buffered rest; the file is removed anyway
                file.close()
        before_replacing(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(lock)


def _new_partial(path: Path, private: bool, mark: str | None) -> tuple[Path, int, int]:
    """Create the temporary file for `path`; a lock on the last descriptor marks it as in use."""
    while True:
        partial = temporary_path(path, mark)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        lock = os.dup(descriptor)
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:  # else another process removed it as a leftover before the lock
            return partial, descriptor, lock
        os.close(descriptor)
        os.close(lock)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files for `path` that no process has open."""
    name = re.compile(rf"\.{re.escape(path.name[:60])}\.[0-9a-f]{{16}}\.tmp")
    for found in path.parent.iterdir() if fcntl is not None else ():
        if name.fullmatch(found.name):
            with suppress(OSError):  # in use, or already removed
                descriptor = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if stat.S_ISREG(os.fstat(descriptor).st_mode):
                        found.unlink()
                finally:
                    os.close(descriptor)


def _keep_mode(path: Path, descriptor: int) -> None:
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            os.fchmod(descriptor, status.st_mode & 0o777)


def write_atomically(path: Path, text: str, *, private: bool, mark: str | None = None) -> None:
    """Write a text file in UTF-8 as `replacing` does."""
    with replacing(path, private=private, mark=mark) as file:
        file.write(text.encode())


def save_text(path: Path, text: str) -> None:
    """Write a text atomically to a file that the user named; follow links."""
    hint = f"Make room, or choose a directory that you may write to, not {path.parent}."
    with telling(OutputError, f"cannot write {path}", hint):
        write_atomically(path.resolve(), text, private=False)


#: A file name may have 255 bytes; a name of this length has room for prefixes and suffixes.
_LONGEST = 100
_ORDINARY = re.compile(r"[\w@+-][\w.@+-]*(/[\w.@+-]+)*", re.ASCII)
_told: set[Path] = set()


def expanded(path: str | Path) -> Path:
    """Replace a leading ``~`` or ``~user`` by the home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigurationError(
            f"{path}: no home directory is known for {Path(path).parts[0]!r}",
            hint="Write the path out, or begin it with ./ if that is its name.",
        ) from error


def home_directory() -> Path:
    """Return the user's directory for this package; it need not exist."""
    if home := os.environ.get("GEVAL_LOCAL_HOME"):
        return expanded(home)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else expanded("~") / ".cache") / "geval_local"


def private_home(folder: str = "") -> Path:
    """Create the user's directory for this package, or a folder in it, for its user alone; return it."""
    home = home_directory()
    home.parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    if folder:
        (home / folder).mkdir(mode=0o700, exist_ok=True)
    return home / folder


#: Names of Linux file systems that several machines share.
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|lustre|gpfs|beegfs\w*|ceph|9p|afs|ncpfs|ocfs2|gfs2?|glusterfs|orangefs|pvfs2|panfs|wekafs|"
    r"virtiofs|vboxsf|prl_fs|davfs\d?|fuse|fuse\.(?!(ntfs|exfat|encfs|gocryptfs|overlay|bind|union|mergerfs|lxcfs|portal|snapfuse)).+"
)
MOUNTS = Path("/proc/self/mountinfo")


def file_system(path: Path) -> str | None:
    """Return the type of a path's file system, from the mount table; None if the system has none."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        place = os.path.realpath(path)
    except (OSError, ValueError):
        return None
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4])  # the table writes a space as \040
        is_within = point == "/" or place == point or place.startswith(f"{point}/")
        if is_within and (found is None or len(point) >= found[0]):  # a later mount hides an earlier one
            found = (len(point), after.split(" ")[0])
    return None if found is None else found[1]


def network_disk(path: Path) -> str | None:
    """Return the type of a path's network disk; None for a local disk, or if unknown."""
    kind = file_system(path)
    return kind if kind is not None and _NETWORK.fullmatch(kind) else None


def home_folder(name: str) -> Path | None:
    """Create a folder in the user's directory for this package, private to the user."""
    home = home_directory()
    folder = home / name
    try:
        private_home(name)
        problem = None if os.access(folder, os.W_OK | os.X_OK) else "it may not be written to"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem is None:
        return folder
    if home not in _told:
        _told.add(home)
        logger.warning(
            "%s cannot be used (%s): evaluation steps are not pinned and figures not kept for later runs; this run "
            "goes on. Set GEVAL_LOCAL_HOME to a directory that you may write to",
            home,
            problem,
        )
    return None


def readable(count: float) -> str:
    """Write a number of bytes: ``1.2 GB``, ``20 MB``, ``300 kB``."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def safe_file_name(name: str) -> str:
    """Return a safe file name for the name of a metric or a result.

    Two names get the same file name only if they differ just in ``/`` and ``.``.
    """
    if len(name) <= _LONGEST and _ORDINARY.fullmatch(name):
        return name.replace("/", ".")
    readable = re.sub(r"[^\w+-]+", "-", name, flags=re.ASCII).strip("-")[: _LONGEST - 20]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{readable}-{digest}" if readable else digest
