"""The HTTP client of servers that compute: addresses, keys, tries, and answers of bounded size read by their types."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import queue
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from geval_local.errors import ConfigurationError, JudgeError, first_line
from geval_local.options import JudgeOptions

#: The variable that a server's key is read from; vLLM's own server reads it too.
KEY_VARIABLE = "VLLM_API_KEY"
#: Seconds that a request may take, and those before each new try.
TIMEOUT = 600.0
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
#: Most bytes of an answer, and of what a server says of an error.
MOST_BYTES = 1 << 26
_MOST_OF_ERROR = 1 << 16
#: Answers after which the same request may succeed.
_BUSY = (408, 429, 500, 502, 503, 504)
#: Networks of a site's own. `ipaddress` counts networks for tests and documents as private, too: they are nobody's.
_PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
_T = TypeVar("_T")
_R = TypeVar("_R")
_M = TypeVar("_M", bound=BaseModel)


class ServerRefusal(Exception):
    """The server refused a request; another try is of no use."""


class UnreadableAnswer(ServerRefusal):
    """The server gave an answer that is none."""


def why_no_answer(error: ServerRefusal) -> str:
    """Say why a server has no answer to a prompt."""
    return str(error) if isinstance(error, UnreadableAnswer) else f"the server refuses the prompt: {error}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An answer that names another address is an error: texts go where the user said."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


class Server:
    """A server, as far as it is asked here; safe in threads.

    Parameters
    ----------
    address : str
        Such as ``http://127.0.0.1:8000/v1``, checked by `check_address`.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.root = self.address.removesuffix("/v1")
        #: Whether it has answered before. One that was never there is not waited for.
        self._is_there = False
        # No proxy: what the environment names may lie outside of this network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        self._headers = {"Content-Type": "application/json"} | _authorization()

    def get(self, path: str, kind: type[_M]) -> _M:
        """Get a path of the server; errors as for `post`."""
        return self._send(path, None, kind)

    def post(self, path: str, body: Mapping[str, Any], kind: type[_M]) -> _M:
        """Post JSON to a path; tried again where the server is busy or the connection breaks.

        Parameters
        ----------
        path : str
            Such as ``/v1/completions``.
        body : mapping
            What is sent.
        kind : type
            The pydantic model that the answer has to be.

        Raises
        ------
        ServerRefusal
            If the server refuses the request, or `UnreadableAnswer` if its answer is no such model.
        JudgeError
            If it does not answer.
        """
        return self._send(path, json.dumps(body).encode(), kind)

    def _send(self, path: str, body: bytes | None, kind: type[_M]) -> _M:
        problem = ""
        for pause in (*PAUSES, None):
            try:
                request = urllib.request.Request(f"{self.root}{path}", body, self._headers)
                with self._opener.open(request, timeout=TIMEOUT) as answer:
                    text = answer.read(MOST_BYTES + 1)
                self._is_there = True
                return _parsed(text, kind)
            except urllib.error.HTTPError as error:
                problem = f"{error.code}: {_message(error)}"
                if error.code in (401, 403):
                    raise JudgeError(
                        f"the server at {self.address} refuses the key ({problem})",
                        hint=f"Set the environment variable {KEY_VARIABLE} to the server's key.",
                    ) from error
                if error.code not in _BUSY:
                    raise ServerRefusal(problem) from error
                wait = _seconds(error.headers.get("Retry-After"))
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None)
                if isinstance(reason, ConnectionRefusedError) and not self._is_there:
                    raise self._nobody() from error
                problem, wait = str(reason or first_line(error)), None
            if pause is not None:
                time.sleep(pause if wait is None else min(wait, 60.0))
        hint = "Start it, and run the same command again: what was stored is kept."
        if self._is_there:
            hint = "It was there before: look at its log. Run the same command again: what was stored is kept."
        raise JudgeError(f"the server at {self.address} does not answer: {problem}", hint=hint)

    def is_another(self, what: str, was: object, now: object) -> JudgeError:
        """Return the error for a server that is not the one that was asked first."""
        return JudgeError(
            f"the server at {self.address} is another one now: its {what} was {was}, is {now}",
            hint="What was stored came from the first. Put it back and run the same command again, or score into "
            "another file.",
        )

    def _nobody(self) -> JudgeError:
        port = urllib.parse.urlsplit(self.address).port or 80
        return JudgeError(
            f"nothing listens at {self.address}",
            hint=f'Start a server:\n  vllm serve MODEL --port {port} --hf-overrides \'{{"head_dtype": "float32"}}\'',
        )


