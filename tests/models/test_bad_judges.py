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
