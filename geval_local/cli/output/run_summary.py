"""The end of a run: its table of scores, answers or reasons, what is unscored, signatures, and the next commands."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local import __version__
from geval_local.cli.output.console import (
    FIGURE,
    FOLDED,
    WHOLE,
    as_options,
    command_given,
    note,
    print_json,
    print_rows,
    say,
)
from geval_local.fields import counted, output_text
from geval_local.io.result_manifest import manifest_path
from geval_local.io.samples import Sample
from geval_local.options import JudgeOptions
from geval_local.score import LEAST_LABEL_MASS, LOW_LABEL_MASS
from geval_local.signature import short_signature, signature_parts
from geval_local.summary import mass_warning

if TYPE_CHECKING:
    from geval_local.runs.completion import RunResult
    from geval_local.score import Score
    from geval_local.summary import QuestionSummary, Summary

#: Most reasons shown per metric; `--json` has them all.
REASONS_SHOWN = 8
#: Rows with the lowest scores that are shown unless more are asked for.
LOWEST_SHOWN = 3
#: Characters of a line, of a row's name in it, and the fewest that a piece of its text is worth showing in.
LINE, NAME, PIECE = 80, 16, 20


def show_result(
    result: RunResult,
    failures: Sequence[str],
    *,
    gates: int = 0,
    lowest: int = LOWEST_SHOWN,
    as_json: bool,
) -> None:
    """Print a run's scores or answers to stdout, and its warnings, gates and next commands to stderr."""
    show_warnings(result)
    if as_json:
        print_json(run_record(result, lowest) | {"failed_gates": list(failures)})
    else:
        if result.answers:
            _show_answers(result.answers)
        else:
            show_summaries(result.summaries)
        _show_pace(result)
        show_unscored(result)
        for summary, rows in zip(result.summaries, result.lowest, strict=True):
            if not summary.doubt:
                show_lowest(summary.metric, rows, lowest)
        show_signatures(result)
        _show_next(result, lowest)
    show_gates(failures, gates)


def show_gates(failures: Sequence[str], gates: int) -> None:
    """Say which gates failed, or that all hold."""
    for failure in failures:
        note(f"gate failed: {failure}", "bold red")
    if gates and not failures:
        note(f"gates: {gates} of {gates} hold", "green")


def show_warnings(result: RunResult, prefix: str = "") -> None:
    """Warn of low label mass and of rows that were cut; every line begins with `prefix`."""
    is_plain = any(judge.choice.get("style") == "completion" for judge in result.manifest.judges)
    # Where questions are asked there are signatures and no summaries.
    for summary, signature in zip(result.summaries, result.signatures, strict=False):
        if summary.low_mass_share > 0:
            note(prefix + low_mass_warning(summary, signature, is_plain=is_plain), "yellow")
        if summary.shortened:
            told = f"warning: {summary.metric}: {summary.shortened} rows were cut to fit the judge's context"
            note(prefix + told, "yellow")
    for answer in result.answers:
        if answer.low_mass_share > 0:
            note(f"warning: {_low_mass(answer)}", "yellow")


def low_mass_warning(summary: Summary, signature: str, *, is_plain: bool = False) -> str:
    """Describe the rows with low label mass, the tokens that received the mass, and remedies."""
    return f"warning: {mass_warning(summary)}. {_low_mass_remedy(signature, is_plain)}"


def _low_mass_remedy(signature: str, is_plain: bool) -> str:
    """Name what can be done; of pairs and questions neither labels nor scale can be changed.

    Without `is_plain`, which says that the user asked for that style, only judges without a template complete a text.
    """
    parts = signature_parts(signature)
    is_fixed = parts.get("scale", "").replace(" ", "") in ("A/tie/B", "A/B/tie", "B/tie/A")
    remedies = []
    if is_plain and parts.get("style") == "completion":
        remedies.append("leave --style completion out")
    if parts.get("style", "").startswith("chat-no-prefill"):
        remedies.append("--style chat, which opens the answer")
    if not is_fixed and "/" in parts.get("scale", "") and not any(char.isdigit() for char in parts["scale"]):
        remedies.append("a scale of numbers such as 1-3, or of the words that it writes")
    if not is_fixed:
        remedies.append("say in the criteria what each label means")
    return f"Try: {'; '.join([*remedies, 'another judge'])}."


