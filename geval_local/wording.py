"""Parameters in messages: the library writes them once, in backticks; each reader sees them in the form that they use.

A message of the library contains `` `fields=output=answer` `` or `` `dtype=float32` ``. The command line prints options
(`geval_local.cli.output.console.as_options`), Python prints keyword arguments, and errors of an evaluation's file print
YAML. What is told of data is logged once (`say_once`).
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from functools import cache
from itertools import groupby

#: A parameter with or without a value, not within a path or a quoted text.
PARAMETER = re.compile(r"(?<![\w'/])`(\w+)(?:=([^`]+))?`(?![\w'/])")
_SEVERAL = re.compile(rf"{PARAMETER.pattern}(?: {PARAMETER.pattern})*")
#: Values that stay unchanged: numbers, booleans, structures, and placeholders of numbers.
_LITERAL = re.compile(r"[+-]?\d+(?:\.\d+)?|True|False|None|[\[{].*|N|X|NATS|SHARE")
#: A text that needs no quotes in YAML.
_BARE = re.compile(
    r"(?!(?:true|false|null|yes|no|on|off)$)(?:\.{0,2}/)?[A-Za-z_][\w*./@+-]*(?: [\w*./-]+)*", re.IGNORECASE
)
#: What is secret in an address: users and passwords before its host, and options that are named so.
_SECRETS = re.compile(
    r"""(?P<user>\b(?:s3|gs|gcs|https?)://)[^/\s'"@]*@|(?P<pair>://)[^/\s:'"@]*:(?!\d{1,5}/)[^\s'"]*@"""
    r"""|(?P<option>[?&;][\w.-]*(?:key|token|secret|passw|credential|sig)[\w.-]*=)[^&\s'"#]+""",
    re.IGNORECASE,
)
#: Parameters whose value is a text although it contains an equals sign.
_TEXTS = ("overrides", "judge")


@cache
def say_once(told: str, *, level: int = logging.INFO) -> None:
    """Log a sentence about data, the first time that it is said in this process."""
    logging.getLogger("geval_local").log(level, "%s", told)


def without_secrets(text: str) -> str:
    """Hide the user, password and keys of the addresses in a text: ``s3://***@bucket/rows.jsonl``."""
    return _SECRETS.sub(
        lambda found: f"{found['user'] or found['pair'] or found['option']}***" + "@" * (not found["option"]), text
    )


def in_python(text: str) -> str:
    """Write parameters as keyword arguments: ``fields={"output": "answer"}``."""
    return _written(text, "=", json.dumps, _python)


def in_yaml(text: str, *, but: Collection[str] = ()) -> str:
    """Write parameters as keys of a YAML file: ``fields: {output: answer}``; those in `but` stay."""
    return _written(text, ": ", _yaml, _yaml, but)


def _written(
    text: str, sign: str, key: Callable[[str], str], value: Callable[[str], str], but: Collection[str] = ()
) -> str:
    """Rewrite parameters, with their keys and values; adjacent ones of one name become one mapping or list."""

    def one(name: str, given: Sequence[str]) -> str:
        unquoted = [_unquoted(item) for item in given]
        if name in _TEXTS or not all(re.match(r"[^=]*[^=\s]=", item) for item in unquoted):
            listed = ", ".join(map(value, unquoted))
            return f"{name}{sign}{listed if len(unquoted) == 1 else f'[{listed}]'}"
        pairs = (item.partition("=") for item in unquoted)
        return f"{name}{sign}{{{', '.join(f'{key(first.strip())}: {value(last)}' for first, _, last in pairs)}}}"

    def written(found: re.Match[str]) -> str:
        told = []
        for name, group in groupby(PARAMETER.findall(found[0]), key=lambda pair: pair[0]):
            given = [item for _, item in group]
            if name in but or not all(given):
                told += [f"`{name}={item}`" if item else f"`{name}`" for item in given]
            else:
                told.append(f"`{one(name, given)}`")
        return " ".join(told)

    return _SEVERAL.sub(written, text)


def _unquoted(value: str) -> str:
    """Remove a shell's quotes; structures keep theirs."""
    if _LITERAL.fullmatch(value):
        return value
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def _python(value: str) -> str:
    return value if _LITERAL.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def _yaml(value: str) -> str:
    if value in ("True", "False", "None"):
        return {"True": "true", "False": "false", "None": "null"}[value]
    return value if _LITERAL.fullmatch(value) else quoted(value)


def quoted(text: str) -> str:
    """Write a text as a value of YAML, in quotes if it needs them."""
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
