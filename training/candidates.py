"""Graded candidates for one source: texts of about one length, each with its quality in every dimension."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from dataclasses import dataclass, field

from training import damage
from training.damage import FOREIGN, MINOR, ORDER, REPEATED, UNSUPPORTED, Pool, Sentence

LEVELS = (0.0, 0.0, 0.0, 0.25, 0.4, 0.5, 0.6, 0.75, 1.0, 1.0)
_WORD = re.compile(r"[a-z]{3,}")


@dataclass
class Candidate:
    """A text for judging and its quality, 0 to 1, by dimension."""

    sentences: list[Sentence]
    quality: dict[str, float] = field(default_factory=dict)


def _content(text: str) -> set[str]:
    return {w for w in _WORD.findall(text.lower()) if w not in damage.FUNCTION_WORDS}


def salience(source: list[str]) -> list[float]:
    """0 to 1 by rank: words that recur in the rest of the text, and an early place, make a sentence central."""
    contents = [_content(s) for s in source]
    counts = Counter(w for c in contents for w in c)
    raw = []
    for i, content in enumerate(contents):
        central = sum(math.log(counts[w]) for w in content) / math.sqrt(len(content) + 4)
        raw.append(central + 1.2 * math.exp(-i / 3.0))
    order = sorted(range(len(raw)), key=raw.__getitem__)
    ranks = [0.0] * len(raw)
    for place, i in enumerate(order):
        ranks[i] = place / max(1, len(raw) - 1)
    return ranks


def shorten(sentence: str, rng: random.Random) -> str:
    """Leave out a bracket or an inserted clause, as an editor would."""
    text = re.sub(r"\s*\([^)]*\)", "", sentence)
    clauses = text.split(", ")
    if len(clauses) >= 3 and len(text.split()) > 18 and rng.random() < 0.6:
        middle = rng.randrange(1, len(clauses) - 1)
        text = ", ".join(clauses[:middle] + clauses[middle + 1 :])
    elif len(clauses) == 2 and len(clauses[0].split()) >= 8 and rng.random() < 0.4:
        text = clauses[0].rstrip() + "."
    return text


@dataclass
class _Item:
    words: Sentence
    index: int  # place in the source, -1 for foreign, -2 for a text by a person
    salience: float
    supported: float = 1.0


def _near(items: list[str], words: int, rng: random.Random) -> str:
    """One of a few random texts, the nearest in length: damage must not show in the length."""
    picks = rng.sample(items, min(6, len(items)))
    return min(picks, key=lambda s: abs(len(s.split()) - words))


class Grader:
    """Makes candidates for one source text."""

    def __init__(self, source: list[str], pool: Pool, rng: random.Random, summary: list[str] | None = None) -> None:
        self.source, self.pool, self.rng, self.summary = source, pool, rng, summary
        self.salience = salience(source)

    def base(self, count: int) -> list[_Item]:
        """Choose `count` sentences of the source, or a text by a person, as an undamaged summary."""
        rng, n = self.rng, len(self.source)
        count = min(count, n)
        kind = rng.choice(["lead", "window", "top", "top", "picks", "human"])
        if kind == "human" and self.summary:
            return [_Item(damage.parse(s), -2 - i, 0.95) for i, s in enumerate(self.summary[: count + 1])]
        if kind == "lead":
            picks = list(range(count))
        elif kind == "window":
            start = rng.randrange(0, n - count + 1)
            picks = list(range(start, start + count))
        elif kind == "picks":
            picks = sorted(rng.sample(range(n), count))
        else:
            noisy = sorted(range(n), key=lambda i: -self.salience[i] - rng.random() * 0.3)
            picks = sorted(noisy[:count])
        return [self.item(i) for i in picks]

    def item(self, i: int) -> _Item:
        """Take one sentence of the source, perhaps shortened."""
        return _Item(damage.parse(shorten(self.source[i], self.rng)), i, self.salience[i])

    def foreign(self, words: int) -> _Item:
        """Take a sentence of another text, of about the length given."""
        text = _near(self.pool.foreign, words, self.rng)
        return _Item(damage.parse(shorten(text, self.rng), FOREIGN | UNSUPPORTED | MINOR), -1, 0.0, 0.0)

    def pair(self, main: str, level: float) -> tuple[Candidate, Candidate]:
        """Make a clean text and its damaged version; for relevance the clean one holds the central sentences."""
        size = self.rng.choice((2, 3, 3, 4))
        base = self.base(size)
        if main == "relevance":
            best = sorted(range(len(self.source)), key=lambda i: -self.salience[i])[:size]
            base = [self.item(i) for i in sorted(best)]
        return self.candidate(main, 0.0, base, 0.0), self.candidate(main, level, base, 0.0)

    def candidate(self, main: str, level: float, base: list[_Item], side: float = 0.3) -> Candidate:
        """Damage a base in one dimension, and with chance `side` in another."""
        items = [_Item(list(i.words), i.index, i.salience, i.supported) for i in base]
        quality = {"coherence": 1.0, "consistency": 1.0, "fluency": 1.0}
        if level > 0:
            items = self.apply(main, level, items, quality)
        if self.rng.random() < side:  # a fault of another kind, which the main label must not follow
            other = self.rng.choice([d for d in ("coherence", "consistency", "fluency") if d != main])
            items = self.apply(other, self.rng.choice((0.25, 0.5, 0.75)), items, quality)
        return self.finish(items, quality)

    def apply(self, kind: str, level: float, items: list[_Item], quality: dict[str, float]) -> list[_Item]:
        """Apply one kind of damage and lower the qualities that it harms."""
        method = {
            "coherence": self.break_order,
            "consistency": self.break_facts,
            "fluency": self.break_words,
            "relevance": self.break_choice,
        }[kind]
        return method(level, items, quality)

    def break_words(self, level: float, items: list[_Item], quality: dict[str, float]) -> list[_Item]:
        """Put in errors of language."""
        words = sum(len(i.words) for i in items)
        errors = max(1, round(level * words / 7))
        for _ in range(errors):
            item = self.rng.choice(items)
            item.words = damage.fluency_error(item.words, self.rng, self.pool)
        quality["fluency"] -= 0.15 + 0.85 * level
        quality["coherence"] -= 0.3 * level
        return items

    def break_facts(self, level: float, items: list[_Item], quality: dict[str, float]) -> list[_Item]:
        """Put in false statements."""
        rng = self.rng
        bad = max(1, round(level * len(items)))
        for item in rng.sample(items, min(bad, len(items))):
            kind = rng.random()
            if kind < 0.7:
                for _ in range(1 + (rng.random() < level) + (rng.random() < level * 0.6)):
                    item.words = damage.fact_error(item.words, rng, self.pool)
            elif kind < 0.85:
                other = (
                    self.item(rng.randrange(len(self.source))).words
                    if rng.random() < 0.5
                    else damage.parse(_near(self.pool.foreign, len(item.words), rng))
                )
                item.words = damage.hybrid(item.words, other)
            else:
                new = self.foreign(len(item.words))
                item.words, item.index, item.salience = new.words, new.index, new.salience
            item.supported = 0.0
        quality["consistency"] -= 0.25 + 0.75 * level
        return items

    def break_choice(self, level: float, items: list[_Item], quality: dict[str, float]) -> list[_Item]:
        """Replace central sentences by minor ones, foreign ones or repeats."""
        rng = self.rng
        minor = sorted(range(len(self.source)), key=self.salience.__getitem__)[: max(2, len(self.source) // 2)]
        used = {i.index for i in items}
        for place in rng.sample(range(len(items)), max(1, round(level * len(items)))):
            kind = rng.random()
            free = [i for i in minor if i not in used]
            if kind < 0.5 and free:
                i = min(
                    rng.sample(free, min(3, len(free))),
                    key=lambda i: abs(len(self.source[i].split()) - len(items[place].words)),
                )
                items[place] = self.item(i)
                items[place].words = damage.flagged(items[place].words, MINOR)
                used.add(i)
            elif kind < 0.85 or len(items) < 2:
                items[place] = self.foreign(len(items[place].words))
            else:
                again = items[rng.choice([j for j in range(len(items)) if j != place])]
                items[place] = _Item(damage.flagged(again.words, MINOR), again.index, 0.0, again.supported)
        foreign = sum(i.index == -1 for i in items) / len(items)
        quality["coherence"] -= 0.8 * foreign
        quality["consistency"] -= 0.8 * foreign
        own = [i for i in items if i.index >= 0]
        if rng.random() < 0.7 and len(own) == len(items):
            items = sorted(items, key=lambda i: i.index)
        return items

    def break_order(self, level: float, items: list[_Item], quality: dict[str, float]) -> list[_Item]:
        """Break the thread: sentences out of order, foreign, repeated or sewn together."""
        rng = self.rng
        kind = rng.choice(["shuffle", "shuffle", "foreign", "foreign", "distant", "repeat", "hybrid"])
        places = rng.sample(range(len(items)), max(1, round(level * len(items) * 0.75)))
        if kind == "shuffle" and len(items) > 2:
            if level < 0.5:
                j = rng.randrange(len(items) - 1)
                items[j], items[j + 1] = items[j + 1], items[j]
            else:
                items = items[::-1] if rng.random() < 0.4 else rng.sample(items, len(items))
        elif kind in {"foreign", "shuffle"} or (len(items) == 1 and kind != "hybrid"):
            for place in places:
                items[place] = self.foreign(len(items[place].words))
            quality["consistency"] -= 0.8 * len(places) / len(items)
        elif kind == "distant" and len(items) > 1:
            for place in places:
                i = rng.randrange(len(self.source))
                items[place] = self.item(i)
                items[place].words = damage.flagged(items[place].words, ORDER)
            rng.shuffle(items)
        elif kind == "repeat" and len(items) > 1:
            for place in places:
                again = rng.choice(items)
                items[place] = _Item(list(again.words), again.index, again.salience, again.supported)
        else:
            for place in places:
                other = damage.parse(
                    _near(self.pool.foreign if rng.random() < 0.5 else self.source, len(items[place].words), rng)
                )
                items[place].words = damage.hybrid(items[place].words, other, ORDER | UNSUPPORTED)
            quality["consistency"] -= 0.7 * len(places) / len(items)
        quality["coherence"] -= 0.15 + 0.85 * level
        return items

    def finish(self, items: list[_Item], quality: dict[str, float]) -> Candidate:
        """Set the flags and small deductions that follow from the final order."""
        seen: set[int] = set()
        value = 0.0
        last = -1
        for item in items:
            if item.index in seen and item.index >= 0:
                item.words = damage.flagged(item.words, REPEATED)
                quality["coherence"] -= 0.5 / len(items)
            elif item.index >= 0:
                value += item.salience
                if item.index < last:
                    item.words = damage.flagged(item.words, ORDER)
                    quality["coherence"] -= 0.2 / len(items)
                elif last >= 0 and item.index > last + 2:
                    quality["coherence"] -= 0.15 / len(items)
                last = item.index
                if item.salience < 0.35:
                    item.words = damage.flagged(item.words, MINOR)
            elif item.index <= -2:
                value += item.salience
            seen.add(item.index)
        quality["relevance"] = (value / max(1, len(items)) - 0.15) / 0.65
        return Candidate([i.words for i in items], {k: min(1.0, max(0.0, v)) for k, v in quality.items()})

    def graded(self, main: str, count: int) -> list[Candidate]:
        """Make `count` candidates; half of them share one base, so that only the damage tells these apart."""
        rng = self.rng
        size = rng.choice((1, 2, 2, 3, 3, 3, 4)) if len(self.source) > 5 else 2
        shared = self.base(size)
        out = []
        levels = rng.sample(LEVELS, min(count, len(LEVELS)))
        for n, level in enumerate(levels):
            base = shared if n % 2 == 0 else self.base(size)
            out.append(self.candidate(main, level, base))
        return out
