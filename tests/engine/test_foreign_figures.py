"""What another program says is checked: figures that are no log-probabilities, malformed answers, other weights."""

from __future__ import annotations

import json
import math
import re
import shutil
import threading
from itertools import count

import numpy as np
import pytest
from cli_run import run
from programs import Program, Served
from served_kit import BASE, FIVE, ROWS
from tiny import byte_tokenizer, tiny_model

from geval_local import Judge, Metric, score_file
from geval_local.canary import Canary
from geval_local.cli.progress import Progress
from geval_local.engine.asked import Answers, AskedEngine, Question, checked_answers
from geval_local.engine.served_client import KEY_VARIABLE, check_address, is_private
from geval_local.errors import ConfigurationError, GevalError, JudgeError
from geval_local.io.samples import Sample
from geval_local.judge.reason_writer import reason_batches
from geval_local.models.progress import watch_work
from geval_local.options import JudgeOptions
from geval_local.prompt import render_steps_prompt
from geval_local.signature import signature_differences
from geval_local.wording import without_secrets

pytestmark = pytest.mark.usefixtures("quick_client")


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def read_lines(run):
    return [json.loads(line) for line in (run / "scores.jsonl").read_text().splitlines()]


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
    "of 400 digits": (lambda value: 10**400, "no log-probabilities|cannot be read"),  # pydantic 2.11 takes none
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
    assert re.search(LIES[lie][1], found[3].error)


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


def test_a_dry_run_takes_the_files_that_the_server_names(address, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = run("score", file, "-m", metric_file(tmp_path), "-j", address, "--dry-run", home=tmp_path / "home")
    assert told.exit_code == 0, told.stderr
    assert "judge served:tiny" in told.stdout


def metric_file(directory):
    (directory / "five.yaml").write_text(json.dumps({"name": "five", "scale": "1-5", **BASE, "steps": ["Read."]}))
    return directory / "five.yaml"


def test_studies_compare_a_served_judge_with_another(address, directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rated = tmp_path / "rated.jsonl"
    rows = [{"source": f"Tale {n}.", "output": f"Ending {n}.", "rating": n % 5 + 1} for n in range(12)]
    rated.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["meta-eval", rated, "--human", "rating", "-m", metric_file(tmp_path), "-j", address, "-j", directory]
    told = run(*asked, "--group-by", "row", "-o", tmp_path / "study", home=tmp_path / "home")
    assert told.exit_code == 0, told.stderr
    assert "tiny" in told.stdout


def test_other_weights_under_the_same_name_have_another_signature_and_their_own_cache(address, served, file, tmp_path):
    first = load(address)
    score_file(file, FIVE, first, tmp_path / "first")
    assert str(load(address).signature(FIVE)) == str(first.signature(FIVE))
    served.program = other_program(0.5)
    second = load(address)
    assert set(signature_differences(str(first.signature(FIVE)), str(second.signature(FIVE)))) == {"canary"}
    score_file(file, FIVE, second, tmp_path / "second")
    rows = read_lines(tmp_path / "second")
    plain = [one.value for one in second.score_many(FIVE, ROWS)]
    assert [row["geval"]["five"]["score"] for row in rows] == pytest.approx(plain, abs=1e-9)


def test_weights_that_change_in_a_run_end_it_before_anything_of_them_is_stored(address, served, file, tmp_path):
    judge = load(address, batch_tokens=1)
    places = count(1)  # several threads ask: no two of them take the same

    def swap(_):
        if next(places) == 30:
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


# --- how it draws, and what it refuses --------------------------------------------------------------------------------

#: What a vLLM server fills in from the model's files where a request leaves it out.
SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def bodies(served):
    return [body for path, body in served.requests if path == "/v1/completions"]


def test_every_request_says_how_is_drawn(address, served, directory, tmp_path):
    root = tmp_path / "own"
    shutil.copytree(directory, root)
    own = {"top_k": 20, "min_p": 0.05, "temperature": 1.0000049, "top_p": 0.95, "repetition_penalty": 1.8}
    (root / "generation_config.json").write_text(json.dumps(own))
    served.root = str(root)
    judge = load(address, think=2, think_tokens=5)
    judge.score_many(FIVE, ROWS[:2])
    judge.continue_text(render_steps_prompt(FIVE), max_new_tokens=20)
    judge.backend.write_paragraphs([np.array([5, 6], np.int32)], max_new_tokens=5, on_token=lambda count: None)

    assert all(name in body for body in bodies(served) for name in SETTINGS)
    assert {body["repetition_penalty"] for body in bodies(served)} == {1.0}
    drawn = [body for body in bodies(served) if "seed" in body]
    assert [[body[name] for name in SETTINGS[:4]] for body in drawn] == [[1.0000049, 0.95, 20, 0.05]] * 4
    greedy = [body for body in bodies(served) if body["max_tokens"] > 1 and "seed" not in body]
    assert greedy
    assert [[body[name] for name in SETTINGS[:4]] for body in greedy] == [[0.0, 1.0, 0, 0.0]] * len(greedy)
    assert "t=1.0000049,p=0.95,top_k=20,min_p=0.05," in str(judge.signature(FIVE))
    assert "top_k=20" in judge.thinker.drawing


def test_what_is_not_obeyed_is_named_once(address, served, directory, tmp_path, caplog):
    root = tmp_path / "own"
    shutil.copytree(directory, root)
    (root / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.8, "typical_p": 0.9}))
    served.root = str(root)
    load(address, think=1, think_tokens=5).score_many(FIVE, ROWS[:2])
    told = [one.getMessage() for one in caplog.records if "do not obey" in one.getMessage()]
    assert len(told) == 1
    assert "repetition_penalty, typical_p" in told[0]


