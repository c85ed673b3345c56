"""Examples of a metric: rated rows that the form shows between the evaluation steps and the sample (few-shot). Pure.

They are text of the one prompt in every style, not turns of a chat. Many chat templates write a finished answer unlike
the one that they ask for: without the closed thinking block, trimmed, or with other marks. The labels of earlier turns
would then follow other tokens than the cue behind which the label is read.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer

from geval_local.errors import GevalError, nearest
from geval_local.fields import counted, text_of
from geval_local.scale import Scale, label_text

#: The words around examples are part of their metric's hash.
HEADING = "Rated Examples:"
ONE = "Example {number}:"
SAMPLE_HEADING = "Now Rate This One:"
REASON = "Reason:"
#: Share of a judge's context from which on examples are called long.
LONG = 0.5


def _label(value: object) -> str:
    try:
        return label_text(value).strip()
    except GevalError as error:
        raise ValueError(str(error)) from error


def _text(value: object) -> str:
    try:
        return text_of(value, "the text").strip()
    except GevalError as error:
        raise ValueError(error.message) from error


_Text = Annotated[str, BeforeValidator(_text)]


class Example(BaseModel):
    """A rated row: a text for every field of the metric, by the fields' names, and its label.

    Parameters
    ----------
    label : str or number
        A label of the metric's scale.
    reason : str, optional
        Why it has this label, in the words that the form is to show.
    id : str, optional
        The row that it is from; shown nowhere, and no part of the metric's hash.
    **texts : str
        Field of the metric -> its text.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, _Text] = Field(init=False)

    label: Annotated[str, BeforeValidator(_label)]
    reason: _Text | None = None
    id: Annotated[str, BeforeValidator(_label)] | None = None

    @property
    def texts(self) -> Mapping[str, str]:
        """Field -> its text."""
        return self.__pydantic_extra__

    @model_serializer
    def _record(self) -> dict[str, Any]:
        own = {"label": self.label, "reason": self.reason, "id": self.id}
        return {**self.texts, **{name: value for name, value in own.items() if value is not None}}


#: Keys of an example that are no fields.
OWN_KEYS = tuple(Example.model_fields)


def find_example_problems(parts: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Find all that is wrong with the examples of a metric, given its parts: the place, and the problem in words."""
    examples: Sequence[Example] = parts["examples"]
    fields, scale = list(parts["fields"]), parts["scale"]
    if not examples:
        return
    for part, told in (("template", "a template is the whole prompt: write them into it"), ("pair", "a pair has none")):
        if parts[part] is not None:
            yield ("examples",), told
    for name in fields:
        if name in OWN_KEYS:
            yield ("examples",), f"the field {name!r} cannot be told from an example's own {name!r}; rename the field"
    for place, one in enumerate(examples):
        number = f"example {place + 1}"
        if one.label not in scale.labels:
            told = f"{number} has the label {one.label!r}; the labels are {_listed(scale)}"
            yield ("examples", place, "label"), told + nearest(one.label, scale.labels)
        for name in fields:
            if name not in (*one.texts, *OWN_KEYS):
                yield ("examples", place), f"{number} lacks the field {name!r}"
        for name in one.texts:
            if name not in fields:
                told = f"{number}: {name!r} is not one of the fields {', '.join(fields)}{nearest(name, fields)}"
                yield ("examples", place, name), told


def _listed(scale: Scale) -> str:
    return ", ".join(scale.labels) if len(scale.labels) <= 20 else f"{scale.labels[0]} to {scale.labels[-1]}"


def hashed(examples: Sequence[Example], fields: Iterable[str]) -> list[Any]:
    """Give all of the examples that the prompt shows, and the words around them."""
    names = list(fields)
    shown = [[[one.texts[name] for name in names], one.label, one.reason] for one in examples]
    return [HEADING, ONE, SAMPLE_HEADING, REASON, *shown]


def doubts(name: str, examples: Sequence[Example], tokens: int | None = None, context: int = 0) -> list[str]:
    """Say what speaks against the examples of a metric; `tokens` is their length for a judge that reads `context`."""
    found = []
    if len({one.label for one in examples}) == 1:
        found.append(
            f"{name} has {counted(len(examples), 'example')} with one label, {examples[0].label}: a judge tends to "
            "repeat the labels that it sees; show others of the scale too"
        )
    if tokens is not None and tokens > LONG * context:
        found.append(
            f"the examples of {name} take {tokens:,} of the {context:,} tokens that the judge reads; long rows may "
            "not fit: leave some out, or take shorter ones"
        )
    return found


def content(texts: Mapping[str, str], fields: Iterable[str]) -> tuple[str, ...]:
    """Give what two rows have in common if they are the same to a metric: its fields, without regard to white space."""
    return tuple(" ".join(unicodedata.normalize("NFC", texts[name]).split()) for name in fields)
