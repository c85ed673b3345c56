"""A user's files are theirs: files that a run did not make stay unchanged, whatever happens to the run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from cli_run import METRIC, good_rows, judge_directory, read_rows, run, write_rows
from run_kit import execute, wanted, write_input

from geval_local import Judge
from geval_local.errors import Interrupted, OutputError
from geval_local.files import safe_file_name
from geval_local.io.result_manifest import manifest_path
from geval_local.metric import Metric
from geval_local.runs import directory as directories
from geval_local.runs.directory import open_run
from geval_local.runs.manifest import definition, read_manifest, write_manifest
from geval_local.runs.own_files import LOCK_NAME


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "data.jsonl", good_rows(12))
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    return tmp_path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    return write_input(tmp_path / "in.jsonl", 40)


@pytest.fixture
def started(file: Path) -> Path:
    """A run that was stopped in its middle."""
    with pytest.raises(Interrupted):
        execute(file.parent / "run", wanted(file, window=12), stop_after=2)
    return file.parent / "run"


def score(here: Path, *arguments: object, home: Path | None = None):
    named = ["--judge", judge_directory()] if "--judge" not in arguments else []
    return run("score", "data.jsonl", "--metric", "clarity.yaml", *named, *arguments, home=home or here / "home")


def broken_judge(here: Path) -> Path:
    """A judge with truncated weights."""
    copy = here / "broken"
    shutil.copytree(judge_directory(), copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    return copy


def tree(root: Path) -> dict[str, object]:
    """Everything below a directory but a run's own lock: kinds, permissions, contents, targets of links, times."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        if path.name == LOCK_NAME:
            continue
        status = path.lstat()
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            content = (path.read_bytes(), status.st_mtime_ns)
        found[str(path.relative_to(root))] = (status.st_mode, content)
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def foreign_project(place: Path) -> Path:
    """A project directory with names that a run has too."""
    for folder in ("steps", "parts", ".git"):
        (place / folder).mkdir(parents=True)
    for name in ("steps/thesis.txt", "parts/cad.step", ".git/HEAD", ".gitignore", "scores.sqlite", "scores.sqlite.bak"):
        (place / name).write_text("mine")
    for name in (".draft.tmp", ".manifest.json.tmp", "scores.jsonl", "scores.sqlite-wal", "parts/.a.tmp", ".lock"):
        (place / name).write_text("mine too")
    return place


# --- a directory that is not a run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", ["good", "broken"])
@pytest.mark.parametrize("output", ["proj/", "proj", "."])
def test_a_foreign_directory_is_refused_and_stays_to_the_byte(here, monkeypatch, judge, output):
    project = foreign_project(here / "proj")
    named = broken_judge(here) if judge == "broken" else judge_directory()
    data, metric = here / "data.jsonl", here / "clarity.yaml"
    if output == ".":
        monkeypatch.chdir(project)
    before = tree(project)
    done = run("score", data, "-m", metric, "--judge", named, "-o", output, "--overwrite", home=here / "home")
    assert done.exit_code == 2, done.stderr
    assert "is not empty and holds no run; it has .draft.tmp, .git" in done.stderr
    assert tree(project) == before


@pytest.mark.parametrize("names", [[".gitignore"], ["scores.sqlite"], [".lock"], ["manifest.json"], ["steps/a.yaml"]])
def test_one_file_is_enough(here, names):
    for name in names:
        (here / "proj" / name).parent.mkdir(parents=True)
        (here / "proj" / name).write_text('{"name": "a web app"}')
    before = tree(here / "proj")
    done = score(here, "-o", "proj/")
    assert done.exit_code == 2
    assert "holds no run" in done.stderr
    assert tree(here / "proj") == before


@pytest.mark.parametrize("text", ["", " ", "\t"])
def test_an_empty_output_is_refused(here, text):
    before = tree(here)
    done = score(here, "-o", text)
    assert done.exit_code == 2
    assert "--output is empty" in done.stderr
    assert tree(here) == before


