"""Outputs compared in pairs against outputs rated alone, on SummEval's development half: agreement, tokens, time.

    python benchmarks/pairs.py --judge nano --output benchmarks/results/2026-11-22-pairs-nano.json

All pairs of a document (or --budget of them) in both orders, and all outputs alone, without evaluation steps. Times
are those of the runs as they were, with whatever else the machine did; tokens are exact. Runs are kept in --directory,
and an interrupted benchmark goes on there.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

from development_half import add_options, prepare
from machine import save
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from geval_local import Judge, Metric, read_samples, score_file
from geval_local.analysis.pair_study import consistency_table, pair_agreement_table, rank_table
from geval_local.analysis.pairs import sources_of
from geval_local.analysis.tables import Table, as_record, correlation_table, interval, p_value
from geval_local.engine.window import WINDOW, plan_units
from geval_local.io.pairs import PairPlan, pair_samples
from geval_local.questions.pair import pair_metric
from geval_local.signature import judge_name
from geval_local.statistics.correlation import correlate
from geval_local.statistics.levels import Level
from geval_local.statistics.significance import compare

LEVELS: tuple[Level, ...] = ("summary", "system")


def planned(judge: Judge, metric: Metric, rows: Path, plan: PairPlan) -> dict[str, int]:
    """Count the tokens of all pairs: in one pass, each order by itself, and every prompt by itself."""
    samples = pair_samples(read_samples(rows), plan)
    found = {"one pass": 0, "each order alone": 0, "every prompt alone": 0}
    while window := list(itertools.islice(samples, WINDOW)):
        requests = [entry.request for entry in judge.prepare(metric, window) if entry.request is not None]
        found["every prompt alone"] += sum(len(request.ids) for request in requests)
        for name, parts in (("one pass", [requests]), ("each order alone", [requests[::2], requests[1::2]])):
            found[name] += sum(unit.tokens for part in parts for unit in plan_units(judge.engine, part))
    return found


def show(console: Console, table: Table, title: str) -> None:
    """Print a table of the analyses."""
    shown = RichTable(title=title, title_justify="left")
    for header in table.headers:
        shown.add_column(header)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    console.print(shown)
    for line in table.notes:
        console.print(line, markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, help="so many pairs instead of all")
    add_options(parser, Path("/tmp/geval-local-pairs"))
    parser.add_argument("--tokens", action="store_true", help="count tokens, and judge nothing")
    options = parser.parse_args()

    directory, rows, documents, metric = prepare(options)
    plan = PairPlan() if options.budget is None else PairPlan(budget=options.budget)
    compared = "pairs" if options.budget is None else f"pairs-{options.budget}"
    judge = Judge.load(options.judge, style=options.style)

    console = Console(record=True, width=160)
    console.print(f"{judge_name(options.judge)}, {metric.name}, {documents} documents of SummEval's development half")
    tokens = planned(judge, pair_metric(metric), rows, plan)
    pairs_told = "all pairs" if options.budget is None else f"{options.budget} pairs"
    for name, count in tokens.items():
        console.print(f"tokens of {pairs_told}, {name}: {count}, {count / tokens['one pass']:.2f} of one pass")
    if options.tokens:
        save(console, options.output, [{"tokens": tokens}])
        return
    pointwise = score_file(rows, metric, judge, directory / "alone", use_cache=False)
    pairwise = score_file(rows, metric, judge, directory / compared, use_cache=False, pairs=plan)
    timed = []
    for name, result in (("alone", pointwise), ("pairs", pairwise)):
        record = {"run": name, "rows": result.rows, "seconds": round(result.seconds, 1), **result.totals}
        timed.append(record | {"mass": result.summaries[0].label_mass})
        console.print(
            f"{name}: {result.rows} rows, {result.totals['planned_tokens']} tokens through the model, "
            f"{result.seconds:.0f} s, label mass {result.summaries[0].label_mass:.4f}"
        )
    human = f"scores.{options.dimension}"
    sources = sources_of([directory / "alone", directory / compared], human=human)
    studies = {source.name: source.study for source in sources}
    agreements = {name: study.agreement for name, study in studies.items() if study.agreement is not None}
    for source in sources:
        show(console, rank_table(studies[source.name]), f"{source.name}: the systems")
    show(console, consistency_table({name: study.consistency for name, study in studies.items()}), "consistency")
    show(console, pair_agreement_table(agreements), "pairs against people's")
    levels = {f"{level}: {one.name}": correlate(one.items, level) for level in LEVELS for one in sources}
    show(console, correlation_table(levels), "outputs and systems against people's ratings")
    for level in LEVELS:
        for one, other in itertools.combinations(sources, 2):
            test = compare(one.items, other.items, level)
            told = f"{level}: {one.name} less {other.name}: {interval(test.difference)}, p {p_value(test.p)}"
            console.print(told, markup=False)
    records: list[dict[str, Any]] = [{"tokens": tokens, "runs": timed}]
    for source in sources:
        records.append(
            {
                "source": source.name,
                **studies[source.name].to_dict(),
                "summary": as_record(correlate(source.items, "summary")),
                "system": as_record(correlate(source.items, "system")),
            }
        )
    save(console, options.output, records)


if __name__ == "__main__":
    main()
