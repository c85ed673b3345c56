"""Ray: resources of a cluster divided among workers, and blocks surveyed, gathered and scored by Ray Data.

The driver sends the location of a block and receives its report. Ray Data assigns blocks to actors, restarts dead
actors, and reassigns their blocks; reports arrive in the order of completion.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from geval_local.errors import ConfigurationError, GevalError, JudgeError
from geval_local.judge.steps import OnSteps, pinned_steps
from geval_local.metric import Metric
from geval_local.options import JudgeOptions
from geval_local.prompt import Prompt
from geval_local.ray.block_list import longest_first
from geval_local.ray.blocks import Block
from geval_local.ray.gather import rows_of_block, write_bucket
from geval_local.ray.job import Job, PartReport
from geval_local.ray.parts_directory import write_survey
from geval_local.ray.survey import Cut, bundled, is_read_in_order, survey
from geval_local.ray.worker import BlockScorer
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.settings import Settings

if TYPE_CHECKING:
    import ray

    from geval_local.judge.judge import Judge


logger = logging.getLogger("geval_local")

#: Seconds from which a survey is kept next to the parts when it has ended, for a later resume.
_LONG_SECONDS = 30.0
#: Seconds between two questions for the number of surveyed rows.
_ASK_SECONDS = 2.0


class WorkerShare(NamedTuple):
    """Number of workers, and the resources of each."""

    workers: int
    cpus: int
    gpus: int


def share_out(nodes: Sequence[Mapping[str, float]], workers: int | None, options: JudgeOptions) -> WorkerShare:
    """Divide a cluster among workers that load a judge with these options."""
    if options.device is not None and options.device.startswith("cuda:"):
        raise ConfigurationError(
            f"`device={options.device}` names one GPU, and every worker gets one of its own",
            hint="Leave `device` out.",
        )
    wanted, each = _wanted_gpus(options), options.tensor_parallel or 1
    if wanted is not None and not any(node.get("GPU", 0) >= each for node in nodes):
        if workers is None:
            raise ConfigurationError(
                f"`{wanted}` asks for GPUs, and no machine of the cluster has {'one' if each == 1 else each} now",
                hint="Start those that have, or say by `workers` how many GPUs an autoscaler is to bring.",
            )
        return WorkerShare(workers, 0, each)
    gpus, cpus = ([int(node.get(name, 0)) for node in nodes] for name in ("GPU", "CPU"))
    on_gpus = sum(gpus) > 0 and options.device != "cpu" and options.backend.uses_devices
    units = gpus if on_gpus else cpus
    if not on_gpus or options.device_map is not None:
        each = _largest_share(units, workers)
    places = sum(count // each for count in units) if each else 0
    if places < (workers or 1):
        raise ConfigurationError(
            f"the cluster has {sum(units)} {'GPUs' if on_gpus else 'CPUs'}, not enough for {workers or 1} workers",
            hint="Ask for fewer with `workers`, or add machines with `ray start --address=HEAD:6379`.",
        )
    workers = workers or places
    return WorkerShare(workers, min(1, sum(cpus) // workers), each) if on_gpus else WorkerShare(workers, each, 0)


def _wanted_gpus(options: JudgeOptions) -> str | None:
    """Return the option that asks for GPUs."""
    if options.tensor_parallel is not None:
        return f"tensor_parallel={options.tensor_parallel}"
    return "device=cuda" if options.device == "cuda" else None


def _largest_share(counts: Sequence[int], workers: int | None) -> int:
    """Return the largest number of units per worker with no worker on two machines; 0 if there are too few."""
    workers = workers or max(1, sum(count > 0 for count in counts))
    shares = range(max(counts, default=0), 0, -1)
    return next((share for share in shares if sum(count // share for count in counts) >= workers), 0)


def cluster_share(workers: int | None, record: JudgeRecord) -> WorkerShare:
    """Divide the connected cluster; see `share_out`."""
    return share_out(_nodes_resources(), workers, JudgeOptions(**record.choice))


def _nodes_resources() -> list[Mapping[str, float]]:
    """Return the resources of the machines of the connected cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def check_gpus(share: WorkerShare, options: JudgeOptions, address: str | None, gpus: float) -> None:
    """Log that a judge runs on CPUs because there is no GPU; refuse to wait for GPUs that nobody would add."""
    if share.gpus and not gpus and address is None:
        raise ConfigurationError(
            f"`{_wanted_gpus(options)}` asks for GPUs, and this machine has none",
            hint="Leave it out to compute on CPUs.",
        )
    if not share.gpus and options.device is None and address is not None and options.backend.uses_devices:
        logger.warning(
            "no machine of the cluster has a GPU: the judge computes on CPUs. If an autoscaler is to bring GPUs, add "
            "`%s` and `workers`%s",
            options.backend.gpu_option,
            "; `device=cpu` says that CPUs are meant" if options.backend.takes_device else "",
        )


