"""Result rows for tests of the report, made from the package's own Distribution and Score, without a model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from geval_local.analysis.results import ScoredRun
from geval_local.errors import Cause, ErrorCode
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import ResultManifest, ScoredMetric, write_manifest
from geval_local.io.results import ResultRows
from geval_local.metric import Metric
from geval_local.questions.pair import PAIR_SCALE
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Score

#: Texts that would have an effect if treated as markup.
HOSTILE = (
    "<script>window.hit = 1</script>",
    "</script><script>window.hit = 2</script>",
    "<img src=x onerror='window.hit = 3'>",
    '"><svg onload=window.hit=4>',
    "<!-- <script>window.hit = 5",
    "javascript:window.hit=6",
    "{{ 7 * 7 }}{% raw %} ${window.hit = 7} &lt;b&gt; &amp;",
    "line\u2028separator\u2029paragraph \ud800 \x00 \u202eright to left",
    "<a href='http://example.invalid/'>a</a><link rel=stylesheet href=http://example.invalid/x>",
)

_WHO = ("The island council", "A fishing crew", "The town library", "The county hospital", "A group of students")
_DID = ("has replaced", "will sell", "opened", "repaired", "is closing", "moved")
_WHAT = ("its oldest ferry", "the bridge at Asker", "two reading rooms", "a flooded cellar", "the bicycle path")
_WHEN = ("on Monday", "after eight months of work", "before the summer", "in spite of the cost", "once more")


def sentence(rng: np.random.Generator) -> str:
    return " ".join(str(rng.choice(part)) for part in (_WHO, _DID, _WHAT, _WHEN)) + "."


def text(rng: np.random.Generator, sentences: int) -> str:
    return " ".join(sentence(rng) for _ in range(sentences))


def distribution(rng: np.random.Generator, scale: Scale, centre: float, mass: float) -> Distribution:
    """Labels around a centre (0-1 over the scale), as a judge would spread them."""
    places = np.linspace(0, 1, len(scale.labels))
    logits = -((places - centre) ** 2) / 0.06 + rng.normal(0, 0.35, len(places))
    p = np.exp(logits) / np.exp(logits).sum() * mass
    return Distribution(scale, np.log(p))


def rows(
    count: int,
    *,
    metrics: Sequence[str] = ("coherence", "fluency"),
    scale: str = "1-5",
    per_group: int = 5,
    seed: int = 0,
    unscored: Sequence[int] = (),
    low_mass: Sequence[int] = (),
    threshold: float | None = None,
    sentences: int = 8,
) -> list[dict[str, Any]]:
    """Rows as ``geval-local score`` writes them, with human ratings under ``scores.<metric>``."""
    rng = np.random.default_rng(seed)
    parsed, made, source = Scale.parse(scale), [], ""
    for index in range(count):
        if index % per_group == 0:
            source = text(rng, sentences)
        quality = rng.beta(2.2, 1.4)
        row: dict[str, Any] = {
            "id": f"item-{index + 1}",
            "doc_id": f"doc-{index // per_group + 1}",
            "system_id": f"M{index % per_group}",
            "source": source,
            "output": text(rng, 2),
            "scores": {},
            "geval": {},
        }
        for metric in metrics:
            mass = 0.35 if index in low_mass else float(1 - min(0.08, rng.beta(1, 60)))
            centre = float(np.clip(quality + rng.normal(0, 0.12), 0, 1))
            score = Score.from_distribution(
                metric,
                distribution(rng, parsed, centre, mass),
                estimator=Estimator(),
                threshold=threshold,
                other_tokens=((" The", 0.41), ("\n", 0.2)) if index in low_mass else (),
                prompt_tokens=300,
            )
            if index in unscored:
                score = Score.unscored(
                    metric,
                    Cause(f"the filled form has {4000 + index} tokens, the judge takes 2048", ErrorCode.TOO_LONG),
                )
            row["geval"][metric] = score.to_dict()
            span = parsed.high - parsed.low
            rating = parsed.low + span * float(np.clip(quality + rng.normal(0, 0.15), 0, 1))
            row["scores"][metric] = round(rating * 3) / 3
        made.append(row)
    return made


def pair_rows(systems: Sequence[str], *, documents: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows as ``geval-local pairs`` writes them: the first systems are preferred, the first shown gains a little."""
    rng, made = np.random.default_rng(seed), []
    for document in range(documents):
        for one, other in itertools.combinations(range(len(systems)), 2):
            orders = []
            for order in (0.05, -0.05):
                a = float(np.clip(0.5 + order + 0.15 * (other - one) + rng.normal(0, 0.03), 0.02, 0.93))
                orders.append(Distribution(PAIR_SCALE, np.log(0.9 * np.array([a, 0.95 - a, 0.05]))))
            both = Distribution(PAIR_SCALE, np.log(0.9 * np.mean([order.p for order in orders], axis=0)))
            score = Score.from_distribution("coherence/pairs", both, estimator=Estimator(), orders=orders)
            made.append(
                {
                    "id": f"{document}/{one}/{other}",
                    "document": f"doc-{document}",
                    "system_a": systems[one],
                    "system_b": systems[other],
                    "row_a": 1,
                    "row_b": 2,
                    "geval": {"coherence/pairs": score.to_dict()},
                }
            )
    return made


