"""Judges that think: the mean over thoughts against brute force, its error, and what a user sees of both."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import save_judge, tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from geval_local import Judge, Metric
from geval_local.engine.interface import read_all
from geval_local.errors import ConfigurationError
from geval_local.io.results import MetricFigures
from geval_local.io.samples import Sample
from geval_local.judge.audit import audit_thought
from geval_local.judge.batcher import Batcher
from geval_local.models.generate import drawn_token
from geval_local.options import JudgeOptions
from geval_local.questions.answer import answer_of
from geval_local.questions.form import question_forms
from geval_local.questions.pair import pair_metric
from geval_local.questions.question import ChoiceQuestion, PredicateQuestion, ScoreQuestion
from geval_local.score import Estimator, Outcome, mean_over_thoughts
from geval_local.summary import Tally
from geval_local.testing import MockJudge
from geval_local.thinking import Drawing, Thought, Thoughts, mean_distribution

METRIC = Metric(name="quality", criteria="x y z", scale="1-2", steps=(), fields={"output": "Output"})
MOCK = Metric(name="quality", criteria="Is it good?", scale="1-5", steps=("Read.",), fields={"output": "Output"})
#: Six tokens for thoughts and labels, and three that end a text or a thought.
WORDS = ("<unk>", "1", "2", "x", "y", "z", "</s>", "<think>", "</think>")
SPECIAL, MARK = (0, 6), 8
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
TOKENS = 3


def words_tokenizer():
    """Build a tokenizer of nine words; all others are one unknown word."""
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("judge"), tiny_model("llama", len(WORDS), seed=3), words_tokenizer())


def thinking_judge(directory, style, **options):
    return Judge.load(directory, style=style, dtype="float64", think_tokens=TOKENS, **options)


def next_tokens(model, contexts):
    """Compute the probabilities of the next token after contexts of one length, without any cache."""
    with torch.no_grad():
        logits = model(torch.tensor(contexts), use_cache=False).logits[:, -1]
    return torch.softmax(logits.double(), dim=-1).numpy()


def all_thoughts(model, prompt, ends, mark):
    """Enumerate every thought of up to three tokens, with its probability and how it ends."""
    open_ones, found = [((), 1.0)], []
    for _ in range(TOKENS):
        following = next_tokens(model, [[*prompt, *thought] for thought, _ in open_ones])
        grown = []
        for (thought, share), p in zip(open_ones, following, strict=True):
            for token, q in enumerate(p):
                if token == mark:
                    found.append(((*thought, token), share * q, "mark"))
                elif token in ends:
                    found.append((thought, share * q, "end"))
                else:
                    grown.append(((*thought, token), share * q))
        open_ones = grown
    return found + [(thought, share, "cut") for thought, share in open_ones]


@pytest.fixture(scope="module")
def marginal(directory):
    """By style: the judge's request, all thoughts with their probabilities, and P(l | thought) by plain passes."""

    def compute(style):
        judge = thinking_judge(directory, style, think=1)
        model = judge.backend.loaded.model
        (entry,) = judge.prepare(METRIC, [Sample({"output": "z"})])
        thoughts = all_thoughts(model, entry.request.ids.tolist(), SPECIAL, MARK if style == "chat" else None)
        p = np.zeros((len(thoughts), 2))
        contexts = [
            [*entry.request.ids.tolist(), *thought, *entry.request.rests[ending].ids.tolist()]
            for thought, _, ending in thoughts
        ]
        for length in {len(context) for context in contexts}:
            places = [place for place, context in enumerate(contexts) if len(context) == length]
            p[places] = next_tokens(model, [contexts[place] for place in places])[:, 1:3]
        return judge, entry, thoughts, p

    return {style: compute(style) for style in ("chat", "completion")}


@pytest.mark.parametrize("style", ["chat", "completion"])
def test_the_labels_after_every_thought_are_those_of_plain_passes(marginal, style):
    judge, entry, thoughts, expected = marginal[style]
    weights = np.array([share for _, share, _ in thoughts])
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    requests = [entry.request.after(Thought(ids, "", ending)) for ids, _, ending in thoughts]
    found = np.array([np.exp(one.label_logprobs) for one in read_all(judge.engine, requests)])

    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(weights @ found, weights @ expected, rtol=1e-12)