@pytest.mark.parametrize("text", ["a\0b.jsonl", "x" * 300 + ".jsonl", "x" * 246 + ".jsonl", "x" * 300 + "/"])
def test_names_that_no_file_can_have_are_refused_in_words(here, text):
    done = score(here, "-o", text)
    assert done.exit_code == 2, (done.exception, done.stderr)
    assert "error: cannot" in done.stderr


def test_an_empty_directory_of_the_users_is_used_and_stays_after_a_failure(here):
    (here / "empty").mkdir(mode=0o755)
    assert score(here, "-o", "empty/", "--judge", broken_judge(here)).exit_code == 2
    assert list((here / "empty").iterdir()) == []
    assert score(here, "-o", "empty/").exit_code == 0
    assert mode(here / "empty") == 0o755


def test_links_are_not_followed_out_of_a_directory(file, tmp_path):
    metric = Metric(name="tone", criteria="Kind?", fields={"output": "Text"}, scale="1-5", steps=("Read.", "Score."))
    started = tmp_path / "run"
    asked = {"window": 12, "metrics": [definition(metric)]}
    with pytest.raises(Interrupted):
        execute(started, wanted(file, **asked), stop_after=2)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.yaml").write_text("mine")
    for name in ("steps", "scores.jsonl", "scores.sqlite-wal"):
        kept = started / name
        kept_before = kept.exists() and kept.rename(tmp_path / "aside")
        kept.symlink_to(outside if name == "steps" else outside / "precious.yaml")
        before = tree(outside), tree(started)
        for overwrite in (False, True):
            with pytest.raises(OutputError, match="is a link"), open_run(started, None, overwrite=overwrite):
                pass
        assert (tree(outside), tree(started)) == before
        kept.unlink()
        if kept_before:
            (tmp_path / "aside").rename(kept)
    shutil.copytree(started, tmp_path / "linked")
    (tmp_path / "linked" / "manifest.json").unlink()
    (tmp_path / "linked" / "manifest.json").symlink_to(started / "manifest.json")
    with pytest.raises(OutputError, match="holds no run"):
        execute(tmp_path / "linked", wanted(file, **asked))


# --- files that a user puts into a run directory ----------------------------------------------------------------------

MINE = ("notes.txt", ".draft.tmp", "steps/mine.txt", "parts/cad.step", "scores.csv", "scores.sqlite.bak", ".lock")


def put_mine(directory: Path) -> dict[str, bytes]:
    for name in MINE:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(f"mine: {name}")
    return {name: (directory / name).read_bytes() for name in MINE}


def mine(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in MINE}


def test_they_survive_resume_failure_undo_and_overwrite(started, file):
    before = put_mine(started)
    execute(started, None)
    assert mine(started) == before

    def broken():
        raise ValueError("no such judge")

    with (
        pytest.raises(ValueError, match="no such judge"),
        open_run(started, wanted(file, window=13), overwrite=True) as opened,
    ):
        list(opened.rows(lambda record: broken()))
    assert mine(started) == before
    execute(started, wanted(file, window=14))
    with open_run(started, wanted(file, window=15), overwrite=True):
        pass
    assert mine(started) == before


def test_a_result_that_was_changed_by_hand_is_not_overwritten(started):
    (path,) = execute(started, None)
    path.write_text(path.read_text() + "a line of my own\n")
    before = tree(started)
    for arguments in ({}, {"overwrite": True}):
        with (
            pytest.raises(OutputError, match=r"scores.jsonl exists, and is not as this tool made it"),
            open_run(started, None, **arguments),
        ):
            pass
    assert tree(started) == before


def test_a_format_that_is_added_does_not_overwrite_a_file_of_that_name(started, file):
    (started / "scores.csv").write_text("mine")
    before = tree(started)
    with pytest.raises(OutputError, match=r"scores\.csv exists"):
        execute(started, wanted(file, window=12, formats=["jsonl", "csv"]))
    assert tree(started) == before


def test_overwrite_removes_what_the_manifest_names_and_nothing_else(here):
    assert score(here, "-o", "run/").exit_code == 0
    refused = score(here, "-o", "run/", "--limit", 3)
    assert refused.exit_code == 2
    assert "--limit was None, is 3" in refused.stderr
    assert "--overwrite" in refused.stderr
    before = put_mine(here / "run")
    done = score(here, "-o", "run/", "--limit", 3, "--overwrite")
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(here / "run" / "scores.jsonl")) == 3
    assert mine(here / "run") == before


