"""Every part of a valid request replaced by something odd, left out, or joined by something unknown.

It is answered or refused in the words of the dialect, and is never a failure of the server.
"""

from __future__ import annotations

import copy
import json

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` (prometheus-client) is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="fastapi's test client needs an HTTP client")

from geval_local.errors import GevalError  # noqa: E402
from geval_local.serve.app import create_app  # noqa: E402
from geval_local.serve.bodies import Refused, read_model  # noqa: E402
from geval_local.serve.dialects import DecisionsRequest, ScoreRequest, SystemOneRequest  # noqa: E402
from geval_local.testing import MockJudge  # noqa: E402

ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    " ",
    "x",
    "\x00",
    [],
    {},
    [[]],
    [{}],
    ["x", "x"],
    {"a": []},
    {"": {"type": []}},
]
DECISIONS = {
    "model": "mock",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be strict."}]},
        {"role": "user", "content": [{"type": "input_json", "data": [{"a": 1}]}, {"type": "input_text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Yes"}], "phase": "final_answer"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "custom_tool_call", "call_id": "1", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "y"},
    ],
    "questions": [
        {"type": "predicate", "name": "p", "instructions": [{"type": "input_text", "text": "It rains."}]},
        {"type": "choice", "instructions": "", "choices": [{"value": True, "description": "d"}, {"value": "true"}]},
        {
            "type": "score",
            "name": None,
            "instructions": "?",
            "levels": [{"label": "a", "description": None}, {"label": "b"}],
        },
    ],
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "safety_identifier": "s",
    "rotations": 2,
}
SYSTEM_ONE = {
    "model": "mock",
    "state": {"messages": [{"role": "user", "content": "Hi"}], "n": [1, None]},
    "questions": {
        "n": {"type": "noul", "instructions": ["It", "rains"], "criteria": {"true": {"a": 1}, "false": None}},
        "c": {"type": "choice", "instructions": {"q": 1}, "criteria": {"a": None, "b": ["d"]}},
        "s": {"type": "score", "criteria": ["low", {"what": "high"}]},
    },
    "rotations": 1,
}
SCORE = {
    "model": "mock",
    "metric": {
        "name": "m",
        "criteria": "c",
        "scale": "1-5",
        "steps": ["s"],
        "fields": {"output": "Output"},
        "rubric": {"5": "best"},
        "threshold": 3,
        "shorten": "output",
        "case_variants": True,
    },
    "rows": [{"output": "x", "other": {"a": [1]}}],
    "threshold": 2,
}


def places(value, path=()):
    """Paths of all parts."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from places(part, (*path, key))


def changed(body):
    """Bodies with one part replaced, left out, or joined by an unknown one."""
    for path in places(body):
        for odd in [*ODD, ...]:
            other = copy.deepcopy(body)
            parent = other
            for key in path[:-1]:
                parent = parent[key]
            if odd is ...:
                del parent[path[-1]]
            else:
                parent[path[-1]] = odd
            yield path, odd, other
        part = body
        for key in path:
            part = part[key]
        if isinstance(part, dict):
            other = copy.deepcopy(body)
            inner = other
            for key in path:
                inner = inner[key]
            inner["unknown"] = ODD
            yield path, "unknown", other


@pytest.mark.parametrize(
    ("model", "body", "path"),
    [
        (DecisionsRequest, DECISIONS, "/v1/decisions"),
        (SystemOneRequest, SYSTEM_ONE, "/v1/systemone"),
        (ScoreRequest, SCORE, "/v1/score"),
    ],
    ids=["openai", "systemone", "score"],
)
def test_whatever_a_request_says_it_is_read_or_refused_with_a_place(model, body, path):
    model.model_validate(body).asked()
    refused, told = 0, []
    for place, _, other in changed(body):
        try:
            read_model(model, other, path).asked()
        except Refused as error:
            told.append((place, error))
        except GevalError:
            refused += 1
    assert refused + len(told) > 100
    for place, error in told:
        assert error.param is None or error.param.startswith((place[0], "unknown")), (place, error.param)
        assert "Unable to extract" not in error.message
        assert "lambda" not in error.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/decisions", DECISIONS), ("/v1/systemone", SYSTEM_ONE), ("/v1/score", SCORE)]
)
def test_whatever_a_request_says_it_is_answered_or_refused(path, body):
    app = create_app({"mock": MockJudge()})
    with testclient.TestClient(app, base_url="http://127.0.0.1:8399", raise_server_exceptions=False) as client:
        assert client.post(path, json=body).status_code == 200
        for place, odd, other in list(changed(body))[::9]:
            answer = client.post(path, content=json.dumps(other), headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 400, 404, 422), (place, odd, answer.text)
            if answer.status_code == 200:
                continue
            told = answer.json()
            if path == "/v1/systemone":
                detail = told["detail"]
                said = detail[0]["msg"] if isinstance(detail, list) else detail
                assert said if isinstance(said, str) else said["message"], (place, odd)
                if answer.status_code == 422 and not isinstance(detail, str):
                    assert set(detail[0]) == {"loc", "msg", "type"}
            else:
                assert set(told["error"]) == {"message", "type", "param", "code"}
                assert told["error"]["message"]


@pytest.mark.parametrize("name", ["mock", "jev-latest"])
def test_names_of_models(name):
    with testclient.TestClient(create_app({"mock": MockJudge()}), base_url="http://127.0.0.1") as client:
        body = {"input": "x", "questions": [{"type": "predicate", "instructions": "y"}]}
        assert client.post("/v1/decisions", json={"model": name, **body}).json()["model"] == "mock"
        for other in ("Mock", "mock ", "", "openai:/mock", "m" * 10_000, "../mock"):
            refused = client.post("/v1/decisions", json={"model": other, **body})
            assert refused.status_code == 404
            assert refused.json()["error"]["code"] == "model_not_found"
            assert len(refused.text) < 500


def test_a_single_option_of_255_and_empty_evidence():
    with testclient.TestClient(create_app({"mock": MockJudge()}), base_url="http://127.0.0.1") as client:
        values = [True, False, "true", "false", "", " ", *(f"ö{number}" for number in range(249))]
        question = {"type": "choice", "instructions": "", "choices": [{"value": value} for value in values]}
        for state in ("", " \n", [{"role": "user", "content": ""}]):
            answer = client.post("/v1/decisions", json={"model": "mock", "input": state, "questions": [question]})
            found = answer.json()["answers"][0]
            assert [(type(one["value"]), one["value"]) for one in found["probabilities"]] == [
                (type(value), value) for value in values
            ]
            assert abs(sum(one["probability"] for one in found["probabilities"]) - 1) < 1e-9
            assert found["name"] is None
