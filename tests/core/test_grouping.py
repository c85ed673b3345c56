"""The rule of documents: rows that agree in what the metric reads about the item are one."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from geval_local.grouping import DocumentRule, Documents, answer_field, item_fields

SUMMARY, ANSWER, PASSAGES = ("source", "output"), ("question", "output"), ("question", "context", "output")


def rows(**columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def partition(codes):
    """Number the documents in the order of their first rows."""
    return [list(dict.fromkeys(codes)).index(code) for code in codes]


def found(columns, *metrics, **rule):
    return Documents.of(DocumentRule.of(metrics, **rule), rows(**columns))


@pytest.mark.parametrize(
    ("columns", "metrics", "rule", "expected", "told"),
    [
        ({"question": "aab", "output": "xyz"}, [ANSWER], {}, [0, 0, 1], "same question count as one document"),
        ({"query": "aab", "output": "xyz"}, [ANSWER], {}, [0, 0, 1], "same query count"),
        ({"post": "aab", "output": "xyz"}, [SUMMARY], {"mapping": {"source": "post"}}, [0, 0, 1], "same post count"),
        ({"source": "abc", "output": "xyz"}, [SUMMARY], {}, [0, 1, 2], "no two have the same source"),
        ({"source": "aaa", "output": "xyz"}, [SUMMARY], {}, [0, 1, 2], "all have the same source"),
        # What the metric does not read does not matter, unless it reads nothing about the item.
        ({"article": "aab", "question": "pqq", "output": "xyz"}, [ANSWER], {}, [0, 1, 1], "same question"),
        ({"article": "aab", "output": "xyz"}, [("output",)], {}, [0, 0, 1], "same article"),
        ({"output": "xxz"}, [("output",)], {}, [0, 0, 1], "same output"),
        ({"source": "aab", "output": "xyz"}, [], {}, [0, 0, 1], "same source"),
        # Two metrics: what both read; a reference and instructions say nothing about the item.
        (
            {"question": "aabb", "fact": "pqpp", "output": "wxyz"},
            [ANSWER, ("fact", "output")],
            {},
            [0, 1, 2, 2],
            "fact",
        ),
        (
            {"question": "aab", "reference": "pqr", "output": "xyz"},
            [("question", "reference", "output")],
            {},
            [0, 0, 1],
            "q",
        ),
        (
            {"system_prompt": "ssst", "conversation": "abcd"},
            [("system_prompt", "conversation")],
            {},
            [0, 1, 2, 3],
            "no two",
        ),
        # An output of another name is the alias, or the last field of the form.
        ({"clause": "aab", "summary": "xyz"}, [("clause", "summary")], {}, [0, 0, 1], "same clause"),
        ({"english": "aab", "german": "xyz"}, [("english", "german")], {}, [0, 0, 1], "same english"),
        # The user's word.
        (
            {"question": "aab", "topic": "ppp", "output": "xyz"},
            [ANSWER],
            {"group_by": "topic"},
            [0, 0, 0],
            "same topic",
        ),
        ({"question": "aab", "output": "xyz"}, [ANSWER], {"group_by": "row"}, [0, 1, 2], "as `group_by=row` says"),
        ({"row": [1, 1, 2]}, [ANSWER], {"group_by": "row"}, [0, 0, 1], "rows with the same row"),
        ({"meta": [{"d": 1}, {"d": 1}, {"d": 2}]}, [ANSWER], {"group_by": "meta.d"}, [0, 0, 1], "same meta.d"),
        ({"post": "aab"}, [SUMMARY], {"mapping": {"source": "post"}, "group_by": "source"}, [0, 0, 1], "same post"),
        # What an earlier run used.
        (
            {"question": "aab", "doc_id": "abb", "output": "xyz"},
            [ANSWER],
            {"used": ["question"]},
            [0, 0, 1],
            "question",
        ),
        ({"question": "aab", "doc_id": "abb", "output": "xyz"}, [ANSWER], {"used": ["doc_id"]}, [0, 1, 1], "doc_id"),
        ({"question": "aab", "output": "xyz"}, [ANSWER], {"used": []}, [0, 1, 2], "every row"),
    ],
)
def test_rows_that_agree_in_what_the_metric_reads_about_the_item_are_one_document(
    columns, metrics, rule, expected, told
):
    documents = found(columns, *metrics, **rule)
    assert partition(documents.codes.tolist()) == expected
    assert told in documents.counts.told
    assert ("`group_by=COLUMN` changes it" in documents.counts.told) == ("group_by" not in rule)


@pytest.mark.parametrize(
    ("columns", "expected", "told"),
    [
        # It joins rows further: a chat of several turns, also the only one.
        ({"question": "abcd", "conversation_id": "ppqq"}, [0, 0, 1, 1], "same conversation_id"),
        ({"question": "abcd", "conversation_id": "pppp"}, [0, 0, 0, 0], "same conversation_id"),
        ({"question": "abcd", "id": "ppqq"}, [0, 0, 1, 1], "same id"),
        ({"question": "aabc", "doc_id": "ppqr"}, [0, 0, 1, 2], "same doc_id"),  # says the same
        # It names rows, or differs where the question is the same.
        ({"question": "aabb", "doc_id": "pqrs"}, [0, 0, 1, 1], "doc_id differs in rows with the same question"),
        ({"question": "aabb", "id": "pqrs"}, [0, 0, 1, 1], "same question"),
        ({"question": "abcd", "id": "pqrr"}, [0, 1, 2, 3], "no two have the same question"),
        ({"question": "aabb", "doc_id": ["p", "p", None, "q"]}, [0, 0, 1, 1], "same question"),
        # It counts within documents that nothing names.
        (
            {"question": "aabbccdd", "doc_id": [1, 1, 2, 2, 1, 1, 2, 2]},
            [0, 0, 1, 1, 2, 2, 3, 3],
            "doc_id counts within",
        ),
        ({"question": "abcd", "doc_id": [1, 1, 2, 2]}, [0, 0, 1, 1], "same doc_id"),
        ({"question": "aaaa", "doc_id": "ppqq"}, [0, 0, 1, 1], "same doc_id"),
    ],
)
def test_a_column_that_names_documents_counts_where_it_joins_rows_further(columns, expected, told):
    columns = {**columns, "output": [str(place) for place in range(len(columns["question"]))]}
    documents = found(columns, ANSWER)
    assert partition(documents.codes.tolist()) == expected
    assert told in documents.counts.told


@pytest.mark.parametrize("trials", [1, 2])
def test_what_differs_between_systems_is_not_about_the_item(trials):
    asked = [(question, system, at) for question in range(6) for system in "ab" for at in range(trials)]
    made = [
        {"question": f"q{one}", "context": f"{one} {system} {at}", "system": system, "output": f"{one}{system}{at}"}
        for one, system, at in asked
    ]
    documents = Documents.of(DocumentRule.of([PASSAGES]), made)
    assert documents.counts.columns == ("question",)
    assert documents.counts.distinct == 6
    # Several questions about a passage, by both systems: questions differ within a system, and stay.
    made = [row | {"context": f"passage {place // (4 * trials)}"} for place, row in enumerate(made)]
    documents = Documents.of(DocumentRule.of([PASSAGES]), made)
    assert documents.counts.columns == ("question", "context")
    assert documents.counts.distinct == 6


def test_the_fields_of_a_chat_are_read_as_they_are_scored():
    def chat(*texts):
        return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]

    given = [{"messages": chat("Hi", answer), "id": name} for name, answer in (("a", "Yes"), ("b", "No"))]
    given.append({"messages": chat("Bye", "Yes"), "id": "c"})
    documents = Documents.of(DocumentRule.of([ANSWER]), given)
    assert partition(documents.codes.tolist()) == [0, 0, 1]
    assert documents.counts.noun == "questions"


def test_equal_values_of_other_types_and_formats_are_equal():
    given = [{"source": value, "output": "x"} for value in (["a", "b"], '["a", "b"]', "other", 5, "5", "", None)]
    documents = Documents.of(DocumentRule.of([SUMMARY]), given)
    assert partition(documents.codes.tolist()) == [0, 0, 1, 2, 2, 3, 4]
    assert documents.counts.missing == 2
    assert documents.names == ["1. a\n\n2. b", "1. a\n\n2. b", "other", "5", "5", None, None]


def test_rows_that_cannot_be_read_are_documents_of_their_own():
    documents = Documents(DocumentRule.of([ANSWER]))
    places = [documents.add(row) for row in ({}, {"question": "a"}, {"question": "a"}, {}, {"question": "b"})]
    assert places == [0, 1, 2, 3, 4]
    assert partition(documents.codes.tolist()) == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("seed", range(4))
def test_documents_have_the_same_codes_in_every_part(seed):
    draw = random.Random(seed)
    given = [{"question": f"q{draw.randrange(40)}", "output": str(place)} for place in range(200)]
    rule = DocumentRule.of([ANSWER])
    whole = Documents.of(rule, given)
    borders = [0, *sorted(draw.sample(range(1, 200), 3)), 200]
    parts = [Documents.of(rule, given[start:stop]) for start, stop in itertools.pairwise(borders)]
    assert whole.counts.used == ("question",)
    assert np.concatenate([part.codes for part in parts]).tolist() == whole.codes.tolist()


def test_a_row_alone_shows_its_document():
    rule = DocumentRule.of([ANSWER])
    assert rule.document({"question": "a", "output": "x"}) == rule.document({"question": "a", "output": "y"}) == "a"
    assert rule.document({"question": "a", "conversation_id": "c"}) == "c"
    assert DocumentRule.of([ANSWER], group_by="row").document({"question": "a"}) is None


@pytest.mark.parametrize(
    ("fields", "answer", "item"),
    [
        (("source", "output"), "output", ("source",)),
        (("question", "answer", "reference"), "answer", ("question",)),
        (("conversation",), "conversation", ()),
        (("english", "german"), "german", ("english",)),
    ],
)
def test_the_field_that_is_judged_is_not_about_the_item(fields, answer, item):
    assert answer_field(fields) == answer
    assert item_fields(fields) == item


def test_ratings_of_the_same_texts_are_no_documents_although_all_rows_are_about_one_item():
    """One prompt, four stories, three raters each: as documents, a story would be in training and test."""
    made = [
        {"prompt": "Tell a tale.", "story": f"Tale {at}", "model": at % 2, "worker": who}
        for at in range(4)
        for who in "abc"
    ]
    rule = DocumentRule.of([("prompt", "story")])
    documents = Documents.of(rule, made)
    assert partition(documents.codes.tolist()) == [at for at in range(4) for _ in "abc"]
    assert "rows with the same prompt and story count as one document" in documents.counts.told
    assert len(set(documents.names)) == 4
    # Readers of results decide the same by what was used.
    again = Documents.of(DocumentRule.of([("prompt", "story")], used=documents.counts.used), made)
    assert partition(again.codes.tolist()) == partition(documents.codes.tolist())
    # A named column decides; few repeats are none.
    assert Documents.of(DocumentRule.of([("prompt", "story")], group_by="prompt"), made).counts.distinct == 1
    few = [row | {"story": f"Tale {place if place > 1 else 0}"} for place, row in enumerate(made)]
    assert not Documents.of(rule, few).counts.is_grouped
