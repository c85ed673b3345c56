"""``compare`` on systems: one file with a column, or one file for each system; and with other estimators."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_run import read_rows, run, write_rows
from html_page import Page, as_shown
from intervals import hall_interval
from rated_runs import other_judge, prepare, score
from report_data import rows

from geval_local.io.result_manifest import manifest_path

#: Every test scores two systems.
pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scored(here):
    """Eight systems on twenty documents, scored without a model and without a manifest."""
    write_rows(here / "scored.jsonl", rows(160, metrics=("coherence",), per_group=8, unscored=[5]))
    return here


def compare(here, *arguments: object, code: int = 0):
    done = run("compare", *arguments, home=here / "home")
    assert done.exit_code == code, done.stderr
    return done


def halves(here, *arguments: object):
    """Score the texts by people and those by machines as two files, whose ids are the documents'."""
    prepare(here)
    everything = read_rows(here / "data.jsonl")
    for side in ("human", "machine"):
        own = [{**row, "id": row["doc"]} for row in everything if row["side"] == side]
        write_rows(here / "data.jsonl", [{name: row[name] for name in row if name != "side"} for row in own])
        score(here, f"{side}.jsonl", *arguments)


def test_one_file_with_a_column_is_ranked(scored):
    record = json.loads(compare(scored, "scored.jsonl", "--json").stdout)
    own = record["systems"]["coherence"]
    assert "same doc_id count as one document; " in record["grouping"]
    assert len(own["systems"]) == 8
    assert len(own["pairs"]) == 28
    means = [side["mean"]["value"] for side in own["systems"]]
    assert means == sorted(means, reverse=True)
    by_system = {
        name: {
            row["doc_id"]: row["geval"]["coherence"]["score"]
            for row in read_rows(Path("scored.jsonl"))
            if row["system_id"] == name
        }
        for name in ("M0", "M1")
    }
    (pair,) = [one for one in own["pairs"] if {one["first"], one["second"]} == {"M0", "M1"}]
    difference = np.array([by_system[pair["first"]][doc] - by_system[pair["second"]][doc] for doc in by_system["M0"]])
    assert [pair["difference"][end] for end in ("value", "low", "high")] == pytest.approx(
        [difference.mean(), *hall_interval(difference)]
    )
    assert (pair["wins"], pair["losses"]) == ((difference > 0).sum(), (difference < 0).sum())
    shown = compare(scored, "scored.jsonl").stdout
    assert own["told"] in " ".join(shown.split())
    assert "coherence: which system is better?" in shown
    assert "systems that share a letter cannot be told apart" in shown


@pytest.mark.slow
def test_a_baseline_a_column_and_ratings(scored):
    done = compare(scored, "scored.jsonl", "--system", "doc_id", "--baseline", "doc-1", "--group-by", "row", "--json")
    record = json.loads(done.stdout)["systems"]["coherence"]
    assert len(record["pairs"]) == 19
    assert {pair["test"] for pair in record["pairs"]} == {"Welch t"}
    rated = json.loads(compare(scored, "scored.jsonl", "--human", "scores.coherence", "--json").stdout)
    people = {side["side"]: side["human"] for side in rated["systems"]["coherence"]["systems"]}
    given = [row["scores"]["coherence"] for row in read_rows(Path("scored.jsonl")) if row["system_id"] == "M3"]
    assert people["M3"] == pytest.approx(np.mean(given))
    assert "no system 'M9'" in compare(scored, "scored.jsonl", "--baseline", "M9", code=2).stderr
    assert "two runs over the same rows" in compare(scored, "scored.jsonl", "--level", "pooled", code=2).stderr


def test_every_figure_on_the_page_is_the_commands(scored):
    done = compare(scored, "scored.jsonl", "--json", "--page", "page.html", "--human", "scores.coherence")
    own = json.loads(done.stdout)["systems"]["coherence"]
    page = Page(Path("page.html").read_text(encoding="utf-8"))
    assert own["told"] in page.text
    assert own["holds_for"] in page.text
    for side in own["systems"]:
        mean = side["adjusted"]  # one row is unscored, so systems answered different documents
        # In the picture and in the table.
        assert page.text.count(as_shown(mean)) >= 2
    for pair in own["pairs"]:
        d = pair["difference"]
        decimals = len(as_shown(d).split(" ")[0].split(".")[1])
        means = " / ".join(f"{mean:.{decimals}f}" for mean in pair["means"])
        assert f"{pair['first']} - {pair['second']} {means} {as_shown(d)}" in page.text
        assert f"{pair['wins']} / {pair['ties']} / {pair['losses']}" in page.text
    report = run("report", "scored.jsonl", "-o", "report.html", home=scored / "home")
    assert report.exit_code == 0, report.stderr
    text = Page(Path("report.html").read_text(encoding="utf-8")).text
    assert own["told"] in text


@pytest.mark.usefixtures("answering")
def test_two_files_are_two_systems_where_their_texts_differ(here, monkeypatch):
    halves(here)
    done = compare(here, "human.jsonl", "machine.jsonl", "--json", "--page", "both.html")
    record = json.loads(done.stdout)
    (pair,) = record["systems"]["clarity"]["pairs"]
    assert {pair["first"], pair["second"]} == {"human", "machine"}
    own = {
        name: [row["geval"]["clarity"]["score"] for row in read_rows(Path(f"{name}.jsonl"))]
        for name in ("human", "machine")
    }
    difference = np.array(own[pair["first"]]) - np.array(own[pair["second"]])
    # Sources repeat, so a document has two texts of each; the mean over documents is that over rows here.
    assert pair["difference"]["value"] == pytest.approx(difference.mean())
    assert "human.jsonl" in record["files"][0]
    shown = compare(here, "human.jsonl", "machine.jsonl", "--group-by", "doc").stdout
    assert "outputs differ under the same id or row number (a guess" in shown
    assert record["systems"]["clarity"]["told"] in Page(Path("both.html").read_text(encoding="utf-8")).text
    runs = compare(here, "human.jsonl", "machine.jsonl", "--across", "input").stdout
    assert "A and B on the rows that both scored" in runs
    monkeypatch.setattr("geval_local.score.LEAST_LABEL_MASS", 1.0)
    shown = compare(here, "human.jsonl", "machine.jsonl", "--group-by", "doc").stdout
    assert "Nothing can be concluded: this judge does not answer" in shown


