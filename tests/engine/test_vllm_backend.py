"""The vLLM backend against a module that looks like vLLM and computes a tiny model; the real one is in tests/real."""

from __future__ import annotations

import sys

import pytest
from programs import Program, fake_vllm
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local import Judge, Metric
from geval_local.engine.vllm_backend import VllmBackend
from geval_local.errors import ConfigurationError, JudgeError
from geval_local.io.samples import Sample
from geval_local.models.generate import end_tokens
from geval_local.options import JudgeOptions

FIELDS = {"source": "Source", "output": "Output"}
BASE = {"criteria": "How well it ends.", "fields": FIELDS, "steps": ("Read.",)}
METRICS = [
    Metric(name="five", scale="1-5", **BASE),
    Metric(name="digits", scale="0-100", **BASE),
    Metric(name="yes", scale={"Yes": 1, "No": 0}, **BASE),
    Metric(name="words", scale={"poor": 1, "fair": 2, "good": 3}, **BASE),
]
ROWS = [{"source": f"Tale {number // 2}.", "output": f"Ending {number}."} for number in range(4)]


@pytest.fixture
def made():
    return []


@pytest.fixture
def program():
    return Program(tiny_model("llama", len(byte_tokenizer())))


@pytest.fixture
def directory(tmp_path, program):
    return save_judge(tmp_path / "judge", program.model, byte_tokenizer())


@pytest.fixture
def vllm(monkeypatch, program, made):
    module = fake_vllm(program, made)
    for name, one in {"vllm": module, "vllm.distributed": module.distributed}.items():
        monkeypatch.setitem(sys.modules, name, one)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("geval_local.engine.vllm_backend._distribution", lambda: "numpy")
    return module


def load(directory, **options):
    return Judge.load(directory, engine="vllm", style="completion", **options)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("metric", METRICS, ids=lambda one: one.name)
def test_scores_are_those_of_plain_passes(directory, metric):
    expected = Judge.load(directory, dtype="float64", engine="padded", style="completion").score_many(metric, ROWS)
    found = load(directory).score_many(metric, ROWS)

    for one, other in zip(found, expected, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-6)
        assert one.label_mass == pytest.approx(other.label_mass, rel=1e-6)
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)
        assert [text for text, _ in one.other_tokens[:3]] == [text for text, _ in other.other_tokens[:3]]


@pytest.mark.usefixtures("vllm")
def test_facts_say_what_computes_and_what_it_does_not_keep(directory, made):
    judge = load(directory, dtype="float32", tensor_parallel=2, vllm=["max_num_seqs=8", "kv_cache_dtype=fp8"])
    signature = judge.signature(METRICS[0])

    assert isinstance(judge.backend, VllmBackend)
    assert judge.backend.facts.is_reproducible is False
    assert signature.further["backend"].startswith("vllm ")
    assert signature.further["head"] == "float32"
    assert signature.further["tensor_parallel"] == "2"
    assert signature.further["batch_invariant"] == "no"
    assert signature.further["vllm"] == '{"kv_cache_dtype":"fp8","max_num_seqs":8}'
    assert made[0]["hf_overrides"] == {"head_dtype": "float32"}
    assert (made[0]["max_num_seqs"], made[0]["tensor_parallel_size"]) == (8, 2)
    assert judge.fingerprint == Judge.load(directory, style="completion").fingerprint
    assert judge.identity != Judge.load(directory, style="completion").identity


@pytest.mark.usefixtures("vllm")
def test_a_closed_judge_says_so(directory, made):
    judge = load(directory)
    judge.close()

    assert made[-1] == {"closed": True}
    with pytest.raises(JudgeError, match="is closed"):
        judge.score(METRICS[0], **ROWS[0])


