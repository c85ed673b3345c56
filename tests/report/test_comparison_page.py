"""The page of two runs, as a file: what is paired, what differs, and what cannot be said."""

from __future__ import annotations

import copy

import pytest
from cli_run import write_rows
from html_page import Page
from report_data import HOSTILE, rescored, rows, write_run

from geval_local.analysis.comparison import compare
from geval_local.analysis.results import Grouped, read_results
from geval_local.report.comparison_page import write_compared
from geval_local.statistics.correlation import agree

SIGNATURE = "judge:{}|metric:coherence@77ab|dtype:{}|estimator:exact"
SAME = {"coherence": SIGNATURE.format("nano@12", "float32"), "fluency": SIGNATURE.format("nano@12", "float32")}
OTHER = {"coherence": SIGNATURE.format("big@34", "float32"), "fluency": SIGNATURE.format("big@34", "bfloat16")}


def written(tmp_path, first, second, *, signatures=({}, {}), **options) -> Page:
    runs = [
        write_run(tmp_path / name, own, signed)
        for name, own, signed in zip(("small.jsonl", "large.jsonl"), (first, second), signatures, strict=True)
    ]
    study = compare(runs, across=("any", "input"), **options)
    return Page(write_compared(study, tmp_path / "compare.html").read_text(encoding="utf-8"))


def test_what_differs_in_the_signatures_is_said_at_the_top(tmp_path):
    made = rows(10)
    page = written(tmp_path, made, rescored(made, seed=1), signatures=(SAME, OTHER))
    top = page.text.split("Agreement of the runs")[0]
    assert "judge all nano@12 big@34" in top
    assert "dtype fluency float32 bfloat16" in top
    assert "estimator" not in top
    assert "cannot tell" not in page.text


def test_equal_signatures_and_missing_ones_are_told_apart(tmp_path):
    made = rows(10)
    page = written(tmp_path, made, rescored(made, seed=1), signatures=(SAME, dict(SAME)))
    assert "Nothing: both runs have the same signatures." in page.text
    page = written(tmp_path, made, rescored(made, seed=1), signatures=(SAME, {"coherence": OTHER["coherence"]}))
    assert "No signature of both runs for fluency" in page.text
    assert "Nothing: both" not in page.text
    page = written(tmp_path, made, rescored(made, seed=1))
    assert "No signature of both runs for coherence, fluency" in page.text


def test_a_key_that_one_signature_lacks_differs(tmp_path):
    made = rows(10, metrics=("coherence",))
    signed = ({"coherence": "judge:nano@12|b:2"}, {"coherence": "judge:nano@12"})
    assert "b all 2 -" in written(tmp_path, made, rescored(made, seed=1), signatures=signed).text


def test_rows_in_the_place_of_files_give_the_same_page(tmp_path):
    made = rows(10)
    study = compare((made, rescored(made, seed=1)), across=("any",))
    page = Page(write_compared(study, tmp_path / "rows.html").read_text(encoding="utf-8"))
    assert page.data["metrics"] == written(tmp_path, made, rescored(made, seed=1)).data["metrics"]


def test_agreement_is_that_of_the_analysis(tmp_path):
    made = rows(30, metrics=("coherence",), unscored=[2])
    other = rescored(made, seed=1)
    runs = [read_results(given) for given in (made, other)]
    expected = agree(*(run.items("coherence", documents=Grouped(None, "")) for run in runs))
    page = written(tmp_path, made, other)
    assert f"coherence 29 {expected.spearman:.3f} {expected.kendall:.3f}" in page.text
    assert f"{expected.mean_difference:.3f}" in page.text


def test_items_are_paired_by_id_whatever_their_order(tmp_path):
    made = rows(12, metrics=("coherence",))
    other = list(reversed(rescored(made, seed=1)))[:-2]
    other.append(copy.deepcopy(made[0]) | {"id": "new"})
    page = written(tmp_path, made, other)
    assert "10 items in both runs, paired by id" in page.text
    data = page.data
    assert data["keys"] == [row["id"] for row in made] + ["new"]
    first, second = data["metrics"][0]["runs"]
    by_id = {row["id"]: row["geval"]["coherence"]["score"] for row in other}
    assert second["score"][:2] == [None, None]
    assert second["absent"] == [0, 1]
    assert first["absent"] == [12]
    assert second["score"][5] == pytest.approx(by_id["item-6"], abs=1e-6)


