"""An evaluation beside an earlier run: its baseline, its directories, slices, and what a pipeline shows."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli_run import METRIC, good_rows, judge_directory, read_rows, run, write_rows

from geval_local import run_evaluation
from geval_local.analysis.gates import Gate, GateOutcome, parse_limit
from geval_local.errors import ConfigurationError
from geval_local.evaluation import history
from geval_local.evaluation.document import read_evaluation
from geval_local.evaluation.execution import make_plan
from geval_local.evaluation.gate_reports import junit_text, markdown_text
from geval_local.evaluation.start import start_evaluation
from geval_local.io.ownership import file_sha256
from geval_local.judge.judge import Judge
from geval_local.models.registry import label_of
from geval_local.runs.events import RunEvents
from geval_local.testing import MockJudge

EVALUATION = """\
data:
  first: first.jsonl
metrics:
  - clarity.yaml
judges:
  - tiny
gates:
  all: {unscored: "<= 0"}
outputs: runs/{date}-{commit}
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "tiny").symlink_to(judge_directory())
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    rows(tmp_path)
    (tmp_path / "evaluation.yaml").write_text(EVALUATION, encoding="utf-8")
    monkeypatch.setattr(Judge, "load", lambda options: MockJudge(name=label_of(options)))
    return tmp_path


def rows(here: Path, ending: str = "") -> None:
    found = [row | {"source": f"Tale {n}.", "language": "de" if n % 3 else "fr"} for n, row in enumerate(good_rows(30))]
    write_rows(here / "first.jsonl", [row | {"output": f"{row['output']}{ending}"} for row in found])


def go(here: Path, *arguments: object):
    return run("run", "evaluation.yaml", *arguments, home=here / "home")


def runs_of(here: Path) -> list[str]:
    return sorted(path.name for path in (here / "runs").iterdir())


def better(here: Path, name: str, by: float, chosen=lambda row: True) -> Path:
    """Score the data, and keep the results with higher scores as a baseline."""
    assert go(here, "--set", "outputs=scored", "--set", "report=false").exit_code == 0
    changed = read_rows(here / "scored" / "first" / "scores.jsonl")
    for n, row in enumerate(changed):
        row["geval"]["clarity"]["score"] += by * chosen(row) * (0.9 + n % 7 / 30)
    made = write_rows(here / f"{name}.jsonl", changed)
    described = json.loads((here / "scored" / "first" / "scores.jsonl.meta.json").read_text(encoding="utf-8"))
    described["results"] = {"sha256": file_sha256(made)}
    (here / f"{name}.jsonl.meta.json").write_text(json.dumps(described), encoding="utf-8")
    return made


# --- where runs lie -------------------------------------------------------------------------------------------------


def test_the_same_data_goes_on_and_other_data_or_metrics_make_a_new_run(here):
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    assert go(here).exit_code == 0
    again = go(here)
    assert again.exit_code == 0, again.stderr
    assert "complete: all 30" in again.stderr
    assert runs_of(here) == [f"{day}-nocommit"]
    rows(here, " Or not.")
    assert go(here).exit_code == 0
    (here / "clarity.yaml").write_text(METRIC.replace("How clear", "How very clear"), encoding="utf-8")
    assert go(here).exit_code == 0
    assert runs_of(here) == [f"{day}-nocommit", f"{day}-nocommit-2", f"{day}-nocommit-3"]
    for number, held in ((1, "at 0."), (2, "at 0. Or not.")):
        place = here / "runs" / (f"{day}-nocommit" if number == 1 else f"{day}-nocommit-{number}")
        assert read_rows(place / "first" / "scores.jsonl")[0]["output"].endswith(held)


def test_without_a_placeholder_the_error_names_it_before_a_judge_is_loaded(here, monkeypatch):
    fixed = ("--set", "outputs=out")
    assert go(here, *fixed).exit_code == 0
    rows(here, " Or not.")
    monkeypatch.setattr(Judge, "load", None)
    for more in ((), ("--check",)):
        done = go(here, *fixed, *more)
        assert done.exit_code == 2
        assert "holds a run of another configuration: the input" in " ".join(done.stderr.split())
        assert "outputs: runs/{date}-{commit}" in done.stderr


