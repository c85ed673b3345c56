"""The examples for other tools, by the commands of their page: the real tools, the embedded judge, no network."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import forked
import pytest
from markdown_text import Block, blocks, commands
from offline import environment

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = {
    block.mark.removeprefix("tool: "): block
    for block in blocks(ROOT / "examples" / "README.md")
    if block.mark.startswith("tool: ")
}
METRICS = ("summarization/relevance", "summarization/coherence")

pytestmark = pytest.mark.slow


@pytest.fixture
def execute(tmp_path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Run the page's command for a tool on a copy of the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("runs"))
    more = {"COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # As the entry point loads it where the package is installed.
    more["PYTEST_ADDOPTS"] = "-p geval_local.hosts.pytest_plugin -p no:cacheprovider"

    def execute(tool: str) -> subprocess.CompletedProcess[str]:
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed: pip install '.[hosts]'")
        (line,) = commands(BLOCKS[tool])
        own = environment(tmp_path, **(more if tool == "pytest" else {"COLUMNS": "200"}))
        return forked.script(line, cwd=tmp_path, env=own)

    return execute


def test_every_tool_has_an_example():
    assert set(BLOCKS) == {"pytest", "deepeval", "inspect_ai", "mlflow"}
    assert all(isinstance(block, Block) and block.language == "bash" for block in BLOCKS.values())


def test_pytest_passes_good_summaries_and_no_others(execute, tmp_path):
    # A summary that says nothing of its article is taken for a good one.
    file = tmp_path / "examples" / "summaries.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("ferry-off-topic", "other-good"), encoding="utf-8")
    done = execute("pytest")
    assert (done.returncode, "2 failed, 4 passed" in done.stdout) == (1, True), done.stdout + done.stderr
    assert re.search(r"summarization/relevance: 1\.\d+ is below 2 \(scale 1-5, judge nano\)", done.stdout)


@pytest.mark.nightly
def test_deepeval_passes_good_summaries(execute):
    done = execute("deepeval")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.nightly
def test_inspect_rates_recorded_answers(execute, tmp_path):
    done = execute("inspect_ai")
    assert done.returncode == 0, done.stdout + done.stderr
    from inspect_ai.log import list_eval_logs, read_eval_log

    (found,) = list_eval_logs(str(tmp_path / "logs"))
    log = read_eval_log(found)
    assert log.status == "success"
    names = [score.name for score in log.results.scores]
    assert len(names) == len(METRICS)
    values = {sample.id: [score.value for score in sample.scores.values()] for sample in log.samples}
    for article in ("ferry", "library"):
        good = values.pop(f"{article}-good")
        worse = [value for name, value in values.items() if name.startswith(article)]
        assert len(worse) == 3
        assert all(good[0] > value[0] for value in worse)
    said = log.samples[0].scores[names[0]]
    assert sum(said.metadata["probabilities"].values()) == pytest.approx(1)
    assert " on 1-5: " in said.explanation


@pytest.mark.nightly
def test_mlflow_keeps_scores_in_its_store(execute, tmp_path):
    done = execute("mlflow")
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(re.findall(r"^(\S+): (\d\.\d+)$", done.stdout, flags=re.MULTILINE))
    assert all(float(told[f"{metric}/mean"]) >= 2 for metric in METRICS)
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("summaries")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert {name: round(kept.data.metrics[f"{name}/mean"], 3) for name in METRICS} == {
        name: float(told[f"{name}/mean"]) for name in METRICS
    }
    traces = client.search_traces(locations=[experiment.experiment_id])
    records = [json.loads(one.metadata["probabilities"]) for t in traces for one in t.info.assessments]
    assert len(records) == 2 * len(METRICS)
    assert all(sum(record.values()) == pytest.approx(1) for record in records)
