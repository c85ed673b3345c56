"""What a pipeline brings with it: files of earlier jobs, other jobs, caches of the platform, secrets, rounding."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_run import judge_directory, read_rows, run
from job_world import LANGUAGES, World, in_language, make_world

import geval_local.models.load
from geval_local import run_evaluation
from geval_local.errors import Interrupted, JudgeError
from geval_local.evaluation.document import read_evaluation
from geval_local.evaluation.execution import make_plan
from geval_local.evaluation.gate_reports import begin
from geval_local.judge.judge import Judge
from geval_local.runs.events import RunEvents
from geval_local.yaml_text import load_yaml

CI = Path(__file__).resolve().parents[2] / "examples" / "ci"
LOAD, CHECK = Judge.load, geval_local.models.load.check_judge


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    return make_world(tmp_path, monkeypatch)


# --- what a person reads ----------------------------------------------------------------------------------------------


def test_a_failed_gate_shows_its_rows_its_baseline_and_what_to_type_next(world):
    world.edit("report: false", "report: true")
    world.good()
    before = world.runs()[0]
    world.answers(0.4, in_language("tr"))
    done = world.run(code=1)
    lines = [line.strip() for line in done.stderr.splitlines()]
    at = next(n for n, line in enumerate(lines) if "language = tr: the mean fell" in line)
    shown = "\n".join(lines[at:])
    rows = {row["id"]: row for row in read_rows(world.path / "answers.jsonl")}
    named = re.findall(r"row \d+  (q\d+)  (\d\.\d+) -> (\d\.\d+)", shown)
    assert len(named) == 3
    assert {rows[name]["language"] for name, _, _ in named} == {"tr"}
    falls = {
        new["id"]: new["geval"]["clarity"]["score"] - old["geval"]["clarity"]["score"]
        for new, old in zip(
            *(read_rows(one / "answers" / "scores.jsonl") for one in (world.runs()[1], before)), strict=True
        )
    }
    assert [name for name, _, _ in named] == sorted(falls, key=falls.__getitem__)[:3]
    commit = before.name[-10:]
    told = f"{Path('runs') / before.name / 'answers' / 'scores.jsonl'} (commit {commit}, 20"
    summary = (world.path / "job.md").read_text(encoding="utf-8")
    (failure, *_) = [
        case.find("failure") for case in ElementTree.parse(world.path / "gates.xml").getroot().iter("testcase")
        if case.get("name") == "clarity, language = tr: not_worse"
    ]  # fmt: skip
    (page,) = world.runs()[1].glob("*.html")
    for text in (done.stderr, failure.text, re.sub(r"\\(.)", r"\1", summary), page.read_text(encoding="utf-8")):
        assert " ".join(told.split()) in " ".join(text.split())
        assert named[0][0] in text
    for text in (failure.text, re.sub(r"\\(.)", r"\1", summary)):
        assert "limit: not_worse" in text
        assert re.search(r"found: changed by -0\.\d+, 95 % interval \[-0\.\d+, -0\.\d+\]", text)
        assert f"next: geval-local compare runs/{world.runs()[1].name}/answers/scores.jsonl" in text
    record = json.loads(world.run("--json").stdout)
    (gate,) = [one for one in record["gates"] if one["name"] == "clarity, language = tr: not_worse"]
    assert (gate["verdict"], len(gate["rows"]), gate["interval"][1] < 0) == ("failed", 3, True)
    # The command that is printed runs.
    words = re.search(r"next: geval-local (compare .*)", failure.text)
    assert words is not None
    assert run(*words[1].split(), home=world.path / "home").exit_code == 0


def test_rows_of_a_low_mean_are_those_of_its_slice(world):
    world.edit("by: {language: {not_worse: true}}", "by: {language: {mean: '>= 3'}}")
    world.answers(1.5, in_language("ar"))
    done = world.run(code=1)
    rows = {row["id"]: row for row in read_rows(world.path / "answers.jsonl")}
    named = re.findall(r"row \d+  (q\d+)  \d\.\d+", done.stderr)
    assert [rows[name]["language"] for name in named] == ["ar"] * 3


# --- files of earlier jobs and of others ------------------------------------------------------------------------------


def test_a_run_that_is_stopped_leaves_no_green_file(world):
    world.answers()
    world.run(code=0)
    assert 'failures="0"' in (world.path / "gates.xml").read_text(encoding="utf-8")
    world.commit()
    begin(world.path / "job.md", world.path / "gates.xml", "evaluation.yaml")

    class Once(RunEvents):
        def should_stop(self) -> bool:
            return True

    world.answers(0.1)
    with pytest.raises(Interrupted):
        run_evaluation("evaluation.yaml", events=lambda one: Once())
    assert 'failures="1"' in (world.path / "gates.xml").read_text(encoding="utf-8")
    summary = (world.path / "job.md").read_text(encoding="utf-8")
    assert "hold" not in summary
    assert "no verdict: rows have a score" in summary
    assert not (world.runs()[-1] / "gates.json").exists()
    # A check of the file touches neither.
    (world.path / "gates.xml").unlink()
    world.run("--check", code=0)
    assert not (world.path / "gates.xml").exists()


def test_a_summary_is_written_into_files_of_its_own_only(world, monkeypatch):
    world.answers()
    for name in ("answers.jsonl", "evaluation.yaml", "clarity.yaml", "thesis.tex"):
        path = world.path / name
        path.touch()
        if name == "thesis.tex":
            path.write_text("text", encoding="utf-8")
        before = path.read_bytes()
        for arguments in (["run", "evaluation.yaml"], ["gate", "answers.jsonl", "answers.jsonl"]):
            done = run(*arguments, "--summary", name, home=world.path / "home")
            assert done.exit_code == 2
            assert "was not written by geval-local" in done.stderr
        assert path.read_bytes() == before
    (world.path / "link.md").symlink_to("new.md")
    assert run("run", "evaluation.yaml", "--summary", "link.md", home=world.path / "home").exit_code == 2
    world.run(code=0)
    shutil.copy(world.path / "evaluation.yaml", world.path / "other.yaml")
    world.run("--accept", file="other.yaml", code=0)
    world.run(code=0)
    with (world.path / "job.md").open("a", encoding="utf-8") as file:
        file.write("Read by Kim.\n")
    world.run(code=0)
    told = (world.path / "job.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (\w+)", told, re.MULTILINE) == ["other", "evaluation"]
    assert "Read by Kim.\n" in told
    # GitHub's file holds what other steps wrote; each run adds to it.
    github = world.path / "step.md"
    github.write_text("# of another step\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(github))
    for _ in range(2):
        assert run("run", "evaluation.yaml", "--summary", "step.md", home=world.path / "home").exit_code == 0
    told = github.read_text(encoding="utf-8")
    assert told.startswith("# of another step\n")
    assert told.count("### evaluation.yaml") == 2


# --- other jobs, secrets, git -----------------------------------------------------------------------------------------


def test_jobs_at_the_same_time_have_directories_of_their_own(world):
    plans = []
    for number in range(3):
        world.answers(number / 10)
        (world.path / "answers.jsonl").rename(world.path / f"{number}.jsonl")
        plans.append(make_plan(read_evaluation("evaluation.yaml", [f"data.answers.file={number}.jsonl"])))
    assert len({plan.directory for plan in plans}) == 1
    for plan in plans:
        run_evaluation(plan)
    assert sorted(path.name[21:] for path in world.runs()) == ["", "-2", "-3"]
    for number in range(3):
        (path,) = [
            one for one in world.runs() if one.name.endswith(f"-{number + 1}") or (number == 0 and len(one.name) == 21)
        ]
        expected = read_rows(world.path / f"{number}.jsonl")[0]["output"]
        assert read_rows(path / "answers" / "scores.jsonl")[0]["output"] == expected


def test_a_run_that_cannot_begin_leaves_no_directory(world, monkeypatch):
    def fail(options):
        raise JudgeError("the weights are damaged")

    world.answers()
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "load", fail)
        assert "the weights are damaged" in world.run(code=2).stderr
    assert not world.runs()
    world.run(code=0)
    assert [len(path.name) for path in world.runs()] == [21]


def test_a_judge_may_be_a_secret(world, monkeypatch):
    world.answers()
    world.edit("- tiny", '- "${RICHTER}"')
    done = world.run()
    assert done.exit_code == 2
    assert "the environment variable RICHTER is not set" in done.stderr
    monkeypatch.setenv("RICHTER", "http://127.0.0.1:1/v1")
    assert "holds the address of a server" in world.run(code=2).stderr
    secret = world.path / "secret-place"
    secret.symlink_to(judge_directory())
    monkeypatch.setenv("RICHTER", str(secret))
    world.edit("report: false", "report: true")
    done = world.run("--json", code=0)
    (directory,) = world.runs()
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        assert b"secret-place" not in path.read_bytes(), path
    assert "secret-place" not in done.stdout + done.stderr
    assert (
        json.loads((directory / "answers" / "manifest.json").read_bytes())["judges"][0]["choice"]["name"]
        == "${RICHTER}"
    )
    world.edit("answers: {file: answers.jsonl}", 'answers: "${DATA}"')
    done = world.run(code=2)
    assert "line 2: only the name of a judge is taken from the environment" in done.stderr


def test_a_repository_that_git_refuses_is_named(world, monkeypatch):
    world.answers()
    tools = world.path / "tools"
    tools.mkdir()
    git = tools / "git"
    git.write_text("#!/bin/sh\necho \"fatal: detected dubious ownership in repository at '/x'\" >&2\nexit 128\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    done = world.run(code=0)
    assert "git does not name the commit" in done.stderr
    assert "safe.directory" in done.stderr


# --- caches of the two platforms --------------------------------------------------------------------------------------


class GitHub:
    """Caches of GitHub: a branch reads its own and those of main; a key is written once; the newest counts."""

    def __init__(self) -> None:
        document = load_yaml((CI / "github.yml").read_text(encoding="utf-8"))[0]
        (job,) = document["jobs"].values()
        steps = {
            step["uses"].split("@")[0]: step for step in job["steps"] if step.get("with", {}).get("path") == "runs"
        }
        self.restored, self.saved = (steps[f"actions/cache/{name}"] for name in ("restore", "save"))
        self.kept: list[tuple[str, str, Path]] = []

    def _key(self, step: Any, number: int, attempt: int) -> str:
        return str(step["with"]["key"]).replace("${{ github.run_id }}", str(number)).replace(
            "${{ github.run_attempt }}", str(attempt)
        )  # fmt: skip

    def restore(self, branch: str, number: int, attempt: int) -> Path | None:
        key, prefix = self._key(self.restored, number, attempt), self.restored["with"]["restore-keys"]
        for scope in dict.fromkeys([branch, "main"]):
            own = [(name, place) for name, held, place in self.kept if held == scope]
            exact = [place for name, place in own if name == key]
            newest = [place for name, place in own if name.startswith(prefix)]
            if exact or newest:
                return (exact or newest)[-1]
        return None

    def save(self, branch: str, number: int, attempt: int, *, good: bool, place: Path) -> None:
        condition = self.saved["if"].replace("success()", str(good)).replace("always()", "True")
        condition = condition.replace("github.ref", repr(f"refs/heads/{branch}")).replace("&&", "and")
        key = self._key(self.saved, number, attempt)
        if eval(condition) and (key, branch) not in [(name, held) for name, held, _ in self.kept]:
            self.kept.append((key, branch, place))


class GitLab:
    """Caches of GitLab: one for protected branches, one for others, unless `unprotect`; policy and `when` decide."""

    def __init__(self) -> None:
        document = load_yaml((CI / "gitlab-ci.yml").read_text(encoding="utf-8"))[0]
        job = document["evaluate"]
        (self.rule,) = [one for one in job["cache"] if one["paths"] == ["runs/"]]
        policies = [rule["variables"]["RUNS_POLICY"] for rule in job["rules"]]
        self.policies = dict(zip(("merge request", "main"), policies, strict=True))
        self.kept: dict[str, Path] = {}

    def _key(self, branch: str) -> str:
        suffix = "" if self.rule.get("unprotect") else "-protected" if branch == "main" else "-non_protected"
        return f"{self.rule['key']}{suffix}"

    def restore(self, branch: str, number: int, attempt: int) -> Path | None:
        return self.kept.get(self._key(branch))

    def save(self, branch: str, number: int, attempt: int, *, good: bool, place: Path) -> None:
        policy = self.policies["main" if branch == "main" else "merge request"]
        when = self.rule.get("when", "on_success")
        if policy == "pull-push" and (good or when == "always"):
            self.kept[self._key(branch)] = place


#: Branch, whether it is a re-run, fall of the answers, options -> exit code, and whether something is compared.
HISTORY = [
    ("main", False, 0.0, [], 0, False),
    ("change", False, 0.5, [], 1, True),
    ("change", True, 0.5, [], 1, True),
    ("change", False, 0.01, [], 0, True),
    ("main", False, 0.5, [], 1, True),
    ("main", True, 0.5, [], 1, True),
    ("other", False, 0.5, [], 1, True),
    ("other", False, 0.0, [], 0, True),
    ("main", False, 0.5, ["--accept"], 0, True),
    ("third", False, 0.5, [], 0, True),
    ("third", False, 1.0, [], 1, True),
]


@pytest.mark.parametrize("platform", [GitHub, GitLab], ids=["github", "gitlab"])
def test_the_caches_of_both_platforms_give_the_last_good_run_of_main(world, platform):
    caches = platform()
    number = attempt = 0
    for step, (branch, again, fall, options, code, compares) in enumerate(HISTORY):
        attempt = attempt + 1 if again else 1
        number += not again
        if not again:
            world.commit()
        shutil.rmtree(world.path / "runs", ignore_errors=True)
        if (held := caches.restore(branch, number, attempt)) is not None:
            shutil.copytree(held, world.path / "runs")
        world.answers(fall)
        done = world.run(*options)
        assert done.exit_code == code, f"step {step}: {done.stderr}"
        assert ("the baseline is" in done.stderr) == compares, f"step {step}: {done.stderr}"
        place = world.path / "caches" / str(step)
        shutil.copytree(world.path / "runs", place)
        caches.save(branch, number, attempt, good=code == 0, place=place)


# --- rounding ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_changed_is_green_over_batch_sizes_engines_and_orders(world, monkeypatch):
    """Twenty runs of a real model over the same answers: their last digits differ, and no gate fails."""
    monkeypatch.setattr(Judge, "load", LOAD)
    monkeypatch.setattr(geval_local.models.load, "check_judge", CHECK)
    world.edit("- tiny", "- nano")
    world.edit("report: false", "report: false\nuse_cache: false")
    world.answers()
    world.run(code=0)
    world.commit()
    baseline = {
        row["id"]: row["geval"]["clarity"]["score"] for row in read_rows(world.runs()[0] / "answers" / "scores.jsonl")
    }
    settings = [(engine, tokens) for engine in ("trie", "padded", "cache") for tokens in (256, 512, 1024, 2048, 4096)]
    settings += [("auto", tokens) for tokens in (300, 700, 1500, 3000, 6000)]
    moved = 0
    for number, (engine, tokens) in enumerate(settings):
        world.answers(change=lambda rows, by=number: [*rows[by:], *rows[:by]] if by % 2 else rows)
        done = world.run("--set", f"judges.0.engine={engine}", "--set", f"judges.0.batch_tokens={tokens}")
        assert done.exit_code == 0, done.stderr
        assert f"gates: {2 + len(LANGUAGES)} of {2 + len(LANGUAGES)} hold" in done.stderr
        assert "+0.000" in done.stderr
        rows = read_rows(world.runs()[-1] / "answers" / "scores.jsonl")
        moved += any(row["geval"]["clarity"]["score"] != baseline[row["id"]] for row in rows)
    assert moved > 5
