"""Pairs of rows: which outputs of a document are compared. Rows and plan alone decide.

The rows of a document may be anywhere in a file, so the module reads the whole file before it yields the first pair.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from geval_local.conversation import is_messages
from geval_local.direction import Better, Direction
from geval_local.errors import Cause, ConfigurationError, DataError, ErrorCode, UnscorableError
from geval_local.fields import ABSENT, ALIASES, SYSTEM_FIELDS, field_value, nearest, offered, resolve
from geval_local.grouping import DocumentCounts, DocumentRule, Documents
from geval_local.io.input_files import FILE
from geval_local.io.results import decoded
from geval_local.io.samples import Sample
from geval_local.questions.pair import FIRST, SECOND
from geval_local.scale import number_in

_Row = Mapping[str, Any]


#: Side -> preference for A.
SIDES = {"a": 1.0, "b": 0.0, "tie": 0.5, "both_bad": 0.5}
#: How people name a side, as `_word` writes it.
_WORDS = {
    **{f"{what}{side}": side for side in "ab" for what in ("", "model", "response", "output", "answer", "system")},
    **dict.fromkeys(("first", "a>b", "a>>b"), "a"),
    **dict.fromkeys(("second", "b>a", "b>>a", "a<b", "a<<b"), "b"),
    **dict.fromkeys(("tie", "tie(inconsistent)", "draw", "equal", "same", "a=b", "b=a"), "tie"),
    **dict.fromkeys(("tie(bothbad)", "bothbad"), "both_bad"),
}
#: Columns of which one is 1.
_ONE_OF = {"winner_model_a": "a", "winner_model_b": "b", "winner_tie": "tie"}

#: Two ratings in one cell.
_BOTH = re.compile(r"[\[(]?\s*(-?\d+(?:\.\d+)?)[\s,;/|]+(-?\d+(?:\.\d+)?)\s*[\])]?")


def sides_of(
    row: _Row, field: str, words: Mapping[str, str] | None = None, better: Better | None = None
) -> list[float | str]:
    """Read whom people prefer: a preference for A of each, 0 to 1, or ``both_bad``.

    `words` says what the values mean, or the columns of which one is 1; ``+`` and ``-`` are all numbers of a sign.
    `better` says which of two ratings in one cell is good, ``low`` of ranks: those of A and B, or by their systems.
    """
    words = {name.casefold(): side for name, side in (words or {}).items()}
    columns = {str(name): str(name).casefold() for name in row if str(name).casefold() in (words or _ONE_OF)}
    held = decoded(field_value(row, field))
    if better is not None and held not in (None, ""):
        both = [held.get(str(row.get(f"system_{side}"))) for side in "ab"] if isinstance(held, Mapping) else held
        found = _BOTH.fullmatch(str(both).strip())
        if found is None:
            raise ValueError(f"{field} is {held!r}, and not the two ratings of A and B, which `human_better` compares")
        first, second = (Direction(better).sign * float(one) for one in found.groups())
        return [SIDES["a" if first > second else "b" if first < second else "tie"]]
    if str(field).casefold() in columns.values() or (held in (None, "") and len(columns) > 1):
        chosen = [name for name in columns if str(row[name]).strip().casefold() in ("1", "1.0", "true")]
        if len(chosen) != 1:
            raise ValueError(f"of {', '.join(columns)} one is to be 1, not {len(chosen)}")
        field, held = chosen[0], columns[chosen[0]] if words else _ONE_OF[columns[chosen[0]]]
    names = {} if words else _names(row)
    people = held if isinstance(held, list) else [held]
    return [_side(one, field, words, names) for one in people if one not in (None, "")]


def _word(value: object) -> str:
    return re.sub(r"[\s_]+", "", str(value)).casefold()


def _names(row: _Row) -> dict[str, str]:
    """Return what names a side: its system, and the usual words, unless a system has one of the other side."""
    systems = {_word(row.get(f"system_{side}") or ""): side for side in "ab"}
    systems = {name: side for name, side in systems.items() if name and len(systems) > 1 and number_in(name) is None}
    is_turned = any(_WORDS.get(name, side) != side for name, side in systems.items())
    return {name: side for name, side in _WORDS.items() if not (is_turned and side in "ab")} | systems


def _side(value: Any, field: str, words: Mapping[str, str], names: Mapping[str, str]) -> float | str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:g}" if is_number else str(value).strip().casefold()
    try:
        number = math.nan if isinstance(value, bool) else float(text)
    except ValueError:
        number = math.nan
    side = words.get(text) if words else names.get(_word(text))
    if side is None and {"+", "-"} & words.keys() and not math.isnan(number):
        side = words.get("+" if number > 0 else "-") if number else "tie"
    if side is not None:
        return side if side == "both_bad" else SIDES[side]
    if words:
        raise ValueError(f"{field} is {value!r}, not one of {', '.join(words)}")
    if number < 0 or number > 1:  # 1 means B in such files as often as A
        raise ConfigurationError(
            f"{field!r} holds preferences beyond 0 to 1, such as {value!r}, and nothing says which side they mean",
            hint="Say what they mean: `prefers=1=a,2=b,0=tie`; of signs `prefers=-=a,+=b`, or `prefers=-=b,+=a`.",
        )
    if math.isnan(number):
        raise ValueError(
            f"{field} is {value!r}, and not 1 for A, 0 for B, 0.5 for a tie, or a list of these; say what other values "
            "mean: `prefers=left=a,right=b,none=both_bad`"
        )
    return number


def _llmbar(row: _Row) -> dict[str, Any]:
    """LLMBar (Zeng et al., 2024): input, output_1, output_2, label 1 or 2."""
    people = sides_of(row, "label", {"1": "a", "2": "b"})
    return {"prompt": row["input"], "output_a": row["output_1"], "output_b": row["output_2"], "human": people}


def _pandalm(row: _Row) -> dict[str, Any]:
    """PandaLM's test set (Wang et al., 2024): instruction, input, response1, response2, annotator1 to 3 as 0, 1, 2."""
    people = sorted(name for name in row if name.startswith("annotator"))
    if not people:
        raise KeyError("annotator1")
    prompt, more = str(row["instruction"]), row.get("input")
    if isinstance(more, str) and more.strip():  # the published file has NaN if there is none
        prompt += f"\n\n{more}"
    found = {
        "prompt": prompt,
        "output_a": row["response1"],
        "output_b": row["response2"],
        "human": [one for name in people for one in sides_of(row, name, {"1": "a", "2": "b", "0": "tie"})],
    }
    systems = str(row.get("cmp_key", "")).split("_")  # such as opt-7b_pythia-6.9b
    return found | (dict(zip(("system_a", "system_b"), systems, strict=True)) if len(systems) == 2 else {})


