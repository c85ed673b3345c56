"""An attack by code: each key of each file of a judge's directory is changed, removed or written twice, one at a time.

An edit is refused with an error that names the directory, or gives a new signature, or changes no score to the last
bit. The edits are made by walking through the files, so that keys of next year's formats are among them;
`test_single_edits.py` has those that need an idea.
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
from geval_local.models.load import load_model
from geval_local.models.registry import find_judge
from geval_local.signature import signature_differences

INDEX, CONFIG, ADAPTER = "model.safetensors.index.json", "adapter_config.json", "adapter_model.safetensors"
#: Entries of a long list or of a vocabulary that are edited.
_SOME = 4
#: Files that a judge need not have, and what they may hold.
SIDE_FILES: dict[str, dict[str, Any]] = {
    "special_tokens_map.json": {"bos_token": "t", "eos_token": {"content": " ", "lstrip": True}, "unk_token": "a"},
    "added_tokens.json": {"zz": 7, "yy": 9999, "xx": 266},
    "generation_config.json": {"eos_token_id": 1, "suppress_tokens": [40], "temperature": 0.1, "num_beams": 3},
    "preprocessor_config.json": {"size": 5},
    "chat_template.json": {"chat_template": "{{ messages[0]['content'] }}"},
}
SHARD = "model-00001-of-"


def walk(value: Any, draw: random.Random, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all keys and places in a JSON value; of many alike, some."""
    if isinstance(value, dict):
        places: list[Any] = list(value)
    else:
        places = list(range(len(value))) if isinstance(value, list) else []
    is_alike = len(places) > 3 * _SOME and len({type(value[place]) for place in places}) == 1
    for place in draw.sample(places, _SOME) if is_alike else places:
        yield (*path, place)
        yield from walk(value[place], draw, (*path, place))


def others(value: Any) -> list[Any]:
    """Other values for one, of its own kind and of others."""
    if isinstance(value, bool):
        return [not value, None, "x"]
    if isinstance(value, int | float):
        return [value + 1, 0, -1, value * 2, 2**31, "x", None]
    if isinstance(value, str):
        return [f"{value}x", "", "a", None, 5]
    if isinstance(value, list):
        return [value[::-1], value[:-1], [*value, *value[-1:]], [], None, "x"]
    return [{}, {"a": 1}, None, []] if value is not None else [1, "x", [], {}, True]


def at(record: Any, path: tuple[Any, ...]) -> Any:
    for place in path:
        record = record[place]
    return record


def edited(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(record))
    at(copy, path[:-1])[path[-1]] = value
    return copy


def json_edits(record: Any, draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield names of edits and the edited text."""
    for path in walk(record, draw):
        old, place = at(record, path), ".".join(map(str, path))
        changes = [value for value in others(old) if value != old or type(value) is not type(old)]
        for value in changes:
            yield f"{place}={str(value)[:30]}", json.dumps(edited(record, path, value))
        copy = json.loads(json.dumps(record))
        del at(copy, path[:-1])[path[-1]]
        yield f"-{place}", json.dumps(copy)
        if isinstance(path[-1], str):
            for first, second in ((old, changes[0]), (changes[0], old)):
                copy = edited(record, path, first)
                at(copy, path[:-1])["\0again"] = second
                yield f"{place} twice", json.dumps(copy).replace('"\\u0000again"', json.dumps(path[-1]))


def header_edits(file: Path, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield edits of the header of a safetensors file, with its data as it is."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    for name, text in json_edits(json.loads(content[8:end]), draw):
        yield name, len(text.encode()).to_bytes(8, "little") + text.encode() + content[end:]


def edits(directory: Path, group: str) -> list[tuple[str, str, bytes]]:
    """List the edits of a group of files: a name, the file, and its new content; in a fixed order of chance."""
    draw = random.Random(group)
    found: list[tuple[str, str, bytes]] = []
    if group == "side files":
        for file, record in SIDE_FILES.items():
            found += [(f"new {key}", file, json.dumps({key: value}).encode()) for key, value in record.items()]
            found += [(name, file, text.encode()) for name, text in json_edits(record, draw)]
    elif group == "shards":
        shards = sorted(directory.glob("model-*.safetensors"))
        found += [(name, shards[0].name, content) for name, content in header_edits(shards[0], draw)]
        found += [
            (f"as {one.name}", other.name, one.read_bytes()) for one in shards for other in shards if one != other
        ]
        record = json.loads((directory / INDEX).read_text())
        found += [(name, INDEX, text.encode()) for name, text in json_edits(record, draw)]
    elif group == ADAPTER:
        found += [(name, ADAPTER, content) for name, content in header_edits(directory / ADAPTER, draw)]
    else:
        record = json.loads((directory / group).read_text())
        found += [(name, group, text.encode()) for name, text in json_edits(record, draw)]
    draw.shuffle(found)
    return found


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A judge of several shards with an adapter of its own."""
    peft = pytest.importorskip("peft")
    tokenizer = byte_tokenizer(merges=[("t", "h"), ("i", "s"), (" ", "a")], thinking=True)
    model = tiny_model("llama", 263 + 3, dtype=torch.float32)
    directory = save_judge(tmp_path_factory.mktemp("edits") / "judge", model, tokenizer, max_shard_size="40KB")
    plain = load_model(find_judge(directory)).model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
        adapted = peft.get_peft_model(plain, config)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data.copy_(0.3 * torch.randn_like(parameter))
    adapted.save_pretrained(str(directory))
    return directory


GROUPS = ("config.json", "tokenizer.json", "tokenizer_config.json", "side files", "shards", CONFIG, ADAPTER)
FEW, MANY = 5, 60


@pytest.mark.sweep(*(f"{group}-few" for group in GROUPS))
@pytest.mark.parametrize("part", [pytest.param(slice(0, FEW), id="few"), pytest.param(slice(FEW, MANY), id="many")])
@pytest.mark.parametrize("group", GROUPS)
def test_an_edit_is_refused_or_signed_or_changes_nothing(judge, tmp_path, monkeypatch, group, part):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    signature, scores = measure(shutil.copytree(judge, tmp_path / "judge"))
    shutil.rmtree(tmp_path / "judge")
    assert all(error is None for _, error in scores)
    assert scores[0] != scores[1]
    chosen = edits(judge, group)[part]
    assert len(chosen) >= FEW
    wrong = []
    for name, file, content in chosen:
        directory = shutil.copytree(judge, tmp_path / "judge")
        (directory / file).write_bytes(content)
        try:
            other, found = measure(directory)
        except GevalError as error:
            if str(tmp_path) not in str(error):
                wrong.append(f"{file}: {name}: {error} names no file")
        except BaseException as error:
            wrong.append(f"{file}: {name}: {error!r}")
        else:
            if found != scores and not signature_differences(signature, other):
                wrong.append(f"{file}: {name}: other scores under one signature")
        shutil.rmtree(directory)
    assert not wrong, "\n".join(wrong)
