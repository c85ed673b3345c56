"""An attack: every file and every key of a judge's directory is edited, one at a time.

Each edit changes the signature, or changes no score, or is refused with an error of the package. Nothing else may
happen: no other score under the same signature, no other exception, and no edit that does not come back.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from edited_judges import measure
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import GevalError
from geval_local.signature import signature_differences

BIG = (10**7, 10**9, 2**31, 10**15)
#: Keys that transformers reads where they are there.
TOKENIZER_KEYS: dict[str, list[Any]] = {
    "tokenizer_class": ["Qwen2Tokenizer", "GPT2Tokenizer", "GemmaTokenizer", "LlamaTokenizer", "NoTokenizer", 5],
    "mask_token": ["a"],
    "sep_token": ["t"],
    "cls_token": ["e"],
    "unk_token": ["nowhere"],
    "add_prefix_space": [True],
    "add_bos_token": [False],
    "add_eos_token": [True],
    "additional_special_tokens": [["is", "a"], 5],
    "added_tokens_decoder": [{"7": {"content": "zz", "special": False}}, {"9999": {"content": "zz"}}, 5],
    "chat_template": ["{{ messages[0]['content'] }}", "{{ range(99999)|random }}{{ messages[0]['content'] }}", 5],
    "clean_up_tokenization_spaces": [True],
    "split_special_tokens": [True],
    "tokenizer_file": ["/nowhere.json"],
    "model_max_length": [1],
    "padding_side": ["left"],
    "auto_map": [{"AutoTokenizer": ["own.Tokenizer", None]}],
}
CONFIG_KEYS: dict[str, list[Any]] = {
    "num_hidden_layers": [1, *BIG],
    "num_labels": list(BIG),
    "vocab_size": [100, 300, *BIG],
    "max_position_embeddings": [1, 2, 64],
    "return_dict": [False],
    "output_attentions": [True],
    "output_hidden_states": [True],
    "torchscript": [True],
    "use_cache": [False],
    "_attn_implementation": ["org/kernel", "eager"],
    "attn_implementation": ["org/kernel"],
    "quantization_config": [{"quant_method": "nobodys"}, {}, 5, {"quant_method": "fp8"}],
    "transformers_weights": ["other.safetensors"],
    "configuration_files": [["config.4.0.0.json"]],
    "rope_parameters": [{"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}, {}, 5],
    "sliding_window": [4],
    "tie_word_embeddings": [True],
    "text_config": [{"hidden_size": 8}],
    "auto_map": [{"AutoModelForCausalLM": "own.Model"}],
    "temperature": [0.0],
    "dtype": ["evil", "float16"],
    "id2label": [5],
}


def edits(directory: Path, seed: int = 26) -> Iterator[tuple[str, str, bytes]]:
    """List single edits: a name, the file, and its new content."""
    draw = random.Random(seed)
    for file, extra in (
        ("config.json", CONFIG_KEYS),
        ("tokenizer_config.json", TOKENIZER_KEYS),
        (
            "generation_config.json",
            {"eos_token_id": [40], "num_beams": [0], "stop_strings": ["a"], "repetition_penalty": [0]},
        ),
        ("special_tokens_map.json", {"mask_token": ["a"], "bos_token": ["t"]}),
        ("added_tokens.json", {"zz": [7, 9999], "yy": [2**31]}),
        ("preprocessor_config.json", {"size": [5]}),
    ):
        path = directory / file
        record = json.loads(path.read_text()) if path.is_file() else {}
        for key in {**record, **extra}:
            values = extra.get(key) or [_other(record[key], draw)]
            for value in values:
                yield f"{file}: {key}={str(value)[:40]}", file, json.dumps(record | {key: value}).encode()
            if key in record:
                yield f"{file}: -{key}", file, json.dumps({k: v for k, v in record.items() if k != key}).encode()
    yield from _tokenizer_edits(directory, draw)
    text = (directory / "chat_template.jinja").read_text()
    for number, new in enumerate(
        (text + "{# x #}", text + "!", text.replace("<|assistant|>", ""), "{% for", "{{ lipsum() }}" + text)
    ):
        yield f"template {number}", "chat_template.jinja", new.encode()
    weights = (directory / "model.safetensors").read_bytes()
    head = int.from_bytes(weights[:8], "little")
    for place in (3, 12, head // 2, head + 9, *(draw.randrange(head + 8, len(weights)) for _ in range(4))):
        edited = weights[:place] + bytes([weights[place] ^ 0x41]) + weights[place + 1 :]
        yield f"weights at {place}", "model.safetensors", edited
    yield "weights cut", "model.safetensors", weights[: len(weights) // 2]
    yield "index", "model.safetensors.index.json", b'{"weight_map": {"a": "other.safetensors"}}'
    for name in ("own.py", "custom_generate/generate.py", "adapter_model.safetensors", "tokenizer.model", "vocab.json"):
        yield f"new {name}", name, b"{}"
    yield "adapter", "adapter_config.json", b'{"peft_type": "LORA", "target_modules": "model.*X"}'


def _tokenizer_edits(directory: Path, draw: random.Random) -> Iterator[tuple[str, str, bytes]]:
    record = json.loads((directory / "tokenizer.json").read_text())
    vocab = record["model"]["vocab"]
    first, second = draw.sample(sorted(vocab), 2)
    swapped = vocab | {first: vocab[second], second: vocab[first]}
    for name, changes in {
        "swap": {"vocab": swapped},
        "twice": {"vocab": vocab | {"zz": vocab[first]}},
        "far": {"vocab": vocab | {"zz": 2**31}},
        "beyond": {"vocab": vocab | {"zz": len(vocab) + 500}},
        "dropout": {"dropout": 0.5},
        "unk": {"unk_token": "zz"},
        "fuse": {"fuse_unk": True},
        "bytes": {"byte_fallback": True},
        "ignore": {"ignore_merges": True},
        "prefix": {"continuing_subword_prefix": "a"},
        "merges": {"merges": []},
        "kind": {"type": "WordLevel"},
    }.items():
        yield f"model {name}", "tokenizer.json", json.dumps(record | {"model": record["model"] | changes}).encode()
    padding = {"strategy": {"Fixed": 500}, "direction": "Left", "pad_to_multiple_of": None}
    padding |= {"pad_id": 9, "pad_type_id": 0, "pad_token": "a"}
    truncation = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    first_added = record["added_tokens"][0]
    for name, changes in {
        "normalizer": {"normalizer": {"type": "Lowercase"}},
        "pre": {"pre_tokenizer": None},
        "decoder": {"decoder": None},
        "post": {"post_processor": None},
        "padding": {"padding": padding},
        "truncation": {"truncation": truncation},
        "added": {"added_tokens": record["added_tokens"][:-1]},
        "plain": {"added_tokens": [token | {"special": False} for token in record["added_tokens"]]},
        "strip": {"added_tokens": [token | {"lstrip": True} for token in record["added_tokens"]]},
        "outside": {"added_tokens": [*record["added_tokens"], first_added | {"content": "zz", "id": 9999}]},
        "version": {"version": "9"},
    }.items():
        yield f"tokenizer {name}", "tokenizer.json", json.dumps(record | changes).encode()
    yield "tokenizer order", "tokenizer.json", json.dumps(dict(reversed(record.items()))).encode()


def _other(value: Any, draw: random.Random) -> Any:
    """Return another value, of the same kind most of the time."""
    if draw.random() < 0.2:
        return draw.choice([None, [1], {"a": 1}, "x", -1])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return draw.choice([0, value + 1, value * 2, -value, 1e30, *BIG])
    return f"{value}x" if isinstance(value, str) else draw.choice([None, 0, "x"])


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    tokenizer = byte_tokenizer(merges=[("t", "h"), ("i", "s"), (" ", "a")], thinking=True)
    model = tiny_model("llama", 263 + 3, dtype=torch.float32)
    directory = save_judge(tmp_path_factory.mktemp("attack") / "judge", model, tokenizer)
    (directory / "generation_config.json").write_text('{"eos_token_id": 1}')
    return directory


@pytest.mark.parametrize(
    "part",
    [pytest.param(slice(0, 20), id="20"), pytest.param(slice(20, None), id="the-others", marks=pytest.mark.nightly)],
)
def test_an_edit_shows_in_the_signature_or_in_no_score_or_is_refused(judge, tmp_path, monkeypatch, part):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    signature, scores = measure(judge)
    assert all(error is None for _, error in scores)
    assert scores[0] != scores[1]
    chosen = list(edits(judge))
    random.Random(27).shuffle(chosen)
    seen = dict.fromkeys(("refused", "signed", "same"), 0)
    for name, file, content in chosen[part]:
        directory = shutil.copytree(judge, tmp_path / "copy")
        (directory / file).parent.mkdir(exist_ok=True)
        (directory / file).write_bytes(content)
        try:
            other, found = measure(directory)
        except GevalError:
            seen["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"{name}: {error!r}") from error
        else:
            is_signed = bool(signature_differences(signature, other))
            assert is_signed or found == scores, f"{name}: other scores under one signature"
            seen["signed" if is_signed else "same"] += 1
        shutil.rmtree(directory)
    assert min(seen.values()) > 1, seen