@pytest.mark.parametrize("style", ["chat", pytest.param("completion", marks=pytest.mark.slow)])
def test_a_mean_over_many_thoughts_is_the_marginal_over_all_of_them(marginal, directory, style):
    _, _, thoughts, p = marginal[style]
    weights = np.array([share for _, share, _ in thoughts])
    labels = weights @ p
    expected = float(labels @ [1, 2] / labels.sum())
    score = thinking_judge(directory, style, think=800, think_seed=5).score(METRIC, output="z")

    assert abs(score.value - expected) < 4 * score.thoughts.error < 0.1
    assert score.label_mass == pytest.approx(labels.sum(), abs=4 * p.sum(axis=1).std() / math.sqrt(800))
    share = sum(w for (_, w, ending) in thoughts if ending == "cut")
    assert score.thoughts.cut / 800 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 800))
    # The printed error is that of the exact variance of the ratio, to the noise of a variance.
    left = (p @ [1, 2] - expected * p.sum(axis=1)) / labels.sum()
    assert score.thoughts.error == pytest.approx(math.sqrt(weights @ left**2 / 800), rel=0.2)


@pytest.mark.parametrize("style", ["chat", "completion"])
def test_exact_labels_after_a_thought_vary_no_more_than_drawn_ones(marginal, style):
    """Rao-Blackwell: of the terms of the ratio, per thought; the drawn label is worth nothing where it is none."""
    _, _, thoughts, p = marginal[style]
    weights, values = np.array([share for _, share, _ in thoughts]), np.array([1.0, 2.0])
    labels = weights @ p
    away = values - labels @ values / labels.sum()
    exact, drawn = weights @ (p @ away) ** 2, weights @ (p @ away**2)

    assert exact < drawn


def test_thoughts_depend_on_seed_prompt_and_number_alone(directory):
    rows = [{"output": text} for text in ("x", "y z", "z z z z")]
    texts = [one.thoughts.texts for one in thinking_judge(directory, "chat", think=6).score_many(METRIC, rows)]
    assert [
        thinking_judge(directory, "chat", think=2).score(METRIC, **row).thoughts.texts for row in reversed(rows)
    ] == [own[:2] for own in reversed(texts)]
    other = thinking_judge(directory, "chat", think=6, think_seed=1).score_many(METRIC, rows)
    assert [one.thoughts.texts for one in other] != texts


# --- the estimator ----------------------------------------------------------------------------------------------------


def outcomes_of(p):
    return [Outcome(np.log(row), prompt_tokens=10) for row in p], [Thought((1,), "x", "mark")] * len(p)


def test_probabilities_are_averaged_before_they_are_normalised():
    p = np.array([[0.6, 0.2], [0.01, 0.09]])  # the second thought leaves little to the labels
    (one,) = mean_over_thoughts(*outcomes_of(p), 2)
    score = one.score(METRIC, estimator=Estimator())

    assert score.label_mass == pytest.approx((0.8 + 0.1) / 2)
    assert score.value == pytest.approx((0.305 * 1 + 0.145 * 2) / 0.45)
    assert score.probabilities == pytest.approx({"1": 0.305 / 0.45, "2": 0.145 / 0.45})
    assert score.prompt_tokens == 20
    # The jackknife by hand: without one of two thoughts the score is that after the other.
    assert score.thoughts.error == pytest.approx(abs(1.0 / 0.8 - 0.19 / 0.1) / 2)
    assert score.thoughts.spread == pytest.approx(np.std([1.0 / 0.8, 0.19 / 0.1], ddof=1))


def test_a_single_thought_has_no_error_and_a_failed_one_no_score():
    outcomes, thoughts = outcomes_of(np.array([[0.6, 0.2], [0.1, 0.3]]))
    (one,) = mean_over_thoughts(outcomes[:1], thoughts[:1], 1)
    score = one.score(METRIC, estimator=Estimator())
    assert math.isnan(score.thoughts.error)
    assert score.to_dict()["thought_error"] is None
    assert one.label_logprobs is outcomes[0].label_logprobs
    (failed,) = mean_over_thoughts([outcomes[0], Outcome(error="no memory", prompt_tokens=3)], thoughts, 2)
    assert (failed.error, failed.label_logprobs, failed.prompt_tokens) == ("no memory", None, 13)
    (both,) = mean_over_thoughts(outcomes, thoughts, 2)
    assert math.isnan(both.score(METRIC, estimator=Estimator("mode")).thoughts.error)


