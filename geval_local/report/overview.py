"""The static part of the page, readable without the script: figures per metric, prompts, settings, as manifests say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from geval_local.analysis.results import ScoredRun
from geval_local.analysis.tables import Table, number
from geval_local.errors import ConfigurationError, UnscorableError
from geval_local.fields import lookup
from geval_local.grouping import Documents
from geval_local.io.columns import as_text
from geval_local.io.results import Record, Results
from geval_local.io.samples import Sample
from geval_local.prompt import render_form
from geval_local.signature import Signature, signature_differences, signature_parts
from geval_local.summary import Summary, Tally, mass_warning

#: One signature for all metrics, or one per metric; as text, in the form of `Signature`.
SignatureInput = Signature | str | Mapping[str, Signature | str]


class MetricNotes(TypedDict, total=False):
    """Additional information about a metric."""

    #: The rendered prompt.
    prompt: str
    #: The evaluation steps.
    steps: Sequence[str]
    #: The scale as `Scale.parse` takes it; without it the ends are inferred from labels and scores.
    scale: Any


@dataclass(frozen=True)
class MetricText:
    """Prompt, steps and signature of one metric, as shown."""

    metric: str
    prompt: str
    steps: tuple[str, ...]
    signature: str


def summaries(results: Results, *, group_by: str | None = None) -> list[Summary]:
    """Summarize every metric of a run, with rows grouped into documents by `Documents`."""
    documents = Documents(group_by)
    tallies = [Tally(metric) for metric in results.metrics]
    for record in results.records:
        sample = Sample({}, record.number)
        document = documents.add(record.columns)
        for tally in tallies:
            tally.add(sample.where, sample.row, record.scores[tally.metric], document)
    counts = documents.counts
    return [tally.summary(counts.told, grouped=counts.field is not None) for tally in tallies]


def overview_table(found: Sequence[Summary]) -> Table:
    """Build a table with one row per metric."""
    low_mass = found[0].low_mass
    rows = []
    for one in found:
        few = "-" if math.isnan(one.low_mass_share) else f"{one.low_mass_share:.1%}"
        rows.append(
            (
                one.metric,
                f"{one.scored:,} of {one.rows:,}",
                number(one.mean),
                f"{number(one.low)} to {number(one.high)}" if one.low == one.low else "-",
                number(one.std),
                number(one.label_mass),
                number(one.label_mass_min),
                few,
                "-" if one.passed_share is None else f"{one.passed_share:.1%} reach {one.threshold:g}",
                f"{one.unscored:,}",
            )
        )
    headers = (
        "metric",
        "scored",
        "mean",
        "95 % interval",
        "std",
        "label mass",
        "lowest mass",
        f"mass < {low_mass:g}",
        "threshold",
        "unscored",
    )
    notes = [
        *(mass_warning(one) for one in found if one.low_mass_share > 0),
        f"interval of the mean: Student's t over documents; {found[0].grouping}",
        "std: between rows, n - 1 in the denominator",
        *(f"warning: {one.metric}: {one.interval.warning}" for one in found if one.interval.warning),
    ]
    return Table(headers, tuple(rows), tuple(notes))


def notes_of(
    results: Results, notes: Mapping[str, MetricNotes] | None, signatures: Mapping[str, str]
) -> list[MetricText]:
    """Collect prompt, steps and signature per metric; metrics without any are left out."""
    notes = notes or {}
    unknown = [metric for metric in (*notes, *signatures) if metric not in results.metrics]
    if unknown:
        raise ConfigurationError(
            f"{results.name} has no metric {unknown[0]!r}", hint=f"It has: {', '.join(results.metrics)}."
        )
    found = []
    for metric in results.metrics:
        note = notes.get(metric, {})
        text = MetricText(metric, note.get("prompt", ""), tuple(note.get("steps", ())), signatures.get(metric, ""))
        if text.prompt or text.steps or text.signature:
            found.append(text)
    return found


def judges(signatures: Mapping[str, str], manifest: Mapping[str, Any]) -> str:
    """Return the judge's name from the signature or the manifest; empty if neither has it."""
    found = [signature_parts(signature).get("judge", "") for signature in signatures.values()]
    found = list(dict.fromkeys(name for name in found if name))
    return ", ".join(found) or as_text(manifest.get("judge", "") or "")


def facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format a manifest's entries as texts; objects as JSON."""
    return [(as_text(name), as_text(value)) for name, value in manifest.items() if value is not None]


def group_names(records: Iterable[Record], group_by: str | None) -> list[str | None] | None:
    """Return the group of every record; None without grouping."""
    if group_by is None:
        return None
    found = [lookup(record.columns, group_by) for record in records]
    return [None if value is None else as_text(value) for value in found]


# --- what manifests tell ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignatureDifference:
    """One key that differs between the signatures of two runs."""

    key: str
    metrics: tuple[str, ...]
    first: str
    second: str


def signatures_by_metric(given: SignatureInput | None, metrics: Sequence[str]) -> dict[str, str]:
    """Assign the given signatures to metrics; metrics without one are left out."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {metric: str(given[metric]) for metric in metrics if metric in given}
    return {metric: str(given) for metric in metrics}


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[SignatureDifference]:
    """List differences if both runs have a signature; metrics with the same difference are grouped."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for metric in first:
        if metric in second:
            differ = signature_differences(first[metric], second[metric], missing="not given")
            for key, values in differ.items():
                found.setdefault((key, *values), []).append(metric)
    return [SignatureDifference(key, tuple(metrics), first, second) for (key, first, second), metrics in found.items()]


@dataclass(frozen=True)
class DescribedResults:
    """What the manifest of a run says of its metrics."""

    path: Path
    notes: dict[str, MetricNotes]
    signatures: dict[str, str] | None
    facts: Mapping[str, Any] | None
    mapping: dict[str, str]


def described(run: ScoredRun) -> DescribedResults:
    """Give the steps, scale, signature and form (as the first row fills it) of every metric, and the run's facts."""
    names, manifest = run.metrics, run.manifest
    if manifest is None:
        return DescribedResults(run.path, {}, None, None, run.mapping)
    known = {name: manifest.metrics[name] for name in names if name in manifest.metrics}
    notes: dict[str, MetricNotes] = {}
    for name, origin in known.items():
        metric = origin.definition
        notes[name] = {"scale": metric.scale, "steps": list(metric.steps or ())}
        for row in run.rows:
            try:
                notes[name]["prompt"] = render_form(metric, Sample(row, mapping=run.mapping).texts(metric.fields)).text
            except UnscorableError:
                continue
            break
    signatures = {name: origin.signature for name, origin in known.items()}
    facts = {"judge": manifest.judge, "input": manifest.input, "input sha256": manifest.input_sha256}
    return DescribedResults(run.path, notes, signatures or None, facts, run.mapping)
