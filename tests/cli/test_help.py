"""Help pages: an example on each, whose options exist; no type of flags, no line broken in the middle of a sentence."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer
from cli_run import run

from geval_local import bias, calibrate, compare, estimate, is_worse, jury, plan_ratings, rank
from geval_local.analysis.results import Reading
from geval_local.cli.app import PANELS, VERBS, app
from geval_local.cli.options import Gates

ROOT = Path(__file__).parents[2]

EXAMPLES = {path: lines for path, (_, *lines) in VERBS.items()}


def _paths(command, path=()):
    for name, one in getattr(command, "commands", {}).items():
        yield from _paths(one, (*path, name)) if hasattr(one, "commands") else [" ".join((*path, name))]


PATHS = sorted(_paths(typer.main.get_command(app)))


def options_of(path):
    command = typer.main.get_command(app)
    for name in path.split():
        command = command.commands[name]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_verb_has_an_example():
    assert sorted(path for path, lines in EXAMPLES.items() if lines) == PATHS


@pytest.mark.parametrize("path", PATHS)
def test_examples_name_options_that_exist(path):
    for line in EXAMPLES[path]:
        program, *words = shlex.split(line)
        assert program == "geval-local"
        assert words[: len(path.split())] == path.split()
        assert {word for word in words if word.startswith("-")} <= options_of(path)


@pytest.mark.parametrize("path", ["score", "judges check", "bias"])
def test_a_help_page_ends_with_its_examples_and_shows_no_type_of_flags(path, tmp_path):
    shown = run(*path.split(), "--help", home=tmp_path).stdout
    assert "<bool>" not in shown
    assert "Examples:" in shown
    flat = " ".join(shown.split())
    assert EXAMPLES[path][0] in flat
    prose = [line for line in shown.splitlines() if line.startswith(" ") and not re.search("[│╭╰]", line)]
    short = [a for a, b in itertools.pairwise(prose) if b.strip() and a.strip() and len(a.rstrip()) < 50]
    assert not [line for line in short if re.search(r"[a-z,]$", line)]


@pytest.mark.parametrize("path", PATHS)
def test_a_help_page_fits_a_hundred_lines_and_all_options_are_shown_when_asked(path, tmp_path):
    shown = run(*path.split(), "--help", home=tmp_path).stdout
    assert len(shown.splitlines()) <= 100
    whole = run(*path.split(), "--help-all", home=tmp_path)
    assert whole.exit_code == 0
    missing = [name for name in options_of(path) if name.startswith("--") and name not in whole.stdout]
    assert not missing


def test_what_the_help_leaves_out_is_counted_and_valid(tmp_path):
    shown, whole = (run("score", given, home=tmp_path).stdout for given in ("--help", "--help-all"))
    assert "--think-top-p" not in shown
    assert "--think-top-p" in whole
    count = int(re.search(r"score --help-all shows (\d+) more options", " ".join(shown.split()))[1])
    assert count == sum(name not in shown for name in options_of("score") if name.startswith("--"))


def test_every_verb_stands_under_a_heading(tmp_path):
    named = [verb for verbs in PANELS.values() for verb in verbs]
    assert sorted(named) == sorted({path.split()[0] for path in PATHS})
    shown = run("--help", home=tmp_path).stdout
    assert [line for line in shown.splitlines() if any(f" {panel} " in line for panel in PANELS)]


@pytest.mark.parametrize("place", ["docs/reference/exit-codes.md", "--help"])
def test_every_gate_stands_where_the_exit_codes_are_explained(place, tmp_path):
    if place == "--help":
        said = " ".join(re.findall(r"1 a gate failed \((.*?)\)", " ".join(run("--help", home=tmp_path).stdout.split())))
    else:
        said = " ".join(re.findall(r"^\| (`--.*?) \|", (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE))
    gates = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(Gates)]
    assert sorted(re.findall(r"--[a-z-]+", said)) == sorted(gates)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["preferences", "pairs.jsonl"], "the verb preferences is called rank now"),
        (["rank", "pairs.jsonl", "--new", "systems"], "--new is an option no more\nWrite --target"),
        (
            ["meta-eval", "a.json", "--from-responses", "b.json"],
            "--from-responses is an option no more\nWrite --responses",
        ),
    ],
)
def test_a_former_name_is_refused_with_what_it_is_called_now(command, told, tmp_path):
    done = run(*command, home=tmp_path)
    assert (done.exit_code, told in done.stderr) == (2, True), done.stderr


#: Verb -> the functions of Python that it calls.
IN_PYTHON = {
    "compare": (compare,),
    "gate": (is_worse,),
    "rank": (rank,),
    "bias": (bias,),
    "calibrate": (calibrate,),
    "jury": (jury,),
    "estimate": (estimate, plan_ratings),
}
#: What a command line alone has: files to write, and `--plan`, which asks for the second function.
FILES = {"as_json", "output", "overwrite", "page", "summary", "junit", "plan"}


@pytest.mark.parametrize("verb", IN_PYTHON)
def test_an_option_of_an_analysis_has_its_name_in_python(verb):
    known = {name for function in IN_PYTHON[verb] for name in inspect.signature(function).parameters}
    options = {one.name for one in typer.main.get_command(app).commands[verb].params if one.opts[0].startswith("-")}
    assert options - known - set(Reading.__annotations__) <= FILES
