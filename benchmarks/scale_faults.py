"""Commands on Ray that are disturbed: every row has to come out once, with its score.

    python benchmarks/scale_faults.py --trials 3            # one fault a run
    python benchmarks/scale_faults.py --kinds worker head

Workers, commands, raylets and heads of a cluster that the command joined are killed, or stop for a while or for good. A
command that cannot finish has to end by itself with code 3 and name the command that continues it, which has to give
the bytes of an undisturbed run, on another cluster. The last line of the output is JSON.
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

import psutil
from scale import METRIC, write_files, write_lines

#: A cluster that the command joins has a token as it asks for.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
#: Seconds after which a driver whose cluster has lost its head counts as hanging.
HANGING_SECONDS = 300.0
#: A fault comes when shares have stored at most so much.
STORED_BYTES = 400_000


def environment_of(place: Path) -> dict[str, str]:
    """Return the environment of a command with a home of its own."""
    return os.environ | {"GEVAL_LOCAL_HOME": str(place / "home"), "OMP_NUM_THREADS": "1"}


def stored(output: Path) -> int:
    """Return the bytes that the shares of a run have stored so far."""
    return sum(path.stat().st_size for path in output.parent.glob(f".{output.name}.run/shares/*/scores.sqlite*"))


def wait_for(driver: subprocess.Popen[str], is_time: Callable[[], bool]) -> bool:
    """Wait until it is time; False if the driver has ended before."""
    while driver.poll() is None:
        with suppress(OSError):  # a file of SQLite has just gone
            if is_time():
                return True
        time.sleep(0.05)
    return False


#: Fault -> the process that it strikes, and its signal. The driver is the command's process that talks to Ray.
FAULTS = {
    "worker": ("_Actor", signal.SIGKILL),
    "command": ("command", signal.SIGKILL),
    "ended": ("command", signal.SIGTERM),
    "driver": ("driver", signal.SIGKILL),
    "raylet": ("raylet", signal.SIGKILL),
    "head": ("gcs_server", signal.SIGKILL),
    "slow raylet": ("raylet", signal.SIGSTOP),
    "slow head": ("gcs_server", signal.SIGSTOP),
    "hung raylet": ("raylet", signal.SIGSTOP),
    "hung head": ("gcs_server", signal.SIGSTOP),
}


class Cluster:
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


def find(run: subprocess.Popen[str], cluster: Cluster, name: str) -> list[psutil.Process]:
    """Find the processes of a run, and of its cluster, by a word of their command lines."""
    if name in ("command", "driver"):
        command = psutil.Process(run.pid)
        return [command] if name == "command" else command.children()[:1]
    found = []
    for process in cluster.processes():
        with suppress(psutil.Error):
            words = process.cmdline()
            if words and (name in words[0] or (name == "_Actor" and name in " ".join(words))):
                found.append(process)
    return found


def strike(found: list[psutil.Process], kind: str, seconds: float) -> None:
    """Send the signal of a fault; a slow process continues after some seconds."""
    for process in found[:1]:
        with suppress(psutil.Error):
            process.send_signal(FAULTS[kind][1])
            if "slow" in kind:
                time.sleep(seconds)
                process.send_signal(signal.SIGCONT)


def command_trial(arguments: argparse.Namespace, kind: str, rng: random.Random, place: Path) -> dict[str, object]:
    """Do one run by the command line with one fault, and continue it on another cluster."""
    output, cluster = place / f"out {kind}.jsonl", Cluster(place)
    environment = environment_of(place / "out") | TOKEN
    command = [sys.executable, "-m", "geval_local"]
    score = [*command, "score", str(place / "in"), "-m", METRIC, "-j", arguments.judge, "-o", str(output), "--no-cache"]
    score += ["--window", str(arguments.block), "--workers", "ray:2", "--address", cluster.address]
    least, seconds = rng.randint(1, STORED_BYTES), rng.uniform(*arguments.pause)
    begin = time.monotonic()
    run = subprocess.Popen(score, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                           start_new_session=True)  # fmt: skip
    try:
        found = find(run, cluster, FAULTS[kind][0]) if wait_for(run, lambda: stored(output) >= least) else []
        at = stored(output)
        strike(found, kind, seconds)
        fault = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            run.wait(HANGING_SECONDS)
        hung, took = run.poll() is None, time.monotonic() - fault
        if hung:
            run.kill()
        told = run.communicate()[1]
        code, resumed = run.returncode, 0
        cluster.end()
        cluster = Cluster(place)
        score[score.index("--address") + 1] = cluster.address
        while run.returncode and resumed < 3:
            resumed += 1
            run = subprocess.Popen(score, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            last = run.communicate()[1]
    finally:
        cluster.end()
    result = {"fault": kind, "struck": bool(found), "at": at, "stopped_for": round(seconds) if "slow" in kind else None}
    result |= {"code": code, "hung": hung, "seconds_to_end": round(took), "seconds": round(time.monotonic() - begin)}
    result |= {"names_resume": "geval-local resume" in told, "traceback": "Traceback" in told, "resumed": resumed}
    if run.returncode:
        result["last_words"] = last[-600:]
    result["right"] = not hung and code in ((-9,) if kind == "command" else (0, 3)) and not run.returncode
    result["right"] = result["right"] and (code in (0, -9) or result["names_resume"]) and not result["traceback"]
    if not result["right"]:
        result["words"] = told[-600:]
    return result


def commands(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Let one fault after the other happen to the command line."""
    write_files(place / "in", arguments.rows, arguments.files, words=60)
    for path in sorted((place / "in").iterdir())[::2]:
        write_lines(path, path.with_suffix(".jsonl"))
        path.unlink()
    common = ["-m", METRIC, "-j", arguments.judge, "--window", str(arguments.block)]
    command = [sys.executable, "-m", "geval_local", "score", str(place / "in"), *common]
    whole = [*command, "--no-cache", "-o", str(place / "whole.jsonl")]
    subprocess.run(whole, check=True, env=environment_of(place / "out"), stdout=subprocess.DEVNULL, stderr=-3)
    expected, results = (place / "whole.jsonl").read_bytes(), []
    for number in range(arguments.trials):
        for kind in arguments.kinds or FAULTS:
            rng = random.Random(f"{arguments.seed} {number} {kind}")
            result = command_trial(arguments, kind, rng, place)
            output = place / f"out {kind}.jsonl"
            result["equal"] = output.exists() and output.read_bytes() == expected
            result["left_over"] = sorted(path.name for path in place.glob(f".{output.name}.run/**/*"))
            results.append(result)
            print(number, result, flush=True)
            output.unlink(missing_ok=True)
    good = [bool(one["right"] and one["equal"]) for one in results]
    print(f"{sum(good)} of {len(good)} runs ended as they should, with equal results")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--block", type=int, default=50, help="rows of a window")
    parser.add_argument("--judge", default="nano")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--pause", type=float, nargs=2, default=[20.0, 40.0], help="seconds of a stop")
    parser.add_argument("--kinds", nargs="*", choices=FAULTS, help="these faults only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, help="where inputs and runs go; a temporary one when absent")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="faults-") as place:
        results = commands(Path(place), arguments)
    options = {name: value for name, value in vars(arguments).items() if name != "directory"}
    record = {"benchmark": "scale_faults", "date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()}
    print(json.dumps(record | {"options": options, "results": results}))


if __name__ == "__main__":
    main()
