"""Checks before anything expensive: arguments, columns, and whether rows fit a metric."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from geval_local.conversation import folded, given_role, is_message, is_messages, messages_of, names_of_roles
from geval_local.errors import (
    Cause,
    ConfigurationError,
    DataError,
    ErrorCode,
    FieldError,
    QuestionError,
    UnscorableError,
)
from geval_local.fields import (
    ABSENT,
    SYSTEM_FIELDS,
    check_mapping,
    counted,
    decoded_json,
    field_options,
    field_value,
    guess_columns,
    nearest,
    paths_of,
    read_mapping,
    resolve,
    text_of,
    unwrapped,
    visible,
    words_of,
)
from geval_local.grouping import EVERY_ROW
from geval_local.io.columns import check_chosen
from geval_local.io.input_files import find_files, read_input, read_samples
from geval_local.io.places import File, Place
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.options import RunOptions
from geval_local.questions.form import state_text
from geval_local.wording import say_once

#: Rows that are checked before a judge is loaded.
ROWS_CHECKED = 1000
#: Characters of a text that a preview shows.
PREVIEW = 80
#: Most columns listed in a message.
COLUMNS_NAMED = 40


# --- arguments --------------------------------------------------------------------------------------------------------


def check_metrics(metrics: object) -> list[Metric]:
    """Check that `metrics` is a metric or a sequence of metrics; return them as a list."""
    given: list[object] = list(metrics) if isinstance(metrics, list | tuple) else [metrics]
    if not given:
        raise ConfigurationError("no metric is named", hint="`geval-local metrics list` shows the presets.")
    listed: list[Metric] = []
    for metric in given:
        if isinstance(metric, str | os.PathLike):
            name = os.fspath(metric)
            raise TypeError(f"a Metric is expected, not the name {name!r}; load it: Metric.load({name!r})")
        if not isinstance(metric, Metric):
            raise TypeError(
                f"a Metric is expected, not {type(metric).__name__}, or a list of metrics; see Metric.load and "
                "Metric(name=..., ...)"
            )
        listed.append(metric)
    check_distinct(listed)
    return listed


def load_metrics(given: Metric | str | os.PathLike[str] | Sequence[Metric | str | os.PathLike[str]]) -> list[Metric]:
    """Return a list of metrics; names and files are loaded."""
    listed = [given] if isinstance(given, Metric | str | os.PathLike) else list(given)
    return check_metrics([Metric.load(os.fspath(one)) if isinstance(one, str | os.PathLike) else one for one in listed])


def check_distinct(metrics: Sequence[Metric]) -> None:
    """Refuse two metrics with the same name: results are named after them."""
    names = [metric.name for metric in metrics]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"two metrics have the same name: {', '.join(doubled)}", hint="Change the name of one of them."
        )


def iter_samples(
    samples: Iterable[Sample | Mapping[str, Any]], metrics: Sequence[Metric], fields: Mapping[str, str] | None = None
) -> Iterator[Sample]:
    """Yield rows as samples, with the mapping applied."""
    is_frame = hasattr(samples, "to_dict") and hasattr(samples, "columns")
    if is_frame or isinstance(samples, str | Mapping | Sample) or not isinstance(samples, Iterable):
        raise TypeError(f"samples are an iterable of rows, not {type(samples).__name__}: {instead_of(samples)}")
    mapping = {} if fields is None else fields
    check_mapping(mapping, (field for metric in metrics for field in metric.fields))
    return (_sample(sample, number, dict(mapping)) for number, sample in enumerate(samples))


def instead_of(data: object) -> str:
    """Say what takes data of this kind."""
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        return "geval_local.score_frame(frame, metrics, judge) scores a frame"
    if isinstance(data, str | os.PathLike):
        return "geval_local.score_file(path, metrics, judge) scores a file"
    if isinstance(data, Mapping) and any(isinstance(value, list | tuple) for value in data.values()):
        return "columns make a frame, geval_local.score_frame(pandas.DataFrame(data), metrics, judge)"
    if isinstance(data, Mapping) and any(hasattr(value, "column_names") for value in data.values()):
        return "choose one of its datasets, such as data['test']"
    if isinstance(data, Mapping | Sample):
        return "judge.score(metric, row) scores one row"
    return "judge.score_many(metric, rows) scores an iterable of dictionaries"


def _sample(sample: object, number: int, mapping: dict[str, str]) -> Sample:
    if isinstance(sample, Sample):
        if not mapping:
            return sample
        return Sample(sample.fields, sample.row, sample.origin, sample.error, {**sample.mapping, **mapping})
    if isinstance(sample, Mapping):
        return Sample(sample, mapping=mapping)
    raise TypeError(
        f"sample {number} (from 0) is of type {type(sample).__name__}; a sample is a mapping of columns to texts, "
        'such as {"source": ..., "output": ...}'
    )


# --- rows -------------------------------------------------------------------------------------------------------------


def check_columns(
    samples: Iterable[Sample],
    mapping: Mapping[str, str],
    hint: str = "A dotted path leads into a column: turns.0.content.",
) -> None:
    """Check that every named column occurs in at least one row: of a mapping, or of a name that is its own."""
    readable = [sample for sample in samples if sample.error is None] if mapping else []
    for field, path in mapping.items():
        if readable and all(field_value(sample.fields, path, ABSENT) is ABSENT for sample in readable):
            columns = _columns(readable)
            told = f"{field!r} is mapped to {path!r}, and no row has such a column"
            told = told if field != path else f"{readable[0].origin or 'the rows'}: there is no column {path!r}"
            raise DataError(f"{told}{nearest(path, columns)}", hint=f"Columns: {_listed(columns)}. {hint}")


def check_rows(
    samples: Sequence[Sample], metrics: Iterable[Metric], where: str, mapping: Mapping[str, str] | None = None
) -> None:
    """Check that at least one row has the columns that each metric needs.

    Broken, empty or null rows are unscored individually; they are no reason to reject a file.
    """
    metrics = list(metrics)
    check_mapping(mapping or {}, (field for metric in metrics for field in metric.fields))
    check_columns(samples, mapping or {})
    readable = readable_samples(samples, where)
    unfit: list[tuple[Metric, FieldError]] = []
    for metric in metrics:
        problems: list[FieldError] = []
        for sample in readable:
            try:
                sample.texts(metric.fields)
            except FieldError as error:
                problems.append(error)
            except UnscorableError:
                break  # it has the columns
            else:
                break
        else:
            unfit += [(metric, problems[0])] if problems else []
    if unfit:
        raise _misfit(unfit, readable, where, mapping or {})


def readable_samples(samples: Sequence[Sample], where: str) -> list[Sample]:
    """List the readable rows; if there are rows but none is readable, raise before a judge is loaded."""
    readable = [sample for sample in samples if sample.error is None]
    if samples and not readable:
        first = samples[0]
        reason = str(first.error).removeprefix(f"{first.where}: ")
        raise DataError(
            f"{where}: of its first {counted(len(samples), 'row')} none can be read; row {first.row}: {reason}",
            hint="Is it of the format that its name says? The header of a table stands in its first line."
            if "raw" in first.fields
            else None,
        )
    return readable


def check_input(
    files: str | File | Sequence[File], metrics: Sequence[Metric], options: RunOptions | None = None
) -> list[Sample]:
    """Read the first rows of the input and check what the options name, and `check_rows`, before a judge is loaded."""
    paths, options = find_files(files), options or RunOptions()
    first, where = list(islice(read_input(paths, options), ROWS_CHECKED)), told_files(paths)
    check_shape(paths, options)
    check_rows(first, metrics, where, options.fields)
    field = None if options.group_by == EVERY_ROW else options.group_by
    if field is not None and not any(field_value(row.fields, field) is not None for row in first):
        raise DataError(
            f"{where}: the field {field!r} to group by is missing", hint=f"Columns: {', '.join(first[0].fields)}."
        )
    check_chosen(options.columns, first, [metric.name for metric in metrics])
    return first


def check_shape(paths: Sequence[File], options: RunOptions) -> None:
    """Check that some row has each of the `system_columns`, and that some message has each name of `roles`."""
    wide = options.model_copy(update={"system_columns": None, "turns": None, "turns_at": None})
    absent = list(options.system_columns or ())
    for row in read_input(paths, wide) if absent else ():
        absent = [name for name in absent if field_value(row.fields, name, ABSENT) is ABSENT]
        if not absent:
            break
    check_columns(islice(read_input(paths, wide), ROWS_CHECKED), {name: name for name in absent})
    unnamed = options.model_copy(update={"turns": None, "roles": {}})
    said, wanted = dict[str, None](), names_of_roles(options.roles).keys()
    for row in read_input(paths, unnamed) if wanted else ():
        for cell in map(decoded_json, row.fields.values()):
            said |= dict.fromkeys(map(given_role, cell)) if is_messages(cell) else {}
        if wanted <= (there := {*map(folded, said)}):
            return
    for role, names in options.roles.items():
        absent = [name for name in names.split(",") if folded(name) not in there]
        told = f"{told_files(paths)}: no message is of the role {' or '.join(map(repr, absent))}"
        if len(absent) > names.count(",") and (said or not options.turns_at):
            hint = f"Its roles are: {', '.join(said) or 'none'}. Another name comes last: `roles={role}=NAME`."
            raise DataError(f"{told}{nearest(names, said)}", hint=hint)
        if absent:
            say_once(told)


def reading_of(samples: Sequence[Sample], metrics: Iterable[Metric], count: int = 3) -> list[str]:
    """Write what a judge will read of the first rows, from which columns, and how many rows every step leaves."""
    rows, unread = len({(one.origin, one.row) for one in samples}), [one for one in samples if one.error is not None]
    shaped = f", which make {counted(len(samples), 'sample')}" if rows < len(samples) else ""
    lines = [f"the first {counted(rows, 'row')}{shaped}: {len(samples) - len(unread)} can be read"]
    for metric in metrics:
        lost: dict[str, list[str]] = {}
        shown: list[str] = []
        for sample in samples:
            try:
                texts = sample.texts(metric.fields)
            except UnscorableError as error:
                lost.setdefault(error.code, []).append(error.message)
                continue
            if len(shown) < count * (1 + len(texts)):
                columns = paths_of(list(texts), sample.fields, sample.mapping)
                shown += [f"  {sample.where}", *(_read_line(name, columns[name], texts[name]) for name in texts)]
        left = len(samples) - sum(map(len, lost.values()))
        lines += [f"{metric.name}: {left} of {len(samples)} have all texts", *shown]
        lines += [f"  without a score, {code}: {len(told)}, such as {told[0]}" for code, told in lost.items()]
    return [visible(line) for line in lines]


def _read_line(field: str, column: str, text: str) -> str:
    shown = " ".join(text.split())
    shown = f"{shown[:PREVIEW]} ... ({len(text):,} characters)" if len(shown) > PREVIEW else shown
    return f"    {field}{'' if column == field else f' from {column}'}: {shown}"


def told_files(paths: Sequence[File]) -> str:
    """Name the input of a run in a message."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {counted(len(paths) - 1, 'other file')}"


