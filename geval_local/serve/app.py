"""The ASGI application: routes around one batcher per judge, with keys and limits; request texts are never logged.

`create_app` creates it; ``geval-local serve`` runs it on uvicorn. FastAPI reads bodies into models and describes them
in ``/openapi.json``; `_Route` puts key, readiness and limits before that. Nothing here imports torch.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import TypedDict

from geval_local import __version__
from geval_local.errors import BusyError, GevalError
from geval_local.questions.answer import Decision
from geval_local.questions.form import order_count
from geval_local.questions.question import Question
from geval_local.serve import openai, scores, systemone
from geval_local.serve.bodies import HeldBytes, read_body, read_values, unpack
from geval_local.serve.counters import CONTENT_TYPE, Counters
from geval_local.serve.judges import Load, ServedJudges
from geval_local.serve.refusals import OpenAIError, Refused, SystemOneError, error_body, refusal_of
from geval_local.serve.settings import ServeSettings, is_loopback

if TYPE_CHECKING:
    from geval_local.judge import Judge

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
_KEY = Depends(HTTPBearer(auto_error=False, description="Needed if the server was started with a key."))


class _Listed(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class _Described(TypedDict):
    name: str
    description: str
    release_date: str


class _Models(TypedDict):
    object: Literal["list"]
    data: list[_Listed]
    models: list[_Described]


class _Health(TypedDict):
    status: Literal["alive"]
    version: str


class _Ready(TypedDict):
    status: Literal["ready", "loading", "closing"]
    models: list[str]


def create_app(
    judges: Mapping[str, Judge | Load],
    settings: ServeSettings | None = None,
    on_loaded: Callable[[BaseException | None], None] = lambda error: None,
) -> FastAPI:
    """Create the application."""
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
    app.router.route_class = _Route
    app.state.server = server
    for path, method, route, summary, answer in server.routes():
        is_open = path in ("/health", "/ready")
        refused: Any = SystemOneError if path == "/v1/systemone" else OpenAIError
        codes = [503] if path == "/ready" else [] if is_open else [401, 403, 404]
        codes += [400, 408, 413, 415, 422, 429, 500, 503] if method == "POST" else []
        app.add_api_route(
            path,
            route,
            methods=[method],
            summary=summary,
            dependencies=[] if is_open else [_KEY],
            response_model=None,
            response_class=JSONResponse,
            responses={
                **{code: {"model": _Ready if path == "/ready" else refused} for code in codes},
                200: {"model": answer} if answer else {"content": {"text/plain": {}}},
                # Not FastAPI's own: what pydantic says is said in the dialect's words.
                "default": {"model": refused},
            },
        )
        if is_open:
            app.add_api_route(path, route, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/docs", lambda: HTMLResponse(_page(app)), include_in_schema=False)
    for kind in (HTTPException, RequestValidationError, GevalError, Refused):
        app.add_exception_handler(kind, partial(_refuse, app))
    app.add_middleware(_Watch, server=server)
    return app


class _Read(Request):
    """A request whose body was read already."""

    values: Any

    async def body(self) -> bytes:
        return b"values"

    async def json(self) -> Any:
        return self.values


class _Route(APIRoute):
    """A route that looks at key, judges and limits before FastAPI reads the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(given: Request) -> Response:
            server: _Server = given.app.state.server
            if _KEY in self.dependencies:
                server.authorize(given)
            if self.body_field is None:
                return await handle(given)
            if not server.served.are_ready:
                raise Refused(
                    "the judges are being loaded; /ready tells when", 503, code="loading", headers={"Retry-After": "2"}
                )
            request = _Read(given.scope, given.receive)
            try:
                request.values = await server.read(request)
                return await handle(request)
            finally:
                server.body_bytes.give_back(getattr(request.state, "held", 0))

        return guarded


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

    def routes(self) -> list[tuple[str, str, Callable[..., Awaitable[Response]], str, Any]]:
        decided, scored = openai.DecisionsAnswer, scores.ScoreAnswer
        return [
            ("/v1/decisions", "POST", self.decisions, "Questions, in OpenAI's dialect.", decided),
            ("/v1/systemone", "POST", self.system_one, "Questions, in System One's.", systemone.SystemOneAnswer),
            ("/v1/score", "POST", self.score, "Rows scored on a metric, with signature.", scored),
            ("/v1/models", "GET", self.models, "The judges.", _Models),
            ("/v1/models/{name:path}", "GET", self.model, "One judge.", _Listed),
            ("/metrics", "GET", self.metrics, "Counters for Prometheus.", None),
            ("/health", "GET", self.health, "Whether the process lives; needs no key.", _Health),
            ("/ready", "GET", self.ready, "Whether requests are taken; needs no key.", _Ready),
        ]

    # --- routes -----------------------------------------------------------------------------------------------------

    async def decisions(self, request: Request, body: openai.DecisionsRequest) -> Response:
        name = self._judge_name(body.model)
        decision = await self._decide(request, name, body)
        return JSONResponse(openai.write_answer(decision, name))

    async def system_one(self, request: Request, body: systemone.SystemOneRequest) -> Response:
        name = self._judge_name(body.model)
        decision = await self._decide(request, name, body)
        return JSONResponse(systemone.write_answer(decision, name, body))

    async def score(self, request: Request, body: scores.ScoreRequest) -> Response:
        name = self.served.names[0] if body.model is None else self._judge_name(body.model)
        metric, samples = await _maybe_in_thread(request, body.asked)
        # Nothing is missing from the metric that the model's thread would have to add, so this waits for no turn.
        signature = await run_in_threadpool(self.served.judges[name].signature, metric)
        score = self.served.batchers[name].score
        found = await self._wait(request, name, partial(score, metric, samples, threshold=body.threshold))
        self.counters.answered(name, len(found), 0)
        return JSONResponse(scores.write_answer(metric, samples, found, name, str(signature)))

    async def models(self) -> Response:
        names = self.served.names
        described = {name: f"Local judge {name}, exact label probabilities." for name in names}
        described |= {} if ALIAS in names else {ALIAS: f"Another name of {names[0]}."}
        date = self.started.date().isoformat()
        models = [{"name": name, "description": text, "release_date": date} for name, text in described.items()]
        return JSONResponse({"object": "list", "data": [self._listed(name) for name in names], "models": models})

    async def model(self, name: str) -> Response:
        return JSONResponse(self._listed(self._judge_name(name)))

    async def metrics(self) -> Response:
        return Response(self.counters.text(), media_type=CONTENT_TYPE)

    async def health(self) -> Response:
        return JSONResponse({"status": "alive", "version": __version__})

    async def ready(self) -> Response:
        status = "closing" if self.is_closing else "ready" if self.served.are_ready else "loading"
        return JSONResponse({"status": status, "models": self.served.names}, 200 if status == "ready" else 503)

    # --- shared by routes -------------------------------------------------------------------------------------------

    def authorize(self, request: Request) -> None:
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

    async def read(self, request: Request) -> dict[str, Any]:
        """Read a body: bytes, unpacked, as values."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind.startswith("multipart/"):
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
        request.state.large = len(raw) > LARGE or encoding is not None
        packed = len(raw)
        raw = await _maybe_in_thread(request, unpack, raw, encoding, settings.max_body)
        if len(raw) > packed:
            self.body_bytes.take(len(raw) - packed)
            taken(len(raw) - packed)
        return await _maybe_in_thread(request, read_values, raw)

    def _listed(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": int(self.started.timestamp()), "owned_by": "local"}

    def _judge_name(self, model: str) -> str:
        if model in self.served.names:
            return model
        if model == ALIAS:
            return self.served.names[0]
        known = ", ".join(self.served.names)
        raise Refused(
            f"there is no model {model[:100]!r}; there is {known}", 404, param="model", code="model_not_found"
        )

    async def _decide(
        self, request: Request, name: str, body: openai.DecisionsRequest | systemone.SystemOneRequest
    ) -> Decision:
        state, questions = await _maybe_in_thread(request, body.asked)
        rotations = body.rotations or self.settings.rotations
        _refuse_many_prompts(questions, rotations)
        decide = self.served.batchers[name].decide
        decision = await self._wait(request, name, partial(decide, state, questions, rotations=rotations))
        self.counters.answered(name, len(decision), decision.tokens)
        return decision

    async def _wait(self, request: Request, name: str, ask: Callable[[], Future[_T]]) -> _T:
        """Wait for an answer as long as the client does."""
        try:
            future = await _maybe_in_thread(request, ask)
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


async def _maybe_in_thread(request: Request, function: Callable[..., _T], *given: Any) -> _T:
    return await run_in_threadpool(function, *given) if request.state.large else function(*given)


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
        except BaseException as error:
            # Also what is no `Exception`, such as a library's panic, costs this request and no other.
            # The error's message may contain text of the request; its stack frames do not.
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error("request %s failed: %s\n%s", number, type(error).__name__, frames)
            if not status:
                refused = Refused("the server failed; see its log", 500, code="internal_error")
                await JSONResponse(error_body(scope["path"], refused), 500)(scope, receive, numbered)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            seconds = time.perf_counter() - start
            self._server.counters.request(route, status, seconds)
            if self._server.settings.log_requests:
                figures = {"request": number, "route": route, "status": status, "ms": round(1000 * seconds)}
                said = (number, scope["method"], route, status, 1000 * seconds)
                logger.info("%s %s %s %s %.0f ms", *said, extra={"figures": figures | {"method": scope["method"]}})


async def _refuse(app: FastAPI, request: Request, error: Exception) -> Response:
    """Answer a rejection in the format of the route's dialect."""
    path = request.url.path
    if isinstance(error, RequestValidationError):
        error = refusal_of(error.errors()[0], error.body, path)
    elif isinstance(error, GevalError):
        error = Refused(error.message)
    elif isinstance(error, HTTPException):
        there = ", ".join(f"{' '.join(route.methods or ())} {route.path}" for route in _shown(app))
        said = {404: f"there is no such path; there are {there}", 405: "this path takes another method"}
        refused = said.get(error.status_code, "the request cannot be served")
        error = Refused(refused, error.status_code, headers=error.headers)
    assert isinstance(error, Refused)
    return JSONResponse(error_body(path, error), error.status, headers=error.headers)


def _shown(app: FastAPI) -> list[APIRoute]:
    return [route for route in app.routes if isinstance(route, APIRoute) and route.include_in_schema]


def _page(app: FastAPI) -> str:
    """Build the page with the list of routes; it loads no external resources."""
    rows = "".join(
        f"<tr><td><code>{' '.join(route.methods or ())} {html.escape(route.path)}</code></td>"
        f"<td>{html.escape(route.summary or '')}</td></tr>"
        for route in _shown(app)
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
