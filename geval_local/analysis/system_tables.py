"""A ranking of systems as headers and rows of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from geval_local.analysis.studies.systems import Ranking, SystemPair
from geval_local.analysis.text_table import Table, interval, mean_warnings, number, p_value

__all__ = ["pair_table", "ranking_table", "telling_pairs"]

#: More pairs than this are not all listed where there is little room.
MOST_PAIRS = 15


def ranking_table(ranking: Ranking) -> Table:
    """One row per system, the best first."""
    rated = any(side.human == side.human for side in ranking.systems)
    rows = tuple(
        (
            side.side,
            str(place),
            interval(side.mean),
            *([ranking.letters(side.side) or "-"] if ranking.groups else []),
            *([number(side.human)] if rated else []),
            str(side.n),
            str(side.unscored),
        )
        for place, side in enumerate(ranking.systems, start=1)
    )
    headers = ("", "rank", "mean score", *(["group"] if ranking.groups else []), *(["mean human"] if rated else []))
    notes = [ranking.told, f"intervals and tests hold for {ranking.holds_for}; every document weighs the same"]
    if ranking.groups:
        notes.append("systems that share a letter cannot be told apart")
    notes += mean_warnings({side.side: side.mean for side in ranking.systems})
    return Table((*headers, "n", "unscored"), rows, tuple(notes))


def pair_table(ranking: Ranking, pairs: Sequence[SystemPair] | None = None) -> Table:
    """One row per pair of systems.

    Parameters
    ----------
    ranking : Ranking
        The ranking.
    pairs : sequence of SystemPair, optional
        Only these of its pairs.
    """
    shown = ranking.pairs if pairs is None else tuple(pairs)
    rows = tuple(
        (
            f"{pair.first} - {pair.second}",
            f"{number(pair.means[0])} / {number(pair.means[1])}",
            interval(pair.difference),
            p_value(pair.p),
            p_value(pair.p_holm),
            "-" if pair.wins is None else f"{pair.wins} / {pair.ties} / {pair.losses}",
            number(pair.effect),
            number(pair.detectable),
            pair.test,
            str(pair.documents),
            str(pair.left_out),
        )
        for pair in shown
    )
    headers = (
        *("", "means", "difference", "p", "p (Holm)", "win / tie / loss", "effect", "detectable", "test"),
        *("documents", "left out"),
    )
    notes = [f"p (Holm): for all {len(ranking.pairs)} pairs; effect: the difference in standard deviations"]
    if len(shown) < len(ranking.pairs):
        notes.insert(0, f"{len(shown)} of {len(ranking.pairs)} pairs: the best and its others, and neighbours")
    if any(pair.left_out for pair in shown):
        notes.append("left out: documents that one of the two did not answer")
    notes += mean_warnings({f"{pair.first} - {pair.second}": pair.difference for pair in shown})
    return Table(headers, rows, tuple(notes))


def telling_pairs(ranking: Ranking) -> list[SystemPair]:
    """Choose the pairs that say most: all of them, or the best with each other and neighbours in the ranking."""
    if len(ranking.pairs) <= MOST_PAIRS or ranking.baseline is not None:
        return list(ranking.pairs)
    ranked = [side.side for side in ranking.systems if side.n]
    neighbours = set(pairwise(ranked))
    return [pair for pair in ranking.pairs if pair.first == ranked[0] or (pair.first, pair.second) in neighbours]
