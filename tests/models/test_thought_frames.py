"""Where thoughts stand in published chat templates, and a judge that thinks between their marks."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from tiny import SHARED, byte_tokenizer, save_judge, tiny_model

from geval_local import Judge, Metric
from geval_local.io.samples import Sample
from geval_local.models.chat_template import MARK, chat_frame

#: Template -> the end of the text before a thought, and the text between it and the answer. None: it knows no thoughts,
#: or does not show where they stand.
FRAMES = {
    "cohere2-moe": ("<|CHATBOT_TOKEN|><|START_THINKING|>", "<|END_THINKING|><|START_TEXT|>"),
    "gemma4": ("<|turn>model\n<|channel>thought\n", "<channel|>"),
    "glm-4.6": ("<|assistant|>\n<think>", "</think>\n"),
    "glm-4.7-flash": ("<|assistant|><think>", "</think>"),
    "gpt-oss": (
        "<|start|>assistant<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "kimi-k2-thinking": ("<|im_middle|><think>", "</think>"),
    "qwen3": ("<|im_start|>assistant\n<think>\n", "\n</think>\n\n"),
    "qwen3.5": ("<|im_start|>assistant\n<think>\n", "\n</think>\n\n"),
    "qwq": ("<|im_start|>assistant\n<think>\n", "\n</think>\n\n"),
    "r1-distill": ("<｜Assistant｜><think>\n", "\n</think>\n\n"),
    "seed-oss": ("<seed:bos>assistant\n<seed:think>", "</seed:think>\n"),
    "smollm3": ("<|im_start|>assistant\n<think>\n", "\n</think>\n"),
    "apertus": None,
    "command-r7b": None,
    "gemma3": None,
    "granite3.3": None,
    "llama3.1": None,
    "mistral-7b-v0.3": None,
    "phi-4-mini": None,
    "qwen2.5": None,
}
METRIC = Metric(name="quality", criteria="Is it good?", scale="1-5", steps=("Read.",), fields={"output": "Output"})


def template_tokenizer(name):
    """Build a byte tokenizer with a published template, and its marks as tokens."""
    file = SHARED / "templates" / f"{name}.jinja"
    if not file.is_file():
        pytest.skip(f"needs ../shared/templates/{name}.jinja")
    template = file.read_text(encoding="utf-8")
    tokenizer = byte_tokenizer(chat=False)
    tokenizer.add_tokens(sorted(set(re.findall(MARK, template)) - {"<think>", "</think>"}), special_tokens=False)
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", FRAMES)
def test_thoughts_stand_where_a_template_has_them(name):
    found = chat_frame(template_tokenizer(name)).thought
    if FRAMES[name] is None:
        assert found is None
        return
    before, between = FRAMES[name]
    assert found.opening.endswith(before)
    assert found.closing == between
    assert between.lstrip("\n").startswith(found.mark)


_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
)
_CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|channel|>"
)
#: Templates that open a thought only where thinking is switched on, and show none in a conversation: the text before a
#: thought, and the text between it and the answer.
OPENED = {
    "think": (_TURNS + "{% if enable_thinking %}<think>\n{% endif %}{% endif %}", "<think>\n", "\n</think>\n\n"),
    "inline": (_TURNS + "{% if thinking %}<think>{% endif %}{% endif %}", "<think>", "\n</think>\n\n"),
    "brackets": (
        _TURNS + "{% if reasoning %}[THINK]{% endif %}{% endif %}{# [/THINK] #}",
        "[THINK]",
        "\n[/THINK]\n\n",
    ),
    "kimi": (_TURNS + "{% if thinking %}◁think▷{% endif %}{% endif %}{# ◁/think▷ #}", "◁think▷", "\n◁/think▷\n\n"),
    "channel": (
        _CHANNELS + "{{ 'analysis' if enable_thinking else 'final' }}<|message|>{% endif %}",
        "<|start|>assistant<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "no mark": (
        "{% if enable_thinking %}Think it through first. {% endif %}" + _TURNS + "{% endif %}",
        None,
        "its chat template does not show where they stand",
    ),
}


def own_tokenizer(template):
    tokenizer = byte_tokenizer(chat=False)
    tokenizer.add_tokens(sorted(set(re.findall(MARK, template)) - {"<think>", "</think>"}), special_tokens=False)
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", OPENED)
def test_a_prompt_that_opens_a_thought_has_its_own_marks_and_else_a_word_is_said(tmp_path, caplog, name):
    template, before, between = OPENED[name]
    tokenizer = own_tokenizer(template)
    save_judge(tmp_path, tiny_model("llama", len(tokenizer)), tokenizer)
    frame = chat_frame(tokenizer).thought
    judge = Judge.load(tmp_path, style="chat", dtype="float64", think=2, think_tokens=6)
    if before is None:
        assert frame is None
        assert judge.thinker.settings.kind.startswith("reason-first")
        assert f"(reason-first) instead of thoughts of its own, because {between}" in caplog.text
        return
    assert (frame.opening.endswith(before), frame.closing) == (True, between)
    assert judge.thinker.settings.kind == "template"
    assert "reason-first" not in caplog.text
    (entry,) = judge.prepare(METRIC, [Sample({"output": "A text."})])
    assert tokenizer.decode(entry.request.ids.tolist()).endswith(before)
    shown = tokenizer.decode(judge.thinker.after_thoughts([entry])[0].request.ids.tolist())
    assert shown.endswith(f"{between}- Quality:")


def test_a_judge_in_completion_style_says_how_it_thinks(tmp_path, caplog):
    tokenizer = byte_tokenizer()
    save_judge(tmp_path, tiny_model("llama", len(tokenizer)), tokenizer)
    Judge.load(tmp_path, style="completion", dtype="float64", think=2)
    assert "(reason-first) instead of thoughts of its own, because a completion has no marks" in caplog.text


@pytest.mark.parametrize("name", ["qwen3", pytest.param("gpt-oss", marks=pytest.mark.slow)])
def test_a_judge_thinks_between_its_templates_marks(tmp_path, name):
    tokenizer = template_tokenizer(name)
    model = tiny_model("llama", len(tokenizer))
    save_judge(tmp_path, model, tokenizer)
    judge = Judge.load(tmp_path, style="chat", dtype="float64", think=2, think_tokens=12, think_seed=1)
    assert judge.thinker.settings.kind == "template"
    assert "closed-thinking" not in judge.signature(METRIC).style
    score = judge.score(METRIC, output="A <think> text.")

    # By hand: the prompt and the thought as the template has them, the labels by plain passes.
    (entry,) = judge.prepare(METRIC, [Sample({"output": "A <think> text."})])
    opening, closing = FRAMES[name]
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in re.findall(MARK, opening + closing)}
    text = tokenizer.decode(entry.request.ids.tolist())
    assert text.endswith(opening)
    last = re.findall(MARK, opening)[-1]
    shown = text.count(last) - "A <think> text.".count(last)  # that of the sample is no control token
    assert entry.request.ids.tolist().count(ids[last]) == shown
    p = np.zeros(5)
    whole = judge.thinker.after_thoughts([entry])
    for one in whole:
        assert one.thought.text in score.thoughts.texts
        rest = one.request.ids.tolist()[len(entry.request.ids) + len(one.thought.ids) :]
        shown = closing if one.thought.ending != "mark" else closing.partition(re.findall(MARK, closing)[0])[2]
        assert tokenizer.decode(rest) == f"{shown}- Quality:"
        assert set(ids.values()) & set(rest) or one.thought.ending == "mark"
        p += label_probabilities(judge, one.request.ids.tolist())
    assert score.label_mass == pytest.approx(p.sum() / 2, rel=1e-5)
    assert list(score.probabilities.values()) == pytest.approx(list(p / p.sum()), rel=1e-4)


def label_probabilities(judge, ids):
    """Sum the probabilities of "3" and " 3" after a prompt, for every label."""

    def after(*more):
        with torch.no_grad():
            logits = judge.backend.loaded.model(torch.tensor([[*ids, *more]]), use_cache=False).logits[0, -1]
        return torch.softmax(logits.double(), dim=-1).numpy()

    tokenizer = judge.backend.tokenizer
    labels = [tokenizer.encode(label, add_special_tokens=False)[0] for label in "12345"]
    (blank,) = tokenizer.encode(" ", add_special_tokens=False)
    alone, spaced = after(), after(blank)
    return alone[labels] + alone[blank] * spaced[labels]
