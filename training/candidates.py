"""Graded candidates for one source: texts of about one length, each with its quality in every dimension."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from training import damage, measure
from training.damage import ERROR, FOREIGN, MINOR, ORDER, REPEATED, UNSUPPORTED, Pool, Sentence

LEVELS = (0.0, 0.0, 0.0, 0.25, 0.4, 0.5, 0.6, 0.75, 1.0, 1.0)
MILD = (0.0, 0.0, 0.0, 0.0, 0.1, 0.15, 0.25, 0.25, 0.4)
SIZES = (1, 2, 3, 3, 4, 4, 5)  # sentences of a summary
BRIEF = (1, 1, 1, 2)  # of one that is asked about as a whole
CUT = 0.12  # how often a text ends in the middle of a sentence, as systems with a limit leave it
WRITTEN = 0.35  # how often a candidate is a model's own text, where there are such
_WORD = re.compile(r"[a-z]{3,}")


@dataclass
class Candidate:
    """A text for judging and its quality, 0 to 1, by dimension."""

    sentences: list[Sentence]
    quality: dict[str, float] = field(default_factory=dict)
    fixed: bool = False  # a trap, whose value no teacher changes


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
    index: int  # place in the source, -1 for foreign or by a model, -2 for a text by a person
    salience: float
    seams: int = 0  # where it changes from one sentence to another


def _near(items: list[str], words: int, rng: random.Random) -> str:
    """One of a few random texts, the nearest in length: damage must not show in the length."""
    picks = rng.sample(items, min(6, len(items)))
    return min(picks, key=lambda s: abs(len(s.split()) - words))


class Grader:
    """Makes candidates for one source text."""

    def __init__(
        self,
        source: list[str],
        pool: Pool,
        rng: random.Random,
        summary: list[str] | None = None,
        written: Sequence[list[str]] = (),
    ) -> None:
        self.source, self.pool, self.rng, self.summary, self.written = source, pool, rng, summary, written
        self.salience = salience(source)
        self.measured = measure.Source(source)

    def base(self, count: int) -> list[_Item]:
        """Choose `count` sentences of the source, or a text by a person or a model, as an undamaged summary."""
        rng, n = self.rng, len(self.source)
        if self.written and rng.random() < WRITTEN:
            return [_Item(damage.parse(s), -1, 0.5) for s in rng.choice(self.written)[: count + 1]]
        count = min(count, n)
        kind = rng.choice(["lead", "early", "early", "early", "top", "top", "window", "picks", "human", "human"])
        if kind == "human" and self.summary:
            return [_Item(damage.parse(s), -2 - i, 0.95) for i, s in enumerate(self.summary[: count + 1])]
        if kind == "lead":
            picks = list(range(count))
        elif kind == "window":
            start = rng.randrange(0, n - count + 1)
            picks = list(range(start, start + count))
        elif kind == "early":  # where most systems look: texts that differ little
            picks = sorted(rng.sample(range(min(n, max(count + 3, n // 3))), count))
        elif kind == "picks":
            picks = sorted(rng.sample(range(n), count))
        else:
            noisy = sorted(range(n), key=lambda i: -self.salience[i] - rng.random() * 0.3)
            picks = sorted(noisy[:count])
        items = [self.item(i) for i in picks]
        editing = rng.choice((None, None, damage.abridged, damage.abridged, damage.compressed))
        for item in items:
            for _ in range(rng.choice((0, 1, 1, 2)) if editing else 0):
                item.words = editing(item.words, rng)
        return items

    def versions(self, count: int) -> list[Candidate]:
        """Make undamaged texts, three or four of the same sentences each, from copies to half of the words."""
        rng, n, found = self.rng, len(self.source), []
        while len(found) < count:
            size = min(rng.choice((2, 3, 3, 4)), n)
            if self.written and rng.random() < 0.25:
                items = [_Item(damage.parse(s), -1, 0.5) for s in rng.choice(self.written)[: size + 1]]
            else:
                first = rng.sample(range(min(n, max(size + 3, n // 3))), size)
                picks = sorted(rng.choice((range(size), first, first)))
                items = [_Item(damage.parse(self.source[i]), i, self.salience[i]) for i in picks]
            for least, most in ((0, 0), (0, 1), (1, 2), (2, 4))[rng.choice((0, 0, 1)) :]:
                own = [replace(item) for item in items]
                for item in own:
                    for _ in range(rng.randint(least, most)):
                        item.words = damage.abridged(item.words, rng)
                found.append(self.finish(own))
        rng.shuffle(found)
        return found[:count]

    def item(self, i: int) -> _Item:
        """Take one sentence of the source, perhaps shortened."""
        return _Item(damage.parse(shorten(self.source[i], self.rng)), i, self.salience[i])

    def foreign(self, words: int) -> _Item:
        """Take a sentence of another text, of about the length given."""
        text = _near(self.pool.foreign, words, self.rng)
        return _Item(damage.parse(shorten(text, self.rng), FOREIGN | UNSUPPORTED | MINOR), -1, 0.0)

    def pair(self, main: str, level: float) -> tuple[Candidate, Candidate]:
        """Make a clean text and its damaged version; for relevance the clean one holds the central sentences."""
        size = self.rng.choice((2, 3, 3, 4))
        base = self.base(size)
        if main == "relevance":
            best = sorted(range(len(self.source)), key=lambda i: -self.salience[i])[:size]
            base = [self.item(i) for i in sorted(best)]
        clean = self.candidate(main, 0.0, base, 0.0)
        for _ in range(20):  # a shuffle may leave a text as good as it was
            damaged = self.candidate(main, level, base, 0.0)
            if damaged.quality[main] < clean.quality[main] - 0.02:
                break
        return clean, damaged

    def candidate(
        self, main: str, level: float, base: list[_Item], side: float = 0.35, most: float = 0.75
    ) -> Candidate:
        """Damage a base in one dimension, and with chance `side` in another, there by no more than `most`."""
        items = [_Item(list(i.words), i.index, i.salience, i.seams) for i in base]
        if level > 0:
            items = self.apply(main, level, items)
        if self.rng.random() < side:  # a fault of another kind, which the main label need not follow
            kinds = [d for d in ("coherence", "coherence", "consistency", "consistency", "fluency") if d != main]
            other = self.rng.choice(kinds)
            items = self.apply(other, min(most, self.rng.choice((0.25, 0.5, 0.75))), items)
        if side and self.rng.random() < CUT:
            items[-1].words = damage.cut(items[-1].words, self.rng)
        return self.finish(items)

    def apply(self, kind: str, level: float, items: list[_Item]) -> list[_Item]:
        """Apply one kind of damage."""
        method = {
            "coherence": self.break_order,
            "consistency": self.break_facts,
            "fluency": self.break_words,
            "relevance": self.break_choice,
        }[kind]
        return method(level, items)

    def break_words(self, level: float, items: list[_Item]) -> list[_Item]:
        """Put in errors of language."""
        words = sum(len(i.words) for i in items)
        for _ in range(max(1, round(level * words / 7))):
            item = self.rng.choice(items)
            if self.rng.random() < 0.3:  # what copying summarizers do
                self.sew(item, 0.3, ERROR)
            else:
                item.words = damage.fluency_error(item.words, self.rng, self.pool)
        return items

    def sew(self, item: _Item, foreign: float, flag: int = UNSUPPORTED) -> None:
        """Let a sentence go over into another one."""
        rng = self.rng
        if rng.random() < foreign:
            other = damage.parse(_near(self.pool.foreign, len(item.words), rng))
        else:
            other = self.item(rng.randrange(len(self.source))).words
        item.words = (
            damage.sewn(item.words, other, rng, flag) if rng.random() < 0.7 else damage.hybrid(item.words, other, flag)
        )
        item.seams += 1

    def break_facts(self, level: float, items: list[_Item]) -> list[_Item]:
        """Put in false statements."""
        rng = self.rng
        bad = max(1, round(level * len(items)))
        for item in rng.sample(items, min(bad, len(items))):
            kind = rng.random()
            if kind < 0.7:
                for _ in range(1 + (rng.random() < level) + (rng.random() < level * 0.6)):
                    item.words = damage.fact_error(item.words, rng, self.pool)
            elif kind < 0.88:
                self.sew(item, 0.3)
            else:
                new = self.foreign(len(item.words))
                item.words, item.index, item.salience = new.words, new.index, new.salience
                if rng.random() < 0.5 and self.pool.names:  # about the right people, and still made up
                    names = damage.Pool(self.pool.names, [], self.pool.names, [])
                    for _ in range(3):
                        item.words = damage.renamed(item.words, rng, names)
        return items

    def break_choice(self, level: float, items: list[_Item]) -> list[_Item]:
        """Replace central sentences by minor ones, foreign ones or repeats."""
        rng = self.rng
        minor = sorted(range(len(self.source)), key=self.salience.__getitem__)[: max(2, len(self.source) // 2)]
        used = {i.index for i in items}
        for place in rng.sample(range(len(items)), max(1, round(level * len(items)))):
            kind = rng.random()
            free = [i for i in minor if i not in used]
            if kind < 0.75 and free:
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
                items[place] = _Item(damage.flagged(again.words, MINOR), again.index, 0.0)
        own = [i for i in items if i.index >= 0]
        if rng.random() < 0.7 and len(own) == len(items):
            items = sorted(items, key=lambda i: i.index)
        return items

    def break_order(self, level: float, items: list[_Item]) -> list[_Item]:
        """Break the thread: sentences out of order, foreign, repeated or sewn together."""
        rng = self.rng
        kinds = {"shuffle": 3, "repeat": 4, "distant": 2, "seam": 1, "foreign": 1}
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        places = rng.sample(range(len(items)), max(1, round(level * len(items) * 0.75)))
        if kind == "shuffle" and len(items) > 1:
            if level < 0.5:
                j = rng.randrange(len(items) - 1)
                items[j], items[j + 1] = items[j + 1], items[j]
            else:
                items = items[::-1] if rng.random() < 0.4 else rng.sample(items, len(items))
        elif kind == "distant" and len(items) > 1:
            for place in places:
                i = rng.randrange(len(self.source))
                items[place] = self.item(i)
                items[place].words = damage.flagged(items[place].words, ORDER)
            rng.shuffle(items)
        elif kind == "repeat":
            for place in places:
                again = rng.choice(items)
                words = list(again.words)
                if rng.random() < 0.6:  # the same thing said with another end
                    # a sentence that is not the source's is given the end of any that is
                    own = again.index if again.index >= 0 else rng.randrange(len(self.source))
                    other = items[place].words if again is not items[place] else self.item(own).words
                    words = damage.sewn(words, other, rng, 0) if rng.random() < 0.5 else damage.compressed(words, rng)
                repeated = _Item(words, again.index, again.salience)
                if len(items) > 1:
                    items[place] = repeated
                else:
                    items = [*items, repeated]
        elif kind == "seam":
            for place in places:
                self.sew(items[place], 0.4, ORDER | UNSUPPORTED)
        else:
            for place in places:
                items[place] = self.foreign(len(items[place].words))
        return items

    def finish(self, items: list[_Item]) -> Candidate:
        """Set the flags that follow from the final order, and measure the qualities."""
        seen: set[int] = set()
        last = -1
        for item in items:
            if item.index in seen and item.index >= 0:
                item.words = damage.flagged(item.words, REPEATED)
            elif item.index >= 0:
                if item.index < last:
                    item.words = damage.flagged(item.words, ORDER)
                last = item.index
                if item.salience < 0.35:
                    item.words = damage.flagged(item.words, MINOR)
            seen.add(item.index)
        quality = self.quality(items)
        bits = (damage.NEW_WORD, damage.NEW_PAIR, damage.SAID, damage.CENTRAL)
        marks = self.measured.marks([[w.text for w in i.words] for i in items])
        for item, row in zip(items, marks, strict=True):
            flags = [sum(bit for bit, on in zip(bits, found, strict=True) if on) for found in row]
            item.words = [damage.Word(w.text, w.flags | more) for w, more in zip(item.words, flags, strict=True)]
        return Candidate([i.words for i in items], quality)

    def quality(self, items: list[_Item]) -> dict[str, float]:
        """Put measured features and known damage together; every value lies between 0 and 1."""
        words = sum(len(i.words) for i in items)
        n = len(items)
        found = self.measured.measure([" ".join(w.text for w in i.words) for i in items])
        human = all(i.index <= -2 for i in items)
        wrong = [sum(bool(w.flags & (UNSUPPORTED | FOREIGN)) for w in i.words) for i in items]
        errors = sum(
            bool(w.flags & ERROR) and not (k and i.words[k - 1].flags & ERROR)
            for i in items
            for k, w in enumerate(i.words)
        )
        seams = sum(i.seams > 0 for i in items) / n
        broken = min(1.0, 7 * errors / max(7, words))
        false = sum(x > 0 for x in wrong) / n
        values = {
            "consistency": measure.consistency(found, human)
            - 0.12 * any(wrong)
            - 0.35 * false
            - 0.35 * sum(wrong) / max(1, words)
            - 0.15 * broken,
            "coherence": measure.coherence(found) * (1 - 0.15 * seams) * (1 - 0.2 * broken),
            "relevance": measure.relevance(found) - 0.1 * broken,
            "fluency": measure.fluency(found)
            - 0.12 * (errors > 0)
            - 0.8 * broken
            - 0.12 * seams
            - 0.1 * found.novel_pairs,
        }
        return {k: min(1.0, max(0.0, v)) for k, v in values.items()}

    def graded(
        self, main: str, count: int, grades: Sequence[float] = LEVELS, sizes: Sequence[int] = SIZES
    ) -> list[Candidate]:
        """Make `count` candidates; a third of them share one base, so that only the damage tells these apart."""
        rng = self.rng
        size = rng.choice(sizes) if len(self.source) > 5 else min(2, *sizes)
        free = rng.random() < 0.6  # the rest differ in length as well, as systems do
        shared = self.base(size)
        out = []
        levels = rng.sample(grades, count) if count <= len(grades) else rng.choices(grades, k=count)
        for n, level in enumerate(levels):
            base = shared if n % 3 == 0 else self.base(rng.choice((*sizes, 2, 5)) if free else size)
            out.append(self.candidate(main, level, base, most=max(grades)))
        return out
