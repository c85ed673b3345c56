"""``geval-local pairs`` and ``rank``: which of two outputs is better, and what that says of systems."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from geval_local.cli import options
from geval_local.cli.options import AnalysisOptions, takes_options
from geval_local.errors import ConfigurationError
from geval_local.options import JudgeOptions, PreferenceOptions, RatingOptions, RunOptions

if TYPE_CHECKING:
    from geval_local.runs.completion import RunResult
    from geval_local.runs.events import RunEvents


@dataclass(frozen=True)
class Rules:
    """Which pairs are compared; at most one of the first three."""

    baseline: Annotated[
        str | None, typer.Option(metavar="SYSTEM", help="Compare every output with that of this system only.")
    ] = None
    budget: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Compare N pairs, spread evenly over systems and documents.")
    ] = None
    given: Annotated[
        Literal["plain", "llmbar", "pandalm", "mt-bench", "preference"] | None,
        typer.Option(help="Each row is a pair itself, in this format.", show_default=False),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of --budget.")] = 0


@takes_options(
    *("limit", "fields", "encoding", "quoting", "rows", "id", "system_columns", "turns_at", "roles", "group_by"),
    *("window", "use_cache", "retry_errors", "overwrite", "shard", "workers"),
)
def pairs(
    file: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="JSONL, JSON, CSV, Excel or Parquet; outputs of several systems, in one file or one file each.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="OUT", help="A .jsonl, .csv or .parquet file, or a directory for the run."
        ),
    ],
    *,
    metric: options.Metrics = None,
    rules: Rules,
    system: options.System = None,
    no_steps: options.NoSteps = False,
    max_unscored: options.MaxUnscored = None,
    as_json: options.Json = False,
    judges: list[JudgeOptions],
    run: RunOptions,
    people: PreferenceOptions,
) -> None:
    """Compare outputs pair by pair, each pair in both orders, by the exact probabilities of A, B and tie.

    The default compares every two outputs of a document. The results hold one row a pair, whose score is the preference
    for the first output; `geval-local rank` reads them again. An interrupted run continues by the same command.
    """
    from geval_local.analysis.gates import outcomes
    from geval_local.analysis.pairs import rank_run
    from geval_local.cli.output.console import note, print_json
    from geval_local.cli.output.run_summary import gates_record, run_record, show_result
    from geval_local.cli.output.tables import show_study
    from geval_local.cli.scoring import EXIT_GATE, follow, watch
    from geval_local.io.columns import EVERYTHING
    from geval_local.io.pairs import PairPlan
    from geval_local.runs.run_file import score_file
    from geval_local.runs.target import find_target

    if people.prefers and rules.given != "plain":
        raise ConfigurationError(
            "--prefers says what people's preferences mean in pairs of yours", hint="Add --given plain."
        )
    plan = PairPlan(group_by=run.group_by, system=system, prefers=people.prefers, **asdict(rules))
    metrics = options.chosen_metrics(options.RatedOptions(metric), no_steps=no_steps)
    gates = options.Gates(max_unscored=max_unscored).read()
    columns = [EVERYTHING] if "csv" in find_target(output, shard=run.shard).formats else None

    def judged(events: RunEvents) -> RunResult:
        return score_file(
            file, metrics, judges, output, run, columns=columns, metric_names=metric or (), pairs=plan, events=events
        )

    name = options.shown_name(file)
    results = 2 * len(metrics) * sum(judge.think or 1 for judge in judges)
    if run.shard is not None:  # which system is the best only all pairs tell
        follow(judged, name, gates, results=results, judges=len(judges), as_json=as_json, lowest=0)
        return
    result = watch(judged, name, results=results, judges=len(judges))
    held = outcomes(gates, result.summaries)
    written = str(result.files[0])
    keys = [summary.metric for summary in result.summaries if summary.scored]
    if as_json:
        found = {key: rank_run(written, key).sources[0].study.to_dict() for key in keys}
        print_json({**run_record(result), **gates_record(held), "preferences": found})
    else:
        show_result(result, held, lowest=0, as_json=False)
        for key in keys:
            show_study(rank_run(written, key), as_json=False)
        if rules.given is None:  # verdicts are in the rows otherwise
            # The columns of a wide row are in the results.
            named = {} if run.system_columns else {"--ratings": file[0], "--system": system, "--group-by": run.group_by}
            rated = "".join(f" {name} {shlex.quote(value)}" for name, value in named.items() if value is not None)
            note(f"  hold them against people     geval-local rank {written} --human FIELD{rated}")
    if not all(one.passed for one in held):
        raise typer.Exit(EXIT_GATE)


@takes_options("metric", "human", "group_by", "system", "coefficient", "coefficients", "target", "every_pair")
def rank(
    runs: Annotated[
        list[Path],
        typer.Argument(
            parser=options.here,
            metavar="RUN...",
            help="Results of `pairs`, or of `score`, whose outputs are then compared.",
        ),
    ],
    *,
    asked: AnalysisOptions,
    as_json: options.Json = False,
    rated_on: RatingOptions,
    people: PreferenceOptions,
) -> None:
    """Rank systems by comparisons, side by side where several runs are given; with ratings also against people.

    Results of `score` cost nothing more: the first of two outputs is better as often as a label drawn for it is higher.
    """
    from geval_local.analysis.pairs import rank as find
    from geval_local.cli.output.tables import show_study

    study = options.analyse(find, runs, asked=asked, prefers=people.prefers, **dict(rated_on))
    show_study(study, as_json=as_json)
