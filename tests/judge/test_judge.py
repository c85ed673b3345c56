"""The judge: scores in order, equal through every entry point, each with its reason or all of its figures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from example_counts import example_count
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.engine.transformers_backend import TransformersBackend
from geval_local.errors import ConfigurationError, JudgeError, TokenizerError
from geval_local.io.samples import Sample
from geval_local.judge import scorer
from geval_local.judge.judge import Judge
from geval_local.metric import Metric
from geval_local.models.load import load_model
from geval_local.models.registry import find_judge
from geval_local.prompt import CHAT_FORM
from geval_local.score import LEAST_LABEL_MASS, LOW_LABEL_MASS, Estimator, Score
from geval_local.signature import KEYS, signature_differences

METRIC = Metric(name="x/quality", introduction="Rate it.", criteria="Is it good?", scale="0-10", steps=())
TEXTS = ["A.", "Short text", "Another, longer text, with 10 words or so in it.", "é" * 30, "10", "A. B. C. " * 12]
SAMPLES = [{"output": text} for text in TEXTS]


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    # Weights of an ordinary size: those of the other tests are steep, which magnifies the rounding of float32.
    model = tiny_model("llama", 263, dtype=torch.float32, max_position_embeddings=512, initializer_range=0.1)
    return save_judge(tmp_path_factory.mktemp("judge"), model, byte_tokenizer(chat=False))


@pytest.fixture(scope="module")
def judge(directory):
    return Judge.load(directory)


@pytest.fixture(scope="module")
def one_by_one(judge):
    return [judge.score(METRIC, **sample) for sample in SAMPLES]


def same(first: Score, second: Score, *, within: float = 1e-6) -> bool:
    if not (first.is_scored and second.is_scored):
        return first.error == second.error
    return (
        abs(first.value - second.value) <= within
        and abs(first.label_mass - second.label_mass) <= within
        and all(abs(first.probabilities[label] - p) <= within for label, p in second.probabilities.items())
        and first.prompt_tokens == second.prompt_tokens
    )


# --- one score --------------------------------------------------------------------------------------------------------


def test_a_score_has_all_its_figures(judge):
    score = judge.score(METRIC, output="A text.")
    p = np.array(list(score.probabilities.values()))
    assert list(score.probabilities) == [str(number) for number in range(11)]
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert score.value == pytest.approx(p @ np.arange(11))
    assert score.normalized == pytest.approx(score.value / 10)
    assert score.std == pytest.approx(math.sqrt(p @ (np.arange(11) - score.value) ** 2))
    assert score.entropy == pytest.approx(-(p @ np.log(p)))
    assert score.mode == str(p.argmax())
    assert score.margin == pytest.approx(np.sort(p)[-1] - np.sort(p)[-2])
    assert 0 < score.label_mass < 1
    assert (score.metric, score.error, score.threshold, score.passed) == ("x/quality", None, None, None)


def test_the_figures_are_the_models(judge):
    """The first label's probability, computed from the model by hand."""
    metric = METRIC.model_copy(update={"scale": Metric(name="x", criteria="x", scale="1-3").scale})
    score = judge.score(metric, output="A text.")
    tokenizer, model = judge.backend.loaded.tokenizer, judge.backend.loaded.model
    prompt = "Rate it.\n\nEvaluation Criteria:\n\nQuality (1-3) - Is it good?\n\nOutput:\n\nA text.\n\n"
    prompt += "Evaluation Form (scores ONLY):\n\n- Quality:"
    bare, spaced = tokenizer(prompt).input_ids, tokenizer(prompt + " ").input_ids
    assert score.prompt_tokens == len(bare)
    with torch.no_grad():
        at_once, after_space = (model(torch.tensor([ids])).logits[0, -1].double().softmax(-1) for ids in (bare, spaced))
    digits = tokenizer.convert_tokens_to_ids(["1", "2", "3"])
    joint = at_once[digits] + at_once[spaced[-1]] * after_space[digits]
    np.testing.assert_allclose(list(score.probabilities.values()), (joint / joint.sum()).numpy(), atol=1e-6)
    assert score.label_mass == pytest.approx(float(joint.sum()), abs=1e-6)


def test_aliases_and_samples_are_taken(judge, one_by_one):
    assert same(judge.score(METRIC, response=TEXTS[0]), one_by_one[0])
    assert same(judge.score_many(METRIC, [Sample({"system_output": TEXTS[1]}, row=7)])[0], one_by_one[1])


def test_a_bad_call_is_unscored_with_its_reason(judge):
    score = judge.score(METRIC, reference="no output")
    assert not score.is_scored
    assert math.isnan(score.value)
    assert "'output' is missing" in score.error


def test_asking_again_gives_the_same_bits(judge):
    first, second = (judge.score_many(METRIC, SAMPLES) for _ in range(2))
    assert first == second


