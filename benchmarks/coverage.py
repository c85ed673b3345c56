"""Coverage of every interval and null rejection of every test that the analysis prints, on data with a known truth.

    python benchmarks/coverage.py --quick            about a minute: fewer data sets, no 100 documents
    nice -n 19 python benchmarks/coverage.py -o benchmarks/results/NAME     NAME.txt and NAME.json, after every round

Ratings and scores are drawn for 16 systems on 10, 30 or 100 documents. The intra-document correlation (ICC) is the
share of the variance that the texts of a document have in common, in people and in each judge. "Fixed" systems are the
same in all data sets, and so is what a judge thinks of each; "new" systems are drawn anew. Judges that are compared are
equal: every rejection is a false one. A 95 % interval is to hold the truth in .93 to .97 of the data sets, a test
at .05 to reject in .03 to .07; `off` marks what lies outside by more than two standard errors of the simulation.
Skewed data are there to show what the output's warning of skewed scores is about: validity is not claimed for them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

SYSTEMS = 16
DIMENSIONS = 4
#: Data sets per cell before the table is written.
ROUND = 8
#: Nominal coverage and rejection.
COVERAGE, REJECTION = (0.93, 0.97), (0.03, 0.07)


@dataclass(frozen=True)
class World:
    """Model of ratings and scores; variances of the texts' quality sum to 1."""

    documents: int
    icc: float
    fixed: bool
    systems: float = 0.3
    judge_systems: float = 0.15
    effects: tuple[np.ndarray, ...] = field(default=(), repr=False)

    def draw(self, rng: np.random.Generator, judges: int = 2) -> tuple[np.ndarray, list[np.ndarray]]:
        """Draw ratings, and scores of each judge, shape (documents, systems)."""
        shape = (self.documents, SYSTEMS)
        system, own = self.effects if self.fixed else self.draw_effects(rng, judges)
        document = math.sqrt(self.icc) * rng.normal(size=(self.documents, 1))
        quality = system + document + math.sqrt(1 - self.systems - self.icc) * rng.normal(size=shape)
        human = np.clip(np.round(3 + quality + 0.5 * rng.normal(size=shape)), 1, 5)
        scores = []
        for judge in range(judges):
            leaning = math.sqrt(self.icc) * rng.normal(size=(self.documents, 1))
            # Judges are equal on fixed systems only if they agree on each; new ones come from one distribution.
            effect = own[0] if self.fixed else own[judge]
            scores.append(0.7 * quality + effect + leaning + 0.6 * rng.normal(size=shape))
        return human, scores

    def draw_effects(self, rng: np.random.Generator, judges: int = 2) -> tuple[np.ndarray, ...]:
        """Draw the systems' true quality, and each judge's own opinion of each."""
        return (
            math.sqrt(self.systems) * rng.normal(size=SYSTEMS),
            math.sqrt(self.judge_systems) * rng.normal(size=(judges, SYSTEMS)),
        )


def items_of(human: np.ndarray, scores: np.ndarray) -> list[Any]:
    """Convert one judge's scores to items of the analysis."""
    from geval_local.statistics.records import ScoredItem

    return [
        ScoredItem(f"d{d}", f"s{s}", float(human[d, s]), float(scores[d, s]), key=f"{d}/{s}")
        for d in range(human.shape[0])
        for s in range(human.shape[1])
    ]


