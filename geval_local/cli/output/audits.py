"""Tables of an audit: tokens of a form, surface forms of the labels, what was dropped; what a device does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from geval_local.cli.output.console import print_table, result_console

if TYPE_CHECKING:
    from geval_local.engine.self_check import SelfCheck
    from geval_local.judge.audit import PromptAudit
    from geval_local.judge.reason_writer import WritingCheck

#: Tokens shown from each end of a long form.
TOKENS_SHOWN = 24
#: Characters of a reason that are shown.
TEXT_SHOWN = 160
#: Lines of a table of labels, beyond which the middle is left out.
FORMS_SHOWN = 60


def show_tokens(audit: PromptAudit) -> None:
    """Print a form's tokens as ``id piece`` pairs, without the middle of a long form."""
    pairs = [f"{token} {piece!r}" for token, piece in zip(audit.token_ids, audit.pieces, strict=True)]
    left_out = len(pairs) - 2 * TOKENS_SHOWN
    if left_out > 0:
        pairs = [*pairs[:TOKENS_SHOWN], f"... {left_out} more ...", *pairs[-TOKENS_SHOWN:]]
    console = result_console()
    dropped = f", {audit.dropped_tokens} cut off" if audit.dropped_tokens else ""
    console.print(f"tokens: {len(audit.token_ids)}, {audit.bos_count} of them BOS{dropped}", markup=False)
    console.print("  " + "  ".join(pairs), markup=False)


def show_labels(audit: PromptAudit) -> None:
    """Print the label trie: surface forms with their tokens, collisions, dropped forms, read-out positions."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("label", "value", "surface form", "token ids", "pieces"):
        table.add_column(heading, overflow="fold")
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
    for row in rows:
        table.add_row(*map(Text, row))
    print_table(table)
    console = result_console()
    extra = len(audit.inner_nodes) - 1
    console.print(f"positions read: {len(audit.inner_nodes)} ({extra} tokens after the form)", markup=False)
    for path in audit.inner_nodes[1 : 1 + TOKENS_SHOWN]:
        console.print(f"  after the tokens {' '.join(map(str, path))}", markup=False)
    if extra > TOKENS_SHOWN:
        console.print(f"  ... {extra - TOKENS_SHOWN} more ...", markup=False)
    pairs = ", ".join(f"{short} opens {long}" for short, long in audit.collisions[:TOKENS_SHOWN])
    more = f" and {len(audit.collisions) - TOKENS_SHOWN} more" if len(audit.collisions) > TOKENS_SHOWN else ""
    console.print(f"prefix collisions: {pairs or 'none'}{more}", markup=False, soft_wrap=True)
    console.print("dropped surface forms:" + ("" if audit.dropped else " none"), markup=False)
    for form in audit.dropped:
        console.print(f"  {form.label!r} as {form.text!r}: {form.reason}", markup=False, soft_wrap=True)


def show_writing(check: WritingCheck) -> None:
    """Print whether a judge can write reasons, in a line."""
    told = f"{'yes' if check.can_write else 'no'}, because {check.because}"
    shown = " ".join(check.reason.split())[:TEXT_SHOWN]
    wrote = f"; it wrote: {shown!r}" if shown else ""
    result_console().print(f"{'reasons':<24} {told}{wrote}", markup=False, soft_wrap=True)


def label_record(audit: PromptAudit) -> dict[str, Any]:
    """Return an audit of a form as plain JSON values."""
    return {
        "text": audit.text,
        "token_ids": list(audit.token_ids),
        "bos_count": audit.bos_count,
        "dropped_tokens": audit.dropped_tokens,
        "surface_forms": [
            {"label": form.label, "value": form.value, "text": form.text, "token_ids": list(form.token_ids)}
            for form in audit.forms
        ],
        "dropped_forms": [{"label": form.label, "text": form.text, "reason": form.reason} for form in audit.dropped],
        "collisions": [list(pair) for pair in audit.collisions],
        "inner_nodes": [list(path) for path in audit.inner_nodes],
    }


def show_self_check(checked: SelfCheck) -> None:
    """Print what computes, and how, and a line for every check."""
    console = result_console()
    console.rule("this device", align="left")

    def line(what: str, value: str) -> None:
        console.print(f"{what:<24} {value}", markup=False, soft_wrap=True)

    device = checked.device
    for one in device["devices"]:
        memory = f", {one['memory_bytes'] / 1e9:.0f} GB" if "memory_bytes" in one else ""
        line("device", f"{one['device']}: {one['name']}{memory}")
    names = {"torch": "torch", "cuda": "CUDA", "hip": "HIP", "triton": "Triton", "transformers": "transformers"}
    versions = ", ".join(f"{name} {device[key]}" for key, name in names.items() if device[key])
    line("versions", f"{versions}; float32 products: {device['float32_products']}")
    line("attention", device["attention"])
    line("token budget", f"{device['batch_tokens']}, {device['look_ahead']} packs launched ahead")
    line("probe at loading", _probe_text(device["probe"]))
    for finding in checked.findings:
        mark = {True: "ok", False: "FAILED", None: "-"}[finding.passed]
        line(f"{mark:<6} {finding.name}", finding.text)


def _probe_text(probe: dict[str, Any] | None) -> str:
    if probe is None:
        return "none: the engine was asked for, or shares nothing"
    left_out = [f"window of {probe['window_not_reached']} not reached"] if probe["window_not_reached"] else []
    left_out += [probe["left_out"]] if probe["left_out"] else []
    done = f"{probe['difference']:.1e} nats on {probe['tokens']} tokens ({probe['tolerance']:g} allowed)"
    return "; ".join([done, *left_out])


def self_check_record(checked: SelfCheck) -> dict[str, Any]:
    """Give what a device was found to do as plain JSON values."""
    return {
        "passed": not checked.failed,
        "device": _finite(checked.device),
        "checks": [
            {"name": one.name, "passed": one.passed, "text": one.text, "figures": _finite(one.figures)}
            for one in checked.findings
        ],
    }


def _finite(value: Any) -> Any:
    """Write figures that are not numbers as null: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
