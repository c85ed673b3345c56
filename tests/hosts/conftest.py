"""Tests of integrations run in a directory of their own, reach nothing but this machine, and leave no judge loaded."""

from __future__ import annotations

import pytest
from offline import forbid_network


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    from geval_local.hosts.bound import release_judges

    forbid_network(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    release_judges()
