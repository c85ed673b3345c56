"""The resources of a cluster, divided among workers that load a judge."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from geval_local.errors import ConfigurationError
from geval_local.options import JudgeOptions

logger = logging.getLogger("geval_local")


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
    each = options.tensor_parallel or 1
    wanted = "device=cuda" if options.device == "cuda" else None
    wanted = wanted if options.tensor_parallel is None else f"tensor_parallel={each}"
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


def _largest_share(counts: Sequence[int], workers: int | None) -> int:
    """Return the largest number of units per worker with no worker on two machines; 0 if there are too few."""
    workers = workers or max(1, sum(count > 0 for count in counts))
    shares = range(max(counts, default=0), 0, -1)
    return next((share for share in shares if sum(count // share for count in counts) >= workers), 0)


def warn_of_cpus(share: WorkerShare, options: JudgeOptions) -> None:
    """Log that a judge runs on CPUs because there is no GPU, unless that was asked for."""
    if not share.gpus and options.device is None and options.backend.uses_devices:
        logger.warning(
            "no machine of the cluster has a GPU: the judge computes on CPUs. If an autoscaler is to bring GPUs, add "
            "`%s` and `workers`%s",
            options.backend.gpu_option,
            "; `device=cpu` says that CPUs are meant" if options.backend.takes_device else "",
        )
