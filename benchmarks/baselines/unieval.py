"""UniEval (Zhong et al., 2022, arXiv:2210.07197): its questions, answered by the user's own UniEval weights.

Consistency and fluency of a summary are means over its sentences, engagingness of a response a sum, as in the authors'
evaluators. The authors split sentences with nltk's data; here a sentence ends in . ! or ? before white space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarks.baselines.reference_models import ReferenceModel, yes_probabilities
from geval_local.errors import ConfigurationError

__all__ = ["QUESTIONS", "unieval_scores"]

#: Benchmark -> dimension -> (question, (name, field) of each text in order); names and wording are the authors'.
_CLAIM = ("Is this claim consistent with the document?", (("claim", "output"), ("document", "source")))
QUESTIONS: Mapping[str, Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]] = {
    "summeval": {
        "coherence": ("Is this a coherent summary to the document?", (("summary", "output"), ("document", "source"))),
        "consistency": _CLAIM,
        "fluency": ("Is this a fluent paragraph?", (("paragraph", "output"),)),
        "relevance": (
            "Is this summary relevant to the reference?",
            (("summary", "output"), ("reference", "reference")),
        ),
    },
    "topical-chat": {
        "naturalness": ("Is this a natural response in the dialogue?", (("response", "output"),)),
        "coherence": (
            "Is this a coherent response given the dialogue history?",
            (("response", "output"), ("dialogue history", "source")),
        ),
        "engagingness": (
            "Is this an engaging and informative response according to the dialogue history and fact?",
            (("response", "output"), ("dialogue history", "source"), ("fact", "fact")),
        ),
        "groundedness": (
            "Is this response consistent with knowledge in the fact?",
            (("response", "output"), ("fact", "fact")),
        ),
        "understandability": ("Is this an understandable response in the dialogue?", (("response", "output"),)),
    },
    "qags": {"consistency": _CLAIM},
}
#: Dimensions with one question per sentence, and whether their answers are averaged or added.
BY_SENTENCE = {
    ("summeval", "consistency"): "mean",
    ("summeval", "fluency"): "mean",
    ("topical-chat", "engagingness"): "sum",
    ("qags", "consistency"): "mean",
}


def unieval_scores(
    model: ReferenceModel, benchmark: str, dimension: str, rows: Sequence[Mapping[str, str]]
) -> list[float]:
    """Score rows on one dimension.

    Parameters
    ----------
    model : ReferenceModel
        A UniEval checkpoint (T5).
    benchmark, dimension : str
        Benchmark and dimension of the question.
    rows : sequence of mapping
        ``output`` and, as the question needs them, ``source``, ``reference`` and ``fact``.

    Returns
    -------
    list of float
        0-1; engagingness up to the number of sentences.

    Raises
    ------
    ConfigurationError
        If UniEval has no question for the dimension.
    """
    found = QUESTIONS.get(benchmark, {}).get(dimension)
    if found is None:
        raise ConfigurationError(f"UniEval has no question for {dimension} of {benchmark}")
    question, texts = found
    how = BY_SENTENCE.get((benchmark, dimension))
    asked: list[str] = []
    owners: list[int] = []
    for index, row in enumerate(rows):
        for output in _sentences(row["output"]) if how else [row["output"]]:
            parts = [f"{name}: {output if field == 'output' else row[field]}" for name, field in texts]
            asked.append(" </s> ".join([f"question: {question}", *parts]))
            owners.append(index)
    totals, counts = [0.0] * len(rows), [0] * len(rows)
    for owner, value in zip(owners, yes_probabilities(model, asked), strict=True):
        totals[owner] += value
        counts[owner] += 1
    return totals if how == "sum" else [total / count for total, count in zip(totals, counts, strict=True)]


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part] or [text]
