"""What the file of an evaluation holds, as a model that checks it and as a JSON schema for editors."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from geval_local.evaluation.gates import GATE_PATTERN, parse_limit

__all__ = [
    "DataFile",
    "EstimatorChoice",
    "Evaluation",
    "GateSpec",
    "JudgeUse",
    "MetricUse",
    "Outputs",
    "known_keys",
    "schema",
    "short",
]

_Text = Annotated[str, Field(min_length=1)]
_Positive = Annotated[int, Field(ge=1)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    """A part of the file: unknown keys are refused, and so is a value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def short(key: str) -> Callable[[object], object]:
    """Read a part that may be written as its one main value: ``nano`` for ``{name: nano}``."""
    return lambda value: {key: value} if isinstance(value, str) else value


def _limit(value: object, name: str) -> object:
    if isinstance(value, str):
        parse_limit(name, value)
    return value


def _gate(name: str) -> Any:
    return Annotated[str, Field(pattern=GATE_PATTERN), BeforeValidator(lambda value: _limit(value, name))] | None


class GateSpec(_Part):
    """What the figures of a metric must reach, each a comparison such as ``">= 3.5"``; a gate that fails exits with 1.

    Attributes
    ----------
    mean : str, optional
        Mean score, on the metric's scale.
    mean_low : str, optional
        Lower end of the mean's 95 % interval.
    passed : str, optional
        Share of the scored rows that reach the threshold, such as ``">= 90%"``.
    unscored : str, optional
        Rows without a score: a count, or a share such as ``"<= 2%"``.
    label_mass : str, optional
        Mean label mass, 0-1.
    """

    mean: _gate("mean") = None  # type: ignore[valid-type]
    mean_low: _gate("mean_low") = None  # type: ignore[valid-type]
    passed: _gate("passed") = None  # type: ignore[valid-type]
    unscored: _gate("unscored") = None  # type: ignore[valid-type]
    label_mass: _gate("label_mass") = None  # type: ignore[valid-type]


class DataFile(_Part):
    """A file of rows.

    Attributes
    ----------
    file : str
        JSONL, JSON, CSV or Parquet; its path is relative to the file of the evaluation.
    fields : dict of str to str
        Field of a metric -> the column, or the dotted path into one, that it is read from.
    limit : int, optional
        Score the first rows only.
    group_by : str, optional
        Field of the document, for the interval of the mean; ``row``: every row is independent. Guessed when absent.
    gates : dict of str to GateSpec
        Gates of this file alone.
    """

    file: _Text
    fields: dict[str, str] = {}
    limit: _Positive | None = None
    group_by: str | None = None
    gates: dict[str, GateSpec] = {}


class MetricUse(_Part):
    """A metric.

    Attributes
    ----------
    name : str
        A preset, or the path of a metric's YAML file, relative to the file of the evaluation.
    threshold : float, optional
        The score that passes, on the metric's scale; overrides the metric's own.
    steps : bool
        Whether the form holds evaluation steps.
    """

    name: _Text
    threshold: _Finite | None = None
    steps: bool = True


class JudgeUse(_Part):
    """A judge and how it is loaded; see `geval_local.Judge.load`.

    Attributes
    ----------
    name : str, optional
        A name of ``geval-local judges list``, a directory, or a hub id in the local cache; absent, the default judge.
    models_file, adapter : str, optional
        Paths, relative to the file of the evaluation.
    style, device, device_map, dtype, attention, quantization, batch_tokens, engine, trust_remote_code
        As the options of ``geval-local score``.
    """

    name: _Text | None = None
    models_file: _Text | None = None
    adapter: _Text | None = None
    style: Literal["completion", "chat", "chat-no-prefill"] | None = None
    device: str | None = None
    device_map: str | None = None
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] | None = None
    attention: str | None = None
    quantization: Literal["8bit", "4bit"] | None = None
    batch_tokens: _Positive | None = None
    engine: Literal["auto", "trie", "trie-compiled", "cache", "padded"] = "auto"
    trust_remote_code: bool = False


