"""``geval-local compare``: which system is better, or how two runs differ, after what differs in them has been said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geval_local.cli import options
from geval_local.errors import ConfigurationError

if TYPE_CHECKING:
    from geval_local.analysis.comparison import Difference, SystemRows
    from geval_local.analysis.differences import Ranking
    from geval_local.analysis.results import ScoredRun
    from geval_local.analysis.statistics.significance import Comparison

__all__ = ["compare"]

ANY = "any"
#: Keys that always differ together with a key.
IMPLIED = {"judge": ("judge", "tokenizer"), "versions": ("transformers", "torch", "version")}
#: Most characters shown of an output.
BEGINNING = 60


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [RUN ...]",
            help="Result files of `score`, or run directories: one with the systems in a column, one for each system, "
            "or two runs over the same rows.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", metavar="NAME", help="Only this metric; may be repeated. Absent: all shared."),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field that names the system. Absent: system_id or system, or one a file."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare every system with this one only.")
    ] = None,
    tie: Annotated[
        float, typer.Option(metavar="X", min=0, help="Documents whose scores differ by no more are counted as ties.")
    ] = 0.0,
    across: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Allowed differences: judge, steps, estimator, style, ..., versions, input, or any; may be repeated.",
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Estimate the scores anew from the stored distributions: exact, mode or median.",
        ),
    ] = None,
    human: Annotated[str | None, typer.Option(metavar="FIELD", help="Field of the human rating.")] = None,
    group_by: options.GroupBy = None,
    field: options.Fields = None,
    level: options.Level = None,
    coefficient: options.Coefficient = "spearman",
    new: options.New = None,
    count: Annotated[int, typer.Option("--largest", metavar="N", min=0, help="Disagreements to list.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the permutations.")] = 0,
    page: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Also write the comparison as one .html page.")
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Say which system is better, or how two runs over the same rows differ.

    Runs whose signatures differ in keys not named by --across are rejected.
    """
    from geval_local.analysis.comparison import check_single_outputs, gather, unmatched, why_systems
    from geval_local.analysis.differences import rank_systems
    from geval_local.analysis.results import ScoredRun
    from geval_local.fields import read_mapping
    from geval_local.files import check_replaceable
    from geval_local.report.page import check_target, is_own_page
    from geval_local.score import Estimator

    mapping = read_mapping(field or [])
    estimated = None if estimator is None else Estimator.parse(estimator)
    scored = [ScoredRun(path, mapping, estimated) for path in runs]
    if page is not None:
        target = check_target(page, *(run.path for run in scored))
        check_replaceable(target, is_own=is_own_page(target), overwrite=overwrite)
    names = _shared_metrics(scored, metric or [])
    named = (("--system", system), ("--baseline", baseline))
    reason = next((f"{option} is given" for option, value in named if value is not None), None)
    if len(scored) == 2 and reason is None and "input" not in (across or ()):
        guess = why_systems(*scored)
        reason = guess and f"{guess} (a guess; --across input compares them as two runs)"
    if len(scored) == 2 and reason is None:
        asked = {"level": level, "coefficient": coefficient, "target": new, "seed": seed}
        _compare_runs(scored[0], scored[1], names, across or [], human, group_by, count, page, asked, as_json=as_json)
        return
    if level is not None or new not in (None, "documents"):
        raise ConfigurationError(
            "--level and --new are about two runs over the same rows: systems are compared by their scores, for new "
            "documents",
            hint="`geval-local meta-eval` correlates scores with ratings over systems.",
        )
    check_single_outputs(scored, names)
    differ = _differing(scored, names, across or [])
    together = gather(scored, system, group_by)
    rankings = {
        name: rank_systems(together.items(name, human=human), baseline=baseline, tie=tie, seed=seed) for name in names
    }
    alone: list[str] = []
    if len(scored) == 2:
        one, other = (run.items(names[0], group_by=together.document) for run in scored)
        ends = (str(scored[0].path), str(scored[1].path))
        alone = unmatched([item.group for item in one], [item.group for item in other], ends)
    if page is not None:
        _write_systems(together, page, human, {"baseline": baseline, "tie": tie, "seed": seed})
    if as_json:
        from geval_local.cli.output.console import print_json
        from geval_local.cli.output.tables import as_record

        record = {"files": [run.path for run in scored], "differ": differ, "grouping": together.grouping}
        print_json(as_record(record | {"unmatched": alone, "systems": rankings}))
        return
    _show_systems(scored, differ, [together.grouping, *alone], rankings, reason if len(scored) == 2 else None)


