"""A judge that llama-server computes, against a server on this machine that answers as llama.cpp's does."""

from __future__ import annotations

import json
import signal
import socket
import threading
from itertools import count

import numpy as np
import pytest
from cli_run import read_rows, run
from gguf_kit import write_gguf
from llama_program import BUILD, LlamaServed
from programs import Program, Served
from served_kit import FIVE, METRICS, ROWS
from tiny import byte_tokenizer, tiny_model

from geval_local import Judge, score_file
from geval_local.errors import ConfigurationError, GevalError, JudgeError, TokenizerError
from geval_local.options import JudgeOptions

pytestmark = pytest.mark.usefixtures("quick_client")


@pytest.fixture(scope="module")
def expected(directory):
    judge = Judge.load(directory, dtype="float64", engine="padded", style="completion")
    return {metric.name: judge.score_many(metric, ROWS) for metric in METRICS}


@pytest.fixture
def served(program, directory):
    found = LlamaServed(program, byte_tokenizer(), "/models/tiny.gguf")
    found.directory = directory
    return found


@pytest.fixture
def address(served):
    with served.running() as found:
        yield found.removesuffix("/v1")


def load(address, served, **options):
    return Judge.load(address, style="completion", tokenizer=served.directory, **options)


@pytest.mark.parametrize("metric", METRICS, ids=lambda one: one.name)
def test_every_label_is_that_of_plain_passes(address, served, expected, metric):
    for one, other in zip(load(address, served).score_many(metric, ROWS), expected[metric.name], strict=True):
        assert one.error is None
        logs = np.log([*one.probabilities.values()]), np.log([*other.probabilities.values()])
        assert np.abs(logs[0] - logs[1]).max() < 1e-4
        assert one.label_mass == pytest.approx(other.label_mass, rel=1e-4)


def test_facts_say_what_the_server_says_and_what_it_cannot_promise(address, served, program, tmp_path):
    judge = load(address, served)
    signature = str(judge.signature(FIVE))

    assert judge.name == "served:tiny"
    assert f"backend:served by llama.cpp {BUILD}" in signature
    assert "weights:not verified" in signature
    assert "cache:exact|" in signature
    assert "127.0.0.1" not in signature
    assert "/models" not in signature
    assert judge.backend.facts.is_reproducible is False
    assert judge.context == served.context - 1


def test_a_file_that_is_here_is_hashed_and_gives_the_tokenizer(tmp_path):
    tokenizer = byte_tokenizer(merges=[("1", "0"), ("1", "2")])
    model = tiny_model("llama", len(tokenizer))
    file = write_gguf(tmp_path / "tiny.gguf", model)
    with LlamaServed(Program(model), tokenizer, str(file)).running() as address:
        first = Judge.load(address, style="completion")
        assert first.backend.tokenizer.encode("10") == tokenizer.encode("10")
        assert "weights:named by the server, sha256 " in str(first.signature(FIVE))
        write_gguf(file, tiny_model("llama", len(tokenizer), seed=5))
        assert Judge.load(address, style="completion").fingerprint != first.fingerprint


def test_a_file_that_another_machine_names_is_not_hashed(tmp_path, monkeypatch):
    """The same path here may hold something else."""
    model = tiny_model("llama", len(byte_tokenizer(merges=[("1", "0"), ("1", "2")])))
    file = write_gguf(tmp_path / "tiny.gguf", model)
    served = LlamaServed(Program(model), byte_tokenizer(merges=[("1", "0"), ("1", "2")]), str(file))
    with served.running() as address:
        named = address.replace("127.0.0.1", "judges.internal")
        found = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **how: found("127.0.0.1", *more, **how))
        assert "weights:not verified" in str(Judge.load(named, style="completion").signature(FIVE))


