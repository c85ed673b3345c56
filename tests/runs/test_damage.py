"""Damaged stores, logs and caches: what is not as it was stored is computed again or refused, never shown."""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from run_kit import engine, execute, killed_when, wanted, write_input
from waiting import until

from geval_local import files
from geval_local.errors import GevalError, Interrupted, OutputError
from geval_local.runs import store as stores
from geval_local.runs.cache import OutcomeCache, cache_path
from geval_local.runs.own_files import hold

ROWS = 60
#: Bytes of a frame of a write-ahead log: its head and a page.
FRAME = 24 + 4096
#: Columns of an outcome -> SQL that changes it a little.
CHANGES = {
    "judge": "judge + 1",
    "metric": "metric + 7",
    "row": "row + 1000",
    "origin": "(origin + 1) % 3",
    "logprobs": "CAST(substr(logprobs, 1, 6) || X'00' || substr(logprobs, 8) AS BLOB)",
    "other": "'[[\"x\", -1.0]]'",
    "prompt_tokens": "prompt_tokens + 1",
    "dropped_tokens": "dropped_tokens + 256",
    "sample_key": "sample_key + 1",
    "error": "'another reason'",
    "checksum": "checksum + 1",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return write_input(tmp_path / "in.jsonl", ROWS)


@pytest.fixture
def expected(file: Path, tmp_path: Path) -> bytes:
    return execute(tmp_path / "whole", wanted(file))[0].read_bytes()


@pytest.fixture(params=["finished", "started"])
def kept(request, file: Path, tmp_path: Path, expected: bytes) -> Path:
    """A run that is finished, or stopped in its middle."""
    if request.param == "started":
        with pytest.raises(Interrupted):
            execute(tmp_path / "run", wanted(file), stop_after=9)
        return tmp_path / "run"
    return tmp_path / "whole"


def change(store: Path, statement: str) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        assert connection.execute(statement).rowcount == 1


@pytest.mark.parametrize("column", CHANGES)
def test_a_changed_column_of_a_stored_outcome_is_computed_again_and_told(kept, expected, caplog, column):
    scored = "error IS NOT NULL" if column == "error" else "logprobs IS NOT NULL"
    change(
        kept / "scores.sqlite",
        f"UPDATE outcomes SET {column} = {CHANGES[column]} WHERE (judge, metric, row) IN "
        f"(SELECT judge, metric, row FROM outcomes WHERE {scored} ORDER BY row LIMIT 1)",
    )
    (found,) = execute(kept, None)
    assert found.read_bytes() == expected
    assert "computed again" in caplog.text


def test_two_outcomes_that_changed_places_are_computed_again(kept, expected, caplog):
    with closing(sqlite3.connect(kept / "scores.sqlite")) as connection, connection:
        for one, other in ((2, 900), (3, 2), (900, 3)):
            connection.execute("UPDATE outcomes SET row = ? WHERE row = ? AND metric = 0", (other, one))
    assert execute(kept, None)[0].read_bytes() == expected
    assert "2 outcomes are damaged (row 3 on summarization/coherence, row 4 on" in caplog.text


def test_a_changed_plan_is_made_again(kept, expected):
    change(kept / "scores.sqlite", "UPDATE plans SET prompt_tokens = 7 WHERE metric = 0 AND window = 0")
    assert execute(kept, None)[0].read_bytes() == expected


def flipped(path: Path, chance: random.Random, count: int) -> Iterator[bytes]:
    """Yield a file's content with one bit changed, again and again."""
    content = path.read_bytes()
    for _ in range(count):
        changed = bytearray(content)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        yield bytes(changed)


def test_no_flipped_bit_of_a_store_gives_other_figures(kept, expected, tmp_path):
    """Of a finished run the results are gone, so that they are written from the store."""
    told = 0
    for number, content in enumerate(flipped(kept / "scores.sqlite", random.Random(11), 60)):
        place = tmp_path / f"flipped{number}"
        shutil.copytree(kept, place)
        (place / "scores.sqlite").write_bytes(content)
        try:
            (found,) = execute(place, None)
        except GevalError as error:
            told += 1
            assert error.hint  # noqa: PT017 - most flips raise nothing
        else:
            assert found.read_bytes() == expected
        shutil.rmtree(place)
    assert told < 60


# --- the write-ahead log ----------------------------------------------------------------------------------------------


@pytest.fixture
def killed(file: Path, tmp_path: Path) -> Path:
    """A run whose process was killed, so that its log stays."""
    log = tmp_path / "run" / "scores.sqlite-wal"

    def until_units_are_stored():
        until(lambda: log.exists() and log.stat().st_size > 25 * FRAME)

    assert killed_when(
        until_units_are_stored, lambda: execute(tmp_path / "run", wanted(file), lambda: engine(seconds=0.05))
    )
    return tmp_path / "run"


@pytest.mark.parametrize("harm", ["gone", "empty", "garbled", "middle", "cut"])
def test_rows_of_a_lost_or_garbled_log_are_computed_again(killed, expected, caplog, harm):
    log = killed / "scores.sqlite-wal"
    content = log.read_bytes()
    # Within a page: a frame whose mark is garbled looks like one of an earlier generation, behind the log's end.
    middle = 32 + (len(content) // 2 // FRAME) * FRAME + 1024
    if harm == "gone":
        log.unlink()
    else:
        log.write_bytes(
            {
                "empty": b"",
                "garbled": bytes(value ^ 0x55 for value in content),
                "middle": content[:middle]
                + bytes(value ^ 0x55 for value in content[middle : middle + 64])
                + content[middle + 64 :],
                "cut": content[:middle],
            }[harm]
        )
    assert execute(killed, None)[0].read_bytes() == expected
    assert "another run" not in caplog.text


# --- the cache --------------------------------------------------------------------------------------------------------


def test_a_damaged_entry_of_the_cache_is_computed_again_and_replaced(file, tmp_path, expected, caplog):
    made = [engine(), engine(), engine()]
    first = execute(tmp_path / "a", wanted(file, use_cache=True), lambda: made[0])[0].read_bytes()
    assert first == expected
    with closing(sqlite3.connect(cache_path())) as connection, connection:
        connection.execute("UPDATE entries SET logprobs = CAST(X'0000' || substr(logprobs, 3) AS BLOB)")
    assert execute(tmp_path / "b", wanted(file, use_cache=True), lambda: made[1])[0].read_bytes() == expected
    assert "has damaged entries: their figures are computed again" in caplog.text
    assert execute(tmp_path / "c", wanted(file, use_cache=True), lambda: made[2])[0].read_bytes() == expected
    assert made[1].executed_packs == made[0].executed_packs
    assert made[2].executed_packs == 0


def test_entries_of_another_prompt_are_not_taken(file, tmp_path):
    expected = execute(tmp_path / "a", wanted(file, use_cache=True), lambda: engine(sensitive=False))[0].read_bytes()
    with closing(sqlite3.connect(cache_path())) as connection, connection:
        (one, figures), (other, others) = connection.execute("SELECT key, logprobs FROM entries LIMIT 2")
        connection.executemany("UPDATE entries SET logprobs = ? WHERE key = ?", [(others, one), (figures, other)])
    made = engine(sensitive=False)
    assert execute(tmp_path / "b", wanted(file, use_cache=True), lambda: made)[0].read_bytes() == expected
    assert made.executed_packs > 0


# --- network disks ----------------------------------------------------------------------------------------------------

MOUNTS = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / /home rw,relatime shared:9 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/a\\040b rw - tmpfs tmpfs rw
32 22 0:42 / /scratch rw,relatime - lustre mgs@tcp:/scratch rw,flock
33 22 0:43 / /mnt/s3 rw - fuse.mount-s3 mountpoint-s3 rw
34 22 0:44 / /fuse rw - fuse.ntfs-3g /dev/sdb1 rw
35 22 0:45 / /vm rw - virtiofs share rw
36 22 0:46 / /moose rw - fuse.moosefs mfs#master rw
37 22 0:47 / /disk rw - fuseblk /dev/sdc1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x", None),
        ("/home/me/run", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/me", None),
        ("/home/a b/run", None),
        ("/scratch/run", "lustre"),
        ("/mnt/s3/run", "fuse.mount-s3"),
        ("/vm/run", "virtiofs"),
        ("/moose/run", "fuse.moosefs"),
        ("/disk/run", None),
        ("/fuse/run", None),
    ],
)
def test_a_network_disk_is_known_by_how_it_is_mounted(tmp_path, monkeypatch, path, kind):
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "mounts")
    assert files.network_disk(Path(path)) == kind


