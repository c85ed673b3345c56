"""``score --dry-run``: the first form, its tokens and the label trie, from the tokenizer alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geval_local.cli.output.audits import label_record, show_labels, show_tokens
from geval_local.cli.output.console import note, print_json, result_console
from geval_local.errors import DataError, UnscorableError
from geval_local.io.input_checks import check_input
from geval_local.io.samples import Sample
from geval_local.judge.audit import PromptAudit, audit_prompt
from geval_local.judge.steps import with_pinned_steps
from geval_local.metric import Metric
from geval_local.models.fingerprint import fingerprint, weight_files
from geval_local.models.load import load_tokenizer, resolve_directory
from geval_local.models.registry import JudgeEntry, directory_entry, entry_of
from geval_local.options import JudgeOptions
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.requests import RequestMaker

UNLIMITED = 1 << 20


def show_forms(
    file: Path, metrics: Sequence[Metric], judge: JudgeOptions, mapping: Mapping[str, str], *, as_json: bool
) -> None:
    """Print, for every metric, the form of the first row that fills it."""
    rows = check_input(file, metrics, mapping=mapping)
    entry = entry_of(judge)
    tokenizer = load_tokenizer(entry, trust_remote_code=judge.trust_remote_code)
    encoder = PromptEncoder(tokenizer, style=entry.style)
    directory = resolve_directory(entry)
    identity = fingerprint(directory, entry.adapter, code=judge.trust_remote_code) if _is_complete(directory) else None
    records: dict[str, Any] = {}
    for metric in metrics:
        pinned = with_pinned_steps(metric, identity) if identity is not None else metric
        if pinned.needs_steps:
            note(
                f"{metric.name} has no evaluation steps yet, so their block is missing below: it takes the judge "
                f"{entry.name} to write them, which `score` does once, or `geval-local steps`",
                "yellow",
            )
        sample, audit = _first_form(file, rows, RequestMaker(encoder, pinned, _context(entry, directory)))
        if as_json:
            steps = "to be written" if pinned.needs_steps else "present" if pinned.steps else "none"
            records[metric.name] = {"row": sample.row, "steps": steps, **label_record(audit)}
            continue
        console = result_console()
        console.rule(f"{metric.name}: {sample.where}, judge {entry.name}, style {entry.style}", align="left")
        console.print(audit.text, markup=False, soft_wrap=True)
        console.rule()
        show_tokens(audit)
        show_labels(audit)
    if as_json:
        print_json({"judge": entry.name, "style": entry.style, "input": str(file), "forms": records})


def _first_form(file: Path, rows: Sequence[Sample], maker: RequestMaker) -> tuple[Sample, PromptAudit]:
    for sample in rows:
        try:
            return sample, audit_prompt(maker, sample)
        except UnscorableError as error:
            note(f"skipped: {error.message}")
    raise DataError(f"none of the first {len(rows)} rows of {file} fills the form of {maker.metric.name}")


def _is_complete(directory: Path) -> bool:
    """Whether the weights exist: steps can only have been written and pinned with them."""
    files = weight_files(directory)
    return bool(files) and all(file.exists() for file in files)


def _context(entry: JudgeEntry, directory: Path) -> int:
    """Return the longest prompt, from the entry and the model's configuration."""
    limits = [entry.context, directory_entry(directory).context]
    return min((limit for limit in limits if limit), default=UNLIMITED)
