"""Is a judge good enough: in place of a person, as a yes or no, and as a distribution over the labels."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.tables import Table, number
from geval_local.statistics.correlation import within
from geval_local.statistics.interval import Interval, by_name, independent_rows, mean_interval
from geval_local.statistics.records import ScoredItem, labels_of, usable
from geval_local.statistics.resampling import drawn_by_document

Floats = NDArray[np.float64]
#: How much worse than a person a judge may be, since it costs less: for crowd ratings, and for experts.
EPSILONS = (0.1, 0.2)
#: Items that a rater needs in the alternative-annotator test (`min_instances_per_human` of the authors' code).
LEAST_RATED = 30
#: Pseudo-observations added to every cell of people's and the judge's yes and no: Jeffreys' prior. For kappa, which
#: Jeffreys' prior shrinks to 0, the prior of Berger, Bernardo and Sun (2015, doi:10.1214/14-BA915).
PRIORS = {"sensitivity": 0.5, "specificity": 0.5, "kappa": 0.25, "f1": 0.5}
#: Draws of the posterior, enough for two digits of an interval.
POSTERIOR_DRAWS = 10_000


@dataclass(frozen=True)
class Verdicts:
    """A judge's yes and no against people's; a score above the middle of the scale is a yes."""

    sensitivity: Interval
    specificity: Interval
    #: Cohen's kappa.
    kappa: Interval
    f1: Interval
    #: Number of rated and scored items, and of those to which people say yes.
    n: int
    yes: int


@dataclass(frozen=True)
class Kappas:
    """Cohen's weighted kappa of the label nearest to each score with the ratings."""

    #: Disagreement weighs as the distance of the labels' values, and as its square.
    linear: Interval
    quadratic: Interval
    n: int


@dataclass(frozen=True)
class Probabilities:
    """A judge's label probabilities against the distribution of the ratings."""

    #: Mean squared distance of the two distributions (0 to 2), and mean negative log probability of a rating, in nats.
    brier: Interval
    nll: Interval
    #: The same for the ratings' overall distribution as the prediction for every item.
    brier_base: float
    nll_base: float
    n: int


@dataclass(frozen=True)
class Annotators:
    """The alternative-annotator test (Calderon, Reichart and Dror, 2025, arXiv:2501.10970)."""

    #: Mean probability that the judge is at least as near to the other raters as the rater whose place it takes.
    advantage: float
    #: Epsilon -> share of the raters that the judge may replace; with 0.5 or more it passes.
    winning_rate: Mapping[float, float]
    #: Number of raters with enough items, and the most items that one of them shares with others.
    raters: int
    n: int
    #: The same for a judge that always predicts the mean rating.
    constant: Annotators | None = None

    def passes(self, epsilon: float) -> bool:
        """Whether it may replace half of the raters."""
        return self.winning_rate[epsilon] >= 0.5

    def told(self, epsilon: float) -> str:
        """Write the winning rate, whether it passes, and whether always predicting the mean passes too."""
        passed = " passes" if self.passes(epsilon) else ""
        if passed and self.constant is not None and self.constant.passes(epsilon):
            passed += ", as does the mean"
        return f"{number(self.winning_rate[epsilon], 2)}{passed}"


@dataclass(frozen=True)
class GoodEnough:
    """Figures of judges besides correlations; keys are ``dimension: judge``."""

    verdicts: Mapping[str, Verdicts] = field(default_factory=dict)
    kappas: Mapping[str, Kappas] = field(default_factory=dict)
    probabilities: Mapping[str, Probabilities] = field(default_factory=dict)
    annotators: Mapping[str, Annotators] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        judges: Mapping[str, Sequence[ScoredItem]],
        ratings: Floats | None = None,
        elsewhere: Container[str] = (),
    ) -> GoodEnough:
        """Compute what scores and ratings, also of single raters, allow; of another scale, `elsewhere`, yes and no."""
        found: dict[str, dict[str, Any]] = {}
        for key, items in judges.items():
            figures: dict[str, Any] = {"verdicts": judge_verdicts(items)}
            if key.rpartition(": ")[0] not in elsewhere:
                figures["kappas"] = judge_kappas(items)
                figures["probabilities"] = judge_probabilities(items, ratings)
                figures["annotators"] = None if ratings is None else alternative_annotators(items, ratings)
            for name, one in figures.items():
                if one is not None:
                    found.setdefault(name, {})[key] = one
        return cls(**found)

    def tables(self) -> Iterator[Table]:
        """Give the figures as tables with titles."""
        if self.verdicts:
            rows: list[tuple[Any, ...]] = [
                (key, *(getattr(one, name) for name in PRIORS), f"{one.yes} of {one.n}")
                for key, one in self.verdicts.items()
            ]
            note = "yes: a score above the middle of the scale; 95 % intervals from the posterior of the four counts"
            table = Table.of(("", *PRIORS, "people say yes"), rows, (note,))
            yield table.titled("yes and no against people's", sections=True)
        if self.kappas:
            rows = [(key, one.linear, one.quadratic, one.n) for key, one in self.kappas.items()]
            note = "of the label nearest to each score; 1 is identity, 0 chance; 95 % intervals over documents"
            table = Table.of(("", "linear", "quadratic", "n"), rows, (note,))
            yield table.titled("weighted kappa with people", sections=True)
        if self.probabilities:
            rows = [
                (key, one.brier, one.brier_base, one.nll, one.nll_base, one.n)
                for key, one in self.probabilities.items()
            ]
            headers = ("", "Brier", "base rates", "NLL", "base rates (NLL)", "n")
            note = "lower is better; base rates: the ratings' distribution for every item; 95 % intervals over "
            table = Table.of(headers, rows, (f"{note}documents",))
            yield table.titled("label probabilities against the ratings' distribution", sections=True)
        if found := self.annotators:
            shown: dict[str, dict[str, Annotators]] = {}
            for key, one in found.items():
                shown.setdefault(key.rpartition(": ")[0], {})[key] = one
            for section, own in shown.items():
                constant = next(one.constant for one in own.values())
                own |= {} if constant is None else {f"{section}: always the mean rating": constant}
            rows = [
                (key, one.advantage, *map(one.told, EPSILONS), one.raters, one.n)
                for own in shown.values()
                for key, one in own.items()
            ]
            rates = (f"winning rate ({e:g})" for e in EPSILONS)
            note = (
                "in place of a rater, is the judge as near to the others? advantage: how often; winning rate: share of "
                "raters it may replace (one-sided t over documents, Benjamini-Yekutieli, .05), allowing it to be worse "
                "by .1 (crowd) or .2 (experts); from one half on it passes (Calderon et al., 2025); raters with fewer "
                f"than {LEAST_RATED} items are left out"
            )
            table = Table.of(("", "advantage", *rates, "raters", "n"), rows, (note,))
            yield table.titled("may the judge replace a rater?", sections=True)


