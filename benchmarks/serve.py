"""The server under load: clients, latency and memory, against the same questions in bulk and one at a time.

SummEval's development half, consistency as a predicate: one request per summary. Every request gets an answer or 429
(and then comes again); none may be lost. The last line is one JSON object.

    python benchmarks/serve.py nano --requests 400 --clients 1 8 64 256
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from geval_local import Judge, PredicateQuestion

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "summeval_dev.json"
CLAIM = "Every claim of the summary is supported by the source."


def states(count: int) -> list[dict[str, str]]:
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    return [
        {"source": row["source"], "summary": row["system_output"]} for row in (rows * (count // len(rows) + 1))[:count]
    ]


class Server:
    """A server in a process of its own, and the most memory that it took."""

    def __init__(self, judge: str, queue: int) -> None:
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            self.port = chosen.getsockname()[1]
        command = [sys.executable, "-m", "geval_local", "serve", "--judge", judge]
        self.process = subprocess.Popen([*command, "--port", str(self.port), "--queue", str(queue)])
        self.peak = 0
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/v1/models")
                self.model = json.loads(connection.getresponse().read())["data"][0]["id"]
                break
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError("the server did not start") from None
                time.sleep(0.2)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        known = psutil.Process(self.process.pid)
        while self.process.poll() is None:
            try:
                self.peak = max(self.peak, known.memory_info().rss)
            except psutil.Error:
                return
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop it politely."""
        self.process.terminate()
        self.process.wait(120)


def drive(server: Server, wanted: list[dict[str, str]], clients: int) -> tuple[dict, dict[int, float]]:
    """Send every state once, by so many clients at a time."""
    places = iter(range(len(wanted)))
    lock = threading.Lock()
    seconds: list[float] = []
    found: dict[int, float] = {}
    refused = [0]

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            evidence = [
                {
                    "role": "user",
                    "content": f"source:\n{wanted[place]['source']}\n\nsummary:\n{wanted[place]['summary']}",
                }
            ]
            body = {
                "model": server.model,
                "input": evidence,
                "questions": [{"type": "predicate", "instructions": CLAIM}],
            }
            begin = time.perf_counter()
            while True:
                connection.request("POST", "/v1/decisions", json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 429:
                    break
                refused[0] += 1
                time.sleep(min(0.5, float(answer.headers["Retry-After"])))
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {text[:200]!r}")
            with lock:
                seconds.append(time.perf_counter() - begin)
                found[place] = json.loads(text)["answers"][0]["probability"]

    begin = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = time.perf_counter() - begin
    p50, p95, p99 = (float(np.percentile(seconds, part)) for part in (50, 95, 99))
    figures = {"clients": clients, "requests_per_second": len(seconds) / total, "p50": p50, "p95": p95, "p99": p99}
    return {
        **figures,
        "answered": len(found),
        "lost": len(wanted) - len(found),
        "busy": refused[0],
        "peak_mb": server.peak / 1e6,
    }, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge")
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--queue", type=int, default=512)
    parser.add_argument("--alone", type=int, default=50, help="how many are asked one at a time in Python")
    options = parser.parse_args()
    wanted = states(options.requests)
    judge = Judge.load(options.judge)
    question = [PredicateQuestion(instructions=CLAIM)]
    judge.decide_many(wanted[:16], question)
    begin = time.perf_counter()
    bulk = [decision[0].probability for decision in judge.decide_many(wanted, question)]
    bulk_rate = len(wanted) / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for state in wanted[: options.alone]:
        judge.decide(state, question)
    alone_rate = min(options.alone, len(wanted)) / (time.perf_counter() - begin)
    print(f"bulk {bulk_rate:.1f}/s, one at a time {alone_rate:.1f}/s", flush=True)
    del judge
    rows = []
    server = Server(options.judge, options.queue)
    try:
        for clients in options.clients:
            row, found = drive(server, wanted, clients)
            row["share_of_bulk"] = row["requests_per_second"] / bulk_rate
            row["largest_difference"] = max(abs(found[place] - bulk[place]) for place in found)
            rows.append(row)
            print("  ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
    finally:
        server.stop()
    print(
        json.dumps(
            {"judge": server.model, "requests": options.requests, "bulk": bulk_rate, "alone": alone_rate, "rows": rows}
        )
    )


if __name__ == "__main__":
    main()