def test_without_ids_items_are_paired_by_place_and_other_texts_are_reported(tmp_path):
    made = rows(6, metrics=("coherence",))
    other = rescored(made, seed=1)
    for row in [*made, *other]:
        del row["id"]
    other[2]["output"] = "Something else."
    page = written(tmp_path, made, other)
    assert "paired by their place in the file" in page.text
    assert "The column output differs in 1 of 6 pairs." in page.text
    data = page.data
    (column,) = [column for column in data["columns"] if column["name"] == "output (second run)"]
    assert [place >= 0 for place in column["v"]] == [False, False, True, False, False, False]
    assert data["texts"][column["v"][2]] == "Something else."


def test_people_judge_both_runs_on_the_same_items(tmp_path):
    made = rows(40, metrics=("coherence",))
    one, other = (
        write_rows(tmp_path / name, own) for name, own in (("a.jsonl", made), ("b.jsonl", rescored(made, seed=1)))
    )
    study = compare((one, other), across=("any",), human="scores.coherence", group_by="doc_id")
    page = Page(write_compared(study, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "summary spearman: " in page.text
    assert "40 / 8" in page.text
    assert "Agreement with people against scores.coherence" in page.text
    assert page.data["metrics"][0]["rating"] == "scores.coherence"


def test_hostile_texts_stay_texts(tmp_path):
    made = rows(len(HOSTILE), metrics=("coherence",))
    for row, text in zip(made, HOSTILE, strict=True):
        row |= {"id": text, "output": text, text: text}
    other = rescored(made, seed=1)
    for row in other:
        row["output"] = row["output"] + " again"
    page = written(
        tmp_path,
        made,
        other,
        signatures=(
            {"coherence": "judge:a|" + "|".join(HOSTILE[:-2])},
            {"coherence": "judge:b|" + "|".join(HOSTILE[2:-2])},
        ),
    )
    assert page.tags.count("script") == 2
    assert not {"img", "svg", "a:evil"} & set(page.tags)
    assert [one.split()[:2] for one in page.comments] == [["geval-local", "page"]]  # with its digest


def test_a_page_holds_the_metrics_that_were_asked_for(tmp_path):
    made = rows(10)
    one, other = (
        write_rows(tmp_path / name, own) for name, own in (("a.jsonl", made), ("b.jsonl", rescored(made, seed=1)))
    )
    for given, options in (((one, other), {"across": ("any",)}), ((one,), {"system": "system_id", "across": ("any",)})):
        study = compare(given, metrics=("fluency",), **options)
        page = Page(write_compared(study, tmp_path / "page.html").read_text(encoding="utf-8"))
        assert [one["name"] for one in page.data["metrics"]] == ["fluency"]
        assert "coherence" not in page.text


def test_a_judge_that_does_not_answer_concludes_nothing(tmp_path):
    made = rows(80, metrics=("coherence",), per_group=8)
    for row in made:
        row["geval"]["coherence"]["label_mass"] = 0.003
    one, other = (write_rows(tmp_path / f"{name}.jsonl", made) for name in "ab")
    doubt = "Nothing can be concluded: this judge does not answer (label mass 0.003)."
    for given in ((one, other), (one,)):
        study = compare(given, across=("any", "input"))
        assert any(doubt in line for line in study.lines())
        page = Page(write_compared(study, tmp_path / "page.html").read_text(encoding="utf-8"))
        assert doubt in page.text
        assert not any("mean score" in table.headers or "rank" in table.headers for table in study.tables())
        assert "Mean score of each system" not in page.text
        assert "no mean is shown: this judge does not answer (label mass 0.003)" in page.text
        assert "By this judge" not in page.text + " ".join(note for table in study.tables() for note in table.notes)
