"""The table of the gate's page: how often a drop is found, by the number of rows and the spread of differences."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gate-in-ci.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_has_the_power_that_a_simulation_finds():
    spec = importlib.util.spec_from_file_location("gate_power", ROOT / "benchmarks" / "gate_power.py")
    assert spec is not None
    assert spec.loader is not None
    power = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(power)
    (row,) = re.findall(r"^\| 40 \| (.*) \|$", PAGE, re.MULTILINE)
    *told, false = map(float, row.split(" | "))
    found = [power.failed(40, spread, power.DROP) for spread in power.SPREADS]
    assert [f"{one:.2f}" for one in found] == [f"{one:.2f}" for one in told]
    assert found[0] > 0.99
    assert found == sorted(found, reverse=True)
    # One of four gates that share a level of .05; with 1,000 jobs three standard errors are .01.
    assert power.failed(40, 0.5, 0.0) == false
    assert false < 0.05 / power.GATES + 0.011
