"""The contents of an evaluation's file, as a model that checks it and as a JSON schema for editors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from geval_local.analysis.gates import GATE_PATTERN, parse_limit
from geval_local.evaluation.history import LAST, RECORD, checked_pattern
from geval_local.options import BaselineOptions, JudgeOptions, RunOptions

_Text = Annotated[str, Field(min_length=1)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    """A part of the file; it refuses unknown keys and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def short(key: str) -> Callable[[object], object]:
    """Return a reader of a part that may be written as its main value alone: ``nano`` for ``{name: nano}``."""
    return lambda value: {key: value} if isinstance(value, str) else value


def _limit(value: object, name: str) -> object:
    if isinstance(value, str):
        parse_limit(name, value)
    return value


def _gate(name: str) -> Any:
    return Annotated[str, Field(pattern=GATE_PATTERN), BeforeValidator(lambda value: _limit(value, name))] | None


_Margin = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _not_worse(value: object) -> object:
    if value is True:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is neither true nor a margin of 0 or more, in points of the scale")
    return float(value)


class SliceGateSpec(_Part):
    """Limits of a metric's figures, each a comparison such as ``">= 3.5"``; a failed gate sets the exit code to 1."""

    #: Mean score, on the metric's scale.
    mean: _gate("mean") = None  # type: ignore[valid-type]
    #: Lower end of the mean's 95 % interval.
    mean_low: _gate("mean_low") = None  # type: ignore[valid-type]
    #: Upper end of it, for metrics whose low scores are good.
    mean_high: _gate("mean_high") = None  # type: ignore[valid-type]
    #: Share of the scored rows that reach the threshold, such as ``">= 90%"``.
    passed: _gate("passed") = None  # type: ignore[valid-type]
    #: Rows without a score: a count, or a share such as ``"<= 2%"``. Default: 10 % if another figure is limited.
    unscored: _gate("unscored") = None  # type: ignore[valid-type]
    #: Mean label mass, 0-1.
    label_mass: _gate("label_mass") = None  # type: ignore[valid-type]
    #: Comparison with the baseline. ``true``: fails if a test shows that the scores fell. A number, in points of the
    #: scale: fails unless a test shows that the scores are not lower by that much.
    not_worse: Annotated[bool | _Margin, BeforeValidator(_not_worse)] | None = None


class GateSpec(SliceGateSpec):
    """The same limits, also for slices of the rows."""

    #: Column -> limits that each of its slices must meet.
    by: dict[_Text, SliceGateSpec] = Field(default_factory=dict)


class Baseline(BaselineOptions):
    """An earlier run to compare with, on the rows that both runs have."""

    #: A run directory, a result file, or the outputs' directory of an earlier run of this evaluation. If `outputs` has
    #: a placeholder, ``last`` is the newest whole run of this file, of another commit, whose gates held.
    run: _Text = LAST
    #: Whether the gates fail if there is no such run; else they are skipped.
    require: bool = False
    #: Whether this run becomes the next baseline although it is worse or not comparable: these gates are skipped.
    accept: bool = False


_Baseline = Annotated[Baseline, BeforeValidator(short("run"), json_schema_input_type=str | Baseline)]


class DataFile(RunOptions):
    """A file of rows; its options of a run override those of the whole evaluation."""

    #: JSONL, JSON, CSV, Excel or Parquet; its path is relative to the file of the evaluation. Also an address.
    file: _Text
    #: Gates of this file alone.
    gates: dict[str, GateSpec] = Field(default_factory=dict)
    #: Its own baseline, instead of the evaluation's.
    baseline: _Baseline | None = None


class MetricUse(_Part):
    """A metric."""

    #: A preset, or the path of a metric's YAML file, relative to the file of the evaluation.
    name: _Text
    #: The score that passes, on the metric's scale; overrides the metric's own.
    threshold: _Finite | None = None
    #: Whether the form contains evaluation steps.
    steps: bool = True


_Data = Annotated[DataFile, BeforeValidator(short("file"), json_schema_input_type=str | DataFile)]
_Metric = Annotated[MetricUse, BeforeValidator(short("name"), json_schema_input_type=str | MetricUse)]
_Judge = Annotated[JudgeOptions, BeforeValidator(short("name"), json_schema_input_type=str | JudgeOptions)]
_NAME = r"^\w[\w.-]*$"


def _checked_name(value: object) -> object:
    if isinstance(value, str) and not re.search(_NAME, value):
        raise ValueError("its name is that of a directory: it may hold letters, digits, '_', '-' and '.'")
    return value


_DataName = Annotated[str, Field(pattern=_NAME, max_length=100), BeforeValidator(_checked_name)]


class Evaluation(RunOptions):
    """The file of an evaluation: what is scored, and every option of a run, for all data files."""

    #: Name -> data file, or just its path.
    data: Annotated[dict[_DataName, _Data], Field(min_length=1)]
    #: The metrics, each a mapping or just a name.
    metrics: Annotated[list[_Metric], Field(min_length=1)]
    #: The judges, each a mapping or just a name. Default: the default judge.
    judges: Annotated[list[_Judge], Field(min_length=1)] = Field(default_factory=lambda: [JudgeOptions()])
    #: Metric, ``METRIC@JUDGE``, or ``all`` -> limits of its figures, in every data file.
    gates: dict[str, GateSpec] = Field(default_factory=dict)
    #: An earlier run; no metric may be worse than in it, see ``not_worse`` of the gates.
    baseline: _Baseline | None = None
    #: Directory of one run directory per data file, and of the reports; relative to the file of the evaluation.
    #: ``{date}``, ``{time}`` (both UTC) and ``{commit}`` give every run a directory of its own.
    outputs: Annotated[_Text, AfterValidator(checked_pattern)] = "runs/evaluation"
    #: Whether to write a page for every data file, ``NAME.html`` in the outputs' directory.
    report: bool = True

    def run_options(self, name: str) -> RunOptions:
        """Return the options of a data file's run: its own, else those of the evaluation.

        Columns of gates make slices too.
        """
        own = self.data[name]
        given: dict[str, Any] = {}
        for part in (self, own):
            given |= {key: getattr(part, key) for key in part.model_fields_set if key in RunOptions.model_fields}
        specs = [*self.gates.values(), *own.gates.values()]
        columns = [*given.get("by", ()), *(column for spec in specs for column in spec.by)]
        given["by"] = list(dict.fromkeys(columns))
        return RunOptions(**given)

    @model_validator(mode="after")
    def _hold_together(self) -> Evaluation:
        if any(one.shard is not None for one in (self, *self.data.values())):
            raise ValueError(
                "`shard` is an option of `score`, whose shares `merge` joins: an evaluation has whole runs"
            )
        folded = [name.casefold() for name in self.data]
        if len(set(folded)) < len(folded):
            raise ValueError("names of data files differ in upper and lower case only")
        if RECORD in folded:
            raise ValueError(f"no data file may be called {RECORD}: a file of this name holds the verdict")
        pages = {f"{name}.html" for name in folded}
        if self.report and (shared := pages & set(folded)):
            raise ValueError(f"the data file {min(shared)!r} has the name of another one's page")
        return self


def schema() -> dict[str, Any]:
    """Write the model as a JSON schema, for editors."""
    found = Evaluation.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "geval-local evaluation",
        **{key: value for key, value in found.items() if key != "title"},
    }
