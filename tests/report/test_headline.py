"""The first screen of a page: the answer in a sentence, judges by metrics, remarks once, and what tells tabs apart."""

from __future__ import annotations

import os

import numpy as np
from html_page import Page
from report_data import metric_of, rescored, rows, run_of, write_run

from geval_local.analysis.comparison import compare
from geval_local.analysis.results import read_results
from geval_local.report.comparison_page import write_compared
from geval_local.report.headline import answer, matrix, said_once, short_names, tab_title, unscored_once
from geval_local.report.overview import summaries
from geval_local.report.run_page import RunPage
from geval_local.statistics.interval import mean_interval

SCALE = {(1.0, 5.0)}


def page_of(tmp_path, given, **options) -> Page:
    return Page(RunPage(given, **options).write(tmp_path / "page.html").read_text(encoding="utf-8"))


def first_screen(page: Page) -> str:
    return page.text.split(" Scores Items ")[0]


def test_one_metric_is_answered_in_a_sentence(tmp_path):
    made = rows(40, metrics=("coherence",), threshold=3, unscored=[4])
    values = [row["geval"]["coherence"]["score"] for row in made if row["geval"]["coherence"]["score"] is not None]
    groups = [row["doc_id"] for row in made if row["geval"]["coherence"]["score"] is not None]
    ends = mean_interval(np.array(values), groups, ends=(1, 5))
    page = page_of(tmp_path, run_of(made, {"coherence": ("judge:nano", metric_of())}))
    assert (
        f"coherence: mean {np.mean(values):.2f} on 1 to 5 (95 % interval {ends.low:.2f} to {ends.high:.2f}), "
        f"{np.mean(np.array(values) >= 3):.1%} reach 3, none of 10 pairs of systems differ." in first_screen(page)
    )


def test_systems_that_differ_are_counted(tmp_path):
    made = rows(80, metrics=("coherence",), per_group=2)
    for row in made:
        figures = row["geval"]["coherence"]
        figures["score"] = figures["score"] / 5 + (2 if row["system_id"] == "M1" else 1)
    assert "M1 is better than M0." in first_screen(page_of(tmp_path, made))


def test_several_metrics_are_named_shortly_and_only_some():
    made = rows(20, metrics=[f"group/m{number}" for number in range(6)])
    told = answer(summaries(read_results(made)), SCALE)
    assert told.startswith("Means on 1 to 5 with 95 % intervals: m0 ")
    assert "; m3 " in told
    assert told.endswith("; 2 more metrics below.")


def test_a_judge_that_does_not_answer_has_no_mean_in_the_sentence():
    made = rows(10, metrics=("coherence",))
    for row in made:
        row["geval"]["coherence"]["label_mass"] = 0.01
    told = answer(summaries(read_results(made)), SCALE)
    assert told.startswith("coherence: no mean is shown: this judge does not answer")
    made = rows(3, metrics=("coherence",), unscored=range(3))
    assert answer(summaries(read_results(made)), SCALE) == "coherence: no row has a score."


def test_several_judges_are_a_matrix(tmp_path):
    names = [f"summarization/{metric}@{judge}" for metric in ("coherence", "fluency") for judge in ("nano", "smol")]
    made = rows(20, metrics=names, threshold=3)
    found = summaries(read_results(made))
    table = matrix(found)
    assert table.headers == ("judge", "summarization/coherence", "summarization/fluency")
    assert [row[0] for row in table.rows] == ["nano", "smol"]
    by_name = {one.metric: one for one in found}
    for row, judge in zip(table.rows, ("nano", "smol"), strict=True):
        for cell, metric in zip(row[1:], ("coherence", "fluency"), strict=True):
            one = by_name[f"summarization/{metric}@{judge}"]
            between = f"{one.mean:.2f} [{one.low:.2f}, {one.high:.2f}]"
            assert cell == f"{between}, {one.passed_share:.1%} reach 3"
    assert matrix(summaries(read_results(rows(4)))) is None
    assert "by nano and smol: coherence " in first_screen(page_of(tmp_path, made))


def test_equal_remarks_and_reasons_are_said_once(tmp_path):
    assert said_once([("a", "low"), ("b", "low"), ("c", "other")]) == ["a, b: low", "c: other"]
    made = rows(12, unscored=[2, 5], metrics=("a", "b", "c"))
    (one,) = unscored_once(summaries(read_results(made)))
    assert (one.metrics, one.rows, one.reason.known_code, one.reason.count) == ("all 3 results", 12, "too_long", 2)
    page = page_of(tmp_path, rows(12, low_mass=[2]))
    assert page.text.count("below 0.9 in 8.3% of the scored rows, but not on average") == 1


def test_what_belongs_to_one_metric_of_several_is_folded(tmp_path):
    page = page_of(tmp_path, rows(40), human={"coherence": "scores.coherence", "fluency": "scores.fluency"})
    assert page.attributes.count(("details", "class", "per-metric")) == 4  # systems and people, on two metrics
    alone = page_of(tmp_path, rows(40, metrics=("coherence",)), human="scores.coherence")
    assert ("details", "class", "per-metric") not in alone.attributes
    order = [value for tag, name, value in page.attributes if tag == "section" and name == "id"]
    assert order == ["scores", "items", "distributions", "systems", "people"]


def test_tabs_and_first_screens_tell_runs_apart(tmp_path):
    path = write_run(tmp_path / "scores.jsonl", rows(4), {})
    os.utime(path, (1_790_000_000, 1_790_000_000))
    page = page_of(tmp_path, path, title="tickets.csv")
    assert "tickets.csv · coherence, fluency · nano · 2026-09-21 14:13 UTC · G-Eval" in page.text
    assert "results of 2026-09-21 14:13 UTC" in first_screen(page)
    assert tab_title("a", metrics=["g/x", "g/y", "g/z"]) == "a · x, y… · G-Eval"
    assert short_names(["a/quality", "b/quality"]) == ["a/quality", "b/quality"]


def test_a_comparison_shows_both_means_and_the_interval_of_the_difference(tmp_path):
    made = rows(60, metrics=("coherence",), per_group=3)
    other = rescored(made, seed=2)
    runs = [write_run(tmp_path / f"{name}.jsonl", own, {}) for name, own in (("a", made), ("b", other))]
    page = Page(write_compared(compare(runs, across=("any", "input")), tmp_path / "c.html").read_text(encoding="utf-8"))
    a, b = (np.array([row["geval"]["coherence"]["score"] for row in own]) for own in (made, other))
    ends = mean_interval(a - b, [row["doc_id"] for row in made])
    told = f"coherence: A {a.mean():.2f}, B {b.mean():.2f}, A − B {ends.value:.3f}"
    assert f"{told} (95 % interval {ends.low:.3f} to {ends.high:.3f})" in page.text
    head = "metric items mean A mean B A − B [95 % interval]"
    assert f"{head} coherence 60 {a.mean():.3f} {b.mean():.3f} " in page.text
