"""Other people's tools under test: telemetry off, no socket that leads off this machine. Import it before the tool."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

__all__ = ["QUIET", "environment", "forbid_network", "reach"]

QUIET = {
    "DO_NOT_TRACK": "true",
    "DEEPEVAL_TELEMETRY_OPT_OUT": "1",
    "DEEPEVAL_DISABLE_DOTENV": "1",
    "DEEPEVAL_NO_INSPECT_PROMPT": "1",
    "DEEPEVAL_UPDATE_WARNING_OPT_OUT": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "INSPECT_DISPLAY": "none",
    "HF_HUB_OFFLINE": "1",
}
os.environ.update(QUIET)

#: Runs at the start of every Python process that has its directory on the path.
FORBID = """\
import socket
own = ("127.", "::1", "localhost", "0.0.0.0")
def refused(host):
    return isinstance(host, (str, bytes)) and not str(host if isinstance(host, str) else host.decode()).startswith(own)
def guarded(method):
    def call(self, address, *rest):
        if self.family != getattr(socket, "AF_UNIX", None) and refused(address[0]):
            raise RuntimeError(f"a socket to {address[0]} was opened")
        return method(self, address, *rest)
    return call
def resolve(host, *rest, found=socket.getaddrinfo, **options):
    if refused(host):
        raise RuntimeError(f"the address of {host} was asked for")
    return found(host, *rest, **options)
def forbid(put):
    for name in ("connect", "connect_ex"):
        put(socket.socket, name, guarded(getattr(socket.socket, name)))
    put(socket, "getaddrinfo", resolve)
"""


def forbid_network(monkeypatch) -> None:
    """Let this process reach nothing but this machine, until the test ends."""
    names: dict[str, object] = {}
    exec(FORBID, names)
    names["forbid"](monkeypatch.setattr)


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Give a child process an environment: quiet, without a network, with a home of its own in `directory`."""
    (directory / "site").mkdir(exist_ok=True)
    (directory / "site" / "sitecustomize.py").write_text(f"{FORBID}\nforbid(setattr)\n", encoding="utf-8")
    (directory / "user").mkdir(exist_ok=True)
    root = str(Path(__file__).resolve().parents[2])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return {
        **kept,
        **QUIET,
        "HOME": str(directory / "user"),
        "GEVAL_LOCAL_HOME": str(directory / "home"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(directory / "site"), root]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        **more,
    }


def reach(host: str) -> None:
    """Try to connect to a host, for a test of the refusal itself."""
    with socket.socket() as opened:
        opened.settimeout(1)
        opened.connect((host, 9))
