"""Shards: the rows of a window in groups that share their texts, for workers that share nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from geval_local.errors import UnscorableError
from geval_local.io.samples import Sample

__all__ = ["GROUP_ROWS", "SHARD_ROWS", "Shard", "cut_shards"]

#: About how many rows a shard has: what a worker that dies loses, against shared instructions computed once per shard.
SHARD_ROWS = 128
#: Most rows that share a text and stay together; the candidates of one document beyond it make a shard of their own.
GROUP_ROWS = 512


@dataclass(frozen=True)
class Shard:
    """Rows that one worker scores.

    Attributes
    ----------
    window, number : int
        The window that they are from, and the shard's number in it, from 0.
    rows : tuple of int
        Their indices in the input, from 0, ascending.
    """

    window: int
    number: int
    rows: tuple[int, ...]


def cut_shards(
    samples: Sequence[Sample],
    forms: Iterable[Sequence[str]],
    *,
    window: int,
    first: int,
    shard_rows: int = SHARD_ROWS,
    group_rows: int = GROUP_ROWS,
) -> list[Shard]:
    """Cut a window into shards: a function of its texts alone, so that a resumed run finds the same ones.

    Parameters
    ----------
    samples : sequence of Sample
        The rows of the window.
    forms : iterable of sequence of str
        The fields of every metric, in the order of its form. Prompts share what they begin with, so it is the text of
        the first field that keeps rows together.
    window, first : int
        Number of the window, and index of its first row.
    shard_rows, group_rows : int
        See `SHARD_ROWS` and `GROUP_ROWS`.

    Returns
    -------
    list of Shard
        Every row is in one of them. Rows that share a text are in the same one, unless they are more than `group_rows`;
        where the metrics begin with different fields and cannot all have their way, the text that saves most has it.
    """
    shards: list[Shard] = []
    rows: list[int] = []
    for group in _groups(_sharing(samples, forms), len(samples), group_rows):
        if rows and len(rows) + len(group) > shard_rows:
            shards.append(Shard(window, len(shards), tuple(sorted(rows))))
            rows = []
        rows += [first + place for place in group]
    return [*shards, Shard(window, len(shards), tuple(sorted(rows)))] if rows else shards


def _sharing(samples: Sequence[Sample], forms: Iterable[Sequence[str]]) -> list[list[int]]:
    """List the places that share a text, the text first that saves most."""
    places: dict[str, list[int]] = {}
    for fields in dict.fromkeys(tuple(form) for form in forms):
        for place, sample in enumerate(samples):
            try:
                text = sample.texts(fields)[fields[0]]
            except UnscorableError:
                continue  # has no prompt, so shares nothing
            found = places.setdefault(text, [])
            if not found or found[-1] != place:
                found.append(place)
    shared = [(len(text) * (len(set(found)) - 1), sorted(set(found))) for text, found in places.items()]
    return [found for saved, found in sorted(shared, key=lambda pair: (-pair[0], pair[1])) if saved]


def _groups(sharing: Iterable[Sequence[int]], count: int, most: int) -> list[list[int]]:
    """Join places that share a text as long as a group stays within its bound; in the order of their first places."""
    group_of = [[place] for place in range(count)]
    for places in sharing:
        group = group_of[places[0]]
        for place in places[1:]:
            other = group_of[place]
            if other is group:
                continue
            if len(group) + len(other) > most:
                group = other
                continue
            small, group = sorted((group, other), key=len)
            group += small
            for moved in small:
                group_of[moved] = group
    seen: set[int] = set()
    groups = []
    for group in group_of:
        if id(group) not in seen:
            seen.add(id(group))
            groups.append(sorted(group))
    return groups
