"""Graded summaries that a pretrained trunk has read: made once, drawn again and again under other forms.

A shelf is a folder of files, one a few sources with their candidates; what the trunk tells is kept as it is, so that a
new teacher needs no new reading.
"""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from training import likelihood
from training.candidates import Candidate
from training.corpus import CACHE_DIR
from training.likelihood import Likelihood
from training.smol import Smol

if TYPE_CHECKING:
    from training.tasks import Maker

FOLDER = CACHE_DIR / "shelf"
DIMENSIONS = {"coherence": 3, "consistency": 4, "fluency": 3, "relevance": 3}
#: Fiction fills most of the corpus; a judge of articles should read more of what is written like one.
CORPORA = {"nltk": 30, "wikitext2": 22, "squality": 14, "standardebooks": 12, "scitldr": 10, "ud_ewt": 6, "factbook": 6}


@dataclass
class Material:
    """One source with its candidates, and what the trunk tells of each."""

    shared: dict[str, str]
    candidates: list[Candidate]
    separator: str
    read: list[Likelihood]


def text_of(candidate: Candidate) -> tuple[str, list[int]]:
    """Write a candidate out plainly, with the place where each of its words ends."""
    words = [word.text for sentence in candidate.sentences for word in sentence]
    ends = list(itertools.accumulate(len(word) + 1 for word in words))
    return " ".join(words), [end - 1 for end in ends]


def make(maker: Maker, net: Smol, code: PreTrainedTokenizerBase) -> Material:
    """Draw a source, grade candidates for it and let the trunk read them."""
    rng = maker.rng
    while True:
        maker.words = (50, 200) if rng.random() < 0.75 else (200, 330)
        main = rng.choices(list(DIMENSIONS), list(DIMENSIONS.values()))[0]
        drawn = maker.summary(main)
        if drawn is None:
            continue
        shared, found, separator = drawn
        found = [c for c in found if c.sentences and 3 <= sum(map(len, c.sentences)) <= 90]
        if len(found) >= 7 and len(shared["source"]) < 2600:
            break
    read = likelihood.likelihoods(net, code, shared["source"], [text_of(c)[0] for c in found])
    return Material(shared, found, separator, read)


def fill(maker: Maker, net: Smol, code: PreTrainedTokenizerBase, folder: Path, files: int, size: int = 8) -> None:
    """Write files until there are so many."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        path = folder / f"{number:04}.pkl"
        if path.exists():
            continue
        maker.rng.seed(f"{folder.name}/{number}")
        made = [make(maker, net, code) for _ in range(size)]
        with path.with_suffix(".new").open("wb") as handle:
            pickle.dump(made, handle)
        path.with_suffix(".new").replace(path)
        print(f"{path.name}: {(number + 1) * size} sources read", flush=True)


def load(folder: Path, known: int = 0) -> list[Material]:
    """Read the files from number `known` on."""
    found: list[Material] = []
    for path in sorted(folder.glob("*.pkl"))[known:]:
        with path.open("rb") as handle:
            found += pickle.load(handle)  # our own file, written above
    return found


__all__ = ["CORPORA", "FOLDER", "Material", "fill", "load", "make", "text_of"]
