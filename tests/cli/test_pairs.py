"""``pairs`` and ``rank`` from end to end, with a tiny judge."""

from __future__ import annotations

import json

import html_page
import pytest
from cli_run import METRIC, judge_directory, read_rows, run, write_rows
from html_page import Page

from geval_local.analysis.tables import p_value


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "id": f"{document}{system}",
            "doc_id": f"d{document}",
            "system": system,
            "source": f"A tale of {document}.",
            "output": f"It ends at {document}{system}.",
            "rating": 1 + (document + 2 * "abc".index(system)) % 5,
        }
        for document in range(4)
        for system in "abc"
    ]
    write_rows(tmp_path / "data.jsonl", rows)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    return tmp_path


def call(*arguments):
    return run(*arguments, home="home")


@pytest.mark.slow
def test_pairs_are_judged_and_read_again_with_the_same_figures(place, monkeypatch):
    # A random judge has little label mass and goes by the order, so that its preferences would not be shown.
    monkeypatch.setattr("geval_local.analysis.pair_study.doubt_of", lambda own: "")
    judge = judge_directory()
    done = call("pairs", "data.jsonl", "-m", "clarity.yaml", "-j", judge, "-o", "pairs.jsonl", "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["rows"], record["judge"]) == (12, judge.name)
    own = record["preferences"]["clarity/pairs"]
    again = call("rank", "pairs.jsonl", "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["sources"]["pairs"] == own
    rows = read_rows(place / "pairs.jsonl")
    values = [
        row["geval"]["clarity/pairs"]["score"] for row in rows if (row["system_a"], row["system_b"]) == ("a", "b")
    ]
    pair = next(one for one in own["pairs"] if {one["first"], one["second"]} == {"a", "b"})
    values = values if pair["first"] == "a" else [1 - value for value in values]
    assert pair["means"] == pytest.approx([sum(values) / 4, 1 - sum(values) / 4])
    assert pair["difference"]["value"] == pytest.approx(sum(values) / 2 - 1)
    shown = call("pairs", "data.jsonl", "-m", "clarity.yaml", "-j", judge, "-o", "pairs.jsonl")
    assert shown.exit_code == 0, shown.stderr
    assert "clarity/pairs: the systems" in shown.stdout
    assert "first shown gains" in shown.stdout


@pytest.mark.slow
def test_pairs_and_scores_stand_side_by_side_against_people(place, answering, monkeypatch):
    monkeypatch.setattr("geval_local.analysis.pair_study.doubt_of", lambda own: "")
    judge = judge_directory()
    assert call("score", "data.jsonl", "-m", "clarity.yaml", "-j", judge, "-o", "alone.jsonl").exit_code == 0
    done = call("pairs", "data.jsonl", "-m", "clarity.yaml", "-j", judge, "-o", "pairs/", "--baseline", "a")
    assert done.exit_code == 0, done.stderr
    found = call("rank", "alone.jsonl", "pairs", "--human", "rating", "--json")
    assert found.exit_code == 0, found.stderr
    record = json.loads(found.stdout)
    assert list(record["sources"]) == ["alone, distributions", "alone, scores", "pairs"]
    assert record["sources"]["pairs"]["agreement"]["n"] == 8
    assert record["sources"]["alone, scores"]["agreement"]["n"] == 12
    means = {one["side"]: one["human"] for one in record["sources"]["pairs"]["systems"]}
    assert means == pytest.approx({"a": 2.5, "b": 3.25, "c": 2.75})
    assert "summary: pairs" in record["against_people"]
    shown = call("rank", "alone.jsonl", "pairs", "--ratings", "data.jsonl", "--human", "rating", "--every-pair")
    assert shown.exit_code == 0, shown.stderr
    assert "every pair of systems" in shown.stdout
    assert "comparisons against people's" in shown.stdout


def test_given_pairs_are_held_against_their_own_verdicts(place):
    rows = [
        {"input": f"What is {n}?", "output_1": f"It is {n}.", "output_2": "Nothing.", "label": 1 + n % 2}
        for n in range(5)
    ]
    rows[4]["label"] = 3
    write_rows(place / "llmbar.jsonl", rows)
    (place / "helpful.yaml").write_text(
        METRIC.replace("source: Source", "question: Question").replace("clarity", "helpful"), encoding="utf-8"
    )
    done = call(
        "pairs",
        "llmbar.jsonl",
        "-m",
        "helpful.yaml",
        "-j",
        judge_directory(),
        "--given",
        "llmbar",
        "-o",
        "g.csv",
        "--json",
    )
    assert done.exit_code == 0, done.stderr
    own = json.loads(done.stdout)["preferences"]["helpful/pairs"]
    assert (own["agreement"]["n"], own["consistency"]["n"], own["consistency"]["unscored"]) == (4, 4, 1)
    assert own["systems"] is None  # the tiny judge does not answer, and the pairs name no systems


def test_the_page_of_a_run_of_pairs_holds_the_figures_of_the_command(place, monkeypatch):
    # A random judge has little label mass and goes by the order, so that its preferences would not be shown.
    monkeypatch.setattr("geval_local.analysis.pair_study.doubt_of", lambda own: "")
    judge = judge_directory()
    done = call("pairs", "data.jsonl", "-m", "clarity.yaml", "-j", judge, "-o", "pairs.jsonl", "--json")
    assert done.exit_code == 0, done.stderr
    own = json.loads(done.stdout)["preferences"]["clarity/pairs"]
    written = call("report", "pairs.jsonl", "-o", "pairs.html")
    assert written.exit_code == 0, written.stderr
    page = Page((place / "pairs.html").read_text(encoding="utf-8"))

    told = html_page.as_shown
    assert len(own["systems"]) == 3
    assert own["told"] in page.text
    letters = {name: "".join("abc"[at] for at, names in enumerate(own["groups"]) if name in names) for name in "abc"}
    for place, one in enumerate(own["systems"], start=1):
        row = f" {one['side']} {place} {told(one['mean'])} {told(one['strength'])} {letters[one['side']]} {one['n']} "
        assert row in page.text
    for one in own["pairs"]:
        assert f" {told(one['difference'])} {p_value(one['p'])} {p_value(one['p_adjusted'])} " in page.text
        titles = [value for _, name, value in page.attributes if name == "title"]
        assert f"{one['first']} / {one['second']}: {told(one['difference'])} on {one['documents']} documents" in titles
    held = own["consistency"]
    row = f" {told(held['position_shift'])} {told(held['flip_rate'])} {held['tie']:.3f} "
    row += f"{held['masses'][0]:.3f} / {held['masses'][1]:.3f} {held['cyclic']}/{held['triads']} "
    assert row + f"{held['n']} / {held['unscored']} " in page.text
    matrix = page.text[
        page.text.index(" preferred over ") : page.text.index(" Mean preference for the system of the row")
    ]
    order = [one["side"] for one in own["systems"]]
    means = {(one["first"], one["second"]): one["means"][0] for one in own["pairs"]}
    means |= {(second, first): 1 - value for (first, second), value in means.items()}
    cells = [f"{name} " + " ".join(f"{means[name, other]:.3f}" for other in order if other != name) for name in order]
    assert f" preferred over {' '.join(order)} {' '.join(cells)}" in matrix
    assert page.data["columns"][page.data["system"]]["name"] == "pair"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-m", "clarity.yaml", "--baseline", "a", "--budget", "3"], "two ways to choose pairs"),
        ([], "no metric is named"),
        (["-m", "clarity.yaml", "-m", "clarity.yaml"], "Change the name of one of them"),
        (["-m", "clarity.yaml", "--baseline", "aa"], "no row is of the baseline 'aa'; did you mean 'a'?"),
        (["-m", "clarity.yaml", "--system", "writer"], "the field 'writer' of the system is missing"),
        (["-m", "clarity.yaml", "--group-by", "id"], "none has outputs of two systems"),
    ],
)
def test_what_cannot_work_is_told_before_a_judge_is_loaded(place, arguments, told):
    done = call("pairs", "data.jsonl", *arguments, "-j", "no-such-judge", "-o", "x.jsonl")
    assert done.exit_code == 2
    assert told in done.stderr
    assert not list(place.glob("*x.jsonl*"))


