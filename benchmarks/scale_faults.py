"""Distributed runs that are killed and begun again: every row has to come out once, with its score.

    python benchmarks/scale_faults.py cluster --trials 20            # workers, nodes, the driver and the head killed
    python benchmarks/scale_faults.py files --judge nano             # 200 files, two workers, killed three times
    python benchmarks/scale_faults.py commands --trials 3            # one fault a run, by the command line

`cluster` runs on a local cluster of a head and three nodes, with the mock judge; scores have to be those of a run that
nobody disturbed. `files` uses the command line, kills first the driver, then all processes, then a worker, and compares
the parts with the file of one process; `--given` takes rows of a file instead of made-up ones. `commands` uses the
command line too, one fault a run, on JSONL and Parquet files: killed workers, drivers, raylets and heads, of the
command's own cluster and of one that it joined, and processes that stop for a while or for good. A command that cannot
finish has to end by itself with code 3 and name the command that continues it, which has to give the table of an
undisturbed run.
The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
#: Seconds after which Ray ends a driver whose head is gone; 60 by default, which is only waiting.
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "10")

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from scale import METRIC, environment_of, ids_and_scores, write_files, write_lines

NODES = 3
#: A cluster that the command joins has a token as it asks for.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
#: Seconds after which a driver whose cluster has lost its head counts as hanging.
HANGING_SECONDS = 300.0
KINDS = ("worker", "node", "driver", "head")


class LocalCluster:
    """A head without CPUs and nodes of one CPU each, as processes of this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(NODES)]

    def kill_node(self, rng: random.Random) -> None:
        """Kill a node with all that runs on it; another one joins."""
        self.cluster.remove_node(self.nodes.pop(rng.randrange(NODES)), allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))

    def kill_worker(self, rng: random.Random) -> bool:
        """Kill a process that scores; False if there is none."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "BlockScorer" in " ".join(process.cmdline()):
                    found.append(process)
        if found:
            with suppress(psutil.Error):
                rng.choice(found).kill()
        return bool(found)

    def kill_head(self) -> None:
        """Kill the head: the scheduler's memory is gone."""
        self.cluster.remove_node(self.cluster.head_node, allow_graceful=False)

    def end(self) -> None:
        """End what is left."""
        with suppress(Exception):  # parts of it are dead
            self.cluster.shutdown()


def start(arguments: argparse.Namespace, given: Path, output: Path, address: str) -> subprocess.Popen[bytes]:
    """Start a driver."""
    command = [sys.executable, str(Path(__file__).with_name("scale.py")), "one", "--given", str(given)]
    command += ["--output", str(output), "--workers", str(NODES), "--block", str(arguments.block)]
    command += ["--address", address]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment_of(output), stdout=quiet, stderr=quiet, start_new_session=True)


def parts_of(output: Path) -> int:
    """Count the parts so far."""
    return len(list(output.glob("part-*.parquet")))


def wait_for(driver: subprocess.Popen[bytes], is_time: Callable[[], bool]) -> bool:
    """Wait until it is time; False if the driver has ended before."""
    while driver.poll() is None:
        if is_time():
            return True
        time.sleep(0.05)
    return False


def table_of(output: Path) -> pa.Table:
    """Read all parts as one table; they have to have one schema."""
    return pa.concat_tables([pq.read_table(path).replace_schema_metadata() for path in sorted(output.glob("part-*"))])


def next_moment(rng: random.Random, output: Path, pause: tuple[float, float]) -> Callable[[], bool]:
    """Draw the moment of a kill: after some seconds, which may be before scoring, or after some more parts."""
    if rng.random() < 0.4:
        end = time.monotonic() + rng.uniform(*pause)
        return lambda: time.monotonic() >= end
    parts = parts_of(output) + rng.randint(1, 12)
    return lambda: parts_of(output) >= parts


