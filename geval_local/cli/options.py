"""Options of verbs: made from `geval_local.options`, options that several verbs share, and shell completion."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from geval_local.errors import ConfigurationError, OutputError
from geval_local.fields import nearest, read_mapping
from geval_local.options import ASKED, FIGURES, GATES, JUDGE, OUT, JudgeOptions, Options, RunOptions
from geval_local.yaml_model import KEEP_PROBLEMS, alternatives, problem_in_words

if TYPE_CHECKING:
    from geval_local.analysis.gates import Gate, GateOutcome
    from geval_local.metric import Metric
    from geval_local.score import Estimator
    from geval_local.summary import Summary

_Found = TypeVar("_Found")


# --- what the shell offers --------------------------------------------------------------------------------------------


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
    """List directories, and files of some endings, that complete a path."""
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


# --- groups of options ------------------------------------------------------------------------------------------------

_COMPLETIONS = {"name": complete_judge}


def takes_options(
    *only: str, judge_without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace each parameter of a verb that is a group by the group's single options.

    A group is a class of `Options`: its fields with a description are options, and they come last.
    ``list[JudgeOptions]`` takes one ``--judge`` for each judge; the other options are shared. A dataclass whose fields
    are declared like options of a verb is a group too; its options keep the parameter's place. `only` names the options
    that the verb takes of `RunOptions` and of `AnalysisOptions`.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(verb)
        own: list[inspect.Parameter] = []
        added: list[inspect.Parameter] = []
        # Parameter of the verb -> the names of its options, and the function that builds the group.
        groups: dict[str, tuple[list[str], Callable[[dict[str, Any]], Any]]] = {}
        for parameter in inspect.signature(verb, eval_str=True).parameters.values():
            kind = hints.get(parameter.name)
            if kind in (JudgeOptions, list[JudgeOptions]):
                many = kind != JudgeOptions
                names = [name for name in JudgeOptions.model_fields if name not in judge_without]
                added += [_parameter(JudgeOptions, name, many=many and name == "name") for name in names]
                groups[parameter.name] = names, functools.partial(_judges, many=many)
            elif isinstance(kind, type) and issubclass(kind, Options):
                described = [name for name, field in kind.model_fields.items() if field.description]
                names = [name for name in described if kind is not RunOptions or not only or name in only]
                added += [_parameter(kind, name) for name in names]
                groups[parameter.name] = names, functools.partial(_checked, kind)
            elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
                members = inspect.signature(kind, eval_str=True).parameters
                names = list(only if kind is AnalysisOptions else members)
                own += [members[name].replace(kind=parameter.kind) for name in names]
                groups[parameter.name] = names, functools.partial(lambda group, values: group(**values), kind)
            else:
                own.append(parameter)

        @functools.wraps(verb)
        def wrapped(*given: Any, **named: Any) -> None:
            for parameter, (names, make) in groups.items():
                named[parameter] = make({name: named.pop(name) for name in names})
            verb(*given, **named)

        # Typer builds the command line from these two.
        wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        return wrapped

    return decorate


def _parameter(group: type[Options], name: str, *, many: bool = False) -> inspect.Parameter:
    """Return one option as a parameter for typer."""
    kind = _kind(group.model_fields[name])
    if kind is bool:
        shown: Any = bool
    elif many or get_origin(kind) in (list, dict):
        shown = list[str] | None
    else:
        shown = (kind if kind in (int, float, Path) else str) | None
    default = False if kind is bool else group.model_fields[name].default if get_origin(kind) is Literal else None
    annotation = Annotated[shown, option_of(group, name, many=many)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option_of(group: type[Options], name: str, *, many: bool = False) -> Any:
    """Declare one option of a group for typer; of `many`, it may be repeated."""
    field, flag = group.model_fields[name], group.flag(name)
    kind, text = _kind(field), str(field.description)
    if many:
        text = text.replace(" Absent:", " May be repeated, and results are then named metric@judge. Absent:")
    # Typer only shows and completes choices; the group checks them and proposes a close one.
    choices = [str(one) for one in get_args(kind)] if get_origin(kind) is Literal else []
    return typer.Option(
        *flag.names,
        help=text,
        metavar=flag.metavar or (f"[{'|'.join(choices)}]" if choices else None),
        rich_help_panel=flag.panel,
        show_default=False,
        autocompletion=_COMPLETIONS.get(name)
        or ((lambda incomplete: [one for one in choices if one.startswith(incomplete)]) if choices else None),
    )


_DATA = re.compile(r"\.(jsonl|ndjson|json|csv|tsv|parquet|xlsx|gz)$|://|[*?]", re.IGNORECASE)


def spread(arguments: Sequence[str]) -> list[str]:
    """Repeat an open option for each of its values: ``--system-columns A B C`` ends at an option or a file."""
    flags = map(RunOptions.flag, RunOptions.model_fields)
    is_open = {option for flag in flags if flag.is_open for option in flag.names}
    found, option, taken = list[str](), "", 0
    for one in arguments:
        is_value = option and not one.startswith("-") and (taken < 2 or not (_DATA.search(one) or os.path.exists(one)))
        if is_value:
            found += [option, one] if taken else [one]
            taken += 1
            continue
        option, taken = one if one in is_open else "", 0
        found.append(one)
    return found


def _kind(field: FieldInfo) -> Any:
    """Return the first type of a field that is not None."""
    return next(kind for kind in alternatives(field.annotation) if kind is not type(None))


def _checked(group: type[Options], values: Mapping[str, Any], whose: str | None = None) -> Any:
    """Build a group from the given values; errors name the options as they are written."""
    given = {name: value for name, value in values.items() if value is not None and value is not False and value != []}
    for name in given:
        if name in group.model_fields and group.flag(name).is_negative:
            given[name] = False
    try:
        return TypeAdapter(group).validate_python(given, context=KEEP_PROBLEMS)
    except ValidationError as error:
        told = []
        for problem in error.errors():
            text, _ = problem_in_words(problem, group)
            name = str(problem["loc"][0]) if problem["loc"] else ""
            text = text.removeprefix(f"{name}: ")
            option = name.replace("_", "-") if whose else group.flag(name).names[0]
            told.append(f"--judge {whose!r}: {option}: {text}" if whose else f"{option}: {text}")
        raise ConfigurationError("\n".join(told)) from None


def _judges(values: Mapping[str, Any], *, many: bool) -> JudgeOptions | list[JudgeOptions]:
    return [_judge(one, values) for one in values["name"] or [None]] if many else _judge(values.get("name"), values)


def _judge(text: str | None, values: Mapping[str, Any]) -> JudgeOptions:
    """Build a judge from ``NAME,KEY=VALUE,...`` and the shared options; without a text, the default judge."""
    shared: JudgeOptions = _checked(JudgeOptions, {**values, "name": None})
    if text is None:
        return shared
    name, own = split_judge(text)
    known = {key.replace("_", "-"): key for key in values if key not in ("name", "models_file")}
    for key in own:
        if key not in known:
            raise ConfigurationError(
                f"--judge {text!r}: there is no option {key!r}{nearest(key, known)}",
                hint=f"Options of one judge: {', '.join(known)}.",
            )
    given = {known[key]: value for key, value in own.items()}
    checked = _checked(JudgeOptions, given, whose=text)
    return shared.model_copy(update={"name": name, **{key: getattr(checked, key) for key in given}})


def split_judge(text: str) -> tuple[str, dict[str, str]]:
    """Split ``NAME,KEY=VALUE,...`` into the name and its options; names and values may contain commas."""
    name, *own = re.split(r",(?=[^,=]+=)", text)
    options: dict[str, str] = {}
    for part in own:
        key, value = (half.strip() for half in part.split("=", 1))
        if key in options:
            raise ConfigurationError(f"--judge {text!r}: {key} is given twice")
        options[key] = value
    return name, options


# --- options of several verbs -----------------------------------------------------------------------------------------


def here(given: str) -> Path:
    """Return a file of results or ratings, or a run, on this machine: of an address, a copy."""
    from geval_local.runs.addresses import local_results

    return local_results(given)


Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        metavar="NAME",
        help="A preset or a metric's YAML file; may be repeated.",
        rich_help_panel=JUDGE,
        autocompletion=complete_metric,
    ),
]
JudgeNames = Annotated[list[str] | None, option_of(JudgeOptions, "name", many=True)]
Fields = Annotated[list[str] | None, option_of(RunOptions, "fields")]
System = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="Field that names the system. Absent: system_id or system, if there is one, or one a file.",
    ),
]
RetryErrors = Annotated[bool, option_of(RunOptions, "retry_errors")]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="A .jsonl, .csv or .parquet file, or a directory for the run, NAME/: a new or an empty one, or "
        "that of the same run. Also an address, such as s3://BUCKET/scores.jsonl.",
        rich_help_panel=OUT,
    ),
]
MaxUnscored = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Exit with 1 if more rows than N, or than N%, are unscored. Absent: 10% where a mean is checked.",
        rich_help_panel=GATES,
    ),
]


@dataclasses.dataclass(frozen=True)
class Gates:
    """Limits for every metric of a run."""

    fail_under: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Exit with 1 if a metric's mean, on its own scale, is below X.", rich_help_panel=OUT
        ),
    ] = None
    fail_over: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Exit with 1 if the mean is above X; of metrics whose low scores are good.",
            rich_help_panel=GATES,
        ),
    ] = None
    max_unscored: MaxUnscored = None
    label_mass: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            max=1,
            help="Exit with 1 if a metric's mean label mass is below X; 0 allows any. Absent: 0.1 where a threshold or "
            "a mean is checked.",
            rich_help_panel=GATES,
        ),
    ] = None

    fail_slice_under: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Exit with 1 if a metric's mean in a slice of --by is below X.", rich_help_panel=GATES
        ),
    ] = None

    def read(self, metrics: Sequence[Metric] = (), by: Sequence[str] = ()) -> list[Gate]:
        """Read the gates: ``--fail-under 3.5``, ``--max-unscored 5`` or ``2%``, ``--label-mass 0.5``.

        `by` are the columns of slices. A limit outside a metric's scale, or that its good means miss, is refused.
        """
        from geval_local.analysis.gates import Gate, Limit, parse_limit

        if self.fail_slice_under is not None and not by:
            raise ConfigurationError("--fail-slice-under limits slices", hint="Name their column: --by COLUMN.")
        gates = [] if self.label_mass is None else [Gate("label_mass", Limit(">=", self.label_mass, False))]
        for option, sign, value, columns in (
            ("--fail-under", ">=", self.fail_under, [None]),
            ("--fail-over", "<=", self.fail_over, [None]),
            ("--fail-slice-under", ">=", self.fail_slice_under, by),
        ):
            own = [] if value is None else [Gate("mean", Limit(sign, value, False), by=column) for column in columns]
            for metric in metrics:
                metric.check_on_scale(value, option)
                if any(gate.misses_good(metric.direction) for gate in own):
                    other = "--fail-over" if sign == ">=" else "--fail-under"
                    raise ConfigurationError(
                        f"{option} {value:g} would fail the good means of {metric.name}, whose {metric.better} scores "
                        "are good",
                        hint=f"Write {other} X, or a key `better` into the metric's file.",
                    )
            gates += own
        if self.max_unscored is None:
            return gates
        try:
            return [*gates, Gate("unscored", parse_limit("unscored", f"<= {self.max_unscored}"))]
        except ValueError:
            raise ConfigurationError(
                f"--max-unscored {self.max_unscored!r} is not a limit",
                hint="Give a count such as 5, or a share such as 2%.",
            ) from None


@dataclasses.dataclass(frozen=True)
class GateReports:
    """Files in which a pipeline reads the results of the gates."""

    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Append the gates to FILE as Markdown, a file of its own or "$GITHUB_STEP_SUMMARY".',
            rich_help_panel=GATES,
        ),
    ] = None
    junit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the gates to FILE as JUnit XML, one test case for each.", rich_help_panel=GATES
        ),
    ] = None

    def begin(self, title: str) -> None:
        """Before anything is scored, check that both files can be written, and mark what an earlier run wrote."""
        from geval_local.evaluation.gate_reports import begin

        begin(self.summary, self.junit, title)

    def write(self, found: Sequence[GateOutcome], title: str, summaries: Mapping[str, Sequence[Summary]] = {}) -> None:
        """Write both; see `geval_local.evaluation.gate_reports`."""
        from geval_local.evaluation.gate_reports import write_junit, write_markdown

        if self.summary is not None:
            write_markdown(self.summary, found, title, summaries)
        if self.junit is not None:
            write_junit(self.junit, found, title)


Lowest = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        max=100,
        help="Show the N worst rows: the lowest scores, or the highest where low is better.",
        rich_help_panel=OUT,
    ),
]
NoSteps = Annotated[
    bool, typer.Option("--no-steps", help="Leave the evaluation steps out of the form.", rich_help_panel=ASKED)
]
ModelsFile = Annotated[Path | None, option_of(JudgeOptions, "models_file")]
By = Annotated[list[str] | None, option_of(RunOptions, "by")]
Results = Annotated[
    Path, typer.Argument(parser=here, metavar="FILE", help="A result file of `score`, or a run directory.")
]

_HUMAN = typer.Option(
    metavar="[METRIC=]FIELD",
    help="Field of the human rating, or a dotted path to it; for several metrics METRIC=FIELD, once for each.",
)
Rating = Annotated[list[str], _HUMAN]
OneMetric = Annotated[
    str | None, typer.Option("--metric", "-m", metavar="NAME", help="Which metric, where there are several.")
]


@dataclasses.dataclass(frozen=True)
class AnalysisOptions:
    """Options of analyses, each declared once, by its name in Python; Python's default holds where one is absent."""

    metric: OneMetric = None
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", metavar="NAME", help="Only this metric; may be repeated. Absent: all shared."),
    ] = None
    human: Annotated[list[str] | None, _HUMAN] = None
    raters: Annotated[
        list[str] | None,
        typer.Option("--rater", metavar="FIELD", help="Field of one person's rating; to be named twice or more."),
    ] = None
    fields: Fields = None
    group_by: Annotated[str | None, option_of(RunOptions, "group_by")] = None
    by: By = None
    system: System = None
    system_columns: Annotated[list[str] | None, option_of(RunOptions, "system_columns")] = None
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="Compare every system with this one only.")] = (
        None
    )
    tie: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, help="Documents whose scores differ by no more are counted as ties."),
    ] = None
    across: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Allowed differences: judge, steps, estimator, style, ..., versions, input, or any; may be repeated.",
        ),
    ] = None
    estimator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Estimate the scores anew from the stored distributions: exact, mode or median."
        ),
    ] = None
    estimators: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            metavar="NAME",
            help="Another estimate from the stored distributions beside the scores: mode, median, exact; may be "
            "repeated.",
            rich_help_panel=FIGURES,
        ),
    ] = None
    level: Annotated[
        Literal["summary", "pooled", "partial", "system"] | None,
        typer.Option(
            metavar="LEVEL",
            help="summary (within documents), pooled (over all rows), partial (over all rows, given their systems) or "
            "system. Absent: summary where rows share a document, else pooled.",
        ),
    ] = None
    coefficient: Annotated[
        Literal["pearson", "spearman", "kendall", "accuracy", "auc"] | None,
        typer.Option(help="Coefficient to compare. Absent: spearman; of a benchmark the paper's.", show_default=False),
    ] = None
    coefficients: Annotated[
        Literal["one", "all"] | None,
        typer.Option(
            help="Coefficients in tables: the one that is compared, or all. Absent: one.",
            rich_help_panel=FIGURES,
        ),
    ] = None
    target: Annotated[
        Literal["documents", "systems", "both"] | None,
        typer.Option(
            help="Target of intervals and tests: new documents from these systems, new systems, or both. Absent: "
            "documents; both at system level.",
            rich_help_panel=FIGURES,
            show_default=False,
        ),
    ] = None
    largest: Annotated[int | None, typer.Option(metavar="N", min=0, help="Disagreements to list. Absent: 10.")] = None
    every_pair: Annotated[bool, typer.Option("--every-pair", help="Also show every pair of systems.")] = False
    between: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Two sides to compare. Absent: both, or each with the others."),
    ] = None
    not_worse: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            help="Fail unless the scores are shown not to be lower by X points or more. Absent: if a drop is shown.",
        ),
    ] = None
    sequential: Annotated[
        bool,
        typer.Option(
            "--sequential",
            help="The runs grow and you look at them again and again; the error holds for all looks together.",
        ),
    ] = False
    method: Annotated[
        Literal["both", "temperature", "isotonic"] | None,
        typer.Option(
            help="A temperature on the label distribution, a rising map of scores, or (absent) one after the other."
        ),
    ] = None
    folds: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Folds of documents, which are never split. Absent: 5.")
    ] = None
    seed: Annotated[int | None, typer.Option(metavar="SEED", min=0, help="Seed of all draws. Absent: 0.")] = None

    def only(self, *names: str) -> AnalysisOptions:
        """Return some of the options."""
        return AnalysisOptions(**{name: getattr(self, name) for name in names})


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that this tool did not write.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object to stdout, and nothing else there.", rich_help_panel=OUT),
]


