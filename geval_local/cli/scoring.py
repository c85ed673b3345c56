"""A run of ``score``, ``decide`` or ``resume`` on a terminal: messages go to stderr, signals stop it."""

from __future__ import annotations

import math
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from geval_local.cli.output.console import note, print_json, print_table
from geval_local.cli.output.reasons import show_reasons
from geval_local.cli.output.run_summary import (
    LOWEST_SHOWN,
    common_record,
    show_gates,
    show_pace,
    show_result,
    show_signatures,
    show_unscored,
)
from geval_local.cli.progress import Progress, show_progress
from geval_local.errors import ConfigurationError
from geval_local.evaluation.gates import Gate, Limit, checked, failures
from geval_local.runs.completion import RunResult
from geval_local.runs.events import RunEvents
from geval_local.score import LEAST_LABEL_MASS, LOW_LABEL_MASS

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge
    from geval_local.metric import Metric
    from geval_local.runs.completion import RunResult
    from geval_local.summary import QuestionSummary

_Result = TypeVar("_Result")

#: Seconds of clean-up after an immediate stop, during which further signals are ignored.
ENDING_SECONDS = 5.0


class Stopper:
    """Signal handler, active within its context.

    A signal stops immediately, as usual, except while `is_working`: then it is recorded, and the run checks `wanted`
    after every pack. A second signal stops immediately. Further ones within `ENDING_SECONDS` are ignored:
    they would interrupt the removal of partial files.
    """

    def __init__(self) -> None:
        self.is_working = False
        self._noted = False
        self._stopped: float | None = None

    def wanted(self) -> bool:
        """Whether a stop was requested."""
        return self._noted

    @contextmanager
    def listening(self) -> Iterator[Stopper]:
        """Handle SIGINT and SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        taken = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, before in taken.items():
                signal.signal(number, before)

    def _take(self, number: int, frame: Any) -> None:
        if not self.is_working or self._noted:
            now = time.monotonic()
            if self._stopped is not None and now - self._stopped < ENDING_SECONDS:
                return
            self._stopped = now
            raise KeyboardInterrupt
        self._noted = True
        note("stopping after the current batch; press Ctrl-C again to stop at once", "yellow")


EXIT_GATE = 1


def read_gates(fail_under: float | None, max_unscored: str | None, label_mass: float | None = None) -> list[Gate]:
    """Read the options as given: ``--fail-under 3.5``, ``--max-unscored 5`` or ``2%``, ``--label-mass 0.5``.

    Each gate holds for every metric of the run.
    """
    given = {"mean": fail_under, "label_mass": label_mass}
    gates = [Gate(name, Limit(">=", least, False)) for name, least in given.items() if least is not None]
    if max_unscored is None:
        return gates
    is_share = max_unscored.strip().endswith("%")
    try:
        limit = float(max_unscored.strip().rstrip("%")) / 100 if is_share else int(max_unscored)
    except ValueError:
        limit = -1
    if not 0 <= limit <= (1 if is_share else float("inf")):
        raise ConfigurationError(
            f"--max-unscored {max_unscored!r} is not a limit", hint="Give a count such as 5, or a share such as 2%."
        )
    return [*gates, Gate("unscored", Limit("<=", limit, is_share))]


WORKERS_LOAD = "workers load the judge"


def follow(
    run: Callable[[RunEvents], RunResult],
    file: str,
    gates: Sequence[Gate],
    *,
    results: int,
    judges: int,
    as_json: bool,
    command: str,
    lowest: int = LOWEST_SHOWN,
) -> None:
    """Execute a run, show its figures, and exit with 1 if a gate failed."""
    result = watch(run, file, results=results, judges=judges)
    if (reasons := result.manifest.settings.reasons) is not None:
        show_reasons(result.files[0], reasons.result, as_json=as_json)
        return
    failed = failures(gates, result.summaries, answers=result.answers)
    if result.answers:
        show_decisions(result, failed, as_json=as_json, command=command)
    else:
        held = checked(gates, result.summaries)
        show_result(result, failed, gates=held, lowest=lowest, as_json=as_json, command=command)
    if failed:
        raise typer.Exit(EXIT_GATE)


def watch(
    run: Callable[[RunEvents], _Result], file: str, *, results: int = 1, judges: int = 1, unit: str = "rows"
) -> _Result:
    """Follow a run to its end as `follow` does, and show nothing of its figures."""
    stopper = Stopper()
    with stopper.listening(), show_progress() as progress:
        return run(shown_run(stopper, progress, file, results, judges, unit))


def shown_run(
    stopper: Stopper, progress: Progress, file: str, results: int, judges: int, unit: str = "rows"
) -> RunEvents:
    """Give what shows on stderr what a run is doing, and hands on the wish to stop it."""
    return _Shown(stopper, progress, file, results, judges, unit)


class _Shown(RunEvents):
    """Shows what a run is doing."""

    def __init__(self, stopper: Stopper, progress: Progress, file: str, results: int, judges: int, unit: str) -> None:
        self._stopper = stopper
        self._progress = progress
        self._label = f"scoring {file}" if unit == "rows" else f"writing {unit}"
        self._unit = unit
        self._results = results
        self._judges = judges
        self._on_workers = False
        self._is_scoring = False
        self._loading = ""

    def on_resume(self, there: int, total: int | None) -> None:
        of = "" if total is None else f" of {total}"
        note(f"resuming: {there}{of} {self._unit if self._results == 1 else 'scores'} are there")

    def on_check(self) -> None:
        note("checking the judges' files ...", "dim")

    def on_load(self, judge: str | None) -> None:
        self._stopper.is_working = self._is_scoring = False
        self._on_workers = judge is None
        named = "the judge" if self._judges == 1 else judge
        label = WORKERS_LOAD if judge is None else f"loading {named}"
        if label != self._loading:  # a judge may be loaded in two steps
            note(f"{label} ...", "dim")
        self._loading = label
        self._progress.begin(label)

    def on_loaded(self, judge: Judge) -> None:
        if self._unit == "rows":  # what is written is no read-out of an engine
            note(f"engine: {judge.engine_report.text}", "dim")

    def on_steps(self, metric: Metric, tokens: int) -> None:
        self._progress.show_steps(metric, tokens)

    def on_score(self, judge: str, total: int | None, there: int, done: int) -> None:
        self._is_scoring = True
        # From now on a stop waits for the current batch.
        self._stopper.is_working = not self._on_workers
        self._progress.begin(self._label, total, unit=self._unit, each=self._results, there=there, done=done)

    def on_progress(self, done: int) -> None:
        if self._is_scoring:
            self._progress.reach(done)
        elif self._on_workers:  # shards are assigned, and their workers start by loading
            self._progress.begin(WORKERS_LOAD)

    def on_write(self) -> None:
        self._stopper.is_working = False

    def should_stop(self) -> bool:
        return self._stopper.wanted()


#: Options of a choice that are counted on its line.
OPTIONS_SHOWN = 6


def show_decisions(result: RunResult, failures: list[str], *, as_json: bool, command: str) -> None:
    """Print what the answers came to, to stdout, and what failed, to stderr; parameters as `show_result`."""
    for answer in result.answers:
        if answer.low_mass_share > 0:
            note(f"warning: {_low_mass(answer)}", "yellow")
    if as_json:
        print_json(_record(result, failures))
    else:
        _show_table(result)
        show_pace(result, len(result.answers), "answers")
        show_unscored([(f"without an answer to {answer.name}", answer.reasons) for answer in result.answers])
        show_signatures([one.name for one in result.answers], result.signatures, result)
        note("next:")
        if result.target.results is None:
            note(f"  keep every row's answers     {command} -o decisions.jsonl")
        else:
            note(f"  every row's answers          {shlex.quote(str(result.target.results))}")
        note(f"  audit the judge              geval-local judges check {shlex.quote(result.judges[0])}")
    show_gates(failures, 0)


def _low_mass(answer: QuestionSummary) -> str:
    """Say that a judge does not answer a question, and what can be done."""
    what = "the judge does not answer this" if answer.label_mass < LEAST_LABEL_MASS else "it is low"
    return (
        f"{answer.name}: label mass {answer.label_mass:.3f}, below {LOW_LABEL_MASS:g} in {answer.low_mass_share:.1%} "
        f"of the answers: {what}. Try: a plainer question; another judge."
    )


def _show_table(result: RunResult) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("question", overflow="fold")
    table.add_column("answers", overflow="fold")
    for header in ("answered", "mass", "min", f"<{LOW_LABEL_MASS:g}", "spread"):
        table.add_column(header, justify="right", no_wrap=True)
    for answer in result.answers:
        low = "-" if math.isnan(answer.low_mass_share) else f"{answer.low_mass_share:.1%}"
        table.add_row(
            Text(answer.name),
            Text(_told(answer)),
            f"{answer.answered}/{answer.rows}",
            _figure(answer.label_mass),
            _figure(answer.label_mass_min),
            low,
            "-" if answer.spread is None else _figure(answer.spread),
        )
    print_table(table)


def _told(answer: QuestionSummary) -> str:
    if not answer.answered:
        return "-"
    if answer.type == "choice":
        more = ", ..." if len(answer.chosen) > OPTIONS_SHOWN else ""
        return ", ".join(f"{_option(value)} {count}" for value, count in answer.chosen[:OPTIONS_SHOWN]) + more
    return f"mean {'probability' if answer.type == 'predicate' else 'level'} {_figure(answer.mean)}"


def _option(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _record(result: RunResult, failures: list[str]) -> dict[str, Any]:
    return {
        **common_record(result),
        "answers_per_second": round(result.rows * len(result.answers) / result.seconds, 3) if result.seconds else None,
        "questions": {
            answer.name: answer.to_dict() | {"signature": signature}
            for answer, signature in zip(result.answers, result.signatures, strict=True)
        },
        "failed_gates": failures,
    }
