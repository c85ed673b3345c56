"""Intervals of few, skewed, binary and equal scores, of strict raters and of estimates: before and now, by simulation.

    python benchmarks/small_samples.py means                     one study to the terminal
    python benchmarks/small_samples.py -o benchmarks/results     all of them: DATE-small-samples-NAME.txt

"before" is what the package did until 2026-11-28: Student's interval of means, squares around the items' means as the
noise of ratings, the rated rows' own spread in the check for a random sample. Shares have their Monte Carlo error in
the last line. 95 % intervals are to cover .95.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from geval_local.analysis.biases import judge_less_people
from geval_local.analysis.good_enough import alternative_annotators
from geval_local.statistics.interval import mean_interval, t_interval, t_test
from geval_local.statistics.prediction_powered import estimate_mean
from geval_local.statistics.raters import fit_raters
from geval_local.statistics.records import ScoredItem

NAN = math.nan
Rng = np.random.Generator
Rows = Iterator[Sequence[Any]]


def _student(values: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Student's interval over documents, by leaving one out."""
    total, size = np.bincount(groups, values), np.bincount(groups)
    rest = (values.sum() - total) / (values.size - size)
    units = total.size
    error = math.sqrt((units - 1) / units * float(((rest - rest.mean()) ** 2).sum()))
    found = t_interval(float(values.mean()), max(error, 1e-9), units)
    return found.low, found.high


