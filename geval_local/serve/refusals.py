"""Refusals: why a request is turned away, and how each dialect says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Refused", "openai_body", "system_one_body"]

_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refused(Exception):
    """A request that is turned away; never shown to anyone but its client.

    Parameters
    ----------
    message : str
        What is wrong, without the request's texts.
    status : int
        HTTP status.
    param : str, optional
        Where, as OpenAI writes it: ``questions[0].choices``.
    code : str, optional
        A word for machines.
    loc : sequence of (str or int), optional
        Where, as FastAPI writes it.
    rule : str
        Which rule, as FastAPI writes it.
    headers : mapping of str to str, optional
        Sent with the answer.
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
    """Say it as OpenAI does; also for routes that belong to no dialect."""
    kind = _KINDS.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
    return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.code}}


def system_one_body(refused: Refused) -> dict[str, Any]:
    """Say it as System One does."""
    if refused.loc is not None:
        return {"detail": [{"loc": list(refused.loc), "msg": refused.message, "type": refused.rule}]}
    if refused.code is not None:
        return {"detail": {"message": refused.message, "error_type": refused.code}}
    return {"detail": refused.message}
