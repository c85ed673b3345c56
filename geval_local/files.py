"""Files: checked to be files, decoded as their first bytes say, and written whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, cast

from geval_local.errors import DataError, OutputError

__all__ = [
    "check_is_file",
    "check_replaceable",
    "encoding_of",
    "kind_of_special",
    "open_text",
    "replacing",
    "save_text",
    "temporary_path",
    "write_atomically",
]

#: Read at a time: a thread that reads ahead gives the interpreter up at every read, and has to wait for it again.
READ_BYTES = 1 << 20
WRITE_BYTES = 1 << 20
_HEAD_BYTES = 4096
_GZIP = b"\x1f\x8b"
#: How files begin that hold no text, whatever their names say.
_NO_TEXT = {
    b"PK\x03\x04": "a ZIP archive, such as an Excel workbook",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
}
_MARKS = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_SPECIAL = {
    stat.S_ISDIR: "a directory",
    stat.S_ISFIFO: "a pipe (FIFO)",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def kind_of_special(mode: int) -> str | None:
    """Name the kind of a path that is no regular file: opening a pipe would wait for a writer for ever."""
    return next((name for test, name in _SPECIAL.items() if test(mode)), None)


def check_is_file(path: Path) -> None:
    """Make sure that there is a regular file, without opening it.

    Raises
    ------
    DataError
        If there is nothing, a directory, a pipe or a device.
    """
    try:
        special = kind_of_special(path.stat().st_mode)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}", hint="Check the path, and the directory it starts from.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path}: {reason}", hint="Check the path and its permissions.") from error
    if special == "a directory":
        raise DataError(f"{path} is a directory", hint="Give the path of one file.")
    if special is not None:
        raise DataError(
            f"{path} is {special}, not a file: rows are read more than once",
            hint="Write them to a file first; `geval-local score -` reads JSONL from standard input.",
        )


def open_text(path: Path, *, newline: str) -> IO[str]:
    """Open a file of text, decoded and unpacked; bytes that are not valid in it come through as lone surrogates.

    Parameters
    ----------
    path : Path
        The file, plain or compressed by gzip, in UTF-8, UTF-16 or UTF-32.
    newline : str
        As for `open`.

    Raises
    ------
    DataError
        If its first bytes are those of something that is no text.
    """
    packed = _unpacked(path)
    with packed:
        head = packed.read(_HEAD_BYTES)
    for start, kind in _NO_TEXT.items():
        if head.startswith(start):
            raise DataError(f"{path} is {kind}, whatever its name says", hint="Save it as JSONL, CSV or Parquet.")
    encoding = encoding_of(head)
    if encoding is None:
        raise DataError(
            f"{path} is no text: it holds zero bytes", hint="Save it as JSONL, CSV or Parquet, in UTF-8 or UTF-16."
        )
    # UTF-16 has no bytes that could stand for themselves; a lone surrogate, which it can hold, is passed on.
    errors = "surrogateescape" if encoding.startswith("utf-8") else "surrogatepass"
    return io.TextIOWrapper(_unpacked(path), encoding=encoding, errors=errors, newline=newline)


def encoding_of(head: bytes) -> str | None:
    """Tell the encoding of a text by its first bytes: a mark, or where the zero bytes of UTF-16 stand.

    Returns
    -------
    str or None
        A codec's name; UTF-8 unless the bytes say otherwise, None if they are those of no text.
    """
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    if b"\0" not in head:
        return "utf-8-sig"
    even, odd = head[0::2].count(0), head[1::2].count(0)
    # Tables and JSON begin with a sign of ASCII, and hold many: column names, quotes, commas. In UTF-16 each has a zero
    # byte on one side, and next to nothing has one on the other.
    if head[:1] != b"\0" == head[1:2] and odd > 1 and even <= 0.1 * odd:
        return "utf-16-le"
    if head[:1] == b"\0" != head[1:2] and even > 1 and odd <= 0.1 * even:
        return "utf-16-be"
    # A few zero bytes in a text are the row's fault that holds them; many are no text's.
    return "utf-8-sig" if even + odd < 0.05 * len(head) else None


def _unpacked(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP or path.name.lower().endswith(".gz")
    if packed:
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb", buffering=READ_BYTES)


def temporary_path(path: Path, mark: str | None = None) -> Path:
    """Name the file in which the content of `path` is gathered, in the same directory.

    Parameters
    ----------
    path : Path
        The target.
    mark : str, optional
        Tells whose file it is, such as the identifier of a run; random when absent.
    """
    # The mark keeps it apart from any file of the user's; the name is cut because it grows by the mark.
    return path.with_name(f".{path.name[:60]}.{mark or secrets.token_hex(8)}.tmp")


@contextmanager
def replacing(
    path: Path,
    *,
    private: bool = False,
    mark: str | None = None,
    before_replacing: Callable[[Path], object] = lambda whole: None,
) -> Iterator[BinaryIO]:
    """Open a new file that takes the name `path` at the end of the block, or is removed if the block fails.

    So there is either the old file or the new one under that name, on the disk, whatever happens.

    Parameters
    ----------
    path : Path
        The target. A link is replaced and not followed.
    private : bool
        Whether only the user may read it. Otherwise it keeps the permissions of the file that it replaces, and a new
        one has those of the user's umask.
    mark : str, optional
        See `temporary_path`.
    before_replacing : callable
        Called with the whole file before it takes its name; it may raise.

    Raises
    ------
    OSError
        If it cannot be written; then nothing is left of it.
    """
    partial = temporary_path(path, mark)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        file = open(descriptor, "wb", buffering=WRITE_BYTES)  # noqa: SIM115 - closed below, whatever happens
        try:
            if not private:
                _keep_mode(path, descriptor)
            yield file
            file.flush()
            os.fsync(file.fileno())
        finally:
            with suppress(OSError):  # a full disk refuses what is left in the buffer; the file goes anyway
                file.close()
        before_replacing(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _keep_mode(path: Path, descriptor: int) -> None:
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            os.fchmod(descriptor, status.st_mode & 0o777)


def write_atomically(path: Path, text: str, *, private: bool, mark: str | None = None) -> None:
    """Write a text file in UTF-8 as `replacing` does.

    Parameters
    ----------
    path : Path
        The target.
    text : str
        The content.
    private, mark
        See `replacing`.

    Raises
    ------
    OSError
        If it cannot be written; then nothing is left of it.
    """
    with replacing(path, private=private, mark=mark) as file:
        file.write(text.encode())


def save_text(path: Path, text: str) -> None:
    """Write a text to a file that the user named, whole or not at all; a link is followed.

    Raises
    ------
    OutputError
        If the file or its directory cannot be written; an older file of that name is then untouched.
    """
    try:
        write_atomically(path.resolve(), text, private=False)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}",
            hint=f"Make room, or choose a directory that you may write to, not {path.parent}.",
        ) from error


def check_replaceable(path: Path, *, is_own: bool, overwrite: bool) -> None:
    """Refuse to replace a file of the user's without leave.

    Parameters
    ----------
    path : Path
        The target.
    is_own : bool
        Whether the file there, if there is one, was written by this tool and not changed since.
    overwrite : bool
        The user's leave.

    Raises
    ------
    OutputError
        If there is a file that may not be replaced.
    """
    if path.exists() and not (is_own or overwrite):
        raise OutputError(
            f"{path} exists, and this tool did not write it as it is",
            hint="Name another file, or add --overwrite to replace it.",
        )
