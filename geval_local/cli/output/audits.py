"""Audits for ``judges check`` and ``score --dry-run``: forms, their tokens, the surface forms of labels; devices."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.cli.output.console import FOLDED, as_options, note, print_json, print_rows, result_console, say
from geval_local.errors import DataError, UnscorableError
from geval_local.files import readable
from geval_local.io.columns import plain

if TYPE_CHECKING:
    from geval_local.engine.backend import SelfCheck
    from geval_local.io.samples import Sample
    from geval_local.judge.audit import JudgeAudit, PromptAudit, ThoughtAudit
    from geval_local.judge.reason_writer import WritingCheck
    from geval_local.judge.speed import ArmSpeed
    from geval_local.metric import Metric
    from geval_local.options import JudgeOptions, RunOptions
    from geval_local.tokens.requests import RequestMaker

#: Tokens shown from each end of a long form.
TOKENS_SHOWN = 24
#: Characters of a reason that are shown.
TEXT_SHOWN = 160
#: Lines of a table of labels, beyond which the middle is left out.
FORMS_SHOWN = 60
#: Longest prompt where neither the judge's entry nor the model's configuration says one.
UNLIMITED = 1 << 20


# --- forms ------------------------------------------------------------------------------------------------------------


def show_forms(
    files: Sequence[str | Path], metrics: Sequence[Metric], judge: JudgeOptions, run: RunOptions, *, as_json: bool
) -> None:
    """Print, for every metric, the form of the first row that fills it: ``score --dry-run``, without weights."""
    from geval_local.engine.open import open_backend
    from geval_local.io.input_checks import check_input, reading_of, told_files
    from geval_local.io.input_files import find_files
    from geval_local.judge.steps import with_pinned_steps
    from geval_local.models.fingerprint import fingerprint, weight_files
    from geval_local.models.load import load_tokenizer, resolve_directory
    from geval_local.models.registry import directory_entry, entry_of
    from geval_local.tokens.encoder import PromptEncoder
    from geval_local.tokens.requests import RequestMaker

    paths = find_files(files)
    rows, file = check_input(paths, metrics, run), told_files(paths)
    identity: str | None
    if judge.backend.has_files:
        entry = entry_of(judge)
        tokenizer = load_tokenizer(entry, trust_remote_code=judge.trust_remote_code)
        directory = resolve_directory(entry)
        limits, files = [entry.context, directory_entry(directory).context], weight_files(directory)
        context = min((limit for limit in limits if limit), default=UNLIMITED)
        is_there = bool(files) and all(file.exists() for file in files)
        identity = fingerprint(directory, entry.adapter, code=judge.trust_remote_code) if is_there else None
    else:  # it takes no weights of this machine
        served = open_backend(judge)
        entry, tokenizer = served.entry, served.tokenizer
        context, identity = served.facts.context, served.facts.fingerprint
    encoder = PromptEncoder(tokenizer, style=entry.style)
    records: dict[str, Any] = {}
    read = reading_of(rows, metrics)
    for line in () if as_json else read:
        say(as_options(line))
    if judge.think is not None:
        note(
            f"the judge is to think, and a thought takes its weights: these are its forms without one. See one by "
            f"`geval-local judges check {shlex.quote(entry.name)} --think 1`",
            "yellow",
        )
    for metric in metrics:
        pinned = with_pinned_steps(metric, identity) if identity is not None else metric
        if pinned.needs_steps:
            note(
                f"{metric.name} has no evaluation steps yet, so their block is missing below: it takes the judge "
                f"{entry.name} to write them, which `score` does once, or `geval-local steps`",
                "yellow",
            )
        sample, audit = _first_form(file, rows, RequestMaker(encoder, pinned, context))
        if as_json:
            steps = "to be written" if pinned.needs_steps else "present" if pinned.steps else "none"
            records[metric.name] = {"row": sample.row, "steps": steps, **label_record(audit)}
            continue
        console = result_console()
        console.rule(f"{metric.name}: {sample.where}, judge {entry.name}, style {entry.style}", align="left")
        say(audit.text)
        console.rule()
        show_tokens(audit)
        show_labels(audit)
    if as_json:
        print_json({"judge": entry.name, "style": entry.style, "input": file, "read": read, "forms": records})


def _first_form(file: str, rows: Sequence[Sample], maker: RequestMaker) -> tuple[Sample, PromptAudit]:
    from geval_local.judge.audit import audit_prompt

    for sample in rows:
        try:
            return sample, audit_prompt(maker, sample)
        except UnscorableError as error:
            note(f"skipped: {error.message}")
    raise DataError(f"none of the first {len(rows)} rows of {file} fills the form of {maker.metric.name}")


def show_tokens(audit: PromptAudit) -> None:
    """Print a form's tokens as ``id piece`` pairs, without the middle of a long form."""
    pairs = [f"{token} {piece!r}" for token, piece in zip(audit.token_ids, audit.pieces, strict=True)]
    left_out = len(pairs) - 2 * TOKENS_SHOWN
    if left_out > 0:
        pairs = [*pairs[:TOKENS_SHOWN], f"... {left_out} more ...", *pairs[-TOKENS_SHOWN:]]
    dropped = f", {audit.dropped_tokens} cut off" if audit.dropped_tokens else ""
    say(f"tokens: {len(audit.token_ids)}, {audit.bos_count} of them BOS{dropped}", wrap=True)
    say("  " + "  ".join(pairs), wrap=True)


