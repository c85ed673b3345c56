"""When a resumed run gives its model the first prompt, with half of its rows done; and what the resume takes in all.

``python benchmarks/resume_half.py ROWS`` prints one JSON line; PYTHONPATH says which version is measured. The engine
is free, so all of the time is this package's own. ``--report`` measures the memory of `report` on the finished run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from pipeline_load import FreeEngine

from geval_local import RunEvents, score_file
from geval_local.errors import Interrupted
from geval_local.testing import MockJudge


class StopAt(RunEvents):
    """Stops a run at so many outcomes."""

    def __init__(self, outcomes: int) -> None:
        self._outcomes, self._done = outcomes, 0

    def on_progress(self, done: int) -> None:
        """Count."""
        self._done = done

    def should_stop(self) -> bool:
        """Whether there are so many."""
        return self._done >= self._outcomes


class Timed(FreeEngine):
    """Notes when it is asked first."""

    first: float | None = None

    def execute(self, requests, packs):
        """Note the time of the first call."""
        if self.first is None:
            self.first = time.process_time()
        return super().execute(requests, packs)


def half(rows: int, directory: Path, *, report: bool) -> dict[str, float]:
    """Score to the half, then on; in processor seconds, which other programs disturb less than they do the clock."""
    file = directory / "in.jsonl"
    with file.open("w") as out:
        for row in range(rows):
            text = {"source": f"tale {row // 4} of a town by the sea and of its bridge", "output": f"it ends at {row}"}
            out.write(json.dumps({"id": row, **text}) + "\n")

    def score(engine: FreeEngine, events: RunEvents | None) -> None:
        place = directory / "run"
        score_file(
            file, "summarization/coherence", MockJudge(engine), place, fields=None, use_cache=False, events=events
        )

    with suppress(Interrupted):
        score(FreeEngine(20_000), None if report else StopAt(rows // 2))
    if report:
        from geval_local.report.reports import write_report as write

        child = os.fork()  # the run's own memory is not the report's
        if child == 0:
            write([directory / "run"], directory / "page.html")
            os._exit(0)
        _, _, usage = os.wait4(child, 0)
        return {"rows": rows, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024}
    engine, begin = Timed(20_000), time.process_time()
    score(engine, None)
    whole = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "first_s": (engine.first or begin) - begin, "whole_s": whole, "peak_mb": peak}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["GEVAL_LOCAL_HOME"] = f"{place}/home"
        found = half(options.rows, Path(place), report=options.report)
    print(json.dumps({key: round(value, 2) for key, value in found.items()}))
