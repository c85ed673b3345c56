"""Where words go: results to stdout, messages, log and progress to stderr."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from geval_local.errors import GevalError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["note", "print_json", "print_table", "result_console", "show_error", "show_log", "show_progress"]

#: Width of tables where the output is no terminal: wide enough that no figure is cut.
WIDTH = 120


def result_console() -> Console:
    """Make a console on stdout."""
    return _console(stderr=False)


def print_table(table: Table) -> None:
    """Print a table to stdout."""
    result_console().print(table)


def print_json(record: object) -> None:
    """Print one JSON object to stdout, on one line."""
    typer.echo(json.dumps(record, ensure_ascii=False, allow_nan=False))


def note(text: str, style: str = "") -> None:
    """Print a message to stderr, unwrapped, so that paths and commands can be copied."""
    from rich.text import Text

    _console(stderr=True).print(Text(text, style), soft_wrap=True)


def show_error(error: GevalError) -> None:
    """Print an error of the package to stderr: what is wrong, and what to do about it. No traceback."""
    note(f"error: {error.message}", "bold red")
    if error.hint:
        note(error.hint)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        name = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        note(name + self.format(record), "yellow" if name else "")


def show_log() -> None:
    """Send the package's log to stderr, without timestamps."""
    logger = logging.getLogger("geval_local")
    if not any(isinstance(handler, _Handler) for handler in logger.handlers):
        logger.addHandler(_Handler())
    logger.setLevel(logging.INFO)


@contextmanager
def show_progress(label: str, total: int | None) -> Iterator[Any]:
    """Show a progress bar with rate and remaining time on stderr, only where stderr is a terminal.

    Yields
    ------
    callable
        To be called with the number of finished units.
    """
    from rich import progress

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> str:
            return f"{task.speed:.1f}/s" if task.speed else ""

    console = _console(stderr=True)
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return _kept_console(stderr, Console(stderr=stderr).is_terminal)


@cache
def _kept_console(stderr: bool, terminal: bool) -> Console:
    # One console per stream, so that messages appear above a running progress bar and not in the midst of it.
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, width=None if terminal else WIDTH)
