"""What more than one look buys: agreement with people on SummEval's development half, by the number of looks.

    python benchmarks/looks.py --judge nano --output benchmarks/results/2026-11-22-looks-nano.json

One run with all looks holds every smaller number of them: the score of k looks is the mean of the first k.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
from development_half import add_options, prepare
from machine import save
from rich.console import Console

from geval_local import Judge, Metric, score_file
from geval_local.analysis.results import rated_items, read_rows
from geval_local.analysis.statistics.correlation import correlate
from geval_local.analysis.statistics.significance import compare
from geval_local.analysis.tables import interval, p_value
from geval_local.engine.window import plan_units
from geval_local.io.samples import read_samples
from geval_local.judging.windows import WINDOW
from geval_local.signature import judge_name

LOOKS = 6


def planned(judge: Judge, metric: Metric, rows: Path) -> list[int]:
    """Count the tokens that go through the model, for the first look, the first two, and so on."""
    samples, found = read_samples(rows), [0] * metric.looks
    while window := list(itertools.islice(samples, WINDOW)):
        requests = [entry.request for entry in judge.prepare(metric, window)]
        for looks in range(1, metric.looks + 1):
            asked = [one for place, one in enumerate(requests) if one is not None and place % metric.looks < looks]
            found[looks - 1] += sum(unit.tokens for unit in plan_units(judge.engine, asked))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, Path("/tmp/geval-local-looks"))
    options = parser.parse_args()

    directory, rows, documents, metric = prepare(options)
    judge = Judge.load(options.judge, style=options.style)
    every = metric.model_copy(update={"looks": LOOKS})
    tokens = planned(judge, every, rows)
    result = score_file(rows, every, judge, directory / "run", use_cache=False)

    scored = read_rows(directory / "run")
    figures = [row["geval"][metric.name] for row in scored]
    items = rated_items(scored, figures, rows, human=f"scores.{options.dimension}", group_by="doc_id")
    looks = np.array([own.get("look_scores", [np.nan] * LOOKS) for own in figures])
    masses = np.array([own.get("look_masses", [np.nan] * LOOKS) for own in figures])

    def by(values: np.ndarray) -> list:
        return [replace(item, predicted=float(value)) for item, value in zip(items, values, strict=True)]

    console = Console(record=True, width=150)
    console.print(
        f"{judge_name(options.judge)}, {metric.name}, {documents} documents, {len(items)} rows, {result.seconds:.0f} s"
    )
    spread, deviation = float(np.nanmean(looks.std(axis=1, ddof=1))), float(np.nanstd(looks.mean(axis=1), ddof=1))
    console.print(
        f"spread of {LOOKS} looks at one text: {spread:.3f}; standard deviation of the scores: {deviation:.3f}"
    )
    records = []
    first = by(looks[:, 0])
    for count in range(1, LOOKS + 1):
        own, alone = by(looks[:, :count].mean(axis=1)), by(looks[:, count - 1])
        found = {level: correlate(own, level).spearman for level in ("summary", "system")}
        single = correlate(alone, "summary").spearman
        test = compare(own, first, "summary") if count > 1 else None
        console.print(
            f"looks {count}: {tokens[count - 1] / tokens[0]:.2f} x tokens; spearman within documents "
            f"{interval(found['summary'])}, over systems {interval(found['system'])}"
            + ("" if test is None else f"; less one look {interval(test.difference)}, p {p_value(test.p)}")
            + f"; look {count} alone {interval(single)}, label mass {np.nanmean(masses[:, count - 1]):.3f}",
            markup=False,
            soft_wrap=True,
        )
        records.append(
            {
                "looks": count,
                "tokens": tokens[count - 1],
                "summary": found["summary"].value,
                "system": found["system"].value,
                "alone": single.value,
                "mass": float(np.nanmean(masses[:, count - 1])),
                "less_one_look": None if test is None else [test.difference.value, test.difference.low, test.p],
            }
        )
    save(console, options.output, [{"spread": spread, "std": deviation, "seconds": result.seconds}, *records])


if __name__ == "__main__":
    main()
