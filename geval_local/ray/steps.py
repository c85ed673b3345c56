"""Evaluation steps in a distributed run: a worker writes them, this machine pins them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from geval_local.errors import GevalError, JudgeError
from geval_local.judge.steps import OnSteps, pinned_steps
from geval_local.metric import Metric
from geval_local.prompt import Prompt
from geval_local.ray.cluster import cluster_share
from geval_local.runs.manifest import JudgeRecord

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

#: Seconds between two questions how far the steps are.
_ASKED_SECONDS = 1.0


def steps_by_worker(
    load: Callable[[JudgeRecord], Judge],
    record: JudgeRecord,
    metrics: Sequence[Metric],
    workers: int | None,
    on_steps: OnSteps,
) -> list[Metric]:
    """Give metrics their steps: their own, those pinned on this machine, or ones that a worker writes, pinned here."""
    import ray

    share = cluster_share(workers, record)
    # It is asked how far it is while it writes.
    remote = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, max_concurrency=2)
    actor = remote(_Writer).remote(load, record)
    try:
        writer = _RemoteJudge(record.name, actor)
        return [pinned_steps(writer, metric, on_steps=on_steps)[0] for metric in metrics]
    except ray.exceptions.RayError as error:
        raise JudgeError(f"the worker of {record.name} failed: {str(error).strip()}") from error
    finally:
        ray.kill(actor)  # its GPU is wanted


class _Writer:
    """The judge, on a worker; what the package raises goes back as a value."""

    def __init__(self, load: Callable[[JudgeRecord], Judge], record: JudgeRecord) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        self._load = load
        self._record = record
        self._tokens = 0

    def about(self) -> tuple[str, bool, str] | GevalError:
        try:
            self._judge = self._load(self._record)
            return self._judge.fingerprint, self._judge.is_chat, self._judge.generation
        except GevalError as error:
            return error

    def write(self, prompt: Prompt, most: int) -> str | GevalError:
        try:
            return self._judge.continue_text(prompt, max_new_tokens=most, on_token=self._count)
        except GevalError as error:
            return error

    def tokens(self) -> int:
        return self._tokens

    def _count(self, tokens: int) -> None:
        self._tokens = tokens


class _RemoteJudge:
    """The judge as `pinned_steps` needs it, see `geval_local.judge.steps.StepsWriter`."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor
        self.fingerprint, self.is_chat, self.generation = self._value(actor.about.remote())

    def continue_text(self, prompt: Prompt, *, max_new_tokens: int, on_token: Callable[[int], object]) -> str:
        import ray

        written = self._actor.write.remote(prompt, max_new_tokens)
        while not ray.wait([written], timeout=_ASKED_SECONDS)[0]:
            on_token(ray.get(self._actor.tokens.remote()))
        return str(self._value(written))

    def _value(self, reference: Any) -> Any:
        import ray

        value = ray.get(reference)
        if isinstance(value, GevalError):
            raise value
        return value