def show_labels(audit: PromptAudit) -> None:
    """Print the label trie: surface forms with their tokens, collisions, dropped forms, read-out positions."""
    rows = [
        (
            form.label,
            f"{form.value:g}",
            repr(form.text),
            " ".join(map(str, form.token_ids)),
            " ".join(map(repr, form.pieces)),
        )
        for form in audit.forms
    ]
    left_out = len(rows) - FORMS_SHOWN
    if left_out > 0:
        half = FORMS_SHOWN // 2
        rows = [*rows[:half], (f"... {left_out} more ...", "", "", "", ""), *rows[-half:]]
    print_rows(
        [(name, FOLDED) for name in ("label", "value", "surface form", "token ids", "pieces")], rows, narrow=False
    )
    extra = len(audit.inner_nodes) - 1
    say(f"positions read: {len(audit.inner_nodes)} ({extra} tokens after the form)", wrap=True)
    for path in audit.inner_nodes[1 : 1 + TOKENS_SHOWN]:
        say(f"  after the tokens {' '.join(map(str, path))}", wrap=True)
    if extra > TOKENS_SHOWN:
        say(f"  ... {extra - TOKENS_SHOWN} more ...")
    pairs = ", ".join(f"{short} opens {long}" for short, long in audit.collisions[:TOKENS_SHOWN])
    more = f" and {len(audit.collisions) - TOKENS_SHOWN} more" if len(audit.collisions) > TOKENS_SHOWN else ""
    say(f"prefix collisions: {pairs or 'none'}{more}")
    say("dropped surface forms:" + ("" if audit.dropped else " none"))
    for form in audit.dropped:
        say(f"  {form.label!r} as {form.text!r}: {form.reason}")


def show_writing(check: WritingCheck) -> None:
    """Print whether a judge can write reasons, in a line."""
    can = {True: "yes", False: "no", None: "not tried"}[check.can_write]
    told = f"{can}, because {check.because}"
    shown = " ".join(check.reason.split())[:TEXT_SHOWN]
    wrote = f"; it wrote: {shown!r}" if shown else ""
    _line("reasons", told + wrote)


