"""Agreement of GPTScore, BERTScore, BARTScore and UniEval with people's ratings, on a published benchmark file.

    python benchmarks/baselines/run.py summeval.json --benchmark summeval --gptscore nano --model bertscore=DIR
    python benchmarks/baselines/run.py topical_chat.json --benchmark topical-chat --model unieval=DIR --limit 10

Prints the table of `meta-eval` with one row per dimension and baseline, and one JSON line at the end. Weights are the
user's own, as safetensors in a local directory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.baselines.gptscore import gptscore_figures
from benchmarks.baselines.reference_models import bart_scores, bert_scores, load_reference_model
from benchmarks.baselines.unieval import QUESTIONS, unieval_scores
from geval_local import Judge, Metric
from geval_local.analysis.contenders import references
from geval_local.analysis.ratings.rated import Rated, read_benchmark
from geval_local.analysis.tables import correlation_table
from geval_local.io.samples import Sample
from geval_local.models.registry import find_judge
from geval_local.statistics.coefficients import COEFFICIENTS
from geval_local.statistics.correlation import Correlation, correlate
from geval_local.statistics.records import ScoredItem

NAMES = {"bertscore": "BERTScore", "bartscore": "BARTScore", "unieval": "UniEval"}
Figures = Sequence[Mapping[str, Any]]


def gptscore(rated: Rated, name: str) -> dict[str, list[ScoredItem]]:
    """Score every dimension with a judge's likelihood of the outputs."""
    judge = Judge.load(name)
    samples = [Sample(row, mapping=rated.benchmark.fields) for row in rated.rows]
    presets = {dimension: preset for dimension, preset in rated.benchmark.dimensions.items() if preset}
    return {
        dimension: rated.items(dimension, gptscore_figures(judge, Metric.load(preset), samples))
        for dimension, preset in presets.items()
    }


def by_reference_model(rated: Rated, kind: str, name: str) -> dict[str, list[ScoredItem]]:
    """Score a benchmark with a reference model: once for all dimensions, UniEval by a question for each."""
    model = load_reference_model(kind, find_judge(name))  # type: ignore[arg-type]
    layout = rated.benchmark
    rows = [{field: str(row[column]) for field, column in layout.fields.items()} for row in rated.rows]
    presets = [dimension for dimension, preset in layout.dimensions.items() if preset]
    if kind == "unieval":
        return {
            dimension: rated.items(
                dimension, [{"score": one} for one in unieval_scores(model, layout.name, dimension, rows)]
            )
            for dimension in presets
            if dimension in QUESTIONS[layout.name]
        }
    others = [row["source"] for row in rows] if kind == "bartscore" else references(rated)
    figures = compared(model, [row["output"] for row in rows], others)
    return {dimension: rated.items(dimension, figures) for dimension in presets}


def compared(model: Any, outputs: Sequence[str], others: Sequence[str | None]) -> Figures:
    """Compute BERTScore against the reference, or BARTScore from the source."""
    there = [index for index, other in enumerate(others) if other is not None]
    figures: list[dict[str, Any]] = [{"score": None, "error": "no reference"} for _ in outputs]
    pairs = [(outputs[index], str(others[index])) for index in there]
    values = bert_scores(model, pairs) if model.kind == "bertscore" else bart_scores(model, [(b, a) for a, b in pairs])
    for index, value in zip(there, values, strict=True):
        figures[index] = {"score": value}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--gptscore", metavar="JUDGE", action="append", default=[])
    parser.add_argument("--model", metavar="KIND=NAME", action="append", default=[])
    parser.add_argument("--limit", metavar="N", type=int, help="the first N documents only")
    arguments = parser.parse_args()
    rated = read_benchmark(arguments.file, arguments.benchmark, limit_groups=arguments.limit)
    found = {f"GPTScore ({name})": gptscore(rated, name) for name in arguments.gptscore}
    for asked in arguments.model:
        kind, _, name = asked.partition("=")
        found[f"{NAMES[kind]} ({Path(name).name})"] = by_reference_model(rated, kind, name)
    level = rated.benchmark.level
    results: dict[str, Correlation] = {
        f"{dimension}: {name}": correlate(items, level)
        for name, own in found.items()
        for dimension, items in own.items()
    }
    table = correlation_table(results, COEFFICIENTS)
    for row in (table.headers, *table.rows):
        print("  ".join(row))
    print(json.dumps({name: result.spearman.value for name, result in results.items()}))


if __name__ == "__main__":
    main()
