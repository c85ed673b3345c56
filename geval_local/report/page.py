"""One HTML file: inline skeleton, style, script and data, with a policy that forbids running or loading anything else.

Three measures keep sample text as text. The skeleton escapes every value (Jinja's autoescape). The data is a JSON block
that escapes all characters that could end it or start markup, and the script only makes text nodes from it. The content
security policy allows one script, by its hash, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from geval_local import __version__
from geval_local.direction import Direction
from geval_local.errors import ConfigurationError, OutputError
from geval_local.fields import SYSTEM_FIELDS
from geval_local.files import save_text
from geval_local.grouping import DocumentRule
from geval_local.io.columns import as_text
from geval_local.io.ownership import check_place, sealed
from geval_local.options import in_options
from geval_local.score import LOW_LABEL_MASS, Score
from geval_local.statistics.interval import Ends

#: Name of a page in its own last line, see `geval_local.io.ownership`.
PAGE = "geval-local page"

SCRIPTS = ("dom.js", "charts.js", "model.js", "link.js", "table.js", "download.js", "item.js", "main.js")
#: Markup, comments and the end of the block; older script parsers treat the two separators as line ends.
_ESCAPES = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def json_block(value: Any) -> Markup:
    r"""Serialize a value as JSON, safe inside ``<script>``: ``<``, ``>``, ``&``, U+2028 and U+2029 as ``\uXXXX``.

    In JSON these characters occur only in strings, so the parsed value is the same. `value` contains plain JSON
    values, see `geval_local.io.columns.plain`.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():  # `translate` looks up every character
        text = text.replace(character, escape)
    # Safe: the text has no characters that are special to an HTML parser.
    return Markup(text)


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


def check_estimator(estimator: object) -> None:
    """Reject scores that are computed again: a page shows them as they were written."""
    if estimator is not None:
        raise ConfigurationError("a page shows the scores as they were written, so it does not go with `estimator`")


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
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["in_options"] = in_options
    return made


# --- data for the script ----------------------------------------------------------------------------------------------

# Records become columns of numbers and of indices into one list of distinct texts: ten thousand outputs of one source
# store that source once. Figures are rounded to six decimals for display, without rounding small probabilities to 0;
# the result file keeps all digits.


_DIGITS = 6


class TextColumns:
    """Columns of texts that share one list of distinct texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.columns: list[dict[str, Any]] = []
        self._index: dict[str, int] = {}

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Append a column; None stays absent, other values become JSON."""
        self.columns.append({"name": as_text(name), "v": [self._intern(value) for value in values]})

    def _intern(self, value: Any) -> int:
        if value is None:
            return -1
        text = as_text(value)
        place = self._index.setdefault(text, len(self.texts))
        if place == len(self.texts):
            self.texts.append(text)
        return place


def named_columns(
    texts: TextColumns, names: list[str], rows: Sequence[Mapping[str, Any]], rule: DocumentRule
) -> dict[str, int]:
    """Find the columns of the judged text, of what it answers, and of the system; -1 if there is none.

    What a row's text answers is the field about the item that differs most between rows. Texts that are in no column,
    such as the turns of a chat, or are no texts there, such as a list of passages, get one.
    """
    folded = [name.strip().casefold() for name in names]
    found = {
        "source": -1,
        "output": -1,
        "system": next((folded.index(name) for name in SYSTEM_FIELDS if name in folded), -1),
    }
    answer, asked = rule.shown(rows)
    for place, field in (("output", answer), ("source", asked)):
        if field is None:
            continue
        paths = {"" if rule.value(row, field) is None else rule.path(row, field) for row in rows}
        is_text = all(as_text(rule.value(row, field)) == rule.text(row, field) for row in rows)
        if is_text and len(paths) == 1 and paths <= {*names}:
            found[place] = names.index(min(paths))
        elif paths - {""}:
            found[place] = len(names)
            texts.add(field, [rule.text(row, field) or None for row in rows])
            names.append(field)
    return found


def metric_payload(
    name: str,
    runs: Sequence[Sequence[Score | None]],
    human: Sequence[float],
    *,
    ends: Ends | None,
    rating: str | None = None,
) -> dict[str, Any]:
    """Build the script's data for one metric; `rating` is the field of the human ratings."""
    scores = [score for run in runs for score in run if score is not None and score.is_scored]
    labels = list(dict.fromkeys(label for score in scores for label in score.probabilities or {}))
    low, high = ends or scale_range(scores, labels)
    return {
        "name": as_text(name),
        "labels": [as_text(label) for label in labels],
        "low": _round(low),
        "high": _round(high),
        "threshold": next((score.threshold for score in scores if score.threshold is not None), None),
        "better": next((score.direction.value for score in scores), Direction.HIGH.value),
        "lowMass": LOW_LABEL_MASS,
        "human": [_round(value) for value in human],
        "rating": as_text(rating or ""),
        "runs": [_run(run, labels) for run in runs],
    }


def _run(run: Sequence[Score | None], labels: Sequence[str]) -> dict[str, Any]:
    def column(figure: str) -> list[float | None]:
        return [None if score is None else _round(getattr(score, figure)) for score in run]

    probabilities: list[list[float] | None] = [
        # Rounding must not turn a small probability into 0.
        [round(p, _DIGITS) or float(f"{p:.2g}") for p in (score.probabilities.get(one, 0.0) for one in labels)]
        if score is not None and score.probabilities
        else None
        for score in run
    ]
    present = [(str(index), score) for index, score in enumerate(run) if score is not None]
    return {
        "score": column("value"),
        "mass": column("label_mass"),
        "std": column("std"),
        "entropy": column("entropy"),
        "p": probabilities,
        "absent": [index for index, score in enumerate(run) if score is None],
        "error": {index: as_text(in_options(score.error)) for index, score in present if score.error is not None},
        "code": {index: score.error_code for index, score in present if score.error is not None},
        "other": {
            index: [[as_text(token), _round(p)] for token, p in score.other_tokens]
            for index, score in present
            if score.other_tokens
        },
        "dropped": {index: score.dropped_tokens for index, score in present if score.dropped_tokens},
    }


def scale_range(scores: Sequence[Score], labels: Sequence[str]) -> Ends:
    """Infer the ends of a scale: from numeric labels, else from scores and their 0-1 form."""
    try:
        values = [float(label) for label in labels]
        if len(values) > 1 and all(map(math.isfinite, values)):
            return min(values), max(values)
    except ValueError:
        pass
    usable = [score for score in scores if math.isfinite(score.normalized)]
    if usable:
        first = min(usable, key=lambda score: score.normalized)
        last = max(usable, key=lambda score: score.normalized)
        if last.normalized - first.normalized > 1e-3:
            width = (last.value - first.value) / (last.normalized - first.normalized)
            low = first.value - width * first.normalized
            return round(low, _DIGITS), round(low + width, _DIGITS)
    found = [score.value for score in scores] or [0.0, 1.0]
    return min(found), max(found)


def _round(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None