def _mt_bench(row: _Row) -> dict[str, Any]:
    """MT-Bench's human judgments (Zheng et al., 2023): conversation_a, conversation_b, winner, turn; one per person."""
    turn = int(row.get("turn") or 1)
    first, second = (_turns(row[name], turn, name) for name in ("conversation_a", "conversation_b"))
    return {
        "document": str(row["question_id"]),
        "system_a": str(row["model_a"]),
        "system_b": str(row["model_b"]),
        "turn": turn,
        "judge": row.get("judge"),
        # A second turn's answer depends on that conversation's first answer, so the judge sees both conversations
        # whole.
        "prompt": _said(first, "user"),
        "output_a": _said(first, "assistant"),
        "output_b": _said(second, "assistant"),
        "human": sides_of(row, "winner"),
    }


def _turns(value: Any, turn: int, name: str) -> list[Mapping[str, Any]]:
    messages = decoded(value)
    if not isinstance(messages, list) or len(messages) < 2 * turn or not all(isinstance(m, Mapping) for m in messages):
        raise ValueError(f"{name} is no list of {2 * turn} messages with role and content")
    return messages[: 2 * turn]


def _said(messages: list[Mapping[str, Any]], role: str) -> str:
    return "\n\n".join(one["content"] for one in messages if one["role"] == role)


#: What the option `fields` maps for plain pairs.
PLAIN = ("output_a", "output_b", "human", "document", "system_a", "system_b", "prompt")


def _plain(row: _Row) -> dict[str, Any]:
    """Rows that already have the package's shape; ``human`` may be one value or a list."""
    return {"output_a": row["output_a"], "output_b": row["output_b"], **row}


def _preference(row: _Row) -> dict[str, Any]:
    """Preference data: prompt, chosen, rejected, each a text or messages; the prompt may be in the messages."""
    sides = [_spoken(row.get("prompt"), row[name]) for name in ("chosen", "rejected")]
    if sides[0]["prompt"] != sides[1]["prompt"]:
        raise ValueError("chosen and rejected answer different prompts")
    return {
        "prompt": sides[0]["prompt"],
        "output_a": sides[0]["output"],
        "output_b": sides[1]["output"],
        "human": [1.0],
    }


