"""Tables of the analyses in a terminal, and their figures as JSON."""

from __future__ import annotations

from geval_local.analysis.tables import Study, Table
from geval_local.cli.output.console import FIGURE, FOLDED, as_options, note, print_json, print_rows, result_console, say

#: A column of words, which may be long; the others contain figures and are never wrapped.
WORDY = "output"


def show_table(table: Table) -> None:
    """Print a table with its title and notes."""
    from rich.text import Text

    rows: list[list[str]] = []
    section = ""
    for name, *figures in table.rows:
        if table.sections:
            own, _, name = name.partition(": ")
            rows += [[own]] if own != section else []
            section, name = own, f"  {name}"
        rows.append([name, *figures])
    first, *others = table.headers
    console = result_console()
    console.print()
    console.print(Text(as_options(table.title), "bold"))
    print_rows([(first, FOLDED), *((name, FOLDED if name == WORDY else FIGURE) for name in others)], rows)
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