def judge_verdicts(items: Sequence[ScoredItem]) -> Verdicts | None:
    """Compare yes and no; None if the ratings do not have exactly two values."""
    kept = usable(items)[0]
    human = np.array([item.human for item in kept])
    values = np.unique(human)
    if values.size != 2:
        return None
    ends = labels_of(kept) or values.tolist()
    said = np.array([item.predicted > (ends[0] + ends[-1]) / 2 for item in kept])
    yes = human == values[1]
    cells = np.array([said & yes, ~said & yes, said & ~yes, ~said & ~yes], dtype=np.float64)
    documents = by_name(item.group for item in kept)[1]
    found = {name: _posterior(cells, documents, place, prior) for place, (name, prior) in enumerate(PRIORS.items())}
    return Verdicts(**found, n=len(kept), yes=int(yes.sum()))


def judge_kappas(items: Sequence[ScoredItem]) -> Kappas | None:
    """Compute weighted kappas; None unless the ratings are among three labels or more, of at most twenty."""
    kept = usable(items)[0]
    values = np.array(labels_of(kept) or sorted({item.human for item in kept}))
    if not 3 <= values.size <= 20 or not np.isin([item.human for item in kept], values).all():
        return None
    nearest = [
        np.abs(np.array([getattr(item, name) for item in kept])[:, None] - values).argmin(axis=1)
        for name in ("predicted", "human")
    ]
    cells = np.eye(values.size**2)[nearest[0] * values.size + nearest[1]].T
    distance = np.abs(values[:, None] - values)

    def kappas(sums: Floats) -> Floats:
        shares = sums.reshape(-1, values.size, values.size) / sums.sum(axis=1)[:, None, None]
        expected = shares.sum(axis=2)[:, :, None] * shares.sum(axis=1)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            found = [1 - (shares * w).sum((1, 2)) / (expected * w).sum((1, 2)) for w in (distance, distance**2)]
        return np.stack(found, axis=1)

    figures = drawn_by_document([item.group for item in kept], cells, kappas)
    linear, quadratic = (within(figures.interval(at), -1.0, 1.0) for at in (0, 1))
    return Kappas(linear, quadratic, len(kept))


def _posterior(cells: Floats, documents: NDArray[np.int64], place: int, prior: float) -> Interval:
    """Compute one figure with the middle 95 % of its posterior; cells are of shape (4, rows).

    The row count is reduced by the design effect (effective sample size), further if documents are few (Korn and
    Graubard, 1998). As with Jeffreys' interval, a figure of 0 or 1 is itself an end of its interval.
    """
    counts, rows, units = cells.sum(axis=1), cells.shape[1], int(documents.max()) + 1
    value = float(_figures(counts)[place])
    if units < 2:
        return Interval(value)
    step = 1e-4 * np.eye(4)
    # Gradient of the figure at smoothed counts: a judge without a miss still has a variance.
    moves = (_figures(counts + prior + step) - _figures(counts + prior - step))[:, place] @ cells
    by_document = np.bincount(documents, moves)
    share = independent_rows(rows, units, float(by_document @ by_document), float(moves @ moves)) / rows
    draws = np.random.default_rng(0).standard_gamma(counts * share + prior, size=(POSTERIOR_DRAWS, 4))
    drawn = _figures(draws)[:, place]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(value, min(float(low), value), max(float(high), value), float(drawn.std(ddof=1)), units)


