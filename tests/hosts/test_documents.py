"""What the pages of other tools show, run with the real tools and the embedded judge, in order."""

from __future__ import annotations

import importlib.util
import shlex
from collections import defaultdict
from pathlib import Path

import forked
import pytest
from cli_run import run
from markdown_text import Block, blocks, commands
from offline import environment

ROOT = Path(__file__).resolve().parents[2]
SNIPPETS: dict[str, list[Block]] = defaultdict(list)
PAGES = ("integrations.md", "deepeval.md", "evaluators.md")
for _block in (block for page in PAGES for block in blocks(ROOT / "docs" / page)):
    if _block.mark.startswith("snippet: "):
        SNIPPETS[_block.mark.removeprefix("snippet: ")].append(_block)


def test_every_tool_of_the_page_is_here():
    assert {name: len(found) for name, found in SNIPPETS.items()} == {
        "deepeval": 4,
        "inspect_ai": 2,
        "mlflow": 2,
        "pytest": 1,
        **dict.fromkeys(
            ("geval_local", "langsmith", "langfuse", "opik", "ragas", "braintrust", "openevals", "lm_eval"), 1
        ),
    }


@pytest.mark.sweep("pytest")
@pytest.mark.slow
@pytest.mark.parametrize("tool", SNIPPETS)
def test_snippets_run(tool, tmp_path, capsys):
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed: pip install '.[hosts]'")
    own = environment(tmp_path)
    if tool == "pytest":
        (tmp_path / "test_summary.py").write_text(SNIPPETS[tool][0].text, encoding="utf-8")
        plugins = ["-p", "geval_local.hosts.pytest_plugin", "-p", "no:geval_local", "-p", "no:deepeval"]
        done = forked.script(shlex.join(["pytest", "--geval-local-judge", "nano", *plugins]), cwd=tmp_path, env=own)
        assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr
        return
    if tool == "mlflow":
        scored = run(
            *("score", ROOT / "examples" / "summaries.jsonl", "-m", "rag/answer_relevance", "-o", "scores.jsonl"),
            *("--field", "question=source"),
            home=tmp_path / "home",
        )
        assert scored.exit_code == 0, scored.stderr
    for block in SNIPPETS[tool]:
        if block.language == "python":
            names: dict[str, object] = {"__name__": "snippet"}
            exec(compile(block.text, block.where, "exec"), names)
            for name, function in names.items():
                if name.startswith("test_"):
                    function()
            continue
        for line in commands(block):
            if line.startswith("geval-local "):
                done = run(*shlex.split(line)[1:], home=tmp_path / "home")
                assert done.exit_code == 0, done.stderr
                continue
            files = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.glob("logs/*.eval"))]
            done = forked.script(line.replace("logs/*.eval", " ".join(files)), cwd=tmp_path, env=own)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
