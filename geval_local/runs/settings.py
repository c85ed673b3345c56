"""The settings of a run: what the user asked for, as its manifest records it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from geval_local.errors import GevalError
from geval_local.io.pairs import PairPlan
from geval_local.metric import Metric
from geval_local.questions.question import parse_questions
from geval_local.runs.files import Record, Sha256
from geval_local.score import Estimator

__all__ = ["Definition", "EvaluationRecord", "FileName", "Positive", "QuestionSettings", "Settings", "checked_name"]

#: What a run on one machine applies to stored outcomes, and what parts hold applied.
_FINAL_IN_PARTS = ["estimator", "threshold", "columns", "calibrations", "group_by", "gather_by"]


def _checked_definition(record: dict[str, Any]) -> dict[str, Any]:
    Metric.model_validate(record)
    return record


def _checked_questions(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for question in parse_questions(records):
        if question.name is None:
            raise ValueError("a question has no name")
    return records


def _checked_estimator(record: dict[str, Any]) -> dict[str, Any]:
    try:
        # Manifests of earlier versions name a parameter, which no estimator that is left takes.
        record = {name: value for name, value in record.items() if (name, value) != ("parameter", None)}
        Estimator(**record)
    except (TypeError, GevalError) as error:
        raise ValueError(str(error)) from error
    return record


def checked_name(name: str) -> str:
    """Reject names that would lead out of their directory."""
    if name in {"", ".", ".."} or "\0" in name or Path(name).name != name:
        raise ValueError(f"{name!r} is not a file name")
    return name


Definition = Annotated[dict[str, Any], AfterValidator(_checked_definition)]
_Estimator = Annotated[dict[str, Any], AfterValidator(_checked_estimator)]
FileName = Annotated[str, AfterValidator(checked_name)]
_Format = Annotated[str, Field(pattern=r"^(jsonl|csv|parquet)$")]
Positive = Annotated[int, Field(ge=1)]


class QuestionSettings(Record):
    """The questions that are asked about every row.

    Attributes
    ----------
    asked : list of dict
        As `geval_local.questions.question.parse_questions` reads them, all named.
    state : dict of str to str
        What makes the evidence, see `geval_local.io.evidence.read_state`.
    rotations : int
        In how many orders outcomes are shown, where a question itself does not say.
    """

    asked: Annotated[list[dict[str, Any]], Field(min_length=1), AfterValidator(_checked_questions)]
    state: Annotated[dict[str, str], Field(min_length=1)]
    rotations: Positive = 1


class EvaluationRecord(Record):
    """The file of an evaluation that a run is part of.

    Attributes
    ----------
    file : str
        Its name.
    sha256 : str
        Hash of its content.
    overrides : list of str
        What was set beside it, ``KEY=VALUE``.
    settings_sha256 : str
        Hash of what file and overrides say together, comments and layout left out.
    """

    file: str
    sha256: Sha256
    overrides: list[str] = Field(default_factory=list)
    settings_sha256: Sha256


class Settings(Record):
    """The user's settings.

    Attributes
    ----------
    window : int
        Rows that are read and planned together.
    limit : int or None
        Number of rows to score; None for all.
    estimator : dict
        Fields of `Estimator`.
    threshold : float or None
        Overrides the metrics' own.
    use_cache : bool
        Whether figures of earlier runs are reused.
    formats : list of str
        Export formats: jsonl, csv, parquet.
    output : str or None
        Name of the output file, if given; it is beside the run directory, and the result is moved there at the end.
    metrics : list of dict
        The metrics' definitions as given; of questions, their forms, see `geval_local.runs.asked`.
    metric_names : list of str
        Their names or files as given.
    calibrations : list of str
        Files of calibrations that are applied to the scores.
    distributed : str or None
        Distribution of the run: ``ray``.
    workers : int or None
        Number of workers.
    address : str or None
        Address of the cluster; None for a local one.
    fields : dict of str to str
        Field of a metric -> the column, or the dotted path into one, that it is read from.
    columns : list of str or None
        Columns of CSV results; None for the default.
    csv_safe : bool
        Whether CSV cells that a spreadsheet would execute are neutralised.
    group_by : str or None
        Field of the document, for the intervals of the closing table; None for a guess.
    evaluation : EvaluationRecord or None
        The file of the evaluation that the run is part of.
    questions : QuestionSettings or None
        What is asked, if it is questions and not metrics.
    pairs : PairPlan or None
        Which pairs of rows are judged, where the metrics compare two texts; the run's rows are these pairs.
    inputs : list of str
        Files, directories and patterns of a distributed run, as given.
    block_rows : int or None
        Rows of a block of a distributed run; None if blocks go by size.
    gather_by : str or None
        Field whose rows a distributed run brings into one block before it scores.
    """

    window: Positive
    limit: int | None = None
    estimator: _Estimator = Field(default_factory=dict)
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    use_cache: bool = True
    formats: Annotated[list[_Format], Field(min_length=1)] = Field(default_factory=lambda: ["jsonl"])
    output: FileName | None = None
    metrics: Annotated[list[Definition], Field(min_length=1)]
    metric_names: list[str] = Field(default_factory=list)
    calibrations: list[str] = Field(default_factory=list)
    distributed: Literal["ray"] | None = None
    workers: Positive | None = None
    address: str | None = None
    fields: dict[str, str] = Field(default_factory=dict)
    columns: list[str] | None = None
    csv_safe: bool = False
    group_by: str | None = None
    evaluation: EvaluationRecord | None = None
    questions: QuestionSettings | None = None
    pairs: PairPlan | None = None
    inputs: list[str] = Field(default_factory=list)
    block_rows: Positive | None = None
    gather_by: str | None = None

    @property
    def stem(self) -> str:
        """How the result files of a run directory are called, without their endings."""
        return "scores" if self.questions is None else "decisions"

    @model_validator(mode="after")
    def _hold_together(self) -> Settings:
        names = [metric["name"] for metric in self.metrics]
        if len(set(names)) < len(names) or len(set(self.formats)) < len(self.formats):
            raise ValueError("a metric or a format is named twice")
        if self.output is not None and self.formats != [Path(self.output).suffix.lower().removeprefix(".")]:
            raise ValueError(f"{self.output} is not of the format {', '.join(self.formats)}")
        return self

    def differences(self, other: Settings) -> list[str]:
        """List the differences of other settings that affect outcomes; `self` are the recorded ones."""
        found = []
        names = ["window", "limit", "distributed"]
        if self.distributed is not None and other.distributed is not None:
            names += _FINAL_IN_PARTS
        for name in names:
            before, after = getattr(self, name), getattr(other, name)
            if before != after:
                found.append(f"--{name.replace('_', '-')} was {before}, is {after}")
        if self.fields != other.fields:
            found.append(f"--field was {self.fields or 'none'}, is {other.fields or 'none'}")
        if self.pairs != other.pairs:
            found.append(f"pairs were {self.pairs or 'none'}, are {other.pairs or 'none'}")
        found += _question_differences(self.questions, other.questions)
        if self.questions is None or not found:
            found += _metric_differences(self.metrics, other.metrics)
        return found


def _question_differences(before: QuestionSettings | None, after: QuestionSettings | None) -> list[str]:
    if before is None or after is None:
        return [] if before is after else ["it asked questions" if after is None else "it scored on metrics"]
    found = []
    if before.state != after.state:
        found.append(f"--state was {before.state}, is {after.state}")
    if before.rotations != after.rotations:
        found.append(f"--rotations was {before.rotations}, is {after.rotations}")
    names = [[str(one["name"]) for one in settings.asked] for settings in (before, after)]
    if names[0] != names[1]:
        found.append(f"questions were {', '.join(names[0])}, are {', '.join(names[1])}")
    else:
        found += [
            f"question {one['name']}: changed in "
            + ", ".join(key for key in dict.fromkeys([*one, *two]) if one.get(key) != two.get(key))
            for one, two in zip(before.asked, after.asked, strict=True)
            if one != two
        ]
    return found


def _metric_differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    names = [[str(metric["name"]) for metric in metrics] for metrics in (before, after)]
    if names[0] != names[1]:
        return [f"metrics were {', '.join(names[0])}, are {', '.join(names[1])}"]
    found = []
    for one, two in zip(before, after, strict=True):
        # The threshold is applied to outcomes afterwards; everything else affects them.
        keys = [key for key in dict.fromkeys([*one, *two]) if key != "threshold" and one.get(key) != two.get(key)]
        if keys:
            found.append(f"metric {one['name']}: changed in {', '.join(keys)}")
    return found
