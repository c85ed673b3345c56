"""BERTScore, BARTScore and UniEval on small random models of the right architecture, against plain computations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from cli_run import judge_directory
from tiny import byte_tokenizer
from tokenizers import processors
from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertModel, T5Config
from transformers import T5ForConditionalGeneration as T5

from benchmarks.baselines.reference_models import (
    bart_scores,
    bert_scores,
    load_reference_model,
    yes_probabilities,
)
from benchmarks.baselines.unieval import QUESTIONS, unieval_scores
from geval_local.errors import JudgeError, TokenizerError, WeightsError
from geval_local.models.registry import JudgeEntry

PAIRS = [("It ends.", "It ends well, they say."), ("A", "A long text with many words."), ("Same.", "Same.")]
DATA = Path(__file__).parents[3] / "shared" / "data"


def tokenizer():
    made = byte_tokenizer(chat=False)
    made.pad_token = "<think>"
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return made


def random_model(kind):
    size = len(tokenizer())
    torch.manual_seed(3)
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 5}
    if kind == "bertscore":
        sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
        return BertModel(BertConfig(vocab_size=size, pad_token_id=5, initializer_range=0.4, **sizes))
    if kind == "bartscore":
        sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 32))}
        sides |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 512}
        config = BartConfig(vocab_size=size, d_model=32, decoder_start_token_id=1, init_std=0.4, **sides, **ids)
        return BartForConditionalGeneration(config)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    return T5(T5Config(vocab_size=size, decoder_start_token_id=5, initializer_factor=2.0, **sizes, **ids))


@pytest.fixture
def directory(tmp_path):
    def save(kind):
        random_model(kind).save_pretrained(str(tmp_path / kind))
        tokenizer().save_pretrained(str(tmp_path / kind))
        return tmp_path / kind

    return save


def load(kind, path):
    return load_reference_model(kind, JudgeEntry(name=kind, path=path), device="cpu")


def ids(text):
    return tokenizer()(text).input_ids


def test_bertscore_is_greedy_matching_one_pair_at_a_time(directory):
    found = load("bertscore", directory("bertscore"))
    scores = bert_scores(found, PAIRS)
    model = random_model("bertscore").eval()
    for score, pair in zip(scores, PAIRS, strict=True):
        with torch.no_grad():
            a, b = (
                torch.nn.functional.normalize(
                    model(torch.tensor([ids(text)]), output_hidden_states=True).hidden_states[3][0], dim=-1
                )
                for text in pair
            )
        similarity = a @ b.T
        precision = similarity[1:-1].max(dim=1).values.mean().item()
        recall = similarity[:, 1:-1].max(dim=0).values.mean().item()
        assert score == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-5)
    assert scores[2] == pytest.approx(1, abs=1e-6)
    assert found.layer == 3


def test_bartscore_is_the_mean_log_probability_of_the_target(directory):
    scores = bart_scores(load("bartscore", directory("bartscore")), PAIRS)
    model = random_model("bartscore").eval()
    for score, (source, target) in zip(scores, PAIRS, strict=True):
        wanted = ids(target)
        decoder = torch.tensor([[1, *wanted[:-1]]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids(source)]), decoder_input_ids=decoder).logits[0]
        logs = logits.log_softmax(-1)
        expected = sum(float(logs[place, token]) for place, token in enumerate(wanted)) / len(wanted)
        assert score == pytest.approx(expected, abs=1e-5)


def test_unieval_is_yes_against_no_at_the_first_step(directory):
    model = random_model("unieval").eval()
    questions = ["question: Is it? </s> text: a", "question: Is this a longer one? </s> text: b c d"]
    scores = yes_probabilities(load("unieval", directory("unieval")), questions)
    yes, no = (tokenizer()(word, add_special_tokens=False).input_ids[0] for word in ("Yes", "No"))
    for score, question in zip(scores, questions, strict=True):
        with torch.no_grad():
            start = torch.tensor([[5]])
            logits = model(input_ids=torch.tensor([ids(question)]), decoder_input_ids=start).logits[0, 0]
        p = logits.softmax(-1)
        assert score == pytest.approx(float(p[yes] / (p[yes] + p[no])), abs=1e-5)


def test_unieval_asks_about_sentences_where_its_authors_do(directory):
    model = load("unieval", directory("unieval"))
    row = {"output": "One is here. Two is there.", "source": "S", "reference": "R", "fact": "F"}
    parts = [
        yes_probabilities(model, [f"question: Is this a fluent paragraph? </s> paragraph: {one}"])[0]
        for one in ("One is here.", "Two is there.")
    ]
    assert unieval_scores(model, "summeval", "fluency", [row]) == pytest.approx([sum(parts) / 2], abs=1e-6)
    (engaging,) = unieval_scores(model, "topical-chat", "engagingness", [row])
    assert 0 < engaging < 2
    question = f"question: {QUESTIONS['summeval']['coherence'][0]} </s> summary: {row['output']} </s> document: S"
    assert unieval_scores(model, "summeval", "coherence", [row]) == yes_probabilities(model, [question])


def test_what_is_too_long_is_cut_and_counted(directory):
    found = load("bertscore", directory("bertscore"))
    assert found.limit == 512
    (score,) = bert_scores(found, [("x" * 600, "y")])
    assert math.isfinite(score)
    assert found.shortened == 1


def test_what_cannot_be_used_is_refused(directory, tmp_path):
    path = directory("bartscore")
    weights = path / "model.safetensors"
    weights.rename(path / "pytorch_model.bin")
    with pytest.raises(WeightsError):
        load("bartscore", path)
    with pytest.raises(JudgeError, match="cannot be loaded as encoder-decoder"):
        load("bartscore", judge_directory())
    bare = directory("unieval")
    made = byte_tokenizer(chat=False)
    made.pad_token = None
    made.save_pretrained(str(bare))
    with pytest.raises(TokenizerError, match="no token to pad with"):
        load("unieval", bare)
