"""A judge that a server computes, against a server on this machine that answers as vLLM's does."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from programs import Program, Served
from served_kit import BASE, FIVE, METRICS, ROWS
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local import Judge, Metric, score_file
from geval_local.engine.served_client import KEY_VARIABLE, check_address, in_threads
from geval_local.errors import ConfigurationError, GevalError, JudgeError, TokenizerError
from geval_local.options import JudgeOptions
from geval_local.prompt import render_steps_prompt

pytestmark = pytest.mark.usefixtures("quick_client")


def load(address, **options):
    return Judge.load(address, style="completion", **options)


@pytest.mark.parametrize("metric", METRICS, ids=lambda one: one.name)
def test_scores_are_those_of_plain_passes(address, directory, metric):
    expected = Judge.load(directory, dtype="float64", engine="padded", style="completion").score_many(metric, ROWS)
    found = load(address).score_many(metric, ROWS)

    for one, other in zip(found, expected, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-6)
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)


def test_prompts_go_as_tokens_several_a_request(address, served):
    load(address).score_many(FIVE, ROWS)

    bodies = [body for path, body in served.requests if path == "/v1/completions"]
    assert max(len(body["prompt"]) for body in bodies) > 1
    assert all(len(body["prompt"]) <= 16 for body in bodies)
    assert all(isinstance(token, int) for body in bodies for ids in body["prompt"] for token in ids)


def test_the_facts_name_the_model_and_not_the_host(address, served):
    judge = load(address)
    signature = str(judge.signature(FIVE))

    assert judge.name == "served:tiny"
    assert "weights:not verified" in signature
    assert "127.0.0.1" not in signature
    assert judge.backend.facts.is_reproducible is False
    with served.running() as elsewhere:
        assert str(load(elsewhere).signature(FIVE)) == signature
    served.fingerprint = "another"
    assert str(load(address).signature(FIVE)) != signature


@pytest.mark.parametrize("status", [429, 503, 500])
def test_a_busy_server_is_asked_again(address, served, status):
    judge = load(address)
    served.statuses = [status, status]
    assert judge.score(FIVE, **ROWS[0]).is_scored


def test_a_prompt_that_the_server_refuses_costs_its_row_alone(address, served):
    judge = load(address)
    served.program.refuse = lambda ids: "maximum context length is 8" if bytes_of(ids).endswith("Ending 3.") else None

    def bytes_of(ids):
        text = byte_tokenizer().decode(ids)
        return text[: text.index("Ending 3.") + 9] if "Ending 3." in text else text

    found = judge.score_many(FIVE, ROWS)
    assert [one.is_scored for one in found] == [True, True, True, False, True, True]
    assert "the server refuses the prompt: 400: maximum context length" in found[3].error


@pytest.mark.parametrize(
    "sent", [None, {}, {"top_logprobs": []}, {"top_logprobs": [{"text": -1.0}]}, {"top_logprobs": [{}]}]
)
def test_an_answer_that_cannot_be_read_costs_its_row_alone(address, served, sent):
    judge = load(address)
    tokenizer = byte_tokenizer()
    served.garble = lambda ids, found: sent if "Ending 3." in tokenizer.decode(ids) else found
    found = judge.score_many(FIVE, ROWS)
    assert [one.is_scored for one in found] == [True, True, True, False, True, True]
    assert "cannot be read" in found[3].error or "no figure for the token" in found[3].error


def test_a_server_that_stops_ends_the_run_with_a_way_on_and_the_run_goes_on(directory, served, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with served.running() as address:
        judge = load(address, batch_tokens=1)
        calls = []

        def dying(ids):
            calls.append(ids)
            if len(calls) > 25:  # those of the canary among them
                served.statuses = [503] * 100
            return

        served.program.refuse = dying
        with pytest.raises(GevalError, match="does not answer"):
            score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
        served.program.refuse = lambda ids: None
        served.statuses = []
        asked_of(served)
        found = score_file(file, FIVE, judge, tmp_path / "run", use_cache=False)
        assert found.summaries[0].scored == len(ROWS)
        left = asked_of(served)
        score_file(file, FIVE, judge, tmp_path / "whole", use_cache=False)
    assert 0 < len(left) < len(asked_of(served))


def asked_of(served):
    """The prompts that a server was asked about since the last call."""
    found = {tuple(ids) for path, body in served.requests if path == "/v1/completions" for ids in body["prompt"]}
    served.requests.clear()
    return found


def test_a_server_that_becomes_another_one_stops_the_run(address, served):
    judge = load(address)
    judge.score(FIVE, **ROWS[0])
    served.fingerprint = "vllm-0.33.0-other"
    with pytest.raises(JudgeError, match="is another one now"):
        judge.score(FIVE, **ROWS[1])


def test_another_server_writes_no_steps(address, served):
    judge = load(address)
    served.fingerprint = "vllm-0.33.0-other"
    with pytest.raises(JudgeError, match="is another one now"):
        judge.continue_text(render_steps_prompt(FIVE), max_new_tokens=10)


def test_paragraphs_are_written_together_and_in_order(address, served, directory):
    prompts = [np.array(byte_tokenizer().encode(f"Text {number}"), np.int32) for number in range(5)]
    told = {"max_new_tokens": 8, "on_token": lambda count: None}
    plain = Judge.load(directory, dtype="float64", style="completion")
    expected = [plain.backend.write_paragraphs([one], **told)[0].text for one in prompts]
    judge = load(address)
    served.requests.clear()
    assert [one.text for one in judge.backend.write_paragraphs(prompts, **told)] == expected
    assert [len(body["prompt"]) for _, body in served.requests] == [len(prompts)]


def test_another_tokenizer_is_refused_by_name(address, tmp_path):
    other = byte_tokenizer(merges=[("R", "a"), ("t", "e")])
    place = save_judge(tmp_path / "other", tiny_model("llama", len(other)), other)
    with pytest.raises(TokenizerError, match="is not that of the served model tiny"):
        load(address, tokenizer=place)


def test_a_server_that_ignores_named_tokens_is_refused_with_what_it_lacks(address, served):
    served.knows_ids = False
    with pytest.raises(JudgeError, match="logprob_token_ids") as caught:
        load(address)
    assert "vLLM" in caught.value.hint


def test_of_several_models_one_has_to_be_named(address, served):
    served.names = ["tiny", "other"]
    with pytest.raises(ConfigurationError, match="serves tiny, other"):
        load(address)
    with pytest.raises(ConfigurationError, match="has no model 'tinny'"):
        load(address, served_model="tinny")
    assert load(address, served_model="tiny").score(FIVE, **ROWS[0]).is_scored


def test_a_tokenizer_that_is_not_here_is_asked_for(address, served):
    served.root = "somebody/model-that-is-not-here"
    with pytest.raises(TokenizerError) as caught:
        load(address)
    assert "tokenizer=DIR" in caught.value.hint


def test_the_key_is_sent_and_a_refused_one_named(address, served, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    load(address)
    assert set(served.keys) == {"Bearer secret"}
    served.statuses = [401]
    with pytest.raises(JudgeError) as caught:
        load(address)
    assert KEY_VARIABLE in caught.value.hint
    assert "secret" not in str(caught.value)


def test_nothing_listens(directory):
    with pytest.raises(JudgeError, match=r"nothing listens at http://127\.0\.0\.1:9/v1") as caught:
        load("http://127.0.0.1:9/v1", tokenizer=directory)
    assert "vllm serve MODEL --port 9 " in caught.value.hint


def test_a_server_that_was_there_is_waited_for(served):
    with served.running() as address:
        judge = load(address)
    with pytest.raises(JudgeError, match=r"does not answer: .*refused"):
        judge.score(FIVE, **ROWS[0])


def test_a_command_ends_although_a_server_hangs(directory, served, tmp_path):
    """Python waits for the threads of a pool when it ends, however long a request takes."""
    release, errors = threading.Event(), []

    def hang(item):
        release.wait(300)

    def fail(item):
        raise JudgeError("stopped")

    started = threading.Thread(target=in_threads, args=(hang, [1, 2], 2), daemon=True)
    started.start()
    while not (found := [one for one in threading.enumerate() if one.name == "geval-local served"]):
        pass
    assert all(one.daemon for one in found)
    release.set()
    with pytest.raises(JudgeError, match="stopped"):
        in_threads(fail, [1, 2, 3], 2)
    assert in_threads(lambda item: item * 2, [3, 1, 2], 2) == [6, 2, 4]
    assert in_threads(hang, [], 2) == errors


@pytest.mark.parametrize("name", ["http://93.184.216.34/v1", "https://[2606:2800:220:1::1]:8000/v1"])
def test_a_public_address_is_refused_unless_asked_for(name):
    with pytest.raises(ConfigurationError, match="neither this machine nor in a private network"):
        check_address(JudgeOptions(name=name))
    check_address(JudgeOptions(name=name, allow_remote=True))


@pytest.mark.parametrize("name", ["http://10.1.2.3:8000/v1", "http://192.168.0.7/v1", "http://[::1]:8000/v1"])
def test_private_addresses_are_taken(name):
    check_address(JudgeOptions(name=name))


@pytest.mark.parametrize("option", [{"dtype": "float32"}, {"engine": "trie"}, {"quantization": "4bit"}])
def test_what_the_server_decides_is_refused(address, option):
    with pytest.raises(ConfigurationError):
        load(address, **option)


def test_options_of_servers_need_an_address():
    with pytest.raises(ConfigurationError, match="`allow_remote` is for a judge that a server computes"):
        JudgeOptions(name="nano", allow_remote=True)


def test_steps_are_written_by_the_server(address, directory):
    prompt = render_steps_prompt(FIVE, instruct=True)
    expected = Judge.load(directory, dtype="float64", style="chat").continue_text(prompt, max_new_tokens=40)
    assert Judge.load(address, style="chat").continue_text(prompt, max_new_tokens=40) == expected


def test_thoughts_are_drawn_by_the_server_with_a_seed_each(address, served):
    judge = load(address, think=2, think_tokens=5, think_temperature=0.7)
    scores = judge.score_many(FIVE, ROWS[:2])

    assert {(temperature, top_p) for temperature, top_p, _ in served.program.drawn} == {(0.7, 1.0)}
    assert len({seed for *_, seed in served.program.drawn}) == len(served.program.drawn) == 4
    assert all(len(one.thoughts.texts) == 2 for one in scores)
    assert "thinking:reason-first/1,k=2,n=5,t=0.7,p=1,seed=0" in str(judge.signature(FIVE))


def test_a_model_without_a_chat_template_gets_plain_prompts(served, tmp_path):
    tokenizer = byte_tokenizer(chat=False)
    served.root = str(save_judge(tmp_path / "plain", tiny_model("llama", len(tokenizer)), tokenizer))
    with served.running() as address:
        assert Judge.load(address).signature(FIVE).style == "completion"


def test_two_servers_judge_in_one_run(served, directory, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    other = Served(Program(tiny_model("llama", len(byte_tokenizer()), seed=1)), byte_tokenizer(), str(directory))
    other.names = ["other"]
    with served.running() as first, other.running() as second:
        judges = [JudgeOptions(name=one, style="completion") for one in (first, second)]
        found = score_file(file, METRICS[:2], judges, tmp_path / "run")
    assert [one.scored for one in found.summaries] == [len(ROWS)] * 4
    assert len({round(one.mean, 9) for one in found.summaries}) == 4


def test_a_prompt_beyond_the_context_names_both_lengths_and_a_field_may_be_shortened(address, served):
    judge = load(address)
    rows = [ROWS[0], ROWS[1] | {"source": "A long tale. " * 500}]
    good, bad = judge.score_many(FIVE, rows)
    assert good.is_scored
    assert "the judge reads 4095" in bad.error  # a server computes one token behind a prompt
    short = judge.score_many(FIVE.model_copy(update={"shorten": "source"}), rows)
    assert [one.is_scored for one in short] == [True, True]
    assert short[1].dropped_tokens > 0


def test_a_scale_of_more_labels_than_one_request_names(directory, tmp_path):
    """150 words of one token each at one position."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [one + other for one in letters for other in letters][:150]
    tokenizer = byte_tokenizer(merges=[(one[0], one[1]) for one in words])
    program = Program(tiny_model("llama", len(tokenizer)))
    place = save_judge(tmp_path / "wide", program.model, tokenizer)
    metric = Metric(name="wide", scale={word: number for number, word in enumerate(words)}, **BASE)
    expected = Judge.load(place, dtype="float64", engine="padded", style="completion").score_many(metric, ROWS[:2])
    with Served(program, tokenizer, str(place)).running() as address:
        found = load(address).score_many(metric, ROWS[:2])
    for one, other in zip(found, expected, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-6)


def test_a_directory_with_a_tokenizer_alone_will_do(address, served, tmp_path):
    served.root = "somebody/model-that-is-not-here"
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    assert load(address, tokenizer=tmp_path / "tokenizer").score(FIVE, **ROWS[0]).is_scored
