"""Identity: what is loaded is what is signed, it stays what it was, and nothing else has a say."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import textwrap
from types import SimpleNamespace

import forked
import pytest
import torch
import transformers
from cli_run import run, write_rows
from run_kit import read, wanted, write_input
from safetensors.torch import load_file, save_file
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import Interrupted, JudgeError, OutputError, TokenizerError, WeightsError
from geval_local.judge.batcher import Batcher
from geval_local.judge.judge import Judge
from geval_local.judge.steps import write_steps
from geval_local.metric import Metric
from geval_local.metric_file import FRAME
from geval_local.models import load as module
from geval_local.models.chat_template import chat_frame
from geval_local.models.fingerprint import FileStates, fingerprint, tokenizer_hash
from geval_local.models.load import load_model, load_tokenizer
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions
from geval_local.prompt import Prompt, render_steps_prompt
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.directory import open_run
from geval_local.runs.executor import Window, Worker
from geval_local.runs.store import Store
from geval_local.signature import signature_differences
from geval_local.testing import MockJudge
from geval_local.tokens.encoder import PromptEncoder

METRIC = Metric(name="clarity", criteria="How clear it is.", scale="1-5", fields={"source": "S", "output": "O"})
METRIC = METRIC.with_steps(("Read.", "Choose a score."))
ROWS = [{"source": "A tale.", "output": f"This is the end of it, {row}."} for row in range(3)]
MERGES = [("t", "h"), ("th", "e"), ("i", "s"), (" ", "the")]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def judge(tmp_path):
    model = tiny_model("llama", 263 + len(MERGES), dtype=torch.float32)
    return save_judge(tmp_path / "judge", model, byte_tokenizer(chat=False, merges=MERGES))


def edit(file, **changes):
    record = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(record | changes))


def values(judge):
    return [score.value for score in judge.score_many(METRIC, ROWS)]


# --- the tokenizer ----------------------------------------------------------------------------------------------------

OTHER_TOKENIZERS = [{"tokenizer_class": "GPT2Tokenizer"}, {"mask_token": "is"}, {"sep_token": "the"}]


@pytest.mark.parametrize("changes", OTHER_TOKENIZERS, ids=str)
def test_whatever_changes_the_tokens_changes_the_signature(judge, changes):
    before = Judge.load(judge)
    edit(judge / "tokenizer_config.json", **changes)
    after = Judge.load(judge)
    assert set(signature_differences(str(before.signature(METRIC)), str(after.signature(METRIC)))) == {"tokenizer"}
    assert before.identity != after.identity  # and so the cache holds nothing of the other


@pytest.mark.parametrize("is_one_token", [True, False])
def test_what_stands_before_each_prompt_counts_though_the_ids_of_a_text_stay(judge, is_one_token):
    before = load_tokenizer(find_judge(judge))
    ids = list(before("x").input_ids)
    parts = {"a": ids} if is_one_token else {"a": ids[:-1], "b": ids[-1:]}
    single = [{"SpecialToken": {"id": name, "type_id": 0}} for name in parts if parts[name]]  # and no text
    tokens = {name: {"id": name, "ids": part, "tokens": [name] * len(part)} for name, part in parts.items() if part}
    processor = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": tokens}
    edit(judge / "tokenizer.json", post_processor=processor)
    after = load_tokenizer(find_judge(judge))
    assert (after("x").input_ids, PromptEncoder(after).prefix_ids) == (ids, tuple(ids))
    assert tokenizer_hash(before) != tokenizer_hash(after)


def test_one_tokenizer_has_one_hash_however_its_file_is_written(judge):
    before = load_tokenizer(find_judge(judge))
    file = judge / "tokenizer.json"
    record = json.loads(file.read_text())
    record["model"]["vocab"] = dict(reversed(record["model"]["vocab"].items()))
    record["model"]["merges"] = [" ".join(pair) for pair in record["model"]["merges"]]
    file.write_text(json.dumps(dict(reversed(record.items())), indent=3))
    after = load_tokenizer(find_judge(judge))
    before.backend_tokenizer.enable_padding(length=9)  # as a call with padding leaves it
    before.backend_tokenizer.enable_truncation(3)
    assert tokenizer_hash(before) == tokenizer_hash(after)


def test_the_rendered_frame_counts(judge):
    tokenizer = byte_tokenizer()
    frame = chat_frame(tokenizer)
    other = type(frame)(**{**vars(frame), "after": frame.after + " "})
    assert len({tokenizer_hash(tokenizer), tokenizer_hash(tokenizer, frame), tokenizer_hash(tokenizer, other)}) == 3


@pytest.mark.parametrize("source", ["{{ range(99999)|random }}", "{{ lipsum() }}"])
def test_a_template_has_no_source_of_chance(source):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = source + tokenizer.chat_template
    with pytest.raises(TokenizerError, match="the chat template fails"):
        chat_frame(tokenizer)


def test_a_run_is_not_resumed_across_a_change_of_the_tokenizer(tmp_path, judge):
    manifest = wanted(write_input(tmp_path / "rows.jsonl", 60, holes=False))
    stop = [False]

    def work(manifest):
        with open_run(tmp_path / "run", manifest) as opened:
            for _ in opened.rows(lambda record: Judge.load(judge, batch_tokens=3000), should_stop=lambda: stop[0]):
                stop[0] = True

    with pytest.raises(Interrupted):
        work(manifest)
    stop[0] = False
    edit(judge / "tokenizer_config.json", mask_token="is")
    with pytest.raises(OutputError, match="is not as it was when this run began: tokenizer was"):
        work(None)


def test_compare_tells_another_tokenizer(tmp_path, home, judge):
    metric = tmp_path / "clarity.yaml"
    metric.write_text(METRIC.to_yaml())
    data = write_rows(tmp_path / "rows.jsonl", ROWS)
    for name in ("a", "b"):
        done = run("score", data, "-m", metric, "-j", judge, "-o", tmp_path / f"{name}.jsonl", home=home)
        assert done.exit_code == 0, done.stderr
        edit(judge / "tokenizer_config.json", mask_token="is")
    first, second = (read(tmp_path / f"{name}.jsonl") for name in ("a", "b"))
    assert first != second
    done = run("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl", home=home)
    assert done.exit_code == 2
    assert "tokenizer" in done.stderr


# --- files that move --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_file_that_is_replaced_while_it_is_loaded_is_refused_by_name(judge, tmp_path, monkeypatch, name):
    """What download tools do: another file under the same name, at once."""
    other = tmp_path / "new"
    weights = {key: tensor + 1 for key, tensor in load_file(judge / "model.safetensors").items()}
    save_file(weights, other, metadata={"format": "pt"})
    if name != "model.safetensors":
        other.write_text("{}")
    original = module.load_weights

    def read_and_replace(*given):
        found = original(*given)
        os.replace(other, judge / name)
        return found

    monkeypatch.setattr(module, "load_weights", read_and_replace)
    with pytest.raises(WeightsError, match=rf"{name} changed while the judge was being loaded") as caught:
        load_model(find_judge(judge))
    assert "Load it again" in caught.value.hint


def mend(file, how):
    """Change a file's ctime alone, as backups do, or its content under the same size and mtime."""
    status = file.stat()
    if how == "link":
        os.link(file, file.with_name(f"{file.name}.link"))
    elif how == "mode":
        file.chmod(0o600)
    elif how == "copy":
        shutil.copy2(file, file.with_name("copy"))
        os.replace(file.with_name("copy"), file)
    else:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("how", ["link", "mode", "copy", "content"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_file_whose_content_stays_has_not_changed(judge, monkeypatch, caplog, name, how):
    original = module.load_weights

    def read_and_mend(*given):
        found = original(*given)
        mend(judge / name, how)
        return found

    monkeypatch.setattr(module, "load_weights", read_and_mend)
    if how == "content":
        with pytest.raises(WeightsError, match=f"{name} changed while the judge was being loaded"):
            load_model(find_judge(judge))
        return
    loaded = load_model(find_judge(judge))
    (judge / f"{name}.link").unlink(missing_ok=True)
    loaded.check_files()
    assert not caplog.records
    mend(judge / name, "content")
    loaded.check_files()
    assert "has changed since it was loaded" in caplog.text


IN_PLACE = """
import sys
from pathlib import Path
from geval_local import Judge, Metric
metric = Metric.load(sys.argv[1])
rows = [{"source": "A tale.", "output": "It ends."}]
for directory, dtype in zip(sys.argv[2::2], sys.argv[3::2]):
    judge = Judge.load(directory, dtype=dtype)
    file = Path(directory) / "model.safetensors"
    content = file.read_bytes()
    found = [judge.score_many(metric, rows)[0].value]
    with file.open("r+b") as stream:
        stream.seek(int.from_bytes(content[:8], "little") + 8)
        stream.write(bytes(len(content) - stream.tell()))
    found.append(judge.score_many(metric, rows)[0].value)
    with file.open("r+b") as stream:
        stream.truncate(0)
    found.append(judge.score_many(metric, rows)[0].value)
    print(dtype, len(set(found)) == 1, found)
"""


def test_a_loaded_judge_owns_its_weights(tmp_path):
    """Where the stored dtype is the computing one, parameters were maps of the file: changed and killed with it."""
    arguments = []
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        directory = save_judge(tmp_path / name, tiny_model("llama", 263, dtype=dtype), byte_tokenizer(chat=False))
        arguments += [str(directory), name]
    (tmp_path / "metric.yaml").write_text(METRIC.to_yaml())
    done = forked.code(textwrap.dedent(IN_PLACE), tmp_path / "metric.yaml", *arguments)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["float32", "True"], ["bfloat16", "True"]]


def test_a_change_under_a_loaded_judge_is_told_once(judge, caplog):
    loaded = Judge.load(judge)
    before = values(loaded)
    assert not caplog.records
    (judge / "model.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "geval_local"):
        assert values(loaded) == before
        with Batcher(loaded) as batcher:
            assert [score.value for score in batcher.score(METRIC, ROWS).result()] == before
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "model.safetensors has changed since it was loaded" in told[0]


def test_weights_that_are_read_while_scoring_must_stay(judge):
    loaded = load_model(find_judge(judge))
    loaded.model.lm_head.to("meta")  # how a device map leaves weights on the disk
    loaded.check_files()
    os.utime(judge / "model.safetensors")
    with pytest.raises(JudgeError, match=r"model\.safetensors has changed since it was loaded.*while it scores"):
        loaded.check_files()


def test_nothing_is_committed_after_a_change():
    """Files are looked at after a unit is computed, and before its outcomes are kept anywhere."""
    judge = MockJudge()
    metric = Metric.load("summarization/fluency").with_steps(())
    (sample,) = (SimpleNamespace(texts=lambda fields: {"output": "It ends."}, row=1, where="row 1") for _ in range(1))

    def fail():
        raise JudgeError("moved")

    judge.check_files = fail
    store, prepared = Store(None, "run", is_new=True), [judge.prepare(metric, [sample])]
    assert prepared[0][0].request is not None, prepared[0][0].error
    worker = Worker(store, OutcomeCache(in_use=False), judge, 0, advance=lambda count: None, should_stop=lambda: False)
    with pytest.raises(JudgeError, match="moved"):
        worker.execute(Window(0, 0, [sample], (prepared,)), [0], prepared)
    assert store.outcomes(0, 0, 0, 1) == {}


def test_files_that_come_and_go_are_seen(judge):
    states = FileStates(judge)
    assert states.moved_or_new() == []
    (judge / "README.md").write_text("not read")
    assert states.moved_or_new() == []
    (judge / "chat_template.jinja").write_text("x")
    assert [file.name for file in states.moved_or_new()] == ["chat_template.jinja"]
    assert states.moved() == []
    (judge / "config.json").unlink()
    assert [file.name for file in states.moved()] == ["config.json"]


# --- code, generation, attention --------------------------------------------------------------------------------------


def test_trusted_code_is_part_of_the_judge(judge, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    code = "from transformers import LlamaForCausalLM\nclass Own(LlamaForCausalLM):\n    factor = {}\n"
    edit(judge / "config.json", auto_map={"AutoModelForCausalLM": "own.Own"})
    found = []
    for factor in (1, 2):
        (judge / "own.py").write_text(code.format(factor))
        found.append(load_model(find_judge(judge), JudgeOptions(trust_remote_code=True)))
    assert type(found[1].model).__name__ == "Own"
    assert found[0].fingerprint != found[1].fingerprint
    edit(judge / "config.json", auto_map={"AutoModelForCausalLM": "somebody/else--own.Own"})
    with pytest.raises(JudgeError, match=r"config\.json names files that are not read .*somebody/else"):
        load_model(find_judge(judge), JudgeOptions(trust_remote_code=True))


def test_data_that_trusted_code_may_open_is_part_of_the_judge(judge):
    """A file beside the code changes the fingerprint, and is seen while the judge is read; others do not."""
    (judge / "own.py").write_text("")
    states, before = FileStates(judge, code=True), fingerprint(judge, code=True)
    for name in ("bias.npy", "tables/words.txt", "notes.bin"):
        (judge / name).parent.mkdir(exist_ok=True)
        (judge / name).write_bytes(b"1")
        assert states.moved_or_new() == [judge / name]
        one = fingerprint(judge, code=True)
        (judge / name).write_bytes(b"2")
        assert len({before, one, fingerprint(judge, code=True)}) == 3
        assert fingerprint(judge) == fingerprint(judge)
        (judge / name).unlink()
    for name in ("__pycache__/own.pyc", ".cache/huggingface/own.metadata", "pytorch_model.bin", "adapter.safetensors"):
        (judge / name).parent.mkdir(exist_ok=True, parents=True)
        (judge / name).write_bytes(b"1")
    assert (states.moved_or_new(), fingerprint(judge, code=True)) == ([judge / "adapter.safetensors"], before)
    plain = fingerprint(judge)
    (judge / "bias.npy").write_bytes(b"1")
    assert fingerprint(judge) == plain  # without the code nobody opens it


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "LlamaTokenizer", "GPT2Tokenizer", "T5Tokenizer"])
def test_a_tokenizer_made_of_nothing_is_refused(judge, kind):
    (judge / "tokenizer.json").unlink()
    edit(judge / "tokenizer_config.json", tokenizer_class=kind)
    with pytest.raises(TokenizerError, match=r"no tokenizer can be loaded from .*: it holds no tokenizer\.json"):
        load_tokenizer(find_judge(judge))


POISON = [
    "{",
    {"eos_token_id": 40, "num_beams": 3, "do_sample": True, "temperature": 9.0},
    {"sequence_bias": [[[40], 50.0]]},
    {"bad_words_ids": [[99999]], "stop_strings": ["a"]},
    {"cache_implementation": "offloaded", "repetition_penalty": 0},
    {"guidance_scale": 3.0, "max_length": 3, "min_new_tokens": 40, "suppress_tokens": list(range(100))},
]


def test_the_directory_has_no_say_in_how_steps_are_written(judge):
    def written():
        prompt = Prompt("Write steps.\n\n", "1.")
        return Judge.load(judge).continue_text(prompt, max_new_tokens=12)

    file = judge / "generation_config.json"
    file.unlink(missing_ok=True)
    expected = written()
    assert expected
    for poison in POISON:
        file.write_text(poison if isinstance(poison, str) else json.dumps(poison))
        assert written() == expected, poison


def test_how_steps_were_written_is_on_record():
    provenance = write_steps(MockJudge(), METRIC).steps_provenance
    assert provenance.generation == "fixed, at most 512 tokens"


def test_the_ways_of_writing_have_names(judge, tmp_path):
    assert Judge.load(judge).generation == "beam search, 4 beams"
    chat = save_judge(tmp_path / "chat", tiny_model("llama", 263, dtype=torch.float32), byte_tokenizer())
    assert Judge.load(chat).generation == "greedy"
    states = save_judge(tmp_path / "states", tiny_model("mamba", 263, dtype=torch.float32), byte_tokenizer(chat=False))
    assert Judge.load(states).generation == "greedy"


def test_steps_are_asked_for_in_a_style_of_their_own(tmp_path, monkeypatch):
    for name, chat in (("model", True), ("plain", False)):
        save_judge(tmp_path / name, tiny_model("llama", 263, dtype=torch.float32), byte_tokenizer(chat=chat))
    models = tmp_path / "models.yaml"
    styles = "style: completion, steps_style: chat"
    models.write_text(f"judges:\n  asked: {{path: model, {styles}}}\n  bare: {{path: plain, {styles}}}\n")
    asked, one_style = (Judge.load("asked", models_file=models, style=style) for style in (None, "completion"))
    assert asked.encoder.style == one_style.encoder.style == "completion"
    assert (asked.generation, one_style.generation) == ("greedy", "beam search, 4 beams")
    read = []
    monkeypatch.setattr(
        "geval_local.engine.transformers_backend.generate_list", lambda model, tokenizer, ids, **_: read.append(ids)
    )
    for judge in (asked, one_style):
        judge.continue_text(render_steps_prompt(METRIC, instruct=judge.is_chat), max_new_tokens=1)
    texts = [asked.backend.loaded.tokenizer.decode(ids) for ids in read]
    assert FRAME["write_steps"] in texts[0]
    assert texts[1].removeprefix("<s>") == render_steps_prompt(METRIC).text
    with pytest.raises(TokenizerError, match=r"'bare'.*chat template"):
        Judge.load("bare", models_file=models)


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
@pytest.mark.parametrize("named", ["org/kernel", "eager"])
def test_the_configuration_has_no_say_in_the_attention(judge, key, named):
    edit(judge / "config.json", **{key: named})
    assert load_model(find_judge(judge)).attention == "sdpa"
    assert load_model(find_judge(judge), JudgeOptions(attention="eager")).attention == "eager"


# --- configurations and vocabularies that contradict the weights ------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 10**7}, r"config\.json does not fit the weights: it says num_hidden_layers: 10000000"),
        ({"num_labels": 10**9}, r"config\.json does not fit the weights: it says num_labels"),
        ({"hidden_size": 10**9}, r"config\.json does not fit the weights: it says hidden_size"),
        ({"vocab_size": 10**8}, r"config\.json does not fit the weights: it says vocab_size"),
        ({"num_attention_heads": 7}, r"config\.json|do not fit its config\.json"),
        ({"num_attention_heads": 0}, r"config\.json"),
        ({"rope_parameters": [1]}, r"config\.json is not the configuration of a model"),
        ({"dtype": "evil"}, r"config\.json is not the configuration of a model"),
        ({"id2label": 5}, r"config\.json is not the configuration of a model"),
        ({"max_position_embeddings": 1}, r"config\.json says max_position_embeddings: 1"),
        ({"quantization_config": {"quant_method": "nobodys"}}, "does not know the quantization 'nobodys'"),
        ({"transformers_weights": "other.safetensors"}, r"config\.json names files that are not read"),
        ({"configuration_files": ["config.4.0.0.json"]}, r"config\.json names files that are not read"),
    ],
    ids=str,
)
def test_what_config_json_gets_wrong_is_said_of_config_json(judge, changes, says):
    shutil.copyfile(judge / "config.json", judge / "config.4.0.0.json")
    shutil.copyfile(judge / "model.safetensors", judge / "other.safetensors")
    edit(judge / "config.json", **changes)
    with pytest.raises(JudgeError, match=says):
        Judge.load(judge)


