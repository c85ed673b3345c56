"""Ray: a cluster shared out among workers, and shards through an actor pool of Ray Data.

The driver puts every task into Ray's object store, which spills to disk, so its own memory holds one window at a time.
Ray Data gives the tasks to the actors, restarts actors that die, and gives their tasks out again; results come in the
order in which they are finished. How a cluster is begun, and what it may contact, is in `own_cluster`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from geval_local.errors import ConfigurationError, JudgeError
from geval_local.metric import Metric
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.ray.worker import ShardResult, ShardScorer, ShardTask, open_result, pack

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["WorkerShare", "cluster_share", "score_shards", "share_out"]


class WorkerShare(NamedTuple):
    """What each of so many workers gets of a cluster."""

    workers: int
    cpus: int
    gpus: int


def share_out(nodes: Sequence[Mapping[str, float]], workers: int | None, choice: Mapping[str, Any]) -> WorkerShare:
    """Share a cluster out among workers.

    Parameters
    ----------
    nodes : sequence of mapping
        Per machine, its ``CPU`` and ``GPU``.
    workers : int or None
        How many there are to be. Absent: one per GPU, or one per machine where there are none.
    choice : mapping
        How the judge is loaded: ``device: cpu`` leaves GPUs alone; with a ``device_map`` the GPUs of the cluster are
        shared out, several to a worker where there are that many.

    Raises
    ------
    ConfigurationError
        If there is not enough for so many workers, or the judge is to be on a certain GPU.
    """
    device = str(choice.get("device", ""))
    if device.startswith("cuda:"):
        raise ConfigurationError(
            f"--device {device} names one GPU, and --distributed gives every worker one of its own",
            hint="Leave --device out.",
        )
    gpus, cpus = ([int(node.get(name, 0)) for node in nodes] for name in ("GPU", "CPU"))
    if sum(gpus) and device != "cpu":
        each = 1
        if choice.get("device_map") is not None:
            each = _largest_share(gpus, workers or sum(count > 0 for count in gpus))
        places = sum(count // each for count in gpus) if each else 0
        workers = workers or places
        if workers > places:
            raise _too_many(workers, f"{sum(gpus)} GPUs")
        return WorkerShare(workers, min(1, sum(cpus) // workers), each)
    workers = workers or max(1, sum(count > 0 for count in cpus))
    each = _largest_share(cpus, workers)
    if not each:
        raise _too_many(workers, f"{sum(cpus)} CPUs")
    return WorkerShare(workers, each, 0)


def _largest_share(counts: Sequence[int], workers: int) -> int:
    """Say how many units each of so many workers can have if none is spread over two machines; 0 if not even one."""
    shares = range(max(counts, default=0), 0, -1)
    return next((share for share in shares if sum(count // share for count in counts) >= workers), 0)


def _too_many(workers: int, there: str) -> ConfigurationError:
    return ConfigurationError(
        f"the cluster has {there}, not enough for {workers} workers",
        hint="Ask for fewer with --workers, or add machines with `ray start --address=HEAD:6379`.",
    )


def cluster_share(workers: int | None, record: JudgeRecord) -> WorkerShare:
    """Share out the cluster that is connected; see `share_out`."""
    import ray

    return share_out([node["Resources"] for node in ray.nodes() if node["Alive"]], workers, record.choice)


def score_shards(
    tasks: Iterable[ShardTask],
    load: Callable[[JudgeRecord], Judge],
    record: JudgeRecord,
    metrics: Sequence[Metric],
    estimator: Mapping[str, Any],
    workers: int | None,
) -> Generator[ShardResult, None, None]:
    """Score shards on the cluster that is connected, in any order.

    Parameters
    ----------
    tasks : iterable of ShardTask
        Read to its end before work begins.
    load, record, metrics, estimator
        See `ShardScorer`; `load` must be picklable.
    workers : int or None
        See `share_out`.

    Raises
    ------
    JudgeError
        If workers cannot be started, or one shard keeps killing them.
    GevalError
        What a worker raises.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    share = cluster_share(workers, record)
    references = [ray.put(pack(task)) for task in tasks]
    context = DataContext.get_current()
    before = context.enable_progress_bars, context.print_on_execution_start
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        results = ray.data.from_arrow_refs(references).map_batches(
            ShardScorer,
            fn_constructor_args=(load, record, metrics, estimator, secrets.token_hex(8)),
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=min(share.workers, len(references)), max_tasks_in_flight_per_actor=2),
            num_cpus=share.cpus,
            num_gpus=share.gpus,
        )
        del references
        for batch in results.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for row in batch.to_pylist():
                yield open_result(row)
    except ray.exceptions.RayError as error:
        raise JudgeError(
            f"the workers of {record.name} failed: {str(error).strip()}",
            hint="A worker that is killed is often one that ran out of memory: fewer --workers, or smaller "
            "--batch-tokens, may help.",
        ) from error
    finally:
        context.enable_progress_bars, context.print_on_execution_start = before
