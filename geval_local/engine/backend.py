"""Backend: what a judge is made of. Weights, tokenizer, device, engine and writing belong to it.

A `Judge` keeps steps, identity and signature, and asks its backend for the rest. Nothing outside of a backend's module
knows which one it is; what a backend cannot keep it states in its facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from geval_local.thinking import AS_IT_IS, Drawing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

    from geval_local.engine.interface import Engine
    from geval_local.models.generate import Paragraph
    from geval_local.models.precision import Precision
    from geval_local.models.registry import JudgeEntry


@dataclass(frozen=True)
class EngineReport:
    """The engine of a model, and the reason for it."""

    #: ``trie``, ``cache`` or ``padded``; ``vllm`` or ``served`` where another program computes.
    engine: str
    #: Why no engine that shares more is used; None if it is the first choice or was requested.
    reason: str | None = None
    #: Difference (nats) of label log-probabilities between this engine and one prompt at a time, see `probe.TOLERANCE`;
    #: in float32 if a half-precision model fits into memory that way. None if there was no probe.
    difference: float | None = None
    #: Largest allowed difference.
    tolerance: float | None = None
    #: Length of the longest probe prompt.
    probe_tokens: int = 0
    #: The model's smallest sliding window, or the chunk of its recurrent layers, if the probe was too short to reach
    #: it.
    window: int | None = None
    #: Further remarks: parts that the probe had to skip.
    note: str | None = None
    #: Whether memory or a missing package cut the probe short, so that the next start probes again.
    is_cut_short: bool = False
    #: Whether a kernel computes the attention of some of its layers; keys of the kinds that it does not serve, and why.
    has_kernel: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    #: What `difference` is measured against.
    against: str = "the model's own passes"

    @property
    def is_usual(self) -> bool:
        """Whether the first choice serves, and nothing is to be said of it."""
        return self.reason is None and self.window is None and self.note is None

    @property
    def text(self) -> str:
        """The report in one line."""
        better = "prefix sharing" if self.engine == "padded" else "trie"
        notes = [] if self.reason is None else [f"no {better}: {self.reason}"]
        if self.difference is not None:
            of = f"{self.against} on {self.probe_tokens} tokens"
            notes.append(f"differs by {self.difference:.1e} nats from {of}")
        if self.window is not None:
            notes.append(f"window {self.window} not reached")
        if self.note is not None:
            notes.append(self.note)
        return f"{self.engine} ({', '.join(notes)})" if notes else self.engine


@dataclass(frozen=True)
class BackendFacts:
    """What a backend is, apart from its weights."""

    #: Name of the judge, with an adapter's, and the content hash of its weights.
    label: str
    fingerprint: str
    #: The settings that it runs with, under the keys of a signature.
    setup: Mapping[str, str]
    #: Longest prompt in tokens, including the label's tokens.
    context: int
    #: The dtype that it runs in, the reason, and its measured effect on a score.
    precision: str
    #: Its engine, and the tokens of the engine's packs.
    report: EngineReport
    batch_tokens: int
    #: How it writes evaluation steps, for the record; no setting of the model's own directory counts.
    generation: str = "greedy"
    #: Whether a unit gives the same bits whenever it is executed, so that a resumed run gives equal bytes.
    is_reproducible: bool = True
    #: Whether it computes on this machine's devices, by settings that are chosen here.
    is_here: bool = True
    #: How the model's own files say that it is to draw.
    sampling: Drawing = AS_IT_IS

    def identity(self, engine: str) -> str:
        """Identify everything a read-out depends on besides the prompt's tokens and the labels.

        Metric, steps and style are in the tokens, and the estimator is applied afterwards. Names do not count.
        """
        parts = {"judge": self.fingerprint, **self.setup, "engine": engine}
        return "|".join(f"{name}:{value}" for name, value in parts.items())


@dataclass(frozen=True)
class Sampling:
    """How texts are drawn."""

    #: From what distribution.
    drawing: Drawing
    #: Most new tokens of a text.
    max_new_tokens: int
    #: Whether a text is over, given its new part and its number of tokens. What a program writes beyond is cut off by
    #: whoever asked, so that a backend may look seldom, or not at all.
    is_over: Callable[[str, int], bool]
    #: A text is over where it holds this behind its first word; empty if `is_over` knows other ends.
    mark: str = ""


@dataclass(frozen=True)
class Draw:
    """One text to draw."""

    #: The prompt's tokens.
    ids: NDArray[np.int32]
    #: Seed of its draws, 0 to 2**63 - 1: the text depends on prompt and seed, not on what is drawn with it.
    seed: int


@dataclass(frozen=True)
class Description:
    """A backend in a table: place, size, and how it computes."""

    #: Directory of its files, or the GGUF file, or an address.
    place: str
    #: Number of weights, tied ones counted once, and their memory in bytes; None if unknown.
    parameters: int | None
    memory_bytes: int | None
    #: Reason for the dtype, and its effect on a score.
    precision: Precision
    is_on_cpu: bool
    #: File of the same weights that this package's own engine can read, where another program computes.
    file: Path | None = None


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

    #: What was checked.
    name: str
    #: None where there is nothing to pass: a figure, or a check that does not apply; `text` says why.
    passed: bool | None
    #: One line for people.
    text: str
    #: The same for programs: plain JSON values.
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SelfCheck:
    """All that was found out about a judge on its device."""

    #: What computes, and how: plain JSON values.
    device: Mapping[str, Any]
    #: In the order of the checks.
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(finding.name for finding in self.findings if finding.passed is False)


class Backend(Protocol):
    """What a judge is made of.

    Attributes
    ----------
    entry : JudgeEntry
        The entry of the judge.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer, with a fast backend.
    facts : BackendFacts
        What stands in signatures and reports.
    engine : Engine
        What reads label log-probabilities; its name is that of the program, where another one computes.
    """

    entry: JudgeEntry
    tokenizer: PreTrainedTokenizerBase
    facts: BackendFacts
    engine: Engine

    def alone(self) -> Engine:
        """Return an engine that reads one prompt at a time: the reference of an audit."""

    def write_list(self, ids: NDArray[np.int32], *, max_new_tokens: int, on_token: Callable[[int], object]) -> str:
        """Continue a prompt with a numbered list, never sampled; `on_token` takes the number of new tokens."""

    def write_paragraphs(
        self, prompts: Sequence[NDArray[np.int32]], *, max_new_tokens: int, on_token: Callable[[int], object]
    ) -> list[Paragraph]:
        """Continue several prompts by one paragraph each, never sampled; MemoryError if memory ran out."""

    def sample(self, draws: Sequence[Draw], sampling: Sampling) -> Iterator[list[tuple[int, list[int] | str]]]:
        """Draw continuations, in batches of the backend's choice: their numbers and new tokens, up to an end token.

        The batches are a function of the draws, or a text does not depend on its batch. Without those of the first
        batches, the others stay as they are. A text that another program did not write is the reason for that.
        """

    def describe(self, *, measure: bool = False) -> Description:
        """Describe it for tables; with `measure`, the effect of half precision on a score is measured."""

    @property
    def checks(self) -> Sequence[str]:
        """Names of what `self_check` checks, in order; empty if there is nothing to check, as kernels of a program."""
        return ()

    def self_check(self, found: Callable[[Finding], object]) -> SelfCheck:
        """Check what computes on its device; `found` takes every finding at once."""
        return SelfCheck({}, ())

    def check_files(self) -> None:
        """Tell, once, that files were written to or replaced since they were read."""

    def close(self) -> None:
        """Give the memory back; it cannot be used afterwards."""
