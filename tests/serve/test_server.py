"""The server as its clients see it: dialects, refusals, limits, company, and what it keeps to itself."""

from __future__ import annotations

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` (prometheus-client) is not installed")
zstandard = pytest.importorskip("zstandard", reason="the extra `serve` (zstandard) is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="fastapi's test client needs an HTTP client")

from geval_local import Metric  # noqa: E402
from geval_local.io.samples import Sample  # noqa: E402
from geval_local.serve.app import create_app  # noqa: E402
from geval_local.serve.settings import ServeSettings  # noqa: E402
from geval_local.testing import MockEngine, MockJudge  # noqa: E402

MODEL = "mock"
PREDICATE = {"type": "predicate", "name": "p", "instructions": "It rains."}
QUESTIONS = [
    PREDICATE,
    {
        "type": "choice",
        "name": "c",
        "instructions": "Which?",
        "choices": [{"value": True}, {"value": "true"}, {"value": "x"}],
    },
    {"type": "score", "name": "s", "instructions": "How much?", "levels": [{"label": "low"}, {"label": "high"}]},
]
NOULS = {
    "n": {"type": "noul", "instructions": "It rains."},
    "c": {"type": "choice", "criteria": {"a": None, "b": "described"}},
    "s": {"type": "score", "criteria": ["low", {"what": "high"}]},
    "one": {"type": "choice", "criteria": {"only": None}},
    "level": {"type": "score", "criteria": ["only"]},
}


def client_of(judge=None, **settings):
    app = create_app({MODEL: judge or MockJudge()}, ServeSettings(**settings))
    return testclient.TestClient(app, base_url="http://127.0.0.1:8399", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client():
    with client_of() as found:
        yield found


def decisions(client, **fields):
    return client.post("/v1/decisions", json={"model": MODEL, "input": "A text.", "questions": QUESTIONS, **fields})


def system_one(client, **fields):
    return client.post("/v1/systemone", json={"model": MODEL, "state": "A text.", "questions": NOULS, **fields})


def test_decisions_are_those_of_the_judge(client):
    answer = decisions(client).json()
    expected = MockJudge().decide(
        "A text.",
        [
            {"type": "predicate", "instructions": "It rains."},
            {"type": "choice", "instructions": "Which?", "options": [True, "true", "x"]},
            {"type": "score", "instructions": "How much?", "levels": ["low", "high"]},
        ],
    )
    assert answer["answers"][0]["probability"] == expected[0].probability
    assert [item["probability"] for item in answer["answers"][1]["probabilities"]] == list(expected[1].p)
    assert [item["value"] for item in answer["answers"][1]["probabilities"]] == [True, "true", "x"]
    assert answer["answers"][2]["score"] == expected[2].score
    assert answer["usage"]["input_tokens"] == expected.tokens
    assert answer["usage"]["total_tokens"] == expected.tokens + 3


def test_both_dialects_give_the_same_probabilities(client):
    first = decisions(client, questions=[PREDICATE]).json()["answers"][0]["probability"]
    assert system_one(client).json()["answers"]["n"]["noul"] == first


def test_system_one(client):
    answers = system_one(client).json()["answers"]
    assert list(answers) == list(NOULS)
    assert answers["one"]["probabilities"] == {"only": 1.0}
    assert answers["one"]["confidence"] == 1
    assert answers["level"]["score"] == 0
    assert answers["s"]["legend"] == {"0": "low", "1": {"what": "high"}}
    assert sum(answers["s"]["probabilities"].values()) == pytest.approx(1, abs=1e-12)


def test_rotations_on_request_report_their_spread(client):
    plain, rotated = (decisions(client, **extra).json()["answers"][1] for extra in ({}, {"rotations": 3}))
    assert "spread" not in plain
    assert 0 <= rotated["spread"] <= 1
    assert "x_spread" in system_one(client, rotations=2).json()["answers"]["c"]


def test_messages_calls_of_tools_and_json(client):
    items = [
        {"role": "developer", "content": "Be strict."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_json", "data": {"a": [1]}}]},
        {"type": "function_call", "call_id": "1", "name": "refund", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
    ]
    assert decisions(client, input=items).status_code == 200
    seen = []
    judge = MockJudge()
    work = judge.decision_work
    judge.decision_work = lambda state, *rest, **named: seen.append(state) or work(state, *rest, **named)
    with client_of(judge) as other:
        decisions(other, input=items)
        decisions(other, input=[{"role": "user", "content": "A text."}])
    chat = 'Developer: Be strict.\n\nUser: Hi{"a": [1]}\n\nAssistant: [calls refund({})]\n\nTool: done'
    assert seen == [chat, "A text."]


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"model": "other"}, 404, "other"),
        ({"model": 7}, 400, "model"),
        ({"input": []}, 400, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, 400, "images"),
        ({"input": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400, "images"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, 400, "files"),
        ({"input": [{"role": "user", "content": [["x"]]}]}, 400, "content[0]"),
        ({"input": [{"role": "assistant", "content": None, "tool_calls": []}]}, 400, "content"),
        ({"questions": [{**PREDICATE, "instructions": [{"type": "input_image", "image_url": "x"}]}]}, 400, "images"),
        ({"questions": [{"type": "choice", "instructions": "", "choices": []}]}, 400, "at least 2"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, 400, "call_id"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, 400, "arguments"),
        ({"input": [{"role": "user", "content": [{"type": "input_json", "data": 7}]}]}, 400, "object"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": "x" * 300_000}}]}]},
            400,
            "bytes",
        ),
        ({"questions": []}, 400, "questions"),
        ({"questions": [PREDICATE] * 401}, 400, "400"),
        ({"questions": [PREDICATE, PREDICATE]}, 400, "name"),
        ({"questions": [{**PREDICATE, "instructions": " "}]}, 400, "instructions"),
        ({"questions": [{**PREDICATE, "criteria": {}}]}, 400, "criteria"),
        ({"questions": [{"id": "a", "type": "yes_no", "question": "Rain?"}]}, 400, "SGLang"),
        (
            {"questions": [{"type": "choice", "instructions": "", "choices": [{"value": "a"}, {"value": "a"}]}]},
            400,
            "twice",
        ),
        (
            {"questions": [{"type": "choice", "instructions": "", "choices": [{"value": 1}, {"value": 2}]}]},
            400,
            "boolean",
        ),
        (
            {"questions": [{"type": "score", "instructions": "", "levels": [{"label": str(n)} for n in range(11)]}]},
            400,
            "level",
        ),
        ({"stream": True}, 400, "stream"),
        ({"prompt_cache_key": "x" * 65}, 400, "64"),
        ({"rotations": 0}, 400, "rotations"),
    ],
)
def test_refusals_of_openais_dialect(client, fields, status, word):
    answer = decisions(client, **fields)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert word in answer.text


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"model": "other"}, 404, "other"),
        ({"state": 7}, 422, "state"),
        ({"assets": {"a": {}}}, 422, "images"),
        ({"questions": {}}, 422, "at least 1"),
        ({"questions": {"q": {"type": "box", "instructions": "x"}}}, 422, "image"),
        ({"questions": {"q": {"type": "noul", "instructions": " "}}}, 422, "noul"),
        ({"questions": {"q": {"type": "noul", "instructions": "x", "more": 1}}}, 422, "unknown"),
        ({"questions": {"q": {"type": "score", "criteria": [None, "x"]}}}, 422, "criteria"),
        ({"questions": {"q": {"type": "choice", "criteria": {str(n): None for n in range(256)}}}}, 422, "255"),
        ({"temperature": 0}, 422, "temperature"),
    ],
)
def test_refusals_of_system_one(client, fields, status, word):
    answer = system_one(client, **fields)
    assert answer.status_code == status, answer.text
    detail = answer.json()["detail"]
    if status == 422:
        assert detail[0]["loc"][0] == "body"
        assert {"loc", "msg", "type"} == set(detail[0])
    assert word in answer.text


def test_beyond_the_context_in_both_dialects():
    with client_of(MockJudge(context=600)) as client:
        openai = decisions(client, input="word " * 1000)
        assert (openai.status_code, openai.json()["error"]["code"]) == (400, "context_length_exceeded")
        typesafe = system_one(client, state="word " * 1000)
        assert typesafe.status_code == 400
        assert typesafe.json()["detail"]["error_type"] == "max_tokens_exceeded"
        assert decisions(client, questions=[PREDICATE]).status_code == 200


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b'{"model": ', "JSON"),
        (b"[]", "object"),
        (b"\xff\xfe{}", "UTF-8"),
        (b'{"model": NaN}', "NaN"),
        (b'{"model": "a", "model": "b"}', "twice"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/decisions", "/v1/systemone", "/v1/score"])
def test_hostile_json(client, body, word, path):
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert word in answer.text
    assert len(answer.text) < 1000


def test_a_byte_order_mark_is_no_part_of_the_body(client):
    body = json.dumps({"model": MODEL, "input": "A text.", "questions": [PREDICATE]}).encode()
    answer = client.post("/v1/decisions", content=b"\xef\xbb\xbf" + body, headers={"Content-Type": "application/json"})
    assert answer.json() == decisions(client, questions=[PREDICATE]).json()


def test_booleans_and_the_texts_of_them_are_different_choices(client):
    values = [True, "true", False, "false"]
    asked = {"type": "choice", "name": "c", "instructions": "", "choices": [{"value": value} for value in values]}
    (answer,) = decisions(client, questions=[asked]).json()["answers"]
    assert [(type(one["value"]), one["value"]) for one in answer["probabilities"]] == [(type(v), v) for v in values]
    assert decisions(client, questions=[{**asked, "choices": [{"value": True}] * 2}]).status_code == 400


def test_other_kinds_of_content(client):
    assert client.post("/v1/decisions", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    image = client.post("/v1/decisions", files={"request": b"{}"})
    assert image.status_code == 400
    assert "images" in image.text
    gzip = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert client.post("/v1/decisions", content=b"x", headers=gzip).status_code == 415


def test_zstd_bodies_and_bombs():
    headers = {"Content-Type": "application/json", "Content-Encoding": "zstd"}
    body = json.dumps({"model": MODEL, "input": "A text.", "questions": [PREDICATE]}).encode()
    with client_of(max_body=100_000) as client:
        packed = client.post("/v1/decisions", content=zstandard.compress(body), headers=headers)
        assert packed.json() == decisions(client, questions=[PREDICATE]).json()
        bomb = zstandard.compress(b'{"model": "' + b"a" * 50_000_000)
        assert len(bomb) < 100_000
        assert client.post("/v1/decisions", content=bomb, headers=headers).status_code == 413
        assert client.post("/v1/decisions", content=b"no zstd", headers=headers).status_code == 400
        assert client.post("/v1/decisions", content=zstandard.compress(body)[:-8], headers=headers).status_code == 400


def test_bodies_over_the_limit():
    with client_of(max_body=10_000) as client:
        for path in ("/v1/decisions", "/v1/systemone"):
            answer = client.post(path, content=b" " * 10_001, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413
        assert decisions(client, questions=[PREDICATE]).status_code == 200


def test_all_bodies_together_are_limited_and_given_back(client):
    server = client.app.state.server
    assert server.body_bytes.held == 0
    decisions(client)
    assert server.body_bytes.held == 0
    server.body_bytes.held = server.body_bytes.most
    try:
        answer = decisions(client)
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
    finally:
        server.body_bytes.held = 0


@pytest.mark.parametrize("path", ["/v1/decisions", "/v1/systemone", "/v1/score"])
def test_without_the_key_nothing_is_answered(path):
    with client_of(api_key="right") as client:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic right"},
            {"Authorization": "right"},
        ):
            answer = client.post(path, json={}, headers=headers)
            assert answer.status_code == 401
            assert "wrong" not in answer.text.replace("missing or wrong", "")
        assert client.get("/v1/models").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        client.headers["Authorization"] = "Bearer right"
        assert client.get("/v1/models").status_code == 200
        assert decisions(client).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8399", "127.0.0.1.evil.example", "", "[::2]:80"])
def test_without_a_key_only_localhost_is_answered(host):
    with client_of() as client:
        assert client.get("/v1/models", headers={"Host": host}).status_code == 403
        for own in ("localhost", "localhost:8399", "127.0.0.1", "[::1]:8399"):
            assert client.get("/v1/models", headers={"Host": own}).status_code == 200
    with client_of(api_key="k") as client:
        answer = client.get("/v1/models", headers={"Host": host or "x", "Authorization": "Bearer k"})
        assert answer.status_code == 200


def test_unpacked_bodies_count_as_held():
    body = json.dumps({"model": MODEL, "input": "a" * 50_000, "questions": [PREDICATE]}).encode()
    headers = {"Content-Type": "application/json", "Content-Encoding": "zstd"}
    with client_of(max_body=100_000) as client:
        held = client.app.state.server.body_bytes
        held.held = held.most - 10_000
        assert client.post("/v1/decisions", content=zstandard.compress(body), headers=headers).status_code == 429
        assert held.held == held.most - 10_000


def test_models_for_both_clients(client):
    body = client.get("/v1/models").json()
    assert [model["id"] for model in body["data"]] == [MODEL]
    assert [model["name"] for model in body["models"]] == [MODEL, "jev-latest"]
    assert decisions(client, model="jev-latest").json()["model"] == MODEL


def test_unknown_paths_and_methods(client):
    for path in ("/nothing", "/v1/../etc/passwd", "/v1/decisions/", "/%2e%2e/%2e%2e/etc/passwd", "//v1/decisions"):
        answer = client.post(path, json={}, follow_redirects=False)
        assert answer.status_code in (307, 404)
    answer = client.get("/v1/decisions")
    assert answer.status_code == 405
    assert answer.json()["error"]["message"]
    assert client.get("/v1/systemone").json()["detail"]


def test_every_answer_has_an_id_of_its_own(client):
    first, second = (decisions(client, questions=[]) for _ in range(2))
    assert first.headers["x-request-id"] == first.headers["x-typesafe-request-id"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_the_page_of_routes_loads_nothing(client):
    page = client.get("/docs").text
    assert "/v1/decisions" in page
    assert "http" not in page
    assert "src=" not in page
    assert client.get("/openapi.json").json()["paths"]


def test_scores_are_the_command_lines_objects(client):
    metric = {"name": "quality", "criteria": "Is it good?", "scale": "1-5", "steps": []}
    rows = [{"id": 1, "output": "Fine."}, {"id": 2, "output": " "}]
    body = client.post("/v1/score", json={"metric": metric, "rows": rows}).json()
    expected = MockJudge().score_many(
        Metric.model_validate(metric), [Sample(row, number) for number, row in enumerate(rows, start=1)]
    )
    assert [row["geval"]["quality"] for row in body["rows"]] == [score.to_dict() for score in expected]
    assert [row["id"] for row in body["rows"]] == [1, 2]
    assert body["signature"] == str(MockJudge().signature(Metric.model_validate(metric)))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"metric": "/etc/passwd.yaml"}, 404),
        ({"metric": "nothing/here"}, 404),
        ({"metric": {"name": "x"}}, 400),
        ({"metric": {"name": "x", "criteria": "y", "scale": "nonsense"}}, 400),
        ({"rows": []}, 400),
        ({"rows": ["text"]}, 400),
        ({"threshold": 9}, 400),
    ],
)
def test_scores_that_cannot_be_had(client, fields, status):
    metric = {"name": "quality", "criteria": "Is it good?", "scale": "1-5", "steps": []}
    answer = client.post("/v1/score", json={"metric": metric, "rows": [{"output": "x"}], **fields})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


# --- company ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_queue_answers_429_and_loses_nothing():
    with client_of(MockJudge(MockEngine(seconds=0.02)), queue=4) as client, ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda n: decisions(client, input=f"text {n}", questions=[PREDICATE]), range(200)))
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 429}
        for answer in answers:
            if answer.status_code == 429:
                assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert decisions(client).status_code == 200


def test_concurrent_clients_get_their_own_answers(client):
    expected = {n: MockJudge().decide(f"text {n}", [PREDICATE])[0].probability for n in range(20)}
    with ThreadPoolExecutor(20) as pool:
        found = pool.map(lambda n: (n, decisions(client, input=f"text {n}", questions=[PREDICATE]).json()), range(20))
        for number, body in found:
            assert body["answers"][0]["probability"] == expected[number]


def test_a_failing_judge_is_a_500_without_its_words(caplog):
    class Broken(MockEngine):
        def read(self, requests):
            raise RuntimeError("SEC" + "RET TEXT")

    with client_of(MockJudge(Broken())) as client, caplog.at_level(logging.INFO):
        answer = decisions(client, input="SECRET TEXT")
        assert answer.status_code == 500
        assert answer.headers["x-request-id"]
        assert "SECRET" not in answer.text
        assert client.post("/v1/systemone", json={"model": MODEL, "state": "", "questions": NOULS}).json()["detail"]
    assert "RuntimeError" in caplog.text
    assert "SECRET" not in caplog.text


def test_nothing_of_a_request_is_logged(caplog):
    with client_of(log_requests=True, api_key="KEYTEXT") as client, caplog.at_level(logging.DEBUG, "geval_local"):
        client.headers["Authorization"] = "Bearer KEYTEXT"
        decisions(client, input="SECRET", questions=[{**PREDICATE, "name": "SECRET"}])
        decisions(client, input="SECRET", SECRET=1)
        client.post("/SECRET?SECRET=1", json={})
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("geval_local"))
    assert "/v1/decisions 200" in ours
    assert "SECRET" not in ours
    assert "KEYTEXT" not in ours


def test_counters_hold_numbers_only(client):
    decisions(client, input="SECRET", questions=[{**PREDICATE, "name": "SECRET"}])
    client.get("/SECRET")
    text = client.get("/metrics").text
    assert 'geval_requests_total{route="/v1/decisions",status="200"}' in text
    assert 'geval_questions_total{model="mock"}' in text
    assert "SECRET" not in text


def test_closing_finishes_what_is_in_flight():
    judge = MockJudge(MockEngine(seconds=0.05, batch_tokens=500))
    found = []
    with client_of(judge) as client:
        thread = threading.Thread(target=lambda: found.append(decisions(client)))
        thread.start()
        time.sleep(0.02)
        thread.join()
    assert found[0].status_code == 200
    assert client.app.state.server.batchers[MODEL].pending == 0
