"""A table of text: headers, rows and notes, and the format of figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from geval_local.io.columns import plain
from geval_local.statistics.coefficients import ALL_COEFFICIENTS
from geval_local.statistics.correlation import Agreement, Correlation
from geval_local.statistics.interval import Interval
from geval_local.statistics.significance import Comparison

#: Columns of tests that are often the same in all rows.
FOLDED_TESTS = ("items / documents", "kept by each")
_Row = TypeVar("_Row")
_Said = TypeVar("_Said")
#: Coefficients in tables: the compared one, or all.
Columns = Literal["one", "all"]


def columns_of(columns: Columns, coefficient: str) -> Sequence[str]:
    """Give the coefficients that a table shows."""
    return ALL_COEFFICIENTS if columns == "all" else (coefficient,)


@dataclass(frozen=True)
class Table:
    """Headers, rows of cells, and the notes under the table."""

    #: One per column; the first column names the rows, the others are aligned to the right.
    headers: tuple[str, ...]
    #: As many cells as headers.
    rows: tuple[tuple[str, ...], ...]
    #: One line each.
    notes: tuple[str, ...] = ()
    #: Title above the table; empty for none.
    title: str = ""
    #: Whether rows are named ``section: name``; the table then shows each section's name once, above its rows.
    sections: bool = False

    @classmethod
    def of(cls, headers: Sequence[str | None], rows: Iterable[Sequence[Any]], notes: Iterable[str] = ()) -> Table:
        """Format every cell by its type, see `cell`; columns whose header is None are skipped."""
        kept = [index for index, header in enumerate(headers) if header is not None]
        cells = tuple(tuple(cell(row[index]) for index in kept) for row in rows)
        return cls(tuple(str(headers[index]) for index in kept), cells, tuple(notes))

    @classmethod
    def over(
        cls, named: Mapping[str, _Row], columns: Mapping[str, Callable[[_Row], Any]], notes: Iterable[str] = ()
    ) -> Table:
        """Make one row per name, with one value per column."""
        rows = [(name, *(said(one) for said in columns.values())) for name, one in named.items()]
        return cls.of(("", *columns), rows, notes)

    def titled(self, title: str, *, fold: Collection[str] = (), sections: bool = False) -> Table:
        """Add a title; move the columns of `fold` to a note if all rows have the same cell."""
        return replace(folded(self, fold), title=title, sections=sections)


class Study:
    """Result of an analysis: figures, tables for terminal and page, and remarks."""

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values; an undefined figure (NaN) is None."""
        return dict(as_record(self))

    def lines(self) -> list[str]:
        """Give the lines above the tables."""
        return []

    def tables(self) -> list[Table]:
        """Give the figures as tables with titles."""
        return list(self.shown())

    def shown(self) -> Iterator[Table]:
        """Give the tables one by one."""
        yield from ()

    def remarks(self) -> list[tuple[str, bool]]:
        """Give remarks on the tables, each with whether it is a warning."""
        return []


