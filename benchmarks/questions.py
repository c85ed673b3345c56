"""How questions are best put: words, letters or numbers as answers, one order or two, on sets with known answers.

Measured on QAGS (consistent or not), SummEval's development half (consistency) and Topical-Chat (groundedness,
understandability, naturalness, coherence, engagingness), all in the data beside the project. For predicates and
choices: accuracy at one half and by the best threshold, area under the ROC curve, expected calibration error (ten equal
bins) and label mass; for scores: Spearman's correlation with people and label mass. The last line is one JSON object.

    python benchmarks/questions.py nano --rows 120
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, spearmanr

from geval_local import ChoiceQuestion, Judge, PredicateQuestion, ScoreQuestion
from geval_local.engine.window import read_window

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
CONSISTENT = "Every claim of the summary is supported by the source."


def rows_of(name: str, count: int) -> list[dict]:
    rows = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    if name == "summeval_dev":  # whole documents, so that candidates share theirs
        return rows[: count - count % 16]
    return rows[:: max(1, len(rows) // count)][:count]


def tasks(count: int):
    """Yield (task, states, question texts, truths)."""
    qags = rows_of("qags_xsum", count)
    states = [{"source": row["source"], "summary": row["system_output"]} for row in qags]
    yield "qags consistent", states, ("predicate", CONSISTENT), [row["scores"]["consistency"] >= 0.5 for row in qags]
    summeval = rows_of("summeval_dev", count)
    states = [{"source": row["source"], "summary": row["system_output"]} for row in summeval]
    truth = [row["scores"]["consistency"] for row in summeval]
    yield "summeval consistent", states, ("predicate", CONSISTENT), [value >= 4.99 for value in truth]
    levels = ["no claim is supported", "few claims are", "about half of the claims are", "most are", "all are"]
    yield (
        "summeval consistency",
        states,
        ("score", "How many claims of the summary does the source support?", levels),
        truth,
    )
    chat = rows_of("topical_chat", count)
    states = [{"conversation": row["source"], "fact": row["context"], "response": row["system_output"]} for row in chat]
    for name, text in (
        ("groundedness", "The response makes use of the fact."),
        ("understandability", "The response can be understood given the conversation."),
    ):
        yield f"topical {name}", states, ("predicate", text), [row["scores"][name] >= 0.5 for row in chat]
    for name, text, levels in (
        ("naturalness", "How natural is the response?", ["unnatural", "somewhat natural", "natural"]),
        ("coherence", "Does the response continue the conversation?", ["no", "somewhat", "yes"]),
        ("engagingness", "How engaging is the response?", ["dull", "moderately interesting", "interesting"]),
    ):
        yield f"topical {name}", states, ("score", text, levels), [row["scores"][name] for row in chat]


def variants(asked):
    """Yield (variant, question, marks)."""
    kind, text, *rest = asked
    for rotations in (1, 2):
        if kind == "score":
            question = ScoreQuestion(instructions=text, levels=rest[0], rotations=rotations)
            yield f"score, numbers, {rotations}", question, "numbers"
            yield f"score, letters, {rotations}", question, "letters"
            continue
        predicate = PredicateQuestion(instructions=text, rotations=rotations)
        for marks in ("words", "letters", "numbers"):
            yield f"predicate, {marks}, {rotations}", predicate, marks
        choice = ChoiceQuestion(instructions=f"Is this true? {text}", options=["true", "false"], rotations=rotations)
        for marks in ("letters", "numbers"):
            yield f"choice, {marks}, {rotations}", choice, marks


def answers_of(judge: Judge, states, asked):
    """Answer all variants about every state in one go: {variant: answers}."""
    named = list(variants(asked))
    found = {name: [] for name, _, _ in named}
    for start in range(0, len(states), 16):
        works = [
            (name, judge.decision_work(state, [question], marks=marks))
            for state in states[start : start + 16]
            for name, question, marks in named
        ]
        prepared = [work.prepare(0, len(work)) for _, work in works]
        entries = [entry for own in prepared for entry in own]
        outcomes = map(judge.outcome, entries, read_window(judge.engine, entries, lambda count: None))
        for (name, work), own in zip(works, prepared, strict=True):
            found[name].append(work.finish([next(outcomes) for _ in own])[0])
    return found


def calibration_error(p: np.ndarray, truth: np.ndarray) -> float:
    bins = np.minimum((p * 10).astype(int), 9)
    return float(
        sum(abs(p[bins == b].mean() - truth[bins == b].mean()) * (bins == b).mean() for b in set(bins.tolist()))
    )


def area(p: np.ndarray, truth: np.ndarray) -> float:
    yes = int(truth.sum())
    no = len(truth) - yes
    return float((rankdata(p)[truth].sum() - yes * (yes + 1) / 2) / (yes * no)) if yes and no else float("nan")


def figures(answers, truths) -> dict[str, float]:
    kept = [(answer, truth) for answer, truth in zip(answers, truths, strict=True) if answer.is_answered]
    values, truth = [answer for answer, _ in kept], np.array([truth for _, truth in kept])
    mass = float(np.mean([answer.label_mass for answer in values]))
    spread = [answer.spread for answer in values if answer.spread is not None]
    record = {"n": len(kept), "label_mass": mass, "spread": float(np.mean(spread)) if spread else None}
    if values[0].question.type == "score":
        return {"spearman": float(spearmanr([answer.score for answer in values], truth)[0]), **record}
    p = np.array([answer.p[0] for answer in values])
    truth = truth.astype(bool)
    best = max(float(((p >= cut) == truth).mean()) for cut in [*np.unique(p).tolist(), 2.0])
    return {
        "accuracy": float(((p >= 0.5) == truth).mean()),
        "best_accuracy": best,
        "base_rate": float(max(truth.mean(), 1 - truth.mean())),
        "auc": area(p, truth),
        "ece": calibration_error(p, truth),
        **record,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge")
    parser.add_argument("--rows", type=int, default=120, help="rows per set")
    parser.add_argument("--style", default=None)
    options = parser.parse_args()
    judge = Judge.load(options.judge, style=options.style)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for task, states, asked, truths in tasks(options.rows):
        table[task] = {name: figures(found, truths) for name, found in answers_of(judge, states, asked).items()}
        for name, row in table[task].items():
            shown = "  ".join(f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float))
            print(f"{task:24} {name:24} {shown}", flush=True)
    print(
        json.dumps(
            {
                "judge": options.judge.rpartition("/")[2],
                "style": judge.encoder.style,
                "rows": options.rows,
                "table": table,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
