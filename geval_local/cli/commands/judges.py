"""``geval-local judges``: list, check and fetch judges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from geval_local.cli import options
from geval_local.cli.options import complete_judge, complete_metric, takes_options
from geval_local.cli.output.audits import short
from geval_local.cli.output.console import DROPPED, FIGURE, FOLDED, WHOLE, note, print_json, print_rows, show_text
from geval_local.errors import GevalError
from geval_local.files import readable
from geval_local.options import JudgeOptions

if TYPE_CHECKING:
    from geval_local.engine.backend import SelfCheck
    from geval_local.judge.judge import Judge
    from geval_local.judge.reason_writer import WritingCheck
    from geval_local.metric import Metric
    from geval_local.models.memory import Needs
    from geval_local.models.registry import JudgeEntry

_Found = TypeVar("_Found")

DEFAULT_METRIC = "summarization/coherence"
#: Upper ends of the groups of `list`, GB (1e9 bytes): common GPU sizes.
MEMORY_GROUPS = (4, 8, 16, 24, 48, 80)
#: On a CPU a judge of more weights takes seconds for a token that it writes, and minutes for a long example.
LARGE = 500_000_000


def list_judges(models: options.ModelsFile = None, as_json: options.Json = False) -> None:
    """List the judges by the size of their weights, and whether their files are on this machine."""
    from geval_local.models.registry import load_registry, local_directory

    registry = load_registry(models)
    here = {name: local_directory(entry) is not None for name, entry in registry.judges.items()}
    files = {name: files_gb(entry) for name, entry in registry.judges.items()}
    if as_json:
        records = [
            entry.model_dump(mode="json")
            | {"default": name == registry.default, "present": here[name], "files_gb": files[name]}
            for name, entry in registry.judges.items()
        ]
        print_json(records)
        return
    rows: list[tuple[str, ...]] = []
    by_memory = sorted(registry.judges.values(), key=lambda entry: entry.memory_gb or math.inf)
    for heading, entries in groupby(by_memory, key=_memory_group):
        rows += [("",), (heading,)] if rows else [(heading,)]
        rows += [
            (
                "  " + entry.name + (" (default)" if entry.name == registry.default else ""),
                _known(entry, "parameters", short),
                "-" if (gb := files[entry.name] or entry.memory_gb) is None else readable(gb * 1e9),
                _known(entry, "context", str),
                _kind(entry) or "-",
                _known(entry, "license", str),
                "yes" if here[entry.name] else "no",
            )
            for entry in entries
        ]
    figures = [(name, FIGURE | {DROPPED: rank}) for name, rank in (("parameters", 3), ("weights", 1), ("context", 2))]
    # Only a licence may be folded: a name or a figure that is cut cannot be copied.
    words = [("kind", WHOLE | {DROPPED: 5}), ("licence", FOLDED | {DROPPED: 4}), ("here", WHOLE)]
    print_rows([("judge", WHOLE), *figures, *words], rows, narrow=False)
    if any(entry.unconfirmed for entry in registry.judges.values()):
        note("?: no source confirms it")
    note("weights: their size as they are stored; `judges check NAME` says what a judge takes in memory here")
    note("next: geval-local judges check NAME, or geval-local judges fetch NAME")


def files_gb(entry: JudgeEntry) -> float | None:
    """Return the size of a judge's weights on this machine, as they are stored."""
    from geval_local.models.fingerprint import weight_files
    from geval_local.models.registry import local_directory

    directory = local_directory(entry)
    try:
        return None if directory is None else sum(file.stat().st_size for file in weight_files(directory)) / 1e9
    except (GevalError, OSError):  # loading it says what is wrong
        return None


def _memory_group(entry: JudgeEntry) -> str:
    """Name the group of `list` that a judge is in."""
    if entry.memory_gb is None:
        return "weights of unknown size"
    upper = next((one for one in MEMORY_GROUPS if entry.memory_gb <= one), None)
    return f"weights above {MEMORY_GROUPS[-1]} GB" if upper is None else f"weights up to {upper} GB"


def _known(entry: JudgeEntry, key: str, write: Callable[[Any], str]) -> str:
    value = getattr(entry, key)
    return "-" if value is None else write(value) + ("?" if key in entry.unconfirmed else "")


def _kind(entry: JudgeEntry) -> str:
    """Describe a judge's purpose, and its layers if they are unusual."""
    parts = ["for judging"] if entry.made_for == "judging" else []
    parts += ["hybrid"] if entry.hybrid else []
    if entry.active_parameters is not None:
        parts.append(f"MoE, {short(entry.active_parameters)} used")
    return ", ".join(parts + ([entry.quantization] if entry.quantization else []))


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
        typer.Option(
            "--self-check/--no-self-check",
            help="Check the device too, and a large judge on a CPU in full. Absent: unless it is a CPU.",
        ),
    ] = None,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed",
            help="Only time the judge: rows a minute, memory and how far scores move, for each dtype and engine that "
            "this machine has.",
        ),
    ] = False,
    as_json: options.Json = False,
    *,
    judge_options: JudgeOptions,
) -> None:
    """Audit a judge on one metric, and check whether it computes on this device what it should.

    Labels as tokens, the prompt's end, an example's score, batch invariance, size, and whether the judge can write
    a reason (which is no failure); with --think one thought, its end and the label mass after it; then, on a GPU or
    with --self-check, the device: attention, packs against one prompt at a time, memory that runs out, which takes
    minutes. Exit code 1 if a check fails.
    """
    from geval_local.cli.output.audits import self_check_record, show_self_check
    from geval_local.cli.progress import load_shown
    from geval_local.cli.scoring import EXIT_GATE
    from geval_local.judge.steps import with_pinned_steps
    from geval_local.metric import Metric
    from geval_local.models.registry import entry_of

    chosen = Metric.load(metric)
    choice = judge_options.model_copy(update={"name": name})
    if (needs := _needs(entry_of(choice), choice.dtype)) is not None:
        note(f"takes about {needs.text}", "dim")
    if speed:
        _time(choice, chosen, as_json=as_json)
        return
    judge = load_shown(choice)
    chosen = with_pinned_steps(chosen, judge.fingerprint)
    if chosen.needs_steps:
        note(f"{chosen.name} has no evaluation steps by this judge yet; it is checked without them", "yellow")
    described = judge.backend.describe()
    self_check = not described.is_on_cpu if self_check is None else self_check
    is_brief = described.is_on_cpu and (described.parameters or 0) > LARGE and not self_check
    record = _audited(judge, chosen, files_gb(entry_of(choice)), is_brief=is_brief, as_json=as_json)
    checked = _self_checked(judge) if self_check and judge.backend.checks else None
    if as_json:
        print_json(record | {"self_check": None if checked is None else self_check_record(checked)})
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


