"""A real llama.cpp server, by the package xllamacpp: run as a program, or started by `llama_server`.

`python tests/support/llama_server.py FILE.gguf [--slots 2] [--context 4096] [--defaults]` prints its address and serves
until its standard input ends: with keys and values in float32 and no flash attention, or as llama.cpp does by default.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Serving(NamedTuple):
    """A server that runs, and its process."""

    address: str
    pid: int


@contextmanager
def llama_server(file: Path, *options: str) -> Iterator[Serving]:
    """Serve a GGUF file in a process of its own."""
    command = [sys.executable, __file__, str(file), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            address = process.stdout.readline().strip()
            assert address, "the server did not start"
            yield Serving(address, process.pid)
        finally:
            process.stdin.close()
            process.wait(300)


def _serve() -> None:
    import xllamacpp

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--defaults", action="store_true")
    given = parser.parse_args()
    wanted = xllamacpp.CommonParams()
    wanted.model.path, wanted.n_gpu_layers, wanted.verbosity = given.file, 0, -1
    wanted.n_parallel, wanted.n_ctx = given.slots, given.slots * given.context
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = 1
    if not given.defaults:
        wanted.cache_type_k = wanted.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        wanted.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(wanted)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