class Tool:
    """The measured functions of the package, called as by its commands."""

    def mean(self, values: np.ndarray, groups: list[str]) -> tuple[float, float, float]:
        """Mean and its interval."""
        from geval_local.statistics.interval import mean_interval

        found = mean_interval(values, groups)
        return found.value, found.low, found.high

    def correlation(self, items: list[Any], level: str, target: str, coefficient: str) -> tuple[float, float, float]:
        """Agreement with people and its interval."""
        from geval_local.statistics.correlation import correlate

        found = getattr(correlate(items, level, target=target), coefficient)
        return found.value, found.low, found.high

    def average(self, dimensions: list[list[Any]], level: str, coefficient: str) -> tuple[float, float, float]:
        """Mean over dimensions and its interval."""
        from geval_local.statistics.correlation import average_interval

        found = average_interval(dimensions, level, coefficient)
        return found.value, found.low, found.high

    def compared(self, first: list[Any], second: list[Any], level: str, target: str, coefficient: str) -> float:
        """P of two judges' difference."""
        from geval_local.statistics.significance import compare

        return compare(first, second, level, coefficient, target=target).p

    def compared_average(self, first: list[list[Any]], second: list[list[Any]], level: str, coefficient: str) -> float:
        """P of the difference of two averages."""
        from geval_local.statistics.significance import compare_average

        return compare_average(first, second, level, coefficient).p

    def length(self, items: list[Any], level: str) -> tuple[float, float, float]:
        """Correlation of scores and lengths with the ratings held fixed, and its interval."""
        from geval_local.analysis.biases import length_bias

        found = length_bias(items, level).partial["spearman"]
        return found.value, found.low, found.high

    def williams(self, first: list[Any], second: list[Any]) -> tuple[float, float]:
        """P of Williams' test, and of the test beside it."""
        from geval_local.statistics.significance import compare

        found = compare(first, second, "pooled", "pearson")
        return found.williams.p, found.p

    def gap(
        self, items: list[Any], sides: list[str], *, less_people: bool = False
    ) -> tuple[float, float, float, float]:
        """Gap of two sides, its interval and p."""
        from geval_local.analysis.biases import against_people
        from geval_local.analysis.differences import gap

        found = gap(against_people(items) if less_people else items, sides, "a", "b")
        return found.difference.value, found.difference.low, found.difference.high, found.p


