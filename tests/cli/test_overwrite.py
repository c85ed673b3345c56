"""``-o``: a user's file is replaced only with --overwrite, a result of this tool without it."""

from __future__ import annotations

import os

import pytest
from cli_run import judge_directory, run
from rated_runs import other_judge, prepare, score

from geval_local.io.result_manifest import manifest_path

MINE = b"my own notes\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    prepare(directory)
    score(directory, "a.jsonl")
    score(directory, "b.jsonl", judge=other_judge())
    return directory


COMMANDS = {
    "jury": (("jury", "a.jsonl", "b.jsonl", "-o"), "out.jsonl"),
    "report": (("report", "a.jsonl", "-o"), "out.html"),
    "compare": (("compare", "a.jsonl", "b.jsonl", "--across", "judge", "--page"), "out.html"),
    "calibrate": (("calibrate", "a.jsonl", "--human", "rating.clarity", "-o"), "out.json"),
}


def call(runs, tmp_path, verb, output, *more):
    command = [str(runs / word) if word.endswith(".jsonl") else word for word in COMMANDS[verb][0]]
    return run(*command, output, *more, home=tmp_path / "home")


@pytest.mark.sweep
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_file_of_the_users_needs_leave_and_own_files_do_not(runs, tmp_path, verb):
    output = tmp_path / COMMANDS[verb][1]
    output.write_bytes(MINE)
    refused = call(runs, tmp_path, verb, output)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    assert output.read_bytes() == MINE
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == [output.name]
    replaced = call(runs, tmp_path, verb, output, "--overwrite")
    assert replaced.exit_code == 0, replaced.stderr
    assert output.read_bytes() != MINE
    again = call(runs, tmp_path, verb, output)
    assert again.exit_code == 0, again.stderr


def edit(path):
    """What a person adds: a note, in a place where the format allows it."""
    text = path.read_text(encoding="utf-8")
    note = {".html": "<!-- mine -->\n", ".jsonl": "\n"}.get(path.suffix)
    path.write_text(text.replace("{", '{"mine": 1,', 1) if note is None else text + note, encoding="utf-8")


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_result_that_was_edited_is_the_users_again(runs, tmp_path, verb):
    output = tmp_path / COMMANDS[verb][1]
    assert call(runs, tmp_path, verb, output).exit_code == 0
    edit(output)
    edited = output.read_bytes()
    refused = call(runs, tmp_path, verb, output)
    assert refused.exit_code == 2
    assert f"{output.name} exists, and is not an unchanged result of this tool" in refused.stderr
    assert output.read_bytes() == edited
    assert call(runs, tmp_path, verb, output, "--overwrite").exit_code == 0


def test_a_manifest_that_was_edited_is_the_users_again(runs, tmp_path):
    output = tmp_path / "out.jsonl"
    assert call(runs, tmp_path, "jury", output).exit_code == 0
    edit(manifest_path(output))
    edited = manifest_path(output).read_bytes()
    assert call(runs, tmp_path, "jury", output).exit_code == 2
    assert manifest_path(output).read_bytes() == edited
    assert call(runs, tmp_path, "jury", output, "--overwrite").exit_code == 0


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "directory", "pipe"])
def test_no_verb_writes_through_a_link_or_into_what_is_no_file(runs, tmp_path, verb, kind):
    if (verb, kind) == ("report", "directory"):
        pytest.skip("the pages of a site go there")
    output, kept = tmp_path / COMMANDS[verb][1], tmp_path / "kept"
    if kind != "dangling link":
        kept.write_bytes(MINE)
    if kind == "hard link":
        output.hardlink_to(kept)
    elif kind == "directory":
        output.mkdir()
    elif kind == "pipe":
        os.mkfifo(output)
    else:
        output.symlink_to(kept)
    for more in ((), ("--overwrite",)):
        refused = call(runs, tmp_path, verb, output, *more)
        assert refused.exit_code == 2, refused.stdout
        assert kind.split()[-1] in refused.stderr
    assert kept.exists() == (kind != "dangling link")
    assert kind == "dangling link" or kept.read_bytes() == MINE


def test_a_jury_spares_a_foreign_manifest(runs, tmp_path):
    output = tmp_path / "out.jsonl"
    manifest_path(output).write_bytes(MINE)
    for more in ((), ("--overwrite",)):
        assert call(runs, tmp_path, "jury", output, *more).exit_code == 2
        assert manifest_path(output).read_bytes() == MINE
        assert not output.exists()


@pytest.mark.sweep
@pytest.mark.parametrize("edit", ["foreign", "changed"])
def test_kept_files_of_a_meta_evaluation_are_not_written_over(runs, tmp_path, edit):
    kept = tmp_path / "kept"
    command = ["meta-eval", runs / "data.jsonl", "-m", runs / "clarity.yaml", "--human", "rating.clarity"]
    command += ["--judge", judge_directory(), "-o", kept, "--no-baselines"]
    first = run(*command, home=tmp_path / "home")
    assert first.exit_code == 0, first.stderr
    assert run(*command, home=tmp_path / "home").exit_code == 0
    (file,) = kept.glob("*.jsonl")
    if edit == "foreign":
        manifest_path(file).unlink()
        file.write_bytes(MINE)
    else:
        file.write_bytes(file.read_bytes().replace(b"It ends", b"it ends", 1))
    before = file.read_bytes()
    refused = run(*command, home=tmp_path / "home")
    assert refused.exit_code == 2
    assert "cannot be verified: it is not an unchanged result of this tool" in refused.stderr
    assert "Choose another directory with -o, or delete the file." in refused.stderr
    assert file.read_bytes() == before
