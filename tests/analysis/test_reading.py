import json
import math

import numpy as np
import pytest

import geval_local
from geval_local.analysis.ratings.values import each_place, number_at
from geval_local.analysis.results import ScoredRun, read_rows
from geval_local.errors import DataError
from geval_local.fields import field_value
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Score
from geval_local.statistics.records import ScoredItem, pair, usable


def result_rows():
    distribution = Distribution(Scale.parse("1-3"), [-3.0, -0.5, -1.5])
    score = Score.from_distribution("m", distribution, estimator=Estimator()).to_dict()
    lost = Score.unscored("m", "the prompt is too long").to_dict()
    return [
        {"doc": "a", "system_id": "x", "output": "one two three", "rating": {"mean": 2.0}, "geval": {"m": score}},
        {"doc": "a", "system_id": "y", "output": "one", "rating": {"mean": None}, "geval": {"m": lost}},
    ]


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_scores_are_read_back_as_they_were_written(tmp_path):
    rows = result_rows()
    scored, lost = ScoredRun.of(write(tmp_path / "r.jsonl", rows), group_by="doc").items("m", human="rating.mean")
    assert scored == ScoredItem(
        *("a", "x", 2.0, rows[0]["geval"]["m"]["score"], rows[0]["geval"]["m"]["probabilities"], None, "1", None),
        label_mass=rows[0]["geval"]["m"]["label_mass"],
    )
    assert math.isnan(lost.predicted)
    assert math.isnan(lost.human)
    assert lost.error == "the prompt is too long"
    assert usable([scored, lost]) == ([scored], {"the prompt is too long": 1})


def test_without_a_field_to_group_by_every_item_is_its_own_group(tmp_path):
    items = ScoredRun.of(write(tmp_path / "r.jsonl", result_rows())).items("m")
    assert [item.group for item in items] == ["1", "2"]


def test_ids_become_keys_only_if_every_row_has_its_own(tmp_path):
    rows = result_rows()
    for row, name in zip(rows, ("p", "q"), strict=True):
        row["id"] = name
    assert [item.key for item in ScoredRun.of(write(tmp_path / "r.jsonl", rows)).items("m")] == ["p", "q"]
    rows[1]["id"] = "p"
    assert [item.key for item in ScoredRun.of(write(tmp_path / "r.jsonl", rows)).items("m")] == ["1", "2"]


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (lambda row: row.pop("geval"), {}, "row 2: no scores"),
        (lambda row: row["geval"].pop("m"), {}, "row 2: no scores"),
        (lambda row: row.pop("doc"), {"group_by": "doc"}, "row 2: the field 'doc' to group by is missing"),
        (lambda row: row["rating"].update(mean="high"), {"human": "rating.mean"}, "rating.mean is not a number"),
        (
            lambda row: row["rating"].update(mean="maybe"),
            {"human": "rating.mean"},
            "row 2: rating.mean is not a number",
        ),
        (lambda row: row["rating"].update(mean=[1, math.inf]), {"human": "rating.mean"}, "rating.mean is not a number"),
        (lambda row: row.pop("system_id"), {}, "row 2: the field 'system_id' is missing"),
        (lambda row: None, {"human": "raiting"}, "no row has a human rating in 'raiting'"),
    ],
)
def test_what_is_missing_is_named_by_row(tmp_path, change, arguments, message):
    rows = result_rows()
    change(rows[1])
    system = "system_id" if "system_id" in message else None
    run = ScoredRun.of(write(tmp_path / "r.jsonl", rows), system=system, group_by=arguments.get("group_by"))
    with pytest.raises(DataError, match=message):
        run.items("m", human=arguments.get("human"))