def _misfit(
    unfit: Sequence[tuple[Metric, FieldError]], samples: Sequence[Sample], where: str, mapping: Mapping[str, str]
) -> DataError:
    """Return an error that names everything missing at once, with options that may map it, guessed from names."""
    columns = _columns(samples)
    rows = "its only row cannot" if len(samples) == 1 else f"none of its first {len(samples)} rows can"
    told: list[str] = []
    missing: dict[str, None] = {}
    for metric, error in unfit:
        found = resolve(tuple(field for field in metric.fields if field not in mapping), tuple(columns))
        lost = [field for field in metric.fields if field not in found and field not in mapping]
        if lost and messages_of(samples[0].fields) is None:
            s, are = ("s", "are") if len(lost) > 1 else ("", "is")
            missing |= dict.fromkeys(lost)
            told.append(f"{metric.name}: the field{s} {' and '.join(map(repr, lost))} {are} missing")
        else:
            told.append(f"{metric.name}: {error.message.removeprefix(f'{samples[0].where}: ').split(';', 1)[0]}")
    hint = f"Columns: {_listed(columns)}."
    if missing:
        wanted = dict.fromkeys(field for metric, _ in unfit for field in metric.fields)
        found = resolve(tuple(field for field in wanted if field not in missing), tuple(columns))
        paths = dict.fromkeys([*columns, *(path for sample in samples for path in _paths_in(sample.fields))])
        taken = {*mapping.values(), *found.values()}
        free = (one for one in paths if one not in taken and may_be_text(one, samples))
        guesses = guess_columns(missing, free)
        hint += f" Map fields to columns{' (guessed by their names)' if guesses else ''}:"
        hint += f"\n  {field_options(missing, guesses)}"
    elif unfit[0][1].hint:
        hint += f"\n{unfit[0][1].hint}"
    return DataError(f"{where}: {rows} be scored on {'; '.join(told)}", hint=hint)


