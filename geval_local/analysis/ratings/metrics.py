"""The metric of each dimension: the benchmark's presets, or the ones given by ``--metric``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geval_local.analysis.ratings.benchmarks import Benchmark
from geval_local.analysis.results import HumanFields, rating_fields
from geval_local.errors import ConfigurationError
from geval_local.metric import Metric
from geval_local.prompt import metric_from_prompt_file


def benchmark_metrics(layout: Benchmark, names: Sequence[str]) -> dict[str, Metric]:
    """Choose the metrics of a benchmark's dimensions."""
    presets = {dimension: preset for dimension, preset in layout.dimensions.items() if preset is not None}
    if not names:
        return {dimension: Metric.load(preset) for dimension, preset in presets.items()}
    chosen: dict[str, Metric] = {}
    for name in names:
        dimension, given = _split(name, presets)
        dimension, metric = (dimension, _load(given, presets[dimension])) if dimension else _match(given, layout)
        if dimension in chosen:
            raise ConfigurationError(f"two metrics rate {dimension}; name one of them")
        chosen[dimension] = metric
    return {dimension: chosen[dimension] for dimension in layout.dimensions if dimension in chosen}


def own_metrics(names: Sequence[str], human: HumanFields) -> tuple[dict[str, Metric], dict[str, str]]:
    """Pair metrics with the fields of their human ratings."""
    if not names or not human:
        raise ConfigurationError(
            "your own ratings need `metrics` and the `human` field that each is to agree with",
            hint="For a published file say `benchmark=summeval`, topical-chat or qags instead.",
        )
    metrics = {metric.name: metric for metric in map(Metric.load, names)}
    if len(metrics) < len(names):
        raise ConfigurationError("two metrics have the same name", hint="Change the name in one of the YAML files.")
    fields = rating_fields(human, list(metrics))
    unrated = [name for name in metrics if name not in fields]
    if unrated:
        raise ConfigurationError(
            f"no human rating is named for {', '.join(unrated)}", hint="Write `human=METRIC=FIELD` for each metric."
        )
    return metrics, fields


def _split(name: str, presets: dict[str, str]) -> tuple[str, str]:
    """Split ``dimension=metric``; a bare dimension means its preset."""
    dimension, equals, given = name.partition("=")
    if equals:
        if dimension not in presets:
            raise ConfigurationError(f"there is no dimension {dimension!r}", hint=f"There are: {', '.join(presets)}.")
        return dimension, given
    return (name, presets[name]) if name in presets else ("", name)


def _load(given: str, preset: str) -> Metric:
    if Path(given).suffix == ".txt":
        stands_for = Metric.load(preset)
        return metric_from_prompt_file(given, stands_for.scale, name=f"{stands_for.name}.{Path(given).stem}")
    return Metric.load(given)


def _match(given: str, layout: Benchmark) -> tuple[str, Metric]:
    """Find the dimension of a metric, by preset or by name."""
    metric = Metric.load(given)
    last = metric.name.rsplit("/", 1)[-1]
    for dimension, preset in layout.dimensions.items():
        if preset is not None and (metric.name == preset or last == dimension):
            return dimension, metric
    rated = ", ".join(dimension for dimension, preset in layout.dimensions.items() if preset)
    raise ConfigurationError(
        f"{layout.name} has no ratings for {metric.name}",
        hint=f"Say which it rates: `metrics=DIMENSION={given}`, one of {rated}.",
    )