def _spoken(prompt: Any, answer: Any) -> dict[str, Any]:
    """Return the prompt and the output of an answer; in a conversation, the last turn is the output."""
    prompt, answer = decoded(prompt), decoded(answer)
    if isinstance(answer, list) and not is_messages(answer) and len(answer) != 1:
        raise ValueError(f"it has {len(answer)} texts for one side; `score` with `system_columns` takes them all")
    if not is_messages(answer):
        return {"prompt": prompt, "output": answer[0] if isinstance(answer, list) else answer}
    found = offered({"messages": [*prompt, *answer] if is_messages(prompt) else answer})
    if "output" not in found:
        raise ValueError("a conversation has no turn of the assistant")
    return {"prompt": found.get("history", prompt), "output": found["output"]}


#: Format -> reader, and the columns whose texts are in the fields that it returns.
GIVEN: dict[str, tuple[Callable[[_Row], dict[str, Any]], tuple[str, ...]]] = {
    "plain": (_plain, ()),
    "llmbar": (_llmbar, ("input", "output_1", "output_2")),
    "pandalm": (_pandalm, ("instruction", "input", "response1", "response2")),
    "mt-bench": (_mt_bench, ("conversation_a", "conversation_b")),
    "preference": (_preference, ("prompt", "chosen", "rejected")),
}
#: Names by which a metric would find a column.
_READ = {*ALIASES, *chain.from_iterable(ALIASES.values())}


def given_sample(sample: Sample, form: str, words: Mapping[str, str] | None = None) -> Sample:
    """Convert a row to the package's shape; a row that does not have the format keeps its place with the reason.

    The input's other columns stay; one that a metric would read instead of the pair's is called ``original_...``. Of
    plain pairs `words` says what the values of ``human`` mean, see `sides_of`.
    """
    if sample.error is not None:
        return sample
    row, mapping = dict(sample.fields), dict(sample.mapping)
    human = mapping.get("human", "human")
    if form == "plain":
        row |= {name: field_value(row, mapping.pop(name)) for name in PLAIN if name in mapping}
    read, texts = GIVEN[form]
    try:
        found = read(row)
        rest = [one for one in row.items() if one[0] not in texts and found.get(one[0], ABSENT) is not one[1]]
        kept = {f"original_{name}" if name in found or name in _READ else name: value for name, value in rest}
        if form == "plain" and (people := sides_of(row, human, words)):
            found["human"] = people if isinstance(decoded(row.get("human")), list) else people[0]
    except KeyError as error:
        told = f"not of the format {form}: the column {error.args[0]!r} is missing"
        return sample.lost(told, ErrorCode.MISSING_FIELD)
    except ConfigurationError as error:
        raise DataError(f"{sample.where}: {error.message}", hint=error.hint) from error
    except (TypeError, ValueError, UnscorableError) as error:
        return sample.lost(f"not of the format {form}: {error}", getattr(error, "code", ErrorCode.INVALID_ROW))
    if form != "plain" or "document" not in row:  # its name is no text
        own = resolve(("source", "context"), tuple(name for name in found if name != "document"))
        mapping = {name: own.get(name, name) for name in ("source", "context")} | mapping
    # Pairs of one prompt are one document.
    text = str(next((found[name] for name in ("prompt", "question", "source") if name in found), sample.row))
    found.setdefault("document", hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12])
    return Sample({**kept, **found}, sample.row, sample.origin, mapping=mapping)