# --- a file as output -------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_a_file_of_the_users_needs_overwrite(here, monkeypatch, name):
    (here / name).write_text("mine")
    before = tree(here)
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "load", lambda *given, **named: pytest.fail("the judge was loaded first"))
        done = score(here, "-o", name)
    assert done.exit_code == 2
    assert f"{name} exists, and is not an unchanged result of this tool" in done.stderr
    assert "--overwrite" in done.stderr
    assert tree(here) == before
    assert score(here, "-o", name, "--overwrite").exit_code == 0
    assert (here / name).read_text() != "mine"
    assert score(here, "-o", name, "--limit", 3).exit_code == 0  # a result, unchanged
    (here / name).write_text((here / name).read_text() + "\n")
    assert score(here, "-o", name).exit_code == 2


def test_a_failed_overwrite_leaves_the_file(here):
    (here / "out.jsonl").write_text("mine")
    before = tree(here)
    judge = broken_judge(here)
    assert score(here, "-o", "out.jsonl", "--overwrite", "--judge", judge).exit_code == 2
    shutil.rmtree(judge)
    shutil.rmtree(here / "home", ignore_errors=True)
    assert tree(here) == before


def test_a_foreign_description_is_never_overwritten(here):
    (here / "out.jsonl.meta.json").write_text('{"mine": 1}')
    before = tree(here)
    done = score(here, "-o", "out.jsonl", "--overwrite")
    assert done.exit_code == 2
    assert "is not a manifest of this tool" in done.stderr
    assert tree(here) == before


def test_a_link_as_output_file_is_refused(here):
    (here / "real.jsonl").write_text("mine")
    for target in ("real.jsonl", "nowhere.jsonl"):
        (here / "link.jsonl").symlink_to(target)
        before = tree(here)
        done = score(here, "-o", "link.jsonl", "--overwrite")
        assert done.exit_code == 2
        assert f"is a link to {target}" in done.stderr
        assert tree(here) == before
        (here / "link.jsonl").unlink()


def test_a_foreign_side_directory_is_refused(here):
    (here / ".out.jsonl.run").mkdir()
    (here / ".out.jsonl.run" / "mine.txt").write_text("mine")
    before = tree(here)
    done = score(here, "-o", "out.jsonl")
    assert done.exit_code == 2
    assert "mine.txt" in done.stderr
    assert tree(here) == before


@pytest.mark.slow
def test_a_file_that_comes_to_be_during_the_run_is_kept(here, monkeypatch):
    outcome = Judge.outcome

    def meddling(*given):
        (here / "out.jsonl").write_text("mine")
        return outcome(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "outcome", meddling)
        done = score(here, "-o", "out.jsonl")
    assert done.exit_code == 2
    assert "was created or changed during this run" in done.stderr
    assert (here / "out.jsonl").read_text() == "mine"
    refused = run("resume", "out.jsonl", home=here / "home")
    assert refused.exit_code == 2
    assert (here / "out.jsonl").read_text() == "mine"
    (here / "out.jsonl").rename(here / "kept.jsonl")
    assert run("resume", "out.jsonl", home=here / "home").exit_code == 0
    assert len(read_rows(here / "out.jsonl")) == 12
    assert not (here / ".out.jsonl.run").exists()


# --- the manifest -----------------------------------------------------------------------------------------------------


