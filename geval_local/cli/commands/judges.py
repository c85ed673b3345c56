"""``geval-local judges``: list, check and fetch judges."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geval_local.cli import options
from geval_local.cli.option_groups import takes_options
from geval_local.cli.options import complete_judge, complete_metric
from geval_local.cli.output.console import note, print_json, print_table, result_console, show_text
from geval_local.errors import JudgeError
from geval_local.options import JudgeOptions

if TYPE_CHECKING:
    from geval_local.judge.audit import JudgeAudit
    from geval_local.models.registry import JudgeEntry

app = typer.Typer(no_args_is_help=True)

DEFAULT_METRIC = "summarization/coherence"
#: Upper ends of the groups of `list`, GB (1e9 bytes): common GPU sizes.
MEMORY_GROUPS = (4, 8, 16, 24, 48, 80)
#: Characters shown by `check` from the end of the rendered prompt.
TAIL = 400


@app.command("list")
def list_judges(models: options.ModelsFile = None, as_json: options.Json = False) -> None:
    """List the judges by the memory that their weights need, and whether their files are on this machine."""
    from rich import box
    from rich.table import Table

    from geval_local.models.registry import load_registry, local_directory

    registry = load_registry(models)
    present = {name: local_directory(entry) is not None for name, entry in registry.judges.items()}
    if as_json:
        records = [
            entry.model_dump(mode="json") | {"default": name == registry.default, "present": present[name]}
            for name, entry in registry.judges.items()
        ]
        print_json(records)
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("judge", "parameters", "memory", "context", "kind", "licence", "here"):
        figure = heading in ("parameters", "memory", "context")
        # Only a licence may be folded: a name or a figure that is cut cannot be copied.
        table.add_column(heading, justify="right" if figure else "left", no_wrap=heading != "licence")
    for heading, entries in _by_memory(registry.judges.values()):
        table.add_section()
        table.add_row(f"[bold]{heading}[/bold]")
        for entry in entries:
            table.add_row(
                "  " + entry.name + (" (default)" if entry.name == registry.default else ""),
                _known(entry, "parameters", _short),
                "-" if entry.memory_gb is None else _size(entry.memory_gb),
                _known(entry, "context", str),
                _kind(entry) or "-",
                _known(entry, "license", str),
                "yes" if present[entry.name] else "no",
            )
    print_table(table)
    if any(entry.unconfirmed for entry in registry.judges.values()):
        note("?: no source confirms it")
    note("memory is that of the weights alone, computed; a batch of prompts needs some GB more")
    note("next: geval-local judges check NAME, or geval-local judges fetch NAME")


def _by_memory(entries: Iterable[JudgeEntry]) -> Iterator[tuple[str, list[JudgeEntry]]]:
    """Yield the non-empty groups, smallest first: heading, and judges by memory."""
    known = sorted((entry for entry in entries if entry.memory_gb is not None), key=_memory)
    for lower, upper in pairwise((0.0, *MEMORY_GROUPS, math.inf)):
        group = [entry for entry in known if lower < _memory(entry) <= upper]
        if group:
            yield f"weights up to {upper:g} GB" if upper < math.inf else f"weights above {lower:g} GB", group
    unknown = [entry for entry in entries if entry.memory_gb is None]
    if unknown:
        yield "weights of unknown size", unknown


def _memory(entry: JudgeEntry) -> float:
    return math.inf if entry.memory_gb is None else entry.memory_gb


def _size(gb: float) -> str:
    return f"{gb:.1f} GB" if gb >= 1 else f"{gb * 1e3:.0f} MB"


def _known(entry: JudgeEntry, key: str, write: Callable[[Any], str]) -> str:
    value = getattr(entry, key)
    return "-" if value is None else write(value) + ("?" if key in entry.unconfirmed else "")


def _kind(entry: JudgeEntry) -> str:
    """Describe a judge's purpose, and its layers if they are unusual."""
    parts = ["for judging"] if entry.made_for == "judging" else []
    parts += ["hybrid"] if entry.hybrid else []
    if entry.active_parameters is not None:
        parts.append(f"MoE, {_short(entry.active_parameters)} used")
    return ", ".join(parts + ([entry.quantization] if entry.quantization else []))


