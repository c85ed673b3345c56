"""Tables of the analyses in a terminal, and their figures as JSON."""

from __future__ import annotations

from geval_local.analysis.tables import Study, Table
from geval_local.cli.output.console import as_options, new_table, note, print_json, print_table, result_console, say

#: The names of rows get at least this many characters, if they have them.
FIRST_WIDTH = 24
#: Columns of words, which may be long; the others contain figures and are never wrapped.
WORDY = ("groups skipped", "items left out", "output", "test")


def show_table(table: Table) -> None:
    """Print a table with its title and notes."""
    from rich.text import Text

    shown = new_table()
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
        if table.sections:
            own, _, name = row[0].partition(": ")
            if own != section:
                shown.add_row(Text(own, "bold"))
            section, name = own, f"  {name}"
        shown.add_row(Text(name), *map(Text, row[1:]))
    console = result_console()
    console.print()
    console.print(Text(as_options(table.title), "bold"))
    print_table(shown)
    for line in table.notes:
        console.print(Text(as_options(line), "dim"))


def show_study(study: Study, *, as_json: bool) -> None:
    """Print what an analysis found, as one JSON object or as text; remarks go to stderr."""
    if as_json:
        print_json(study.to_dict())
    else:
        for line in study.lines():
            say(as_options(line))
        for table in study.tables():
            show_table(table)
    for text, is_warning in study.remarks():
        if is_warning or not as_json:
            note(text, "yellow" if is_warning else "")