@pytest.mark.parametrize("count", [4, 16])
def test_the_printed_error_is_that_of_repeated_draws(count):
    """Label masses that differ between thoughts, 50 rows, 150 repetitions: the root mean squares agree within 10 %."""
    rng = np.random.default_rng(0)
    values = np.arange(1.0, 6)
    printed, observed = [], []
    for _ in range(50):
        about = rng.dirichlet(np.ones(5)) * 6
        p = rng.dirichlet(about, size=(150, count)) * rng.beta(8, 2, size=(150, count, 1))
        p += 1e-9
        sums = p.mean(axis=1)
        observed.append(np.var(sums @ values / sums.sum(axis=1), ddof=1))
        printed.append(np.mean([Thoughts(one, ()).errors(values)[0] ** 2 for one in p]))
    assert math.sqrt(np.mean(printed)) == pytest.approx(math.sqrt(np.mean(observed)), rel=0.1)


def test_a_token_is_drawn_with_its_probability():
    logits = np.log(np.array([0.5, 0.04, 0.3, 0.01, 0.15]))
    numbers = (np.arange(2_000) + 0.5) / 2_000

    def shares(*drawing):
        drawn = [drawn_token(logits, one, Drawing(*drawing)) for one in numbers]
        return np.bincount(drawn, minlength=5) / 2_000

    np.testing.assert_allclose(shares(1.0, 1.0), [0.5, 0.04, 0.3, 0.01, 0.15], atol=1e-3)
    np.testing.assert_allclose(shares(1.0, 0.9), np.array([0.5, 0, 0.3, 0, 0.15]) / 0.95, atol=1e-3)
    np.testing.assert_allclose(shares(1.0, 0.5), [1, 0, 0, 0, 0], atol=1e-3)
    squares = np.array([0.5, 0.04, 0.3, 0.01, 0.15]) ** 2
    np.testing.assert_allclose(shares(0.5, 1.0), squares / squares.sum(), atol=1e-3)
    np.testing.assert_allclose(shares(1.0, 1.0, 2), np.array([0.5, 0, 0.3, 0, 0]) / 0.8, atol=1e-3)
    np.testing.assert_allclose(shares(1.0, 1.0, 1), [1, 0, 0, 0, 0])
    np.testing.assert_allclose(shares(1.0, 1.0, 9), [0.5, 0.04, 0.3, 0.01, 0.15], atol=1e-3)
    np.testing.assert_allclose(shares(1.0, 1.0, 0, 0.2), np.array([0.5, 0, 0.3, 0, 0.15]) / 0.95, atol=1e-3)
    # Of what temperature and top-k leave: 0.5 of 0.8 is less than the top-p of 0.7.
    np.testing.assert_allclose(shares(1.0, 0.6, 2), [1, 0, 0, 0, 0])
    np.testing.assert_allclose(shares(0.5, 1.0, 0, 0.2), np.array([0.25, 0, 0.09, 0, 0]) / 0.34, atol=1e-3)


def test_equal_tokens_are_cut_in_the_order_of_their_ids():
    drawn = {drawn_token(np.zeros(6), one, Drawing(top_k=2)) for one in np.linspace(0, 0.999, 50)}
    assert drawn == {0, 1}


# --- what a user sees -------------------------------------------------------------------------------------------------


def mock(**options):
    return MockJudge(options=JudgeOptions(**({"think": 3, "think_tokens": 30} | options)))


def test_signature_and_scores_say_how_a_judge_thinks():
    plain, judge = MockJudge(), mock(think_temperature=0.6, think_top_p=0.95, think_seed=7)
    settings = "reason-first/1,k=3,mean=jackknife,n=30,t=0.6,p=0.95,seed=7"
    assert judge.signature(MOCK).further == {"thinking": settings}
    assert f"|thinking:{settings}|" in str(judge.signature(MOCK))
    changed = {"think": 4, "think_tokens": 31, "think_temperature": 0.7, "think_top_p": 0.9, "think_seed": 8}
    signatures = {str(mock(**{name: value}).signature(MOCK)) for name, value in changed.items()}
    assert len({*signatures, str(mock().signature(MOCK))}) == 6

    none = MockJudge(options=JudgeOptions(think=0))
    assert str(none.signature(MOCK)) == str(plain.signature(MOCK))
    assert none.score(MOCK, output="A.").to_dict() == plain.score(MOCK, output="A.").to_dict()
    assert JudgeOptions(think=0).record() == JudgeOptions().record()
    with pytest.raises(ConfigurationError, match="`think_tokens` is for a judge that thinks"):
        JudgeOptions(think_tokens=5)


