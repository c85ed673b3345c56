"""Measures a judge on held-out text and, to choose between versions, on rated files: `python -m training.evaluate`."""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from geval_local.metric import Metric
from geval_local.prompt import metric_from_prompt_file, render_form
from training import corpus, export
from training.candidates import Grader
from training.forms import Scale
from training.recipes import RECIPES, Recipe
from training.scoring import score
from training.tasks import Maker

PAIRS = {
    "coherence": "summarization/coherence",
    "consistency": "summarization/consistency",
    "fluency": "summarization/fluency",
    "relevance": "summarization/relevance",
}
REPLY = {"source": "Request", "output": "Reply"}
UNSEEN = (  # criteria that neither the presets nor the pool of wordings have
    Metric(
        name="unseen/kindness",
        title="Kindness",
        criteria="Whether the reply is kind to the guest.",
        scale="0-10",
        fields=REPLY,
    ),
    Metric(name="unseen/rhythm", title="Rhythm", criteria="How pleasant the poem sounds when sung.", scale="1-3"),
    Metric(
        name="unseen/legal", title="Compliant", criteria="Does the notice name the law it is based on?", scale="Yes/No"
    ),
)
PRESETS = corpus.ROOT / "geval_local" / "metrics"


def package_scale(metric: Metric) -> Scale:
    values = dict(zip(metric.scale.labels, metric.scale.values, strict=True))
    ordered = sorted(values, key=values.__getitem__)
    return Scale(metric.scale.text, tuple(ordered), tuple(float(values[label]) for label in ordered))


Read = Callable[[Metric, Sequence[dict[str, str]]], list[tuple[float, float]]]


def reader(recipe: Recipe, net: Any, style: str) -> Read:
    """Make what scores samples by a metric: expected value and label mass."""
    code = recipe.tokenizer()

    def read(metric: Metric, rows: Sequence[dict[str, str]]) -> list[tuple[float, float]]:
        forms = [recipe.form(render_form(metric, row), style) for row in rows]
        return score(net, code, forms, package_scale(metric))

    return read


def interval(correct: list[float], seed: int = 0) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    data = np.array(correct)
    means = data[rng.integers(0, len(data), (1000, len(data)))].mean(1)
    return float(data.mean()), float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def pairs(read: Read, count: int, seed: int = 7) -> dict[str, tuple[float, float, float]]:
    """How often the clean text scores above its damaged version, on documents that training never saw."""
    found = {}
    for main, name in PAIRS.items():
        rng = random.Random(seed)
        maker = Maker(corpus.load("held_out"), rng)
        metric = Metric.load(name)
        correct: list[float] = []
        while len(correct) < count:
            document = maker.document()
            source: list[str] = []
            wanted = rng.randint(80, 350)
            for sentence in document.sentences:
                source.append(sentence)
                if sum(len(s.split()) for s in source) >= wanted:
                    break
            if len(source) < 5:
                continue
            grader = Grader(source, maker.pool(source, maker.foreign_documents(document)), rng)
            clean, damaged = grader.pair(main, rng.choice((0.3, 0.5, 0.75, 1.0)))
            one, two = (" ".join(w.text for s in c.sentences for w in s) for c in (clean, damaged))
            if one == two:
                continue
            (a, _), (b, _) = read(metric, [{"source": " ".join(source), "output": text} for text in (one, two)])
            correct.append(1.0 if a > b else 0.5 if a == b else 0.0)
        found[main] = interval(correct)
    return found


def masses(read: Read, count: int = 4, seed: int = 3) -> dict[str, float]:
    """Find the lowest label mass of each preset over a few held-out samples."""
    rng = random.Random(seed)
    maker = Maker(corpus.load("held_out"), rng)
    metrics = [Metric.load(path) for path in sorted(PRESETS.glob("*/*.yaml"))]
    for path in sorted((corpus.DATA_DIR.parent / "prompts").glob("*.txt")):
        scale = "1-3" if path.stem.endswith("flu") or path.stem.startswith("topical") else "1-5"
        metrics.append(metric_from_prompt_file(path, "0-1" if path.stem.endswith("gro") else scale))
    found = {}
    for metric in [*metrics, *UNSEEN]:
        lowest = 1.0
        for _ in range(count):
            text = {name: " ".join(maker.document().sentences[: rng.choice((1, 4))]) for name in metric.fields}
            ((_, mass),) = read(metric, [text])
            lowest = min(lowest, mass)
        found[metric.name] = lowest
    return found


