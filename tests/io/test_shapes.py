"""Shapes that people bring: several answers a row, code in cells, envelopes, columns with dots in their names."""

from __future__ import annotations

import csv
import json
import logging
import shlex

import pytest
from cli_run import judge_directory, run, write_rows

from geval_local import Metric
from geval_local.errors import ConfigurationError, DataError, FieldError, UnscorableError
from geval_local.fields import decoded_json, field_value
from geval_local.io.input_checks import check_input
from geval_local.io.input_files import find_files, read_input
from geval_local.io.samples import Sample
from geval_local.io.shapes import Shape
from geval_local.options import RunOptions
from geval_local.testing import MockJudge

ANSWER = "assistant/helpfulness"


def systems(row, *columns):
    shape = Shape(RunOptions(system_columns=list(columns)))
    return {sample.fields.get("system"): sample for sample in shape.samples(Sample(row, 2, "d.jsonl"))}


# --- several answers --------------------------------------------------------------------------------------------------


def test_a_list_of_texts_as_output_is_no_text_and_the_remedy_works(tmp_path):
    row = {"question": "Q?", "output": ["First.", "Second."]}
    score = MockJudge().score(Metric.load(ANSWER), row)
    assert "the field 'output' is a list of 2 texts, and a judge rates one" in str(score.error)
    with pytest.raises(FieldError) as caught:
        Sample(row).texts(["output"])
    assert "`system_columns=output`" in str(caught.value.hint)
    found = systems(row, "output")
    assert [(name, one.texts(["output"])["output"]) for name, one in found.items()] == [
        ("output[0]", "First."),
        ("output[1]", "Second."),
    ]
    assert Sample({"output": ["Only."]}).texts(["output"]) == {"output": "Only."}


def test_one_chosen_and_three_rejected_are_four_systems():
    row = {"id": 5, "prompt": "P", "chosen": ["Good."], "rejected": ["Bad.", "Worse.", "Worst."]}
    found = systems(row, "chosen", "rejected")
    assert list(found) == ["chosen", "rejected[0]", "rejected[1]", "rejected[2]"]
    assert found["rejected[2]"].fields["id"] == "5/rejected[2]"
    assert {one.fields["doc_id"] for one in found.values()} == {5}


def test_lists_beside_a_prompt_of_as_many_texts_are_turns():
    found = systems({"prompt": '["Q1", "Q2"]', "a": '["A1", "A2"]', "b": '["B1", "B2"]'}, "a", "b")
    assert found["b"].texts(["question", "output", "history"]) == {
        "question": "Q2",
        "output": "B2",
        "history": "User: Q1\n\nAssistant: B1\n\nUser: Q2",
    }


@pytest.mark.parametrize(
    "given",
    [
        ("--system-columns", "a", "b", "c", "wide.jsonl"),
        ("wide.jsonl", "--system-columns", "a", "b", "c"),
        ("wide.jsonl", "--system-columns", "a", "b", "--system-columns", "b", "c"),
        ("wide.jsonl", "--system-columns", "a,b", "--system-columns", "c"),
    ],
)
def test_any_number_of_systems(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "wide.jsonl", [{"question": "Q?", "a": "One.", "b": "Two.", "c": "Three.", "note": "n"}])
    judged = ("-m", ANSWER, "-j", judge_directory(), "-o", "out.jsonl")
    done = run("score", *given, *judged, home=tmp_path / "home")
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["system"], row["output"], row["note"]) for row in rows] == [
        ("a", "One.", "n"),
        ("b", "Two.", "n"),
        ("c", "Three.", "n"),
    ]


# --- code in cells ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "field", "text"),
    [
        ("""["It's dry.", 'Say "no".']""", "context", '1. It\'s dry.\n\n2. Say "no".'),
        ('["One.", "Two."]', "context", "1. One.\n\n2. Two."),
        ('{"role": "assistant", "content": "Yes."}', "output", "Yes."),
        ("{'role': 'assistant', 'content': 'Yes.'}", "output", "Yes."),
        ('{"messages": [{"role": "user", "content": "Why?"}]}', "question", "User: Why?"),
        ('{"choices": [{"message": {"role": "assistant", "content": "Yes."}}]}', "output", "Yes."),
        ('{"choices": [{"text": "Yes.", "index": 0}]}', "output", "Yes."),
        ('{"candidates": [{"content": {"role": "model", "parts": [{"text": "Yes."}]}}]}', "output", "Yes."),
        # What a judge may well be asked about stays as it is.
        ('["One.", "Two."]', "output", '["One.", "Two."]'),
        ('{"answer": 5}', "output", '{"answer": 5}'),
        ("[sic] It rains.", "context", "[sic] It rains."),
        ("['a' 'b']", "context", "['a' 'b']"),
        ("[1, 2]", "context", "[1, 2]"),
    ],
)
def test_lists_and_messages_in_a_cell_are_read_as_what_they_are(cell, field, text, caplog):
    caplog.set_level(logging.INFO, logger="geval_local")
    column = f"of {field}: {cell}"
    assert Sample({column: cell}, mapping={field: column}).texts([field]) == {field: text}
    assert (repr(column) in caplog.text) == (text != cell)


