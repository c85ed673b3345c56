"""The served backend: a server that already runs computes, and is asked over HTTP.

What a kind of server is asked for is its dialect, see `geval_local.engine.dialect`. The tokenizer is read here, and
compared with the server's at the start. Nobody can hash the server's weights: its canary knows them again.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from geval_local import __version__
from geval_local.backends import BACKENDS
from geval_local.canary import Canary
from geval_local.engine.asked import Answer, Answers, AskedEngine, Question
from geval_local.engine.asked_backend import AskedBackend
from geval_local.engine.asked_checks import TEXTS, canary_figures, canary_questions
from geval_local.engine.backend import BackendFacts, Description, Draw, Sampling
from geval_local.engine.dialect import Dialect, ServedModel
from geval_local.engine.served_client import Server, ServerRefusal, as_done, check_address, in_threads, why_no_answer
from geval_local.engine.served_llama import find_llama
from geval_local.engine.served_refused import refuse_others
from geval_local.engine.served_vllm import find_vllm
from geval_local.errors import ConfigurationError, GevalError, JudgeError, TokenizerError
from geval_local.models.fingerprint import tokenizer_hash
from geval_local.models.load import check_style, load_tokenizer, own_sampling
from geval_local.models.precision import Precision
from geval_local.models.registry import JudgeEntry, entry_of, has_chat_template, local_directory
from geval_local.models.verdicts import verdict_on
from geval_local.options import JudgeOptions

#: Names of its judges begin so.
_PREFIX = BACKENDS["served"].prefix
#: Distinct tokens of a window; each is stored when it is answered.
WINDOW_TOKENS = 16_384
_T = TypeVar("_T")
_R = TypeVar("_R")


def read(options: JudgeOptions) -> ServedBackend:
    """Ask a server what it serves, and check that it can answer here; errors as for `Judge.load`."""
    server = Server(str(options.name))
    dialect: Dialect | None = find_llama(server, options.served_model)
    if dialect is None:
        refuse_others(server, options.served_model)
        dialect = find_vllm(server, options.served_model)
    entry = _entry(options, dialect.model)
    return ServedBackend(options, dialect, entry, load_tokenizer(entry))


def check(options: JudgeOptions) -> JudgeOptions:
    """Check what can be checked without the server."""
    options.check_backend()
    for name in ("adapter", "device", "device_map", "dtype", "attention", "quantization"):
        if getattr(options, name) is not None:
            raise ConfigurationError(
                f"`{name}` is decided by the server, which loaded the judge", hint=f"Leave `{name}` out."
            )
    if options.engine != "auto":
        raise ConfigurationError("a server has its own engine", hint="Leave `engine` out.")
    check_address(options)
    return options


def _entry(options: JudgeOptions, model: ServedModel) -> JudgeEntry:
    """Find the files of a served model's tokenizer."""
    root = options.tokenizer
    if root is None and Path(model.root).is_dir():
        root = Path(model.root)
    if root is not None:
        style = options.style or ("chat" if has_chat_template(root) else "completion")
        return JudgeEntry(name=f"{_PREFIX}{model.name}", path=root, context=model.context or None, style=style)
    try:
        found = entry_of(JudgeOptions(name=model.root, style=options.style, models_file=options.models_file))
    except GevalError as error:
        raise TokenizerError(
            f"the server serves {model.root}, whose tokenizer is not on this machine",
            hint="Name the directory of its tokenizer.json: `tokenizer=DIR`.",
        ) from error
    return found.model_copy(update={"name": f"{_PREFIX}{model.name}", "adapter": None})


