"""Evaluation steps written into a metric's YAML text, everything else in it left as it stands."""

from __future__ import annotations

import secrets
from pathlib import Path

import yaml

from geval_local.errors import MetricError, OutputError
from geval_local.metric import Metric
from geval_local.yaml_text import dump_yaml, load_yaml

__all__ = ["replace_file", "with_steps_in_text"]

_KEYS = ("steps", "steps_provenance")


def with_steps_in_text(text: str, metric: Metric, origin: str) -> str:
    """Put a metric's steps and their provenance into the YAML text that it was read from.

    Comments and layout outside the two blocks are kept; the new blocks stand where the old steps stood, or at the end.

    Parameters
    ----------
    text : str
        The YAML document.
    metric : Metric
        What it describes, with the steps to be written.
    origin : str
        Name of the file, for messages.

    Raises
    ------
    MetricError
        If the result would not read back to `metric`; nothing is lost then.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    record = metric.model_dump(mode="json", include=set(_KEYS), exclude_none=True)
    block = dump_yaml(record).replace("\n", newline)
    lines = text.splitlines(keepends=True)
    spans = _spans(text, lines)
    place = min((start for start, _ in spans), default=len(lines))
    if place == len(lines) and lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += newline
    kept = [
        line if number != place else block + line
        for number, line in enumerate([*lines, ""])
        if number == place or not any(start <= number < end for start, end in spans)
    ]
    if any(start <= place < end for start, end in spans):
        kept[place] = block
    result = "".join(kept)
    try:
        same = Metric.from_yaml(result) == metric
    except MetricError:
        same = False
    if not same:
        raise MetricError(
            f"{origin}: steps cannot be put into this file without touching the rest of it",
            hint="Write the metric with its steps into another file: -o FILE.yaml",
        )
    return result


def replace_file(path: Path, text: str) -> None:
    """Write a text in place of a file's content, or leave the file untouched.

    Raises
    ------
    OutputError
        If the file or its directory cannot be written.
    """
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        partial.write_text(text, encoding="utf-8", newline="")
        if target.exists():
            partial.chmod(target.stat().st_mode & 0o777)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror}", hint="Name another file with -o.") from error


def _spans(text: str, lines: list[str]) -> list[tuple[int, int]]:
    """Line ranges of the blocks to be replaced; blank lines and comments behind a block belong to what follows."""
    node = load_yaml(text)[1]
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return []
    starts = [key.start_mark.line for key, _ in node.value]
    spans = []
    for index, (key, _) in enumerate(node.value):
        if key.value not in _KEYS:
            continue
        end = starts[index + 1] if index + 1 < len(starts) else len(lines)
        while end > starts[index] + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
            end -= 1
        spans.append((starts[index], end))
    return spans
