"""A server on a real socket, in a thread of the test; import it only where fastapi and uvicorn are installed."""

from __future__ import annotations

import contextlib
import socket
import threading

import uvicorn
from waiting import until

from geval_local.serve.app import create_app
from geval_local.serve.connections import server_config
from geval_local.serve.settings import ServeSettings

__all__ = ["serving"]


@contextlib.contextmanager
def serving(judge, **settings):
    """Serve a judge as ``mock``; yields the port and the server's insides."""
    chosen = ServeSettings(**settings)
    app = create_app({"mock": judge}, chosen)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        server = uvicorn.Server(server_config(app, chosen))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until(lambda: server.started)
            yield port, app.state.server
        finally:
            server.should_exit = True
            thread.join(300)
