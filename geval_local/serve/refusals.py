"""Rejected requests, and the format of their responses in each dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Refused", "openai_body", "system_one_body"]

_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refused(Exception):
    """A rejected request; its message is shown only to the client.

    Parameters
    ----------
    message : str
        Description of the problem, without the request's texts.
    status : int
        HTTP status.
    param : str, optional
        Place of the problem in OpenAI's notation: ``questions[0].choices``.
    code : str, optional
        Machine-readable code.
    loc : sequence of (str or int), optional
        Place of the problem in FastAPI's notation.
    rule : str
        Violated rule in FastAPI's notation.
    headers : mapping of str to str, optional
        Headers of the response.
    """

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


def openai_body(refused: Refused) -> dict[str, Any]:
    """Build the response body in OpenAI's format; also used for routes without a dialect."""
    kind = _KINDS.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
    return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.code}}


def system_one_body(refused: Refused) -> dict[str, Any]:
    """Build the response body in System One's format."""
    if refused.loc is not None:
        return {"detail": [{"loc": list(refused.loc), "msg": refused.message, "type": refused.rule}]}
    if refused.code is not None:
        return {"detail": {"message": refused.message, "error_type": refused.code}}
    return {"detail": refused.message}