def test_the_mark_is_sent_and_one_before_the_first_word_ends_nothing(address, served):
    """The server stops at an empty line: at the start of a text it goes on, with another seed."""
    tokenizer = byte_tokenizer()
    written = iter(["\n\n", "A word.\n\n"])
    plain = served.program.greedy

    def greedy(ids, count, ends=()):
        return plain(ids, count) if count == 1 else tokenizer.encode(next(written), add_special_tokens=False)

    served.program.greedy = greedy
    judge = load(address, think=1, think_tokens=40)
    (score,) = judge.score_many(FIVE, ROWS[:1])
    drawn = [body for body in bodies(served) if "seed" in body]
    assert [body["stop"] for body in drawn] == [["\n\n"], ["\n\n"]]
    assert drawn[0]["seed"] != drawn[1]["seed"]
    assert drawn[1]["max_tokens"] == 40 - len(tokenizer.encode("\n\n", add_special_tokens=False))
    assert score.thoughts.texts == ("\n\nA word.",)


def test_a_thought_that_the_server_cuts_costs_its_row(address, served):
    plain = served.program.greedy
    judge = load(address, think=2, think_tokens=40)
    tokenizer = byte_tokenizer()

    def cut(ids, count, ends=()):
        return plain(ids, min(count, 5 if "Ending 1." in tokenizer.decode(ids) else count), ends)

    served.program.greedy = cut
    found = judge.score_many(FIVE, ROWS[:3])
    assert [one.is_scored for one in found] == [True, False, True]
    assert "the server ended a thought at 5 of 40 tokens" in found[1].error


@pytest.mark.parametrize("think", [{}, {"think": 2, "think_tokens": 5}])
def test_a_refused_row_never_ends_a_run(address, served, file, tmp_path, think):
    judge = load(address, **think)
    tokenizer = byte_tokenizer()
    served.program.refuse = lambda ids: "too long: context length" if "Ending 3." in tokenizer.decode(ids) else None
    score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
    errors = [row["geval"]["five"].get("error") for row in read_lines(tmp_path / "run")]
    assert [one is None for one in errors] == [True, True, True, False, True, True]
    assert "refuses the prompt: 400: too long" in errors[3]
    again = score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
    assert again.summaries[0].scored == 5


