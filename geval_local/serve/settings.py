"""Settings of a server, and their validation."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, Field, model_validator
from typing_extensions import Self

from geval_local.errors import ConfigurationError
from geval_local.options import Flag, JudgeOptions, Options

KEY_VARIABLE = "GEVAL_LOCAL_API_KEY"
_Positive = Annotated[int, Field(ge=1)]


def _whole_size(size: object) -> object:
    """Refuse sizes such as ``1,5MiB``, of which pydantic would read only the beginning."""
    if isinstance(size, str) and not re.fullmatch(r"\s*\d+\s*[A-Za-z]*\s*", size):
        raise ValueError(f"{size!r} is not a size; write it like 16MiB")
    return size


class ServeSettings(Options):
    """Settings of a server; fields with a description are options of ``geval-local serve``."""

    host: Annotated[
        str,
        Field(description="Address to listen on; one that others can reach needs an API key. Absent: 127.0.0.1."),
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on. Absent: 8399.")] = 8399
    api_key_file: Annotated[
        Path | None,
        Flag(metavar="FILE"),
        Field(description=f"Holds the key that clients must send. Absent: {KEY_VARIABLE}."),
    ] = None
    api_key: str | None = Field(default=None, repr=False)
    max_body: Annotated[
        ByteSize,
        BeforeValidator(_whole_size),
        Flag(metavar="SIZE"),
        Field(ge=1, description="Largest body of a request, also unpacked, such as 500KB. Absent: 16MiB."),
    ] = ByteSize(16 << 20)
    queue: Annotated[
        _Positive,
        Flag(metavar="N"),
        Field(description="Calls per judge that may wait; more get 429. Absent: 512."),
    ] = 512
    rotations: Annotated[
        _Positive,
        Flag(metavar="N"),
        Field(description="Orders in which a question's options are shown, unless a request sets it. Absent: 1."),
    ] = 1
    log_requests: Annotated[
        bool, Field(description="Log route, status and time of every request; never its texts.")
    ] = False
    body_seconds: float = 60.0
    head_seconds: float = 20.0
    connections: _Positive = 4096

    @model_validator(mode="before")
    @classmethod
    def _with_key(cls, given: dict[str, Any]) -> dict[str, Any]:
        return given if given.get("api_key") is not None else {**given, "api_key": read_key(given.get("api_key_file"))}

    def _checked(self) -> Self:
        key = self.api_key
        if key is not None and (not key or not key.isascii() or not key.isprintable()):
            raise ConfigurationError("the API key is empty or holds what no header can: use printable ASCII")
        if key is None and not is_loopback(self.host):
            raise ConfigurationError(
                f"listening on {self.host}, where others can reach it, needs an API key",
                hint=f"Give `api_key_file` or set {KEY_VARIABLE}, or listen on 127.0.0.1.",
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
    """Return the judges' public names, as in results; they reveal no path."""
    from geval_local.models.registry import labels_of

    return dict(zip(labels_of(choices), choices, strict=True))
