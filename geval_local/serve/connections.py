"""Connections: HTTP, and time limits for clients.

uvicorn sets no time limit for the head of a request, for a body that nobody reads, or for a client that does not read
its answer. Here one rule holds for every connection: while the application is not working for it, it has `head_seconds`
for its next request, and the same time for reading an answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from geval_local.serve.settings import ServeSettings

#: File descriptors that connections leave free.
_SPARE_DESCRIPTORS = 64
_STATE = "geval_local.connection"
#: Most bytes of a request's line and headers.
MOST_HEAD = 64 << 10


def server_config(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    """Configure uvicorn for an application of `geval_local.serve.app.create_app`."""
    limits = {"seconds": settings.head_seconds, "most": _most_connections(settings.connections), "living": set()}
    return uvicorn.Config(
        _in_work(app),
        http=type("Connection", (_Connection,), limits),
        h11_max_incomplete_event_size=MOST_HEAD,
        ws="none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=4096,
    )


def _in_work(app: ASGIApp) -> ASGIApp:
    """Notify a request's connection when the application begins and ends."""

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        connection: _Connection | None = scope.get("state", {}).pop(_STATE, None) if scope["type"] == "http" else None
        if connection is None:
            await app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and is_ambiguous:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        # A proxy may use the other length, so what follows is not trusted as a request (RFC 9112 6.1).
        is_ambiguous = {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}
        connection.begin()
        try:
            await app(scope, receive, answer)
        finally:
            connection.end()

    return told


class _Connection(H11Protocol):
    """One connection: uvicorn's protocol, with deadlines around it."""

    seconds: float
    most: int
    living: set[_Connection]

    def __init__(self, *, app_state: dict[str, Any], **given: Any) -> None:
        # uvicorn passes the app state to every request of the connection.
        super().__init__(app_state={**app_state, _STATE: self}, **given)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: Requests in progress; briefly two, if one follows another.
        self._working = 0

    def begin(self) -> None:
        """Stop the idle timer: the application is working."""
        self._working += 1
        self._stop("idle")

    def end(self) -> None:
        """Start the idle timer again, after an answer."""
        self._working -= 1
        if not self._working and self in self.living:
            self._wait("idle")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self.living.add(self)
        super().connection_made(transport)
        if len(self.living) > self.most:
            transport.abort()
        self._wait("idle")

    def connection_lost(self, exc: Exception | None) -> None:
        self.living.discard(self)
        for name in list(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._wait("answer")
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop("answer")
        super().resume_writing()

    def _wait(self, name: str) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(self.seconds, self.transport.abort)

    def _stop(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()


def _most_connections(wanted: int) -> int:
    """Limit connections to the free file descriptors of the process."""
    try:
        import resource
    except ImportError:  # not on Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + _SPARE_DESCRIPTORS:
        most = wanted + _SPARE_DESCRIPTORS
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _SPARE_DESCRIPTORS))
