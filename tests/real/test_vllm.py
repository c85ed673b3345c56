"""vLLM itself, on a CPU, in an environment of its own (.ci/vllm): SmolLM2 against plain transformers in float64.

One engine and one server serve nearly all tests: a start takes 15 to 25 s of processor time.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings

import numpy as np
import pytest
import torch
from brute_force import brute_force_labels
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from geval_local import Judge, Metric, RunEvents, score_file
from geval_local.errors import Interrupted
from geval_local.options import JudgeOptions
from geval_local.prompt import render_form, render_steps_prompt

pytestmark = pytest.mark.slow
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed: .ci/vllm makes an environment with it", allow_module_level=True)

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

FIELDS = {"source": "Source", "output": "Output"}
BASE = {"criteria": "How well the output sums up the source.", "fields": FIELDS, "steps": ("Rate it.",)}
METRICS = {
    "five": Metric(name="five", scale="1-5", **BASE),
    "digits": Metric(name="digits", scale="0-100", **BASE),
    "yes": Metric(name="yes", scale={"Yes": 1, "No": 0}, **BASE),
    "words": Metric(name="words", scale={"poor": 1, "fair": 2, "good": 3}, **BASE),
}
FIVE = METRICS["five"]
#: Style and metric.
CASES = [*(("chat", name) for name in METRICS), ("completion", "five")]
SOURCES = ["The library reopened on Monday after eight months of repairs. ", "A storm closed the harbour. "]
ROWS = [{"source": SOURCES[number // 2], "output": f"It is open again, {number}."} for number in range(3)]
TOLERANCE = 1e-4
ENGINE = {"engine": "vllm", "dtype": "float32", "vllm": ["enforce_eager=true"]}
OPTIONS = ["--engine", "vllm", "--dtype", "float32", "--vllm", "enforce_eager=true"]


class Plain:
    """A model of transformers; the text in front of the labels goes through it once."""

    def __init__(self, model):
        self.model, self.prompt, self.passed = model, None, None

    def __call__(self, ids, use_cache):
        ids = ids[0].tolist()
        if self.prompt is None or ids[: len(self.prompt)] != self.prompt:
            self.prompt, self.passed = ids, self.model(torch.tensor([ids]), use_cache=True)
        if ids == self.prompt:
            return self.passed
        cache = copy.deepcopy(self.passed.past_key_values)
        return self.model(torch.tensor([ids[len(self.prompt) :]]), past_key_values=cache)


def form_text(tokenizer, style, metric, row):
    """The text in front of a label, by the tokenizer's own template."""
    prompt = render_form(metric, row)
    if style == "completion":
        return prompt.text
    message = [{"role": "user", "content": f"{prompt.body.rstrip()}\n\n{prompt.request}"}]
    return tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True) + prompt.cue


@pytest.fixture(scope="module")
def expected(smollm2, address):
    """P(label | form) by transformers in float64, each label string by itself: arrays of shape (rows, labels)."""
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    found = {}
    with torch.inference_mode():
        for style, name in CASES:
            labels = METRICS[name].scale.labels
            written = [{one, one.lower(), one.capitalize(), one.upper()} for one in labels]
            spellings = [[lead + one for one in each for lead in ("", " ")] for each in written]
            texts = [form_text(tokenizer, style, METRICS[name], row) for row in ROWS]
            found[style, name] = np.array(
                [brute_force_labels(Plain(model), tokenizer, text, spellings) for text in texts]
            )
    return found


def compare(scores, expected, metric):
    """Every label's probability, the mass and the score; on 0-100 a probability weighs 25 times as much as on 1-5."""
    values = metric.scale.array
    for score, joint in zip(scores, expected, strict=True):
        assert score.error is None
        mass, shares = joint.sum(), joint / joint.sum()
        assert np.abs(np.array(list(score.probabilities.values())) - shares).max() < TOLERANCE
        assert score.label_mass == pytest.approx(mass, abs=TOLERANCE)
        assert score.value == pytest.approx(float(values @ shares), abs=TOLERANCE * max(1, np.ptp(values) / 4))


@pytest.fixture(scope="module")
def judge(smollm2, expected):
    judge = Judge.load(smollm2, style="chat", batch_tokens=1, think=1, **ENGINE).thinking_as(JudgeOptions())
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def served(address):
    for _ in range(1200):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address.removesuffix("/v1") + "/health", timeout=300).close()
            break
        time.sleep(0.25)
    return Judge.load(address, style="chat", batch_tokens=1)


