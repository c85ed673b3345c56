"""What results know is used by every verb that reads them: their judge, metric, documents and fields."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
import statistics

import openpyxl
import pytest
from cli_run import read_rows, run, write_rows
from html_page import Page
from scipy import stats

from geval_local import read_results
from geval_local.io.result_manifest import read_manifest
from geval_local.judge.judge import Judge
from geval_local.testing import MockJudge
from geval_local.wording import say_once

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
    refused = run("meta-eval", "out.jsonl", "--human", "rating", "--dtype", "float64", home=here)
    assert (refused.exit_code, "so --dtype has no effect" in refused.stderr) == (2, True)


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


def test_a_row_of_several_turns_without_a_score_is_named_once(here):
    chat = [{"role": role, "content": "So."} for role in ("user", "assistant", "user", "assistant")]
    rows = [{"id": place, "messages": chat, "context": "It is."[: 6 * (place == 2)]} for place in range(3)]
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields="{context: C, output: A}"), encoding="utf-8")
    done = run("score", "rows.jsonl", "-m", "worth.yaml", "--turns", "assistant", home=here)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"  4 x empty_field: .* \(rows 1, 2\)$", done.stdout, re.MULTILINE)


def test_the_cheap_baselines_know_the_fields_and_the_systems(here):
    scored(here, "own fields")
    found = record(here, "meta-eval", "out.jsonl", "--human", "rating", "--level", "pooled")
    rows = read_rows(here / "out.jsonl")
    lengths = [len(row["gist"].split()) for row in rows]
    ratings = [row["rating"] for row in rows]
    length = found["correlations"]["pooled"]["length"]["worth"]["spearman"]["value"]
    assert length == pytest.approx(stats.spearmanr(lengths, ratings).statistic)
    # The mean of the same system on the other half of the questions: its own and those of its half do not matter.
    mean = found["correlations"]["pooled"]["system's mean rating"]["worth"]["pearson"]["value"]
    halves = itertools.combinations(dict.fromkeys(row["clause"] for row in rows), 6)
    means = [
        [
            statistics.mean(
                other["rating"]
                for other in rows
                if other["system"] == row["system"] and (other["clause"] in half) != (row["clause"] in half)
            )
            for row in rows
        ]
        for half in halves
    ]
    assert any(mean == pytest.approx(stats.pearsonr(own, ratings).statistic, abs=1e-12) for own in means)


def test_of_two_nearly_equal_systems_their_means_are_not_wrong_in_every_document(here):
    """The mean of all other documents is below the other system's where the rating is above it: -1 at best."""
    rows = [
        {"question": f"Why {place}?", "output": f"{system} says so.", "system": system, "rating": 2 + 2 * is_better}
        for place in range(20)
        for system, is_better in (("old", place % 2), ("new", 1 - place % 2))
    ]
    write_rows(here / "rows.jsonl", rows)
    fields = "{question: Question, output: Answer}"
    (here / "worth.yaml").write_text(METRIC.format(fields=fields), encoding="utf-8")
    assert run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", "-o", "out.jsonl", home=here).exit_code == 0
    found = record(here, "meta-eval", "out.jsonl", "--human", "rating")
    assert found["correlations"]["summary"]["system's mean rating"]["worth"]["spearman"]["value"] > -0.7


