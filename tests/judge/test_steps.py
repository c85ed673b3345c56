"""Evaluation steps: parsed from models' texts, written once, pinned, and never mixed up."""

from __future__ import annotations

import hashlib
from datetime import datetime

import pytest
import torch
from tiny import byte_tokenizer, shared_tokenizer, tiny_model
from transformers.modeling_outputs import CausalLMOutputWithPast

from geval_local.errors import JudgeError, MetricError
from geval_local.judge.steps import parse_steps, pinned_path, pinned_steps, write_steps
from geval_local.metric import Metric
from geval_local.metric_file import FRAME
from geval_local.models.generate import generate_list, repetition_start, without_repetition
from geval_local.prompt import Prompt
from geval_local.tokens.encoder import PromptEncoder

WRITTEN = " Read the text.\n2. Compare it with the source.\n3. Assign a score."
STEPS = ("Read the text.", "Compare it with the source.", "Assign a score.")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class FakeJudge:
    """Writer that returns a given text and records its prompts."""

    def __init__(self, text: str = WRITTEN, *, fingerprint: str = "f" * 16, is_chat: bool = False) -> None:
        self.name = "fake"
        self.fingerprint = fingerprint
        self.is_chat = is_chat
        self.generation = "greedy"
        self.writes_steps = True
        self.text = text
        self.prompts: list[Prompt] = []

    def continue_text(self, prompt: Prompt, *, max_new_tokens: int, on_token) -> str:
        assert max_new_tokens >= 200
        for count in (1, 2):
            on_token(count)
        self.prompts.append(prompt)
        return self.text


def a_metric(**settings) -> Metric:
    return Metric(**({"name": "x/tone", "criteria": "Is it friendly?", "scale": "1-5"} | settings))


# --- reading a list ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("1. Read.\n2. Rate.", ("Read.", "Rate.")),
        ("1) Read.\n2) Rate.", ("Read.", "Rate.")),
        ("\n\n1. Read.\n\n2. Rate.\n\n", ("Read.", "Rate.")),
        ("1. Read the text\nand the source.\n2. Rate.", ("Read the text and the source.", "Rate.")),
        ("1. Read:\n   - the text\n   - the source\n2. Rate.", ("Read: - the text - the source", "Rate.")),
        ("1. Read.\n\n   Twice, if need be.\n\n2. Rate.", ("Read. Twice, if need be.", "Rate.")),
        ("**1.** Read.\n**2.** Rate.", ("Read.", "Rate.")),
        ("**1**. Read.\n**2**. Rate.", ("Read.", "Rate.")),
        ("**1. Read** the text.\n**2. Rate** it.", ("**Read** the text.", "**Rate** it.")),
        ("1. **Read** the text.\n2. Rate *it*", ("**Read** the text.", "Rate *it*")),
        ("  1. Read.\n  2. Rate.", ("Read.", "Rate.")),
        ("1. Read.\n2. Rate.\n\nNow rate the text.", ("Read.", "Rate.")),
        ("1. Read.\n2. Rate.\n\nExample:\n\n1. A\n3. B", ("Read.", "Rate.")),
        ("1. Read.\n2. Rate.\n1. Read.\n2. Rate.", ("Read.", "Rate.")),
        ("1. Read.\n2. Rate.\n\n1. Read.", ("Read.", "Rate.")),
        ("1. Read.\n2. Rate.\n4. Skipped.\n3. Late.", ("Read.", "Rate.")),
        ("1. Rate from 1.5 to 2. Twice.\n2. Stop.", ("Rate from 1.5 to 2. Twice.", "Stop.")),
        ("1. One\r\n2. Two\r\n", ("One", "Two")),
        ("\n".join(f"{n}. Step {n}" for n in range(1, 13)), tuple(f"Step {n}" for n in range(1, 13))),
        ("1. Only one.", ("Only one.",)),
        ("Read. Then rate.", ()),
        ("- Read.\n- Rate.", ()),
        ("2. Read.\n3. Rate.", ()),
        ("1.\n2.", ()),
        ("", ()),
    ],
)
def test_parse_steps(text, steps):
    assert parse_steps(text) == steps


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        WRITTEN,
        WRITTEN.lstrip(),  # some tokenizers lose the space when they decode
        "1." + WRITTEN,
        "\n**1.**" + WRITTEN,
        WRITTEN + "\n\nNow you will be given a text.",
        " Here are the steps:\n\n1." + WRITTEN,
        WRITTEN + "\n\n1. Something else.\n2. Entirely.\n3. Different.\n4. At last.",
    ],
)
def test_steps_are_found_in_what_the_judge_writes(written):
    metric = write_steps(FakeJudge(written), a_metric())
    assert metric.steps == STEPS
    assert not metric.needs_steps


