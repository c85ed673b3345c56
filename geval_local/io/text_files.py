"""Text files: their encoding by their first bytes, their lines within bounds, and what is compressed."""

from __future__ import annotations

import codecs
import gzip
import io
import logging
import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, AnyStr

from geval_local.errors import DataError
from geval_local.io.places import BLOCK, File, open_bytes, state_of

logger = logging.getLogger("geval_local")

#: Longest line, in characters: no valid row is longer (`geval_local.fields.MAX_CHARACTERS`), and a longer line could
#: exhaust memory.
MOST_IN_A_LINE = 1 << 26
#: Highest expansion of a gzip file within a window of `EXPANSION_BYTES`, or of a part of a workbook: a few megabytes
#: of such repetitive rows could take days to score.
MOST_EXPANSION = 800
EXPANSION_BYTES = 1 << 22
_HEAD_BYTES = 4096
#: Most bytes, in blocks that are not UTF-8, used to guess the encoding.
_JUDGED_BYTES = 1 << 24
_GZIP = b"\x1f\x8b"
#: First bytes of files that are not text, whatever their extension.
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


def open_text(path: File, *, newline: str, encoding: str | None = None, guess: bool = False) -> IO[str]:
    """Open a text file, decoded and decompressed; undecodable bytes become lone surrogates.

    The first bytes determine its encoding, else it is UTF-8; with `guess` it may also be Windows-1252, see
    `is_western`.
    """
    packed = unpacked(path)
    try:
        # Read without moving on: to open a file at an address again would be a request.
        encoding, errors = _decoding(path, packed.peek(_HEAD_BYTES)[:_HEAD_BYTES], encoding, guess=guess)
    except BaseException:
        packed.close()
        raise
    return io.TextIOWrapper(packed, encoding=encoding, errors=errors, newline=newline)


def _decoding(path: File, head: bytes, encoding: str | None, *, guess: bool) -> tuple[str, str]:
    """Decide the encoding of a file by its first bytes, and how its errors are handled."""
    kind = kind_of_no_text(head)
    if kind is not None:
        raise DataError(f"{path} is {kind}, despite its name", hint="Save it as JSONL, CSV or Parquet.")
    if encoding is not None:
        return encoding, "surrogateescape"
    encoding = encoding_of(head)
    if guess and encoding == "utf-8-sig":
        encoding = _guessed(path.resolve() if isinstance(path, Path) else path, *state_of(path))
    if encoding is None:
        raise DataError(
            f"{path} is not text: it contains zero bytes", hint="Save it as JSONL, CSV or Parquet, in UTF-8 or UTF-16."
        )
    # UTF-16 has no byte escapes; a lone surrogate, which UTF-16 can contain, stays.
    return encoding, "surrogateescape" if encoding.startswith("utf-8") else "surrogatepass"


def kind_of_no_text(head: bytes) -> str | None:
    """Name the kind of a binary file by its first bytes; None for a text."""
    return next((kind for start, kind in _NO_TEXT.items() if head.startswith(start)), None)