@pytest.mark.parametrize("group_by", [(), ("--group-by", "rating")])
@pytest.mark.parametrize("shape", SHAPES)
def test_results_that_get_another_metric_keep_what_is_known_of_the_first(here, shape, group_by):
    """The documents are those of one run with both metrics; the second reads nothing about the item."""
    scored(here, shape, *group_by)
    field = "gist: Gist" if shape == "own fields" else "output: Answer"
    second = METRIC.replace("worth", "style").format(fields=f"{{{field}}}")
    (here / "style.yaml").write_text(second, encoding="utf-8")
    more = ("-m", "style.yaml", "-j", "smol")
    mapped = made(shape)[2]
    done = run("score", "out.jsonl", *more, *mapped[2:], "-o", "added.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    both = ("-m", "worth.yaml", *more, *mapped, *group_by)
    assert run("score", "rows.jsonl", *both, "-o", "both.jsonl", home=here).exit_code == 0
    added, together = read_manifest(here / "added.jsonl"), read_manifest(here / "both.jsonl")
    assert (added.documents, added.group_by) == (together.documents, together.group_by)
    assert added.documents not in (None, ("output",))
    assert read_results("added.jsonl").documents == read_results("both.jsonl").documents


@pytest.mark.parametrize("place", ["out.jsonl", "out.csv", "out.parquet", "out/"])
@pytest.mark.parametrize("lost", [1, 41])
def test_one_row_that_cannot_be_read_costs_no_figure_of_a_system(here, place, lost):
    """Nobody knows whose it is: comparisons and estimates were refused, for want of a system; so were gates."""
    rows = [
        {"question": f"Why {at}?", "output": f"{system} says {at}.", "system": system, "rating": 1 + (at + bonus) % 5}
        for at in range(20)
        for bonus, system in enumerate(("old", "new"))
    ]
    (here / "worth.yaml").write_text(METRIC.format(fields="{question: Q, output: A}"), encoding="utf-8")
    found = []
    for broken in (False, True):
        lines = [json.dumps(row) + "\n" for row in rows]
        lines[lost - 1 : lost - 1] = ["{broken\n"] * broken
        (here / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
        given = ("-m", "worth.yaml", "-j", "smol", "--overwrite", "-o", place)
        assert run("score", "rows.jsonl", *given, home=here).exit_code == 0
        say_once.cache_clear()
        done = run("compare", place, home=here)
        assert (f"left out, as it could not be read: row {lost}" in done.stderr) == broken
        told = [record(here, "compare", place)["systems"]]
        told.append(record(here, "bias", place, "--side", "system")["sides"])
        told.append(record(here, "estimate", place, "--human", "rating"))
        for by in ((), ("--group-by", "question"), ("--system", "system")):
            rated = record(here, "meta-eval", place, "-m", "worth", "--human", "rating", *by)
            told.append([(one["coefficient"], one["documents"]) for one in rated["agreements"]])
        found.append(told)
        assert len(read_results(place.rstrip("/")).rows) == len(rows) + broken
        if not broken:
            assert run("score", "rows.jsonl", *given[:-1], "before.jsonl", home=here).exit_code == 0
        assert run("score", "rows.jsonl", *given[:-1], "again.jsonl", home=here).exit_code == 0
        for by in ((), ("--group-by", "question")):
            (gate,) = record(here, "gate", place, "before.jsonl", *by)["changes"]
            assert (gate["verdict"], gate["documents"], gate["found"]) == ("holds", 20, 0)
            done = run("jury", place, "again.jsonl", *by, "--overwrite", "-o", "jury.jsonl", home=here)
            assert done.exit_code == 0, done.stderr
    assert found[0] == found[1]


def test_a_row_with_a_column_raw_was_read(here):
    """Its system is missing, and nothing else is wrong with it."""
    rows = [{"question": "Why?", "output": f"So {at}.", "raw": "text", "vendor": "old"} for at in range(3)]
    del rows[1]["vendor"]
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields="{question: Q, output: A}"), encoding="utf-8")
    assert run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", "-o", "out.jsonl", home=here).exit_code == 0
    done = run("compare", "out.jsonl", "--system", "vendor", home=here)
    assert "out.jsonl, row 2: the field 'vendor' is missing" in done.stderr
    assert "Columns: question, output, raw." in done.stderr


