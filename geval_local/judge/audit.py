"""Audits: how a judge's tokenizer splits a metric's form and labels, and how the judge scores an example.

The first half needs the tokenizer only; nothing here prints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.engine.interface import Engine, read_all
from geval_local.errors import GevalError, JudgeError, UnscorableError, code_of, first_line
from geval_local.io.samples import Sample
from geval_local.models.progress import OnRead
from geval_local.options import JudgeOptions
from geval_local.prompt import render_form
from geval_local.score import Distribution
from geval_local.tokens.label_forms import DroppedForm
from geval_local.tokens.requests import Request, RequestMaker

if TYPE_CHECKING:
    from geval_local.engine.backend import Backend, BackendFacts, Description
    from geval_local.judge.judge import Judge
    from geval_local.metric import Metric

#: Prompts that another program's figures are compared on.
OWN_PROMPTS = 4


@dataclass(frozen=True)
class LabelForm:
    """One usable surface form of a label."""

    #: The label.
    label: str
    #: Its value on the scale.
    value: float
    #: The token after the form.
    text: str
    #: Tokens added to the form.
    token_ids: tuple[int, ...]
    #: Text of each of them.
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class PromptAudit:
    """One filled form as a tokenizer sees it."""

    #: The rendered prompt, with control tokens shown by name.
    text: str
    #: Token ids of the prompt.
    token_ids: tuple[int, ...]
    #: Text of each of them.
    pieces: tuple[str, ...]
    #: Number of beginning-of-sequence tokens in the prompt.
    bos_count: int
    #: Tokens cut off the field that may be shortened.
    dropped_tokens: int
    #: The usable surface forms, in the order of the labels.
    forms: tuple[LabelForm, ...]
    #: Surface forms that would change the tokens of the form itself.
    dropped: tuple[DroppedForm, ...]
    #: Pairs of labels where the tokens of the first are a prefix of the tokens of the second.
    collisions: tuple[tuple[str, str], ...]
    #: Positions of the label trie that are read: tokens after the form; empty for the end of the form.
    inner_nodes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class JudgeAudit:
    """A loaded judge on one metric."""

    #: The example's form.
    prompt: PromptAudit
    #: The judge's label distribution for it.
    example: Distribution
    #: The likeliest next tokens outside the labels, with their probabilities.
    other_tokens: tuple[tuple[str, float], ...]
    #: Lengths in tokens of the prompts that were scored both ways.
    lengths: tuple[int, ...]
    #: Number of packs that held these prompts; with one prompt per pack the comparison would show nothing.
    batches: int
    #: Largest difference between the packed and the one-by-one scores, on the metric's scale.
    batch_difference: float
    #: Largest difference (units of the scale) from this package's own engine on the same file, where another program
    #: computes and the file is here; or why it is not known.
    own_difference: float | str | None
    #: What the judge is.
    facts: BackendFacts
    #: Its place and size; the effect of half precision on a score is measured here.
    description: Description


def audit_prompt(maker: RequestMaker, sample: Sample) -> PromptAudit:
    """Tokenize one sample's form and the labels after it."""
    prepared = maker.prepare([sample])[0]
    if prepared.request is None:
        raise UnscorableError(prepared.error or "the form cannot be filled", code_of(prepared.error or ""))
    encoder, scale = maker.encoder, maker.metric.scale
    ids, trie = prepared.request.ids, prepared.request.trie
    prompt = render_form(maker.metric, sample.texts(maker.metric.fields))
    # Only the maker knows the number of cut tokens; the rest follows from the token ids.
    text = str(encoder.tokenizer.decode(ids)) if prepared.dropped_tokens else encoder.readable_text(prompt)
    bos = encoder.tokenizer.bos_token_id
    return PromptAudit(
        text=text,
        token_ids=tuple(ids.tolist()),
        pieces=tuple(encoder.decode([token]) for token in ids.tolist()),
        bos_count=0 if bos is None else int((ids == bos).sum()),
        dropped_tokens=prepared.dropped_tokens,
        forms=tuple(
            LabelForm(
                scale.labels[form.label],
                scale.values[form.label],
                form.text,
                form.token_ids,
                tuple(encoder.decode([token]) for token in form.token_ids),
            )
            for form in trie.forms
        ),
        dropped=maker.reader.dropped,
        collisions=tuple((scale.labels[short], scale.labels[long]) for short, long in trie.collisions()),
        inner_nodes=tuple(node.path for node in trie.inner_nodes),
    )