def survey_files(files: Sequence[Block], cut: Cut) -> Generator[Block, None, None]:
    """Survey files on the connected cluster; yield their blocks in any order."""
    with working("the survey of the input", **_ROW_BY_ROW):
        yield from results_of(_blocks_of(files, cut))


def _blocks_of(
    items: Sequence[Block], cut: Cut | None, job: Job | None = None, rows: _SurveyedRows | None = None, busy: int = 0
) -> ray.data.Dataset:
    """Make a data set of blocks; the items are blocks, and files that its tasks survey first.

    `busy` is the number of processors that the workers take.
    """
    from ray.data import TaskPoolStrategy

    known = longest_first(item for item in items if item.digest)
    bundles = list(bundled(item for item in items if not item.digest))
    if not bundles or cut is None:
        return handed_out(known)
    # Large files first, but those whose blocks are only ready at their end last.
    bundles.sort(key=lambda some: (not is_read_in_order(some[0]), -sum(file.bytes for file in some)))
    # A task per processor that is left, and at least one per machine: it asks Ray for none, since none may be left.
    tasks = TaskPoolStrategy(size=min(len(bundles), survey_tasks(_nodes_resources(), busy)))
    given, tally = handed_out([*([block] for block in known), *bundles]), rows and rows.begin(len(bundles))
    return given.flat_map(partial(_survey, cut=cut, job=job, tally=tally), num_cpus=0, compute=tasks)


def survey_tasks(nodes: Sequence[Mapping[str, float]], busy: int) -> int:
    """Return how many files are surveyed at a time while workers take so many processors."""
    return max(1, sum(node.get("CPU", 0) >= 1 for node in nodes), int(sum(node.get("CPU", 0) for node in nodes)) - busy)


def _survey(row: dict[str, Any], cut: Cut, job: Job | None, tally: Any = None) -> Iterator[dict[str, Block]]:
    items, found, begin = row["item"], list[Block](), time.monotonic()
    if items[0].digest:
        yield {"item": items[0]}
        return
    for block in survey(items, cut):
        found.append(block)
        yield {"item": block}
    if tally is not None:
        failed = {block.address for block in found if block.error}
        tally.add.remote(items[0].part, sum(block.all_rows for block in found if block.address not in failed))
    if job is not None and time.monotonic() > begin + _LONG_SECONDS:
        write_survey(job.output, found, job.manifest)


