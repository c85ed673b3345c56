"""Connections: how the server speaks HTTP, and how long it waits for clients that dawdle.

uvicorn gives a client all the time of the world to send the head of a request, and to take its answer. Here each step
has its time, and idle connections are bounded, so that none of them uses up the process's descriptors.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from geval_local.serve.settings import ServeSettings

__all__ = ["server_config"]

#: Descriptors that are left to everything else.
_SPARE_DESCRIPTORS = 64
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    b"content-length: 38\r\n\r\nthe head of the request took too long\n"
)


def server_config(app: FastAPI, settings: ServeSettings) -> uvicorn.Config:
    """Configure uvicorn for an application of `geval_local.serve.app.create_app`.

    Parameters
    ----------
    app : FastAPI
        The application.
    settings : ServeSettings
        Its settings.
    """
    protocol = type(
        "Protocol",
        (_Protocol,),
        {"head_seconds": settings.head_seconds, "most": _most_connections(settings.connections)},
    )
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=4096,
    )


class _Protocol(H11Protocol):
    """One connection."""

    head_seconds: float
    most: int
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
            return
        self._expect(self._late_head)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head(is_begun=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head(is_begun=bool(self.conn.trailing_data[0]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        # The client does not take its answer.
        self._relax()
        self._expect(self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._relax()
        super().resume_writing()

    def _watch_head(self, *, is_begun: bool) -> None:
        """Give a head that has begun its time; what comes after it has limits of its own."""
        if self.conn.their_state is not h11.IDLE:
            self._relax()
        elif is_begun:
            self._expect(self._late_head)

    def _expect(self, late: Any) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, late)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(_LATE)
            self.transport.close()


def _most_connections(wanted: int) -> int:
    """Stay below the descriptors of the process: without one, nobody could be answered."""
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
