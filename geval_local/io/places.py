"""Places: files and directories by address, on this machine or on any file system that pyarrow or fsspec reaches.

An address is a path or ``SCHEME://...``. pyarrow opens file, s3, gs and hdfs; other schemes go through fsspec, whose
plugins are separate packages. A place is pickled as its address, so that a worker on another machine opens it there.

The path in an address is literal, as in `aws s3 cp`: ``%20`` is three characters of a name, and ``#`` and ``?`` are
characters too. The only exception are options of pyarrow at the end:
``s3://bucket/key?endpoint_override=localhost:9000``.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import parse_qsl

from geval_local.errors import ConfigurationError, DataError, ReadError, first_line
from geval_local.files import check_is_file
from geval_local.wording import without_secrets

#: File systems that show an object only when it is complete, and on which renaming copies it.
_OBJECT_STORES = ("s3", "gcs", "abfs")
#: Bytes per read: a thread that reads ahead releases the interpreter lock at every read and has to reacquire it.
BLOCK = 1 << 20
#: Bytes of a request to a store, which takes some hundredths of a second however few they are.
_REQUEST = 1 << 22
_MAGIC = "*?["
#: What to do about a store that answers with an error.
RIGHTS = (
    "Check the address and your rights to it. Credentials come from where the store's own tools look for them: for "
    "s3:// AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for gs:// GOOGLE_APPLICATION_CREDENTIALS."
)
_OPTIONS = re.compile(r"\?[a-z_]+=[^?]*\Z")


class Entry(NamedTuple):
    """An entry of a directory."""

    #: The file or directory.
    place: Place
    #: Whether it is a file.
    is_file: bool
    #: Its size.
    bytes: int
    #: Time of its last change in nanoseconds; 0 if unknown.
    changed: int


def is_address(text: str) -> bool:
    """Whether a text is an address with a scheme, not a path."""
    scheme, found, _ = text.partition("://")
    return bool(found) and scheme.replace("+", "").isalnum()


def is_pattern(text: str) -> bool:
    """Whether a path or address is a pattern, unless there is a file of that name."""
    plain = opened(text).plain if is_address(text) else text
    return any(char in plain for char in _MAGIC)


class _Opened(NamedTuple):
    """An address, opened."""

    system: Any
    #: The path on the file system.
    path: str
    #: The address without options.
    plain: str


@lru_cache(maxsize=64)
def opened(address: str) -> _Opened:
    """Open the store of an address; kept for later calls."""
    try:
        from pyarrow import fs
    except ImportError as error:
        raise ConfigurationError(
            f"{address} needs pyarrow, the `parquet` extra", hint="Install it: pip install 'geval-local[parquet]'"
        ) from error
    if not is_address(address):
        return _Opened(fs.LocalFileSystem(), os.path.abspath(address), address)
    if without_secrets(address) != address:  # manifests, logs and next commands hold addresses
        raise ConfigurationError(f"the address {address} holds a password or a key", hint=f"Leave it out. {RIGHTS}")
    try:
        return _opened_by_arrow(address)
    except OSError as error:  # pyarrow knows the scheme, and its store refuses
        raise DataError(f"cannot open {address}: {first_line(error)}", hint=RIGHTS) from error
    except (ValueError, TypeError) as known:
        try:
            import fsspec

            other, path = fsspec.core.url_to_fs(address)
        except (ImportError, OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"cannot open {address}: {str(error) or known}",
                hint="pyarrow opens file://, s3://, gs:// and hdfs://; other schemes need their fsspec "
                "package, such as adlfs for abfs://.",
            ) from error
        return _Opened(fs.PyFileSystem(fs.FSSpecHandler(other)), path, address)


def _opened_by_arrow(address: str) -> _Opened:
    options = None if address.startswith("file:") else _OPTIONS.search(address)
    if options is not None:
        with suppress(ValueError):  # pyarrow knows no such options, so they are part of the name
            return _opened_at_root(address[: options.start()], options[0])
    return _opened_at_root(address, "")


def _opened_at_root(plain: str, options: str) -> _Opened:
    # pyarrow would read the path as a URI, which writes `%`, `#`, `?` and spaces in names differently.
    scheme, _, rest = plain.partition("://")
    authority, _, path = rest.partition("/")
    system, root = _arrow_system(f"{scheme}://{authority}/{options}")
    return _Opened(system, f"{root.rstrip('/')}/{path}" if path or not root else root, plain)


@lru_cache(maxsize=64)
def _arrow_system(root: str) -> tuple[Any, str]:
    from pyarrow import fs

    system, path = fs.FileSystem.from_uri(root)
    return system, path


def is_hidden(path: str) -> bool:
    """Whether a name in a path begins with ``.`` or ``_``, or with ``~$``, as what a spreadsheet program has open."""
    return any(part.startswith((".", "_", "~$")) for part in path.split("/"))


@dataclass(frozen=True)
class Place:
    """A file or a directory."""

    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def _is_path(self) -> bool:
        """Whether it is a path on this machine, which needs no extra packages."""
        return not is_address(self.address)

    @property
    def plain(self) -> str:
        """The address without options."""
        return self.address if self._is_path else opened(self.address).plain

    @property
    def system(self) -> Any:
        """The pyarrow file system."""
        return opened(self.address).system

    @property
    def path(self) -> str:
        """The path on the file system."""
        return os.path.abspath(self.address) if self._is_path else opened(self.address).path

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.plain.rstrip("/").rpartition("/")[2] or self.address

    @property
    def local(self) -> Path | None:
        """The path on this machine; None if it is elsewhere."""
        return Path(self.path) if self._is_path or self.system.type_name == "local" else None

    @property
    def key(self) -> str:
        """One text for all spellings of the place: with links, ``/./``, other credentials, options in another order."""
        if (local := self.local) is not None:
            return os.path.realpath(local)
        scheme, _, rest = self.plain.partition("://")
        authority, _, path = rest.partition("/")
        options = dict(parse_qsl(self.address[len(self.plain) + 1 :]))
        endpoint = options.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
        server = endpoint.rpartition("//")[2].rstrip("/").lower()
        normal = posixpath.normpath("/" + path.lstrip("/")).rstrip("/")
        return f"{scheme}://{authority.rpartition('@')[2]}{normal}" + (f"?endpoint_override={server}" if server else "")

    def with_ending(self, ending: str) -> Place:
        """Return the place whose name is this one's, followed by an ending."""
        return self._with(self.plain + ending)

    @property
    def directory(self) -> Place:
        """The directory that contains it."""
        return self._with(self.plain.rstrip("/").rpartition("/")[0])

    def child(self, name: str) -> Place:
        """Return a place in this directory."""
        plain = self.plain
        return self._with(f"{plain.rstrip('/')}/{name}" if plain.strip("/") else f"/{name}")

    def _with(self, plain: str) -> Place:
        """Return another place by its address, with the options of this one."""
        return Place(plain + self.address[len(self.plain) :])

    def entry(self) -> Entry | None:
        """Return the entry; None if it does not exist."""
        if self._is_path:
            return _entry_of_path(self)
        info = self.system.get_file_info(self.path)
        from pyarrow import fs

        return None if info.type == fs.FileType.NotFound else _entry(self, info)

    def entries(self, *, recursive: bool = False) -> list[Entry]:
        """List the entries of the directory, sorted by path; empty if it does not exist."""
        if self._is_path:
            return _entries_of_path(self, recursive=recursive)
        system, base = self.system, self.path.rstrip("/")
        from pyarrow import fs

        try:
            found = system.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=recursive))
            found = sorted(found, key=lambda info: str(info.path))
        except UnicodeDecodeError as error:
            raise OSError(f"a name in it is not UTF-8: {os.fsdecode(error.object)!r}; rename that file") from error
        return [_entry(self.child(info.path[len(base) :].lstrip("/")), info) for info in found]

    def matches(self) -> list[Entry]:
        """List the files that match a pattern, as fsspec reads it; ``*`` stays within a directory, ``**`` does not.

        Hidden names (`is_hidden`) match only if they are part of the address before the pattern.
        """
        from fsspec.utils import glob_translate

        plain = self.plain
        fixed, _, _ = plain[: min(plain.index(char) for char in _MAGIC if char in plain)].rpartition("/")
        pattern = plain[len(fixed) :].lstrip("/")
        base = self._with(fixed or ("/" if plain.startswith("/") else "."))
        try:
            matched = re.compile(glob_translate(pattern))
        except ValueError as error:
            raise ConfigurationError(
                f"{self.address} is no pattern: {error}", hint="`**` stands alone between slashes: `data/**/*.jsonl`."
            ) from error
        start = len(base.path.rstrip("/"))
        return [
            entry
            for entry in base.entries(recursive="/" in pattern or "**" in pattern)
            if entry.is_file
            and (inner := entry.place.path[start:].lstrip("/"))
            and not is_hidden(inner)
            and matched.match(inner)
        ]

    def lines_file(self) -> BinaryIO:
        """Open the file for sequential reading, binary and buffered."""
        local = self.local
        if local is not None:
            return local.open("rb", buffering=BLOCK)
        # Python's text layer asks for 8 KiB at a time past a BufferedReader, each of which would be a request.
        stream = self.system.open_input_stream(self.path, compression=None, buffer_size=_REQUEST)
        return io.BufferedReader(stream, BLOCK)

    def seekable_file(self) -> BinaryIO:
        """Open the file for reading lines from any byte, binary and buffered."""
        local = self.local
        if local is not None:
            return local.open("rb", buffering=BLOCK)
        return io.BufferedReader(self.system.open_input_file(self.path), _REQUEST)

    def exists(self) -> bool:
        """Whether there is a file or a directory."""
        return self.entry() is not None

    def state(self) -> tuple[int, int]:
        """Return the file's size, and the time of its last change in nanoseconds."""
        entry = self.entry()
        if entry is None:
            raise FileNotFoundError(f"there is no file {self}")
        return entry.bytes, entry.changed

    def read(self, most: int = -1) -> bytes:
        """Read the file, or its first bytes."""
        with self.seekable_file() as file:
            return file.read(most)

    def write(self, content: bytes | memoryview, *, mark: str) -> None:
        """Write a file atomically."""
        system, path = self.system, self.path
        if system.type_name in _OBJECT_STORES:
            with system.open_output_stream(path, compression=None) as stream:
                stream.write(content)
            return
        folder, _, name = path.rpartition("/")
        partial = f"{folder}/.{name}.{secrets.token_hex(4)}.{mark}.tmp"
        try:
            with system.open_output_stream(partial, compression=None) as stream:
                stream.write(content)
            try:
                system.move(partial, path)
            except OSError:
                if self.entry() is None:
                    raise
                # HDFS does not rename over an existing file.
                system.delete_file(path)
                system.move(partial, path)
        finally:
            with suppress(OSError):
                system.delete_file(partial)

    def delete(self) -> None:
        """Remove the file, if it exists."""
        with suppress(FileNotFoundError):
            if self._is_path:
                os.unlink(self.path)
            else:
                self.system.delete_file(self.path)


