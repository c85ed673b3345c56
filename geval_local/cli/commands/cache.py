"""``geval-local cache``: show or clear the cache of earlier runs."""

from __future__ import annotations

from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.output.console import note, print_json, result_console


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Forget everything.")] = False, as_json: options.Json = False
) -> None:
    """Show the cache of judges' figures, or clear it.

    Scoring a prompt that the same judge has read before takes its figures from here; `score --no-cache` does not.
    """
    from geval_local.runs.cache import OutcomeCache

    kept = OutcomeCache()
    entries, size = kept.size()
    if clear:
        kept.clear()
    kept.close()
    if as_json:
        print_json({"path": str(kept.path), "entries": entries, "bytes": size, "cleared": clear})
        return
    verb = "cleared" if clear else "kept"
    result_console().print(
        f"{entries} figures {verb}, {size / 1e6:.1f} MB in {kept.path}", markup=False, soft_wrap=True
    )
    if entries and not clear:
        note("forget them with: geval-local cache --clear")