def show_thought(audit: ThoughtAudit) -> None:
    """Print how a judge thinks: one thought, how it ended, and what the labels have after it."""
    how = {"mark": "ended by itself", "end": "ended with the text", "cut": "closed at the limit"}[audit.ending]
    _line("thinking", f"{audit.settings}; {audit.tokens} tokens, {how}: {' '.join(audit.text.split())[:TEXT_SHOWN]!r}")
    _line(
        "after the thought", f"{audit.rest[-TEXT_SHOWN:]!r}; label mass {audit.label_mass:.3f}, score {audit.score:.3f}"
    )


def _line(what: str, value: str) -> None:
    say(f"{what:<24} {value}")


def label_record(audit: PromptAudit) -> dict[str, Any]:
    """Return an audit of a form as plain JSON values."""
    names = {"forms": "surface_forms", "dropped": "dropped_forms"}
    record = {names.get(name, name): value for name, value in asdict(audit).items() if name != "pieces"}
    for form in record["surface_forms"]:
        del form["pieces"]
    return record


def show_self_check(checked: SelfCheck) -> None:
    """Print what computes, and how, and a line for every check."""
    result_console().rule("this device", align="left")
    device = checked.device
    for one in device["devices"]:
        memory = f", {one['memory_bytes'] / 1e9:.0f} GB" if "memory_bytes" in one else ""
        _line("device", f"{one['device']}: {one['name']}{memory}")
    names = {"torch": "torch", "cuda": "CUDA", "hip": "HIP", "triton": "Triton", "transformers": "transformers"}
    versions = ", ".join(f"{name} {device[key]}" for key, name in names.items() if device[key])
    _line("versions", f"{versions}; float32 products: {device['float32_products']}")
    _line("attention", device["attention"])
    _line("token budget", f"{device['batch_tokens']}, {device['look_ahead']} packs launched ahead")
    for finding in checked.findings:
        mark = {True: "ok", False: "FAILED", None: "-"}[finding.passed]
        _line(f"{mark:<6} {finding.name}", finding.text)


def self_check_record(checked: SelfCheck) -> dict[str, Any]:
    """Give what a device was found to do as plain JSON values."""
    return {
        "passed": not checked.failed,
        "device": plain(checked.device),
        "checks": [
            {"name": one.name, "passed": one.passed, "text": one.text, "figures": plain(one.figures)}
            for one in checked.findings
        ],
    }


def speed_record(one: ArmSpeed) -> dict[str, Any]:
    """Give the figures of one setting as plain JSON values."""
    record: dict[str, Any] = plain(asdict(one))
    del record["scores"]
    arm: dict[str, Any] = record.pop("arm")
    return arm | record


def show_speed(found: Sequence[ArmSpeed], metric: Metric) -> None:
    """Print the figures of every setting that was timed, and which one to take."""
    from geval_local.judge.speed import recommended

    rows = [
        (
            one.arm.dtype,
            "own" if one.arm.engine == "auto" else one.arm.engine,
            *(
                (
                    f"{one.tokens_per_minute:.3g}",
                    f"{one.rows_per_minute:.3g}",
                    " + ".join(readable(size) for size in (one.memory_bytes, one.gpu_bytes) if size) or "-",
                    f"{one.moved:.2g}",
                    f"{one.largest:.2g}",
                    f"{one.minutes_per_thousand:.2g} min",
                )
                if one.error is None
                else (f"not timed: {one.error}", "", "", "", "", "")
            ),
        )
        for one in found
    ]
    figures = ["tokens/min", "rows/min", "memory", "moved", "largest", "1,000 rows"]
    print_rows([("dtype", FOLDED), ("engine", FOLDED), *((name, FOLDED) for name in figures)], rows, narrow=False)
    note(f"moved: from float32 by this engine, mean and largest of {len(found[0].scores)} rows on {metric.scale.text}")
    note(f"the rows are built-in examples of {metric.name}; longer texts take longer, by their tokens")
    best = recommended(found, metric.scale.high - metric.scale.low)
    if best is found[0]:
        say("recommended: float32, as it is")
        return
    times = best.rows_per_minute / found[0].rows_per_minute
    engine = "" if best.arm.engine == found[0].arm.engine else f" --engine {best.arm.engine}"
    dtype = "" if best.arm.dtype == "float32" else f" --dtype {best.arm.dtype}"
    say(f"recommended:{dtype}{engine}, {times:.1f} times as fast; it moves a score by {best.moved:.2g} on average")


