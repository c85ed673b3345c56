"""How well questions are answered, in one order, two, or all orders of their options, on sets with known answers.

QAGS (consistent or not), SummEval's development half (consistency) and Topical-Chat (groundedness, understandability,
naturalness, coherence, engagingness), all in the data beside the project, put as predicates, as scores, and as choices.
Every order is computed once; the rows of the table are means over one, two, or all of them.

Of predicates, and choices between true and false: accuracy at one half, area under the ROC curve, expected calibration
error of the probability (ten equal bins). Of scales: how often the likeliest level is the people's, Spearman's
correlation of the expected level with theirs, expected calibration error of the likeliest level's probability. Of all:
label mass, and the spread over the orders. A set's lines are printed as soon as they are known; Ctrl-C or SIGTERM ends
with what is known, of the set at hand too, and `n` says of how many rows. The last line is one JSON object. With more
torch threads than idle cores everything is slow: set OMP_NUM_THREADS.

    python benchmarks/questions.py nano --rows 1000
    python benchmarks/questions.py smollm2 --style chat --rows 96
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from scipy.stats import rankdata, spearmanr

from geval_local import ChoiceQuestion, Judge, PredicateQuestion, ScoreQuestion
from geval_local.engine.window import read_window
from geval_local.questions.answer import Answer, answer_of
from geval_local.questions.form import question_forms, state_text
from geval_local.questions.question import Question

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
CONSISTENT = "Every claim of the summary is supported by the source."


def rows_of(name: str, count: int) -> list[dict]:
    rows = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    together = {"summeval_dev": 16, "topical_chat": 6}.get(name)
    if together is not None:  # whole documents and dialogues, so that candidates share theirs
        return rows[: max(together, count - count % together)]
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


def questions_of(asked) -> list[tuple[str, Question, str]]:
    """Name every way to ask: (name, question, marks)."""
    kind, text, *rest = asked
    if kind == "score":
        return [
            ("score, numbers", ScoreQuestion(instructions=text, levels=rest[0]), "numbers"),
            ("choice, letters", ChoiceQuestion(instructions=text, options=rest[0]), "letters"),
        ]
    choice = ChoiceQuestion(instructions=f"Is this true? {text}", options=["true", "false"])
    predicate = PredicateQuestion(instructions=text)
    return [(f"predicate, {marks}", predicate, marks) for marks in ("words", "letters")] + [
        ("choice, letters", choice, "letters")
    ]


def answers_of(judge: Judge, states, asked, stop: threading.Event) -> dict[str, list[Answer]]:
    """Answer every way to ask in one order, two and all: {variant: answers}; equal forms are computed once.

    Once `stop` is set, only the first states have answers.
    """
    ways = []
    for name, question, marks in questions_of(asked):
        orders = sorted({1, 2, len(question_forms(question, rotations=255, marks=marks))})
        ways += [
            (
                f"{name}, {'all ' if count > 2 else ''}{count}",
                question,
                question_forms(question, rotations=count, marks=marks),
            )
            for count in orders
        ]
    distinct = {(id(form.metric), form.text): form for _, _, forms in ways for form in forms}
    found: dict[str, list[Answer]] = {name: [] for name, _, _ in ways}
    for start in range(0, len(states), 16):
        if stop.is_set():
            break
        texts = [state_text(state) for state in states[start : start + 16]]
        entries = judge.prepare_forms([(text, form) for text in texts for form in distinct.values()])
        outcomes = map(judge.outcome, entries, read_window(judge.engine, entries, lambda count: None))
        for _ in texts:
            known = {key: next(outcomes) for key in distinct}
            for name, question, forms in ways:
                own = [known[id(form.metric), form.text] for form in forms]
                found[name].append(answer_of(question, forms, own))
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


def figures(answers: list[Answer], truths, low: float | None) -> dict[str, float | None]:
    """Sum up one variant; `low` is the people's lowest level, None for true and false."""
    kept = [(answer, truth) for answer, truth in zip(answers, truths, strict=False) if answer.is_answered]
    table, truth = np.array([answer.p for answer, _ in kept]), np.array([truth for _, truth in kept])
    spread = [answer.spread for answer, _ in kept if answer.spread is not None]
    record = {
        "n": len(kept),
        "label_mass": float(np.mean([answer.label_mass for answer, _ in kept])),
        "spread": float(np.mean(spread)) if spread else None,
    }
    if low is None:
        p, truth = table[:, 0], truth.astype(bool)
        return {
            "accuracy": float(((p >= 0.5) == truth).mean()),
            "base_rate": float(max(truth.mean(), 1 - truth.mean())),
            "auc": area(p, truth),
            "ece": calibration_error(p, truth),
            **record,
        }
    levels = np.clip(np.floor(truth - low + 0.5), 0, table.shape[1] - 1)
    right = table.argmax(axis=1) == levels
    return {
        "accuracy": float(right.mean()),
        "base_rate": float(max((levels == level).mean() for level in set(levels.tolist()))),
        "spearman": float(spearmanr(table @ np.arange(table.shape[1]), truth)[0]),
        "ece": calibration_error(table.max(axis=1), right),
        **record,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge")
    parser.add_argument("--rows", type=int, default=120, help="most rows per set; whole documents are kept together")
    parser.add_argument("--sets", nargs="+", default=["qags", "summeval", "topical"], help="first words of their names")
    parser.add_argument("--style", default=None)
    options = parser.parse_args()
    judge = Judge.load(options.judge, style=options.style)
    table: dict[str, dict[str, dict[str, float | None]]] = {}
    begin = time.process_time()
    stop = threading.Event()
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_, lambda *_: stop.set())
    for task, states, asked, truths in tasks(options.rows):
        if stop.is_set() or task.partition(" ")[0] not in options.sets:
            continue
        low = 1.0 if asked[0] == "score" else None
        found = answers_of(judge, states, asked, stop)
        table[task] = {name: figures(answers, truths, low) for name, answers in found.items() if answers}
        for name, row in table[task].items():
            shown = "  ".join(f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float))
            print(f"{task:26} {name:22} n {row['n']}  {shown}", flush=True)
    print(
        json.dumps(
            {
                "judge": options.judge.rpartition("/")[2],
                "style": judge.encoder.style,
                "rows": options.rows,
                "stopped": stop.is_set(),
                "processor_seconds": round(time.process_time() - begin, 1),
                "table": table,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
