"""Which documents people should rate: a random draw as a file to fill in, and the interval that their ratings give.

The draw puts documents into deciles by their mean score, shuffles each decile, and draws at equal distances from a
random start. Every document has the same chance, and every decile gets its share (systematic sampling; Cochran, 1977,
chapter 8). People rate all outputs of a document, so systems are compared on the same documents. The sheet is blind: it
has no scores and no systems, rows in random order, and keys that reveal nothing.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Unpack

from geval_local.analysis.differences import document_means
from geval_local.analysis.estimates import estimate
from geval_local.analysis.ratings.values import HumanFields, rating_fields
from geval_local.analysis.results import KEY, Reading, ResultsGiven, ScoredRun
from geval_local.analysis.tables import Study, Table, number
from geval_local.errors import ConfigurationError, DataError, OutputError
from geval_local.fields import SYSTEM_FIELDS
from geval_local.files import save_text
from geval_local.io.columns import as_text, neutral, to_json
from geval_local.statistics.prediction_powered import Estimate
from geval_local.statistics.records import ScoredItem

#: Numbers of rated documents in the table, in addition to the drawn number.
SHOWN = (10, 20, 50, 100, 200, 500)
#: Correlations of ratings with scores that the table assumes if nothing was rated yet.
AGREEMENTS = (0.5, 0.8)


@dataclass(frozen=True)
class RatingPlan(Study):
    """Documents to rate, and the intervals that their ratings give."""

    #: The results and the metric.
    file: str
    metric: str
    #: How rows are grouped into documents, in words.
    grouping: str
    #: Number of documents drawn now, rated before, and in all.
    drawn: int
    rated: int
    total: int
    #: Keys of the rows to rate.
    keys: tuple[str, ...]
    #: Number of rated documents -> column (with or without a judge) -> half of the interval's length.
    lengths: dict[int, dict[str, float]]
    #: Description of the source of the lengths.
    source: str
    #: Rows of the sheet.
    sheet: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values, without the sheet."""
        return {name: value for name, value in super().to_dict().items() if name != "sheet"}

    def shown(self) -> Iterator[Table]:
        """Give the lengths."""
        columns = next(iter(self.lengths.values()))
        rows = [(str(count), *(f"+- {number(own[one], 2)}" for one in columns)) for count, own in self.lengths.items()]
        table = Table.of(("rated documents", *columns), rows, (self.source,))
        yield table.titled(f"{self.metric}: 95 % interval of a system's mean rating")

    def remarks(self) -> list[tuple[str, bool]]:
        """Say what was drawn."""
        before = f" beside {self.rated} rated before" if self.rated else ""
        told = f"drawn at random: {self.drawn} of {self.total} documents{before}, {len(self.keys)} rows to rate"
        return [(self.grouping, False), (told, False)]


def plan_ratings(
    results: ResultsGiven,
    human: HumanFields | None = None,
    *,
    documents: int,
    raters: Sequence[str] = (),
    metric: str | None = None,
    seed: int = 0,
    **reading: Unpack[Reading],
) -> RatingPlan:
    """Draw the documents that people should rate for `estimate`, and say how long the interval would be.

    Parameters
    ----------
    results : path, RunResult, sequence of mapping, or data frame
        Results of `score`. Documents with ratings serve as a pilot and are not drawn again.
    human : str, optional
        Field of the rating that people will fill in.
    documents : int
        How many documents to draw.
    raters : sequence of str
        Fields of the ratings of single people, instead of `human`.
    metric : str, optional
        The metric, if the results have several.
    seed : int
        Seed of the draw.
    **reading
        Fields of the document and of the system, and how scores are read: see `Reading`.

    Raises
    ------
    ConfigurationError, DataError
        If the results cannot be used, or have fewer than `documents` documents without a rating.
    """
    run = ScoredRun.of(results, **reading).readable()
    name = run.one_metric(metric)
    fields = list(raters) or list(rating_fields(human, [name]).values())
    if not fields:
        raise ConfigurationError("a plan needs the field that people fill in", hint="Name it as `human`, or `raters`.")
    items = run.items(name, against_people=True)
    scored = [place for place, item in enumerate(items) if math.isfinite(item.predicted)]
    there = np.isfinite(np.array(list(run.ratings(name, fields).values()))).any(axis=0)
    rated = {items[at].group for at in scored if there[at]}
    means: dict[str, list[float]] = defaultdict(list)
    for place in scored:
        means[items[place].group].append(items[place].predicted)
    left = sorted((name for name in means if name not in rated), key=lambda one: (float(np.mean(means[one])), one))
    if not 1 <= documents <= len(left):
        raise DataError(
            f"{documents} documents cannot be drawn: {len(left)} have a score and no rating", hint="Draw fewer."
        )
    rng = np.random.default_rng(seed)
    tenths = np.arange(len(left)) * 10 // len(left)
    order = np.lexsort((rng.random(len(left)), tenths))
    drawn = {left[order[int(at)]] for at in (np.arange(documents) + rng.random()) * len(left) / documents}
    keys = run.blind_keys
    chosen = [place for place in rng.permutation(scored).tolist() if items[place].group in drawn]
    hidden = {KEY, "id", "geval", *fields, *([run.system] if run.system else SYSTEM_FIELDS)}
    sheet = tuple(
        {KEY: keys[place]}
        | {name: own for name, own in run.rows[place].items() if name not in hidden and _is_text(own)}
        | dict.fromkeys(fields, "")
        for place in chosen
    )
    spreads, source = _by_scores([items[at] for at in scored]), "if ratings spread as the judge's scores do"
    by_system: dict[str, set[str]] = {items[at].system: set() for at in scored}
    for place in scored:
        by_system[items[place].system] |= {items[place].group} if there[place] else set()
    if min(map(len, by_system.values())) > 2:
        pilot = estimate(run, human, raters=raters, metric=metric).estimates.values()
        spreads, source = _by_pilot([*pilot]), f"as the ratings of {len(rated)} documents lead to expect"
    total = len(means)
    counts = sorted({*(count for count in SHOWN if count < total), documents + len(rated)})
    lengths = {count: {who: _half(count, total, *own) for who, own in spreads.items()} for count in counts}
    told = str(run.path), name, run.documents.told
    return RatingPlan(*told, documents, len(rated), total, tuple(keys[at] for at in chosen), lengths, source, sheet)


