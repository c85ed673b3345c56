"""Draws docs/engine.svg, the README's chart, from the raw figures of benchmarks/engine.py.

    python benchmarks/chart.py                        # from benchmarks/results/*-engine-*.json
    python benchmarks/chart.py FILE.json ... -o x.svg

One panel per model and workload, one bar per engine: how many times as long as with shared prefixes, the median of the
interleaved rounds with the range beside it. Light and dark by what the reader's system asks for.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAMES = {
    "trie": "geval-local, shared prefixes",
    "padded": "geval-local, right-padded",
    "one at a time": "one prompt at a time",
    "left-padded": "left-padded batches, full logits",
    "last logits": "left-padded, last logits only",
    "continuous batching": "transformers continuous batching",
    "lm-eval": "lm-evaluation-harness",
    "vLLM": "vLLM, prefix caching",
    "SGLang": "SGLang, radix cache",
    "llama.cpp": "llama.cpp, prefix reuse",
}
MODELS = {
    "llama-26m": "26 M, 8 k vocabulary",
    "llama-26m-16k": "26 M, 16 k vocabulary",
    "llama-26m-32k": "26 M, 32 k vocabulary",
    "qwen2.5-0.5b": "Qwen2.5-0.5B shape",
    "llama-8b": "8 B Llama shape",
    "qwen3.5-30m": "30 M, hybrid as Qwen3.5",
    "smollm2": "SmolLM2-135M-Instruct",
    "nano": "embedded judge",
}
WORKLOADS = {
    "synthetic": "synthetic prompts",
    "summeval": "SummEval coherence",
    "whole": "SummEval's size, four metrics",
}
WIDTH, LEFT, RIGHT, BAR, STEP = 760, 235, 165, 15, 22
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .quiet { fill: #59636e; font-size: 12px }
.ours { fill: #1a7f4b } .other { fill: #8c959f } .axis { stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .quiet { fill: #9198a1 } .ours { fill: #3fb873 } .other { fill: #656c76 }
  .axis { stroke: #3d444d }
}
"""


@dataclass
class Panel:
    """All that was measured of one model and workload.

    Attributes
    ----------
    record : dict
        The first record of it, for counts.
    ratios : dict
        Engine -> times as long as the trie, per round.
    seconds : list of float
        The trie's, of all rounds.
    """

    record: dict[str, Any]
    ratios: dict[str, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


def read(files: Iterable[Path]) -> tuple[dict[tuple[Any, ...], Panel], dict[str, Any]]:
    """Read results; the arms of one workload may be spread over several files."""
    panels: dict[tuple[Any, ...], Panel] = {}
    machine: dict[str, Any] = {}
    dates: set[str] = set()
    for file in sorted(files):
        head, *records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for record in records:
            if not record.get("ratios"):
                continue
            machine = head["machine"]
            dates.add(machine["date"][:10])
            key = tuple(record[name] for name in ("model", "workload", "dtype", "prompts", "prompt_tokens"))
            panel = panels.setdefault(key, Panel(record))
            panel.seconds += record["seconds"]["trie"]
            for arm, values in record["ratios"].items():
                panel.ratios.setdefault(arm, []).extend(values)
    return panels, machine | {"date": " to ".join(sorted({min(dates), max(dates)})) if dates else ""}


def draw(panels: Sequence[Panel], machine: dict[str, Any]) -> str:
    """Draw the panels one below the other."""
    longest = max(statistics.median(values) for panel in panels for values in panel.ratios.values())
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts: list[str] = []
    y = 24

    def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> None:
        parts.append(f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>')

    text(0, y, "Time to score the same prompts, shared prefixes = 1 (shorter is better)", "title")
    for panel in panels:
        record = panel.record
        y += 34
        text(0, y, f"{MODELS[record['model']]}, {record['dtype']}", "title")
        detail = f"{WORKLOADS[record['workload']]}: {record['prompts']} prompts of {record['prompt_tokens']:,} tokens"
        text(LEFT, y, f"{detail}, {record['trie_tokens']:,} distinct", "quiet")
        y += 8
        top = y
        for arm in (name for name in NAMES if name in panel.ratios):
            middle = statistics.median(panel.ratios[arm])
            length = max(1.0, middle * scale)
            kind = "ours" if arm == "trie" else "other"
            parts.append(f'<rect x="{LEFT}" y="{y + 3}" width="{length:.1f}" height="{BAR}" rx="2" class="{kind}"/>')
            text(LEFT - 8, y + 15, NAMES[arm], anchor="end")
            low, high = min(panel.ratios[arm]), max(panel.ratios[arm])
            text(LEFT + length + 6, y + 15, _label(arm, middle, low, high, panel, len(panel.ratios[arm])))
            y += STEP
        parts.append(f'<line x1="{LEFT}" x2="{LEFT}" y1="{top}" y2="{y}" class="axis"/>')
    y += 26
    for line in _caption(machine):
        text(0, y, line, "quiet")
        y += 17
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" '
        'aria-label="Time of scoring engines relative to shared prefixes">'
    )
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def _label(arm: str, middle: float, low: float, high: float, panel: Panel, rounds: int) -> str:
    if arm == "trie":
        seconds = statistics.median(panel.seconds)
        return f"1 = {seconds:.3g} s, {panel.record['prompts'] / seconds:.3g} prompts/s"
    return f"{middle:.1f}" + (f" ({low:.1f}-{high:.1f})" if rounds > 1 else " (one run)")


def _caption(machine: dict[str, Any]) -> list[str]:
    where = machine["gpu"] or f"{machine['cores']} cores of an {machine['processor']} (CPU)"
    software = [f"torch {machine['torch']}", f"transformers {machine['transformers']}"]
    if machine.get("lm_eval"):
        software.append(f"lm-eval {machine['lm_eval']}")
    missing = [] if machine["gpu"] else ["On a GPU: not measured, none at hand."]
    lines = [f"{where}, {machine['date']}, {', '.join(software)}."]
    return [*lines, " ".join(["Median of interleaved rounds, range in brackets.", *missing])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="results (benchmarks/results/*-engine-*.json)")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "engine.svg")
    options = parser.parse_args()
    panels, machine = read(options.files or (ROOT / "benchmarks" / "results").glob("*-engine-*.json"))
    if not panels:
        parser.error("no results with ratios; run benchmarks/engine.py first")
    order = list(MODELS)
    drawn = sorted(panels.values(), key=lambda panel: (order.index(panel.record["model"]), panel.record["workload"]))
    options.output.write_text(draw(drawn, machine), encoding="utf-8")
    print(options.output)


if __name__ == "__main__":
    main()
