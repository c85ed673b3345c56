"""Output of the engine benchmark: a readable table, and one JSON object."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def show(console: Console, record: dict[str, Any]) -> None:
    table = Table(
        title=f"{record['model']} {record['dtype']}, {record['workload']}: {record['prompts']} prompts; "
        f"trie is the engine {record['engine']!r}"
    )
    columns = ("engine", "runs", "seconds", "times the trie's", "processor time", "tokens computed", "score difference")
    for column in columns:
        table.add_column(column, justify="left" if column == "engine" else "right")
    work = record["processor_seconds"]
    for name, seconds in record["seconds"].items():
        difference = record["score_difference"].get(name)
        table.add_row(
            name,
            str(len(seconds)),
            f"{statistics.median(seconds):.2f}",
            spread(record["ratios"][name]) if record["ratios"] else "",
            spread([one / other for one, other in zip(work[name], work["trie"], strict=False)])
            if record["ratios"]
            else "",
            f"{record['computed'].get(name, 0):,}",
            "" if difference is None else f"{difference:.1e}",
        )
    for name, reason in record["missing"].items():
        table.add_row(name, "-", "", reason)
    console.print(table)
    seconds = statistics.median(record["seconds"]["trie"])
    computed = record["computed"]["trie"]
    console.print(
        f"prompts {record['prompt_tokens']:,} tokens, distinct {record['trie_tokens']:,}; trie computed {computed:,} "
        f"({computed / record['trie_tokens']:.3f} of the distinct), {record['prompts'] / seconds:.1f} prompts/s"
    )
    if "flops" in record:
        console.print(
            f"trie {record['flops'] / 1e9:,.0f} GFLOP/s: {100 * record['utilization']:.0f} % of the measured rate "
            f"({record['matmul_flops'] / 1e9:,.0f}, this device on the model's own matrices); " + nominal_text(record)
        )
    if record["gpu_busy"] is not None:
        console.print(f"GPU busy {100 * record['gpu_busy']:.0f} % of the trie's time")
    meanwhile = [share for shares in record["processors_of_others"].values() for share in shares if share is not None]
    if meanwhile:
        console.print(
            f"other programs meanwhile: {statistics.mean(meanwhile):.2f} processors, at most {max(meanwhile):.2f}"
        )
    console.print()


def nominal_text(record: dict[str, Any]) -> str:
    """Say which share of the nominal rate that is."""
    if record["nominal_flops"] is None:
        return "no nominal rate is known of this device and dtype"
    return (
        f"{100 * record['nominal_utilization']:.0f} % of the nominal rate "
        f"({record['nominal_flops'] / 1e9:,.0f}, dense, by the maker's data sheet)"
    )


def summarize(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the first model in one object, the others' ratios beside them."""

    def ratio(record: dict[str, Any], arm: str) -> float | None:
        values = record["ratios"].get(arm)
        return round(statistics.median(values), 2) if values else None

    first = records[0]
    return {
        "model": first["model"],
        "workload": first["workload"],
        "ratio_left_padded": ratio(first, "left-padded"),
        "ratio_lm_eval": ratio(first, "lm-eval"),
        "tokens_computed": first["computed"].get("trie"),
        "tokens_trie": first["trie_tokens"],
        "max_score_difference": max(
            (record["score_difference"]["trie"] for record in records if "trie" in record["score_difference"]),
            default=None,
        ),
        "utilization": round(first.get("utilization", 0.0), 3),
        "all": {
            f"{record['model']}/{record['workload']}": {arm: ratio(record, arm) for arm in record["ratios"]}
            for record in records
        },
    }
