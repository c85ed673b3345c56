"""One HTML file: skeleton, style, script and data inline, under a policy that forbids running or loading anything else.

Sample text stays text in three ways. The skeleton escapes every value (Jinja's autoescape). The data is in a
JSON block in which all characters that could end it or start markup are escaped, and the script makes text nodes
from it, never markup. And the content security policy allows one script, by its hash, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from geval_local import __version__
from geval_local.errors import OutputError
from geval_local.files import save_text
from geval_local.io.ownership import check_place, sealed

#: How a page names itself in its last line, see `geval_local.io.ownership`.
PAGE = "geval-local page"

SCRIPTS = ("dom.js", "charts.js", "model.js", "table.js", "item.js", "main.js")
#: Markup, comments and the end of the block; older script parsers treat the two separators as line ends.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def json_block(value: Any) -> Markup:
    r"""Serialize a value as JSON, safe inside ``<script>``: ``<``, ``>``, ``&``, U+2028 and U+2029 as ``\uXXXX``.

    In JSON these characters occur only in strings, so the parsed value is the same. `value` contains plain JSON
    values, see `geval_local.io.columns.plain`.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Safe: it contains nothing special to an HTML parser.
    return Markup(text.translate(_ESCAPES))


def render(template: str, data: Any, **context: Any) -> str:
    """Render one of the package's templates."""
    script, style = "" if data is None else _script(), _asset("style.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            **context,
            version=__version__,
            script_hash=f"sha256-{digest}",
            script=Markup(script),
            style=Markup(style),
            data=json_block(data),
        )
    )


def check_target(path: str | os.PathLike[str], *inputs: object) -> Path:
    """Reject a target that cannot be written or is one of the inputs, before any work is done."""
    check_place(Path(path))
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise OutputError(
            f"cannot write {path}: there is no directory {target.parent}", hint=f"Create it: mkdir -p {target.parent}"
        )
    for given in inputs:
        if isinstance(given, str | os.PathLike) and Path(given).resolve() == target:
            raise OutputError(f"cannot write {path}: it is the result file itself", hint="Choose a name in .html.")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(f"cannot write {path}: the file is read-only", hint="Choose another name.")
    return target


def write_page(target: Path, page: str) -> Path:
    """Write a page atomically."""
    # A lone surrogate (text that was not UTF-8) is shown as an escape, as in the result files.
    save_text(target, sealed(page.encode("utf-8", "backslashreplace").decode(), PAGE))
    return target


@cache
def _asset(name: str) -> str:
    return files("geval_local.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}}})();\n'


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
