"""The server under load: clients, latency and memory, against the same questions in bulk and one at a time.

SummEval's development half, consistency as a predicate: one request per summary; 800 are all of it. Bulk is
`decide_file`, with its run directory and result file. Every request gets an answer or 429 (and then comes again); none
may be lost, and every probability is compared with that of bulk. Every round runs bulk and then the server with each
number of clients; medians over the rounds are printed at the end. Rates per second of the clock say little on a machine
that does other work, so processor time per question is given too: of bulk, of the server's process (`processor_ms`),
and of the clients (`client_ms`), which share this process with bulk. `--soak` sends so many requests more at the end
and tells the server's memory on the way; with `--short` these are about the summary alone, and no two are alike. The
last line is one JSON object.

With more torch threads than idle cores, processor time says nothing either: set OMP_NUM_THREADS.

    OMP_NUM_THREADS=1 python benchmarks/serve.py nano --requests 800 --clients 1 8 64 256
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from geval_local import Judge, PredicateQuestion, decide_file

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "summeval_dev.json"
CLAIM = "Every claim of the summary is supported by the source."


def states(count: int) -> list[dict[str, str]]:
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    return [
        {"source": row["source"], "summary": row["system_output"]} for row in (rows * (count // len(rows) + 1))[:count]
    ]


class Server:
    """A server in a separate process, and its peak memory."""

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
                connection.request("GET", "/ready")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                pass
            if self.process.poll() is not None:
                raise RuntimeError("the server did not start")
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

    @property
    def memory(self) -> float:
        """Megabytes that it holds now."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6

    @property
    def processor_seconds(self) -> float:
        """What it has used."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        """Stop it by SIGTERM."""
        self.process.terminate()
        self.process.wait(120)


def drive(server: Server, wanted: list[dict[str, str]], clients: int) -> tuple[dict, dict[int, float]]:
    """Send every state once, by a number of clients at a time."""
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

    begin, used, own = time.perf_counter(), server.processor_seconds, time.process_time()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total, used = time.perf_counter() - begin, server.processor_seconds - used
    own = time.process_time() - own
    p50, p95, p99 = (float(np.percentile(seconds, part)) for part in (50, 95, 99))
    figures = {"requests_per_second": len(seconds) / total, "p50": p50, "p95": p95, "p99": p99}
    return {
        **figures,
        "answered": len(found),
        "lost": len(wanted) - len(found),
        "busy": refused[0],
        "processor_ms": 1000 * used / max(1, len(found)),
        "client_ms": 1000 * own / max(1, len(found)),
        "memory_mb": server.memory,
        "peak_mb": server.peak / 1e6,
    }, found


def in_bulk(judge: Judge, wanted: list[dict[str, str]], question: list[PredicateQuestion]) -> tuple[dict, list[float]]:
    """Ask all in bulk."""
    with tempfile.TemporaryDirectory() as place:
        rows_file, output = Path(place) / "rows.jsonl", Path(place) / "decisions.jsonl"
        rows_file.write_text("".join(json.dumps(state) + "\n" for state in wanted), encoding="utf-8")
        begin, used = time.perf_counter(), time.process_time()
        decide_file(rows_file, question, judge, output, state=["source", "summary"], use_cache=False)
        total, used = time.perf_counter() - begin, time.process_time() - used
        decided = [json.loads(line)["decisions"] for line in output.read_text(encoding="utf-8").splitlines()]
    figures = {"questions_per_second": len(wanted) / total, "processor_ms": 1000 * used / len(wanted)}
    return figures, [answers["consistent"]["probability"] for answers in decided]


def one_at_a_time(judge: Judge, wanted: list[dict[str, str]], question: list[PredicateQuestion]) -> dict:
    """Ask one after the other."""
    begin, used = time.perf_counter(), time.process_time()
    for state in wanted:
        judge.decide(state, question)
    total, used = time.perf_counter() - begin, time.process_time() - used
    return {"questions_per_second": len(wanted) / total, "processor_ms": 1000 * used / len(wanted)}


def show(name: str, row: dict) -> None:
    print(name, "  ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge")
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--queue", type=int, default=512)
    parser.add_argument("--soak", type=int, default=0, help="requests of 64 clients that follow, for the memory")
    parser.add_argument("--short", action="store_true", help="these are about the summary alone, each another one")
    parser.add_argument("--alone", type=int, default=50, help="how many are asked one at a time in Python")
    options = parser.parse_args()
    wanted = states(options.requests)
    judge = Judge.load(options.judge)
    question = [PredicateQuestion(name="consistent", instructions=CLAIM)]
    judge.decide_many(wanted[:16], question)
    server = Server(options.judge, options.queue)
    rounds: list[dict[str, dict]] = []
    memory: list[float] = []
    try:
        alone = one_at_a_time(judge, wanted[: options.alone], question)
        show("one at a time", alone)
        for number in range(options.rounds):
            bulk, expected = in_bulk(judge, wanted, question)
            rounds.append({"bulk": bulk})
            show("bulk", bulk)
            for clients in options.clients:
                row, found = drive(server, wanted, clients)
                row["share_of_bulk"] = row["requests_per_second"] / bulk["questions_per_second"]
                row["share_of_bulk_processor"] = bulk["processor_ms"] / row["processor_ms"]
                row["largest_difference"] = max(abs(found[place] - expected[place]) for place in found)
                rounds[number][str(clients)] = row
                show(f"{clients} clients", row)
        medians = {
            name: {key: float(np.median([one[name][key] for one in rounds])) for key in row}
            for name, row in rounds[0].items()
        }
        if options.rounds > 1:
            for name, row in medians.items():
                show(f"median, {name}", row)
        for sent in range(0, options.soak, 1000):
            some = list(itertools.islice(itertools.cycle(wanted), sent, sent + min(1000, options.soak - sent)))
            if options.short:
                some = [
                    {"source": f"(number {sent + place})", "summary": state["summary"]}
                    for place, state in enumerate(some)
                ]
            drive(server, some, 64)
            memory.append(server.memory)
            print(f"after {sent + len(some)} more: {server.memory:.0f} MB", flush=True)
    finally:
        server.stop()
    figures = {"alone": alone, "medians": medians, "rounds": rounds, "soak": memory}
    print(json.dumps({"judge": server.model, "requests": options.requests, **figures}))


if __name__ == "__main__":
    main()
