"""What is missing is named at once, with the command that mends it."""

from __future__ import annotations

import pytest

from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import guess_columns
from geval_local.io.input_checks import check_rows
from geval_local.io.rows import read_rows
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.models.registry import find_judge
from geval_local.runs.directory import result_file


def rows(*columns):
    return [Sample(dict.fromkeys(columns, "a text"), number, "chats.csv") for number in (1, 2)]


def test_all_missing_fields_of_all_metrics_are_named_with_the_options_that_map_them():
    metrics = [Metric.load("rag/faithfulness"), Metric.load("style/professionalism")]
    with pytest.raises(DataError) as told:
        check_rows(rows("ticket", "customer question", "bot reply"), metrics, "chats.csv")
    text = str(told.value)
    assert "the fields 'question' and 'context' and 'output' are missing" in text
    assert "style/professionalism: the field 'output' is missing" in text
    shown = '`fields={"question": "customer question", "context": "COLUMN", "output": "bot reply"}`'
    assert shown in text


def test_texts_inside_of_objects_are_guessed_by_their_paths():
    row = {"id": 1, "fields": {"instruction": "How long is it?", "completion": "Two metres."}, "run": {"id": "a b"}}
    with pytest.raises(DataError) as told:
        check_rows([Sample(row, 1, "d.jsonl")], [Metric.load("assistant/helpfulness")], "d.jsonl")
    assert '`fields={"question": "fields.instruction", "output": "fields.completion"}`' in str(told.value)
    row = {"input": {"question": "How long is it?"}, "output": {"answer": "Two metres."}}
    with pytest.raises(DataError, match="A path leads to its keys: question"):
        check_rows([Sample(row, 1, "d.jsonl")], [Metric.load("assistant/helpfulness")], "d.jsonl")


def test_a_word_of_another_language_is_no_misspelling():
    with pytest.raises(DataError) as told:
        check_rows(rows("Pregunta", "Respuesta"), [Metric.load("assistant/helpfulness")], "d.csv")
    assert '`fields={"question": "COLUMN", "output": "COLUMN"}`' in str(told.value)


def test_what_is_mapped_is_not_asked_for_again():
    with pytest.raises(DataError) as told:
        check_rows(
            rows("q", "bot reply"),
            [Metric.load("rag/faithfulness")],
            "chats.csv",
            {"question": "q", "output": "bot reply"},
        )
    assert "the field 'context' is missing" in str(told.value)
    assert '`fields={"context": "COLUMN"}`' in str(told.value)


@pytest.mark.parametrize(
    ("column", "field"),
    [("bot reply", "output"), ("ModelAnswer", "output"), ("kontext", "context"), ("user_query_text", "question")],
)
def test_columns_are_guessed_by_their_words_and_spelling(column, field):
    assert guess_columns([field], ["ticket", column, "date"]) == {field: column}


def test_a_column_serves_one_field_and_none_is_guessed_from_nothing():
    assert guess_columns(["output", "reference"], ["answer text"]) == {"output": "answer text"}
    assert guess_columns(["output"], ["ticket", "date"]) == {}


def test_near_file_names_are_suggested(tmp_path):
    (tmp_path / "chats.csv").write_text("a\n1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"there is no file .*chat\.csv; did you mean 'chats\.csv'\?"):
        read_rows(tmp_path / "chat.csv")
    with pytest.raises(DataError, match=r"there is no file or directory .*m2"):
        result_file(tmp_path / "runs" / "m2")
    with pytest.raises(DataError, match="is a directory"):
        read_rows(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"there is no file .*modl\.gguf; did you mean 'model\.gguf'"):
        find_judge(str(tmp_path / "modl.gguf"))