def may_be_text(column: str, samples: Sequence[Sample]) -> bool:
    """Whether a column can be scored: it contains texts, not ids, names of systems, labels or hashes."""
    words = words_of(column)
    if column in SYSTEM_FIELDS or {"id", "ids", "name", "hash"} & set(words):
        return False
    texts: list[str] = []
    for sample in samples:
        if (value := field_value(sample.fields, column)) in (None, ""):
            continue
        try:
            texts.append(text_of(unwrapped(value), column))
        except FieldError:
            return False
        except UnscorableError:
            pass
    # Languages without spaces between words write no labels in ASCII.
    return not texts or any(len(text.split()) > 1 or not text.isascii() for text in texts)


def _columns(samples: Sequence[Sample]) -> list[str]:
    return list(dict.fromkeys(str(column) for sample in samples for column in sample.fields))


def _paths_in(held: Mapping[str, Any], levels: int = 3) -> list[str]:
    """List the paths into the objects that a row holds."""
    found = ((name, decoded_json(value)) for name, value in held.items())
    objects = [(str(name), one) for name, one in found if levels and isinstance(one, Mapping) and not is_message(one)]
    return [f"{name}.{path}" for name, one in objects for path in [*map(str, one), *_paths_in(one, levels - 1)]]


def _listed(columns: Sequence[str]) -> str:
    more = len(columns) - COLUMNS_NAMED
    return (", ".join(columns[:COLUMNS_NAMED]) or "none") + (f" and {more} more" if more > 0 else "")