@pytest.mark.parametrize("written", ["", "\n", " I cannot do that.", " Read the text.\n\nRate it.", "Score: 5"])
def test_what_is_no_list_is_an_error_with_its_beginning(written):
    with pytest.raises(
        JudgeError, match=r"the judge fake wrote no two different evaluation steps for x/tone"
    ) as caught:
        write_steps(FakeJudge(written), a_metric())
    assert repr(written.strip()[:200]) in caught.value.message
    assert "`steps:`" in caught.value.hint


SENTENCE = "Read the summary and compare it with the source text."


@pytest.mark.parametrize(
    "written",
    [
        "\n".join([f" {SENTENCE}", *(f"{n}. {SENTENCE}" for n in range(2, 12))]),
        f" {SENTENCE}\n2. **read** the summary, and compare it with the source text",
    ],
)
def test_one_step_many_times_is_no_list(written):
    with pytest.raises(JudgeError, match="wrote no two different evaluation steps for x/tone") as caught:
        write_steps(FakeJudge(written), a_metric())
    assert "Write `steps:`" in caught.value.hint


def test_a_list_ends_before_its_first_repetition():
    written = f"{WRITTEN}\n4. Compare it with the source!\n5. Something else."
    assert write_steps(FakeJudge(written), a_metric()).steps == STEPS


@pytest.mark.parametrize("is_chat", [True, False])
def test_only_a_chat_judge_is_asked_in_words(is_chat):
    judge = FakeJudge(is_chat=is_chat)
    write_steps(judge, a_metric())
    prompt = judge.prompts[0]
    assert (FRAME["write_steps"] in prompt.text) is is_chat
    assert "Is it friendly?" in prompt.body
    assert prompt.text.endswith("Evaluation Steps:\n\n1.")


@pytest.mark.parametrize(
    ("written", "steps"),
    [
        (" read the text.\n2. rate it.", ("Read the text.", "Rate it.")),
        (" read the text.\n2. Rate it.", ("read the text.", "Rate it.")),
    ],
)
def test_a_judge_without_upper_case_gets_capitals_and_any_other_is_left_alone(written, steps):
    assert write_steps(FakeJudge(written), a_metric()).steps == steps


def test_the_provenance_says_who_when_and_for_which_prompt():
    judge = FakeJudge()
    provenance = write_steps(judge, a_metric()).steps_provenance
    assert (provenance.judge, provenance.fingerprint) == ("fake", "f" * 16)
    assert provenance.prompt_sha256 == hashlib.sha256(judge.prompts[0].text.encode()).hexdigest()
    assert datetime.fromisoformat(provenance.created).utcoffset().total_seconds() == 0


def test_whoever_asks_is_told_how_far_the_writing_is():
    told = []
    write_steps(FakeJudge(), a_metric(), on_steps=lambda metric, tokens: told.append((metric.name, tokens)))
    assert told == [("x/tone", 0), ("x/tone", 1), ("x/tone", 2)]


def test_old_steps_are_replaced_and_not_shown_to_the_judge():
    judge = FakeJudge()
    assert write_steps(judge, a_metric(steps=("An old step.",))).steps == STEPS
    assert "An old step" not in judge.prompts[0].text


# --- pinning ----------------------------------------------------------------------------------------------------------


def test_steps_are_written_once_and_reused(home):
    judge = FakeJudge()
    first, path = pinned_steps(judge, a_metric())
    assert path.is_relative_to(home)
    judge.text = " Something else.\n2. Entirely."
    second, again = pinned_steps(judge, a_metric())
    assert again is None
    assert len(judge.prompts) == 1
    assert first == second == Metric.load(path)
    assert second.steps == STEPS


def test_nothing_is_left_beside_the_pinned_file(home):
    _, path = pinned_steps(FakeJudge(), a_metric())
    assert [file for file in home.rglob("*") if file.is_file()] == [path]


def test_a_failed_write_costs_the_pin_and_not_the_steps(home, monkeypatch, caplog):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("geval_local.files.os.fsync", full)
        metric, written = pinned_steps(FakeJudge(), a_metric())
    assert (metric.steps, written) == (STEPS, None)
    assert "x/tone are not pinned" in caplog.text
    assert not [path for path in home.rglob("*") if path.is_file()]
    assert pinned_steps(FakeJudge(), a_metric())[0].steps == STEPS


def test_another_judge_or_metric_has_its_own_file():
    metrics = [a_metric(), a_metric(criteria="Is it kind?"), a_metric(name="x.tone"), a_metric(scale="1-3")]
    judges = [FakeJudge(fingerprint="a" * 16), FakeJudge(fingerprint="b" * 16)]
    paths = {pinned_steps(judge, metric)[1] for metric in metrics for judge in judges}
    assert None not in paths
    assert len(paths) == 8