def _authorization() -> dict[str, str]:
    """Return the header with the server's key, if there is one."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            f"the environment variable {KEY_VARIABLE} holds characters that no key has, such as a line's end",
            hint="Set it to the key alone.",
        )
    return {"Authorization": f"Bearer {key}"} if key else {}


def _parsed(text: bytes, kind: type[_M]) -> _M:
    """Read an answer as a model."""
    if len(text) > MOST_BYTES:
        raise UnreadableAnswer(f"the answer is longer than {MOST_BYTES >> 20} MB")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        if first["type"] == "json_invalid" and "EOF" in first["msg"]:
            raise http.client.HTTPException("the answer breaks off") from error
        place = ".".join(map(str, first["loc"]))
        told = first["msg"][:1].lower() + first["msg"][1:200]
        raise UnreadableAnswer(f"the answer cannot be read: {place and place[:100] + ': '}{told}") from error


def as_done(work: Callable[[_T], _R], items: Sequence[_T], at_once: int) -> Generator[tuple[int, _R], None, None]:
    """Do some work for every item, in threads that a program does not wait for when it ends; number and result as done.

    Python waits for the threads of a `ThreadPoolExecutor`, and a request may take ten minutes.
    """
    done: queue.SimpleQueue[tuple[int, _R | None, BaseException | None]] = queue.SimpleQueue()
    places, lock = iter(range(len(items))), threading.Lock()
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            with lock:
                place = next(places, None)
            if place is None:
                return
            try:
                done.put((place, work(items[place]), None))
            except BaseException as error:
                done.put((place, None, error))

    for _ in items[:at_once]:
        threading.Thread(target=run, name="geval-local served", daemon=True).start()
    try:
        for _ in items:
            place, result, error = done.get()
            if error is not None:
                raise error
            yield place, result  # type: ignore[misc]  # None only next to an error
    finally:
        is_over.set()


def in_threads(work: Callable[[_T], _R], items: Sequence[_T], at_once: int) -> list[_R]:
    """Do some work for every item as `as_done` does; results in order."""
    found = dict(as_done(work, items, at_once))
    return [found[place] for place in range(len(items))]


def _message(error: urllib.error.HTTPError) -> str:
    """Read what a server says of an error."""
    try:
        found = json.loads(error.read(_MOST_OF_ERROR))
        told = found.get("error", found) if isinstance(found, dict) else found
        text = str(told.get("message", told) if isinstance(told, dict) else told)
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        text = str(error.reason)
    return text.splitlines()[0][:200] if text else str(error.reason)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date
        return None


def check_address(options: JudgeOptions) -> None:
    """Refuse an address outside of this machine and of private networks, unless it is asked for.

    Raises
    ------
    ConfigurationError
        If the address is public, or its host is not known.
    """
    if options.allow_remote:
        return
    parts = urllib.parse.urlsplit(str(options.name))
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"the host {parts.hostname!r} is not known: {first_line(error)}", hint="Correct the address."
        ) from error
    for address in {str(one[4][0]).partition("%")[0] for one in found}:
        if not is_private(address):
            raise ConfigurationError(
                f"{parts.hostname} ({address}) is neither this machine nor in a private network, and every text of the "
                "input would be sent there",
                hint="If that is meant, add `allow_remote`.",
            )


def is_private(address: str) -> bool:
    """Whether an IP address is this machine's, or in a network of the site's own."""
    known = ipaddress.ip_address(address)
    known = getattr(known, "ipv4_mapped", None) or known
    if known.is_loopback or known.is_link_local or known.is_unspecified:
        return True
    return any(known.version == network.version and known in network for network in _PRIVATE)
