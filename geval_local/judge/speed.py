"""How fast and how exact a judge is on this machine, for each dtype and each engine that is here.

Every arm runs in a process of its own: vLLM wants one, the peak of its memory is the arm's alone, and a dtype that ends
the process costs its own line only. All arms score the same rows, and float32 by this package's engine is the measure.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from geval_local.backends import BACKENDS
from geval_local.errors import GevalError, JudgeError, first_line
from geval_local.io.samples import Sample
from geval_local.judge.audit import STORY, example_samples
from geval_local.metric import Metric
from geval_local.options import JudgeOptions

#: Seconds of scoring for one arm, without its start.
SECONDS = 12.0
#: Documents, and the rows that share each; the first document warms up, see `_timed`.
_DOCUMENTS, _OUTPUTS = 16, 8
#: A faster arm is recommended if it moves a score by at most this share of the scale on average.
_HARMLESS = 0.01
#: And if it is so many times as fast as the first one: less is within the noise of a minute.
_WORTH = 1.2


@dataclass(frozen=True)
class Arm:
    """What computes, and in which dtype."""

    engine: str
    dtype: str


@dataclass(frozen=True)
class ArmSpeed:
    """The figures of one arm; NaN where it did not run."""

    arm: Arm
    #: Per minute, by the clock: tokens of the prompts, shared ones counted each time, and rows.
    tokens_per_minute: float = float("nan")
    rows_per_minute: float = float("nan")
    #: Peak of the main memory of the process, and of the GPU's memory that PyTorch held; 0 without a GPU.
    memory_bytes: int = 0
    gpu_bytes: int = 0
    #: The scores, by row.
    scores: tuple[float, ...] = ()
    #: Mean and largest absolute difference of a score from float32 by this engine, in units of the scale.
    moved: float = float("nan")
    largest: float = float("nan")
    #: Why there are no figures.
    error: str | None = None

    @property
    def minutes_per_thousand(self) -> float:
        """Minutes that 1,000 rows like these take."""
        return 1000 / self.rows_per_minute


def arms_here(options: JudgeOptions) -> list[Arm]:
    """List what this machine can compute a judge with; float32 by this package's engine comes first."""
    from geval_local.models.precision import native_dtypes  # brings torch

    own = "auto" if options.backend.package else options.engine
    engines = [
        own,
        *(name for name, kind in BACKENDS.items() if kind.package and importlib.util.find_spec(kind.package)),
    ]
    return [Arm(engine, dtype) for engine in engines for dtype in native_dtypes(options.device)]


def speed_samples(metric: Metric) -> list[Sample]:
    """Make rows that share their source texts as those of a data set do, document by document."""
    judged = "output" if "output" in metric.fields else list(metric.fields)[-1]
    texts = [" ".join(part) for size in (1, 2, 3) for part in combinations(STORY, size)]
    example = example_samples(metric)[0].fields
    found = []
    for document in range(_DOCUMENTS):
        item = {name: f"({document + 1}) {text}" for name, text in example.items()}
        chosen = [texts[(document + 5 * number) % len(texts)] for number in range(_OUTPUTS)]
        found += [Sample(item | {judged: text}, origin="a built-in example") for text in chosen]
    return found


def measure(
    options: JudgeOptions,
    metric: Metric,
    arms: Sequence[Arm] | None = None,
    *,
    on_arm: Callable[[int, int], object] = lambda done, total: None,
) -> list[ArmSpeed]:
    """Time every arm of a machine on the same rows.

    Parameters
    ----------
    options : JudgeOptions
        The judge; its engine and dtype are those of each arm.
    metric : Metric
        With the steps that it is scored with.
    arms : sequence of Arm, optional
        The first is the measure of the others' scores. By default those of `arms_here`.
    on_arm : callable
        Called with the number of arms that are done, and that of all.

    Raises
    ------
    JudgeError
        If a server computes the judge, or if the first arm has no scores.
    """
    if not options.backend.uses_devices:
        raise JudgeError(
            "the speed of a served judge is that of its server", hint="Time a run with `limit`, which shows its rate."
        )
    found: list[ArmSpeed] = []
    arms = arms_here(options) if arms is None else arms
    for number, arm in enumerate(arms):
        on_arm(number, len(arms))
        found.append(_compared(_in_process(options, metric, arm), found[0] if found else None))
        if found[0].error is not None:
            raise JudgeError(f"the judge could not be timed in {arm.dtype}: {found[0].error}")
    on_arm(len(arms), len(arms))
    return found


def _in_process(options: JudgeOptions, metric: Metric, arm: Arm) -> ArmSpeed:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_timed, options, metric, arm).result()
        except BrokenProcessPool:
            return ArmSpeed(arm, error="its process ended; its memory may not suffice")


def _timed(options: JudgeOptions, metric: Metric, arm: Arm) -> ArmSpeed:
    """Load a judge for one arm and score documents until its time is over; the first is counted only if it is all."""
    from geval_local.judge.judge import Judge
    from geval_local.models.memory import peak_memory

    given = {name: value for name, value in options.model_dump().items() if not name.startswith("think")}
    scores: list[float] = []
    tokens, seconds = 0, 0.0
    try:
        judge = Judge.load(JudgeOptions(**(given | {"engine": arm.engine, "dtype": arm.dtype})))
        rows = speed_samples(metric)
        lengths = [0 if one.request is None else len(one.request.ids) for one in judge.prepare(metric, rows)]
        for documents in (1, 1, 2, 4, 8):
            batch = slice(len(scores), len(scores) + documents * _OUTPUTS)
            start = time.perf_counter()
            found = judge.score_many(metric, rows[batch])
            taken = time.perf_counter() - start
            is_warm = bool(scores)
            scores += [one.value for one in found]
            if is_warm or taken > SECONDS / 2:
                tokens, seconds = tokens + sum(lengths[batch]), seconds + taken
            if seconds + 2 * taken > SECONDS:
                break
    except GevalError as error:
        return ArmSpeed(arm, error=error.text)
    except (RuntimeError, ValueError, NotImplementedError, ImportError) as error:  # a dtype that a kernel lacks
        return ArmSpeed(arm, error=first_line(error))
    main, gpu = peak_memory()
    per_row = sum(lengths[: len(scores)]) / len(scores)
    return ArmSpeed(arm, 60 * tokens / seconds, 60 * tokens / per_row / seconds, main, gpu, tuple(scores))


def _compared(found: ArmSpeed, measure: ArmSpeed | None) -> ArmSpeed:
    """Add how far the scores are from those of the first arm, on the rows that both scored."""
    both = min(len(found.scores), len((measure or found).scores))
    if measure is None or not both:
        return replace(found, moved=0.0, largest=0.0) if measure is None else found
    moved = np.abs(np.subtract(found.scores[:both], measure.scores[:both]))
    return replace(found, moved=float(np.nanmean(moved)), largest=float(np.nanmax(moved)))


def recommended(found: Sequence[ArmSpeed], span: float) -> ArmSpeed:
    """Choose the fastest arm that moves a score by at most a hundredth of the scale's `span` on average."""
    harmless = [one for one in found if one.error is None and one.moved <= _HARMLESS * span]
    best = max(harmless, key=lambda one: one.rows_per_minute, default=found[0])
    return best if best.rows_per_minute >= _WORTH * found[0].rows_per_minute else found[0]
