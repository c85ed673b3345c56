"""Model baselines as rows beside a judge: its GPTScore, and BERTScore, BARTScore and UniEval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from geval_local import __version__
from geval_local.analysis.ratings.rated import OwnRatings, PublishedRatings, Rated
from geval_local.analysis.studies.evaluation import Contender
from geval_local.baselines.gptscore import NO_READING, gptscore_figures
from geval_local.baselines.overlap import references
from geval_local.baselines.reference_models import (
    ReferenceModel,
    bart_scores,
    bert_scores,
    load_reference_model,
)
from geval_local.baselines.unieval import QUESTIONS, unieval_scores
from geval_local.cli.meta_eval.kept_columns import Column, KeptColumns, text_hash
from geval_local.cli.output.console import note
from geval_local.cli.progress import show_progress
from geval_local.errors import ConfigurationError, UnscorableError
from geval_local.io.ownership import file_sha256
from geval_local.io.results import numbered
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.models.fingerprint import fingerprint, weight_files
from geval_local.models.load import resolve_directory
from geval_local.models.registry import JudgeEntry, find_judge
from geval_local.signature import judge_name

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["from_reference_model", "gptscore"]

NAMES = {"bertscore": "BERTScore", "bartscore": "BARTScore", "unieval": "UniEval"}
#: The texts that each baseline compares; part of a kept score's key.
DIRECTIONS = {"bertscore": "output and reference, F1", "bartscore": "source -> output", "unieval": "question -> yes"}
#: Files beside the weights that determine the tokenization.
_SMALL_FILES = (".json", ".txt", ".model", ".jinja")


def gptscore(rated: Rated, kept: KeptColumns, judge: Judge, metrics: Mapping[str, Metric], name: str) -> Contender:
    """Score with the judge's likelihood of the outputs, or use scores kept under the same key."""
    fields = rated.fields if isinstance(rated, OwnRatings) else {}
    samples = [Sample(row, number, Path(rated.path).name, None, fields) for number, row in numbered(rated.rows)]
    items = {}
    with show_progress(f"GPTScore by {name}", len(samples) * len(metrics)) as progress:

        def compute(metric: Metric) -> Column:
            figures = gptscore_figures(judge, metric, samples, advance=progress.advance)
            return Column(list(figures), {}, is_final=all(figure.get("error") != NO_READING for figure in figures))

        for dimension, metric in metrics.items():
            # The steps are not part of the judge's request.
            signature = asdict(judge.signature(metric.with_steps(())))
            key = signature | {
                "kind": "gptscore",
                "judge": judge.fingerprint,
                "context": str(judge.context),
                "direction": "criteria and other fields -> output",
                "texts": text_hash([_texts(sample, metric) for sample in samples]),
            }
            label = f"GPTScore ({judge_name(judge.name)}), {metric.name}"
            column = kept.column(label, key, lambda metric=metric: compute(metric))  # type: ignore[misc]
            items[dimension] = rated.items(dimension, column.figures)
    return Contender(f"GPTScore ({name})", "baseline", items)


def _texts(sample: Sample, metric: Metric) -> Any:
    try:
        return sample.texts(metric.fields)
    except UnscorableError as error:
        return str(error)


