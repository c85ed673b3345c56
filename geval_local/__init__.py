"""G-Eval on local language models: exact label probabilities, batched, offline.

From bottom to top; a room may only be imported by itself and by later ones:

- ``errors``, ``wording``; ``files``
- the core, pure: ``fields``, ``conversation``, ``yaml_text``, ``yaml_model``, ``scale``, ``scale_words``,
  ``direction``, ``figures``, ``metric``, ``metric_file``, ``examples``, ``prompt``, ``questions``, ``score``,
  ``thinking``, ``signature``, ``canary``, ``backends``, ``grouping``, ``slices``, ``summary``, ``statistics``,
  ``options``, ``notebook``
- ``io``: rows in, results out
- ``models``: weights; ``tokens``: text to ids; ``engine``: ids to label log-probabilities; ``judge``: samples to scores
- ``runs``: durable runs; ``analysis``: whether to trust scores; ``report``: pages
- ``testing``: a judge without a model, for tests
- ``evaluation``: one file for all of it; ``frames``: data frames; ``serve``: HTTP; ``hosts``: other people's tools;
  ``ray``: clusters
- ``cli``: verbs

Public names load on first use, so that importing the package does not import torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of the package, for type checkers and editors
    from geval_local.analysis.biases import bias as bias
    from geval_local.analysis.calibration import calibrate as calibrate
    from geval_local.analysis.comparison import compare as compare
    from geval_local.analysis.estimates import estimate as estimate
    from geval_local.analysis.juries import jury as jury
    from geval_local.analysis.meta_evaluation import meta_evaluate as meta_evaluate
    from geval_local.analysis.pairs import rank as rank
    from geval_local.analysis.rating_plans import plan_ratings as plan_ratings
    from geval_local.analysis.ratings.rated import read_rated as read_rated
    from geval_local.analysis.results import read_results as read_results
    from geval_local.analysis.worse import is_worse as is_worse
    from geval_local.errors import GevalError as GevalError
    from geval_local.errors import Interrupted as Interrupted
    from geval_local.evaluation.execution import run_evaluation as run_evaluation
    from geval_local.frames import ascore_frame as ascore_frame
    from geval_local.frames import score_frame as score_frame
    from geval_local.hosts.evaluator import evaluator as evaluator
    from geval_local.io.input_files import read_samples as read_samples
    from geval_local.io.samples import Sample as Sample
    from geval_local.judge.judge import Judge as Judge
    from geval_local.metric import Metric as Metric
    from geval_local.prompt import metric_from_prompt_file as metric_from_prompt_file
    from geval_local.questions.answer import Decision as Decision
    from geval_local.questions.question import ChoiceQuestion as ChoiceQuestion
    from geval_local.questions.question import PredicateQuestion as PredicateQuestion
    from geval_local.questions.question import ScoreQuestion as ScoreQuestion
    from geval_local.questions.question import load_questions as load_questions
    from geval_local.report.reports import write_report as write_report
    from geval_local.runs.completion import RunResult as RunResult
    from geval_local.runs.events import RunEvents as RunEvents
    from geval_local.runs.merging import merge_shares as merge_shares
    from geval_local.runs.run_file import decide_file as decide_file
    from geval_local.runs.run_file import resume as resume
    from geval_local.runs.run_file import score_file as score_file
    from geval_local.scale import Scale as Scale
    from geval_local.score import Distribution as Distribution
    from geval_local.score import Estimator as Estimator
    from geval_local.score import Score as Score

__version__ = "0.1.0"

# PyTorch reads these when it starts. On Linux, huge pages for large tensors reduce TLB misses.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# Packs differ in length, so segments of fixed size fragment GPU memory. Windows only has fixed segments.
if sys.platform != "win32" and not any(f"PYTORCH_{name}ALLOC_CONF" in os.environ for name in ("", "CUDA_", "HIP_")):
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
    "is_worse": "geval_local.analysis.worse",
    "jury": "geval_local.analysis.juries",
    "load_questions": "geval_local.questions.question",
    "meta_evaluate": "geval_local.analysis.meta_evaluation",
    "merge_shares": "geval_local.runs.merging",
    "metric_from_prompt_file": "geval_local.prompt",
    "plan_ratings": "geval_local.analysis.rating_plans",
    "rank": "geval_local.analysis.pairs",
    "read_rated": "geval_local.analysis.ratings.rated",
    "read_results": "geval_local.analysis.results",
    "read_samples": "geval_local.io.input_files",
    "resume": "geval_local.runs.run_file",
    "run_evaluation": "geval_local.evaluation.execution",
    "score_file": "geval_local.runs.run_file",
    "score_frame": "geval_local.frames",
    "write_report": "geval_local.report.reports",
}

__all__ = sorted(("__version__", *_HOMES))


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
