"""A server on a real socket: clients that leave, dawdle or come in thousands, and a polite stop."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import until

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` (uvicorn) is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` (prometheus-client) is not installed")

import forked
from cli_run import judge_directory, run
from serving import serving

from geval_local.testing import MockEngine, MockJudge


def body(questions=1, text="A text."):
    asked = [{"type": "predicate", "instructions": f"Statement {number}."} for number in range(questions)]
    return json.dumps({"model": "mock", "input": text, "questions": asked}).encode()


def post(port, content, path="/v1/decisions", timeout=300, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, content, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.slow
def test_a_client_that_leaves_frees_its_work():
    engine = MockEngine(seconds=0.02, batch_tokens=1000)
    with serving(MockJudge(engine)) as (port, server):
        client = socket.create_connection(("127.0.0.1", port))
        content = body(400)
        client.sendall(
            b"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        until(lambda: server.batchers["mock"].pending == 1)
        client.close()
        until(lambda: not server.batchers["mock"].pending)
        assert server.batchers["mock"].pending == 0
        packs = engine.executed_packs
        assert post(port, body())[0] == 200
        assert engine.executed_packs == packs + 1


def test_a_slow_body_is_given_up_and_others_are_served_meanwhile():
    with serving(MockJudge(), body_seconds=0.5) as (port, _), socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(
            b"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        )
        assert post(port, body())[0] == 200
        slow.settimeout(300)
        assert b" 408 " in slow.recv(4096).split(b"\r\n")[0]


@pytest.mark.slow
def test_thousands_of_idle_connections_hold_nobody_up():
    with serving(MockJudge()) as (port, _), contextlib.ExitStack() as stack:
        for _ in range(1500):
            try:
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300))
            except OSError:  # this process has no more descriptors
                break
        assert post(port, body())[0] == 200


@pytest.mark.sweep
@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\r\n b: c\r\n\r\n",
    ],
)
def test_broken_requests_do_not_stop_the_server(raw):
    with serving(MockJudge()) as (port, _):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(5)
            with contextlib.suppress(OSError):
                client.sendall(raw)
                answer = client.recv(65536)
                assert b" 500 " not in answer.split(b"\r\n")[0]
        assert post(port, body())[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 20_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000,
    ],
)
def test_a_head_that_is_too_long_is_told(head):
    with serving(MockJudge()) as (port, _), socket.create_connection(("127.0.0.1", port), timeout=300) as client:
        client.sendall(head)
        found = b"".join(iter(lambda: client.recv(65536), b""))
        assert found.startswith(b"HTTP/1.1 431 ")


def test_a_long_body_behind_a_short_head_is_no_long_head():
    content = body(text="a" * 200_000)
    with serving(MockJudge()) as (port, _), socket.create_connection(("127.0.0.1", port), timeout=300) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_what_comes_behind_a_request_of_two_lengths_is_no_request():
    first = HEAD.replace(b"Connection: close\r\n", b"") + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    second = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(MockJudge()) as (port, _), socket.create_connection(("127.0.0.1", port), timeout=300) as client:
        client.sendall(first + chunked(body(), 100) + second)
        found = b"".join(iter(lambda: client.recv(65536), b""))
        assert found.count(b"HTTP/1.1 ") == 1
        assert found.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([b"Bearer key"], b"200"),
        ([b"bearer  key "], b"200"),
        ([b"Bearer key\xa0"], b"401"),
        ([b"Bearer key\x0b"], b"400"),
        ([b"Bearer key", b"Bearer other"], b"401"),
        ([b"Bearer key", b"Bearer key"], b"401"),
        ([b"Basic key"], b"401"),
        ([], b"401"),
    ],
)
def test_one_key_is_sent_once_and_to_the_letter(headers, status):
    lines = b"".join(b"Authorization: " + one + b"\r\n" for one in headers)
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    served = serving(MockJudge(), api_key="key")
    with served as (port, _), socket.create_connection(("127.0.0.1", port), timeout=300) as client:
        client.sendall(head + lines + b"\r\n")
        assert client.recv(65536).split()[1] == status


HEAD = b"POST /v1/decisions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"


def chunked(content, size):
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("rest", "statuses"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body(), 7), [b"200"]),
        (b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b" " * 150_000, 5000), [b"413"]),
        (b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffffff\r\n{}\r\n0\r\n\r\n", [b"400"]),
        (b"Content-Length: 10\r\n\r\n" + body(), [b"400"]),
        (b"\r\n", [b"400"]),
        (b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s" % (len(body()), body()), [b"100", b"200"]),
    ],
)
def test_how_a_body_may_be_sent(rest, statuses):
    with serving(MockJudge(), max_body=100_000) as (port, _):
        with socket.create_connection(("127.0.0.1", port), timeout=300) as client:
            client.sendall(HEAD + rest)
            found = b"".join(iter(lambda: client.recv(65536), b""))
        assert [line.split()[1] for line in found.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")] == statuses
        assert post(port, body())[0] == 200


def test_a_body_that_ends_early_holds_nothing():
    with serving(MockJudge()) as (port, server):
        with socket.create_connection(("127.0.0.1", port), timeout=300) as client:
            client.sendall(HEAD + b"Content-Length: 5000\r\n\r\n" + body())
        until(lambda: not server.body_bytes.held)
        assert server.body_bytes.held == 0
        assert server.batchers["mock"].pending == 0
        assert post(port, body())[0] == 200


@pytest.mark.slow
def test_a_large_call_does_not_hold_up_a_small_one():
    judge = MockJudge(MockEngine(seconds=0.02, batch_tokens=1000))
    with serving(judge) as (port, server), ThreadPoolExecutor(1) as pool:
        large = pool.submit(post, port, body(400))
        until(lambda: server.batchers["mock"].pending == 1)
        assert post(port, body(1, "Another text."))[0] == 200
        assert not large.done()
        status, content = large.result(60)
        assert (status, len(json.loads(content)["answers"])) == (200, 400)


def test_a_body_over_the_limit_gets_its_answer():
    with serving(MockJudge(), max_body=100_000) as (port, _):
        assert post(port, b" " * 500_000)[0] == 413


def test_a_wrong_key_with_a_large_body_gets_its_answer():
    with serving(MockJudge(), api_key="right", max_body=4 << 20) as (port, _):
        assert post(port, b" " * (4 << 20), headers={"Authorization": "Bearer wrong"})[0] == 401


def start_server(*arguments):
    process = forked.start(["serve", "--judge", judge_directory(), *arguments], stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("serving"):
            break
    return process, lines


def free_port():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


def when_ready(port):
    deadline = time.monotonic() + 120
    status = 0
    while status != 200 and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            status = get(port, "/ready")[0]
        time.sleep(0.1)
    assert status == 200


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_stop_finishes_what_is_in_work(stop):
    port = free_port()
    process, lines = start_server("--port", str(port))
    try:
        when_ready(port)
        name = judge_directory().name
        content = body(400, "word " * 300).replace(b"mock", name.encode())
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(post, port, content, timeout=300)
            while f'geval_pending_calls{{model="{name}"}} 1.0' not in get(port, "/metrics")[1].decode():
                assert not answer.done()
            process.send_signal(stop)
            # No more connections are taken, and the request goes on. One that waits to be taken is reset, not refused.
            with contextlib.suppress(ConnectionError):
                while not answer.done():
                    get(port, "/health")
                    time.sleep(0.05)
            found = answer.result(300)
        assert found[0] == 200
        assert len(json.loads(found[1])["answers"]) == 400
        assert process.wait(300) == 0
        assert "finished" in process.stderr.read()
        assert str(judge_directory().parent) not in "".join(lines)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_port_answers_while_libraries_are_imported():
    """torch is imported by the thread that loads the judge, after the socket listens."""
    port = free_port()
    command = [sys.executable, "-X", "importtime", "-m", "geval_local", "serve", "--judge", str(judge_directory())]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stderr=said, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        try:
            seen = set()
            while 200 not in seen:
                assert process.poll() is None
                with contextlib.suppress(ConnectionRefusedError):
                    assert get(port, "/health")[0] == 200
                    seen.add(get(port, "/ready")[0])
                time.sleep(0.02)
            assert seen == {503, 200}
            said.seek(0)
            text = said.read()
            assert text.index("loading ") < re.search(r"\| +torch\n", text).start()
        finally:
            process.kill()
            process.wait()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("requests", "megabytes"), [(900, 15), (3000, 30)])
def test_thousands_of_requests_and_then_flat_memory(requests, megabytes):
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")
    port = free_port()
    process, _ = start_server("--port", str(port))
    name = judge_directory().name.encode()
    try:
        when_ready(port)

        def ask(number):
            content = body(1, f"Text number {number}.").replace(b"mock", name).replace(b"Statement", b"%d:" % number)
            return post(port, content)[0]

        held = []
        with ThreadPoolExecutor(16) as pool:
            for start in range(0, requests, requests // 6):
                assert set(pool.map(ask, range(start, start + requests // 6))) == {200}
                held.append(psutil.Process(process.pid).memory_info().rss / 1e6)
        assert held[-1] - held[1] < megabytes, held
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_it_opens_nothing_but_its_socket():
    """The process is asked what it listens on and is connected to, after a request."""
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")
    port = free_port()
    process, _ = start_server("--port", str(port))
    try:
        deadline = time.monotonic() + 30
        status = 0
        while status != 200 and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                status = post(port, body().replace(b"mock", judge_directory().name.encode()))[0]
        assert status == 200
        kept = [c for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN" or c.raddr]
        assert {(c.laddr.ip, c.laddr.port) for c in kept} == {("127.0.0.1", port)}
    finally:
        process.kill()
        process.wait()


def test_an_address_for_all_without_a_key_is_refused_before_loading(monkeypatch, tmp_path):
    monkeypatch.delenv("GEVAL_LOCAL_API_KEY", raising=False)
    done = run("serve", "--host", "0.0.0.0", home=tmp_path)
    assert done.exit_code == 2
    assert "needs an API key" in done.stderr
    assert "loading" not in done.stderr


def test_an_address_that_is_taken_is_told_before_loading(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("serve", "--port", taken.getsockname()[1], home=tmp_path)
    assert done.exit_code == 2
    assert "cannot listen" in done.stderr
    assert "loading" not in done.stderr