def edited(path: Path, change) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def with_checksum(record: dict) -> dict:
    """Sign an edited manifest again, as somebody would who knows how."""
    rest = {key: value for key, value in record.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {"checksum": hashlib.sha256(text.encode()).hexdigest(), **rest}


CHANGES = {
    "output": lambda record: record["settings"].update(output="../victim.jsonl"),
    "absolute output": lambda record: record["settings"].update(output="/tmp/victim.jsonl"),
    "another output": lambda record: record["settings"].update(output="victim.jsonl"),
    "window 0": lambda record: record["settings"].update(window=0),
    "window -1": lambda record: record["settings"].update(window=-1),
    "window true": lambda record: record["settings"].update(window=True),
    "window text": lambda record: record["settings"].update(window="12"),
    "no formats": lambda record: record["settings"].update(formats=[]),
    "unknown format": lambda record: record["settings"].update(formats=["exe"]),
    "no metrics": lambda record: record["settings"].update(metrics=[]),
    "junk metric": lambda record: record["settings"].update(metrics=[{"name": 5}]),
    "junk judge": lambda record: record.update(judges=[{"name": "x"}]),
    "no judges": lambda record: record.update(judges=[]),
    "junk estimator": lambda record: record["settings"].update(estimator={"kind": "guess"}),
    "junk estimator key": lambda record: record["settings"].update(estimator={"k": 1}),
    "junk signature": lambda record: record["judges"][0].update(signatures={"x": 5}),
    "made elsewhere": lambda record: record["made"].update({"../victim.jsonl": []}),
    "made deep": lambda record: record["made"].update({"steps/../../victim.jsonl": []}),
    "made absolute": lambda record: record["made"].update({"/tmp/victim": []}),
    "rows": lambda record: record["input"].update(rows=-1),
    "hash": lambda record: record["input"].update(sha256="junk"),
    "run": lambda record: record.update(run="../../x"),
    "unknown key": lambda record: record.update(extra=1),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("signed", [False, True])
def test_an_edited_manifest_is_refused_with_the_remedy(started, tmp_path, name, signed):
    (tmp_path / "victim.jsonl").write_text("mine")
    path = started / "manifest.json"
    edited(path, CHANGES[name])
    if signed:
        path.write_text(json.dumps(with_checksum(json.loads(path.read_text()))))
    before = tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(OutputError) as caught, open_run(started, None, overwrite=overwrite):
            pass
        assert caught.value.hint
        assert ("was edited" in caught.value.message) is not signed
    assert tree(tmp_path) == before


def test_an_edited_signature_is_refused(started):
    edited(
        started / "manifest.json",
        lambda record: record["judges"][0]["signatures"].update(
            {key: value + "x" for key, value in record["judges"][0]["signatures"].items()}
        ),
    )
    with pytest.raises(OutputError, match="was edited"):
        execute(started, None)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"x"', "{" * 100_000, "\ud800", '{"format": "geval-local run"}']
)
def test_junk_as_manifest_is_refused_in_words(here, text):
    assert score(here, "-o", "run/").exit_code == 0
    (here / "run" / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    before = tree(here / "run")
    for done in (score(here, "-o", "run/"), run("resume", "run", home=here / "home")):
        assert done.exit_code == 2, done.exception
        assert done.stderr.startswith("error: ")
    assert tree(here / "run") == before


def test_a_manifest_of_an_older_version_is_named(started):
    edited(started / "manifest.json", lambda record: record.update(schema_version=1, version="0.0.9"))
    with pytest.raises(OutputError, match=r"another version of geval-local \(0.0.9\)"):
        execute(started, None)


def test_a_run_writes_beside_its_own_directory_wherever_that_is_now(here, monkeypatch):
    interrupted(here, monkeypatch, "-o", "sub/out.jsonl")
    (here / "sub").rename(here / "moved")
    done = run("resume", "moved/out.jsonl", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(here / "moved" / "out.jsonl")) == 12
    assert not (here / "sub").exists()
    interrupted(here, monkeypatch, "-o", "sub/out.jsonl")
    (here / "sub" / ".out.jsonl.run").rename(here / "sub" / ".data.jsonl.run")
    refused = run("resume", "sub/data.jsonl", home=here / "home")
    assert refused.exit_code == 2
    assert "lies in a directory of another name" in refused.stderr


def interrupted(here: Path, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    (here / "sub").mkdir(exist_ok=True)
    outcome, calls = Judge.outcome, []

    def signalling(*given):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return outcome(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "outcome", signalling)
        assert score(here, *arguments, "--batch-tokens", 600, "--no-cache").exit_code == 3


@pytest.mark.parametrize("place", ["/", ".", "..", "nothing", "x" * 300])
def test_resume_names_what_is_no_run(here, place):
    done = run("resume", place, home=here / "home")
    assert done.exit_code == 2, done.exception
    assert done.stderr.startswith("error: ")


def test_resume_in_the_directory_itself(here, monkeypatch):
    interrupted(here, monkeypatch, "-o", "run/")
    monkeypatch.chdir(here / "run")
    done = run("resume", ".", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(here / "run" / "scores.jsonl")) == 12


# --- first attempts that failed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["out.jsonl", "run/"])
def test_a_run_without_outcomes_is_replaced_by_the_corrected_command(here, monkeypatch, output):
    """What a killed process leaves: the manifest and whatever else was there by then."""
    directory = here / (".out.jsonl.run" if output == "out.jsonl" else "run")
    with monkeypatch.context() as patch:
        patch.setattr(directories, "remove_run", lambda *given: None)
        assert score(here, "-o", output, "--judge", broken_judge(here)).exit_code == 2
    assert (directory / "manifest.json").is_file()
    done = score(here, "-o", output, "--limit", 3)
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(here / "out.jsonl" if output == "out.jsonl" else directory / "scores.jsonl")) == 3


def test_a_judge_that_was_met_but_said_nothing_is_no_hindrance(file, tmp_path):
    place = tmp_path / "run"
    with open_run(place, wanted(file)) as opened:
        opened.store.close()
    manifest = read_manifest(place)
    manifest.judges[0] = read_begun(file, tmp_path).judges[0].model_copy(update={"complete": False})
    write_manifest(place, manifest)
    assert manifest.has_begun
    execute(place, wanted(file, window=13))


def read_begun(file: Path, tmp_path: Path):
    execute(tmp_path / "other", wanted(file))
    return read_manifest(tmp_path / "other")


STOPS = [
    "geval_local.runs.directory.write_manifest",
    "geval_local.runs.directory.Store",
    "geval_local.runs.directory.open_directory",
    "geval_local.runs.own_files.OwnFiles.remove",
    "geval_local.runs.own_files.OwnFiles.remove_manifest",
    "geval_local.runs.directory.clean_directory",
]


@pytest.mark.sweep
@pytest.mark.parametrize("place", STOPS)
def test_a_second_interruption_at_any_moment_blocks_nothing(here, monkeypatch, place):
    """The first Ctrl-C while the judge is loaded, the second while the run is undone; or one, early."""

    def stop(*given, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "load", stop)
        patch.setattr(place, stop)
        assert score(here, "-o", "out.jsonl").exit_code == 3
    left = here / ".out.jsonl.run"
    if left.exists():
        names = {path.name for path in left.iterdir()}
        assert names <= {".geval-local.lock"} or "manifest.json" in names
    done = score(here, "-o", "out.jsonl", "--limit", 4)
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(here / "out.jsonl")) == 4
    assert not left.exists()


def test_killed_before_the_manifest_was_whole(here):
    side = here / ".out.jsonl.run"
    side.mkdir()
    (side / ".geval-local.lock").write_text("123")
    (side / ".manifest.json.0123456789abcdef.tmp").write_text('{\n "checksum": "00')
    assert score(here, "-o", "out.jsonl").exit_code == 0
    assert not side.exists()


@pytest.mark.parametrize("is_whole", [False, True], ids=["first", "later"])
def test_a_partial_manifest_of_a_killed_process_goes_with_the_next_run(here, is_whole):
    if is_whole:
        assert score(here, "-o", "out/").exit_code == 0
    (here / "out").mkdir(exist_ok=True)
    (here / "out" / ".manifest.json.0123456789abcdef.tmp").write_text('{\n "checksum": "00')
    (here / "out" / ".geval-local.lock").write_text("123")
    assert score(here, "-o", "out/").exit_code == 0
    assert {path.name for path in (here / "out").glob(".*")} <= {".geval-local.lock"}


@pytest.mark.sweep
@pytest.mark.parametrize("moment", range(6))
def test_a_disk_that_fills_up_leaves_a_run_that_goes_on_or_is_replaced(here, monkeypatch, moment):
    from geval_local import files

    write, calls = files.os.fsync, []

    def full(descriptor):
        calls.append(1)
        if len(calls) > moment:
            raise OSError(28, "No space left on device")
        return write(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("geval_local.files.os.fsync", full)
        done = score(here, "-o", "out.jsonl", "--no-cache")
    assert (done.exit_code, len(calls) > moment) in ((2, True), (0, False)), done.stderr
    done = score(here, "-o", "out.jsonl", "--limit", 5, "--overwrite")
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(here / "out.jsonl")) == 5
    assert not (here / ".out.jsonl.run").exists()


# --- a home that cannot be written ------------------------------------------------------------------------------------


class Writing:
    """Lets the tiny judge write steps."""

    @staticmethod
    def text(*given, **named) -> str:
        return " Read both texts.\n2. Compare them.\n3. Choose a score.\n\n"


@pytest.mark.parametrize("kind", ["file", "proc"])
def test_an_unwritable_home_costs_pins_and_cache_and_one_warning(here, monkeypatch, kind):
    (here / "file").write_text("")
    home = here / "file" / "home" if kind == "file" else Path(f"/proc/{here.name}-home")
    text = METRIC.split("steps:")[0]
    (here / "clarity.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(Judge, "continue_text", Writing.text)
    done = score(here, "-o", "out.jsonl", home=home)
    assert done.exit_code == 0, (done.stderr, done.exception)
    assert len(read_rows(here / "out.jsonl")) == 12
    assert done.stderr.count("steps are not pinned and figures not kept") == 1, done.stderr
    assert str(home) in done.stderr
    shown = run("cache", home=home)
    assert shown.exit_code in (0, 2), shown.exception


# --- names ------------------------------------------------------------------------------------------------------------


def test_ordinary_names_keep_the_names_of_their_files():
    for name in ("summarization/coherence", "x.tone", "Clarity_2", "rag/answer-relevance"):
        assert safe_file_name(name) == name.replace("/", ".")


@pytest.mark.parametrize(
    "name", ["n" * 300, "a/" * 200 + "b", "Verständlichkeit", "明瞭さ" * 100, "..", ".hidden", "a\udc80"]
)
def test_other_names_become_short_ascii_and_stay_distinct(name):
    found = safe_file_name(name)
    assert len(found) <= 100
    assert found.isascii()
    assert not found.startswith(".")
    assert "/" not in found
    assert safe_file_name(name + "x") != found


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["n" * 200, "明瞭さ" * 60])
def test_a_metric_of_a_long_name_is_pinned_and_scored(here, monkeypatch, name):
    (here / "clarity.yaml").write_text(METRIC.split("steps:")[0].replace("clarity", name, 1), encoding="utf-8")
    monkeypatch.setattr(Judge, "continue_text", Writing.text)
    for output in ("run/", "out.jsonl"):
        done = score(here, "-o", output)
        assert done.exit_code == 0, (done.stderr, done.exception)
    assert len(list((here / "home" / "steps").iterdir())) == 1
    assert len(list((here / "run" / "steps").iterdir())) == 1


def test_steps_of_metrics_whose_names_look_alike_have_files_of_their_own(file, tmp_path):
    metrics = [
        Metric(name=name, criteria=f"Is it {name}?", fields={"output": "Text"}, scale="1-5", steps=("Read.", "Score."))
        for name in ("a/b", "a.b", "A.b")
    ]
    execute(tmp_path / "run", wanted(file, metrics=[definition(metric) for metric in metrics]))
    texts = {path.read_text() for path in (tmp_path / "run" / "steps").iterdir()}
    assert len(texts) == 3


# --- damage that SQLite does not see ----------------------------------------------------------------------------------

DAMAGE = {
    "missing row": "DELETE FROM outcomes WHERE row = 7",
    "missing judge": "DELETE FROM outcomes",
    "short blob": "UPDATE outcomes SET logprobs = substr(logprobs, 1, 24) WHERE row = 7",
    "cut blob": "UPDATE outcomes SET logprobs = substr(logprobs, 1, 37) WHERE row = 7",
    "empty blob": "UPDATE outcomes SET logprobs = x'' WHERE row = 7",
    "text as blob": "UPDATE outcomes SET logprobs = 'junk' WHERE row = 7",
    "neither": "UPDATE outcomes SET logprobs = NULL, error = NULL WHERE row = 7",
    "both": "UPDATE outcomes SET error = 'x' WHERE row = 7",
    "bad json": "UPDATE outcomes SET other = '[[' WHERE row = 7",
    "json of another shape": "UPDATE outcomes SET other = '[1, 2]' WHERE row = 7",
    "text as count": "UPDATE outcomes SET prompt_tokens = 'many' WHERE row = 7",
    "another judge": "UPDATE outcomes SET judge = 9 WHERE row = 7",
    "a row too many": "CREATE TEMP TABLE more AS SELECT * FROM outcomes WHERE row = 7; UPDATE more SET row = 4000; "
    "INSERT INTO outcomes SELECT * FROM more",
    "no table": "DROP TABLE outcomes",
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*DAMAGE, "nan"])
def test_damage_of_the_store_is_computed_again_or_refused_before_a_judge_is_loaded(file, tmp_path, name):
    expected = execute(tmp_path / "run", wanted(file))[0].read_bytes()
    with sqlite3.connect(tmp_path / "run" / "scores.sqlite") as connection:
        if name == "nan":
            values = struct.pack("<5d", -1.0, float("nan"), -2.0, -3.0, -4.0)
            connection.execute("UPDATE outcomes SET logprobs = ? WHERE row = 7", (values,))
        else:
            connection.executescript(DAMAGE[name])
    try:
        found = execute(tmp_path / "run", wanted(file))
    except OutputError:
        for threshold in (None, 3.0):
            with pytest.raises(OutputError) as caught:
                execute(
                    tmp_path / "run", wanted(file, threshold=threshold), lambda: pytest.fail("the judge was loaded")
                )
            assert str(tmp_path / "run") in caught.value.message
            assert caught.value.hint
    else:
        assert found[0].read_bytes() == expected


