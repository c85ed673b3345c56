"""Coverage of every interval and rejection of every test that the analysis prints, on data whose truth is known.

    python benchmarks/interval_coverage.py --quick                     fewer data sets, no 200 documents
    python benchmarks/interval_coverage.py -o benchmarks/results/NAME  NAME.txt and NAME.json, after every round

Truth is that of the population the data are drawn from, computed from its parameters or from a sample so large that
its error does not show; it is never the mean of the estimates. "normal" data are complete. "ordinal" ones are ratings
of 1 to 5 with a ceiling and many ties, documents of unequal spread, and a fifth of the cells missing, more for some
systems. "fixed" systems are the same in all data sets, "new" ones are drawn anew. Tests are of true hypotheses unless a
row says power; rows "beside" are of tests that the analysis does not choose there. A 95 %
interval is to hold the truth in .93 to .97 of the data sets, a test at .05 to reject in .03 to .07; `off` marks what
lies outside by more than two standard errors of the simulation. Benjamini and Yekutieli's correction, Holm's, and the
bound of the judge less people without raters are conservative by construction; skewed data show what a warning is
about.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from geval_local.analysis import good_enough
from geval_local.analysis.biases import judge_less_people, length_bias
from geval_local.analysis.comparison import plan_for
from geval_local.analysis.differences import adjusted_means, gap, rank_systems
from geval_local.analysis.good_enough import alternative_annotators, judge_verdicts
from geval_local.statistics import significance
from geval_local.statistics.coefficients import coefficients
from geval_local.statistics.correlation import correlate
from geval_local.statistics.interval import Interval, mean_interval, t_test
from geval_local.statistics.prediction_powered import estimate_difference, estimate_mean
from geval_local.statistics.raters import fit_raters
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.resampling import Target
from geval_local.statistics.significance import compare

SYSTEMS = 16
#: Data sets per cell before the table is written.
ROUND = 8
#: Exchanges in place of 9,999, which moves a p near .05 by .007 from one seed to another.
significance.PERMUTATIONS = 999  # type: ignore[attr-defined]
#: Nominal coverage and rejection.
COVERAGE, REJECTION = (0.93, 0.97), (0.03, 0.07)
AIMS = {
    "coverage": COVERAGE,
    "rejection": REJECTION,
    "conservative": (0.0, 0.07),
    "beside": (0.0, 1.0),
    "power": (0.0, 1.0),
    "planned": (0.75, 0.9),
}
NAN = float("nan")
# The judges of `people` are as good as its raters, so that is where the truth lies.
good_enough.EPSILONS = (0.0,)
Rng = np.random.Generator


class Table:
    """Counts of hits by row."""

    def __init__(self) -> None:
        self.hits: dict[tuple[str, str, str, int], list[bool]] = defaultdict(list)

    def cover(self, name: str, data: str, documents: int, truth: float, found: Interval | None) -> None:
        """Count an interval against the truth."""
        if found is not None and math.isfinite(found.low):
            self.hits["coverage", name, data, documents].append(bool(found.low - 1e-9 <= truth <= found.high + 1e-9))

    def count(self, kind: str, name: str, data: str, documents: int, rejected: bool) -> None:
        """Count a test."""
        self.hits[kind, name, data, documents].append(bool(rejected))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Give the rows of the table."""
        kinds = list(AIMS)
        for key in sorted(self.hits, key=lambda key: (kinds.index(key[0]), *key[1:])):
            kind, name, data, documents = key
            hits = self.hits[key]
            share = sum(hits) / len(hits)
            low, high = AIMS[kind]
            error = math.sqrt(max(share * (1 - share), 0.0475) / len(hits))
            off = "" if low - 2 * error <= share <= high + 2 * error else "off"
            yield {
                "kind": kind,
                "what": name,
                "data": data,
                "documents": documents,
                "share": round(share, 4),
                "datasets": len(hits),
                "off": off,
            }


