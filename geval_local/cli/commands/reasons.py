"""``geval-local reasons``: after the scores, a judge writes why chosen rows got them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options
from geval_local.errors import ConfigurationError, OutputError
from geval_local.options import JudgeOptions, RunOptions

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge


@takes_options(run_only=("fields", "overwrite"))
def reasons(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A result file of `score`, or a run directory.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="A .jsonl file: one reason per row.")],
    metric: options.OneMetric = None,
    lowest: Annotated[int | None, typer.Option(metavar="N", min=1, help="The rows with the N lowest scores.")] = None,
    entropy: Annotated[
        float | None,
        typer.Option(metavar="NATS", min=0.0, help="The rows whose probabilities have at least this entropy."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All scored rows.")] = False,
    tokens: Annotated[int, typer.Option(metavar="N", min=8, max=2**31, help="Most tokens of a reason.")] = 160,
    as_json: options.Json = False,
    *,
    judge: JudgeOptions,
    run_options: RunOptions,
) -> None:
    """Let the judge of a run write why rows got their scores, citing the text; no score changes.

    The judge is asked about the label that it gave the most probability. Reasons are told to cite the text; whether
    they do is recorded. An interrupted command goes on where it was when it is given again.
    """
    from geval_local.analysis.pairs import holds_pairs
    from geval_local.analysis.results import ScoredRun, figures_of
    from geval_local.cli.output.console import note
    from geval_local.cli.output.run_summary import show_reasons
    from geval_local.cli.scoring import watch
    from geval_local.io.input_checks import check_rows
    from geval_local.io.results import numbered
    from geval_local.io.samples import Sample
    from geval_local.runs.reasons import chosen_places
    from geval_local.runs.run_file import reason_file
    from geval_local.signature import judge_name, signature_differences, signature_parts

    scored = ScoredRun(run, run_options.fields)
    if output.suffix.lower() != ".jsonl":
        raise OutputError(f"cannot write {output}: reasons are JSON lines", hint="Give it a name that ends in .jsonl.")
    if output.resolve() == scored.path.resolve():
        raise OutputError(f"cannot write {output}: it is the run", hint="Name another file.")
    name = scored.one_metric(metric)
    origin = scored.origin(name)
    if holds_pairs(scored.rows[0], name) and "output_a" not in scored.rows[0]:
        raise ConfigurationError(
            f"{scored.path} holds pairs, whose texts stay in their input: there is nothing to cite",
            hint="Reasons explain the scores of single outputs: score the input, and give that run.",
        )
    places = chosen_places(
        figures_of(scored.rows, name, scored.path), lowest=lowest, entropy=entropy, everything=everything
    )
    rows = list(numbered(scored.rows))
    chosen = [Sample(rows[place][1], rows[place][0], scored.path.name, None, scored.mapping) for place in places]
    check_rows(chosen, [origin.definition], str(scored.path), scored.mapping)
    scorer = signature_parts(origin.signature)["judge"].rpartition("@")[0]
    choice = judge.model_copy(update={"name": judge.name or scorer})

    def load(given: JudgeOptions) -> Judge:
        from geval_local.judge.judge import Judge  # brings torch, which a file that is complete does not need

        loaded = Judge.load(given)
        differ = signature_differences(origin.signature, str(loaded.signature(origin.definition)))
        if "judge" in differ:
            if judge.name is None:
                raise ConfigurationError(
                    f"the judge {scorer!r} of {scored.path} is another one now",
                    hint="Name with --judge who is to write the reasons.",
                )
            told = f"the scores are those of {judge_name(scorer)}; the reasons are by {judge_name(loaded.name)}"
            note(told, "yellow")
        if not loaded.writes_steps:
            note(f"warning: {loaded.name} can score but not write; name an instruct model by --judge", "yellow")
        return loaded

    result = watch(
        lambda events: reason_file(
            scored.path,
            origin.definition,
            [sample.row for sample in chosen],
            choice,
            output,
            result=name,
            tokens=tokens,
            fields=scored.mapping,
            load=load,
            events=events,
            overwrite=run_options.overwrite,
        ),
        scored.path.name,
        unit="reasons",
    )
    show_reasons(output, name, as_json=as_json, is_new=result is not None)
