"""Network contacts of a run, observed by strace: this machine only."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_run import METRIC, good_rows, write_rows

from geval_local.ray.merge import merge_parts

#: Families that name another machine, and their addresses as strace writes them.
ADDRESS = re.compile(r'sin_addr=inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')
OWN = re.compile(r"(::ffff:)?127\.\d+\.\d+\.\d+|::1")
SPREAD = ("--workers", "ray:2")


def strace() -> str:
    """Find strace, or skip: with the reason why it cannot be used here."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed: apt-get install strace")
    tried = subprocess.run([found, "-f", "--seccomp-bpf", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace may trace nothing here: {tried.stderr.strip().splitlines()[-1]}")
    return found


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory with a short name: Ray's sockets have to fit behind it."""
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory:
        yield Path(directory)


def addresses(trace: Path, *, bound: bool) -> set[str]:
    """Every address that was connected or sent to; or bound too."""
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = (line for line in lines if bound or "bind(" not in line)
    return {one or other for line in kept for one, other in ADDRESS.findall(line)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "spread", [pytest.param((), id="local"), pytest.param(SPREAD, id="ray", marks=pytest.mark.nightly)]
)
def test_a_run_contacts_nothing_but_this_machine(spread, tmp_path, temporary):
    if spread and (importlib.util.find_spec("ray") is None or importlib.util.find_spec("pyarrow") is None):
        pytest.skip("Ray is not installed: pip install 'geval-local[ray]'")
    # By a filter of the kernel: else it is stopped at every call of the system.
    tracer = [strace(), "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmmsg,bind"]
    tracer += ["-o", str(tmp_path / "trace")]
    write_rows(tmp_path / "data.jsonl", good_rows(6))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    (tmp_path / "user").mkdir()
    own = {"HOME": str(tmp_path / "user"), "GEVAL_LOCAL_HOME": str(tmp_path / "home"), "TMPDIR": str(temporary)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HF_"))} | own
    command = [sys.executable, "-m", "geval_local", "score", "data.jsonl", "-m", "clarity.yaml", "-o", "run/", *spread]
    done = subprocess.run(
        [*tracer, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=540
    )
    assert done.returncode == 0, done.stderr
    if spread:
        merge_parts(tmp_path / "run", tmp_path / "run" / "scores.jsonl")
    assert len((tmp_path / "run" / "scores.jsonl").read_text(encoding="utf-8").splitlines()) == 6
    assert {one for one in addresses(tmp_path / "trace", bound=True) if not OWN.fullmatch(one)} == set()
    # Binding alone is no contact: urllib3 binds ::1 as it is imported, which accelerate does where boto3 is installed.
    connected = addresses(tmp_path / "trace", bound=False)
    assert bool(connected) == bool(spread), "a local run connects to nothing, a cluster of one's own to this machine"
    # No token for everybody to read, no session, no log: what the cluster had has gone with it.
    assert list((tmp_path / "user").rglob("auth_token")) == []
    assert [path for path in temporary.rglob("*") if path.is_file() or path.is_socket()] == []
    assert [path.name for path in temporary.iterdir() if "ray" in path.name] == []
