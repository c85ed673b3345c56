"""Analyses of whether scores can be trusted. They read records, never models.

- `results`: results, however they are given, as scored items
- `ratings`: human ratings, published benchmark files, other people's outputs; `overlap`: ROUGE, BLEU, chrF and length
- `tables`: results as headers and rows of text
- `meta_evaluation`, `contenders`: scores against people, against each other, and against the human ceiling
- `differences`: sides and systems, on the documents that they share; `comparison`: systems or runs beside each other
- `biases`: whom a judge favours, and what length does; `pairs`: systems by comparisons of two outputs
- `calibration`: scores brought to the ratings' scale, judged on held-out documents; `juries`: several judges as one

Importing the package loads nothing; the public functions are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geval_local.analysis.biases import bias
    from geval_local.analysis.calibration import calibrate
    from geval_local.analysis.comparison import compare
    from geval_local.analysis.contenders import meta_evaluate, read_rated
    from geval_local.analysis.juries import jury
    from geval_local.analysis.pairs import rank

_HOMES = {
    "bias": "biases",
    "calibrate": "calibration",
    "compare": "comparison",
    "jury": "juries",
    "meta_evaluate": "contenders",
    "rank": "pairs",
    "read_rated": "contenders",
}

__all__ = ["bias", "calibrate", "compare", "jury", "meta_evaluate", "rank", "read_rated"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"geval_local.analysis.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
