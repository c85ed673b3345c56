"""Pairs of rows: which outputs of a document are held against each other. A function of the rows and of the plan alone.

The rows of a document may stand anywhere in a file, so that all of it is read before the first pair comes out.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from geval_local.errors import ConfigurationError, DataError, UnscorableError
from geval_local.fields import SYSTEM_FIELDS, lookup, nearest
from geval_local.grouping import document_field
from geval_local.io.given_pairs import GIVEN, given_sample
from geval_local.io.samples import Sample
from geval_local.questions.pair import FIRST, SECOND

__all__ = ["PairPlan", "PairSample", "pair_samples"]

Rule = Literal["all", "baseline", "budget", "given"]


class PairPlan(BaseModel):
    """Which pairs are judged."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rule: Rule = "all"
    baseline: str | None = None
    budget: int | None = None
    seed: int = 0
    group_by: str | None = None
    system: str | None = None
    compared: str = "output"
    given: str | None = None

    @model_validator(mode="after")
    def _hold_together(self) -> PairPlan:
        for name in ("baseline", "budget", "given"):
            if (getattr(self, name) is not None) != (self.rule == name):
                raise ConfigurationError(f"the rule {self.rule!r} of pairs and its {name} do not go together")
        if self.budget is not None and self.budget < 1:
            raise ConfigurationError(f"a budget has at least one pair, not {self.budget}")
        if self.given is not None and self.given not in GIVEN:
            raise ConfigurationError(
                f"pairs are not known in the format {self.given!r}{nearest(self.given, GIVEN)}",
                hint=f"Known: {', '.join(GIVEN)}.",
            )
        return self


@dataclass(frozen=True)
class PairSample(Sample):
    """Two rows whose outputs are compared.

    Its columns say which: ``id``, ``document``, ``system_a``, ``system_b``, ``row_a``, ``row_b``. The texts stay with
    the two rows.
    """

    rows: tuple[Sample, ...] = ()
    compared: str = "output"

    @property
    def where(self) -> str:
        """The pair's place, as messages begin: ``data.jsonl, rows 3 and 7``."""
        numbers = " and ".join(str(row.row) for row in self.rows)
        return f"{self.origin}, rows {numbers}" if self.origin else f"rows {numbers}"

    def texts(self, metric_fields: Iterable[str]) -> dict[str, str]:
        """Find the text of every field: the outputs each in its row, all others in the first; errors as `Sample`."""
        wanted = list(metric_fields)
        others = [name for name in wanted if name not in (FIRST, SECOND)]
        first, second = self.rows
        texts = first.texts([*others, self.compared])
        outputs = {FIRST: texts.pop(self.compared), SECOND: second.texts([*others, self.compared])[self.compared]}
        return {name: outputs[name] if name in outputs else texts[name] for name in wanted}


def pair_samples(samples: Iterable[Sample], plan: PairPlan) -> Iterator[Sample]:
    """Put rows together to pairs, document by document.

    A row that cannot be read, or has no document or system, comes out by itself with the reason, after the pairs.

    With a budget, each document gets its share, and within a document the pair of systems is taken that was compared
    least often so far; of several the one whose systems were seen least; of these the seed decides. So all pairs of
    systems, and all systems, are seen about equally often, however small the budget is, and every document counts.
    """
    if plan.given is not None:
        yield from (given_sample(sample, plan.given) for sample in samples)
        return
    rows = list(samples)
    group_by = document_field((sample.fields for sample in rows if sample.error is None), plan.group_by)
    documents: dict[str, list[tuple[str, Sample]]] = {}
    lost: list[Sample] = []
    for sample in rows:
        try:
            document, system = _place_of(sample, group_by, plan.system)
        except UnscorableError as error:
            lost.append(Sample({"row": sample.row}, sample.row, sample.origin, error.message))
        else:
            documents.setdefault(document, []).append((system, sample))
    if plan.baseline is not None:
        systems = list(dict.fromkeys(system for own in documents.values() for system, _ in own))
        if plan.baseline not in systems:
            raise DataError(
                f"no row is of the baseline {plan.baseline!r}{nearest(plan.baseline, systems)}",
                hint=f"Systems: {', '.join(systems[:40]) or 'none'}.",
            )
    is_empty = True
    for document, places in _chosen(documents, plan):
        own = documents[document]
        for one, other in places:
            is_empty = False
            yield _pair(document, own[one], own[other], plan.compared)
    if is_empty:
        raise DataError(
            f"there is no pair to be judged: {_why_none(documents, lost, group_by)}",
            hint="Name the column of the document by --group-by, and that of the system by --system.",
        )
    yield from lost


