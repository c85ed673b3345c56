"""The known judges, on a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from geval_local.cli.output.audits import short
from geval_local.cli.output.console import print_table
from geval_local.errors import GevalError

if TYPE_CHECKING:
    from geval_local.models.registry import JudgeEntry, Registry


#: Upper ends of the groups of `list`, GB (1e9 bytes): common GPU sizes.
MEMORY_GROUPS = (4, 8, 16, 24, 48, 80)


def show_registry(registry: Registry, present: Mapping[str, bool], files: Mapping[str, float | None]) -> None:
    """Print the judges by the memory that their weights need, which are `present`, and how large their `files` are."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("judge", "parameters", "memory", "context", "kind", "licence", "here"):
        figure = heading in ("parameters", "memory", "context")
        # Only a licence may be folded: a name or a figure that is cut cannot be copied.
        table.add_column(heading, justify="right" if figure else "left", no_wrap=heading != "licence")
    for heading, entries in _by_memory(registry.judges.values()):
        table.add_section()
        table.add_row(f"[bold]{heading}[/bold]")
        for entry in entries:
            table.add_row(
                "  " + entry.name + (" (default)" if entry.name == registry.default else ""),
                _known(entry, "parameters", short),
                "-" if (gb := files[entry.name] or entry.memory_gb) is None else _size(gb),
                _known(entry, "context", str),
                _kind(entry) or "-",
                _known(entry, "license", str),
                "yes" if present[entry.name] else "no",
            )
    print_table(table)


def _by_memory(entries: Iterable[JudgeEntry]) -> Iterator[tuple[str, list[JudgeEntry]]]:
    """Yield the non-empty groups, smallest first: heading, and judges by memory."""
    known = sorted((entry for entry in entries if entry.memory_gb is not None), key=_memory)
    for lower, upper in pairwise((0.0, *MEMORY_GROUPS, math.inf)):
        group = [entry for entry in known if lower < _memory(entry) <= upper]
        if group:
            yield f"weights up to {upper:g} GB" if upper < math.inf else f"weights above {lower:g} GB", group
    unknown = [entry for entry in entries if entry.memory_gb is None]
    if unknown:
        yield "weights of unknown size", unknown


def files_gb(entry: JudgeEntry) -> float | None:
    """Return the size of a judge's weights on this machine, which is the memory that they take on a CPU."""
    from geval_local.models.fingerprint import weight_files
    from geval_local.models.registry import local_directory

    directory = local_directory(entry)
    try:
        return None if directory is None else sum(file.stat().st_size for file in weight_files(directory)) / 1e9
    except (GevalError, OSError):  # loading it says what is wrong
        return None


def _memory(entry: JudgeEntry) -> float:
    return math.inf if entry.memory_gb is None else entry.memory_gb


def _size(gb: float) -> str:
    return f"{gb:.1f} GB" if gb >= 1 else f"{gb * 1e3:.0f} MB"


def _known(entry: JudgeEntry, key: str, write: Callable[[Any], str]) -> str:
    value = getattr(entry, key)
    return "-" if value is None else write(value) + ("?" if key in entry.unconfirmed else "")


def _kind(entry: JudgeEntry) -> str:
    """Describe a judge's purpose, and its layers if they are unusual."""
    parts = ["for judging"] if entry.made_for == "judging" else []
    parts += ["hybrid"] if entry.hybrid else []
    if entry.active_parameters is not None:
        parts.append(f"MoE, {short(entry.active_parameters)} used")
    return ", ".join(parts + ([entry.quantization] if entry.quantization else []))
