"""Render chat templates; run as a script in a separate process with bounded time and memory.

A template is a foreign program. jinja2's sandbox protects the machine, but not against endless loops or texts of ten
gigabytes. This script reads a task as JSON from stdin and writes a list of results
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
from collections.abc import Iterator
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
#: Names of switches that have values of the template's own, and values that turn thinking off.
_EFFORT = re.compile(r"think|reason|effort", re.IGNORECASE)
_OFF = re.compile(r"/?(none|off|disabled?|false|no|non?[-_ ]?(think|reason)(ing)?)", re.IGNORECASE)

#: Python's text of an object without a text of its own, with its address.
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-fA-F]+>")


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
    del environment.filters["random"], environment.globals["lipsum"]  # a score must not depend on random numbers either
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _DATE.strftime
    try:
        tree = environment.parse(task["template"])
        words = _compared_with_off(tree)
        template = environment.from_string(tree)
    except Exception as error:
        return [_failure(error)] * len(task["calls"])
    on = task["on"] | _compared_with_on(tree, words)
    switches = {"off": task["off"] | words, "on": on, None: {}}
    return [_attempt(template, variables | switches[way]) for way, variables in task["calls"]]


def _compared_with_off(tree: jinja2.nodes.Template) -> dict[str, str]:
    """Map variables such as ``reasoning_effort`` to the word, such as ``"none"``, that the template compares."""
    found = {}
    for names, words in _comparisons(tree):
        word = next(filter(_OFF.fullmatch, words), None)
        found.update({name: word for name in names if word is not None})
    return found


def _compared_with_on(tree: jinja2.nodes.Template, off: dict[str, str]) -> dict[str, str]:
    """Map each of those variables to another word that it is compared with, or else to ``"high"``.

    Most templates think unless a switch turns thinking off.
    """
    found = dict.fromkeys(off, "high")
    for names, words in _comparisons(tree):
        word = next((word for word in words if not _OFF.fullmatch(word)), None)
        found.update({name: word for name in names & off.keys() if word is not None})
    return found


def _comparisons(tree: jinja2.nodes.Template) -> list[tuple[set[str], list[str]]]:
    """List the switches in each comparison of a template, by the names that a caller passes, and its words."""
    sources = _sources(tree)
    return [
        (
            {name for name in _given(comparison, sources) if _EFFORT.search(name)},
            [const.value for const in comparison.find_all(jinja2.nodes.Const) if isinstance(const.value, str)],
        )
        for comparison in filter(_compares, tree.find_all(jinja2.nodes.Expr))
    ]


def _compares(node: jinja2.nodes.Node) -> bool:
    """Whether an expression shows possible values of a variable: also ``x is eq "none"``, ``x or "none"``."""
    if isinstance(node, jinja2.nodes.Or):
        return isinstance(node.right, jinja2.nodes.Const)
    if isinstance(node, jinja2.nodes.Call):  # call of a method, such as startswith
        return isinstance(node.node, jinja2.nodes.Getattr)
    looked_up = isinstance(node, jinja2.nodes.Getitem) and isinstance(node.node, jinja2.nodes.Dict)
    return looked_up or isinstance(node, (jinja2.nodes.Compare, jinja2.nodes.Test, jinja2.nodes.Filter))


def _sources(tree: jinja2.nodes.Template) -> dict[str, set[str]]:
    """Find the names that each variable of a template is computed from: ``{% set mode = thinking_mode or 'on' %}``."""
    sources: dict[str, set[str]] = {}
    for target, value in _assignments(tree):
        for name in _named(target):
            sources.setdefault(name, set()).update(_named(value))
    return sources


def _assignments(tree: jinja2.nodes.Template) -> Iterator[tuple[jinja2.nodes.Node, jinja2.nodes.Node]]:
    """Yield every assignment of a template as target and value, including loops and calls of macros."""
    for one in tree.find_all(jinja2.nodes.Assign):
        yield one.target, one.node
    for text in tree.find_all(jinja2.nodes.AssignBlock):
        yield text.target, text
    for loop in tree.find_all(jinja2.nodes.For):
        yield loop.target, loop.iter
    for block in tree.find_all(jinja2.nodes.With):
        yield from zip(block.targets, block.values, strict=True)
    for macro in tree.find_all(jinja2.nodes.Macro):
        for call in tree.find_all(jinja2.nodes.Call):
            if isinstance(call.node, jinja2.nodes.Name) and call.node.name == macro.name:
                yield from ((argument, call) for argument in macro.args)


def _given(node: jinja2.nodes.Node, sources: dict[str, set[str]]) -> set[str]:
    """Return the names in an expression and all names that they are computed from."""
    found: set[str] = set()
    rest = _named(node)
    while rest:
        found |= rest
        rest = set().union(*(sources.get(name, ()) for name in rest)) - found
    return found


def _named(node: jinja2.nodes.Node) -> set[str]:
    """Return the variables in a node, itself included; an attribute of a namespace counts as one, ``ns.mode``."""
    found = set()
    for one in (node, *node.find_all(jinja2.nodes.Node)):
        if isinstance(one, jinja2.nodes.Name):
            found.add(one.name)
        elif isinstance(one, jinja2.nodes.NSRef):
            found.add(f"{one.name}.{one.attr}")
        elif isinstance(one, jinja2.nodes.Getattr) and isinstance(one.node, jinja2.nodes.Name):
            found.add(f"{one.node.name}.{one.attr}")
    return found


def _attempt(template: jinja2.Template, variables: dict[str, Any]) -> dict[str, str]:
    try:
        text = template.render(**variables)
    except Exception as error:  # a template can raise anything that an expression can
        return _failure(error)
    if _ADDRESS.search(text):
        return {"error": "it writes the address of an object, another one each time"}
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
