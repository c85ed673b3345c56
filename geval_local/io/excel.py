"""Lines of an Excel workbook, .xlsx. Needs openpyxl, the extra `excel`."""

from __future__ import annotations

import io
import shlex
import zipfile
from collections.abc import Iterator
from typing import Any

from geval_local.errors import DataError
from geval_local.io.places import File, open_bytes
from geval_local.io.text_files import EXPANSION_BYTES, MOST_EXPANSION


def sheet_lines(path: File, name: str | None) -> Iterator[tuple[list[Any], int | None]]:
    """Yield the cells of each line of a sheet that is not empty, up to the last that is not.

    Cells have the values that were last computed; the second value is the place of a formula that no program has
    computed, such as one that a script wrote: its value is known to nobody. `name` is the sheet; None takes the only
    one that holds anything.
    """
    try:
        from openpyxl import load_workbook
    except ImportError:
        hint = "Install it with `pip install 'geval-local[excel]'`, or save the sheet as CSV."
        raise DataError(f"reading {path} needs openpyxl, the `excel` extra", hint=hint) from None
    with open_bytes(path) as file:
        content = file.read()
    try:
        for part in zipfile.ZipFile(io.BytesIO(content)).infolist():
            most = max(EXPANSION_BYTES, MOST_EXPANSION * part.compress_size)
            if part.filename.endswith(".xml") and part.file_size > most:
                told = f"{path} expands to more than {MOST_EXPANSION} times its size"
                raise DataError(told, hint="Look at it; if all of it is meant, save the sheet as CSV.")
        # What cells show, and what stands in them: of a formula that was never computed, only the second is there.
        shown, held = (
            load_workbook(io.BytesIO(content), read_only=True, data_only=is_shown) for is_shown in (True, False)
        )
        title = _chosen(held, path, name)
        if title is None:
            return
        for cells, written in zip(_lines(shown[title]), _lines(held[title]), strict=True):
            # An empty text that a formula gave has no value, but the type of a formula's text.
            values = ["" if one.value is None and one.data_type == "str" else one.value for one in cells]
            places = [place for place, one in enumerate(written) if one.value is not None]
            if places:
                yield values[: places[-1] + 1], next((place for place in places if values[place] is None), None)
    except (zipfile.BadZipFile, KeyError, ValueError, SyntaxError) as error:  # a damaged document is a SyntaxError
        hint = "Save it again as .xlsx without a password, or as CSV."
        raise DataError(f"{path} is not a readable Excel workbook: {error}", hint=hint) from error


def _chosen(book: Any, path: File, name: str | None) -> str | None:
    """Return the name of the sheet to read; None if none holds anything."""
    full = [
        one.title for one in book.worksheets if any(cell.value is not None for line in _lines(one) for cell in line)
    ]
    if name is not None and name not in full:
        raise DataError(f"{path} has no sheet {name!r} with rows; sheets with rows: {', '.join(full) or 'none'}")
    if name is None and len(full) > 1:
        told = f"{path} has rows on several sheets: {', '.join(full)}"
        raise DataError(told, hint=f"Name one: `rows={shlex.quote(full[0])}`.")
    return name or next(iter(full), None)


def _lines(sheet: Any) -> Iterator[tuple[Any, ...]]:
    sheet.reset_dimensions()  # what a workbook says of its size may be wrong
    yield from sheet.iter_rows()
