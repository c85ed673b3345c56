"""Metric: criteria, fields and scale of one evaluation dimension. YAML in, YAML out."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from ruamel.yaml.error import YAMLError

from geval_local.direction import Better, Direction
from geval_local.errors import ConfigurationError, MetricError, ScaleError
from geval_local.examples import Example, hashed
from geval_local.metric_file import FRAME, find_metric, find_problems, read_metric
from geval_local.scale import Scale, label_text, shown_labels
from geval_local.yaml_text import dump_yaml, edit_yaml

DEFAULT_INTRODUCTION = """\
You will be given a text. Your task is to rate it on one metric.

Please read these instructions carefully and keep to them while you rate."""


#: Keys and values that do not change the hash.
_UNASKED: tuple[tuple[str, Any], ...] = (("pair", None), ("better", "high"), ("frame", {}))


def _parse_scale(value: object) -> Scale:
    try:
        return Scale.parse(value)  # type: ignore[arg-type]
    except ScaleError as error:
        raise ValueError(error.text) from error


def _label_keys(value: object) -> object:
    if not isinstance(value, dict):
        return value
    try:
        return {label_text(key): text for key, text in value.items()}
    except ScaleError as error:
        raise ValueError(error.text) from error


_Text = Annotated[str, BeforeValidator(lambda value: value.strip() if isinstance(value, str) else value)]
_Rubric = Annotated[dict[str, _Text], BeforeValidator(_label_keys)]
_ScaleField = Annotated[Scale, BeforeValidator(_parse_scale), PlainSerializer(lambda scale: scale.spec)]


class StepsProvenance(BaseModel):
    """Where generated evaluation steps came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Name of the judge that wrote them; ``by hand`` for the presets.
    judge: str
    #: Content fingerprint of that judge's weights and tokenizer; empty if people wrote them.
    fingerprint: str = ""
    #: Hash of the prompt that asked for them; empty if people wrote them.
    prompt_sha256: str = ""
    #: UTC date and time, ISO 8601.
    created: str
    #: Version of geval-local.
    version: str
    #: How they were written; empty in records of earlier versions.
    generation: str = ""


