"""The ASGI application: routes around one batcher per judge, with keys and limits; request texts are never logged.

`create_app` creates it; ``geval-local serve`` runs it on uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import html
import json
import logging
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from geval_local import __version__
from geval_local.errors import BusyError, GevalError
from geval_local.judge import Judge
from geval_local.questions.answer import Decision
from geval_local.questions.form import order_count
from geval_local.questions.question import Question
from geval_local.serve import openai, scores, systemone
from geval_local.serve.bodies import HeldBytes, read_body, read_values, unpack
from geval_local.serve.counters import CONTENT_TYPE, Counters
from geval_local.serve.judges import Load, ServedJudges
from geval_local.serve.refusals import Refused, openai_body, system_one_body
from geval_local.serve.settings import ServeSettings, is_loopback

__all__ = ["ALIAS", "create_app"]

logger = logging.getLogger("geval_local.serve")

#: The default model name of typesafe-sdk and DeepEval; here it means the first judge.
ALIAS = "jev-latest"
#: Bodies of at least this many bytes are parsed in another thread, so that other requests are not delayed.
LARGE = 64 << 10
#: Limit for all bodies together, as a multiple of the limit for one.
HELD = 16

#: Of one call: prompts, and characters of questions that are shown in several orders.
MOST_PROMPTS = 4096
MOST_CHARACTERS = 32 << 20

_T = TypeVar("_T")
_Route = Callable[[Request], Awaitable[Response]]
_Reader = Callable[[Mapping[str, Any]], "tuple[Any, list[Question], int | None]"]


def create_app(
    judges: Mapping[str, Judge | Load],
    settings: ServeSettings | None = None,
    on_loaded: Callable[[BaseException | None], None] = lambda error: None,
) -> FastAPI:
    """Create the application.

    Parameters
    ----------
    judges : mapping of str to (Judge or Load)
        Name -> judge, or a function that loads it once the application has started; at least one, and the first is
        the default. Until all are loaded, requests get 503 with Retry-After. The application owns them from now on:
        each is used by its own thread until the application shuts down.
    settings : ServeSettings, optional
        API key and limits.
    on_loaded : callable, optional
        Called once all judges are loaded, or with the error that one raised; from the thread that loads them.

    Returns
    -------
    FastAPI
    """
    server = _Server(judges, settings or ServeSettings(), on_loaded)
    app = FastAPI(
        title="geval-local",
        version=__version__,
        description="Decisions and scores of local language models: exact label probabilities.",
        lifespan=server.lifespan,
        docs_url=None,
        redoc_url=None,
        # A redirect would be told to the host that the client names.
        redirect_slashes=False,
    )
    for path, method, route, summary in server.routes():
        app.add_api_route(
            path, route, methods=[method], summary=summary, response_model=None, include_in_schema=path != "/docs"
        )
    app.add_api_route("/docs", lambda: HTMLResponse(_page(app)), include_in_schema=False)
    app.add_exception_handler(HTTPException, _http_refusal)
    app.add_middleware(_Watch, server=server)
    app.state.server = server
    return app


class _Server:
    def __init__(
        self,
        judges: Mapping[str, Judge | Load],
        settings: ServeSettings,
        on_loaded: Callable[[BaseException | None], None],
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.served = ServedJudges(judges, settings.queue, self.counters, on_loaded)
        self.started = datetime.now(timezone.utc)
        self.is_closing = False
        self.body_bytes = HeldBytes(HELD * settings.max_body)
        key = settings.api_key
        self._key = None if key is None else hashlib.sha256(key.encode()).digest()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.served.start()
        try:
            yield
        finally:
            self.is_closing = True
            await run_in_threadpool(self.served.close)

    def routes(self) -> list[tuple[str, str, _Route, str]]:
        return [
            ("/v1/decisions", "POST", self._judged(self._decisions, openai_body), "Questions, in OpenAI's dialect."),
            ("/v1/systemone", "POST", self._judged(self._system_one, system_one_body), "Questions, in System One's."),
            ("/v1/score", "POST", self._judged(self._score, openai_body), "Rows scored on a metric, with signature."),
            ("/v1/models", "GET", self._guard(self._models, openai_body), "The judges."),
            ("/metrics", "GET", self._guard(self._metrics, openai_body), "Counters for Prometheus."),
            ("/health", "GET", self._health, "Whether the process lives; needs no key."),
            ("/ready", "GET", self._ready, "Whether requests are taken; needs no key."),
        ]

    # --- routes -----------------------------------------------------------------------------------------------------

    async def _decisions(self, request: Request) -> Response:
        body, large = await self._body(request)
        name = self._judge_name(body, openai_body)
        decision = await self._decide(request, name, large, openai.read_request, body)
        answer = openai.write_answer(decision, name)
        self.counters.answered(name, len(decision), decision.tokens)
        return JSONResponse(answer)

    async def _system_one(self, request: Request) -> Response:
        body, large = await self._body(request)
        name = self._judge_name(body, system_one_body)
        decision = await self._decide(request, name, large, systemone.read_request, body)
        answer = systemone.write_answer(decision, name, body)
        self.counters.answered(name, len(decision), decision.tokens)
        return JSONResponse(answer)

    async def _score(self, request: Request) -> Response:
        body, large = await self._body(request)
        name = self._judge_name({"model": self.served.names[0], **body}, openai_body)
        metric, samples, threshold = await _maybe_in_thread(large, scores.read_request, body)
        batcher, judge = self.served.batchers[name], self.served.judges[name]
        found = await self._wait(request, name, partial(batcher.score, metric, samples, threshold=threshold))
        # Steps were written and pinned with the first row; the signature contains them.
        signature = await self._wait(
            request, name, partial(batcher.call, lambda: str(judge.signature(judge.with_steps(metric))))
        )
        self.counters.answered(name, len(found), 0)
        return JSONResponse(scores.write_answer(metric, samples, found, name, signature))

    async def _models(self, request: Request) -> Response:
        created = int(self.started.timestamp())
        names = self.served.names
        listed = [{"id": name, "object": "model", "created": created, "owned_by": "local"} for name in names]
        described = {name: f"Local judge {name}, exact label probabilities." for name in names}
        described |= {} if ALIAS in names else {ALIAS: f"Another name of {names[0]}."}
        date = self.started.date().isoformat()
        models = [{"name": name, "description": text, "release_date": date} for name, text in described.items()]
        return JSONResponse({"object": "list", "data": listed, "models": models})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.counters.text(), media_type=CONTENT_TYPE)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "alive", "version": __version__})

    async def _ready(self, request: Request) -> Response:
        status = "closing" if self.is_closing else "ready" if self.served.are_ready else "loading"
        return JSONResponse({"status": status, "models": self.served.names}, 200 if status == "ready" else 503)

    # --- shared by routes -------------------------------------------------------------------------------------------

    def _guard(self, route: _Route, shape: Callable[[Refused], dict[str, Any]]) -> _Route:
        """Require the API key, and format every rejection for the route's dialect."""

        async def guarded(request: Request) -> Response:
            try:
                self._authorize(request)
                return await route(request)
            except Refused as refused:
                if refused.status in (401, 403, 404, 415):
                    await self._drain(request)
                return JSONResponse(shape(refused), refused.status, headers=refused.headers)
            except GevalError as error:
                return JSONResponse(shape(Refused(error.message)), 400)
            finally:
                self.body_bytes.give_back(getattr(request.state, "held", 0))

        return guarded

    def _judged(self, route: _Route, shape: Callable[[Refused], dict[str, Any]]) -> _Route:
        """Guard a route that needs the judges, and refuse it while they are loaded."""

        async def judged(request: Request) -> Response:
            if not self.served.are_ready:
                await self._drain(request)
                raise Refused(
                    "the judges are being loaded; /ready tells when", 503, code="loading", headers={"Retry-After": "2"}
                )
            return await route(request)

        return self._guard(judged, shape)

    def _authorize(self, request: Request) -> None:
        if self._key is None:
            # A website may resolve its own name to this machine; the browser then sends that name.
            if not is_loopback(_host_name(request.headers.get("host", ""))):
                raise Refused(
                    "without an API key this server answers to localhost only; start it with a key for other names",
                    403,
                )
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        # Compare digests of equal length: the time reveals neither the key's length nor a correct prefix.
        given = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
        if not hmac.compare_digest(given, self._key) or scheme.lower() != "bearer":
            raise Refused(
                "the API key is missing or wrong",
                401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _drain(self, request: Request) -> None:
        """Read the rest of the request; otherwise the client sees a broken connection instead of the answer."""
        with contextlib.suppress(Refused, ClientDisconnect, RuntimeError):
            nothing = HeldBytes(0)
            await read_body(
                request.stream(), limit=self.settings.max_body, seconds=5.0, held=nothing, taken=lambda count: None
            )

    async def _body(self, request: Request) -> tuple[dict[str, Any], bool]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind.startswith("multipart/"):
            await self._drain(request)
            raise Refused("images and other files cannot be read: this server's models read text only", 400)
        if kind != "application/json":
            raise Refused("the body is JSON: send Content-Type: application/json", 415)

        def taken(count: int) -> None:
            request.state.held = getattr(request.state, "held", 0) + count

        settings = self.settings
        raw = await read_body(
            request.stream(), limit=settings.max_body, seconds=settings.body_seconds, held=self.body_bytes, taken=taken
        )
        encoding = request.headers.get("content-encoding")
        large = len(raw) > LARGE or encoding is not None
        packed = len(raw)
        raw = await _maybe_in_thread(large, unpack, raw, encoding, settings.max_body)
        if len(raw) > packed:
            self.body_bytes.take(len(raw) - packed)
            taken(len(raw) - packed)
        return await _maybe_in_thread(large, read_values, raw), large

    def _judge_name(self, body: Mapping[str, Any], shape: Callable[[Refused], dict[str, Any]]) -> str:
        model = body.get("model")
        if not isinstance(model, str):
            if shape is system_one_body:
                raise Refused("Field required", 422, loc=("body", "model"), rule="missing")
            raise Refused("model is missing", param="model", code="missing_required_parameter")
        if model in self.served.names:
            return model
        if model == ALIAS:
            return self.served.names[0]
        known = ", ".join(self.served.names)
        if shape is system_one_body:
            raise Refused(f"there is no model {model[:100]!r}; there is {known}", 404)
        raise Refused(
            f"there is no model {model[:100]!r}; there is {known}", 404, param="model", code="model_not_found"
        )

    async def _decide(
        self, request: Request, name: str, large: bool, read: _Reader, body: Mapping[str, Any]
    ) -> Decision:
        state, questions, rotations = await _maybe_in_thread(large, read, body)
        rotations = rotations or self.settings.rotations
        _refuse_many_prompts(questions, rotations)
        decide = self.served.batchers[name].decide
        return await self._wait(request, name, partial(decide, state, questions, rotations=rotations), large=large)

    async def _wait(self, request: Request, name: str, ask: Callable[[], Future[_T]], *, large: bool = False) -> _T:
        """Wait for an answer as long as the client does."""
        try:
            future = await _maybe_in_thread(large, ask)
        except BusyError as error:
            after = str(self.served.batchers[name].retry_after)
            raise Refused(error.message, 429, code="busy", headers={"Retry-After": after}) from None
        answer = asyncio.wrap_future(future)
        gone = asyncio.create_task(_disconnected(request))
        try:
            both: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnect
            return await answer
        finally:
            gone.cancel()
            future.cancel()


def _refuse_many_prompts(questions: Sequence[Question], rotations: int) -> None:
    """Refuse what would be written down a hundred times over: every order of a question holds all of its options."""
    orders = [order_count(question, rotations) for question in questions]
    characters = sum(
        count * len(question.model_dump_json()) for question, count in zip(questions, orders, strict=True) if count > 1
    )
    if sum(orders) > MOST_PROMPTS or characters > MOST_CHARACTERS:
        raise Refused(
            f"{sum(orders)} orders of questions are too many for one call: ask fewer, or with fewer rotations",
            param="rotations",
        )


def _host_name(header: str) -> str:
    """Strip the port from a Host header."""
    name, _, port = header.rpartition(":")
    return name if name and (port.isdigit() or not port) and (":" not in name or name.endswith("]")) else header


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _maybe_in_thread(large: bool, function: Callable[..., _T], *given: Any) -> _T:
    return await run_in_threadpool(function, *given) if large else function(*given)


class _Watch:
    """Middleware that assigns an id to every request, counts it, and logs failures without request texts."""

    def __init__(self, app: ASGIApp, server: _Server) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = uuid.uuid4().hex
        start = time.perf_counter()
        status = 0

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(name, number.encode()) for name in (b"x-request-id", b"x-typesafe-request-id")]
                message = {**message, "headers": [*message.get("headers", ()), *ids]}
            await send(message)

        try:
            await self._app(scope, receive, numbered)
        except (ClientDisconnect, asyncio.CancelledError):
            status = status or 499
        except Exception as error:
            # The error's message may contain text of the request; its stack frames do not.
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error("request %s failed: %s\n%s", number, type(error).__name__, frames)
            if not status:
                shape = system_one_body if scope["path"] == "/v1/systemone" else openai_body
                refused = Refused("the server failed; see its log", 500, code="internal_error")
                await JSONResponse(shape(refused), 500)(scope, receive, numbered)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            seconds = time.perf_counter() - start
            self._server.counters.request(route, status, seconds)
            if self._server.settings.log_requests:
                logger.info("%s %s %s %s %.0f ms", number, scope["method"], route, status, 1000 * seconds)


