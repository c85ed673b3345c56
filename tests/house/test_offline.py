"""Scoring opens no socket: every way to create one raises in a separate process, and the run succeeds.

What is opened while libraries are imported is seen by tests/house/test_network.py.
"""

from __future__ import annotations

import json
import os
import subprocess

import forked
import pytest
from cli_run import METRIC, good_rows, judge_directory, write_rows

FORBID = """\
import socket, sys
import huggingface_hub.constants
huggingface_hub.constants.HF_HUB_OFFLINE = False  # as the environment says, not that of the process it is forked from
def refuse(*_, **__):
    raise RuntimeError("a socket was opened")
class Refused(socket.socket):  # a class still, because the ssl module derives from it
    __init__ = refuse
socket.socket, socket.create_connection, socket.getaddrinfo = Refused, refuse, refuse
sys.argv = ["geval-local", *sys.argv[1:]]
from geval_local.cli import main
main()
"""


def run_without_sockets(tmp_path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"GEVAL_LOCAL_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    return forked.code(FORBID, *arguments, env=environment, cwd=tmp_path)


@pytest.mark.slow
def test_scoring_opens_no_socket(tmp_path):
    write_rows(tmp_path / "data.jsonl", good_rows(3))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    done = run_without_sockets(
        tmp_path, "score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge_directory(), "-o", "out.jsonl", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["clarity"]["scored"] == 3
    assert len((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.slow
def test_the_refusal_itself_works(tmp_path):
    done = run_without_sockets(tmp_path, "judges", "fetch", "qwen2.5-0.5b", "-o", tmp_path / "new")
    assert done.returncode == 2
    assert "a socket was opened" in done.stderr
