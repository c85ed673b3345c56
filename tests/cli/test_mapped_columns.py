"""``--field`` on the verbs that read results, and the mapping that a manifest carries for them."""

from __future__ import annotations

import json

import pytest
from cli_run import judge_directory, run, write_rows
from rated_runs import other_judge, rated_rows

from geval_local.analysis.results import ScoredRun
from geval_local.io.result_manifest import manifest_path, read_manifest

METRIC = """\
name: clarity
criteria: How clear the text is.
fields: {source: Source, output: Text}
scale: 1-5
steps: []
"""
MAPPING = ["--field", "output=texts.written", "--field", "source=texts.told"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mapped")
    rows = [
        {**{key: row[key] for key in ("id", "doc", "side", "rating")}, "texts": texts}
        for row in rated_rows()
        if (texts := {"written": row["output"], "told": row["source"]})
    ]
    write_rows(directory / "data.jsonl", rows)
    (directory / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    for name, judge in (("a", judge_directory()), ("b", other_judge())):
        command = ["score", directory / "data.jsonl", "-m", directory / "clarity.yaml", "--judge", judge, *MAPPING]
        done = run(*command, "-o", directory / f"{name}.jsonl", home=directory / "home")
        assert done.exit_code == 0, done.stderr
    return directory


def test_the_manifest_of_a_run_carries_its_mapping(runs):
    fields = {"output": "texts.written", "source": "texts.told"}
    assert read_manifest(runs / "a.jsonl").fields == fields
    scored = ScoredRun(runs / "a.jsonl")
    assert scored.mapping == fields
    assert list(scored.outputs.values()) == [row["texts"]["written"] for row in scored.rows]


@pytest.mark.usefixtures("answering")
def test_bias_and_compare_need_no_mapping_again(runs, tmp_path):
    done = run("bias", runs / "a.jsonl", "--side", "side", "--json", home=tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["length"] is not None
    compared = run("compare", runs / "a.jsonl", runs / "b.jsonl", "--across", "judge", home=tmp_path / "home")
    assert compared.exit_code == 0, compared.stderr


@pytest.mark.parametrize("known", [True, False])
def test_a_report_shows_the_prompt_of_mapped_columns(runs, tmp_path, known):
    page = tmp_path / "page.html"
    more = [] if known else MAPPING
    done = run("report", runs / "a.jsonl", "-o", page, "--human", "rating.clarity", *more, home=tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    assert "Evaluation Form (scores ONLY):" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_jury_keeps_the_mapping(runs, tmp_path):
    output = tmp_path / "jury.jsonl"
    done = run("jury", runs / "a.jsonl", runs / "b.jsonl", "-o", output, home=tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    assert read_manifest(output).fields["output"] == "texts.written"
    again = run(
        *("jury", runs / "a.jsonl", runs / "b.jsonl", "-o", output, "--field", "output=id"), home=tmp_path / "home"
    )
    assert again.exit_code == 0, again.stderr
    assert read_manifest(output).fields["output"] == "id"


@pytest.mark.parametrize("verb", ["report", "jury"])
def test_a_mapping_of_no_column_or_no_field_is_refused(runs, tmp_path, verb):
    files = [runs / "a.jsonl"] if verb == "report" else [runs / "a.jsonl", runs / "b.jsonl"]
    output = tmp_path / ("page.html" if verb == "report" else "out.jsonl")
    for mapping, told in (("output=tetx", "no row has such a column"), ("outptu=id", "did you mean 'output'?")):
        done = run(verb, *files, "-o", output, "--field", mapping, home=tmp_path / "home")
        assert done.exit_code == 2
        assert told in " ".join(done.stderr.split())
        assert not output.exists()


def test_a_run_without_a_manifest_takes_the_mapping_that_is_given(runs, tmp_path):
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes((runs / "a.jsonl").read_bytes())
    assert not manifest_path(copy).exists()
    assert list(ScoredRun(copy).outputs.values()) == [None] * 12
    assert None not in ScoredRun(copy, {"output": "texts.written"}).outputs.values()
