"""Outcomes of gates for a pipeline: a Markdown summary for a job's page, and JUnit XML for its list of tests."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from geval_local.errors import OutputError
from geval_local.evaluation.gates import GateOutcome
from geval_local.files import save_text
from geval_local.summary import Summary

#: Beginning of this module's files, after their XML declaration.
_OURS = b'<testsuites name="geval-local"'
#: Characters that XML 1.0 cannot contain, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Characters that Markdown would read as markup or as the end of a cell.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")


def check_places(summary: Path | None, junit: Path | None) -> None:
    """Check before scoring that both files can be written; refuse to replace a JUnit file of another tool."""
    for place in filter(None, (summary, junit)):
        if place.is_dir() or not place.parent.is_dir():
            why = "it is a directory" if place.is_dir() else f"there is no directory {place.parent}"
            raise OutputError(f"cannot write {place}: {why}", hint="Name a file in a directory that exists.")
    if junit is not None and junit.exists() and _OURS not in junit.read_bytes()[:200]:
        raise OutputError(
            f"{junit} exists and was not written by geval-local", hint="Name another file, or delete this one."
        )


def junit_text(found: Sequence[GateOutcome], title: str) -> str:
    """Write outcomes as JUnit XML: one test case each, with its sentence if it failed."""
    failed = sum(not one.passed for one in found)
    counts = {"tests": str(len(found)), "failures": str(failed), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "geval-local", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(title), **counts})
    for one in found:
        names = {"classname": _xml(one.data or title), "name": _xml(one.name)}
        case = ElementTree.SubElement(suite, "testcase", names)
        if one.passed:
            ElementTree.SubElement(case, "system-out").text = _xml(one.told)
        else:
            ElementTree.SubElement(case, "failure", {"message": _xml(one.told), "type": one.figure}).text = _xml(
                one.told
            )
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def write_junit(path: Path, found: Sequence[GateOutcome], title: str) -> None:
    """Write `junit_text` to a file, which is replaced."""
    save_text(path, junit_text(found, title))


def markdown_text(
    found: Sequence[GateOutcome], title: str, summaries: Mapping[str, Sequence[Summary]] | None = None
) -> str:
    """Write gates and figures as Markdown: failed gates first, then a table of the figures.

    `summaries` has the figures of every data file, including slices.
    """
    failed = [one for one in found if not one.passed]
    head = f"{len(failed)} of {len(found)} gates failed" if failed else f"all {len(found)} gates hold"
    lines = [f"### {_plain(title)}: {head if found else 'no gates'}", ""]
    if found:
        ordered = [*failed, *(one for one in found if one.passed)]
        cells = (("failed" if not one.passed else "holds", one.full_name, one.told) for one in ordered)
        lines += [*_table(("", "gate", "what was found"), cells), ""]
    rows = []
    for data, own in (summaries or {}).items():
        for summary in own:
            rows.append((data, summary.metric, "all rows", *_figures(summary)))
            rows += [(data, summary.metric, one.name, *_figures(one.summary)) for one in summary.slices]
    if rows:
        lines += [*_table(("data", "metric", "rows", "scored", "documents", "mean [95 % interval]"), rows), ""]
    return "\n".join(lines) + "\n"


def append_markdown(
    path: Path, found: Sequence[GateOutcome], title: str, summaries: Mapping[str, Sequence[Summary]] | None = None
) -> None:
    """Append `markdown_text` to a file, since all steps of a job share its summary."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(markdown_text(found, title, summaries))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _figures(summary: Summary) -> tuple[str, str, str]:
    ends = "" if math.isnan(summary.low) else f" [{summary.low:.2f}, {summary.high:.2f}]"
    mean = "-" if math.isnan(summary.mean) else f"{summary.mean:.3f}{ends}"
    return f"{summary.scored} of {summary.rows}", str(summary.interval.units), mean


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headers, ["---"] * len(headers), *([_plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _plain(text: str) -> str:
    """Escape a text for a line of Markdown."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _xml(text: str) -> str:
    """Remove characters that XML cannot contain."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
