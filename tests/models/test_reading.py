"""Files of weights that no writer makes: tensors that overlap, and holes; and the digest of a file."""

from __future__ import annotations

import json
import random
import shutil

import pytest
import torch
from safetensors.torch import save_file
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import WeightsError
from geval_local.io.ownership import file_sha256
from geval_local.models.load import check_judge, load_model
from geval_local.models.reading import read_files, read_safetensors, stored_tensors
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


def write(file, places, data=64):
    """Write a safetensors file of one-dimensional tensors of bytes at the given places."""
    header = {
        name: {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]} for name, start, end in places
    }
    head = json.dumps(header).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head + bytes(range(data)))
    return file


@pytest.mark.parametrize(
    "places",
    [
        [("a", 0, 40), ("b", 24, 64)],
        [("a", 0, 64), ("b", 0, 64)],
        [("a", 0, 64), ("b", 10, 20)],
        [("a", 0, 30), ("b", 34, 64)],
        [("a", 4, 64)],
        [("a", 0, 60)],
    ],
)
def test_tensors_that_do_not_fill_a_file_one_behind_the_other_are_refused(tmp_path, places):
    file = write(tmp_path / "model.safetensors", places)
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or cut short: .*header"):
        stored_tensors(file)


def test_a_tensor_that_is_named_twice_is_refused(tmp_path):
    """Every reader of JSON would silently keep the last of them."""
    one = '"a": {"dtype": "%s", "shape": [64], "data_offsets": [0, 64]}'
    head = f"{{{one % 'U8'}, {one % 'I8'}}}".encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + bytes(64))
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or cut short: its header has 'a' twice"):
        stored_tensors(file)


def test_a_file_in_any_order_with_empty_tensors_is_read_and_hashed(tmp_path):
    file = write(tmp_path / "m.safetensors", [("z", 40, 64), ("none", 40, 40), ("a", 0, 40)])
    tensors, digests = read_safetensors([file])
    assert {name: one.tolist() for name, one in tensors.items()} == {
        "a": list(range(40)),
        "none": [],
        "z": list(range(40, 64)),
    }
    assert digests == {file: file_sha256(file)}


def test_the_digest_on_the_way_is_the_files_or_there_is_none(tmp_path):
    """Any places at all: with gaps before, between and behind them, as GGUF has them, or overlapping."""
    draw = random.Random(1)
    file = tmp_path / "weights"
    file.write_bytes(draw.randbytes(5000))
    seen = set()
    for _ in range(300):
        places = {}
        for number in range(draw.randrange(1, 4)):
            start = draw.randrange(4900)
            places[str(number)] = (start, draw.randrange(min(5000 - start, draw.choice([50, 5000]))))
        try:
            _, digests = read_files({file: places})
        except WeightsError as error:
            seen.add("overlap" if "overlap" in str(error) else str(error))
        else:
            assert digests == {file: file_sha256(file)}
            seen.add("read")
    assert seen == {"overlap", "read"}


def test_a_name_in_two_shards_is_refused_with_both(tmp_path):
    directory = save_judge(
        tmp_path / "judge", tiny_model("llama", 263, dtype=torch.float32), byte_tokenizer(), max_shard_size="30KB"
    )
    shards = sorted(directory.glob("model-*.safetensors"))
    name = next(iter(stored_tensors(shards[0])))
    for place in (shards[-1], directory / "model-extra.safetensors"):
        copy = shutil.copytree(directory, tmp_path / place.name)
        tensors, _ = read_safetensors([copy / place.name] if place in shards else [])
        save_file(tensors | {name: torch.zeros(3)}, copy / place.name)
        index = json.loads((copy / "model.safetensors.index.json").read_text())
        index["weight_map"]["more"] = place.name
        (copy / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(
            WeightsError,
            match=f"the tensor {name!r} is in both .*{shards[0].name} and {place.name}|"
            f"the tensor {name!r} is in both .*{place.name} and {shards[0].name}",
        ):
            check_judge(find_judge(copy), JudgeOptions())
    assert load_model(find_judge(directory)).parameters
