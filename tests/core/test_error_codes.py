"""Codes of the reasons why rows have no score: one list, told by rows, stores, result files and documents alike."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from geval_local import Metric, PredicateQuestion
from geval_local.analysis.results import read_results
from geval_local.engine.interface import Position, ReadoutTable
from geval_local.errors import Cause, ErrorCode
from geval_local.fields import MAX_CHARACTERS
from geval_local.io.input_files import read_samples
from geval_local.io.shapes import Shape
from geval_local.options import RunOptions
from geval_local.runs.store import from_columns, to_columns
from geval_local.score import Outcome, Score
from geval_local.testing import MockJudge
from geval_local.tokens.label_trie import LabelTrie, SurfaceForm
from geval_local.tokens.requests import Request

METRIC = Metric(
    name="m", criteria="Is it good?", fields={"source": "Source", "output": "Output"}, scale="1-5", steps=()
)


def codes(path: Path, text: str, judge: MockJudge) -> list[str | None]:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return [score.error_code for score in judge.score_many(METRIC, list(read_samples(path)))]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ('{"source": "a", "output": "b"}', None),
        ('{"source": "a", "output": ""}', "empty_field"),
        ('{"source": null, "output": "b"}', "empty_field"),
        ('{"source": [], "output": "b"}', "empty_field"),
        ('{"source": "a", "output": 7}', "not_text"),
        ('{"source": "a", "output": [{"role": "user"}]}', "not_text"),
        ('{"source": "a"}', "missing_field"),
        ('{"source": "a", "output": "b"', "invalid_row"),
        ('{"source": "a", "source": "a", "output": "b"}', "invalid_row"),
        ('{"source": "a", "output": "\\ud800"}', "not_unicode"),
        ('{"id": 1, "source": "a", "output": "b"}', "duplicate_id"),
        ('{"source": "a", "output": "' + "b" * 3000 + '"}', "too_long"),
        ('{"source": "a", "output": "' + "b" * (MAX_CHARACTERS + 1) + '"}', "too_long"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_row_tells_why_it_has_no_score(tmp_path, row, code):
    first = '{"id": 1, "source": "a", "output": "b"}\n'
    assert codes(tmp_path / "rows.jsonl", first + row, MockJudge(context=2000)) == [None, code]


def test_shapes_of_rows_have_codes(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "x", "output": "y"}\n{"a": "x"}\n')
    shape = Shape(RunOptions(system_columns=["a", "b"]))
    found = [one for row in read_samples(path) for one in shape.samples(row)]
    codes_found = [one.error and one.error.code for one in found]
    assert codes_found == [ErrorCode.INVALID_ROW, None, ErrorCode.MISSING_FIELD]


def test_a_question_that_is_too_long_has_the_code_of_a_row():
    (answer,) = MockJudge(context=700).decide("word " * 2000, [PredicateQuestion(instructions="x")]).answers
    assert (answer.error_code, answer.to_dict()["error_code"]) == ("too_long", "too_long")


def test_a_stored_reason_keeps_its_code():
    cause = Cause("out of memory: a prompt of 9 tokens", ErrorCode.MEMORY)
    columns = to_columns(Outcome(error=cause))
    back = from_columns(columns).error
    assert (back, back.code) == (cause, ErrorCode.MEMORY)


def test_a_result_of_an_earlier_version_is_read():
    rows = [{"geval": {"m": {"score": None, "error": "too long", "prompt_tokens": 3}}}]
    score = read_results(rows).score("m", 0)
    assert (score.error, score.error_code, score.prompt_tokens) == ("too long", "unknown", 3)
    rows[0]["geval"]["m"]["error_code"] = "of_a_later_version"
    assert read_results(rows).score("m", 0).error_code == "unknown"


def test_a_cause_is_its_text_and_survives_pickling():
    cause = Cause("the prompt has 9 tokens", ErrorCode.TOO_LONG)
    score = Score.unscored("m", cause)
    again = pickle.loads(pickle.dumps(score))
    assert (again.error, again.error_code) == ("the prompt has 9 tokens", "too_long")
    assert type(score.to_dict()["error"]) is str  # JSON writers treat subclasses otherwise
    assert ErrorCode.TOO_LONG == "too_long" == str(ErrorCode.TOO_LONG)


@pytest.mark.parametrize(
    ("edges", "code"), [(np.nan, ErrorCode.NOT_FINITE), (-np.inf, ErrorCode.NO_LABEL)], ids=["not finite", "no label"]
)
def test_a_read_out_without_figures_has_a_code(edges, code):
    trie = LabelTrie([SurfaceForm(0, "1", (5,)), SurfaceForm(1, "2", (6,))], 2)
    table = ReadoutTable([Request(np.array([1, 2], dtype=np.int32), trie)])
    table.add(Position(0, 0), np.full(2, edges), ())
    assert table.take(0).error.code is code
    table.fail(0, "alone")
    assert table.take(0).error.code is ErrorCode.MEMORY


def test_the_documents_list_every_code():
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8").split("| code | meaning |")[1]
    listed = re.findall(r"^\| `(\w+)` \| (.+?) \|$", text, flags=re.MULTILINE)
    assert dict(listed) == {code.value: code.meaning for code in ErrorCode}
