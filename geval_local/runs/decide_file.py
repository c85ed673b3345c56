"""Durable decisions: questions about every row of a file, in a run as `score_file` has it.

::

    result = decide_file("tickets.jsonl", "questions.yaml", "nano", "runs/tickets/", state="message")
    result = resume("runs/tickets/")            # after an interruption
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.errors import ConfigurationError
from geval_local.io.columns import check_chosen, decision_layout
from geval_local.io.evidence import DEFAULT_STATE, check_evidence, read_state
from geval_local.judging.windows import WINDOW, full_window
from geval_local.questions.question import Question, load_questions, named_questions
from geval_local.runs.asked import question_metrics
from geval_local.runs.completion import RunResult, complete
from geval_local.runs.events import RunEvents
from geval_local.runs.files import fingerprint_input
from geval_local.runs.judge_choice import JudgeChoice, choices_of, labels_of
from geval_local.runs.manifest import JudgeRecord, Manifest, definition
from geval_local.runs.settings import QuestionSettings, Settings
from geval_local.runs.target import find_target

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["decide_file"]


def decide_file(
    file: str | os.PathLike[str],
    questions: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Question | Mapping[str, Any]],
    judges: Judge | JudgeChoice | str | Sequence[Judge | JudgeChoice | str | None] | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    state: str | Sequence[str] | Mapping[str, str] = DEFAULT_STATE,
    rotations: int = 1,
    formats: Sequence[str] = (),
    limit: int | None = None,
    columns: Sequence[str] | None = None,
    csv_safe: bool = False,
    window: int | None = None,
    use_cache: bool = True,
    retry_errors: bool = False,
    overwrite: bool = False,
    events: RunEvents | None = None,
) -> RunResult:
    """Answer questions about every row of a file; the figures are those of `Judge.decide_many`, to rounding.

    Parameters
    ----------
    file : path
        JSONL, JSON, CSV or Parquet; one evidence per row.
    questions : path, mapping of str, or sequence
        A YAML or JSON file, or what `geval_local.questions.question.parse_questions` takes; questions without a name
        are called ``q1``, ``q2``, ... by their place.
    judges : Judge, JudgeChoice, str, None, or sequence of them
        Who answers: loaded judges, judges to be loaded, or their names. None is the default judge.
    output : path, optional
        A .jsonl, .csv or .parquet file; or a directory for the run, new, empty, or that of the same run, which is then
        gone on with. None keeps nothing.
    state : str, sequence of str, or mapping of str to str
        The columns that make the evidence, see `geval_local.io.evidence.read_state`.
    rotations : int
        In how many orders the outcomes of a question are shown; its answer is the mean over them. A question's own
        `rotations` go before it.
    formats : sequence of str
        What a run directory exports: jsonl (the default), csv, parquet.
    limit : int, optional
        Read the first rows only.
    columns : sequence of str, optional
        Columns of CSV results; see `geval_local.io.writer.ResultWriter.open`.
    csv_safe : bool
        Whether texts in CSV results that a spreadsheet would execute are neutralised.
    window : int, optional
        Rows that are gathered to share their texts; as many as make about 4096 prompts when absent.
    use_cache : bool
        Whether figures of earlier runs are taken over.
    retry_errors : bool
        Whether questions without an answer are asked again.
    overwrite : bool
        Leave to replace a file that is no result of this tool, or a run of another configuration.
    events : RunEvents, optional
        Is told what the run is doing, and may stop it.

    Returns
    -------
    RunResult
        With `answers`.

    Raises
    ------
    GevalError
        If the input, the questions, the output or a judge cannot be used; all but the judge before it is loaded.
    Interrupted
        If the run was stopped. Everything finished is kept; `geval_local.resume` goes on with it.
    """
    path = Path(file)
    target = find_target(output, formats, "decisions")
    target.refuse_input(path)
    given = Path(questions) if isinstance(questions, str | os.PathLike) else questions
    asked = load_questions(given) if isinstance(given, Path) else named_questions(given)
    if rotations < 1:
        raise ConfigurationError(f"a question is shown in at least one order, not in {rotations}")
    metrics = question_metrics(asked, rotations)
    evidence = read_state(state)
    choices, loaded = choices_of(judges)
    # What is wrong with the file as a whole is found here, before minutes go into a judge.
    first = check_evidence(path, evidence, limit=limit)
    types = {str(question.name): question.type for question in asked}
    check_chosen(columns, first, list(types), decision_layout(types))
    settings = Settings(
        # Prompts are held by the window, and a row has as many as there are forms.
        window=full_window(window, max(1, WINDOW // len(metrics))),
        limit=limit,
        use_cache=use_cache,
        formats=list(target.formats),
        output=None if target.output is None else target.output.name,
        metrics=[definition(metric) for metric in metrics],
        columns=None if columns is None else list(columns),
        csv_safe=csv_safe,
        questions=QuestionSettings(
            asked=[question.model_dump(mode="json", exclude_none=True) for question in asked],
            state=evidence,
            rotations=rotations,
        ),
    )
    records = [
        JudgeRecord(name=name, choice=choice.record()) for name, choice in zip(labels_of(choices), choices, strict=True)
    ]
    return complete(
        target,
        Manifest.new(fingerprint_input(path), settings, records),
        {},
        {records[place].name: judge for place, judge in loaded.items()},
        events or RunEvents(),
        retry_errors=retry_errors,
        overwrite=overwrite,
    )
