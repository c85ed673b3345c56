"""Parts: results as a directory of Parquet files, one per block of the input, read as a stream.

The footer of a part names its run and block and has the sums over its rows. The block determines the part's name, so a
block that is scored twice makes one part, and parts sort like the input.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, overload

from geval_local.errors import DataError, OutputError
from geval_local.io.places import Place
from geval_local.io.rows import Row, parquet_batches, parquet_rows

PART_KEY = b"geval-local part"
_NAME = re.compile(r"part-\d{6,}-\d{6,}\.parquet")


def part_name(file: int, block: int) -> str:
    """Return the name of a block's part, given the numbers of file and block, from 0."""
    return f"part-{file:06d}-{block:06d}.parquet"


def file_number(name: str) -> int:
    """Return the number of the file from the name of a part."""
    return int(name.split("-")[1])


def part_place(name: str) -> int:
    """Return the number of the block in its file from the name of a part."""
    return int(name.split("-")[2].partition(".")[0])


def is_part_name(name: str) -> bool:
    """Whether a file name is a part's."""
    return _NAME.fullmatch(name) is not None


def part_names(directory: Place) -> list[str]:
    """List the names of the parts in a directory, in order."""
    names = (entry.place.name for entry in directory.entries() if entry.is_file)
    # From a million files or blocks on, names have more digits.
    return sorted(filter(is_part_name, names), key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


def about_part(place: Place) -> dict[str, Any] | None:
    """Read the record in a part's footer; None if there is no such file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with place.open() as file:
            metadata = pq.read_metadata(file).metadata or {}
        about = json.loads(metadata[PART_KEY])
        if not isinstance(about, dict):
            raise TypeError("no object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        raise OutputError(
            f"{place} is damaged, cut off, or no part of a run "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__})",
            hint="Delete it and resume; its rows are scored again. A file of your own belongs elsewhere.",
        ) from error
    return about


def part_rows(place: Place, before: int = 0) -> Iterator[Row]:
    """Read the rows of a part; numbers continue after `before`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with place.open() as source, pq.ParquetFile(source) as file:
            for raw in parquet_rows(file, place):
                if raw.error is not None:
                    raise DataError(f"{place}, row {raw.number}: {raw.error}")
                row = Row(raw.fields)
                row.number = before + raw.number
                yield row
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {place}: {error}", hint="Resume the run: it names what is damaged.") from error


class PartRows(Sequence[Row]):
    """Rows of a directory of parts, read part by part on access; memory holds one part."""

    def __init__(self, directory: Place | Path) -> None:
        import pyarrow.parquet as pq

        self.directory = directory if isinstance(directory, Place) else Place(str(directory))
        self._places = [self.directory.child(name) for name in part_names(self.directory)]
        if not self._places:
            raise DataError(f"{directory} holds no parts", hint="Name the directory that `geval-local score` made.")
        self._starts = [0]
        #: Columns that all parts have in one type.
        self.schema: Any = None
        for place in self._places:
            with place.open() as file:
                metadata = pq.read_metadata(file)
            self._starts.append(self._starts[-1] + metadata.num_rows)
            schema = metadata.schema.to_arrow_schema()
            self.schema = schema if self.schema is None else shared_schema(self.schema, schema)
        self._held: tuple[int, list[Row]] = (-1, [])

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Row]:
        for place, before in zip(self._places, self._starts, strict=False):
            yield from part_rows(place, before)

    def batches(self) -> Iterator[Any]:
        """Read the columns of `schema` as Arrow batches."""
        import pyarrow.parquet as pq

        for place in self._places:
            with place.open() as source, pq.ParquetFile(source) as file:
                for batch in parquet_batches(file):
                    yield batch.select(self.schema.names)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        index = index + len(self) if index < 0 else index
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = bisect_right(self._starts, index) - 1
        number, rows = self._held
        if number != part:
            rows = list(part_rows(self._places[part], self._starts[part]))
            self._held = (part, rows)
        return rows[index - self._starts[part]]


def shared_schema(one: Any, other: Any) -> Any:
    """Keep the columns of one Arrow schema that another has in the same type; nullable where either has it so."""
    import pyarrow as pa

    if one.equals(other):
        return one
    fields = {field.name: field for field in other}
    both = [(field, fields[field.name]) for field in one if field.name in fields]
    shared = [field.with_nullable(field.nullable or its.nullable) for field, its in both if field.type == its.type]
    return pa.schema(shared, one.metadata)


def remove_windows(directory: Place, run: str, part: str = "") -> None:
    """Remove the windows that workers stored for unfinished blocks, or for the block of one part."""
    for entry in directory.entries():
        name = entry.place.name
        if entry.is_file and name.startswith(f"_{part or 'part-'}") and name.endswith(f".{run}.window"):
            entry.place.delete()


def remove_parts(directory: Place, run: str, keep: Collection[str] = ()) -> None:
    """Remove the parts of a run except `keep`, and its half-written files; other files stay."""
    for entry in directory.entries():
        name = entry.place.name
        if not entry.is_file or name in keep or (entry.place.local or Path()).is_symlink():
            continue
        if name.startswith(".") and name.endswith(f".{run}.tmp"):
            entry.place.delete()
        elif is_part_name(name):
            with suppress(OutputError, OSError):
                if (about_part(entry.place) or {}).get("run") == run:
                    entry.place.delete()