def test_prompts_are_asked_in_the_order_of_their_prefixes(address, served):
    """A slot keeps one prompt: what the next one shares with it is not computed again."""
    served.slots = 1
    judge = load(address, served)
    before = len(served.requests)
    judge.score_many(METRICS[1], ROWS)
    sent = [body["prompt"] for path, body in served.requests[before:] if path == "/completion"]
    assert sent[: len(ROWS)] != sorted(sent[: len(ROWS)], key=len)
    computed = judge.backend.engine.computed_tokens
    distinct = len({tuple(ids[:end]) for ids in sent for end in range(1, len(ids) + 1)})
    assert computed < 1.5 * distinct + 3 * len(sent)


def test_requests_at_once_are_its_slots(address, served):
    served.slots = 3
    load(address, served).score_many(FIVE, ROWS)
    assert {body["id_slot"] for path, body in served.requests if path == "/completion"} == {0, 1, 2}


def test_figures_do_not_depend_on_the_cache_where_whole_blocks_help(address, served, expected):
    served.cache_effect = 0.3
    judge = load(address, served)

    assert "cache:exact from 64 tokens on" in str(judge.signature(FIVE))
    assert judge.engine_report.difference < 1e-4
    assert "so it computes the last 64 together; a server that is started with `-fa off" in judge.engine_report.text
    for metric in METRICS:
        for found in (judge.score_many(metric, ROWS), judge.score_many(metric, ROWS[::-1])[::-1]):
            for one, other in zip(found, expected[metric.name], strict=True):
                assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_short_prompts_do_not_depend_on_the_cache_either(address, served):
    """The canary's are shorter than a block: it would stop the run."""
    served.cache_effect, served.slots = 2.0, 4
    judge = load(address, served)
    for _ in range(5):
        judge.backend.check_files()


def test_an_effect_of_the_cache_is_stated_with_the_remedy(address, served):
    served.cache_effect, served.moves_always = 0.3, True
    judge = load(address, served)
    assert "cache:moves figures" in str(judge.signature(FIVE))
    assert 0.1 < judge.engine_report.difference < 1
    assert "-fa off -ctk f32 -ctv f32" in judge.engine_report.text
    assert "without the server's cache" in judge.engine_report.text


def test_half_of_a_character_is_drawn_again(address, served, expected):
    served.is_half = lambda seed: seed < 3
    (found,) = load(address, served).score_many(FIVE, ROWS[:1])
    assert found.probabilities == pytest.approx(expected["five"][0].probabilities, abs=1e-5)


def _end(served):
    served.is_half = lambda seed: True


def _raw(served):
    served.sampler = lambda logits: logits / 0.7 if served.requests[-1][1]["post_sampling_probs"] else logits


def _no_bias(served):
    served.lie = lambda found: found
    inner = served._list
    served._list = lambda ids, body, computed: inner(ids, {**body, "logit_bias": []}, computed)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (lambda one: setattr(one, "is_sleeping", True), "sleeps"),
        (lambda one: setattr(one, "knows_post", False), "post_sampling_probs"),
        (lambda one: setattr(one, "names", ["a", "b"]), "serves a, b"),
        (_raw, "sampler of its own"),
        (_no_bias, "bias of a request"),
        (_end, "half of a character"),
    ],
)
def test_a_server_that_cannot_be_read_is_refused_by_name_before_the_first_row(address, served, plant, message):
    plant(served)
    with pytest.raises(GevalError, match=message) as refused:
        load(address, served)
    assert refused.value.hint