def trial(arguments: argparse.Namespace, rng: random.Random, given: Path, output: Path) -> dict[str, object]:
    """Do one run to its end, and disturb it."""
    cluster, killed, hung, starts = LocalCluster(), [], 0, 0
    begin = time.monotonic()
    try:
        while starts < arguments.kills + 3:
            driver = start(arguments, given, output, cluster.cluster.address)
            starts += 1
            while len(killed) < arguments.kills and wait_for(driver, next_moment(rng, output, arguments.pause)):
                kind = rng.choice(KINDS)
                at = parts_of(output)
                if kind == "worker" and not cluster.kill_worker(rng):
                    continue
                if kind == "node":
                    cluster.kill_node(rng)
                if kind == "driver":
                    driver.kill()
                if kind == "head":
                    cluster.kill_head()
                    with suppress(subprocess.TimeoutExpired):
                        driver.wait(HANGING_SECONDS)
                    hung += driver.poll() is None
                    driver.kill()
                    cluster.end()
                    cluster = LocalCluster()
                killed.append(f"{kind} at {at}")
                if kind in ("driver", "head"):
                    driver.wait()
            if driver.wait() == 0:
                break
    finally:
        cluster.end()
    return {"kills": killed, "starts": starts, "hung": hung, "seconds": round(time.monotonic() - begin)}


