"""Load of the pipeline benchmark: rows of SummEval's size, and an engine that plans like a real one at no cost."""

from __future__ import annotations

import collections
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from geval_local.engine.interface import Pack, Readout
from geval_local.engine.prefix_sharing.packs import plan_packs
from geval_local.testing import LABEL_MASS, MockEngine
from geval_local.tokens.requests import Request

SHARED = Path(__file__).resolve().parents[2] / "shared"
SUMMEVAL = SHARED / "data" / "summeval_dev.json"
CANDIDATES = 16
#: Made-up words: how many there are, and how many a source and an output have. Harder on a tokenizer than a language.
WORDS, SOURCE_WORDS, OUTPUT_WORDS = 20_000, 360, 60
#: Mean words of SummEval's sources and summaries, punctuation counted.
SUMMEVAL_SOURCE_WORDS, SUMMEVAL_OUTPUT_WORDS = 412, 64
#: As much running text has one word that has not come before.
NEW_WORDS = 100


class FreeEngine(MockEngine):
    """Plans like the engine that shares prefixes; its read-outs are precomputed."""

    def __init__(self, batch_tokens: int) -> None:
        super().__init__(batch_tokens=batch_tokens)
        weights = np.random.default_rng(0).dirichlet(np.ones(5), 256)
        self._ready = [Readout(row) for row in np.log(weights * LABEL_MASS)]

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Lay the requests' prompt trie out and cut it."""
        return list(plan_packs(range(len(requests)), requests, self.batch_tokens))

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Yield precomputed read-outs."""
        for pack in packs:
            yield pack, [self._ready[len(requests[index].ids) & 255] for index in pack.requests]


def _made_up(rng: random.Random) -> Callable[[int], str]:
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(WORDS)]
    # Word frequencies as in text: the n-th word is about 1 / n as frequent as the first.
    frequencies = list(itertools.accumulate(1 / (rank + 3) for rank in range(WORDS)))

    def text(count: int) -> str:
        sentences = (
            " ".join(rng.choices(words, cum_weights=frequencies, k=12)).capitalize() + "." for _ in range(count // 12)
        )
        return " ".join(sentences)

    return text


def _summeval(rng: random.Random) -> Callable[[int], str]:
    """Draw SummEval's own words, as often as they stand there; one in `NEW_WORDS` is new, as in running text."""
    rows = json.loads(SUMMEVAL.read_text(encoding="utf-8"))
    texts = [*{row["source"] for row in rows}, *{row["system_output"] for row in rows}]
    counts = collections.Counter(word for text in sorted(texts) for word in text.split())
    words, frequencies = list(counts), list(itertools.accumulate(counts.values()))

    def text(count: int) -> str:
        drawn = rng.choices(words, cum_weights=frequencies, k=count)
        for _ in range(round(count / NEW_WORDS)):
            drawn[rng.randrange(count)] = "".join(rng.choices("etaoinshrdlu", k=rng.randint(4, 9)))
        return " ".join(drawn)

    return text


def write_rows(path: Path, rows: int, *, words: str = "summeval", apart: int = 0, candidates: int = CANDIDATES) -> None:
    """Write an input file.

    Parameters
    ----------
    path : Path
        JSONL.
    rows : int
        How many.
    words : {"summeval", "made-up"}
        What texts are made of.
    apart : int
        The candidates of a source lie so many rows apart; 0: one behind the other.
    candidates : int
        How many a source has.
    """
    rng = random.Random(0)
    text = _summeval(rng) if words == "summeval" else _made_up(rng)
    sizes = (SUMMEVAL_SOURCE_WORDS, SUMMEVAL_OUTPUT_WORDS) if words == "summeval" else (SOURCE_WORDS, OUTPUT_WORDS)
    sources: dict[int, str] = {}
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            if apart:
                block, place = divmod(row, apart * candidates)
                number = block * apart + place % apart
            else:
                number = row // candidates
            if number not in sources:
                if len(sources) > max(1000, 2 * apart):
                    sources = {key: value for key, value in sources.items() if key > number - max(1, apart)}
                sources[number] = text(sizes[0])
            record = {"id": f"row-{row}", "source": sources[number], "output": text(sizes[1])}
            file.write(json.dumps(record) + "\n")