def _shared_metrics(runs: Sequence[ScoredRun], wanted: Sequence[str]) -> list[str]:
    """Choose the metrics that were asked for, or those that all runs hold.

    Raises
    ------
    ConfigurationError
        If a run lacks one that was asked for, or they share none.
    """
    for run in runs:
        for name in wanted:
            run.one_metric(name)
    if wanted:
        return list(wanted)
    names = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    if not names:
        held = "; ".join(f"{run.path} holds {', '.join(run.metrics)}" for run in runs)
        named = " and ".join(str(run.path) for run in runs)
        raise ConfigurationError(f"{named} share no metric", hint=f"{held}.")
    return names


def _compare_runs(
    first: ScoredRun,
    second: ScoredRun,
    names: Sequence[str],
    across: Sequence[str],
    human: str | None,
    group_by: str | None,
    count: int,
    page: Path | None,
    asked: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Put two runs over the same rows side by side."""
    from geval_local.analysis.comparison import differences, unmatched
    from geval_local.analysis.results import level_for, row_keys
    from geval_local.analysis.statistics.significance import compare as test
    from geval_local.analysis.statistics.significance import corrected
    from geval_local.grouping import documents_of

    differ = _differences(first, second, names, across)
    # Guessed from the columns that both have: CSV results may hold fewer.
    common = set(second.rows[0]) if second.rows else set()
    rows = first.rows if group_by else [{name: row[name] for name in row if name in common} for row in first.rows]
    documents, grouping = documents_of(rows, group_by)
    chosen = {**asked, "level": asked["level"] or level_for(documents)}
    found: dict[str, Difference] = {}
    tests: dict[str, Comparison] = {}
    for name in names:
        one, other = (run.items(name, human=human, group_by=documents) for run in (first, second))
        found[name] = differences(one, other, count=count)
        if human is not None:
            tests[name] = test(one, other, **chosen)
    tests = corrected(tests)
    alone = unmatched(row_keys(first.rows), row_keys(second.rows), (str(first.path), str(second.path)))
    if page is not None:
        _write_page(first, second, page, human, group_by, asked)
    if as_json:
        from geval_local.cli.output.console import print_json
        from geval_local.cli.output.tables import as_record

        record = {"a": first.path, "b": second.path, "differ": differ, "grouping": grouping}
        record |= {"unmatched": alone, "metrics": found, "against_human": tests}
        print_json(as_record(record))
        return
    _show(first, second, differ, [grouping, *alone], found, tests)


def _write_page(
    first: ScoredRun, second: ScoredRun, page: Path, human: str | None, group_by: str | None, asked: Mapping[str, Any]
) -> None:
    from geval_local.cli.commands.report import facts_of, notes_of, signatures_of
    from geval_local.cli.output.console import note
    from geval_local.report.comparison_page import write_comparison

    if first.estimator is not None:
        raise ConfigurationError("--page shows the scores as they were written, so it does not go with --estimator")
    written = write_comparison(
        first.path,
        second.path,
        page,
        metrics=notes_of(first),
        human=human,
        group_by=group_by,
        signatures=(signatures_of(first), signatures_of(second)),
        manifests=(facts_of(first), facts_of(second)),
        **asked,
    )
    note(f"wrote {written}; open it in any browser")


def _write_systems(together: SystemRows, page: Path, human: str | None, options: Mapping[str, Any]) -> None:
    """Write the rows of all systems as one page."""
    from geval_local.cli.commands.report import facts_of, notes_of, signatures_of
    from geval_local.cli.output.console import note
    from geval_local.report.run_page import write_report

    first = together.runs[0]
    if first.estimator is not None:
        raise ConfigurationError("--page shows the scores as they were written, so it does not go with --estimator")
    written = write_report(
        together.rows(),
        page,
        metrics=notes_of(first),
        human=human,
        group_by=together.document,
        signature=signatures_of(first),
        manifest=facts_of(first) if len(together.runs) == 1 else None,
        title=" and ".join(run.name for run in together.runs),
        fields=first.mapping,
        system="system",
        **options,
    )
    note(f"wrote {written}; open it in any browser")


def _differing(runs: Sequence[ScoredRun], names: Sequence[str], across: Sequence[str]) -> dict[str, dict[str, Any]]:
    """List what differs between the first file and each other, texts apart, and refuse what nobody asked for."""
    return {str(other.path): _differences(runs[0], other, names, across, texts=False) for other in runs[1:]}


def _differences(
    first: ScoredRun, second: ScoredRun, names: Sequence[str], across: Sequence[str], *, texts: bool = True
) -> dict[str, dict[str, tuple[str, str]]]:
    """List what differs, per metric, and refuse what nobody asked for; `texts` counts the outputs among it.

    Raises
    ------
    ConfigurationError
        If something differs that `across` does not name, or `across` names an unknown key.
    """
    from dataclasses import fields

    from geval_local.analysis.comparison import changed_outputs
    from geval_local.signature import Signature, signature_differences, told_differences

    known = [*(field.name for field in fields(Signature)), "versions", "input", ANY]
    unknown = [key for key in across if key not in known]
    if unknown:
        raise ConfigurationError(f"--across {unknown[0]}: no such key", hint=f"Keys: {', '.join(known)}.")
    differ = {}
    for name in names:
        if ANY in across and not all(run.is_described(name) for run in (first, second)):
            continue
        differ[name] = signature_differences(first.signature(name), second.signature(name))
    changed = changed_outputs(first, second) if texts else 0
    if changed:
        for own in [differ.setdefault(name, {}) for name in names]:
            own["input"] = (f"{changed} outputs", "other texts under the same id or row number")
    allowed = {part for key in across for part in IMPLIED.get(key, (key,))}
    refused = {key: pair for own in differ.values() for key, pair in own.items() if key not in allowed}
    if refused and ANY not in across:
        told = told_differences(refused, "{} | {}")
        needed = [key for key in refused if key != "tokenizer" or "judge" not in refused]
        raise ConfigurationError(
            f"{first.path} and {second.path} are not comparable: {told}",
            hint=f"If that is the comparison you want, say so: {' '.join(f'--across {key}' for key in needed)}",
        )
    return differ


def _show(
    first: ScoredRun,
    second: ScoredRun,
    differ: Mapping[str, Mapping[str, tuple[str, str]]],
    told: Sequence[str],
    found: Mapping[str, Any],
    tests: Mapping[str, Any],
) -> None:
    from geval_local.analysis.comparison import difference_table, largest_table
    from geval_local.analysis.results import row_keys
    from geval_local.analysis.tables import comparison_table
    from geval_local.cli.output.console import result_console
    from geval_local.cli.output.tables import show_table

    console = result_console()
    for letter, run in (("A", first), ("B", second)):
        judge = "of unknown origin" if run.manifest is None else f"by {run.manifest.judge}"
        console.print(f"{letter}  {run.path}, {len(run.rows)} rows, {judge}", markup=False, soft_wrap=True)
    lines = dict.fromkeys(
        f"differs in {key}: {one} | {other}" for own in differ.values() for key, (one, other) in own.items()
    )
    for line in lines or ["no differences in the signatures"]:
        console.print(line, markup=False, soft_wrap=True)
    for line in told:
        console.print(line, markup=False, soft_wrap=True)
    show_table(difference_table(found), "A and B on the rows that both scored", fold=("A / B alone",))
    if tests:
        show_table(
            comparison_table(tests),
            "which agrees better with people?",
            fold=("on", "items / documents", "kept by each"),
        )
    outputs = dict(zip(row_keys(first.rows), first.outputs(), strict=True))
    for name, own in found.items():
        rows = [(key, a, b, _beginning(outputs.get(key))) for key, a, b in own.largest]
        if rows:
            show_table(largest_table(rows), f"largest disagreements: {name}")


def _show_systems(
    runs: Sequence[ScoredRun],
    differ: Mapping[str, Mapping[str, Mapping[str, tuple[str, str]]]],
    told: Sequence[str],
    found: Mapping[str, Ranking],
    reason: str | None,
) -> None:
    from geval_local.analysis.differences import pair_table, ranking_table, telling_pairs
    from geval_local.cli.output.console import result_console
    from geval_local.cli.output.tables import show_table

    console = result_console()
    for run in runs:
        judge = "of unknown origin" if run.manifest is None else f"by {run.manifest.judge}"
        console.print(f"{run.path}, {len(run.rows)} rows, {judge}", markup=False, soft_wrap=True)
    if reason is not None:
        console.print(f"two systems: {reason}", markup=False, soft_wrap=True)
    lines = [
        f"{path} differs in {key}: {one} | {other}"
        for path, metrics in differ.items()
        for own in metrics.values()
        for key, (one, other) in own.items()
    ]
    for line in [*dict.fromkeys(lines), *told]:
        console.print(line, markup=False, soft_wrap=True)
    for name, ranking in found.items():
        show_table(ranking_table(ranking), f"{name}: which system is better?")
        pairs = pair_table(ranking, telling_pairs(ranking))
        show_table(pairs, f"{name}: differences", fold=("test", "documents", "left out", "means"))


def _beginning(text: str | None) -> str:
    flat = " ".join((text or "").split())
    return flat if len(flat) <= BEGINNING else f"{flat[: BEGINNING - 3]}..."
