"""Parts: outcomes go in and out bit for bit, whole or not at all, and only where they belong."""

from __future__ import annotations

import pytest
from parts_kit import SHARD, add, failed, outcome, part, plain, pq, store

from geval_local.errors import OutputError
from geval_local.runs.ray.shards import Shard


def test_what_goes_in_comes_out_bit_for_bit(tmp_path):
    add(store(tmp_path), part())
    add(store(tmp_path), part((21,), make=failed), Shard(2, 0, (21,)))
    found = store(tmp_path).outcomes(0, 1, 20, 30)
    assert sorted(found) == [20, 21, 22, 25]
    assert [plain(found[row]) for row in SHARD.rows] == [plain(outcome(row + 1)) for row in SHARD.rows]
    assert (found[21].error, found[21].label_logprobs) == ("row 22 is bad \\udc80", None)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        "0-0000002-0000.parquet",
        "0-0000002-0001.parquet",
    ]
    assert store(tmp_path).outcomes(1, 0, 20, 30) == {}  # another judge


def test_counts_come_from_what_parts_say_of_themselves(tmp_path):
    assert store(tmp_path).is_empty()
    add(store(tmp_path), [*part((20, 22)), *part((25,), (0,)), *part((25,), (1,), failed)])
    assert not store(tmp_path).is_empty()
    assert store(tmp_path).totals(0, 1) == {
        "rows": 3,
        "unscored": 1,
        "from_cache": 0,
        "prompt_tokens": 30,
        "planned_tokens": 30,
    }
    assert store(tmp_path).totals(0, 0)["unscored"] == 0
    assert b"one" in pq.read_metadata(tmp_path / "parts" / "0-0000002-0001.parquet").metadata[b"geval-local part"]


def test_a_row_that_is_there_stays_and_what_is_missing_is_named(tmp_path):
    assert store(tmp_path).missing(0, SHARD) == [[0, 1, 2], [0, 1, 2]]
    add(store(tmp_path), [*part((20,)), *part((25,), (1,))])
    assert store(tmp_path).missing(0, SHARD) == [[1, 2], [1]]
    add(store(tmp_path), part(make=lambda row: outcome(row + 50)))
    assert store(tmp_path).missing(0, SHARD) == [[], []]
    found = store(tmp_path).outcomes(0, 1, 20, 30)
    assert [plain(found[row]) for row in SHARD.rows] == [plain(outcome(row)) for row in (21, 73, 26)]


def test_errors_are_taken_back_and_nothing_else(tmp_path):
    add(store(tmp_path), [*part((20, 22)), *part((25,), (0,)), *part((25,), (1,), failed)])
    add(store(tmp_path), part((21,)), Shard(2, 0, (21,)))
    untouched = tmp_path / "parts" / "0-0000002-0000.parquet"
    before = untouched.stat().st_mtime_ns
    assert store(tmp_path).take_errors_back([0]) == 1
    assert store(tmp_path).missing(0, SHARD) == [[], [2]]
    assert untouched.stat().st_mtime_ns == before


def test_damage_strangers_and_other_cuts_are_refused(tmp_path):
    add(store(tmp_path), part())
    with pytest.raises(OutputError, match="another run"):
        store(tmp_path, "other").missing(0, SHARD)
    with pytest.raises(OutputError, match="another version of geval-local cut the input"):
        store(tmp_path).missing(0, Shard(2, 1, (20, 22, 24)))
    path = store(tmp_path).path(0, SHARD)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(OutputError, match="damaged or cut off") as caught:
        store(tmp_path).missing(0, SHARD)
    assert "Delete it and resume" in str(caught.value.hint)
    path.write_bytes(b"")
    with pytest.raises(OutputError, match="damaged or cut off"):
        store(tmp_path).totals(0, 0)


def test_a_full_disk_leaves_no_half_part(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("geval_local.runs.ray.parts.os.fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        add(store(tmp_path), part())
    assert store(tmp_path).is_empty()
    assert store(tmp_path).missing(0, SHARD) == [[0, 1, 2], [0, 1, 2]]
