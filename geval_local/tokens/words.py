"""Words are tokenized once: texts are cut at spaces where the tokenizer cuts anyway, and every word is looked up.

A text is cut before each space that stands alone between two ordinary characters. Pre-tokenizers of the GPT-2 kind cut
there themselves, and the model merges within what they cut, so that the tokens of ``"the cat sat"`` are those of
``"the"``, ``" cat"`` and ``" sat"``. `can_split` tells from the tokenizer's own description whether that holds;
otherwise, and for a text with any other space in it, the text is encoded whole.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models

from geval_local.tokens.tokenizer_parts import described, kinds, looks_around, patterns

__all__ = ["WordEncoder", "can_split"]

_Ids = NDArray[np.int32]

#: Words that are remembered at most; more, and they are all forgotten. About 150 bytes each.
MOST_WORDS = 1 << 17
LONGEST_WORD = 64
#: What may stand beside a space: nothing here is white space, combines with what is before it, or is rare.
_ORDINARY = frozenset(
    [*map(chr, range(0x21, 0x7F)), *"“”‘’–—…«»€£§°", *(chr(code) for code in range(0xC0, 0x100) if chr(code).isalpha())]
)
#: One of each class of characters that tokenizers' patterns tell apart, and what may stand around them.
_CLASSES = "aZ7'.\"-(_“é"
_AROUND = (("", ""), ("x", "y"), ("7", "7"), ("'", "'s"))


class WordEncoder:
    """Encodes texts word by word.

    Parameters
    ----------
    encode : callable
        Encodes texts whole, with a tokenizer that `can_split`.
    """

    def __init__(self, encode: Callable[[Sequence[str]], list[_Ids]]) -> None:
        self._encode = encode
        self._known: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})

    def encode(self, texts: Sequence[str]) -> list[_Ids]:
        """Encode texts; each gets the tokens that it has as a whole.

        Returns
        -------
        list of ndarray of int32, shape (tokens,)
        """
        if sum(map(len, self._known)) > MOST_WORDS:
            self._known = ({}, {})  # not cleared: another thread may be reading them
        openings, words = self._known
        cut = [text.split(" ") for text in texts]
        behind: set[str] = set()
        for parts in cut:
            behind.update(parts[1:])
        self._learn(openings, "", {parts[0] for parts in cut})
        self._learn(words, " ", behind)
        found: list[_Ids | None] = []
        for parts in cut:
            try:
                first = openings[parts[0]]
                found.append(np.frombuffer(first + b"".join(map(words.__getitem__, parts[1:])), dtype=np.int32))
            except KeyError:
                found.append(None)
        whole = iter(self._encode([text for text, ids in zip(texts, found, strict=True) if ids is None]))
        return [next(whole) if ids is None else ids for ids in found]

    def _learn(self, known: dict[str, bytes], lead: str, candidates: set[str]) -> None:
        """Encode what is not known yet, and may be cut out of a text."""
        new = [
            word
            for word in candidates.difference(known)
            if 0 < len(word) <= LONGEST_WORD and word[-1] in _ORDINARY and (not lead or word[0] in _ORDINARY)
        ]
        for word, ids in zip(new, self._encode([lead + word for word in new]), strict=True):
            known[word] = ids.tobytes()


def can_split(backend: Tokenizer) -> bool:
    """Whether a tokenizer gives a text the tokens of its words, each with the space before it.

    Parameters
    ----------
    backend : Tokenizer
        Without post-processor, padding and truncation.
    """
    model: Any = backend.model
    splitter = described(backend.pre_tokenizer)
    return (
        type(model) is models.BPE
        and not model.dropout
        and all(map(_is_harmless, backend.get_added_tokens_decoder().values()))
        and kinds(described(backend.normalizer), "normalizers") <= {"Sequence", "NFC"}
        and kinds(splitter, "pretokenizers") <= {"Sequence", "Split", "ByteLevel", "Digits", "Punctuation"}
        and not any(map(looks_around, patterns(splitter)))
        and _cuts_by_itself(backend)
        and _agrees(backend)
    )


def _is_harmless(token: AddedToken) -> bool:
    """Whether an added token is found in a word by itself exactly where it is found in the text."""
    content = str(token.content)
    spaces = " " in content and (len(content) < 2 or bool(content.strip(" ")))
    return not (spaces or token.rstrip or token.single_word)


def _cuts_by_itself(backend: Tokenizer) -> bool:
    """Whether the pre-tokenizer always cuts before a space between two ordinary characters."""
    splitter: Any = backend.pre_tokenizer
    if splitter is None:
        return False
    sides = {*itertools.product(_ORDINARY, _CLASSES), *itertools.product(_CLASSES, _ORDINARY)}
    for (left, right), (before, behind) in itertools.product(sides, _AROUND):
        text = f"{before}{left} {right}{behind}"
        if len(before) + 1 not in (start for _, (start, _) in splitter.pre_tokenize_str(text)):
            return False
    return True


def _agrees(backend: Tokenizer) -> bool:
    """Try it out on words of every kind."""
    rng = random.Random(0)
    ordinary = sorted(_ORDINARY)
    inside = [*ordinary, *"aeinorst" * 20, "\n", "\n\n", "\t", "中", "\u0301", "\u00a0", "🙂"]
    words = ["".join(rng.choices(inside, k=rng.randint(1, 6))) for _ in range(600)] + ordinary
    texts = [" ".join(rng.choices(words, k=8)) for _ in range(300)]

    def encode(some: Sequence[str]) -> list[_Ids]:
        return [np.array(one.ids, dtype=np.int32) for one in backend.encode_batch_fast(some, add_special_tokens=False)]

    return all(map(np.array_equal, WordEncoder(encode).encode(texts), encode(texts)))
