"""The analyses from Python: however results are given, figures are those that the verbs print."""

from __future__ import annotations

import json

import pytest
from cli_run import read_rows, run
from rated_runs import prepare, score

import geval_local
from geval_local import bias, calibrate, compare, jury, meta_evaluate, rank, read_rated, read_results, write_report
from geval_local.analysis.comparison import RunComparison
from geval_local.errors import ConfigurationError, DataError

RATED = {"human": "rating.clarity", "group_by": "doc"}
OPTIONS = ("--human", "rating.clarity", "--group-by", "doc")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    made = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        prepare(made)
        score(made, "a.jsonl")
        score(made, "plain.jsonl", "--no-steps")
        yield made


def printed(here, *command):
    done = run(*command, "--json", home=here / "home")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_every_analysis_gives_what_its_verb_prints(here):
    runs = [here / "a.jsonl", here / "plain.jsonl"]
    found = bias("a.jsonl", "side", **RATED)
    assert found.to_dict() == printed(here, "bias", "a.jsonl", "--side", "side", *OPTIONS)
    verb = printed(here, "compare", *runs, "--across", "steps", *OPTIONS)
    assert compare(runs, across=["steps"], **RATED).to_dict() == verb
    verb = printed(here, "compare", "a.jsonl", "--system", "side", "--group-by", "doc")
    assert compare(["a.jsonl"], system="side", group_by="doc").to_dict() == verb
    assert jury(runs, **RATED).to_dict() == printed(here, "jury", *runs, *OPTIONS)
    verb = printed(here, "calibrate", "a.jsonl", "-o", "cal.json", *OPTIONS)
    assert calibrate("a.jsonl", **RATED).to_dict() == verb
    scored = rank(["a.jsonl"], system="side", **RATED)
    assert scored.to_dict() == printed(here, "rank", "a.jsonl", "--system", "side", *OPTIONS)
    rows = read_rated("data.jsonl", metrics=["clarity.yaml"], human=["rating.clarity"], group_by="doc")
    verb = printed(here, "meta-eval", "data.jsonl", "-m", "clarity.yaml", "--results", "a.jsonl", *OPTIONS)
    assert meta_evaluate(rows, ["a.jsonl"]).to_dict() == verb
    for study in (found, scored):
        assert all(table.title and table.rows for table in study.tables())


def test_what_is_compared_can_be_said(here):
    runs = [here / "a.jsonl", here / "plain.jsonl"]
    assert isinstance(compare(runs, across=["steps"], **RATED), RunComparison)
    with pytest.raises(ConfigurationError, match="not comparable: steps"):
        compare(runs)
    # Taken for two systems, one file each, because the caller says so.
    found = compare(runs, across=["steps"], group_by="id", baseline="a")
    assert {side.side for side in found.systems["clarity"].systems} == {"a", "plain"}
    assert found.reason == "`baseline` is given"


def test_rows_and_frames_are_taken_as_files_are(here):
    pandas = pytest.importorskip("pandas")
    rows = read_rows(here / "a.jsonl")
    expected = bias(here / "a.jsonl", "side", **RATED)
    for given in (rows, iter(rows), pandas.DataFrame(rows)):
        found = bias(given, "side", **RATED)
        assert (found.gaps, found.sides, found.length) == (expected.gaps, expected.sides, expected.length)
    with pytest.raises(ConfigurationError, match="nothing says under which signature"):
        calibrate(rows, **RATED)


def test_what_says_how_results_are_read_counts_for_those_that_are_read_already(here):
    read, grouped = read_results("a.jsonl"), {"system": "side", "group_by": "doc"}
    assert compare(read, **grouped).to_dict() == compare("a.jsonl", **grouped).to_dict()
    scaled = bias(read, "side", human_scale="0-10", **RATED)
    assert scaled.to_dict() == bias("a.jsonl", "side", human_scale="0-10", **RATED).to_dict()
    assert scaled.to_dict() == bias(read_results(read, human_scale="0-10"), "side", **RATED).to_dict()
    assert read_results(read).name == read_results(read, group_by="row").name == "a"
    assert read_results(read) is read


def test_a_single_result_needs_no_list(here):
    grouped = {"system": "side", "group_by": "doc"}
    listed, rows = compare(["a.jsonl"], **grouped).to_dict(), read_rows(here / "a.jsonl")
    held = compare([rows], **grouped).to_dict()
    frame = read_results("a.jsonl").to_pandas()
    assert compare("a.jsonl", **grouped).to_dict() == compare(read_results("a.jsonl", **grouped)).to_dict() == listed
    assert compare(rows, **grouped).to_dict() == held
    assert compare(frame, **grouped).to_dict() == compare([frame], **grouped).to_dict()
    assert rank(read_results("a.jsonl", **grouped)).to_dict() == rank(["a.jsonl"], **grouped).to_dict()
    assert write_report(read_results("a.jsonl"), here / "single.html").path == here / "single.html"
    with pytest.raises(ConfigurationError, match="two"):
        jury(read_results("a.jsonl"))


def test_reports_are_written_from_python(here):
    written = write_report([here / "a.jsonl"], here / "page.html", human=["rating.clarity"])
    assert written.path.read_text(encoding="utf-8").startswith("<!doctype html>")
    site = write_report([here / "a.jsonl", here / "none.jsonl", here / "plain.jsonl"], here / "site")
    assert (site.path.name, site.pages, list(site.failed)) == ("index.html", 2, [str(here / "none.jsonl")])


def test_the_package_exports_them():
    assert {"bias", "calibrate", "compare", "jury", "meta_evaluate", "rank", "read_rated"} <= set(geval_local.__all__)


def test_the_system_that_is_named_is_the_systems_of_every_analysis(here):
    found = jury([here / "a.jsonl", here / "plain.jsonl"], system="side", **RATED)
    assert {item.system for item in found.jury.items} == {"human", "machine"}
    for analyse in (lambda **named: bias("a.jsonl", "side", **named), lambda **named: calibrate("a.jsonl", **named)):
        with pytest.raises(DataError, match="writer"):
            analyse(system="writer", **RATED)