def _lists(change):
    def lie(found):
        for place in found.get("completion_probabilities", ()):
            change(place.get("top_probs") or place["top_logprobs"])
        return found

    return lie


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (_lists(lambda listed: listed.__delitem__(slice(20, None))), "lists 20 different tokens"),
        (_lists(lambda listed: listed.append(listed[0]) or listed.pop(1)), "different tokens"),
        (_lists(lambda listed: [one.update(prob=one["prob"] * 2) for one in listed]), "sum up to"),
        (_lists(lambda listed: listed[0].update(prob=-0.5)), "cannot be read"),
        (_lists(lambda listed: listed[0].update(prob=True)), "cannot be read"),
        (_lists(lambda listed: listed[0].update(id="x")), "cannot be read"),
        (lambda found: found | {"truncated": True}, "of a prompt of"),
        (lambda found: found | {"tokens_evaluated": 7}, "read 7 tokens of a prompt of"),
        (lambda found: [found], "cannot be read"),
        (lambda found: {}, "cannot be read"),
    ],
)
def test_an_answer_that_cannot_be_right_costs_its_row_alone(address, served, lie, message):
    judge = load(address, served)
    ending, asked = byte_tokenizer().encode("Ending 3.", add_special_tokens=False), served._complete

    def complete(body):
        status, found = asked(body)
        ids = body["prompt"]
        is_there = any(ids[at : at + len(ending)] == ending for at in range(len(ids)))
        return status, lie(found) if is_there else found

    served._complete = complete
    found = judge.score_many(FIVE, ROWS)
    assert [one.is_scored for one in found] == [True, True, True, False, True, True]
    assert message in found[3].error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"build": "b7000-other"}, f"build_info was {BUILD}, is b7000-other"),
        ({"root": "/models/other.gguf"}, "model_path was /models/tiny.gguf"),
        ({"context": 512}, "n_ctx was 4096, is 512"),
        ({"adapters": [{"id": 0, "path": "/a.gguf", "scale": 1.0}]}, "adapters"),
    ],
)
def test_another_server_midway_is_an_error(address, served, change, message):
    judge = load(address, served)
    judge.score(FIVE, **ROWS[0])
    for name, value in change.items():
        setattr(served, name, value)
    with pytest.raises(JudgeError, match="another one now") as stopped:
        judge.score(FIVE, **ROWS[1])
    assert message in str(stopped.value)


def test_adapters_belong_to_the_identity_and_to_every_request(address, served):
    plain = load(address, served).fingerprint
    served.adapters = [{"id": 0, "path": "/adapter.gguf", "scale": 0.5}]
    judge = load(address, served)
    assert judge.fingerprint != plain
    assert "adapters:the server's" in str(judge.signature(FIVE))
    judge.score(FIVE, **ROWS[0])
    assert served.requests[-1][1]["lora"] == [{"id": 0, "scale": 0.5}]


def test_a_prompt_longer_than_a_slot_is_unscored_with_its_length(address, served):
    served.context = 500
    judge = load(address, served)
    found = judge.score_many(FIVE, [ROWS[0], {"source": "Long. " * 100, "output": "x"}])
    assert found[0].is_scored
    assert "499" in found[1].error


def test_one_of_several_models_is_asked_by_its_name(address, served):
    served.names = ["tiny", "other"]
    judge = load(address, served, served_model="other")
    assert judge.name == "served:other"
    judge.score(FIVE, **ROWS[0])
    assert served.requests[-1][1]["model"] == "other"
    assert any(path == "/props?model=other" for path, _ in served.requests)


def test_another_tokenizer_is_refused(address, served, tmp_path):
    served.tokenizer = byte_tokenizer(merges=[("1", "0")])
    with pytest.raises(TokenizerError, match="not that of the served model"):
        load(address, served)


def test_without_a_tokenizer_here_the_option_is_named(address):
    with pytest.raises(TokenizerError) as refused:
        Judge.load(address)
    assert "tokenizer=" in refused.value.hint


