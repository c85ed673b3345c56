"""GPTScore (Fu et al., 2023, arXiv:2302.04166): the output's likelihood when the judge is asked to write a good one.

Uses the same model, tokenizer and head as the judge's scores; the request contains the metric's criteria, and the score
is the mean log-probability of the output's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.baselines.likelihood import Continuation, mean_logprobs
from geval_local.errors import ConfigurationError, UnscorableError
from geval_local.io.samples import Sample
from geval_local.judge.judge import Judge
from geval_local.metric import Metric
from geval_local.models.head import Head
from geval_local.prompt import Prompt
from geval_local.tokens.encoder import PromptEncoder

__all__ = ["NO_READING", "gptscore_figures", "render_request"]

OUTPUT = "output"
#: Most tokens of a forward pass, padding included.
CPU_TOKENS, GPU_TOKENS = 4_096, 32_768
#: Reason for a missing score that another attempt may produce.
NO_READING = "out of memory, or not a number"


def render_request(metric: Metric, texts: Mapping[str, str]) -> str:
    """Compose the judge's writing request: the criteria, and all fields except the output."""
    heading = metric.fields[OUTPUT]
    blocks = [
        f"Write a text ({heading}) that would get the highest rating on this metric.",
        f"{metric.title} - {metric.criteria}",
        *(f"{name}:\n\n{texts[field]}" for field, name in metric.fields.items() if field != OUTPUT),
        f"{heading}:\n\n",
    ]
    return "\n\n".join(blocks)


def gptscore_figures(
    judge: Judge,
    metric: Metric,
    samples: Sequence[Sample],
    *,
    advance: Callable[[int], object] = lambda count: None,
) -> list[dict[str, Any]]:
    """Score samples by the mean log-probability of their outputs.

    Parameters
    ----------
    judge : Judge
        The judge whose model is used.
    metric : Metric
        A metric with a field ``output``; its evaluation steps are not used.
    samples : sequence of Sample
        The samples.
    advance : callable
        Called with the number of samples finished.

    Returns
    -------
    list of dict
        ``score`` in nats per token, or None with ``error``.

    Raises
    ------
    ConfigurationError
        If the metric has no field ``output``, or is a published prompt used verbatim.
    """
    if OUTPUT not in metric.fields or metric.template is not None:
        raise ConfigurationError(
            f"GPTScore needs a metric with a field {OUTPUT!r} of its own, and {metric.name} has none"
        )
    encoder = judge.encoder
    if encoder.style == "chat-no-prefill":
        # The assistant writes the output in every prompt style.
        encoder = PromptEncoder(encoder.tokenizer, style="chat")
    figures: list[dict[str, Any]] = [{} for _ in samples]
    places: list[int] = []
    texts: list[tuple[str, str]] = []
    for place, sample in enumerate(samples):
        try:
            fields = sample.texts(metric.fields)
            texts.append((render_request(metric, fields), fields[OUTPUT]))
            places.append(place)
        except UnscorableError as error:
            figures[place] = {"score": None, "error": str(error)}
    contexts = encoder.encode([Prompt(request, "") for request, _ in texts])
    wholes = encoder.encode([Prompt(request, output) for request, output in texts])
    fitting: list[int] = []
    continuations: list[Continuation] = []
    for place, context, whole in zip(places, contexts, wholes, strict=True):
        if len(whole) > judge.context:
            reason = f"context and output have {len(whole)} tokens, the judge reads {judge.context}"
            figures[place] = {"score": None, "error": reason}
            continue
        # The output's first token may span the border; the shared tokens are the context.
        shared = min(len(context), len(whole) - 1)
        differ = np.flatnonzero(context[:shared] != whole[:shared])
        start = int(differ[0]) if differ.size else shared
        continuations.append(Continuation(whole, max(start, 1)))
        fitting.append(place)
    model = judge.backend.loaded.model
    budget = GPU_TOKENS if model.device.type == "cuda" else CPU_TOKENS
    values = mean_logprobs(model, Head(model), continuations, batch_tokens=budget, advance=advance)
    for place, value in zip(fitting, values, strict=True):
        finite = bool(np.isfinite(value))
        figures[place] = {"score": value} if finite else {"score": None, "error": NO_READING}
    return figures
