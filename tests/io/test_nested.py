"""Records that hold several outputs, outputs that hold several ratings: the path language."""

from __future__ import annotations

import json

import pytest

from geval_local.analysis.reading import each_place, number_at
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import field_value
from geval_local.io.nested import expand_rows, merge_rows, read_records

STORY = {"prompt": "A dog.", "gen": {"gpt": {"text": "Ran.", "score": [3, 4]}, "s2s": {"text": "Sat.", "score": [1]}}}


def test_an_output_takes_over_what_stands_beside_its_path():
    rows = expand_rows([STORY], "gen.{system}", "stories.json")
    assert rows == [
        {"prompt": "A dog.", "system": "gpt", "text": "Ran.", "score": [3, 4]},
        {"prompt": "A dog.", "system": "s2s", "text": "Sat.", "score": [1]},
    ]
    assert [row.number for row in rows] == [1, 2]


def test_an_object_of_records_and_its_keys():
    rows = expand_rows([{"0": STORY, "1": STORY}], "{story}.gen.{system}", "stories.json")
    assert [(row["story"], row["system"]) for row in rows] == [("0", "gpt"), ("0", "s2s"), ("1", "gpt"), ("1", "s2s")]


def test_lists_texts_and_numbers():
    record = {"id": 7, "turns": [{"by": "a", "said": ["x", "y"]}, {"by": "b", "said": ["z"]}]}
    assert [row["by"] for row in expand_rows([record], "turns.*", "f")] == ["a", "b"]
    assert expand_rows([record], "turns.{turn}.said.{place}", "f")[2] == {
        "id": 7,
        "turn": "2",
        "by": "b",
        "place": "1",
        "output": "z",
    }
    assert expand_rows([record], "turns.1", "f") == [{"id": 7, "by": "b", "said": ["z"]}]
    # In a CSV cell the same stands as JSON.
    assert expand_rows([{"id": 7, "turns": json.dumps(record["turns"])}], "turns.*", "f")[0]["by"] == "a"
    # A column of that very name comes first, and what an output holds comes before what it takes over.
    assert expand_rows([{"*": {"id": 1}, "id": 0}], "*", "f") == [{"id": 1}]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gen.system", "row 1, gen: there is no 'system' for --rows; its keys are: gpt, s2s"),
        ("prompt.*", "row 1, prompt: there is no '*' for --rows; it is no object"),
        ("gen.{system}.score", "row 1, gen, gpt, score is"),
        ("gen.{system}.score.*", "row 1, gen, gpt, score, 1 is 3, neither an object nor a text"),
    ],
)
def test_a_path_that_leads_nowhere_is_named_with_its_record(path, message):
    with pytest.raises(DataError, match=message.replace("*", r"\*")):
        expand_rows([STORY], path, "f")


@pytest.mark.parametrize("path", ["", "gen..x", "{a}.{a}"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ConfigurationError, match="is no path to rows"):
        expand_rows([STORY], path, "f")


def test_rows_of_several_annotators_become_one():
    rows = [
        {"article": "1", "system": "a", "text": "t", "rating": rating, "worker": worker}
        for rating, worker in ((4, "x"), (5, "y"))
    ] + [{"article": "1", "system": "b", "text": "u", "rating": 2, "worker": "x"}]
    merged = merge_rows(rows, ["article", "system"], "f")
    assert merged == [
        {"article": "1", "system": "a", "text": "t", "rating": [4, 5], "worker": ["x", "y"]},
        {"article": "1", "system": "b", "text": "u", "rating": [2], "worker": ["x"]},
    ]
    assert number_at(merged[0], "rating", "row 1") == 4.5
    with pytest.raises(DataError, match="row 1: the field 'page' to merge by is missing"):
        merge_rows(rows, ["page"], "f")


def test_a_star_is_every_item():
    row = {"annotators": [{"c": 2}, {"c": 4}, {"d": 9}], "by": {"x": {"c": 1}, "y": {"c": 3}}, "deep": [[1, 2], [3]]}
    assert field_value(row, "annotators.*.c") == [2, 4]
    assert field_value(row, "by.*.c") == [1, 3]
    assert field_value(row, "deep.*.*") == [1, 2, 3]
    assert field_value(row, "annotators.*.e", "none") == "none"
    assert number_at(row, "annotators.*.c", "row 1") == 3
    assert each_place([row, {"annotators": [{}] * 4}], "annotators.*.c") == [f"annotators.{i}.c" for i in range(4)]
    assert each_place([row], "by.*.c") == ["by.x.c", "by.y.c"]
    assert each_place([row], "deep") == ["deep"]


def test_a_file_that_is_one_object_is_one_record(tmp_path):
    path = tmp_path / "stories.json"
    path.write_text(json.dumps({"0": STORY}))
    assert read_records(path) == [{"0": STORY}]
    path.write_text(json.dumps([STORY]))
    assert read_records(path) == [STORY]
    path.write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        read_records(path)
