"""What results know is used by every verb that reads them: their judge, metric, documents and fields."""

from __future__ import annotations

import json
import re
import statistics

import pytest
from cli_run import read_rows, run, write_rows
from html_page import Page
from scipy import stats

from geval_local.io.result_manifest import read_manifest
from geval_local.judge.judge import Judge
from geval_local.testing import MockJudge

METRIC = """
name: worth
criteria: Rate how well the text does its task.
scale: 1-5
fields: {fields}
steps: [Read it., Rate it.]
"""


def made(shape):
    """Return rows of twelve documents by two systems, with the fields of their metric and the options of `score`."""
    rows = []
    for place in range(12):
        for system in ("old", "new"):
            answer = f"{system} says {place % 5} " + "and more " * ((place + len(rows)) % 4)
            asked = f"Why is it {place}?"
            rated = {"id": f"{system}{place}", "system": system, "rating": 1 + (3 * place + len(answer)) % 5}
            if shape == "own names":
                rows.append({**rated, "question": asked, "answer": answer})
            elif shape == "mapped":
                rows.append({**rated, "topic": "all", "user message": asked, "bot reply": answer})
            elif shape == "own fields":
                rows.append({**rated, "clause": asked, "gist": answer})
            else:
                said = [("system", "Be kind."), ("user", asked), ("assistant", answer)]
                rows.append({**rated, "messages": [{"role": role, "content": text} for role, text in said]})
    fields = "{clause: Clause, gist: Gist}" if shape == "own fields" else "{question: Question, output: Answer}"
    mapped = ("--field", "question=user message", "--field", "output=bot reply") if shape == "mapped" else ()
    return rows, fields, mapped


SHAPES = {"own names": "question", "mapped": "user message", "own fields": "clause", "chat": "question"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Judge, "load", lambda options, **_: MockJudge(name=options.name or "nano"))
    return tmp_path


def scored(here, shape, *more):
    rows, fields, mapped = made(shape)
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields=fields), encoding="utf-8")
    done = run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", *mapped, *more, "-o", "out.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    return done


def record(here, *arguments):
    done = run(*arguments, "--json", home=here)
    assert done.exit_code in (0, 1), done.stderr
    return json.loads(done.stdout)


