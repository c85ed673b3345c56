"""Read request bodies within limits, and refuse bad ones in the format of the route's dialect.

The connection reads and drops the rest of a refused request, within the idle time limit. So the client sees the reason
and not a broken connection.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from geval_local.fields import nearest

MAX_DEPTH = 64
#: Most values of a body: an empty list takes two bytes in JSON and tens of bytes in memory.
MOST_VALUES = 250_000
#: Largest zstd window, bytes: a frame may request any size.
MOST_WINDOW = 8 << 20

_Model = TypeVar("_Model", bound=BaseModel)

_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_IMAGES = ("image", "image_url", "box")
_FILES = ("file", "audio", "video")


@dataclass(eq=False)
class Refused(Exception):
    """A rejected request; its message is shown only to the client."""

    message: str
    status: int = 400
    _: KW_ONLY
    param: str | None = None
    code: str | None = None
    loc: Sequence[str | int] | None = None
    rule: str = "value_error"
    headers: Mapping[str, str] = field(default_factory=dict)


# --- bytes ------------------------------------------------------------------------------------------------------------


@dataclass
class HeldBytes:
    """Bytes of all request bodies in progress, over all clients."""

    most: int
    held: int = 0

    @contextmanager
    def of_one_request(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for one request; release them at the end."""
        own = 0

        def take(count: int) -> None:
            nonlocal own
            if self.held + count > self.most:
                raise Refused("the server holds too many texts already", 429, code="busy", headers={"Retry-After": "2"})
            self.held += count
            own += count

        try:
            yield take
        finally:
            self.held -= own


async def read_body(chunks: AsyncIterator[bytes], limit: int, take: Callable[[int], None]) -> bytes:
    """Receive a body."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise Refused(f"the body is larger than {limit} bytes", 413, code="body_too_large")
        take(len(chunk))
        parts.append(chunk)
    return b"".join(parts)


def unpack(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Decode a body's Content-Encoding: zstd, or none."""
    if encoding is None or encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() != "zstd":
        raise Refused("only zstd is understood as Content-Encoding", 415)
    import zstandard

    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW)
        with decompressor.stream_reader(body, read_across_frames=True) as reader:
            unpacked = reader.read(limit + 1)
    except zstandard.ZstdError:
        raise Refused("the body is not valid zstd") from None
    if len(unpacked) > limit:
        raise Refused(f"the unpacked body is larger than {limit} bytes", 413, code="body_too_large")
    return unpacked


# --- values -----------------------------------------------------------------------------------------------------------


def read_values(body: bytes) -> dict[str, Any]:
    """Read a body as a JSON object: UTF-8, no repeated key, no NaN, no lone surrogate, limited depth and count."""
    try:
        text = body.decode("utf-8-sig")  # some clients on Windows begin with a byte order mark
        _refuse_many_values(text)
        values = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_object)
        if measure(values, MAX_DEPTH)[0] > MAX_DEPTH:
            raise RecursionError
        if "\\u" in text:
            json.dumps(values, ensure_ascii=False).encode()
    except RecursionError:
        raise Refused(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise Refused("the body is not UTF-8") from None
    except UnicodeEncodeError:
        raise Refused("the body holds half a surrogate pair, which is not text") from None
    except json.JSONDecodeError as error:
        raise Refused(f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise Refused("the body is not valid JSON: a number has too many digits") from None
    if not isinstance(values, dict):
        raise Refused("the body is not a JSON object")
    return values


def measure(value: Any, most: int) -> tuple[int, int]:
    """Return depth and number of values; stop beyond depth `most`."""
    count, depth, level = 0, 0, [value]
    while level and depth <= most:
        count += len(level)
        inner = [item for item in level if isinstance(item, dict | list)]
        depth += 1 if inner else 0
        level = [part for item in inner for part in (item.values() if isinstance(item, dict) else item)]
    return depth, count


def _refuse_many_values(text: str) -> None:
    """Count commas and brackets outside of strings, before parsing allocates memory."""
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


# --- refused bodies ---------------------------------------------------------------------------------------------------


class Strict(BaseModel):
    """A part of a request: no other fields, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        # Stop at the first unknown field: pydantic itself would list all fields of a hostile body.
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                hint = nearest(name[:40], cls.model_fields) or f"; known are {', '.join(sorted(cls.model_fields))}"
                raise PydanticCustomError(
                    "extra_forbidden", "unknown field {field}{hint}", {"field": name[:40], "hint": hint}
                )
        return given


class _Error(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(TypedDict):
    """A rejection in OpenAI's format; also that of routes without a dialect."""

    error: _Error


class _Problem(TypedDict):
    loc: list[str | int]
    msg: str
    type: str


class _Reason(TypedDict):
    message: str
    error_type: str


class SystemOneError(TypedDict):
    """A rejection in System One's format."""

    detail: list[_Problem] | _Reason | str


def error_body(path: str, refused: Refused) -> dict[str, Any]:
    """Build the body of a rejection in the format of the route's dialect."""
    if path != "/v1/systemone":
        kind = _KINDS.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
        return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.code}}
    if refused.loc is not None:
        return {"detail": [{"loc": list(refused.loc), "msg": refused.message, "type": refused.rule}]}
    if refused.code is not None:
        return {"detail": {"message": refused.message, "error_type": refused.code}}
    return {"detail": refused.message}