def as_record(value: Any) -> Any:
    """Turn results into plain JSON values; an undefined figure (NaN) is None."""
    if is_dataclass(value) and not isinstance(value, type):
        # Fields without a repr are intermediate values.
        return {own.name: as_record(getattr(value, own.name)) for own in fields(value) if own.repr}
    if isinstance(value, Mapping):
        return {plain(str(key)): as_record(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_record(item) for item in value]
    return plain(value)


def number(value: float, digits: int = 3) -> str:
    """Write a figure; a dash if it is undefined."""
    # + 0.0 turns -0.0 into 0.0.
    return f"{round(value, digits) + 0.0:.{digits}f}" if math.isfinite(value) else "-"


def p_value(p: float) -> str:
    """Write a p-value, never as 0."""
    return "-" if not math.isfinite(p) else "< .0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def digits(value: Interval) -> int:
    """Return the number of decimals of a figure: up to the second significant digit of its error, three at most."""
    is_known = math.isfinite(value.error) and value.error > 0
    return max(0, min(3, 1 - math.floor(math.log10(value.error)))) if is_known else 3


def interval(value: Interval) -> str:
    """Write a figure with its interval, if it has one."""
    shown = (value.value, value.low, value.high)
    if not all(map(math.isfinite, shown)):
        return number(value.value)
    middle, low, high = (number(own, digits(value)) for own in shown)
    return f"{middle} [{low}, {high}]"


def cell(value: Any) -> str:
    """Format a cell: a text, a count, a figure, or a figure with its interval."""
    if isinstance(value, Interval):
        return interval(value)
    return number(value) if isinstance(value, float) else str(value)


def said_of(told: Iterable[tuple[str, _Said]]) -> dict[_Said, list[str]]:
    """Collect ``(name, what)``: what -> the names that it is said of."""
    found: dict[_Said, list[str]] = {}
    for name, text in told:
        found.setdefault(text, []).append(name)
    return found


def interval_warnings(intervals: Mapping[str, Interval]) -> list[str]:
    """Name the intervals that are not reliable."""
    found = said_of((name, one.warning) for name, one in intervals.items() if one.warning)
    return [f"warning: {warning}: {', '.join(filter(None, names)) or 'all'}" for warning, names in found.items()]


def raters_told(raters: Mapping[str, tuple[float, int]]) -> list[str]:
    """Say how high every rater rates; empty without raters."""
    means = ", ".join(f"{name} {number(mean)} (n {count})" for name, (mean, count) in raters.items())
    return [f"mean rating by rater: {means}; how strict a rater is counts as no noise"] if raters else []


def mean_warnings(means: Mapping[str, Interval]) -> list[str]:
    """Name the means over documents whose intervals are unreliable or missing."""
    without = [
        n for n, one in means.items() if math.isfinite(one.value) and not (math.isfinite(one.low) or one.warning)
    ]
    told = [f"no interval, since one document allows none: {', '.join(without)}"] if without else []
    return interval_warnings(means) + told


def folded(table: Table, headers: Collection[str]) -> Table:
    """Move columns to a note if all rows have the same cell, to make room for the others."""
    constant = [
        index
        for index, header in enumerate(table.headers)
        if index and header in headers and len({row[index] for row in table.rows}) == 1
    ]
    if not constant:
        return table
    kept = [index for index in range(len(table.headers)) if index not in constant]
    same = "; ".join(f"{table.headers[index]}: {table.rows[0][index]}" for index in constant)
    rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
    return Table(tuple(table.headers[index] for index in kept), rows, (f"in all rows: {same}", *table.notes))


def correlation_table(results: Mapping[str, Correlation], coefficients: Sequence[str] = ("spearman",)) -> Table:
    """Build a table with one row per name: coefficients and counts, with notes on ties and missing items.

    A coefficient that no row has gets no column. Next to the accuracy is the accuracy of chance.
    """
    known = {c for c in coefficients if any(math.isfinite(getattr(r, c).value) for r in results.values())}
    wanted = [one for one in dict.fromkeys(coefficients) if one in known] or list(coefficients[:1])
    rows: list[Sequence[Any]] = [
        (name, *(getattr(r, one) for one in wanted), r.n, f"{r.points}{f'/{r.groups}' if r.level == 'summary' else ''}")
        for name, r in results.items()
    ]
    notes = [f"{result.level} level: 95 % intervals hold for {result.holds_for}" for result in results.values()]
    if "accuracy" in wanted:
        notes.append(
            "accuracy: pairs ordered, or tied, as by people, ties calibrated on other documents (Deutsch et al. 2023)"
        )
        chance = {name.rpartition(": ")[0]: result.chance for name, result in results.items()}
        for section, value in chance.items():
            cells = (value if name == "accuracy" else "-" for name in wanted)
            rows.append((f"{section}: chance" if section else "chance", *cells, "-", "-"))
    notes.append(_tied(results))
    notes += _missing("documents skipped", {name: result.skipped for name, result in results.items()})
    notes += _missing("items left out", {name: result.left_out for name, result in results.items()})
    if len({result.points for result in results.values() if result.level == "summary"}) > 1:
        notes.append("rows with different points are about different documents: only a test on common ones compares")
    notes += interval_warnings({name: getattr(result, wanted[0]) for name, result in results.items()})
    return Table.of(("", *wanted, "n", "points"), rows, dict.fromkeys(notes))


def _tied(results: Mapping[str, Correlation]) -> str:
    """Say how many pairs are tied, as a range over the rows."""
    told = []
    for who, side in (("people", "human"), ("scores", "predicted")):
        shares = [100 * getattr(r.ties, side) / r.ties.pairs for r in results.values() if r.ties.pairs]
        low, high = (f"{bound(shares):.1f}" for bound in (min, max)) if shares else ("-", "-")
        told.append(f"{who} {low} %" if low == high else f"{who} {low} to {high} %")
    return f"tied pairs: {', '.join(told)}"


def _missing(what: str, counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Say once what is missing in which rows, and why."""
    told = {name: ", ".join(f"{count} {reason}" for reason, count in own.items()) for name, own in counts.items()}
    return [
        f"{what}: {reasons}: {'all rows' if len(names) == len(counts) else ', '.join(filter(None, names))}"
        for reasons, names in said_of((name, one) for name, one in told.items() if one).items()
    ]


def comparison_table(results: Mapping[str, Comparison]) -> Table:
    """Build a table with one row per compared pair, on the documents that both keep."""
    columns: dict[str, Callable[[Comparison], Any]] = {
        "first / second": lambda one: f"{number(one.first)} / {number(one.second)}",
        "difference": lambda one: one.difference,
        "p": lambda one: p_value(one.p),
        "p (adjusted)": lambda one: p_value(one.p_adjusted),
        "items / documents": lambda one: f"{one.n} / {one.groups}",
        "kept by each": lambda one: f"{one.kept[0]} / {one.kept[1]}",
    }
    notes = [
        *(f"{result.level} {result.coefficient}: {result.why}" for result in results.values()),
        *(f"intervals and tests hold for {result.holds_for}" for result in results.values()),
        "p (adjusted): for all tests of this table (Holm)",
        *interval_warnings({name: result.difference for name, result in results.items()}),
    ]
    return Table.over(results, columns, dict.fromkeys(notes))


def agreement_table(results: Mapping[str, Agreement]) -> Table:
    """Build a table with one row per pair of judges or runs."""
    figures = ("spearman", "kendall", "mean_difference", "mean_absolute_difference", "largest_difference", "alpha")
    rows = [(name, r.n, *(getattr(r, figure) for figure in figures)) for name, r in results.items()]
    alone = [
        f"{name}: {r.only_first} / {r.only_second}" for name, r in results.items() if r.only_first or r.only_second
    ]
    notes = (f"scored by one alone: {'; '.join(alone)}",) if alone else ()
    return Table.of(("", "n", "spearman", "kendall", "mean diff", "mean |diff|", "max |diff|", "alpha"), rows, notes)
