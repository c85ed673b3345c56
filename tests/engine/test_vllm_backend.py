"""The vLLM backend against a module that looks like vLLM and computes a tiny model; the real one is in tests/real."""

from __future__ import annotations

import json
import sys
from multiprocessing.spawn import get_preparation_data

import pytest
from cli_run import run, write_rows
from programs import VLLMClientError, install_vllm
from served_kit import BASE, METRICS
from served_kit import ROWS as SIX_ROWS
from tiny import byte_tokenizer

from geval_local import Interrupted, Judge, RunEvents, score_file
from geval_local.engine.vllm_backend import VllmBackend
from geval_local.errors import ConfigurationError, JudgeError
from geval_local.io.samples import Sample
from geval_local.models.generate import end_tokens
from geval_local.options import JudgeOptions

ROWS = SIX_ROWS[:4]


@pytest.fixture
def made():
    return []


@pytest.fixture
def vllm(monkeypatch, program, made):
    return install_vllm(monkeypatch, program, made)


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
    assert signature.attention == "FAKE_ATTN"
    assert "backend:vllm" in judge.identity  # the key of what a cache holds
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
@pytest.mark.parametrize("given", ["logprobs_mode=raw_logits", "logprobs-mode=processed_logprobs", "load_format=dummy"])
def test_arguments_that_change_what_a_figure_means_are_refused(directory, made, given):
    with pytest.raises(ConfigurationError, match="would change what the judge is, or what its figures mean"):
        load(directory, vllm=[given])
    assert made == []


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("shift", [25.0, -3.0])
def test_figures_that_are_no_log_probabilities_are_refused_when_vllm_has_loaded(directory, program, monkeypatch, shift):
    plain = program.logprobs
    monkeypatch.setattr(program, "logprobs", lambda ids: plain(ids) + shift)
    with pytest.raises(JudgeError, match="log-probabilities"):
        load(directory)


LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}


@pytest.fixture
def adapter(tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    return tmp_path / "adapter"


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    "more",
    [
        {"use_dora": True},
        {"modules_to_save": ["embed_tokens"]},
        {"trainable_token_indices": [1]},
        {"alora_invocation_tokens": [1]},
        {"init_lora_weights": "pissa"},
        {"bias": "all"},
        {"peft_type": "LOHA"},
    ],
    ids=lambda one: next(iter(one)),
)
def test_an_adapter_that_vllm_does_not_take_is_refused_before_anything_loads(directory, adapter, made, more):
    (adapter / "adapter_config.json").write_text(json.dumps(LORA | more))
    with pytest.raises(ConfigurationError, match="|".join([*more, "of the kind"])) as caught:
        load(directory, adapter=adapter)
    assert "adapter" in str(caught.value)
    assert made == []


@pytest.mark.usefixtures("vllm")
def test_the_largest_rank_of_an_adapter_counts(directory, adapter, made, monkeypatch):
    (adapter / "adapter_config.json").write_text(json.dumps(LORA | {"rank_pattern": {"k_proj": 12}}))
    monkeypatch.setattr(VllmBackend, "lora_request", lambda self: None)
    load(directory, adapter=adapter)
    assert made[0]["max_lora_rank"] == 16


LONG = ROWS[1] | {"source": "A long tale. " * 500}


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("think", [{}, {"think": 2, "think_tokens": 5}])
def test_a_shortened_prompt_leaves_the_token_that_vllm_computes(directory, think):
    judge = load(directory, vllm=["max_model_len=512"], **think)
    shorten = METRICS[1].model_copy(update={"shorten": "source"})  # its labels are two tokens deep
    found = judge.score_many(shorten, [ROWS[0], LONG])
    assert [one.is_scored for one in found] == [True, True], found
    assert found[1].dropped_tokens > 0


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("think", [{}, {"think": 2, "think_tokens": 5}])
def test_a_prompt_that_vllm_refuses_costs_its_row_alone(directory, file, tmp_path, program, monkeypatch, think):
    judge = load(directory, **think)
    plain = judge.backend.llm.enqueue

    def refusing(prompt, *given, **named):
        if "Ending 3." in byte_tokenizer().decode(prompt["prompt_token_ids"]):
            raise VLLMClientError("The decoder prompt is longer than the maximum model length")
        return plain(prompt, *given, **named)

    monkeypatch.setattr(judge.backend.llm, "enqueue", refusing)
    found = score_file(file, METRICS[0], judge, tmp_path / "run", use_cache=False)
    assert found.summaries[0].scored == len(ROWS) - 1
    told = (tmp_path / "run" / "scores.jsonl").read_text()
    assert "vLLM refuses the prompt: The decoder prompt is longer" in told
    assert [one.is_scored for one in judge.score_many(METRICS[0], ROWS)] == [True, True, True, False]


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


