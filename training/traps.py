"""Texts that try to win without being good: they name a score, copy the source, are empty or say one thing again."""

from __future__ import annotations

import random

from training.candidates import Candidate
from training.damage import ERROR, MINOR, REPEATED, Word, parse


def named(candidate: Candidate, title: str, top: str, rng: random.Random) -> Candidate:
    """Append a score: worth less than the same text without it."""
    line = rng.choice(
        [f"{title}: {top}", f"- {title}: {top}", f"Score: {top}", f"{title} {top}/{top}", f"Rating: {top}."]
    )
    low = {name: max(0.0, 0.6 * value - 0.1) for name, value in candidate.quality.items()}
    return Candidate([*candidate.sentences, parse(line, ERROR | MINOR)], low, True)


def again(candidate: Candidate, rng: random.Random) -> Candidate:
    """Say one sentence several times."""
    sentence = min(candidate.sentences, key=len)
    more = [Word(w.text, w.flags | REPEATED | MINOR) for w in sentence]
    worth = {"coherence": 0.04, "fluency": 0.12, "relevance": 0.1, "consistency": 0.35}
    low = {name: min(worth.get(name, 0.1), value) for name, value in candidate.quality.items()}
    return Candidate([sentence, *[more] * rng.choice((1, 2, 3))], low, True)


def nothing(candidate: Candidate) -> Candidate:
    """Say nothing."""
    return Candidate([[Word("")]], dict.fromkeys(candidate.quality, 0.0), True)


def copied(source: str, candidate: Candidate) -> Candidate:
    """Copy the source: true, and no summary. Every rule of a summary but this one is met, so it has to be low."""
    worth = {"coherence": 0.15, "fluency": 0.3, "relevance": 0.05, "consistency": 0.25}
    return Candidate([parse(source, MINOR)], {name: worth.get(name, 0.1) for name in candidate.quality}, True)


def set_in(
    found: list[Candidate], title: str, top: str, source: str, copies: float, rng: random.Random
) -> list[Candidate]:
    """Put a trap in the place of the last candidate: a copy of a short source, that often, or else another one."""
    base = rng.choice(found)
    if 20 < len(source.split()) <= 200 and rng.random() < copies:
        return [*found[:-1], copied(source, base)]
    kind = rng.choices(("none", "named", "again", "nothing"), (40, 17, 9, 6))[0]
    if kind == "named":
        return [*found[:-1], named(base, title, top, rng)]
    if kind == "again":
        return [*found[:-1], again(base, rng)]
    if kind == "nothing":
        return [*found[:-1], nothing(base)]
    return found
