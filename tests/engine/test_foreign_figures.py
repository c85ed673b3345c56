"""What another program says is checked: figures that are no log-probabilities, malformed answers, other weights."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from programs import Program, Served
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local import Judge, Metric, score_file
from geval_local.canary import Canary
from geval_local.engine.asked import Answers, AskedEngine, Question, checked_answers
from geval_local.errors import GevalError, JudgeError
from geval_local.signature import signature_differences

FIELDS = {"source": "Source", "output": "Output"}
BASE = {"criteria": "How well it ends.", "fields": FIELDS, "steps": ("Read.",)}
FIVE = Metric(name="five", scale="1-5", **BASE)
DIGITS = Metric(name="digits", scale="0-100", **BASE)
ROWS = [{"source": f"Tale {number // 2}.", "output": f"Ending {number}."} for number in range(6)]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr("geval_local.engine.served_client.PAUSES", (0.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    tokenizer = byte_tokenizer()
    return save_judge(tmp_path_factory.mktemp("judge") / "tiny", tiny_model("llama", len(tokenizer)), tokenizer)


@pytest.fixture
def served(directory):
    tokenizer = byte_tokenizer()
    return Served(Program(tiny_model("llama", len(tokenizer))), tokenizer, str(directory))


@pytest.fixture
def address(served):
    with served.running() as found:
        yield found


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def load(address, **options):
    return Judge.load(address, style="completion", **options)


def changed(change):
    """A lie: what is sent in place of every figure, given the figure and the figures next to it."""

    def garble(ids, found):
        (figures,) = found["top_logprobs"]
        return {"top_logprobs": [{name: change(value) for name, value in figures.items()}]}

    return garble


LIES = {
    "raw logits": (lambda value: value + 25, "no log-probabilities"),
    "absolute": (abs, "no log-probabilities"),
    "twice as likely": (lambda value: value + 0.8, "log-probabilities"),
    "half as likely": (lambda value: value - 0.8, "log-probabilities"),
    "temperature": (lambda value: value / 2, "log-probabilities"),
    "infinite": (lambda value: math.inf, "no log-probabilities"),
    "of 400 digits": (lambda value: 10**400, "no log-probabilities"),
    "no numbers": (lambda value: True, "cannot be read"),
    "not a number": (lambda value: math.nan, "not numbers"),
}


@pytest.mark.parametrize("lie", LIES)
def test_figures_of_another_kind_are_refused_at_the_start(address, served, lie):
    change, told = LIES[lie]
    served.garble = changed(change)
    with pytest.raises(JudgeError, match=told) as caught:
        load(address)
    assert caught.value.hint


def test_figures_that_change_with_how_is_drawn_are_refused(address, served):
    served.processed = True
    with pytest.raises(JudgeError, match=r"change by .* nats with the temperature and top-k") as caught:
        load(address)
    assert "raw_logprobs" in caught.value.hint


def test_a_server_that_cuts_by_top_k_is_refused(address, served):
    def cut(ids, found):
        (figures,) = found["top_logprobs"]
        best = sorted(figures, key=figures.get)[-3:]
        return {"top_logprobs": [{name: value if name in best else -math.inf for name, value in figures.items()}]}

    served.garble = cut
    with pytest.raises(JudgeError, match="only 3 of 8 likeliest tokens"):
        load(address)


@pytest.mark.parametrize("lie", ["raw logits", "absolute", "infinite", "of 400 digits", "no numbers"])
def test_a_lie_about_one_row_costs_that_row(address, served, lie):
    judge = load(address)
    tokenizer, change = byte_tokenizer(), changed(LIES[lie][0])
    served.garble = lambda ids, found: change(ids, found) if "Ending 3." in tokenizer.decode(ids) else found
    found = judge.score_many(FIVE, ROWS)
    assert [one.is_scored for one in found] == [True, True, True, False, True, True]
    assert LIES[lie][1] in found[3].error


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({1: -1.0, 2: -2.0}, None),
        ({1: -math.inf, 2: 0.0}, None),
        ({1: 4e-4, 2: -math.inf}, None),
        ({1: 0.01, 2: -5.0}, "above 0"),
        ({1: -0.3, 2: -0.7}, "sum up to 1.2"),
        ({1: True, 2: -1.0}, "is no number"),
        ({1: "-1", 2: -1.0}, "is no number"),
        ({1: -1.0}, "no figure for the token 2"),
        ({1: math.inf, 2: -1.0}, "above 0"),
    ],
)
def test_every_answer_is_checked(answer, told):
    (found,) = checked_answers([Question(np.array([5], np.int32), (1, 2))], [answer])
    assert found == answer if told is None else told in found


def test_children_that_are_asked_for_in_two_questions_are_summed_up(directory):
    """150 words at one position: each part sums up to less than 1."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [one + other for one in letters for other in letters][:150]
    tokenizer = byte_tokenizer(merges=[(one[0], one[1]) for one in words])
    metric = Metric(name="wide", scale={word: number for number, word in enumerate(words)}, **BASE)
    judge = Judge.load(directory, style="completion")
    from geval_local.io.samples import Sample
    from geval_local.tokens.encoder import PromptEncoder
    from geval_local.tokens.requests import RequestMaker

    (entry,) = RequestMaker(PromptEncoder(tokenizer, style="completion"), metric, 4096).prepare([Sample(ROWS[0])])
    assert judge.name

    def ask(questions):
        return Answers([dict.fromkeys(one.tokens, math.log(0.9 / len(one.tokens))) for one in questions], 0)

    engine = AskedEngine("lie", ask, batch_tokens=4096)
    ((_, (readout,)),) = engine.execute([entry.request], engine.plan([entry.request]))
    assert readout.label_logprobs is None
    assert "sum up to 1.8" in readout.error