def effects(rng: Rng, judges: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Draw the systems' true quality, and each judge's own opinion of each."""
    return math.sqrt(0.3) * rng.normal(size=SYSTEMS), math.sqrt(0.15) * rng.normal(size=(judges, SYSTEMS))


def ratings(
    rng: Rng, documents: int, system: np.ndarray, own: np.ndarray, *, ordinal: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw ratings, and scores of every judge, shape (documents, systems)."""
    shape = (documents, system.size)
    spread = np.exp(0.4 * rng.normal(size=(documents, 1))) if ordinal else 1.0
    quality = system + 0.4 * rng.normal(size=(documents, 1)) + 0.7 * spread * rng.normal(size=shape)
    human = quality + 0.5 * rng.normal(size=shape)
    if ordinal:
        human = np.clip(np.round(3.7 + human), 1, 5)
    leaning = 0.4 * rng.normal(size=(len(own), documents, 1))
    return human, [0.7 * quality + own[j] + leaning[j] + 0.6 * rng.normal(size=shape) for j in range(len(own))]


def missing(rng: Rng, human: np.ndarray) -> np.ndarray:
    """Leave a fifth of the cells out, of some systems more than of others; shape (documents, systems)."""
    return rng.random(human.shape) > np.linspace(0.05, 0.35, human.shape[1])


def items_of(human: np.ndarray, scores: np.ndarray, there: np.ndarray | None = None) -> list[ScoredItem]:
    """Convert one judge's scores to items of the analysis."""
    kept = np.argwhere(np.ones_like(human, dtype=bool) if there is None else there)
    return [ScoredItem(f"d{d}", f"s{s}", float(human[d, s]), float(scores[d, s]), key=f"{d}/{s}") for d, s in kept]


@cache
def alike() -> tuple[np.ndarray, np.ndarray]:
    """Choose fixed systems, and two judges that think alike of them."""
    system, own = effects(np.random.default_rng(7))
    return system, np.stack([own[0], own[0]])


@cache
def fixed_truth(ordinal: bool, level: str) -> np.ndarray:
    """Compute the true agreement of the fixed systems of `alike`."""
    system, own = alike()
    human, scores = ratings(np.random.default_rng(8), 40_000, system, own, ordinal=ordinal)
    if level == "summary":
        each = [coefficients(h, s) for h, s in zip(human[:4_000], scores[0][:4_000], strict=True)]
        return np.asarray(np.nanmean(np.array(each), axis=0))
    if level == "pooled":
        return coefficients(human[:6_000].ravel(), scores[0][:6_000].ravel())
    over_systems = coefficients(human.mean(axis=0), scores[0].mean(axis=0))
    over_systems[3] = (1 + over_systems[2]) / 2  # no two systems are alike
    return over_systems


@cache
def new_truth() -> np.ndarray:
    """Compute the agreement over all systems there could be, with all documents."""
    rng = np.random.default_rng(9)
    system, own = math.sqrt(0.3) * rng.normal(size=200_000), math.sqrt(0.15) * rng.normal(size=200_000)
    return coefficients(system, 0.7 * system + own)


def systems_fixed(table: Table, documents: int, rng: Rng) -> None:
    """System level for new documents: intervals, two equal judges, and power against a worse one."""
    for data, ordinal in (("normal", False), ("ordinal", True)):
        (system, own), truth = alike(), fixed_truth(ordinal, "system")
        human, scores = ratings(rng, documents, system, own, ordinal=ordinal)
        there = missing(rng, human) if ordinal else None
        one, other = (items_of(human, score, there) for score in scores)
        found = correlate(one, "system", target="documents")
        for index, name in enumerate(("pearson", "spearman", "kendall", "accuracy")):
            table.cover(f"system {name}, fixed", data, documents, float(truth[index]), getattr(found, name))
        exchange(table, "rejection", "fixed, judges that think alike", data, documents, (one, other), "documents")
        if not ordinal:
            worse = items_of(human, scores[1] + 0.45 * np.random.default_rng(3).normal(size=system.size))
            exchange(table, "power", "fixed, a worse judge", data, documents, (one, worse), "documents")
    system, own = mirrored()
    human, scores = ratings(rng, documents, system, own, ordinal=False)
    one, other = (items_of(human, score) for score in scores)
    exchange(table, "rejection", "fixed, unlike judges", "normal", documents, (one, other), "documents")


@cache
def mirrored() -> tuple[np.ndarray, np.ndarray]:
    """Choose fixed systems and two judges of different opinions, whose agreement with people is the same.

    Read from the other end, with every system in the place of its opposite, the second judge is the first.
    """
    half, opinion = effects(np.random.default_rng(11), judges=1)
    system = np.concatenate([half[: SYSTEMS // 2], -half[: SYSTEMS // 2][::-1]])
    return system, np.stack([opinion[0], -opinion[0][::-1]])


def exchange(
    table: Table,
    kind: str,
    name: str,
    data: str,
    documents: int,
    judges: tuple[Any, Any],
    target: Target,
    coefficient: str = "kendall",
) -> None:
    """Count the test in use, and beside exchanges Student's t with the bootstrap's error."""
    found = compare(*judges, "system", coefficient, target=target)
    used = "PERM-SYSTEMS" if "PERM" in found.why else "t"
    p = {used: found.p, "t": t_test(found.difference.value, found.difference.error, found.difference.units)}
    for own, value in p.items():
        table.count(
            kind if own == used or kind == "power" else "beside", f"{name}: {own}", data, documents, value < 0.05
        )


def erring_unlike(table: Table, documents: int, rng: Rng) -> None:
    """System level: two judges that agree equally well with people, and err in other ways."""
    human, scores = ratings(rng, documents, *alike(), ordinal=False)
    leaning = scores[1] + 2 * rng.normal(size=(documents, 1))
    pair = (items_of(human, scores[0]), items_of(human, leaning))
    exchange(table, "rejection", "fixed, one judge leans by document", "normal", documents, pair, "documents")
    # The second judge's opinions are off by much for a fifth of the systems and by little for the others; their
    # variance is that of the first, or they are as far off as leaves Kendall's coefficient the same.
    for coefficient, much in (("kendall", far_off(documents)), ("pearson", math.sqrt((0.15 - 0.8 * 0.1**2) / 0.2))):
        system, own = effects(rng)
        own[1] = opinions(rng, SYSTEMS, much)
        human, scores = ratings(rng, documents, system, own, ordinal=False)
        pair = (items_of(human, scores[0]), items_of(human, scores[1]))
        name = f"new, far off for a few, {coefficient}"
        exchange(table, "rejection", name, "heavy tails", documents, pair, "both", coefficient)


def opinions(rng: Rng, count: int, much: float) -> np.ndarray:
    """Draw opinions of systems with heavy tails: a fifth are `much` off."""
    return np.asarray(np.where(rng.random(count) < 0.2, much, 0.1) * rng.normal(size=count))


@cache
def far_off(documents: int) -> float:
    """Find how far off the judge of `opinions` has to be to agree with people, by Kendall's tau, as the others do."""

    def agreement(own: np.ndarray) -> float:
        rng = np.random.default_rng(1)
        system, noise = (
            math.sqrt(0.3) * rng.normal(size=own.size),
            rng.normal(size=(3, own.size)) / math.sqrt(documents),
        )
        quality = system + 0.7 * noise[0]
        return float(coefficients(quality + 0.5 * noise[1], 0.7 * quality + own + 0.6 * noise[2])[2])

    wanted = agreement(math.sqrt(0.15) * np.random.default_rng(2).normal(size=100_000))
    low, high = 0.1, 6.0
    for _ in range(14):
        middle = (low + high) / 2
        over = agreement(opinions(np.random.default_rng(2), 100_000, middle)) > wanted
        low, high = (middle, high) if over else (low, middle)
    return (low + high) / 2


def systems_new(table: Table, documents: int, rng: Rng) -> None:
    """System level for new documents and systems."""
    system, own = effects(rng)
    human, scores = ratings(rng, documents, system, own, ordinal=False)
    one, other = (items_of(human, score) for score in scores)
    found = correlate(one, "system")
    for index, name in enumerate(("pearson", "spearman", "kendall")):
        table.cover(f"system {name}, new", "normal", documents, float(new_truth()[index]), getattr(found, name))
    exchange(table, "rejection", "new, judges of one kind", "normal", documents, (one, other), "both")
    worse = items_of(human, scores[1] + 0.8 * rng.normal(size=SYSTEMS))
    exchange(table, "power", "new, a worse judge", "normal", documents, (one, worse), "both")
    # Opinions of less spread, and as much more noise of single scores: the means agree as well with people's.
    noise = math.sqrt(0.1 * documents) * rng.normal(size=human.shape)
    unlike = items_of(human, scores[1] - (1 - math.sqrt(1 / 3)) * own[1] + noise)
    exchange(table, "rejection", "new, unlike judges", "normal", documents, (one, unlike), "both")
    gaps = missing(rng, np.clip(np.round(3.7 + human), 1, 5))
    rated = np.clip(np.round(3.7 + human), 1, 5)
    pair = (items_of(rated, scores[0], gaps), items_of(rated, scores[1], gaps))
    exchange(table, "rejection", "new, judges of one kind", "ordinal", documents, pair, "both")
    if documents <= 50:
        for level in ("summary", "pooled"):
            p = compare(one, other, level, "kendall", target="both").p
            table.count("conservative", f"{level} kendall, new systems, two judges", "normal", documents, p < 0.05)


def within_documents(table: Table, documents: int, rng: Rng) -> None:
    """Summary and pooled level, for new documents."""
    for data, ordinal in (("normal", False), ("ordinal", True)):
        system, own = alike()
        human, scores = ratings(rng, documents, system, own, ordinal=ordinal)
        one, other = (items_of(human, score) for score in scores)
        for level in ("summary", *(("pooled",) if documents <= 50 else ())):
            found, truth = correlate(one, level, accuracy=False), fixed_truth(ordinal, level)
            table.cover(f"{level} spearman", data, documents, float(truth[1]), found.spearman)
            table.cover(f"{level} kendall", data, documents, float(truth[2]), found.kendall)
            p = compare(one, other, level, "spearman").p
            table.count("rejection", f"{level} spearman, two judges", data, documents, p < 0.05)


def few_ratings(table: Table, documents: int, rng: Rng) -> None:
    """Estimates from few ratings: `documents` are rated, and 600 are not; with one or two rows a document."""
    count = {10: 20, 50: 50, 200: 200}[documents]
    total = count + 600
    for data, slope in (("good judge", 0.8), ("useless", 0.0)):
        quality = 0.6 * rng.normal(size=(total, 1)) + 0.8 * rng.normal(size=(total, 2)) + np.array([0.0, 0.4])
        human = np.clip(np.round(3.2 + quality + 0.3 * rng.normal(size=quality.shape)), 1, 5)
        score = slope * quality + 0.4 * rng.normal(size=quality.shape)
        rated = np.arange(total)[:, None] < count
        shown = np.where(rated, human, NAN)
        truth = rating_truth()
        whole = estimate_mean(items_of(shown, score))
        table.cover("estimate, mean of documents of two rows", data, documents, sum(truth[:2]) / 2, whole.combined)
        first, second = (estimate_mean(items_of(shown[:, s : s + 1], score[:, s : s + 1])) for s in (0, 1))
        table.cover("estimate, mean", data, documents, truth[0], first.combined)
        difference = estimate_difference(first, second)[0]
        table.cover("estimate, difference of two systems", data, documents, truth[0] - truth[1], difference)
        ratio = (first.combined.high - first.combined.low) / (first.people.high - first.people.low)
        table.count("conservative", "estimate wider than ratings by 5 %", data, documents, ratio > 1.05)
        yes = np.where(rated[:, 0], human[:, 0] >= 4, NAN)[:, None]
        share = estimate_mean(items_of(yes, score[:, :1]), ends=(0.0, 1.0), cut=0.4)
        table.cover("estimate, share", data, documents, truth[2], share.combined)


@cache
def rating_truth() -> tuple[float, float, float]:
    """Compute the mean rating of both systems, and the share of 4 or higher of the first."""
    drawn = 3.2 + math.sqrt(1.09) * np.random.default_rng(5).normal(size=(8_000_000))
    one, other = (np.clip(np.round(drawn + shift), 1, 5) for shift in (0.0, 0.4))
    return float(one.mean()), float(other.mean()), float((one >= 4).mean())


def people(table: Table, documents: int, rng: Rng) -> None:
    """Put a judge in the place of a person; its yes and no, whom it favours, and length."""
    quality = rng.normal(size=documents)
    raters = np.clip(np.round(3 + quality + 0.7 * rng.normal(size=(3, documents))), 1, 5)
    judge = np.clip(np.round(3 + quality + 0.7 * rng.normal(size=documents)), 1, 5)
    alike = alternative_annotators(items_of(judge[:, None], judge[:, None]), raters)
    assert alike is not None
    table.count(
        "conservative", "alt-test, any rater, epsilon at the truth", "ordinal", documents, alike.winning_rate[0.0] > 0
    )
    yes_and_no(
        table, "yes and no", quality + 0.3 * rng.normal(size=documents), quality + 0.6 * rng.normal(size=documents)
    )
    # One side is better by .8; the judge compresses the scale and favours nobody.
    own = np.stack([0.8 + rng.normal(size=documents), rng.normal(size=documents)], axis=1)
    for slope in (1.0, 0.5):
        three = own.ravel() + 0.8 * rng.normal(size=(3, own.size))
        scores = (slope * own + 0.4 * rng.normal(size=own.shape)).ravel()
        plain = [ScoredItem(f"d{at // 2}", "ab"[at % 2], NAN, float(v), key=str(at)) for at, v in enumerate(scores)]
        fitted = fit_raters(three)
        rated, error = fitted.rated(plain), fitted.error
        for how, known in (("raters known", error), ("bounds", None)):
            found = judge_less_people(rated, "a", "b", error=known)
            kind = "rejection" if known is not None else "conservative"
            table.count(kind, f"judge less people, {how}", f"slope {slope:g}", documents, found.p < 0.05)
        length = np.round(60 + 15 * (0.5 * own + rng.normal(size=own.shape))).ravel()
        long = [replace(item, length=int(max(1, v))) for item, v in zip(rated, length, strict=True)]
        for level in ("pooled", "summary"):
            if slope == 1.0:
                table.cover(
                    f"{level} length, raters known",
                    "fair judge",
                    documents,
                    0.0,
                    length_bias(long, level, error=error).partial,
                )

    # Documents of four rows, which share half of the quality and of both errors.
    shared, single = rng.normal(size=(3, documents, 1)), rng.normal(size=(3, documents, 4))
    quality, error, noise = (shared + single) / math.sqrt(2)
    yes_and_no(table, "four rows", quality + 0.3 * error, quality + 0.6 * noise)


def yes_and_no(table: Table, data: str, people: np.ndarray, judge: np.ndarray) -> None:
    """Say yes above 0; shape (documents,) or (documents, rows)."""
    sides = ((own > 0).astype(float).reshape(len(own), -1) for own in (people, judge))
    verdicts = judge_verdicts(items_of(*sides))
    if verdicts is not None:
        for name, truth in zip(("sensitivity", "specificity", "kappa", "f1"), verdict_truth(), strict=True):
            table.cover(name, data, len(people), truth, getattr(verdicts, name))


@cache
def verdict_truth() -> tuple[float, float, float, float]:
    """Compute sensitivity, specificity, kappa and F1 of the judge of `people`."""
    rng = np.random.default_rng(4)
    quality = rng.normal(size=4_000_000)
    yes, said = quality + 0.3 * rng.normal(size=quality.size) > 0, quality + 0.6 * rng.normal(size=quality.size) > 0
    hit, p, q = float((yes & said).mean()), float(yes.mean()), float(said.mean())
    agree, chance = 1 - p - q + 2 * hit, p * q + (1 - p) * (1 - q)
    return hit / p, (1 - p - q + hit) / (1 - p), (agree - chance) / (1 - chance), 2 * hit / (p + q)


def means_and_gaps(table: Table, documents: int, rng: Rng) -> None:
    """Means of scores, gaps, rankings, and planned numbers of documents."""
    draws: dict[str, Callable[[int], np.ndarray]] = {
        "normal": lambda n: rng.normal(size=n),
        "skewed": lambda n: rng.exponential(size=n) - 1,
    }
    for data, draw in draws.items():
        table.cover("mean, one row a document", data, documents, 0.0, mean_interval(draw(documents)))
        difficulty = 2 * rng.normal(size=documents)
        a, b = difficulty + draw(documents), difficulty + 0.3 * rng.normal(size=documents)
        items = [
            ScoredItem(f"d{d}", side, NAN, float(v)) for side, own in (("a", a), ("b", b)) for d, v in enumerate(own)
        ]
        found = gap(items, "a", "b")
        table.cover("gap, paired", data, documents, 0.0, found.difference)
        table.count("rejection", "gap, paired", data, documents, found.p < 0.05)
    # Systems that answer mostly easy documents: the first has the lowest quality.
    quality = np.array([-0.3, 0.0, 0.3])
    easy = rng.normal(size=(documents, 1))
    score = quality + easy + 0.5 * rng.normal(size=(documents, 3))
    there = rng.random(score.shape) < 1 / (1 + np.exp(-2 * easy * np.array([1.0, 0.0, -1.0]) - 1))
    there[:2] = True
    items = items_of(score, score, there)
    if not there.all():
        means = adjusted_means(items)
        both = ["s0", "s2"]
        if means:
            wins = means[both[0]].value > means[both[1]].value
            table.count("conservative", "the worse system first, by adjusted means", "not at random", documents, wins)
            table.cover("adjusted mean", "not at random", documents, -0.3 + 0.0, means["s0"])
    equal = items_of(easy + rng.normal(size=(documents, 4)), easy + rng.normal(size=(documents, 4)))
    told = any(pair.is_told_apart for pair in rank_systems(equal).pairs)
    table.count("conservative", "any of 4 equal systems told apart", "normal", documents, told)
    # As many documents as a large pilot asks for find the difference in four of five cases.
    need = plan_for({"a": mean_interval(0.5 + rng.normal(size=400))}, 0.5).needs["a"].documents[0.8]
    assert need is not None
    table.count(
        "planned", "documents planned for 80 %", "normal", documents, mean_interval(0.5 + rng.normal(size=need)).low > 0
    )


STUDIES = (few_ratings, people, means_and_gaps, systems_fixed, systems_new, erring_unlike, within_documents)


def text_of(rows: list[dict[str, Any]]) -> str:
    """Write the table: documents in columns."""
    counts = sorted({row["documents"] for row in rows})
    lines: list[str] = []
    by: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        by[(row["kind"], row["what"], row["data"])][row["documents"]] = row
    kind = ""
    for (own, what, data), found in by.items():
        if own != kind:
            kind, aim = own, AIMS[own]
            head = "  ".join(f"{count:>4} documents" for count in counts)
            lines += ["", f"{own} (aim {aim[0]:g} to {aim[1]:g}){'':26}{'data':<14}{head}"]
        cells = [found.get(count) for count in counts]
        shown = "  ".join("-".rjust(14) if c is None else f"{c['share']:.3f} {c['off']:<4}".rjust(14) for c in cells)
        lines.append(f"  {what:<50}{data:<14}{shown}")
    return "\n".join(lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="24 data sets, 10 and 50 documents")
    parser.add_argument(
        "--only", choices=[study.__name__ for study in STUDIES], action="append", help="only these rows"
    )
    parser.add_argument("--documents", type=int, choices=(10, 20, 50, 200), action="append", help="only these columns")
    parser.add_argument("--datasets", type=int, help="data sets per cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", help="write OUTPUT.txt and OUTPUT.json")
    options = parser.parse_args()
    repeats = options.datasets or (24 if options.quick else 200)
    documents = options.documents or ((10, 50) if options.quick else (10, 20, 50, 200))
    chosen = [study for study in STUDIES if not options.only or study.__name__ in options.only]
    table, begin = Table(), time.time()
    for start in range(0, repeats, ROUND):
        done = min(start + ROUND, repeats)
        for study in chosen:
            for repeat in range(start, done):
                for count in documents:
                    study(table, count, np.random.default_rng([options.seed, repeat, count, len(study.__name__)]))
        text = _write(table, done, options.seed, time.time() - begin, options.output)
    print(text)


def _write(table: Table, repeats: int, seed: int, seconds: float, output: str | None) -> str:
    """Write the results so far, so that an interrupted run is just a smaller one."""
    rows = list(table.rows())
    error = math.sqrt(0.0475 / repeats)
    text = text_of(rows)
    text += f"\n\n{repeats} data sets a cell; standard error of a share near .05 or .95: {error:.3f}; seed {seed}; "
    text += f"{seconds:.0f} s\n"
    if output:
        Path(f"{output}.txt").write_text(text, encoding="utf-8")
        record = {"datasets": repeats, "seed": seed, "rows": rows}
        Path(f"{output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return text


if __name__ == "__main__":
    main()
