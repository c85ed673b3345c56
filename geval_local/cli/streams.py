"""Standard output and standard error: closed, full or abandoned; and no text of others commands a terminal.

All that a command shows passes here. What our own consoles have laid out (`geval_local.cli.output.console`) is free of
control characters but their own, and passes as `Stream.rendered`; of anything else only colours and returns are left.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from geval_local.errors import OutputError
from geval_local.fields import visible

__all__ = ["Stream", "guarded_streams", "open_closed_streams"]

#: What help texts and progress bars of libraries need.
_STYLES = re.compile(r"(\x1b\[[0-9;]*m|\r)")

_REMEDY = "Results can go into a file: -o FILE where the command has it, or > FILE."


def open_closed_streams() -> None:
    """Open closed ones of stdin, stdout and stderr on the null device.

    Otherwise the next opened file, such as a database, would get the descriptor, and output to stdout would go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


class Stream:
    """A text stream with its own error handling, in which control characters are visible."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text of any origin."""
        if not text.isprintable():
            parts = enumerate(_STYLES.split(text))
            text = "".join(part if place % 2 else visible(part) for place, part in parts)
        self.write_rendered(text)
        return len(text)

    def write_rendered(self, text: str) -> None:
        """Write text whose control characters are ours."""
        raise NotImplementedError

    @property
    def rendered(self) -> _Rendered:
        """The same stream, for text whose control characters are ours."""
        return _Rendered(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Rendered:
    """A stream that changes nothing."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write_rendered(text)
        return len(text)


class _Results(Stream):
    """stdout: a failed write raises a plain error, and keeps raising it if it is ignored."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._error: OutputError | None = None

    def write_rendered(self, text: str) -> None:
        with self._in_words():
            self._stream.write(text)

    def flush(self) -> None:
        with self._in_words():
            self._stream.flush()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        if self._error is not None:
            raise self._error
        try:
            yield
        except OSError as error:
            self._error = self._failure(error)
            raise self._error from error

    def _failure(self, error: OSError) -> OutputError:
        # The buffered rest would fail again when the interpreter exits.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        return OutputError(f"cannot write to stdout: {error.strerror or error}", hint=_REMEDY)


class _Messages(Stream):
    """stderr: write errors are ignored, so that the work goes on."""

    def write_rendered(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Write results to stdout or raise a plain error, and messages to stderr if possible."""
    before = sys.stdout, sys.stderr
    if hasattr(sys.stdout, "reconfigure"):
        # Characters that a terminal lacks are escaped; JSON is then written in ASCII.
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is not None:
        sys.stdout = _Results(sys.stdout)
    sys.stderr = _Messages(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
