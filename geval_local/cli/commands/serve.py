"""``geval-local serve``: local judges over HTTP."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from geval_local.cli.options import takes_options
from geval_local.errors import ConfigurationError
from geval_local.options import JudgeOptions
from geval_local.serve.settings import ServeSettings, bound, named

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local.serve")

INSTALL = "Install it with `pip install 'geval-local[serve]'`."


@takes_options()
def serve(
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="json: one object a line on stderr, for machines.")
    ] = "text",
    *,
    settings: ServeSettings,
    judges: list[JudgeOptions],
) -> None:
    """Serve judges to the clients of /v1/decisions, /v1/systemone and /v1/score.

    The server listens at once. Until libraries and judges are loaded, /ready and all routes that need a judge answer
    503. On Ctrl-C or SIGTERM it accepts no more requests and finishes those in progress.
    """
    try:
        import uvicorn

        from geval_local.serve.app import create_app
        from geval_local.serve.connections import server_config
    except ImportError as error:
        raise ConfigurationError(f"serving needs {error.name}, of the `serve` extra", hint=INSTALL) from error
    if log_format == "json":
        from geval_local.serve.watch import log_json

        log_json()
    choices = named(judges)
    listening = bound(settings.host, settings.port)
    port = listening.getsockname()[1]
    failures: list[BaseException] = []

    def on_loaded(error: BaseException | None) -> None:
        if error is None and not server.should_exit:
            logger.info("serving %s on http://%s:%d (the routes: /docs)", ", ".join(choices), settings.host, port)
        if error is not None:
            failures.append(error)
            server.should_exit = True

    loads = {name: partial(_load, name, choice) for name, choice in choices.items()}
    server = uvicorn.Server(server_config(create_app(loads, settings, on_loaded), settings))
    # uvicorn raises the signal again after finishing all requests: this is the requested stop.
    with listening, contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    if failures:
        raise failures[0]
    logger.info("stopped; all requests in progress are finished")


def _load(name: str, choice: JudgeOptions) -> Judge:
    logger.info("loading %s ...", name)
    from geval_local.judge.judge import Judge

    judge = Judge.load(choice)
    logger.info("engine: %s", judge.engine_report.text)
    return judge
