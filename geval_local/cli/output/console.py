"""Consoles: results to stdout; messages, log and progress to stderr. Control characters of data are escaped."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import IO, TYPE_CHECKING, Any

import typer

from geval_local.errors import GevalError
from geval_local.fields import visible
from geval_local.options import in_options
from geval_local.wording import in_yaml, without_secrets

if TYPE_CHECKING:
    from rich.console import Console

#: Line width if the output is not a terminal; tables are then as wide as their content.
WIDTH = 120
#: Wider than any table.
_UNLIMITED = 1_000_000


def result_console() -> Console:
    """Create a console on stdout."""
    return _console(stderr=False)


def message_console() -> Console:
    """Create a console on stderr."""
    return _console(stderr=True)


#: Key of a layout: on a narrow terminal, the column with the largest number is dropped first.
DROPPED = "dropped"
#: Least width that a column of words keeps before others are dropped for it.
_WORDS = 14
#: Layouts of columns: words; texts that users copy, never wrapped; figures.
FOLDED: dict[str, Any] = {"overflow": "fold"}
WHOLE: dict[str, Any] = {"no_wrap": True}
FIGURE: dict[str, Any] = {"no_wrap": True, "justify": "right"}


def print_rows(
    columns: Iterable[tuple[str, Mapping[str, Any]]], rows: Iterable[Iterable[str]], *, narrow: bool = True
) -> None:
    """Print rows of texts to stdout as a table; columns are headings, each with its layout.

    In a file or a pipe the table has all its columns at any width. On a narrow terminal, columns whose layout allows it
    are left out and named on stderr. If that is not enough, each row becomes two lines, the name and the figures: a
    name that is cut cannot be copied. A `narrow` table fits 80 columns.
    """
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    listed = list(columns)
    held = [[*row, *[""] * len(listed)][: len(listed)] for row in rows]  # the heading of a group has one cell
    shown, console = list(range(len(listed))), result_console()

    def laid_out(most: int | None = None) -> Table:
        """Lay out the shown columns; columns of words get `most` characters at most."""
        table = Table(
            box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0) if narrow else (0, 1), pad_edge=not narrow, show_edge=not narrow
        )
        for heading, layout in (listed[place] for place in shown):
            own = {key: value for key, value in layout.items() if key != DROPPED}
            if most is not None and not own.get("no_wrap"):
                own["max_width"] = most
            table.add_column(Text(heading), **own)
        for row in held:
            table.add_row(*(Text(row[place]) for place in shown))
        return table

    def width(most: int | None = None) -> int:
        """Measure the least width at which no figure is cut and words keep `most` characters."""
        return Measurement.get(console, console.options.update(width=_UNLIMITED), laid_out(most)).maximum

    if not console.is_terminal:
        console.width = max(WIDTH, width())
        try:
            console.print(laid_out())
        finally:
            console.width = WIDTH
        return
    while width(_WORDS) > console.width:
        free = [place for place in shown if DROPPED in listed[place][1]]
        if not free:
            _print_stacked([listed[place][0] for place in shown], [[row[place] for place in shown] for row in held])
            break
        shown.remove(max(free, key=lambda place: listed[place][1][DROPPED]))
    else:
        console.print(laid_out())
    if left_out := [heading for place, (heading, _) in enumerate(listed) if place not in shown]:
        note(f"left out at this width: {', '.join(left_out)}", "dim")


def _print_stacked(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as its name and, below it, its figures."""
    for name, *figures in rows:
        say(name)
        told = [f"{heading} {one}" for heading, one in zip(headings[1:], figures, strict=True) if one]
        if told:
            say(f"  {'; '.join(told)}", wrap=True)


def say(text: str, *, wrap: bool = False) -> None:
    """Print a line to stdout."""
    result_console().print(text, markup=False, soft_wrap=not wrap)


def print_json(record: object) -> None:
    """Print one JSON object to stdout, on one line; in ASCII if stdout supports no more, or a character is none."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        is_plain = text.isprintable()
    except UnicodeEncodeError:
        is_plain = False
    typer.echo(text if is_plain else json.dumps(record, allow_nan=False))


def show_text(text: str) -> None:
    """Print a text to stdout as it is, unwrapped."""
    typer.echo(visible(text))


#: Parameter of the library -> option of the verb that runs, and whether it takes no value.
OPTIONS: dict[str, tuple[str, bool]] = {}
#: The command line, as the user can type it again.
_GIVEN = [""]


def set_verb(parameters: Iterable[Any], command: str = "") -> None:
    """Store the options of the running verb, by their own names and by its parameters' names in Python."""
    _GIVEN[:] = [command]
    OPTIONS.clear()
    for one in parameters:
        for option in [name for name in one.opts if name.startswith("--")][:1]:
            own = option.removeprefix("--").replace("-", "_")
            OPTIONS.update(dict.fromkeys((own, one.name), (option, getattr(one, "is_flag", False))))


def command_given() -> str:
    """Return the running command."""
    return _GIVEN[0]


def as_options(text: str) -> str:
    """Write parameters as options of the running verb; others become keys of the evaluation file in ``run``."""
    if "overrides" in OPTIONS:  # `run` reads everything else from its file
        return in_yaml(in_options(text, OPTIONS, others=False))
    return in_options(text, OPTIONS)


def note(text: str, style: str = "") -> None:
    """Print a message to stderr, unwrapped, so that paths and commands can be copied."""
    from rich.text import Text

    _console(stderr=True).print(Text(without_secrets(as_options(text)), style), soft_wrap=True)


#: Whether `detail` prints.
_shows_details = False


def show_details(asked: bool) -> None:
    """Show what is as usual too: ``--verbose``."""
    global _shows_details
    _shows_details = asked


def detail(text: str, *, unusual: bool = False) -> None:
    """Print a dim message to stderr that a user needs only if it is unusual, or by ``--verbose``."""
    if unusual or _shows_details:
        note(text, "dim")


def show_error(error: GevalError) -> None:
    """Print an error of the package to stderr with its hint, without a traceback."""
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


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return _kept_console(stderr, Console(stderr=stderr).is_terminal, os.environ.get("COLUMNS"))


@cache
def _kept_console(stderr: bool, terminal: bool, columns: str | None) -> Console:
    # Rich reads COLUMNS once. One console per stream, so that messages appear above a running progress bar and not
    # within it.
    from rich.console import Console
    from rich.segment import Segment
    from rich.text import Text

    class Shown(Console):
        """A console that writes control characters of texts as escapes; only its own sequences reach the terminal."""

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            if isinstance(renderable, Text) and visible(renderable.plain) != renderable.plain:
                renderable = renderable.copy()
                renderable.plain = visible(renderable.plain)  # before it is laid out: escapes are wider
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(visible(segment.text), segment.style)

        @property  # type: ignore[misc]
        def file(self) -> IO[str]:
            return getattr(super().file, "rendered", super().file)  # see `geval_local.cli.ending`

    return Shown(stderr=stderr, highlight=False, width=None if terminal else WIDTH)