def judges_of(here, *arguments):
    """Return the judges of a meta-evaluation and their correlations, where none may be loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "load", lambda options, **_: pytest.fail("a judge was loaded"))
        found = record(here, "meta-eval", *arguments, "--no-baselines", "--level", "pooled")
    judges = found["correlations"]["pooled"]
    return {who: {metric: one["spearman"]["value"] for metric, one in own.items()} for who, own in judges.items()}


@pytest.mark.parametrize("place", ["both.jsonl", "both.csv", "both/"])
def test_the_judges_of_one_run_are_read_and_not_scored_again(here, place):
    scored(here, "own names")
    done = run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", "-j", "nano", "-o", place, home=here)
    assert done.exit_code == 0, done.stderr
    alone = judges_of(here, "out.jsonl", "--human", "rating")
    found = judges_of(here, place, "--human", "rating")
    assert list(found) == ["smol", "nano"]
    assert found["smol"] == alone["smol"]
    named = judges_of(here, "out.jsonl", "--results", place, "--human", "rating")
    assert list(named) == ["smol", "smol (both)", "nano"]
    assert named["smol (both)"] == named["smol"]
    assert named["nano"] == found["nano"]


def test_metrics_by_two_judges_are_called_by_their_own(here):
    scored(here, "own names")
    (here / "style.yaml").write_text(METRIC.replace("worth", "style").format(fields="{output: A}"), encoding="utf-8")
    done = run("score", "out.jsonl", "-m", "style.yaml", "-j", "nano", "-o", "more.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    found = judges_of(here, "more.jsonl", "--human", "worth=rating", "--human", "style=rating")
    assert {who: list(own) for who, own in found.items()} == {"smol": ["worth"], "nano": ["style"]}
    done = run("compare", "more.jsonl", "out.jsonl", home=here)
    assert "more.jsonl, 24 rows, by smol, nano" in done.stdout


@pytest.mark.parametrize("shape", ["apart", "twice"])
def test_a_ranking_without_a_document_of_two_systems_is_refused_with_the_way_out(here, shape):
    """It printed a table without rows."""
    rows = made("own names")[0]
    for place, row in enumerate(rows):
        row["conversation_id"] = f"{place // 2 if shape == 'twice' else place % 2}"
        row["system"] = "old" if place % 2 == 0 or (shape == "twice" and place > 9) else "new"
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields="{question: Q, output: A}"), encoding="utf-8")
    given = ("-m", "worth.yaml", "-j", "smol", "--group-by", "conversation_id", "-o", "out.jsonl")
    assert run("score", "rows.jsonl", *given, home=here).exit_code == 0
    done = run("rank", "out.jsonl", *(("--human", "rating") if shape == "twice" else ()), home=here)
    assert done.exit_code == 2
    assert ("no document has outputs of two systems" in done.stderr) == (shape == "apart")
    assert ("has two outputs for the document" in done.stderr) == (shape == "twice")
    assert "--group-by COLUMN names the document that outputs are for" in done.stderr


@pytest.mark.parametrize("to", ["more.jsonl", "more.csv", "more.parquet"])
@pytest.mark.parametrize("name", ["first.jsonl", "first.csv", "first.parquet"])
def test_a_second_metric_loses_no_scores_of_the_first(here, name, to):
    """Those of a table are in columns, and went with the column of objects that the second metric made."""
    scored(here, "own names")
    assert run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", "-o", name, home=here).exit_code == 0
    (here / "style.yaml").write_text(METRIC.replace("worth", "style").format(fields="{output: A}"), encoding="utf-8")
    done = run("score", name, "-m", "style.yaml", "-j", "smol", "-o", to, home=here)
    assert done.exit_code == 0, done.stderr
    results = read_results(to)
    assert results.metrics == ["worth", "style"]
    wanted = [score.value for score in read_results("out.jsonl").scores("worth")]
    assert [score.value for score in results.scores("worth")] == pytest.approx(wanted, rel=1e-12)
    assert (
        judges_of(here, to, "--human", "worth=rating")["smol"]
        == judges_of(here, "out.jsonl", "--human", "rating")["smol"]
    )


@pytest.mark.parametrize("group_by", [(), ("--group-by", "user message")])
@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.csv"])
def test_the_command_that_pairs_print_last_finds_systems_and_documents(here, name, group_by):
    rows, fields, mapped = made("mapped")
    write_rows(here / "rows.jsonl", [{**row, "system": "all", "my bot": row["system"]} for row in rows])
    (here / "worth.yaml").write_text(METRIC.format(fields=fields), encoding="utf-8")
    given = ("-m", "worth.yaml", "-j", "smol", "--system", "my bot", *mapped, *group_by, "-o", name)
    done = run("pairs", "rows.jsonl", *given, home=here)
    assert done.exit_code == 0, done.stderr
    _, _, command = done.stderr.partition("hold them against people     geval-local ")
    command = shlex.split(command.splitlines()[0].replace("FIELD", "rating"))
    assert record(here, *command)["against_people"]
    without = [one for one in command if one not in ("--system", "my bot")]
    write_rows(here / "rows.jsonl", [{key: value for key, value in row.items() if key != "system"} for row in rows])
    done = run(*without, home=here)
    assert done.exit_code == 2
    assert "of the system (--system COLUMN names it) is missing" in " ".join(done.stderr.split())


@pytest.mark.parametrize("name", ["mine.xlsx", "mine.csv"])
def test_results_that_another_program_saved_say_that_they_lost_their_manifest(here, name):
    scored(here, "own names")
    table = run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", "-o", "out.csv", home=here)
    assert table.exit_code == 0, table.stderr
    with (here / "out.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    if name == "mine.csv":
        (here / name).write_bytes((here / "out.csv").read_bytes())
    else:
        book = openpyxl.Workbook()
        for cells in table:
            book.active.append(cells)
        book.save(here / name)
    commands = {
        "meta-eval": ("-m", "worth.yaml", "--human", "rating", "--no-baselines"),
        "estimate": ("--human", "rating"),
        "bias": ("--side", "system"),
        "report": ("-o", "page.html"),
    }
    for verb, options in commands.items():
        say_once.cache_clear()
        done = run(verb, name, *options, home=here)
        assert done.exit_code == 0, done.stderr
        assert f"{name} holds scores without a manifest: judge, fields, scale and documents are guessed" in done.stderr
        assert f"to {name}.meta.json" in done.stderr
    (here / f"{name}.meta.json").write_bytes((here / "out.csv.meta.json").read_bytes())
    say_once.cache_clear()
    done = run("meta-eval", name, "--human", "rating", "--no-baselines", home=here)
    assert done.exit_code == 0, done.stderr
    assert "guessed" not in done.stderr
    assert "smol" in done.stdout


@pytest.mark.parametrize("has_documents", [True, False])
def test_a_jury_refuses_rows_in_another_order_by_the_name_of_the_file(here, has_documents):
    """Without documents it took the texts of one number for one text."""
    rows = [{key: row[key] for key in ("question", "answer")} for row in made("own names")[0]]
    write_rows(here / "rows.jsonl", rows)
    fields = "{question: Question, output: Answer}" if has_documents else "{output: Answer}"
    (here / "worth.yaml").write_text(METRIC.format(fields=fields), encoding="utf-8")
    for judge in ("nano", "smol"):
        done = run("score", "rows.jsonl", "-m", "worth.yaml", "-j", judge, "-o", f"{judge}.csv", home=here)
        assert done.exit_code == 0, done.stderr
    assert run("jury", "nano.csv", "smol.csv", home=here).exit_code == 0
    header, *lines = (here / "smol.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (here / "smol.csv").write_text("".join([header, *reversed(lines)]), encoding="utf-8")
    done = run("jury", "nano.csv", "smol.csv", home=here)
    assert done.exit_code == 2
    assert re.search(r"smol\.csv: \d+ outputs are not those of nano\.csv under the same id or row number", done.stderr)


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


def shown_on_page(here, *arguments):
    """Write a page of results; return its judged texts, what they answer, and the rows' names."""
    assert run(*arguments, home=here).exit_code == 0
    data = Page((here / arguments[-1]).read_text(encoding="utf-8")).data
    output, source = (
        [data["texts"][place] for place in data["columns"][data[name]]["v"]] for name in ("output", "source")
    )
    return output, source, data["keys"]


