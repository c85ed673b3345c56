"""Contenders of a meta-evaluation: scored runs, others' outputs, length, and reference metrics that need no network.

ROUGE is Google's ``rouge-score``, BLEU and chrF are ``sacrebleu``; the extra ``meta`` installs both. METEOR is missing
because nltk's version downloads the WordNet data, which no package index has.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

from geval_local.analysis.ratings.rated import Rated, read_benchmark
from geval_local.analysis.ratings.responses import PREDICTIONS, ParsedResponses, geval_items, unieval_items
from geval_local.analysis.results import estimate_name, estimated_items, figures_of
from geval_local.errors import ConfigurationError, DataError, UnscorableError
from geval_local.fields import decoded_json, field_value, resolve
from geval_local.io.result_manifest import read_manifest
from geval_local.io.results import MetricFigures
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.runs.directory import result_file
from geval_local.score import Estimator
from geval_local.statistics.records import ScoredItem, word_count

logger = logging.getLogger("geval_local")

BASELINES = ("length", "rouge-1", "rouge-2", "rouge-l", "bleu", "chrf")
# The references of Topical-Chat are the true next turns, which the file contains as one of its systems.
TRUE_TURN = "Original Ground Truth"

#: The baseline that reads no text.
SYSTEM_MEAN = "system's mean rating"

_Compare = Callable[[Sequence[str], str], float]
Kind = Literal["judge", "ablation", "responses", "predictions", "baseline"]


@dataclass(frozen=True)
class Contender:
    """A judge or metric that scored the rows."""

    #: Name of its rows.
    name: str
    #: A judge or its stored run; another estimator of that judge; others' raw responses; others' predictions on their
    #: own scale; a reference metric.
    kind: Kind
    #: Dimension -> its scores.
    items: Mapping[str, Sequence[ScoredItem]]
    #: The judge that an ablation belongs to.
    parent: str = ""


def from_results(rated: Rated, path: Path, taken: Sequence[str]) -> list[Contender]:
    """Read a stored run, a result file over the same rows or its run directory: a contender for each of its judges."""
    given, path = path, result_file(path)
    own, manifest = rated.beside(path), read_manifest(path)
    found: dict[str, dict[str, Sequence[ScoredItem]]] = {}
    for name in own.rows.figures:
        scored = None if manifest is None else manifest.metrics.get(name)
        judge = path.stem if manifest is None or scored is None else manifest.judge_of(name)
        for dimension, metric in rated.metrics.items():
            if metric.name in (name, scored and scored.definition.name):
                figures = figures_of(own.rows, name, path)
                items = own.items(dimension, figures, None if scored is None else scored.definition)
                found.setdefault(judge, {})[dimension] = items
    if not found:
        raise DataError(
            f"{path} holds no scores of {', '.join(metric.name for metric in rated.metrics.values())}",
            hint="Expected a result file of `geval-local score` over the rated rows.",
        )
    file = given.stem if given == path else given.resolve().name
    other = "{file}" if len(found) == 1 else "{judge} ({file})"
    names = {judge: judge if judge not in taken else other.format(file=file, judge=judge) for judge in found}
    return [Contender(names[judge], "judge", items) for judge, items in found.items()]


def ablations(judge: Contender, metrics: Mapping[str, Metric], estimators: Sequence[Estimator]) -> list[Contender]:
    """Apply other estimators to the same distributions; empty, with a note, if a run stored none."""
    try:
        found = [
            (one, {d: estimated_items(items, metrics[d].scale, one) for d, items in judge.items.items()})
            for one in estimators
        ]
    except DataError as error:
        logger.info("no ablations of %s: %s", judge.name, error.message)
        return []
    return [Contender(estimate_name(judge.name, one), "ablation", items, judge.name) for one, items in found]


def from_responses(rated: Rated, named: Sequence[str]) -> tuple[list[Contender], dict[str, ParsedResponses]]:
    """Read result files of G-Eval's scripts, and predictions in UniEval's format."""
    if rated.name is None:
        raise ConfigurationError("`responses` needs `benchmark`: the files hold a benchmark's rows")
    found: dict[str, dict[str, list[ScoredItem]]] = {}
    kinds: dict[str, Kind] = {}
    parsed: dict[str, ParsedResponses] = {}
    for name in named:
        prefix, equals, rest = name.partition("=")
        path = Path(rest if equals else name)
        if equals and prefix not in rated.human:
            raise ConfigurationError(f"there is no dimension {prefix!r}", hint=f"There are: {', '.join(rated.human)}.")
        data = read_benchmark(path, rated.name)
        if "all_responses" not in data.rows[0] and PREDICTIONS in data.rows[0]:
            found[path.stem], kinds[path.stem] = _predicted(data, rated.dimensions), "predictions"
            continue
        dimension, contender = (prefix, path.stem) if equals else _dimension_of(path, rated.human)
        if dimension not in rated.dimensions:
            continue
        if dimension in found.get(contender, {}):
            raise ConfigurationError(f"two files hold responses of {contender} for {dimension}")
        scale = rated.metrics[dimension].scale if dimension in rated.metrics else None
        items, parsed[f"{contender}, {dimension}"] = geval_items(path, rated.name, dimension, scale=scale)
        found.setdefault(contender, {})[dimension] = items
        kinds[contender] = "responses"
    return [Contender(name, kinds[name], items) for name, items in found.items()], parsed


def predictions(rated: Rated) -> list[Contender]:
    """Read UniEval's own predictions, if the benchmark file contains them."""
    found = {} if rated.name is None else _predicted(rated, rated.dimensions)
    return [Contender(f"UniEval ({PREDICTIONS})", "predictions", found)] if found else []