def test_rows_come_from_lines_and_from_lists(tmp_path):
    lines = write(tmp_path / "a.jsonl", [{"text": "one\u2028line"}, {"text": "two"}])
    assert [row["text"] for row in read_rows(lines)] == ["one\u2028line", "two"]
    path = tmp_path / "b.json"
    path.write_text(json.dumps([{"a": 1}]))
    assert list(read_rows(path)) == [{"a": 1}]
    for text, message in (
        ("", "no rows"),
        ("[]", "no rows"),
        ('{"a": 1}\n{', "line 2"),
        ("[1]", "row 1: not a JSON object"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_rows(path)
    with pytest.raises(DataError, match="there is no file"):
        read_rows(tmp_path / "none.json")


def test_a_field_name_with_a_dot_wins_over_a_path():
    assert field_value({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert field_value({"a": {"b": 2}}, "a.b") == 2
    assert field_value({"a": 1}, "a.b") is None


def item(key, human=1.0, predicted=1.0, group="g"):
    return ScoredItem(group, "", human, predicted, key=key)


def test_pairing_goes_by_key_and_refuses_what_does_not_match():
    left, right = pair([item("a"), item("b"), item("c", predicted=math.nan)], [item("c"), item("b"), item("d")])
    assert [x.key for x in left] == [x.key for x in right] == ["b"]
    with pytest.raises(DataError, match="not the same in both"):
        pair([item("a", human=1.0)], [item("a", human=2.0)])
    with pytest.raises(DataError, match="not the same in both"):
        pair([item("a", group="g")], [item("a", group="h")])
    with pytest.raises(DataError, match="no scored item in common"):
        pair([item("a")], [item("b")])
    with pytest.raises(DataError, match="more than once"):
        pair([item("a"), item("a")], [item("a")])


@pytest.mark.parametrize("name", ["r.jsonl", "r.csv", "r.parquet"])
def test_every_format_of_results_gives_the_same_items(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    distribution = Distribution(Scale.parse("1-3"), [-3.0, -0.5, -1.5])
    scores = [
        Score.from_distribution("sum/m.1", distribution, estimator=Estimator()),
        Score.unscored("sum/m.1", "the prompt is too long"),
    ]
    columns = [
        {"id": "p", "doc": "a", "output": "one {two}", "scores": {"tone": 2.5}},
        {"id": "q", "doc": "a", "output": '["three"]', "scores": {"tone": 1}},
    ]
    with ResultWriter.open(tmp_path / name, ["sum/m.1"], columns=["all"]) as writer:
        for row, score in zip(columns, scores, strict=True):
            writer.write(Sample(row), {"sum/m.1": score})
    run = ScoredRun.of(tmp_path / name, group_by="doc")
    assert run.outputs == {"p": "one {two}", "q": '["three"]'}
    first, second = run.items("sum/m.1", human="scores.tone")
    assert (first.key, first.group, first.human) == ("p", "a", 2.5)
    assert first.predicted == distribution.score
    assert first.probabilities == distribution.probabilities
    assert math.isnan(second.predicted)
    assert (second.human, second.error) == (1.0, "the prompt is too long")
    assert second.probabilities is None


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


@pytest.mark.parametrize("empty", [None, "", math.nan, "nan", [], [None, math.nan]])
def test_an_empty_value_is_no_rating(empty):
    assert math.isnan(number_at({"rating": empty}, "rating", "row 1"))
    assert number_at({"rating": [empty, 4]} if not isinstance(empty, list) else {"rating": 4}, "rating", "row 1") == 4


def test_yes_and_no_are_ratings_however_they_are_written():
    assert [number_at({"r": value}, "r", "row 1") for value in (True, "true", "True", 1)] == [1.0] * 4
    assert [number_at({"r": value}, "r", "row 1") for value in (False, "false", "FALSE", 0)] == [0.0] * 4
    assert number_at({"r": [True, False, True, True]}, "r", "row 1") == 0.75


def test_empty_cells_of_a_frame_are_no_ratings_and_name_nobody():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    rows = [
        {
            "doc": f"d{at // 2}",
            "system": "ab"[at % 2],
            "geval": {"m": {"score": float(at % 5)}},
            "rating": at % 3 if at < 6 else None,
            "liked": at % 2 == 0 if at < 6 else None,
        }
        for at in range(40)
    ]
    for frame in (pandas.DataFrame(rows), pandas.DataFrame(rows).convert_dtypes(), polars.DataFrame(rows)):
        for human, ratings in (("rating", [0, 1, 2, 0, 1, 2]), ("liked", [1, 0, 1, 0, 1, 0])):
            items = ScoredRun.of(frame, group_by="doc").items("m", human=human)
            assert [item.human for item in items[:6]] == ratings
            assert all(math.isnan(item.human) for item in items[6:])
    frame = pandas.DataFrame([row | {"system": None} if at == 3 else row for at, row in enumerate(rows)])
    with pytest.raises(DataError, match="row 4: the field 'system' is missing"):
        ScoredRun.of(frame, system="system", group_by="doc").items("m")


def test_cells_of_a_frame_may_hold_arrays():
    pandas = pytest.importorskip("pandas")
    own = [{"score": at + 0.5, "order_scores": np.array([at, at + 1.0]), "order_masses": None} for at in range(3)]
    rows = [{"tags": np.array(["a", "b"]), "geval": {"m": one | {"order_masses": np.ones(2)}}} for one in own]
    frame = pandas.DataFrame([*rows, {"output": "x", "geval": {"m": {"score": float("nan"), "error": "none"}}}])
    run = ScoredRun.of(frame)
    assert [score.value for score in run.scores("m")[:3]] == [0.5, 1.5, 2.5]
    assert [order.score for order in run.score("m", 1).orders] == [1.0, 2.0]
    assert run.score("m", 3).error == "none"
    assert [list(row["tags"]) for row in run.rows[:3]] == [["a", "b"]] * 3
    assert run.rows[3]["tags"] is None


def test_results_are_read_with_all_that_they_know_and_as_frames(tmp_path):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    run = geval_local.read_results(write(tmp_path / "r.jsonl", result_rows()))
    assert run.metrics == ["m"]
    assert run.manifest is None
    assert run.scores("m")[0].value == run.rows[0]["geval"]["m"]["score"]
    for frame, found in ((pandas, run.to_pandas()), (polars, run.to_polars())):
        assert isinstance(found, frame.DataFrame)
        assert found["m.score"].to_list()[0] == run.rows[0]["geval"]["m"]["score"]
        assert found["doc"].to_list() == [row["doc"] for row in run.rows]
        assert "geval" not in found.columns
