"""``--turns``: every turn is a row with what came before; one that a judge cannot see costs only itself."""

from __future__ import annotations

import json
import logging
import unicodedata

import pytest
from cli_run import judge_directory, run, write_rows

from geval_local import Metric
from geval_local.errors import DataError
from geval_local.grouping import DocumentRule, Documents
from geval_local.io.input_checks import check_input
from geval_local.io.input_files import find_files, read_input
from geval_local.io.pairs import given_sample
from geval_local.io.samples import Sample
from geval_local.io.shapes import Shape
from geval_local.options import RunOptions
from geval_local.testing import MockJudge

PHOTO = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
LABELS = ("question", "output", "history", "conversation")


def said(*contents):
    """A chat of a user and an assistant by turns."""
    return [{"role": ("user", "assistant")[n % 2], "content": one} for n, one in enumerate(contents)]


def turns(row, speaker="assistant", **options):
    shape = Shape(RunOptions(turns=speaker, **options))
    return list(shape.samples(Sample(row, 4, "chat.jsonl")))


def test_a_turn_holds_itself_and_what_came_before_and_never_what_came_later():
    system = {"role": "system", "content": "Be brief."}
    first, second = turns({"id": "c", "messages": [system, *said("One?", "1.", "Two?", "2.")], "lang": "en"})
    assert first.fields == {
        "question": "One?",
        "output": "1.",
        "history": "System: Be brief.\n\nUser: One?",
        "system_prompt": "Be brief.",
        "id": "c#1",
        "lang": "en",
        "conversation_id": "c",
        "assistant_turn": 1,
    }
    assert second.texts(LABELS) == {
        "question": "Two?",
        "output": "2.",
        "history": "System: Be brief.\n\nUser: One?\n\nAssistant: 1.\n\nUser: Two?",
        "conversation": "System: Be brief.\n\nUser: One?\n\nAssistant: 1.\n\nUser: Two?\n\nAssistant: 2.",
    }
    assert first.texts(["source"]) == {"source": "System: Be brief.\n\nUser: One?"}


def test_no_other_column_of_a_turn_is_taken_for_what_it_lacks():
    (only,) = turns({"messages": said("One?", "1.")})
    assert MockJudge().score(Metric.load("rag/faithfulness"), only).error is not None


@pytest.mark.parametrize(
    ("content", "named", "told"),
    [
        (PHOTO, "What is this?\n[image]", "part 2 of the content is image_url, not text"),
        ([{"type": "input_audio", "input_audio": {}}], "[audio]", "part 1 of the content is input_audio"),
        ([{"type": "blob", "modality": "audio", "content": "UklGRg=="}], "[audio]", "part 1 of the content is blob"),
        (None, "[no content]", "the content is null"),
    ],
)
def test_a_message_that_cannot_be_seen_costs_its_own_turn_and_is_named_in_later_ones(content, named, told):
    rows = turns({"id": "c", "messages": said("One?", "1.", content, "A cat.", "Three?", "3.")})
    assert [row.fields["id"] for row in rows] == ["c#1", "c#2", "c#3"]
    assert [row.error is None for row in rows] == [True, False, True]
    assert told in str(rows[1].error)
    assert str(rows[1].error).startswith("chat.jsonl, row 4: ")
    assert f"User: {named}\n\nAssistant: A cat." in rows[2].texts(["history"])["history"]
    assert rows[2].fields["not_shown"].startswith("message 3: ")
    assert "not_shown" not in rows[0].fields


def test_an_answer_without_content_is_a_row_without_a_score_and_a_refusal_is_an_answer():
    chat = said("One?", None, "Two?", None)
    chat[3]["refusal"] = "I cannot help with that."
    first, second = turns({"messages": chat})
    assert "the content is null" in str(first.error)
    assert second.texts(["output"]) == {"output": "I cannot help with that."}