def test_a_busy_server_is_asked_again_and_one_that_is_gone_stops_the_run(address, served, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    judge = load(address, served)
    served.statuses = [503, 503]
    assert judge.score(FIVE, **ROWS[0]).is_scored
    served.statuses = [503] * 200
    with pytest.raises(JudgeError, match="does not answer"):
        score_file(rows, [FIVE], judge, output=tmp_path / "out.jsonl", use_cache=False)
    served.statuses = []
    again = score_file(rows, [FIVE], load(address, served), output=tmp_path / "out.jsonl", use_cache=False)
    assert again.summaries[0].scored == len(ROWS)


def is_of_a_row(body):
    return "Ending" in byte_tokenizer().decode(body["prompt"])


def asked_of(served):
    """The prompts of rows that a server was asked about since the last call."""
    found = {tuple(body["prompt"]) for path, body in served.requests if path == "/completion" and is_of_a_row(body)}
    served.requests.clear()
    return found


@pytest.mark.parametrize("how", ["ctrl-c", "killed"])
def test_a_run_that_stops_while_the_server_answers_goes_on_where_it_was(address, served, expected, tmp_path, how):
    """After Ctrl-C, or after the server was killed and started again with nothing in its cache."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    judge, answer = load(address, served, batch_tokens=1), served.answer
    places, dead = count(1), threading.Event()  # several threads answer, and no two of them take the same place

    def stopping(path, body):
        place = next(places) if path == "/completion" and is_of_a_row(body) else 0
        if how == "ctrl-c" and place == 9:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if how == "killed" and (place > 9 or dead.is_set()):
            dead.set()
            raise ConnectionAbortedError
        return answer(path, body)

    served.answer = stopping
    with pytest.raises(KeyboardInterrupt if how == "ctrl-c" else JudgeError):
        score_file(rows, FIVE, judge, tmp_path / "run", use_cache=False)
    served.answer = answer
    served.kept.clear()
    again = load(address, served, batch_tokens=1)
    asked_of(served)
    found = score_file(rows, FIVE, again, tmp_path / "run", use_cache=False)
    left = asked_of(served)
    score_file(rows, FIVE, again, tmp_path / "whole", use_cache=False)
    assert 0 < len(left) < len(asked_of(served))
    assert found.summaries[0].scored == len(ROWS)
    scores = [row["geval"]["five"]["score"] for row in read_rows(found.files[0])]
    assert scores == pytest.approx([one.value for one in expected["five"]], abs=1e-4)


def test_two_runs_at_once_get_the_figures_of_one_alone(address, served, expected):
    judges = [load(address, served) for _ in range(2)]
    found = {}
    threads = [
        threading.Thread(target=lambda at=at: found.update({at: judges[at].score_many(FIVE, ROWS)})) for at in (0, 1)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for own in found.values():
        assert [one.value for one in own] == pytest.approx([one.value for one in expected["five"]], abs=1e-4)
    assert len(found) == 2


class Ollama(Served):
    """Ollama, as far as it is asked here."""

    def answer(self, path, body):
        names = {"/api/version": {"version": "0.13.0"}, "/api/tags": {"models": [{"name": "llama3.1:latest"}]}}
        if path == "/api/show":
            return 200, {"modelfile": "# made by ollama\nFROM /blobs/sha256-abc\nTEMPLATE x"}
        return (200, names[path]) if path in names else (404, {"error": "not found"})


class LMStudio(Served):
    """LM Studio, as far as it is asked here."""

    def answer(self, path, body):
        return (200, {"data": []}) if path in ("/api/v0/models", "/v1/models") else (404, {"error": "unexpected"})


@pytest.mark.parametrize(
    ("kind", "named", "way"),
    [(Ollama, "Ollama", "-j /blobs/sha256-abc"), (LMStudio, "LM Studio", "llama-server -m FILE.gguf")],
)
def test_other_programs_on_llama_cpp_are_refused_with_the_way(program, kind, named, way, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with kind(program, None, "x").running() as address:
        with pytest.raises(JudgeError, match=named) as refused:
            Judge.load(JudgeOptions(name=address))
        assert way in refused.value.hint
        done = run("score", str(tmp_path / "rows.jsonl"), "-m", "summarization/coherence", "-j", address, home=tmp_path)
        assert done.exit_code == 2
        assert named in done.stderr


def test_options_that_the_server_decides_are_refused(address, served):
    with pytest.raises(ConfigurationError, match="decided by the server"):
        load(address, served, dtype="float32")