def show_lowest(metric: str, rows: Iterable[tuple[Sample, Score]], count: int) -> None:
    """Show the rows with the lowest scores, each with its label probabilities and a piece of its text."""
    shown = list(rows)[:count]
    if not shown:
        return
    headings = [f"p({label})" for label in shown[0][1].probabilities or ()]
    room = LINE - NAME - len("  0.000  ")
    piece = room - sum(max(len(heading), len("0.00")) + len("  ") for heading in headings)
    if piece < PIECE:  # a long scale leaves no room beside the text
        headings, piece = [], room
    table = []
    for sample, score in shown:
        shares = [f"{p:.2f}" for p in (score.probabilities or {}).values()] if headings else []
        table.append((_piece(_name(sample), NAME), f"{score.value:.3f}", *shares, _piece(_text(sample), piece)))
    texts = {"no_wrap": True, "overflow": "ellipsis", "max_width": piece}
    print_rows([("lowest", WHOLE), *((heading, FIGURE) for heading in ("score", *headings)), (metric, texts)], table)


def _name(sample: Sample) -> str:
    given = sample.fields.get("id")
    return f"row {sample.row}" if given is None else str(given)


def _text(sample: Sample) -> str:
    """Return the text that was rated, else the row's longest one."""
    texts = [value for value in sample.fields.values() if isinstance(value, str)]
    return output_text(sample.fields, sample.mapping) or max(texts, key=len, default="")


def _piece(text: str, most: int) -> str:
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def show_summaries(summaries: Sequence[Summary], data: Sequence[str] = ()) -> None:
    """Print the figures of runs, a row for each result; narrow enough for a terminal of 80 columns."""
    has_threshold = any(summary.threshold is not None for summary in summaries)
    columns = [("data", FOLDED), ("metric", FOLDED)][0 if data else 1 :]
    figures = ("scored", "mean [95 % CI]", "std", "mass", f"<{summaries[0].low_mass:g}", "passed")
    columns += [(name, FIGURE) for name in figures if name != "passed" or has_threshold]
    rows = [[*_cells(summary), *([_passed(summary)] if has_threshold else [])] for summary in summaries]
    print_rows(columns, [[*data[place : place + 1], *row] for place, row in enumerate(rows)])
    for summary in summaries:
        if summary.doubt:
            say(f"{summary.metric}: {summary.doubt}", wrap=True)


def _show_pace(result: RunResult) -> None:
    """Say in one line how many results there are, who gave them, how fast, and what was saved; then the precision."""
    count = result.rows * len(result.signatures)
    # A row that cannot be scored passes through no model.
    computed = count - sum(result.totals.get(name, 0) for name in ("from_cache", "unscored")) - result.there
    rate = f" ({computed / result.seconds:.1f}/s)" if result.seconds > 0 and computed > 0 else ""
    what = "answers" if result.answers else "scores"
    told = [f"{count} {what} by {', '.join(result.judges)} in {result.seconds:.1f} s{rate}"]
    if result.there:
        told.append(f"{result.there} of them there before")
    if cached := result.totals.get("from_cache", 0):
        told.append(f"{cached} from the cache of earlier runs (--no-cache computes them again)")
    if result.manifest.settings.distributed is not None:
        told.append("loading included")
    if result.load_seconds:
        told.append(f"{result.load_seconds:.1f} s of loading")
    if result.steps_seconds >= 1:
        told.append(f"{result.steps_seconds:.1f} s of writing steps")
    prompts, planned = result.totals.get("prompt_tokens", 0), result.totals.get("planned_tokens", 0)
    if 0 < planned < prompts:
        told.append(f"{1 - planned / prompts:.0%} of {prompts} prompt tokens saved by shared texts")
    elif planned > prompts > 0:
        told.append(f"{planned} tokens computed for {prompts} prompt tokens")
    note("; ".join(told))
    for line in _interval_lines(result.summaries):
        note(line, "dim")
    for precision in result.precisions:
        note(f"precision: {precision}", "dim")


def _interval_lines(summaries: Sequence[Summary]) -> list[str]:
    """Describe the basis of the intervals, once, and what is wrong with single ones."""
    based = (
        f"interval: {f'{one.interval.units} documents' if one.interval.units else 'none'}; {one.grouping}"
        for one in summaries
    )
    wrong = (
        f"interval of {one.metric}: {one.interval.warning}"
        for one in summaries
        if one.interval.warning and not one.doubt
    )
    return list(dict.fromkeys([*based, *wrong]))