def test_a_message_that_is_none_costs_the_turns_after_it():
    rows = turns({"messages": [*said("One?", "1."), {"text": "?"}, *said("Two?", "2.")]})
    assert [row.error is None for row in rows] == [True, False]
    assert "keys: text" not in str(rows[1].error)
    assert "message 3 is an object without a role" in str(rows[1].error)


def test_lost_turns_are_counted_as_rows(tmp_path):
    rows = [{"id": f"c{n}", "messages": said("A?", "a", PHOTO if n == 1 else "B?", "b", "C?", "c")} for n in range(3)]
    file = write_rows(tmp_path / "chats.jsonl", rows)
    found = list(read_input(find_files(str(file)), RunOptions(turns="assistant")))
    assert [row.error is None for row in found] == [True] * 4 + [False] + [True] * 4
    assert found[4].fields["conversation_id"] == "c1"


def test_two_bots_are_two_speakers():
    chat = [
        {"role": "assistant", "name": "Ada", "content": "Hello."},
        {"role": "assistant", "name": "Bob", "content": "Who are you?"},
        {"role": "assistant", "name": "Ada", "content": "Ada."},
    ]
    found = turns({"messages": chat}, "Ada")
    assert [row.fields["output"] for row in found] == ["Hello.", "Ada."]
    assert found[1].texts(["question", "history"]) == {
        "question": "Who are you?",
        "history": "Ada: Hello.\n\nBob: Who are you?",
    }
    assert found[1].fields["speaker"] == "Ada"
    assert found[1].texts(["conversation"])["conversation"].endswith("Bob: Who are you?\n\nAda: Ada.")
    assert len(turns({"messages": chat})) == 3


def test_roles_in_another_language_are_mapped_or_named():
    chat = [{"role": "öğrenci", "content": "Neden?"}, {"role": "Öğretmen", "content": "Çünkü."}]
    (lost,) = turns({"messages": chat})
    assert "no turn of 'assistant'; its speakers are: Öğrenci, Öğretmen" in str(lost.error)
    roles = ["assistant=öğretmen", "user=öğrenci,veli"]
    (row,) = turns({"messages": chat}, roles=roles)
    assert row.texts(["question", "output", "history"]) == {
        "question": "Neden?",
        "output": "Çünkü.",
        "history": "User: Neden?",
    }
    other = [{"role": "öğrenci", "content": "Neden?"}, {"role": "VELİ", "content": "Peki?"}, chat[1]]
    (row,) = turns({"messages": other}, roles=[unicodedata.normalize("NFD", one) for one in roles])
    assert row.texts(["history"]) == {"history": "User: Neden?\n\nUser: Peki?"}
    (whole,) = Shape(RunOptions(roles=roles)).samples(Sample({"messages": chat}))
    assert whole.texts(["output"]) == {"output": "Çünkü."}


def test_a_role_that_no_message_has_is_refused_or_named(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="geval_local")
    chat = [{"role": "öğrenci", "content": "Neden?"}, {"role": "öğretmen", "content": "Çünkü."}]
    other = [{"role": "VELİ", "content": "Peki?"}, chat[1]]
    file = write_rows(tmp_path / "d.jsonl", [*[{"messages": chat}] * 1200, {"messages": other}])
    metrics = [Metric.load("assistant/helpfulness")]
    for more in ({}, {"turns": "assistant"}):
        roles = ["user=öğrenci,veli", "assistant=öğretmen"]
        check_input(file, metrics, RunOptions(roles=roles, **more))  # one of the names is late
        assert not caplog.records
        with pytest.raises(DataError) as caught:
            check_input(file, metrics, RunOptions(roles=["user=öğrenci", "assistant=öğretmn"], **more))
        assert "d.jsonl: no message is of the role 'öğretmn'; did you mean 'öğretmen'?" in caught.value.message
        assert caught.value.hint.startswith("Its roles are: öğrenci, öğretmen, VELİ. Another name comes last: ")
    nowhere = write_rows(tmp_path / "other.jsonl", [{"verlauf": [{"rolle": "Kunde", "text": "Neden?"}]}])
    with pytest.raises(DataError, match="there is no list of messages at 'verlauf'"):
        check_input(nowhere, metrics, RunOptions(roles=["user=Kunde"], turns_at=["verlauf"]))
    check_input(file, metrics, RunOptions(roles=["user=öğrenci,kardeş", "assistant=öğretmen"]))
    assert "d.jsonl: no message is of the role 'kardeş'" in caplog.text
    plain = write_rows(tmp_path / "plain.jsonl", [{"question": "Q?", "output": "A."}])
    with pytest.raises(DataError, match="Its roles are: none"):
        check_input(plain, metrics, RunOptions(roles=["assistant=agent"]))


