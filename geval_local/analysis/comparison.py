"""Which system is better, or how two runs over the same rows differ, after what differs in them has been said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geval_local.analysis.pairs import holds_pairs
from geval_local.analysis.records import ScoredItem, pair
from geval_local.analysis.results import ScoredRun, row_keys
from geval_local.analysis.statistics.agreement import Agreement, agree
from geval_local.analysis.statistics.coefficients import COEFFICIENTS
from geval_local.analysis.tables import Table, interval, number
from geval_local.errors import ConfigurationError
from geval_local.fields import SYSTEM_FIELDS, lookup
from geval_local.grouping import documents_of
from geval_local.interval import Interval, mean_interval

__all__ = [
    "Difference",
    "SystemRows",
    "changed_outputs",
    "check_single_outputs",
    "difference_table",
    "differences",
    "gather",
    "largest_table",
    "unmatched",
    "why_systems",
]

#: Rows of one file alone that are named, and the characters of the longest name; a document may be a whole text.
NAMED, LONGEST_NAME = 10, 40


@dataclass(frozen=True)
class Difference:
    """Difference of two runs on the items that both scored.

    Attributes
    ----------
    mean_first, mean_second : float
        Mean scores on the shared items.
    mean : Interval
        Mean of ``first - second`` in units of the scale, with an interval over documents.
    agreement : Agreement
        Correlations and absolute differences.
    largest : tuple of (str, float, float)
        Key and both scores of the items that differ most, largest difference first; equal items are not listed.
    """

    mean_first: float
    mean_second: float
    mean: Interval
    agreement: Agreement
    largest: tuple[tuple[str, float, float], ...]


def differences(
    first: Sequence[ScoredItem],
    second: Sequence[ScoredItem],
    *,
    count: int = 10,
) -> Difference:
    """Compare two runs item by item.

    Parameters
    ----------
    first, second : sequence of ScoredItem
        Paired by key.
    count : int
        Most items to list.

    Raises
    ------
    DataError
        If keys repeat, or the runs have no scored item in common.
    """
    left, right = pair(first, second, same_human=False)
    a, b = (np.array([item.predicted for item in items]) for items in (left, right))
    order = np.argsort(-np.abs(a - b), kind="stable")[:count]
    return Difference(
        float(a.mean()),
        float(b.mean()),
        mean_interval(a - b, [item.group for item in left]),
        agree(first, second),
        tuple((left[index].key, float(a[index]), float(b[index])) for index in order if a[index] != b[index]),
    )


def difference_table(differences: Mapping[str, Difference]) -> Table:
    """Build a table with one row per metric shared by two runs."""
    rows = tuple(
        (
            name,
            str(d.agreement.n),
            number(d.mean_first),
            number(d.mean_second),
            interval(d.mean),
            number(d.agreement.mean_absolute_difference),
            number(d.agreement.largest_difference),
            *(number(getattr(d.agreement, coefficient)) for coefficient in COEFFICIENTS),
            number(d.agreement.alpha),
            f"{d.agreement.only_first} / {d.agreement.only_second}",
        )
        for name, d in differences.items()
    )
    headers = ("", "n", "A", "B", "A - B", "mean |diff|", "max |diff|", *COEFFICIENTS, "alpha", "A / B alone")
    return Table(headers, rows)


def largest_table(rows: Sequence[tuple[str, float, float, str]]) -> Table:
    """Build a table of the items with the largest difference: key, both scores, start of the output."""
    cells = tuple((key, number(a), number(b), f"{a - b:+.3f}", text) for key, a, b, text in rows)
    return Table(("item", "A", "B", "A - B", "output"), cells)


@dataclass(frozen=True)
class SystemRows:
    """The rows of all systems together.

    Attributes
    ----------
    runs : tuple of ScoredRun
        Where they are from.
    names : tuple of (str or None)
        System of every row of a file, for each file; None where a column of the file names it.
    field : str or None
        That column; None for the usual ones.
    document : str or None
        Field that groups rows into documents; None where rows belong together by id, or by their place.
    grouping : str
        The same in words.
    """

    runs: tuple[ScoredRun, ...]
    names: tuple[str | None, ...]
    field: str | None
    document: str | None
    grouping: str

    def items(self, metric: str, *, human: str | None = None) -> list[ScoredItem]:
        """Scores of one metric, with systems and documents."""
        found: list[ScoredItem] = []
        for run, name in zip(self.runs, self.names, strict=True):
            own = run.items(run.one_metric(metric), human=human, group_by=self.document, system=self.field)
            found += own if name is None else [replace(item, system=name) for item in own]
        return found

    def rows(self) -> list[dict[str, Any]]:
        """All rows as one run's, each with its system, for a page."""
        together: list[dict[str, Any]] = []
        for run, name in zip(self.runs, self.names, strict=True):
            for row in run.rows:
                system = name if name is not None else _writer(row, self.field)
                together.append({**{key: value for key, value in row.items() if key != "system_id"}, "system": system})
        return together


