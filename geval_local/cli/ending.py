"""The end of a command: errors become messages and exit codes here."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from geval_local import __version__
from geval_local.cli.output.console import note, show_error
from geval_local.cli.streams import guarded_streams
from geval_local.errors import ConfigurationError, GevalError, Interrupted, OutputError, first_line, is_panic

__all__ = ["EXIT_CODES", "EXIT_CONFIGURATION", "EXIT_DEFECT", "EXIT_INTERRUPTED", "Verbs"]

EXIT_CONFIGURATION = 2
EXIT_INTERRUPTED = 3
EXIT_DEFECT = 70
EXIT_CODES = (
    "Exit codes: 0 done; 1 a gate failed (--fail-under, --max-unscored) or nothing could be scored; 2 usage or "
    "configuration; 3 interrupted, and the command to continue is printed; 70 unexpected (--debug shows where)."
)
DEBUG = "--debug"
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
            except GevalError as error:
                show_error(error)
                code = EXIT_CONFIGURATION
        raise SystemExit(code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the verb; --debug may appear anywhere."""
        ctx.obj = shlex.join(["geval-local", *(arg for arg in args if arg != DEBUG)])
        own = args[: args.index("--")] if "--" in args else args
        if DEBUG in own:
            args = [DEBUG, *(arg for arg in own if arg != DEBUG), *args[len(own) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except _OWN_TO_TYPER:
            raise
        except KeyboardInterrupt as stop:
            if isinstance(stop, Interrupted) and stop.directory is not None:
                command = shlex.join(["geval-local", "resume", str(stop.directory)])
                note(f"interrupted; finished work is kept. Continue with:\n  {command}")
            else:
                note(f"interrupted; run it again with:\n  {ctx.obj}")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            if ctx.params.get("debug"):
                import traceback

                note("".join(traceback.format_exception(error)).rstrip(), "dim")
            raise typer.Exit(_told(error, ctx.obj)) from error


def _check_surroundings(arguments: Sequence[str]) -> None:
    """Reject unusable paths before anything is done."""
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
    if isinstance(error, GevalError):
        show_error(error)
        return EXIT_CONFIGURATION
    if isinstance(error, OSError) and error.errno is not None:
        # Errors of the operating system: full disk, name too long, directory without permission.
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        note(f"error: {where}{error.strerror or error}", "bold red")
        return EXIT_CONFIGURATION
    if is_panic(error):  # a text of a row is met where it is encoded
        note(f"error: the tokenizer cannot be used: {first_line(error)}", "bold red")
        note("Its tokenizer.json is damaged, or not made for this library; fetch it again with the weights.")
        return EXIT_CONFIGURATION
    text = " ".join(str(error).split())
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    note(f"error: unexpected {type(error).__name__}{shown and ': ' + shown}", "bold red")
    _, _, rest = command.partition(" ")
    note(f"This is a defect of geval-local {__version__}. To see where it is:\n  geval-local {DEBUG} {rest}")
    return EXIT_DEFECT