def test_a_row_that_is_missing_from_an_unfinished_run_is_scored_again(started, file, tmp_path):
    expected = execute(tmp_path / "whole", wanted(file, window=12))[0].read_bytes()
    with sqlite3.connect(started / "scores.sqlite") as connection:
        assert connection.execute("DELETE FROM outcomes WHERE row = 3").rowcount
    assert execute(started, None)[0].read_bytes() == expected


def test_a_cache_with_cut_figures_is_left_out(file, tmp_path):
    expected = execute(tmp_path / "one", wanted(file, use_cache=True))[0].read_bytes()
    with sqlite3.connect(tmp_path / "home" / "cache" / "outcomes.sqlite") as connection:
        connection.execute("UPDATE entries SET logprobs = substr(logprobs, 1, 24)")
    assert execute(tmp_path / "two", wanted(file, use_cache=True))[0].read_bytes() == expected


# --- private files ----------------------------------------------------------------------------------------------------


def test_what_a_run_keeps_is_private_and_what_was_asked_for_follows_the_umask(here, monkeypatch):
    (here / "clarity.yaml").write_text(METRIC.split("steps:")[0], encoding="utf-8")
    monkeypatch.setattr(Judge, "continue_text", Writing.text)
    before = os.umask(0o022)
    try:
        assert score(here, "-o", "runs/one/", "--format", "jsonl", "--format", "csv").exit_code == 0
        assert score(here, "-o", "out.jsonl").exit_code == 0
    finally:
        os.umask(before)
    for root in (here / "runs" / "one", here / "home" / "steps", here / "home" / "cache"):
        files = [path for path in root.rglob("*") if path.is_file()]
        assert files
        assert {path.name: oct(mode(path)) for path in files} == dict.fromkeys((path.name for path in files), "0o600")
        assert mode(root) == 0o700
    assert mode(here / "runs" / "one" / "steps") == 0o700
    assert mode(here / "out.jsonl") == 0o644
    assert mode(manifest_path(here / "out.jsonl")) == 0o644


def test_another_process_is_named(file, tmp_path):
    code = "import sys, pathlib, time; from geval_local.runs.own_files import hold\n"
    code += "with hold(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    (tmp_path / "run").mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OutputError, match=f"in use by another process, number {other.pid}"):
            execute(tmp_path / "run", wanted(file))
        other.stdin.close()
        other.wait()
    execute(tmp_path / "run", wanted(file))
