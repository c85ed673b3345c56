"""Threads that run a model: what a judge was loaded with does not stay."""

from __future__ import annotations

import sys
import textwrap

import forked
import pytest

from geval_local.engine.transformers_backend import in_own_thread

#: Prints how many threads of the process are left of a computation with two OpenMP threads, here and in its own thread.
COUNT = """
    import os, time, torch
    from geval_local.engine.transformers_backend import in_own_thread

    def threads():
        return len(os.listdir("/proc/self/task"))

    def compute():
        return float(torch.rand(1 << 20).exp().sum())

    torch.set_num_threads(2)
    before = threads()
    in_own_thread(compute)
    deadline = time.monotonic() + 300
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    apart = threads() - before
    compute()
    print(apart, threads() - before)
"""


def test_a_result_and_an_error_come_back():
    assert in_own_thread(lambda: 3) == 3
    with pytest.raises(KeyError, match="lost"):
        in_own_thread(lambda: {}["lost"])


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_its_openmp_threads_end_with_it():
    done = forked.code(textwrap.dedent(COUNT))
    assert done.returncode == 0, done.stderr
    apart, here = map(int, done.stdout.split())
    assert apart == 0
    assert here >= 1  # otherwise nothing was counted
