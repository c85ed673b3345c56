"""The documents are correct: their commands run, their options, paths, links and tables are those of the package.

Every ``bash`` and ``python`` block runs, in the order of its page, in a directory that holds the checkout's examples
and nothing else. ``<!-- file: NAME -->`` before a block says that the reader writes it into this file. A block that
needs what a test lacks says so in a comment before it, ``<!-- not run: reason -->``; its commands are still checked
against the command line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import typer
from cli_run import run
from markdown_text import Block, anchors, blocks, commands, links, marked_table

import geval_local
from geval_local.cli.app import app
from geval_local.evaluation.model import Evaluation
from geval_local.fields import ALIASES
from geval_local.metric import Metric

PACKAGE = Path(geval_local.__file__).parent
ROOT = PACKAGE.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [
    *PAGES,
    *(
        ROOT / name
        for name in (
            "CHANGELOG.md",
            "ROADMAP.md",
            "examples/README.md",
            *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "examples" / "journeys").glob("*/README.md"))),
            "training/README.md",
            "geval_local/judges/nano/README.md",
            "geval_local/judges/smol/README.md",
        )
    ),
]
BLOCKS = [block for page in PAGES for block in blocks(page) if block.language in ("bash", "python")]
COMMANDS = [
    (block, line[line.index("geval-local ") :])
    for block in BLOCKS
    if block.language == "bash"
    for line in commands(block)
    if re.search(r"(^|[\s/])geval-local ", line) and not line.startswith("pip ")
]

COMMAND_LINE = typer.main.get_command(app)

#: Characters of a line of commands that the site shows without scrolling.
WIDEST = 76
NOT_RUN = "not run: "
#: Blocks that no test here runs, for each page; a new one is a decision.
NOT_RUN_COUNTS = {
    "CONTRIBUTING.md": 2,
    "data.md": 1,
    "install.md": 3,
    "your-model.md": 3,
    "judges.md": 3,
    "embedded-judges.md": 1,
    "choose-a-judge.md": 1,
    "ratings.md": 1,
    "runs.md": 1,
    "clusters.md": 4,
    "shards.md": 1,
    "gpu.md": 2,
    "engines.md": 2,
    "llama-server.md": 1,
    "thinking.md": 1,
    "serving.md": 4,
    "evaluators.md": 1,
    "gate-in-ci.md": 1,
}
#: Blocks that `.ci/run` and tests/serve/test_documents.py run.
RUN_ELSEWHERE = ("first-command", "test-command", "snippet: ")


# --- commands ---------------------------------------------------------------------------------------------------------


FILE = "file: "


def prepare(place: Path) -> None:
    """Make the directory that a reader works in: a checkout's examples, and nothing else."""
    (place / "examples").symlink_to(ROOT / "examples")


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Pinned steps and cached figures, shared by all pages."""
    return tmp_path_factory.mktemp("home")


RUN_BLOCKS = [
    block
    for page in PAGES
    for block in blocks(page)
    if block.mark.startswith(FILE)
    or (block.language in ("bash", "python") and not block.mark.startswith((NOT_RUN, *RUN_ELSEWHERE)))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page.name for page in PAGES if any(block.document == page for block in RUN_BLOCKS)])
def test_the_commands_of_a_page_run(page, home, tmp_path, monkeypatch):
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(home))
    for block in RUN_BLOCKS:
        if block.document.name != page:
            continue
        if block.mark.startswith(FILE):  # what the reader writes
            (tmp_path / block.mark.removeprefix(FILE)).write_text(block.text, encoding="utf-8")
            continue
        if block.language == "python":
            exec(compile(block.text, block.where, "exec"), {"__name__": "block"})
            continue
        for line in commands(block):
            words = shlex.split(line)
            assert words[0] == "geval-local", f"{block.where}: mark the block `not run`, or leave this out: {line}"
            done = run(*words[1:], home=home)
            assert done.exit_code == 0, f"{block.where}: {line}\n{done.stderr}"


def test_no_command_is_wider_than_the_site_shows():
    wide = [
        f"{block.where}: {line}"
        for page in DOCUMENTS
        for block in blocks(page)
        if block.language == "bash"
        for line in block.text.splitlines()
        if len(line) > WIDEST and not line.lstrip().startswith("#")
    ]
    assert not wide, "break these with a backslash:\n" + "\n".join(wide)


def test_the_body_of_every_request_is_json_in_one_word():
    """A command is broken with care: within quotes a backslash would be part of the text."""
    bodies = [
        words[words.index("-d") + 1]
        for block in BLOCKS
        if block.text.startswith("curl ") and "-d" in (words := shlex.split(block.text))
    ]
    assert len(bodies) == 3
    assert all(json.loads(body) for body in bodies)


def test_no_line_of_a_sample_output_is_wider_than_the_site_shows():
    """A README is read elsewhere; its output is a terminal's of 80 columns."""
    wide = [
        f"{block.where}: {line}"
        for page in PAGES
        for block in blocks(page)
        if block.language in ("", "text") and page.name != "README.md"
        for line in block.text.splitlines()
        if len(line) > WIDEST
    ]
    assert not wide, "wrap these:\n" + "\n".join(wide)


