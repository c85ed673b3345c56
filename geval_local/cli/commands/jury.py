"""``geval-local jury``: several judges' runs over the same rows merged by the mean of their distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from geval_local.cli import options
from geval_local.errors import ConfigurationError, OutputError

if TYPE_CHECKING:
    from geval_local.analysis.jury import Jury
    from geval_local.analysis.results import ScoredRun
    from geval_local.analysis.statistics.correlation import Correlation
    from geval_local.analysis.statistics.significance import Comparison

__all__ = ["jury"]

#: Keys in which the judges of a jury may differ; the metric and its scale are not among them.
OWN_TO_A_JUDGE = ("judge", "tokenizer", "steps", "style", "dtype", "attention", "transformers", "torch", "version")


def jury(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN ...", help="Result files, or run directories, over the same rows.")
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", "-m", metavar="NAME", help="Which metric, where the runs have several.")
    ] = None,
    weights: Annotated[
        Literal["equal", "human"],
        typer.Option(help="Alike, or by agreement with people on other documents."),
    ] = "equal",
    human: Annotated[str | None, typer.Option(metavar="FIELD", help="Field of the human rating.")] = None,
    group_by: options.GroupBy = None,
    level: options.Level = None,
    coefficient: options.Coefficient = "spearman",
    new: options.New = None,
    field: options.Fields = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A .jsonl, .csv or .parquet file.")
    ] = None,
    count: Annotated[int, typer.Option("--largest", metavar="N", min=0, help="Disagreements to list.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Average several judges' label distributions, item by item, and show where they disagree."""
    from geval_local.analysis.jury import against_judges, convene, disagreement_table, weight_table
    from geval_local.analysis.results import ScoredRun, level_for
    from geval_local.analysis.statistics.correlation import correlate
    from geval_local.analysis.tables import comparison_table, correlation_table
    from geval_local.cli.output.console import note, print_json
    from geval_local.cli.output.tables import as_record, show_table
    from geval_local.fields import read_mapping
    from geval_local.grouping import documents_of

    if weights == "human" and human is None:
        raise ConfigurationError("--weights human needs --human FIELD")
    mapping = read_mapping(field or [])
    scored = [ScoredRun(path, mapping) for path in runs]
    if output is not None:
        _check_output(output, scored, overwrite=overwrite)
    name = scored[0].one_metric(metric)
    named = _named(scored, name)
    documents, grouping = documents_of(scored[0].rows, group_by)
    judges = {judge: run.items(run.one_metric(name), human=human, group_by=documents) for judge, run in named.items()}
    result = convene(judges, scored[0].origin(name).definition.scale, weighting=weights, seed=seed)
    agreement: dict[str, Correlation] = {}
    tests: dict[str, Comparison] = {}
    best: str | None = None
    if human is not None:
        wanted = level or level_for(documents)
        agreement = {
            who: correlate(items, wanted, target=new) for who, items in {"jury": result.items, **judges}.items()
        }
        best, tests = against_judges(result, judges, wanted, coefficient, target=new)
    if output is not None:
        _write(output, named, name, result, weights)
    if as_json:
        listed = [
            {"key": item.key, "score": item.predicted, "disagreement": own}
            for item, own in zip(result.items, result.disagreement, strict=True)
        ]
        record = {"metric": name, "weights": result.weights, "left_out": result.left_out, "items": listed}
        record |= {"grouping": grouping, "against_human": agreement, "best_judge": best, "jury_less_judge": tests}
        print_json(as_record(record))
        return
    show_table(weight_table(result), f"{name}: a jury of {len(judges)}, weights {weights}")
    scores = {who: {item.key: item.predicted for item in items} for who, items in judges.items()}
    show_table(disagreement_table(result, scores, count), "where the judges disagree most")
    if agreement:
        note(grouping)
        show_table(correlation_table(agreement), "against people", fold=("level", "n", "points", "items left out"))
        named_tests = {f"jury less {who}{' (best judge)' if who == best else ''}": test for who, test in tests.items()}
        fold = ("on", "items / documents", "kept by each")
        show_table(comparison_table(named_tests), "does the jury agree better than its judges?", fold=fold)
    if weights == "human" and documents is None:
        note("note: without documents a judge's weight for a row may come from rows of the same document", "yellow")
    if result.left_out:
        note(f"note: {result.left_out} items are without a verdict: some judge did not score them", "yellow")


