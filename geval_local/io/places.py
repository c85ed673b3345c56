"""Places: files and directories by address, on this machine or on any file system that pyarrow or fsspec reaches.

An address is a path, or ``SCHEME://...``: what pyarrow knows (file, s3, gs, hdfs) it opens itself, everything else goes
through fsspec, whose plugins are packages of their own. Places are pickled as their addresses, so that a worker on
another machine opens them anew.
"""

from __future__ import annotations

import fnmatch
import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from geval_local.errors import ConfigurationError
from geval_local.files import replacing

__all__ = ["Entry", "Place", "is_address", "is_pattern"]

#: File systems on which an object appears whole when it is closed, and on which nothing can be renamed at no cost.
_OBJECT_STORES = ("s3", "gcs", "abfs")
_BLOCK = 1 << 20
_MAGIC = "*?["


class Entry(NamedTuple):
    """What a directory holds.

    Attributes
    ----------
    place : Place
        The file or directory.
    is_file : bool
        Whether it is a file.
    bytes : int
        Its size.
    changed : int
        Time of its last change, nanoseconds; 0 where the file system does not tell.
    """

    place: Place
    is_file: bool
    bytes: int
    changed: int


def is_address(text: str) -> bool:
    """Whether a text is an address with a scheme, rather than a path."""
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme.replace("+", "").isalnum()


def is_pattern(text: str) -> bool:
    """Whether a path or address is a pattern of several."""
    return any(char in text.partition("?")[0] if is_address(text) else char in text for char in _MAGIC)


@lru_cache(maxsize=64)
def _opened(address: str) -> tuple[Any, str]:
    """Find the file system of an address, and the path on it.

    Raises
    ------
    ConfigurationError
        If nothing here knows the scheme, or the address is malformed.
    """
    try:
        from pyarrow import fs
    except ImportError as error:
        raise ConfigurationError(
            f"reading {address} needs pyarrow", hint="Install it: pip install 'geval-local[ray]'"
        ) from error
    if not is_address(address):
        return fs.LocalFileSystem(), os.path.abspath(address)
    try:
        system, path = fs.FileSystem.from_uri(address)
    except (OSError, ValueError, TypeError) as known:
        try:
            import fsspec

            other, path = fsspec.core.url_to_fs(address)
        except (ImportError, OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"cannot open {address}: {str(error) or known}",
                hint="pyarrow opens file://, s3://, gs:// and hdfs://; other schemes need their fsspec "
                "package, such as adlfs for abfs://.",
            ) from error
        system = fs.PyFileSystem(fs.FSSpecHandler(other))
    return system, path


