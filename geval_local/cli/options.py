"""Options shared by several verbs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from geval_local.errors import ConfigurationError

if TYPE_CHECKING:
    from geval_local.options import RunOptions
    from geval_local.score import Estimator


def complete_metric(incomplete: str) -> list[str]:
    """Offer presets and YAML files."""
    from geval_local.metric_file import preset_names

    return [*_beginning(preset_names(), incomplete), *_paths(incomplete, (".yaml", ".yml"))]


def complete_judge(incomplete: str) -> list[str]:
    """Offer the judges of the models files, directories and GGUF files."""
    from geval_local.errors import GevalError
    from geval_local.models.registry import load_registry

    try:
        names: Iterable[str] = load_registry().judges
    except GevalError:  # a models file that is being edited
        names = ()
    return [*_beginning(names, incomplete), *_paths(incomplete, (".gguf",))]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _paths(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """List directories and files of some endings that a path may go on with."""
    head, slash, tail = incomplete.rpartition("/")
    try:
        found = sorted(Path(f"{head}{slash}" or ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
    named = [path for path in found if path.name.startswith(tail) and (tail or not path.name.startswith("."))]
    return [
        f"{head}{slash}{path.name}{'/' if path.is_dir() else ''}"
        for path in named
        if path.is_dir() or path.suffix in suffixes
    ]


Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        metavar="NAME",
        help="A preset or a metric's YAML file; may be repeated.",
        autocompletion=complete_metric,
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
FailUnder = Annotated[
    float | None,
    typer.Option(metavar="X", help="Exit with 1 if a metric's mean, on its own scale, is below X."),
]
MaxUnscored = Annotated[
    str | None, typer.Option(metavar="N", help="Exit with 1 if more rows than N, or than N%, are unscored.")
]
LabelMass = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        min=0,
        max=1,
        help="Exit with 1 if a metric's mean label mass is below X; 0 allows any. Absent: 0.1 where a threshold or a "
        "mean is checked.",
    ),
]
Lowest = Annotated[int, typer.Option(metavar="N", min=0, max=100, help="Show the N rows with the lowest scores.")]
NoSteps = Annotated[bool, typer.Option("--no-steps", help="Leave the evaluation steps out of the form.")]
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
OneMetric = Annotated[
    str | None, typer.Option("--metric", "-m", metavar="NAME", help="Which metric, where there are several.")
]
Human = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[METRIC=]FIELD",
        help="Field of the human rating, or a dotted path to it; for several metrics METRIC=FIELD, once for each.",
    ),
]
Raters = Annotated[
    list[str] | None,
    typer.Option("--rater", metavar="FIELD", help="Field of one person's rating; to be named twice or more."),
]
System = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="Field that names the system. Absent: system_id or system, if there is one."),
]
Baseline = Annotated[str | None, typer.Option(metavar="NAME", help="Compare every system with this one only.")]
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


@dataclass(frozen=True)
class Agreement:
    """The agreement with people that is compared."""

    level: Level = None
    coefficient: Coefficient = "spearman"
    target: New = None


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that this tool did not write.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout, and nothing else there.")]


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
