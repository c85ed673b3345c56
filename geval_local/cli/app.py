"""The application with all verbs."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from geval_local import __version__
from geval_local.cli.commands import analyses, judges, metrics, pairs, runs, score
from geval_local.cli.commands.evaluations import gate, init, run
from geval_local.cli.commands.serve import serve
from geval_local.cli.ending import EXIT_CODES, VERBOSE, Verbs
from geval_local.cli.options import spread
from geval_local.cli.output.console import set_verb, show_details, show_log
from geval_local.errors import ConfigurationError
from geval_local.options import FORMER, ON, SHOWN

ABOUT = "Score texts with G-Eval on local language models: exact label probabilities, offline."

#: Verb -> its function, and the examples at the end of its help.
VERBS: dict[str, tuple[Any, ...]] = {
    "score": (
        score.score,
        "geval-local score chats.csv -m assistant/helpfulness --field output='bot reply' -o scored.csv",
        "geval-local score chats.csv -m rag/faithfulness -j model.gguf --fail-under 3.5",
    ),
    "decide": (score.decide, "geval-local decide tickets.jsonl -q questions.yaml --state message -o decisions.csv"),
    "resume": (runs.resume, "geval-local resume runs/first"),
    "init": (init, "geval-local init chats.csv"),
    "run": (run, "geval-local run evaluation.yaml --against last"),
    "merge": (runs.merge, "geval-local merge runs/big -o scores.jsonl"),
    "steps": (metrics.steps, "geval-local steps my_metric.yaml -j qwen2.5-7b"),
    "reasons": (
        runs.reasons,
        "geval-local reasons scored.csv -m assistant/helpfulness --lowest 10 -o reasons.jsonl",
    ),
    "report": (
        runs.report,
        "geval-local report scored.csv -o report.html",
        "geval-local report runs/a runs/b -o site/",
    ),
    "export": (runs.export, "geval-local export runs/first --mlflow"),
    "meta-eval": (analyses.meta_eval, "geval-local meta-eval scored.jsonl --human rating"),
    "gate": (gate, "geval-local gate runs/new runs/old --by language"),
    "compare": (analyses.compare, "geval-local compare runs/new runs/old"),
    "estimate": (analyses.estimate, "geval-local estimate scored.jsonl --human rating --share 4"),
    "pairs": (pairs.pairs, "geval-local pairs outputs.jsonl -m summarization/coherence --group-by doc -o pairs.jsonl"),
    "rank": (pairs.rank, "geval-local rank pairs.jsonl"),
    "bias": (analyses.bias, "geval-local bias scored.jsonl --side system_id"),
    "calibrate": (analyses.calibrate, "geval-local calibrate scored.jsonl --human rating -o calibration.json"),
    "jury": (analyses.jury, "geval-local jury runs/a runs/b -o jury.jsonl"),
    "serve": (serve, "geval-local serve -j nano --port 8000"),
    "cache": (runs.cache, "geval-local cache"),
    "metrics list": (metrics.list_metrics, "geval-local metrics list"),
    "metrics show": (metrics.show, "geval-local metrics show rag/faithfulness"),
    "metrics validate": (metrics.validate, "geval-local metrics validate politeness.yaml"),
    "metrics new": (metrics.new, "geval-local metrics new support/politeness -o politeness.yaml"),
    "metrics examples": (
        metrics.examples,
        "geval-local metrics examples mine.yaml --from rated.jsonl --human rating -n 6",
        "geval-local metrics examples rag/faithfulness --from rated.jsonl --human rating -o mine.yaml",
    ),
    "judges list": (judges.list_judges, "geval-local judges list"),
    "judges check": (judges.check, "geval-local judges check nano"),
    "judges fetch": (judges.fetch, "geval-local judges fetch qwen2.5-0.5b"),
}


#: Verb -> options that it had, and the verb that has them now.
MOVED = {"compare": (("--fail-if-worse", "--margin", "--sequential", "--by", "--summary", "--junit"), "gate NEW OLD")}


#: Headings of the verbs in the program's help.
PANELS = {
    "Score": ("score", "pairs", "decide", "init", "run", "resume", "merge"),
    "Look at scores": ("report", "compare", "gate", "rank", "reasons"),
    "Is the judge right?": ("meta-eval", "estimate", "calibrate", "bias", "jury"),
    "Upkeep": ("metrics", "steps", "judges", "serve", "export", "cache"),
}


_PANEL_OF = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}


#: Shows the help of a verb with all of its options; one with few shows them anyway.
HELP_ALL, FEW = "--help-all", 20


def _place(parameter: Any) -> int:
    """Place a parameter in the help: arguments and a verb's own options, the headings that are shown, the rest."""
    panel = getattr(parameter, "rich_help_panel", None)
    return -1 if panel is None else SHOWN.index(panel) if panel in SHOWN else len(SHOWN)


