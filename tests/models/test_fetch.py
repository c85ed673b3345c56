"""Fetching: requests to the hub, rejected files, and the message of each failure; the hub itself is replaced."""

from __future__ import annotations

import fnmatch
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors as hub
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import JudgeError, WeightsError
from geval_local.models.fetch import FILE_PATTERNS, entry_to_fetch, fetch
from geval_local.models.load import load_model
from geval_local.models.registry import find_judge


class Hub:
    """One repository: files that lie in a directory, through the two calls used by fetching."""

    def __init__(self, directory):
        self.directory = directory
        self.asked = []
        self.failure = None
        self.names = None

    def model_info(self, repository, *, revision=None):
        if self.failure and self.failure[0] == "info":
            raise self.failure[1]
        names = self.names or [file.name for file in self.directory.iterdir()]
        return SimpleNamespace(sha="c" * 40, siblings=[SimpleNamespace(rfilename=name) for name in names])

    def snapshot_download(self, repository, *, revision, local_dir, allow_patterns):
        if self.failure and self.failure[0] == "download":
            raise self.failure[1]
        self.asked.append((repository, revision))
        local_dir.mkdir(parents=True, exist_ok=True)
        for file in self.directory.iterdir():
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, local_dir / file.name)
        return str(local_dir)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    source = save_judge(tmp_path / "published", tiny_model("llama", 263, dtype=torch.float32), byte_tokenizer())
    for name in ("pytorch_model.bin", "modeling_own.py", "consolidated.safetensors", "model.gguf", "tf_model.h5"):
        (source / name).write_bytes(b"not asked for")
    replaced = Hub(source)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: replaced)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", replaced.snapshot_download)
    return replaced


def test_what_is_fetched_loads_by_name_and_by_directory(repository, tmp_path):
    entry = find_judge("phi-4")
    assert load_model(find_judge(fetch(entry, tmp_path / "carried"))).parameters > 0
    directory = fetch(entry)
    loaded = load_model(entry)
    assert loaded.directory == directory
    assert loaded.entry.name == "phi-4"
    # The commit, not the branch: a branch could have moved, and offline it would match an earlier download.
    assert repository.asked == [("microsoft/phi-4", "c" * 40)] * 2


def test_an_unknown_hub_id_is_a_judge_once_it_is_fetched(repository):
    with pytest.raises(JudgeError, match="there is no judge 'some/model'"):
        find_judge("some/model")
    directory = fetch(entry_to_fetch("some/model", None))
    entry = find_judge("some/model")
    assert (entry.hub, entry.path, entry.style, entry.dtype) == ("some/model", None, "chat", "auto")
    assert load_model(entry).directory == directory
    assert entry_to_fetch("microsoft/phi-4", None) == entry_to_fetch("phi-4", None)
    with pytest.raises(JudgeError, match="did you mean"):
        entry_to_fetch("phi4", None)


def test_only_safetensors_configuration_and_tokenizer_come_along(repository, tmp_path):
    fetched = {file.name for file in fetch(find_judge("phi-4"), tmp_path / "new").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= fetched
    assert not [name for name in fetched if name.endswith((".bin", ".py", ".gguf", ".h5"))]
    assert "consolidated.safetensors" not in fetched
    assert not any(pattern.endswith((".bin", ".py", ".pt", ".pth")) for pattern in FILE_PATTERNS)


def test_a_repository_without_safetensors_is_refused_before_the_download(repository, tmp_path):
    repository.names = ["config.json", "pytorch_model.bin"]
    with pytest.raises(WeightsError, match="publishes no safetensors"):
        fetch(find_judge("phi-4"), tmp_path / "new")
    assert repository.asked == []


def test_other_weights_at_the_destination_are_not_mixed_in(repository, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(JudgeError, match="already holds weights that are not from microsoft/phi-4"):
        fetch(find_judge("phi-4"), tmp_path / "new")
    assert repository.asked == []


def test_an_incomplete_download_is_not_reported_as_done(repository, tmp_path):
    (repository.directory / "model.safetensors").unlink()
    (repository.directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(WeightsError, match="no complete set"):
        fetch(find_judge("phi-4"), tmp_path / "new")


def http_error(kind):
    response = SimpleNamespace(headers={}, status_code=403, request=None)
    return kind("refused", response=response)


@pytest.mark.parametrize(
    ("where", "failure", "says", "hint"),
    [
        ("download", lambda: http_error(hub.GatedRepoError), "available on request only", "hf auth login"),
        ("info", lambda: http_error(hub.RepositoryNotFoundError), "there is no repository microsoft/phi-4", "hub id"),
        ("info", lambda: http_error(hub.RevisionNotFoundError), "has no revision None", "commits"),
        ("info", lambda: hub.OfflineModeIsEnabled("off"), "offline mode is on", "HF_HUB_OFFLINE"),
        ("info", lambda: ConnectionError("no route"), "cannot be fetched: ConnectionError: no route", "no network"),
        (
            "download",
            lambda: hub.LocalEntryNotFoundError("gone"),
            "cannot be fetched: LocalEntryNotFound",
            "no network",
        ),
        ("download", lambda: PermissionError("read-only"), "cannot be written to", None),
    ],
)
def test_failures_are_told_in_terms_of_the_judge(repository, tmp_path, where, failure, says, hint):
    repository.failure = (where, failure())
    with pytest.raises(JudgeError, match=says) as caught:
        fetch(find_judge("phi-4"), tmp_path / "new")
    assert hint is None or hint in caught.value.hint


def test_a_judge_with_a_path_has_nothing_to_fetch(repository):
    with pytest.raises(JudgeError, match="there is nothing to fetch"):
        fetch(find_judge("nano"))
