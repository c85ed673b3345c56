"""What docs/serving.md shows, run against a server; clients that are not installed are skipped by name."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` (uvicorn) is not installed")

from serving import serving

from geval_local import load_questions
from geval_local.testing import MockJudge

ROOT = Path(__file__).resolve().parents[2]
SNIPPETS = re.findall(
    r"<!-- snippet: (\w+) -->\n```python\n(.*?)```",
    (ROOT / "docs" / "serving.md").read_text(encoding="utf-8"),
    re.DOTALL,
)
#: An interpreter that has the clients, where the tests' own has not.
CLIENTS = os.environ.get("GEVAL_LOCAL_CLIENTS_PYTHON", sys.executable)
QUIET = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DEEPEVAL_TELEMETRY_OPT_OUT": "1",
    "DEEPEVAL_DISABLE_DOTENV": "1",
    "NO_PROXY": "127.0.0.1",
}


@pytest.mark.parametrize(("client", "code"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
def test_snippets_run(client, code, tmp_path):
    python = sys.executable if client == "geval_local" else CLIENTS
    known = subprocess.run([python, "-c", f"import importlib.util as u, sys; sys.exit(not u.find_spec({client!r}))"])
    if known.returncode:
        pytest.skip(f"{client} is not installed")
    with serving(MockJudge()) as (port, _):
        code = code.replace("8399", str(port)).replace('model="nano"', 'model="mock"').replace("/nano", "/mock")
        path = [str(ROOT)] if client == "geval_local" else []
        environment = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(path)}
        done = subprocess.run(
            [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_promptfoo_assertion(monkeypatch):
    spec = importlib.util.spec_from_file_location("decide", ROOT / "examples" / "promptfoo" / "decide.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with serving(MockJudge(), api_key="k") as (port, _):
        monkeypatch.setattr(module, "URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("GEVAL_LOCAL_API_KEY", "k")
        context = {"prompt": "Capital of France?", "config": {"criterion": "It names Paris.", "threshold": 0.0}}
        found = module.get_assert("Paris.", context)
        assert found["pass"] is True
        messages = [{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Paris."}]
        question = {"type": "predicate", "instructions": "It names Paris."}
        assert found["score"] == MockJudge().decide(messages, [question])[0].probability
        context["config"]["threshold"] = 1.0
        assert module.get_assert("Paris.", context)["pass"] is False
    json.dumps(found)


def test_the_example_questions_hold_together():
    assert [question.name for question in load_questions(ROOT / "examples" / "questions.yaml")] == [
        "faithful",
        "length",
        "readability",
    ]