@pytest.fixture
def on_network(monkeypatch):
    monkeypatch.setattr(files, "file_system", lambda path: "nfs4")


def test_on_a_network_disk_a_store_has_no_log_and_the_cache_is_off(file, tmp_path, expected, on_network, caplog):
    seen = []
    with pytest.raises(Interrupted):
        execute(tmp_path / "run", wanted(file, use_cache=True), stop_after=9)
    seen = [path.name for path in (tmp_path / "run").iterdir()]
    assert "scores.sqlite-wal" not in seen
    assert execute(tmp_path / "run", None)[0].read_bytes() == expected
    assert not cache_path().exists()
    assert "it is on a network disk (nfs4), and SQLite needs a local one" in caplog.text
    assert "GEVAL_LOCAL_HOME" in caplog.text


def test_a_network_disk_never_makes_a_log(tmp_path, on_network):
    with closing(stores.Store(tmp_path / "store", "run", is_new=True)) as store:
        store.add(0, [])
        assert sorted(path.name for path in tmp_path.iterdir() if "wal" in path.name or "shm" in path.name) == []


def test_a_killed_run_moves_to_a_network_disk_and_back(killed, expected, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files, "file_system", lambda path: "lustre")
        with pytest.raises(Interrupted):
            execute(killed, None, stop_after=1)
        assert not (killed / "scores.sqlite-wal").exists()
    assert execute(killed, None)[0].read_bytes() == expected


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_disk_without_locks_is_told_as_that(tmp_path, monkeypatch, code):
    fcntl = pytest.importorskip("fcntl")

    def no_locks(*arguments):
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OutputError, match="keeps no locks") as caught, hold(tmp_path):
        pass
    assert "local disk" in caught.value.hint
    assert "flock" in caught.value.hint


def test_the_cache_says_once_that_it_is_on_a_network_disk(file, on_network, caplog):
    cache = OutcomeCache()
    assert cache.find([b"key"]) == {}
    assert cache.find([b"key"]) == {}
    assert len(caplog.records) == 1
