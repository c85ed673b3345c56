"""GPTScore: the likelihoods are the model's own, token by token, and the output's alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from cli_run import judge_directory
from rated_runs import prepare
from tiny import byte_tokenizer, tiny_model

from benchmarks.baselines.gptscore import gptscore_figures, render_request
from benchmarks.baselines.likelihood import Continuation, mean_logprobs
from geval_local import Judge, Metric
from geval_local.errors import ConfigurationError
from geval_local.io.samples import Sample
from geval_local.models.head import Head


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "granite"])
def test_the_mean_is_that_of_the_full_softmax(kind):
    model = tiny_model(kind, 50)
    rng = np.random.default_rng(0)
    texts = [
        Continuation(rng.integers(0, 50, size).astype(np.int32), start)
        for size, start in ((30, 1), (2, 1), (30, 29), (17, 9), (40, 20))
    ]
    expected = []
    for one in texts:
        with torch.no_grad():
            logits = model(torch.tensor(one.ids[None].astype(np.int64))).logits[0].double()
        logs = logits.log_softmax(-1)
        expected.append(np.mean([float(logs[i - 1, one.ids[i]]) for i in range(one.start, len(one.ids))]))
    done: list[int] = []
    for budget in (1, 64, 10_000):
        found = mean_logprobs(model, Head(model), texts, batch_tokens=budget, advance=done.append)
        assert found == pytest.approx(expected, abs=1e-10)
    assert sum(done) == 3 * len(texts)


def test_only_the_output_counts_and_it_is_read_behind_the_request(tmp_path):
    judge = Judge.load(judge_directory())
    prepare(tmp_path)
    metric = Metric.load(tmp_path / "clarity.yaml")
    fields = {"source": "A tale.", "output": "It ends."}
    (found,) = gptscore_figures(judge, metric, [Sample(fields)])
    request = render_request(metric, fields)
    assert "A tale." in request
    assert "It ends." not in request
    tokenizer = byte_tokenizer(chat=False)
    context, whole = (tokenizer(text).input_ids for text in (request, f"{request}It ends."))
    assert len(whole) - len(context) == len("It ends.")
    with torch.no_grad():
        logs = judge.backend.loaded.model(torch.tensor([whole])).logits[0].log_softmax(-1)
    own = [float(logs[i - 1, whole[i]]) for i in range(len(context), len(whole))]
    assert found["score"] == pytest.approx(np.mean(own), abs=1e-5)


def test_what_cannot_be_scored_keeps_its_place(tmp_path):
    judge = Judge.load(judge_directory())
    prepare(tmp_path)
    metric = Metric.load(tmp_path / "clarity.yaml")
    samples = [
        Sample({"source": "x", "output": ""}),
        Sample({"source": "x", "output": "good"}),
        Sample({"source": "x" * 5000, "output": "good"}),
    ]
    empty, good, long = gptscore_figures(judge, metric, samples)
    assert "empty" in empty["error"]
    assert math.isfinite(good["score"])
    assert "the judge reads 4096" in long["error"]
    with pytest.raises(ConfigurationError, match="a field 'output'"):
        gptscore_figures(judge, metric.model_copy(update={"fields": {"source": "Source"}}), samples)
