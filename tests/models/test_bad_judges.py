"""Broken judge directories and models files: an error that names the file, never a traceback."""

from __future__ import annotations

import json

import pytest
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import JudgeError
from geval_local.models.load import load_model
from geval_local.models.registry import find_judge, load_registry

DEEP = "[" * 100_000


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


@pytest.fixture
def judge(tmp_path):
    return save_judge(tmp_path / "judge", tiny_model("llama", 263), byte_tokenizer())


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_map": 5},
        {"auto_map": None},
        {"model_type": ["a"]},
        {"model_type": None},
        {"architectures": 5},
        {"architectures": [5]},
        {"max_position_embeddings": 0},
        {"max_position_embeddings": -5},
        {"pad_token_id": 10**12},
        {"vocab_size": "x"},
        {"num_hidden_layers": -1},
        {"hidden_size": 10**15},
        {"quantization_config": 5},
        {"rope_parameters": {"rope_type": "nope"}},
    ],
    ids=str,
)
def test_a_strange_configuration_is_refused(judge, changes):
    file = judge / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(JudgeError, match="judge"):
        load_model(find_judge(judge))


@pytest.mark.parametrize(
    "text", [DEEP, DEEP.replace("[", '{"a":'), "\0", "[]", "", '{"model_type": 1' + "0" * 5000 + "}"]
)
def test_a_configuration_that_is_none_is_refused(judge, text):
    (judge / "config.json").write_text(text)
    with pytest.raises(JudgeError, match=r"config\.json"):
        load_model(find_judge(judge))


@pytest.mark.parametrize(
    "weights", [{"a": 5}, {"a": ["x"]}, 5, {"a": "\0.safetensors"}, {"a": "b" * 300 + ".safetensors"}], ids=repr
)
def test_a_strange_index_is_refused(judge, weights):
    (judge / "model.safetensors").unlink()
    (judge / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(JudgeError, match=r"model\.safetensors\.index\.json"):
        load_model(find_judge(judge))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "default: [a]\njudges: {}",
        "default: {a: b}\njudges: {}",
        "default: 5\njudges: {}",
        *(
            f"judges:\n  x: {entry}"
            for entry in (
                "{path: ~nosuchuser/x}",
                '{path: "a\\0b"}',
                "{path: " + "a" * 5000 + "}",
                "{path: loop}",
                "{path: judge, adapter: ~nosuchuser/x}",
                "{hub: a/b, parameters: " + "9" * 400 + "}",
                "{hub: a/b, parameters: .nan}",
                "{hub: a/b, context: " + "9" * 5000 + "}",
                "{hub: ../..}",
                "{hub: a/..}",
                "{hub: a/b, dtype: [a]}",
                "!!python/object:os.system {}",
                "!!timestamp foo",
                "!!bool foo",
                "!!int foo",
                "[" * 3000,
            )
        ),
    ],
    ids=lambda text: text[:60],
)
def test_a_strange_models_file_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "models.yaml").write_text(text)
    with pytest.raises(JudgeError, match=r"models\.yaml"):
        load_registry(tmp_path / "models.yaml")


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000, "a/..", "../nowhere/..", "", "loop"], ids=repr)
def test_a_strange_name_is_no_judge_and_no_adapter(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    if name:
        with pytest.raises(JudgeError, match="there is no judge"):
            find_judge(name)
    with pytest.raises(JudgeError, match="holds no adapter_config"):
        find_judge("nano", adapter=name)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"])
def test_a_pointer_of_git_lfs_is_told_with_the_command(judge, name):
    (judge / name).write_text(POINTER)
    with pytest.raises(JudgeError, match=f"{name} is a Git LFS pointer") as caught:
        load_model(find_judge(judge))
    assert f"`git -C {judge} lfs pull`" in caught.value.hint


def test_a_pointer_that_nobody_reads_does_no_harm(judge):
    for name in ("consolidated.safetensors", "tokenizer.model", "big.gguf"):
        (judge / name).write_text(POINTER)
    assert load_model(find_judge(judge)).directory == judge


def test_a_gguf_file_and_an_adapter_may_be_pointers_too(judge, tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text(POINTER)
    with pytest.raises(JudgeError, match="Git LFS pointer") as caught:
        load_model(find_judge(judge, adapter=folder))
    assert f"`git -C {folder} lfs pull`" in caught.value.hint
    (folder / "m.gguf").write_text(POINTER)
    with pytest.raises(JudgeError, match=r"m\.gguf is a Git LFS pointer") as caught:
        load_model(find_judge(folder / "m.gguf"))
    assert f"`git -C {folder} lfs pull`" in caught.value.hint


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_download_that_broke_off_is_told_with_the_command(judge, tmp_path, missing):
    snapshot = tmp_path / "hub" / "models--org--some--name" / "snapshots" / "0123abc"
    blobs = snapshot.parent.parent / "blobs"
    blobs.mkdir(parents=True)
    snapshot.parent.mkdir()
    judge.rename(snapshot)
    (blobs / "77aa.incomplete").write_text("")
    assert load_model(find_judge(snapshot)).entry.path == snapshot  # another file's does no harm
    (snapshot / missing).unlink()
    with pytest.raises(JudgeError, match=r"weights|config|tokenizer\.json") as caught:
        load_model(find_judge(snapshot))
    assert "77aa.incomplete" in caught.value.hint
    assert "`hf download org/some--name --revision 0123abc`" in caught.value.hint


def test_a_download_into_a_directory_broke_off(judge):
    part = judge / ".cache" / "huggingface" / "download"
    part.mkdir(parents=True)
    (part / "x.77aa.incomplete").write_text("")
    (judge / "model.safetensors").unlink()
    with pytest.raises(JudgeError, match="no weights") as caught:
        load_model(find_judge(judge))
    assert f"--local-dir {judge}`" in caught.value.hint


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (("vocab.json", "merges.txt"), "GPT2Tokenizer as T; T.from_pretrained('{0}').save_pretrained('{0}')"),
        (("tokenizer.model",), "pip install sentencepiece"),
        ((), "Fetch tokenizer.json"),
    ],
)
def test_a_tokenizer_of_an_older_format_is_told_with_the_command(judge, files, command):
    record = json.loads((judge / "tokenizer.json").read_text())
    (judge / "tokenizer.json").unlink()
    for name in files:
        (judge / name).write_text(json.dumps(record["model"]["vocab"]) if name == "vocab.json" else "#version: 0.2\n")
    with pytest.raises(JudgeError, match=" and ".join(files) or "holds no tokenizer.json") as caught:
        load_model(find_judge(judge))
    assert "no tokenizer.json" in caught.value.message
    assert command.format(judge) in caught.value.hint