def test_roles_are_mapped_in_the_chats_of_systems_and_of_preferences(tmp_path):
    asked, good, bad = ({"role": role, "content": role} for role in ("kunde", "gut", "schlecht"))
    row = {"prompt": [asked], "chosen": [good], "rejected": [bad]}
    options = RunOptions(roles=["user=kunde", "assistant=gut,schlecht"])
    file = write_rows(tmp_path / "d.jsonl", [row])
    wide = read_input([file], options.model_copy(update={"system_columns": ["chosen", "rejected"]}))
    assert [one.texts(["question", "output"]) for one in wide] == [
        {"question": "kunde", "output": "gut"},
        {"question": "kunde", "output": "schlecht"},
    ]
    (pair,) = (given_sample(one, "preference") for one in read_input([file], options))
    assert (pair.fields["prompt"], pair.fields["output_b"]) == ("User: kunde", "schlecht")


@pytest.mark.parametrize("name", [0, 1, "late"])
def test_one_chat_is_one_document_whatever_it_is_called(name):
    rows = [row.fields for row in turns({"id": name, "messages": said("One?", "1.", "Two?", "2.", "Three?", "3.")})]
    assert [(row["id"], row["conversation_id"]) for row in rows] == [(f"{name}#{n}", name) for n in (1, 2, 3)]
    for fields in (("history", "output"), ("system_prompt", "history", "output"), ("question", "output")):
        counts = Documents.of(DocumentRule.of([fields]), rows).counts
        assert (counts.is_grouped, counts.distinct, counts.columns) == (True, 1, ("conversation_id",))


def test_an_id_that_is_empty_is_none():
    rows = turns({"id": "", "messages": said("One?", "1.")})
    assert (rows[0].fields["id"], rows[0].fields["conversation_id"]) == ("", "row 4")


def test_messages_at_a_path_and_in_two_columns():
    chat = said("One?", "1.")
    nested = {"id": 7, "sohbet": {"dil": "tr", "messages": chat}}
    (row,) = turns(nested, turns_at="sohbet.messages")
    assert row.fields["output"] == "1."
    assert row.fields["sohbet"] == {"dil": "tr"}
    (row,) = turns({"in.messages": chat[:1], "out.messages": chat[1:]}, turns_at=["in.messages", "out.messages"])
    assert row.texts(LABELS[:2]) == {"question": "One?", "output": "1."}
    (row,) = turns({"id": 1}, turns_at="sohbet.messages")
    assert "no list of messages at 'sohbet.messages'" in str(row.error)


def test_a_column_output_beside_messages_is_kept_or_is_the_last_turn():
    answer = {"choices": [{"message": {"role": "assistant", "content": "2."}}]}
    rows = turns({"messages": said("One?", "1.", "Two?"), "output": answer})
    assert [row.fields["output"] for row in rows] == ["1.", "2."]
    assert rows[0].fields["original_output"] == answer
    rows = turns({"messages": said("One?", "1."), "output": "1."})
    assert [row.fields["output"] for row in rows] == ["1."]
    # In a whole conversation, an answer that is its last turn does not come before itself.
    whole = Sample({"messages": said("One?", "1."), "output": "1."})
    assert whole.texts(["history", "output"]) == {"history": "User: One?", "output": "1."}