def odd_rows():
    """Numeric documents, names beyond ASCII, a system that some documents lack, and two rows that cannot be judged."""
    rows = [
        {"doc_id": document, "system": system, "source": f"A tale of {document}.", "output": f"{document} {system}"}
        for document in range(8)
        for system in ("ä", "β", "日本")
        if document % 4 or system != "β"
    ]
    return [*rows, {"doc_id": 8, "source": "s", "output": "nobody's"}, {**rows[0], "doc_id": 1, "output": None}]


def test_odd_rows_are_judged_or_told(place, monkeypatch):
    monkeypatch.setattr("geval_local.analysis.pair_study.doubt_of", lambda own: "")
    write_rows(place / "odd.jsonl", odd_rows())
    done = call("pairs", "odd.jsonl", "-m", "clarity.yaml", "-j", judge_directory(), "-o", "odd_pairs.csv", "--json")
    assert done.exit_code == 0, done.stderr
    own = json.loads(done.stdout)["preferences"]["clarity/pairs"]
    assert {one["side"]: one["n"] for one in own["systems"]} == {"ä": 8, "β": 6, "日本": 8}
    assert own["consistency"]["n"] == 20
    # The row without a text was to be compared with the two others, the one without a system with none.
    assert own["consistency"]["unscored"] == 3
    assert call("rank", "odd_pairs.csv", "--json").exit_code == 0
    assert call("report", "odd_pairs.csv", "-o", "odd.html").exit_code == 0
    assert "a / b" not in (place / "odd.html").read_text(encoding="utf-8")
    assert "日本 - ä" in (place / "odd.html").read_text(encoding="utf-8")


