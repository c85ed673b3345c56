"""Built-in neutral texts that fill the form of any metric, for audits."""

from __future__ import annotations

from collections.abc import Mapping

from geval_local.io.samples import Sample
from geval_local.metric import Metric

__all__ = ["EXAMPLE_TEXTS", "example_samples"]

_STORY = (
    "The town library reopened on Monday after eight months of repairs.",
    "Builders replaced the roof, which had leaked for years, and added a reading room for children.",
    "The work cost 1.2 million, a tenth more than planned, because the old beams had to be removed.",
    "Around four hundred people came on the first day, and many of them joined as new members.",
    "The librarian, Ana Keller, said that the quiet corner by the river windows was already the favourite place.",
    "Evening opening hours start in March, when two more members of staff begin their work.",
)
_SHORT = "The library is open again after eight months of repairs, with a new roof and a room for children."
#: Neutral texts for the fields that presets use; any other field gets a sentence of the story.
EXAMPLE_TEXTS: Mapping[str, str] = {
    "source": " ".join(_STORY),
    "context": " ".join(_STORY[:3]),
    "output": _SHORT,
    "reference": _SHORT,
    "fact": _STORY[2],
    "question": "Why was the library closed?",
}


def example_samples(metric: Metric) -> list[Sample]:
    """Make built-in samples of different lengths for a metric; the first is the example that is shown."""
    example = {name: EXAMPLE_TEXTS.get(name, _STORY[0]) for name in metric.fields}
    shorter = dict.fromkeys(metric.fields, _STORY[1])
    longer = {name: " ".join([text, *_STORY]) for name, text in example.items()}
    longest = {name: " ".join([*_STORY, text, *_STORY]) for name, text in example.items()}
    one_word = dict.fromkeys(metric.fields, "Library")
    return [Sample(fields, origin="the example") for fields in (example, shorter, longer, longest, one_word)]