def test_a_page_and_the_terminal_show_the_field_that_tells_documents_apart(here):
    """Not the topic, which comes first and is one of three; nor the passages, which every system retrieved itself."""
    rows = [
        {
            "topic": f"Topic {place % 3}",
            "question": f"Why {place}?",
            "context": [f"{system} found {place}.", f"{system} also found {place}."],
            "answer": f"{system} {place}",
            "system": system,
        }
        for place in range(9)
        for system in ("old", "new")
    ]
    write_rows(here / "rows.jsonl", rows)
    fields = "{topic: Topic, question: Question, context: Passages, output: Answer}"
    (here / "worth.yaml").write_text(METRIC.format(fields=fields), encoding="utf-8")
    command = ("score", "rows.jsonl", "-m", "worth.yaml", "--lowest", "1", "-o", "out.jsonl")
    told = [
        run(*command, home=here).stdout,
        run("report", "out.jsonl", "--lowest", "1", "-o", "a.html", home=here).stdout,
    ]
    assert all(re.search(r"question: Why \d\?\n +output: (old|new) \d\n", one) for one in told)
    assert "topic:" not in "".join(told)
    _, asked, _ = shown_on_page(here, "report", "out.jsonl", "-o", "page.html")
    assert asked == [row["question"] for row in rows]


