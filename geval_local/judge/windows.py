"""Windows: how many rows are prepared and planned together.

A model computes one window while the next is read and tokenized. The first windows are smaller, so that it does not
wait for thousands of rows before its first pack. Two runs over one file give bit-identical figures because they cut it
into the same windows.
"""

from __future__ import annotations

from collections.abc import Iterator

from geval_local.errors import ConfigurationError

#: Rows of a window; documents that a border cuts are computed twice.
WINDOW = 4096
#: The first windows have these shares of a window: with 4096 rows, 256, 512, 1024 and 2048.
_SHARES = (16, 8, 4, 2)
#: Smaller windows are prepared in no time.
_LEAST = 2048
_MOST = 1 << 31


def full_window(rows: int | None, default: int = WINDOW) -> int:
    """Return the rows of a full window as they are asked for."""
    if rows is not None and not 1 <= rows <= _MOST:
        raise ConfigurationError(f"a window has 1 to {_MOST} rows, not {rows}", hint="Leave it out.")
    return rows or default


def window_piece(rows: int) -> int:
    """Return the number of rows of which all windows but the last are multiples, given the rows of a full window."""
    return rows // _SHARES[0] if rows >= _LEAST and rows % _SHARES[0] == 0 else rows


def window_sizes(rows: int) -> Iterator[int]:
    """Yield the sizes of windows, without end, given the rows of a full window."""
    if window_piece(rows) != rows:
        yield from (rows // share for share in _SHARES)
    while True:
        yield rows
