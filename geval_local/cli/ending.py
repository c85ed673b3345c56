"""The end of a command: errors become messages and exit codes here."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from geval_local import __version__
from geval_local.cli.output.console import note, show_error
from geval_local.errors import ConfigurationError, GevalError, Interrupted, OutputError, first_line, is_panic
from geval_local.fields import visible
from geval_local.options import FORMER_VERBS

#: Terminal sequences that help texts and progress bars of libraries need.
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


class EscapedStream:
    """A text stream with its own handling of errors, in which control characters are visible."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def guarded(self) -> AbstractContextManager[None]:
        """Handle the errors of a write."""
        raise NotImplementedError

    def write(self, text: str) -> int:
        """Write text of any origin."""
        if not text.isprintable():
            parts = enumerate(_STYLES.split(text))
            text = "".join(part if place % 2 else visible(part) for place, part in parts)
        return self.rendered.write(text)

    def flush(self) -> None:
        """Flush the buffer."""
        with self.guarded():
            self._stream.flush()

    @property
    def rendered(self) -> _Rendered:
        """The same stream, for text whose control characters come from this package."""
        return _Rendered(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Rendered:
    """A stream that writes text unchanged."""

    def __init__(self, stream: EscapedStream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._stream.guarded():
            self._stream._stream.write(text)
        return len(text)


class ClosedPipeError(OutputError):
    """The reader of stdout is gone, such as `head` after its last line; this is no failure."""


class _Results(EscapedStream):
    """stdout: a failed write raises a plain error, and keeps raising it if it is ignored."""

    _error: OutputError | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
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
        if isinstance(error, BrokenPipeError):
            return ClosedPipeError(str(error))
        return OutputError(f"cannot write to stdout: {error.strerror or error}", hint=_REMEDY)


class _Messages(EscapedStream):
    """stderr: write errors are ignored, so that the work continues."""

    def guarded(self) -> AbstractContextManager[None]:
        return contextlib.suppress(OSError)


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


EXIT_CONFIGURATION = 2
EXIT_INTERRUPTED = 3
EXIT_DEFECT = 70
#: Exit code that a shell reports for a program that a closed pipe ended.
EXIT_CLOSED_PIPE = 141
EXIT_CODES = (
    "Exit codes: 0 done; 1 a gate failed (--fail-under, --fail-over, --fail-slice-under, --max-unscored, --label-mass; "
    "`gate`; an evaluation file) or nothing could be scored; 2 usage or configuration; 3 interrupted, and the command "
    "to continue is printed; 70 unexpected (--debug shows where)."
)
DEBUG, VERBOSE = "--debug", ("--verbose", "-v")
#: Most characters shown of an unexpected error.
_SHOWN = 300
#: Exceptions that typer uses internally; the last is the base of its usage errors, which has no public name.
_OWN_TO_TYPER: tuple[type[BaseException], ...] = (typer.Exit, typer.Abort, typer.BadParameter.__mro__[-4])


class Verbs(TyperGroup):
    """The verbs of the command line; errors are printed without a traceback."""

    def main(self, args: Sequence[str] | None = None, *given: Any, **named: Any) -> Any:
        """Run a command, and exit."""
        arguments = list(sys.argv[1:] if args is None else args)
        code: Any = 0
        with guarded_streams():
            try:
                if sys.stdout is None:
                    raise OutputError("stdout is closed", hint="Send it to a file, or to /dev/null.")
                _check_surroundings(arguments)
                try:
                    super().main(arguments, *given, **named)
                except SystemExit as done:
                    code = done.code
                sys.stdout.flush()
            except ClosedPipeError:
                code = EXIT_CLOSED_PIPE
            except GevalError as error:
                show_error(error)
                code = EXIT_CONFIGURATION
            if code not in (0, 1):
                _end_without_verdict(arguments)
        raise SystemExit(code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the verb; --debug and --verbose may appear anywhere."""
        ctx.obj = shlex.join(["geval-local", *(arg for arg in args if arg != DEBUG)])
        own = args[: args.index("--")] if "--" in args else args
        anywhere = [arg for arg in own if arg in (DEBUG, *VERBOSE)]
        args = [*anywhere, *(arg for arg in own if arg not in anywhere), *args[len(own) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except _OWN_TO_TYPER:
            raise
        except BaseException as error:
            stop = _interruption(error)
            if stop is None and not isinstance(error, Exception) and not is_panic(error):
                raise
            if stop is not error and ctx.params.get("debug"):
                import traceback

                note("".join(traceback.format_exception(error)).rstrip(), "dim")
            if stop is None:
                raise typer.Exit(_told(error, ctx.obj)) from error
            if stop is not error:
                note(f"with it failed: {first_line(error)}", "dim")
            if isinstance(stop, Interrupted) and stop.directory is not None:
                command = shlex.join(["geval-local", "resume", str(stop.directory)])
                note(f"interrupted; finished work is kept. Continue with:\n  {command}")
            else:
                note(f"interrupted; run it again with:\n  {ctx.obj}")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _interruption(error: BaseException) -> KeyboardInterrupt | None:
    """Find the interruption that caused an error: a library may turn it into another, such as a failed import."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__context__  # the error in progress, whatever the code names as cause
    return found


def _end_without_verdict(arguments: Sequence[str]) -> None:
    """Let no report of an earlier run stay green, also if the options cannot be read."""
    from geval_local.evaluation.gate_reports import NO_VERDICT, UNREAD, begin

    for place, argument in enumerate(arguments):
        name, equals, file = argument.partition("=")
        if name in ("--junit", "--summary") and (files := [file] if equals else arguments[place + 1 : place + 2]):
            report = Path(files[0])
            with contextlib.suppress(GevalError, OSError, UnicodeDecodeError):
                if not (report.exists() and NO_VERDICT in report.read_text(encoding="utf-8")):
                    begin(report if name == "--summary" else None, report if name == "--junit" else None, UNREAD)


def _check_surroundings(arguments: Sequence[str]) -> None:
    """Reject unusable paths, and verbs of earlier versions, before anything is done."""
    verb = next((one for one in arguments if not one.startswith("-")), "")
    if verb in FORMER_VERBS:
        raise ConfigurationError(f"the verb {verb} is called {FORMER_VERBS[verb]} now")
    try:
        directory = os.getcwd()
    except OSError as error:
        raise ConfigurationError(
            f"the working directory cannot be used: {error.strerror}", hint="It was deleted or moved: cd elsewhere."
        ) from error
    for what, text in (("the working directory", directory), *(("the argument", argument) for argument in arguments)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(text).decode(errors="backslashreplace")
            raise ConfigurationError(
                f"{what} {shown!r} is not UTF-8, and names are kept in files that are",
                hint="Give the file or directory a name in UTF-8, or go there by a link that has one.",
            ) from error


def _told(error: BaseException, command: str) -> int:
    """Print an error, and return the exit code."""
    if isinstance(error, ClosedPipeError):
        return EXIT_CLOSED_PIPE
    if isinstance(error, GevalError):
        show_error(error)
        return EXIT_CONFIGURATION
    if isinstance(error, OSError) and error.errno is not None:
        # Errors of the operating system: full disk, name too long, directory without permission.
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        note(f"error: {where}{error.strerror or error}", "bold red")
        return EXIT_CONFIGURATION
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # Path.resolve() before Python 3.13
        note(f"error: {error}", "bold red")
        note("A symbolic link there leads back to itself; give the file that is meant.")
        return EXIT_CONFIGURATION
    if is_panic(error):  # the encoder handles panics over the text of a row
        note(f"error: the tokenizer cannot be used: {first_line(error)}", "bold red")
        note("Its tokenizer.json is damaged, or not made for this library; fetch it again with the weights.")
        return EXIT_CONFIGURATION
    text = " ".join(str(error).split())
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    note(f"error: unexpected {type(error).__name__}{shown and ': ' + shown}", "bold red")
    _, _, rest = command.partition(" ")
    note(f"This is a defect of geval-local {__version__}. To see where it is:\n  geval-local {DEBUG} {rest}")
    return EXIT_DEFECT
