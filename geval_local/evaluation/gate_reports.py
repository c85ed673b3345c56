"""Outcomes of gates for a pipeline: a Markdown summary for a job's page, and JUnit XML for its list of tests.

Before the first row both say that there is no verdict yet, so that a run that is killed leaves no older one.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from geval_local.analysis.gates import SCORED, Gate, GateOutcome, ShownRow
from geval_local.analysis.tables import number
from geval_local.errors import OutputError
from geval_local.fields import beginning
from geval_local.files import save_text
from geval_local.io.ownership import check_place
from geval_local.summary import Summary

#: Beginning of this module's files, after their XML declaration.
_OURS = b'<testsuites name="geval-local"'
#: Beginning and end of this module's sections in Markdown.
_SECTION = "<!-- geval-local gates"
_END = "<!-- end of geval-local gates -->\n"
#: Title where a command ended before its own was known; the next report takes the place of that section too.
UNREAD = "geval-local"
#: The name of the gate of a run that has not ended.
NO_VERDICT = "no verdict"
#: Characters of a judged text that are shown.
_TEXT = 160
#: Characters that XML 1.0 cannot contain, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Characters that Markdown would read as markup or as the end of a cell.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")


def begin(summary: Path | None, junit: Path | None, title: str) -> None:
    """Check before scoring that both files can be written, and are none of others; mark them as without a verdict."""
    waiting = [GateOutcome(Gate(SCORED, metric=NO_VERDICT), "failed", "the run did not end")]
    for place in filter(None, (junit, summary)):
        if place.is_dir() or not place.parent.is_dir():
            why = "it is a directory" if place.is_dir() else f"there is no directory {place.parent}"
            raise OutputError(f"cannot write {place}: {why}", hint="Name a file in a directory that exists.")
        if place == junit or not _is_the_jobs(place):
            check_place(place)
            content = place.read_bytes() if place.exists() else b""
            if content and not (_OURS in content[:200] if place == junit else content.startswith(_SECTION.encode())):
                raise OutputError(
                    f"{place} exists and was not written by geval-local", hint="Name another file, or delete this one."
                )
            (write_junit if place == junit else write_markdown)(place, waiting, title)


def _is_the_jobs(summary: Path) -> bool:
    """Whether it is GitHub's file, to which every step of a job appends, and which is new in every step."""
    given = os.environ.get("GITHUB_STEP_SUMMARY")
    return given is not None and summary.absolute() == Path(given).absolute()


def explained(one: GateOutcome) -> list[str]:
    """Say what a failed gate was compared with, how sure its figure is, and what to type next."""
    change = one.change
    found = ""
    if change is not None:
        found = f"changed by {change.value:+.3f}, 95 % interval [{change.low:+.3f}, {change.high:+.3f}]"
    lines = [("limit", one.gate.told), ("found", found), ("baseline", one.baseline), ("next", one.next)]
    return [f"{name}: {text}" for name, text in lines if text]


def row_lines(row: ShownRow) -> list[str]:
    """Write a row that a failed gate shows: its scores, and the beginnings of its judged texts."""
    is_compared = not math.isnan(row.before)
    scores = (f"{row.before:.3f} -> " if is_compared else "") + f"{row.score:.3f}"
    texts = [("before", row.output_before), ("now", row.output)] if is_compared else [("output", row.output)]
    return [f"row {row.row}  {row.id}  {scores}", *(f"    {name}: {beginning(text, _TEXT)}" for name, text in texts)]


#: Headers of `row_cells`.
ROW_HEADERS = ("row", "id", "was", "is", "before", "now")


def row_cells(row: ShownRow) -> tuple[str, ...]:
    """Write such a row as cells of a table."""
    texts = (beginning(text, _TEXT) or "-" for text in (row.output_before, row.output))
    return str(row.row), row.id or "-", number(row.before), number(row.score), *texts


