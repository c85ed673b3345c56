"""Object stores for tests: fsspec's in memory, and an S3 server of moto on this machine."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

#: What a client of the server has to know.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "NO_PROXY": "127.0.0.1"}


class ObjectStore(NamedTuple):
    """A bucket named ``bucket``."""

    #: The pyarrow file system.
    system: Any
    scheme: str
    #: What follows its addresses.
    options: str = ""

    def at(self, name: str, bucket: str = "bucket") -> str:
        """Return the address of an object."""
        return f"{self.scheme}://{bucket}/{name}{self.options}"

    def put(self, name: str, content: bytes) -> str:
        """Write an object; return its address."""
        self.system.create_dir(f"bucket/{name}".rpartition("/")[0])
        with self.system.open_output_stream(f"bucket/{name}", compression=None) as stream:
            stream.write(content)
        return self.at(name)

    def get(self, name: str) -> bytes:
        """Read an object."""
        with self.system.open_input_stream(f"bucket/{name}", compression=None) as stream:
            return stream.read()

    def names(self, folder: str) -> list[str]:
        """List the objects of a folder, at any depth."""
        from pyarrow import fs

        found = self.system.get_file_info(fs.FileSelector(f"bucket/{folder}", allow_not_found=True, recursive=True))
        base = len(f"bucket/{folder}/")
        return sorted(one.path.lstrip("/")[base:] for one in found if one.is_file)


def ask(server: str, request: str, content: bytes = b"") -> None:
    """Ask the server of moto for what no store offers."""
    headers = {"Content-Type": "text/plain"}
    with urllib.request.urlopen(urllib.request.Request(f"http://{server}/moto-api/{request}", content, headers)):
        pass


@contextmanager
def store_in_memory() -> Iterator[ObjectStore]:
    """Serve a store in this process."""
    fsspec = pytest.importorskip("fsspec")
    fs = pytest.importorskip("pyarrow.fs")
    memory = fsspec.filesystem("memory")
    try:
        yield ObjectStore(fs.PyFileSystem(fs.FSSpecHandler(memory)), "memory")
    finally:
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]


@contextmanager
def store_on_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Serve a store by S3 on this machine."""
    fs = pytest.importorskip("pyarrow.fs")
    if find_spec("moto") is None:
        pytest.skip("the S3 server is that of moto: pip install 'moto[server,s3]'")
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    # moto's own thread looks every half second whether it is to end, and each test waits for that.
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        host, port = server.server_address[:2]
        ask(f"{host}:{port}", "reset")  # servers of one process share their objects
        options = {"endpoint_override": f"http://{host}:{port}", "region": "us-east-1"}
        system = fs.S3FileSystem(allow_bucket_creation=True, **options)
        system.create_dir("bucket")
        yield ObjectStore(system, "s3", "?" + "&".join(f"{name}={value}" for name, value in options.items()))
    finally:
        server.shutdown()
        server.server_close()