def test_a_page_shows_lists_and_chats_in_a_column_as_they_are_scored(here):
    chats = [[("user", f"What is {place}?"), ("assistant", "Which one?"), ("user", "All.")] for place in range(6)]
    rows = [
        {"asked": [{"role": role, "content": text} for role, text in chat], "reply": f"So {place}."}
        for place, chat in enumerate(chats)
    ]
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields="{question: Q, output: A}"), encoding="utf-8")
    mapped = ("--field", "question=asked", "--field", "output=reply")
    assert run("score", "rows.jsonl", "-m", "worth.yaml", *mapped, "-o", "out.csv", home=here).exit_code == 0
    output, asked, _ = shown_on_page(here, "report", "out.csv", "-o", "page.html")
    assert output == [f"So {place}." for place in range(6)]
    assert asked == [f"User: What is {place}?\n\nAssistant: Which one?\n\nUser: All." for place in range(6)]


def test_of_a_chat_that_is_judged_as_a_whole_the_last_answer_is_shown(here):
    chats = [("user", "Hello."), ("assistant", "Hi."), ("user", "Why?"), ("assistant", "So.")]
    rows = [{"messages": [{"role": role, "content": f"{text} {at}"} for role, text in chats]} for at in range(4)]
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields="{conversation: Chat}"), encoding="utf-8")
    done = run("score", "rows.jsonl", "-m", "worth.yaml", "-o", "out.jsonl", home=here)
    assert re.search(r"question: Why\? \d\n +output: So\. \d\n", done.stdout)
    output, asked, _ = shown_on_page(here, "report", "out.jsonl", "-o", "page.html")
    assert output == [f"So. {at}" for at in range(4)]
    assert asked == [f"Why? {at}" for at in range(4)]


def test_rows_of_the_same_texts_are_shown_once(here):
    rows = [{"story": f"Tale {at}", "worker": who, "rating": 3} for at in range(4) for who in "abc"]
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields="{story: Story}"), encoding="utf-8")
    done = run("score", "rows.jsonl", "-m", "worth.yaml", "--lowest", "4", "-o", "out.jsonl", home=here)
    again = run("report", "out.jsonl", "--lowest", "4", "-o", "page.html", home=here)
    for one in (done, again):
        assert sorted(re.findall(r"story: (Tale \d)", one.stdout)) == [f"Tale {at}" for at in range(4)]
        assert one.stdout.count("2 more rows of the same texts") == 4


