"""Draw the documents' pictures as SVG from the figures in benchmarks/results: `python docs/pictures.py`.

Charts read their figures from the records that the pages link to. A picture looks right on light and dark pages.
"""

from __future__ import annotations

import json
import math
import re
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = Path(__file__).parent / "pictures"
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11px; fill: #57606a }
  .paper { fill: #ffffff }
  .ours { fill: #0f766e }
  .other { fill: #9aa5b1 }
  .line { stroke: #24292f }
  .grid { stroke: #d8dee4 }
  .box { fill: #e6f4f1; stroke: #0f766e }
  .plain { fill: #f3f4f6; stroke: #9aa5b1 }
  .edge { stroke: #9aa5b1; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9aa5b1 }
    .paper { fill: #161b22 }
    .ours { fill: #2dd4bf }
    .other { fill: #6e7681 }
    .line { stroke: #e6edf3 }
    .grid { stroke: #30363d }
    .box { fill: #12332f; stroke: #2dd4bf }
    .plain { fill: #21262d; stroke: #6e7681 }
  }
"""


class Drawing:
    """An SVG picture that grows by elements."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="6"/>',
        ]

    def text(self, x: float, y: float, words: str, *, kind: str = "", anchor: str = "start") -> None:
        """Write words."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>')

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a rectangle."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> None:
        """Draw a line."""
        self.parts.append(f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        """Draw a dot."""
        self.parts.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="5"/>')

    def box(self, x: float, y: float, width: float, words: str, *, note: str = "", kind: str = "box") -> None:
        """Draw a box with words in it."""
        self.bar(x, y, width, 40 if note else 28, kind)
        self.text(x + width / 2, y + 18, words, anchor="middle")
        if note:
            self.text(x + width / 2, y + 33, note, kind="small", anchor="middle")

    def end(self) -> str:
        """Give the whole picture."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def record(name: str) -> str:
    """Read a record."""
    return (RESULTS / name).read_text(encoding="utf-8")


def average(name: str, judge: str) -> tuple[float, float, float]:
    """Read a judge's average correlation on SummEval with its interval."""
    found = re.search(
        rf"^ *{re.escape(judge)} +(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]",
        record(name).split("average over the dimensions")[1],
        re.M,
    )
    assert found is not None, f"{name} has no average of {judge}"
    return float(found[1]), float(found[2]), float(found[3])


def agreement() -> str:
    """Draw how far judges agree with people on SummEval."""
    smol = "2026-11-28-meta-eval-smol-summeval.txt"
    measured = {
        "smol": average(smol, "smol"),
        "nano": average("2026-11-25-meta-eval-nano-summeval.txt", "nano"),
        "ROUGE-L": average(smol, "rouge-l"),
        "chrF": average(smol, "chrf"),
        "SmolLM2-135M, untuned": average("2026-11-22-meta-eval-smollm2-gguf.txt", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    }
    published = {
        name: float(re.search(rf"^{re.escape(name)} .* ([\d.]+)  published$", record(smol), re.M)[1])  # type: ignore[index]
        for name in ("G-Eval-4", "UniEval", "G-Eval-3.5", "BARTScore", "BERTScore")
    }
    entries = sorted(
        [*measured, *published], key=lambda name: -(measured[name][0] if name in measured else published[name])
    )
    drawing = Drawing(
        720, 50 + 26 * len(entries), "Spearman correlation with people on SummEval, average of four aspects"
    )

    def at(value: float) -> float:
        return 210 + 800 * max(value, 0)

    for value in (0, 0.1, 0.2, 0.3, 0.4, 0.5):
        drawing.line(at(value), 20, at(value), 30 + 26 * len(entries), "grid")
        drawing.text(at(value), 45 + 26 * len(entries), f"{value:g}", kind="small", anchor="middle")
    for place, name in enumerate(entries):
        y = 24 + 26 * place
        drawing.text(200, y + 14, name, anchor="end")
        if name in measured:
            mean, low, high = measured[name]
            drawing.bar(at(0), y + 3, max(at(mean) - at(0), 1), 16, "ours" if name in ("smol", "nano") else "other")
            drawing.line(at(low), y + 11, at(high), y + 11)
            drawing.text(at(max(high, 0)) + 8, y + 15, f"{mean + 0:.2f}".replace("-0.00", "0.00"), kind="small")
        else:
            drawing.dot(at(published[name]), y + 11, "other")
            drawing.text(at(published[name]) + 10, y + 15, f"{published[name]:.2f} published", kind="small")
    return drawing.end()


def speed() -> str:
    """Draw how long engines take for the same prompts."""
    text = record("2026-11-21-engine-26m-vocabularies.txt")
    names = {
        "trie": "geval-local",
        "last logits": "padded batches, last logits",
        "left-padded": "left-padded batches",
        "lm-eval": "lm-evaluation-harness",
    }
    seconds = {shown: float(re.search(rf"│ {name} +│ +\d+ │ +([\d.]+) │", text)[1]) for name, shown in names.items()}  # type: ignore[index]
    drawing = Drawing(720, 30 + 30 * len(seconds), "Seconds for 128 prompts of SummEval on two CPU cores")
    for place, (name, taken) in enumerate(seconds.items()):
        y = 15 + 30 * place
        drawing.text(210, y + 17, name, anchor="end")
        drawing.bar(220, y + 3, 400 * taken / max(seconds.values()), 20, "ours" if place == 0 else "other")
        drawing.text(228 + 400 * taken / max(seconds.values()), y + 18, f"{taken:.1f} s", kind="small")
    return drawing.end()


def cost() -> str:
    """Draw what judges cost on a processor, by engine and dtype, and what matrix units change."""
    lines = record("2026-11-29-cpu-cost.json").splitlines()[1:]
    minutes: dict[str, dict[str, float]] = {}
    for one in map(json.loads, lines):
        engine = "vLLM" if one["engine"] == "vllm" else "default"
        if one["seconds"] == one["seconds"]:  # NaN: the engine does not take this judge
            minutes.setdefault(one["judge"], {})[f"{engine}, {one['dtype']}"] = one["seconds"] * 1000 / 60
    bars = sum(map(len, minutes.values()))
    with_units = re.findall(r"^(own engine|vLLM) +(\w+) +([\d.]+) s$", record("2026-11-29-engine-amx.txt"), re.M)
    drawing = Drawing(720, 110 + 20 * (bars + len(with_units)) + 26 * len(minutes), "What a judge costs on two cores")
    most = max(max(own.values()) for own in minutes.values())
    drawing.text(20, 22, "Minutes for 1,000 rows without matrix units (AMD EPYC), on a logarithmic scale")
    y = 34.0
    for judge, own in minutes.items():
        drawing.text(20, y + 16, judge)
        y += 24
        for name, taken in own.items():
            width = 400 * math.log(taken / 0.01) / math.log(most / 0.01)
            drawing.text(210, y + 12, name, kind="small", anchor="end")
            drawing.bar(220, y + 1, width, 14, "other" if name.startswith("vLLM") else "ours")
            drawing.text(228 + width, y + 12, f"{taken:.2g}" if taken < 100 else f"{taken:,.0f}", kind="small")
            y += 20
    y += 26
    drawing.text(20, y, "Seconds for 48 prompts with matrix units (Xeon with AMX), SmolLM2-135M")
    y += 10
    for engine, dtype, taken in with_units:
        drawing.text(
            210, y + 12, f"{'default' if engine == 'own engine' else engine}, {dtype}", kind="small", anchor="end"
        )
        drawing.bar(220, y + 1, 24 * float(taken), 14, "ours" if engine == "own engine" else "other")
        drawing.text(228 + 24 * float(taken), y + 12, taken, kind="small")
        y += 20
    return drawing.end()


def prefixes() -> str:
    """Draw the trie of two documents with three outputs each."""
    drawing = Drawing(720, 250, "Prompts share their beginnings: each box is computed once")
    drawing.box(20, 105, 170, "task, criteria, steps", note="shared by all rows")
    for document in range(2):
        y = 45 + 120 * document
        drawing.line(190, 125, 230, y + 20, "edge")
        drawing.box(230, y, 170, f"source text {document + 1}", note="shared by its outputs")
        for output in range(3):
            at = y - 30 + 36 * output
            drawing.line(400, y + 20, 440, at + 14, "edge")
            drawing.box(440, at, 120, f"output {3 * document + output + 1}", kind="plain")
            drawing.line(560, at + 14, 585, at + 14, "edge")
            drawing.text(592, at + 18, "p(1) ... p(5)", kind="small")
    return drawing.end()


def intervals() -> str:
    """Draw what an interval is: means of several samples around the mean of all documents."""
    drawing = Drawing(720, 190, "Twelve samples of documents: each has its own mean and interval")
    true = 360.0
    drawing.line(true, 20, true, 160, "grid")
    drawing.text(true, 178, "mean of all such documents", kind="small", anchor="middle")
    offsets = (-30, 12, 44, -8, 21, -52, 5, -17, 33, -96, 60, -3)
    for place, offset in enumerate(offsets):
        y = 24 + 11 * place
        missed = abs(offset) > 80
        drawing.line(true + offset - 80, y, true + offset + 80, y)
        drawing.dot(true + offset, y, "other" if missed else "ours")
        if missed:
            drawing.text(true + offset - 95, y + 4, "1 of 20 misses it", kind="small", anchor="end")
    return drawing.end()


def verbs() -> str:
    """Draw which verb answers which question."""
    asked = (
        ("How good is each output?", "score"),
        ("Why is this one bad?", "reasons"),
        ("Which system or version is better?", "compare"),
        ("Which of two outputs is better?", "pairs, rank"),
        ("Did it get worse since last week?", "run, gate"),
        ("Do the scores agree with people?", "meta-eval"),
        ("What would people say of all rows?", "estimate"),
        ("Does the judge favour one side?", "bias"),
        ("Typed questions about any text?", "decide"),
        ("Show it to somebody?", "report"),
    )
    drawing = Drawing(720, 20 + 34 * len(asked), "Which verb answers which question")
    for place, (question, verb) in enumerate(asked):
        y = 12 + 34 * place
        drawing.bar(20, y, 320, 28, "plain")
        drawing.text(34, y + 18, question)
        drawing.line(340, y + 14, 400, y + 14, "edge")
        drawing.bar(400, y, 290, 28, "box")
        drawing.text(414, y + 18, f"geval-local {verb}")
    return drawing.end()


DRAWN = {f"{one.__name__}.svg": one for one in (agreement, speed, cost, prefixes, intervals, verbs)}


def main() -> None:
    """Write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        (PICTURES / name).write_text(draw(), encoding="utf-8")
        sys.stdout.write(f"wrote docs/pictures/{name}\n")


if __name__ == "__main__":
    main()
