"""What can be measured of a summary without a person: the rules that set the training labels.

The rules are those known to matter to raters of summaries and none is fitted to a rating: words and word pairs that the
source does not have (made-up content), sentences that leave the order or the topic of the source, what is said twice,
and how much of the source's central and early content is covered. Where damage is known, its flags add to them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from training.damage import FUNCTION_WORDS

_TOKEN = re.compile(r"[a-z0-9]+(?:[.,]\d+)*")
REACH = 13  # words ahead that a pair may span in the source
_ENDS = (".", "!", "?", '"', "'", "”", ")")
_FUNCTION = {
    *FUNCTION_WORDS, "s", "t", "also", "after", "when", "we", "you", "i", "if", "so", "up", "out", "about", "there",
    "more", "one", "said",
}  # fmt: skip


def tokens(text: str) -> list[str]:
    """Split into lower-case words and numbers."""
    return _TOKEN.findall(text.lower())


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(words))


def content(words: Sequence[str]) -> list[str]:
    """Keep the words that carry content."""
    return [w for w in words if w not in _FUNCTION and (len(w) > 2 or w.isdigit())]


@dataclass(frozen=True)
class Features:
    """Shares between 0 and 1, but for `junctions`, a product of link qualities."""

    novel_words: float  # content words that the source does not have
    novel_pairs: float  # neighbouring words that the source does not have in this order near each other
    fragments: float  # sentences that stop in the middle
    repeated: float  # content words said before in the summary
    repeated_pairs: float
    junctions: float  # how well each sentence follows from the one before
    coverage: float  # central and early content of the source, against the best text of that length
    salience: float  # how central what it says of the source is, on average
    early: float  # where in the source it looks, 1 is the beginning
    telling: float  # different content words among all words: how little is spent on the rest


class Source:
    """A source text, prepared for measuring candidates against it."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = [tokens(s) for s in sentences]
        self.words = [w for s in self.sentences for w in s]
        self.counts = Counter(content(self.words))

    @cached_property
    def pairs(self) -> set[tuple[str, str]]:
        """Words of one sentence in their order, near each other: who leaves words out of it says nothing new."""
        return {(a, b) for s in self.sentences for i, a in enumerate(s) for b in s[i + 1 : i + REACH]}

    @cached_property
    def neighbours(self) -> set[tuple[str, str]]:
        """Words that stand beside each other in a sentence."""
        return {pair for s in self.sentences for pair in _pairs(s)}

    def new_neighbours(self, sentences: Sequence[str]) -> float:
        """Measure how often words of the source stand beside each other that do not there: cut, joined or moved."""
        pairs = [pair for s in sentences for pair in _pairs(tokens(s))]
        known = set(self.words)
        return sum(p not in self.neighbours and known.issuperset(p) for p in pairs) / max(1, len(pairs))

    @cached_property
    def weights(self) -> dict[str, float]:
        """Weigh each content word: how often it comes back and how early it first comes."""
        first: dict[str, int] = {}
        for place, sentence in enumerate(self.sentences):
            for w in sentence:
                first.setdefault(w, place)
        return {w: math.log1p(n) * (0.5 + 1.0 * math.exp(-first[w] / 4.0)) for w, n in self.counts.items()}

    @cached_property
    def best(self) -> list[float]:
        """Sum of the n greatest weights."""
        total, found = 0.0, [0.0]
        for weight in sorted(self.weights.values(), reverse=True):
            total += weight
            found.append(total)
        return found

    def place(self, words: Sequence[str]) -> tuple[int, float]:
        """Find the source sentence that shares most with a sentence, and the share; the first of equals."""
        own = set(content(words))
        if not own:
            return -1, 0.0
        shared = [len(own & set(s)) for s in self.sentences]
        most = max(shared)
        return shared.index(most), most / len(own)

    @cached_property
    def central(self) -> set[str]:
        """The words of greatest weight."""
        return set(sorted(self.weights, key=self.weights.__getitem__, reverse=True)[:30])

    def marks(self, sentences: Sequence[Sequence[str]]) -> list[list[tuple[bool, bool, bool, bool]]]:
        """Tell of each written word: is it new, is its pair with the word before new, was it said, is it central."""
        said: set[str] = set()
        found = []
        for sentence in sentences:
            last, row = "", []
            for written in sentence:
                words = tokens(written)
                telling = content(words)
                new_pair = False
                for w in words:
                    new_pair |= bool(last) and (last, w) not in self.pairs
                    last = w
                row.append(
                    (
                        any(w not in self.counts for w in telling),
                        new_pair,
                        any(w in said for w in telling),
                        any(w in self.central for w in telling),
                    )
                )
                said.update(telling)
            found.append(row)
        return found

    def measure(self, sentences: Sequence[str]) -> Features:
        """Measure a candidate, given as its sentences."""
        split = [t for s in sentences if (t := tokens(s))]
        words = [w for s in split for w in s]
        if not words:
            return Features(1, 1, 1, 0, 0, 0, 0, 0, 0, 0)
        said = content(words)
        pairs = [pair for s in split for pair in _pairs(s)]
        novel_words = sum(w not in self.counts for w in said) / max(1, len(said))
        novel_pairs = sum(p not in self.pairs for p in pairs) / max(1, len(pairs))
        fragments = sum(not s.rstrip().endswith((".", "!", "?", '"', "'", "”", ")")) for s in sentences) / len(
            sentences
        )
        repeated = 1 - len(set(said)) / max(1, len(said))
        all_pairs = _pairs(words)
        repeated_pairs = 1 - len(set(all_pairs)) / max(1, len(all_pairs))
        junctions, early, last = 1.0, 0.0, -1
        heard: set[str] = set()
        for number, sentence in enumerate(split):
            at, share = self.place(sentence)
            own = set(content(sentence))
            if number:
                link = 0.95
                if share < 0.4:
                    link = 0.6  # from nowhere
                elif at == last + 1:
                    link = 0.97
                elif at < last:
                    link = 0.8
                elif at > last + 4:
                    link = 0.88
                again = len(own & heard) / max(1, len(own))
                if again > 0.6:
                    link *= 1.4 - 0.9 * again
                elif again == 0:
                    link *= 0.93
                junctions *= link
            heard |= own
            last = at if share >= 0.4 else last
            early += math.exp(-max(0, at) / 5.0) if share >= 0.4 else 0.0
        found = sum(self.weights.get(w, 0.0) for w in set(said))
        budget = min(30, len(self.best) - 1)
        top = self.best[budget]
        # words that the source lacks are no fault of the choice, but no more than half of them are forgiven
        known = max(len(set(said) & set(self.counts)), len(set(said)) // 2, 1)
        salience = found / max(1e-9, self.best[min(len(self.best) - 1, known)])
        return Features(
            novel_words,
            novel_pairs,
            fragments,
            repeated,
            repeated_pairs,
            junctions,
            min(1.0, found / max(1e-9, top)),
            salience,
            early / len(split),
            len(set(said)) / len(words),
        )


def consistency(found: Features, human: bool = False) -> float:
    """Measure support by the source; a text by a person may use words of its own."""
    return 1.0 - (0.25 if human else 1.0) * (1.2 * found.novel_words + 0.5 * found.novel_pairs)


def coherence(found: Features) -> float:
    """Measure how well the sentences follow one another, without saying things twice; new words are no fault here."""
    said_once = max(0.0, 1 - 1.5 * found.repeated_pairs) * (1 - found.repeated)
    return found.junctions * said_once * (1 - 0.1 * found.fragments)


def relevance(found: Features) -> float:
    """Measure how central the source's words in a text are, and how little else it says, or says twice or badly."""
    central = 0.85 * found.salience * min(1.0, math.sqrt(2 * found.telling))
    chosen = central + 0.1 * found.coverage + 0.05 * found.early - 0.4 * found.repeated
    return chosen * (0.7 + 0.3 * coherence(found))


def fluency(found: Features) -> float:
    """Measure what shows without knowing the language: broken ends and repetition."""
    return 1 - 0.8 * min(1.0, 2 * found.fragments) - found.repeated_pairs - 0.4 * found.repeated
