"""A page of results whose label mass is not known says so, and does not say that none is low."""

from __future__ import annotations

from geval_local.analysis.results import read_results
from geval_local.report.overview import overview_table, summaries


def row(number, **figures):
    return {"id": f"r{number}", "output": "A text.", "geval": {"m": {"score": 2.0 + number % 3, **figures}}}


def test_what_is_not_known_is_a_dash():
    run = read_results([row(number) for number in range(6)])
    table = overview_table(summaries(run))
    cells = dict(zip(table.headers, table.rows[0], strict=True))
    assert [cells[name] for name in ("label mass", "lowest mass", "mass < 0.9")] == ["-", "-", "-"]
    assert not any("label mass" in note for note in table.notes)


def test_a_low_mass_stands_in_words_below_the_table():
    run = read_results([row(number, label_mass=0.02) for number in range(6)])
    table = overview_table(summaries(run))
    assert "100.0%" in table.rows[0]
    assert "does not answer" in table.notes[0]
