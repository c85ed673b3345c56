"""G-Eval on local language models: exact label probabilities, batched, offline.

From the bottom to the top; a room is imported by itself and by those after it:

- ``errors``, ``files``
- the core, pure: ``fields``, ``yaml_text``, ``yaml_model``, ``scale``, ``metric``, ``metric_file``, ``prompt``,
  ``questions``, ``score``, ``signature``, ``grouping``, ``summary``, ``statistics``, ``options``
- ``io``: rows in, results out
- ``models``: weights; ``tokens``: text to ids; ``engine``: ids to label log-probabilities; ``judge``: samples to scores
- ``runs``: durable runs; ``analysis``: whether scores are right; ``report``: pages
- ``testing``: a judge without a model, for tests
- ``evaluation``: one file for all of it; ``frames``: data frames; ``serve``: HTTP; ``hosts``: other people's tools;
  ``ray``: clusters
- ``cli``: verbs

Public names are loaded on first use, so that importing the package does not import torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geval_local.analysis.biases import bias
    from geval_local.analysis.calibration import calibrate
    from geval_local.analysis.comparison import compare
    from geval_local.analysis.estimates import estimate
    from geval_local.analysis.juries import jury
    from geval_local.analysis.meta_evaluation import meta_evaluate
    from geval_local.analysis.pairs import rank
    from geval_local.analysis.ratings.rated import read_rated
    from geval_local.errors import GevalError, Interrupted
    from geval_local.evaluation.execution import run_evaluation
    from geval_local.frames import ascore_frame, register_accessors, score_frame
    from geval_local.hosts.evaluator import evaluator
    from geval_local.io.samples import Sample, read_samples
    from geval_local.judge.judge import Judge
    from geval_local.metric import Metric
    from geval_local.prompt import metric_from_prompt_file
    from geval_local.questions.answer import Decision
    from geval_local.questions.question import ChoiceQuestion, PredicateQuestion, ScoreQuestion, load_questions
    from geval_local.runs.completion import RunResult
    from geval_local.runs.events import RunEvents
    from geval_local.runs.run_file import decide_file, resume, score_file
    from geval_local.scale import Scale
    from geval_local.score import Distribution, Estimator, Score

__version__ = "0.1.0"

# PyTorch reads these when it starts. On Linux large tensors get large pages, whose addresses are found sooner.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# Packs differ in length, and segments of fixed size leave memory free in pieces that fit none of them. Windows has no
# others.
if sys.platform != "win32" and not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

_HOMES = {
    "ChoiceQuestion": "geval_local.questions.question",
    "Decision": "geval_local.questions.answer",
    "Distribution": "geval_local.score",
    "Estimator": "geval_local.score",
    "GevalError": "geval_local.errors",
    "Interrupted": "geval_local.errors",
    "Judge": "geval_local.judge.judge",
    "Metric": "geval_local.metric",
    "PredicateQuestion": "geval_local.questions.question",
    "RunEvents": "geval_local.runs.events",
    "RunResult": "geval_local.runs.completion",
    "Sample": "geval_local.io.samples",
    "Scale": "geval_local.scale",
    "Score": "geval_local.score",
    "ScoreQuestion": "geval_local.questions.question",
    "ascore_frame": "geval_local.frames",
    "bias": "geval_local.analysis.biases",
    "calibrate": "geval_local.analysis.calibration",
    "compare": "geval_local.analysis.comparison",
    "decide_file": "geval_local.runs.run_file",
    "estimate": "geval_local.analysis.estimates",
    "evaluator": "geval_local.hosts.evaluator",
    "jury": "geval_local.analysis.juries",
    "load_questions": "geval_local.questions.question",
    "meta_evaluate": "geval_local.analysis.meta_evaluation",
    "metric_from_prompt_file": "geval_local.prompt",
    "rank": "geval_local.analysis.pairs",
    "read_rated": "geval_local.analysis.ratings.rated",
    "read_samples": "geval_local.io.samples",
    "register_accessors": "geval_local.frames",
    "resume": "geval_local.runs.run_file",
    "run_evaluation": "geval_local.evaluation.execution",
    "score_file": "geval_local.runs.run_file",
    "score_frame": "geval_local.frames",
}

__all__ = [
    "ChoiceQuestion",
    "Decision",
    "Distribution",
    "Estimator",
    "GevalError",
    "Interrupted",
    "Judge",
    "Metric",
    "PredicateQuestion",
    "RunEvents",
    "RunResult",
    "Sample",
    "Scale",
    "Score",
    "ScoreQuestion",
    "__version__",
    "ascore_frame",
    "bias",
    "calibrate",
    "compare",
    "decide_file",
    "estimate",
    "evaluator",
    "jury",
    "load_questions",
    "meta_evaluate",
    "metric_from_prompt_file",
    "rank",
    "read_rated",
    "read_samples",
    "register_accessors",
    "resume",
    "run_evaluation",
    "score_file",
    "score_frame",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