def test_one_document_has_no_interval_and_says_so(place):
    write_rows(place / "one.jsonl", [row for row in read_rows(place / "data.jsonl") if row["doc_id"] == "d1"])
    done = call("pairs", "one.jsonl", "-m", "clarity.yaml", "-j", judge_directory(), "-o", "one_pairs.jsonl")
    assert done.exit_code == 0, done.stderr
    assert "no interval, since one document allows none" in done.stdout
    assert call("report", "one_pairs.jsonl", "-o", "one.html").exit_code == 0
    assert "no interval, since one document allows none" in (place / "one.html").read_text(encoding="utf-8")


def test_one_system_makes_no_pair(place):
    write_rows(place / "lone.jsonl", [row for row in read_rows(place / "data.jsonl") if row["system"] == "b"])
    done = call("pairs", "lone.jsonl", "-m", "clarity.yaml", "-j", "no-such-judge", "-o", "x.jsonl")
    assert done.exit_code == 2
    assert "all rows are of one system, 'b'" in done.stderr


def test_verdicts_that_are_none_cost_their_rows_alone(place):
    verdicts = (1, 0.5, [1, 0], "maybe", True, None)
    rows = [{"source": "s", "output_a": "x", "output_b": "y", "human": human} for human in verdicts]
    write_rows(place / "plain.jsonl", rows)
    command = (
        "pairs",
        "plain.jsonl",
        "-m",
        "clarity.yaml",
        "-j",
        judge_directory(),
        "--given",
        "plain",
        "-o",
        "p.jsonl",
    )
    done = call(*command, "--json")
    assert done.exit_code == 0, done.stderr
    own = json.loads(done.stdout)["preferences"]["clarity/pairs"]
    assert (own["consistency"]["n"], own["consistency"]["unscored"], own["agreement"]["n"]) == (4, 2, 3)
    errors = [row["geval"]["clarity/pairs"].get("error") for row in read_rows(place / "p.jsonl")]
    assert [error is not None for error in errors] == [False, False, False, True, True, False]
    assert "human is 'maybe', and not 1 for A" in errors[3]
    again = call("rank", "p.jsonl")
    assert again.exit_code == 0, again.stderr


def test_pairs_are_no_scores_of_single_outputs(place):
    done = call("pairs", "data.jsonl", "-m", "clarity.yaml", "-j", judge_directory(), "-o", "pairs.jsonl")
    assert done.exit_code == 0, done.stderr
    compared = call("compare", "pairs.jsonl", "--group-by", "document")
    assert (compared.exit_code, "geval-local rank pairs.jsonl" in compared.stderr) == (2, True)
    explained = call("reasons", "pairs.jsonl", "--lowest", 1, "-o", "r.jsonl")
    assert explained.exit_code == 2
    assert "whose texts stay in their input" in explained.stderr
    assert "loading the judge" not in explained.stderr
