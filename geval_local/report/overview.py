"""The static part of the page, readable without the script: figures per metric, prompts, settings from manifests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from geval_local.analysis.results import ScoredRun
from geval_local.analysis.tables import Table, number
from geval_local.errors import UnscorableError
from geval_local.grouping import Documents
from geval_local.io.columns import as_text
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.prompt import render_form
from geval_local.report.headline import passing, said_once
from geval_local.scale import Scale
from geval_local.score import LOW_LABEL_MASS
from geval_local.signature import signature_parts
from geval_local.slices import find_slicings
from geval_local.summary import Summary, Tally, mass_remark


@dataclass(frozen=True)
class MetricText:
    """A metric as the judge saw it."""

    #: The rendered prompt.
    prompt: str = ""
    #: The evaluation steps.
    steps: tuple[str, ...] = ()
    #: Text of its `geval_local.signature.Signature`.
    signature: str = ""
    #: The scale as `Scale.parse` reads it; without it, the page infers the ends from labels and scores.
    scale: Any = None


@dataclass(frozen=True)
class Described:
    """A run as its manifest describes it, with other known facts; empty without any."""

    metrics: Mapping[str, MetricText] = field(default_factory=dict)
    #: Name -> value.
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def signatures(self) -> dict[str, str]:
        """Metric -> signature, if known."""
        return {name: one.signature for name, one in self.metrics.items() if one.signature}

    @property
    def judge(self) -> str:
        """The judge's name from the signatures or the facts; empty if neither has it."""
        found = [signature_parts(signature).get("judge", "") for signature in self.signatures.values()]
        return ", ".join(dict.fromkeys(filter(None, found))) or as_text(self.facts.get("judge", "") or "")

    @property
    def entries(self) -> list[tuple[str, str]]:
        """The facts as texts, with objects as JSON."""
        return [(as_text(name), as_text(value)) for name, value in self.facts.items() if value is not None]

    @property
    def scales(self) -> dict[str, Scale]:
        """Metric -> scale, if known."""
        return {name: Scale.parse(one.scale) for name, one in self.metrics.items() if one.scale is not None}

    def texts(self, metrics: Sequence[str]) -> dict[str, MetricText]:
        """Return the texts of some metrics, in their order, except those with nothing but a scale."""
        known = {name: self.metrics[name] for name in metrics if name in self.metrics}
        return {name: one for name, one in known.items() if one.prompt or one.steps or one.signature}


UNDESCRIBED = Described()


def summaries(
    results: ScoredRun,
    described: Described = UNDESCRIBED,
    *,
    metrics: Sequence[str] = (),
    documents: Documents | None = None,
    by: Sequence[str] = (),
) -> list[Summary]:
    """Summarize every metric of a run, or some, with its slices; `documents` are by default those of the run."""
    documents = documents or results.collected
    ends = {name: (scale.low, scale.high) for name, scale in described.scales.items()}
    tallies = [Tally(metric, ends=ends.get(metric)) for metric in metrics or results.metrics]
    slicings = find_slicings(results.rows.inputs(), by, results.mapping) if by else []
    for tally in tallies:
        tally.cut(slicings)
    inputs = results.rows.inputs() if slicings else ()
    slices = [{one.column: one.slice_of(row, results.mapping) for one in slicings} for row in inputs]
    for place, row in enumerate(results.rows.numbers):
        for tally in tallies:
            own = slices[place] if slices else {}
            tally.add(f"row {row}", row, results.score(tally.name, place), place, own)
    return [tally.summary(documents) for tally in tallies]


def slice_tables(found: Sequence[Summary]) -> list[Table]:
    """Build a table per slicing column, with one row per slice and metric."""
    tables = []
    for column in dict.fromkeys(one.column for summary in found for one in summary.slices):
        rows = [
            (
                one.value if len(found) == 1 else f"{one.value}, {summary.metric}",
                f"{one.summary.scored:,} of {one.summary.rows:,}",
                one.summary.interval.units,
                one.summary.shown,
                "-" if one.summary.passed_share is None else f"{one.summary.passed_share:.1%}",
                one.summary.shown.warning or "-",
            )
            for summary in found
            for one in summary.slices
            if one.column == column
        ]
        headers = (column, "scored", "documents", "mean", "passed", "note")
        tables.append(Table.of(headers, rows).titled(f"by {column}"))
    return tables


def overview_table(found: Sequence[Summary]) -> Table:
    """Build a table with one row per metric."""
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
                passing(one) or "-",
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
        f"mass < {LOW_LABEL_MASS:g}",
        "threshold",
        "unscored",
    )
    notes = [
        *said_once((one.metric, mass_remark(one)) for one in found if one.low_mass_share > 0),
        f"interval of the mean: Student's t over documents; {found[0].grouping}",
        "std: between rows, n - 1 in the denominator",
        *said_once((one.metric, f"warning: {one.shown.warning}") for one in found if one.shown.warning),
    ]
    return Table(headers, tuple(rows), tuple(notes))


def describe(run: ScoredRun) -> Described:
    """Return every metric's steps, scale, signature and form (filled with the first row), and the run's facts."""
    manifest = run.manifest
    if manifest is None:
        return Described()
    found = {}
    for name in run.metrics:
        if name in manifest.metrics:
            origin = manifest.metrics[name]
            metric = origin.definition
            found[name] = MetricText(_form(run, metric), metric.steps or (), origin.signature, metric.scale)
    facts = {"judge": manifest.judge, "input": manifest.input, "input sha256": manifest.input_sha256}
    return Described(found, facts)


def _form(run: ScoredRun, metric: Metric) -> str:
    for row in run.rows.inputs():
        with suppress(UnscorableError):
            return render_form(metric, Sample(row, mapping=run.mapping).texts(metric.fields)).text
    return ""