#: Characters shown by `check` from the end of the rendered prompt.
TAIL = 400


def show_audit(
    audit: JudgeAudit, name: str, metric: Metric, style: str, engine_text: str, *, stored: float | None = None
) -> None:
    """Print what an audit found: size (`stored` on disk, in GB), engine, the prompt's end, labels, and an example."""
    console = result_console()
    facts, described = audit.facts, audit.description
    _line("judge", f"{name} ({described.place})")
    _line("fingerprint", f"{facts.fingerprint}, tokenizer {facts.setup['tokenizer']}")
    if described.parameters is not None and described.memory_bytes is not None:
        kept = f"{readable(described.memory_bytes)} in memory, computed in {facts.setup['dtype']}"
        on_disk = "" if stored is None else f"{readable(stored * 1e9)} as stored, "
        _line("size", f"{short(described.parameters)} parameters, {on_disk}{kept}")
    _line("precision", described.precision.text(facts.setup["dtype"]))
    _line("attention", facts.setup["attention"])
    _line("engine", engine_text)
    _line("context", f"{facts.context} tokens")
    _line("metric", f"{metric.name}, scale {metric.scale.text}, style {style}")
    _line("BOS tokens", str(audit.prompt.bos_count))
    console.rule("the example's prompt, its end", align="left")
    say(("..." if len(audit.prompt.text) > TAIL else "") + audit.prompt.text[-TAIL:], wrap=True)
    console.rule()
    show_labels(audit.prompt)
    example = audit.example
    _line("example: score", f"{example.score:.4f} on {metric.scale.text}, std {example.std:.3f}")
    _line("example: label mass", f"{example.label_mass:.6f}")
    if len(example.scale.labels) <= 12:
        _line("example: labels", "  ".join(f"{label}: {p:.4f}" for label, p in example.probabilities.items()))
    if audit.other_tokens:
        _line("example: other tokens", "  ".join(f"{token!r}: {p:.4f}" for token, p in audit.other_tokens))
    lengths = ", ".join(map(str, audit.lengths))
    _line(
        "batched - one by one",
        f"{audit.batch_difference:.2e} at most ({audit.batches} batches of prompts with {lengths} tokens)",
    )
    if (own := audit.own_difference) is not None:
        told = f"not known: {own}" if isinstance(own, str) else f"{own:.4f} at most, in units of the scale"
        _line("program - own engine", f"{told} (the same file)")


def audit_record(audit: JudgeAudit) -> dict[str, Any]:
    """Describe an audit."""
    facts, described, example = audit.facts, audit.description, audit.example
    precision = described.precision
    return {
        "directory": described.place,
        "fingerprint": facts.fingerprint,
        "tokenizer": facts.setup["tokenizer"],
        "parameters": described.parameters,
        "memory_bytes": described.memory_bytes,
        "dtype": facts.setup["dtype"],
        "precision": {
            "reason": precision.reason,
            "noise": None if precision.noise is None else asdict(precision.noise),
        },
        "attention": facts.setup["attention"],
        "engine": facts.report.engine,
        "context": facts.context,
        "prompt": label_record(audit.prompt),
        "example": {
            "score": example.score,
            "label_mass": example.label_mass,
            "probabilities": example.probabilities,
            "other_tokens": audit.other_tokens,
        },
        "batch_difference": audit.batch_difference,
        "own_engine_difference": audit.own_difference,
        "batches": audit.batches,
        "batch_lengths": audit.lengths,
    }


def short(count: float) -> str:
    """Write a large count."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {letter}"
    return f"{count:g}"
