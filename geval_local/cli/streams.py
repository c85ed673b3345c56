"""Handling of closed, full or abandoned standard output and standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from geval_local.errors import OutputError

__all__ = ["guarded_streams", "open_closed_streams"]

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


class _Stream:
    """A text stream with its own error handling."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Results(_Stream):
    """stdout: a failed write raises a plain error, and keeps raising it if it is ignored."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._error: OutputError | None = None

    def write(self, text: str) -> int:
        with self._in_words():
            return int(self._stream.write(text))

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


class _Messages(_Stream):
    """stderr: write errors are ignored, so that the work goes on."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

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