def audit_judge(
    backend: Backend, maker: RequestMaker, *, brief: bool = False, on_read: OnRead = lambda done, total: None
) -> JudgeAudit:
    """Audit a judge's backend on one metric, `brief` without the long examples; `on_read` takes counts of tokens."""
    engine, alone = backend.engine, backend.alone()
    samples = example_samples(maker.metric)
    if brief:
        samples = [samples[0], samples[1], samples[-1]]
    prompt = audit_prompt(maker, samples[0])
    requests = [entry.request for entry in maker.prepare(samples) if entry.request is not None]
    total, done = sum(pack.tokens for one in (engine, alone) for pack in one.plan(requests)), 0

    def computed(tokens: int) -> None:
        nonlocal done
        done += tokens
        on_read(done, total)

    computed(0)
    together, other = _distributions(engine, requests, maker, computed)
    one_by_one = _distributions(alone, requests, maker, computed)[0]
    description = backend.describe(measure=True)
    return JudgeAudit(
        prompt=prompt,
        example=together[0],
        other_tokens=other,
        lengths=tuple(len(request.ids) for request in requests),
        batches=sum(bool(pack.requests) for pack in engine.plan(requests)),
        batch_difference=max(abs(one.score - many.score) for one, many in zip(one_by_one, together, strict=True)),
        own_difference=_own_difference(description.file, requests, together, maker),
        facts=backend.facts,
        description=description,
    )


def _own_difference(
    file: Path | None, requests: Sequence[Request], found: Sequence[Distribution], maker: RequestMaker
) -> float | str | None:
    """Score some prompts by this package's own engine on the file that another program computes with."""
    from geval_local.engine.open import open_backend  # brings torch

    if file is None:
        return None
    try:
        own = open_backend(JudgeOptions(name=str(file)))
        try:
            scores = _distributions(own.engine, requests[:OWN_PROMPTS], maker, lambda tokens: None)[0]
        finally:
            own.close()
    except GevalError as error:
        return first_line(error)
    return max(abs(one.score - other.score) for one, other in zip(scores, found, strict=False))


def _distributions(
    engine: Engine, requests: Sequence[Request], maker: RequestMaker, computed: Callable[[int], object]
) -> tuple[list[Distribution], tuple[tuple[str, float], ...]]:
    """Score requests in one plan; also the tokens outside the labels of the first."""
    found = []
    readouts = read_all(engine, requests, computed)
    for request, readout in zip(requests, readouts, strict=True):
        if readout.label_logprobs is None:
            raise JudgeError(f"an example prompt of {len(request.ids)} tokens has no score: {readout.error}")
        found.append(Distribution(maker.metric.scale, readout.label_logprobs))
    return found, tuple((maker.encoder.decode(tokens), p) for tokens, p in readouts[0].other_tokens)


@dataclass(frozen=True)
class ThoughtAudit:
    """One thought about the built-in example, and the labels after it."""

    #: How the judge thinks, as in its signature.
    settings: str
    #: The thought, how it ended, see `geval_local.thinking`, and its number of tokens.
    text: str
    ending: str
    tokens: int
    #: The text between the thought and the label.
    rest: str
    #: Probability of any label after it, and the score; NaN if the labels cannot be read.
    label_mass: float
    score: float


def audit_thought(judge: Judge, metric: Metric) -> ThoughtAudit | None:
    """Let a judge that thinks draw one thought about the example, and read the labels after it; None of any other."""
    thinker = judge.thinker
    if thinker is None:
        return None
    one = judge.thinking_as(JudgeOptions(**{**judge.thinking, "think": 1}))
    assert one.thinker is not None
    form = one.prepare(metric, example_samples(metric)[:1])[0]
    (entry,) = one.thinker.after_thoughts([form])
    if form.request is None or entry.request is None or entry.thought is None:
        raise UnscorableError(entry.error or "the form cannot be filled", code_of(entry.error or ""))
    (readout,) = read_all(judge.engine, [entry.request])
    found = None if readout.label_logprobs is None else Distribution(metric.scale, readout.label_logprobs)
    return ThoughtAudit(
        thinker.settings.text,
        entry.thought.text,
        entry.thought.ending,
        len(entry.thought.ids),
        judge.encoder.decode(entry.request.ids[len(form.request.ids) + len(entry.thought.ids) :].tolist()),
        math.nan if found is None else found.label_mass,
        math.nan if found is None else found.score,
    )


#: Sentences that the built-in examples are made of.
STORY = (
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
    "source": " ".join(STORY),
    "context": " ".join(STORY[:3]),
    "output": _SHORT,
    "reference": _SHORT,
    "fact": STORY[2],
    "question": "Why was the library closed?",
}


def example_samples(metric: Metric) -> list[Sample]:
    """Make built-in samples of different lengths for a metric; the first is the example that is shown."""
    example = {name: EXAMPLE_TEXTS.get(name, STORY[0]) for name in metric.fields}
    shorter = dict.fromkeys(metric.fields, STORY[1])
    longer = {name: " ".join([text, *STORY]) for name, text in example.items()}
    longest = {name: " ".join([*STORY, text, *STORY]) for name, text in example.items()}
    one_word = dict.fromkeys(metric.fields, "Library")
    return [Sample(fields, origin="the example") for fields in (example, shorter, longer, longest, one_word)]