# --- what was read ----------------------------------------------------------------------------------------------------


def one_row_of(served, change):
    """Let a fault be planted in the answers about row 3."""
    tokenizer, answer = byte_tokenizer(), served.answer

    def answered(path, body):
        status, found = answer(path, body)
        if path == "/v1/completions" and any("Ending 3." in tokenizer.decode(ids) for ids in body["prompt"]):
            found = change(found)
        return status, found

    served.answer = answered


def with_choice(**more):
    return lambda found: found | {"choices": [one | more for one in found["choices"]]}


FAULTS = {
    "a shortened prompt": (lambda found: found | {"usage": {"prompt_tokens": 7}}, "read 7 tokens of a prompt of"),
    "another model": (lambda found: found | {"model": "other"}, "of the model 'other'"),
    "an index twice": (with_choice(index=1), "have the numbers [1]"),
    "no index": (with_choice(index=None), "cannot be read"),
    "an index of text": (with_choice(index="a"), "cannot be read"),
    "no choices": (lambda found: found | {"choices": None}, "cannot be read"),
    "an object of choices": (lambda found: found | {"choices": {}}, "cannot be read"),
    "texts as choices": (lambda found: found | {"choices": ["a", "b"]}, "cannot be read"),
    "a list": (lambda found: [found], "cannot be read"),
    "a number": (lambda found: 7, "cannot be read"),
    "a name without a token": (with_choice(logprobs={"top_logprobs": [{"x": -1.0}]}), "cannot be read"),
    "too many figures": (with_choice(logprobs={"top_logprobs": [{}, {}]}), "one next token"),
    "brackets": (lambda found: nested(100_000), "cannot be read"),
}


class nested:
    def __init__(self, depth):
        self.text = "[" * depth


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_is_none_costs_its_row(address, served, fault):
    judge = load(address)
    change, told = FAULTS[fault]
    one_row_of(served, change)
    found = judge.score_many(FIVE, ROWS)
    assert [one.is_scored for one in found] == [True, True, True, False, True, True]
    assert told in found[3].error


# --- the weights behind the address -----------------------------------------------------------------------------------


def other_program(scale=1e-2):
    """The same model, trained on for a bit."""
    import torch

    model = tiny_model("llama", len(byte_tokenizer()))
    random = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data += scale * torch.randn(weight.shape, generator=random).to(weight) * weight.data.std()
    return Program(model)


def test_other_weights_under_the_same_name_have_another_signature_and_their_own_cache(address, served, file, tmp_path):
    first = load(address)
    score_file(file, FIVE, first, tmp_path / "first")
    assert str(load(address).signature(FIVE)) == str(first.signature(FIVE))
    served.program = other_program(0.5)
    second = load(address)
    assert set(signature_differences(str(first.signature(FIVE)), str(second.signature(FIVE)))) == {"canary"}
    score_file(file, FIVE, second, tmp_path / "second")
    rows = [json.loads(line) for one in (tmp_path / "second").glob("*.jsonl") for line in one.read_text().splitlines()]
    plain = [one.value for one in second.score_many(FIVE, ROWS)]
    assert [row["geval"]["five"]["score"] for row in rows] == pytest.approx(plain, abs=1e-9)


def test_weights_that_change_in_a_run_end_it_before_anything_of_them_is_stored(address, served, file, tmp_path):
    judge = load(address, batch_tokens=1)
    asked = []

    def swap(ids):
        asked.append(ids)
        if len(asked) == 30:
            served.program = other_program(0.5)
            served.program.refuse = swap

    served.program.refuse = swap
    with pytest.raises(JudgeError, match=r"the model behind http://127.* changed while it was asked"):
        score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
    with pytest.raises(GevalError, match="canary was"):
        score_file(file, FIVE, load(address), tmp_path / "run", use_cache=False)


def test_a_canary_is_read_as_it_is_written_and_allows_rounding():
    one = Canary.measured((-1.25, -7.5, -math.inf), (-1.25, -7.502, -math.inf))
    again = Canary.parse(one.text)
    assert again.text == one.text
    assert again.figures[:2] == pytest.approx((-1.25, -7.5), abs=6e-4)
    assert one.agrees(again)
    assert one.agrees(Canary((-1.26, -7.49, -90.0), 0.0))
    assert not one.agrees(Canary((-1.3, -7.5, -math.inf), 0.0))
    assert not one.agrees(Canary((-1.25, -7.5), 0.0))


def test_what_one_model_differs_by_when_it_is_asked_in_two_ways_is_allowed():
    one = Canary.measured((-1.0, -2.0), (-1.1, -2.1))
    assert one.agrees(Canary((-1.3, -2.3), 0.0))
    assert not one.agrees(Canary((-1.5, -2.5), 0.0))