def _named(scored: Sequence[ScoredRun], metric: str) -> dict[str, ScoredRun]:
    """Name the runs by their judges, and check that they use the same metric and scale.

    Raises
    ------
    ConfigurationError
        If they differ, or one has no manifest.
    """
    from geval_local.signature import judge_name, signature_differences, signature_parts, told_differences

    named: dict[str, ScoredRun] = {}
    first = scored[0].origin(metric).signature
    for run in scored:
        origin = run.origin(run.one_metric(metric))
        differ = {
            key: pair
            for key, pair in signature_differences(first, origin.signature).items()
            if key not in OWN_TO_A_JUDGE
        }
        if differ:
            told = told_differences(differ, "{} | {}")
            raise ConfigurationError(f"{scored[0].path} and {run.path} do not belong to one jury: {told}")
        judge = signature_parts(origin.signature)["judge"].rpartition("@")[0]
        judge = judge_name(judge)
        named[judge if judge not in named else run.name] = run
    if len(named) < len(scored):
        raise ConfigurationError("two of the runs have the same name", hint="Give every run another file name.")
    return named


def _check_output(output: Path, scored: Sequence[ScoredRun], *, overwrite: bool) -> None:
    """Reject an output that cannot be written, is one of the runs, or is a user's file."""
    from geval_local.files import check_replaceable
    from geval_local.io.result_manifest import check_description, is_own_result
    from geval_local.io.writer import ResultWriter

    target = ResultWriter.check(output)
    if target in [run.path.resolve() for run in scored]:
        raise OutputError(f"cannot write {output}: it is one of the runs", hint="Name another file.")
    check_description(target)
    check_replaceable(target, is_own=is_own_result(target), overwrite=overwrite)


def _write(output: Path, named: Mapping[str, ScoredRun], metric: str, jury: Jury, weights: str) -> None:
    """Write the first run's rows with the jury's verdicts in place of its own."""
    import math
    from dataclasses import replace

    from geval_local.analysis.results import row_keys
    from geval_local.io.columns import EVERYTHING
    from geval_local.io.result_manifest import Manifest, ScoredMetric, file_sha256, manifest_path, write_manifest
    from geval_local.io.samples import Sample
    from geval_local.io.writer import ResultWriter
    from geval_local.score import Distribution, Estimator, Score
    from geval_local.signature import signature_parts

    runs = list(named.values())
    origins = {judge: run.origin(metric) for judge, run in named.items()}
    definition = origins[next(iter(named))].definition
    verdicts = {item.key: (item, own) for item, own in zip(jury.items, jury.disagreement, strict=True)}
    unscored = 0
    with ExitStack() as stack:
        writer = stack.enter_context(ResultWriter.open(output, [metric], columns=[EVERYTHING]))
        for row, key in zip(runs[0].rows, row_keys(runs[0].rows), strict=True):
            columns = {column: value for column, value in row.items() if column != "geval"}
            if key in verdicts:
                item, disagreement = verdicts[key]
                logs = [math.log(p) if p > 0 else -math.inf for p in (item.probabilities or {}).values()]
                score = Score.from_distribution(metric, Distribution(definition.scale, logs), estimator=Estimator())
                # The judges' label masses belong to different vocabularies, so a jury has none.
                score = replace(score, label_mass=math.nan)
                columns["jury_disagreement"] = disagreement
            else:
                score = Score.unscored(metric, "some judge of the jury did not score this row")
                unscored += 1
            writer.write(Sample(columns), {metric: score})
        manifest_path(output).unlink(missing_ok=True)
    parts = [signature_parts(origin.signature) for origin in origins.values()]
    joined = {key: "+".join(dict.fromkeys(own.get(key, "-") for own in parts)) for key in parts[0]}
    joined["judge"] = f"jury({joined['judge']},{weights})"
    signature = "|".join(f"{key}:{value}" for key, value in joined.items())
    scored = {metric: ScoredMetric(signature, definition, unscored)}
    first = runs[0].path
    manifest = Manifest(
        f"jury of {', '.join(named)}",
        first.name,
        file_sha256(first),
        len(runs[0].rows),
        scored,
        file_sha256(output),
        runs[0].mapping,
    )
    write_manifest(output, manifest)