def test_what_is_not_run_says_why():
    marked = [block for block in BLOCKS if block.mark.startswith(NOT_RUN)]
    assert Counter(block.document.name for block in marked) == NOT_RUN_COUNTS
    for block in marked:
        assert len(block.mark.removeprefix(NOT_RUN).split()) >= 3, f"{block.where}: say what the block needs"
    other = [f"{block.where}: {block.mark}" for block in BLOCKS if block.mark and block not in marked]
    assert all(place.partition(": ")[2].startswith((FILE, *RUN_ELSEWHERE)) for place in other), other


def wrong_in(block: Block, line: str) -> str | None:
    """What a command names that the command line does not have."""
    words = shlex.split(line.split("&&")[0])[1:]
    command = COMMAND_LINE
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return f"{block.where}: there is no verb {words[:1]} in {line}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return f"{block.where}: {sorted(given - known)} in {line}" if given - known else None


def test_every_command_names_verbs_and_options_that_exist():
    assert len(COMMANDS) > 100
    wrong = [found for found in (wrong_in(*one) for one in COMMANDS) if found]
    assert not wrong, "\n".join(wrong)
    (block, _), *_ = COMMANDS
    assert "no verb" in str(wrong_in(block, "geval-local scoer x"))
    assert "--limt" in str(wrong_in(block, "geval-local score x --limt 3"))


# --- links and paths --------------------------------------------------------------------------------------------------


def test_links_lead_somewhere():
    wrong = []
    for document in DOCUMENTS:
        for target in links(document):
            path, _, anchor = target.partition("#")
            there = (document.parent / path).resolve() if path else document
            if not there.exists() or (anchor and anchor not in anchors(there)):
                wrong.append(f"{document.relative_to(ROOT)} links to {target}")
    assert not wrong, "\n".join(wrong)


def test_files_that_are_named_exist():
    folders = r"`((?:tests|benchmarks|geval_local|docs|examples|training)/[\w./-]*)`"
    missing = [
        f"{document.relative_to(ROOT)} names {name}"
        for document in DOCUMENTS
        for name in re.findall(folders, document.read_text("utf-8"))
        if "NAME" not in name and not (ROOT / name).exists()
    ]
    assert not missing, "\n".join(missing)


# --- tables -----------------------------------------------------------------------------------------------------------

NAME = re.compile(r"`([^`]+)`")


def test_the_table_of_column_names_is_the_packages():
    rows = marked_table(ROOT / "docs" / "data.md", "aliases")
    assert {NAME.findall(field)[0]: tuple(NAME.findall(names)) for field, names in rows} == dict(ALIASES)


def test_the_table_of_metric_keys_is_the_packages():
    rows = marked_table(ROOT / "docs" / "metrics.md", "keys")
    assert {NAME.findall(row[0])[0] for row in rows} == set(Metric.model_fields)


def test_the_table_of_an_evaluations_keys_is_the_packages():
    rows = marked_table(ROOT / "docs" / "evaluations.md", "evaluation-keys")
    assert {name for row in rows for name in NAME.findall(row[0])} == set(Evaluation.model_fields)


def test_the_way_of_a_sample_names_modules_that_exist_in_thirty_lines():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = text.split("## The way of a sample")[1].split("\n\n")[1].splitlines()
    modules = [name for line in way for name in re.findall(r"[\w/]+\.py", line)]
    assert len(way) <= 30
    assert len(modules) > 10
    assert not [name for name in modules if not (PACKAGE / name).is_file()]


def test_every_folder_of_the_package_is_on_the_page_of_the_architecture():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert {name for name in folders if f"`{name}/`" not in text} == set()


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


#: Three jobs of a stranger: the page that does each, and the heading at which the answer is there.
JOBS = {
    "the worst answers": ("worst-rows.md", "## Which metric?"),
    "which of two systems": ("which-system.md", "## With fewer doubts"),
    "a gate": ("gate-in-ci.md", "## For whom?"),
}


def words_in(text: str) -> int:
    """Words that a reader reads: no comments, no rules of tables."""
    return len(re.sub(r"<!--.*?-->|[|`*#-]+", " ", text, flags=re.DOTALL).split())


@pytest.mark.parametrize(("page", "end"), JOBS.values(), ids=JOBS)
def test_a_job_takes_two_pages_and_nine_hundred_words(page, end):
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").split("\nAlso:")[0]
    assert f"(docs/{page})" in first_screen
    job, found, _ = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(end)
    assert found
    assert words_in(first_screen) + words_in(job) <= 900


#: Pages that are looked things up in, not read.
REFERENCES = ("reference", "architectures.md", "data.md", "judges.md", "metrics.md", "runs.md", "clusters.md")


def test_no_page_is_long():
    read = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
    long = {
        page.name: count
        for page in read
        if page.relative_to(ROOT / "docs").parts[0] not in REFERENCES
        and (count := len(page.read_text(encoding="utf-8").replace("\\\n", " ").split())) > 1_250
    }
    assert not long