def test_a_reason_that_the_server_refuses_costs_its_row(address, served):
    tokenizer = byte_tokenizer()
    judge = load(address)
    served.program.refuse = lambda ids: "no" if "Ending 3." in tokenizer.decode(ids) else None
    samples = [Sample(row) for row in ROWS]
    reasons = {
        place: one
        for batch in reason_batches(judge, FIVE, samples, ["3"] * 6, max_new_tokens=8)
        for place, one in batch
    }
    assert [place for place, one in reasons.items() if "refuses the prompt" in (one.error or "")] == [3]


def test_thoughts_fill_the_server_and_those_that_are_drawn_survive_a_kill(address, served, file, tmp_path):
    judge = load(address, think=8, think_tokens=3)
    answer, waiting, lock = served.answer, [], threading.Lock()
    all_wait, checked = threading.Event(), threading.Event()

    def answered(path, body):
        if "seed" not in body:  # the canary, after the first thoughts
            checked.set()
            return answer(path, body)
        with lock:
            waiting.append(body)
            place = len(waiting)
        if place == 48:
            all_wait.set()
        assert all_wait.wait(300)
        if place <= 16:
            return answer(path, body)
        assert checked.wait(300)
        return 503, {"error": {"message": "killed"}}

    served.answer = answered
    with pytest.raises(GevalError, match="does not answer"):
        score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
    served.answer = answer
    served.requests.clear()
    score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
    # Threads of the first run may still have asked for the same ones.
    assert len({body["seed"] for body in bodies(served) if "seed" in body}) == 48 - 16


def test_thoughts_that_are_drawn_are_counted(address):
    judge, told = load(address, think=8, think_tokens=3), []
    shown = Progress()
    shown.begin("scoring x", 6, unit="rows")

    def draw(done, total):
        told.append((done, total))
        shown.draw(done, total)
        assert (f", {done} of 48 thoughts, " in shown.line()) == (done < 48)

    with watch_work(lambda done, total: None, draw):
        judge.score_many(FIVE, ROWS)
    assert told == [(16, 48), (32, 48), (48, 48)]


def test_an_adapter_reads_what_its_parent_reads(served):
    listed = [
        {"id": "tiny", "root": served.root, "max_model_len": 512},
        {"id": "tuned", "root": served.root, "parent": "tiny", "max_model_len": None},
    ]
    answer = served.answer
    served.answer = lambda path, body: (200, {"data": listed}) if path == "/v1/models" else answer(path, body)
    with served.running() as address:
        judge = load(address, served_model="tuned")
        assert judge.context == 511
        short = judge.score_many(FIVE.model_copy(update={"shorten": "source"}), [ROWS[0] | {"source": "Tale. " * 500}])
    assert short[0].is_scored
    assert max(len(ids) for body in bodies(served) for ids in body["prompt"]) == 511


# --- malformed answers at the start, and addresses --------------------------------------------------------------------