DEFAULT_STATE = "state"


def read_state(given: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str]:
    """Read which columns form the evidence: heading -> column."""
    if not isinstance(given, Mapping):
        listed = [given] if isinstance(given, str) else list(given or (DEFAULT_STATE,))
        return read_mapping((one if "=" in one else f"{one}={one}" for one in listed), "state")
    state = {str(heading): str(column) for heading, column in given.items()}
    if not state or not all((*state, *state.values())):
        raise ConfigurationError(
            "the evidence has an empty column or heading", hint="Write `state=COLUMN`, or `state=HEADING=COLUMN`."
        )
    return state


def evidence_of(sample: Sample, state: Mapping[str, str]) -> tuple[str, Cause | None]:
    """Write the evidence of a row as text."""
    if sample.error is not None:
        return "", sample.error
    values: dict[str, Any] = {}
    for heading, column in state.items():
        value = field_value(sample.fields, column)
        if value is None:
            return "", sample.lost(f"the column {column!r} is missing or null", ErrorCode.MISSING_FIELD).error
        values[heading] = value
    ((heading, column), *others) = state.items()
    try:
        return state_text(values if others or heading != column else values[heading]), None
    except QuestionError as error:
        return "", sample.lost(error.message, ErrorCode.NOT_TEXT).error


def check_evidence(
    path: str | os.PathLike[str] | Place,
    state: Mapping[str, str],
    *,
    limit: int | None = None,
    **reading: Any,
) -> list[Sample]:
    """Read the first rows of a file, and check that some row has the columns, before a judge is loaded."""
    first = list(islice(read_samples(path, limit=limit, **reading), ROWS_CHECKED))
    readable_samples(first, str(path))
    hint = "Name those of the evidence: `state=COLUMN`, also several times, and as `state=HEADING=COLUMN`."
    check_columns(first, {column: column for column in state.values()}, hint)
    return first
