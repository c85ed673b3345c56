"""Options shared by several verbs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from geval_local.cli.completion import complete_judge
from geval_local.errors import ConfigurationError

if TYPE_CHECKING:
    from geval_local.metric import Metric
    from geval_local.options import RunOptions
    from geval_local.score import Estimator

__all__ = [
    "Adapter",
    "Address",
    "Attention",
    "BatchTokens",
    "Coefficient",
    "Columns",
    "CsvSafe",
    "Device",
    "DeviceMap",
    "Distributed",
    "Dtype",
    "Engine",
    "Estimators",
    "FailUnder",
    "Fields",
    "Formats",
    "GroupBy",
    "Json",
    "JudgeName",
    "JudgeNames",
    "Level",
    "Looks",
    "MaxUnscored",
    "ModelsFile",
    "New",
    "NoCache",
    "Output",
    "Overwrite",
    "OverwriteRun",
    "Quantization",
    "RetryErrors",
    "Style",
    "TrustRemoteCode",
    "Workers",
    "check_csv",
    "read_estimators",
    "with_looks",
]

_LOADING = "Loading"
_SPREADING = "Several workers"

StyleName = Literal["completion", "chat", "chat-no-prefill"]
QuantizationName = Literal["8bit", "4bit"]
EngineName = Literal["auto", "trie", "trie-compiled", "cache", "padded"]
DistributedName = Literal["ray"]

JudgeName = Annotated[
    str | None,
    typer.Option(
        "--judge",
        "-j",
        metavar="NAME",
        help="A name of `judges list`, a directory, or a hub id in the local cache; options of its own may follow: "
        "NAME,style=chat,dtype=float16. Absent: the default judge.",
        show_default=False,
        autocompletion=complete_judge,
    ),
]
JudgeNames = Annotated[
    list[str] | None,
    typer.Option(
        "--judge",
        "-j",
        metavar="NAME",
        help="A name of `judges list`, a directory, or a hub id in the local cache; options of its own may follow: "
        "NAME,style=chat,dtype=float16. May be repeated, and results are then named metric@judge. Absent: the default "
        "judge.",
        show_default=False,
        autocompletion=complete_judge,
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="FIELD=COLUMN",
        help="Read a metric's field from this column, or from a dotted path into one, such as output=turns.0.content; "
        "may be repeated. Absent: columns are found by their names.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="Columns of CSV results, by commas: input columns, row, figures such as score or probabilities, "
        "METRIC.FIGURE, input for all input columns, all for everything. Absent: id,row,score,error. With "
        "--distributed: the input columns that are read and kept beside the figures. Absent: all.",
    ),
]
CsvSafe = Annotated[
    bool,
    typer.Option(
        "--csv-safe", help="Put an apostrophe before CSV cells that a spreadsheet would execute (=, +, -, @, tab)."
    ),
]
RetryErrors = Annotated[bool, typer.Option("--retry-errors", help="Score the rows again that have no score so far.")]
Looks = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=6,
        help="Rate every sample at the end of N forms, which ask in other words and list the labels upwards and "
        "downwards, and take the mean. Absent: as the metric says, once.",
        show_default=False,
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="A .jsonl, .csv or .parquet file, or a directory for the run, NAME/: a new or an empty one, or "
        "that of the same run.",
    ),
]
OverwriteRun = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace OUT although it is a file of your own, or a run of another configuration, of which only what "
        "its manifest names is removed. Not needed for a file that is a result of this tool, unchanged.",
    ),
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="What a run directory exports: jsonl, csv, parquet; may be repeated. Absent: jsonl.",
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Take no figures over from earlier runs.")]
FailUnder = Annotated[
    float | None,
    typer.Option(metavar="X", help="Exit with 1 if a metric's mean, on its own scale, is below X."),
]
MaxUnscored = Annotated[
    str | None, typer.Option(metavar="N", help="Exit with 1 if more rows than N, or than N%, are unscored.")
]
ModelsFile = Annotated[
    Path | None,
    typer.Option("--models", metavar="FILE", help="Your own models file, merged over the packaged one."),
]
GroupBy = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="Field of the document, or `row`: every row is independent of the others. Absent: guessed and reported.",
        show_default=False,
    ),
]
LevelName = Literal["summary", "pooled", "system"]
CoefficientName = Literal["pearson", "spearman", "kendall", "accuracy", "auc"]
NewName = Literal["documents", "systems", "both"]
Level = Annotated[
    LevelName | None,
    typer.Option(
        help="Within documents, over all rows, or over systems. Absent: within documents where rows share one.",
        show_default=False,
    ),
]
Coefficient = Annotated[CoefficientName, typer.Option(help="Coefficient to compare.")]
New = Annotated[
    NewName | None,
    typer.Option(
        "--new",
        help="Target of intervals and tests: new documents from these systems, new systems, or both. Absent: "
        "documents; both at system level.",
        show_default=False,
    ),
]
Estimators = Annotated[
    list[str] | None,
    typer.Option(
        "--estimator",
        metavar="NAME",
        help="Another estimate from the stored distributions beside the scores: mode, median, sample:N, exact; may be "
        "repeated.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that this tool did not write.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, and nothing else there.")]
Adapter = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="A LoRA adapter for the judge, merged into its weights (needs peft).",
        rich_help_panel=_LOADING,
    ),
]
Style = Annotated[
    StyleName | None,
    typer.Option(help="Prompt style. Absent: the judge's own.", rich_help_panel=_LOADING),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, ... Absent: a GPU if there is one.", rich_help_panel=_LOADING)
]
DeviceMap = Annotated[
    str | None,
    typer.Option(metavar="MAP", help="Split over devices by accelerate: auto, balanced, ...", rich_help_panel=_LOADING),
]
Dtype = Annotated[
    str | None, typer.Option(help="auto, float64, float32, bfloat16 or float16.", rich_help_panel=_LOADING)
]
Attention = Annotated[
    str | None, typer.Option(metavar="NAME", help="eager, sdpa, flash_attention_2, ...", rich_help_panel=_LOADING)
]
Quantization = Annotated[
    QuantizationName | None, typer.Option(help="Quantize while loading, by bitsandbytes.", rich_help_panel=_LOADING)
]
BatchTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Most tokens per forward pass. Absent: by device.", rich_help_panel=_LOADING),
]
Engine = Annotated[
    EngineName,
    typer.Option(
        help="trie: every distinct prompt token is computed once; cache: shared prefixes by the model's own cache; "
        "padded: plain batches; auto: the first of these that a probe shows exact. trie-compiled: trie with layers "
        "compiled at first use, for GPUs.",
        rich_help_panel=_LOADING,
    ),
]
Distributed = Annotated[
    DistributedName | None,
    typer.Option(help="Spread the work over the workers of a cluster, by Ray Data.", rich_help_panel=_SPREADING),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Workers, each with the judge. Absent: one per GPU, or per machine where there are none.",
        rich_help_panel=_SPREADING,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The cluster: auto for the one that this machine is in, or HOST:PORT. Absent: this machine alone.",
        rich_help_panel=_SPREADING,
    ),
]
GatherBy = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="Bring the rows of one FIELD into one block first, so that they share their text: for inputs whose "
        "candidates lie far apart. The results come in this order.",
        rich_help_panel=_SPREADING,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Let Python files of the model's directory run.", rich_help_panel=_LOADING
    ),
]


def check_csv(run: RunOptions, formats: Sequence[str]) -> None:
    """Refuse options of CSV results where none are written."""
    columns = run.columns if run.distributed is None else None  # of parts they are those that are kept
    if (columns or run.csv_safe) and "csv" not in formats:
        raise ConfigurationError(
            "--columns and --csv-safe are about CSV results; the other formats keep everything",
            hint="Add -o NAME.csv, or --format csv to a run directory.",
        )


def read_estimators(given: Sequence[str] | None, *, others: bool) -> tuple[Estimator, ...]:
    """Read ``--estimator``, after the usual ones where these are asked for too; each of them once."""
    from geval_local.analysis.results import ABLATIONS
    from geval_local.score import Estimator

    return tuple(dict.fromkeys([*(ABLATIONS if others else ()), *map(Estimator.parse, given or ())]))


def with_looks(metric: Metric, looks: int | None) -> Metric:
    """Let a metric look at every sample so many times; None leaves it as it is."""
    if looks is None or looks == metric.looks:
        return metric
    if metric.template is not None:
        raise ConfigurationError(
            f"{metric.name} is a prompt used to the letter, so it has one look", hint="Leave --looks out."
        )
    return metric.model_copy(update={"looks": looks})
