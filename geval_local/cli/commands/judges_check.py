"""``geval-local judges check``: an audit of a judge and of the device that it computes on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local.cli import options
from geval_local.cli.option_groups import takes_options
from geval_local.cli.options import complete_judge, complete_metric
from geval_local.cli.output.console import note, print_json
from geval_local.errors import GevalError
from geval_local.options import JudgeOptions

if TYPE_CHECKING:
    from geval_local.models.memory import Needs
    from geval_local.models.registry import JudgeEntry

DEFAULT_METRIC = "summarization/coherence"


@takes_options(judge_without=("name",))
def check(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Absent: the default judge.", autocompletion=complete_judge),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            "-m",
            metavar="NAME",
            help="A preset or a metric's YAML file.",
            autocompletion=complete_metric,
        ),
    ] = DEFAULT_METRIC,
    self_check: Annotated[
        bool | None,
        typer.Option("--self-check/--no-self-check", help="Check the device too. Absent: unless it is a CPU."),
    ] = None,
    as_json: options.Json = False,
    *,
    judge_options: JudgeOptions,
) -> None:
    """Audit a judge on one metric, and check whether it computes on this device what it should.

    Labels as tokens, the prompt's end, an example's score, batch invariance, size, and whether the judge can write a
    reason (which is no failure); then, on a GPU or with --self-check, the device: attention, packs against one prompt
    at a time, memory that runs out, speed, which takes minutes. Exit code 1 if a check fails.
    """
    from geval_local.cli.output.audits import audit_record, self_check_record, show_audit, show_self_check, show_writing
    from geval_local.cli.progress import load_shown, show_progress
    from geval_local.cli.scoring import EXIT_GATE
    from geval_local.engine.batched import PaddedEngine
    from geval_local.engine.self_check import check_engine
    from geval_local.judge.audit import audit_judge
    from geval_local.judge.reason_writer import check_writing
    from geval_local.judge.steps import with_pinned_steps
    from geval_local.metric import Metric
    from geval_local.models.head import Head, input_device
    from geval_local.models.registry import entry_of
    from geval_local.tokens.requests import RequestMaker

    chosen = Metric.load(metric)
    choice = judge_options.model_copy(update={"name": name})
    if (needs := _needs(entry_of(choice), choice.dtype)) is not None:
        note(f"takes about {needs.text}", "dim")
    judge = load_shown(choice)
    chosen = with_pinned_steps(chosen, judge.fingerprint)
    if chosen.needs_steps:
        note(f"{chosen.name} has no evaluation steps by this judge yet; it is checked without them", "yellow")
    model = judge.loaded.model
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    audit = audit_judge(judge.loaded, judge.engine, alone, RequestMaker(judge.encoder, chosen, judge.context))
    engine_text = judge.engine_report.text
    if not as_json:
        show_audit(audit, judge.name, chosen, judge.encoder.style, engine_text)
    writing = check_writing(judge, chosen, audit.example.mode)
    if not as_json:
        show_writing(writing)
    checked = None
    if self_check if self_check is not None else input_device(model).type != "cpu":
        note("checking the device ...", "dim")
        with show_progress("checking the device", unit=""):
            checked = check_engine(model, judge.engine, judge.engine_report)
    if as_json:
        record = {"judge": judge.name, "metric": chosen.name, "style": judge.encoder.style, **audit_record(audit)}
        own = None if checked is None else self_check_record(checked)
        print_json(record | {"reasons": asdict(writing), "engine_report": engine_text, "self_check": own})
    elif checked is not None:
        show_self_check(checked)
    if checked is not None and checked.failed:
        note(
            f"failed: {', '.join(dict.fromkeys(checked.failed))}. Do not trust scores from this device. "
            "--engine padded shares nothing between prompts and may serve meanwhile. Please report it with the output "
            "of --json.",
            "red",
        )
        raise typer.Exit(EXIT_GATE)


def _needs(entry: JudgeEntry, dtype: str | None = None) -> Needs | None:
    """Tell the main memory that a judge on this machine will take; None if its files do not say."""
    from geval_local.models.memory import memory_needed
    from geval_local.models.registry import local_directory

    directory = local_directory(entry)
    try:
        return None if directory is None else memory_needed(directory, dtype or entry.dtype, entry.adapter)
    except GevalError:  # loading it says what is wrong
        return None
