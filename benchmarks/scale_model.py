"""A model of a distributed run: a simulation of its events, from what one block costs and how often things fail.

Every worker takes the next block, reads it, scores it, and writes its part. The driver gives blocks out one after the
other. Reading and writing of all workers share the storage's bandwidth. A worker that dies loses its block and is
loaded again. A share of the workers is slow.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import asdict, dataclass

__all__ = ["Costs", "Prediction", "simulate"]


@dataclass(frozen=True)
class Costs:
    """What a run consists of; seconds, bytes and tokens.

    Attributes
    ----------
    rows, workers : int
        Rows of the input, and workers.
    block_rows : int
        Rows of a block.
    prompt_tokens, planned_share : float
        Tokens of a prompt over all metrics, and the share of them that goes through the model.
    tokens_per_second : float
        Of a worker's model.
    row_seconds : float
        What a row costs a worker beside the model: reading, tokenizing, writing. It is hidden behind the model as far
        as `overlap` says, 0 to 1.
    overlap : float
        See `row_seconds`.
    row_processor_seconds, cores : float
        Processor time of a row in all processes, and the cores that all workers share; without limit by default.
    bytes_in, bytes_out : float
        Per row.
    survey_rate : float
        Bytes that a worker surveys in a second.
    bandwidth : float
        Bytes that the storage gives or takes in a second, all workers together.
    start_up : float
        Until the first worker can begin: cluster, processes, judge.
    driver_block : float
        What a block costs the driver.
    failures : float
        Deaths of a worker in an hour of its work.
    restart : float
        Until a dead worker's place is taken.
    slow_share, slowness : float
        Share of slow workers, and how many times as long they take.
    """

    rows: int
    workers: int
    block_rows: int
    prompt_tokens: float = 700.0
    planned_share: float = 1.0
    tokens_per_second: float = math.inf
    row_seconds: float = 0.0
    overlap: float = 0.0
    row_processor_seconds: float = 0.0
    cores: float = math.inf
    bytes_in: float = 3000.0
    bytes_out: float = 3500.0
    survey_rate: float = 100e6
    bandwidth: float = 1e9
    start_up: float = 60.0
    driver_block: float = 0.004
    failures: float = 0.0
    restart: float = 90.0
    slow_share: float = 0.0
    slowness: float = 2.0

    def seconds_of_row(self) -> float:
        """Seconds of a row on a worker while all others work."""
        model = self.prompt_tokens * self.planned_share / self.tokens_per_second
        # What is hidden behind the model cannot take longer than the model.
        alone = model + self.row_seconds - min(model, self.overlap * self.row_seconds)
        return max(alone, self.row_processor_seconds * self.workers / self.cores)


@dataclass(frozen=True)
class Prediction:
    """What the model says of a run."""

    hours: float
    worker_hours: float
    survey_hours: float
    model_tokens: float
    bytes_read: float
    bytes_written: float
    blocks: int
    lost_blocks: int
    driver_busy: float
    storage_busy: float
    tail_hours: float
    first_to_break: str

    def to_record(self) -> dict[str, object]:
        """Write it as plain values, numbers to four digits."""
        values = asdict(self).items()
        return {name: value if isinstance(value, int | str) else float(f"{value:.4g}") for name, value in values}


def simulate(costs: Costs, seed: int = 0) -> Prediction:
    """Follow a run from its beginning to its end."""
    rng = random.Random(seed)
    blocks = -(-costs.rows // costs.block_rows)
    size_in, size_out = costs.rows * costs.bytes_in, costs.rows * costs.bytes_out
    # The survey reads everything once; so do the workers, who write besides.
    survey = max(size_in / (costs.survey_rate * costs.workers), size_in / costs.bandwidth)
    compute = costs.block_rows * costs.seconds_of_row()
    moving = costs.block_rows * (costs.bytes_in + costs.bytes_out)
    slow = [costs.slowness if rng.random() < costs.slow_share else 1.0 for _ in range(costs.workers)]
    begin = costs.start_up + survey
    free = [(begin, worker) for worker in range(costs.workers)]
    heapq.heapify(free)
    driver = storage = begin
    ends: list[float] = []
    lost = 0
    left = blocks
    while left:
        time, worker = heapq.heappop(free)
        driver = max(driver, time) + costs.driver_block
        # The storage serves blocks in turn; a worker waits where it is behind.
        storage = max(storage, driver) + moving / costs.bandwidth
        end = max(driver + compute * slow[worker], storage)
        death = rng.expovariate(costs.failures / 3600) if costs.failures else math.inf
        if death < end - driver:
            lost += 1
            heapq.heappush(free, (driver + death + costs.restart, worker))
            continue
        left -= 1
        ends.append(end)
        heapq.heappush(free, (end, worker))
    finish = max(ends)
    span = max(finish - begin, 1e-9)
    driver_busy = blocks * costs.driver_block / span
    storage_busy = blocks * moving / costs.bandwidth / span
    tail = finish - sorted(ends)[max(0, len(ends) - costs.workers)]
    shares = {
        "the driver": driver_busy,
        "the storage": storage_busy,
        "the survey": survey / finish,
        "start-up": costs.start_up / finish,
        "the tail": tail / finish,
        "failures": lost * (compute / 2 + costs.restart) / (costs.workers * span),
    }
    return Prediction(
        hours=finish / 3600,
        worker_hours=finish * costs.workers / 3600,
        survey_hours=survey / 3600,
        model_tokens=costs.rows * costs.prompt_tokens * costs.planned_share,
        bytes_read=2 * size_in,
        bytes_written=size_out,
        blocks=blocks,
        lost_blocks=lost,
        driver_busy=driver_busy,
        storage_busy=storage_busy,
        tail_hours=tail / 3600,
        first_to_break=max(shares, key=lambda name: shares[name]),
    )