STARTS = {
    "max_model_len many": ("/v1/models", {"data": [{"id": "tiny", "max_model_len": "many"}]}),
    "max_model_len -5": ("/v1/models", {"data": [{"id": "tiny", "max_model_len": -5}]}),
    "no list": ("/v1/models", {"data": 7}),
    "brackets": ("/v1/models", nested(100_000)),
    "tokens of text": ("/tokenize", {"tokens": ["a"]}),
    "no tokens": ("/tokenize", {}),
    "a list": ("/v1/completions", [1]),
    "nothing": ("/v1/completions", None),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_start_that_cannot_be_read_is_one_sentence(served, start):
    path, found = STARTS[start]
    answer = served.answer
    served.answer = lambda asked, body: (200, found) if asked == path else answer(asked, body)
    with served.running() as address, pytest.raises(JudgeError, match=r"cannot be read|lists no models") as caught:
        load(address)
    assert caught.value.hint


def test_a_version_that_cannot_be_read_is_unknown(served):
    answer = served.answer
    served.answer = lambda path, body: (200, nested(100_000)) if path == "/version" else answer(path, body)
    with served.running() as address:
        assert "unknown" in str(load(address).signature(FIVE))


def test_an_error_that_cannot_be_read_is_one_sentence(address, served):
    judge = load(address)
    served.answer = lambda path, body: (400, nested(100_000))
    with pytest.raises(JudgeError, match="400"):
        judge.score(FIVE, **ROWS[0])


def test_an_answer_has_a_bound(address, served, monkeypatch):
    monkeypatch.setattr("geval_local.engine.served_client.MOST_BYTES", 1 << 20)
    judge = load(address)
    tokenizer = byte_tokenizer()
    served.garble = lambda ids, found: found | {"more": "x" * (2 << 20) if "Ending 3." in tokenizer.decode(ids) else ""}
    found = judge.score_many(FIVE, ROWS)
    assert [one.is_scored for one in found] == [True, True, True, False, True, True]
    assert "longer than 1 MB" in found[3].error


@pytest.mark.parametrize(
    "name",
    [
        "http://127.0.0.1:99999/v1",
        "http://127.0.0.1:abc/v1",
        "http://127.0.0.1 :8000/v1",
        "http://127.0.0.1\x1b[2J/v1",
        "http:///v1",
        "http://[::1/v1",
        f"http://{'a' * 300}/v1",
        "http://a..b/v1",
    ],
)
def test_what_is_no_address_is_one_sentence(name):
    with pytest.raises(ConfigurationError):
        check_address(JudgeOptions(name=name))


@pytest.mark.parametrize("address", ["198.51.100.7", "203.0.113.9", "192.0.2.1", "198.18.0.1", "240.0.0.1", "8.8.8.8"])
def test_networks_for_tests_and_documents_are_nobodys(address):
    assert not is_private(address)
    with pytest.raises(ConfigurationError, match="neither this machine nor in a private network"):
        check_address(JudgeOptions(name=f"http://{address}/v1"))


@pytest.mark.parametrize("address", ["10.1.2.3", "172.31.0.1", "192.168.0.7", "127.0.0.2", "::1", "fd00::1", "fe80::1"])
def test_networks_of_a_site_are_private(address):
    assert is_private(address)
    assert ":" in address or is_private(f"::ffff:{address}")


@pytest.mark.parametrize(
    "name", ["http://user:PASSWORD@127.0.0.1/v1", "http://127.0.0.1/v1?api_key=PASSWORD", "http://PASSWORD@10.0.0.1/v1"]
)
def test_an_address_with_secrets_is_refused_without_them(name):
    with pytest.raises(ConfigurationError, match="VLLM_API_KEY") as caught:
        JudgeOptions(name=name)
    assert "PASSWORD" not in str(caught.value)


def test_a_key_that_is_none_is_not_printed(address, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "SECRET\nof two lines")
    with pytest.raises(ConfigurationError, match="no key has") as caught:
        load(address)
    assert "SECRET" not in str(caught.value)
    monkeypatch.setenv(KEY_VARIABLE, "SECRET\n")
    assert load(address).score(FIVE, **ROWS[0]).is_scored


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:SE/C+RET@bucket/d.jsonl?region=R", "s3://***@bucket/d.jsonl?region=R"),
        ("cannot open 's3://KEY:SECRET@b/x': no", "cannot open 's3://***@b/x': no"),
        ("s3://b/x?access_key=A&secret_key=B&region=R", "s3://b/x?access_key=***&secret_key=***&region=R"),
        ("http://127.0.0.1:8000/v1 and a@b", "http://127.0.0.1:8000/v1 and a@b"),
        ("s3://bucket/a@b/c:d@e", "s3://bucket/a@b/c:d@e"),
        (
            "hdfs://user@host:9000/x and abfs://container@account/x",
            "hdfs://user@host:9000/x and abfs://container@account/x",
        ),
    ],
)
def test_secrets_of_addresses_are_hidden_in_every_error(text, shown):
    assert without_secrets(text) == shown
    error = GevalError(text, hint=text)
    assert str(error) == f"{shown}\n{shown}"