async def _http_refusal(request: Request, error: Exception) -> Response:
    """Format 404 and 405 for the route's dialect."""
    assert isinstance(error, HTTPException)
    shape = system_one_body if request.url.path == "/v1/systemone" else openai_body
    messages = {404: "there is no such path", 405: "this path takes another method"}
    refused = Refused(messages.get(error.status_code, "the request cannot be served"), error.status_code)
    return JSONResponse(shape(refused), error.status_code, headers=error.headers)


def _page(app: FastAPI) -> str:
    """Build the page with the list of routes; it loads no external resources."""
    rows = "".join(
        f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td><td>{html.escape(entry['summary'])}</td></tr>"
        for path, methods in app.openapi()["paths"].items()
        for method, entry in methods.items()
    )
    example = {
        "model": ALIAS,
        "input": "I was charged twice. Please refund one of the payments.",
        "questions": [{"type": "predicate", "name": "refund", "instructions": "The customer asks for a refund."}],
    }
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>geval-local</title>"
        "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}td{padding:.2em 1em .2em 0}"
        "pre{background:#eee;padding:1em;overflow:auto}</style>"
        f"<h1>geval-local {__version__}</h1><table>{rows}</table><h2>POST /v1/decisions</h2>"
        f"<pre>{html.escape(json.dumps(example, indent=2))}</pre><p><a href='/openapi.json'>openapi.json</a></p></html>"
    )
