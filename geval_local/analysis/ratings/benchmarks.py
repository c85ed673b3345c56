"""The published benchmark files, read unchanged: rated dimensions, their presets, and grouping.

Published figures are never recomputed, and always marked: Liu et al. (2023), "G-Eval: NLG Evaluation using GPT-4 with
Better Human Alignment", EMNLP, arXiv:2303.16634.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from geval_local.analysis.results import number_at, read_rows
from geval_local.errors import ConfigurationError, DataError
from geval_local.io.results import numbered
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem, word_count


@dataclass(frozen=True)
class Benchmark:
    """Layout of a benchmark's file, and the way its authors report agreement."""

    #: Name on the command line.
    name: str
    #: Dimension -> the preset metric that rates it; None where a rating has no preset.
    dimensions: Mapping[str, str | None]
    #: Field that holds the document; None if every row is a separate document.
    group_field: str | None
    #: Level of the paper's table.
    level: Level
    #: Columns of the paper's table, in order.
    columns: tuple[str, ...]
    #: Field of a metric -> field of the file.
    fields: Mapping[str, str]
    #: Dimension -> its column in the paper's table, where that has another name.
    published: Mapping[str, str] = field(default_factory=dict)


#: The two halves of QAGS, which the paper's table has as columns: `qags` tells by the file which one it is.
QAGS_HALVES = ("cnn", "xsum")


def _qags(half: str | None) -> Benchmark:
    return Benchmark(
        name="qags",
        dimensions={"consistency": "factuality/summary_consistency"},
        group_field=None,
        level="pooled",
        columns=("pearson", "spearman", "kendall"),
        fields={"source": "source", "output": "system_output"},
        published={} if half is None else {"consistency": half},
    )


BENCHMARKS = {
    "summeval": Benchmark(
        name="summeval",
        dimensions={
            "coherence": "summarization/coherence",
            "consistency": "summarization/consistency",
            "fluency": "summarization/fluency",
            "relevance": "summarization/relevance",
        },
        group_field="doc_id",
        level="summary",
        columns=("spearman", "kendall"),
        fields={"source": "source", "output": "system_output", "reference": "reference"},
    ),
    # The file has no document id; the 60 dialogue histories are distinct, so the history is the document.
    "topical-chat": Benchmark(
        name="topical-chat",
        dimensions={
            "naturalness": "dialogue/naturalness",
            "coherence": "dialogue/coherence",
            "engagingness": "dialogue/engagingness",
            "groundedness": "dialogue/groundedness",
            "understandability": "dialogue/understandability",
            "overall": None,
        },
        group_field="source",
        level="pooled",
        columns=("pearson", "spearman"),
        fields={"source": "source", "fact": "context", "output": "system_output"},
    ),
    "qags": _qags(None),
    **{f"qags-{half}": _qags(half) for half in QAGS_HALVES},
}


@dataclass(frozen=True)
class BenchmarkData:
    """Validated rows of a benchmark."""

    benchmark: Benchmark
    path: str
    rows: tuple[Mapping[str, Any], ...]

    def group(self, index: int) -> str:
        """Return the document of the row at `index` (from 0)."""
        field = self.benchmark.group_field
        return str(index + 1) if field is None else str(self.rows[index][field])

    @cached_property
    def keys(self) -> list[str]:
        """A key for every row: its system and document, so that incomplete files can be paired."""
        if self.benchmark.group_field is None:
            return [str(place) for place in range(1, len(self.rows) + 1)]
        documents = [hashlib.sha256(self.group(index).encode()).hexdigest()[:12] for index in range(len(self.rows))]
        return [f"{row.get('system_id', '')}/{own}" for row, own in zip(self.rows, documents, strict=True)]

    @cached_property
    def lengths(self) -> list[int]:
        """Words of every row's output."""
        return [word_count(row[self.benchmark.fields["output"]]) for row in self.rows]