def _why_none(documents: Mapping[str, list[tuple[str, Sample]]], lost: list[Sample], group_by: str | None) -> str:
    """Say why no two outputs can be compared."""
    if lost and not documents:
        return str(lost[0].error)
    systems = {system for own in documents.values() for system, _ in own}
    if len(systems) == 1:
        return f"all rows are of one system, {systems.pop()!r}"
    return f"rows with the same {group_by} are one document, and none has outputs of two systems"


def _place_of(sample: Sample, group_by: str | None, system: str | None) -> tuple[str, str]:
    """Name a row's document and system."""
    if sample.error is not None:
        raise UnscorableError(sample.error)
    columns = [str(name) for name in sample.fields]
    document = None if group_by is None else lookup(sample.fields, group_by)
    if document in (None, ""):
        what = (
            "no column names the document" if group_by is None else f"the field {group_by!r} of the document is missing"
        )
        raise UnscorableError(f"{sample.where}: {what}; the columns are: {', '.join(columns)}")
    names = SYSTEM_FIELDS if system is None else (system,)
    writer = next((found for name in names if (found := lookup(sample.fields, name)) not in (None, "")), None)
    if writer is None:
        raise UnscorableError(
            f"{sample.where}: the field {names[0]!r} of the system is missing; the columns are: {', '.join(columns)}"
        )
    return str(document), str(writer)


def _pair(document: str, one: tuple[str, Sample], other: tuple[str, Sample], compared: str) -> PairSample:
    (system_a, first), (system_b, second) = one, other
    fields: dict[str, Any] = {
        "id": f"{first.row}/{second.row}",
        "document": document,
        "system_a": system_a,
        "system_b": system_b,
        "row_a": first.row,
        "row_b": second.row,
    }
    return PairSample(fields, first.row, first.origin, rows=(first, second), compared=compared)


#: Two places in a document's list of rows.
Places = tuple[int, int]


def _chosen(documents: Mapping[str, list[tuple[str, Sample]]], plan: PairPlan) -> Iterator[tuple[str, list[Places]]]:
    """Say which pairs of each document are judged."""
    possible = {
        document: [
            places
            for places in combinations(range(len(own)), 2)
            if own[places[0]][0] != own[places[1]][0]
            and (plan.baseline is None or plan.baseline in (own[places[0]][0], own[places[1]][0]))
        ]
        for document, own in documents.items()
    }
    if plan.budget is None:
        yield from possible.items()
        return
    draw = random.Random(plan.seed)
    shares = _shares({document: len(places) for document, places in possible.items()}, plan.budget, draw)
    compared: dict[frozenset[str], int] = defaultdict(int)
    seen: dict[str, int] = defaultdict(int)
    for document, places in possible.items():
        own, left, taken = documents[document], list(places), []
        draw.shuffle(left)
        for _ in range(shares[document]):

            def often(pair: Places, own: list[tuple[str, Sample]] = own) -> tuple[int, int]:
                first, second = own[pair[0]][0], own[pair[1]][0]
                return compared[frozenset((first, second))], seen[first] + seen[second]

            best = min(left, key=often)
            left.remove(best)
            taken.append(best)
            systems = [own[place][0] for place in best]
            compared[frozenset(systems)] += 1
            for system in systems:
                seen[system] += 1
        yield document, sorted(taken)


def _shares(possible: Mapping[str, int], budget: int, draw: random.Random) -> dict[str, int]:
    """Give every document its share of the budget; what does not come out even goes to documents by lot."""
    shares = dict.fromkeys(possible, 0)
    left = min(budget, sum(possible.values()))
    while left:
        open_documents = [document for document, most in possible.items() if shares[document] < most]
        each = left // len(open_documents)
        if not each:
            for document in draw.sample(open_documents, left):
                shares[document] += 1
            break
        for document in open_documents:
            more = min(each, possible[document] - shares[document])
            shares[document] += more
            left -= more
    return shares