def test_system_prompts_that_change_are_shown_where_they_change():
    chat = [*said("One?", "1."), {"role": "system", "content": "Now in French."}, *said("Two?", "Deux.")]
    *_, last = turns({"messages": chat})
    assert "Assistant: 1.\n\nSystem: Now in French.\n\nUser: Two?" in last.texts(["history"])["history"]


CALLED = 'Assistant: [calls dig({"at": 1})]'
FORMS = {
    "responses": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "One?"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "dig", "arguments": '{"at": 1}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "gold"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "1."}]},
    ],
    "langchain": [
        {"type": "human", "content": "One?"},
        {"type": "ai", "content": "", "tool_calls": [{"name": "dig", "args": {"at": 1}, "id": "c"}]},
        {"type": "tool", "content": "gold", "tool_call_id": "c"},
        {"type": "ai", "content": "1."},
    ],
    "langchain_data": [
        {"type": "human", "data": {"content": "One?"}},
        {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "dig", "args": {"at": 1}, "id": "c"}]}},
        {"type": "tool", "data": {"content": "gold"}},
        {"type": "ai", "data": {"content": "1."}},
    ],
    "gemini": [
        {"role": "user", "parts": [{"text": "One?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "dig", "args": {"at": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "dig", "response": "gold"}}]},
        {"role": "model", "parts": [{"text": "1."}]},
    ],
    "otel": [
        {"role": "user", "parts": [{"type": "text", "content": "One?"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "dig", "arguments": {"at": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "result": "gold"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "1."}], "finish_reason": "stop"},
    ],
    "anthropic": [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "dig", "input": {"at": 1}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "gold"}]}],
        },
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "1."}]},
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_messages_are_read_alike(form):
    last = turns({"messages": FORMS[form]})[-1]
    assert last.error is None
    assert last.texts(["question", "output", "history", "context"]) == {
        "question": "One?",
        "output": "1.",
        "history": f"User: One?\n\n{CALLED}\n\nTool: gold",
        "context": "gold",
    }
    whole = Sample({"messages": FORMS[form]})
    assert whole.texts(["output", "context"]) == {"output": "1.", "context": "gold"}


RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "gold"}
GEMINI = {"functionResponse": {"name": "dig", "response": "gold"}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": [RESULT, {"type": "text", "text": "And?"}]}, "Tool: gold\n\nUser: And?"),
        ({"content": [{"type": "text", "text": "And?"}, RESULT]}, "User: And?\n\nTool: gold"),
        ({"content": [RESULT, RESULT, "And?"]}, "Tool: gold\ngold\n\nUser: And?"),
        ({"parts": [GEMINI, {"text": "And?"}]}, "Tool: gold\n\nUser: And?"),
    ],
)
def test_what_a_tool_returned_is_the_tools_and_the_text_beside_it_the_users(message, said):
    dug = FORMS["anthropic"][:2]
    chat = [*dug, {"role": "user", **message}, {"role": "assistant", "content": "1."}]
    history = f"User: One?\n\n{CALLED}\n\n{said}"
    tool = "gold\ngold" if "gold\ngold" in said else "gold"
    for sample in (turns({"messages": chat})[-1], Sample({"messages": chat}), Sample({"messages": json.dumps(chat)})):
        assert sample.texts(["question", "output", "history", "context"]) == {
            "question": "And?",
            "output": "1.",
            "history": history,
            "context": tool,
        }
    assert Sample({"source": chat}).texts(["source"]) == {"source": f"{history}\n\nAssistant: 1."}
    assert Sample({"q": chat}, mapping={"question": "q.2"}).texts(["question"]) == {"question": said}


