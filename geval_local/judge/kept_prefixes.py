"""What the engine keeps of one batch of calls for the batches that follow."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from geval_local.engine.interface import MOST_POSITIONS
from geval_local.tokens.requests import Ids, common_prefix

#: Tokens that must be saved: what is kept takes passes of its own, and each costs about as much as 32 tokens.
LEAST_SAVED = 128
#: Number of recent pieces of evidence remembered, to detect repeats.
REMEMBERED = 256


@dataclass(frozen=True)
class Newcomer:
    """A call whose first prompts are in a batch."""

    #: Tokens of its first prompt.
    ids: Ids
    #: Number of tokens that all prompts of its form begin with, and that are kept anyway.
    start: int = 0
    #: Names its evidence; None if it has none of its own.
    group: bytes | None = None
    #: Whether later batches need its evidence, too.
    goes_on: bool = False
    #: Gives the tokens up to the end of its evidence; None if they are unknown.
    evidence: Callable[[], Ids | None] = lambda: None


class KeptPrefixes:
    """Chooses what the engine keeps of one batch for the batches that follow.

    A batch computes shared text once, but the next batch starts again, unless the engine keeps that text. It has little
    room, and what it keeps is computed apart from the rest of the batch; so only that is kept which is likely to be
    needed again:

    - evidence of which a part of the questions is left for later batches;
    - evidence that came in an earlier batch and is alone in this one: with company it may share more than its own;
    - what the newest call shares with others. Rows of one document come one after the other, and a batch that ends amid
      them is followed by one that continues with them.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Ids] = OrderedDict()
        self._seen: deque[bytes] = deque(maxlen=REMEMBERED)

    def choose(self, calls: Sequence[Newcomer]) -> list[Ids | None]:
        """Choose for every new call of a batch what the engine keeps of its prompts."""
        contents = [call.ids.astype(">u4").tobytes() for call in calls]
        of_own = {call.group: call for call in calls if call.group is not None}
        for call in of_own.values():
            if call.goes_on or (len(of_own) == 1 and call.group in self._seen):
                evidence = call.evidence()
                if evidence is not None and len(evidence) >= call.start + LEAST_SAVED:
                    self._keep(evidence)
        found = [self._longest(call, content) for call, content in zip(calls, contents, strict=True)]
        if calls and found[-1] is None and self._keep(_shared_by_newest(calls)):
            found = [self._longest(call, content) for call, content in zip(calls, contents, strict=True)]
        self._seen.extend(of_own)
        return found

    def _keep(self, prefix: Ids | None) -> bool:
        if prefix is None or len(prefix) > MOST_POSITIONS:
            return False
        key = prefix.astype(">u4").tobytes()
        self._kept.setdefault(key, prefix)
        self._kept.move_to_end(key)
        while sum(map(len, self._kept.values())) > MOST_POSITIONS:
            self._kept.popitem(last=False)
        return True

    def _longest(self, call: Newcomer, content: bytes) -> Ids | None:
        """Find the longest kept prefix of a call's prompt, and mark it as used."""
        fitting = [key for key in self._kept if len(key) < len(content) and content.startswith(key)]
        if not fitting:
            return None
        longest = max(fitting, key=len)
        self._kept.move_to_end(longest)
        return self._kept[longest]


def _shared_by_newest(calls: Sequence[Newcomer]) -> Ids | None:
    """Find the text that the newest call shares with others: as much of it as all of them have."""
    newest = calls[-1]
    least = newest.start + LEAST_SAVED
    lengths = [common_prefix(newest.ids, call.ids) for call in calls[:-1]]
    shared = [length for length in lengths if least <= length < len(newest.ids)]
    return np.ascontiguousarray(newest.ids[: min(shared)]) if shared else None