def test_metrics_that_need_no_steps_are_returned_as_they_are(home):
    judge = FakeJudge("nothing")
    for metric in (a_metric(steps=()), a_metric(steps=("One.", "Two.")), a_metric(template="{{output}}\nScore:")):
        assert pinned_steps(judge, metric) == (metric, None)
    assert not home.exists()
    assert not judge.prompts


def test_a_judge_that_cannot_write_steps_is_asked_once(home, caplog):
    judge = FakeJudge("I cannot.")
    complete, path = pinned_steps(judge, a_metric())
    assert complete.steps == ()
    assert "scored without evaluation steps: the judge" in caplog.text
    assert "wrote no two different evaluation steps for x/tone" in caplog.text
    assert pinned_steps(judge, a_metric(name="x/other"))[0].steps == ()
    assert "it could not write those of x/tone" in caplog.text
    assert len(judge.prompts) == 1
    assert pinned_steps(FakeJudge("I cannot."), a_metric())[0].steps == ()  # pinned, and not asked for again
    assert pinned_steps(FakeJudge(fingerprint="a" * 16), a_metric())[0].steps == STEPS  # another judge is
    assert Metric.load(path).steps == ()


def test_a_judge_that_is_known_not_to_write_is_not_asked(home, caplog):
    judge = FakeJudge()
    judge.writes_steps = False
    assert pinned_steps(judge, a_metric())[0].steps == ()
    assert not judge.prompts
    assert "is known not to write" in caplog.text


def test_new_steps_are_shown(home, caplog):
    caplog.set_level("INFO", logger="geval_local")
    pinned_steps(FakeJudge(), a_metric())
    for number, step in enumerate(STEPS, start=1):
        assert f"{number}. {step}" in caplog.text


def test_pinned_steps_may_be_edited_by_hand():
    _, path = pinned_steps(FakeJudge(), a_metric())
    path.write_text(path.read_text().replace("Assign a score.", "Assign a score from 1 to 5."))
    metric, _ = pinned_steps(FakeJudge(), a_metric())
    assert metric.steps[-1] == "Assign a score from 1 to 5."


def test_the_threshold_of_the_metric_at_hand_counts_not_the_pinned_one():
    pinned_steps(FakeJudge(), a_metric(threshold=2))
    metric, written = pinned_steps(FakeJudge(), a_metric(threshold=4))
    assert written is None
    assert metric.threshold == 4


def test_a_foreign_file_is_not_used():
    _, path = pinned_steps(FakeJudge(), a_metric())
    path.write_text(path.read_text().replace("Is it friendly?", "Is it long?"))
    with pytest.raises(MetricError, match="belong to another version of x/tone") as caught:
        pinned_steps(FakeJudge(), a_metric())
    assert str(path) in caught.value.message


@pytest.mark.parametrize("content", ["steps: [", "name: x/tone\n", "{}"])
def test_a_damaged_file_is_named(content):
    path = pinned_path(a_metric(), "f" * 16)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(MetricError, match=r"steps.x\.tone"):
        pinned_steps(FakeJudge(), a_metric())


# --- repetition -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f" {SENTENCE}\n2. {SENTENCE}\n3. {SENTENCE}", f" {SENTENCE}"),
        (f" {SENTENCE}\n2. Rate it.\n3. {SENTENCE.upper()}", f" {SENTENCE}\n2. Rate it."),
        (f" Rate it. {SENTENCE} {SENTENCE}", f" Rate it. {SENTENCE}"),
        (
            f" One step without an end\n2. {SENTENCE}\n3. One step without an end\n",
            f" One step without an end\n2. {SENTENCE}",
        ),
        (" Compare it and the summary and the summary and the summary", " Compare it and the summary"),
    ],
)
def test_a_text_is_cut_where_it_begins_to_repeat_itself(text, kept):
    assert without_repetition(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        WRITTEN,
        f"{WRITTEN}\n4. Compare it with the",  # not finished: it may yet become something else
        " Read it.\n2. Be strict.\n3. Read it again.\n4. Be strict.",
        " If 1, say 1.\n2. If 2, say 2.\n3. If 3, say 3.",
        "",
    ],
)
def test_what_is_new_is_left_alone(text):
    assert repetition_start(text) is None
    assert without_repetition(text) == text


# --- generation -------------------------------------------------------------------------------------------------------


def scripted(text: str, tokenizer):
    """Make a model that writes one text and an end token after it, for any prompt."""
    model = tiny_model("llama", len(tokenizer), dtype=torch.float32)
    tokens = iter([*tokenizer(text, add_special_tokens=False).input_ids, *[tokenizer.eos_token_id] * 3])

    def forward(input_ids=None, attention_mask=None, past_key_values=None, **_):
        logits = torch.zeros((*input_ids.shape, len(tokenizer)))
        logits[:, -1, next(tokens)] = 50.0
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)

    model.forward = forward
    return model