@pytest.fixture(scope="module")
def address(smollm2, tmp_path_factory):
    """vLLM's own server: its start is waited for by those who ask it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(smollm2), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-logprobs", "128"]
    command += ["--hf-overrides", json.dumps({"head_dtype": "float32"}), "--served-model-name", "smollm2"]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told)
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            print(log.read_text(errors="replace")[-2000:])
            process.terminate()
            process.wait(300)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


@pytest.mark.parametrize("name", METRICS)
def test_in_this_process(judge, expected, name):
    compare(judge.score_many(METRICS[name], ROWS), expected["chat", name], METRICS[name])


@pytest.mark.parametrize("name", METRICS)
def test_by_a_server(served, expected, name):
    compare(served.score_many(METRICS[name], ROWS), expected["chat", name], METRICS[name])


def test_completion_by_a_server(address, served, expected):
    compare(Judge.load(address, style="completion").score_many(FIVE, ROWS), expected["completion", "five"], FIVE)


def test_steps_and_reasons_are_those_of_plain_passes(judge, served, smollm2):
    plain = Judge.load(smollm2, dtype="float32", style="chat")
    prompt = render_steps_prompt(FIVE, instruct=True)
    steps = plain.continue_text(prompt, max_new_tokens=30)
    assert len(steps.split()) > 5
    assert [one.continue_text(prompt, max_new_tokens=30) for one in (judge, served)] == [steps] * 2

    reasons = [one.text for one in plain.backend.write_paragraphs(reason_prompts(plain), **SHORT)]
    assert all(reasons)
    for one in (judge, served):
        assert [found.text for found in one.backend.write_paragraphs(reason_prompts(one), **SHORT)] == reasons


SHORT = {"max_new_tokens": 20, "on_token": lambda count: None}


def reason_prompts(judge):
    return judge.encoder.encode([render_form(FIVE, row) for row in ROWS[:2]])


THINK = {"think": 2, "think_tokens": 12, "style": "chat", "dtype": "float32"}


def test_thoughts_are_those_of_plain_passes(judge, served, smollm2):
    """At a temperature near 0 every program draws the likeliest text; the labels after it are read exactly."""
    plain = Judge.load(smollm2, **THINK, think_temperature=1e-3)
    expected = plain.score_many(FIVE, ROWS[:2])
    for one in (judge, served):
        scores = one.thinking_as(JudgeOptions(**THINK, think_temperature=1e-3)).score_many(FIVE, ROWS[:2])
        assert [score.thoughts.texts for score in scores] == [score.thoughts.texts for score in expected]
        for score, right in zip(scores, expected, strict=True):
            assert score.value == pytest.approx(right.value, abs=TOLERANCE)
            assert score.label_mass == pytest.approx(right.label_mass, abs=TOLERANCE)


@pytest.mark.parametrize("which", ["judge", "served"])
def test_thoughts_follow_their_seeds(which, request):
    judge = request.getfixturevalue(which).thinking_as(JudgeOptions(**THINK, think_seed=3))
    together = [score.thoughts.texts for score in judge.score_many(FIVE, ROWS)]
    assert len({text for texts in together for text in texts}) == 2 * len(ROWS)
    assert judge.score_many(FIVE, ROWS[2:])[0].thoughts.texts == together[2]


@pytest.mark.nightly
def test_thoughts_about_more_text_than_one_pass_takes(judge):
    """vLLM begins texts with seeds when their prompts are whole: on a CPU it fails otherwise."""
    own = judge.thinking_as(JudgeOptions(**THINK | {"think": 1, "think_tokens": 2}, think_temperature=1.0))
    rows = [{"source": f"Number {number}. " + SOURCES[0] * 60, "output": "It is open."} for number in range(12)]
    assert all(score.error is None for score in own.score_many(FIVE, rows))


def test_what_vllm_computed_is_counted(judge, file, tmp_path):
    before = judge.engine.computed_tokens
    found = score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
    assert 0 < found.totals["planned_tokens"] == judge.engine.computed_tokens - before
    assert judge.signature(FIVE).further.get("attention", str(judge.signature(FIVE))).find("auto") < 0


class Stopping(RunEvents):
    """Stops a run after its first row."""

    done = 0

    def on_progress(self, done):
        self.done = done

    def should_stop(self):
        return self.done > 0


@pytest.mark.parametrize("which", ["judge", "served"])
def test_a_stopped_run_goes_on_to_the_same_figures(which, request, file, tmp_path):
    judge = request.getfixturevalue(which)
    with pytest.raises(Interrupted):
        score_file(file, FIVE, judge, tmp_path / "run", use_cache=False, events=Stopping())
    went_on = score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
    assert 0 < went_on.there < len(ROWS)
    whole = judge.score_many(FIVE, ROWS)
    assert went_on.summaries[0].mean == pytest.approx(np.mean([one.value for one in whole]), abs=TOLERANCE)


@pytest.mark.parametrize("processes", ["0", pytest.param("1", marks=pytest.mark.nightly)])
def test_a_killed_command_ends_all_of_it(smollm2, tmp_path, processes):
    """Ctrl-C goes to every process of a terminal; "1": vLLM's workers are processes, as for several GPUs."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(ROWS[0] | {"output": f"Number {number}."}) + "\n" for number in range(400)))
    metric = tmp_path / "five.yaml"
    metric.write_text(json.dumps({"name": "five", "scale": "1-5", **BASE, "steps": list(BASE["steps"])}))
    command = [sys.executable, "-m", "geval_local", "score", rows, "-m", metric, "-j", smollm2, "--style", "completion"]
    command += [*OPTIONS, "--batch-tokens", "1", "--no-cache", "-o", tmp_path / "run"]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": processes}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([*map(str, command)], start_new_session=True, **pipes) as process:
        told = ""
        for line in process.stderr:
            told += line
            if re.search(r"scoring .*: [1-9]\d* of 400 rows", line):
                break
        os.killpg(process.pid, signal.SIGINT)
        results, more = process.communicate(timeout=300)
        assert process.returncode == 3, told + more
    assert "geval-local resume" in more
    assert results == ""
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def program_of(smollm2):
    """A program that loads a judge, without a guard of its statements."""
    options = ENGINE | {"style": "completion"}
    return f"""
from geval_local import Judge, Metric
judge = Judge.load({str(smollm2)!r}, **{options!r})
print(judge.score(Metric.model_validate_json({FIVE.model_dump_json()!r}), **{ROWS[0]!r}).value)
judge.close()
"""