@pytest.mark.slow
def test_two_files_by_two_judges_are_refused(here):
    halves(here)
    score(here, "machine.jsonl", judge=other_judge())
    refused = compare(here, "human.jsonl", "machine.jsonl", code=2)
    assert "not comparable: judge:" in refused.stderr
    assert "--across judge" in refused.stderr


@pytest.mark.usefixtures("answering")
def test_files_without_documents_are_paired_by_id(here):
    made = rows(20, metrics=("coherence",))
    for name, shift in (("a", 0), ("b", 1)):
        own = [
            {"id": f"r{index}", "output": f"{name} {index}", "geval": made[2 * index + shift]["geval"]}
            for index in range(10)
        ]
        write_rows(here / f"{name}.jsonl", own)
    done = compare(here, "a.jsonl", "b.jsonl", "--across", "judge", code=2)
    assert "nothing says under which signature" in done.stderr
    record = json.loads(compare(here, "a.jsonl", "b.jsonl", "--across", "any", "--json").stdout)
    assert record["grouping"].startswith("rows with the same id count as one document")
    (pair,) = record["systems"]["coherence"]["pairs"]
    assert (pair["documents"], pair["test"]) == (10, "t")
    # A third system is ranked with them.
    write_rows(here / "c.jsonl", [{**row, "output": f"{index}."} for index, row in enumerate(own)])
    record = json.loads(compare(here, "a.jsonl", "b.jsonl", "c.jsonl", "--across", "any", "--json").stdout)
    assert [len(record["systems"]["coherence"][part]) for part in ("systems", "pairs")] == [3, 3]
    equal = next(one for one in record["systems"]["coherence"]["pairs"] if {one["first"], one["second"]} == {"b", "c"})
    assert (equal["p"], equal["ties"]) == (1.0, 10)


@pytest.mark.usefixtures("answering")
def test_an_estimator_is_applied_to_stored_distributions(here):
    prepare(here)
    score(here, "a.jsonl")
    score(here, "mode.jsonl", "--estimator", "mode")
    refused = compare(here, "a.jsonl", "mode.jsonl", code=2)
    assert "--across estimator" in refused.stderr
    same = json.loads(compare(here, "a.jsonl", "mode.jsonl", "--estimator", "mode", "--json").stdout)
    assert same["differ"] == {"clarity": {}}
    assert same["metrics"]["clarity"]["agreement"]["largest_difference"] < 1e-12
    differing = json.loads(compare(here, "a.jsonl", "mode.jsonl", "--across", "estimator", "--json").stdout)
    assert differing["metrics"]["clarity"]["agreement"]["largest_difference"] > 0.1
    assert "estimator:mode" in manifest_path(here / "mode.jsonl").read_text()
    assert "unknown estimator" in compare(here, "a.jsonl", "mode.jsonl", "--estimator", "risk:3", code=2).stderr
    refused = compare(here, "a.jsonl", "mode.jsonl", "--estimator", "median", "--page", "p.html", code=2)
    assert "a page shows the scores as they were written" in refused.stderr


def test_rows_of_one_file_alone_are_named(here):
    made = rows(12, metrics=("coherence",), per_group=1)
    for row in made:
        del row["doc_id"], row["system_id"], row["source"]
    write_rows(here / "a.jsonl", made[:8])
    write_rows(here / "b.jsonl", [{**row, "output": f"Another {row['id']}."} for row in made[3:]])
    shown = compare(here, "a.jsonl", "b.jsonl", "--across", "any").stdout
    assert "two systems" in shown
    assert "only in a.jsonl: 3 of 8: item-1, item-2, item-3" in shown
    assert "only in b.jsonl: 4 of 9: item-9, item-10, item-11, item-12" in shown
    texts = [{**row, "source": f"{row['id']} " * 20} for row in made]
    write_rows(here / "t.jsonl", texts[:8])
    write_rows(here / "u.jsonl", [{**row, "output": f"Another {row['id']}."} for row in texts[7:]])
    shown = compare(here, "t.jsonl", "u.jsonl", "--across", "any").stdout
    assert "only in t.jsonl: 7 of 8: item-1 item-1" in shown
    assert max(map(len, shown.splitlines())) < 500
    write_rows(here / "c.jsonl", made[3:])
    record = json.loads(compare(here, "a.jsonl", "c.jsonl", "--across", "any", "--json").stdout)
    assert record["unmatched"][0] == "only in a.jsonl: 3 of 8: item-1, item-2, item-3"
    assert record["metrics"]["coherence"]["agreement"]["n"] == 5


def test_one_document_has_no_interval_and_says_so(here):
    write_rows(here / "one.jsonl", rows(3, metrics=("coherence",), per_group=3))
    shown = " ".join(compare(here, "one.jsonl", "--group-by", "doc_id").stdout.split())
    assert "no interval, since one document allows none: M" in shown
    pair = rows(2, metrics=("coherence",), per_group=2)
    write_rows(here / "pair.jsonl", pair)
    shown = " ".join(compare(here, "pair.jsonl", "--group-by", "doc_id").stdout.split())
    assert "on 1 shared document (too few for an interval or a test)" in shown
