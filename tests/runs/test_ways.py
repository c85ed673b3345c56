"""Whatever a run stores, and however it is run: every way to the end writes the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ways_kit import FEATURES, WAYS, prepared, undivided, written


@pytest.mark.parametrize("feature", FEATURES)
def test_every_way_writes_the_same_bytes(tmp_path, monkeypatch, feature):
    asked, file = prepared(feature, tmp_path, monkeypatch)
    once = undivided(asked, file, tmp_path / "once")
    assert once.rows >= min(len(asked.rows()), asked.options.get("limit") or 20), "a row is lost"
    expected = written(tmp_path / "once")
    assert {".csv", ".jsonl", ".parquet"} <= {Path(name).suffix for name in expected}
    for name, way in WAYS.items():
        result = way(asked, file, tmp_path / name)
        assert written(tmp_path / name) == expected, name
        found, wanted = ([one.to_dict() for one in (*run.summaries, *run.answers)] for run in (result, once))
        assert found == wanted, name
        assert (result.signatures, result.rows) == (once.signatures, once.rows), name