def _is_text(value: Any) -> bool:
    """Whether a rater may see this value: numbers are often ratings or scores, which would influence the rater."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(map(_is_text, value))
    try:
        return isinstance(value, str) and not math.isfinite(float(value))
    except ValueError:
        return bool(value.strip())  # a blank one may be a missing number


def _half(count: int, total: int, spread: float, agreement: float) -> float:
    """Compute half of the interval's length for `count` rated documents and scores of all `total` (PPI++)."""
    from scipy.special import stdtrit

    left, freedom = 1 - agreement**2 * (1 - count / total), count - 1 - (agreement > 0)
    return float(stdtrit(freedom, 0.975)) * spread * math.sqrt(left / count) if freedom > 0 else math.nan


def _by_scores(items: Sequence[ScoredItem]) -> dict[str, tuple[float, float]]:
    """Assume that ratings spread like the judge's scores, for several correlations of both."""
    means = document_means(items).values()
    spreads = [float(np.var(list(own.values()), ddof=1)) for own in means if len(own) > 1]
    spread = math.sqrt(float(np.mean(spreads))) if spreads else math.nan
    named = {f"a judge of r = {one:g}": (spread, one) for one in AGREEMENTS}
    return {"without the judge": (spread, 0.0)} | named


def _by_pilot(found: Sequence[Estimate]) -> dict[str, tuple[float, float]]:
    """Estimate spread and correlation from the rated documents, averaged over systems."""
    spread = math.sqrt(float(np.mean([one.people.error**2 * one.people.units for one in found])))
    # The judge reduces the variance by the squared correlation times the share of unrated rows.
    gains = [
        (1 - (one.combined.error / one.people.error) ** 2) / (1 - one.rated / one.n)
        for one in found
        if one.people.error > 0 and one.rated < one.n
    ]
    agreement = math.sqrt(min(1.0, max(0.0, float(np.mean(gains))))) if gains else 0.0
    return {"without the judge": (spread, 0.0), "with this judge": (spread, agreement)}


def save_sheet(plan: RatingPlan, output: Path) -> None:
    """Write the rows to rate as .csv or .jsonl; an existing file may contain ratings, so it is never replaced."""
    if os.path.lexists(output):
        raise OutputError(f"{output} exists, and may hold ratings", hint="Name another file, or move this one away.")
    if output.suffix.lower() == ".csv":
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(dict.fromkeys(column for row in plan.sheet for column in row)))
        writer.writeheader()
        shown = ({name: "" if own is None else _cell(own) for name, own in row.items()} for row in plan.sheet)
        writer.writerows(shown)
        save_text(output, text.getvalue())
    elif output.suffix.lower() == ".jsonl":
        save_text(output, "".join(f"{to_json(row)}\n" for row in plan.sheet))
    else:
        raise OutputError(f"{output} is no .csv or .jsonl file", hint="Name one of these.")


def _cell(value: Any) -> str:
    return neutral(value) if isinstance(value, str) else as_text(value)
