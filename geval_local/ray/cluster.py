"""Ray: resources of a cluster divided among workers, and blocks scored by an actor pool of Ray Data.

The driver sends the location of a block and receives its report. Ray Data assigns blocks to actors, restarts dead
actors, and reassigns their blocks; reports arrive in the order of completion. `own_cluster` starts clusters and limits
what they contact.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from geval_local.errors import ConfigurationError, GevalError, JudgeError
from geval_local.judge.steps import OnSteps, pinned_steps
from geval_local.metric import Metric
from geval_local.prompt import Prompt
from geval_local.ray.blocks import Block, Cut, survey
from geval_local.ray.own_cluster import replaced
from geval_local.ray.worker import BlockScorer, Job, PartReport, pack, unpack
from geval_local.runs.manifest import JudgeRecord

if TYPE_CHECKING:
    import pyarrow as pa
    import ray

    from geval_local.judge.judge import Judge


#: Seconds between two questions how far the steps are.
_ASKED_SECONDS = 1.0


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


def survey_files(files: Sequence[Block], cut: Cut) -> Generator[list[Block], None, None]:
    """Survey files on the connected cluster, in any order; see `geval_local.ray.blocks.survey`."""
    with working("the survey of the input"):
        yield from results_of(
            handed_out(files).map_batches(partial(_survey, cut=cut), batch_size=1, batch_format="pyarrow")
        )


def _survey(table: pa.Table, cut: Cut) -> pa.Table:
    (file,) = unpack(table)
    try:
        return pack(survey(file, cut))
    except GevalError as error:
        return pack(error)


def score_blocks(
    blocks: Sequence[Block], load: Callable[[JudgeRecord], Judge], job: Job
) -> Generator[PartReport, None, None]:
    """Score blocks on the connected cluster, in any order."""
    from ray.data import ActorPoolStrategy

    (record,) = job.manifest.judges
    share = cluster_share(job.manifest.settings.workers, record)
    with working(f"the workers of {record.name}"):
        options: dict[str, Any] = {"max_tasks_in_flight_per_actor": 1 if job.alone else 2}
        known = inspect.signature(ActorPoolStrategy.__init__).parameters
        if not job.alone and {"enable_true_multi_threading", "max_concurrent_calls_per_actor"} <= set(known):
            # The next block is read, and the last one written, while the model computes.
            options |= {"enable_true_multi_threading": True, "max_concurrent_calls_per_actor": 2}
        yield from results_of(
            handed_out(blocks).map_batches(
                BlockScorer,
                fn_constructor_args=(load, job),
                batch_size=1,
                batch_format="pyarrow",
                compute=ActorPoolStrategy(size=min(share.workers, len(blocks)), **options),
                num_cpus=share.cpus,
                num_gpus=share.gpus,
            )
        )


def handed_out(items: Sequence[object]) -> ray.data.Dataset:
    """Make a data set of one row per block, which Ray Data gives to workers one by one.

    `from_arrow_refs` would start a task for every block, only to learn its size.
    """
    import ray

    return ray.data.from_blocks(list(map(pack, items)))


def results_of(data: Any) -> Iterator[Any]:
    """Unpack what workers return, as it comes; an error of the package is raised."""
    for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for item in unpack(table):
            if isinstance(item, GevalError):
                raise item
            yield item


@contextmanager
def working(what: str) -> Iterator[None]:
    """Suppress Ray Data's progress bars and messages; turn Ray's errors into a `JudgeError` that says what failed."""
    import ray
    from ray.data import DataContext

    logger = logging.getLogger("ray.data")
    with ExitStack() as quiet:
        context = DataContext.get_current()
        quiet.enter_context(replaced(context, enable_progress_bars=False, print_on_execution_start=False))
        quiet.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        try:
            yield
        except ray.exceptions.RayError as error:
            raise JudgeError(
                f"{what} failed: {str(error).strip()}",
                hint="A killed worker has often run out of memory: fewer `workers`, or smaller `batch_tokens`, may "
                "help. If the cluster itself is gone, start it again.",
            ) from error


# --- evaluation steps -------------------------------------------------------------------------------------------------


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
    actor = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, max_concurrency=2)(_Writer).remote()
    try:
        writer = _RemoteJudge(record.name, actor, ray.get(actor.load.remote(load, record)))
        return [pinned_steps(writer, metric, on_steps=on_steps)[0] for metric in metrics]
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, GevalError):  # as the worker raised it
            raise cause from None
        raise JudgeError(f"the worker of {record.name} failed: {str(error).strip()}") from error
    finally:
        ray.kill(actor)  # its GPU is wanted


class _Writer:
    """The judge, on a worker."""

    def __init__(self) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        self._tokens = 0

    def load(self, load: Callable[[JudgeRecord], Judge], record: JudgeRecord) -> tuple[str, bool, str, bool]:
        self._judge = load(record)
        return self._judge.fingerprint, self._judge.is_chat, self._judge.generation, self._judge.writes_steps

    def write(self, prompt: Prompt, most: int) -> str:
        return self._judge.continue_text(prompt, max_new_tokens=most, on_token=partial(setattr, self, "_tokens"))

    def tokens(self) -> int:
        return self._tokens


class _RemoteJudge:
    """The judge as `pinned_steps` needs it, see `geval_local.judge.steps.StepsWriter`."""

    def __init__(self, name: str, actor: Any, about: tuple[str, bool, str, bool]) -> None:
        self.name = name
        self.fingerprint, self.is_chat, self.generation, self.writes_steps = about
        self._actor = actor

    def continue_text(self, prompt: Prompt, *, max_new_tokens: int, on_token: Callable[[int], object]) -> str:
        import ray

        written = self._actor.write.remote(prompt, max_new_tokens)
        while not ray.wait([written], timeout=_ASKED_SECONDS)[0]:
            on_token(ray.get(self._actor.tokens.remote()))
        return str(ray.get(written))
