"""Surface forms: the spellings of each label after a form, found by tokenizing form and label together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from geval_local.errors import TokenizerError
from geval_local.metric import Metric
from geval_local.prompt import Prompt, render_form
from geval_local.tokens.encoder import PromptEncoder, TokenIds
from geval_local.tokens.label_trie import LabelTrie, SurfaceForm

#: Separators between the form's last character and the label. A new line is not among them: several tokenizers
#: merge ":\n", and where they do not it would cost one more token per sample for next to no probability.
LEADS = ("", " ")
#: Fills a form from the text of every field.
Filler: TypeAlias = Callable[[Mapping[str, str]], Prompt]


@dataclass(frozen=True)
class DroppedForm:
    """A surface form that cannot be used, and why."""

    #: The label.
    label: str
    #: The text tried after the form.
    text: str
    #: Why the tokenizer rules it out.
    reason: str


def label_variants(label: str, *, case_variants: bool) -> list[str]:
    """List the spellings of a label: the label itself and, on request for words, lower, title and upper case.

    A single letter has one spelling: " a" starts many sentences that do not mean grade A.
    """
    variants = [label]
    if case_variants and len(label) > 1:
        variants += [label.lower(), label[:1].upper() + label[1:].lower(), _titled(label), label.upper()]
    return list(dict.fromkeys(variants))


def _titled(label: str) -> str:
    """Capitalise every word, but not letters after an apostrophe, as `str.title` would."""
    return " ".join(word[:1].upper() + word[1:].lower() for word in label.split(" "))


def spellings(metric: Metric) -> list[tuple[int, str]]:
    """List the index and the spelling of every form of a metric's labels.

    Labels that differ only in case keep their own spelling; a spelling shared by several of them counts for none.
    """
    labels = metric.scale.labels
    written = [
        (index, variant)
        for index, label in enumerate(labels)
        for variant in label_variants(label, case_variants=metric.case_variants)
    ]
    owners = Counter(variant for _, variant in written)
    return [(index, text) for index, text in written if text == labels[index] or owners[text] == 1]


def find_labels(
    encoder: PromptEncoder, metric: Metric, prompt: Prompt, text: str | None = None
) -> tuple[LabelTrie, tuple[DroppedForm, ...]]:
    """Find every usable surface form of a metric's labels after a prompt, or after a `text` that ends as it does.

    A surface form is usable if the tokens of *form + surface form* begin with the form's own tokens, unchanged.
    """
    text = encoder.full_text(prompt) if text is None else text
    tried = [
        (index, metric.scale.labels[index], lead + spelling) for index, spelling in spellings(metric) for lead in LEADS
    ]
    form, *extended = encoder.encode_texts([text, *(text + surface for _, _, surface in tried)])
    forms: list[SurfaceForm] = []
    dropped: list[DroppedForm] = []
    for (index, label, surface), ids in zip(tried, extended, strict=True):
        if len(ids) <= len(form) or not np.array_equal(ids[: len(form)], form):
            changed = "".join(encoder.decode([int(token)]) for token in ids[len(form) - 1 :])
            dropped.append(DroppedForm(label, surface, f"re-tokenizes the form (its end becomes {changed!r})"))
        else:
            forms.append(SurfaceForm(index, surface, tuple(int(token) for token in ids[len(form) :])))
    without = [label for i, label in enumerate(metric.scale.labels) if not any(form.label == i for form in forms)]
    if without:
        raise TokenizerError(
            f"metric {metric.name}: no way to write {', '.join(map(repr, without))} after {prompt.cue!r} leaves the "
            "form's own tokens unchanged",
            hint="End the form's last line in a character that the tokenizer keeps apart, such as ':'.",
        )
    # Forms of a label with the same tokens are one.
    unique = list({(form.label, form.token_ids): form for form in reversed(forms)}.values())[::-1]
    try:
        return LabelTrie(unique, len(metric.scale.labels)), tuple(dropped)
    except ValueError as error:
        raise TokenizerError(f"metric {metric.name}: two labels look the same to this tokenizer: {error}") from error


class LabelReader:
    """Provider of a metric's label trie that checks its validity for each prompt.

    `trie`: usable surface forms, merged. `dropped`: those that re-tokenize the form. `tail`: the form's last tokens.

    The trie is found once, on a form with short fields. It is valid after every prompt that ends in the same tokens
    as that form does whatever its fields hold; a prompt that does not (a tokenizer that merges across the form's last
    line) gets a trie of its own.
    """

    def __init__(self, encoder: PromptEncoder, metric: Metric, fill: Filler | None = None) -> None:
        self._encoder = encoder
        self._metric = metric
        fill = fill or partial(render_form, metric)
        forms = [fill(dict.fromkeys(metric.fields, text)) for text in ("x", "Some other text.")]
        first, second = encoder.encode(forms)
        self.trie, self.dropped = find_labels(encoder, metric, forms[0])
        self.tail = first[len(first) - _common_suffix(first, second) :]
        self._tail = self.tail.tobytes()  # comparing bytes costs a tenth of comparing arrays

    def trie_for(self, prompt: Prompt, ids: TokenIds) -> LabelTrie:
        """Return the label trie that is valid after this prompt."""
        if len(self.tail) > 1 and ids[-len(self.tail) :].tobytes() == self._tail:
            return self.trie
        return find_labels(self._encoder, self._metric, prompt)[0]


def _common_suffix(first: TokenIds, second: TokenIds) -> int:
    size = min(len(first), len(second))
    different = np.flatnonzero(first[len(first) - size :] != second[len(second) - size :])
    return size if len(different) == 0 else size - 1 - int(different[-1])
