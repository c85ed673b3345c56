import pytest

from geval_local.grouping import Documents, documents_of


def rows(**columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize(
    ("columns", "given", "field", "told"),
    [
        ({"doc_id": [1, 1, 2]}, None, "doc_id", "same doc_id are treated as one document (a guess"),
        ({"source": ["a", "a", "b"]}, None, "source", "same source are treated as one document (a guess"),
        ({"document": ["a", "a", "b"]}, None, "document", "same document are treated"),
        ({"source": ["a", "b", "c"]}, None, None, "no two rows have the same source"),
        ({"source": ["a", "a", "a"]}, None, None, "all rows have the same source"),
        ({"output": ["a", "a", "b"]}, None, None, "no column names a document"),
        ({"id": ["a", "a", "b", "b"]}, None, "id", "same id are treated as one document (a guess"),
        ({"id": ["a", "b", "c", "c"]}, None, None, "no column names a document"),
        ({"id": ["a", "a", "b", "b"], "doc_id": [1, 1, 1, 2]}, None, "doc_id", "same doc_id"),
        ({"doc_id": [1, 1, None]}, None, None, "no column names a document"),
        ({"doc_id": [1, 1, 2]}, "row", None, "as `group_by=row` says"),
        ({"doc_id": [1, 1, 2], "topic": [5, 6, 6]}, "topic", "topic", "rows with the same topic are one document"),
        ({"row": [1, 1, 2]}, "row", "row", "rows with the same row are one document"),
        ({"meta": [{"doc": 1}, {"doc": 1}, {"doc": 2}]}, "meta.doc", "meta.doc", "same meta.doc"),
    ],
)
def test_documents_are_named_guessed_and_said(columns, given, field, told):
    found, sentence = documents_of(rows(**columns), given)
    assert found == field
    assert told in sentence
    if field is None and given is None:
        assert "a guess" in sentence


def test_rows_of_one_document_have_one_number():
    documents = Documents()
    numbers = [documents.add({"doc_id": doc}) for doc in ("x", "y", "x", None, None)]
    assert numbers[0] == numbers[2] != numbers[1]
    assert numbers[3] != numbers[4]
