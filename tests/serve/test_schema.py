"""Requests made from the server's own description of itself: none may fail it, and answers are what it says."""

from __future__ import annotations

import pytest
from example_counts import example_count

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` (uvicorn) is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` (prometheus-client) is not installed")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis, of the extra `test`, is not installed")
hypothesis = pytest.importorskip("hypothesis", reason="hypothesis, of the extra `test`, is not installed")

from schemathesis import checks  # noqa: E402
from schemathesis.specs.openapi import checks as openapi_checks  # noqa: E402
from serving import serving  # noqa: E402

from geval_local.serve.app import create_app  # noqa: E402
from geval_local.testing import MockJudge  # noqa: E402

CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
]


SCHEMA = schemathesis.openapi.from_dict(create_app({"mock": MockJudge()}).openapi())


@pytest.fixture(scope="module")
def address():
    with serving(MockJudge()) as (port, _):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.slow
@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=example_count(25), deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_whatever_the_schema_allows_is_answered_as_it_says(case, address):
    if isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = "mock"
    case.call_and_validate(base_url=address, checks=CHECKS)
