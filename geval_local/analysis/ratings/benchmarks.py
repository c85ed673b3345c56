"""The published benchmark files, read unchanged: rated dimensions, their presets, and grouping.

Published figures are never recomputed, and always marked: Liu et al. (2023), "G-Eval: NLG Evaluation using GPT-4 with
Better Human Alignment", EMNLP, arXiv:2303.16634. All of it is in ``benchmarks.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from geval_local.errors import ConfigurationError
from geval_local.statistics.levels import Level
from geval_local.yaml_text import load_yaml


@dataclass(frozen=True)
class Benchmark:
    """Layout of a benchmark's file, and the way its authors report agreement."""

    #: Name on the command line.
    name: str
    #: Dimension -> the preset metric that rates it; None where a rating has no preset.
    dimensions: Mapping[str, str | None]
    #: Level of the paper's table.
    level: Level
    #: Columns of the paper's table, in order.
    columns: tuple[str, ...]
    #: Field of a metric -> field of the file.
    fields: Mapping[str, str]
    #: The paper's table: its columns, the numbers of every system, and a note.
    table: Mapping[str, Any] = field(repr=False)
    #: Field that holds the document; None if every row is a separate document.
    group_field: str | None = None
    #: Dimension -> its column in the paper's table, where that has another name.
    published: Mapping[str, str] = field(default_factory=dict)
    #: Dimension -> the scale of its ratings, where that is not its preset's.
    rated_on: Mapping[str, str] = field(default_factory=dict)


_FILE = load_yaml(files("geval_local.analysis.ratings").joinpath("benchmarks.yaml").read_text(encoding="utf-8"))[0]
BENCHMARKS = TypeAdapter(dict[str, Benchmark]).validate_python({name: {"name": name, **_FILE[name]} for name in _FILE})
#: The two halves of QAGS, which the paper's table has as columns: `qags` tells by the file which one it is.
QAGS_HALVES = ("cnn", "xsum")
BENCHMARKS |= {f"qags-{half}": replace(BENCHMARKS["qags"], published={"consistency": half}) for half in QAGS_HALVES}


def benchmark(name: str) -> Benchmark:
    """Find a benchmark by name."""
    if name not in BENCHMARKS:
        raise ConfigurationError(f"there is no benchmark {name!r}", hint=f"Choose one of: {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


@dataclass(frozen=True)
class PublishedRow:
    """One system of a published table."""

    system: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class PublishedTable:
    """A published table."""

    benchmark: str
    coefficient: str
    level: str
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    note: str
    citation: str = "Liu et al. (2023), arXiv:2303.16634"


def published_table(name: str) -> PublishedTable:
    """Find the paper's table for a benchmark, of Spearman's correlations."""
    layout = benchmark(name)
    columns = tuple(layout.table["columns"])
    rows = []
    for system, numbers in layout.table["rows"].items():
        pairs = zip(columns, numbers, strict=True)
        rows.append(PublishedRow(system, {column: value for column, value in pairs if value is not None}))
    return PublishedTable(layout.name, "spearman", layout.level, columns, tuple(rows), layout.table["note"])
