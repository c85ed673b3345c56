"""The columns of a CSV file of results, and cells that a spreadsheet would take for formulas."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from geval_local.errors import ConfigurationError
from geval_local.fields import nearest
from geval_local.io.samples import Sample

__all__ = [
    "DEFAULT_COLUMNS",
    "EVERYTHING",
    "FIGURES",
    "check_chosen",
    "figures_in",
    "header_of",
    "holds_all_input",
    "neutral",
    "read_columns",
]

#: Every figure of `Score.to_dict`, in the order of the columns.
FIGURES = (
    "score",
    "normalized",
    "probabilities",
    "label_mass",
    "std",
    "entropy",
    "mode",
    "margin",
    "threshold",
    "threshold_probability",
    "passed",
    "calibrated",
    "other_tokens",
    "prompt_tokens",
    "dropped_tokens",
    "error",
)
#: The default columns; those that the rows lack are left out.
DEFAULT_COLUMNS = ("id", "row", "score", "calibrated", "error")
EVERYTHING = "all"
INPUT = "input"
ROW = "row"
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def read_columns(given: Iterable[str] | None) -> list[str] | None:
    """Read the names of columns as the command line has them, by commas; None for the default.

    Raises
    ------
    ConfigurationError
        If a name is empty.
    """
    if given is None:
        return None
    names = [name.strip() for one in given for name in one.split(",")]
    if not names or not all(names):
        raise ConfigurationError("--columns has an empty name", hint="Write --columns id,score,error.")
    return list(dict.fromkeys(names))


def check_chosen(columns: Sequence[str] | None, samples: Iterable[Sample], metrics: Sequence[str]) -> None:
    """Make sure that columns that were asked for exist.

    Parameters
    ----------
    columns : sequence of str or None
        As by `read_columns`.
    samples : iterable of Sample
        The first rows of the input.
    metrics : sequence of str
        Names of the metrics, without a judge.

    Raises
    ------
    ConfigurationError
        With the columns that there are, and the one that was probably meant.
    """
    if not columns:
        return
    inputs = dict.fromkeys(str(name) for sample in samples for name in sample.fields)
    known = [*inputs, ROW, INPUT, EVERYTHING, *FIGURES]
    for name in columns:
        result, _, figure = name.rpartition(".")
        is_result = figure in FIGURES and any(result == one or result.startswith(f"{one}@") for one in metrics)
        if name not in known and not is_result:
            raise ConfigurationError(
                f"--columns: there is no column {name!r}{nearest(name, known)}",
                hint=f"Input columns: {', '.join(inputs) or 'none'}. Figures: {', '.join(FIGURES)}. Others: row, input "
                "(all input columns), all, and METRIC.FIGURE.",
            )


def header_of(
    columns: Sequence[str] | None, inputs: Sequence[str], metrics: Sequence[str], present: Container[str]
) -> list[str]:
    """Lay out the columns of a file: ``metric.figure`` for the figures of every metric, side by side.

    Parameters
    ----------
    columns : sequence of str or None
        The columns that were asked for.
    inputs : sequence of str
        Columns of the first rows; among them may be ``metric.figure`` of metrics that were scored before.
    metrics : sequence of str
        Names of the results.
    present : container of str
        Figures that the first rows hold.
    """
    own = {f"{metric}.{figure}": figure for metric in metrics for figure in FIGURES}
    kept = [name for name in inputs if name not in own]
    chosen = DEFAULT_COLUMNS if columns is None else columns
    if EVERYTHING in chosen:
        return [*kept, *own]
    figures = [name for name in chosen if name in FIGURES]
    if columns is None:
        figures = [name for name in figures if name in present or name in ("score", "error")]
    earlier = [name for name in kept if "." in name and name.rpartition(".")[2] in figures]
    header: list[str] = []
    for name in chosen:
        if name == INPUT:
            header += kept
        elif name in FIGURES:
            header += [*earlier, *(f"{metric}.{figure}" for metric in metrics for figure in figures)]
        elif columns is not None or name in (ROW, *kept):
            header.append(name)
    return list(dict.fromkeys(header))


def neutral(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    return "'" + text if text.startswith(_FORMULA_SIGNS) else text


def holds_all_input(columns: Sequence[str] | None) -> bool:
    """Whether every input column is to be in the file, those that come late in ``extra``."""
    return columns is not None and (EVERYTHING in columns or INPUT in columns)


def figures_in(rows: Iterable[Mapping[str, Mapping[str, object]]]) -> set[str]:
    """Collect the figures that some row holds."""
    return {name for row in rows for figures in row.values() for name, value in figures.items() if value is not None}