@pytest.mark.parametrize(
    "address",
    ["s3://KEY:hunter2@bucket/d.jsonl", "s3://bucket/d.jsonl?secret_key=hunter2", "gs://hunter2@bucket/d.jsonl"],
)
@pytest.mark.parametrize("where", ["input", "output"])
def test_a_store_with_a_secret_in_its_address_is_refused_without_it(file, tmp_path, address, where):
    """It would be in the manifest, and in the next command."""
    pytest.importorskip("pyarrow")
    given = [address, "-o", tmp_path / "run"] if where == "input" else [file, "-o", address]
    told = run("score", *given, "-m", "summarization/coherence", "-j", "nano", home=tmp_path / "home")
    assert told.exit_code == 2
    assert "holds a password or a key" in told.stderr
    assert "AWS_ACCESS_KEY_ID" in told.stderr
    assert "hunter2" not in told.stdout + told.stderr
    assert not any("hunter2" in text for text in texts_below(tmp_path))


def texts_below(directory):
    for one in directory.rglob("*"):
        yield one.name
        if one.is_file():
            yield one.read_text(errors="replace")


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(20))
def test_fuzzed_answers_cost_their_rows(directory, part):
    """2,000 answers, each changed at some place: every row has a score or a reason, or the judge one sentence."""
    random, tokenizer = np.random.default_rng(part), byte_tokenizer()
    served = Served(Program(tiny_model("llama", len(tokenizer))), tokenizer, str(directory))
    answer = served.answer
    with served.running() as address:
        judge = load(address)
        expected = judge.score(FIVE, **ROWS[0])

        def fuzzed(path, body):
            status, found = answer(path, body)
            is_canary = len(body["prompt"]) > 1 or expected_ids != body["prompt"][0][: len(expected_ids)]
            return (status, found) if is_canary else (status, fuzz(found, random))

        (entry,) = judge.prepare(FIVE, [Sample(ROWS[0])])
        expected_ids = entry.request.ids.tolist()
        served.answer = fuzzed
        for _ in range(100):
            try:
                found = judge.score(FIVE, **ROWS[0])
            except GevalError:  # one sentence: anything else is a defect
                continue
            assert found.error or found.value == pytest.approx(expected.value, abs=4)
            assert found.error or 0 <= found.label_mass <= 1.001


ODD = [
    None,
    True,
    -1,
    0,
    7,
    1e308,
    -1e308,
    10**400,
    "",
    "a",
    "\x00",
    "token_id:5",
    "token_id:-5",
    [],
    {},
    [[]],
    math.nan,
]


def fuzz(found, random):
    """Change one value, key or length anywhere in an answer, or its text."""
    if random.random() < 0.2:
        text = json.dumps(found).encode()
        at = int(random.integers(len(text)))
        kept = [text[:at], text[:at] + bytes([int(random.integers(256))]) + text[at + 1 :], text[at:]]
        return Bytes(kept[int(random.integers(3))])
    places = list(paths(found))
    *way, last = places[int(random.integers(len(places)))]
    holder = found = json.loads(json.dumps(found))
    for step in way:
        holder = holder[step]
    change = random.integers(3)
    if change == 0:
        del holder[last]
    elif change == 1 and isinstance(last, str):
        holder["x" + last] = holder.pop(last)
    else:
        holder[last] = ODD[int(random.integers(len(ODD)))]
    return found


def paths(value, way=()):
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (*way, step)
        yield from paths(inner, (*way, step))


class Bytes:
    def __init__(self, text):
        self.text = text
