"""Rows of an Excel workbook, .xlsx: one sheet, whose first row names the columns. Needs openpyxl, the extra `excel`."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from geval_local.errors import Cause, DataError, ErrorCode
from geval_local.io.places import File
from geval_local.io.rows import RawRow, refuse_repeated
from geval_local.io.text_files import open_bytes


def excel_rows(path: File, rows: str | None = None) -> Iterator[RawRow]:
    """Read the rows of a workbook's sheet `rows`; without a name, of the only sheet that holds any.

    Cells have the values that were last computed. A row with a formula that no program has computed, such as one that
    a script wrote, is invalid, since its value is known to nobody.
    """
    try:
        from openpyxl import load_workbook
    except ImportError:
        hint = "Install it with `pip install 'geval-local[excel]'`, or save the sheet as CSV."
        raise DataError(f"reading {path} needs openpyxl, the `excel` extra", hint=hint) from None
    with open_bytes(path) as file:
        content = file.read()
    try:
        # What cells show, and what stands in them: of a formula that was never computed, only the second is there.
        shown, held = (
            load_workbook(io.BytesIO(content), read_only=True, data_only=is_shown) for is_shown in (True, False)
        )
        sheet = _sheet(held, path, rows)
        both = zip(_lines(shown[sheet]), _lines(held[sheet]), strict=True)
        full = ((values, formulas) for values, formulas in both if _width(formulas))
        names, _ = next(full, ((), ()))
        header = ["" if name is None else str(name) for name in names[: _width(names)]]
        refuse_repeated(header, path)
        for number, (values, formulas) in enumerate(full, start=1):
            yield _row(number, header, values, formulas)
    except (zipfile.BadZipFile, KeyError, ValueError, SyntaxError) as error:  # a damaged document is a SyntaxError
        hint = "Save it again as .xlsx without a password, or as CSV."
        raise DataError(f"{path} is not a readable Excel workbook: {error}", hint=hint) from error


def _sheet(book: Any, path: File, name: str | None) -> str:
    """Return the name of the sheet to read."""
    full = [one.title for one in book.worksheets if any(map(_width, _lines(one)))]
    if name is not None and name not in full:
        raise DataError(f"{path} has no sheet {name!r} with rows; sheets with rows: {', '.join(full) or 'none'}")
    if name is None and len(full) > 1:
        raise DataError(f"{path} has rows on several sheets: {', '.join(full)}", hint=f"Name one: `rows={full[0]}`.")
    return name or next(iter(full), book.worksheets[0].title)


def _lines(sheet: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of a sheet, row by row."""
    sheet.reset_dimensions()  # what a workbook says of its size may be wrong
    yield from sheet.iter_rows(values_only=True)


def _width(cells: tuple[Any, ...]) -> int:
    """Count the cells up to the last that is not empty."""
    return max((place for place, cell in enumerate(cells, start=1) if cell is not None), default=0)


def _row(number: int, header: list[str], values: tuple[Any, ...], formulas: tuple[Any, ...]) -> RawRow:
    """Make a row of its cells."""
    if (width := _width(formulas)) > len(header):
        why = f"{width} cells where the header has {len(header)} columns"
        return RawRow(
            number,
            {"raw": ["" if cell is None else str(cell) for cell in values[:width]]},
            Cause(why, ErrorCode.INVALID_ROW),
        )
    fields = dict(zip_longest(header, values[: len(header)]))
    unknown = [
        name for name, formula in zip(header, formulas, strict=False) if fields[name] is None and formula is not None
    ]
    if not unknown:
        return RawRow(number, fields)
    why = f"the column {unknown[0]!r} holds a formula that was never computed; open the workbook and save it"
    return RawRow(number, fields, Cause(why, ErrorCode.INVALID_ROW))
