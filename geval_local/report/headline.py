"""The first screen of a page: the answer in one sentence, judges by metrics, and every remark once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from geval_local.analysis.comparison import Difference
from geval_local.analysis.differences import Ranking
from geval_local.analysis.tables import Table, number, said_of
from geval_local.statistics.interval import Ends
from geval_local.summary import Summary, UnscoredReason

#: Metrics that a sentence names; the table below it has all.
NAMED = 4


def passing(summary: Summary) -> str:
    """Say which share of the rows passes; empty without a threshold, or if the judge does not answer."""
    if summary.passed_share is None or summary.doubt:
        return ""
    return f"{summary.passed_share:.1%} {summary.direction.reach} {summary.threshold:g}"


def answer(summaries: Sequence[Summary], ends: Collection[Ends], rankings: Mapping[str, Ranking] | None = None) -> str:
    """Summarise a run in a sentence: means with their intervals, shares that pass, and whether systems differ.

    `ends` are those of the metrics' scales, each once.
    """
    table, rankings = matrix(summaries), rankings or {}
    scale = f" on {min(ends)[0]:g} to {min(ends)[1]:g}" if len(ends) == 1 else ""
    if table is not None:
        names = short_names(table.headers[1:])
        means = {name: [row[place].split(" [")[0] for row in table.rows] for place, name in enumerate(names, start=1)}
        told = [f"{name} {' and '.join(own)}" for name, own in list(means.items())[:NAMED]]
        judges = " and ".join(row[0] for row in table.rows)
        return f"Means{scale} by {judges}: {'; '.join(told)}{_more(len(names), 'metric')}."
    if len(summaries) == 1:
        (one,) = summaries
        return f"{one.metric}: {_clause(one, rankings.get(one.metric), scale)}."
    names = short_names([one.metric for one in summaries])
    clauses = [
        f"{name} {_clause(one, rankings.get(one.metric))}"
        for name, one in list(zip(names, summaries, strict=True))[:NAMED]
    ]
    return f"Means{scale} with 95 % intervals: {'; '.join(clauses)}{_more(len(summaries), 'metric')}."


def _more(count: int, what: str) -> str:
    return f"; {count - NAMED} more {what}{'s' if count > NAMED + 1 else ''} below" if count > NAMED else ""


def _clause(summary: Summary, ranking: Ranking | None, scale: str | None = None) -> str:
    """Summarise one metric; with `scale`, as a separate sentence."""
    if not summary.scored:
        return "no row has a score"
    if summary.doubt:
        return summary.doubt
    mean, between = number(summary.mean, 2), f"{number(summary.low, 2)} to {number(summary.high, 2)}"
    if math.isnan(summary.low):
        told = mean if scale is None else f"mean {mean}{scale}"
    else:
        told = f"{mean} ({between})" if scale is None else f"mean {mean}{scale} (95 % interval {between})"
    return ", ".join(filter(None, (told, passing(summary), _systems(ranking))))


def _systems(ranking: Ranking | None) -> str:
    """Say whether systems differ."""
    if ranking is None or ranking.doubt or not ranking.pairs:
        return ""
    apart = sum(pair.is_told_apart for pair in ranking.pairs)
    if len(ranking.pairs) == 1:
        (pair,) = ranking.pairs
        if pair.better is not None:
            return f"{pair.better} is better than {pair.second if pair.better == pair.first else pair.first}"
        return f"{pair.first} and {pair.second} {'differ' if apart else 'are not told apart'}"
    return f"{apart or 'none'} of {len(ranking.pairs)} pairs of systems differ"


def difference_answer(differences: Mapping[str, Difference]) -> str:
    """Say in a sentence how two runs differ: both means, and the interval of their difference."""
    clauses = []
    for name, one in list(differences.items())[:NAMED]:
        means = f"A {number(one.mean_first, 2)}, B {number(one.mean_second, 2)}"
        if math.isnan(one.mean.low):
            clauses.append(f"{name}: {means}")
            continue
        apart = one.mean.low > 0 or one.mean.high < 0
        verdict = "they differ" if apart else "they are not told apart"
        between = f"{number(one.mean.low)} to {number(one.mean.high)}"
        clauses.append(f"{name}: {means}, A − B {number(one.mean.value)} (95 % interval {between}): {verdict}")
    return f"{'; '.join(clauses)}{_more(len(differences), 'metric')}." if clauses else ""


def means_table(differences: Mapping[str, Difference]) -> Table:
    """Build a table of both runs' means and their difference with its interval, one row per metric."""
    columns: dict[str, Callable[[Difference], object]] = {
        "items": lambda one: one.agreement.n,
        "mean A": lambda one: one.mean_first,
        "mean B": lambda one: one.mean_second,
        "A − B [95 % interval]": lambda one: one.mean,
    }
    return replace(Table.over(differences, columns), headers=("metric", *columns))


def matrix(summaries: Sequence[Summary]) -> Table | None:
    """Build a table of judges by metrics, with a mean and its interval in every cell; None for a single judge.

    Results of several judges are named ``metric@judge``.
    """
    found = {tuple(one.metric.partition("@")[::2]): one for one in summaries}
    metrics = list(dict.fromkeys(metric for metric, _ in found))
    judges = list(dict.fromkeys(judge for _, judge in found))
    if len(judges) < 2 or "" in judges:
        return None
    rows = [(judge, *(_cell(found.get((metric, judge))) for metric in metrics)) for judge in judges]
    return Table(("judge", *metrics), tuple(rows), ("mean, its 95 % interval, and what passes",))


def _cell(summary: Summary | None) -> str:
    if summary is None or math.isnan(summary.mean):
        return "-"
    between = "" if math.isnan(summary.low) else f" [{number(summary.low, 2)}, {number(summary.high, 2)}]"
    return ", ".join(filter(None, (f"{number(summary.mean, 2)}{between}", passing(summary))))


def said_once(remarks: Iterable[tuple[str, str]]) -> list[str]:
    """Merge ``(metric, remark)`` pairs: a remark on several metrics appears once, after their names."""
    return [f"{', '.join(dict.fromkeys(metrics))}: {remark}" for remark, metrics in said_of(remarks).items()]


@dataclass(frozen=True)
class Unscored:
    """Rows without a score for one reason, on the metrics that share it."""

    metrics: str
    rows: int
    reason: UnscoredReason


def unscored_once(summaries: Sequence[Summary]) -> list[Unscored]:
    """List the reasons of rows without a score; a reason that several metrics share appears once."""
    named = said_of((one.metric, (one.rows, reason)) for one in summaries for reason in one.reasons)
    every, count = f"all {len(summaries)} results", len(summaries)
    return [Unscored(every if len(own) == count > 2 else ", ".join(own), *key) for key, own in named.items()]


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten names to their last parts, if these are distinct."""
    last = [name.rpartition("/")[2] for name in names]
    return last if len(set(last)) == len(last) else list(names)


def written_on(file: Path | None) -> str:
    """Say when a result file was written, in UTC; empty without one."""
    moment = None if file is None else datetime.fromtimestamp(file.stat().st_mtime, tz=timezone.utc)
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M UTC")


def tab_title(*parts: str, metrics: Collection[str] = ()) -> str:
    """Name a browser's tab so that ten open pages differ: scored file, metrics, judge and time."""
    named = ", ".join(short_names(list(metrics))[:2]) + ("…" if len(metrics) > 2 else "")
    return " · ".join(filter(None, (parts[0], named, *parts[1:], "G-Eval")))