def _followed(label: str, unit: str, work: Callable[[Callable[[int, int], None]], _Found]) -> _Found:
    """Do work that tells how far it is, and show that."""
    from geval_local.cli.progress import show_progress

    with show_progress() as progress:

        def on_done(done: int, total: int) -> None:
            if not done:
                progress.begin(label, total, unit=unit)
            progress.reach(done)

        return work(on_done)


def _time(choice: JudgeOptions, metric: Metric, *, as_json: bool) -> None:
    """Time a judge with every dtype and engine."""
    from geval_local.cli.output.audits import show_speed, speed_record
    from geval_local.judge.speed import measure

    asked = metric.with_steps(metric.steps or ())
    found = _followed("timing", "settings", lambda on_arm: measure(choice, asked, on_arm=on_arm))
    if as_json:
        print_json({"metric": metric.name, "arms": [speed_record(one) for one in found]})
    else:
        show_speed(found, metric)


def _audited(judge: Judge, metric: Metric, stored: float | None, *, is_brief: bool, as_json: bool) -> dict[str, Any]:
    """Audit a judge on a metric, its writing and its thoughts; print that, or return it as a record."""
    from geval_local.cli.output.audits import audit_record, show_audit, show_thought, show_writing
    from geval_local.cli.progress import show_progress
    from geval_local.io.columns import plain
    from geval_local.judge.audit import audit_judge, audit_thought
    from geval_local.tokens.requests import RequestMaker

    maker, engine_text = RequestMaker(judge.encoder, metric, judge.context), judge.engine_report.text
    audit = _followed(
        "scoring examples", "tokens", lambda on_read: audit_judge(judge.backend, maker, brief=is_brief, on_read=on_read)
    )
    if not as_json:
        show_audit(audit, judge.name, metric, judge.encoder.style, engine_text, stored=stored)
    writing = _written(judge, metric, audit.example.mode, is_brief=is_brief)
    if not as_json:
        show_writing(writing)
    with show_progress("thinking" if judge.thinker is not None else ""):
        thought = audit_thought(judge, metric)
    if thought is not None and not as_json:
        show_thought(thought)
    record = {"judge": judge.name, "metric": metric.name, "style": judge.encoder.style, **audit_record(audit)}
    record |= {} if thought is None else {"thinking": plain(asdict(thought))}
    return record | {"reasons": asdict(writing), "engine_report": engine_text}


def _written(judge: Judge, metric: Metric, label: str, *, is_brief: bool) -> WritingCheck:
    """Try whether a judge can write a reason, and show how far it is."""
    from geval_local.cli.progress import show_progress
    from geval_local.judge.reason_writer import CHECK_TOKENS, WritingCheck, check_writing
    from geval_local.models.registry import keep_writing

    if is_brief:
        size = short(judge.backend.describe().parameters or 0)
        return WritingCheck(None, f"on a CPU each token takes all {size} weights: --self-check tries it", "")
    with show_progress("writing a reason", CHECK_TOKENS, unit="tokens") as progress:
        found = check_writing(judge, metric, label, on_token=progress.reach)
    keep_writing(judge.fingerprint, is_of_use=bool(found.can_write))
    return found


def _self_checked(judge: Judge) -> SelfCheck:
    """Check the device that a judge is on, and show how far it is."""
    from geval_local.cli.progress import show_progress

    note("checking the device ...", "dim")
    names = list(judge.backend.checks)
    with show_progress("checking the device", len(names), unit="checks") as progress:
        return judge.backend.self_check(
            lambda finding: progress.reach(names.index(finding.name) + 1) if finding.name in names else None
        )


def _needs(entry: JudgeEntry, dtype: str | None = None) -> Needs | None:
    """Tell the main memory that a judge on this machine will take; None if its files do not say."""
    from geval_local.models.memory import memory_needed
    from geval_local.models.registry import local_directory

    directory = local_directory(entry)
    try:
        return None if directory is None else memory_needed(directory, dtype or entry.dtype, entry.adapter)
    except GevalError:  # loading it says what is wrong
        return None


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `judges list`, or a hub id.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="A directory to carry to another machine.")
    ] = None,
    models: options.ModelsFile = None,
) -> None:
    """Download a judge's safetensors, configuration and tokenizer; the only verb that uses the network."""
    from geval_local.models.fetch import entry_to_fetch
    from geval_local.models.fetch import fetch as download
    from geval_local.models.registry import load_registry

    directory = download(entry_to_fetch(name, models), output)
    show_text(str(directory))
    listed = output is None and name in load_registry(models).judges
    note(f"next: geval-local judges check {name if listed else directory}")
