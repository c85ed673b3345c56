"""``metrics``: presets listed, shown as YAML that reads back, files validated, new ones that validate."""

from __future__ import annotations

import json

import pytest
from cli_run import METRIC, good_rows, judge_directory, run, write_rows

from geval_local import Metric
from geval_local.metric_file import preset_names


def test_list_names_every_preset(tmp_path):
    done = run("metrics", "list", home=tmp_path)
    assert done.exit_code == 0
    assert all(name in done.stdout for name in preset_names())
    listed = json.loads(run("metrics", "list", "--json", home=tmp_path).stdout)
    assert [one["name"] for one in listed] == preset_names()


def test_show_prints_yaml_that_reads_back_to_the_same_metric(tmp_path):
    done = run("metrics", "show", "factuality/summary_consistency", home=tmp_path)
    assert Metric.from_yaml(done.stdout) == Metric.load("factuality/summary_consistency")


def test_validate_names_every_problem_of_every_file_with_its_line(tmp_path):
    good, bad, worse = (tmp_path / name for name in ("good.yaml", "bad.yaml", "worse.yaml"))
    good.write_text(METRIC, encoding="utf-8")
    bad.write_text(METRIC.replace("criteria:", "criterai:"), encoding="utf-8")
    worse.write_text(METRIC.replace("1-5", "5-1"), encoding="utf-8")
    assert run("metrics", "validate", good, home=tmp_path).exit_code == 0
    done = run("metrics", "validate", bad, good, worse, tmp_path / "none.yaml", home=tmp_path)
    assert done.exit_code == 2
    assert f"{bad}, line 2: unknown key 'criterai'; did you mean 'criteria'?" in done.stderr
    assert f"{worse}, line 6" in done.stderr
    assert "none.yaml" in done.stderr
    assert f"{good}: clarity, scale 1-5" in done.stdout


@pytest.mark.parametrize(
    ("scale", "shown"),
    [
        ("\u0660-\u0665", "scale 0-5 (labels 0, 1, 2, 3, 4, 5)"),
        ("{\u0660: 0, \u0661: 1}", "scale \u0660-\u0661 (labels \u0660, \u0661)"),
        ("0-100", "scale 0-100 (labels 0, 1, 2, ..., 100)"),
    ],
)
def test_validate_shows_the_labels_as_they_are_read(tmp_path, scale, shown):
    file = tmp_path / "own.yaml"
    file.write_text(METRIC.replace("1-5", scale), encoding="utf-8")
    assert shown in run("metrics", "validate", file, home=tmp_path).stdout


def test_words_that_contradict_the_scale_are_warned_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own.yaml"
    file.write_text(METRIC.replace("criteria: ", "criteria: Rate it from 1 to 10. "), encoding="utf-8")
    told = "warning: clarity: criteria names another scale than 1-5: 'Rate it from 1 to 10'"
    validated = run("metrics", "validate", file, home=tmp_path)
    assert (validated.exit_code, told in validated.stderr) == (0, True)
    write_rows(tmp_path / "data.jsonl", good_rows(2))
    scored = run("score", "data.jsonl", "-m", file, "-j", judge_directory(), "--dry-run", home=tmp_path)
    assert told in scored.stderr
    (tmp_path / "e.yaml").write_text(f"data: {{d: data.jsonl}}\nmetrics: [own.yaml]\njudges: [{judge_directory()}]\n")
    assert told in run("run", "e.yaml", "--check", home=tmp_path).stderr


def test_new_writes_a_commented_file_that_validates_and_overwrites_nothing(tmp_path):
    file = tmp_path / "mine.yaml"
    assert run("metrics", "new", "support/clarity", "-o", file, home=tmp_path).exit_code == 0
    assert Metric.load(file).name == "support/clarity"
    assert run("metrics", "validate", file, home=tmp_path).exit_code == 0
    text = file.read_text(encoding="utf-8")
    again = run("metrics", "new", "other", "-o", file, home=tmp_path)
    assert again.exit_code == 2
    assert "is there already" in again.stderr
    assert file.read_text(encoding="utf-8") == text


def test_every_optional_key_of_a_new_file_validates_when_uncommented(tmp_path):
    file = tmp_path / "mine.yaml"
    run("metrics", "new", "clarity", "-o", file, home=tmp_path)
    lines = file.read_text(encoding="utf-8").splitlines()
    optional = (
        "# introduction",
        "#   ",
        "# source:",
        "# rubric:",
        "# steps:",
        "# threshold:",
        "# shorten:",
        "# examples:",
    )
    for number, line in enumerate(lines):
        if line.startswith(optional):
            lines[number] = ("  " if line.startswith("# source:") else "") + line[2:]
        if line.startswith("#   - output:"):
            lines[number] += "\n    source: The timetable."
    metric = Metric.from_yaml("\n".join(lines))
    assert metric.shorten == "source"
    assert [one.label for one in metric.examples] == ["5"]
    assert metric.threshold == 4
    assert metric.rubric is not None
    assert len(metric.steps or ()) == 3


@pytest.mark.parametrize("name", ["two words", "a: b", "", "a//b"])
def test_new_refuses_a_name_that_is_none(name, tmp_path):
    done = run("metrics", "new", name, "-o", tmp_path / "m.yaml", home=tmp_path)
    assert done.exit_code == 2
    assert not (tmp_path / "m.yaml").exists()