def test_an_analysis_stands_before_the_form_and_follows_the_steps():
    judge = mock(think=1)
    (entry,) = judge.prepare(MOCK, [Sample({"output": "A text."})])
    (whole,) = judge.thinker.after_thoughts([entry])
    text = judge.encoder.decode(whole.request.ids.tolist())
    before, after = text.split(whole.thought.text)

    request = "First write a short analysis: one paragraph that follows the evaluation steps. Give no score in it."
    assert before.endswith(f"A text.\n\n{request}\n\nAnalysis:")
    assert after == "\n\nEvaluation Form (scores ONLY):\n\n- Quality:"
    assert whole.prompt_tokens == len(whole.request.ids)


def test_a_prompt_needs_room_for_its_thought():
    (entry,) = MockJudge().prepare(MOCK, [Sample({"output": "A text."})])
    context = entry.prompt_tokens + 400
    judge = MockJudge(context=context, options=JudgeOptions(think=1, think_tokens=500))
    score = judge.score(MOCK, output="A text.")
    assert not score.is_scored
    assert f"the judge reads {context} with a thought of " in score.error
    assert MockJudge(context=context, options=JudgeOptions(think=1, think_tokens=20)).score(MOCK, output="x").is_scored


def test_pairs_questions_and_single_calls_think_too():
    judge = mock()
    pair = pair_metric(MOCK)
    score = judge.score(pair, output_a="One.", output_b="Two.")
    assert len(score.orders) == 2
    assert len(score.thoughts.texts) == 6  # three about each order
    question = {"type": "predicate", "name": "good", "instructions": "It is good."}
    decision = judge.decide("A text.", [question])
    rows = [{"output": f"Text {number}."} for number in range(5)]
    with Batcher(judge) as batcher:
        scores, asked = batcher.score(MOCK, rows), batcher.decide("A text.", [question])
        assert [one.to_dict() for one in scores.result(30)] == [one.to_dict() for one in judge.score_many(MOCK, rows)]
        assert asked.result(30).to_dict() == decision.to_dict()


def test_figures_are_read_back_as_they_were_written():
    score = mock().score(MOCK, output="A text.")
    record = score.to_dict()
    assert {
        "thought_count",
        "thought_error",
        "thought_bias",
        "thought_spread",
        "cut_thoughts",
        "thoughts",
    } <= record.keys()
    assert MetricFigures.of("quality", [record]).score(0) == replace(score, other_tokens=())
    as_text = {name: value if isinstance(value, str) else json.dumps(value) for name, value in record.items()}
    assert MetricFigures.of("quality", [as_text]).score(0).thoughts == score.thoughts
    single = mock(think=1).score(MOCK, output="A text.").to_dict()
    assert math.isnan(MetricFigures.of("quality", [single]).score(0).thoughts.error)


def test_a_summary_names_the_part_of_its_error_that_thoughts_leave():
    scores = mock().score_many(MOCK, [{"output": f"Text {number}."} for number in range(20)])
    whole = Tally("quality")
    for number, score in enumerate(scores):
        whole.add("file", number + 1, score, number)
    summary = whole.summary()

    assert summary.thoughts == 3
    assert summary.thought_error == pytest.approx(math.sqrt(sum(one.thoughts.error**2 for one in scores)) / 20)
    assert summary.to_dict()["thoughts"]["count"] == 3
    plain = Tally("quality")
    plain.add("file", 1, MockJudge().score(MOCK, output="x"))
    assert "thoughts" not in plain.summary().to_dict()
    single = Tally("quality")
    single.add("file", 1, mock(think=1).score(MOCK, output="x"))
    assert single.summary().to_dict()["thoughts"] == {"count": 1, "standard_error": None, "bias": None, "cut": 0}


def test_an_audit_shows_one_thought_its_end_and_the_labels_after_it():
    judge = mock()
    audit = audit_thought(judge, MOCK)
    assert audit.settings == judge.thinker.settings.text
    assert audit.text.startswith(" Thought ")
    assert audit.rest.endswith("Evaluation Form (scores ONLY):\n\n- Quality:")
    assert audit.label_mass == pytest.approx(0.97)
    assert audit_thought(MockJudge(), MOCK) is None


