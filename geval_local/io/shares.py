"""Shares: the rows of an input that one of several runs scores; all shares together contain every row exactly once.

Each run finds its own share; runs exchange nothing. A cut is at a fixed fraction of the files' bytes, moved to the next
row that begins a new document; a document that is larger than a share is cut at a row. A run therefore reads its own
rows, and the earlier bytes of its first file, to know the numbers of its rows. With windows, a run counts the rows of
all files, and cuts are at the window borders of an undivided run.
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from geval_local.errors import DataError
from geval_local.grouping import DocumentRule
from geval_local.io.input_files import file_samples, names_of, read_input
from geval_local.io.pairs import PairPlan, pair_samples
from geval_local.io.places import File, Place, address_of, file_at, state_of
from geval_local.io.rows import (
    RawRow,
    format_of,
    guarded,
    is_over_lines,
    line_rows,
    parquet_rows,
    read_rows,
    rows_and_failure,
)
from geval_local.io.samples import Sample
from geval_local.io.shapes import Shape
from geval_local.io.text_files import bounded_lines, encoding_of, kind_of_no_text
from geval_local.options import RunOptions

_HEAD_BYTES = 4096

Count = Annotated[int, Field(ge=0)]
#: A cut: the number of a file, and the byte or row in it, all from 0.
At = tuple[Count, Count]


class EmptyShareError(DataError):
    """A share without rows: there are fewer rows than shares, or some rows are larger than a share."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Stretch(_Record):
    """Rows of one file."""

    #: Absolute path.
    path: str
    #: Name of the file among several; empty if it is the only one.
    name: str = ""
    #: The first row, and the one after the last: by bytes or by rows, from 0; None is the end of the file.
    start: Count = 0
    stop: Count | None = None
    #: Number of the first row in its file.
    number: Annotated[int, Field(ge=1)] = 1
    by_bytes: bool = False


class Share(_Record):
    """Rows of an input that one run scores."""

    #: Hash of the names and sizes of all files of the input.
    listing: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    #: Where the share begins and ends, and the end of the input: the shares of an input follow each other.
    first: At
    last: At
    end: At
    #: The files with rows of the share; all files if `samples` is set.
    stretches: Annotated[list[Stretch], Field(min_length=1)]
    #: Number of windows of an undivided run before the share, if the share begins with a window.
    windows: Count = 0
    #: For samples that are made from rows, such as pairs: number of the first sample, from 0, and of the one after the
    #: last.
    samples: tuple[Count, Count] | None = None


def share_numbers(text: str | None) -> tuple[int, int]:
    """Read the number of a share, from 1, and how many there are: ``3/8``."""
    number, count = map(int, str(text).split("/"))
    return number, count


def share_name(text: str) -> str:
    """Name the directory of a share: ``shard-0003-of-0008``."""
    number, count = share_numbers(text)
    return f"shard-{number:04d}-of-{count:04d}"


class _Cut(NamedTuple):
    """Place in the input."""

    file: int
    #: A byte of a file that is read by bytes, else a row.
    place: int = 0
    #: Number of the row there.
    number: int = 1
    #: Number of windows before it.
    windows: int = 0


def has_a_line_a_row(place: Place) -> bool:
    """Whether a file has one row per line, so that it can be cut at any line and read by bytes."""
    if format_of(place.name) not in (".jsonl", ".ndjson") or place.name.lower().endswith(".gz"):
        return False
    head = place.read(_HEAD_BYTES)
    if encoding_of(head) != "utf-8-sig" or kind_of_no_text(head) is not None:
        return False
    with place.lines_file() as source:
        text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="\n")
        return not is_over_lines(bounded_lines(text, place.address))


def is_blank(raw: bytes) -> bool:
    """Whether a line is only white space, and so no row."""
    # Text has more white-space characters than bytes.
    return not raw.strip() or (len(raw) < 64 and not raw.decode("utf-8-sig", "surrogateescape").strip())


