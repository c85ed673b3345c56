"""Evidence: what questions are asked about, read from the columns of a row, or the reason why there is none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from geval_local.errors import ConfigurationError, DataError, QuestionError
from geval_local.fields import field_value, nearest
from geval_local.io.checks import ROWS_CHECKED
from geval_local.io.samples import Sample, read_samples
from geval_local.questions.form import state_text

__all__ = ["DEFAULT_STATE", "check_evidence", "evidence_of", "read_state"]

DEFAULT_STATE = "state"
_ABSENT = object()


def read_state(given: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str]:
    """Read which columns make the evidence."""
    if isinstance(given, Mapping):
        return _checked({str(heading): str(column) for heading, column in given.items()})
    listed = [given] if isinstance(given, str) else list(given or (DEFAULT_STATE,))
    state: dict[str, str] = {}
    for one in listed:
        heading, equals, column = (part.strip() for part in one.partition("="))
        column = column if equals else heading
        if state.get(heading, column) != column:
            raise ConfigurationError(f"--state names {heading!r} twice: {state[heading]!r} and {column!r}")
        state[heading] = column
    return _checked(state)


def _checked(state: dict[str, str]) -> dict[str, str]:
    if not state or not all((*state, *state.values())):
        raise ConfigurationError(
            "the evidence has an empty column or heading", hint="Write --state COLUMN, or --state HEADING=COLUMN."
        )
    return state


def evidence_of(sample: Sample, state: Mapping[str, str]) -> tuple[str, str | None]:
    """Write the evidence of a row as text."""
    if sample.error is not None:
        return "", sample.error
    values: dict[str, Any] = {}
    for heading, column in state.items():
        value = field_value(sample.fields, column)
        if value is None:
            return "", f"{sample.where}: the column {column!r} is missing or null"
        values[heading] = value
    ((heading, column), *others) = state.items()
    try:
        return state_text(values if others or heading != column else values[heading]), None
    except QuestionError as error:
        return "", f"{sample.where}: {error.message}"


def check_evidence(path: str | os.PathLike[str], state: Mapping[str, str], *, limit: int | None = None) -> list[Sample]:
    """Read the first rows of a file, and make sure that some row has the columns; before a judge is loaded."""
    first = list(islice(read_samples(path, limit=limit), ROWS_CHECKED))
    readable = [sample for sample in first if sample.error is None]
    for column in state.values():
        if readable and all(field_value(sample.fields, column, _ABSENT) is _ABSENT for sample in readable):
            names = _names(readable)
            raise DataError(
                f"{os.fspath(path)}: there is no column {column!r}{nearest(column, names)}",
                hint=f"Columns: {', '.join(names) or 'none'}. Name those of the evidence: --state COLUMN, also "
                "several times, and as --state HEADING=COLUMN.",
            )
    return first


def _names(samples: Iterable[Sample]) -> list[str]:
    return list(dict.fromkeys(str(column) for sample in samples for column in sample.fields))
