"""Settings of a server, and their validation."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from geval_local.errors import ConfigurationError
from geval_local.options import JudgeOptions

KEY_VARIABLE = "GEVAL_LOCAL_API_KEY"
_SIZE = re.compile(r"(\d+)\s*(|B|KB|MB|GB|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server."""

    host: str = "127.0.0.1"
    port: int = 8399
    api_key: str | None = None
    max_body: int = 16 << 20
    queue: int = 512
    rotations: int = 1
    body_seconds: float = 60.0
    head_seconds: float = 20.0
    connections: int = 4096
    log_requests: bool = False

    def __post_init__(self) -> None:
        if self.api_key is not None and (
            not self.api_key or not self.api_key.isascii() or not self.api_key.isprintable()
        ):
            raise ConfigurationError("the API key is empty or holds what no header can: use printable ASCII")
        if self.api_key is None and not is_loopback(self.host):
            raise ConfigurationError(
                f"listening on {self.host}, where others can reach it, needs an API key",
                hint=f"Give `api_key` or set {KEY_VARIABLE}, or listen on 127.0.0.1.",
            )
        for name in ("max_body", "queue", "rotations", "connections"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is at least 1, not {getattr(self, name)}")
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"there is no port {self.port}")


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_size(text: str) -> int:
    """Parse a number of bytes such as ``16MiB``, ``500KB`` or ``1048576``."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if not size:
        raise ConfigurationError(f"{text!r} is not a size", hint="Write it like 16MiB.")
    return size


def read_key(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Read the API key from a file, or else from the environment."""
    if file is None:
        key = environment.get(KEY_VARIABLE)
        if key is not None and not key.strip():
            raise ConfigurationError(f"{KEY_VARIABLE} is set and empty", hint="Unset it, or put a key in.")
        return key.strip() if key is not None else None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the API key in {file}: {error}") from error
    if not key:
        raise ConfigurationError(f"the API key file {file} is empty")
    return key


def bound(host: str, port: int) -> socket.socket:
    """Bind the address before a judge is loaded; no connections are accepted yet."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="Is another server there? Choose another `port`.",
        ) from error
    return listening


def named(choices: list[JudgeOptions]) -> dict[str, JudgeOptions]:
    """Return the judges' public names: for a directory its last part, so that no path is revealed."""
    from geval_local.models.registry import label_of
    from geval_local.signature import judge_name

    found: dict[str, JudgeOptions] = {}
    for choice in choices:
        label = label_of(choice)
        name = judge_name(label) if Path(label).is_dir() else label
        if name in found:
            raise ConfigurationError(f"two judges would be called {name}", hint="Give them names in a models file.")
        found[name] = choice
    return found