def read_model(model: type[_Model], body: Any, path: str) -> _Model:
    """Read a body as the server does for a route; raise `Refused` if it is invalid."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        problem = error.errors()[0]
        raise refusal_of({**problem, "loc": ("body", *problem["loc"])}, body, path) from None


def refusal_of(problem: Mapping[str, Any], body: Any, path: str) -> Refused:
    """Turn a validation error of pydantic into a rejection that names the place."""
    kind, context = problem["type"], problem.get("ctx", {})
    loc = [part for part in problem["loc"] if part != "[key]"]
    message = str(problem["msg"]).removeprefix("Value error, ")
    code = None
    # A discriminator is a field's name in quotes, or a function of `dialects` that reads the type.
    named = "role" if context.get("discriminator") == "'role'" else "type"
    if kind == "missing":
        message, code = f"{loc[-1]} is missing", "missing_required_parameter"
    elif kind == "extra_forbidden":
        loc, code = [*loc, *([context["field"]] if "field" in context else [])], "unknown_parameter"
    elif kind in ("too_short", "too_long"):
        bound = f"least {context['min_length']}" if kind == "too_short" else f"most {context['max_length']}"
        message = f"the number of items is at {bound}, not {context['actual_length']}"
    elif kind == "union_tag_invalid":
        loc = [*loc, named]
        message = f"the {named} is one of {context['expected_tags']}{_unreadable(context['tag'])}"
    elif kind == "union_tag_not_found":
        message = f"an object with a {named} is needed"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        message = "an object is needed"
    elif kind == "literal_error":
        message += _unreadable(str(problem["input"]))
    names_field = kind in ("missing", "extra_forbidden", "union_tag_invalid")
    param = _param(loc[1:], body, names_field)
    if param and kind not in ("missing", "extra_forbidden"):
        message = f"{param}: {message}"
    if len(message) > 400:
        message = message[:400] + "..."
    # A key may be megabytes long.
    loc = [part[:200] if isinstance(part, str) else part for part in loc]
    status = 422 if path == "/v1/systemone" else 400
    return Refused(message, status, param=param[:200] or None, code=code, loc=loc, rule=kind)


def _param(loc: Sequence[str | int], body: Any, names_field: bool) -> str:
    """Write a place as ``questions[0].choices``, without the union members that pydantic adds."""
    found, value = "", body
    for part in loc:
        is_named = names_field and part is loc[-1]
        if isinstance(part, int) and isinstance(value, list) and part < len(value):
            found, value = f"{found}[{part}]", value[part]
        elif isinstance(part, str) and isinstance(value, dict) and (is_named or part in value):
            found, value = f"{found}.{part[:200]}".lstrip("."), value.get(part)
    return found


def _unreadable(kind: str) -> str:
    """Write that images or files cannot be read, for the part types of several APIs."""
    if not kind.endswith((*_IMAGES, *_FILES)):
        return ""
    return f"; {'images' if kind.endswith(_IMAGES) else 'files'} cannot be read: this server's models read text only"
