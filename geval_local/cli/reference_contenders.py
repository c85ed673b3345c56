"""``meta-eval --reference-model``: BERTScore, BARTScore and UniEval as rows, from the user's own weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geval_local.analysis.baselines import references
from geval_local.analysis.evaluation import Contender
from geval_local.analysis.rated import PublishedRatings
from geval_local.cli.console import note
from geval_local.errors import ConfigurationError
from geval_local.inference.reference_models import (
    ReferenceModel,
    bart_scores,
    bert_scores,
    load_reference_model,
)
from geval_local.inference.registry import find_judge
from geval_local.unieval import QUESTIONS, unieval_scores

__all__ = ["from_reference_model"]

NAMES = {"bertscore": "BERTScore", "bartscore": "BARTScore", "unieval": "UniEval"}


def from_reference_model(
    rated: PublishedRatings, asked: str, dimensions: Sequence[str], *, models_file: Path | None, device: str | None
) -> Contender:
    """Score a benchmark with a reference model.

    Parameters
    ----------
    rated : PublishedRatings
        The rows.
    asked : str
        ``KIND=NAME``: bertscore, bartscore or unieval, and a name of the models file or a directory.
    dimensions : sequence of str
        Which ratings to stand beside; UniEval leaves out those that it has no question for.
    models_file, device
        As for a judge.

    Raises
    ------
    ConfigurationError
        If `asked` is not of that form, or the model cannot be loaded.
    """
    kind, equals, name = asked.partition("=")
    if kind not in NAMES or not equals or not name:
        raise ConfigurationError(
            f"--reference-model {asked!r} is none", hint=f"Write KIND=NAME, KIND one of {', '.join(NAMES)}."
        )
    note(f"loading {NAMES[kind]} ...", "dim")
    model = load_reference_model(kind, find_judge(name, models_file), device=device)  # type: ignore[arg-type]
    layout = rated.data.benchmark
    rows = [{field: str(row[column]) for field, column in layout.fields.items()} for row in rated.rows]
    figures: dict[str, list[dict[str, Any]]] = {}
    if kind == "unieval":
        known = [dimension for dimension in dimensions if dimension in QUESTIONS[layout.name]]
        figures = {d: [{"score": value} for value in unieval_scores(model, layout.name, d, rows)] for d in known}
    else:
        figures = dict.fromkeys(dimensions, _compared(model, rated, rows))
    if model.shortened:
        note(
            f"note: {NAMES[kind]}: {model.shortened} texts were cut to {model.limit} tokens, as its authors do",
            "yellow",
        )
    layer = f", layer {model.layer}" if kind == "bertscore" else ""
    label = f"{NAMES[kind]} ({Path(name).name}{layer})"
    return Contender(label, "baseline", {dimension: rated.items(dimension, own) for dimension, own in figures.items()})


def _compared(model: ReferenceModel, rated: PublishedRatings, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """BERTScore against the reference, BARTScore from the source: one score for all dimensions."""
    others = [row["source"] for row in rows] if model.kind == "bartscore" else references(rated.data)
    there = [index for index, other in enumerate(others) if other is not None]
    figures: list[dict[str, Any]] = [{"score": None, "error": "no reference"} for _ in rows]
    pairs = [(rows[index]["output"], str(others[index])) for index in there]
    values = bert_scores(model, pairs) if model.kind == "bertscore" else bart_scores(model, [(b, a) for a, b in pairs])
    for index, value in zip(there, values, strict=True):
        figures[index] = {"score": value}
    return figures
