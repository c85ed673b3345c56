"""The scripts of docs/chat-logs.md, on small exports in the shapes that the tools document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import geval_local

PAGE = Path(geval_local.__file__).parents[1] / "docs" / "chat-logs.md"


def scripts() -> dict[str, Any]:
    """Define all that the page's Python blocks define."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if "def " in block:
            exec(block, names)
    return names


ASKED, SAID = {"role": "user", "content": "When?"}, {"role": "assistant", "content": "At nine."}


def test_an_export_of_chatgpt_in_the_order_of_time():
    nodes = {
        "b": {"message": {"author": {"role": "assistant"}, "content": {"parts": ["At nine."]}, "create_time": 2.0}},
        "a": {"message": {"author": {"role": "user"}, "content": {"parts": ["When?"]}, "create_time": 1.0}},
        "root": {"message": None},
    }
    (chat,) = scripts()["chats"]([{"id": "c", "mapping": nodes}])
    assert [one["role"] for one in chat["messages"]] == ["user", "assistant"]


def test_the_last_generation_of_a_langfuse_trace_holds_the_chat():
    observations = [
        {"traceId": "t", "type": "GENERATION", "startTime": "2", "input": {"messages": [ASKED]}, "output": "At nine."},
        {"traceId": "t", "type": "GENERATION", "startTime": "1", "input": [ASKED], "output": "At ten."},
        {"traceId": "t", "type": "SPAN", "startTime": "3", "input": None, "output": "x"},
        {"traceId": "u", "type": "GENERATION", "startTime": "1", "input": [ASKED], "output": SAID},
    ]
    found = list(scripts()["langfuse_chats"](observations))
    assert sorted(one["id"] for one in found) == ["t", "u"]
    assert all(one["messages"] == [ASKED, SAID] for one in found)


def test_runs_of_langsmith_without_those_that_failed():
    runs = [
        {"id": "1", "error": None, "inputs": {"question": "When?"}, "outputs": {"output": "At nine."}},
        {"id": "2", "error": "timeout", "inputs": {"question": "When?"}, "outputs": None},
    ]
    assert list(scripts()["langsmith_rows"](runs)) == [{"id": "1", "question": "When?", "output": "At nine."}]


def test_a_thread_of_slack_goes_over_days_and_the_bot_is_named(tmp_path):
    first = [{"user": "U1", "text": "When?", "ts": "10.5"}, {"user": "U2", "text": "Hello", "ts": "11.0"}]
    second = [{"bot_id": "B1", "text": "At nine.", "ts": "90.0", "thread_ts": "10.5"}, {"ts": "91.0", "files": []}]
    for day, messages in (("2026-01-01", first), ("2026-01-02", second)):
        (tmp_path / f"{day}.json").write_text(json.dumps(messages), encoding="utf-8")
    found = list(scripts()["slack_chats"](tmp_path, "B1"))
    assert found[0] == {"id": "10.5", "messages": [ASKED, SAID]}
    assert found[1]["messages"] == [{"role": "user", "content": "Hello"}]
