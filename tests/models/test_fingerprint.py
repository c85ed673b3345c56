"""The fingerprint: determined by content, never by path or time, and read once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat

import pytest
import torch
from edited_judges import measure
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.models import fingerprint as module
from geval_local.models.fingerprint import fingerprint, weight_files


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    # Whatever the tests run on, and although their files are new.
    monkeypatch.setattr(module, "file_system", lambda path: "ext4")
    monkeypatch.setattr(module, "TICKS_NS", -1)
    return tmp_path / "home"


@pytest.fixture
def reads(monkeypatch):
    """Names of the files whose content was read."""
    names = []
    original = module.file_sha256
    monkeypatch.setattr(module, "file_sha256", lambda path: names.append(path.name) or original(path))
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


NOTES = {
    "name_or_path": "org/name",
    "id2label": {"0": "A", "1": "B"},
    "label2id": {"A": 0, "B": 1},
    "num_labels": 3,
    "problem_type": "regression",
    "finetuning_task": "mnli",
    "task_specific_params": {"x": {"max_length": 3}},
    "torchscript": True,
    "tf_legacy_loss": True,
    "use_bfloat16": True,
    "_commit_hash": "abc",
}


@pytest.mark.parametrize("key", NOTES)
def test_notes_of_a_configuration_do_not_count_but_for_code_of_its_own(tmp_path, home, key):
    directory = sharded(tmp_path / "m", a=b"first")
    config = directory / "config.json"
    config.write_text(json.dumps({"rope_theta": 1e4}))
    plain, code = fingerprint(directory), fingerprint(directory, code=True)
    config.write_text(json.dumps({"rope_theta": 1e4, key: NOTES[key]}))
    assert fingerprint(directory) == plain
    assert fingerprint(directory, code=True) != code


def test_no_note_changes_a_score(tmp_path, home):
    """All of them together, in a judge of which everything else stays."""
    directory = save_judge(tmp_path / "judge", tiny_model("llama", 263, dtype=torch.float32), byte_tokenizer())
    before = measure(directory)
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | NOTES))
    assert measure(directory) == before


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


@pytest.mark.parametrize("kind", ["vfat", "fuse.rclone", "nfs4", "squashfs", "overlay", None])
def test_digests_are_not_noted_where_the_ctime_can_be_set(tmp_path, home, reads, monkeypatch, kind):
    directory = sharded(tmp_path / "m", a=b"first")
    fingerprint(directory)
    assert (home / "digests.json").is_file()
    monkeypatch.setattr(module, "file_system", lambda path: kind)
    (directory / "a.safetensors").write_bytes(b"FIRST")
    noted = (home / "digests.json").read_text()
    fingerprint(directory), fingerprint(directory)
    assert len(reads) == 3
    assert (home / "digests.json").read_text() == noted


def test_a_file_from_just_now_is_read_again(tmp_path, home, reads, monkeypatch):
    """Within one tick of the kernel's clock a second write need not change the ctime."""
    monkeypatch.setattr(module, "TICKS_NS", 10**12)
    directory = sharded(tmp_path / "m", a=b"first")
    fingerprint(directory), fingerprint(directory)
    assert len(reads) == 2


def test_notes_that_are_a_pipe_do_not_hang(tmp_path, home, reads):
    home.mkdir()
    os.mkfifo(home / "digests.json")
    fingerprint(sharded(tmp_path / "m", a=b"first"))
    assert reads == ["a.safetensors"]


def test_the_home_directory_is_private_whoever_makes_it(tmp_path, home):
    fingerprint(sharded(tmp_path / "m", a=b"first"))
    assert (home / "digests.json").is_file()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_every_python_file_counts_where_code_may_run(tmp_path, home):
    directory = sharded(tmp_path / "m", a=b"first")
    plain = fingerprint(directory, code=True)
    deep = directory / "package" / "deep.py"
    deep.parent.mkdir()
    deep.write_text("x = 1")
    (directory / "package" / "again").symlink_to(directory)
    linked_folder = tmp_path / "elsewhere"
    linked_folder.mkdir()
    (linked_folder / "own.py").write_text("y = 1")
    (directory / "linked").symlink_to(linked_folder)
    seen = {plain, fingerprint(directory, code=True)}
    deep.write_text("x = 2")
    seen.add(fingerprint(directory, code=True))
    (linked_folder / "own.py").write_text("y = 2")
    seen.add(fingerprint(directory, code=True))
    assert len(seen) == 4
    assert fingerprint(directory) == plain


def test_notes_that_cannot_be_written_cost_time_only(tmp_path, monkeypatch, reads):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "file" / "below"))
    directory = sharded(tmp_path / "m", a=b"first")
    assert fingerprint(directory) == fingerprint(directory)
    assert len(reads) == 2


def linked(snapshot, blob):
    (snapshot / "a.safetensors").unlink()
    (snapshot / "a.safetensors").symlink_to(blob)


def test_the_name_of_a_blob_is_never_taken_for_its_content(tmp_path, home, reads):
    expected = fingerprint(sharded(tmp_path / "plain", a=b"first"))
    snapshot = sharded(tmp_path / "hub" / "snapshots" / "c0ffee", a=b"")
    blob = tmp_path / "hub" / "blobs" / hashlib.sha256(b"first").hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(b"first")
    linked(snapshot, blob)
    reads.clear()
    assert fingerprint(snapshot) == fingerprint(snapshot) == expected
    assert len(reads) == 1
    blob.write_bytes(b"FIRST")
    assert fingerprint(snapshot) == fingerprint(sharded(tmp_path / "other", a=b"FIRST")) != expected


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path, home):
    directory = sharded(tmp_path / "m", a=b"first")
    before = fingerprint(directory)
    file = directory / "a.safetensors"
    status = file.stat()
    file.write_bytes(b"FIRST")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = fingerprint(directory)
    assert changed != before
    # Another file of the same size and time in its place.
    other = directory / "other"
    other.write_bytes(b"first")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file)
    assert fingerprint(directory) == before


def test_a_file_that_is_written_to_while_it_is_read_is_not_remembered(tmp_path, home, monkeypatch):
    directory = sharded(tmp_path / "m", a=b"first")
    original = module.file_sha256

    def read_and_change(path):
        digest = original(path)
        path.write_bytes(b"another length")
        return digest

    with monkeypatch.context() as patched:
        patched.setattr(module, "file_sha256", read_and_change)
        fingerprint(directory)
    assert not (home / "digests.json").exists()
    assert fingerprint(directory) == fingerprint(sharded(tmp_path / "n", a=b"another length"))


def test_a_single_file_goes_before_an_index(tmp_path):
    directory = sharded(tmp_path / "m", a=b"first")
    assert [file.name for file in weight_files(directory)] == ["a.safetensors"]
    (directory / "model.safetensors").touch()
    assert [file.name for file in weight_files(directory)] == ["model.safetensors"]
