"""Rejected requests: one exception, words for what a model of pydantic's rejects, and the format of each dialect."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

__all__ = ["OpenAIError", "Refused", "Strict", "SystemOneError", "error_body", "read_model", "refusal_of"]

_Model = TypeVar("_Model", bound=BaseModel)

_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_FILES = ("image", "image_url", "file", "audio", "video")


class Refused(Exception):
    """A rejected request; its message is shown only to the client."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        loc: Sequence[str | int] | None = None,
        rule: str = "value_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.loc = loc
        self.rule = rule
        self.headers = dict(headers or {})


class Strict(BaseModel):
    """A part of a request: no other fields, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name in given if isinstance(given, dict) else ():
            if name not in known:
                near = difflib.get_close_matches(name[:40], known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
                raise PydanticCustomError(
                    "extra_forbidden", "unknown field {field}; {hint}", {"field": name[:40], "hint": hint}
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


def refusal_of(problem: Mapping[str, Any], body: Any, path: str) -> Refused:
    """Say in words what pydantic found wrong with a body, and where."""
    kind, context = problem["type"], problem.get("ctx", {})
    loc = [part for part in problem["loc"] if part != "[key]"]
    message = str(problem["msg"]).removeprefix("Value error, ")
    code = None
    # A discriminator is a field's name in quotes, or a function of ours that reads the type.
    field = "role" if context.get("discriminator") == "'role'" else "type"
    if kind == "missing":
        message, code = f"{loc[-1]} is missing", "missing_required_parameter"
    elif kind == "extra_forbidden":
        loc, code = [*loc, *([context["field"]] if "field" in context else [])], "unknown_parameter"
    elif kind == "union_tag_invalid":
        loc = [*loc, field]
        message = f"the {field} is one of {context['expected_tags']}{_unreadable(context['tag'])}"
    elif kind == "union_tag_not_found":
        message = f"an object with a {field} is needed"
    elif kind == "literal_error":
        message += _unreadable(str(problem["input"]))
    names_field = kind in ("missing", "extra_forbidden", "union_tag_invalid")
    param = _param(loc[1:] if names_field else [*loc[1:], 0], body)
    if param and kind not in ("missing", "extra_forbidden"):
        message = f"{param}: {message}"
    if len(message) > 400:
        message = message[:400] + "..."
    # A key may be megabytes long.
    loc = [part[:200] if isinstance(part, str) else part for part in loc]
    status = 422 if path == "/v1/systemone" else 400
    return Refused(message, status, param=param[:200] or None, code=code, loc=loc, rule=kind)


def read_model(model: type[_Model], body: Any, path: str) -> _Model:
    """Read a body as the server does for a route; a `Refused` if it does not fit."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        problem = error.errors()[0]
        raise refusal_of({**problem, "loc": ("body", *problem["loc"])}, body, path) from None


def _param(loc: Sequence[str | int], body: Any) -> str:
    """Write a place as ``questions[0].choices``: pydantic also names the kinds of what may be several things."""
    found, value = "", body
    for part in loc:
        if isinstance(part, int) and isinstance(value, list) and part < len(value):
            found, value = f"{found}[{part}]", value[part]
        elif isinstance(part, str) and isinstance(value, dict) and (part in value or part == loc[-1]):
            found, value = f"{found}.{part[:200]}".lstrip("."), value.get(part)
    return found


def _unreadable(kind: str) -> str:
    """Say that a kind of part or item, in any API's words, cannot be read."""
    if not kind.endswith((*_FILES, "box")):
        return ""
    what = "images" if kind.endswith(("image", "image_url", "box")) else "files"
    return f"; {what} cannot be read: this server's models read text only"