class Metric(BaseModel):
    """One evaluation dimension.

    Parameters
    ----------
    name : str
        Identifier, such as ``summarization/coherence``.
    criteria : str
        The quality to rate, and the difference between good and bad.
    title : str, optional
        The name that the form shows; by default derived from `name`.
    introduction : str, optional
        The task introduction that opens the prompt.
    steps : list of str, optional
        Evaluation steps. By default the judge writes them once (auto chain-of-thought) and pins them. An empty list
        means that the metric has no steps.
    steps_provenance : StepsProvenance, optional
        Present when a model wrote the steps.
    fields : dict of str to str
        Sample field -> heading in the form, in form order.
    scale : Scale or its written form
        The labels and their values: a range such as ``"1-5"``, ``"0-100"`` or ``"0-1 step 0.25"``; two words such as
        ``"Yes/No"`` (Yes is 1, No is 0); or a mapping ``{label: value}`` such as ``{poor: 1, fair: 2, good: 3}``.
        `Scale.parse` describes all forms.
    rubric : dict of str to str, optional
        Label or band of labels -> its description, printed under the criteria.
    threshold : float, optional
        The lowest score that passes, on the metric's scale; the highest one if `better` is ``low``.
    better : {"high", "low"}
        Which scores are good. Use ``low`` for criteria of undesirable content, such as toxicity.
    shorten : str, optional
        The one field that may be truncated if a prompt is too long for the judge. Without it, such a sample is
        unscored.
    examples : list of Example or mapping, optional
        Rated rows that the form shows before the sample: a text for every field, a ``label`` of the scale and,
        optionally, a ``reason``.
    frame : dict of str to str, optional
        Other words for the prompt's own headings and requests, for instance in the metric's language: `FRAME` has the
        keys and the English words.
    case_variants : bool
        Whether word labels also count in lower case, capitalised and in upper case.
    template : str, optional
        A published prompt, used verbatim, with ``{{field}}`` placeholders and the form's cue as its last line. It
        replaces introduction, criteria, steps and fields' headings in the prompt.
    pair : tuple of (str, str), optional
        Two fields whose texts the judge compares, in both orders. The scale's first label says that the first text is
        better, its second label that the second is. `pair_metric` makes such a metric from another one.

    Raises
    ------
    pydantic.ValidationError
        On construction from Python; `load` and `from_yaml` turn it into a `MetricError` with file and line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    name: str
    title: _Text = ""
    introduction: _Text = DEFAULT_INTRODUCTION
    criteria: _Text
    scale: _ScaleField
    rubric: _Rubric | None = None
    steps: tuple[_Text, ...] | None = None
    steps_provenance: StepsProvenance | None = None
    fields: dict[str, _Text] = {"output": "Output"}
    threshold: float | None = None
    better: Better = "high"
    shorten: str | None = None
    examples: tuple[Example, ...] = ()
    frame: dict[str, _Text] = {}
    case_variants: bool = True
    template: str | None = None
    pair: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return f"Metric({self.name}, scale {self.scale.text}, fields {', '.join(self.fields)})"

    @model_validator(mode="before")
    @classmethod
    def _derive_title(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("name"), str) and not data.get("title"):
            words = re.split(r"[\s_-]+", data["name"].rsplit("/", 1)[-1])
            data = data | {"title": " ".join(word[:1].upper() + word[1:] for word in words)}
        return data

    @model_validator(mode="after")
    def _check(self) -> Metric:
        problems = [
            InitErrorDetails(
                type=PydanticCustomError("metric", "{text}", {"text": text}),
                loc=path,
                input=getattr(self, str(path[0])),
            )
            for path, text in find_problems(dict(self))
        ]
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    @classmethod
    def load(cls, name: str | Path) -> Metric:
        """Load a preset by name, or a metric from a YAML file.

        Parameters
        ----------
        name : str or Path
            A preset such as ``summarization/coherence``, or the path of a ``.yaml`` file.

        Raises
        ------
        MetricError
            If there is no such preset or file, or the file is not a valid metric.
        """
        text, origin = find_metric(name)
        return cls.from_yaml(text, origin=origin)

    @classmethod
    def from_yaml(cls, text: str, *, origin: str = "metric") -> Metric:
        """Read a metric from YAML text.

        Parameters
        ----------
        text : str
            The YAML document.
        origin : str
            Name of the source, for error messages.

        Raises
        ------
        MetricError
            If the YAML is malformed, a key is unknown or a value does not fit; with line numbers.
        """
        return read_metric(cls, text, origin)

    def to_yaml(self) -> str:
        """Write the metric as YAML that `from_yaml` reads back to an equal metric."""
        record = self.model_dump(exclude_none=True, exclude_defaults=True, mode="json")
        return dump_yaml(record)

    def check_on_scale(self, value: float | None, what: str) -> None:
        """Refuse a limit outside the scale, `what` it is: it was meant for another scale."""
        if value is not None and not self.scale.low <= value <= self.scale.high:
            raise ConfigurationError(
                f"{what} {value:g} is outside the scale {self.scale.text} of {self.name}",
                hint="It is meant on the metric's own scale; metrics with different scales need runs of their own.",
            )

    def with_steps(self, steps: tuple[str, ...] | None, provenance: StepsProvenance | None = None) -> Metric:
        """Copy the metric with other evaluation steps; ``()`` means no steps (the paper's "- CoT" row)."""
        return self.model_copy(update={"steps": steps, "steps_provenance": provenance})

    @property
    def direction(self) -> Direction:
        """Which scores are good, with everything that follows from it."""
        return Direction(self.better)

    @property
    def needs_steps(self) -> bool:
        """Whether the evaluation steps still have to be generated."""
        return self.steps is None and self.template is None

    @property
    def forms(self) -> int:
        """Number of forms per sample: 1; for a pair 2, one per order."""
        return 1 if self.pair is None else 2

    @property
    def shown_scale(self) -> str:
        """The scale between the form's parentheses; for a pair just the labels, which judges read better."""
        return self.scale.shown if self.pair is None else shown_labels(self.scale.labels)

    def phrase(self, key: str) -> str:
        """Return the words of the prompt for a key of `FRAME`."""
        return self.frame.get(key, FRAME[key])

    @property
    def hash(self) -> str:
        """Hash (16 hex digits) of everything that determines the prompt and the scale, except the steps."""
        record = self.model_dump(mode="json", exclude={"steps", "steps_provenance", "threshold", "examples"})
        # Keys with default values do not change the hash: scores stay comparable with those of earlier versions.
        record = {key: value for key, value in record.items() if (key, value) not in _UNASKED}
        if self.examples:
            record["examples"] = hashed(self.examples, self.fields)
        record["case_variants"] = self.case_variants and any(
            label.lower() != label.upper() for label in self.scale.labels
        )
        if self.pair is not None:
            record["wording"] = [FRAME["pair_form"], FRAME["pair_cue"], self.shown_scale]
        elif self.template is None and self.shown_scale != self.scale.text:
            record["wording"] = [self.shown_scale]
        # Canonical JSON sorts its keys, so the hash also lists everything that has an order in the prompt.
        return _digest([record, self.scale.labels, self.scale.values, list(self.fields), list(self.rubric or ())])

    @property
    def steps_hash(self) -> str:
        """Hash (16 hex digits) of the evaluation steps; ``none`` if the prompt has none."""
        return _digest(list(self.steps)) if self.steps else "none"


def _digest(record: object) -> str:
    canonical = json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


#: Part written into metric files -> its keys.
_WRITTEN = {"steps": {"steps", "steps_provenance"}, "examples": {"examples"}}


def written_into(text: str, metric: Metric, origin: str, what: str = "steps") -> str:
    """Put a metric's steps with their provenance, or its examples, into the metric's original YAML text.

    All other lines stay as they are, with their comments.
    """
    try:
        result = edit_yaml(text, metric.model_dump(mode="json", include=_WRITTEN[what], exclude_none=True))
        same = Metric.from_yaml(result) == metric
    except (MetricError, YAMLError):
        same = False
    if not same:
        raise MetricError(
            f"{origin}: {what} cannot be put into this file without touching the rest of it",
            hint=f"Write the metric with its {what} into another file: `output=FILE.yaml`",
        )
    return result
