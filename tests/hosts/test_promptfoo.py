"""The assertion for presets: by itself, and in promptfoo where that is installed (npm install -g promptfoo)."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving import serving

from geval_local import Metric
from geval_local.testing import MockJudge

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "promptfoo"
TEXTS = {"question": "When does the ferry sail?", "output": "It sails at six."}


def test_the_assertion_gives_the_score_of_a_preset(monkeypatch):
    spec = importlib.util.spec_from_file_location("score", EXAMPLES / "score.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("GEVAL_LOCAL_API_KEY", "k")
    context = {"vars": {"question": TEXTS["question"]}, "config": {"metric": "rag/answer_relevance", "threshold": 1}}
    wanted = MockJudge().score(Metric.load("rag/answer_relevance"), **TEXTS)
    with serving(MockJudge(), api_key="k") as (port, _):
        monkeypatch.setattr(module, "URL", f"http://127.0.0.1:{port}")
        found = module.get_assert(TEXTS["output"], context)
        assert (found["pass"], found["score"]) == (True, wanted.normalized)
        assert found["namedScores"] == {"rag/answer_relevance": wanted.normalized}
        assert found["reason"].startswith(f"rag/answer_relevance {wanted.value:.2f}, 1 passes (")
        context["config"]["threshold"] = 5
        assert module.get_assert(TEXTS["output"], context)["pass"] is False
        assert "only white space" in module.get_assert(" ", context)["reason"]
        context["config"]["metric"] = "nothing"
        refused = module.get_assert("x", context)
        assert (refused["pass"], "no preset metric" in refused["reason"]) == (False, True)
    json.dumps(found)


@pytest.mark.slow
def test_promptfoo_runs_the_example(tmp_path):
    promptfoo = os.environ.get("PROMPTFOO") or shutil.which("promptfoo")
    if promptfoo is None:
        pytest.skip("promptfoo is not installed: npm install -g promptfoo")
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    wanted = MockJudge().score(Metric.load("rag/answer_relevance"), **TEXTS)
    with serving(MockJudge()) as (port, _):
        own = {
            "GEVAL_LOCAL_URL": f"http://127.0.0.1:{port}",
            "PROMPTFOO_CONFIG_DIR": str(tmp_path / "home"),
            "PROMPTFOO_DISABLE_TELEMETRY": "1",
            "PROMPTFOO_DISABLE_UPDATE": "1",
            "PROMPTFOO_PYTHON": sys.executable,
        }
        command = [promptfoo, "eval", "-c", "score.yaml", "--no-cache", "-o", "out.json"]
        subprocess.run(command, cwd=tmp_path / "examples", env=os.environ | own, timeout=500)
    (row,) = json.loads((tmp_path / "examples" / "out.json").read_text(encoding="utf-8"))["results"]["results"]
    assert row["success"] is bool(wanted.value >= 2)
    assert row["gradingResult"]["componentResults"][0]["score"] == pytest.approx(wanted.normalized)
    assert row["namedScores"]["rag/answer_relevance"] == pytest.approx(wanted.normalized)
