"""Tables of the analyses in a terminal, and their figures as JSON."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, is_dataclass
from typing import Any

from geval_local.analysis.tables import Table, folded
from geval_local.cli.output.console import print_table, result_console
from geval_local.io.text_formats import plain

__all__ = ["as_record", "show_table"]


#: The names of rows get at least this many characters, if they have them.
FIRST_WIDTH = 24
#: Columns of words, which may be long; the others contain figures and are never wrapped.
WORDY = ("groups skipped", "items left out", "output", "test")


def show_table(table: Table, title: str, *, fold: Collection[str] = (), sections: bool = False) -> None:
    """Print a table with its notes.

    Parameters
    ----------
    table : Table
        The first column names the rows.
    title : str
        Title above the table.
    fold : collection of str
        Headers of columns that go into a note where all rows have the same cell, to make room for the others.
    sections : bool
        Whether rows are named ``section: name``; each section's name is then printed once, above its rows.
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = folded(table, fold)
    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, header in enumerate(table.headers):
        if index == 0:
            longest = max((len(row[0]) for row in table.rows), default=0)
            shown.add_column(header, overflow="fold", min_width=min(longest, FIRST_WIDTH))
        else:
            wordy = header in WORDY
            shown.add_column(header, justify="left" if wordy else "right", overflow="fold", no_wrap=not wordy)
    section = ""
    for row in table.rows:
        name = row[0]
        if sections:
            own, _, name = row[0].partition(": ")
            if own != section:
                shown.add_row(Text(own, "bold"))
            section, name = own, f"  {name}"
        shown.add_row(Text(name), *map(Text, row[1:]))
    console = result_console()
    console.print()
    console.print(Text(title, "bold"))
    print_table(shown)
    for line in table.notes:
        console.print(Text(line, "dim"))


def as_record(value: Any) -> Any:
    """Turn results into plain JSON values; an undefined figure (NaN) is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): as_record(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_record(item) for item in value]
    return plain(value)