def shown_name(files: Sequence[str | Path]) -> str:
    """Return the name of the input in messages."""
    from geval_local.io.places import file_at

    return file_at(files[0]).name if len(files) == 1 else "the files"


def read_estimators(given: Sequence[str] | None, *, others: bool) -> tuple[Estimator, ...]:
    """Read ``--estimator``; `others` puts the usual ablations first. Repeated ones count once."""
    from geval_local.analysis.results import ABLATIONS
    from geval_local.score import Estimator

    return tuple(dict.fromkeys([*(ABLATIONS if others else ()), *map(Estimator.parse, given or ())]))


@dataclasses.dataclass(frozen=True)
class RatedOptions:
    """Metrics by name, or a prompt file as the metric."""

    metric: Metrics = None
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A published prompt with {{placeholders}}, used verbatim.", rich_help_panel=ASKED
        ),
    ] = None
    scale: Annotated[
        str | None, typer.Option(help="The scale of --prompt-file, such as 1-5.", rich_help_panel=ASKED)
    ] = None


def chosen_metrics(rated: RatedOptions, *, no_steps: bool) -> list[Metric]:
    """Load the named metrics, or read the prompt file."""
    from geval_local.io.input_checks import load_metrics
    from geval_local.prompt import metric_from_prompt_file

    names, prompt_file, scale = rated.metric or [], rated.prompt_file, rated.scale
    if prompt_file is None:
        if scale is not None:
            raise ConfigurationError("--scale belongs to --prompt-file; a metric brings its own scale")
        if not names:
            raise ConfigurationError(
                "no metric is named", hint="Add --metric NAME; `geval-local metrics list` shows the names."
            )
        metrics = load_metrics(names)
    elif names or scale is None or no_steps:
        raise ConfigurationError(
            "--prompt-file is a metric by itself: it goes with --scale, and with neither --metric nor --no-steps",
            hint=f"geval-local score FILE --prompt-file {prompt_file} --scale 1-5",
        )
    else:
        metrics = [metric_from_prompt_file(prompt_file, scale)]
    return [metric.with_steps(()) for metric in metrics] if no_steps else metrics