def gather(runs: Sequence[ScoredRun], field: str | None, group_by: str | None) -> SystemRows:
    """Tell which system and which document every row belongs to.

    Parameters
    ----------
    runs : sequence of ScoredRun
        One file with the systems in a column, or one for each system.
    field : str or None
        The column that names the system; given, it holds for all files.
    group_by : str or None
        Field of the document; guessed where it is None.

    Raises
    ------
    ConfigurationError
        If two files would be the same system.
    """
    names: list[str | None] = [None] * len(runs)
    if field is None and len(runs) > 1:
        writers = [_writers(run) for run in runs]
        own = [next(iter(found)) if len(found) == 1 else "" for found in writers]
        distinct = all(own) and len(set(own)) == len(own)
        names = [name if distinct else run.name for name, run in zip(own, runs, strict=True)]
        if len(set(names)) < len(names):
            names = [str(run.path) for run in runs]
        if len(set(names)) < len(names):
            raise ConfigurationError(
                f"{runs[0].path} is given twice", hint="Name one file for each system, or --system FIELD."
            )
    # Guessed from the columns that all have: CSV results may hold fewer.
    common = set.intersection(*(set(run.rows[0]) for run in runs))
    rows = [
        row if group_by else {name: row[name] for name in row if name in common} for run in runs for row in run.rows
    ]
    document, grouping = documents_of(rows, group_by)
    if document is None and group_by is None and len(runs) > 1:
        by_id = all(row_keys(run.rows) != [str(place) for place in range(1, len(run.rows) + 1)] for run in runs)
        same = "id" if by_id else "place in their files"
        grouping = f"rows with the same {same} are taken for one document (a guess; --group-by FIELD changes it)"
    return SystemRows(tuple(runs), tuple(names), field, document, grouping)


def check_single_outputs(runs: Sequence[ScoredRun], metrics: Sequence[str]) -> None:
    """Reject runs of pairs, whose rows are comparisons and belong to no system.

    Raises
    ------
    ConfigurationError
        If one is given.
    """
    for run in runs:
        if any(holds_pairs(run.rows[0], metric) for metric in metrics):
            raise ConfigurationError(
                f"{run.path} holds pairs, and no scores of single outputs",
                hint=f"What they say of the systems: geval-local preferences {run.path}.",
            )


def unmatched(first: Sequence[str], second: Sequence[str], names: tuple[str, str]) -> list[str]:
    """Name what stands in one of two files alone, in words, a line for each.

    Parameters
    ----------
    first, second : sequence of str
        Keys of rows, or documents.
    names : tuple of (str, str)
        Of the files.
    """
    lines = []
    for name, own, others in ((names[0], first, set(second)), (names[1], second, set(first))):
        alone = [key for key in dict.fromkeys(own) if key not in others]
        if alone:
            more = ", ..." if len(alone) > NAMED else ""
            told = [key if len(key) <= LONGEST_NAME else f"{key[: LONGEST_NAME - 1]}…" for key in alone[:NAMED]]
            lines.append(f"only in {name}: {len(alone)} of {len(set(own))}: {', '.join(told)}{more}")
    return lines


def why_systems(first: ScoredRun, second: ScoredRun) -> str | None:
    """Say why two files are taken for the outputs of two systems; None where they are two runs over the same texts."""
    one, other = _writers(first), _writers(second)
    if len(one) == len(other) == 1 and one != other:
        return f"their rows name one system each, {next(iter(one))} and {next(iter(other))}"
    pairs = _paired_outputs(first, second)
    if not pairs:
        return "no id is in both files"
    # A text that a CSV file does not hold says nothing of its system.
    known = [pair for pair in pairs if None not in pair]
    changed = sum(one != other for one, other in known)
    if changed > len(known) / 2:
        return f"{changed} of {len(known)} outputs differ under the same id or row number"
    return None


def changed_outputs(first: ScoredRun, second: ScoredRun) -> int:
    """Count the rows that bear the same key and hold another text.

    A CSV file of results need not hold the texts; then the content of the input that was scored says the same.
    """
    hashes = {None if run.manifest is None else run.manifest.input_sha256 for run in (first, second)}
    is_same_input = len(hashes) == 1 and None not in hashes
    pairs = _paired_outputs(first, second)
    return sum(one != other and not (is_same_input and None in (one, other)) for one, other in pairs)


def _paired_outputs(first: ScoredRun, second: ScoredRun) -> list[tuple[str | None, str | None]]:
    """Pair the outputs of the rows that bear the same key in both files."""
    texts = [dict(zip(row_keys(run.rows), run.outputs(), strict=True)) for run in (first, second)]
    return [(text, texts[1][key]) for key, text in texts[0].items() if key in texts[1]]


def _writers(run: ScoredRun) -> set[str]:
    """Systems that the usual columns name; empty where a row names none."""
    found = {_writer(row, None) for row in run.rows}
    return set() if None in found else {str(name) for name in found}


def _writer(row: Mapping[str, Any], field: str | None) -> str | None:
    named = (lookup(row, name) for name in ((field,) if field is not None else SYSTEM_FIELDS))
    return next((str(name) for name in named if name is not None), None)