def from_reference_model(
    rated: PublishedRatings,
    kept: KeptColumns,
    asked: str,
    dimensions: Sequence[str],
    *,
    models_file: Path | None,
    device: str | None,
) -> Contender:
    """Score a benchmark with a reference model, which is loaded only if scores are missing.

    Parameters
    ----------
    rated : PublishedRatings
        The rows.
    kept : KeptColumns
        Store of kept scores.
    asked : str
        ``KIND=NAME``: bertscore, bartscore or unieval, and a name of the models file or a directory.
    dimensions : sequence of str
        Dimensions to score; UniEval skips those without a question.
    models_file, device
        As for judges.

    Raises
    ------
    ConfigurationError
        If `asked` does not have that form, or the model cannot be loaded.
    """
    kind, equals, name = asked.partition("=")
    if kind not in NAMES or not equals or not name:
        raise ConfigurationError(
            f"--reference-model {asked!r} is none", hint=f"Write KIND=NAME, KIND one of {', '.join(NAMES)}."
        )
    entry = find_judge(name, models_file)

    @cache
    def load() -> ReferenceModel:
        note(f"loading {NAMES[kind]} ...", "dim")
        return load_reference_model(kind, entry, device=device)  # type: ignore[arg-type]

    layout = rated.data.benchmark
    rows = [{field: str(row[column]) for field, column in layout.fields.items()} for row in rated.rows]
    others: list[str | None] = [row["source"] for row in rows] if kind == "bartscore" else references(rated.data)
    label = f"{NAMES[kind]} ({Path(name).name})"
    shared = {
        "kind": kind,
        "direction": DIRECTIONS[kind],
        **(_identity(entry, load) if kept.directory is not None else {}),
    }

    def column(what: str, key: dict[str, str], score: Callable[[ReferenceModel], list[dict[str, Any]]]) -> Column:
        def compute() -> Column:
            model = load()
            before = model.shortened
            figures = score(model)
            facts = {"limit": model.limit, "shortened": model.shortened - before}
            return Column(list(figures), facts | ({"layer": model.layer} if kind == "bertscore" else {}))

        return kept.column(label + what, shared | key, compute)

    if kind == "unieval":
        columns = {
            dimension: column(
                f", {dimension}",
                {"question": f"{layout.name}, {dimension}", "texts": text_hash(rows)},
                lambda model, d=dimension: [{"score": one} for one in unieval_scores(model, layout.name, d, rows)],  # type: ignore[misc]
            )
            for dimension in dimensions
            if dimension in QUESTIONS[layout.name]
        }
    else:
        outputs = [row["output"] for row in rows]
        texts = {"texts": text_hash([outputs, others])}
        columns = dict.fromkeys(dimensions, column("", texts, lambda model: _compared(model, outputs, others)))
    distinct = list({id(one): one for one in columns.values()}.values())
    if shortened := sum(one.facts["shortened"] for one in distinct):
        limit = distinct[0].facts["limit"]
        note(f"note: {NAMES[kind]}: {shortened} texts were cut to {limit} tokens, as its authors do", "yellow")
    layer = "".join(f", layer {one.facts['layer']}" for one in distinct[:1] if "layer" in one.facts)
    items = {dimension: rated.items(dimension, one.figures) for dimension, one in columns.items()}
    return Contender(f"{NAMES[kind]} ({Path(name).name}{layer})", "baseline", items)


def _identity(entry: JudgeEntry, load: Callable[[], ReferenceModel]) -> dict[str, str]:
    """Return the content identity of a reference model, without loading it."""
    directory = resolve_directory(entry)
    weights = weight_files(directory)
    if not weights or not all(file.exists() for file in weights):
        load()  # raises with the missing files and how to get them
    small = sorted(file for file in directory.iterdir() if file.suffix in _SMALL_FILES and file.is_file())
    return {
        "model": fingerprint(directory),
        "files": text_hash([[file.name, file_sha256(file)] for file in small]),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "version": __version__,
    }


def _compared(model: ReferenceModel, outputs: Sequence[str], others: Sequence[str | None]) -> list[dict[str, Any]]:
    """Compute BERTScore against the reference or BARTScore from the source: one score for all dimensions."""
    there = [index for index, other in enumerate(others) if other is not None]
    figures: list[dict[str, Any]] = [{"score": None, "error": "no reference"} for _ in outputs]
    pairs = [(outputs[index], str(others[index])) for index in there]
    values = bert_scores(model, pairs) if model.kind == "bertscore" else bart_scores(model, [(b, a) for a, b in pairs])
    for index, value in zip(there, values, strict=True):
        figures[index] = {"score": value}
    return figures
