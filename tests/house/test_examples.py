"""Every example runs: the commands of its page, the pipelines, the notebook."""

from __future__ import annotations

import ast
import json
import shlex
import shutil
from pathlib import Path

import pytest
from cli_run import run
from markdown_text import Block, blocks, commands

import geval_local
from geval_local.judge.judge import Judge
from geval_local.models.registry import label_of
from geval_local.testing import MockJudge
from geval_local.yaml_text import load_yaml

ROOT = Path(geval_local.__file__).parents[1]
#: Those of other tools are run in tests/hosts, with the tools.
BLOCKS = [
    block
    for block in blocks(ROOT / "examples" / "README.md")
    if block.language == "bash" and not block.mark.startswith("tool: ")
]
RAG = ["rag/faithfulness", "rag/answer_relevance", "rag/context_relevance"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("runs"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path


def without_a_model(monkeypatch) -> None:
    monkeypatch.setattr(Judge, "load", lambda options, **_: MockJudge(name=label_of(options)))


def execute(here: Path, line: str) -> str:
    words = shlex.split(line)
    assert words[0] == "geval-local", line
    done = run(*words[1:], home=here / "home")
    assert done.exit_code == 0, f"{line}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_a_rag_csv_on_three_metrics_by_one_command_in_one_try(here):
    (here / "own.csv").write_text(
        "user_query,retrieved_chunks,answer\n"
        "When does it stop?,The ferry stops on Monday.,On Monday.\n"
        'Who pays?,"The county pays half, the island the rest.",The county.\n',
        encoding="utf-8",
    )
    metrics = " ".join(f"-m {name}" for name in RAG)
    execute(here, f"geval-local score own.csv {metrics} -o own-scores.jsonl")
    rows = [json.loads(line) for line in (here / "own-scores.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["user_query"] for row in rows] == ["When does it stop?", "Who pays?"]
    for row in rows:
        assert list(row["geval"]) == RAG
        assert all(1 <= row["geval"][name]["score"] <= 5 for name in RAG)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where if isinstance(block, Block) else None)
def test_the_commands_of_the_page_run(here, monkeypatch, block):
    without_a_model(monkeypatch)
    for line in commands(block):
        execute(here, line)


@pytest.mark.slow
def test_the_embedded_judge_passes_the_rag_examples_gates(here):
    told = execute(here, "geval-local run examples/rag/evaluation.yaml")
    assert all(name in told for name in RAG)
    page = (here / "examples" / "rag" / "runs" / "questions.html").read_text(encoding="utf-8")
    assert "rag/faithfulness" in page


def github_commands(document) -> list[str]:
    (job,) = document["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


def gitlab_commands(document) -> list[str]:
    return list(document["evaluate"]["script"])


@pytest.mark.parametrize(
    ("file", "listed"), [("github.yml", github_commands), ("gitlab-ci.yml", gitlab_commands)], ids=["github", "gitlab"]
)
def test_the_pipelines_run(here, monkeypatch, file, listed):
    without_a_model(monkeypatch)
    document = load_yaml((here / "examples" / "ci" / file).read_text(encoding="utf-8"))[0]
    lines = listed(document)
    fetch = next(line for line in lines if "judges fetch" in line)
    assert fetch.startswith("test -f .geval-local/judges/qwen2.5-0.5b/config.json || geval-local judges fetch")
    ran = [line for line in lines if line.startswith("geval-local run ")]
    assert [("--check" in line) for line in ran] == [True, False]
    for line in ran:
        words = shlex.split(line)[1:]
        # Nothing is fetched here, and what is instead of the judge is no judge of these texts.
        done = run(*words, "--set", "judges=[nano]", "--set", "gates={all: {unscored: <= 0}}", home=here / "home")
        assert done.exit_code == 0, done.stderr
    cached = document["jobs"]["evaluate"]["steps"][3]["with"] if "jobs" in document else document["evaluate"]["cache"]
    assert ".geval-local" in str(cached)
    assert load_yaml((here / "examples" / "ci" / "evaluation.yaml").read_text("utf-8"))[0]["judges"][0]["name"] in str(
        cached["key"]
    )
    assert (here / "examples" / "ci" / "runs" / "questions.html").is_file()


def shown_by(cells) -> list[str]:
    """Run the code of cells in this process; what the last line of each would show, as text and as HTML."""
    names: dict[str, object] = {}
    shown = []
    for cell in cells:
        *statements, last = ast.parse(cell.source).body
        if not isinstance(last, ast.Expr):
            statements, last = [*statements, last], ast.Expr(ast.Constant(None))
        exec(compile(ast.Module(statements, []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        shown.append(f"{value!r} {value._repr_html_() if hasattr(value, '_repr_html_') else ''}")
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("by", ["this process", pytest.param("a kernel", marks=pytest.mark.nightly)])
def test_the_notebook_runs(here, monkeypatch, by):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")
    pytest.importorskip("pandas", reason="needs the extra pandas")
    path = here / "examples" / "notebook" / "frames.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "keep the notebook without its outputs"
    if by == "this process":
        monkeypatch.chdir(path.parent)
        texts = shown_by(cell for cell in notebook.cells if cell.cell_type == "code")
    else:
        nbclient = pytest.importorskip("nbclient", reason="needs the extra notebook")
        pytest.importorskip("ipykernel", reason="needs the extra notebook")
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
        texts = [str(output) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("rag/faithfulness.score" in text for text in texts)
    assert any("Score(rag/faithfulness:" in text for text in texts)
