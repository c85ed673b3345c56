"""The application: the verbs put together, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from geval_local import __version__
from geval_local.cli.commands import judges, metrics
from geval_local.cli.commands.bias import bias
from geval_local.cli.commands.cache import cache
from geval_local.cli.commands.calibrate import calibrate
from geval_local.cli.commands.compare import compare
from geval_local.cli.commands.jury import jury
from geval_local.cli.commands.meta_eval import meta_eval
from geval_local.cli.commands.report import report
from geval_local.cli.commands.resume import resume
from geval_local.cli.commands.score import score
from geval_local.cli.commands.steps import steps
from geval_local.cli.output.console import note, show_error, show_log
from geval_local.cli.stopping import RunStopped
from geval_local.errors import GevalError

__all__ = ["app"]

EXIT_CONFIGURATION = 2
EXIT_INTERRUPTED = 3


class _Group(TyperGroup):
    """Turns the package's errors and an interruption into messages and exit codes; all others are defects."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = shlex.join(["geval-local", *args])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GevalError as error:
            show_error(error)
            raise typer.Exit(EXIT_CONFIGURATION) from error
        except KeyboardInterrupt as stop:
            if isinstance(stop, RunStopped):
                note(f"interrupted; what is finished is kept. Go on with:\n  {stop.command}")
                raise typer.Exit(EXIT_INTERRUPTED) from None
            note(f"interrupted; run it again with:\n  {ctx.obj}")
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command()(score)
app.command()(resume)
app.command()(steps)
app.command()(report)
app.command("meta-eval")(meta_eval)
app.command()(compare)
app.command()(bias)
app.command()(calibrate)
app.command()(jury)
app.add_typer(metrics.app, name="metrics")
app.add_typer(judges.app, name="judges")
app.command()(cache)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"geval-local {__version__}")
        raise typer.Exit


@app.callback()
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Score texts with G-Eval on local language models: exact label probabilities, offline.

    Exit codes: 0 done, 1 a gate failed (--fail-under, --max-unscored), 2 usage or configuration, 3 interrupted.
    """
    show_log()
    if context.invoked_subcommand != "judges":
        _go_offline()


@judges.app.callback()
def _start_judges(context: typer.Context) -> None:
    """List, check and fetch judges. Fetching is the only thing that uses the network."""
    if context.invoked_subcommand != "fetch":
        _go_offline()


def _go_offline() -> None:
    """Tell the hub client, before anything imports it, that there is no network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
