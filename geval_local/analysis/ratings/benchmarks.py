"""The published benchmark files, read unchanged: rated dimensions, their presets, and grouping.

Published figures are never recomputed, and always marked: Liu et al. (2023), "G-Eval: NLG Evaluation using GPT-4 with
Better Human Alignment", EMNLP, arXiv:2303.16634.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from geval_local.errors import ConfigurationError
from geval_local.statistics.levels import Level


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
    #: Dimension -> the scale of its ratings, where that is not its preset's.
    rated_on: Mapping[str, str] = field(default_factory=dict)


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
        rated_on={"understandability": "0-1"},
    ),
    "qags": _qags(None),
    **{f"qags-{half}": _qags(half) for half in QAGS_HALVES},
}


def benchmark(name: str) -> Benchmark:
    """Find a benchmark by name."""
    if name not in BENCHMARKS:
        raise ConfigurationError(f"there is no benchmark {name!r}", hint=f"Choose one of: {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


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
    citation: str = "Liu et al. (2023), arXiv:2303.16634"


#: Benchmark -> its table, "system | values" with a dash for a number that was not published; and a note on it.
_TABLES = {
    "summeval": (
        """
                           | coherence consistency fluency relevance average
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
        "All 100 documents of SummEval; a file with fewer gives other figures. The averages printed for G-Eval-3.5 and "
        "G-Eval-4 lie below the means of their columns (.409 and .523).",
    ),
    "topical-chat": (
        """
                   | naturalness coherence engagingness groundedness average
        ROUGE-L    | .146 .203 .300 .327 .244
        BLEU-4     | .175 .235 .316 .310 .259
        METEOR     | .191 .302 .439 .391 .331
        BERTScore  | .209 .233 .335 .317 .273
        USR        | .325 .377 .465 .447 .403
        UniEval    | .330 .455 .430 .453 .417
        G-Eval-3.5 | .539 .544 .691 .567 .585
        G-Eval-4   | .565 .605 .631 .551 .588
        """,
        "UniEval's own predictions in the benchmark file give higher figures than the paper prints for it.",
    ),
    "qags": (
        """
                   | cnn  xsum  average
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
        "A benchmark file is one half of QAGS, CNN or XSum, and fills that column.",
    ),
}


def published_table(name: str) -> PublishedTable:
    """Find the paper's table for a benchmark, of Spearman's correlations."""
    name = benchmark(name).name
    text, note = _TABLES[name]
    lines = [line.partition("|") for line in text.strip().splitlines()]
    columns = tuple(lines[0][2].split())
    rows = []
    for system, _, numbers in lines[1:]:
        pairs = zip(columns, numbers.split(), strict=True)
        rows.append(PublishedRow(system.strip(), {column: float(value) for column, value in pairs if value != "-"}))
    return PublishedTable(name, "spearman", BENCHMARKS[name].level, columns, tuple(rows), note)
