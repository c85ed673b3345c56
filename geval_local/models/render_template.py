"""Render chat templates; run as a script in a separate process with bounded time and memory.

A template is a program from someone else's repository. jinja2's sandbox protects the machine, but not against endless
loops or texts of ten gigabytes. This script reads a task as JSON from stdin and writes a list of results
to stdout. Templates get the same variables as from transformers, except for the date, which is fixed: a
score must not depend on the day.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules must not shadow others of the same names

import contextlib
import datetime
import json
import re
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

_SECONDS = 5
_MEMORY = 1 << 30
_MOST_CHARACTERS = 1 << 20
#: The date that Llama's own templates fall back to.
_DATE = datetime.datetime(2024, 7, 26)
#: Names of switches whose values are the template's own, and the values that turn thinking off.
_EFFORT = re.compile(r"think|reason|effort", re.IGNORECASE)
_OFF = re.compile(r"/?(none|off|disabled?|false|no|non?[-_ ]?(think|reason)(ing)?)", re.IGNORECASE)


class _Generation(jinja2.ext.Extension):
    """The tag around an assistant's text, used in training; it has no effect here."""

    tags = {"generation"}  # noqa: RUF012 - required by jinja2

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(task: dict[str, Any]) -> list[dict[str, str]]:
    """Render one template several times."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    del environment.filters["random"], environment.globals["lipsum"]  # a score must not depend on chance either
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _DATE.strftime
    try:
        tree = environment.parse(task["template"])
        switches = task["switches"] | _compared_with_off(tree)
        template = environment.from_string(tree)
    except Exception as error:
        return [_failure(error)] * len(task["calls"])
    return [
        _attempt(template, variables if number == task["unswitched"] else variables | switches)
        for number, variables in enumerate(task["calls"])
    ]


def _compared_with_off(tree: jinja2.nodes.Template) -> dict[str, str]:
    """Find variables such as ``reasoning_effort`` that a template compares with ``"none"``, with that word as it is."""
    found = {}
    for comparison in tree.find_all(jinja2.nodes.Compare):
        words = [const.value for const in comparison.find_all(jinja2.nodes.Const) if isinstance(const.value, str)]
        word = next(filter(_OFF.fullmatch, words), None)
        names = [name.name for name in comparison.find_all(jinja2.nodes.Name) if _EFFORT.search(name.name)]
        found.update({name: word for name in names if word is not None})
    return found


def _attempt(template: jinja2.Template, variables: dict[str, Any]) -> dict[str, str]:
    try:
        text = template.render(**variables)
    except Exception as error:  # a template can raise anything that an expression can
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
    """Limit this process if the operating system supports it; otherwise the caller's timeout is the only limit."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


if __name__ == "__main__":
    task = json.loads(sys.stdin.buffer.read())
    _limit()
    sys.stdout.buffer.write(json.dumps(render(task)).encode())
