"""Published figures for comparison: never recomputed, always marked as published.

From Liu et al. (2023), "G-Eval: NLG Evaluation using GPT-4 with Better Human Alignment", EMNLP, arXiv:2303.16634.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from geval_local.analysis.ratings.benchmarks import benchmark

__all__ = ["CITATION", "PublishedRow", "PublishedTable", "published_table"]

CITATION = "Liu et al. (2023), arXiv:2303.16634"


@dataclass(frozen=True)
class PublishedRow:
    """One system of a published table.

    Attributes
    ----------
    system : str
        Name in the paper.
    values : dict of str to float
        Column -> coefficient. Columns missing in the paper are left out.
    """

    system: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class PublishedTable:
    """A published table.

    Attributes
    ----------
    benchmark : str
        Name of the benchmark.
    coefficient, level : str
        Coefficient and level of its figures.
    columns : tuple of str
        Dimensions, and ``average``.
    rows : tuple of PublishedRow
        In the paper's order.
    note : str
        Differences from a table made with this package's files.
    citation : str
        Source of the table.
    """

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
    """Find the paper's table for a benchmark.

    Raises
    ------
    ConfigurationError
        If there is no such benchmark.
    """
    return _TABLES[benchmark(name).name]
