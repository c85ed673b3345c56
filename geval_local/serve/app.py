"""The ASGI application: routes around one batcher per judge, with keys and limits; request texts are never logged.

`create_app` creates it; ``geval-local serve`` runs it on uvicorn. FastAPI reads bodies into models and describes them
in ``/openapi.json``; `_Route` puts key, readiness and limits before that. Nothing here imports torch.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from functools import cache, partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse

from geval_local import __version__
from geval_local.errors import BusyError, GevalError
from geval_local.metric import Metric
from geval_local.metric_file import preset_names
from geval_local.questions.answer import Decision
from geval_local.questions.form import order_count
from geval_local.questions.question import Question
from geval_local.serve.bodies import (
    HeldBytes,
    OpenAIError,
    Refused,
    SystemOneError,
    error_body,
    read_body,
    read_values,
    refusal_of,
    unpack,
)
from geval_local.serve.dialects import (
    DecisionsAnswer,
    DecisionsRequest,
    ScoreRequest,
    ScoresAnswer,
    SystemOneAnswer,
    SystemOneRequest,
    write_decisions,
    write_scores,
    write_system_one,
)
from geval_local.serve.settings import ServeSettings, is_loopback
from geval_local.serve.watch import CONTENT_TYPE, Counters, Watch

if TYPE_CHECKING:
    from geval_local.judge.batcher import Batcher
    from geval_local.judge.judge import Judge

#: The default model name of typesafe-sdk and DeepEval; here it means the first judge.
ALIAS = "jev-latest"
#: Bodies of at least this many bytes are parsed in another thread, so that other requests are not delayed.
LARGE = 64 << 10
#: Limit for all bodies together, as a multiple of the limit for one.
HELD = 16

#: Limits of one call: prompts, and characters of questions that are asked in several orders.
MOST_PROMPTS = 4096
MOST_CHARACTERS = 32 << 20

#: Loads a judge. The server calls it once, in a separate thread that also imports torch.
Load: TypeAlias = "Callable[[], Judge]"

_T = TypeVar("_T")
_KEY = Depends(HTTPBearer(auto_error=False, description="Needed if the server was started with a key."))


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
        # A redirect would point to the host that the client names.
        redirect_slashes=False,
    )
    app.router.route_class = _Route
    app.state.server = server
    for path, route, summary, answer in (
        ("/v1/decisions", server.decisions, "Questions, in OpenAI's dialect.", DecisionsAnswer),
        ("/v1/systemone", server.system_one, "Questions, in System One's.", SystemOneAnswer),
        ("/v1/score", server.score, "Rows scored on a metric, with signature.", ScoresAnswer),
        ("/v1/metrics", server.presets, "The preset metrics.", None),
        ("/v1/models", server.models, "The judges.", None),
        ("/v1/models/{name:path}", server.model, "One judge.", None),
        ("/metrics", server.metrics, "Counters for Prometheus.", None),
        ("/health", server.health, "Whether the process lives; needs no key.", None),
        ("/ready", server.ready, "Whether requests are taken, else 503; needs no key.", None),
    ):
        _add_route(app, path, route, summary, answer)
    app.add_api_route("/docs", lambda: HTMLResponse(_page(app)), include_in_schema=False)
    describe = app.openapi
    app.openapi = lambda: app.openapi_schema or _public(app, describe())  # type: ignore[method-assign]
    for kind in (HTTPException, RequestValidationError, GevalError, Refused):
        app.add_exception_handler(kind, partial(_refuse, app))
    app.add_middleware(Watch, counters=server.counters, logs_requests=server.settings.log_requests)
    return app


def _add_route(app: FastAPI, path: str, route: Callable[..., Any], summary: str, answer: Any) -> None:
    """Add a route with its schema; one with an `answer` takes a body."""
    is_open, takes_body = path in ("/health", "/ready"), answer is not None
    refused: Any = SystemOneError if path == "/v1/systemone" else OpenAIError
    codes = [] if is_open else [401, 403, 404]
    codes += [400, 408, 413, 415, 422, 429, 500, 503] if takes_body else []
    own: dict[int | str, dict[str, Any]] = {code: {"model": refused} for code in codes}
    if path == "/ready":
        own[503] = {"content": {"application/json": {}}}
    app.add_api_route(
        path,
        route,
        methods=["POST" if takes_body else "GET"],
        summary=summary,
        # Generated clients name their functions after the operation ids.
        operation_id=route.__name__,
        tags=["judging" if takes_body else "listing" if path.startswith("/v1/") else "operation"],
        dependencies=[] if is_open else [_KEY],
        response_model=None,
        response_class=JSONResponse,
        responses={
            **own,
            200: {"model": answer} if takes_body else {"content": {"text/plain": {}}} if path == "/metrics" else {},
            # In place of FastAPI's own error body: pydantic's errors take the format of the dialect.
            "default": {"model": refused},
        },
    )
    if is_open:
        app.add_api_route(path, route, methods=["HEAD"], include_in_schema=False)


class _Read(Request):
    """A request whose body is read before FastAPI asks for it."""

    values: Any = None
    is_large = False

    async def body(self) -> bytes:
        return b"values"

    async def json(self) -> Any:
        return self.values

    async def work(self, function: Callable[..., _T], *given: Any) -> _T:
        """Call a function, in another thread if the body is large."""
        return await run_in_threadpool(function, *given) if self.is_large else function(*given)


class _Route(APIRoute):
    """A route that checks key, judges and limits before FastAPI reads the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(given: Request) -> Response:
            server: _Server = given.app.state.server
            if _KEY in self.dependencies:
                server.authorize(given)
            if self.body_field is None:
                return await handle(given)
            if not server.are_loaded:
                said = "the judges are being loaded; /ready tells when"
                raise Refused(said, 503, code="loading", headers={"Retry-After": "2"})
            request = _Read(given.scope, given.receive)
            with server.body_bytes.of_one_request() as take:
                await server.read(request, take)
                return await handle(request)

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
        self.started = datetime.now(timezone.utc)
        self.is_closing = False
        self.body_bytes = HeldBytes(HELD * settings.max_body)
        self.names = tuple(judges)
        self.judges: dict[str, Judge] = {}
        self.batchers: dict[str, Batcher] = {}
        self._key = None if settings.api_key is None else hashlib.sha256(settings.api_key.encode()).digest()
        self._on_loaded = on_loaded
        self._taking = Lock()
        self._loads: dict[str, Load] = {}
        for name, given in judges.items():
            if callable(given):
                self._loads[name] = given
            else:
                self._take(name, given)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Load judges in a daemon thread; at the end, finish the waiting calls."""
        if self._loads:
            Thread(target=self._load, name="geval-local-loading", daemon=True).start()
        try:
            yield
        finally:
            with self._taking:
                self.is_closing = True
            for batcher in self.batchers.values():
                await run_in_threadpool(batcher.close)

    # --- judges -----------------------------------------------------------------------------------------------------

    @property
    def are_loaded(self) -> bool:
        return len(self.batchers) == len(self.names)

    def _load(self) -> None:
        try:
            for name, load in self._loads.items():
                self._take(name, load())
        except BaseException as error:
            self._on_loaded(error)
        else:
            self._on_loaded(None)

    def _take(self, name: str, judge: Judge) -> None:
        from geval_local.judge.batcher import Batcher

        with self._taking:
            if not self.is_closing:
                batcher = Batcher(judge, queue=self.settings.queue, on_batch=partial(self.counters.batch, name))
                self.counters.watch(name, batcher)
                self.judges[name] = judge
                self.batchers[name] = batcher

    # --- routes -----------------------------------------------------------------------------------------------------

    async def decisions(self, request: _Read, body: DecisionsRequest) -> Response:
        name = self._judge_name(body.model)
        return JSONResponse(write_decisions(await self._decide(request, name, body), name))

    async def system_one(self, request: _Read, body: SystemOneRequest) -> Response:
        name = self._judge_name(body.model)
        return JSONResponse(write_system_one(await self._decide(request, name, body), name, body))

    async def score(self, request: _Read, body: ScoreRequest) -> Response:
        name = self.names[0] if body.model is None else self._judge_name(body.model)
        metric, samples = await request.work(body.asked)
        # The metric is complete, so its signature does not have to wait for the model's thread.
        signature = await run_in_threadpool(self.judges[name].signature, metric)
        score = self.batchers[name].score
        found = await self._wait(request, name, partial(score, metric, samples, threshold=body.threshold))
        self.counters.answered(name, len(found), 0)
        return JSONResponse(write_scores(metric, samples, found, name, str(signature)))

    async def models(self) -> Response:
        names = self.names
        described = {name: f"Local judge {name}, exact label probabilities." for name in names}
        described |= {} if ALIAS in names else {ALIAS: f"Another name of {names[0]}."}
        date = self.started.date().isoformat()
        models = [{"name": name, "description": text, "release_date": date} for name, text in described.items()]
        return JSONResponse({"object": "list", "data": [self._listed(name) for name in names], "models": models})

    async def model(self, name: str) -> Response:
        return JSONResponse(self._listed(self._judge_name(name)))

    async def presets(self) -> Response:
        return JSONResponse({"object": "list", "data": await run_in_threadpool(_presets)})

    async def metrics(self) -> Response:
        return Response(self.counters.text(), media_type=CONTENT_TYPE)

    async def health(self) -> Response:
        return JSONResponse({"status": "alive", "version": __version__})

    async def ready(self) -> Response:
        status = "closing" if self.is_closing else "ready" if self.are_loaded else "loading"
        return JSONResponse({"status": status, "models": self.names}, 200 if status == "ready" else 503)

    # --- shared by routes -------------------------------------------------------------------------------------------

    def authorize(self, request: Request) -> None:
        if self._key is None:
            # A website may resolve its own name to this machine (DNS rebinding); the browser then sends that name.
            if not is_loopback(_host_name(request.headers.get("host", ""))):
                said = "without an API key this server answers to localhost only; start it with a key for other names"
                raise Refused(said, 403)
            return
        # With several headers, a proxy may have checked another one than this code reads.
        given = request.headers.getlist("authorization")
        scheme, _, key = (given[0] if len(given) == 1 else "").partition(" ")
        # Compare digests of equal length: the time reveals neither the key's length nor a correct prefix.
        digest = hashlib.sha256(key.strip(" \t").encode("latin-1", "replace")).digest()
        if not hmac.compare_digest(digest, self._key) or scheme.lower() != "bearer":
            asked = {"WWW-Authenticate": "Bearer"}
            raise Refused("the API key is missing or wrong", 401, code="invalid_api_key", headers=asked)

    async def read(self, request: _Read, take: Callable[[int], None]) -> None:
        """Read a body: receive, decompress and parse it."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind.startswith("multipart/"):
            raise Refused("images and other files cannot be read: this server's models read text only", 400)
        if kind != "application/json":
            raise Refused("the body is JSON: send Content-Type: application/json", 415)
        most, seconds = self.settings.max_body, self.settings.body_seconds
        try:
            packed = await asyncio.wait_for(read_body(request.stream(), most, take), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            said = f"the body took longer than {seconds:g} seconds"
            raise Refused(said, 408, headers={"Connection": "close"}) from None
        encoding = request.headers.get("content-encoding")
        request.is_large = len(packed) > LARGE or encoding is not None
        raw = await request.work(unpack, packed, encoding, most)
        take(max(0, len(raw) - len(packed)))
        request.values = await request.work(read_values, raw)

    def _listed(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": int(self.started.timestamp()), "owned_by": "local"}

    def _judge_name(self, model: str) -> str:
        if model in self.names:
            return model
        if model == ALIAS:
            return self.names[0]
        said = f"there is no model {model[:100]!r}; there is {', '.join(self.names)}"
        raise Refused(said, 404, param="model", code="model_not_found")

    async def _decide(self, request: _Read, name: str, body: DecisionsRequest | SystemOneRequest) -> Decision:
        state, questions = await request.work(body.asked)
        rotations = body.rotations or self.settings.rotations
        _refuse_many_prompts(questions, rotations)
        decide = self.batchers[name].decide
        decision = await self._wait(request, name, partial(decide, state, questions, rotations=rotations))
        self.counters.answered(name, len(decision), decision.tokens)
        return decision

    async def _wait(self, request: _Read, name: str, ask: Callable[[], Future[_T]]) -> _T:
        """Wait for an answer until the client disconnects."""
        try:
            future = await request.work(ask)
        except BusyError as error:
            after = str(self.batchers[name].retry_after)
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
    """Refuse questions whose orders take too much memory: every order repeats all options."""
    orders = [order_count(question, rotations) for question in questions]
    characters = sum(
        count * len(question.model_dump_json()) for question, count in zip(questions, orders, strict=True) if count > 1
    )
    if sum(orders) > MOST_PROMPTS or characters > MOST_CHARACTERS:
        said = f"{sum(orders)} orders of questions are too many for one call: ask fewer, or with fewer rotations"
        raise Refused(said, param="rotations")


def _host_name(header: str) -> str:
    """Strip the port from a Host header."""
    name, _, port = header.rpartition(":")
    return name if name and (port.isdigit() or not port) and (":" not in name or name.endswith("]")) else header


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refuse(app: FastAPI, request: Request, error: Exception) -> Response:
    """Answer a rejection in the format of the route's dialect."""
    path = request.url.path
    if isinstance(error, RequestValidationError):
        error = refusal_of(error.errors()[0], error.body, path)
    elif isinstance(error, GevalError):
        error = Refused(error.message)
    elif isinstance(error, HTTPException):
        there = ", ".join(_shown(app))
        chat = "chat completions are not served; " if "completions" in path else ""
        said = {
            404: f"there is no such path; {chat}there are {there}, GET /docs, GET /openapi.json",
            405: "this path takes another method",
        }
        refused = said.get(error.status_code, "the request cannot be served")
        error = Refused(refused, error.status_code, headers=error.headers or {})
    assert isinstance(error, Refused)
    return JSONResponse(error_body(path, error), error.status, headers=dict(error.headers))


def _shown(app: FastAPI) -> dict[str, str]:
    """List the routes of the schema: method and path, and the summary."""
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.include_in_schema]
    # OpenAPI writes Starlette's "{name:path}" as "{name}".
    return {f"{' '.join(route.methods or ())} {route.path_format}": route.summary or "" for route in routes}


def _public(app: FastAPI, schema: dict[str, Any]) -> dict[str, Any]:
    """Remove the underscore of private classes from the names in the schema."""
    app.openapi_schema = json.loads(re.sub(r'"(#/components/schemas/)?_(\w+)"', r'"\1\2"', json.dumps(schema)))
    return app.openapi_schema


@cache
def _presets() -> list[dict[str, Any]]:
    """Describe the preset metrics."""
    return [
        {
            "name": metric.name,
            "scale": metric.scale.text,
            "fields": list(metric.fields),
            "threshold": metric.threshold,
            "criteria": metric.criteria,
        }
        for metric in map(Metric.load, preset_names())
    ]


def _page(app: FastAPI) -> str:
    """Build the page with the list of routes; it loads no external resources."""
    rows = "".join(
        f"<tr><td><code>{html.escape(route)}</code></td><td>{html.escape(gives)}</td></tr>"
        for route, gives in _shown(app).items()
    )
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>geval-local</title>"
        f"<h1>geval-local {__version__}</h1><table>{rows}</table><p><a href='/openapi.json'>openapi.json</a></p></html>"
    )
