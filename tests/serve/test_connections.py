"""How long a connection lives: every state that is not a request in work has a deadline on its total time."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time

import pytest
from waiting import until

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` (uvicorn) is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` (prometheus-client) is not installed")

from serving import serving

from geval_local.testing import MockEngine, MockJudge

HOST = b"Host: localhost\r\n"
POST = b"POST /v1/decisions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"


def decision(questions=1, text="A text.", name="n", instructions="It rains."):
    asked = [
        {"type": "predicate", "name": f"{name}{number}", "instructions": instructions} for number in range(questions)
    ]
    return json.dumps({"model": "mock", "input": text, "questions": asked}).encode()


def posted(content):
    return POST + b"Content-Length: %d\r\n\r\n%s" % (len(content), content)


def said(client, seconds=300):
    """Everything that the server says until it closes the connection."""
    client.settimeout(seconds)
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            found += part
    return found


def statuses(found):
    return re.findall(rb"HTTP/1\.1 (\d+) ", found)


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000\r\n\r\n", b"200"),
        (b"POST /nothing HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000\r\n\r\n", b"404"),
        (b"POST /v1/decisions HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000\r\n\r\n", b"415"),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n", b"200"),
    ],
    ids=["health", "nothing", "refused", "chunked"],
)
def test_a_body_that_nobody_reads_and_that_does_not_end_is_given_up(begin, status):
    with serving(MockJudge(), head_seconds=0.5) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(begin)
        client.settimeout(300)
        first = client.recv(4096)
        client.sendall(b"x")
        assert statuses(first + said(client)) == [status]


def test_a_client_that_asks_and_never_reads_is_let_go():
    asked = decision(400, name="x" * 10_000)
    judge = MockJudge(MockEngine(batch_tokens=1 << 20))
    with serving(judge, head_seconds=0.5) as (port, server), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(posted(asked))
        client.settimeout(300)
        with contextlib.suppress(ConnectionError):
            while True:  # a TimeoutError is a failure
                client.sendall(HEALTH * 100)
                time.sleep(0.01)
        until(lambda: server.batchers["mock"].pending == 0)


def test_silent_clients_shut_nobody_out_beyond_their_time():
    unread = HEALTH.replace(HOST, HOST + b"Content-Length: 9\r\n")
    silent = [b"", b"G", POST, POST + b"Content-Length: 9\r\n\r\n{", unread]
    limits = {"head_seconds": 0.5, "body_seconds": 0.5, "connections": 20}
    with serving(MockJudge(), **limits) as (port, _), contextlib.ExitStack() as kept:
        for number in range(20):
            client = kept.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(silent[number % len(silent)])

        def is_served():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as good:
                good.sendall(posted(decision()))
                good.settimeout(300)
                return statuses(good.recv(1 << 16)) == [b"200"]
            return False

        until(is_served)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_sends_no_more_gets_its_answer(version):
    engine = MockEngine(seconds=0.1, batch_tokens=1000)
    with serving(MockJudge(engine)) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(posted(decision(100)).replace(b"HTTP/1.1", b"HTTP/" + version))
        client.shutdown(socket.SHUT_WR)
        found = said(client)
    *interim, last = statuses(found)
    assert last == b"200"
    assert set(interim) == (set() if version == b"1.0" else {b"100"})
    assert len(json.loads(found[found.rindex(b"\r\n\r\n") :])["answers"]) == 100


def test_requests_in_a_row_are_all_answered_to_a_client_that_sends_no_more():
    with serving(MockJudge()) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(posted(decision()) + HEALTH + posted(decision()))
        client.shutdown(socket.SHUT_WR)
        assert [one for one in statuses(said(client)) if one != b"100"] == [b"200"] * 3


def test_a_client_that_leaves_frees_its_work():
    engine = MockEngine(seconds=0.05, batch_tokens=1)
    with serving(MockJudge(engine)) as (port, server):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(posted(decision(400, instructions="It rains. " * 40)))
            until(lambda: server.batchers["mock"].pending == 1)
        until(lambda: server.batchers["mock"].pending == 0)
        assert engine.executed_packs < 400


def test_a_body_that_ends_early_is_dropped_and_holds_nothing():
    with serving(MockJudge()) as (port, server), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(POST + b"Content-Length: 5000\r\n\r\n{")
        client.shutdown(socket.SHUT_WR)
        assert said(client) == b""
        until(lambda: server.body_bytes.held == 0)


@pytest.mark.slow
def test_a_connection_may_rest_between_its_requests():
    """The time is each state's own: it is not that of the connection."""
    judge = MockJudge(MockEngine(seconds=2.0))
    with serving(judge, head_seconds=5.0) as (port, _), socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(300)
        for _ in range(3):
            client.sendall(posted(decision()))
            found = b""
            while not found.endswith(b"}}"):
                found += client.recv(1 << 16)
            assert statuses(found) == [b"200"]
