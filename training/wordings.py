"""The pool of words that forms are composed from: titles, criteria, headings and step phrases (wordings.yaml)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

_POOL: dict[str, Any] = YAML(typ="safe", pure=True).load(Path(__file__).with_suffix(".yaml"))

THINGS: dict[str, list[str]] = _POOL["things"]
SOURCES: dict[str, list[str]] = _POOL["sources"]
HEADINGS: dict[str, list[str]] = _POOL["headings"]
FORM_LINES: list[str] = _POOL["form_lines"]
CRITERIA_LINES: list[str] = _POOL["criteria_lines"]
STEPS_LINE = "Evaluation Steps:"
RATES: list[str] = _POOL["rates"]
CARES: list[str] = _POOL["cares"]
#: Criteria in presets run to several sentences; these lengthen ours without changing what is asked.
ASIDES: list[str] = _POOL["asides"]
READ_SOURCE: list[str] = _POOL["read_source"]
READ_OUTPUT: list[str] = _POOL["read_output"]
READ_ALONE: list[str] = _POOL["read_alone"]
ASSIGN: list[str] = _POOL["assign"]
COPY_WHETHER: list[str] = _POOL["copy_whether"]
COPY_QUESTION: list[str] = _POOL["copy_question"]
COPY_CLAIM: list[str] = _POOL["copy_claim"]
COPY_MORE: list[str] = _POOL["copy_more"]
BANDS: dict[float, list[str]] = _POOL["bands"]
USUAL: list[list[str]] = _POOL["usual"]
GRADES: list[list[list[str]]] = _POOL["grades"]
#: Scales of three and more words that begin with the best one are known by it.
BEST_FIRST: list[str] = _POOL["best_first"]
#: Criteria that no preset has: steps are learnt as a pattern that copies the criterion, not as a list found by name.
CLAUSES: list[str] = _POOL["clauses"]
CLAUSE_PATTERNS: list[str] = _POOL["clause_patterns"]
CLAUSE_TITLES: list[str] = _POOL["clause_titles"]
CLAUSE_CRITERIA: list[str] = _POOL["clause_criteria"]


@dataclass(frozen=True)
class Concept:
    """One kind of judgement. `fields` are in form order, judged text last; `damage` is the quality behind the label."""

    name: str
    damage: str
    thing: str
    source: str
    fields: tuple[str, ...]
    titles: tuple[str, ...]
    introductions: tuple[str, ...]
    scales: tuple[str, ...]
    criteria: tuple[str, ...]


def _concept(name: str, entry: dict[str, Any]) -> Concept:
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    for key in ("introductions", "scales"):  # a word names a list that several concepts share
        if isinstance(found[key], str):
            found[key] = tuple(_POOL[key][found[key]])
    return Concept(name=name, **found)


def _degrees(worse: str, better: str) -> list[list[list[str]]]:
    """Make two families: from "very bad" to "very good", and from "not at all good" to "extremely good"."""
    very = ["very", "very", "very", "extremely"]
    degrees = [["not at all", "not"], ["slightly", "a little"], ["somewhat", "moderately"], ["very", "mostly", "quite"]]
    return [
        [
            [f"{degree} {worse}" for degree in very],
            [worse, worse, f"somewhat {worse}"],
            _POOL["middles"],
            [better, better, f"somewhat {better}"],
            [f"{degree} {better}" for degree in very],
        ],
        [[f"{degree} {better}" for degree in tier] for tier in [*degrees, ["extremely", "completely"]]],
    ]


DEGREES = [family for pair in _POOL["opposites"] for family in _degrees(*pair)]
CONCEPTS = tuple(_concept(name, entry) for name, entry in _POOL["concepts"].items())
BY_NAME = {concept.name: concept for concept in CONCEPTS}


def clause(rng: random.Random, words: list[str]) -> str:
    """Draw a criterion that no preset has."""
    if rng.random() < 0.4:
        return rng.choice(CLAUSES)
    return rng.choice(CLAUSE_PATTERNS).replace("{x}", rng.choice(words)).replace("{y}", rng.choice(words))


def all_text() -> list[str]:
    """Every wording once, for the tokenizer."""
    found = [*FORM_LINES, *CRITERIA_LINES, STEPS_LINE, *RATES, *CARES, *CLAUSES, *CLAUSE_TITLES, *CLAUSE_CRITERIA]
    found += [*COPY_WHETHER, *COPY_QUESTION, *COPY_CLAIM, *COPY_MORE]
    found += [*READ_SOURCE, *READ_OUTPUT, *READ_ALONE, *ASSIGN, *ASIDES]
    for options in [*THINGS.values(), *SOURCES.values(), *HEADINGS.values(), *BANDS.values()]:
        found += [f" {option}:" for option in options]
    for concept in CONCEPTS:
        found += [f"- {title}: {number}" for number, title in enumerate(concept.titles)]
        found += [*concept.introductions, *concept.criteria]
    return found


#: In no scale of the training: benchmarks/label_mass.py asks for them.
KEPT_OUT = {"broken", "usable", "polished", "bronze", "silver", "gold"}
