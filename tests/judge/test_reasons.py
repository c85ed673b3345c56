"""Reasons: their prompt, their batches, and whether they cite the text."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from cli_run import judge_directory
from tiny import byte_tokenizer, tiny_model

from geval_local.engine import transformers_backend
from geval_local.io.samples import Sample
from geval_local.judge.judge import Judge
from geval_local.judge.reason_writer import check_writing, cited, reason_batches
from geval_local.metric import Metric
from geval_local.models.generate import Paragraph, generate_paragraphs
from geval_local.prompt import render_form, render_reason_prompt
from geval_local.tokens.encoder import PromptEncoder

METRIC = Metric(name="x/clarity", criteria="How clear it is.", scale="1-5", steps=("Read.",))


@pytest.fixture(scope="module")
def judge():
    return Judge.load(judge_directory())


def test_the_prompt_is_the_form_with_its_label_and_then_the_question():
    fields = {"output": "It ends well."}
    prompt = render_reason_prompt(METRIC, fields, "4")
    assert prompt.text.startswith(f"{render_form(METRIC, fields).text} 4\n\nWhy ")
    assert prompt.text.endswith("\n\nReason:")


def test_the_question_is_asked_in_the_words_and_with_the_beginning_that_are_given():
    asked = render_reason_prompt(METRIC, {"output": "x"}, "4", "Warum? Zitiere die Stelle.\nBegründung:")
    assert asked.text.endswith(" 4\n\nWarum? Zitiere die Stelle.\n\nBegründung:")
    assert render_reason_prompt(METRIC, {"output": "x"}, "4", "Warum:").text.endswith(" 4\n\nWarum:\n\nReason:")


@pytest.mark.parametrize("style", ["completion", "chat", "chat-no-prefill"])
def test_every_style_asks_why_and_opens_the_reason(style):
    encoder = PromptEncoder(byte_tokenizer(), style=style)
    text = encoder.readable_text(render_reason_prompt(METRIC, {"output": "x"}, "4"))
    assert text.index("- Clarity: 4") < text.index("Why does it get this score?") < text.index("Reason:")


@pytest.mark.parametrize(
    ("reason", "is_cited"),
    [
        ('It says "the cat sat", which is clear.', True),
        ("It says \u201cThe cat, sat\u201d.", True),
        ("The words the cat sat on decide.", True),
        ('It says "the dog sat".', False),
        ("It is clear and well written.", False),
        ('"."', False),
        ("", False),
    ],
)
def test_a_citation_is_found_in_the_text(reason, is_cited):
    assert cited(reason, ["a source", "There the cat sat on a mat."]) is is_cited


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mamba"])
def test_a_batch_writes_what_each_prompt_alone_writes(kind):
    tokenizer = byte_tokenizer(chat=False)
    model = tiny_model(kind, len(tokenizer), dtype=torch.float64)
    prompts = PromptEncoder(tokenizer).encode(
        [render_reason_prompt(METRIC, {"output": "w " * count}, "2") for count in (1, 9, 4)]
    )
    together = generate_paragraphs(model, tokenizer, prompts, max_new_tokens=12)
    alone = [generate_paragraphs(model, tokenizer, [ids], max_new_tokens=12)[0] for ids in prompts]
    assert together == alone
    assert len(together) == 3


def test_every_sample_gets_a_reason_or_an_error(judge, monkeypatch):
    answers = iter([Paragraph('It says "brave new". It is', False), Paragraph("", True)])
    monkeypatch.setattr(
        transformers_backend,
        "generate_paragraphs",
        lambda model, tokenizer, prompts, **_: [next(answers) for _ in prompts],
    )
    samples = [
        Sample({"output": "a brave, new text"}),
        Sample({"output": None}),
        Sample({"output": "another one, which is longer"}),
    ]
    found = dict(chain.from_iterable(reason_batches(judge, METRIC, samples, ["1", "2", "3"])))
    assert sorted(found) == [0, 1, 2]
    assert (found[0].cites, found[0].is_complete, found[0].error) == (True, False, None)
    assert "output" in found[1].error
    assert found[2].error == "the judge wrote nothing"
    assert found[0].prompt_sha256 != found[2].prompt_sha256


def test_a_prompt_without_room_for_a_reason_is_an_error(judge):
    long = [Sample({"output": "word " * 300})]
    (((_, reason),),) = reason_batches(judge, METRIC, long, ["1"], max_new_tokens=10_000)
    assert "the reason up to 10000" in reason.error
    assert reason.text == ""


def test_batches_are_halved_when_memory_runs_out(judge, monkeypatch):
    sizes = []

    def scarce(model, tokenizer, prompts, **_):
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [Paragraph("a reason", True)] * len(prompts)

    monkeypatch.setattr(transformers_backend, "generate_paragraphs", scarce)
    samples = [Sample({"output": f"text {number}"}) for number in range(5)]
    assert sum(map(len, reason_batches(judge, METRIC, samples, ["1"] * 5))) == 5
    assert sizes == [5, 2, 2, 1]


@pytest.mark.parametrize(
    ("written", "can_write", "because"),
    [
        (Paragraph('It says "after eight months of repairs".', True), True, "it cites the text of the example"),
        (Paragraph('It says "a new roof" and then', False), True, "in the first 48 tokens"),
        (Paragraph('It says "a new roof".', False, repeats=True), False, "it repeats itself"),
        (Paragraph("It is very good and quite clear to everyone.", True), False, "it cites nothing of the text"),
        (Paragraph("", True), False, "the judge wrote nothing"),
    ],
)
def test_whether_a_judge_can_write_follows_from_one_reason(judge, monkeypatch, written, can_write, because):
    asked = []

    def write(model, tokenizer, prompts, *, max_new_tokens, **_):
        asked.append((len(prompts), max_new_tokens))
        return [written]

    monkeypatch.setattr(transformers_backend, "generate_paragraphs", write)
    found = check_writing(judge, METRIC, "4")
    assert (found.can_write, found.reason) == (can_write, written.text)
    assert because in found.because
    assert asked == [(1, 48)]


def test_a_model_that_repeats_itself_did_not_come_to_an_end(monkeypatch):
    """A random model falls into a loop sooner or later; what it wrote before is kept."""
    tokenizer = byte_tokenizer(chat=False)
    model = tiny_model("llama", len(tokenizer), dtype=torch.float64)
    ids = PromptEncoder(tokenizer).encode([render_reason_prompt(METRIC, {"output": "w"}, "2")])[0]
    loop = tokenizer.encode("The cat sat there. ", add_special_tokens=False)

    def generate(prompt, *, stopping_criteria, **_):
        whole = prompt
        for token in loop * 5:
            whole = torch.cat([whole, torch.tensor([[token]])], dim=1)
            if bool(stopping_criteria[0](whole, None)[0]):
                break
        return whole

    monkeypatch.setattr(model, "generate", generate)
    (found,) = generate_paragraphs(model, tokenizer, [ids], max_new_tokens=200)
    assert found == Paragraph("The cat sat there.", is_ended=False, repeats=True)