def write_run(path: Path, made: Sequence[dict[str, Any]], signatures: Mapping[str, str], **definition: Any) -> Path:
    """Write rows as a result file, with a manifest that gives some metrics their signatures."""
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    metrics = {
        name: ScoredMetric(text, Metric(name=name, criteria="How good the text is.", scale="1-5", **definition), 0)
        for name, text in signatures.items()
    }
    digest = file_sha256(path)
    write_manifest(path, ResultManifest("nano", "input.jsonl", digest, len(made), metrics, digest))
    return path


def run_of(made: Sequence[dict[str, Any]], metrics: Mapping[str, tuple[str, Metric]]) -> ScoredRun:
    """Rows as a run whose metrics have signatures and definitions."""
    known = {name: ScoredMetric(signature, metric, 0) for name, (signature, metric) in metrics.items()}
    manifest = ResultManifest("nano", "input.jsonl", "0" * 64, len(made), known)
    return ScoredRun(Path("results"), held=ResultRows.of(made), described=manifest)


def metric_of(**definition: Any) -> Metric:
    """A metric, of a scale from 1 to 5 unless another is named."""
    return Metric(**{"name": "coherence", "criteria": "How good the text is.", "scale": "1-5"} | definition)


def reason_lines(path: Path, made: Sequence[dict[str, Any]], metric: str, texts: Mapping[int, str | None]) -> Path:
    """Write reasons of rows, by number, as ``geval-local reasons`` does."""
    lines = []
    for row, text in texts.items():
        figures = made[row - 1]["geval"][metric]
        line = {"row": row, "metric": metric, "score": figures["score"], "label": figures["mode"], "reason": text}
        line |= {"is_complete": True, "cites_text": False, "error": None if text else "the judge wrote nothing"}
        lines.append(line | {"prompt_sha256": "ab" * 32, "signature": "judge:models/wise@12ab"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def many(count: int, *, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Rows in thousands, quickly: five hundred made ones again and again, every text a new one."""
    made = rows(min(count, 500), metrics=metrics, sentences=40)
    return [
        made[index % len(made)]
        | {
            "id": f"item-{index + 1}",
            "source": f"{made[index % len(made)]['source']} {index // 5}",
            "output": f"{made[index % len(made)]['output']} {index}",
        }
        for index in range(count)
    ]


def rescored(given: Sequence[dict[str, Any]], *, seed: int, shift: float = 0.08) -> list[dict[str, Any]]:
    """Score the same items by another judge, a little milder."""
    rng = np.random.default_rng(seed)
    copied: list[dict[str, Any]] = json.loads(json.dumps(list(given)))
    for row in copied:
        for metric, figures in row["geval"].items():
            if figures["score"] is not None:
                centre = float(np.clip(figures["normalized"] + shift + rng.normal(0, 0.13), 0, 1))
                scale = Scale.parse({label: float(label) for label in figures["probabilities"]})
                made = distribution(rng, scale, centre, float(1 - rng.beta(1, 40)))
                row["geval"][metric] = Score.from_distribution(metric, made, estimator=Estimator()).to_dict()
    return copied