def benchmark(
    read: Read, file: str, presets: dict[str, str], group: str | None, limit: int
) -> dict[str, tuple[float, ...]]:
    """Compute Spearman with human ratings, within groups and pooled: to choose between versions, never to train."""
    found = {}
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in json.loads((corpus.DATA_DIR / file).read_text()):
        groups[row[group or "source"]].append(row)
    for aspect, name in presets.items():
        metric = Metric.load(name)
        within, all_scores, all_human, lengths = [], [], [], []
        for members in list(groups.values())[:limit]:
            rows = [
                {"source": r["source"], "output": r["system_output"], "fact": r.get("context", "")} for r in members
            ]
            values = [v for v, _ in read(metric, rows)]
            human = [r["scores"][aspect] for r in members]
            lengths += [len(r["system_output"].split()) for r in members]
            all_scores += values
            all_human += human
            if len(set(human)) > 1 and len(set(values)) > 1:
                within.append(float(spearmanr(human, values).statistic))
        inside = interval(within) if len(within) > 1 else (float("nan"),) * 3
        pooled, length = (float(spearmanr(all_human, x).statistic) for x in (all_scores, lengths))
        found[aspect] = (*inside, pooled, length)
    return found


FILES: dict[str, tuple[dict[str, str], str | None]] = {
    "summeval_dev.json": (PAIRS, "doc_id"),
    "topical_chat.json": (
        {
            aspect: f"dialogue/{aspect}"
            for aspect in ("naturalness", "coherence", "engagingness", "groundedness", "understandability")
        },
        None,
    ),
    "qags_xsum.json": ({"consistency": "factuality/summary_consistency"}, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    parser.add_argument("judge", nargs="?", choices=list(RECIPES), default="nano")
    parser.add_argument("--name", help="folder under training/runs, the judge's name when absent")
    parser.add_argument("--style", choices=("chat", "completion"), default="chat", help="smol: how a form is written")
    parser.add_argument("--files", default="summeval_dev,topical_chat,qags_xsum", help="rated files, with commas")
    parser.add_argument("--pairs", type=int, default=300, help="pairs per dimension; 0 leaves pairs and label mass out")
    parser.add_argument("--groups", type=int, default=1000, help="sources of each rated file; 0 leaves the files out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = RECIPES[options.judge]
    read = reader(recipe, export.rounded(recipe.load(options.name or options.judge)).eval(), options.style)
    results: dict[str, Any] = {}
    if options.pairs:
        results["pairs"] = pairs(read, options.pairs)
        print(f"clean above damaged, held-out text, {options.pairs} pairs each (95 % bootstrap interval)")
        for dimension, (mean, low, high) in results["pairs"].items():
            print(f"  {dimension:<14} {mean:6.1%}  [{low:.1%}, {high:.1%}]", flush=True)
        results["mass"] = masses(read)
        print("lowest label mass of each preset, published prompt and unseen criterion")
        for name, mass in results["mass"].items():
            print(f"  {name:<34} {mass:.4f}", flush=True)
    if options.groups and corpus.DATA_DIR.exists():
        for file in (f"{name}.json" for name in options.files.split(",")):
            presets, group = FILES[file]
            results[file] = benchmark(read, file, presets, group, options.groups)
            print(f"{file}: Spearman within sources [95 % bootstrap interval] / pooled / pooled with the length")
            for aspect, (within, low, high, pooled, length) in results[file].items():
                inside = f"{within:6.3f} [{low:.3f}, {high:.3f}]" if within == within else "     -"
                print(f"  {aspect:<18} {inside} / {pooled:6.3f} / {length:6.3f}", flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