def share_of(
    paths: Sequence[File],
    options: RunOptions,
    *,
    sizes: Iterable[int] | None = None,
    pairs: PairPlan | None = None,
    documents: DocumentRule | None = None,
) -> Share:
    """Find the share that the options name, ``shard="3/8"``; parameters and errors as of `shares_of`.

    Raises
    ------
    EmptyShareError
        If no row is left for this share.
    """
    number, count = share_numbers(options.shard)
    found = shares_of(paths, options, count, [number], sizes=sizes, pairs=pairs, documents=documents)
    if not found:
        raise EmptyShareError(
            f"no row is left for the share {options.shard}: there are fewer rows, or windows, than shares",
            hint="`merge` does without it; fewer shares would leave none idle.",
        )
    return found[number]


def shares_of(
    paths: Sequence[File],
    options: RunOptions,
    count: int,
    numbers: Iterable[int] | None = None,
    *,
    sizes: Iterable[int] | None = None,
    pairs: PairPlan | None = None,
    documents: DocumentRule | None = None,
) -> dict[int, Share]:
    """Find shares of an input in one pass, by their numbers from 1; those without rows are left out.

    Parameters
    ----------
    paths : sequence of Path or Place
        The files of the input.
    options : RunOptions
        How they are read.
    count : int
        Number of all shares.
    numbers : iterable of int, optional
        Which are asked for, ascending; all if absent.
    sizes : iterable of int, optional
        Number of rows of each window of an undivided run; shares then begin with windows.
    pairs : PairPlan, optional
        The plan of pairs; shares are then shares of the pairs.
    documents : DocumentRule, optional
        What decides which rows are one document; shares do not cut documents.

    Raises
    ------
    DataError
        If a file cannot be read.
    """
    wanted = list(range(1, count + 1) if numbers is None else numbers)
    parts = sorted({part for number in wanted for part in (number - 1, number)})
    given = _Input(paths, options, documents)
    is_shaped = Shape(options).multiplies
    if pairs is not None or options.limit is not None or (is_shaped and sizes is not None):
        make = _shares_of_samples(given, parts, count, sizes, pairs)
    else:
        cuts = (
            [given.cut_by_size(part, count) for part in parts]
            if sizes is None
            else given.cuts_by_windows(parts, count, sizes)
        )
        make = partial(_share_between, given, dict(zip(parts, cuts, strict=True)))
    shares = {number: make(number) for number in wanted}
    return {number: share for number, share in shares.items() if share is not None}


def _share_between(given: _Input, cuts: Mapping[int, _Cut], number: int) -> Share | None:
    first, last = cuts[number - 1], cuts[number]
    if first[:2] == last[:2]:
        return None
    return Share(
        listing=given.listing,
        first=first[:2],
        last=last[:2],
        end=(len(given.paths), 0),
        stretches=list(given.stretches(first, last)),
        windows=first.windows,
    )


def listing_of(paths: Sequence[File], options: RunOptions) -> str:
    """Hash the names and sizes of the files of an input."""
    return _Input(paths, options).listing


