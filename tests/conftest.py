"""Settings of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import geval_local

ROOT = Path(__file__).resolve().parents[1]
if Path(geval_local.__file__).resolve().parents[1] != ROOT:
    # The plugin of this package is loaded with pytest, from where the package is installed.
    pytest.exit(f"the tests of {ROOT} would run with {geval_local.__file__}: pip install -e '.[test]'", returncode=4)

# Several test processes share the cores; each would take all of them for itself, before torch is first imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes to make depends on what else the machine does; that is not what is tested.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

#: Files whose tests begin clusters; two at a time would starve each other on two cores.
CLUSTERS = ("test_ray_cluster.py", "test_network.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that begin clusters in one of several test processes."""
    for item in items:
        if item.path.name in CLUSTERS:
            item.add_marker(pytest.mark.xdist_group("clusters"))