# --- many scores ------------------------------------------------------------------------------------------------------


def test_batches_equal_one_by_one_and_keep_the_order(judge, one_by_one):
    scores = judge.score_many(METRIC, SAMPLES)
    assert len({score.value for score in one_by_one}) == len(TEXTS)
    assert all(same(*pair) for pair in zip(scores, one_by_one, strict=True))


@pytest.mark.slow
@settings(max_examples=example_count(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=15),
    window=st.integers(1, 6),
    budget=st.sampled_from([1, 300, 100_000]),
)
def test_permuting_splitting_and_repeating_change_no_score(judge, one_by_one, monkeypatch, order, window, budget):
    monkeypatch.setattr(scorer, "WINDOW", window)
    monkeypatch.setattr(judge.engine, "batch_tokens", budget)
    counts = []
    scores = list(judge.iter_scores(METRIC, [SAMPLES[index] for index in order], advance=counts.append))
    assert len(scores) == sum(counts) == len(order)
    for index, score in zip(order, scores, strict=True):
        assert same(score, one_by_one[index])


def test_a_stream_is_read_window_by_window(judge, monkeypatch):
    monkeypatch.setattr(scorer, "WINDOW", 2)
    read = []

    def stream():
        for number, sample in enumerate(SAMPLES):
            read.append(number)
            yield sample

    scores = judge.iter_scores(METRIC, stream())
    assert read == []
    next(scores)
    assert read == [0, 1]
    assert len(list(scores)) == len(SAMPLES) - 1


def test_in_float64_nothing_but_rounding_is_left(directory):
    exact = Judge.load(directory, dtype="float64")
    together = exact.score_many(METRIC, [*SAMPLES, *SAMPLES[::-1]])
    alone = [exact.score(METRIC, **sample) for sample in SAMPLES]
    assert all(same(*pair, within=1e-11) for pair in zip(together, [*alone, *alone[::-1]], strict=True))


def test_no_samples_are_no_scores(judge):
    assert judge.score_many(METRIC, []) == []


@pytest.mark.parametrize("window", [2, 100])
def test_unscored_rows_keep_their_place(judge, one_by_one, monkeypatch, window):
    monkeypatch.setattr(scorer, "WINDOW", window)
    rows = [
        SAMPLES[0],
        {"wrong": "field"},
        Sample({}, row=3, origin="f.jsonl", error="f.jsonl, row 3: not JSON"),
        SAMPLES[1],
        {"output": "long " * 200},
        {"output": ""},
        SAMPLES[2],
    ]
    counts = []
    scores = list(judge.iter_scores(METRIC, rows, advance=counts.append))
    assert [score.is_scored for score in scores] == [True, False, False, True, False, False, True]
    assert sum(counts) == len(rows)
    for place, index in ((0, 0), (3, 1), (6, 2)):
        assert same(scores[place], one_by_one[index])
    assert scores[2].error == "f.jsonl, row 3: not JSON"
    assert "the judge reads 512" in scores[4].error
    assert scores[4].prompt_tokens > 512
    assert all(math.isnan(scores[place].value) and scores[place].probabilities is None for place in (1, 2, 4, 5))


def test_all_rows_unscored(judge):
    assert [score.is_scored for score in judge.score_many(METRIC, [{"a": "b"}] * 3)] == [False] * 3


def test_what_is_cut_is_reported(judge):
    metric = METRIC.model_copy(update={"shorten": "output"})
    score = judge.score(metric, output="long " * 200)
    assert score.is_scored
    assert score.prompt_tokens == 510  # two tokens of "10" behind a space are kept free
    plain = judge.score(METRIC, output="long " * 200)
    assert score.dropped_tokens == plain.prompt_tokens - 510


def test_progress_goes_to_stderr(judge, capsys):
    scores = judge.score_many(METRIC, SAMPLES[:2], progress=True)
    assert len(scores) == 2
    assert capsys.readouterr().out == ""


# --- thresholds, estimators, other tokens -----------------------------------------------------------------------------


def test_thresholds(judge):
    plain = judge.score(METRIC, output="A text.")
    assert plain.label_mass < LEAST_LABEL_MASS
    for threshold in (0.0, plain.value - 0.01, plain.value + 0.01, 10.0):
        score = judge.score(METRIC, output="A text.", threshold=threshold)
        assert score.passed is False  # a judge that does not answer passes nothing
        assert score.threshold == threshold
        reached = sum(p for label, p in plain.probabilities.items() if float(label) >= threshold)
        assert score.threshold_probability == pytest.approx(reached)
    own = METRIC.model_copy(update={"threshold": 9.5})
    assert judge.score(own, output="A text.").threshold == 9.5
    assert judge.score(own, output="A text.", threshold=0.0).threshold == 0.0