@pytest.mark.usefixtures("vllm")
def test_steps_are_written_as_a_greedy_judge_writes_them(directory):
    metric = METRICS[0].model_copy(update={"steps": None})
    from geval_local.prompt import render_steps_prompt

    prompt = render_steps_prompt(metric, instruct=True)
    expected = Judge.load(directory, dtype="float64", style="chat").continue_text(prompt, max_new_tokens=40)
    told = []
    judge = Judge.load(directory, engine="vllm", style="chat")
    assert judge.continue_text(prompt, max_new_tokens=40, on_token=told.append) == expected
    assert judge.generation == "greedy, by vLLM"
    assert told


REFUSED = {
    "device": {"device": "cpu"},
    "device_map": {"device_map": "auto"},
    "quantization": {"quantization": "4bit"},
    "attention": {"attention": "eager"},
    "float64": {"dtype": "float64"},
}


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("what", REFUSED)
def test_what_vllm_cannot_do_is_refused_before_anything_loads(directory, made, what):
    with pytest.raises(ConfigurationError) as caught:
        load(directory, **REFUSED[what])
    assert what in str(caught.value)
    assert caught.value.hint
    assert made == []


@pytest.mark.usefixtures("vllm")
def test_a_gguf_file_is_refused(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(JudgeError, match="GGUF"):
        load(file)


def test_without_the_package_the_error_names_the_command(directory):
    with pytest.raises(ConfigurationError) as caught:
        load(directory)
    assert "pip install vllm" in caught.value.hint


def test_options_of_vllm_need_vllm():
    with pytest.raises(ConfigurationError, match="`tensor_parallel` is for vLLM"):
        JudgeOptions(name="nano", tensor_parallel=2)


def test_a_program_without_a_guard_gets_a_sentence(directory, vllm, monkeypatch):
    def started_again(**_):
        raise RuntimeError("An attempt has been made to start a new process before its bootstrapping phase finished")

    monkeypatch.setattr(vllm, "LLM", started_again)
    with pytest.raises(ConfigurationError) as caught:
        load(directory)
    assert "__main__" in caught.value.hint


def test_what_vllm_says_of_a_model_is_told_in_one_line(directory, vllm, monkeypatch):
    def fails(**_):
        raise RuntimeError("Engine core initialization failed") from ValueError("no room for the cache\nof blocks")

    monkeypatch.setattr(vllm, "LLM", fails)
    with pytest.raises(JudgeError, match=r"cannot be loaded by vLLM: no room for the cache\n"):
        load(directory)


def test_files_that_change_while_vllm_loads_are_refused(directory, vllm, monkeypatch):
    made = vllm.LLM

    def slow(**arguments):
        config = directory / "config.json"
        config.write_text(config.read_text() + "\n")
        return made(**arguments)

    monkeypatch.setattr(vllm, "LLM", slow)
    with pytest.raises(JudgeError, match="changed while the judge was being loaded"):
        load(directory)


def test_a_core_that_dies_ends_the_call_with_a_way_on(directory, vllm, monkeypatch):
    judge = load(directory)

    def dead(self, *_, **__):
        raise RuntimeError("EngineCore encountered an issue")

    monkeypatch.setattr(vllm.LLM, "generate", dead)
    with pytest.raises(JudgeError) as caught:
        judge.score(METRICS[0], **ROWS[0])
    assert "run the same command again" in caught.value.hint


@pytest.mark.usefixtures("vllm")
def test_thoughts_are_drawn_with_a_seed_each(directory, program):
    judge = load(directory, think=2, think_tokens=5, think_temperature=0.7, think_top_p=0.9)
    scores = judge.score_many(METRICS[0], ROWS[:2])

    assert {(temperature, top_p) for temperature, top_p, _ in program.drawn} == {(0.7, 0.9)}
    assert len({seed for *_, seed in program.drawn}) == len(program.drawn) == 4
    assert all(len(one.thoughts.texts) == 2 and one.thoughts.error == 0 for one in scores)  # all are the likeliest text
    (entry,) = judge.prepare(METRICS[0], [Sample(ROWS[0])])
    ends = end_tokens(byte_tokenizer())
    written = program.greedy(entry.request.ids.tolist(), 5, sorted(ends))
    assert scores[0].thoughts.texts[0] == byte_tokenizer().decode([token for token in written if token not in ends])
