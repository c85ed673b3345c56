"""The transformers backend: a model in this process, read by `geval_local.models.load`, its engine found by probing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from geval_local import __version__
from geval_local.engine.backend import BackendFacts, Description, Draw, EngineReport, Finding, Sampling, SelfCheck
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine
from geval_local.engine.interface import Engine
from geval_local.engine.self_check import CHECKS, check_engine
from geval_local.models.generate import (
    BEAMS,
    Paragraph,
    generate_list,
    generate_paragraphs,
    generate_samples,
    generation_text,
    may_share_batch,
)
from geval_local.models.guard import guarded
from geval_local.models.head import Head, input_device
from geval_local.models.load import CheckedJudge, LoadedModel, check_judge, own_sampling, read_model
from geval_local.models.memory import is_out_of_memory, release_memory, unless_memory_runs_out
from geval_local.models.precision import dtype_name, measured
from geval_local.models.registry import JudgeEntry, entry_of
from geval_local.models.verdicts import verdict_of
from geval_local.options import EngineName, JudgeOptions

DEFAULT_CONTEXT = 1 << 20
#: Texts that are drawn side by side, and given out together.
TEXTS_AT_ONCE = 32
#: Versions that a score depends on, under the keys of a signature.
VERSIONS: Mapping[str, str] = {
    "transformers": transformers.__version__,
    "torch": torch.__version__,
    "version": __version__,
}
_T = TypeVar("_T")


def check(options: JudgeOptions) -> CheckedJudge:
    """Check that a judge can be loaded, without reading its weights; errors as for `Judge.load`."""
    return check_judge(entry_of(options), options)


def read(checked: CheckedJudge) -> TransformersBackend:
    """Read the weights of a checked judge, and choose its engine."""
    options = checked.options

    @guarded
    def read() -> TransformersBackend:
        return TransformersBackend(read_model(checked), batch_tokens=options.batch_tokens, engine=options.engine)

    return in_own_thread(read)


class TransformersBackend:
    """A transformers model with its engine.

    Parameters
    ----------
    loaded : LoadedModel
        The loaded model.
    batch_tokens : int, optional
        Most tokens per forward pass; chosen by device when absent.
    engine : {"auto", "trie", "cache", "padded"}
        See `geval_local.options.JudgeOptions`.
    """

    def __init__(self, loaded: LoadedModel, *, batch_tokens: int | None = None, engine: EngineName = "auto") -> None:
        self.loaded = loaded
        self.entry = loaded.entry
        self.tokenizer = loaded.tokenizer
        self.engine: Engine
        self.engine, report = choose_engine(
            loaded.model,
            Head(loaded.model),
            engine,
            batch_tokens=batch_tokens,
            verdict=verdict_of(loaded.model, loaded.fingerprint),
        )
        self.facts = _facts(loaded, report, self.engine.batch_tokens)

    def alone(self) -> Engine:
        """See `geval_local.engine.backend.Backend.alone`."""
        model = self.loaded.model
        return PaddedEngine(model, Head(model), batch_tokens=1, turn=self.engine.turn)

    def write_list(self, ids: NDArray[np.int32], *, max_new_tokens: int, on_token: Callable[[int], object]) -> str:
        """See `geval_local.engine.backend.Backend.write_list`."""
        model, tokenizer, beams = self.loaded.model, self.loaded.tokenizer, _beams(self.entry)
        with self.engine.turn:
            return generate_list(model, tokenizer, ids, max_new_tokens=max_new_tokens, beams=beams, on_token=on_token)

    def write_paragraphs(
        self, prompts: Sequence[NDArray[np.int32]], *, max_new_tokens: int, on_token: Callable[[int], object]
    ) -> list[Paragraph]:
        """See `geval_local.engine.backend.Backend.write_paragraphs`."""
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        write = partial(generate_paragraphs, model, tokenizer, prompts, max_new_tokens=max_new_tokens)
        try:
            with self.engine.turn:
                return write(on_token=on_token)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        release_memory()
        raise MemoryError(f"no memory to write {len(prompts)} paragraphs at once")

    def sample(self, draws: Sequence[Draw], sampling: Sampling) -> Iterator[list[tuple[int, list[int] | str]]]:
        """See `geval_local.engine.backend.Backend.sample`: the longest prompts first; fewer if memory runs out."""
        waiting = sorted(range(len(draws)), key=lambda place: (-len(draws[place].ids), draws[place].ids.tobytes()))
        slots = TEXTS_AT_ONCE
        while waiting:
            batch = [draws[one] for one in waiting[:slots]]
            while len(batch) > 1 and not may_share_batch(
                self.loaded.model, [len(draw.ids) for draw in batch], sampling.max_new_tokens
            ):
                batch = batch[: len(batch) // 2]
            write = partial(
                generate_samples,
                self.loaded.model,
                self.loaded.tokenizer,
                [draw.ids for draw in batch],
                [draw.seed for draw in batch],
                sampling.is_over,
                max_new_tokens=sampling.max_new_tokens,
                drawing=sampling.drawing,
            )
            with self.engine.turn:
                texts = unless_memory_runs_out(write)
            if texts is None:
                slots = len(batch) // 2
                if not slots:
                    raise MemoryError("no memory to write one thought")
                continue
            yield list(zip(waiting, texts, strict=False))
            waiting = waiting[len(batch) :]

    def describe(self, *, measure: bool = False) -> Description:
        """See `geval_local.engine.backend.Backend.describe`."""
        loaded = self.loaded
        precision = loaded.precision
        if measure:
            with self.engine.turn:
                precision = measured(precision, loaded.model, loaded.tokenizer, style=loaded.entry.style)
        return Description(
            place=str(loaded.directory),
            parameters=loaded.parameters,
            memory_bytes=loaded.memory_bytes,
            precision=precision,
            is_on_cpu=input_device(loaded.model).type == "cpu",
        )

    @property
    def checks(self) -> Sequence[str]:
        """See `geval_local.engine.backend.Backend.checks`."""
        return tuple(CHECKS)

    def self_check(self, found: Callable[[Finding], object]) -> SelfCheck:
        """See `geval_local.engine.backend.Backend.self_check`."""
        with self.engine.turn:
            return check_engine(self.loaded.model, self.engine, self.facts.report, found)

    def check_files(self) -> None:
        """See `geval_local.models.load.LoadedModel.check_files`."""
        self.loaded.check_files()

    def close(self) -> None:
        """See `geval_local.engine.backend.Backend.close`."""
        del self.loaded, self.engine
        release_memory()


def _beams(entry: JudgeEntry) -> int:
    return 1 if entry.is_asked_in_chat else BEAMS


def _facts(loaded: LoadedModel, report: EngineReport, batch_tokens: int) -> BackendFacts:
    """State the facts of a loaded model."""
    config: Any = loaded.model.config.get_text_config()
    limits = [loaded.entry.context, getattr(config, "max_position_embeddings", None)]
    return BackendFacts(
        label=loaded.entry.label,
        fingerprint=loaded.fingerprint,
        setup={
            "tokenizer": loaded.tokenizer_hash,
            "dtype": dtype_name(loaded.dtype) + _quantization(loaded.model),
            "attention": loaded.attention,
            **VERSIONS,
        },
        context=min((int(limit) for limit in limits if limit), default=DEFAULT_CONTEXT),
        precision=loaded.precision.text(dtype_name(loaded.dtype)),
        report=report,
        batch_tokens=batch_tokens,
        generation=generation_text(loaded.model, _beams(loaded.entry)),
        sampling=own_sampling(loaded.directory),
    )


def _quantization(model: Any) -> str:
    """Return the quantization applied while loading, which the weights' fingerprint does not include."""
    return next((f"+{bits}bit" for bits in (4, 8) if getattr(model, f"is_loaded_in_{bits}bit", False)), "")


def in_own_thread(work: Callable[[], _T]) -> _T:
    """Do some work in a thread that ends with it, and return its result or raise its exception.

    On a CPU, a thread that has run a model keeps a team of OpenMP threads as long as it lives. Two teams are more
    threads than cores, and libgomp then puts waiting ones to sleep at every small operation: with the embedded judge,
    probed by the main thread and used by another (a batcher, a server), a batch took 1.5 to 2 times as long.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    # A daemon: whoever interrupts the wait does not want to wait for the end of loading.
    thread = threading.Thread(target=run, name="geval-local loading", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
