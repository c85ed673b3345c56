"""Connections: HTTP, and time limits for clients.

uvicorn sets no time limit for the head of a request, for a body that nobody reads, or for a client that does not read
its answer. Here one rule holds for every connection: while the application is not working for it, it has `head_seconds`
for its next request, and the same time for reading an answer. The code uses only transports and ASGI messages, so it
does not depend on the internals of uvicorn's protocol.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from geval_local.serve.settings import ServeSettings

#: File descriptors that connections leave free.
_SPARE_DESCRIPTORS = 64
#: Seconds between two checks whether a half-closed client is still there.
_LOOK_SECONDS = 1.0
_STATE = "geval_local.connection"
#: Most bytes of a request's line and headers.
MOST_HEAD = 64 << 10
_HEAD_END = re.compile(rb"\n\r?\n")
_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
    b"the path and headers of a request are larger than 65536 bytes\n"
)


def server_config(app: ASGIApp, settings: ServeSettings) -> uvicorn.Config:
    """Configure uvicorn for an application of `geval_local.serve.app.create_app`."""
    limits = {"seconds": settings.head_seconds, "most": _most_connections(settings.connections), "living": set()}
    return uvicorn.Config(
        _in_work(app),
        http=type("Connection", (_Connection,), limits),
        ws="none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=4096,
    )


def _in_work(app: ASGIApp) -> ASGIApp:
    """Notify a request's connection when the application begins, answers and ends."""

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        connection: _Connection | None = scope.get("state", {}).pop(_STATE, None) if scope["type"] == "http" else None
        if connection is None:
            await app(scope, receive, send)
            return

        async def take() -> Message:
            message = await receive()
            connection.is_whole = message["type"] == "http.request" and not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            connection.is_answering = True
            if message["type"] == "http.response.start" and is_ambiguous:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        # A proxy may use the other length, so what follows is not trusted as a request (RFC 9112 6.1).
        is_ambiguous = {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}
        connection.begin(scope["http_version"])
        try:
            await app(scope, take, answer)
        finally:
            connection.end()

    return told


class _Connection(asyncio.Protocol):
    """One connection: uvicorn's protocol, with deadlines around it."""

    seconds: float
    most: int
    living: set[_Connection]

    def __init__(self, *, app_state: dict[str, Any], **given: Any) -> None:
        # uvicorn passes the app state to every request of the connection.
        self._http = H11Protocol(app_state={**app_state, _STATE: self}, **given)
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: Requests in progress; briefly two, if one follows another.
        self._working = self._begun = 0
        self._is_ended = self._is_refused = False
        self._version = ""
        #: Whether the body of the current request is complete, and whether its answer has begun.
        self.is_whole = self.is_answering = False

    def begin(self, version: str) -> None:
        """Stop the idle timer: the application is working."""
        self._working += 1
        self._begun += 1
        self._version = version
        self.is_whole = self.is_answering = False
        self._stop("idle")

    def end(self) -> None:
        """Start the idle timer again, after an answer."""
        self._working -= 1
        if not self._working and self in self.living:
            self._wait("idle")
            if self._is_ended:
                self._loop.call_soon(self._after_end, self._begun)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.living.add(self)
        self._http.connection_made(transport)
        if len(self.living) > self.most:
            transport.abort()
        self._wait("idle")

    def connection_lost(self, exc: Exception | None) -> None:
        self.living.discard(self)
        for name in list(self._timers):
            self._stop(name)
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused or (self._http.conn.their_state is h11.IDLE and self._refuses(data)):
            return
        self._http.data_received(data)

    def _refuses(self, data: bytes) -> bool:
        """Answer 431 to a head that is too long, and drop further data."""
        waiting = self._http.conn.trailing_data[0]
        if len(waiting) + len(data) <= MOST_HEAD or _HEAD_END.search(waiting + data[:MOST_HEAD], 0, MOST_HEAD):
            return False
        self._is_refused = True
        self._transport.write(_TOO_LONG)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        return True

    def eof_received(self) -> bool:
        """Keep the connection: a half-closed client may still wait for its answer."""
        if not self._is_ended:
            self._is_ended = True
            self._loop.call_soon(self._after_end, self._begun)  # the application begins one turn of the loop later
        return True

    def pause_writing(self) -> None:
        self._wait("answer")
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._stop("answer")
        self._http.resume_writing()

    def _wait(self, name: str) -> None:
        self._stop(name)
        self._timers[name] = self._loop.call_later(self.seconds, self._transport.abort)

    def _stop(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    def _after_end(self, begun: int) -> None:
        if self._working:
            self._stop("look")
            self._timers["look"] = self._loop.call_later(_LOOK_SECONDS, self._look)
        elif begun == self._begun:  # else a later request has its own check
            self._transport.close()

    def _look(self) -> None:
        """Send an interim answer: if the client is gone, the next write fails."""
        if not self.is_answering and not self.is_whole:
            self._transport.close()
        elif not self.is_answering and self._version != "1.0":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._after_end(self._begun)


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