def test_scores_of_judges_that_do_not_think_are_as_they_were():
    score = MockJudge().score(MOCK, output="A text.")
    assert score.thoughts is None
    assert not any("thought" in name for name in score.to_dict())


def test_the_bias_of_a_ratio_of_means_is_taken_off_from_three_thoughts_on():
    """Label mass rises with the verdict: four thoughts give .30 points too little on average without a correction."""
    rng = np.random.default_rng(4)
    values = np.arange(1.0, 6.0)

    def drawn(count):
        verdicts = np.clip(np.round(rng.normal(3, 1, count)), 1, 5).astype(int)
        return np.exp(verdicts - 5.0)[:, None] * np.eye(5)[verdicts - 1]

    many = drawn(100_000)
    true = (many @ values).sum() / many.sum()
    for count, least, most in ((2, 0.3, 1.0), (4, -0.15, 0.15), (8, -0.06, 0.06)):
        p = [drawn(count) for _ in range(3000)]
        means = np.array([mean_distribution(own) for own in p])
        np.testing.assert_allclose(means.sum(axis=1), [own.sum() / count for own in p])  # the label mass stays
        assert (means >= 0).all()
        assert least < true - ((means @ values) / means.sum(axis=1)).mean() < most
        told = np.array([Thoughts(own, ()).errors(values)[1] for own in p])
        plain = np.mean([(own.sum(axis=0) @ values) / own.sum() for own in p])
        assert 0.5 * (plain - true) > told.mean() > 1.1 * (plain - true), "most of the bias, which is below 0"
        if count > 2:
            assert plain - told.mean() == pytest.approx(((means @ values) / means.sum(axis=1)).mean(), abs=0.08), (
                "but for shares below 0"
            )
    equal = rng.dirichlet(np.ones(5), 6) * 0.8
    assert Thoughts(equal, ()).errors(values)[1] == pytest.approx(0, abs=0.1)
    alike = np.repeat(equal[:1], 4, axis=0)
    assert Thoughts(alike, ()).errors(values)[:2] == pytest.approx((0, 0), abs=1e-12)
    np.testing.assert_allclose(mean_distribution(equal), equal.mean(axis=0))
    silent = np.zeros((4, 5))
    silent[0] = 0.1
    np.testing.assert_allclose(mean_distribution(silent), silent.mean(axis=0))


@pytest.mark.parametrize("kind", ["predicate", "choice", "score"])
def test_the_errors_of_an_answer_are_those_of_many_draws(kind):
    """Two orders with thoughts of their own: the standard deviation over 2,000 draws, and the mean printed error."""
    question = {
        "predicate": PredicateQuestion(name="q", instructions="It is wet."),
        "choice": ChoiceQuestion(name="q", options=list("abc")),
        "score": ScoreQuestion(name="q", levels=["dry", "damp", "wet"]),
    }[kind]
    rng, forms = np.random.default_rng(1), question_forms(question, rotations=2)[:2]
    size, count = len(forms[0].order), 8
    means = np.array([0.7, 0.2, 0.1][:size]) * 0.9

    def answer():
        outcomes = []
        for form in forms:
            p = np.empty((count, size))
            p[:, list(form.order)] = means * np.exp(0.4 * rng.standard_normal((count, size)))
            with np.errstate(divide="ignore"):
                logprobs = np.log(p.mean(axis=0))
            outcomes.append(Outcome(logprobs, thoughts=(Thoughts(p, (Thought((), "", "end"),) * count),)))
        return answer_of(question, forms, outcomes), outcomes

    found = [answer() for _ in range(2000)]
    figures = [one.p[0] if kind != "score" else one.score for one, _ in found]
    assert np.mean([one.thoughts.error for one, _ in found]) == pytest.approx(np.std(figures), rel=0.1)

    def shares(outcomes):
        p = [np.exp(one.label_logprobs)[list(form.order)] for form, one in zip(forms, outcomes, strict=True)]
        return [own[0] / own.sum() for own in p]

    moved = [np.subtract(*shares(outcomes)) for _, outcomes in found]
    if kind == "predicate":  # the spread of two outcomes is that of the first
        assert np.mean([one.spread_error for one, _ in found]) == pytest.approx(np.std(moved), rel=0.1)
    assert all(one.thoughts.count == count for one, _ in found)
