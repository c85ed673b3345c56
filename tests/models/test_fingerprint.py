"""The fingerprint: decided by content, never by place or time, and read once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest

from geval_local.models import fingerprint as module
from geval_local.models.fingerprint import fingerprint, weight_files


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def reads(monkeypatch):
    """Names of the files whose content was read."""
    names = []
    original = module._file_digest
    monkeypatch.setattr(module, "_file_digest", lambda path: names.append(path.name) or original(path))
    return names


def sharded(directory, **shards):
    directory.mkdir(parents=True)
    for name, content in shards.items():
        (directory / f"{name}.safetensors").write_bytes(content)
    weight_map = {f"tensor.{name}": f"{name}.safetensors" for name in shards}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_it_is_the_hash_of_names_and_content_hashes(tmp_path, home):
    directory = sharded(tmp_path / "m", b=b"second", a=b"first")
    lines = [
        f"{name}.safetensors:{hashlib.sha256(text).hexdigest()}" for name, text in (("a", b"first"), ("b", b"second"))
    ]
    assert fingerprint(directory) == hashlib.sha256("\n".join(["{}", *lines]).encode()).hexdigest()[:16]


def test_the_configuration_counts_but_not_who_saved_it(tmp_path, home):
    directory = sharded(tmp_path / "m", a=b"first")
    config = directory / "config.json"
    config.write_text(json.dumps({"rope_theta": 1e4, "transformers_version": "5.17.0"}))
    before = fingerprint(directory)
    config.write_text(json.dumps({"transformers_version": "5.23.0", "rope_theta": 1e4}))
    assert fingerprint(directory) == before
    config.write_text(json.dumps({"rope_theta": 1e6, "transformers_version": "5.17.0"}))
    assert fingerprint(directory) != before


def test_every_byte_counts_and_nothing_else(tmp_path, home):
    directory = sharded(tmp_path / "m", a=b"first", b=b"second")
    before = fingerprint(directory)
    (directory / "README.md").write_text("other")
    (directory / "consolidated.safetensors").write_bytes(b"the same weights in another format")
    os.utime(directory / "a.safetensors", (1, 1))
    assert fingerprint(directory) == before
    assert fingerprint(shutil.copytree(directory, tmp_path / "elsewhere")) == before
    (directory / "b.safetensors").write_bytes(b"secone")
    assert fingerprint(directory) != before


def test_swapped_shards_are_another_model(tmp_path, home):
    first = sharded(tmp_path / "1", a=b"x", b=b"y")
    second = sharded(tmp_path / "2", a=b"y", b=b"x")
    assert fingerprint(first) != fingerprint(second)


def test_a_file_is_read_once_and_again_when_it_changes(tmp_path, home, reads):
    directory = sharded(tmp_path / "m", a=b"first", b=b"second")
    assert fingerprint(directory) == fingerprint(directory)
    assert reads == ["a.safetensors", "b.safetensors"]
    (directory / "b.safetensors").write_bytes(b"SECOND")
    os.utime(directory / "b.safetensors", ns=(1, 1))
    fingerprint(directory)
    assert reads == ["a.safetensors", "b.safetensors", "b.safetensors"]


@pytest.mark.parametrize("damage", ["{", "[]", '{"x": 3}'])
def test_damaged_notes_cost_time_only(tmp_path, home, reads, damage):
    directory = sharded(tmp_path / "m", a=b"first")
    before = fingerprint(directory)
    (home / "digests.json").write_text(damage)
    assert fingerprint(directory) == before
    assert len(reads) == 2


def test_notes_that_cannot_be_written_cost_time_only(tmp_path, monkeypatch, reads):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "file" / "below"))
    directory = sharded(tmp_path / "m", a=b"first")
    assert fingerprint(directory) == fingerprint(directory)
    assert len(reads) == 2


def test_blobs_of_the_hub_cache_carry_their_digest_in_their_name(tmp_path, home, reads):
    plain = sharded(tmp_path / "plain", a=b"first")
    expected = fingerprint(plain)
    snapshot = sharded(tmp_path / "hub" / "snapshots" / "c0ffee", a=b"")
    blob = tmp_path / "hub" / "blobs" / hashlib.sha256(b"first").hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(b"first")
    (snapshot / "a.safetensors").unlink()
    (snapshot / "a.safetensors").symlink_to(blob)
    reads.clear()
    assert fingerprint(snapshot) == expected
    assert reads == []
    # A link to a file that merely looks like one is read.
    other = tmp_path / "other" / ("0" * 64)
    other.parent.mkdir()
    other.write_bytes(b"first")
    (snapshot / "a.safetensors").unlink()
    (snapshot / "a.safetensors").symlink_to(other)
    assert fingerprint(snapshot) == expected
    assert reads == ["0" * 64]


def test_a_single_file_goes_before_an_index(tmp_path):
    directory = sharded(tmp_path / "m", a=b"first")
    assert [file.name for file in weight_files(directory)] == ["a.safetensors"]
    (directory / "model.safetensors").touch()
    assert [file.name for file in weight_files(directory)] == ["model.safetensors"]