class _Tally:
    """Counts surveyed rows, as an actor: the driver receives a block only when it is scored."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def add(self, bundle: str, rows: int) -> None:
        self._rows[bundle] = rows

    def rows(self, bundles: int) -> int | None:
        return sum(self._rows.values()) if len(self._rows) == bundles else None


class _SurveyedRows:
    """Number of rows of the files that a data set surveys, as soon as it is known."""

    def __init__(self) -> None:
        self._tally: Any = None
        self._bundles = 0
        self._next = 0.0

    def begin(self, bundles: int) -> Any:
        """Start counting; return the actor that counts."""
        import ray

        self._bundles = bundles
        self._tally = ray.remote(num_cpus=0)(_Tally).remote()
        return self._tally

    def ask(self) -> int | None:
        """Return the number of rows; None while it is not known."""
        import ray

        if self._tally is None or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _ASK_SECONDS
        with suppress(ray.exceptions.RayError):  # its machine is gone: the number stays unknown
            return ray.get(self._tally.rows.remote(self._bundles), timeout=_ASK_SECONDS)  # type: ignore[no-any-return]
        return None


def score_blocks(
    items: Sequence[Block], load: Callable[[JudgeRecord], Judge], job: Job
) -> Generator[PartReport, None, None]:
    """Score blocks on the connected cluster, in any order, and blocks of files as soon as their survey yields them."""
    import ray
    from ray.data import ActorPoolStrategy

    (record,) = job.manifest.judges
    settings = job.manifest.settings
    share = cluster_share(settings.ray_workers, record)
    check_gpus(share, JudgeOptions(**record.choice), settings.address, ray.cluster_resources().get("GPU", 0))
    with working(f"the workers of {record.name}", **_ROW_BY_ROW):
        options: dict[str, Any] = {"max_tasks_in_flight_per_actor": 1 if job.alone else 2}
        known = inspect.signature(ActorPoolStrategy.__init__).parameters
        if not job.alone and {"enable_true_multi_threading", "max_concurrent_calls_per_actor"} <= set(known):
            # The next block is read, and the last one written, while the model computes.
            options |= {"enable_true_multi_threading": True, "max_concurrent_calls_per_actor": 2}
        count = len(items) if all(item.digest for item in items) else None
        rows = _SurveyedRows()
        scored = _blocks_of(items, job.cut, job, rows, busy=share.workers * share.cpus).map(
            BlockScorer,
            fn_constructor_args=(load, job, _nodes),
            compute=ActorPoolStrategy(**pool_of(share.workers, count, settings), **options),
            num_cpus=share.cpus,
            num_gpus=share.gpus,
        )
        for report in results_of(scored):
            yield replace(report, surveyed=rows.ask())


def pool_of(workers: int, blocks: int | None, settings: Settings) -> dict[str, int | None]:
    """Return the size of the actor pool: at most one worker per block, and more workers in a cluster that may grow.

    The number of blocks is unknown (None) before the survey; a worker without a block loads no judge.
    """
    workers = workers if blocks is None else min(workers, blocks)
    if settings.address is None or settings.ray_workers is not None:
        return {"size": workers}
    return {"min_size": workers, "max_size": blocks}


def _nodes() -> tuple[str, frozenset[str]]:
    """Return the node id of this worker, and those of all living nodes."""
    import ray

    alive = frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])
    return ray.get_runtime_context().get_node_id(), alive


def gather_blocks(blocks: Sequence[Block], job: Job) -> Generator[Block, None, None]:
    """Gather the rows of blocks on the connected cluster, in at most as many buckets; yield the buckets."""
    with working("gathering the rows"):
        rows = handed_out(list(enumerate(blocks))).flat_map(partial(rows_of_block, job=job, buckets=len(blocks)))
        yield from results_of(rows.groupby("bucket").map_groups(partial(write_bucket, job=job), batch_format="pyarrow"))


def handed_out(items: Sequence[object]) -> ray.data.Dataset:
    """Make a data set with one row per block; Ray Data assigns its rows to workers one by one."""
    import ray

    return ray.data.from_items([{"item": item} for item in items], override_num_blocks=len(items))


def results_of(data: ray.data.Dataset) -> Iterator[Any]:
    """Yield what workers return, in the order of completion."""
    for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from table.column("item").to_pylist()


#: Setting of Ray Data: each row leaves its task by itself, so that the blocks of a file go to several workers at once.
_ROW_BY_ROW = {"target_max_block_size": 1}


@contextmanager
def working(what: str, **settings: Any) -> Iterator[None]:
    """Suppress Ray Data's progress bars and messages, and raise a worker's error of this package unchanged.

    Ray's own errors become a `JudgeError` that names what failed. `settings` are further ones of Ray Data.
    """
    import ray
    from ray.data import DataContext

    logger = logging.getLogger("ray.data")
    level = logger.level
    settings |= {
        "enable_progress_bars": False,
        "print_on_execution_start": False,
        "raise_original_map_exception": True,
    }
    try:
        logger.setLevel(logging.CRITICAL)
        context = DataContext.get_current()
        with (
            patch.multiple(context, create=True, **settings),
            # At 1.0, Ray Data adds a worker only if all task slots of the others are taken.
            patch.object(
                getattr(context, "autoscaling_config", None), "actor_pool_util_upscaling_threshold", 1.0, create=True
            )
            if hasattr(context, "autoscaling_config")
            else nullcontext(),
        ):
            yield
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, GevalError):
            raise cause from None
        raise JudgeError(
            f"{what} failed: {str(error).strip()}",
            hint="A killed worker has often run out of memory: fewer `workers`, or smaller `batch_tokens`, may "
            "help. If the cluster itself is gone, start it again.",
        ) from error
    finally:
        logger.setLevel(level)


# --- evaluation steps -------------------------------------------------------------------------------------------------


def steps_by_worker(
    load: Callable[[JudgeRecord], Judge],
    record: JudgeRecord,
    metrics: Sequence[Metric],
    workers: int | None,
    on_steps: OnSteps,
) -> list[Metric]:
    """Give metrics their steps: their own, those pinned on this machine, or new ones that a worker writes."""
    import ray

    share = cluster_share(workers, record)
    with working(f"the worker of {record.name}"):
        actor = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus)(_Writer).remote()
        try:
            writer = _RemoteJudge(actor, record.name, *ray.get(actor.load.remote(load, record)))
            return [pinned_steps(writer, metric, on_steps=on_steps)[0] for metric in metrics]
        finally:
            ray.kill(actor)  # the workers need its GPU


class _Writer:
    """The judge, on a worker."""

    def load(self, load: Callable[[JudgeRecord], Judge], record: JudgeRecord) -> tuple[str, bool, str, bool]:
        os.environ["HF_HUB_OFFLINE"] = "1"
        self._judge = judge = load(record)
        return judge.fingerprint, judge.is_chat, judge.generation, judge.writes_steps

    def write(self, prompt: Prompt, most: int) -> str:
        return self._judge.continue_text(prompt, max_new_tokens=most)


@dataclass(frozen=True, eq=False)
class _RemoteJudge:
    """The judge as `pinned_steps` needs it, see `geval_local.judge.steps.StepsWriter`."""

    actor: Any
    name: str
    fingerprint: str
    is_chat: bool
    generation: str
    writes_steps: bool

    def continue_text(self, prompt: Prompt, *, max_new_tokens: int, on_token: Callable[[int], object]) -> str:
        import ray

        return str(ray.get(self.actor.write.remote(prompt, max_new_tokens)))
