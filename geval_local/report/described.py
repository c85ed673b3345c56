"""What manifests tell the pages: forms, steps, scales, signatures and their differences, judge, input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geval_local.analysis.results import ScoredRun
from geval_local.errors import UnscorableError
from geval_local.io.result_manifest import Manifest, read_manifest
from geval_local.io.results import read_result_rows
from geval_local.io.samples import Sample
from geval_local.prompt import render_form
from geval_local.report.overview import MetricNotes
from geval_local.signature import Signature, signature_differences

#: One signature for all metrics, or one per metric; as text, in the form of `Signature`.
SignatureInput = Signature | str | Mapping[str, Signature | str]


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
    """A result file with what its manifest says."""

    path: Path
    notes: dict[str, MetricNotes]
    signatures: dict[str, str] | None
    facts: Mapping[str, Any] | None
    mapping: dict[str, str]


def described_results(path: Path) -> DescribedResults:
    """Read a result file and its manifest."""
    manifest = read_manifest(path)
    names = [] if manifest is None else list(manifest.metrics)
    mapping = {} if manifest is None else dict(manifest.fields)
    rows = read_result_rows(path)
    return DescribedResults(
        path, notes(manifest, names, rows, mapping), signatures(manifest, names), facts(manifest), mapping
    )


def described(run: ScoredRun) -> DescribedResults:
    """Give what the manifest of a run says of its metrics."""
    names = run.metrics
    return DescribedResults(
        run.path,
        notes(run.manifest, names, run.rows, run.mapping),
        signatures(run.manifest, names),
        facts(run.manifest),
        run.mapping,
    )


def notes(
    manifest: Manifest | None, metrics: Sequence[str], rows: Sequence[Mapping[str, Any]], mapping: Mapping[str, str]
) -> dict[str, MetricNotes]:
    """Give every metric that a manifest describes its steps, its scale, and the form as the first row fills it."""
    found: dict[str, MetricNotes] = {}
    for name in metrics:
        if manifest is None or name not in manifest.metrics:
            continue
        metric = manifest.metrics[name].definition
        found[name] = {"scale": metric.scale, "steps": list(metric.steps or ())}
        for row in rows:
            try:
                found[name]["prompt"] = render_form(metric, Sample(row, mapping=mapping).texts(metric.fields)).text
            except UnscorableError:
                continue
            break
    return found


def signatures(manifest: Manifest | None, metrics: Sequence[str]) -> dict[str, str] | None:
    """Give the signature of every metric that a manifest describes; None if it describes none."""
    known = {} if manifest is None else manifest.metrics
    return {name: known[name].signature for name in metrics if name in known} or None


def facts(manifest: Manifest | None) -> Mapping[str, Any] | None:
    """Give the other facts of a run that a manifest holds; None without one."""
    if manifest is None:
        return None
    return {"judge": manifest.judge, "input": manifest.input, "input sha256": manifest.input_sha256}
