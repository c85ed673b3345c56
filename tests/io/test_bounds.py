"""Input that would take memory or time without end is refused, with its reason, before it does."""

from __future__ import annotations

import gzip
import io
import json
import os
import random

import pytest

from geval_local.errors import ConfigurationError, DataError
from geval_local.io import text_files
from geval_local.io.input_files import read_samples
from geval_local.io.rows import read_rows


class Endless(io.RawIOBase):
    """A file whose only line never ends; it notes how much of it was read."""

    def __init__(self, start: bytes) -> None:
        self._start, self.given = start, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if self.given > 1 << 22:
            raise AssertionError("nobody stopped reading")
        text = (self._start if not self.given else b"").ljust(len(buffer), b"a")
        buffer[:] = text[: len(buffer)]
        self.given += len(buffer)
        return len(buffer)


@pytest.mark.parametrize(
    ("name", "start"),
    [("d.jsonl", b'{"output":"x"}\n{"output":"'), ("d.jsonl", b"x"), ("d.csv", b"output\nx\n"), ("d.csv", b"output")],
)
def test_a_line_is_bounded_while_it_is_read(tmp_path, monkeypatch, name, start):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setattr(text_files, "MOST_IN_A_LINE", 1 << 16)
    monkeypatch.setattr(text_files, "unpacked", lambda path: io.BufferedReader(Endless(start)))
    with pytest.raises(DataError, match=rf"{name}, line \d is longer than 65,536 characters"):
        list(read_rows(tmp_path / name))


def test_lines_up_to_the_bound_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MOST_IN_A_LINE", 100)
    text = [json.dumps({"output": "x" * (99 - len('{"output": ""}'))}), json.dumps({"output": "é"})]
    (tmp_path / "d.jsonl").write_text("\n".join(text), encoding="utf-8")
    assert [row.error for row in read_rows(tmp_path / "d.jsonl")] == [None, None]


BOMBS = {
    "one line": ("d.jsonl.gz", b'{"output": "', b"a"),
    "empty rows": ("d.jsonl.gz", b"", b"{}\n"),
    "blank lines": ("d.jsonl.gz", b"", b"\n"),
    "after ordinary rows": ("d.jsonl.gz", b'{"output": "%s"}\n' % os.urandom(1 << 16).hex().encode(), b"\n"),
    "a list": ("d.json.gz", b"[", b"{},"),
    "a cell": ("d.csv.gz", b"output\n", b"a"),
    "without the extension": ("d.jsonl", b"", b"{}\n"),
}


def test_no_row_of_a_bomb_is_read_before_it_is_refused(tmp_path):
    path = tmp_path / "d.jsonl.gz"
    with gzip.open(path, "wb") as packed:
        packed.write(b"{}\n" * (1 << 21))
    with pytest.raises(DataError, match="expands to more than 800 times its size"):
        next(iter(read_rows(path)))


@pytest.mark.parametrize("name", BOMBS)
def test_gzip_that_expands_beyond_measure_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text_files, "EXPANSION_BYTES", 1 << 18)
    file, start, more = BOMBS[name]
    path = tmp_path / file
    with gzip.open(path, "wb", compresslevel=9) as packed:
        packed.write(start + more * ((1 << 22) // len(more)))
    with pytest.raises(DataError, match="expands to more than 800 times its size") as caught:
        list(read_rows(path))
    assert "gunzip" in caught.value.hint


def test_candidates_of_long_documents_compress_well_and_are_read(tmp_path):
    path, number = tmp_path / "d.jsonl.gz", random.Random(0)
    source = "The quick brown fox jumps. " * 700
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=9) as packed:
        for row in range(600):
            packed.write(json.dumps({"id": row, "source": source, "output": f"It ends at {number.random()}."}) + "\n")
    assert path.stat().st_size * 200 < 600 * len(source)
    assert sum(row.error is None for row in read_rows(path)) == 600


@pytest.mark.parametrize("limit", [0, -1, 2**63, 10**23])
def test_a_limit_that_no_file_can_have_is_refused(tmp_path, limit):
    (tmp_path / "d.jsonl").write_text('{"output": "x"}\n')
    with pytest.raises(ConfigurationError, match="limit: Input should be at "):
        read_samples(tmp_path / "d.jsonl", limit=limit)
    assert len(list(read_samples(tmp_path / "d.jsonl", limit=2**63 - 1))) == 1
