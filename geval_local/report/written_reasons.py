"""Reasons that `geval-local reasons` wrote, next to the rows that they explain."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geval_local.analysis.results import ScoredRun
from geval_local.errors import DataError
from geval_local.io.columns import as_text
from geval_local.io.rows import read_rows
from geval_local.signature import judge_name, signature_parts

_HINT = "Expected what `geval-local reasons RUN -o FILE` wrote for this run."


@dataclass(frozen=True)
class WrittenReason:
    """One line of a file of reasons."""

    where: str
    row: int
    metric: str
    label: str
    score: float
    #: Values that the page's script shows: label, text, error, complete, cites, prompt and judge.
    shown: dict[str, Any]


def read_reasons(path: str | os.PathLike[str]) -> list[WrittenReason]:
    """Read a file of reasons."""
    path = Path(path)
    found = []
    for raw in read_rows(path):
        where = f"{path}, row {raw.number}"
        if raw.error is not None:
            raise DataError(f"{where}: {raw.error}")
        found.append(_reason(raw.fields, where))
    if not found:
        raise DataError(f"{path} holds no reasons", hint=_HINT)
    return found


def _reason(line: Mapping[str, Any], where: str) -> WrittenReason:
    row, score = line.get("row"), line.get("score")
    missing = [name for name in ("row", "metric", "label", "reason") if name not in line]
    if missing or not isinstance(row, int) or isinstance(row, bool):
        what = f"{missing[0]!r} is missing" if missing else f"row is no number: {json.dumps(row)[:80]}"
        raise DataError(f"{where}: is no reason: {what}", hint=_HINT)
    signature = str(line.get("signature") or "")
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    shown = {
        "label": as_text(str(line["label"])),
        "text": as_text(str(line["reason"] or "")),
        "error": as_text(str(line.get("error") or "")),
        "complete": bool(line.get("is_complete")),
        "cites": bool(line.get("cites_text")),
        "prompt": as_text(str(line.get("prompt_sha256") or "")),
        "judge": as_text(judge_name(signature_parts(signature).get("judge", "")) if signature else ""),
    }
    value = float(score) if is_number and score is not None else math.nan
    return WrittenReason(where, row, str(line["metric"]), str(line["label"]), value, shown)


def check_reasons(reasons: Sequence[WrittenReason], run: ScoredRun) -> None:
    """Check that the reasons explain the rows and scores of this run, not those of another."""
    rows = {reason.row for reason in reasons}
    places = {number: place for place, number in enumerate(run.rows.numbers) if number in rows}
    for reason in reasons:
        told = _mismatch(reason, places, run)
        if told:
            raise DataError(f"{reason.where}: {told}: it belongs to another run", hint=_HINT)


def _mismatch(reason: WrittenReason, places: Mapping[int, int], run: ScoredRun) -> str:
    if reason.metric not in run.metrics:
        return f"explains a score of {reason.metric!r}, and {run.file} holds {', '.join(run.metrics)}"
    place = places.get(reason.row)
    if place is None:
        return f"explains row {reason.row}, and {run.file} has none of that number"
    score = run.score(reason.metric, place)
    if math.isfinite(reason.score) and not math.isclose(reason.score, score.value, rel_tol=1e-6, abs_tol=1e-9):
        return f"explains the score {reason.score:.6g} of row {reason.row}, which has {score.value:.6g} in {run.file}"
    if score.mode is not None and reason.label != score.mode:
        return f"explains the label {reason.label!r} of row {reason.row}, which has {score.mode!r} in {run.file}"
    return ""


def reason_notes(reasons: Sequence[WrittenReason]) -> list[dict[str, Any]]:
    """Count the reasons of every metric, for the page's template."""
    found = []
    for metric in dict.fromkeys(reason.metric for reason in reasons):
        own = [reason.shown for reason in reasons if reason.metric == metric]
        written = [shown for shown in own if shown["text"]]
        found.append(
            {
                "metric": metric,
                "judges": list(dict.fromkeys(shown["judge"] for shown in own if shown["judge"])),
                "rows": len(own),
                "missing": len(own) - len(written),
                "cut": sum(not shown["complete"] for shown in written),
                "uncited": sum(not shown["cites"] for shown in written),
            }
        )
    return found
