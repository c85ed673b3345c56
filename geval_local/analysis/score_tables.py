"""More results as headers and rows: what is known of scores besides their agreement with people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geval_local.analysis.ratings.responses import ParsedResponses
from geval_local.analysis.statistics.correlation import Correlation
from geval_local.analysis.statistics.levels import COEFFICIENTS
from geval_local.analysis.studies.comparison import Difference
from geval_local.analysis.studies.jury import Jury
from geval_local.analysis.studies.length import LengthBias
from geval_local.analysis.studies.prior import PriorEffect
from geval_local.analysis.tables import Table, interval, number

__all__ = [
    "difference_table",
    "disagreement_table",
    "largest_table",
    "length_table",
    "prior_label_table",
    "prior_table",
    "response_table",
    "weight_table",
]


def length_table(bias: LengthBias) -> Table:
    """Scores against length, and the human ratings of the same items beside them."""
    rows = [_against_length("scores", bias.score)]
    if bias.human is not None:
        rows.append(_against_length("human ratings", bias.human))
    notes = (f"{bias.score.level}: correlation with the number of words of the output",)
    return Table(("", *COEFFICIENTS, "n"), tuple(rows), notes)


def _against_length(name: str, result: Correlation) -> tuple[str, ...]:
    return (name, *(interval(getattr(result, coefficient)) for coefficient in COEFFICIENTS), str(result.n))


def prior_label_table(effect: PriorEffect) -> Table:
    """Show what the judge answers when the input holds nothing."""
    return Table(
        ("", *effect.prior, "score"),
        (("content-free input", *(number(p) for p in effect.prior.values()), number(effect.prior_score)),),
    )


def prior_table(effect: PriorEffect) -> Table:
    """Mean score and agreement before and after the prior is divided out."""
    sides = (("as scored", effect.mean_before, effect.before), ("prior divided out", effect.mean_after, effect.after))
    rows = tuple(
        (name, number(mean), *("-" if result is None else interval(getattr(result, c)) for c in COEFFICIENTS))
        for name, mean, result in sides
    )
    notes = () if effect.before is None else (f"{effect.before.level}-level agreement with the human ratings",)
    return Table(("", "mean score", *COEFFICIENTS), rows, notes)


def weight_table(jury: Jury) -> Table:
    """Weight of each judge."""
    return Table(("judge", "weight"), tuple((name, number(weight)) for name, weight in jury.weights.items()))


def disagreement_table(jury: Jury, judges: Mapping[str, Mapping[str, float]], count: int = 10) -> Table:
    """List the items that the judges see most differently.

    Parameters
    ----------
    jury : Jury
        The jury.
    judges : mapping of str to mapping of str to float
        Judge -> key of an item -> its score.
    count : int
        How many items, at most.
    """
    order = sorted(range(len(jury.items)), key=lambda index: -jury.disagreement[index])[:count]
    rows = tuple(
        (
            jury.items[index].key,
            number(jury.disagreement[index]),
            number(jury.items[index].predicted),
            *(number(scores[jury.items[index].key]) for scores in judges.values()),
        )
        for index in order
    )
    return Table(("item", "disagreement", "jury", *judges), rows, ("disagreement: Jensen-Shannon divergence, nats",))


def difference_table(differences: Mapping[str, Difference]) -> Table:
    """One row per metric that two runs share."""
    rows = tuple(
        (
            name,
            str(d.agreement.n),
            number(d.mean_first),
            number(d.mean_second),
            interval(d.mean),
            number(d.agreement.mean_absolute_difference),
            number(d.agreement.largest_difference),
            *(number(getattr(d.agreement, coefficient)) for coefficient in COEFFICIENTS),
            number(d.agreement.alpha),
            f"{d.agreement.only_first} / {d.agreement.only_second}",
        )
        for name, d in differences.items()
    )
    headers = ("", "n", "A", "B", "A - B", "mean |diff|", "max |diff|", *COEFFICIENTS, "alpha", "A / B alone")
    return Table(headers, rows)


def response_table(parsed: Mapping[str, ParsedResponses]) -> Table:
    """How raw responses were read, one row per dimension."""
    rows = tuple(
        (name, str(len(p.values)), str(p.responses), str(p.unparseable), str(p.out_of_scale), str(p.counted))
        for name, p in parsed.items()
    )
    return Table(("", "rows", "responses", "unparseable", "out of scale", "counted"), rows)


def largest_table(rows: Sequence[tuple[str, float, float, str]]) -> Table:
    """Items with the largest difference: key, both scores, the beginning of the output."""
    cells = tuple((key, number(a), number(b), f"{a - b:+.3f}", text) for key, a, b, text in rows)
    return Table(("item", "A", "B", "A - B", "output"), cells)