class Verb(TyperCommand):
    """A verb: its help is one line per paragraph, flags show no type, and what few people need is in ``--help-all``."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")
        self.params.sort(key=_place)
        #: Options that the help leaves out.
        self.further = [one for one in self.params if _place(one) == len(SHOWN)] if len(self.params) > FEW else []
        for parameter in self.params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help, without the options that few people need."""
        epilog, more = self.epilog, f"{ctx.command_path} {HELP_ALL} shows {len(self.further)} more options."
        try:
            for one in self.further:
                one.hidden = True  # type: ignore[attr-defined]  # an option, since it has a panel
            self.epilog = f"{more}\n\n{epilog}" if self.further else epilog
            super().format_help(ctx, formatter)
        finally:
            for one in self.further:
                one.hidden = False  # type: ignore[attr-defined]
            self.epilog = epilog

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options, some with several values; former ones are refused by what takes their place."""
        set_verb(self.params, str(ctx.find_root().obj))
        if HELP_ALL in (args[: args.index("--")] if "--" in args else args):
            super().format_help(ctx, ctx.make_formatter())
            ctx.exit()
        given = {arg.partition("=")[0] for arg in args}
        for name, now in FORMER.items():
            if (option := f"--{name.replace('_', '-')}") in given:
                raise ConfigurationError(f"{option} is an option no more", hint=now)
        moved, verb = MOVED.get(str(self.name), ((), ""))
        for option in moved:
            if option in given:
                raise ConfigurationError(
                    f"`{self.name}` has no {option}: the gate is a verb of its own",
                    hint=f"geval-local {verb}" + (" --not-worse X" if option == "--margin" else ""),
                )
        return super().parse_args(ctx, spread(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        if any("--output" in one.opts and str(ctx.params.get(one.name)) == "-" for one in self.params):
            from geval_local.runs.target import checked_place

            checked_place("-")
        return super().invoke(ctx)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help without a type, like other flags."""
        option: Any = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
            if self.further:
                option.rich_help_panel = ON
        return option


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
groups = {
    "": app,
    "metrics": typer.Typer(no_args_is_help=True, help="List, show, validate and start metrics."),
    "judges": typer.Typer(no_args_is_help=True),
}
for name, group in groups.items():
    if name:
        app.add_typer(group, name=name, rich_help_panel=_PANEL_OF[name])
for path, (verb, *examples) in sorted(VERBS.items(), key=lambda one: [*_PANEL_OF].index(one[0].split()[0])):
    of, _, name = path.rpartition(" ")
    groups[of].command(
        name,
        cls=Verb,
        epilog="\n\n".join(["Examples:", *(f"  {line}" for line in examples)]),
        rich_help_panel=None if of else _PANEL_OF[name],
    )(verb)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"geval-local {__version__}")
        raise typer.Exit


@app.callback(help=f"{ABOUT}\n\n{EXIT_CODES}")
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from; also allowed after the verb.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(*VERBOSE, help="Also print engine, precision and saved tokens; also allowed after the verb."),
    ] = False,
) -> None:
    show_log()
    show_details(verbose)
    if context.invoked_subcommand != "judges":
        _go_offline()


@groups["judges"].callback()
def _start_judges(context: typer.Context) -> None:
    """List, check and fetch judges. Fetching is the only thing that uses the network."""
    if context.invoked_subcommand != "fetch":
        _go_offline()


def _go_offline() -> None:
    """Set the hub client to offline mode, before anything imports it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