def test_an_interrupted_run_goes_on_where_it_is_even_later(here, monkeypatch):
    class Once(RunEvents):
        def should_stop(self) -> bool:
            return True

    set_ = ["outputs=runs/{date}-{time}", "report=false"]
    with pytest.raises(KeyboardInterrupt):
        run_evaluation("evaluation.yaml", overrides=set_, events=lambda one: Once())
    (begun,) = runs_of(here)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}", begun)
    later = here / "runs" / "2026-01-01-000000"
    (here / "runs" / begun).rename(later)
    run_evaluation("evaluation.yaml", overrides=set_)
    assert runs_of(here) == [later.name]
    assert (later / "first" / "scores.jsonl").is_file()
    run_evaluation("evaluation.yaml", overrides=set_)
    assert len(runs_of(here)) == 2


def test_placeholders_are_filled_in_utc_and_with_the_commit(here):
    when = datetime(2026, 11, 29, 4, 5, 6, tzinfo=timezone.utc)
    assert history.filled("r/{date}/{time}-{commit}", when, "abc") == "r/2026-11-29/040506-abc"
    assert history.commit_of(here) == "nocommit"
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-mx"],
    ):
        subprocess.run(["git", *words], check=True, cwd=here)
    full = subprocess.run(["git", "rev-parse", "HEAD"], check=True, cwd=here, capture_output=True, text=True).stdout
    assert history.commit_of(here) == full[:10]
    (here / "deeper").mkdir()
    assert history.commit_of(here / "deeper") == full[:10]
    (here / "evaluation.yaml").write_text(EVALUATION.replace("{date}", "{dat}"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"line 9: .*there is no placeholder \{dat\}; did you mean 'date'"):
        read_evaluation("evaluation.yaml")


def test_directories_of_others_are_no_runs_of_a_pattern(here):
    for name in (
        "2026-11-29-abcdef1234",
        "2026-11-29-abcdef1234-2",
        "2026-11-30-nocommit",
        "notes-abcdef1234",
        "2026-11",
    ):
        (here / "runs" / name).mkdir(parents=True)
    found = history.made_by(str(here / "runs" / "{date}-{commit}"))
    assert [one.name for one in found] == ["2026-11-29-abcdef1234", "2026-11-29-abcdef1234-2", "2026-11-30-nocommit"]
    assert [one.name for one in history.made_by(str(here / "runs" / "{date}-{commit}"), commit="nocommit")] == [
        "2026-11-30-nocommit"
    ]


# --- the baseline ---------------------------------------------------------------------------------------------------


def test_the_last_run_is_the_newest_finished_one(here):
    first = go(here, "--against", "last")
    assert first.exit_code == 0, first.stderr
    assert "no earlier run is a baseline (there is none)" in first.stderr
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    rows(here, " Or not.")
    second = go(here, "--against", "last", "--json")
    assert second.exit_code == 0, second.stderr
    assert f"the baseline is {day}" not in second.stderr
    assert f"runs/{day}-nocommit/first/scores.jsonl" in second.stderr
    held = json.loads(second.stdout)["gates"]
    assert [(one["figure"], one["passed"]) for one in held] == [("unscored", True), ("not_worse", True)]
    # An unfinished run is never the last one.
    rows(here, " Perhaps.")

    class Once(RunEvents):
        def should_stop(self) -> bool:
            return True

    with pytest.raises(KeyboardInterrupt):
        run_evaluation("evaluation.yaml", overrides=["report=false"], events=lambda one: Once())
    assert len(runs_of(here)) == 3
    rows(here, " Certainly.")
    (plan,) = make_plan(read_evaluation("evaluation.yaml", ["baseline=last"])).data
    assert plan.baseline is not None
    assert plan.baseline.path.parent.parent.name == f"{day}-nocommit-2"
    assert plan.directory.parent.name == f"{day}-nocommit-4"


def test_a_run_whose_gates_failed_is_counted_and_no_baseline(here):
    assert go(here, "--set", "gates.all.unscored=< 0").exit_code == 1
    rows(here, " Or not.")
    told = go(here, "--against", "last", "--check").stderr
    assert "no earlier run is a baseline (of 1 run 1 failed a gate)" in told


def test_a_drop_fails_and_says_how_far_and_for_whom(here):
    old = better(here, "old", 1.0, lambda row: row["language"] == "fr")
    gates = "gates={clarity: {by: {language: {not_worse: true}}}}"
    done = go(here, "--against", old, "--set", gates, "--json", "--summary", "job.md", "--junit", "gates.xml")
    assert done.exit_code == 1, done.stderr
    record = json.loads(done.stdout)
    (told,) = record["failed_gates"]
    assert told.startswith("first: clarity, language = fr: the mean fell by ")
    assert f"gate failed: {told}" in " ".join(done.stderr.split())
    assert "gates: 1 of 2 hold" in done.stderr
    assert [(one["slice"]["value"], one["passed"]) for one in record["gates"]] == [("de", True), ("fr", False)]
    assert set(record["data"]["first"]["metrics"]["clarity"]["by"]["language"]) == {"de", "fr"}
    root = ElementTree.parse(here / "gates.xml").getroot()
    cases = list(root.iter("testcase"))
    assert [case.get("name") for case in cases] == [
        "clarity, language = de: not_worse",
        "clarity, language = fr: not_worse",
    ]
    assert [case.find("failure") is not None for case in cases] == [False, True]
    assert (root.get("tests"), root.get("failures")) == ("2", "1")
    told = (here / "job.md").read_text(encoding="utf-8")
    assert told.startswith("<!-- geval-local gates")
    assert "\n### evaluation.yaml: 1 of 2 gates failed\n" in told
    assert "| failed | first: clarity, language = fr: not\\_worse | the mean fell by " in told
    assert "| first | clarity | language = de | 20 of 20 |" in told


def test_a_margin_has_to_be_shown_and_a_baseline_without_a_gate_makes_one(here):
    old = better(here, "old", 0.0)
    assert go(here, "--against", old).exit_code == 0
    narrow = go(here, "--against", old, "--set", "gates.clarity.not_worse=0.01")
    assert narrow.exit_code == 1
    assert "not shown to be less than 0.01 lower" in " ".join(narrow.stderr.split())
    assert go(here, "--against", old, "--set", "gates.clarity.not_worse=2").exit_code == 0
    worse = better(here, "worse", 1.0)
    (here / "evaluation.yaml").write_text(EVALUATION + "baseline: worse.jsonl\n", encoding="utf-8")
    done = go(here)
    assert done.exit_code == 1
    assert "first: clarity: the mean fell by " in " ".join(done.stderr.split())
    assert worse.is_file()


def test_other_signatures_fail_the_gate_and_say_the_way_out(here):
    old = better(here, "old", 0.0)
    (here / "clarity.yaml").write_text(METRIC.replace("How clear", "How very clear"), encoding="utf-8")
    done = go(here, "--against", old, "--json")
    assert done.exit_code == 1
    (told,) = json.loads(done.stdout)["failed_gates"]
    assert "it cannot be compared with the baseline" in told
    assert "metric clarity: changed in criteria" in told
    assert "accept: true" in told
    assert "across: [metric]" in told
    allowed = go(here, "--against", old, "--set", "baseline.across=[metric]")
    assert allowed.exit_code == 0, allowed.stderr


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("baseline: runs/none\n", "line 10: there is no file"),
        ("baseline: first.jsonl\noutputs: x\n", "outputs"),
        ("baseline: {run: old, acros: [any]}\n", "did you mean 'across'?"),
    ],
)
def test_what_is_wrong_with_a_baseline_is_told_before_a_judge_is_loaded(here, monkeypatch, more, told):
    (here / "evaluation.yaml").write_text(EVALUATION + more, encoding="utf-8")
    monkeypatch.setattr(Judge, "load", None)
    done = go(here)
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split()), done.stderr