def test_a_comparison_names_turns_by_their_numbers(here):
    (here / "worth.yaml").write_text(METRIC.format(fields="{question: Q, output: A}"), encoding="utf-8")
    for name in ("old", "new"):
        said = [("user", "What?"), ("assistant", f"This {name}."), ("user", "Why?"), ("assistant", "So.")]
        chat = [{"role": role, "content": text} for role, text in said]
        write_rows(here / f"{name}.jsonl", [{"id": one, "messages": chat} for one in ("late-fee", "refund")])
        given = ("score", f"{name}.jsonl", "-m", "worth.yaml", "-j", "smol", "--turns", "assistant")
        assert run(*given, "-o", f"{name}.out.jsonl", home=here).exit_code == 0
    done = run("compare", "old.out.jsonl", "new.out.jsonl", "--across", "input", home=here)
    assert "turn 1 of late-fee" in done.stdout
    command = ("compare", "old.out.jsonl", "new.out.jsonl", "--across", "input", "--page", "page.html")
    output, asked, names = shown_on_page(here, *command)
    assert names == [f"turn {turn} of {chat}" for chat in ("late-fee", "refund") for turn in (1, 2)]
    assert (output, asked) == (["This old.", "So."] * 2, ["What?", "Why?"] * 2)


def test_pairs_are_shown_by_what_they_answer(here):
    rows = [{"question": f"Why {at}?", "answer": f"{bot} {at}", "system": bot} for at in range(5) for bot in "AB"]
    write_rows(here / "rows.jsonl", rows)
    done = run("pairs", "rows.jsonl", "-m", "assistant/helpfulness", "-j", "smol", "-o", "pairs.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    told = run("report", "pairs.jsonl", "-o", "page.html", home=here).stdout
    assert re.search(r"Why \d\?", told)
    sides = [{"prompt": f"Why {at}?", "output_a": f"A {at}", "output_b": f"B {at}"} for at in range(5)]
    write_rows(here / "given.jsonl", sides)
    command = ("pairs", "given.jsonl", "-m", "assistant/helpfulness", "-j", "smol", "--given", "plain")
    assert run(*command, "-o", "judged.jsonl", home=here).exit_code == 0
    told = run("report", "judged.jsonl", "-o", "page.html", "--overwrite", home=here).stdout
    assert re.search(r"question: Why (\d)\?\n +output_a: A \1\n +output_b: B \1\n", told)


@pytest.mark.parametrize("fields", ["{story: Story}", "{prompt: Prompt, story: Story}"])
def test_one_row_per_rating_of_one_prompt(here, fields):
    """Three ratings of a story are no three documents, also where nothing else tells documents apart."""
    rows = [
        {"prompt": "Tell a tale.", "story": f"Tale {at}" + " and so" * (at % 4), "worker": who, "rating": 1 + rated % 5}
        for at in range(12)
        for who, rated in (("ann", at), ("ben", at + at % 3), ("eve", 3 * at))
    ]
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields=fields), encoding="utf-8")
    done = run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", "-o", "out.jsonl", home=here)
    assert "for other documents like these 12 (" in done.stderr or "for other stories like these 12 (" in done.stderr
    scores = [row["geval"]["worth"]["score"] for row in read_rows(here / "out.jsonl")]
    found = record(here, "meta-eval", "out.jsonl", "--human", "rating")["correlations"]["pooled"]["smol"]["worth"]
    assert found["spearman"]["value"] == pytest.approx(
        stats.spearmanr(scores, [row["rating"] for row in rows]).statistic
    )
    assert found["groups"] == 12
    assert record(here, "calibrate", "out.jsonl", "--human", "rating", "-o", "c.json")["held_out"]["groups"] == 12