def _figures(table: Floats) -> Floats:
    """Compute the four figures from hits, misses, false alarms and correct rejections, along the last axis."""
    hit, missed, false, right = np.moveaxis(table, -1, 0)
    total = table.sum(axis=-1)
    expected = ((hit + missed) * (hit + false) + (false + right) * (missed + right)) / total**2
    kappa = ((hit + right) / total - expected) / (1 - expected)
    return np.stack(
        [hit / (hit + missed), right / (right + false), kappa, 2 * hit / (2 * hit + missed + false)], axis=-1
    )


def judge_probabilities(items: Sequence[ScoredItem], ratings: Floats | None = None) -> Probabilities | None:
    """Compare distributions; None if the judge has no probabilities or the ratings are not its labels.

    `ratings` has the ratings of single raters, shape (raters, items); without it, an item's rating counts as one
    rater's.
    """
    labels = labels_of(items)
    table = np.array([[item.human for item in items]]) if ratings is None else ratings
    said = np.array([item.probabilities is not None and math.isfinite(item.predicted) for item in items])
    rated = np.isfinite(table).any(axis=0) & (np.isin(table, labels) | np.isnan(table)).all(axis=0)
    kept = np.flatnonzero(said & rated).tolist()
    # A judge with another scale, or mean ratings between its labels: there is nothing to compare.
    if not labels or len(kept) < max(2, 0.9 * np.count_nonzero(said & np.isfinite(table).any(axis=0))):
        return None
    people = np.stack([(table[:, kept] == label).sum(axis=0) for label in labels], axis=1).astype(np.float64)
    people /= people.sum(axis=1, keepdims=True)
    p = np.zeros_like(people)
    for row, place in enumerate(kept):
        for label, value in (items[place].probabilities or {}).items():
            p[row, labels.index(float(label))] = value
    base = people.mean(axis=0)
    documents = [items[place].group for place in kept]

    def losses(q: Floats) -> tuple[Floats, Floats]:
        logs = np.log(np.maximum(q, 1e-12))
        return ((q - people) ** 2).sum(axis=1), -(people * logs).sum(axis=1)

    (brier, nll), (brier_base, nll_base) = losses(p), losses(np.broadcast_to(base, p.shape))
    return Probabilities(
        mean_interval(brier, documents, ends=(0.0, 2.0)),
        mean_interval(nll, documents),
        float(brier_base.mean()),
        float(nll_base.mean()),
        len(kept),
    )


def alternative_annotators(items: Sequence[ScoredItem], ratings: Floats) -> Annotators | None:
    """Run the alternative-annotator test: put the judge in each rater's place; None with fewer than three raters.

    As in the authors' code, an item needs at least one other rater, and a rater needs 30 such items.
    """
    if len(ratings) < 3:
        return None
    score = np.array([item.predicted for item in items])
    documents = by_name(item.group for item in items)[1]
    rated = np.isfinite(ratings[:, np.isfinite(score)])
    mean = np.where(np.isfinite(score), np.nanmean(ratings[:, np.isfinite(score)]) if rated.any() else math.nan, score)
    judge, constant = (_in_place_of_raters(own, documents, ratings) for own in (score, mean))
    return replace(judge, constant=constant)


def _in_place_of_raters(score: Floats, documents: Any, ratings: Floats) -> Annotators:
    from scipy.special import stdtr
    from scipy.stats import false_discovery_control

    advantages: list[float] = []
    p: dict[float, list[float]] = {epsilon: [] for epsilon in EPSILONS}
    used = 0
    for place, own in enumerate(ratings):
        others = np.delete(ratings, place, axis=0)
        kept = np.flatnonzero(np.isfinite(score) & np.isfinite(own) & np.isfinite(others).any(axis=0))
        if len(kept) < LEAST_RATED:
            continue
        far = [np.nanmean((others[:, kept] - one[kept]) ** 2, axis=0).round(12) for one in (score, own)]
        judge_wins, rater_wins = (far[0] <= far[1]).astype(float), (far[1] <= far[0]).astype(float)
        less = mean_interval(rater_wins - judge_wins, documents[kept])
        advantages.append(float(judge_wins.mean()))
        used = max(used, len(kept))
        for epsilon in EPSILONS:
            if less.units < 2 or less.value >= epsilon:
                p[epsilon].append(1.0)
            elif less.error == 0:
                # Largest probability of no loss on this many documents, if the judge were worse by epsilon.
                p[epsilon].append((1 - epsilon) ** less.units)
            else:
                p[epsilon].append(float(stdtr(less.units - 1, (less.value - epsilon) / less.error)))
    if not advantages:
        return Annotators(math.nan, dict.fromkeys(EPSILONS, math.nan), 0, 0)
    # Benjamini and Yekutieli's correction is valid for any dependence between the tests.
    rates = {one: float((false_discovery_control(own, method="by") <= 0.05).mean()) for one, own in p.items()}
    return Annotators(float(np.mean(advantages)), rates, len(advantages), used)
