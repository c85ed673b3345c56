"""The work behind ``decide``: rows stream through a judge into a file that appears when it is complete."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.cli.output.console import note
from geval_local.cli.progress import load_shown, show_progress
from geval_local.errors import DataError, OutputError, QuestionError
from geval_local.io.samples import Sample, read_samples
from geval_local.io.text_formats import free_name, to_json
from geval_local.questions.answer import Answer, ChoiceAnswer, PredicateAnswer, unanswered
from geval_local.questions.form import question_forms, state_text
from geval_local.questions.question import Question
from geval_local.runs.judge_choice import JudgeChoice

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["DecideResult", "DecideTask", "QuestionTally", "decide_file"]

#: Prompts that are read together; their rows are a window.
PROMPTS = 4096
DEFAULT_COLUMN = "state"


@dataclass(frozen=True)
class DecideTask:
    """What is to be decided.

    Attributes
    ----------
    file : Path
        The rows.
    questions : tuple of Question
        All named.
    columns : tuple of str
        Columns of the evidence; empty for the column ``state``.
    output : Path or None
        A ``.jsonl`` file that is not there yet.
    rotations : int
        See `geval_local.questions.form.question_forms`.
    limit : int or None
        Most rows.
    """

    file: Path
    questions: tuple[Question, ...]
    columns: tuple[str, ...] = ()
    output: Path | None = None
    rotations: int = 1
    limit: int | None = None


@dataclass
class QuestionTally:
    """What the answers to one question came to.

    Attributes
    ----------
    question : Question
        Which one.
    rows, answered : int
        Rows, and those with an answer.
    total : float
        Sum of the probabilities of a predicate, or of scores.
    chosen : dict
        Option of a choice -> how many rows it was the likeliest in.
    mass, spread : float
        Sums of the label mass and the spread.
    first_error : str or None
        Where and why the first answer is missing.
    """

    question: Question
    rows: int = 0
    answered: int = 0
    total: float = 0.0
    chosen: dict[str, int] = field(default_factory=dict)
    mass: float = 0.0
    spread: float = 0.0
    first_error: str | None = None

    def add(self, where: str, answer: Answer) -> None:
        """Count an answer."""
        self.rows += 1
        if not answer.is_answered:
            self.first_error = self.first_error or f"{where}: {answer.error}"
            return
        self.answered += 1
        self.mass += answer.label_mass
        self.spread += answer.spread or 0.0
        if isinstance(answer, ChoiceAnswer):
            name = str(answer.choice)
            self.chosen[name] = self.chosen.get(name, 0) + 1
        else:
            self.total += answer.probability if isinstance(answer, PredicateAnswer) else answer.score

    def mean(self, total: float) -> float | None:
        """Divide by the answers; None if there are none."""
        return total / self.answered if self.answered else None


@dataclass(frozen=True)
class DecideResult:
    """What came out.

    Attributes
    ----------
    judge : str
        Its name.
    rows : int
        Rows read.
    tallies : list of QuestionTally
        One per question.
    seconds : float
        Time of answering and writing.
    """

    judge: str
    rows: int
    tallies: list[QuestionTally]
    seconds: float


def decide_file(task: DecideTask, choice: JudgeChoice) -> DecideResult:
    """Answer the questions about every row.

    Raises
    ------
    GevalError
        If the input, the output or the judge cannot be used; input and output are found out before the judge is loaded.
    """
    _check_output(task.output)
    _check_columns(task)
    judge = load_shown(choice)
    note(f"engine: {judge.engine_report.text}", "dim")
    tallies = [QuestionTally(question) for question in task.questions]
    begin, rows = time.perf_counter(), 0
    with _appearing(task.output) as write, show_progress(f"deciding {task.file.name}") as progress:
        for sample, answers in _decided(task, judge):
            rows += 1
            for tally, answer in zip(tallies, answers, strict=True):
                tally.add(sample.where, answer)
            write(_record(sample, answers))
            progress.advance(1)
    return DecideResult(choice.label(), rows, tallies, time.perf_counter() - begin)


def _decided(task: DecideTask, judge: Judge) -> Iterator[tuple[Sample, list[Answer]]]:
    samples = read_samples(task.file, limit=task.limit)
    size = max(
        1, PROMPTS // sum(len(question_forms(question, rotations=task.rotations)) for question in task.questions)
    )
    while window := list(itertools.islice(samples, size)):
        texts = [_evidence(sample, task.columns) for sample in window]
        decisions = judge.iter_decisions(
            (text for text, reason in texts if reason is None), task.questions, rotations=task.rotations
        )
        for sample, (_, reason) in zip(window, texts, strict=True):
            if reason is None:
                yield sample, list(next(decisions))
            else:
                yield sample, [unanswered(question, reason) for question in task.questions]


def _evidence(sample: Sample, columns: tuple[str, ...]) -> tuple[str, str | None]:
    """Give the evidence of a row, or the reason why it has none."""
    if sample.error is not None:
        return "", sample.error
    wanted = columns or (DEFAULT_COLUMN,)
    missing = [column for column in wanted if sample.fields.get(column) is None]
    if missing:
        return "", f"{sample.where}: the column {missing[0]!r} is missing or null"
    values = {column: sample.fields[column] for column in wanted}
    try:
        return state_text(values[wanted[0]] if len(wanted) == 1 else values), None
    except QuestionError as error:
        return "", f"{sample.where}: {error.message}"


def _check_columns(task: DecideTask) -> None:
    """Find out before a judge is loaded that no row can have evidence; the first good row tells the columns."""
    for sample in itertools.islice(read_samples(task.file, limit=task.limit), 100):
        if sample.error is None:
            missing = [column for column in task.columns or (DEFAULT_COLUMN,) if column not in sample.fields]
            if missing:
                raise DataError(
                    f"{sample.where}: there is no column {missing[0]!r}; the columns are: {', '.join(sample.fields)}",
                    hint="Name the column of the evidence: --state COLUMN, also several times.",
                )
            return


def _check_output(output: Path | None) -> None:
    if output is None:
        return
    if output.suffix != ".jsonl":
        raise OutputError(f"cannot write {output}: decisions are written as .jsonl")
    if output.exists():
        raise OutputError(f"{output} is there already", hint="Choose another name.")
    if not output.parent.is_dir():
        raise OutputError(f"cannot write {output}: there is no directory {output.parent}")
    if not os.access(output.parent, os.W_OK):
        raise OutputError(f"cannot write {output}: the directory {output.parent} is read-only")


def _record(sample: Sample, answers: list[Answer]) -> dict[str, Any]:
    columns: Mapping[str, Any] = dict(sample.fields)
    if "decisions" in columns:
        kept = free_name("decisions_input", columns)
        columns = {(kept if name == "decisions" else name): value for name, value in columns.items()}
    if sample.error is not None and sample.row:
        columns = {**columns, "row": columns.get("row", sample.row)}
    return {**columns, "decisions": {str(answer.name): answer.to_dict() for answer in answers}}


@contextlib.contextmanager
def _appearing(output: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Write lines beside a file's name and give it the name at the end; nothing is left if that end does not come."""
    if output is None:
        yield lambda record: None
        return
    partial = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    try:
        with partial.open("x", encoding="utf-8") as file:
            yield lambda record: print(to_json(record), file=file)
            file.flush()
            os.fsync(file.fileno())
        # A file that came there meanwhile is somebody's: it is not replaced.
        os.link(partial, output)
    except FileExistsError:
        raise OutputError(f"{output} is there already", hint="Choose another name.") from None
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror or error}", hint="Is the disk full?") from error
    finally:
        partial.unlink(missing_ok=True)
