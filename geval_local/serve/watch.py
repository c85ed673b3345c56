"""For operators: counters, logs, and an id for every request. None of them contains a text of a request."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import traceback
import uuid
from datetime import datetime, timezone
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from geval_local.serve.bodies import Refused, error_body

if TYPE_CHECKING:
    from geval_local.judge.batcher import Batcher, BatchRecord

logger = logging.getLogger("geval_local.serve")

#: Loggers of uvicorn and of this package.
LOGGERS = ("geval_local", "uvicorn")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PROMPTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counters:
    """The counters of ``/metrics``, in Prometheus's text format and a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        model = ["model"]
        self._requests = counter("geval_requests", "Requests by route and status.", ["route", "status"])
        self._seconds = histogram("geval_request_seconds", "Time of a request.", ["route"], buckets=_SECONDS)
        self._questions = counter("geval_questions", "Questions and rows answered.", model)
        self._tokens = counter("geval_prompt_tokens", "Distinct prompt tokens of decisions.", model)
        self._batches = histogram("geval_batch_prompts", "Prompts per batch.", model, buckets=_PROMPTS)
        self._batch_seconds = histogram("geval_batch_seconds", "Time of a batch.", model, buckets=_SECONDS)
        self._pending = Gauge("geval_pending_calls", "Calls that wait or are under way.", model, registry=registry)

    def watch(self, model: str, batcher: Batcher) -> None:
        """Expose the length of a judge's queue."""
        self._pending.labels(model).set_function(lambda: batcher.pending)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def answered(self, model: str, questions: int, tokens: int) -> None:
        """Count answered questions and their tokens."""
        self._questions.labels(model).inc(questions)
        self._tokens.labels(model).inc(tokens)

    def batch(self, model: str, record: BatchRecord) -> None:
        """Count a batch."""
        self._batches.labels(model).observe(record.items)
        self._batch_seconds.labels(model).observe(record.seconds)

    def text(self) -> bytes:
        """Return all counters in text format."""
        return generate_latest(self._registry)


class Watch:
    """Middleware that assigns an id to every request, counts it, and logs failures without request texts."""

    def __init__(self, app: ASGIApp, counters: Counters, logs_requests: bool) -> None:
        self._app = app
        self._counters = counters
        self._logs_requests = logs_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
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
            # A library's panic is not an `Exception`; it too fails only this request.
            logger.error("request %s failed: %s\n%s", number, type(error).__name__, _frames(error.__traceback__))
            if not status:
                refused = Refused("the server failed; see its log", 500, code="internal_error")
                await JSONResponse(error_body(scope["path"], refused), 500)(scope, receive, numbered)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            seconds = time.perf_counter() - start
            self._counters.request(route, status, seconds)
            if self._logs_requests:
                said = {"request": number, "method": scope["method"], "route": route, "status": status}
                said["ms"] = round(1000 * seconds)
                logger.info("%s ms", " ".join(map(str, said.values())), extra={"figures": said})


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": record.getMessage(), **getattr(record, "figures", {})}
        if record.exc_info and record.exc_info[0] is not None:
            line |= {"exception": record.exc_info[0].__name__, "frames": _frames(record.exc_info[2])}
        return json.dumps(line)


def _frames(traced: TracebackType | None) -> str:
    """Format stack frames without the error message, which may contain a text of a request."""
    return "".join(traceback.format_tb(traced))


def log_json() -> None:
    """Make the server's loggers write one JSON object a line on stderr, for machines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in LOGGERS:
        found = logging.getLogger(name)
        found.handlers[:] = [handler]
        found.propagate = False
        found.setLevel(logging.INFO)
