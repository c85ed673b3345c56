"""Network contacts of a run, observed by strace: none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_run import METRIC, good_rows, write_rows

#: Families that name another machine, and their addresses as strace writes them.
ADDRESS = re.compile(r'sin_addr=inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')
OWN = re.compile(r"(::ffff:)?127\.\d+\.\d+\.\d+|::1")


def strace() -> str:
    """Find strace, or skip: with the reason why it cannot be used here."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed: apt-get install strace")
    tried = subprocess.run([found, "-f", "--seccomp-bpf", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace may trace nothing here: {tried.stderr.strip().splitlines()[-1]}")
    return found


def addresses(trace: Path, *, bound: bool) -> set[str]:
    """Every address that was connected or sent to; or bound too."""
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = (line for line in lines if bound or "bind(" not in line)
    return {one or other for line in kept for one, other in ADDRESS.findall(line)}


@pytest.mark.slow
@pytest.mark.sweep("spread1")
@pytest.mark.parametrize("spread", [(), ("--workers", "2")])
def test_a_run_contacts_nothing(spread, tmp_path):
    # By a filter of the kernel: else it is stopped at every call of the system.
    tracer = [strace(), "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmmsg,bind"]
    tracer += ["-o", str(tmp_path / "trace")]
    write_rows(tmp_path / "data.jsonl", good_rows(6))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    (tmp_path / "user").mkdir()
    own = {"HOME": str(tmp_path / "user"), "GEVAL_LOCAL_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "user")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HF_"))} | own
    command = [sys.executable, "-m", "geval_local", "score", "data.jsonl", "-m", "clarity.yaml", "-o", "run/", *spread]
    done = subprocess.run(
        [*tracer, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=540
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "run" / "scores.jsonl").read_text(encoding="utf-8").splitlines()) == 6
    assert {one for one in addresses(tmp_path / "trace", bound=True) if not OWN.fullmatch(one)} == set()
    # Binding alone is no contact: urllib3 binds ::1 as it is imported, which accelerate does where boto3 is installed.
    assert addresses(tmp_path / "trace", bound=False) == set()
    assert [path for path in (tmp_path / "user").rglob("*") if path.is_file() or path.is_socket()] == []
