"""What ``decide`` prints: one line per question, and where the file is."""

from __future__ import annotations

from typing import Any

from geval_local.cli.deciding import DecideResult, DecideTask, QuestionTally
from geval_local.cli.output.console import note, print_json, print_table

__all__ = ["show_decisions"]


def show_decisions(result: DecideResult, task: DecideTask, *, as_json: bool) -> None:
    """Print what the answers came to."""
    if as_json:
        questions = {str(tally.question.name): _record(tally) for tally in result.tallies}
        output = None if task.output is None else str(task.output)
        record = {"judge": result.judge, "rows": result.rows, "questions": questions, "output": output}
        print_json({**record, "seconds": round(result.seconds, 3)})
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("question", overflow="fold")
    table.add_column("answers", overflow="fold")
    for header in ("answered", "label mass", "spread"):
        table.add_column(header, justify="right")
    for tally in result.tallies:
        spread = tally.mean(tally.spread)
        table.add_row(
            Text(str(tally.question.name)),
            Text(_answers(tally)),
            f"{tally.answered} of {tally.rows}",
            _figure(tally.mean(tally.mass)),
            _figure(spread) if spread else "-",
        )
    print_table(table)
    for tally in result.tallies:
        if tally.first_error is not None:
            note(
                f"{tally.question.name}: {tally.rows - tally.answered} without an answer; first: {tally.first_error}",
                "yellow",
            )
    pace = len(result.tallies) * result.rows / max(result.seconds, 1e-9)
    note(
        f"{result.rows} rows, {len(result.tallies)} questions each, {result.seconds:.1f} s, {pace:.1f} answers/s", "dim"
    )
    if task.output is not None:
        note(f"written: {task.output}")


def _record(tally: QuestionTally) -> dict[str, Any]:
    record: dict[str, Any] = {"type": tally.question.type, "rows": tally.rows, "answered": tally.answered}
    if tally.question.type == "choice":
        record["chosen"] = tally.chosen
    else:
        record["mean"] = tally.mean(tally.total)
    return {**record, "label_mass": tally.mean(tally.mass), "first_error": tally.first_error}


def _answers(tally: QuestionTally) -> str:
    if not tally.answered:
        return "-"
    if tally.question.type == "choice":
        ordered = sorted(tally.chosen.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {count}" for name, count in ordered[:6]) + (", ..." if len(ordered) > 6 else "")
    name = "mean probability" if tally.question.type == "predicate" else "mean level"
    return f"{name} {_figure(tally.mean(tally.total))}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
