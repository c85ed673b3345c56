"""Files of other shapes in a run: several files, systems side by side, turns of conversations, other ids."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from cli_run import judge_directory, run

from geval_local import Metric
from geval_local.analysis.comparison import compare
from geval_local.errors import DataError
from geval_local.io.input_checks import ROWS_CHECKED, check_input
from geval_local.io.input_files import find_files, read_input
from geval_local.io.pairs import PairPlan, given_sample
from geval_local.io.results import read_result_rows
from geval_local.io.samples import Sample
from geval_local.options import RunOptions
from geval_local.prompt import render_form
from geval_local.runs.input_file import check_unchanged, fingerprint_inputs
from geval_local.runs.run_file import score_file
from geval_local.testing import MockJudge

FLUENCY = Metric.load("summarization/fluency").with_steps(())
HELP = Metric.load("assistant/helpfulness").with_steps(())


def lines(path, *rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def wide(path):
    return lines(
        path,
        {"id": 7, "question": "Why?", "answer_a": "Because.", "answer_b": "So it is."},
        {"id": 8, "question": "How?", "answer_a": "", "answer_b": "Like this."},
        {"id": 9, "question": "When?", "answer_a": "Now."},
    )


def test_several_files_a_directory_and_a_pattern_are_one_run(tmp_path):
    a = lines(tmp_path / "in" / "a.jsonl", {"id": 1, "output": "One."}, {"id": 2, "output": ""})
    b = lines(tmp_path / "in" / "b.jsonl", {"id": 1, "output": "Two."})
    (tmp_path / "in" / "notes.txt").write_text("no rows")
    for number, given in enumerate(([a, b], tmp_path / "in", f"{tmp_path}/in/*.jsonl")):
        result = score_file(given, FLUENCY, MockJudge(), tmp_path / f"{number}.jsonl")
        rows = read_result_rows(result.files[0])
        assert [row["file"] for row in rows] == ["a.jsonl", "a.jsonl", "b.jsonl"]
        errors = [row["geval"][FLUENCY.name].get("error") for row in rows]
        assert errors[0] is errors[2] is None
        assert errors[1].startswith("a.jsonl, row 2: ")
    with pytest.raises(DataError, match="no data file matches"):
        find_files(f"{tmp_path}/*.nothing")


def test_the_identity_of_a_run_covers_all_its_files(tmp_path):
    a, b = (lines(tmp_path / name, {"output": name}) for name in ("a.jsonl", "b.jsonl"))
    before = fingerprint_inputs([a, b])
    assert before.sha256 != fingerprint_inputs([b, a]).sha256
    lines(b, {"output": "other"})
    assert before.sha256 != fingerprint_inputs([a, b]).sha256
    with pytest.raises(DataError, match=r"b\.jsonl was changed"):
        check_unchanged(before)


def test_a_run_over_several_files_is_resumed(tmp_path):
    files = [lines(tmp_path / name, {"output": name}) for name in ("a.jsonl", "b.jsonl")]
    command = ["score", *files, "-m", "summarization/fluency", "-j", judge_directory(), "-o", tmp_path / "run/"]
    assert run(*command, "--no-steps", home=tmp_path / "home").exit_code == 0
    again = run("resume", tmp_path / "run", home=tmp_path / "home")
    assert again.exit_code == 0, again.stderr
    assert "complete" in again.stderr


def test_systems_side_by_side_become_rows(tmp_path):
    options = ["--system-columns", "answer_a", "answer_b"]
    command = ["score", wide(tmp_path / "wide.jsonl"), "-m", "assistant/helpfulness", "-j", judge_directory()]
    done = run(*command, *options, "-o", tmp_path / "both.jsonl", home=tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    rows = read_result_rows(tmp_path / "both.jsonl")
    assert [(row["id"], row.get("system"), row.get("output")) for row in rows] == [
        ("7/answer_a", "answer_a", "Because."),
        ("7/answer_b", "answer_b", "So it is."),
        ("8/answer_a", "answer_a", ""),
        ("8/answer_b", "answer_b", "Like this."),
        ("9/answer_a", "answer_a", "Now."),
        ("9/answer_b", "answer_b", None),
    ]
    assert [row.get("doc_id") for row in rows] == [7, 7, 8, 8, 9, 9]
    errors = [row["geval"]["assistant/helpfulness"].get("error") for row in rows]
    assert [error is None for error in errors] == [True, True, False, True, True, False]
    assert errors[5].startswith("wide.jsonl, row 3: the system column 'answer_b' is missing; the columns are: id, ")
    with pytest.raises(DataError, match=r"wide\.jsonl: there is no column 'answr_b'; did you mean 'answer_"):
        score_file(tmp_path / "wide.jsonl", HELP, MockJudge(), tmp_path / "o", system_columns=["answer_a", "answr_b"])


def test_a_system_that_only_a_late_row_has_is_not_missing(tmp_path):
    """More rows than are checked before a judge is loaded, as of a first file of two systems and a second of three."""
    early = [{"question": "Q?", "a": "One."}] * (ROWS_CHECKED + 1)
    files = [lines(tmp_path / "early.jsonl", *early), lines(tmp_path / "late.jsonl", {"question": "R?", "b": "Two."})]
    assert len(check_input(files, [HELP], RunOptions(system_columns=["a", "b"]))) == ROWS_CHECKED
    with pytest.raises(DataError, match=r"there is no column 'c'"):
        check_input(files, [HELP], RunOptions(system_columns=["a", "c"]))


def test_a_row_that_lacks_a_system_gives_the_pairs_of_the_others(tmp_path):
    rows = [{"question": "Q?", "a": "One.", "b": "Two.", "c": "Three."}, {"question": "R?", "a": "One.", "c": "Three."}]
    file, out = lines(tmp_path / "wide.jsonl", *rows), tmp_path / "p.jsonl"
    score_file(file, HELP, MockJudge(), out, pairs=PairPlan(), system_columns=["a", "b", "c"])
    *pairs, lost = read_result_rows(out)
    assert [(row["row_a"], row["system_a"], row["system_b"]) for row in pairs] == [
        (1, "a", "b"),
        (1, "a", "c"),
        (1, "b", "c"),
        (2, "a", "c"),
    ]
    assert [(lost["row"], "'b' is missing" in one["error"]) for one in lost["geval"].values()] == [(2, True)]


def test_a_wide_table_goes_through_all_verbs_by_the_same_columns(tmp_path):
    answers = [("Because.", "So it is."), ("It is late.", "No."), ("Wait.", "Like this."), ("Yes.", "Perhaps.")]
    lines_of = [f"Why {number}?,{one},{other}" for number, (one, other) in enumerate(answers)]
    (tmp_path / "wide.csv").write_text("\n".join(["question,answer_a,answer_b", *lines_of]), encoding="utf-8")
    columns = ["--system-columns", "answer_a", "answer_b"]
    rated = ["-m", "assistant/helpfulness", "-j", judge_directory(), "--no-steps"]
    home = {"home": tmp_path / "home"}
    both = tmp_path / "both.jsonl"
    for command in (
        ["score", tmp_path / "wide.csv", *rated, "-o", both],
        ["compare", both],
        ["pairs", tmp_path / "wide.csv", *rated, "-o", tmp_path / "pairs.jsonl"],
        ["report", both, "-o", tmp_path / "page.html"],
    ):
        done = run(*command, *columns, **home)
        assert done.exit_code == 0, (command[0], done.stderr)
    found = compare([both], system_columns=("answer_a", "answer_b"))
    (ranking,) = found.systems.values()
    assert {(side.side, side.n) for side in ranking.systems} == {("answer_a", 4), ("answer_b", 4)}
    rows = read_result_rows(both)
    scores = np.array([row["geval"]["assistant/helpfulness"]["score"] for row in rows]).reshape(4, 2)
    assert abs(ranking.pairs[0].difference.value) == pytest.approx(abs(np.subtract(*scores.T).mean()))
    for verb in (["compare", both], ["report", both, "-o", tmp_path / "other.html"]):
        wrong = run(*verb, "--system-columns", "answer_a", "answer_c", **home)
        assert wrong.exit_code == 2
        assert "no row is of the system 'answer_c'; did you mean 'answer_" in wrong.stderr
        assert "Its systems are: answer_a, answer_b." in wrong.stderr
    two = run("compare", both, *columns, "--system", "system", **home)
    assert (two.exit_code, "both name the systems" in two.stderr) == (2, True)


def test_pairs_take_systems_side_by_side_and_one_file_each(tmp_path):
    file = wide(tmp_path / "wide.jsonl")
    rest = ["-m", "summarization/fluency", "--no-steps", "-j", judge_directory()]
    done = run(
        "pairs", file, "--system-columns", "answer_a", "answer_b", *rest, "-o", tmp_path / "p.jsonl", home=tmp_path
    )
    assert done.exit_code == 0, done.stderr
    first = read_result_rows(tmp_path / "p.jsonl")[0]
    assert (first["system_a"], first["system_b"]) == ("answer_a", "answer_b")
    two = [lines(tmp_path / f"{name}.jsonl", {"doc_id": 1, "output": name}) for name in ("x", "y")]
    done = run("pairs", *two, *rest, "-o", tmp_path / "q.jsonl", home=tmp_path)
    assert done.exit_code == 0, done.stderr
    first = read_result_rows(tmp_path / "q.jsonl")[0]
    assert (first["system_a"], first["system_b"]) == ("x.jsonl", "y.jsonl")


def said(*turns):
    return [{"role": role, "content": text} for role, text in turns]


def test_preference_rows(tmp_path):
    asked, good, bad = ("user", "Why?"), ("assistant", "Because."), ("assistant", "No.")
    for row in (
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
        {"prompt": said(asked), "chosen": said(good), "rejected": said(bad)},
        {"chosen": said(asked, good), "rejected": said(asked, bad)},
    ):
        pair = given_sample(Sample(row, 1), "preference").fields
        assert (pair["output_a"], pair["output_b"], pair["human"]) == ("Because.", "No.", [1.0])
        assert "Why?" in pair["prompt"]
        rows = read_input([lines(tmp_path / "p.jsonl", row)], RunOptions(system_columns=["chosen", "rejected"]))
        assert [one.texts(["question", "output"]) for one in rows] == [
            {"question": "Why?", "output": "Because."},
            {"question": "Why?", "output": "No."},
        ]


def test_every_turn_of_the_assistant_is_a_row_that_shares_its_history(tmp_path):
    talk = said(*(pair for n in range(4) for pair in (("user", f"Ask {n}. " * 20), ("assistant", f"Say {n}."))))
    file = lines(tmp_path / "chat.jsonl", {"id": "c", "messages": talk}, {"id": "bad", "messages": [{"role": "user"}]})
    metric = Metric(name="m", criteria="Good?", fields={"history": "History", "output": "Turn"}, scale="1-5", steps=())
    result = score_file(file, metric, MockJudge(), tmp_path / "out.jsonl", turns="assistant")
    rows = read_result_rows(result.files[0])
    assert [(row["id"], row.get("assistant_turn"), row.get("conversation_id")) for row in rows] == [
        *((f"c#{n}", n, "c") for n in range(1, 5)),
        ("bad", None, None),
    ]
    assert all("messages" not in row for row in rows[:4])
    assert all(row["history"].endswith(row["question"]) for row in rows[:4])
    assert "message 1" in rows[4]["geval"]["m"]["error"]
    samples = list(read_input([file], RunOptions(turns="assistant")))[:4]
    assert {sample.row for sample in samples} == {1}
    # A result row gives the texts of its own turn again.
    assert [Sample(row).texts(["output"])["output"] for row in rows[:4]] == [f"Say {n}." for n in range(4)]
    prompts = [render_form(metric, sample.texts(metric.fields)).text for sample in samples]
    for before, after in itertools.pairwise(prompts):
        history = before[: before.index("\n\nTurn:")]
        assert after.startswith(history)


def test_another_column_is_the_id(tmp_path):
    file = lines(tmp_path / "a.jsonl", *({"id": "d", "key": n, "output": "Text."} for n in range(3)), {"output": "x"})
    rows = list(read_input([file], RunOptions(id="key")))
    assert [sample.fields.get("id") for sample in rows] == [0, 1, 2, None]
    assert rows[0].fields["original_id"] == "d"
    assert "the id 'key' is missing" in rows[3].error
