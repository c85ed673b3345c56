"""Commands on Ray that are disturbed: every row has to come out once, with its score.

    python benchmarks/scale_faults.py --trials 3            # one fault a run
    python benchmarks/scale_faults.py --kinds worker head

Workers, drivers, raylets and heads are killed, of the command's own cluster and of one that it joined, and processes
stop for a while or for good. A command that cannot finish has to end by itself with code 3 and name the command that
continues it, which has to give the bytes of an undisturbed run. The last line of the output is JSON.
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


#: Fault of a command -> the process that it strikes, and its signal. Those of `joined` strike a cluster that it joined.
FAULTS = {
    "worker": ("_Actor", signal.SIGKILL),
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
                if words and (name in words[0] or (name == "_Actor" and name in " ".join(words))):
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
    output = place / f"out {kind}.jsonl"
    joined = JoinedCluster(place) if kind.startswith("joined") else None
    environment = environment_of(place / "out") | (TOKEN if joined else {})
    command = [sys.executable, "-m", "geval_local"]
    score = [*command, "score", str(place / "in"), "-m", METRIC, "-j", arguments.judge, "-o", str(output), "--no-cache"]
    score += ["--window", str(arguments.block), "--workers", "ray:2"]
    score += ["--address", joined.address] if joined else []
    least, seconds = rng.randint(1, STORED_BYTES), rng.uniform(*arguments.pause)
    begin = time.monotonic()
    run = subprocess.Popen(score, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                           start_new_session=True)  # fmt: skip
    try:
        if kind == "slow start":
            struck = wait_for(run, lambda: bool(find(run, joined, "raylet")))
        else:
            struck = wait_for(run, lambda: stored(output) >= least)
        at = stored(output)
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