def test_a_gate_of_a_baseline_needs_one(here):
    done = go(here, "--check", "--set", "gates.clarity.not_worse=true")
    assert done.exit_code == 2
    assert "not_worse compares with a baseline, and none is named" in " ".join(done.stderr.split())
    done = go(here, "--check", "--against", "last", "--set", "outputs=out")
    assert done.exit_code == 2
    assert "the last run is replaced by this one" in " ".join(done.stderr.split())
    done = go(here, "--check", "--set", "gates.clarity.not_worse=9", "--against", "last")
    assert "9 is the whole scale 1-5 of clarity" in " ".join(done.stderr.split())
    for wrong in ("false", "-1", "'>= 3'"):
        done = go(here, "--check", "--set", f"gates.clarity.not_worse={wrong}", "--against", "last")
        assert done.exit_code == 2
        assert "is neither true nor a margin of 0 or more" in " ".join(done.stderr.split())
        assert "boolean" not in done.stderr


# --- slices ---------------------------------------------------------------------------------------------------------


def test_slices_have_figures_and_gates_and_their_page_shows_them(here):
    done = go(here, "--by", "length", "--set", "gates.clarity.by.language.mean=>= 4.9")
    assert done.exit_code == 1, done.stderr
    assert "gate failed: first: clarity, language = de: the mean" in " ".join(done.stderr.split())
    assert re.search(r"^language +scored +documents", done.stdout, re.MULTILINE)
    assert re.search(r"^length +scored", done.stdout, re.MULTILINE)
    page = next((here / "runs").glob("*/first.html")).read_text(encoding="utf-8")
    assert "by language" in page
    assert "by length" in page


