"""The settings of a run: what the user asked for, as its manifest records it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from typing_extensions import Self

from geval_local.errors import ConfigurationError
from geval_local.grouping import DocumentRule
from geval_local.io.pairs import PairPlan
from geval_local.metric import Metric
from geval_local.options import Format, Positive, RunOptions, jsonl
from geval_local.prompt import REASON_REQUEST
from geval_local.questions.question import parse_questions
from geval_local.runs.input_file import ManifestPart, Sha256

#: What a run applies to stored outcomes.
_FINAL = ["estimator", "threshold", "columns", "calibrations", "group_by"]


def _checked_definition(record: dict[str, Any]) -> dict[str, Any]:
    Metric.model_validate(record)
    return record


def _checked_questions(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for question in parse_questions(records):
        if question.name is None:
            raise ValueError("a question has no name")
    return records


def checked_name(name: str) -> str:
    """Reject names that would lead out of their directory."""
    if name in {"", ".", ".."} or "\0" in name or Path(name).name != name:
        raise ValueError(f"{name!r} is not a file name")
    return name


Definition = Annotated[dict[str, Any], AfterValidator(_checked_definition)]
FileName = Annotated[str, AfterValidator(checked_name)]


class QuestionSettings(ManifestPart):
    """The questions that are asked about every row."""

    #: As `geval_local.questions.question.parse_questions` reads them, all named.
    asked: Annotated[list[dict[str, Any]], Field(min_length=1), AfterValidator(_checked_questions)]
    #: What makes the evidence, see `geval_local.io.input_checks.read_state`.
    state: Annotated[dict[str, str], Field(min_length=1)]
    #: In how many orders outcomes are shown, where a question itself does not say.
    rotations: Positive = 1


class ReasonSettings(ManifestPart):
    """What reasons are asked for."""

    #: Name of the results that are explained.
    result: str
    #: Most tokens of a reason.
    tokens: Positive
    #: The question why.
    request: str = REASON_REQUEST


class EvaluationRecord(ManifestPart):
    """The file of an evaluation that a run is part of."""

    #: Its name.
    file: str
    #: Hash of its content.
    sha256: Sha256
    #: What `--set` changed in it, ``KEY=VALUE``.
    overrides: list[str] = Field(default_factory=list)
    #: Hash of what file and overrides say together, comments and layout left out.
    settings_sha256: Sha256


class Settings(RunOptions):
    """What the user asked for: the options of the run, and what is asked of every row."""

    window: Positive
    formats: Annotated[list[Format], Field(min_length=1)] = Field(default_factory=jsonl)
    # Of the command alone, not of the run.
    retry_errors: Annotated[bool, Field(exclude=True)] = False
    overwrite: Annotated[bool, Field(exclude=True)] = False
    #: Name of the output file, if given; it is next to the run directory, and the result is moved there at the end.
    output: FileName | None = None
    #: Address that the results are uploaded to, of the file or the directory; None if they stay on this machine.
    address: str | None = None
    #: The metrics' definitions as given; of questions, their forms, see `geval_local.runs.forms`.
    metrics: Annotated[list[Definition], Field(min_length=1)]
    #: Their names or files as given.
    metric_names: list[str] = Field(default_factory=list)
    #: The file of the evaluation that the run is part of.
    evaluation: EvaluationRecord | None = None
    #: What is asked, if it is questions and not metrics.
    questions: QuestionSettings | None = None
    #: Which pairs of rows are judged, where the metrics compare two texts; the run's rows are these pairs.
    pairs: PairPlan | None = None
    #: What is written, if the judge is asked for reasons of scores.
    reasons: ReasonSettings | None = None
    #: Numbers of the rows that are asked, of a file that is read as results are (`read_result_rows`); all if empty.
    chosen: list[int] | None = None
    #: Files, directories and patterns of a share, with absolute paths.
    inputs: list[str] = Field(default_factory=list)
    #: Rows of the windows at which shares begin; None if these go by size.
    block_rows: Positive | None = None

    @property
    def stem(self) -> str:
        """How the result files of a run directory are called, without their endings."""
        return "scores" if self.questions is None else "decisions"

    @property
    def documents(self) -> DocumentRule:
        """What decides which rows are one document."""
        fields = [tuple(metric.get("fields", ())) for metric in self.metrics]
        return DocumentRule.of(fields, mapping=self.fields, group_by=self.group_by)

    def _checked(self) -> Self:
        names = [metric["name"] for metric in self.metrics]
        if len(set(names)) < len(names) or len(set(self.formats)) < len(self.formats):
            raise ConfigurationError("a metric or a format is named twice")
        if self.output is not None and self.formats != [Path(self.output).suffix.lower().removeprefix(".")]:
            raise ConfigurationError(f"{self.output} is not of the format {', '.join(self.formats)}")
        return self

    def differences(self, other: Settings, *, results: bool = False) -> list[str]:
        """List differences of other settings that affect outcomes, and with `results` results; `self` is on record."""
        found = []
        names = ["window", "limit", "encoding", "fields", "pairs", "reasons"]
        names += ["id", "rows", "quoting", "system_columns", "turns", "turns_at", "roles", "shard"]
        if results:
            names += _FINAL
        for name in names:
            before, after = getattr(self, name), getattr(other, name)
            if before != after:
                found.append(f"`{name}` was {before}, is {after}")
        if self.chosen != other.chosen:
            found.append("other rows were chosen")
        found += _question_differences(self.questions, other.questions)
        if self.questions is None or not found:
            found += definition_differences("metric", self.metrics, other.metrics)
        return found


def _question_differences(before: QuestionSettings | None, after: QuestionSettings | None) -> list[str]:
    if before is None or after is None:
        return [] if before is after else ["it asked questions" if after is None else "it scored on metrics"]
    found = []
    if before.state != after.state:
        found.append(f"`state` was {before.state}, is {after.state}")
    if before.rotations != after.rotations:
        found.append(f"`rotations` was {before.rotations}, is {after.rotations}")
    return found + definition_differences("question", before.asked, after.asked)


def definition_differences(kind: str, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Say which definitions of metrics or questions changed, and in which keys."""
    names = [[str(one["name"]) for one in each] for each in (before, after)]
    if names[0] != names[1]:
        return [f"{kind}s were {', '.join(names[0])}, are {', '.join(names[1])}"]
    found = []
    for one, two in zip(before, after, strict=True):
        # The threshold is applied to outcomes afterwards; everything else affects them.
        keys = [key for key in dict.fromkeys([*one, *two]) if key != "threshold" and one.get(key) != two.get(key)]
        if keys:
            found.append(f"{kind} {one['name']}: changed in {', '.join(keys)}")
    return found