def generate(text: str, limit: int = 500) -> str:
    tokenizer = byte_tokenizer()
    ids = PromptEncoder(tokenizer).encode([Prompt("Steps:\n\n", "1.")])[0]
    return generate_list(scripted(text, tokenizer), tokenizer, ids, max_new_tokens=limit)


@pytest.mark.parametrize(
    "text", [WRITTEN, " Read.\n\n2. Rate.\n\n3. Stop.", "\n\n1. Read.\n\n**2.** Rate.", " A.\n\n   B."]
)
def test_a_list_is_generated_to_its_end(text):
    assert generate(text) == text


def test_generation_stops_when_the_text_goes_on_with_something_else():
    written = generate(" Read.\n2. Rate.\n\nNow the text follows, and follows, and follows.")
    assert written == " Read.\n2. Rate.\n\nN"


def test_every_token_is_told_and_what_is_told_may_end_the_writing():
    tokenizer = byte_tokenizer()
    ids = PromptEncoder(tokenizer).encode([Prompt("Steps:\n\n", "1.")])[0]
    told = []

    def tell(count):
        told.append(count)
        if count == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_list(scripted(WRITTEN, tokenizer), tokenizer, ids, max_new_tokens=500, on_token=tell)
    assert told == list(range(1, 8))


def test_generation_stops_behind_two_blank_lines():
    assert generate(" Read.\n2. Rate.\n\n\n3. Rate.") == " Read.\n2. Rate.\n\n\n"


def test_generation_stops_at_its_limit_with_its_last_whole_line():
    assert generate(" Read the text.", limit=5) == " Read"
    assert generate(" Read.\n2. Rate it.\n3. Stop.", limit=20) == " Read.\n2. Rate it."
    whole = " Read.\n2. Rate."
    assert generate(whole, limit=len(whole) + 1) == whole  # the end token is the last that fits


def log_probability(model, start, tokens):
    with torch.no_grad():
        logprobs = model(torch.tensor([[*start, *tokens]])).logits[0].log_softmax(-1)
    return sum(float(logprobs[len(start) - 1 + place, token]) for place, token in enumerate(tokens))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mamba"])
def test_generation_finds_what_is_likely_and_the_same_every_time(kind):
    tokenizer = byte_tokenizer()
    model = tiny_model(kind, len(tokenizer), seed=3)
    model.generation_config.eos_token_id = None
    start = PromptEncoder(tokenizer).encode([Prompt("Rate it.\n", "1.")])[0]
    greedy = start.tolist()
    for _ in range(12):
        with torch.no_grad():
            greedy.append(int(model(torch.tensor([greedy])).logits[0, -1].argmax()))
    greedy = greedy[len(start) :]
    captured = []
    generate = model.generate
    model.generate = lambda *given, **named: captured.append(generate(*given, **named)) or captured[-1]
    texts = {generate_list(model, tokenizer, start, max_new_tokens=12) for _ in range(2)}
    assert len(texts) == 1
    tokens = captured[0][0, len(start) :].tolist()
    assert len(tokens) == 12
    difference = log_probability(model, start.tolist(), tokens) - log_probability(model, start.tolist(), greedy)
    assert difference > 0.01 if kind != "mamba" else tokens == greedy


def test_a_tokenizer_that_loses_the_first_space_still_gives_steps():
    tokenizer = shared_tokenizer("mistral")
    ids = tokenizer("1." + WRITTEN, add_special_tokens=False).input_ids
    start = tokenizer("1.", add_special_tokens=False).input_ids
    assert ids[: len(start)] == start
    written = tokenizer.decode(ids[len(start) :])
    assert write_steps(FakeJudge(written), a_metric()).steps == STEPS


def test_writing_stops_as_soon_as_it_repeats_itself():
    told = []
    step = "\n2. Compare it with the source."
    text = f" Read the whole text.{step}{step.replace('2', '3')}"
    tokenizer = byte_tokenizer()
    ids = PromptEncoder(tokenizer).encode([Prompt("Steps:\n\n", "1.")])[0]
    model = scripted(text + " And so on." * 9, tokenizer)
    assert (
        generate_list(model, tokenizer, ids, max_new_tokens=400, beams=1, on_token=told.append)
        == " Read the whole text." + step
    )
    assert told[-1] == len(text)


def test_a_first_line_without_end_is_given_up():
    told = []
    tokenizer = byte_tokenizer()
    ids = PromptEncoder(tokenizer).encode([Prompt("Steps:\n\n", "1.")])[0]
    text = " ".join(f"word{number}" for number in range(90))
    generate_list(scripted(text, tokenizer), tokenizer, ids, max_new_tokens=500, beams=1, on_token=told.append)
    assert told[-1] < 200
