"""Comparisons of pairs as headers and rows of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from geval_local.analysis.studies.pairs import Consistency, PairAgreement, PairStudy, SystemPair
from geval_local.analysis.text_table import Table, interval, mean_warnings, number, p_value

__all__ = ["consistency_table", "pair_agreement_table", "rank_table", "system_pair_table"]


def rank_table(study: PairStudy, human: Mapping[str, float]) -> Table:
    """Systems by strength, with the groups that cannot be told apart; with people's mean ratings where known."""
    rated = any(one.system in human for one in study.ranks)
    rows = tuple(
        (
            one.system,
            interval(one.preference),
            interval(one.strength),
            *([study.letters(one.system)] if study.groups else []),
            *([number(human.get(one.system, math.nan))] if rated else []),
            str(one.n),
        )
        for one in study.ranks
    )
    headers = ("system", "preferred", "Bradley-Terry", *(["group"] if study.groups else []))
    notes = [study.told] if study.told else []
    notes.append("preferred: mean probability of being better, half of ties included; strengths in log-odds, mean 0")
    if study.groups:
        notes.append("systems that share a letter cannot be told apart")
    if study.warning:
        notes.append(f"no Bradley-Terry strengths: {study.warning}")
    notes += mean_warnings({one.system: one.preference for one in study.ranks})
    return Table((*headers, *(["people's mean"] if rated else []), "comparisons"), rows, tuple(notes))


def system_pair_table(pairs: Sequence[SystemPair]) -> Table:
    """Every two systems that were compared."""
    rows = tuple(
        (
            f"{one.first} / {one.second}",
            interval(one.preference),
            number(one.tie),
            p_value(one.p),
            p_value(one.p_holm),
            str(one.n),
            str(one.unscored),
        )
        for one in pairs
    )
    headers = ("first / second", "first preferred", "p(tie)", "p", "p (Holm)", "n", "unscored")
    notes = [f"p: of no preference, by flipping signs of documents; p (Holm): for all {len(pairs)} pairs"]
    notes += mean_warnings({row[0]: one.preference for row, one in zip(rows, pairs, strict=True)})
    return Table(headers, rows, tuple(notes))


def consistency_table(figures: Mapping[str, Consistency]) -> Table:
    """Show what the order of the outputs does, and how often preferences go round in circles."""
    rows = tuple(
        (
            name,
            interval(one.position_shift),
            interval(one.flip_rate),
            number(one.tie),
            f"{number(one.masses[0])} / {number(one.masses[1])}",
            f"{one.cyclic}/{one.triads}",
            f"{one.document_cyclic}/{one.document_triads}",
            f"{one.n}",
            f"{one.unscored}",
        )
        for name, one in figures.items()
    )
    headers = ("", "first shown gains", "flips", "p(tie)", "mass AB / BA", "circles", "in documents", "n", "unscored")
    notes = (
        "first shown gains: preference for the output shown first beyond one half, 0 for no position bias",
        "flips: comparisons of which each order names another winner; circles: A over B over C over A",
    )
    shifts = {name: one.position_shift for name, one in figures.items()}
    return Table(headers, rows, (*notes, *mean_warnings(shifts)))


def pair_agreement_table(figures: Mapping[str, PairAgreement]) -> Table:
    """Comparisons against people's, one row per way to compare."""
    rows = tuple(
        (
            name,
            interval(one.decided),
            f"{one.n - one.human_ties}",
            interval(one.with_ties),
            number(one.threshold),
            interval(one.expected),
            f"{one.n}",
            f"{one.left_out}",
        )
        for name, one in figures.items()
    )
    headers = ("", "decided pairs", "n decided", "with ties", "tie within", "expected", "n", "left out")
    notes = (
        "decided pairs: of those that people decided, the same output preferred; with ties: ties within a calibrated "
        "distance of one half (Deutsch et al., 2023)",
        "expected: mean probability of people's verdict; intervals hold for new documents from the same systems",
    )
    return Table(headers, rows, notes)