class ServedBackend(AskedBackend):
    """A model that a server computes.

    Parameters
    ----------
    options : JudgeOptions
        As given.
    dialect : Dialect
        How the server is asked for the model.
    entry : JudgeEntry
        Where its tokenizer is.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.

    Raises
    ------
    TokenizerError
        If the server's tokenizer is another one.
    JudgeError
        If the server cannot answer, or its figures are no log-probabilities.
    """

    def __init__(
        self, options: JudgeOptions, dialect: Dialect, entry: JudgeEntry, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self.entry = entry
        self.tokenizer = tokenizer
        self._dialect = dialect
        self._at_once = options.requests_at_once or dialect.model.requests_at_once
        self.engine = AskedEngine("served", self._ask, batch_tokens=options.batch_tokens or WINDOW_TOKENS)
        dialect.check()
        self._check_tokens()
        self._canary = self._check_program()
        frame = None if entry.style == "completion" else check_style(entry, tokenizer)
        model = dialect.model
        limits = [limit for limit in (entry.context, model.context) if limit]
        setup = {
            "tokenizer": tokenizer_hash(tokenizer, frame),
            "dtype": "the server's",
            "attention": "the server's",
            "backend": f"served by {model.program}",
            "weights": "not verified",
            "transformers": transformers.__version__,
            "torch": "none",
            "version": __version__,
        } | dict(model.setup)
        self._canary = _known_canary(self._canary, {"server": dialect.identity, **setup})
        self.facts = BackendFacts(
            label=entry.name,
            fingerprint=hashlib.sha256(dialect.identity.encode()).hexdigest()[:16],
            setup=setup | {"canary": self._canary.text},
            # A server computes one token behind a prompt.
            context=min(limits) - 1 if limits else 1 << 20,
            precision="the server's; its weights are not verified",
            report=dialect.report,
            batch_tokens=self.engine.batch_tokens,
            generation="greedy, by the server",
            is_reproducible=False,
            is_here=False,
            sampling=own_sampling(local_directory(entry)),
        )

    def _check_tokens(self) -> None:
        """Compare the tokenizer with the server's, on texts that tell tokenizers apart."""
        for text in TEXTS:
            try:
                theirs = self._dialect.tokens_of(text)
            except ServerRefusal as error:
                raise JudgeError(
                    f"the server at {self._dialect.server.address} does not tokenize: {error}", hint=self._dialect.needs
                ) from error
            ours = self.tokenizer.encode(text, add_special_tokens=False)
            if list(ours) != theirs:
                raise TokenizerError(
                    f"the tokenizer in {self.entry.path or self.entry.hub} is not that of the served model "
                    f"{self._dialect.model.name}: {text[:20]!r}... is {ours[:6]} here and {theirs[:6]} there",
                    hint="Name the directory of the served model's own tokenizer: `tokenizer=DIR`.",
                )

    def _ask(self, questions: Sequence[Question], *, drawn: bool = False, alone: bool = False) -> Answers:
        """Answer questions, several requests at once."""
        before = self._dialect.computed
        groups = self._groups(questions)
        found: dict[int, Answer] = {}
        asked = [[questions[number] for number in group] for group in groups]
        answer = partial(_together, partial(self._dialect.answer, drawn=drawn, alone=alone))
        for group, answers in zip(groups, in_threads(answer, asked, self._at_once), strict=True):
            found.update(zip(group, answers, strict=True))
        return Answers([found[number] for number in range(len(questions))], self._dialect.computed - before)

    def _groups(self, questions: Sequence[Question]) -> list[list[int]]:
        """Divide questions among requests: those about the same tokens, or neighbours where a slot keeps one prompt."""
        if self._dialect.model.in_order:
            size = max(1, -(-len(questions) // self._at_once))
            return [list(range(len(questions)))[at : at + size] for at in range(0, len(questions), size)]
        groups: list[list[int]] = []
        most = self._dialect.model.prompts_at_once
        order = sorted(range(len(questions)), key=lambda number: questions[number].tokens)
        for _, same in itertools.groupby(order, key=lambda number: questions[number].tokens):
            members = list(same)
            groups += [members[at : at + most] for at in range(0, len(members), most)]
        return groups

    def _proceed(self, prompts: Sequence[NDArray[np.int32]], size: int) -> list[list[int] | str]:
        """Continue prompts by some tokens: several in one request, several requests at once."""
        most = self._dialect.model.prompts_at_once
        groups = [prompts[at : at + most] for at in range(0, len(prompts), most)]
        write = partial(_together, partial(self._dialect.write, size=size))
        written = in_threads(write, groups, self._at_once)
        return [new if isinstance(new, str) else new.ids for found in written for new in found]

    def _drawn(
        self, draws: Sequence[Draw], sizes: Sequence[int], sampling: Sampling
    ) -> Generator[tuple[int, list[int] | str], None, None]:
        """Draw continuations, each in a request of its own: as many at once as there are prompts in other requests."""
        at_once = self._at_once * self._dialect.model.prompts_at_once
        return as_done(partial(self._draw, sampling), list(zip(draws, sizes, strict=True)), at_once)

    def _draw(self, sampling: Sampling, draw_and_size: tuple[Draw, int]) -> list[int] | str:
        draw, size = draw_and_size
        try:
            found = self._dialect.draw(draw, size, sampling)
        except ServerRefusal as error:
            return why_no_answer(error)
        if found.is_cut:
            return f"the server ended a thought at {len(found.ids)} of {size} tokens, by a limit of its own"
        return found.ids

    def describe(self, *, measure: bool = False) -> Description:
        """See `geval_local.engine.backend.Backend.describe`."""
        return Description(
            place=f"{self._dialect.model.name}, served",
            parameters=None,
            memory_bytes=None,
            precision=Precision("weights not verified", is_measurable=False),
            is_on_cpu=False,
            file=self._dialect.model.file,
        )

    def check_files(self) -> None:
        """Check that the weights behind the address are those of the start: what was just read is not stored else."""
        now = replace(self._canary, figures=canary_figures(self._asked, canary_questions(self.tokenizer)))
        if not self._canary.agrees(now):
            raise JudgeError(
                f"the model behind {self._dialect.server.address} changed while it was asked: log-probabilities of "
                f"fixed texts differ by {self._canary.difference(now):.2g} nats from those at the start",
                hint="What was stored came from the first model. Serve it again and run the same command again, or "
                "score into another file.",
            )

    def close(self) -> None:
        """See `geval_local.engine.backend.Backend.close`: nothing is open between two requests."""


def _together(ask: Callable[[Sequence[_T]], Sequence[_R]], items: Sequence[_T]) -> list[_R | str]:
    """Ask about some prompts in one request; where the server has no answer, one by one."""
    try:
        return [*ask(items)]
    except ServerRefusal as error:
        if len(items) == 1:
            return [why_no_answer(error)]
        return [one for item in items for one in _together(ask, [item])]


def _known_canary(found: Canary, asked: dict[str, str]) -> Canary:
    """Return the canary under which this machine met the same model before, so that its cache is found again."""
    verdict = verdict_on([], {"served": asked})
    kept = verdict.read("canary", Canary)
    if kept is not None and kept.agrees(found):
        return kept
    verdict.keep("canary", found)
    return found
