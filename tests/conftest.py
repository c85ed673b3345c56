"""Settings of all tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import geval_local

ROOT = Path(__file__).resolve().parents[1]
if Path(geval_local.__file__).resolve().parents[1] != ROOT:
    # The plugin of this package is loaded with pytest, from where the package is installed.
    pytest.exit(f"the tests of {ROOT} would run with {geval_local.__file__}: pip install -e '.[test]'", returncode=4)

# Where the shell forbids to keep compiled modules, every process of the tests would compile them again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A script's background has Ctrl-C ignored, and so have all processes that begin there; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is first imported: several test processes share the cores, and tests compare the bytes of this process
# with those of commands that start with one thread. The number of threads decides the last bits of a sum.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes to make depends on what else the machine does; that is not what is tested.
settings.register_profile("any-machine", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
#: What `.ci/nightly` asks for; tests that want more or fewer say so by `example_count`.
settings.register_profile("nightly", settings.get_profile("any-machine"), max_examples=400)
settings.load_profile("any-machine")

#: Files whose tests begin clusters, or find none: two at a time would starve each other on two cores, or meet.
CLUSTERS = ("test_ray_cluster.py", "test_network.py", "test_ray.py")
#: Folders and files whose tests load the same large things: each of these groups stays in one process.
GROUPS = {"real": "smollm2", "hosts": "hosts", "test_report_in_chromium.py": "chromium"}
GROUPS |= dict.fromkeys(CLUSTERS, "clusters")
#: Files of slow tests only, which import other people's tools: a run without them need not wait for the imports.
SLOW_FILES = (
    "test_ray_cluster.py",
    "test_report_in_chromium.py",
    "test_deepeval.py",
    "test_inspect.py",
    "test_mlflow.py",
    "test_schema.py",
)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let random judges count as ones that answer: their label mass is far below what a ranking asks for."""
    monkeypatch.setattr("geval_local.score.LEAST_LABEL_MASS", 0.0)


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin of schemathesis where its test may run; by itself it would be imported by every process."""
    if config.option.markexpr.strip() != "not slow" and importlib.util.find_spec("schemathesis") is not None:
        config.pluginmanager.import_plugin("schemathesis.pytest.plugin")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that hold nothing to run."""
    return True if config.option.markexpr.strip() == "not slow" and collection_path.name in SLOW_FILES else None


# First: what `-m` leaves out is decided by other hooks of this name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests of a group in one of several processes; of a sweep, some cases stand for the others.

    The others are ``nightly``: they run when they are asked for by that mark, or by their names.
    """
    seen: set[str] = set()
    for item in items:
        group = GROUPS.get(item.path.name) or GROUPS.get(item.path.parent.name)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if item.path.name in SLOW_FILES:
            item.add_marker(pytest.mark.slow)
        sweep = item.get_closest_marker("sweep")
        if sweep is None:
            continue
        test, _, case = item.nodeid.partition("[")
        if case.removesuffix("]") not in sweep.args if sweep.args else test in seen:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.nightly)
        seen.add(test)
    is_wanted = "nightly" in config.option.markexpr or any("::" in given for given in config.args)
    if not is_wanted:
        left_out = [item for item in items if item.get_closest_marker("nightly") is not None]
        items[:] = [item for item in items if item.get_closest_marker("nightly") is None]
        config.hook.pytest_deselected(items=left_out)