def encoding_of(head: bytes) -> str | None:
    """Detect the encoding of a text from its first bytes: a byte-order mark, or the zero bytes of UTF-16."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    if b"\0" not in head:
        return "utf-8-sig"
    even, odd = head[0::2].count(0), head[1::2].count(0)
    # Tables and JSON consist largely of ASCII: column names, quotes, commas. In UTF-16 each such character has a zero
    # byte on one side, and almost never on the other.
    if head[:1] != b"\0" == head[1:2] and odd > 1 and even <= 0.1 * odd:
        return "utf-16-le"
    if head[:1] == b"\0" != head[1:2] and even > 1 and odd <= 0.1 * even:
        return "utf-16-be"
    # A few zero bytes are an error of their row, as are those that a broken write leaves behind whole lines; many mean
    # that the file is not text.
    is_cut = b"\0" not in (text := head.rstrip(b"\0")) and text.endswith(b"\n") and text.isascii()
    return "utf-8-sig" if is_cut or even + odd < 0.05 * len(head) else None


#: A character of UTF-8 outside ASCII.
_UTF8 = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_LETTERS = "àáâãäåæçèéêëìíîïñòóôõöøùúûüœÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜŒßÿ"
#: Letters and marks of Western European languages; other bytes of the code page suggest another code page.
_WESTERN = frozenset(f"{_LETTERS}€‚„…‘’“”–—•™‹›\xa0¡¿£§©«»®°±²³´·ºª¼½¾×".encode("cp1252"))
_RUN = re.compile(rb"[\xc0-\xff]+")
#: A mark inside a word suggests a letter of another code page.
_INSIDE = re.compile(rb"[A-Za-z][\x80-\x91\x93-\x9b\x9d-\xbf][A-Za-z]")


def is_western(text: bytes) -> bool:
    """Whether bytes that are not UTF-8 are clearly Windows-1252, which includes Latin-1.

    The bytes contain no UTF-8 character. Nearly all high bytes are Western European letters or marks, marks are not
    inside words, and words do not consist of high bytes, as they do in other alphabets. The package does not guess the
    encoding of texts that fail, such as Polish, Cyrillic, Mac Roman and DOS texts.
    """
    high = text.translate(None, bytes(range(128)))
    if not high or _UTF8.search(text):
        return False
    strange = sum(byte not in _WESTERN for byte in high) + len(_INSIDE.findall(text))
    runs = _RUN.findall(text)
    return strange <= 0.02 * len(high) and sum(len(run) > 2 for run in runs) <= 0.1 * len(runs)


@lru_cache(maxsize=64)
def _guessed(path: File, size: int, changed: int) -> str:
    """Decide whether a file without a byte-order mark is UTF-8 or Windows-1252; log the latter, once per file."""
    decoder, broken, in_line = codecs.getincrementaldecoder("utf-8")(), b"", 0
    with unpacked(path) as file:
        block = file.read(BLOCK)
        while block:
            following = file.read(BLOCK)
            try:
                decoder.decode(block, final=not following)
            except UnicodeDecodeError:
                broken += block
                decoder.reset()
            end = max(block.rfind(b"\n"), block.rfind(b"\r"))
            in_line = in_line + len(block) if end < 0 else len(block) - end - 1
            if len(broken) > _JUDGED_BYTES or in_line > MOST_IN_A_LINE:  # the reader refuses such a line
                break
            block = following
    if not is_western(broken):
        if broken:
            told = "%s is not all UTF-8, nor plainly Windows-1252: rows with other characters get no score; save it as "
            logger.warning(told + "UTF-8, or name its encoding (`encoding=NAME`)", path.name)
        return "utf-8-sig"
    shown = next((word for word in re.findall(r"\w+", broken.decode("cp1252", "replace")) if not word.isascii()), "")
    logger.info("%s is not UTF-8; read as Windows-1252 (%s), unless `encoding` says otherwise", path.name, shown)
    return "cp1252"


def bounded_lines(file: IO[AnyStr], path: object) -> Iterator[AnyStr]:
    """Read the lines of a file, each with its line end; `path` is for messages."""
    number = 0
    while line := file.readline(MOST_IN_A_LINE + 1):
        number += 1
        if len(line) > MOST_IN_A_LINE:
            raise DataError(
                f"{path}, line {number} is longer than {MOST_IN_A_LINE:,} characters",
                hint="Write one row per line, and no text of millions of characters: no judge could read it.",
            )
        yield line


def unpacked(path: File) -> io.BufferedReader:
    """Open a file, of one that is packed its content."""
    file = open_bytes(path)
    if file.peek(2)[:2] == _GZIP or path.name.lower().endswith(".gz"):
        return io.BufferedReader(_Gunzipped(path, file), BLOCK)
    return file


class _Sips(io.RawIOBase):
    """A file read in small pieces, with a count of its bytes, which shows how much of it was decompressed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        piece = self._file.read(1024 if size is None or size < 0 else min(size, 1024))
        self.taken += len(piece)
        return piece

    def close(self) -> None:
        self._file.close()
        super().close()


class _Gunzipped(io.RawIOBase):
    """The content of a gzip file, with an error if it expands suspiciously far.

    It decompresses and measures a window before it returns any of its rows.
    """

    def __init__(self, path: File, file: IO[bytes]) -> None:
        self._path = path
        self._packed = _Sips(file)
        self._whole = gzip.GzipFile(fileobj=self._packed, mode="rb")
        self._window = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._window:
            before, found = self._packed.taken, bytearray()
            while len(found) < EXPANSION_BYTES:
                try:
                    part = self._whole.read1(EXPANSION_BYTES - len(found))
                except (EOFError, OSError, zlib.error):
                    if not found:  # else what is before the damage is returned, and the next window fails
                        raise
                    break
                if not part:
                    break
                found += part
            self._window = memoryview(found)
            if len(found) == EXPANSION_BYTES > MOST_EXPANSION * (self._packed.taken - before):
                raise DataError(
                    f"{self._path} expands to more than {MOST_EXPANSION} times its size",
                    hint="Unpack it with gunzip and look at it; if all of it is meant, give the unpacked file.",
                )
        count = min(len(buffer), len(self._window))
        buffer[:count] = self._window[:count]
        self._window = self._window[count:]
        return count

    def close(self) -> None:
        self._whole.close()
        self._packed.close()
        super().close()
