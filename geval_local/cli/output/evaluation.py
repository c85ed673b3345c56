"""The end of an evaluation: one table over all data files, unscored rows, reports, gates."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from geval_local import __version__
from geval_local.cli.output.console import note, print_json, print_table, result_console
from geval_local.cli.output.run_summary import run_record, show_unscored, show_warnings, summary_table

if TYPE_CHECKING:
    from geval_local.evaluation.execution import EvaluationResult

__all__ = ["show_evaluation"]


def show_evaluation(result: EvaluationResult, *, as_json: bool) -> None:
    """Print the figures of an evaluation to stdout, and its gates to stderr."""
    if as_json:
        print_json(
            {
                "version": __version__,
                "evaluation": result.file.record.model_dump(),
                "data": {name: run_record(run) for name, run in result.runs.items()},
                "reports": {name: str(page) for name, page in result.reports.items()},
                "failed_gates": result.failures,
            }
        )
    else:
        names = [name for name, run in result.runs.items() for _ in run.summaries]
        print_table(summary_table([one for run in result.runs.values() for one in run.summaries], names))
        for name, run in result.runs.items():
            show_unscored([(f"unscored in {one.metric} of {name}", one.reasons) for one in run.summaries])
        console = result_console()
        for signature in dict.fromkeys(one for run in result.runs.values() for one in run.signatures):
            console.print(f"signature {signature}", soft_wrap=True, markup=False)
        for run in result.runs.values():
            files = ", ".join(shlex.quote(str(file)) for file in run.files)
            note(f"wrote {files}", "dim")
        for page in result.reports.values():
            note(f"wrote {shlex.quote(str(page))}; open it in any browser")
    for name, run in result.runs.items():
        show_warnings(run, f"{name}: " if len(result.runs) > 1 else "")
    for failure in result.failures:
        note(f"gate failed: {failure}", "bold red")