def _cells(summary: Summary) -> list[str]:
    interval = "" if math.isnan(summary.low) else f" [{summary.low:.2f}, {summary.high:.2f}]"
    return [
        summary.metric,
        f"{summary.scored}/{summary.rows}",
        f"{_figure(summary.mean, 3)}{interval}",
        _figure(summary.std, 2),
        _figure(summary.label_mass, 3),
        "-" if math.isnan(summary.low_mass_share) else f"{summary.low_mass_share:.1%}",
    ]


def _figure(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _passed(summary: Summary) -> str:
    if summary.passed_share is None:
        return "-"
    if summary.doubt:
        return "no: mass"
    return f"{summary.passed_share:.1%} (>= {summary.threshold:g})"


def show_unscored(result: RunResult, where: str = "") -> None:
    """List the reasons of rows without a score or an answer; `where` ends the heading of each list."""
    found = [(f"unscored in {summary.metric}{where}", summary.reasons) for summary in result.summaries]
    found += [(f"without an answer to {answer.name}", answer.reasons) for answer in result.answers]
    for heading, reasons in found:
        if not reasons:
            continue
        say(f"{heading}:", wrap=True)
        for reason in reasons[:REASONS_SHOWN]:
            more = ", ..." if reason.count > len(reason.rows) else ""
            rows = f"row{'s' if reason.count > 1 else ''} {', '.join(map(str, reason.rows))}{more}"
            say(f"  {reason.count} x {as_options(reason.text)} ({rows})")
        if len(reasons) > REASONS_SHOWN:
            say(f"  and {len(reasons) - REASONS_SHOWN} other reasons (see --json)")


def show_signatures(result: RunResult) -> None:
    """Name the signatures in one line, and the file that holds them whole."""
    names = [summary.metric for summary in result.summaries] or [answer.name for answer in result.answers]
    listed = ", ".join(f"{name} {short_signature(one)}" for name, one in zip(names, result.signatures, strict=True))
    whole = manifest_path(result.files[0]) if result.files else "--json"
    say(f"signature: {listed} (whole: {whole})")


def _show_next(result: RunResult, lowest: int) -> None:
    settings, choice = result.manifest.settings, result.manifest.judges[0].choice
    note("next:")
    output = shlex.quote(str(result.target.results))
    if result.target.results is None:
        what, file = ("answers", "decisions.jsonl") if result.answers else ("figures", "scores.jsonl")
        note(f"  keep every row's {what}     {command_given()} -o {file}")
    elif result.answers:
        note(f"  every row's answers          {output}")
    else:
        if settings.distributed is not None:
            note(f"  make one file of the parts   geval-local merge {output} -o scores.jsonl")
        elif settings.pairs is None and lowest and any(result.lowest) and not result.summaries[0].doubt:
            # Results do not name the address of a server.
            server = result.judges[0] if JudgeOptions(**choice).is_served else None
            command = reasons_command(result.target.results, result.summaries[0].metric, lowest, server)
            note(f"  why the lowest are low       {command}")
        note(f"  look at them in a browser    geval-local report {output} -o report.html")
    if result.answers or any(summary.low_mass_share > 0 for summary in result.summaries):
        judge = f" {shlex.quote(result.judges[0])}"
        if choice.get("models_file") is not None:
            judge += f" --models {shlex.quote(choice['models_file'])}"
        metric = f" --metric {shlex.quote(settings.metric_names[0])}" if settings.metric_names else ""
        note(f"  audit the judge              geval-local judges check{judge}{metric}")


def reasons_command(results: object, metric: str, lowest: int, judge: str | None = None) -> str:
    """Write the command that explains the lowest rows, by the judge of the results where none is named."""
    words = ["reasons", str(results), "-m", metric, "--lowest", str(lowest), "-o", "reasons.jsonl"]
    return shlex.join(["geval-local", *words, *([] if judge is None else ["-j", judge])])


def run_record(result: RunResult, lowest: int = LOWEST_SHOWN) -> dict[str, Any]:
    """Return a run's figures as plain JSON values."""
    results = result.target.results
    pace = round(result.rows * len(result.signatures) / result.seconds, 3) if result.seconds else None
    record = {
        "version": __version__,
        "input": result.manifest.input.path,
        "output": None if results is None else str(results),
        "judge": ", ".join(result.judges),
        "files": [str(file) for file in result.files],
        **{name: result.totals.get(name, 0) for name in ("from_cache", "prompt_tokens", "planned_tokens")},
        "rows": result.rows,
        "precision": result.precisions,
        "load_seconds": round(result.load_seconds, 3),
        "steps_seconds": round(result.steps_seconds, 3),
        "seconds": round(result.seconds, 3),
    }
    if result.answers:
        questions = {
            answer.name: answer.to_dict() | {"signature": signature}
            for answer, signature in zip(result.answers, result.signatures, strict=True)
        }
        return {**record, "answers_per_second": pace, "questions": questions}
    metrics = {
        summary.metric: summary.to_dict()
        | {
            "signature": signature,
            "lowest": [
                {"row": sample.row, "id": sample.fields.get("id"), "score": score.value}
                for sample, score in rows[:lowest]
            ],
        }
        for summary, signature, rows in zip(result.summaries, result.signatures, result.lowest, strict=True)
    }
    estimator = result.manifest.settings.estimator.text
    return {**record, "estimator": estimator, "scores_per_second": pace, "metrics": metrics}


# --- answers ----------------------------------------------------------------------------------------------------------

#: Options of a choice that are counted on its line.
OPTIONS_SHOWN = 6


def _low_mass(answer: QuestionSummary) -> str:
    """Say that a judge does not answer a question, and what can be done."""
    what = "the judge does not answer this" if answer.label_mass < LEAST_LABEL_MASS else "it is low"
    return (
        f"{answer.name}: label mass {answer.label_mass:.3f}, below {LOW_LABEL_MASS:g} in {answer.low_mass_share:.1%} "
        f"of the answers: {what}. Try: a plainer question; another judge."
    )


def _show_answers(answers: Sequence[QuestionSummary]) -> None:
    rows = [
        (
            answer.name,
            _told(answer),
            f"{answer.answered}/{answer.rows}",
            _figure(answer.label_mass, 3),
            _figure(answer.label_mass_min, 3),
            "-" if math.isnan(answer.low_mass_share) else f"{answer.low_mass_share:.1%}",
            "-" if answer.spread is None else _figure(answer.spread, 3),
        )
        for answer in answers
    ]
    figures = ("answered", "mass", "min", f"<{LOW_LABEL_MASS:g}", "spread")
    print_rows([("question", FOLDED), ("answers", FOLDED), *((name, FIGURE) for name in figures)], rows)


def _told(answer: QuestionSummary) -> str:
    if not answer.answered:
        return "-"
    if answer.type == "choice":
        more = ", ..." if len(answer.chosen) > OPTIONS_SHOWN else ""
        return ", ".join(f"{_option(value)} {count}" for value, count in answer.chosen[:OPTIONS_SHOWN]) + more
    return f"mean {'probability' if answer.type == 'predicate' else 'level'} {_figure(answer.mean, 3)}"


def _option(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


# --- reasons ----------------------------------------------------------------------------------------------------------

#: Reasons that are printed; the file has all.
WRITTEN_SHOWN = 10


def show_reasons(file: Path, metric: str, *, as_json: bool, is_new: bool = True) -> None:
    """Print the reasons in a file, and on stderr where they are."""
    records = [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]
    if as_json:
        print_json({"metric": metric, "output": str(file), "reasons": records})
    else:
        _show_written(records, metric)
    held = counted(len(records), "reason")
    note(f"wrote {held} to {file}" if is_new else f"{file} is complete: {held}; --overwrite writes them again")


def _show_written(records: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Print the first reasons as a table, and on stderr how many are missing, cut off, or without a citation."""
    rows = [
        (
            str(record.get("id", record["row"])),
            f"{record['score']:.3f}",
            str(record["label"]),
            record["reason"] or f"none: {record['error']}",
        )
        for record in records[:WRITTEN_SHOWN]
    ]
    columns = [("row", FIGURE), ("score", FIGURE), ("label", WHOLE), (f"reason: {metric}", FOLDED)]
    print_rows(columns, rows)
    written = [record for record in records if record["reason"]]
    uncited = sum(not record["cites_text"] for record in written)
    cut = sum(not record["is_complete"] for record in written)
    if len(written) < len(records):
        note(f"{len(records) - len(written)} of {len(records)} rows have no reason; the file says why", "yellow")
    if cut:
        note(f"{cut} of {len(written)} reasons did not come to an end within --tokens, or repeat themselves", "yellow")
    if uncited:
        note(f"{uncited} of {len(written)} reasons cite nothing of the text: they may fit any text", "yellow")
