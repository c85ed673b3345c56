"""Two runs item by item: which rows belong together, which stand alone, and which columns do not agree."""

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
    """The items of two runs together.

    Attributes
    ----------
    by_id : bool
        Whether items were paired by their ``id``; else by their place in the run.
    keys : tuple of str
        Every item once: the first run's in order, then those of the second run alone.
    records : tuple of (Record or None, Record or None)
        The item in each run.
    both, only_first, only_second : int
        How many items each kind has.
    differing : dict of str to int
        Column -> in how many pairs its values differ; without columns that always agree.
    """

    by_id: bool
    keys: tuple[str, ...]
    records: tuple[tuple[Record | None, Record | None], ...]
    both: int
    only_first: int
    only_second: int
    differing: dict[str, int]

    def columns(self) -> list[tuple[str, list[Any]]]:
        """Columns of the items: the first run's value where it has one, and differing values of the second beside it.

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
    """Pair the items by ``id`` where all rows of both runs have distinct ones, else by their place.

    Returns
    -------
    pairing : Pairing
        The items.
    keys : tuple of two list of str
        Identity of each row of each run.
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
    # A CSV file and a JSONL file of one input differ in type alone.
    return one is not other and one != other and as_text(one) != as_text(other)