def _predicted(data: Rated, dimensions: Sequence[str]) -> dict[str, list[ScoredItem]]:
    held = data.rows[0].get(PREDICTIONS)
    return {d: unieval_items(data, d) for d in dimensions if isinstance(held, Mapping) and d in held}


def baselines(rated: Rated) -> tuple[list[Contender], list[str]]:
    """Score with length, ROUGE, BLEU, chrF, and the mean rating of the system; what is missing becomes notes."""
    outputs = [rated.rule.output(row) or "" for row in rated.rows.inputs()]
    own = rated.benchmark is None
    compared = [_references(row, rated.fields) for row in rated.rows.inputs()] if own else references(rated)
    found: list[Contender] = []
    notes: list[str] = []
    for name in BASELINES:
        if name != "length" and not any(compared):
            notes.append(f"no {name} and other reference metrics: the rows have no reference text")
            break
        try:
            scores = baseline_scores(name, outputs, compared)
        except ConfigurationError as error:
            notes.append(f"no {name}: {error.message}; {error.hint}")
            continue
        figures = [
            {"score": score} if math.isfinite(score) else {"score": None, "error": "no reference"} for score in scores
        ]
        own_items = {d: rated.items(d, MetricFigures.of(name, figures)) for d in rated.metrics}
        found.append(Contender(name, "baseline", own_items))
    means = {dimension: means_of for dimension in rated.metrics if (means_of := system_means(rated, dimension))}
    return [*found, *([Contender(SYSTEM_MEAN, "baseline", means)] if means else [])], notes


def system_means(rated: Rated, dimension: str) -> list[ScoredItem]:
    """Score each row with its system's mean rating on the other half of the documents, without reading a text.

    A judge that agrees no better tells systems apart, and not texts. Empty where no system has ratings in both halves.
    """
    items = rated.items(dimension)
    known = [item for item in items if item.system and math.isfinite(item.human)]
    # Halves, since the mean of all other documents falls where the document's own rating is high: of two systems that
    # are nearly equal it is wrong in every document.
    documents = sorted({item.group for item in known}, key=lambda name: blake2b(name.encode()).digest())
    half = {name: place % 2 for place, name in enumerate(documents)}
    ratings: dict[tuple[str, int], list[float]] = {}
    for item in known:
        ratings.setdefault((item.system, 1 - half[item.group]), []).append(item.human)
    means = {key: {"score": math.fsum(own) / len(own)} for key, own in ratings.items()}
    without: dict[str, Any] = {"error": "no document in the other half"}
    figures = [means.get((item.system, half.get(item.group, 0)), without) for item in items]
    if len({system for system, _ in means}) < 2 or all(one is without for one in figures):
        return []
    return rated.items(dimension, MetricFigures.of(SYSTEM_MEAN, figures))


def _references(row: Mapping[str, Any], mapping: Mapping[str, str]) -> str | list[str] | None:
    """Return the reference of a row, or all of a list."""
    path = mapping.get("reference") or resolve(("reference",), tuple(row)).get("reference")
    held = None if path is None else decoded_json(field_value(row, path))
    if isinstance(held, list | tuple) and len(held) > 1:
        return [one for one in held if isinstance(one, str) and one.strip()] or None
    with suppress(UnscorableError):
        return Sample(row, mapping=mapping).texts(("reference",))["reference"]
    return None


def _dimension_of(path: Path, dimensions: Iterable[str]) -> tuple[str, str]:
    """Find the dimension in a name such as ``gpt4_coh_detailed.json``, and the name without it."""
    parts = re.split(r"([_\s-])", path.stem)
    hits = [(i, d) for i, part in enumerate(parts) for d in dimensions if part.lower() in (d, d[:3])]
    if len(hits) != 1:
        raise ConfigurationError(
            f"the name of {path} does not tell which dimension its responses rate",
            hint=f"Say it: `responses=DIMENSION={path}`, one of {', '.join(dimensions)}.",
        )
    index, dimension = hits[0]
    rest = "".join(parts[: max(index - 1, 0)] + parts[index + 1 :])
    return dimension, rest.strip("_- ") or path.stem


def baseline_scores(
    name: str, outputs: Sequence[str], references: Sequence[str | Sequence[str] | None] = ()
) -> list[float]:
    """Score outputs with one of `BASELINES`; all but the length compare each with its reference.

    With several references ROUGE uses the best match; BLEU and chrF have their own rules.
    """
    if name == "length":
        return [float(word_count(output)) for output in outputs]
    compare = _bleu_or_chrf(name) if name in ("bleu", "chrf") else _rouge(name)
    return [
        math.nan if reference is None else compare([reference] if isinstance(reference, str) else reference, output)
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
    return lambda references, output: max(float(scorer.score(one, output)[kind].fmeasure) for one in references)


@lru_cache(maxsize=1)
def _stemming() -> SimpleNamespace:
    """Return ROUGE's own tokenizer with a cache of stems and tokens: three kinds of ROUGE tokenize every text."""
    split = _library("rouge_score.tokenize", "rouge-score").tokenize
    porter = _library("nltk.stem.porter", "rouge-score").PorterStemmer()
    stemmer = SimpleNamespace(stem=lru_cache(maxsize=100_000)(porter.stem))
    return SimpleNamespace(tokenize=lru_cache(maxsize=10_000)(lambda text: split(text, stemmer)))


def _bleu_or_chrf(name: str) -> _Compare:
    metrics = _library("sacrebleu.metrics", "sacrebleu")
    scorer = metrics.BLEU(effective_order=True) if name == "bleu" else metrics.CHRF()
    return lambda references, output: float(scorer.sentence_score(output, list(references)).score)