class Table:
    """Counts of hits by row."""

    def __init__(self) -> None:
        self.hits: dict[tuple[str, str, str, int, float | None], list[bool]] = defaultdict(list)
        self.values: dict[Any, list[tuple[float, float, float]]] = defaultdict(list)

    def cover(self, name: str, cell: tuple[str, int, float | None], truth: float, found: tuple[float, ...]) -> None:
        """Count an interval against the truth."""
        self.hits[("coverage", name, *cell)].append(found[1] <= truth <= found[2])

    def cover_later(self, name: str, cell: tuple[str, int, float | None], found: tuple[float, float, float]) -> None:
        """Count against the mean of the estimates: what is estimated is its value at this design."""
        self.values[("coverage", name, *cell)].append(found)

    def reject(self, name: str, cell: tuple[str, int, float | None], p: float) -> None:
        """Count a test."""
        self.hits[("rejection", name, *cell)].append(p < 0.05)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Give the rows of the table."""
        for key, found in self.values.items():
            truth = float(np.mean([value for value, _, _ in found]))
            self.hits[key] = [low <= truth <= high for _, low, high in found]
        order = {key: place for place, key in enumerate(self.hits)}
        for key in sorted(self.hits, key=lambda key: (key[0], key[1], key[2], key[4] or 0, key[3], order[key])):
            kind, name, systems, documents, icc = key
            hits = self.hits[key]
            share = sum(hits) / len(hits)
            low, high = COVERAGE if kind == "coverage" else REJECTION
            error = math.sqrt(max(share * (1 - share), 0.0475) / len(hits))
            yield {
                "kind": kind,
                "what": name,
                "systems": systems,
                "documents": documents,
                "icc": icc,
                "share": round(share, 4),
                "datasets": len(hits),
                "off": "" if low - 2 * error <= share <= high + 2 * error else "off",
            }


def simulate(tool: Tool, table: Table, repeats: range, documents: tuple[int, ...], seed: int) -> None:
    """Fill the table with some of the data sets of every cell."""
    for icc in (0.0, 0.1, 0.3):
        for count in documents:
            agreement(tool, table, World(count, icc, fixed=True), repeats, seed)
            agreement(tool, table, World(count, icc, fixed=False), repeats, seed)
    for count in documents:
        means_and_gaps(tool, table, count, range(5 * repeats.start, 5 * repeats.stop), seed)


def agreement(tool: Tool, table: Table, world: World, repeats: range, seed: int) -> None:
    """Simulate correlations with people, and differences of equal judges."""
    target, systems = ("documents", "fixed") if world.fixed else ("both", "new")
    if world.fixed:
        effects = world.draw_effects(np.random.default_rng(seed))
        world = World(world.documents, world.icc, True, effects=effects)
    cell = (systems, world.documents, world.icc)
    for repeat in repeats:
        rng = np.random.default_rng([seed, repeat, world.documents, int(100 * world.icc), world.fixed])
        human, scores = world.draw(rng)
        first, second = (items_of(human, own) for own in scores)
        if world.fixed:
            spread = tool.mean(scores[0].ravel(), [item.group for item in first])
            truth = float(world.effects[1][0].mean() + 0.7 * world.effects[0].mean())
            table.cover("mean score", cell, truth, spread)
        for level in ("summary", "system", *(("pooled",) if repeat % 2 == 0 else ())):
            coefficient = "pearson" if level == "system" else "spearman"
            name = f"{level} {coefficient}"
            table.cover_later(name, cell, tool.correlation(first, level, target, coefficient))
            table.reject(f"{name}, two judges", cell, tool.compared(first, second, level, target, coefficient))
        if world.fixed and repeat % 2 == 0:
            drawn = [world.draw(rng) for _ in range(DIMENSIONS)]
            sides = [[items_of(h, own[judge]) for h, own in drawn] for judge in (0, 1)]
            table.cover_later(f"average of {DIMENSIONS}, summary", cell, tool.average(sides[0], "summary", "spearman"))
            p = tool.compared_average(sides[0], sides[1], "summary", "spearman")
            table.reject(f"average of {DIMENSIONS}, two judges", cell, p)
        if repeat % 4 == 0:
            rarer(tool, table, cell, level_target=target, human=human, scores=scores, rng=rng)


def rarer(
    tool: Tool,
    table: Table,
    cell: tuple[str, int, float | None],
    *,
    level_target: str,
    human: np.ndarray,
    scores: list[np.ndarray],
    rng: np.random.Generator,
) -> None:
    """Simulate pairwise accuracy, AUC for binary ratings, and the partial correlation with length."""
    binary = (human > 3).astype(float)
    for name, level, rated in (("accuracy", "summary", human), ("auc", "pooled", binary)):
        first, second = (items_of(rated, own) for own in scores)
        table.cover_later(f"{level} {name}", cell, tool.correlation(first, level, level_target, name))
        p = tool.compared(first, second, level, level_target, name)
        table.reject(f"{level} {name}, two judges", cell, p)
    # Lengths that depend on documents and systems, like scores, but not on a text's quality.
    words = np.round(60 + 15 * (0.5 * rng.normal(size=(len(human), 1)) + rng.normal(size=human.shape)))
    items = [
        replace(item, length=int(max(1, w))) for item, w in zip(items_of(human, scores[0]), words.flat, strict=True)
    ]
    for level in ("summary", "pooled"):
        found = tool.length(items, level)
        table.cover(f"{level} partial correlation with length", cell, 0.0, found)


def means_and_gaps(tool: Tool, table: Table, documents: int, repeats: range, seed: int) -> None:
    """Simulate means of skewed scores, and gaps between equal sides."""
    from geval_local.statistics.records import ScoredItem

    shapes: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
        "normal": lambda rng, n: rng.normal(size=n),
        "skewed": lambda rng, n: rng.exponential(size=n) - 1,
    }
    for shape, draw in shapes.items():
        for repeat in repeats:
            rng = np.random.default_rng([seed, repeat, documents, len(shape), 7])
            cell = (shape, documents, None)
            table.cover(
                "mean, one row a document", cell, 0.0, tool.mean(draw(rng, documents), list(map(str, range(documents))))
            )
            if repeat % 5:
                continue
            difficulty = 2 * rng.normal(size=documents)
            a, b = difficulty + draw(rng, documents), difficulty + 0.3 * rng.normal(size=documents)
            items = [ScoredItem(f"d{d}", "", 0.0, float(v)) for side in (a, b) for d, v in enumerate(side)]
            sides = ["a"] * documents + ["b"] * documents
            found = tool.gap(items, sides)
            table.cover("gap, paired", cell, 0.0, found[:3])
            table.reject("gap, paired", cell, found[3])
            # Each side has documents of its own, one three times as many and far more alike.
            a, b = draw(rng, documents), 0.3 * draw(rng, 3 * documents)
            items = [ScoredItem(f"a{d}", "", 0.0, float(v)) for d, v in enumerate(a)]
            items += [ScoredItem(f"b{d}", "", 0.0, float(v)) for d, v in enumerate(b)]
            found = tool.gap(items, ["a"] * documents + ["b"] * 3 * documents)
            table.cover("gap, unpaired", cell, 0.0, found[:3])
            table.reject("gap, unpaired", cell, found[3])
            # Two equal judges of one text a document: the only data that Williams' test is printed for.
            quality = draw(rng, documents)
            human = quality + 0.5 * rng.normal(size=documents)
            one, other = (items_of(human[:, None], (quality + rng.normal(size=documents))[:, None]) for _ in "ab")
            by_williams, by_t = tool.williams(one, other)
            table.reject("pooled pearson, one text a document: Williams", cell, by_williams)
            table.reject("pooled pearson, one text a document: t", cell, by_t)
            # One side is better by .8 in people's eyes and in those of an unbiased judge.
            quality = np.concatenate([0.8 + draw(rng, documents), draw(rng, documents)])
            judged, rated = quality + 0.5 * rng.normal(size=quality.size), quality + 0.5 * rng.normal(size=quality.size)
            names = [f"d{d}" for d in range(documents)] * 2
            items = [ScoredItem(n, "", float(r), float(j)) for n, r, j in zip(names, rated, judged, strict=True)]
            table.reject("bias of an unbiased judge", cell, tool.gap(items, sides, less_people=True)[3])


def text_of(rows: list[dict[str, Any]]) -> str:
    """Write the table: documents in columns."""
    counts = sorted({row["documents"] for row in rows})
    lines: list[str] = []
    by: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        by[(row["kind"], row["what"], row["systems"], row["icc"])][row["documents"]] = row
    kind = ""
    for (own, what, systems, icc), found in by.items():
        if own != kind:
            kind, aim = own, COVERAGE if own == "coverage" else REJECTION
            head = "  ".join(f"{count:>4} documents" for count in counts)
            lines += ["", f"{own} (aim {aim[0]:g} to {aim[1]:g}){'':22}{'data':<8}{'ICC':<5}{head}"]
        cells = [found.get(count) for count in counts]
        shown = "  ".join("-".rjust(14) if c is None else f"{c['share']:.3f} {c['off']:<4}".rjust(14) for c in cells)
        lines.append(f"  {what:<46}{systems:<8}{'' if icc is None else f'{icc:g}':<5}{shown}")
    return "\n".join(lines[1:])


def main(tool: Tool | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer data sets, 10 and 30 documents")
    parser.add_argument("--datasets", type=int, help="data sets per cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", help="write OUTPUT.txt and OUTPUT.json")
    options = parser.parse_args()
    repeats = options.datasets or (24 if options.quick else 200)
    documents = (10, 30) if options.quick else (10, 30, 100)
    table, begin = Table(), time.time()
    for start in range(0, repeats, ROUND):
        done = min(start + ROUND, repeats)
        simulate(tool or Tool(), table, range(start, done), documents, options.seed)
        text = _write(table, done, options.seed, time.time() - begin, options.output)
    print(text)


def _write(table: Table, repeats: int, seed: int, seconds: float, output: str | None) -> str:
    """Write the results so far, so that an interrupted run is just a smaller one."""
    rows = list(table.rows())
    error = math.sqrt(0.0475 / repeats)
    text = text_of(rows)
    text += f"\n\n{repeats} data sets a cell, half as many for pooled and averages, five times for means of one row;"
    text += f"\nstandard error of a share near .05 or .95: {error:.3f}; seed {seed}; {seconds:.0f} s\n"
    if output:
        Path(f"{output}.txt").write_text(text, encoding="utf-8")
        record = {"datasets": repeats, "seed": seed, "rows": rows}
        Path(f"{output}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return text


if __name__ == "__main__":
    main()