def cluster(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Kill workers, nodes, the driver and the head at random."""
    rng = random.Random(arguments.seed)
    write_files(place / "in", arguments.rows, arguments.files)
    whole = LocalCluster()
    start(arguments, place / "in", place / "whole", whole.cluster.address).wait()
    whole.end()
    ids, scores = ids_and_scores(place / "whole")
    if len(ids) != arguments.rows:
        raise SystemExit(f"undisturbed, {len(ids)} of {arguments.rows} rows came out")
    results = []
    for number in range(arguments.trials):
        output = place / f"out{number}"
        result = trial(arguments, rng, place / "in", output)
        found, values = ids_and_scores(output)
        result |= {
            "rows": len(found),
            "exact": bool(np.array_equal(found, ids) and np.array_equal(values, scores)),
            "left_over": sorted(path.name for path in output.iterdir() if path.suffix == ".tmp"),
        }
        results.append(result)
        print(number, result, flush=True)
        shutil.rmtree(output)
    print(f"{sum(bool(one['exact']) for one in results)} of {len(results)} runs exact")
    return results


def files(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Kill a run over many files three times; compare it with one process."""
    rows = split(arguments, place)
    options = ["-m", METRIC, "-j", arguments.judge, "--window", str(arguments.block)]
    score = [sys.executable, "-m", "geval_local", "score"]
    begin = time.monotonic()
    whole = [*score, str(place / "whole.parquet"), *options, "-o", str(place / "one.parquet")]
    subprocess.run(whole, check=True, env=environment_of(place / "one"), stdout=subprocess.DEVNULL)
    alone = time.monotonic() - begin
    output, killed, begin = place / "parts", [], time.monotonic()
    command = [*score, str(place / "in"), *options, "-o", f"{output}/", "--workers", "ray:2"]
    for kind in ("driver", "everything", "worker"):
        wanted = parts_of(output) + arguments.files // 5
        run = subprocess.Popen(command, env=environment_of(output), stdout=subprocess.DEVNULL, start_new_session=True)
        if not wait_for(run, lambda least=wanted: parts_of(output) >= least):
            raise SystemExit(f"the run ended with exit code {run.returncode} before it was killed")
        below = psutil.Process(run.pid).children(recursive=True)
        workers = [one for one in below if "BlockScorer" in " ".join(one.cmdline())]
        for one in {"driver": [], "everything": below, "worker": workers[:1]}[kind]:
            with suppress(psutil.Error):
                one.kill()
        if kind != "worker":
            run.send_signal(signal.SIGKILL)
        killed.append(f"{kind} at {parts_of(output)} parts")
        run.wait()
        command = [sys.executable, "-m", "geval_local", "resume", str(output)]
    if run.returncode:
        subprocess.run(command, check=True, env=environment_of(output), stdout=subprocess.DEVNULL)
    distributed = time.monotonic() - begin
    ids, scores = ids_and_scores(output)
    expected, reference = ids_and_scores(place / "one.parquet")
    figures = {
        "files": arguments.files,
        "parts": parts_of(output),
        "rows": rows,
        "rows_out": len(ids),
        "kills": killed,
        "each_row_once": bool(np.array_equal(ids, expected)) and len(ids) == rows,
        "largest_difference": float(np.max(np.abs(scores - reference))) if len(ids) == rows else None,
        "unscored": int(np.isnan(scores).sum()),
        "seconds_one_process": round(alone, 1),
        "seconds_with_kills": round(distributed, 1),
    }
    print(figures)
    return [figures]


#: Fault of a command -> the process that it strikes, and its signal. Those of `joined` strike a cluster that it joined.
FAULTS = {
    "worker": ("BlockScorer", signal.SIGKILL),
    "driver": ("driver", signal.SIGKILL),
    "ended": ("driver", signal.SIGTERM),
    "raylet": ("raylet", signal.SIGKILL),
    "head": ("gcs_server", signal.SIGKILL),
    "slow raylet": ("raylet", signal.SIGSTOP),
    "slow head": ("gcs_server", signal.SIGSTOP),
    "slow start": ("raylet", signal.SIGSTOP),
    "hung raylet": ("raylet", signal.SIGSTOP),
    "hung head": ("gcs_server", signal.SIGSTOP),
    "joined head": ("gcs_server", signal.SIGKILL),
    "joined raylet": ("raylet", signal.SIGKILL),
    "joined slow raylet": ("raylet", signal.SIGSTOP),
}


class JoinedCluster:
    """A cluster as `ray start --head` begins it; its processes are known by their directory."""

    def __init__(self, place: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ray-f-", dir="/tmp"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = environment_of(place) | TOKEN
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--include-dashboard=false"]
        command += [f"--port={port}", "--num-cpus=2", f"--temp-dir={self.directory}", "--disable-usage-stats"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        self.address = re.search(r"Local node IP: (\S+)", done.stdout)[1] + f":{port}"  # type: ignore[index]

    def processes(self) -> list[psutil.Process]:
        """List the processes of the cluster, and no others."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if str(self.directory) in " ".join(process.cmdline()):
                    found += [process, *process.children(recursive=True)]
        return found

    def end(self) -> None:
        """End what is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def find(run: subprocess.Popen[str], joined: JoinedCluster | None, name: str) -> list[psutil.Process]:
    """Find the processes of a run by a word of their command lines; the driver is the command's child."""
    if name == "driver":
        return psutil.Process(run.pid).children()[:1]
    found = []
    with suppress(psutil.Error):
        for process in joined.processes() if joined else psutil.Process(run.pid).children(recursive=True):
            with suppress(psutil.Error):
                words = process.cmdline()
                if words and (name in words[0] or (name == "BlockScorer" and name in " ".join(words))):
                    found.append(process)
    return found


def strike(run: subprocess.Popen[str], joined: JoinedCluster | None, kind: str, seconds: float) -> bool:
    """Send the signal of a fault; a slow process continues after some seconds. False if there is no such process."""
    name, number = FAULTS[kind]
    found = find(run, joined, name)
    for process in found[:1]:
        with suppress(psutil.Error):
            process.send_signal(number)
            if "slow" in kind:
                time.sleep(seconds)
                process.send_signal(signal.SIGCONT)
    return bool(found)


def command_trial(arguments: argparse.Namespace, kind: str, rng: random.Random, place: Path) -> dict[str, object]:
    """Do one run by the command line with one fault, and continue it to its end."""
    output = place / f"out {kind}"
    joined = JoinedCluster(place) if kind.startswith("joined") else None
    environment = environment_of(place / "out") | (TOKEN if joined else {})
    command = [sys.executable, "-m", "geval_local"]
    score = [*command, "score", str(place / "in"), "-m", METRIC, "-j", arguments.judge, "-o", f"{output}/"]
    score += ["--window", str(arguments.block), "--workers", "ray:2"]
    score += ["--address", joined.address] if joined else []
    parts, seconds = rng.randint(1, arguments.rows // arguments.block * 3 // 4), rng.uniform(*arguments.pause)
    begin = time.monotonic()
    run = subprocess.Popen(score, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                           start_new_session=True)  # fmt: skip
    try:
        if kind == "slow start":
            struck = wait_for(run, lambda: bool(find(run, joined, "raylet")))
        else:
            struck = wait_for(run, lambda: parts_of(output) >= parts)
        at = parts_of(output)
        hanging = find(run, joined, FAULTS[kind][0]) if struck and "hung" in kind else []
        struck = struck and strike(run, joined, kind, seconds)
        fault = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            run.wait(HANGING_SECONDS)
        hung, took = run.poll() is None, time.monotonic() - fault
        if hung:
            run.kill()
        for process in hanging:
            with suppress(psutil.Error):
                process.kill()
        told = run.communicate()[1]
        code, resumed = run.returncode, 0
        if joined:
            joined.end()
            joined = JoinedCluster(place)
            score[score.index("--address") + 1] = joined.address
        while run.returncode and resumed < 3:
            resumed += 1
            again = [*command, "resume", str(output)] if joined is None else score
            run = subprocess.Popen(again, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            last = run.communicate()[1]
    finally:
        if joined:
            joined.end()
    result = {"fault": kind, "struck": struck, "at": at, "stopped_for": round(seconds) if "slow" in kind else None}
    result |= {"code": code, "hung": hung, "seconds_to_end": round(took), "seconds": round(time.monotonic() - begin)}
    result |= {"names_resume": "geval-local resume" in told, "traceback": "Traceback" in told, "resumed": resumed}
    if run.returncode:
        result["last_words"] = last[-600:]
    result["right"] = not hung and code in ((0, 3, -9) if kind == "driver" else (0, 3)) and not run.returncode
    result["right"] = result["right"] and (code == 0 or result["names_resume"]) and not result["traceback"]
    if not result["right"]:
        result["words"] = told[-600:]
    return result


def commands(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Let one fault after the other happen to the command line."""
    write_files(place / "in", arguments.rows, arguments.files, words=60)
    for path in sorted((place / "in").iterdir())[::2]:
        write_lines(path, path.with_suffix(".jsonl"))
        path.unlink()
    common = ["-m", METRIC, "-j", arguments.judge, "--window", str(arguments.block), "--workers", "ray:2"]
    command = [sys.executable, "-m", "geval_local", "score", str(place / "in"), *common]
    whole = [*command, "-o", f"{place / 'whole'}/"]
    subprocess.run(whole, check=True, env=environment_of(place / "out"), stdout=subprocess.DEVNULL, stderr=-3)
    expected, results = table_of(place / "whole"), []
    for number in range(arguments.trials):
        for kind in arguments.kinds or FAULTS:
            rng = random.Random(f"{arguments.seed} {number} {kind}")
            result = command_trial(arguments, kind, rng, place)
            output = place / f"out {kind}"
            result["equal"] = parts_of(output) > 0 and table_of(output).equals(expected)
            result["left_over"] = sorted(path.name for path in output.glob(".*.tmp"))
            results.append(result)
            print(number, result, flush=True)
            shutil.rmtree(output, ignore_errors=True)
    good = [bool(one["right"] and one["equal"]) for one in results]
    print(f"{sum(good)} of {len(good)} runs ended as they should, with an equal table")
    return results


def split(arguments: argparse.Namespace, place: Path) -> int:
    """Write the input as many files and as one; return its rows."""
    if arguments.given is None:
        write_files(place / "in", arguments.rows, arguments.files)
        table = pq.read_table(place / "in")
    else:
        from geval_local.fields import resolve
        from geval_local.io.samples import read_samples

        rows = [sample.fields for sample in read_samples(arguments.given, limit=arguments.rows)]
        names = resolve(("source", "output"), tuple(rows[0]))
        own = [{"id": number, **{field: row[names[field]] for field in names}} for number, row in enumerate(rows)]
        table = pa.Table.from_pylist(own)
        (place / "in").mkdir()
        each = -(-len(own) // arguments.files)
        for number, first in enumerate(range(0, len(own), each)):
            pq.write_table(table.slice(first, each), place / "in" / f"{number:05d}.parquet")
    pq.write_table(table, place / "whole.parquet")
    return int(table.num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["cluster", "files", "commands"])
    parser.add_argument("--rows", type=int, help="40000; for files 3200, or those of --given; for commands 2000")
    parser.add_argument("--files", type=int, help="8; for files 200; for commands 20")
    parser.add_argument("--block", type=int, help="rows of a block; 500, for files 64, for commands 50")
    parser.add_argument("--judge", default="nano")
    parser.add_argument("--given", type=Path, help="files: a file with the columns source and output")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--pause", type=float, nargs=2, help="seconds before a kill, or of a stop")
    parser.add_argument("--kinds", nargs="*", choices=FAULTS, help="commands: these faults only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="where inputs and runs go; a temporary one when absent")
    arguments = parser.parse_args()
    defaults = {"cluster": (40_000, 8, 500), "files": (3200, 200, 64), "commands": (2000, 20, 50)}[arguments.what]
    arguments.pause = arguments.pause or ([20.0, 40.0] if arguments.what == "commands" else [2.0, 40.0])
    for name, value in zip(("rows", "files", "block"), defaults, strict=True):
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="faults-") as place:
        results = {"cluster": cluster, "files": files, "commands": commands}[arguments.what](Path(place), arguments)
    options = {name: value for name, value in vars(arguments).items() if name not in ("directory", "given")}
    record = {"benchmark": f"scale_faults {arguments.what}", "date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()}
    print(json.dumps(record | {"options": options, "results": results}))


if __name__ == "__main__":
    main()