def test_the_mode_is_the_likeliest_labels_value(judge, one_by_one):
    scores = judge.score_many(METRIC, SAMPLES, estimator=Estimator("mode"))
    for score, exact in zip(scores, one_by_one, strict=True):
        assert score.value == float(exact.mode)
        assert score.probabilities == pytest.approx(exact.probabilities, abs=1e-6)


def test_draws_belong_to_the_sample_and_not_to_its_row(judge):
    estimator = Estimator("sample", n=20, seed=1)
    forward = judge.score_many(METRIC, SAMPLES, estimator=estimator)
    backward = judge.score_many(METRIC, SAMPLES[::-1], estimator=estimator)[::-1]
    twice = judge.score_many(METRIC, [SAMPLES[0], SAMPLES[0]], estimator=estimator)
    assert [score.value for score in forward] == [score.value for score in backward]
    assert twice[0].value == twice[1].value == forward[0].value
    for score in forward:
        assert score.value * 20 == pytest.approx(round(score.value * 20))
    others = judge.score_many(METRIC, SAMPLES, estimator=Estimator("sample", n=20, seed=2))
    assert [score.value for score in others] != [score.value for score in forward]


def test_two_samples_of_one_distribution_have_draws_of_their_own(judge):
    """A seed alone would give every sample the same draws."""
    estimator = Estimator("sample", n=1)
    flat = Metric(name="x/flat", criteria="x", scale="1-100", steps=())
    values = {judge.score(flat, estimator=estimator, output=f"{number}").value for number in range(12)}
    assert len(values) > 3


def test_other_tokens_only_where_the_label_mass_is_low(judge, directory, tmp_path):
    low = judge.score(METRIC, output="A text.")
    assert low.label_mass < LOW_LABEL_MASS
    assert low.other_tokens
    assert not {token.strip() for token, _ in low.other_tokens} & set(low.probabilities)
    probabilities = [p for _, p in low.other_tokens]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) <= 1 - low.label_mass + 1
    model = tiny_model("phi", 263, dtype=torch.float32)
    tokenizer = byte_tokenizer(chat=False)
    model.lm_head.bias.data[tokenizer.convert_tokens_to_ids(list("0123456789"))] += 100.0
    sure = Judge.load(save_judge(tmp_path / "sure", model, tokenizer)).score(METRIC, output="A text.")
    assert sure.label_mass > LOW_LABEL_MASS
    assert sure.other_tokens == ()


def test_a_metric_that_may_be_shortened_is_prepared_apart_from_one_that_may_not(directory):
    long = "A text. " * 200
    shortened = METRIC.model_copy(update={"shorten": "output"})
    assert METRIC.hash != shortened.hash
    for first, second in ((METRIC, shortened), (shortened, METRIC)):
        judge = Judge.load(directory)
        scores = {metric.shorten: judge.score(metric, output=long) for metric in (first, second)}
        assert "the judge reads 512" in scores[None].error
        assert scores["output"].is_scored
        assert scores["output"].dropped_tokens > 0


# --- loading and steps ------------------------------------------------------------------------------------------------


def test_the_context_is_the_smaller_of_entry_and_model(directory):
    loaded = load_model(find_judge(directory))
    for context, expected in ((None, 512), (100, 100), (4096, 512)):
        entry = loaded.entry.model_copy(update={"context": context})
        assert Judge(TransformersBackend(replace(loaded, entry=entry))).context == expected
    assert (
        "reads 100 "
        in Judge(TransformersBackend(replace(loaded, entry=loaded.entry.model_copy(update={"context": 100}))))
        .score(METRIC, output="A text.")
        .error
    )


def test_bad_arguments(directory):
    with pytest.raises(ConfigurationError, match="batch_tokens: Input should be at least 1"):
        Judge.load(directory, batch_tokens=0)
    with pytest.raises(TokenizerError, match="chat template"):
        Judge.load(directory, style="chat")
    with pytest.raises(JudgeError, match="no judge 'nobody'"):
        Judge.load("nobody")
    with pytest.raises(ConfigurationError, match="unknown estimator"):
        Estimator("middle")


def test_steps_are_written_once_for_a_metric_without_them(directory, monkeypatch):
    asked = []

    def answer(self, prompt, *, max_new_tokens, on_token):
        asked.append(prompt.text)
        return " Read it.\n2. Rate it."

    monkeypatch.setattr(Judge, "continue_text", answer)
    judge = Judge.load(directory)
    bare = METRIC.model_copy(update={"steps": None})
    first = judge.score(bare, output="A text.")
    assert same(first, judge.score(bare, output="A text."))
    assert len(asked) == 1
    assert same(first, judge.score(METRIC.with_steps(("Read it.", "Rate it.")), output="A text."))
    assert not same(first, judge.score(METRIC, output="A text."))
    Judge.load(directory).score(bare, output="Another text.")
    assert len(asked) == 1


