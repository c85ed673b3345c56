"""Rows through DeepEval, 20 test cases at a time, against the same rows through `score_many`.

SummEval's development half, coherence. Beside both stands DeepEval by itself, with a metric that does nothing: what no
judge can make up for. Every round takes the arms in turn; medians are printed, with processor time. No arm leaves a
thread that has run the model, which would slow down the next one (`geval_local/judge/judge.py`).

    python benchmarks/hosts.py nano --rows 200 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {"DEEPEVAL_TELEMETRY_OPT_OUT": "1", "DEEPEVAL_NO_INSPECT_PROMPT": "1"}

from deepeval import evaluate
from deepeval.evaluate import AsyncConfig, CacheConfig, DisplayConfig
from deepeval.metrics import BaseMetric
from deepeval.test_case import LLMTestCase

from geval_local import Judge, Metric
from geval_local.engine.transformers_backend import in_own_thread
from geval_local.hosts.bound import release_judges
from geval_local.hosts.deepeval import GEvalLocal

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "summeval_dev.json"


class Nothing(BaseMetric):
    """A metric that costs nothing."""

    threshold = 0.5

    def measure(self, test_case: LLMTestCase, *args: object, **kwargs: object) -> float:
        """Say 1."""
        self.score = 1.0
        return self.score

    async def a_measure(self, test_case: LLMTestCase, *args: object, **kwargs: object) -> float:
        """Say 1."""
        return self.measure(test_case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = json.loads(DATA.read_text(encoding="utf-8"))[: options.rows]
    fields = [{"source": row["source"], "output": row["system_output"]} for row in rows]
    cases = [LLMTestCase(input=row["source"], actual_output=row["output"]) for row in fields]
    judge = Judge.load(options.judge)
    metric = in_own_thread(lambda: judge.with_steps(Metric.load("summarization/coherence")))

    def in_bulk() -> None:
        in_own_thread(lambda: judge.score_many(metric, fields))

    in_bulk()  # what a first pass pays for once is no arm's own

    def through(measured: BaseMetric) -> None:
        evaluate(
            cases,
            [measured],
            async_config=AsyncConfig(max_concurrent=options.tasks),
            cache_config=CacheConfig(write_cache=False),
            display_config=DisplayConfig(show_indicator=False, print_results=False, inspect_after_run=False),
        )

    local = GEvalLocal(metric, judge)
    arms: dict[str, Callable[[], object]] = {
        "score_many": in_bulk,
        "deepeval": lambda: through(local),
        "deepeval alone": lambda: through(Nothing()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    processor: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, run in arms.items():
            begin, used = time.perf_counter(), time.process_time()
            run()
            seconds[name].append(time.perf_counter() - begin)
            processor[name].append(time.process_time() - used)
            release_judges()
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    print(
        json.dumps(
            {
                "judge": options.judge,
                "rows": len(rows),
                "tasks": options.tasks,
                "seconds": medians,
                "processor_seconds": {name: statistics.median(taken) for name, taken in processor.items()},
                "share_of_score_many": medians["score_many"] / medians["deepeval"],
            }
        )
    )


if __name__ == "__main__":
    main()
