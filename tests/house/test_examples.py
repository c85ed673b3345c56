"""Every example runs: the commands of its page, the pipelines, the notebook."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

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


def github_caches(document) -> list[dict[str, str]]:
    (job,) = document["jobs"].values()
    return [step["with"] for step in job["steps"] if "/cache" in step.get("uses", "")]


def gitlab_caches(document) -> list[dict[str, str]]:
    return [{"key": one["key"], "path": " ".join(one["paths"])} for one in document["evaluate"]["cache"]]


@pytest.mark.parametrize(
    ("file", "listed", "caches"),
    [("github.yml", github_commands, github_caches), ("gitlab-ci.yml", gitlab_commands, gitlab_caches)],
    ids=["github", "gitlab"],
)
def test_the_pipelines_run_in_a_repository_of_somebody_else(tmp_path, monkeypatch, file, listed, caches):
    """The repository holds what the pipeline's comment says, at its root, and nothing of this one."""
    without_a_model(monkeypatch)
    home = tmp_path / "home"
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(home))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("evaluation.yaml", "questions.csv", "make_answers.py"):
        shutil.copy(ROOT / "examples" / "ci" / name, theirs)
    monkeypatch.chdir(theirs)
    document = load_yaml((ROOT / "examples" / "ci" / file).read_text(encoding="utf-8"))[0]
    lines = listed(document)
    (install,) = [line for line in lines if line.startswith("pip install")]
    assert shlex.split(install)[-1] == f"geval-local=={geval_local.__version__}"
    (fetch,) = [line for line in lines if "judges fetch" in line]
    assert fetch.startswith("test -f .geval-local/judges/qwen2.5-0.5b/config.json || geval-local judges fetch")
    kept = caches(document)
    judge = load_yaml((theirs / "evaluation.yaml").read_text("utf-8"))[0]["judges"][0]["name"]
    assert any(".geval-local" in one["path"] and judge in one["key"] for one in kept)
    assert any("runs" in one["path"] for one in kept)
    (made,) = [line for line in lines if line.startswith("python ")]
    subprocess.run([sys.executable, *shlex.split(made)[1:]], check=True, cwd=theirs)
    ran = [line for line in lines if line.startswith("geval-local run ")]
    assert [("--check" in line) for line in ran] == [True, False]
    # Nothing is fetched here, and what is instead of the judge is no judge of these texts.
    evaluation = (theirs / "evaluation.yaml").read_text(encoding="utf-8")
    evaluation = re.sub(r"  - name: qwen.*\n    dtype: float32", "  - nano", evaluation)
    (theirs / "evaluation.yaml").write_text(f"{evaluation}\n", encoding="utf-8")
    edited = evaluation.replace("gates:\n", "gates:\n  all: {label_mass: '>= 0'}\n")
    (theirs / "evaluation.yaml").write_text(edited, encoding="utf-8")
    for times in (1, 2):
        for line in ran:
            line = re.sub(r"\$\{\{ inputs.accept .*? \}\}|\$\{ACCEPT:\+--accept\}", "", line)
            words = shlex.split(line.replace("$GITHUB_STEP_SUMMARY", "summary.md"))[1:]
            done = run(*words, home=home)
            assert done.exit_code == 0, done.stderr
        if times == 1:
            assert "no earlier run is a baseline" in done.stderr
            # The next change answers otherwise.
            answers = (theirs / "answers.csv").read_text(encoding="utf-8")
            (theirs / "answers.csv").write_text(answers.replace("Monday", "Tuesday"), encoding="utf-8")
    assert "the baseline is runs/" in done.stderr
    assert len(list(theirs.glob("runs/*/answers.html"))) == 2
    cases = ElementTree.parse(theirs / "gates.xml").getroot().iter("testcase")
    # A limit for the unscored, one for the label mass, all rows against the baseline, and both languages.
    assert len(list(cases)) == 5
    if file == "github.yml":
        told = (theirs / "summary.md").read_text(encoding="utf-8")
        assert told.count("### evaluation.yaml: all 5 gates hold") == 1
        assert "language = de" in told


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
