"""The end of a run: its table of scores, answers or reasons, what is unscored, signatures, and the next commands."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local import __version__
from geval_local.analysis.gates import NOT_WORSE
from geval_local.analysis.tables import number
from geval_local.cli.output.console import (
    DROPPED,
    FIGURE,
    FOLDED,
    WHOLE,
    as_options,
    command_given,
    detail,
    note,
    print_json,
    print_rows,
    say,
)
from geval_local.conversation import row_name
from geval_local.direction import Direction
from geval_local.errors import GevalError
from geval_local.fields import beginning, counted, listed, shortened
from geval_local.io.places import Place
from geval_local.io.result_manifest import ENDING, manifest_path
from geval_local.io.results import input_number
from geval_local.io.samples import INPUT_ROW, Sample
from geval_local.metric import Metric
from geval_local.options import JudgeOptions
from geval_local.score import LEAST_LABEL_MASS, LOW_LABEL_MASS
from geval_local.signature import short_signature, signature_parts
from geval_local.statistics.interval import FEW_UNITS
from geval_local.summary import mass_remark
from geval_local.thinking import CORRECTED

if TYPE_CHECKING:
    from geval_local.analysis.gates import GateOutcome
    from geval_local.grouping import DocumentRule
    from geval_local.runs.completion import RunResult
    from geval_local.score import Score
    from geval_local.summary import QuestionSummary, Summary

#: Most reasons shown per metric; `--json` has them all.
REASONS_SHOWN = 8
#: Rows with the lowest scores that are shown unless more are asked for.
LOWEST_SHOWN = 3
#: Characters of a line, as the documents show them, and the fewest that a piece of a text is worth showing in.
LINE, PIECE = 76, 12
#: Labels of a scale that are all shown next to a low score; of a longer one the likeliest.
LABELS_SHOWN, LIKELIEST = 5, 3


def show_result(
    result: RunResult,
    gates: Sequence[GateOutcome],
    *,
    lowest: int = LOWEST_SHOWN,
    as_json: bool,
) -> None:
    """Print a run's scores or answers to stdout, and its warnings, gates and next commands to stderr."""
    show_warnings(result)
    if as_json:
        print_json(run_record(result, lowest) | gates_record(gates))
    else:
        if result.answers:
            _show_answers(result.answers)
        else:
            show_summaries(result.summaries)
            _show_slices(result)
        _show_pace(result)
        _show_unscored(result)
        for summary, rows in zip(result.summaries, result.lowest, strict=True):
            if not summary.doubt:
                show_lowest(summary.metric, rows, lowest, result.rule)
        _show_signatures(result)
        _show_next(result, lowest)
    show_gates(gates)


def show_runs(runs: Mapping[str, RunResult]) -> None:
    """Print the figures of an evaluation's runs, each by the name of its data."""
    names = [name for name, run in runs.items() for _ in run.summaries]
    show_summaries([one for run in runs.values() for one in run.summaries], names)
    for run in runs.values():
        _show_slices(run)
    for name, run in runs.items():
        _show_unscored(run, f" of {name}")
        _show_thoughts(run)
    for run in runs.values():
        _show_signatures(run)
    _show_trying(runs.values())
    for run in runs.values():
        note(f"wrote {', '.join(shlex.quote(str(file)) for file in run.files)}", "dim")


def gates_record(gates: Sequence[GateOutcome]) -> dict[str, Any]:
    """Return what became of the gates as plain JSON values: all of them, and the sentences of those that failed."""
    failed = [one.sentence for one in gates if not one.passed]
    return {"failed_gates": failed, "gates": [one.to_dict() for one in gates]}


def show_gates(gates: Sequence[GateOutcome]) -> None:
    """Say of every gate that failed why it did, with its rows, and how many hold; of a baseline also what held."""
    from geval_local.evaluation.gate_reports import row_lines

    for one in gates:
        if one.verdict == "holds" and one.gate.figure == NOT_WORSE:
            note(f"gate holds: {one.sentence}", "dim")
        elif one.verdict == "skipped":
            note(f"gate skipped: {one.sentence}", "yellow")
    for one in gates:
        if not one.passed:
            note(f"gate failed: {one.sentence}", "bold red")
            for line in (line for row in one.rows for line in row_lines(row)):
                note(f"  {line}")
            if one.next:
                note(f"  next: {one.next}")
    given = [one for one in gates if one.gate.told]
    if given:
        held, skipped = (sum(one.verdict == verdict for one in given) for verdict in ("holds", "skipped"))
        told = f"gates: {held} of {len(given)} hold" + (f", {skipped} skipped" if skipped else "")
        note(told, "green" if held == len(given) and all(one.passed for one in gates) else "")