def test_a_message_of_a_tool_and_a_photo_keeps_the_numbers_of_its_parts():
    chat = [*FORMS["anthropic"][:2], {"role": "user", "content": [RESULT, *PHOTO]}, *said("", "1.", "More?", "2.")[1:]]
    _, first, second = turns({"messages": chat})
    assert "message 3, part 3 of the content is image_url" in str(first.error)
    assert second.fields["not_shown"] == "message 3: image"


def test_an_answer_of_responses_is_its_text_without_the_reasoning():
    answer = [FORMS["responses"][1], FORMS["responses"][-1]]
    for value in (answer, json.dumps(answer)):
        assert Sample({"output": value}).texts(["output"]) == {"output": "1."}


def test_what_the_server_called_itself_is_named_and_no_turn():
    asked, *_, answer = FORMS["responses"]
    (turn,) = turns({"messages": [asked, {"type": "web_search_call", "id": "w"}, answer]})
    assert turn.texts(["question", "history"]) == {
        "question": "One?",
        "history": "User: One?\n\nAssistant: [web_search_call]",
    }
    assert turn.fields["not_shown"] == "message 2: web_search_call"


def test_a_row_without_a_conversation_is_no_turn(tmp_path):
    (lost,) = turns({"id": "x", "question": "Q?", "output": "A."})
    assert "there is no conversation; the columns are: id, question, output" in str(lost.error)
    with pytest.raises(DataError, match="there is no conversation"):
        check_input(
            str(write_rows(tmp_path / "d.jsonl", [{"question": "Q?", "output": "A."}])),
            [Metric.load("assistant/helpfulness")],
            RunOptions(turns="assistant"),
        )


def test_a_photo_that_gemini_holds_is_none_of_the_text():
    photo = {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}, {"text": "This?"}]}
    (row,) = turns({"messages": [photo, {"role": "model", "parts": [{"text": "A cat."}]}]})
    assert "part 1 of the content is inlineData" in str(row.error)


def test_results_of_turns_have_question_and_output_and_are_scored_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chats = [{"id": "a", "messages": said("One?", "1.", "Two?", "2.")}, {"id": "b", "messages": said("Go?", "No.")}]
    write_rows(tmp_path / "chats.jsonl", chats)
    judged = ("-m", "assistant/helpfulness", "-j", judge_directory())
    done = run(
        *("score", "chats.jsonl", *judged, "--turns", "assistant"),
        *("--columns", "id,question,output,score", "-o", "turns.csv"),
        home=tmp_path / "home",
    )
    assert done.exit_code == 0, done.stderr
    lines = (tmp_path / "turns.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in lines[1:]] == [
        ["a#1", "One?", "1."],
        ["a#2", "Two?", "2."],
        ["b#1", "Go?", "No."],
    ]
    turned = run("score", "chats.jsonl", *judged, "--turns", "assistant", "-o", "t.jsonl", home=tmp_path / "home")
    again = run("score", "t.jsonl", *judged, "-o", "again.jsonl", home=tmp_path / "home")
    assert (turned.exit_code, again.exit_code) == (0, 0), again.stderr
    first, second = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in ("t.jsonl", "again.jsonl")
    )
    assert "messages" not in first[1]
    assert [row["geval"] for row in first] == [row["geval"] for row in second]


def test_messages_in_a_cell_as_python_writes_them():
    (row,) = turns({"messages": str(said("One?", "1."))})
    assert row.texts(["question", "output"]) == {"question": "One?", "output": "1."}


def test_a_file_without_the_speaker_fails_before_the_judge(tmp_path):
    file = write_rows(tmp_path / "chats.jsonl", [{"messages": said("One?", "1.")}])
    with pytest.raises(DataError, match=r"no turn of 'Ada'; its speakers are: User, Assistant") as caught:
        check_input(str(file), [Metric.load("assistant/helpfulness")], RunOptions(turns="Ada"))
    assert caught.value.hint is None  # it is of the format that its name says
