"""Written reasons, on a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geval_local.cli.output.console import note, print_json, print_table
from geval_local.fields import counted

#: Reasons that are printed; the file has all.
REASONS_SHOWN = 10


def show_reasons(file: Path, metric: str, *, as_json: bool, is_new: bool = True) -> None:
    """Print the reasons in a file, and on stderr where they are."""
    records = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    if as_json:
        print_json({"metric": metric, "output": str(file), "reasons": records})
    else:
        _show_table(records, metric)
    held = counted(len(records), "reason")
    note(f"wrote {held} to {file}" if is_new else f"{file} is complete: {held}; --overwrite writes them again")


def _show_table(records: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Print the first reasons as a table, and on stderr how many are missing, cut off, or without a citation."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("row", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("label", no_wrap=True)
    table.add_column(f"reason: {metric}", overflow="fold")
    for record in records[:REASONS_SHOWN]:
        told = record["reason"] or f"none: {record['error']}"
        name = str(record.get("id", record["row"]))
        table.add_row(*map(Text, (name, f"{record['score']:.3f}", str(record["label"]), told)))
    print_table(table)
    written = [record for record in records if record["reason"]]
    uncited = sum(not record["cites_text"] for record in written)
    cut = sum(not record["is_complete"] for record in written)
    if len(written) < len(records):
        note(f"{len(records) - len(written)} of {len(records)} rows have no reason; the file says why", "yellow")
    if cut:
        note(f"{cut} of {len(written)} reasons did not come to an end within --tokens, or repeat themselves", "yellow")
    if uncited:
        note(f"{uncited} of {len(written)} reasons cite nothing of the text: they may fit any text", "yellow")