def benchmark(name: str) -> Benchmark:
    """Find a benchmark by name."""
    if name not in BENCHMARKS:
        raise ConfigurationError(f"there is no benchmark {name!r}", hint=f"Choose one of: {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def read_benchmark(path: str | Path, name: str) -> BenchmarkData:
    """Read a published benchmark file, unmodified."""
    layout = benchmark(name)
    rows = read_rows(path)
    needed = dict.fromkeys([*layout.fields.values(), *filter(None, [layout.group_field])])
    problems: list[str] = []
    for number, row in numbered(rows):
        problems += [f"row {number}: no text in {field!r}" for field in needed if not isinstance(row.get(field), str)]
        ratings = row.get("scores")
        if not isinstance(ratings, Mapping):
            problems.append(f"row {number}: no ratings in 'scores'")
            continue
        absent = [dimension for dimension in layout.dimensions if dimension not in ratings]
        problems += [f"row {number}: no rating of {dimension!r} in 'scores'" for dimension in absent]
        for dimension in layout.dimensions:
            number_at(ratings, dimension, f"{path}, row {number}")
    if problems:
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise DataError(
            f"{path} is not a {name} file: {problems[0]}{more}",
            hint="Benchmark files are read as their authors published them; for your own ratings use --human FIELD.",
        )
    if name == "qags":
        layout = BENCHMARKS[f"qags-{_qags_half(Path(path), rows)}"]
    return BenchmarkData(layout, str(path), tuple(rows))


def _qags_half(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Tell the half of QAGS by the file's name, else by its summaries: XSum's are one sentence, CNN's several."""
    named = [half for half in QAGS_HALVES if half in path.name.lower()]
    if len(named) == 1:
        return named[0]
    sentences = sorted(len(re.findall(r"[.!?](?=\s|$)", str(row["system_output"]))) for row in rows)
    return "xsum" if sentences[len(sentences) // 2] < 2 else "cnn"


def benchmark_items(
    data: BenchmarkData,
    dimension: str,
    predicted: Sequence[float],
    *,
    probabilities: Sequence[Mapping[str, float] | None] | None = None,
    errors: Sequence[str | None] | None = None,
) -> list[ScoredItem]:
    """Join scores to a benchmark's rows."""
    if dimension not in data.benchmark.dimensions:
        raise ConfigurationError(
            f"{data.benchmark.name} has no ratings of {dimension!r}",
            hint=f"It has: {', '.join(data.benchmark.dimensions)}.",
        )
    if len(predicted) != len(data.rows):
        raise DataError(f"{data.path} has {len(data.rows)} rows, but there are {len(predicted)} scores for them")
    return [
        ScoredItem(
            group=data.group(index),
            system=str(row.get("system_id", "")),
            human=number_at(row["scores"], dimension, f"{data.path}, row {index + 1}"),
            predicted=float(score),
            probabilities=None if probabilities is None else probabilities[index],
            length=data.lengths[index],
            key=data.keys[index],
            error=None if errors is None else errors[index],
        )
        for index, (row, score) in enumerate(zip(data.rows, predicted, strict=True))
    ]


CITATION = "Liu et al. (2023), arXiv:2303.16634"


@dataclass(frozen=True)
class PublishedRow:
    """One system of a published table."""

    system: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class PublishedTable:
    """A published table."""

    benchmark: str
    coefficient: str
    level: str
    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    note: str
    citation: str = CITATION


def _rows(columns: tuple[str, ...], text: str) -> tuple[PublishedRow, ...]:
    """Parse a table of "system | values"; a dash is a number that was not published."""
    rows = []
    for line in text.strip().splitlines():
        system, _, numbers = line.partition("|")
        pairs = zip(columns, numbers.split(), strict=True)
        rows.append(PublishedRow(system.strip(), {column: float(value) for column, value in pairs if value != "-"}))
    return tuple(rows)


_SUMMEVAL = ("coherence", "consistency", "fluency", "relevance", "average")


_TOPICAL_CHAT = ("naturalness", "coherence", "engagingness", "groundedness", "average")


_QAGS = ("cnn", "xsum", "average")


_TABLES = {
    "summeval": PublishedTable(
        "summeval",
        "spearman",
        "summary",
        _SUMMEVAL,
        _rows(
            _SUMMEVAL,
            """
            ROUGE-1            | .167 .160 .115 .326 .192
            ROUGE-2            | .184 .187 .159 .290 .205
            ROUGE-L            | .128 .115 .105 .311 .165
            BERTScore          | .284 .110 .193 .312 .225
            MoverScore         | .159 .157 .129 .318 .191
            BARTScore          | .448 .382 .356 .356 .385
            UniEval            | .575 .446 .449 .426 .474
            GPTScore           | .434 .449 .403 .381 .417
            G-Eval-3.5         | .440 .386 .424 .385 .401
            G-Eval-3.5 - Probs | -    -    -    -    .346
            G-Eval-4           | .582 .507 .455 .547 .514
            G-Eval-4 - Probs   | -    -    -    -    .502
            G-Eval-4 - CoT     | -    -    -    -    .500
            """,
        ),
        "All 100 documents of SummEval; a file with fewer gives other figures. The averages printed for G-Eval-3.5 and "
        "G-Eval-4 lie below the means of their columns (.409 and .523).",
    ),
    "topical-chat": PublishedTable(
        "topical-chat",
        "spearman",
        "pooled",
        _TOPICAL_CHAT,
        _rows(
            _TOPICAL_CHAT,
            """
            ROUGE-L    | .146 .203 .300 .327 .244
            BLEU-4     | .175 .235 .316 .310 .259
            METEOR     | .191 .302 .439 .391 .331
            BERTScore  | .209 .233 .335 .317 .273
            USR        | .325 .377 .465 .447 .403
            UniEval    | .330 .455 .430 .453 .417
            G-Eval-3.5 | .539 .544 .691 .567 .585
            G-Eval-4   | .565 .605 .631 .551 .588
            """,
        ),
        "UniEval's own predictions in the benchmark file give higher figures than the paper prints for it.",
    ),
    "qags": PublishedTable(
        "qags",
        "spearman",
        "pooled",
        _QAGS,
        _rows(
            _QAGS,
            """
            ROUGE-2    | .418 .083  .250
            ROUGE-L    | .324 -.011 .156
            BERTScore  | .505 .008  .256
            MoverScore | .347 .044  .195
            FactCC     | .484 .259  .371
            BARTScore  | .680 .159  .420
            CTC        | .564 .295  .430
            UniEval    | .662 .488  .575
            G-Eval-3.5 | .516 .406  .461
            G-Eval-4   | .685 .537  .611
            """,
        ),
        "A benchmark file is one half of QAGS, CNN or XSum, and fills that column.",
    ),
}


def published_table(name: str) -> PublishedTable:
    """Find the paper's table for a benchmark."""
    return _TABLES[benchmark(name).name]