def test_a_frame_of_results_is_read_again(here):
    """A frame has no manifest: its figures tell themselves, and mapped fields say what rows are about."""
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    scored(here, "mapped")
    kept = read_results(here / "out.jsonl")
    for frame in (kept.to_pandas(), kept.to_polars()):
        again = read_results(frame, fields={"question": "user message", "output": "bot reply"})
        assert again.metrics == ["worth"]
        assert [one.value for one in again.scores("worth")] == [one.value for one in kept.scores("worth")]
        assert again.documents.names == kept.documents.names
        assert again.documents.told == kept.documents.told


ANSWERS = [{"question": f"Why {at}?", "answer": f"So {at}."} for at in range(6)]
INPUTS = {
    "turns": ("--turns", "assistant"),
    "systems": ("--system-columns", "one", "two"),
    "files": (),
}


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "out.parquet", "run"])
@pytest.mark.parametrize("kind", INPUTS)
def test_a_row_has_the_number_of_its_place_in_the_input(here, kind, out):
    """Where results have other places: turns and systems of a row, and rows of several files."""
    if out.endswith("parquet"):
        pytest.importorskip("pyarrow")
    said = [{"role": role, "content": "Well?"} for role in ("user", "assistant")]
    rows = {
        "turns": [{"messages": said * (at + 1)} for at in range(4)],
        "systems": [{"question": one["question"], "one": one["answer"], "two": "No."} for one in ANSWERS],
        "files": ANSWERS,
    }[kind]
    (here / "data").mkdir()
    for part, own in enumerate((rows[:3], rows[3:]) if kind == "files" else (rows,)):
        write_rows(here / "data" / f"answers-of-2024-{part}.jsonl", own)
    (here / "worth.yaml").write_text(METRIC.format(fields="{question: Q, output: A}"), encoding="utf-8")
    done = run("score", "data", "-m", "worth.yaml", *INPUTS[kind], "--lowest", "20", "-o", out, home=here)
    assert done.exit_code == 0, done.stderr
    told = re.findall(r"^ *((?:\S+, )?row \d+)  \d", done.stdout, re.MULTILINE)
    again = run("report", out, "--lowest", "20", "-o", "page.html", home=here).stdout
    assert re.findall(r"^ *((?:\S+, )?row \d+)  \d", again, re.MULTILINE) == told
    if kind == "files":
        places = {f"answers-of-2024-{part}.jsonl, row {at}" for part in (0, 1) for at in (1, 2, 3)}
        assert {*Page((here / "page.html").read_text(encoding="utf-8")).data["keys"]} == places
        assert len({*told}) == 6
    held = [int(row["row_in_file"]) for row in read_results(here / out).rows]
    assert (
        held
        == {
            "turns": [1, 2, 2, 3, 3, 3, 4, 4, 4, 4],
            "systems": [at for at in range(1, 7) for _ in "ab"],
            "files": [1, 2, 3] * 2,
        }[kind]
    )


def test_a_row_of_one_file_holds_no_number_besides_its_place(here):
    write_rows(here / "rows.jsonl", ANSWERS)
    (here / "worth.yaml").write_text(METRIC.format(fields="{question: Q, output: A}"), encoding="utf-8")
    assert run("score", "rows.jsonl", "-m", "worth.yaml", "-o", "out.jsonl", home=here).exit_code == 0
    assert [*read_rows(here / "out.jsonl")[0]] == ["question", "answer", "geval"]