def warn_of_scales(metrics: Sequence[Metric]) -> None:
    """Warn of metrics whose words name another scale than their own."""
    from geval_local.cli.output.console import note
    from geval_local.scale_words import scale_doubts

    for metric in metrics:
        for doubt in scale_doubts(metric):
            note(f"warning: {doubt}", "yellow")


def check_new_yaml(output: Path, what: str) -> None:
    """Reject a YAML file that cannot be written, or exists: files that users edit are never replaced."""
    if output.suffix not in (".yaml", ".yml"):
        raise OutputError(f"cannot write {output}: {what} ends in .yaml or .yml")
    if output.is_symlink() or output.exists():
        raise OutputError(f"{output} is there already", hint="Choose another name with -o; nothing was changed.")
    if not output.parent.is_dir():
        raise OutputError(f"cannot write {output}: there is no directory {output.parent}")


def analyse(find: Callable[..., _Found], *given: Any, asked: AnalysisOptions, **options: Any) -> _Found:
    """Run an analysis with the given options; it has its own defaults for the others."""
    named = {name: value for name, value in vars(asked).items() if value is not None and value is not False}
    if "fields" in named:
        named["fields"] = read_mapping(named["fields"])
    return find(*given, **named, **{name: value for name, value in options.items() if value is not None})
