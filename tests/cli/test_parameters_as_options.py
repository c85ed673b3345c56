"""The library names parameters in backticks; the command line shows them as the options of the verb that runs."""

from __future__ import annotations

import pytest
import typer
from cli_run import run, write_rows

from geval_local import compare
from geval_local.cli.app import app
from geval_local.cli.output import console
from geval_local.errors import ConfigurationError


@pytest.fixture
def score(monkeypatch):
    """The options of `score` are those of the verb that runs."""
    monkeypatch.setattr(console, "OPTIONS", {})
    console.set_verb(typer.main.get_command(app).commands["score"].params)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("leave `dtype` out", "leave --dtype out"),
        ("Write `dtype=float32`.", "Write --dtype float32."),
        ("(`group_by=FIELD` changes it)", "(--group-by FIELD changes it)"),
        ("`fields=output='bot reply'` `fields=source=x`", "--field output='bot reply' --field source=x"),
        ("add `overwrite=True` to", "add --overwrite to"),
        ("`steps=False` goes without", "--no-steps goes without"),
        ("`models_file=FILE`, `formats`", "--models FILE, --format"),
        (
            "`rater_column=COLUMN` of the analyses, `skip_outside=True`",
            "--rater-column COLUMN of the analyses, --skip-outside",
        ),
        ("leave it out by `use_cache=False`", "leave it out by --no-cache"),
        ("the column `rater_column`", "the column `rater_column`"),
        ("`tracking_uri=x` or `nothing`, `threshold=", "`tracking_uri=x` or `nothing`, `threshold="),
        ("`geval-local score FILE -o OUT`", "`geval-local score FILE -o OUT`"),
        ("in '`dtype`.csv' and /`dtype`/x", "in '`dtype`.csv' and /`dtype`/x"),
        ("dtype and overwrite=True", "dtype and overwrite=True"),
    ],
)
def test_parameters_become_options(text, shown, score):
    assert console.as_options(text) == shown


def test_a_verb_shows_its_own_options_only(monkeypatch):
    monkeypatch.setattr(console, "OPTIONS", {})
    console.set_verb(typer.main.get_command(app).commands["run"].params)
    assert console.as_options("`overrides=a=1`; `label_mass`") == "--set a=1; `label_mass`"


def test_the_file_of_an_evaluation_has_the_other_parameters(monkeypatch):
    monkeypatch.setattr(console, "OPTIONS", {})
    console.set_verb(typer.main.get_command(app).commands["run"].params)
    assert console.as_options("`fields=output=a` and `overwrite=True`") == "`fields: {output: a}` and --overwrite"
    assert console.as_options("`rater_column=A`") == "`rater_column: A`"


def test_a_page_shows_options_too(tmp_path):
    rows = [
        {"question": f"What is {place // 2}?", "output": "It is.", "geval": {"m": {"score": 1.0 + place}}}
        for place in range(4)
    ]
    done = run("report", write_rows(tmp_path / "scores.jsonl", rows), "-o", tmp_path / "page.html", home=tmp_path)
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "--group-by COLUMN changes it" in page
    assert "group_by" not in page


def test_python_reads_parameters_where_a_command_shows_options(tmp_path):
    rows = [{"id": place, "geval": {"clarity": {"score": 1.0}}} for place in (1, 2)]
    path = write_rows(tmp_path / "scores.jsonl", rows)
    with pytest.raises(ConfigurationError, match=r'^`across="jduge"`: no such key\n'):
        compare([path, path], across=["jduge"])
    done = run("compare", path, path, "--across", "jduge", home=tmp_path)
    assert done.exit_code == 2
    assert "error: --across jduge: no such key" in done.stderr
