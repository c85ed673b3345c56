"""Other people's outputs: G-Eval's result files with raw responses, and predictions in UniEval's format.

The parser is the original's: a response counts if it starts, after at most one space, with a number. The difference is
the treatment of the rest. The original's scripts count a response without a number as 0, which is below every
scale that starts at 1; here it is counted and left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from geval_local.analysis.ratings.rated import Rated, read_benchmark
from geval_local.analysis.ratings.values import number_at
from geval_local.errors import DataError
from geval_local.io.results import MetricFigures, numbered
from geval_local.scale import Scale
from geval_local.statistics.records import ScoredItem

PREDICTIONS = "predict_scores"
_LEADING_NUMBER = re.compile(r"^ ?([\d\.]+)")


@dataclass(frozen=True)
class ParsedResponses:
    """Parsed raw responses of a file."""

    #: Mean rating per row, NaN if no response of the row counts.
    values: tuple[float, ...]
    #: Responses in the file.
    responses: int
    #: Responses that do not start with a number.
    unparseable: int
    #: Responses whose number lies outside the scale; 0 when no scale was given.
    out_of_scale: int
    #: Responses that went into the means.
    counted: int


def parse_response(response: str) -> float | None:
    """Parse the number that a response starts with; None if it does not start with one."""
    match = _LEADING_NUMBER.match(response)
    if match is None:
        return None
    try:
        return float(match[1])
    except ValueError:  # "1.2.3", "..."
        return None


def read_responses(rows: Sequence[Sequence[str]], *, scale: Scale | None = None) -> ParsedResponses:
    """Average the raw responses of each row."""
    unparseable = outside = counted = 0
    values: list[float] = []
    for responses in rows:
        numbers: list[float] = []
        for response in responses:
            number = parse_response(response)
            if number is None:
                unparseable += 1
            elif scale is not None and not scale.low <= number <= scale.high:
                outside += 1
            else:
                numbers.append(number)
        counted += len(numbers)
        values.append(sum(numbers) / len(numbers) if numbers else math.nan)
    return ParsedResponses(tuple(values), sum(map(len, rows)), unparseable, outside, counted)


def geval_items(
    path: str | Path, name: str, dimension: str, *, scale: Scale | None = None
) -> tuple[list[ScoredItem], ParsedResponses]:
    """Read a result file of G-Eval's scripts: a benchmark's rows with ``all_responses``.

    Such files lack the rows whose request failed. Items are keyed by system and document where the benchmark has both,
    so they still pair with scores of the whole file.
    """
    data = read_benchmark(path, name)
    for number, row in numbered(data.rows):
        responses = row.get("all_responses")
        if not isinstance(responses, list) or not responses or not all(isinstance(text, str) for text in responses):
            raise DataError(
                f"{path}, row {number}: 'all_responses' is not a list of texts",
                hint="A result file of G-Eval holds the raw responses of each row.",
            )
    parsed = read_responses([row["all_responses"] for row in data.rows], scale=scale)
    figures = [
        {"score": None, "error": "no response holds a rating"} if math.isnan(value) else {"score": value}
        for value in parsed.values
    ]
    return data.items(dimension, MetricFigures.of(dimension, figures)), parsed


def unieval_items(rated: Rated, dimension: str) -> list[ScoredItem]:
    """Read a metric's predictions stored next to a benchmark's ratings, in UniEval's format."""
    values = []
    for number, row in numbered(rated.rows):
        value = number_at(row, f"{PREDICTIONS}.{dimension}", f"{rated.path}, row {number}")
        if math.isnan(value):
            raise DataError(f"{rated.path}, row {number}: no prediction of {dimension!r} in {PREDICTIONS!r}")
        values.append(value)
    return rated.items(dimension, MetricFigures.of(dimension, [{"score": value} for value in values]))
