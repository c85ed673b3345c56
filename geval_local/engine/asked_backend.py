"""What the backends of programs that compute by themselves share: how they are asked one by one, and how they write."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from geval_local.canary import Canary
from geval_local.engine.asked import Answer, Answers, AskedEngine, Question, checked_answers
from geval_local.engine.asked_checks import canary_figures, canary_questions, check_figures
from geval_local.engine.backend import Backend, Draw, Sampling
from geval_local.engine.interface import Engine
from geval_local.errors import JudgeError
from geval_local.models.generate import (
    Paragraph,
    end_tokens,
    finished_list,
    finished_paragraph,
    is_list_over,
    is_paragraph_over,
    up_to_end,
)

#: Drawn texts that are given out, and stored, together.
TEXTS_IN_HAND = 16


class AskedBackend(Backend, Protocol):
    """A backend whose program answers questions and continues prompts; nothing of its device is checked here."""

    def _ask(self, questions: Sequence[Question], *, drawn: bool = False, alone: bool = False) -> Answers:
        """Answer questions, all of which may be computed together.

        With `drawn`, as if the next token were to be drawn at temperature 2 from the 2 likeliest ones: figures that are
        right do not change by that. With `alone`, one question without what a cache holds of others.
        """

    def _one_by_one(self, questions: Sequence[Question]) -> Answers:
        found = [self._ask([question], alone=True) for question in questions]
        return Answers([answer for one in found for answer in one.answers], sum(one.computed for one in found))

    def _asked(self, questions: Sequence[Question], drawn: bool, alone: bool = False) -> list[Answer]:
        found = self._one_by_one(questions) if alone else self._ask(questions, drawn=drawn)
        return checked_answers(questions, found.answers)

    def _check_program(self) -> Canary:
        """Check that the program gives log-probabilities, before the first row; return its canary."""
        asked = canary_questions(self.tokenizer)
        together = canary_figures(self._asked, asked)
        canary = Canary.measured(together, canary_figures(partial(self._asked, alone=True), asked))
        prompts = [question.ids for question, _ in asked]
        check_figures(self._asked, prompts, len(self.tokenizer), canary.tolerance)
        return canary

    def _proceed(self, prompts: Sequence[NDArray[np.int32]], size: int) -> list[list[int] | str]:
        """Continue prompts by their likeliest tokens, fewer than asked for where a text ended; or tell why not."""

    def alone(self) -> Engine:
        """See `geval_local.engine.backend.Backend.alone`."""
        return AskedEngine(self.engine.name, self._one_by_one, batch_tokens=1, turn=self.engine.turn)

    def write_list(self, ids: NDArray[np.int32], *, max_new_tokens: int, on_token: Callable[[int], object]) -> str:
        """See `geval_local.engine.backend.Backend.write_list`."""
        (new,) = self._proceed([ids], max_new_tokens)
        if isinstance(new, str):
            raise JudgeError(f"the program that computes the judge writes no list: {new}")
        on_token(len(new))
        return finished_list(self.tokenizer, up_to_end(self.tokenizer, new, is_list_over), max_new_tokens)

    def write_paragraphs(
        self, prompts: Sequence[NDArray[np.int32]], *, max_new_tokens: int, on_token: Callable[[int], object]
    ) -> list[Paragraph]:
        """See `geval_local.engine.backend.Backend.write_paragraphs`."""
        written = self._proceed(prompts, max_new_tokens)
        on_token(max_new_tokens)
        return [
            Paragraph("", is_ended=False, error=new)
            if isinstance(new, str)
            else finished_paragraph(self.tokenizer, up_to_end(self.tokenizer, new, is_paragraph_over))
            for new in written
        ]

    def _drawn(
        self, draws: Sequence[Draw], sizes: Sequence[int], sampling: Sampling
    ) -> Generator[tuple[int, list[int] | str], None, None]:
        """Draw continuations of at most so many tokens: number and new tokens as they finish, or why there are none.

        A text may end where it holds the mark.
        """

    def sample(self, draws: Sequence[Draw], sampling: Sampling) -> Iterator[list[tuple[int, list[int] | str]]]:
        """See `geval_local.engine.backend.Backend.sample`: texts as they are finished, each with its end token."""
        most, written = sampling.max_new_tokens, [list[int]() for _ in draws]
        waiting, batch = list(range(len(draws))), list[tuple[int, list[int] | str]]()
        while waiting:
            begun = [
                Draw(np.concatenate([draw.ids, np.array(new, np.int32)]), (draw.seed + len(new)) % 2**63)
                for draw, new in ((draws[number], written[number]) for number in waiting)
            ]
            again = []
            with closing(self._drawn(begun, [most - len(written[number]) for number in waiting], sampling)) as found:
                for place, new in found:
                    number = waiting[place]
                    if not isinstance(new, str):
                        written[number] += new
                        if new and self._is_to_go_on(written[number], sampling):
                            again.append(number)
                            continue
                        new = written[number]
                    batch.append((number, new))
                    if len(batch) == TEXTS_IN_HAND:
                        yield batch
                        batch = []
            waiting = again
        if batch:
            yield batch

    def _is_to_go_on(self, new: list[int], sampling: Sampling) -> bool:
        """Whether a text ended at a mark before its first word, which ends nothing."""
        text = str(self.tokenizer.decode(new))
        is_stopped = bool(sampling.mark) and sampling.mark in text and not sampling.is_over(text, len(new))
        return is_stopped and len(new) < sampling.max_new_tokens and new[-1] not in end_tokens(self.tokenizer)
