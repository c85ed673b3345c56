"""What routes promise beside their answers: schemas, other methods, logs, and that nothing of a client's is kept."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` (prometheus-client) is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="fastapi's test client needs an HTTP client")
from pydantic import TypeAdapter  # noqa: E402

from geval_local import Metric  # noqa: E402
from geval_local.serve import watch  # noqa: E402
from geval_local.serve.app import create_app  # noqa: E402
from geval_local.serve.dialects import DecisionsAnswer, SystemOneAnswer  # noqa: E402
from geval_local.serve.settings import ServeSettings  # noqa: E402
from geval_local.testing import MockJudge  # noqa: E402

DECISIONS = {
    "model": "mock",
    "input": "A text.",
    "questions": [
        {"type": "predicate", "instructions": "It rains."},
        {"type": "choice", "instructions": "", "choices": [{"value": True}, {"value": "x"}]},
        {"type": "score", "instructions": "", "levels": [{"label": "low"}, {"label": "high"}]},
    ],
}
SYSTEM_ONE = {
    "model": "mock",
    "state": "A text.",
    "questions": {
        "n": {"type": "noul", "instructions": "It rains."},
        "c": {"type": "choice", "criteria": {"a": None, "b": ["d"]}},
        "s": {"type": "score", "criteria": ["low", {"what": "high"}]},
    },
    "rotations": 2,
}


def client_of(judge=None, **settings):
    app = create_app({"mock": judge or MockJudge()}, ServeSettings(**settings))
    return testclient.TestClient(app, base_url="http://127.0.0.1:8399", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client():
    with client_of() as found:
        yield found


def test_the_schema_describes_bodies_answers_and_the_key(client):
    schema = client.get("/openapi.json").json()
    for path in ("/v1/decisions", "/v1/systemone", "/v1/score"):
        asked = schema["paths"][path]["post"]
        (body,) = asked["requestBody"]["content"].values()
        assert body["schema"]["$ref"].rsplit("/", 1)[-1] in schema["components"]["schemas"]
        assert asked["responses"]["200"]["content"]["application/json"]["schema"]
        assert {"401", "413", "429", "503"} <= asked["responses"].keys()
        assert asked["security"] == [{"HTTPBearer": []}]
    assert schema["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert "security" not in schema["paths"]["/health"]["get"]
    assert "HTTPValidationError" not in json.dumps(schema)


def test_answers_are_what_the_schema_says(client):
    found = client.post("/v1/decisions", json=DECISIONS | {"rotations": 2}).json()
    assert TypeAdapter(DecisionsAnswer).validate_python(found) == found
    found = client.post("/v1/systemone", json=SYSTEM_ONE).json()
    assert TypeAdapter(SystemOneAnswer).validate_python(found) == found


def test_one_model(client):
    (listed,) = client.get("/v1/models").json()["data"]
    assert client.get("/v1/models/mock").json() == listed
    assert client.get("/v1/models/jev-latest").json() == listed
    for name in ("other", "mock/", "../mock", "a/b"):
        refused = client.get(f"/v1/models/{name}")
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] in ("model_not_found", None)
    with client_of(api_key="k") as other:
        assert other.get("/v1/models/mock").status_code == 401


def test_health_is_told_to_probes_that_ask_for_the_head(client):
    for path in ("/health", "/ready"):
        assert client.head(path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/completions"])
def test_routes_of_other_servers_say_which_there_are(client, path):
    refused = client.post(path, json={"model": "mock", "messages": []})
    assert refused.status_code == 404
    for there in ("POST /v1/decisions", "POST /v1/systemone", "POST /v1/score", "GET /v1/models"):
        assert there in refused.json()["error"]["message"]


def test_a_score_without_steps_writes_none_and_keeps_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path))

    class Mute(MockJudge):
        def continue_text(self, *given, **named):
            raise AssertionError("a client made the judge write")

    with client_of(Mute(), log_requests=True) as client, caplog.at_level(logging.DEBUG):
        for number in range(3):
            metric = {"name": f"private{number}", "criteria": f"Is it polite, {number}?", "scale": "1-5"}
            found = client.post("/v1/score", json={"metric": metric, "rows": [{"output": "Please."}]}).json()
            without = Metric.model_validate(metric | {"steps": []})
            assert found["signature"] == str(MockJudge().signature(without))
            expected = MockJudge().score(without, output="Please.")
            assert found["rows"][0]["geval"][metric["name"]]["score"] == expected.value
        given = client.post(
            "/v1/score", json={"metric": metric | {"steps": ["Read."]}, "rows": [{"output": "Please."}]}
        )
        assert "steps:none" not in given.json()["signature"]
    assert not list(tmp_path.iterdir())
    assert "private" not in caplog.text


def test_a_score_takes_one_turn_of_the_queue(client, monkeypatch):
    batcher = client.app.state.server.batchers["mock"]
    turns = []
    for name in ("decide", "score", "call"):
        work = getattr(batcher, name)
        monkeypatch.setattr(batcher, name, lambda *given, work=work, **named: turns.append(1) or work(*given, **named))
    body = {"metric": "summarization/coherence", "rows": [{"source": "x", "output": "y"}]}
    assert client.post("/v1/score", json=body).status_code == 200
    assert len(turns) == 1


class Panic(BaseException):
    pass


def test_what_is_no_exception_costs_a_request_and_not_the_server(caplog):
    class Panicking(MockJudge):
        def decision_work(self, state, *given, **named):
            if state == "poi" + "son":
                raise Panic("poi" + "son")
            return super().decision_work(state, *given, **named)

    with client_of(Panicking()) as client:
        assert client.post("/v1/decisions", json=DECISIONS | {"input": "poison"}).status_code == 500
        assert client.post("/v1/decisions", json=DECISIONS).status_code == 200
    assert "Panic" in caplog.text
    assert "poison" not in caplog.text


def test_the_log_as_json(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    for name in watch.LOGGERS:
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    watch.log_json()
    with client_of(log_requests=True) as client:
        client.post("/v1/decisions", json=DECISIONS | {"input": "SECRET\n"})
        client.get("/SECRET")
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    told = [line for line in lines if line.get("route") == "/v1/decisions"]
    assert [(line["method"], line["status"], line["level"]) for line in told] == [("POST", 200, "info")]
    assert len(told[0]["request"]) == 32
    assert "SECRET" not in said.getvalue()


def test_the_application_imports_no_torch():
    code = "import sys, geval_local.serve.app, geval_local.serve.connections; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_answer_says_when_the_judge_does_not_answer(client, monkeypatch):
    score = {"metric": "summarization/fluency", "rows": [{"output": "A text."}]}

    def warnings():
        decisions = client.post("/v1/decisions", json=DECISIONS).json()["answers"]
        systemone = client.post("/v1/systemone", json=SYSTEM_ONE).json()["answers"].values()
        scores = client.post("/v1/score", json=score).json()
        return [one.get("warning") for one in (*decisions, scores)] + [one.get("x_warning") for one in systemone]

    assert warnings() == [None] * 7
    monkeypatch.setattr("geval_local.score.LEAST_LABEL_MASS", 1.1)  # the mock's mass is below
    found = warnings()
    assert len(found) == 7
    assert all(one.startswith("Nothing can be concluded: this judge does not answer (label mass ") for one in found)


def test_presets_are_listed_and_a_typo_is_told():
    with client_of() as asked:
        listed = asked.get("/v1/metrics").json()["data"]
        one = next(one for one in listed if one["name"] == "summarization/coherence")
        assert (one["scale"], one["fields"]) == ("1-5", list(Metric.load("summarization/coherence").fields))
        found = asked.post("/v1/score", json={"metric": "summarization/coherense", "rows": [{"output": "a"}]})
        assert found.status_code == 404
        told = found.json()["error"]["message"]
        assert "did you mean 'summarization/coherence'?" in told
        assert "GET /v1/metrics" in told


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/nothing"])
def test_a_wrong_path_is_told_what_there_is(path):
    with client_of() as asked:
        told = asked.post(path, json={}).json()["error"]["message"]
    assert ("chat completions are not served" in told) is ("completions" in path)
    assert "GET /v1/models/{name}," in told
    assert "GET /docs, GET /openapi.json" in told
    assert ":path" not in told


def test_levels_that_are_no_objects_are_told_in_words():
    question = {"type": "score", "instructions": "x", "levels": ["calm", "cross"]}
    with client_of() as asked:
        found = asked.post("/v1/decisions", json={"model": "mock", "input": "a", "questions": [question]})
    assert found.json()["error"]["message"] == "questions[0].levels[0]: an object is needed"


def parts(value):
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(inner)


def test_the_schema_has_public_names_and_whole_arrays():
    schema = create_app({"mock": MockJudge()}).openapi()
    names = schema["components"]["schemas"]
    assert not [name for name in names if name.startswith("_")]
    text = json.dumps(schema)
    assert "/_" not in text
    assert '"title": "_' not in text
    assert ":path" not in text
    for one in parts(schema):
        if isinstance(one, dict) and (one.get("type") == "array" or "array" in (one.get("type") or ())):
            assert "items" in one or "prefixItems" in one, one
        if isinstance(one, dict) and "$ref" in one:
            assert one["$ref"].removeprefix("#/components/schemas/") in names
    operations = [one for path in schema["paths"].values() for one in path.values()]
    names = "decisions health metrics model models presets ready score system_one"
    assert sorted(one["operationId"] for one in operations) == names.split()
    assert all(one["tags"] for one in operations)
