"""The application with all verbs."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from geval_local import __version__
from geval_local.cli.commands import judges, metrics
from geval_local.cli.commands.bias import bias
from geval_local.cli.commands.cache import cache
from geval_local.cli.commands.calibrate import calibrate
from geval_local.cli.commands.compare import compare
from geval_local.cli.commands.decide import decide
from geval_local.cli.commands.export import export, merge
from geval_local.cli.commands.init import init
from geval_local.cli.commands.jury import jury
from geval_local.cli.commands.meta_eval import meta_eval
from geval_local.cli.commands.pairs import pairs, preferences
from geval_local.cli.commands.reasons import reasons
from geval_local.cli.commands.report import report
from geval_local.cli.commands.resume import resume
from geval_local.cli.commands.run import run
from geval_local.cli.commands.score import score
from geval_local.cli.commands.serve import serve
from geval_local.cli.commands.steps import steps
from geval_local.cli.ending import EXIT_CODES, Verbs
from geval_local.cli.output.console import show_log

ABOUT = "Score texts with G-Eval on local language models: exact label probabilities, offline."

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command()(score)
app.command()(decide)
app.command()(resume)
app.command()(init)
app.command()(run)
app.command()(merge)
app.command()(steps)
app.command()(reasons)
app.command()(report)
app.command()(export)
app.command("meta-eval")(meta_eval)
app.command()(compare)
app.command()(pairs)
app.command()(preferences)
app.command()(bias)
app.command()(calibrate)
app.command()(jury)
app.command()(serve)
app.add_typer(metrics.app, name="metrics")
app.add_typer(judges.app, name="judges")
app.command()(cache)


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
) -> None:
    show_log()
    if context.invoked_subcommand != "judges":
        _go_offline()


@judges.app.callback()
def _start_judges(context: typer.Context) -> None:
    """List, check and fetch judges. Fetching is the only thing that uses the network."""
    if context.invoked_subcommand != "fetch":
        _go_offline()


def _go_offline() -> None:
    """Set the hub client to offline mode, before anything imports it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
