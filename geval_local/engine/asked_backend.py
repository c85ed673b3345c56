"""What the backends of programs that compute by themselves share: how they are asked one by one, and how they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from geval_local.engine.asked import Answers, AskedEngine, Question
from geval_local.engine.backend import Draw, Finding, Sampling, SelfCheck
from geval_local.engine.interface import Engine
from geval_local.models.generate import (
    Paragraph,
    continued_greedily,
    finished_list,
    finished_paragraph,
    is_list_over,
    is_paragraph_over,
)

#: Texts that a program is asked to draw together: it computes as many of them at once as it has room for.
TEXTS_AT_ONCE = 256


class AskedBackend(Protocol):
    """A backend whose program answers questions and continues prompts; nothing of its device is checked here.

    Attributes
    ----------
    engine : Engine
        See `geval_local.engine.backend.Backend`; its name is that of the program.
    tokenizer : PreTrainedTokenizerBase
        See `geval_local.engine.backend.Backend`.
    """

    engine: Engine
    tokenizer: PreTrainedTokenizerBase

    def _ask(self, questions: Sequence[Question]) -> Answers:
        """Answer questions, all of which may be computed together."""

    def _ask_alone(self, question: Question) -> Answers:
        """Answer one question by itself."""
        return self._ask([question])

    def _proceed(self, prompts: Sequence[NDArray[np.int32]], size: int) -> list[list[int]]:
        """Continue prompts by their likeliest tokens; fewer than asked for where a text has ended."""

    def alone(self) -> Engine:
        """See `geval_local.engine.backend.Backend.alone`."""

        def ask(questions: Sequence[Question]) -> Answers:
            found = [self._ask_alone(question) for question in questions]
            return Answers([answer for one in found for answer in one.answers], sum(one.computed for one in found))

        return AskedEngine(self.engine.name, ask, batch_tokens=1, turn=self.engine.turn)

    def write_list(
        self, ids: NDArray[np.int32], *, is_chat: bool, max_new_tokens: int, on_token: Callable[[int], object]
    ) -> str:
        """See `geval_local.engine.backend.Backend.write_list`."""
        (new,) = continued_greedily(
            self._proceed, self.tokenizer, [ids], is_list_over, max_new_tokens=max_new_tokens, on_token=on_token
        )
        return finished_list(self.tokenizer, new, max_new_tokens)

    def write_paragraphs(
        self, prompts: Sequence[NDArray[np.int32]], *, max_new_tokens: int, on_token: Callable[[int], object]
    ) -> list[Paragraph]:
        """See `geval_local.engine.backend.Backend.write_paragraphs`."""
        written = continued_greedily(
            self._proceed, self.tokenizer, prompts, is_paragraph_over, max_new_tokens=max_new_tokens, on_token=on_token
        )
        return [finished_paragraph(self.tokenizer, new) for new in written]

    def _sample(self, draws: Sequence[Draw], sampling: Sampling) -> list[list[int]]:
        """Draw continuations, all of which may be computed together; each with the end token that it came to."""

    def sample(self, draws: Sequence[Draw], sampling: Sampling) -> Iterator[list[tuple[int, list[int]]]]:
        """See `geval_local.engine.backend.Backend.sample`."""
        for start in range(0, len(draws), TEXTS_AT_ONCE):
            batch = draws[start : start + TEXTS_AT_ONCE]
            yield list(enumerate(self._sample(batch, sampling), start))

    @property
    def checks(self) -> Sequence[str]:
        """See `geval_local.engine.backend.Backend.checks`: none, kernels are the program's."""
        return ()

    def self_check(self, found: Callable[[Finding], object]) -> SelfCheck:
        """See `geval_local.engine.backend.Backend.self_check`."""
        return SelfCheck({}, ())
