"""``geval-local compare``: two runs side by side, after what differs between them has been said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geval_local.cli import options
from geval_local.errors import ConfigurationError

if TYPE_CHECKING:
    from geval_local.analysis.statistics.significance import Comparison
    from geval_local.analysis.studies.comparison import Difference
    from geval_local.cli.scored_runs import ScoredRun

__all__ = ["compare"]

ANY = "any"
#: What always differs together with a key.
IMPLIED = {"judge": ("judge", "tokenizer"), "versions": ("transformers", "torch", "version")}
#: Characters of an output that are shown.
BEGINNING = 60


def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A result file of `score`, or a run directory.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one over the same rows.")],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", metavar="NAME", help="Only this metric; may be repeated. Absent: all shared."),
    ] = None,
    across: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="What may differ: judge, steps, estimator, style, ..., versions, input, or any; may be repeated.",
        ),
    ] = None,
    human: Annotated[str | None, typer.Option(metavar="FIELD", help="Field of the human rating.")] = None,
    group_by: options.GroupBy = None,
    field: options.Fields = None,
    level: options.Level = None,
    coefficient: options.Coefficient = "spearman",
    new: options.New = None,
    constant: options.Constant = "skip",
    count: Annotated[int, typer.Option("--largest", metavar="N", min=0, help="Disagreements to list.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the permutations.")] = 0,
    page: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Also write both runs side by side as one .html page.")
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Compare two runs on the rows that both scored.

    Refused when the signatures differ in more than what --across names.
    """
    from geval_local.analysis.statistics.significance import compare as test
    from geval_local.analysis.statistics.significance import corrected
    from geval_local.analysis.studies.comparison import differences
    from geval_local.cli.scored_runs import ScoredRun, level_for
    from geval_local.fields import read_mapping
    from geval_local.files import check_replaceable
    from geval_local.grouping import documents_of
    from geval_local.report.page import check_target, is_own_page

    mapping = read_mapping(field or [])
    first, second = ScoredRun(run_a, mapping), ScoredRun(run_b, mapping)
    if page is not None:
        target = check_target(page, first.path, second.path)
        check_replaceable(target, is_own=is_own_page(target), overwrite=overwrite)
    names = [first.one_metric(name) for name in metric] if metric else first.metrics
    names = [second.one_metric(name) for name in names if metric or name in second.metrics]
    if not names:
        raise ConfigurationError(
            f"{run_a} and {run_b} share no metric",
            hint=f"The one holds {', '.join(first.metrics)}, the other {', '.join(second.metrics)}.",
        )
    differ = _differences(first, second, names, across or [])
    # Guessed from the columns that both have: CSV results may hold fewer.
    common = set(second.rows[0]) if second.rows else set()
    rows = first.rows if group_by else [{name: row[name] for name in row if name in common} for row in first.rows]
    documents, grouping = documents_of(rows, group_by)
    wanted = level or level_for(documents)
    found: dict[str, Difference] = {}
    tests: dict[str, Comparison] = {}
    for name in names:
        one, other = (run.items(name, human=human, group_by=documents) for run in (first, second))
        found[name] = differences(one, other, count=count)
        if human is not None:
            tests[name] = test(one, other, wanted, coefficient, target=new, constant=constant, seed=seed)
    tests = corrected(tests)
    if page is not None:
        asked = {"level": level, "coefficient": coefficient, "target": new, "constant": constant, "seed": seed}
        _write_page(first, second, page, human, group_by, asked)
    if as_json:
        from geval_local.cli.output.console import print_json
        from geval_local.cli.output.tables import as_record

        record = {"a": run_a, "b": run_b, "differ": differ, "grouping": grouping}
        record |= {"metrics": found, "against_human": tests}
        print_json(as_record(record))
        return
    _show(first, second, differ, grouping, found, tests)


def _write_page(
    first: ScoredRun, second: ScoredRun, page: Path, human: str | None, group_by: str | None, asked: Mapping[str, Any]
) -> None:
    from geval_local.cli.commands.report import facts_of, notes_of, signatures_of
    from geval_local.cli.output.console import note
    from geval_local.report.comparison_page import write_comparison

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


def _differences(
    first: ScoredRun, second: ScoredRun, names: Sequence[str], across: Sequence[str]
) -> dict[str, dict[str, tuple[str, str]]]:
    """List what differs, per metric, and refuse what nobody asked for.

    Raises
    ------
    ConfigurationError
        If something differs that `across` does not name, or it names something that no signature has.
    """
    from dataclasses import fields

    from geval_local.signature import Signature, signature_differences, told_differences

    known = [*(field.name for field in fields(Signature)), "versions", "input", ANY]
    unknown = [key for key in across if key not in known]
    if unknown:
        raise ConfigurationError(f"--across {unknown[0]}: no such key", hint=f"Keys: {', '.join(known)}.")
    differ = {}
    for name in names:
        if ANY in across and not all(run.is_described(name) for run in (first, second)):
            continue
        differ[name] = signature_differences(first.origin(name).signature, second.origin(name).signature)
    changed = _changed_outputs(first, second)
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


def _changed_outputs(first: ScoredRun, second: ScoredRun) -> int:
    """Count the rows that bear the same key and hold another text.

    A CSV file of results need not hold the texts; then the content of the input that was scored says the same.
    """
    from geval_local.analysis.reading import row_keys

    texts = [dict(zip(row_keys(run.rows), run.outputs(), strict=True)) for run in (first, second)]
    hashes = {None if run.manifest is None else run.manifest.input_sha256 for run in (first, second)}
    is_same_input = len(hashes) == 1 and None not in hashes
    pairs = [(text, texts[1][key]) for key, text in texts[0].items() if key in texts[1]]
    return sum(one != other and not (is_same_input and None in (one, other)) for one, other in pairs)


def _show(
    first: ScoredRun,
    second: ScoredRun,
    differ: Mapping[str, Mapping[str, tuple[str, str]]],
    grouping: str,
    found: Mapping[str, Any],
    tests: Mapping[str, Any],
) -> None:
    from geval_local.analysis.reading import row_keys
    from geval_local.analysis.tables import comparison_table, difference_table, largest_table
    from geval_local.cli.output.console import result_console
    from geval_local.cli.output.tables import show_table

    console = result_console()
    for letter, run in (("A", first), ("B", second)):
        judge = "of unknown origin" if run.manifest is None else f"by {run.manifest.judge}"
        console.print(f"{letter}  {run.path}, {len(run.rows)} rows, {judge}", markup=False, soft_wrap=True)
    lines = dict.fromkeys(
        f"differs in {key}: {one} | {other}" for own in differ.values() for key, (one, other) in own.items()
    )
    for line in lines or ["differs in nothing that a signature tells"]:
        console.print(line, markup=False, soft_wrap=True)
    console.print(grouping, markup=False, soft_wrap=True)
    show_table(difference_table(found), "A and B on the rows that both scored", fold=("A / B alone",))
    if tests:
        show_table(
            comparison_table(tests),
            "which agrees better with people?",
            fold=("on", "Williams", "items / documents", "kept by each"),
        )
    outputs = dict(zip(row_keys(first.rows), first.outputs(), strict=True))
    for name, own in found.items():
        rows = [(key, a, b, _beginning(outputs.get(key))) for key, a, b in own.largest]
        if rows:
            show_table(largest_table(rows), f"largest disagreements: {name}")


def _beginning(text: str | None) -> str:
    flat = " ".join((text or "").split())
    return flat if len(flat) <= BEGINNING else f"{flat[: BEGINNING - 3]}..."