def test_a_slice_that_is_hardly_scored_passes_no_gate_of_a_mean(here):
    found = read_rows(here / "first.jsonl")
    for row in found[:9:3]:
        row["output"] = ""
    write_rows(here / "first.jsonl", found)
    gate = ("--set", "gates={clarity: {by: {language: {mean: '>= 1'}}}}")
    done = go(here, *gate)
    assert done.exit_code == 1
    assert "clarity, language = fr: 7 of 10 rows have a score, fewer than the 90%" in " ".join(done.stderr.split())
    assert "language = de" not in done.stderr.replace("clarity, language = de: the mean is", "")
    assert go(here, *gate, "--set", "gates.clarity.unscored=<= 3").exit_code == 0


def test_an_id_makes_no_slices_and_no_judge_is_loaded(here, monkeypatch):
    monkeypatch.setattr(Judge, "load", None)
    for arguments in (("--by", "id"), ("--check", "--by", "id")):
        done = go(here, *arguments)
        assert done.exit_code == 2
        assert "`by: id`: the column has 30 different values" in " ".join(done.stderr.split())
    scored = run(
        "score", "first.jsonl", "-m", "clarity.yaml", "-j", "tiny", "--by", "id", "-o", "o/", home=here / "home"
    )
    assert scored.exit_code == 2
    assert "30 different values" in scored.stderr
    assert not (here / "o").exists()


# --- what a pipeline shows ------------------------------------------------------------------------------------------


def test_hostile_names_stay_text_in_both_files():
    name = 'a|b<script>&"\x00\x1b[31m`x`\n# y'
    found = [GateOutcome(Gate("mean", parse_limit("mean", ">= 3"), name), "failed", "low", data="d|e")]
    root = ElementTree.fromstring(junit_text(found, name).encode())
    (case,) = root.iter("testcase")
    assert '<script>&"' in case.get("name")
    assert "\x00" not in case.find("failure").text
    lines = markdown_text(found, name).splitlines()
    assert lines[0].startswith("### a\\|b\\<script\\>")
    (row,) = [line for line in lines if line.startswith("| failed")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    assert not any(line.startswith("# ") for line in lines)


def test_a_junit_file_of_others_stays(here):
    (here / "junit.xml").write_text("<testsuites/>", encoding="utf-8")
    done = go(here, "--junit", "junit.xml")
    assert done.exit_code == 2
    assert "was not written by geval-local" in done.stderr
    assert go(here, "--junit", "own.xml").exit_code == 0
    assert go(here, "--junit", "own.xml", "--summary", "none/there.md").exit_code == 2
    assert go(here, "--junit", "own.xml").exit_code == 0


def test_what_init_writes_as_comments_is_valid_without_the_marks(here):
    text = start_evaluation(here / "started.yaml", here / "first.jsonl", metrics=["clarity.yaml"], judges=["tiny"])[0]
    text = re.sub(r"^( *)# ( *)(baseline|not_worse|by|mean|clarity):", r"\1\2\3:", text, flags=re.MULTILINE)
    (here / "started.yaml").write_text(text.replace("runs/started", "runs/{date}-{commit}"), encoding="utf-8")
    (plan,) = make_plan(read_evaluation("started.yaml")).data
    assert [(gate.told, gate.by) for gate in plan.gates] == [
        ("unscored <= 5.00%", None),
        ("mean >= 3", None),
        ("not_worse", None),
        ("not_worse", "language"),
    ]
    assert plan.waits
