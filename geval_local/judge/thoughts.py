"""Thoughts: what a judge draws before it answers, and the requests for the labels after each.

Every thought is drawn by a seed of its own, from the run's seed, the prompt and its number, so that it is the same in
whatever company it is drawn. What it costs is drawn once: a run stores a thought before its labels are read.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from geval_local.engine.backend import Draw, Sampling
from geval_local.errors import Cause, ErrorCode
from geval_local.metric import Metric
from geval_local.models.progress import meter
from geval_local.options import JudgeOptions
from geval_local.thinking import THOUGHT_TOKENS, Thinking, Thought
from geval_local.tokens.encoder import PromptEncoder, ThinkingEncoder
from geval_local.tokens.thought_requests import ThoughtMaker, after_thoughts

if TYPE_CHECKING:
    from geval_local.engine.backend import Backend
    from geval_local.tokens.requests import Prepared

logger = logging.getLogger("geval_local")


class Thinker:
    """Draws the thoughts of a judge.

    Parameters
    ----------
    backend : Backend
        What writes.
    plain : PromptEncoder
        The encoder of the judge's forms.
    options : JudgeOptions
        How it is to think; temperature and top-p are the model's own where they are absent.
    """

    def __init__(self, backend: Backend, plain: PromptEncoder, options: JudgeOptions) -> None:
        from geval_local.models.generate import end_tokens  # brings torch

        self._backend = backend
        self._ends = end_tokens(backend.tokenizer)
        self.encoder = ThinkingEncoder(plain)
        own = backend.facts.sampling
        drawing = own._replace(
            temperature=own.temperature if options.think_temperature is None else options.think_temperature,
            top_p=own.top_p if options.think_top_p is None else options.think_top_p,
        )
        self.settings = Thinking(
            options.think or 1,
            options.think_tokens or THOUGHT_TOKENS,
            drawing,
            options.think_seed or 0,
            self.encoder.kind,
        )
        if self.encoder.kind != "template":
            logger.warning(
                "judge %r writes an analysis before the form (reason-first) instead of thoughts of its own, because %s",
                backend.facts.label,
                "a completion has no marks for them"
                if plain.style == "completion"
                else "its chat template does not show where they stand",
            )
        if drawing.ignored:
            logger.warning(
                "judge %r: its generation_config.json names %s, which its thoughts do not obey",
                backend.facts.label,
                ", ".join(drawing.ignored),
            )

    def maker(self, metric: Metric, context: int) -> ThoughtMaker:
        """Return what fills a metric's forms up to the place of a thought."""
        return ThoughtMaker(self.encoder, metric, context, self.settings.tokens)

    @property
    def drawing(self) -> str:
        """What a thought depends on apart from weights, prompt and number: never how many there are of them."""
        return f"{self.settings.kind},{self.encoder.mark!r},{self.settings.drawing_text}"

    def draws(self, entries: Sequence[Prepared]) -> dict[int, Draw]:
        """List the thoughts about some forms, by their places, ``entry * count + number``."""
        settings = self.settings
        return {
            place: Draw(entry.request.ids, settings.stream(entry.request.ids, place % settings.count))
            for place, entry in enumerate(entry for entry in entries for _ in range(settings.count))
            if entry.request is not None
        }

    def draw(self, draws: Mapping[int, Draw]) -> Iterator[dict[int, Thought | Cause]]:
        """Draw thoughts, batch by batch; one that another program did not write is the reason for that."""
        settings, places = self.settings, list(draws)
        sampling = Sampling(settings.drawing, settings.tokens, self._is_over, self.encoder.mark)
        tell = meter(len(draws), thoughts=True)
        for batch in self._backend.sample(list(draws.values()), sampling):
            tell(len(batch))
            yield {
                places[number]: Cause(new, ErrorCode.BACKEND) if isinstance(new, str) else self._finished(new)
                for number, new in batch
            }

    def after_thoughts(self, entries: Sequence[Prepared]) -> list[Prepared]:
        """Draw the thoughts about some forms, and return the requests for the labels after each, side by side."""
        drawn = {place: thought for batch in self.draw(self.draws(entries)) for place, thought in batch.items()}
        self._backend.check_files()
        return after_thoughts(entries, drawn, self.settings.count)

    def _is_over(self, text: str, tokens: int = 0) -> bool:
        """Whether a thought has come to its mark; an empty line before the first word ends nothing."""
        return self.encoder.mark in text.lstrip()

    def _finished(self, new: Sequence[int]) -> Thought:
        """Cut what was written where the thought ends."""
        decode, ends = self.encoder.decode, self._ends
        new = new[: self.settings.tokens]
        last = next((place for place, token in enumerate(new) if token in ends), len(new))
        # The mark may be an end token itself, as that of a channel is.
        size = bisect_left(range(last + 2), 1, key=lambda size: self._is_over(decode(new[:size])))
        if size <= min(last + 1, len(new)):
            kept = tuple(new[:size])
            text = decode(kept)
            return Thought(kept, text[: text.rindex(self.encoder.mark)], "mark")
        kept = tuple(new[:last])
        return Thought(kept, decode(kept), "cut" if last == self.settings.tokens else "end")