def _shares_of_samples(
    given: _Input, parts: Iterable[int], count: int, sizes: Iterable[int] | None, pairs: PairPlan | None
) -> Callable[[int], Share | None]:
    """Cut samples that are made from rows, or are a part of them; this reads all rows."""

    def samples() -> Iterator[Sample]:
        found = read_input(given.paths, given.options)
        return found if pairs is None else pair_samples(found, pairs, given.documents)

    borders, before, total = [0], None, 0
    for total, sample in enumerate(samples(), start=1):
        document = given.documents.document(sample.fields)
        if total > 1 and (document is None or document != before):
            borders.append(total - 1)
        before = document
    borders = [*borders, total] if sizes is None else _borders(total, sizes)
    ends = {}
    for part in parts:
        target = total * part // count
        border = borders[bisect_left(borders, target)] if part else 0
        is_far = sizes is None and part < count and (border - target > total // count or border == total)
        ends[part] = target if is_far else border

    def share(number: int) -> Share | None:
        first, last = ends[number - 1], ends[number]
        if first == last:
            return None
        return Share(
            listing=given.listing,
            first=(0, first),
            last=(0, last),
            end=(0, total),
            stretches=list(given.stretches(_Cut(0), _Cut(len(given.paths)))),
            windows=0 if sizes is None else borders.index(first),
            samples=(first, last),
        )

    return share


def _borders(rows: int, sizes: Iterable[int]) -> list[int]:
    """List the rows at which windows begin, and the end."""
    borders, ends = [0], accumulate(sizes)
    while borders[-1] < rows:
        borders.append(min(rows, next(ends)))
    return borders


class _Input:
    """The files of an input, read only as far as a cut needs."""

    def __init__(self, paths: Sequence[File], options: RunOptions, documents: DocumentRule | None = None) -> None:
        self.paths = paths
        self.options = options
        self.documents = documents or DocumentRule.of(mapping=options.fields, group_by=options.group_by)
        self._names = names_of(paths) if len(paths) > 1 else [""] * len(paths)
        try:
            self._sizes = [state_of(path)[0] for path in paths]
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise DataError(f"cannot read {what}", hint="Check the path.") from error
        self._before = [0, *accumulate(self._sizes)]
        self._by_bytes: dict[int, bool] = {}
        #: The rows of files that have been counted, and the file that is being read.
        self._lengths: dict[int, int] = {}
        self._passes: dict[int, _Pass] = {}

    @property
    def listing(self) -> str:
        """Hash of names and sizes."""
        names = (name or path.name for name, path in zip(self._names, self.paths, strict=True))
        told = "\n".join(f"{size} {name}" for size, name in zip(self._sizes, names, strict=True))
        return hashlib.sha256(told.encode()).hexdigest()

    def stretches(self, first: _Cut, last: _Cut) -> Iterator[Stretch]:
        """List the files between two cuts."""
        for file in range(first.file, last.file + (last.place > 0)):
            begins, ends = file == first.file and first.place > 0, file == last.file
            yield Stretch(
                path=address_of(self.paths[file]),
                name=self._names[file],
                start=first.place if begins else 0,
                stop=last.place if ends else None,
                number=first.number if begins else 1,
                by_bytes=(begins or ends) and self._is_by_bytes(file),
            )

    def _is_by_bytes(self, file: int) -> bool:
        if file not in self._by_bytes:
            place = Place(str(self.paths[file]))
            self._by_bytes[file] = self.options.encoding is None and has_a_line_a_row(place)
        return self._by_bytes[file]

    # --- cuts ---------------------------------------------------------------------------------------------------------

    def cut_by_size(self, part: int, count: int) -> _Cut:
        """Find the first document that begins at or after `part` / `count` of all bytes, or of a file's rows.

        Without a new document within a share's size, or before the end of the input, it is the first row there.
        """
        target = self._before[-1] * part // count
        file = bisect_right(self._before, target) - 1
        offset = 0 if file >= len(self.paths) else target - self._before[file]
        if part in (0, count) or offset == 0:
            return _Cut(0 if part == 0 else file if part < count else len(self.paths))
        size = self._sizes[file]
        places = size if self._is_by_bytes(file) else self._rows(file)
        start, most = max(1, places * offset // size), places * (self._before[-1] // count) // size
        rows = self._pass_over(file, start - 1)
        while rows.at is not None and rows.at.place < start:
            rows.step()
        first = rows.at
        while rows.at is not None and first is not None:
            document = self._document_of(rows.at)
            if document is None or document != self._document_of(rows.before):
                return _Cut(file, rows.at.place, rows.at.before + 1)
            if rows.at.place >= start + most:
                return _Cut(file, first.place, first.before + 1)
            rows.step()
        is_end = first is not None and file + 1 == len(self.paths)
        return _Cut(file, first.place, first.before + 1) if first is not None and is_end else _Cut(file + 1)

    def cuts_by_windows(self, parts: Sequence[int], count: int, sizes: Iterable[int]) -> list[_Cut]:
        """Find window borders of an undivided run, for ascending parts."""
        before = [0, *accumulate(map(self._rows, range(len(self.paths))))]
        borders = _borders(before[-1], sizes)
        found = []
        for part in parts:
            target = before[-1] * part // count
            windows = bisect_left(borders, target)
            windows -= windows > 0 and target - borders[windows - 1] < borders[windows] - target
            file = bisect_right(before, borders[windows]) - 1 if part < count else len(self.paths)
            index = 0 if file >= len(self.paths) else borders[windows] - before[file]
            found.append(_Cut(file, self._place_of(file, index) if index else 0, index + 1, windows))
        return found

    def _place_of(self, file: int, index: int) -> int:
        """Find the place of a row."""
        rows = self._pass_over(file, index)
        while rows.at is not None and rows.at.before < index:
            rows.step()
        if rows.at is None:
            raise DataError(
                f"{self.paths[file]} was changed while it was read", hint="Try again once nothing writes to it."
            )
        return rows.at.place

    def _rows(self, file: int) -> int:
        """Count the rows of a file."""
        if file not in self._lengths:
            self._lengths[file] = self._count(file)
        return self._lengths[file]

    def _count(self, file: int) -> int:
        if self._is_parquet(file):
            from geval_local.io.parquet import row_count  # needs pyarrow

            if (rows := row_count(self.paths[file])) is not None:
                return rows
        return sum(1 for _ in self._located(file))

    def _pass_over(self, file: int, start: int) -> _Pass:
        """Pass over the rows of a file from one on, or from where an earlier cut has left it: it is read only once."""
        if self._is_parquet(file):
            return _Pass(self._located(file, start))
        if file not in self._passes:
            self._passes = {file: _Pass(self._located(file))}
        return self._passes[file]

    def _located(self, file: int, start: int = 0) -> Iterator[_Located]:
        if self._is_by_bytes(file):
            place = index = 0
            with Place(str(self.paths[file])).seekable_file() as source:
                for line in source:
                    if not is_blank(line):
                        yield _Located(index, place, line)
                        index += 1
                    place += len(line)
            return
        rows = stretch_rows(Stretch(path=str(self.paths[file]), start=start), self.options)
        for index, row in enumerate(rows_and_failure(rows, alone=len(self.paths) == 1, before=start), start):
            yield _Located(index, index, row)

    def _document_of(self, one: _Located | None) -> Any:
        row = None if one is None else one.row
        if isinstance(row, bytes):
            row = next(line_rows([row.decode("utf-8-sig", "surrogateescape")]), None)
        return None if row is None or row.error is not None else self.documents.document(row.fields)

    def _is_parquet(self, file: int) -> bool:
        return format_of(self.paths[file].name) == ".parquet"


class _Located(NamedTuple):
    """A row of a file: how many are before it, its place as in a `_Cut`, and itself or its line."""

    before: int
    place: int
    row: RawRow | bytes


class _Pass:
    """A pass over the rows of a file: the next one, and the one before it."""

    def __init__(self, rows: Iterator[_Located]) -> None:
        self._rows = rows
        self.before: _Located | None = None
        self.at = next(rows, None)

    def step(self) -> None:
        """Go on by a row."""
        self.before, self.at = self.at, next(self._rows, None)


# --- the rows of a share ----------------------------------------------------------------------------------------------


def stretch_rows(stretch: Stretch, options: RunOptions) -> Iterator[RawRow]:
    """Read the rows of a stretch, with the numbers that they have in their file."""
    path = file_at(stretch.path)
    if stretch.by_bytes:
        return guarded(lambda path, encoding: line_rows(_lines(stretch), stretch.number), path, options.encoding)
    if format_of(path.name) == ".parquet" and (stretch.start or stretch.stop is not None):
        read = partial(parquet_rows, first=stretch.start, stop=stretch.stop)
        return guarded(lambda path, encoding: read(path), path, options.encoding)
    return islice(read_rows(path, **options.reading), stretch.start, stretch.stop)


def _lines(stretch: Stretch) -> Iterator[str]:
    with Place(stretch.path).seekable_file() as file:
        place, encoding = file.seek(stretch.start), "utf-8" if stretch.start else "utf-8-sig"
        for line in bounded_lines(file, stretch.path):
            if stretch.stop is not None and place >= stretch.stop:
                return
            yield line.decode(encoding, "surrogateescape")
            place, encoding = place + len(line), "utf-8"


def read_share(share: Share, options: RunOptions) -> Iterator[Sample]:
    """Read the rows of a share in order, as `geval_local.io.input_files.read_input` reads those of an input.

    A repeated id is no error here, since the first row with that id may be in another share. Joining the shares detects
    it.
    """
    shape = Shape(options)
    for stretch in share.stretches:
        rows, path = stretch_rows(stretch, options), file_at(stretch.path)
        for sample in file_samples(rows, path, stretch.name, options, before=stretch.start, repeated={}):
            yield from shape.samples(sample)