VERBS = {
    "meta-eval": ("meta-eval", "out.jsonl", "--human", "rating", "--no-baselines"),
    "calibrate": ("calibrate", "out.jsonl", "--human", "rating", "-o", "c.json"),
    "estimate": ("estimate", "out.jsonl", "--human", "rating"),
    "bias": ("bias", "out.jsonl", "--side", "system"),
    "compare": ("compare", "out.jsonl", "--system", "system"),
    "gate": ("gate", "out.jsonl", "out.jsonl"),
    "jury": ("jury", "out.jsonl", "other.jsonl"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_verb_takes_the_documents_of_the_run(here, shape):
    done = scored(here, shape)
    same = f"rows with the same {SHAPES[shape]} count as one document"
    assert f"interval: for other {SHAPES[shape].split()[-1]}s like these 12" in done.stderr or shape == "mapped"
    assert same in done.stderr
    assert read_manifest(here / "out.jsonl").documents == ("clause" if shape == "own fields" else "question",)
    rows, _, mapped = made(shape)
    write_rows(here / "rows.jsonl", rows)
    other = run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "nano", *mapped, "-o", "other.jsonl", home=here)
    assert other.exit_code == 0, other.stderr
    for verb, command in VERBS.items():
        assert same in record(here, *command)["grouping"], verb
    assert run("report", "out.jsonl", "-o", "page.html", home=here).exit_code == 0
    page = Page((here / "page.html").read_text(encoding="utf-8"))
    assert same in page.text
    assert "smol" in page.text
    # The two systems answered the same questions.
    compared = record(here, *VERBS["compare"])["systems"]["worth"]["pairs"][0]
    assert compared["documents"] == 12
    assert not compared["left_out"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_with_scores_is_not_scored_again(here, shape, monkeypatch):
    scored(here, shape)
    monkeypatch.setattr(Judge, "load", lambda options, **_: pytest.fail("a judge was loaded"))
    found = record(here, "meta-eval", "out.jsonl", "--human", "rating")
    judges = [name for name, one in found["contenders"].items() if one["kind"] == "judge"]
    assert judges == ["smol"]
    scores = [row["geval"]["worth"]["score"] for row in read_rows(here / "out.jsonl")]
    assert found["metrics"] == {"worth": "worth"}
    assert found["rows"] == len(scores)


def test_a_named_judge_scores_the_rated_rows_only(here):
    scored(here, "own names")
    rows = read_rows(here / "out.jsonl")
    for row in rows[6:]:
        row["rating"] = None
    write_rows(here / "few.jsonl", rows)
    found = record(here, "meta-eval", "few.jsonl", "-m", "worth.yaml", "--human", "rating", "-j", "nano", "-o", "kept")
    assert [name for name, one in found["contenders"].items() if one["kind"] == "judge"] == ["few", "nano"]
    (kept,) = (here / "kept").glob("*.jsonl")
    assert len(read_rows(kept)) == 6
    assert found["correlations"]["summary"]["nano"]["worth"]["n"] == 6
    # It is read again, and nothing is scored.
    again = record(here, "meta-eval", "few.jsonl", "-m", "worth.yaml", "--human", "rating", "-j", "nano", "-o", "kept")
    assert again == found


def test_a_page_has_the_slices_of_its_run(here):
    scored(here, "own names", "--by", "system")
    assert run("report", "out.jsonl", "-o", "page.html", home=here).exit_code == 0
    assert "12 of 12" in Page((here / "page.html").read_text(encoding="utf-8")).text


@pytest.mark.parametrize("shape", SHAPES)
def test_pages_and_the_terminal_show_the_texts_of_the_metric(here, shape):
    done = scored(here, shape, "--lowest", "2")
    answer, asked = ("gist", "clause") if shape == "own fields" else ("output", "question")
    assert re.search(rf"{asked}: Why is it \d+\?\n +{answer}: (old|new) says \d", done.stdout)
    assert run("report", "out.jsonl", "-o", "page.html", home=here).exit_code == 0
    data = Page((here / "page.html").read_text(encoding="utf-8")).data
    texts = {
        name: [data["texts"][place] for place in data["columns"][data[name]]["v"]] for name in ("output", "source")
    }
    assert texts["source"] == [f"Why is it {place}?" for place in range(12) for _ in "ab"]
    assert all(text.split(" says ")[0] in ("old", "new") for text in texts["output"])


def test_a_turn_is_called_by_its_number_and_its_chat(here):
    said = [("user", "What?"), ("assistant", "This."), ("user", "Why?"), ("assistant", "So.")]
    chat = [{"role": role, "content": text} for role, text in said]
    names = ["late-fee-of-a-customer-whose-name-is-very-long-" + end for end in ("right", "wrong")]
    write_rows(here / "rows.jsonl", [{"id": name, "messages": chat} for name in names])
    (here / "worth.yaml").write_text(METRIC.format(fields="{question: Q, output: A}"), encoding="utf-8")
    command = ("score", "rows.jsonl", "-m", "worth.yaml", "--turns", "assistant", "--lowest", "9", "-o", "out.jsonl")
    done = run(*command, home=here)
    assert done.exit_code == 0, done.stderr
    for turn in (1, 2):
        for end in ("right", "wrong"):
            assert re.search(rf"turn {turn} of late-fee\S*{end}", done.stdout)
    assert run("report", "out.jsonl", "-o", "page.html", home=here).exit_code == 0
    data = Page((here / "page.html").read_text(encoding="utf-8")).data
    assert data["keys"][:2] == [f"turn 1 of {names[0]}", f"turn 2 of {names[0]}"]
    assert [data["texts"][place] for place in data["columns"][data["output"]]["v"]] == ["This.", "So."] * 2
    assert [data["texts"][place] for place in data["columns"][data["source"]]["v"]] == ["What?", "Why?"] * 2


def test_the_cheap_baselines_know_the_fields_and_the_systems(here):
    scored(here, "own fields")
    found = record(here, "meta-eval", "out.jsonl", "--human", "rating", "--level", "pooled")
    rows = read_rows(here / "out.jsonl")
    lengths = [len(row["gist"].split()) for row in rows]
    ratings = [row["rating"] for row in rows]
    length = found["correlations"]["pooled"]["length"]["worth"]["spearman"]["value"]
    assert length == pytest.approx(stats.spearmanr(lengths, ratings).statistic)
    # The mean of the same system on other questions.
    means = [
        statistics.mean(other["rating"] for other in rows if other["system"] == row["system"] and other is not row)
        for row in rows
    ]
    mean = found["correlations"]["pooled"]["system's mean rating"]["worth"]["pearson"]["value"]
    assert mean == pytest.approx(stats.pearsonr(means, ratings).statistic)


def test_documents_of_any_size_are_counted_as_they_are(here):
    """Four of 1, 2, 3 and 9 rows are as good as 2.4 of one size, which the interval knows, and are four."""
    asked = [number for number, count in enumerate((1, 2, 3, 9)) for _ in range(count)]
    rows = [{"question": f"Why {number}?", "output": "so " * (at % 5 + 1)} for at, number in enumerate(asked)]
    write_rows(here / "rows.jsonl", rows)
    fields = "{question: Question, output: Answer}"
    (here / "worth.yaml").write_text(METRIC.format(fields=fields), encoding="utf-8")
    given = ("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", "--fail-under", "1", "--summary", "gates.md")
    done = run(*given, home=here)
    assert "for other questions like these 4 (" in done.stderr
    assert "; 4 are few" in done.stderr
    assert "only" not in done.stderr
    assert "| 4 |" in (here / "gates.md").read_text(encoding="utf-8")
    assert record(here, *given[:-2])["metrics"]["worth"]["documents"] == 4


@pytest.fixture
def own_texts(here):
    """Two files of one task, whose texts no usual column holds, scored by a metric with fields of its own."""
    (here / "worth.yaml").write_text(METRIC.format(fields="{clause: Clause, gist: Gist}"), encoding="utf-8")
    for name in ("old", "new"):
        rows = [
            {"id": place, "clause": f"Why {place}?", "gist": f"{name} " * (place % 9 + 1), "side": "xy"[place % 2]}
            for place in range(20)
        ]
        write_rows(here / f"{name}.jsonl", rows)
        done = run("score", f"{name}.jsonl", "-m", "worth.yaml", "-j", "smol", "-o", f"{name}.out.jsonl", home=here)
        assert done.exit_code == 0, done.stderr
    return here


def test_texts_of_an_own_field_tell_two_systems(own_texts):
    """One judge scored other texts: these are systems, not two opinions on the same texts."""
    found = record(own_texts, "compare", "old.out.jsonl", "new.out.jsonl")
    assert found["systems"]["worth"]["pairs"][0]["documents"] == 20


def test_the_length_of_an_own_field_is_that_of_the_judged_text(own_texts):
    rows = read_rows(own_texts / "old.out.jsonl")
    words, scores = ([len(row["gist"].split()) for row in rows], [row["geval"]["worth"]["score"] for row in rows])
    found = record(own_texts, "bias", "old.out.jsonl", "--side", "side")
    assert found["length"]["score"]["spearman"]["value"] == pytest.approx(stats.spearmanr(words, scores).statistic)
    command = ("score", "old.jsonl", "-m", "worth.yaml", "-j", "smol", "--by", "length", "-o", "cut.jsonl")
    slices = {
        name: one["rows"] for name, one in record(own_texts, *command)["metrics"]["worth"]["by"]["length"].items()
    }
    assert sum(slices.values()) == 20
    assert slices["1 to 2"] == sum(count <= 2 for count in words)
    page = run("report", "cut.jsonl", "-o", "page.html", home=own_texts)
    assert page.exit_code == 0, page.stderr
    assert "1 to 2" in Page((own_texts / "page.html").read_text(encoding="utf-8")).text


def test_comparisons_of_pairs_are_no_ratings_of_one_text(here):
    """A pair holds two texts: two pairs of a document that share one of them are not the same."""
    rows = [{"question": f"Why {at}?", "answer": f"{bot} {at}", "system": bot} for at in range(9) for bot in "ABC"]
    write_rows(here / "rows.jsonl", rows)
    done = run("pairs", "rows.jsonl", "-m", "assistant/helpfulness", "-j", "smol", "-o", "pairs.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    assert "repeat" not in record(here, "compare", "pairs.jsonl", "pairs.jsonl")["grouping"]
    assert run("report", "pairs.jsonl", "-o", "page.html", home=here).exit_code == 0
    assert "rows repeat" not in Page((here / "page.html").read_text(encoding="utf-8")).text