def junit_text(found: Sequence[GateOutcome], title: str) -> str:
    """Write outcomes as JUnit XML: one test case each, with its sentence if it failed or was skipped."""
    failed, skipped = (sum(one.verdict == verdict for one in found) for verdict in ("failed", "skipped"))
    counts = {"tests": str(len(found)), "failures": str(failed), "errors": "0", "skipped": str(skipped)}
    root = ElementTree.Element("testsuites", {"name": "geval-local", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(title), **counts})
    for one in found:
        names = {"classname": _xml(one.data or title), "name": _xml(one.name)}
        case = ElementTree.SubElement(suite, "testcase", names)
        kind = {"holds": "system-out", "skipped": "skipped", "failed": "failure"}[one.verdict]
        message = {} if one.verdict == "holds" else {"message": _xml(one.told_at)}
        lines = [one.told_at, *explained(one), *(line for row in one.rows for line in row_lines(row))]
        ElementTree.SubElement(case, kind, message).text = _xml("\n".join(lines))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def write_junit(path: Path, found: Sequence[GateOutcome], title: str) -> None:
    """Write `junit_text` to a file, which is replaced."""
    save_text(path, junit_text(found, title))


def markdown_text(
    found: Sequence[GateOutcome], title: str, summaries: Mapping[str, Sequence[Summary]] | None = None
) -> str:
    """Write gates and figures as Markdown: failed gates first, with their rows, then a table of the figures.

    `summaries` has the figures of every data file, including slices.
    """
    failed, skipped, held = (
        [one for one in found if one.verdict == verdict] for verdict in ("failed", "skipped", "holds")
    )
    head = f"{len(failed)} of {len(found)} gates failed" if failed else f"all {len(found)} gates hold"
    if skipped and not failed:
        head = f"{len(held)} of {len(found)} gates hold"
    head += f", {len(skipped)} skipped" if skipped else ""
    lines = [f"### {_plain(title)}: {head if found else 'no gates'}", ""]
    if found:
        cells = ((one.verdict, one.full_name, one.told) for one in (*failed, *skipped, *held))
        lines += [*_table(("", "gate", "what was found"), cells), ""]
    for one in failed:
        if told := explained(one):
            lines += [f"**{_plain(one.full_name)}**", "", *(f"- {_plain(line)}" for line in told), ""]
        if one.rows:
            lines += [*_table(ROW_HEADERS, map(row_cells, one.rows)), ""]
    baselines = dict.fromkeys(f"{one.data}: {one.baseline}" for one in found if one.baseline)
    lines += [*(f"baseline of {_plain(one)}" for one in baselines), *([""] if baselines else [])]
    rows = []
    for data, own in (summaries or {}).items():
        for summary in own:
            rows.append((data, summary.metric, "all rows", *_figures(summary)))
            rows += [(data, summary.metric, one.name, *_figures(one.summary)) for one in summary.slices]
    if rows:
        lines += [*_table(("data", "metric", "rows", "scored", "documents", "mean [95 % interval]"), rows), ""]
    return "\n".join(lines) + "\n"


def write_markdown(
    path: Path, found: Sequence[GateOutcome], title: str, summaries: Mapping[str, Sequence[Summary]] | None = None
) -> None:
    """Append `markdown_text` to a file of such sections, in the place of an older one with this title."""
    text = markdown_text(found, title, summaries)
    try:
        if _is_the_jobs(path):
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
            return
        before = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise OutputError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    for mark in map(_mark, (UNREAD, title)):
        before = re.sub(rf"{re.escape(mark)}.*?{re.escape(_END)}", "", before, flags=re.DOTALL)
    save_text(path, f"{before}{_mark(title)}{text}{_END}")


def _mark(title: str) -> str:
    """Return the first line of the section with a title."""
    return f"{_SECTION} {hashlib.sha256(title.encode('utf-8', 'surrogatepass')).hexdigest()[:12]} -->\n"


def _figures(summary: Summary) -> tuple[str, str, str]:
    ends = "" if math.isnan(summary.low) else f" [{summary.low:.2f}, {summary.high:.2f}]"
    mean = "-" if math.isnan(summary.mean) else f"{summary.mean:.3f}{ends}"
    return f"{summary.scored} of {summary.rows}", str(summary.documents), mean


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headers, ["---"] * len(headers), *([_plain(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _plain(text: str) -> str:
    """Escape a text for a line of Markdown."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _xml(text: str) -> str:
    """Remove characters that XML cannot contain."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
