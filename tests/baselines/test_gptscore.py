"""GPTScore: the likelihoods are the model's own, token by token, and the output's alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_run import judge_directory, run
from rated_runs import other_judge, prepare
from tiny import byte_tokenizer, tiny_model

from geval_local import Judge, Metric
from geval_local.analysis.ratings.rated import read_own
from geval_local.baselines.gptscore import NO_READING, gptscore_figures, render_request
from geval_local.cli.meta_eval import model_baselines
from geval_local.cli.meta_eval.kept_columns import Column, KeptColumns, text_hash
from geval_local.errors import ConfigurationError, DataError
from geval_local.io.samples import Sample
from geval_local.models.head import Head
from geval_local.models.likelihood import Continuation, mean_logprobs


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
        logs = judge.loaded.model(torch.tensor([whole])).logits[0].log_softmax(-1)
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


@pytest.mark.slow
def test_it_stands_among_the_baselines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    done = run(
        *("meta-eval", "data.jsonl", "-m", "clarity.yaml", "--human", "rating.clarity", "--group-by", "doc"),
        *("-j", judge_directory(), "--gptscore", "--json"),
        home=tmp_path / "home",
    )
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    name = f"GPTScore ({Path(judge_directory()).name})"
    assert record["contenders"][name]["kind"] == "baseline"
    assert record["correlations"]["summary"][name]["clarity"]["n"] == 12


def test_kept_scores_are_not_computed_again_until_anything_changes(tmp_path, monkeypatch):
    prepare(tmp_path)
    judge = Judge.load(judge_directory())
    rated = read_own(tmp_path / "data.jsonl", {"clarity": "rating.clarity"}, group_by="doc")
    metric = Metric.load(tmp_path / "clarity.yaml")
    computed = []

    def counted(judge, metric, samples, **named):
        computed.append(metric.criteria)
        return [{"score": -len(computed) - 1 / number} for number, _ in enumerate(samples, start=1)]

    monkeypatch.setattr(model_baselines, "gptscore_figures", counted)
    (tmp_path / "kept").mkdir()
    kept = KeptColumns(tmp_path / "data.jsonl", tmp_path / "kept")

    def row(judge=judge, rated=rated, **changed):
        return model_baselines.gptscore(rated, kept, judge, {"clarity": metric.model_copy(update=changed)}, "it")

    first = row()
    assert row() == first
    assert row(steps=("Other steps.",)) == first  # they are not in what is asked
    assert computed == [metric.criteria]
    assert row(criteria="Whether it is short.") != first
    assert len(computed) == 2
    assert row(judge=Judge.load(judge_directory(), dtype="bfloat16")) != first
    assert len(computed) == 3
    assert row(judge=Judge.load(other_judge())) != first
    assert len(computed) == 4
    texts = [{**one, "output": f"{one['output']} More."} for one in rated.rows]
    assert row(rated=replace(rated, rows=tuple(texts))) != first
    assert len(computed) == 5
    assert row() == first
    assert len(computed) == 5


@pytest.mark.slow
def test_meta_eval_reuses_kept_scores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)

    def evaluate():
        done = run(
            *("meta-eval", "data.jsonl", "-m", "clarity.yaml", "--human", "rating.clarity", "--group-by", "doc"),
            *("-j", judge_directory(), "--gptscore", "-o", "kept", "--json"),
            home=tmp_path / "home",
        )
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)["correlations"]

    first = evaluate()
    monkeypatch.setattr(model_baselines, "gptscore_figures", None)
    monkeypatch.setattr(Judge, "iter_scores", None)
    assert evaluate() == first


def test_what_another_attempt_may_give_is_not_kept_and_damage_is_refused(tmp_path):
    kept = KeptColumns(tmp_path / "data.jsonl.gz", tmp_path, "first2")
    tried = []

    def attempt(is_final):
        tried.append(is_final)
        figures = [{"score": 0.1 + 0.2}, {"score": None, "error": NO_READING}]
        return Column(figures, {"limit": 3}, is_final=is_final)

    for is_final in (False, True, True):
        column = kept.column("A (b/c)", {"texts": text_hash(["a"])}, lambda is_final=is_final: attempt(is_final))
        assert column.figures == [{"score": 0.1 + 0.2}, {"score": None, "error": NO_READING}]
        assert column.facts == {"limit": 3}
    assert tried == [False, True]
    (file,) = tmp_path.glob("data--A-b-c--first2--*.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    for damage in ("{", json.dumps(record | {"key": {"texts": "other"}}), json.dumps(record | {"figures": [{}]})):
        file.write_text(damage, encoding="utf-8")
        with pytest.raises(DataError, match="is damaged"):
            kept.column("A (b/c)", {"texts": text_hash(["a"])}, lambda: attempt(True))
