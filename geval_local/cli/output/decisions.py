"""The end of a run that asked questions: one line per question, what has no answer, and the signatures."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from geval_local.cli.output.console import note, print_json, print_table, result_console
from geval_local.cli.output.run_summary import common_record, show_pace, show_unscored
from geval_local.score import LOW_LABEL_MASS

if TYPE_CHECKING:
    from geval_local.questions.tally import QuestionSummary
    from geval_local.runs.completion import RunResult

__all__ = ["show_decisions"]

#: Options of a choice that are counted on its line.
OPTIONS_SHOWN = 6


def show_decisions(result: RunResult, failures: list[str], *, as_json: bool, command: str) -> None:
    """Print what the answers came to, to stdout, and what failed, to stderr; parameters as `show_result`."""
    if as_json:
        print_json(_record(result, failures))
    else:
        _show_table(result)
        show_pace(result, len(result.answers), "answers")
        show_unscored([(f"without an answer to {answer.name}", answer.reasons) for answer in result.answers])
        console = result_console()
        for signature in result.signatures:
            console.print(f"signature {signature}", soft_wrap=True, markup=False)
        note("next:")
        if result.target.results is None:
            note(f"  keep every row's answers     {command} -o decisions.jsonl")
        else:
            note(f"  every row's answers          {shlex.quote(str(result.target.results))}")
        note(f"  audit the judge              geval-local judges check {shlex.quote(result.judges[0])}")
    for answer in result.answers:
        if answer.low_mass_share > 0:
            note(
                f"warning: {answer.name}: {answer.low_mass_share:.1%} of the answers have a label mass below "
                f"{LOW_LABEL_MASS:g}: there the judge meant to write something else than an answer",
                "yellow",
            )
    for failure in failures:
        note(f"gate failed: {failure}", "bold red")


def _show_table(result: RunResult) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("question", overflow="fold")
    table.add_column("answers", overflow="fold")
    for header in ("answered", "mass", "min", f"<{LOW_LABEL_MASS:g}", "spread"):
        table.add_column(header, justify="right", no_wrap=True)
    for answer in result.answers:
        low = "-" if math.isnan(answer.low_mass_share) else f"{answer.low_mass_share:.1%}"
        table.add_row(
            Text(answer.name),
            Text(_told(answer)),
            f"{answer.answered}/{answer.rows}",
            _figure(answer.label_mass),
            _figure(answer.label_mass_min),
            low,
            "-" if answer.spread is None else _figure(answer.spread),
        )
    print_table(table)


def _told(answer: QuestionSummary) -> str:
    if not answer.answered:
        return "-"
    if answer.type == "choice":
        more = ", ..." if len(answer.chosen) > OPTIONS_SHOWN else ""
        return ", ".join(f"{_option(value)} {count}" for value, count in answer.chosen[:OPTIONS_SHOWN]) + more
    return f"mean {'probability' if answer.type == 'predicate' else 'level'} {_figure(answer.mean)}"


def _option(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _record(result: RunResult, failures: list[str]) -> dict[str, Any]:
    return {
        **common_record(result),
        "answers_per_second": round(result.rows * len(result.answers) / result.seconds, 3) if result.seconds else None,
        "questions": {
            answer.name: answer.to_dict() | {"signature": signature}
            for answer, signature in zip(result.answers, result.signatures, strict=True)
        },
        "failed_gates": failures,
    }
