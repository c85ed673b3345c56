"""Error rates where inference is hardest: few documents, near ties, near separation, and gates looked at twice.

    python benchmarks/inference_edges.py all -o benchmarks/results/NAME      NAME.txt
    python benchmarks/inference_edges.py ranks --datasets 50                 one study, fewer data sets

`gates` to `within_documents` are the designs in which an earlier version failed, and one more of each kind.

`interval_coverage.py` measures the usual cases. Truth is that of the population the data are drawn from. The standard
error of a share is below the table; studies run on older versions of the package as well, for a comparison.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from geval_local.analysis import comparison
from geval_local.analysis.biases import length_bias
from geval_local.analysis.differences import adjusted_means, rank_systems
from geval_local.statistics.bradley_terry import fit_bradley_terry
from geval_local.statistics.coefficients import coefficients
from geval_local.statistics.correlation import correlate
from geval_local.statistics.interval import Interval, mean_interval
from geval_local.statistics.noninferiority import not_worse, not_worse_so_far
from geval_local.statistics.raters import fit_raters
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import compare
from geval_local.thinking import mean_distribution

NAN = float("nan")
Rng = np.random.Generator
Row = tuple[Any, ...]


def items_of(scores: np.ndarray, human: np.ndarray | None = None) -> list[ScoredItem]:
    """Give scores, shape (documents, systems), as items; NaN is no output."""
    rated = np.full(scores.shape, NAN) if human is None else human
    return [
        ScoredItem(f"d{d:03}", f"s{s:02}", float(rated[d, s]), float(scores[d, s]), key=f"{d}/{s}")
        for d, s in np.argwhere(np.isfinite(scores)).tolist()
    ]


def scores_of(rng: Rng, documents: int, means: np.ndarray, noise: str = "gumbel") -> np.ndarray:
    """Draw scores of 1 to 5: difficulty with heavy tails, and skewed noise of standard deviation .3."""
    difficulty = 0.4 * rng.standard_t(3, size=(documents, 1))
    spread = {
        "gumbel": lambda size: (rng.gumbel(size=size) - np.euler_gamma) / 1.2825,
        "normal": lambda size: rng.normal(size=size),
        "ordinal": lambda size: rng.normal(size=size),
    }[noise]((documents, means.size))
    found = 3 + means + difficulty + 0.3 * spread
    return np.clip(np.round(found), 1, 5) if noise == "ordinal" else np.clip(found, 1, 5)


def told_apart(datasets: int) -> Iterator[Row]:
    """Tell apart systems by document: error of equal systems, of the equal among unequal ones, and power."""
    yield "noise", "systems", "documents", "all equal: any told", "two of three equal: told", "clear pairs found"
    for noise, systems, documents in itertools.product(("gumbel", "ordinal"), (3, 8), (5, 6, 8, 10, 30)):
        rng = np.random.default_rng([1, systems, documents])
        any_told, partly, found = [], [], []
        for _ in range(datasets):
            equal = rank_systems(items_of(scores_of(rng, documents, np.zeros(systems), noise)))
            any_told.append(any(pair.is_told_apart for pair in equal.pairs))
            means = np.where(np.arange(systems) % 3 == 0, 0.9, 0.0)
            ranking = rank_systems(items_of(scores_of(rng, documents, means, noise)))
            true = {
                (pair.first, pair.second): means[int(pair.first[1:])] != means[int(pair.second[1:])]
                for pair in ranking.pairs
            }
            partly.append(any(p.is_told_apart and not true[p.first, p.second] for p in ranking.pairs))
            found.append(np.mean([p.is_told_apart for p in ranking.pairs if true[p.first, p.second]]))
        yield noise, systems, documents, *(float(np.mean(own)) for own in (any_told, partly, found))


def planned(datasets: int) -> Iterator[Row]:
    """Find a difference with as many documents as are planned to find it with .8."""
    yield "systems", "documents", "documents planned", "found with these"
    for systems, documents in itertools.product((2, 4, 8), (6, 8, 12, 40)):
        rng = np.random.default_rng([2, systems, documents])
        need = _planned(rank_systems(items_of(scores_of(rng, max(documents, 40), np.zeros(systems), "normal"))), 0.35)
        yield systems, documents, need, _power(rng, need, systems, 0.35, datasets)


def _pair(ranking: Any) -> Any:
    return next(pair for pair in ranking.pairs if {pair.first, pair.second} == {"s00", "s01"})


def _power(rng: Rng, documents: int, systems: int, difference: float, datasets: int) -> float:
    means = difference * (np.arange(systems) == 0)
    drawn = (rank_systems(items_of(scores_of(rng, documents, means, "normal"))) for _ in range(datasets))
    return float(np.mean([_pair(ranking).is_told_apart for ranking in drawn]))


def _planned(pilot: Any, difference: float) -> int:
    """Plan from a pilot, as `compare --plan` of this version of the package does."""
    tests = {pair.name: pair for pair in pilot.pairs}
    more = (
        {"levels": {name: pair.significance for name, pair in tests.items()}}
        if hasattr(_pair(pilot), "significance")
        else {}
    )
    plan = comparison.plan_for({name: pair.difference for name, pair in tests.items()}, difference, **more)
    return int(np.median([need.documents[0.8] for need in plan.needs.values()]))


def ranks(datasets: int) -> Iterator[Row]:
    """Cover the coefficients of systems on new documents; 24 sets a row, or 12 with two nearly alike."""
    yield "systems", "documents", "sets", "pearson", "spearman", "kendall", "accuracy", "length of spearman's"
    for systems, documents, near in itertools.product((4, 8, 16), (8, 30, 100), (False, True)):
        hits, lengths = [], []
        for chosen in range(12 if near else 24):
            rng = np.random.default_rng([3, systems, documents, chosen, near])
            quality, opinion = 0.6 * rng.normal(size=systems), 0.3 * rng.normal(size=systems)
            if near:
                quality[1] = quality[0] + 0.01
            judged = 0.8 * quality + opinion
            truth = coefficients(quality, judged)
            truth[3] = (1 + truth[2]) / 2
            for _ in range(max(1, datasets // (12 if near else 24))):
                shared = 0.5 * rng.standard_t(4, size=(documents, 1)) + 0.8 * rng.normal(size=(documents, systems))
                human = quality + shared + 0.4 * rng.normal(size=shared.shape)
                score = judged + 0.7 * shared + 0.5 * rng.normal(size=shared.shape)
                found = correlate(items_of(score, human), "system", target="documents")
                own = [found.pearson, found.spearman, found.kendall, found.accuracy]
                hits.append([_covers(one, float(true)) for one, true in zip(own, truth, strict=False)])
                lengths.append(found.spearman.high - found.spearman.low)
        yield (
            systems,
            documents,
            "two nearly alike" if near else "random",
            *np.nanmean(hits, axis=0),
            float(np.nanmedian(lengths)),
        )


def judges(datasets: int) -> Iterator[Row]:
    """Cover the difference of two judges' rank correlations over systems; one sees two systems nearly alike."""
    yield "systems", "documents", "spearman", "kendall", "told apart, of equal"
    for systems, documents in itertools.product((4, 8, 16), (30, 100)):
        hits, false = [], []
        for chosen in range(12):
            rng = np.random.default_rng([9, systems, documents, chosen])
            quality = 0.6 * rng.normal(size=systems)
            judged = 0.8 * quality + 0.3 * rng.normal(size=(2, systems))
            judged[0, 1] = judged[0, 0] + 0.01
            truth = coefficients(quality, judged[0]) - coefficients(quality, judged[1])
            for _ in range(max(1, datasets // 12)):
                shared = 0.8 * rng.normal(size=(documents, systems))
                human = quality + shared + 0.4 * rng.normal(size=shared.shape)
                one, other = (
                    items_of(own + 0.7 * shared + 0.5 * rng.normal(size=shared.shape), human) for own in judged
                )
                found = [compare(one, other, "system", name, target="documents") for name in ("spearman", "kendall")]
                hits.append([_covers(test.difference, float(truth[at])) for at, test in enumerate(found, start=1)])
                false += [found[0].p < 0.05] if abs(truth[1]) < 1e-9 else []
        yield systems, documents, *np.nanmean(hits, axis=0), float(np.mean(false)) if false else NAN


def _covers(found: Interval, truth: float) -> float:
    """1 or 0; NaN without an interval."""
    return float(found.low - 1e-9 <= truth <= found.high + 1e-9) if math.isfinite(found.low) else NAN


def winners(datasets: int) -> Iterator[Row]:
    """Name a winner of equal systems: one answered easy documents, and one hard ones, of which some are shared."""
    yield "documents", "shared", '"is better" said'
    for documents, shared in itertools.product((10, 30), (0, 1, 2, 6)):
        rng = np.random.default_rng([4, documents, shared])
        said = []
        for _ in range(datasets):
            score = scores_of(rng, documents, np.zeros(2))
            hard = np.argsort(score.mean(axis=1) + 0.3 * rng.normal(size=documents))
            half = (documents - shared) // 2
            score[hard[:half], 0] = NAN
            score[hard[documents - half :], 1] = NAN
            said.append("is better" in rank_systems(items_of(score)).told)
        yield documents, shared, float(np.mean(said))


def strengths(datasets: int) -> Iterator[Row]:
    """Cover Bradley-Terry strengths near separation; every pair of systems once a document, verdicts of 0 and 1."""
    yield "systems", "spread", "documents", "with intervals", "covered, of these", "covered, of all", "strengths at all"
    for systems, spread, documents in itertools.product((3, 5), (1, 2.5, 4), (12, 30)):
        rng = np.random.default_rng([5, systems, documents, int(spread)])
        truth = np.linspace(spread, -spread, systems)
        first, second = (
            np.tile(own, documents) for own in zip(*itertools.combinations(range(systems), 2), strict=True)
        )
        named = [f"d{d}" for d in range(documents) for _ in range(systems * (systems - 1) // 2)]
        hits, has, known = [], [], []
        for _ in range(datasets // 2):
            won = rng.random(first.size) < 1 / (1 + np.exp(truth[second] - truth[first]))
            found = fit_bradley_terry(systems, first, second, won.astype(float), named).strengths
            has.append(all(math.isfinite(one.low) for one in found))
            known.append(all(math.isfinite(one.value) for one in found))
            hits.append(
                np.mean([_covers(one, true) for one, true in zip(found, truth, strict=True)]) if has[-1] else NAN
            )
        covered = float(np.nanmean(hits)) if any(has) else NAN
        yield (
            systems,
            spread,
            documents,
            float(np.mean(has)),
            covered,
            covered * float(np.mean(has)),
            float(np.mean(known)),
        )


def adjusted(datasets: int) -> Iterator[Row]:
    """Length of the intervals of adjusted means, on a scale of 1 to 5, where systems share few documents."""
    yield "systems", "documents", "missing", "with intervals", "covered", "median length", "longest"
    for systems, documents, gone in itertools.product((3, 6), (10, 20), (0.3, 0.6)):
        rng = np.random.default_rng([6, systems, documents, int(10 * gone)])
        lengths, covered, has = [], [], []
        for _ in range(datasets // 2):
            score = scores_of(rng, documents, np.zeros(systems), "normal")
            score[rng.random(score.shape) < gone] = NAN
            score[:2, 0] = np.nan_to_num(score[:2, 0], nan=3.0)
            found = list(adjusted_means(items_of(score)).values())
            has += [math.isfinite(one.low) for one in found]
            lengths += [one.high - one.low for one in found if math.isfinite(one.low)]
            covered += [_covers(one, 3.0) for one in found if math.isfinite(one.low)]
        yield (
            systems,
            documents,
            gone,
            *(float(np.mean(own)) for own in (has, covered)),
            float(np.median(lengths)),
            max(lengths),
        )


def order(datasets: int) -> Iterator[Row]:
    """Shuffle the rows of one data set: the least and the greatest p."""
    yield "documents", "least p", "greatest p"
    for documents in (20, 30):
        rng = np.random.default_rng([7, documents])
        items = items_of(scores_of(rng, documents, np.array([0.0, 0.1])))
        p = [
            rank_systems([items[at] for at in rng.permutation(len(items))]).pairs[0].p for _ in range(min(12, datasets))
        ]
        yield documents, min(p), max(p)


#: Differences of a document, on a scale of 1-5, with mean 0.
DRAWS: dict[str, Callable[[Rng, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, size: 0.4 * rng.normal(size=size),
    "t2": lambda rng, size: np.clip(0.2 * rng.standard_t(2, size=size), -4, 4),
    "few gain much": lambda rng, size: 0.4 * (rng.exponential(size=size) - 1),
    "few lose much": lambda rng, size: 0.4 * (1 - rng.exponential(size=size)),
    "lognormal": lambda rng, size: 0.2 * (rng.lognormal(size=size) - math.exp(0.5)),
    # Own design: most documents keep their score, some move by half a point, one in 25 gains 3.
    "half points": lambda rng, size: rng.choice([-0.5, 0.0, 0.5, 3.0], p=[0.30, 0.60, 0.06, 0.04], size=size),
}


def gates(datasets: int) -> Iterator[Row]:
    """Fail a candidate that is as good, alone and in slices; pass one that is worse by a margin, once and in looks."""
    yield (
        "differences",
        "documents",
        "failed, equal",
        "failed without a doubt",
        "any of ten slices failed",
        "passed, worse by .3",
        "every look: passed, worse by .3",
    )
    for (name, draw), documents in itertools.product(DRAWS.items(), (6, 8, 12, 20, 40)):
        rng = np.random.default_rng([18, documents, len(name)])
        equal = draw(rng, (datasets, documents))
        found = [not_worse(own, span=4.0) for own in equal]
        fresh = draw(rng, (datasets, documents))
        slices = draw(rng, (datasets // 4, 10, documents))
        yield (
            name,
            documents,
            float(np.mean([one.passed is False for one in found])),
            float(np.mean([one.passed is False and not one.difference.warning for one in found])),
            float(np.mean([any(not_worse(s, span=4.0, level=0.005).passed is False for s in own) for own in slices])),
            float(np.mean([bool(not_worse(own - 0.3, 0.3, span=4.0).passed) for own in fresh])),
            float(np.mean([not_worse_so_far(own - 0.3, 0.3, span=4.0).verdict == "passed" for own in fresh])),
        )


def failures(datasets: int) -> Iterator[Row]:
    """Pass a candidate that loses the margin on few documents, by the whole scale or (own design) by half of it."""
    yield "other documents", "documents", "share that fails", "by", "margin", "passed", "every look: passed"
    noises = {"equal": 0.0, "equal up to 1e-6": 1e-6, "noise .1": 0.1}
    for (name, noise), documents, (share, loss) in itertools.product(
        noises.items(), (12, 20, 40, 100), ((0.05, 4.0), (0.1, 2.0))
    ):
        rng = np.random.default_rng([19, documents, len(name), int(loss)])
        drawn = noise * rng.normal(size=(datasets, documents))
        drawn = np.where(rng.random(drawn.shape) < share, -loss, drawn)
        once = np.mean([bool(not_worse(own, share * loss, span=4.0).passed) for own in drawn])
        looks = np.mean([not_worse_so_far(own, share * loss, span=4.0).verdict == "passed" for own in drawn])
        yield name, documents, share, loss, share * loss, float(once), float(looks)


def drops(datasets: int) -> Iterator[Row]:
    """Walk 1 to n documents of n that fall by one point: the first that fails the gate, and whether p only falls."""
    yield "documents", "fails from", "p there", "p of all", "p only falls"
    for documents in (5, 8, 10, 12, 20, 40):
        p = [not_worse([-1.0] * k + [0.0] * (documents - k)).p for k in range(1, documents + 1)]
        first = next((k for k, own in enumerate(p, 1) if own <= 0.05), None)
        yield documents, first, p[first - 1] if first else NAN, p[-1], p == sorted(p, reverse=True)


def power(datasets: int) -> Iterator[Row]:
    """Find a drop of .3 on a scale of 1-5 by `not_worse: true`, alone and as one of four tests, at four spreads."""
    yield "documents", "spread", "alone", "one of four tests", "margin .3 shown for an equal candidate"
    for documents, spread in itertools.product((12, 40, 120), (0.3, 0.5, 0.8, 1.0)):
        rng = np.random.default_rng([20, documents, int(10 * spread)])
        drawn = spread * rng.normal(size=(datasets, documents))
        yield (
            documents,
            spread,
            *(
                float(np.mean([not_worse(own - 0.3, level=level).passed is False for own in drawn]))
                for level in (0.05, 0.0125)
            ),
            float(np.mean([bool(not_worse(own, 0.3, span=4.0).passed) for own in drawn])),
        )


#: Design -> the true mean, if it is not 0.
MEANS = {"a lead of .4": 0.4}


def skewed(datasets: int) -> Iterator[Row]:
    """Name a winner of systems with skewed scores, half of them the other way, or with a lead; cover a difference."""
    yield "scores", "systems", "documents", "any winner", "covered"
    shapes = {
        "exponential": lambda rng, size: 0.4 * (rng.exponential(size=size) - 1),
        "lognormal": lambda rng, size: 0.2 * (rng.lognormal(size=size) - math.exp(0.5)),
        "rare failures": lambda rng, size: np.where(rng.random(size) < 0.08, -2.3, 0.2),
        # Own designs: one document in 25 fails by 1.5, the others vary; counts of a Poisson distribution.
        "one in 25 fails": lambda rng, size: np.where(rng.random(size) < 0.04, -1.5, rng.normal(0.0625, 0.1, size)),
        "counts": lambda rng, size: 0.5 * (rng.poisson(1.0, size=size) - 1.0),
        "a lead of .4": lambda rng, size: rng.normal(0.4, 0.4, size),
    }
    for (name, shape), systems, documents in itertools.product(shapes.items(), (2, 10), (6, 8, 12, 20, 40)):
        if (name == "rare failures" or name in MEANS) and systems > 2:
            continue
        rng = np.random.default_rng([31, systems, documents, len(name)])
        sides = np.where(np.arange(systems) % 2, -1, 1)
        count = datasets if systems == 2 else max(1, datasets // 4)
        winner, covered = [], []
        for _ in range(count):
            scores = 3 + sides * shape(rng, (documents, systems))
            if systems == 2:  # one system varies, so the differences are as skewed as its scores
                scores[:, 1] = 3.0
            pairs = rank_systems(items_of(scores), ends=(0.0, 5.0)).pairs
            true = MEANS.get(name, 0.0)
            winner.append(any(pair.better is not None for pair in pairs))
            sign = 1 if pairs[0].first == "s00" else -1
            covered += [_covers(pairs[0].difference, sign * true)] if systems == 2 else []
        yield name, systems, documents, float(np.mean(winner)), float(np.nanmean(covered)) if covered else NAN


def sizes(datasets: int) -> Iterator[Row]:
    """Cover means of rows in documents of 1 to 200 rows, and (own design) of 5 rows but one document of half of all."""
    yield "scores", "sizes", "documents", "covered", "covered or warned of"

    def grouped(kind: str, rng: Rng, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        group = np.repeat(np.arange(n.size), n)
        if kind == "yes/no":
            return (rng.random(group.size) < rng.beta(3.6, 0.4, n.size)[group]).astype(float), group
        level = {
            "ordinal, ceiling": lambda: 4.2 + rng.normal(0, 0.8, n.size),
            "two kinds": lambda: np.where(rng.random(n.size) < 0.3, 2.0, 4.0),
            "large ones lower": lambda: 3.5 - 0.3 * np.log(n) + rng.normal(0, 0.5, n.size),
        }[kind]()[group]
        found = np.clip(level + 0.6 * rng.normal(size=group.size), 1, 5)
        return np.round(found) if "ordinal" in kind else found, group

    spreads = {
        "1-200": lambda rng, d: np.exp(rng.uniform(0, np.log(200), d)).astype(int),
        "5, one large": lambda rng, d: rng.permutation(np.r_[np.full(d - 1, 5), 5 * (d - 1)]),
        "8 each": lambda rng, d: np.full(d, 8),
    }
    kinds = {
        "ordinal, ceiling": (1.0, 5.0),
        "two kinds": (1.0, 5.0),
        "yes/no": (0.0, 1.0),
        "large ones lower": (1.0, 5.0),
    }
    for (spread, draw), (kind, ends), documents in itertools.product(spreads.items(), kinds.items(), (6, 12, 40)):
        rng = np.random.default_rng([22, documents, len(kind), len(spread)])
        many = [grouped(kind, rng, draw(rng, documents))[0] for _ in range(6000)]
        true = sum(own.sum() for own in many) / sum(own.size for own in many)
        hit, warned = [], []
        for _ in range(datasets):
            values, group = grouped(kind, rng, draw(rng, documents))
            found = mean_interval(values, group, ends=ends)
            hit.append(bool(found.low <= true <= found.high))
            warned.append(bool(found.warning))
        yield kind, spread, documents, float(np.mean(hit)), float(np.mean(np.array(hit) | np.array(warned)))


def thoughts(datasets: int) -> Iterator[Row]:
    """Bias of the mean over rows where label mass goes with the verdict of a thought, plain and as scored."""
    yield "label mass", "thoughts", "rows", "bias, plain", "bias", "covered, plain", "covered"

    def drawn(rng: Rng, kind: str, rows: int, count: int) -> np.ndarray:
        verdict = np.round(rng.normal(3, 0.7, (rows, 1)) + rng.normal(size=(rows, count))).clip(1, 5)
        cut = rng.random(verdict.shape) < np.where(verdict <= 2, 0.5, 0.1)
        mass = {"low ones cut": np.where(cut, 0.15, 0.95), "rises": np.exp(verdict - 5), "equal": 0.9 + 0 * verdict}
        if kind == "own: falls gently":
            return (1.0 - 0.1 * verdict)[..., None] * np.eye(5)[verdict.astype(int) - 1]
        return mass[kind][..., None] * np.eye(5)[verdict.astype(int) - 1]

    values = np.arange(1.0, 6.0)
    for kind, count in itertools.product(("low ones cut", "rises", "equal", "own: falls gently"), (2, 4, 8)):
        rng = np.random.default_rng([23, count, len(kind)])
        levels = 3 + 0.7 * ndtri((np.arange(20_000) + 0.5) / 20_000)[:, None]
        chance = np.diff(ndtr(np.r_[-np.inf, values[:-1] + 0.5, np.inf] - levels), axis=1)
        mass = {
            "low ones cut": np.where(values <= 2, 0.5, 0.1) * (0.15 - 0.95) + 0.95,
            "rises": np.exp(values - 5),
            "equal": np.full(5, 0.9),
        }.get(kind, 1.0 - 0.1 * values)
        true = float(((chance * mass) @ values / (chance @ mass)).mean())
        for rows in (40, 400):
            found = []
            for _ in range(max(20, datasets // 4)):
                p = drawn(rng, kind, rows, count)
                means = p.mean(axis=1), np.array([mean_distribution(own) for own in p])
                own = [mean_interval(mean @ values / mean.sum(axis=1), ends=(1.0, 5.0)) for mean in means]
                found.append([*(one.value - true for one in own), *(_covers(one, true) for one in own)])
            yield kind, count, rows, *map(float, np.mean(found, axis=0))


def lengths(datasets: int) -> Iterator[Row]:
    """Find a fair judge biased for length where better outputs are longer and three raters hit the ends of 1-5."""
    yield "rows", "ratings at an end", "above 0", "below 0", "mean"
    for rows, middle in itertools.product((40, 150, 400), (3.5, 4.2)):
        rng = np.random.default_rng([24, rows, int(10 * middle)])
        found, ends = [], []
        for _ in range(max(20, datasets // 4)):
            quality = rng.normal(size=rows)
            length = np.exp(4 + 0.35 * quality + 0.3 * rng.normal(size=rows))
            ratings = np.clip(np.round(middle + quality + 0.6 * rng.normal(size=(3, rows))), 1, 5)
            fitted = fit_raters(ratings)
            score = np.clip(3 + 0.7 * quality + 0.4 * rng.normal(size=rows), 1, 5)
            items = [
                ScoredItem(f"d{n:03}", "", float(h), float(p), length=int(words), key=str(n))
                for n, (h, p, words) in enumerate(zip(fitted.means, score, length, strict=True))
            ]
            found.append(length_bias(items, error=fitted.error).partial)
            ends.append(float(np.mean((ratings == 1) | (ratings == 5))))
        shares = [np.mean([one.low > 0 for one in found]), np.mean([one.high < 0 for one in found])]
        yield rows, float(np.mean(ends)), *map(float, shares), float(np.nanmean([one.value for one in found]))


def single(datasets: int) -> Iterator[Row]:
    """Cover Bradley-Terry strengths with one yes/no comparison a document."""
    yield "systems", "documents", "with intervals", "covered, of these"
    for systems, documents in itertools.product((3, 5), (12, 30, 60, 150)):
        rng = np.random.default_rng([25, systems, documents])
        truth = np.linspace(0.7, -0.7, systems)
        pairs, hits, has = np.array(list(itertools.combinations(range(systems), 2))), [], []
        for _ in range(datasets):
            first, second = pairs[rng.integers(0, len(pairs), documents)].T
            won = rng.random(documents) < 1 / (1 + np.exp(truth[second] - truth[first]))
            found = fit_bradley_terry(systems, first, second, won.astype(float), [f"d{d}" for d in range(documents)])
            has.append(math.isfinite(found.strengths[0].low))
            hits += [_covers(one, true) for one, true in zip(found.strengths, truth, strict=True)] * has[-1]
        yield systems, documents, float(np.mean(has)), float(np.mean(hits)) if hits else NAN


def within_documents(datasets: int) -> Iterator[Row]:
    """Cover correlations within documents, the mean of one left-skewed coefficient each, and accuracy over systems."""
    yield "systems", "documents", "pearson within", "spearman within", "accuracy over systems"
    for systems, documents in itertools.product((5, 8), (6, 12, 40)):
        rng = np.random.default_rng([26, systems, documents])

        def drawn(documents: int, rng: Rng = rng, systems: int = systems) -> tuple[np.ndarray, np.ndarray]:
            quality = np.linspace(-0.7, 0.7, systems) + 0.8 * rng.normal(size=(documents, systems))
            return quality + 0.4 * rng.normal(size=quality.shape), 0.8 * quality + 0.5 * rng.normal(size=quality.shape)

        human, score = drawn(4000)
        each = np.array([coefficients(h, p) for h, p in zip(human, score, strict=True)]).mean(axis=0)
        hits = []
        for _ in range(max(20, datasets // 4)):
            human, score = drawn(documents)
            found = correlate(items_of(score, human))
            over = correlate(items_of(score, human), "system", target="documents").accuracy
            hits.append([_covers(found.pearson, each[0]), _covers(found.spearman, each[1]), _covers(over, 1.0)])
        yield systems, documents, *map(float, np.nanmean(hits, axis=0))


STUDIES = (
    *(told_apart, planned, ranks, judges, winners, strengths, adjusted, order),
    *(gates, failures, drops, power, skewed, sizes, thoughts, lengths, single, within_documents),
)


def text_of(study: Callable[[int], Iterator[Row]], datasets: int) -> str:
    """Write a study as a table."""
    begin = time.time()
    rows = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in study(datasets)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    error = math.sqrt(0.05 * 0.95 / datasets)
    told = f"{datasets} data sets a row, half of them for strengths and adjusted means"
    end = f"{told}; standard error of a share near .05 or .95: {error:.3f}; {time.time() - begin:.0f} s"
    return "\n".join([study.__name__ + ": " + str(study.__doc__).split("\n")[0], "", *lines, "", end, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("study", choices=["all", *(study.__name__ for study in STUDIES)], nargs="+")
    parser.add_argument("--datasets", type=int, default=300)
    parser.add_argument("-o", "--output", help="write OUTPUT.txt")
    options = parser.parse_args()
    texts = []
    for study in STUDIES:
        if study.__name__ in options.study or "all" in options.study:
            texts.append(text_of(study, options.datasets))
            print(texts[-1], flush=True)
            if options.output:
                Path(f"{options.output}.txt").write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