@pytest.mark.nightly
def test_a_program_needs_no_guard(smollm2, tmp_path, expected):
    """vLLM's processes do not import it again."""
    file = tmp_path / "program.py"
    file.write_text(program_of(smollm2))
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    told = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    joint = expected["completion", "five"][0]
    assert float(told.stdout) == pytest.approx(float(FIVE.scale.array @ joint / joint.sum()), abs=TOLERANCE)


@pytest.mark.nightly
def test_workers_load_it(smollm2, file, tmp_path, expected):
    (tmp_path / "five.yaml").write_text(FIVE.model_dump_json(exclude_defaults=True))
    command = ["score", file, "-m", tmp_path / "five.yaml", "-j", smollm2, "--style", "completion", *OPTIONS]
    command += ["--workers", "2", "--window", "2", "-o", tmp_path / "scored.jsonl"]
    told = subprocess.run([sys.executable, "-m", "geval_local", *map(str, command)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    rows = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text("utf-8").splitlines()]
    joint = expected["completion", "five"]
    values = joint @ FIVE.scale.array / joint.sum(axis=1)
    assert [row["geval"]["five"]["score"] for row in rows] == pytest.approx(values.tolist(), abs=TOLERANCE)


def plain_scores(model, tokenizer, style="completion"):
    """Scores of `FIVE` by a model of transformers, each label string by itself."""
    spellings = [[lead + one for lead in ("", " ")] for one in FIVE.scale.labels]
    texts = [form_text(tokenizer, style, FIVE, row) for row in ROWS]
    with torch.inference_mode():
        joint = np.array([brute_force_labels(Plain(model), tokenizer, text, spellings) for text in texts])
    return (joint @ FIVE.scale.array / joint.sum(axis=1)).tolist()


def loaded_scores(directory, **options):
    judge = Judge.load(directory, style="completion", **ENGINE, **options)
    try:
        return [score.value for score in judge.score_many(FIVE, ROWS)]
    finally:
        judge.close()


@pytest.mark.nightly
def test_an_adapter_is_computed_beside_the_model(smollm2, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float64).eval()
    before = plain_scores(model, AutoTokenizer.from_pretrained(smollm2))
    random, stored = torch.Generator().manual_seed(0), {}
    for place, layer in enumerate(model.model.layers):
        weight = layer.self_attn.q_proj.weight
        a, b = (torch.randn(size, generator=random) * 0.03 for size in ((8, weight.shape[1]), (weight.shape[0], 8)))
        name = f"base_model.model.model.layers.{place}.self_attn.q_proj"
        stored |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
        weight.data += 2 * (b.double() @ a.double())
    save_file(stored, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))

    merged = plain_scores(model, AutoTokenizer.from_pretrained(smollm2))
    assert max(abs(one - other) for one, other in zip(before, merged, strict=True)) > 100 * TOLERANCE
    assert loaded_scores(smollm2, adapter=tmp_path) == pytest.approx(merged, abs=TOLERANCE)


@pytest.mark.nightly
def test_two_processes_share_a_model(smollm2, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokenizer.save_pretrained(tmp_path)
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, initializer_range=0.1, **shape)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    assert loaded_scores(tmp_path, tensor_parallel=2) == pytest.approx(
        plain_scores(model.double(), tokenizer), abs=TOLERANCE
    )


def memory():
    """Memory of this process in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


@pytest.mark.nightly
def test_a_second_judge_after_the_first(smollm2, judge, expected):
    """A closed judge gives its memory back: 1 GB for keys and values, and the weights."""
    loaded = memory()
    judge.close()
    assert memory() < loaded - 1024
    other = Judge.load(smollm2, style="completion", **ENGINE)
    try:
        compare(other.score_many(FIVE, ROWS), expected["completion", "five"], FIVE)
        assert memory() < loaded + 300
    finally:
        other.close()
    assert sum(tensor.untyped_storage().nbytes() for tensor in living_tensors()) < 100e6


def living_tensors():
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are asked for here
        found = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    return {one.untyped_storage().data_ptr(): one for one in found}.values()
