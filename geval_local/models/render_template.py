"""Render chat templates, run as a script: in a process of its own, with bounded time and memory.

A template is a program from somebody else's repository. jinja2's sandbox keeps it from the machine, not from looping
for ever or building a text of ten gigabytes. This script reads a task as JSON from stdin and writes a list of results
to stdout. What templates find is what transformers gives them, except for the date, which is always the same one: a
score must not depend on the day.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules must not stand before others of the same names

import contextlib
import datetime
import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

__all__ = ["render"]

_SECONDS = 5
_MEMORY = 1 << 30
_MOST_CHARACTERS = 1 << 20
#: The date that Llama's own templates fall back to.
_DATE = datetime.datetime(2024, 7, 26)


class _Generation(jinja2.ext.Extension):
    """The tag around what an assistant wrote, which training makes use of; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(task: dict[str, Any]) -> list[dict[str, str]]:
    """Render one template several times.

    Parameters
    ----------
    task : dict
        ``template``, and ``calls``: for each rendering the variables that the template is given.

    Returns
    -------
    list of dict
        For each call its ``text`` or its ``error``.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _DATE.strftime
    try:
        template = environment.from_string(task["template"])
    except Exception as error:
        return [_failure(error)] * len(task["calls"])
    return [_attempt(template, call) for call in task["calls"]]


def _attempt(template: jinja2.Template, variables: dict[str, Any]) -> dict[str, str]:
    try:
        text = template.render(**variables)
    except Exception as error:  # a template may do anything that an expression can
        return _failure(error)
    if len(text) > _MOST_CHARACTERS:
        return {"error": f"it writes {len(text):,} characters for a conversation of two short turns"}
    return {"text": text}


def _failure(error: Exception) -> dict[str, str]:
    line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return {"error": f"{type(error).__name__}: {str(error)[:500]}{line}"}


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _limit() -> None:
    """Bound this process, where the operating system can; elsewhere the caller's clock is the only bound."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


if __name__ == "__main__":
    task = json.loads(sys.stdin.buffer.read())
    _limit()
    sys.stdout.buffer.write(json.dumps(render(task)).encode())
