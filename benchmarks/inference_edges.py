"""Error rates where inference is hardest: few documents, near ties, near separation, and gates looked at twice.

    python benchmarks/inference_edges.py all -o benchmarks/results/NAME      NAME.txt
    python benchmarks/inference_edges.py ranks --datasets 50                 one study, fewer data sets

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

from geval_local.analysis import comparison
from geval_local.analysis.differences import adjusted_means, rank_systems
from geval_local.statistics.bradley_terry import fit_bradley_terry
from geval_local.statistics.coefficients import coefficients
from geval_local.statistics.correlation import correlate
from geval_local.statistics.interval import Interval
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import compare

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


def flips(datasets: int) -> Iterator[Row]:
    """Tell apart systems by joint sign flips: error of equal systems, of the equal among unequal ones, and power."""
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


def detectable(datasets: int) -> Iterator[Row]:
    """Find a true difference as large as what is said to be found with .8; with as many documents as are planned."""
    yield (
        "systems",
        "documents",
        "found at `detectable`",
        "documents planned",
        "found with these",
        "ten and ninety % of `detectable`",
    )
    for systems, documents in itertools.product((2, 4, 8), (6, 8, 12, 40)):
        rng = np.random.default_rng([2, systems, documents])
        means, said = np.zeros(systems), []
        for _ in range(datasets):
            said.append(_pair(rank_systems(items_of(scores_of(rng, documents, means, "normal")))).detectable)
        found = _power(rng, documents, systems, float(np.mean(said)), datasets)
        pilot = rank_systems(items_of(scores_of(rng, max(documents, 40), means, "normal")))
        need = _planned(pilot, 0.35)
        ends = " to ".join(f"{end:.2f}" for end in np.quantile(said, [0.1, 0.9]))
        yield systems, documents, found, need, _power(rng, need, systems, 0.35, datasets), ends


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
            found = [one[0] for one in adjusted_means(items_of(score)).values()]
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


def gates(datasets: int) -> Iterator[Row]:
    """Pass a candidate that is worse by the margin, and one that is as good, in one look and in many."""
    from geval_local.statistics.noninferiority import not_worse, not_worse_so_far

    yield (
        "differences",
        "documents",
        "margin",
        "passed, worse by the margin",
        "passed, equal",
        "at `detectable`",
        "every look: passed, worse by the margin",
        "passed, equal",
        "failed, equal",
        "documents for equal",
    )
    draws: dict[str, Callable[[Rng, tuple[int, int]], np.ndarray]] = {
        "normal": lambda rng, size: 0.4 * rng.normal(size=size),
        "t3": lambda rng, size: 0.25 * rng.standard_t(3, size=size),
        "skewed down": lambda rng, size: 0.4 * (1 - rng.exponential(size=size)),
        "skewed up": lambda rng, size: 0.4 * (rng.exponential(size=size) - 1),
        "a tenth differ": lambda rng, size: rng.choice([-1.0, 0.0, 1.0], p=[0.05, 0.9, 0.05], size=size),
        "a hundredth differ": lambda rng, size: rng.choice([-2.0, 0.0, 2.0], p=[0.005, 0.99, 0.005], size=size),
    }
    for (name, draw), documents in itertools.product(draws.items(), (20, 60, 200)):
        rng = np.random.default_rng([8, documents, len(name)])
        margin = 0.1 if "differ" in name else 0.2
        equal, worse = draw(rng, (datasets, documents)), draw(rng, (datasets, documents)) - margin
        if "differ" in name:  # a loss is made of more documents that differ, not of a shift
            worse = draw(rng, (datasets, documents))
            worse[rng.random(worse.shape) < margin / 2] = -2.0
            worse = np.where(worse == 2, 0.0, worse) if name == "a hundredth differ" else worse
            margin = -float(np.mean(worse)) if name != "a tenth differ" else 0.1
        once = [[not_worse(own, margin, span=4.0) for own in table] for table in (worse, equal)]
        said = [one.detectable for one in once[1]]
        at_detectable = np.mean([not_worse(own, float(np.nanmedian(said)), span=4.0).passed for own in equal])
        looks = [[not_worse_so_far(own, margin, span=4.0) for own in table] for table in (worse, equal)]
        decided = [one.decided for one in looks[1] if one.verdict == "passed"]
        yield (
            name,
            documents,
            round(margin, 3),
            *(float(np.mean([bool(one.passed) for one in table])) for table in once),
            float(at_detectable),
            *(float(np.mean([one.verdict == "passed" for one in table])) for table in looks),
            float(np.mean([one.verdict == "failed" for one in looks[1]])),
            float(np.median(decided)) if decided else NAN,
        )


STUDIES = (flips, detectable, ranks, judges, winners, strengths, adjusted, order, gates)


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
