"""Pairing of two runs' items: paired rows, unpaired rows, and columns that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from geval_local.io.results import Record, Results
from geval_local.io.text_formats import as_text

__all__ = ["Pairing", "pair_runs"]


@dataclass(frozen=True)
class Pairing:
    """The paired items of two runs.

    Attributes
    ----------
    by_id : bool
        Whether items were paired by ``id``; otherwise by position in the run.
    keys : tuple of str
        Keys of all items: the first run's in order, then those only in the second run.
    records : tuple of (Record or None, Record or None)
        The item in each run.
    both, only_first, only_second : int
        Number of items of each kind.
    differing : dict of str to int
        Column -> number of pairs in which its values differ; without columns that always agree.
    """

    by_id: bool
    keys: tuple[str, ...]
    records: tuple[tuple[Record | None, Record | None], ...]
    both: int
    only_first: int
    only_second: int
    differing: dict[str, int]

    def columns(self) -> list[tuple[str, list[Any]]]:
        """Return the items' columns: the first run's values if it has any, and the second's where they differ.

        Returns
        -------
        list of (str, list)
            Name and one value per item; ``name (second run)`` holds only the values that differ.
        """
        present = [[record for record in pair if record is not None] for pair in self.records]
        names = dict.fromkeys(name for pair in present for record in pair for name in record.columns)
        found: list[tuple[str, list[Any]]] = []
        for name in names:
            values = [next((r.columns[name] for r in pair if name in r.columns), None) for pair in present]
            found.append((name, values))
            if name in self.differing:
                others = [
                    pair[1].columns.get(name) if len(pair) == 2 and _differs(pair, name) else None for pair in present
                ]
                found.append((f"{name} (second run)", others))
        return found


def pair_runs(first: Results, second: Results) -> tuple[Pairing, tuple[list[str], list[str]]]:
    """Pair the items by ``id`` if all rows of both runs have distinct ones, else by position.

    Returns
    -------
    pairing : Pairing
        The items.
    keys : tuple of two list of str
        Key of each row of each run.
    """
    ids = (first.ids(), second.ids())
    by_id = ids[0] is not None and ids[1] is not None
    keys = [
        found if by_id and found is not None else [str(place) for place in range(1, len(run.records) + 1)]
        for run, found in zip((first, second), ids, strict=True)
    ]
    left, right = (dict(zip(names, run.records, strict=True)) for names, run in zip(keys, (first, second), strict=True))
    every = tuple(dict.fromkeys([*left, *right]))
    records = tuple((left.get(key), right.get(key)) for key in every)
    pairs = [[record for record in pair if record is not None] for pair in records]
    differing = Counter(
        name
        for pair in pairs
        if len(pair) == 2
        for name in {**pair[0].columns, **pair[1].columns}
        if _differs(pair, name)
    )
    both = sum(len(pair) == 2 for pair in pairs)
    pairing = Pairing(by_id, every, records, both, len(left) - both, len(right) - both, dict(differing))
    return pairing, (keys[0], keys[1])


def _differs(pair: Sequence[Record], name: str) -> bool:
    one, other = (record.columns.get(name) for record in pair)
    # A CSV file and a JSONL file of one input differ only in type.
    return one is not other and one != other and as_text(one) != as_text(other)