@pytest.mark.parametrize(("cell", "told"), [("[]", "is an empty list"), ("['a', None]", "item 2 is null")])
def test_a_list_in_a_cell_that_lacks_texts_is_unscored_as_elsewhere(cell, told):
    for value in (cell, decoded_json(cell)):
        with pytest.raises(UnscorableError, match=told):
            Sample({"context": value}).texts(["context"])


def test_what_numpy_prints_is_not_joined():
    assert decoded_json("['a' 'b']") == "['a' 'b']"
    assert decoded_json("['a', 'b']") == ["a", "b"]


# --- guesses ----------------------------------------------------------------------------------------------------------


def test_labels_hashes_and_names_are_not_guessed_to_be_texts(tmp_path):
    row = {"doc": "A long story.", "origin": "cnndm", "response_model": "gpt-4", "prompt_hash": "a b", "models": ["x"]}
    file = write_rows(tmp_path / "d.jsonl", [row, {**row, "origin": "xsum"}])
    with pytest.raises(DataError) as caught:
        check_input(str(file), [Metric.load("summarization/coherence"), Metric.load(ANSWER)])
    assert "`fields=source=COLUMN`" in str(caught.value.hint)
    for wrong in ("=origin", "=response_model", "=prompt_hash", "=models"):
        assert wrong not in str(caught.value.hint)


# --- envelopes --------------------------------------------------------------------------------------------------------


def test_rows_inside_of_an_envelope_are_named_and_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"Q{n}?", "answer": f"A{n} it is."} for n in range(3)]
    envelope = {"version": 2, "stats": [1, 2], "results": {"results": rows, "prompts": [{"raw": "p"}]}}
    (tmp_path / "run.json").write_text(json.dumps(envelope))
    with pytest.raises(DataError) as caught:
        check_input("run.json", [Metric.load(ANSWER)])
    assert (
        "holds one dict, not a list of objects; lists of objects in it: results.results (3), " in caught.value.message
    )
    assert caught.value.hint == "Name the list: `rows=results.results`."
    for named in ("eval.samples", "my runs"):
        (tmp_path / "named.json").write_text(json.dumps({"run": {named: [*rows, "none"]}}))
        with pytest.raises(DataError) as caught:
            check_input("named.json", [Metric.load(ANSWER)])
        assert caught.value.hint == f"Name the list: `rows={shlex.quote(f'run.{named}')}`."
        assert len(check_input("named.json", [Metric.load(ANSWER)], RunOptions(rows=f"run.{named}"))) == 4
    with pytest.raises(DataError, match=r"no list at 'results\.result'; did you mean 'results\.results'"):
        check_input("run.json", [Metric.load(ANSWER)], RunOptions(rows="results.result"))
    judged = ("run.json", "-m", ANSWER, "-j", judge_directory(), "--rows", "results.results")
    for more in (("-o", "out.jsonl"), ("-o", "shares/", "--shard", "1/1")):
        done = run("score", *judged, *more, home=tmp_path / "home")
        assert done.exit_code == 0, done.stderr
        assert "3/3" in done.stdout
    (tmp_path / "q.yaml").write_text("questions: [{name: ok, type: probability, statement: It is polite.}]")
    write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigurationError, match="`rows` leads into a JSON file or a workbook"):
        list(read_input(find_files("rows.jsonl"), RunOptions(rows="results")))


def test_an_evaluation_log_gives_its_chats(tmp_path):
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    answer = {"choices": [{"message": {"role": "assistant", "content": "Because."}}]}
    log = {"eval": {}, "samples": [{"id": n, "input": "Why?", "messages": chat, "output": answer} for n in range(2)]}
    (tmp_path / "log.json").write_text(json.dumps(log))
    found = list(read_input([tmp_path / "log.json"], RunOptions(rows="samples", turns="assistant")))
    assert [one.texts(["question", "output", "history"]) for one in found] == [
        {"question": "Why?", "output": "Because.", "history": "User: Why?"}
    ] * 2


def test_a_path_leads_into_a_column_whose_name_has_dots():
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "The gate."}]}]
    row = {"gen_ai.output.messages": said, "gen_ai": {"output": "another"}}
    assert field_value(row, "gen_ai.output.messages.0.parts.0.content") == "The gate."
    assert field_value(row, "gen_ai.output") == "another"
    assert field_value({"attributes": row}, "attributes.gen_ai.output.messages.0.parts.0.content") == "The gate."
    assert Sample(row, mapping={"output": "gen_ai.output.messages"}).texts(["output"]) == {"output": "The gate."}


def test_a_table_with_lists_of_python_is_scored_as_lists(tmp_path):
    file = tmp_path / "ragas.csv"
    with file.open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["user_input", "retrieved_contexts", "response"])
        table.writerow(["What?", str(["One.", "It's two."]), "That."])
    (sample,) = read_input([file], RunOptions())
    assert sample.texts(["context"]) == {"context": "1. One.\n\n2. It's two."}