@app.command()
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
    as_json: options.Json = False,
    *,
    judge_options: JudgeOptions,
) -> None:
    """Audit a judge on one metric, and check whether it computes on this device what it should.

    Labels as tokens, the prompt's end, an example's score, batch invariance, size, and whether the judge can write a
    reason (which is no failure); then the device: attention, packs against one prompt at a time, memory that runs out,
    speed. Exit code 1 if a check fails.
    """
    from geval_local.cli.output.audits import self_check_record, show_self_check, show_writing
    from geval_local.cli.progress import load_shown, show_progress
    from geval_local.cli.scoring import EXIT_GATE
    from geval_local.engine.batched import PaddedEngine
    from geval_local.engine.self_check import check_engine
    from geval_local.judge.audit import audit_judge
    from geval_local.judge.reason_writer import check_writing
    from geval_local.judge.steps import with_pinned_steps
    from geval_local.metric import Metric
    from geval_local.models.head import Head
    from geval_local.tokens.requests import RequestMaker

    chosen = Metric.load(metric)
    judge = load_shown(judge_options.model_copy(update={"name": name}))
    chosen = with_pinned_steps(chosen, judge.fingerprint)
    if chosen.needs_steps:
        note(f"{chosen.name} has no evaluation steps by this judge yet; it is checked without them", "yellow")
    model = judge.loaded.model
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    audit = audit_judge(judge.loaded, judge.engine, alone, RequestMaker(judge.encoder, chosen, judge.context))
    engine_text = judge.engine_report.text
    if not as_json:
        _show(audit, judge.name, chosen, judge.encoder.style, engine_text)
    writing = check_writing(judge, chosen, audit.example.mode)
    if not as_json:
        show_writing(writing)
    note("checking the device ...", "dim")
    with show_progress("checking the device", unit=""):
        checked = check_engine(model, judge.engine, judge.engine_report)
    if as_json:
        record = {"judge": judge.name, "metric": chosen.name, "style": judge.encoder.style, **_record(audit)}
        print_json(
            record
            | {"reasons": asdict(writing), "engine_report": engine_text, "self_check": self_check_record(checked)}
        )
    else:
        show_self_check(checked)
    if checked.failed:
        note(
            f"failed: {', '.join(dict.fromkeys(checked.failed))}. Do not trust scores from this device. "
            "--engine padded shares nothing between prompts and may serve meanwhile. Please report it with the output "
            "of --json.",
            "red",
        )
        raise typer.Exit(EXIT_GATE)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `judges list`, or a hub id.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="A directory to carry to another machine.")
    ] = None,
    models: options.ModelsFile = None,
) -> None:
    """Download a judge's safetensors, configuration and tokenizer; the only verb that uses the network."""
    from geval_local.models.fetch import fetch as download
    from geval_local.models.registry import load_registry

    directory = download(_entry_to_fetch(name, models), output)
    show_text(str(directory))
    listed = output is None and name in load_registry(models).judges
    note(f"next: geval-local judges check {name if listed else directory}")


def _entry_to_fetch(name: str, models: Path | None) -> JudgeEntry:
    from geval_local.models.registry import HUB_ID, JudgeEntry, find_judge

    try:
        return find_judge(name, models)
    except JudgeError:
        if not re.fullmatch(HUB_ID, name):
            raise
        return JudgeEntry(name=name, hub=name)


def _short(count: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {letter}"
    return f"{count:g}"


def _show(audit: JudgeAudit, name: str, metric: Any, style: str, engine_text: str) -> None:
    from geval_local.cli.output.audits import show_labels

    console = result_console()

    def line(what: str, value: str) -> None:
        console.print(f"{what:<24} {value}", markup=False, soft_wrap=True)

    line("judge", f"{name} ({audit.directory})")
    line("fingerprint", f"{audit.fingerprint}, tokenizer {audit.tokenizer_hash}")
    line("size", f"{_short(audit.parameters)} parameters, {audit.memory_bytes / 1e6:.1f} MB in {audit.dtype}")
    line("precision", audit.precision.text(audit.dtype))
    line("attention", audit.attention)
    line("engine", engine_text)
    line("context", f"{audit.context} tokens")
    line("metric", f"{metric.name}, scale {metric.scale.text}, style {style}")
    line("BOS tokens", str(audit.prompt.bos_count))
    console.rule("the example's prompt, its end", align="left")
    console.print(("..." if len(audit.prompt.text) > TAIL else "") + audit.prompt.text[-TAIL:], markup=False)
    console.rule()
    show_labels(audit.prompt)
    example = audit.example
    line("example: score", f"{example.score:.4f} on {metric.scale.text}, std {example.std:.3f}")
    line("example: label mass", f"{example.label_mass:.6f}")
    if len(example.scale.labels) <= 12:
        line("example: labels", "  ".join(f"{label}: {p:.4f}" for label, p in example.probabilities.items()))
    if audit.other_tokens:
        line("example: other tokens", "  ".join(f"{token!r}: {p:.4f}" for token, p in audit.other_tokens))
    lengths = ", ".join(map(str, audit.lengths))
    line(
        "batched - one by one",
        f"{audit.batch_difference:.2e} at most ({audit.batches} batches of prompts with {lengths} tokens)",
    )


def _record(audit: JudgeAudit) -> dict[str, Any]:
    from geval_local.cli.output.audits import label_record

    return {
        "directory": str(audit.directory),
        "fingerprint": audit.fingerprint,
        "tokenizer": audit.tokenizer_hash,
        "parameters": audit.parameters,
        "memory_bytes": audit.memory_bytes,
        "dtype": audit.dtype,
        "precision": {
            "reason": audit.precision.reason,
            "noise": None if audit.precision.noise is None else asdict(audit.precision.noise),
        },
        "attention": audit.attention,
        "engine": audit.engine,
        "context": audit.context,
        "prompt": label_record(audit.prompt),
        "example": {
            "score": audit.example.score,
            "label_mass": audit.example.label_mass,
            "probabilities": audit.example.probabilities,
            "other_tokens": [list(pair) for pair in audit.other_tokens],
        },
        "batch_difference": audit.batch_difference,
        "batches": audit.batches,
        "batch_lengths": list(audit.lengths),
    }