@pytest.mark.slow
def test_a_judge_that_writes_no_steps_scores_without_and_says_so(judge, caplog):
    found = judge.score(METRIC.model_copy(update={"steps": None}), output="A text.")
    # The second time the metric's prefix is kept: a pass of another shape.
    assert found.value == pytest.approx(judge.score(METRIC.with_steps(()), output="A text.").value, abs=1e-6)
    with_one = judge.score(METRIC.with_steps(("Read the text.",)), output="A text.")
    assert found.value != pytest.approx(with_one.value, abs=1e-6)
    assert "is scored without evaluation steps" in caplog.text
    assert "wrote no two different evaluation steps" in caplog.text


def test_continue_text_says_the_same_every_time(judge):
    from geval_local.prompt import Prompt

    first, second = (judge.continue_text(Prompt("Rate it.\n", "1."), max_new_tokens=8) for _ in range(2))
    assert first == second
    assert isinstance(first, str)


# --- signature --------------------------------------------------------------------------------------------------------


def test_the_signature_changes_with_whatever_changes_a_score(directory, tmp_path):
    judge = Judge.load(directory)
    base = judge.signature(METRIC)
    assert signature_differences(str(base), str(judge.signature(METRIC, Estimator()))) == {}

    def changed(judge=judge, metric=METRIC, estimator=None):
        return set(signature_differences(str(base), str(judge.signature(metric, estimator))))

    assert changed(metric=METRIC.with_steps(("Read.", "Rate."))) == {"steps"}
    assert changed(metric=METRIC.model_copy(update={"criteria": "Is it bad?"})) == {"metric"}
    assert changed(metric=METRIC.model_copy(update={"introduction": "Judge it."})) == {"metric"}
    assert changed(metric=Metric(**METRIC.model_dump() | {"scale": "1-5"})) == {"metric", "scale"}
    assert changed(metric=METRIC.model_copy(update={"threshold": 3.0})) == set()
    assert changed(estimator=Estimator("mode")) == {"estimator"}
    draws = [Estimator("sample"), Estimator("sample", seed=1), Estimator("sample", n=5)]
    assert len({judge.signature(METRIC, estimator).estimator for estimator in draws}) == 3
    assert changed(judge=Judge.load(directory, dtype="bfloat16")) == {"dtype"}
    assert changed(judge=Judge.load(directory, attention="eager")) == {"attention"}
    assert changed(judge=Judge.load(directory, batch_tokens=7)) == set()
    other = tiny_model("llama", 263, dtype=torch.float32, seed=1, max_position_embeddings=512)
    other_directory = save_judge(tmp_path / "other", other, byte_tokenizer(chat=False))
    assert changed(judge=Judge.load(other_directory)) == {"judge"}


def test_the_signature_names_the_style_and_closed_thinking(tmp_path):
    model = tiny_model("llama", 263, dtype=torch.float32)
    styles = set()
    for thinking in (True, False):
        tokenizer = byte_tokenizer(thinking=thinking)
        loaded = load_model(find_judge(save_judge(tmp_path / f"chat-{thinking}", model, tokenizer)))
        for style in ("completion", "chat", "chat-no-prefill"):
            judge = Judge(TransformersBackend(replace(loaded, entry=loaded.entry.model_copy(update={"style": style}))))
            styles.add(judge.signature(METRIC).style)
    closed = {f"chat+form{CHAT_FORM}+closed-thinking", f"chat-no-prefill+form{CHAT_FORM}+closed-thinking"}
    opened = {f"chat+form{CHAT_FORM}", f"chat-no-prefill+form{CHAT_FORM}"}
    assert styles == {"completion"} | opened | closed


def test_the_signature_names_quantization(directory):
    loaded = Judge.load(directory).backend.loaded
    loaded.model.is_loaded_in_4bit = True  # as transformers marks a model that it quantized
    assert Judge(TransformersBackend(loaded)).signature(METRIC).dtype == "float32+4bit"


def test_the_identity_names_what_is_not_in_the_tokens(directory):
    judge = Judge.load(directory, engine="padded")
    signature = judge.signature(METRIC)
    kept = ("tokenizer", "dtype", "attention", "transformers", "torch", "version")
    parts = [f"judge:{judge.fingerprint}", *(f"{name}:{getattr(signature, name)}" for name in kept), "engine:padded"]
    assert judge.identity == "|".join(parts)


def test_the_signature_is_one_line_with_every_field(judge):
    signature = judge.signature(METRIC)
    text = str(signature)
    assert "\n" not in text
    assert [part.split(":")[0] for part in text.split("|")] == [*KEYS[:12]]
    assert judge.fingerprint in text
    assert f"metric:x/quality@{METRIC.hash}|" in text
    assert "steps:none" in text