def _entry_of_path(place: Place) -> Entry | None:
    try:
        status = os.stat(place.path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Entry(place, stat.S_ISREG(status.st_mode), status.st_size, status.st_mtime_ns)


def _entries_of_path(place: Place, *, recursive: bool) -> list[Entry]:
    found: list[Entry] = []
    waiting, seen = [place], {os.path.realpath(place.path)}
    while waiting:
        directory = waiting.pop()
        try:
            names = os.listdir(directory.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise OSError(f"a name in it is not UTF-8: {name!r}; rename that file") from error
            entry = _entry_of_path(directory.child(name))
            # A link that leads nowhere is an entry that cannot be read.
            entry = entry or Entry(directory.child(name), is_file=True, bytes=0, changed=0)
            found.append(entry)
            real = "" if entry.is_file or not recursive else os.path.realpath(entry.place.path)
            if real and real not in seen and os.path.isdir(real):
                seen.add(real)  # a link may lead back
                waiting.append(entry.place)
    return sorted(found, key=lambda entry: entry.place.path)


def _entry(place: Place, info: Any) -> Entry:
    return Entry(place, bool(info.is_file), int(info.size or 0), int(info.mtime_ns or 0))


#: A file that is read: on this machine by its path, elsewhere by its address.
File = Path | Place


def file_at(given: str | os.PathLike[str] | Place) -> File:
    """Return a file by its path or address."""
    if isinstance(given, str | os.PathLike) and not is_address(text := os.fspath(given)):
        return Path(text)
    place = given if isinstance(given, Place) else Place(os.fspath(given))
    return place.local or place


def address_of(file: File) -> str:
    """Return the absolute path or the address of a file, which finds it from any directory."""
    return file.address if isinstance(file, Place) else os.path.abspath(file)


def open_bytes(file: File) -> io.BufferedReader:
    """Open a file for sequential reading."""
    opened: Any = file.open("rb", buffering=BLOCK) if isinstance(file, Path) else file.lines_file()
    return opened  # type: ignore[no-any-return]


def state_of(file: File) -> tuple[int, int]:
    """Return a file's size, and the time of its last change in nanoseconds: a cheap check for writes."""
    if not isinstance(file, Path):
        return file.state()
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def parquet_source(file: File) -> Any:
    """Return what pyarrow reads a Parquet file from."""
    return file.system.open_input_file(file.path) if isinstance(file, Place) else file


def check_is_there(file: File) -> None:
    """Check that a file exists, before it is read."""
    if isinstance(file, Path):
        check_is_file(file)
        return
    try:
        state_of(file)
    except FileNotFoundError:
        raise DataError(f"there is no file {file}", hint="Check the address; names are used as they are.") from None
    except OSError as error:
        raise unreachable(file, error) from error


def unreachable(place: Place, error: OSError) -> ReadError:
    """Return the error for an address that its store does not let this process read."""
    return ReadError(f"cannot read {place}: {first_line(error)}", hint=RIGHTS)
