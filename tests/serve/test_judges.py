"""Judges that are loaded while the server listens already."""

from __future__ import annotations

import json
import threading

import pytest
from waiting import until

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` (prometheus-client) is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="fastapi's test client needs an HTTP client")

from cli_run import run  # noqa: E402

from geval_local import Metric  # noqa: E402
from geval_local.errors import JudgeError  # noqa: E402
from geval_local.options import JudgeOptions  # noqa: E402
from geval_local.serve.app import create_app  # noqa: E402
from geval_local.testing import MockJudge  # noqa: E402

DECISION = {"model": "slow", "input": "A text.", "questions": [{"type": "predicate", "instructions": "It rains."}]}
SYSTEM_ONE = {"model": "slow", "state": "A text.", "questions": {"n": {"type": "noul", "instructions": "It rains."}}}


def client_of(judges, **given):
    return testclient.TestClient(create_app(judges, **given), base_url="http://127.0.0.1")


def test_a_server_answers_while_its_judges_are_loaded():
    allowed, loaded = threading.Event(), []

    def load():
        assert allowed.wait(300)
        return MockJudge()

    with client_of({"first": MockJudge(), "slow": load}, on_loaded=loaded.append) as client:
        assert client.get("/health").status_code == 200
        ready = client.get("/ready")
        assert ready.status_code == 503
        assert ready.json() == {"status": "loading", "models": ["first", "slow"]}
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["first", "slow"]
        assert client.get("/metrics").status_code == 200
        for path, body in (("/v1/decisions", DECISION), ("/v1/systemone", SYSTEM_ONE), ("/v1/score", {"rows": []})):
            refused = client.post(path, json=body)
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) > 0
            assert "being loaded" in refused.text
        assert not loaded
        allowed.set()
        until(lambda: loaded)
        assert loaded == [None]
        assert client.get("/ready").json()["status"] == "ready"
        expected = MockJudge().decide("A text.", [{"type": "predicate", "instructions": "It rains."}])
        answer = client.post("/v1/decisions", json=DECISION).json()["answers"][0]
        assert answer["probability"] == pytest.approx(expected[0].probability)


def test_a_judge_that_cannot_be_loaded_is_told_and_serves_nothing():
    told = []

    def load():
        raise JudgeError("its weights are missing")

    with client_of({"slow": load}, on_loaded=told.append) as client:
        until(lambda: told)
        assert isinstance(told[0], JudgeError)
        assert client.get("/ready").status_code == 503
        assert client.post("/v1/decisions", json=DECISION).status_code == 503


def test_a_judge_that_thinks_answers_with_the_figures_of_python():
    judge = MockJudge(options=JudgeOptions(think=3, think_tokens=40))
    metric = Metric.load("summarization/fluency").with_steps(())
    row = {"source": "A tale.", "output": "It ends."}
    with client_of({"mock": judge}) as client:
        asked = {"metric": metric.model_dump(mode="json", exclude_none=True), "rows": [row]}
        found = client.post("/v1/score", json=asked).json()
        decided = client.post("/v1/decisions", json={**DECISION, "model": "mock"}).json()
    figures = found["rows"][0]["geval"][metric.name]
    assert figures == json.loads(json.dumps(judge.score(metric, **row).to_dict()))
    assert "thinking:reason-first/1,k=3,mean=jackknife" in found["signature"]
    (answer,) = judge.decide(DECISION["input"], DECISION["questions"]).answers
    assert decided["answers"][0]["probability"] == answer.p[0]


def test_a_judge_that_comes_after_the_end_is_not_used():
    allowed, loaded = threading.Event(), []

    def load():
        assert allowed.wait(300)
        return MockJudge()

    with client_of({"slow": load}, on_loaded=loaded.append) as client:
        server = client.app.state.server
    allowed.set()
    until(lambda: loaded)
    assert not server.batchers
    assert not server.are_loaded


def test_the_command_ends_with_the_error_of_a_judge(tmp_path):
    (tmp_path / "judge").mkdir()
    done = run("serve", "--judge", tmp_path / "judge", "--port", "0", home=tmp_path / "home")
    assert done.exit_code == 2
    assert "error" in done.stderr
    assert "serving" not in done.stderr
