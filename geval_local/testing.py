"""A mock judge without a model, for your own tests: each prompt gets fixed label probabilities at no cost.

>>> from geval_local.testing import MockJudge                          # doctest: +SKIP
>>> MockJudge().score(metric, source="...", output="...").value        # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from geval_local import __version__
from geval_local.engine.backend import Backend, BackendFacts, Description, Draw, EngineReport, Sampling
from geval_local.engine.interface import Engine, Pack, Readout
from geval_local.judge.judge import Judge
from geval_local.models.registry import JudgeEntry
from geval_local.options import JudgeOptions, Style
from geval_local.tokens.requests import Request

if TYPE_CHECKING:
    # They bring torch, which takes longer to import than most tests take.
    from geval_local.models.generate import Paragraph

LABEL_MASS = 0.97
STEPS = " Read the texts.\n2. Compare them.\n3. Choose a score.\n\n"
REASON = "The text says so."


class MockEngine(Engine):
    """Label log-probabilities from a hash of the prompt's tokens.

    Parameters
    ----------
    batch_tokens : int
        Most tokens per pack.
    unit_packs : int
        Packs per unit. The last bits of read-outs depend on the preceding packs of the unit, as they do with an
        engine that shares prefixes.
    sensitive : bool
        Whether the last bits of read-outs depend on the rest of the pack, as they do with a real model. Without
        it equal prompts have equal scores.
    seconds : float
        Duration of each pack.
    """

    name = "mock"

    def __init__(
        self,
        *,
        batch_tokens: int = 4096,
        unit_packs: int = 1,
        sensitive: bool = False,
        seconds: float = 0.0,
    ) -> None:
        self.batch_tokens = self.limit = batch_tokens
        self.unit_packs = unit_packs
        self.sensitive = sensitive
        self.seconds = seconds
        self.turn = threading.RLock()
        self.executed_packs = 0
        self._unit = -1
        self._history = b""

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Fill packs with requests in the order of their tokens, as an engine that shares prefixes would."""
        keys = [request.ids.tobytes() for request in requests]
        packs: list[Pack] = []
        members: list[int] = []
        tokens = 0
        for index in sorted(range(len(requests)), key=keys.__getitem__):
            length = len(requests[index].ids)
            if members and tokens + length > self.batch_tokens:
                packs.append(Pack(tuple(members), tokens, len(packs) // self.unit_packs))
                members, tokens = [], 0
            members.append(index)
            tokens += length
        return [*packs, Pack(tuple(members), tokens, len(packs) // self.unit_packs)] if members else packs

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Read out packs in order."""
        self._unit = -1
        for pack in packs:
            if self.seconds:
                time.sleep(self.seconds)
            self.executed_packs += 1
            if pack.unit != self._unit:
                self._unit, self._history = pack.unit, b""
            readouts = self.read([requests[index] for index in pack.requests])
            self._history = hashlib.blake2b(self._history + repr(pack).encode(), digest_size=8).digest()
            yield pack, readouts

    def read(self, requests: Sequence[Request]) -> list[Readout]:
        """Read out one pack; override it to simulate device failures."""
        context = self._history
        if self.sensitive:
            digest = hashlib.blake2b(context + str(self.limit).encode(), digest_size=8)
            for request in requests:
                digest.update(request.ids.tobytes())
            context = digest.digest()
        nudge = int.from_bytes(context, "little") % 1009 * 1e-12
        return [Readout(self.label_logprobs(request) - nudge) for request in requests]

    def label_logprobs(self, request: Request) -> Any:
        """Compute log-probabilities of the labels after a prompt; the probabilities sum to `LABEL_MASS`."""
        draw = np.frombuffer(hashlib.blake2b(request.ids.tobytes()).digest(), dtype=np.uint8)
        weights = 1.0 + np.resize(draw, request.trie.labels)
        return np.log(weights * (LABEL_MASS / weights.sum()))


class MockBackend(Backend):
    """A backend whose read-outs come from a `MockEngine`; parameters as for `MockJudge`."""

    def __init__(
        self, engine: MockEngine, tokenizer: PreTrainedTokenizerBase, *, style: Style, context: int, name: str
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.entry = JudgeEntry(name=name, path=Path(name), style=style)
        self.facts = BackendFacts(
            label=name,
            fingerprint=hashlib.blake2b(name.encode(), digest_size=8).hexdigest(),
            setup={"tokenizer": "mock", "version": __version__}
            | dict.fromkeys(("dtype", "attention", "transformers", "torch"), "none"),
            context=context,
            precision="none (a mock)",
            report=EngineReport("mock"),
            batch_tokens=engine.batch_tokens,
            generation="fixed",
        )

    def alone(self) -> MockEngine:
        """Return an engine that reads one prompt at a time."""
        return MockEngine(batch_tokens=1)

    def write_list(self, ids: NDArray[np.int32], *, max_new_tokens: int, on_token: Callable[[int], object]) -> str:
        """Write three fixed steps."""
        return STEPS

    def write_paragraphs(
        self, prompts: Sequence[NDArray[np.int32]], *, max_new_tokens: int, on_token: Callable[[int], object]
    ) -> list[Paragraph]:
        """Write one fixed sentence for every prompt."""
        from geval_local.models.generate import Paragraph

        return [Paragraph(REASON, is_ended=True) for _ in prompts]

    def sample(self, draws: Sequence[Draw], sampling: Sampling) -> Iterator[list[tuple[int, list[int] | str]]]:
        """Write a thought for every prompt that depends on its seed only; every other one does not come to its end."""
        for place, draw in enumerate(draws):
            text = f" Thought {draw.seed % 1000}.{chr(10) * 2 * (draw.seed % 2)}"
            yield [(place, self.tokenizer.encode(text)[: sampling.max_new_tokens])]

    def describe(self, *, measure: bool = False) -> Description:
        """Describe it for tables."""
        from geval_local.models.precision import Precision

        return Description("", None, None, Precision("a mock"), is_on_cpu=True)

    def check_files(self) -> None:
        """Do nothing: there are no files."""

    def close(self) -> None:
        """Do nothing: there is no memory to give back."""


class MockJudge(Judge):
    """A judge whose read-outs come from a `MockEngine`; everything else works as in a real judge.

    Parameters
    ----------
    engine : MockEngine, optional
        The engine; a default one when absent.
    tokenizer : PreTrainedTokenizerBase, optional
        A tokenizer with a fast backend; one token per byte when absent.
    style : {"completion", "chat", "chat-no-prefill"}
        Prompt style.
    context : int
        Longest prompt, in tokens.
    name : str
        Name of the judge.
    options : JudgeOptions, optional
        Whether and how it thinks.
    """

    engine: MockEngine

    def __init__(
        self,
        engine: MockEngine | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        style: Style = "completion",
        context: int = 1 << 20,
        name: str = "mock",
        options: JudgeOptions | None = None,
    ) -> None:
        engine = engine if engine is not None else MockEngine()
        tokenizer = tokenizer if tokenizer is not None else byte_tokenizer()
        super().__init__(MockBackend(engine, tokenizer, style=style, context=context, name=name), options)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
