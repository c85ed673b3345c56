"""Ray: resources of a cluster divided among workers, and blocks scored by an actor pool of Ray Data.

The driver sends the location of a block and receives its report. Ray Data assigns blocks to actors, restarts dead
actors, and reassigns their blocks; reports arrive in the order of completion. `own_cluster` starts clusters and limits
what they contact.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from geval_local.errors import ConfigurationError, GevalError, JudgeError
from geval_local.ray.blocks import Cut, SourceFile, Survey, survey
from geval_local.ray.messages import Job, Task, error_of, pack, told, unpack
from geval_local.ray.worker import BlockScorer
from geval_local.runs.manifest import JudgeRecord

if TYPE_CHECKING:
    import pyarrow as pa
    import ray

    from geval_local.judge.judge import Judge

_GONE = (
    "A killed worker has often run out of memory: fewer `workers`, or smaller `batch_tokens`, may help. If the cluster "
    "itself is gone, start it again."
)


class WorkerShare(NamedTuple):
    """Number of workers, and the resources of each."""

    workers: int
    cpus: int
    gpus: int


def share_out(nodes: Sequence[Mapping[str, float]], workers: int | None, choice: Mapping[str, Any]) -> WorkerShare:
    """Divide a cluster among workers."""
    device = str(choice.get("device", ""))
    if device.startswith("cuda:"):
        raise ConfigurationError(
            f"`device={device}` names one GPU, and `distributed` gives every worker one of its own",
            hint="Leave `device` out.",
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
    """Return the largest number of units per worker with no worker on two machines; 0 if there are too few."""
    shares = range(max(counts, default=0), 0, -1)
    return next((share for share in shares if sum(count // share for count in counts) >= workers), 0)


def _too_many(workers: int, there: str) -> ConfigurationError:
    return ConfigurationError(
        f"the cluster has {there}, not enough for {workers} workers",
        hint="Ask for fewer with `workers`, or add machines with `ray start --address=HEAD:6379`.",
    )


def cluster_share(workers: int | None, record: JudgeRecord) -> WorkerShare:
    """Divide the connected cluster; see `share_out`."""
    import ray

    return share_out([node["Resources"] for node in ray.nodes() if node["Alive"]], workers, record.choice)


def survey_files(files: Sequence[SourceFile], cut: Cut) -> Generator[Survey, None, None]:
    """Survey files on the connected cluster, in any order; see `geval_local.ray.blocks.survey`."""
    with quietly(), plain_failures("the survey of the input"):
        records = [{"address": file.address, "bytes": file.bytes, "changed": file.changed} for file in files]
        found = handed_out(records).map_batches(partial(_survey, cut=cut), batch_size=1, batch_format="pyarrow")
        for record in _records(found):
            error = error_of(record)
            if error is not None:
                raise error
            yield Survey.from_record(record)


def _survey(table: pa.Table, cut: Cut) -> pa.Table:
    (record,) = unpack(table)
    try:
        return pack([survey(SourceFile(**record), cut).to_record()])
    except GevalError as error:
        return pack([told(error)])


def score_blocks(
    tasks: Sequence[Task],
    load: Callable[[JudgeRecord], Judge],
    job: Job,
    workers: int | None,
    *,
    alone: bool = False,
) -> Generator[dict[str, Any], None, None]:
    """Score blocks on the connected cluster, in any order."""
    from ray.data import ActorPoolStrategy

    record = JudgeRecord.model_validate(job.judge)
    share = cluster_share(workers, record)
    with quietly(), plain_failures(f"the workers of {record.name}"):
        options: dict[str, Any] = {"max_tasks_in_flight_per_actor": 1 if alone else 2}
        known = inspect.signature(ActorPoolStrategy.__init__).parameters
        if not alone and {"enable_true_multi_threading", "max_concurrent_calls_per_actor"} <= set(known):
            # The next block is read, and the last one written, while the model computes.
            options |= {"enable_true_multi_threading": True, "max_concurrent_calls_per_actor": 2}
        reports = handed_out([task.to_record() for task in tasks]).map_batches(
            BlockScorer,
            fn_constructor_args=(load, job),
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=min(share.workers, len(tasks)), **options),
            num_cpus=share.cpus,
            num_gpus=share.gpus,
        )
        yield from _records(reports)


def handed_out(records: Sequence[Mapping[str, Any]]) -> ray.data.Dataset:
    """Make a data set of one record per block, which Ray Data gives to workers one by one.

    `from_arrow_refs` would start a task for every block, only to learn its size.
    """
    import ray

    return ray.data.from_blocks([pack([record]) for record in records])


def _records(data: Any) -> Iterator[dict[str, Any]]:
    for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from unpack(table)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress Ray Data's progress bars and log messages."""
    from ray.data import DataContext

    context, logger = DataContext.get_current(), logging.getLogger("ray.data")
    names = ("enable_progress_bars", "print_on_execution_start")
    before, level = {name: getattr(context, name) for name in names}, logger.level
    context.enable_progress_bars = context.print_on_execution_start = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        logger.setLevel(level)


@contextmanager
def plain_failures(what: str) -> Iterator[None]:
    """Turn errors of Ray into a `JudgeError` that names what failed."""
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        raise JudgeError(f"{what} failed: {str(error).strip()}", hint=_GONE) from error