class EstimatorChoice(_Part):
    """How a label distribution becomes one number; see `geval_local.Estimator`."""

    kind: Literal["exact", "mode", "sample"] = "exact"
    n: _Positive = 20
    seed: Annotated[int, Field(ge=0)] = 0


class Outputs(_Part):
    """Where results go.

    Attributes
    ----------
    directory : str
        Holds one run directory for each data file, and the reports; relative to the file of the evaluation.
    formats : list of str
        Formats of the result files.
    columns : list of str, optional
        Columns of CSV results.
    csv_safe : bool
        Whether CSV cells that a spreadsheet would execute get an apostrophe in front.
    """

    directory: _Text = "runs/evaluation"
    formats: Annotated[list[Literal["jsonl", "csv", "parquet"]], Field(min_length=1)] = ["jsonl"]
    columns: list[_Text] | None = None
    csv_safe: bool = False


_Data = Annotated[DataFile, BeforeValidator(short("file"), json_schema_input_type=str | DataFile)]
_Metric = Annotated[MetricUse, BeforeValidator(short("name"), json_schema_input_type=str | MetricUse)]
_Judge = Annotated[JudgeUse, BeforeValidator(short("name"), json_schema_input_type=str | JudgeUse)]
_Estimator = Annotated[
    EstimatorChoice,
    BeforeValidator(short("kind"), json_schema_input_type=Literal["exact", "mode", "sample"] | EstimatorChoice),
]
_Outputs = Annotated[Outputs, BeforeValidator(short("directory"), json_schema_input_type=str | Outputs)]
#: Also the name of its run directory.
_DataName = Annotated[str, Field(pattern=r"^\w[\w.-]*$", max_length=100)]


class Evaluation(_Part):
    """The file of an evaluation.

    Attributes
    ----------
    data : dict of str to DataFile
        Name -> data file; a path alone will do.
    metrics : list of MetricUse
        What is rated; a name alone will do.
    judges : list of JudgeUse
        Who rates; a name alone will do. Absent: the default judge.
    estimator : EstimatorChoice
        Exact expectation when absent.
    threshold : float, optional
        The score that passes, for all metrics.
    window : int, optional
        Rows that are gathered to share their texts.
    cache : bool
        Whether figures of earlier runs are taken over.
    gates : dict of str to GateSpec
        Metric, ``METRIC@JUDGE``, or ``all`` -> what its figures must reach, in every data file.
    outputs : Outputs
        Where results go; a directory alone will do.
    report : bool
        Whether every data file gets a page, ``NAME.html`` in the outputs' directory.
    """

    data: Annotated[dict[_DataName, _Data], Field(min_length=1)]
    metrics: Annotated[list[_Metric], Field(min_length=1)]
    judges: Annotated[list[_Judge], Field(min_length=1)] = [JudgeUse()]
    estimator: _Estimator = EstimatorChoice()
    threshold: _Finite | None = None
    window: _Positive | None = None
    cache: bool = True
    gates: dict[str, GateSpec] = {}
    outputs: _Outputs = Outputs()
    report: bool = True

    @model_validator(mode="after")
    def _hold_together(self) -> Evaluation:
        folded = [name.casefold() for name in self.data]
        if len(set(folded)) < len(folded):
            raise ValueError("names of data files differ in upper and lower case only")
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


def known_keys(place: tuple[int | str, ...]) -> list[str]:
    """List the keys that may stand at a place in the file; empty where any may, or none."""
    kind: Any = Evaluation
    for part in place:
        kind = _inner(kind, part)
    model = _model(kind)
    return [] if model is None else list(model.model_fields)


def _inner(kind: Any, part: int | str) -> Any:
    model = _model(kind)
    if model is not None:
        field = model.model_fields.get(str(part))
        return None if field is None else field.annotation
    for one in _alternatives(kind):
        if get_origin(one) in (dict, list):
            return get_args(one)[-1]
    return None


def _model(kind: Any) -> type[BaseModel] | None:
    return next((one for one in _alternatives(kind) if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _alternatives(kind: Any) -> list[Any]:
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [one for part in get_args(kind) for one in _alternatives(part)]
    return [kind]