def test_an_answer_without_names_is_no_obstacle(judge):
    expected = values(Judge.load(judge))
    edit(judge / "config.json", return_dict=False)
    assert values(Judge.load(judge)) == expected


def vocabulary(judge, **pieces):
    file = judge / "tokenizer.json"
    record = json.loads(file.read_text())
    record["model"]["vocab"] |= pieces
    file.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ({"zz": 2**31}, r"no embedding for \('zz' has the id 2147483648; there are 267 rows"),
        ({"zz": 300}, r"no embedding for \('zz' has the id 300; there are 267 rows"),
        ({"zz": 100}, r"two pieces with the id 100: .*'zz'"),
    ],
)
def test_a_vocabulary_that_is_not_the_embedding_s_is_refused(judge, pieces, says):
    vocabulary(judge, **pieces)
    loaded = transformers.AutoTokenizer.from_pretrained(str(judge)).get_vocab()
    if len(set(loaded.values())) == len(loaded) <= 267:
        pytest.skip("this version of transformers keeps one piece for an id when it loads")
    with pytest.raises(TokenizerError, match=says):
        Judge.load(judge)
    with pytest.raises(TokenizerError, match=says):
        load_tokenizer(find_judge(judge))


def test_a_control_token_beyond_the_embedding_is_none_of_a_text_s(tmp_path):
    """As in Gemma 3's text models, which share the tokenizer of those that see."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<image>"})
    model = tiny_model("llama", 263, dtype=torch.float32)
    judge = Judge.load(save_judge(tmp_path / "seeing", model, tokenizer))
    scores = judge.score_many(METRIC, [{"source": "<image>", "output": "<image>"}])
    assert scores[0].error is None
    tokenizer.chat_template = "<image>" + tokenizer.chat_template
    with pytest.raises(TokenizerError, match="no embedding for"):
        Judge.load(save_judge(tmp_path / "writing", model, tokenizer))
    entry = find_judge(tmp_path / "writing").model_copy(update={"style": "completion", "steps_style": "chat"})
    with pytest.raises(TokenizerError, match="no embedding for"):  # of what only requests for steps have
        load_model(entry)
    assert load_model(entry.model_copy(update={"steps_style": "completion"})).entry.style == "completion"


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("tokenizer_config.json", {"eos_token": " "}),
        ("tokenizer_config.json", {"eos_token": "<end>"}),
        ("tokenizer_config.json", {"pad_token": "\n\n"}),
        ("special_tokens_map.json", {"additional_special_tokens": ["\t"]}),
        ("added_tokens.json", {"zz": 9999}),
    ],
    ids=str,
)
def test_a_token_that_a_text_or_the_model_needs_has_a_row_of_the_embedding(judge, file, changes):
    edit(judge / file, **changes)
    tokens = load_module_tokens(judge)
    if all(number < 267 for number in tokens.values()):
        pytest.skip("this version of transformers does not read it from there")
    with pytest.raises(TokenizerError, match="no embedding for") as caught:
        Judge.load(judge)
    assert str(judge / file) in caught.value.message


def load_module_tokens(directory):
    return transformers.AutoTokenizer.from_pretrained(str(directory)).get_vocab()


def test_an_id_that_only_the_post_processor_has_is_refused(judge):
    part = {"a": {"id": "a", "ids": [9999], "tokens": ["a"]}}
    single = [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    processor = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": part}
    edit(judge / "tokenizer.json", post_processor=processor)
    with pytest.raises(TokenizerError, match=r"a token that it adds to each text' has the id 9999"):
        Judge.load(judge)


CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": ""}
EMPTY = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
EMPTY_REGEX = {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}
PANICS = [
    {"model": {"continuing_subword_prefix": "##"}},
    {"model": {"merges": [["t", "nowhere"]]}},
    {"normalizer": CHARSMAP},
    {"normalizer": EMPTY},
    {"normalizer": EMPTY_REGEX},
    {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
]


@pytest.mark.parametrize("changes", PANICS, ids=str)
def test_a_tokenizer_that_panics_is_an_error_of_the_judge(judge, changes):
    record = json.loads((judge / "tokenizer.json").read_text())
    model = record["model"] | changes.get("model", {})
    edit(judge / "tokenizer.json", **changes | {"model": model})
    with pytest.raises(TokenizerError, match=re.escape(str(judge))):
        Judge.load(judge)


@pytest.mark.parametrize("kind", ["GemmaTokenizer", "NoTokenizer", 5])
def test_a_tokenizer_class_that_fails_is_an_error_of_the_judge(judge, kind):
    before = Judge.load(judge)
    edit(judge / "tokenizer_config.json", tokenizer_class=kind)
    if kind == "NoTokenizer":  # transformers takes the file's own tokenizer for a class that it does not know
        after = Judge.load(judge)
        assert (values(after), after.signature(METRIC)) == (values(before), before.signature(METRIC))
        return
    with pytest.raises(TokenizerError, match="tokenizer"):
        values(Judge.load(judge))


def test_a_tokenizer_that_cuts_at_random_is_refused(judge):
    file = judge / "tokenizer.json"
    record = json.loads(file.read_text())
    record["model"]["dropout"] = 0.5
    file.write_text(json.dumps(record))
    with pytest.raises(TokenizerError, match="cuts texts at random"):
        Judge.load(judge)