class PairPlan(BaseModel):
    """Which pairs the judge compares: all, those with a `baseline`, a `budget` of them, or those that are `given`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    baseline: str | None = None
    budget: int | None = None
    seed: int = 0
    group_by: str | None = None
    system: str | None = None
    compared: str = "output"
    given: str | None = None
    prefers: dict[str, str] | None = None

    @model_validator(mode="after")
    def _hold_together(self) -> PairPlan:
        chosen = [name for name in ("baseline", "budget", "given") if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ConfigurationError(f"`{chosen[0]}` and `{chosen[1]}` are two ways to choose pairs", hint="Take one.")
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

    Its columns name them: ``id``, ``document``, ``system_a``, ``system_b``, ``row_a``, ``row_b``. The texts stay in the
    two rows.
    """

    rows: tuple[Sample, ...] = ()
    compared: str = "output"

    @property
    def where(self) -> str:
        """The pair's location, at the start of messages: ``data.jsonl, rows 3 and 7``."""
        numbers = " and ".join(str(row.row) for row in self.rows)
        return f"{self.origin}, rows {numbers}" if self.origin else f"rows {numbers}"

    def texts(self, metric_fields: Iterable[str]) -> dict[str, str]:
        """Find the text of every field: each output in its own row, others in the first row; errors as in `Sample`."""
        wanted = list(metric_fields)
        others = [name for name in wanted if name not in (FIRST, SECOND)]
        first, second = self.rows
        texts = first.texts([*others, self.compared])
        outputs = {FIRST: texts.pop(self.compared), SECOND: second.texts([*others, self.compared])[self.compared]}
        return {name: outputs[name] if name in outputs else texts[name] for name in wanted}


def pair_samples(samples: Iterable[Sample], plan: PairPlan, rule: DocumentRule | None = None) -> Iterator[Sample]:
    """Combine rows into pairs, document by document.

    After the pairs, the function yields every row that is unreadable or has no document or system, with the reason.

    With a budget, each document gets its share. Within a document, take the pair of systems compared least often so
    far; break ties by the least-seen systems, then at random (seeded). All pairs of systems, and all systems, are thus
    compared about equally often, even with a small budget.
    """
    if plan.given is not None:
        yield from (given_sample(sample, plan.given, plan.prefers) for sample in samples)
        return
    rows = list(samples)
    found = Documents(replace(rule or DocumentRule(), group_by=plan.group_by), named=True)
    for sample in rows:
        found.add({} if sample.error is not None else sample.fields, _system_of(sample, plan.system))
    counts, documents, lost = found.counts, dict[str, list[tuple[str, Sample]]](), list[Sample]()
    for sample, name in zip(rows, found.names, strict=True):
        writer = _system_of(sample, plan.system)
        if (cause := _lack(sample, name, counts, plan.system, writer)) is None:
            documents.setdefault(str(name), []).append((str(writer), sample))
        else:
            lost.append(Sample({"row": sample.row}, sample.row, sample.origin, cause))
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
            f"there is no pair to be judged: {_why_none(documents, lost, counts)}",
            hint="Name the column of the document by `group_by`, and that of the system by `system`.",
        )
    yield from lost


def _why_none(documents: Mapping[str, list[tuple[str, Sample]]], lost: list[Sample], counts: DocumentCounts) -> str:
    """Say why no two outputs can be compared."""
    if lost and not documents:
        return str(lost[0].error)
    systems = {system for own in documents.values() for system, _ in own}
    if len(systems) == 1:
        return f"all rows are of one system, {systems.pop()!r}"
    return f"rows with the same {' and '.join(counts.columns)} are one document, and none has outputs of two systems"


def _system_of(sample: Sample, system: str | None) -> Any:
    """Return the system that wrote a row's output; with several files, each may be one."""
    names = (*SYSTEM_FIELDS, FILE) if system is None else (system,)
    return next((found for name in names if (found := field_value(sample.fields, name)) not in (None, "")), None)


def _lack(
    sample: Sample, document: str | None, counts: DocumentCounts, system: str | None, writer: Any
) -> Cause | None:
    """Say why a row has no document or no system; None if it has both."""
    if sample.error is not None:
        return sample.error
    if document is None or not counts.is_about_items:
        told = " and ".join(map(repr, counts.columns))
        what = f"the field {told} of the document is missing"
        what = what if counts.is_about_items else "no column names the document"
    elif writer is None:
        what = f"the field {system or SYSTEM_FIELDS[0]!r} of the system is missing"
    else:
        return None
    return Cause(
        f"{sample.where}: {what}; the columns are: {', '.join(map(str, sample.fields))}", ErrorCode.MISSING_FIELD
    )


def _pair(document: str, one: tuple[str, Sample], other: tuple[str, Sample], compared: str) -> PairSample:
    (system_a, first), (system_b, second) = one, other
    # What one row of a file says about both of its outputs.
    shared = first.fields.items() if (first.row, first.origin) == (second.row, second.origin) else ()
    fields: dict[str, Any] = {name: value for name, value in shared if second.fields.get(name) == value} | {
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
    """Choose the pairs of each document."""
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
    """Split the budget evenly over the documents; random documents get the remainder."""
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
