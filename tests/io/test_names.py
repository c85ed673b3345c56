"""Names of files that are no plain words: on a local disk, in memory, and on an S3 server."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
from object_store import store_on_s3

from geval_local.errors import ConfigurationError, DataError
from geval_local.io import input_files
from geval_local.io.input_files import find_entries, find_files
from geval_local.io.places import Place
from geval_local.io.shares import has_a_line_a_row, read_share, shares_of
from geval_local.options import RunOptions

pytest.importorskip("pyarrow.fs", reason="places are those of pyarrow")

NAMES = [
    "with space.jsonl",
    "what?.jsonl",
    "what?a=b.jsonl",
    "50%.jsonl",
    "x%20y.jsonl",
    "a#b.jsonl",
    "a+b&c;d.jsonl",
    "[1].jsonl",
    "star*.jsonl",
    "größe-数据-🙂.jsonl",
    "date=2026-11-28T10%3A00/part.jsonl",
    "dir with #?/[a]/x.jsonl",
]
#: Name -> a pattern that matches it and no other.
PATTERNS = {
    "with space.jsonl": "with ?pace.jsonl",
    "what?.jsonl": "what[?].jsonl",
    "x%20y.jsonl": "x%[0-9]0y.json*",
    "a#b.jsonl": "[!b]#b.jsonl",
    "[1].jsonl": "[[]1].jsonl",
    "größe-数据-🙂.jsonl": "gr*?-??-?.jsonl",
    "date=2026-11-28T10%3A00/part.jsonl": "date=*/part.jsonl",
    "dir with #?/[a]/x.jsonl": "dir*/**/x.jsonl",
}


def content(name: str) -> bytes:
    return (json.dumps({"id": name, "output": "It ends."}) + "\n").encode()


def read(given: str) -> list[str]:
    """Find, cut and read files, as workers do: from their addresses."""
    shares = shares_of(find_files([given]), RunOptions(), 3)
    sent = pickle.loads(pickle.dumps(shares)).values()
    return [row.fields["id"] for share in sent for row in read_share(share, RunOptions())]


def check_names(base: str, options: str = "") -> None:
    assert sorted(read(base + options)) == sorted(NAMES)
    for name in NAMES:
        assert read(f"{base}/{name}{options}") == [name], "a name is itself before it is a pattern"
    for name, pattern in PATTERNS.items():
        assert read(f"{base}/{pattern}{options}") == [name]
    with pytest.raises(DataError, match="no data file matches"):
        find_files([f"{base}/[2].jsonl{options}"])
    with pytest.raises(DataError, match=r"there is no file|No such file"):
        read(f"{base}/missing%20.jsonl{options}")


@pytest.fixture
def local(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(name))
    return tmp_path / "in"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_names_on_a_local_disk(local, scheme):
    check_names(f"{scheme}{local}")


def test_names_on_a_file_system_of_fsspec():
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    try:
        for name in NAMES:
            store.pipe_file(f"/bucket/in/{name}", content(name))
        check_names("memory://bucket/in")
    finally:
        store.store.clear()


def test_places_of_odd_names_are_written_and_removed(tmp_path):
    for name in ("what?.parquet", "x%20#.parquet"):
        place = Place(str(tmp_path)).child(name)
        place.write(b"one", mark="run")
        assert (place.name, place.read()) == (name, b"one")
        assert (tmp_path / name).read_bytes() == b"one"
        place.delete()
    assert not list(tmp_path.iterdir())


def test_a_pattern_that_is_none_is_refused(local):
    with pytest.raises(ConfigurationError, match=r"is no pattern.*entire path component"):
        find_files([f"{local}/a**.jsonl"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_utf8_is_told(tmp_path):
    (Path(str(tmp_path)) / "a\udcff.jsonl").write_bytes(content("a"))
    with pytest.raises(DataError, match=r"a name in it is not UTF-8: .*a\\udcff\.jsonl"):
        find_files([str(tmp_path)])


def test_options_are_no_part_of_a_name():
    """They go to each place in the bucket, and their file system is opened once."""
    options = "?endpoint_override=http://localhost:9&region=us-east-1"
    bucket = Place(f"s3://bucket/what?a=b{options}")
    assert (bucket.name, bucket.path) == ("what?a=b", "bucket/what?a=b")
    child = bucket.child("50% #.jsonl")
    assert child.address == f"s3://bucket/what?a=b/50% #.jsonl{options}"
    assert (child.name, child.path) == ("50% #.jsonl", "bucket/what?a=b/50% #.jsonl")
    assert child.system is bucket.system
    assert Place(f"s3://bucket{options}").path == "bucket"


# --- S3 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(monkeypatch):
    """The address of objects on an S3 server, and its options."""
    with store_on_s3(monkeypatch) as store:
        for name in NAMES:
            store.put(f"in/{name}", content(name))
        yield "s3://bucket/in", store.options


def test_names_on_s3(s3):
    base, options = s3
    check_names(base, options)
    place = Place(base + options).child("out #?/50%20.parquet")
    place.write(b"one", mark="run")
    assert Place(place.address).read() == b"one"
    assert place.address == f"{base}/out #?/50%20.parquet{options}"
    place.delete()
    assert place.entry() is None


def test_a_file_on_this_machine_needs_no_pyarrow(tmp_path, monkeypatch):
    for name in ("pyarrow", "pyarrow.fs"):
        monkeypatch.setitem(sys.modules, name, None)
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n")
    assert input_files.find_files(file) == [file]
    assert input_files.find_files([str(tmp_path / "*.jsonl"), tmp_path]) == [file]
    assert has_a_line_a_row(Place(str(file)))


def test_paths_and_addresses_find_the_same_files(tmp_path):
    """By directory and by pattern; runs inside are left out, and a link that leads back ends nothing."""
    names = ("a.jsonl", "b/1.jsonl", "b/2.csv", "b/c/3.parquet", "b/run/scores.jsonl", "b/run/manifest.json")
    hidden = ("_x/1.jsonl", "b/.y.jsonl", "b/2.csv.rows.jsonl", "a.jsonl.meta.json", "notes.txt")
    for name in (*names, *hidden):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}")
    (tmp_path / "in" / "b" / "back").symlink_to(tmp_path / "in")
    base = tmp_path / "in"
    for given, expected in (
        ("", ["a.jsonl", "b/1.jsonl", "b/2.csv", "b/c/3.parquet"]),
        ("/*.jsonl", ["a.jsonl"]),
        ("/*/?.[!p]*", ["b/1.jsonl", "b/2.csv"]),
        ("/b/**/3.*", ["b/c/3.parquet"]),
        ("/b/run", ["b/run/scores.jsonl"]),
    ):
        paths = [path.relative_to(base).as_posix() for path in input_files.find_files(f"{base}{given}")]
        assert paths == expected
        if not given:
            (base / "b" / "back").unlink()
        for scheme in ("", "file://"):
            found = find_entries(Place(f"{scheme}{base}{given}"))
            assert [one.place.address.removeprefix(f"{scheme}{base}/") for one in found] == expected
