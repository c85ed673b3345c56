"""The trivial baseline (length) and reference metrics that need no network: ROUGE, BLEU and chrF.

ROUGE is Google's ``rouge-score``, BLEU and chrF are ``sacrebleu``; both come with the extra ``meta``. METEOR is missing
because nltk's needs the WordNet data, which is downloaded and not on any package index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from types import ModuleType, SimpleNamespace

from geval_local.analysis.ratings.rated import Rated
from geval_local.errors import ConfigurationError, DataError
from geval_local.statistics.records import word_count

BASELINES = ("length", "rouge-1", "rouge-2", "rouge-l", "bleu", "chrf")
# The references of Topical-Chat are the true next turns, which the file contains as one of its systems.
TRUE_TURN = "Original Ground Truth"

_Compare = Callable[[str, str], float]


def baseline_scores(name: str, outputs: Sequence[str], references: Sequence[str | None] | None = None) -> list[float]:
    """Score outputs with a baseline."""
    if name not in BASELINES:
        raise ConfigurationError(f"there is no baseline {name!r}", hint=f"Choose one of: {', '.join(BASELINES)}.")
    if name == "length":
        return [float(word_count(output)) for output in outputs]
    if references is None or len(references) != len(outputs):
        raise DataError(f"{name} compares each text with a reference, and there is not one for each")
    compare = _bleu_or_chrf(name) if name in ("bleu", "chrf") else _rouge(name)
    return [
        math.nan if reference is None else compare(reference, output)
        for output, reference in zip(outputs, references, strict=True)
    ]


def references(rated: Rated) -> list[str | None]:
    """Find the reference of each row of a benchmark.

    SummEval: its reference summary. Topical-Chat: the true next turn, which is a separate row and has no reference
    itself. QAGS: its file has no reference summaries (`reference` repeats the source), so it is the source.
    """
    if rated.name != "topical-chat":
        return [str(row[rated.fields.get("reference", "source")]) for row in rated.rows]
    is_true = [row.get("system_id") == TRUE_TURN for row in rated.rows]
    rows = list(zip(rated.rows, is_true, strict=True))
    turns = {row["source"]: str(row[rated.fields["output"]]) for row, true in rows if true}
    return [None if true else turns.get(row["source"]) for row, true in rows]


def _library(name: str, package: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"{package} is not installed, and this baseline needs it",
            hint='Install it with `pip install "geval-local[meta]"`.',
        ) from error


def _rouge(name: str) -> _Compare:
    kind = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL"}[name]
    scorer = _library("rouge_score.rouge_scorer", "rouge-score").RougeScorer([kind], tokenizer=_stemming())
    return lambda reference, output: float(scorer.score(reference, output)[kind].fmeasure)


@lru_cache(maxsize=1)
def _stemming() -> SimpleNamespace:
    """Give ROUGE's own tokenizer, with stems and tokens kept: three kinds of ROUGE take every text of a file apart."""
    split = _library("rouge_score.tokenize", "rouge-score").tokenize
    porter = _library("nltk.stem.porter", "rouge-score").PorterStemmer()
    stemmer = SimpleNamespace(stem=lru_cache(maxsize=100_000)(porter.stem))
    return SimpleNamespace(tokenize=lru_cache(maxsize=10_000)(lambda text: split(text, stemmer)))


def _bleu_or_chrf(name: str) -> _Compare:
    metrics = _library("sacrebleu.metrics", "sacrebleu")
    scorer = metrics.BLEU(effective_order=True) if name == "bleu" else metrics.CHRF()
    return lambda reference, output: float(scorer.sentence_score(output, [reference]).score)
