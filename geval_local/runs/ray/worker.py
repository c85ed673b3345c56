"""What a worker of a distributed run does: load the judge once, then score the shards that it is given.

It knows nothing of Ray: tables of one task in, tables of one result out. What the package raises goes back as a value,
so that the user is told what is wrong, and not that a worker failed.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from geval_local import __version__
from geval_local.errors import ConfigurationError, GevalError
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.runs.executor import Window, Worker
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.ray.attempts import attempt
from geval_local.runs.ray.part_records import PartRow
from geval_local.runs.ray.shards import Shard
from geval_local.runs.run import Identity
from geval_local.runs.store import MemoryStore, PlanRecord
from geval_local.score import Estimator

if TYPE_CHECKING:
    import pyarrow as pa

    from geval_local.judge import Judge

__all__ = ["ShardResult", "ShardScorer", "ShardTask", "open_result", "pack"]


@dataclass(frozen=True)
class ShardTask:
    """What is left of a shard.

    Attributes
    ----------
    shard : Shard
        Whose rows.
    samples : sequence of Sample
        All of its rows.
    places : sequence of sequence of int
        Per metric, the places in `samples` of the rows to be scored.
    """

    shard: Shard
    samples: Sequence[Sample]
    places: Sequence[Sequence[int]]


@dataclass(frozen=True)
class ShardResult:
    """What a worker makes of a task.

    Attributes
    ----------
    shard : Shard
        Of the task.
    judge : Identity
        Who scored it.
    rows : list of PartRow
        The outcomes.
    plans : list of PlanRecord
        Tokens, per metric.
    """

    shard: Shard
    judge: Identity
    rows: list[PartRow]
    plans: list[PlanRecord]


class ShardScorer:
    """Scores shards.

    Parameters
    ----------
    load : callable
        Loads the judge.
    record : JudgeRecord
        The judge as the run knows it; its token budget, where there is one, holds here too.
    metrics : sequence of Metric
        With their final evaluation steps.
    estimator : mapping
        Fields of `Estimator`, for the signatures.
    session : str
        The driver's, see `attempt`.
    """

    def __init__(
        self,
        load: Callable[[JudgeRecord], Judge],
        record: JudgeRecord,
        metrics: Sequence[Metric],
        estimator: Mapping[str, Any],
        session: str,
    ) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub client
        self._metrics = metrics
        self._session = session
        self._failure: GevalError | None = None
        try:
            self._judge = judge = load(record)
            if record.batch_tokens is not None:
                judge.engine.batch_tokens = judge.engine.limit = record.batch_tokens
            signatures = {metric.name: str(judge.signature(metric, Estimator(**estimator))) for metric in metrics}
            self._identity = Identity(judge.fingerprint, judge.engine.name, judge.engine.batch_tokens, signatures)
        except GevalError as error:
            self._failure = error

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score one task: a table by `pack` in, a table for `open_result` out."""
        (row,) = table.to_pylist()
        try:
            task = _unpacked(row, "the driver runs", "a worker")
            assert isinstance(task, ShardTask)
            with attempt(self._session, task.shard):
                return pack(self.score(task))
        except GevalError as error:
            return pack(error)

    def score(self, task: ShardTask) -> ShardResult:
        """Score what is left of a shard; packs depend on its texts alone.

        Raises
        ------
        GevalError
            If the judge could not be loaded, or cannot score these metrics.
        """
        if self._failure is not None:
            raise self._failure
        rows: list[PartRow] = []
        plans: list[PlanRecord] = []
        for number, (metric, places) in enumerate(zip(self._metrics, task.places, strict=True)):
            samples = [task.samples[place] for place in places]
            prepared = [self._judge.prepare(metric, samples)]
            window = Window(0, 0, samples, (prepared,))
            store = MemoryStore()
            worker = Worker(store, None, self._judge, 0, advance=lambda count: None, should_stop=lambda: False)
            worker.execute(window, [0], prepared)
            outcomes, origins = store.outcomes(0, 0, 0, len(samples)), store.origins(0, 0, 0, len(samples))
            totals = store.totals(0, 0)
            rows += [
                PartRow(task.shard.rows[place], number, origins[index], outcomes[index])
                for index, place in enumerate(places)
            ]
            plans.append(PlanRecord(totals["prompt_tokens"], totals["planned_tokens"]))
        return ShardResult(task.shard, self._identity, rows, plans)


def pack(content: ShardTask | ShardResult | GevalError) -> pa.Table:
    """Write a task, or what came of it, as a table of one row: a row is never cut in two on its way."""
    import pyarrow as pa

    column = pa.array([pickle.dumps(content)], type=pa.large_binary())
    return pa.table({"version": pa.array([__version__]), "content": column})


def open_result(row: Mapping[str, Any]) -> ShardResult:
    """Read a result from its row.

    Raises
    ------
    GevalError
        What the worker raised, or that it runs another version of the package.
    """
    content = _unpacked(row, "a worker runs", "the driver")
    if isinstance(content, GevalError):
        raise content
    assert isinstance(content, ShardResult)
    return content


def _unpacked(row: Mapping[str, Any], other: str, own: str) -> object:
    """Unpickle what was packed by the same version; that of another one may not even load."""
    if row["version"] != __version__:
        raise ConfigurationError(
            f"{other} geval-local {row['version']}, {own} {__version__}",
            hint="Install the same version on every machine of the cluster.",
        )
    content: object = pickle.loads(row["content"])
    return content