def test_ratings_of_one_row_a_document_are_correlated_over_all_rows(here):
    """Within documents there is nothing to compare: every verb that correlates says so by its level, and none fails."""
    scored(here, "own names")
    rows = read_rows(here / "out.jsonl")
    for place, row in enumerate(rows):
        row["rating"] = row["rating"] if place % 2 == place // 2 % 2 else None
    ids = {row["id"]: row["rating"] for row in rows}
    write_rows(here / "people.jsonl", [{"id": name, "stars": rating} for name, rating in ids.items()])
    people = ("--human", "stars", "--ratings", "people.jsonl", "--on", "id")
    command = ("score", "rows.jsonl", "-m", "worth.yaml", "-j", "nano", "-o", "other.jsonl")
    assert run(*command, home=here).exit_code == 0
    given = [(row["geval"]["worth"]["score"], row["rating"]) for row in rows if row["rating"] is not None]
    spearman = pytest.approx(stats.spearmanr(*zip(*given, strict=True)).statistic)
    jury = record(here, "jury", "out.jsonl", "other.jsonl", *people)["against_human"]["smol"]
    assert (jury["level"], jury["n"], jury["spearman"]["value"]) == ("pooled", 12, spearman)
    compared = record(here, "compare", "out.jsonl", "other.jsonl", "--across", "any", *people)["against_human"]["worth"]
    assert (compared["level"], compared["first"]) == ("pooled", spearman)
    before = record(here, "calibrate", "out.jsonl", *people, "-o", "c.json")["held_out"]
    assert before["level"] == "pooled"


def test_results_are_scored_and_paired_by_the_columns_that_they_were_scored_from(here):
    scored(here, "mapped")
    done = run("pairs", "out.jsonl", "-m", "worth.yaml", "-j", "nano", "-o", "pairs.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    assert len(read_rows(here / "pairs.jsonl")) == 12
    # Another metric, of the output alone: the first one's question stays known.
    (here / "tone.yaml").write_text(METRIC.replace("worth", "tone").format(fields="{output: Text}"), encoding="utf-8")
    done = run("score", "out.jsonl", "-m", "tone.yaml", "-j", "smol", "-o", "both.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    assert dict(read_manifest(here / "both.jsonl").fields) == {"question": "user message", "output": "bot reply"}
    # A named column goes before what is known.
    named = ("--field", "output=topic")
    done = run("score", "out.jsonl", "-m", "tone.yaml", *named, "-o", "topics.jsonl", home=here)
    assert read_manifest(here / "topics.jsonl").fields["output"] == "topic"


def test_outputs_for_one_prompt_are_ranked_within_it_although_people_rated_them_several_times(here):
    """Documents of the figures are the texts; two systems' outputs are held against each other within the prompt."""
    rows = [
        {"prompt": "Tell a tale.", "story": f"Tale of {bot}", "system": bot, "worker": who, "rating": 3}
        for bot in ("old", "new")
        for who in ("ann", "ben")
    ]
    write_rows(here / "rows.jsonl", rows)
    (here / "worth.yaml").write_text(METRIC.format(fields="{prompt: Prompt, story: Story}"), encoding="utf-8")
    done = run("score", "rows.jsonl", "-m", "worth.yaml", "-j", "smol", "-o", "out.jsonl", home=here)
    assert done.exit_code == 0, done.stderr
    assert read_manifest(here / "out.jsonl").documents == ("prompt", "story")
    ranked = run("rank", "out.jsonl", home=here)
    assert ranked.exit_code == 0, ranked.stderr
    assert re.search(r"^(old|new) +1 ", ranked.stdout, re.MULTILINE)


def test_answers_to_questions_are_named_where_scores_are_read(here):
    write_rows(here / "rows.jsonl", [{"output": "It rains."}])
    (here / "asked.yaml").write_text("wet: {type: predicate, instructions: It is wet.}", encoding="utf-8")
    asked = ("-q", "asked.yaml", "--state", "output", "-o", "answers/")
    assert run("decide", "rows.jsonl", *asked, home=here).exit_code == 0
    done = run("compare", "answers/", home=here)
    assert done.exit_code == 2
    assert "answers/decisions.jsonl, row 1: answers of `decide`, and no scores" in " ".join(done.stderr.split())
