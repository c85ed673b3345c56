"""vLLM itself, on a CPU, in an environment of its own (.ci/vllm): SmolLM2 against plain transformers in float64."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

from geval_local import Judge, Metric, score_file
from geval_local.errors import GevalError
from geval_local.prompt import render_steps_prompt

pytestmark = pytest.mark.slow
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed: .ci/vllm makes an environment with it", allow_module_level=True)

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

FIELDS = {"source": "Source", "output": "Output"}
BASE = {"criteria": "How well the output sums up the source.", "fields": FIELDS, "steps": ("Read both.", "Rate it.")}
METRICS = [
    Metric(name="five", scale="1-5", **BASE),
    Metric(name="digits", scale="0-100", **BASE),
    Metric(name="yes", scale={"Yes": 1, "No": 0}, **BASE),
    Metric(name="words", scale={"poor": 1, "fair": 2, "good": 3}, **BASE),
]
SOURCES = ["The library reopened on Monday after eight months of repairs. ", "A storm closed the harbour. "]
ROWS = [{"source": SOURCES[number // 2], "output": f"It is open again, {number}."} for number in range(4)]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def expected(smollm2):
    """Scores by transformers in float64, which the exactness tests hold against one plain pass for each label."""
    found = {}
    for style, metrics in (("chat", METRICS), ("completion", METRICS[:1])):
        judge = Judge.load(smollm2, dtype="float64", style=style)
        found |= {(style, metric.name): judge.score_many(metric, ROWS) for metric in metrics}
    return found


@pytest.fixture(scope="module")
def judge(smollm2):
    judge = Judge.load(smollm2, engine="vllm", dtype="float32", style="chat")
    yield judge
    judge.close()


def compare(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.error is None
        # On a scale of 0-100 a probability weighs 25 times as much as on 1-5.
        assert one.value == pytest.approx(other.value, abs=TOLERANCE * (25 if len(one.probabilities) > 5 else 1))
        assert one.label_mass == pytest.approx(other.label_mass, abs=TOLERANCE)
        differences = np.array(list(one.probabilities.values())) - np.array(list(other.probabilities.values()))
        assert np.abs(differences).max() < TOLERANCE


@pytest.mark.parametrize("metric", METRICS, ids=lambda one: one.name)
def test_in_this_process(judge, expected, metric):
    compare(judge.score_many(metric, ROWS), expected["chat", metric.name])


def test_completion_steps_and_a_second_judge(judge, smollm2, expected):
    steps = judge.continue_text(render_steps_prompt(METRICS[0], instruct=True), max_new_tokens=60)
    plain = Judge.load(smollm2, dtype="float32", style="chat")
    assert steps == plain.continue_text(render_steps_prompt(METRICS[0], instruct=True), max_new_tokens=60)
    judge.close()
    other = Judge.load(smollm2, engine="vllm", dtype="float32", style="completion")
    try:
        compare(other.score_many(METRICS[0], ROWS), expected["completion", "five"])
        assert other.engine.computed_tokens > 0
    finally:
        other.close()


@contextlib.contextmanager
def serving(model, port, log):
    """Run vLLM's own server on a port of this machine."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-logprobs", "128"]
    command += ["--hf-overrides", json.dumps({"head_dtype": "float32"}), "--served-model-name", "smollm2"]
    with log.open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told)
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                assert process.poll() is None, log.read_text()[-2000:]
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(60)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_server_that_runs_and_one_that_stops(smollm2, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("geval_local.engine.served_backend.PAUSES", (0.2,))
    file, port = tmp_path / "rows.jsonl", free_port()
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with serving(smollm2, port, tmp_path / "log") as address:
        served = Judge.load(address, style="chat")
        for metric in METRICS:
            compare(served.score_many(metric, ROWS), expected["chat", metric.name])
        score_file(file, METRICS[0], served, tmp_path / "whole.jsonl", use_cache=False)
    with pytest.raises(GevalError, match="does not answer"):
        score_file(file, METRICS[0], served, tmp_path / "run", use_cache=False)
    with serving(smollm2, port, tmp_path / "log"):
        again = score_file(file, METRICS[0], served, tmp_path / "run", use_cache=False)
    assert again.summaries[0].scored == len(ROWS)
