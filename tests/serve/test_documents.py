"""What docs/serving.md shows, run against a server; clients that are not installed are skipped by name."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import typer

pytest.importorskip("fastapi", reason="the extra `serve` (fastapi) is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` (uvicorn) is not installed")

from serving import serving

from geval_local import load_questions
from geval_local.cli.app import app
from geval_local.serve.settings import ServeSettings
from geval_local.testing import MockJudge
from geval_local.yaml_text import load_yaml

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


@pytest.mark.sweep("openai")
@pytest.mark.slow
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


def test_the_http_provider_of_promptfoo():
    """promptfoo fills the body's texts, posts it, and reads the answer by a path: the same is done here."""
    config, _ = load_yaml((ROOT / "examples" / "promptfoo" / "http_provider.yaml").read_text(encoding="utf-8"))
    (provider,) = config["providers"]
    message = config["tests"][0]["vars"]["message"]
    prompt = config["prompts"][0].replace("{{message}}", message)
    settings = provider["config"]
    filled = json.loads(json.dumps(settings["body"]).replace('"{{prompt}}"', json.dumps(prompt)))
    headers = {name: value.replace("{{env.GEVAL_LOCAL_API_KEY}}", "k") for name, value in settings["headers"].items()}
    with serving(MockJudge(), api_key="k") as (port, _):
        url = provider["id"].replace("8399", str(port))
        request = urllib.request.Request(url, json.dumps(filled).encode(), headers, method=settings["method"])
        with urllib.request.urlopen(request, timeout=300) as response:
            answer = json.load(response)
    found = answer
    for part in re.findall(r"\w+", settings["transformResponse"].removeprefix("json.")):
        found = found[int(part) if part.isdigit() else part]
    question = filled["questions"][0]
    options = {one["value"]: one["description"] for one in question["choices"]}
    asked = {"type": "choice", "instructions": question["instructions"], "options": options}
    assert found == MockJudge().decide(message, [asked])[0].choice
    assert config["tests"][0]["assert"][0]["value"] in options


DEPLOY = ROOT / "examples" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def check_command(words):
    """Whether ``geval-local serve`` has all options of a command line, and takes their values."""
    serve = typer.main.get_command(app).commands["serve"]
    given = serve.make_context("serve", list(words), resilient_parsing=False).params
    return {param.opts[0].lstrip("-").replace("-", "_"): given[param.name] for param in serve.params if param.opts}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_commands_of_the_units_are_commands(unit):
    text = unit.read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=\S+geval-local serve (.*)$", text, re.MULTILINE)
    found = check_command(command.replace("%i", "0").replace("%d", "/run/credentials").split())
    assert found["api_key_file"] == Path("/run/credentials/key")
    assert found["port"] == (8400 if "@" in unit.name else None)
    assert {"DynamicUser=yes", "ProtectSystem=strict"} <= set(text.splitlines())
    assert "HF_HUB_OFFLINE=1" in text


def test_the_recipe_of_a_container_fits_the_server():
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    entry, given = (json.loads(line) for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE))
    assert entry[:2] == ["geval-local", "serve"]
    found = check_command([*entry[2:], *given])
    assert (found["host"], found["judge"]) == ("0.0.0.0", ["nano"])
    check_command(
        [*entry[2:], *re.findall(r"^# podman run .* geval-local (--judge .*)$", text, re.MULTILINE)[0].split()]
    )
    ((port, path),) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", text)
    assert int(port) == ServeSettings().port
    assert f"EXPOSE {port}\n" in text
    with serving(MockJudge(), api_key="key") as (listening, _):
        assert urllib.request.urlopen(f"http://127.0.0.1:{listening}{path}", timeout=300).status == 200
    (user,) = re.findall(r"^USER (.*)$", text, re.MULTILINE)
    assert user not in ("root", "0")
    assert f"useradd --create-home {user}" in text.split("USER ")[0]
    assert "\nENV HF_HUB_OFFLINE=1\n" in text
    assert "/opt/judges:/judges:ro" in text
    for name in re.findall(r"/src/([\w.]+\.txt)", text):
        assert (ROOT / name).is_file()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_units_of_systemd_hold_together(tmp_path):
    assert len(UNITS) == 2
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/opt/geval-local/bin/geval-local", "/bin/true")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not [line for line in done.stderr.splitlines() if str(tmp_path) in line], done.stderr


def test_the_example_questions_hold_together():
    assert [question.name for question in load_questions(ROOT / "examples" / "questions.yaml")] == [
        "faithful",
        "length",
        "readability",
    ]
