"""Conversations in OpenAI's and ShareGPT's forms: the fields that they offer, and messages that are none."""

from __future__ import annotations

import csv
import json

import pytest

from geval_local import Metric
from geval_local.errors import DataError, UnscorableError
from geval_local.fields import field_value, output_text
from geval_local.io.input_checks import check_input
from geval_local.io.input_files import read_samples
from geval_local.io.samples import Sample
from geval_local.testing import MockJudge

CALL = {"id": "c1", "type": "function", "function": {"name": "timetable", "arguments": '{"day": "Monday"}'}}
OPENAI = [
    {"role": "system", "content": "You work for a ferry."},
    {"role": "user", "content": [{"type": "text", "text": "When does it"}, {"type": "text", "text": "leave?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "08:15"},
    {"role": "assistant", "content": "At 08:15. <|im_end|>"},
    {"role": "user", "content": "Thanks."},
]
BEFORE = (
    "System: You work for a ferry.\n\nUser: When does it\nleave?\n\n"
    'Assistant: [calls timetable({"day": "Monday"})]\n\nTool: 08:15'
)
SHAREGPT = [
    {"from": "system", "value": "You work for a ferry."},
    {"from": "human", "value": "When does it leave?"},
    {"from": "gpt", "value": "At 08:15."},
]
ALL = ("question", "output", "history", "conversation", "system_prompt", "context", "source")


def texts(row, *fields):
    return Sample(row, 3, "chat.jsonl").texts(fields)


def test_openai_messages_offer_every_field():
    found = {field: texts({"messages": OPENAI}, field)[field] for field in ALL}
    assert found == {
        "question": "When does it\nleave?",
        "output": "At 08:15. <|im_end|>",
        "history": BEFORE,
        "source": BEFORE,
        "conversation": f"{BEFORE}\n\nAssistant: At 08:15. <|im_end|>\n\nUser: Thanks.",
        "system_prompt": "You work for a ferry.",
        "context": "08:15",
    }
    assert output_text({"messages": OPENAI}) == "At 08:15. <|im_end|>"
    assert field_value({"messages": OPENAI}, "question") == "When does it\nleave?"


def test_several_fields_do_not_take_each_other_s_columns():
    found = texts({"messages": OPENAI, "prompt": "of another turn"}, "question", "context", "output")
    assert list(found.values()) == ["When does it\nleave?", "08:15", "At 08:15. <|im_end|>"]


@pytest.mark.parametrize("names", [("human", "gpt"), ("user", "assistant"), ("prompter", "model")])
@pytest.mark.parametrize("column", ["conversations", "messages", "conversation"])
def test_sharegpt_in_its_variants(column, names):
    variant = [SHAREGPT[0], {**SHAREGPT[1], "from": names[0]}, {**SHAREGPT[2], "from": names[1]}]
    assert texts({column: variant}, "question", "output") == {
        "question": "When does it leave?",
        "output": "At 08:15.",
    }
    assert "When does it leave?" in texts({column: variant}, "history")["history"]


def test_a_column_of_the_name_is_not_overridden():
    row = {"messages": OPENAI, "question": "Q", "history": "H", "output": "O"}
    assert texts(row, "question", "history", "output") == {"question": "Q", "history": "H", "output": "O"}


def test_an_answer_in_a_column_of_its_own_answers_the_whole_conversation():
    row = {"messages": OPENAI, "response": "You are welcome."}
    found = texts(row, "question", "source", "output")
    assert found["output"] == "You are welcome."
    assert found["question"] == "Thanks."
    assert found["source"].endswith("User: Thanks.")


def test_offered_fields_are_mapped_like_columns():
    sample = Sample({"messages": OPENAI}, mapping={"output": "history"})
    assert sample.texts(["output"]) == {"output": BEFORE}


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (["Hello"], "message 1 is no object"),
        ([{"role": "user", "content": "q"}, {"content": "a"}], "message 2 is an object without a role"),
        ([{"role": "user", "content": 5}], "message 1: the content is of type int, not text"),
        ([{"role": "user", "content": None}], "message 1: the content is null"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "part 1 of the content is image_url"),
        ([], "holds no message"),
        ([{"role": "user", "content": "q"}], "'output' is missing: the conversation in 'messages' has none"),
    ],
)
def test_a_conversation_that_is_none_is_named_and_the_others_are_scored(tmp_path, messages, told):
    file = tmp_path / "chat.jsonl"
    rows = [{"messages": messages}, {"messages": OPENAI}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metric = Metric.load("assistant/helpfulness")
    check_input(file, [metric])
    bad, good = MockJudge().score_many(metric, read_samples(file))
    assert good.is_scored
    assert told in bad.error
    assert bad.error.startswith("chat.jsonl, row 1")
    file.write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(DataError, match=r"chat\.jsonl: its only row") as caught:
        check_input(file, [metric])
    assert told in str(caught.value)


def test_a_conversation_in_a_csv_cell(tmp_path):
    file = tmp_path / "chat.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([["id", "messages"], ["1", json.dumps(OPENAI)]])
    (sample,) = read_samples(file)
    assert sample.texts(["output"])["output"] == "At 08:15. <|im_end|>"
    with pytest.raises(UnscorableError):
        Sample({"messages": "no list"}).texts(["output"])
