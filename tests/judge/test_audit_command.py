"""Audits against the tokenizer and the scores themselves."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from cli_run import judge_directory
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local import Judge, Metric, Sample
from geval_local.engine.interface import Readout
from geval_local.errors import JudgeError, UnscorableError
from geval_local.judge.audit import audit_judge, audit_prompt, example_samples
from geval_local.metric_file import preset_names
from geval_local.tokens.requests import RequestMaker


def metric(scale: object = "1-5", **more: object) -> Metric:
    return Metric(name="m", criteria="Good?", scale=scale, steps=(), **more)


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge.load(judge_directory())


def test_tokens_and_pieces_spell_the_prompt_and_the_labels(judge):
    audit = audit_prompt(RequestMaker(judge.encoder, metric("0-10"), 4096), Sample({"output": "A text."}))
    assert "".join(audit.pieces) == audit.text
    assert len(audit.token_ids) == len(audit.pieces)
    assert audit.bos_count == 1
    for form in audit.forms:
        assert "".join(form.pieces) == form.text
        assert form.text.strip() == form.label
        assert form.value == float(form.label)
    assert audit.collisions == (("1", "10"),)


def test_forms_that_the_tokenizer_merges_into_the_cue_are_listed(tmp_path):
    tokenizer = byte_tokenizer(chat=False, bos=False, merges=[(":", " ")])
    directory = save_judge(tmp_path, tiny_model("llama", len(tokenizer), dtype=torch.float32), tokenizer)
    judge = Judge.load(directory)
    audit = audit_prompt(RequestMaker(judge.encoder, metric(), 4096), Sample({"output": "A text."}))
    assert [form.text for form in audit.dropped] == [" 1", " 2", " 3", " 4", " 5"]
    assert audit.bos_count == 0
    assert [form.text for form in audit.forms] == list("12345")


def test_a_shortened_prompt_is_shown_as_the_judge_reads_it(judge):
    maker = RequestMaker(judge.encoder, metric(shorten="output"), 400)
    audit = audit_prompt(maker, Sample({"output": "word " * 100}))
    assert audit.dropped_tokens > 0
    assert len(audit.token_ids) <= 400
    assert audit.text.count("word") < 100


def test_a_sample_that_fills_no_form_is_refused(judge):
    with pytest.raises(UnscorableError, match="'output' is missing"):
        audit_prompt(RequestMaker(judge.encoder, metric(), 4096), Sample({"source": "x"}))


@pytest.mark.parametrize("brief", [False, True])
def test_the_tokens_of_all_examples_are_told_before_any_is_read(judge, brief):
    told = []
    audit = audit_judge(
        judge.backend,
        RequestMaker(judge.encoder, metric(), judge.context),
        brief=brief,
        on_read=lambda done, total: told.append((done, total)),
    )
    assert len(audit.lengths) == (3 if brief else 5)
    (total,) = {total for _, total in told}
    assert (told[0][0], told[-1][0]) == (0, total)
    assert len(told) > len(audit.lengths) + 1
    assert total > sum(audit.lengths)


def test_the_example_has_the_judges_own_score_and_size(judge):
    audit = audit_judge(judge.backend, RequestMaker(judge.encoder, metric(), judge.context))
    score = judge.score_many(metric(), example_samples(metric())[:1])[0]
    assert audit.example.score == pytest.approx(score.value, abs=1e-5)
    assert audit.example.label_mass == pytest.approx(score.label_mass, rel=1e-4)
    parameters = judge.backend.loaded.model.parameters()
    assert audit.description.parameters == sum(parameter.numel() for parameter in parameters)
    assert len(set(audit.lengths)) > 3
    assert audit.batches < len(audit.lengths)
    assert audit.batch_difference < 1e-4


class Wrapped:
    """An engine with the plan of another one."""

    def __init__(self, engine):
        self.engine, self.turn = engine, engine.turn

    def plan(self, requests):
        return self.engine.plan(requests)


def served_by(engine, judge):
    """A backend with another engine."""
    backend = copy.copy(judge.backend)
    backend.engine = engine
    return backend


def test_a_batch_that_changes_scores_is_measured(judge):
    class Leaky(Wrapped):
        """Engine that raises the first label's probability with the row of a batch."""

        name = "leaky"

        def execute(self, requests, packs):
            for pack, readouts in judge.engine.execute(requests, packs):
                yield pack, [Readout(one.label_logprobs + np.eye(5)[0] / 2) for one in readouts]

    audit = audit_judge(served_by(Leaky(judge.engine), judge), RequestMaker(judge.encoder, metric(), judge.context))
    assert audit.batch_difference > 0.01


def test_an_example_without_a_score_is_an_error(judge):
    class Failing(Wrapped):
        name = "failing"

        def execute(self, requests, packs):
            for pack in packs:
                yield pack, [Readout(None, error="out of memory") for _ in pack.requests]

    with pytest.raises(JudgeError, match="out of memory"):
        audit_judge(served_by(Failing(judge.engine), judge), RequestMaker(judge.encoder, metric(), judge.context))


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_examples_that_fill_its_form(name):
    preset = Metric.load(name)
    for sample in example_samples(preset):
        assert set(sample.texts(preset.fields)) == set(preset.fields)