def _shares(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple("-" if one is None or one != one else f"{one:.3f}" for one in values)


def _binary(rng: Rng, documents: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Yes and no in documents of 1 to 7 rows, whose chance of yes is Beta distributed (an intraclass r of .4)."""
    size = rng.integers(1, 8, documents)
    chance = rng.beta(1.5 * share, 1.5 * (1 - share), documents)
    groups = np.repeat(np.arange(documents), size)
    return (rng.random(groups.size) < chance[groups]).astype(float), groups


def _ceiling(rng: Rng, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of 1 to 5 with a long tail below the ceiling: Beta(8, .6)."""
    return 1 + 4 * rng.beta(8, 0.6, documents), np.arange(documents)


def _expected(rng: Rng, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw expectations that a logistic of a normal quality gives, 1 to 3 rows a document."""
    groups = np.repeat(np.arange(documents), rng.integers(1, 4, documents))
    quality = 2.5 + rng.normal(size=documents)[groups] + rng.normal(size=groups.size)
    return 1 + 4 / (1 + np.exp(-quality)), groups


def means(repeats: int) -> Rows:
    """Simulate means of scores: how often the interval holds the true mean."""
    yield "scores", "documents", "before", "of no length", "off the scale", "now", "no interval", "off the scale "
    designs: list[tuple[str, Callable[[Rng, int], Any], tuple[float, float]]] = [
        *(
            (f"yes in {share:g}, clusters", lambda rng, d, share=share: _binary(rng, d, share), (0.0, 1.0))
            for share in (0.03, 0.1, 0.5)
        ),
        ("ceiling, Beta(8, .6)", _ceiling, (1.0, 5.0)),
        ("logistic, 1 to 3 rows", _expected, (1.0, 5.0)),
    ]
    for name, draw, ends in designs:
        truth = float(draw(np.random.default_rng(1), 400_000)[0].mean())
        for documents in (5, 10, 30, 100):
            rng = np.random.default_rng(documents)
            counted = np.zeros(6)
            for _ in range(repeats):
                values, groups = draw(rng, documents)
                low, high = _student(values, groups)
                found = mean_interval(values, groups, ends=ends)
                none = not math.isfinite(found.low)
                counted += [
                    low - 1e-6 <= truth <= high + 1e-6, high - low < 1e-6,
                    low < ends[0] - 1e-6 or high > ends[1] + 1e-6,
                    found.low <= truth <= found.high, none, found.low < ends[0] or found.high > ends[1],
                ]  # fmt: skip
            shares = counted / repeats
            shares[3] = counted[3] / max(1, repeats - counted[4])
            yield name, documents, *_shares(shares)


def raters(repeats: int) -> Rows:
    """Simulate a fair judge, and raters who are strict by +-1 (uniform) with heavy-tailed noise."""
    yield "raters", "missing", "documents", "true error", "before", "now", "rejects: before", "now "
    for missing in (0.0, 0.3):
        for documents in (30, 100):
            rng, found = np.random.default_rng(documents), []
            for _ in range(repeats):
                side = np.tile([1.0, 0.0], documents)
                quality = rng.normal(size=2 * documents) + 0.8 * side
                noise = 0.5 * rng.standard_t(5, size=(3, quality.size)) * math.sqrt(3 / 5)
                strict = rng.uniform(-1, 1, size=(3, 1))
                ratings = 3 + quality + strict + noise
                ratings[rng.random(ratings.shape) < missing] = NAN
                there = np.isfinite(ratings)
                count = there.sum(axis=0)
                plain = np.where(count > 0, np.where(there, ratings, 0).sum(axis=0) / np.maximum(count, 1), NAN)
                squares = np.where(there, (ratings - plain) ** 2, 0).sum()
                before = float(squares / (count[count > 1] - 1).sum() * (1 / count[count > 0]).mean())
                fitted = fit_raters(ratings)
                scores = 0.7 * quality + 0.4 * rng.normal(size=quality.size)
                p = []
                for rated, error in ((plain, before), (fitted.means, fitted.error)):
                    items = [
                        ScoredItem(f"d{at // 2}", "ab"[at % 2], float(h), float(s), key=str(at))
                        for at, (h, s) in enumerate(zip(rated, scores, strict=True))
                    ]
                    p.append(judge_less_people(items, "a", "b", error=error).p < 0.05)
                found.append([0.25 * float((1 / count[count > 0]).mean()), before, fitted.error, *p])
            yield 3, missing, documents, *_shares(np.mean(found, axis=0))


def annotators(repeats: int) -> Rows:
    """Simulate the alternative-annotator test, 80 items: how often a judge passes that always says the mean rating."""
    yield "ICC of single ratings", "raters", "mean passes at .1", "at .2", "a fair judge at .2", "of these, as the mean"
    for icc in (0.25, 0.4, 0.6, 0.75):
        for count in (3, 6):
            rng, passed = np.random.default_rng(count), np.zeros(4)
            for _ in range(repeats):
                quality = rng.logistic(size=80) * math.sqrt(3) / math.pi
                spread = math.sqrt((1 - icc) / icc)
                people = np.clip(np.round(4 + quality + spread * rng.normal(size=(count, 80))), 1, 7)
                judge = np.clip(4 + quality + 0.6 * spread * rng.normal(size=80), 1, 7)
                items = [ScoredItem(str(at), "", NAN, float(own)) for at, own in enumerate(judge)]
                found = alternative_annotators(items, people)
                assert found is not None
                assert found.constant is not None
                own = found.passes(0.2)
                passed += [*map(found.constant.passes, (0.1, 0.2)), own, own and found.constant.passes(0.2)]
            yield icc, count, *_shares(passed / repeats)


def _estimates(human: np.ndarray, score: np.ndarray, rated: int, **known: Any) -> Any:
    shown = np.where(np.arange(human.size) < rated, human, NAN)
    items = [ScoredItem(str(at), "", float(h), float(s)) for at, (h, s) in enumerate(zip(shown, score, strict=True))]
    return estimate_mean(items, **known)


def wins(repeats: int) -> Rows:
    """Simulate the share of documents won, a tie counting half, 200 documents."""
    yield "win, tie", "rated", "before", "off 0 to 1", "none", "now", "off 0 to 1 ", "none "
    for win, tie in ((0.85, 0.1), (0.95, 0.05), (0.5, 0.3)):
        for rated in (4, 10, 30):
            rng, counted = np.random.default_rng(rated), np.zeros(6)
            for _ in range(repeats):
                drawn = rng.random(200)
                human = np.where(drawn < win, 1.0, np.where(drawn < win + tie, 0.5, 0.0))
                score = np.where(rng.random(200) < 0.75, human, rng.choice([0.0, 1.0], 200))
                truth = win + tie / 2
                for place, known in enumerate(({}, {"ends": (0.0, 1.0), "cut": 0.5})):
                    one = _estimates(human, score, rated, **known).combined
                    none = not math.isfinite(one.low)
                    counted[3 * place :][:3] += [one.low <= truth <= one.high, one.low < 0 or one.high > 1, none]
            shares = counted / repeats
            shares[[0, 3]] = counted[[0, 3]] / np.maximum(1, repeats - counted[[2, 5]])
            yield f"{win:g}, {tie:g}", rated, *_shares(shares)


def sample(repeats: int) -> Rows:
    """Simulate the check for a random sample at the .01 level: judges at the ceiling, samples of the higher half."""
    yield "judge", "rated of 400", "random: before", "now", "chosen by score: before", "now "
    draws: dict[str, Callable[[Rng], np.ndarray]] = {
        "Beta(20, .4), whole scores": lambda rng: np.round(1 + 4 * rng.beta(20, 0.4, 400)),
        "yes in .97": lambda rng: (rng.random(400) < 0.97).astype(float),
        "normal": lambda rng: rng.normal(size=400),
    }
    for name, draw in draws.items():
        for rated in (10, 20, 50):
            rng, counted = np.random.default_rng(rated), np.zeros(4)
            for _ in range(repeats):
                score = draw(rng)
                chosen = rng.permutation(np.argsort(score, kind="stable")[200:])[:rated]
                picked = np.concatenate([chosen, np.setdiff1d(np.arange(400), chosen)])
                for place, own in enumerate((score, score[picked])):
                    one, rest = own[:rated], own[rated:]
                    difference = float(one.mean() - rest.mean())
                    error = math.sqrt(one.var() / rated + rest.var() / rest.size)
                    counted[2 * place] += t_test(difference, error, rated) < 0.01
                    counted[2 * place + 1] += _estimates(np.zeros(400), own, rated).p_sample < 0.01
            yield name, rated, *_shares(counted / repeats)


def rows(repeats: int) -> Rows:
    """Simulate the mean of exactly these rows: gamma qualities, a judge that sees half of the variance."""
    yield "rated", "rows", "before: covers", "length", "of these rows: covers", "length "
    for rated, total in ((20, 30), (30, 60), (20, 200), (100, 120)):
        rng, found = np.random.default_rng(rated), []
        for _ in range(repeats):
            quality = rng.gamma(4, 0.5, size=total)
            human, score = quality + 0.5 * rng.normal(size=total), quality + rng.normal(size=total)
            one, truth = _estimates(human, score, rated), float(human.mean())
            sides = [(own.low <= truth <= own.high, own.high - own.low) for own in (one.combined, one.these)]
            found.append([value for side in sides for value in side])
        yield rated, total, *_shares(np.mean(found, axis=0))


def people(repeats: int) -> Rows:
    """Simulate the mean rating by all people who might rate, whose strictness is uniform."""
    yield "raters", "spread of strictness", "rated of 150", "these raters", "length", "for other raters", "length "
    for count in (3, 5, 10):
        for strict, rated in ((0.0, 40), (0.3, 40), (0.6, 40), (0.6, 120)):
            rng, found = np.random.default_rng(count), []
            for _ in range(repeats):
                quality = rng.normal(size=150)
                added = strict * math.sqrt(12) * (rng.random((count, 1)) - 0.5)
                ratings = quality + added + 0.6 * rng.normal(size=(count, 150))
                ratings[:, rated:] = NAN
                fitted = fit_raters(ratings)
                names = dict(zip(map(str, range(count)), fitted.added.tolist(), strict=True))
                one = _estimates(fitted.means, quality + 0.6 * rng.normal(size=150), rated, raters=names)
                assert one.other_raters is not None
                both = (one.combined, one.other_raters)
                found.append([value for own in both for value in (own.low <= 0 <= own.high, own.high - own.low)])
            yield count, strict, rated, *_shares(np.mean(found, axis=0))


STUDIES = (means, raters, annotators, wins, sample, rows, people)


def text_of(study: Callable[[int], Rows], repeats: int) -> str:
    """Run a study and write its table."""
    begin = time.time()
    table = [tuple(map(str, row)) for row in study(repeats)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in table]
    error = math.sqrt(0.0475 / repeats), math.sqrt(0.25 / repeats)
    last = f"{repeats} data sets a cell; Monte Carlo error of a share {error[0]:.3f} near .05 and .95, {error[1]:.3f} "
    last += f"near .5; {time.time() - begin:.0f} s"
    return "\n".join([(study.__doc__ or "").strip(), "", *lines, "", last]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("study", nargs="*", help=", ".join(one.__name__ for one in STUDIES))
    parser.add_argument("--datasets", type=int, default=500, help="data sets per cell")
    parser.add_argument("-o", "--output", type=Path, help="folder of the tables")
    options = parser.parse_args()
    if unknown := set(options.study) - {one.__name__ for one in STUDIES}:
        parser.error(f"unknown study: {', '.join(sorted(unknown))}")
    for study in STUDIES:
        if options.study and study.__name__ not in options.study:
            continue
        text = text_of(study, options.datasets)
        print(text)
        if options.output:
            name = f"{date.today()}-small-samples-{study.__name__}.txt"
            (options.output / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
