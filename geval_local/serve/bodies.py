"""Request bodies: bytes to plain values, within limits of size, time, depth and number.

What a refused request still sends is read and dropped by its connection, within the time that a connection has between
two requests: the client sees the reason and not a broken connection.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

from geval_local.serve.refusals import Refused

__all__ = ["MAX_DEPTH", "HeldBytes", "check_json_part", "read_body", "read_values", "unpack"]

MAX_DEPTH = 64
#: A body may be text for the most part, not millions of empty lists: each takes tens of bytes for its two.
MOST_VALUES = 250_000
#: Of an ``input_json`` part (openai-python's types say so).
PART_DEPTH, PART_VALUES, PART_BYTES = 32, 10_000, 256 << 10
#: Largest zstd window: a frame may request any size.
MOST_WINDOW = 8 << 20


class HeldBytes:
    """Total bytes of all request bodies in progress, over all clients."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def take(self, count: int) -> None:
        """Add bytes."""
        if self.held + count > self.most:
            raise Refused("the server holds too many texts already", 429, code="busy", headers={"Retry-After": "2"})
        self.held += count

    def give_back(self, count: int) -> None:
        """Remove bytes."""
        self.held -= count


async def read_body(
    chunks: AsyncIterator[bytes], *, limit: int, seconds: float, held: HeldBytes, taken: Callable[[int], object]
) -> bytes:
    """Receive a body."""

    async def collect() -> bytes:
        parts: list[bytes] = []
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise Refused(f"the body is larger than {limit} bytes", 413, code="body_too_large")
            held.take(len(chunk))
            taken(len(chunk))
            parts.append(chunk)
        return b"".join(parts)

    try:
        return await asyncio.wait_for(collect(), seconds)
    except (TimeoutError, asyncio.TimeoutError):
        raise Refused(f"the body took longer than {seconds:g} seconds", 408, headers={"Connection": "close"}) from None


def unpack(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Decode a body's Content-Encoding: zstd, or none."""
    if encoding is None or encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() != "zstd":
        raise Refused("only zstd is understood as Content-Encoding", 415)
    import zstandard

    parts: list[bytes] = []
    size = 0
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW)
        with decompressor.stream_reader(body, read_across_frames=True) as reader:
            while chunk := reader.read(1 << 20):
                size += len(chunk)
                if size > limit:
                    raise Refused(f"the unpacked body is larger than {limit} bytes", 413, code="body_too_large")
                parts.append(chunk)
    except zstandard.ZstdError:
        raise Refused("the body is not valid zstd") from None
    return b"".join(parts)


def read_values(body: bytes) -> dict[str, Any]:
    """Read a body as a JSON object: UTF-8, no key twice, no NaN, no half characters, of bounded depth and number."""
    try:
        text = body.decode("utf-8-sig")  # some clients on Windows begin with a byte order mark
        _refuse_many_values(text)
        values = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_object)
    except Refused:
        raise
    except RecursionError:
        raise Refused(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise Refused("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise Refused(f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise Refused("the body is not valid JSON: a number has too many digits") from None
    if not isinstance(values, dict):
        raise Refused("the body is not a JSON object")
    if "\\u" in text:
        _refuse_half_characters(values)
    if _measure(values, MAX_DEPTH)[0] > MAX_DEPTH:
        raise Refused(f"the body is nested deeper than {MAX_DEPTH} levels")
    return values


def check_json_part(value: Any) -> Any:
    """Give the data of an ``input_json`` part back; a ValueError says why they are none."""
    if not (isinstance(value, dict) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))):
        raise ValueError("data is an object or an array of objects")
    depth, count = _measure(value, PART_DEPTH)
    if depth > PART_DEPTH:
        raise ValueError(f"data is nested deeper than {PART_DEPTH} levels")
    if count > PART_VALUES:
        raise ValueError(f"data holds more than {PART_VALUES} values")
    if len(json.dumps(value, ensure_ascii=False).encode()) > PART_BYTES:
        raise ValueError(f"data is larger than {PART_BYTES} bytes")
    return value


def _refuse_many_values(text: str) -> None:
    """Count commas and brackets outside of strings, before anything is made of them."""
    signs = ",[{"
    if sum(map(text.count, signs)) <= MOST_VALUES:
        return
    plain = text.replace("\\\\", "").replace('\\"', "")
    if plain.count('"') <= 4 * MOST_VALUES:
        outside = "".join(plain.split('"')[::2])
        if sum(map(outside.count, signs)) <= MOST_VALUES:
            return
    raise Refused(f"the body holds more than {MOST_VALUES} values")


def _refuse_constant(name: str) -> Any:
    raise Refused(f"the body is not valid JSON: {name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Refused("the body is not valid JSON: a number is larger than any that can be kept")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise Refused("the body is ambiguous: an object holds a key twice")
    return record


def _refuse_half_characters(values: Any) -> None:
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused("the body holds half a surrogate pair, which is not text") from None
    except RecursionError:
        raise Refused(f"the body is nested deeper than {MAX_DEPTH} levels") from None


def _measure(value: Any, most: int) -> tuple[int, int]:
    """Return depth and number of values; stop beyond depth `most`."""
    count, depth, level = 0, 0, [value]
    while level and depth <= most:
        following: list[Any] = []
        for item in level:
            count += 1
            if isinstance(item, dict):
                following += item.values()
            elif isinstance(item, list):
                following += item
        depth += 1 if any(isinstance(item, dict | list) for item in level) else 0
        level = following
    return depth, count