def test_a_program_needs_no_guard_of_its_statements(directory, vllm, monkeypatch):
    """A process that is spawned while vLLM loads does not import the program again, which would load the judge too."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None, raising=False)
    monkeypatch.setattr(main, "__file__", str(directory / "program.py"), raising=False)
    told = []
    made = vllm.LLM

    def spawning(**arguments):
        told.append(get_preparation_data("worker"))
        return made(**arguments)

    monkeypatch.setattr(vllm, "LLM", spawning)
    before = get_preparation_data("worker")
    load(directory)
    assert "init_main_from_path" in before
    assert not {"init_main_from_name", "init_main_from_path"} & set(told[0])
    assert get_preparation_data("worker") == before


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

    monkeypatch.setattr(vllm.LLM, "step", dead)
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


@pytest.mark.usefixtures("vllm")
def test_thoughts_are_drawn_as_the_models_own_file_says_and_stop_at_their_mark(directory, program):
    (directory / "generation_config.json").write_text(json.dumps({"top_k": 20, "min_p": 0.1, "temperature": 0.6}))
    judge = load(directory, think=1, think_tokens=5)
    judge.score(METRICS[0], **ROWS[0])
    (drawn,) = [one for one in program.queued if one.seed is not None]
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.min_p) == (0.6, 1.0, 20, 0.1)
    assert drawn.stop == ["\n\n"]
    assert drawn.include_stop_str_in_output
    assert "t=0.6,p=1,top_k=20,min_p=0.1," in str(judge.signature(METRICS[0]))


@pytest.fixture
def file(tmp_path):
    return write_rows(tmp_path / "rows.jsonl", ROWS)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("cached", [0, 30])
def test_a_run_says_what_vllm_computed(directory, file, tmp_path, program, cached):
    judge = load(directory)
    program.cached = cached
    for metric in METRICS[:2]:
        before = judge.engine.computed_tokens
        found = score_file(file, metric, judge, tmp_path / metric.name, use_cache=False)
        assert found.totals["planned_tokens"] == judge.engine.computed_tokens - before > 0
    # A second digit is a prompt of its own.
    assert found.totals["planned_tokens"] > found.totals["prompt_tokens"]


class Stopping(RunEvents):
    """Stops after some rows."""

    done, most = 0, 1

    def on_progress(self, done):
        self.done = done

    def should_stop(self):
        return self.done >= self.most


@pytest.mark.usefixtures("vllm")
def test_a_resumed_run_counts_every_unit_once(directory, file, tmp_path):
    judge = load(directory, batch_tokens=1)
    whole = score_file(file, METRICS[0], judge, tmp_path / "whole", use_cache=False)
    with pytest.raises(Interrupted):
        score_file(file, METRICS[0], judge, tmp_path / "run", use_cache=False, events=Stopping())
    found = score_file(file, METRICS[0], judge, tmp_path / "run", use_cache=False)
    assert 0 < found.there < len(ROWS)
    assert found.totals == whole.totals


def test_a_core_that_ctrl_c_ends_too_is_an_interruption(directory, file, tmp_path, vllm, monkeypatch):
    """Ctrl-C goes to all processes of a terminal: vLLM's workers end before this one has stopped."""
    judge, events = load(directory, batch_tokens=1), Stopping()
    whole = vllm.LLM.step

    def ended(self, *given, **named):
        if events.done:
            events.most = 1
            raise RuntimeError("EngineCore encountered an issue")
        return whole(self, *given, **named)

    events.most = 2
    monkeypatch.setattr(vllm.LLM, "step", ended)
    with pytest.raises(Interrupted):
        score_file(file, METRICS[0], judge, tmp_path / "run", use_cache=False, events=events)


@pytest.mark.usefixtures("vllm")
def test_a_resumed_run_promises_what_vllm_keeps(directory, file, tmp_path, program):
    metric = tmp_path / "five.yaml"
    metric.write_text(json.dumps({"name": "five", "scale": "1-5", **BASE, "steps": ["Read."]}))
    asked = ["score", file, "-m", metric, "-j", directory, "--style", "completion", "--engine", "vllm"]
    asked += ["--no-cache", "--batch-tokens", "1", "-o", f"{tmp_path / 'run'}/"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "figures", limited(program.figures, 0))
        none = run(*asked, home=tmp_path / "home")
    assert "error: vLLM stopped computing" in none.stderr  # and not that the empty run was deleted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "figures", limited(program.figures, 42))  # most for the checks of the start
        first = run(*asked, home=tmp_path / "home")
    assert first.exit_code == 2
    assert "geval-local resume" in first.stderr
    assert "to rounding" not in first.stderr
    second = run("resume", tmp_path / "run", home=tmp_path / "home")
    assert second.exit_code == 0, second.stderr
    assert "engine: vllm; figures equal those of an uninterrupted run to rounding, not to the byte" in second.stderr


def limited(function, most):
    """A function that fails after some calls."""
    calls = []

    def called(*given):
        calls.append(given)
        if len(calls) > most:
            raise RuntimeError("EngineCore encountered an issue")
        return function(*given)

    return called


@pytest.mark.usefixtures("vllm")
def test_a_judge_may_be_closed_twice_and_another_loaded(directory, made):
    for _ in range(2):
        judge = load(directory)
        assert judge.score(METRICS[0], **ROWS[0]).is_scored
        judge.close()
        judge.close()
    assert [one for one in made if "closed" in one] == [{"closed": True}] * 2
