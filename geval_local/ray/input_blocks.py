"""The input of a distributed run: its files, checked by their first rows, and the blocks that workers score."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import lookup
from geval_local.grouping import EVERY_ROW
from geval_local.io.columns import FIGURES, check_chosen, holds_all_input
from geval_local.io.input_checks import ROWS_CHECKED, check_rows
from geval_local.io.parts import part_name
from geval_local.io.places import is_address
from geval_local.io.samples import samples_of
from geval_local.metric import Metric
from geval_local.ray.blocks import Block, Cut, SourceFile, Survey, find_files, first_rows
from geval_local.ray.messages import Task
from geval_local.runs.manifest import JudgeRecord, Manifest
from geval_local.runs.records import InputFile
from geval_local.runs.settings import Settings

#: Estimated prompt tokens of a block: minutes of a GPU, the most that a dying worker loses.
BLOCK_TOKENS = 1 << 21
#: Least number of packs in a block, so that texts are shared and the next pack is ready in time.
LEAST_PACKS = 8
PACK_TOKENS = 8192
#: Least number of blocks per worker, if there are enough rows, so that a slow worker does not delay the end.
BLOCKS_EACH = 4
#: Blocks beyond which they become larger instead of more, so that the driver's memory is spared: it keeps 6 KB of
#: each. More where there are so many workers that each would have few.
MANY_BLOCKS = 20_000
MANY_BLOCKS_EACH = 32
#: Estimated bytes per token.
BYTES_PER_TOKEN = 4
#: Largest number of rows in a block.
MOST_ROWS = 1 << 16
#: Number of changed files that are named.
_NAMED = 5


def input_of(given: Sequence[str], files: Sequence[SourceFile], rows: int | None = None) -> InputFile:
    """Describe many input files as one, by the hash of their hashes; before the survey, by their sizes."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.sha256 or file.address} {file.bytes}\n".encode())
    name = given[0] if len(given) == 1 else f"{given[0]} and {len(given) - 1} more"
    size = sum(file.bytes for file in files)
    return InputFile(
        path=name,
        name=name.rstrip("/").rpartition("/")[2] or name,
        sha256=digest.hexdigest(),
        bytes=size,
        lines=0,
        changed=max((file.changed for file in files), default=0),
        rows=rows,
    )


def wanted_parts(
    settings: Settings,
    given: Sequence[str | os.PathLike[str]],
    judges: Sequence[JudgeRecord],
    metrics: Sequence[Metric],
) -> Manifest:
    """Return the manifest of a requested run, after checking the first rows; before a judge is loaded."""
    if len(judges) > 1:
        raise ConfigurationError(
            "a distributed run has one judge",
            hint="Score once for every judge, each into a directory of its own; `compare` and `jury` take them all.",
        )
    inputs = [one if is_address(one) else os.path.abspath(one) for one in (os.fspath(path) for path in given)]
    files = find_files(inputs)
    first, origin = files[0], files[0].place.name
    rows = list(samples_of(first_rows(first, ROWS_CHECKED), origin, settings.fields))
    if not rows:
        raise DataError(f"{first.address} holds no rows", hint="Was the file written completely?")
    check_rows(rows, metrics, first.address, settings.fields)
    for group, what in ((settings.group_by, "group"), (settings.gather_by, "gather")):
        given_field = group is not None and (group != EVERY_ROW or what == "gather")
        if given_field and not any(lookup(row.fields, str(group)) is not None for row in rows):
            raise DataError(
                f"{first.address}: the field {group!r} to {what} by is missing",
                hint=f"Columns: {', '.join(map(str, rows[0].fields))}.",
            )
    columns = [name for name in settings.columns or () if name not in FIGURES]
    check_chosen(columns, rows, [metric.name for metric in metrics])
    keeps_all = settings.columns is None or holds_all_input(settings.columns)
    named = settings.model_copy(
        update={
            "inputs": inputs,
            "columns": None if keeps_all else columns,
            "group_by": settings.group_by or settings.gather_by,
        }
    )
    return Manifest.new(input_of(inputs, files), named, list(judges))


def rows_in(surveys: Iterable[Survey]) -> int:
    """Count the rows of surveyed files."""
    return sum(block.rows for one in surveys for block in one.blocks)


def choose_cut(settings: Settings, batch_tokens: int | None, size: int, workers: Callable[[], int]) -> Cut:
    """Choose the size of blocks: by --window, else at most a few minutes of work with several blocks per worker.

    `batch_tokens` is the judge's budget, None if it is not set; `size` that of all files, in bytes; `workers` tells how
    many the cluster has room for, unless the settings say it.
    """
    if settings.block_rows is not None:
        return Cut(settings.block_rows, 1 << 62)
    prompts, count = len(settings.metrics), settings.workers or workers()
    least = LEAST_PACKS * (batch_tokens or PACK_TOKENS) * BYTES_PER_TOKEN // prompts
    bounded = -(-size // max(MANY_BLOCKS, MANY_BLOCKS_EACH * count))
    most = max(least, BLOCK_TOKENS * BYTES_PER_TOKEN // prompts, bounded)
    return Cut(MOST_ROWS, min(most, max(least, size // (BLOCKS_EACH * count))))


def tasks_of(surveys: Sequence[Survey], *, again: bool = False, gathered: bool = False) -> list[Task]:
    """List the blocks with their parts, in order; a bucket of gathered rows and its part have one name."""
    return [
        Task(one.file.place.name if gathered else part_name(number, place), one.file, block, again)
        for number, one in enumerate(surveys)
        for place, block in enumerate(one.blocks)
    ]


def as_before(found: Survey, known: Mapping[str, Survey]) -> Survey:
    """Keep the blocks of a file whose time changed but not its content."""
    before = known.get(found.file.address)
    if before is None or before.file.sha256 != found.file.sha256:
        return found
    return Survey(found.file, before.blocks)


def limited(surveys: Sequence[Survey], limit: int) -> list[Survey]:
    """Keep the first rows only."""
    taken: list[Survey] = []
    for one in surveys:
        blocks: list[Block] = []
        for block in one.blocks:
            if limit <= 0:
                break
            rows = min(block.rows, limit)
            blocks.append(Block(**{**asdict(block), "rows": rows, "repeated": block.repeated}))
            limit -= rows
        if blocks:
            taken.append(Survey(one.file, blocks))
    return taken


def changed_files(before: Sequence[Survey], after: Sequence[Survey]) -> list[str]:
    """List the input files that have changed, are missing, or are new."""
    old, new = ({one.file.address: one.file.sha256 for one in surveys} for surveys in (before, after))
    kinds = {
        "the input has another content:": [name for name in new if name in old and new[name] != old[name]],
        "the input has lost": [name for name in old if name not in new],
        "the input has a new file:": [name for name in new if name not in old],
    }
    return [
        f"{kind} {', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}"
        for kind, names in kinds.items()
        if names
    ]