def show_warnings(result: RunResult, prefix: str = "") -> None:
    """Warn of files that cannot be read, low label mass and rows that were cut; every line begins with `prefix`."""
    for file in result.unreadable[:REASONS_SHOWN]:
        note(f"{prefix}warning: {file}; what could be read of it is scored", "yellow")
    if len(result.unreadable) > REASONS_SHOWN:
        note(f"{prefix}warning: {len(result.unreadable)} files in all cannot be read (--json lists them)", "yellow")
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
            what = "the judge does not answer this" if answer.label_mass < LEAST_LABEL_MASS else "it is low"
            told = f"label mass {answer.label_mass:.3f}, below {LOW_LABEL_MASS:g} in {answer.low_mass_share:.1%}"
            told += f" of the answers: {what}. Try: a plainer question; another judge."
            note(f"warning: {answer.name}: {told}", "yellow")


def low_mass_warning(summary: Summary, signature: str, *, is_plain: bool = False) -> str:
    """Describe the rows with low label mass, the tokens that received the mass, and what can be done.

    Of pairs and questions neither labels nor scale can be changed. Without `is_plain`, which says that the user asked
    for that style, only judges without a template complete a text.
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
    told = "; ".join([*remedies, "another judge"])
    return f"warning: {summary.metric}: {mass_remark(summary)}. Try: {told}."


def show_lowest(metric: str, rows: Sequence[tuple[Sample, Score]], count: int, rule: DocumentRule) -> None:
    """Show the worst `count` texts: row, label probabilities, and the beginnings of question and answer."""
    alike: dict[object, list[tuple[Sample, Score]]] = {}
    for place, (sample, score) in enumerate(rows):
        texts = [rule.text(sample.fields, name) for name in rule.fields]
        key = place if rule.output(sample.fields) is None else (row_name(sample.fields), score.value, *texts)
        alike.setdefault(key, []).append((sample, score))
    shown = [(*own[0], len(own) - 1) for own in alike.values()][:count]
    if not shown:
        return
    answer, asked = rule.shown([sample.fields for sample, _ in rows])
    say(f"{shown[0][1].direction.worst} in {metric}:")
    width = max(len(_place(sample)) for sample, *_ in shown)
    for sample, score, others in shown:
        found = list((score.probabilities or {}).items())
        if len(found) > LABELS_SHOWN:  # a long scale: the likeliest
            found = sorted(found, key=lambda pair: -pair[1])[:LIKELIEST]
        shares = "  ".join(f"p({label}) {p:.2f}" for label, p in found)
        line = f"  {_place(sample):>{width}}  {score.value:.3f}  {shares}".rstrip()
        name = shortened(row_name(sample.fields), LINE - 6)
        if len(line) + 2 + len(name) > LINE:  # a name that does not fit has a line of its own
            line, name = f"{line}\n      {name}", ""
        say(f"{line}  {name}".rstrip())
        for field in filter(None, (asked, "output_a" if answer == "output_b" else None, answer)):
            text = rule.text(sample.fields, field)
            say(f"      {field}: {beginning(text, max(PIECE, LINE - len(field) - 8))}")
        if others:
            say(f"      {counted(others, 'more row')} of the same texts")


def _place(sample: Sample) -> str:
    file = sample.fields.get("file")
    where = f"row {input_number(sample.fields.get(INPUT_ROW), sample.row)}" if sample.row else "-"
    return f"{shortened(str(file), 2 * PIECE)}, {where}" if isinstance(file, str) else where


def show_summaries(summaries: Sequence[Summary], data: Sequence[str] = ()) -> None:
    """Print the figures of runs, a row for each result; a narrow terminal shows names and means."""
    has_threshold = any(summary.threshold is not None for summary in summaries)
    columns: list[tuple[str, dict[str, Any]]] = [("data", FOLDED), ("metric", WHOLE)][0 if data else 1 :]
    columns += [
        ("scored", FIGURE | {DROPPED: 1}),
        ("mean [95 % CI]", FIGURE),
        ("std", FIGURE | {DROPPED: 4}),
        ("mass", FIGURE | {DROPPED: 2}),
        (f"<{LOW_LABEL_MASS:g}", FIGURE | {DROPPED: 3}),
        *([("passed", FIGURE)] if has_threshold else []),
    ]
    rows = [[*_cells(summary), *([_passed(summary)] if has_threshold else [])] for summary in summaries]
    print_rows(columns, [[*data[place : place + 1], *row] for place, row in enumerate(rows)])
    for summary in summaries:
        if summary.doubt:
            say(f"{summary.metric}: {summary.doubt}", wrap=True)


def _show_slices(result: RunResult) -> None:
    """Print the figures of every slice, a table for each column, and warn of slices of few documents."""
    several = len(result.summaries) > 1
    for column in dict.fromkeys(one.column for summary in result.summaries for one in summary.slices):
        found = [(summary, one) for summary in result.summaries for one in summary.slices if one.column == column]
        has_threshold = any(one.summary.threshold is not None for _, one in found)
        columns = [(column, FOLDED), *([("metric", FOLDED)] if several else [])]
        figures = ["scored", "documents", "mean [95 % CI]", *(["passed"] if has_threshold else [])]
        rows = []
        for summary, one in found:
            _, scored, mean, *_ = _cells(one.summary)
            passed = [_passed(one.summary)] if has_threshold else []
            own = [one.value, *([summary.metric] if several else [])]
            rows.append([*own, scored, str(one.summary.documents), mean, *passed])
        print_rows([*columns, *((name, FIGURE) for name in figures)], rows)
        few = {one.value: one.summary.documents for _, one in found if one.summary.documents < FEW_UNITS}
        if few:
            told = ", ".join(f"{value} ({counted(units, 'document')})" for value, units in few.items())
            note(f"warning: slices of {column} with few documents say little: {told}", "yellow")
    for slicing in result.slicings:
        if slicing.told:
            note(slicing.told, "dim")


def _show_pace(result: RunResult) -> None:
    """Say in one line how many results there are, who gave them, how fast, and what was saved; then the precision."""
    count = result.rows * len(result.signatures)
    # A row that cannot be scored passes through no model. Each form, and each thought, has an outcome of its own.
    forms = sum(Metric.model_validate(one).forms for one in result.manifest.settings.metrics)
    each = sum(judge.thoughts for judge in result.manifest.judges) * forms / max(len(result.signatures), 1)
    there, cached, unscored = (
        round(one / each)
        for one in (result.there, *(result.totals.get(name, 0) for name in ("from_cache", "unscored")))
    )
    computed = count - cached - unscored - there
    rate = f" ({computed / result.seconds:.1f}/s)" if result.seconds > 0 and computed > 0 else ""
    what = "answers" if result.answers else "scores"
    told = [f"{count} {what} by {', '.join(result.judges)} in {result.seconds:.1f} s{rate}"]
    if there:
        told.append(f"{there} of them there before")
    if cached:
        told.append(f"{cached} from the cache of earlier runs (--no-cache computes them again)")
    if result.manifest.settings.workers is not None:
        told.append("loading included")
    if result.load_seconds:
        told.append(f"{result.load_seconds:.1f} s of loading")
    if result.steps_seconds >= 1:
        told.append(f"{result.steps_seconds:.1f} s of writing steps")
    prompts, planned = result.totals.get("prompt_tokens", 0), result.totals.get("planned_tokens", 0)
    if planned > prompts > 0:
        told.append(f"{planned} tokens computed for {prompts} prompt tokens")
    note("; ".join(told))
    if 0 < planned < prompts:
        detail(f"{1 - planned / prompts:.0%} of {prompts} prompt tokens saved by shared texts")
    for line in _interval_lines(result.summaries):
        note(line, "dim")
    _show_thoughts(result)
    for precision in result.precisions:
        detail(f"precision: {precision}", unusual=not precision.startswith(("float32", "float64")))


def _show_thoughts(result: RunResult) -> None:
    """Say in one line for every result of a judge that thinks what its thoughts leave open."""
    for summary in result.summaries:
        if summary.thoughts and not summary.doubt:
            error = summary.shown.error
            of = "" if math.isnan(error) else f" of {error:.3g}, which the interval includes"
            note(_thought_line(summary.metric, summary, of))
    for answer in result.answers:
        if answer.thoughts:
            told = answer.spread_error
            order = "" if told is None else f"; {told:.2g} of the spread is the error that they leave in it"
            note(_thought_line(answer.name, answer) + order)


def _thought_line(name: str, summary: Summary | QuestionSummary, of: str = "") -> str:
    """Say what drawing thoughts leaves in a mean, and what would halve it."""
    count, error = summary.thoughts, summary.thought_error
    told = f"thoughts of {name}: {count} per row"
    if math.isnan(error):
        told += "; a single thought tells nothing of its error: --think 4 shows it"
    else:
        told += f"; standard error of the mean from them {error:.2g}{of}; --think {4 * count} would halve it"
    if abs(bias := summary.thought_bias) > max(2 * error, 1e-9):  # less could be chance
        left = (
            "was taken off, and a part is left" if count >= CORRECTED else f"is left: --think {CORRECTED} takes it off"
        )
        told += f"; label mass goes with the verdict: a bias of about {bias:+.2g} {left}"
    if summary.cut_thoughts:
        told += f"; {summary.cut_thoughts} thoughts closed at the limit (--think-tokens)"
    return told


def _interval_lines(summaries: Sequence[Summary]) -> list[str]:
    """Describe the basis of the intervals, once, and what is wrong with single ones."""
    based = (f"interval: {one.based_on}" for one in summaries)
    wrong = (
        f"interval of {one.metric}: {one.interval.warning}"
        for one in summaries
        if one.interval.warning and not one.doubt and one.interval.warning != f"only {one.documents} documents"
    )
    return list(dict.fromkeys([*based, *wrong]))


def _cells(summary: Summary) -> list[str]:
    interval = "" if math.isnan(summary.low) else f" [{summary.low:.2f}, {summary.high:.2f}]"
    return [
        summary.metric,
        f"{summary.scored}/{summary.rows}",
        f"{number(summary.mean, 3)}{interval}",
        number(summary.std, 2),
        number(summary.label_mass, 3),
        "-" if math.isnan(summary.low_mass_share) else f"{summary.low_mass_share:.1%}",
    ]


def _passed(summary: Summary) -> str:
    if summary.passed_share is None:
        return "-"
    if summary.doubt:
        return "no: mass"
    return f"{summary.passed_share:.1%} ({summary.direction.comparison} {summary.threshold:g})"


def _show_unscored(result: RunResult, where: str = "") -> None:
    """List the reasons of rows without a score or an answer; `where` ends the heading of each list."""
    found = [(f"unscored in {summary.metric}{where}", summary.reasons) for summary in result.summaries]
    found += [(f"without an answer to {answer.name}", answer.reasons) for answer in result.answers]
    for heading, reasons in found:
        if not reasons:
            continue
        say(f"{heading}:", wrap=True)
        for reason in reasons[:REASONS_SHOWN]:
            more = ", ..." if reason.count > len(reason.rows) else ""
            rows = f"row{'s' if reason.count > 1 else ''} {', '.join(map(str, dict.fromkeys(reason.rows)))}{more}"
            rows += "" if reason.is_shared else f"; this is of row {reason.rows[0]}"
            code = reason.known_code
            say(f"  {reason.count} x {code}{code and ': '}{as_options(reason.text)} ({rows})")
        if len(reasons) > REASONS_SHOWN:
            say(f"  and {len(reasons) - REASONS_SHOWN} other reasons (see --json)")


def _show_signatures(result: RunResult) -> None:
    """Name the signatures in one line, and the file that holds them whole."""
    names = [summary.metric for summary in result.summaries] or [answer.name for answer in result.answers]
    listed = ", ".join(f"{name} {short_signature(one)}" for name, one in zip(names, result.signatures, strict=True))
    whole: object = "--json"
    for file in result.files[:1]:
        whole = file.with_ending(ENDING) if isinstance(file, Place) else manifest_path(file)
    say(f"signature: {listed} (whole: {whole})")


def _show_next(result: RunResult, lowest: int) -> None:
    from geval_local.models.registry import writes_reasons

    settings, choice = result.manifest.settings, result.manifest.judges[0].choice
    _show_trying([result])
    note("next:")
    output = shlex.quote(str(result.target.results))
    if result.target.results is None:
        what, file = ("answers", "decisions.jsonl") if result.answers else ("figures", "scores.jsonl")
        note(f"  keep every row's {what}     {command_given()} -o {file}")
    elif settings.shard is not None:
        shares = shlex.quote(str(Path(result.target.results).parent.parent))
        note(f"  all shares are there?        geval-local merge {shares} -o FILE")
    elif result.answers:
        note(f"  every row's answers          {output}")
    else:
        is_offered = settings.pairs is None and lowest and any(result.lowest) and not result.summaries[0].doubt
        if is_offered and writes_reasons(JudgeOptions(**choice), result.manifest.judges[0].fingerprint):
            given = str(choice.get("name") or "")
            # Results name neither the path of a judge nor the address of a server.
            is_elsewhere = given and given != result.judges[0] and Path(given).exists()
            by_path = given if is_elsewhere else None if JudgeOptions(**choice).backend.has_files else result.judges[0]
            command = reasons_command(result.target.results, result.summaries[0].metric, lowest, by_path)
            note(f"  {why_worst(result.lowest[0]):<28} {command}")
        note(f"  look at them in a browser    geval-local report {output} -o report.html")
    if result.answers or any(summary.low_mass_share > 0 for summary in result.summaries):
        judge = f" {shlex.quote(str(choice.get('name') or result.judges[0]))}"
        if choice.get("models_file") is not None:
            judge += f" --models {shlex.quote(choice['models_file'])}"
        metric = f" --metric {shlex.quote(settings.metric_names[0])}" if settings.metric_names else ""
        note(f"  audit the judge              geval-local judges check{judge}{metric}")


def _show_trying(results: Iterable[RunResult]) -> None:
    """Say once which judges of runs are for trying the tool only, and what to take instead."""
    from geval_local.models.registry import load_registry

    named: dict[str, None] = {}
    for judge in (judge for result in results for judge in result.manifest.judges):
        with suppress(GevalError):  # a models file that is gone by now
            known = load_registry(judge.choice.get("models_file")).judges
            if judge.name in known and known[judge.name].for_trying:
                named[judge.name] = None
    if named:
        note(
            f"{', '.join(named)} is for trying the tool: draw no conclusions about texts from it. Take -j smol, "
            "another name of `geval-local judges list`, or -j DIR, a model of yours",
            "yellow",
        )


def why_worst(rows: Sequence[tuple[Sample, Score]]) -> str:
    """Name the question about the worst rows."""
    direction = rows[0][1].direction if rows else Direction.HIGH
    return f"why the {direction.worst} are {direction.worst.removesuffix('est')}"


def reasons_command(results: object, metric: str, lowest: int, judge: str | None = None) -> str:
    """Write the command that explains the worst rows; results do not hold the path of a `judge` that was given so."""
    words = ["reasons", str(results), "-m", metric, "--lowest", str(lowest), "-o", "reasons.jsonl"]
    words += [] if judge is None else ["-j", judge]
    return shlex.join(["geval-local", *words])


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
        "unreadable": result.unreadable,
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
                for sample, score in ([] if summary.doubt else rows[:lowest])
            ],
        }
        for summary, signature, rows in zip(result.summaries, result.signatures, result.lowest, strict=True)
    }
    estimator = result.manifest.settings.estimator.text
    return {**record, "estimator": estimator, "scores_per_second": pace, "metrics": metrics}


# --- answers ----------------------------------------------------------------------------------------------------------

#: Options of a choice that are counted on its line.
OPTIONS_SHOWN = 6


def _show_answers(answers: Sequence[QuestionSummary]) -> None:
    rows = [
        (
            answer.name,
            _told(answer),
            f"{answer.answered}/{answer.rows}",
            number(answer.label_mass, 3),
            number(answer.label_mass_min, 3),
            "-" if math.isnan(answer.low_mass_share) else f"{answer.low_mass_share:.1%}",
            "-" if answer.spread is None else number(answer.spread, 3),
        )
        for answer in answers
    ]
    figures = ("answered", "mass", "min", f"<{LOW_LABEL_MASS:g}", "spread")
    print_rows([("question", FOLDED), ("answers", FOLDED), *((name, FIGURE) for name in figures)], rows)


def _told(answer: QuestionSummary) -> str:
    if not answer.answered:
        return "-"
    if answer.type == "choice":
        told = ((str(value).lower() if value in (True, False) else value, count) for value, count in answer.chosen)
        return listed([f"{value} {count}" for value, count in told], OPTIONS_SHOWN)
    return f"mean {'probability' if answer.type == 'predicate' else 'level'} {number(answer.mean, 3)}"


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