@dataclass(frozen=True)
class Place:
    """A file or a directory.

    Parameters
    ----------
    address : str
        A path, or an address with a scheme.
    """

    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def system(self) -> Any:
        """Its pyarrow file system.

        Raises
        ------
        ConfigurationError
            If there is none for such addresses.
        """
        return _opened(self.address)[0]

    @property
    def path(self) -> str:
        """Its path on that file system."""
        return _opened(self.address)[1]

    @property
    def name(self) -> str:
        """Its last part."""
        return self.address.partition("?")[0].rstrip("/").rpartition("/")[2] or self.address

    @property
    def local(self) -> Path | None:
        """Its path on this machine; None where it is elsewhere."""
        return Path(self.path) if self.system.type_name == "local" else None

    def child(self, name: str) -> Place:
        """Name a file below it."""
        head, mark, query = self.address.partition("?") if is_address(self.address) else (self.address, "", "")
        return Place(f"{head.rstrip('/')}/{name}{mark}{query}" if head.strip("/") else f"/{name}")

    def entry(self) -> Entry | None:
        """Look at it; None if there is nothing."""
        from pyarrow import fs

        info = self.system.get_file_info(self.path)
        if info.type == fs.FileType.NotFound:
            return None
        return Entry(self, info.type == fs.FileType.File, int(info.size or 0), _changed(info))

    def entries(self, *, recursive: bool = False) -> list[Entry]:
        """List what is below it, in the order of the paths; empty if there is no such directory."""
        from pyarrow import fs

        base = self.path.rstrip("/")
        found = self.system.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=recursive))
        return [
            Entry(
                self.child(info.path[len(base) :].lstrip("/")),
                info.type == fs.FileType.File,
                int(info.size or 0),
                _changed(info),
            )
            for info in sorted(found, key=lambda info: str(info.path))
        ]

    def matches(self) -> list[Entry]:
        """List the files that a pattern names; ``*`` does not cross a directory, ``**`` does.

        Names that begin with ``.`` or ``_`` are passed over where no directory before the pattern bears them.
        """
        head, _, _ = self.address.partition("?") if is_address(self.address) else (self.address, "", "")
        first = min(head.index(char) for char in _MAGIC if char in head)
        base = Place(head[:first].rpartition("/")[0] or ("/" if head.startswith("/") else "."))
        pattern = head[len(head[:first].rpartition("/")[0]) :].lstrip("/")
        depth = None if "**" in pattern else pattern.count("/")
        start = len(base.path.rstrip("/"))
        return [
            entry
            for entry in base.entries(recursive=depth != 0)
            if entry.is_file
            and (inner := entry.place.path[start:].lstrip("/"))
            and not any(part.startswith((".", "_")) for part in inner.split("/"))
            and (depth is None or inner.count("/") == depth)
            and fnmatch.fnmatchcase(inner, pattern.replace("**/", "*").replace("**", "*"))
        ]

    def open(self) -> Any:
        """Open it for reading at any place: a binary file."""
        local = self.local
        return self.system.open_input_file(self.path) if local is None else local.open("rb", buffering=_BLOCK)

    def lines_file(self) -> BinaryIO:
        """Open it for reading from its beginning: a buffered binary file."""
        local = self.local
        if local is not None:
            return local.open("rb", buffering=_BLOCK)
        return io.BufferedReader(self.system.open_input_stream(self.path, compression=None), _BLOCK)

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Read it, or its bytes from `start` up to `stop`."""
        with self.open() as file:
            file.seek(start)
            return bytes(file.read() if stop is None else file.read(stop - start))

    @contextmanager
    def as_local(self) -> Iterator[Path]:
        """Give a path on this machine: its own, or that of a copy, which goes again."""
        local = self.local
        if local is not None:
            yield local
            return
        with tempfile.TemporaryDirectory(prefix="geval-local-") as directory:
            copy = Path(directory) / self.name
            with self.lines_file() as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, _BLOCK)
            yield copy

    def write(self, content: bytes | memoryview, *, mark: str, replace: bool = True) -> bool:
        """Write a file, whole or not at all; return whether it was written.

        Parameters
        ----------
        content : bytes
            What is to be in it.
        mark : str
            Part of the name of the unfinished file.
        replace : bool
            Whether a file of that name is replaced; else it stays as it is.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        local = self.local
        if not replace and self.entry() is not None:
            return False
        if local is not None:
            # The mark is the run's, and two workers may write the same part: each has a file of its own.
            with replacing(local, private=True, mark=f"{secrets.token_hex(4)}.{mark}") as file:
                file.write(content)
            return True
        system, path = self.system, self.path
        if system.type_name in _OBJECT_STORES:
            with system.open_output_stream(path) as stream:
                stream.write(content)
            return True
        folder, _, name = path.rpartition("/")
        partial = f"{folder}/.{name}.{secrets.token_hex(4)}.{mark}.tmp"
        try:
            with system.open_output_stream(partial) as stream:
                stream.write(content)
            try:
                system.move(partial, path)
            except OSError:
                if self.entry() is None:
                    raise
                # HDFS renames over nothing that is there.
                if replace:
                    system.delete_file(path)
                    system.move(partial, path)
        finally:
            with suppress(OSError):
                system.delete_file(partial)
        return True

    def delete(self) -> None:
        """Remove the file, if it is there."""
        with suppress(FileNotFoundError):
            self.system.delete_file(self.path)


def _changed(info: Any) -> int:
    return int(info.mtime_ns or 0)
