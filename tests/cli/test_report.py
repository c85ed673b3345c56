"""``report`` and ``compare --page``: a run's data appears on the page."""

from __future__ import annotations

import json

import pytest
from cli_run import judge_directory, read_rows, run
from html_page import Page, as_shown
from rated_runs import other_judge, prepare, score

from geval_local.io.result_manifest import manifest_path, read_manifest
from geval_local.options import in_options


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    score(tmp_path, "a.jsonl")
    return tmp_path


def test_a_run_becomes_a_page_with_its_signature_prompt_and_ratings(here):
    done = run(
        "report", "a.jsonl", "-o", "page.html", "--human", "rating.clarity", "--group-by", "doc", home=here / "home"
    )
    assert done.exit_code == 0, done.stderr
    page = (here / "page.html").read_text(encoding="utf-8")
    manifest = read_manifest(here / "a.jsonl")
    assert manifest.metrics["clarity"].signature.split("|")[0] in page
    assert "Evaluation Form (scores ONLY):" in page
    assert "rating.clarity" in page
    for name in ("- probs", "n = 20", "median"):
        assert f"score / score {name}" in page
    assert manifest.input_sha256 in page
    assert str(read_rows(here / "a.jsonl")[0]["output"]) in page


@pytest.mark.slow
def test_figures_on_the_page_are_those_of_the_commands(here, monkeypatch):
    # The judge has random weights, and would have no mean.
    monkeypatch.setattr("geval_local.summary.silence", lambda mass: "")
    command = ("score", "data.jsonl", "-m", "clarity.yaml", "--judge", judge_directory(), "--json")
    for named, documents in ((("--group-by", "doc"), 6), ((), 3)):
        done = run("report", "a.jsonl", "-o", "page.html", "--human", "rating.clarity", *named, home=here / "home")
        assert done.exit_code == 0, done.stderr
        page = Page((here / "page.html").read_text(encoding="utf-8")).text
        scored = json.loads(run(*command, *named, home=here / "home").stdout)["metrics"]["clarity"]
        assert scored["documents"] == documents
        assert "{:.3f} to {:.3f}".format(*scored["interval"]) in page
        assert in_options(scored["grouping"]) in page
        rated = ("-m", "clarity.yaml", "--human", "rating.clarity", "--results", "a.jsonl", "--json", "--no-baselines")
        for level in ("summary", "pooled"):
            done = run("meta-eval", "data.jsonl", *rated, *named, "--level", level, home=here / "home")
            assert done.exit_code == 0, done.stderr
            ((figures,),) = [one.values() for one in json.loads(done.stdout)["correlations"][level].values()]
            found = figures["spearman"]
            assert as_shown(found) in page
            assert figures["holds_for"] in page


def test_the_ablation_on_the_page_is_that_of_meta_eval(here):
    more = ("--estimator", "median")
    done = run("report", "a.jsonl", "-o", "page.html", "--human", "rating.clarity", *more, home=here / "home")
    assert done.exit_code == 0, done.stderr
    page = Page((here / "page.html").read_text(encoding="utf-8")).text
    rated = ("-m", "clarity.yaml", "--human", "rating.clarity", "--results", "a.jsonl", "--json", "--no-baselines")
    done = run("meta-eval", "data.jsonl", *rated, "--ablations", *more, home=here / "home")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    (judge,) = [name for name, one in record["contenders"].items() if one["kind"] == "judge"]
    for name in ("- probs", "n = 20", "median"):
        test = record["comparisons"].get(f"clarity: {judge} / {judge} {name}")
        assert (test is None) == (f"clarity: score / score {name} " not in page)
        if test is not None:
            d = test["difference"]
            cells = f"clarity: score / score {name} {test['first']:.3f} / {test['second']:.3f} "
            cells += as_shown(d)
            assert cells in page


def test_without_a_manifest_the_page_says_nothing_of_the_origin(here):
    manifest_path(here / "a.jsonl").unlink()
    done = run("report", "a.jsonl", "-o", "page.html", home=here / "home")
    assert done.exit_code == 0, done.stderr
    assert "judge:" not in (here / "page.html").read_text(encoding="utf-8")


def test_ratings_of_an_unknown_metric_are_refused(here):
    done = run("report", "a.jsonl", "-o", "page.html", "--human", "fluency=rating.clarity", home=here / "home")
    assert done.exit_code == 2
    assert "--human 'fluency=rating.clarity' does not say" in done.stderr
    assert not (here / "page.html").exists()


def test_two_runs_side_by_side_on_one_page(here):
    score(here, "b.jsonl", judge=other_judge())
    refused = run("compare", "a.jsonl", "b.jsonl", "--page", "both.html", home=here / "home")
    assert refused.exit_code == 2
    assert not (here / "both.html").exists()
    done = run("compare", "a.jsonl", "b.jsonl", "--across", "judge", "--page", "both.html", home=here / "home")
    assert done.exit_code == 0, done.stderr
    page = (here / "both.html").read_text(encoding="utf-8")
    for name in ("a.jsonl", "b.jsonl"):
        assert read_manifest(here / name).metrics["clarity"].signature.split("|")[0].split("@")[1] in page


def test_the_page_groups_as_its_run_was_told_and_bears_the_name_of_its_data(here):
    score(here, "grouped.jsonl", "--group-by", "doc")
    for given, documents in ((("grouped.jsonl",), "same doc count as one document"), (("a.jsonl",), "changes it")):
        done = run("report", *given, "-o", "page.html", home=here / "home")
        assert done.exit_code == 0, done.stderr
        page = Page((here / "page.html").read_text(encoding="utf-8"))
        assert documents in page.text
        assert page.text.split()[0] != given[0]
        assert "data.jsonl" in page.text[:200]
